// SPDX-License-Identifier: GPL-2.0

//! The block layer, from both its sides.
//!
//! As a driver of disks ([`Operations`], [`Dispatch`], [`TagSet`], [`Disk`]):
//! [`kernel::block::mq`] has neither the hardware queue in `queue_rq`, nor
//! timeouts, limits, errors and driver data per request, so this is a layer of
//! our own over the same C interfaces, in the same manner.
//!
//! As a user of block devices ([`BlockDevice`], [`BioOwner`], [`submit`]), and of
//! files and the page cache ([`RegularFile`], [`FileOwner`], [`transfer`]).
//!
//! # Unsupported
//!
//! Shared tags, several disks on one tag set, zones, integrity, reserved tags,
//! `queue_rqs`, blocking `queue_rq`.
//!
//! C headers: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h),
//! [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h),
//! [`include/linux/bio.h`](srctree/include/linux/bio.h),
//! [`include/linux/fs.h`](srctree/include/linux/fs.h).

mod bdev;
mod bio;
mod by_age;
mod disk;
mod dispatch;
mod ending;
mod file;
mod held;
mod limits;
mod operations;
mod per_tag;
mod regular;
mod request;
mod reservations;
mod state_file;
mod status;
mod tag_set;

pub(crate) use self::held::HeldRequest;
pub use self::{
    bdev::BlockDevice,
    bio::{
        plugged,
        plugged_for,
        submit,
        BioOp,
        BioOwner,
        BioSlot, //
    },
    by_age::ByAge,
    disk::{
        Announcer,
        Disk,
        DiskOpeners,
        NewDisk,
        OpenMode, //
    },
    dispatch::{
        Dispatch, //
        ReplacedHwQueues,
    },
    ending::Ending,
    file::{
        transfer,
        DriveId,
        FileAccess, //
        FileId,
        FileOp,
        FileOwner,
        FileRef,
        FileSlot,
        WbErrCursor,
    },
    limits::{
        Limits,
        LiveLimits, //
    },
    operations::{
        Operations,
        Timeout, //
    },
    per_tag::{
        PerTag,
        TaggedRequest, //
    },
    regular::RegularFile,
    request::{
        Op,
        Rejected,
        Request,
        RequestRef,
        TimedOut, //
    },
    reservations::ReservationOps,
    state_file::{
        StateDirectory,
        StateFile, //
    },
    status::Status,
    tag_set::{
        TagSet,
        TagSetConfig, //
    },
};

/// Bytes of one sector, the unit of capacities and positions.
pub const SECTOR_SIZE: u32 = 512;
