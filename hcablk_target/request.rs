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
//! `chunked`. Their request waits for all of them.
//!
//! At any time an [`Io`] is in one place, and whoever has it owns it: in the
//! queue's list of idle ones, in the list of those that wait for buffers, in
//! the table of work under way on the queue pair, with its chunks, or with the drive
//! ([`submit`](crate::storage::submit): the block layer, a file system or a workqueue). Its
//! buffers are its own from admission until it is idle again, its message
//! buffer for the answer always.

pub(crate) mod split;
pub(crate) mod validate;

use crate::{
    memory::{
        layout::{
            length_of,
            BUFFERS_MAX,
            MEDIUM, //
        },
        pool::Pool, //
    },
    queue::{
        IoChunks,
        Queue, //
    },
    stats::Marks,
    storage::submit::Step, //
};
use hcablk_core::{
    blkdev::{
        BioOwner,
        BioSlot,
        BlockDevice,
        FileSlot,
        Status, //
    },
    logic::mq::lines::Visit,
    memory::eager_ring::EagerRing,
    memory::pages::PageRange,
    p2p::PeerMemory,
    proto::{
        grant::RingSlot,
        message::{
            self,
            Op,
            Tag, //
        },
        TRANSFER_USUAL, //
    },
    rdma::{
        buffer::DmaBuffer,
        sink::Sink, //
    },
    report::trace, //
    sync::defer::WorkSlot,
    sync::IrqLock,
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// See the module.
pub(crate) struct Io {
    pub(crate) queue: Arc<Queue>,
    /// Place in the table of work under way, and message buffer.
    pub(crate) index: u32,
    /// The receive buffer that the request came in, to be posted again; `None`: another
    /// request came in it, too, and sees to that.
    pub(crate) receive: Option<u32>,
    pub(crate) tag: Tag,
    /// What is asked for, or why it is refused.
    pub(crate) op: Result<Op, message::Status>,
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
    /// The size that is told, if that is what is asked for.
    pub(crate) sectors: u64,
    /// Where write data is fetched to, if the device wants more than buffers.
    /// Locked while the work that uses it is posted.
    pub(crate) sink: Option<Arc<IrqLock<Sink>>>,
    /// What is next, while it is on the workqueue.
    pub(crate) step: Step,
    /// The data went through the page cache.
    pub(crate) cached: bool,
    /// What was to pass the page cache met pages there.
    pub(crate) met_pages: bool,
    /// What [`rewritten`](crate::storage::submit) said before the drive was asked.
    pub(crate) rewritten: u32,
    /// The error of a flush that the answer tells of, or 0: see
    /// [`flush_errors`](crate::storage::flush_errors).
    pub(crate) flush_error: u32,
    /// Its part in the volume's cache.
    pub(crate) visit: Visit,
    /// Bytes copied between buffers and that cache.
    pub(crate) lined: u64,
    /// The drive's side of the buffers, if it is not their RAM.
    pub(crate) peer: Option<Arc<PeerMemory>>,
    /// The memory of the cache's lines, while the data is in them: see
    /// [`in_lines`](crate::storage::in_lines).
    pub(crate) lines: Option<Arc<PeerMemory>>,
    /// All of the data was found in lines of peer memory.
    pub(crate) peer_hit: bool,
    /// Its chunks, if its data moves by them.
    pub(crate) chunks: IoChunks,
    /// Borrowed transfer buffers, which its data begins in.
    shared: KVec<Arc<DmaBuffer>>,
    /// The queue's own ones, which follow.
    own: [u16; BUFFERS_MAX],
    own_count: usize,
    /// How long all of these are: their size class.
    pub(crate) size_class: usize,
    slot: BioSlot,
    pub(crate) file: FileSlot,
    pub(crate) work: WorkSlot<Io>,
}

impl Io {
    /// Makes an idle one. May sleep.
    pub(crate) fn new(queue: &Arc<Queue>, index: u32) -> Result<KBox<Self>> {
        let pieces = u16::try_from(queue.shape().pieces())?;
        Ok(KBox::new(
            Self {
                queue: queue.clone(),
                index,
                receive: None,
                tag: Tag {
                    index: 0,
                    generation: 0,
                },
                op: Err(message::Status::Invalid),
                quiet: false,
                ring_slot: RingSlot {
                    offset: 0,
                    number: 0,
                },
                next: None,
                status: message::Status::Ok,
                marks: Marks::default(),
                moved: 0,
                sectors: 0,
                sink: queue.make_sink()?,
                step: Step::Start,
                cached: false,
                met_pages: false,
                rewritten: 0,
                flush_error: 0,
                visit: Visit::NONE,
                lined: 0,
                peer: None,
                lines: None,
                peer_hit: false,
                chunks: IoChunks::NONE,
                shared: KVec::with_capacity(queue.shape().buffers_of_one(), GFP_KERNEL)?,
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

    /// Returns what trace events report of it.
    #[cold]
    pub(crate) fn about(&self) -> trace::Request {
        let queue = &self.queue;
        let session = queue.session().id().0;
        let about = trace::Request::of(session, queue.index(), self.tag, self.op.as_ref().ok());
        trace::Request {
            number: match self.op {
                Ok(Op::WriteEager { .. }) => self.ring_slot.number,
                _ => 0,
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
    fn inline(&self) -> Option<&DmaBuffer> {
        match self.op {
            Ok(Op::WriteInline { .. }) => self.queue.inline_data(self.receive?),
            _ => None,
        }
    }

    /// Returns the eager ring if the data is there.
    #[inline]
    fn eager_ring(&self) -> Option<&EagerRing> {
        match self.op {
            Ok(Op::WriteEager { .. }) => self.queue.eager_ring(),
            _ => None,
        }
    }

    /// Takes buffers out of `pool`; `false`: there are not enough.
    #[inline]
    pub(crate) fn take_buffers(&mut self, pool: &mut Pool) -> bool {
        let length = match self.op {
            Ok(Op::WriteInline { .. } | Op::WriteEager { .. }) => 0,
            _ => self.length(),
        };
        let memory = self.queue.peer_memory();
        let wants = memory.is_some();
        let Some(took) = pool.take(length, wants, &mut self.own, &mut self.shared) else {
            return false;
        };
        self.peer = memory.filter(|_| took.by_peer);
        self.own_count = took.own;
        self.size_class = took.size_class;
        true
    }

    /// Returns whether the region over its buffers may still be valid: on iWARP the peer writes
    /// there then.
    ///
    /// It is taken for valid while its work requests are being posted, which is under its lock: who
    /// posts them gives the request up if that fails. A request that was fetched is never asked
    /// meanwhile, since [`fetched`](Queue) takes the lock first.
    #[inline]
    pub(crate) fn is_exposed(&self) -> bool {
        let open = |sink: &Arc<IrqLock<Sink>>| sink.try_lock().is_none_or(|sink| sink.is_open());
        self.sink.as_ref().is_some_and(open)
    }

    /// Puts the buffers back into `pool`.
    #[inline]
    pub(crate) fn return_buffers(&mut self, pool: &mut Pool) {
        for number in self.own.iter().take(self.own_count) {
            pool.give(*number);
        }
        self.own_count = 0;
        if !self.shared.is_empty() {
            pool.give_shared(self.size_class, &mut self.shared);
        }
        self.peer = None;
        self.lines = None;
    }

    /// Returns the bytes of each of the buffers.
    #[inline]
    pub(crate) fn unit(&self) -> usize {
        length_of(self.size_class)
    }

    /// Returns the borrowed buffers, which come first.
    #[inline]
    pub(crate) fn shared(&self) -> &[Arc<DmaBuffer>] {
        &self.shared
    }

    /// Returns the numbers of the queue's own ones.
    #[inline]
    pub(crate) fn own(&self) -> &[u16] {
        self.own.get(..self.own_count).unwrap_or(&[])
    }

    /// Iterates over the buffers in order.
    #[inline]
    pub(crate) fn pieces(&self) -> Pieces<'_> {
        Pieces {
            shared: self.shared.iter(),
            own: self.own().iter(),
            queue: &self.queue,
            unit: self.unit(),
            left: self.length(),
        }
    }
}

/// What [`Io::pieces`] returns. A type with a name, since those of iterators made of others
/// make symbols too long.
pub(crate) struct Pieces<'a> {
    shared: core::slice::Iter<'a, Arc<DmaBuffer>>,
    own: core::slice::Iter<'a, u16>,
    queue: &'a Queue,
    /// Bytes of a buffer.
    unit: usize,
    /// Bytes of data that are to come.
    left: usize,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    #[inline]
    fn next(&mut self) -> Option<Piece<'a>> {
        let (buffer, number) = match self.shared.next() {
            Some(shared) => (&**shared, Piece::SHARED),
            None => {
                let own = *self.own.next()?;
                (self.queue.buffer(own)?, own)
            }
        };
        let length = self.left.min(self.unit);
        self.left -= length;
        Some(Piece {
            buffer,
            number,
            length,
        })
    }
}

/// A transfer buffer with a part of a request's data.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) buffer: &'a DmaBuffer,
    /// Of the queue's own, by which it has peer memory; else [`Self::SHARED`].
    pub(crate) number: u16,
    /// Bytes of it.
    pub(crate) length: usize,
}

impl Piece<'_> {
    pub(crate) const SHARED: u16 = u16::MAX;
}

impl Io {
    /// Iterates over the data, where it is neither in peer memory nor in lines.
    pub(crate) fn ram_pages(&self) -> impl Iterator<Item = PageRange<'_>> {
        self.buffer_pages(None, false)
    }

    /// Returns the number of a transfer buffer, on a volume that shares none.
    #[inline]
    pub(crate) fn own_buffer(&self, place: usize) -> Option<u16> {
        let used = self.own.get(..self.own_count)?;
        used.get(place).copied()
    }

    /// Iterates over the data in buffers, with `peer` beside those for transfers; without these if
    /// it is `in_lines`.
    #[inline]
    fn buffer_pages<'a>(
        &'a self,
        peer: Option<&'a PeerMemory>,
        in_lines: bool,
    ) -> impl Iterator<Item = PageRange<'a>> {
        let inline = self
            .inline()
            .map(|buffer| buffer.pages().range(0, self.length()));
        let eager_ring = self.eager_ring().map(|eager_ring| {
            let offset = self.ring_slot.offset as usize;
            eager_ring.ranges(offset, self.length())
        });
        let buffers = self.pieces().filter_map(move |piece| match peer {
            _ if in_lines => None,
            Some(memory) => memory.range(piece.number, 0, piece.length),
            None => Some(piece.buffer.pages().range(0, piece.length)),
        });
        let here = Iterator::chain(inline.into_iter(), eager_ring.into_iter().flatten());
        Iterator::chain(here, buffers)
    }
}

hcablk_core::impl_has_slot!(Io, slot: BioSlot);
hcablk_core::impl_has_slot!(Io, file: FileSlot);
hcablk_core::impl_has_slot!(Io, work: WorkSlot<Io>);

impl BioOwner for Io {
    fn device(&self) -> Option<&BlockDevice> {
        self.queue.backing().device()
    }

    #[inline]
    fn piece(&self) -> Option<PageRange<'_>> {
        if self.is_in_lines() || self.peer.is_some() {
            return None;
        }
        let length = self.length();
        let range = match self.op {
            Ok(Op::WriteInline { .. }) => self.inline()?.pages().range(0, length),
            Ok(Op::WriteEager { .. }) => {
                let mut ranges = self
                    .eager_ring()?
                    .ranges(self.ring_slot.offset as usize, length);
                ranges.next()?
            }
            _ => {
                let piece = self.pieces().next()?;
                piece.buffer.pages().range(0, piece.length)
            }
        };
        (range.length() as usize == length).then_some(range)
    }

    fn pages(&self) -> impl Iterator<Item = PageRange<'_>> {
        let buffers = self.buffer_pages(self.peer.as_deref(), self.is_in_lines());
        Iterator::chain(buffers, self.line_pages())
    }

    fn done(self: KBox<Self>, result: Result<(), Status>) {
        self.bio_done(result);
    }
}
