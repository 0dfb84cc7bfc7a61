// SPDX-License-Identifier: GPL-2.0

//! The queue pairs of a session: how they are made, added and replaced, and what they tell it.

use super::{
    changer::Asked,
    end_reason::EndReason,
    Session,
    VolumeNow, //
};
use crate::{
    admin::Admin,
    drive::backing::Backing,
    io::{
        Fault,
        Queue,
        QueueConfig,
        Shape, //
    },
    memory::{
        Charge,
        Client, //
    },
    parameters, //
};
use hcablk_core::{
    proto::{
        connect::Epoch,
        message::{
            ReservationInfo,
            ReservationOp,
            Status,
            Tag,
            VolumeLimits,
            VolumeState, //
        },
        ADMIN_QUEUE, //
    },
    rdma::cm::Id,
    report::trace,
    sync::atomic::Relaxed, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl Session {
    /// Returns what the volume is now; `None`: its drive is gone, or the session ends. May sleep,
    /// but does not wait for the drive.
    pub(crate) fn volume_now(&self) -> Option<VolumeNow> {
        let backing = self.backing()?;
        let (now, generation) = backing.observe()?;
        Some(VolumeNow {
            state: VolumeState {
                sectors: now.sectors,
                read_only: self.geometry.read_only || now.refuses_writes,
                write_cache: Some(now.wants_flushes),
            },
            limits: VolumeLimits {
                // They come by a key.
                atomic: now.limits.atomic.filter(|_| parameters::rdma_read()),
                ..now.limits
            },
            generation,
        })
    }

    /// Records that the initiator knows of a volatile write cache or of none (`None`: what the
    /// reply said when the session began), and whether its disk sends `flushes`. Any context.
    pub(crate) fn set_flushes(&self, cache: Option<bool>, flushes: bool) {
        let relies = match cache {
            Some(cache) => cache && flushes,
            None => self.geometry.write_cache,
        };
        self.flushes.store(relies, Relaxed);
        if flushes {
            self.asks_durable.store(true, Relaxed);
        }
    }

    /// Returns a number, not 0, that changes when the target begins or ceases to listen at an
    /// address. Any context.
    pub(crate) fn portals_generation(&self) -> u32 {
        self.volume.registry().portals_generation()
    }

    /// Ends the session of the same disk on another path if it has `epoch` or one before, and lets
    /// none begin with these. Returns whether nothing of it can reach the drive any more; `EINVAL`
    /// if the path is the session's own. May sleep, but does not wait for the drive.
    pub(crate) fn fence(&self, path: u8, epoch: Epoch) -> Result<bool> {
        let id = self.id.on_path(path);
        if id == self.id {
            return Err(EINVAL);
        }
        Ok(self.volume.fence_session(self.host, id, epoch))
    }

    /// Returns whether all acknowledged writes are durable; `None`: not known yet, or the export
    /// does not end. Process context.
    pub(crate) fn durable(&self) -> Option<bool> {
        *self.durable.lock()
    }

    /// Records that the initiator got that answer. Any context.
    pub(crate) fn durable_told(&self) {
        self.durable_told.set();
    }

    /// Begins a change of the drive's reservations, which the initiator asked for as `sequence`.
    /// Request `tag` is answered when it is made ([`Admin::answer_change`]). Fails with the
    /// request's status if it is not begun. May sleep, but does not wait for a file.
    pub(crate) fn reserve(&self, tag: Tag, sequence: u32, op: ReservationOp) -> Result<(), Status> {
        let backing = self.backing().ok_or(Status::Gone)?;
        let drive = backing.drive_use().ok_or(Status::Unsupported)?.clone();
        // Before it is looked whether the session ends: see there.
        let ticket = drive.ticket();
        if self.is_ending() {
            return Err(Status::Gone);
        }
        self.changer.begin(Asked {
            tag,
            sequence,
            op,
            drive,
            ticket,
        })
    }

    /// Returns the key of registrant `index` of the drive, or its reservation if that is `None`.
    /// Fails with `Unsupported`, `Gone`, and for a key with `Draining`. May sleep.
    pub(crate) fn reservation(&self, index: Option<u32>) -> Result<ReservationInfo, Status> {
        if let Some(index) = index {
            return self.volume.read_key(self, index);
        }
        let backing = self.backing().ok_or(Status::Gone)?;
        let drive = backing.drive().ok_or(Status::Unsupported)?;
        Ok(drive.read(None))
    }
}

impl Session {
    /// Makes the admin queue pair of the connection `id`, which `client` was charged for, and adds
    /// it. May sleep. Fails with `EIO` if the session is ending.
    pub(crate) fn make_admin(
        self: &Arc<Self>,
        id: &Arc<Id>,
        client: Arc<Client>,
    ) -> Result<Arc<Admin>> {
        let completions = self.volume.registry().admin_completions();
        let admin = Admin::new(self.clone(), id, &self.pd, completions, client)?;
        let watched = self.watch_port(id);
        let mut place = self.admin.lock();
        if watched.is_ok() && self.state.lock().is_live() {
            *place = Some(admin.clone());
            self.changer.answer_by(&admin);
            return Ok(admin);
        }
        drop(place);
        admin.close();
        watched.and(Err(EIO))
    }

    /// Makes queue pair `index` of the connection `id`, which `charge` is for, over what the volume
    /// is made of. May sleep.
    pub(crate) fn make_queue(
        self: &Arc<Self>,
        index: u8,
        id: &Arc<Id>,
        backing: Arc<Backing>,
        shape: Shape,
        charged: (&Arc<Client>, Charge),
    ) -> Result<Arc<Queue>> {
        let config = QueueConfig {
            session: self.id,
            host: self.host,
            epoch: self.epoch,
            index,
            geometry: self.geometry,
            flushes: self.flushes.clone(),
            completions: backing.completions(self.pd.is_software()).clone(),
            pd: self.pd.clone(),
            backing,
            write_errors: self.write_errors.clone(),
            teller: self.write_errors.teller(),
        };
        Queue::new(self.clone(), config, id, shape, charged)
    }

    /// Ends the session because of queue pair `queue`.
    pub(crate) fn end_by(self: &Arc<Self>, queue: u8, fault: Fault) {
        self.end(EndReason::Queue(queue, fault));
        if queue == ADMIN_QUEUE {
            // Nobody will ask.
            self.durable_told.set();
        }
    }

    /// Adds a queue pair. If the session is ending, or has this queue already,
    /// the queue pair is taken down and `EIO` or `EEXIST` returned.
    pub(crate) fn add_queue(&self, queue: &Arc<Queue>) -> Result {
        let mut queues = self.queues.lock();
        let result = if !self.state.lock().is_live() {
            Err(EIO)
        } else if queues.iter().any(|q| q.index() == queue.index()) {
            Err(EEXIST)
        } else {
            queue.time(self.volume.timing());
            queues.push(queue.clone(), GFP_KERNEL).map_err(Into::into)
        };
        drop(queues);
        if result.is_err() {
            queue.close();
        }
        result
    }

    /// Takes a queue pair down while the session goes on, and waits until nothing of it is left:
    /// as long as the drive needs for what it has begun. Does nothing if it is not there, or
    /// the session is ending. `false`: another one is being taken down, which is not waited for: an
    /// initiator replaces one after the other. Process context.
    pub(crate) fn replace_queue(&self, index: u8) -> bool {
        let Some(_alone) = self.closing.try_lock() else {
            return !self.state.lock().is_live();
        };
        if !self.state.lock().is_live() {
            return true;
        }
        let found = self
            .queues
            .lock()
            .iter()
            .find(|queue| queue.index() == index)
            .cloned();
        if let Some(queue) = found {
            queue.comes_to(trace::State::Ending);
            queue.close_alone();
            drop(self.volume.retire_one(&self.queues, index));
        }
        true
    }
}
