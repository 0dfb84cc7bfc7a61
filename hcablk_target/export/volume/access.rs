// SPDX-License-Identifier: GPL-2.0

//! Controls which hosts may use a volume, and ends their sessions when that changes.

use super::{
    Export,
    Volume, //
};
use crate::{
    drive::reservations::Drive,
    export::{
        admission,
        keys::{
            Keys,
            ProofKeys,
            Proven, //
        },
    },
    session::{
        attachment::Attachment,
        end_reason::EndReason, //
    },
};
use hcablk_core::{
    proto::{
        connect::{
            ConnectRequest,
            Epoch,
            SessionId, //
        },
        name::HostId,
        VERSION_OF_HOST, //
    },
    system::errno, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The time limit of [`Volume::evict`] for waiting for the drive, in milliseconds.
const EVICT_WAIT_MS: u32 = 1000;

impl Volume {
    /// Lets a host use the volume.
    pub(crate) fn allow(&self, host: HostId) -> Result {
        self.state.lock().hosts.allow(host)
    }

    /// Sets key `place` of a host, as [`Keys::set`]. Fails with `ENOENT` if the host may not use
    /// the volume.
    pub(crate) fn set_key(&self, host: HostId, place: usize, text: &str) -> Result {
        self.state.lock().hosts.set_key(host, place, text)
    }

    /// Calls `f` with the keys of a host, if it may use the volume.
    pub(crate) fn with_keys<R>(&self, host: HostId, f: impl FnOnce(Option<&Keys>) -> R) -> R {
        f(self.state.lock().hosts.keys(host))
    }

    /// Withdraws a host's right to use the volume, and ends its sessions. Does not wait for their
    /// ends, since the caller blocks the whole configfs tree. Process context.
    pub(crate) fn forbid(&self, host: HostId) {
        self.state.lock().hosts.forbid(host);
        self.registry
            .end_attachments(EndReason::Forbidden, &|attachment| {
                attachment.is_of(self) && attachment.host() == host
            });
        self.give_up_changes(host);
    }

    /// Gives up all requested changes of the drive's reservations that have not begun, so that none
    /// is made that `host` requested over a session that has ended or is ending. Initiators repeat
    /// the others. Returns whether a change of `host` that had begun before is still being made.
    pub(crate) fn give_up_changes(&self, host: HostId) -> bool {
        self.registry
            .drives()
            .give_up_changes(self.drive().as_ref(), host)
    }

    /// Returns the drive whose reservations apply to the volume. Returns `None` if the volume is
    /// not exported; its former drive, which a change may still use, is then unknown.
    fn drive(&self) -> Option<Arc<Drive>> {
        self.with_backing(|backing| backing.drive().cloned())?
    }

    /// Returns whether a change of reservations that `host` has requested is being made.
    fn is_changing(&self, host: HostId) -> bool {
        self.registry
            .drives()
            .is_changing(self.drive().as_ref(), host)
    }

    /// Excludes a host until [`Self::admit`], and ends its sessions. Returns when the host can no
    /// longer reach the drive or its reservations. Fails with `EAGAIN` if that takes longer than
    /// [`EVICT_WAIT_MS`], or a change of reservations is being made for the host: the host is
    /// evicted, and the caller can repeat the call to wait again. Fails with `ECANCELED` if the
    /// host was admitted meanwhile. Fails with `ENOSPC` if too many hosts are evicted, and with
    /// `ENOMEM`: then nothing has changed. Process context.
    pub(crate) fn evict(&self, host: HostId) -> Result {
        self.state.lock().hosts.evict(host)?;
        let of_host = |attachment: &Attachment| attachment.is_of(self) && attachment.host() == host;
        self.registry.end_attachments(EndReason::Evicted, &of_host);
        let ended = self.registry.wait_for_ends_within(EVICT_WAIT_MS, &of_host);
        let changing = self.give_up_changes(host);
        if !self.state.lock().hosts.is_evicted(host) {
            // The host may have connected since.
            return Err(errno::ecanceled());
        }
        match ended && !changing {
            true => Ok(()),
            false => Err(EAGAIN),
        }
    }

    /// Admits an evicted host again. Fails with `ENOENT` if the host is not evicted.
    pub(crate) fn admit(&self, host: HostId) -> Result {
        self.state.lock().hosts.admit(host)
    }

    /// Returns the evicted hosts, each with whether it is draining: its sessions have not ended, or
    /// a change of reservations is being made for it. Fails with `ENOMEM`.
    pub(crate) fn evicted(&self) -> Result<KVec<(HostId, bool)>> {
        let hosts = self.state.lock().hosts.evicted()?;
        let attachments = self
            .registry
            .attachments(|attachment: &Attachment| attachment.is_of(self))?;
        let mut evicted = KVec::with_capacity(hosts.len(), GFP_KERNEL)?;
        for host in hosts {
            let has_attached = attachments
                .iter()
                .any(|attachment| attachment.host() == host);
            let drains = has_attached || self.is_changing(host);
            evicted.push((host, drains), GFP_KERNEL)?;
        }
        Ok(evicted)
    }

    /// Returns the disks that have lost their connections and may wait for the volume, each with
    /// its host and its session on path 0. Fails with `ENOMEM`.
    pub(crate) fn lost(&self) -> Result<KVec<(HostId, SessionId)>> {
        let records = match &self.state.lock().export {
            Export::Exported { records, .. } => records.clone(),
            _ => return Ok(KVec::new()),
        };
        records.lost()
    }

    /// Returns the state of the volume that matters for `request`, proven as `proven`, and the last
    /// epoch of its session.
    pub(crate) fn admission(
        &self,
        request: &ConnectRequest,
        proven: Proven,
    ) -> (admission::Volume, Option<Epoch>) {
        let state = self.state.lock();
        let has_key = |keys: &Keys| keys.count() != 0;
        let demands_proof =
            || !state.insecure || state.hosts.keys(request.host).is_some_and(has_key);
        let (host, instance) = (request.host, request.session.instance());
        let is_gone = |proof: ProofKeys| {
            !state
                .hosts
                .keys(host)
                .is_some_and(|keys| keys.has(proof.host))
        };
        let records = match &state.export {
            Export::Exported { records, .. } => Some(records),
            _ => None,
        };
        let volume = admission::Volume {
            unproven: !proven.is_proven() && demands_proof(),
            // A session of several volumes may have proven itself with the keys of other volumes.
            revoked: proven.keys().is_some_and(is_gone)
                && (demands_proof() || request.version_min < VERSION_OF_HOST),
            withdrawn: records.is_none(),
            allowed: state.hosts.allows(host),
            evicted: state.hosts.is_evicted(host),
            superseded: state.hosts.has_superseded(host, instance, proven.number()),
        };
        (
            volume,
            records.and_then(|records| records.last_epoch(request)),
        )
    }

    /// Records the epoch of the session that `request` has begun. Fails with `ESTALE` if the
    /// session had this epoch or a later one, or was fenced with it, and with `ENODEV` if the
    /// volume is no longer exported.
    pub(crate) fn remember_epoch(&self, request: &ConnectRequest) -> Result {
        match &self.state.lock().export {
            Export::Exported { records, .. } => {
                records.remember_epoch(request.host, request.session, request.epoch)
            }
            _ => Err(ENODEV),
        }
    }

    /// Prevents session `id` of `host` from beginning with `epoch` or an earlier one while the
    /// volume is exported, and ends the existing one. Returns whether the fenced session can no
    /// longer reach the drive. May sleep.
    pub(crate) fn fence_session(&self, host: HostId, id: SessionId, epoch: Epoch) -> bool {
        if let Export::Exported { records, .. } = &self.state.lock().export {
            records.fence(host, id, epoch);
        }
        let fenced = |attachment: &Attachment| {
            attachment.is_of(self)
                && attachment.host() == host
                && attachment.id() == id
                && attachment.epoch() <= epoch
        };
        self.registry.end_attachments(EndReason::Fenced, &fenced);
        self.registry.wait_for_ends_within(0, &fenced)
    }

    /// Makes the instance of `request` the newest of its host. Returns `false` if a later one has
    /// connected, or the host may not use the volume.
    pub(crate) fn enter(&self, request: &ConnectRequest, proven: Proven) -> bool {
        let mut state = self.state.lock();
        let instance = request.session.instance();
        state.hosts.enter(request.host, instance, proven.number())
    }
}
