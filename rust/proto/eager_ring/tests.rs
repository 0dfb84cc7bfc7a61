// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the eager ring, on the host.

use super::*;
use std::vec;
use std::vec::Vec;

fn ring(units: u32, credits: u16) -> Ring<Vec<Taken>> {
    let taken = vec![Taken::default(); open_writes(credits)];
    Ring::new(units * UNIT, credits, taken)
}

/// Returns an initiator's ring: made for `depth` requests, before the number of credits is known.
fn initiators_ring(units: u32, depth: u16, credits: u16) -> Ring<Vec<Taken>> {
    let taken = vec![Taken::default(); open_writes(depth)];
    let mut ring = Ring::new(0, 0, taken);
    ring.begin(units * UNIT, credits);
    ring
}

#[test]
fn places_follow_each_other_and_begin_anew() {
    let mut r = ring(8, 8);
    assert_eq!(
        r.take_slot(UNIT, 10),
        Some(RingSlot {
            offset: 0,
            number: 0
        })
    );
    assert_eq!(
        r.take_slot(512, 11),
        Some(RingSlot {
            offset: UNIT,
            number: 1
        })
    );
    assert_eq!(r.take_slot(4 * UNIT + 1, 12).unwrap().offset, 2 * UNIT);
    assert_eq!(r.take_slot(2 * UNIT, 13), None, "one unit is left");
    assert_eq!(r.free(0), Some(10));
    assert_eq!(
        r.take_slot(2 * UNIT, 13),
        None,
        "the last unit would have to be skipped, too"
    );
    assert_eq!(r.free(1), Some(11));
    assert_eq!(
        r.take_slot(2 * UNIT, 13),
        Some(RingSlot {
            offset: 0,
            number: 3
        })
    );
    assert_eq!(
        r.take_slot(UNIT, 14),
        None,
        "the next place belongs to an open write"
    );
    assert_eq!(r.open(), 2);
}

#[test]
fn the_largest_fits_whenever_nothing_is_open() {
    let mut r = ring(8, 4);
    for owner in 0..20 {
        let length = if owner % 2 == 0 { 3 * UNIT } else { 8 * UNIT };
        let slot = r.take_slot(length, owner).expect("nothing is open");
        assert_eq!(r.free(slot.number), Some(owner));
        assert_eq!(r.open(), 0);
    }
}

#[test]
fn a_slot_that_does_not_fit_changes_nothing() {
    let mut r = ring(4, 2);
    for length in [
        0,
        4 * UNIT + 1,
        UNIT.wrapping_neg(),
        UNIT.wrapping_neg() + 1,
        u32::MAX,
    ] {
        assert_eq!(r.take_slot(length, 0), None);
    }
    assert_eq!(r.take_slot(UNIT, 0).unwrap().offset, 0);
    assert_eq!(r.take_slot(UNIT, 0).unwrap().offset, UNIT);
    assert_eq!(r.take_slot(UNIT, 0), None, "two may be open");
    assert_eq!(ring(0, 4).take_slot(UNIT, 0), None);
    assert_eq!(Ring::new(UNIT, 1, Vec::new()).take_slot(UNIT, 0), None);
}

#[test]
fn an_old_open_write_lets_as_many_overtake_as_there_are_credits() {
    for (depth, credits) in [(4, 4), (128, 4), (64, 3), (1024, 1), (5, 5)] {
        let mut here = initiators_ring(256, depth, credits);
        let mut there = ring(256, credits);
        let old = here.take_slot(UNIT, 0).unwrap();
        assert_eq!(there.take_slot(UNIT, 0), Some(old));
        // Each of these has its response at once, so that its credit is back.
        for n in 1..credits {
            let slot = here.take_slot(UNIT, n.into()).unwrap();
            assert_eq!(there.take_slot(UNIT, n.into()), Some(slot), "{depth} {n}");
            assert!(there.free(slot.number).is_some());
            assert!(here.free(slot.number).is_some());
        }
        assert_eq!(here.take_slot(UNIT, 0), None, "{depth} {credits}");
        assert_eq!(there.take_slot(UNIT, 0), None, "{depth} {credits}");
        assert!(there.free(old.number).is_some() && here.free(old.number).is_some());
        let next = here.take_slot(UNIT, 0);
        assert!(next.is_some() && there.take_slot(UNIT, 0) == next);
    }
}

#[test]
fn only_an_open_write_ends_and_once() {
    let mut r = ring(4, 4);
    assert_eq!(r.free(0), None);
    for owner in 0..3 {
        r.take_slot(UNIT, owner).unwrap();
    }
    for wrong in [3, 4, 7, u16::MAX] {
        assert_eq!(r.free(wrong), None, "{wrong}");
    }
    assert_eq!(r.free(1), Some(1));
    assert_eq!(r.free(1), None);
    assert_eq!(r.open(), 3, "an older one keeps the slot");
    assert_eq!(r.free(0), Some(0));
    assert_eq!((r.open(), r.free(0)), (1, None));
}

/// Two sides that see responses at different times allocate the same slots, and slots in use at one
/// side never overlap.
#[test]
fn both_sides_count_alike() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    for (units, depth, credits) in [(1, 1, 1), (7, 100, 3), (64, 16, 16), (256, 128, 100)] {
        let mut here = initiators_ring(units, depth, credits);
        let mut there = ring(units, credits);
        let mut working: Vec<(RingSlot, u32)> = Vec::new();
        let mut responses = std::collections::VecDeque::new();
        let mut done = 0u32;
        for owner in 0..200_000u32 {
            let length = (1 + next() as u32 % (units * UNIT)).min(1 + next() as u32 % (8 * UNIT));
            if let Some(slot) = here.take_slot(length, owner) {
                assert_eq!(
                    there.take_slot(length, owner),
                    Some(slot),
                    "free here, free there"
                );
                let end = slot.offset + length;
                assert!(end <= units * UNIT);
                for (other, bytes) in &working {
                    assert!(end <= other.offset || other.offset + bytes <= slot.offset);
                }
                working.push((slot, length));
            } else if !working.is_empty() {
                let (slot, _) = working.swap_remove(next() % working.len());
                let owner = there.free(slot.number).unwrap();
                responses.push_back((slot.number, owner));
            }
            if responses.len() > next() % 8 || working.is_empty() {
                if let Some((number, owner)) = responses.pop_front() {
                    assert_eq!(here.free(number), Some(owner));
                    done += 1;
                }
            }
        }
        assert!(done > 10_000, "{done}");
    }
}

#[test]
fn immediates_encode_whole_units_only() {
    let last = (u64::from(QUIET) - 1) * u64::from(UNIT);
    for (offset, length, good) in [
        (0, UNIT, true),
        (last, 5 * UNIT, true),
        (last + u64::from(UNIT), UNIT, false),
        (512, UNIT, false),
        (0, 512, false),
        (0, UNIT + 512, false),
        (0, 0, false),
        (u64::MAX - 4095, UNIT, false),
    ] {
        for quiet in [false, true] {
            let immediate = Immediate::new(offset, length, quiet);
            assert_eq!(immediate.is_some(), good, "{offset} {length}");
            if let Some(immediate) = immediate {
                assert_eq!(immediate.offset(), offset);
                assert_eq!(Immediate::from_wire(immediate.to_wire()), immediate);
            }
        }
    }
    assert_eq!(
        Immediate::new(3 << 12, UNIT, true).unwrap().to_wire(),
        0x8000_0003
    );
}

#[test]
fn grants_are_checked() {
    let grant = |bytes| {
        EagerRingGrant {
            bytes,
            key: 1,
            base: 7,
        }
        .checked()
    };
    for bad in [0, 1, UNIT - 1, UNIT + 1, BYTES_MAX + UNIT, u32::MAX] {
        assert_eq!(grant(bad), None, "{bad}");
    }
    assert_eq!(grant(UNIT).unwrap().address(512), 7 << 32 | 512);
    assert!(grant(BYTES_MAX).is_some());
    assert_eq!(open_writes(1), 1);
    assert_eq!(open_writes(100), 128);
    assert_eq!(open_writes(u16::MAX), 1024);
}

#[test]
fn responses_round_trip_and_are_checked() {
    let mut responses = EagerResponses::new();
    let mut pushed = Vec::new();
    assert!(responses.is_empty());
    assert!(
        EagerResponses::decode(responses.message()).is_none(),
        "none at all"
    );
    for number in 0..EagerResponses::MAX as u16 {
        let status = if number % 3 == 0 {
            Status::Ok
        } else {
            Status::NoSpace
        };
        assert!(responses.push(number * 0x1111, status));
        pushed.push((number * 0x1111, status));
        let bytes = responses.message();
        assert!(EagerResponses::is(bytes) && bytes.len() <= BUFFER_LEN);
        let read = EagerResponses::decode(bytes).unwrap();
        assert_eq!(read.len(), usize::from(number) + 1);
        assert!(read.iter().eq(pushed.iter().copied()));
        for len in 0..bytes.len() {
            assert!(EagerResponses::decode(&bytes[..len]).is_none());
        }
    }
    assert!(!responses.push(0, Status::Ok), "it is full");
    assert_eq!(pushed.last(), Some(&(14 * 0x1111, Status::NoSpace)));
    for (at, value) in [(0, 0x80), (1, 14), (1, 16), (2, 1), (3, 1), (6, 99), (7, 1)] {
        let mut bad = responses.message().to_vec();
        bad[at] = value;
        assert!(EagerResponses::decode(&bad).is_none(), "byte {at}");
    }
    assert_eq!(responses.message()[..8], [0x81, 15, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn freeing_in_order_matches_freeing_by_number() {
    let (mut by_number, mut in_order) = (ring(8, 4), ring(8, 4));
    assert!(!in_order.free_oldest(), "nothing is open");
    let mut numbers = Vec::new();
    for step in 0..200u32 {
        let length = (step * 7 % 4 + 1) * UNIT;
        let slot = by_number.take_slot(length, step);
        assert_eq!(in_order.take_slot(length, step), slot);
        numbers.extend(slot.map(|slot| slot.number));
        if slot.is_none() || step % 3 == 0 {
            let oldest = in_order.oldest().unwrap();
            assert_eq!(numbers.remove(0), oldest);
            assert!(by_number.free(oldest).is_some() && in_order.free_oldest());
        }
        assert_eq!(by_number.open(), in_order.open());
        assert_eq!(by_number.oldest(), in_order.oldest());
    }
}
