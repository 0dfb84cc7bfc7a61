// SPDX-License-Identifier: GPL-2.0

//! The decoders of what both sides send to prove who they are; see [`decoders`](crate::decoders).

use crate::{
    crypto::NoX25519 as Without,
    decoders::connection,
    proto::{
        auth::{Asked, Challenged, Channel, Initiator, Secret},
        connect::{Epoch, Request as Connect, SessionId, REQUEST_LEN},
        ADMIN_QUEUE,
    },
};

fn pair() -> Secret<Without> {
    let key = |digits: &str| Secret::<Without>::from_hex(&digits.repeat(32)).expect("a key");
    key("01").pair(&key("02"))
}

fn shaking() -> Initiator<Without> {
    Initiator::new(pair(), &Connect { queue: ADMIN_QUEUE, ..connection() })
}

/// A connection request, in whatever form it says who asks.
pub(crate) fn asked(bytes: &[u8]) -> bool {
    let Ok(asked) = Asked::decode(bytes) else {
        assert!(Connect::decode(bytes).is_err());
        return false;
    };
    let (head, host, volume) = (&bytes[..REQUEST_LEN], connection().host, connection().volume);
    match asked {
        Asked::Plain(request) => assert_eq!(Connect::decode(bytes), Ok(request)),
        Asked::Hello(request, hello) => {
            assert!(request.is_admin() && hello == head);
            let mut plain = hello;
            plain[11] &= !0x40;
            assert_eq!(Connect::decode(&plain), Ok(request));
        }
        Asked::Proof(proof) => {
            assert!(bytes[7] & 0x80 != 0 && proof.handle() < 1 << 14);
            assert_eq!(proof.mac(), head[40..]);
        }
        Asked::Sealed(sealed) => {
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
    vec![connection().encode().to_vec(), shaking().hello().to_vec(), proof.to_vec(), sealed.to_vec()]
}

/// What an initiator makes of a challenge: a proof of its handle, or nothing.
pub(crate) fn challenge(bytes: &[u8]) -> bool {
    let Some(unconfirmed) = shaking().prove(bytes, &Channel::default()) else {
        return false;
    };
    let Ok(Asked::Proof(proof)) = Asked::decode(unconfirmed.proof()) else {
        panic!("no proof");
    };
    assert_eq!(proof.handle().to_le_bytes(), bytes[8..10]);
    // What did not come from who has the keys is not believed.
    assert!(!unconfirmed.is_rejected(bytes, &Channel::default()));
    assert!(unconfirmed.confirm(&[bytes, bytes].concat(), &Channel::default()).is_none());
    true
}

pub(crate) fn challenges() -> Vec<Vec<u8>> {
    let Ok(Asked::Hello(request, hello)) = Asked::decode(shaking().hello()) else {
        panic!("no hello");
    };
    vec![Challenged::<Without>::new(request, hello, 5).challenge().to_vec()]
}
