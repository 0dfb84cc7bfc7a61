// SPDX-License-Identifier: GPL-2.0

//! `hcablk enroll`: exchanges the ids and keys of this target and a host over ssh, and allows the host.
//!
//! A plan of the missing steps is made first; then it is carried out. Each step can be repeated, so that a command
//! that failed can be run again. Keys go through pipes of ssh only.

mod remote;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::Serialize;
use uuid::Uuid;

use crate::config::persist::{self, Files};
use crate::configfs::TARGET;
use crate::error::{Error, Kind, Result};
use crate::host_names::is_taken;
use crate::keys::{self, Key, KeyOwner};
use crate::names::{HostName, VolumeName};
use crate::output::{Done, Outcome};
use crate::system::System;
use crate::target::{self, allowed_hosts, existing, ports};

use remote::Remote;

/// The arguments of `hcablk enroll`.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Clone, Debug)]
pub struct Enroll {
    /// The host, in a form that ssh accepts.
    pub client: String,
    /// The volumes that the host may use.
    pub volumes: Vec<VolumeName>,
    /// The addresses of this target for the host; empty: those of its ports.
    pub addresses: Vec<IpAddr>,
    /// Whether the host is also written into the configuration.
    pub persist: bool,
    /// The name of the host, for people.
    pub name: Option<HostName>,
    /// Whether different keys are replaced.
    pub replace: bool,
    /// Whether nothing is changed.
    pub dry_run: bool,
    /// Whether `hcablk` on the host runs through sudo.
    pub sudo: bool,
    /// The command to use instead of ssh.
    pub ssh: Option<String>,
}

impl Enroll {
    /// Returns whether the configuration may have to be changed.
    fn may_change_configuration(&self) -> bool {
        self.persist || self.name.is_some()
    }
}

/// A step of enrolling a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum EnrollStep {
    /// Make the key of this target.
    MakeTargetKey {},
    /// Make the key of the host on the host.
    MakeHostKey {},
    /// Store the key of this target on the host.
    StoreTargetKey {
        /// The address for which it is stored.
        address: String,
    },
    /// Store the key of the host here.
    StoreHostKey {
        /// The id of the host.
        host: Uuid,
    },
    /// Allow the host to use a volume.
    Allow {
        /// The volume.
        volume: String,
    },
    /// Give the host a name in the configuration.
    NameHost {
        /// The name.
        name: String,
    },
    /// Write the host into the configuration of an export.
    Configure {
        /// The volume.
        volume: String,
    },
}

impl fmt::Display for EnrollStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MakeTargetKey {} => write!(f, "here: make the key of this target"),
            Self::MakeHostKey {} => write!(f, "there: make the key of the host"),
            Self::StoreTargetKey { address } => {
                write!(f, "there: store the key of the target at {address}")
            }
            Self::StoreHostKey { host } => write!(f, "here: store the key of the host {host}"),
            Self::Allow { volume } => write!(f, "here: allow the host to use {volume}"),
            Self::NameHost { name } => write!(f, "here: name the host {name}"),
            Self::Configure { volume } => {
                write!(f, "here: write the host into [export.{volume}]")
            }
        }
    }
}

/// Returns the addresses for which the host stores the key of this target.
fn addresses(system: &dyn System, wanted: &Enroll) -> Result<Vec<String>> {
    let mut addresses = wanted.addresses.clone();
    let mut is_any = false;
    if let (true, Some(tree)) = (addresses.is_empty(), TARGET.tree(system)) {
        for port in ports(&tree).children()? {
            if port.flag("enable")? {
                let address: IpAddr = port.value("address")?;
                is_any |= address.is_unspecified();
                addresses.push(address);
            }
        }
    }
    let why = if addresses.is_empty() {
        "this target does not listen yet"
    } else if is_any || addresses.iter().any(IpAddr::is_unspecified) {
        "this target listens at all its addresses"
    } else {
        let mut texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        texts.sort();
        texts.dedup();
        return Ok(texts);
    };
    let message = format!(
        "{why}, so it is not known which of its addresses {} uses",
        wanted.client
    );
    Err(Error::new(Kind::Usage, message)
        .advise("Name the address that `hcablk connect` gets there: --address ADDRESS"))
}

/// The steps that give both sides their keys, and the host its volumes.
struct Plan {
    host: Uuid,
    /// The key of the host, if it has one.
    key: Option<Key>,
    steps: Vec<EnrollStep>,
    notes: Vec<String>,
}

fn plan(system: &dyn System, remote: &Remote<'_>, wanted: &Enroll) -> Result<Plan> {
    // Checks that need no login come first.
    for volume in &wanted.volumes {
        existing(system, volume)?;
    }
    if wanted.may_change_configuration() {
        persist::check(system)?;
    }
    let addresses = addresses(system, wanted)?;
    let own = keys::newest(system, &KeyOwner::Target)?;
    let host = remote.host_id()?;
    let key = remote.key()?;
    let mut steps = Vec::new();
    if own.is_none() {
        steps.push(EnrollStep::MakeTargetKey {});
    }
    if key.is_none() {
        steps.push(EnrollStep::MakeHostKey {});
    }
    for address in addresses {
        let is_new = match &own {
            Some(own) => remote.store(&address, own, true)?,
            None => true,
        };
        if is_new {
            steps.push(EnrollStep::StoreTargetKey { address });
        }
    }
    let known = keys::newest(system, &KeyOwner::OfHost(host))?;
    if known.is_none() || known != key {
        if known.is_some() && !wanted.replace {
            return Err(other_host_key(wanted, host, key.is_none()));
        }
        steps.push(EnrollStep::StoreHostKey { host });
    }
    let mut notes = Vec::new();
    for name in &wanted.volumes {
        let allowed = allowed_hosts(&existing(system, name)?)?;
        let volume = name.to_string();
        if !allowed.iter().any(|(id, _)| *id == host) {
            steps.push(EnrollStep::Allow { volume });
        }
    }
    let config = crate::config::load(system).map(|loaded| loaded.config);
    // A mistake in the files does not matter if nothing is written there.
    let config = match config {
        Err(error) if wanted.may_change_configuration() => return Err(error),
        config => config.unwrap_or_default(),
    };
    if let Some(name) = &wanted.name {
        match config.host_names.get(name) {
            Some(id) if id.0 == host => (),
            Some(id) => return Err(is_taken(name, id.0)),
            None => steps.push(EnrollStep::NameHost {
                name: name.to_string(),
            }),
        }
    }
    for name in &wanted.volumes {
        let volume = name.to_string();
        match config.export.get(name) {
            Some(export) if export.allow.iter().any(|id| id.0 == host) => (),
            Some(_) if wanted.persist => steps.push(EnrollStep::Configure { volume }),
            Some(_) => notes.push(format!(
                "the configuration does not allow it to use {volume}: `hcablk apply` forbids it again, unless this is \
                 run with --persist"
            )),
            None if wanted.persist => notes.push(format!(
                "{volume} is not configured: hcablk target export {volume} PATH --persist"
            )),
            None => (),
        }
    }
    Ok(Plan {
        host,
        key,
        steps,
        notes,
    })
}

/// Returns the error for a host whose key differs from the one that this target has stored for it.
fn other_host_key(wanted: &Enroll, host: Uuid, has_none: bool) -> Error {
    let client = &wanted.client;
    let has = if has_none {
        "has no key, but this target has stored one for it"
    } else {
        "has a different key than the one that this target has stored for it"
    };
    Error::new(Kind::Exists, format!("the host {client} ({host}) {has}")).advise(format!(
        "Was {client} installed again, has it got a new key, or do two machines have the same id? To trust its present key: \
         --replace"
    ))
}

/// Parses a name in a step.
fn parse<T: FromStr<Err = String>>(name: &str) -> Result<T> {
    name.parse().map_err(|why| Error::new(Kind::Failed, why))
}

/// Carries out the steps, and adds each completed one to `done`.
fn carry_out(
    system: &dyn System,
    remote: &Remote<'_>,
    plan: &Plan,
    done: &mut Vec<String>,
) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    let mut key = plan.key.clone();
    let mut configured = Vec::new();
    for step in &plan.steps {
        if system.interrupted() {
            return Err(Error::interrupted());
        }
        match step {
            EnrollStep::MakeTargetKey {} => {
                keys::generate(system, &KeyOwner::Target, false)?;
            }
            EnrollStep::MakeHostKey {} => {
                remote.make_key()?;
                key = remote.key()?;
            }
            EnrollStep::StoreTargetKey { address } => {
                let own = keys::newest(system, &KeyOwner::Target)?;
                let own = own.ok_or_else(|| gone("the key of this target"))?;
                remote.store(address, &own, false)?;
            }
            EnrollStep::StoreHostKey { host } => {
                let key = key.clone();
                let key = key.ok_or_else(|| gone("the key of the host"))?;
                keys::insert(system, &KeyOwner::OfHost(*host), key)?;
            }
            EnrollStep::Allow { volume } => {
                let outcome = target::allow(system, &parse(volume)?, &[plan.host])?;
                notes.extend(outcome.notes);
            }
            // These are written together, below.
            EnrollStep::Configure { .. } | EnrollStep::NameHost { .. } => {
                configured.push(step);
                continue;
            }
        }
        done.push(step.to_string());
    }
    // Even if no key was stored: an earlier command may have failed at this point.
    keys::pass_to_exports(system)?;
    if !configured.is_empty() {
        let mut files = Files::lock(system)?;
        for step in &configured {
            match step {
                EnrollStep::Configure { volume } => {
                    files.add_allowed(&parse(volume)?, plan.host)?;
                }
                EnrollStep::NameHost { name } => {
                    files.name_host(plan.host, Some(&parse(name)?))?;
                }
                _ => (),
            }
        }
        files.store()?;
        done.extend(configured.iter().map(ToString::to_string));
    }
    Ok(notes)
}

fn gone(what: &str) -> Error {
    Error::new(Kind::Failed, format!("{what} has disappeared meanwhile"))
        .advise("Another command changes keys. Run this one again.")
}

/// Runs `hcablk enroll`.
pub fn enroll(system: &dyn System, wanted: &Enroll) -> Result<Outcome> {
    let remote = Remote::new(system, wanted);
    let plan = plan(system, &remote, wanted)?;
    let mut notes = plan.notes.clone();
    if !wanted.dry_run {
        let mut done = Vec::new();
        let result = carry_out(system, &remote, &plan, &mut done);
        notes.extend(result.map_err(|mut error| {
            if !done.is_empty() && error.advice.is_none() {
                let advice = error.advice_or_usual();
                error = error.advise(format!("{advice}\nThen run this command again."));
            }
            error.done = done.into();
            error
        })?);
    }
    let changed = !wanted.dry_run && !plan.steps.is_empty();
    let nothing = plan.steps.is_empty();
    let mut outcome = Outcome::new(Done::Enroll {
        client: wanted.client.clone(),
        host: plan.host,
        dry_run: wanted.dry_run,
        steps: plan.steps,
        changed,
    });
    if nothing {
        outcome.note("enrolled already");
    }
    notes.dedup();
    for note in notes {
        outcome.note(note);
    }
    Ok(outcome)
}
