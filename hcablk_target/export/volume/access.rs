// SPDX-License-Identifier: GPL-2.0

//! Which hosts may use a volume, and what becomes of their sessions when that changes.

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
            Made,
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
            Epoch,
            Request,
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

/// How long [`Volume::evict`] waits for the drive, in milliseconds.
const EVICT_WAIT_MS: u32 = 1000;

impl Volume {
    /// Lets a host use the volume.
    pub(crate) fn allow(&self, host: HostId) -> Result {
        self.state.lock().hosts.allow(host)
    }

    /// Sets key `place` of a host, as [`Keys::set`]; `ENOENT` if it may not use the volume.
    pub(crate) fn set_key(&self, host: HostId, place: usize, text: &str) -> Result {
        self.state.lock().hosts.set_key(host, place, text)
    }

    /// Calls `f` with the keys of a host, if it may use the volume.
    pub(crate) fn with_keys<R>(&self, host: HostId, f: impl FnOnce(Option<&Keys>) -> R) -> R {
        f(self.state.lock().hosts.keys(host))
    }

    /// Lets a host use the volume no longer, and ends its sessions. Does not wait until nothing is
    /// left of them: who calls this holds up the whole tree of directories. Process context.
    pub(crate) fn forbid(&self, host: HostId) {
        self.state.lock().hosts.forbid(host);
        self.registry
            .end_attachments(EndReason::Forbidden, &|attachment| {
                attachment.is_of(self) && attachment.host() == host
            });
        self.give_up_changes(host);
    }

    /// Has no change of reservations made that `host` has asked for by sessions that have ended, or
    /// are ending; others are asked for again. Returns whether one is being made that had begun
    /// before.
    pub(crate) fn give_up_changes(&self, host: HostId) -> bool {
        self.registry
            .drives()
            .give_up_changes(self.drive().as_ref(), host)
    }

    /// Returns the drive whose reservations it is under; `None`: it is not exported, and which
    /// drive it had is not known, of which a change may have outlived the export.
    fn drive(&self) -> Option<Arc<Drive>> {
        self.with_backing(|backing| backing.drive().cloned())?
    }

    /// Returns whether a change of reservations is being made that `host` has asked for.
    fn is_changing(&self, host: HostId) -> bool {
        self.registry
            .drives()
            .is_changing(self.drive().as_ref(), host)
    }

    /// Keeps a host out until [`Self::admit`], and ends its sessions. Returns when nothing of it
    /// can reach the drive or its reservations any more; fails with `EAGAIN` if that takes longer
    /// than [`EVICT_WAIT_MS`], or a change of reservations is being made for it: the host is
    /// evicted, and to ask again is to wait on. Fails with `ECANCELED` if the host was admitted
    /// meanwhile; with `ENOSPC` when too many are evicted, and with `ENOMEM`: then nothing has
    /// changed. Process context.
    pub(crate) fn evict(&self, host: HostId) -> Result {
        self.state.lock().hosts.evict(host)?;
        let of_host = |attachment: &Attachment| attachment.is_of(self) && attachment.host() == host;
        self.registry.end_attachments(EndReason::Evicted, &of_host);
        let ended = self.registry.wait_for_ends_within(EVICT_WAIT_MS, &of_host);
        let changing = self.give_up_changes(host);
        if !self.state.lock().hosts.is_evicted(host) {
            // It may have been let in since.
            return Err(errno::ecanceled());
        }
        match ended && !changing {
            true => Ok(()),
            false => Err(EAGAIN),
        }
    }

    /// Lets an evicted host in again, `ENOENT` if it is none.
    pub(crate) fn admit(&self, host: HostId) -> Result {
        self.state.lock().hosts.admit(host)
    }

    /// Returns the evicted hosts, each with whether it has sessions left. Fails with `ENOMEM`.
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

    /// Returns what matters for `request`, and for how it is proven, and the last epoch that its
    /// session had.
    pub(crate) fn admission(
        &self,
        request: &Request,
        proven: Proven,
    ) -> (admission::Volume, Option<Epoch>) {
        let state = self.state.lock();
        let has_key = |keys: &Keys| keys.count() != 0;
        let demands_proof =
            || !state.insecure || state.hosts.keys(request.host).is_some_and(has_key);
        let (host, instance) = (request.host, request.session.instance());
        let is_gone = |made: Made| {
            !state
                .hosts
                .keys(host)
                .is_some_and(|keys| keys.has(made.host))
        };
        let records = match &state.export {
            Export::Exported { records, .. } => Some(records),
            _ => None,
        };
        let volume = admission::Volume {
            unproven: !proven.is_proven() && demands_proof(),
            // A session of several volumes may have proven itself for others than this one.
            revoked: proven.made().is_some_and(is_gone)
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

    /// Remembers the epoch of the session that `request` has begun. Fails with `ESTALE` if the
    /// session had it or a later one, or was fenced with it, and with `ENODEV` if the volume is
    /// exported no longer.
    pub(crate) fn remember_epoch(&self, request: &Request) -> Result {
        match &self.state.lock().export {
            Export::Exported { records, .. } => {
                records.remember_epoch(request.host, request.session, request.epoch)
            }
            _ => Err(ENODEV),
        }
    }

    /// Lets no session `id` of `host` begin with `epoch` or one before, as long as the volume is
    /// exported, and ends the one that there is; returns whether nothing of it can reach the drive
    /// any more. May sleep.
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

    /// Makes the instance that `request` is of the newest of its host. `false`: a later one has
    /// come, or the host may not use the volume.
    pub(crate) fn enter(&self, request: &Request, proven: Proven) -> bool {
        let mut state = self.state.lock();
        let instance = request.session.instance();
        state.hosts.enter(request.host, instance, proven.number())
    }
}
