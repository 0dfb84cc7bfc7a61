// SPDX-License-Identifier: GPL-2.0

//! I/O to open files: regular files, and block devices through their page cache.
//!
//! # Ownership
//!
//! As in [`submit`](super::submit): [`transfer`] takes the boxed object (a [`FileOwner`]) and
//! returns it, or [`FileOwner::completed`] gets it when the file system continues asynchronously.
//!
//! # Coherence
//!
//! Direct I/O bypasses the page cache. A file system keeps its own direct I/O coherent; a user that
//! bypasses the page cache in another way needs [`FileRef::has_pages`], [`FileRef::write_back`] and
//! [`FileRef::drop_pages`].
//!
//! C headers: [`include/linux/fs.h`](srctree/include/linux/fs.h),
//! [`include/linux/pagemap.h`](srctree/include/linux/pagemap.h)

use super::{
    bio::completion_section,
    BioOwner,
    RegularFile, //
};
use crate::{
    bindings,
    ffi, //
    sync::defer::{
        without_io,
        Deferred, //
    },
    sync::embedded::HasSlot,
};
use core::{
    ffi::{
        c_int,
        c_uint,
        c_void, //
    },
    marker::PhantomData,
    ptr::{
        null_mut,
        NonNull, //
    },
};
use kernel::{
    error::to_result,
    page::PAGE_SHIFT,
    prelude::*,
    types::Opaque, //
};

/// An open file, of a [`RegularFile`] or a [`BlockDevice`](super::BlockDevice).
///
/// # Invariants
///
/// The file is open for as long as `'a`.
#[derive(Clone, Copy)]
pub struct FileRef<'a> {
    file: NonNull<bindings::file>,
    _open: PhantomData<&'a RegularFile>,
}

/// Identifies the data of open files: two opens of one file, or of one block device, have the same
/// id. Valid while one of them is open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FileId(usize);

/// Identifies the drive whose cache a flush of a file empties. Valid while one file of that drive
/// is open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DriveId(usize);

/// Write-back error cursor: all write-back errors of a file before it have been reported. C:
/// `errseq_t`
#[derive(Clone, Copy)]
pub struct WbErrCursor(bindings::errseq_t);

impl<'a> FileRef<'a> {
    /// # Safety
    ///
    /// The file must stay open for as long as `'a`.
    pub(super) unsafe fn from_raw(file: NonNull<bindings::file>) -> Self {
        // INVARIANT: The caller's promise.
        Self {
            file,
            _open: PhantomData,
        }
    }

    fn mapping(self) -> *mut bindings::address_space {
        // SAFETY: By the type invariant; it is set once, when the file is opened.
        unsafe { (*self.file.as_ptr()).f_mapping }
    }

    /// Returns the identity of the file's data.
    pub fn id(self) -> FileId {
        // Each page cache belongs to one file's data.
        FileId(self.mapping().addr())
    }

    /// Returns the identity of the drive whose cache a flush empties. Partitions, and files on
    /// them, share the whole disk's.
    pub fn drive_id(self) -> DriveId {
        // SAFETY: By the type invariant.
        DriveId(unsafe { bindings::hcablk_c_drive_of(self.file.as_ptr()) }.addr())
    }

    /// Returns how often the block device is open, or how often the file is open for writing. The
    /// value may change at any time. Any context.
    #[inline]
    pub fn openers(self) -> u32 {
        // SAFETY: By the type invariant.
        let count = unsafe { bindings::hcablk_c_openers(self.file.as_ptr()) };
        // A negative number: writers are denied (`deny_write_access()`).
        u32::try_from(count).unwrap_or(0)
    }

    /// Returns the block size of the page cache in bytes, a power of two; it may exceed a page. C:
    /// `i_blocksize()`.
    pub fn block_bytes(self) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { bindings::hcablk_c_block_bytes(self.file.as_ptr()) }
    }

    /// Returns whether the file has its own page cache. On overlayfs the pages are those of a file
    /// of another file system, which cannot be examined here.
    pub(super) fn has_own_pages(self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { bindings::hcablk_c_has_own_pages(self.file.as_ptr()) }
    }

    pub(super) fn has_mode(self, mode: bindings::fmode_t) -> bool {
        // SAFETY: By the type invariant; the modes that callers ask for are set when the file is
        // opened.
        unsafe { (*self.file.as_ptr()).f_mode & mode != 0 }
    }

    /// Returns whether the file supports [`FileAccess::CachedNow`].
    pub fn can_now(self) -> bool {
        self.has_mode(bindings::FMODE_NOWAIT)
    }

    /// Returns whether the page cache has any of the `length` bytes at `position`. Any context.
    ///
    /// C: `filemap_range_has_page()`.
    #[inline]
    pub fn has_pages(self, position: u64, length: usize) -> bool {
        let mapping = self.mapping();
        // SAFETY: By the type invariant. The count may change at any time.
        if unsafe { core::ptr::read_volatile(&raw const (*mapping).nrpages) } == 0 {
            return false;
        }
        let (start, last) = bounds(position, length);
        // SAFETY: By the type invariant.
        unsafe { bindings::filemap_range_has_page(mapping, start, last) }
    }

    /// Writes back the dirty pages of `length` bytes at `position` and waits for that. Sleeps.
    ///
    /// Errors: that of any write-back of the file that has failed since `cursor`, which is
    /// advanced. So a caller that [took the cursor](Self::new_wb_err_cursor) before it wrote learns
    /// of each of its blocks that was lost. This does not consume the error of other users.
    /// `filemap_write_and_wait_range()` would: it clears the mapping's flag, which reports a
    /// failure to only one of the waiting users.
    ///
    /// C: `filemap_fdatawrite_range()`, `filemap_fdatawait_range_keep_errors()`.
    pub fn write_back(self, position: u64, length: usize, cursor: &mut WbErrCursor) -> Result {
        let (start, last) = bounds(position, length);
        let mapping = self.mapping();
        // SAFETY: By the type invariant.
        let begun = to_result(unsafe { bindings::filemap_fdatawrite_range(mapping, start, last) });
        // Some pages may be under write-back despite the error; after `EIO` the kernel itself does
        // not wait.
        if begun != Err(EIO) {
            // The mapping's flags do not show when a write-back has failed; the cursor does.
            // SAFETY: By the type invariant.
            let _ = unsafe { bindings::filemap_fdatawait_range_keep_errors(mapping, start, last) };
        }
        self.check_wb_err(cursor).and(begun)
    }

    /// Writes back all dirty pages and waits for that. Sleeps. Like [`Self::sync`], and unlike
    /// [`Self::write_back`], it consumes the error in the mapping's flags, which another user that
    /// syncs the device would find: a `dmsetup suspend` fails with it.
    ///
    /// C: `file_write_and_wait_range()`.
    pub fn write_all_back(self) -> Result {
        // SAFETY: By the type invariant.
        to_result(unsafe { bindings::file_write_and_wait_range(self.file.as_ptr(), 0, i64::MAX) })
    }

    /// Drops the clean pages of `length` bytes at `position`. Sleeps.
    ///
    /// Errors: `EBUSY` (some are dirty or in use, and stay).
    /// C: `invalidate_inode_pages2_range()`.
    pub fn drop_pages(self, position: u64, length: usize) -> Result {
        let (start, last) = bounds(position, length);
        // SAFETY: By the type invariant.
        to_result(unsafe {
            bindings::invalidate_inode_pages2_range(
                self.mapping(),
                (start >> PAGE_SHIFT) as usize,
                (last >> PAGE_SHIFT) as usize,
            )
        })
    }

    /// Returns whether data must not change while it is being written, because a checksum or parity
    /// is computed from it.
    ///
    /// C: `bdev_stable_writes()`, `mapping_stable_writes()`.
    pub fn wants_stable_data(self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { bindings::hcablk_c_stable_writes(self.file.as_ptr()) }
    }

    /// Returns whether the file supports [`Self::empty`] at all.
    pub fn can_empty(self) -> bool {
        // SAFETY: By the type invariant; every file has operations.
        unsafe { (*(*self.file.as_ptr()).f_op).fallocate.is_some() }
    }

    /// Makes `length` bytes at `position` read as zeroes, in the page cache, too; their blocks stay
    /// allocated if `keep`, and are deallocated otherwise. Sleeps.
    ///
    /// Errors, among others: `EOPNOTSUPP` (the file system, or the device,
    /// cannot). C: `vfs_fallocate()`.
    pub fn empty(self, position: u64, length: usize, keep: bool) -> Result {
        let how = if keep {
            bindings::FALLOC_FL_ZERO_RANGE
        } else {
            bindings::FALLOC_FL_PUNCH_HOLE
        };
        let mode = how | bindings::FALLOC_FL_KEEP_SIZE;
        let (position, length) = (i64::try_from(position)?, i64::try_from(length)?);
        // SAFETY: By the type invariant.
        to_result(unsafe { bindings::vfs_fallocate(self.file.as_ptr(), mode, position, length) })
    }

    /// Makes completed writes durable. Sleeps. C: `vfs_fsync_range()`.
    pub fn sync(self) -> Result {
        // SAFETY: By the type invariant.
        to_result(unsafe { bindings::vfs_fsync_range(self.file.as_ptr(), 0, i64::MAX, 1) })
    }

    /// Returns a cursor after all errors so far, except one that no cursor has seen yet, as for a
    /// file that is being opened. C: `errseq_sample()`.
    pub fn wb_err_cursor(self) -> WbErrCursor {
        // SAFETY: By the type invariant.
        WbErrCursor(unsafe { bindings::errseq_sample(&raw mut (*self.mapping()).wb_err) })
    }

    /// Returns a cursor after all errors so far, for a caller that must see only later ones. An
    /// error that no cursor has seen yet is marked as seen, so that the next error differs from it:
    /// existing cursors still report it, files opened from now on do not. Any context.
    pub fn new_wb_err_cursor(self) -> WbErrCursor {
        let mut cursor = WbErrCursor(0);
        // An error of earlier writes is not the caller's.
        let _ = self.check_wb_err(&mut cursor);
        cursor
    }

    /// Returns the error of a write-back that has failed since `cursor`, and advances the cursor.
    /// [`Self::sync`] returns each error to one of all users of the file; this returns it to each
    /// of them. C: `errseq_check_and_advance()`.
    pub fn check_wb_err(self, cursor: &mut WbErrCursor) -> Result {
        // SAFETY: By the type invariant; `cursor` is ours alone.
        to_result(unsafe {
            bindings::errseq_check_and_advance(&raw mut (*self.mapping()).wb_err, &raw mut cursor.0)
        })
    }
}

/// Returns the first and the last byte, as the page cache's functions expect them.
fn bounds(position: u64, length: usize) -> (i64, i64) {
    let last = position.saturating_add(length.max(1) as u64 - 1);
    (
        i64::try_from(position).unwrap_or(i64::MAX),
        i64::try_from(last).unwrap_or(i64::MAX),
    )
}

/// How a file is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// Bypasses the page cache. The file system may continue asynchronously.
    Direct,
    /// Through the page cache.
    Cached,
    /// Through the page cache, without sleeping; fails with `EAGAIN` if that is impossible. For
    /// reading, if [`FileRef::can_now`].
    CachedNow,
}

/// The operation of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOp {
    /// File to memory.
    Read,
    /// Memory to file.
    Write {
        /// Completion implies durability.
        durable: bool,
    },
}

struct Inner {
    kiocb: bindings::kiocb,
    /// The owner in its box, while the file system has it.
    owner: *mut c_void,
    length: usize,
}

/// A reusable `struct kiocb` with a table of segments.
///
/// # Invariants
///
/// Neither is in use by a file system, except between [`transfer`] and `completed`
/// of their owner.
pub struct FileSlot {
    inner: KBox<Opaque<Inner>>,
    table: KVec<bindings::bio_vec>,
}

// SAFETY: By the type invariant no file system uses it while a thread can reach it: it is plain
// memory.
unsafe impl Send for FileSlot {}

// SAFETY: Shared references give access to nothing.
unsafe impl Sync for FileSlot {}

impl FileSlot {
    /// Allocates room for I/O of at most `max_segments` pieces of memory.
    /// May sleep.
    pub fn new(max_segments: u16) -> Result<Self> {
        // INVARIANT: Nothing is in use.
        Ok(Self {
            inner: KBox::new(Opaque::uninit(), GFP_KERNEL)?,
            table: KVec::with_capacity(max_segments.into(), GFP_KERNEL)?,
        })
    }
}

/// An object that does I/O to files; its memory is [`BioOwner::pages`], with the
/// file's alignment for [`FileAccess::Direct`].
pub trait FileOwner: BioOwner + Deferred + HasSlot<FileSlot> {
    /// Returns the file of the next I/O.
    fn file(&self) -> FileRef<'_>;

    /// Handles the end of I/O that [`transfer`] began. Any context, hard interrupts included.
    fn completed(self: KBox<Self>, result: Result);
}

/// Does I/O at `position` (in bytes).
///
/// Sleeps, except with [`FileAccess::CachedNow`]. `None`: the file system has started the I/O, and
/// will call `completed`, if it has not already. Otherwise the owner is returned with the result; a
/// read beyond the end of the file fails with `EIO`. Cached reads use the read-ahead that the
/// administrator has set for that device.
///
/// C: `vfs_iocb_iter_read()`, `vfs_iocb_iter_write()`.
pub fn transfer<T: FileOwner>(
    mut owner: KBox<T>,
    op: FileOp,
    way: FileAccess,
    position: u64,
) -> Option<(KBox<T>, Result)> {
    let Ok(ki_pos) = i64::try_from(position) else {
        return Some((owner, Err(EINVAL)));
    };
    let Some(length) = fill_table(&mut owner) else {
        return Some((owner, Err(EINVAL)));
    };
    let file = owner.file().file.as_ptr();
    let slot: &mut FileSlot = owner.slot_mut();
    let (table, segments) = (slot.table.as_ptr(), slot.table.len());
    let inner = slot.inner.get();
    let write = op != FileOp::Read;
    let iter = Opaque::<bindings::iov_iter>::uninit();
    // SAFETY: The slot is unused, so its state is ours to write; the table lives as long as the
    // owner, which stays in its box until it is returned.
    unsafe {
        inner.write(Inner {
            kiocb: new_kiocb::<T>(file, ki_pos, op, way),
            owner: null_mut(),
            length,
        });
        // ITER_DEST is 0, ITER_SOURCE 1.
        bindings::iov_iter_bvec(iter.get(), c_uint::from(write), table, segments, length);
    }
    if !write && way != FileAccess::Direct {
        // SAFETY: The file is open as long as the owner has it.
        unsafe { bindings::hcablk_c_follow_read_ahead(file) };
    }
    let raw = KBox::into_raw(owner);
    // SAFETY: Written above; the completion turns it into the owner again.
    unsafe { (*inner).owner = raw.cast() };
    // SAFETY: All of it was set up above, and the owner is in its box.
    let result = unsafe { carry_out(inner, iter.get(), write, way) }?;
    // SAFETY: The file system has not kept it.
    Some((unsafe { KBox::from_raw(raw) }, result))
}

/// Puts the owner's memory into its table of segments and returns its number of bytes; `None` if
/// the table is too short.
#[inline]
fn fill_table<T: FileOwner>(owner: &mut KBox<T>) -> Option<usize> {
    let slot: &mut FileSlot = owner.slot_mut();
    let mut table = core::mem::replace(&mut slot.table, KVec::new());
    table.clear();
    let mut length = 0;
    let mut fits = true;
    for range in owner.pages() {
        length += range.length() as usize;
        let (page, offset) = range.begin();
        let segment = bindings::bio_vec {
            bv_page: page,
            bv_len: range.length(),
            bv_offset: offset,
        };
        fits &= table.push_within_capacity(segment).is_ok();
    }
    let slot: &mut FileSlot = owner.slot_mut();
    slot.table = table;
    fits.then_some(length)
}

/// Returns the structure of one I/O. The file system calls `complete` at the end of
/// [direct](FileAccess::Direct) I/O only.
#[inline]
fn new_kiocb<T: FileOwner>(
    file: *mut bindings::file,
    position: i64,
    op: FileOp,
    way: FileAccess,
) -> bindings::kiocb {
    let op_flags = match op {
        FileOp::Read => 0,
        FileOp::Write { durable: false } => bindings::IOCB_WRITE as c_int,
        FileOp::Write { durable: true } => bindings::IOCB_WRITE as c_int | bindings::IOCB_DSYNC,
    };
    let way_flags = match way {
        FileAccess::Direct => bindings::IOCB_DIRECT as c_int,
        FileAccess::Cached => 0,
        FileAccess::CachedNow => bindings::IOCB_NOWAIT,
    };
    bindings::kiocb {
        ki_filp: file,
        ki_pos: position,
        ki_complete: match way {
            FileAccess::Direct => Some(complete::<T>),
            // Without `complete`, the call waits for the I/O, or fails with `EAGAIN` (`CachedNow`).
            FileAccess::Cached | FileAccess::CachedNow => None,
        },
        private: null_mut(),
        ki_flags: op_flags | way_flags,
        ki_ioprio: 0,
        ki_write_stream: 0,
        ki_waitq: null_mut(),
    }
}

/// Calls the file system, again for the rest of an incomplete transfer. `None`: the file system
/// continues asynchronously.
///
/// # Safety
///
/// `inner` and `iter` are set up for I/O of this kind to an open file, and `inner.owner` is a
/// pointer from [`KBox::into_raw`], which belongs to the file system when this returns `None`.
#[inline]
unsafe fn carry_out(
    inner: *mut Inner,
    iter: *mut bindings::iov_iter,
    write: bool,
    way: FileAccess,
) -> Option<Result> {
    // SAFETY: By the safety requirement.
    let (file, length) = unsafe { ((*inner).kiocb.ki_filp, (*inner).length) };
    let mut done = 0;
    loop {
        // SAFETY: The file is open as long as the owner has it; the rest is set up by the safety
        // requirement. The owner is not touched after the file system has continued asynchronously.
        let moved = without_io(|| unsafe {
            let kiocb = &raw mut (*inner).kiocb;
            if write {
                bindings::vfs_iocb_iter_write(file, kiocb, iter)
            } else {
                bindings::vfs_iocb_iter_read(file, kiocb, iter)
            }
        });
        if moved == -(bindings::EIOCBQUEUED as isize) {
            return None;
        }
        let Ok(moved) = usize::try_from(moved) else {
            return Some(to_result(moved as c_int));
        };
        done += moved;
        if done >= length {
            return Some(Ok(()));
        }
        match way {
            FileAccess::CachedNow => return Some(Err(EAGAIN)),
            _ if moved == 0 => return Some(Err(EIO)),
            // The next call, for the rest alone, returns the error that stopped this one.
            _ => {
                // SAFETY: The call has returned; the state is ours.
                unsafe { (*inner).length = length - done };
            }
        }
    }
}

/// # Safety
///
/// Called by the file system once for a `kiocb` that `transfer` of the same type
/// gave it.
unsafe extern "C" fn complete<T: FileOwner>(kiocb: *mut bindings::kiocb, moved: ffi::c_long) {
    // A file system completes in a thread that may be preempted.
    let _section = completion_section();
    // SAFETY: By the safety requirement the structure is in an `Inner`, ours
    // again, and `owner` the pointer that `transfer` left there.
    let (owner, length) = unsafe {
        if (*kiocb).ki_flags & bindings::IOCB_WRITE as c_int != 0 {
            bindings::hcablk_c_kiocb_end_write(kiocb);
        }
        let inner = kernel::container_of!(kiocb, Inner, kiocb);
        (KBox::from_raw((*inner).owner.cast::<T>()), (*inner).length)
    };
    owner.completed(match usize::try_from(moved) {
        Ok(moved) if moved == length => Ok(()),
        Ok(_) => Err(EIO),
        Err(_) => to_result(moved as c_int),
    });
}
