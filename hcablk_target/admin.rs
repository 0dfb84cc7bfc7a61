// SPDX-License-Identifier: GPL-2.0

//! A session's admin queue pair, which begins it: keep-alives, fences, and the watch by which the
//! initiator hears of what changes.
//!
//! A watch is kept until the volume is no longer what its initiator knows
//! ([`watched`](crate::session::watched)), and a request to be told of the portals until the target
//! has begun or ceased to listen somewhere. Everything else is answered at once, but for changes of
//! reservations and for volumes that are to be attached or detached, which is done elsewhere;
//! nothing here waits for a drive. When the export ends the initiator may ask, after its other
//! queue pairs are gone, whether what was acknowledged is durable: this queue pair is closed last
//! then. A message that is none of these, or that comes while another of its kind would have to be
//! kept, ends the session, as does an initiator that is silent for longer than twice the
//! `keep_alive_tmo` that it said, and a second ([`silence_ms`]). Every [`LOOK_MS`] it is looked
//! whether the volume has changed, since neither block devices nor files tell their users.
//!
//! # Locks and contexts
//!
//! Completions are handled in process context, one at a time. One lock, `state`; nothing is locked
//! inside. The timer runs on the system workqueue.

use crate::{
    io::Fault,
    memory::Client,
    session::Session, //
};
use hcablk_core::{
    proto::{
        message::{
            Tag,
            BUFFER_LEN, //
        },
        ADMIN_DEPTH,
        ADMIN_QUEUE, //
    },
    rdma::{
        buffer::{
            DmaBuffer,
            MessageBuffers, //
        },
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
            Sge,
            WorkId, //
        },
    },
    sync::{
        atomic::Atomic,
        new_irq_lock,
        Event,
        IrqLock,
        Periodic,
        Running,
        WorkQueue, //
    },
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

mod serve;

/// Answers whose sends have not completed, at most: many more than an initiator waits for at a
/// time.
const ANSWERS: u32 = 32;

/// Milliseconds between two looks at the volume, the portals and the initiator's silence.
const LOOK_MS: u32 = 250;

/// Seconds of the `keep_alive_tmo` of an initiator that has not told its own.
const KEEP_ALIVE_TMO_S: u16 = 5;

/// Milliseconds that the answer may take which tells that the export ends, or that all is durable.
const GONE_MS: u32 = 500;

/// Milliseconds for which the end of an export waits for the next watch of an initiator that has
/// had an answer to its last: it hears nothing of the end otherwise. It may be busy with that
/// answer.
const NEXT_WATCH_MS: u32 = 2000;

/// Kinds of work, in work ids. The index is that of a message's buffer.
mod kind {
    pub(super) const ANSWER: u8 = 1;
    pub(super) const RECEIVE: u8 = 2;
}

/// Returns the milliseconds of silence after which an initiator is taken for dead whose
/// `keep_alive_tmo` is `tmo_s`: it sends something every half of that.
fn silence_ms(tmo_s: u16) -> u32 {
    2000 * u32::from(tmo_s) + 1000
}

/// What `Admin::state` guards.
struct State {
    /// The request to be told of the portals, and which generation of these its initiator knows.
    portals: Option<(Tag, u32)>,
    /// A bit for each answer's buffer that is not being sent.
    free: u32,
    /// Milliseconds for which nothing has come, and may not.
    silent_ms: u32,
    limit_ms: u32,
    /// Nothing is answered any more.
    closing: bool,
}

/// See the module. Its completion queue and its timer hold references to it until [`Self::close`].
#[pin_data]
pub(crate) struct Admin {
    session: Arc<Session>,
    pair: QueuePair<Admin>,
    incoming: MessageBuffers<BUFFER_LEN>,
    outgoing: MessageBuffers<BUFFER_LEN>,
    #[pin]
    state: IrqLock<State>,
    /// Something has come since the last look.
    heard: Atomic<bool>,
    /// No answer is being sent.
    #[pin]
    all_sent: Event,
    #[pin]
    timer: Mutex<Option<Running<Admin>>>,
    /// By whose memory it is charged. Dropped last.
    _client: Arc<Client>,
}

impl Admin {
    const CAPACITY: Capacity = Capacity {
        sends: ANSWERS,
        receives: ADMIN_DEPTH as u32,
        send_entries: 1,
        receive_entries: 1,
    };

    /// Returns the bytes that one takes of the kernel's memory.
    pub(crate) fn bytes() -> u64 {
        crate::io::bytes_of_messages(
            ADMIN_DEPTH.into(),
            ANSWERS.into(),
            size_of::<Self>() as u64,
            BUFFER_LEN as u64,
        )
    }

    /// Makes the queue pair of the connection `id` with its memory, which `client` was charged for,
    /// and posts its receive buffers. May sleep.
    pub(crate) fn new(
        session: Arc<Session>,
        id: &Arc<Id>,
        pd: &Arc<ProtectionDomain>,
        completions: &Arc<WorkQueue>,
        client: Arc<Client>,
    ) -> Result<Arc<Self>> {
        let capacity = Self::CAPACITY;
        let (receives, sends) = (capacity.receives as usize, capacity.sends as usize);
        let context = CqContext::Process(completions.clone());
        let cq = CompletionQueue::new(pd, capacity.completions(), 0, context)?;
        let pair = QueuePair::new(id, pd, &cq, capacity)?;
        let incoming = MessageBuffers::new(pd, receives, Direction::FromDevice)?;
        let outgoing = MessageBuffers::new(pd, sends, Direction::ToDevice)?;
        let admin = Arc::pin_init(
            pin_init!(Self {
                session,
                pair,
                incoming,
                outgoing,
                state <- new_irq_lock!(State {
                    portals: None,
                    free: u32::MAX,
                    silent_ms: 0,
                    limit_ms: silence_ms(KEEP_ALIVE_TMO_S),
                    closing: false,
                }, "hcablk_admin"),
                heard: Atomic::new(false),
                all_sent <- Event::new(),
                timer <- new_mutex!(None),
                _client: client,
            }),
            GFP_KERNEL,
        )?;
        let posted = (0..ADMIN_DEPTH.into()).try_for_each(|buffer| admin.post_receive(buffer));
        admin.pair.cq().start(admin.clone());
        if let Err(e) = posted {
            admin.close();
            return Err(e);
        }
        Ok(admin)
    }

    /// Begins to look for what changes, and for the initiator's silence, after the connection was
    /// accepted. May sleep.
    pub(crate) fn go_live(self: &Arc<Self>) -> Result {
        let timer = Periodic::start(self.clone(), LOOK_MS)?;
        let mut place = self.timer.lock();
        // A teardown that has run already would not find it.
        if !self.state.lock().closing {
            *place = Some(timer);
            return Ok(());
        }
        drop(place);
        drop(timer);
        Ok(())
    }

    /// Returns the number of the queue pair.
    pub(crate) fn number(&self) -> u32 {
        self.pair.own_number()
    }

    fn post_receive(&self, buffer: u32) -> Result {
        let slice = self.incoming.slice(buffer as usize, BUFFER_LEN)?;
        self.pair
            .post_receive(Sge::new(slice), WorkId::new(kind::RECEIVE, buffer))
    }

    /// Ends the session because of `fault`. Any context.
    #[cold]
    fn fail(&self, fault: Fault) {
        // Nobody watches any more.
        self.session.nobody_watches();
        self.session.clone().end_by(ADMIN_QUEUE, fault);
    }

    /// Begins to take the queue pair down: nothing is answered any more, what is posted is flushed.
    /// May sleep.
    pub(crate) fn shut(&self) {
        let timer = {
            let mut place = self.timer.lock();
            self.state.lock().closing = true;
            place.take()
        };
        drop(timer);
        self.pair.disconnect();
        self.pair.begin_drain();
    }

    /// Takes the queue pair down and cuts the references back to it. Sleeps.
    pub(crate) fn close(&self) {
        self.shut();
        self.pair.drain();
        self.pair.cq().stop();
        self.pair.detach();
    }

    /// Gives back to the device all that it has of it, once it was [closed](Self::close). Sleeps.
    pub(crate) fn sever(&self) {
        self.pair.sever();
        DmaBuffer::sever_all(|| Iterator::chain(self.incoming.blocks(), self.outgoing.blocks()));
    }
}
