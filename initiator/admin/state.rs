// SPDX-License-Identifier: GPL-2.0

//! The state of an admin queue pair: requests in flight, requests that are due, and the effect of
//! each response. A pure state machine. Uses nothing but `core` and the wire format: its tests run
//! on the host, and the client in user space shares it.
//!
//! [`AdminState`] has the requests about the session and the target, an [`Attachment`] those about
//! a volume. In version 2 of the protocol a session has one volume, which comes with it; in version
//! 3 it may have several, which are attached first. A [`VolumeIndex`] names a volume from
//! [`AdminState::add_volume`] to [`AdminState::leave`].
//!
//! One request of each kind is in flight for each volume. The [tag](mod@tag) has the index of the
//! volume and the kind; the generation counts the requests with this tag. A function that returns
//! an [`Outgoing`] has recorded it as sent: the caller posts it, or ends the session.
//!
//! # The target's receive buffers
//!
//! The target posts [`ADMIN_DEPTH`] receive buffers, and posts each again before it handles the
//! request. A watch gets no response until its volume changes, so that does not show that its
//! buffer is posted again. But the target handles requests in order: the response to a request
//! shows it for all requests that were sent before. So no more than [`UNCONFIRMED`] requests are
//! sent after the last one for which it is known. If more are due, a keep-alive is sent at once:
//! one buffer is left for it.

use super::life::Life;
use core::ops::DerefMut;
use hcablk_core::proto::{
    connect::Reason,
    message::{
        AdminOp,
        AdminRequest,
        AdminResponse,
        Attach,
        Attached,
        Handle,
        ReservationInfo,
        Status,
        Tag,
        VolumeLimits,
        VolumeState, //
    },
    ADMIN_DEPTH, //
};

/// The tags of requests: the index of the volume times the number of kinds, plus the kind. Requests
/// about the session have the index 0.
pub(super) mod tag {
    pub(in super::super) const KEEP_ALIVE: u16 = 0;
    /// Also the tag of durability requests, which are sent only after the last fence request.
    pub(in super::super) const FENCE: u16 = 1;
    pub(in super::super) const WATCH: u16 = 2;
    pub(in super::super) const RESERVE: u16 = 3;
    pub(in super::super) const PORTALS: u16 = 4;
    /// Also the tag of the request to detach the volume, which is sent when it is attached.
    pub(in super::super) const ATTACH: u16 = 5;
    /// The number of kinds.
    pub(super) const KINDS: u16 = 6;

    /// Returns the kind of a request.
    pub(in super::super) fn kind(index: u16) -> u16 {
        index % KINDS
    }

    /// Returns whether requests of this kind are about the session.
    pub(super) fn is_of_session(kind: u16) -> bool {
        matches!(kind, KEEP_ALIVE | PORTALS)
    }
}

/// The most sends whose completions are outstanding, each of which has a buffer: they may be
/// reported later than the responses arrive.
pub(super) const SENDS: u32 = 16;

/// The most requests, except keep-alives, that are sent after the last one whose receive buffer is
/// known to be posted again.
const UNCONFIRMED: u64 = ADMIN_DEPTH as u64 - 1;

/// The most requests about volumes in flight, besides watches: the protocol allows [`ADMIN_DEPTH`],
/// with the two about the session.
const IN_FLIGHT: u16 = ADMIN_DEPTH - 2;

/// The most notices between two rounds of the timer. The next watch then waits for the round, so
/// that a target with continuous changes does not keep this host busy.
const NOTICES: u32 = 4;

/// The most milliseconds between two rounds of the timer.
const PERIOD_MS: u32 = 1000;

const UNASKED: &str = "it sent an unexpected response";
pub(super) const NONSENSE: &str = "a message cannot be understood";
const NO_CHANGE: &str = "it reported an unchanged state";

/// Returns the milliseconds between two rounds of the timer: a quarter of `tmo_s` seconds,
/// [`PERIOD_MS`] at most.
pub(super) fn period_ms(tmo_s: u16) -> u32 {
    (u32::from(tmo_s) * 250).min(PERIOD_MS)
}

/// The target's report of the volume on its admin queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) state: VolumeState,
    /// Its limits, and the generation of both: `None` if the target does not report them, or has
    /// not yet.
    pub(crate) limits: Option<(u32, VolumeLimits)>,
}

impl News {
    /// Returns whether `now` equals this report.
    fn matches(&self, now: &Self) -> bool {
        match (self.limits, now.limits) {
            (Some((known, _)), Some((generation, _))) => known == generation,
            (None, Some(_)) => false,
            _ => self.state == now.state,
        }
    }
}

/// The watch: a request to which the target responds when the volume changes.
///
/// ```text
///             SEND                     response                     the disk follows
///  Due(known) ────► Watching(known) ───────────► Noticed(changed) ───────────────────► Due(changed)
/// ```
///
/// Before the volume is known it is `NotYet`. A target that reports limits responds to the first
/// watch at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watch {
    NotYet,
    Due(News),
    Watching(News),
    Noticed(News),
}

/// The subjects of the watch.
#[derive(Clone, Copy)]
pub(crate) struct Watching {
    /// The volume's state in the target's reply.
    pub(crate) known: VolumeState,
    /// The disk sends flushes.
    pub(crate) flushes: bool,
    /// The target reports limits.
    pub(crate) limits: bool,
}

/// The state of keep-alives. Their times are counted in rounds of the timer: time in which nothing
/// runs here (the host is suspended) is not the target's silence.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeepAlive {
    /// The last keep-alive was sent `ms` milliseconds ago, and has its response.
    Responded { ms: u32 },
    /// A keep-alive was sent `ms` milliseconds ago, and has no response.
    Asked { ms: u32 },
}

impl KeepAlive {
    fn ms(self) -> u32 {
        match self {
            Self::Responded { ms } | Self::Asked { ms } => ms,
        }
    }

    /// Returns the state `more` milliseconds later.
    fn after(self, more: u32) -> Self {
        let ms = self.ms().saturating_add(more);
        match self {
            Self::Responded { .. } => Self::Responded { ms },
            Self::Asked { .. } => Self::Asked { ms },
        }
    }

    /// Returns the state after a response; `None`: no keep-alive was outstanding.
    fn after_response(self) -> Option<Self> {
        match self {
            Self::Asked { ms } => Some(Self::Responded { ms }),
            Self::Responded { .. } => None,
        }
    }
}

/// A request for a fence or for durability, whose response is yes or no.
///
/// ```text
///             SEND              response
///  Nothing ──────────► Asked ──────────► Responded(yes) ──► (the next question)
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fence {
    Nothing,
    Asked,
    /// The response; `None`: the target refuses to say.
    Responded(Option<bool>),
    /// The response: the volume is not attached any more.
    Gone,
}

/// The state of the request to attach a volume, and of the one to detach it.
///
/// ```text
///             SEND           response               SEND             response
///  Nothing ─────────► Asked ──────────► Responded(Ok) ────► Detaching ───────► Detached
///                       └─────────────► Responded(Err)
/// ```
///
/// A volume that its user has left ([`AdminState::leave`]) goes on to the end: it is detached if it
/// was attached.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Attaching {
    Nothing,
    Asked,
    Responded(Result<Attached, Reason>),
    Detaching,
    Detached,
}

/// The response to a reservation request, with the state of the reservations if it asked for that.
pub(crate) type ReservationResponse = (Status, Option<ReservationInfo>);

/// The state of a reservation request, as [`Fence`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reserving {
    Nothing,
    Asked,
    Responded(ReservationResponse),
}

/// The request for changes of the addresses on which the target listens.
///
/// ```text
///             SEND                       response                 user space is notified
///  Due(known) ────► Asked(known) ────────────────► Noticed(now) ──────────────────────► Due(now)
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
enum Portals {
    /// The target does not report its portals.
    Unsupported,
    Due(u32),
    Asked(u32),
    Noticed(u32),
}

impl Portals {
    /// Returns the state after a response with generation `now`. Fails with the rule that the
    /// target broke.
    fn after_response(self, now: Option<u32>) -> Result<Self, &'static str> {
        match (self, now) {
            (Self::Asked(known), Some(now)) if known == now => Err(NO_CHANGE),
            (Self::Asked(_), Some(now)) => Ok(Self::Noticed(now)),
            _ => Err(UNASKED),
        }
    }
}

/// The action that a response requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Nothing,
    /// Continue the start of the volume's use: its state is known.
    Begin(VolumeIndex),
    /// Make the disk follow the volume.
    Follow(VolumeIndex),
    /// Notify user space of the portals.
    NotifyPortals,
    /// End the use of the volume: the target detaches it.
    End(VolumeIndex),
}

/// Why a request is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAsked {
    /// No slot of the send queue is free, or too many requests are in flight; this passes.
    Busy,
    /// The late response to an earlier request is still outstanding.
    Pending,
    /// The queue pair is not live yet, or stopped.
    NotLive,
}

/// A request to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    pub(super) request: AdminRequest,
    /// The number of the buffer for its message: no other send has it until the completion of this
    /// one ([`AdminState::send_completed`]).
    pub(super) buffer: u32,
}

/// Names a volume of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeIndex(u16);

impl VolumeIndex {
    /// The first volume of a session, its only one if it has one.
    pub(crate) const FIRST: Self = Self(0);

    /// Returns the index of the volume that a request with this tag is about.
    pub(super) fn of_tag(index: u16) -> Self {
        Self(index / tag::KINDS)
    }

    /// Returns the place of the volume.
    pub(super) fn get(self) -> usize {
        self.0.into()
    }

    /// Returns all indices of a session with `count` volumes at most.
    pub(super) fn all(count: usize) -> impl Iterator<Item = Self> {
        (0..count as u16).map(Self)
    }
}

/// The last request of a kind.
#[derive(Clone, Copy)]
struct Sent {
    /// How many requests were sent, modulo 2^16.
    generation: u16,
    /// The request is the session's n-th.
    number: u64,
    /// It has no response.
    in_flight: bool,
    /// Requests without a response about volumes that had this index before.
    orphans: u16,
}

impl Sent {
    const NOTHING: Self = Self {
        generation: 0,
        number: 0,
        in_flight: false,
        orphans: 0,
    };

    /// Lets another volume have the index.
    fn orphan(&mut self) {
        self.orphans += u16::from(core::mem::take(&mut self.in_flight));
    }
}

/// The last request of each kind, with this index.
type AllSent = [Sent; tag::KINDS as usize];

/// The requests about a volume.
pub(super) struct Attachment {
    /// The volume has a user, or is not detached yet.
    is_used: bool,
    /// The volume has no user any more.
    is_left: bool,
    /// The name of the volume in requests.
    handle: Handle,
    /// The volume was attached to the session, so that it can be detached while the session
    /// continues.
    is_attached: bool,
    attaching: Attaching,
    fence: Fence,
    reserving: Reserving,
    watch: Watch,
    /// The flag in each watch that the disk sends flushes.
    flushes: bool,
    /// The disk follows the limits.
    follows_limits: bool,
    /// Notices since the timer's last round.
    notices: u32,
    sent: AllSent,
}

impl Attachment {
    /// Creates a place for a volume.
    pub(super) const fn new() -> Self {
        Self {
            is_used: false,
            is_left: false,
            handle: Handle::FIRST,
            is_attached: false,
            attaching: Attaching::Nothing,
            fence: Fence::Nothing,
            reserving: Reserving::Nothing,
            watch: Watch::NotYet,
            flushes: false,
            follows_limits: false,
            notices: 0,
            sent: [Sent::NOTHING; tag::KINDS as usize],
        }
    }

    /// Makes the place free, if nothing about its volume is left to do: the volume has no user, and
    /// is not attached.
    fn release_if_over(&mut self) {
        let is_over = match self.attaching {
            Attaching::Nothing | Attaching::Responded(Err(_)) | Attaching::Detached => true,
            Attaching::Asked | Attaching::Responded(Ok(_)) | Attaching::Detaching => false,
        };
        if self.is_left && is_over {
            let mut sent = self.sent;
            for last in &mut sent {
                last.orphan();
            }
            *self = Self {
                sent,
                ..Self::new()
            };
        }
    }

    /// Returns whether the volume must be detached, since its user has left it.
    fn is_to_detach(&self) -> bool {
        self.is_left && matches!(self.attaching, Attaching::Responded(Ok(_)))
    }
}

/// The state of an admin queue pair, with a place for each volume in `V`; see the module.
pub(super) struct AdminState<V> {
    life: Life,
    /// The buffers of sends whose completions are outstanding, a bit for each.
    sends: u32,
    /// The number of requests that were sent.
    sent: u64,
    /// The receive buffers of this many requests, the first ones, are known to be posted again.
    confirmed: u64,
    /// A request had to wait until more receive buffers are known to be posted again.
    is_held_back: bool,
    /// Requests about volumes without a response, besides watches.
    in_flight: u16,
    /// The last requests about the session.
    own: AllSent,
    keep_alive: KeepAlive,
    portals: Portals,
    volumes: V,
}

impl<V: DerefMut<Target = [Attachment]>> AdminState<V> {
    /// Creates the state of an admin queue pair that is being connected. Requests can be about as
    /// many volumes as there are `volumes`, all new.
    pub(super) const fn new(volumes: V) -> Self {
        Self {
            life: Life::Connecting,
            sends: 0,
            sent: 0,
            confirmed: 0,
            is_held_back: false,
            in_flight: 0,
            own: [Sent::NOTHING; tag::KINDS as usize],
            keep_alive: KeepAlive::Responded { ms: 0 },
            portals: Portals::Unsupported,
            volumes,
        }
    }

    /// Adds a volume. Fails if the session has as many as it can.
    pub(super) fn add_volume(&mut self) -> Option<VolumeIndex> {
        let index = self.volumes.iter().position(|volume| !volume.is_used)?;
        self.volumes.get_mut(index)?.is_used = true;
        Some(VolumeIndex(index as u16))
    }

    /// Records that the volume has no user any more. If it is attached, or will be, it is detached:
    /// [`Self::detach_due`] returns the request. Then another volume may get the index.
    pub(super) fn leave(&mut self, volume: VolumeIndex) {
        if let Some(attachment) = self.volume_mut(volume) {
            attachment.is_left = true;
            attachment.release_if_over();
        }
    }

    fn volume(&self, VolumeIndex(index): VolumeIndex) -> Option<&Attachment> {
        self.volumes.get(usize::from(index))
    }

    fn volume_mut(&mut self, VolumeIndex(index): VolumeIndex) -> Option<&mut Attachment> {
        self.volumes.get_mut(usize::from(index))
    }

    /// Returns the life-cycle state.
    pub(super) fn life(&self) -> Life {
        self.life
    }

    /// Returns whether requests are sent.
    pub(super) fn is_live(&self) -> bool {
        self.life == Life::Live
    }

    /// Goes live; the first keep-alive is due, and the first request for changes of the portals if
    /// the target reports these. Returns `false` if the queue pair was stopped in the meantime.
    pub(super) fn go_live(&mut self, portals: bool) -> bool {
        if self.life != Life::Connecting {
            return false;
        }
        self.life = Life::Live;
        self.keep_alive = KeepAlive::Responded { ms: u32::MAX };
        if portals {
            self.portals = Portals::Due(0);
        }
        true
    }

    /// Returns the request to attach the volume.
    pub(super) fn ask_attach(
        &mut self,
        volume: VolumeIndex,
        attach: Attach,
    ) -> Result<Outgoing, NotAsked> {
        self.may_ask(volume, |attachment| {
            attachment.attaching == Attaching::Nothing
        })?;
        let request = self.request(volume, tag::ATTACH, AdminOp::Attach(attach))?;
        self.set(volume, |attachment| attachment.attaching = Attaching::Asked);
        Ok(request)
    }

    /// Returns the request to detach the volume, which was attached. Fails if a keep-alive has had
    /// no response for a round of the timer.
    pub(super) fn ask_detach(&mut self, volume: VolumeIndex) -> Result<Outgoing, NotAsked> {
        let is_silent = matches!(self.keep_alive, KeepAlive::Asked { ms } if ms > 0);
        self.may_ask(volume, |attachment| {
            !is_silent && matches!(attachment.attaching, Attaching::Responded(Ok(_)))
        })?;
        let request = self.request(volume, tag::ATTACH, AdminOp::Detach)?;
        self.set(volume, |attachment| {
            attachment.attaching = Attaching::Detaching
        });
        Ok(request)
    }

    /// Returns the request to detach a volume that its user has left, if one is due.
    pub(super) fn detach_due(&mut self) -> Option<Outgoing> {
        let index = self.volumes.iter().position(Attachment::is_to_detach)?;
        self.ask_detach(VolumeIndex(index as u16)).ok()
    }

    /// Returns the state of the last request to attach or detach the volume.
    pub(super) fn attaching(&self, volume: VolumeIndex) -> Attaching {
        self.volume(volume)
            .map_or(Attaching::Nothing, |attachment| attachment.attaching)
    }

    /// Makes the first watch of the volume due, since the volume is known.
    pub(super) fn watch(&mut self, volume: VolumeIndex, watching: Watching) {
        self.set(volume, |attachment| {
            attachment.watch = Watch::Due(News {
                state: watching.known,
                limits: None,
            });
            attachment.flushes = watching.flushes;
            attachment.follows_limits = watching.limits;
        });
    }

    /// Stops sending.
    pub(super) fn stop(&mut self) {
        self.life = self.life.stopped();
    }

    /// Records that the send with this buffer has completed.
    pub(super) fn send_completed(&mut self, buffer: u32) {
        self.sends &= !1_u32.checked_shl(buffer).unwrap_or(0);
    }

    fn set(&mut self, volume: VolumeIndex, f: impl FnOnce(&mut Attachment)) {
        if let Some(attachment) = self.volume_mut(volume) {
            f(attachment);
        }
    }

    /// Returns whether one more request may be sent after those whose receive buffers are not known
    /// to be posted again.
    fn has_receive_buffer(&mut self, kind: u16) -> bool {
        let limit = match kind {
            tag::KEEP_ALIVE => u64::from(ADMIN_DEPTH),
            _ => UNCONFIRMED,
        };
        let fits = self.sent - self.confirmed < limit;
        self.is_held_back |= !fits;
        fits
    }

    /// Returns a request of this kind, of which none is in flight for the volume. Fails with
    /// [`NotAsked::Busy`] only.
    fn request(
        &mut self,
        volume: VolumeIndex,
        kind: u16,
        op: AdminOp,
    ) -> Result<Outgoing, NotAsked> {
        let counts = !tag::is_of_session(kind) && kind != tag::WATCH;
        let buffer = self.sends.trailing_ones();
        if buffer >= SENDS
            || counts && self.in_flight >= IN_FLIGHT
            || !self.has_receive_buffer(kind)
        {
            return Err(NotAsked::Busy);
        }
        let number = self.sent + 1;
        let VolumeIndex(index) = volume;
        let attachment = self.volumes.get_mut(usize::from(index));
        let handle = attachment.as_ref().map(|attachment| attachment.handle);
        let all = match tag::is_of_session(kind) {
            true => Some(&mut self.own),
            false => attachment.map(|attachment| &mut attachment.sent),
        };
        let last = all.and_then(|all| all.get_mut(usize::from(kind)));
        let last = last.ok_or(NotAsked::Busy)?;
        last.generation = last.generation.wrapping_add(1);
        last.number = number;
        last.in_flight = true;
        let tag = Tag {
            index: index * tag::KINDS + kind,
            generation: last.generation,
        };
        self.sent = number;
        self.sends |= 1 << buffer;
        self.in_flight += u16::from(counts);
        let volume = match op {
            AdminOp::KeepAlive { .. } | AdminOp::Portals { .. } | AdminOp::Attach(_) => None,
            _ => handle,
        };
        let volume = volume.unwrap_or(Handle::FIRST);
        let request = AdminRequest { tag, volume, op };
        Ok(Outgoing { request, buffer })
    }

    /// Returns a request about the session.
    fn own_request(&mut self, kind: u16, op: AdminOp) -> Option<Outgoing> {
        self.request(VolumeIndex::FIRST, kind, op).ok()
    }

    /// Counts a round of the timer. Returns `false` if a keep-alive has had no response for `tmo_s`
    /// seconds: the session ends.
    #[must_use]
    pub(super) fn round(&mut self, tmo_s: u16) -> bool {
        if !self.is_live() {
            return true;
        }
        self.keep_alive = self.keep_alive.after(period_ms(tmo_s));
        for attachment in self.volumes.iter_mut() {
            attachment.notices = 0;
        }
        let silent =
            matches!(self.keep_alive, KeepAlive::Asked { ms } if ms >= u32::from(tmo_s) * 1000);
        !silent
    }

    /// Returns the keep-alive if it is due: half of `tmo_s` seconds after the last one, which has
    /// its response; earlier if a request waits for the target's receive buffers.
    pub(super) fn keep_alive_due(&mut self, tmo_s: u16) -> Option<Outgoing> {
        match self.keep_alive {
            KeepAlive::Responded { ms }
                if self.is_live() && (self.is_held_back || ms >= u32::from(tmo_s) * 500) =>
            {
                let request = self.own_request(tag::KEEP_ALIVE, AdminOp::KeepAlive { tmo_s })?;
                self.keep_alive = KeepAlive::Asked { ms: 0 };
                Some(request)
            }
            _ => None,
        }
    }

    /// Returns whether a request has waited for the target's receive buffers since the last call:
    /// then requests may be due after each response.
    pub(super) fn take_held_back(&mut self) -> bool {
        core::mem::take(&mut self.is_held_back)
    }

    /// Returns the watch of a volume if one is due. Several may be due.
    pub(super) fn watch_due(&mut self) -> Option<Outgoing> {
        if !self.is_live() {
            return None;
        }
        let is_due = |attachment: &Attachment| {
            let may_be_sent = !attachment.is_left && attachment.notices < NOTICES;
            may_be_sent && matches!(attachment.watch, Watch::Due(_))
        };
        let index = self.volumes.iter().position(is_due)?;
        let attachment = self.volumes.get(index)?;
        let Watch::Due(known) = attachment.watch else {
            return None;
        };
        let generation = known.limits.map_or(0, |(generation, _)| generation);
        let watch = AdminOp::Watch {
            known: known.state,
            flushes: attachment.flushes,
            generation: attachment.follows_limits.then_some(generation),
        };
        let volume = VolumeIndex(index as u16);
        let request = self.request(volume, tag::WATCH, watch).ok()?;
        self.set(volume, |attachment| {
            attachment.watch = Watch::Watching(known)
        });
        Some(request)
    }

    /// Returns the request for changes of the target's portals if it is due.
    pub(super) fn portals_due(&mut self) -> Option<Outgoing> {
        let Portals::Due(known) = self.portals else {
            return None;
        };
        if !self.is_live() {
            return None;
        }
        let request = self.own_request(tag::PORTALS, AdminOp::Portals { known })?;
        self.portals = Portals::Asked(known);
        Some(request)
    }

    /// Returns a request for a fence or for durability.
    pub(super) fn ask_fence(
        &mut self,
        volume: VolumeIndex,
        question: AdminOp,
    ) -> Result<Outgoing, NotAsked> {
        self.may_ask(volume, |attachment| attachment.fence != Fence::Asked)?;
        let request = self.request(volume, tag::FENCE, question)?;
        self.set(volume, |attachment| attachment.fence = Fence::Asked);
        Ok(request)
    }

    /// Returns the state of the last fence request.
    pub(super) fn fence(&self, volume: VolumeIndex) -> Fence {
        self.volume(volume)
            .map_or(Fence::Nothing, |attachment| attachment.fence)
    }

    /// Returns a reservation request.
    pub(super) fn ask_reservation(
        &mut self,
        volume: VolumeIndex,
        question: AdminOp,
    ) -> Result<Outgoing, NotAsked> {
        self.may_ask(volume, |attachment| {
            attachment.reserving != Reserving::Asked
        })?;
        let request = self.request(volume, tag::RESERVE, question)?;
        self.set(volume, |attachment| attachment.reserving = Reserving::Asked);
        Ok(request)
    }

    /// Returns the state of the last reservation request.
    pub(super) fn reserving(&self, volume: VolumeIndex) -> Reserving {
        self.volume(volume)
            .map_or(Reserving::Nothing, |attachment| attachment.reserving)
    }

    /// Returns `Ok` if the queue pair is live and `is_ready`.
    fn may_ask(
        &self,
        volume: VolumeIndex,
        is_ready: impl FnOnce(&Attachment) -> bool,
    ) -> Result<(), NotAsked> {
        match (self.is_live(), self.volume(volume)) {
            (false, _) => Err(NotAsked::NotLive),
            (true, Some(attachment)) if is_ready(attachment) => Ok(()),
            (true, _) => Err(NotAsked::Pending),
        }
    }

    /// Returns the target's report, if the disk has not followed it yet.
    pub(super) fn news(&self, volume: VolumeIndex) -> Option<News> {
        match self.volume(volume)?.watch {
            Watch::Noticed(changed) => Some(changed),
            _ => None,
        }
    }

    /// Returns whether a disk has not followed the target's report yet.
    pub(super) fn has_news(&self) -> bool {
        let mut volumes = self.volumes.iter();
        volumes.any(|attachment| matches!(attachment.watch, Watch::Noticed(_)))
    }

    /// Records that the disk has followed the report that [`Self::news`] returned.
    pub(super) fn followed(&mut self, volume: VolumeIndex) {
        self.set(volume, |attachment| {
            if let Watch::Noticed(changed) = attachment.watch {
                attachment.watch = Watch::Due(changed);
            }
        });
    }

    /// Returns the generation of the reported portals, if user space was not notified of it yet.
    pub(super) fn portals_news(&self) -> Option<u32> {
        match self.portals {
            Portals::Noticed(now) => Some(now),
            _ => None,
        }
    }

    /// Records that user space was notified of the generation that [`Self::portals_news`] returned.
    pub(super) fn portals_followed(&mut self) {
        if let Portals::Noticed(now) = self.portals {
            self.portals = Portals::Due(now);
        }
    }

    /// Handles a response. Fails with the rule that the target broke.
    pub(super) fn handle_response(
        &mut self,
        response: &AdminResponse,
    ) -> Result<Then, &'static str> {
        let Tag { index, generation } = response.tag;
        let kind = tag::kind(index);
        let volume = VolumeIndex::of_tag(index);
        let attachment = self.volumes.get_mut(usize::from(volume.0));
        let all = match (tag::is_of_session(kind), volume.0, attachment) {
            (true, 0, _) => &mut self.own,
            (false, _, Some(attachment)) => &mut attachment.sent,
            _ => return Err(UNASKED),
        };
        let last = all.get_mut(usize::from(kind)).ok_or(UNASKED)?;
        let is_last = last.generation == generation;
        if last.orphans > 0 && !(is_last && last.in_flight) {
            // It is about a volume that had the index before. How it ended is of no interest.
            last.orphans -= 1;
            return Ok(Then::Nothing);
        }
        if !is_last {
            return Err(UNASKED);
        }
        if core::mem::take(&mut last.in_flight) {
            self.confirmed = self.confirmed.max(last.number);
            let counts = !tag::is_of_session(kind) && kind != tag::WATCH;
            self.in_flight -= u16::from(counts);
        }
        if response.portals.is_some() != (kind == tag::PORTALS) {
            return Err(NONSENSE);
        }
        match tag::is_of_session(kind) {
            true => self.handle_own_response(kind, response),
            false => match self.volume_mut(volume) {
                Some(attachment) => attachment.handle_response(volume, kind, response),
                None => Err(UNASKED),
            },
        }
    }

    /// Handles a response about the session.
    fn handle_own_response(
        &mut self,
        kind: u16,
        response: &AdminResponse,
    ) -> Result<Then, &'static str> {
        let is_bare = *response
            == AdminResponse {
                portals: response.portals,
                ..AdminResponse::bare(response.tag, Status::Ok)
            };
        match kind {
            tag::KEEP_ALIVE if is_bare => {
                self.keep_alive = self.keep_alive.after_response().ok_or(UNASKED)?;
                Ok(Then::Nothing)
            }
            tag::PORTALS if is_bare => {
                self.portals = self.portals.after_response(response.portals)?;
                Ok(Then::NotifyPortals)
            }
            _ => Err(NONSENSE),
        }
    }
}

impl Attachment {
    /// Handles a response about the volume, which has `index`.
    fn handle_response(
        &mut self,
        index: VolumeIndex,
        kind: u16,
        response: &AdminResponse,
    ) -> Result<Then, &'static str> {
        let AdminResponse {
            status,
            volume,
            limits,
            reservation,
            attached,
            ..
        } = *response;
        let attaches = kind == tag::ATTACH && self.attaching == Attaching::Asked;
        if attached.is_some() != attaches {
            return Err(NONSENSE);
        }
        if let Some(outcome) = attached {
            if let Ok(attached) = outcome {
                self.handle = attached.handle;
                self.is_attached = true;
            }
            self.attaching = Attaching::Responded(outcome);
            self.release_if_over();
            return Ok(Then::Nothing);
        }
        if kind == tag::RESERVE {
            if self.reserving != Reserving::Asked || volume.is_some() {
                return Err(UNASKED);
            }
            self.reserving = Reserving::Responded((status, reservation));
            return Ok(Then::Nothing);
        }
        if reservation.is_some() {
            return Err(NONSENSE);
        }
        match (kind, status, volume) {
            (tag::FENCE, Status::Ok | Status::Draining | Status::Invalid, None) => {
                if self.fence != Fence::Asked {
                    return Err(UNASKED);
                }
                self.fence = Fence::Responded(match status {
                    Status::Ok => Some(true),
                    Status::Draining => Some(false),
                    _ => None,
                });
                Ok(Then::Nothing)
            }
            (tag::FENCE, Status::Gone, None) if self.is_attached => {
                if self.fence != Fence::Asked {
                    return Err(UNASKED);
                }
                self.fence = Fence::Gone;
                Ok(Then::Nothing)
            }
            (tag::ATTACH, Status::Ok, None) => {
                if self.attaching != Attaching::Detaching {
                    return Err(UNASKED);
                }
                self.attaching = Attaching::Detached;
                self.release_if_over();
                Ok(Then::Nothing)
            }
            (tag::WATCH, Status::Ok, Some(state)) => {
                let Watch::Watching(known) = self.watch else {
                    return Err(UNASKED);
                };
                let now = News { state, limits };
                let follows_cache = known.state.write_cache.is_some();
                if follows_cache != state.write_cache.is_some()
                    || self.follows_limits != limits.is_some()
                {
                    return Err(NONSENSE);
                }
                if known.matches(&now) {
                    return Err(NO_CHANGE);
                }
                self.watch = Watch::Noticed(now);
                self.notices += 1;
                Ok(match self.follows_limits && known.limits.is_none() {
                    true => Then::Begin(index),
                    false => Then::Follow(index),
                })
            }
            (tag::WATCH, Status::Gone, None) => match self.watch {
                Watch::Watching(_) => Ok(Then::End(index)),
                _ => Err(UNASKED),
            },
            _ => Err(NONSENSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hcablk_core::proto::{
        connect::{
            Epoch,
            Geometry,
            SessionId, //
        },
        name::VolumeName, //
    };

    const TMO_S: u16 = 4;

    type State = AdminState<Vec<Attachment>>;

    /// The only volume of a session, or the first of several.
    const V: VolumeIndex = VolumeIndex::FIRST;

    /// Returns the state of an admin queue pair for so many volumes.
    fn for_volumes(count: usize) -> State {
        AdminState::new((0..count).map(|_| Attachment::new()).collect())
    }

    fn live(limits: bool) -> State {
        let mut state = for_volumes(1);
        assert!(state.go_live(true));
        assert_eq!(state.add_volume(), Some(V));
        state.watch(V, watching(limits));
        state
    }

    fn watching(limits: bool) -> Watching {
        Watching {
            known: volume(8),
            flushes: true,
            limits,
        }
    }

    fn volume(sectors: u64) -> VolumeState {
        VolumeState {
            sectors,
            read_only: false,
            write_cache: Some(true),
        }
    }

    fn response(sent: Outgoing, status: Status) -> AdminResponse {
        AdminResponse::bare(sent.request.tag, status)
    }

    fn reported(request: Outgoing, sectors: u64) -> AdminResponse {
        AdminResponse {
            volume: Some(volume(sectors)),
            ..response(request, Status::Ok)
        }
    }

    #[test]
    fn nothing_is_sent_before_it_is_live_nor_after_the_end() {
        let mut state = for_volumes(1);
        assert_eq!(state.keep_alive_due(TMO_S), None);
        assert_eq!(state.watch_due(), None);
        assert_eq!(state.ask_fence(V, AdminOp::Durable), Err(NotAsked::NotLive));
        let mut state = live(false);
        state.stop();
        assert_eq!(state.keep_alive_due(TMO_S), None);
        assert_eq!(state.watch_due(), None);
        assert_eq!(state.portals_due(), None);
        assert_eq!(state.life(), Life::Stopped);
    }

    #[test]
    fn a_keep_alive_is_due_at_once_and_half_its_time_after_the_last_response() {
        let mut state = live(false);
        let first = state.keep_alive_due(TMO_S).unwrap();
        assert_eq!(state.keep_alive_due(TMO_S), None);
        assert!(state.round(TMO_S));
        assert_eq!(
            state.handle_response(&response(first, Status::Ok)),
            Ok(Then::Nothing)
        );
        assert_eq!(state.keep_alive_due(TMO_S), None, "after 1 s");
        assert!(state.round(TMO_S));
        let second = state.keep_alive_due(TMO_S).unwrap();
        assert_ne!(first.request.tag, second.request.tag);
        assert_eq!(
            state.handle_response(&response(first, Status::Ok)),
            Err(UNASKED)
        );
    }

    #[test]
    fn silence_ends_the_session_after_the_time() {
        let mut state = live(false);
        state.keep_alive_due(TMO_S).unwrap();
        for _ in 0..3 {
            assert!(state.round(TMO_S));
        }
        assert!(!state.round(TMO_S));
    }

    #[test]
    fn sends_that_are_not_reported_hold_requests_back() {
        let mut state = live(false);
        for _ in 0..SENDS {
            let request = state.ask_fence(V, AdminOp::Durable).unwrap();
            assert_eq!(state.ask_fence(V, AdminOp::Durable), Err(NotAsked::Pending));
            state
                .handle_response(&response(request, Status::Draining))
                .unwrap();
        }
        assert_eq!(state.ask_fence(V, AdminOp::Durable), Err(NotAsked::Busy));
        assert_eq!(state.keep_alive_due(TMO_S), None);
        state.send_completed(0);
        assert!(state.keep_alive_due(TMO_S).is_some());
    }

    #[test]
    fn a_watch_reports_only_changes_and_few_in_a_round() {
        let mut state = live(false);
        let watch = state.watch_due().unwrap();
        assert_eq!(state.handle_response(&reported(watch, 8)), Err(NO_CHANGE));
        for n in 0..NOTICES {
            let watch = match n {
                0 => watch,
                _ => state.watch_due().unwrap(),
            };
            let sectors = 9 + u64::from(n);
            assert_eq!(
                state.handle_response(&reported(watch, sectors)),
                Ok(Then::Follow(V))
            );
            assert_eq!(state.news(V).unwrap().state, volume(sectors));
            assert_eq!(state.watch_due(), None, "it was not followed yet");
            state.followed(V);
        }
        assert_eq!(state.watch_due(), None, "enough for this round");
        assert!(state.round(TMO_S));
        let watch = state.watch_due().unwrap();
        assert_eq!(
            state.handle_response(&response(watch, Status::Gone)),
            Ok(Then::End(V))
        );
    }

    #[test]
    fn responses_of_the_wrong_kind_are_refused() {
        let mut state = live(true);
        let watch = state.watch_due().unwrap();
        assert_eq!(
            state.handle_response(&reported(watch, 9)),
            Err(NONSENSE),
            "it follows the limits"
        );
        let fence = state.ask_fence(V, AdminOp::Durable).unwrap();
        assert_eq!(
            state.handle_response(&response(fence, Status::Gone)),
            Err(NONSENSE)
        );
        let portals = state.portals_due().unwrap();
        assert_eq!(
            state.handle_response(&response(portals, Status::Ok)),
            Err(NONSENSE)
        );
        let generation = |now| AdminResponse {
            portals: Some(now),
            ..response(portals, Status::Ok)
        };
        assert_eq!(
            state.handle_response(&generation(7)),
            Ok(Then::NotifyPortals)
        );
        assert_eq!(state.handle_response(&generation(7)), Err(UNASKED));
        assert_eq!(state.portals_news(), Some(7));
        state.portals_followed();
        assert_eq!(state.portals_news(), None);
        let reserve = state.ask_reservation(V, AdminOp::ReadReservation).unwrap();
        let unexpected = AdminResponse {
            volume: Some(volume(9)),
            ..response(reserve, Status::Ok)
        };
        assert_eq!(state.handle_response(&unexpected), Err(UNASKED));
        assert_eq!(
            state.handle_response(&response(reserve, Status::Ok)),
            Ok(Then::Nothing)
        );
        assert!(state.reserving(V) == Reserving::Responded((Status::Ok, None)));
        assert!(state.fence(V) == Fence::Asked);
    }

    const HANDLE: Handle = Handle(3);

    fn attach() -> Attach {
        Attach {
            volume: VolumeName::parse("vol0").unwrap(),
            disk: SessionId(7),
            epoch: Epoch(1),
            resume: false,
        }
    }

    fn attached(request: Outgoing, outcome: Result<Handle, Reason>) -> AdminResponse {
        let geometry = Geometry {
            capacity: 8 << 9,
            logical_block_shift: 9,
            physical_block_shift: 12,
            ..Geometry::of_session(1 << 20)
        };
        AdminResponse {
            attached: Some(outcome.map(|handle| Attached {
                handle,
                geometry,
                id: None,
                instance: None,
            })),
            ..response(request, Status::Ok)
        }
    }

    /// Returns the state of a session with an attached volume that is about to be watched.
    fn with_volume() -> State {
        let mut state = for_volumes(1);
        assert!(state.go_live(false));
        assert_eq!(state.add_volume(), Some(V));
        let request = state.ask_attach(V, attach()).unwrap();
        assert_eq!(request.request.volume, Handle::FIRST);
        let response = attached(request, Ok(HANDLE));
        assert_eq!(state.handle_response(&response), Ok(Then::Nothing));
        state.watch(V, watching(false));
        state
    }

    #[test]
    fn keep_alives_are_sent_while_a_volume_is_being_attached_and_nothing_about_it() {
        let mut state = for_volumes(1);
        assert_eq!(state.ask_attach(V, attach()), Err(NotAsked::NotLive));
        assert!(state.go_live(true));
        let request = state.ask_attach(V, attach()).unwrap();
        assert_eq!(state.ask_attach(V, attach()), Err(NotAsked::Pending));
        assert_eq!(state.ask_detach(V), Err(NotAsked::Pending));
        assert_eq!(state.watch_due(), None);
        assert!(state.keep_alive_due(TMO_S).is_some());
        assert!(state.portals_due().is_some());
        let refused = attached(request, Err(Reason::Evicted));
        assert_eq!(state.handle_response(&refused), Ok(Then::Nothing));
        assert!(state.attaching(V) == Attaching::Responded(Err(Reason::Evicted)));
        assert_eq!(
            state.ask_detach(V),
            Err(NotAsked::Pending),
            "there is no volume"
        );
        assert_eq!(state.handle_response(&refused), Err(NONSENSE), "twice");
    }

    #[test]
    fn requests_about_an_attached_volume_have_its_handle_and_those_about_the_session_none() {
        let mut state = with_volume();
        let of_volume = [
            state.watch_due().unwrap(),
            state.ask_fence(V, AdminOp::Durable).unwrap(),
            state.ask_reservation(V, AdminOp::ReadReservation).unwrap(),
            state.ask_detach(V).unwrap(),
        ];
        assert!(of_volume.iter().all(|sent| sent.request.volume == HANDLE));
        assert_eq!(
            state.keep_alive_due(TMO_S).unwrap().request.volume,
            Handle::FIRST
        );
        let detached = response(of_volume[3], Status::Ok);
        assert_eq!(state.handle_response(&detached), Ok(Then::Nothing));
        assert!(state.attaching(V) == Attaching::Detached);
        assert_eq!(state.handle_response(&detached), Err(UNASKED), "twice");
    }

    #[test]
    fn a_volume_is_not_detached_from_a_silent_target() {
        let mut state = with_volume();
        let keep_alive = state.keep_alive_due(TMO_S).unwrap();
        assert!(state.round(TMO_S));
        assert_eq!(state.ask_detach(V), Err(NotAsked::Pending));
        state
            .handle_response(&response(keep_alive, Status::Ok))
            .unwrap();
        assert!(state.ask_detach(V).is_ok());
    }

    #[test]
    fn an_attached_volume_may_be_gone_when_a_request_names_it() {
        let mut state = with_volume();
        let fence = state.ask_fence(V, AdminOp::Durable).unwrap();
        let gone = response(fence, Status::Gone);
        assert_eq!(state.handle_response(&gone), Ok(Then::Nothing));
        assert!(state.fence(V) == Fence::Gone);
        let watch = state.watch_due().unwrap();
        assert_eq!(
            state.handle_response(&response(watch, Status::Gone)),
            Ok(Then::End(V))
        );
    }

    #[test]
    fn only_the_response_to_an_attach_has_its_form() {
        let mut state = with_volume();
        let fence = state.ask_fence(V, AdminOp::Durable).unwrap();
        assert_eq!(
            state.handle_response(&attached(fence, Ok(HANDLE))),
            Err(NONSENSE),
            "another request"
        );
        let detach = state.ask_detach(V).unwrap();
        assert_eq!(
            state.handle_response(&attached(detach, Ok(HANDLE))),
            Err(NONSENSE),
            "a detach"
        );
        let mut state = for_volumes(1);
        assert!(state.go_live(false));
        assert_eq!(state.add_volume(), Some(V));
        let request = state.ask_attach(V, attach()).unwrap();
        let bare = response(request, Status::Ok);
        assert_eq!(state.handle_response(&bare), Err(NONSENSE), "not attached");
    }

    fn handle(index: u16) -> Handle {
        Handle(10 + index)
    }

    /// Attaches a volume.
    fn attach_one(state: &mut State) -> VolumeIndex {
        let volume = state.add_volume().unwrap();
        let request = state.ask_attach(volume, attach()).unwrap();
        state.send_completed(request.buffer);
        state
            .handle_response(&attached(request, Ok(handle(volume.0))))
            .unwrap();
        volume
    }

    /// Returns the state of a session with so many attached volumes, none of them watched.
    fn with_volumes(count: u16) -> State {
        let mut state = for_volumes(count.into());
        assert!(state.go_live(false));
        for index in 0..count {
            assert_eq!(attach_one(&mut state), VolumeIndex(index));
        }
        assert_eq!(state.add_volume(), None);
        state
    }

    const W: VolumeIndex = VolumeIndex(1);

    #[test]
    fn a_response_is_about_the_volume_of_its_request_alone() {
        let mut state = with_volumes(2);
        let first = state.ask_fence(V, AdminOp::Durable).unwrap();
        let second = state.ask_fence(W, AdminOp::Durable).unwrap();
        assert_ne!(first.request.tag, second.request.tag);
        assert_ne!(first.buffer, second.buffer);
        assert_eq!(first.request.volume, handle(0));
        assert_eq!(second.request.volume, handle(1));
        state
            .handle_response(&response(second, Status::Ok))
            .unwrap();
        assert!(state.fence(V) == Fence::Asked);
        assert!(state.fence(W) == Fence::Responded(Some(true)));
        state.watch(V, watching(false));
        state.watch(W, watching(false));
        let watches = [state.watch_due().unwrap(), state.watch_due().unwrap()];
        assert_eq!(state.watch_due(), None);
        assert_eq!(
            state.handle_response(&reported(watches[1], 9)),
            Ok(Then::Follow(W))
        );
        assert_eq!(state.news(V), None);
        assert!(state.news(W).is_some());
        state.followed(W);
        assert_eq!(
            state.handle_response(&response(watches[0], Status::Gone)),
            Ok(Then::End(V))
        );
        let of_no_volume = AdminResponse::bare(
            Tag {
                index: 2 * tag::KINDS + tag::FENCE,
                generation: 1,
            },
            Status::Ok,
        );
        assert_eq!(state.handle_response(&of_no_volume), Err(UNASKED));
    }

    #[test]
    fn a_volume_that_is_left_is_detached_and_then_another_has_its_index() {
        let mut state = with_volumes(2);
        state.watch(W, watching(false));
        let watch = state.watch_due().unwrap();
        let fence = state.ask_fence(W, AdminOp::Durable).unwrap();
        state.leave(W);
        assert_eq!(state.add_volume(), None, "it is not detached yet");
        let detach = state.detach_due().unwrap();
        assert_eq!(detach.request.op, AdminOp::Detach);
        assert_eq!(detach.request.volume, handle(1));
        assert_eq!(state.detach_due(), None);
        assert_eq!(state.add_volume(), None, "the target has not responded yet");
        state
            .handle_response(&response(detach, Status::Ok))
            .unwrap();
        assert_eq!(attach_one(&mut state), W);
        state.watch(W, watching(false));
        let next = state.watch_due().unwrap();
        // The late responses are about the volume that had the index before.
        for late in [watch, fence] {
            assert_eq!(
                state.handle_response(&response(late, Status::Gone)),
                Ok(Then::Nothing)
            );
            assert_eq!(
                state.handle_response(&response(late, Status::Gone)),
                Err(UNASKED),
                "twice"
            );
        }
        assert_eq!(
            state.handle_response(&response(next, Status::Gone)),
            Ok(Then::End(W))
        );
    }

    #[test]
    fn a_volume_that_is_left_while_it_is_being_attached_is_detached_if_the_target_grants_it() {
        let mut state = for_volumes(1);
        assert!(state.go_live(false));
        for outcome in [Ok(HANDLE), Err(Reason::Forbidden)] {
            assert_eq!(state.add_volume(), Some(V));
            let request = state.ask_attach(V, attach()).unwrap();
            state.leave(V);
            assert_eq!(state.detach_due(), None);
            assert_eq!(state.add_volume(), None);
            state.handle_response(&attached(request, outcome)).unwrap();
            if outcome.is_ok() {
                let detach = state.detach_due().unwrap();
                assert_eq!(detach.request.volume, HANDLE);
                state
                    .handle_response(&response(detach, Status::Ok))
                    .unwrap();
            }
            assert_eq!(state.detach_due(), None);
        }
        assert_eq!(state.add_volume(), Some(V));
        state.leave(V);
        assert_eq!(state.add_volume(), Some(V), "it was never asked for");
    }

    #[test]
    fn no_more_requests_are_sent_than_the_target_has_receive_buffers_for() {
        const VOLUMES: u16 = 20;
        let mut state = with_volumes(VOLUMES);
        let keep_alive = state.keep_alive_due(TMO_S).unwrap();
        state.send_completed(keep_alive.buffer);
        state
            .handle_response(&response(keep_alive, Status::Ok))
            .unwrap();
        for index in 0..VOLUMES {
            state.watch(VolumeIndex(index), watching(false));
        }
        let mut sent = 0;
        while sent < VOLUMES {
            let mut posted = 0;
            while let Some(watch) = state.watch_due() {
                state.send_completed(watch.buffer);
                posted += 1;
            }
            sent += posted;
            assert!(posted <= ADMIN_DEPTH - 1);
            if sent == VOLUMES {
                break;
            }
            assert_eq!(
                state.ask_fence(V, AdminOp::Durable),
                Err(NotAsked::Busy),
                "a watch has no response that shows its buffer to be free"
            );
            let keep_alive = state.keep_alive_due(TMO_S).unwrap();
            assert!(state.take_held_back());
            assert_eq!(state.watch_due(), None);
            assert_eq!(state.keep_alive_due(TMO_S), None);
            state.send_completed(keep_alive.buffer);
            state
                .handle_response(&response(keep_alive, Status::Ok))
                .unwrap();
        }
        assert_eq!(sent, VOLUMES);
        assert!(state.ask_fence(V, AdminOp::Durable).is_ok());
    }

    #[test]
    fn few_requests_about_volumes_are_in_flight_besides_watches() {
        let mut state = with_volumes(20);
        let mut fences = Vec::new();
        for index in 0..20 {
            match state.ask_fence(VolumeIndex(index), AdminOp::Durable) {
                Ok(fence) => fences.push(fence),
                Err(refused) => assert_eq!(refused, NotAsked::Busy),
            }
        }
        assert_eq!(fences.len(), usize::from(ADMIN_DEPTH) - 2);
        assert!(state.keep_alive_due(TMO_S).is_some());
        state
            .handle_response(&response(fences[0], Status::Ok))
            .unwrap();
        let last = VolumeIndex(19);
        assert!(state.ask_fence(last, AdminOp::Durable).is_ok());
        assert_eq!(
            state.ask_fence(V, AdminOp::Durable),
            Err(NotAsked::Busy),
            "one has ended, one has begun"
        );
    }
}
