// SPDX-License-Identifier: GPL-2.0

//! How queue pairs come up: resolve the address, resolve the route, make the
//! queue pair, ask the target. Each step is begun for all queue pairs before
//! any is waited for.

use crate::{
    deadline::Deadline,
    failure::{
        Failure,
        Step, //
    },
    queue::Queue,
};
use core::net::SocketAddr;
use hcablk_core::{
    proto::connect::{
        Reject,
        Reply,
        Request,
        REPLY_LEN,
        REPLY_MIN_LEN, //
    },
    rdma::cm::{
        self,
        Id,
        Parameters, //
    },
    sync::{
        new_irq_lock,
        Event,
        IrqLock, //
    },
    system::errno,
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Milliseconds for one try to resolve the address. The kernel looks again at
/// the end of a try, and it may have missed the answer that came before: an
/// answer that arrives while `process_one_req()` of `core/addr.c` runs is seen
/// only then.
const RESOLVE_MS: u32 = 500;

/// Whose queue pairs come up: a session. It is told when one of their connections goes down.
pub(crate) trait ConnectionOwner: Send + Sync + 'static {
    /// Makes queue pair `index` of the connection `id`. May sleep. Fails as verbs do, and with
    /// `ENOMEM`.
    fn make_queue(self: Arc<Self>, index: u8, id: &Arc<Id>) -> Result<Arc<Queue>>;

    /// Makes the admin queue pair of the connection `id`, and has it. As [`Self::make_queue`].
    fn make_admin(self: Arc<Self>, id: &Arc<Id>) -> Result<(), Failure>;

    /// Adds the next queue pair. It belongs to the teardown even if this fails
    /// because the session is ending: then it is torn down here.
    fn add_queue(&self, queue: &Arc<Queue>) -> Result<(), Failure>;

    /// Returns how many RDMA READs of the target the device answers at a time.
    fn responder_resources(&self) -> u8;

    /// Has `link`, by which a queue pair comes up in place of another one, told when the owner ends; `None`: not any
    /// more. Fails if the owner has ended.
    fn has_coming(&self, link: Option<&Arc<Link>>) -> Result<(), Failure>;

    /// Tells that the target has closed a connection. Any context.
    fn connection_closed(self: Arc<Self>);

    /// Tells that the RDMA device goes away. As [`Self::connection_closed`].
    fn device_removed(self: Arc<Self>);
}

/// What the connection manager said last.
enum News {
    Nothing,
    Resolved,
    Established([u8; REPLY_LEN]),
    Failed(Failure),
}

/// One connection while it comes up, and afterwards the one who hears when it
/// goes down.
#[pin_data]
pub(crate) struct Link {
    #[pin]
    state: IrqLock<LinkState>,
    #[pin]
    changed: Event,
}

struct LinkState {
    news: News,
    /// Whom to tell when the connection is lost.
    owner: Option<Arc<dyn ConnectionOwner>>,
}

impl Link {
    /// Makes an identifier and the link that hears its events.
    pub(crate) fn new() -> Result<(Arc<Self>, Arc<Id>), Failure> {
        let setup = |e| Failure::Setup("a connection", e);
        let link = Arc::pin_init(
            pin_init!(Self {
                state <- new_irq_lock!(LinkState {
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

    /// Tells `owner` when the connection is lost.
    fn attach(&self, owner: Arc<dyn ConnectionOwner>) {
        self.state.lock().owner = Some(owner);
    }

    /// Ends the wait for the step's event, or the next one, with `failure`. Any context.
    pub(crate) fn interrupt(&self, failure: Failure) {
        self.report(News::Failed(failure));
    }

    fn report(&self, news: News) {
        // Both under the lock: an event is never without its news.
        let mut state = self.state.lock();
        state.news = news;
        self.changed.set();
    }

    /// Waits for the step's event.
    fn wait(&self, step: Step, deadline: Deadline) -> Result<News, Failure> {
        self.changed
            .wait_ms(deadline.left_ms())
            .map_err(|_| Failure::Timeout(step))?;
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
            .map_err(|e| Failure::Step(Step::Address, e))
    }

    /// Waits until `address` is resolved, trying again as long as there is time.
    fn resolved(&self, id: &Id, address: &SocketAddr, deadline: Deadline) -> Result<(), Failure> {
        loop {
            match self.wait(Step::Address, deadline) {
                Err(Failure::Step(_, e)) if e == ETIMEDOUT => {
                    if deadline.has_passed() {
                        return Err(Failure::Timeout(Step::Address));
                    }
                    self.begin_resolve(id, address, deadline)?;
                }
                result => return result.map(drop),
            }
        }
    }
}

impl cm::Handler for Link {
    fn event(&self, event: cm::Event<'_>) {
        let lost = match event {
            cm::Event::AddressResolved | cm::Event::RouteResolved => {
                return self.report(News::Resolved)
            }
            cm::Event::Established { private } => {
                let mut reply = [0; REPLY_LEN];
                let len = private.len().min(REPLY_LEN);
                for (to, from) in reply.iter_mut().zip(private) {
                    *to = *from;
                }
                return self.report(if len >= REPLY_MIN_LEN {
                    News::Established(reply)
                } else {
                    News::Failed(Failure::NotATarget)
                });
            }
            cm::Event::Rejected { private: [] } => Failure::NotListening,
            cm::Event::Rejected { private } => match Reject::decode(private) {
                Some(reject) => Failure::Refused(reject),
                None => Failure::NotATarget,
            },
            cm::Event::StaleConnection => Failure::StaleConnection,
            cm::Event::Failed(e) => Failure::Step(Step::Answer, e),
            cm::Event::Disconnected => Failure::Disconnected,
            cm::Event::DeviceRemoval => Failure::DeviceRemoved,
        };
        let owner = self.state.lock().owner.clone();
        self.report(News::Failed(lost));
        // While connecting, whoever waits decides what it means.
        match (owner, lost) {
            (Some(owner), Failure::Disconnected) => owner.connection_closed(),
            (Some(owner), Failure::DeviceRemoved) => owner.device_removed(),
            _ => {}
        }
    }
}

struct Rising {
    link: Arc<Link>,
    id: Arc<Id>,
    request: Request,
}

impl Rising {
    fn resolve_route(&self, deadline: Deadline) -> Result<(), Failure> {
        self.id
            .resolve_route(deadline.left_ms())
            .map_err(|e| Failure::Step(Step::Route, e))?;
        self.link.wait(Step::Route, deadline).map(drop)
    }

    fn make_queue(&self, owner: &Arc<impl ConnectionOwner>) -> Result<Arc<Queue>, Failure> {
        owner
            .clone()
            .make_queue(self.request.queue, &self.id)
            .map_err(|e| Failure::Setup("a queue pair", e))
    }

    /// Sends the connection request to the target.
    fn send_request(&self, owner: &Arc<impl ConnectionOwner>) -> Result<(), Failure> {
        self.link.attach(owner.clone());
        let parameters = Parameters {
            responder_resources: owner.responder_resources(),
            initiator_depth: 0,
        };
        self.id
            .connect(parameters, &self.request.encode())
            .map_err(|e| {
                // Some iWARP devices connect TCP right here.
                if e == errno::econnrefused() {
                    Failure::NotListening
                } else {
                    Failure::Step(Step::Answer, e)
                }
            })
    }

    /// Waits for what it says.
    fn answer(&self, deadline: Deadline) -> Result<Reply, Failure> {
        let News::Established(reply) = self.link.wait(Step::Answer, deadline)? else {
            return Err(Failure::NotATarget);
        };
        Reply::decode(&reply, &self.request).ok_or(Failure::NotATarget)
    }
}

/// Connects the admin queue pair of `owner` by the already resolved `link`, and returns the reply.
pub(crate) fn bring_up_admin(
    owner: &Arc<impl ConnectionOwner>,
    (link, id): (Arc<Link>, Arc<Id>),
    request: Request,
    deadline: Deadline,
) -> Result<Reply, Failure> {
    let one = Rising { link, id, request };
    one.resolve_route(deadline)?;
    owner.clone().make_admin(&one.id)?;
    one.send_request(owner)?;
    one.answer(deadline)
}

/// Connects the first `count` queue pairs of `owner`, and returns the replies.
pub(crate) fn bring_up(
    owner: &Arc<impl ConnectionOwner>,
    count: u8,
    address: &SocketAddr,
    request: &Request,
    deadline: Deadline,
) -> Result<KVec<(Arc<Queue>, Reply)>, Failure> {
    let memory = |e: kernel::alloc::AllocError| Failure::Setup("a connection", e.into());
    let mut rising = KVec::new();
    for queue in 0..count {
        let (link, id) = Link::new()?;
        link.begin_resolve(&id, address, deadline)?;
        let request = Request { queue, ..*request };
        let one = Rising { link, id, request };
        rising.push(one, GFP_KERNEL).map_err(memory)?;
    }
    for one in rising.iter() {
        one.link.resolved(&one.id, address, deadline)?;
    }
    for one in rising.iter() {
        one.id
            .resolve_route(deadline.left_ms())
            .map_err(|e| Failure::Step(Step::Route, e))?;
    }
    for one in rising.iter() {
        one.link.wait(Step::Route, deadline)?;
    }
    let mut up = KVec::new();
    for one in rising.iter() {
        let queue = one.make_queue(owner)?;
        owner.add_queue(&queue)?;
        one.send_request(owner)?;
        up.push(queue, GFP_KERNEL).map_err(memory)?;
    }
    let mut replies = KVec::new();
    for (one, queue) in rising.iter().zip(up) {
        let reply = one.answer(deadline)?;
        replies.push((queue, reply), GFP_KERNEL).map_err(memory)?;
    }
    Ok(replies)
}

/// Connects a queue pair in place of another one, as `request` says. It is not among the
/// owner's until the caller adds it. Fails at once when the owner ends meanwhile.
pub(crate) fn bring_up_instead(
    owner: &Arc<impl ConnectionOwner>,
    address: &SocketAddr,
    request: Request,
    deadline: Deadline,
) -> Result<(Arc<Queue>, Reply), Failure> {
    let (link, id) = Link::new()?;
    let up = owner
        .has_coming(Some(&link))
        .and_then(|()| bring_up_by(owner, (link, id), address, request, deadline));
    // It has ended or not: nobody waits any more.
    let _ = owner.has_coming(None);
    up
}

/// Does what [`bring_up_instead`] does, by a link that is new.
fn bring_up_by(
    owner: &Arc<impl ConnectionOwner>,
    (link, id): (Arc<Link>, Arc<Id>),
    address: &SocketAddr,
    request: Request,
    deadline: Deadline,
) -> Result<(Arc<Queue>, Reply), Failure> {
    link.resolve(&id, address, deadline)?;
    let one = Rising { link, id, request };
    one.resolve_route(deadline)?;
    let queue = one.make_queue(owner)?;
    match one.send_request(owner).and_then(|()| one.answer(deadline)) {
        Ok(reply) => Ok((queue, reply)),
        Err(failure) => {
            queue.close();
            Err(failure)
        }
    }
}
