// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{
    super::{
        message,
        name::{
            HostId,
            VolumeId,
            VolumeName, //
        },
        ADMIN_DEPTH,
        ADMIN_QUEUE,
        DEPTH_MAX,
        QUEUES_MAX,
        TRANSFER_USUAL, //
    },
    reply::*,
    *, //
};
use crate::proto::eager_ring::EagerRingGrant;

fn request() -> ConnectRequest {
    ConnectRequest {
        version_min: 1,
        version_max: 3,
        depth: 128,
        queue: 1,
        replace: false,
        queues: 4,
        resume: false,
        alone: false,
        largest: 3 << 20,
        session: SessionId(0x1122_3344_5566_7788),
        epoch: Epoch(7),
        host: HostId::parse("6fa459ea-ee8a-3ca4-894e-db77e160355e").unwrap(),
        volume: Some(VolumeName::parse("vol0").unwrap()),
    }
}

fn reply() -> Reply {
    Reply {
        version: 2,
        credits: 128,
        session: request().session,
        epoch: request().epoch,
        geometry: Geometry {
            capacity: 1 << 30,
            logical_block_shift: 9,
            physical_block_shift: 12,
            read_only: false,
            write_cache: true,
            fua: true,
            max_transfer: 2 << 20,
            max_discard: 1 << 30,
            discard_granularity: 4096,
            max_zeroes: 1 << 24,
        },
        inline: 4096,
        quiet: true,
        message_batches: true,
        tells_portals: true,
        tells_cache: true,
        tells_limits: true,
        no_read: false,
        grant: Some(EagerRingGrant {
            bytes: 2 << 20,
            key: 0xa5a5_5a5a,
            base: 0x1234_5678,
        }),
        id: VolumeId::parse("0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11").ok(),
        instance: ExportInstance::from_number(0x8877_6655_4433_2211),
    }
}

#[test]
fn requests_round_trip() {
    assert_eq!(ConnectRequest::decode(&request().encode()), Ok(request()));
    let mut padded = request().encode().to_vec();
    padded.extend([0; 36]);
    assert_eq!(ConnectRequest::decode(&padded), Ok(request()));
    assert_eq!(request().version(), 2);
}

#[test]
fn a_message_takes_no_more_requests_than_may_follow_the_first() {
    let with = |message_batches, inline| {
        Reply {
            message_batches,
            inline,
            ..reply()
        }
        .requests_per_message()
    };
    assert_eq!(with(false, 4096), 1);
    assert_eq!(with(true, 0), 1);
    assert_eq!(with(true, 39), 1);
    assert_eq!(with(true, 40), 2);
    assert_eq!(with(true, 4096), message::MESSAGE_REQUESTS_MAX);
    let bytes = reply().encode();
    assert_eq!(
        bytes[5],
        QUIET | MESSAGE_BATCHES | PORTALS | FOLLOWS_CACHE | LIMITS
    );
}

#[test]
fn larger_requests_need_an_explicit_length() {
    let with = |units: u16| {
        let mut bytes = request().encode();
        bytes[10..12].copy_from_slice(&units.to_le_bytes());
        ConnectRequest::decode(&bytes).map(|request| request.largest)
    };
    assert_eq!(with(0), Ok(1 << 20));
    assert_eq!(with(257), Ok((1 << 20) + 4096));
    assert_eq!(with(1024), Ok(4 << 20));
    for units in [1, 255, 256, 1025, u16::MAX] {
        assert_eq!(with(units), Err(Reason::Malformed), "{units}");
    }
    let usual = ConnectRequest {
        largest: 1 << 20,
        ..request()
    };
    assert_eq!(usual.encode()[10..12], [0, 0]);
    assert_eq!(ConnectRequest::decode(&usual.encode()), Ok(usual));
}

#[test]
fn a_replacement_queue_pair_has_a_flag_next_to_its_number() {
    let instead = ConnectRequest {
        replace: true,
        ..request()
    };
    assert_eq!(instead.encode()[8..10], [0x81, 4]);
    assert_eq!(ConnectRequest::decode(&instead.encode()), Ok(instead));
    let mut bytes = instead.encode();
    bytes[8] = 0x84;
    assert_eq!(ConnectRequest::decode(&bytes), Err(Reason::Malformed));
    bytes[8..10].copy_from_slice(&[0xfe, 127]);
    let last = ConnectRequest::decode(&bytes).map(|r| (r.queue, r.replace));
    assert_eq!(last, Ok((126, true)));
}

#[test]
fn the_admin_queue_pair_has_its_own_number() {
    for queues in [1, QUEUES_MAX] {
        let admin = ConnectRequest {
            queue: ADMIN_QUEUE,
            queues,
            ..request()
        };
        let bytes = admin.encode();
        assert_eq!(bytes[8..10], [0xff, queues]);
        assert_eq!(ConnectRequest::decode(&bytes), Ok(admin));
        assert!(admin.is_admin() && !request().is_admin());
        for (credits, good) in [(ADMIN_DEPTH, true), (1, false), (128, false)] {
            let reply = Reply { credits, ..reply() };
            let decoded = Reply::decode(&reply.encode(), &admin);
            assert_eq!(decoded.is_some(), good, "{credits}");
        }
    }
    let mut bytes = request().encode();
    bytes[8..10].copy_from_slice(&[0x7f, 127]);
    assert_eq!(ConnectRequest::decode(&bytes), Err(Reason::Malformed));
}

#[test]
fn the_layout_is_the_documented_one() {
    let bytes = request().encode();
    assert_eq!(&bytes[..4], b"HCAB");
    assert_eq!(bytes[4..6], [1, 3]);
    assert_eq!(bytes[6..8], [128, 0]);
    // 3 MiB in units of 4 KiB.
    assert_eq!(bytes[8..12], [1, 4, 0, 3]);
    assert_eq!(bytes[12..20], 0x1122_3344_5566_7788u64.to_le_bytes());
    assert_eq!(bytes[20..24], [7, 0, 0, 0]);
    assert_eq!(bytes[24], 0x6f);
    assert_eq!(&bytes[40..45], b"vol0\0");
}

#[test]
fn a_session_of_a_host_names_no_volume() {
    let of_host = ConnectRequest {
        volume: None,
        ..request()
    };
    let bytes = of_host.encode();
    assert_eq!(bytes[40..], [0; 16]);
    assert_eq!(ConnectRequest::decode(&bytes), Ok(of_host));
    assert_eq!((request().version(), of_host.version()), (2, 3));
    let alone = ConnectRequest {
        alone: true,
        ..of_host
    };
    assert_eq!(alone.encode()[10..12], [0, 0x23]);
    assert_eq!(ConnectRequest::decode(&alone.encode()), Ok(alone));
    let counts = [request(), of_host, alone].map(|request| request.volumes());
    assert_eq!(counts, [1, 256, 1]);
    let named = ConnectRequest {
        alone: true,
        ..request()
    };
    assert_eq!(
        ConnectRequest::decode(&named.encode()),
        Err(Reason::Malformed)
    );
    for (asked, min, max, reason) in [
        (of_host, 1, 2, Reason::Malformed),
        (request(), 3, 3, Reason::Version),
    ] {
        let other = ConnectRequest {
            version_min: min,
            version_max: max,
            ..asked
        };
        assert_eq!(ConnectRequest::decode(&other.encode()), Err(reason));
    }
    // The reply to the request for such a session reports no volume.
    let of_session = Reply {
        version: 3,
        geometry: Geometry::of_session(2 << 20),
        ..reply()
    };
    let bytes = of_session.encode();
    assert_eq!(Reply::decode(&bytes, &of_host), Some(of_session));
    assert_eq!(Reply::decode(&bytes, &request()), None);
    assert_eq!(Reply::decode(&reply().encode(), &of_host), None);
    for max_transfer in [0, 4095, 4 << 20] {
        let bad = Reply {
            geometry: Geometry::of_session(max_transfer),
            ..of_session
        };
        assert_eq!(
            Reply::decode(&bad.encode(), &of_host),
            None,
            "{max_transfer}"
        );
    }
}

#[test]
fn every_truncation_is_refused() {
    let bytes = request().encode();
    for len in 0..bytes.len() {
        assert_eq!(
            ConnectRequest::decode(&bytes[..len]),
            Err(Reason::Malformed)
        );
    }
    let bytes = reply().encode();
    for len in 0..REPLY_MIN_LEN {
        assert_eq!(Reply::decode(&bytes[..len], &request()), None);
    }
    let bytes = Reject::new(Reason::Forbidden).encode();
    for len in 0..bytes.len() {
        assert_eq!(Reject::decode(&bytes[..len]), None);
    }
}

#[test]
fn every_field_of_a_request_is_checked() {
    let bad = |change: fn(&mut ConnectRequest)| {
        let mut r = request();
        change(&mut r);
        ConnectRequest::decode(&r.encode())
    };
    assert_eq!(bad(|r| r.depth = 0), Err(Reason::Malformed));
    assert_eq!(bad(|r| r.depth = DEPTH_MAX + 1), Err(Reason::Malformed));
    assert_eq!(bad(|r| r.queues = 0), Err(Reason::Malformed));
    assert_eq!(bad(|r| r.queues = QUEUES_MAX + 1), Err(Reason::Malformed));
    assert_eq!(bad(|r| r.queue = 4), Err(Reason::Malformed));
    assert_eq!(bad(|r| r.session.0 = 0), Err(Reason::Malformed));
    assert_eq!(bad(|r| r.epoch.0 = 0), Err(Reason::Malformed));
    assert_eq!(bad(|r| r.version_min = 4), Err(Reason::Malformed));
    assert_eq!(
        bad(|r| (r.version_min, r.version_max) = (99, 99)),
        Err(Reason::Version)
    );
    assert_eq!(
        bad(|r| (r.version_min, r.version_max) = (0, 0)),
        Err(Reason::Version)
    );
    for (at, what) in [
        (0, "magic"),
        (11, "largest request"),
        (40, "name"),
        (55, "name's end"),
    ] {
        let mut bytes = request().encode();
        bytes[at] = 0xff;
        assert_eq!(
            ConnectRequest::decode(&bytes),
            Err(Reason::Malformed),
            "{what}"
        );
    }
    let mut bytes = request().encode();
    bytes[24..40].fill(0);
    assert_eq!(
        ConnectRequest::decode(&bytes),
        Err(Reason::Malformed),
        "nil host"
    );
}

#[test]
fn replies_round_trip_and_are_checked() {
    assert_eq!(Reply::decode(&reply().encode(), &request()), Some(reply()));
    let bad = |change: fn(&mut Reply)| {
        let mut r = reply();
        change(&mut r);
        Reply::decode(&r.encode(), &request())
    };
    assert_eq!(bad(|r| r.version = 4), None);
    assert_eq!(bad(|r| r.credits = 0), None);
    assert_eq!(bad(|r| r.credits = 129), None);
    assert_eq!(bad(|r| r.session.0 += 1), None);
    assert_eq!(bad(|r| r.epoch.0 += 1), None);
    assert_eq!(bad(|r| r.geometry.capacity = 0), None);
    assert_eq!(bad(|r| r.geometry.capacity += 1), None);
    assert_eq!(bad(|r| r.geometry.capacity = 1 << 63), None);
    assert_eq!(bad(|r| r.geometry.logical_block_shift = 8), None);
    assert_eq!(bad(|r| r.geometry.logical_block_shift = 200), None);
    assert_eq!(bad(|r| r.geometry.physical_block_shift = 8), None);
    assert_eq!(bad(|r| r.geometry.physical_block_shift = 255), None);
    assert_eq!(bad(|r| r.geometry.max_transfer = 0), None);
    assert_eq!(bad(|r| r.geometry.max_transfer = u32::MAX), None);
    assert_eq!(bad(|r| r.geometry.max_transfer = (3 << 20) + 4096), None);
    assert_eq!(bad(|r| r.geometry.max_discard += 1), None);
    assert_eq!(bad(|r| r.geometry.discard_granularity += 1), None);
    assert_eq!(bad(|r| r.geometry.discard_granularity = 0), None);
    assert_eq!(bad(|r| r.geometry.max_zeroes += 1), None);
    assert!(bad(|r| (r.geometry.max_discard, r.geometry.discard_granularity) = (0, 0)).is_some());
}

#[test]
fn a_reply_need_not_have_an_id() {
    let bytes = reply().encode();
    let without = Reply {
        id: None,
        ..reply()
    };
    let short = Reply {
        instance: None,
        ..without
    };
    assert_eq!(
        Reply::decode(&bytes[..REPLY_MIN_LEN], &request()),
        Some(short)
    );
    assert_eq!(bytes[52..56], [0, 0, 32, 0]);
    assert_eq!(bytes[60..64], [0x78, 0x56, 0x34, 0x12]);
    assert_eq!(Reply::decode(&without.encode(), &request()), Some(without));
    assert_eq!(bytes[64..66], [0x0b, 0x6c]);
}

#[test]
fn a_resumed_session_has_a_flag_next_to_the_largest_length() {
    let resumed = ConnectRequest {
        resume: true,
        ..request()
    };
    let bytes = resumed.encode();
    assert_eq!(bytes[10..12], [0, 0x83]);
    assert_eq!(ConnectRequest::decode(&bytes), Ok(resumed));
    let usual = ConnectRequest {
        largest: TRANSFER_USUAL,
        ..resumed
    };
    assert_eq!(usual.encode()[10..12], [0, 0x80]);
    assert_eq!(ConnectRequest::decode(&usual.encode()), Ok(usual));
}

#[test]
fn a_reply_ends_with_the_export_instance() {
    let bytes = reply().encode();
    assert_eq!(bytes[80..88], 0x8877_6655_4433_2211u64.to_le_bytes());
    let without_instance = Reply {
        instance: None,
        ..reply()
    };
    assert_eq!(
        Reply::decode(&bytes[..80], &request()),
        Some(without_instance)
    );
    assert_eq!(without_instance.encode()[80..], [0; 8]);
}

#[test]
fn a_reply_need_not_grant_memory_unless_there_is_no_read() {
    let decoded = |change: fn(&mut Reply)| {
        let mut r = reply();
        change(&mut r);
        let decoded = Reply::decode(&r.encode(), &request());
        assert!(decoded.is_none_or(|d| d == r));
        decoded.is_some()
    };
    let of = |bytes| {
        Some(EagerRingGrant {
            bytes,
            key: 1,
            base: 2,
        })
    };
    assert!(decoded(|r| r.grant = None));
    assert!(decoded(|r| r.no_read = true));
    assert!(!decoded(|r| (r.grant, r.no_read) = (None, true)));
    assert!(decoded(|r| {
        (r.grant, r.no_read, r.geometry.read_only) = (None, true, true);
    }));
    let mut r = reply();
    for (bytes, no_read, good) in [
        (4096, false, true),
        (4095, false, false),
        (1 << 25, false, false),
        ((1 << 20) - 4096, true, false),
        (1 << 21, true, true),
    ] {
        (r.grant, r.no_read) = (of(bytes), no_read);
        let decoded = Reply::decode(&r.encode(), &request());
        assert_eq!(decoded.is_some(), good, "{bytes} {no_read}");
    }
}

#[test]
fn rejects_round_trip() {
    for reason in (0..=20).filter_map(Reason::from_wire) {
        let reject = Reject::new(reason);
        assert_eq!(Reject::decode(&reject.encode()), Some(reject));
    }
    assert_eq!(Reason::from_wire(0), None);
    assert_eq!(Reject::decode(&[0xff; REJECT_LEN]), None);
}
