// SPDX-License-Identifier: GPL-2.0

//! The transfer buffers of a queue: its own, by number, and borrowed ones.
//!
//! ```text
//!                      borrow()            take()
//!  (shared pool) ──────────────► Kept ──────────────► a request's
//!        ▲                        │ ▲                      │ give()
//!        └── give_back() ─────────┘ └── nobody wants them ─┤
//!        └────────────────────────────────── others wait ──┘
//! ```
//!
//! Unused borrowed buffers are kept, so that a queue usually takes no lock but its own
//! `Queue::work`, which protects this. They are returned when another queue waits, when the shared
//! pool must shrink ([`Pool::give_back_if_pressed`]), and with the queue. A queue that is closing
//! returns nothing ([`Pool::close`]) before its queue pair and the regions over its buffers are
//! destroyed: the HCA may still use them, and on iWARP so may the peer, with any queue pair of the
//! session. If the device cannot invalidate such a region, the buffers are never returned.
//!
//! A request has buffers of one length. If too few buffers of that length are free, other lengths
//! are tried. Every request can use the queue's own buffers, of 32 KiB, at the latest when the
//! earlier requests have ended.

use super::{
    choice::{
        choose,
        Choice,
        Free, //
    },
    layout::{
        class_for,
        count,
        length_of,
        LARGE,
        MEDIUM,
        PAGES,
        SIZE_CLASSES,
        SMALL, //
    },
    PoolHandle, //
};
use hcablk_core::{
    broken,
    rdma::{
        buffer::DmaBuffer,
        pd::ProtectionDomain, //
    }, //
    report::broken::push_into_room,
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The number of small buffers that are borrowed at a time.
const HANDFUL: usize = 16;
/// The most buffers of a size class that a queue borrows.
pub(crate) const MOST: usize = 4096;

/// The buffers that a request got.
#[derive(Clone, Copy)]
pub(crate) struct TakenBuffers {
    /// The number of the queue's own buffers.
    pub(crate) own: usize,
    pub(crate) size_class: usize,
    /// Whether the peer memory of the buffers is used.
    pub(crate) by_peer: bool,
}

/// The borrowed buffers of one size class.
struct BorrowedBuffers {
    /// The unused ones. Has room for all that the queue may borrow.
    buffers: KVec<Arc<DmaBuffer>>,
    /// The number of borrowed buffers, used or not.
    borrowed: usize,
    most: usize,
}

/// The transfer buffers of a queue: see the module. Own buffers below `peers` also have peer
/// memory. Each list has room for all its buffers, and for nothing else.
pub(crate) struct Pool {
    ram: KVec<u16>,
    peer: KVec<u16>,
    peers: u16,
    kept: [BorrowedBuffers; SIZE_CLASSES],
    handle: Option<Arc<PoolHandle>>,
    /// The protection domain whose keys reach the requests' buffers.
    pd: Arc<ProtectionDomain>,
    /// Whether the handle is notified when others return buffers.
    waits: bool,
    /// Whether buffers are withheld until this is dropped.
    closed: bool,
    /// A list had no room, or a buffer was about to be returned too early.
    broken: bool,
}

impl Pool {
    /// Creates a pool in which all of `buffers` own ones are free; others are borrowed with
    /// `handle`, for `ios` requests. May sleep.
    pub(crate) fn new(
        buffers: usize,
        peers: usize,
        ios: usize,
        handle: Option<Arc<PoolHandle>>,
        pd: &Arc<ProtectionDomain>,
    ) -> Result<Self> {
        let peers = u16::try_from(peers.min(buffers))?;
        let list = |range: core::ops::Range<u16>| -> Result<KVec<u16>> {
            let mut list = KVec::with_capacity(range.len(), GFP_KERNEL)?;
            // The lowest numbers are taken first.
            for buffer in range.rev() {
                list.push(buffer, GFP_KERNEL)?;
            }
            Ok(list)
        };
        let pages = handle.as_ref().map_or(0, |handle| handle.most());
        let kept = |size_class: usize| -> Result<BorrowedBuffers> {
            let weight = PAGES.get(size_class).copied().unwrap_or(1);
            let most = (pages / u64::from(weight)).min(MOST as u64) as usize;
            // A request has at most one small buffer.
            let most = if size_class == SMALL {
                most.min(ios)
            } else {
                most
            };
            Ok(BorrowedBuffers {
                buffers: KVec::with_capacity(most, GFP_KERNEL)?,
                borrowed: 0,
                most,
            })
        };
        Ok(Self {
            ram: list(peers..u16::try_from(buffers)?)?,
            peer: list(0..peers)?,
            peers,
            kept: [kept(SMALL)?, kept(MEDIUM)?, kept(LARGE)?],
            handle,
            pd: pd.clone(),
            waits: false,
            closed: false,
            broken: false,
        })
    }

    /// Returns whether a buffer was lost, or was about to be lost or returned while a peer may
    /// write to it: that is a bug.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Withholds all buffers from here on: none is returned until the pool is dropped.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.cancel_wait();
    }

    /// Finds buffers for `length` bytes: puts borrowed ones into `shared`, which is empty and has
    /// room, then the numbers of own ones into `places`. Uses peer memory if the request `wants` it
    /// and some is free. Returns `None`, with nothing changed, if the request must wait.
    #[inline]
    pub(crate) fn take(
        &mut self,
        length: usize,
        wants: bool,
        places: &mut [u16],
        shared: &mut KVec<Arc<DmaBuffer>>,
    ) -> Option<TakenBuffers> {
        if length == 0 {
            return Some(TakenBuffers {
                own: 0,
                size_class: MEDIUM,
                by_peer: false,
            });
        }
        let taken = if self.handle.is_none() {
            self.take_own(count(MEDIUM, length), wants, places)
        } else {
            let size_class = class_for(length);
            self.take_kept(size_class, count(size_class, length), shared)
                .or_else(|| self.take_more(size_class, length, places, shared))
        };
        if self.waits && taken.is_some() {
            self.cancel_wait();
        }
        taken
    }

    /// Takes one of the kept small buffers for `length` bytes. Returns `false` in all cases that
    /// [`Self::take`] must handle: more bytes, no kept buffer, or a waiting request.
    #[inline(always)]
    pub(crate) fn take_page(&mut self, length: usize, shared: &mut KVec<Arc<DmaBuffer>>) -> bool {
        if length > length_of(SMALL) || self.waits || shared.len() == shared.capacity() {
            return false;
        }
        match self.kept[SMALL].buffers.pop() {
            Some(buffer) => {
                let what = "a request has no place for its buffers";
                self.broken |= !push_into_room(shared, buffer, what);
                true
            }
            None => false,
        }
    }

    /// Takes `need` own buffers, with peer memory or without.
    fn take_own(&mut self, need: usize, wants: bool, places: &mut [u16]) -> Option<TakenBuffers> {
        let free = Free {
            ram: self.ram.len(),
            peer: self.peer.len(),
            peers: self.peers.into(),
        };
        let choice = choose(need, wants, free);
        for place in places.get_mut(..need)? {
            let buffer = match choice {
                Choice::Wait => None,
                Choice::Peer => self.peer.pop(),
                Choice::Ram => self.ram.pop(),
                Choice::Any => self.ram.pop().or_else(|| self.peer.pop()),
            };
            *place = buffer?;
        }
        Some(TakenBuffers {
            own: need,
            size_class: MEDIUM,
            by_peer: choice == Choice::Peer,
        })
    }

    /// Takes `need` of the kept buffers.
    #[inline]
    fn take_kept(
        &mut self,
        size_class: usize,
        need: usize,
        shared: &mut KVec<Arc<DmaBuffer>>,
    ) -> Option<TakenBuffers> {
        let buffers = &mut self.kept.get_mut(size_class)?.buffers;
        if buffers.len() < need {
            return None;
        }
        if shared.capacity() - shared.len() < need {
            self.broken = true;
            return None;
        }
        for _ in 0..need {
            // `shared` has room for the buffers of any request.
            let buffer = buffers.pop()?;
            self.broken |=
                !push_into_room(shared, buffer, "a request has no place for its buffers");
        }
        Some(TakenBuffers {
            own: 0,
            size_class,
            by_peer: false,
        })
    }

    /// Borrows until `need` buffers are kept. Returns `false` if that is not possible now.
    fn borrow(&mut self, size_class: usize, need: usize) -> bool {
        let (Some(kept), Some(handle)) = (self.kept.get_mut(size_class), self.handle.as_ref())
        else {
            return false;
        };
        let missing = need.saturating_sub(kept.buffers.len());
        if missing == 0 {
            return true;
        }
        if kept.borrowed + missing > kept.most
            || !handle.borrow(size_class, missing, &mut kept.buffers)
        {
            return false;
        }
        kept.borrowed += missing;
        true
    }

    /// Takes buffers as [`Self::take`] does, if not enough of the right ones are kept.
    #[inline(never)]
    fn take_more(
        &mut self,
        size_class: usize,
        length: usize,
        places: &mut [u16],
        shared: &mut KVec<Arc<DmaBuffer>>,
    ) -> Option<TakenBuffers> {
        let (need, buffers) = (count(size_class, length), count(MEDIUM, length));
        if size_class == SMALL {
            if self.borrow(SMALL, HANDFUL) || self.borrow(SMALL, need) {
                return self.take_kept(SMALL, need, shared);
            }
        } else if size_class == LARGE && self.ram.len() < buffers && self.borrow(LARGE, need) {
            return self.take_kept(LARGE, need, shared);
        }
        // Uses own buffers first, and shared ones for the rest.
        let own = self.ram.len().min(buffers);
        if self.borrow(MEDIUM, buffers - own) {
            let taken = self.take_kept(MEDIUM, buffers - own, shared)?;
            self.take_own(own, false, places)?;
            return Some(TakenBuffers { own, ..taken });
        }
        if size_class == MEDIUM {
            let large = count(LARGE, length);
            if self.borrow(LARGE, large) {
                return self.take_kept(LARGE, large, shared);
            }
        }
        self.wait_for(size_class, length, buffers - own);
        None
    }

    /// Waits until others have returned enough buffers, of any size class; or, if there can never
    /// be enough, for own buffers. `buffers` is the number of missing buffers of 32 KiB.
    fn wait_for(&mut self, size_class: usize, length: usize, buffers: usize) {
        // A waiting queue must not withhold buffers that do not suffice for itself.
        self.give_back_kept();
        let Some(handle) = self.handle.as_ref() else {
            return;
        };
        let mut wants = [0; SIZE_CLASSES];
        for (z, (want, kept)) in wants.iter_mut().zip(&self.kept).enumerate() {
            let need = match z {
                MEDIUM => buffers,
                LARGE if size_class != SMALL => count(LARGE, length),
                z if z == size_class => count(size_class, length),
                _ => continue,
            };
            if kept.borrowed + need <= kept.most {
                *want = need as u32;
            }
        }
        self.waits = handle.wait(wants);
    }

    /// Stops waiting.
    #[cold]
    pub(crate) fn cancel_wait(&mut self) {
        self.waits = false;
        if let Some(handle) = self.handle.as_ref() {
            handle.cancel_wait();
        }
    }

    /// Returns whether others want the queue's unused buffers. Any context.
    #[inline]
    fn is_pressed(&self) -> bool {
        self.handle
            .as_ref()
            .is_some_and(|handle| handle.is_pressed())
    }

    /// Gives unused borrowed buffers back, if others want them. Any context.
    pub(crate) fn give_back_if_pressed(&mut self) {
        if self.is_pressed() {
            self.give_back_kept();
        }
    }

    fn give_back_kept(&mut self) {
        if self.closed {
            return;
        }
        let mut all = self.kept.iter().flat_map(|kept| &kept.buffers);
        if all.any(|buffer| buffer.is_exposed()) {
            // The request that had the buffer should have closed this pool.
            broken!("a buffer that a peer may still write to was about to be returned");
            self.closed = true;
            self.broken = true;
            return;
        }
        self.give_back_all();
    }

    fn give_back_all(&mut self) {
        let Some(handle) = self.handle.as_ref() else {
            return;
        };
        for (size_class, kept) in self.kept.iter_mut().enumerate() {
            if !kept.buffers.is_empty() {
                kept.borrowed -= kept.buffers.len();
                handle.give_back(size_class, &mut kept.buffers);
            }
        }
    }

    /// Puts an own buffer back.
    #[inline]
    pub(crate) fn put_back(&mut self, buffer: u16) {
        let list = if buffer < self.peers {
            &mut self.peer
        } else {
            &mut self.ram
        };
        // The list has room for all own buffers.
        self.broken |= !push_into_room(list, buffer, "a free buffer has no place");
    }

    /// Puts borrowed buffers of `size_class` back.
    #[inline]
    pub(crate) fn give_shared(&mut self, size_class: usize, shared: &mut KVec<Arc<DmaBuffer>>) {
        if let Some(kept) = self.kept.get_mut(size_class) {
            while let Some(buffer) = shared.pop() {
                // The list has room for all borrowed buffers.
                let what = "a borrowed buffer has no place";
                self.broken |= !push_into_room(&mut kept.buffers, buffer, what);
            }
        }
        self.give_back_if_pressed();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The regions over these buffers are destroyed.
        for buffer in self.kept.iter().flat_map(|kept| &kept.buffers) {
            buffer.conceal();
        }
        if let (true, Some(handle)) = (self.pd.is_lost(), self.handle.as_ref()) {
            for (size_class, kept) in self.kept.iter_mut().enumerate() {
                handle.lose(size_class, &mut kept.buffers);
            }
        }
        self.give_back_all();
    }
}
