// SPDX-License-Identifier: GPL-2.0

//! What a volume knows of whoever lists it, and tells it: the registry, which is above this module.

use super::Volume;
use crate::{
    session::{
        end_reason::EndReason,
        Session, //
    },
    storage::claims::Claims, //
};
use hcablk_core::sync::WorkQueue;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Who lists volumes and the sessions on them.
pub(crate) trait VolumeOwner: Send + Sync + 'static {
    /// Returns where sessions end.
    fn work(&self) -> &Arc<WorkQueue>;

    /// Returns where completions of a device are handled that is a program, or is not.
    fn completions(&self, software: bool) -> &Arc<WorkQueue>;

    /// Returns what is exported.
    fn claims(&self) -> &Arc<Claims>;

    /// Forgets a volume.
    fn remove_volume(&self, volume: &Volume);

    /// Forgets a session of which nothing is left.
    fn remove_session(&self, session: &Session);

    /// Returns the sessions for which `f` holds. Fails with `ENOMEM`.
    fn sessions(&self, f: &dyn Fn(&Session) -> bool) -> Result<KVec<Arc<Session>>>;

    /// Ends the sessions for which `f` holds, because of `reason`, and waits until nothing is left
    /// of them. May sleep for as long as the drives take. Fails with `ENOMEM`; then none has ended.
    fn end_sessions(&self, reason: EndReason, f: &dyn Fn(&Session) -> bool) -> Result;

    /// Ends the sessions for which `f` holds as [`Self::end_sessions`] does, and waits for `ms` milliseconds at
    /// most; returns whether nothing is left of them. Fails with `ENOMEM`; then none has ended.
    fn end_sessions_within(
        &self,
        reason: EndReason,
        ms: u32,
        f: &dyn Fn(&Session) -> bool,
    ) -> Result<bool>;
}
