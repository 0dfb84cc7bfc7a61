// SPDX-License-Identifier: GPL-2.0

//! Handles messages of the target on an admin queue pair. Softirq context, one call at a time.

use super::{
    kind,
    life::Life,
    state::{
        Then,
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
        let then = self.state.lock().handle_response(&response);
        match then {
            Ok(Then::Nothing) => {}
            Ok(Then::Begin(_)) => {
                self.reported.set();
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
        match tag::kind(response.tag.index) {
            tag::ATTACH => self.attach_response.set(),
            tag::FENCE => self.fence_response.set(),
            tag::RESERVE => self.reserve_response.set(),
            _ => {}
        }
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
