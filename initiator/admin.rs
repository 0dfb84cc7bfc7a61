// SPDX-License-Identifier: GPL-2.0

//! A path's admin queue pair, which is connected before the others and begins the session at the
//! target: keep-alives, fences, and the watch by which the target tells what changes. Losing it is
//! losing the path.
//!
//! `admin/life.rs` has its states, `admin/state.rs` what is in flight.
//!
//! - A keep-alive is sent every half of `keep_alive_tmo`. One that is not answered for all of that
//!   ends the session: the target answers at once, whatever its drive does.
//! - [`Admin::ask_fence`] asks whether something of another path can still reach the drive
//!   (`admin/fence.rs`), and [`Admin::ask_durable`], in the end, whether what was acknowledged is
//!   durable.
//! - A watch is always with the target, which answers it when the volume has changed or its export
//!   ends.
//! - So is a request to be told of the target's portals, if the target does that.
//!
//! Of each there is one in flight. The tag is its [kind](tag), the generation counts the requests
//! of that kind. The messages have buffers, credits and slots of their own: nothing that the block
//! layer does keeps them from going out.
//!
//! # Locks and contexts
//!
//! Completions run in softirq context, one at a time; the timer runs on a workqueue of the
//! module's, also when memory is short. What is in flight is under one irq lock, `state`, inside
//! which nothing is locked; `fencing` and `reserver` are mutexes that are held over an answer.

use self::state::{
    period_ms,
    tag,
    State,
    SENDS, //
};
use crate::{
    failure::{
        Failure,
        Step,
        Violation, //
    },
    stats::AdminCounts, //
};
use hcablk_core::{
    proto::{
        connect::{
            Epoch,
            SessionId, //
        },
        message::{
            AdminRequest,
            Tag,
            BUFFER_LEN, //
        },
        ADMIN_DEPTH,
        ADMIN_QUEUE, //
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
        qp::{
            Capacity,
            QueuePair, //
        },
        wr::{
            Chain,
            Send,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
    report::stats::Counter,
    sync::{
        new_irq_lock,
        Event,
        IrqLock,
        Periodic,
        Running,
        WorkQueue, //
    },
    system::Deadline, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

mod answer;
mod fence;
mod life;
mod owner;
mod portals;
mod reserve;
mod state;
mod timer;

pub(crate) use self::owner::AdminOwner;
pub(crate) use self::state::{
    News,
    Watching, //
};

/// Kinds of work, in work ids. The index is that of a message's buffer.
mod kind {
    pub(super) const SEND: u8 = 1;
    pub(super) const RECEIVE: u8 = 2;
}

/// See the module. The session has it until its teardown; so have its completion queue and its
/// timer.
#[pin_data]
pub(crate) struct Admin {
    owner: Arc<dyn AdminOwner>,
    /// Number of the path that its session is.
    path: u8,
    /// Seconds for which a keep-alive may be unanswered.
    tmo_s: u16,
    pair: QueuePair<Admin>,
    incoming: MessageBuffers<BUFFER_LEN>,
    outgoing: MessageBuffers<BUFFER_LEN>,
    #[pin]
    state: IrqLock<State>,
    /// Held by who asks for a fence.
    #[pin]
    fencing: Mutex<()>,
    #[pin]
    fence_answered: Event,
    /// The volume was told, or nothing comes any more.
    #[pin]
    told: Event,
    /// Held by who asks for a reservation.
    #[pin]
    reserver: Mutex<()>,
    #[pin]
    reserve_answered: Event,
    #[pin]
    timer: Mutex<Option<Running<Admin>>>,
    /// Written under the lock.
    pub(crate) counts: AdminCounts,
    /// Violations of the protocol by the target. Written by the completion handler.
    pub(crate) protocol_errors: Counter,
}

impl Admin {
    const CAPACITY: Capacity = Capacity {
        sends: SENDS,
        receives: ADMIN_DEPTH as u32,
        send_entries: 1,
        receive_entries: 1,
    };

    /// Makes the queue pair of the connection `id` and posts its receive buffers; the session gives
    /// up when a keep-alive is not answered for `tmo_s` seconds. May sleep.
    pub(crate) fn new(
        owner: Arc<dyn AdminOwner>,
        session: SessionId,
        tmo_s: u16,
        id: &Arc<Id>,
        pd: &Arc<ProtectionDomain>,
    ) -> Result<Arc<Self>> {
        let capacity = Self::CAPACITY;
        let cq = CompletionQueue::new(pd, capacity.completions(), 0, CqContext::SoftIrq)?;
        let pair = QueuePair::new(id, pd, &cq, capacity)?;
        let receives = capacity.receives as usize;
        let incoming = MessageBuffers::new(pd, receives, Direction::FromDevice)?;
        let outgoing = MessageBuffers::new(pd, tag::KINDS, Direction::ToDevice)?;
        let admin = Arc::pin_init(
            pin_init!(Self {
                owner,
                path: session.path(),
                tmo_s,
                pair,
                incoming,
                outgoing,
                state <- new_irq_lock!(State::new(), "hcablk_admin"),
                fencing <- new_mutex!(()),
                fence_answered <- Event::new(),
                told <- Event::new(),
                reserver <- new_mutex!(()),
                reserve_answered <- Event::new(),
                timer <- new_mutex!(None),
                counts: AdminCounts::default(),
                protocol_errors: Counter::default(),
            }),
            GFP_KERNEL,
        )?;
        for buffer in 0..ADMIN_DEPTH.into() {
            admin.post_receive(buffer)?;
        }
        admin.pair.cq().start(admin.clone());
        Ok(admin)
    }

    /// Returns the number of the path that its session is.
    pub(crate) fn path(&self) -> u8 {
        self.path
    }

    /// Returns the number of the queue pair, as the transport tells it to the target.
    pub(crate) fn queue_pair(&self) -> u32 {
        self.pair.own_number()
    }

    /// Begins to send keep-alives, on `queue`, and to watch the volume. May sleep.
    pub(crate) fn go_live(self: &Arc<Self>, queue: &Arc<WorkQueue>, watching: Watching) -> Result {
        {
            let mut state = self.state.lock();
            if !state.go_live(watching) {
                // The session has ended meanwhile, as whoever brings it up will see.
                return Ok(());
            }
            self.send_keep_alive(&mut state)?;
            self.send_watch(&mut state)?;
        }
        let timer = Periodic::start_on(queue, self.clone(), period_ms(self.tmo_s))?;
        let mut place = self.timer.lock();
        if self.state.lock().is_live() {
            *place = Some(timer);
            return Ok(());
        }
        drop(place);
        drop(timer);
        Ok(())
    }

    /// Returns whether it is the target that has granted it.
    pub(crate) fn is_of_target(&self) -> bool {
        self.state.lock().life().is_of_target()
    }

    /// Sends nothing any more, and wakes who waits for an answer. May sleep.
    pub(crate) fn stop(&self) {
        let timer = {
            let mut place = self.timer.lock();
            self.state.lock().stop();
            place.take()
        };
        drop(timer);
        self.fence_answered.set();
        self.reserve_answered.set();
        self.told.set();
    }

    /// Returns what the target has told of the volume, for which this waits until `deadline`: it
    /// follows the session's begin at once. Sleeps.
    pub(crate) fn first_news(&self, deadline: Deadline) -> Result<News, Failure> {
        let waited = self.told.wait_interruptible_ms(deadline.left_ms());
        match (self.news(), waited) {
            (Some(news), _) => Ok(news),
            (None, Err(e)) => Err(Failure::of_wait(e, Step::Answer)),
            (None, Ok(())) => Err(Failure::Disconnected),
        }
    }

    /// Begins to take the queue pair down. May sleep.
    pub(crate) fn shut(&self) {
        self.stop();
        self.pair.disconnect();
        self.pair.begin_drain();
    }

    /// Takes the queue pair down and cuts the references back to it. Sleeps.
    pub(crate) fn close(&self) {
        self.take_down();
        self.pair.detach();
    }

    /// Closes it as [`Self::close`], but events of its connection identifier are still reported.
    /// Whoever calls this detaches that.
    pub(crate) fn take_down(&self) {
        self.shut();
        self.pair.drain();
        self.pair.cq().stop();
    }

    /// Returns its queue pair, to bring it up.
    pub(crate) fn pair(&self) -> &QueuePair<Self> {
        &self.pair
    }

    /// Returns its connection identifier; `None` if its queue pair was severed, which the initiator
    /// does not do.
    pub(crate) fn id(&self) -> Option<Arc<Id>> {
        self.pair.id()
    }

    fn post_receive(&self, buffer: u32) -> Result {
        let slice = self.incoming.slice(buffer as usize, BUFFER_LEN)?;
        self.pair
            .post_receive(Sge::new(slice), WorkId::new(kind::RECEIVE, buffer))
    }

    /// Posts a request that is recorded as sent; nothing if there is none. Under the lock.
    fn post(&self, _state: &mut State, request: Option<AdminRequest>) -> Result {
        let Some(request) = request else {
            return Ok(());
        };
        let index = request.tag.index.into();
        let slice = self.outgoing.write(index, &request.encode())?;
        let sges = [Sge::new(slice)];
        let mut wr = Send::new(&sges);
        wr.solicited();
        wr.signal(WorkId::new(kind::SEND, request.tag.index.into()));
        let mut chain = Chain::new();
        chain.push(&mut wr);
        self.pair.post(&chain)
    }

    /// Posts the watch if it is due. As [`Self::post`].
    fn send_watch(&self, state: &mut State) -> Result {
        let watch = state.watch_due();
        self.post(state, watch)
    }

    /// Returns what the target has told, if the disk has not followed it yet.
    pub(crate) fn news(&self) -> Option<News> {
        self.state.lock().news()
    }

    /// Records that the disk has followed what [`Self::news`] returned, and watches on. Any
    /// context.
    pub(crate) fn followed(&self) {
        let posted = {
            let mut state = self.state.lock();
            state.followed();
            self.send_watch(&mut state)
        };
        self.check(posted);
    }

    /// Ends the session if posting has failed. Any context.
    fn check(&self, posted: Result) {
        if posted.is_err() {
            self.fail(Failure::Work(c"posting failed"));
        }
    }

    /// Ends the session because of `failure`. Any context.
    #[cold]
    fn fail(&self, failure: Failure) {
        self.owner.clone().admin_failed(failure);
    }

    /// Ends the session, since the target broke the protocol, by an answer to `tag` if it names
    /// one.
    #[cold]
    fn violated(&self, what: &'static str, tag: Option<Tag>) {
        self.protocol_errors.bump();
        let violation = Violation {
            what,
            queue: Some(ADMIN_QUEUE),
            tag,
            key: None,
        };
        self.fail(match self.is_of_target() {
            false => Failure::Stranger(violation),
            true => Failure::Protocol(violation),
        });
    }
}

/// What a fence names: a path, and the last epoch that is meant.
type Fenced = (u8, Epoch);
