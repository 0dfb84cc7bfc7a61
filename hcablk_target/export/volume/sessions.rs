// SPDX-License-Identifier: GPL-2.0

//! What the sessions on a volume ask of it and tell it.

use super::Volume;
use crate::{
    queue::Queue,
    session::{
        Session,
        SessionOwner, //
    }, //
};
use hcablk_core::{
    proto::{
        connect::{
            Epoch,
            SessionId, //
        },
        name::HostId, //
    },
    sync::WorkQueue, //
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

impl SessionOwner for Volume {
    fn volume(&self) -> &dyn kernel::fmt::Display {
        self
    }

    fn teardown(&self) -> &Arc<WorkQueue> {
        self.owner.work()
    }

    fn admin_completions(&self) -> &Arc<WorkQueue> {
        self.owner.admin_completions()
    }

    fn timing(&self) -> bool {
        Self::timing(self)
    }

    /// Does so under the lock of the sums: who sums up meanwhile has each queue once.
    fn retire(&self, queues: &Mutex<KVec<Arc<Queue>>>) -> KVec<Arc<Queue>> {
        let past = self.past.lock();
        let queues = core::mem::take(&mut *queues.lock());
        for queue in queues.iter() {
            past.absorb(queue);
        }
        queues
    }

    fn retire_one(&self, queues: &Mutex<KVec<Arc<Queue>>>, index: u8) -> Option<Arc<Queue>> {
        let past = self.past.lock();
        let mut queues = queues.lock();
        let place = queues.iter().position(|queue| queue.index() == index)?;
        let queue = queues.remove(place).ok()?;
        past.absorb(&queue);
        Some(queue)
    }

    fn fence(&self, host: HostId, id: SessionId, epoch: Epoch) -> bool {
        self.fence_session(host, id, epoch)
    }

    fn session_ended(&self, session: &Session) {
        self.owner.remove_session(session);
    }
}
