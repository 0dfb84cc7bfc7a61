// SPDX-License-Identifier: GPL-2.0

//! The changes that make the kernel's state match the configuration.

use std::collections::BTreeMap;
use std::path::Path;

use uuid::Uuid;

use super::step::{Action, Initial, Pending, PlanStep, Table};
use crate::config::paths::PathNumber;
use crate::config::running::attribute;
use crate::config::schema::{Changeable, Wish};
use crate::config::value::Setting as _;
use crate::config::{Config, Disk, DiskPath, Export, Paths, Port};
use crate::configfs::{Group, INITIATOR, TARGET};
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind, Result};
use crate::hostid;
use crate::initiator::{further_paths, resolve, same, PATHS_AUTO};
use crate::names::{DeviceName, VolumeName};
use crate::output::{is_cut, Client};
use crate::system::System;
use crate::target::{allowed_hosts, default_wwid, ports, state_owner, volumes};
use crate::user::{self, Planned};

/// The sides of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Both.
    All,
    /// Exports and ports.
    Target,
    /// Disks.
    Disks,
}

/// Changes, in the order in which they are made.
pub struct Plan {
    /// The changes.
    pub steps: Vec<PlanStep>,
    /// Steps that are not made.
    pub pending: Vec<Pending>,
    /// Objects of the kernel that are not configured, such as `disk data`.
    pub not_configured: Vec<String>,
    /// Objects that have no plan, and stay as they are.
    pub unplanned: Vec<Unplanned>,
}

/// An export, a port or a disk without a plan, such as a disk whose target's name has no address.
pub struct Unplanned {
    /// The table of the object.
    pub table: Table,
    /// The name of the object.
    pub name: String,
    /// The reason why it has no plan.
    pub error: Error,
}

impl Plan {
    /// Plans for the whole configuration, or one side of it. With `force`, nothing is pending except a failed disk in
    /// user space that is in use. An object that cannot be planned for does not stop the plan for the others: see
    /// [`Self::complete`].
    pub fn new(system: &dyn System, config: &Config, scope: Scope, force: bool) -> Result<Self> {
        let mut plan = Self::empty();
        plan.host(system, config)?;
        let host = own_id(system, config);
        if scope != Scope::Disks {
            let tree = TARGET.named(system);
            for (name, export) in &config.export {
                plan.one(Table::Export, name.as_str(), |plan| {
                    plan.export(&tree, name, export, host.as_ref().ok().copied(), force)
                });
            }
            for (name, port) in &config.port {
                plan.one(Table::Port, name.as_str(), |plan| {
                    plan.port(&ports(&tree).child(name.as_str()), port)
                });
            }
            plan.add_not_configured(&volumes(&tree), Table::Export, |name| {
                config.export.keys().any(|key| key.as_str() == name)
            })?;
            plan.add_not_configured(&ports(&tree), Table::Port, |name| {
                config.port.keys().any(|key| key.as_str() == name)
            })?;
        }
        if scope != Scope::Target {
            let tree = INITIATOR.named(system);
            for (name, disk) in &config.disk {
                plan.one(Table::Disk, name.as_str(), |plan| {
                    plan.disk(&tree, name, disk, host.clone(), force)
                });
            }
            let is_configured = |name: &str| config.disk.keys().any(|key| key.as_str() == name);
            plan.add_not_configured(&tree, Table::Disk, is_configured)?;
            let in_user_space = user::all(system).into_iter().map(|disk| disk.shown_name());
            let not_configured = in_user_space.filter(|name| !is_configured(name));
            plan.not_configured
                .extend(not_configured.map(|name| format!("{} {name}", Table::Disk)));
        }
        Ok(plan)
    }

    /// Returns the plan if it covers all configured objects, else the errors of the others.
    pub fn complete(mut self) -> Result<Self> {
        let unplanned = std::mem::take(&mut self.unplanned).into_iter();
        Error::together(unplanned.map(|one| one.error).collect()).map_or(Ok(self), Err)
    }

    /// Plans for one object; drops its steps if planning fails.
    fn one(&mut self, table: Table, name: &str, plan: impl FnOnce(&mut Self) -> Result<()>) {
        let (steps, pending) = (self.steps.len(), self.pending.len());
        if let Err(error) = plan(self) {
            self.steps.truncate(steps);
            self.pending.truncate(pending);
            self.unplanned.push(Unplanned {
                table,
                name: name.to_owned(),
                error,
            });
        }
    }

    /// Plans for one disk.
    pub fn for_disk(
        system: &dyn System,
        config: &Config,
        name: &DeviceName,
        disk: &Disk,
    ) -> Result<Self> {
        let mut plan = Self::empty();
        plan.disk(
            &INITIATOR.named(system),
            name,
            disk,
            own_id(system, config),
            false,
        )?;
        Ok(plan)
    }

    fn empty() -> Self {
        Self {
            steps: Vec::new(),
            pending: Vec::new(),
            not_configured: Vec::new(),
            unplanned: Vec::new(),
        }
    }

    fn host(&mut self, system: &dyn System, config: &Config) -> Result<()> {
        let Some(host) = config.host else {
            return Ok(());
        };
        let known = hostid::stored(system)?.is_some()
            || hostid::current(system).is_ok_and(|(id, _)| id == host.id.0);
        if !known {
            self.steps.push(PlanStep {
                table: Table::Host,
                name: String::new(),
                action: Action::StoreHostId { id: host.id.0 },
                user: None,
            });
        }
        Ok(())
    }

    fn export(
        &mut self,
        tree: &Group<'_>,
        name: &VolumeName,
        export: &Export,
        host: Option<Uuid>,
        force: bool,
    ) -> Result<()> {
        let group = volumes(tree).child(name.as_str());
        let system = group.system();
        let mut wishes = vec![Wish::new("path", export.device.0.as_str())];
        // A state directory that is not there is an error when the volume is enabled.
        let owner = || state_owner(system, Path::new(&export.state.as_ref()?.0)).ok()?;
        let derived = || owner().or_else(|| default_wwid(system, host, name, &export.device.0));
        let wwid = match export.wwid {
            Some(wwid) => Some(wwid.to_attribute()),
            None => derived().map(|id| id.to_string()),
        };
        wishes.extend(wwid.map(|id| Wish {
            given: export.wwid.is_some(),
            ..Wish::new("wwid", id)
        }));
        wishes.extend(export.settings());

        let (mut allowed, mut clients, mut cut) = (Vec::new(), Vec::new(), false);
        if group.exists() {
            allowed = allowed_hosts(&group)?
                .into_iter()
                .map(|(id, _)| id)
                .collect();
            let text = group.get("clients")?;
            clients = Client::parse_all(&text);
            cut = is_cut(&text);
        }
        let wanted: Vec<_> = export.allow.iter().map(|id| id.0).collect();
        let add = wanted.iter().filter(|id| !allowed.contains(id));
        let mut between: Vec<_> = add.map(|host| Action::Allow { host: *host }).collect();
        let object = Object {
            table: Table::Export,
            group: &group,
            enabled: export.enabled,
            used: (!clients.is_empty()).then(|| match clients.len() {
                1 => "it has a session".to_owned(),
                number => format!("it has {number} sessions"),
            }),
        };
        for host in allowed.into_iter().filter(|id| !wanted.contains(id)) {
            let sessions = clients
                .iter()
                .filter(|client| client.host == host.to_string())
                .count();
            if sessions != 0 && !force {
                self.pend(&object, Action::Forbid { host }, "it has a session");
            } else if cut && !force {
                let why = "it may have a session: the kernel lists only the first ones";
                self.pend(&object, Action::Forbid { host }, why);
            } else {
                between.push(Action::Forbid { host });
            }
        }
        self.object(&object, wishes, between, force)
    }

    fn port(&mut self, group: &Group<'_>, port: &Port) -> Result<()> {
        let object = Object {
            table: Table::Port,
            group,
            enabled: port.enabled,
            // Disabling a port ends no session.
            used: None,
        };
        self.object(&object, port.settings(), Vec::new(), false)
    }

    fn disk(
        &mut self,
        tree: &Group<'_>,
        name: &DeviceName,
        disk: &Disk,
        host: Result<Uuid>,
        force: bool,
    ) -> Result<()> {
        let group = tree.child(name.as_str());
        if disk.user {
            return self.disk_in_user_space(group.system(), name, disk, host, force);
        }
        if let Some(error) = user::refuse_kernels(group.system(), name.as_str()) {
            return Err(error);
        }
        let mut wishes = vec![
            Wish::new("address", resolve(&disk.address)?),
            Wish::new(
                "volume",
                disk.volume
                    .as_ref()
                    .map_or(name.as_str(), VolumeName::as_str),
            ),
        ];
        wishes.push(match disk.host_id {
            Some(id) => Wish::new("host_id", id.to_string()),
            None => Wish {
                given: false,
                ..Wish::new("host_id", host?.to_string())
            },
        });
        wishes.push(Wish {
            given: disk.wwid.is_some(),
            ..Wish::new(
                "expect_wwid",
                disk.wwid.map_or_else(String::new, |id| id.to_string()),
            )
        });
        wishes.push(Wish {
            change: Changeable::Online,
            given: disk.paths == Paths::Auto,
            ..Wish::new(
                PATHS_AUTO,
                if disk.paths == Paths::Auto { "1" } else { "0" },
            )
        });
        wishes.extend(disk.settings());
        if group.exists() {
            refuse_while_changing(&group)?;
        }
        let object = Object {
            table: Table::Disk,
            group: &group,
            enabled: disk.enabled,
            used: Some("it is connected".to_owned()),
        };
        let paths = match &disk.paths {
            // The target reports the paths when the disk is connected.
            Paths::Auto => Vec::new(),
            Paths::These(paths) => path_actions(&group, paths)?,
        };
        self.object(&object, wishes, paths, force)
    }

    /// Plans for a disk that a program serves.
    fn disk_in_user_space(
        &mut self,
        system: &dyn System,
        name: &DeviceName,
        disk: &Disk,
        host: Result<Uuid>,
        force: bool,
    ) -> Result<()> {
        let Planned { steps, pending } = user::plan(system, name, disk, host, force)?;
        self.steps.extend(steps);
        self.pending.extend(pending);
        Ok(())
    }

    /// Plans for one directory: its settings, the actions `between` them and enabling it, and whether it is enabled.
    fn object(
        &mut self,
        object: &Object<'_>,
        wishes: Vec<Wish>,
        between: Vec<Action>,
        force: bool,
    ) -> Result<()> {
        let group = object.group;
        let mut enabled = false;
        if group.exists() {
            enabled = group.flag("enable")?;
            let (fixed, online) = differences(group, wishes)?;
            let must_end = enabled && (!fixed.is_empty() || !object.enabled);
            match &object.used {
                Some(reason) if must_end && !force => {
                    for action in fixed {
                        self.pend(object, action, reason);
                    }
                    if !object.enabled {
                        self.pend(object, Action::Disable, reason);
                    }
                }
                _ => {
                    if must_end {
                        self.push(object, Action::Disable);
                        enabled = false;
                    }
                    self.extend(object, fixed);
                }
            }
            self.extend(object, online);
        } else {
            let settings = wishes.into_iter().map(|wish| Initial {
                attribute: wish.attribute,
                value: wish.value,
                given: wish.given,
            });
            let settings = settings.collect();
            self.push(object, Action::Make { settings });
        }
        self.extend(object, between);
        if object.enabled && !enabled {
            self.push(object, Action::Enable);
        }
        Ok(())
    }

    fn push(&mut self, object: &Object<'_>, action: Action) {
        self.steps.push(object.step(action));
    }

    fn extend(&mut self, object: &Object<'_>, actions: Vec<Action>) {
        self.steps
            .extend(actions.into_iter().map(|action| object.step(action)));
    }

    fn pend(&mut self, object: &Object<'_>, action: Action, reason: &str) {
        self.pending.push(Pending {
            step: object.step(action),
            reason: reason.to_owned(),
        });
    }

    /// Adds the existing objects that are not configured.
    fn add_not_configured(
        &mut self,
        folder: &Group<'_>,
        table: Table,
        is_configured: impl Fn(&str) -> bool,
    ) -> Result<()> {
        if folder.exists() {
            for group in folder.children()? {
                let name = group.name();
                if !is_configured(&name) {
                    self.not_configured.push(format!("{table} {name}"));
                }
            }
        }
        Ok(())
    }
}

/// A directory of configfs for which a plan is made.
struct Object<'a> {
    table: Table,
    group: &'a Group<'a>,
    /// Whether the object shall be enabled.
    enabled: bool,
    /// The reason why it must not be disabled without force, if it is enabled.
    used: Option<String>,
}

impl Object<'_> {
    fn step(&self, action: Action) -> PlanStep {
        PlanStep {
            table: self.table,
            name: self.group.name(),
            action,
            user: None,
        }
    }
}

/// Returns this host's id: the configured one, else the current one.
pub(super) fn own_id(system: &dyn System, config: &Config) -> Result<Uuid> {
    match config.host {
        Some(host) => Ok(host.id.0),
        None => Ok(hostid::current(system)?.0),
    }
}

/// Returns the attributes to write: those that need a disabled object, and those that can be written at any time.
fn differences(group: &Group<'_>, wishes: Vec<Wish>) -> Result<(Vec<Action>, Vec<Action>)> {
    let (mut fixed, mut online) = (Vec::new(), Vec::new());
    for Wish {
        attribute: name,
        value,
        change,
        given,
    } in wishes
    {
        let from = match attribute(group, name)? {
            Some(from) => from,
            // A driver without the attribute behaves like the default.
            None if !given => continue,
            None => String::new(),
        };
        if same(name, &from, &value) {
            continue;
        }
        let action = Action::Set {
            attribute: name,
            from,
            to: value,
        };
        match change {
            Changeable::Disabled => fixed.push(action),
            Changeable::Online => online.push(action),
        }
    }
    Ok((fixed, online))
}

/// Fails while a disk is being connected or disconnected.
fn refuse_while_changing(group: &Group<'_>) -> Result<()> {
    match group.get("state")?.as_str() {
        state @ ("connecting" | "disconnecting" | "failing") => Err(Error::new(
            Kind::Busy,
            format!("the disk {} is {state}", group.name()),
        )
        .advise("Try again when that is done.")),
        _ => Ok(()),
    }
}

/// Returns the actions that make the paths other than path 0 match the configuration. Paths are added before others are
/// removed, so that the disk keeps a path. Only a path whose address changes is removed first, since the new one takes
/// its number.
fn path_actions(group: &Group<'_>, wanted: &BTreeMap<PathNumber, DiskPath>) -> Result<Vec<Action>> {
    let now = if group.exists() {
        further_paths(group)?
    } else {
        Vec::new()
    };
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let mut kept = Vec::new();
    for path in &now {
        let remove = Action::RemovePath {
            number: path.number,
            address: path.endpoint.address.clone(),
            port: path.endpoint.port,
        };
        match wanted.get(&PathNumber(path.number)) {
            None => last.push(remove),
            Some(wish) => {
                if !resolved(&wish.endpoint)?.is_same(&path.endpoint) {
                    first.push(remove);
                    continue;
                }
                kept.push(path.number);
                let number = path.number;
                match (wish.enabled, path.enabled) {
                    (true, false) => first.push(Action::EnablePath { number }),
                    (false, true) => last.push(Action::DisablePath { number }),
                    _ => (),
                }
            }
        }
    }
    for (number, path) in wanted
        .iter()
        .filter(|(number, _)| !kept.contains(&number.0))
    {
        let Endpoint { address, port } = resolved(&path.endpoint)?;
        first.push(Action::AddPath {
            number: number.0,
            address,
            port,
            enabled: path.enabled,
        });
    }
    first.extend(last);
    Ok(first)
}

fn resolved(endpoint: &Endpoint) -> Result<Endpoint> {
    Ok(Endpoint {
        address: resolve(&endpoint.address)?,
        port: endpoint.port,
    })
}
