// SPDX-License-Identifier: GPL-2.0

//! A queue pair and the hardware queue above it: the I/O path.
//!
//! # A request's way
//!
//! ```text
//!             queue_rq                       response                    completion
//!   (block   ────────────► Sent ──────────────────────────► (ended) ◄─────────────────┐
//!    layer)    map,         │      key invalid: unmap, end                            │
//!              REG_MR,      │                                                         │
//!              SEND         └────────────────────────────► Invalidating ──────────────┘
//!                                  key still valid: LOCAL_INV             unmap, end
//! ```
//!
//! The data of a small write goes with the request's message. The HCA may read
//! it until the SEND has completed, and that may be after the answer:
//!
//! ```text
//!                    response, SEND completed before                  completion
//!  Sent, `Inline` ──────────────────────────────────► (ended) ◄─────────────────── Answered
//!        │                                                                            ▲
//!        └────────────────── response, SEND not yet completed ────────────────────────┘
//! ```
//!
//! A request that is to end while its region is still registered, which is a broken invariant, is
//! *Kept*: it is parked until the end of the session has destroyed the region.
//!
//! An eager write is the same with its RDMA WRITE. From `Sent` on the request is parked in the
//! table of requests; the state is kept beside it for its tag ([`Phase`]), and how its data moves
//! is part of that ([`transfer`]). A request ends only when the target
//! has no access to its memory any more: because its answer came with remote
//! invalidation, because our own invalidation completed, or, when the
//! connection is lost, because the memory region was destroyed.
//!
//! # Doorbells
//!
//! A request that is not the last for now is not posted but put behind others in a
//! [`Backlog`](hcablk_core::rdma::backlog::Backlog), and into a message with others
//! ([`message_batch`]); the next that is posted takes them along, for everything that the queue
//! pair is given goes through [`Queue::ring`], unless nothing waits. That is the last request of
//! the plug, or `commit_rqs` if it never came, both within the RCU section in which it was issued,
//! so that the teardown finds nothing that waits. It is parked from the beginning; if posting
//! fails, or the queue pair has failed before, it ends with all others.
//!
//! Invalidations of our own wait there, too, until the round of completions is over
//! (`queue/wr_seq.rs`). Requests that a round ends are given back to the block layer together.
//!
//! # CQ notification
//!
//! Only responses are solicited. The completion of a SEND raises no event: the round that handles
//! the next response finds it, unless its request was answered before. The same goes for errors,
//! for which every keep-alive has the queue polled.
//!
//! # Polled I/O
//!
//! The last queues of a session may be for polled I/O (`REQ_POLLED`): the block layer routes
//! nothing else to them, and nothing interrupts there. Who waits for a request looks for
//! completions ([`Operations::poll`](hcablk_core::blkdev::Operations::poll)). If he does not (he
//! was stopped, or killed), the keep-alive timer does, every period, and so does a request's
//! timeout before it gives the queue up.
//!
//! # Locks and contexts
//!
//! One lock, `send`: taken once to issue a request and once for its answer. It
//! orders the accounts of credits and of send queue slots, the doorbells, and
//! parking before taking. The completion of a SEND does without: what it frees is
//! added to a sum, at which the account looks when it is short. That a request
//! awaits its send's completion no more is accounted for under the lock of the next answer, or of
//! its own at the end of a round.
//! Issuing runs in process or softirq context, completions run in softirq context,
//! or in that of who polls, one at a time for a queue.

use crate::{
    batching::Outstanding,
    settings::Settings,
    stats::{
        Done,
        Sent,
        Times,
        Wakeups, //
    },
    unflushed::Unflushed,
};
use hcablk_core::sync::atomic::{
    Acquire,
    Atomic,
    Relaxed, //
};
use hcablk_core::{
    blkdev::{
        PerTag,
        Requests,
        TaggedRequest, //
    },
    memory::read_bounce::ReadBounce,
    proto::{
        connect::{
            Epoch,
            SessionId, //
        },
        message::BUFFER_LEN, //
    },
    rdma::{
        buffer::MessageBuffers,
        qp::QueuePair,
        wr::{
            Sge,
            WorkId, //
        },
    },
    sync::IrqLock,
    system::numa_distance, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

mod answer;
mod complete;
mod doorbell;
mod driver;
mod end;
mod events;
mod hw_queue;
mod issue;
mod keep_alive;
mod late;
mod message_batch;
mod no_path;
mod owner;
mod request_state;
mod send_state;
mod setup;
mod status;
mod transfer;
mod wr_seq;

pub(crate) use driver::Driver;
use hw_queue::HwQueue;
pub(crate) use hw_queue::{
    HwQueues,
    Retired, //
};
pub(crate) use no_path::NoPath;
pub(crate) use owner::{
    QueueConfig,
    QueueOwner, //
};
use request_state::{
    Phase,
    TagData, //
};
use send_state::SendState;

/// Kinds of work, in work ids. The index is a tag or a receive buffer.
mod kind {
    pub(super) const SEND: u8 = 1;
    pub(super) const RECEIVE: u8 = 2;
    pub(super) const REGISTER: u8 = 3;
    pub(super) const KEEP_ALIVE: u8 = 4;
    pub(super) const READ_BOUNCE: u8 = 5;
    /// The index is a sequence number of `wr_seq.rs`.
    pub(super) const SEQ: u8 = 6;
}

/// Work requests that wait for their doorbell at most; blk-mq issues no more requests at once.
const PLUG: usize = 64;

/// A started request with what there is for its tag.
type Tagged<'a> = TaggedRequest<'a, Driver, TagData>;

/// A hardware queue of the disk and its queue pair.
///
/// Made by [`connect`](crate::connect); referenced by the session, by its
/// completion queue until that is stopped, and by the disk.
#[pin_data]
pub(crate) struct Queue {
    index: u8,
    /// Number of the path that its session is.
    path: u8,
    /// The NUMA node of its RDMA device.
    numa_node: i32,
    /// Requests wait for their doorbell, as far as a disk of several paths knows, see
    /// `hw_queue.rs`.
    unrung: Atomic<bool>,
    /// Completions are found by who polls for them: nothing interrupts.
    polled: bool,
    /// Tags of the block layer; the next one asks for nothing, see `keep_alive.rs`.
    depth: u16,
    /// Whose queue it is, for trace events.
    session: SessionId,
    epoch: Epoch,
    /// What users have set.
    settings: Settings,
    owner: Arc<dyn QueueOwner>,
    pair: QueuePair<Queue>,
    requests: Arc<Requests<Driver>>,
    tags: PerTag<Driver, TagData>,
    /// Requests are accepted.
    live: Atomic<bool>,
    /// The target has granted the connection, and has proven who it is if it can.
    granted: Atomic<bool>,
    /// One was not answered in time: another queue pair comes in place of this one, see `end.rs`.
    timed_out: Atomic<bool>,
    /// Its queue pair has failed meanwhile.
    is_unfit: Atomic<bool>,
    /// A request was turned away for want of credits, and no answer has come since: for who may
    /// choose another path.
    starved: Atomic<bool>,
    /// Ask the target to invalidate keys with its answers.
    remote_invalidate: bool,
    /// The slots into which the target puts the data of small reads.
    read_bounce: Option<ReadBounce>,
    /// Bytes of the largest write whose data goes with the request.
    inline_limit: Atomic<u32>,
    /// Segments that such a write may have, and that one work request takes besides a
    /// message.
    inline_segments: u16,
    /// Bytes of the largest eager write.
    eager_limit: Atomic<u32>,
    /// The target posts no RDMA READ.
    only_eager: Atomic<bool>,
    /// The transport knows RDMA WRITEs with an immediate value.
    immediates: bool,
    outgoing: MessageBuffers<BUFFER_LEN>,
    incoming: MessageBuffers<BUFFER_LEN>,
    /// Slots of the send queue that completions have freed so far, modulo 2^32. Written
    /// by the completion handler only.
    freed: Atomic<u32>,
    /// The sequence number of the last work request that has completed. Only used by the
    /// completion handler.
    completed_seq: Atomic<u32>,
    /// The first tag whose request awaits its send's completion, or [`wr_seq::NO_TAG`]. Only used
    /// by the completion handler.
    awaiting_send: Atomic<u32>,
    /// Requests whose awaited send has completed, but for which `batching` still arms. Counted by
    /// the completion handler, and taken by it or by who arms after it, on another processor.
    awaited_sends: Atomic<u32>,
    /// A keep-alive is under way.
    keep_alive_pending: Atomic<bool>,
    /// What is [`Outstanding`], as a word. Written under the lock.
    outstanding: Atomic<u64>,
    /// The disk's account of writes that no flush has covered, and the number at which this queue
    /// last reported one. The latter is used by the completion handler only.
    unflushed: Arc<Unflushed>,
    reported_at: Atomic<u64>,
    /// How long requests take is measured.
    timing: Atomic<bool>,
    /// How often one who issues has looked for answers.
    reaps: Atomic<u64>,
    #[pin]
    send: IrqLock<SendState>,
    pub(crate) sent: Sent,
    pub(crate) done: Done,
    pub(crate) times: Times,
}

impl Queue {
    /// Sets whether to measure how long requests take that are issued from now on.
    pub(crate) fn time(&self, on: bool) {
        self.timing.store(on, Relaxed);
    }

    /// Returns whether it is measured how long requests take.
    pub(crate) fn is_timed(&self) -> bool {
        self.timing.load(Relaxed)
    }

    /// Looks for answers in the name of one who issues. Without the lock.
    fn reap(&self) {
        self.reaps.fetch_add(1, Relaxed);
        self.pair.cq().reap();
    }

    /// Returns how many send queue slots completions have freed so far, modulo 2^32.
    #[inline]
    fn freed(&self) -> u32 {
        self.freed.load(Relaxed)
    }

    /// Publishes what the completion handler is to arm the completion queue for, after a change
    /// of what is outstanding. Under the lock.
    #[inline]
    fn update_notify(&self, send: &SendState) {
        let now = send.batching.outstanding();
        self.outstanding.store(now.word(), Relaxed);
    }

    /// Returns what was outstanding a moment ago.
    #[inline]
    fn outstanding(&self) -> Outstanding {
        Outstanding::of(self.outstanding.load(Relaxed))
    }

    /// Returns how many requests waited for their answers a moment ago.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.outstanding().requests()
    }

    /// Returns whether it accepts requests, at this moment.
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.live.load(Acquire)
    }

    /// Returns whether its credits were used up a moment ago.
    #[inline]
    fn is_starved(&self) -> bool {
        self.starved.load(Relaxed)
    }

    pub(crate) fn index(&self) -> u8 {
        self.index
    }

    /// Returns how far its RDMA device is from the processor that this runs on.
    fn numa_distance(&self) -> u32 {
        numa_distance(self.numa_node)
    }

    /// Returns how often the completion handler ran, by what started it.
    pub(crate) fn wakeups(&self) -> Wakeups {
        let wakeups = Wakeups::default();
        wakeups.events.add(self.pair.cq().events());
        wakeups.guards.add(self.pair.cq().guards());
        wakeups.reaps.add(self.reaps.load(Relaxed));
        if self.polled {
            wakeups.polled.add(self.done.receives.get());
        }
        wakeups
    }

    /// Returns the queue pair, to take it down.
    pub(crate) fn pair(&self) -> &QueuePair<Self> {
        &self.pair
    }

    fn post_receive(&self, buffer: u32) -> Result {
        let slice = self.incoming.slice(buffer as usize, BUFFER_LEN)?;
        self.pair
            .post_receive(Sge::new(slice), WorkId::new(kind::RECEIVE, buffer))
    }
}
