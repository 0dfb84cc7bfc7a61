// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Limits in a watch and in its response.

use super::TAG;
use crate::proto::message::{
    AdminOp, AdminRequest, AdminResponse, AtomicWrites, Handle, Status, VolumeLimits, VolumeState,
    ADMIN_RESPONSE_LEN, LIMITS_RESPONSE_LEN, REQUEST_LEN,
};

const STATE: VolumeState = VolumeState {
    sectors: 8,
    read_only: true,
    write_cache: Some(true),
};

fn limits() -> VolumeLimits {
    VolumeLimits {
        max_discard: 0x0102_0000,
        discard_granularity: 8192,
        discard_alignment: 4096,
        max_zeroes: 0x0102_0000,
        zeroes_unmap: true,
        physical_block_shift: 13,
        alignment_offset: 512,
        io_min: 0x0002_0000,
        io_opt: 0x0004_0000,
        rotational: true,
        atomic: AtomicWrites::from_bytes(4096, 65536, 1 << 20),
    }
}

fn response(limits: VolumeLimits) -> AdminResponse {
    AdminResponse {
        volume: Some(STATE),
        limits: Some((0x0403_0201, limits)),
        ..AdminResponse::bare(TAG, Status::Ok)
    }
}

#[test]
fn a_watch_has_the_known_generation() {
    for generation in [0, 1, u32::MAX] {
        let request = AdminRequest {
            tag: TAG,
            volume: Handle::FIRST,
            op: AdminOp::Watch {
                known: STATE,
                flushes: false,
                generation: Some(generation),
            },
        };
        let good = request.encode();
        assert_eq!(
            good[16..24],
            [&[0b1_0111, 0, 0, 0], &generation.to_le_bytes()[..]].concat()
        );
        assert_eq!(AdminRequest::decode(&good), Some(request));
        for at in (1..2).chain(24..REQUEST_LEN) {
            let mut bad = good;
            bad[at] = 1;
            assert_eq!(AdminRequest::decode(&bad), None, "reserved byte {at}");
        }
        let mut bad = good;
        bad[16] &= !(1 << 4);
        let other = AdminRequest::decode(&bad);
        assert_eq!(
            other.is_some(),
            generation == 0,
            "a generation that is not followed"
        );
    }
}

#[test]
fn limits_are_encoded_at_the_documented_offsets() {
    let none = VolumeLimits {
        atomic: None,
        zeroes_unmap: false,
        ..limits()
    };
    for limits in [limits(), none] {
        let good = response(limits).encode().to_vec();
        assert_eq!(good.len(), LIMITS_RESPONSE_LEN);
        assert_eq!(AdminResponse::decode(&good), Some(response(limits)));
        for len in 0..LIMITS_RESPONSE_LEN {
            assert_eq!(AdminResponse::decode(&good[..len]), None, "{len} bytes");
        }
    }
    let good = response(limits()).encode().to_vec();
    assert_eq!(good[..2], [0x84, 7]);
    assert_eq!(good[12..16], [1, 2, 3, 4]);
    assert_eq!(good[16..24], [8, 0, 0, 0, 0, 0, 0, 0]);
    for (at, value) in [
        (24, 0x0102_0000),
        (28, 8192),
        (32, 4096),
        (36, 0x0102_0000),
        (40, 512),
        (44, 0x0002_0000),
        (48, 0x0004_0000u32),
    ] {
        assert_eq!(good[at..at + 4], value.to_le_bytes(), "at {at}");
    }
    assert_eq!(good[52..], [13, 3, 12, 16, 20, 0, 0, 0, 0, 0, 0, 0]);
    for (at, value) in [
        (1, 9),
        (2, 1),
        (10, 1),
        (53, 4),
        (54, 0),
        (57, 1),
        (58, 1),
        (60, 1),
    ] {
        let mut bad = good.clone();
        bad[at] = value;
        assert_eq!(AdminResponse::decode(&bad), None, "byte {at}");
    }
    let mut bad = good.clone();
    bad[12..16].fill(0);
    assert_eq!(AdminResponse::decode(&bad), None, "no generation");
    let mut bad = good.clone();
    bad[16] = 0;
    assert_eq!(AdminResponse::decode(&bad), None, "no size");
    let mut bad = good;
    bad[0] = 0x82;
    assert_eq!(AdminResponse::decode(&bad), None);
    bad.truncate(ADMIN_RESPONSE_LEN);
    assert_eq!(AdminResponse::decode(&bad), None, "a size and portals");
}

#[test]
fn limits_that_make_no_sense_are_found() {
    assert!(limits().is_sound(12));
    assert!(!limits().is_sound(8) && !limits().is_sound(13));
    let with = |change: fn(&mut VolumeLimits)| {
        let mut limits = limits();
        change(&mut limits);
        limits.is_sound(12)
    };
    let atomic = |min_shift, max_shift, boundary_shift| VolumeLimits {
        atomic: Some(AtomicWrites {
            min_shift,
            max_shift,
            boundary_shift,
        }),
        ..limits()
    };
    assert!(with(|l| l.max_discard = 0));
    assert!(with(|l| l.alignment_offset = 0));
    assert!(!with(|l| l.max_discard = 512), "not whole blocks");
    assert!(!with(|l| l.max_zeroes = 512));
    assert!(!with(|l| l.discard_granularity = 0));
    assert!(!with(|l| l.discard_granularity = 512));
    assert!(!with(|l| l.discard_alignment = 8192), "not within a unit");
    assert!(!with(|l| l.physical_block_shift = 11));
    assert!(!with(|l| l.physical_block_shift = 25));
    assert!(!with(|l| l.alignment_offset = u32::MAX));
    assert!(!with(|l| l.io_min = u32::MAX));
    assert!(!with(|l| l.io_opt = u32::MAX));
    assert!(atomic(12, 30, 0).is_sound(12) && atomic(12, 12, 12).is_sound(12));
    assert!(!atomic(11, 12, 0).is_sound(12), "less than a block");
    assert!(!atomic(13, 12, 0).is_sound(12));
    assert!(!atomic(12, 31, 0).is_sound(12));
    assert!(
        !atomic(12, 16, 15).is_sound(12),
        "the longest writes would cross the boundary"
    );
    assert!(!atomic(12, 16, 31).is_sound(12));
}

#[test]
fn limits_of_a_drive_are_fitted_to_the_protocol() {
    let odd = VolumeLimits {
        discard_alignment: 9000,
        alignment_offset: u32::MAX,
        io_min: 1 << 28,
        io_opt: u32::MAX,
        ..limits()
    };
    assert!(!odd.is_sound(12));
    assert!(odd.fitted(12).is_sound(12));
    assert_eq!(odd.fitted(12).io_opt, 0);
    assert_eq!(limits().fitted(12), limits());
    for odd in [
        VolumeLimits {
            discard_granularity: 512,
            ..limits()
        },
        VolumeLimits {
            discard_granularity: 6144,
            ..limits()
        },
    ] {
        assert!(odd.fitted(12).is_sound(12));
        assert_eq!(odd.fitted(12).max_discard, 0);
    }
    let late = VolumeLimits {
        atomic: Some(AtomicWrites {
            min_shift: 21,
            max_shift: 20,
            boundary_shift: 0,
        }),
        physical_block_shift: 30,
        ..limits()
    };
    assert!(late.fitted(12).is_sound(12));
    assert_eq!(late.fitted(12).atomic, None);
    let none = VolumeLimits {
        max_discard: 0,
        discard_granularity: 0,
        ..odd
    };
    assert!(none.fitted(12).is_sound(12));
    for (min, max, boundary) in [
        (0, 0, 0),
        (0, 4096, 0),
        (4096, 0, 0),
        (512, 3 << 12, 0),
        (512, 4096, 12288),
    ] {
        assert_eq!(AtomicWrites::from_bytes(min, max, boundary), None);
    }
}
