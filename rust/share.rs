// SPDX-License-Identifier: GPL-2.0

//! Who may borrow how many buffers of which zone. Uses nothing but `core`: its
//! tests run on the host.
//!
//! Buffers are in *zones*, one for each length, and are lent to *seats* (one for each
//! queue pair) of *clients* (one for each session). What a seat has for itself and never gives
//! away is not in this account: that is its least share, and enough for any request that it
//! may get. So nobody depends on what is lent here to make progress, and the account only has
//! to be fair and exact.
//!
//! ```text
//!              wait()           to_tell()       borrow(), leave_off() or too late
//!  Does not ───────────► Waits ────────────► Told ──────────────────────────► Does not
//!  wait                    ▲                   │                               wait
//!                          └────── wait() ─────┘
//! ```
//!
//! Who was told answers: they borrow, wait again, or leave off. A thread that sleeps elsewhere,
//! on a drive for example, cannot. Who has not answered [`ANSWER_MS`] after they were told
//! waits no longer, so that they are in nobody's way. They still know that they were told: they
//! ask again when they can, and wait again if they must. No clock runs for that: it is looked at in
//! [`Shares::to_tell`], which who waits for something causes to be called whenever they try again.
//! They do each time one of their requests ends; and who has none under way has all of their
//! own, and does not wait.
//!
//! # The rule
//!
//! As long as nobody waits, whoever asks gets what is free, up to the most that their
//! client may have. A seat that waits is *before* another one that wants something of the
//! same zone if its client has less; or, for seats of one client and clients that have the
//! same, if the seat itself has less. Nobody gets anything of a zone while somebody waits
//! there who is before them. So what comes back goes to who has least, and under overload all
//! clients come to have the same, whatever they ask for and by how many queue pairs (max-min
//! fairness): who has more than that gives back, by requests that end, and gets nothing new.
//!
//! A seat may wait in several zones at once, for what would do in each. It does not wait for
//! more than a zone has, nor for what its client may not have: such a wait would hold up
//! others for ever.
//!
//! A zone that has more buffers than it shall have (its memory is needed for something
//! else) lends nothing until it has not.

use core::ops::DerefMut;

/// How many zones there are.
pub const ZONES: usize = 3;

/// Milliseconds after which nobody waits any more for an answer of who was told.
pub const ANSWER_MS: u64 = 250;

/// What there is of one length.
#[derive(Clone, Copy, Debug, Default)]
struct Zone {
    /// What a buffer weighs: pages.
    pages: u32,
    /// How many there shall be.
    target: u32,
    /// How many there are.
    total: u32,
    /// Of these, how many nobody has.
    free: u32,
}

/// What a zone has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// Buffers.
    pub total: u32,
    /// Of these, lent ones.
    pub lent: u32,
    /// Buffers that there shall be.
    pub target: u32,
}

/// One session: a place in the table of clients.
#[derive(Clone, Copy, Debug, Default)]
pub struct Client {
    /// 0: the place is free.
    seats: u32,
    /// Pages that it has borrowed.
    lent: u32,
    /// Pages that it may borrow.
    most: u32,
    /// How often one of its seats had to wait.
    waits: u64,
}

/// What a client has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Pages that it may borrow.
    pub most: u32,
    /// Pages that it has borrowed.
    pub lent: u32,
    /// How often one of its seats had to wait for others.
    pub waits: u64,
}

/// One queue pair: a place in the table of seats.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seat {
    /// `None`: the place is free.
    client: Option<u32>,
    /// Pages that it has borrowed.
    lent: u32,
    /// The buffers that it waits for: any of these numbers will do. All 0: it does not.
    wants: [u32; ZONES],
    /// When it was told to try again, in milliseconds of the caller's clock.
    told: Option<u64>,
}

/// See the module. `C` and `S` are the tables.
#[derive(Debug)]
pub struct Shares<C, S> {
    zones: [Zone; ZONES],
    clients: C,
    seats: S,
    /// Seats that wait.
    waiting: u32,
}

impl Seat {
    fn waits(&self) -> bool {
        self.wants.iter().any(|count| *count != 0)
    }

    /// What it waits for, by zone.
    fn wishes(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let wants = self.wants.iter().copied().enumerate();
        wants.filter(|(_, count)| *count != 0)
    }
}

impl<C: DerefMut<Target = [Client]>, S: DerefMut<Target = [Seat]>> Shares<C, S> {
    /// Nothing to lend, in zones whose buffers have so many pages each, and nobody there.
    pub fn new(pages: [u32; ZONES], clients: C, seats: S) -> Self {
        Self {
            zones: pages.map(|pages| Zone {
                pages,
                ..Zone::default()
            }),
            clients,
            seats,
            waiting: 0,
        }
    }

    /// Exchanges the tables for larger ones, which are filled from these.
    pub fn enlarge(&mut self, mut clients: C, mut seats: S) -> (C, S) {
        for (to, from) in clients.iter_mut().zip(self.clients.iter()) {
            *to = *from;
        }
        for (to, from) in seats.iter_mut().zip(self.seats.iter()) {
            *to = *from;
        }
        (
            core::mem::replace(&mut self.clients, clients),
            core::mem::replace(&mut self.seats, seats),
        )
    }

    /// Places of both tables.
    pub fn room(&self) -> (usize, usize) {
        (self.clients.len(), self.seats.len())
    }

    /// A seat of a new client that may borrow `most` pages, with all its seats
    /// together. `None`: a table is full.
    pub fn join(&mut self, most: u32) -> Option<(usize, usize)> {
        let client = self.clients.iter().position(|c| c.seats == 0)?;
        *self.clients.get_mut(client)? = Client {
            most,
            ..Client::default()
        };
        let seat = self.sit(client)?;
        Some((client, seat))
    }

    /// Another seat of a client. `None`: the table is full.
    pub fn sit(&mut self, client: usize) -> Option<usize> {
        let seat = self.seats.iter().position(|s| s.client.is_none())?;
        self.clients.get_mut(client)?.seats += 1;
        *self.seats.get_mut(seat)? = Seat {
            client: Some(client as u32),
            ..Seat::default()
        };
        Some(seat)
    }

    /// A seat that has given everything back is gone, its client with the last one.
    pub fn leave(&mut self, seat: usize) {
        self.leave_off(seat);
        let Some(place) = self.seats.get_mut(seat) else {
            return;
        };
        if let Some(client) = core::mem::take(place).client {
            if let Some(client) = self.clients.get_mut(client as usize) {
                client.seats -= 1;
            }
        }
    }

    fn client_of(&self, seat: &Seat) -> Option<&Client> {
        self.clients.get(seat.client? as usize)
    }

    /// Who has less is before who has more.
    fn rank(&self, seat: &Seat) -> Option<(u32, u32)> {
        Some((self.client_of(seat)?.lent, seat.lent))
    }

    /// Whether the zone has so many, and the client may have them.
    fn may_have(&self, seat: &Seat, zone: usize, count: u32) -> bool {
        let (Some(client), Some(zone)) = (self.client_of(seat), self.zones.get(zone)) else {
            return false;
        };
        let pages = count.saturating_mul(zone.pages);
        count <= zone.total.min(zone.target) && client.lent.saturating_add(pages) <= client.most
    }

    /// The lowest rank of those who wait, without `but`, for each zone.
    fn first(&self, but: Option<usize>) -> [Option<(u32, u32)>; ZONES] {
        let mut first = [None; ZONES];
        for (index, seat) in self.seats.iter().enumerate() {
            if !seat.waits() || but == Some(index) {
                continue;
            }
            let Some(rank) = self.rank(seat) else {
                continue;
            };
            for (zone, count) in seat.wishes() {
                if let (true, Some(first)) = (self.may_have(seat, zone, count), first.get_mut(zone))
                {
                    *first = Some(first.map_or(rank, |first: (u32, u32)| first.min(rank)));
                }
            }
        }
        first
    }

    /// Whether `count` buffers of `zone` are there for `seat`, if nobody is before it.
    fn are_there(&self, seat: &Seat, zone: usize, count: u32) -> bool {
        self.zones.get(zone).is_some_and(|of| {
            of.total <= of.target && count <= of.free && self.may_have(seat, zone, count)
        })
    }

    fn can_borrow(&self, seat: usize, zone: usize, count: u32) -> bool {
        let Some(me) = self.seats.get(seat) else {
            return false;
        };
        if !self.are_there(me, zone, count) {
            return false;
        }
        if self.waiting == 0 {
            return true;
        }
        let first = self.first(Some(seat));
        match (first.get(zone), self.rank(me)) {
            (Some(Some(first)), Some(mine)) if me.waits() => mine <= *first,
            // Of equals who waits is before who has just come.
            (Some(Some(first)), Some(mine)) => mine < *first,
            (Some(None), Some(_)) => true,
            _ => false,
        }
    }

    /// Lends `count` buffers of `zone` to `seat`, which then waits no longer; `false`:
    /// not now.
    pub fn borrow(&mut self, seat: usize, zone: usize, count: u32) -> bool {
        if !self.can_borrow(seat, zone, count) {
            return false;
        }
        self.leave_off(seat);
        let (Some(place), Some(of)) = (self.seats.get_mut(seat), self.zones.get_mut(zone)) else {
            return false;
        };
        of.free -= count;
        let pages = count * of.pages;
        place.lent += pages;
        let client = place.client.map_or(usize::MAX, |client| client as usize);
        if let Some(client) = self.clients.get_mut(client) {
            client.lent += pages;
        }
        true
    }

    /// `seat` waits for so many buffers of one zone or another, 0: not of that one. `false`:
    /// there will not be so many for it anywhere.
    pub fn wait(&mut self, seat: usize, mut wants: [u32; ZONES]) -> bool {
        let Some(place) = self.seats.get(seat) else {
            return false;
        };
        for (zone, count) in wants.iter_mut().enumerate() {
            if !self.may_have(place, zone, *count) {
                *count = 0;
            }
        }
        if wants == [0; ZONES] {
            self.leave_off(seat);
            return false;
        }
        let new = !place.waits();
        if let Some(place) = self.seats.get_mut(seat) {
            place.wants = wants;
            place.told = None;
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

    /// `seat` waits no longer.
    pub fn leave_off(&mut self, seat: usize) {
        if let Some(place) = self.seats.get_mut(seat) {
            if place.waits() {
                self.waiting -= 1;
            }
            place.wants = [0; ZONES];
            place.told = None;
        }
    }

    /// `seat` gives back `count` buffers of `zone`, which it has borrowed.
    pub fn give_back(&mut self, seat: usize, zone: usize, count: u32) {
        let (Some(place), Some(of)) = (self.seats.get_mut(seat), self.zones.get_mut(zone)) else {
            return;
        };
        of.free += count;
        let pages = count * of.pages;
        place.lent -= pages;
        let client = place.client.map_or(usize::MAX, |client| client as usize);
        if let Some(client) = self.clients.get_mut(client) {
            client.lent -= pages;
        }
    }

    /// Who was told and has not answered in time waits no longer.
    fn set_aside(&mut self, now: u64) {
        for seat in 0..self.seats.len() {
            let told = self.seats.get(seat).and_then(|seat| seat.told);
            if told.is_some_and(|told| now.saturating_sub(told) >= ANSWER_MS) {
                self.leave_off(seat);
            }
        }
    }

    /// A seat that waits and would get what it wants at `now` (milliseconds), and was not told
    /// so. To be asked until it says `None`, after anything was given back, after anybody has
    /// waited, and after anybody has left off or got what they waited for: then somebody
    /// else may be the first.
    pub fn to_tell(&mut self, now: u64) -> Option<usize> {
        if self.waiting == 0 {
            return None;
        }
        self.set_aside(now);
        let first = self.first(None);
        let seat = self.seats.iter().position(|seat| {
            let is_first = |zone| {
                matches!((first.get(zone), self.rank(seat)),
                    (Some(Some(first)), Some(rank)) if rank <= *first)
            };
            // What it cannot get any more it is told, too: it must not wait for it.
            let now = |(zone, count)| {
                !self.may_have(seat, zone, count)
                    || self.are_there(seat, zone, count) && is_first(zone)
            };
            seat.told.is_none() && seat.wishes().any(now)
        })?;
        self.seats.get_mut(seat)?.told = Some(now);
        Some(seat)
    }

    /// Whether what nobody uses shall be given back: somebody waits, or a zone is too
    /// large.
    pub fn is_pressed(&self) -> bool {
        self.waiting != 0 || self.zones.iter().any(|zone| zone.total > zone.target)
    }

    /// Whether `seat` has borrowed anything.
    pub fn has(&self, seat: usize) -> bool {
        self.seats.get(seat).is_some_and(|seat| seat.lent != 0)
    }

    /// How many buffers each zone shall have from now on.
    pub fn aim(&mut self, targets: [u32; ZONES]) {
        for (zone, target) in self.zones.iter_mut().zip(targets) {
            zone.target = target;
        }
    }

    /// So many buffers of `zone` were made, which are free.
    pub fn add(&mut self, zone: usize, count: u32) {
        if let Some(zone) = self.zones.get_mut(zone) {
            zone.total += count;
            zone.free += count;
        }
    }

    /// `count` free buffers of `zone` are destroyed.
    pub fn remove(&mut self, zone: usize, count: u32) {
        if let Some(zone) = self.zones.get_mut(zone) {
            zone.total -= count;
            zone.free -= count;
        }
    }

    /// What a zone has.
    pub fn holds(&self, zone: usize) -> Holds {
        let zone = self.zones.get(zone).copied().unwrap_or_default();
        Holds {
            total: zone.total,
            lent: zone.total - zone.free,
            target: zone.target,
        }
    }

    /// Pages of all zones.
    pub fn pages(&self) -> u64 {
        let pages = |zone: &Zone| u64::from(zone.total) * u64::from(zone.pages);
        self.zones.iter().map(pages).sum()
    }

    /// What a client has.
    pub fn standing(&self, client: usize) -> Standing {
        let client = self.clients.get(client).copied().unwrap_or_default();
        Standing {
            most: client.most,
            lent: client.lent,
            waits: client.waits,
        }
    }

    /// Seats that wait.
    pub fn waiting(&self) -> u32 {
        self.waiting
    }
}

#[cfg(test)]
mod tests;
