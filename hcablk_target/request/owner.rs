// SPDX-License-Identifier: GPL-2.0

//! What a request knows of whoever has it, and tells it: a queue, which is above this module.

use super::Io;
use hcablk_core::{
    blkdev::{
        BlockDevice,
        FileRef,
        Status, //
    },
    memory::eager_ring::EagerRing,
    p2p::PeerMemory,
    proto::connect::SessionId,
    rdma::buffer::DmaBuffer, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Who has requests.
pub(crate) trait Owner: Sized + Send + Sync + 'static {
    /// Returns which session it is of, for trace events.
    fn session_id(&self) -> SessionId;

    /// Returns which of the session's queue pairs it is, for trace events.
    fn index(&self) -> u8;

    /// Returns its own transfer buffer `number`.
    fn buffer(&self, number: u16) -> Option<&DmaBuffer>;

    /// Returns the inline data of the request in receive buffer `receive`.
    fn inline_data(&self, receive: u32) -> Option<&DmaBuffer>;

    /// Returns the eager ring, if there is one.
    fn eager_ring(&self) -> Option<&EagerRing>;

    /// Returns a reference to the peer memory beside the transfer buffers, if there is any.
    fn peer_memory(&self) -> Option<Arc<PeerMemory>>;

    /// Returns the block device that requests go to, if it is one.
    fn device(&self) -> Option<&BlockDevice>;

    /// Returns the way to the page cache.
    fn file(&self) -> FileRef<'_>;

    /// Handles the end of a bio of `io`. Any context, hard interrupts included.
    fn bio_done(io: KBox<Io<Self>>, result: Result<(), Status>);

    /// Handles the end of I/O of `io` that a file system has gone on with. Any context, hard
    /// interrupts included.
    fn file_done(io: KBox<Io<Self>>, result: Result);

    /// Continues with `io` on the workqueue, by its [`step`](Io::step). Process context; may sleep
    /// for as long as the drive takes.
    fn run_deferred(io: KBox<Io<Self>>);
}
