// SPDX-License-Identifier: GPL-2.0

//! Where a request is: what the queue keeps for each tag, see the picture in `queue.rs`.

use super::transfer::Transfer;
use crate::{
    batching::Solicited,
    stats::Marks, //
};
use hcablk_core::{
    blkdev::Status,
    sglist::SegmentList, //
};

/// Where a request is, see the picture in `queue.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not given to the target.
    Idle,
    /// The target works on it.
    Sent {
        /// How its data moves.
        transfer: Transfer,
        /// Whether its response raises an event.
        solicited: Solicited,
    },
    /// The target has answered; its key is being taken away.
    Invalidating(Awaited),
    /// The target has answered; our HCA may still be sending the data.
    Answered(Awaited),
    /// It was to end while the target could reach its memory: it ends with the session.
    Kept,
}

/// What an answered request awaits: the completion of a work request of our own. Such requests are
/// a list, see `wr_seq.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Awaited {
    /// With what the request ends.
    pub(super) status: Status,
    /// Sequence number of the work request.
    pub(super) seq: u32,
    /// The next tag in the list.
    pub(super) next: u32,
}

/// What there is once for each tag.
pub(super) struct TagData {
    pub(super) phase: Phase,
    /// When it came where it is, if that is measured.
    pub(super) marks: Marks,
    /// The request's segments, in the state that its transfer demands.
    pub(super) list: SegmentList,
}

impl TagData {
    /// Makes the data of a tag whose requests have their segments in `list`.
    pub(super) fn new(list: SegmentList) -> Self {
        Self {
            phase: Phase::Idle,
            marks: Marks::default(),
            list,
        }
    }
}
