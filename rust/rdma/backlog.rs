// SPDX-License-Identifier: GPL-2.0

//! Work requests that wait for their doorbell.
//!
//! A caller that is about to post several work requests puts them here, one by one, and posts all
//! of them with one call. A work request is copied with its entries, so that nothing borrowed
//! outlives the call; the memory that entries point to must stay until completion, as with any work
//! request. A region counts its waiting registrations: it is not destroyed while there is one
//! ([`MemoryRegion::revoke`](super::mr::MemoryRegion::revoke)).

use super::{
    cq::Handler,
    mr::Counted,
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

/// The 64-bit words after the common fields that an RDMA READ or WRITE, or a registration, may
/// need.
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
/// The backlog posts nothing by itself: its owner must post it, under the lock that orders all
/// postings of the queue pair.
///
/// # Invariants
///
/// The first `used` slots are requests, each linked to the slot behind it, whose entries are those
/// of their slots. `registrations` of them have a `registration`; no other slot has one. `slots`
/// does not move its contents.
pub struct Backlog<const N: usize> {
    slots: KVec<Slot<N>>,
    used: usize,
    registrations: usize,
}

// SAFETY: Its pointers point to its own memory.
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
        // INVARIANT: There is no request.
        Ok(Self {
            slots,
            used: 0,
            registrations: 0,
        })
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

    /// Adds a request after the others; returns `false` if there is no room for it or its entries.
    // `inline(always)`: a request that the caller makes for this call is made in its slot.
    #[inline(always)]
    pub fn push<R: CanWait>(&mut self, request: &mut R) -> bool {
        const {
            assert!(size_of::<R::Raw>() <= size_of::<bindings::ib_send_wr>() + 8 * REST);
            assert!(align_of::<R::Raw>() <= align_of::<Slot<N>>());
        };
        let count = request.base().num_sge as usize;
        if count > N {
            return false;
        }
        let next = self.behind(self.used);
        let Some(slot) = self.slots.get_mut(self.used) else {
            return false;
        };
        if let Some(waiting) = request.waiting() {
            // INVARIANT: One more slot has a registration.
            slot.registration = Some(Counted::new(waiting));
            self.registrations += 1;
        }
        let from = request.whole();
        let to: *mut Slot<N> = slot;
        // SAFETY: By the safety requirement of `CanWait` `from` points to a whole `R::Raw`, for
        // which the slot has room, as was checked above. The request has `count` entries, for which
        // the slot has room, too.
        unsafe {
            ptr::copy_nonoverlapping(from.cast::<R::Raw>(), to.cast(), 1);
            let (sges, to) = ((*from).sg_list.cast_const().cast(), slot.sges.as_mut_ptr());
            if count == 1 {
                // Most requests have one entry: the copy is a few moves.
                ptr::copy_nonoverlapping(sges, to, 1);
            } else {
                ptr::copy_nonoverlapping(sges, to, count);
            }
        }
        // INVARIANT: The entries are the slot's, and it is linked.
        slot.wr.sg_list = slot.sges.as_mut_ptr().cast();
        slot.wr.next = next;
        self.used += 1;
        true
    }

    /// Posts the waiting requests and then `chain`, with one doorbell; without any request it does
    /// nothing. Fails as [`QueuePair::post`]; the waiting requests then still wait.
    #[inline]
    pub fn post<H: Handler>(&mut self, pair: &QueuePair<H>, chain: &Chain<'_>) -> Result {
        let Some(last) = self.used.checked_sub(1) else {
            return if chain.is_empty() {
                Ok(())
            } else {
                pair.post(chain)
            };
        };
        let next = self.behind(last);
        self.link(last, chain.head().cast_mut());
        // SAFETY: By the type's invariant the slots in use are linked requests; the last of them
        // is linked to the chain, which is one by its own. Both stay as they are during the call.
        let posted = unsafe { pair.post_raw(self.slots.as_mut_ptr().cast()) };
        if posted.is_err() {
            // INVARIANT: The waiting work requests are linked as before.
            self.link(last, next);
            return posted;
        }
        if self.registrations != 0 {
            self.forget_registrations();
        }
        self.used = 0;
        Ok(())
    }

    /// Returns the slot behind the one at `place`, which may be beyond the end: the pointer is not
    /// followed before that slot has a request.
    #[inline(always)]
    fn behind(&mut self, place: usize) -> *mut bindings::ib_send_wr {
        let slots = self.slots.as_mut_ptr();
        slots.wrapping_add(place).wrapping_add(1).cast()
    }

    /// Links the request at `place` to `next`.
    #[inline(always)]
    fn link(&mut self, place: usize, next: *mut bindings::ib_send_wr) {
        if let Some(slot) = self.slots.get_mut(place) {
            slot.wr.next = next;
        }
    }

    /// Lets the registrations of all slots no longer count as waiting.
    #[inline(never)]
    fn forget_registrations(&mut self) {
        for slot in self.slots.iter_mut().take(self.used) {
            slot.registration = None;
        }
        // INVARIANT: No slot has one.
        self.registrations = 0;
    }

    /// Returns the slot of the work request with `place` others before it, if it waits here.
    #[inline]
    fn waiting_at(&mut self, place: usize) -> Option<&mut Slot<N>> {
        self.slots.get_mut(place).filter(|_| place < self.used)
    }

    /// Makes the work request with `place` others before it signaled, with the id that it has, if
    /// it waits here.
    #[inline]
    pub fn signal(&mut self, place: usize) {
        if let Some(slot) = self.waiting_at(place) {
            slot.wr.send_flags |= bindings::ib_send_flags_IB_SEND_SIGNALED;
        }
    }

    /// Makes the work request with `place` others before it unsignaled, and gives it the id `id`,
    /// which its failure would report, if it waits here.
    pub fn rename_silent(&mut self, place: usize, id: WorkId) {
        if let Some(slot) = self.waiting_at(place) {
            slot.wr.send_flags &= !bindings::ib_send_flags_IB_SEND_SIGNALED;
            slot.wr.__bindgen_anon_1.wr_id = ManuallyDrop::new(id.to_raw());
        }
    }

    /// Drops the last work request, and returns its id.
    pub fn pop(&mut self) -> Option<WorkId> {
        self.used = self.used.checked_sub(1)?;
        let slot = self.slots.get_mut(self.used)?;
        if slot.registration.take().is_some() {
            // INVARIANT: One slot less has a registration.
            self.registrations -= 1;
        }
        // SAFETY: Every request has a `wr_id`.
        Some(WorkId::from_raw(unsafe { *slot.wr.__bindgen_anon_1.wr_id }))
    }

    /// Drops all work requests except the first `length`.
    pub fn truncate(&mut self, length: usize) {
        while self.used > length {
            // The caller that drops them knows the owners of their memory.
            let _ = self.pop();
        }
    }
}
