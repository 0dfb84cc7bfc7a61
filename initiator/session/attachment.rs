// SPDX-License-Identifier: GPL-2.0

//! A disk on a session: the target's report of its volume, the volume's handle in requests, and how
//! it is attached and detached.
//!
//! In version 2 of the protocol the reply for the admin queue pair reports the volume. In version 3
//! it reports the session only, and the volume is attached by a request on the admin queue pair.
//! This initiator attaches one volume to a session, and says so when the session begins. The
//! attachment and its session refer to each other until the teardown.

use super::{
    teardown::Released,
    Session, //
};
use crate::{
    admin::AdminVolume,
    device::Device,
    failure::{
        Failure,
        Violation, //
    },
    head::Head,
    io::{
        Driver,
        Retired, //
    },
    settings::Offer, //
};
use hcablk_core::{
    blkdev::Dispatch,
    proto::{
        connect::{
            Epoch,
            ExportInstance,
            Geometry,
            Reason,
            Reply,
            SessionId, //
        },
        message::{
            Attach,
            Handle,
            VolumeLimits,
            VolumeState, //
        },
        name::VolumeId,
        ADMIN_QUEUE, //
    },
    sync::atomic::{
        Acquire,
        Atomic,
        Release, //
    },
    system::Deadline, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

/// The target's report of a volume.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct VolumeInfo {
    pub(crate) geometry: Geometry,
    pub(crate) wwid: Option<VolumeId>,
    /// `None`: the target may forget acknowledged writes without notice.
    pub(crate) instance: Option<ExportInstance>,
    /// The limits and preferences of the drive, if the target reports them.
    pub(crate) limits: Option<VolumeLimits>,
}

impl VolumeInfo {
    /// Returns the report in `reply`.
    pub(crate) fn from_reply(reply: &Reply) -> Self {
        Self {
            geometry: reply.geometry,
            wwid: reply.id,
            instance: reply.instance,
            limits: None,
        }
    }

    /// Returns whether `reply` is about the same volume; its size, and whether it is read-only, may
    /// differ.
    pub(crate) fn is_in(&self, reply: &Reply) -> bool {
        let mut now = Self::from_reply(reply);
        now.geometry.capacity = self.geometry.capacity;
        now.geometry.read_only = self.geometry.read_only;
        now.limits = self.limits;
        now == *self
    }

    /// Returns the part that may change during the life of a disk, for a watch; `write_cache` if
    /// the watch includes it.
    pub(crate) fn state(&self, write_cache: Option<bool>) -> VolumeState {
        VolumeState {
            sectors: self.geometry.capacity >> 9,
            read_only: self.geometry.read_only,
            write_cache,
        }
    }
}

/// The target's responses about an attached volume.
#[derive(Clone, Copy)]
struct Attached {
    volume: VolumeInfo,
    /// The handle of the volume in requests.
    handle: Handle,
    /// The report of the reply for the admin queue pair, which the replies for the others must
    /// repeat. In version 3 it is about the session only.
    granted: VolumeInfo,
}

/// Whether the queue pairs of a session can deliver responses to a disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opened {
    NotYet,
    Yes,
    /// The session's queue pairs are closed.
    Over,
}

/// A disk on a session, for which the session's volume is attached. The session has it until it is
/// dropped, its queues as well. Its locks are taken one at a time, and nothing is locked inside.
#[pin_data]
pub(crate) struct Attachment {
    session: Arc<Session>,
    device: Arc<Device>,
    head: Arc<Head>,
    /// The disk on this path, as fences name it. It is also the id of the session.
    disk: SessionId,
    /// The number of this attachment of the disk. It is also the epoch of the session.
    epoch: Epoch,
    /// Set after the admin queue pair was granted, before there are other queue pairs.
    #[pin]
    attached: Mutex<Option<Attached>>,
    /// The requests about the volume on the admin queue pair, from its attachment to the teardown.
    #[pin]
    admin: Mutex<Option<Arc<AdminVolume>>>,
    /// This was made a path of the disk: requests may have used it.
    admitted: Atomic<bool>,
    /// Whether the disk counts the session as open.
    #[pin]
    opened: Mutex<Opened>,
    /// Requests of the disk whose queues were released before they could end.
    #[pin]
    pub(super) released: Mutex<Released>,
}

impl Attachment {
    /// Creates the attachment of a disk that is to be made, or of one that lost its session. May
    /// sleep.
    pub(super) fn new(
        session: Arc<Session>,
        (device, head): (Arc<Device>, Arc<Head>),
        (disk, epoch): (SessionId, Epoch),
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                session,
                device,
                head,
                disk,
                epoch,
                attached <- new_mutex!(None),
                admin <- new_mutex!(None),
                admitted: Atomic::new(false),
                opened <- new_mutex!(Opened::NotYet),
                released <- new_mutex!(Released::default()),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the session.
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns the device of the disk.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the disk's id on the path, and the number of this attachment of it.
    pub(crate) fn id(&self) -> (SessionId, Epoch) {
        (self.disk, self.epoch)
    }

    /// Returns the number of this attachment of the disk.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns whether requests of the disk may use the session.
    pub(crate) fn is_live(&self) -> bool {
        self.session.is_live()
    }

    /// Returns why the disk has lost the session.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.session.failure()
    }

    /// Returns why the disk has lost the session, once its requests have left it.
    pub(crate) fn has_ended(&self) -> Option<Failure> {
        self.session.has_ended()
    }

    /// Returns whether the disk's requests have left the session, which has ended for it.
    pub(crate) fn is_over(&self) -> bool {
        self.session.is_over()
    }

    /// Ends the disk's use of the session because of `failure`. Any context.
    pub(crate) fn fail(&self, failure: Failure) {
        self.session.fail(failure);
    }

    /// Ends the disk's use of the session on the user's request, and waits until its requests have
    /// left it. Process context.
    pub(crate) fn finish(&self) {
        self.session.finish();
    }

    /// Waits until the disk's requests have left the session. The wait is finite.
    pub(crate) fn wait(&self) {
        self.session.wait();
    }

    /// Returns the head of the disk, which outlives its sessions.
    #[inline]
    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the dispatch of the disk's requests.
    pub(crate) fn dispatch(&self) -> &Arc<Dispatch<Driver>> {
        self.head.dispatch()
    }

    /// Returns the number of the disk's path.
    pub(crate) fn path(&self) -> u8 {
        self.disk.path()
    }

    /// Records that the session was made a path of the disk.
    pub(crate) fn admit(&self) {
        self.admitted.store(true, Release);
        self.open();
    }

    /// Returns whether the session became a path of the disk.
    pub(crate) fn is_admitted(&self) -> bool {
        self.admitted.load(Acquire)
    }

    /// Returns the target's report of the volume, once it is attached; it has the volume's limits
    /// once the session has gone live.
    pub(crate) fn volume(&self) -> Option<VolumeInfo> {
        let attached = *self.attached.lock();
        attached.map(|attached| attached.volume)
    }

    /// Sets the report of the volume, which is attached.
    pub(crate) fn set_volume(&self, volume: VolumeInfo) {
        if let Some(attached) = &mut *self.attached.lock() {
            attached.volume = volume;
        }
    }

    /// Returns the handle of the volume in requests.
    pub(crate) fn handle(&self) -> Handle {
        let attached = *self.attached.lock();
        attached.map_or(Handle::FIRST, |attached| attached.handle)
    }

    /// Returns whether the reply for another queue pair reports the same as that for the admin
    /// queue pair; the size of a volume, and whether it is read-only, may differ.
    pub(crate) fn agrees(&self, reply: &Reply) -> bool {
        let attached = *self.attached.lock();
        attached.is_some_and(|attached| attached.granted.is_in(reply))
    }

    /// Returns the requests about the volume on the admin queue pair; `None` before it is attached,
    /// and after the teardown.
    pub(crate) fn admin(&self) -> Option<Arc<AdminVolume>> {
        self.admin.lock().clone()
    }

    /// Releases the requests about the volume, which refer to the session: it is torn down.
    pub(super) fn release_admin(&self) {
        let admin = self.admin.lock().take();
        drop(admin);
    }

    fn is_attached(&self) -> bool {
        self.attached.lock().is_some()
    }

    /// Counts the session among those that can deliver responses to the disk, unless its queue
    /// pairs are closed. Process context.
    fn open(&self) {
        let mut opened = self.opened.lock();
        if *opened == Opened::NotYet {
            *opened = Opened::Yes;
            self.head.session_opened();
        }
    }

    /// Counts the session no longer, since its queue pairs are closed; returns whether no other is
    /// open. Process context.
    pub(super) fn close(&self) -> bool {
        let mut opened = self.opened.lock();
        let former = core::mem::replace(&mut *opened, Opened::Over);
        former == Opened::Yes && self.head.session_closed()
    }

    /// Returns whether the disk waits for another session after this one.
    pub(crate) fn is_to_be_followed(&self) -> bool {
        self.head.queues_if_no_path() && self.failure().is_some_and(Failure::may_pass)
    }

    /// Returns whether requests for the disk wait for a new session after this one has ended.
    pub(crate) fn requests_wait(&self) -> bool {
        self.head.requests_wait()
    }

    /// Lets requests wait for no further session. Any context.
    pub(crate) fn no_other_session(&self) {
        self.head.queue_if_no_path(false);
    }

    /// Returns whether flushes and FUA writes fail, since the target has lost acknowledged writes.
    /// Any context.
    pub(crate) fn has_lost_writes(&self) -> bool {
        self.head.has_lost_writes()
    }

    /// Records that a flush or FUA write was refused because of lost writes. Any context.
    pub(crate) fn report_loss(&self) {
        self.head.report_loss();
    }

    /// Records that requests of the disk may reach the drive over this session, which ends, until
    /// the target has fenced it. Process context.
    pub(super) fn set_unfenced(&self) {
        self.head.set_unfenced(self.path(), self.epoch);
    }

    /// Waits until no request that was sent can overtake its retry on another path, and calls
    /// `meanwhile` repeatedly. Does nothing if the session never became a path of the disk. Sleeps.
    pub(super) fn wait_for_fence(&self, meanwhile: impl FnMut()) {
        if self.is_admitted() {
            self.head
                .wait_for_fence(&*self.device, (self.path(), self.epoch), meanwhile);
        }
    }

    /// Removes the closed queues of the session from the disk's hardware queues. Sleeps.
    pub(super) fn remove_queues(&self) {
        let mut retired = Retired::new();
        if let Err(e) = self.head.hw_queues().remove(self.path(), &mut retired) {
            pr_warn!(
                "{}: path {} cannot release its RDMA device (error {})\n",
                *self.device,
                self.path(),
                e.to_errno()
            );
        }
        // Destroys the queue pairs, before their protection domain.
        drop(retired);
    }
}

impl Attachment {
    /// Attaches the volume after `reply` has granted the admin queue pair, and returns the target's
    /// report of it. Sleeps until `deadline` at most. Fails as the target refuses.
    pub(crate) fn attach(&self, reply: &Reply, deadline: Deadline) -> Result<VolumeInfo, Failure> {
        let granted = VolumeInfo::from_reply(reply);
        let admin = self.session.admin().ok_or(Failure::Disconnected)?;
        let admin = admin
            .add_volume()
            .and_then(|volume| Ok(Arc::new(volume, GFP_KERNEL)?))
            .map_err(|e| Failure::Setup("the admin queue pair", e))?;
        self.set_admin(&admin)?;
        let (handle, volume) = match self.session.offer.is_of_host {
            false => (Handle::FIRST, granted),
            true => self.ask_attach(&admin, &granted, deadline)?,
        };
        *self.attached.lock() = Some(Attached {
            volume,
            handle,
            granted,
        });
        Ok(volume)
    }

    /// Lets requests about the volume use its place on the admin queue pair. Fails if the session
    /// has ended.
    fn set_admin(&self, admin: &Arc<AdminVolume>) -> Result<(), Failure> {
        let mut place = self.admin.lock();
        // The teardown takes it out after it has closed the admin queue pair, which it finds in the
        // session.
        if self.session.admin().is_none() {
            return Err(self.failure().unwrap_or(Failure::Disconnected));
        }
        *place = Some(admin.clone());
        Ok(())
    }

    fn ask_attach(
        &self,
        admin: &AdminVolume,
        granted: &VolumeInfo,
        deadline: Deadline,
    ) -> Result<(Handle, VolumeInfo), Failure> {
        let attach = Attach {
            volume: self
                .session
                .settings
                .volume
                .ok_or(Failure::Unset("volume"))?,
            disk: self.disk,
            epoch: self.epoch,
            resume: self.head.has_begun(),
        };
        let attached = admin.attach(attach, deadline)?;
        if attached.geometry.max_transfer > granted.geometry.max_transfer {
            return Err(Failure::Protocol(Violation::new(
                "a volume has larger requests than its session",
                Some(ADMIN_QUEUE),
            )));
        }
        let volume = VolumeInfo {
            geometry: attached.geometry,
            wwid: attached.id,
            instance: attached.instance,
            limits: None,
        };
        Ok((attached.handle, volume))
    }

    /// Detaches the volume at an orderly end, if no request of the session is under way. No more
    /// are issued. Sleeps.
    pub(super) fn detach(&self) {
        let is_attached = self.session.offer.is_of_host && self.is_attached();
        if !is_attached || self.failure().is_some() {
            return;
        }
        let mut in_flight = 0;
        self.session
            .for_each_queue(|queue| in_flight += queue.in_flight());
        if let Some(admin) = self.admin().filter(|_| in_flight == 0) {
            admin.detach();
        }
    }
}

impl Session {
    /// Logs that the session has fallen back to version 2 of the protocol.
    pub(crate) fn report_fall_back(&self) {
        if self.offer != self.settings.first_offer() {
            pr_info!(
                "{}: path {} uses version 2 of the protocol, since the target refused version 3, or this volume in a session of it\n",
                self.name(),
                self.path()
            );
        }
    }

    /// Converts `failure`, with which making a session has ended, to the failure of the disk. The
    /// refusal of a session without a volume says nothing about the disk's volume, so another
    /// attempt may succeed, unless the target does not know such sessions.
    pub(crate) fn as_of_volume(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Refused(reject) | Failure::Unsealed(reject)
                if self.offer.is_of_host
                    && !self.has_responded(false)
                    && reject.reason != Reason::Version =>
            {
                Failure::RefusedSession(reject)
            }
            failure => failure,
        }
    }

    /// Returns the versions of the protocol to offer next, after a session could not be made
    /// because of `failure`: if the target refuses a request that names no volume, only its
    /// response to a request that names the volume counts.
    pub(crate) fn next_offer(&self, failure: Failure) -> Option<Offer> {
        let refusal = match failure {
            Failure::Refused(reject) | Failure::Unsealed(reject) => reject.reason,
            _ => return None,
        };
        let is_of_session = !self.has_responded(false) || refusal == Reason::OwnSession;
        self.settings
            .next_offer(self.offer)
            .filter(|_| is_of_session)
    }
}

/// The time limit of the durability request, in milliseconds. The target waits about as long for
/// it.
const DURABLE_MS: u32 = 10_000;

/// Milliseconds between two durability requests.
const ASK_MS: u32 = 50;

impl Attachment {
    /// Returns whether the target must be asked for durability before the admin queue pair is
    /// closed.
    pub(super) fn is_to_ask_durable(&self) -> bool {
        self.failure() == Some(Failure::ExportEnds)
            && self.is_to_be_followed()
            && self.head.flushes()
    }

    /// Asks the target whether all acknowledged writes are durable, and records it if they are.
    /// Sleeps, [`DURABLE_MS`] or so at most.
    pub(super) fn ask_durable(&self, admin: &AdminVolume) {
        let deadline = Deadline::new(DURABLE_MS);
        let durable = loop {
            match admin.ask_durable() {
                Ok(true) => break true,
                Ok(false) if !deadline.has_passed() && !self.head.is_removed_within(ASK_MS) => {}
                _ => break false,
            }
        };
        if durable {
            let volume = self.volume();
            let instance = volume.and_then(|volume| volume.instance);
            self.head.set_durable(instance);
        }
    }
}
