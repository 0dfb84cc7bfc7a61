// SPDX-License-Identifier: GPL-2.0

//! Suite `hcablk_queues`: queue pairs, completion queues and the account of
//! send queue slots on a real device (`rdma::qp`, `rdma::cq`, `rdma::space`,
//! `rdma::wr`).

use crate::{
    check::{
        balanced,
        every_allocation, //
    },
    link::{
        self,
        Link,
        Log,
        Plan,
        Where,
        BUFFERS,
        OTHER,
        RECEIVE,
        SEND, //
    },
    watched::pause, //
};
use hcablk_core::{
    rdma::{
        cq::{
            CompletionQueue,
            CqContext, //
        },
        qp::{
            Capacity,
            QueuePair, //
        },
        space::SendSpace,
        wr::{
            Chain,
            Rdma,
            Send,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
    sync::WorkQueue,
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    }, //
};

const CAPACITY: Capacity = Capacity {
    sends: 4,
    receives: 4,
    send_entries: 1,
    receive_entries: 1,
};

#[kunit_tests(hcablk_queues)]
mod tests {
    use super::*;

    #[test]
    fn a_work_id_comes_back_whole() -> Result {
        let link = Link::new(Plan::default())?;
        let ids = [
            WorkId::new(0, 0),
            WorkId::new(127, u32::MAX),
            WorkId::new(1, 0x8000_0000).freeing(u16::MAX),
            WorkId::new(2, 0x1234_5678).freeing(0x9abc),
            WorkId::new(0, 0).freeing(1),
            WorkId::new(100, 1),
        ];
        for id in ids {
            let mut write = Rdma::empty_write();
            write.signal(id);
            let mut chain = Chain::new();
            chain.push(&mut write);
            link.near.pair.post(&chain)?;
            let done = link
                .near
                .log
                .reports
                .wait(|reports| reports.done.remove(0).ok())?;
            ensure_eq!(done.work, id);
            ensure!(done.ok);
        }
        Ok(())
    }

    #[test]
    fn only_signaled_work_completes_and_in_order() -> Result {
        let link = Link::new(Plan::default())?;
        // Every third.
        for first in (0..27).step_by(9) {
            let mut writes: [_; 9] = core::array::from_fn(|_| Rdma::empty_write());
            let mut chain = Chain::new();
            ensure!(chain.is_empty());
            for (index, write) in (first..).zip(writes.iter_mut()) {
                if index % 3 == 2 {
                    write.signal(WorkId::new(OTHER, index));
                } else {
                    write.name(WorkId::new(OTHER, index));
                }
                chain.push(write);
            }
            ensure_eq!(chain.len(), 9);
            link.near.pair.post(&chain)?;
            link.near.completed(OTHER, first + 8)?;
        }
        link.near.log.reports.look(|reports| {
            let order: [u32; 6] = [2, 5, 11, 14, 20, 23];
            ensure_eq!(reports.done.len(), order.len());
            for (done, index) in reports.done.iter().zip(order) {
                ensure_eq!(done.work.index, index);
                ensure!(done.ok);
            }
            Ok(())
        })
    }

    #[test]
    fn entries_are_sent_as_one_message() -> Result {
        let link = Link::new(Plan::default())?;
        link.far.receive(1)?;
        let sges = [
            Sge::new(link.near.out.write(0, b"one ")?),
            Sge::new(link.near.out.write(1, b"message")?),
        ];
        ensure!(link.near.carry_out(&mut Send::new(&sges))?);
        ensure_eq!(link.far.completed(RECEIVE, 1)?.length, 11);
        let mut message = [0; 11];
        ensure_eq!(link.far.into.read(1, 11, &mut message)?, b"one message");
        Ok(())
    }

    #[test]
    fn the_account_of_slots_fits_the_queue() -> Result {
        // Of any size: a device may round up, but must not have fewer.
        for (sends, period) in [(1, 1), (2, 1), (6, 2), (7, 3), (14, 4), (30, 8)] {
            let link = Link::new(Plan {
                sends,
                ..Plan::default()
            })?;
            let mut space = SendSpace::new(sends, period);
            let (mut posted, mut freed) = (0, 0);
            while posted < 20 * sends {
                let count = 1 + posted % 3.min(sends);
                while !space.reserve(count, || freed) {
                    // What completes says how much room there is again.
                    let done = link.near.log.reports.wait(|r| r.done.remove(0).ok())?;
                    ensure!(done.ok);
                    ensure_eq!(done.work.kind, OTHER);
                    freed += u32::from(done.work.slots);
                }
                let mut writes: [_; 3] = core::array::from_fn(|_| Rdma::empty_write());
                let mut chain = Chain::new();
                let signal = space.post(count);
                for (i, write) in (1..).zip(writes.iter_mut().take(count as usize)) {
                    match signal {
                        Some(slots) if i == count => {
                            write.signal(WorkId::new(OTHER, posted).freeing(slots));
                        }
                        _ => write.name(WorkId::new(OTHER, u32::MAX)),
                    }
                    chain.push(write);
                }
                ensure_eq!(chain.len(), count);
                link.near.pair.post(&chain)?;
                posted += count;
            }
            let mut last = Rdma::empty_write();
            while !space.reserve(1, || freed) {
                let done = link.near.log.reports.wait(|r| r.done.remove(0).ok())?;
                freed += u32::from(done.work.slots);
            }
            let slots = space.post_signaled(1);
            last.signal(WorkId::new(SEND, 1).freeing(slots));
            let mut chain = Chain::new();
            chain.push(&mut last);
            link.near.pair.post(&chain)?;
            ensure_eq!(link.near.completed(SEND, 1)?.work.slots, slots);
            let rest = link.near.log.reports.look(|reports| {
                let rest = reports.done.iter().map(|done| done.work.slots).sum::<u16>();
                reports.done.clear();
                rest
            });
            freed += u32::from(slots) + u32::from(rest);
            ensure_eq!(freed, posted + 1);
            ensure_eq!(space.free(freed), sends);
        }
        Ok(())
    }

    #[test]
    fn a_queue_takes_all_that_it_was_made_for_at_once_and_drains() -> Result {
        for sends in [1u32, 3, 6, 14, 30] {
            let link = Link::new(Plan {
                sends,
                receives: 7,
                ..Plan::default()
            })?;
            let mut writes: [_; 30] = core::array::from_fn(|_| Rdma::empty_write());
            let mut chain = Chain::new();
            for write in writes.iter_mut().take(sends as usize) {
                write.name(WorkId::new(OTHER, 0));
                chain.push(write);
            }
            for index in 0..7 {
                link.near.receive(index)?;
            }
            link.near.pair.post(&chain)?;
            // One more each has room, the one that ends draining.
            let start = Instant::<Monotonic>::now();
            link.near.pair.drain();
            ensure!(start.elapsed().as_millis() < 20_000);
            let flushed = link.near.log.reports.look(|reports| {
                reports
                    .done
                    .iter()
                    .filter(|done| done.work.kind == RECEIVE && done.flushed)
                    .count()
            });
            ensure_eq!(flushed, 7);
        }
        Ok(())
    }

    #[test]
    fn draining_reports_all_work_and_itself_not() -> Result {
        let link = Link::new(Plan::default())?;
        for index in 0..5 {
            link.near.receive(index)?;
        }
        link.near.pair.fail()?;
        for index in 0..6 {
            // After the failure it is taken, and flushed.
            link.near.send(index, b"never")?;
        }
        link.near.pair.drain();
        let start = Instant::<Monotonic>::now();
        link.near.pair.drain();
        ensure!(start.elapsed().as_millis() < 1000);
        link.near.log.reports.look(|reports| {
            ensure_eq!(reports.done.len(), 11);
            ensure_eq!(reports.lost, 0);
            for done in reports.done.iter() {
                ensure!(done.flushed && !done.ok);
            }
            for (kind, count) in [(RECEIVE, 5), (SEND, 6)] {
                let of = reports.done.iter().filter(|done| done.work.kind == kind);
                // In order.
                ensure!(of.clone().map(|done| done.work.index).eq(0..count));
            }
            Ok(())
        })
    }

    #[test]
    fn failing_a_pair_is_noticed_by_the_peer() -> Result {
        let link = Link::new(Plan::default())?;
        link.far.receive(1)?;
        link.near.pair.fail()?;
        link.near.pair.id().disconnect();
        link.far.news.wait(|news| news.down.then_some(()))?;
        link.far.pair.drain();
        let done = link.far.completed(RECEIVE, 1)?;
        ensure!(done.flushed);
        Ok(())
    }

    #[test]
    fn a_message_without_a_receive_buffer_breaks_the_connection() -> Result {
        let link = Link::new(Plan::default())?;
        link.near.send(0, b"nowhere")?;
        let done = link.near.completed(SEND, 0)?;
        ensure!(!done.ok && !done.flushed);
        Ok(())
    }

    #[test]
    fn handlers_may_sleep_in_process_context() -> Result {
        let link = Link::new(Plan {
            context: Where::Process,
            sleepy: true,
            ..Plan::default()
        })?;
        for index in 0..10 {
            link.far.receive(index)?;
            link.near.send(index, b"slowly")?;
        }
        for index in 0..10 {
            ensure!(link.near.completed(SEND, index)?.ok);
        }
        Ok(())
    }

    #[test]
    fn completions_before_the_start_are_reported_after_it() -> Result {
        for context in [Where::SoftIrq, Where::Process] {
            let mut link = Link::new(Plan {
                context,
                silent: true,
                ..Plan::default()
            })?;
            link.near.send(0, b"hello")?;
            link.far.completed(RECEIVE, 0)?;
            pause(200);
            ensure_eq!(link.near.log.reports.look(|r| r.done.len()), 0);
            link.near.start();
            ensure!(link.near.completed(SEND, 0)?.ok);
        }
        Ok(())
    }

    #[test]
    fn many_completions_at_once_are_all_reported_in_order() -> Result {
        // More than a softirq handles at a time, and not a multiple of a batch.
        const MANY: u32 = 900;
        for context in [Where::SoftIrq, Where::Process] {
            let mut link = Link::new(Plan {
                sends: MANY,
                context,
                silent: true,
                ..Plan::default()
            })?;
            for index in 0..MANY {
                link.near.post(&mut Rdma::empty_write(), OTHER, index)?;
            }
            // The last to be carried out: then the others have been.
            let sges = [Sge::new(link.near.out.write(0, b"last")?)];
            link.near.post(&mut Send::new(&sges), SEND, 0)?;
            link.far.completed(RECEIVE, 0)?;
            pause(500);
            link.near.start();
            ensure!(link.near.completed(SEND, 0)?.ok);
            link.near.log.reports.look(|reports| {
                ensure_eq!(reports.done.len(), MANY as usize);
                ensure_eq!(reports.lost, 0);
                for (index, done) in (0..).zip(reports.done.iter()) {
                    ensure_eq!((done.work.index, done.ok), (index, true));
                }
                // Others got their turn in between.
                ensure!(context == Where::Process || reports.rounds >= 4);
                Ok(())
            })?;
        }
        Ok(())
    }

    #[test]
    fn a_queue_that_was_idle_is_woken_each_time() -> Result {
        let link = Link::new(Plan::default())?;
        let before = link.near.cq.events();
        for index in 0..50 {
            ensure!(link.near.carry_out(&mut Rdma::empty_write())?);
            if index % 10 == 0 {
                pause(5);
            }
        }
        ensure!(link.near.cq.events() > before);
        Ok(())
    }

    #[test]
    fn stopping_lets_go_of_the_handler() -> Result {
        for context in [Where::SoftIrq, Where::Process] {
            let link = Link::new(Plan {
                context,
                ..Plan::default()
            })?;
            for index in 0..8 {
                link.near.receive(index)?;
            }
            link.near.pair.drain();
            link.near.cq.stop();
            let before = link.near.log.reports.look(|reports| reports.done.len());
            ensure_eq!(before, 8);
            // Nobody hears of this.
            link.near.receive(9)?;
            pause(100);
            ensure_eq!(link.near.log.reports.look(|reports| reports.done.len()), 8);
            link.near.cq.stop();

            let pd = link.near.pd.clone();
            let context = match context {
                Where::SoftIrq => CqContext::SoftIrq,
                Where::Direct => CqContext::Direct,
                Where::Process => CqContext::Process(Arc::new(
                    WorkQueue::for_completions(c"hcablk_kunit2")?,
                    GFP_KERNEL,
                )?),
            };
            let log = Log::new(1, false)?;
            let cq = CompletionQueue::new(&pd, 4, 0, context)?;
            cq.start(log.clone());
            cq.stop();
            ensure!(Arc::into_unique_or_drop(log).is_some());
            let log = Log::new(1, false)?;
            let cq = CompletionQueue::new(&pd, 4, 7, CqContext::SoftIrq)?;
            cq.start(log.clone());
            drop(cq);
            ensure!(Arc::into_unique_or_drop(log).is_some());
        }
        Ok(())
    }

    #[test]
    fn a_pair_wants_queue_domain_and_device_that_belong_together() -> Result {
        let pd = link::domain()?;
        let other = link::domain()?;
        let cq = CompletionQueue::<Log>::new(&pd, 16, 0, CqContext::SoftIrq)?;
        let (id, _news) = link::bound_identifier()?;
        let (unbound, _other_news) = link::identifier()?;
        ensure_eq!(
            QueuePair::new(&id, &other, &cq, CAPACITY).err(),
            Some(EINVAL)
        );
        ensure_eq!(
            QueuePair::new(&unbound, &pd, &cq, CAPACITY).err(),
            Some(EINVAL)
        );
        let pair = QueuePair::new(&id, &pd, &cq, CAPACITY)?;
        ensure!(pair.number() != 0);
        ensure!(Arc::ptr_eq(pair.cq(), &cq));
        drop(pair);
        // An identifier can have another one after that.
        drop(QueuePair::new(&id, &pd, &cq, CAPACITY)?);
        Ok(())
    }

    #[test]
    fn identifier_and_completion_queue_have_one_pair_at_a_time() -> Result {
        let pd = link::domain()?;
        let cq = CompletionQueue::<Log>::new(&pd, 32, 0, CqContext::SoftIrq)?;
        let other_cq = CompletionQueue::<Log>::new(&pd, 32, 0, CqContext::SoftIrq)?;
        let (id, _news) = link::bound_identifier()?;
        let (other_id, _other_news) = link::bound_identifier()?;
        let pair = QueuePair::new(&id, &pd, &cq, CAPACITY)?;
        let second = |id, cq| QueuePair::new(id, &pd, cq, CAPACITY).err();
        ensure_eq!(second(&id, &other_cq), Some(EBUSY));
        ensure_eq!(second(&other_id, &cq), Some(EBUSY));
        // Who was refused has taken nothing.
        drop(QueuePair::new(&other_id, &pd, &other_cq, CAPACITY)?);
        cq.start(Log::new(16, false)?);
        pair.drain();
        drop(pair);
        // The completion queue would tell of the drain of the first one.
        ensure_eq!(second(&id, &cq), Some(EBUSY));
        drop(QueuePair::new(&id, &pd, &other_cq, CAPACITY)?);
        Ok(())
    }

    #[test]
    fn a_completion_queue_has_one_handler() -> Result {
        let pd = link::domain()?;
        for context in [CqContext::SoftIrq, CqContext::Direct] {
            let (first, second) = (Log::new(1, false)?, Log::new(1, false)?);
            let cq = CompletionQueue::new(&pd, 4, 0, context)?;
            cq.start(first.clone());
            cq.start(second.clone());
            ensure!(Arc::into_unique_or_drop(second).is_some());
            cq.stop();
            ensure!(Arc::into_unique_or_drop(first).is_some());
            // Nor after that.
            let third = Log::new(1, false)?;
            cq.start(third.clone());
            ensure!(Arc::into_unique_or_drop(third).is_some());
        }
        Ok(())
    }

    #[test]
    fn nothing_is_guarded_that_was_not_started_or_is_stopped() -> Result {
        let pd = link::domain()?;
        let cq = CompletionQueue::<Log>::new(&pd, 4, 0, CqContext::SoftIrq)?;
        cq.guard();
        // Its timer would run in freed memory.
        drop(cq);
        let cq = CompletionQueue::new(&pd, 4, 0, CqContext::SoftIrq)?;
        cq.start(Log::new(1, false)?);
        cq.stop();
        cq.guard();
        drop(cq);
        pause(100);
        Ok(())
    }

    #[test]
    fn no_work_id_is_taken_for_a_drain() -> Result {
        let link = Link::new(Plan::default())?;
        for kind in [0xfe_u8, 0xff] {
            let mut write = Rdma::empty_write();
            link.near.post(&mut write, kind, 0)?;
            ensure!(link.near.completed(kind & 0x7f, 0)?.ok);
        }
        Ok(())
    }

    #[test]
    fn sizes_beyond_the_device_are_refused() -> Result {
        let pd = link::domain()?;
        let attributes = pd.attributes();
        let cq = CompletionQueue::<Log>::new(&pd, 16, 0, CqContext::SoftIrq)?;
        let (id, _news) = link::bound_identifier()?;
        let too_many = Capacity {
            sends: attributes.max_qp_wr,
            ..CAPACITY
        };
        ensure!(QueuePair::new(&id, &pd, &cq, too_many).is_err());
        let too_wide = Capacity {
            send_entries: attributes.max_send_sge + 1,
            ..CAPACITY
        };
        ensure!(QueuePair::new(&id, &pd, &cq, too_wide).is_err());
        drop(QueuePair::new(&id, &pd, &cq, CAPACITY)?);
        ensure!(
            CompletionQueue::<Log>::new(&pd, attributes.max_cqe + 1, 0, CqContext::SoftIrq)
                .is_err()
        );
        Ok(())
    }

    #[test]
    fn a_pair_that_was_never_connected_goes_away() -> Result {
        let pd = link::domain()?;
        let cq = CompletionQueue::<Log>::new(&pd, 16, 0, CqContext::SoftIrq)?;
        let (id, _news) = link::bound_identifier()?;
        let pair = QueuePair::new(&id, &pd, &cq, CAPACITY)?;
        let log = Log::new(16, false)?;
        cq.start(log.clone());
        let start = Instant::<Monotonic>::now();
        pair.drain();
        cq.stop();
        ensure!(start.elapsed().as_millis() < 20_000);
        ensure_eq!(log.reports.look(|reports| reports.done.len()), 0);
        ensure!(BUFFERS >= 8);
        Ok(())
    }

    #[test]
    fn queues_without_memory() -> Result {
        balanced(|| {
            let pd = link::domain()?;
            every_allocation(2, || {
                CompletionQueue::<Log>::new(&pd, 16, 0, CqContext::SoftIrq)
            })?;
            let cq = CompletionQueue::<Log>::new(&pd, 16, 0, CqContext::SoftIrq)?;
            let (id, _news) = link::bound_identifier()?;
            every_allocation(2, || QueuePair::new(&id, &pd, &cq, CAPACITY).map(|_| ()))
        })
    }
}
