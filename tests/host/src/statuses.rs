// SPDX-License-Identifier: GPL-2.0

//! Checks the initiator's error for the block layer for each status on the wire, against the table
//! in `docs/reference/protocol.md`. Test data/error-kinds checks those that a drive can cause.

use crate::proto::message;
use blkdev::Status;

/// The parts of the core's block layer that the initiator's pure files use.
pub(crate) mod blkdev {
    /// See `rust/blkdev/disk.rs`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct OpenMode {
        pub(crate) writes: bool,
        pub(crate) exclusive: bool,
    }

    /// The block layer's statuses that correspond to those of responses.
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) enum Status {
        Ok,
        NotSupported,
        NoSpace,
        Medium,
        Protection,
        IoErr,
        Conflict,
    }
}

#[path = "../../../initiator/io/status.rs"]
mod initiator;

#[test]
fn each_status_on_the_wire_but_gone_is_one_of_the_block_layer() {
    let wanted = [
        Some(Status::Ok),
        Some(Status::IoErr),
        Some(Status::NotSupported),
        Some(Status::IoErr),
        Some(Status::Protection),
        Some(Status::IoErr),
        Some(Status::NoSpace),
        Some(Status::Medium),
        None,
        Some(Status::IoErr),
        Some(Status::Conflict),
    ];
    for (value, wanted) in wanted.into_iter().enumerate() {
        let status = message::Status::from_wire(value as u16).unwrap();
        assert_eq!(initiator::to_block(status), wanted, "{value}");
    }
    assert_eq!(message::Status::from_wire(11), None, "this test lacks a row");
}
