// SPDX-License-Identifier: GPL-2.0

//! Suite `hcablk_completions`: which completions are reported, when, in which context and to
//! whom (`rdma::cq`).

use crate::{
    link::{
        self,
        Link,
        Log,
        Plan,
        Where,
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
    sync::Arc, //
};

#[kunit_tests(hcablk_completions)]
mod tests {
    use super::*;

    #[test]
    fn only_signaled_work_completes_and_in_order() -> Result {
        let link = Link::new(Plan::default())?;
        // Every third one.
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
        link.near.log.reports.with(|reports| {
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
            ensure_eq!(link.near.log.reports.with(|r| r.done.len()), 0);
            link.near.start();
            ensure!(link.near.completed(SEND, 0)?.ok);
        }
        Ok(())
    }

    #[test]
    fn many_completions_at_once_are_all_reported_in_order() -> Result {
        // More completions than a softirq handles at a time, and not a multiple of a batch.
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
            // When the last one is carried out, all others have been.
            let sges = [Sge::new(link.near.out.write(0, b"last")?)];
            link.near.post(&mut Send::new(&sges), SEND, 0)?;
            link.far.completed(RECEIVE, 0)?;
            pause(500);
            link.near.start();
            ensure!(link.near.completed(SEND, 0)?.ok);
            link.near.log.reports.with(|reports| {
                ensure_eq!(reports.done.len(), MANY as usize);
                ensure_eq!(reports.lost, 0);
                for (index, done) in (0..).zip(reports.done.iter()) {
                    ensure_eq!((done.work.index, done.ok), (index, true));
                }
                // Other work ran in between.
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
            let before = link.near.log.reports.with(|reports| reports.done.len());
            ensure_eq!(before, 8);
            // The completion of this is not reported.
            link.near.receive(9)?;
            pause(100);
            ensure_eq!(link.near.log.reports.with(|reports| reports.done.len()), 8);
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
            // It stays unreported after that.
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
        // A timer of the dropped queue would run in freed memory.
        drop(cq);
        let cq = CompletionQueue::new(&pd, 4, 0, CqContext::SoftIrq)?;
        cq.start(Log::new(1, false)?);
        cq.stop();
        cq.guard();
        drop(cq);
        pause(100);
        Ok(())
    }
}
