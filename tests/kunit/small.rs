// SPDX-License-Identifier: GPL-2.0

//! Suite `hcablk_small`: tables, queues, locks, events and tasks, in the contexts in which the
//! drivers use them (`slots`, `fifo`, `pages`, `stats`, `sync`, `system`).

use crate::{
    check::every_allocation,
    watched::{
        pause,
        Watched, //
    },
};
use hcablk_core::{
    containers::fifo::Fifo,
    containers::slots::SlotTable,
    memory::pages::ContiguousPages,
    report::stats::Counter,
    sync::{
        new_irq_lock,
        Drained,
        Event,
        Periodic,
        Tick,
        WorkQueue, //
    },
    system,
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};

/// An object that counts its instances.
struct Counted(Arc<Atomic<i64>>, u32);

impl Counted {
    fn new(alive: &Arc<Atomic<i64>>, name: u32) -> Result<KBox<Self>> {
        let counted = KBox::new(Self(alive.clone(), name), GFP_KERNEL)?;
        alive.fetch_add(1, Full);
        Ok(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(-1, Full);
    }
}

fn alive() -> Result<Arc<Atomic<i64>>> {
    Ok(Arc::new(Atomic::new(0), GFP_KERNEL)?)
}

/// A timer that ticks.
struct Clock {
    ticks: Atomic<u64>,
    slow: bool,
    inside: Atomic<bool>,
    overlapped: Atomic<bool>,
}

impl Clock {
    fn new(slow: bool) -> Result<Arc<Self>> {
        let clock = Self {
            ticks: Atomic::new(0),
            slow,
            inside: Atomic::new(false),
            overlapped: Atomic::new(false),
        };
        Ok(Arc::new(clock, GFP_KERNEL)?)
    }
}

impl Tick for Clock {
    fn tick(&self) {
        if self.inside.xchg(true, Full) {
            self.overlapped.store(true, Relaxed);
        }
        if self.slow {
            pause(100);
        }
        self.ticks.fetch_add(1, Full);
        self.inside.store(false, Relaxed);
    }
}

#[kunit_tests(hcablk_small)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_holds_one_and_gives_it_once_under_a_lock() -> Result {
        let alive = alive()?;
        let table = SlotTable::new(3)?;
        let (one, two, three) = (
            Counted::new(&alive, 1)?,
            Counted::new(&alive, 2)?,
            Counted::new(&alive, 3)?,
        );
        let lock = KBox::pin_init(new_irq_lock!((), "hcablk_kunit"), GFP_KERNEL)?;
        {
            // Interrupts are off: sleeping is forbidden here.
            let _guard = lock.lock();
            ensure!(table.is_empty());
            ensure!(table.take(0).is_none());
            ensure!(table.park(0, one).is_ok());
            ensure!(!table.is_empty());
            // A taken place, and one out of range: the object is returned.
            let two = table.park(0, two).err().ok_or(EINVAL)?;
            let two = table.park(3, two).err().ok_or(EINVAL)?;
            let two = table.park(u32::MAX, two).err().ok_or(EINVAL)?;
            ensure_eq!(two.1, 2);
            ensure!(table.park(2, two).is_ok());
            ensure!(table.take(3).is_none());
            ensure!(table.take(u32::MAX).is_none());
            ensure!(table.take(1).is_none());
            ensure_eq!(table.take(0).map(|object| object.1), Some(1));
            ensure!(table.take(0).is_none());
            ensure!(table.park(0, three).is_ok());
        }
        ensure_eq!(alive.load(Relaxed), 2);
        drop(table);
        ensure_eq!(alive.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn of_several_who_take_an_object_one_gets_it() -> Result {
        const WORKERS: u32 = 4;
        const ROUNDS: u32 = 2000;
        const PLACES: u32 = 3;
        let alive = alive()?;
        let table = Arc::new(SlotTable::new(PLACES as usize)?, GFP_KERNEL)?;
        for place in 0..PLACES {
            let object = Counted::new(&alive, place)?;
            ensure!(table.park(place, object).is_ok());
        }
        // The number of workers with the object of each place; never more than one.
        let out: Arc<[Atomic<u32>; PLACES as usize]> =
            Arc::new(core::array::from_fn(|_| Atomic::new(0)), GFP_KERNEL)?;
        // Finished workers, taken objects, mistakes.
        let score = Watched::new((0u32, 0u32, 0u32))?;
        let queue = Arc::new(WorkQueue::new(c"hcablk_kunit")?, GFP_KERNEL)?;
        for worker in 0..WORKERS {
            let (table, out, score) = (table.clone(), out.clone(), score.clone());
            queue.try_spawn(GFP_KERNEL, move || {
                let (mut taken, mut wrong) = (0, 0);
                for round in 0..ROUNDS {
                    let place = (round + worker) % PLACES;
                    let Some(object) = table.take(place) else {
                        continue;
                    };
                    taken += 1;
                    let Some(count) = out.get(place as usize) else {
                        return;
                    };
                    if count.fetch_add(1, Full) != 0 || object.1 != place {
                        wrong += 1;
                    }
                    count.fetch_sub(1, Full);
                    if table.park(place, object).is_err() {
                        wrong += 1;
                    }
                }
                score.change(|score| {
                    score.0 += 1;
                    score.1 += taken;
                    score.2 += wrong;
                });
            })?;
        }
        score.wait(|score| (score.0 == WORKERS).then_some(()))?;
        drop(Drained(queue));
        let (_, taken, wrong) = score.with(|score| *score);
        ensure_eq!(wrong, 0);
        ensure!(taken >= ROUNDS);
        ensure_eq!(alive.load(Relaxed), i64::from(PLACES));
        drop(table);
        ensure_eq!(alive.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn a_fifo_keeps_order_and_bounds_under_a_lock() -> Result {
        let lock = KBox::pin_init(new_irq_lock!(Fifo::new(3)?, "hcablk_kunit"), GFP_KERNEL)?;
        let mut fifo = lock.lock();
        // The queue wraps around several times.
        for start in 0..10 {
            ensure!(fifo.is_empty());
            ensure_eq!(fifo.pop(), None);
            for n in start..start + 3 {
                ensure_eq!(fifo.push(n), Ok(()));
            }
            ensure_eq!(fifo.push(99), Err(99));
            let first = fifo.pop().ok_or(EINVAL)?;
            ensure_eq!(first, start);
            ensure_eq!(fifo.unpop(first), Ok(()));
            ensure_eq!(fifo.unpop(99), Err(99));
            ensure_eq!(fifo.push(99), Err(99));
            ensure_eq!(fifo.pop(), Some(start));
            ensure_eq!(fifo.push(start + 3), Ok(()));
            for n in start + 1..start + 4 {
                ensure_eq!(fifo.pop(), Some(n));
            }
        }
        let mut none = Fifo::<u32>::new(0)?;
        ensure_eq!(none.push(1), Err(1));
        ensure_eq!(none.pop(), None);
        Ok(())
    }

    #[test]
    fn a_fifo_drops_what_is_left() -> Result {
        let alive = alive()?;
        let mut fifo = Fifo::new(4)?;
        for name in 0..4 {
            ensure!(fifo.push(Counted::new(&alive, name)?).is_ok());
        }
        drop(fifo.pop());
        ensure_eq!(alive.load(Relaxed), 3);
        drop(fifo);
        ensure_eq!(alive.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn a_range_of_pages_ends_with_them() -> Result {
        let block = ContiguousPages::alloc(1)?;
        let end = block.len();
        ensure_eq!(end, 2 * PAGE_SIZE);
        ensure!(!block.is_empty());
        for (offset, length, wanted) in [
            (0, end, end),
            (0, end + 1, end),
            (end - 1, usize::MAX, 1),
            (end, 1, 0),
            (usize::MAX, usize::MAX, 0),
            (PAGE_SIZE - 1, 2, 2),
        ] {
            let got = block.range(offset, length).length() as usize;
            ensure_eq!((offset, got), (offset, wanted));
            let got = block.range(0, end).part(offset, length).length() as usize;
            ensure_eq!((offset, got), (offset, wanted));
        }
        Ok(())
    }

    #[test]
    fn an_event_is_waited_for_until_it_happens_or_the_time_is_over() -> Result {
        let event: Arc<Event> = Arc::pin_init(Event::new(), GFP_KERNEL)?;
        let start = Instant::<Monotonic>::now();
        ensure_eq!(event.wait_ms(100), Err(ETIMEDOUT));
        ensure!(start.elapsed().as_millis() >= 90);
        let queue = Arc::new(WorkQueue::new(c"hcablk_kunit")?, GFP_KERNEL)?;
        let theirs = event.clone();
        queue.try_spawn(GFP_KERNEL, move || {
            pause(20);
            theirs.set();
        })?;
        ensure_eq!(event.wait_ms(30_000), Ok(()));
        // The event wakes all waiters until it is reset.
        ensure_eq!(event.wait_ms(0), Ok(()));
        ensure_eq!(event.wait_ms(1), Ok(()));
        event.reset();
        ensure_eq!(event.wait_ms(0), Err(ETIMEDOUT));
        ensure_eq!(event.wait_ms(10), Err(ETIMEDOUT));
        Ok(())
    }

    #[test]
    fn a_drained_queue_has_done_its_work_and_what_that_queued() -> Result {
        let queue = Arc::new(WorkQueue::new(c"hcablk_kunit")?, GFP_KERNEL)?;
        let drained = Drained(queue.clone());
        let done = alive()?;
        for _ in 0..5 {
            let (again, done) = (queue.clone(), done.clone());
            queue.try_spawn(GFP_KERNEL, move || {
                pause(50);
                let inner = done.clone();
                if again
                    .try_spawn(GFP_KERNEL, move || {
                        pause(50);
                        inner.fetch_add(1, Full);
                    })
                    .is_ok()
                {
                    done.fetch_add(1, Full);
                }
            })?;
        }
        drop(queue);
        drop(drained);
        ensure_eq!(done.load(Relaxed), 10);
        Ok(())
    }

    #[test]
    fn a_task_runs_until_it_is_stopped_and_one_round_at_a_time() -> Result {
        let clock = Clock::new(false)?;
        let running = Periodic::start(clock.clone(), 10)?;
        let start = Instant::<Monotonic>::now();
        while clock.ticks.load(Relaxed) < 5 && start.elapsed().as_millis() < 30_000 {
            pause(5);
        }
        ensure!(clock.ticks.load(Relaxed) >= 5);
        ensure!(start.elapsed().as_millis() >= 40);
        drop(running);
        let ticks = clock.ticks.load(Relaxed);
        pause(100);
        ensure_eq!(clock.ticks.load(Relaxed), ticks);
        ensure!(Arc::into_unique_or_drop(clock).is_some());

        // Stopping waits for a running timer.
        let clock = Clock::new(true)?;
        let running = Periodic::start(clock.clone(), 1)?;
        let start = Instant::<Monotonic>::now();
        while !clock.inside.load(Relaxed) && start.elapsed().as_millis() < 30_000 {
            pause(5);
        }
        drop(running);
        ensure!(!clock.inside.load(Relaxed));
        ensure!(clock.ticks.load(Relaxed) >= 1);
        ensure!(!clock.overlapped.load(Relaxed));
        ensure!(Arc::into_unique_or_drop(clock).is_some());
        Ok(())
    }

    #[test]
    fn an_irq_lock_is_tried_without_waiting() -> Result {
        let lock = KBox::pin_init(new_irq_lock!(1, "hcablk_kunit"), GFP_KERNEL)?;
        {
            let mut guard = lock.lock();
            *guard += 1;
        }
        let guard = lock.try_lock();
        ensure_eq!(guard.as_deref(), Some(&2));
        drop(guard);
        ensure_eq!(*lock.lock(), 2);
        Ok(())
    }

    #[test]
    fn a_counter_wraps_and_chance_is_not_zero() -> Result {
        let counter = Counter::new();
        counter.bump();
        counter.add(u64::MAX);
        ensure_eq!(counter.get(), 0);
        let (a, b) = (system::random_u64(), system::random_u64());
        ensure!(a != 0 && b != 0 && a != b);
        ensure!(system::online_cpus() >= 1);
        Ok(())
    }

    #[test]
    fn small_things_without_memory() -> Result {
        every_allocation(1, || SlotTable::<u32>::new(100))?;
        every_allocation(1, || Fifo::<u32>::new(100))?;
        every_allocation(1, || ContiguousPages::alloc(2))?;
        every_allocation(1, || ContiguousPages::alloc_if_plenty(2))?;
        every_allocation(2, || WorkQueue::new(c"hcablk_kunit"))?;
        let clock = Clock::new(false)?;
        every_allocation(1, || Periodic::start(clock.clone(), 60_000))?;
        ensure!(Arc::into_unique_or_drop(clock).is_some());
        Ok(())
    }
}
