// SPDX-License-Identifier: GPL-2.0

//! What a session's queues and their connections ask of it and tell it.

use super::{
    Session,
    State,
    REPLACE, //
};
use crate::{
    admin::Admin,
    connect::Link,
    failure::Failure,
    io::{
        Queue,
        QueueConfig, //
    },
    proof::SessionProof, //
};
use hcablk_core::{
    rdma::{
        cm::Id,
        pd::ProtectionDomain, //
    },
    sync::atomic::Release, //
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

impl Session {
    /// Makes queue pair `index` of the connection `id`. May sleep. Fails as verbs do, and with
    /// `ENOMEM`.
    pub(crate) fn make_queue(self: Arc<Self>, index: u8, id: &Arc<Id>) -> Result<Arc<Queue>> {
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

    /// Makes a queue pair like that of the connection `id`, which the target will refuse, and does
    /// not have it.
    pub(crate) fn make_probe(self: Arc<Self>, id: &Arc<Id>) -> Result<Arc<Admin>, Failure> {
        let setup = |e| Failure::Setup("the admin queue pair", e);
        let tmo_s = self.settings.keep_alive_tmo_s;
        self.pd()
            .and_then(|pd| Admin::new(self.clone(), self.id, tmo_s, id, &pd))
            .map_err(setup)
    }

    /// Makes the admin queue pair of the connection `id`, and has it. As [`Self::make_queue`].
    pub(crate) fn make_admin(self: Arc<Self>, id: &Arc<Id>) -> Result<Arc<Admin>, Failure> {
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

    /// Returns by what it proves that requests are its own, if it does.
    pub(crate) fn proof(&self) -> Option<Arc<SessionProof>> {
        self.proof.lock().clone()
    }

    /// Has it prove that from now on.
    pub(crate) fn set_proof(&self, proof: Arc<SessionProof>) {
        *self.proof.lock() = Some(proof);
    }

    /// Adds the next queue pair. It belongs to the teardown even if this fails
    /// because the session is ending: then it is torn down here.
    pub(crate) fn add_queue(&self, queue: &Arc<Queue>) -> Result<(), Failure> {
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

    /// Returns how many RDMA READs of the target the device answers at a time.
    pub(crate) fn responder_resources(&self) -> u8 {
        self.pd().map_or(0, |pd| pd.attributes().max_qp_rd_atom)
    }

    /// Has `link`, by which a queue pair comes up in place of another one, told when the owner
    /// ends; `None`: not any more. Fails if the owner has ended.
    pub(crate) fn has_coming(&self, link: Option<&Arc<Link>>) -> Result<(), Failure> {
        *self.coming.lock() = link.cloned();
        // Whoever ends it looks for the link after that.
        match self.state.lock().reason() {
            None => Ok(()),
            Some(failure) => Err(failure.unwrap_or(Failure::Disconnected)),
        }
    }

    /// Tells that the target has closed a connection. Any context.
    pub(crate) fn connection_closed(self: Arc<Self>) {
        self.fail(Failure::Disconnected);
    }

    /// Tells that the RDMA device goes away. The connection manager's callback, which may sleep,
    /// but not for the end of one.
    pub(crate) fn device_removed(self: Arc<Self>) {
        self.device_removed.store(true, Release);
        self.fail(Failure::DeviceRemoved);
        self.device.device_removed(&self);
    }
}

impl Session {
    /// Starts replacing the queue pair of `queue`, since its request `tag` was not answered in
    /// time. Any context.
    pub(crate) fn queue_timed_out(self: Arc<Self>, queue: &Queue, tag: u16) {
        if !self.is_admitted() {
            // Its replacement would be a path of the disk without having been admitted.
            self.fail(Failure::RequestTimeout);
        } else if queue.mark_timed_out(tag) {
            pr_warn!(
                "{}: queue {} of path {} does not answer in time\n",
                *self.device,
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

    /// Returns whether requests wait for another session when this one has ended.
    pub(crate) fn requests_wait(&self) -> bool {
        self.head.requests_wait()
    }

    /// Has requests wait for no other session. Any context.
    pub(crate) fn no_other_session(&self) {
        self.head.queue_if_no_path(false);
    }

    /// Returns whether flushes and writes with FUA fail, since the target has lost writes that it
    /// acknowledged. Any context.
    pub(crate) fn has_lost_writes(&self) -> bool {
        self.head.has_lost_writes()
    }

    /// Records that one was refused because of that. Any context.
    pub(crate) fn tell_loss(&self) {
        self.head.tell_loss();
    }
}
