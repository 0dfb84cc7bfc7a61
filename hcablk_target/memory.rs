// SPDX-License-Identifier: GPL-2.0

//! The memory of a port's sessions: all memory that peers can make the target allocate, limited to
//! `memory_mib`.
//!
//! Every session is a [`Client`]. Its *reservation* belongs to its queue pairs until they are
//! closed: their needs besides data (`QueueShape::overhead` of a queue: messages, pages for small
//! writes, the state of its requests, the rings of the RDMA device), the eager ring, and transfer
//! buffers for one request of the largest agreed size. If too little memory is left, the session is
//! refused before anything of a queue pair is allocated. Memory beyond the reservations is
//! *shared*: up to the sum of the sessions' `buffer_mib`, or what is left of three quarters of the
//! limit, in a [`SharedPool`] for each RDMA device.
//! [`fair_share`](hcablk_core::logic::fair_share) decides who gets it.
//!
//! One host may have at most half of the limit as reservations; shared memory does not count. Its
//! sessions with a proof are counted apart from those without one, which anybody can begin. Memory
//! held by a hanging drive is not charged to that share, up to a bound: see [`account`].
//!
//! A queue pair that needs more than its session announced (a peer may ask for more credits, or for
//! an additional queue pair, later) is charged for the excess: [`Client::charge`].
//!
//! # No deadlock
//!
//! A request waits at the head of its queue. The queue's own buffers become free when the earlier
//! requests end. Those have their buffers, and so depend only on drive and wire. Then the queue's
//! own buffers suffice for the request, as for every request that the session agreed to, and the
//! request continues without a single shared buffer. If one session agrees to larger requests, that
//! changes only its own reservation.
//!
//! # The limit
//!
//! The bytes in the [`account`] and in all shared pools together never exceed the limit: under
//! `state` memory is first destroyed and then allocated, and a request is granted when there is
//! room for it. A caller that needs room (a new session, a lowered limit) lowers the targets of the
//! shared pools. These lend nothing until they are small enough; queues return unused buffers, and
//! requests end. The caller waits for that, [`ROOM_MS`] at most, with nothing locked: other
//! sessions begin and end meanwhile, and each waiting amount is accounted for.
//!
//! # Freeing
//!
//! A queue frees its own memory after its queue pair; its pool then returns the borrowed buffers.
//! The last field of a queue is its [`Charge`], which is dropped after all the others and returns
//! the queue's place in its session. The last reference to a `Client`, held by its session, their
//! pool handles and their charges, removes the reservation from the account. All of this happens in
//! process context.

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
        ClaimantPart, //
    },
    client::Membership,
    layout::{
        length_of,
        SIZE_CLASSES, //
        SMALL,
    },
    shared_pool::SharedPool, //
};
use crate::claimant::Claimant;
use hcablk_core::{
    broken,
    configfs::Output,
    rdma::pd::ProtectionDomain,
    sync::{
        atomic::Atomic,
        defer::without_io,
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

/// The longest wait for room, in milliseconds.
const ROOM_MS: u32 = 5_000;
/// The interval for checking again while waiting for room, in milliseconds.
const LOOK_MS: u32 = 100;
/// Bytes of a session besides its queue pairs: its protection domain, its tables, its timer.
const SESSION_BYTES: u64 = 64 << 10;

/// The reason why there is no memory for a peer.
#[derive(Clone, Copy)]
pub(crate) enum Denied {
    /// The limit would be exceeded.
    Limit(Shortage),
    /// An allocation failed.
    Machine,
}

impl From<Error> for Denied {
    fn from(_: Error) -> Self {
        Self::Machine
    }
}

/// The memory needs of a session.
#[derive(Clone, Copy)]
pub(crate) struct Needs {
    pub(crate) queues: u64,
    /// Bytes that each of its queue pairs reserves.
    pub(crate) reserved: u64,
    /// Bytes of its admin queue pair.
    pub(crate) admin: u64,
    /// Bytes that each queue pair may borrow.
    pub(crate) wish: u64,
    /// Bytes of data that each queue pair may have, according to the port's settings.
    pub(crate) data: usize,
}

/// A shared pool, and the wishes of its clients.
struct PoolWishes {
    shared_pool: Arc<SharedPool>,
    clients: usize,
    /// Bytes that its clients may borrow.
    wishes: u64,
}

impl PoolWishes {
    /// Returns the bytes for which the pool may make buffers: none once it has left its device.
    fn wishes(&self) -> u64 {
        match self.shared_pool.is_severed() {
            true => 0,
            false => self.wishes,
        }
    }
}

/// The bytes in the account of a session that ends.
#[derive(Clone, Copy)]
enum Reserved {
    /// None: they were withdrawn.
    Withdrawn,
    Granted(u64),
    Stranded(u64),
}

struct AccountState {
    account: Account,
    shared_pools: KVec<PoolWishes>,
    parts: KVec<ClaimantPart>,
}

/// The memory of all sessions of a port: see the module.
#[pin_data]
pub(crate) struct Memory {
    queue: Arc<WorkQueue>,
    #[pin]
    state: Mutex<AccountState>,
    /// Memory was destroyed, or is no longer wanted.
    #[pin]
    freed: CondVar,
    #[pin]
    work: Work<Memory>,
}

impl_has_work! {
    impl HasWork<Self> for Memory { self.work }
}

impl AccountState {
    fn held(&self) -> u64 {
        self.shared_pools
            .iter()
            .map(|place| place.shared_pool.bytes())
            .sum()
    }

    fn place_of(&mut self, shared_pool: &Arc<SharedPool>) -> Option<&mut PoolWishes> {
        let mut places = self.shared_pools.iter_mut();
        places.find(|place| Arc::ptr_eq(&place.shared_pool, shared_pool))
    }

    /// Calls `f` with the account and the part of `claimant`, which has sessions.
    fn with_part<R>(
        &mut self,
        claimant: Claimant,
        f: impl FnOnce(&mut Account, &mut ClaimantPart) -> R,
    ) -> Option<R> {
        let found = ClaimantPart::find(&mut self.parts, claimant);
        if found.is_none() {
            broken!("a session's claimant has no part in the account of memory");
        }
        found.map(|part| f(&mut self.account, part))
    }

    /// Reserves `bytes` bytes for `claimant`, which has sessions.
    fn reserve(&mut self, claimant: Claimant, bytes: u64) -> Result<(), Denied> {
        match self.with_part(claimant, |account, part| account.reserve(part, bytes)) {
            Some(asked) => asked.map_err(Denied::Limit),
            None => Err(Denied::Machine),
        }
    }

    /// Counts a session of `claimant`, until [`Self::remove_client_of`]. May sleep.
    fn add_client_of(&mut self, claimant: Claimant) -> Result {
        if let Some(part) = ClaimantPart::find(&mut self.parts, claimant) {
            part.add_session();
            return Ok(());
        }
        Ok(self.parts.push(ClaimantPart::new(claimant), GFP_KERNEL)?)
    }

    fn remove_client_of(&mut self, claimant: Claimant) {
        let part = ClaimantPart::find(&mut self.parts, claimant);
        if part.is_some_and(ClaimantPart::remove_session) {
            self.parts.retain(|part| !part.is_of(claimant));
        }
    }

    /// Adjusts the shared pools to the memory that may be shared. Returns `false` if the limit
    /// would be exceeded until buffers are returned.
    fn balance(&mut self, freed: &CondVar) -> bool {
        let wishes = self.shared_pools.iter().map(PoolWishes::wishes).sum();
        let shareable = layout::shareable(self.account.goal(), self.account.owned(), wishes);
        for place in self.shared_pools.iter() {
            let part = layout::part(shareable, place.wishes(), wishes);
            if place.shared_pool.set_targets(layout::counts(part)) {
                freed.notify_all();
            }
        }
        let held = self.held();
        if self.account.left(held).is_none() {
            return false;
        }
        // A pool may hold more than its part, if a hanging drive does not return the excess: the
        // other pools must not grow into the memory that is left for reservations.
        let all = layout::shareable(self.account.goal(), self.account.owned(), u64::MAX);
        let mut left = all.saturating_sub(held);
        for place in self.shared_pools.iter() {
            left -= place.shared_pool.grow(left);
        }
        self.shared_pools
            .retain(|place| place.clients != 0 || place.shared_pool.bytes() != 0);
        true
    }
}

impl Memory {
    /// Creates an account without sessions. Buffers that are returned late are destroyed on
    /// `queue`.
    pub(crate) fn new(queue: &Arc<WorkQueue>, limit: u64) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                queue: queue.clone(),
                state <- new_mutex!(AccountState {
                    account: Account::new(limit),
                    shared_pools: KVec::new(),
                    parts: KVec::new(),
                }),
                freed <- new_condvar!(),
                work <- new_work!("hcablk_target::Memory"),
            }),
            GFP_KERNEL,
        )
    }

    /// Calls `done` as soon as the limit has room for all accounted bytes. Returns `false` if that
    /// took longer than [`ROOM_MS`], or the caller got a signal. Sleeps, with nothing locked.
    fn when_there_is_room(&self, done: impl FnOnce(&mut AccountState)) -> bool {
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
            // The total wait is limited, however often it is woken.
            left = left.saturating_sub(most.saturating_sub(rest).max(1));
        }
        done(&mut state);
        true
    }

    /// Waits until `bytes` bytes that were reserved for `claimant` are available. Sleeps.
    fn take(&self, claimant: Claimant, bytes: u64) -> Result<(), Denied> {
        if self.when_there_is_room(|state| state.account.grant(bytes)) {
            return Ok(());
        }
        let mut state = self.state.lock();
        let shortage = state.with_part(claimant, |account, part| account.withdraw(part, bytes));
        state.balance(&self.freed);
        Err(shortage.map_or(Denied::Machine, Denied::Limit))
    }

    /// Begins a session of `claimant` on the device of `pd`. Sleeps.
    pub(crate) fn admit(
        self: &Arc<Self>,
        pd: &Arc<ProtectionDomain>,
        claimant: Claimant,
        needs: Needs,
    ) -> Result<Arc<Client>, Denied> {
        let of_queues = needs.reserved.saturating_mul(needs.queues);
        let reserved = of_queues.saturating_add(needs.admin + SESSION_BYTES);
        let wish = needs.wish * needs.queues;
        let shared_pool = self.enter(pd, claimant, reserved, wish)?;
        let most = wish / PAGE_SIZE as u64;
        let taken = self.take(claimant, reserved);
        let added = taken
            .and_then(|()| Ok(shared_pool.add_client(u32::try_from(most).unwrap_or(u32::MAX))?));
        match added {
            Ok((index, borrower)) => {
                let part = Membership {
                    memory: self.clone(),
                    claimant,
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
                self.leave_device(&shared_pool);
                self.leave(claimant, &shared_pool, wish, reserved);
                Err(denied)
            }
        }
    }

    /// Adds a client of `claimant` to its shared pool: reserves `reserved` bytes, and lets it
    /// borrow `wish` bytes.
    fn enter(
        self: &Arc<Self>,
        pd: &Arc<ProtectionDomain>,
        claimant: Claimant,
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
                let place = PoolWishes {
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
        let added = state.add_client_of(claimant);
        let asked = match added {
            Ok(()) => state.reserve(claimant, reserved),
            Err(e) => Err(e.into()),
        };
        if let Err(denied) = asked {
            if added.is_ok() {
                state.remove_client_of(claimant);
            }
            // A shared pool that was created for no client would keep the device.
            if found.is_none() {
                drop(state.shared_pools.pop());
            }
            state.balance(&self.freed);
            return Err(denied);
        }
        let place = state.shared_pools.get_mut(at).ok_or(ENOMEM)?;
        place.clients += 1;
        place.wishes += wish;
        place.shared_pool.use_device();
        Ok(place.shared_pool.clone())
    }

    /// Takes `bytes` more bytes for an existing session of `claimant`. Sleeps.
    fn charge(&self, claimant: Claimant, bytes: u64) -> Result<(), Denied> {
        if bytes == 0 {
            return Ok(());
        }
        self.state.lock().reserve(claimant, bytes)?;
        self.take(claimant, bytes)
    }

    /// Records that `bytes` bytes of a session of `claimant` are stranded. May sleep.
    fn strand(&self, claimant: Claimant, bytes: u64) {
        let mut state = self.state.lock();
        state.with_part(claimant, |_, part| Account::strand(part, bytes));
    }

    /// Frees `bytes` bytes of a session of `claimant`. May sleep.
    fn refund(&self, claimant: Claimant, bytes: u64) {
        if bytes != 0 {
            let mut state = self.state.lock();
            state.with_part(claimant, |account, part| account.refund(part, bytes));
            state.balance(&self.freed);
            self.freed.notify_all();
        }
    }

    /// Records that a session no longer uses the device of a shared pool. Its wish still counts
    /// while it may have borrowed buffers: these count in the pool, and must not reduce the part of
    /// the pool's other sessions. Sleeps.
    fn leave_device(&self, shared_pool: &Arc<SharedPool>) {
        let mut state = self.state.lock();
        // Under the lock, so that no session starts to use the device, and no buffers are made.
        shared_pool.leave_device();
        state.balance(&self.freed);
        self.freed.notify_all();
    }

    /// Frees the memory of a session of `claimant`, which has left the device and had asked for
    /// `wish` bytes of the shared pool. May sleep.
    fn leave(
        &self,
        claimant: Claimant,
        shared_pool: &Arc<SharedPool>,
        wish: u64,
        reserved: Reserved,
    ) {
        let mut state = self.state.lock();
        state.with_part(claimant, |account, part| match reserved {
            Reserved::Withdrawn => {}
            Reserved::Granted(bytes) => account.refund(part, bytes),
            Reserved::Stranded(bytes) => account.refund_stranded(part, bytes),
        });
        state.remove_client_of(claimant);
        if let Some(place) = state.place_of(shared_pool) {
            place.clients -= 1;
            place.wishes -= wish;
        }
        state.balance(&self.freed);
        // Notify waiters even if no buffer had to be destroyed.
        self.freed.notify_all();
    }

    /// Schedules the destruction of returned buffers that exceed the target. Any context.
    fn trim_later(self: &Arc<Self>) {
        // If it is queued already, that run will find them.
        let _ = self.queue.enqueue(self.clone());
    }

    /// Returns the limit in bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.state.lock().account.limit()
    }

    /// Sets the limit in bytes. Sleeps until the bytes in use fit the new limit. Fails with
    /// `EBUSY`, and changes nothing, if the existing sessions need more, memory was not returned in
    /// time, or another caller is setting the limit.
    pub(crate) fn set_limit(&self, bytes: u64) -> Result {
        let begun = {
            let account = &mut self.state.lock().account;
            account.begin_change(bytes).ok_or(account.owned())
        };
        let before = begun.map_err(|owned| {
            pr_warn!(
                "memory_mib stays at {}: the existing sessions need {} MiB\n",
                self.limit() >> 20,
                owned.div_ceil(1 << 20)
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
            "memory_mib stays at {}: requests in flight do not return enough memory\n",
            before >> 20
        );
        Err(EBUSY)
    }

    /// Prints the amounts of memory for the attribute `memory`. May sleep.
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
                let counts = place.shared_pool.class_counts(size_class);
                total += counts.total;
                borrowed += counts.borrowed;
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
        // Connecting takes the same lock, and on a machine that is its own client memory reclaim
        // waits for a disk that is being connected.
        without_io(|| this.state.lock().balance(&this.freed));
    }
}
