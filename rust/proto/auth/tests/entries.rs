// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use crate::proto::discovery::{DiscoveryReply, List, Question, ENTRY_LEN};

#[test]
fn an_entry_is_accepted_only_from_a_peer_with_the_keys() {
    let question = Question {
        version_min: 2,
        version_max: 2,
        host: request().host,
        list: List::Volumes,
        index: 3,
    };
    let initiator = Initiator::<HostCrypto>::new(pair(1, 2), &question.encode()).unwrap();
    let challenged = challenged::<HostCrypto>(initiator.hello()).unwrap();
    assert_eq!(challenged.purpose(), &Purpose::Entry(question));
    let unconfirmed = initiator.prove(challenged.challenge(), &channel()).unwrap();
    let proof = proof_of(unconfirmed.proof()).unwrap();
    let (_, key) = challenged
        .verify(&proof, [pair(1, 2)].iter(), &channel())
        .unwrap();
    let reply = DiscoveryReply {
        count: 3,
        revision: 7,
        entry: None,
    };
    let bytes: [u8; ENTRY_LEN] = reply.encode();
    let sealed = key.seal_entry(&proof.mac(), &bytes, &channel());
    assert_eq!(unconfirmed.open_entry(&sealed, &channel()), Some(bytes));
    for at in 0..sealed.len() {
        let mut other = sealed;
        other[at] ^= 1;
        assert_eq!(
            unconfirmed.open_entry(&other, &channel()),
            None,
            "byte {at}"
        );
    }
    assert_eq!(unconfirmed.open_entry(&bytes, &channel()), None);
    // The MAC also covers that of the proof which the entry answers.
    assert_ne!(key.seal_entry(&[0; MAC_LEN], &bytes, &channel()), sealed);
    // A sealed reject is not an entry.
    let reject = Reject::new(Reason::NotProven);
    let rejected = key.seal_reject(&proof.mac(), &reject, &channel());
    assert_eq!(unconfirmed.open_entry(&rejected, &channel()), None);
}
