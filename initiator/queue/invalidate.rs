// SPDX-License-Identifier: GPL-2.0

//! Taking the target's keys away by work requests of our own, where its answers do not:
//! because it does not want to, or was asked not to.
//!
//! The invalidations of a round of completions wait in the backlog until the round is
//! over, or somebody posts something else, and have one doorbell. Work requests of one queue
//! complete in their order, so that only the last one that waits is signaled: who puts
//! one behind it silences it, and takes over its slots. The requests whose keys go
//! are a list, from that of the last one back to that of the first
//! ([`TagData::before`]). All of them end when the last has completed, or with the
//! session.

use super::{
    complete::Round,
    kind,
    Phase,
    Queue,
    SendState,
    TagData, //
};
use hcablk_core::rdma::wr::{
    Chain,
    WorkId,
    WorkRequest, //
};
use kernel::prelude::*;

/// The last invalidation that waits for its doorbell.
#[derive(Clone, Copy)]
pub(super) struct Last {
    /// Requests before it in the backlog.
    place: usize,
    /// Whose key it takes away.
    tag: u16,
    /// Slots of the send queue that are free when it has completed.
    frees: u16,
}

impl Queue {
    /// Takes the key of the request `tag`, which was answered, away before its memory is
    /// anybody else's: at the end of the round at the latest. A slot was reserved.
    pub(super) fn invalidate(
        &self,
        send: &mut SendState,
        round: &mut Round,
        tag: u16,
        data: &mut TagData,
    ) -> Result {
        let mut wr = data.list.invalidate()?;
        let mut frees = send.space.post_signaled(1);
        data.slots = 0;
        data.before = None;
        if let Some(last) = send.invalidation.take() {
            send.backlog.silence(last.place);
            frees += last.frees;
            data.before = Some(last.tag);
        }
        wr.signal(WorkId::new(kind::INVALIDATE, tag.into()).freeing(frees));
        self.done.local_invalidations.bump();
        let place = send.backlog.len();
        if send.backlog.push(&mut wr) {
            send.invalidation = Some(Last { place, tag, frees });
            round.invalidates = true;
            return Ok(());
        }
        let mut chain = Chain::new();
        chain.push(&mut wr);
        self.ring(send, &chain)
    }

    /// The end of a round that has left some.
    pub(super) fn post_invalidations(&self) {
        let mut send = self.send.lock();
        let posted = self.ring(&mut send, &Chain::new());
        drop(send);
        self.check(posted);
    }

    /// The invalidation for this tag is done, and those that it spoke for.
    pub(super) fn invalidated(&self, round: &mut Round, tag: u32) {
        let mut next = u16::try_from(tag).ok();
        while let Some(tag) = next.take() {
            let Some(mut request) = self.requests.take_any(self.index.into(), tag) else {
                return;
            };
            let Some((_, data)) = self.tags.of(&mut request) else {
                return;
            };
            next = data.before.take();
            if let Phase::Invalidating(status) = data.phase {
                self.lingered();
                data.list.invalidated();
                self.finish(round, request, status);
            } else {
                request.park();
            }
        }
    }
}
