// SPDX-License-Identifier: GPL-2.0

//! The ways in which the data of a request moves. A way decides which requests can take it, and
//! does what differs at each step of issuing one ([`issue`](super::issue)):
//!
//! | `Transfer` | way | what moves the data | the request ends when |
//! |---|---|---|---|
//! | `None`, `Flush` | [`MessageOnly`] | there is none | it is answered |
//! | `ReadBounce` | [`MessageOnly`] | the target's RDMA WRITE into a slot, and a copy | it is answered |
//! | `Inline` | [`InlineWrite`] | the SEND of the request | it is answered and the SEND has completed |
//! | `Eager` | [`EagerWrite`](super::eager) | our RDMA WRITE into the eager ring | it is answered and the RDMA WRITE, or the SEND behind it, has completed |
//! | `Registered` | [`Registered`](super::registered) | the target's RDMA READ or WRITE, with the request's own key | it is answered and the key is invalid |

use super::{
    queue::Queue,
    registered::remote_for,
    send_queue::{
        SendState,
        WrSeq, //
    },
};
use crate::shape::INLINE_SEGMENTS;
use core::convert::Infallible;
use hcablk_core::{
    blkdev::{
        Op,
        RequestRef,
        Status, //
    },
    broken,
    proto::message::{
        self,
        Answer,
        Extent,
        Tag, //
    },
    rdma::{
        device::Direction,
        wr::{
            Send,
            Sge, //
        },
    },
    sglist::SegmentList,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
};
use kernel::prelude::*;

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

/// What a queue's writes may be, by the way that their data goes. What the target says of that is
/// set before the queue is live.
pub(super) struct WriteLimits {
    /// Bytes of the largest write whose data goes with the request.
    inline: Atomic<u32>,
    /// Segments that such a write may have, and that one work request takes besides a message.
    segments: u16,
    /// Bytes of the largest eager write.
    eager: Atomic<u32>,
    /// The target posts no RDMA READ.
    only_eager: Atomic<bool>,
    /// The transport knows RDMA WRITEs with an immediate value.
    immediates: bool,
}

impl WriteLimits {
    /// Makes those of a queue whose writes are all registered.
    pub(super) const fn new(segments: u16, immediates: bool) -> Self {
        Self {
            inline: Atomic::new(0),
            segments,
            eager: Atomic::new(0),
            only_eager: Atomic::new(false),
            immediates,
        }
    }

    /// Sets how many bytes may go with a request.
    pub(super) fn set_inline(&self, bytes: u32) {
        self.inline.store(bytes, Relaxed);
    }

    /// Sets how many bytes an eager write may have.
    pub(super) fn set_eager(&self, bytes: u32) {
        self.eager.store(bytes, Relaxed);
    }

    /// Sets whether there is no other way than the eager one.
    pub(super) fn set_only_eager(&self, only: bool) {
        self.only_eager.store(only, Relaxed);
    }

    /// Returns how many segments one work request takes besides a message.
    #[inline(always)]
    pub(super) fn segments(&self) -> usize {
        self.segments.into()
    }

    /// Returns whether the data of a write of so many bytes may go with the request.
    #[inline(always)]
    pub(super) fn takes_inline(&self, bytes: u32) -> bool {
        bytes <= self.inline.load(Relaxed)
    }

    /// Returns whether a write of so many bytes may be an eager one.
    #[inline(always)]
    pub(super) fn takes_eager(&self, bytes: u32) -> bool {
        bytes <= self.eager.load(Relaxed)
    }

    /// Returns whether one work request takes the segments of a request besides a message.
    #[inline(always)]
    pub(super) fn is_few(&self, view: RequestRef<'_>) -> bool {
        view.segments() <= self.segments
    }

    /// Returns whether there is no other way than the eager one.
    pub(super) fn is_only_eager(&self) -> bool {
        self.only_eager.load(Relaxed)
    }

    /// Returns whether the transport knows RDMA WRITEs with an immediate value.
    #[inline(always)]
    pub(super) fn knows_immediates(&self) -> bool {
        self.immediates
    }
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
pub(super) fn unmapped(error: Error) -> Status {
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

/// A request that is one message, whose memory is not mapped: it has no data, or is a small read
/// into the read bounce slot of its tag.
///
/// A read of up to `small_read` bytes goes out as a SEND that names the slot. The target's response
/// is an RDMA WRITE to the slot, whose immediate value is the response. The completion handler
/// checks that the request asked for that, and copies the data. Nothing is invalidated, so the
/// request ends at once.
pub(super) struct MessageOnly(message::Op);

impl MessageOnly {
    /// Returns how a request without data goes; `None`: it has data, or there is no such operation.
    #[inline]
    pub(super) fn plan(view: RequestRef<'_>) -> Option<Self> {
        Some(Self(match view.op() {
            Op::Flush => message::Op::Flush,
            Op::Discard => message::Op::Discard(extent_of(view)),
            Op::WriteZeroes => message::Op::WriteZeroes {
                extent: extent_of(view),
                keep: view.no_unmap(),
            },
            _ => return None,
        }))
    }

    /// Returns how a small read goes; `None`: it has no slot.
    #[inline]
    pub(super) fn plan_read(queue: &Queue, view: RequestRef<'_>) -> Option<Self> {
        let extent = extent_of(view);
        let slots = queue.read_bounce.as_ref()?;
        let remote = slots.remote(view.tag(), extent.length)?;
        let remote = remote_for(remote, Answer::Immediate);
        Some(Self(message::Op::Read(extent, remote)))
    }
}

// What is known of the operation where one is issued leaves little of these.
impl Way for MessageOnly {
    type Reserved = Transfer;
    type Full = Infallible;
    type Encoded<'a> = Sge;

    #[inline(always)]
    fn map(
        &mut self,
        _queue: &Queue,
        _view: RequestRef<'_>,
        _list: &mut SegmentList,
        _tag: Tag,
    ) -> Result<u32, Status> {
        Ok(1)
    }

    #[inline(always)]
    fn reserve(
        &self,
        queue: &Queue,
        _: &mut SendState,
        _: Tag,
        _: u32,
    ) -> Result<Transfer, Infallible> {
        Ok(match self.0 {
            message::Op::Read(..) => Transfer::ReadBounce,
            message::Op::Flush => match queue.flushes.begin_flush() {
                // It covers nothing.
                0 => Transfer::None,
                number => Transfer::Flush { number },
            },
            _ => Transfer::None,
        })
    }

    #[inline]
    fn transfer(transfer: &Transfer) -> Transfer {
        *transfer
    }

    #[inline(always)]
    fn encode<'a>(
        &mut self,
        queue: &Queue,
        _list: &'a mut SegmentList,
        issued: Issued,
    ) -> Result<Sge> {
        queue.encode(issued, self.0)
    }

    #[inline(always)]
    fn op(&self) -> message::Op {
        self.0
    }

    #[inline(always)]
    fn post(
        &self,
        queue: &Queue,
        send: &mut SendState,
        _: Transfer,
        message: Sge,
        issued: Issued,
    ) -> Result {
        queue.post_message(send, issued, message, None)
    }
}

impl Queue {
    /// Copies the data of an answered read out of its slot. Returns with what status it ends.
    #[inline]
    pub(super) fn copy_bounced(&self, view: RequestRef<'_>, status: Status) -> Status {
        let (Status::Ok, Some(slots)) = (status, &self.read_bounce) else {
            return status;
        };
        match slots.copy_to_request(view.tag(), view) {
            Ok(()) => {
                self.done.copied_bytes.add(view.bytes().into());
                Status::Ok
            }
            // Not reached: what does not fit has no slot.
            Err(_) => Status::IoErr,
        }
    }
}

/// An inline write: its data follows the request's message in one SEND. For writes of up to
/// `small_write` bytes (the target's limit) in few segments, which are mapped for the HCA but not
/// registered. It ends when it was answered *and* that SEND has completed
/// ([`WrSeq`](super::send_queue::WrSeq)): until then the HCA may send the memory once more.
pub(super) struct InlineWrite {
    extent: Extent,
    fua: bool,
}

impl InlineWrite {
    /// Returns how a write goes, `None` if it is too large, or in too many segments.
    #[inline]
    pub(super) fn plan(queue: &Queue, view: RequestRef<'_>) -> Option<Self> {
        let fits = queue.limits.takes_inline(view.bytes()) && queue.limits.is_few(view);
        fits.then(|| Self {
            extent: extent_of(view),
            fua: view.fua(),
        })
    }
}

impl Way for InlineWrite {
    type Reserved = WrSeq;
    type Full = Infallible;
    type Encoded<'a> = (Sge, &'a mut SegmentList);

    #[inline]
    fn map(
        &mut self,
        _queue: &Queue,
        view: RequestRef<'_>,
        list: &mut SegmentList,
        _tag: Tag,
    ) -> Result<u32, Status> {
        list.map_local(view, Direction::ToDevice)
            .map_err(unmapped)?;
        Ok(1)
    }

    #[inline]
    fn reserve(
        &self,
        _queue: &Queue,
        send: &mut SendState,
        _tag: Tag,
        slots: u32,
    ) -> Result<WrSeq, Infallible> {
        Ok(send.next_seq(slots))
    }

    #[inline]
    fn transfer(wr_seq: &WrSeq) -> Transfer {
        Transfer::Inline { seq: wr_seq.seq }
    }

    #[inline]
    fn encode<'a>(
        &mut self,
        queue: &Queue,
        list: &'a mut SegmentList,
        issued: Issued,
    ) -> Result<Self::Encoded<'a>> {
        Ok((queue.encode(issued, self.op())?, list))
    }

    #[inline(always)]
    fn op(&self) -> message::Op {
        let Self { extent, fua } = *self;
        message::Op::WriteInline { extent, fua }
    }

    #[inline]
    fn post(
        &self,
        queue: &Queue,
        send: &mut SendState,
        wr_seq: WrSeq,
        (message, list): Self::Encoded<'_>,
        issued: Issued,
    ) -> Result {
        let mut sges = [Sge::EMPTY; INLINE_SEGMENTS + 1];
        sges[0] = message;
        let count = list.sges(&mut sges[1..]).ok_or(EINVAL)?;
        queue.sent.inline_writes.bump();
        queue.sent.sends.bump();
        queue.sent.rdma_bytes.add(self.extent.length.into());
        queue.post_or_queue(send, wr_seq, !issued.last, || {
            let mut wr = Send::new(sges.get(..=count).unwrap_or(&[]));
            wr.solicited();
            wr
        })
    }
}
