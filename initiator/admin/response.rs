// SPDX-License-Identifier: GPL-2.0

//! Handles messages of the target on an admin queue pair. Softirq context, one call at a time.

use super::{
    kind,
    life::Life,
    state::{
        Then,
        VolumeIndex,
        NONSENSE, //
    },
    tag,
    Admin, //
};
use crate::failure::Failure;
use hcablk_core::{
    proto::message::{
        AdminResponse,
        BUFFER_LEN, //
    },
    rdma::cq::{
        Completion,
        Handler, //
    },
};

impl Admin {
    /// Handles a received message.
    fn receive(&self, buffer: u32, completion: &Completion) {
        if completion.immediate().is_some() {
            return self.violated("it sent data that was not asked for", None);
        }
        if completion.invalidated().is_some() {
            return self.violated("it invalidated a key that it was not given", None);
        }
        let mut bytes = [0; BUFFER_LEN];
        let message = self
            .incoming
            .read(buffer as usize, completion.byte_len(), &mut bytes)
            .ok();
        let Some(response) = message.and_then(AdminResponse::decode) else {
            return self.violated(NONSENSE, None);
        };
        if self.post_receive(buffer).is_err() {
            return self.fail(Failure::Work(c"posting a receive failed"));
        }
        let (then, posted) = {
            let mut state = self.state.lock();
            let then = state.handle_response(&response);
            // Requests that waited for the target's receive buffers may be due now.
            let posted = match state.take_held_back() {
                true => self.send_due(&mut state),
                false => Ok(()),
            };
            (then, posted)
        };
        self.check(posted);
        match then {
            Ok(Then::Nothing) => {}
            Ok(Then::Begin(volume)) => {
                if let Some(waiters) = self.waiters_of(volume) {
                    waiters.reported.set();
                }
                self.owner.clone().on_news();
            }
            Ok(Then::Follow(_)) => {
                self.counts.notices.bump();
                self.owner.clone().on_news();
            }
            Ok(Then::NotifyPortals) => {
                self.counts.portal_notices.bump();
                self.owner.clone().on_news();
            }
            Ok(Then::End(_)) => self.fail(Failure::ExportEnds),
            Err(what) => return self.violated(what, Some(response.tag)),
        }
        let index = response.tag.index;
        let waiters = || self.waiters_of(VolumeIndex::of_tag(index));
        match tag::kind(index) {
            tag::ATTACH => waiters().inspect(|waiters| waiters.attach_response.set()),
            tag::FENCE => waiters().inspect(|waiters| waiters.fence_response.set()),
            tag::RESERVE => waiters().inspect(|waiters| waiters.reserve_response.set()),
            _ => None,
        };
    }
}

impl Handler for Admin {
    type Round = ();

    fn complete(&self, (): &mut (), completion: &Completion) {
        let work = completion.work();
        if !completion.is_ok() {
            if !completion.is_flushed() {
                self.fail(Failure::Work(completion.status()));
            } else if self.state.lock().life() == Life::Live {
                self.fail(Failure::Flushed);
            }
            // While connecting, a refusal flushes the receives before the event that carries its
            // reason arrives.
            return;
        }
        match work.kind {
            kind::RECEIVE => self.receive(work.index, completion),
            kind::SEND => self.state.lock().send_completed(work.index),
            _ => {}
        }
    }
}
