// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides who may borrow how many shared buffers of which size class. Uses nothing
//! but `core`: its tests run on the host.
//!
//! A *size class* has the buffers of one length. *Borrowers* (one for each queue pair) of *clients*
//! (one for each session) borrow them. The buffers that a queue pair keeps for itself are its
//! reservation, which is not in this account, and suffices for any of its requests. So no request
//! depends on a shared buffer to make progress, and the account only has to be fair and exact.
//!
//! ```text
//!              wait()         next_to_wake()     borrow(), cancel_wait() or too late
//!  Does not ───────────► Waits ────────────► Woken ─────────────────────────► Does not
//!  wait                    ▲                   │                               wait
//!                          └────── wait() ─────┘
//! ```
//!
//! A borrower that was woken reacts: it borrows, waits again, or cancels its wait. A thread that
//! sleeps elsewhere, on a drive for example, cannot. A borrower that has not reacted
//! [`REACTION_TIMEOUT_MS`] after it was woken waits no longer, so that it delays no other. Its
//! queue still knows that it was woken: it asks again when it can, and waits again if it must. No
//! timer is needed for that: [`FairShare::next_to_wake`] checks it, and is called whenever a
//! waiting borrower tries again. A borrower tries again each time one of its requests ends; a
//! borrower without requests has its whole reservation, and does not wait.
//!
//! # The rule
//!
//! While no borrower waits, each gets the free buffers that it asks for, up to the limit of its
//! client. A waiting borrower is *before* another that wants buffers of the same class if its
//! client has less; or, for borrowers of one client and clients that have the same, if the borrower
//! itself has less. A borrower gets no buffer of a class while a borrower that waits for the class
//! is before it. So returned buffers go to the borrower with the least, and under overload all
//! clients converge to the same share, regardless of their demands and their number of queue pairs
//! (max-min fairness): a client with more returns buffers as its requests end, and gets no new
//! ones.
//!
//! A borrower may wait in several classes at once, for the number of buffers that it would need of
//! each. It does not wait for more than a class has, nor for more than its client may have: such a
//! wait would hold up others for ever.
//!
//! A class that is larger than it should be (its memory is needed elsewhere) hands out nothing
//! until it has shrunk.

use core::ops::DerefMut;

/// The number of size classes.
pub const SIZE_CLASSES: usize = 3;

/// Milliseconds within which a borrower that was woken has to react.
pub const REACTION_TIMEOUT_MS: u64 = 250;

/// The shared buffers of one length.
#[derive(Clone, Copy, Debug, Default)]
struct SizeClass {
    /// Pages of a buffer.
    pages: u32,
    /// The number of buffers that the class should have.
    target: u32,
    /// The number of buffers that it has.
    total: u32,
    /// The free ones among these.
    free: u32,
}

/// Numbers of buffers of a size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts {
    /// All buffers.
    pub total: u32,
    /// The borrowed ones among these.
    pub borrowed: u32,
    /// The number of buffers that the class should have.
    pub target: u32,
}

/// A session: an entry of the table of clients.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientShare {
    /// Its queue pairs; 0: the entry is free.
    borrowers: u32,
    /// Pages that it has borrowed.
    borrowed: u32,
    /// Pages that it may borrow.
    limit: u32,
    /// How often one of its borrowers had to wait.
    waits: u64,
}

/// A client's part of the shared buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Pages that it may borrow.
    pub limit: u32,
    /// Pages that it has borrowed.
    pub borrowed: u32,
    /// How often one of its borrowers had to wait for others.
    pub waits: u64,
}

/// A queue pair: an entry of the table of borrowers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Borrower {
    /// `None`: the entry is free.
    client: Option<u32>,
    /// Pages that it has borrowed.
    borrowed: u32,
    /// For each class the number of buffers with which the wait ends: those of any one class
    /// suffice. All 0: the borrower does not wait.
    wants: [u32; SIZE_CLASSES],
    /// When it was woken to try again, in milliseconds of the caller's clock.
    woken: Option<u64>,
}

/// The account of the shared buffers of a device. `C` and `S` are its tables.
#[derive(Debug)]
pub struct FairShare<C, S> {
    classes: [SizeClass; SIZE_CLASSES],
    clients: C,
    borrowers: S,
    /// Borrowers that wait.
    waiting: u32,
}

impl Borrower {
    fn waits(&self) -> bool {
        self.wants.iter().any(|count| *count != 0)
    }

    /// Iterates over the size classes in which the borrower waits, each with the number of buffers.
    fn wishes(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let wants = self.wants.iter().copied().enumerate();
        wants.filter(|(_, count)| *count != 0)
    }
}

impl<C: DerefMut<Target = [ClientShare]>, S: DerefMut<Target = [Borrower]>> FairShare<C, S> {
    /// Makes an account without buffers and borrowers, with size classes whose buffers have
    /// `pages` pages each.
    pub fn new(pages: [u32; SIZE_CLASSES], clients: C, borrowers: S) -> Self {
        Self {
            classes: pages.map(|pages| SizeClass {
                pages,
                ..SizeClass::default()
            }),
            clients,
            borrowers,
            waiting: 0,
        }
    }

    /// Replaces the tables with larger ones, into which their entries are copied, and returns the
    /// former.
    pub fn enlarge(&mut self, mut clients: C, mut borrowers: S) -> (C, S) {
        for (to, from) in clients.iter_mut().zip(self.clients.iter()) {
            *to = *from;
        }
        for (to, from) in borrowers.iter_mut().zip(self.borrowers.iter()) {
            *to = *from;
        }
        (
            core::mem::replace(&mut self.clients, clients),
            core::mem::replace(&mut self.borrowers, borrowers),
        )
    }

    /// Returns the lengths of both tables.
    pub fn room(&self) -> (usize, usize) {
        (self.clients.len(), self.borrowers.len())
    }

    /// Adds a client whose borrowers together may borrow `limit` pages, and its first borrower.
    /// Returns the indices of both, or `None` if a table is full.
    pub fn add_client(&mut self, limit: u32) -> Option<(usize, usize)> {
        let client = self.clients.iter().position(|c| c.borrowers == 0)?;
        *self.clients.get_mut(client)? = ClientShare {
            limit,
            ..ClientShare::default()
        };
        let borrower = self.add_borrower(client)?;
        Some((client, borrower))
    }

    /// Adds another borrower of a client. Returns its index, or `None` if the table is full.
    pub fn add_borrower(&mut self, client: usize) -> Option<usize> {
        let borrower = self.borrowers.iter().position(|s| s.client.is_none())?;
        self.clients.get_mut(client)?.borrowers += 1;
        *self.borrowers.get_mut(borrower)? = Borrower {
            client: Some(client as u32),
            ..Borrower::default()
        };
        Some(borrower)
    }

    /// Removes a borrower, which has returned all its buffers, and its client with the last
    /// borrower.
    pub fn remove_borrower(&mut self, borrower: usize) {
        self.cancel_wait(borrower);
        let Some(place) = self.borrowers.get_mut(borrower) else {
            return;
        };
        if let Some(client) = core::mem::take(place).client {
            if let Some(client) = self.clients.get_mut(client as usize) {
                client.borrowers -= 1;
            }
        }
    }

    fn client_of(&self, borrower: &Borrower) -> Option<&ClientShare> {
        self.clients.get(borrower.client? as usize)
    }

    /// Returns the rank of a borrower; a lower one is served first.
    fn rank(&self, borrower: &Borrower) -> Option<(u32, u32)> {
        Some((self.client_of(borrower)?.borrowed, borrower.borrowed))
    }

    /// Returns whether the borrower may ever have `count` buffers of the class: the class has as
    /// many, and the client's limit allows them.
    fn may_have(&self, borrower: &Borrower, class: usize, count: u32) -> bool {
        let (Some(client), Some(class)) = (self.client_of(borrower), self.classes.get(class))
        else {
            return false;
        };
        let pages = count.saturating_mul(class.pages);
        count <= class.total.min(class.target)
            && client.borrowed.saturating_add(pages) <= client.limit
    }

    /// Returns the lowest rank of the waiting borrowers, without borrower `except`, for each class.
    fn first(&self, except: Option<usize>) -> [Option<(u32, u32)>; SIZE_CLASSES] {
        let mut first = [None; SIZE_CLASSES];
        for (index, borrower) in self.borrowers.iter().enumerate() {
            if !borrower.waits() || except == Some(index) {
                continue;
            }
            let Some(rank) = self.rank(borrower) else {
                continue;
            };
            for (class, count) in borrower.wishes() {
                if let (true, Some(first)) =
                    (self.may_have(borrower, class, count), first.get_mut(class))
                {
                    *first = Some(first.map_or(rank, |first: (u32, u32)| first.min(rank)));
                }
            }
        }
        first
    }

    /// Returns whether `count` buffers of `class` are free and `borrower` may have them, if no
    /// other borrower is before it.
    fn are_free_for(&self, borrower: &Borrower, class: usize, count: u32) -> bool {
        self.classes.get(class).is_some_and(|of| {
            of.total <= of.target && count <= of.free && self.may_have(borrower, class, count)
        })
    }

    fn can_borrow(&self, borrower: usize, class: usize, count: u32) -> bool {
        let Some(me) = self.borrowers.get(borrower) else {
            return false;
        };
        if !self.are_free_for(me, class, count) {
            return false;
        }
        if self.waiting == 0 {
            return true;
        }
        let first = self.first(Some(borrower));
        match (first.get(class), self.rank(me)) {
            (Some(Some(first)), Some(mine)) if me.waits() => mine <= *first,
            // Between equals, a waiting borrower is before a new one.
            (Some(Some(first)), Some(mine)) => mine < *first,
            (Some(None), Some(_)) => true,
            _ => false,
        }
    }

    /// Gives `count` buffers of `class` to `borrower`, which then waits no longer. Returns `false`
    /// if it cannot have them now.
    pub fn borrow(&mut self, borrower: usize, class: usize, count: u32) -> bool {
        if !self.can_borrow(borrower, class, count) {
            return false;
        }
        self.cancel_wait(borrower);
        let (Some(place), Some(of)) = (
            self.borrowers.get_mut(borrower),
            self.classes.get_mut(class),
        ) else {
            return false;
        };
        of.free -= count;
        let pages = count * of.pages;
        place.borrowed += pages;
        let client = place.client.map_or(usize::MAX, |client| client as usize);
        if let Some(client) = self.clients.get_mut(client) {
            client.borrowed += pages;
        }
        true
    }

    /// Lets `borrower` wait for the given number of buffers of one class or another; 0: not of that
    /// class. Returns `false` if no class will ever have enough for it.
    pub fn wait(&mut self, borrower: usize, mut wants: [u32; SIZE_CLASSES]) -> bool {
        let Some(place) = self.borrowers.get(borrower) else {
            return false;
        };
        for (class, count) in wants.iter_mut().enumerate() {
            if !self.may_have(place, class, *count) {
                *count = 0;
            }
        }
        if wants == [0; SIZE_CLASSES] {
            self.cancel_wait(borrower);
            return false;
        }
        let new = !place.waits();
        if let Some(place) = self.borrowers.get_mut(borrower) {
            place.wants = wants;
            place.woken = None;
            let client = place.client.map_or(usize::MAX, |client| client as usize);
            if new {
                self.waiting += 1;
                if let Some(client) = self.clients.get_mut(client) {
                    client.waits += 1;
                }
            }
        }
        true
    }

    /// Ends the wait of `borrower`, if it waits.
    pub fn cancel_wait(&mut self, borrower: usize) {
        if let Some(place) = self.borrowers.get_mut(borrower) {
            if place.waits() {
                self.waiting -= 1;
            }
            place.wants = [0; SIZE_CLASSES];
            place.woken = None;
        }
    }

    /// Takes back `count` buffers of `class` that `borrower` has borrowed.
    pub fn give_back(&mut self, borrower: usize, class: usize, count: u32) {
        let (Some(place), Some(of)) = (
            self.borrowers.get_mut(borrower),
            self.classes.get_mut(class),
        ) else {
            return;
        };
        of.free += count;
        let pages = count * of.pages;
        place.borrowed -= pages;
        let client = place.client.map_or(usize::MAX, |client| client as usize);
        if let Some(client) = self.clients.get_mut(client) {
            client.borrowed -= pages;
        }
    }

    /// Ends the wait of borrowers that were woken and have not reacted in time.
    fn expire_answers(&mut self, now: u64) {
        for borrower in 0..self.borrowers.len() {
            let woken = self
                .borrowers
                .get(borrower)
                .and_then(|borrower| borrower.woken);
            if woken.is_some_and(|woken| now.saturating_sub(woken) >= REACTION_TIMEOUT_MS) {
                self.cancel_wait(borrower);
            }
        }
    }

    /// Returns a waiting borrower that would get its buffers at `now` (milliseconds), and was not
    /// woken yet; marks it as woken. The caller repeats this until it returns `None`, after each
    /// return of a buffer, each start of a wait, and each end of a wait: then another borrower may
    /// be the first.
    pub fn next_to_wake(&mut self, now: u64) -> Option<usize> {
        if self.waiting == 0 {
            return None;
        }
        self.expire_answers(now);
        let first = self.first(None);
        let borrower = self.borrowers.iter().position(|borrower| {
            let is_first = |class| {
                matches!((first.get(class), self.rank(borrower)),
                    (Some(Some(first)), Some(rank)) if rank <= *first)
            };
            // A borrower is woken, too, if it cannot get its buffers any more: it must not wait for
            // them.
            let now = |(class, count)| {
                !self.may_have(borrower, class, count)
                    || self.are_free_for(borrower, class, count) && is_first(class)
            };
            borrower.woken.is_none() && borrower.wishes().any(now)
        })?;
        self.borrowers.get_mut(borrower)?.woken = Some(now);
        Some(borrower)
    }

    /// Returns whether queues must return unused buffers: a borrower waits, or a class is too
    /// large.
    pub fn is_pressed(&self) -> bool {
        self.waiting != 0 || self.classes.iter().any(|class| class.total > class.target)
    }

    /// Returns whether `borrower` has borrowed anything.
    pub fn has_borrowed(&self, borrower: usize) -> bool {
        self.borrowers
            .get(borrower)
            .is_some_and(|borrower| borrower.borrowed != 0)
    }

    /// Sets how many buffers each class shall have from now on.
    pub fn set_targets(&mut self, targets: [u32; SIZE_CLASSES]) {
        for (class, target) in self.classes.iter_mut().zip(targets) {
            class.target = target;
        }
    }

    /// Adds `count` buffers to `class`, which are free.
    pub fn add(&mut self, class: usize, count: u32) {
        if let Some(class) = self.classes.get_mut(class) {
            class.total += count;
            class.free += count;
        }
    }

    /// Removes `count` free buffers of `class`.
    pub fn remove(&mut self, class: usize, count: u32) {
        if let Some(class) = self.classes.get_mut(class) {
            class.total -= count;
            class.free -= count;
        }
    }

    /// Returns the numbers of buffers of a class.
    pub fn class_counts(&self, class: usize) -> ClassCounts {
        let class = self.classes.get(class).copied().unwrap_or_default();
        ClassCounts {
            total: class.total,
            borrowed: class.total - class.free,
            target: class.target,
        }
    }

    /// Returns the pages of all classes.
    pub fn pages(&self) -> u64 {
        let pages = |class: &SizeClass| u64::from(class.total) * u64::from(class.pages);
        self.classes.iter().map(pages).sum()
    }

    /// Returns a client's part of the shared buffers.
    pub fn standing(&self, client: usize) -> Standing {
        let client = self.clients.get(client).copied().unwrap_or_default();
        Standing {
            limit: client.limit,
            borrowed: client.borrowed,
            waits: client.waits,
        }
    }

    /// Returns how many borrowers wait.
    pub fn waiting(&self) -> u32 {
        self.waiting
    }
}

#[cfg(test)]
mod tests;
