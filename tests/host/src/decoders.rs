// SPDX-License-Identifier: GPL-2.0

//! Every decoder, with the properties that hold for any input: the decoder does not panic, accepted
//! input equals its encoder's output, and other input is rejected for the right reason. Used with
//! random bytes by `fuzz.rs` and with guided ones by `tests/fuzz`.

use crate::proofs::{all_asked, all_told, asked, challenge, challenges, told};
use crate::proto::{
    connect::{Epoch, ExportInstance, Geometry, Reason, Reject, Reply, ConnectRequest as Connect, SessionId, REPLY_MIN_LEN, REQUEST_LEN},
    credits::Credits,
    eager_ring::{EagerResponses, EagerRingGrant},
    message::{
        AdminOp, AdminRequest, AdminResponse, ResponseKind, AtomicWrites, Attach, Attached, BadRequest, Extent, Handle, Op, Remote, IoRequest, ReservationOp, ReservationType, IoResponse, Status, Tag, VolumeLimits, VolumeState, MORE_OFFSET,
        REQUEST_LEN as MESSAGE_LEN, MESSAGE_REQUESTS_MAX,
    },
    name::{HostId, VolumeId, VolumeName},
};

/// A decoder under test.
#[derive(Clone, Copy)]
pub struct Decoder {
    /// The name of the decoder.
    pub name: &'static str,
    /// Decodes the input; panics if the decoder is wrong, otherwise returns whether the input was
    /// accepted.
    pub check: fn(&[u8]) -> bool,
    /// Returns accepted inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All decoders.
pub const ALL: &[Decoder] = &[
    Decoder {
        name: "request",
        check: request,
        seeds: requests,
    },
    Decoder {
        name: "response",
        check: response,
        seeds: responses,
    },
    Decoder {
        name: "admin_request",
        check: admin_request,
        seeds: admin_requests,
    },
    Decoder {
        name: "admin_response",
        check: admin_response,
        seeds: admin_responses,
    },
    Decoder {
        name: "answers",
        check: answers,
        seeds: many_answers,
    },
    Decoder {
        name: "connect",
        check: connect,
        seeds: || vec![connection().encode().to_vec()],
    },
    Decoder {
        name: "reply",
        check: reply,
        seeds: replies,
    },
    Decoder {
        name: "reject",
        check: reject,
        seeds: || vec![Reject::new(Reason::Version).encode().to_vec()],
    },
    Decoder {
        name: "asked",
        check: asked,
        seeds: all_asked,
    },
    Decoder {
        name: "challenge",
        check: challenge,
        seeds: challenges,
    },
    Decoder {
        name: "told",
        check: told,
        seeds: all_told,
    },
    Decoder {
        name: "name",
        check: name,
        seeds: names,
    },
    Decoder {
        name: "credits",
        check: credits,
        seeds: || vec![vec![2, 0, 0, 0, 1, 2], vec![8, 0, 2, 0, 0, 1]],
    },
];

fn request(bytes: &[u8]) -> bool {
    // As the target handles a message: data or other requests may follow the request.
    let (first, rest) = bytes.split_at(bytes.len().min(MESSAGE_LEN));
    match IoRequest::count(first, bytes.len()) {
        Ok(1) => one_request(first, rest, 0),
        Ok(count) => {
            assert!(count <= MESSAGE_REQUESTS_MAX);
            assert_eq!(bytes.len(), count * MESSAGE_LEN);
            let others = rest.chunks(MESSAGE_LEN);
            others.fold(one_request(first, &[], count - 1), |good, next| {
                one_request(next, &[], 0) && good
            })
        }
        Err(e) => {
            assert_eq!(e, BadRequest::EndSession);
            assert!(bytes[MORE_OFFSET] != 0);
            assert_ne!(bytes.len(), (usize::from(bytes[MORE_OFFSET]) + 1) * MESSAGE_LEN);
            false
        }
    }
}

/// Checks a request followed by data, or as the first of several.
fn one_request(bytes: &[u8], data: &[u8], more: usize) -> bool {
    match IoRequest::decode_before(bytes, data.len(), more as u8) {
        Ok(request) => {
            let mut right = request.encode();
            right[MORE_OFFSET] = more as u8;
            assert_eq!(right[..], *bytes);
            if let Op::WriteInline { extent, .. } = request.op {
                assert_eq!(extent.length as usize, data.len());
                assert!(extent.length > 0);
                assert!(extent.offset.checked_add(extent.length.into()).is_some());
            } else {
                assert!(data.is_empty());
            }
            if let Op::Read(extent, remote) | Op::Write { extent, remote, .. } = request.op {
                assert!(extent.length > 0);
                assert!(extent.offset.checked_add(extent.length.into()).is_some());
                assert!(remote.address.checked_add(extent.length.into()).is_some());
            }
            true
        }
        Err(BadRequest::EndSession) => {
            assert!(bytes.len() < 8 || bytes[32] == 4 || matches!(bytes[0], 0x21..=0x27 | 0x30..=0x36));
            false
        }
        Err(BadRequest::Refuse(tag, status)) => {
            assert_eq!(tag.index.to_le_bytes(), bytes[4..6]);
            assert_eq!(tag.generation.to_le_bytes(), bytes[6..8]);
            let known = (1..=3).contains(&bytes[0]);
            assert!(status == Status::Invalid || (status == Status::Unsupported && !known));
            false
        }
    }
}

fn answers(bytes: &[u8]) -> bool {
    let Some(answers) = EagerResponses::decode(bytes) else {
        return false;
    };
    let mut again = EagerResponses::new();
    for (number, status) in answers.iter() {
        assert!(again.push(number, status));
    }
    assert_eq!(again.message(), bytes);
    assert_eq!(answers.iter().count(), answers.len());
    assert!((1..=EagerResponses::MAX).contains(&answers.len()));
    true
}

fn many_answers() -> Vec<Vec<u8>> {
    [1, 2, EagerResponses::MAX]
        .map(|count| {
            let mut answers = EagerResponses::new();
            for number in 0..count {
                assert!(answers.push(number as u16, Status::Ok));
            }
            answers.message().to_vec()
        })
        .to_vec()
}

fn requests() -> Vec<Vec<u8>> {
    let tag = Tag {
        index: 7,
        generation: 9,
    };
    let extent = Extent {
        offset: 1 << 20,
        length: 4096,
    };
    let remote = Remote {
        address: 0x0009_0007_0000_0200,
        key: 0x1234_5678,
        response: ResponseKind::Invalidating,
    };
    let write = |fua| Op::Write {
        extent,
        remote,
        fua,
        atomic: false,
    };
    let small = Remote {
        response: ResponseKind::Immediate,
        ..remote
    };
    let inline = Op::WriteInline {
        extent: Extent {
            length: 512,
            ..extent
        },
        fua: false,
    };
    [
        Op::Read(extent, remote),
        Op::Read(extent, small),
        write(false),
        write(true),
        inline,
        Op::WriteEager { extent, fua: true },
        Op::Flush,
        Op::Nop,
        Op::Discard(extent),
        Op::WriteZeroes { extent, keep: true },
    ]
    .map(|op| {
        let quiet = op == Op::Flush;
        let mut message = IoRequest { tag, volume: Handle(2), op, quiet }.encode().to_vec();
        if op == inline {
            message.resize(MESSAGE_LEN + 512, 0x5a);
        }
        message
    })
    .into_iter()
    .chain([2, MESSAGE_REQUESTS_MAX].map(|count| {
        let op = Op::Read(extent, small);
        let quiet = true;
        let mut message = IoRequest { tag, volume: Handle(2), op, quiet }.encode().repeat(count);
        message[MORE_OFFSET] = count as u8 - 1;
        message
    }))
    .collect()
}

fn response(bytes: &[u8]) -> bool {
    let Some(response) = IoResponse::decode(bytes) else {
        return false;
    };
    assert_eq!(response.encode()[..], *bytes);
    true
}

fn responses() -> Vec<Vec<u8>> {
    let tag = Tag {
        index: 7,
        generation: 9,
    };
    [Status::Ok, Status::Gone]
        .map(|status| {
            let response = IoResponse {
                credits: 1,
                tag,
                status,
            };
            response.encode().to_vec()
        })
        .into()
}

fn admin_request(bytes: &[u8]) -> bool {
    let Some(request) = AdminRequest::decode(bytes) else {
        return false;
    };
    assert_eq!(request.encode()[..], *bytes);
    // On another queue pair the message ends the session.
    assert_eq!(IoRequest::decode(bytes), Err(BadRequest::EndSession));
    match request.op {
        AdminOp::KeepAlive { tmo_s } => assert!((1..=600).contains(&tmo_s)),
        AdminOp::Fence { path, epoch } => assert!(path < 16 && epoch.0 > 0),
        AdminOp::Watch { known, .. } => assert!(known.sectors > 0),
        AdminOp::Durable
        | AdminOp::Portals { .. }
        | AdminOp::Reservation { .. }
        | AdminOp::ReadKey { .. }
        | AdminOp::ReadReservation
        | AdminOp::Detach => {}
        AdminOp::Attach(Attach { disk, epoch, .. }) => assert!(disk.0 > 0 && epoch.0 > 0),
    }
    true
}

fn admin_requests() -> Vec<Vec<u8>> {
    let tag = Tag {
        index: 2,
        generation: 9,
    };
    let known = VolumeState {
        sectors: 1 << 40,
        read_only: true,
        write_cache: Some(true),
    };
    [
        AdminOp::KeepAlive { tmo_s: 5 },
        AdminOp::Fence {
            path: 3,
            epoch: Epoch(7),
        },
        AdminOp::Watch {
            known,
            flushes: true,
            generation: None,
        },
        AdminOp::Watch {
            known,
            flushes: false,
            generation: Some(77),
        },
        AdminOp::Durable,
        AdminOp::Portals { known: 77 },
        AdminOp::Reservation {
            sequence: 77,
            op: ReservationOp::Preempt {
                key: 1,
                victim: 2,
                how: ReservationType::WriteExclusiveAll,
                abort: true,
            },
        },
        AdminOp::Reservation {
            sequence: 78,
            op: ReservationOp::Register {
                key: 1,
                new: 2,
                ignore: true,
            },
        },
        AdminOp::ReadKey { index: 5 },
        AdminOp::ReadReservation,
        AdminOp::Attach(Attach {
            volume: VolumeName::parse("vol0").unwrap(),
            disk: SessionId(7),
            epoch: Epoch(8),
            resume: true,
        }),
        AdminOp::Detach,
    ]
    .map(|op| {
        let request = AdminRequest {
            tag,
            volume: Handle::FIRST,
            op,
        };
        request.encode().to_vec()
    })
    .to_vec()
}

fn admin_response(bytes: &[u8]) -> bool {
    let Some(response) = AdminResponse::decode(bytes) else {
        return false;
    };
    assert_eq!(response.encode()[..], *bytes);
    assert!(response.volume.is_none_or(|volume| volume.sectors > 0));
    assert!(response.limits.is_none_or(|(generation, _)| generation > 0 && response.volume.is_some()));
    assert!(response.portals.is_none_or(|generation| generation > 0 && response.volume.is_none()));
    // On another queue pair the message ends the session.
    assert_eq!(IoResponse::decode(bytes), None);
    true
}

fn admin_responses() -> Vec<Vec<u8>> {
    let tag = Tag {
        index: 2,
        generation: 9,
    };
    let changed = VolumeState {
        sectors: 1 << 40,
        read_only: true,
        write_cache: Some(true),
    };
    let limits = VolumeLimits {
        max_discard: 1 << 30,
        discard_granularity: 4096,
        discard_alignment: 512,
        max_zeroes: 1 << 20,
        zeroes_unmap: true,
        physical_block_shift: 12,
        alignment_offset: 3584,
        io_min: 1 << 17,
        io_opt: 1 << 18,
        rotational: true,
        atomic: AtomicWrites::from_bytes(512, 1 << 16, 1 << 17),
    };
    let none = (None, None, None);
    [
        (Status::Ok, (Some(changed), None, None)),
        (Status::Ok, (Some(changed), Some((78, limits)), None)),
        (Status::Draining, none),
        (Status::Ok, (None, None, Some(77))),
    ]
        .map(|(status, (volume, limits, portals))| AdminResponse {
            volume,
            limits,
            portals,
            ..AdminResponse::bare(tag, status)
        })
        .into_iter()
        .chain([Ok(attached()), Err(Reason::Evicted)].map(|outcome| AdminResponse {
            attached: Some(outcome),
            ..AdminResponse::bare(tag, Status::Ok)
        }))
        .map(|response| response.encode().to_vec())
        .collect()
}

fn attached() -> Attached {
    Attached {
        handle: Handle(3),
        geometry: geometry(),
        id: None,
        instance: ExportInstance::from_number(5),
    }
}

fn connect(bytes: &[u8]) -> bool {
    match Connect::decode(bytes) {
        Ok(request) => {
            assert_eq!(request.encode()[..], bytes[..REQUEST_LEN]);
            assert_eq!(request.version() == 2, request.volume.is_some());
            assert!(request.depth > 0 && request.queues > 0);
            assert!(request.queue < request.queues || (request.is_admin() && !request.replace));
            true
        }
        Err(reason) => {
            assert!(matches!(reason, Reason::Malformed | Reason::Version));
            false
        }
    }
}

/// Returns the connection request that [`replies`] answers.
pub(crate) fn connection() -> Connect {
    Connect {
        version_min: 2,
        version_max: 2,
        depth: 128,
        queue: 0,
        replace: false,
        queues: 4,
        resume: true,
        alone: false,
        largest: 3 << 20,
        session: SessionId(7),
        epoch: Epoch(1),
        host: HostId::from_wire(*b"0123456789abcdef").expect("a host id"),
        volume: VolumeName::parse("vol1").ok(),
    }
}

fn reply(bytes: &[u8]) -> bool {
    let request = connection();
    let Some(reply) = Reply::decode(bytes, &request) else {
        return false;
    };
    // Ignored bytes may differ, the meaning may not.
    assert_eq!(Reply::decode(&reply.encode(), &request), Some(reply));
    let g = reply.geometry;
    assert!(g.capacity > 0 && g.capacity <= i64::MAX as u64);
    assert_eq!(g.capacity % (1 << g.logical_block_shift), 0);
    assert!((1..=request.depth).contains(&reply.credits));
    true
}

fn geometry() -> Geometry {
    Geometry {
        capacity: 1 << 30,
        logical_block_shift: 9,
        physical_block_shift: 12,
        read_only: false,
        write_cache: true,
        fua: true,
        max_transfer: 2 << 20,
        max_discard: 1 << 30,
        discard_granularity: 512,
        max_zeroes: 1 << 24,
    }
}

fn replies() -> Vec<Vec<u8>> {
    let reply = Reply {
        version: 2,
        credits: 16,
        session: SessionId(7),
        epoch: Epoch(1),
        geometry: geometry(),
        inline: 4096,
        quiet: true,
        message_batches: true,
        tells_portals: true,
        tells_cache: true,
        tells_limits: true,
        no_read: true,
        grant: Some(EagerRingGrant { bytes: 2 << 20, key: 0x0102_0304, base: 0xffff_fffe }),
        id: VolumeId::from_wire(*b"fedcba9876543210").ok(),
        instance: ExportInstance::from_number(0x1234),
    };
    vec![
        reply.encode().to_vec(),
        reply.encode()[..REPLY_MIN_LEN].to_vec(),
    ]
}

fn reject(bytes: &[u8]) -> bool {
    let Some(reject) = Reject::decode(bytes) else {
        return false;
    };
    assert_eq!(Reject::decode(&reject.encode()), Some(reject));
    true
}

/// Checks a name: the first byte chooses between text and the form on the wire.
fn name(bytes: &[u8]) -> bool {
    let Some((&what, bytes)) = bytes.split_first() else {
        return false;
    };
    let text = core::str::from_utf8(bytes).ok();
    let wire = <[u8; 16]>::try_from(bytes).ok();
    match what % 4 {
        0 => text
            .and_then(|text| Some((text, VolumeName::parse(text).ok()?)))
            .map(|(text, name)| {
                // NULs at the end of a text do not change the name.
                assert_eq!(name.as_str(), text.trim_end_matches('\0'));
                assert_eq!(VolumeName::from_wire(name.to_wire()), Ok(name));
            })
            .is_some(),
        1 => wire
            .and_then(|wire| Some((wire, VolumeName::from_wire(wire).ok()?)))
            .map(|(wire, name)| {
                assert_eq!(name.to_wire(), wire);
                assert_eq!(VolumeName::parse(name.as_str()), Ok(name));
            })
            .is_some(),
        2 => text
            .and_then(|text| Some((text, HostId::parse(text).ok()?)))
            .map(|(text, id)| assert_eq!(id.to_string(), text.to_lowercase()))
            .is_some(),
        _ => wire
            .and_then(|wire| HostId::from_wire(wire).ok())
            .map(|id| assert_eq!(HostId::parse(&id.to_string()), Ok(id)))
            .is_some(),
    }
}

fn names() -> Vec<Vec<u8>> {
    vec![
        b"\0vol1".to_vec(),
        b"\x01vol-2.a_b\0\0\0\0\0\0\0".to_vec(),
        b"\x027c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44".to_vec(),
        b"\x030123456789abcdef".to_vec(),
    ]
}

/// Checks the initiator's account of credits: the first byte is the grant, then a 0 sends a
/// message, and any other byte is a response that grants one credit less than the byte.
fn credits(bytes: &[u8]) -> bool {
    let Some((&granted, bytes)) = bytes.split_first() else {
        return false;
    };
    let granted = u16::from(granted);
    let mut account = Credits::new(granted);
    // Messages for which the peer has not granted a credit, and messages without a response.
    let (mut owed, mut flying) = (0, 0u16);
    for &byte in bytes {
        if byte == 0 {
            let sent = account.take();
            assert_eq!(sent, owed < granted);
            owed += u16::from(sent);
            flying += u16::from(sent);
        } else if flying > 0 {
            let count = u16::from(byte - 1);
            if account.grant(count).is_err() {
                assert!(count > owed);
                return false;
            }
            assert!(count <= owed);
            owed -= count;
            flying -= 1;
            let goes_on = account.responded();
            assert_eq!(goes_on, owed < granted || flying > 0);
            if !goes_on {
                return false;
            }
        }
        assert_eq!(account.available(), granted - owed);
    }
    true
}
