// SPDX-License-Identifier: GPL-2.0

//! Makes the sessions of a volume: chooses the path and the session to ask for, and checks that the granted volume is
//! the one that was opened.
//!
//! # Paths
//!
//! A volume has one session at a time. Its paths are the addresses of the target; each session uses one of them, and
//! when it is lost the next attempt uses the next path. All sessions of a volume have the same number. So the target
//! ends the former session, and waits for the requests that its drive has begun, before it grants the next one, even
//! if it has not noticed that the former path is cut.
//!
//! The devices of the paths are found when the volume is opened, since memory of requests is registered with each of
//! them. Later a path must lead to one of these devices.

use crate::{
    admin::{self, Admin, News, Watching},
    connect::{resolve, wait_for, Connected, Connector, Deadline, OTHER_DEVICE},
    crypto::Secret,
    failure::{ConnectStep, Failure},
    identity::Identity,
    options::Options,
    queue::{self, LivePair, QueueShape},
    verbs::{
        cm::Id,
        device::{Domains, ProtectionDomain},
    },
};
use hcablk_core::proto::{
    connect::{ConnectRequest, ExportInstance, Geometry, Reason, Reply},
    message::VolumeState,
    name::VolumeId,
    ADMIN_QUEUE, TRANSFER_USUAL, VERSION_OF_VOLUME,
};
use std::{
    net::SocketAddr,
    os::fd::AsFd as _,
    sync::Arc,
    time::{Duration, Instant},
};

/// Bytes of a sector, the unit in which the target reports sizes.
pub(crate) const SECTOR: u64 = 512;

/// A session that has begun: all of its queue pairs are connected.
pub(crate) struct Begun {
    pub(crate) admin: Admin,
    /// The target's address of the session.
    pub(crate) address: SocketAddr,
    /// The target's reply on the admin queue pair.
    pub(crate) reply: Reply,
    /// The target's reports on the volume since then.
    pub(crate) news: Option<News>,
    pub(crate) ids: Vec<Id>,
    pub(crate) links: Vec<(LivePair, Reply)>,
    /// The target may have forgotten unflushed writes.
    pub(crate) forgets: bool,
    /// All writes that were acknowledged before are durable.
    pub(crate) is_durable: bool,
}

/// The properties of a volume when it was opened, and its export in the last session.
struct Known {
    geometry: Geometry,
    id: Option<VolumeId>,
    instance: Option<ExportInstance>,
    /// The export has ended, and all writes that it acknowledged are durable.
    is_durable: bool,
}

impl Known {
    /// Fails if `reply` is not about the same volume. A different size, or a change to or from read-only, is accepted.
    fn check(&self, reply: &Reply) -> Result<(), Failure> {
        let lasting = |geometry: &Geometry| (geometry.logical_block_shift, geometry.max_transfer);
        if self.id != reply.id {
            return Err(Failure::OtherVolume);
        }
        // A target that does not report its cache relies on flushes if it has one.
        let relies = reply.geometry.write_cache && !reply.tells_cache;
        match lasting(&self.geometry) == lasting(&reply.geometry)
            && (self.geometry.write_cache || !relies)
        {
            true => Ok(()),
            false => Err(Failure::OtherLimits),
        }
    }
}

/// Returns whether two replies of a session describe the same volume. Their other values may change meanwhile; the
/// admin queue pair reports the changes.
fn agree(one: &Reply, other: &Reply) -> bool {
    let lasting = |reply: &Reply| {
        let Geometry {
            logical_block_shift,
            max_transfer,
            ..
        } = reply.geometry;
        (logical_block_shift, max_transfer, reply.id, reply.instance)
    };
    lasting(one) == lasting(other)
}

/// An address of the target, over which sessions are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Path {
    address: SocketAddr,
    /// No session can begin over it any more.
    is_over: bool,
}

/// The paths of a volume, which take turns.
#[derive(Debug)]
struct Paths {
    all: Vec<Path>,
    turn: usize,
}

impl Paths {
    fn new(addresses: impl Iterator<Item = SocketAddr>) -> Self {
        let path = |address| Path {
            address,
            is_over: false,
        };
        Self {
            all: addresses.map(path).collect(),
            turn: 0,
        }
    }

    /// Returns the address of the path whose turn it is; `None`: all paths are over.
    fn address(&self) -> Option<SocketAddr> {
        let path = self.all.get(self.turn).filter(|path| !path.is_over);
        path.map(|path| path.address)
    }

    /// Returns the number of paths that are not over.
    fn left(&self) -> usize {
        self.all.iter().filter(|path| !path.is_over).count()
    }

    /// Records that the path whose turn it is does not lead to the volume.
    fn end_this(&mut self) {
        if let Some(path) = self.all.get_mut(self.turn) {
            path.is_over = true;
        }
    }

    /// Turns to the next path that is not over.
    fn turn(&mut self) {
        let count = self.all.len();
        let is_left = |at: &usize| self.all.get(*at).is_some_and(|path| !path.is_over);
        let mut next = (1..=count).map(|step| (self.turn + step) % count);
        if let Some(next) = next.find(is_left) {
            self.turn = next;
        }
    }
}

/// The sessions of a volume; see the module.
pub(crate) struct Opening {
    domains: Arc<Domains>,
    /// The domains whose devices were removed, by number.
    removed: Vec<bool>,
    /// The number of the domain of the last attempt.
    place: usize,
    paths: Paths,
    options: Options,
    identity: Identity,
    /// `None`: there was no session.
    known: Option<Known>,
    /// The target has granted the admin queue pair in the last attempt.
    has_responded: bool,
}

impl Opening {
    /// Makes the state of a volume: finds the devices of its paths until `deadline`.
    pub(crate) fn new(options: &Options, deadline: Deadline<'_>) -> Result<Self, Failure> {
        let addresses: Vec<_> = options.addresses().collect();
        let mut domains = Domains::default();
        let mut first = None;
        for (index, address) in addresses.iter().enumerate() {
            let share = deadline.share(addresses.len() - index);
            let found = resolve(address, share).and_then(|id| find(&mut domains, id, options));
            if let Err(failure) = found {
                first.get_or_insert(failure);
            }
        }
        if let Some(failure) = first.filter(|_| domains.all().is_empty()) {
            return Err(failure);
        }
        Ok(Self {
            removed: vec![false; domains.all().len()],
            domains: Arc::new(domains),
            place: 0,
            paths: Paths::new(addresses.into_iter()),
            options: options.clone(),
            identity: Identity::take(&options.state, options.session, options.past.is_some())?,
            known: None,
            has_responded: false,
        })
    }

    /// Returns the domains in which memory of requests is registered.
    pub(crate) fn domains(&self) -> &Arc<Domains> {
        &self.domains
    }

    /// Returns the number of the session among those of this host's programs.
    pub(crate) fn number(&self) -> u16 {
        self.identity.number()
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.options.connect_timeout
    }

    pub(crate) fn reconnect_delay_s(&self) -> u32 {
        self.options.reconnect_delay_s
    }

    /// Returns whether a later session may continue this one: the target must identify the volume.
    pub(crate) fn may_resume(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.id.is_some())
    }

    /// Returns whether the program knows that it must flush.
    pub(crate) fn flushes(&self) -> bool {
        let known = self.known.as_ref();
        known.is_some_and(|known| known.geometry.write_cache)
    }

    /// Records that the export of the last session has ended, and all writes that it acknowledged are durable.
    pub(crate) fn set_durable(&mut self) {
        if let Some(known) = &mut self.known {
            known.is_durable = true;
        }
    }

    /// Returns whether the target had responded when the last attempt failed.
    pub(crate) fn has_responded(&self) -> bool {
        self.has_responded
    }

    /// Connects the first session, over the first path that leads to the volume. If none does, returns the failure of
    /// the first path.
    pub(crate) fn first_session(&mut self, deadline: Deadline<'_>) -> Result<Begun, Failure> {
        let mut first = None;
        for left in (1..=self.paths.left()).rev() {
            match self.session(deadline.share(left)) {
                Ok(begun) => return Ok(begun),
                Err(failure) => {
                    first.get_or_insert(failure);
                    if !self.may_try_again(failure) {
                        break;
                    }
                }
            }
        }
        Err(first.unwrap_or(Failure::Closed))
    }

    /// Records that an attempt failed, and turns to the next path. Returns whether another attempt may succeed.
    pub(crate) fn may_try_again(&mut self, failure: Failure) -> bool {
        if matches!(
            failure,
            Failure::Refused(Reason::Evicted | Reason::Superseded)
        ) {
            // The target's decision about this host, which holds for all paths.
            return false;
        }
        if !failure.may_pass() && failure != Failure::DeviceRemoved {
            self.paths.end_this();
        }
        self.paths.turn();
        self.paths.left() != 0 && self.has_other_device(failure)
    }

    /// Records that a session was lost, and turns to the next path. Returns whether another session may begin.
    pub(crate) fn may_follow(&mut self, failure: Failure) -> bool {
        self.paths.turn();
        let is_device = failure == Failure::DeviceRemoved;
        self.may_resume() && (failure.may_pass() || is_device) && self.has_other_device(failure)
    }

    /// Returns whether a device is left, after `failure` with the last one.
    fn has_other_device(&mut self, failure: Failure) -> bool {
        if failure == Failure::DeviceRemoved {
            if let Some(is_removed) = self.removed.get_mut(self.place) {
                *is_removed = true;
            }
        }
        self.removed.iter().any(|is_removed| !is_removed)
    }

    /// Returns the domain of the device that leads to `address`.
    fn domain(
        &mut self,
        address: &SocketAddr,
        deadline: Deadline<'_>,
    ) -> Result<Arc<ProtectionDomain>, Failure> {
        if let [only] = self.domains.all() {
            // The connector checks that the route leads to this device.
            return Ok(only.clone());
        }
        let id = resolve(address, deadline)?;
        let pd = self.domains.of(&id).ok_or(OTHER_DEVICE)?;
        self.place = pd.place();
        Ok(pd.clone())
    }

    /// Connects the next session, over the path whose turn it is.
    pub(crate) fn session(&mut self, deadline: Deadline<'_>) -> Result<Begun, Failure> {
        self.has_responded = false;
        let address = self.paths.address().ok_or(Failure::Closed)?;
        let pd = self.domain(&address, deadline)?;
        let shape = fit(&pd, &self.options)?;
        let request = self.request(shape)?;
        let mut connector = Connector::new(&pd, address);
        let (mut admin, reply, id) = self.admin(&mut connector, &request, deadline)?;
        self.has_responded = true;
        match (&self.known, self.options.past) {
            (Some(known), _) => known.check(&reply)?,
            (None, Some(past)) if reply.id != Some(past.id) => return Err(Failure::OtherVolume),
            (None, _) => {}
        }
        let geometry = self.geometry(&reply);
        admin.go_live(Watching {
            known: state_of(&reply),
            // The applications send flushes if the volume had a cache when they began.
            flushes: reply.tells_cache && geometry.write_cache,
            limits: reply.tells_cache && reply.tells_limits,
        })?;
        let mut begun = Begun {
            admin,
            address,
            reply,
            news: None,
            ids: vec![id],
            links: Vec::new(),
            forgets: false,
            is_durable: false,
        };
        let period = Duration::from_millis(begun.admin.period_ms().into());
        let mut round = Instant::now() + period;
        for index in 0..self.options.queues {
            let request = ConnectRequest {
                queue: index,
                ..request
            };
            let (link, of_queue, id) = queue(&mut connector, &request, shape, deadline)?;
            if !agree(&reply, &of_queue) {
                return Err(Failure::Protocol("its queues disagree about the volume"));
            }
            begun.ids.push(id);
            begun.links.push((link, of_queue));
            // Connecting many queues is slow, so handle admin messages in between.
            begun.news = begun.admin.handle()?.or(begun.news);
            if Instant::now() >= round {
                round = Instant::now() + period;
                begun.admin.round()?;
            }
        }
        let before = self.known.replace(Known {
            geometry,
            id: reply.id,
            instance: reply.instance,
            is_durable: false,
        });
        begun.is_durable = before.as_ref().is_some_and(|before| before.is_durable);
        let before = before.map(|before| before.instance);
        let before = before.or(self.options.past.map(|past| past.instance));
        let is_other = before.is_some_and(|before| before.is_none() || before != reply.instance);
        begun.forgets = is_other && !begun.is_durable;
        Ok(begun)
    }

    /// Returns the properties of the volume when it was opened.
    fn geometry(&self, reply: &Reply) -> Geometry {
        let known = self.known.as_ref();
        known.map_or(reply.geometry, |known| known.geometry)
    }

    fn request(&mut self, shape: QueueShape) -> Result<ConnectRequest, Failure> {
        Ok(ConnectRequest {
            version_min: VERSION_OF_VOLUME,
            version_max: VERSION_OF_VOLUME,
            depth: shape.depth,
            queue: ADMIN_QUEUE,
            replace: false,
            queues: self.options.queues,
            resume: self.known.is_some() || self.options.past.is_some(),
            alone: false,
            largest: TRANSFER_USUAL,
            session: self.identity.id(),
            epoch: self.identity.next_epoch()?,
            host: self.options.host,
            volume: Some(self.options.volume),
        })
    }

    /// Connects the admin queue pair.
    fn admin(
        &self,
        connector: &mut Connector,
        request: &ConnectRequest,
        deadline: Deadline<'_>,
    ) -> Result<(Admin, Reply, Id), Failure> {
        let pair_key: Option<Secret> = match (&self.options.host_key, &self.options.target_key) {
            (Some(host), Some(target)) => Some(host.0.pair(&target.0)),
            (None, None) => None,
            _ => return Err(Failure::HalfProof),
        };
        let mut memory = None;
        let pd = connector.domain().clone();
        let connected = connector.admin(request, pair_key, deadline, |id| {
            let (made, pair) = admin::Memory::new(&pd, id)?;
            memory = Some(made);
            Ok(pair)
        })?;
        let Connected { id, pair, reply } = connected;
        // The connector has called the closure, for the queue pair that is connected.
        let memory = memory.ok_or(Failure::NotATarget)?;
        Ok((
            Admin::new(pair, memory, self.options.keep_alive_s),
            reply,
            id,
        ))
    }
}

/// Connects a queue's queue pair of a session.
fn queue(
    connector: &mut Connector,
    request: &ConnectRequest,
    shape: QueueShape,
    deadline: Deadline<'_>,
) -> Result<(LivePair, Reply, Id), Failure> {
    let mut memory = None;
    let pd = connector.domain().clone();
    let connected = connector.queue(request, deadline, |id| {
        let (made, pair) = queue::Memory::new(&pd, id, shape)?;
        memory = Some(made);
        Ok(pair)
    })?;
    let Connected { id, pair, reply } = connected;
    let memory = memory.ok_or(Failure::NotATarget)?;
    Ok((LivePair::new(memory, pair), reply, id))
}

/// Adds the device that `id` was resolved to, if it can be used.
fn find(domains: &mut Domains, id: Id, options: &Options) -> Result<(), Failure> {
    let before = domains.all().len();
    let pd = domains
        .add(id)
        .map_err(|error| Failure::Setup("a protection domain", error))?;
    let fits = fit(&pd, options).map(drop);
    if fits.is_err() && domains.all().len() > before {
        domains.remove_last();
    }
    fits
}

/// Returns the size of queues that the options ask for and the device allows; fails if the device
/// cannot be used.
fn fit(pd: &ProtectionDomain, options: &Options) -> Result<QueueShape, Failure> {
    let attributes = pd.attributes();
    if !attributes.is_ib {
        return Err(Failure::Device(
            "this library supports InfiniBand and RoCE only, not iWARP",
        ));
    }
    if !attributes.has_windows {
        return Err(Failure::Device("it has no memory windows of type 2"));
    }
    if attributes.max_qp_rd_atom == 0 {
        return Err(Failure::Device("it supports no RDMA READ"));
    }
    QueueShape::fit(attributes, options.depth)
}

/// Returns the volume's state in a reply.
pub(crate) fn state_of(reply: &Reply) -> VolumeState {
    let geometry = &reply.geometry;
    VolumeState {
        sectors: geometry.capacity / SECTOR,
        read_only: geometry.read_only,
        write_cache: reply.tells_cache.then_some(geometry.write_cache),
    }
}

impl Begun {
    /// Waits until the target has reported the limits, which it does at once, if at all.
    pub(crate) fn wait_for_limits(&mut self, deadline: Deadline<'_>) -> Result<(), Failure> {
        while self.reply.tells_cache && self.reply.tells_limits && self.news.is_none() {
            self.news = self.admin.handle()?;
            if self.news.is_some() {
                break;
            }
            match wait_for(self.admin.pair.cq.as_fd(), deadline) {
                Ok(true) => {}
                Ok(false) => return Err(Failure::Timeout(ConnectStep::Response)),
                Err(error) => return Err(Failure::Verb("waiting for events", error)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> Paths {
        let address = |last| SocketAddr::new([10, 0, 0, last].into(), 7744);
        Paths::new([1, 2, 3].map(address).into_iter())
    }

    fn last(paths: &Paths) -> Option<u8> {
        match paths.address()?.ip() {
            std::net::IpAddr::V4(address) => Some(address.octets()[3]),
            std::net::IpAddr::V6(_) => None,
        }
    }

    #[test]
    fn paths_take_turns() {
        let mut paths = paths();
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(last(&paths).unwrap());
            paths.turn();
        }
        assert_eq!(seen, [1, 2, 3, 1]);
    }

    #[test]
    fn a_path_that_does_not_lead_to_the_volume_gets_no_turn_again() {
        let mut paths = paths();
        paths.turn();
        paths.end_this();
        assert_eq!((paths.left(), last(&paths)), (2, None));
        paths.turn();
        assert_eq!(last(&paths), Some(3));
        paths.turn();
        paths.turn();
        assert_eq!(last(&paths), Some(3), "the second is left out");
        paths.end_this();
        paths.turn();
        assert_eq!((paths.left(), last(&paths)), (1, Some(1)));
        paths.turn();
        assert_eq!(last(&paths), Some(1), "it is the only one");
        paths.end_this();
        paths.turn();
        assert_eq!((paths.left(), last(&paths)), (0, None));
    }
}
