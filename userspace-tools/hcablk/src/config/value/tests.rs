// SPDX-License-Identifier: GPL-2.0

//! Values with units: what is taken, what is refused, and how it is shown.

use super::*;

#[test]
fn times_have_units() {
    type Time = Seconds<1, 3600>;
    for (text, seconds, shown) in [
        ("30 s", 30, "30 s"),
        ("2min", 120, "2 min"),
        ("60 min", 3600, "1 h"),
        ("90 s", 90, "90 s"),
    ] {
        let time: Time = text.parse().unwrap();
        assert_eq!(
            (time.0, time.to_string().as_str()),
            (seconds, shown),
            "{text}"
        );
    }
    for wrong in [
        "",
        "30",
        "30 sec",
        "s",
        "-1 s",
        "1.5 s",
        "0 s",
        "2 h",
        "99999999999999999999 s",
    ] {
        assert!(wrong.parse::<Time>().is_err(), "{wrong:?}");
    }
}

#[test]
fn never_is_minus_one() {
    for (text, attribute) in [("never", "-1"), ("10 min", "600"), ("0 s", "0")] {
        let timeout: Timeout = text.parse().unwrap();
        assert_eq!(
            (
                timeout.to_attribute().as_str(),
                timeout.to_string().as_str()
            ),
            (attribute, text)
        );
        assert_eq!(Timeout::from_attribute(attribute), Some(timeout));
    }
    assert!("8 d".parse::<Timeout>().is_err());
    assert_eq!(Timeout::from_attribute("-2"), None);
}

#[test]
fn sizes_have_units_and_steps() {
    type Io = Size<KIB, 4, 4096, 4>;
    for (text, kib, shown) in [
        ("1 MiB", 1024, "1 MiB"),
        ("8192 B", 8, "8 KiB"),
        ("12KiB", 12, "12 KiB"),
    ] {
        let size: Io = text.parse().unwrap();
        assert_eq!((size.0, size.to_string().as_str()), (kib, shown), "{text}");
    }
    for wrong in ["1024", "1 MB", "6 KiB", "0 B", "8 MiB", "4097 B"] {
        assert!(wrong.parse::<Io>().is_err(), "{wrong}");
    }
    assert_eq!("4 GiB".parse::<Size<MIB, 0, 1_048_576>>().unwrap().0, 4096);
    assert_eq!(Size::<1, 0, 65536>(0).to_string(), "0 B");
}

#[test]
fn chunks_are_those_of_the_driver() {
    assert_eq!("256 KiB".parse(), Ok(Chunk(256)));
    assert!("192 KiB".parse::<Chunk>().is_err());
}

#[test]
fn a_wwid_may_be_none() {
    assert_eq!("none".parse(), Ok(Wwid::None));
    assert_eq!(Wwid::None.to_attribute(), "");
    assert!("".parse::<Wwid>().is_err());
}
