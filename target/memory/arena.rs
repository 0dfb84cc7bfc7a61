// SPDX-License-Identifier: GPL-2.0

//! Buffers that are lent: those of one RDMA device, mapped for it.
//!
//! ```text
//!          grow()            borrow()                      give_back()
//!  (none) ────────► Free ──────────────► a queue's [Pool] ────────────► Free ──trim()──► (none)
//! ```
//!
//! They are made when sessions begin and when the limit is raised, in process context, and
//! destroyed when that is lowered or sessions end. Whoever uses one has a reference to it;
//! the account ([`Shares`]) tells how many everyone has, and lends none twice.
//!
//! They are mapped by the protection domain of the session that was the first on the
//! device. That only keeps the device: what uses a buffer names it by its own domain's
//! key. The arena, and that domain with it, goes with the last session of the device: when a device is
//! removed all its sessions end, and nothing stays mapped.
//!
//! # Locks and contexts
//!
//! One irq lock, which guards the account and the lists; it is taken inside
//! `Queue::work`, and nothing is locked inside. A queue is woken with it held: so what is woken
//! is attached, and the reference to it never the last. The numbers of buffers change under
//! `Memory::state` only.

use super::{
    layout::{
        length_of,
        ORDERS,
        PAGES,
        ZONES, //
    },
    Memory, //
};
use crate::queue::Queue;
use core::mem;
use hcablk_core::{
    broken::push_into_room,
    rdma::{
        buffer::DmaBuffer,
        device::Direction,
        pd::ProtectionDomain, //
    },
    share::{
        self,
        Holds,
        Shares,
        Standing, //
    },
    sync::{
        new_irq_lock,
        IrqLock, //
    },
    system::now_ns, //
};
use kernel::{
    pr_warn_once,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};

/// Nanoseconds of a millisecond.
const NSEC_PER_MSEC: u64 = 1_000_000;
/// Places that tables get at a time.
const PLACES: usize = 32;

type Tables = (KVec<share::Client>, KVec<share::Seat>);

struct Inner {
    shares: Shares<KVec<share::Client>, KVec<share::Seat>>,
    /// Whom to wake, by seat.
    queues: KVec<Option<Arc<Queue>>>,
    /// What nobody has; room for all that there are.
    free: [KVVec<Arc<DmaBuffer>>; ZONES],
}

/// See the module.
#[pin_data]
pub(super) struct Arena {
    pd: Arc<ProtectionDomain>,
    /// Which has a reference to this as long as it has clients or buffers.
    memory: Arc<Memory>,
    /// What is not used shall be given back: a copy, to be read without the lock.
    pressed: Atomic<bool>,
    #[pin]
    inner: IrqLock<Inner>,
}

/// Empty tables. May sleep.
fn tables(clients: usize, seats: usize) -> Result<Tables> {
    let mut tables = (KVec::new(), KVec::new());
    tables
        .0
        .resize(clients, share::Client::default(), GFP_KERNEL)?;
    tables.1.resize(seats, share::Seat::default(), GFP_KERNEL)?;
    Ok(tables)
}

impl Arena {
    /// An empty one for the device of `pd`. May sleep.
    pub(super) fn new(pd: &Arc<ProtectionDomain>, memory: &Arc<Memory>) -> Result<Arc<Self>> {
        let (clients, seats) = tables(0, 0)?;
        let inner = Inner {
            shares: Shares::new(PAGES, clients, seats),
            queues: KVec::new(),
            free: [const { KVVec::new() }; ZONES],
        };
        Arc::pin_init(
            pin_init!(Self {
                pd: pd.clone(),
                memory: memory.clone(),
                pressed: Atomic::new(false),
                inner <- new_irq_lock!(inner, "hcablk_arena"),
            }),
            GFP_KERNEL,
        )
    }

    /// Whether it is for the device of `pd`.
    pub(super) fn is_for(&self, pd: &ProtectionDomain) -> bool {
        pd.same_device(self.pd.id())
    }

    /// Makes room in the tables. May sleep.
    fn enlarge(&self) -> Result {
        let (clients, seats) = self.inner.lock().shares.room();
        let (clients, seats) = (clients + PLACES, seats + PLACES);
        let new = tables(clients, seats)?;
        let mut queues = KVec::with_capacity(seats, GFP_KERNEL)?;
        let mut inner = self.inner.lock();
        if inner.shares.room() >= (clients, seats) {
            // Somebody else did.
            drop(inner);
            return Ok(());
        }
        for queue in inner.queues.iter_mut() {
            push_into_room(&mut queues, queue.take(), "a seat has no place");
        }
        while queues.len() < seats && queues.push_within_capacity(None).is_ok() {}
        let old_queues = mem::replace(&mut inner.queues, queues);
        let old = inner.shares.enlarge(new.0, new.1);
        drop(inner);
        drop((old, old_queues));
        Ok(())
    }

    /// A new client that may borrow `most` pages: its place, and its first seat. May sleep.
    pub(super) fn join(&self, most: u32) -> Result<(usize, usize)> {
        loop {
            let joined = self.inner.lock().shares.join(most);
            match joined {
                Some(places) => return Ok(places),
                None => self.enlarge()?,
            }
        }
    }

    /// Another seat of a client. May sleep.
    pub(super) fn sit(&self, client: usize) -> Result<usize> {
        loop {
            let seat = self.inner.lock().shares.sit(client);
            match seat {
                Some(seat) => return Ok(seat),
                None => self.enlarge()?,
            }
        }
    }

    /// A seat that has given back everything is nobody's any more.
    pub(super) fn leave(&self, seat: usize) {
        let mut inner = self.inner.lock();
        inner.shares.leave(seat);
        self.tell(&mut inner);
    }

    pub(super) fn attach(&self, seat: usize, queue: &Arc<Queue>) {
        if let Some(place) = self.inner.lock().queues.get_mut(seat) {
            *place = Some(queue.clone());
        }
    }

    pub(super) fn detach(&self, seat: usize) {
        let mut inner = self.inner.lock();
        let queue = inner.queues.get_mut(seat).and_then(Option::take);
        inner.shares.leave_off(seat);
        self.tell(&mut inner);
        drop(inner);
        drop(queue);
    }

    #[inline]
    pub(super) fn is_pressed(&self) -> bool {
        self.pressed.load(Relaxed)
    }

    /// After every change: wakes who can go on, and, if somebody begins to wait, all who may
    /// have what they do not use.
    fn tell(&self, inner: &mut Inner) {
        let now = now_ns() / NSEC_PER_MSEC;
        while let Some(seat) = inner.shares.to_tell(now) {
            if let Some(Some(queue)) = inner.queues.get(seat) {
                queue.wake();
            }
        }
        let pressed = inner.shares.is_pressed();
        if pressed == self.pressed.load(Relaxed) {
            return;
        }
        self.pressed.store(pressed, Relaxed);
        if pressed {
            for (seat, queue) in inner.queues.iter().enumerate() {
                match queue {
                    Some(queue) if inner.shares.has(seat) => queue.wake(),
                    _ => {}
                }
            }
        }
    }

    pub(super) fn borrow(
        &self,
        seat: usize,
        zone: usize,
        count: usize,
        into: &mut KVec<Arc<DmaBuffer>>,
    ) -> bool {
        let Ok(number) = u32::try_from(count) else {
            return false;
        };
        let mut inner = self.inner.lock();
        if !inner.shares.borrow(seat, zone, number) {
            return false;
        }
        if let Some(free) = inner.free.get_mut(zone) {
            for _ in 0..count {
                if let Some(buffer) = free.pop() {
                    // There is room: see `Pool`.
                    push_into_room(into, buffer, "a borrowed buffer has no place");
                }
            }
        }
        self.tell(&mut inner);
        true
    }

    pub(super) fn wait(&self, seat: usize, wants: [u32; ZONES]) -> bool {
        let mut inner = self.inner.lock();
        let waits = inner.shares.wait(seat, wants);
        self.tell(&mut inner);
        waits
    }

    pub(super) fn leave_off(&self, seat: usize) {
        let mut inner = self.inner.lock();
        inner.shares.leave_off(seat);
        self.tell(&mut inner);
    }

    pub(super) fn give_back(&self, seat: usize, zone: usize, buffers: &mut KVec<Arc<DmaBuffer>>) {
        let count = buffers.len() as u32;
        let mut inner = self.inner.lock();
        if let Some(free) = inner.free.get_mut(zone) {
            while let Some(buffer) = buffers.pop() {
                // There is room for all that there are.
                push_into_room(free, buffer, "a shared buffer has no place");
            }
        }
        inner.shares.give_back(seat, zone, count);
        let held = inner.shares.holds(zone);
        self.tell(&mut inner);
        drop(inner);
        if held.total > held.target {
            self.memory.trim_later();
        }
    }

    /// As [`Self::give_back`], but nobody gets them any more: a peer may still write there.
    pub(super) fn lose(&self, seat: usize, zone: usize, buffers: &mut KVec<Arc<DmaBuffer>>) {
        let count = buffers.len() as u32;
        while let Some(buffer) = buffers.pop() {
            mem::forget(buffer);
        }
        let mut inner = self.inner.lock();
        inner.shares.give_back(seat, zone, count);
        inner.shares.remove(zone, count);
        self.tell(&mut inner);
    }

    /// Sets how many there shall be from now on, and destroys what is too much and free.
    /// `true`: there was some. May sleep; `Memory::state` is locked.
    pub(super) fn aim(&self, targets: [u32; ZONES]) -> bool {
        {
            let mut inner = self.inner.lock();
            inner.shares.aim(targets);
            self.tell(&mut inner);
        }
        let mut any = false;
        for zone in 0..ZONES {
            any |= self.trim(zone);
        }
        any
    }

    fn trim(&self, zone: usize) -> bool {
        let mut any = false;
        loop {
            // A few at a time, since interrupts are off.
            let mut some: [Option<Arc<DmaBuffer>>; 64] = [const { None }; 64];
            let mut inner = self.inner.lock();
            let held = inner.shares.holds(zone);
            let surplus = held.total.saturating_sub(held.target);
            let free = held.total - held.lent;
            let count = surplus.min(free).min(some.len() as u32);
            if count == 0 {
                self.tell(&mut inner);
                return any;
            }
            inner.shares.remove(zone, count);
            if let Some(list) = inner.free.get_mut(zone) {
                for place in some.iter_mut().take(count as usize) {
                    *place = list.pop();
                }
            }
            drop(inner);
            any = true;
        }
    }

    /// Makes what there shall be, as far as `room` bytes allow, and says how many bytes it
    /// took. May sleep; `Memory::state` is locked.
    pub(super) fn grow(&self, room: u64) -> u64 {
        let mut taken = 0;
        // What every request can do with first.
        for zone in [
            super::layout::MEDIUM,
            super::layout::SMALL,
            super::layout::LARGE,
        ] {
            match self.grow_zone(zone, room - taken) {
                Ok(bytes) => taken += bytes,
                Err(_) => break,
            }
        }
        taken
    }

    fn grow_zone(&self, zone: usize, room: u64) -> Result<u64> {
        let held = self.inner.lock().shares.holds(zone);
        let length = length_of(zone) as u64;
        let missing = u64::from(held.target.saturating_sub(held.total)).min(room / length) as usize;
        let order = ORDERS.get(zone).copied().ok_or(EINVAL)?;
        if missing == 0 {
            return Ok(0);
        }
        let mut all = KVVec::with_capacity(held.target as usize, GFP_KERNEL)?;
        let mut made = 0u32;
        while all.len() < missing {
            let Ok(buffer) = DmaBuffer::new_if_plenty(&self.pd, order, Direction::Bidirectional)
            else {
                pr_warn_once!("memory is short: fewer buffers are shared than memory_mib allows\n");
                break;
            };
            all.push(Arc::new(buffer, GFP_KERNEL)?, GFP_KERNEL)?;
            made += 1;
        }
        let mut inner = self.inner.lock();
        if let Some(free) = inner.free.get_mut(zone) {
            while let Some(buffer) = free.pop() {
                // There is room: nothing was made beyond the target.
                push_into_room(&mut all, buffer, "a shared buffer has no place");
            }
            mem::swap(free, &mut all);
        }
        inner.shares.add(zone, made);
        self.tell(&mut inner);
        drop(inner);
        Ok(u64::from(made) * length)
    }

    /// Bytes of all buffers.
    pub(super) fn bytes(&self) -> u64 {
        self.inner.lock().shares.pages() * length_of(super::layout::SMALL) as u64
    }

    pub(super) fn holds(&self, zone: usize) -> Holds {
        self.inner.lock().shares.holds(zone)
    }

    pub(super) fn standing(&self, client: usize) -> Standing {
        self.inner.lock().shares.standing(client)
    }

    pub(super) fn waiting(&self) -> u32 {
        self.inner.lock().shares.waiting()
    }
}
