// SPDX-License-Identifier: GPL-2.0

//! How the data of a request moves. Each way has a file, which says which requests can go that way
//! and does what differs at each step of issuing one (`issue.rs`):
//!
//! | `Transfer` | file | the data moves by | it ends when |
//! |---|---|---|---|
//! | `None` | `no_data.rs` | | it is answered |
//! | `ReadBounce` | `read_bounce.rs` | the target's RDMA WRITE into a slot, and a copy | it is answered |
//! | `Inline` | `inline.rs` | the SEND of the request | it is answered and the SEND has completed |
//! | `Eager` | `eager.rs` | our RDMA WRITE into the eager ring | it is answered and the RDMA WRITE, or the SEND behind it, has completed |
//! | `Registered` | `registered.rs` | the target's RDMA READ or WRITE, by the request's own key | it is answered and the key is invalid |

use super::{
    Queue,
    SendState, //
};
use hcablk_core::{
    blkdev::{
        RequestRef,
        Status, //
    },
    broken,
    proto::message::{
        self,
        Extent,
        Tag, //
    },
    sglist::SegmentList,
};
use kernel::prelude::*;

mod eager;
mod inline;
mod no_data;
mod read_bounce;
mod registered;

pub(super) use eager::{
    EagerState,
    EagerWrite,
    RingFull, //
};
pub(super) use inline::InlineWrite;
pub(super) use no_data::NoData;
pub(super) use read_bounce::BounceRead;
pub(super) use registered::{
    Registered,
    INVALIDATE_SLOTS, //
};

/// How the data of a request moves that the target works on, with what only that way needs until
/// the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    /// There is none.
    None,
    /// It comes into the read bounce slot of the tag. The segment list is empty.
    ReadBounce,
    /// There is no data; the request is the flush of this number
    /// ([`Unflushed`](crate::unflushed::Unflushed)).
    Flush { number: u64 },
    /// It goes with the request, in the SEND of this sequence number. The segments are mapped.
    Inline { seq: u32 },
    /// It goes into a slot of the eager ring, whose number the answer names. The last work request
    /// has this sequence number. The segments are mapped.
    Eager { seq: u32 },
    /// By the target's RDMA. The segments are mapped and registered, and [`INVALIDATE_SLOTS`] of
    /// the send queue are reserved.
    Registered,
}

/// One request that is issued.
#[derive(Clone, Copy)]
pub(super) struct Issued {
    pub(super) tag: Tag,
    /// Its response need not raise an event.
    pub(super) quiet: bool,
    /// No other request follows at once.
    pub(super) last: bool,
}

/// A way for data to move: what differs by it when a request is issued, in the order of the calls.
/// The first is without the send lock, the others are under it.
pub(super) trait Way {
    /// What is taken under the lock besides a credit and send queue slots.
    type Reserved;
    /// That there is none of that; [`Infallible`](core::convert::Infallible) if there always is.
    type Full;
    /// What is posted, and may be the request's segments.
    type Encoded<'a>;

    /// Makes the request's memory ready, which leaves `list` empty on an error. Returns how many
    /// send queue slots the request needs, or with what status it is rejected.
    fn map(
        &mut self,
        queue: &Queue,
        view: RequestRef<'_>,
        list: &mut SegmentList,
        tag: Tag,
    ) -> Result<u32, Status>;

    /// Takes what it needs besides `slots`, which are reserved. An error means that the request has
    /// to go another way, or to wait.
    fn reserve(
        &self,
        queue: &Queue,
        send: &mut SendState,
        tag: Tag,
        slots: u32,
    ) -> Result<Self::Reserved, Self::Full>;

    /// Returns what is kept of it until the answer.
    fn transfer(reserved: &Self::Reserved) -> Transfer;

    /// Returns the number of an eager write, else 0.
    fn number(_reserved: &Self::Reserved) -> u16 {
        0
    }

    /// Encodes the request. An error ends the session.
    fn encode<'a>(
        &mut self,
        queue: &Queue,
        list: &'a mut SegmentList,
        issued: Issued,
    ) -> Result<Self::Encoded<'a>>;

    /// Returns what an encoded request says, for trace events.
    fn op(&self) -> message::Op;

    /// Posts it, or adds it to what waits for the doorbell. An error ends the session.
    fn post(
        &self,
        queue: &Queue,
        send: &mut SendState,
        reserved: Self::Reserved,
        encoded: Self::Encoded<'_>,
        issued: Issued,
    ) -> Result;
}

/// Returns which blocks a request with data is for.
#[inline]
pub(super) fn extent_of(view: RequestRef<'_>) -> Extent {
    Extent {
        offset: view.sector() << 9,
        length: view.bytes(),
    }
}

/// Returns with what status a request is rejected whose memory was not mapped because of `error`.
#[cold]
fn unmapped(error: Error) -> Status {
    match error == ENOMEM {
        // The IOMMU or bounce buffers are short; it will be tried again.
        true => Status::Resource,
        false => Status::IoErr,
    }
}

/// Gives back memory of a request, which the target cannot reach.
#[inline]
pub(super) fn give_back(list: &mut SegmentList) {
    if list.release().is_err() {
        not_given_back();
    }
}

#[cold]
#[inline(never)]
fn not_given_back() {
    broken!("memory that is given back is still registered");
}
