// SPDX-License-Identifier: GPL-2.0

//! A volume's cache: lines of the drive's data in this host's memory, or in that of
//! a PCI device (mode p2p).
//!
//! Write-through, and for what initiators read again and again. Which lines are
//! kept, and who may use one, is [`lines`](hcablk_core::logic::mq::lines)' to say; here
//! are the memory and the requests.
//!
//! ```text
//!  begin ──► enter_cache ──┬─ a read, all there: lines ──copy──► buffers ──► answer
//!                          └─ else: drive ──► leave_cache ──copy──► lines ──► answer
//! ```
//!
//! Lines in peer memory need no buffers: the drive's DMA goes to them, and an HCA's comes
//! from them: see [`in_lines`](super::in_lines).
//!
//! ```text
//!            enabled, mode p2p                 the provider's driver is unbound
//!  (none) ──┬─────────────────────► Peer ─────────────────────────────────────► Lost
//!           └─► Ram: mode direct, or nobody lends as much
//! ```
//!
//! *Lost* is for good: nothing is read from lines or put there any more, until the
//! volume is enabled again. That is said, and each read counted
//! (`cache_fallbacks`). To have as much RAM at that moment would be to take it from others, under
//! load; and whoever asked for peer memory wanted to spare it.
//!
//! # Locks and contexts
//!
//! One lock, `lines`, taken inside no other: once before the drive (or the copy),
//! once after it, and more often for requests of many lines, which are gone
//! through a few at a time. [`Queue::enter_cache`] runs in
//! process context, [`Queue::leave_cache`] in any. Copies, of 64 KiB at most, are
//! made without the lock, by the right that the request's `Visit` has.
//!
//! # Memory
//!
//! Peer memory is a [`PeerLease`] that goes with the cache; who uses a line has a reference to the
//! memory, which unbinding waits for. All RAM is allocated when the volume is enabled, and not by taking it from
//! others: a request of the cache's that the page allocator cannot fulfill
//! easily is an error.

use crate::{
    queue::Queue,
    request::Io,
    storage::p2p::{
        borrow_lines,
        Source, //
    }, //
};
use core::cmp::min;
use hcablk_core::{
    blkdev::{
        BioOp,
        BioOwner,
        BlockDevice, //
    },
    logic::mq::{
        lines::{
            Lines,
            Visit,
            LINE,
            LINE_SHIFT, //
        },
        Memory,
    },
    memory::pages::{
        ContiguousPages,
        PageRange, //
    },
    p2p::{
        PeerLease,
        PeerMemory,
        Provider, //
    },
    proto::message::{
        Extent,
        Op, //
    },
    sync::{
        new_irq_lock,
        IrqLock, //
    },
    system::available_memory,
};
use kernel::{
    alloc::flags::__GFP_NOWARN,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};

/// Pages that are allocated together, as a power of two.
const BLOCK_ORDER: u32 = 3;
/// Lines in them.
const BLOCK_LINES: usize = (PAGE_SIZE << BLOCK_ORDER) >> LINE_SHIFT;

/// Arrays of the kernel's.
struct Arrays;

impl Memory for Arrays {
    type Of<T> = KVVec<T>;
    type Error = Error;

    fn make<T: Copy>(value: T, count: usize) -> Result<KVVec<T>> {
        let flags = GFP_KERNEL | __GFP_NOWARN;
        let mut array = KVVec::with_capacity(count, flags)?;
        for _ in 0..count {
            array.push(value, flags)?;
        }
        Ok(array)
    }
}

/// The direction in which data is copied.
#[derive(Clone, Copy)]
enum CopyDirection {
    FromLines,
    ToLines,
}

/// See the module.
#[pin_data]
pub(crate) struct Cache {
    #[pin]
    lines: IrqLock<Lines<Arrays>>,
    memory: LineMemory,
    /// It was said that its memory is gone.
    told: Atomic<bool>,
}

/// Where the lines are.
enum LineMemory {
    Ram(KVVec<ContiguousPages>),
    Peer(PeerLease),
}

/// Returns the piece of peer memory that the line in `slot` is in, and the byte there of the line's
/// byte `within`.
pub(crate) fn place_of(slot: u32, within: usize) -> (u32, usize) {
    let lines = BLOCK_LINES as u32;
    (slot / lines, (slot % lines) as usize * LINE + within)
}

impl Cache {
    /// Borrows peer memory for a cache of `mib` MiB, all of it, or says why not. Sleeps.
    pub(crate) fn borrow(
        source: Source,
        drive: &BlockDevice,
        mib: u32,
    ) -> Result<PeerLease, &'static str> {
        borrow_lines(source, drive, Self::blocks(mib), BLOCK_LINES * LINE)
    }

    /// Returns the pieces of memory that are allocated for `mib` MiB.
    fn blocks(mib: u32) -> usize {
        ((u64::from(mib) << 20) >> LINE_SHIFT) as usize / BLOCK_LINES
    }

    /// Makes an empty cache, in what is leased to it, or in RAM. May sleep. Errors come
    /// with what could not be done.
    pub(crate) fn new(
        mib: u32,
        leased: Option<PeerLease>,
    ) -> Result<Arc<Self>, (&'static str, Error)> {
        let bytes = u64::from(mib) << 20;
        let short = |_| ("there is no memory for the cache", ENOMEM);
        if leased.is_none() && bytes > available_memory() / 2 {
            return Err((
                "cache_mib is more than half of the memory that is available",
                ENOMEM,
            ));
        }
        let lines = Lines::new((bytes >> LINE_SHIFT) as u32).map_err(short)?;
        let memory = match leased {
            Some(lease) => LineMemory::Peer(lease),
            None => LineMemory::Ram(Self::ram(Self::blocks(mib)).map_err(short)?),
        };
        let cache = pin_init!(Self {
            lines <- new_irq_lock!(lines, "hcablk_cache"),
            memory,
            told: Atomic::new(false),
        });
        Arc::pin_init(cache, GFP_KERNEL).map_err(short)
    }

    fn ram(count: usize) -> Result<KVVec<ContiguousPages>> {
        let flags = GFP_KERNEL | __GFP_NOWARN;
        let mut memory = KVVec::with_capacity(count, flags)?;
        for _ in 0..count {
            memory.push(ContiguousPages::alloc_if_plenty(BLOCK_ORDER)?, flags)?;
        }
        Ok(memory)
    }

    /// Returns the lease that the lines are in, if they are in peer memory.
    pub(crate) fn lease(&self) -> Option<&PeerLease> {
        match &self.memory {
            LineMemory::Peer(lease) => Some(lease),
            LineMemory::Ram(_) => None,
        }
    }

    /// Returns who lends it.
    pub(crate) fn lender(&self) -> Option<&Arc<Provider>> {
        self.lease().map(PeerLease::provider)
    }

    /// Returns a piece of the line in `slot`, in RAM.
    fn piece(&self, slot: u32, offset: usize, length: usize) -> Option<PageRange<'_>> {
        let LineMemory::Ram(memory) = &self.memory else {
            return None;
        };
        let (block, start) = place_of(slot, offset);
        Some(memory.get(block as usize)?.range(start, length))
    }

    /// Copies between the lines that `visit` has a right to, in peer memory if they are
    /// `leased`, and the RAM of its request, which begins at `offset`; how many bytes
    /// that were.
    fn copy<'a>(
        &self,
        visit: &Visit,
        offset: u64,
        memory: impl Iterator<Item = PageRange<'a>>,
        direction: CopyDirection,
        leased: Option<&PeerMemory>,
    ) -> u64 {
        let mut at = offset;
        let mut copied = 0;
        for range in memory {
            let mut done = 0;
            while done < range.length() as usize {
                let within = at as usize & (LINE - 1);
                let length = min(LINE - within, range.length() as usize - done);
                let buffer = range.part(done, length);
                if let Some(slot) = visit.slot(at >> LINE_SHIFT) {
                    copied += match (direction, leased) {
                        (CopyDirection::ToLines, Some(leased)) => {
                            let (piece, offset) = place_of(slot, within);
                            leased.store(piece, offset, buffer)
                        }
                        (CopyDirection::FromLines, Some(leased)) => {
                            let (piece, offset) = place_of(slot, within);
                            leased.load(piece, offset, buffer)
                        }
                        (_, None) => self.copy_ram(slot, within, buffer, direction),
                    } as u64;
                }
                at += length as u64;
                done += length;
            }
        }
        copied
    }

    fn copy_ram(
        &self,
        slot: u32,
        within: usize,
        buffer: PageRange<'_>,
        direction: CopyDirection,
    ) -> usize {
        let length = buffer.length() as usize;
        let Some(line) = self.piece(slot, within, length) else {
            return 0;
        };
        match direction {
            CopyDirection::FromLines => line.copy_to(buffer),
            CopyDirection::ToLines => buffer.copy_to(line),
        }
        length
    }

    fn enter(&self, visit: &mut Visit, size: u64) {
        while !self.lines.lock().enter(visit, size) {}
    }

    /// Ends a visit. Any context.
    pub(crate) fn leave(&self, visit: &mut Visit, keep: bool) {
        while !self.lines.lock().leave(visit, keep) {}
    }
}

impl Queue {
    /// Begins the visit of a request that is about to go to the drive. `true`: it need not, its
    /// data is in its buffers, or stays in lines. Process context.
    #[inline]
    pub(crate) fn enter_cache(&self, io: &mut Io, op: BioOp, extent: Extent) -> bool {
        let Some(cache) = self.backing().cache() else {
            return false;
        };
        self.enter(cache, io, op, extent)
    }

    fn enter(&self, cache: &Cache, io: &mut Io, op: BioOp, extent: Extent) -> bool {
        io.visit = Visit::NONE;
        io.lined = 0;
        io.peer_hit = false;
        // What has a reference began before the memory was lost: it may see what a
        // write that passes by does not tell.
        let leased = match cache.lease().map(PeerLease::memory) {
            Some(None) => {
                self.report_lost(cache);
                return false;
            }
            Some(leased) => leased,
            None => None,
        };
        let (offset, length, size) = (extent.offset, extent.length, self.capacity());
        if op == BioOp::Read {
            // Somebody uses the drive on this host.
            if self.backing().file().has_pages(offset, length as usize) {
                let mut visit = Visit::empty(offset, length);
                cache.enter(&mut visit, size);
                cache.leave(&mut visit, false);
                return false;
            }
            io.visit = cache.lines.lock().read(offset, length, size);
            let hit = io.visit.is_hit();
            match leased {
                Some(leased) => {
                    if hit || io.visit.is_owner() {
                        self.lay(io, leased);
                    }
                }
                None if hit => {
                    io.lined = cache.copy(
                        &io.visit,
                        offset,
                        io.pages(),
                        CopyDirection::FromLines,
                        None,
                    );
                }
                None => {}
            }
            return hit;
        }
        io.visit = match op {
            BioOp::Write { .. } => Visit::write(offset, length),
            _ => Visit::empty(offset, length),
        };
        cache.enter(&mut io.visit, size);
        false
    }

    /// Puts the data of a read, or what of it is to be kept, into the lines of its visit, if that
    /// can be. Process context.
    fn lay(&self, io: &mut Io, leased: Arc<PeerMemory>) {
        let (mut pieces, mut all) = (0, true);
        for part in io.parts() {
            pieces += 1;
            all &= part.is_in_line();
        }
        let view = match self.view() {
            Some(view) if pieces <= self.shape().write_sges() => view.memory(),
            _ => None,
        };
        let lines = view.unwrap_or(leased);
        if io.visit.is_hit() {
            // The drive is not asked.
            io.peer = None;
            io.peer_hit = true;
            if !lines.is_mapped() {
                io.lined = io.load_lines(&lines);
                return;
            }
        }
        let beside = |peer: &Arc<PeerMemory>| {
            peer.is_beside(&lines) && peer.is_mapped() == lines.is_mapped()
        };
        if all || io.peer.as_ref().is_some_and(beside) {
            io.lines = Some(lines);
        }
    }

    /// Ends the visit of a request that is about to be answered; `ok`: its data is what is on the
    /// drive. Any context.
    #[inline]
    pub(crate) fn leave_cache(&self, io: &mut Io, ok: bool) {
        if !io.visit.is_out() {
            self.leave(io, ok);
        }
    }

    fn leave(&self, io: &mut Io, ok: bool) {
        let (Some(cache), Some(extent)) = (self.backing().cache(), io.extent()) else {
            return;
        };
        let mut keep = ok;
        if ok && io.is_in_lines() {
            if !io.wire_in_ram() {
                // The answer is sent from there.
                return cache.lines.lock().stay(&mut io.visit);
            }
        } else if ok && io.visit.is_owner() {
            let leased = cache.lease().map(PeerLease::memory);
            match leased {
                // It is nowhere but in peer memory, or there are no lines any more.
                Some(_) if !io.wire_in_ram() => keep = false,
                Some(None) => keep = false,
                leased => {
                    let leased = leased.flatten();
                    let (from, pages) = (extent.offset, io.ram_pages());
                    io.lined = cache.copy(
                        &io.visit,
                        from,
                        pages,
                        CopyDirection::ToLines,
                        leased.as_deref(),
                    );
                }
            }
        }
        cache.leave(&mut io.visit, keep);
    }

    /// Unpins the lines of a request whose answer's send has completed, or never will. Any context.
    #[inline]
    pub(crate) fn leave_lines(&self, io: &mut Io) {
        if !io.visit.is_out() {
            self.unpin(io);
        }
    }

    #[inline(never)]
    fn unpin(&self, io: &mut Io) {
        if let Some(cache) = self.backing().cache() {
            cache.leave(&mut io.visit, false);
        }
    }

    #[cold]
    fn report_lost(&self, cache: &Cache) {
        if !cache.told.xchg(true, Relaxed) {
            pr_warn!(
                "{}: the memory of its cache is gone; it goes on without until it is enabled again\n",
                **self.session().volume()
            );
        }
    }

    /// Counts what became of a request that was done well. In the completion
    /// handler.
    pub(crate) fn count_cache(&self, io: &Io) {
        let c = self.counters();
        let Some(cache) = self.backing().cache() else {
            return;
        };
        let peer = cache.lease().is_some();
        match io.op {
            Ok(Op::Read(..)) => {
                let Visit {
                    hits,
                    misses,
                    evictions,
                    ..
                } = io.visit;
                c.cache_hits.add(hits.into());
                c.cache_misses.add(misses.into());
                c.cache_evictions.add(evictions.into());
                let hit = hits != 0 && misses == 0;
                let served = if hit { io.length() as u64 } else { 0 };
                c.bytes_from_cache.add(served);
                c.cache_peer_bytes.add(if peer { served } else { 0 });
                let without = self.backing().wants_peers()
                    && cache.lease().is_none_or(|lease| lease.memory().is_none());
                c.cache_fallbacks.add(without.into());
            }
            Ok(Op::Write { .. } | Op::WriteInline { .. } | Op::WriteEager { .. }) => {}
            _ => return,
        }
        c.cache_copied_bytes.add(io.lined);
        // Peer memory is none of this host's.
        c.ram_bytes.add(if peer { 0 } else { io.lined });
    }
}
