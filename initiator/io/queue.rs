// SPDX-License-Identifier: GPL-2.0

//! A queue pair of a session, and what it keeps for each tag.
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
//! is part of that ([`Transfer`]). A request ends only when the target
//! has no access to its memory any more: because its answer came with remote
//! invalidation, because our own invalidation completed, or, when the
//! connection is lost, because the memory region was destroyed.
//!
//! # Doorbells
//!
//! A request that is not the last for now is not posted but put behind others in a
//! [`Backlog`](hcablk_core::rdma::backlog::Backlog), and into a message with others
//! ([`send_queue`](super::send_queue)); the next that is posted takes them along, for everything
//! that the queue pair is given goes through [`Queue::ring`], unless nothing waits. That is the
//! last request of the plug, or `commit_rqs` if it never came, both within the RCU section in which
//! it was issued, so that the teardown finds nothing that waits. It is parked from the beginning;
//! if posting fails, or the queue pair has failed before, it ends with all others.
//!
//! Invalidations of our own wait there, too, until the round of completions is over
//! ([`send_queue`](super::send_queue)). Requests that a round ends are given back to the block
//! layer together.
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

use super::{
    complete::FlushAccount,
    hw_queue::Driver,
    life::Standing,
    send_queue::{
        CompletedSends,
        SendState, //
    },
    transfers::{
        Transfer,
        WriteLimits, //
    },
};
use crate::{
    batching::{
        Outstanding,
        Solicited, //
    },
    failure::Failure,
    session::Session,
    settings::Settings,
    shape::Shape,
    stats::{
        Done,
        Marks,
        Sent,
        Times,
        Wakeups, //
    },
    unflushed::Unflushed, //
};
use hcablk_core::{
    blkdev::{
        PerTag,
        Requests,
        Status,
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
        cm::Id,
        cq::{
            CompletionQueue,
            CqContext, //
        },
        device::Direction,
        pd::ProtectionDomain,
        qp::QueuePair,
        wr::{
            Sge,
            WorkId, //
        },
    },
    report::trace::State,
    sglist::SegmentList,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        new_irq_lock,
        IrqLock, //
    },
    system::numa_distance, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Kinds of work, in work ids. The index is a tag or a receive buffer.
pub(super) mod kind {
    pub(in super::super) const SEND: u8 = 1;
    pub(in super::super) const RECEIVE: u8 = 2;
    pub(in super::super) const REGISTER: u8 = 3;
    pub(in super::super) const KEEP_ALIVE: u8 = 4;
    pub(in super::super) const READ_BOUNCE: u8 = 5;
    /// The index is a sequence number of `send_queue.rs`.
    pub(in super::super) const SEQ: u8 = 6;
}

/// A started request with what there is for its tag.
pub(super) type Tagged<'a> = TaggedRequest<'a, Driver, TagData>;

/// A hardware queue of the disk and its queue pair.
///
/// Made by [`connect`](crate::connect); referenced by the session, by its
/// completion queue until that is stopped, and by the disk.
#[pin_data]
pub(crate) struct Queue {
    pub(super) index: u8,
    /// Number of the path that its session is.
    pub(super) path: u8,
    /// The NUMA node of its RDMA device.
    pub(super) numa_node: i32,
    /// Requests wait for their doorbell, as far as a disk of several paths knows, see
    /// `hw_queue.rs`.
    unrung: Atomic<bool>,
    /// Completions are found by who polls for them: nothing interrupts.
    pub(super) polled: bool,
    /// Tags of the block layer; the next one asks for nothing, see `life.rs`.
    pub(super) depth: u16,
    /// Whose queue it is, for trace events.
    pub(super) session_id: SessionId,
    pub(super) epoch: Epoch,
    /// What users have set.
    pub(super) settings: Settings,
    pub(super) session: Arc<Session>,
    pub(super) pair: QueuePair<Queue>,
    pub(super) requests: Arc<Requests<Driver>>,
    pub(super) tags: PerTag<Driver, TagData>,
    pub(super) standing: Standing,
    /// A request was turned away for want of credits, and no answer has come since: for who may
    /// choose another path.
    starved: Atomic<bool>,
    /// Ask the target to invalidate keys with its answers.
    pub(super) remote_invalidate: bool,
    /// The slots into which the target puts the data of small reads.
    pub(super) read_bounce: Option<ReadBounce>,
    pub(super) limits: WriteLimits,
    pub(super) outgoing: MessageBuffers<BUFFER_LEN>,
    pub(super) incoming: MessageBuffers<BUFFER_LEN>,
    pub(super) completed_sends: CompletedSends,
    /// What is [`Outstanding`], as a word. Written under the lock.
    outstanding: Atomic<u64>,
    pub(super) flushes: FlushAccount,
    /// How long requests take is measured.
    timing: Atomic<bool>,
    /// How often one who issues has looked for answers.
    reaps: Atomic<u64>,
    #[pin]
    pub(super) send: IrqLock<SendState>,
    pub(crate) sent: Sent,
    pub(crate) done: Done,
    pub(crate) times: Times,
}

/// What a queue has of the device and of memory.
struct Parts {
    numa_node: i32,
    pair: QueuePair<Queue>,
    tags: PerTag<Driver, TagData>,
    read_bounce: Option<ReadBounce>,
    outgoing: MessageBuffers<BUFFER_LEN>,
    incoming: MessageBuffers<BUFFER_LEN>,
    send: SendState,
}

impl Parts {
    /// Makes the parts of the connection `id`'s queue. May sleep.
    // Its stack frame is gone when the queue is put together.
    #[inline(never)]
    fn new(
        config: &QueueConfig,
        requests: &Arc<Requests<Driver>>,
        id: &Arc<Id>,
        pd: &Arc<ProtectionDomain>,
        shape: Shape,
    ) -> Result<Self> {
        let depth = usize::from(shape.depth);
        let index = config.index.into();
        let context = if config.polled {
            CqContext::Direct
        } else {
            CqContext::SoftIrq
        };
        let capacity = shape.capacity();
        let cq = CompletionQueue::new(pd, capacity.completions(), index, context)?;
        Ok(Self {
            numa_node: pd.attributes().numa_node,
            pair: QueuePair::new(id, pd, &cq, capacity)?,
            tags: PerTag::new(requests, index, |_| {
                let list = SegmentList::new(pd, shape.segments, shape.bytes)?;
                Ok(TagData::new(list))
            })?,
            read_bounce: match shape.read_bounce_slots {
                0 => None,
                slots => Some(ReadBounce::new(pd, slots, shape.small_read)?),
            },
            outgoing: MessageBuffers::new(pd, depth + 1, Direction::ToDevice)?,
            incoming: MessageBuffers::new(pd, depth, Direction::FromDevice)?,
            send: SendState::new(shape)?,
        })
    }
}

impl Queue {
    /// Makes the queue pair of the connection `id` with all its memory, and
    /// posts its receive buffers. May sleep.
    pub(crate) fn new(
        session: Arc<Session>,
        config: QueueConfig,
        requests: &Arc<Requests<Driver>>,
        id: &Arc<Id>,
        pd: &Arc<ProtectionDomain>,
        shape: Shape,
    ) -> Result<Arc<Self>> {
        let parts = Parts::new(&config, requests, id, pd, shape)?;
        let requests = requests.clone();
        let init = Self::init(session, config, requests, id.is_iwarp(), shape, parts);
        let queue = Arc::pin_init(init, GFP_KERNEL)?;
        for buffer in 0..u32::from(shape.depth) {
            queue.post_receive(buffer)?;
        }
        queue.pair.cq().start(queue.clone());
        queue.comes_to(State::Connecting);
        Ok(queue)
    }

    /// Puts a queue together that has posted nothing and accepts no requests.
    fn init(
        session: Arc<Session>,
        config: QueueConfig,
        requests: Arc<Requests<Driver>>,
        iwarp: bool,
        shape: Shape,
        parts: Parts,
    ) -> impl PinInit<Self> {
        let settings = config.settings;
        pin_init!(Self {
            index: config.index,
            path: config.session.path(),
            numa_node: parts.numa_node,
            unrung: Atomic::new(false),
            polled: config.polled,
            depth: shape.depth,
            session_id: config.session,
            epoch: config.epoch,
            settings,
            session,
            pair: parts.pair,
            requests,
            tags: parts.tags,
            standing: Standing::new(),
            starved: Atomic::new(false),
            remote_invalidate: settings.remote_invalidate,
            read_bounce: parts.read_bounce,
            limits: WriteLimits::new(shape.inline_segments, !iwarp),
            outgoing: parts.outgoing,
            incoming: parts.incoming,
            completed_sends: CompletedSends::new(),
            outstanding: Atomic::new(Outstanding::NOTHING.word()),
            flushes: FlushAccount::new(config.unflushed),
            timing: Atomic::new(false),
            reaps: Atomic::new(0),
            send <- new_irq_lock!(parts.send, "hcablk_send"),
            sent: Sent::default(),
            done: Done::default(),
            times: Times::default(),
        })
    }
}

impl Queue {
    /// Sets whether to measure how long requests take that are issued from now on.
    pub(crate) fn time(&self, on: bool) {
        self.timing.store(on, Relaxed);
    }

    /// Returns whether it is measured how long requests take.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.timing.load(Relaxed)
    }

    /// Looks for answers in the name of one who issues. Without the lock.
    pub(super) fn reap(&self) {
        self.reaps.fetch_add(1, Relaxed);
        self.pair.cq().reap();
    }

    /// Publishes what the completion handler is to arm the completion queue for, after a change
    /// of what is outstanding. Under the lock.
    #[inline]
    pub(super) fn update_notify(&self, send: &SendState) {
        let now = send.batching.outstanding();
        self.outstanding.store(now.word(), Relaxed);
    }

    /// Returns what was outstanding a moment ago.
    #[inline]
    pub(super) fn outstanding(&self) -> Outstanding {
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
        self.standing.is_live()
    }

    /// Notes whether its credits are used up.
    pub(super) fn set_starved(&self, starved: bool) {
        self.starved.store(starved, Relaxed);
    }

    /// Notes that requests wait for their doorbell, behind these: whoever rings it finds them.
    pub(super) fn leave_unrung(&self) {
        self.unrung.store(true, Relaxed);
    }

    /// Takes note that the doorbell is about to be rung. Returns whether requests wait for it.
    pub(super) fn take_unrung(&self) -> bool {
        self.unrung.load(Relaxed) && self.unrung.xchg(false, Full)
    }

    /// Returns whether its credits were used up a moment ago.
    #[inline]
    pub(super) fn is_starved(&self) -> bool {
        self.starved.load(Relaxed)
    }

    pub(crate) fn index(&self) -> u8 {
        self.index
    }

    /// Returns how far its RDMA device is from the processor that this runs on.
    pub(super) fn numa_distance(&self) -> u32 {
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

    pub(super) fn post_receive(&self, buffer: u32) -> Result {
        let slice = self.incoming.slice(buffer as usize, BUFFER_LEN)?;
        self.pair
            .post_receive(Sge::new(slice), WorkId::new(kind::RECEIVE, buffer))
    }
}

/// Where a request is, see the picture above.
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
/// a list, see `send_queue.rs`.
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

/// Which queue it is, of which session, and how users want it.
pub(crate) struct QueueConfig {
    pub(crate) session: SessionId,
    pub(crate) epoch: Epoch,
    pub(crate) index: u8,
    /// For polled I/O.
    pub(crate) polled: bool,
    /// What users have set.
    pub(crate) settings: Settings,
    /// The disk's account of writes that no flush has covered.
    pub(crate) unflushed: Arc<Unflushed>,
}

impl Queue {
    /// Ends the session because of `failure`. Any context.
    #[cold]
    pub(super) fn end_session(&self, failure: Failure) {
        self.session.fail(failure);
    }
}
