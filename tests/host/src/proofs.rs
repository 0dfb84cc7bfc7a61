// SPDX-License-Identifier: GPL-2.0

//! The decoders of both sides' messages for proofs; see [`decoders`](crate::decoders).

use crate::{
    crypto::NoX25519 as Without,
    decoders::connection,
    proto::{
        auth::{Challenged, Channel, Initiator, Purpose, RequestForm, Secret},
        connect::{Epoch, ConnectRequest as Connect, SessionId, REQUEST_LEN},
        discovery::{Entry, List, PortalEntry, Question, DiscoveryReply, VolumeEntry, VolumeMode},
        name::{VolumeId, VolumeName},
        ADMIN_QUEUE,
    },
};

fn pair() -> Secret<Without> {
    let key = |digits: &str| Secret::<Without>::from_hex(&digits.repeat(32)).expect("a key");
    key("01").pair(&key("02"))
}

fn shaking() -> Initiator<Without> {
    Initiator::new(pair(), &Connect { queue: ADMIN_QUEUE, ..connection() }.encode()).expect("chance")
}

fn question(list: List, index: u32) -> Question {
    Question { version_min: 2, version_max: 2, host: connection().host, list, index }
}

/// Checks that a decoded request equals its encoder's output, or the result of the decoder of requests for queue pairs.
fn is_encoded(purpose: &Purpose, bytes: &[u8]) {
    match purpose {
        Purpose::Connection(request) => assert_eq!(Connect::decode(bytes), Ok(*request)),
        Purpose::Entry(question) => {
            assert_eq!(question.encode(), bytes[..REQUEST_LEN]);
            assert!(Connect::decode(bytes).is_err());
        }
    }
}

/// Checks a connection request in any of its forms.
pub(crate) fn asked(bytes: &[u8]) -> bool {
    let Ok(asked) = RequestForm::decode(bytes) else {
        assert!(Connect::decode(bytes).is_err());
        return false;
    };
    let (head, host, volume) = (&bytes[..REQUEST_LEN], connection().host, connection().volume);
    match asked {
        RequestForm::Plain(purpose) => is_encoded(&purpose, bytes),
        RequestForm::Hello(purpose, hello) => {
            assert!(hello == head && hello[8] == ADMIN_QUEUE);
            let mut plain = hello;
            plain[11] &= !0x40;
            is_encoded(&purpose, &plain);
        }
        RequestForm::Proof(proof) => {
            assert!(bytes[7] & 0x80 != 0 && proof.handle() < 1 << 14);
            assert_eq!(proof.mac(), head[40..]);
        }
        RequestForm::Sealed(sealed) => {
            assert!(bytes[11] & 0x40 != 0 && bytes[7] & 0x80 == 0 && bytes[8] != ADMIN_QUEUE);
            assert_eq!(sealed.mac(), head[40..]);
            assert_eq!(sealed.session().to_le_bytes(), head[24..32]);
            assert_eq!(sealed.counter().to_le_bytes(), head[32..40]);
            let id = SessionId(u64::from_le_bytes(head[12..20].try_into().unwrap()));
            let epoch = Epoch(u32::from_le_bytes(head[20..24].try_into().unwrap()));
            if let Ok(request) = sealed.request((id, epoch), host, volume) {
                assert!(!request.is_admin());
                assert_eq!((request.session, request.epoch, request.host, request.volume), (id, epoch, host, volume));
                assert!(request.queue < request.queues);
            }
        }
    }
    true
}

pub(crate) fn all_asked() -> Vec<Vec<u8>> {
    let mut proof = connection().encode();
    proof[7] = 0xc0;
    let mut sealed = connection().encode();
    sealed[11] |= 0x40;
    let plain = question(List::Portals, 7).encode();
    let asking = Initiator::new(pair(), &question(List::Volumes, 0).encode()).expect("chance");
    let own = [shaking().hello().to_vec(), asking.hello().to_vec()];
    [vec![connection().encode().to_vec(), plain.to_vec(), proof.to_vec(), sealed.to_vec()], own.to_vec()].concat()
}

/// Checks an entry of either list, the first or a later one.
pub(crate) fn told(bytes: &[u8]) -> bool {
    let mut accepted = false;
    for question in [question(List::Volumes, 0), question(List::Portals, 0), question(List::Volumes, 9)] {
        let Ok(told) = DiscoveryReply::decode(bytes, &question) else {
            continue;
        };
        let again = told.encode();
        // The versions are ignored.
        assert_eq!(again[..6], bytes[..6]);
        match told.entry {
            // All bytes, except an invalid wwid.
            Some(_) => assert_eq!(again[8..], bytes[8..again.len()]),
            None => assert!(told.count <= question.index && bytes[16..again.len()].iter().all(|byte| *byte == 0)),
        }
        accepted = true;
    }
    accepted
}

pub(crate) fn all_told() -> Vec<Vec<u8>> {
    let volume = VolumeEntry {
        name: VolumeName::parse("vol1").expect("a volume name"),
        id: VolumeId::parse("0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11").ok(),
        capacity: 1 << 30,
        block_shift: 9,
        read_only: false,
        evicted: true,
        insecure: false,
        mode: VolumeMode::P2p,
    };
    let portal = PortalEntry { ip: "fd77::1".parse().expect("an address"), port: 7744 };
    let told = |count, entry| DiscoveryReply { count, revision: 5, entry }.encode().to_vec();
    vec![told(1, Some(Entry::Volume(volume))), told(2, Some(Entry::Portal(portal))), told(0, None)]
}

/// Checks an initiator's handling of a challenge: it sends a proof with its handle, or nothing.
pub(crate) fn challenge(bytes: &[u8]) -> bool {
    let Some(unconfirmed) = shaking().prove(bytes, &Channel::default()) else {
        return false;
    };
    let Ok(RequestForm::Proof(proof)) = RequestForm::decode(unconfirmed.proof()) else {
        panic!("no proof");
    };
    assert_eq!(proof.handle().to_le_bytes(), bytes[8..10]);
    // A reject without the right keys is not believed.
    assert!(!unconfirmed.is_rejected(bytes, &Channel::default()));
    assert!(unconfirmed.confirm(&[bytes, bytes].concat(), &Channel::default()).is_none());
    true
}

pub(crate) fn challenges() -> Vec<Vec<u8>> {
    let Ok(RequestForm::Hello(request, hello)) = RequestForm::decode(shaking().hello()) else {
        panic!("no hello");
    };
    let mut challenged = Challenged::<Without>::new(request, hello).expect("chance");
    challenged.set_handle(5);
    vec![challenged.challenge().to_vec()]
}
