// SPDX-License-Identifier: GPL-2.0

//! What the drive's part of requests asks of whoever has these, and tells it: a queue, which is above
//! this module.

use super::{
    backing::Backing,
    flush_errors::Teller,
    write_errors::WriteErrors, //
};
use crate::request::{
    Io,
    Owner, //
};
use hcablk_core::{
    p2p::PeerLease,
    proto::message::Status, //
};
use kernel::prelude::*;

/// Who has the drive's part of its requests done.
pub(crate) trait Completion: Owner {
    /// Returns the name of the volume, for messages.
    fn volume(&self) -> &dyn kernel::fmt::Display;

    /// Returns what the volume is made of.
    fn backing(&self) -> &Backing;

    /// Returns which errors of the session's writes are still to be told.
    fn write_errors(&self) -> &WriteErrors;

    /// Returns which session tells them, among those of the disk.
    fn teller(&self) -> Teller;

    /// Returns whether the session's initiator sends flushes: else a write is on stable media before it is answered.
    fn initiator_flushes(&self) -> bool;

    /// Returns the bytes of the volume at this moment, in whole blocks; 0 if the drive is gone.
    fn capacity(&self) -> u64;

    /// Returns the cache's lines for the HCA that answers, if it does DMA to them.
    fn view(&self) -> Option<&PeerLease>;

    /// Returns the pieces of memory that the HCA gathers by one RDMA WRITE.
    fn write_sges(&self) -> usize;

    /// Reads the data of `io` from the drive by chunks. Process context: submission may sleep.
    fn read_chunks(&self, io: KBox<Io<Self>>);

    /// Tells that the drive's part of `io` has ended with `status`. Any context.
    fn drive_done(&self, io: KBox<Io<Self>>, status: Status);
}
