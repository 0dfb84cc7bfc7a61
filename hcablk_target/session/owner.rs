// SPDX-License-Identifier: GPL-2.0

//! What a session knows of whoever has it, and tells it: a volume, which is above this module.

use super::Session;
use crate::{
    queue::Queue,
    storage::reservations::{
        Asking,
        Drive, //
    }, //
};
use hcablk_core::{
    proto::{
        connect::{
            Epoch,
            SessionId, //
        },
        message::{
            ReservationInfo,
            ReservationOp,
            Status, //
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

/// Who has sessions.
pub(crate) trait SessionOwner: Send + Sync + 'static {
    /// Returns the name of the volume, for messages.
    fn volume(&self) -> &dyn kernel::fmt::Display;

    /// Returns where completions of admin queue pairs are handled.
    fn admin_completions(&self) -> &Arc<WorkQueue>;

    /// Returns where changes of reservations are made.
    fn changes(&self) -> &Arc<WorkQueue>;

    /// Returns a number that is another one, and not 0, after the target has begun or ceased to listen somewhere. Any
    /// context.
    fn portals_generation(&self) -> u32;

    /// Returns whether it is measured how long requests take.
    fn timing(&self) -> bool;

    /// Takes a session's closed queues out of `queues` and keeps what they have counted. May sleep.
    fn retire(&self, queues: &Mutex<KVec<Arc<Queue>>>) -> KVec<Arc<Queue>>;

    /// Takes queue `index` out of `queues`, as [`Self::retire`]. May sleep.
    fn retire_one(&self, queues: &Mutex<KVec<Arc<Queue>>>, index: u8) -> Option<Arc<Queue>>;

    /// Ends session `id` of `host` if it has `epoch` or one before, and lets none begin with these; returns
    /// whether nothing of it can reach the drive any more. May sleep, but does not wait for the drive.
    fn fence(&self, host: HostId, id: SessionId, epoch: Epoch) -> bool;

    /// Makes a change of the reservations of `drive`. `Draining`: it is decided, and something of hosts that were preempted, by it
    /// or before it, can still reach the drive; or it is not made, as by [`Drive::change`]. Sleeps, for as long as the file of
    /// the reservations takes.
    fn reserve(&self, asking: Asking, op: ReservationOp, drive: &Arc<Drive>) -> Status;

    /// Returns the key of registrant `index` of the drive. Fails with `Draining` while something of a host that was preempted can
    /// reach the drive, and with `Unsupported` and `Gone`. May sleep, but does not wait for the drive.
    fn read_key(&self, session: &Session, index: u32) -> Result<ReservationInfo, Status>;

    /// Tells that nothing is left of `session`. Process context.
    fn session_ended(&self, session: &Session);
}
