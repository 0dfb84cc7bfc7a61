// SPDX-License-Identifier: GPL-2.0

//! A block device of another driver, on which this code does I/O.
//!
//! C headers: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h),
//! [`block/bdev.c`](srctree/block/bdev.c)

use super::{
    FileRef,
    LiveLimits, //
};
use crate::{
    bindings,
    system::errno, //
};
use core::ptr::{
    null,
    NonNull, //
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*, //
};

/// The holder of the devices: only its address is compared.
static HOLDER: u8 = 0;

/// An open block device, held against exclusive users such as mounts and other
/// storage stacks, but not against other opens by this type.
///
/// # Invariants
///
/// `file` is an open block device file that we own, `bdev` its device.
pub struct BlockDevice {
    file: NonNull<bindings::file>,
    bdev: NonNull<bindings::block_device>,
    writable: bool,
}

// SAFETY: The block layer does its own locking; there is no state of ours.
unsafe impl Send for BlockDevice {}

// SAFETY: As above.
unsafe impl Sync for BlockDevice {}

/// Reads a field of a device's queue limits. The value may change at any time, as for every reader
/// without the queue's lock.
macro_rules! limit {
    ($device:expr, $field:ident) => {
        // SAFETY: By the type invariant; an open device keeps its queue. Nothing is borrowed.
        unsafe {
            core::ptr::read_volatile(&raw const (*(*$device.as_raw()).bd_queue).limits.$field)
        }
    };
}

impl BlockDevice {
    /// Opens the device at `path`, for reading, and for writing unless
    /// `read_only`.
    ///
    /// Sleeps. Errors, among others: `ENOENT` (no such path), `ENOTBLK` (not a
    /// block device), `ENXIO` (no device behind it), `EBUSY` (held by somebody
    /// else), `EACCES` (the device is read-only, or the caller's device cgroup
    /// forbids it).
    ///
    /// C: `bdev_file_open_by_path()`.
    pub fn open(path: &CStr, read_only: bool) -> Result<Self> {
        let mut mode = bindings::BLK_OPEN_READ;
        if !read_only {
            mode |= bindings::BLK_OPEN_WRITE;
        }
        let holder = (&raw const HOLDER).cast_mut().cast();
        // SAFETY: The path is terminated, the holder lives for ever and always
        // comes with the same operations: none.
        let file = from_err_ptr(unsafe {
            bindings::bdev_file_open_by_path(path.as_char_ptr(), mode, holder, null())
        })?;
        // SAFETY: It was just opened as a block device.
        let bdev = unsafe { bindings::file_bdev(file) };
        // INVARIANT: Both belong together, the file is ours.
        Ok(Self {
            file: NonNull::new(file).ok_or(ENXIO)?,
            bdev: NonNull::new(bdev).ok_or(ENXIO)?,
            writable: !read_only,
        })
    }

    /// Returns the C structure, valid as long as `self`.
    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::block_device {
        self.bdev.as_ptr()
    }

    /// Returns whether the device was opened for writing.
    #[inline]
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Returns the device's file for [`transfer`](super::transfer), which goes through its page
    /// cache.
    #[inline]
    pub fn file(&self) -> FileRef<'_> {
        // SAFETY: By the type invariant.
        unsafe { FileRef::from_raw(self.file) }
    }

    /// Returns the size in sectors of 512 bytes; it changes when the device is resized, and is 0
    /// when it is dead. C: `bdev_nr_sectors()`.
    #[inline]
    pub fn sectors(&self) -> u64 {
        // SAFETY: By the type invariant.
        unsafe { core::ptr::read_volatile(&raw const (*self.as_raw()).bd_nr_sectors) }
    }

    /// Returns the size in bytes. C: `bdev_nr_bytes()`.
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        self.sectors() << bindings::SECTOR_SHIFT
    }

    /// Returns the smallest unit that can be addressed, in bytes.
    pub fn logical_block_size(&self) -> u32 {
        limit!(self, logical_block_size)
    }

    /// Returns the length of consecutive bytes that are on one drive, if the device distributes its
    /// blocks over several; 0 if it reports none. md and dm report it as `io_min` and `io_opt` (of
    /// one stripe and of all), NVMe drives with several parts as `chunk_sectors`.
    pub fn stripe(&self) -> u32 {
        let chunk_sectors = limit!(self, chunk_sectors);
        if chunk_sectors != 0 {
            return chunk_sectors.saturating_mul(512);
        }
        let (io_min, io_opt) = (limit!(self, io_min), limit!(self, io_opt));
        let physical = limit!(self, physical_block_size);
        let striped = io_min > physical && io_opt > io_min && io_opt % io_min == 0;
        if striped {
            io_min
        } else {
            0
        }
    }

    /// Returns the offset in bytes of this device, a partition, in the whole device. C:
    /// `get_start_sect()`.
    pub fn start_bytes(&self) -> u64 {
        // SAFETY: By the type invariant.
        unsafe { (*self.as_raw()).bd_start_sect << bindings::SECTOR_SHIFT }
    }

    /// Returns whether writes must come in the order of their blocks, in each zone. C:
    /// `bdev_is_zoned()`.
    pub fn is_zoned(&self) -> bool {
        limit!(self, features) & bindings::BLK_FEAT_ZONED != 0
    }

    /// Returns whether completed writes may be in a volatile cache. The value may change at any
    /// time, without a notification. Any context; costs only a few loads, since each write may call
    /// it. C: `bdev_write_cache()`.
    #[inline]
    pub fn write_cache(&self) -> bool {
        limit!(self, features) & bindings::BLK_FEAT_WRITE_CACHE != 0
            && limit!(self, flags) & bindings::BLK_FLAG_WRITE_CACHE_DISABLED == 0
    }

    /// Makes completed writes durable: flushes the device's volatile cache, if it has one. Sleeps.
    /// C: `blkdev_issue_flush()`.
    pub fn flush(&self) -> Result {
        // SAFETY: By the type invariant.
        match to_result(unsafe { bindings::blkdev_issue_flush(self.as_raw()) }) {
            // The device has no cache: a success, as for `blkdev_fsync()`.
            Err(e) if e == errno::eopnotsupp() => Ok(()),
            result => result,
        }
    }

    /// Returns whether the device itself supports FUA writes; otherwise the block layer flushes
    /// after them. C: `bdev_fua()`.
    pub fn fua(&self) -> bool {
        limit!(self, features) & bindings::BLK_FEAT_FUA != 0
    }

    /// Returns whether the error of a write with FUA concerns that write alone. Otherwise it may be
    /// the error of a flush: the block layer's own after a write to a device without FUA, or one by
    /// a bio-based driver (dm, md).
    pub fn fua_fails_alone(&self) -> bool {
        // SAFETY: By the type invariant; an open device keeps its queue, which has the same
        // operations for its life.
        let of_requests = unsafe { !(*(*self.as_raw()).bd_queue).mq_ops.is_null() };
        of_requests && self.fua()
    }

    /// Returns whether the device can say that it has no room for an I/O instead of letting the
    /// submitter wait. Any context. C: `bdev_nowait()`.
    #[inline]
    pub(super) fn takes_nowait(&self) -> bool {
        limit!(self, features) & bindings::BLK_FEAT_NOWAIT != 0
    }

    /// Returns whether the device cannot be written. The value may change at any time. C:
    /// `bdev_read_only()`.
    #[inline]
    pub fn read_only(&self) -> bool {
        let bdev = self.as_raw();
        // SAFETY: By the type invariant; an open device keeps its disk, and the disk keeps its
        // whole device. Other contexts change these fields with atomic operations.
        let (own, whole, disk) = unsafe {
            let disk = (*bdev).bd_disk;
            (
                core::ptr::read_volatile(&raw const (*bdev).__bd_flags.counter),
                core::ptr::read_volatile(&raw const (*(*disk).part0).__bd_flags.counter),
                core::ptr::read_volatile(&raw const (*disk).state),
            )
        };
        (own | whole) as u32 & bindings::BD_READ_ONLY != 0
            || disk & (1 << bindings::GD_READ_ONLY) != 0
    }

    /// Returns whether the device's DMA may go to memory of other PCI devices. Stacked devices that
    /// do not announce it (dm) would fail such I/O. C: `blk_queue_pci_p2pdma()`.
    pub fn peers(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { bindings::hcablk_c_bdev_peers(self.as_raw()) }
    }

    /// Returns the limits that user space may change at any time, without a notification. Any
    /// context.
    pub fn live_limits(&self) -> LiveLimits {
        let mut raw = pin_init::zeroed();
        // SAFETY: By the type invariant; `raw` is valid for the call.
        unsafe { bindings::hcablk_c_bdev_limits(self.as_raw(), &mut raw) };
        LiveLimits::from_raw(&raw)
    }
}

impl Drop for BlockDevice {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; nobody can use it any more.
        unsafe { bindings::bdev_fput(self.file.as_ptr()) };
    }
}
