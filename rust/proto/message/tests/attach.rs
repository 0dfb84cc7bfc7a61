// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Attaching and detaching volumes.

use super::{super::attach::*, *};
use crate::proto::{
    connect::{ExportInstance, Geometry, Reason, SessionId},
    name::{VolumeId, VolumeName},
    ATTACHED_MAX,
};

fn attach() -> AdminRequest {
    AdminRequest {
        tag: TAG,
        volume: Handle::FIRST,
        op: AdminOp::Attach(Attach {
            volume: VolumeName::parse("vol0").unwrap(),
            disk: SessionId(0x1122_3344_5566_7788),
            epoch: Epoch(9),
            resume: true,
        }),
    }
}

fn attached() -> Attached {
    Attached {
        handle: Handle(ATTACHED_MAX - 1),
        geometry: Geometry {
            capacity: 1 << 40,
            logical_block_shift: 9,
            physical_block_shift: 12,
            read_only: true,
            write_cache: true,
            fua: true,
            max_transfer: 1 << 20,
            max_discard: 1 << 30,
            discard_granularity: 4096,
            max_zeroes: 1 << 20,
        },
        id: Some(VolumeId::parse("6fa459ea-ee8a-3ca4-894e-db77e160355e").unwrap()),
        instance: ExportInstance::from_number(77),
    }
}

fn response(outcome: Result<Attached, Reason>) -> AdminResponse {
    AdminResponse {
        attached: Some(outcome),
        ..AdminResponse::bare(TAG, Status::Ok)
    }
}

#[test]
fn a_volume_is_attached_by_its_name() {
    let good = attach().encode();
    assert_eq!(good[..8], [0x26, 1, 0, 0, 2, 1, 4, 3]);
    assert_eq!(good[8..16], 0x1122_3344_5566_7788u64.to_le_bytes());
    assert_eq!(good[16..20], [9, 0, 0, 0]);
    assert_eq!(good[24..40], *b"vol0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(AdminRequest::decode(&good), Some(attach()));
    assert_eq!(IoRequest::decode(&good), Err(BadRequest::EndSession));
    let with = |at: usize, value: &[u8]| {
        let mut bytes = good;
        bytes[at..at + value.len()].copy_from_slice(value);
        AdminRequest::decode(&bytes)
    };
    assert_eq!(with(1, &[2]), None, "an unknown flag");
    for at in [2, 3, 20, 21, 22, 23] {
        assert_eq!(with(at, &[1]), None, "reserved byte {at}");
    }
    assert_eq!(with(8, &[0; 8]), None, "no disk");
    assert_eq!(with(16, &[0; 4]), None, "no epoch");
    assert_eq!(with(24, &[0; 4]), None, "no name");
    assert_eq!(with(24, b"."), None, "no name of a volume");
    let afresh = with(1, &[0]).unwrap();
    assert!(matches!(
        afresh.op,
        AdminOp::Attach(Attach { resume: false, .. })
    ));
}

#[test]
fn the_response_to_attach_has_the_handle() {
    let good = response(Ok(attached())).encode().to_vec();
    assert_eq!(good.len(), BUFFER_LEN);
    assert_eq!(AdminResponse::decode(&good), Some(response(Ok(attached()))));
    for len in 0..good.len() {
        assert_eq!(AdminResponse::decode(&good[..len]), None);
    }
    let with = |at: usize, value: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        AdminResponse::decode(&bytes)
    };
    assert_eq!(with(1, &[8]), None, "an unknown flag");
    assert_eq!(with(2, &ATTACHED_MAX.to_le_bytes()), None, "no handle");
    assert_eq!(with(10, &[8]), None, "no block size");
    assert_eq!(with(12, &[1]), None, "no length of data");
    assert_eq!(with(16, &[0; 8]), None, "no size");
    assert_eq!(with(60, &[1]), None, "a reserved byte");
    let unnamed = with(36, &[0; 24]).unwrap().attached.unwrap().unwrap();
    assert_eq!((unnamed.id, unnamed.instance), (None, None));
}

#[test]
fn a_refusal_has_a_reason_and_nothing_else() {
    for value in 1..=u16::MAX {
        let Some(reason) = Reason::from_wire(value) else {
            let mut bytes = response(Err(Reason::Evicted)).encode().to_vec();
            bytes[8..10].copy_from_slice(&value.to_le_bytes());
            assert_eq!(AdminResponse::decode(&bytes), None);
            continue;
        };
        let good = response(Err(reason)).encode().to_vec();
        assert_eq!(AdminResponse::decode(&good), Some(response(Err(reason))));
        for at in (1..4).chain(10..BUFFER_LEN) {
            let mut bad = good.clone();
            bad[at] = 1;
            assert_eq!(AdminResponse::decode(&bad), None, "byte {at}");
        }
    }
}

#[test]
fn requests_about_a_volume_have_its_handle() {
    let ask = |op| AdminRequest {
        tag: TAG,
        volume: Handle(0x0201),
        op,
    };
    for op in [AdminOp::Detach, AdminOp::Durable, AdminOp::ReadReservation] {
        let bytes = ask(op).encode();
        assert_eq!(bytes[1..4], [0, 1, 2]);
        assert_eq!(AdminRequest::decode(&bytes), Some(ask(op)));
    }
    for op in [
        AdminOp::KeepAlive { tmo_s: 5 },
        AdminOp::Portals { known: 0 },
    ] {
        let bytes = ask(op).encode();
        assert_eq!(AdminRequest::decode(&bytes), None, "it concerns no volume");
    }
}
