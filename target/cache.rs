// SPDX-License-Identifier: GPL-2.0

//! A volume's cache: lines of the drive's data in this host's memory.
//!
//! Write-through, and for what initiators read again and again. Which lines are
//! kept, and who may use one, is [`lines`](hcablk_core::mq::lines)' to say; here
//! are the memory and the requests.
//!
//! ```text
//!  begin ──► enter_cache ──┬─ a read, all there: lines ──copy──► buffers ──► answer
//!                          └─ else: drive ──► leave_cache ──copy──► lines ──► answer
//! ```
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
//! All of it is allocated when the volume is enabled, and not by taking it from
//! others: a request of the cache's that the page allocator cannot fulfill
//! easily is an error.

use crate::{
    io::Io,
    queue::Queue, //
};
use core::cmp::min;
use hcablk_core::{
    blkdev::{
        BioOp,
        BioOwner, //
    },
    mq::{
        lines::{
            Lines,
            Visit,
            LINE,
            LINE_SHIFT, //
        },
        Memory,
    },
    pages::{
        PageChunk,
        PageRange, //
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
    sync::Arc, //
};

/// Pages that are allocated together, as a power of two.
const CHUNK_ORDER: u32 = 3;
/// Lines in them.
const CHUNK_LINES: usize = (PAGE_SIZE << CHUNK_ORDER) >> LINE_SHIFT;

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

/// Which way data is copied.
#[derive(Clone, Copy)]
enum Way {
    FromLines,
    ToLines,
}

/// See the module.
#[pin_data]
pub(crate) struct Cache {
    #[pin]
    lines: IrqLock<Lines<Arrays>>,
    memory: KVVec<PageChunk>,
}

impl Cache {
    /// Makes an empty cache. May sleep. Errors come with what could not be done.
    pub(crate) fn new(mib: u32) -> Result<Arc<Self>, (&'static str, Error)> {
        let bytes = u64::from(mib) << 20;
        if bytes > available_memory() / 2 {
            return Err((
                "cache_mib is more than half of the memory that is available",
                ENOMEM,
            ));
        }
        let short = |_| ("there is no memory for the cache", ENOMEM);
        let lines = Lines::new((bytes >> LINE_SHIFT) as u32).map_err(short)?;
        let count = (bytes >> LINE_SHIFT) as usize / CHUNK_LINES;
        let flags = GFP_KERNEL | __GFP_NOWARN;
        let mut memory = KVVec::with_capacity(count, flags).map_err(|e| short(e.into()))?;
        for _ in 0..count {
            let chunk = PageChunk::alloc_if_plenty(CHUNK_ORDER).map_err(short)?;
            memory.push(chunk, flags).map_err(|e| short(e.into()))?;
        }
        let cache = pin_init!(Self {
            lines <- new_irq_lock!(lines, "hcablk_cache"),
            memory,
        });
        Arc::pin_init(cache, GFP_KERNEL).map_err(short)
    }

    /// A piece of the line in `slot`.
    fn piece(&self, slot: u32, offset: usize, length: usize) -> Option<PageRange<'_>> {
        let slot = slot as usize;
        let chunk = self.memory.get(slot / CHUNK_LINES)?;
        Some(chunk.range(slot % CHUNK_LINES * LINE + offset, length))
    }

    /// Copies between the lines that `visit` has a right to and the memory of its
    /// request, which begins at `offset`; how many bytes that were.
    fn copy<'a>(
        &self,
        visit: &Visit,
        offset: u64,
        memory: impl Iterator<Item = PageRange<'a>>,
        way: Way,
    ) -> u64 {
        let mut at = offset;
        let mut copied = 0;
        for range in memory {
            let mut done = 0;
            while done < range.length() as usize {
                let within = at as usize & (LINE - 1);
                let length = min(LINE - within, range.length() as usize - done);
                let slot = visit.slot(at >> LINE_SHIFT);
                if let Some(line) = slot.and_then(|slot| self.piece(slot, within, length)) {
                    let buffer = range.part(done, length);
                    match way {
                        Way::FromLines => line.copy_to(buffer),
                        Way::ToLines => buffer.copy_to(line),
                    }
                    copied += length as u64;
                }
                at += length as u64;
                done += length;
            }
        }
        copied
    }

    fn enter(&self, visit: &mut Visit, size: u64) {
        while !self.lines.lock().enter(visit, size) {}
    }

    fn leave(&self, visit: &mut Visit, keep: bool) {
        while !self.lines.lock().leave(visit, keep) {}
    }
}

impl Queue {
    /// A request is about to go to the drive. `true`: it need not, its data is in
    /// its buffers. Process context.
    #[inline]
    pub(crate) fn enter_cache(&self, io: &mut Io, op: BioOp, extent: Extent) -> bool {
        let Some(cache) = self.backing().cache() else {
            return false;
        };
        io.visit = Visit::NONE;
        io.lined = 0;
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
            if hit {
                io.lined = cache.copy(&io.visit, offset, io.pages(), Way::FromLines);
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

    /// A request is about to be answered; `ok`: its data is what is on the drive.
    /// Any context.
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
        if ok && io.visit.is_owner() {
            io.lined = cache.copy(&io.visit, extent.offset, io.pages(), Way::ToLines);
        }
        cache.leave(&mut io.visit, ok);
    }

    /// Counts what became of a request that was done well. In the completion
    /// handler.
    pub(crate) fn count_cache(&self, io: &Io) {
        let c = self.counters();
        if self.backing().cache().is_none() {
            return;
        }
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
                c.bytes_from_cache.add(if hit { io.lined } else { 0 });
            }
            Ok(Op::Write { .. } | Op::WriteInline { .. } | Op::WriteGranted { .. }) => {}
            _ => return,
        }
        c.cache_copied_bytes.add(io.lined);
        c.ram_bytes.add(io.lined);
    }
}
