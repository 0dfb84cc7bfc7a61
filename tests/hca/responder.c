// SPDX-License-Identifier: GPL-2.0
/*
 * The responder's half of a queue pair: it carries out the peer's requests in the
 * order of the messages. Its answers go in that order, too: after the data of
 * earlier READs. An acknowledgement covers all that has arrived.
 *
 * The engine calls all of this, with dev->exec held.
 */
#include <linux/slab.h>

#include "hca.h"

/* Returns the oldest posted receive, if any. */
struct hca_rwqe *hca_rq_first(struct hca_qp *qp)
{
	u32 tail;

	spin_lock_irq(&qp->lock);
	tail = qp->rq_tail;
	spin_unlock_irq(&qp->lock);
	return qp->rq_head == tail ? NULL : hca_rwqe(qp, qp->rq_head);
}

void hca_responder_reset(struct hca_qp *qp)
{
	struct hca_resp *resp, *next;

	list_for_each_entry_safe(resp, next, &qp->resp, entry) {
		kfree(resp->answer);
		kfree(resp);
	}
	INIT_LIST_HEAD(&qp->resp);
}

static void add_resp(struct hca_qp *qp, struct hca_resp *resp)
{
	list_add_tail(&resp->entry, &qp->resp);
	hca_qp_kick(qp);
}

/* Queues an answer behind all others; `fatal`: it is the last one. */
static void answer(struct hca_qp *qp, struct hca_pkt *pkt, u32 msn, bool fatal)
{
	struct hca_resp *resp = kzalloc(sizeof(*resp), GFP_KERNEL | __GFP_NOFAIL);

	pkt->msn = msn;
	resp->answer = pkt;
	resp->fatal = fatal;
	qp->rx_closed |= fatal;
	add_resp(qp, resp);
}

static void nak(struct hca_qp *qp, u32 msn, enum ib_wc_status status)
{
	struct hca_pkt *pkt = hca_pkt_alloc(qp, HCA_PKT_NAK, 0);

	pkt->status = status;
	qp->dev->count.naks++;
	if (status == IB_WC_REM_ACCESS_ERR)
		hca_qp_event(qp, IB_EVENT_QP_ACCESS_ERR);
	else if (!qp->rx_wqe)
		hca_qp_event(qp, IB_EVENT_QP_REQ_ERR);
	answer(qp, pkt, msn, true);
}

static void not_ready(struct hca_qp *qp, u32 msn)
{
	struct hca_pkt *pkt = hca_pkt_alloc(qp, HCA_PKT_RNR, 0);

	pkt->rnr_timer = qp->attr.min_rnr_timer;
	qp->dev->count.rnr_naks++;
	qp->rx_offset = 0;
	answer(qp, pkt, msn, false);
}

static void complete_recv(struct hca_qp *qp, struct hca_pkt *pkt, enum ib_wc_status status)
{
	struct ib_wc wc = { .wr_id = hca_rwqe(qp, qp->rq_head)->wr_id, .status = status };

	if (status == IB_WC_SUCCESS) {
		wc.opcode = pkt->opcode == IB_WR_RDMA_WRITE_WITH_IMM ? IB_WC_RECV_RDMA_WITH_IMM : IB_WC_RECV;
		wc.byte_len = pkt->total;
		wc.src_qp = pkt->sqpn;
		wc.port_num = 1;
		if (pkt->opcode == IB_WR_SEND_WITH_IMM || pkt->opcode == IB_WR_RDMA_WRITE_WITH_IMM) {
			wc.wc_flags = IB_WC_WITH_IMM;
			wc.ex.imm_data = pkt->imm;
		} else if (pkt->opcode == IB_WR_SEND_WITH_INV) {
			wc.wc_flags = IB_WC_WITH_INVALIDATE;
			wc.ex.invalidate_rkey = (__force u32)pkt->imm;
		}
	} else {
		wc.opcode = 0x7f;
		wc.byte_len = 0xdeadbeef;
	}
	qp->rq_head++;
	qp->dev->count.recvs++;
	hca_complete(qp, &wc, qp->rq_head, true, pkt->solicited);
}

static void message_done(struct hca_qp *qp)
{
	qp->rq_msn = (qp->rq_msn + 1) & HCA_PSN_MASK;
	qp->rx_offset = 0;
	qp->rx_wqe = false;
}

static void ack(struct hca_qp *qp)
{
	qp->ack_due = true;
	hca_qp_kick(qp);
}

static void on_send(struct hca_qp *qp, struct hca_pkt *pkt)
{
	struct hca_rwqe *wqe = hca_rq_first(qp);
	int err;

	if (!wqe)
		return not_ready(qp, pkt->msn);
	qp->rx_wqe = true;
	if (pkt->total > wqe->length) {
		complete_recv(qp, pkt, IB_WC_LOC_LEN_ERR);
		return nak(qp, pkt->msn, IB_WC_REM_INV_REQ_ERR);
	}
	err = hca_sge_copy(qp, wqe->sge, wqe->num_sge, pkt->offset, pkt->data, pkt->len, true);
	if (err) {
		complete_recv(qp, pkt, err == -EACCES ? IB_WC_LOC_PROT_ERR : IB_WC_LOC_QP_OP_ERR);
		return nak(qp, pkt->msn, IB_WC_REM_OP_ERR);
	}
	qp->rx_offset += pkt->len;
	if (!pkt->last)
		return;
	if (pkt->opcode == IB_WR_SEND_WITH_INV && hca_invalidate(qp, (__force u32)pkt->imm, true))
		return nak(qp, pkt->msn, IB_WC_REM_ACCESS_ERR);
	complete_recv(qp, pkt, IB_WC_SUCCESS);
	message_done(qp);
	ack(qp);
}

/* Flips a bit of the data if the test wants that. */
static void corrupt(struct hca_qp *qp, struct hca_pkt *pkt)
{
	struct hca_knobs *knobs = &qp->dev->knobs;
	u32 left = READ_ONCE(knobs->corrupt);

	if (!left || !pkt->len)
		return;
	WRITE_ONCE(knobs->corrupt, left - 1);
	pkt->data[pkt->len / 2] ^= 1;
}

static void on_write(struct hca_qp *qp, struct hca_pkt *pkt)
{
	int err = 0;

	corrupt(qp, pkt);

	if (!pkt->offset)
		err = hca_remote_check(qp, pkt->rkey, pkt->raddr, pkt->total, IB_ACCESS_REMOTE_WRITE);
	if (!err)
		err = hca_remote_copy(qp, pkt->rkey, pkt->raddr + pkt->offset, pkt->data, pkt->len, true);
	if (err)
		return nak(qp, pkt->msn, err == -EACCES ? IB_WC_REM_ACCESS_ERR : IB_WC_REM_OP_ERR);
	qp->rx_offset += pkt->len;
	if (!pkt->last)
		return;
	if (pkt->opcode == IB_WR_RDMA_WRITE_WITH_IMM) {
		if (!hca_rq_first(qp))
			return not_ready(qp, pkt->msn);
		complete_recv(qp, pkt, IB_WC_SUCCESS);
	}
	message_done(qp);
	ack(qp);
}

static void add_read(struct hca_qp *qp, struct hca_pkt *pkt)
{
	struct hca_resp *resp = kzalloc(sizeof(*resp), GFP_KERNEL | __GFP_NOFAIL);

	resp->msn = pkt->msn;
	resp->attempt = pkt->attempt;
	resp->raddr = pkt->raddr;
	resp->rkey = pkt->rkey;
	resp->length = pkt->total;
	add_resp(qp, resp);
}

static void on_read(struct hca_qp *qp, struct hca_pkt *pkt)
{
	/* More READs at a time than this side allows. */
	if (pkt->reads > qp->attr.max_dest_rd_atomic)
		return nak(qp, pkt->msn, IB_WC_REM_INV_REQ_ERR);
	if (hca_remote_check(qp, pkt->rkey, pkt->raddr, pkt->total, IB_ACCESS_REMOTE_READ))
		return nak(qp, pkt->msn, IB_WC_REM_ACCESS_ERR);
	add_read(qp, pkt);
	message_done(qp);
}

/* Handles a packet of a request. */
void hca_responder_request(struct hca_qp *qp, struct hca_pkt *pkt)
{
	int diff = hca_msn_diff(pkt->msn, qp->rq_msn);

	/* A peer without a connection to this queue pair gets no answer. */
	if ((qp->state != IB_QPS_RTR && qp->state != IB_QPS_RTS) || qp->rx_closed ||
	    memcmp(&pkt->sgid, &qp->dgid, sizeof(qp->dgid)))
		return;
	if (qp->state == IB_QPS_RTR && !qp->established) {
		qp->established = true;
		hca_qp_event(qp, IB_EVENT_COMM_EST);
	}
	if (diff < 0) {
		/* The request was carried out, and its answer was lost or is in flight. */
		if (pkt->opcode == IB_WR_RDMA_READ)
			add_read(qp, pkt);
		else
			ack(qp);
		return;
	}
	if (diff > 0)
		return;
	if (!pkt->offset)
		qp->rx_offset = 0;
	if (pkt->offset != qp->rx_offset)
		return;
	switch (pkt->opcode) {
	case IB_WR_SEND:
	case IB_WR_SEND_WITH_IMM:
	case IB_WR_SEND_WITH_INV:
		on_send(qp, pkt);
		break;
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		on_write(qp, pkt);
		break;
	default:
		on_read(qp, pkt);
	}
	if (qp->rx_offset && qp->rx_offset % (HCA_ACK_EVERY * HCA_MTU) == 0) {
		struct hca_pkt *told = hca_pkt_alloc(qp, HCA_PKT_PROGRESS, 0);

		told->msn = qp->rq_msn;
		hca_wire_send(qp->dev, told);
	}
}

/* Sends data of a READ. False: some of it is not sent yet. */
static bool send_data(struct hca_qp *qp, struct hca_resp *resp)
{
	do {
		u32 len = min_t(u32, resp->length - resp->offset, HCA_MTU);
		struct hca_pkt *pkt;
		int err;

		if (!hca_wire_has_room(qp->dev, &qp->dgid)) {
			hca_qp_again(qp);
			return false;
		}
		pkt = hca_pkt_alloc(qp, HCA_PKT_READ, len);
		err = hca_remote_copy(qp, resp->rkey, resp->raddr + resp->offset, pkt->data, len, false);
		if (err) {
			kfree(pkt);
			hca_responder_reset(qp);
			nak(qp, resp->msn, err == -EACCES ? IB_WC_REM_ACCESS_ERR : IB_WC_REM_OP_ERR);
			return false;
		}
		pkt->msn = resp->msn;
		pkt->attempt = resp->attempt;
		pkt->offset = resp->offset;
		resp->offset += len;
		pkt->last = resp->offset == resp->length;
		hca_wire_send(qp->dev, pkt);
	} while (resp->offset < resp->length);
	return true;
}

/* Sends the queued answers. */
void hca_responder_run(struct hca_qp *qp)
{
	struct hca_resp *resp;
	struct hca_pkt *pkt;

	if (qp->state != IB_QPS_RTR && qp->state != IB_QPS_RTS)
		return;
	while ((resp = list_first_entry_or_null(&qp->resp, struct hca_resp, entry))) {
		bool fatal = resp->fatal;

		if (resp->answer)
			hca_wire_send(qp->dev, resp->answer);
		else if (!send_data(qp, resp))
			return;
		list_del(&resp->entry);
		kfree(resp);
		if (fatal) {
			hca_qp_error(qp);
			return;
		}
	}
	if (!qp->ack_due)
		return;
	qp->ack_due = false;
	pkt = hca_pkt_alloc(qp, HCA_PKT_ACK, 0);
	pkt->msn = (qp->rq_msn - 1) & HCA_PSN_MASK;
	hca_wire_send(qp->dev, pkt);
}
