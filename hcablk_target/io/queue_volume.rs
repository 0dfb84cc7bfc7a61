// SPDX-License-Identifier: GPL-2.0

//! The volumes of a queue pair, and one of them as its requests use it: what it is made of, what
//! its initiator was told of it, and what the queue pair has for it alone.
//!
//! # Lifetime
//!
//! Each request refers to the volume that it is about, also while it is idle: to one that the queue
//! pair has. So the device of a volume stays open until the queue is closed, which drops its
//! requests first, or until the volume was taken away: [`Queue::withdraw`] lets no request for it
//! begin, those under way let go of it when they are idle, and [`Queue::forget`] has the others do
//! so. Whoever takes it away waits for [`Gone`], since what a request has done last may refer to
//! the volume for a moment longer, in any context.

use super::{
    queue::{
        Flushes,
        Queue,
        Work, //
    },
    request::Request,
    split::Split,
    validate::{
        check,
        check_write, //
    },
};
use crate::drive::{
    backing::Backing,
    flush_errors::Teller,
    io_turns::HostLine,
    write_errors::WriteErrors, //
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
        Event,
        WorkQueue, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Sets an event when the last queue pair has let go of a volume.
pub(crate) struct Gone(Arc<Event>);

impl Gone {
    /// Makes one that is held until it is dropped, and its event. May sleep.
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

/// What a session knows of a volume that its queue pairs serve.
#[derive(Clone)]
pub(crate) struct VolumeConfig {
    /// For messages.
    pub(crate) name: VolumeName,
    pub(crate) host: HostId,
    /// The volume, as the session's initiator is told.
    pub(crate) geometry: Geometry,
    pub(crate) flushes: Flushes,
    pub(crate) backing: Arc<Backing>,
    /// Which errors of the session's writes are still to be told.
    pub(crate) write_errors: Arc<WriteErrors>,
    /// Which session tells them, among those of the disk.
    pub(crate) teller: Teller,
    /// The last to go.
    pub(crate) _gone: Arc<Gone>,
}

/// See the module.
pub(crate) struct QueueVolume {
    /// See [`Backing::writes_with_fua`].
    with_fua: bool,
    /// See [`Backing::is_straight`].
    is_straight: bool,
    /// The target fetches no data by RDMA READ.
    no_read: bool,
    /// Peer memory beside the queue pair's first transfer buffers.
    lease: Option<PeerLease>,
    /// The cache's lines, if they are in peer memory that the HCA reaches.
    view: Option<PeerLease>,
    /// How large requests are split.
    split: Split,
    /// No request for it begins any more.
    is_leaving: Atomic<bool>,
    /// Where its requests wait for the drive.
    line: HostLine<Request>,
    /// Behind all that refers to the drive.
    config: VolumeConfig,
}

/// The volumes of a queue pair, by their handles. The queue's lock guards it.
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

    /// Returns the volume that a request names which begins. Fails with its status.
    #[inline]
    fn named(&self, handle: Handle) -> Result<&Arc<QueueVolume>, Status> {
        match self.0.get(usize::from(handle.0)) {
            Some(Some(volume)) if !volume.is_leaving() => Ok(volume),
            // There may have been one: its initiator need not know yet.
            Some(_) => Err(Status::Gone),
            None => Err(Status::Invalid),
        }
    }

    /// Returns the one that has peer memory.
    fn leased(&self) -> Option<&Arc<QueueVolume>> {
        self.0
            .iter()
            .flatten()
            .find(|volume| volume.lease.is_some())
    }

    /// Returns a volume to which requests may refer that are idle.
    fn any(&self) -> Option<&Arc<QueueVolume>> {
        self.0.iter().flatten().find(|volume| !volume.is_leaving())
    }
}

impl Work {
    /// Returns whether there may be, or have been, a volume of this handle.
    #[inline]
    pub(super) fn may_have_volume(&self, handle: Handle) -> bool {
        usize::from(handle.0) < self.volumes.0.len()
    }

    /// Makes `request` one for the volume of this handle. Fails with its status.
    #[inline(always)]
    pub(super) fn enter_volume(&self, request: &mut Request, handle: Handle) -> Result<(), Status> {
        let volume = self.volumes.named(handle)?;
        if !Arc::ptr_eq(&request.volume, volume) {
            request.volume = volume.clone();
        }
        Ok(())
    }

    /// Has a request that is idle let go of a volume that is being taken away.
    #[inline]
    pub(super) fn leave_volume(&self, request: &mut Request) {
        if request.volume.is_leaving() {
            self.let_go(request);
        }
    }

    #[cold]
    #[inline(never)]
    fn let_go(&self, request: &mut Request) {
        // If there is none the queue is closed next.
        if let Some(other) = self.volumes.any() {
            request.volume = other.clone();
        }
    }
}

impl Queue {
    /// Lets requests name a volume by `handle`, which `config` is of. May sleep. Fails with
    /// `ENOMEM`, and with `EEXIST` if the handle is another volume's.
    pub(crate) fn attach(&self, handle: Handle, config: VolumeConfig) -> Result {
        let (largest, no_read) = (self.shape.largest, self.shape.no_read);
        let volume = QueueVolume::new(config, self.shape.split, largest, no_read, (None, None))?;
        self.put_volume(handle, &volume)
    }

    /// Returns whether the HCA reaches memory of another PCI device for requests of the queue.
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

    /// Lets no request for a volume begin any more; those that wait for transfer buffers are
    /// answered that it is gone. May sleep, but does not wait for the drive.
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
            self.answer(request, Status::Gone);
        }
    }

    /// Takes the first request for `volume` that waits for transfer buffers.
    fn take_waiting(&self, volume: &Arc<QueueVolume>) -> Option<KBox<Request>> {
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

    /// Forgets a volume that was [withdrawn](Self::withdraw): its handle may be another one's. May
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
        // What has just made a request idle may refer to it still; under no lock.
        drop(former);
    }
}

impl QueueVolume {
    /// Makes a volume of a queue pair whose requests have up to `largest` bytes and may be split in
    /// chunks as large as those `of_queue`, and which posts no RDMA READ if `no_read`. May sleep.
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
            // A chunk has room for as many pieces of memory as one of the queue's has.
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

    /// Returns the volume, as the initiator of this queue pair is told.
    pub(super) fn geometry(&self) -> &Geometry {
        &self.config.geometry
    }

    #[inline]
    pub(super) fn write_errors(&self) -> &WriteErrors {
        &self.config.write_errors
    }

    /// Returns which session tells of write errors, among those of the disk.
    #[inline]
    pub(super) fn teller(&self) -> Teller {
        self.config.teller
    }

    /// Returns how large requests are split.
    #[inline]
    pub(super) fn split(&self) -> Split {
        self.split
    }

    /// Returns whether no request for it begins any more.
    #[inline]
    fn is_leaving(&self) -> bool {
        self.is_leaving.load(Acquire)
    }

    /// Returns the workqueue on which requests wait for the drive.
    pub(super) fn io_work(&self) -> &WorkQueue {
        self.backing().io_work()
    }

    /// Returns the line of its host, in which requests wait for a place on [`Self::io_work`].
    #[inline]
    pub(super) fn line(&self) -> &HostLine<Request> {
        &self.line
    }

    /// Returns whether data moves between the wire and the drive by RAM, past all caches: see
    /// [`Backing::is_straight`].
    #[inline]
    pub(super) fn is_straight(&self) -> bool {
        self.is_straight
    }

    /// Returns whether the session's initiator sends flushes. Else a write is on stable media
    /// before its response.
    #[inline]
    pub(super) fn initiator_flushes(&self) -> bool {
        self.config.flushes.load(Relaxed)
    }

    /// Returns whether a write that begins now is sent to the drive as one with FUA, though its
    /// initiator has not asked for that.
    #[inline]
    pub(super) fn forces_fua(&self) -> bool {
        self.with_fua && !self.initiator_flushes() && self.backing().is_volatile()
    }

    /// Returns the bytes of the volume at this moment, in whole blocks; 0 if the drive is gone.
    #[inline]
    pub(super) fn capacity(&self) -> u64 {
        let block = 1u64 << self.geometry().logical_block_shift;
        self.backing().size_bytes() & !(block - 1)
    }

    /// Returns the peer memory and who lends it, if there is any.
    pub(super) fn lease(&self) -> Option<&PeerLease> {
        self.lease.as_ref()
    }

    /// Returns the peer memory beside the transfer buffers, if there is any.
    #[inline]
    pub(super) fn peer_memory(&self) -> Option<Arc<PeerMemory>> {
        self.lease.as_ref()?.memory()
    }

    /// Returns the cache's lines, if they are in peer memory that the HCA reaches.
    pub(super) fn view(&self) -> Option<&PeerLease> {
        self.view.as_ref()
    }

    /// Returns how a request is refused before it begins; `Ok`: it is not.
    ///
    /// Whether a reservation of another host forbids it is asked under the lock under which the
    /// queue closes: who closes it after a change waits for all that was allowed before.
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

    /// Returns how a write to these blocks is refused, as [`Self::admit`] does, whose data is there
    /// already.
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

    /// Returns whether it is a request that this queue pair, or the drive, never carries out.
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
