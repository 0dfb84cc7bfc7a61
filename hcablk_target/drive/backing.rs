// SPDX-License-Identifier: GPL-2.0

//! The block device or file behind a volume, and how data reaches it.
//!
//! The mode decides how:
//!
//! | mode | reads | writes |
//! |---|---|---|
//! | direct | drive | drive |
//! | cached | page cache | page cache |
//! | mixed | drive | page cache |
//! | p2p | drive | drive |
//!
//! In mode p2p, memory of a PCI device replaces the RAM of the cache's lines, and that of the
//! buffers on the drive's side (see [`p2p`](super::p2p)). Otherwise the mode equals direct.
//!
//! Requests to the drive bypass the page cache, but respect its contents: see `io/drive.rs`, which
//! implements this.

use super::{
    cache::Cache,
    claims::{
        Claim,
        Claims,
        Manner,
        Rewrites,
        Shared, //
    },
    flush_failures::{
        may_be_of_flush,
        FlushFailures, //
    },
    io_turns::IoTurns,
    observed::{
        Observed,
        Observer, //
    },
    p2p::Source,
    reservations::{
        Drive,
        DriveUse, //
    },
};
use crate::io::{
    split::Split,
    validate::Emptied, //
};
use hcablk_core::{
    blkdev::{
        BlockDevice,
        FileAccess,
        FileRef,
        LiveLimits,
        RegularFile,
        WbErrCursor, //
    },
    proto::{
        connect::Geometry,
        message::{
            AtomicWrites,
            VolumeLimits, //
        },
        TRANSFER_USUAL, //
    },
    sync::{
        Event,
        WorkQueue, //
    },
    system::{
        errno,
        hibernation::{
            Use,
            Uses, //
        },
    },
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    str::CString,
    sync::Arc, //
};

/// The most bytes of a file that one request may discard or zero: other requests wait for it.
const FILE_EMPTY_MAX: u64 = 1 << 30;

/// The largest logical block of a drive, in bytes: the protocol cannot express larger ones.
const LOGICAL_BLOCK_MAX: u32 = 4096;

/// The most requests of one volume that wait for its drive on the workqueue at the same time, and
/// thus the most threads that a hanging drive blocks. The others wait in the lines of their hosts,
/// which take turns.
const IO_WORK_MAX: u16 = 256;

/// The mode of a volume: see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Direct,
    Cached,
    Mixed,
    P2p,
}

impl Mode {
    const NAMES: [(&'static str, Mode); 4] = [
        ("direct", Mode::Direct),
        ("cached", Mode::Cached),
        ("mixed", Mode::Mixed),
        ("p2p", Mode::P2p),
    ];

    /// Parses the name of a mode. Fails with `EINVAL` if there is no mode of this name.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let known = Self::NAMES.iter().find(|(name, _)| *name == text);
        known.map(|(_, mode)| *mode).ok_or(EINVAL)
    }

    pub(crate) fn name(self) -> &'static str {
        let known = Self::NAMES.iter().find(|(_, mode)| *mode == self);
        known.map_or("", |(name, _)| name)
    }
}

/// The time at which a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteCache {
    /// When the drive has completed the write, perhaps into a volatile cache: initiators flush.
    Back,
    /// When the write is on stable media: initiators see a volume without a volatile cache.
    Through,
}

impl WriteCache {
    /// Parses the text of the setting. Fails with `EINVAL` for any other text.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        match text {
            "back" => Ok(Self::Back),
            "through" => Ok(Self::Through),
            _ => Err(EINVAL),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Back => "back",
            Self::Through => "through",
        }
    }
}

/// The route of a request's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Between buffers and a block device.
    Device,
    /// Between buffers and a file's blocks.
    File,
    /// Through the page cache of either.
    Cache,
}

impl Route {
    /// Returns the route as the file layer names it.
    pub(crate) fn file_access(self) -> FileAccess {
        match self {
            Route::Device | Route::File => FileAccess::Direct,
            Route::Cache => FileAccess::Cached,
        }
    }
}

enum Store {
    Device(BlockDevice),
    File(RegularFile),
}

/// An open block device or file, with its mode.
pub(crate) struct Backing {
    /// Dropped before the device or file is closed.
    claim: Option<Claim>,
    /// Dropped before `claim`.
    drive: Option<Arc<DriveUse>>,
    /// The workqueue of requests that wait for the drive: see [`Self::io_work`].
    io_work: WorkQueue,
    /// The order of the requests that wait for `io_work`.
    io_turns: Arc<IoTurns>,
    /// The workqueue of the queue pairs' completions: see [`Self::completions`].
    completions: Arc<WorkQueue>,
    software: Arc<WorkQueue>,
    store: Store,
    mode: Mode,
    write_cache: WriteCache,
    cache: Option<Arc<Cache>>,
    source: Source,
    /// The reason why a volume of mode p2p has its cache in RAM.
    fallen: Option<&'static str>,
    /// Bytes of the chunks of large requests; 0: no chunks.
    chunk: u32,
    observer: Arc<Observer>,
    /// The smallest unit in which the page cache writes back, in bytes.
    cache_unit: u64,
    /// The state shared with other volumes on the same device or file, once it is claimed.
    shared: Arc<Shared>,
    _in_use: Use,
    /// Dropped last: then the device or file is closed.
    closed: Option<Closed>,
}

/// The exports of this host, which prevent hibernation.
pub(crate) static EXPORTS: Uses = Uses::new(c"volumes of hcablk are exported");

/// Sets an event when it is dropped.
struct Closed(Arc<Event>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.set();
    }
}

impl Backing {
    /// Opens the device or file at `path` for the volume `name`. Sleeps. Errors name the step that
    /// failed.
    pub(crate) fn open(
        name: &str,
        path: &CStr,
        read_only: bool,
        (mode, write_cache): (Mode, WriteCache),
        source: Source,
        chunk: u32,
    ) -> Result<Self, (&'static str, Error)> {
        let store = match BlockDevice::open(path, read_only) {
            Ok(device) if device.is_zoned() => {
                return Err(("zoned drives cannot be exported", errno::eopnotsupp()));
            }
            Ok(device) if device.logical_block_size() > LOGICAL_BLOCK_MAX => {
                return Err((
                    "its logical blocks are larger than 4096 bytes",
                    errno::eopnotsupp(),
                ));
            }
            Ok(device) => Store::Device(device),
            Err(e) if e == ENOTBLK && mode == Mode::P2p => {
                return Err(("mode p2p is for block devices", e));
            }
            Err(e) if e == ENOTBLK => {
                let file = RegularFile::open(path, read_only)
                    .map_err(|e| ("the file cannot be opened", e))?;
                if !file.has_own_pages() {
                    return Err((
                        "on overlayfs errors of write-back are lost; export the file of the layer below, or one elsewhere",
                        errno::eopnotsupp(),
                    ));
                }
                if mode != Mode::Cached && file.direct_unit() == 0 {
                    return Err((
                        "the file system has no direct I/O for this file: use mode cached",
                        errno::eopnotsupp(),
                    ));
                }
                Store::File(file)
            }
            Err(e) => return Err(("the device cannot be opened", e)),
        };
        let file = match &store {
            Store::Device(device) => device.file(),
            Store::File(file) => file.file(),
        };
        let backing = Self {
            cache_unit: u64::from(file.block_bytes()).max(PAGE_SIZE as u64),
            claim: None,
            drive: None,
            io_work: Self::new_work("io", name, |name| WorkQueue::bounded(name, IO_WORK_MAX))?,
            io_turns: IoTurns::new(IO_WORK_MAX).map_err(|e| ("out of memory", e))?,
            completions: Self::new_shared_work("comp", name, WorkQueue::for_completions)?,
            software: Self::new_shared_work("soft", name, WorkQueue::new)?,
            store,
            mode,
            write_cache,
            source,
            fallen: None,
            chunk,
            cache: None,
            observer: Observer::new().map_err(|e| ("out of memory", e))?,
            shared: Shared::new().map_err(|e| ("out of memory", e))?,
            _in_use: EXPORTS.begin(),
            closed: None,
        };
        backing
            .geometry(read_only)
            .ok_or(("it has no size or no usable block size", EINVAL))?;
        Ok(backing)
    }

    /// Creates the workqueue `what` of the volume `name`.
    fn new_work(
        what: &str,
        name: &str,
        make: impl Fn(&CStr) -> Result<WorkQueue>,
    ) -> Result<WorkQueue, (&'static str, Error)> {
        let name = CString::try_from_fmt(fmt!("hcablk_{what}_{name}"));
        name.and_then(|name| make(&name))
            .map_err(|e| ("its workqueue cannot be created", e))
    }

    pub(crate) fn new_shared_work(
        what: &str,
        name: &str,
        make: impl Fn(&CStr) -> Result<WorkQueue>,
    ) -> Result<Arc<WorkQueue>, (&'static str, Error)> {
        let work = Self::new_work(what, name, make)?;
        Arc::new(work, GFP_KERNEL).map_err(|e| ("its workqueue cannot be created", e.into()))
    }

    /// Returns the workqueue of requests that wait for the drive. It is the volume's own, so that
    /// requests to a hanging drive do not block the workers of other volumes.
    ///
    /// Its work never drops the backing: the work has references to queues, which have the backing,
    /// and a queue that is being closed waits for the work to return (the end of the `WorkSlot` of
    /// a request or chunk) before it drops its own reference.
    pub(crate) fn io_work(&self) -> &WorkQueue {
        &self.io_work
    }

    /// Returns the order in which requests enter [`Self::io_work`].
    pub(crate) fn io_turns(&self) -> &Arc<IoTurns> {
        &self.io_turns
    }

    /// Returns the workqueue on which completions of the volume's queue pairs are handled.
    /// Submitting a bio there blocks while a drive accepts no requests, with one thread for each
    /// queue pair: no other volume's completions wait for it.
    ///
    /// Completions of HCAs are handled on the processor that they interrupt. Completions of
    /// software devices (`software`) are not: soft-RoCE works on an unbound workqueue, and the same
    /// workers handle our completions, so that a request needs no switch between threads.
    ///
    /// As with [`Self::io_work`], its work never drops the backing: [`CompletionQueue::stop`] waits
    /// for the work.
    ///
    /// [`CompletionQueue::stop`]: hcablk_core::rdma::cq::CompletionQueue::stop
    pub(crate) fn completions(&self, software: bool) -> &Arc<WorkQueue> {
        match software {
            true => &self.software,
            false => &self.completions,
        }
    }

    /// Claims the device or file as exported, and adds a cache of `mib` MiB; 0: none. Sleeps.
    /// Errors name the step that failed.
    pub(crate) fn claim(
        mut self,
        claims: &Arc<Claims>,
        mib: u32,
    ) -> Result<Self, (&'static str, Error)> {
        if mib != 0 && !matches!(self.mode, Mode::Direct | Mode::P2p) {
            return Err(("cache_mib requires mode direct or p2p", EINVAL));
        }
        let manner = Manner {
            alone: mib != 0,
            cached: self.write_route() == Route::Cache,
            counts: match &self.store {
                Store::Device(_) => true,
                Store::File(file) => file.writable(),
            },
        };
        let claim = Claims::claim(claims, self.file(), manner).map_err(|e| match e {
            e if e == EBUSY => (
                "another volume exports the same device or file, and one of the two has a cache",
                e,
            ),
            e => ("out of memory", e),
        })?;
        self.shared = claim.shared().clone();
        self.claim = Some(claim);
        if mib != 0 {
            let lease = match (self.mode, self.device()) {
                (Mode::P2p, Some(drive)) => match Cache::borrow(self.source, drive, mib) {
                    Ok(lease) => Some(lease),
                    Err(why) => {
                        self.fallen = Some(why);
                        None
                    }
                },
                _ => None,
            };
            self.cache = Some(Cache::new(mib, lease)?);
        }
        Ok(self)
    }

    /// Makes the closing of the device or file set the event `closed`.
    pub(crate) fn with_closed_event(mut self, closed: Arc<Event>) -> Self {
        self.closed = Some(Closed(closed));
        self
    }

    /// Sets the reservations of the drive.
    pub(crate) fn reserved_by(mut self, drive: Arc<DriveUse>) -> Self {
        self.drive = Some(drive);
        self
    }

    /// Returns the reservations of its drive.
    #[inline]
    pub(crate) fn drive(&self) -> Option<&Arc<Drive>> {
        self.drive.as_deref().map(|drive| &**drive)
    }

    /// Returns the volume's use of these reservations: a change of reservations may hold it longer
    /// than the volume does.
    pub(crate) fn drive_use(&self) -> Option<&Arc<DriveUse>> {
        self.drive.as_ref()
    }

    /// Returns the cache, if there is one.
    #[inline]
    pub(crate) fn cache(&self) -> Option<&Cache> {
        self.cache.as_deref()
    }

    /// Returns the block device; `None`: a regular file.
    #[inline]
    pub(crate) fn device(&self) -> Option<&BlockDevice> {
        match &self.store {
            Store::Device(device) => Some(device),
            Store::File(_) => None,
        }
    }

    /// Returns whether the volume is of mode p2p.
    #[inline]
    pub(crate) fn wants_peers(&self) -> bool {
        self.mode == Mode::P2p
    }

    /// Returns the source of peer memory, if the volume wants it. With a cache in RAM, transfer
    /// buffers are better in RAM, too.
    #[inline]
    pub(crate) fn peers(&self) -> Option<Source> {
        (self.wants_peers() && self.fallen.is_none()).then_some(self.source)
    }

    /// Returns the reason why a volume of mode p2p with a cache uses RAM from the start, if it
    /// does.
    pub(crate) fn fallen(&self) -> Option<&'static str> {
        self.fallen
    }

    /// Returns the file, for access through the page cache.
    #[inline]
    pub(crate) fn file(&self) -> FileRef<'_> {
        match &self.store {
            Store::Device(device) => device.file(),
            Store::File(file) => file.file(),
        }
    }

    /// Makes writes to the drive, or to the file's blocks, durable. Sleeps.
    pub(crate) fn make_durable(&self) -> Result {
        match &self.store {
            Store::Device(device) => {
                let flushed = device.flush();
                if flushed.is_err() {
                    self.flush_failures().add();
                }
                flushed
            }
            Store::File(_) => self.sync(),
        }
    }

    /// Makes all writes durable, including those through the page cache. Sleeps.
    pub(crate) fn make_all_durable(&self) -> Result {
        match self.write_route() {
            Route::Cache => self.sync(),
            Route::Device | Route::File => self.make_durable(),
        }
    }

    /// Writes back the dirty pages of the page cache, and makes all writes durable. Sleeps.
    pub(crate) fn sync(&self) -> Result {
        let file = self.file();
        if let Store::Device(_) = self.store {
            // The steps of `blkdev_fsync()`, done separately to learn which of them failed.
            let written = file.write_all_back();
            return self.make_durable().and(written);
        }
        let synced = file.sync();
        // The failure may be that of a write-back, too, which each session also finds with its own
        // cursor: such an error is reported twice, and needlessly to other sessions, but never
        // missed.
        if synced.is_err_and(may_be_of_flush) {
            self.flush_failures().add();
        }
        synced
    }

    /// Returns the smallest unit in which the page cache writes back, in bytes: a power of two.
    #[inline]
    pub(crate) fn cache_unit(&self) -> u64 {
        self.cache_unit
    }

    /// Returns the failed flushes of the drive.
    pub(crate) fn flush_failures(&self) -> &Arc<FlushFailures> {
        self.shared.flush_failures()
    }

    /// Returns the write-backs of whole pages, by all volumes on the same device or file.
    #[inline]
    pub(crate) fn rewrites(&self) -> &Rewrites {
        self.shared.rewrites()
    }

    /// Returns whether the error of a write with FUA to the device means that only this write has
    /// failed; otherwise a flush of the drive may have failed. Any context.
    pub(crate) fn fua_fails_alone(&self) -> bool {
        self.device().is_some_and(BlockDevice::fua_fails_alone)
    }

    /// Returns the current position in the write-back errors of the page cache.
    pub(crate) fn wb_err_cursor(&self) -> WbErrCursor {
        self.file().wb_err_cursor()
    }

    /// Returns the route of requests that move no data.
    pub(crate) fn direct(&self) -> Route {
        match self.store {
            Store::Device(_) => Route::Device,
            Store::File(_) => Route::File,
        }
    }

    #[inline]
    pub(crate) fn read_route(&self) -> Route {
        match self.mode {
            Mode::Direct | Mode::Mixed | Mode::P2p => self.direct(),
            Mode::Cached => Route::Cache,
        }
    }

    #[inline]
    pub(crate) fn write_route(&self) -> Route {
        match self.mode {
            Mode::Direct | Mode::P2p => self.direct(),
            Mode::Cached | Mode::Mixed => Route::Cache,
        }
    }

    /// Returns whether data moves between the wire and the drive through RAM, and bypasses the
    /// volume's cache and, unless it has pages already, the page cache.
    pub(crate) fn is_straight(&self) -> bool {
        let device = self.read_route() == Route::Device && self.write_route() == Route::Device;
        device && !self.wants_peers() && self.cache.is_none()
    }

    /// Returns whether the device or file may currently also be written through the page cache: by
    /// another volume, or by a program on this host that has it open. Any context.
    #[inline]
    pub(crate) fn is_also_cached(&self) -> bool {
        self.shared.is_also_cached(self.file())
    }

    /// Returns whether the data of a write may change while the write is carried out. It may not if
    /// the volume's cache copies the data, or the drive computes a checksum or parity: these would
    /// not match the written data.
    pub(crate) fn tolerates_change(&self) -> bool {
        // The page cache copies the data.
        let copied = self.write_route() == Route::Cache;
        self.cache.is_none() && (copied || !self.file().wants_stable_data())
    }

    /// Returns how large requests are split: not at all if none goes directly to a device.
    pub(crate) fn split(&self) -> Split {
        match self.device() {
            Some(device) if self.read_route() == Route::Device => {
                Split::new(self.chunk, device.stripe(), device.start_bytes())
            }
            _ => Split::NONE,
        }
    }

    /// Returns whether completed writes may be lost on a power failure of the drive or this machine
    /// until they are flushed. Changes when the drive's cache is switched on or off. Any context;
    /// only a few loads, since each write may call it.
    #[inline]
    pub(crate) fn is_volatile(&self) -> bool {
        match &self.store {
            Store::Device(device) => device.write_cache() || self.write_route() == Route::Cache,
            // Blocks may not be allocated yet when a write completes: nothing is durable before a
            // flush.
            Store::File(_) => true,
        }
    }

    /// Returns whether initiators must flush before they rely on a write. Any context.
    #[inline]
    pub(crate) fn wants_flushes(&self) -> bool {
        self.write_cache == WriteCache::Back && self.is_volatile()
    }

    /// Returns whether FUA is used for a write that must be on stable media before its response.
    /// Otherwise the drive is flushed afterwards: its cache was switched on after initiators were
    /// informed that there is none.
    #[inline]
    pub(crate) fn writes_with_fua(&self) -> bool {
        self.write_cache == WriteCache::Through || self.write_route() == Route::Cache
    }

    /// Returns whether a write with FUA makes the drive flush its cache.
    pub(crate) fn flushes_for_fua(&self) -> bool {
        self.device()
            .is_some_and(|device| device.write_cache() && !device.fua())
    }

    /// Returns the size in bytes, which changes with the block device or file.
    pub(crate) fn size_bytes(&self) -> u64 {
        match &self.store {
            Store::Device(device) => device.size_bytes(),
            Store::File(file) => file.size_bytes(),
        }
    }

    /// Returns whether the device or file refuses writes, which changes with the block device. Any
    /// context; only a few loads, since each write calls it.
    #[inline]
    pub(crate) fn refuses_writes(&self) -> bool {
        match &self.store {
            Store::Device(device) => device.read_only(),
            Store::File(file) => !file.writable(),
        }
    }

    /// Returns the geometry for initiators, or `None` if the protocol does not support the block
    /// size.
    pub(crate) fn geometry(&self, read_only: bool) -> Option<Geometry> {
        let logical = self.logical_block_size();
        let logical_block_shift = logical
            .is_power_of_two()
            .then(|| logical.trailing_zeros() as u8)?;
        let size = self.size_bytes();
        if !(9..=12).contains(&logical_block_shift) || size >> logical_block_shift == 0 {
            return None;
        }
        let block = 1u32 << logical_block_shift;
        let whole_blocks = !(u64::from(block) - 1);
        let limits = self.limits(logical_block_shift);
        Some(Geometry {
            capacity: size & whole_blocks,
            logical_block_shift,
            physical_block_shift: limits.physical_block_shift,
            read_only: read_only || self.refuses_writes(),
            write_cache: self.wants_flushes(),
            // The block layer or the page cache flushes after the write when
            // the device cannot.
            fua: true,
            max_transfer: TRANSFER_USUAL,
            max_discard: limits.max_discard,
            discard_granularity: limits.discard_granularity,
            max_zeroes: limits.max_zeroes,
        })
    }

    /// Returns the size of a logical block in bytes.
    fn logical_block_size(&self) -> u32 {
        match &self.store {
            Store::Device(device) => device.logical_block_size(),
            // The unit of direct I/O in every mode, so that data written in one mode is usable in
            // another.
            Store::File(file) => file.direct_unit().max(512),
        }
    }

    /// Returns the current limits and preferences of the drive, for logical blocks of 2^`shift`
    /// bytes. Any context.
    pub(crate) fn limits(&self, shift: u8) -> VolumeLimits {
        let block = 1u32 << shift;
        let limits = match &self.store {
            Store::Device(device) => self.limits_of(&device.live_limits(), block),
            Store::File(file) => {
                let longest = match file.file().can_empty() {
                    true => longest(FILE_EMPTY_MAX, block),
                    false => 0,
                };
                VolumeLimits {
                    max_discard: longest,
                    discard_granularity: if longest == 0 { 0 } else { file.block_size() },
                    discard_alignment: 0,
                    max_zeroes: longest,
                    zeroes_unmap: false,
                    physical_block_shift: physical_shift(file.block_size(), shift),
                    alignment_offset: 0,
                    io_min: file.block_size(),
                    io_opt: 0,
                    rotational: false,
                    atomic: None,
                }
            }
        };
        limits.fitted(shift)
    }

    fn limits_of(&self, drive: &LiveLimits, block: u32) -> VolumeLimits {
        let sectors = |sectors: u32| longest(u64::from(sectors) << 9, block);
        let (atomic_min, atomic_max) = drive.atomic_write;
        let atomic = AtomicWrites::from_bytes(
            atomic_min,
            atomic_max.min(TRANSFER_USUAL),
            drive.atomic_write_boundary,
        );
        VolumeLimits {
            max_discard: sectors(drive.max_discard_sectors),
            discard_granularity: drive.discard_granularity,
            discard_alignment: drive.discard_alignment,
            max_zeroes: sectors(drive.max_write_zeroes_sectors),
            zeroes_unmap: drive.zeroes_unmap,
            physical_block_shift: physical_shift(
                drive.physical_block_size,
                block.trailing_zeros() as u8,
            ),
            alignment_offset: drive.alignment_offset,
            io_min: drive.io_min,
            io_opt: drive.io_opt,
            rotational: drive.rotational,
            atomic: atomic.filter(|_| self.takes_atomic_writes()),
        }
    }

    /// Returns whether atomic writes go to the drive as a whole, and only there: an export of the
    /// same device through the page cache may write old blocks over a part of one at any time. Any
    /// context.
    fn takes_atomic_writes(&self) -> bool {
        let cached = self.shared.is_exported_cached();
        self.cache.is_none() && self.write_route() == Route::Device && !cached
    }

    /// Returns whether the drive currently writes `length` bytes as a whole or not at all. Any
    /// context.
    #[cold]
    pub(crate) fn takes_atomic_write(&self, length: u32) -> bool {
        let limits = self.limits(self.logical_block_size().trailing_zeros() as u8);
        limits.atomic.is_some_and(|atomic| {
            let (min, max) = (1u32 << atomic.min_shift, 1u32 << atomic.max_shift);
            length <= max && length % min == 0
        })
    }

    /// Returns the most bytes that one request may discard or zero. Any context.
    #[cold]
    pub(crate) fn emptied(&self) -> Emptied {
        let limits = self.limits(self.logical_block_size().trailing_zeros() as u8);
        Emptied {
            by_discard: limits.max_discard,
            by_zeroes: limits.max_zeroes,
        }
    }

    /// Returns the current state of the volume, and its generation; `None` if the drive was
    /// removed. May sleep.
    pub(crate) fn observe(&self) -> Option<(Observed, u32)> {
        let shift = self.logical_block_size().trailing_zeros() as u8;
        self.observer.observe(|| Observed {
            sectors: self.size_bytes() >> shift << (shift - 9),
            refuses_writes: self.refuses_writes(),
            wants_flushes: self.wants_flushes(),
            limits: self.limits(shift),
        })
    }
}

/// Returns the most of `bytes` that the length of a request can express, in whole blocks of `block`
/// bytes.
fn longest(bytes: u64, block: u32) -> u32 {
    bytes.min(u32::MAX.into()) as u32 & !(block - 1)
}

/// Returns log2 of the size of a physical block, or the nearest supported value, for logical blocks
/// of 2^`logical` bytes.
fn physical_shift(bytes: u32, logical: u8) -> u8 {
    let shift = bytes
        .is_power_of_two()
        .then(|| bytes.trailing_zeros() as u8);
    shift.unwrap_or(logical).clamp(logical, 24)
}
