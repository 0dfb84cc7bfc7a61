// SPDX-License-Identifier: GPL-2.0

//! A session's admin queue pair, with which the session begins: keep-alives, fences, and the watch
//! that notifies the initiator of changes.
//!
//! A watch is stored until the volume differs from what its initiator knows
//! ([`watched`](crate::session::watched)), and a request for portals until the target has started
//! or stopped listening at an address. All other requests get their response at once, except
//! changes of reservations and requests to attach or detach volumes, which are carried out
//! elsewhere; nothing here waits for a drive. When the export ends, the initiator may ask, after
//! its other queue pairs are closed, whether acknowledged writes are durable: this queue pair is
//! then closed last. The session ends on a message that is none of these, on a second watch or
//! request for portals while the first is stored, and when an initiator is silent for longer than
//! twice its `keep_alive_tmo` plus one second ([`silence_ms`]). Every [`LOOK_MS`] the volume is
//! checked for changes, since neither block devices nor files notify their users.
//!
//! # Locks and contexts
//!
//! Completions are handled in process context, one at a time. One lock, `state`; no other lock is
//! taken inside. The timer runs on the system workqueue.

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

/// The most responses whose SENDs have not completed: many more than an initiator waits for at a
/// time.
const RESPONSES: u32 = 32;

/// The interval for checking the volume, the portals and the initiator's silence, in milliseconds.
const LOOK_MS: u32 = 250;

/// The `keep_alive_tmo` of an initiator that has not reported its own, in seconds.
const KEEP_ALIVE_TMO_S: u16 = 5;

/// The time for sending the response that reports the end of the export, or that all is durable, in
/// milliseconds.
const GONE_MS: u32 = 500;

/// The time that the end of an export waits for the next watch of an initiator that may still be
/// busy with the response to its last watch, in milliseconds: without a watch the initiator is not
/// notified of the end.
const NEXT_WATCH_MS: u32 = 2000;

/// Kinds of work requests, in work ids. The index is that of a message's buffer.
mod kind {
    pub(super) const RESPONSE: u8 = 1;
    pub(super) const RECEIVE: u8 = 2;
}

/// Returns the milliseconds of silence after which an initiator with a `keep_alive_tmo` of `tmo_s`
/// seconds is considered dead. It sends a keep-alive after each half of this timeout.
fn silence_ms(tmo_s: u16) -> u32 {
    2000 * u32::from(tmo_s) + 1000
}

/// The state that `Admin::state` protects.
struct AdminState {
    /// The pending request for portals, and the generation that its initiator knows.
    portals: Option<(Tag, u32)>,
    /// A bit for each response buffer that is not being sent.
    free: u32,
    /// The milliseconds of silence so far, and their limit.
    silent_ms: u32,
    limit_ms: u32,
    /// No more responses are sent.
    closing: bool,
}

/// A session's admin queue pair: see the module. Its completion queue and its timer hold references
/// to it until [`Self::close`].
#[pin_data]
pub(crate) struct Admin {
    session: Arc<Session>,
    pair: QueuePair<Admin>,
    incoming: MessageBuffers<BUFFER_LEN>,
    outgoing: MessageBuffers<BUFFER_LEN>,
    #[pin]
    state: IrqLock<AdminState>,
    /// A message has arrived since the last check.
    heard: Atomic<bool>,
    /// No response is being sent.
    #[pin]
    all_sent: Event,
    #[pin]
    timer: Mutex<Option<Running<Admin>>>,
    /// The client that is charged for its memory. Dropped last.
    _client: Arc<Client>,
}

impl Admin {
    const CAPACITY: Capacity = Capacity {
        sends: RESPONSES,
        receives: ADMIN_DEPTH as u32,
        send_entries: 1,
        receive_entries: 1,
    };

    /// Returns the bytes of kernel memory of an admin queue pair.
    pub(crate) fn bytes() -> u64 {
        crate::io::bytes_of_messages(
            ADMIN_DEPTH.into(),
            RESPONSES.into(),
            size_of::<Self>() as u64,
            BUFFER_LEN as u64,
        )
    }

    /// Creates the queue pair of the connection `id` with its memory, for which `client` was
    /// charged, and posts its receive buffers. May sleep.
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
                state <- new_irq_lock!(AdminState {
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

    /// Starts the checks for changes and for the initiator's silence, after the connection was
    /// accepted. May sleep.
    pub(crate) fn go_live(self: &Arc<Self>) -> Result {
        let timer = Periodic::start(self.clone(), LOOK_MS)?;
        let mut place = self.timer.lock();
        // A teardown that has run already would not find the timer.
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
        // The initiator can no longer watch.
        self.session.nobody_watches();
        self.session.clone().end_by(ADMIN_QUEUE, fault);
    }

    /// Begins to remove the queue pair: no more responses are sent, and posted work is flushed. May
    /// sleep.
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

    /// Removes the queue pair, and drops the references back to it. Sleeps.
    pub(crate) fn close(&self) {
        self.shut();
        self.pair.drain();
        self.pair.cq().stop();
        self.pair.detach();
    }

    /// Destroys the queue pair's remaining objects of the device, and unmaps its memory. The queue
    /// pair must be [closed](Self::close). Sleeps.
    pub(crate) fn sever(&self) {
        self.pair.sever();
        DmaBuffer::sever_all(|| Iterator::chain(self.incoming.blocks(), self.outgoing.blocks()));
    }
}
