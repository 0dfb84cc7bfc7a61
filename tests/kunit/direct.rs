// SPDX-License-Identifier: GPL-2.0

//! Suite `hcablk_direct`: completion queues that never interrupt
//! (`rdma::cq::direct`).

use crate::{
    link::{
        Link,
        Plan,
        Where,
        OTHER,
        RECEIVE,
        SEND, //
    },
    watched::{
        eventually,
        pause, //
    }, //
};
use hcablk_core::rdma::wr::Rdma;
use kernel::{
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    }, //
};

/// Creates a started link whose near side reports no completions by itself.
fn link(sends: u32) -> Result<Link> {
    let mut link = Link::new(Plan {
        sends,
        context: Where::Direct,
        silent: true,
        ..Plan::default()
    })?;
    link.near.start();
    link.near.send(0, b"hello")?;
    link.far.completed(RECEIVE, 0)?;
    Ok(link)
}

#[kunit_tests(hcablk_direct)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_ask_is_told_nothing() -> Result {
        let link = link(32)?;
        let cq = &link.near.cq;
        // Any context may call these, and none of them polls.
        cq.kick();
        cq.notify_all();
        cq.guard();
        pause(200);
        ensure_eq!(link.near.log.reports.with(|r| r.done.len()), 0);
        eventually(|| Ok(cq.poll_now() == 1))?;
        ensure!(link.near.completed(SEND, 0)?.ok);
        ensure_eq!(cq.poll_now(), 0);
        ensure_eq!(cq.events(), 0);
        Ok(())
    }

    #[test]
    fn settling_finds_all_that_there_is() -> Result {
        // More than one poll handles.
        const MANY: u32 = 600;
        let link = link(MANY + 1)?;
        for index in 0..MANY {
            link.near.post(&mut Rdma::empty_write(), OTHER, index)?;
        }
        link.far.receive(1)?;
        link.near.send(1, b"last")?;
        link.far.completed(RECEIVE, 1)?;
        eventually(|| {
            link.near.cq.settle();
            Ok(link.near.log.reports.with(|r| r.done.len()) == MANY as usize + 2)
        })?;
        ensure!(link.near.completed(SEND, 1)?.ok);
        ensure_eq!(link.near.cq.events(), 0);
        Ok(())
    }

    #[test]
    fn draining_looks_by_itself() -> Result {
        let link = link(32)?;
        for index in 0..20 {
            link.near.post(&mut Rdma::empty_write(), OTHER, index)?;
        }
        let start = Instant::<Monotonic>::now();
        link.near.pair.drain();
        // A wait times out after 30 s.
        ensure!(start.elapsed().as_millis() < 25_000);
        ensure_eq!(link.near.log.reports.with(|r| r.done.len()), 21);
        link.near.cq.stop();
        ensure_eq!(link.near.cq.poll_now(), 0);
        link.near.cq.settle();
        Ok(())
    }

    #[test]
    fn other_queues_are_not_polled_like_this() -> Result {
        for context in [Where::SoftIrq, Where::Process] {
            let link = Link::new(Plan {
                context,
                silent: true,
                ..Plan::default()
            })?;
            link.near.send(0, b"hello")?;
            link.far.completed(RECEIVE, 0)?;
            pause(200);
            ensure_eq!(link.near.cq.poll_now(), 0);
        }
        Ok(())
    }
}
