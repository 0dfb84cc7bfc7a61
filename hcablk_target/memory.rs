// SPDX-License-Identifier: GPL-2.0

//! The memory of a port's sessions: all that a peer can cause, never more than `memory_mib`.
//!
//! Every session is a [`Client`]. Its *reservation* is what its queue pairs keep for themselves as
//! long as they live: what each needs beside its data (`Shape::overhead` of a queue: messages,
//! pages for small writes, the books of its requests, the rings of the RDMA device), the eager
//! ring, and transfer buffers for one request of the largest size that it agreed to. If that is not
//! left any more the session is refused, before anything of a queue pair is made. What is beyond
//! the reservations is *shared*: as much as the sessions may have by their `buffer_mib`, or as
//! there is, in a [`SharedPool`] for each RDMA device. Who gets it is decided by
//! [`fair_share`](hcablk_core::logic::fair_share).
//!
//! Of the reservations one host has half of the limit at most; what is shared is not counted there.
//! What a drive holds that hangs is charged to that share up to a bound only: see [`account`].
//!
//! A queue pair that needs more than its session said (a peer may ask for more credits with a later
//! one, or for one more) is charged for what is beyond that: [`Client::charge`].
//!
//! # No deadlock
//!
//! A request waits at the head of its queue. The queue's own buffers become free when the
//! requests before it end. Those have their buffers, and so depend on nothing but drive and
//! wire. Then its own are enough for it, as they are for every request that the session
//! agreed to, and it goes on without a single shared buffer. That one session agreed to larger
//! requests changes its own reservation, not that of others.
//!
//! # The limit
//!
//! What is in the [`account`] and the bytes of all shared pools together are at most its limit, at
//! all times: under `state` memory is first destroyed, and then made, and what is asked for is
//! granted when there is room for it. Who needs room (a session that begins, a limit that is
//! lowered) lowers what the shared pools shall have. These give out nothing until they are small
//! enough; queues give back what they do not use, and requests end. That is waited for, [`ROOM_MS`]
//! at most, with nothing locked: others come and go meanwhile, and what waits is counted for each
//! of them.
//!
//! # Who frees what
//!
//! A queue its own memory, when its queue pair is gone; its pool gives back what it has borrowed
//! then. The last field of a queue is its [`Charge`], which is dropped after all the others and
//! gives its session's place back. The last reference to a `Client`, which its session, their pool
//! handles and their charges have, takes the reservation out of the account. All of it in process
//! context.

mod account;
mod choice;
mod client;
pub(crate) mod layout;
pub(crate) mod pool;
mod pool_handle;
mod shared_pool;

pub(crate) use self::{
    account::Shortage,
    client::{
        Charge,
        Client, //
    },
    pool_handle::PoolHandle, //
};
use self::{
    account::{
        Account,
        HostPart, //
    },
    client::Membership,
    layout::{
        length_of,
        SIZE_CLASSES, //
        SMALL,
    },
    shared_pool::SharedPool, //
};
use hcablk_core::{
    broken,
    configfs::Output,
    proto::name::HostId,
    rdma::pd::ProtectionDomain,
    sync::{
        atomic::Atomic,
        WorkQueue, //
    }, //
};
use kernel::{
    impl_has_work, new_condvar, new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        CondVar,
        CondVarTimeoutResult,
        Mutex, //
    },
    time::msecs_to_jiffies,
    workqueue::{
        new_work,
        Work,
        WorkItem, //
    },
};

const _: () = assert!(
    length_of(SMALL) == PAGE_SIZE && SIZE_CLASSES == hcablk_core::logic::fair_share::SIZE_CLASSES
);

/// Milliseconds that room is waited for.
const ROOM_MS: u32 = 5_000;
/// Milliseconds after which one looks again in any case.
const LOOK_MS: u32 = 100;
/// Bytes of a session beside its queue pairs: its protection domain, its tables, its timer.
const SESSION_BYTES: u64 = 64 << 10;

/// Why there is no memory for a peer.
#[derive(Clone, Copy)]
pub(crate) enum Denied {
    /// The limit would be passed.
    Limit(Shortage),
    /// An allocation failed.
    Machine,
}

impl From<Error> for Denied {
    fn from(_: Error) -> Self {
        Self::Machine
    }
}

/// What a session needs.
#[derive(Clone, Copy)]
pub(crate) struct Needs {
    pub(crate) queues: u64,
    /// Bytes that each of its queue pairs has for itself.
    pub(crate) reserved: u64,
    /// Bytes of its admin queue pair.
    pub(crate) admin: u64,
    /// Bytes that each may borrow.
    pub(crate) wish: u64,
    /// Bytes of data that each may have: what the port's settings say.
    pub(crate) data: usize,
}

/// A shared pool, and what is wished of it.
struct Place {
    shared_pool: Arc<SharedPool>,
    clients: usize,
    /// Bytes that its clients may borrow.
    wishes: u64,
}

/// What one host has in the account, as long as it has sessions.
struct Host {
    id: HostId,
    part: HostPart,
    clients: usize,
}

/// The bytes that a session which leaves has in the account.
#[derive(Clone, Copy)]
enum Reserved {
    /// None: they were withdrawn.
    Withdrawn,
    Granted(u64),
    Stranded(u64),
}

struct State {
    account: Account,
    shared_pools: KVec<Place>,
    hosts: KVec<Host>,
}

/// See the module.
#[pin_data]
pub(crate) struct Memory {
    queue: Arc<WorkQueue>,
    #[pin]
    state: Mutex<State>,
    /// Something was destroyed, or is not wanted any more.
    #[pin]
    freed: CondVar,
    #[pin]
    work: Work<Memory>,
}

impl_has_work! {
    impl HasWork<Self> for Memory { self.work }
}

impl State {
    fn held(&self) -> u64 {
        self.shared_pools
            .iter()
            .map(|place| place.shared_pool.bytes())
            .sum()
    }

    fn place_of(&mut self, shared_pool: &Arc<SharedPool>) -> Option<&mut Place> {
        let mut places = self.shared_pools.iter_mut();
        places.find(|place| Arc::ptr_eq(&place.shared_pool, shared_pool))
    }

    /// Calls `f` with the account and what `host`, which has sessions, has in it.
    fn with_host<R>(
        &mut self,
        host: HostId,
        f: impl FnOnce(&mut Account, &mut HostPart) -> R,
    ) -> Option<R> {
        let found = self.hosts.iter_mut().find(|found| found.id == host);
        if found.is_none() {
            broken!("a session's host has no part in the account of memory");
        }
        found.map(|found| f(&mut self.account, &mut found.part))
    }

    /// Reserves `bytes` bytes for `host`, which has sessions.
    fn reserve(&mut self, host: HostId, bytes: u64) -> Result<(), Denied> {
        match self.with_host(host, |account, part| account.reserve(part, bytes)) {
            Some(asked) => asked.map_err(Denied::Limit),
            None => Err(Denied::Machine),
        }
    }

    /// Counts a session of `host`, to be uncounted by [`Self::remove_client_of`]. May sleep.
    fn add_client_of(&mut self, host: HostId) -> Result {
        if let Some(found) = self.hosts.iter_mut().find(|found| found.id == host) {
            found.clients += 1;
            return Ok(());
        }
        let new = Host {
            id: host,
            part: HostPart::default(),
            clients: 1,
        };
        Ok(self.hosts.push(new, GFP_KERNEL)?)
    }

    fn remove_client_of(&mut self, host: HostId) {
        if let Some(found) = self.hosts.iter_mut().find(|found| found.id == host) {
            found.clients -= 1;
        }
        self.hosts.retain(|host| host.clients != 0);
    }

    /// Shares as much as there may be, and not more. `false`: the limit would be passed
    /// until something comes back.
    fn balance(&mut self, freed: &CondVar) -> bool {
        let wishes = self.shared_pools.iter().map(|place| place.wishes).sum();
        let shareable = layout::shareable(self.account.goal(), self.account.owned(), wishes);
        for place in self.shared_pools.iter() {
            let part = layout::part(shareable, place.wishes, wishes);
            if place.shared_pool.aim(layout::counts(part)) {
                freed.notify_all();
            }
        }
        let Some(mut left) = self.account.left(self.held()) else {
            return false;
        };
        for place in self.shared_pools.iter() {
            left -= place.shared_pool.grow(left);
        }
        self.shared_pools
            .retain(|place| place.clients != 0 || place.shared_pool.bytes() != 0);
        true
    }
}

impl Memory {
    /// Makes the account without sessions. `queue` is where what comes back late is destroyed.
    pub(crate) fn new(queue: &Arc<WorkQueue>, limit: u64) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                queue: queue.clone(),
                state <- new_mutex!(State {
                    account: Account::new(limit),
                    shared_pools: KVec::new(),
                    hosts: KVec::new(),
                }),
                freed <- new_condvar!(),
                work <- new_work!("hcablk_target::Memory"),
            }),
            GFP_KERNEL,
        )
    }

    /// Does `done` as soon as the limit is kept with all that the account says now, and tells
    /// whether that was within [`ROOM_MS`]. Sleeps, with nothing locked.
    fn when_there_is_room(&self, done: impl FnOnce(&mut State)) -> bool {
        let mut state = self.state.lock();
        let mut left = msecs_to_jiffies(ROOM_MS);
        while !state.balance(&self.freed) {
            if left == 0 {
                return false;
            }
            let most = left.min(msecs_to_jiffies(LOOK_MS)).max(1);
            let rest = match self.freed.wait_interruptible_timeout(&mut state, most) {
                CondVarTimeoutResult::Woken { jiffies } => jiffies,
                CondVarTimeoutResult::Timeout => 0,
                CondVarTimeoutResult::Signal { .. } => return false,
            };
            // However often it is woken, it ends.
            left = left.saturating_sub(most.saturating_sub(rest).max(1));
        }
        done(&mut state);
        true
    }

    /// Waits until `bytes` bytes that were asked for by `host` are there. Sleeps.
    fn take(&self, host: HostId, bytes: u64) -> Result<(), Denied> {
        if self.when_there_is_room(|state| state.account.grant(bytes)) {
            return Ok(());
        }
        let mut state = self.state.lock();
        let shortage = state.with_host(host, |account, part| account.withdraw(part, bytes));
        state.balance(&self.freed);
        Err(shortage.map_or(Denied::Machine, Denied::Limit))
    }

    /// Begins a session of `host` on the device of `pd`. Sleeps.
    pub(crate) fn admit(
        self: &Arc<Self>,
        pd: &Arc<ProtectionDomain>,
        host: HostId,
        needs: Needs,
    ) -> Result<Arc<Client>, Denied> {
        let of_queues = needs.reserved.saturating_mul(needs.queues);
        let reserved = of_queues.saturating_add(needs.admin + SESSION_BYTES);
        let wish = needs.wish * needs.queues;
        let shared_pool = self.enter(pd, host, reserved, wish)?;
        let most = wish / PAGE_SIZE as u64;
        let taken = self.take(host, reserved);
        let added = taken
            .and_then(|()| Ok(shared_pool.add_client(u32::try_from(most).unwrap_or(u32::MAX))?));
        match added {
            Ok((index, borrower)) => {
                let part = Membership {
                    memory: self.clone(),
                    host,
                    shared_pool,
                    index,
                    borrower,
                    reserved,
                    stranded: Atomic::new(false),
                    on_device: Atomic::new(true),
                    wish,
                    queue_bytes: needs.data,
                };
                Ok(Client::new(part, needs.queues, needs.reserved)?)
            }
            Err(denied) => {
                let reserved = match taken {
                    Ok(()) => Reserved::Granted(reserved),
                    Err(_) => Reserved::Withdrawn,
                };
                self.leave_device(&shared_pool, wish);
                self.leave(host, &shared_pool, reserved);
                Err(denied)
            }
        }
    }

    /// Adds a client of `host` that is to have `reserved` bytes, which are asked for, and may borrow `wish`,
    /// to its shared pool.
    fn enter(
        self: &Arc<Self>,
        pd: &Arc<ProtectionDomain>,
        host: HostId,
        reserved: u64,
        wish: u64,
    ) -> Result<Arc<SharedPool>, Denied> {
        let mut state = self.state.lock();
        let found = state
            .shared_pools
            .iter()
            .position(|p| p.shared_pool.is_for(pd));
        let at = match found {
            Some(at) => at,
            None => {
                let place = Place {
                    shared_pool: SharedPool::new(pd, self)?,
                    clients: 0,
                    wishes: 0,
                };
                state
                    .shared_pools
                    .push(place, GFP_KERNEL)
                    .map_err(Error::from)?;
                state.shared_pools.len() - 1
            }
        };
        let added = state.add_client_of(host);
        let asked = match added {
            Ok(()) => state.reserve(host, reserved),
            Err(e) => Err(e.into()),
        };
        if let Err(denied) = asked {
            if added.is_ok() {
                state.remove_client_of(host);
            }
            // A shared pool that was made for nobody goes, and with it the protection domain.
            state.balance(&self.freed);
            return Err(denied);
        }
        let place = state.shared_pools.get_mut(at).ok_or(ENOMEM)?;
        place.clients += 1;
        place.wishes += wish;
        place.shared_pool.use_device();
        Ok(place.shared_pool.clone())
    }

    /// Takes `bytes` bytes more for a session of `host` that is there. Sleeps.
    fn charge(&self, host: HostId, bytes: u64) -> Result<(), Denied> {
        if bytes == 0 {
            return Ok(());
        }
        self.state.lock().reserve(host, bytes)?;
        self.take(host, bytes)
    }

    /// Notes that `bytes` bytes of a session of `host` are stranded. May sleep.
    fn strand(&self, host: HostId, bytes: u64) {
        let mut state = self.state.lock();
        state.with_host(host, |_, part| Account::strand(part, bytes));
    }

    /// Frees `bytes` bytes of a session of `host`. May sleep.
    fn refund(&self, host: HostId, bytes: u64) {
        if bytes != 0 {
            let mut state = self.state.lock();
            state.with_host(host, |account, part| account.refund(part, bytes));
            state.balance(&self.freed);
            self.freed.notify_all();
        }
    }

    /// Ends that a session, which may borrow `wish` bytes, uses the device of a shared pool. Sleeps.
    fn leave_device(&self, shared_pool: &Arc<SharedPool>, wish: u64) {
        let mut state = self.state.lock();
        if let Some(place) = state.place_of(shared_pool) {
            place.wishes -= wish;
        }
        // Under the lock: nobody begins to use it meanwhile, nor changes which buffers there are.
        shared_pool.leave_device();
        state.balance(&self.freed);
        self.freed.notify_all();
    }

    /// Frees what a session of `host` had, which has left the device. May sleep.
    fn leave(&self, host: HostId, shared_pool: &Arc<SharedPool>, reserved: Reserved) {
        let mut state = self.state.lock();
        state.with_host(host, |account, part| match reserved {
            Reserved::Withdrawn => {}
            Reserved::Granted(bytes) => account.refund(part, bytes),
            Reserved::Stranded(bytes) => account.refund_stranded(part, bytes),
        });
        state.remove_client_of(host);
        if let Some(place) = state.place_of(shared_pool) {
            place.clients -= 1;
        }
        state.balance(&self.freed);
        // Also if nothing had to be destroyed.
        self.freed.notify_all();
    }

    /// Schedules that what has come back and shall not stay is destroyed. Any context.
    fn trim_later(self: &Arc<Self>) {
        // If it is queued already it has yet to look.
        let _ = self.queue.enqueue(self.clone());
    }

    /// Returns the bytes that may be used.
    pub(crate) fn limit(&self) -> u64 {
        self.state.lock().account.limit()
    }

    /// Sets how many bytes may be used. Sleeps until no more are. `EBUSY`: the sessions that there
    /// are need more, it did not come back, or somebody else sets it; then nothing has changed.
    pub(crate) fn set_limit(&self, bytes: u64) -> Result {
        let begun = {
            let account = &mut self.state.lock().account;
            account.begin_change(bytes).ok_or(account.owned())
        };
        let before = begun.map_err(|owned| {
            pr_warn!(
                "memory_mib stays at {}: the sessions that there are need {} KiB\n",
                self.limit() >> 20,
                owned >> 10
            );
            EBUSY
        })?;
        if self.when_there_is_room(|state| state.account.end_change(bytes)) {
            return Ok(());
        }
        let mut state = self.state.lock();
        state.account.end_change(before);
        state.balance(&self.freed);
        pr_warn!(
            "memory_mib stays at {}: requests under way do not end\n",
            before >> 20
        );
        Err(EBUSY)
    }

    /// Tells how much there is of what. May sleep.
    pub(crate) fn show(&self, out: &mut Output<'_>) -> Result {
        let state = self.state.lock();
        let reserved = state.account.reserved();
        writeln!(out, "limit {}", state.account.limit())?;
        writeln!(out, "used {}", reserved + state.held())?;
        writeln!(out, "reserved {reserved}")?;
        let waiting: u32 = state
            .shared_pools
            .iter()
            .map(|p| p.shared_pool.waiting())
            .sum();
        writeln!(out, "waiting {waiting}")?;
        for size_class in 0..SIZE_CLASSES {
            let (mut total, mut borrowed) = (0, 0);
            for place in state.shared_pools.iter() {
                let holds = place.shared_pool.holds(size_class);
                total += holds.total;
                borrowed += holds.borrowed;
            }
            writeln!(
                out,
                "size_class {} {total} {borrowed}",
                length_of(size_class)
            )?;
        }
        Ok(())
    }
}

impl WorkItem for Memory {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.state.lock().balance(&this.freed);
    }
}
