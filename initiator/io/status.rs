// SPDX-License-Identifier: GPL-2.0

//! Translates a response's status for the block layer. A table: its test runs on the host.

use hcablk_core::{
    blkdev::Status,
    proto::message, //
};

/// Converts a status on the wire to the block layer's. Returns `None` for `Gone`, which says
/// nothing about the request: the volume has left the session, and the request may succeed over
/// another path, or in the next session.
#[inline(always)]
pub(super) fn to_block(status: message::Status) -> Option<Status> {
    Some(match status {
        message::Status::Ok => Status::Ok,
        message::Status::Unsupported => Status::NotSupported,
        message::Status::ReadOnly => Status::Protection,
        message::Status::NoSpace => Status::NoSpace,
        message::Status::Medium => Status::Medium,
        message::Status::Gone => return None,
        message::Status::Conflict => Status::Conflict,
        // `Invalid` is the status of a malformed message: no request of the block layer is encoded
        // as one.
        message::Status::Invalid
        | message::Status::OutOfRange
        | message::Status::IoError
        | message::Status::Draining => Status::IoErr,
    })
}
