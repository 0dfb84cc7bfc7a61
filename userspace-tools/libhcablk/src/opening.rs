// SPDX-License-Identifier: GPL-2.0

//! Makes the sessions of a volume: chooses the session to ask for, and checks that the granted volume is the one that
//! was opened.

use crate::{
    admin::{self, Admin, News, Watching},
    connect::{wait_for, Connected, Connector, Deadline},
    crypto::Secret,
    failure::{ConnectStep, Failure},
    identity::Identity,
    options::Options,
    queue::{self, LivePair, QueueShape},
    verbs::{cm::Id, device::ProtectionDomain},
};
use hcablk_core::proto::{
    connect::{ConnectRequest, ExportInstance, Geometry, Reply},
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

/// The sessions of a volume; see the module.
pub(crate) struct Opening {
    pd: Arc<ProtectionDomain>,
    address: SocketAddr,
    options: Options,
    identity: Identity,
    shape: QueueShape,
    /// `None`: there was no session.
    known: Option<Known>,
    /// The target has granted the admin queue pair in the last attempt.
    has_responded: bool,
}

impl Opening {
    /// Makes the state of a volume that the device of `pd` reaches.
    pub(crate) fn new(pd: &Arc<ProtectionDomain>, options: &Options) -> Result<Self, Failure> {
        Ok(Self {
            pd: pd.clone(),
            address: SocketAddr::new(options.address, options.port),
            options: options.clone(),
            identity: Identity::take(&options.state, options.session, options.past.is_some())?,
            shape: fit(pd, options)?,
            known: None,
            has_responded: false,
        })
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

    /// Connects the next session.
    pub(crate) fn session(&mut self, deadline: Deadline<'_>) -> Result<Begun, Failure> {
        self.has_responded = false;
        let request = self.request()?;
        let mut connector = Connector::new(&self.pd, self.address);
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
            let (link, of_queue, id) = self.queue(&mut connector, &request, index, deadline)?;
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

    fn request(&mut self) -> Result<ConnectRequest, Failure> {
        Ok(ConnectRequest {
            version_min: VERSION_OF_VOLUME,
            version_max: VERSION_OF_VOLUME,
            depth: self.shape.depth,
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
        let connected = connector.admin(request, pair_key, deadline, |id| {
            let (made, pair) = admin::Memory::new(&self.pd, id)?;
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

    fn queue(
        &self,
        connector: &mut Connector,
        request: &ConnectRequest,
        index: u8,
        deadline: Deadline<'_>,
    ) -> Result<(LivePair, Reply, Id), Failure> {
        let request = ConnectRequest {
            queue: index,
            ..*request
        };
        let mut memory = None;
        let connected = connector.queue(&request, deadline, |id| {
            let (made, pair) = queue::Memory::new(&self.pd, id, self.shape)?;
            memory = Some(made);
            Ok(pair)
        })?;
        let Connected { id, pair, reply } = connected;
        let memory = memory.ok_or(Failure::NotATarget)?;
        Ok((LivePair::new(memory, pair), reply, id))
    }
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
