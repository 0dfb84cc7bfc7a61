// SPDX-License-Identifier: GPL-2.0

//! The volume of a session: the target's report of it, its handle in requests, and how it is
//! attached and detached.
//!
//! In version 2 of the protocol the reply for the admin queue pair reports the volume. In version 3
//! it reports the session only, and the volume is attached by a request on the admin queue pair.
//! This initiator attaches one volume to a session, and says so when the session begins.

use super::Session;
use crate::{
    failure::{
        Failure,
        Violation, //
    },
    settings::Offer, //
};
use hcablk_core::{
    proto::{
        connect::{
            ExportInstance,
            Geometry,
            Reason,
            Reply, //
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
    system::Deadline, //
};
use kernel::prelude::*;

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

/// A volume that is attached to a session.
#[derive(Clone, Copy)]
pub(super) struct Attachment {
    pub(super) volume: VolumeInfo,
    /// The name of the volume in requests.
    handle: Handle,
    /// The report of the reply for the admin queue pair, which the replies for the others must
    /// repeat. In version 3 it is about the session only.
    granted: VolumeInfo,
}

impl Session {
    /// Attaches the volume after `reply` has granted the admin queue pair, and returns the target's
    /// report of it. Sleeps until `deadline` at most. Fails as the target refuses.
    pub(crate) fn attach(&self, reply: &Reply, deadline: Deadline) -> Result<VolumeInfo, Failure> {
        let granted = VolumeInfo::from_reply(reply);
        let (handle, volume) = match self.offer.is_of_host {
            false => (Handle::FIRST, granted),
            true => self.ask_attach(&granted, deadline)?,
        };
        *self.attachment.lock() = Some(Attachment {
            volume,
            handle,
            granted,
        });
        Ok(volume)
    }

    fn ask_attach(
        &self,
        granted: &VolumeInfo,
        deadline: Deadline,
    ) -> Result<(Handle, VolumeInfo), Failure> {
        let admin = self.admin().ok_or(Failure::Disconnected)?;
        let attach = Attach {
            volume: self.settings.volume.ok_or(Failure::Unset("volume"))?,
            disk: self.id,
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

    /// Returns the name of the volume in requests.
    pub(super) fn attached_handle(&self) -> Handle {
        let attachment = *self.attachment.lock();
        attachment.map_or(Handle::FIRST, |attachment| attachment.handle)
    }

    /// Returns whether the reply for another queue pair reports the same as that for the admin
    /// queue pair; the size of a volume, and whether it is read-only, may differ.
    pub(crate) fn agrees(&self, reply: &Reply) -> bool {
        let attachment = *self.attachment.lock();
        attachment.is_some_and(|attachment| attachment.granted.is_in(reply))
    }

    /// Detaches the volume at an orderly end, if none of its requests is under way. No more are
    /// issued. Sleeps.
    pub(super) fn detach(&self) {
        let is_attached = self.offer.is_of_host && self.attachment.lock().is_some();
        if !is_attached || self.failure().is_some() {
            return;
        }
        let mut in_flight = 0;
        self.for_each_queue(|queue| in_flight += queue.in_flight());
        if let Some(admin) = self.admin().filter(|_| in_flight == 0) {
            admin.detach();
        }
    }

    /// Logs that the session has fallen back to version 2 of the protocol.
    pub(crate) fn report_fall_back(&self) {
        if self.offer != self.settings.first_offer() {
            pr_info!(
                "{}: path {} uses version 2 of the protocol, since the target refused version 3, or this volume in a session of it\n",
                *self.device,
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
