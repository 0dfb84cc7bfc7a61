// SPDX-License-Identifier: GPL-2.0

//! The data paths of requests. A data path decides which requests it takes, and implements the
//! steps of issuing that differ between data paths ([`issue`](super::issue)):
//!
//! | `DataPath` | [`IssuePath`] | what moves the data | the request ends when |
//! |---|---|---|---|
//! | `None`, `Flush` | [`MessageOnly`] | no data | the response came |
//! | `ReadBounce` | [`MessageOnly`] | the target's RDMA WRITE into a slot, and a copy | the response came |
//! | `Inline` | [`InlineWrite`] | the SEND of the request | the response came and the SEND has completed |
//! | `Eager` | [`EagerWrite`](super::eager) | our RDMA WRITE into the eager ring | the response came and the RDMA WRITE, or the SEND after it, has completed |
//! | `Registered` | [`Registered`](super::registered) | the target's RDMA READ or WRITE, with the request's own key | the response came and the key is invalid |
//!
//! Behind an IOMMU that translates, inline and eager writes of up to 4 KiB are sent from the
//! write bounce slot of their tag, into which their data is copied
//! ([`sglist`](hcablk_core::sglist)). Nothing else is different: they end at the same time, since
//! the slot must not change before the work request has completed.

use super::{
    queue::Queue,
    registered::remote_for,
    send_queue::{
        SendState,
        WrSeq, //
    },
    user::QueueUser,
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
        Extent,
        Handle,
        ResponseKind,
        Tag, //
    },
    rdma::wr::{
        Send,
        Sge, //
    },
    sglist::SegmentList,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
};
use kernel::prelude::*;

/// The data path of a request that the target works on, with the state that this path needs until
/// the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataPath {
    /// The request has no data.
    None,
    /// The target writes the data into the tag's read bounce slot. The segment list is empty.
    ReadBounce,
    /// No data; the request is the flush with this number
    /// ([`Unflushed`](crate::unflushed::Unflushed)).
    Flush { number: u64 },
    /// The SEND with this sequence number carries the data. The segments are mapped.
    Inline { seq: u32 },
    /// The data is in a slot of the eager ring, whose number the response names. The last work
    /// request has this sequence number. The segments are mapped.
    Eager { seq: u32 },
    /// The target's RDMA moves the data. The segments are mapped and registered, and
    /// [`INVALIDATE_SLOTS`] of the send queue are reserved.
    Registered,
}

/// The limits of a queue's writes for each data path. The target's limits are set before the queue
/// is live.
pub(super) struct WriteLimits {
    /// Bytes of the largest inline write.
    inline: Atomic<u32>,
    /// The most segments of an inline write; a work request takes that many besides a message.
    segments: u16,
    /// Bytes of the largest eager write.
    eager: Atomic<u32>,
    /// The target posts no RDMA READ.
    only_eager: Atomic<bool>,
    /// The transport knows RDMA WRITEs with an immediate value.
    immediates: bool,
}

impl WriteLimits {
    /// Creates the limits of a queue whose writes are all registered.
    pub(super) const fn new(segments: u16, immediates: bool) -> Self {
        Self {
            inline: Atomic::new(0),
            segments,
            eager: Atomic::new(0),
            only_eager: Atomic::new(false),
            immediates,
        }
    }

    /// Sets how many bytes an inline write may have.
    pub(super) fn set_inline(&self, bytes: u32) {
        self.inline.store(bytes, Relaxed);
    }

    /// Sets how many bytes an eager write may have.
    pub(super) fn set_eager(&self, bytes: u32) {
        self.eager.store(bytes, Relaxed);
    }

    /// Sets whether eager writes are the only data path for writes.
    pub(super) fn set_only_eager(&self, only: bool) {
        self.only_eager.store(only, Relaxed);
    }

    /// Returns how many segments one work request takes besides a message.
    #[inline(always)]
    pub(super) fn segments(&self) -> usize {
        self.segments.into()
    }

    /// Returns whether a write of `bytes` bytes may be an inline one.
    #[inline(always)]
    pub(super) fn takes_inline(&self, bytes: u32) -> bool {
        bytes <= self.inline.load(Relaxed)
    }

    /// Returns whether a write of `bytes` bytes may be an eager one.
    #[inline(always)]
    pub(super) fn takes_eager(&self, bytes: u32) -> bool {
        bytes <= self.eager.load(Relaxed)
    }

    /// Returns whether a request's segments fit in one work request besides a message.
    #[inline(always)]
    pub(super) fn is_few(&self, view: RequestRef<'_>) -> bool {
        view.segments() <= self.segments
    }

    /// Returns whether eager writes are the only data path for writes.
    pub(super) fn is_only_eager(&self) -> bool {
        self.only_eager.load(Relaxed)
    }

    /// Returns whether a write may be one RDMA WRITE with an immediate value.
    #[inline(always)]
    pub(super) fn knows_immediates(&self) -> bool {
        self.immediates
    }
}

/// A request that is being issued.
#[derive(Clone, Copy)]
pub(super) struct Issued {
    pub(super) tag: Tag,
    /// The handle of its volume.
    pub(super) volume: Handle,
    /// Its response need not raise an event.
    pub(super) quiet: bool,
    /// No other request follows at once.
    pub(super) last: bool,
}

/// A data path: the steps of issuing that differ between data paths, in the order of the calls.
/// `map` runs without the send lock, the others under it.
pub(super) trait IssuePath {
    /// The resources taken under the lock besides a credit and send queue slots.
    type Reserved;
    /// The error when these resources are used up; [`Infallible`](core::convert::Infallible) if
    /// they never are.
    type Full;
    /// The encoded request to post, with the request's segments if posting needs them.
    type Encoded<'a>;

    /// Prepares the request's memory; leaves `list` empty on an error. Returns the number of send
    /// queue slots that the request needs, or the status with which it is rejected.
    fn map(
        &mut self,
        queue: &Queue,
        view: RequestRef<'_>,
        list: &mut SegmentList,
        tag: Tag,
    ) -> Result<u32, Status>;

    /// Takes the resources that the data path needs besides `slots`, which are reserved. On an
    /// error the request must use another data path, or wait.
    fn reserve(
        &self,
        from: (&Queue, &QueueUser),
        send: &mut SendState,
        tag: Tag,
        slots: u32,
    ) -> Result<Self::Reserved, Self::Full>;

    /// Returns the state that the request keeps until its response.
    fn data_path(reserved: &Self::Reserved) -> DataPath;

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

    /// Returns the operation of an encoded request, for trace events.
    fn op(&self) -> message::Op;

    /// Posts the request, or adds it to the backlog. An error ends the session.
    fn post(
        &self,
        queue: &Queue,
        send: &mut SendState,
        reserved: Self::Reserved,
        encoded: Self::Encoded<'_>,
        issued: Issued,
    ) -> Result;
}

/// Returns the blocks of a request with data.
#[inline]
pub(super) fn extent_of(view: RequestRef<'_>) -> Extent {
    Extent {
        offset: view.sector() << 9,
        length: view.bytes(),
    }
}

/// Returns the status with which a request is rejected because mapping its memory failed with
/// `error`.
#[cold]
pub(super) fn unmapped(error: Error) -> Status {
    match error == ENOMEM {
        // The IOMMU or the bounce buffers are short of memory; the block layer tries again.
        true => Status::Resource,
        false => Status::IoErr,
    }
}

/// Releases memory of a request, which the target can no longer reach.
#[inline]
pub(super) fn give_back(list: &mut SegmentList) {
    if list.release().is_err() {
        not_given_back();
    }
}

#[cold]
#[inline(never)]
fn not_given_back() {
    broken!("released memory is still registered");
}

/// A request that is one message, whose memory is not mapped: it has no data, or is a small read
/// into the read bounce slot of its tag.
///
/// A read of up to `small_read` bytes goes out as a SEND that names the slot. The target's response
/// is an RDMA WRITE to the slot, whose immediate value is the response. The completion handler
/// checks that the request asked for that, and copies the data. No key needs invalidation, so the
/// request ends at once.
pub(super) struct MessageOnly(message::Op);

impl MessageOnly {
    /// Returns the plan of a request without data; `None`: it has data, or an unsupported
    /// operation.
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

    /// Returns the plan of a small read; `None`: its tag has no slot.
    #[inline]
    pub(super) fn plan_read(queue: &Queue, view: RequestRef<'_>) -> Option<Self> {
        let extent = extent_of(view);
        let slots = queue.read_bounce.as_ref()?;
        let remote = slots.remote(view.tag(), extent.length)?;
        let remote = remote_for(remote, ResponseKind::Immediate);
        Some(Self(message::Op::Read(extent, remote)))
    }
}

// `inline(always)` on most of these: the operation is constant at the call, so they fold away.
impl IssuePath for MessageOnly {
    type Reserved = DataPath;
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
        (_, user): (&Queue, &QueueUser),
        _: &mut SendState,
        _: Tag,
        _: u32,
    ) -> Result<DataPath, Infallible> {
        Ok(match self.0 {
            message::Op::Read(..) => DataPath::ReadBounce,
            message::Op::Flush => match user.begin_flush() {
                // This flush covers no write.
                0 => DataPath::None,
                number => DataPath::Flush { number },
            },
            _ => DataPath::None,
        })
    }

    #[inline]
    fn data_path(data_path: &DataPath) -> DataPath {
        *data_path
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
        _: DataPath,
        message: Sge,
        issued: Issued,
    ) -> Result {
        queue.post_message(send, issued, message, None)
    }
}

impl Queue {
    /// Copies the data of a read with its response out of its slot. Returns the status with which
    /// the read ends.
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
            // Not reached: a read that does not fit has no slot.
            Err(_) => Status::IoErr,
        }
    }
}

/// An inline write: its data follows the request's message in one SEND. For writes of up to
/// `small_write` bytes (the target's limit) in few segments, which are mapped for the HCA but not
/// registered, or copied into the tag's write bounce slot. It ends after its response *and* the
/// completion of that SEND ([`WrSeq`](super::send_queue::WrSeq)): until then the HCA may send the
/// memory once more.
pub(super) struct InlineWrite {
    extent: Extent,
    fua: bool,
}

impl InlineWrite {
    /// Returns the plan of a write, `None` if it is too large, or has too many segments.
    #[inline]
    pub(super) fn plan(queue: &Queue, view: RequestRef<'_>) -> Option<Self> {
        let fits = queue.limits.takes_inline(view.bytes()) && queue.limits.is_few(view);
        fits.then(|| Self {
            extent: extent_of(view),
            fua: view.fua(),
        })
    }
}

impl IssuePath for InlineWrite {
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
        list.map_or_copy(view).map_err(unmapped)?;
        Ok(1)
    }

    #[inline]
    fn reserve(
        &self,
        _: (&Queue, &QueueUser),
        send: &mut SendState,
        _tag: Tag,
        slots: u32,
    ) -> Result<WrSeq, Infallible> {
        Ok(send.next_seq(slots))
    }

    #[inline]
    fn data_path(wr_seq: &WrSeq) -> DataPath {
        DataPath::Inline { seq: wr_seq.seq }
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
        if !list.is_copied() {
            queue.sent.rdma_bytes.add(self.extent.length.into());
        }
        queue.post_or_queue(send, wr_seq, !issued.last, || {
            let mut wr = Send::new(sges.get(..=count).unwrap_or(&[]));
            wr.solicited();
            wr
        })
    }
}
