// SPDX-License-Identifier: GPL-2.0

//! The places of a queue pair: the ownership of the requests that it has, and the driver's data for
//! each. A request's own data cannot hold that: with an I/O scheduler there are more requests than
//! tags, and several disks may share a queue pair.
//!
//! # Places and tags
//!
//! A request that is issued on a queue pair claims one of its places. The number of the place is
//! the *tag* of the request on the wire; the tag that blk-mq gave it says nothing outside its disk.
//! A request first tries the place whose number is blk-mq's tag. The requests of a single disk
//! always get that one, since no two of a hardware queue have the same tag (a flush that borrows
//! the tag of the write it precedes is in flight only while that write is not).
//!
//! # Ownership
//!
//! blk-mq hands a request to the driver in `queue_rq` and gets it back through
//! `blk_mq_end_request()` or `blk_mq_requeue_request()`; in between the driver has a [`Request`].
//! Everything about it that must be decided atomically is stored in its place: a lookup with a tag
//! that came over the wire never follows a pointer of blk-mq's that may be stale
//! (`blk_mq_tag_to_rq()` gives no such promise).
//!
//! A place is in one of three states and has a generation:
//!
//! - *Free*: no request has it.
//! - *Owned*: exactly one [`TaggedRequest`] exists for it; its holder is the owner.
//! - *Parked*: the request has no owner; the first taker becomes it.
//!
//! | from | to | through |
//! |---|---|---|
//! | Free | Owned | [`PerTag::claim`]: the generation is incremented |
//! | Owned | Parked | [`TaggedRequest::park`] |
//! | Parked | Owned | [`PerTag::take`] and its relatives: one taker wins, the others get `None` |
//! | Owned | Free | [`TaggedRequest::into_request`], drop |
//!
//! The generation goes over the wire with the tag, so that a response to an earlier use of the
//! place does not take the present request.
//!
//! A driver that has several paths to its device has places for each of them: neither a response on
//! another path nor the end of another path takes a request.

use super::{
    Operations,
    Request,
    RequestRef,
    TimedOut, //
};
use crate::bindings;
use crate::sync::atomic::{
    Acquire,
    Atomic,
    Relaxed,
    Release, //
};
use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr::{
        null_mut,
        NonNull, //
    },
};
use kernel::prelude::*;

const FREE: u32 = 0;
const OWNED: u32 = 1;
const PARKED: u32 = 2;
const STATE_MASK: u32 = 0xff;
const GENERATION_SHIFT: u32 = 16;
const ONE_GENERATION: u32 = 1 << GENERATION_SHIFT;

/// The state of a place.
///
/// # Invariants
///
/// - The lowest byte of `word` is `FREE`, `OWNED` or `PARKED`, the upper half is the generation.
/// - While it is `OWNED`, only the owner touches `request`; while it is `PARKED`, `request` points
///   to a started request without an owner, which has this place.
pub(super) struct Slot {
    word: Atomic<u32>,
    request: UnsafeCell<*mut bindings::request>,
}

// SAFETY: `request` is touched by the slot's owner only, and ownership changes
// hands through `word` with release and acquire.
unsafe impl Send for Slot {}

// SAFETY: As above.
unsafe impl Sync for Slot {}

impl Slot {
    fn new() -> Self {
        // INVARIANT: Free, generation 0.
        Self {
            word: Atomic::new(FREE),
            request: UnsafeCell::new(null_mut()),
        }
    }

    /// Changes Free to Owned, with the next generation. Returns `false` if the place is not free.
    #[inline]
    fn claim(&self) -> bool {
        let word = self.word.load(Relaxed);
        let owned = (word & !STATE_MASK | OWNED).wrapping_add(ONE_GENERATION);
        word & STATE_MASK == FREE && self.word.cmpxchg(word, owned, Acquire).is_ok()
    }

    /// Changes Owned to Free. The caller is the owner.
    #[inline]
    fn release(&self) {
        let generation = self.word.load(Relaxed) & !STATE_MASK;
        self.word.store(generation | FREE, Release);
    }

    /// Changes Owned to Parked. The caller is the owner of `request`, which has this place.
    #[inline]
    fn park(&self, request: NonNull<bindings::request>) {
        let generation = self.word.load(Relaxed) & !STATE_MASK;
        // SAFETY: The state is Owned and the caller is the owner: nobody else
        // touches this cell.
        unsafe { *self.request.get() = request.as_ptr() };
        self.word.store(generation | PARKED, Release);
    }

    /// Changes Parked with this generation to Owned.
    #[inline]
    fn take(&self, generation: u16) -> Option<NonNull<bindings::request>> {
        let generation = u32::from(generation) << GENERATION_SHIFT;
        self.word
            .cmpxchg(generation | PARKED, generation | OWNED, Acquire)
            .ok()?;
        // SAFETY: This caller has just changed the state from Parked to Owned, so it alone may read
        // the cell.
        NonNull::new(unsafe { *self.request.get() })
    }

    /// Changes Parked, of any generation, to Owned.
    #[inline]
    fn take_any(&self) -> Option<NonNull<bindings::request>> {
        let mut word = self.word.load(Relaxed);
        while word & STATE_MASK == PARKED {
            if let Some(request) = self.take((word >> GENERATION_SHIFT) as u16) {
                return Some(request);
            }
            word = self.word.load(Relaxed);
        }
        None
    }

    fn is_parked(&self) -> bool {
        self.word.load(Acquire) & STATE_MASK == PARKED
    }

    #[inline]
    pub(super) fn generation(&self) -> u16 {
        (self.word.load(Relaxed) >> GENERATION_SHIFT) as u16
    }
}

/// A place, with the driver's data.
struct Place<V> {
    slot: Slot,
    value: UnsafeCell<V>,
}

/// The places of a queue pair, each with a `V` that is accessible to the owner of the request that
/// has the place. Dropping it ends the parked requests, with an error and a warning.
pub struct PerTag<T: Operations, V> {
    places: KVec<Place<V>>,
    _operations: PhantomData<fn() -> T>,
}

// SAFETY: A value is reached only through the request that owns its place, which has one owner at
// a time.
unsafe impl<T: Operations, V: Send> Send for PerTag<T, V> {}
// SAFETY: As above.
unsafe impl<T: Operations, V: Send> Sync for PerTag<T, V> {}

impl<T: Operations, V> PerTag<T, V> {
    /// Makes `count` places; `make` gets the number of each. May sleep.
    pub fn new(count: u16, mut make: impl FnMut(u16) -> Result<V>) -> Result<Self> {
        let mut places = KVec::with_capacity(count.into(), GFP_KERNEL)?;
        for tag in 0..count {
            let place = Place {
                slot: Slot::new(),
                value: UnsafeCell::new(make(tag)?),
            };
            places.push(place, GFP_KERNEL)?;
        }
        Ok(Self {
            places,
            _operations: PhantomData,
        })
    }

    /// Lets a request claim a place; the request is the error when all places are taken. Any
    /// context.
    #[inline]
    pub fn claim(&self, request: Request<T>) -> Result<TaggedRequest<'_, T, V>, Request<T>> {
        let own = usize::from(request.block_tag());
        let place = self.places.get(own).filter(|place| place.slot.claim());
        let Some((tag, place)) = place.map(|place| (own, place)).or_else(|| self.any_free()) else {
            return Err(request);
        };
        // INVARIANT: The place is Owned by this request from here on.
        let mut request = TaggedRequest { request, place };
        request.request.set_place(&place.slot, tag as u16);
        Ok(request)
    }

    /// Claims a free place.
    #[cold]
    fn any_free(&self) -> Option<(usize, &Place<V>)> {
        let mut places = self.places.iter().enumerate();
        places.find(|(_, place)| place.slot.claim())
    }

    /// Takes the request with this tag and generation.
    ///
    /// `None` if it is not parked: never issued here, already taken, or of another generation. Tag
    /// and generation may come from a peer that is not trusted. Any context.
    #[inline]
    pub fn take(&self, tag: u16, generation: u16) -> Option<TaggedRequest<'_, T, V>> {
        let place = self.places.get(usize::from(tag))?;
        let request = place.slot.take(generation)?;
        // SAFETY: We have changed the slot from Parked to Owned, so `request` is a started request
        // and no other owner exists.
        let request = unsafe { Request::from_owned(request) };
        // INVARIANT: As above.
        Some(TaggedRequest { request, place })
    }

    /// Takes the request with this tag, of any generation: for a driver that knows that the tag's
    /// request failed. Any context.
    #[inline]
    pub fn take_any(&self, tag: u16) -> Option<TaggedRequest<'_, T, V>> {
        let place = self.places.get(usize::from(tag))?;
        let request = place.slot.take_any()?;
        // SAFETY: As in `take`.
        let request = unsafe { Request::from_owned(request) };
        // INVARIANT: As in `take`.
        Some(TaggedRequest { request, place })
    }

    /// Returns whether a request with this tag is parked, at some moment during the call.
    pub fn is_parked(&self, tag: u16) -> bool {
        let place = self.places.get(usize::from(tag));
        place.is_some_and(|place| place.slot.is_parked())
    }

    /// Returns the tag of a request that is parked here, at some moment during the call; `None` if
    /// another request has its place by then.
    pub fn tag_of(&self, request: &TimedOut<'_>) -> Option<u16> {
        // Never dereferenced: the place may be another queue pair's, which may be gone.
        let slot = request.place();
        let is_its = |place: &Place<V>| core::ptr::eq(&raw const place.slot, slot);
        let tag = self.places.iter().position(is_its)? as u16;
        // In this order: if another request has got the place since, and parked there, this request
        // has lost it before.
        (self.is_parked(tag) && core::ptr::eq(request.place(), slot)).then_some(tag)
    }

    /// Takes every parked request and gives it to `f`.
    ///
    /// For teardown: set a flag that makes `queue_rq` reject requests, call
    /// [`Dispatch::synchronize`](super::Dispatch::synchronize), stop the completions, and then call
    /// this function.
    pub fn for_each_parked(&self, mut f: impl FnMut(TaggedRequest<'_, T, V>)) {
        for tag in 0..self.places.len() {
            if let Some(request) = self.take_any(tag as u16) {
                f(request);
            }
        }
    }
}

impl<T: Operations, V> Drop for PerTag<T, V> {
    fn drop(&mut self) {
        self.for_each_parked(|request| drop(request));
    }
}

/// A started request, owned, that has a place of a queue pair. If it is dropped without being
/// parked or made a request without a place, it ends as [`Request`] says.
///
/// # Invariants
///
/// The place is Owned, and `request` has it.
pub struct TaggedRequest<'a, T: Operations, V> {
    request: Request<T>,
    place: &'a Place<V>,
}

impl<T: Operations, V> TaggedRequest<'_, T, V> {
    /// Returns a view of the request, and the value.
    #[inline]
    pub fn split(&mut self) -> (RequestRef<'_>, &mut V) {
        // SAFETY: By the type's invariant the value is the request's, which is borrowed exclusively
        // for as long as the value.
        (self.request.view(), unsafe { &mut *self.place.value.get() })
    }

    /// Returns a view of the request.
    #[inline]
    pub fn view(&self) -> RequestRef<'_> {
        self.request.view()
    }

    /// Returns which use of the place this is.
    #[inline]
    pub fn generation(&self) -> u16 {
        self.place.slot.generation()
    }

    /// Sets the order of issue, as [`Request::set_order`].
    #[inline]
    pub fn set_order(&mut self, order: u32) {
        self.request.set_order(order);
    }

    /// Makes the request available to be taken by its tag. Another context may take it, and even
    /// end it, before this returns.
    #[inline]
    pub fn park(self) {
        let this = ManuallyDrop::new(self);
        this.place.slot.park(this.request.as_raw());
    }

    /// Releases the place, and returns the request.
    #[inline]
    pub fn into_request(self) -> Request<T> {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, and its request is not used again.
        let mut request = unsafe { core::ptr::read(&this.request) };
        request.clear_place();
        this.place.slot.release();
        request
    }
}

impl<T: Operations, V> Drop for TaggedRequest<'_, T, V> {
    fn drop(&mut self) {
        self.request.clear_place();
        self.place.slot.release();
    }
}
