// SPDX-License-Identifier: GPL-2.0
/*
 * Completion queues, and the interrupts that report completions.
 *
 * An interrupt goes to the processor of the queue's vector, in hard interrupt
 * context, once for each arming. The engine may delay completions: see knobs.c.
 * Completions of one work queue stay in order.
 */
#include <linux/delay.h>
#include <linux/random.h>
#include <linux/slab.h>

#include "hca.h"

static void cq_irq(struct irq_work *work)
{
	struct hca_cq *cq = container_of(work, struct hca_cq, irq);

	clear_bit(0, &cq->irq_pending);
	cq->ib_cq.comp_handler(&cq->ib_cq, cq->ib_cq.cq_context);
	atomic_dec(&cq->irq_refs);
}

/* Runs on the vector's processor, maybe as it leaves idleness; the interrupt proper follows. */
static void cq_ipi(void *data)
{
	struct hca_cq *cq = data;

	irq_work_queue(&cq->irq);
}

static void cq_raise(struct hca_cq *cq)
{
	int cpu = cq->ib_cq.comp_vector % nr_cpu_ids;

	if (test_and_set_bit(0, &cq->irq_pending))
		return;
	atomic_inc(&cq->irq_refs);
	if (!cpu_online(cpu))
		cpu = cpumask_first(cpu_online_mask);
	to_hca(cq->ib_cq.device)->count.events++;
	if (get_cpu() == cpu || smp_call_function_single_async(cpu, &cq->csd))
		irq_work_queue(&cq->irq);
	put_cpu();
}

int hca_create_cq(struct ib_cq *ib_cq, const struct ib_cq_init_attr *attr, struct uverbs_attr_bundle *attrs)
{
	struct hca_dev *dev = to_hca(ib_cq->device);
	struct hca_cq *cq = to_hca_cq(ib_cq);
	u32 i;

	if (attr->flags)
		return -EOPNOTSUPP;
	if (attr->cqe < 1 || attr->cqe > dev->attr.max_cqe || attr->comp_vector >= ib_cq->device->num_comp_vectors)
		return -EINVAL;
	cq->entries = kvcalloc(attr->cqe, sizeof(*cq->entries), GFP_KERNEL);
	if (!cq->entries)
		return -ENOMEM;
	spin_lock_init(&cq->lock);
	INIT_LIST_HEAD(&cq->free);
	INIT_LIST_HEAD(&cq->delayed);
	INIT_LIST_HEAD(&cq->ready);
	INIT_LIST_HEAD(&cq->late);
	for (i = 0; i < attr->cqe; i++)
		list_add_tail(&cq->entries[i].entry, &cq->free);
	cq->irq = IRQ_WORK_INIT_HARD(cq_irq);
	INIT_CSD(&cq->csd, cq_ipi, cq);
	/* Exactly the requested size: a consumer must not rely on more. */
	ib_cq->cqe = attr->cqe;
	mutex_lock(&dev->exec);
	list_add_tail(&cq->dev_entry, &dev->cqs);
	mutex_unlock(&dev->exec);
	return 0;
}

int hca_destroy_cq(struct ib_cq *ib_cq, struct ib_udata *udata)
{
	struct hca_dev *dev = to_hca(ib_cq->device);
	struct hca_cq *cq = to_hca_cq(ib_cq);

	mutex_lock(&dev->exec);
	list_del(&cq->dev_entry);
	mutex_unlock(&dev->exec);
	while (atomic_read(&cq->irq_refs))
		usleep_range(50, 100);
	irq_work_sync(&cq->irq);
	kvfree(cq->entries);
	return 0;
}

/*
 * Makes a completion available to the poller. Returns true if the completion needs an interrupt.
 * The caller holds cq->lock. Not inline: the benchmark counts completions by calls of this function.
 */
noinline bool hca_cq_announce(struct hca_cq *cq, struct hca_cqe *cqe)
{
	list_move_tail(&cqe->entry, &cq->ready);
	if (cq->armed == IB_CQ_NEXT_COMP ||
	    (cq->armed == IB_CQ_SOLICITED && (cqe->solicited || cqe->wc.status != IB_WC_SUCCESS))) {
		cq->armed = 0;
		return true;
	}
	return false;
}

static void cq_tell(struct hca_dev *dev, struct hca_cq *cq)
{
	u32 wait = READ_ONCE(dev->knobs.moderation_us);

	if (!wait) {
		cq_raise(cq);
	} else if (!cq->raise_at) {
		cq->raise_at = ktime_add_us(ktime_get(), wait);
		hca_timer(dev, cq->raise_at);
	}
}

/*
 * The engine has completed a work request. With own_drain 3 the completion that drains a queue
 * after a fatal error is late: it becomes visible only after the poller has looked for the last
 * time, and is reported by an event, as can happen when mlx5 drains.
 */
void hca_complete(struct hca_qp *qp, struct ib_wc *wc, u32 until, bool recv, bool solicited)
{
	struct hca_cq *cq = to_hca_cq(recv ? qp->ib_qp.recv_cq : qp->ib_qp.send_cq);
	struct hca_dev *dev = qp->dev;
	ktime_t now = ktime_get();
	u32 delay = recv ? READ_ONCE(dev->knobs.recv_delay_us) : READ_ONCE(dev->knobs.send_delay_us);
	u32 jitter = READ_ONCE(dev->knobs.jitter_us);
	struct hca_cqe *cqe, *before;
	bool notify = false;
	ktime_t due;

	wc->qp = &qp->ib_qp;
	due = ktime_add_us(now, delay + (jitter ? get_random_u32_below(jitter) : 0));
	if (ktime_before(due, qp->last_due[recv]))
		due = qp->last_due[recv];
	qp->last_due[recv] = due;

	spin_lock_irq(&cq->lock);
	cqe = list_first_entry_or_null(&cq->free, struct hca_cqe, entry);
	if (!cqe) {
		bool first = !cq->overrun;

		cq->overrun = true;
		spin_unlock_irq(&cq->lock);
		WARN(first, "hca: %s: a completion queue of %d is overrun\n", dev_name(&dev->ib_dev.dev), cq->ib_cq.cqe);
		return;
	}
	cqe->wc = *wc;
	cqe->qp = qp;
	cqe->until = until;
	cqe->recv = recv;
	cqe->solicited = solicited;
	cqe->due = due;
	if (wc->wr_cqe && wc->wr_cqe == READ_ONCE(qp->late)) {
		due = now;
		list_move_tail(&cqe->entry, &cq->late);
		notify = true;
	} else if (!ktime_after(due, now)) {
		notify = hca_cq_announce(cq, cqe);
	} else {
		list_for_each_entry_reverse(before, &cq->delayed, entry)
			if (!ktime_after(before->due, due))
				break;
		list_move(&cqe->entry, &before->entry);
	}
	spin_unlock_irq(&cq->lock);
	if (ktime_after(due, now))
		hca_timer(dev, due);
	if (notify)
		cq_tell(dev, cq);
}

/* Reports the completions and raises the interrupts that are due; dev->exec is held. */
void hca_cq_timers(struct hca_dev *dev, ktime_t now)
{
	struct hca_cqe *cqe, *next;
	struct hca_cq *cq;

	list_for_each_entry(cq, &dev->cqs, dev_entry) {
		bool notify = false;

		spin_lock_irq(&cq->lock);
		list_for_each_entry_safe(cqe, next, &cq->delayed, entry) {
			if (ktime_after(cqe->due, now)) {
				hca_timer(dev, cqe->due);
				break;
			}
			notify |= hca_cq_announce(cq, cqe);
		}
		spin_unlock_irq(&cq->lock);
		if (notify)
			cq_tell(dev, cq);
		if (!cq->raise_at)
			continue;
		if (ktime_after(cq->raise_at, now)) {
			hca_timer(dev, cq->raise_at);
		} else {
			cq->raise_at = 0;
			cq_raise(cq);
		}
	}
}

int hca_poll_cq(struct ib_cq *ib_cq, int num, struct ib_wc *wc)
{
	struct hca_cq *cq = to_hca_cq(ib_cq);
	struct hca_cqe *cqe, *next;
	unsigned long flags;
	bool late;
	int n = 0;

	spin_lock_irqsave(&cq->lock, flags);
	list_for_each_entry_safe(cqe, next, &cq->ready, entry) {
		if (n == num)
			break;
		*wc++ = cqe->wc;
		n++;
		/* The consumer learns only by polling that these slots are free. */
		if (cqe->recv)
			WRITE_ONCE(cqe->qp->rq_free, cqe->until);
		else
			WRITE_ONCE(cqe->qp->sq_free, cqe->until);
		list_move(&cqe->entry, &cq->free);
	}
	late = n < num && !list_empty(&cq->late);
	if (late)
		list_splice_tail_init(&cq->late, &cq->ready);
	spin_unlock_irqrestore(&cq->lock, flags);
	if (late)
		ib_cq->comp_handler(ib_cq, ib_cq->cq_context);
	return n;
}

int hca_req_notify_cq(struct ib_cq *ib_cq, enum ib_cq_notify_flags flags)
{
	struct hca_dev *dev = to_hca(ib_cq->device);
	struct hca_cq *cq = to_hca_cq(ib_cq);
	unsigned long irq;
	int missed;

	spin_lock_irqsave(&cq->lock, irq);
	/* A queue armed for any completion stays armed for any. */
	if (cq->armed != IB_CQ_NEXT_COMP)
		cq->armed = flags & IB_CQ_SOLICITED_MASK;
	missed = (flags & IB_CQ_REPORT_MISSED_EVENTS) && !list_empty(&cq->ready) &&
		 !(dev->own_drain == 3 && READ_ONCE(dev->fatal));
	spin_unlock_irqrestore(&cq->lock, irq);
	return missed;
}

static bool is_in(struct list_head *list, struct hca_qp *qp, bool recv)
{
	struct hca_cqe *cqe;

	list_for_each_entry(cqe, list, entry)
		if (cqe->qp == qp && cqe->recv == recv)
			return true;
	return false;
}

/* Returns whether completions of this work queue of the queue pair have not been polled yet. */
bool hca_cq_has(struct hca_cq *cq, struct hca_qp *qp, bool recv)
{
	bool has;

	spin_lock_irq(&cq->lock);
	has = is_in(&cq->ready, qp, recv) || is_in(&cq->delayed, qp, recv) || is_in(&cq->late, qp, recv);
	spin_unlock_irq(&cq->lock);
	return has;
}

/* Detaches all completions in a queue from a queue pair that is being destroyed. */
void hca_cq_forget(struct hca_cq *cq, struct hca_qp *qp)
{
	struct hca_cqe *cqe, *next;

	spin_lock_irq(&cq->lock);
	list_for_each_entry_safe(cqe, next, &cq->ready, entry)
		if (cqe->qp == qp)
			list_move(&cqe->entry, &cq->free);
	list_for_each_entry_safe(cqe, next, &cq->delayed, entry)
		if (cqe->qp == qp)
			list_move(&cqe->entry, &cq->free);
	list_for_each_entry_safe(cqe, next, &cq->late, entry)
		if (cqe->qp == qp)
			list_move(&cqe->entry, &cq->free);
	spin_unlock_irq(&cq->lock);
}
