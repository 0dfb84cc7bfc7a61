// SPDX-License-Identifier: GPL-2.0

//! A disk: what users open.
//!
//! # Life
//!
//! [`Disk::add`] makes the disk visible and reads its partitions, so requests arrive before it
//! returns. A disk ends in one of two ways:
//!
//! - [`Disk::remove_if_closed`]: the disk is closed, and cannot be opened from the check on.
//! - [`Disk::remove`]: at once. An opener keeps a dead disk, on which all I/O fails, until it
//!   closes the disk.
//!
//! Both wait until every started request has ended: the driver must keep ending requests, or fail
//! them, while they run.
//!
//! C headers: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h),
//! [`block/genhd.c`](srctree/block/genhd.c)

use super::{
    reservations::ReservationOps,
    Limits,
    LiveLimits,
    Operations,
    TagSet, //
};
use crate::bindings;
use crate::sync::atomic::{
    Atomic,
    Relaxed, //
};
use core::{
    fmt::{
        Display,
        Write, //
    },
    ptr::NonNull, //
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    ThisModule, //
};

/// The driver's data of a `struct gendisk`. It is freed with the gendisk, which may happen after
/// the driver has dropped the disk. It starts with the value of the attribute `wwid`, which C
/// reads.
#[repr(C)]
pub(super) struct Shared {
    /// A terminated string.
    wwid: [c_char; WWID_MAX],
    fops: bindings::block_device_operations,
    /// Opens fail since the disk is being removed. Written under its `open_mutex`.
    claimed: Atomic<bool>,
    /// The number in the disk's name.
    number: u32,
    /// Carries out reservations, until the driver drops the disk.
    reservations: Pin<KBox<Reserver>>,
    /// Gets reports of opens and closes, until the driver drops the disk.
    openers: Pin<KBox<Observer>>,
    /// Whether the disk is in sysfs, so that uevents can be sent. Locked while one is sent.
    is_shown: Pin<KBox<Mutex<bool>>>,
}

/// Room for the text of a UUID with its prefix and terminator.
const WWID_MAX: usize = 48;

impl Shared {
    fn new(
        module: &'static ThisModule,
        uuid: Option<&dyn Display>,
        openers: Option<Arc<dyn DiskOpeners>>,
    ) -> Result<KBox<Self>> {
        let mut shared = KBox::new(
            Self {
                wwid: [0; WWID_MAX],
                fops: bindings::block_device_operations {
                    open: Some(open),
                    release: Some(release),
                    free_disk: Some(bindings::hcablk_c_free_disk),
                    owner: module.as_ptr(),
                    // SAFETY: Returns a constant.
                    pr_ops: unsafe { bindings::hcablk_c_pr_ops() },
                    ..pin_init::zeroed()
                },
                claimed: Atomic::new(false),
                number: 0,
                reservations: KBox::pin_init(new_mutex!(None), GFP_KERNEL)?,
                openers: KBox::pin_init(new_mutex!(openers), GFP_KERNEL)?,
                is_shown: KBox::pin_init(new_mutex!(true), GFP_KERNEL)?,
            },
            GFP_KERNEL,
        )?;
        if let Some(uuid) = uuid {
            let mut text = NameWriter {
                name: &mut shared.wwid,
                used: 0,
            };
            write!(text, "uuid.{uuid}")?;
            text.push(0)?;
        }
        // SAFETY: Allocates a number.
        let number = unsafe { bindings::hcablk_c_disk_number_alloc() };
        to_result(number)?;
        shared.number = number as u32;
        // `fops.free_disk` may run after the driver has put its last reference to this module.
        // SAFETY: Our own module is alive while this runs.
        unsafe { bindings::hcablk_c_module_get(bindings::hcablk_c_core_module()) };
        Ok(shared)
    }

    /// Returns the object that carries out reservations. May sleep.
    pub(super) fn reservations(&self) -> Option<Arc<dyn ReservationOps>> {
        self.reservations.lock().clone()
    }

    /// Returns the object that gets reports of opens and closes. May sleep.
    fn openers(&self) -> Option<Arc<dyn DiskOpeners>> {
        self.openers.lock().clone()
    }

    /// Frees everything that `new` created, except the reference to the module.
    fn free_but_module(self: KBox<Self>) {
        // SAFETY: `new` allocated the number.
        unsafe { bindings::hcablk_c_disk_number_free(self.number) };
        drop(self);
    }

    /// Frees everything that `new` created, for a caller that has another reference to the module.
    fn free(self: KBox<Self>) {
        self.free_but_module();
        // SAFETY: `new` took the reference.
        unsafe { bindings::hcablk_c_module_put(bindings::hcablk_c_core_module()) };
    }
}

/// How a disk is opened. C: `blk_mode_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMode {
    /// For writing.
    pub writes: bool,
    /// With a claim that no other holder has: by a mounted file system, md, dm, swap, or with
    /// `O_EXCL`.
    pub exclusive: bool,
}

/// Gets a report of each open and close of a disk and its partitions, in order, one at a time. Both
/// functions may sleep, but must not wait for I/O of the disk: the block layer's `open_mutex` of
/// the disk is held.
pub trait DiskOpeners: Send + Sync + 'static {
    /// Notes that the disk is being opened, while exclusive openers have `claims` claims: one for
    /// each of a partition, two for each of the whole disk. A claim of this opener is not counted
    /// yet. If the block layer refuses the open after this, [`Self::closed`] follows.
    fn opened(&self, mode: OpenMode, claims: u32);

    /// Notes that an opener closes the disk; `claims` claims are left. If it is the last opener of
    /// its partition or of the whole disk, the cached pages were written back before. The block
    /// layer does not report the mode of the open.
    fn closed(&self, claims: u32);
}

/// Returns how many claims exclusive openers have on the disk and its partitions.
///
/// # Safety
///
/// `disk` is alive, and its `open_mutex` is held.
unsafe fn claims(disk: *mut bindings::gendisk) -> u32 {
    // SAFETY: By the safety requirement; a disk keeps its whole block device, in which each claim
    // of a partition counts, too. Claims are taken and released under `open_mutex`.
    unsafe { (*(*disk).part0).bd_holders as u32 }
}

/// Handles an open (`fops.open`): refuses it when the disk is about to be removed, else reports it.
///
/// # Safety
///
/// Called by the block layer with `open_mutex` held, on a disk of ours.
unsafe extern "C" fn open(disk: *mut bindings::gendisk, mode: bindings::blk_mode_t) -> c_int {
    // SAFETY: `private_data` is set before the disk can be opened and lives
    // until `fops.free_disk`.
    let shared = unsafe { &*(*disk).private_data.cast::<Shared>() };
    if shared.claimed.load(Relaxed) {
        return ENXIO.to_errno();
    }
    if let Some(openers) = shared.openers() {
        let mode = OpenMode {
            writes: mode & bindings::BLK_OPEN_WRITE != 0,
            exclusive: mode & bindings::BLK_OPEN_EXCL != 0,
        };
        // SAFETY: By the safety requirement.
        openers.opened(mode, unsafe { claims(disk) });
    }
    0
}

/// Reports a close (`fops.release`).
///
/// # Safety
///
/// Called by the block layer with `open_mutex` held, on a disk of ours, once for each `open` that
/// succeeded.
unsafe extern "C" fn release(disk: *mut bindings::gendisk) {
    // SAFETY: As in `open`.
    let shared = unsafe { &*(*disk).private_data.cast::<Shared>() };
    if let Some(openers) = shared.openers() {
        // SAFETY: By the safety requirement.
        openers.closed(unsafe { claims(disk) });
    }
}

/// Frees the driver's data of the disk (`fops.free_disk`), since the last reference is gone; except
/// the reference to this module, which `block_helpers.c` puts afterwards.
///
/// # Safety
///
/// Called by `block_helpers.c` once, on a disk of ours that was added.
#[no_mangle]
unsafe extern "C" fn hcablk_rs_free_disk(disk: *mut bindings::gendisk) {
    // SAFETY: `Disk::add` left the box there; this is its last use.
    unsafe { KBox::from_raw((*disk).private_data.cast::<Shared>()) }.free_but_module();
}

/// Adds a disk of `capacity` sectors to the system.
///
/// # Safety
///
/// `disk` was made by `hcablk_c_alloc_disk`, is alive and was not added; its `private_data` is a
/// [`Shared`].
unsafe fn show(disk: *mut bindings::gendisk, capacity: u64, read_only: bool) -> Result {
    // SAFETY: By the safety requirement.
    to_result(unsafe {
        bindings::set_capacity(disk, capacity);
        bindings::set_disk_ro(disk, read_only);
        bindings::device_add_disk(
            core::ptr::null_mut(),
            disk,
            bindings::hcablk_c_disk_groups(),
        )
    })
}

/// Frees a disk that was not added, and its data.
///
/// # Safety
///
/// `disk` and `shared` are the caller's alone; `shared` is from [`KBox::into_raw`].
unsafe fn put_unadded(disk: *mut bindings::gendisk, shared: *mut Shared) {
    // SAFETY: By the safety requirement. `fops.free_disk` is not called for a disk that was not
    // added.
    unsafe { bindings::put_disk(disk) };
    // SAFETY: By the safety requirement; the disk that used it is gone.
    unsafe { KBox::from_raw(shared) }.free();
}

/// A reference to a disk's device, for uevents.
///
/// # Invariants
///
/// It has a reference to the whole device of the disk, whose `private_data` is a [`Shared`].
pub struct Announcer(NonNull<bindings::gendisk>);

// SAFETY: The driver core locks what it needs.
unsafe impl Send for Announcer {}

// SAFETY: As above.
unsafe impl Sync for Announcer {}

impl Announcer {
    /// The maximum number of variables of one uevent.
    const VARIABLES_MAX: usize = 8;

    /// Sends a uevent `change` of the disk with `variables` (`NAME=value`). Does nothing once the
    /// disk is being removed; a removal waits for this call. The caller of the removal must fail
    /// the disk's requests first: sending a uevent may wait for memory reclaim, and reclaim for
    /// these requests. Sleeps. Fails with `E2BIG` for too many variables, else as
    /// `kobject_uevent_env()`, which this calls.
    pub fn announce(&self, variables: &[&CStr]) -> Result {
        let mut strings = [core::ptr::null_mut(); Self::VARIABLES_MAX + 1];
        if variables.len() > Self::VARIABLES_MAX {
            return Err(E2BIG);
        }
        for (place, variable) in strings.iter_mut().zip(variables) {
            *place = variable.as_char_ptr().cast_mut();
        }
        let disk = self.0.as_ptr();
        // SAFETY: By the type invariant the disk lives, and `private_data` until `fops.free_disk`.
        let shared = unsafe { &*(*disk).private_data.cast::<Shared>() };
        let is_shown = shared.is_shown.lock();
        // The parents of a removed device may be gone.
        if !*is_shown {
            return Ok(());
        }
        // SAFETY: By the type invariant; the strings are only read, and end with a null pointer.
        to_result(unsafe {
            bindings::kobject_uevent_env(
                &raw mut (*(*disk).part0).bd_device.kobj,
                bindings::kobject_action_KOBJ_CHANGE,
                strings.as_mut_ptr(),
            )
        })
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::put_device(&raw mut (*(*self.0.as_ptr()).part0).bd_device) };
    }
}

/// Gets reports of opens and closes, until the disk is removed.
type Observer = Mutex<Option<Arc<dyn DiskOpeners>>>;

/// Carries out reservations, until the disk is removed.
type Reserver = Mutex<Option<Arc<dyn ReservationOps>>>;

/// The parameters of a new disk.
pub struct NewDisk<'a> {
    /// The beginning of its name, which a number follows.
    pub prefix: &'a CStr,
    /// The limits of the disk.
    pub limits: &'a Limits,
    /// Sectors of 512 bytes.
    pub capacity: u64,
    /// Writes are refused before they reach the driver.
    pub read_only: bool,
    /// The text after `uuid.` in the disk's attribute `wwid`, at most 36 characters; without it,
    /// that attribute is empty.
    pub uuid: Option<&'a dyn Display>,
    /// Gets reports of opens and closes until the disk is removed, the first ones before
    /// [`Disk::add`] returns.
    pub openers: Option<Arc<dyn DiskOpeners>>,
}

/// A disk that was added and not yet removed. Dropping removes it at once.
///
/// # Invariants
///
/// `disk` was added, is alive, `private_data` is a [`Shared`], and its queue is
/// published in the tag set's table.
pub struct Disk<T: Operations> {
    disk: NonNull<bindings::gendisk>,
    tag_set: Arc<TagSet<T>>,
}

// SAFETY: The C structure has its own locks, the tag set is `Send` and `Sync`.
unsafe impl<T: Operations> Send for Disk<T> {}

// SAFETY: As above.
unsafe impl<T: Operations> Sync for Disk<T> {}

impl<T: Operations> Disk<T> {
    /// Creates a disk, and makes it visible.
    ///
    /// Partitions are read before this returns: requests are issued, and this call hangs until the
    /// driver ends them. `module` is pinned while the disk is open.
    ///
    /// Sleeps. Errors: `EBUSY` (the tag set has a disk), `EINVAL` (limits,
    /// name), `ENOMEM`, those of [`Operations::hw_queue`].
    ///
    /// C: `blk_mq_alloc_disk()`, `device_add_disk()`.
    pub fn add(
        tag_set: &Arc<TagSet<T>>,
        new: NewDisk<'_>,
        module: &'static ThisModule,
    ) -> Result<Self> {
        let mut lim = new.limits.to_raw();
        let shared = Shared::new(module, new.uuid, new.openers)?;
        // SAFETY: The tag set is set up; the limits are copied.
        let disk = from_err_ptr(unsafe {
            bindings::hcablk_c_alloc_disk(tag_set.as_raw(), &mut lim, core::ptr::null_mut())
        });
        let disk = match disk {
            Ok(disk) => disk,
            Err(e) => {
                shared.free();
                return Err(e);
            }
        };
        let number = shared.number;
        let shared = KBox::into_raw(shared);
        // SAFETY: The disk is new and ours alone; `shared` lives until
        // `fops.free_disk`.
        let (queue, name) = unsafe {
            (*disk).private_data = shared.cast();
            (*disk).fops = &raw const (*shared).fops;
            ((*disk).queue, &mut (*disk).disk_name)
        };
        let result = write_name(name, new.prefix, number).and_then(|()| {
            // SAFETY: The queue is set up and lives until `put_disk()`, which
            // comes after `clear_queue()`.
            unsafe { tag_set.dispatch().set_queue(queue) }?;
            // SAFETY: The disk is alive and not yet added; `private_data` is a [`Shared`], which
            // its attributes read.
            unsafe { show(disk, new.capacity, new.read_only) }
                .inspect_err(|_| tag_set.dispatch().clear_queue())
        });
        if let Err(e) = result {
            // SAFETY: The disk was not added, `shared` is from `into_raw`.
            unsafe { put_unadded(disk, shared) };
            return Err(e);
        }
        // INVARIANT: Everything was done above.
        Ok(Self {
            disk: NonNull::new(disk).ok_or(ENOMEM)?,
            tag_set: tag_set.clone(),
        })
    }

    fn shared(&self) -> &Shared {
        // SAFETY: By the type invariant.
        unsafe { &*(*self.disk.as_ptr()).private_data.cast::<Shared>() }
    }

    fn queue(&self) -> *mut bindings::request_queue {
        // SAFETY: By the type invariant; a disk keeps its queue.
        unsafe { (*self.disk.as_ptr()).queue }
    }

    /// Lets `ops` carry out reservations until the disk is removed; before, they are not supported.
    /// May sleep.
    pub fn set_reservations(&self, ops: Arc<dyn ReservationOps>) {
        *self.shared().reservations.lock() = Some(ops);
    }

    /// Returns the number in the disk's name.
    pub fn number(&self) -> u32 {
        self.shared().number
    }

    /// Returns the disk's name, as in `/dev`.
    pub fn name(&self) -> &CStr {
        // SAFETY: By the type invariant; `add` wrote a terminated string that
        // does not change.
        unsafe { CStr::from_char_ptr((*self.disk.as_ptr()).disk_name.as_ptr()) }
    }

    /// Returns the tag set.
    pub fn tag_set(&self) -> &Arc<TagSet<T>> {
        &self.tag_set
    }

    /// Returns whether somebody has the disk or a partition of it open at this moment.
    ///
    /// C: `disk_openers()`.
    pub fn is_open(&self) -> bool {
        // SAFETY: By the type invariant; a disk keeps its whole block device.
        unsafe { bindings::atomic_read(&raw const (*(*self.disk.as_ptr()).part0).bd_openers) != 0 }
    }

    /// Returns the size, in sectors of 512 bytes. C: `get_capacity()`.
    pub fn capacity(&self) -> u64 {
        // SAFETY: By the type invariant; a disk keeps its whole block device.
        unsafe { core::ptr::read_volatile(&raw const (*(*self.disk.as_ptr()).part0).bd_nr_sectors) }
    }

    /// Changes the size, in sectors of 512 bytes. The caller must notify user space with `RESIZE=1`
    /// ([`Announcer::announce`]). Process context. C: `set_capacity()`.
    pub fn set_capacity(&self, capacity: u64) {
        // SAFETY: By the type invariant.
        unsafe { bindings::set_capacity(self.disk.as_ptr(), capacity) };
    }

    /// Changes limits while no request is under way: holds back new requests until those under way
    /// have ended, for `ms` milliseconds at most. Sleeps. Fails with `EAGAIN` if they need longer,
    /// or if the limits are being changed elsewhere (any write to the queue's attributes does that,
    /// and may wait for requests), and with `EINVAL` for invalid limits; then nothing has changed.
    ///
    /// A request that was made while there was no write cache has lost its flush or FUA: it must
    /// end before the change.
    ///
    /// C: `queue_limits_commit_update_frozen()`, which waits without end.
    pub fn try_set_limits(&self, limits: &LiveLimits, ms: u32) -> Result {
        let raw = limits.to_raw();
        // SAFETY: By the type invariant; the limits are copied.
        to_result(unsafe { bindings::hcablk_c_try_set_limits(self.disk.as_ptr(), &raw, ms) })
    }

    /// Disables at once the discards and writes of zeroes that `limits` no longer include: those
    /// under way, and those that are being created at this moment, still arrive. Any context. C:
    /// `blk_queue_disable_discard()`, `blk_queue_disable_write_zeroes()`.
    pub fn lower_limits(&self, limits: &LiveLimits) {
        // SAFETY: By the type invariant; the limits are only read.
        unsafe { bindings::hcablk_c_lower_limits(self.disk.as_ptr(), &limits.to_raw()) };
    }

    /// Returns a reference that can send uevents of the disk.
    pub fn announcer(&self) -> Announcer {
        // SAFETY: By the type invariant; a disk and its whole block device are released together.
        let device = unsafe { &raw mut (*(*self.disk.as_ptr()).part0).bd_device };
        // SAFETY: As above.
        unsafe { bindings::get_device(device) };
        // INVARIANT: The reference was taken just now.
        Announcer(self.disk)
    }

    /// Sets whether writes are refused before they reach the driver. The caller must notify user
    /// space with `DISK_RO=1` or `DISK_RO=0` ([`Announcer::announce`]). Any context. C:
    /// `set_disk_ro()`, which sends the uevent itself, and may wait for memory for it.
    pub fn set_read_only(&self, read_only: bool) {
        // SAFETY: By the type invariant.
        unsafe { bindings::hcablk_c_mark_disk_ro(self.disk.as_ptr(), read_only) };
    }

    /// Stops dispatch: when this has returned, no `queue_rq` runs, and none
    /// will until the guard is dropped. Sleeps. C: `blk_mq_quiesce_queue()`.
    pub fn quiesce(&self) -> Quiesced<'_, T> {
        // SAFETY: By the type invariant.
        unsafe { bindings::blk_mq_quiesce_queue(self.queue()) };
        Quiesced(self)
    }

    /// Removes the disk if nobody has it open. Otherwise fails with `EBUSY` and returns the disk.
    ///
    /// Sleeps, and waits for all requests.
    pub fn remove_if_closed(self) -> Result<(), (Error, Self)> {
        let disk = self.disk.as_ptr();
        // SAFETY: By the type invariant.
        unsafe { bindings::mutex_lock(&raw mut (*disk).open_mutex) };
        let open = self.is_open();
        if !open {
            // As in zram: a later `open` finds this set, and fails.
            self.shared().claimed.store(true, Relaxed);
        }
        // SAFETY: Locked above.
        unsafe { bindings::mutex_unlock(&raw mut (*disk).open_mutex) };
        if open {
            return Err((EBUSY, self));
        }
        // SAFETY: By the type invariant. The error is ignored: no opener is left to report it to.
        let _ = unsafe { bindings::sync_blockdev((*disk).part0) };
        drop(self);
        Ok(())
    }

    /// Removes the disk at once. I/O that has not been issued fails; openers keep a dead disk.
    ///
    /// The driver must let `queue_rq` reject requests, and end the requests that it owns. Sleeps,
    /// and waits for all requests.
    pub fn remove(self) {
        drop(self);
    }
}

impl<T: Operations> Drop for Disk<T> {
    fn drop(&mut self) {
        let disk = self.disk.as_ptr();
        *self.shared().is_shown.lock() = false;
        if !self.shared().claimed.load(Relaxed) {
            // SAFETY: By the type invariant.
            unsafe { bindings::blk_mark_disk_dead(disk) };
        }
        self.tag_set.dispatch().begin_removal();
        // SAFETY: By the type invariant the disk is added; this happens once.
        unsafe { bindings::del_gendisk(disk) };
        self.tag_set.dispatch().drop_exited();
        self.tag_set.dispatch().clear_queue();
        let ops = self.shared().reservations.lock().take();
        drop(ops);
        let openers = self.shared().openers.lock().take();
        drop(openers);
        // SAFETY: The reference that came with the allocation; nothing below
        // uses the disk.
        unsafe { bindings::put_disk(disk) };
    }
}

/// Dispatch is stopped while this lives.
pub struct Quiesced<'a, T: Operations>(&'a Disk<T>);

impl<T: Operations> Drop for Quiesced<'_, T> {
    fn drop(&mut self) {
        // SAFETY: By the disk's type invariant; `quiesce` has raised the count that this lowers.
        unsafe { bindings::blk_mq_unquiesce_queue(self.0.queue()) };
    }
}

/// Writes `prefix` and `number`, terminated, into a disk's name.
fn write_name(name: &mut [c_char], prefix: &CStr, number: u32) -> Result {
    let mut text = NameWriter { name, used: 0 };
    for &byte in prefix.to_bytes() {
        text.push(byte)?;
    }
    write!(text, "{number}")?;
    text.push(0)
}

struct NameWriter<'a> {
    name: &'a mut [c_char],
    used: usize,
}

impl NameWriter<'_> {
    fn push(&mut self, byte: u8) -> Result {
        *self.name.get_mut(self.used).ok_or(EINVAL)? = byte as c_char;
        self.used += 1;
        Ok(())
    }
}

impl Write for NameWriter<'_> {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        for &byte in s.as_bytes() {
            self.push(byte).map_err(|_| core::fmt::Error)?;
        }
        Ok(())
    }
}
