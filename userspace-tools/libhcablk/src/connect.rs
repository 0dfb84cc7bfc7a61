// SPDX-License-Identifier: GPL-2.0

//! Connects queue pairs: address, route, queue pair, the target's response; and the proofs of identity of both sides.

use crate::{
    crypto::{Crypto, Secret, SessionKey},
    failure::{ConnectStep, Failure},
    session::Shared,
    verbs::{
        cm::{self, Event, Id},
        device::ProtectionDomain,
        queue::{Capacity, CompletionQueue, QueuePair},
    },
};
use hcablk_core::proto::{
    auth::{self, Channel, Initiator, MAC_LEN},
    connect::{ConnectRequest, Reason, Reject, Reply, REQUEST_LEN},
};
use nix::{
    errno::Errno,
    poll::{poll, PollFd, PollFlags, PollTimeout},
};
use std::{
    net::SocketAddr,
    os::fd::{AsFd as _, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// The time limit of one attempt to resolve an address. It is short because the kernel may miss the
/// response, and looks for it again only at the end of the attempt.
const RESOLVE: Duration = Duration::from_millis(500);

/// A deadline for waiting.
#[derive(Clone, Copy)]
pub(crate) struct Deadline<'a> {
    at: Instant,
    /// The volume whose end also ends the wait.
    volume: Option<&'a Shared>,
}

/// Returns the moment `duration` from now, but at most a year from now.
fn far(duration: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 86400);
    Instant::now() + duration.min(YEAR)
}

impl<'a> Deadline<'a> {
    /// Makes a deadline `duration` from now.
    pub(crate) fn after(duration: Duration) -> Self {
        Self {
            at: far(duration),
            volume: None,
        }
    }

    /// Returns a deadline after the first of `left` equal parts of the remaining time.
    pub(crate) fn share(self, left: usize) -> Self {
        let share = self.left() / u32::try_from(left.max(1)).unwrap_or(u32::MAX);
        Self {
            at: far(share),
            ..self
        }
    }

    /// Makes a deadline for the thread of a volume: waits fail with `ECANCELED` when the volume ends.
    pub(crate) fn of_volume(volume: &'a Shared, duration: Duration) -> Self {
        Self {
            at: far(duration),
            volume: Some(volume),
        }
    }

    fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Returns whether the volume has ended.
    fn is_over(self) -> bool {
        self.volume.is_some_and(|volume| volume.ended().is_some())
    }

    /// Waits until the deadline has passed, or the volume ends.
    pub(crate) fn pass(self) {
        // Both results end the wait.
        let _ = wait(None, self);
    }

    fn left_ms(self, most: Duration) -> i32 {
        i32::try_from(self.left().min(most).as_millis()).unwrap_or(i32::MAX)
    }
}

/// Waits until the descriptor is readable. Returns `false` if the deadline passed first.
pub(crate) fn wait_for(fd: BorrowedFd<'_>, deadline: Deadline<'_>) -> Result<bool, Errno> {
    wait(Some(fd), deadline)
}

fn wait(fd: Option<BorrowedFd<'_>>, deadline: Deadline<'_>) -> Result<bool, Errno> {
    let wake = deadline.volume.map(|volume| volume.wake().as_fd());
    let input = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let (mut both, mut one);
    let fds: &mut [PollFd<'_>] = match (fd, wake) {
        (Some(fd), Some(wake)) => {
            both = [input(fd), input(wake)];
            &mut both
        }
        (Some(fd), None) | (None, Some(fd)) => {
            one = [input(fd)];
            &mut one
        }
        (None, None) => &mut [],
    };
    loop {
        if deadline.is_over() {
            return Err(Errno::ECANCELED);
        }
        let until = match deadline.volume {
            Some(volume) => volume.pass_time().min(deadline.at),
            None => deadline.at,
        };
        // One millisecond more, to avoid a loop of short waits at the end.
        let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(fds, timeout) {
            Ok(0) if deadline.left().is_zero() => return Ok(false),
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error),
        }
        let is_ready = |fd: Option<&PollFd<'_>>| {
            let events = fd.and_then(PollFd::revents);
            events.is_some_and(|events| !events.is_empty())
        };
        if fd.is_some() && is_ready(fds.first()) {
            return Ok(true);
        }
        if let Some(volume) = deadline.volume {
            volume.take_wake();
        }
    }
}

/// Returns the next event of a connection, for which `step` waits.
fn next(id: &mut Id, step: ConnectStep, deadline: Deadline<'_>) -> Result<Event, Failure> {
    loop {
        let event = id.event().map_err(|error| Failure::Step(step, error))?;
        match event {
            Some(Event::Other) => {}
            Some(Event::Failed(error)) => return Err(Failure::Step(step, error)),
            Some(Event::Stale) => return Err(Failure::StaleConnection),
            Some(Event::Disconnected) => return Err(Failure::Disconnected),
            Some(Event::DeviceRemoved) => return Err(Failure::DeviceRemoved),
            Some(event) => return Ok(event),
            None => match wait_for(id.as_fd(), deadline) {
                Ok(true) => {}
                Ok(false) => return Err(Failure::Timeout(step)),
                Err(error) => return Err(Failure::Step(step, error)),
            },
        }
    }
}

/// The failure of a path that leads to a device in which memory of requests is not registered.
pub(crate) const OTHER_DEVICE: Failure =
    Failure::Device("the route to the target moved to a different device");

/// Returns an identifier that is resolved to a device with a route to `address`.
pub(crate) fn resolve(address: &SocketAddr, deadline: Deadline<'_>) -> Result<Id, Failure> {
    let mut id = Id::new().map_err(|error| Failure::Setup("a connection", error))?;
    loop {
        let tried = id.resolve_address(address, deadline.left_ms(RESOLVE).max(1));
        let event = match tried {
            Ok(()) => next(&mut id, ConnectStep::Address, deadline),
            Err(error) => Err(Failure::Step(ConnectStep::Address, error)),
        };
        match event {
            Ok(Event::AddressResolved) => return Ok(id),
            Ok(_) => return Err(Failure::NotATarget),
            Err(Failure::Step(_, Errno::ETIMEDOUT)) if !deadline.left().is_zero() => {}
            Err(Failure::Step(step, Errno::ETIMEDOUT)) => return Err(Failure::Timeout(step)),
            Err(failure) => return Err(failure),
        }
    }
}

/// The target's response to a connection request.
enum ConnectOutcome {
    /// The private data, and the number of the target's queue pair.
    Granted(Vec<u8>, u32),
    Rejected(Reject, Vec<u8>),
}

/// The key with which a session proves that its requests are its own.
struct Proof {
    key: SessionKey,
    handle: u64,
    /// The number of requests that were sealed with the key.
    count: u64,
}

/// A connected queue pair.
pub(crate) struct Connected {
    pub(crate) id: Id,
    pub(crate) pair: QueuePair,
    pub(crate) reply: Reply,
}

/// Makes the queue pair of a connection, with its receives posted.
pub(crate) trait Make: FnOnce(&Id) -> Result<QueuePair, Failure> {}
impl<F: FnOnce(&Id) -> Result<QueuePair, Failure>> Make for F {}

/// Connects the queue pairs of a session.
pub(crate) struct Connector {
    pd: Arc<ProtectionDomain>,
    address: SocketAddr,
    proof: Option<Proof>,
}

impl Connector {
    /// Makes the connector of a session with the target at `address`.
    pub(crate) fn new(pd: &Arc<ProtectionDomain>, address: SocketAddr) -> Self {
        Self {
            pd: pd.clone(),
            address,
            proof: None,
        }
    }

    /// Returns the domain of the session's queue pairs.
    pub(crate) fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.pd
    }

    /// Connects the admin queue pair with `request`; with `pair`, the pair key, both sides prove who they are.
    pub(crate) fn admin(
        &mut self,
        request: &ConnectRequest,
        pair: Option<Secret>,
        deadline: Deadline<'_>,
        make: impl Make,
    ) -> Result<Connected, Failure> {
        match pair {
            None => self.connect_unproven(request, deadline, make),
            Some(pair) => self.connect_proven(request, pair, deadline, make),
        }
    }

    /// Connects a further queue pair with `request`.
    pub(crate) fn queue(
        &mut self,
        request: &ConnectRequest,
        deadline: Deadline<'_>,
        make: impl Make,
    ) -> Result<Connected, Failure> {
        match self.proof.is_some() {
            false => self.connect_unproven(request, deadline, make),
            true => self.sealed(request, deadline, make),
        }
    }

    /// Returns an identifier whose route is resolved.
    fn reach(&self, deadline: Deadline<'_>) -> Result<Id, Failure> {
        let mut id = resolve(&self.address, deadline)?;
        if !self.pd.is_of(&id) {
            return Err(OTHER_DEVICE);
        }
        id.resolve_route(deadline.left_ms(Duration::MAX).max(1))
            .map_err(|error| Failure::Step(ConnectStep::Route, error))?;
        match next(&mut id, ConnectStep::Route, deadline)? {
            Event::RouteResolved => Ok(id),
            _ => Err(Failure::NotATarget),
        }
    }

    fn ask(
        &self,
        id: &mut Id,
        pair: &QueuePair,
        bytes: &[u8; REQUEST_LEN],
        deadline: Deadline<'_>,
    ) -> Result<ConnectOutcome, Failure> {
        let resources = self.pd.attributes().max_qp_rd_atom;
        id.connect(pair.number(), resources, bytes)
            .map_err(|error| Failure::Step(ConnectStep::Response, error))?;
        match next(id, ConnectStep::Response, deadline)? {
            Event::Granted(private, peer) => Ok(ConnectOutcome::Granted(private, peer)),
            Event::Rejected(private) if private.is_empty() => Err(Failure::NotListening),
            Event::Rejected(private) => match Reject::decode(&private) {
                Some(reject) => Ok(ConnectOutcome::Rejected(reject, private)),
                None => Err(Failure::NotATarget),
            },
            _ => Err(Failure::NotATarget),
        }
    }

    /// Brings up a queue pair that the target has granted.
    fn establish(
        mut id: Id,
        pair: QueuePair,
        reply: &[u8],
        request: &ConnectRequest,
    ) -> Result<Connected, Failure> {
        let reply = Reply::decode(reply, request).ok_or(Failure::NotATarget)?;
        let up = pair.bring_up(&id).and_then(|()| id.establish());
        up.map_err(|error| Failure::Setup("a queue pair", error))?;
        Ok(Connected { id, pair, reply })
    }

    fn connect_unproven(
        &self,
        request: &ConnectRequest,
        deadline: Deadline<'_>,
        make: impl Make,
    ) -> Result<Connected, Failure> {
        let mut id = self.reach(deadline)?;
        let pair = make(&id)?;
        match self.ask(&mut id, &pair, &request.encode(), deadline)? {
            ConnectOutcome::Granted(private, _) => Self::establish(id, pair, &private, request),
            ConnectOutcome::Rejected(reject, _) => Err(Failure::Refused(reject.reason)),
        }
    }

    fn sealed(
        &mut self,
        request: &ConnectRequest,
        deadline: Deadline<'_>,
        make: impl Make,
    ) -> Result<Connected, Failure> {
        let mut id = self.reach(deadline)?;
        let pair = make(&id)?;
        let channel = channel(&id, &pair);
        let Some(proof) = &mut self.proof else {
            return Err(Failure::OtherKeys);
        };
        proof.count += 1;
        let bytes = proof
            .key
            .seal_request(request, proof.handle, proof.count, &channel);
        let Some(mac) = bytes.last_chunk::<MAC_LEN>().copied() else {
            return Err(Failure::OtherKeys);
        };
        let outcome = self.ask(&mut id, &pair, &bytes, deadline)?;
        let Some(Proof { key, handle, .. }) = &self.proof else {
            return Err(Failure::OtherKeys);
        };
        match outcome {
            ConnectOutcome::Granted(private, peer) => {
                match key.open_reply(&mac, &private, &channel.of_reply(peer)) {
                    Some((reply, of)) if of == *handle => {
                        Self::establish(id, pair, &reply, request)
                    }
                    _ => Err(Failure::OtherKeys),
                }
            }
            ConnectOutcome::Rejected(reject, private) => {
                Err(match key.has_rejected(&mac, &private, &channel) {
                    true => Failure::Refused(reject.reason),
                    false => Failure::Unsealed(reject.reason),
                })
            }
        }
    }

    fn connect_proven(
        &mut self,
        request: &ConnectRequest,
        pair_key: Secret,
        deadline: Deadline<'_>,
        make: impl Make,
    ) -> Result<Connected, Failure> {
        let initiator = Initiator::<Crypto>::new(pair_key, &request.encode())
            .ok_or(Failure::Setup("random numbers", Errno::EIO))?;
        let challenge = self.challenge(initiator.hello(), deadline)?;
        let mut id = self.reach(deadline)?;
        let pair = make(&id)?;
        let channel = channel(&id, &pair);
        let unconfirmed = initiator
            .prove(&challenge, &channel)
            .ok_or(Failure::NotATarget)?;
        match self.ask(&mut id, &pair, unconfirmed.proof(), deadline)? {
            ConnectOutcome::Granted(private, peer) => {
                let (reply, key, handle) = unconfirmed
                    .confirm(&private, &channel.of_reply(peer))
                    .ok_or(Failure::OtherKeys)?;
                self.proof = Some(Proof {
                    key,
                    handle,
                    count: 0,
                });
                Self::establish(id, pair, &reply, request)
            }
            ConnectOutcome::Rejected(reject, private) => {
                Err(match unconfirmed.is_rejected(&private, &channel) {
                    true => Failure::Refused(reject.reason),
                    false => Failure::Unsealed(reject.reason),
                })
            }
        }
    }

    /// Sends this host's identity, and returns the target's challenge.
    fn challenge(
        &self,
        hello: &[u8; REQUEST_LEN],
        deadline: Deadline<'_>,
    ) -> Result<Vec<u8>, Failure> {
        let mut id = self.reach(deadline)?;
        let setup = |error| Failure::Setup("a queue pair", error);
        let cq = CompletionQueue::new(&self.pd, 2).map_err(setup)?;
        let capacity = Capacity {
            sends: 1,
            receives: 1,
            pieces: 1,
        };
        let pair = QueuePair::new(&id, cq, capacity).map_err(setup)?;
        match self.ask(&mut id, &pair, hello, deadline)? {
            ConnectOutcome::Rejected(reject, private) if reject.reason == Reason::Challenge => {
                Ok(private)
            }
            ConnectOutcome::Rejected(reject, _) => Err(Failure::Unsealed(reject.reason)),
            ConnectOutcome::Granted(..) => Err(Failure::NoChallenge),
        }
    }
}

/// Returns the channel of a connection, which the MACs cover.
fn channel(id: &Id, pair: &QueuePair) -> Channel {
    let (own, peer) = id.ends();
    let end = |end: cm::End, qp| auth::End {
        gid: end.gid,
        ip: end.ip,
        port: end.port,
        qp,
    };
    Channel {
        initiator: end(own, pair.number()),
        target: end(peer, 0),
    }
}
