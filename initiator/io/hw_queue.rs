// SPDX-License-Identifier: GPL-2.0

//! A hardware queue of the disk: it chooses a path for each request.
//!
//! A hardware queue has one queue for each usable path that has been live. With one path, every
//! request uses its queue, without a check. With several, the policy chooses among the queues that
//! accept requests. A hardware queue is empty when the RDMA device of the last path was removed and
//! no new path is connected yet. The requests of a plug use the same queue, so that they share its
//! doorbell; the last request of the plug rings the doorbells of all queues on which requests wait
//! (`unrung`). The queue of a lost path stays, and refuses requests, until the path's next session
//! replaces it.
//!
//! A hardware queue is immutable: [`HwQueues`] replaces the whole hardware queue
//! ([`Dispatch::exchange`]), so that issuing takes no lock.
//!
//! [`Driver`] has the functions that the block layer calls; [`NoPath`] decides whether requests
//! wait or fail while no path accepts any.

use super::{
    queue::Queue,
    user::QueueUser, //
};
use crate::{
    admin::AdminVolume,
    session::Attachment,
    settings::Policy, //
};
use hcablk_core::{
    blkdev::{
        Dispatch,
        Operations,
        Rejected,
        ReplacedHwQueues,
        Request,
        Status,
        TimedOut,
        Timeout, //
    },
    sync::atomic::{
        Acquire,
        Atomic,
        Relaxed,
        Release, //
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

/// No queue holds requests of a plug.
const NO_PLUG: u32 = u32::MAX;

/// A path of a hardware queue: the queue pair, and the disk as its user.
#[derive(Clone)]
struct Lane {
    queue: Arc<Queue>,
    user: Arc<QueueUser>,
}

impl Lane {
    /// Returns the lane of a disk. Fails with `ENODEV` if the disk does not use the queue pair.
    fn new(queue: &Arc<Queue>, disk: &Attachment) -> Result<Self> {
        Ok(Self {
            queue: queue.clone(),
            user: queue.user(disk).ok_or(ENODEV)?,
        })
    }

    #[inline(always)]
    fn issue(&self, request: Request<Driver>, last: bool) -> Result<(), Rejected<Driver>> {
        self.queue.issue(&self.user, request, last)
    }
}

/// A hardware queue of the disk; see the module.
pub(crate) struct HwQueue {
    /// One for each path.
    lanes: KVec<Lane>,
    policy: Policy,
    no_path: Arc<NoPath>,
    /// Counts the choices of [`Policy::RoundRobin`].
    turn: Atomic<u32>,
    /// The path of all requests of a plug but the last, or [`NO_PLUG`]. Two processors may
    /// overwrite each other's value; the cost is one more doorbell.
    plug: Atomic<u32>,
}

impl HwQueue {
    /// Returns the queue that has a request, and the request's tag there.
    fn owner_of(&self, request: &TimedOut<'_>) -> Option<(&Arc<Queue>, u16)> {
        let mut queues = self.queues();
        queues.find_map(|queue| Some((queue, queue.tags.tag_of(request)?)))
    }

    fn queues(&self) -> impl Iterator<Item = &Arc<Queue>> {
        self.lanes.iter().map(|lane| &lane.queue)
    }

    /// Returns the lane of a path.
    fn of_path(&self, path: u8) -> Option<&Lane> {
        self.lanes.iter().find(|lane| lane.queue.path == path)
    }

    /// Sends a request to the target over one of the paths; `last`: no other request follows at
    /// once.
    #[inline]
    pub(super) fn issue(
        &self,
        request: Request<Driver>,
        last: bool,
    ) -> Result<(), Rejected<Driver>> {
        let result = match self.lanes.as_slice() {
            [lane] => lane.issue(request, last),
            _ => self.issue_by_policy(request, last),
        };
        result.map_err(|rejected| self.fail_fast(rejected))
    }

    /// Fails a request that would wait, if no session is live and the request must not wait for a
    /// new one. A stacking driver (md, dm-mpath) then tries another device.
    #[cold]
    fn fail_fast(&self, rejected: Rejected<Driver>) -> Rejected<Driver> {
        let waits = rejected.status() == Status::DevResource && rejected.fails_fast();
        match waits && self.no_path.is_lost() {
            true => rejected.with_status(Status::Transport),
            false => rejected,
        }
    }

    fn issue_by_policy(
        &self,
        request: Request<Driver>,
        last: bool,
    ) -> Result<(), Rejected<Driver>> {
        let Some(lane) = self.plugged().or_else(|| self.choose()) else {
            return Err(Rejected::new(request, self.refusal()));
        };
        match self.issue_by(lane, request, last) {
            Err(rejected) if rejected.status() == Status::Resource => {
                self.issue_by_another(rejected, last)
            }
            result => result,
        }
    }

    fn issue_by(
        &self,
        lane: &Lane,
        request: Request<Driver>,
        last: bool,
    ) -> Result<(), Rejected<Driver>> {
        let queue = &lane.queue;
        let path = if last { NO_PLUG } else { queue.path.into() };
        self.plug.store(path, Relaxed);
        let result = lane.issue(request, last);
        match &result {
            // The request is parked before the flag is set: the code that clears the flag finds the
            // request.
            Ok(()) if !last => queue.leave_unrung(),
            Ok(()) => self.ring_except(Some(queue)),
            // The block layer calls `commit_rqs` when it has announced more requests than it
            // issues.
            Err(_) => {}
        }
        // The path was lost just now: the queue run at the end of its teardown chooses another
        // path.
        result.map_err(|rejected| match rejected.status() {
            Status::Transport if self.has_live() => rejected.with_status(Status::DevResource),
            _ => rejected,
        })
    }

    /// Sends a request for which its path had no credits over another path that has credits. If no
    /// path has credits, the request waits for a response.
    #[cold]
    fn issue_by_another(
        &self,
        mut rejected: Rejected<Driver>,
        last: bool,
    ) -> Result<(), Rejected<Driver>> {
        for _ in self.lanes.iter() {
            let Some(lane) = self.choose().filter(|lane| !lane.queue.is_starved()) else {
                break;
            };
            match self.issue_by(lane, rejected.into_request(), last) {
                Err(again) if again.status() == Status::Resource => rejected = again,
                result => return result,
            }
        }
        Err(rejected)
    }

    /// Returns the lane on whose queue requests of this plug wait for their doorbell.
    fn plugged(&self) -> Option<&Lane> {
        let path = u8::try_from(self.plug.load(Relaxed)).ok()?;
        self.of_path(path)
            .filter(|lane| lane.queue.is_live() && !lane.queue.is_starved())
    }

    /// Returns the lane for the next request, as the policy chooses; `None`: no path accepts
    /// requests. One whose queue has no credits is chosen only if no queue has any.
    fn choose(&self) -> Option<&Lane> {
        self.choose_among(|queue| queue.is_live() && !queue.is_starved())
            .or_else(|| self.choose_among(|queue| queue.is_live()))
    }

    #[inline]
    fn choose_among(&self, is_usable: impl Fn(&Queue) -> bool) -> Option<&Lane> {
        let mut live = self.lanes.iter().filter(|lane| is_usable(&lane.queue));
        match self.policy {
            Policy::QueueDepth => live.min_by_key(|lane| lane.queue.in_flight()),
            Policy::RoundRobin => {
                let count = self.queues().filter(|queue| is_usable(queue)).count();
                let turn = self.turn.fetch_add(1, Relaxed) as usize;
                live.nth(turn.checked_rem(count)?)
            }
            Policy::Numa => live.min_by_key(|lane| lane.queue.numa_distance()),
        }
    }

    fn has_live(&self) -> bool {
        self.queues().any(|queue| queue.is_live())
    }

    /// Returns the status for requests while no path accepts any.
    fn refusal(&self) -> Status {
        let is_timed_out = self.queues().any(|queue| queue.is_timed_out());
        // Read after the mark, see `Queue::refusal()`.
        if is_timed_out || self.has_live() || self.no_path.requests_wait() {
            Status::DevResource
        } else {
            Status::Transport
        }
    }

    /// Rings the doorbells of all queues on which requests wait, except `one`.
    fn ring_except(&self, one: Option<&Arc<Queue>>) {
        for queue in self.queues() {
            let is_rung = one.is_some_and(|one| Arc::ptr_eq(one, queue));
            if queue.take_unrung() && !is_rung {
                queue.commit();
            }
        }
    }

    /// Rings the doorbells for requests whose announced successors did not come.
    pub(super) fn commit(&self) {
        if let [lane] = self.lanes.as_slice() {
            return lane.queue.commit();
        }
        self.plug.store(NO_PLUG, Relaxed);
        self.ring_except(None);
    }

    /// Polls for completions on behalf of a task that waits for polled I/O; returns how many there
    /// were.
    #[inline]
    pub(super) fn poll(&self) -> u32 {
        self.queues().map(|queue| queue.pair.cq().poll_now()).sum()
    }

    /// Polls for completions if the queues are polled ones, which never interrupt; returns whether
    /// they are.
    pub(super) fn settle(&self) -> bool {
        let mut settled = false;
        for queue in self.queues().filter(|queue| queue.polled) {
            queue.pair.cq().settle();
            settled = true;
        }
        settled
    }
}

/// Hardware queues that were replaced. Dropping them waits as [`Self::settle`] does, and may
/// destroy queue pairs: do not drop them under a lock that requests take. Sleeps.
pub(crate) struct Retired {
    formers: ReplacedHwQueues<Driver>,
    settled: KVec<Arc<HwQueue>>,
}

impl Retired {
    pub(crate) const fn new() -> Self {
        Self {
            formers: ReplacedHwQueues::new(),
            settled: KVec::new(),
        }
    }

    /// Waits once, for all of them, until the block layer has stopped using them. By then, a
    /// request that one of them refused was put back, so the next run of the hardware queue finds
    /// it. Call this once, when all are retired. Sleeps.
    pub(crate) fn settle(&mut self) {
        let formers = self.formers.wait();
        // A plug may have started on the old hardware queue and ended on the new one.
        for queue in formers.iter().flat_map(|former| former.queues()) {
            queue.take_unrung();
            queue.commit();
        }
        if !formers.is_empty() {
            self.settled = formers;
        }
    }
}

impl Drop for Retired {
    fn drop(&mut self) {
        self.settle();
    }
}

/// The hardware queues of a disk. Shared with the disk's tag set, which uses them while the disk is
/// being added. They and their sessions refer to each other: the teardown of the disk must call
/// [`Self::clear`].
#[pin_data]
pub(crate) struct HwQueues {
    dispatch: Arc<Dispatch<Driver>>,
    no_path: Arc<NoPath>,
    #[pin]
    list: Mutex<List>,
}

struct List {
    queues: KVec<Option<Arc<HwQueue>>>,
    policy: Policy,
}

impl HwQueues {
    /// Creates the table of hardware queues, all without queues. May sleep.
    pub(crate) fn new(
        dispatch: &Arc<Dispatch<Driver>>,
        no_path: &Arc<NoPath>,
    ) -> Result<Arc<Self>> {
        let mut queues = KVec::new();
        for _ in 0..dispatch.hw_queues() {
            queues.push(None, GFP_KERNEL)?;
        }
        Arc::pin_init(
            pin_init!(Self {
                dispatch: dispatch.clone(),
                no_path: no_path.clone(),
                list <- new_mutex!(List {
                    queues,
                    policy: Policy::default(),
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// Creates a hardware queue of `lanes`, one for each path. Fails with `ENOMEM`.
    fn make(&self, lanes: KVec<Lane>, policy: Policy) -> Result<Arc<HwQueue>> {
        let hw_queue = HwQueue {
            lanes,
            policy,
            no_path: self.no_path.clone(),
            turn: Atomic::new(0),
            plug: Atomic::new(NO_PLUG),
        };
        Ok(Arc::new(hw_queue, GFP_KERNEL)?)
    }

    /// Returns a hardware queue. Fails with `ENXIO` before the disk has any.
    pub(super) fn get(&self, index: u32) -> Result<Arc<HwQueue>> {
        let list = self.list.lock();
        let queue = list.queues.get(index as usize);
        queue.cloned().flatten().ok_or(ENXIO)
    }

    /// Gives the hardware queues of `disk` their first queues and the path policy. Fails with
    /// `ENOMEM`, and as [`Self::add`].
    pub(crate) fn begin(&self, disk: &Attachment, first: &[Arc<Queue>], policy: Policy) -> Result {
        let mut list = self.list.lock();
        list.policy = policy;
        for (place, queue) in list.queues.iter_mut().zip(first) {
            let mut lanes = KVec::new();
            lanes.push(Lane::new(queue, disk)?, GFP_KERNEL)?;
            *place = Some(self.make(lanes, policy)?);
        }
        Ok(())
    }

    /// Adds the queue to its hardware queue. If the path had one there, the queue replaces it, and
    /// the old one joins `retired`. May sleep. On an error nothing has changed: `ENODEV` if the
    /// disk does not exist or is being removed, or does not use the queue, or `ENOMEM`.
    pub(crate) fn add(
        &self,
        disk: &Attachment,
        queue: &Arc<Queue>,
        retired: &mut Retired,
    ) -> Result {
        self.change(queue.index.into(), retired, |lanes| {
            lanes.retain(|old| old.queue.path != queue.path);
            Ok(lanes.push(Lane::new(queue, disk)?, GFP_KERNEL)?)
        })
    }

    /// Removes the queues of a path from the hardware queues. The old hardware queues, which have
    /// them, join `retired`: the block layer uses them until that is settled. May sleep. Fails as
    /// [`Self::add`]; some queues may have been removed by then.
    pub(crate) fn remove(&self, path: u8, retired: &mut Retired) -> Result {
        for index in 0..self.dispatch.hw_queues() {
            let has_it = self
                .list
                .lock()
                .queues
                .get(index as usize)
                .is_some_and(|place| {
                    let hw_queue = place.as_ref();
                    hw_queue.is_some_and(|hw_queue| hw_queue.of_path(path).is_some())
                });
            if has_it {
                self.change(index, retired, |lanes| {
                    lanes.retain(|lane| lane.queue.path != path);
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Returns the disk's place on an admin queue pair to request a fence on: on that of a path
    /// which may issue requests without a new admission (perhaps after its queue was replaced);
    /// `None` if there is none.
    pub(crate) fn asker(&self) -> Option<Arc<AdminVolume>> {
        let list = self.list.lock();
        let mut lanes = list.queues.iter().flatten().flat_map(|hw| hw.lanes.iter());
        lanes.find_map(|lane| {
            let goes_on = lane.queue.is_live() || lane.queue.is_timed_out();
            goes_on.then(|| lane.user.attachment().admin()).flatten()
        })
    }

    /// Sets the path policy of all later requests. The old hardware queues join `retired`. May
    /// sleep. Fails as [`Self::add`].
    pub(crate) fn set_policy(&self, policy: Policy, retired: &mut Retired) -> Result {
        self.list.lock().policy = policy;
        for index in 0..self.dispatch.hw_queues() {
            self.change(index, retired, |_| Ok(()))?;
        }
        Ok(())
    }

    /// Replaces hardware queue `index` by a copy whose lanes `f` has changed.
    fn change(
        &self,
        index: u32,
        retired: &mut Retired,
        f: impl FnOnce(&mut KVec<Lane>) -> Result,
    ) -> Result {
        let mut list = self.list.lock();
        let policy = list.policy;
        let place = list.queues.get_mut(index as usize).ok_or(ENXIO)?;
        let mut lanes = KVec::new();
        if let Some(hw_queue) = place {
            for lane in hw_queue.lanes.iter() {
                lanes.push(lane.clone(), GFP_KERNEL)?;
            }
        }
        f(&mut lanes)?;
        let new = self.make(lanes, policy)?;
        self.dispatch
            .exchange(index, new.clone(), &mut retired.formers)?;
        *place = Some(new);
        Ok(())
    }

    /// Drops all queues after the disk was removed. Sleeps.
    pub(crate) fn clear(&self) {
        for place in self.list.lock().queues.iter_mut() {
            *place = None;
        }
    }
}

/// The type that implements the disk's operations.
pub(crate) struct Driver;

impl Operations for Driver {
    type Data = HwQueues;
    type HwQueue = HwQueue;
    type Pdu = ();

    fn hw_queue(
        data: &HwQueues,
        index: u32,
        _dispatch: &Arc<Dispatch<Self>>,
    ) -> Result<Arc<HwQueue>> {
        data.get(index)
    }

    fn init_request(_: &HwQueues, _hw_queue: u32) -> Result {
        Ok(())
    }

    #[inline]
    fn queue_rq(
        hw_queue: &HwQueue,
        request: Request<Self>,
        last: bool,
    ) -> Result<(), Rejected<Self>> {
        hw_queue.issue(request, last)
    }

    fn commit_rqs(hw_queue: &HwQueue) {
        hw_queue.commit();
    }

    #[inline]
    fn poll(hw_queue: &HwQueue) -> u32 {
        hw_queue.poll()
    }

    fn timeout(hw_queue: &HwQueue, request: TimedOut<'_>) -> Timeout {
        if hw_queue.settle() && request.is_over() {
            // The target had responded, but the completion had not been polled.
            return Timeout::Done;
        }
        // The end of the queue pair, or of the session, ends the request.
        if let Some((queue, tag)) = hw_queue.owner_of(&request) {
            queue.session.clone().queue_timed_out(queue, tag);
        }
        Timeout::ResetTimer
    }
}

/// Decides whether requests wait or fail while no path accepts any. Shared by the disk's head and
/// its hardware queues.
pub(crate) struct NoPath {
    /// Requests wait for a session.
    queues: Atomic<bool>,
    /// Requests fail since `fast_io_fail_tmo` is over, though a session may still follow.
    fails_fast: Atomic<bool>,
    /// No session is live, and a new one will follow.
    is_lost: Atomic<bool>,
}

impl NoPath {
    /// Creates the state in which requests fail. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let no_path = Self {
            queues: Atomic::new(false),
            fails_fast: Atomic::new(false),
            is_lost: Atomic::new(false),
        };
        Ok(Arc::new(no_path, GFP_KERNEL)?)
    }

    /// Returns whether requests wait for a new session after one is lost.
    #[inline]
    pub(crate) fn queues(&self) -> bool {
        self.queues.load(Acquire)
    }

    /// Sets whether requests wait for a new session.
    pub(crate) fn set_queues(&self, on: bool) {
        self.queues.store(on, Release);
    }

    /// Returns whether requests fail since `fast_io_fail_tmo` is over.
    pub(crate) fn fails_fast(&self) -> bool {
        self.fails_fast.load(Acquire)
    }

    /// Sets whether requests fail since `fast_io_fail_tmo` is over.
    pub(crate) fn set_fails_fast(&self, on: bool) {
        self.fails_fast.store(on, Release);
    }

    /// Returns whether no session is live and a new one will follow.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Acquire)
    }

    /// Sets whether no session is live and a new one will follow.
    pub(crate) fn set_lost(&self, lost: bool) {
        self.is_lost.store(lost, Release);
    }

    /// Returns whether requests wait, rather than fail, if there is no session now.
    pub(crate) fn requests_wait(&self) -> bool {
        self.queues() && !self.fails_fast()
    }
}
