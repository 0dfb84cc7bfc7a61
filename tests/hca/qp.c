// SPDX-License-Identifier: GPL-2.0
/*
 * Queue pairs: their creation, states and destruction. A command that changes one
 * waits until the engine is idle (dev->exec), so the engine never sees a
 * part of the change. The engine flushes work requests of a queue pair in error.
 */
#include <linux/delay.h>
#include <linux/slab.h>

#include "hca.h"

static void event_work(struct irq_work *work)
{
	struct hca_qp *qp = container_of(work, struct hca_qp, event_work);
	unsigned long events = xchg(&qp->events, 0);
	int type;

	for_each_set_bit(type, &events, BITS_PER_LONG) {
		struct ib_event event = { .device = qp->ib_qp.device, .element.qp = &qp->ib_qp, .event = type };

		if (qp->ib_qp.event_handler)
			qp->ib_qp.event_handler(&event, qp->ib_qp.qp_context);
	}
	atomic_dec(&qp->event_refs);
}

/* Raises an affiliated asynchronous event, in hard interrupt context as from an event queue. */
void hca_qp_event(struct hca_qp *qp, enum ib_event_type type)
{
	set_bit(type, &qp->events);
	atomic_inc(&qp->event_refs);
	if (!irq_work_queue(&qp->event_work))
		atomic_dec(&qp->event_refs);
}

static int check_cap(struct hca_dev *dev, const struct ib_qp_cap *cap)
{
	if (cap->max_send_wr > dev->attr.max_qp_wr || cap->max_recv_wr > dev->attr.max_qp_wr ||
	    cap->max_send_sge > dev->attr.max_send_sge || cap->max_recv_sge > dev->attr.max_recv_sge ||
	    cap->max_inline_data > HCA_MAX_INLINE)
		return -EINVAL;
	return 0;
}

int hca_create_qp(struct ib_qp *ib_qp, struct ib_qp_init_attr *init, struct ib_udata *udata)
{
	struct hca_dev *dev = to_hca(ib_qp->device);
	struct hca_qp *qp = to_hca_qp(ib_qp);
	bool gsi = init->qp_type == IB_QPT_GSI;
	int err;

	if (init->create_flags || init->srq || (init->qp_type != IB_QPT_RC && !gsi))
		return -EOPNOTSUPP;
	err = check_cap(dev, &init->cap);
	if (err)
		return err;
	qp->dev = dev;
	/* Exactly the requested capacity: an HCA may give more, and no consumer may rely on that. */
	qp->cap = init->cap;
	qp->sig_all = init->sq_sig_type == IB_SIGNAL_ALL_WR;
	qp->state = IB_QPS_RESET;
	spin_lock_init(&qp->lock);
	INIT_LIST_HEAD(&qp->ready_entry);
	INIT_LIST_HEAD(&qp->resp);
	qp->event_work = IRQ_WORK_INIT_HARD(event_work);
	qp->sq = kvcalloc(max(qp->cap.max_send_wr, 1u), sizeof(*qp->sq), GFP_KERNEL);
	qp->rq = kvcalloc(max(qp->cap.max_recv_wr, 1u), sizeof(*qp->rq), GFP_KERNEL);
	if (!qp->sq || !qp->rq) {
		err = -ENOMEM;
		goto free;
	}
	mutex_lock(&dev->exec);
	if (gsi) {
		ib_qp->qp_num = 1;
		err = dev->gsi ? -EBUSY : xa_insert(&dev->qps, 1, qp, GFP_KERNEL);
		if (!err)
			dev->gsi = qp;
	} else {
		/* A number is reused as late as possible. */
		err = xa_alloc_cyclic(&dev->qps, &ib_qp->qp_num, qp, XA_LIMIT(16, 0xffffff), &dev->next_qpn, GFP_KERNEL);
		err = min(err, 0);
	}
	mutex_unlock(&dev->exec);
	if (!err)
		return 0;
free:
	kvfree(qp->sq);
	kvfree(qp->rq);
	return err;
}

/* dev->exec is held. */
static void reset_queues(struct hca_qp *qp)
{
	hca_cq_forget(to_hca_cq(qp->ib_qp.send_cq), qp);
	hca_cq_forget(to_hca_cq(qp->ib_qp.recv_cq), qp);
	hca_responder_reset(qp);
	qp->sq_tail = qp->sq_next = qp->sq_head = qp->sq_free = 0;
	qp->rq_tail = qp->rq_head = qp->rq_free = 0;
	qp->reads_out = 0;
	qp->ack_by = qp->rnr_until = 0;
	qp->rx_wqe = false;
	qp->established = false;
	qp->ack_due = false;
	qp->rx_closed = false;
	qp->rx_offset = 0;
}

/* Delays the destruction of a queue pair while a test wants that. */
static void hold_destroy(struct hca_dev *dev)
{
	bool held = false;

	mutex_lock(&dev->exec);
	if (READ_ONCE(dev->knobs.hold_destroy) == 1) {
		held = !dev->knobs.hold_after;
		if (!held)
			dev->knobs.hold_after--;
	}
	mutex_unlock(&dev->exec);
	if (!held)
		return;
	atomic_inc(&dev->held);
	while (READ_ONCE(dev->knobs.hold_destroy))
		msleep(20);
	atomic_dec(&dev->held);
}

int hca_destroy_qp(struct ib_qp *ib_qp, struct ib_udata *udata)
{
	struct hca_qp *qp = to_hca_qp(ib_qp);
	struct hca_dev *dev = qp->dev;

	if (ib_qp->qp_type == IB_QPT_RC)
		hold_destroy(dev);
	mutex_lock(&dev->exec);
	xa_erase(&dev->qps, ib_qp->qp_num);
	if (dev->gsi == qp)
		dev->gsi = NULL;
	spin_lock_irq(&dev->ready_lock);
	qp->dying = true;
	list_del_init(&qp->ready_entry);
	spin_unlock_irq(&dev->ready_lock);
	reset_queues(qp);
	mutex_unlock(&dev->exec);
	while (atomic_read(&qp->event_refs))
		usleep_range(50, 100);
	irq_work_sync(&qp->event_work);
	kvfree(qp->sq);
	kvfree(qp->rq);
	return 0;
}

static void set_state(struct hca_qp *qp, enum ib_qp_state state)
{
	spin_lock_irq(&qp->lock);
	qp->state = state;
	spin_unlock_irq(&qp->lock);
	hca_qp_kick(qp);
}

/* Puts a queue pair in which the engine has found an error into the error state; dev->exec is held. */
void hca_qp_error(struct hca_qp *qp)
{
	if (qp->state != IB_QPS_ERR)
		set_state(qp, IB_QPS_ERR);
}

static int check_attr(struct hca_qp *qp, const struct ib_qp_attr *attr, int mask)
{
	const struct ib_device_attr *limits = &qp->dev->attr;

	if ((mask & IB_QP_AV) && (attr->ah_attr.type != RDMA_AH_ATTR_TYPE_ROCE ||
				  !(rdma_ah_get_ah_flags(&attr->ah_attr) & IB_AH_GRH) || !attr->ah_attr.grh.sgid_attr))
		return -EINVAL;
	if ((mask & IB_QP_MAX_QP_RD_ATOMIC) && attr->max_rd_atomic > limits->max_qp_init_rd_atom)
		return -EINVAL;
	if ((mask & IB_QP_MAX_DEST_RD_ATOMIC) && attr->max_dest_rd_atomic > limits->max_qp_rd_atom)
		return -EINVAL;
	if ((mask & IB_QP_PORT) && attr->port_num != 1)
		return -EINVAL;
	if ((mask & IB_QP_TIMEOUT) && attr->timeout > 31)
		return -EINVAL;
	return 0;
}

static void take_attr(struct hca_qp *qp, const struct ib_qp_attr *attr, int mask)
{
	struct ib_qp_attr *mine = &qp->attr;

	if (mask & IB_QP_AV) {
		qp->sgid = attr->ah_attr.grh.sgid_attr->gid;
		qp->dgid = attr->ah_attr.grh.dgid;
		ether_addr_copy(qp->dmac, attr->ah_attr.roce.dmac);
		mine->ah_attr = attr->ah_attr;
		/* The core holds the reference. */
		mine->ah_attr.grh.sgid_attr = NULL;
	}
	if (mask & IB_QP_ACCESS_FLAGS)
		mine->qp_access_flags = attr->qp_access_flags;
	if (mask & IB_QP_PORT)
		mine->port_num = attr->port_num;
	if (mask & IB_QP_PKEY_INDEX)
		mine->pkey_index = attr->pkey_index;
	if (mask & IB_QP_QKEY)
		mine->qkey = attr->qkey;
	if (mask & IB_QP_PATH_MTU)
		mine->path_mtu = attr->path_mtu;
	if (mask & IB_QP_TIMEOUT)
		mine->timeout = attr->timeout;
	if (mask & IB_QP_RETRY_CNT)
		mine->retry_cnt = qp->retries = attr->retry_cnt;
	if (mask & IB_QP_RNR_RETRY)
		mine->rnr_retry = qp->rnr_retries = attr->rnr_retry;
	if (mask & IB_QP_MIN_RNR_TIMER)
		mine->min_rnr_timer = attr->min_rnr_timer;
	if (mask & IB_QP_DEST_QPN)
		mine->dest_qp_num = attr->dest_qp_num;
	if (mask & IB_QP_MAX_QP_RD_ATOMIC)
		mine->max_rd_atomic = attr->max_rd_atomic;
	if (mask & IB_QP_MAX_DEST_RD_ATOMIC)
		mine->max_dest_rd_atomic = attr->max_dest_rd_atomic;
	/* Messages are numbered instead of packets, starting at the number agreed on for packets. */
	if (mask & IB_QP_RQ_PSN)
		mine->rq_psn = qp->rq_msn = attr->rq_psn & HCA_PSN_MASK;
	if (mask & IB_QP_SQ_PSN)
		mine->sq_psn = qp->sq_msn = attr->sq_psn & HCA_PSN_MASK;
}

int hca_modify_qp(struct ib_qp *ib_qp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	struct hca_qp *qp = to_hca_qp(ib_qp);
	struct hca_dev *dev = qp->dev;
	enum ib_qp_state now, next;
	int err = -EINVAL;

	if (mask & ~IB_QP_ATTR_STANDARD_BITS)
		return -EOPNOTSUPP;
	mutex_lock(&dev->exec);
	now = qp->state;
	next = mask & IB_QP_STATE ? attr->qp_state : now;
	/* The consumer's assumption about the state is checked, too. */
	if ((mask & IB_QP_CUR_STATE) && attr->cur_qp_state != now)
		goto out;
	if (next == IB_QPS_SQD || next == IB_QPS_SQE || !ib_modify_qp_is_ok(now, next, ib_qp->qp_type, mask))
		goto out;
	err = check_attr(qp, attr, mask);
	if (err)
		goto out;
	take_attr(qp, attr, mask);
	if (next == IB_QPS_RESET) {
		spin_lock_irq(&qp->lock);
		qp->state = IB_QPS_RESET;
		spin_unlock_irq(&qp->lock);
		reset_queues(qp);
	} else if (next != now) {
		set_state(qp, next);
	}
out:
	mutex_unlock(&dev->exec);
	return err;
}

int hca_query_qp(struct ib_qp *ib_qp, struct ib_qp_attr *attr, int mask, struct ib_qp_init_attr *init)
{
	struct hca_qp *qp = to_hca_qp(ib_qp);

	mutex_lock(&qp->dev->exec);
	*attr = qp->attr;
	attr->qp_state = attr->cur_qp_state = qp->state;
	attr->cap = qp->cap;
	init->cap = qp->cap;
	init->sq_sig_type = qp->sig_all ? IB_SIGNAL_ALL_WR : IB_SIGNAL_REQ_WR;
	mutex_unlock(&qp->dev->exec);
	return 0;
}

struct hca_drain {
	struct ib_cqe cqe;
	struct completion done;
};

static void drained(struct ib_cq *cq, struct ib_wc *wc)
{
	complete(&container_of(wc->wr_cqe, struct hca_drain, cqe)->done);
}

/* Returns whether all posted work requests have ended, and their completions were polled. */
static bool is_empty(struct hca_qp *qp, bool recv)
{
	struct hca_cq *cq = to_hca_cq(recv ? qp->ib_qp.recv_cq : qp->ib_qp.send_cq);
	bool empty;

	mutex_lock(&qp->dev->exec);
	empty = recv ? qp->rq_head == READ_ONCE(qp->rq_tail) : qp->sq_head == READ_ONCE(qp->sq_tail);
	mutex_unlock(&qp->dev->exec);
	return empty && !hca_cq_has(cq, qp, recv);
}

/*
 * Draining by the device itself. As mlx5 does it: the device posts one more work
 * request, also when it refuses those of consumers, and waits until the owner of
 * the completion queue has called the handler of that request. Or as i40iw did it:
 * the device waits until the queue is empty.
 */
static void drain(struct hca_qp *qp, bool recv)
{
	struct ib_cq *cq = recv ? qp->ib_qp.recv_cq : qp->ib_qp.send_cq;
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };
	struct hca_drain last = { .cqe.done = drained };
	struct ib_rdma_wr send = { .wr = { .wr_cqe = &last.cqe, .opcode = IB_WR_RDMA_WRITE } };
	struct ib_recv_wr receive = { .wr_cqe = &last.cqe };
	const struct ib_send_wr *bad_send;
	const struct ib_recv_wr *bad_receive;
	int err;

	init_completion(&last.done);
	err = ib_modify_qp(&qp->ib_qp, &attr, IB_QP_STATE);
	if (!err && qp->dev->own_drain == 2) {
		while (!is_empty(qp, recv))
			usleep_range(500, 1000);
		return;
	}
	if (!err) {
		if (qp->dev->own_drain == 3 && READ_ONCE(qp->dev->fatal))
			WRITE_ONCE(qp->late, &last.cqe);
		WRITE_ONCE(qp->draining, true);
		err = recv ? hca_post_recv(&qp->ib_qp, &receive, &bad_receive) :
			     hca_post_send(&qp->ib_qp, &send.wr, &bad_send);
		WRITE_ONCE(qp->draining, false);
	}
	if (WARN(err, "hca: a queue pair cannot be drained: %d\n", err))
		return;
	if (cq->poll_ctx != IB_POLL_DIRECT)
		wait_for_completion(&last.done);
	else
		while (!wait_for_completion_timeout(&last.done, HZ / 10))
			ib_process_cq_direct(cq, -1);
	WRITE_ONCE(qp->late, NULL);
}

void hca_drain_sq(struct ib_qp *qp)
{
	drain(to_hca_qp(qp), false);
}

void hca_drain_rq(struct ib_qp *qp)
{
	drain(to_hca_qp(qp), true);
}
