// SPDX-License-Identifier: GPL-2.0

//! Persistent reservations as users of a disk request them, with `ioctl`s or through another block
//! driver.
//!
//! C headers: [`include/linux/pr.h`](srctree/include/linux/pr.h),
//! [`block/ioctl.c`](srctree/block/ioctl.c)

use super::disk::Shared;
use crate::{
    bindings,
    proto::message::{
        ReservationInfo,
        ReservationOp,
        ReservationType,
        Status, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// `PR_STS_RESERVATION_CONFLICT`, which is not an error code.
const CONFLICT: c_int = 0x18;

/// Carries out the reservation commands of a disk's users. All functions may sleep.
pub trait ReservationOps: Send + Sync + 'static {
    /// Makes a change; returns its status.
    fn change(&self, op: ReservationOp) -> Result<Status>;

    /// Returns the key of registrant `index`, or the reservation if `index` is `None`.
    fn read(&self, index: Option<u32>) -> Result<ReservationInfo>;
}

/// Returns the reservation operations of a disk.
///
/// # Safety
///
/// `disk` is open and ours.
unsafe fn ops_of(disk: *mut bindings::gendisk) -> Result<Arc<dyn ReservationOps>> {
    // SAFETY: `private_data` is set before the disk can be opened and lives until `free_disk`.
    let shared = unsafe { &*(*disk).private_data.cast::<Shared>() };
    shared
        .reservations()
        .ok_or(crate::system::errno::eopnotsupp())
}

fn op_of(what: u32, key: u64, other: u64, how: u32, flag: bool) -> Result<ReservationOp> {
    let how = || ReservationType::from_wire(how).ok_or(EINVAL);
    Ok(match what {
        0 => ReservationOp::Register {
            key,
            new: other,
            ignore: flag,
        },
        1 => ReservationOp::Reserve { key, how: how()? },
        2 => ReservationOp::Release { key, how: how()? },
        3 => ReservationOp::Preempt {
            key,
            victim: other,
            how: how()?,
            abort: flag,
        },
        4 => ReservationOp::Clear { key },
        _ => return Err(EINVAL),
    })
}

/// Makes a change: 0 registers, 1 reserves, 2 releases, 3 preempts, 4 clears. Returns 0, a negative
/// error code, or `PR_STS_RESERVATION_CONFLICT`, as the functions of `pr_ops` do.
///
/// # Safety
///
/// Called by `block_helpers.c` for a disk of ours that is open.
#[no_mangle]
unsafe extern "C" fn hcablk_rs_pr_change(
    disk: *mut bindings::gendisk,
    what: u32,
    key: u64,
    other: u64,
    how: u32,
    flag: bool,
) -> c_int {
    // SAFETY: By the safety requirement.
    let ended = unsafe { ops_of(disk) }
        .and_then(|ops| op_of(what, key, other, how, flag).and_then(|op| ops.change(op)));
    match ended {
        Ok(Status::Ok) => 0,
        Ok(Status::Conflict) => CONFLICT,
        Ok(Status::Unsupported) => crate::system::errno::eopnotsupp().to_errno(),
        Ok(Status::NoSpace) => ENOSPC.to_errno(),
        Ok(Status::Invalid) => EINVAL.to_errno(),
        Ok(_) => EIO.to_errno(),
        Err(e) => e.to_errno(),
    }
}

/// Reads the key of registrant `index` or, if `whole`, the reservation.
///
/// # Safety
///
/// Called by `block_helpers.c` for a disk of ours that is open; the pointers are valid for
/// the call.
#[no_mangle]
unsafe extern "C" fn hcablk_rs_pr_read(
    disk: *mut bindings::gendisk,
    whole: bool,
    index: u32,
    generation: *mut u32,
    number: *mut u32,
    key: *mut u64,
) -> c_int {
    // SAFETY: By the safety requirement.
    let read = unsafe { ops_of(disk) }.and_then(|ops| ops.read((!whole).then_some(index)));
    match read {
        Ok(info) => {
            // SAFETY: By the safety requirement.
            unsafe {
                *generation = info.generation;
                *number = info.number.into();
                *key = info.key;
            }
            0
        }
        Err(e) => e.to_errno(),
    }
}
