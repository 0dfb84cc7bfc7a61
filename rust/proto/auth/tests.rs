// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{
    super::{
        connect::{ConnectRequest, Epoch, Reason, Reject, SessionId, REPLY_LEN, REQUEST_LEN},
        name::{HostId, VolumeName},
        ADMIN_QUEUE,
    },
    *,
};
use crate::crypto::{self, HostCrypto, NoX25519};

mod entries;

const HANDLE: u16 = 0x1234;
const SESSION: u64 = 0x0123_4567_89ab_cdef;
const REPLY: [u8; REPLY_LEN] = [0x5a; REPLY_LEN];

fn request() -> ConnectRequest {
    ConnectRequest {
        version_min: 2,
        version_max: 2,
        depth: 128,
        queue: ADMIN_QUEUE,
        replace: false,
        queues: 4,
        resume: true,
        alone: false,
        largest: 1 << 20,
        session: SessionId(0x1122_3344_5566_7788),
        epoch: Epoch(7),
        host: HostId::parse("6fa459ea-ee8a-3ca4-894e-db77e160355e").unwrap(),
        volume: Some(VolumeName::parse("vol0").unwrap()),
    }
}

fn channel() -> Channel {
    Channel {
        initiator: End {
            gid: [1; 16],
            ip: [3; 16],
            port: 40000,
            qp: 17,
        },
        target: End {
            gid: [2; 16],
            ip: [4; 16],
            port: 7744,
            qp: 0,
        },
    }
}

fn replying() -> Channel {
    channel().of_reply(18)
}

fn secret<C: Crypto>(byte: u8) -> Secret<C> {
    Secret::from_bytes([byte; KEY_LEN])
}

fn pair<C: Crypto>(host: u8, target: u8) -> Secret<C> {
    secret::<C>(host).pair(&secret(target))
}

/// A target's response to a hello.
fn challenged<C: Crypto>(hello: &[u8]) -> Option<Challenged<C>> {
    match RequestForm::decode(hello) {
        Ok(RequestForm::Hello(request, bytes)) => {
            let mut challenged = Challenged::new(request, bytes)?;
            challenged.set_handle(HANDLE);
            Some(challenged)
        }
        _ => None,
    }
}

fn proof_of(bytes: &[u8]) -> Option<Proof> {
    match RequestForm::decode(bytes) {
        Ok(RequestForm::Proof(proof)) => Some(proof),
        _ => None,
    }
}

/// Carries out a handshake whose messages `change` may alter on their way. Returns both sides'
/// session keys, or names the first message that was refused.
fn shake<I: Crypto, T: Crypto>(
    change: impl Fn(usize, &mut [u8]),
    (at_initiator, at_target): (Channel, Channel),
    (of_initiator, of_target): (Secret<I>, &[Secret<T>]),
) -> Result<(SessionKey<I>, SessionKey<T>), &'static str> {
    let initiator = Initiator::new(of_initiator, &request().encode()).unwrap();
    let mut hello = *initiator.hello();
    change(0, &mut hello);
    let target = challenged::<T>(&hello).ok_or("hello")?;
    let mut challenge = *target.challenge();
    change(1, &mut challenge);
    let unconfirmed = initiator
        .prove(&challenge, &at_initiator)
        .ok_or("challenge")?;
    let mut proof = *unconfirmed.proof();
    change(2, &mut proof);
    let came = proof_of(&proof).ok_or("proof's form")?;
    if came.handle() != HANDLE {
        return Err("proof's handle");
    }
    let (_, key) = target
        .verify(&came, of_target.iter(), &at_target)
        .ok_or("proof")?;
    let mut reply = key.seal_reply(&came.mac(), &REPLY, SESSION, &at_target.of_reply(18));
    change(3, &mut reply);
    let (read, own, session) = unconfirmed
        .confirm(&reply, &at_initiator.of_reply(18))
        .ok_or("reply")?;
    assert_eq!((read, session), (REPLY, SESSION));
    Ok((own, key))
}

fn untouched<I: Crypto, T: Crypto>(
    of_initiator: Secret<I>,
    of_target: &[Secret<T>],
) -> Result<(SessionKey<I>, SessionKey<T>), &'static str> {
    shake(|_, _| (), (channel(), channel()), (of_initiator, of_target))
}

fn agree<I: Crypto, T: Crypto>() {
    let (initiator, target) = untouched::<I, T>(pair(1, 2), &[pair(1, 2)]).unwrap();
    let queue = ConnectRequest {
        queue: 3,
        ..request()
    };
    let bytes = initiator.seal_request(&queue, SESSION, 1, &channel());
    let Ok(RequestForm::Sealed(sealed)) = RequestForm::decode(&bytes) else {
        panic!("no sealed request");
    };
    assert!(target.has_sealed(&sealed, &channel()));
    assert_eq!((sealed.session(), sealed.counter()), (SESSION, 1));
    let named = |session, epoch| sealed.request((session, epoch), queue.host, queue.volume);
    assert_eq!(named(queue.session, queue.epoch), Ok(queue));
    assert_eq!(named(SessionId(1), queue.epoch), Err(Reason::Malformed));
    assert_eq!(named(queue.session, Epoch(8)), Err(Reason::Malformed));
    let reply = target.seal_reply(&sealed.mac(), &REPLY, SESSION, &replying());
    assert_eq!(
        initiator.open_reply(&sealed.mac(), &reply, &replying()),
        Some((REPLY, SESSION))
    );
    let reject = target.seal_reject(&sealed.mac(), &Reject::new(Reason::Evicted), &replying());
    assert!(initiator.has_rejected(&sealed.mac(), &reject, &replying()));
    assert!(Reject::decode(&reject).is_some());
}

#[test]
fn both_sides_agree_with_and_without_x25519() {
    agree::<HostCrypto, HostCrypto>();
    agree::<NoX25519, HostCrypto>();
    agree::<HostCrypto, NoX25519>();
    agree::<NoX25519, NoX25519>();
}

#[test]
fn other_keys_are_refused() {
    type C = HostCrypto;
    let refused =
        |of_initiator, of_target: &[Secret<C>]| untouched::<C, C>(of_initiator, of_target).err();
    let proof = Some("proof");
    // The key of another host, of another target, of both, the two keys exchanged, and none.
    assert_eq!(refused(pair(3, 2), &[pair(1, 2)]), proof);
    assert_eq!(refused(pair(1, 3), &[pair(1, 2)]), proof);
    assert_eq!(refused(pair(3, 3), &[pair(1, 2)]), proof);
    assert_eq!(refused(pair(2, 1), &[pair(1, 2)]), proof);
    assert_eq!(refused(pair(1, 2), &[]), proof);
    // Any of several valid keys is accepted.
    for at in 0..4 {
        let mut pairs = [pair(4, 4), pair(5, 4), pair(6, 4), pair(7, 4)];
        pairs[at] = pair(1, 2);
        assert_eq!(refused(pair(1, 2), &pairs), None, "{at}");
    }
}

/// Inverts every bit of every message, one at a time.
#[test]
fn no_mutation_is_accepted() {
    fn all<I: Crypto, T: Crypto>() {
        let mut refused = [0; 4];
        for (message, len) in [REQUEST_LEN, CHALLENGE_LEN, REQUEST_LEN, SEALED_REPLY_LEN]
            .into_iter()
            .enumerate()
        {
            for bit in 0..8 * len {
                let result = shake::<I, T>(
                    |sent, bytes| {
                        if sent == message {
                            bytes[bit / 8] ^= 1 << (bit % 8);
                        }
                    },
                    (channel(), channel()),
                    (pair(1, 2), &[pair(1, 2)]),
                );
                assert!(result.is_err(), "message {message}, bit {bit}");
                refused[message] += 1;
            }
        }
        assert_eq!(refused, [448, 640, 448, 896]);
    }
    all::<HostCrypto, HostCrypto>();
    all::<NoX25519, HostCrypto>();
    all::<NoX25519, NoX25519>();
}

#[test]
fn a_proof_is_worth_nothing_on_another_channel() {
    let (initiator, target) = (channel().initiator, channel().target);
    let with = |initiator, target| Channel { initiator, target };
    let changed = |end: End| {
        [
            End {
                gid: [9; 16],
                ..end
            },
            End { ip: [9; 16], ..end },
            End { port: 9, ..end },
            End { qp: 9, ..end },
        ]
    };
    let others = changed(initiator).map(|end| with(end, target));
    // A request does not include the target's queue pair.
    let of_target = changed(target).map(|end| with(initiator, End { qp: 0, ..end }));
    let of_target = of_target.into_iter().take(3);
    for other in others.into_iter().chain(of_target) {
        let keys = (pair::<HostCrypto>(1, 2), &[pair::<HostCrypto>(1, 2)][..]);
        let result = shake(|_, _| (), (channel(), other), keys);
        assert_eq!(result.err(), Some("proof"));
    }
    let (initiator, target) =
        untouched::<HostCrypto, HostCrypto>(pair(1, 2), &[pair(1, 2)]).unwrap();
    let reply = target.seal_reply(&[7; MAC_LEN], &REPLY, SESSION, &replying());
    let other = channel().of_reply(19);
    assert_eq!(initiator.open_reply(&[7; MAC_LEN], &reply, &other), None);
}

#[test]
fn a_proof_is_worth_nothing_for_another_challenge() {
    type C = HostCrypto;
    let hello = *Initiator::<C>::new(pair(1, 2), &request().encode())
        .unwrap()
        .hello();
    let (first, second) = (
        challenged::<C>(&hello).unwrap(),
        challenged::<C>(&hello).unwrap(),
    );
    assert_ne!(first.challenge(), second.challenge());
    let unconfirmed = Initiator::<C>::new(pair(1, 2), &request().encode())
        .unwrap()
        .prove(first.challenge(), &channel())
        .unwrap();
    let proof = proof_of(unconfirmed.proof()).unwrap();
    let pairs = [pair(1, 2)];
    assert!(second.verify(&proof, pairs.iter(), &channel()).is_none());
    assert!(first.verify(&proof, pairs.iter(), &channel()).is_some());
}

#[test]
fn nothing_sealed_is_taken_for_something_else() {
    let (initiator, target) =
        untouched::<HostCrypto, HostCrypto>(pair(1, 2), &[pair(1, 2)]).unwrap();
    let (_, other) = untouched::<HostCrypto, HostCrypto>(pair(1, 2), &[pair(1, 2)]).unwrap();
    let queue = ConnectRequest {
        queue: 0,
        ..request()
    };
    let bytes = initiator.seal_request(&queue, SESSION, 1, &channel());
    let sealed = |bytes: &[u8]| match RequestForm::decode(bytes) {
        Ok(RequestForm::Sealed(sealed)) => Some(sealed),
        _ => None,
    };
    let good = sealed(&bytes).unwrap();
    assert!(
        !other.has_sealed(&good, &channel()),
        "another session's key"
    );
    for bit in 0..8 * REQUEST_LEN {
        let mut changed = bytes;
        changed[bit / 8] ^= 1 << (bit % 8);
        let accepted =
            sealed(&changed).is_some_and(|sealed| target.has_sealed(&sealed, &channel()));
        assert!(!accepted, "bit {bit} of a request");
    }
    let reply = target.seal_reply(&good.mac(), &REPLY, SESSION, &replying());
    for bit in 0..8 * SEALED_REPLY_LEN {
        let mut changed = reply;
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(
            initiator.open_reply(&good.mac(), &changed, &replying()),
            None,
            "bit {bit} of a reply"
        );
    }
    assert_eq!(
        initiator.open_reply(&[0; MAC_LEN], &reply, &replying()),
        None,
        "of another request"
    );
    assert_eq!(
        initiator.open_reply(&good.mac(), &reply[..111], &replying()),
        None
    );
    let reject = target.seal_reject(&good.mac(), &Reject::new(Reason::Evicted), &channel());
    for bit in 0..8 * SEALED_REJECT_LEN {
        let mut changed = reject;
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(
            !initiator.has_rejected(&good.mac(), &changed, &channel()),
            "bit {bit} of a reject"
        );
    }
    assert!(
        !initiator.has_rejected(&[0; MAC_LEN], &reject, &channel()),
        "of another request"
    );
    assert!(!initiator.has_rejected(&good.mac(), &reject[..31], &channel()));
    // Bytes of one side, sent back to it.
    assert!(!initiator.has_rejected(&good.mac(), &bytes, &channel()));
    assert_eq!(
        initiator.open_reply(&good.mac(), &[bytes, bytes].concat(), &channel()),
        None
    );
}

#[test]
fn points_of_small_order_are_refused() {
    type C = HostCrypto;
    let points: [[u8; KEY_LEN]; 2] = [[0; KEY_LEN], core::array::from_fn(|i| u8::from(i == 0))];
    for point in points {
        let initiator = Initiator::<C>::new(pair(1, 2), &request().encode()).unwrap();
        let target = challenged::<C>(initiator.hello()).unwrap();
        let mut challenge = *target.challenge();
        challenge[48..80].copy_from_slice(&point);
        assert!(initiator.prove(&challenge, &channel()).is_none());
        let mut proof = [0; REQUEST_LEN];
        proof[..6].copy_from_slice(b"HCAB\x02\x02");
        proof[6..8].copy_from_slice(&(0xc000 | HANDLE).to_le_bytes());
        proof[8..40].copy_from_slice(&point);
        let proof = proof_of(&proof).unwrap();
        assert!(target
            .verify(&proof, [pair(1, 2)].iter(), &channel())
            .is_none());
    }
}

#[test]
fn a_number_is_accepted_once() {
    let mut window = Window::new();
    for (number, accepted) in [
        (0, false),
        (1, true),
        (1, false),
        (3, true),
        (2, true),
        (2, false),
        (3, false),
        (130, true),
        (2, false),
        (4, true),
        (4, false),
        (1000, true),
        (872, false),
        (873, true),
        (873, false),
        (u64::MAX, true),
        (u64::MAX, false),
        (1000, false),
        (u64::MAX - 127, true),
        (u64::MAX - 128, false),
    ] {
        assert_eq!(window.accept(number), accepted, "{number}");
    }
    // Numbers are accepted in any order, each once.
    let mut window = Window::new();
    let mut numbers: Vec<u64> = (1..=127).collect();
    numbers.reverse();
    numbers.swap(3, 90);
    assert!(numbers.iter().all(|number| window.accept(*number)));
    assert!(!numbers.iter().any(|number| window.accept(*number)));
}

#[test]
fn keys_are_read_and_others_are_not() {
    let good = "00".repeat(31) + "fF";
    assert_eq!(
        Secret::<HostCrypto>::from_hex(&good).unwrap().bytes[31],
        0xff
    );
    for bad in [
        "",
        "ff",
        &"00".repeat(32),
        &"ff".repeat(33),
        &("zz".to_owned() + &"ff".repeat(31)),
        &"é".repeat(32),
    ] {
        assert!(Secret::<HostCrypto>::from_hex(bad).is_none(), "{bad}");
    }
}

/// Compares with the bytes that `tests/vectors/handshake.py` computes independently.
#[test]
fn the_vectors_are_met() {
    let text = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../vectors/handshake.txt"
    ));
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    let vectors: Vec<_> = lines.map(|line| line.split_once(" = ").unwrap()).collect();
    let hex = |name: &str| -> Vec<u8> {
        let (_, digits) = vectors
            .iter()
            .find(|(known, _)| *known == name)
            .unwrap_or_else(|| panic!("{name}"));
        (0..digits.len() / 2)
            .map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap())
            .collect()
    };
    let key = |name: &str| Secret::<HostCrypto>::from_bytes(hex(name).try_into().unwrap());
    let end = |side: &str| End {
        gid: hex(&format!("{side}_gid")).try_into().unwrap(),
        ip: hex(&format!("{side}_ip")).try_into().unwrap(),
        port: u16::from_le_bytes(hex(&format!("{side}_port")).try_into().unwrap()),
        qp: u32::from_le_bytes(hex(&format!("{side}_qp")).try_into().unwrap()),
    };
    let replying = Channel {
        initiator: end("initiator"),
        target: end("target"),
    };
    let channel = replying.of_reply(0);
    let pair = key("host_key").pair(&key("target_key"));
    assert_eq!(pair.bytes[..], hex("pair_key"));
    crypto::next_random(&[hex("initiator_private")]);
    let initiator = Initiator::new(pair.copy(), &request().encode()).unwrap();
    assert_eq!(initiator.hello()[..], hex("hello"));
    crypto::next_random(&[hex("target_private"), hex("target_nonce")]);
    let target = challenged::<HostCrypto>(initiator.hello()).unwrap();
    assert_eq!(target.challenge()[..], hex("challenge"));
    let unconfirmed = initiator.prove(target.challenge(), &channel).unwrap();
    assert_eq!(unconfirmed.proof()[..], hex("proof"));
    let proof = proof_of(unconfirmed.proof()).unwrap();
    let (_, key) = target.verify(&proof, [pair].iter(), &channel).unwrap();
    let reply = key.seal_reply(
        &proof.mac(),
        &hex("reply").try_into().unwrap(),
        SESSION,
        &replying,
    );
    assert_eq!(reply[..], hex("sealed_reply"));
    assert!(unconfirmed.confirm(&reply, &replying).is_some());
    let queue = ConnectRequest {
        queue: 3,
        ..request()
    };
    assert_eq!(
        key.seal_request(&queue, SESSION, 1, &channel)[..],
        hex("sealed_request")
    );
    let reject = key.seal_reject(&proof.mac(), &Reject::new(Reason::Evicted), &channel);
    assert_eq!(reject[..], hex("sealed_reject"));
    let entry = hex("entry").try_into().unwrap();
    let entry = key.seal_entry(&proof.mac(), &entry, &channel);
    assert_eq!(entry[..], hex("sealed_entry"));
}

#[test]
fn without_chance_nothing_is_proven() {
    let hello = *Initiator::<HostCrypto>::new(pair(1, 2), &request().encode())
        .unwrap()
        .hello();
    crypto::no_chance(true);
    let initiator = Initiator::<HostCrypto>::new(pair(1, 2), &request().encode());
    let target = challenged::<HostCrypto>(&hello);
    let secret = Secret::<HostCrypto>::random();
    crypto::no_chance(false);
    assert!(initiator.is_none() && target.is_none() && secret.is_none());
    assert!(challenged::<HostCrypto>(&hello).is_some());
}

#[test]
fn verify_returns_the_key_of_a_proof() {
    let pairs: Vec<_> = (1..=4).map(|n| pair::<HostCrypto>(n, 9)).collect();
    for (place, pair) in pairs.iter().enumerate() {
        let initiator = Initiator::new(pair.copy(), &request().encode()).unwrap();
        let target = challenged::<HostCrypto>(initiator.hello()).unwrap();
        let unconfirmed = initiator.prove(target.challenge(), &channel()).unwrap();
        let proof = proof_of(unconfirmed.proof()).unwrap();
        let found = target.verify(&proof, pairs.iter(), &channel());
        assert_eq!(found.map(|(place, _)| place), Some(place));
    }
    assert_eq!(pairs[0].print(), pairs[0].copy().print());
    let mut copy = pairs[1].copy();
    assert!(copy.is_same(&pairs[1]) && !copy.is_same(&pairs[0]));
    copy.copy_from(&pairs[0]);
    assert!(copy.is_same(&pairs[0]) && copy.print() == pairs[0].print());
    assert_ne!(pairs[0].print(), pairs[1].print());
}
