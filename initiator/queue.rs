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
//!  Sent, `sending` ─────────────────────────────────► (ended) ◄─────────────────── Answered
//!        │                                                                            ▲
//!        └────────────────── response, SEND not yet completed ────────────────────────┘
//! ```
//!
//! From `Sent` on the request is parked in the table of requests; the state is
//! kept beside it for its tag ([`Phase`]). A request ends only when the target
//! has no access to its memory any more: because its answer came with remote
//! invalidation, because our own invalidation completed, or, when the
//! connection is lost, because the memory region was destroyed.
//!
//! # Doorbells
//!
//! A request that is not the last for now is not
//! posted but put behind others in a [`Backlog`], and into a message with others
//! ([`message_batch`]); the next that is posted takes
//! them along, for everything that the queue pair is given goes through
//! [`Queue::ring`]. That is the last request of the plug, or `commit_rqs` if it
//! never came, both within the RCU section in which it was issued, so that
//! the teardown finds nothing that waits. It is parked from the beginning; if posting
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
//! The last queues of a session may be for polled I/O (`REQ_POLLED`): the
//! block layer routes nothing else to them, and nothing interrupts there. Who
//! waits for a request looks for completions ([`Operations::poll`]). If he
//! does not (he was stopped, or killed), the keep-alive timer does, every period, and so
//! does a request's timeout before it gives the queue up.
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
    batching::{
        ArmFor,
        Batching,
        Solicited, //
    },
    session::Session,
    shape::{
        Shape,
        INLINE_SEGMENTS, //
    },
    stats::{
        Done,
        Marks,
        Sent,
        Times,
        Wakeups, //
    },
};
use hcablk_core::{
    blkdev::{
        PerTag,
        Requests,
        Status, //
    },
    broken,
    memory::read_bounce::ReadBounce,
    proto::{
        connect::Reply,
        credits::Credits,
        grant::{
            open_writes,
            Ring,
            Taken, //
        },
        message::BUFFER_LEN, //
    },
    rdma::{
        backlog::Backlog,
        buffer::MessageBuffers,
        cm::Id,
        cq::{
            CompletionQueue,
            CqContext, //
        },
        device::Direction,
        pd::ProtectionDomain,
        qp::QueuePair,
        space::SendSpace,
        wr::{
            Chain,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
    report::trace::State, //
    sglist::SegmentList,
    sync::{
        new_irq_lock,
        IrqLock, //
    },
};
use kernel::{
    pr_info_once,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed,
            Release, //
        },
        Arc, //
    },
};

mod complete;
mod driver;
mod eager;
mod end;
mod events;
mod issue;
mod message_batch;
mod size;
mod status;
mod wr_seq;

use eager::EagerState;
use message_batch::MessageBatch;
use size::Size;

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

/// What the disk's operations are called on.
pub(crate) struct Driver;

/// Where a request is, see the module's picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
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
pub(crate) struct TagData {
    phase: Phase,
    /// Slots reserved for this request that are still to be used.
    slots: u32,
    /// The data comes into the read bounce slot of this tag.
    read_bounce: bool,
    /// Whether its response raises an event.
    solicited: Solicited,
    /// The data goes with the request, in the work request of `seq`.
    sending: bool,
    /// Sequence number of the work request that must have completed before this request ends, if
    /// there is one.
    seq: u32,
    /// The next tag in the list of requests that await their send's completion.
    next: u32,
    /// When it came where it is, if that is measured.
    marks: Marks,
    /// It is an eager write, which is answered by its number.
    eager: bool,
    list: SegmentList,
}

/// What `Queue::send` guards.
struct SendState {
    space: SendSpace,
    credits: Credits,
    /// A request was turned away for want of credits or slots.
    starved: bool,
    /// See [`Queue::stop`].
    stopped: bool,
    size: Size,
    batching: Batching,
    eager_state: EagerState,
    /// Which slots of the eager ring are taken, and by which tags.
    ring: Ring<KVec<Taken>>,
    /// What waits for the last of a plug, or for whatever else is posted.
    backlog: Backlog<{ INLINE_SEGMENTS + 1 }>,
    /// The last work request with a sequence number in it.
    waiting: Option<wr_seq::BackloggedWr>,
    /// Requests that the next message carries.
    batch: MessageBatch,
    /// The last sequence number that was allocated.
    last_seq: u32,
}

impl SendState {
    /// Takes a credit and `slots`, or neither and remembers that somebody waits.
    #[inline]
    fn reserve(&mut self, slots: u32, freed: impl FnOnce() -> u32) -> bool {
        if self.space.reserve(slots, freed) {
            if self.credits.take() {
                return true;
            }
            self.space.release(slots);
        }
        self.starved = true;
        false
    }

    /// Gives back what [`Self::reserve`] took.
    #[cold]
    fn unreserve(&mut self, slots: u32) {
        self.space.release(slots);
        if self.credits.grant(1).is_err() {
            // All are there, so none is lost.
            broken!("a credit is given back that was not taken");
        }
        // There is one now, so something can be asked.
        let _ = self.credits.answered();
    }

    /// Takes back a reservation, and a request that was counted as issued.
    #[cold]
    fn withdraw(&mut self, slots: u32, solicited: Solicited) {
        self.unreserve(slots);
        self.batching.answered(solicited);
    }
}

/// A hardware queue of the disk and its queue pair.
///
/// Made by [`connect`](crate::connect); referenced by the session, by its
/// completion queue until that is stopped, and by the disk.
#[pin_data]
pub(crate) struct Queue {
    index: u8,
    /// Completions are found by who polls for them: nothing interrupts.
    polled: bool,
    /// A keep-alive that has completed does not prove that the target is there (iWARP): it has
    /// to send something.
    needs_rx: bool,
    /// Tags of the block layer; the next one asks for the size.
    depth: u16,
    session: Arc<Session>,
    pair: QueuePair<Queue>,
    requests: Arc<Requests<Driver>>,
    tags: PerTag<Driver, TagData>,
    /// Requests are accepted.
    live: Atomic<bool>,
    /// One was not answered in time: another queue pair comes in place of this one, see `end.rs`.
    timed_out: Atomic<bool>,
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
    outgoing: MessageBuffers,
    incoming: MessageBuffers,
    /// Slots of the send queue that completions have freed so far, modulo 2^32. Written
    /// by the completion handler only.
    freed: Atomic<u32>,
    /// The sequence number of the last work request that has completed. Only used by the
    /// completion handler.
    completed_seq: Atomic<u32>,
    /// The first tag whose request awaits its send's completion, or [`wr_seq::NO_TAG`]. Only used
    /// by the completion handler.
    awaiting_send: Atomic<u32>,
    /// Requests whose awaited send has completed, but for which `batching` still arms. Only used
    /// by the completion handler.
    awaited_sends: Atomic<u32>,
    /// A keep-alive is under way.
    keep_alive_pending: Atomic<bool>,
    /// What [`Batching::arm_for`] returned last: an [`ArmFor`]. Written under the lock.
    arm_for: Atomic<u32>,
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
    /// Makes the queue pair of the connection `id` with all its memory, and
    /// posts its receive buffers. May sleep.
    pub(crate) fn new(
        session: &Arc<Session>,
        index: u8,
        id: &Arc<Id>,
        pd: &Arc<ProtectionDomain>,
        shape: Shape,
    ) -> Result<Arc<Self>> {
        let depth = usize::from(shape.depth);
        let requests = session.requests();
        let polled = session.is_polled(index);
        let capacity = shape.capacity();
        let cq = CompletionQueue::new(
            pd,
            capacity.completions(),
            index.into(),
            if polled {
                CqContext::Direct
            } else {
                CqContext::SoftIrq
            },
        )?;
        let pair = QueuePair::new(id, pd, &cq, capacity)?;
        let tags = PerTag::new(requests, index.into(), |_| {
            Ok(TagData {
                phase: Phase::Idle,
                slots: 0,
                read_bounce: false,
                solicited: Solicited::Yes,
                sending: false,
                seq: 0,
                next: wr_seq::NO_TAG,
                marks: Marks::default(),
                eager: false,
                list: SegmentList::new(pd, shape.segments, shape.bytes)?,
            })
        })?;
        let read_bounce = match shape.read_bounce_slots {
            0 => None,
            slots => Some(ReadBounce::new(pd, slots, shape.small_read)?),
        };
        let mut taken = KVec::new();
        taken.resize(open_writes(shape.depth), Taken::default(), GFP_KERNEL)?;
        let backlog = Backlog::new(depth.min(PLUG))?;
        let outgoing = MessageBuffers::new(pd, depth + 1, BUFFER_LEN, Direction::ToDevice)?;
        let incoming = MessageBuffers::new(pd, depth, BUFFER_LEN, Direction::FromDevice)?;
        let queue = Arc::pin_init(
            pin_init!(Self {
                index,
                polled,
                needs_rx: id.is_iwarp(),
                depth: shape.depth,
                session: session.clone(),
                pair,
                requests: requests.clone(),
                tags,
                live: Atomic::new(false),
                timed_out: Atomic::new(false),
                remote_invalidate: session.settings().remote_invalidate,
                read_bounce,
                inline_limit: Atomic::new(0),
                inline_segments: shape.inline_segments,
                eager_limit: Atomic::new(0),
                only_eager: Atomic::new(false),
                immediates: !id.is_iwarp(),
                outgoing,
                incoming,
                freed: Atomic::new(0),
                completed_seq: Atomic::new(0),
                awaiting_send: Atomic::new(wr_seq::NO_TAG),
                awaited_sends: Atomic::new(0),
                keep_alive_pending: Atomic::new(false),
                arm_for: Atomic::new(ArmFor::Solicited as u32),
                timing: Atomic::new(false),
                reaps: Atomic::new(0),
                send <- new_irq_lock!(SendState {
                    space: SendSpace::new(shape.send_slots(), shape.signal_period()),
                    credits: Credits::new(0),
                    starved: false,
                    stopped: false,
                    size: Size::Nothing,
                    batching: Batching::new(0, 0),
                    eager_state: EagerState::Never,
                    ring: Ring::new(0, 0, taken),
                    backlog,
                    waiting: None,
                    batch: MessageBatch::new(),
                    last_seq: 0,
                }, "hcablk_send"),
                sent: Sent::default(),
                done: Done::default(),
                times: Times::default(),
            }),
            GFP_KERNEL,
        )?;
        for buffer in 0..u32::from(shape.depth) {
            queue.post_receive(buffer)?;
        }
        cq.start(queue.clone());
        queue.comes_to(State::Connecting);
        Ok(queue)
    }

    /// Starts accepting requests, after the target has accepted the connection and granted its
    /// first credits. Posts the registration of the read bounce slots first. May fail as posting
    /// does, and with `ENOMEM` without a send queue slot for that.
    pub(crate) fn go_live(&self, reply: &Reply) -> Result {
        let settings = self.session.settings();
        let inline = reply.inline.min(settings.small_write);
        self.inline_limit.store(inline, Relaxed);
        let mut send = self.send.lock();
        if send.stopped {
            // The session has ended meanwhile, as whoever brings it up will see.
            return Ok(());
        }
        send.credits = Credits::new(reply.credits);
        let most = reply
            .requests_per_message()
            .min(settings.message_requests as usize)
            .min(usize::from(self.inline_segments) + 1);
        send.batch.set_limit(most);
        self.take_ring(&mut send, reply);
        if self.polled {
            // There is nothing to batch.
        } else if reply.quiet {
            send.batching = Batching::new(settings.batch_upper, settings.batch_lower);
        } else {
            // Its responses may not be solicited at all.
            self.pair.cq().notify_all();
            if settings.batch_upper != 0 {
                pr_info_once!("a target cannot batch interrupts: each answer makes one\n");
            }
        }
        if let Some(read_bounce) = &self.read_bounce {
            if !send.space.reserve(1, || self.freed()) {
                return Err(ENOMEM);
            }
            let slots = send.space.post_signaled(1);
            let mut register = read_bounce.register();
            register.signal(WorkId::new(kind::READ_BOUNCE, 0).freeing(slots));
            let mut chain = Chain::new();
            chain.push(&mut register);
            self.ring(&mut send, &chain)?;
        }
        if reply.no_read && send.space.reserve(1, || self.freed()) {
            // Nothing can be written before something was answered.
            self.post_size_request(&mut send).ok_or(EIO)??;
        }
        self.live.store(true, Release);
        drop(send);
        self.comes_to(State::Live);
        Ok(())
    }

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
        self.arm_for.store(send.batching.arm_for() as u32, Relaxed);
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
