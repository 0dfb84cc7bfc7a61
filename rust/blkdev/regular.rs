// SPDX-License-Identifier: GPL-2.0

//! A regular file that is used like a drive.
//!
//! C header: [`include/linux/fs.h`](srctree/include/linux/fs.h)

use super::FileRef;
use crate::bindings;
use core::{
    ffi::c_int,
    ptr::NonNull, //
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    types::Opaque, //
};

/// An open regular file.
///
/// # Invariants
///
/// `file` is open and ours.
pub struct RegularFile {
    file: NonNull<bindings::file>,
    block_size: u32,
    direct_unit: u32,
    writable: bool,
}

// SAFETY: The file system does its own locking; there is no state of ours.
unsafe impl Send for RegularFile {}

// SAFETY: As above.
unsafe impl Sync for RegularFile {}

impl RegularFile {
    /// Opens the file at `path`, for reading, and for writing unless
    /// `read_only`.
    ///
    /// Sleeps. Errors, among others: `ENOENT` (no such path), `EACCES` or `EROFS` (the caller may
    /// not open it, or not for writing), `EISDIR`, `ENOTBLK` (neither a regular file nor a block
    /// device).
    ///
    /// C: `filp_open()`.
    pub fn open(path: &CStr, read_only: bool) -> Result<Self> {
        let access = if read_only {
            bindings::O_RDONLY
        } else {
            bindings::O_RDWR
        };
        // `O_NONBLOCK`: opening a FIFO must not wait for its other end.
        let flags = (access | bindings::O_LARGEFILE | bindings::O_NONBLOCK) as c_int;
        // SAFETY: The path is terminated.
        let file = from_err_ptr(unsafe { bindings::filp_open(path.as_char_ptr(), flags, 0) })?;
        // INVARIANT: Opened just now. If `look` fails, dropping `this` closes the file.
        let mut this = Self {
            file: NonNull::new(file).ok_or(ENOENT)?,
            block_size: 0,
            direct_unit: 0,
            writable: !read_only,
        };
        this.look()?;
        Ok(this)
    }

    /// Reads the file system's properties of the file.
    fn look(&mut self) -> Result {
        let stat = Opaque::<bindings::kstat>::uninit();
        let mask = bindings::STATX_BASIC_STATS | bindings::STATX_DIOALIGN;
        // SAFETY: The file is open; `stat` is room for the response, which is
        // written completely when the call succeeds.
        let stat = unsafe {
            to_result(bindings::vfs_getattr(
                &raw const (*self.file.as_ptr()).__bindgen_anon_1.f_path,
                stat.get(),
                mask,
                0,
            ))?;
            &*stat.get()
        };
        if u32::from(stat.mode) & bindings::S_IFMT != bindings::S_IFREG {
            return Err(ENOTBLK);
        }
        self.block_size = stat.blksize;
        let can = self.file().has_mode(bindings::FMODE_CAN_ODIRECT);
        self.direct_unit = match stat.result_mask & bindings::STATX_DIOALIGN {
            _ if !can => 0,
            // The file system does not report the unit: assume the largest.
            0 => 4096,
            // 0 if the file does not support direct I/O.
            _ => stat.dio_offset_align,
        };
        Ok(())
    }

    /// Returns a reference to the file for [`transfer`](super::transfer).
    #[inline]
    pub fn file(&self) -> FileRef<'_> {
        // SAFETY: By the type invariant.
        unsafe { FileRef::from_raw(self.file) }
    }

    /// Returns the size in bytes at this moment. Any context.
    ///
    /// C: `i_size_read()`.
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        // SAFETY: By the type invariant.
        let size = unsafe { bindings::hcablk_c_file_size(self.file.as_ptr()) };
        // The size of a file is never negative.
        size.unsigned_abs()
    }

    /// Returns whether write-back errors and pages of the file can be examined here: not on
    /// overlayfs.
    pub fn has_own_pages(&self) -> bool {
        self.file().has_own_pages()
    }

    /// Returns the file system's preferred I/O size, in bytes.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Returns the unit of direct I/O in bytes; 0 if there is none.
    pub fn direct_unit(&self) -> u32 {
        self.direct_unit
    }

    /// Returns whether the file was opened for writing.
    pub fn writable(&self) -> bool {
        self.writable
    }
}

impl Drop for RegularFile {
    fn drop(&mut self) {
        // Not `fput()`: the file is closed at once, so that its file system can be unmounted.
        // SAFETY: By the type invariant; nobody can use it any more.
        unsafe { bindings::__fput_sync(self.file.as_ptr()) };
    }
}
