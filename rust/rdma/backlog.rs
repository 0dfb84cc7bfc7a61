// SPDX-License-Identifier: GPL-2.0

//! Work requests that wait for their doorbell.
//!
//! Who is about to post more puts requests here, one by one, and has all of
//! them posted by one call. A request is copied with its entries, so that
//! nothing borrowed outlives the call that keeps it; the memory that entries
//! point to must stay until completion, as with any request. A region
//! counts its registrations that wait: while there is one it is not destroyed
//! ([`MemoryRegion::revoke`](super::mr::MemoryRegion::revoke)).

use super::{
    cq::Handler,
    pending::Counted,
    qp::QueuePair,
    wr::{
        CanWait,
        Chain,
        Sge,
        WorkId, //
    },
};
use crate::bindings::{
    self,
    zeroed, //
};
use core::{
    mem::{
        size_of,
        ManuallyDrop, //
    },
    ptr, //
};
use kernel::prelude::*;

/// What a request may have behind the fields that all have: an RDMA READ or WRITE, or a
/// registration.
const REST: usize = 2;

/// A place for a request with up to `N` entries. The request comes first.
#[repr(C)]
struct Slot<const N: usize> {
    wr: bindings::ib_send_wr,
    rest: [u64; REST],
    sges: [Sge; N],
    registration: Option<Counted>,
}

/// Requests that wait, in order, with up to `N` entries each.
///
/// It posts nothing by itself: its owner must do so, and under the lock under
/// which everything of the queue pair is posted whose order matters.
///
/// # Invariants
///
/// The first `used` slots are requests, each but the last linked to the next,
/// whose entries are those of their slots. `slots` does not move its contents.
pub struct Backlog<const N: usize> {
    slots: KVec<Slot<N>>,
    used: usize,
}

// SAFETY: The pointers in it are to its own memory.
unsafe impl<const N: usize> Send for Backlog<N> {}
// SAFETY: Shared references only read.
unsafe impl<const N: usize> Sync for Backlog<N> {}

impl<const N: usize> Backlog<N> {
    /// Makes room for `length` requests. May sleep.
    pub fn new(length: usize) -> Result<Self> {
        let mut slots = KVec::with_capacity(length, GFP_KERNEL)?;
        for _ in 0..length {
            let slot = Slot {
                wr: zeroed(),
                rest: [0; REST],
                sges: [Sge::EMPTY; N],
                registration: None,
            };
            slots.push(slot, GFP_KERNEL)?;
        }
        Ok(Self { slots, used: 0 })
    }

    /// Returns how many requests wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.used
    }

    /// Returns whether no work request waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns whether there is no room for another work request.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.used == self.slots.len()
    }

    /// Lets a request wait behind the others; `false`: there is no room for it.
    #[inline]
    pub fn push<R: CanWait>(&mut self, request: &mut R) -> bool {
        const {
            assert!(size_of::<R::Raw>() <= size_of::<bindings::ib_send_wr>() + 8 * REST);
            assert!(align_of::<R::Raw>() <= align_of::<Slot<N>>());
        };
        let count = request.base().num_sge as usize;
        if count > N {
            return false;
        }
        let Some(slot) = self.slots.get_mut(self.used) else {
            return false;
        };
        slot.registration = request.waiting().map(Counted::new);
        let from = request.whole();
        let to: *mut Slot<N> = slot;
        // SAFETY: By the safety requirement of `CanWait` there is as much to
        // copy, by this pointer, and as was just checked there is room for it; the entries are
        // `count` by the request's own promise, and there is room for them.
        unsafe {
            ptr::copy_nonoverlapping(from.cast::<R::Raw>(), to.cast(), 1);
            let (sges, to) = ((*from).sg_list.cast_const().cast(), slot.sges.as_mut_ptr());
            if count == 1 {
                // As most have: a few moves.
                ptr::copy_nonoverlapping(sges, to, 1);
            } else {
                ptr::copy_nonoverlapping(sges, to, count);
            }
        }
        slot.wr.sg_list = slot.sges.as_mut_ptr().cast();
        slot.wr.next = ptr::null_mut();
        // INVARIANT: The entries are the slot's; it is linked to its predecessor.
        if let Some(before) = self.used.checked_sub(1).and_then(|i| self.slots.get_mut(i)) {
            before.wr.next = to.cast();
        }
        self.used += 1;
        true
    }

    /// Posts what waits and then `chain`, with one doorbell, or with none when
    /// there is nothing. On an error as [`QueuePair::post`], and everything
    /// that waited is still here.
    #[inline]
    pub fn post<H: Handler>(&mut self, pair: &QueuePair<H>, chain: &Chain<'_>) -> Result {
        let Some(last) = self.used.checked_sub(1) else {
            return if chain.is_empty() {
                Ok(())
            } else {
                pair.post(chain)
            };
        };
        if let Some(last) = self.slots.get_mut(last) {
            last.wr.next = chain.head().cast_mut();
        }
        // SAFETY: By the type's invariant the slots are linked requests, and
        // the chain that is behind them is one by its own; both stay as they
        // are during the call.
        let posted = unsafe { pair.post_raw(self.slots.as_mut_ptr().cast()) };
        if posted.is_ok() {
            for slot in self.slots.iter_mut().take(self.used) {
                slot.registration = None;
            }
            self.used = 0;
        } else if let Some(last) = self.slots.get_mut(last) {
            last.wr.next = ptr::null_mut();
        }
        posted
    }

    /// Makes the work request with `place` others before it unsignaled, if it waits here.
    pub fn silence(&mut self, place: usize) {
        if let Some(slot) = self.slots.get_mut(place).filter(|_| place < self.used) {
            slot.wr.send_flags &= !bindings::ib_send_flags_IB_SEND_SIGNALED;
        }
    }

    /// Makes the work request unsignaled as [`Self::silence`] does, and names it in case that it
    /// fails.
    pub fn rename_silent(&mut self, place: usize, id: WorkId) {
        self.silence(place);
        if let Some(slot) = self.slots.get_mut(place).filter(|_| place < self.used) {
            slot.wr.__bindgen_anon_1.wr_id = ManuallyDrop::new(id.to_raw());
        }
    }

    /// Forgets the request that came last, and tells its id.
    pub fn pop(&mut self) -> Option<WorkId> {
        self.used = self.used.checked_sub(1)?;
        let slot = self.slots.get_mut(self.used)?;
        slot.registration = None;
        // SAFETY: Every request has a `wr_id`.
        let id = WorkId::from_raw(unsafe { *slot.wr.__bindgen_anon_1.wr_id });
        if let Some(before) = self.used.checked_sub(1).and_then(|i| self.slots.get_mut(i)) {
            before.wr.next = ptr::null_mut();
        }
        Some(id)
    }

    /// Forgets all but the first `length`.
    pub fn truncate(&mut self, length: usize) {
        while self.used > length {
            // Whose they are is known to who gives them up.
            let _ = self.pop();
        }
    }
}
