// SPDX-License-Identifier: GPL-2.0

//! What attempts to connect a path start from, and when they are not to go on.

use super::{
    path::{
        Path,
        PathInfo, //
    },
    Settings, //
};
use crate::{
    failure::{
        Failure,
        Step, //
    },
    head::Head,
    session::{
        Session,
        VolumeInfo, //
    },
};
use hcablk_core::system::Deadline;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// What an attempt starts from.
pub(super) struct Plan {
    pub(super) path: Arc<Path>,
    pub(super) settings: Settings,
    pub(super) head: Arc<Head>,
    /// The path's last session.
    pub(super) lost: Option<Arc<Session>>,
    pub(super) volume: VolumeInfo,
    /// Which use of the path it is for.
    pub(super) usage: u32,
}

impl Plan {
    /// Returns whether the path, as it was when this was made, still is to get a session.
    pub(super) fn is_for(&self, info: &PathInfo) -> bool {
        info.enabled && info.usage == self.usage && info.state.is_reconnecting()
    }

    /// Returns whether the RDMA device of the path's last session goes away: it waits for what that
    /// still has.
    pub(super) fn lacks_device(&self) -> bool {
        self.lost.as_ref().is_some_and(|lost| lost.lacks_device())
    }

    /// Fails when an attempt that waits for a fence has to end: when the disk is to go, but not
    /// before `deadline`, until which the attempt may take in any case.
    pub(super) fn goes_on(&self, deadline: Deadline) -> Result<(), Failure> {
        if !self.is_for(&self.path.info()) {
            return Err(Failure::Forced);
        }
        if self.lacks_device() {
            return Err(Failure::DeviceRemoved);
        }
        match self.head.loss().end {
            Some(end) if end.has_passed() && deadline.has_passed() => {
                Err(Failure::Timeout(Step::Answer))
            }
            _ => Ok(()),
        }
    }

    /// Returns `volume` if it keeps what nothing can follow: the logical block size. Requests may
    /// be larger.
    pub(super) fn check(&self, volume: VolumeInfo) -> Result<VolumeInfo, Failure> {
        let (geometry, former) = (volume.geometry, self.volume.geometry);
        if geometry.max_transfer < former.max_transfer {
            // The target has less memory left; that may pass.
            return Err(Failure::Setup("requests as large as before", ENOSPC));
        }
        // All else the disk follows; until it does, the target makes each write stable, and what
        // the drive cannot do ends as not supported.
        match geometry.logical_block_shift == former.logical_block_shift {
            true => Ok(volume),
            false => Err(Failure::OtherLimits),
        }
    }
}
