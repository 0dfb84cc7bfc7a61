// SPDX-License-Identifier: GPL-2.0

//! Holds a volume's cache: lines of the drive's data in this host's memory, or in that of a PCI
//! device (mode p2p).
//!
//! It is write-through, and meant for data that initiators read repeatedly.
//! [`lines`](hcablk_core::logic::mq::lines) decides which lines are kept, and which requests may
//! use one; this file has the memory; `io/cache.rs` has the requests' part.
//!
//! ```text
//!  begin ──► enter_cache ──┬─ a read, all there: lines ──copy──► buffers ──► response
//!                          └─ else: drive ──► leave_cache ──copy──► lines ──► response
//! ```
//!
//! Lines in peer memory need no buffers: the DMA of drive and HCA goes directly to and from them,
//! see `io/cache.rs`.
//!
//! ```text
//!            enabled, mode p2p                 the provider's driver is unbound
//!  (none) ──┬─────────────────────► Peer ─────────────────────────────────────► Lost
//!           └─► Ram: mode direct, or no device lends that
//! ```
//!
//! *Lost* is final: no line is read or written any more, until the volume is enabled again. This is
//! logged, and each read is counted (`cache_fallbacks`). RAM does not replace the lines: it would
//! be taken from other users at a moment of load, and peer memory was chosen to save RAM.
//!
//! # Locks and contexts
//!
//! One lock, `lines`, taken inside no other: once before the drive (or the copy), once after it,
//! and more often for requests of many lines, which are processed a few at a time. `enter_cache()`
//! runs in process context, `leave_cache()` in any. Copies, of 64 KiB at most, are made without the
//! lock, under the right that the request's `Visit` has.
//!
//! # Memory
//!
//! Peer memory is a [`PeerLease`] owned by the cache; a user of a line has a reference to the
//! memory, which unbinding waits for. All RAM is allocated when the volume is enabled, from free
//! memory only: if the page allocator would have to reclaim memory, enabling fails.

use super::p2p::{
    borrow_lines,
    Source, //
};
use core::cmp::min;
use hcablk_core::{
    blkdev::BlockDevice,
    logic::mq::{
        lines::{
            Lines,
            Visit,
            LINE,
            LINE_SHIFT, //
        },
        Memory, //
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
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        new_irq_lock,
        IrqLock, //
    },
    system::available_memory, //
};
use kernel::{
    alloc::flags::__GFP_NOWARN,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// The order of the page allocations for lines.
pub(crate) const BLOCK_ORDER: u32 = 3;
/// Lines in each of these allocations.
pub(crate) const BLOCK_LINES: usize = (PAGE_SIZE << BLOCK_ORDER) >> LINE_SHIFT;

/// Returns the piece of the lines' memory that holds the line in `slot`, and the offset there of
/// the line's byte `within`.
pub(crate) fn place_of(slot: u32, within: usize) -> (u32, usize) {
    let lines = BLOCK_LINES as u32;
    (slot / lines, (slot % lines) as usize * LINE + within)
}

/// Arrays allocated with the kernel's allocator.
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
pub(crate) enum CopyDirection {
    FromLines,
    ToLines,
}

/// A volume's cache: see the module.
#[pin_data]
pub(crate) struct Cache {
    #[pin]
    lines: IrqLock<Lines<Arrays>>,
    memory: LineMemory,
    /// The loss of its memory was logged.
    reported: Atomic<bool>,
}

/// The memory of the lines.
enum LineMemory {
    Ram(KVVec<ContiguousPages>),
    Peer(PeerLease),
}

impl Cache {
    /// Borrows peer memory for all of a cache of `mib` MiB, or returns the reason why it cannot.
    /// Sleeps.
    pub(crate) fn borrow(
        source: Source,
        drive: &BlockDevice,
        mib: u32,
    ) -> Result<PeerLease, &'static str> {
        borrow_lines(source, drive, Self::blocks(mib), BLOCK_LINES * LINE)
    }

    /// Returns the number of pieces of memory for `mib` MiB.
    fn blocks(mib: u32) -> usize {
        ((u64::from(mib) << 20) >> LINE_SHIFT) as usize / BLOCK_LINES
    }

    /// Creates an empty cache, in the leased memory, or in RAM. May sleep. Errors name the step
    /// that failed.
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
            reported: Atomic::new(false),
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

    /// Returns the lease of the lines' memory, if they are in peer memory.
    pub(crate) fn lease(&self) -> Option<&PeerLease> {
        match &self.memory {
            LineMemory::Peer(lease) => Some(lease),
            LineMemory::Ram(_) => None,
        }
    }

    /// Returns the provider of the peer memory.
    pub(crate) fn lender(&self) -> Option<&Arc<Provider>> {
        self.lease().map(PeerLease::provider)
    }

    /// Returns a part of the line in `slot`, in RAM.
    fn piece(&self, slot: u32, offset: usize, length: usize) -> Option<PageRange<'_>> {
        let LineMemory::Ram(memory) = &self.memory else {
            return None;
        };
        let (block, start) = place_of(slot, offset);
        Some(memory.get(block as usize)?.range(start, length))
    }

    /// Copies between the lines that `visit` may use, which are in `leased` if that is given, and
    /// `memory`, the RAM of its request, which begins at `offset` of the volume. Returns the number
    /// of bytes copied.
    pub(crate) fn copy<'a>(
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

    /// Begins the visit of a read of `length` bytes at `offset`, on a drive of `size` bytes.
    /// Process context.
    #[inline]
    pub(crate) fn read(&self, offset: u64, length: u32, size: u64) -> Visit {
        self.lines.lock().read(offset, length, size)
    }

    /// Begins the visit of another kind of request, on a drive of `size` bytes. Process context.
    pub(crate) fn enter(&self, visit: &mut Visit, size: u64) {
        while !self.lines.lock().enter(visit, size) {}
    }

    /// Keeps the lines of a visit pinned, since a response is sent from them. Any context.
    pub(crate) fn keep_pinned(&self, visit: &mut Visit) {
        self.lines.lock().keep_pinned(visit);
    }

    /// Records that the memory was found lost. Returns `true` for the first call only.
    pub(crate) fn finds_lost(&self) -> bool {
        !self.reported.xchg(true, Relaxed)
    }

    /// Ends a visit. Any context.
    pub(crate) fn leave(&self, visit: &mut Visit, keep: bool) {
        while !self.lines.lock().leave(visit, keep) {}
    }
}
