// SPDX-License-Identifier: GPL-2.0

//! Each rule with an example, and random changes against a model that is written in another way.

use super::*;
use std::collections::BTreeMap;

fn host(n: u8) -> HostId {
    HostId::from_wire([n + 1; 16]).unwrap()
}

fn disk(n: u8) -> SessionId {
    SessionId(u64::from(n + 1) << 16 | 1)
}

/// Applies changes of several hosts, each with a new sequence number.
struct Drive {
    it: Reservations,
    sequence: u32,
    removed: Vec<HostId>,
}

impl Drive {
    fn new() -> Self {
        Self {
            it: Reservations::new(),
            sequence: 0,
            removed: Vec::new(),
        }
    }

    fn change(&mut self, n: u8, op: ReservationOp) -> Status {
        self.sequence += 1;
        self.removed.clear();
        let removed = &mut self.removed;
        let outcome = self
            .it
            .change(host(n), disk(n), self.sequence, op, &mut |h| {
                removed.push(h)
            });
        assert!(!outcome.repeated);
        outcome.status
    }

    fn register(&mut self, n: u8, key: u64, new: u64) -> Status {
        let ignore = false;
        self.change(n, ReservationOp::Register { key, new, ignore })
    }

    fn reserve(&mut self, n: u8, key: u64, how: ReservationType) -> Status {
        self.change(n, ReservationOp::Reserve { key, how })
    }

    fn preempt(&mut self, n: u8, key: u64, victim: u64, how: ReservationType) -> Status {
        let abort = true;
        self.change(
            n,
            ReservationOp::Preempt {
                key,
                victim,
                how,
                abort,
            },
        )
    }
}

fn register(key: u64, new: u64) -> ReservationOp {
    let ignore = false;
    ReservationOp::Register { key, new, ignore }
}

fn preempt(key: u64, victim: u64) -> ReservationOp {
    ReservationOp::Preempt {
        key,
        victim,
        how: TYPES[0],
        abort: true,
    }
}

const TYPES: [ReservationType; 6] = [
    ReservationType::WriteExclusive,
    ReservationType::ExclusiveAccess,
    ReservationType::WriteExclusiveRegistrants,
    ReservationType::ExclusiveAccessRegistrants,
    ReservationType::WriteExclusiveAll,
    ReservationType::ExclusiveAccessAll,
];

#[test]
fn each_type_admits_whom_it_shall() {
    // Holder, registrant and other: may read, may write.
    let rows = [
        [(true, true), (true, false), (true, false)],
        [(true, true), (false, false), (false, false)],
        [(true, true), (true, true), (true, false)],
        [(true, true), (true, true), (false, false)],
        [(true, true), (true, true), (true, false)],
        [(true, true), (true, true), (false, false)],
    ];
    for (how, row) in TYPES.into_iter().zip(rows) {
        let mut drive = Drive::new();
        assert_eq!(drive.register(0, 0, 7), Status::Ok);
        assert_eq!(drive.register(1, 0, 8), Status::Ok);
        assert_eq!(drive.reserve(0, 7, how), Status::Ok);
        for (n, wanted) in row.into_iter().enumerate() {
            let who = host(n as u8);
            let may = (drive.it.allows(who, false), drive.it.allows(who, true));
            assert_eq!(may, wanted, "{how:?} {n}");
        }
    }
}

#[test]
fn a_repetition_is_not_made_twice() {
    let mut it = Reservations::new();
    let op = |key, new| ReservationOp::Register {
        key,
        new,
        ignore: false,
    };
    let none = &mut |_| unreachable!();
    let first = it.change(host(0), disk(0), 5, op(0, 9), none);
    assert_eq!((first.status, first.repeated), (Status::Ok, false));
    let again = it.change(host(0), disk(0).on_path(3), 5, op(0, 9), none);
    assert_eq!((again.status, again.repeated), (Status::Ok, true));
    assert_eq!(it.read_key(0).generation, 1);
    // Another disk of the host has sequence numbers of its own.
    let other = it.change(host(0), disk(1), 5, op(9, 10), none);
    assert_eq!((other.status, other.repeated), (Status::Ok, false));
    // A late change is not made.
    it.change(host(0), disk(0), 6, op(10, 11), none);
    let late = it.change(host(0), disk(0), 5, op(11, 9), none);
    assert_eq!(late.status, Status::Invalid);
    assert_eq!(it.read_key(0).key, 11);
}

/// Requests a change by the disk `disk`, which always uses the same sequence number.
fn ask(it: &mut Reservations, n: u8, disk: u64, op: ReservationOp) -> Outcome {
    it.change(host(n), SessionId(disk << 16), 1, op, &mut |_| {})
}

#[test]
fn operations_without_effect_are_not_written() {
    let mut it = Reservations::new();
    let how = TYPES[0];
    let clear = ReservationOp::Clear { key: 0 };
    let reserve = ReservationOp::Reserve { key: 7, how };
    let release = ReservationOp::Release { key: 7, how };
    let rows = [
        (register(0, 0), Status::Ok, false, false),
        (register(5, 6), Status::Conflict, false, false),
        (clear, Status::Conflict, false, false),
        (register(0, 7), Status::Ok, true, true),
        (release, Status::Ok, false, true),
        (reserve, Status::Ok, true, true),
        (reserve, Status::Ok, false, true),
        (release, Status::Ok, true, true),
        (preempt(7, 99), Status::Conflict, false, true),
        (register(7, 0), Status::Ok, true, true),
    ];
    for (disk, (op, status, changed, remembered)) in (1..).zip(rows) {
        let outcome = ask(&mut it, 0, disk, op);
        assert_eq!(
            (outcome.status, outcome.changed),
            (status, changed),
            "{op:?}"
        );
        assert_eq!(outcome.number != 0, remembered, "{op:?}");
        if remembered {
            let again = ask(&mut it, 0, disk, op);
            let wanted = Outcome {
                repeated: true,
                changed: false,
                ..outcome
            };
            assert_eq!(again, wanted, "{op:?}");
        }
    }
}

#[test]
fn nobody_has_a_preemption_of_others_forgotten() {
    let mut it = Reservations::new();
    ask(&mut it, 0, 1, register(0, 7));
    ask(&mut it, 1, 1, register(0, 8));
    let first = ask(&mut it, 0, 2, preempt(7, 8));
    assert_eq!((first.status, first.changed), (Status::Ok, true));
    let is_known = |it: &mut Reservations| {
        let again = ask(it, 0, 2, preempt(7, 8));
        assert_eq!((again.status, again.repeated), (Status::Ok, true));
        assert_eq!(again.number, first.number);
    };
    // A host that is not registered, with many disks.
    for disk in 0..100 {
        assert_eq!(ask(&mut it, 2, disk, register(0, 0)).status, Status::Ok);
    }
    is_known(&mut it);
    // A host that registers and unregisters, with many disks.
    for disk in 0..100 {
        let (key, new) = if disk % 2 == 0 { (0, 9) } else { (9, 0) };
        assert_eq!(ask(&mut it, 2, disk, register(key, new)).status, Status::Ok);
    }
    is_known(&mut it);
    // The preempting host with many disks, then many hosts, while the preemption is repeated.
    for disk in 3..100 {
        assert_eq!(ask(&mut it, 0, disk, register(7, 7)).status, Status::Ok);
        is_known(&mut it);
    }
    for n in 10..100 {
        assert_eq!(ask(&mut it, n, 1, register(0, 1)).status, Status::Ok);
        assert_eq!(ask(&mut it, n, 2, register(1, 0)).status, Status::Ok);
        is_known(&mut it);
    }
}

#[test]
fn a_later_preemption_awaits_an_earlier_one() {
    let mut it = Reservations::new();
    for n in 0..3 {
        ask(&mut it, n, 1, register(0, 7 + u64::from(n)));
    }
    let first = ask(&mut it, 0, 2, preempt(7, 8));
    // The victim is no longer registered, but this preemption by another host gets a number, too: a
    // greater one.
    let second = ask(&mut it, 2, 2, preempt(9, 8));
    assert_eq!((second.status, second.changed), (Status::Conflict, false));
    assert!(second.number > first.number && first.number > 0);
    assert_eq!(ask(&mut it, 2, 2, preempt(9, 8)).number, second.number);
    assert_eq!(ask(&mut it, 0, 2, preempt(7, 8)).number, first.number);
    // A preemption by a host that is not registered gets no number.
    assert_eq!(ask(&mut it, 3, 2, preempt(9, 8)).number, 0);
}

#[test]
fn registrants_are_bounded() {
    let mut drive = Drive::new();
    for n in 0..REGISTRANTS_MAX as u8 {
        assert_eq!(drive.register(n, 0, 1), Status::Ok);
    }
    assert_eq!(drive.register(200, 0, 1), Status::NoSpace);
    assert_eq!(drive.register(3, 1, 0), Status::Ok);
    assert_eq!(drive.register(200, 0, 1), Status::Ok);
}

#[test]
fn a_preempting_host_takes_the_victims_reservation() {
    let mut drive = Drive::new();
    for n in 0..3 {
        drive.register(n, 0, 10 + u64::from(n));
    }
    drive.reserve(0, 10, TYPES[0]);
    assert_eq!(drive.preempt(1, 11, 99, TYPES[1]), Status::Conflict);
    assert_eq!(drive.preempt(1, 11, 0, TYPES[1]), Status::Invalid);
    assert_eq!(drive.preempt(1, 12, 10, TYPES[1]), Status::Conflict);
    assert_eq!(drive.preempt(1, 11, 10, TYPES[1]), Status::Ok);
    assert_eq!(drive.removed, [host(0)]);
    assert!(!drive.it.is_registered(host(0)));
    let now = drive.it.read_reservation();
    assert_eq!((now.number, now.key), (2, 11));
    // If all registrants are holders, preempting a key only ends registrations, and preempting 0
    // ends all but the caller's.
    let mut drive = Drive::new();
    for n in 0..3 {
        drive.register(n, 0, 10 + u64::from(n));
    }
    drive.reserve(0, 10, TYPES[4]);
    assert_eq!(drive.preempt(1, 11, 10, TYPES[0]), Status::Ok);
    assert_eq!(drive.it.read_reservation().number, 5);
    assert_eq!(drive.preempt(1, 11, 0, TYPES[0]), Status::Ok);
    assert_eq!(drive.removed, [host(2)]);
    assert_eq!(drive.it.read_reservation().number, 1);
}

/// The rules once more, with a map from hosts to keys and a set of holders.
#[derive(Clone, Default)]
struct Model {
    keys: BTreeMap<u8, u64>,
    how: u8,
    holders: Vec<u8>,
    generation: u32,
}

impl Model {
    fn settle(&mut self) {
        if self.how >= 5 {
            self.holders = self.keys.keys().copied().collect();
        }
        self.holders.retain(|holder| self.keys.contains_key(holder));
        if self.holders.is_empty() {
            self.how = 0;
        }
    }

    fn take(&mut self, n: u8, how: u8) {
        self.how = how;
        self.holders = vec![n];
        self.settle();
    }

    fn change(&mut self, n: u8, op: ReservationOp) -> Status {
        let own = self.keys.get(&n).copied();
        let good = |key| own == Some(key);
        match op {
            ReservationOp::Register { key, new, ignore } => {
                if !ignore && own.unwrap_or(0) != key {
                    return Status::Conflict;
                }
                if new != 0 {
                    self.keys.insert(n, new);
                } else if self.keys.remove(&n).is_none() {
                    return Status::Ok;
                }
                self.generation += 1;
            }
            ReservationOp::Reserve { key, .. } if !good(key) => return Status::Conflict,
            ReservationOp::Reserve { how, .. } => {
                if self.how == 0 {
                    self.take(n, how as u8);
                } else if self.how != how as u8 || !self.holders.contains(&n) {
                    return Status::Conflict;
                }
            }
            ReservationOp::Release { key, .. } if !good(key) => return Status::Conflict,
            ReservationOp::Release { how, .. } => {
                if self.holders.contains(&n) {
                    if self.how != how as u8 {
                        return Status::Invalid;
                    }
                    self.how = 0;
                    self.holders.clear();
                }
            }
            ReservationOp::Clear { key } if !good(key) => return Status::Conflict,
            ReservationOp::Clear { .. } => {
                *self = Model {
                    generation: self.generation + 1,
                    ..Model::default()
                };
            }
            ReservationOp::Preempt { key, .. } if !good(key) => return Status::Conflict,
            ReservationOp::Preempt { victim, how, .. } => {
                let all = self.how >= 5;
                let of_holder =
                    (1..5).contains(&self.how) && self.keys.get(&self.holders[0]) == Some(&victim);
                if all && victim == 0 {
                    self.keys.retain(|host, _| *host == n);
                    self.take(n, how as u8);
                } else if of_holder {
                    self.keys.retain(|host, key| *host == n || *key != victim);
                    self.take(n, how as u8);
                } else if victim == 0 {
                    return Status::Invalid;
                } else if !self.keys.values().any(|key| *key == victim) {
                    return Status::Conflict;
                } else {
                    self.keys.retain(|_, key| *key != victim);
                }
                self.generation += 1;
            }
        }
        self.settle();
        Status::Ok
    }

    fn allows(&self, n: u8, writes: bool) -> bool {
        match (self.how, writes) {
            (0, _) | (1 | 3 | 5, false) => true,
            (1 | 2, _) => self.holders.contains(&n),
            _ => self.keys.contains_key(&n),
        }
    }
}

fn random(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % below
}

#[test]
fn all_changes_are_as_a_simple_model_has_them() {
    const HOSTS: u8 = 5;
    for seed in 1..=60 {
        let mut rng = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed);
        let (mut drive, mut model) = (Drive::new(), Model::default());
        for step in 0..500 {
            let n = random(&mut rng, HOSTS.into()) as u8;
            let own = model.keys.get(&n).copied().unwrap_or(0);
            let key = match random(&mut rng, 8) {
                0 => random(&mut rng, 4),
                _ => own,
            };
            let other = random(&mut rng, 4);
            let how = TYPES[random(&mut rng, 6) as usize];
            let op = match random(&mut rng, 16) {
                0..=5 => ReservationOp::Register {
                    key,
                    new: other,
                    ignore: random(&mut rng, 3) == 0,
                },
                6..=9 => ReservationOp::Reserve { key, how },
                10 | 11 => ReservationOp::Release { key, how },
                12 => ReservationOp::Clear { key },
                _ => ReservationOp::Preempt {
                    key,
                    victim: other,
                    how,
                    abort: random(&mut rng, 2) == 0,
                },
            };
            let before = model.clone();
            let wanted = model.change(n, op);
            assert_eq!(
                drive.change(n, op),
                wanted,
                "seed {seed} step {step}: {op:?}"
            );
            let removed = |h: u8| before.keys.contains_key(&h) && !model.keys.contains_key(&h);
            let victims: Vec<_> = match op {
                ReservationOp::Preempt { .. } => (0..HOSTS)
                    .filter(|h| *h != n && removed(*h))
                    .map(host)
                    .collect(),
                _ => Vec::new(),
            };
            let mut reported = drive.removed.clone();
            reported.sort_by_key(|h| h.to_wire());
            assert_eq!(reported, victims);
            for h in 0..HOSTS + 1 {
                for writes in [false, true] {
                    assert_eq!(
                        drive.it.allows(host(h), writes),
                        model.allows(h, writes),
                        "seed {seed} step {step}: {h} after {op:?}"
                    );
                }
                assert_eq!(drive.it.key_of(host(h)), model.keys.get(&h).copied());
            }
            let now = drive.it.read_reservation();
            assert_eq!(
                (now.number, now.generation),
                (model.how.into(), model.generation)
            );
            if step % 50 == 0 {
                let mut image = [0; IMAGE_LEN];
                drive.it.to_image([3; 16], 77, &mut image);
                let read = Reservations::from_image([3; 16], &image);
                assert_eq!(read, Ok((drive.it.clone(), 77)));
            }
        }
    }
}

#[test]
fn a_damaged_image_is_refused() {
    let mut drive = Drive::new();
    drive.register(0, 0, 7);
    drive.reserve(0, 7, TYPES[1]);
    let mut good = [0; IMAGE_LEN];
    drive.it.to_image([3; 16], 1, &mut good);
    assert!(Reservations::from_image([3; 16], &good).is_ok());
    assert_eq!(
        Reservations::from_image([4; 16], &good),
        Err(BadImage::Drive)
    );
    assert_eq!(
        Reservations::from_image([3; 16], &good[1..]),
        Err(BadImage::Magic)
    );
    for at in (0..IMAGE_LEN).step_by(13) {
        let mut bad = good;
        bad[at] ^= 0x40;
        assert!(Reservations::from_image([3; 16], &bad).is_err(), "{at}");
    }
    let mut other = good;
    other[8] = 2;
    assert_eq!(
        Reservations::from_image([3; 16], &other),
        Err(BadImage::Version)
    );
}
