// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the messages, on the host.

use super::{
    super::connect::{Epoch, PATHS_MAX},
    admin::{
        AdminOp, AdminRequest, AdminResponse, VolumeState, ADMIN_RESPONSE_LEN, DURABLE, FENCE,
        KEEP_ALIVE, KEEP_ALIVE_TMO_MAX, PORTALS, WATCH,
    },
    request::*,
    response::*,
    *,
};

mod attach;
mod limits;
mod portals;

const TAG: Tag = Tag {
    index: 0x0102,
    generation: 0x0304,
};
const EXTENT: Extent = Extent {
    offset: 0x1000,
    length: 4096,
};
const REMOTE: Remote = Remote {
    address: 0x7000,
    key: 0xa5a5_5a5a,
    response: ResponseKind::Invalidating,
};

fn requests() -> [IoRequest; 11] {
    let of = |op| IoRequest {
        tag: TAG,
        volume: Handle(0x0506),
        op,
        quiet: false,
    };
    let write = |fua| Op::Write {
        extent: EXTENT,
        remote: REMOTE,
        fua,
        atomic: false,
    };
    let zeroes = |keep| Op::WriteZeroes {
        extent: EXTENT,
        keep,
    };
    [
        of(Op::Read(EXTENT, REMOTE)),
        of(write(false)),
        of(write(true)),
        of(Op::Flush),
        of(Op::Read(
            EXTENT,
            Remote {
                response: ResponseKind::Immediate,
                ..REMOTE
            },
        )),
        of(Op::Discard(EXTENT)),
        of(zeroes(false)),
        of(zeroes(true)),
        of(Op::Nop),
        of(Op::WriteEager {
            extent: EXTENT,
            fua: false,
        }),
        of(Op::WriteEager {
            extent: EXTENT,
            fua: true,
        }),
    ]
}

#[test]
fn requests_round_trip() {
    for request in requests() {
        for quiet in [false, true] {
            let request = IoRequest { quiet, ..request };
            assert_eq!(IoRequest::decode(&request.encode()), Ok(request));
        }
    }
}

fn admin_requests() -> [AdminRequest; 8] {
    let watch = |sectors, read_only, write_cache, flushes| AdminOp::Watch {
        known: VolumeState {
            sectors,
            read_only,
            write_cache,
        },
        flushes,
        generation: None,
    };
    [
        AdminOp::KeepAlive {
            tmo_s: KEEP_ALIVE_TMO_MAX,
        },
        AdminOp::Fence {
            path: PATHS_MAX - 1,
            epoch: Epoch(u32::MAX),
        },
        watch(1, false, None, false),
        watch(u64::MAX, true, None, false),
        AdminOp::Durable,
        watch(1, false, Some(true), true),
        watch(1, true, Some(false), false),
        watch(1, true, Some(false), true),
    ]
    .map(|op| AdminRequest {
        tag: TAG,
        volume: Handle::FIRST,
        op,
    })
}

#[test]
fn admin_requests_round_trip_and_are_checked() {
    for request in admin_requests() {
        let good = request.encode();
        assert_eq!(AdminRequest::decode(&good), Some(request));
        for len in 0..REQUEST_LEN {
            assert_eq!(AdminRequest::decode(&good[..len]), None);
        }
        let mut long = good.to_vec();
        long.push(0);
        assert_eq!(AdminRequest::decode(&long), None);
        for at in (1..2).chain(20..REQUEST_LEN) {
            let mut bad = good;
            bad[at] = 1;
            assert_eq!(AdminRequest::decode(&bad), None, "reserved byte {at}");
        }
        for opcode in (0..=255).filter(|opcode| *opcode != good[0]) {
            let mut bad = good;
            bad[0] = opcode;
            let other = AdminRequest::decode(&bad);
            assert!(other.is_none_or(|other| other.encode() == bad));
            assert!(
                other.is_none()
                    || matches!(
                        opcode,
                        KEEP_ALIVE | FENCE | WATCH | DURABLE | PORTALS | 0x26 | 0x27 | 0x30..=0x36
                    )
            );
        }
        // On other queue pairs it ends the session.
        let elsewhere = IoRequest::decode(&good);
        assert_eq!(elsewhere, Err(BadRequest::EndSession));
    }
}

#[test]
fn every_field_of_an_admin_request_has_its_bounds() {
    let with = |n: usize, at: usize, value: &[u8]| {
        let mut bytes = admin_requests()[n].encode();
        bytes[at..at + value.len()].copy_from_slice(value);
        AdminRequest::decode(&bytes)
    };
    assert_eq!(with(0, 8, &[0, 0]), None, "no time");
    assert_eq!(with(0, 8, &[89, 2]), None, "601 s");
    assert_eq!(with(0, 10, &[1]), None, "2^16 s and more");
    assert_eq!(with(1, 8, &[0; 4]), None, "no epoch");
    assert_eq!(with(1, 12, &[PATHS_MAX]), None, "no such path");
    assert_eq!(with(1, 15, &[1]), None, "no such path");
    assert_eq!(with(2, 8, &[0; 8]), None, "no size");
    assert_eq!(with(2, 16, &[32]), None, "an unknown flag");
    assert_eq!(
        with(2, 16, &[2]),
        None,
        "a write cache that is not followed"
    );
    assert_eq!(
        with(2, 16, &[8]),
        None,
        "flushes, but the cache is not followed"
    );
    for n in [0, 1] {
        assert_eq!(with(n, 16, &[1]), None, "a flag of another request");
    }
    let bytes = admin_requests()[1].encode();
    assert_eq!(bytes[8..16], [255, 255, 255, 255, 15, 0, 0, 0]);
    let bytes = admin_requests()[2].encode();
    assert_eq!(bytes[..8], [WATCH, 0, 0, 0, 2, 1, 4, 3]);
}

#[test]
fn admin_responses_round_trip_and_are_checked() {
    let state = |sectors, read_only, write_cache| {
        Some(VolumeState {
            sectors,
            read_only,
            write_cache,
        })
    };
    let states = [
        None,
        state(1, true, None),
        state(u64::MAX, false, None),
        state(1, true, Some(false)),
        state(2, false, Some(true)),
    ];
    for volume in states {
        for status in (0..20).filter_map(Status::from_wire) {
            let response = AdminResponse {
                volume,
                ..AdminResponse::bare(TAG, status)
            };
            let good = response.encode().to_vec();
            assert_eq!(AdminResponse::decode(&good), Some(response));
            for len in 0..ADMIN_RESPONSE_LEN {
                assert_eq!(AdminResponse::decode(&good[..len]), None);
            }
            for (at, value) in [(0, 0x80), (1, 2), (2, 1), (3, 1), (8, 99), (10, 1), (11, 1)] {
                let mut bad = good.clone();
                bad[at] = value;
                assert_eq!(AdminResponse::decode(&bad), None, "byte {at}");
            }
        }
    }
    let mut bytes = AdminResponse::bare(TAG, Status::Ok).encode().to_vec();
    bytes[1] = 1;
    assert_eq!(
        AdminResponse::decode(&bytes),
        None,
        "read-only, but no size"
    );
}

#[test]
fn the_layout_is_the_documented_one() {
    let bytes = requests()[2].encode();
    assert_eq!(bytes[0..4], [2, 3, 0, 0]);
    assert_eq!(bytes[4..8], [2, 1, 4, 3]);
    assert_eq!(bytes[8..16], 0x1000u64.to_le_bytes());
    assert_eq!(bytes[16..20], 4096u32.to_le_bytes());
    assert_eq!(bytes[20..24], 0xa5a5_5a5au32.to_le_bytes());
    assert_eq!(bytes[24..32], 0x7000u64.to_le_bytes());
    assert_eq!(bytes[32..40], [1, 0, 6, 5, 0, 0, 0, 0]);
}

#[test]
fn short_messages_end_the_session_and_other_lengths_are_invalid() {
    let bytes = requests()[0].encode();
    for len in 0..8 {
        assert_eq!(
            IoRequest::decode(&bytes[..len]),
            Err(BadRequest::EndSession)
        );
    }
    let invalid = Err(BadRequest::Refuse(TAG, Status::Invalid));
    for len in 8..REQUEST_LEN {
        assert_eq!(IoRequest::decode(&bytes[..len]), invalid);
    }
    let mut long = bytes.to_vec();
    long.push(0);
    assert_eq!(IoRequest::decode(&long), invalid);
}

#[test]
fn every_field_of_a_request_is_checked() {
    let invalid = Err(BadRequest::Refuse(TAG, Status::Invalid));
    let unsupported = Err(BadRequest::Refuse(TAG, Status::Unsupported));
    let with = |at: usize, value: &[u8]| {
        let mut bytes = requests()[0].encode();
        bytes[at..at + value.len()].copy_from_slice(value);
        IoRequest::decode(&bytes)
    };
    assert_eq!(with(0, &[0]), unsupported);
    assert_eq!(with(0, &[DISCARD]), invalid, "a discard with data");
    assert_eq!(with(0, &[WRITE_ZEROES]), invalid, "zeroes with data");
    assert_eq!(with(0, &[NOP]), invalid, "nothing, with data");
    assert_eq!(with(0, &[NOP + 1]), unsupported);
    for opcode in [KEEP_ALIVE, FENCE, WATCH, DURABLE] {
        let end_session = Err(BadRequest::EndSession);
        assert_eq!(with(0, &[opcode]), end_session, "for the admin queue pair");
    }
    assert_eq!(with(0, &[RESPONSE]), unsupported);
    assert_eq!(with(1, &[FLAG_FUA]), invalid, "FUA on a read");
    assert_eq!(with(1, &[0x80]), invalid, "unknown flag");
    assert_eq!(with(16, &[0; 4]), invalid, "no length");
    assert_eq!(with(8, &[0xff; 8]), invalid, "offset wraps");
    assert_eq!(with(24, &[0xff; 8]), invalid, "address wraps");
    assert_eq!(with(32, &[0]), invalid, "read without data");
    assert_eq!(
        with(32, &[2]),
        invalid,
        "an immediate response cannot invalidate a key"
    );
    assert_eq!(with(32, &[3]), invalid, "a read is not inline");
    assert_eq!(with(32, &[5]), invalid, "reserved");
    let mut write = requests()[1].encode();
    (write[1], write[32]) = (0, DATA_IMMEDIATE);
    assert_eq!(
        IoRequest::decode(&write),
        invalid,
        "nothing is written to the initiator"
    );
    for at in [2, 3, 33].into_iter().chain(36..40) {
        assert_eq!(with(at, &[1]), invalid, "reserved byte {at}");
    }
}

#[test]
fn requests_without_data_name_none() {
    let invalid = Err(BadRequest::Refuse(TAG, Status::Invalid));
    for bare in [requests()[5], requests()[6]] {
        for (at, value, what) in [
            (1, FLAG_INVALIDATE, "nothing to invalidate"),
            (1, FLAG_FUA, "not durable"),
            (1, FLAG_FUA | FLAG_KEEP, "not durable, with another flag"),
            (15, 0xff, "offset wraps"),
            (17, 0, "no length"),
            (20, 1, "a key"),
            (31, 1, "an address"),
            (32, DATA_KEYED, "keyed data"),
            (32, DATA_INLINE, "inline data"),
        ] {
            let mut bytes = bare.encode();
            bytes[at] = value;
            if at == 15 {
                bytes[8..15].fill(0xff);
            }
            assert_eq!(IoRequest::decode(&bytes), invalid, "{what}");
        }
    }
    let mut discard = requests()[5].encode();
    discard[1] = FLAG_KEEP;
    assert_eq!(IoRequest::decode(&discard), invalid, "keeping a discard");
    let mut flush = requests()[3].encode();
    flush[1] = FLAG_INVALIDATE;
    assert_eq!(IoRequest::decode(&flush), invalid, "nothing to invalidate");
    flush[1] = 0;
    flush[32] = DATA_KEYED;
    assert_eq!(IoRequest::decode(&flush), invalid, "flush with data");
}

#[test]
fn responses_round_trip_and_are_checked() {
    for status in (0..20).filter_map(Status::from_wire) {
        let response = IoResponse {
            credits: 3,
            tag: TAG,
            status,
        };
        let bytes = response.encode();
        assert_eq!(IoResponse::decode(&bytes), Some(response));
        for len in 0..bytes.len() {
            assert_eq!(IoResponse::decode(&bytes[..len]), None);
        }
        for (at, value) in [(0, 1), (1, 1), (8, 99), (9, 1), (10, 1), (15, 1)] {
            let mut bad = bytes;
            bad[at] = value;
            assert_eq!(IoResponse::decode(&bad), None, "byte {at}");
        }
    }
}

#[test]
fn inline_data_has_the_length_that_is_said() {
    let request = IoRequest {
        tag: TAG,
        volume: Handle::FIRST,
        op: Op::WriteInline {
            extent: EXTENT,
            fua: true,
        },
        quiet: false,
    };
    let bytes = request.encode();
    let length = EXTENT.length as usize;
    let invalid = Err(BadRequest::Refuse(TAG, Status::Invalid));
    assert_eq!(IoRequest::decode_before(&bytes, length, 0), Ok(request));
    for wrong in [0, 1, length - 1, length + 1] {
        assert_eq!(
            IoRequest::decode_before(&bytes, wrong, 0),
            invalid,
            "{wrong}"
        );
    }
    for (at, value) in [
        (0, READ),
        (0, FLUSH),
        (1, FLAG_INVALIDATE),
        (20, 1),
        (24, 1),
    ] {
        let mut bad = bytes;
        bad[at] = value;
        assert_eq!(
            IoRequest::decode_before(&bad, length, 0),
            invalid,
            "byte {at}"
        );
    }
    for other in requests() {
        let eager = matches!(other.op, Op::WriteEager { .. });
        let bad = IoRequest::decode_before(&other.encode(), 512, 0);
        assert_eq!(
            bad,
            if eager {
                Err(BadRequest::EndSession)
            } else {
                invalid
            }
        );
    }
}

#[test]
fn a_message_has_the_stated_number_of_requests() {
    let one = requests()[0];
    for count in 2..=MESSAGE_REQUESTS_MAX {
        let mut bytes = one.encode().repeat(count);
        bytes[MORE_OFFSET] = count as u8 - 1;
        let (first, second) = (&bytes[..REQUEST_LEN], &bytes[REQUEST_LEN..][..REQUEST_LEN]);
        assert_eq!(IoRequest::count(first, bytes.len()), Ok(count));
        assert_eq!(IoRequest::decode_before(first, 0, count as u8 - 1), Ok(one));
        assert_eq!(IoRequest::decode(second), Ok(one));
        for wrong in [
            REQUEST_LEN,
            bytes.len() - 1,
            bytes.len() + 1,
            bytes.len() + REQUEST_LEN,
        ] {
            let count = IoRequest::count(first, wrong);
            assert_eq!(count, Err(BadRequest::EndSession), "{wrong}");
        }
        // A request that announces others is invalid except at the start of a message.
        let invalid = Err(BadRequest::Refuse(one.tag, Status::Invalid));
        assert_eq!(IoRequest::decode(first), invalid);
    }
    let mut many = one.encode();
    many[MORE_OFFSET] = MESSAGE_REQUESTS_MAX as u8;
    let length = (MESSAGE_REQUESTS_MAX + 1) * REQUEST_LEN;
    assert_eq!(IoRequest::count(&many, length), Err(BadRequest::EndSession));
    // Too short to have the field.
    assert_eq!(
        IoRequest::count(&many[..REQUEST_LEN - 1], REQUEST_LEN - 1),
        Ok(1)
    );
    assert_eq!(IoRequest::count(&[1, 0], 2), Ok(1));
    // Data may follow a request that announces no others.
    assert_eq!(IoRequest::count(&one.encode(), 80), Ok(1));
}

#[test]
fn wrong_use_of_the_eager_ring_ends_the_session() {
    let bytes = requests()[9].encode();
    assert_eq!(bytes[32], 4);
    for (at, value, what) in [
        (0, READ, "a read"),
        (0, FLUSH, "a flush"),
        (0, 8, "an unknown opcode"),
        (1, FLAG_INVALIDATE, "nothing to invalidate"),
        (1, 0x80, "an unknown flag"),
        (2, 1, "a reserved byte"),
        (17, 0, "no length"),
        (20, 1, "a key"),
        (24, 1, "an address"),
        (39, 1, "another reserved byte"),
    ] {
        let mut bad = bytes;
        bad[at] = value;
        assert_eq!(
            IoRequest::decode(&bad),
            Err(BadRequest::EndSession),
            "{what}"
        );
    }
    assert_eq!(
        IoRequest::decode_before(&bytes, 4096, 0),
        Err(BadRequest::EndSession)
    );
}

#[test]
fn immediates_are_tags() {
    assert_eq!(Tag::from_immediate(TAG.to_immediate()), TAG);
    assert_eq!(TAG.to_immediate(), 0x0304_0102);
}

#[test]
fn decoding_is_total() {
    // A small generator is enough to reach every branch; it needs no crate.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..200_000 {
        let mut bytes = requests()[next() as usize % requests().len()].encode();
        for _ in 0..next() % 4 {
            bytes[next() as usize % REQUEST_LEN] = next() as u8;
        }
        let len = if next() % 8 == 0 {
            next() as usize % (REQUEST_LEN + 1)
        } else {
            REQUEST_LEN
        };
        if let Ok(request) = IoRequest::decode(&bytes[..len]) {
            assert_eq!(request.encode(), bytes, "accepted means understood");
        }
        let _ = IoResponse::decode(&bytes[..16]);
        let admin = AdminRequest::decode(&bytes[..len]);
        assert!(admin.is_none_or(|admin| admin.encode() == bytes));
        let _ = AdminResponse::decode(&bytes[..ADMIN_RESPONSE_LEN]);
    }
}
