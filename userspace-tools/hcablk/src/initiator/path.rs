// SPDX-License-Identifier: GPL-2.0

//! `hcablk path add`, `remove` and `policy`: the paths of a disk in use.

use std::str::FromStr;
use std::time::Duration;

use nix::errno::Errno;

use super::connect::resolve;
use super::disconnect::{find, not_in_kernel, PATHS};
use super::paths::{self, Further, LAST};
use crate::configfs::{remove as remove_group, Group, Transaction, INITIATOR};
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind, Result};
use crate::output::{Done, Outcome, PathRef};
use crate::system::{Op, System};
use crate::tuning::Policy;

/// The time after which the command first reports that it waits, and between further reports.
const FIRST_REPORT: Duration = Duration::from_secs(2);
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The time between two checks of a path's state.
const PAUSE: Duration = Duration::from_millis(50);

/// The number or address that selects a path of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathId {
    /// The path's number.
    Number(u8),
    /// The target's address and port.
    Endpoint(Endpoint),
}

impl FromStr for PathId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map(Self::Endpoint);
        }
        match text.parse() {
            Ok(number @ 0..=LAST) => Ok(Self::Number(number)),
            _ => Err(format!("the number of a path is at most {LAST}")),
        }
    }
}

impl std::fmt::Display for PathId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "path {number}"),
            Self::Endpoint(endpoint) => write!(f, "path {endpoint}"),
        }
    }
}

/// Finds a device by its name or its node; `None` if there is none.
fn device<'a>(system: &'a dyn System, text: &str) -> Result<Option<Group<'a>>> {
    match INITIATOR.tree(system) {
        Some(tree) => find(&tree, text),
        None => Ok(None),
    }
}

fn required<'a>(system: &'a dyn System, text: &str) -> Result<Group<'a>> {
    device(system, text)?.ok_or_else(|| not_in_kernel(system, text, PATHS))
}

fn resolved(endpoint: &Endpoint) -> Result<Endpoint> {
    Ok(Endpoint {
        address: resolve(&endpoint.address)?,
        port: endpoint.port,
    })
}

/// The result of waiting for a path.
pub(super) enum Waited {
    Live,
    /// The device is not enabled.
    Unused,
}

/// Runs `hcablk path add`.
///
/// With `keep` a path that does not become live in time stays.
pub fn add(
    system: &dyn System,
    name: &str,
    endpoint: &Endpoint,
    keep: bool,
    timeout: Option<Duration>,
) -> Result<Outcome> {
    let endpoint = resolved(endpoint)?;
    let group = required(system, name)?;
    let name = group.name();
    let answer = |path: PathRef, changed| {
        Outcome::new(Done::PathAdd {
            name: name.clone(),
            path,
            changed,
        })
    };
    if endpoint.is_same(&paths::own(&group)?) {
        let Endpoint { address, port } = endpoint;
        let path = PathRef {
            number: 0,
            address,
            port,
        };
        let mut outcome = answer(path, false);
        outcome.note(format!("{name} has this path already"));
        return Ok(outcome);
    }
    let mut further = paths::further(&group)?;
    let known = further
        .iter()
        .position(|path| path.endpoint.is_same(&endpoint))
        .map(|index| further.swap_remove(index));

    let timeout = match timeout {
        Some(timeout) => timeout,
        None => Duration::from_secs(group.value("connect_timeout")?),
    };
    let mut transaction = Transaction::new(system);
    let made = match known {
        Some(path) => match path.group.get("state")?.as_str() {
            // Makes the driver retry. If the path does not become live, there is no change to undo.
            "refused" if path.enabled => {
                system.write(&path.group.path().join("enable"), "1\n")?;
                Ok(path)
            }
            state if path.enabled => {
                let mut outcome = answer(path.reference(), false);
                outcome.note(already(&name, state, path.group.reason()));
                return Ok(outcome);
            }
            _ => match transaction.enable(&path.group) {
                Ok(Ok(())) => Ok(path),
                Ok(Err(error)) => Err(error.into()),
                Err(error) => Err(error),
            },
        },
        None => match paths::free_number(&group)? {
            Some(number) => paths::make(&group, number, &endpoint, &mut transaction),
            None => Err(too_many(&name)),
        },
    };
    let path = match made {
        Ok(path) => path,
        Err(error) => return transaction.finish(Err(error)),
    };

    let waited = match wait(&path, &name, system.now(), timeout) {
        Ok(waited) => waited,
        Err(error) if !path.group.exists() => return Err(error),
        Err(error) if keep || !transaction.has_changes() => {
            return Err(advise_on_kept_path(error, &path, &name, "The path"))
        }
        // While no path is live, the driver removes none: this one may be the first to become live.
        Err(error) if has_lost_all(&group) => {
            let this = format!("{name} has no live path, so this one");
            return Err(advise_on_kept_path(error, &path, &name, &this));
        }
        Err(error) => return transaction.finish(Err(error)),
    };
    let mut outcome = answer(path.reference(), true);
    if let Waited::Unused = waited {
        outcome.note(format!(
            "{name} is not connected now: the path will be used when it is"
        ));
    }
    Ok(outcome)
}

/// Returns whether the disk exists and none of its paths is live.
pub(super) fn has_lost_all(device: &Group<'_>) -> bool {
    let state = device.get("state").unwrap_or_default();
    matches!(state.as_str(), "queueing" | "failing-fast")
}

fn already(name: &str, state: &str, reason: Option<String>) -> String {
    let why = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    match state {
        "live" => format!("{name} has this path already"),
        state => format!("{name} has this path already; it is {state}{why}"),
    }
}

fn too_many(name: &str) -> Error {
    Error::new(
        Kind::Failed,
        format!("{name} already has the maximum of {} paths", LAST + 1),
    )
    .advise(format!(
        "Remove one first: hcablk path remove {name} NUMBER"
    ))
}

/// Waits until a path is live, or cannot become live, or `timeout` has passed since `began`.
pub(super) fn wait(
    path: &Further<'_>,
    name: &str,
    began: Duration,
    timeout: Duration,
) -> Result<Waited> {
    let Further {
        group,
        number,
        endpoint,
        ..
    } = path;
    let system = group.system();
    let mut next_report = began + FIRST_REPORT;
    loop {
        if system.interrupted() {
            return Err(Error::interrupted());
        }
        let state = match group.get("state") {
            Ok(state) => state,
            Err(_) if !group.exists() => {
                return Err(Error::new(
                    Kind::Failed,
                    format!("another command has removed path {number} of {name} at this moment"),
                ))
            }
            Err(error) => return Err(error.into()),
        };
        let reason = group.reason();
        let now = system.now();
        match state.as_str() {
            "live" => return Ok(Waited::Live),
            "new" => return Ok(Waited::Unused),
            "refused" => {
                let why = reason.unwrap_or_else(|| "the driver does not say why".to_owned());
                return Err(Error::new(
                    Kind::Connection,
                    format!("path {number} ({endpoint}) of {name} is refused: {why}"),
                )
                .advise(
                    "A path must lead to the volume that the disk has, on the same target machine, \
                     which must allow this host.\n\
                     On the target: hcablk target list",
                ));
            }
            _ if now >= began + timeout => {
                let why = reason.unwrap_or_else(|| "the target has not responded".to_owned());
                return Err(Error::new(
                    Kind::Connection,
                    format!(
                        "path {number} ({endpoint}) of {name} is not live after {} s: {why}",
                        timeout.as_secs()
                    ),
                )
                .advise(format!(
                    "Does `ping {}` work? On the target, `hcablk target list` must show a port at \
                     that address.\n\
                     A slow network may need more time: --timeout SECONDS",
                    endpoint.address
                )));
            }
            _ => {}
        }
        if now >= next_report {
            next_report = now + REPORT_INTERVAL;
            let why = reason.map_or_else(String::new, |reason| format!(": {reason}"));
            system.progress(&format!(
                "waiting for path {number} ({endpoint}) of {name}, for {} s now{why}",
                (now - began).as_secs()
            ));
        }
        system.pause(PAUSE);
    }
}

/// Adds advice to the error of a path that stays although it is not live; `this` names the path.
fn advise_on_kept_path(error: Error, path: &Further<'_>, name: &str, this: &str) -> Error {
    let Further {
        number, endpoint, ..
    } = path;
    let mut advice: Vec<_> = error.advice.clone().into_iter().collect();
    advice.push(
        if path
            .group
            .get("state")
            .is_ok_and(|state| state == "refused")
        {
            format!(
                "{this} stays, and is not retried automatically. To retry it: hcablk path add {name} \
                 {endpoint}"
            )
        } else {
            format!("{this} stays and is retried; `hcablk list` shows its state.")
        },
    );
    advice.push(format!("To remove it: hcablk path remove {name} {number}"));
    error.advise(advice.join("\n"))
}

/// Runs `hcablk path remove`.
pub fn remove(system: &dyn System, name: &str, which: &PathId, if_exists: bool) -> Result<Outcome> {
    let nothing = |name: String| {
        let mut outcome = Outcome::new(Done::PathRemove {
            name,
            path: None,
            changed: false,
        });
        outcome.note("nothing to remove");
        outcome
    };
    let group = match device(system, name)? {
        Some(group) => group,
        None if if_exists => return Ok(nothing(name.to_owned())),
        None => return Err(not_in_kernel(system, name, PATHS)),
    };
    let name = group.name();
    let which = &match which {
        PathId::Endpoint(endpoint) => PathId::Endpoint(resolved(endpoint)?),
        PathId::Number(number) => PathId::Number(*number),
    };
    let own = paths::own(&group)?;
    if is_meant(which, 0, &own) {
        return Err(Error::new(
            Kind::Usage,
            format!("path 0 ({own}) of {name} is the disk's own address: it cannot be removed"),
        )
        .advise(format!(
            "While it is lost, requests use the other paths. To remove it, connect to another \
             address:\n\
             hcablk disconnect {name}, then hcablk connect ADDRESS"
        )));
    }
    let found = paths::further(&group)?
        .into_iter()
        .find(|path| is_meant(which, path.number, &path.endpoint));
    let path = match found {
        Some(path) => path,
        None if if_exists => return Ok(nothing(name)),
        None => {
            return Err(Error::new(Kind::NotFound, format!("{name} has no {which}"))
                .advise("`hcablk list` shows the paths of each disk."))
        }
    };
    if system.interrupted() {
        return Err(Error::interrupted());
    }
    match system.write(&path.group.path().join("enable"), "0\n") {
        Err(error) if (error.op, error.errno) == (Op::Write, Errno::EBUSY) => {
            return Err(last_path(&path, &name))
        }
        Err(error) if !error.is_gone() => return Err(error.into()),
        _ => remove_group(&path.group)?,
    }
    Ok(Outcome::new(Done::PathRemove {
        name,
        path: Some(path.reference()),
        changed: true,
    }))
}

fn is_meant(which: &PathId, number: u8, endpoint: &Endpoint) -> bool {
    match which {
        PathId::Number(wanted) => *wanted == number,
        PathId::Endpoint(wanted) => wanted.is_same(endpoint),
    }
}

/// Returns the error of a path that the driver does not let go.
fn last_path(path: &Further<'_>, name: &str) -> Error {
    let live = path.group.get("state").is_ok_and(|state| state == "live");
    let (why, advice) = if live {
        (
            "it is the last path that is live",
            format!("Add another path first (hcablk path add {name} ADDRESS)"),
        )
    } else {
        (
            "no other path is live",
            "Remove it when another path is live".to_owned(),
        )
    };
    Error::new(
        Kind::Busy,
        format!(
            "cannot remove path {} ({}) of {name}: {why}",
            path.number, path.endpoint
        ),
    )
    .with_errno(Errno::EBUSY)
    .advise(format!(
        "{advice}, or disconnect the disk: hcablk disconnect {name}"
    ))
}

/// Runs `hcablk path policy`.
pub fn policy(system: &dyn System, name: &str, policy: Policy) -> Result<Outcome> {
    let group = required(system, name)?;
    let name = group.name();
    let changed = group.get("policy")? != policy.to_string();
    if changed {
        let mut transaction = Transaction::new(system);
        let set = transaction.set(&group, "policy", policy);
        transaction.finish(set)?;
    }
    let mut outcome = Outcome::new(Done::PathPolicy {
        name,
        policy,
        changed,
    });
    if !changed {
        outcome.note("nothing to change");
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_named_by_number_or_address() {
        assert_eq!("15".parse(), Ok(PathId::Number(15)));
        assert_eq!(
            "10.0.1.1".parse(),
            Ok(PathId::Endpoint("10.0.1.1:7744".parse().unwrap()))
        );
        for text in ["", "16", "256", "10.0.1.1:0"] {
            assert!(text.parse::<PathId>().is_err(), "{text:?}");
        }
    }
}
