// SPDX-License-Identifier: GPL-2.0

//! The RDMA port of a session: when it goes down the session ends at once, rather than when the
//! initiator's silence is noticed. So what it holds is free, and a drive has finished what it
//! began, by the time that the initiator comes back, by this port or by another one.

use super::{
    end_reason::EndReason,
    Session, //
};
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
    /// Ends when the port of `id` goes down, from here on; not if it is ending. Sleeps.
    pub(super) fn watch_port(self: &Arc<Self>, id: &Arc<Id>) -> Result {
        let watch = PortWatch::new(id, self.clone())?;
        let mut place = self.port.lock();
        if self.state.lock().is_live() {
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
    fn port_down(self: Arc<Self>) {
        self.end(EndReason::PortDown);
    }
}
