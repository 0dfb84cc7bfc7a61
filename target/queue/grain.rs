// SPDX-License-Identifier: GPL-2.0

//! A grain on its way: a part of a large request's data, between drive and
//! wire. Who has it when is told in [`cut`](super::cut).

use super::{
    cut::Failure,
    grains::{
        Extent,
        GRAIN_MAX, //
    },
    kind,
    shape::CHUNK_BYTES,
    Queue, //
};
use crate::{
    io::Io,
    memory::layout::{
        count,
        length_of,
        shift_of,
        MEDIUM, //
    },
};
use hcablk_core::{
    blkdev::{
        submit,
        BioOp,
        BioOwner,
        BioSlot,
        BlockDevice,
        Status as DriveStatus, //
    },
    defer::{
        defer,
        Deferred,
        WorkSlot, //
    },
    p2p::PeerMemory,
    pages::PageRange,
    proto::message::{
        self,
        Remote, //
    },
    rdma::{
        buffer::DmaBuffer,
        wr::{
            Chain,
            Entry,
            Rdma,
            WorkId,
            WorkRequest, //
        },
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Transfer buffers that a grain has parts of, at most.
const GRAIN_CHUNKS: usize = grain_chunks(GRAIN_MAX as usize);

/// Transfer buffers that a grain of `bytes` has parts of.
pub(super) const fn grain_chunks(bytes: usize) -> usize {
    bytes.div_ceil(CHUNK_BYTES) + 1
}

/// See the module. It holds its queue until [`CutRequests::clear`](super::cut::CutRequests::clear).
pub(super) struct Grain {
    queue: Arc<Queue>,
    /// Its place at home and on the wire.
    number: u16,
    /// The request's.
    io: u32,
    op: BioOp,
    /// First byte on the volume.
    offset: u64,
    length: usize,
    /// First byte in the initiator's memory, and its key.
    remote: (u64, u32),
    /// The transfer buffers that it has parts of: borrowed ones, then the queue's own.
    lent: [Option<Arc<DmaBuffer>>; GRAIN_CHUNKS],
    chunks: [u16; GRAIN_CHUNKS],
    /// Their zone.
    zone: usize,
    /// Bytes of the first transfer buffer that are another grain's.
    skip: usize,
    peer: Option<Arc<PeerMemory>>,
    slot: BioSlot,
    work: WorkSlot<Grain>,
}

impl Grain {
    /// Makes one for grains of up to `bytes` bytes. May sleep.
    pub(super) fn new(queue: &Arc<Queue>, number: u16, bytes: usize) -> Result<KBox<Self>> {
        let grain = Self {
            queue: queue.clone(),
            number,
            io: 0,
            op: BioOp::Read,
            offset: 0,
            length: 0,
            remote: (0, 0),
            lent: [const { None }; GRAIN_CHUNKS],
            chunks: [0; GRAIN_CHUNKS],
            zone: MEDIUM,
            skip: 0,
            peer: None,
            slot: BioSlot::new(grain_chunks(bytes) as u16)?,
            work: WorkSlot::new()?,
        };
        Ok(KBox::new(grain, GFP_KERNEL)?)
    }

    /// Makes it `extent` of the data of `io`.
    pub(super) fn fill(
        &mut self,
        io: &Io,
        op: BioOp,
        whole: message::Extent,
        remote: Remote,
        extent: Extent,
    ) {
        let Extent { from, length } = extent;
        self.io = io.index;
        self.op = op;
        self.offset = whole.offset + from as u64;
        self.length = length;
        self.remote = (remote.address + from as u64, remote.key);
        self.zone = io.zone;
        let shift = shift_of(io.zone);
        self.skip = from & (length_of(io.zone) - 1);
        self.peer.clone_from(&io.peer);
        let first = from >> shift;
        let used = count(io.zone, self.skip + length);
        let places = self.lent.iter_mut().zip(self.chunks.iter_mut());
        for (index, (lent, chunk)) in (first..first + used).zip(places) {
            *lent = io.lent().get(index).cloned();
            if let Some(own) = index.checked_sub(io.lent().len()) {
                *chunk = io.own().get(own).copied().unwrap_or(0);
            }
        }
    }

    /// The parts of transfer buffers that the data is in: number (that of an own one, by which
    /// it has peer memory), buffer, first byte, and length.
    #[inline]
    fn places(&self) -> impl Iterator<Item = (u16, &DmaBuffer, usize, usize)> + '_ {
        let (unit, end) = (length_of(self.zone), self.skip + self.length);
        let used = self.lent.iter().zip(&self.chunks);
        let used = used.take(count(self.zone, end));
        used.enumerate().filter_map(move |(i, (lent, chunk))| {
            let begin = i * unit;
            let from = self.skip.saturating_sub(begin);
            let buffer = match lent {
                Some(buffer) => buffer,
                None => self.queue.buffer(*chunk)?,
            };
            Some((*chunk, buffer, from, (end - begin).min(unit) - from))
        })
    }

    /// Whether the HCA moves the data from and to RAM.
    fn wire_in_ram(&self) -> bool {
        !self.peer.as_ref().is_some_and(|memory| memory.is_mapped())
    }

    /// The peer memory that a processor copies to or from.
    fn bounce(&self) -> Option<&PeerMemory> {
        self.peer.as_deref().filter(|memory| !memory.is_mapped())
    }

    fn for_each_ram(&self, mut f: impl FnMut(u16, &DmaBuffer, usize, usize)) {
        for (chunk, buffer, from, length) in self.places() {
            f(chunk, buffer, from, length);
        }
    }

    /// Puts what the HCA is told of the data into `entries`; how many these are.
    pub(super) fn entries(&self, entries: &mut [Entry]) -> usize {
        let mut count = 0;
        let pd = self.queue.session.pd();
        for ((chunk, buffer, from, length), entry) in self.places().zip(entries) {
            let ram = || Some(Entry::new(buffer.slice_for(pd, from, length)?));
            let peer = self
                .peer
                .as_ref()
                .and_then(|p| p.entry(chunk, from, length));
            if let Some(found) = peer.or_else(ram) {
                *entry = found;
                count += 1;
            }
        }
        count
    }

    /// Starts the drive's part. Process context.
    pub(super) fn to_drive(self: KBox<Self>) {
        let (op, sector) = (self.op, self.offset >> 9);
        if let Err((_, grain)) = submit(self, op, sector) {
            grain.settle(false, Err(Failure::Drive(DriveStatus::IoErr)));
        }
    }

    /// What the drive has read goes to the initiator. Any context.
    fn deliver(self: KBox<Self>) {
        if self.wire_in_ram() {
            self.for_each_ram(|_, ram, from, length| ram.sync_for_device(from, length));
        }
        let mut entries = [Entry::EMPTY; GRAIN_CHUNKS];
        let count = self.entries(&mut entries);
        let (address, key) = self.remote;
        let mut write = Rdma::write(entries.get(..count).unwrap_or(&[]), address, key);
        let part = WorkId::new(kind::PART, self.io);
        if self.queue.all_reported {
            write.signal(part);
        } else {
            write.name(part);
        }
        let mut chain = Chain::new();
        chain.push(&mut write);
        self.queue.outbox.rang(1);
        let posted = self.queue.pair.post(&chain);
        self.settle(true, posted.map_err(|_| Failure::Wire));
    }

    /// The data of a write is here. Process context.
    pub(super) fn fetched(self: KBox<Self>) {
        if self.wire_in_ram() {
            self.for_each_ram(|_, ram, from, length| ram.sync_for_cpu(from, length));
        }
        if let Some(memory) = self.bounce() {
            self.for_each_ram(|chunk, ram, from, length| memory.copy_in(chunk, ram, from, length));
        }
        self.queue.cut.arrive(self.io);
        self.to_drive();
    }

    /// It goes home, and its request on if it was the last one. `arrived`: its data
    /// has, which nobody was told yet. Any context.
    pub(super) fn settle(mut self: KBox<Self>, arrived: bool, result: Result<(), Failure>) {
        let queue = self.queue.clone();
        self.peer = None;
        // Its request still has them: they are given back with that.
        for lent in self.lent.iter_mut() {
            match lent.take() {
                Some(_) => {}
                None => break,
            }
        }
        queue.settle_grain(self, arrived, result);
    }

    /// Its place at home and on the wire, and that of its request.
    pub(super) fn places_of(&self) -> (u32, u32) {
        (self.number.into(), self.io)
    }

    /// The initiator's memory: address and key.
    pub(super) fn remote(&self) -> (u64, u32) {
        self.remote
    }
}

hcablk_core::impl_has_slot!(Grain, slot: BioSlot);
hcablk_core::impl_has_slot!(Grain, work: WorkSlot<Grain>);

impl BioOwner for Grain {
    fn device(&self) -> Option<&BlockDevice> {
        self.queue.backing.device()
    }

    fn pages(&self) -> impl Iterator<Item = PageRange<'_>> {
        self.places()
            .filter_map(|(chunk, buffer, from, length)| match &self.peer {
                Some(memory) => memory.range(chunk, from, length),
                None => Some(buffer.pages().range(from, length)),
            })
    }

    /// Reads that are put together would be done together.
    fn apart(&self) -> bool {
        self.op == BioOp::Read
    }

    fn done(self: KBox<Self>, result: Result<(), DriveStatus>) {
        match (self.op, result) {
            (BioOp::Read, Ok(())) if self.bounce().is_some() => {
                // Too long for an interrupt handler.
                let queue = self.queue.clone();
                defer(self, queue.io_work());
            }
            (BioOp::Read, Ok(())) => self.deliver(),
            (_, result) => self.settle(false, result.map_err(Failure::Drive)),
        }
    }
}

impl Deferred for Grain {
    fn run(self: KBox<Self>) {
        if let Some(memory) = self.bounce() {
            self.for_each_ram(|chunk, ram, from, length| memory.copy_out(chunk, ram, from, length));
        }
        self.deliver();
    }
}
