// SPDX-License-Identifier: GPL-2.0

//! A path's admin queue pair, which is connected before the others and starts the session at the
//! target: keep-alives, fences, and the watch, which reports changes. Losing it is losing the path.
//!
//! `admin/life.rs` has its states, `admin/state.rs` the requests in flight.
//!
//! - In version 3 of the protocol the session starts without its volume, which is then attached
//!   (`admin/attach.rs`).
//! - A keep-alive is sent after each half of `keep_alive_tmo`. The session ends if one gets no
//!   response within the whole of it: the target responds at once, regardless of its drive.
//! - [`AdminVolume::ask_fence`] asks whether requests of another path can still reach the drive
//!   (`admin/fence.rs`), and [`AdminVolume::ask_durable`], at the end, whether acknowledged writes
//!   are durable.
//! - The target always holds a watch. It responds when the volume has changed or its export ends.
//! - The target also holds a request for changes of its portals, if it supports that.
//!
//! There is one request of each kind in flight for each volume (`admin/state.rs`). The messages
//! have buffers, credits and slots of their own: the block layer cannot delay them.
//!
//! # Locks and contexts
//!
//! Completions run in softirq context, one at a time; the timer runs on a workqueue of the
//! module's, which works even when memory is short. The requests in flight are under one irq lock,
//! `state`, inside which no lock is taken; `fencing` and `reserver` of each volume are mutexes that
//! are held until a response (`admin/volume.rs`).

use self::state::{
    period_ms,
    tag,
    AdminState,
    Attachment,
    Outgoing,
    VolumeIndex,
    SENDS, //
};
use self::volume::{
    AllWaiters,
    Waiters, //
};
use crate::{
    failure::{
        Failure,
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
        IrqLock,
        Periodic,
        Running,
        WorkQueue, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

mod attach;
mod fence;
mod life;
mod owner;
mod portals;
mod reserve;
mod response;
mod state;
mod timer;
mod volume;

pub(crate) use self::owner::AdminOwner;
pub(crate) use self::state::{
    News,
    Watching, //
};
pub(crate) use self::volume::AdminVolume;

/// Kinds of work, in work ids. The index is that of a message's buffer.
mod kind {
    pub(super) const SEND: u8 = 1;
    pub(super) const RECEIVE: u8 = 2;
}

/// The requests of an admin queue pair.
type State = AdminState<KVec<Attachment>>;

/// An admin queue pair; see the module. The session owns it until its teardown; its completion
/// queue and its timer refer to it as well.
#[pin_data]
pub(crate) struct Admin {
    owner: Arc<dyn AdminOwner>,
    /// Number of the session's path.
    path: u8,
    /// Seconds after which a keep-alive without a response ends the session.
    tmo_s: u16,
    pair: QueuePair<Admin>,
    incoming: MessageBuffers<BUFFER_LEN>,
    outgoing: MessageBuffers<BUFFER_LEN>,
    #[pin]
    state: IrqLock<State>,
    /// The most volumes that the session can have.
    volumes: usize,
    #[pin]
    waiters: IrqLock<AllWaiters>,
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

    /// Creates the queue pair of the connection `id` and posts its receive buffers; the session
    /// fails when a keep-alive has no response after `tmo_s` seconds. May sleep.
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
        let outgoing = MessageBuffers::new(pd, SENDS as usize, Direction::ToDevice)?;
        let volumes = 1;
        let state = AdminState::new(Self::places(volumes)?);
        let waiters = AllWaiters::new(volumes)?;
        let admin = Arc::pin_init(
            pin_init!(Self {
                owner,
                path: session.path(),
                tmo_s,
                pair,
                incoming,
                outgoing,
                state <- new_irq_lock!(state, "hcablk_admin"),
                volumes,
                waiters <- new_irq_lock!(waiters, "hcablk_admin_waiters"),
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

    /// Returns the number of the session's path.
    pub(crate) fn path(&self) -> u8 {
        self.path
    }

    /// Returns the number of the queue pair, as the transport transmits it to the target.
    pub(crate) fn queue_pair(&self) -> u32 {
        self.pair.own_number()
    }

    /// Starts sending keep-alives, on `queue`, and, if the target reports its `portals`, requests
    /// for changes of those. May sleep.
    pub(crate) fn go_live(self: &Arc<Self>, queue: &Arc<WorkQueue>, portals: bool) -> Result {
        {
            let mut state = self.state.lock();
            if !state.go_live(portals) {
                // The session ended in the meantime; the code that connects it checks for that.
                return Ok(());
            }
            self.send_keep_alive(&mut state)?;
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

    /// Returns whether the target, rather than an impostor, has granted the queue pair.
    pub(crate) fn is_of_target(&self) -> bool {
        self.state.lock().life().is_of_target()
    }

    /// Stops sending, and wakes callers that wait for a response. May sleep.
    pub(crate) fn stop(&self) {
        let timer = {
            let mut place = self.timer.lock();
            self.state.lock().stop();
            place.take()
        };
        drop(timer);
        for volume in VolumeIndex::all(self.volumes) {
            if let Some(waiters) = self.waiters_of(volume) {
                waiters.wake();
            }
        }
    }

    /// Returns the callers that wait for responses about a volume. Any context.
    fn waiters_of(&self, volume: VolumeIndex) -> Option<Arc<Waiters>> {
        self.waiters.lock().of(volume)
    }

    /// Starts taking the queue pair down. May sleep.
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

    /// Closes the queue pair as [`Self::close`] does, but events of its connection identifier are
    /// still reported. The caller must detach the identifier later.
    pub(crate) fn take_down(&self) {
        self.shut();
        self.pair.drain();
        self.pair.cq().stop();
    }

    /// Returns the queue pair, to bring it up.
    pub(crate) fn pair(&self) -> &QueuePair<Self> {
        &self.pair
    }

    /// Returns the connection identifier; `None` if the queue pair was severed, which never happens
    /// at the initiator.
    pub(crate) fn id(&self) -> Option<Arc<Id>> {
        self.pair.id()
    }

    fn post_receive(&self, buffer: u32) -> Result {
        let slice = self.incoming.slice(buffer as usize, BUFFER_LEN)?;
        self.pair
            .post_receive(Sge::new(slice), WorkId::new(kind::RECEIVE, buffer))
    }

    /// Posts a request that is recorded as sent; does nothing without one. Under the lock.
    fn post(&self, _state: &mut State, request: Option<Outgoing>) -> Result {
        let Some(Outgoing { request, buffer }) = request else {
            return Ok(());
        };
        let slice = self.outgoing.write(buffer as usize, &request.encode())?;
        let sges = [Sge::new(slice)];
        let mut wr = Send::new(&sges);
        wr.solicited();
        wr.signal(WorkId::new(kind::SEND, buffer));
        let mut chain = Chain::new();
        chain.push(&mut wr);
        self.pair.post(&chain)
    }

    /// Posts the watches that are due. As [`Self::post`].
    fn send_watches(&self, state: &mut State) -> Result {
        while let Some(watch) = state.watch_due() {
            self.post(state, Some(watch))?;
        }
        Ok(())
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

    /// Ends the session: the target broke the protocol, with its response to `tag` if there is one.
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

/// The session to fence: a path, and its highest epoch.
type Fenced = (u8, Epoch);
