// SPDX-License-Identifier: GPL-2.0

//! The memory of a port's sessions: transfer buffers and granted memory, never more
//! than `memory_mib` of all of them together.
//!
//! Every session is a [`Client`]. Its *least* is what its queue pairs have for themselves as
//! long as they live: granted memory, and transfer buffers for one request of the largest
//! size that it agreed to. If that is not left any more the session is refused. What is beyond
//! the leasts is *lent*: as much as the sessions may have by their `buffer_mib`, or as there
//! is, in an [`arena`] for each RDMA device. Who gets it is told in
//! [`share`](hcablk_core::share).
//!
//! # No deadlock
//!
//! A request waits at the head of its queue. The queue's own buffers come home when the
//! requests before it end. Those have their buffers, and so depend on nothing but drive and
//! wire. Then its own are enough for it, as they are for every request that the session
//! agreed to, and it goes on without a single lent buffer. That one session agreed to larger
//! requests changes its own least, not that of others.
//!
//! # The limit
//!
//! [`State::least`] and the bytes of all arenas together are at most `limit`, at all times:
//! under `state` memory is first destroyed, and then made, and a session's least is made when
//! there is room for it. Who needs room (a session that begins, a limit that is lowered)
//! lowers what the arenas shall have. These lend nothing until they are small enough; queues
//! give back what they do not use, and requests end. That is waited for, [`ROOM_MS`] at most.
//!
//! # Who frees what
//!
//! A queue its own buffers, when its queue pair is gone; its pool gives back what it has
//! borrowed then. The last reference to a `Client`, which its session and their seats
//! have, takes the least out of the account. All of it in process context.

mod arena;
pub(crate) mod layout;
mod seat;

pub(crate) use self::seat::Seat;
use self::{
    arena::Arena,
    layout::{
        length_of,
        SMALL,
        ZONES, //
    }, //
};
use hcablk_core::{
    configfs::Output,
    rdma::pd::ProtectionDomain,
    sync::{
        Event,
        WorkQueue, //
    },
};
use kernel::{
    impl_has_work, new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    workqueue::{
        new_work,
        Work,
        WorkItem, //
    },
};

const _: () = assert!(length_of(SMALL) == PAGE_SIZE && ZONES == hcablk_core::share::ZONES);

/// Milliseconds that room is waited for.
const ROOM_MS: u32 = 5_000;
/// Milliseconds after which one looks again in any case.
const LOOK_MS: u32 = 100;

/// An arena, and what is wished of it.
struct Place {
    arena: Arc<Arena>,
    clients: usize,
    /// Bytes that its clients may borrow.
    wishes: u64,
}

struct State {
    /// Bytes that are used at most.
    limit: u64,
    /// Bytes that shall be: less while the limit is being lowered.
    goal: u64,
    /// Bytes of all leasts.
    least: u64,
    /// Bytes of the least of a session for which there is no room yet.
    coming: u64,
    arenas: KVec<Place>,
}

/// See the module.
#[pin_data]
pub(crate) struct Memory {
    queue: Arc<WorkQueue>,
    /// Taken before `state`: who waits for room, one after the other.
    #[pin]
    room: Mutex<()>,
    #[pin]
    state: Mutex<State>,
    /// Something was destroyed.
    #[pin]
    freed: Event,
    #[pin]
    work: Work<Memory>,
}

impl_has_work! {
    impl HasWork<Self> for Memory { self.work }
}

impl State {
    fn held(&self) -> u64 {
        self.arenas.iter().map(|place| place.arena.bytes()).sum()
    }

    /// Has as much lent as there may be, and not more. `false`: the limit would be passed
    /// until something comes back.
    fn balance(&mut self, freed: &Event) -> bool {
        let wishes = self.arenas.iter().map(|place| place.wishes).sum();
        let least = self.least + self.coming;
        let lendable = layout::lendable(self.goal, least, wishes);
        for place in self.arenas.iter() {
            let part = layout::part(lendable, place.wishes, wishes);
            if place.arena.aim(layout::counts(part)) {
                freed.set();
            }
        }
        let Some(mut left) = self.goal.checked_sub(least + self.held()) else {
            return false;
        };
        for place in self.arenas.iter() {
            left -= place.arena.grow(left);
        }
        self.arenas
            .retain(|place| place.clients != 0 || place.arena.bytes() != 0);
        true
    }
}

impl Memory {
    /// Without sessions. `queue` is where what comes back late is destroyed.
    pub(crate) fn new(queue: &Arc<WorkQueue>, limit: u64) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                queue: queue.clone(),
                room <- new_mutex!(()),
                state <- new_mutex!(State {
                    limit,
                    goal: limit,
                    least: 0,
                    coming: 0,
                    arenas: KVec::new(),
                }),
                freed <- Event::new(),
                work <- new_work!("hcablk_target::Memory"),
            }),
            GFP_KERNEL,
        )
    }

    /// Waits until the limit is kept with all that `state` says now. Sleeps; `room` is locked.
    fn wait_for_room(&self) -> bool {
        for _ in 0..ROOM_MS / LOOK_MS {
            self.freed.reset();
            if self.state.lock().balance(&self.freed) {
                return true;
            }
            let _ = self.freed.wait_ms(LOOK_MS);
        }
        self.state.lock().balance(&self.freed)
    }

    /// A session on the device of `pd` begins, whose queue pairs, of up to `queue_bytes` bytes
    /// each, need `least` bytes together and may borrow `wish` bytes. Sleeps.
    ///
    /// Errors: `ENOSPC` (the limit would be passed), `ENOMEM`.
    pub(crate) fn admit(
        self: &Arc<Self>,
        pd: &Arc<ProtectionDomain>,
        least: u64,
        wish: u64,
        queue_bytes: usize,
    ) -> Result<Arc<Client>> {
        let _room = self.room.lock();
        let arena = {
            let mut state = self.state.lock();
            if state.least.saturating_add(least) > state.goal {
                return Err(ENOSPC);
            }
            let found = state.arenas.iter().position(|p| p.arena.is_for(pd));
            let at = match found {
                Some(at) => at,
                None => {
                    let place = Place {
                        arena: Arena::new(pd, self)?,
                        clients: 0,
                        wishes: 0,
                    };
                    state.arenas.push(place, GFP_KERNEL)?;
                    state.arenas.len() - 1
                }
            };
            state.coming = least;
            let place = state.arenas.get_mut(at).ok_or(ENOMEM)?;
            place.clients += 1;
            place.wishes += wish;
            place.arena.clone()
        };
        let most = wish / PAGE_SIZE as u64;
        let room = self.wait_for_room();
        {
            let mut state = self.state.lock();
            state.coming = 0;
            state.least += if room { least } else { 0 };
        }
        let joined = if room {
            arena.join(u32::try_from(most).unwrap_or(u32::MAX))
        } else {
            Err(ENOSPC)
        };
        let client = joined.and_then(|(index, seat)| {
            let client = Client {
                memory: self.clone(),
                arena: arena.clone(),
                index,
                seat,
                least,
                wish,
                queue_bytes,
            };
            // Without memory it is dropped, and has left.
            Ok(Arc::new(client, GFP_KERNEL)?)
        });
        if joined.is_err() {
            self.leave(&arena, if room { least } else { 0 }, wish);
        }
        client
    }

    /// What a session had is free. May sleep.
    fn leave(&self, arena: &Arc<Arena>, least: u64, wish: u64) {
        let mut state = self.state.lock();
        state.least -= least;
        if let Some(place) = state
            .arenas
            .iter_mut()
            .find(|p| Arc::ptr_eq(&p.arena, arena))
        {
            place.clients -= 1;
            place.wishes -= wish;
        }
        state.balance(&self.freed);
        // Also if nothing had to be destroyed.
        self.freed.set();
    }

    /// Something has come back that shall not be. Any context.
    fn trim_later(self: &Arc<Self>) {
        // Once more is not needed if it is queued.
        let _ = self.queue.enqueue(self.clone());
    }

    /// Bytes that may be used.
    pub(crate) fn limit(&self) -> u64 {
        self.state.lock().limit
    }

    /// Sets how many bytes may be used. Sleeps until no more are. `EBUSY`: the sessions
    /// that there are need more, or it did not come back; then nothing has changed.
    pub(crate) fn set_limit(&self, bytes: u64) -> Result {
        let _room = self.room.lock();
        let before = {
            let mut state = self.state.lock();
            if state.least > bytes {
                pr_warn!(
                    "memory_mib stays at {}: the sessions that there are need {} KiB\n",
                    state.limit >> 20,
                    state.least >> 10
                );
                return Err(EBUSY);
            }
            state.goal = bytes;
            // It may be used at once, but what is used may not be forbidden.
            state.limit = state.limit.max(bytes);
            state.limit
        };
        let room = self.wait_for_room();
        let mut state = self.state.lock();
        if room {
            state.limit = bytes;
            return Ok(());
        }
        state.goal = before;
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
        writeln!(out, "limit {}", state.limit)?;
        writeln!(out, "used {}", state.least + state.held())?;
        writeln!(out, "least {}", state.least)?;
        let waiting: u32 = state.arenas.iter().map(|p| p.arena.waiting()).sum();
        writeln!(out, "waiting {waiting}")?;
        for zone in 0..ZONES {
            let (mut total, mut lent) = (0, 0);
            for place in state.arenas.iter() {
                let holds = place.arena.holds(zone);
                total += holds.total;
                lent += holds.lent;
            }
            writeln!(out, "zone {} {total} {lent}", length_of(zone))?;
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

/// A session's part of the memory. See the module for its end.
pub(crate) struct Client {
    memory: Arc<Memory>,
    arena: Arc<Arena>,
    index: usize,
    /// Its first seat, which borrows nothing: the client is there as long as a seat is.
    seat: usize,
    least: u64,
    wish: u64,
    queue_bytes: usize,
}

impl Client {
    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn index(&self) -> usize {
        self.index
    }

    /// Bytes that each of its queue pairs may have: what the port's settings said when it began.
    pub(crate) fn queue_bytes(&self) -> usize {
        self.queue_bytes
    }

    fn most_pages(&self) -> u64 {
        self.wish / PAGE_SIZE as u64
    }

    /// Tells what it has: bytes of its own, that it may borrow and has borrowed, and how
    /// often it had to wait for others.
    pub(crate) fn show(&self, out: &mut Output<'_>) -> Result {
        let standing = self.arena.standing(self.index);
        let page = PAGE_SIZE as u64;
        writeln!(
            out,
            "{} {} {} {}",
            self.least,
            u64::from(standing.most) * page,
            u64::from(standing.lent) * page,
            standing.waits
        )
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.arena.leave(self.seat);
        self.memory.leave(&self.arena, self.least, self.wish);
    }
}
