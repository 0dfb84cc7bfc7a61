// SPDX-License-Identifier: GPL-2.0

//! The disk of a session: what the block layer is told of the volume.

use super::Device;
use crate::{
    failure::{
        Failure,
        Violation, //
    },
    head::Head,
    queue::Driver,
    session::{
        Session,
        VolumeInfo, //
    },
};
use core::fmt;
use hcablk_core::{
    blkdev::{
        Disk,
        Limits,
        TagSet,
        TagSetConfig, //
    },
    rdma::mr::REGION_PAGE,
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Prefix of the disks' names.
pub(crate) const DISK_PREFIX: &CStr = c"hcablk";

impl Device {
    /// Makes the disk of `session`, with the limits that `geometry` and the device have. Sleeps.
    pub(super) fn add_disk(
        &self,
        session: &Arc<Session>,
        head: &Arc<Head>,
        volume: &VolumeInfo,
    ) -> Result<Disk<Driver>> {
        let (settings, geometry) = (session.settings(), &volume.geometry);
        let config = TagSetConfig {
            timeout_ms: settings.io_timeout_s.saturating_mul(1000),
            numa_node: None,
            no_scheduler: false,
            poll_queues: settings.poll_queues.into(),
        };
        let tag_set = TagSet::new(&config, session.requests(), head.first().clone())?;
        let bytes = session.shape().bytes.min(geometry.max_transfer);
        if bytes >> 10 < settings.max_io_kib {
            pr_info!(
                "{self}: requests of {} KiB at most, not of {} KiB: {} has no more\n",
                bytes >> 10,
                settings.max_io_kib,
                if bytes < session.shape().bytes {
                    "the target"
                } else {
                    "the RDMA device"
                }
            );
        }
        let limits = Limits {
            logical_block_size: 1 << geometry.logical_block_shift,
            physical_block_size: 1 << geometry.physical_block_shift,
            max_hw_sectors: bytes >> 9,
            max_segments: session.shape().segments,
            // A region's pages are whole, but for the first and the last.
            virt_boundary_mask: u64::from(REGION_PAGE - 1),
            dma_alignment: 3,
            write_cache: geometry.write_cache,
            fua: geometry.fua,
            max_discard_sectors: geometry.max_discard >> 9,
            discard_granularity: geometry.discard_granularity,
            max_write_zeroes_sectors: geometry.max_zeroes >> 9,
            ..Limits::default()
        };
        Disk::add(
            DISK_PREFIX,
            &tag_set,
            &limits,
            geometry.capacity >> 9,
            geometry.read_only,
            volume
                .wwid
                .as_ref()
                .map(|wwid| -> &dyn fmt::Display { wwid }),
            self.module,
        )
    }

    /// Resizes the disk to the volume's `sectors` of 512 bytes, as the target has sent. Does
    /// nothing while the device is busy with something else, since the target will send it again.
    /// Process context.
    pub(super) fn resize(&self, session: &Session, sectors: u64) {
        let Some(control) = self.control.try_lock() else {
            return;
        };
        let Some(active) = control.active.as_ref() else {
            return;
        };
        if !core::ptr::eq(&*active.session, session) || active.disk.capacity() == sectors {
            return;
        }
        if sectors > (i64::MAX >> 9) as u64 || (sectors << 9) & active.block_mask() != 0 {
            return active.session.fail(Failure::Protocol(Violation::new(
                "the size that it told is none",
                Some(0),
            )));
        }
        pr_info!("{self}: the volume has {sectors} sectors now\n");
        active.disk.set_capacity_and_notify(sectors);
    }
}
