// SPDX-License-Identifier: GPL-2.0

//! Moves a chunk, a part of a large request's data, between the drive and the
//! initiator. Who owns it when is described in [`chunked`](super::chunked).

use super::{
    kind,
    Io,
    Queue, //
};
use crate::{
    memory::layout::{
        count,
        length_of,
        shift_of,
        BUFFER_BYTES,
        MEDIUM, //
    },
    request::{
        chunks::Failure,
        split::{
            ChunkSpan,
            CHUNK_MAX, //
        },
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
    memory::pages::PageRange,
    p2p::PeerMemory,
    proto::message::{
        self,
        Remote,
        Tag, //
    },
    rdma::{
        buffer::DmaBuffer,
        wr::{
            Chain,
            Rdma,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
    report::trace,
    sync::defer::{
        defer,
        Deferred,
        WorkSlot, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Transfer buffers that a chunk has parts of, at most.
const CHUNK_BUFFERS: usize = chunk_buffers(CHUNK_MAX as usize);

/// Returns how many transfer buffers a chunk of `bytes` has parts of.
pub(super) const fn chunk_buffers(bytes: usize) -> usize {
    bytes.div_ceil(BUFFER_BYTES) + 1
}

/// One chunk of a large request, with its bio. It holds its queue until [`ChunkedRequests::clear`](super::chunked::ChunkedRequests::clear).
pub(super) struct Chunk {
    queue: Arc<Queue>,
    /// Its index in the tables of idle chunks and of RDMA READs.
    number: u16,
    /// The request's.
    io: u32,
    /// What its request is called on the wire.
    tag: Tag,
    op: BioOp,
    /// First byte of the request's data.
    from: usize,
    /// First byte on the volume.
    offset: u64,
    length: usize,
    /// First byte in the initiator's memory, and its key.
    remote: (u64, u32),
    /// The transfer buffers that it has parts of: shared ones, then the queue's own.
    shared: [Option<Arc<DmaBuffer>>; CHUNK_BUFFERS],
    own: [u16; CHUNK_BUFFERS],
    /// Their size class.
    size_class: usize,
    /// Bytes of the first transfer buffer that are another chunk's.
    skip: usize,
    peer: Option<Arc<PeerMemory>>,
    slot: BioSlot,
    work: WorkSlot<Chunk>,
}

impl Chunk {
    /// Stands for no chunk.
    pub(super) const NOT_TRACED: trace::Chunk = trace::Chunk {
        session: 0,
        queue: 0,
        tag: Tag {
            index: 0,
            generation: 0,
        },
        kind: trace::Kind::Bad,
        offset: 0,
        from: 0,
        bytes: 0,
        memory: trace::Memory::None,
        status: 0,
    };

    /// Returns what trace events report of it.
    #[cold]
    pub(super) fn about(&self) -> trace::Chunk {
        trace::Chunk {
            session: self.queue.session.0,
            queue: self.queue.index,
            tag: self.tag,
            kind: match self.op {
                BioOp::Read => trace::Kind::Read,
                _ => trace::Kind::Write,
            },
            offset: self.offset,
            from: self.from as u32,
            bytes: self.length as u32,
            memory: trace::Memory::of(self.peer.as_ref().map(|memory| memory.is_mapped())),
            status: 0,
        }
    }

    /// Makes a chunk of up to `bytes` bytes. May sleep.
    pub(super) fn new(queue: &Arc<Queue>, number: u16, bytes: usize) -> Result<KBox<Self>> {
        let chunk = Self {
            queue: queue.clone(),
            number,
            io: 0,
            tag: Self::NOT_TRACED.tag,
            op: BioOp::Read,
            from: 0,
            offset: 0,
            length: 0,
            remote: (0, 0),
            shared: [const { None }; CHUNK_BUFFERS],
            own: [0; CHUNK_BUFFERS],
            size_class: MEDIUM,
            skip: 0,
            peer: None,
            slot: BioSlot::new(chunk_buffers(bytes) as u16)?,
            work: WorkSlot::new()?,
        };
        Ok(KBox::new(chunk, GFP_KERNEL)?)
    }

    /// Makes the chunk the part `span` of the data of `io`.
    pub(super) fn fill(
        &mut self,
        io: &Io,
        op: BioOp,
        whole: message::Extent,
        remote: Remote,
        span: ChunkSpan,
    ) {
        let ChunkSpan { from, length } = span;
        self.io = io.index;
        self.tag = io.tag;
        self.from = from;
        self.op = op;
        self.offset = whole.offset + from as u64;
        self.length = length;
        self.remote = (remote.address + from as u64, remote.key);
        self.size_class = io.size_class;
        let shift = shift_of(io.size_class);
        self.skip = from & (length_of(io.size_class) - 1);
        self.peer.clone_from(&io.peer);
        let first = from >> shift;
        let used = count(io.size_class, self.skip + length);
        let places = self.shared.iter_mut().zip(self.own.iter_mut());
        for (index, (shared, number)) in (first..first + used).zip(places) {
            *shared = io.shared().get(index).cloned();
            if let Some(own) = index.checked_sub(io.shared().len()) {
                *number = io.own().get(own).copied().unwrap_or(0);
            }
        }
    }

    /// Iterates over the parts of transfer buffers that the data is in: number (that of an own one,
    /// by which it has peer memory), buffer, first byte, and length.
    #[inline]
    fn places(&self) -> impl Iterator<Item = (u16, &DmaBuffer, usize, usize)> + '_ {
        let (unit, end) = (length_of(self.size_class), self.skip + self.length);
        let used = self.shared.iter().zip(&self.own);
        let used = used.take(count(self.size_class, end));
        used.enumerate().filter_map(move |(i, (shared, number))| {
            let begin = i * unit;
            let from = self.skip.saturating_sub(begin);
            let buffer = match shared {
                Some(buffer) => buffer,
                None => self.queue.buffer(*number)?,
            };
            Some((*number, buffer, from, (end - begin).min(unit) - from))
        })
    }

    /// Returns whether the HCA moves the data from and to RAM.
    fn wire_in_ram(&self) -> bool {
        !self.peer.as_ref().is_some_and(|memory| memory.is_mapped())
    }

    /// Returns the peer memory that a processor copies to or from.
    fn bounce(&self) -> Option<&PeerMemory> {
        self.peer.as_deref().filter(|memory| !memory.is_mapped())
    }

    fn for_each_ram(&self, mut f: impl FnMut(u16, &DmaBuffer, usize, usize)) {
        for (number, buffer, from, length) in self.places() {
            f(number, buffer, from, length);
        }
    }

    /// Fills `sges` with the scatter-gather entries of the data, and returns how many these are.
    pub(super) fn sges(&self, sges: &mut [Sge]) -> usize {
        let mut count = 0;
        let pd = &self.queue.pd;
        for ((number, buffer, from, length), sge) in self.places().zip(sges) {
            let ram = || Some(Sge::new(buffer.slice_for(pd, from, length)?));
            let peer = self.peer.as_ref().and_then(|p| p.sge(number, from, length));
            if let Some(found) = peer.or_else(ram) {
                *sge = found;
                count += 1;
            }
        }
        count
    }

    /// Submits the chunk's bio to the drive. Process context.
    pub(super) fn to_drive(self: KBox<Self>) {
        let (op, sector) = (self.op, self.offset >> 9);
        trace::target::chunk_drive_start(|| self.about());
        if let Err((_, chunk)) = submit(self, op, sector) {
            chunk.settle(false, Err(Failure::Drive(DriveStatus::IoErr)));
        }
    }

    /// Posts the RDMA WRITE of what the drive has read. Any context.
    fn post_write(self: KBox<Self>) {
        if self.wire_in_ram() {
            self.for_each_ram(|_, ram, from, length| ram.sync_for_device(from, length));
        }
        let mut sges = [Sge::EMPTY; CHUNK_BUFFERS];
        let count = self.sges(&mut sges);
        let (address, key) = self.remote;
        let mut write = Rdma::write(sges.get(..count).unwrap_or(&[]), address, key);
        let part = WorkId::new(kind::PART, self.io);
        trace::target::chunk_posted(|| self.about());
        let is_traced = trace::wants_chunk_completions();
        if is_traced {
            self.note_write();
            write.signal(WorkId::new(kind::CHUNK_WRITTEN, self.number.into()));
        } else if self.queue.all_reported {
            write.signal(part);
        } else {
            write.name(part);
        }
        let mut chain = Chain::new();
        chain.push(&mut write);
        self.queue.batcher.rang(1);
        let posted = self.queue.pair.post(&chain);
        if is_traced {
            // The completion queue may be armed for solicited events only.
            self.queue.pair.cq().kick();
        }
        self.settle(true, posted.map_err(|_| Failure::Wire));
    }

    #[cold]
    fn note_write(&self) {
        let about = self.about();
        self.queue.chunked.note_write(self.number, self.io, about);
    }

    /// Passes the data of a write, which has arrived, on to the drive. Process
    /// context.
    pub(super) fn fetched(self: KBox<Self>) {
        if self.wire_in_ram() {
            self.for_each_ram(|_, ram, from, length| ram.sync_for_cpu(from, length));
        }
        if let Some(memory) = self.bounce() {
            self.for_each_ram(|number, ram, from, length| {
                memory.copy_in(number, ram, from, length)
            });
        }
        self.queue.chunked.arrive(self.io);
        self.to_drive();
    }

    /// Makes the chunk idle, and continues its request if it was the last one.
    /// `arrived`: its data has arrived, which is not counted yet. Any context.
    pub(super) fn settle(mut self: KBox<Self>, arrived: bool, result: Result<(), Failure>) {
        let queue = self.queue.clone();
        self.peer = None;
        // Its request still has them: they are given back with that.
        for shared in self.shared.iter_mut() {
            match shared.take() {
                Some(_) => {}
                None => break,
            }
        }
        queue.settle_chunk(self, arrived, result);
    }

    /// Returns its index in the queue's tables, and that of its request.
    pub(super) fn places_of(&self) -> (u32, u32) {
        (self.number.into(), self.io)
    }

    /// Returns the initiator's memory: address and key.
    pub(super) fn remote(&self) -> (u64, u32) {
        self.remote
    }
}

hcablk_core::impl_has_slot!(Chunk, slot: BioSlot);
hcablk_core::impl_has_slot!(Chunk, work: WorkSlot<Chunk>);

impl BioOwner for Chunk {
    fn device(&self) -> Option<&BlockDevice> {
        self.queue.backing.device()
    }

    fn pages(&self) -> impl Iterator<Item = PageRange<'_>> {
        self.places()
            .filter_map(|(number, buffer, from, length)| match &self.peer {
                Some(memory) => memory.range(number, from, length),
                None => Some(buffer.pages().range(from, length)),
            })
    }

    /// Reads that are put together would be done together.
    fn apart(&self) -> bool {
        self.op == BioOp::Read
    }

    fn done(self: KBox<Self>, result: Result<(), DriveStatus>) {
        trace::target::chunk_drive_end(|| {
            let status = result.err().map_or(0, DriveStatus::to_errno);
            self.about().ended(status)
        });
        match (self.op, result) {
            (BioOp::Read, Ok(())) if self.bounce().is_some() => {
                // Too long for an interrupt handler.
                let queue = self.queue.clone();
                defer(self, queue.io_work());
            }
            (BioOp::Read, Ok(())) => self.post_write(),
            (BioOp::Read, Err(status)) => {
                // As for a read in one piece: `note_failure` of `storage/submit.rs`.
                if self.wire_in_ram() {
                    self.for_each_ram(|_, ram, from, length| ram.sync_for_device(from, length));
                }
                self.settle(false, Err(Failure::Drive(status)));
            }
            (_, result) => self.settle(false, result.map_err(Failure::Drive)),
        }
    }
}

impl Deferred for Chunk {
    fn run(self: KBox<Self>) {
        if let Some(memory) = self.bounce() {
            self.for_each_ram(|number, ram, from, length| {
                memory.copy_out(number, ram, from, length)
            });
        }
        self.post_write();
    }
}
