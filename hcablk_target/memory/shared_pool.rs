// SPDX-License-Identifier: GPL-2.0

//! The shared buffers of one RDMA device, mapped for that device.
//!
//! ```text
//!          grow()            borrow()                      give_back()
//!  (none) ────────► Free ──────────────► a queue's [Pool] ────────────► Free ──trim()──► (none)
//! ```
//!
//! Buffers are allocated when sessions begin and when the limit is raised, in process context, and
//! destroyed when the limit is lowered or sessions end. A user of a buffer has a reference to it;
//! the account ([`FairShare`]) counts the buffers of each client, and lends none twice.
//!
//! Buffers are mapped with a protection domain of the pool's own, on the connection of the first
//! session on the device. This domain only keeps the device: a user of a buffer names the buffer
//! with the key of the user's own domain. The shared pool is dropped with the last session of the
//! device.
//!
//! # Sessions whose drive hangs
//!
//! Each session is a *user* of the device until it is [severed](SharedPool::leave_device) or ends.
//! The end of the last use unmaps all buffers, lent or not, and destroys the domain: when a device
//! is removed, all its sessions have ended or are severed, and nothing stays mapped. Memory that a
//! drive uses stays until the drive has finished. A severed pool lends nothing: sessions that begin
//! then use a new pool.
//!
//! # Locks and contexts
//!
//! One irq lock protects the account and the lists; it is taken inside `Queue::work`, and no other
//! lock is taken inside. Queues are woken under it, with [`Queue::wake`], while they are attached:
//! so a waker never drops the last reference to a queue. The numbers of buffers change only under
//! `Memory::state`.

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
        ClassCounts,
        FairShare,
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
/// The number of places added to the tables at a time.
const PLACES: usize = 32;

type Tables = (KVec<fair_share::ClientShare>, KVec<fair_share::Borrower>);

struct Inner {
    shares: FairShare<KVec<fair_share::ClientShare>, KVec<fair_share::Borrower>>,
    /// The queues to wake, by index of the borrower.
    queues: KVec<Option<Arc<Queue>>>,
    /// The free buffers; each list has room for all buffers.
    free: [KVVec<Arc<DmaBuffer>>; SIZE_CLASSES],
}

/// The buffers that are mapped for the device, and the number of its users.
struct OnDevice {
    /// All buffers, lent or not, each at its [`DmaBuffer::place`], including leaked ones.
    all: KVVec<Arc<DmaBuffer>>,
    /// The number of sessions that use the device. Buffers that are leaked count as sessions.
    users: usize,
}

impl OnDevice {
    /// Adds a buffer. May sleep.
    fn add(&mut self, buffer: &Arc<DmaBuffer>) -> Result {
        buffer.set_place(self.all.len());
        Ok(self.all.push(buffer.clone(), GFP_KERNEL)?)
    }

    /// Removes a buffer from the list.
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
    /// The memory of the port, which has a reference to the pool while the pool has clients or
    /// buffers.
    memory: Arc<Memory>,
    /// Whether unused buffers must be returned: a copy, which is read without the lock.
    pressed: Atomic<bool>,
    #[pin]
    inner: IrqLock<Inner>,
    /// Taken inside `Memory::state`, or alone. The end of the last use takes the protection
    /// domain's lock inside, and destroys the connection identifier.
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
    /// Creates a shared pool without buffers for the device of `pd`. May sleep.
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

    /// Returns whether the pool is for the device of `pd`.
    pub(super) fn is_for(&self, pd: &ProtectionDomain) -> bool {
        self.pd.is_on_same_device(pd)
    }

    /// Returns whether the pool has left its device, and makes no buffers any more.
    pub(super) fn is_severed(&self) -> bool {
        self.pd.is_severed()
    }

    /// Counts a session as a user of the device until it [leaves](Self::leave_device). May sleep.
    pub(super) fn use_device(&self) {
        self.on_device.lock().users += 1;
    }

    /// Stops counting a session, which has no queue pair left, as a user of the device. After the
    /// last one all buffers are unmapped, and their memory stays. The caller holds `Memory::state`,
    /// so that no other session becomes a user. (Leaked buffers can become one, but only while
    /// their session is a user itself.) Sleeps.
    pub(super) fn leave_device(&self) {
        let mut on_device = self.on_device.lock();
        on_device.users -= 1;
        if on_device.users != 0 {
            return;
        }
        DmaBuffer::sever_all(|| on_device.all.iter().map(|buffer| &**buffer));
        if self.pd.sever().is_err() {
            broken!("a shared buffer is still mapped for a device that no session uses");
        }
    }

    /// Enlarges the tables. May sleep.
    fn enlarge(&self) -> Result {
        let (clients, borrowers) = self.inner.lock().shares.room();
        let (clients, borrowers) = (clients + PLACES, borrowers + PLACES);
        let new = tables(clients, borrowers)?;
        let mut queues = KVec::with_capacity(borrowers, GFP_KERNEL)?;
        let mut inner = self.inner.lock();
        if inner.shares.room() >= (clients, borrowers) {
            // Another caller has enlarged them meanwhile.
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
    /// borrower. Fails with `ENOMEM` if the tables cannot grow. May sleep.
    pub(super) fn add_client(&self, most: u32) -> Result<(usize, usize)> {
        loop {
            let added = self.inner.lock().shares.add_client(most);
            match added {
                Some(places) => return Ok(places),
                None => self.enlarge()?,
            }
        }
    }

    /// Adds another borrower of a client. Fails with `ENOMEM` if the tables cannot grow. May sleep.
    pub(super) fn add_borrower(&self, client: usize) -> Result<usize> {
        loop {
            let borrower = self.inner.lock().shares.add_borrower(client);
            match borrower {
                Some(borrower) => return Ok(borrower),
                None => self.enlarge()?,
            }
        }
    }

    /// Removes a borrower that has returned all its buffers.
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

    /// Wakes the queues that can continue, and, if a queue begins to wait, all that may have unused
    /// buffers. Called after every change.
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
                    Some(queue) if inner.shares.has_borrowed(borrower) => queue.wake(),
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
                    // `into` has room: see `Pool`.
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
                // The list has room for all buffers.
                push_into_room(free, buffer, "a shared buffer has no place");
            }
        }
        inner.shares.give_back(borrower, size_class, count);
        let held = inner.shares.class_counts(size_class);
        self.wake_waiters(&mut inner);
        drop(inner);
        if held.total > held.target {
            self.memory.trim_later();
        }
    }

    /// Removes buffers from the account, as [`Self::give_back`] does, and leaks them: a peer may
    /// still write to them. May sleep.
    pub(super) fn lose(
        &self,
        borrower: usize,
        size_class: usize,
        buffers: &mut KVec<Arc<DmaBuffer>>,
    ) {
        let count = buffers.len() as u32;
        if count != 0 {
            // A user that never leaves, so that the buffers stay mapped: unmapped bounce buffers
            // would be given to others while the peer writes to them.
            self.use_device();
        }
        while let Some(buffer) = buffers.pop() {
            mem::forget(buffer);
        }
        let mut inner = self.inner.lock();
        inner.shares.give_back(borrower, size_class, count);
        inner.shares.remove(size_class, count);
        self.wake_waiters(&mut inner);
    }

    /// Sets the target numbers of buffers, and destroys free ones beyond these. Returns whether any
    /// were destroyed. May sleep; `Memory::state` is locked.
    pub(super) fn set_targets(&self, targets: [u32; SIZE_CLASSES]) -> bool {
        {
            let mut inner = self.inner.lock();
            inner.shares.set_targets(targets);
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
            let held = inner.shares.class_counts(size_class);
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

    /// Allocates buffers up to the targets, within `room` bytes, and returns the bytes allocated.
    /// May sleep; `Memory::state` is locked.
    pub(super) fn grow(&self, room: u64) -> u64 {
        let mut taken = 0;
        // First the size class that every request can use.
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
        let held = self.inner.lock().shares.class_counts(size_class);
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
                // The list has room: no more buffers were allocated than the target.
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

    pub(super) fn class_counts(&self, size_class: usize) -> ClassCounts {
        self.inner.lock().shares.class_counts(size_class)
    }

    pub(super) fn standing(&self, client: usize) -> Standing {
        self.inner.lock().shares.standing(client)
    }

    pub(super) fn waiting(&self) -> u32 {
        self.inner.lock().shares.waiting()
    }
}
