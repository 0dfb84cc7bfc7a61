// SPDX-License-Identifier: GPL-2.0

//! The part of requests in their volume's [cache](super::cache): before the drive, after it, and when
//! the answer's send has completed.

use super::{
    cache::{
        Cache,
        CopyDirection, //
    },
    Completion, //
};
use crate::{
    request::Io,
    stats::Counters, //
};
use hcablk_core::{
    blkdev::{
        BioOp,
        BioOwner, //
    },
    logic::mq::lines::Visit,
    p2p::{
        PeerLease,
        PeerMemory, //
    },
    proto::message::{
        Extent,
        Op, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Begins the visit of a request that is about to go to the drive. `true`: it need not, its
/// data is in its buffers, or stays in lines. Process context.
#[inline(always)]
pub(crate) fn enter_cache<O: Completion>(
    owner: &O,
    io: &mut Io<O>,
    op: BioOp,
    extent: Extent,
) -> bool {
    let Some(cache) = owner.backing().cache() else {
        return false;
    };
    enter(owner, cache, io, op, extent)
}

#[inline(never)]
fn enter<O: Completion>(
    owner: &O,
    cache: &Cache,
    io: &mut Io<O>,
    op: BioOp,
    extent: Extent,
) -> bool {
    io.visit = Visit::NONE;
    io.lined = 0;
    io.peer_hit = false;
    // What has a reference began before the memory was lost: it may see what a
    // write that passes by does not tell.
    let leased = match cache.lease().map(PeerLease::memory) {
        Some(None) => {
            report_lost(owner, cache);
            return false;
        }
        Some(leased) => leased,
        None => None,
    };
    let (offset, length, size) = (extent.offset, extent.length, owner.capacity());
    if op == BioOp::Read {
        // Somebody uses the drive on this host.
        if owner.backing().file().has_pages(offset, length as usize) {
            let mut visit = Visit::empty(offset, length);
            cache.enter(&mut visit, size);
            cache.leave(&mut visit, false);
            return false;
        }
        io.visit = cache.read(offset, length, size);
        let hit = io.visit.is_hit();
        match leased {
            Some(leased) => {
                if hit || io.visit.is_owner() {
                    lay(owner, io, leased);
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
fn lay<O: Completion>(owner: &O, io: &mut Io<O>, leased: Arc<PeerMemory>) {
    let (mut pieces, mut all) = (0, true);
    for part in io.parts() {
        pieces += 1;
        all &= part.is_in_line();
    }
    let view = match owner.view() {
        Some(view) if pieces <= owner.write_sges() => view.memory(),
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
    let beside =
        |peer: &Arc<PeerMemory>| peer.is_beside(&lines) && peer.is_mapped() == lines.is_mapped();
    if all || io.peer.as_ref().is_some_and(beside) {
        io.lines = Some(lines);
    }
}

/// Ends the visit of a request that is about to be answered; `ok`: its data is what is on the
/// drive. Any context.
#[inline]
pub(crate) fn leave_cache<O: Completion>(owner: &O, io: &mut Io<O>, ok: bool) {
    if !io.visit.is_outside() {
        leave(owner, io, ok);
    }
}

fn leave<O: Completion>(owner: &O, io: &mut Io<O>, ok: bool) {
    let (Some(cache), Some(extent)) = (owner.backing().cache(), io.extent()) else {
        return;
    };
    let mut keep = ok;
    if ok && io.is_in_lines() {
        if !io.wire_in_ram() {
            // The answer is sent from there.
            return cache.stay(&mut io.visit);
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
pub(crate) fn leave_lines<O: Completion>(owner: &O, io: &mut Io<O>) {
    if !io.visit.is_outside() {
        unpin(owner, io);
    }
}

#[inline(never)]
fn unpin<O: Completion>(owner: &O, io: &mut Io<O>) {
    if let Some(cache) = owner.backing().cache() {
        cache.leave(&mut io.visit, false);
    }
}

#[cold]
fn report_lost<O: Completion>(owner: &O, cache: &Cache) {
    if cache.finds_lost() {
        pr_warn!(
            "{}: the memory of its cache is gone; it goes on without until it is enabled again\n",
            owner.volume()
        );
    }
}

/// Counts in `c` what became of a request that was done well. Completion handler.
pub(crate) fn count_cache<O: Completion>(owner: &O, io: &Io<O>, c: &Counters) {
    let Some(cache) = owner.backing().cache() else {
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
            let without = owner.backing().wants_peers()
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
