// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{
    super::connect::{Reject, Request},
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

fn told(entry: Entry) -> Told {
    Told {
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
            assert_eq!(Request::decode(&bytes), Err(Reason::Malformed));
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
fn answers_round_trip() {
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
        let told = told(entry);
        let bytes = told.encode();
        assert_eq!(Told::decode(&bytes, &question(list, 7)), Some(told));
        // One that is not there has no entry, and one that is has one.
        assert_eq!(Told::decode(&bytes, &question(list, 8)), None);
        let none = Told {
            entry: None,
            ..told
        };
        assert_eq!(Told::decode(&none.encode(), &question(list, 8)), Some(none));
        assert_eq!(Told::decode(&none.encode(), &question(list, 7)), None);
        // What is no longer than a reject is one.
        assert!(Told::decode(&bytes[..63], &question(list, 7)).is_none());
        assert_eq!(
            Reject::decode(&bytes).map(|r| r.reason),
            Some(Reason::Entry)
        );
    }
    let reject = Reject::new(Reason::Forbidden).encode();
    assert!(Told::decode(&reject, &question(List::Volumes, 0)).is_none());
}

#[test]
fn entries_that_cannot_be_are_refused() {
    let nowhere = PortalEntry {
        ip: "0.0.0.0".parse().unwrap(),
        port: 7744,
    };
    for bad in [
        nowhere,
        PortalEntry {
            port: 0,
            ip: "::1".parse().unwrap(),
        },
    ] {
        let bytes = told(Entry::Portal(bad)).encode();
        assert!(Told::decode(&bytes, &question(List::Portals, 0)).is_none());
    }
    let whole = told(Entry::Volume(volume())).encode();
    let refused = |at: usize, value: u8| {
        let mut bad = whole;
        bad[at] = value;
        Told::decode(&bad, &question(List::Volumes, 0)).is_none()
    };
    // Magic, reason, name, capacity, block size, flags, mode, reserved bytes.
    for (at, value) in [
        (0, 0),
        (4, 12),
        (16, b'.'),
        (48, 1),
        (55, 0x80),
        (56, 8),
        (56, 13),
        (57, 8),
        (58, 4),
        (59, 1),
        (63, 1),
    ] {
        assert!(refused(at, value), "byte {at} {value}");
    }
    assert!(!refused(8, 9));
}

#[test]
fn a_list_that_changes_has_another_revision() {
    let of = |entries: &[VolumeEntry]| {
        let mut listing = Listing::new(&question(List::Volumes, 1));
        for entry in entries {
            listing.add(Entry::Volume(*entry));
        }
        let told = listing.told();
        assert_eq!(told.count as usize, entries.len());
        assert_eq!(told.entry, entries.get(1).copied().map(Entry::Volume));
        told.revision
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
