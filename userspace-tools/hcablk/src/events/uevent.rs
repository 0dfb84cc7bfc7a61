// SPDX-License-Identifier: GPL-2.0

//! Messages of the kernel's uevent socket: `ACTION@PATH`, then `NAME=VALUE`, each followed by a zero byte.

use super::{is_lost, Event, Source, What};

/// Parses a message, if it is about one of our disks; `time` is the time of its arrival.
pub fn parse(message: &[u8], time: String) -> Option<Event> {
    let text = String::from_utf8_lossy(message);
    let value = |name: &str| {
        let mut words = text.split('\0').skip(1);
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    let device = value("DEVNAME")?;
    let number = device.strip_prefix("hcablk")?;
    if value("SUBSYSTEM") != Some("block") || number.parse::<u32>().is_err() {
        return None;
    }
    let path = value("HCABLK_PATH");
    let what = match (value("ACTION")?, path, value("HCABLK_STATE")) {
        ("add", ..) => What::DiskAdded,
        ("remove", ..) => What::DiskRemoved,
        ("change", None, Some(_)) => What::DiskState,
        ("change", None, None) if value("HCABLK_LOST_WRITES").is_some() => What::LostWrites,
        ("change", Some(_), Some(_)) => What::PathState,
        ("change", ..) if value("HCABLK_PORTALS") == Some("1") => What::PortalsChanged,
        ("change", ..) if value("RESIZE") == Some("1") => What::DiskResized,
        _ => return None,
    };
    let mut event = Event::new(time, what, Source::Uevent);
    event.device = Some(format!("/dev/{device}"));
    event.disk = value("HCABLK_DISK").map(str::to_owned);
    event.path = path.map(str::parse).transpose().ok()?;
    event.state = value("HCABLK_STATE").map(str::to_owned);
    event.error = value("HCABLK_ERROR").map(str::to_owned);
    if what == What::LostWrites {
        event.lost(is_lost(value("HCABLK_LOST_WRITES")?)?);
    }
    Some(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(words: &[&str]) -> Option<Event> {
        parse(words.join("\0").as_bytes(), "T".to_owned())
    }

    #[test]
    fn a_path_is_lost() {
        let event = event(&[
            "change@/devices/virtual/block/hcablk0",
            "ACTION=change",
            "DEVPATH=/devices/virtual/block/hcablk0",
            "SUBSYSTEM=block",
            "HCABLK_DISK=data",
            "HCABLK_PATH=1",
            "HCABLK_STATE=lost",
            "HCABLK_ERROR=the target has not responded to a keep-alive for 5 s",
            "MAJOR=252",
            "DEVNAME=hcablk0",
            "DEVTYPE=disk",
            "",
        ])
        .unwrap();
        assert_eq!(
            event.to_string(),
            "T path-state data /dev/hcablk0 path 1 lost: the target has not responded to a keep-alive for 5 s"
        );
    }

    #[test]
    fn a_disk_comes_goes_and_grows() {
        for (action, more, what) in [
            ("add", "SEQNUM=1", What::DiskAdded),
            ("remove", "SEQNUM=1", What::DiskRemoved),
            ("change", "RESIZE=1", What::DiskResized),
        ] {
            let action = format!("ACTION={action}");
            let words = [
                "x@/x",
                &action,
                "SUBSYSTEM=block",
                more,
                "DEVNAME=hcablk12",
                "",
            ];
            assert_eq!(event(&words).unwrap().event, what);
        }
    }

    #[test]
    fn the_portals_of_a_disk_are_others() {
        let event = event(&[
            "change@/devices/virtual/block/hcablk0",
            "ACTION=change",
            "SUBSYSTEM=block",
            "HCABLK_DISK=data",
            "HCABLK_PORTALS=1",
            "HCABLK_PATHS_AUTO=1",
            "DEVNAME=hcablk0",
            "",
        ])
        .unwrap();
        assert_eq!(event.to_string(), "T portals-changed data /dev/hcablk0");
    }

    #[test]
    fn events_of_other_devices_are_left_out() {
        for words in [
            &["add@/x", "ACTION=add", "SUBSYSTEM=block", "DEVNAME=sda", ""][..],
            &[
                "add@/x",
                "ACTION=add",
                "SUBSYSTEM=block",
                "DEVNAME=hcablk0p1",
                "",
            ],
            &[
                "add@/x",
                "ACTION=add",
                "SUBSYSTEM=bdi",
                "DEVNAME=hcablk0",
                "",
            ],
            &[
                "change@/x",
                "ACTION=change",
                "SUBSYSTEM=block",
                "DEVNAME=hcablk0",
                "",
            ],
            &[
                "change@/x",
                "ACTION=change",
                "SUBSYSTEM=block",
                "HCABLK_PATH=x",
                "HCABLK_STATE=live",
                "DEVNAME=hcablk0",
                "",
            ],
            &["libudev", ""],
            &[""],
        ] {
            assert_eq!(event(words), None, "{words:?}");
        }
    }
}
