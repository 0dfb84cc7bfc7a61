// SPDX-License-Identifier: GPL-2.0

//! What its requests and the drive's part of these ask of a queue and tell it.

use super::{
    Io,
    Queue, //
};
use crate::{
    request::Owner,
    storage::{
        backing::Backing,
        flush_errors::Teller,
        submit,
        write_errors::WriteErrors,
        Completion, //
    }, //
};
use hcablk_core::{
    blkdev::{
        BlockDevice,
        FileRef,
        Status as DriveStatus, //
    },
    memory::eager_ring::EagerRing,
    p2p::{
        PeerLease,
        PeerMemory, //
    },
    proto::{
        connect::SessionId,
        message::Status, //
    },
    rdma::buffer::DmaBuffer,
    sync::atomic::Relaxed, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl Owner for Queue {
    fn session_id(&self) -> SessionId {
        self.session
    }

    fn index(&self) -> u8 {
        self.index
    }

    #[inline]
    fn buffer(&self, number: u16) -> Option<&DmaBuffer> {
        Self::buffer(self, number)
    }

    #[inline]
    fn inline_data(&self, receive: u32) -> Option<&DmaBuffer> {
        Self::inline_data(self, receive)
    }

    #[inline]
    fn eager_ring(&self) -> Option<&EagerRing> {
        Self::eager_ring(self)
    }

    #[inline]
    fn peer_memory(&self) -> Option<Arc<PeerMemory>> {
        self.lease.as_ref()?.memory()
    }

    #[inline]
    fn device(&self) -> Option<&BlockDevice> {
        self.backing.device()
    }

    #[inline]
    fn file(&self) -> FileRef<'_> {
        self.backing.file()
    }

    #[inline]
    fn bio_done(io: KBox<Io>, result: Result<(), DriveStatus>) {
        submit::bio_done(io, result);
    }

    #[inline]
    fn file_done(io: KBox<Io>, result: Result) {
        submit::file_done(io, result);
    }

    #[inline]
    fn run_deferred(io: KBox<Io>) {
        submit::run_deferred(io);
    }
}

impl Completion for Queue {
    fn volume(&self) -> &dyn kernel::fmt::Display {
        self.owner.volume()
    }

    #[inline]
    fn backing(&self) -> &Backing {
        &self.backing
    }

    #[inline]
    fn write_errors(&self) -> &WriteErrors {
        &self.write_errors
    }

    #[inline]
    fn teller(&self) -> Teller {
        self.teller
    }

    #[inline]
    fn initiator_flushes(&self) -> bool {
        self.flushes.load(Relaxed)
    }

    #[inline]
    fn capacity(&self) -> u64 {
        Self::capacity(self)
    }

    #[inline]
    fn view(&self) -> Option<&PeerLease> {
        self.view.as_ref()
    }

    #[inline]
    fn write_sges(&self) -> usize {
        self.shape.write_sges
    }

    #[inline]
    fn read_chunks(&self, io: KBox<Io>) {
        Self::read_chunks(self, io);
    }

    /// Answers the request.
    #[inline]
    fn drive_done(&self, io: KBox<Io>, status: Status) {
        self.answer(io, status);
    }
}
