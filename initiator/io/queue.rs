// SPDX-License-Identifier: GPL-2.0

//! A queue pair of a session, with its state for each tag.
//!
//! # States of a request
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
//! The data of a small write goes with the request's message. The HCA may read it until the SEND
//! has completed, which may be after the response:
//!
//! ```text
//!                    response, SEND completed before                  completion
//!  Sent, `Inline` ──────────────────────────────────► (ended) ◄────────────────── Responded
//!        │                                                                            ▲
//!        └────────────────── response, SEND not yet completed ────────────────────────┘
//! ```
//!
//! If a request ends while its region is still registered, an invariant is broken. The request
//! becomes *Kept*: parked until the end of the session has destroyed the region.
//!
//! An eager write behaves as an inline write does: its RDMA WRITE takes the place of the SEND. From
//! `Sent` on, the request is parked in its place of the queue, which has its state ([`Phase`]) with
//! its data path ([`DataPath`]). A request ends only when the target has lost access to its memory:
//! its response came with remote invalidation, or our own invalidation completed, or, after the
//! connection was lost, the memory region was destroyed.
//!
//! # Doorbells
//!
//! A request that others follow at once is not posted: it waits in a
//! [`Backlog`](hcablk_core::rdma::backlog::Backlog), and shares a message with others
//! ([`send_queue`](super::send_queue)). The next posting includes them, since all work for the
//! queue pair goes through [`Queue::ring`] unless the backlog is empty. That posting is the last
//! request of the plug, or `commit_rqs` if the last one never came. Both run within the RCU section
//! in which the request was issued, so the teardown finds an empty backlog. A request is parked
//! before it is posted; if posting fails, or the queue pair has failed before, it ends with all
//! others.
//!
//! Our own invalidations also wait in the backlog until the round of completions is over
//! ([`send_queue`](super::send_queue)). All requests that end in one round return to the block
//! layer together.
//!
//! # CQ notification
//!
//! Only responses are solicited. The completion of a SEND raises no event: the round that handles
//! the next response finds it, unless the request's response came before. Errors raise no event
//! either: every keep-alive polls the queue to find them.
//!
//! # Polled I/O
//!
//! The last queues of a session may be for polled I/O (`REQ_POLLED`): the block layer routes
//! nothing else to them, and they never interrupt. A task that waits for a request polls for
//! completions ([`Operations::poll`](hcablk_core::blkdev::Operations::poll)). If the task does not
//! (it was stopped, or killed), the keep-alive timer polls every period, and a request's timeout
//! polls before it gives the queue up.
//!
//! # Locks and contexts
//!
//! One lock, `send`: taken once to issue a request and once for its response. It serializes the
//! accounts of credits and of send queue slots, and the doorbells. It also orders the parking of a
//! request before its response takes the request. The completion of a SEND takes no lock: it adds
//! the freed slots to a sum, which the account reads when it runs short. The end of a request's
//! wait for its send is accounted for under the lock of the next response, or under a separate
//! acquisition at the end of a round. Issuing runs in process or softirq context; completions run
//! in softirq context or in the poller's, one at a time for a queue.

use super::{
    data_paths::{
        DataPath,
        WriteLimits, //
    },
    hw_queue::Driver,
    life::Standing,
    send_queue::{
        CompletedSends,
        SendState, //
    },
    user::QueueUser,
};
use crate::{
    batching::{
        Outstanding,
        Solicited, //
    },
    failure::Failure,
    session::{
        Attachment,
        Session, //
    },
    settings::Settings,
    shape::QueueShape,
    stats::{
        Done,
        Marks,
        Sent,
        Wakeups, //
    }, //
};
use hcablk_core::{
    blkdev::{
        PerTag,
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
    report::trace::ConnectionState,
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

/// A started request with its tag's data.
pub(super) type Tagged<'a> = TaggedRequest<'a, Driver, TagData>;

/// A hardware queue of the disk and its queue pair.
///
/// Created by [`connect`](crate::connect); referenced by the session, by the disk, and by its
/// completion queue until that is stopped.
#[pin_data]
pub(crate) struct Queue {
    pub(super) index: u8,
    /// Number of its session's path.
    pub(super) path: u8,
    /// The NUMA node of its RDMA device.
    pub(super) numa_node: i32,
    /// Requests wait for their doorbell; only maintained on a disk of several paths, see
    /// `hw_queue.rs`.
    unrung: Atomic<bool>,
    /// Only polling finds completions: the queue never interrupts.
    pub(super) polled: bool,
    /// Number of the places, whose numbers are the tags of requests; the next tag is the nop's, see
    /// `life.rs`.
    pub(super) depth: u16,
    /// The session of the queue, for trace events.
    pub(super) session_id: SessionId,
    pub(super) epoch: Epoch,
    /// The administrator's settings.
    pub(super) settings: Settings,
    pub(super) session: Arc<Session>,
    /// The disks whose requests use the queue.
    #[pin]
    users: IrqLock<KVec<Arc<QueueUser>>>,
    pub(super) pair: QueuePair<Queue>,
    pub(super) tags: PerTag<Driver, TagData>,
    pub(super) standing: Standing,
    /// The queue refused a request for lack of credits, and no response has arrived since: a
    /// hardware queue may then choose another path.
    starved: Atomic<bool>,
    /// The target is asked to invalidate keys with its responses.
    pub(super) remote_invalidate: bool,
    /// The slots into which the target puts the data of small reads.
    pub(super) read_bounce: Option<ReadBounce>,
    pub(super) limits: WriteLimits,
    pub(super) outgoing: MessageBuffers<BUFFER_LEN>,
    pub(super) incoming: MessageBuffers<BUFFER_LEN>,
    pub(super) completed_sends: CompletedSends,
    /// [`Outstanding`], encoded in a word. Written under the lock.
    outstanding: Atomic<u64>,
    /// How often an issuer has polled for responses.
    reaps: Atomic<u64>,
    #[pin]
    pub(super) send: IrqLock<SendState>,
    pub(crate) sent: Sent,
    pub(crate) done: Done,
}

/// A queue's device resources and memory.
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
    /// Creates the parts of the queue for the connection `id`. May sleep.
    // `inline(never)`: its stack frame is released before the queue is assembled.
    #[inline(never)]
    fn new(
        config: &QueueConfig,
        id: &Arc<Id>,
        pd: &Arc<ProtectionDomain>,
        shape: QueueShape,
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
            tags: PerTag::new(shape.depth, |_| {
                let mut list = SegmentList::new(pd, shape.segments, shape.bytes)?;
                if shape.write_bounce {
                    list.add_slot();
                }
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
    /// Creates the queue pair of the connection `id` with all its memory, and posts its receive
    /// buffers. May sleep.
    pub(crate) fn new(
        session: Arc<Session>,
        config: QueueConfig,
        id: &Arc<Id>,
        pd: &Arc<ProtectionDomain>,
        shape: QueueShape,
    ) -> Result<Arc<Self>> {
        let parts = Parts::new(&config, id, pd, shape)?;
        let init = Self::init(session, config, id.is_iwarp(), shape, parts);
        let queue = Arc::pin_init(init, GFP_KERNEL)?;
        for attachment in queue.session.attachments() {
            queue.add_user(attachment)?;
        }
        for buffer in 0..u32::from(shape.depth) {
            queue.post_receive(buffer)?;
        }
        queue.pair.cq().start(queue.clone());
        queue.trace_state(ConnectionState::Connecting);
        Ok(queue)
    }

    /// Assembles a queue that has posted nothing and accepts no requests.
    fn init(
        session: Arc<Session>,
        config: QueueConfig,
        iwarp: bool,
        shape: QueueShape,
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
            users <- new_irq_lock!(KVec::new(), "hcablk_users"),
            session,
            pair: parts.pair,
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
            reaps: Atomic::new(0),
            send <- new_irq_lock!(parts.send, "hcablk_send"),
            sent: Sent::default(),
            done: Done::default(),
        })
    }
}

impl Queue {
    /// Adds a user. May sleep. The caller serializes additions.
    fn add_user(&self, attachment: Arc<Attachment>) -> Result {
        let user = QueueUser::new(attachment)?;
        let count = self.users.lock().len();
        let mut larger = KVec::with_capacity(count + 1, GFP_KERNEL)?;
        for index in 0..count {
            if let Some(former) = self.user_at(index) {
                larger.push(former, GFP_KERNEL)?;
            }
        }
        larger.push(user, GFP_KERNEL)?;
        let former = core::mem::replace(&mut *self.users.lock(), larger);
        drop(former);
        Ok(())
    }

    fn user_at(&self, index: usize) -> Option<Arc<QueueUser>> {
        self.users.lock().get(index).cloned()
    }

    /// Returns the users. Any context.
    pub(crate) fn users(&self) -> impl Iterator<Item = Arc<QueueUser>> + '_ {
        (0..).map_while(|index| self.user_at(index))
    }

    /// Returns the disk `attachment` as a user. Any context.
    pub(crate) fn user(&self, attachment: &Attachment) -> Option<Arc<QueueUser>> {
        self.users()
            .find(|user| core::ptr::eq(user.attachment(), attachment))
    }

    /// Measures the durations of the requests of the same users as `old` does.
    pub(crate) fn time_as(&self, old: &Self) {
        for user in self.users() {
            let former = old.user(user.attachment());
            user.set_timing(former.is_some_and(|former| former.is_timed()));
        }
    }

    /// Returns whether the session was made a path of a disk. Any context.
    pub(crate) fn is_admitted(&self) -> bool {
        self.users().any(|user| user.attachment().is_admitted())
    }

    /// Polls for responses on behalf of an issuer. Call without the lock.
    pub(super) fn reap(&self) {
        self.reaps.fetch_add(1, Relaxed);
        self.pair.cq().reap();
    }

    /// Publishes the event for which the completion handler must arm the completion queue, after a
    /// change of the outstanding requests. Under the lock.
    #[inline]
    pub(super) fn update_notify(&self, send: &SendState) {
        let now = send.batching.outstanding();
        self.outstanding.store(now.word(), Relaxed);
    }

    /// Returns the outstanding requests; the value may be stale.
    #[inline]
    pub(super) fn outstanding(&self) -> Outstanding {
        Outstanding::from_word(self.outstanding.load(Relaxed))
    }

    /// Returns how many requests wait for their responses; the value may be stale.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.outstanding().requests()
    }

    /// Returns whether the queue accepts requests at this moment.
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.standing.is_live()
    }

    /// Notes whether the queue's credits are used up.
    pub(super) fn set_starved(&self, starved: bool) {
        self.starved.store(starved, Relaxed);
    }

    /// Notes that requests wait for their doorbell. They are queued before this store, so the code
    /// that rings the doorbell finds them.
    pub(super) fn leave_unrung(&self) {
        self.unrung.store(true, Relaxed);
    }

    /// Clears the note that requests wait, right before their doorbell is rung. Returns whether any
    /// waited.
    pub(super) fn take_unrung(&self) -> bool {
        self.unrung.load(Relaxed) && self.unrung.xchg(false, Full)
    }

    /// Returns whether the queue's credits were used up; the value may be stale.
    #[inline]
    pub(super) fn is_starved(&self) -> bool {
        self.starved.load(Relaxed)
    }

    pub(crate) fn index(&self) -> u8 {
        self.index
    }

    /// Returns the NUMA distance between the queue's RDMA device and the current processor.
    pub(super) fn numa_distance(&self) -> u32 {
        numa_distance(self.numa_node)
    }

    /// Returns how often the completion handler ran, for each of its triggers.
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

    /// Returns the queue pair, for the teardown.
    pub(crate) fn pair(&self) -> &QueuePair<Self> {
        &self.pair
    }

    pub(super) fn post_receive(&self, buffer: u32) -> Result {
        let slice = self.incoming.slice(buffer as usize, BUFFER_LEN)?;
        self.pair
            .post_receive(Sge::new(slice), WorkId::new(kind::RECEIVE, buffer))
    }
}

/// The state of a request, see the picture above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The target has no request with this tag.
    Idle,
    /// The target may work on the request.
    Sent {
        /// How the request's data moves.
        data_path: DataPath,
        /// Whether its response raises an event.
        solicited: Solicited,
    },
    /// The response came; the key is being invalidated.
    Invalidating(Awaited),
    /// The response came; our HCA may still be sending the data.
    Responded(Awaited),
    /// The request had to end while the target could still reach its memory: it ends with the
    /// session.
    Kept,
}

/// The completion that a request awaits after its response, of a work request of our own. Such
/// requests form a list, see `send_queue.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Awaited {
    /// The status with which the request ends.
    pub(super) status: Status,
    /// Sequence number of the work request.
    pub(super) seq: u32,
    /// The next tag in the list.
    pub(super) next: u32,
}

/// The data of one tag.
pub(super) struct TagData {
    pub(super) phase: Phase,
    /// The user of the last request; see [`user`](super::user).
    user: Option<Arc<QueueUser>>,
    /// When the request entered its phase, if durations are measured.
    pub(super) marks: Marks,
    /// The request's segments, in the state that its data path demands.
    pub(super) list: SegmentList,
}

impl TagData {
    /// Creates the data of a tag whose requests have their segments in `list`.
    pub(super) fn new(list: SegmentList) -> Self {
        Self {
            phase: Phase::Idle,
            user: None,
            marks: Marks::default(),
            list,
        }
    }

    /// Sets the user of a request that has just got the tag.
    #[inline(always)]
    pub(super) fn set_user(&mut self, user: &Arc<QueueUser>) {
        let is_same = |own: &Arc<QueueUser>| Arc::ptr_eq(own, user);
        if !self.user.as_ref().is_some_and(is_same) {
            self.change_user(user);
        }
    }

    #[cold]
    #[inline(never)]
    fn change_user(&mut self, user: &Arc<QueueUser>) {
        self.user = Some(user.clone());
    }

    /// Records that the request ends, and measures its durations if they are measured.
    #[inline(always)]
    pub(super) fn end_marks(&mut self) {
        if let Some(user) = &self.user {
            self.marks.end(&user.times);
        }
    }

    /// Returns the user of the request; `None` if the tag never had one.
    #[inline(always)]
    pub(super) fn user(&self) -> Option<&QueueUser> {
        self.user.as_deref()
    }
}

/// Identity and settings of a queue.
pub(crate) struct QueueConfig {
    pub(crate) session: SessionId,
    pub(crate) epoch: Epoch,
    pub(crate) index: u8,
    /// For polled I/O.
    pub(crate) polled: bool,
    /// The user's settings.
    pub(crate) settings: Settings,
}

impl Queue {
    /// Ends the session because of `failure`. Any context.
    #[cold]
    pub(super) fn end_session(&self, failure: Failure) {
        self.session.fail(failure);
    }
}
