// SPDX-License-Identifier: GPL-2.0

//! A queue pair connected to another queue pair of this module, over the RDMA device of the
//! module's address parameter.

use crate::watched::{
    Watched,
    WAIT_TIMEOUT_MS, //
};
use core::net::SocketAddr;
use hcablk_core::{
    rdma::{
        buffer::MessageBuffers,
        cm::{
            self,
            Id,
            Incoming,
            Listener,
            Parameters, //
        },
        cq::{
            Completion,
            CompletionQueue,
            CqContext,
            Handler,
            Success, //
        },
        device::Direction,
        pd::ProtectionDomain,
        qp::{
            Capacity,
            QueuePair, //
        },
        wr::{
            Chain,
            Rdma,
            Send,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
    sync::WorkQueue,
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// Kinds of work.
pub(crate) const SEND: u8 = 1;
pub(crate) const RECEIVE: u8 = 2;
pub(crate) const OTHER: u8 = 3;

/// Message buffers of a side, of a page each.
pub(crate) const BUFFERS: usize = 16;

/// The connection manager's reports.
#[derive(Default)]
pub(crate) struct News {
    pub(crate) resolved: u32,
    /// The peer has granted a connection whose queue pair is held back.
    pub(crate) granted: bool,
    pub(crate) up: bool,
    pub(crate) down: bool,
}

/// Receives the events of an identifier.
pub(crate) struct EventRecorder(pub(crate) Arc<Watched<News>>);

impl cm::Handler for EventRecorder {
    fn event(&self, event: cm::Event<'_>) {
        self.0.change(|news| match event {
            cm::Event::AddressResolved | cm::Event::RouteResolved { .. } => news.resolved += 1,
            cm::Event::Granted { .. } => news.granted = true,
            cm::Event::Established { .. } => news.up = true,
            _ => news.down = true,
        });
    }
}

/// Creates an identifier, and the record of its events.
pub(crate) fn identifier() -> Result<(Arc<Id>, Arc<Watched<News>>)> {
    let news = Watched::new(News::default())?;
    let id = Id::new(Arc::new(EventRecorder(news.clone()), GFP_KERNEL)?)?;
    Ok((id, news))
}

/// Creates an identifier as [`identifier`] does, bound to the device.
pub(crate) fn bound_identifier() -> Result<(Arc<Id>, Arc<Watched<News>>)> {
    for _ in 0..5 {
        let (id, news) = identifier()?;
        id.resolve_address(&SocketAddr::new(crate::address(), 0), WAIT_TIMEOUT_MS)?;
        news.wait(|n| (n.resolved == 1 || n.down).then_some(()))?;
        if news.with(|n| n.resolved == 1) {
            return Ok((id, news));
        }
    }
    Err(ETIMEDOUT)
}

/// Creates a protection domain on the device.
pub(crate) fn domain() -> Result<Arc<ProtectionDomain>> {
    ProtectionDomain::new(&bound_identifier()?.0)
}

/// A completion that was reported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Done {
    pub(crate) work: WorkId,
    pub(crate) ok: bool,
    pub(crate) flushed: bool,
    pub(crate) length: usize,
    pub(crate) invalidated: Option<u32>,
    pub(crate) proof: Option<Success>,
}

/// The completions reported so far.
pub(crate) struct Reports {
    pub(crate) done: KVec<Done>,
    /// The number of completions without memory to record them.
    pub(crate) lost: u32,
    /// The number of rounds that have ended.
    pub(crate) rounds: u32,
}

/// Records completions.
pub(crate) struct Log {
    pub(crate) reports: Arc<Watched<Reports>>,
    /// Whether the handler sleeps.
    pub(crate) sleepy: bool,
}

impl Log {
    pub(crate) fn new(room: usize, sleepy: bool) -> Result<Arc<Self>> {
        let reports = Watched::new(Reports {
            done: KVec::with_capacity(room, GFP_KERNEL)?,
            lost: 0,
            rounds: 0,
        })?;
        Ok(Arc::new(Self { reports, sleepy }, GFP_KERNEL)?)
    }
}

impl Handler for Log {
    type Round = ();

    fn complete(&self, (): &mut (), completion: &Completion) {
        let ok = completion.is_ok();
        let done = Done {
            work: completion.work(),
            ok,
            flushed: completion.is_flushed(),
            length: if ok { completion.byte_len() } else { 0 },
            invalidated: if ok { completion.invalidated() } else { None },
            proof: completion.success(),
        };
        if self.sleepy {
            crate::watched::pause(1);
        }
        self.reports.change(|reports| {
            if reports.done.push_within_capacity(done).is_err() {
                reports.lost += 1;
            }
        });
    }

    fn round_done(&self, (): &mut ()) {
        self.reports.change(|reports| reports.rounds += 1);
    }
}

/// The context in which completions of a link are handled.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Where {
    SoftIrq,
    Process,
    Direct,
}

/// One end of a connection.
pub(crate) struct Side {
    pub(crate) pair: QueuePair<Log>,
    pub(crate) cq: Arc<CompletionQueue<Log>>,
    pub(crate) log: Arc<Log>,
    pub(crate) out: MessageBuffers<PAGE_SIZE>,
    pub(crate) into: MessageBuffers<PAGE_SIZE>,
    pub(crate) pd: Arc<ProtectionDomain>,
    pub(crate) news: Arc<Watched<News>>,
    started: bool,
}

impl Side {
    fn new(
        id: &Arc<Id>,
        news: Arc<Watched<News>>,
        capacity: Capacity,
        context: CqContext,
        sleepy: bool,
    ) -> Result<Self> {
        let pd = ProtectionDomain::new(id)?;
        let completions = capacity.completions();
        let cq = CompletionQueue::new(&pd, completions, 0, context)?;
        Ok(Self {
            pair: QueuePair::new(id, &pd, &cq, capacity)?,
            cq,
            log: Log::new(4 * completions as usize, sleepy)?,
            out: MessageBuffers::new(&pd, BUFFERS, Direction::ToDevice)?,
            into: MessageBuffers::new(&pd, BUFFERS, Direction::FromDevice)?,
            pd,
            news,
            started: false,
        })
    }

    /// Begins to report completions.
    pub(crate) fn start(&mut self) {
        self.started = true;
        self.cq.start(self.log.clone());
    }

    /// Posts receive buffer `index`.
    pub(crate) fn receive(&self, index: u32) -> Result {
        let slice = self.into.slice(index as usize, PAGE_SIZE)?;
        self.pair
            .post_receive(Sge::new(slice), WorkId::new(RECEIVE, index))
    }

    /// Sends a message out of buffer `index`.
    pub(crate) fn send(&self, index: u32, message: &[u8]) -> Result {
        let sges = [Sge::new(self.out.write(index as usize, message)?)];
        self.post(&mut Send::new(&sges), SEND, index)
    }

    /// Posts a signaled request.
    pub(crate) fn post(&self, request: &mut impl WorkRequest, kind: u8, index: u32) -> Result {
        request.signal(WorkId::new(kind, index));
        let mut chain = Chain::new();
        chain.push(request);
        self.pair.post(&chain)
    }

    /// Waits for the completion of work on `index`, and takes it out of the log.
    pub(crate) fn completed(&self, kind: u8, index: u32) -> Result<Done> {
        self.log.reports.wait(|reports| {
            let at = reports
                .done
                .iter()
                .position(|done| done.work.kind == kind && done.work.index == index)?;
            reports.done.remove(at).ok()
        })
    }

    /// Posts a request and waits for it. Returns `true` if it succeeded.
    pub(crate) fn carry_out(&self, request: &mut impl WorkRequest) -> Result<bool> {
        self.post(request, OTHER, 0)?;
        Ok(self.completed(OTHER, 0)?.ok)
    }

    /// Posts a request and waits for it; returns the proof of its success.
    pub(crate) fn carried_out(&self, request: &mut impl WorkRequest) -> Result<Success> {
        self.post(request, OTHER, 0)?;
        self.completed(OTHER, 0)?.proof.ok_or(EIO)
    }

    /// Reads the peer's memory into receive buffer `index`; returns whether that succeeded.
    pub(crate) fn read(&self, index: u32, length: usize, address: u64, key: u32) -> Result<bool> {
        let sges = [Sge::new(self.into.slice(index as usize, length)?)];
        self.carry_out(&mut Rdma::read(&sges, address, key))
    }

    /// Writes bytes into the peer's memory; returns whether that succeeded.
    pub(crate) fn write(&self, bytes: &[u8], address: u64, key: u32) -> Result<bool> {
        let sges = [Sge::new(self.out.write(0, bytes)?)];
        self.carry_out(&mut Rdma::write(&sges, address, key))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if !self.started {
            // Draining needs a poller.
            self.start();
        }
        self.pair.disconnect();
        self.pair.drain();
        self.cq.stop();
        self.pair.detach();
    }
}

/// The parameters of a link.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    pub(crate) context: Where,
    /// The near side's handler sleeps.
    pub(crate) sleepy: bool,
    /// The near side's completions are not reported yet.
    pub(crate) silent: bool,
    /// The near side's queue pair is held back until the far side has granted the connection.
    pub(crate) held: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            sends: 32,
            receives: 16,
            context: Where::SoftIrq,
            sleepy: false,
            silent: false,
            held: false,
        }
    }
}

/// A connection of the module with itself, which the near side requested.
pub(crate) struct Link {
    pub(crate) near: Side,
    pub(crate) far: Side,
    _completions: Option<Arc<WorkQueue>>,
}

/// Accepts the first connection request.
struct Acceptor(Arc<Watched<Visitors>>);

#[derive(Default)]
struct Visitors {
    first: Option<(Arc<Id>, Arc<Watched<News>>)>,
}

impl cm::Accept for Acceptor {
    fn request(self: Arc<Self>, incoming: &mut Incoming<'_>) {
        let Ok(news) = Watched::new(News::default()) else {
            return;
        };
        let Ok(ear) = Arc::new(EventRecorder(news.clone()), GFP_KERNEL) else {
            return;
        };
        if let Ok(id) = incoming.claim(ear) {
            self.0.change(|visitors| visitors.first = Some((id, news)));
        }
    }

    fn removed(self: Arc<Self>) {}
}

const PORT: u16 = 17_077;

pub(crate) const PARAMETERS: Parameters = Parameters {
    responder_resources: 4,
    initiator_depth: 4,
};

impl Link {
    /// Connects, and lets the near side send first, as iWARP requires.
    pub(crate) fn new(plan: Plan) -> Result<Self> {
        let capacity = Capacity {
            sends: plan.sends,
            receives: plan.receives,
            send_entries: 2,
            receive_entries: 1,
        };
        let (context, completions) = match plan.context {
            Where::SoftIrq => (CqContext::SoftIrq, None),
            Where::Direct => (CqContext::Direct, None),
            Where::Process => {
                let queue = Arc::new(WorkQueue::for_completions(c"hcablk_kunit")?, GFP_KERNEL)?;
                (CqContext::Process(queue.clone()), Some(queue))
            }
        };
        let address = SocketAddr::new(crate::address(), PORT);
        let visitors = Watched::new(Visitors::default())?;
        let door = Arc::new(Acceptor(visitors.clone()), GFP_KERNEL)?;
        let _listener = Listener::new(&address, door)?;

        let (id, news) = loop {
            let (id, news) = identifier()?;
            id.resolve_address(&address, WAIT_TIMEOUT_MS)?;
            news.wait(|n| (n.resolved == 1 || n.down).then_some(()))?;
            if news.with(|n| n.resolved == 1) {
                break (id, news);
            }
        };
        id.resolve_route(WAIT_TIMEOUT_MS)?;
        news.wait(|n| (n.resolved == 2).then_some(()))?;
        let mut near = Side::new(&id, news, capacity, context, plan.sleepy)?;
        if plan.held {
            near.pair.connect_held(PARAMETERS, b"hcablk_kunit")?;
        } else {
            id.connect(PARAMETERS, b"hcablk_kunit")?;
        }
        let (id, news) = visitors.wait(|v| v.first.take())?;
        let mut far = Side::new(&id, news, capacity, CqContext::SoftIrq, false)?;
        far.start();
        far.receive(0)?;
        id.accept(PARAMETERS, b"")?;
        near.news.wait(|n| (n.up || n.granted).then_some(()))?;
        if plan.held {
            near.pair.establish()?;
        }
        if !plan.silent {
            near.start();
            near.send(0, b"hello")?;
            near.completed(SEND, 0)?;
            far.completed(RECEIVE, 0)?;
        }
        Ok(Self {
            near,
            far,
            _completions: completions,
        })
    }
}
