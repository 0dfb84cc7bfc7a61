// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The persistent reservations of one drive: the registered hosts with their keys, and the holder
//! with its type. A pure state machine; SPC-4 5.13 and NVMe's reservations are the source. Its
//! tests run on the host.
//!
//! ```text
//!                    reserve                     release, clear, the holder's registration ends
//!  registrants only ─────────► held(type, who) ───────────────────────────────────────────────► registrants only
//!                                 └── preempt of the holder: held(new type, preempting host)
//! ```
//!
//! A host is registered as a whole: across its paths, connections and disks. For the last change of
//! each disk, its sequence number and outcome are kept, so that a change that is repeated, because
//! its response was lost, is not made twice. A host that is not registered and changes nothing is
//! not remembered, and a host that uses many disks loses its own changes before those of others: no
//! host can displace the preemption of another, which may be repeated while the drive hangs.
//!
//! There is no equivalent of SPC-4's unit attention for hosts whose registrations end: a host
//! learns of it when its next request or change ends with a conflict.

use crate::proto::{
    connect::SessionId,
    message::{ReservationInfo, ReservationOp, ReservationType, Status},
    name::HostId,
};

mod image;

pub use self::image::{BadImage, IMAGE_LEN};

/// Hosts that may be registered for a drive.
pub const REGISTRANTS_MAX: usize = 32;

/// Disks whose last change is remembered. When there are more, the host with the most of them loses
/// that of its disk that asked longest ago.
pub const CHANGES_MAX: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Registrant {
    host: HostId,
    key: u64,
}

/// The reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldReservation {
    how: ReservationType,
    /// `None`: each registrant.
    holder: Option<HostId>,
}

/// The last change that a disk asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    host: HostId,
    disk: SessionId,
    sequence: u32,
    status: Status,
    /// See [`Outcome::number`].
    number: u64,
    /// The value of `Reservations::asked` when it was requested last. An image does not store it:
    /// `number` takes its place.
    asked: u64,
}

/// The outcome of a requested change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub status: Status,
    /// The change was made before, and is requested once more.
    pub repeated: bool,
    /// The state has changed, apart from the remembered changes.
    pub changed: bool,
    /// Later changes of the drive have greater numbers; a repetition has the number of the
    /// original. 0: the change is not remembered.
    pub number: u64,
}

impl Outcome {
    /// Returns the outcome of a change that was not made, and is not remembered.
    pub const fn failed(status: Status) -> Self {
        Self {
            status,
            repeated: false,
            changed: false,
            number: 0,
        }
    }
}

/// The state of one drive's reservations; see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservations {
    generation: u32,
    /// Counts the changes that were asked for, and their repetitions.
    asked: u64,
    held: Option<HeldReservation>,
    registrants: [Option<Registrant>; REGISTRANTS_MAX],
    changes: [Option<Change>; CHANGES_MAX],
}

impl Default for Reservations {
    fn default() -> Self {
        Self::new()
    }
}

impl Reservations {
    /// Creates the reservations of a drive without registrants.
    pub const fn new() -> Self {
        Self {
            generation: 0,
            asked: 0,
            held: None,
            registrants: [None; REGISTRANTS_MAX],
            changes: [None; CHANGES_MAX],
        }
    }

    fn key_of(&self, host: HostId) -> Option<u64> {
        let found = self.registrants.iter().flatten().find(|r| r.host == host);
        found.map(|registrant| registrant.key)
    }

    /// Returns whether a host is registered.
    pub fn is_registered(&self, host: HostId) -> bool {
        self.key_of(host).is_some()
    }

    fn count(&self) -> usize {
        self.registrants.iter().flatten().count()
    }

    /// Returns whether no host is registered; then there is no holder either.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Returns whether there is a reservation.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    fn holds(&self, host: HostId) -> bool {
        self.held.is_some_and(|held| match held.holder {
            Some(holder) => holder == host,
            None => self.is_registered(host),
        })
    }

    /// Returns whether a host may read or, if `writes`, do anything that changes data.
    pub fn allows(&self, host: HostId, writes: bool) -> bool {
        let Some(HeldReservation { how, holder }) = self.held else {
            return true;
        };
        if !writes && !how.excludes_reads() {
            return true;
        }
        holder == Some(host) || (how.admits_registrants() && self.is_registered(host))
    }

    /// Returns the key of registrant `index` (0 if there is none), and the number of registrants.
    pub fn read_key(&self, index: u32) -> ReservationInfo {
        let mut all = self.registrants.iter().flatten();
        let key = all.nth(usize::try_from(index).unwrap_or(usize::MAX));
        ReservationInfo {
            generation: self.generation,
            number: self.count() as u16,
            key: key.map_or(0, |registrant| registrant.key),
        }
    }

    /// Returns the reservation; its key is 0 where all registrants hold it.
    pub fn read_reservation(&self) -> ReservationInfo {
        let key = self.held.and_then(|held| self.key_of(held.holder?));
        ReservationInfo {
            generation: self.generation,
            number: self.held.map_or(0, |held| held.how as u16),
            key: key.unwrap_or(0),
        }
    }

    /// Makes the change `op` for `host`, whose disk `disk` requests it with the number `sequence`.
    /// Calls `removed` with each other host whose registration a preemption has ended.
    pub fn change(
        &mut self,
        host: HostId,
        disk: SessionId,
        sequence: u32,
        op: ReservationOp,
        removed: &mut dyn FnMut(HostId),
    ) -> Outcome {
        let disk = disk.on_path(0);
        let asked = self.asked + 1;
        let mut changes = self.changes.iter_mut().flatten();
        if let Some(last) = changes.find(|change| change.host == host && change.disk == disk) {
            let newer = sequence.wrapping_sub(last.sequence) as i32;
            if newer == 0 {
                last.asked = asked;
                let (status, number) = (last.status, last.number);
                self.asked = asked;
                return Outcome {
                    status,
                    repeated: true,
                    changed: false,
                    number,
                };
            }
            if newer < 0 {
                // The host has given the change up: a later one has followed.
                return Outcome::failed(Status::Invalid);
            }
        }
        let before = (self.generation, self.held);
        let status = self.apply(host, op, removed).err().unwrap_or(Status::Ok);
        let changed = before != (self.generation, self.held);
        if !changed && !self.is_registered(host) {
            return Outcome::failed(status);
        }
        self.asked = asked;
        self.remember(Change {
            host,
            disk,
            sequence,
            status,
            number: asked,
            asked,
        });
        Outcome {
            status,
            repeated: false,
            changed,
            number: asked,
        }
    }

    /// Stores a change in the place of its disk's last one, else in a free place, else in the place
    /// of a change that is forgotten.
    fn remember(&mut self, change: Change) {
        let of_host = |host| {
            let others = self.changes.iter().flatten();
            usize::from(host == change.host) + others.filter(|other| other.host == host).count()
        };
        let place = (0..CHANGES_MAX).min_by_key(|at| match self.changes.get(*at) {
            Some(Some(old)) if old.host == change.host && old.disk == change.disk => (0, 0, 0),
            Some(Some(old)) => (2, CHANGES_MAX + 1 - of_host(old.host), old.asked),
            _ => (1, 0, 0),
        });
        if let Some(place) = place.and_then(|at| self.changes.get_mut(at)) {
            *place = Some(change);
        }
    }

    /// Fails unless the host is registered with this key.
    fn check(&self, host: HostId, key: u64) -> Result<(), Status> {
        match self.key_of(host) == Some(key) {
            true => Ok(()),
            false => Err(Status::Conflict),
        }
    }

    fn apply(
        &mut self,
        host: HostId,
        op: ReservationOp,
        removed: &mut dyn FnMut(HostId),
    ) -> Result<(), Status> {
        match op {
            ReservationOp::Register { key, new, ignore } => {
                let key = if ignore { None } else { Some(key) };
                self.register(host, key, new)
            }
            ReservationOp::Reserve { key, how } => {
                self.check(host, key)?;
                match self.held {
                    None => self.hold(host, how),
                    Some(held) if held.how == how && self.holds(host) => {}
                    Some(_) => return Err(Status::Conflict),
                }
                Ok(())
            }
            ReservationOp::Release { key, how } => {
                self.check(host, key)?;
                match self.held {
                    Some(held) if self.holds(host) => {
                        if held.how != how {
                            return Err(Status::Invalid);
                        }
                        self.held = None;
                    }
                    // A host without the reservation has nothing to release.
                    _ => {}
                }
                Ok(())
            }
            ReservationOp::Preempt {
                key, victim, how, ..
            } => {
                self.check(host, key)?;
                self.preempt(host, victim, how, removed)
            }
            ReservationOp::Clear { key } => {
                self.check(host, key)?;
                self.registrants = [None; REGISTRANTS_MAX];
                self.held = None;
                self.count_change();
                Ok(())
            }
        }
    }

    fn count_change(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    fn hold(&mut self, host: HostId, how: ReservationType) {
        self.held = Some(HeldReservation {
            how,
            holder: (!how.is_all_registrants()).then_some(host),
        });
    }

    /// Registers a host with the key `new`, or ends its registration if that is 0. If `key` is
    /// given, it must be the host's present key, or 0 for a host without one.
    fn register(&mut self, host: HostId, key: Option<u64>, new: u64) -> Result<(), Status> {
        let now = self.key_of(host);
        if key.is_some_and(|key| key != now.unwrap_or(0)) {
            return Err(Status::Conflict);
        }
        if now.is_none() && new == 0 {
            return Ok(());
        }
        if new == 0 {
            self.remove(|registrant| registrant.host == host, &mut |_| {});
        } else {
            let own = |r: &&mut Option<Registrant>| r.is_some_and(|r| r.host == host);
            let place = match self.registrants.iter_mut().find(own) {
                Some(place) => place,
                None => {
                    let mut places = self.registrants.iter_mut();
                    places.find(|r| r.is_none()).ok_or(Status::NoSpace)?
                }
            };
            *place = Some(Registrant { host, key: new });
        }
        self.count_change();
        Ok(())
    }

    /// Ends the registrations that `which` selects, and the reservation if it has no holder any
    /// more. Returns the number of ended registrations.
    fn remove(
        &mut self,
        which: impl Fn(&Registrant) -> bool,
        removed: &mut dyn FnMut(HostId),
    ) -> usize {
        let mut count = 0;
        for place in &mut self.registrants {
            if let Some(registrant) = place.filter(|registrant| which(registrant)) {
                *place = None;
                count += 1;
                removed(registrant.host);
            }
        }
        let gone = match self.held {
            Some(HeldReservation {
                holder: Some(holder),
                ..
            }) => !self.is_registered(holder),
            Some(_) => self.is_empty(),
            None => false,
        };
        if gone {
            self.held = None;
        }
        count
    }

    fn preempt(
        &mut self,
        host: HostId,
        victim: u64,
        how: ReservationType,
        removed: &mut dyn FnMut(HostId),
    ) -> Result<(), Status> {
        // A host that preempts itself has no request to give up.
        let removed: &mut dyn FnMut(HostId) = &mut |gone| {
            if gone != host {
                removed(gone);
            }
        };
        let takes = match self.held {
            Some(HeldReservation { holder: None, .. }) => victim == 0,
            Some(HeldReservation {
                holder: Some(holder),
                ..
            }) => self.key_of(holder) == Some(victim),
            None => false,
        };
        if takes {
            // The caller's registration stays, even if its key is this one.
            self.remove(
                |r| r.host != host && (victim == 0 || r.key == victim),
                removed,
            );
            self.hold(host, how);
        } else if victim == 0 {
            return Err(Status::Invalid);
        } else if self.remove(|r| r.key == victim, removed) == 0 {
            return Err(Status::Conflict);
        }
        self.count_change();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
