// SPDX-License-Identifier: GPL-2.0

//! Moves a large request in chunks, so that drive and network work at the same
//! time. How requests are split, and the states of a chunk, is described in
//! [`split`](crate::request::split).
//!
//! ```text
//!  read:   all chunks to the drive, under one plug ── each: done ──► RDMA WRITE ──┐
//!  write:  an RDMA READ each, a doorbell for a MiB ─── each: here ──► drive ──────┴─► settled
//!                                                               the last one settled ──► answer
//! ```
//!
//! # Ownership
//!
//! A [`Chunk`] has everything it needs: a bio, a copy of the request's place and
//! key, the numbers of its transfer buffers. It has one owner at a time: the
//! table of idle ones (`ChunkedRequests::idle`), the drive, the table of RDMA READs
//! (`ChunkedRequests::fetching`; a write's only), or the workqueue (a bounce of mode
//! p2p). Its request meanwhile is in `Queue::chunked`, with its progress, and goes to
//! whoever settles the last chunk. A chunk is idle before it settles: once the
//! request can end, all its chunks can be used again.
//!
//! # Send queue
//!
//! The work request of a chunk's RDMA WRITE is not signaled: it is over when the
//! response, which follows it in the send queue, is. A chunk belongs to its
//! request from admission until that is idle again; so one slot of the send queue
//! for each chunk that there is (`Shape::chunks`) is exact, beside what every
//! request has. RDMA READs are signaled, and over before the drive begins. While somebody listens to
//! `chunk_completed`, the WRITEs are signaled, too: the completion queue has room for all that is
//! posted (`Capacity::completions`).
//!
//! # What is not split
//!
//! Requests shorter than two chunks; those by way of a file or the page cache; reads whose
//! answer is an immediate value; writes into a sink (iWARP), which must not be
//! looked at before all is there; FUA writes if the drive would be flushed for each
//! chunk; those for which no chunks are left, which are counted.
//!
//! # Locks
//!
//! `Queue::chunked`, an irq lock: taken once for each chunk that is read from the
//! drive, twice for each that is written; nothing is locked inside.

use super::{
    chunk::Chunk,
    kind,
    Io,
    Queue,
    Work, //
};
use crate::{
    memory::layout::{
        BUFFERS_USUAL,
        BUFFER_BYTES, //
    },
    request::{
        chunks::Failure,
        split::{
            ChunkProgress,
            CHUNKS_MAX,
            CHUNKS_USUAL,
            CHUNK_MAX, //
        },
        Step, //
    },
    storage::{
        backing::Route,
        submit::{
            bio_done,
            finish, //
        },
        visit::{
            enter_cache,
            leave_cache, //
        },
    }, //
};
use core::{
    array,
    mem, //
};
use hcablk_core::sync::atomic::Relaxed;
use hcablk_core::{
    blkdev::{
        plugged,
        BioOp, //
    },
    containers::slots::SlotTable,
    proto::{
        message::{
            self,
            Answer,
            Op,
            Remote, //
        },
        TRANSFER_USUAL, //
    },
    rdma::wr::{
        Chain,
        Rdma,
        Sge,
        WorkId,
        WorkRequest, //
    },
    report::broken::keep,
    report::trace, //
    sync::{
        new_irq_lock,
        IrqLock, //
    },
};
use kernel::{
    pr_info_once,
    prelude::*,
    sync::Arc, //
};

/// Chunks that are fetched with one doorbell: of 1 MiB and one more.
const ROUND: usize = CHUNKS_USUAL;
/// Entries of those: each border may cut a buffer in two.
const ROUND_SGES: usize = {
    let chunk_buffers = CHUNK_MAX as usize / BUFFER_BYTES;
    BUFFERS_USUAL + chunk_buffers + ROUND + 1
};

/// Requests whose chunks are under way.
struct Requests {
    places: KVec<Option<KBox<Io>>>,
    count: usize,
}

impl Requests {
    fn park(&mut self, io: KBox<Io>) -> Result<(), KBox<Io>> {
        match self.places.get_mut(io.index as usize) {
            Some(place) if place.is_none() => {
                *place = Some(io);
                self.count += 1;
                Ok(())
            }
            _ => Err(io),
        }
    }

    fn arrive(&mut self, io: u32) {
        if let Some(Some(io)) = self.places.get_mut(io as usize) {
            if io.chunks.progress.is_new() {
                io.marks.enter_drive();
                trace::target::drive_start(|| io.about());
            }
            io.chunks.progress.arrive();
        }
    }

    fn settle(
        &mut self,
        io: u32,
        arrived: bool,
        result: Result<(), Failure>,
    ) -> Option<(KBox<Io>, Result<(), Failure>)> {
        let place = self.places.get_mut(io as usize)?;
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
    fetching: SlotTable<Chunk>,
    chunks: u16,
    #[pin]
    requests: IrqLock<Requests>,
    /// The RDMA WRITEs that were posted last, by their chunks' numbers: the index of the request, and
    /// what events tell. Used while that is traced.
    #[pin]
    traced: IrqLock<KVec<(u32, trace::Chunk)>>,
}

impl ChunkedRequests {
    /// Allocates room for `chunks` and for `ios` requests. May sleep.
    pub(super) fn new(chunks: u16, ios: usize) -> Result<impl PinInit<Self>> {
        let mut places = KVec::with_capacity(ios, GFP_KERNEL)?;
        for _ in 0..ios {
            places.push(None, GFP_KERNEL)?;
        }
        let requests = Requests { places, count: 0 };
        let (idle, fetching) = (
            SlotTable::new(chunks.into())?,
            SlotTable::new(chunks.into())?,
        );
        let traced = KVec::from_elem((0, Chunk::NOT_TRACED), chunks.into(), GFP_KERNEL)?;
        Ok(pin_init!(Self {
            idle,
            fetching,
            chunks,
            traced <- new_irq_lock!(traced, "hcablk_traced"),
            requests <- new_irq_lock!(requests, "hcablk_chunked"),
        }))
    }

    /// Counts a chunk of request `io` whose data has arrived and is passed on.
    pub(super) fn arrive(&self, io: u32) {
        self.requests.lock().arrive(io);
    }

    /// Returns whether no request's chunks are under way.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.lock().count == 0
    }

    /// Notes what events tell of chunk `number` of request `io`, before its RDMA WRITE is posted as traced.
    pub(super) fn note_write(&self, number: u16, io: u32, about: trace::Chunk) {
        if let Some(place) = self.traced.lock().get_mut(usize::from(number)) {
            *place = (io, about);
        }
    }

    /// Tells that the RDMA WRITE of chunk `number` has completed, which was posted as traced.
    #[cold]
    pub(super) fn written(&self, number: u32) {
        let noted = self.traced.lock().get(number as usize).copied();
        if let Some((_, about)) = noted {
            trace::target::chunk_completed(|| about);
        }
    }

    /// Returns the request of the RDMA WRITE of chunk `number`, which was posted as traced.
    #[cold]
    pub(super) fn io_of_written(&self, number: u32) -> Option<u32> {
        Some(self.traced.lock().get(number as usize)?.0)
    }

    /// Takes the chunk `number` out of the table of RDMA READs.
    pub(super) fn take_fetched(&self, number: u32) -> Option<KBox<Chunk>> {
        self.fetching.take(number)
    }

    /// Settles the chunks whose RDMA READ will not complete, with a failure. Other
    /// chunks may be with the drive still.
    pub(super) fn give_up(&self) {
        for number in 0..self.chunks {
            if let Some(chunk) = self.fetching.take(number.into()) {
                chunk.settle(false, Err(Failure::Wire));
            }
        }
    }

    /// Drops the references to the queue. Every request is idle.
    pub(super) fn clear(&self) {
        for number in 0..self.chunks {
            drop(self.idle.take(number.into()));
        }
    }
}

impl Queue {
    /// Makes the queue's chunks. May sleep.
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

    /// Assigns chunks to a request that was admitted, if it is to be split.
    #[inline]
    pub(super) fn take_chunks(&self, work: &mut Work, io: &mut Io) {
        if self.shape.split.applies(io.length()) {
            self.assign_chunks(work, io);
        }
    }

    #[inline(never)]
    fn assign_chunks(&self, work: &mut Work, io: &mut Io) {
        let backing = self.backing();
        let (extent, route) = match io.op {
            Ok(Op::Read(extent, remote)) if remote.answer != Answer::Immediate => {
                (extent, backing.read_route())
            }
            // An atomic one goes to the drive whole.
            Ok(Op::Write {
                extent,
                fua,
                atomic: false,
                ..
            }) if !(self.shape.sinks || (fua || io.force_fua) && backing.flushes_for_fua()) => {
                (extent, backing.write_route())
            }
            _ => return,
        };
        if route != Route::Device {
            return;
        }
        let count = self.shape.split.count(extent.offset, io.length());
        if count > work.chunks.len() {
            self.counters.unchunked.bump();
            pr_info_once!("some large requests are moved whole: too many chunks are under way\n");
            return;
        }
        let chunks = &mut io.chunks;
        for place in chunks.numbers.iter_mut().take(count) {
            if let Some(number) = work.chunks.pop() {
                *place = number;
                chunks.count += 1;
            }
        }
    }

    /// Takes the chunks of `io` out of the table of idle ones, and makes each a
    /// part of its data.
    fn fill_chunks(
        &self,
        io: &mut Io,
        op: BioOp,
        extent: message::Extent,
        remote: Remote,
    ) -> [Option<KBox<Chunk>>; CHUNKS_MAX] {
        let (split, length) = (self.shape.split, io.length());
        let chunks = array::from_fn(|index| {
            let number = *io.chunks.numbers().get(index)?;
            // It is there: the number is the request's.
            let mut chunk = self.chunked.idle.take(number.into())?;
            let part = split.span(extent.offset, length, index);
            chunk.fill(io, op, extent, remote, part);
            Some(chunk)
        });
        io.chunks.progress = ChunkProgress::of(io.chunks.count as u16);
        chunks
    }

    /// Puts the request into the table of those that move in chunks. Returns
    /// `false` if its session is ending.
    fn park_chunked(&self, io: KBox<Io>) -> bool {
        let parked = self.chunked.requests.lock().park(io);
        match parked {
            Ok(()) => true,
            Err(mut io) => {
                self.broken("a request is there whose chunks are to begin");
                leave_cache(self, &mut io, false);
                self.give_up(io);
                false
            }
        }
    }

    /// Reads by chunks. Process context: submission may sleep.
    #[inline(never)]
    pub(super) fn read_chunks(&self, mut io: KBox<Io>) {
        let Ok(Op::Read(extent, remote)) = io.op else {
            return self.answer(io, message::Status::IoError);
        };
        let chunks = self.fill_chunks(&mut io, BioOp::Read, extent, remote);
        if !self.park_chunked(io) {
            return;
        }
        plugged(|| {
            for chunk in chunks.into_iter().flatten() {
                chunk.to_drive();
            }
        });
    }

    /// Fetches the data of a write by chunks, each of which goes on by itself.
    #[inline(never)]
    pub(super) fn fetch_chunks(&self, mut io: KBox<Io>) {
        let Ok(Op::Write {
            extent,
            remote,
            fua,
            atomic: false,
        }) = io.op
        else {
            return self.answer(io, message::Status::IoError);
        };
        let op = BioOp::Write {
            fua: fua || io.force_fua,
        };
        io.moved = io.length() as u64;
        io.step = Step::Start;
        io.cached = false;
        io.met_pages = false;
        enter_cache(self, &mut io, op, extent);
        let chunks = self.fill_chunks(&mut io, op, extent, remote);
        let count = io.chunks.count as u32;
        self.fetching
            .store(self.fetching.load(Relaxed) + count, Relaxed);
        self.counters.rdma_reads.add(count.into());

        let index = io.index;
        if !self.park_chunked(io) {
            return;
        }
        let round = (TRANSFER_USUAL as usize)
            .checked_div(self.shape.split.chunk())
            .map_or(1, |chunks| (chunks + 1).min(ROUND));
        let mut chunks = chunks.into_iter().flatten().peekable();
        while chunks.peek().is_some() {
            if self.fetch_round(chunks.by_ref().take(round)).is_err() {
                // Some of it may have been posted; nothing more comes from this pair.
                self.unposted("RDMA READs", Some(index));
                self.chunked.give_up();
                for chunk in chunks {
                    chunk.settle(false, Err(Failure::Wire));
                }
                return;
            }
        }
    }

    /// Fetches the data of up to [`ROUND`] chunks, of 1 MiB and one more.
    fn fetch_round(&self, chunks: impl Iterator<Item = KBox<Chunk>>) -> Result {
        let mut sges = [Sge::EMPTY; ROUND_SGES];
        let mut left = &mut sges[..];
        let mut reads: [Option<Rdma<'_>>; ROUND] = [const { None }; ROUND];
        for (chunk, read) in chunks.zip(reads.iter_mut()) {
            let count = chunk.sges(left);
            // There are enough: see `ROUND_SGES`.
            let (mine, others) = mem::take(&mut left).split_at_mut(count);
            left = others;
            let (address, key) = chunk.remote();
            let place = chunk.places_of().0;
            let read = read.insert(Rdma::read(mine, address, key));
            trace::target::chunk_posted(|| chunk.about());
            read.signal(WorkId::new(kind::CHUNK, place));
            if let Err(chunk) = self.chunked.fetching.park(place, chunk) {
                // Nobody else has its number.
                self.broken("a chunk to be fetched is being fetched already");
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

    /// Handles the completion of a chunk's RDMA READ. Completion handler. A chunk whose READ has
    /// failed is settled already: [`Self::work_failed`].
    pub(super) fn chunk_fetched(&self, number: u32) {
        self.fetching
            .store(self.fetching.load(Relaxed) - 1, Relaxed);
        if let Some(chunk) = self.chunked.take_fetched(number) {
            trace::target::chunk_completed(|| chunk.about());
            chunk.fetched();
        }
    }

    /// Makes `chunk` idle, for which nothing is under way, and continues its request if
    /// it was the last one. Any context.
    pub(super) fn settle_chunk(
        &self,
        chunk: KBox<Chunk>,
        arrived: bool,
        result: Result<(), Failure>,
    ) {
        let (number, io) = chunk.places_of();
        if let Err(Failure::Wire) = result {
            // Unless it is known already why.
            self.unposted("an RDMA WRITE", Some(io));
        }
        if let Err(chunk) = self.chunked.idle.park(number, chunk) {
            // Nobody else has its number.
            keep(chunk, "a chunk that has settled is idle already");
            self.broken("a chunk that has settled is idle already");
        }
        let settled = self.chunked.requests.lock().settle(io, arrived, result);
        let Some((mut io, result)) = settled else {
            return;
        };
        let result = match result {
            Ok(()) => Ok(()),
            Err(Failure::Drive(status)) => Err(status),
            Err(Failure::Wire) => {
                leave_cache(self, &mut io, false);
                return self.give_up(io);
            }
        };
        match io.op {
            Ok(Op::Read(..)) => finish(self, io, result),
            _ => bio_done(io, result),
        }
    }
}
