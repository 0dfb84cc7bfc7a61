// SPDX-License-Identifier: GPL-2.0

//! The state of an admin queue pair: requests in flight, requests that are due, and the effect of
//! each response. A pure state machine. Uses nothing but `core` and the wire format: its tests run
//! on the host, and the client in user space shares it.
//!
//! [`AdminState`] has the requests about the session and the target, [`Attachment`] those about the
//! volume. In version 2 of the protocol the volume comes with the session; in version 3 it is
//! attached first.
//!
//! There is one request of each kind in flight. The tag is its [kind](tag), the generation counts
//! the requests of that kind. A function that returns a request has recorded it as sent: the caller
//! posts it, or ends the session.

use super::life::Life;
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
    }, //
};

/// The tags of requests, and the numbers of their buffers: each kind has one.
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
    pub(in super::super) const KINDS: usize = 6;
}

/// The most sends whose completions are outstanding: they may be reported later than the responses
/// arrive.
pub(super) const SENDS: u32 = 16;

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
    /// Continue the start of the session: the state of the volume is known.
    Begin,
    /// Make the disk follow the volume.
    Follow,
    /// Notify user space of the portals.
    NotifyPortals,
    /// End the session: the export ends.
    End,
}

/// Why a request is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAsked {
    /// No slot of the send queue is free; this passes.
    Busy,
    /// The late response to an earlier request is still outstanding.
    Pending,
    /// The queue pair is not live yet, or stopped.
    NotLive,
}

/// The requests about a volume.
struct Attachment {
    /// The name of the volume in requests.
    handle: Handle,
    /// The volume was attached to the session, so that it can be detached while the session
    /// continues.
    is_attached: bool,
    fence: Fence,
    reserving: Reserving,
    watch: Watch,
    /// The flag in each watch that the disk sends flushes.
    flushes: bool,
    /// The disk follows the limits.
    follows_limits: bool,
    /// Notices since the timer's last round.
    notices: u32,
}

impl Attachment {
    /// Creates the state of a volume that is not known yet.
    const fn new() -> Self {
        Self {
            handle: Handle::FIRST,
            is_attached: false,
            fence: Fence::Nothing,
            reserving: Reserving::Nothing,
            watch: Watch::NotYet,
            flushes: false,
            follows_limits: false,
            notices: 0,
        }
    }
}

/// The state of an admin queue pair; see the module.
pub(super) struct AdminState {
    life: Life,
    /// Sends whose completions are outstanding.
    sends: u32,
    /// How many requests of each kind were sent, modulo 2^16.
    generations: [u16; tag::KINDS],
    keep_alive: KeepAlive,
    portals: Portals,
    attaching: Attaching,
    volume: Attachment,
}

impl AdminState {
    /// Creates the state of an admin queue pair that is being connected.
    pub(super) const fn new() -> Self {
        Self {
            life: Life::Connecting,
            sends: 0,
            generations: [0; tag::KINDS],
            keep_alive: KeepAlive::Responded { ms: 0 },
            portals: Portals::Unsupported,
            attaching: Attaching::Nothing,
            volume: Attachment::new(),
        }
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

    /// Returns the request to attach a volume.
    pub(super) fn ask_attach(&mut self, attach: Attach) -> Result<AdminRequest, NotAsked> {
        self.may_ask(self.attaching != Attaching::Nothing)?;
        let request = self.request(tag::ATTACH, AdminOp::Attach(attach));
        let request = request.ok_or(NotAsked::Busy)?;
        self.attaching = Attaching::Asked;
        Ok(request)
    }

    /// Returns the request to detach the volume that was attached. Fails if a keep-alive has had no
    /// response for a round of the timer.
    pub(super) fn ask_detach(&mut self) -> Result<AdminRequest, NotAsked> {
        let is_silent = matches!(self.keep_alive, KeepAlive::Asked { ms } if ms > 0);
        let is_attached = matches!(self.attaching, Attaching::Responded(Ok(_)));
        self.may_ask(is_silent || !is_attached)?;
        let request = self.request(tag::ATTACH, AdminOp::Detach);
        let request = request.ok_or(NotAsked::Busy)?;
        self.attaching = Attaching::Detaching;
        Ok(request)
    }

    /// Returns the state of the last request to attach or detach a volume.
    pub(super) fn attaching(&self) -> Attaching {
        self.attaching
    }

    /// Makes the first watch due, since the volume is known.
    pub(super) fn watch(&mut self, watching: Watching) {
        self.volume.watch = Watch::Due(News {
            state: watching.known,
            limits: None,
        });
        self.volume.flushes = watching.flushes;
        self.volume.follows_limits = watching.limits;
    }

    /// Stops sending.
    pub(super) fn stop(&mut self) {
        self.life = self.life.stopped();
    }

    /// Records that a send has completed.
    pub(super) fn send_completed(&mut self) {
        self.sends = self.sends.saturating_sub(1);
    }

    /// Returns a request of kind `index`, of which none is in flight; `None`: no slot is free,
    /// which passes.
    fn request(&mut self, index: u16, op: AdminOp) -> Option<AdminRequest> {
        if self.sends == SENDS {
            return None;
        }
        let generation = self.generations.get_mut(usize::from(index))?;
        *generation = generation.wrapping_add(1);
        let tag = Tag {
            index,
            generation: *generation,
        };
        self.sends += 1;
        let volume = match op {
            AdminOp::KeepAlive { .. } | AdminOp::Portals { .. } | AdminOp::Attach(_) => {
                Handle::FIRST
            }
            _ => self.volume.handle,
        };
        Some(AdminRequest { tag, volume, op })
    }

    /// Counts a round of the timer. Returns `false` if a keep-alive has had no response for `tmo_s`
    /// seconds: the session ends.
    #[must_use]
    pub(super) fn round(&mut self, tmo_s: u16) -> bool {
        if !self.is_live() {
            return true;
        }
        self.keep_alive = self.keep_alive.after(period_ms(tmo_s));
        self.volume.notices = 0;
        let silent =
            matches!(self.keep_alive, KeepAlive::Asked { ms } if ms >= u32::from(tmo_s) * 1000);
        !silent
    }

    /// Returns the keep-alive if it is due: half of `tmo_s` seconds after the last one, which has
    /// its response.
    pub(super) fn keep_alive_due(&mut self, tmo_s: u16) -> Option<AdminRequest> {
        match self.keep_alive {
            KeepAlive::Responded { ms } if self.is_live() && ms >= u32::from(tmo_s) * 500 => {
                let request = self.request(tag::KEEP_ALIVE, AdminOp::KeepAlive { tmo_s })?;
                self.keep_alive = KeepAlive::Asked { ms: 0 };
                Some(request)
            }
            _ => None,
        }
    }

    /// Returns the watch if it is due.
    pub(super) fn watch_due(&mut self) -> Option<AdminRequest> {
        let Watch::Due(known) = self.volume.watch else {
            return None;
        };
        if !self.is_live() || self.volume.notices >= NOTICES {
            return None;
        }
        let generation = known.limits.map_or(0, |(generation, _)| generation);
        let watch = AdminOp::Watch {
            known: known.state,
            flushes: self.volume.flushes,
            generation: self.volume.follows_limits.then_some(generation),
        };
        let request = self.request(tag::WATCH, watch)?;
        self.volume.watch = Watch::Watching(known);
        Some(request)
    }

    /// Returns the request for changes of the target's portals if it is due.
    pub(super) fn portals_due(&mut self) -> Option<AdminRequest> {
        let Portals::Due(known) = self.portals else {
            return None;
        };
        if !self.is_live() {
            return None;
        }
        let request = self.request(tag::PORTALS, AdminOp::Portals { known })?;
        self.portals = Portals::Asked(known);
        Some(request)
    }

    /// Returns a request for a fence or for durability.
    pub(super) fn ask_fence(&mut self, question: AdminOp) -> Result<AdminRequest, NotAsked> {
        self.may_ask(self.volume.fence == Fence::Asked)?;
        let request = self.request(tag::FENCE, question).ok_or(NotAsked::Busy)?;
        self.volume.fence = Fence::Asked;
        Ok(request)
    }

    /// Returns the state of the last fence request.
    pub(super) fn fence(&self) -> Fence {
        self.volume.fence
    }

    /// Returns a reservation request.
    pub(super) fn ask_reservation(&mut self, question: AdminOp) -> Result<AdminRequest, NotAsked> {
        self.may_ask(self.volume.reserving == Reserving::Asked)?;
        let request = self.request(tag::RESERVE, question).ok_or(NotAsked::Busy)?;
        self.volume.reserving = Reserving::Asked;
        Ok(request)
    }

    /// Returns the state of the last reservation request.
    pub(super) fn reserving(&self) -> Reserving {
        self.volume.reserving
    }

    fn may_ask(&self, is_asked: bool) -> Result<(), NotAsked> {
        match (self.is_live(), is_asked) {
            (false, _) => Err(NotAsked::NotLive),
            (true, true) => Err(NotAsked::Pending),
            (true, false) => Ok(()),
        }
    }

    /// Returns the target's report, if the disk has not followed it yet.
    pub(super) fn news(&self) -> Option<News> {
        match self.volume.watch {
            Watch::Noticed(changed) => Some(changed),
            _ => None,
        }
    }

    /// Records that the disk has followed the report that [`Self::news`] returned.
    pub(super) fn followed(&mut self) {
        if let Watch::Noticed(changed) = self.volume.watch {
            self.volume.watch = Watch::Due(changed);
        }
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
        let AdminResponse {
            tag,
            status,
            volume,
            limits,
            portals,
            reservation,
            attached,
        } = *response;
        let sent = self.generations.get(usize::from(tag.index));
        if sent != Some(&tag.generation) {
            return Err(UNASKED);
        }
        if portals.is_some() != (tag.index == tag::PORTALS) {
            return Err(NONSENSE);
        }
        let attaches = tag.index == tag::ATTACH && self.attaching == Attaching::Asked;
        if attached.is_some() != attaches {
            return Err(NONSENSE);
        }
        if let Some(outcome) = attached {
            if let Ok(attached) = outcome {
                self.volume.handle = attached.handle;
                self.volume.is_attached = true;
            }
            self.attaching = Attaching::Responded(outcome);
            return Ok(Then::Nothing);
        }
        if tag.index == tag::RESERVE {
            if self.volume.reserving != Reserving::Asked || volume.is_some() {
                return Err(UNASKED);
            }
            self.volume.reserving = Reserving::Responded((status, reservation));
            return Ok(Then::Nothing);
        }
        if reservation.is_some() {
            return Err(NONSENSE);
        }
        match (tag.index, status, volume) {
            (tag::KEEP_ALIVE, Status::Ok, None) => {
                self.keep_alive = self.keep_alive.after_response().ok_or(UNASKED)?;
                Ok(Then::Nothing)
            }
            (tag::FENCE, Status::Ok | Status::Draining | Status::Invalid, None) => {
                if self.volume.fence != Fence::Asked {
                    return Err(UNASKED);
                }
                self.volume.fence = Fence::Responded(match status {
                    Status::Ok => Some(true),
                    Status::Draining => Some(false),
                    _ => None,
                });
                Ok(Then::Nothing)
            }
            (tag::FENCE, Status::Gone, None) if self.volume.is_attached => {
                if self.volume.fence != Fence::Asked {
                    return Err(UNASKED);
                }
                self.volume.fence = Fence::Gone;
                Ok(Then::Nothing)
            }
            (tag::ATTACH, Status::Ok, None) => {
                if self.attaching != Attaching::Detaching {
                    return Err(UNASKED);
                }
                self.attaching = Attaching::Detached;
                Ok(Then::Nothing)
            }
            (tag::WATCH, Status::Ok, Some(state)) => {
                let Watch::Watching(known) = self.volume.watch else {
                    return Err(UNASKED);
                };
                let now = News { state, limits };
                let follows_cache = known.state.write_cache.is_some();
                if follows_cache != state.write_cache.is_some()
                    || self.volume.follows_limits != limits.is_some()
                {
                    return Err(NONSENSE);
                }
                if known.matches(&now) {
                    return Err(NO_CHANGE);
                }
                self.volume.watch = Watch::Noticed(now);
                self.volume.notices += 1;
                Ok(match self.volume.follows_limits && known.limits.is_none() {
                    true => Then::Begin,
                    false => Then::Follow,
                })
            }
            (tag::WATCH, Status::Gone, None) => match self.volume.watch {
                Watch::Watching(_) => Ok(Then::End),
                _ => Err(UNASKED),
            },
            (tag::PORTALS, Status::Ok, None) => {
                self.portals = self.portals.after_response(portals)?;
                Ok(Then::NotifyPortals)
            }
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

    fn live(limits: bool) -> AdminState {
        let mut state = AdminState::new();
        assert!(state.go_live(true));
        state.watch(Watching {
            known: volume(8),
            flushes: true,
            limits,
        });
        state
    }

    fn volume(sectors: u64) -> VolumeState {
        VolumeState {
            sectors,
            read_only: false,
            write_cache: Some(true),
        }
    }

    fn response(request: AdminRequest, status: Status) -> AdminResponse {
        AdminResponse::bare(request.tag, status)
    }

    fn reported(request: AdminRequest, sectors: u64) -> AdminResponse {
        AdminResponse {
            volume: Some(volume(sectors)),
            ..response(request, Status::Ok)
        }
    }

    #[test]
    fn nothing_is_sent_before_it_is_live_nor_after_the_end() {
        let mut state = AdminState::new();
        assert_eq!(state.keep_alive_due(TMO_S), None);
        assert_eq!(state.watch_due(), None);
        assert_eq!(state.ask_fence(AdminOp::Durable), Err(NotAsked::NotLive));
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
        assert_ne!(first.tag, second.tag);
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
            let request = state.ask_fence(AdminOp::Durable).unwrap();
            assert_eq!(state.ask_fence(AdminOp::Durable), Err(NotAsked::Pending));
            state
                .handle_response(&response(request, Status::Draining))
                .unwrap();
        }
        assert_eq!(state.ask_fence(AdminOp::Durable), Err(NotAsked::Busy));
        assert_eq!(state.keep_alive_due(TMO_S), None);
        state.send_completed();
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
                Ok(Then::Follow)
            );
            assert_eq!(state.news().unwrap().state, volume(sectors));
            assert_eq!(state.watch_due(), None, "it was not followed yet");
            state.followed();
        }
        assert_eq!(state.watch_due(), None, "enough for this round");
        assert!(state.round(TMO_S));
        let watch = state.watch_due().unwrap();
        assert_eq!(
            state.handle_response(&response(watch, Status::Gone)),
            Ok(Then::End)
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
        let fence = state.ask_fence(AdminOp::Durable).unwrap();
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
        let reserve = state.ask_reservation(AdminOp::ReadReservation).unwrap();
        let unexpected = AdminResponse {
            volume: Some(volume(9)),
            ..response(reserve, Status::Ok)
        };
        assert_eq!(state.handle_response(&unexpected), Err(UNASKED));
        assert_eq!(
            state.handle_response(&response(reserve, Status::Ok)),
            Ok(Then::Nothing)
        );
        assert!(state.reserving() == Reserving::Responded((Status::Ok, None)));
        assert!(state.fence() == Fence::Asked);
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

    fn attached(request: AdminRequest, outcome: Result<Handle, Reason>) -> AdminResponse {
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
    fn with_volume() -> AdminState {
        let mut state = AdminState::new();
        assert!(state.go_live(false));
        let request = state.ask_attach(attach()).unwrap();
        assert_eq!(request.volume, Handle::FIRST);
        let response = attached(request, Ok(HANDLE));
        assert_eq!(state.handle_response(&response), Ok(Then::Nothing));
        state.watch(Watching {
            known: volume(8),
            flushes: true,
            limits: false,
        });
        state
    }

    #[test]
    fn keep_alives_are_sent_while_a_volume_is_being_attached_and_nothing_about_it() {
        let mut state = AdminState::new();
        assert_eq!(state.ask_attach(attach()), Err(NotAsked::NotLive));
        assert!(state.go_live(true));
        let request = state.ask_attach(attach()).unwrap();
        assert_eq!(state.ask_attach(attach()), Err(NotAsked::Pending));
        assert_eq!(state.ask_detach(), Err(NotAsked::Pending));
        assert_eq!(state.watch_due(), None);
        assert!(state.keep_alive_due(TMO_S).is_some());
        assert!(state.portals_due().is_some());
        let refused = attached(request, Err(Reason::Evicted));
        assert_eq!(state.handle_response(&refused), Ok(Then::Nothing));
        assert!(state.attaching() == Attaching::Responded(Err(Reason::Evicted)));
        assert_eq!(
            state.ask_detach(),
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
            state.ask_fence(AdminOp::Durable).unwrap(),
            state.ask_reservation(AdminOp::ReadReservation).unwrap(),
            state.ask_detach().unwrap(),
        ];
        assert!(of_volume.iter().all(|request| request.volume == HANDLE));
        assert_eq!(state.keep_alive_due(TMO_S).unwrap().volume, Handle::FIRST);
        let detached = response(of_volume[3], Status::Ok);
        assert_eq!(state.handle_response(&detached), Ok(Then::Nothing));
        assert!(state.attaching() == Attaching::Detached);
        assert_eq!(state.handle_response(&detached), Err(UNASKED), "twice");
    }

    #[test]
    fn a_volume_is_not_detached_from_a_silent_target() {
        let mut state = with_volume();
        let keep_alive = state.keep_alive_due(TMO_S).unwrap();
        assert!(state.round(TMO_S));
        assert_eq!(state.ask_detach(), Err(NotAsked::Pending));
        state
            .handle_response(&response(keep_alive, Status::Ok))
            .unwrap();
        assert!(state.ask_detach().is_ok());
    }

    #[test]
    fn an_attached_volume_may_be_gone_when_a_request_names_it() {
        let mut state = with_volume();
        let fence = state.ask_fence(AdminOp::Durable).unwrap();
        let gone = response(fence, Status::Gone);
        assert_eq!(state.handle_response(&gone), Ok(Then::Nothing));
        assert!(state.fence() == Fence::Gone);
        let watch = state.watch_due().unwrap();
        assert_eq!(
            state.handle_response(&response(watch, Status::Gone)),
            Ok(Then::End)
        );
    }

    #[test]
    fn only_the_response_to_an_attach_has_its_form() {
        let mut state = with_volume();
        let fence = state.ask_fence(AdminOp::Durable).unwrap();
        assert_eq!(
            state.handle_response(&attached(fence, Ok(HANDLE))),
            Err(NONSENSE),
            "another request"
        );
        let detach = state.ask_detach().unwrap();
        assert_eq!(
            state.handle_response(&attached(detach, Ok(HANDLE))),
            Err(NONSENSE),
            "a detach"
        );
        let mut state = AdminState::new();
        assert!(state.go_live(false));
        let request = state.ask_attach(attach()).unwrap();
        let bare = response(request, Status::Ok);
        assert_eq!(state.handle_response(&bare), Err(NONSENSE), "not attached");
    }
}
