// SPDX-License-Identifier: GPL-2.0

//! Where a request is: what the queue keeps for each tag, see the picture in `queue.rs`.

use super::wr_seq;
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
    Sent,
    /// The target has answered; its key is being taken away.
    Invalidating(Status),
    /// The target has answered; our HCA may still be sending the data.
    Answered(Status),
}

/// What there is once for each tag.
pub(super) struct TagData {
    pub(super) phase: Phase,
    /// Slots reserved for this request that are still to be used.
    pub(super) slots: u32,
    /// The data comes into the read bounce slot of this tag.
    pub(super) read_bounce: bool,
    /// Whether its response raises an event.
    pub(super) solicited: Solicited,
    /// The data goes with the request, in the work request of `seq`.
    pub(super) sending: bool,
    /// Sequence number of the work request that must have completed before this request ends, if
    /// there is one.
    pub(super) seq: u32,
    /// The next tag in the list of requests that await their send's completion.
    pub(super) next: u32,
    /// When it came where it is, if that is measured.
    pub(super) marks: Marks,
    /// It is an eager write, which is answered by its number.
    pub(super) eager: bool,
    pub(super) list: SegmentList,
}

impl TagData {
    /// Makes the data of a tag whose requests have their segments in `list`.
    pub(super) fn new(list: SegmentList) -> Self {
        Self {
            phase: Phase::Idle,
            slots: 0,
            read_bounce: false,
            solicited: Solicited::Yes,
            sending: false,
            seq: 0,
            next: wr_seq::NO_TAG,
            marks: Marks::default(),
            eager: false,
            list,
        }
    }
}
