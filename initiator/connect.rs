// SPDX-License-Identifier: GPL-2.0

//! Connects queue pairs: resolves the address, resolves the route, creates the queue pair, sends
//! the connection request. Each step is started for all queue pairs before any is waited for.

use self::sealed::Sealed;
use crate::{
    failure::{
        ConnectStep, //
        Failure,
    },
    io::Queue,
    session::Session, //
};
use core::net::SocketAddr;
use hcablk_core::{
    proto::{
        auth::{
            self,
            Channel,
            CHALLENGE_LEN,
            SEALED_REPLY_LEN, //
        },
        connect::{
            ConnectRequest,
            Reject,
            Reply,
            REPLY_MIN_LEN,
            REQUEST_LEN, //
        },
    },
    rdma::{
        cm::{
            self,
            Ends,
            Id,
            Parameters, //
        },
        cq::Handler,
        qp::QueuePair, //
    },
    sync::{
        new_irq_lock,
        Event,
        IrqLock, //
    },
    system::{
        errno,
        Deadline, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

mod ask;
mod attempt;
mod prove;
mod sealed;

pub(crate) use self::{
    ask::ask,
    attempt::AttemptLinks, //
};

/// Milliseconds for one try to resolve the address. The kernel may miss a reply that arrives while
/// `process_one_req()` of `core/addr.c` runs. It sees that reply only when it checks again at the
/// end of a try, so tries are short.
const RESOLVE_MS: u32 = 500;

/// The connection manager's last event.
enum News {
    Nothing,
    AddressResolved,
    RouteResolved(Ends),
    /// With the private data, padded by zeroes, and the number of the target's queue pair.
    Granted([u8; SEALED_REPLY_LEN], u32),
    /// With the private data, padded by zeroes.
    Rejected(Reject, [u8; CHALLENGE_LEN]),
    Failed(Failure),
}

/// Returns the first `N` of `bytes`, or all of them followed by zeroes.
fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut whole = [0; N];
    for (to, from) in whole.iter_mut().zip(bytes) {
        *to = *from;
    }
    whole
}

/// The event handler of one connection: during its setup, and later when it is lost.
#[pin_data]
pub(crate) struct CmLink {
    #[pin]
    state: IrqLock<CmLinkState>,
    #[pin]
    changed: Event,
}

struct CmLinkState {
    news: News,
    /// The session to notify when the connection is lost.
    owner: Option<Arc<Session>>,
}

impl CmLink {
    /// Creates an identifier and the link that handles its events.
    fn new() -> Result<(Arc<Self>, Arc<Id>), Failure> {
        let setup = |e| Failure::Setup("a connection", e);
        let link = Arc::pin_init(
            pin_init!(Self {
                state <- new_irq_lock!(CmLinkState {
                    news: News::Nothing,
                    owner: None,
                }, "hcablk_link"),
                changed <- Event::new(),
            }),
            GFP_KERNEL,
        )
        .map_err(setup)?;
        let id = Id::new(link.clone()).map_err(setup)?;
        Ok((link, id))
    }

    /// Sets `owner` as the session to notify when the connection is lost.
    fn attach(&self, owner: Arc<Session>) {
        self.state.lock().owner = Some(owner);
    }

    /// Ends the wait for the step's event, or the next wait, with `failure`; also ends the owner if
    /// the connection is up. Any context.
    pub(crate) fn interrupt(&self, failure: Failure) {
        let mut state = self.state.lock();
        // Also replaces a failure after which the step would be retried.
        state.news = News::Failed(failure);
        self.changed.set();
        let owner = state.owner.clone();
        drop(state);
        if let Some(owner) = owner {
            owner.fail(failure);
        }
    }

    fn report(&self, news: News) {
        // Both under the lock: an event always comes with its news.
        let mut state = self.state.lock();
        // Later events do not overwrite the failure that ends the wait.
        if !matches!(state.news, News::Failed(_)) {
            state.news = news;
        }
        self.changed.set();
    }

    /// Waits for the step's event, or for a signal: the thread that makes a disk for a user is the
    /// user's own.
    fn wait(&self, step: ConnectStep, deadline: Deadline) -> Result<News, Failure> {
        self.changed
            .wait_interruptible_ms(deadline.left_ms())
            .map_err(|e| Failure::of_wait(e, step))?;
        let news = {
            let mut state = self.state.lock();
            self.changed.reset();
            core::mem::replace(&mut state.news, News::Nothing)
        };
        match news {
            News::Failed(Failure::Step(_, e)) => Err(Failure::Step(step, e)),
            News::Failed(failure) => Err(failure),
            news => Ok(news),
        }
    }

    /// Finds the device that leads to `address`.
    pub(crate) fn resolve(
        &self,
        id: &Id,
        address: &SocketAddr,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        self.begin_resolve(id, address, deadline)?;
        self.resolved(id, address, deadline)
    }

    fn begin_resolve(
        &self,
        id: &Id,
        address: &SocketAddr,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        id.resolve_address(address, deadline.left_ms().min(RESOLVE_MS))
            .map_err(|e| Failure::Step(ConnectStep::Address, e))
    }

    /// Waits until `address` is resolved, retrying until the deadline.
    fn resolved(&self, id: &Id, address: &SocketAddr, deadline: Deadline) -> Result<(), Failure> {
        loop {
            match self.wait(ConnectStep::Address, deadline) {
                Err(Failure::Step(_, e)) if e == ETIMEDOUT => {
                    if deadline.has_passed() {
                        return Err(Failure::Timeout(ConnectStep::Address));
                    }
                    self.begin_resolve(id, address, deadline)?;
                }
                result => return result.map(drop),
            }
        }
    }
}

impl cm::Handler for CmLink {
    fn event(&self, event: cm::Event<'_>) {
        let lost = match event {
            cm::Event::AddressResolved => return self.report(News::AddressResolved),
            cm::Event::RouteResolved { ends } => return self.report(News::RouteResolved(ends)),
            cm::Event::Granted { private, peer_qp }
            | cm::Event::Established { private, peer_qp } => {
                return self.report(if private.len() >= REPLY_MIN_LEN {
                    News::Granted(padded(private), peer_qp)
                } else {
                    News::Failed(Failure::NotATarget)
                });
            }
            cm::Event::Rejected { private: [] } => Failure::NotListening,
            cm::Event::Rejected { private } => match Reject::decode(private) {
                Some(reject) => return self.report(News::Rejected(reject, padded(private))),
                None => Failure::NotATarget,
            },
            cm::Event::StaleConnection => Failure::StaleConnection,
            cm::Event::Failed(e) => Failure::Step(ConnectStep::Response, e),
            cm::Event::Disconnected => Failure::Disconnected,
            cm::Event::DeviceRemoval => Failure::DeviceRemoved,
        };
        let owner = self.state.lock().owner.clone();
        self.report(News::Failed(lost));
        // While connecting, the waiting function interprets the event.
        match (owner, lost) {
            (Some(owner), Failure::Disconnected) => owner.connection_closed(),
            (Some(owner), Failure::DeviceRemoved) => owner.device_removed(),
            _ => {}
        }
    }
}

/// A queue pair that is being connected.
pub(crate) struct StartingPair {
    link: Arc<CmLink>,
    id: Arc<Id>,
    request: ConnectRequest,
    ends: Ends,
    sealed: Option<Sealed>,
}

impl StartingPair {
    /// Creates the connection of `id`, whose address is resolved or being resolved.
    pub(crate) fn new(link: Arc<CmLink>, id: Arc<Id>, request: ConnectRequest) -> Self {
        Self {
            link,
            id,
            request,
            ends: Ends::default(),
            sealed: None,
        }
    }

    fn resolve_route(&mut self, deadline: Deadline) -> Result<(), Failure> {
        self.begin_route(deadline)?;
        self.route_resolved(deadline)
    }

    fn begin_route(&self, deadline: Deadline) -> Result<(), Failure> {
        self.id
            .resolve_route(deadline.left_ms())
            .map_err(|e| Failure::Step(ConnectStep::Route, e))
    }

    fn route_resolved(&mut self, deadline: Deadline) -> Result<(), Failure> {
        if let News::RouteResolved(ends) = self.link.wait(ConnectStep::Route, deadline)? {
            self.ends = ends;
        }
        Ok(())
    }

    fn make_queue(&self, owner: &Arc<Session>) -> Result<Arc<Queue>, Failure> {
        owner
            .clone()
            .make_queue(self.request.queue, &self.id)
            .map_err(|e| Failure::Setup("a queue pair", e))
    }

    /// Returns the endpoints of the connection, for local queue pair number `queue_pair`.
    fn channel(&self, queue_pair: u32) -> Channel {
        Channel {
            initiator: channel_end(&self.ends.own, queue_pair),
            target: channel_end(&self.ends.peer, 0),
        }
    }

    /// Sends the connection request of queue pair `queue` to the target, sealed if the owner proves
    /// its requests.
    fn send_request(&mut self, owner: &Arc<Session>, queue: &Queue) -> Result<(), Failure> {
        let Some(proof) = owner.proof() else {
            return self.send(owner, &self.request.encode());
        };
        let channel = self.channel(self.id.own_qp(queue.pair().number()));
        let (bytes, sealed) = Sealed::new(proof, channel, &self.request);
        self.sealed = Some(sealed);
        self.send_held(owner, queue.pair(), &bytes)
    }

    /// Sends a connection request to a target that does not prove its identity: any peer that
    /// grants the request gets the queue pair.
    fn send(&self, owner: &Arc<Session>, bytes: &[u8; REQUEST_LEN]) -> Result<(), Failure> {
        let parameters = self.attach_owner(owner);
        self.id.connect(parameters, bytes).map_err(not_sent)
    }

    /// Sends a connection request whose queue pair accepts nothing from the peer that grants it,
    /// until the peer has proven to be the target and the queue pair is
    /// [established](QueuePair::establish).
    fn send_held(
        &self,
        owner: &Arc<Session>,
        pair: &QueuePair<impl Handler>,
        bytes: &[u8; REQUEST_LEN],
    ) -> Result<(), Failure> {
        let parameters = self.attach_owner(owner);
        pair.connect_held(parameters, bytes).map_err(not_sent)
    }

    /// Attaches `owner` to the connection's events; returns the connection parameters of its
    /// request.
    fn attach_owner(&self, owner: &Arc<Session>) -> Parameters {
        self.link.attach(owner.clone());
        Parameters {
            responder_resources: owner.responder_resources(),
            initiator_depth: 0,
        }
    }

    /// Waits for the reply for `queue`, and brings the queue up if the reply is the target's.
    fn reply_for(&self, queue: &Queue, deadline: Deadline) -> Result<Reply, Failure> {
        let reply = self.reply(deadline)?;
        establish(queue.pair())?;
        Ok(reply)
    }

    fn reply(&self, deadline: Deadline) -> Result<Reply, Failure> {
        let reply = match (
            self.link.wait(ConnectStep::Response, deadline)?,
            &self.sealed,
        ) {
            (News::Granted(bytes, _), None) => padded(&bytes),
            (News::Granted(bytes, target_qp), Some(sealed)) => sealed.open(&bytes, target_qp)?,
            (News::Rejected(reject, _), None) => return Err(Failure::Refused(reject)),
            (News::Rejected(reject, bytes), Some(sealed)) => {
                return Err(sealed.refused(reject, &bytes))
            }
            _ => return Err(Failure::NotATarget),
        };
        Reply::decode(&reply, &self.request).ok_or(Failure::NotATarget)
    }

    /// Connects the admin queue pair of `owner`, without a proof, and returns the reply.
    pub(crate) fn bring_up_admin(
        mut self,
        owner: &Arc<Session>,
        deadline: Deadline,
    ) -> Result<Reply, Failure> {
        self.resolve_route(deadline)?;
        owner.clone().make_admin(&self.id)?;
        self.send(owner, &self.request.encode())?;
        self.reply(deadline)
    }
}

/// Returns an end of a connection, of queue pair `qp`, in the form that MACs cover.
fn channel_end(end: &cm::End, qp: u32) -> auth::End {
    let cm::End { gid, ip, port } = *end;
    auth::End { gid, ip, port, qp }
}

/// Returns the failure to report when a connection request was not sent.
fn not_sent(e: Error) -> Failure {
    // Some iWARP devices connect TCP inside this call.
    if e == errno::econnrefused() {
        Failure::NotListening
    } else {
        Failure::Step(ConnectStep::Response, e)
    }
}

/// Brings up a queue pair that the proven target has granted; does nothing if it is up.
fn establish(pair: &QueuePair<impl Handler>) -> Result<(), Failure> {
    pair.establish()
        .map_err(|e| Failure::Setup("a queue pair", e))
}

/// Connects the first `count` queue pairs of `owner` within an attempt, and returns the replies.
pub(crate) fn bring_up(
    owner: &Arc<Session>,
    attempt: &AttemptLinks,
    count: u8,
    address: &SocketAddr,
    request: &ConnectRequest,
    deadline: Deadline,
) -> Result<KVec<(Arc<Queue>, Reply)>, Failure> {
    let memory = |e: kernel::alloc::AllocError| Failure::Setup("a connection", e.into());
    let mut starting = KVec::new();
    for queue in 0..count {
        let (link, id) = attempt.connection()?;
        link.begin_resolve(&id, address, deadline)?;
        let one = StartingPair::new(link, id, ConnectRequest { queue, ..*request });
        starting.push(one, GFP_KERNEL).map_err(memory)?;
    }
    for one in starting.iter() {
        one.link.resolved(&one.id, address, deadline)?;
    }
    for one in starting.iter() {
        one.begin_route(deadline)?;
    }
    for one in starting.iter_mut() {
        one.route_resolved(deadline)?;
    }
    let mut up = KVec::new();
    for one in starting.iter_mut() {
        let queue = one.make_queue(owner)?;
        owner.add_queue(&queue)?;
        one.send_request(owner, &queue)?;
        up.push(queue, GFP_KERNEL).map_err(memory)?;
    }
    let mut replies = KVec::new();
    for (one, queue) in starting.iter().zip(up) {
        let reply = one.reply_for(&queue, deadline)?;
        replies.push((queue, reply), GFP_KERNEL).map_err(memory)?;
    }
    Ok(replies)
}

/// Connects a queue pair that replaces an old one, with `request`. The caller adds it to the queues
/// of `owner`. Fails at once when the owner ends in the meantime.
pub(crate) fn bring_up_instead(
    owner: &Arc<Session>,
    address: &SocketAddr,
    request: ConnectRequest,
    deadline: Deadline,
) -> Result<(Arc<Queue>, Reply), Failure> {
    let (link, id) = CmLink::new()?;
    let up = owner
        .set_replacement_link(Some(&link))
        .and_then(|()| bring_up_by(owner, (link, id), address, request, deadline));
    let _ = owner.set_replacement_link(None); // The wait is over, so the result does not matter.
    up
}

/// Does the work of [`bring_up_instead`] with a new `link`.
fn bring_up_by(
    owner: &Arc<Session>,
    (link, id): (Arc<CmLink>, Arc<Id>),
    address: &SocketAddr,
    request: ConnectRequest,
    deadline: Deadline,
) -> Result<(Arc<Queue>, Reply), Failure> {
    link.resolve(&id, address, deadline)?;
    let mut one = StartingPair::new(link, id, request);
    one.resolve_route(deadline)?;
    let queue = one.make_queue(owner)?;
    let sent = one.send_request(owner, &queue);
    match sent.and_then(|()| one.reply_for(&queue, deadline)) {
        Ok(reply) => Ok((queue, reply)),
        Err(failure) => {
            queue.close();
            Err(failure)
        }
    }
}
