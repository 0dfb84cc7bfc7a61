// SPDX-License-Identifier: GPL-2.0

//! `hcablk connect`: makes a device, or finds an existing one with the requested settings.

use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use uuid::Uuid;

use super::explain::explain;
use super::paths;
use super::sync::sync_disk;
use crate::config::persist::{self, Files, Names, Stored};
use crate::config::running::read_disk;
use crate::configfs::{Group, Transaction, INITIATOR};
use crate::endpoint::{same_address, Endpoint};
use crate::error::{Error, Kind, Result};
use crate::hostid;
use crate::keys;
use crate::names::{DeviceName, VolumeName};
use crate::output::{Done, Outcome};
use crate::system::System;
use crate::tuning::Tuning;
use crate::user;

/// The time limit for the device node to appear once the kernel has made the disk.
const NODE_TIMEOUT: Duration = Duration::from_secs(10);

/// The arguments of `hcablk connect`. A setting that was left out is not written, so that the driver's default holds,
/// and is not compared with that of an existing device.
#[derive(Clone, Debug)]
pub struct Connect {
    /// The target's address.
    pub address: String,
    /// The target's port.
    pub port: u16,
    /// The addresses of the disk's further paths. If empty, those of an existing device are not compared.
    pub paths: Vec<Endpoint>,
    /// Whether the disk gets a path for each portal that its target reports, now and later. An existing disk gets them,
    /// too.
    pub paths_auto: bool,
    /// The volume's name at the target.
    pub volume: VolumeName,
    /// The device's name on this host; the volume's if left out.
    pub name: Option<DeviceName>,
    /// This host's id, if not [`hostid::current`].
    pub host_id: Option<Uuid>,
    /// The id that the volume must have.
    pub expect_wwid: Option<Uuid>,
    /// Whether the target may invalidate memory registrations with its responses.
    pub remote_invalidate: Option<bool>,
    /// Whether to accept a target without a key, although this host has one.
    pub insecure: bool,
    /// Whether the disk is also written into the configuration.
    pub persist: bool,
    /// The other settings.
    pub tuning: Tuning,
}

impl Connect {
    /// Returns the requested settings, each as attribute and value.
    fn settings(&self, host_id: Option<Uuid>) -> Vec<(&'static str, String)> {
        let mut settings = vec![
            ("address", self.address.clone()),
            ("port", self.port.to_string()),
            ("volume", self.volume.to_string()),
        ];
        let mut add =
            |name, value: Option<String>| settings.extend(value.map(|value| (name, value)));
        add("host_id", host_id.map(|id| id.to_string()));
        add("expect_wwid", self.expect_wwid.map(|v| v.to_string()));
        add(
            "remote_invalidate",
            self.remote_invalidate.map(|v| u8::from(v).to_string()),
        );
        add("insecure", self.insecure.then(|| "1".to_owned()));
        settings.extend(self.tuning.attributes());
        settings
    }

    /// Looks up the addresses; fails if two paths have the same address, or there are too many.
    fn resolved(&self) -> Result<Self> {
        let mut wanted = self.clone();
        wanted.address = resolve(&self.address)?;
        for path in &mut wanted.paths {
            path.address = resolve(&path.address)?;
        }
        let mut known = vec![wanted.own()];
        for path in &wanted.paths {
            if known.iter().any(|other| other.is_same(path)) {
                return Err(
                    Error::new(Kind::Usage, format!("the path {path} is given twice")).advise(
                        "Give each address of the target once, the first one without --path.",
                    ),
                );
            }
            known.push(path.clone());
        }
        if known.len() > usize::from(paths::LAST) + 1 {
            return Err(Error::new(
                Kind::Usage,
                format!("a disk has {} paths at most", paths::LAST + 1),
            ));
        }
        Ok(wanted)
    }

    /// Returns the address and port of path 0.
    fn own(&self) -> Endpoint {
        Endpoint {
            address: self.address.clone(),
            port: self.port,
        }
    }
}

/// Returns whether two texts of a setting mean the same.
pub(crate) fn same(attribute: &str, a: &str, b: &str) -> bool {
    match attribute {
        "address" => same_address(a, b),
        "host_id" | "expect_wwid" | "wwid" => match (Uuid::try_parse(a), Uuid::try_parse(b)) {
            (Ok(a), Ok(b)) => a == b,
            _ => a == b,
        },
        _ => a == b,
    }
}

/// Returns whether an address is valid only together with an interface (`fe80::1%eth0`).
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn link_local(address: &str) -> Error {
    Error::new(
        Kind::Failed,
        format!("{address} is a link-local address, which hcablk cannot connect to"),
    )
    .advise("Give the target an address of a network that both hosts are in, and use that.")
}

/// Resolves a host name to the address for the kernel, which knows no names.
pub fn resolve(address: &str) -> Result<String> {
    let bare = address.split_once('%').map_or(address, |(bare, _)| bare);
    match bare.parse::<IpAddr>() {
        Ok(ip) if bare != address || is_link_local(ip) => return Err(link_local(address)),
        // Keys are stored under this form of the address.
        Ok(ip) => return Ok(ip.to_string()),
        Err(_) => {}
    }
    let unknown = |why: String| {
        Error::new(
            Kind::Connection,
            format!("cannot find the address of {address:?}: {why}"),
        )
        .advise("Give the target's IPv4 or IPv6 address.")
    };
    let found: Vec<IpAddr> = (address, 0)
        .to_socket_addrs()
        .map_err(|error| unknown(error.to_string()))?
        .map(|found| found.ip())
        .collect();
    match found.iter().find(|ip| !is_link_local(**ip)) {
        Some(ip) => Ok(ip.to_string()),
        None if found.is_empty() => Err(unknown("it has none".to_owned())),
        None => Err(link_local(address)),
    }
}

/// Runs `hcablk connect`.
pub fn connect(system: &dyn System, wanted: &Connect) -> Result<Outcome> {
    let given = wanted;
    let wanted = &wanted.resolved()?;
    if wanted.persist {
        persist::check(system)?;
    }
    let host_id = match wanted.host_id {
        Some(id) => id,
        None => hostid::current(system)?.0,
    };
    let tree = INITIATOR.require(system)?;

    let name = match &wanted.name {
        Some(name) => name.clone(),
        None => find_connected(&tree, wanted)?.unwrap_or_else(|| DeviceName::from(&wanted.volume)),
    };
    let group = tree.child(name.as_str());
    let mut transaction = Transaction::new(system);
    let result = bring_up(&group, wanted, host_id, &mut transaction)
        .and_then(|done| Ok((done, set_paths_auto(&group, wanted, &mut transaction)?)))
        .and_then(|done| {
            let stored = wanted.persist.then(|| store(&group, &name, given, wanted));
            Ok((done, stored.transpose()?))
        });
    let (((device, mut changed), is_new), stored) = transaction.finish(result)?;
    let mut synced = None;
    if wanted.paths_auto {
        let done = sync_disk(&group, false)?;
        changed |= is_new || done.disk.is_changed();
        synced = Some(done);
    }
    let cut = smaller_requests_note(system, &device, wanted);

    let done = Done::Connect {
        name: name.to_string(),
        device: device.to_string_lossy().into_owned(),
        changed,
    };
    let mut outcome = Outcome::new(done);
    if !changed {
        outcome.note(format!("{name} is connected already"));
    }
    if let Some(stored) = stored {
        let is_changed = stored.is_changed;
        stored.report(&mut outcome);
        if is_changed {
            outcome.note(format!(
                "to connect it at each start: systemctl enable hcablk@{name}"
            ));
        }
    }
    for note in cut
        .into_iter()
        .chain(synced.into_iter().flat_map(|synced| synced.notes))
    {
        outcome.note(note);
    }
    Ok(outcome)
}

/// Writes a disk into the configuration. The addresses in `given` are those of the command line and may be names;
/// `resolved` has the addresses to which they were resolved.
fn store(
    group: &Group<'_>,
    name: &DeviceName,
    given: &Connect,
    resolved: &Connect,
) -> Result<Stored> {
    let further = given.paths.iter().zip(&resolved.paths);
    let further = further.map(|(name, path)| (name.address.clone(), path.address.clone()));
    let own = (given.address.clone(), resolved.address.clone());
    let known = std::iter::once(own).chain(further).collect();
    let names = Names::look_up(group.system(), name.as_str(), known)?;
    let mut files = Files::lock(group.system())?;
    let own = hostid::current(group.system()).ok().map(|(id, _)| id);
    let Some(disk) = read_disk(group, own)? else {
        return Err(Error::new(
            Kind::Failed,
            format!("{name} has no address or no volume"),
        ));
    };
    files.add_disk(name.clone(), disk, &names)?;
    files.store()
}

/// Records that a disk gets a path for each portal, if requested and not yet recorded; returns whether it changed the
/// record.
fn set_paths_auto(
    group: &Group<'_>,
    wanted: &Connect,
    transaction: &mut Transaction<'_>,
) -> Result<bool> {
    let is_new = wanted.paths_auto && !paths::auto(group)?;
    if is_new {
        transaction.set(group, paths::AUTO, "1")?;
    }
    Ok(is_new)
}

/// Returns a remark if the disk's requests are smaller than `--max-io` allows.
fn smaller_requests_note(system: &dyn System, device: &Path, wanted: &Connect) -> Option<String> {
    let asked = wanted.tuning.max_io_kib?;
    let attribute = Path::new("/sys/block")
        .join(device.file_name()?)
        .join("queue/max_hw_sectors_kb");
    let most: u32 = system.read(&attribute).ok()?.trim().parse().ok()?;
    (most < asked).then(|| {
        format!(
            "requests have {most} KiB at most, not {asked}: the RDMA devices, or the target's \
             buffer_mib or memory_mib, have no more; both logs say which"
        )
    })
}

/// Finds a device that is connected to the volume already, under any name.
fn find_connected(tree: &Group<'_>, wanted: &Connect) -> Result<Option<DeviceName>> {
    for group in tree.children()? {
        let live = group
            .get("state")
            .is_ok_and(|state| matches!(state.as_str(), "live" | "degraded"));
        if live && differences(&group, wanted).is_ok_and(|different| different.is_empty()) {
            return Ok(group.name().parse().ok());
        }
    }
    Ok(None)
}

/// Lists, in words, the settings that differ from the requested ones.
fn differences(group: &Group<'_>, wanted: &Connect) -> Result<Vec<String>> {
    let mut different = Vec::new();
    for (attribute, value) in wanted.settings(wanted.host_id) {
        let now = group.get(attribute)?;
        if !same(attribute, &now, &value) {
            different.push(format!("{attribute} is {now}, not {value}"));
        }
    }
    if !wanted.paths.is_empty() {
        let now: Vec<_> = paths::further(group)?
            .into_iter()
            .filter(|path| path.enabled)
            .map(|path| path.endpoint)
            .collect();
        let has = |all: &[Endpoint], one: &Endpoint| all.iter().any(|other| other.is_same(one));
        if now.len() != wanted.paths.len() || !wanted.paths.iter().all(|path| has(&now, path)) {
            different.push(format!(
                "further paths are {}, not {}",
                join(&now),
                join(&wanted.paths)
            ));
        }
    }
    Ok(different)
}

fn join(paths: &[Endpoint]) -> String {
    if paths.is_empty() {
        return "none".to_owned();
    }
    let texts: Vec<_> = paths.iter().map(ToString::to_string).collect();
    texts.join(" and ")
}

/// Explains that a device exists with other settings.
fn other_settings(name: &str, different: &[String]) -> Error {
    let mut advice = format!(
        "Disconnect it first (hcablk disconnect {name}), or connect under another name (--name)."
    );
    let is = |what: &str| different.iter().any(|one| one.starts_with(what));
    if is("further paths ") {
        advice.push_str(&format!(
            "\nThe paths of a disk can be changed while it is used: hcablk path add {name} ADDRESS, \
             hcablk path remove {name} ADDRESS"
        ));
    }
    if is("policy ") {
        advice.push_str(&format!(
            "\nThe policy can be changed while the disk is used: hcablk path policy {name} POLICY"
        ));
    }
    Error::new(
        Kind::Exists,
        format!(
            "there is a device {name} with other settings: {}",
            different.join(", ")
        ),
    )
    .advise(advice)
}

/// Makes the device, or finds an existing one: returns its node, and whether anything was changed.
fn bring_up(
    group: &Group<'_>,
    wanted: &Connect,
    host_id: Uuid,
    transaction: &mut Transaction<'_>,
) -> Result<(PathBuf, bool)> {
    let name = group.name();
    // Whether the settings must be written.
    let mut fresh = true;
    if group.exists() {
        let state = group.get("state")?;
        let different = differences(group, wanted)?;
        let untouched =
            state == "new" && group.get("volume")?.is_empty() && paths::further(group)?.is_empty();
        if !different.is_empty() && !untouched {
            return Err(other_settings(&name, &different));
        }
        match state.as_str() {
            // The driver itself reconnects a lost disk.
            "live" | "degraded" | "queueing" | "failing-fast" => {
                return Ok((wait_for_node(group)?, false))
            }
            // The connection was lost, or not made, and the settings still exist: reconnect in place. Nothing is
            // written to `enable` before, since the driver would then forget which volume it was.
            "failed" | "new" => fresh = untouched,
            _ => {
                return Err(Error::new(Kind::Busy, format!("{name} is {state}"))
                    .advise("Try again when that is done."))
            }
        }
    } else {
        if let Some(error) = user::refuse_kernels(group.system(), &name) {
            return Err(error);
        }
        transaction.mkdir(group)?;
    }

    if fresh {
        for (attribute, value) in wanted.settings(Some(host_id)) {
            transaction.set(group, attribute, value)?;
        }
        // Paths are made before the disk is enabled: any of them may be the first to connect.
        for (number, path) in (1..).zip(&wanted.paths) {
            paths::make(group, number, path, transaction)?;
        }
    }
    Ok((enable(group, transaction)?, true))
}

/// Connects a device that is set up, and returns its node.
pub(crate) fn enable(group: &Group<'_>, transaction: &mut Transaction<'_>) -> Result<PathBuf> {
    keys::set_device(group)?;
    if let Err(error) = transaction.enable(group)? {
        return Err(explain(&error, group));
    }
    wait_for_node(group)
}

/// Waits for the device node of a live device.
pub(crate) fn wait_for_node(group: &Group<'_>) -> Result<PathBuf> {
    let system = group.system();
    let device = group.get("device")?;
    if device.is_empty() {
        let why = group
            .reason()
            .unwrap_or_else(|| "the driver does not say why".to_owned());
        let message = format!("{} lost its connection at once: {why}", group.name());
        return Err(Error::new(Kind::Connection, message)
            .advise("Look at the kernel's log on both sides (dmesg)."));
    }
    let node = Path::new("/dev").join(&device);
    if system.wait_for(&node, NODE_TIMEOUT) {
        return Ok(node);
    }
    if system.interrupted() {
        return Err(Error::interrupted());
    }
    Err(Error::new(
        Kind::Setup,
        format!(
            "the disk {device} exists, but {} did not appear within {} s",
            node.display(),
            NODE_TIMEOUT.as_secs()
        ),
    )
    .advise("Is devtmpfs mounted at /dev?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_compared_by_meaning() {
        assert!(same("address", "::1", "0:0:0:0:0:0:0:1"));
        assert!(!same("address", "10.0.0.1", "10.0.0.2"));
        assert!(same(
            "host_id",
            "5f2c1d6e8a0b4c3d9e7f001122334455",
            "5F2C1D6E-8A0B-4C3D-9E7F-001122334455"
        ));
    }

    #[test]
    fn literal_addresses_are_not_looked_up() {
        for address in ["10.0.0.1", "2001:db8::1", "::1"] {
            assert_eq!(resolve(address).unwrap(), address);
        }
    }

    #[test]
    fn addresses_that_need_an_interface_are_refused_in_words() {
        for address in ["fe80::1%eth0", "fe80::1", "febf::1%2", "2001:db8::1%eth0"] {
            let error = resolve(address).unwrap_err();
            assert_eq!(error.kind, Kind::Failed);
            assert!(error.message.contains(address), "{error}");
            assert!(error.advice.is_some());
        }
    }
}
