// SPDX-License-Identifier: GPL-2.0

//! What an admin queue pair knows of whoever has it, and tells it: a session, which is above this module.

use crate::queue::Fault;
use hcablk_core::proto::{
    connect::Epoch,
    message::{
        ReservationInfo,
        ReservationOp,
        Status,
        Tag,
        VolumeLimits,
        VolumeState, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// What a volume is at one moment.
pub(crate) struct VolumeNow {
    pub(crate) state: VolumeState,
    pub(crate) limits: VolumeLimits,
    /// A later one, modulo 2^32, when anything of both has changed. Not 0.
    pub(crate) generation: u32,
}

/// Who has an admin queue pair.
pub(crate) trait AdminOwner: Send + Sync + 'static {
    /// Returns what the volume is now; `None`: its drive is gone, or the session ends. May sleep, but does not wait for the
    /// drive.
    fn volume_now(&self) -> Option<VolumeNow>;

    /// Records that the initiator knows of a volatile write cache or of none (`None`: it knows what it was told when the session
    /// began), and whether its disk sends `flushes`. Any context.
    fn set_flushes(&self, cache: Option<bool>, flushes: bool);

    /// Returns a number that is another one, and not 0, after the target has begun or ceased to listen somewhere. Any
    /// context.
    fn portals_generation(&self) -> u32;

    /// Ends the session of the same disk on another path if it has `epoch` or one before, and lets none
    /// begin with these; returns whether nothing of it can reach the drive any more, `EINVAL` if the path is
    /// the session's own. May sleep, but does not wait for the drive.
    fn fence(&self, path: u8, epoch: Epoch) -> Result<bool>;

    /// Returns whether all is durable that was acknowledged; `None`: not yet, or the session is not being withdrawn. Process
    /// context.
    fn durable(&self) -> Option<bool>;

    /// Tells that the initiator has got that for an answer. Any context.
    fn durable_told(&self);

    /// Begins to make a change of the drive's reservations, as the initiator asks by `sequence`. `tag` is answered when
    /// that is made ([`answer_change`](super::Admin::answer_change)). Fails with how it ends if it is not begun. May sleep, but
    /// does not wait for a file.
    fn reserve(&self, tag: Tag, sequence: u32, op: ReservationOp) -> Result<(), Status>;

    /// Returns the key of registrant `index` of the drive; or its reservation if that is `None`. May sleep. Fails with
    /// `Unsupported`, `Gone`, and for a key with `Draining`.
    fn reservation(&self, index: Option<u32>) -> Result<ReservationInfo, Status>;

    /// Ends the session because of `fault`. Any context.
    fn admin_failed(self: Arc<Self>, fault: Fault);
}
