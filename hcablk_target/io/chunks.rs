// SPDX-License-Identifier: GPL-2.0

//! Moves a large request in chunks, so that drive and network work at the same time.
//! [`split`](super::split) describes how requests are split, and the states of a chunk.
//!
//! ```text
//!  read:   all chunks to the drive, under one plug ── each: done ──► RDMA WRITE ──┐
//!  write:  an RDMA READ each, a doorbell for a MiB ─── each: here ──► drive ──────┴─► settled
//!                                                               the last one settled ──► response
//! ```
//!
//! # Ownership
//!
//! A [`Chunk`] has everything it needs: a bio, a copy of the request's extent and key, the numbers
//! of its transfer buffers. It has one owner at a time: the table of idle chunks
//! (`ChunkedRequests::idle`), the drive, the table of RDMA READs (`ChunkedRequests::rdma_reads`;
//! chunks of writes only), or the workqueue (a bounce of mode p2p, or a bio for which the drive had
//! no room). Its request meanwhile is in `Queue::chunked`, with its progress; the function that
//! settles the last chunk gets the request. A chunk becomes idle before it settles: when the
//! request can end, all its chunks can be used again.
//!
//! # Send queue
//!
//! The work request of a chunk's RDMA WRITE is not signaled: the completion of the response, which
//! follows it in the send queue, covers it. A chunk belongs to its request from admission until the
//! request is idle again. So the send queue needs exactly one slot for each existing chunk
//! (`QueueShape::chunks`), in addition to the slots of every request. RDMA READs are signaled, and
//! complete before the drive begins. While the tracepoint `chunk_completed` is enabled, the RDMA
//! WRITEs are signaled, too: the completion queue has room for all work requests that can be posted
//! (`Capacity::completions`).
//!
//! # Requests that are not split
//!
//! Requests shorter than two chunks; requests through a file or the page cache; reads whose
//! response is an immediate value; writes into a sink (iWARP), whose data must not be used before
//! all of it has arrived; FUA writes if the drive needs a flush for each chunk; requests for which
//! too few chunks are idle (the counter `unchunked`).
//!
//! # Locks
//!
//! `Queue::chunked`, an irq lock: taken once for each chunk that is read from the drive, twice for
//! each that is written. No other lock is taken inside.

use super::{
    cache::{
        enter_cache,
        leave_cache, //
    },
    drive::{
        bio_done,
        finish, //
    },
    queue::{
        kind,
        Queue,
        Work, //
    },
    queue_volume::QueueVolume,
    request::{
        TargetRequest,
        WorkStep, //
    },
    split::{
        ChunkProgress,
        ChunkSpan,
        CHUNKS_MAX,
        CHUNKS_USUAL,
        CHUNK_MAX, //
    },
};
use crate::memory::layout::{
    count,
    length_of,
    shift_of,
    BUFFERS_USUAL,
    BUFFER_BYTES,
    MEDIUM, //
};
use core::{
    array,
    mem, //
};
use hcablk_core::{
    blkdev::{
        plugged,
        submit,
        BioOp,
        BioOwner,
        BioSlot,
        BlockDevice,
        Status as DriveStatus, //
    },
    containers::slots::SlotTable,
    memory::pages::PageRange,
    p2p::PeerMemory,
    proto::{
        message::{
            self,
            Op,
            Remote,
            Tag, //
        },
        TRANSFER_USUAL, //
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
    report::{
        broken::{
            keep,
            push_into_room, //
        },
        trace, //
    },
    sync::{
        atomic::Relaxed,
        defer::{
            Deferred,
            WorkSlot, //
        },
        new_irq_lock,
        IrqLock, //
    },
};
use kernel::{
    pr_info_once,
    prelude::*,
    sync::Arc, //
};

/// The most chunks whose RDMA READs share one doorbell: those of 1 MiB, and one more.
const ROUND: usize = CHUNKS_USUAL;
/// The most scatter-gather entries of these RDMA READs: each border may cut a buffer in two.
const ROUND_SGES: usize = {
    let chunk_buffers = CHUNK_MAX as usize / BUFFER_BYTES;
    BUFFERS_USUAL + chunk_buffers + ROUND + 1
};

/// Requests whose chunks are under way.
struct Requests {
    places: KVec<Option<KBox<TargetRequest>>>,
    count: usize,
}

impl Requests {
    fn park(&mut self, request: KBox<TargetRequest>) -> Result<(), KBox<TargetRequest>> {
        match self.places.get_mut(request.index as usize) {
            Some(place) if place.is_none() => {
                *place = Some(request);
                self.count += 1;
                Ok(())
            }
            _ => Err(request),
        }
    }

    fn arrive(&mut self, request: u32) {
        if let Some(Some(request)) = self.places.get_mut(request as usize) {
            if request.chunks.progress.is_new() {
                request.marks.enter_drive();
                trace::target::drive_start(|| request.about());
            }
            request.chunks.progress.arrive();
        }
    }

    fn settle(
        &mut self,
        request: u32,
        arrived: bool,
        result: Result<(), Failure>,
    ) -> Option<(KBox<TargetRequest>, Result<(), Failure>)> {
        let place = self.places.get_mut(request as usize)?;
        let progress = &mut place.as_mut()?.chunks.progress;
        if arrived {
            progress.arrive();
        }
        let result = progress.settle(result)?;
        self.count -= 1;
        Some((place.take()?, result))
    }
}

/// The chunks of a queue, and its requests that move in chunks.
#[pin_data]
pub(super) struct ChunkedRequests {
    idle: SlotTable<Chunk>,
    rdma_reads: SlotTable<Chunk>,
    chunks: u16,
    #[pin]
    requests: IrqLock<Requests>,
    /// The request index and the trace event of the last RDMA WRITE of each chunk, by the chunk's
    /// number. Used only while chunk completions are traced.
    #[pin]
    traced: IrqLock<KVec<(u32, trace::Chunk)>>,
}

impl ChunkedRequests {
    /// Allocates room for `chunks` and for `requests` requests. May sleep.
    pub(super) fn new(chunks: u16, requests: usize) -> Result<impl PinInit<Self>> {
        let mut places = KVec::with_capacity(requests, GFP_KERNEL)?;
        for _ in 0..requests {
            places.push(None, GFP_KERNEL)?;
        }
        let requests = Requests { places, count: 0 };
        let (idle, rdma_reads) = (
            SlotTable::new(chunks.into())?,
            SlotTable::new(chunks.into())?,
        );
        let traced = KVec::from_elem((0, Chunk::NOT_TRACED), chunks.into(), GFP_KERNEL)?;
        Ok(pin_init!(Self {
            idle,
            rdma_reads,
            chunks,
            traced <- new_irq_lock!(traced, "hcablk_traced"),
            requests <- new_irq_lock!(requests, "hcablk_chunked"),
        }))
    }

    /// Counts a chunk of request `request` whose data has arrived and is now passed to the drive.
    pub(super) fn arrive(&self, request: u32) {
        self.requests.lock().arrive(request);
    }

    /// Returns whether no request's chunks are under way.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.lock().count == 0
    }

    /// Stores the trace event of chunk `number` of request `request`, before its RDMA WRITE is
    /// posted as traced.
    pub(super) fn note_write(&self, number: u16, request: u32, about: trace::Chunk) {
        if let Some(place) = self.traced.lock().get_mut(usize::from(number)) {
            *place = (request, about);
        }
    }

    /// Emits the trace event of the completion of the traced RDMA WRITE of chunk `number`.
    #[cold]
    pub(super) fn written(&self, number: u32) {
        let noted = self.traced.lock().get(number as usize).copied();
        if let Some((_, about)) = noted {
            trace::target::chunk_completed(|| about);
        }
    }

    /// Returns the request of the traced RDMA WRITE of chunk `number`.
    #[cold]
    pub(super) fn io_of_written(&self, number: u32) -> Option<u32> {
        Some(self.traced.lock().get(number as usize)?.0)
    }

    /// Takes the chunk `number` out of the table of RDMA READs.
    pub(super) fn take_rdma_read(&self, number: u32) -> Option<KBox<Chunk>> {
        self.rdma_reads.take(number)
    }

    /// Settles the chunks whose RDMA READ will not complete, with a failure. The drive may still
    /// have other chunks.
    pub(super) fn give_up(&self) {
        for number in 0..self.chunks {
            if let Some(chunk) = self.rdma_reads.take(number.into()) {
                chunk.settle(false, Err(Failure::Wire));
            }
        }
    }

    /// Drops the chunks' references to the queue. Every request is idle.
    pub(super) fn clear(&self) {
        for number in 0..self.chunks {
            drop(self.idle.take(number.into()));
        }
    }
}

impl Queue {
    /// Allocates the queue's chunks. May sleep.
    pub(super) fn make_chunks(self: &Arc<Self>) -> Result {
        for number in 0..self.chunked.chunks {
            let chunk = Chunk::new(self, number, self.shape.split.chunk())?;
            self.chunked
                .idle
                .park(number.into(), chunk)
                .map_err(|_| EINVAL)?;
            let mut work = self.work.lock();
            work.chunks
                .push_within_capacity(number)
                .map_err(|_| ENOMEM)?;
        }
        Ok(())
    }

    /// Assigns chunks to an admitted request, if it must be split.
    #[inline]
    pub(super) fn take_chunks(&self, work: &mut Work, request: &mut TargetRequest) {
        if request.volume.split().applies(request.length()) {
            self.assign_chunks(work, request);
        }
    }

    #[inline(never)]
    fn assign_chunks(&self, work: &mut Work, request: &mut TargetRequest) {
        let Some(extent) = request.extent().filter(|_| request.may_be_chunked(self)) else {
            return;
        };
        let split = request.volume.split();
        let count = split.count(extent.offset, request.length());
        if count > work.chunks.len() {
            request.volume.counters().unchunked.bump();
            pr_info_once!("some large requests are not split: too many chunks are in flight\n");
            return;
        }
        let chunks = &mut request.chunks;
        for place in chunks.numbers.iter_mut().take(count) {
            if let Some(number) = work.chunks.pop() {
                *place = number;
                chunks.count += 1;
            }
        }
    }

    /// Takes the chunks of `request` out of the table of idle chunks, and assigns a part of its
    /// data to each.
    fn fill_chunks(
        &self,
        request: &mut TargetRequest,
        op: BioOp,
        extent: message::Extent,
        remote: Remote,
    ) -> [Option<KBox<Chunk>>; CHUNKS_MAX] {
        let (split, length) = (request.volume.split(), request.length());
        let chunks = array::from_fn(|index| {
            let number = *request.chunks.numbers().get(index)?;
            // The chunk is in the table: the request owns its number.
            let mut chunk = self.chunked.idle.take(number.into())?;
            let part = split.span(extent.offset, length, index);
            chunk.fill(request, op, extent, remote, part);
            Some(chunk)
        });
        request.chunks.progress = ChunkProgress::new(request.chunks.count as u16);
        chunks
    }

    /// Puts the request into the table of requests that move in chunks. Returns `false` if that
    /// failed and the session is ending.
    fn park_chunked(&self, request: KBox<TargetRequest>) -> bool {
        let parked = self.chunked.requests.lock().park(request);
        match parked {
            Ok(()) => true,
            Err(mut request) => {
                self.broken("in-flight slot of a chunked request already occupied");
                leave_cache(&mut request, false);
                self.give_up(request);
                false
            }
        }
    }

    /// Reads in chunks. Process context: submission may sleep.
    #[inline(never)]
    pub(super) fn read_chunks(&self, mut request: KBox<TargetRequest>) {
        let Ok(Op::Read(extent, remote)) = request.op else {
            return self.respond(request, message::Status::IoError);
        };
        let chunks = self.fill_chunks(&mut request, BioOp::Read, extent, remote);
        if !self.park_chunked(request) {
            return;
        }
        plugged(|| {
            for chunk in chunks.into_iter().flatten() {
                chunk.to_drive();
            }
        });
    }

    /// Posts the RDMA READs of a write in chunks; each chunk then moves to the drive independently.
    #[inline(never)]
    pub(super) fn rdma_read_chunks(&self, mut request: KBox<TargetRequest>) {
        let Ok(Op::Write {
            extent,
            remote,
            fua,
            atomic: false,
        }) = request.op
        else {
            return self.respond(request, message::Status::IoError);
        };
        let op = BioOp::Write {
            fua: fua || request.force_fua,
        };
        request.moved = request.length() as u64;
        request.step = WorkStep::Start;
        request.cached = false;
        request.met_pages = false;
        enter_cache(self, &mut request, op, extent);
        let chunks = self.fill_chunks(&mut request, op, extent, remote);
        let count = request.chunks.count as u32;
        let chunk_bytes = request.volume.split().chunk();
        self.rdma_reads
            .store(self.rdma_reads.load(Relaxed) + count, Relaxed);
        self.counters.rdma_reads.add(count.into());

        let index = request.index;
        if !self.park_chunked(request) {
            return;
        }
        let round = (TRANSFER_USUAL as usize)
            .checked_div(chunk_bytes)
            .map_or(1, |chunks| (chunks + 1).min(ROUND));
        let mut chunks = chunks.into_iter().flatten().peekable();
        while chunks.peek().is_some() {
            if self.rdma_read_round(chunks.by_ref().take(round)).is_err() {
                // Some of the RDMA READs may have been posted; no more completions come from this
                // queue pair.
                self.unposted("RDMA READs", Some(index));
                self.chunked.give_up();
                for chunk in chunks {
                    chunk.settle(false, Err(Failure::Wire));
                }
                return;
            }
        }
    }

    /// Posts the RDMA READs of up to [`ROUND`] chunks with one doorbell.
    fn rdma_read_round(&self, chunks: impl Iterator<Item = KBox<Chunk>>) -> Result {
        let mut sges = [Sge::EMPTY; ROUND_SGES];
        let mut left = &mut sges[..];
        let mut reads: [Option<Rdma<'_>>; ROUND] = [const { None }; ROUND];
        for (chunk, read) in chunks.zip(reads.iter_mut()) {
            let count = chunk.sges(left);
            // The entries suffice: see `ROUND_SGES`.
            let (mine, others) = mem::take(&mut left).split_at_mut(count);
            left = others;
            let (address, key) = chunk.remote();
            let place = chunk.places_of().0;
            let read = read.insert(Rdma::read(mine, address, key));
            trace::target::chunk_posted(|| chunk.about());
            read.signal(WorkId::new(kind::CHUNK, place));
            if let Err(chunk) = self.chunked.rdma_reads.park(place, chunk) {
                // Only this chunk has the number, so the place must be free.
                self.broken("RDMA READ of a chunk already in flight");
                chunk.settle(false, Err(Failure::Wire));
                return Err(EBUSY);
            }
        }
        let mut chain = Chain::new();
        for read in reads.iter_mut().flatten() {
            chain.push(read);
        }
        self.batcher.rang(chain.len().into());
        self.pair.post(&chain)
    }

    /// Handles the completion of a chunk's RDMA READ. Completion handler. [`Self::work_failed`] has
    /// already settled a chunk whose READ has failed.
    pub(super) fn chunk_read_completed(&self, number: u32) {
        self.rdma_reads
            .store(self.rdma_reads.load(Relaxed) - 1, Relaxed);
        if let Some(chunk) = self.chunked.take_rdma_read(number) {
            trace::target::chunk_completed(|| chunk.about());
            chunk.rdma_read_completed();
        }
    }

    /// Handles a chunk that has no more work under way: makes it idle, and continues its request if
    /// it was the last chunk. Any context.
    pub(super) fn settle_chunk(
        &self,
        chunk: KBox<Chunk>,
        arrived: bool,
        result: Result<(), Failure>,
    ) {
        let (number, request) = chunk.places_of();
        if let Err(Failure::Wire) = result {
            // Keeps an earlier reason for the end of the session, if there is one.
            self.unposted("an RDMA WRITE", Some(request));
        }
        if let Err(chunk) = self.chunked.idle.park(number, chunk) {
            // Only this chunk has the number, so the place must be free.
            keep(chunk, "a chunk that has settled is idle already");
            self.broken("a chunk that has settled is idle already");
        }
        let settled = self
            .chunked
            .requests
            .lock()
            .settle(request, arrived, result);
        let Some((mut request, result)) = settled else {
            return;
        };
        let result = match result {
            Ok(()) => Ok(()),
            Err(Failure::Drive(status)) => Err(status),
            Err(Failure::Wire) => {
                leave_cache(&mut request, false);
                return self.give_up(request);
            }
        };
        match request.op {
            Ok(Op::Read(..)) => finish(self, request, result),
            _ => bio_done(request, result),
        }
    }
}

/// The most transfer buffers that one chunk has parts of.
const CHUNK_BUFFERS: usize = chunk_buffers(CHUNK_MAX as usize);

/// Returns the most transfer buffers that a chunk of `bytes` bytes has parts of.
pub(super) const fn chunk_buffers(bytes: usize) -> usize {
    bytes.div_ceil(BUFFER_BYTES) + 1
}

/// One chunk of a large request, with its bio. It has a reference to its queue until
/// [`ChunkedRequests::clear`].
pub(super) struct Chunk {
    queue: Arc<Queue>,
    /// The volume of the request, until the chunk has settled.
    volume: Option<Arc<QueueVolume>>,
    /// The index of the chunk in the tables of idle chunks and of RDMA READs.
    number: u16,
    /// The index of its request.
    request: u32,
    /// The tag of its request.
    tag: Tag,
    op: BioOp,
    /// The chunk's first byte in the request's data.
    from: usize,
    /// The chunk's first byte on the volume.
    offset: u64,
    length: usize,
    /// The chunk's first byte in the initiator's memory, and the key.
    remote: (u64, u32),
    /// The transfer buffers that the chunk has parts of: shared ones, then the queue's own.
    shared: [Option<Arc<DmaBuffer>>; CHUNK_BUFFERS],
    own: [u16; CHUNK_BUFFERS],
    /// The size class of the transfer buffers.
    size_class: usize,
    /// Bytes at the start of the first transfer buffer that belong to another chunk.
    skip: usize,
    peer: Option<Arc<PeerMemory>>,
    step: ChunkStep,
    slot: BioSlot,
    work: WorkSlot<Chunk>,
}

/// The next step of a chunk on the workqueue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChunkStep {
    /// Copy the read data from peer memory to RAM.
    Bounce,
    /// Submit the bio again: the drive had no room for it.
    Submit,
}

impl Chunk {
    /// A placeholder for no chunk.
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

    /// Returns the chunk as trace events report it.
    #[cold]
    pub(super) fn about(&self) -> trace::Chunk {
        trace::Chunk {
            session: self.queue.session_id.0,
            queue: self.queue.index,
            tag: self.tag,
            kind: match self.op {
                BioOp::Read => trace::Kind::Read,
                _ => trace::Kind::Write,
            },
            offset: self.offset,
            from: self.from as u32,
            bytes: self.length as u32,
            memory: trace::Memory::from_mapped(self.peer.as_ref().map(|memory| memory.is_mapped())),
            status: 0,
        }
    }

    /// Allocates a chunk of up to `bytes` bytes. May sleep.
    pub(super) fn new(queue: &Arc<Queue>, number: u16, bytes: usize) -> Result<KBox<Self>> {
        let chunk = Self {
            queue: queue.clone(),
            volume: None,
            number,
            request: 0,
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
            step: ChunkStep::Bounce,
            slot: BioSlot::new(chunk_buffers(bytes) as u16)?,
            work: WorkSlot::new()?,
        };
        Ok(KBox::new(chunk, GFP_KERNEL)?)
    }

    /// Assigns the part `span` of the data of `request` to the chunk.
    pub(super) fn fill(
        &mut self,
        request: &TargetRequest,
        op: BioOp,
        whole: message::Extent,
        remote: Remote,
        span: ChunkSpan,
    ) {
        let ChunkSpan { from, length } = span;
        self.volume = Some(request.volume.clone());
        self.request = request.index;
        self.tag = request.tag;
        self.from = from;
        self.op = op;
        self.offset = whole.offset + from as u64;
        self.length = length;
        self.remote = (remote.address + from as u64, remote.key);
        self.size_class = request.size_class;
        let shift = shift_of(request.size_class);
        self.skip = from & (length_of(request.size_class) - 1);
        self.peer.clone_from(&request.peer);
        self.step = ChunkStep::Bounce;
        let first = from >> shift;
        let used = count(request.size_class, self.skip + length);
        let places = self.shared.iter_mut().zip(self.own.iter_mut());
        for (index, (shared, number)) in (first..first + used).zip(places) {
            *shared = request.shared().get(index).cloned();
            if let Some(own) = index.checked_sub(request.shared().len()) {
                *number = request.own().get(own).copied().unwrap_or(0);
            }
        }
    }

    /// Iterates over the parts of transfer buffers that hold the data: number (of an own buffer,
    /// and of its peer memory), buffer, first byte, and length.
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

    /// Returns whether the HCA moves the data to or from RAM.
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

    /// Fills `sges` with the scatter-gather entries of the data, and returns their number.
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
        trace::target::chunk_drive_start(|| self.about());
        self.submit_bio();
    }

    fn submit_bio(self: KBox<Self>) {
        let (op, sector) = (self.op, self.offset >> 9);
        match submit(self, op, sector) {
            Ok(()) => {}
            Err((EAGAIN, chunk)) => chunk.submit_later(),
            Err((_, chunk)) => chunk.settle(false, Err(Failure::Drive(DriveStatus::IoErr))),
        }
    }

    /// Submits the bio on the workqueue, which may wait until the drive has room. Any context.
    #[cold]
    fn submit_later(self: KBox<Self>) {
        self.defer(ChunkStep::Submit);
    }

    /// Continues with `step` on the volume's workqueue, at the [turn](crate::drive::io_turns) of
    /// its host. Any context.
    fn defer(mut self: KBox<Self>, step: ChunkStep) {
        self.step = step;
        match self.volume.clone() {
            Some(volume) => volume.take_turn(self),
            None => self.settle(false, Err(Failure::Wire)),
        }
    }

    /// Posts the RDMA WRITE of the data that the drive has read. Any context.
    fn post_write(self: KBox<Self>) {
        if self.wire_in_ram() {
            self.for_each_ram(|_, ram, from, length| ram.sync_for_device(from, length));
        }
        let mut sges = [Sge::EMPTY; CHUNK_BUFFERS];
        let count = self.sges(&mut sges);
        let (address, key) = self.remote;
        let mut write = Rdma::write(sges.get(..count).unwrap_or(&[]), address, key);
        let part = WorkId::new(kind::PART, self.request);
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
        self.queue
            .chunked
            .note_write(self.number, self.request, about);
    }

    /// Passes the data of a write, which has arrived, to the drive. Process context.
    pub(super) fn rdma_read_completed(self: KBox<Self>) {
        if self.wire_in_ram() {
            self.for_each_ram(|_, ram, from, length| ram.sync_for_cpu(from, length));
        }
        if let Some(memory) = self.bounce() {
            self.for_each_ram(|number, ram, from, length| {
                memory.copy_in(number, ram, from, length)
            });
        }
        self.queue.chunked.arrive(self.request);
        self.to_drive();
    }

    /// Makes the chunk idle, and continues its request if it was the last chunk. `arrived`: its
    /// data has arrived, but is not counted yet. Any context.
    pub(super) fn settle(mut self: KBox<Self>, arrived: bool, result: Result<(), Failure>) {
        let queue = self.queue.clone();
        self.peer = None;
        // Its request still has a reference to the volume.
        self.volume = None;
        // Its request still has the shared buffers, and returns them.
        for shared in self.shared.iter_mut() {
            match shared.take() {
                Some(_) => {}
                None => break,
            }
        }
        queue.settle_chunk(self, arrived, result);
    }

    /// Returns the index of the chunk in the queue's tables, and that of its request.
    pub(super) fn places_of(&self) -> (u32, u32) {
        (self.number.into(), self.request)
    }

    /// Returns the chunk's part of the initiator's memory: address and key.
    pub(super) fn remote(&self) -> (u64, u32) {
        self.remote
    }
}

hcablk_core::impl_has_slot!(Chunk, slot: BioSlot);
hcablk_core::impl_has_slot!(Chunk, work: WorkSlot<Chunk>);

impl BioOwner for Chunk {
    fn device(&self) -> Option<&BlockDevice> {
        self.volume.as_ref()?.backing().device()
    }

    fn pages(&self) -> impl Iterator<Item = PageRange<'_>> {
        self.places()
            .filter_map(|(number, buffer, from, length)| match &self.peer {
                Some(memory) => memory.range(number, from, length),
                None => Some(buffer.pages().range(from, length)),
            })
    }

    /// Merged reads would complete together, and delay the first RDMA WRITE.
    fn apart(&self) -> bool {
        self.op == BioOp::Read
    }

    fn may_wait(&self) -> bool {
        !self.queue.never_waits || self.step == ChunkStep::Submit
    }

    fn done(self: KBox<Self>, result: Result<(), DriveStatus>) {
        if result == Err(DriveStatus::Again) && !self.may_wait() {
            return self.submit_later();
        }
        trace::target::chunk_drive_end(|| {
            let status = result.err().map_or(0, DriveStatus::to_errno);
            self.about().ended(status)
        });
        match (self.op, result) {
            (BioOp::Read, Ok(())) if self.bounce().is_some() => {
                // The copy is too slow for an interrupt handler.
                self.defer(ChunkStep::Bounce);
            }
            (BioOp::Read, Ok(())) => self.post_write(),
            (BioOp::Read, Err(status)) => {
                // As for a read that is not split: see `note_failure` in `drive.rs`.
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
        // As for a request (`drive.rs`), this reference to the volume is not its last.
        let volume = self.volume.clone();
        self.take_step();
        if let Some(volume) = volume {
            volume.end_turn();
        }
    }
}

impl Chunk {
    /// Performs the chunk's next step, on the workqueue.
    fn take_step(self: KBox<Self>) {
        if self.step == ChunkStep::Submit {
            return self.submit_bio();
        }
        if let Some(memory) = self.bounce() {
            self.for_each_ram(|number, ram, from, length| {
                memory.copy_out(number, ram, from, length)
            });
        }
        self.post_write();
    }
}

/// The reason why a chunk did not move.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    Drive(DriveStatus),
    /// The session is ending.
    Wire,
}

/// A request's chunks.
pub(crate) struct RequestChunks {
    pub(crate) numbers: [u16; CHUNKS_MAX],
    pub(crate) count: usize,
    pub(crate) progress: ChunkProgress<Failure>,
}

impl RequestChunks {
    pub(crate) const NONE: Self = Self {
        numbers: [0; CHUNKS_MAX],
        count: 0,
        progress: ChunkProgress::NONE,
    };

    /// Returns whether the request has chunks.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.count != 0
    }

    /// Returns whether the data moves, or has moved, in chunks.
    #[inline]
    pub(crate) fn moves(&self) -> bool {
        self.progress.chunks() != 0
    }

    /// Returns the number of chunks in which the data has moved, and the number of those that were
    /// passed on before the last chunk had arrived.
    pub(crate) fn moved(&self) -> (u64, u64) {
        (self.progress.chunks().into(), self.progress.early().into())
    }

    /// Puts the chunks back into the list of free ones.
    #[inline]
    pub(crate) fn return_to(&mut self, free: &mut KVec<u16>) {
        if self.count != 0 {
            self.return_all(free);
        }
    }

    #[inline(never)]
    fn return_all(&mut self, free: &mut KVec<u16>) {
        for number in self.numbers.iter().take(self.count) {
            push_into_room(free, *number, "the list of free chunks has no room");
        }
        self.count = 0;
        self.progress = ChunkProgress::NONE;
    }

    /// Returns the numbers of the chunks in the queue's tables.
    pub(crate) fn numbers(&self) -> &[u16] {
        self.numbers.get(..self.count).unwrap_or(&[])
    }
}
