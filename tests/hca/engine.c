// SPDX-License-Identifier: GPL-2.0
/*
 * The engine of a device, a kthread, and the wire between engines. An engine
 * takes packets off its queue, runs the queue pairs that have work, and keeps
 * their timers. Taking packets never waits for another engine, so that two
 * engines cannot wait for each other.
 */
#include <linux/kthread.h>
#include <linux/moduleparam.h>
#include <linux/slab.h>
#include <rdma/ib_cache.h>

#include "hca.h"

#define RX_BUDGET 64

static unsigned int engine_poll;
module_param(engine_poll, uint, 0444);
MODULE_PARM_DESC(engine_poll, "how many times an engine looks for work before it sleeps");

static LIST_HEAD(wire);
static DEFINE_SPINLOCK(hca_wire_lock);

void hca_kick(struct hca_dev *dev)
{
	/* Each side sets its own flag (bit or state) before it reads the other's: see doze(). */
	if (!test_and_set_bit(0, &dev->kicked) && READ_ONCE(dev->engine->__state) != TASK_RUNNING)
		wake_up_process(dev->engine);
}

/* Queues a queue pair for the engine's next round. */
void hca_qp_again(struct hca_qp *qp)
{
	unsigned long flags;

	spin_lock_irqsave(&qp->dev->ready_lock, flags);
	if (list_empty(&qp->ready_entry) && !qp->dying)
		list_add_tail(&qp->ready_entry, &qp->dev->ready);
	spin_unlock_irqrestore(&qp->dev->ready_lock, flags);
}

void hca_qp_kick(struct hca_qp *qp)
{
	hca_qp_again(qp);
	hca_kick(qp->dev);
}

/* Sets a timer that wakes the engine; called by the engine. */
void hca_timer(struct hca_dev *dev, ktime_t when)
{
	if (!dev->next_timer || ktime_before(when, dev->next_timer))
		dev->next_timer = when;
}

struct hca_pkt *hca_pkt_alloc(struct hca_qp *qp, enum hca_pkt_kind kind, u32 len)
{
	struct hca_pkt *pkt = kmalloc(sizeof(*pkt) + len, GFP_NOIO | __GFP_NOFAIL);

	memset(pkt, 0, sizeof(*pkt));
	pkt->kind = kind;
	pkt->len = len;
	pkt->sgid = qp->sgid;
	pkt->dgid = qp->dgid;
	ether_addr_copy(pkt->dmac, qp->dmac);
	pkt->dqpn = qp->attr.dest_qp_num;
	pkt->sqpn = qp->ib_qp.qp_num;
	return pkt;
}

static bool link_up(struct hca_dev *dev)
{
	return ib_get_curr_port_state(dev->card->port) == IB_PORT_ACTIVE;
}

/* Returns the device with this GID; hca_wire_lock is held. */
static struct hca_dev *find_gid(const union ib_gid *gid)
{
	struct hca_dev *dev;
	int i;

	if (rdma_is_zero_gid(gid))
		return NULL;
	list_for_each_entry(dev, &wire, wire_entry)
		for (i = 0; i < HCA_GIDS; i++)
			if (!memcmp(&dev->gids[i], gid, sizeof(*gid)))
				return dev;
	return NULL;
}

bool hca_wire_has_room(struct hca_dev *from, const union ib_gid *dgid)
{
	struct hca_dev *dev;
	bool room;

	spin_lock(&hca_wire_lock);
	dev = find_gid(dgid);
	room = !dev || READ_ONCE(dev->rx_count) < HCA_RX_LIMIT;
	spin_unlock(&hca_wire_lock);
	return room;
}

bool hca_wire_is_busy(const union ib_gid *dgid)
{
	struct hca_dev *dev;
	bool busy;

	spin_lock(&hca_wire_lock);
	dev = find_gid(dgid);
	busy = dev && READ_ONCE(dev->rx_count) && !READ_ONCE(dev->knobs.stall);
	spin_unlock(&hca_wire_lock);
	return busy;
}

/* Sends a packet, which belongs to the wire from here. A dead link or a wrong address drops it. */
void hca_wire_send(struct hca_dev *from, struct hca_pkt *pkt)
{
	struct hca_dev *dev;

	spin_lock(&hca_wire_lock);
	dev = link_up(from) && !from->fatal ? find_gid(&pkt->dgid) : NULL;
	if (dev && pkt->kind == HCA_PKT_REQUEST && from->knobs.lose) {
		from->knobs.lose--;
		dev = NULL;
	}
	if (dev && (!link_up(dev) || dev->fatal || !ether_addr_equal(dev->card->port->dev_addr, pkt->dmac)))
		dev = NULL;
	if (dev) {
		spin_lock(&dev->rx_lock);
		list_add_tail(&pkt->entry, &dev->rx);
		dev->rx_count++;
		spin_unlock(&dev->rx_lock);
		hca_kick(dev);
	}
	spin_unlock(&hca_wire_lock);
	from->count.packets++;
	if (!dev) {
		from->count.dropped++;
		kfree(pkt);
	}
}

static void kick_others(struct hca_dev *self)
{
	struct hca_dev *dev;

	spin_lock(&hca_wire_lock);
	list_for_each_entry(dev, &wire, wire_entry)
		if (dev != self)
			hca_kick(dev);
	spin_unlock(&hca_wire_lock);
	/* A device may be connected to itself. */
	set_bit(0, &self->kicked);
}

static void receive(struct hca_dev *dev, struct hca_pkt *pkt)
{
	struct hca_qp *qp = xa_load(&dev->qps, pkt->dqpn);

	if (!qp || (qp->ib_qp.qp_type == IB_QPT_GSI) != (pkt->kind == HCA_PKT_UD))
		dev->count.dropped++;
	else if (pkt->kind == HCA_PKT_UD)
		hca_ud_receive(qp, pkt);
	else if (pkt->kind == HCA_PKT_REQUEST)
		hca_responder_request(qp, pkt);
	else
		hca_requester_answer(qp, pkt);
	kfree(pkt);
}

static void run_rx(struct hca_dev *dev)
{
	struct hca_pkt *pkt;
	int n;

	for (n = 0; n < RX_BUDGET; n++) {
		bool room;

		spin_lock(&dev->rx_lock);
		pkt = list_first_entry_or_null(&dev->rx, struct hca_pkt, entry);
		if (pkt)
			list_del(&pkt->entry);
		room = pkt && --dev->rx_count == HCA_RX_LIMIT / 2;
		spin_unlock(&dev->rx_lock);
		if (!pkt)
			return;
		if (room)
			kick_others(dev);
		receive(dev, pkt);
	}
	set_bit(0, &dev->kicked);
}

static void run_ready(struct hca_dev *dev, ktime_t now)
{
	LIST_HEAD(list);
	struct hca_qp *qp;

	spin_lock_irq(&dev->ready_lock);
	list_splice_init(&dev->ready, &list);
	while ((qp = list_first_entry_or_null(&list, struct hca_qp, ready_entry))) {
		list_del_init(&qp->ready_entry);
		spin_unlock_irq(&dev->ready_lock);
		hca_responder_run(qp);
		hca_requester_run(qp, now);
		spin_lock_irq(&dev->ready_lock);
	}
	spin_unlock_irq(&dev->ready_lock);
}

/* Timers are few: when one is due, all queue pairs are checked. */
static void run_timers(struct hca_dev *dev, ktime_t now)
{
	struct hca_qp *qp;
	unsigned long n;

	if (!dev->next_timer || ktime_before(now, dev->next_timer))
		return;
	dev->next_timer = 0;
	hca_cq_timers(dev, now);
	xa_for_each(&dev->qps, n, qp)
		hca_requester_run(qp, now);
}

static bool is_due(struct hca_dev *dev)
{
	return dev->next_timer && !ktime_before(ktime_get(), dev->next_timer);
}

/* Polls, for an engine with its own processor. An emulated processor lets another run meanwhile. */
static bool finds_work(struct hca_dev *dev)
{
	unsigned int n;

	for (n = 0; n < engine_poll; n++) {
		if (test_bit(0, &dev->kicked) || is_due(dev))
			return true;
		cpu_relax();
		cond_resched();
	}
	return false;
}

static void doze(struct hca_dev *dev)
{
	if (finds_work(dev))
		return;
	set_current_state(TASK_IDLE);
	if (!test_bit(0, &dev->kicked) && !kthread_should_stop()) {
		if (dev->next_timer && !READ_ONCE(dev->knobs.stall))
			schedule_hrtimeout(&dev->next_timer, HRTIMER_MODE_ABS);
		else
			schedule();
	}
	__set_current_state(TASK_RUNNING);
}

static int engine(void *data)
{
	struct hca_dev *dev = data;

	while (!kthread_should_stop()) {
		doze(dev);
		clear_bit(0, &dev->kicked);
		/* Data written before a kick must be visible to the work after it. */
		smp_mb__after_atomic();
		if (READ_ONCE(dev->knobs.stall))
			continue;
		mutex_lock(&dev->exec);
		run_rx(dev);
		run_ready(dev, ktime_get());
		run_timers(dev, ktime_get());
		mutex_unlock(&dev->exec);
		cond_resched();
	}
	return 0;
}

int hca_engine_start(struct hca_dev *dev, int cpu)
{
	dev->engine = kthread_create(engine, dev, "hca%u", dev->card->number);
	if (IS_ERR(dev->engine))
		return PTR_ERR(dev->engine);
	if (cpu >= 0 && cpu_online(cpu))
		kthread_bind(dev->engine, cpu);
	spin_lock(&hca_wire_lock);
	list_add_tail(&dev->wire_entry, &wire);
	spin_unlock(&hca_wire_lock);
	wake_up_process(dev->engine);
	return 0;
}

void hca_engine_stop(struct hca_dev *dev)
{
	struct hca_pkt *pkt, *next;

	spin_lock(&hca_wire_lock);
	list_del(&dev->wire_entry);
	spin_unlock(&hca_wire_lock);
	kthread_stop(dev->engine);
	list_for_each_entry_safe(pkt, next, &dev->rx, entry)
		kfree(pkt);
}

void hca_wire_set_gid(struct hca_dev *dev, unsigned int n, const union ib_gid *gid)
{
	spin_lock(&hca_wire_lock);
	if (gid)
		dev->gids[n] = *gid;
	else
		memset(&dev->gids[n], 0, sizeof(dev->gids[n]));
	spin_unlock(&hca_wire_lock);
}
