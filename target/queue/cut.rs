// SPDX-License-Identifier: GPL-2.0

//! Synchronized transfers: a large request moves in grains, so that drive and
//! wire work at the same time. How requests are cut, and the states of a grain,
//! is [`grains`](super::grains).
//!
//! ```text
//!  read:   all grains to the drive, under one plug ── each: done ──► RDMA WRITE ──┐
//!  write:  an RDMA READ each, a doorbell for a MiB ─── each: here ──► drive ──────┴─► settled
//!                                                               the last one settled ──► answer
//! ```
//!
//! # Ownership
//!
//! A [`Grain`] has everything it needs: a bio, a copy of the request's place and
//! key, the numbers of its transfer buffers. It is in one place at a time: at
//! home (`Queue::grains`), with the drive, on the wire (`Queue::wire`; a write's
//! only), or on the workqueue (a bounce of mode p2p). Its request meanwhile is in
//! `Queue::cut`, with its tally, and goes to whoever settles the last grain. A grain is
//! at home before it settles: once the request can end, all its grains can be
//! used again.
//!
//! # Send queue
//!
//! The work request of a grain's RDMA WRITE is not signaled: it is over when the
//! response, which follows it in the send queue, is. A grain belongs to its
//! request from admission until that is idle again; so one slot of the send queue
//! for each grain that there is (`Shape::grains`) is exact, beside what every
//! request has. RDMA READs are signaled, and over before the drive begins.
//!
//! # What is not cut
//!
//! Requests shorter than two grains; those by way of a file or the page cache; reads whose
//! answer is an immediate value; writes into a sink (iWARP), which must not be
//! looked at before all is there; FUA writes if the drive would be flushed for each
//! grain; those for which no grains are left, which are counted.
//!
//! # Locks
//!
//! `Queue::cut`, an irq lock: taken once for each grain that is read from the
//! drive, twice for each that is written; nothing is locked inside.

use super::{
    grain::Grain,
    grains::{
        Tally,
        GRAINS_MAX,
        GRAINS_USUAL,
        GRAIN_MAX, //
    },
    kind,
    shape::{
        CHUNKS_USUAL,
        CHUNK_BYTES, //
    },
    Queue,
    Work, //
};
use crate::{
    backing::Route,
    drive::Step,
    io::Io, //
};
use core::{
    array,
    mem, //
};
use hcablk_core::{
    blkdev::{
        plugged,
        BioOp,
        Status as DriveStatus, //
    },
    broken::{
        keep,
        push_into_room, //
    },
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
        Entry,
        Rdma,
        WorkId,
        WorkRequest, //
    },
    slots::SlotTable,
    sync::{
        new_irq_lock,
        IrqLock, //
    },
    trace, //
};
use kernel::{
    pr_info_once,
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    },
};

/// Grains that are fetched with one doorbell: of 1 MiB and one more.
const ROUND: usize = GRAINS_USUAL;
/// Entries of those: each border may cut a buffer in two.
const ROUND_ENTRIES: usize = {
    let grain_chunks = GRAIN_MAX as usize / CHUNK_BYTES;
    CHUNKS_USUAL + grain_chunks + ROUND + 1
};

/// Why a grain did not move.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    Drive(DriveStatus),
    /// The session is ending.
    Wire,
}

/// A request's grains.
pub(crate) struct Share {
    numbers: [u16; GRAINS_MAX],
    count: usize,
    tally: Tally<Failure>,
}

impl Share {
    pub(crate) const NONE: Self = Self {
        numbers: [0; GRAINS_MAX],
        count: 0,
        tally: Tally::NONE,
    };

    /// Whether the request has grains.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.count != 0
    }

    /// Whether its data moves, or has moved, by them.
    #[inline]
    pub(crate) fn moves(&self) -> bool {
        self.tally.grains() != 0
    }

    /// Chunks that its data has moved in, and how many went on before the last
    /// had arrived.
    pub(super) fn moved(&self) -> (u64, u64) {
        (self.tally.grains().into(), self.tally.early().into())
    }

    /// Gives the grains back.
    #[inline]
    pub(super) fn give(&mut self, free: &mut KVec<u16>) {
        if self.count != 0 {
            for number in self.numbers.iter().take(self.count) {
                push_into_room(free, *number, "a free chunk has no place");
            }
            self.count = 0;
            self.tally = Tally::NONE;
        }
    }

    fn numbers(&self) -> &[u16] {
        self.numbers.get(..self.count).unwrap_or(&[])
    }
}

/// Requests whose grains are on their way.
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
            if io.share.tally.is_new() {
                io.marks.ask_drive();
                trace::target::drive_start(|| io.about());
            }
            io.share.tally.arrive();
        }
    }

    fn settle(
        &mut self,
        io: u32,
        arrived: bool,
        result: Result<(), Failure>,
    ) -> Option<(KBox<Io>, Result<(), Failure>)> {
        let place = self.places.get_mut(io as usize)?;
        let tally = &mut place.as_mut()?.share.tally;
        if arrived {
            tally.arrive();
        }
        let result = tally.settle(result)?;
        self.count -= 1;
        Some((place.take()?, result))
    }
}

/// What a queue needs for requests that are cut.
#[pin_data]
pub(super) struct CutRequests {
    home: SlotTable<Grain>,
    wire: SlotTable<Grain>,
    grains: u16,
    #[pin]
    requests: IrqLock<Requests>,
}

impl CutRequests {
    /// Room for `grains` and for `ios` requests. May sleep.
    pub(super) fn new(grains: u16, ios: usize) -> Result<impl PinInit<Self>> {
        let mut places = KVec::with_capacity(ios, GFP_KERNEL)?;
        for _ in 0..ios {
            places.push(None, GFP_KERNEL)?;
        }
        let requests = Requests { places, count: 0 };
        let (home, wire) = (
            SlotTable::new(grains.into())?,
            SlotTable::new(grains.into())?,
        );
        Ok(pin_init!(Self {
            home,
            wire,
            grains,
            requests <- new_irq_lock!(requests, "hcablk_cut"),
        }))
    }

    /// The data of a grain of request `io` is there, and goes on.
    pub(super) fn arrive(&self, io: u32) {
        self.requests.lock().arrive(io);
    }

    /// Whether no request's grains are on their way.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.lock().count == 0
    }

    /// The grain that is on the wire by this number.
    pub(super) fn take_fetched(&self, number: u32) -> Option<KBox<Grain>> {
        self.wire.take(number)
    }

    /// What the queue pair was to fetch is not coming. The drive's part of other
    /// grains may go on.
    pub(super) fn give_up(&self) {
        for number in 0..self.grains {
            if let Some(grain) = self.wire.take(number.into()) {
                grain.settle(false, Err(Failure::Wire));
            }
        }
    }

    /// Cuts the references to the queue. Every request is idle.
    pub(super) fn clear(&self) {
        for number in 0..self.grains {
            drop(self.home.take(number.into()));
        }
    }
}

impl Queue {
    /// Makes the grains; their numbers go to `free`. May sleep.
    pub(super) fn make_grains(self: &Arc<Self>) -> Result {
        for number in 0..self.cut.grains {
            let grain = Grain::new(self, number, self.shape.cut.grain())?;
            self.cut
                .home
                .park(number.into(), grain)
                .map_err(|_| EINVAL)?;
            let mut work = self.work.lock();
            work.grains
                .push_within_capacity(number)
                .map_err(|_| ENOMEM)?;
        }
        Ok(())
    }

    /// Gives grains to a request that was admitted, if it is to be cut.
    #[inline]
    pub(super) fn take_grains(&self, work: &mut Work, io: &mut Io) {
        if self.shape.cut.applies(io.length()) {
            self.deal(work, io);
        }
    }

    #[inline(never)]
    fn deal(&self, work: &mut Work, io: &mut Io) {
        let backing = self.backing();
        let (extent, route) = match io.op {
            Ok(Op::Read(extent, remote)) if remote.answer != Answer::Immediate => {
                (extent, backing.read_route())
            }
            Ok(Op::Write { extent, fua, .. })
                if !(self.shape.sinks || fua && backing.flushes_for_fua()) =>
            {
                (extent, backing.write_route())
            }
            _ => return,
        };
        if route != Route::Device {
            return;
        }
        let count = self.shape.cut.count(extent.offset, io.length());
        if count > work.grains.len() {
            self.counters.unchunked.bump();
            pr_info_once!("some large requests are moved whole: too many chunks are under way\n");
            return;
        }
        let share = &mut io.share;
        for place in share.numbers.iter_mut().take(count) {
            if let Some(number) = work.grains.pop() {
                *place = number;
                share.count += 1;
            }
        }
    }

    /// Takes the grains of `io` from home, and makes each a part of its data.
    fn fill_grains(
        &self,
        io: &mut Io,
        op: BioOp,
        extent: message::Extent,
        remote: Remote,
    ) -> [Option<KBox<Grain>>; GRAINS_MAX] {
        let (cut, length) = (self.shape.cut, io.length());
        let grains = array::from_fn(|index| {
            let number = *io.share.numbers().get(index)?;
            // It is there: the number is the request's.
            let mut grain = self.cut.home.take(number.into())?;
            let part = cut.extent(extent.offset, length, index);
            grain.fill(io, op, extent, remote, part);
            Some(grain)
        });
        io.share.tally = Tally::of(io.share.count as u16);
        grains
    }

    /// The request's grains are about to begin; `false`: its session is ending.
    fn park_cut(&self, io: KBox<Io>) -> bool {
        let parked = self.cut.requests.lock().park(io);
        match parked {
            Ok(()) => true,
            Err(mut io) => {
                self.broken("a request is there whose grains are to begin");
                self.leave_cache(&mut io, false);
                self.give_up(io);
                false
            }
        }
    }

    /// Reads by grains. Process context: the drive may let us wait.
    #[inline(never)]
    pub(crate) fn read_grains(&self, mut io: KBox<Io>) {
        let Ok(Op::Read(extent, remote)) = io.op else {
            return self.answer(io, message::Status::IoError);
        };
        let grains = self.fill_grains(&mut io, BioOp::Read, extent, remote);
        if !self.park_cut(io) {
            return;
        }
        plugged(|| {
            for grain in grains.into_iter().flatten() {
                grain.to_drive();
            }
        });
    }

    /// Fetches the data of a write by grains, each of which goes on by itself.
    #[inline(never)]
    pub(super) fn fetch_grains(&self, mut io: KBox<Io>) {
        let Ok(Op::Write {
            extent,
            remote,
            fua,
        }) = io.op
        else {
            return self.answer(io, message::Status::IoError);
        };
        let op = BioOp::Write { fua };
        io.moved = io.length() as u64;
        io.step = Step::Start;
        io.cached = false;
        io.met_pages = false;
        self.enter_cache(&mut io, op, extent);
        let grains = self.fill_grains(&mut io, op, extent, remote);
        let count = io.share.count as u32;
        self.fetching
            .store(self.fetching.load(Relaxed) + count, Relaxed);
        self.counters.rdma_reads.add(count.into());

        let index = io.index;
        if !self.park_cut(io) {
            return;
        }
        let round = (TRANSFER_USUAL as usize)
            .checked_div(self.shape.cut.grain())
            .map_or(1, |grains| (grains + 1).min(ROUND));
        let mut grains = grains.into_iter().flatten().peekable();
        while grains.peek().is_some() {
            if self.fetch_round(grains.by_ref().take(round)).is_err() {
                // Some of it may have been posted; nothing more comes from this pair.
                self.unposted("RDMA READs", Some(index));
                self.cut.give_up();
                for grain in grains {
                    grain.settle(false, Err(Failure::Wire));
                }
                return;
            }
        }
    }

    /// Fetches the data of up to [`ROUND`] grains, of 1 MiB and one more.
    fn fetch_round(&self, grains: impl Iterator<Item = KBox<Grain>>) -> Result {
        let mut entries = [Entry::EMPTY; ROUND_ENTRIES];
        let mut left = &mut entries[..];
        let mut reads: [Option<Rdma<'_>>; ROUND] = [const { None }; ROUND];
        for (grain, read) in grains.zip(reads.iter_mut()) {
            let count = grain.entries(left);
            // There are enough: see `ROUND_ENTRIES`.
            let (mine, others) = mem::take(&mut left).split_at_mut(count);
            left = others;
            let (address, key) = grain.remote();
            let place = grain.places_of().0;
            let read = read.insert(Rdma::read(mine, address, key));
            read.signal(WorkId::new(kind::GRAIN, place));
            if let Err(grain) = self.cut.wire.park(place, grain) {
                // Nobody else has its number.
                self.broken("a chunk is on the wire that is to be fetched");
                grain.settle(false, Err(Failure::Wire));
                return Err(EBUSY);
            }
        }
        let mut chain = Chain::new();
        for read in reads.iter_mut().flatten() {
            chain.push(read);
        }
        self.outbox.rang(chain.len().into());
        self.pair.post(&chain)
    }

    /// An RDMA READ is over. Completion handler. That of one that has failed is settled already:
    /// [`Self::work_failed`].
    pub(super) fn grain_fetched(&self, number: u32) {
        self.fetching
            .store(self.fetching.load(Relaxed) - 1, Relaxed);
        if let Some(grain) = self.cut.take_fetched(number) {
            grain.fetched();
        }
    }

    /// Nothing is under way for `grain`: it goes home, and its request on if it was
    /// the last one. Any context.
    pub(super) fn settle_grain(
        &self,
        grain: KBox<Grain>,
        arrived: bool,
        result: Result<(), Failure>,
    ) {
        let (number, io) = grain.places_of();
        if let Err(Failure::Wire) = result {
            // Unless it is known already why.
            self.unposted("an RDMA WRITE", Some(io));
        }
        if let Err(grain) = self.cut.home.park(number, grain) {
            // Nobody else has its number.
            keep(grain, "a chunk is at home that comes home");
            self.broken("a chunk is at home that comes home");
        }
        let settled = self.cut.requests.lock().settle(io, arrived, result);
        let Some((mut io, result)) = settled else {
            return;
        };
        let result = match result {
            Ok(()) => Ok(()),
            Err(Failure::Drive(status)) => Err(status),
            Err(Failure::Wire) => {
                self.leave_cache(&mut io, false);
                return self.give_up(io);
            }
        };
        match io.op {
            Ok(Op::Read(..)) => self.finish(io, result),
            _ => io.bio_done(result),
        }
    }
}
