// SPDX-License-Identifier: GPL-2.0

//! What a volume knows of whoever lists it, and tells it: the registry, which is above this module.

use super::Volume;
use crate::{
    session::{
        end_reason::EndReason,
        Session, //
    },
    storage::{
        claims::Claims,
        reservations::Drives, //
    },
};
use hcablk_core::sync::WorkQueue;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Who lists volumes and the sessions on them.
pub(crate) trait VolumeOwner: Send + Sync + 'static {
    /// Returns where completions of admin queue pairs are handled.
    fn admin_completions(&self) -> &Arc<WorkQueue>;

    /// Returns where changes of reservations are made.
    fn changes(&self) -> &Arc<WorkQueue>;

    /// Returns what is exported.
    fn claims(&self) -> &Arc<Claims>;

    /// Returns the reservations of what is exported.
    fn drives(&self) -> &Arc<Drives>;

    /// Returns a number that is another one, and not 0, after the target has begun or ceased to listen somewhere. Any
    /// context.
    fn portals_generation(&self) -> u32;

    /// Forgets a volume.
    fn remove_volume(&self, volume: &Volume);

    /// Forgets a session of which nothing is left.
    fn remove_session(&self, session: &Session);

    /// Returns the sessions for which `f` holds. Fails with `ENOMEM`.
    fn sessions(&self, f: &dyn Fn(&Session) -> bool) -> Result<KVec<Arc<Session>>>;

    /// Ends the sessions for which `f` holds, because of `reason`, and waits for none. Allocates
    /// nothing: who may not use a volume any more does not go on for want of memory. May sleep.
    fn end_sessions(&self, reason: EndReason, f: &dyn Fn(&Session) -> bool);

    /// Ends the sessions for which `f` holds, and those that are ending, too, are marked as preempted by `number`.
    /// Allocates nothing, and waits for none. May sleep.
    fn preempt_sessions(&self, number: u64, f: &dyn Fn(&Session) -> bool);

    /// Waits until nothing is left of those sessions for which `f` holds that end. May sleep for as
    /// long as the drives take.
    fn wait_for_ends(&self, f: &dyn Fn(&Session) -> bool);

    /// Waits for that, but for `ms` milliseconds at most; returns whether nothing is left of them. May sleep.
    fn wait_for_ends_within(&self, ms: u32, f: &dyn Fn(&Session) -> bool) -> bool;
}
