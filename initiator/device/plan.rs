// SPDX-License-Identifier: GPL-2.0

//! The starting point of attempts to connect a path, and the conditions that end them.

use super::{
    path::{
        Path,
        PathInfo, //
    },
    Settings, //
};
use crate::{
    failure::{
        ConnectStep, //
        Failure,
    },
    head::Head,
    session::{
        Attachment,
        VolumeInfo, //
    },
};
use hcablk_core::system::Deadline;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The starting point of an attempt.
pub(super) struct Plan {
    pub(super) path: Arc<Path>,
    pub(super) settings: Settings,
    pub(super) head: Arc<Head>,
    /// The disk's attachment to the path's last session.
    pub(super) lost: Option<Arc<Attachment>>,
    pub(super) volume: VolumeInfo,
    /// The path's `usage` count that the attempt is for.
    pub(super) usage: u32,
}

impl Plan {
    /// Returns whether the path still needs the session that this attempt is for.
    pub(super) fn is_for(&self, info: &PathInfo) -> bool {
        info.enabled && info.usage == self.usage && info.state.is_reconnecting()
    }

    /// Returns whether the RDMA device of the path's last session is being removed: the removal
    /// waits for that session to release it.
    pub(super) fn lacks_device(&self) -> bool {
        let lost = self.lost.as_ref();
        lost.is_some_and(|lost| lost.session().lacks_device())
    }

    /// Fails when an attempt that waits for a fence must end: when the path no longer needs this
    /// session, when the RDMA device is being removed, or when the disk is due for removal and
    /// `deadline`, the attempt's own time limit, has passed.
    pub(super) fn check_wanted(&self, deadline: Deadline) -> Result<(), Failure> {
        if !self.is_for(&self.path.info()) {
            return Err(Failure::Forced);
        }
        if self.lacks_device() {
            return Err(Failure::DeviceRemoved);
        }
        match self.head.loss().end {
            Some(end) if end.has_passed() && deadline.has_passed() => {
                Err(Failure::Timeout(ConnectStep::Response))
            }
            _ => Ok(()),
        }
    }

    /// Returns `volume` if its logical block size is that of the disk, which cannot change, and its
    /// requests may be at least as large as before.
    pub(super) fn check(&self, volume: VolumeInfo) -> Result<VolumeInfo, Failure> {
        let (geometry, former) = (volume.geometry, self.volume.geometry);
        if geometry.max_transfer < former.max_transfer {
            // The target has less memory now; that may pass.
            return Err(Failure::Setup(
                "a session for requests as large as before",
                ENOSPC,
            ));
        }
        // The disk follows all other changes. Until it has, the target makes each write stable, and
        // operations that the drive no longer has end as not supported.
        match geometry.logical_block_shift == former.logical_block_shift {
            true => Ok(volume),
            false => Err(Failure::OtherLimits),
        }
    }
}
