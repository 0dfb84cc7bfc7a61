// SPDX-License-Identifier: GPL-2.0

//! One request under way.
//!
//! ```text
//!            ┌── read:  buffers ──► drive ──────────────┐
//!  Idle ─────┼── write: buffers ──► RDMA READ ──► drive ├──► [RDMA WRITE +] response ──► Idle
//!            ├── flush: ──────────► drive ──────────────┤
//!            └── refused ───────────────────────────────┘
//! ```
//!
//! A large read or write moves in chunks, which go these ways by themselves: see
//! [`chunks`](super::chunks). Their request waits for all of them.
//!
//! At any time a [`Request`] is in one place, and whoever has it owns it: in the
//! queue's list of idle ones, in the list of those that wait for buffers, in
//! the table of work under way on the queue pair, with its chunks, or with the drive
//! (the block layer, a file system or a workqueue). Its
//! buffers are its own from admission until it is idle again, its message
//! buffer for the answer always.

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

/// What is to be done on the workqueue.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    /// What could not be done at once.
    Start,
    /// Its bio must be submitted again: the drive had no room for it.
    Submit,
    /// The file system has finished by itself.
    Finished(Result),
    /// There are pages in the cache beside what was written to a device.
    Overtaken,
    /// What was written is in a volatile cache of the drive, and must be flushed.
    Unstable,
    /// What was read is in peer memory, and must be copied.
    Bounce,
}

/// See the module.
pub(crate) struct Request {
    pub(super) queue: Arc<Queue>,
    /// What it is about, or was about last.
    pub(super) volume: Arc<QueueVolume>,
    /// Place in the table of work under way, and message buffer.
    pub(crate) index: u32,
    /// The receive buffer that the request came in, to be posted again; `None`: another
    /// request came in it, too, and sees to that.
    pub(crate) receive: Option<u32>,
    pub(crate) tag: Tag,
    /// What is asked for, or why it is refused.
    pub(crate) op: Result<Op, message::Status>,
    /// A write is sent to the drive as one with FUA, whatever the initiator asks for.
    pub(crate) force_fua: bool,
    /// The answer need not wake the initiator up.
    pub(crate) quiet: bool,
    /// The slot of an eager write in the eager ring.
    pub(crate) ring_slot: RingSlot,
    /// Another request whose answer leaves with this one's: by the same message,
    /// or by one that is not reported.
    pub(crate) next: Option<u32>,
    /// How it ended.
    pub(crate) status: message::Status,
    /// When it came where it is, if that is measured.
    pub(crate) marks: Marks,
    /// Bytes that the HCA moves.
    pub(crate) moved: u64,
    /// Where write data is fetched to, if the device wants more than buffers.
    /// Locked while the work that uses it is posted.
    pub(crate) sink: Option<Arc<IrqLock<Sink>>>,
    /// What is next, while it is on the workqueue.
    pub(crate) step: Step,
    /// The data went through the page cache.
    pub(crate) cached: bool,
    /// What was to pass the page cache met pages there.
    pub(crate) met_pages: bool,
    /// The moment before the drive was asked, among those at which pages are written back whole.
    pub(crate) rewritten: RewriteMark,
    /// How many flushes of the drive had failed by then.
    pub(crate) flush_failures: u32,
    /// Up to which failed write-back of the file the errors are those of earlier writes, if it
    /// asks.
    pub(crate) wb_err: Option<WbErrCursor>,
    /// The number of the error of a flush that the answer tells of, or 0.
    pub(crate) flush_error: u32,
    /// Its part in the volume's cache.
    pub(crate) visit: Visit,
    /// Bytes copied between buffers and that cache.
    pub(crate) lined: u64,
    /// The drive's side of the buffers, if it is not their RAM.
    pub(crate) peer: Option<Arc<PeerMemory>>,
    /// The memory of the cache's lines, while the data is in them: see [`cache`](super::cache).
    pub(crate) lines: Option<Arc<PeerMemory>>,
    /// All of the data was found in lines of peer memory.
    pub(crate) peer_hit: bool,
    /// Its chunks, if its data moves by them.
    pub(crate) chunks: RequestChunks,
    /// Borrowed transfer buffers, which its data begins in.
    pub(super) shared: KVec<Arc<DmaBuffer>>,
    /// The queue's own ones, which follow.
    pub(super) own: [u16; BUFFERS_MAX],
    pub(super) own_count: usize,
    /// How long all of these are: their size class.
    pub(crate) size_class: usize,
    pub(super) slot: BioSlot,
    pub(crate) file: FileSlot,
    pub(crate) work: WorkSlot<Request>,
}

impl Request {
    /// Makes an idle one, which refers to `volume`, of requests of up to `pieces` pieces of memory,
    /// and of up to `buffers` transfer buffers. May sleep.
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
                step: Step::Start,
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

    /// Forgets the last request, before another one is read, which came in the receive buffer
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

    /// Returns the bytes of data.
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

    /// Returns the blocks that it is about, if it is about any.
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

    /// Returns what trace events report of it.
    #[cold]
    pub(crate) fn about(&self) -> trace::Request {
        let queue = &self.queue;
        let session = queue.session_id.0;
        let about = trace::Request::of(session, queue.index, self.tag, self.op.as_ref().ok());
        trace::Request {
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

    /// Returns whether it has more data than most initiators ask for.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.length() > TRANSFER_USUAL as usize
    }

    /// Returns whether what its answer sends of data, if any, is one piece of memory.
    #[inline]
    pub(crate) fn sends_one_piece(&self) -> bool {
        let sends = matches!(self.op, Ok(Op::Read(..))) && self.status == message::Status::Ok;
        !sends || (!self.is_in_lines() && self.shared.len() + self.own_count <= 1)
    }

    /// Returns the buffer with the data that came with the request, if some did.
    pub(super) fn inline(&self) -> Option<&DmaBuffer> {
        match self.op {
            Ok(Op::WriteInline { .. }) => self.queue.inline_data(self.receive?),
            _ => None,
        }
    }

    /// Returns the eager ring if the data is there.
    #[inline]
    pub(super) fn eager_ring(&self) -> Option<&EagerRing> {
        match self.op {
            Ok(Op::WriteEager { .. }) => self.queue.eager_ring(),
            _ => None,
        }
    }

    /// Returns whether the region over its buffers may still be valid: on iWARP the peer writes
    /// there then.
    ///
    /// It is taken for valid while its work requests are being posted, which is under its lock: who
    /// posts them gives the request up if that fails. A request that was fetched is never asked
    /// meanwhile, since who has fetched it takes the lock first.
    #[inline]
    pub(crate) fn is_exposed(&self) -> bool {
        let open = |sink: &Arc<IrqLock<Sink>>| sink.try_lock().is_none_or(|sink| sink.is_open());
        self.sink.as_ref().is_some_and(open)
    }
}

/// Some requests in a row, up to `N`.
pub(crate) type Group<const N: usize> = ArrayVec<KBox<Request>, N>;
