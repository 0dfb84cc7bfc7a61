// SPDX-License-Identifier: GPL-2.0

//! What a session's queues and their connections ask of it and tell it.

use super::{
    Session,
    State,
    REPLACE, //
};
use crate::{
    admin::Admin,
    connect::{
        ConnectionOwner,
        Link, //
    },
    failure::Failure,
    proof::SessionProof,
    queue::{
        Queue,
        QueueConfig,
        QueueOwner, //
    },
};
use hcablk_core::{
    rdma::{
        cm::Id,
        pd::ProtectionDomain, //
    },
    sync::atomic::Release,
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl Session {
    /// Returns its protection domain. Fails with `ENODEV` when the teardown has let the RDMA device
    /// go.
    fn pd(&self) -> Result<Arc<ProtectionDomain>> {
        self.pd.lock().clone().ok_or(ENODEV)
    }
}

impl ConnectionOwner for Session {
    fn make_queue(self: Arc<Self>, index: u8, id: &Arc<Id>) -> Result<Arc<Queue>> {
        let config = QueueConfig {
            session: self.id,
            epoch: self.epoch,
            index,
            polled: index >= self.settings.queues,
            settings: self.settings,
            unflushed: self.head.unflushed().clone(),
        };
        let pd = self.pd()?;
        Queue::new(self.clone(), config, &self.requests, id, &pd, self.shape)
    }

    fn make_probe(self: Arc<Self>, id: &Arc<Id>) -> Result<Arc<Admin>, Failure> {
        let setup = |e| Failure::Setup("the admin queue pair", e);
        let tmo_s = self.settings.keep_alive_tmo_s;
        self.pd()
            .and_then(|pd| Admin::new(self.clone(), self.id, tmo_s, id, &pd))
            .map_err(setup)
    }

    fn make_admin(self: Arc<Self>, id: &Arc<Id>) -> Result<Arc<Admin>, Failure> {
        let admin = self.clone().make_probe(id)?;
        if let Err(e) = self.watch_port(id) {
            admin.close();
            return Err(Failure::Setup("the watch of the port", e));
        }
        let mut place = self.admin.lock();
        if *self.state.lock() == State::Connecting {
            *place = Some(admin.clone());
            return Ok(admin);
        }
        drop(place);
        admin.close();
        Err(self.failure().unwrap_or(Failure::Disconnected))
    }

    fn proof(&self) -> Option<Arc<SessionProof>> {
        self.proof.lock().clone()
    }

    fn set_proof(&self, proof: Arc<SessionProof>) {
        *self.proof.lock() = Some(proof);
    }

    fn add_queue(&self, queue: &Arc<Queue>) -> Result<(), Failure> {
        let mut queues = self.queues.lock();
        let state = *self.state.lock();
        let result = match state {
            State::Connecting => queues
                .push(queue.clone(), GFP_KERNEL)
                .map_err(|e| Failure::Setup("a queue pair", e.into())),
            State::Ending(failure) | State::Ended(failure) => {
                Err(failure.unwrap_or(Failure::Disconnected))
            }
            State::Live => Err(Failure::Setup("a queue pair", EBUSY)),
        };
        drop(queues);
        if result.is_err() {
            queue.close();
        }
        result
    }

    fn responder_resources(&self) -> u8 {
        self.pd().map_or(0, |pd| pd.attributes().max_qp_rd_atom)
    }

    fn has_coming(&self, link: Option<&Arc<Link>>) -> Result<(), Failure> {
        *self.coming.lock() = link.cloned();
        // Whoever ends it looks for the link after that.
        match self.state.lock().reason() {
            None => Ok(()),
            Some(failure) => Err(failure.unwrap_or(Failure::Disconnected)),
        }
    }

    fn connection_closed(self: Arc<Self>) {
        self.fail(Failure::Disconnected);
    }

    fn interrupted(self: Arc<Self>, failure: Failure) {
        self.fail(failure);
    }

    fn device_removed(self: Arc<Self>) {
        self.device_removed.store(true, Release);
        self.fail(Failure::DeviceRemoved);
        self.owner.device_removed(&self);
    }
}

impl QueueOwner for Session {
    fn admin(&self) -> Option<Arc<Admin>> {
        Self::admin(self)
    }

    fn queue_failed(self: Arc<Self>, failure: Failure) {
        self.fail(failure);
    }

    /// Starts replacing the queue pair of `queue`.
    fn queue_timed_out(self: Arc<Self>, queue: &Queue, tag: u16) {
        if !self.is_admitted() {
            // Its replacement would be a path of the disk without having been admitted.
            self.fail(Failure::RequestTimeout);
        } else if queue.mark_timed_out(tag) {
            pr_warn!(
                "{}: queue {} of path {} does not answer in time\n",
                *self.owner,
                queue.index(),
                self.path()
            );
            // If that is queued already it has yet to look.
            let _ = self
                .workqueues
                .teardown()
                .enqueue::<_, REPLACE>(self.clone());
        }
    }

    fn requests_wait(&self) -> bool {
        self.head.requests_wait()
    }

    fn no_other_session(&self) {
        self.head.queue_if_no_path(false);
    }

    fn has_lost_writes(&self) -> bool {
        self.head.has_lost_writes()
    }

    fn tell_loss(&self) {
        self.head.tell_loss();
    }

    fn errno(&self) -> i32 {
        Self::errno(self)
    }
}
