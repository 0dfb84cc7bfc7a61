// SPDX-License-Identifier: GPL-2.0

//! `hcablk discover`: the volumes of a target that this host may use, and the portals of the target.
//!
//! The kernel asks for one entry at a time. Each response carries the revision of the list: if the revision changes,
//! the list is read again from its beginning, so that the result is the state of one moment.

use std::collections::HashSet;

use uuid::Uuid;

use super::connect::{connect, resolve, Connect};
use super::explain;
use crate::configfs::{remove, Group, DISCOVERY, INITIATOR};
use crate::endpoint::{same_address, Endpoint};
use crate::error::{Error, Kind, Result};
use crate::hostid;
use crate::keys;
use crate::names::VolumeName;
use crate::output::{ConnectedDisk, Discovered, Done, Outcome, Portal, Report};
use crate::system::System;

/// The number of attempts to read a list from its beginning while it changes.
const TRIES: u32 = 8;
/// The largest number of entries: a correct target never sends a longer list.
const ENTRIES_MAX: u32 = 4096;

/// The arguments of `hcablk discover`.
#[derive(Clone, Debug)]
pub struct Discover {
    /// The target's address.
    pub address: String,
    /// The target's port.
    pub port: u16,
    /// This host's id, if not [`hostid::current`].
    pub host_id: Option<Uuid>,
    /// Whether to accept a target without a key, although this host has one.
    pub insecure: bool,
    /// Time limit of each response, in seconds.
    pub connect_timeout: Option<u32>,
    /// The address under which the target's key is stored, if not `address`.
    pub key_of: Option<String>,
    /// Whether to prove this host's identity with its pending key.
    pub pending_key: bool,
}

/// The lists that a target reported.
pub(super) struct Lists {
    pub(super) volumes: Vec<Discovered>,
    pub(super) portals: Vec<Portal>,
}

/// Runs `hcablk discover`.
pub fn discover(system: &dyn System, wanted: &Discover) -> Result<Outcome> {
    let Lists { volumes, portals } = ask_all(system, wanted)?;
    let nothing = volumes.is_empty();
    let mut outcome = Outcome::new(Report::Discovered { volumes, portals });
    if nothing {
        outcome.note(
            "the target has no volume for this host; to a host without a key it shows only \
             volumes that are exported with --insecure",
        );
    }
    Ok(outcome)
}

/// Fails unless the pending key of this host proves it to the target at `address`. If this host has no key of that
/// target, no response depends on the pending key: then any response will do.
pub(crate) fn try_pending_key(system: &dyn System, address: &str, port: u16) -> Result<()> {
    let wanted = Discover {
        address: address.to_owned(),
        port,
        host_id: None,
        // Without this, asking would fail if this host has no key of the target.
        insecure: true,
        connect_timeout: None,
        key_of: None,
        pending_key: true,
    };
    ask_all(system, &wanted).map(drop)
}

/// Runs `hcablk connect ADDRESS --all`: connects to each volume that `how` discovers and this host is not evicted from,
/// with the settings of `how`. Continues after a failure, and then returns all failures as one.
pub fn connect_all(system: &dyn System, how: &Connect) -> Result<Outcome> {
    let wanted = Discover {
        address: how.address.clone(),
        port: how.port,
        host_id: how.host_id,
        insecure: how.insecure,
        connect_timeout: how.tuning.connect_timeout,
        key_of: None,
        pending_key: false,
    };
    let mut disks = Vec::new();
    let mut notes = Vec::new();
    let mut failures: Vec<Error> = Vec::new();
    for volume in ask_all(system, &wanted)?.volumes {
        if system.interrupted() {
            return Err(Error::interrupted());
        }
        let name = &volume.name;
        if volume.state == "evicted" {
            notes.push(format!(
                "this host is evicted from {name}: the volume is skipped"
            ));
            continue;
        }
        let one = Connect {
            volume: name.parse::<VolumeName>().map_err(|_| strange(name))?,
            ..how.clone()
        };
        let found = connected(system, &volume).filter(|_| !how.persist);
        match found.map_or_else(|| connect(system, &one), Ok) {
            Ok(outcome) => {
                let said = outcome.notes.iter();
                notes.extend(said.map(|note| format!("{name}: {note}")));
                if let Report::Done {
                    result:
                        Done::Connect {
                            name,
                            device,
                            changed,
                        },
                } = outcome.report
                {
                    disks.push(ConnectedDisk {
                        name,
                        device,
                        changed,
                    });
                }
            }
            Err(error) => failures.push(error),
        }
    }
    if let Some(mut error) = Error::together(failures) {
        let others = disks.iter().map(|disk| disk.name.as_str());
        let others = others.collect::<Vec<_>>().join(", ");
        if !others.is_empty() {
            error.message.push_str(&format!(" (connected: {others})"));
        }
        return Err(error);
    }
    let changed = disks.iter().any(|disk| disk.changed);
    let mut outcome = Outcome::new(Done::ConnectAll { disks, changed });
    for note in notes {
        outcome.note(note);
    }
    Ok(outcome)
}

/// Returns the result for a volume that is connected already.
fn connected(system: &dyn System, volume: &Discovered) -> Option<Outcome> {
    let name = volume.disk.as_ref()?;
    let device = INITIATOR.tree(system)?.child(name).get("device").ok()?;
    Some(Outcome::new(Done::Connect {
        name: name.clone(),
        device: format!("/dev/{device}"),
        changed: false,
    }))
}

/// Reads the list of volumes and the list of portals.
pub(super) fn ask_all(system: &dyn System, wanted: &Discover) -> Result<Lists> {
    let address = resolve(&wanted.address)?;
    let host_id = match wanted.host_id {
        Some(id) => id,
        None => hostid::current(system)?.0,
    };
    INITIATOR.require(system)?;
    let tree = DISCOVERY.tree(system).ok_or_else(|| {
        Error::new(
            Kind::Setup,
            "the loaded kernel module hcablk does not support discovery",
        )
        .advise("It is older than the command: load the module of this release.")
    })?;
    let group = tree.child(&format!("ask-{}", Uuid::new_v4()));
    system.mkdir(group.path())?;
    let lists = set_up(&group, wanted, &address, host_id).and_then(|()| {
        Ok(Lists {
            volumes: list(&group, "volumes", |answer| volume(system, answer, &address))?,
            portals: list(&group, "portals", portal)?,
        })
    });
    // The group must be removed, on success and on failure.
    let removed = remove(&group);
    let lists = lists?;
    removed?;
    once(&lists.volumes, |volume| format!("volume {}", volume.name))?;
    once(&lists.portals, |portal| {
        format!("portal {}", Endpoint::from(portal))
    })?;
    Ok(lists)
}

fn set_up(group: &Group<'_>, wanted: &Discover, address: &str, host_id: Uuid) -> Result<()> {
    let set = |attribute: &str, value: &str| {
        let path = group.path().join(attribute);
        group.system().write(&path, &format!("{value}\n"))
    };
    set("address", address)?;
    set("port", &wanted.port.to_string())?;
    set("host_id", &host_id.to_string())?;
    if wanted.insecure {
        set("insecure", "1")?;
    }
    if let Some(seconds) = wanted.connect_timeout {
        set("connect_timeout", &seconds.to_string())?;
    }
    let key_of = wanted.key_of.as_deref().unwrap_or(address);
    if wanted.pending_key && keys::set_pending(group, key_of)? {
        return Ok(());
    }
    keys::set_device_for(group, key_of)
}

/// The response to a question: names and values.
struct Answer(Vec<(String, String)>);

impl Answer {
    fn parse(text: &str) -> Self {
        let parse = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.to_owned()))
        };
        Self(text.lines().filter_map(parse).collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    fn value<T: std::str::FromStr>(&self, name: &str) -> Result<T> {
        let value = self.get(name).and_then(|value| value.parse().ok());
        value.ok_or_else(|| strange(name))
    }

    fn flag(&self, name: &str) -> bool {
        self.get(name) == Some("1")
    }
}

fn strange(what: &str) -> Error {
    Error::new(
        Kind::Failed,
        format!("the kernel module's response has no {what} that this command understands"),
    )
    .advise("The command and the kernel modules may be of different versions.")
}

/// Reads a whole list, in its state at one moment.
fn list<T>(group: &Group<'_>, which: &str, read: impl Fn(&Answer) -> Result<T>) -> Result<Vec<T>> {
    let system = group.system();
    'again: for _ in 0..TRIES {
        let mut entries = Vec::new();
        let mut first = None;
        for index in 0.. {
            if system.interrupted() {
                return Err(Error::interrupted());
            }
            let question = format!("{which} {index}\n");
            if let Err(error) = system.write(&group.path().join("ask"), &question) {
                return Err(explain::of_discovery(&error, group));
            }
            let answer = Answer::parse(&group.get("answer")?);
            let count = answer.value::<u32>("count")?;
            let now = (answer.value::<String>("revision")?, count);
            if first.get_or_insert_with(|| now.clone()) != &now {
                continue 'again;
            }
            if count > ENTRIES_MAX {
                return Err(nonsense(&format!("more than {ENTRIES_MAX} {which}")));
            }
            if index >= count {
                return Ok(entries);
            }
            entries.push(read(&answer)?);
        }
    }
    Err(Error::new(
        Kind::Connection,
        format!("the target's {which} keep changing"),
    )
    .advise("Try again when the target is not being configured."))
}

/// Returns the error for a malformed list, which a correct target never sends.
fn nonsense(what: &str) -> Error {
    Error::new(
        Kind::Connection,
        format!("the target's list is malformed: {what}"),
    )
    .advise("Another program than hcablk may listen there.")
}

/// Fails if two entries have the same `name`.
fn once<T>(entries: &[T], name: impl Fn(&T) -> String) -> Result<()> {
    let mut known = HashSet::new();
    match entries
        .iter()
        .map(name)
        .find(|name| !known.insert(name.clone()))
    {
        Some(name) => Err(nonsense(&format!("{name} twice"))),
        None => Ok(()),
    }
}

fn portal(answer: &Answer) -> Result<Portal> {
    Ok(Portal {
        address: answer.value("address")?,
        port: answer.value("port")?,
    })
}

fn volume(system: &dyn System, answer: &Answer, address: &str) -> Result<Discovered> {
    let mut volume = Discovered {
        name: answer.value("name")?,
        wwid: answer.get("wwid").map(str::to_owned),
        size_bytes: answer.value("size_bytes")?,
        block_size: answer.value("block_size")?,
        read_only: answer.flag("read_only"),
        insecure: answer.flag("insecure"),
        mode: answer.value("mode")?,
        state: "available".to_owned(),
        disk: None,
    };
    volume.disk = disk_of(system, &volume, address)?;
    if volume.disk.is_some() {
        "connected".clone_into(&mut volume.state);
    }
    if answer.flag("evicted") {
        "evicted".clone_into(&mut volume.state);
    }
    Ok(volume)
}

/// Returns the disk of this machine that is connected to this volume of the target at `address`.
fn disk_of(system: &dyn System, volume: &Discovered, address: &str) -> Result<Option<String>> {
    let Some(tree) = INITIATOR.tree(system) else {
        return Ok(None);
    };
    for group in tree.children()? {
        let get = |attribute| group.get(attribute).unwrap_or_default();
        let is_it = match &volume.wwid {
            Some(wwid) => get("wwid") == *wwid,
            None => get("volume") == volume.name && same_address(&get("address"), address),
        };
        if is_it && !get("device").is_empty() {
            return Ok(Some(group.name()));
        }
    }
    Ok(None)
}

impl From<&Portal> for Endpoint {
    fn from(portal: &Portal) -> Self {
        Self {
            address: portal.address.clone(),
            port: portal.port,
        }
    }
}
