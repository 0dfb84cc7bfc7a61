// SPDX-License-Identifier: GPL-2.0

//! Small files that the kernel writes durably, in a directory that a process has opened. A full
//! path would not do: kernel threads may have another root directory than that process.
//!
//! C header: [`include/linux/fs.h`](srctree/include/linux/fs.h)

use crate::{
    bindings,
    system::errno, //
};
use core::{
    ffi::c_int,
    ptr::NonNull, //
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*, //
};

/// An open file.
///
/// # Invariants
///
/// `file` is open and ours.
pub struct StateFile(NonNull<bindings::file>);

// SAFETY: The file system does its own locking; there is no state of ours.
unsafe impl Send for StateFile {}

// SAFETY: As above.
unsafe impl Sync for StateFile {}

/// An open directory: while it is open, its file system cannot be unmounted.
pub struct StateDirectory(StateFile);

/// Flags of all opens: never wait for the holder of a lease, or for the other end of a pipe.
const FLAGS: u32 = bindings::O_LARGEFILE | bindings::O_NONBLOCK;

impl StateDirectory {
    /// Opens the directory at `path`, which is resolved for the calling process. Sleeps. Errors,
    /// among others: `ENOENT`, `ENOTDIR`; `EOPNOTSUPP` (on overlayfs [`StateFile::drop_cached`]
    /// would not reach the pages that are written). C: `filp_open()`.
    pub fn open(path: &CStr) -> Result<Self> {
        let flags = (FLAGS | bindings::O_RDONLY | bindings::O_DIRECTORY) as c_int;
        // SAFETY: The path is terminated.
        let file = from_err_ptr(unsafe { bindings::filp_open(path.as_char_ptr(), flags, 0) })?;
        // INVARIANT: Opened just now.
        let file = StateFile(NonNull::new(file).ok_or(ENOENT)?);
        // SAFETY: By the type invariant.
        match unsafe { bindings::hcablk_c_has_own_pages(file.0.as_ptr()) } {
            true => Ok(Self(file)),
            false => Err(errno::eopnotsupp()),
        }
    }

    fn open_with(&self, name: &CStr, flags: u32, mode: u16) -> Result<StateFile> {
        let flags = (FLAGS | flags) as c_int;
        // SAFETY: The directory is open, and its path is valid while it is open; the name is
        // terminated.
        let file = from_err_ptr(unsafe {
            let path = bindings::hcablk_c_path_of(self.0 .0.as_ptr());
            bindings::file_open_root(path, name.as_char_ptr(), flags, mode)
        })?;
        // INVARIANT: Opened just now.
        Ok(StateFile(NonNull::new(file).ok_or(ENOENT)?))
    }

    /// Opens the file of this name for reading. Sleeps. Errors, among others: `ENOENT`. C:
    /// `file_open_root()`.
    pub fn file(&self, name: &CStr) -> Result<StateFile> {
        self.open_with(name, bindings::O_RDONLY, 0)
    }

    /// Opens the file of this name for reading and writing. Creates it, accessible to root only, if
    /// it does not exist. Sleeps. C: `file_open_root()`.
    pub fn file_or_new(&self, name: &CStr) -> Result<StateFile> {
        self.open_with(name, bindings::O_RDWR | bindings::O_CREAT, 0o600)
    }

    /// Makes the list of files in the directory durable. Sleeps.
    pub fn sync(&self) -> Result {
        self.0.sync()
    }
}

impl StateFile {
    /// Drops the file's pages from the page cache, so that later reads come from the medium. A page
    /// whose write-back has failed would stay in the page cache as if it were durable. Sleeps.
    /// Fails with `EBUSY` if a page cannot be dropped from the page cache. C:
    /// `invalidate_inode_pages2()`.
    pub fn drop_cached(&self) -> Result {
        // SAFETY: By the type invariant the file is open, so its mapping exists.
        unsafe {
            // A file system in memory has only the page cache.
            if !bindings::hcablk_c_can_writeback(self.0.as_ptr()) {
                return Ok(());
            }
            let mapping = (*self.0.as_ptr()).f_mapping;
            // A write-back error is ignored here: a page that stays dirty cannot be dropped, which
            // is an error below.
            let _ = bindings::filemap_write_and_wait_range(mapping, 0, i64::MAX);
            to_result(bindings::invalidate_inode_pages2(mapping))
        }
    }

    /// Reads at `position` until `bytes` is full or the file ends; returns the number of bytes
    /// read. Sleeps. C: `kernel_read()`.
    pub fn read(&self, position: u64, bytes: &mut [u8]) -> Result<usize> {
        let mut position = i64::try_from(position)?;
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            // SAFETY: By the type invariant; `rest` is valid for its length.
            let read = unsafe {
                bindings::kernel_read(
                    self.0.as_ptr(),
                    rest.as_mut_ptr().cast(),
                    rest.len(),
                    &mut position,
                )
            };
            match usize::try_from(read) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(_) => return Err(Error::from_errno(read as c_int)),
            }
        }
        Ok(done)
    }

    /// Writes `bytes` at `position`, and returns when they are durable. Sleeps. C:
    /// `kernel_write()`, `vfs_fsync()`.
    pub fn write(&self, position: u64, bytes: &[u8]) -> Result {
        let mut position = i64::try_from(position)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            // SAFETY: By the type invariant; `rest` is valid for its length.
            let written = unsafe {
                bindings::kernel_write(
                    self.0.as_ptr(),
                    rest.as_ptr().cast(),
                    rest.len(),
                    &mut position,
                )
            };
            match usize::try_from(written) {
                Ok(0) => return Err(EIO),
                Ok(written) => rest = rest.get(written..).unwrap_or(&[]),
                Err(_) => return Err(Error::from_errno(written as c_int)),
            }
        }
        self.sync()
    }

    /// Makes the written data durable. Sleeps. C: `vfs_fsync()`.
    pub fn sync(&self) -> Result {
        // SAFETY: By the type invariant.
        to_result(unsafe { bindings::vfs_fsync(self.0.as_ptr(), 0) })
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; nobody can use it any more.
        unsafe { bindings::__fput_sync(self.0.as_ptr()) };
    }
}
