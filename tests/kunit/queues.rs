// SPDX-License-Identifier: GPL-2.0

//! Suite `hcablk_queues`: queue pairs and the account of send queue slots on a
//! real device (`rdma::qp`, `rdma::space`, `rdma::wr`).

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
        BUFFERS,
        OTHER,
        RECEIVE,
        SEND, //
    },
};
use hcablk_core::{
    rdma::{
        backlog::Backlog,
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
    system::errno, //
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
    fn what_waits_is_posted_in_order_and_reported_if_asked_for() -> Result {
        let link = Link::new(Plan::default())?;
        let mut backlog = Backlog::<1>::new(3)?;
        for _ in 0..2 {
            for index in 1..=3 {
                let sges = [Sge::new(
                    link.near.out.write(index as usize, &[index as u8])?,
                )];
                let mut send = Send::new(&sges);
                send.name(WorkId::new(SEND, index));
                ensure!(!backlog.is_full() && backlog.push(&mut send));
            }
            ensure!(!backlog.push(&mut Rdma::empty_write()));
            ensure_eq!(backlog.pop(), Some(WorkId::new(SEND, 3)));
            backlog.signal(1);
            // No work request waits there.
            backlog.signal(2);
            let mut last = Rdma::empty_write();
            last.signal(WorkId::new(OTHER, 4));
            let mut chain = Chain::new();
            chain.push(&mut last);
            link.far.receive(1)?;
            link.far.receive(2)?;
            backlog.post(&link.near.pair, &chain.moved())?;
            ensure!(backlog.is_empty());
            for index in 1..=2 {
                ensure_eq!(link.far.completed(RECEIVE, index)?.length, 1);
                let mut message = [0];
                let got = link.far.into.read(index as usize, 1, &mut message)?;
                ensure_eq!(got, [index as u8]);
            }
            ensure!(link.near.completed(OTHER, 4)?.ok);
            ensure!(link.near.completed(SEND, 2)?.ok);
            ensure!(link
                .near
                .log
                .reports
                .with(|reports| reports.done.is_empty()));
        }
        // Nothing to post.
        backlog.post(&link.near.pair, &Chain::new())
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
        // Queues of any size: a device may round up, but not down.
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
                    // A completion reports the slots that it frees.
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
            let rest = link.near.log.reports.with(|reports| {
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
            // Each queue has a slot more, for the work request that ends draining.
            let start = Instant::<Monotonic>::now();
            link.near.pair.drain();
            ensure!(start.elapsed().as_millis() < 20_000);
            let flushed = link.near.log.reports.with(|reports| {
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
            // After the failure a work request is accepted, and flushed.
            link.near.send(index, b"never")?;
        }
        link.near.pair.drain();
        let start = Instant::<Monotonic>::now();
        link.near.pair.drain();
        ensure!(start.elapsed().as_millis() < 1000);
        link.near.log.reports.with(|reports| {
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
        link.near.pair.disconnect();
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
        // The identifier can have a new queue pair after that.
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
        // A refused creation has taken no resources.
        drop(QueuePair::new(&other_id, &pd, &other_cq, CAPACITY)?);
        cq.start(Log::new(16, false)?);
        pair.drain();
        drop(pair);
        // The completion queue would report the drain of the first queue pair.
        ensure_eq!(second(&id, &cq), Some(EBUSY));
        drop(QueuePair::new(&id, &pd, &other_cq, CAPACITY)?);
        Ok(())
    }

    #[test]
    fn a_held_queue_pair_is_connected_once() -> Result {
        let link = Link::new(Plan {
            held: true,
            ..Plan::default()
        })?;
        for _ in 0..2 {
            ensure_eq!(
                link.near
                    .pair
                    .connect_held(link::PARAMETERS, b"again")
                    .err(),
                Some(errno::ealready())
            );
        }
        // The refused calls have left the connection and its queue pair as they were.
        link.far.receive(1)?;
        link.near.send(1, b"still here")?;
        ensure!(link.near.completed(SEND, 1)?.ok);
        Ok(())
    }

    #[test]
    fn an_empty_chain_posts_nothing() -> Result {
        let link = Link::new(Plan::default())?;
        link.near.pair.post(&Chain::new())?;
        ensure!(link.near.carry_out(&mut Rdma::empty_write())?);
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
        ensure_eq!(log.reports.with(|reports| reports.done.len()), 0);
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
