// SPDX-License-Identifier: GPL-2.0

//! Work requests: the commands to a queue pair.
//!
//! A request is built on the stack, put into a [`Chain`] and posted with one
//! doorbell. The device has copied everything it needs when posting returns,
//! so that nothing here lives longer than the call.
//!
//! The memory of an [`Sge`] is not borrowed, so **no type here prevents that it is freed too
//! early**: its owner must keep it until the work request has completed, or the queue pair was
//! destroyed. Drivers ensure this in two ways. Before they post a work request, they store the
//! owner of the memory where the handler of the completion finds it. And they drop a queue pair
//! before its memory.

use super::{
    buffer::Slice,
    mr::PendingRegistrations, //
};
use crate::bindings::{
    self,
    zeroed, //
};
use core::{
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr, //
};
use kernel::sync::Arc;

/// Identifies a completion: the kind of work, the object, and the number of send queue slots that
/// the completion frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkId {
    /// Kind of work, the driver's own numbers from 0 to 127.
    pub kind: u8,
    /// Slots of the send queue that are free once this completes.
    pub slots: u16,
    /// The index of the request or buffer.
    pub index: u32,
}

impl WorkId {
    /// The id of the last work request in a send queue that is drained.
    pub(super) const SENDS_DRAINED: Self = Self::of_drain(0xfe);
    /// The id of the last work request in a receive queue that is drained.
    pub(super) const RECEIVES_DRAINED: Self = Self::of_drain(0xff);

    const fn of_drain(kind: u8) -> Self {
        Self {
            kind,
            slots: 0,
            index: 0,
        }
    }

    /// Returns whether the work request is of a drain, ours or the device driver's.
    #[inline]
    pub(super) const fn is_drain(self) -> bool {
        self.kind & 0x80 != 0
    }

    /// Creates the id of work of a kind on the object `index`. Only the lower 7 bits of the kind
    /// are used: kinds with the eighth bit belong to draining.
    pub const fn new(kind: u8, index: u32) -> Self {
        Self {
            kind: kind & 0x7f,
            slots: 0,
            index,
        }
    }

    /// Returns the same id, whose completion frees `slots` send queue slots.
    pub const fn freeing(self, slots: u16) -> Self {
        Self { slots, ..self }
    }

    #[inline]
    pub(super) const fn to_raw(self) -> u64 {
        (self.kind as u64) << 56 | (self.slots as u64) << 32 | self.index as u64
    }

    #[inline]
    pub(super) const fn from_raw(raw: u64) -> Self {
        Self {
            kind: (raw >> 56) as u8,
            slots: (raw >> 32) as u16,
            index: raw as u32,
        }
    }
}

/// A memory region's key, local and remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub(super) u32);

/// A scatter-gather entry: where one piece of a message is in this host's memory.
///
/// # Invariants
///
/// The layout is `struct ib_sge`'s.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sge {
    address: u64,
    length: u32,
    lkey: u32,
}

const _: () = {
    use core::mem::{
        offset_of,
        size_of, //
    };
    assert!(size_of::<Sge>() == size_of::<bindings::ib_sge>());
    assert!(offset_of!(Sge, address) == offset_of!(bindings::ib_sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(bindings::ib_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(bindings::ib_sge, lkey));
};

impl Sge {
    /// Makes the entry of a piece of a mapped buffer.
    #[inline]
    pub fn new(slice: Slice<'_>) -> Self {
        Self {
            address: slice.address,
            length: slice.length,
            lkey: slice.lkey,
        }
    }

    /// Makes the entry of memory that is mapped for the device of a protection domain with the
    /// local key `lkey`.
    #[inline]
    pub(crate) fn mapped(address: u64, length: u32, lkey: u32) -> Self {
        Self {
            address,
            length,
            lkey,
        }
    }

    /// Returns the length in bytes.
    #[inline]
    pub(crate) fn length(&self) -> u32 {
        self.length
    }

    /// Makes the entry of a piece of a registered region.
    #[inline]
    pub(super) fn in_region(address: u64, length: u32, key: Key) -> Self {
        Self {
            address,
            length,
            lkey: key.0,
        }
    }

    /// An empty entry, to initialise arrays.
    pub const EMPTY: Self = Self {
        address: 0,
        length: 0,
        lkey: 0,
    };
}

/// Anything that can be put into a [`Chain`].
pub trait WorkRequest {
    /// Returns the structure at the beginning of every kind of work request.
    #[doc(hidden)]
    fn base(&mut self) -> &mut bindings::ib_send_wr;

    /// Returns the pointer to the whole structure.
    #[doc(hidden)]
    fn whole(&mut self) -> *mut bindings::ib_send_wr;

    /// Asks for a completion with this id.
    #[inline]
    fn signal(&mut self, id: WorkId) {
        let wr = self.base();
        wr.__bindgen_anon_1.wr_id = ManuallyDrop::new(id.to_raw());
        wr.send_flags |= bindings::ib_send_flags_IB_SEND_SIGNALED;
    }

    /// Lets the request wait until the RDMA READs before it have completed. Not
    /// for RDMA READs themselves.
    #[inline]
    fn fence(&mut self) {
        self.base().send_flags |= bindings::ib_send_flags_IB_SEND_FENCE;
    }

    /// Sets the id that is reported if the request fails; a success is not reported.
    #[inline]
    fn name(&mut self, id: WorkId) {
        self.base().__bindgen_anon_1.wr_id = ManuallyDrop::new(id.to_raw());
    }
}

/// A work request that can wait for its doorbell in a [`Backlog`](super::backlog::Backlog).
///
/// # Safety
///
/// [`WorkRequest::whole`] points to a `Raw`, all of which may be read through it, which begins with
/// a `struct ib_send_wr`, and has no pointers except those to its entries, which live as long as
/// the request, and one to the region whose counter [`Self::waiting`] returns.
pub unsafe trait CanWait: WorkRequest {
    /// The structure for its opcode.
    #[doc(hidden)]
    type Raw;

    /// Returns the counter of waiting registrations of its region.
    #[doc(hidden)]
    #[inline]
    fn waiting(&self) -> Option<&Arc<PendingRegistrations>> {
        None
    }
}

/// A SEND, with or without invalidation of a key of the peer.
pub struct Send<'a> {
    wr: bindings::ib_send_wr,
    _sges: PhantomData<&'a [Sge]>,
}

impl<'a> Send<'a> {
    /// Makes a SEND that gathers `sges` into one message.
    #[inline]
    pub fn new(sges: &'a [Sge]) -> Self {
        let mut wr: bindings::ib_send_wr = zeroed();
        wr.opcode = bindings::ib_wr_opcode_IB_WR_SEND;
        set_sges(&mut wr, sges);
        Self {
            wr,
            _sges: PhantomData,
        }
    }

    /// Makes the message invalidate `rkey` at the peer (SEND with invalidate).
    #[inline]
    pub fn invalidating(mut self, rkey: u32) -> Self {
        self.wr.opcode = bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV;
        self.wr.ex.invalidate_rkey = ManuallyDrop::new(rkey);
        self
    }
}

impl Send<'_> {
    /// Makes the message solicited: it raises an event also at a receiver that has armed its
    /// completion queue for solicited completions only.
    #[inline]
    pub fn solicited(&mut self) {
        self.wr.send_flags |= bindings::ib_send_flags_IB_SEND_SOLICITED;
    }
}

impl WorkRequest for Send<'_> {
    fn base(&mut self) -> &mut bindings::ib_send_wr {
        &mut self.wr
    }

    fn whole(&mut self) -> *mut bindings::ib_send_wr {
        &raw mut self.wr
    }
}

// SAFETY: It is an `ib_send_wr` of its own.
unsafe impl CanWait for Send<'_> {
    type Raw = bindings::ib_send_wr;
}

/// An RDMA READ or WRITE of the peer's memory.
pub struct Rdma<'a> {
    wr: bindings::ib_rdma_wr,
    _sges: PhantomData<&'a [Sge]>,
}

impl<'a> Rdma<'a> {
    #[inline]
    fn new(opcode: bindings::ib_wr_opcode, sges: &'a [Sge], address: u64, rkey: u32) -> Self {
        let mut wr: bindings::ib_rdma_wr = zeroed();
        wr.wr.opcode = opcode;
        wr.remote_addr = address;
        wr.rkey = rkey;
        set_sges(&mut wr.wr, sges);
        Self {
            wr,
            _sges: PhantomData,
        }
    }

    /// Makes an RDMA WRITE of `sges` to the peer's memory.
    #[inline]
    pub fn write(sges: &'a [Sge], address: u64, rkey: u32) -> Self {
        Self::new(bindings::ib_wr_opcode_IB_WR_RDMA_WRITE, sges, address, rkey)
    }

    /// Makes an RDMA READ of the peer's memory into `sges`.
    #[inline]
    pub fn read(sges: &'a [Sge], address: u64, rkey: u32) -> Self {
        Self::new(bindings::ib_wr_opcode_IB_WR_RDMA_READ, sges, address, rkey)
    }
}

impl Rdma<'_> {
    /// Makes the RDMA WRITE a write-with-immediate: it consumes a receive buffer of the peer, whose
    /// completion has `value`. Not on iWARP. If `solicited`, it raises an event at the peer as
    /// [`Send::solicited`] describes.
    #[inline]
    pub fn immediate(&mut self, value: u32, solicited: bool) {
        self.wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM;
        if solicited {
            self.wr.wr.send_flags |= bindings::ib_send_flags_IB_SEND_SOLICITED;
        }
        self.wr.wr.ex.imm_data = ManuallyDrop::new(value.to_be());
    }
}

impl Rdma<'static> {
    /// Creates an RDMA WRITE of 0 bytes: it completes when the peer's device has acknowledged it,
    /// and fails when the peer is unreachable. It uses no buffer and no processor of the peer.
    pub fn empty_write() -> Self {
        Self::write(&[], 0, 0)
    }
}

impl WorkRequest for Rdma<'_> {
    fn base(&mut self) -> &mut bindings::ib_send_wr {
        &mut self.wr.wr
    }

    fn whole(&mut self) -> *mut bindings::ib_send_wr {
        (&raw mut self.wr).cast()
    }
}

// SAFETY: The `ib_send_wr` is the first field of its `ib_rdma_wr`.
unsafe impl CanWait for Rdma<'_> {
    type Raw = bindings::ib_rdma_wr;
}

/// A work request that makes a memory region's key valid (REG_MR).
///
/// # Invariants
///
/// `wr.mr` is the region whose registrations `waiting` counts, valid for `'a`.
pub struct Register<'a> {
    wr: bindings::ib_reg_wr,
    waiting: &'a Arc<PendingRegistrations>,
}

impl<'a> Register<'a> {
    /// Makes the REG_MR of the region `mr` with the verbs' `access` flags.
    ///
    /// # Safety
    ///
    /// `mr` is valid for `'a`, and is the region that owns `waiting`.
    #[inline]
    pub(super) unsafe fn new(
        mr: *mut bindings::ib_mr,
        waiting: &'a Arc<PendingRegistrations>,
        key: Key,
        access: u32,
    ) -> Self {
        let mut wr: bindings::ib_reg_wr = zeroed();
        wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_REG_MR;
        wr.mr = mr;
        wr.key = key.0;
        wr.access = access as i32;
        // INVARIANT: By the safety requirement.
        Self { wr, waiting }
    }
}

impl WorkRequest for Register<'_> {
    fn base(&mut self) -> &mut bindings::ib_send_wr {
        &mut self.wr.wr
    }

    fn whole(&mut self) -> *mut bindings::ib_send_wr {
        (&raw mut self.wr).cast()
    }
}

// SAFETY: The `ib_send_wr` is the first field of its `ib_reg_wr`; the other pointer is to the
// region whose counter `waiting` returns.
unsafe impl CanWait for Register<'_> {
    type Raw = bindings::ib_reg_wr;

    #[inline]
    fn waiting(&self) -> Option<&Arc<PendingRegistrations>> {
        Some(self.waiting)
    }
}

/// A work request that makes a memory region's key invalid (LOCAL_INV).
pub struct Invalidate(bindings::ib_send_wr);

impl Invalidate {
    #[inline]
    pub(super) fn new(key: Key) -> Self {
        let mut wr: bindings::ib_send_wr = zeroed();
        wr.opcode = bindings::ib_wr_opcode_IB_WR_LOCAL_INV;
        wr.ex.invalidate_rkey = ManuallyDrop::new(key.0);
        Self(wr)
    }
}

impl WorkRequest for Invalidate {
    fn base(&mut self) -> &mut bindings::ib_send_wr {
        &mut self.0
    }

    fn whole(&mut self) -> *mut bindings::ib_send_wr {
        &raw mut self.0
    }
}

// SAFETY: It is an `ib_send_wr` of its own, and holds its key as a number.
unsafe impl CanWait for Invalidate {
    type Raw = bindings::ib_send_wr;
}

#[inline]
fn set_sges(wr: &mut bindings::ib_send_wr, sges: &[Sge]) {
    // `Sge` has the layout of `ib_sge`; the device only reads.
    wr.sg_list = sges.as_ptr().cast_mut().cast();
    wr.num_sge = sges.len() as i32;
}

/// Requests that are posted together, in order.
///
/// # Invariants
///
/// `head` and `tail` are null or point to requests borrowed for `'a`, linked
/// from `head` to `tail`; there are `len` of them.
pub struct Chain<'a> {
    head: *mut bindings::ib_send_wr,
    tail: *mut bindings::ib_send_wr,
    len: u32,
    _requests: PhantomData<&'a mut bindings::ib_send_wr>,
}

impl Default for Chain<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Chain<'a> {
    /// Makes an empty chain.
    #[inline]
    pub const fn new() -> Self {
        Self {
            head: ptr::null_mut(),
            tail: ptr::null_mut(),
            len: 0,
            _requests: PhantomData,
        }
    }

    /// Appends a request.
    #[inline]
    pub fn push(&mut self, request: &'a mut impl WorkRequest) {
        let wr = request.whole();
        if self.tail.is_null() {
            self.head = wr;
        } else {
            // SAFETY: `tail` is a request borrowed for `'a` by the type's invariant.
            unsafe { (*self.tail).next = wr };
        }
        self.tail = wr;
        self.len += 1;
    }

    /// Returns the chain in a new place. If pointers exist only to the new place, the compiler can
    /// keep the chain in registers until then.
    #[inline(always)]
    pub fn moved(self) -> Self {
        // INVARIANT: It is the same chain.
        Self { ..self }
    }

    /// Returns how many requests are in the chain.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether the chain has no work request.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn head(&self) -> *const bindings::ib_send_wr {
        self.head
    }
}
