// SPDX-License-Identifier: GPL-2.0
/*
 * The requester's half of a queue pair: it carries out a send queue in order.
 *
 *	sq_head		the oldest work request that has not completed
 *	sq_next		the next one to be sent (or sent again)
 *	sq_tail		where the next one is posted
 *
 * Requests are sent as packets of HCA_MTU bytes. Messages are numbered, and after a
 * timeout all are sent again from the oldest unanswered one on; a REG_MR or
 * LOCAL_INV is carried out once only. A failing request stops those behind it, and
 * completes when all before it have; the rest is flushed.
 *
 * The engine calls all of this, with dev->exec held.
 */
#include "hca.h"

#define MESSAGES_OUT 64

static u32 tail_of(struct hca_qp *qp)
{
	u32 tail;

	spin_lock_irq(&qp->lock);
	tail = qp->sq_tail;
	spin_unlock_irq(&qp->lock);
	return tail;
}

static bool is_local(const struct hca_swqe *wqe)
{
	return wqe->opcode == IB_WR_REG_MR || wqe->opcode == IB_WR_LOCAL_INV;
}

static enum ib_wc_opcode wc_opcode(enum ib_wr_opcode opcode)
{
	switch (opcode) {
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		return IB_WC_RDMA_WRITE;
	case IB_WR_RDMA_READ:
		return IB_WC_RDMA_READ;
	case IB_WR_REG_MR:
		return IB_WC_REG_MR;
	case IB_WR_LOCAL_INV:
		return IB_WC_LOCAL_INV;
	default:
		return IB_WC_SEND;
	}
}

static void complete_send(struct hca_qp *qp, u32 n, enum ib_wc_status status)
{
	struct hca_swqe *wqe = hca_swqe(qp, n);
	struct ib_wc wc = { .wr_id = wqe->wr_id, .status = status };

	if (status == IB_WC_SUCCESS) {
		if (!qp->sig_all && !(wqe->flags & IB_SEND_SIGNALED))
			return;
		wc.opcode = wc_opcode(wqe->opcode);
		wc.byte_len = wqe->length;
	} else {
		/* The specification defines nothing else of such a completion. */
		wc.opcode = 0x7f;
		wc.byte_len = 0xdeadbeef;
	}
	hca_complete(qp, &wc, n + 1, false, false);
}

/* Completes all work requests of a queue pair in error as flushed. */
void hca_flush(struct hca_qp *qp)
{
	struct hca_rwqe *wqe;
	u32 tail;

	if (READ_ONCE(qp->dev->knobs.no_flush))
		return;
	tail = tail_of(qp);
	for (; qp->sq_head != tail; qp->sq_head++) {
		complete_send(qp, qp->sq_head, IB_WC_WR_FLUSH_ERR);
		qp->dev->count.flushed++;
	}
	qp->sq_next = tail;
	qp->reads_out = 0;
	while ((wqe = hca_rq_first(qp))) {
		struct ib_wc wc = { .wr_id = wqe->wr_id, .status = IB_WC_WR_FLUSH_ERR,
				    .opcode = 0x7f, .byte_len = 0xdeadbeef };

		qp->rq_head++;
		hca_complete(qp, &wc, qp->rq_head, true, false);
		qp->dev->count.flushed++;
	}
}

static void arm_timer(struct hca_qp *qp, ktime_t now)
{
	u64 ns = 4096ULL << qp->attr.timeout;

	qp->ack_by = 0;
	if (qp->sq_head == qp->sq_next || !qp->attr.timeout)
		return;
	qp->ack_by = ktime_add_ns(now, max_t(u64, ns, NSEC_PER_MSEC));
	hca_timer(qp->dev, qp->ack_by);
}

static void progress(struct hca_qp *qp)
{
	qp->retries = qp->attr.retry_cnt;
	qp->rnr_retries = qp->attr.rnr_retry;
	arm_timer(qp, ktime_get());
}

/* Completes finished work requests, in order. False: the queue pair is in error now. */
static bool retire(struct hca_qp *qp)
{
	while (qp->sq_head != qp->sq_next) {
		struct hca_swqe *wqe = hca_swqe(qp, qp->sq_head);

		if (wqe->state != HCA_WQE_DONE)
			break;
		complete_send(qp, qp->sq_head++, wqe->status);
		if (wqe->status != IB_WC_SUCCESS) {
			hca_qp_error(qp);
			hca_flush(qp);
			return false;
		}
	}
	if (qp->sq_head == qp->sq_next)
		qp->ack_by = 0;
	return true;
}

static void finish(struct hca_qp *qp, struct hca_swqe *wqe, enum ib_wc_status status)
{
	if (wqe->opcode == IB_WR_RDMA_READ && wqe->state == HCA_WQE_SENT)
		qp->reads_out--;
	wqe->state = HCA_WQE_DONE;
	wqe->status = status;
}

/* Resends from this work request on. */
static void rewind_to(struct hca_qp *qp, u32 n)
{
	u32 i;

	for (i = n; i != qp->sq_next; i++) {
		struct hca_swqe *wqe = hca_swqe(qp, i);

		if (wqe->state == HCA_WQE_SENT && wqe->opcode == IB_WR_RDMA_READ)
			qp->reads_out--;
		if (wqe->state != HCA_WQE_DONE) {
			wqe->state = HCA_WQE_NEW;
			wqe->offset = 0;
			wqe->attempt++;
		}
	}
	/* The next one may have been sent in part. */
	if (qp->sq_next != tail_of(qp)) {
		hca_swqe(qp, qp->sq_next)->offset = 0;
		hca_swqe(qp, qp->sq_next)->attempt++;
	}
	qp->sq_next = n;
	qp->dev->count.resent++;
}

static void number(struct hca_qp *qp, struct hca_swqe *wqe)
{
	if (wqe->numbered)
		return;
	wqe->numbered = true;
	wqe->msn = qp->sq_msn;
	qp->sq_msn = (qp->sq_msn + 1) & HCA_PSN_MASK;
}

static struct hca_pkt *request(struct hca_qp *qp, struct hca_swqe *wqe, u32 len)
{
	struct hca_pkt *pkt = hca_pkt_alloc(qp, HCA_PKT_REQUEST, len);

	pkt->msn = wqe->msn;
	pkt->attempt = wqe->attempt;
	pkt->opcode = wqe->opcode;
	pkt->solicited = wqe->flags & IB_SEND_SOLICITED;
	pkt->offset = wqe->offset;
	pkt->total = wqe->length;
	pkt->raddr = wqe->raddr;
	pkt->rkey = wqe->rkey;
	pkt->imm = wqe->imm;
	pkt->reads = qp->reads_out;
	return pkt;
}

/* Sends the packets of a SEND or RDMA WRITE. False: the peer's packet queue is full. */
static bool send_packets(struct hca_qp *qp, struct hca_swqe *wqe)
{
	number(qp, wqe);
	do {
		u32 len = min_t(u32, wqe->length - wqe->offset, HCA_MTU);
		struct hca_pkt *pkt;
		int err = 0;

		if (!hca_wire_has_room(qp->dev, &qp->dgid)) {
			hca_qp_again(qp);
			return false;
		}
		pkt = request(qp, wqe, len);
		if (wqe->flags & IB_SEND_INLINE)
			memcpy(pkt->data, wqe->inline_data + wqe->offset, len);
		else
			err = hca_sge_copy(qp, wqe->sge, wqe->num_sge, wqe->offset, pkt->data, len, false);
		if (err) {
			kfree(pkt);
			finish(qp, wqe, err == -EACCES ? IB_WC_LOC_PROT_ERR : IB_WC_LOC_QP_OP_ERR);
			return true;
		}
		wqe->offset += len;
		pkt->last = wqe->offset == wqe->length;
		hca_wire_send(qp->dev, pkt);
	} while (wqe->offset < wqe->length);
	wqe->state = HCA_WQE_SENT;
	return true;
}

static void send_read(struct hca_qp *qp, struct hca_swqe *wqe)
{
	number(qp, wqe);
	wqe->state = HCA_WQE_SENT;
	qp->reads_out++;
	hca_wire_send(qp->dev, request(qp, wqe, 0));
}

/* Returns whether the test wants this work request to fail. */
static bool fails(struct hca_qp *qp, struct hca_swqe *wqe)
{
	struct hca_knobs *knobs = &qp->dev->knobs;
	u32 left = READ_ONCE(knobs->fail_wr);

	if (!left || wqe->numbered)
		return false;
	WRITE_ONCE(knobs->fail_wr, left - 1);
	return left == 1;
}

/* Begins the next work request. False: it must wait. */
static bool issue(struct hca_qp *qp, struct hca_swqe *wqe)
{
	struct hca_counters *count = &qp->dev->count;
	bool again = wqe->numbered;

	if ((wqe->flags & IB_SEND_FENCE) && qp->reads_out)
		return false;
	if (wqe->opcode == IB_WR_RDMA_READ && qp->attr.max_rd_atomic && qp->reads_out >= qp->attr.max_rd_atomic)
		return false;
	if (!is_local(wqe) && qp->sq_next - qp->sq_head >= MESSAGES_OUT)
		return false;
	if (fails(qp, wqe)) {
		finish(qp, wqe, READ_ONCE(qp->dev->knobs.fail_status));
		return true;
	}
	switch (wqe->opcode) {
	case IB_WR_REG_MR:
		finish(qp, wqe, hca_reg_mr(qp, wqe) ? IB_WC_MW_BIND_ERR : IB_WC_SUCCESS);
		count->regs++;
		return true;
	case IB_WR_LOCAL_INV:
		finish(qp, wqe, hca_invalidate(qp, wqe->key, false) ? IB_WC_MW_BIND_ERR : IB_WC_SUCCESS);
		count->invs++;
		return true;
	case IB_WR_RDMA_READ:
		if (!qp->attr.max_rd_atomic)
			finish(qp, wqe, IB_WC_LOC_QP_OP_ERR);
		else
			send_read(qp, wqe);
		count->reads += !again;
		return true;
	default:
		if (!send_packets(qp, wqe))
			return false;
		if (wqe->opcode == IB_WR_RDMA_WRITE || wqe->opcode == IB_WR_RDMA_WRITE_WITH_IMM)
			count->writes += !again;
		else
			count->sends += !again;
		return true;
	}
}

/* Handles a timeout of the peer. False: the queue pair has failed. */
static bool timed_out(struct hca_qp *qp, ktime_t now)
{
	u32 n;

	/* The peer is slow, not dead: packets wait for its engine. */
	if (hca_wire_is_busy(&qp->dgid)) {
		arm_timer(qp, now);
		return true;
	}
	for (n = qp->sq_head; n != qp->sq_next; n++)
		if (hca_swqe(qp, n)->state == HCA_WQE_SENT)
			break;
	if (n == qp->sq_next) {
		qp->ack_by = 0;
		return true;
	}
	if (!qp->retries) {
		finish(qp, hca_swqe(qp, n), IB_WC_RETRY_EXC_ERR);
		return retire(qp);
	}
	qp->retries--;
	rewind_to(qp, n);
	return true;
}

void hca_requester_run(struct hca_qp *qp, ktime_t now)
{
	u32 tail;

	if (qp->state == IB_QPS_ERR)
		return hca_flush(qp);
	if (qp->state != IB_QPS_RTS)
		return;
	if (qp->ib_qp.qp_type == IB_QPT_GSI) {
		for (tail = tail_of(qp); qp->sq_next != tail; qp->sq_next++) {
			hca_ud_send(qp, hca_swqe(qp, qp->sq_next));
			hca_swqe(qp, qp->sq_next)->state = HCA_WQE_DONE;
		}
		retire(qp);
		return;
	}
	if (!retire(qp))
		return;
	if (qp->rnr_until && ktime_before(now, qp->rnr_until)) {
		hca_timer(qp->dev, qp->rnr_until);
		return;
	}
	qp->rnr_until = 0;
	if (qp->ack_by && !ktime_before(now, qp->ack_by) && !timed_out(qp, now))
		return;
	for (tail = tail_of(qp); qp->sq_next != tail; qp->sq_next++) {
		struct hca_swqe *wqe = hca_swqe(qp, qp->sq_next);

		/* No work request overtakes a failed one. */
		if (qp->sq_next != qp->sq_head && hca_swqe(qp, qp->sq_next - 1)->status != IB_WC_SUCCESS)
			break;
		if (wqe->state == HCA_WQE_NEW && !issue(qp, wqe))
			break;
	}
	if (!retire(qp))
		return;
	if (!qp->ack_by)
		arm_timer(qp, now);
	else
		hca_timer(qp->dev, qp->ack_by);
}

/* Marks all before this message as arrived; returns the message's index, or sq_next. */
static u32 acked_before(struct hca_qp *qp, u32 msn)
{
	u32 n;

	for (n = qp->sq_head; n != qp->sq_next; n++) {
		struct hca_swqe *wqe = hca_swqe(qp, n);

		if (is_local(wqe) || wqe->state == HCA_WQE_DONE)
			continue;
		if (!wqe->numbered || hca_msn_diff(wqe->msn, msn) >= 0)
			break;
		/* Data of a READ was lost: it will be requested again. */
		if (wqe->opcode == IB_WR_RDMA_READ)
			return qp->sq_next;
		finish(qp, wqe, IB_WC_SUCCESS);
	}
	return n;
}

static void read_data(struct hca_qp *qp, struct hca_swqe *wqe, struct hca_pkt *pkt)
{
	int err;

	if (wqe->opcode != IB_WR_RDMA_READ || wqe->state != HCA_WQE_SENT || wqe->attempt != pkt->attempt ||
	    wqe->offset != pkt->offset)
		return;
	err = hca_sge_copy(qp, wqe->sge, wqe->num_sge, pkt->offset, pkt->data, pkt->len, true);
	if (err) {
		finish(qp, wqe, err == -EACCES ? IB_WC_LOC_PROT_ERR : IB_WC_LOC_QP_OP_ERR);
		return;
	}
	wqe->offset += pkt->len;
	if (pkt->last)
		finish(qp, wqe, IB_WC_SUCCESS);
}

static ktime_t rnr_time(u8 timer)
{
	/* Table "Encoding for RNR NAK Timer Field", in units of 10 us */
	static const u16 table[32] = { 65535, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
				       1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152 };

	return us_to_ktime(table[timer & 31] * 10ULL);
}

static void not_ready(struct hca_qp *qp, u32 n, u8 timer)
{
	if (qp->attr.rnr_retry != 7) {
		if (!qp->rnr_retries) {
			finish(qp, hca_swqe(qp, n), IB_WC_RNR_RETRY_EXC_ERR);
			qp->sq_next = n + 1;
			return;
		}
		qp->rnr_retries--;
	}
	rewind_to(qp, n);
	qp->ack_by = 0;
	qp->rnr_until = ktime_add(ktime_get(), rnr_time(timer));
}

/* Handles an answer of the responder. */
void hca_requester_answer(struct hca_qp *qp, struct hca_pkt *pkt)
{
	u32 n, head = qp->sq_head;

	if (qp->state != IB_QPS_RTS || memcmp(&pkt->sgid, &qp->dgid, sizeof(qp->dgid)))
		return;
	n = acked_before(qp, pkt->kind == HCA_PKT_ACK ? (pkt->msn + 1) & HCA_PSN_MASK : pkt->msn);
	if (!retire(qp))
		return;
	if (qp->sq_head != head || pkt->kind == HCA_PKT_PROGRESS || pkt->kind == HCA_PKT_READ)
		progress(qp);
	if (pkt->kind != HCA_PKT_ACK && pkt->kind != HCA_PKT_PROGRESS && n != qp->sq_next) {
		struct hca_swqe *wqe = hca_swqe(qp, n);

		if (!wqe->numbered || wqe->msn != pkt->msn)
			return;
		if (pkt->kind == HCA_PKT_READ) {
			read_data(qp, wqe, pkt);
		} else if (pkt->kind == HCA_PKT_RNR) {
			not_ready(qp, n, pkt->rnr_timer);
		} else {
			finish(qp, wqe, pkt->status);
			qp->sq_next = n + 1;
		}
		if (!retire(qp))
			return;
	}
	hca_qp_kick(qp);
}
