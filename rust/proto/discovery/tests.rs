// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{
    super::connect::{ConnectRequest, Reject},
    *,
};

fn question(list: List, index: u32) -> Question {
    Question {
        version_min: 2,
        version_max: 3,
        host: HostId::parse("6fa459ea-ee8a-3ca4-894e-db77e160355e").unwrap(),
        list,
        index,
    }
}

fn volume() -> VolumeEntry {
    VolumeEntry {
        name: VolumeName::parse("vm-images_ssd.01").unwrap(),
        id: VolumeId::parse("0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11").ok(),
        capacity: 1 << 40,
        block_shift: 12,
        read_only: true,
        evicted: false,
        insecure: true,
        mode: VolumeMode::Mixed,
    }
}

fn reply(entry: Entry) -> DiscoveryReply {
    DiscoveryReply {
        count: 8,
        revision: 0xdead_beef,
        entry: Some(entry),
    }
}

#[test]
fn questions_round_trip_and_are_no_requests() {
    for list in [List::Volumes, List::Portals] {
        for index in [0, 7, u32::MAX] {
            let question = question(list, index);
            let bytes = question.encode();
            assert_eq!(Question::decode(&bytes), Some(question));
            // So a target that does not know questions refuses them.
            assert_eq!(ConnectRequest::decode(&bytes), Err(Reason::Malformed));
        }
    }
}

#[test]
fn each_byte_of_a_question_counts() {
    let bytes = question(List::Volumes, 0).encode();
    // The versions, the host and the index may be others.
    for at in (0..4).chain(6..24).chain(40..48).chain(52..56) {
        let mut bad = bytes;
        bad[at] ^= 0x40;
        assert_eq!(Question::decode(&bad), None, "byte {at}");
    }
    let mut old = bytes;
    (old[4], old[5]) = (1, 1);
    assert_eq!(Question::decode(&old), None);
}

#[test]
fn replies_round_trip() {
    let portal = PortalEntry {
        ip: "10.77.0.1".parse().unwrap(),
        port: 7744,
    };
    let six = PortalEntry {
        ip: "fd77::1".parse().unwrap(),
        port: u16::MAX,
    };
    let all = [
        (List::Portals, Entry::Portal(six)),
        (List::Volumes, Entry::Volume(volume())),
        (List::Portals, Entry::Portal(portal)),
    ];
    for (list, entry) in all {
        let reply = reply(entry);
        let bytes = reply.encode();
        assert_eq!(
            DiscoveryReply::decode(&bytes, &question(list, 7)),
            Ok(reply)
        );
        // The reply for an index within the list has an entry; the reply for an index beyond it has
        // none.
        assert_eq!(
            DiscoveryReply::decode(&bytes, &question(list, 8)),
            Err("there is an entry beyond the last one")
        );
        let none = DiscoveryReply {
            entry: None,
            ..reply
        };
        assert_eq!(
            DiscoveryReply::decode(&none.encode(), &question(list, 8)),
            Ok(none)
        );
        assert_eq!(
            DiscoveryReply::decode(&none.encode(), &question(list, 7)),
            Err("an entry is missing")
        );
        // A shorter message is not an entry; a longer one is read as a reject with the reason
        // `Entry`.
        assert_eq!(
            DiscoveryReply::decode(&bytes[..63], &question(list, 7)),
            Err("it is too short")
        );
        assert_eq!(
            Reject::decode(&bytes).map(|r| r.reason),
            Some(Reason::Entry)
        );
    }
    let reject = Reject::new(Reason::Forbidden).encode();
    assert!(DiscoveryReply::decode(&reject, &question(List::Volumes, 0)).is_err());
}

#[test]
fn a_truncated_entry_is_not_an_empty_list() {
    // As RoCE does with private data: the length is lost.
    let whole = reply(Entry::Volume(volume())).encode();
    for index in [0, 7, 8] {
        for length in 0..12 + 1 {
            let mut short = [0; ENTRY_LEN];
            short[..length].copy_from_slice(&whole[..length]);
            assert!(DiscoveryReply::decode(&short, &question(List::Volumes, index)).is_err());
        }
    }
}

#[test]
fn no_list_has_no_revision() {
    for list in [List::Volumes, List::Portals] {
        let reply = Listing::new(&question(list, 0)).into_reply();
        assert_eq!((reply.count, reply.entry), (0, None));
        assert_eq!(
            DiscoveryReply::decode(&reply.encode(), &question(list, 0)),
            Ok(reply)
        );
    }
    let mut listing = Listing::new(&question(List::Volumes, 0));
    listing.reply.revision = 0;
    assert_ne!(listing.into_reply().revision, 0);
}

#[test]
fn entries_that_cannot_be_are_refused() {
    let nowhere = PortalEntry {
        ip: "0.0.0.0".parse().unwrap(),
        port: 7744,
    };
    let without = PortalEntry {
        port: 0,
        ip: "::1".parse().unwrap(),
    };
    for (bad, why) in [(nowhere, "address"), (without, "port")] {
        let bytes = reply(Entry::Portal(bad)).encode();
        let error = DiscoveryReply::decode(&bytes, &question(List::Portals, 0)).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    let whole = reply(Entry::Volume(volume())).encode();
    let refused = |at: usize, value: u8| {
        let mut bad = whole;
        bad[at] = value;
        DiscoveryReply::decode(&bad, &question(List::Volumes, 0)).err()
    };
    for (at, value, why) in [
        (0, 0, "not an entry"),
        (4, 12, "not an entry"),
        (16, b'.', "name"),
        (16, 0, "name"),
        (20, 0, "name"),
        (20, b'\n', "name"),
        (20, b'/', "name"),
        (48, 1, "volume's size"),
        (55, 0x80, "volume's size"),
        (56, 8, "block size"),
        (56, 13, "block size"),
        (57, 8, "flags"),
        (58, 4, "mode"),
        (59, 1, "reserved"),
        (63, 1, "reserved"),
    ] {
        let error = refused(at, value).unwrap_or_else(|| panic!("byte {at} {value}"));
        assert!(error.contains(why), "byte {at} {value}: {error}");
    }
    assert_eq!(refused(8, 9), None);
}

#[test]
fn a_list_that_changes_has_another_revision() {
    let of = |entries: &[VolumeEntry]| {
        let mut listing = Listing::new(&question(List::Volumes, 1));
        for entry in entries {
            listing.add(Entry::Volume(*entry));
        }
        let reply = listing.into_reply();
        assert_eq!(reply.count as usize, entries.len());
        assert_eq!(reply.entry, entries.get(1).copied().map(Entry::Volume));
        reply.revision
    };
    let other = VolumeEntry {
        evicted: true,
        ..volume()
    };
    let lists = [
        of(&[]),
        of(&[volume()]),
        of(&[other]),
        of(&[volume(), other]),
        of(&[other, volume()]),
    ];
    for (n, one) in lists.iter().enumerate() {
        assert!(!lists[..n].contains(one));
    }
    assert_eq!(of(&[volume(), other]), of(&[volume(), other]));
}
