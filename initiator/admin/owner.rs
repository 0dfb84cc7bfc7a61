// SPDX-License-Identifier: GPL-2.0

//! The calls of an admin queue pair to its owner: a session, which is above this module.

use crate::failure::Failure;
use kernel::sync::Arc;

/// The owner of an admin queue pair.
pub(crate) trait AdminOwner: Send + Sync + 'static {
    /// Ends the session because of `failure`. Any context.
    fn admin_failed(self: Arc<Self>, failure: Failure);

    /// Reports a change of a volume or the portals:
    /// [`AdminVolume::news`](super::AdminVolume::news) and
    /// [`Admin::portals_news`](super::Admin::portals_news) return it. Any context.
    fn on_news(self: Arc<Self>);

    /// Returns whether a disk has not followed the initial report to the session yet, so that
    /// [`Self::on_news`] must be called repeatedly. Process context.
    fn is_behind(&self) -> bool;
}
