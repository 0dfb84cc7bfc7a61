// SPDX-License-Identifier: GPL-2.0
/*
 * Posting: a work request is copied into its queue, or refused at once. A slot of
 * a queue is free again only when its own completion or a later one was polled: a
 * consumer that miscounts gets -ENOMEM.
 */
#include "hca.h"

static bool is_send(enum ib_wr_opcode opcode)
{
	return opcode == IB_WR_SEND || opcode == IB_WR_SEND_WITH_IMM || opcode == IB_WR_SEND_WITH_INV;
}

static bool is_write(enum ib_wr_opcode opcode)
{
	return opcode == IB_WR_RDMA_WRITE || opcode == IB_WR_RDMA_WRITE_WITH_IMM;
}

/* Copies the segments, and the data itself if it is inline. */
static int copy_segments(struct hca_qp *qp, struct hca_swqe *wqe, const struct ib_send_wr *wr)
{
	u64 length = 0;
	int i;

	for (i = 0; i < wr->num_sge; i++) {
		wqe->sge[i] = wr->sg_list[i];
		length += wr->sg_list[i].length;
	}
	if (length > 1U << 30)
		return -EINVAL;
	wqe->num_sge = wr->num_sge;
	wqe->length = length;
	if (!(wr->send_flags & IB_SEND_INLINE))
		return 0;
	if (wr->opcode == IB_WR_RDMA_READ || length > qp->cap.max_inline_data)
		return -EINVAL;
	for (i = 0, length = 0; i < wr->num_sge; i++) {
		memcpy(wqe->inline_data + length, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		length += wr->sg_list[i].length;
	}
	return 0;
}

static int copy_reg(struct hca_qp *qp, struct hca_swqe *wqe, const struct ib_reg_wr *wr)
{
	if (wr->mr->device != qp->ib_qp.device || wr->wr.num_sge)
		return -EINVAL;
	/* Remote writing requires local writing. */
	if ((wr->access & IB_ACCESS_REMOTE_WRITE) && !(wr->access & IB_ACCESS_LOCAL_WRITE))
		return -EINVAL;
	wqe->mr = to_hca_mr(wr->mr);
	wqe->key = wr->key;
	wqe->access = wr->access;
	wqe->iova = wr->mr->iova;
	wqe->mr_length = wr->mr->length;
	wqe->page_size = wr->mr->page_size;
	return 0;
}

static int copy_ud(struct hca_swqe *wqe, const struct ib_ud_wr *wr)
{
	if (!wr->ah)
		return -EINVAL;
	wqe->ah = to_hca_ah(wr->ah)->attr;
	wqe->sgid = to_hca_ah(wr->ah)->sgid;
	wqe->net_type = to_hca_ah(wr->ah)->net_type;
	wqe->remote_qpn = wr->remote_qpn;
	wqe->remote_qkey = wr->remote_qkey;
	return 0;
}

static int copy_send(struct hca_qp *qp, struct hca_swqe *wqe, const struct ib_send_wr *wr)
{
	bool ud = qp->ib_qp.qp_type == IB_QPT_GSI;
	int max_sge = qp->cap.max_send_sge;

	memset(wqe, 0, offsetof(struct hca_swqe, sge));
	wqe->wr_id = wr->wr_id;
	wqe->opcode = wr->opcode;
	wqe->flags = wr->send_flags;
	wqe->length = 0;
	wqe->offset = 0;
	wqe->attempt = 0;
	wqe->numbered = false;
	wqe->imm = wr->ex.imm_data;
	if (wr->opcode == IB_WR_RDMA_READ)
		max_sge = min_t(int, max_sge, qp->dev->attr.max_sge_rd);
	if (wr->num_sge < 0 || wr->num_sge > max_sge)
		return -EINVAL;
	if (ud)
		return wr->opcode != IB_WR_SEND ? -EINVAL :
		       copy_ud(wqe, ud_wr(wr)) ?: copy_segments(qp, wqe, wr);
	if (is_write(wr->opcode) || wr->opcode == IB_WR_RDMA_READ) {
		wqe->raddr = rdma_wr(wr)->remote_addr;
		wqe->rkey = rdma_wr(wr)->rkey;
		return copy_segments(qp, wqe, wr);
	}
	if (is_send(wr->opcode))
		return copy_segments(qp, wqe, wr);
	if (!(qp->dev->attr.device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS))
		return -EINVAL;
	if (wr->opcode == IB_WR_REG_MR)
		return copy_reg(qp, wqe, reg_wr(wr));
	if (wr->opcode != IB_WR_LOCAL_INV)
		return -EINVAL;
	wqe->key = wr->ex.invalidate_rkey;
	return 0;
}

/* Returns true for the work request that the test wants to be refused: the n-th. */
static bool refused(struct hca_dev *dev)
{
	u32 left = READ_ONCE(dev->knobs.fail_post);

	if (!left)
		return false;
	WRITE_ONCE(dev->knobs.fail_post, left - 1);
	return left == 1;
}

/* After a fatal error, a device that drains itself accepts no work of others. */
static bool takes_nothing(struct hca_qp *qp)
{
	return READ_ONCE(qp->dev->fatal) && qp->dev->own_drain && !READ_ONCE(qp->draining);
}

int hca_post_send(struct ib_qp *ib_qp, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	struct hca_qp *qp = to_hca_qp(ib_qp);
	unsigned long flags;
	int err = 0;

	spin_lock_irqsave(&qp->lock, flags);
	for (; wr; wr = wr->next) {
		if (qp->state != IB_QPS_RTS && qp->state != IB_QPS_ERR)
			err = -EINVAL;
		else if (takes_nothing(qp))
			err = -EIO;
		else if (qp->sq_tail - READ_ONCE(qp->sq_free) >= qp->cap.max_send_wr || refused(qp->dev))
			err = -ENOMEM;
		else
			err = copy_send(qp, hca_swqe(qp, qp->sq_tail), wr);
		if (err) {
			*bad = wr;
			break;
		}
		qp->sq_tail++;
	}
	spin_unlock_irqrestore(&qp->lock, flags);
	hca_qp_kick(qp);
	return err;
}

int hca_post_recv(struct ib_qp *ib_qp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	struct hca_qp *qp = to_hca_qp(ib_qp);
	struct hca_rwqe *wqe;
	unsigned long flags;
	int i, err = 0;

	spin_lock_irqsave(&qp->lock, flags);
	for (; wr; wr = wr->next) {
		if (qp->state == IB_QPS_RESET || wr->num_sge < 0 || wr->num_sge > qp->cap.max_recv_sge)
			err = -EINVAL;
		else if (takes_nothing(qp))
			err = -EIO;
		else if (qp->rq_tail - READ_ONCE(qp->rq_free) >= qp->cap.max_recv_wr)
			err = -ENOMEM;
		if (err) {
			*bad = wr;
			break;
		}
		wqe = hca_rwqe(qp, qp->rq_tail);
		wqe->wr_id = wr->wr_id;
		wqe->num_sge = wr->num_sge;
		wqe->length = 0;
		for (i = 0; i < wr->num_sge; i++) {
			wqe->sge[i] = wr->sg_list[i];
			wqe->length += wr->sg_list[i].length;
		}
		qp->rq_tail++;
	}
	spin_unlock_irqrestore(&qp->lock, flags);
	if (READ_ONCE(qp->state) == IB_QPS_ERR)
		hca_qp_kick(qp);
	return err;
}
