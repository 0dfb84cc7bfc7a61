// SPDX-License-Identifier: GPL-2.0

//! Holds the state of one request under way.
//!
//! ```text
//!            ┌── read:  buffers ──► drive ──────────────┐
//!  Idle ─────┼── write: buffers ──► RDMA READ ──► drive ├──► [RDMA WRITE +] response ──► Idle
//!            ├── flush: ──────────► drive ──────────────┤
//!            └── refused ───────────────────────────────┘
//! ```
//!
//! A large read or write moves in chunks, each of which follows these paths independently: see
//! [`chunks`](super::chunks). The request waits for all of them.
//!
//! At any time a [`TargetRequest`] has one owner: the queue's list of idle ones, the list of
//! requests that wait for buffers, the table of work under way on the queue pair, the table of
//! requests that move in chunks, or the drive (the block layer, a file system or a workqueue). It
//! holds its transfer buffers from admission until it is idle again, and the message buffer for its
//! response always.

use super::{
    chunks::RequestChunks,
    queue::Queue,
    queue_volume::QueueVolume, //
};
use crate::{
    drive::claims::RewriteMark,
    memory::layout::{
        BUFFERS_MAX,
        MEDIUM, //
    },
    stats::Marks, //
};
use hcablk_core::{
    blkdev::{
        BioSlot,
        FileSlot,
        WbErrCursor, //
    },
    containers::array_vec::ArrayVec,
    logic::mq::lines::Visit,
    memory::eager_ring::EagerRing,
    p2p::PeerMemory,
    proto::{
        eager_ring::RingSlot,
        message::{
            self,
            Extent,
            Op,
            Tag, //
        },
        TRANSFER_USUAL, //
    },
    rdma::{
        buffer::DmaBuffer,
        sink::Sink, //
    },
    report::trace,
    sync::{
        defer::WorkSlot,
        IrqLock, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The next step of a request on the workqueue.
#[derive(Clone, Copy)]
pub(crate) enum WorkStep {
    /// Begin an operation that may sleep.
    Start,
    /// Submit the bio again: the drive had no room for it.
    Submit,
    /// Continue after the file system has finished asynchronously.
    Finished(Result),
    /// Write the data again, through the page cache: pages of the range were in it, or were written
    /// back meanwhile.
    WriteAgain,
    /// Flush the volatile cache of the drive, which has the written data.
    FlushDrive,
    /// Copy the read data from peer memory to RAM.
    Bounce,
}

/// The target's state of one request: see the module.
pub(crate) struct TargetRequest {
    pub(super) queue: Arc<Queue>,
    /// The volume of the current, or of the last, request.
    pub(super) volume: Arc<QueueVolume>,
    /// The index in the table of work under way, and of the message buffer.
    pub(crate) index: u32,
    /// The receive buffer of the request, to be posted again with the response; `None`: a later
    /// request of the same message posts it.
    pub(crate) receive: Option<u32>,
    pub(crate) tag: Tag,
    /// The requested operation, or the status with which it is refused.
    pub(crate) op: Result<Op, message::Status>,
    /// A write is sent to the drive with FUA even if the initiator does not request that.
    pub(crate) force_fua: bool,
    /// The response need not raise an event at the initiator.
    pub(crate) quiet: bool,
    /// The slot of an eager write in the eager ring.
    pub(crate) ring_slot: RingSlot,
    /// The index of another request whose response completes with this one: in the same message, or
    /// with an unsignaled SEND.
    pub(crate) next: Option<u32>,
    /// The status of the response.
    pub(crate) status: message::Status,
    /// The times at which the request entered each state, if measured.
    pub(crate) marks: Marks,
    /// Bytes that the HCA moves for this request.
    pub(crate) moved: u64,
    /// The registered memory for the RDMA READ of a write, on devices that need it. Locked while
    /// the work requests that use it are posted.
    pub(crate) sink: Option<Arc<IrqLock<Sink>>>,
    /// The next step, while the request is on the workqueue.
    pub(crate) step: WorkStep,
    /// The data moved through the page cache.
    pub(crate) cached: bool,
    /// A request meant to bypass the page cache found pages in it.
    pub(crate) met_pages: bool,
    /// The count of write-backs of whole pages before the drive got the request.
    pub(crate) rewritten: RewriteMark,
    /// The number of failed flushes of the drive at that time.
    pub(crate) flush_failures: u32,
    /// The file's write-back error cursor at the start of the request, if the request checks for
    /// such errors.
    pub(crate) wb_err: Option<WbErrCursor>,
    /// The number of the flush error that the response reports, or 0.
    pub(crate) flush_error: u32,
    /// The request's use of the volume's cache.
    pub(crate) visit: Visit,
    /// Bytes copied between buffers and the cache.
    pub(crate) lined: u64,
    /// The peer memory that the drive uses instead of the buffers' RAM.
    pub(crate) peer: Option<Arc<PeerMemory>>,
    /// The memory of the cache's lines, while the data is in them: see [`cache`](super::cache).
    pub(crate) lines: Option<Arc<PeerMemory>>,
    /// All data was found in lines of peer memory.
    pub(crate) peer_hit: bool,
    /// The chunks in which the data moves, if any.
    pub(crate) chunks: RequestChunks,
    /// The shared transfer buffers, which hold the start of the data.
    pub(super) shared: KVec<Arc<DmaBuffer>>,
    /// The queue's own transfer buffers, which hold the rest.
    pub(super) own: [u16; BUFFERS_MAX],
    pub(super) own_count: usize,
    /// The size class of all these buffers.
    pub(crate) size_class: usize,
    pub(super) slot: BioSlot,
    pub(crate) file: FileSlot,
    pub(crate) work: WorkSlot<TargetRequest>,
}

impl TargetRequest {
    /// Allocates an idle `TargetRequest` that refers to `volume`, for requests of up to `pieces`
    /// pieces of memory and of up to `buffers` transfer buffers. May sleep.
    pub(crate) fn new(
        (queue, volume): (&Arc<Queue>, &Arc<QueueVolume>),
        index: u32,
        pieces: usize,
        buffers: usize,
        sink: Option<Arc<IrqLock<Sink>>>,
    ) -> Result<KBox<Self>> {
        let pieces = u16::try_from(pieces)?;
        Ok(KBox::new(
            Self {
                queue: queue.clone(),
                volume: volume.clone(),
                index,
                receive: None,
                tag: Tag {
                    index: 0,
                    generation: 0,
                },
                op: Err(message::Status::Invalid),
                force_fua: false,
                quiet: false,
                ring_slot: RingSlot {
                    offset: 0,
                    number: 0,
                },
                next: None,
                status: message::Status::Ok,
                marks: Marks::default(),
                moved: 0,
                sink,
                step: WorkStep::Start,
                cached: false,
                met_pages: false,
                rewritten: RewriteMark::default(),
                flush_failures: 0,
                wb_err: None,
                flush_error: 0,
                visit: Visit::NONE,
                lined: 0,
                peer: None,
                lines: None,
                peer_hit: false,
                chunks: RequestChunks::NONE,
                shared: KVec::with_capacity(buffers, GFP_KERNEL)?,
                own: [0; BUFFERS_MAX],
                own_count: 0,
                size_class: MEDIUM,
                slot: BioSlot::new(pieces)?,
                file: FileSlot::new(pieces)?,
                work: WorkSlot::new()?,
            },
            GFP_KERNEL,
        )?)
    }

    /// Resets the state of the last request, before a new one is read from the receive buffer
    /// `receive`.
    #[inline]
    pub(crate) fn reset(&mut self, receive: Option<u32>) {
        self.receive = receive;
        self.next = None;
        self.moved = 0;
        self.status = message::Status::Ok;
        self.flush_error = 0;
        self.quiet = false;
    }

    /// Returns the number of bytes of data.
    pub(crate) fn length(&self) -> usize {
        match self.op {
            Ok(
                Op::Read(extent, _)
                | Op::Write { extent, .. }
                | Op::WriteInline { extent, .. }
                | Op::WriteEager { extent, .. },
            ) => extent.length as usize,
            _ => 0,
        }
    }

    /// Returns the blocks that the request names, if any.
    pub(crate) fn extent(&self) -> Option<Extent> {
        match self.op {
            Ok(
                Op::Read(extent, _)
                | Op::Write { extent, .. }
                | Op::WriteInline { extent, .. }
                | Op::WriteEager { extent, .. }
                | Op::Discard(extent)
                | Op::WriteZeroes { extent, .. },
            ) => Some(extent),
            Ok(Op::Flush | Op::Nop) | Err(_) => None,
        }
    }

    /// Returns the request as trace events report it.
    #[cold]
    pub(crate) fn about(&self) -> trace::TracedRequest {
        let queue = &self.queue;
        let session = queue.session_id.0;
        let about =
            trace::TracedRequest::from_op(session, queue.index, self.tag, self.op.as_ref().ok());
        trace::TracedRequest {
            number: match self.op {
                Ok(Op::WriteEager { .. }) => self.ring_slot.number,
                _ => 0,
            },
            memory: match self.length() {
                0 => trace::Memory::None,
                _ => self.memory(),
            },
            ..about.ended(self.status as i32)
        }
    }

    /// Returns whether the request has more data than the usual largest request.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.length() > TRANSFER_USUAL as usize
    }

    /// Returns whether the data that the response sends, if any, is one piece of memory.
    #[inline]
    pub(crate) fn sends_one_piece(&self) -> bool {
        let sends = matches!(self.op, Ok(Op::Read(..))) && self.status == message::Status::Ok;
        !sends || (!self.is_in_lines() && self.shared.len() + self.own_count <= 1)
    }

    /// Returns the buffer with the request's inline data, if it has any.
    pub(super) fn inline(&self) -> Option<&DmaBuffer> {
        match self.op {
            Ok(Op::WriteInline { .. }) => self.queue.inline_data(self.receive?),
            _ => None,
        }
    }

    /// Returns the eager ring, if the data is in it.
    #[inline]
    pub(super) fn eager_ring(&self) -> Option<&EagerRing> {
        match self.op {
            Ok(Op::WriteEager { .. }) => self.queue.eager_ring(),
            _ => None,
        }
    }

    /// Returns whether the region over the request's buffers may still be valid: on iWARP the peer
    /// can then write to them.
    ///
    /// A region counts as valid while its lock is held, which includes the posting of its work
    /// requests: if posting fails, the poster gives the request up. The poster of an RDMA READ may
    /// still hold the lock when the READ has completed. This function does not see that: the
    /// completion handler takes the lock first.
    #[inline]
    pub(crate) fn is_exposed(&self) -> bool {
        let open = |sink: &Arc<IrqLock<Sink>>| sink.try_lock().is_none_or(|sink| sink.is_open());
        self.sink.as_ref().is_some_and(open)
    }
}

/// Up to `N` requests.
pub(crate) type Group<const N: usize> = ArrayVec<KBox<TargetRequest>, N>;
