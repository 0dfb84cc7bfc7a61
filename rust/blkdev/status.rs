// SPDX-License-Identifier: GPL-2.0

//! Outcome of a request or a bio.
//!
//! C header: [`include/linux/blk_types.h`](srctree/include/linux/blk_types.h)

use crate::bindings;
use kernel::error::Error;

/// A `blk_status_t`: how a request or a bio ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok,
    /// The operation is not supported (`EOPNOTSUPP`).
    NotSupported,
    /// The device did not respond in time (`ETIMEDOUT`).
    Timeout,
    /// No space (`ENOSPC`).
    NoSpace,
    /// The path to the device failed (`ENOLINK`); another path may work.
    Transport,
    /// The device refused (`EREMOTEIO`).
    Target,
    /// The medium failed (`ENODATA`).
    Medium,
    /// Protection error (`EILSEQ`).
    Protection,
    /// From `queue_rq` only: short of memory or another resource; the block layer runs the queue
    /// again after a short while.
    Resource,
    /// Anything else (`EIO`).
    IoErr,
    /// From `queue_rq` only: a resource is missing that a request in flight will free; the block
    /// layer runs the queue again when a request of this hardware queue ends, or the driver does
    /// ([`Dispatch::run_hw_queue`](super::Dispatch::run_hw_queue)).
    DevResource,
    /// The device is gone (`ENODEV`).
    Offline,
    /// The request is malformed (`EINVAL`).
    Invalid,
    /// Another host's reservation is in the way (`EBADE`).
    Conflict,
    /// The request would have to wait, and must not (`EAGAIN`).
    Again,
}

impl Status {
    /// Returns the `blk_status_t`.
    #[inline]
    pub fn to_raw(self) -> bindings::blk_status_t {
        match self {
            Status::Ok => 0,
            Status::NotSupported => bindings::BLK_STS_NOTSUPP,
            Status::Timeout => bindings::BLK_STS_TIMEOUT,
            Status::NoSpace => bindings::BLK_STS_NOSPC,
            Status::Transport => bindings::BLK_STS_TRANSPORT,
            Status::Target => bindings::BLK_STS_TARGET,
            Status::Medium => bindings::BLK_STS_MEDIUM,
            Status::Protection => bindings::BLK_STS_PROTECTION,
            Status::Resource => bindings::BLK_STS_RESOURCE,
            Status::IoErr => bindings::BLK_STS_IOERR,
            Status::DevResource => bindings::BLK_STS_DEV_RESOURCE,
            Status::Offline => bindings::BLK_STS_OFFLINE,
            Status::Invalid => bindings::BLK_STS_INVAL,
            Status::Conflict => bindings::BLK_STS_RESV_CONFLICT,
            Status::Again => bindings::BLK_STS_AGAIN,
        }
    }

    /// Returns the error that users see: 0 or a negative errno. C: `blk_status_to_errno()`.
    pub fn to_errno(self) -> i32 {
        // SAFETY: No requirements.
        unsafe { bindings::blk_status_to_errno(self.to_raw()) }
    }

    /// Translates an error of the page cache or of a file system to that of a request. C:
    /// `errno_to_blk_status()`.
    pub fn from_error(error: Error) -> Self {
        // SAFETY: No requirements.
        Self::from_raw(unsafe { bindings::errno_to_blk_status(error.to_errno()) })
    }

    /// Translates a `blk_status_t`; a value without a name here becomes [`IoErr`](Status::IoErr).
    #[inline]
    pub fn from_raw(raw: bindings::blk_status_t) -> Self {
        match raw {
            0 => Status::Ok,
            bindings::BLK_STS_NOTSUPP => Status::NotSupported,
            bindings::BLK_STS_TIMEOUT => Status::Timeout,
            bindings::BLK_STS_NOSPC => Status::NoSpace,
            bindings::BLK_STS_TRANSPORT => Status::Transport,
            bindings::BLK_STS_TARGET => Status::Target,
            bindings::BLK_STS_MEDIUM => Status::Medium,
            bindings::BLK_STS_PROTECTION => Status::Protection,
            bindings::BLK_STS_RESOURCE => Status::Resource,
            bindings::BLK_STS_DEV_RESOURCE => Status::DevResource,
            bindings::BLK_STS_OFFLINE => Status::Offline,
            bindings::BLK_STS_INVAL => Status::Invalid,
            bindings::BLK_STS_RESV_CONFLICT => Status::Conflict,
            bindings::BLK_STS_AGAIN => Status::Again,
            _ => Status::IoErr,
        }
    }
}
