// SPDX-License-Identifier: GPL-2.0

//! What an admin queue pair tells whoever has it: a session, which is above this module.

use crate::failure::Failure;
use kernel::sync::Arc;

/// Who has an admin queue pair.
pub(crate) trait AdminOwner: Send + Sync + 'static {
    /// Ends the session because of `failure`. Any context.
    fn admin_failed(self: Arc<Self>, failure: Failure);

    /// Tells that the volume or the portals have changed: [`Admin::news`](super::Admin::news) and
    /// [`Admin::portals_news`](super::Admin::portals_news) say how. Any context.
    fn on_news(self: Arc<Self>);

    /// Returns whether the disk has yet to follow something that the session was told when it
    /// began, so that [`Self::on_news`] is to be called again and again. Any context.
    fn is_behind(&self) -> bool;
}
