// SPDX-License-Identifier: GPL-2.0

//! I/O to a block device, without allocations.
//!
//! # Ownership
//!
//! A driver's I/O object (a [`BioOwner`]) embeds a [`BioSlot`]. [`submit`] takes the boxed object;
//! from then on the block layer owns it, until [`BioOwner::done`] returns it, still boxed.
//! Everything the I/O needs (the device, the memory) is borrowed from the object, so it cannot
//! disappear earlier, and no references are counted.
//!
//! C header: [`include/linux/bio.h`](srctree/include/linux/bio.h)

use super::{
    BlockDevice,
    Status, //
};
use crate::{
    bindings,
    memory::pages::PageRange, //
    sync::embedded::HasSlot,
};
use kernel::{
    prelude::*,
    sync::rcu,
    types::Opaque, //
};

/// The operation of a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BioOp {
    /// Device to memory.
    Read,
    /// Memory to device; with `fua`, completion implies durability.
    Write {
        /// Completion implies durability.
        fua: bool,
    },
    /// Memory to device, atomically, even if the device loses power. Fails with [`Status::IoErr`]
    /// or [`Status::NotSupported`] if the device has no atomic writes of this length and place
    /// (`blk_validate_atomic_write_op_size()`).
    AtomicWrite {
        /// Completion implies durability.
        fua: bool,
    },
    /// Make completed writes durable. No memory.
    Flush,
    /// The content is no longer needed. No memory.
    Discard {
        /// Length; a multiple of the logical block size.
        bytes: u32,
    },
    /// Write zeroes. No memory. Fails with [`Status::NotSupported`] if the
    /// device has no command for it.
    WriteZeroes {
        /// Length; a multiple of the logical block size.
        bytes: u32,
        /// Blocks must stay allocated.
        no_unmap: bool,
    },
}

impl BioOp {
    fn changes(self) -> bool {
        !matches!(self, BioOp::Read | BioOp::Flush)
    }

    /// Returns whether data moves between the device and memory.
    #[inline]
    fn has_memory(self) -> bool {
        matches!(
            self,
            BioOp::Read | BioOp::Write { .. } | BioOp::AtomicWrite { .. }
        )
    }

    /// Returns whether the data must be on stable media when the operation ends.
    #[inline]
    fn is_fua(self) -> bool {
        matches!(
            self,
            BioOp::Write { fua: true } | BioOp::AtomicWrite { fua: true }
        )
    }

    #[inline]
    fn flags(self) -> bindings::blk_opf_t {
        // The same hints that nvmet gives.
        let sync = bindings::REQ_SYNC | bindings::REQ_IDLE;
        match self {
            BioOp::Read => bindings::req_op_REQ_OP_READ,
            BioOp::Write { fua: false } => bindings::req_op_REQ_OP_WRITE | sync,
            BioOp::Write { fua: true } => bindings::req_op_REQ_OP_WRITE | sync | bindings::REQ_FUA,
            BioOp::AtomicWrite { fua } => BioOp::Write { fua }.flags() | bindings::REQ_ATOMIC,
            BioOp::Flush => bindings::req_op_REQ_OP_WRITE | bindings::REQ_PREFLUSH,
            BioOp::Discard { .. } => bindings::req_op_REQ_OP_DISCARD,
            BioOp::WriteZeroes { no_unmap, .. } => {
                let flag = if no_unmap { bindings::REQ_NOUNMAP } else { 0 };
                bindings::req_op_REQ_OP_WRITE_ZEROES | flag
            }
        }
    }
}

/// A reusable `struct bio` with its table of segments.
///
/// # Invariants
///
/// `table` has room for `max_segments` elements; neither it nor `bio` is in use
/// by the block layer, except between [`submit`] and `done` of their owner.
pub struct BioSlot {
    bio: KBox<Opaque<bindings::bio>>,
    table: KVec<bindings::bio_vec>,
    max_segments: u16,
}

// SAFETY: While a `BioSlot` can be accessed, the block layer does not use it: it is plain memory.
unsafe impl Send for BioSlot {}

// SAFETY: Shared references give access to nothing.
unsafe impl Sync for BioSlot {}

impl BioSlot {
    /// Allocates room for I/O of at most `max_segments` pieces of memory.
    /// May sleep.
    pub fn new(max_segments: u16) -> Result<Self> {
        // INVARIANT: The table has the capacity, nothing is in use.
        Ok(Self {
            bio: KBox::new(Opaque::zeroed(), GFP_KERNEL)?,
            table: KVec::with_capacity(max_segments.into(), GFP_KERNEL)?,
            max_segments,
        })
    }
}

/// An object that does I/O.
///
/// The device and the memory that [`submit`] borrows from the owner outlive the I/O: until
/// [`Self::done`] the object cannot be moved, dropped or borrowed mutably, so borrows through a
/// shared reference stay valid.
pub trait BioOwner: HasSlot<BioSlot> + Sized + Send + 'static {
    /// Returns the device of the next I/O; `None` if that is not to a block device.
    fn device(&self) -> Option<&BlockDevice>;

    /// Returns the memory of the next read or write, if it is known to be contiguous; otherwise
    /// [`Self::pages`] returns it.
    #[inline]
    fn piece(&self) -> Option<PageRange<'_>> {
        None
    }

    /// Iterates over the memory of the next read or write, in order. Each piece must not be empty,
    /// and all but the last must end, all but the first begin, at a multiple of the device's DMA
    /// alignment. Not called for other operations.
    fn pages(&self) -> impl Iterator<Item = PageRange<'_>>;

    /// Returns whether the block layer must not merge the next I/O with others, so that it
    /// completes independently of them.
    fn apart(&self) -> bool {
        false
    }

    /// Returns whether [`submit`] may wait until the device has room for the next I/O. If not, an
    /// I/O that would have to wait fails: `submit` returns `EAGAIN`, or [`Self::done`] gets
    /// [`Status::Again`].
    #[inline]
    fn may_wait(&self) -> bool {
        true
    }

    /// Handles the end of the I/O. Any context, hard interrupts included; the slot may be used
    /// again.
    fn done(self: KBox<Self>, result: Result<(), Status>);
}

/// Starts I/O at `sector` (of 512 bytes, from the device's beginning).
///
/// Sleeps when the device has no room for more, if the owner [may wait](BioOwner::may_wait).
/// `done` may run before this returns. The block layer checks that the I/O ends within the device
/// (`bio_check_eod()`), that the device supports the operation, and, on a device with requests (not
/// dm or md), that the I/O consists of whole logical blocks (`bio_unaligned()`). It reports an
/// error through `done`. It checks nothing else.
///
/// Errors: `ENODEV` (no device), `EINVAL` (more pieces than the slot has room for, or an empty
/// one), `EROFS` (the device was not opened for writing: the block layer would only warn), `EAGAIN`
/// (the owner must not wait, and the block layer cannot promise that it does not: the device does
/// not support that; or writeback throttling, which ignores a bio's flags (`wbt_wait()`), applies
/// to such operations; or the operation is a write with FUA to a device that [may flush for
/// it](BlockDevice::fua_fails_alone)). On an error the owner is returned and `done` is not called.
///
/// A bio-based device (dm, md) may split a write with FUA, and end it with [`Status::Again`] for
/// one piece although a flush for another has failed. That failure, which concerns all earlier
/// writes to the device, would be lost.
///
/// C: `submit_bio()`.
#[inline(always)]
pub fn submit<T: BioOwner>(
    mut owner: KBox<T>,
    op: BioOp,
    sector: u64,
) -> Result<(), (Error, KBox<T>)> {
    let mut flags = op.flags();
    let device = match owner.device() {
        None => return Err((ENODEV, owner)),
        Some(device) if op.changes() && !device.writable() => return Err((EROFS, owner)),
        Some(device) => {
            if !owner.may_wait() {
                let may_hide_flush = op.is_fua() && !device.fua_fails_alone();
                if may_hide_flush || !(op.has_memory() && device.takes_nowait()) {
                    return Err((EAGAIN, owner));
                }
                flags |= bindings::REQ_NOWAIT;
            }
            device.as_raw()
        }
    };
    if owner.apart() {
        flags |= bindings::REQ_NOMERGE;
    }
    let slot: &mut BioSlot = owner.slot_mut();
    let bio = slot.bio.get();
    let (table, max_segments) = (slot.table.as_mut_ptr(), slot.max_segments);

    // SAFETY: By the slot's invariants both are unused and large enough, and by the promise of
    // `HasSlot` they stay; the device was borrowed from the owner, of which there are only
    // shared references until the bio is done.
    unsafe { bindings::bio_init(bio, device, table, max_segments, flags) };
    // SAFETY: Set up just now.
    unsafe { (*bio).bi_iter.bi_sector = sector };
    match op {
        BioOp::Read | BioOp::Write { .. } | BioOp::AtomicWrite { .. } => {
            let fits = match owner.piece() {
                // SAFETY: The bio is set up; the pages are borrowed from the owner, of which there
                // are only shared references until the bio is done.
                Some(range) => unsafe { add(bio, &range) },
                // SAFETY: As above.
                None => unsafe { add_pages(bio, &*owner) },
            };
            if !fits {
                // SAFETY: Set up above and not submitted.
                unsafe { bindings::bio_uninit(bio) };
                return Err((EINVAL, owner));
            }
        }
        BioOp::Flush => {}
        BioOp::Discard { bytes } | BioOp::WriteZeroes { bytes, .. } => {
            // SAFETY: Set up above. These have a length, but no memory.
            unsafe { (*bio).bi_iter.bi_size = bytes };
        }
    }
    // SAFETY: Set up above; `end_io` gets the owner back out of the pointer.
    unsafe {
        (*bio).bi_private = KBox::into_raw(owner).cast();
        (*bio).bi_end_io = Some(end_io::<T>);
        bindings::submit_bio(bio);
    }
    Ok(())
}

/// Adds a piece of memory. Returns `false` if it is empty, or there is no room for it.
///
/// # Safety
///
/// The bio is set up and not submitted, and the pages stay until it is done.
#[inline(always)]
unsafe fn add(bio: *mut bindings::bio, range: &PageRange<'_>) -> bool {
    if range.length() == 0 {
        return false;
    }
    // If the bio's page is the piece's own, and the piece crosses no page boundary, the block layer
    // does not look for a split (`bio_may_need_split()`).
    let (page, offset) = range.begin();
    // SAFETY: As the caller's.
    unsafe { bindings::bio_add_page(bio, page, range.length(), offset) != 0 }
}

/// Adds the memory of an owner that may have several pieces, as [`add`] adds one.
///
/// # Safety
///
/// As for [`add`].
// Out of line: the iterators would be in the frame of every submission.
#[inline(never)]
unsafe fn add_pages<T: BioOwner>(bio: *mut bindings::bio, owner: &T) -> bool {
    // SAFETY: As the caller's.
    owner.pages().all(|range| unsafe { add(bio, &range) })
}

/// Enters a section of a completion for which
/// [`synchronize_completions`](crate::sync::synchronize_completions) waits, in any context.
#[inline]
pub(super) fn completion_section() -> rcu::Guard {
    rcu::read_lock()
}

/// # Safety
///
/// Called by the block layer once for a bio that `submit` of the same type
/// started.
unsafe extern "C" fn end_io<T: BioOwner>(bio: *mut bindings::bio) {
    // A device mapper target, md or loop completes in a thread that may be preempted.
    let _section = completion_section();
    // SAFETY: By the safety requirement the bio is ours again, and the pointer
    // is the one that `submit` left there.
    let (owner, status) = unsafe {
        bindings::bio_uninit(bio);
        (
            KBox::from_raw((*bio).bi_private.cast::<T>()),
            (*bio).bi_status,
        )
    };
    if status == 0 {
        owner.done(Ok(()));
    } else {
        done_badly(owner, status);
    }
}

/// Reports the failure of its I/O to an owner.
// `cold`: successful I/O decodes no error.
#[cold]
#[inline(never)]
fn done_badly<T: BioOwner>(owner: KBox<T>, status: bindings::blk_status_t) {
    owner.done(match Status::from_raw(status) {
        Status::Ok => Ok(()),
        status => Err(status),
    });
}

/// Collects the I/O that this thread starts in `f`, so that the block layer can merge it and ring
/// the device's doorbell once.
///
/// `f` may sleep; the I/O collected until then is started. C: `blk_start_plug()`.
pub fn plugged<R>(f: impl FnOnce() -> R) -> R {
    plugged_for(1, f)
}

/// Does what [`plugged`] does, and lets the block layer allocate its requests for the next `count`
/// I/Os, up to 32, at a time; those that are not used are freed at the end.
///
/// C: `blk_start_plug_nr_ios()`, which modules cannot call.
pub fn plugged_for<R>(count: u16, f: impl FnOnce() -> R) -> R {
    let plug = Opaque::<bindings::blk_plug>::uninit();
    // SAFETY: Room for a plug, which stays where it is until it is finished. The field is read by
    // this thread alone, when it submits I/O; if the thread has a plug already it is ignored.
    unsafe {
        bindings::blk_start_plug(plug.get());
        (*plug.get()).nr_ios = count.min(PLUG_MAX);
    }
    let result = f();
    // SAFETY: Started above by this thread.
    unsafe { bindings::blk_finish_plug(plug.get()) };
    result
}

/// `BLK_MAX_REQUEST_COUNT` of the block layer.
const PLUG_MAX: u16 = 32;
