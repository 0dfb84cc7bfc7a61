// SPDX-License-Identifier: GPL-2.0

//! The volumes of a queue pair, and one of them as its requests use it: its backing, its geometry
//! as reported to the initiator, and the resources that the queue pair has for this volume only.
//!
//! # Lifetime
//!
//! Each request, even an idle one, refers to a volume that the queue pair has. So the device of a
//! volume stays open until the queue is closed, which drops its requests first, or until the volume
//! is removed: [`Queue::withdraw`] stops requests for the volume from beginning, requests under way
//! drop their reference when they become idle, and [`Queue::forget`] makes the idle ones drop it.
//! The function that removes the volume waits for [`Gone`], since the last step of a request may
//! refer to the volume for a moment longer, in any context.

use super::{
    queue::{
        Flushes,
        Queue,
        Work, //
    },
    request::TargetRequest,
    split::Split,
    validate::{
        check,
        check_write, //
    },
};
use crate::{
    drive::{
        backing::Backing,
        flush_errors::SessionNumber,
        io_turns::HostLine,
        write_errors::WriteErrors, //
    },
    stats::Counters, //
};
use hcablk_core::{
    p2p::{
        PeerLease,
        PeerMemory, //
    },
    proto::{
        connect::Geometry,
        message::{
            Extent,
            Handle,
            Op,
            Status, //
        },
        name::{
            HostId,
            VolumeName, //
        },
    },
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        defer::{
            Deferred,
            DeferredBox, //
        },
        Event,
        WorkQueue, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Sets an event when the last queue pair has dropped a volume.
pub(crate) struct Gone(Arc<Event>);

impl Gone {
    /// Allocates a `Gone` and the event that its drop sets. May sleep.
    pub(crate) fn new() -> Result<(Arc<Self>, Arc<Event>)> {
        let event = Arc::pin_init(Event::new(), GFP_KERNEL)?;
        let gone = Arc::new(Self(event.clone()), GFP_KERNEL)?;
        Ok((gone, event))
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// A volume of a session, as the session's queue pairs serve it.
#[derive(Clone)]
pub(crate) struct VolumeConfig {
    /// For messages.
    pub(crate) name: VolumeName,
    pub(crate) host: HostId,
    /// The volume's geometry, as reported to the session's initiator.
    pub(crate) geometry: Geometry,
    pub(crate) flushes: Flushes,
    pub(crate) backing: Arc<Backing>,
    /// The errors of the session's writes that are not reported yet.
    pub(crate) write_errors: Arc<WriteErrors>,
    /// The number of the session, among those of the disk, for reports of these errors.
    pub(crate) session_number: SessionNumber,
    /// The queue pair's counters of requests for the volume.
    pub(crate) counters: Arc<Counters>,
    /// Dropped last.
    pub(crate) _gone: Arc<Gone>,
}

/// A volume of a queue pair, as its requests use it: see the module.
pub(crate) struct QueueVolume {
    /// See [`Backing::writes_with_fua`].
    with_fua: bool,
    /// See [`Backing::is_straight`].
    is_straight: bool,
    /// The target posts no RDMA READ.
    no_read: bool,
    /// Peer memory for the queue pair's first transfer buffers.
    lease: Option<PeerLease>,
    /// The cache's lines, if they are in peer memory that the HCA reaches.
    view: Option<PeerLease>,
    /// The rule by which large requests are split.
    split: Split,
    /// No new request for the volume begins.
    is_leaving: Atomic<bool>,
    /// The line in which its requests wait for the drive.
    line: HostLine,
    /// Dropped after all references to the drive.
    config: VolumeConfig,
}

/// The volumes of a queue pair, by their handles. Protected by the queue's lock.
pub(super) struct Volumes(KVec<Option<Arc<QueueVolume>>>);

impl Volumes {
    /// Makes room for `count` volumes. May sleep.
    pub(super) fn new(count: u16) -> Result<Self> {
        let mut places = KVec::with_capacity(count.into(), GFP_KERNEL)?;
        for _ in 0..count {
            places.push(None, GFP_KERNEL)?;
        }
        Ok(Self(places))
    }

    /// Returns the volume that a new request names. Fails with the status of the response.
    #[inline]
    fn by_handle(&self, handle: Handle) -> Result<&Arc<QueueVolume>, Status> {
        match self.0.get(usize::from(handle.0)) {
            Some(Some(volume)) if !volume.is_leaving() => Ok(volume),
            // A volume with this handle may have existed; the initiator may not know yet that it
            // was removed.
            Some(_) => Err(Status::Gone),
            None => Err(Status::Invalid),
        }
    }

    /// Returns the volume that has peer memory.
    fn leased(&self) -> Option<&Arc<QueueVolume>> {
        self.0
            .iter()
            .flatten()
            .find(|volume| volume.lease.is_some())
    }

    /// Returns a volume to which idle requests may refer.
    fn any(&self) -> Option<&Arc<QueueVolume>> {
        self.0.iter().flatten().find(|volume| !volume.is_leaving())
    }
}

impl Work {
    /// Returns whether a volume with this handle may exist, or may have existed.
    #[inline]
    pub(super) fn may_have_volume(&self, handle: Handle) -> bool {
        usize::from(handle.0) < self.volumes.0.len()
    }

    /// Makes `request` refer to the volume with this handle. Fails with the status of the response.
    #[inline(always)]
    pub(super) fn enter_volume(
        &self,
        request: &mut TargetRequest,
        handle: Handle,
    ) -> Result<(), Status> {
        let volume = self.volumes.by_handle(handle)?;
        if !Arc::ptr_eq(&request.volume, volume) {
            request.volume = volume.clone();
        }
        Ok(())
    }

    /// Makes an idle request drop its reference to a volume that is being removed.
    #[inline]
    pub(super) fn leave_volume(&self, request: &mut TargetRequest) {
        if request.volume.is_leaving() {
            self.change_volume(request);
        }
    }

    #[cold]
    #[inline(never)]
    fn change_volume(&self, request: &mut TargetRequest) {
        // If there is no other volume, the queue is closed next.
        if let Some(other) = self.volumes.any() {
            request.volume = other.clone();
        }
    }
}

impl Queue {
    /// Lets requests use the volume of `config` with this handle. May sleep. Fails with `ENOMEM`,
    /// or with `EEXIST` if another volume has the handle.
    pub(crate) fn attach(&self, handle: Handle, config: VolumeConfig) -> Result {
        let (largest, no_read) = (self.shape.largest, self.shape.no_read);
        let volume = QueueVolume::new(config, self.shape.split, largest, no_read, (None, None))?;
        self.put_volume(handle, &volume)
    }

    /// Returns whether requests of the queue use memory of a PCI device, which the HCA may reach.
    pub(super) fn uses_peers(&self) -> bool {
        let work = self.work.lock();
        let mut volumes = work.volumes.0.iter().flatten();
        volumes.any(|volume| volume.lease.is_some() || volume.view.is_some())
    }

    pub(super) fn leased_volume(&self) -> Option<Arc<QueueVolume>> {
        self.work.lock().volumes.leased().cloned()
    }

    pub(super) fn put_volume(&self, handle: Handle, volume: &Arc<QueueVolume>) -> Result {
        let mut work = self.work.lock();
        let place = work
            .volumes
            .0
            .get_mut(usize::from(handle.0))
            .ok_or(EINVAL)?;
        if place.is_some() {
            return Err(EEXIST);
        }
        *place = Some(volume.clone());
        Ok(())
    }

    /// Stops new requests for a volume from beginning. Requests that wait for transfer buffers get
    /// the status `Gone`. May sleep, but does not wait for the drive.
    pub(crate) fn withdraw(&self, handle: Handle) {
        let volume = {
            let work = self.work.lock();
            let Some(Some(volume)) = work.volumes.0.get(usize::from(handle.0)) else {
                return;
            };
            volume.is_leaving.store(true, Release);
            volume.clone()
        };
        while let Some(request) = self.take_waiting(&volume) {
            self.respond(request, Status::Gone);
        }
    }

    /// Takes the first request for `volume` that waits for transfer buffers.
    fn take_waiting(&self, volume: &Arc<QueueVolume>) -> Option<KBox<TargetRequest>> {
        let mut work = self.work.lock();
        let mut found = None;
        for _ in 0..work.waiting.len() {
            let request = work.waiting.pop()?;
            if found.is_none() && Arc::ptr_eq(&request.volume, volume) {
                found = Some(request);
            } else if let Err(request) = work.waiting.push(request) {
                self.cannot_wait(&mut work, request);
            }
        }
        if found.is_some() && work.waiting.is_empty() {
            work.free.cancel_wait();
        }
        found
    }

    /// Forgets a volume that was [withdrawn](Self::withdraw): its handle may be used again. May
    /// sleep.
    pub(crate) fn forget(&self, handle: Handle) {
        let former = {
            let mut work = self.work.lock();
            let place = work.volumes.0.get_mut(usize::from(handle.0));
            let former = place.and_then(Option::take);
            let mut idle = core::mem::take(&mut work.idle);
            for request in idle.iter_mut() {
                work.leave_volume(request);
            }
            work.idle = idle;
            former
        };
        // The function that has just made a request idle may still refer to the volume. Drop it
        // under no lock.
        drop(former);
    }
}

impl QueueVolume {
    /// Allocates a volume of a queue pair, for requests of up to `largest` bytes, split in chunks
    /// no larger than those of `of_queue`. With `no_read` the queue pair posts no RDMA READ. May
    /// sleep.
    pub(super) fn new(
        mut config: VolumeConfig,
        of_queue: Split,
        largest: u32,
        no_read: bool,
        (lease, view): (Option<PeerLease>, Option<PeerLease>),
    ) -> Result<Arc<Self>> {
        config.geometry.max_transfer = largest;
        let own = config.backing.split();
        let volume = Self {
            // A chunk has room for only as many pieces of memory as the queue's chunk size needs.
            split: match own.chunk() <= of_queue.chunk() {
                true => own,
                false => of_queue,
            },
            is_leaving: Atomic::new(false),
            line: config.backing.io_turns().join(config.host),
            with_fua: config.backing.writes_with_fua(),
            is_straight: config.backing.is_straight(),
            config,
            no_read,
            lease,
            view,
        };
        Ok(Arc::new(volume, GFP_KERNEL)?)
    }

    #[inline]
    pub(super) fn backing(&self) -> &Backing {
        &self.config.backing
    }

    /// Returns the name of the volume, for messages.
    pub(super) fn name(&self) -> &VolumeName {
        &self.config.name
    }

    /// Returns the geometry of the volume, as reported to the initiator of this queue pair.
    pub(super) fn geometry(&self) -> &Geometry {
        &self.config.geometry
    }

    #[inline]
    pub(super) fn write_errors(&self) -> &WriteErrors {
        &self.config.write_errors
    }

    /// Returns the number of the session, among those of the disk, for reports of write errors.
    #[inline]
    pub(super) fn session_number(&self) -> SessionNumber {
        self.config.session_number
    }

    /// Returns the queue pair's counters of requests for the volume.
    #[inline]
    pub(super) fn counters(&self) -> &Counters {
        &self.config.counters
    }

    /// Returns the rule by which large requests are split.
    #[inline]
    pub(super) fn split(&self) -> Split {
        self.split
    }

    /// Returns whether no new request for the volume begins.
    #[inline]
    fn is_leaving(&self) -> bool {
        self.is_leaving.load(Acquire)
    }

    /// Runs `work`, a request or chunk for this volume, on the workqueue on which requests wait for
    /// the drive, when it is the turn of its host. Any context.
    pub(super) fn take_turn<T: Deferred>(&self, work: KBox<T>) {
        if let Some(work) = self.line.arrive(DeferredBox::new(work)) {
            work.defer(self.io_work());
        }
    }

    /// Ends a turn, and runs the next one for the same drive, perhaps of another session. Any
    /// context.
    pub(super) fn end_turn(&self) {
        // All lines of the drive belong to the same backing, and so to the same workqueue.
        if let Some(work) = self.line.end() {
            work.defer(self.io_work());
        }
    }

    /// Returns the workqueue on which requests wait for the drive.
    fn io_work(&self) -> &WorkQueue {
        self.backing().io_work()
    }

    /// Returns whether data moves between the wire and the drive through RAM, and bypasses all
    /// caches: see [`Backing::is_straight`].
    #[inline]
    pub(super) fn is_straight(&self) -> bool {
        self.is_straight
    }

    /// Returns whether the session's initiator sends flushes. If not, a write is on stable media
    /// before its response.
    #[inline]
    pub(super) fn initiator_flushes(&self) -> bool {
        self.config.flushes.load(Relaxed)
    }

    /// Returns whether a write that begins now is sent to the drive with FUA although its initiator
    /// has not requested it.
    #[inline]
    pub(super) fn forces_fua(&self) -> bool {
        self.with_fua && !self.initiator_flushes() && self.backing().is_volatile()
    }

    /// Returns the current size of the volume in bytes, in whole blocks; 0 if the drive was
    /// removed.
    #[inline]
    pub(super) fn capacity(&self) -> u64 {
        let block = 1u64 << self.geometry().logical_block_shift;
        self.backing().size_bytes() & !(block - 1)
    }

    /// Returns the lease of the peer memory, if there is any.
    pub(super) fn lease(&self) -> Option<&PeerLease> {
        self.lease.as_ref()
    }

    /// Returns the peer memory for the transfer buffers, if there is any.
    #[inline]
    pub(super) fn peer_memory(&self) -> Option<Arc<PeerMemory>> {
        self.lease.as_ref()?.memory()
    }

    /// Returns the cache's lines, if they are in peer memory that the HCA reaches.
    pub(super) fn view(&self) -> Option<&PeerLease> {
        self.view.as_ref()
    }

    /// Returns the status with which a request is refused before it begins; `Ok`: it is admitted.
    ///
    /// A conflicting reservation of another host is checked under the lock under which the queue
    /// closes: a caller that closes the queue after a change of reservations thus waits for all
    /// requests that were admitted before.
    #[inline(always)]
    pub(super) fn admit(&self, op: &Op) -> Status {
        let backing = self.backing();
        let (size, refuses_writes) = (backing.size_bytes(), || backing.refuses_writes());
        let emptied = || backing.emptied();
        if let Err(status) = check(op, self.geometry(), size, refuses_writes, emptied) {
            status
        } else if self.never_does(op) {
            Status::Unsupported
        } else if backing
            .drive()
            .is_some_and(|drive| drive.forbids(&self.config.host, op))
        {
            Status::Conflict
        } else {
            Status::Ok
        }
    }

    /// Returns the status with which a write to these blocks is refused, as [`Self::admit`] does.
    /// The data of the write has arrived already.
    #[inline(always)]
    pub(super) fn admit_write(&self, extent: &Extent) -> Status {
        let backing = self.backing();
        let (size, refuses_writes) = (backing.size_bytes(), || backing.refuses_writes());
        if let Err(status) = check_write(extent, self.geometry(), size, refuses_writes) {
            status
        } else if backing
            .drive()
            .is_some_and(|drive| drive.forbids_writes(&self.config.host))
        {
            Status::Conflict
        } else {
            Status::Ok
        }
    }

    /// Returns whether the queue pair or the drive never carries out such a request.
    #[inline]
    fn never_does(&self, op: &Op) -> bool {
        match op {
            Op::Write { .. } if self.no_read => true,
            Op::Write {
                atomic: true,
                extent,
                ..
            } => !self.backing().takes_atomic_write(extent.length),
            _ => false,
        }
    }
}
