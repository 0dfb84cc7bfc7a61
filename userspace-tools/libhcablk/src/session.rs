// SPDX-License-Identifier: GPL-2.0

//! The state that an open volume keeps over its sessions, and the thread that serves one session after the other: it
//! connects them, serves the admin queue pair and handles the events of the connection manager. It does no I/O.
//!
//! ```text
//!          lose()                       begin()
//!  Live ───────────► Lost ─────────────────────► Live
//!   │                 │  time is up, or no other session may come
//!   └──── close() ────┴────────────────────────► Ended
//! ```
//!
//! While the session is lost requests wait. When `fast-io-fail-tmo` is over waiting and new
//! requests fail, until there is a session.
//!
//! Queues see the changes as a number, the *era*: each session has one, and each time without a session has one. When
//! the era changes a queue drops its queue pair, picks up the next one if there is one, and issues its requests again.
//! The thread makes the queue pairs, and leaves each in a place for its queue.
//!
//! # Writes that are lost
//!
//! Acknowledged writes that were not flushed are lost if the target has forgotten them: the export is a different
//! instance, or has no number. From then on flushes and writes with FUA fail until the volume is closed. A queue may
//! handle an acknowledgement of the last session when the next one has begun: it then checks whether that session began
//! with such a loss.
//!
//! A target that ends the export in order makes acknowledged writes durable, when the session's other queue pairs are
//! gone. The thread asks for that on the admin queue pair, which is closed last, as the kernel's driver does
//! (`initiator/session/durable.rs`): then nothing is lost, although the next export is a different instance.

use crate::{
    admin::{Admin, News},
    connect::Deadline,
    driver::{
        loss::{LossLimits, Losses, Moment},
        pace::{Outcome, Pace},
        unflushed::Unflushed,
    },
    failure::Failure,
    opening::{state_of, Begun, Opening},
    options::Options,
    past::Past,
    queue::LivePair,
    times::{self, Lifetime, Tick, Times},
    verbs::{
        cm::{Event, Id},
        queue::Stopper,
    },
};
use hcablk_core::proto::{
    connect::{ExportInstance, Geometry, Reply},
    message::{VolumeLimits, VolumeState},
    name::VolumeId,
};
use nix::{
    errno::Errno,
    poll::{poll, PollFd, PollFlags, PollTimeout},
    sys::eventfd::{EfdFlags, EventFd},
};
use std::{
    net::SocketAddr,
    os::fd::AsFd as _,
    sync::{
        atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering},
        Mutex, MutexGuard, PoisonError,
    },
    time::{Duration, Instant},
};

/// The time limit for asking the target whether all writes are durable (the target waits about as long for the
/// question); the time limit of one response; and the time between two questions.
const DURABLE: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(2);
const BETWEEN: Duration = Duration::from_millis(50);

/// The era of a queue that has had no request, or is gone: later than all others.
const UNUSED: u32 = u32::MAX;

/// The current state and limits of a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Present {
    pub(crate) state: VolumeState,
    /// `None`: the target does not report limits, and those of the reply hold.
    pub(crate) limits: Option<VolumeLimits>,
}

/// The state of the volume. See the module's picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Live,
    Lost(Failure),
    Ended(Failure),
}

/// The place where the thread leaves the next queue pair of a queue, and the event that wakes the queue's thread.
struct QueueInbox {
    next: Mutex<Option<Next>>,
    wake: EventFd,
    /// Requests that the queue has completed.
    completed: AtomicU64,
    /// The era that the queue has followed to; [`UNUSED`]: it has had no request.
    era: AtomicU32,
    times: Times,
}

/// A queue pair of the session of an era, with the reply that granted it.
pub(crate) struct Next {
    pub(crate) era: u32,
    pub(crate) link: LivePair,
    pub(crate) reply: Reply,
}

/// The state that the queues of a volume and its thread share.
pub(crate) struct Shared {
    standing: Mutex<Standing>,
    /// See the module. Odd while there is a session.
    era: AtomicU32,
    has_ended: AtomicBool,
    /// There was no session for `fast_io_fail_tmo`: requests fail, although a new session may still
    /// begin.
    fails_fast: AtomicBool,
    /// The time from which requests fail, while there is no session.
    fail_fast_at: Mutex<Option<At>>,
    /// The queue pairs of the session.
    stoppers: Mutex<Vec<Stopper>>,
    inboxes: Vec<QueueInbox>,
    present: Mutex<Present>,
    /// Wakes the thread up.
    wake: EventFd,
    pub(crate) geometry: Geometry,
    /// The writes that no flush has covered.
    pub(crate) unflushed: Unflushed,
    /// The last era that began with a loss of unflushed writes.
    lossy_era: AtomicU32,
    has_lost_writes: AtomicBool,
    /// A killed program, whose state was taken over, may have left writes in a volatile cache.
    inherited_volatile: AtomicBool,
    /// The number of sessions after the first one.
    reconnects: AtomicU64,
    /// The time limit of a request, which also bounds its reissues.
    io_timeout_s: u32,
    lifetime: Lifetime,
    /// The time in ticks: see [`times`].
    tick: AtomicU64,
    next_tick: Mutex<Instant>,
    /// The target's address of the last session.
    path: Mutex<SocketAddr>,
    /// The exports of sessions: the last one, and earlier ones that a queue may still use.
    exports: Mutex<Vec<Export>>,
}

/// The export of a volume that acknowledged the writes of an era.
#[derive(Clone, Copy)]
struct Export {
    era: u32,
    id: Option<VolumeId>,
    instance: Option<ExportInstance>,
}

/// The data under these locks is consistent even when a thread has panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn seconds(count: u32) -> Duration {
    Duration::from_secs(count.into())
}

fn event() -> Result<EventFd, Failure> {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
        .map_err(|error| Failure::Setup("an event", error))
}

impl Shared {
    /// Makes the state of a volume, which is lost until its first session [begins](Self::begin).
    pub(crate) fn new(geometry: Geometry, options: &Options) -> Result<Self, Failure> {
        let place = || {
            Ok(QueueInbox {
                next: Mutex::new(None),
                wake: event()?,
                completed: AtomicU64::new(0),
                era: AtomicU32::new(UNUSED),
                times: Times::new(options.depth),
            })
        };
        let unflushed = Unflushed::new();
        // Also while the target reports no cache: counting too many writes loses nothing.
        unflushed.count(geometry.write_cache);
        Ok(Self {
            standing: Mutex::new(Standing::Lost(Failure::Disconnected)),
            era: AtomicU32::new(0),
            has_ended: AtomicBool::new(false),
            fails_fast: AtomicBool::new(false),
            fail_fast_at: Mutex::new(None),
            stoppers: Mutex::new(Vec::new()),
            inboxes: (0..options.queues)
                .map(|_| place())
                .collect::<Result<_, _>>()?,
            present: Mutex::new(Present {
                state: VolumeState {
                    sectors: 0,
                    read_only: true,
                    write_cache: None,
                },
                limits: None,
            }),
            wake: event()?,
            geometry,
            unflushed,
            lossy_era: AtomicU32::new(0),
            has_lost_writes: AtomicBool::new(false),
            inherited_volatile: AtomicBool::new(false),
            reconnects: AtomicU64::new(0),
            io_timeout_s: options.io_timeout_s,
            lifetime: Lifetime::new(
                seconds(options.io_timeout_s),
                seconds(options.ctrl_loss_tmo_s),
            ),
            tick: AtomicU64::new(1),
            next_tick: Mutex::new(Instant::now()),
            path: Mutex::new(SocketAddr::new(options.address, options.port)),
            exports: Mutex::new(Vec::new()),
        })
    }

    /// Returns the number by which queues see that something has changed.
    pub(crate) fn era(&self) -> u32 {
        self.era.load(Ordering::Acquire)
    }

    /// Returns the reason if the volume has ended: there cannot be another session.
    pub(crate) fn ended(&self) -> Option<Failure> {
        match self.has_ended.load(Ordering::Acquire) {
            true => self.failure(),
            false => None,
        }
    }

    /// Returns the reason if there is no session.
    pub(crate) fn failure(&self) -> Option<Failure> {
        match *lock(&self.standing) {
            Standing::Live => None,
            Standing::Lost(failure) | Standing::Ended(failure) => Some(failure),
        }
    }

    /// Returns the reason if requests fail although there may be a new session.
    pub(crate) fn fails_fast(&self) -> Option<Failure> {
        match self.fails_fast.load(Ordering::Acquire) {
            true => self.failure(),
            false => None,
        }
    }

    /// Sets the moment from which requests fail if there is no session then.
    fn fail_fast_at(&self, moment: Option<At>) {
        *lock(&self.fail_fast_at) = moment;
    }

    /// Makes queues fail the waiting requests, and new ones until there is a session.
    fn fail_fast(&self) {
        let standing = lock(&self.standing);
        if matches!(*standing, Standing::Lost(_)) {
            self.fails_fast.store(true, Ordering::Release);
            // For queues this is a new time without a session.
            self.change_era(self.era.load(Ordering::Relaxed) + 2);
        }
    }

    /// Records that a queue has dropped everything from before this era.
    pub(crate) fn followed(&self, queue: u8, era: u32) {
        if let Some(place) = self.inboxes.get(usize::from(queue)) {
            place.era.store(era, Ordering::Release);
        }
    }

    /// Records that a queue has no requests any more.
    pub(crate) fn unused(&self, queue: u8) {
        self.followed(queue, UNUSED);
    }

    /// Records how many requests a queue has completed so far.
    pub(crate) fn completed(&self, queue: u8, count: u64) {
        if let Some(place) = self.inboxes.get(usize::from(queue)) {
            place.completed.store(count, Ordering::Relaxed);
        }
    }

    /// Returns the current tick, which is the clock for the time limits of requests.
    pub(crate) fn tick(&self) -> Tick {
        Tick::new(self.tick.load(Ordering::Relaxed)).unwrap_or(Tick::MIN)
    }

    /// Returns the time limit within which a request is issued again.
    pub(crate) fn lifetime(&self) -> Lifetime {
        self.lifetime
    }

    /// Returns the times of a queue's requests.
    pub(crate) fn times_of(&self, queue: u8) -> Option<&Times> {
        self.inboxes
            .get(usize::from(queue))
            .map(|place| &place.times)
    }

    /// Returns the failure of a session in which a request got no response in time.
    pub(crate) fn request_timeout(&self) -> Failure {
        Failure::RequestTimeout(self.io_timeout_s)
    }

    /// Handles the timers: counts a tick, makes requests fail. Returns the time of the next call. For the thread of the
    /// volume, which calls this in every wait.
    pub(crate) fn pass_time(&self) -> Instant {
        let fail_fast = *lock(&self.fail_fast_at);
        if fail_fast.is_some_and(Moment::has_passed) {
            self.fail_fast_at(None);
            self.fail_fast();
        }
        let tick = self.pass_ticks();
        match *lock(&self.fail_fast_at) {
            Some(At(moment)) => moment.min(tick),
            None => tick,
        }
    }

    /// Counts a tick if one is due, and returns when the next one is.
    fn pass_ticks(&self) -> Instant {
        let now = Instant::now();
        let mut next = lock(&self.next_tick);
        if *next <= now {
            // Only one tick, even if this thread did not run for several: a request that waited for
            // this thread could not get a response meanwhile.
            *next = now + times::period(seconds(self.io_timeout_s));
            self.count_tick();
        }
        *next
    }

    /// Counts a tick, and wakes the queues with requests that may be late, or have waited for too long.
    fn count_tick(&self) {
        self.tick.fetch_add(1, Ordering::Relaxed);
        let (now, era) = (self.tick(), self.era());
        let is_lost = era % 2 == 0;
        for place in &self.inboxes {
            let has_followed = place.era.load(Ordering::Acquire) == era;
            if has_followed && (is_lost || place.times.is_late(now)) {
                // It cannot be full.
                let _ = place.wake.write(1);
            }
        }
    }

    /// Returns the number of requests that were completed so far.
    fn all_completed(&self) -> u64 {
        let counts = self.inboxes.iter().map(|place| &place.completed);
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Returns the event that wakes the thread of a queue.
    pub(crate) fn wake_of(&self, queue: u8) -> Option<&EventFd> {
        self.inboxes
            .get(usize::from(queue))
            .map(|place| &place.wake)
    }

    /// Begins a session with its queue pairs, one for each queue; `forgets`: the target may have forgotten unflushed
    /// writes. Does nothing if the volume has ended. Returns the session's era.
    pub(crate) fn begin(&self, links: Vec<(LivePair, Reply)>, forgets: bool) -> u32 {
        let mut standing = lock(&self.standing);
        let era = self.era.load(Ordering::Relaxed) + 1;
        if !matches!(*standing, Standing::Lost(_)) {
            return era;
        }
        if forgets {
            self.lossy_era.store(era, Ordering::Relaxed);
            // Pairs with the fence of `acknowledged()`.
            fence(Ordering::SeqCst);
            if self.unflushed.is_dirty() {
                self.lose_writes();
            }
        }
        *lock(&self.stoppers) = links.iter().map(|(link, _)| link.stopper()).collect();
        for (place, (link, reply)) in self.inboxes.iter().zip(links) {
            *lock(&place.next) = Some(Next { era, link, reply });
        }
        *standing = Standing::Live;
        self.fail_fast_at(None);
        self.fails_fast.store(false, Ordering::Release);
        self.change_era(era);
        era
    }

    /// Returns the target's address of the last session.
    pub(crate) fn path(&self) -> SocketAddr {
        *lock(&self.path)
    }

    /// Records the export of the session of `era`, which has begun: a reader that sees the record also sees the losses
    /// that were found.
    fn exported(&self, era: u32, id: Option<VolumeId>, instance: Option<ExportInstance>) {
        lock(&self.exports).push(Export { era, id, instance });
    }

    /// Makes the queues check their era.
    fn change_era(&self, era: u32) {
        self.era.store(era, Ordering::Release);
        for place in &self.inboxes {
            // It cannot be full.
            let _ = place.wake.write(1);
        }
    }

    /// Takes the queue pair of the session of `era` that was left for a queue.
    pub(crate) fn take(&self, queue: u8, era: u32) -> Option<Next> {
        lock(&self.inboxes.get(usize::from(queue))?.next).take_if(|next| next.era == era)
    }

    /// Records that the session of `era` is lost: all queue pairs fail. Only the first reason counts.
    pub(crate) fn lose(&self, era: u32, failure: Failure) {
        let mut standing = lock(&self.standing);
        if *standing == Standing::Live && self.era.load(Ordering::Relaxed) == era {
            *standing = Standing::Lost(failure);
            self.stop(era + 1);
        }
    }

    /// Ends the volume because of `failure`: there cannot be another session. Only the first reason counts.
    pub(crate) fn end(&self, failure: Failure) {
        let mut standing = lock(&self.standing);
        let era = self.era.load(Ordering::Relaxed);
        let era = match *standing {
            Standing::Live => era + 1,
            Standing::Lost(_) => era + 2,
            Standing::Ended(_) => return,
        };
        *standing = Standing::Ended(failure);
        self.has_ended.store(true, Ordering::Release);
        self.stop(era);
    }

    /// Fails the queue pairs, and wakes all waiters.
    fn stop(&self, era: u32) {
        for stopper in lock(&self.stoppers).drain(..) {
            stopper.fail();
        }
        for place in &self.inboxes {
            // A queue pair that no queue has picked up was failed above, so nothing uses it any
            // more.
            drop(lock(&place.next).take());
        }
        self.change_era(era);
        let _ = self.wake.write(1);
    }

    /// Clears the event that wakes the thread.
    pub(crate) fn take_wake(&self) {
        // The read fails if no wake-up is pending.
        let _ = self.wake.read();
    }

    /// Returns the event that wakes the thread.
    pub(crate) fn wake(&self) -> &EventFd {
        &self.wake
    }

    /// Records that the target has acknowledged a write of the session of `era`, which it may keep in a volatile cache,
    /// at the number `at` of [`Unflushed`].
    pub(crate) fn acknowledged(&self, era: u32, at: u64) {
        self.unflushed.acknowledge(at);
        // Pairs with the fence of `begin()`: one of the two sees the other.
        fence(Ordering::SeqCst);
        if self.lossy_era.load(Ordering::Relaxed) > era {
            self.lose_writes();
        }
    }

    fn lose_writes(&self) {
        self.has_lost_writes.store(true, Ordering::Release);
    }

    /// Returns whether acknowledged writes are lost.
    pub(crate) fn has_lost_writes(&self) -> bool {
        self.has_lost_writes.load(Ordering::Acquire)
    }

    /// Returns the number of sessions after the first one.
    pub(crate) fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Relaxed)
    }

    /// Returns the state that a successor needs if this program is killed; `None`: the target does not identify the
    /// volume.
    pub(crate) fn past(&self) -> Option<Past> {
        // Until all queues have followed to an export, a queue may acknowledge a write of the previous one; a queue
        // without a request cannot.
        let eras = self.inboxes.iter().map(|place| &place.era);
        let seen = eras.map(|era| era.load(Ordering::Acquire)).min();
        let mut exports = lock(&self.exports);
        let newest = exports.iter().rposition(|export| Some(export.era) <= seen);
        exports.drain(..newest.unwrap_or(0));
        let export = *exports.first()?;
        // The flag is read after that: it includes every loss that was found with this export.
        Some(Past {
            id: export.id?,
            instance: export.instance,
            was_volatile: self.geometry.write_cache
                || self.inherited_volatile.load(Ordering::Acquire),
            has_lost_writes: self.has_lost_writes(),
        })
    }

    /// Takes over the state that a killed program has left.
    pub(crate) fn inherit(&self, past: Past) {
        if past.was_volatile {
            self.inherited_volatile.store(true, Ordering::Release);
            // The program may have written without a flush. The number counts also while this volume reports no cache.
            self.unflushed.acknowledge(self.unflushed.now().max(1));
        }
        if past.has_lost_writes {
            self.lose_writes();
        }
    }

    /// Returns the current state and limits of the volume.
    pub(crate) fn present(&self) -> Present {
        *lock(&self.present)
    }

    /// Records the target's report.
    pub(crate) fn follow(&self, news: News) -> Result<(), Failure> {
        let limits = news.limits.map(|(_, limits)| limits);
        let block_shift = self.geometry.logical_block_shift;
        let sectors_per_block = 1_u64 << (block_shift - 9);
        if limits.is_some_and(|limits| !limits.is_sound(block_shift)) {
            return Err(Failure::Protocol("the reported limits make no sense"));
        }
        if news.state.sectors % sectors_per_block != 0 || news.state.sectors >= 1 << 54 {
            return Err(Failure::Protocol("the reported size is invalid"));
        }
        *lock(&self.present) = Present {
            state: news.state,
            limits,
        };
        Ok(())
    }
}

/// The work of the thread: serves one session after the other.
pub(crate) struct Service<'a> {
    shared: &'a Shared,
    opening: Opening,
    losses: Losses<At>,
    limits: LossLimits,
    /// The start of the last attempt to connect, and the duration of the last successful one.
    attempted: Instant,
    usual: Duration,
}

/// A moment in the future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At(Instant);

impl Moment for At {
    fn after(ms: u32) -> Self {
        Self(Instant::now() + Duration::from_millis(ms.into()))
    }

    fn has_passed(self) -> bool {
        self.0 <= Instant::now()
    }
}

/// A session that the thread serves.
pub(crate) struct Served {
    era: u32,
    admin: Admin,
    /// All connections.
    ids: Vec<Id>,
}

impl<'a> Service<'a> {
    /// Makes the service of a volume, which may be without a session within `limits`.
    pub(crate) fn new(shared: &'a Shared, opening: Opening, limits: LossLimits) -> Self {
        Self {
            shared,
            opening,
            losses: Losses::new(),
            limits,
            attempted: Instant::now(),
            usual: Duration::ZERO,
        }
    }

    /// Serves sessions, the first of which is `served`, until the volume ends.
    pub(crate) fn run(mut self, mut served: Served) {
        loop {
            let failure = self.serve(served);
            if self.shared.ended().is_some() {
                return;
            }
            if !self.opening.may_follow(failure) {
                return self.shared.end(failure);
            }
            let begun = self.connect_again(failure);
            served = match begun.and_then(|begun| Served::begin(self.shared, begun)) {
                Ok(served) => served,
                Err(failure) => return self.shared.end(failure),
            };
        }
    }

    /// Serves a session until it ends, and returns the reason.
    fn serve(&mut self, mut served: Served) -> Failure {
        let failure = served.serve(self.shared);
        let failure = why_it_ended(failure, || served.admin.handle().err());
        // From here on no write is acknowledged.
        self.shared.lose(served.era, failure);
        self.losses.begin(self.shared.all_completed(), self.limits);
        self.shared.fail_fast_at(self.losses.now().fail_fast);
        let mut ids = served.ids.iter_mut();
        let of_admin = ids.next();
        for id in ids {
            id.disconnect();
        }
        let may_lose = self.opening.flushes() || self.shared.unflushed.is_dirty();
        let asks = failure == Failure::ExportEnds && self.opening.may_resume() && may_lose;
        // If there cannot be another session, nobody needs the response.
        let time = self.left().min(DURABLE);
        if asks && !time.is_zero() && is_durable(&mut served.admin, self.shared, time) {
            self.opening.set_durable();
        }
        if let Some(id) = of_admin {
            id.disconnect();
        }
        served.admin.pair.stopper().fail();
        // A failure that a queue has seen takes precedence over the connection manager's.
        self.shared.failure().unwrap_or(failure)
    }

    /// Connects a new session, within the time limit of the volume.
    fn connect_again(&mut self, mut why: Failure) -> Result<Begun, Failure> {
        let timeout_s = self.opening.connect_timeout().as_millis().div_ceil(1000);
        let timeout_s = u32::try_from(timeout_s).unwrap_or(u32::MAX);
        let mut pace = Pace::new(timeout_s, self.opening.reconnect_delay_s());
        loop {
            // Also before the first attempt: a session that is lost at once is not reconnected without a pause.
            let delay = pace.delay_ms(random()).max(pace.rest_ms(random()));
            let delay = Duration::from_millis(delay.into());
            let rest = delay.saturating_sub(self.attempted.elapsed());
            Deadline::of_volume(self.shared, rest.min(self.left())).pass();
            if let Some(ended) = self.shared.ended() {
                return Err(ended);
            }
            self.attempted = Instant::now();
            let left = self.left();
            if left.is_zero() {
                return Err(why);
            }
            let usual = u32::try_from(self.usual.as_millis()).unwrap_or(u32::MAX);
            let whole = Duration::from_millis(pace.whole_ms(usual).into()).min(left);
            match self
                .opening
                .session(Deadline::of_volume(self.shared, whole))
            {
                Ok(begun) => {
                    self.usual = self.attempted.elapsed();
                    self.losses.end();
                    self.shared.reconnects.fetch_add(1, Ordering::Relaxed);
                    return Ok(begun);
                }
                Err(failure) => why = failure,
            }
            pace.ended(match (why, self.opening.has_responded()) {
                (Failure::Timeout(_), true) => Outcome::Late,
                (Failure::Timeout(_), false) => Outcome::NoResponse,
                _ => Outcome::Refused,
            });
            if !self.opening.may_try_again(why) {
                return Err(why);
            }
        }
    }

    /// Returns the remaining time limit without a session.
    fn left(&self) -> Duration {
        let end = self.losses.now().end;
        end.map_or(Duration::MAX, |At(end)| {
            end.saturating_duration_since(Instant::now())
        })
    }
}

/// Returns a random number, which differs between hosts.
fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without it hosts may reconnect at the same time, which is harmless.
    let _ = getrandom::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

/// Returns the reason why a session ended after `failure`. Its connections may have been closed because the export
/// ends, which the admin queue pair reports: a `last_look` at that finds the report, even if it arrived after the
/// others.
fn why_it_ended(failure: Failure, last_look: impl FnOnce() -> Option<Failure>) -> Failure {
    match last_look() {
        Some(Failure::ExportEnds) => Failure::ExportEnds,
        _ => failure,
    }
}

/// Returns whether all writes that the target of `admin` has acknowledged are durable. The target
/// ends the export, and may need some seconds to make them durable: this asks it repeatedly, for at
/// most `time`.
fn is_durable(admin: &mut Admin, shared: &Shared, time: Duration) -> bool {
    let period = Duration::from_millis(admin.period_ms().into());
    let begin = Instant::now();
    let mut round = begin + period;
    loop {
        let left = time.saturating_sub(begin.elapsed());
        match admin.ask_durable(Deadline::of_volume(shared, left.min(ANSWER))) {
            Ok(true) => return true,
            Ok(false) if begin.elapsed() < time && shared.ended().is_none() => {}
            Ok(false) | Err(_) => return false,
        }
        if Instant::now() >= round {
            round = Instant::now() + period;
            if admin.round().is_err() {
                return false;
            }
        }
        Deadline::of_volume(shared, BETWEEN).pass();
    }
}

impl Served {
    /// Begins a connected session.
    pub(crate) fn begin(shared: &Shared, begun: Begun) -> Result<Self, Failure> {
        let Begun {
            admin,
            address,
            reply,
            news,
            ids,
            links,
            forgets,
            is_durable,
        } = begun;
        shared.follow(News {
            state: state_of(&reply),
            limits: None,
        })?;
        if let Some(news) = news {
            shared.follow(news)?;
        }
        if is_durable {
            shared.unflushed.forget();
        }
        *lock(&shared.path) = address;
        let era = shared.begin(links, forgets);
        shared.exported(era, reply.id, reply.instance);
        Ok(Self { era, admin, ids })
    }

    fn serve(&mut self, shared: &Shared) -> Failure {
        let period = Duration::from_millis(self.admin.period_ms().into());
        let mut round = Instant::now() + period;
        loop {
            if let Some(failure) = shared.failure() {
                return failure;
            }
            if let Err(failure) = self.look(shared) {
                return failure;
            }
            if Instant::now() >= round {
                round = Instant::now() + period;
                if let Err(failure) = self.admin.round() {
                    return failure;
                }
            }
            let tick = shared.pass_time();
            if let Err(error) = self.wait(shared, round.min(tick)) {
                return Failure::Verb("waiting for events", error);
            }
        }
    }

    /// Handles the messages and events that have arrived.
    fn look(&mut self, shared: &Shared) -> Result<(), Failure> {
        if let Some(news) = self.admin.handle()? {
            shared.follow(news)?;
        }
        for id in &mut self.ids {
            let event = id.event();
            match event.map_err(|error| Failure::Verb("the connection manager", error))? {
                Some(Event::Disconnected) => return Err(Failure::Disconnected),
                Some(Event::DeviceRemoved) => return Err(Failure::DeviceRemoved),
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    fn wait(&self, shared: &Shared, until: Instant) -> Result<(), Errno> {
        let input = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![
            input(shared.wake().as_fd()),
            input(self.admin.pair.cq.as_fd()),
        ];
        fds.extend(self.ids.iter().map(|id| input(id.as_fd())));
        let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        match poll(
            &mut fds,
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
        ) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
        shared.take_wake();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(options: impl FnOnce(Options) -> Options) -> Shared {
        let host = "6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45";
        let opened = Options::new([10, 0, 0, 1].into(), "vol1", host).unwrap();
        let geometry = Geometry {
            capacity: 1 << 20,
            logical_block_shift: 9,
            physical_block_shift: 12,
            max_transfer: 1 << 20,
            max_discard: 0,
            discard_granularity: 0,
            max_zeroes: 0,
            read_only: false,
            write_cache: true,
            fua: true,
        };
        Shared::new(geometry, &options(opened)).unwrap()
    }

    /// Begins a session of the export `instance`, and returns its era.
    fn begin(shared: &Shared, instance: u64) -> u32 {
        let era = shared.begin(Vec::new(), false);
        let id = VolumeId::parse("6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a44").unwrap();
        shared.exported(era, Some(id), ExportInstance::from_number(instance));
        era
    }

    fn instance(shared: &Shared) -> u64 {
        let past = shared.past().unwrap();
        past.instance.unwrap().number()
    }

    #[test]
    fn the_past_is_of_the_export_that_all_queues_in_use_have_followed_to() {
        let shared = volume(|options| options.queues(3));
        let first = begin(&shared, 1);
        assert_eq!(instance(&shared), 1);
        for queue in [0, 1] {
            shared.followed(queue, first);
        }
        shared.lose(first, Failure::Disconnected);
        let second = begin(&shared, 2);
        assert_eq!(
            instance(&shared),
            1,
            "writes of the first may be acknowledged"
        );
        shared.followed(0, second);
        assert_eq!(instance(&shared), 1);
        shared.followed(1, second);
        assert_eq!(instance(&shared), 2, "the third has had no request");
        shared.lose(second, Failure::Disconnected);
        let third = begin(&shared, 3);
        shared.followed(0, third);
        assert_eq!(instance(&shared), 2);
        shared.unused(1);
        assert_eq!(instance(&shared), 3, "it is gone");
    }

    #[test]
    fn requests_fail_when_there_was_no_session_for_too_long() {
        let shared = volume(|options| options);
        let live = begin(&shared, 1);
        shared.lose(live, Failure::Disconnected);
        let lost = shared.era();
        shared.fail_fast_at(Some(At(Instant::now() + Duration::from_secs(60))));
        let next = shared.pass_time();
        assert!(next > Instant::now(), "nothing is due");
        assert_eq!((shared.fails_fast(), shared.era()), (None, lost));
        shared.fail_fast_at(Some(At(Instant::now())));
        shared.pass_time();
        assert_eq!(shared.fails_fast(), Some(Failure::Disconnected));
        assert_ne!(shared.era(), lost, "queues look");
        assert_eq!(shared.era() % 2, 0, "and find no session");
        // The thread is too late for a session that is lost again meanwhile.
        shared.lose(live, Failure::Flushed);
        let era = begin(&shared, 1);
        assert_eq!((shared.fails_fast(), shared.failure()), (None, None));
        assert_eq!(shared.era(), era);
        shared.fail_fast();
        assert_eq!(
            (shared.fails_fast(), shared.era()),
            (None, era),
            "there is a session"
        );
    }

    #[test]
    fn ticks_are_counted_without_a_session_and_queues_look() {
        let shared = volume(|options| options.io_timeout(1));
        let era = begin(&shared, 1);
        shared.followed(0, era);
        let woken = || shared.wake_of(0).is_some_and(|wake| wake.read().is_ok());
        while woken() {}
        let first = shared.tick();
        std::thread::sleep(shared.pass_time().saturating_duration_since(Instant::now()));
        shared.pass_time();
        assert!(shared.tick() > first);
        assert!(!woken(), "nothing is late");
        shared.lose(era, Failure::Disconnected);
        shared.followed(0, shared.era());
        while woken() {}
        let lost = shared.tick();
        std::thread::sleep(shared.pass_time().saturating_duration_since(Instant::now()));
        shared.pass_time();
        assert!(shared.tick() > lost);
        assert!(woken(), "what waits may have waited for too long");
    }

    #[test]
    fn an_export_that_ends_is_known_although_its_connections_are_seen_to_close_first() {
        for seen in [Failure::Disconnected, Failure::Flushed] {
            let looks = [
                (Some(Failure::ExportEnds), Failure::ExportEnds),
                (Some(Failure::Flushed), seen),
                (None, seen),
            ];
            for (look, why) in looks {
                assert_eq!(why_it_ended(seen, || look), why);
            }
        }
        let told = why_it_ended(Failure::ExportEnds, || Some(Failure::Flushed));
        assert_eq!(told, Failure::ExportEnds);
    }
}
