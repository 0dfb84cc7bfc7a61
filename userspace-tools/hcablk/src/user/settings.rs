// SPDX-License-Identifier: GPL-2.0

//! The settings that a disk in user space has, and those that it lacks.

use super::files::Wanted;
use crate::error::{Error, Kind, Result};
use crate::initiator::Connect;
use crate::target::DEFAULT_PORT;

/// The attributes of the kernel's driver that the library has as options, each with the option's
/// name and default.
pub(super) const OPTIONS: &[(&str, &str, &str)] = &[
    ("port", "port", "7744"),
    ("queues", "queues", "1"),
    ("queue_depth", "queue-depth", "128"),
    ("connect_timeout", "connect-timeout", "10"),
    ("ctrl_loss_tmo", "ctrl-loss-tmo", "600"),
    ("fast_io_fail_tmo", "fast-io-fail-tmo", "-1"),
    ("keep_alive_tmo", "keep-alive-tmo", "5"),
    ("reconnect_delay", "reconnect-delay", "1"),
    ("small_read", "small-read", "8192"),
    ("eager_write", "eager-write", "32768"),
    ("remote_invalidate", "remote-invalidate", "1"),
];

/// The library's value for retrying a lost connection for ever: 136 years.
const FOR_EVER: &str = "4294967295";

/// Returns the library's default of one of its options.
pub(super) fn default_of(option: &str) -> Option<&'static str> {
    let known = OPTIONS.iter().find(|(_, name, _)| *name == option);
    known.map(|(_, _, default)| *default)
}

/// Returns the reason why a disk in user space cannot have the value of an attribute, if there is one. The bounds are
/// the library's.
pub(crate) fn refusal(attribute: &str, value: &str) -> Option<String> {
    if !OPTIONS.iter().any(|(known, _, _)| *known == attribute) {
        return Some(format!(
            "a disk in user space has no setting {attribute}: that is for disks of the kernel's driver"
        ));
    }
    let number: i64 = value.parse().ok()?;
    let bounds = match attribute {
        "queues" => 1..=127,
        "fast_io_fail_tmo" => -1..=604_800,
        "small_read" => 0..=8192,
        "eager_write" => 0..=65536,
        _ => return None,
    };
    (!bounds.contains(&number)).then(|| {
        format!(
            "{attribute} of a disk in user space is {} to {}, not {value}",
            bounds.start(),
            bounds.end()
        )
    })
}

/// Returns the library's option for an attribute of the kernel's driver, and its value.
pub(crate) fn option(attribute: &str, value: &str) -> Option<(String, String)> {
    let (_, name, _) = OPTIONS.iter().find(|(known, _, _)| *known == attribute)?;
    let value = match (attribute, value) {
        ("ctrl_loss_tmo", "-1") => FOR_EVER,
        (_, value) => value,
    };
    Some(((*name).to_owned(), value.to_owned()))
}

/// Returns the value of an attribute of the kernel's driver, if the user gave the library's option
/// for it.
pub(super) fn attribute(wanted: &Wanted, attribute: &str) -> Option<String> {
    let (_, name, _) = OPTIONS.iter().find(|(known, _, _)| *known == attribute)?;
    let value = match (attribute, wanted.option(name)?) {
        ("ctrl_loss_tmo", FOR_EVER) => "-1",
        (_, value) => value,
    };
    Some(value.to_owned())
}

/// Returns the requested options of the library. Fails if a disk in user space does not have a requested setting.
pub(super) fn options(wanted: &Connect) -> Result<Vec<(String, String)>> {
    let refuse = |why: String| {
        let command = Error::new(Kind::Usage, why);
        command.advise("`hcablk connect --help` says which options go with --user.")
    };
    if !wanted.paths.is_empty() || wanted.paths_auto {
        return Err(refuse("a disk in user space has one path".to_owned()));
    }
    let mut given = wanted.tuning.attributes();
    if wanted.port != DEFAULT_PORT {
        given.push(("port", wanted.port.to_string()));
    }
    if let Some(on) = wanted.remote_invalidate {
        given.push(("remote_invalidate", u8::from(on).to_string()));
    }
    let mut options = Vec::new();
    for (attribute, value) in given {
        if let Some(why) = refusal(attribute, &value) {
            return Err(refuse(why));
        }
        options.extend(option(attribute, &value));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_the_library_lacks_are_refused() {
        for attribute in ["policy", "io_timeout", "poll_queues", "max_io_kib"] {
            assert!(
                refusal(attribute, "1").is_some_and(|why| why.contains(attribute)),
                "{attribute}"
            );
        }
        assert_eq!(
            refusal("queues", "0").as_deref(),
            Some("queues of a disk in user space is 1 to 127, not 0")
        );
        assert_eq!(refusal("queues", "127"), None);
        assert_eq!(refusal("ctrl_loss_tmo", "-1"), None);
        assert_eq!(refusal("fast_io_fail_tmo", "-1"), None);
        assert!(refusal("fast_io_fail_tmo", "604801").is_some());
    }

    #[test]
    fn a_loss_may_last_for_ever() {
        let option = option("ctrl_loss_tmo", "-1");
        assert_eq!(
            option,
            Some(("ctrl-loss-tmo".to_owned(), "4294967295".to_owned()))
        );
    }

    #[test]
    fn fast_io_fail_tmo_is_an_option_of_the_library() {
        for value in ["-1", "0", "5"] {
            assert_eq!(
                option("fast_io_fail_tmo", value),
                Some(("fast-io-fail-tmo".to_owned(), value.to_owned()))
            );
        }
    }
}
