// SPDX-License-Identifier: GPL-2.0

//! The RDMA port of a session: when it goes down the session ends, so that other paths are used at
//! once, rather than when the target's silence is noticed; unless the disk would end with it.

use super::{
    Session,
    State, //
};
use crate::failure::Failure;
use hcablk_core::rdma::{
    cm::Id,
    port::{
        PortListener,
        PortWatch, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl Session {
    /// Ends when the port of `id` goes down, from here on; not if it has ended. Sleeps.
    pub(super) fn watch_port(self: &Arc<Self>, id: &Arc<Id>) -> Result {
        let watch = PortWatch::new(id, self.clone())?;
        let mut place = self.port.lock();
        if *self.state.lock() == State::Connecting {
            *place = Some(watch);
            return Ok(());
        }
        // The teardown has looked, or will find none.
        drop(place);
        drop(watch);
        Ok(())
    }

    /// Does so no more, since it ends. Sleeps.
    pub(super) fn leave_port(&self) {
        let watch = self.port.lock().take();
        drop(watch);
    }
}

impl PortListener for Session {
    /// Ends the session, if another one is to follow it or there are other paths. A disk that has
    /// none but this one may live on: the queue pairs send again what was lost, until the port is
    /// back or they have given up.
    fn port_down(self: Arc<Self>) {
        if self.head.queues_if_no_path() || self.device.has_other_paths(&self) {
            self.fail(Failure::PortDown);
        }
    }
}
