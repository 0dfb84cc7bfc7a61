// SPDX-License-Identifier: GPL-2.0
#include <linux/cpumask.h>
#include <linux/random.h>
#include <linux/ratelimit.h>
#include <linux/sched/mm.h>
#include <linux/suspend.h>

#include "helpers.h"

/* An unknown node counts as the local one. */
unsigned int hcablk_c_numa_distance(int node)
{
	return node == NUMA_NO_NODE ? LOCAL_DISTANCE : node_distance(numa_mem_id(), node);
}

unsigned int hcablk_c_num_online_cpus(void)
{
	return num_online_cpus();
}

unsigned long hcablk_c_this_thread(void)
{
	return in_task() ? (unsigned long)current : 0;
}

u64 hcablk_c_get_random_u64(void)
{
	return get_random_u64();
}

void *hcablk_c_page_address(struct page *page)
{
	return page_address(page);
}

unsigned long hcablk_c_spin_lock_irqsave(spinlock_t *lock)
{
	unsigned long flags;

	spin_lock_irqsave(lock, flags);
	return flags;
}

void hcablk_c_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
}

bool hcablk_c_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags)
{
	return spin_trylock_irqsave(lock, *flags);
}

void hcablk_c_init_work(struct work_struct *work, work_func_t func)
{
	INIT_WORK(work, func);
}

/* The work has a lock class of its own: unlike a completion handler, it may wait. */
void hcablk_c_init_deferred(struct work_struct *work, work_func_t func)
{
	INIT_WORK(work, func);
}

unsigned int hcablk_c_memalloc_flags_save(unsigned int flags)
{
	return memalloc_flags_save(flags);
}

void hcablk_c_memalloc_flags_restore(unsigned int flags)
{
	memalloc_flags_restore(flags);
}

void hcablk_c_init_delayed_work(struct delayed_work *work, work_func_t func)
{
	INIT_DELAYED_WORK(work, func);
}

bool hcablk_c_queue_delayed_work(struct workqueue_struct *wq, struct delayed_work *work,
				 unsigned long delay)
{
	return queue_delayed_work(wq ?: system_dfl_long_wq, work, delay);
}

/* WQ_PERCPU or WQ_UNBOUND must be among @flags. */
struct workqueue_struct *hcablk_c_alloc_workqueue(const char *name, unsigned int flags,
						  int max_active)
{
	return alloc_workqueue("%s", flags, max_active, name);
}

bool hcablk_c_queue_work(struct workqueue_struct *wq, struct work_struct *work)
{
	return queue_work(wq, work);
}

unsigned long hcablk_c_msecs_to_jiffies(unsigned int ms)
{
	return msecs_to_jiffies(ms);
}

void hcablk_c_init_completion(struct completion *c)
{
	init_completion(c);
}

void hcablk_c_reinit_completion(struct completion *c)
{
	reinit_completion(c);
}

void hcablk_c_timer_setup(struct timer_list *timer, void (*function)(struct timer_list *))
{
	timer_setup(timer, function, 0);
}

/* Does nothing while the timer runs, or after it was shut down. */
void hcablk_c_timer_start(struct timer_list *timer, unsigned int ms)
{
	if (!timer_pending(timer))
		mod_timer(timer, jiffies + msecs_to_jiffies(ms));
}

void hcablk_c_local_bh_disable(void)
{
	local_bh_disable();
}

void hcablk_c_local_bh_enable(void)
{
	local_bh_enable();
}

void hcablk_c_init_irq_work(struct irq_work *work, void (*function)(struct irq_work *))
{
	init_irq_work(work, function);
}

/* Schedules @poll; from a task through @interrupt, which must schedule @poll. */
void hcablk_c_irq_poll_sched(struct irq_poll *poll, struct irq_work *interrupt)
{
	if (in_interrupt())
		irq_poll_sched(poll);
	else
		irq_work_queue(interrupt);
}

int hcablk_c_notifier_from_errno(int err)
{
	return notifier_from_errno(err);
}

/* Without CONFIG_PM_SLEEP nothing happens, nor does hibernation. */
int hcablk_c_register_pm_notifier(struct notifier_block *notifier)
{
	return register_pm_notifier(notifier);
}

void hcablk_c_unregister_pm_notifier(struct notifier_block *notifier)
{
	unregister_pm_notifier(notifier);
}

/*
 * Returns whether another line of a kind that a peer can cause may be printed: ten in five seconds
 * of each kind.
 */
bool hcablk_c_may_print(unsigned int kind)
{
#define HCABLK_C_LIMIT(n) \
	[n] = RATELIMIT_STATE_INIT(limits[n], DEFAULT_RATELIMIT_INTERVAL, DEFAULT_RATELIMIT_BURST)
	static struct ratelimit_state limits[] = {
		HCABLK_C_LIMIT(0),
		HCABLK_C_LIMIT(1),
		HCABLK_C_LIMIT(2),
		HCABLK_C_LIMIT(3),
		HCABLK_C_LIMIT(4),
		HCABLK_C_LIMIT(5),
		HCABLK_C_LIMIT(6),
		HCABLK_C_LIMIT(7),
	};
#undef HCABLK_C_LIMIT

	return kind < ARRAY_SIZE(limits) && __ratelimit(&limits[kind]);
}
