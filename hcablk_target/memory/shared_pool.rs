// SPDX-License-Identifier: GPL-2.0

//! The shared buffers of one RDMA device, mapped for it.
//!
//! ```text
//!          grow()            borrow()                      give_back()
//!  (none) ────────► Free ──────────────► a queue's [Pool] ────────────► Free ──trim()──► (none)
//! ```
//!
//! They are made when sessions begin and when the limit is raised, in process context, and
//! destroyed when that is lowered or sessions end. Whoever uses one has a reference to it;
//! the account ([`FairShare`]) says how many everyone has, and gives none out twice.
//!
//! They are mapped by a protection domain of the pool's own, on the connection of the session that
//! was the first on the device. That only keeps the device: what uses a buffer names it by its own
//! domain's key. The shared pool goes with the last session of the device.
//!
//! # Sessions that a drive keeps
//!
//! Each session is a *user* of the device until it is [severed](SharedPool::leave_device), or ends.
//! When the last user goes, so do the mappings of all buffers, lent or not, and the domain: when a
//! device is removed all its sessions are severed at least, and nothing stays mapped. The memory of
//! what a drive has stays until it gives that back. Nothing is lent by a pool that was severed:
//! sessions that begin then are on another one.
//!
//! # Locks and contexts
//!
//! One irq lock, which guards the account and the lists; it is taken inside
//! `Queue::work`, and nothing is locked inside. A queue is woken with it held: so what is woken
//! is attached, and the reference to it never the last. The numbers of buffers change under
//! `Memory::state` only. A queue is woken by [`Queue::wake`].

use super::{
    layout::{
        length_of,
        ORDERS,
        PAGES,
        SIZE_CLASSES, //
    },
    Memory, //
};
use crate::io::Queue;
use core::mem;
use hcablk_core::sync::atomic::{
    Atomic,
    Relaxed, //
};
use hcablk_core::{
    broken,
    logic::fair_share::{
        self,
        FairShare,
        Holds,
        Standing, //
    },
    rdma::{
        buffer::DmaBuffer,
        device::Direction,
        pd::ProtectionDomain, //
    },
    report::broken::push_into_room,
    sync::{
        new_irq_lock,
        IrqLock, //
    },
    system::now_ns, //
};
use kernel::{
    new_mutex,
    pr_warn_once,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// Nanoseconds of a millisecond.
const NSEC_PER_MSEC: u64 = 1_000_000;
/// Places that tables get at a time.
const PLACES: usize = 32;

type Tables = (KVec<fair_share::ClientShare>, KVec<fair_share::Borrower>);

struct Inner {
    shares: FairShare<KVec<fair_share::ClientShare>, KVec<fair_share::Borrower>>,
    /// Who is to be woken, by index of the borrower.
    queues: KVec<Option<Arc<Queue>>>,
    /// What nobody has; room for all that there are.
    free: [KVVec<Arc<DmaBuffer>>; SIZE_CLASSES],
}

/// Who uses the device, and what is mapped for it.
struct OnDevice {
    /// All buffers that there are, lent or not, each at its [`DmaBuffer::place`]; those, too, that
    /// are leaked.
    all: KVVec<Arc<DmaBuffer>>,
    /// Sessions that use the device.
    users: usize,
}

impl OnDevice {
    /// Adds a buffer. May sleep.
    fn add(&mut self, buffer: &Arc<DmaBuffer>) -> Result {
        buffer.set_place(self.all.len());
        Ok(self.all.push(buffer.clone(), GFP_KERNEL)?)
    }

    /// Takes a buffer off the list.
    fn forget(&mut self, buffer: &DmaBuffer) {
        let Some(last) = self.all.pop() else { return };
        if core::ptr::eq(&*last, buffer) {
            return;
        }
        if let Some(place) = self.all.get_mut(buffer.place()) {
            last.set_place(buffer.place());
            *place = last;
        }
    }
}

/// The shared buffers of one RDMA device and their account.
#[pin_data]
pub(super) struct SharedPool {
    pd: Arc<ProtectionDomain>,
    /// Which has a reference to this as long as it has clients or buffers.
    memory: Arc<Memory>,
    /// What is not used shall be given back: a copy, to be read without the lock.
    pressed: Atomic<bool>,
    #[pin]
    inner: IrqLock<Inner>,
    /// Taken inside `Memory::state`; nothing is locked inside.
    #[pin]
    on_device: Mutex<OnDevice>,
}

/// Allocates empty tables. May sleep.
fn tables(clients: usize, borrowers: usize) -> Result<Tables> {
    let mut tables = (KVec::new(), KVec::new());
    tables
        .0
        .resize(clients, fair_share::ClientShare::default(), GFP_KERNEL)?;
    tables
        .1
        .resize(borrowers, fair_share::Borrower::default(), GFP_KERNEL)?;
    Ok(tables)
}

impl SharedPool {
    /// Makes a shared pool without buffers for the device of `pd`. May sleep.
    pub(super) fn new(pd: &Arc<ProtectionDomain>, memory: &Arc<Memory>) -> Result<Arc<Self>> {
        let (clients, borrowers) = tables(0, 0)?;
        let inner = Inner {
            shares: FairShare::new(PAGES, clients, borrowers),
            queues: KVec::new(),
            free: [const { KVVec::new() }; SIZE_CLASSES],
        };
        let pd = ProtectionDomain::new(&pd.id().ok_or(ENODEV)?)?;
        Arc::pin_init(
            pin_init!(Self {
                pd,
                memory: memory.clone(),
                pressed: Atomic::new(false),
                inner <- new_irq_lock!(inner, "hcablk_shared_pool"),
                on_device <- new_mutex!(OnDevice {
                    all: KVVec::new(),
                    users: 0,
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns whether it is for the device of `pd`.
    pub(super) fn is_for(&self, pd: &ProtectionDomain) -> bool {
        self.pd.is_beside(pd)
    }

    /// Counts a session that uses the device, until it [leaves](Self::leave_device). May sleep.
    pub(super) fn use_device(&self) {
        self.on_device.lock().users += 1;
    }

    /// Ends that a session uses the device: no queue pair of it is left. The last one's end takes
    /// all buffers from the device; their memory stays. Nobody uses it anew: `Memory::state` is
    /// locked. Sleeps.
    pub(super) fn leave_device(&self) {
        let mut on_device = self.on_device.lock();
        on_device.users -= 1;
        if on_device.users != 0 {
            return;
        }
        DmaBuffer::sever_all(|| on_device.all.iter().map(|buffer| &**buffer));
        if self.pd.sever().is_err() {
            broken!("a shared buffer was not taken from its device");
        }
    }

    /// Makes room in the tables. May sleep.
    fn enlarge(&self) -> Result {
        let (clients, borrowers) = self.inner.lock().shares.room();
        let (clients, borrowers) = (clients + PLACES, borrowers + PLACES);
        let new = tables(clients, borrowers)?;
        let mut queues = KVec::with_capacity(borrowers, GFP_KERNEL)?;
        let mut inner = self.inner.lock();
        if inner.shares.room() >= (clients, borrowers) {
            // Somebody else did.
            drop(inner);
            return Ok(());
        }
        for queue in inner.queues.iter_mut() {
            push_into_room(&mut queues, queue.take(), "a borrower has no place");
        }
        while queues.len() < borrowers && queues.push_within_capacity(None).is_ok() {}
        let old_queues = mem::replace(&mut inner.queues, queues);
        let old = inner.shares.enlarge(new.0, new.1);
        drop(inner);
        drop((old, old_queues));
        Ok(())
    }

    /// Adds a client that may borrow `most` pages. Returns its index and that of its first
    /// borrower; `ENOMEM` if the tables cannot grow. May sleep.
    pub(super) fn add_client(&self, most: u32) -> Result<(usize, usize)> {
        loop {
            let added = self.inner.lock().shares.add_client(most);
            match added {
                Some(places) => return Ok(places),
                None => self.enlarge()?,
            }
        }
    }

    /// Adds another borrower of a client; `ENOMEM` if the tables cannot grow. May sleep.
    pub(super) fn add_borrower(&self, client: usize) -> Result<usize> {
        loop {
            let borrower = self.inner.lock().shares.add_borrower(client);
            match borrower {
                Some(borrower) => return Ok(borrower),
                None => self.enlarge()?,
            }
        }
    }

    /// Removes a borrower that has given back everything.
    pub(super) fn remove_borrower(&self, borrower: usize) {
        let mut inner = self.inner.lock();
        inner.shares.remove_borrower(borrower);
        self.wake_waiters(&mut inner);
    }

    pub(super) fn attach(&self, borrower: usize, queue: Arc<Queue>) {
        if let Some(place) = self.inner.lock().queues.get_mut(borrower) {
            *place = Some(queue);
        }
    }

    pub(super) fn detach(&self, borrower: usize) {
        let mut inner = self.inner.lock();
        let queue = inner.queues.get_mut(borrower).and_then(Option::take);
        inner.shares.cancel_wait(borrower);
        self.wake_waiters(&mut inner);
        drop(inner);
        drop(queue);
    }

    #[inline]
    pub(super) fn is_pressed(&self) -> bool {
        self.pressed.load(Relaxed)
    }

    /// Wakes the queues that can continue, and, if a queue begins to wait, all that may have
    /// buffers that they do not use. Called after every change.
    fn wake_waiters(&self, inner: &mut Inner) {
        let now = now_ns() / NSEC_PER_MSEC;
        while let Some(borrower) = inner.shares.next_to_wake(now) {
            if let Some(Some(queue)) = inner.queues.get(borrower) {
                queue.wake();
            }
        }
        let pressed = inner.shares.is_pressed();
        if pressed == self.pressed.load(Relaxed) {
            return;
        }
        self.pressed.store(pressed, Relaxed);
        if pressed {
            for (borrower, queue) in inner.queues.iter().enumerate() {
                match queue {
                    Some(queue) if inner.shares.has(borrower) => queue.wake(),
                    _ => {}
                }
            }
        }
    }

    pub(super) fn borrow(
        &self,
        borrower: usize,
        size_class: usize,
        count: usize,
        into: &mut KVec<Arc<DmaBuffer>>,
    ) -> bool {
        let Ok(number) = u32::try_from(count) else {
            return false;
        };
        let mut inner = self.inner.lock();
        if !inner.shares.borrow(borrower, size_class, number) {
            return false;
        }
        if let Some(free) = inner.free.get_mut(size_class) {
            for _ in 0..count {
                if let Some(buffer) = free.pop() {
                    // There is room: see `Pool`.
                    push_into_room(into, buffer, "a borrowed buffer has no place");
                }
            }
        }
        self.wake_waiters(&mut inner);
        true
    }

    pub(super) fn wait(&self, borrower: usize, wants: [u32; SIZE_CLASSES]) -> bool {
        let mut inner = self.inner.lock();
        let waits = inner.shares.wait(borrower, wants);
        self.wake_waiters(&mut inner);
        waits
    }

    pub(super) fn cancel_wait(&self, borrower: usize) {
        let mut inner = self.inner.lock();
        inner.shares.cancel_wait(borrower);
        self.wake_waiters(&mut inner);
    }

    pub(super) fn give_back(
        &self,
        borrower: usize,
        size_class: usize,
        buffers: &mut KVec<Arc<DmaBuffer>>,
    ) {
        let count = buffers.len() as u32;
        let mut inner = self.inner.lock();
        if let Some(free) = inner.free.get_mut(size_class) {
            while let Some(buffer) = buffers.pop() {
                // There is room for all that there are.
                push_into_room(free, buffer, "a shared buffer has no place");
            }
        }
        inner.shares.give_back(borrower, size_class, count);
        let held = inner.shares.holds(size_class);
        self.wake_waiters(&mut inner);
        drop(inner);
        if held.total > held.target {
            self.memory.trim_later();
        }
    }

    /// Takes buffers out of the account, as [`Self::give_back`], and leaks them: a peer may still
    /// write there.
    pub(super) fn lose(
        &self,
        borrower: usize,
        size_class: usize,
        buffers: &mut KVec<Arc<DmaBuffer>>,
    ) {
        let count = buffers.len() as u32;
        // They stay listed: the session is a user of the device for ever, so that nothing unmaps them.
        while let Some(buffer) = buffers.pop() {
            mem::forget(buffer);
        }
        let mut inner = self.inner.lock();
        inner.shares.give_back(borrower, size_class, count);
        inner.shares.remove(size_class, count);
        self.wake_waiters(&mut inner);
    }

    /// Sets how many there shall be from now on, and destroys what is too much and free.
    /// `true`: there was some. May sleep; `Memory::state` is locked.
    pub(super) fn aim(&self, targets: [u32; SIZE_CLASSES]) -> bool {
        {
            let mut inner = self.inner.lock();
            inner.shares.aim(targets);
            self.wake_waiters(&mut inner);
        }
        let mut any = false;
        for size_class in 0..SIZE_CLASSES {
            any |= self.trim(size_class);
        }
        any
    }

    fn trim(&self, size_class: usize) -> bool {
        let mut any = false;
        loop {
            // A few at a time, since interrupts are off.
            let mut some: [Option<Arc<DmaBuffer>>; 64] = [const { None }; 64];
            let mut inner = self.inner.lock();
            let held = inner.shares.holds(size_class);
            let surplus = held.total.saturating_sub(held.target);
            let free = held.total - held.borrowed;
            let count = surplus.min(free).min(some.len() as u32);
            if count == 0 {
                self.wake_waiters(&mut inner);
                return any;
            }
            inner.shares.remove(size_class, count);
            for place in some.iter_mut().take(count as usize) {
                *place = inner.free.get_mut(size_class).and_then(KVVec::pop);
            }
            drop(inner);
            let mut on_device = self.on_device.lock();
            some.iter()
                .flatten()
                .for_each(|buffer| on_device.forget(buffer));
            any = true;
        }
    }

    /// Makes what there shall be, as far as `room` bytes allow, and says how many bytes it
    /// took. May sleep; `Memory::state` is locked.
    pub(super) fn grow(&self, room: u64) -> u64 {
        let mut taken = 0;
        // What every request can do with first.
        for size_class in [
            super::layout::MEDIUM,
            super::layout::SMALL,
            super::layout::LARGE,
        ] {
            match self.grow_class(size_class, room - taken) {
                Ok(bytes) => taken += bytes,
                Err(_) => break,
            }
        }
        taken
    }

    fn grow_class(&self, size_class: usize, room: u64) -> Result<u64> {
        let held = self.inner.lock().shares.holds(size_class);
        let length = length_of(size_class) as u64;
        let missing = u64::from(held.target.saturating_sub(held.total)).min(room / length) as usize;
        let order = ORDERS.get(size_class).copied().ok_or(EINVAL)?;
        if missing == 0 {
            return Ok(0);
        }
        let mut all = KVVec::with_capacity(held.target as usize, GFP_KERNEL)?;
        let mut made = 0u32;
        while all.len() < missing {
            let made_one = DmaBuffer::new_if_plenty(&self.pd, order, Direction::Bidirectional)
                .and_then(|buffer| {
                    let buffer = Arc::new(buffer, GFP_KERNEL)?;
                    self.on_device.lock().add(&buffer)?;
                    Ok(buffer)
                });
            let Ok(buffer) = made_one else {
                pr_warn_once!("memory is short: fewer buffers are shared than memory_mib allows\n");
                break;
            };
            // There is room: it was made for the target.
            push_into_room(&mut all, buffer, "a shared buffer has no place");
            made += 1;
        }
        let mut inner = self.inner.lock();
        if let Some(free) = inner.free.get_mut(size_class) {
            while let Some(buffer) = free.pop() {
                // There is room: nothing was made beyond the target.
                push_into_room(&mut all, buffer, "a shared buffer has no place");
            }
            mem::swap(free, &mut all);
        }
        inner.shares.add(size_class, made);
        self.wake_waiters(&mut inner);
        drop(inner);
        Ok(u64::from(made) * length)
    }

    /// Returns the bytes of all buffers.
    pub(super) fn bytes(&self) -> u64 {
        self.inner.lock().shares.pages() * length_of(super::layout::SMALL) as u64
    }

    pub(super) fn holds(&self, size_class: usize) -> Holds {
        self.inner.lock().shares.holds(size_class)
    }

    pub(super) fn standing(&self, client: usize) -> Standing {
        self.inner.lock().shares.standing(client)
    }

    pub(super) fn waiting(&self) -> u32 {
        self.inner.lock().shares.waiting()
    }
}
