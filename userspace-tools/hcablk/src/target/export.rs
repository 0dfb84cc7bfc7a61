// SPDX-License-Identifier: GPL-2.0

//! `hcablk target export`: makes a volume, or finds an existing one with the requested settings.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;
use nix::errno::Errno;
use serde::Serialize;
use uuid::Uuid;

use super::fence::evict_recorded;
use super::hosts::{allow_host, hosts};
use super::ports::{ensure_port, Listen};
use super::state;
use super::write_cache::{self, WriteCache};
use super::wwids::{default_wwid, keep as keep_wwid};
use super::{ports, volumes};
use crate::apply::record::{Mark, Record};
use crate::apply::step::Table;
use crate::config;
use crate::config::persist::{self, Files, Stored};
use crate::config::running::{attribute, read_export, read_port};
use crate::config::value::StatePath;
use crate::configfs::{Group, Transaction, TARGET};
use crate::error::{describe, with_reason, Error, Kind, Result, SEE_THE_LOG};
use crate::host_names::HostNames;
use crate::hostid;
use crate::keys;
use crate::names::VolumeName;
use crate::output::{Done, Outcome, PortRef};
use crate::system::{OpError, System};
use crate::tuning::choice;

/// The attribute that keeps a volume from being enabled if its reservations cannot be kept.
pub(super) const KEEP_RESERVATIONS: &str = "keep_reservations";

/// How a volume's data moves; the driver's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Bypass the page cache of the target
    Direct,
    /// Use the page cache, with its read-ahead
    Cached,
    /// Writes go through the page cache, reads bypass it
    Mixed,
    /// Move data between the drive and memory of a PCI device, bypassing this machine's memory
    P2p,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        choice(text)
    }
}

impl Mode {
    /// Returns the driver's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Cached => "cached",
            Self::Mixed => "mixed",
            Self::P2p => "p2p",
        }
    }
}

/// The arguments of `hcablk target export`.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Clone, Debug)]
pub struct Export {
    /// The name of the volume for clients.
    pub volume: VolumeName,
    /// The block device or file.
    pub path: PathBuf,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether hosts without a key may connect.
    pub insecure: bool,
    /// How the data moves.
    pub mode: Mode,
    /// When writes are acknowledged.
    pub write_cache: WriteCache,
    /// Whether the export fails if its reservations cannot be kept.
    pub keep_reservations: bool,
    /// MiB of the volume's cache; 0: none.
    pub cache_mib: u32,
    /// KiB of the chunks that large requests move in; 0: they move as a whole.
    pub chunk_kib: u32,
    /// The PCI device that lends memory, if one was named.
    pub provider: Option<String>,
    /// The id of the volume, if neither its state directory's nor the one that [`default_wwid`] returns.
    pub wwid: Option<Uuid>,
    /// The directory with the records that move with the volume, if not this machine's.
    pub state: Option<StatePath>,
    /// The hosts that may connect.
    pub allow: Vec<Uuid>,
    /// Whether the export and its port are also written into the configuration.
    pub persist: bool,
    /// The port that must listen, if any.
    pub listen: Option<Listen>,
}

impl Export {
    /// Returns the driver's word for the provider of peer memory.
    fn source(&self) -> &str {
        self.provider.as_deref().unwrap_or("auto")
    }

    /// Returns the driver's word for the state directory.
    fn state(&self) -> &str {
        self.state.as_ref().map_or("", |state| state.0.as_str())
    }

    /// Returns the absolute path: the driver opens the device with this text, so that it must not depend on the
    /// caller's folder.
    fn absolute_path(&self) -> Result<String> {
        let given = self.path.display();
        let path = std::path::absolute(&self.path).map_err(|error| {
            Error::new(
                Kind::Failed,
                format!("cannot use the path {given}: {error}"),
            )
        })?;
        let path = path.to_str().filter(|path| !path.contains('\n'));
        path.map(str::to_owned)
            .ok_or_else(|| Error::new(Kind::Usage, format!("the path {given} is not plain text")))
    }
}

/// Runs `hcablk target export`.
pub fn export(system: &dyn System, wanted: &Export) -> Result<Outcome> {
    if wanted.provider.is_some() && wanted.mode != Mode::P2p {
        return Err(Error::new(
            Kind::Usage,
            format!("mode {} uses no PCI device's memory", wanted.mode.name()),
        )
        .advise("--provider is for --mode p2p."));
    }
    let path = wanted.absolute_path()?;
    let path = path.as_str();
    let tree = TARGET.require(system)?;
    let group = volumes(&tree).child(wanted.volume.as_str());

    let derived = derived_wwid(system, wanted, path)?;
    let wwid = wanted.wwid.or(derived);
    if wanted.persist {
        persist::check(system)?;
    }
    let mut transaction = Transaction::new(system);
    let result =
        set_up(&tree, &group, wanted, path, wwid, &mut transaction).and_then(|(port, evicted)| {
            let stored = wanted
                .persist
                .then(|| store(&tree, wanted, derived, port.as_ref()));
            Ok((port, evicted, stored.transpose()?))
        });
    let changed = transaction.has_changes();
    let (port, evicted, stored) = transaction.finish(result)?;
    if changed && stored.is_none() {
        // The service neither repeats nor undoes changes of other commands.
        Record::new(system).forget(Table::Export, wanted.volume.as_str())?;
    }
    // This precedes everything that can fail, since a configured export belongs to the service.
    let port_id = port.as_ref().map(|port| port.id.clone());
    let handed = stored.as_ref().and_then(|(_, has_port)| {
        let port = has_port.then_some(port_id.as_deref()).flatten();
        hand_over(system, &wanted.volume, port)
    });

    let allowed: Vec<_> = hosts(&group)?.into_iter().map(|(host, _)| host).collect();
    let mut outcome = Outcome::new(Done::Export {
        volume: wanted.volume.to_string(),
        path: path.to_owned(),
        read_only: wanted.read_only,
        insecure: wanted.insecure,
        mode: wanted.mode.name().to_owned(),
        write_cache: wanted.write_cache.name().to_owned(),
        cache_mib: wanted.cache_mib,
        chunk_kib: wanted.chunk_kib,
        hosts: allowed.clone(),
        port,
        changed,
    });
    if !changed {
        outcome.note(format!("{} is exported already", wanted.volume));
    }
    if let Some((stored, _)) = stored {
        stored.report(&mut outcome);
        outcome.notes.extend(handed);
        outcome.notes.extend(unstable_name(system, path));
    }
    if !evicted.is_empty() {
        outcome.note(format!(
            "evicted, and refused until they are admitted: {}",
            HostNames::read(system).join(&evicted)
        ));
    }
    if wanted.insecure {
        outcome.note(
            "INSECURE: anyone who can reach this machine and knows the id of an allowed host can use the volume"
                .to_owned(),
        );
    }
    if wanted.keep_reservations && now_keep_reservations(&group)?.is_none() {
        outcome.note(
            "the kernel module cannot report whether reservations are kept: it is older than this command"
                .to_owned(),
        );
    }
    if wwid.is_none() {
        outcome.note(
            "this host has no id, so the volume has no wwid, which is derived from it: set one with --wwid"
                .to_owned(),
        );
    }
    if let Some(advice) = write_cache::advice(&group) {
        outcome.note(advice);
    }
    if allowed.is_empty() {
        outcome.note(format!(
            "no host may connect yet: hcablk enroll CLIENT {0}, or hcablk target allow {0} UUID, where UUID is the \
             output of `hcablk host-id` on the client",
            wanted.volume
        ));
    }
    for note in keys::missing::notes(&group)? {
        outcome.note(note);
    }
    Ok(outcome)
}

/// Returns the wwid of a volume for which the user gives none: that of its state directory, else a derived one. Fails if
/// the state directory is not there.
fn derived_wwid(system: &dyn System, wanted: &Export, path: &str) -> Result<Option<Uuid>> {
    let state = wanted.state.as_ref().map(|state| Path::new(&state.0));
    let owner = state.map(|state| state::owner(system, state)).transpose()?;
    let host = hostid::current(system).ok().map(|(id, _)| id);
    let derived = || default_wwid(system, host, &wanted.volume, path);
    Ok(owner.flatten().or_else(derived))
}

/// Gives a configured export, and its port, to the target's service, which then ends them in order at a shutdown.
/// Returns a remark if the service does not end them yet.
fn hand_over(system: &dyn System, volume: &VolumeName, port: Option<&str>) -> Option<String> {
    let record = Record::new(system);
    if !record.was_begun() {
        return Some(
            "hcablk-target.service does not run yet; it ends this export in order at a shutdown after: systemctl \
             start hcablk-target"
                .to_owned(),
        );
    }
    let mark = || {
        record.mark(Mark::Made, Table::Export, volume.as_str())?;
        port.map_or(Ok(()), |id| record.mark(Mark::Made, Table::Port, id))
    };
    let failed: Error = mark().err()?;
    Some(format!(
        "hcablk-target.service does not end this export at a shutdown ({}) until: systemctl reload hcablk-target",
        failed.message
    ))
}

/// Returns a warning if a device is configured under a name that a different device may have after a restart. The
/// warning has the device's name that stays, if there is one.
fn unstable_name(system: &dyn System, path: &str) -> Option<String> {
    const BY_ID: &str = "/dev/disk/by-id";
    let device = Path::new(path);
    let real = system.real_path(device)?;
    // Somebody has chosen a name by making a link in /dev.
    if device.parent() != Some(Path::new("/dev")) || real != device {
        return None;
    }
    let names = system.entries(Path::new(BY_ID)).unwrap_or_default();
    let links = names.iter().map(|name| Path::new(BY_ID).join(name));
    let link = links
        .filter(|link| system.real_path(link).as_ref() == Some(&real))
        // Worldwide unique names first.
        .min_by_key(|link| {
            let name = link.to_string_lossy();
            !["wwn-", "nvme-eui.", "nvme-uuid."]
                .iter()
                .any(|start| name.contains(&format!("/{start}")))
        });
    let stays = match link {
        Some(link) => format!(
            "this drive always has the name {}: set that as `device` in the configuration",
            link.display()
        ),
        None => format!("{BY_ID} has no other name for it"),
    };
    Some(format!(
        "after a restart {path} may be another drive, which would be exported instead; {stays}"
    ))
}

/// Writes an export into the configuration, and its port if no port there listens at the same address. Also returns
/// whether the configuration has the port under its id.
fn store(
    tree: &Group<'_>,
    wanted: &Export,
    derived: Option<Uuid>,
    port: Option<&PortRef>,
) -> Result<(Stored, bool)> {
    let mut files = Files::lock(tree.system())?;
    let mut has_port = false;
    let name = &wanted.volume;
    let cannot = |what: String| Error::new(Kind::Failed, format!("cannot configure {what}"));
    let Some(mut export) = read_export(&volumes(tree).child(name.as_str()))? else {
        return Err(cannot(format!("{name}: it has no device")));
    };
    let known = files.config().export.get(name);
    // A derived id is not written, since it is derived again. An id that was given when the volume was exported is
    // written.
    let derived = derived.map(config::value::Wwid::Id);
    let is_derived = wanted.wwid.is_none() && (derived.is_none() || export.wwid == derived);
    if is_derived && known.is_none_or(|known| known.wwid.is_none()) {
        export.wwid = None;
    }
    files.add_export(name.clone(), export);
    if let Some(port) = port {
        let id = port.id.parse().map_err(cannot)?;
        let is_same = |known: &config::Port| known.enabled && known.is_at(&port.address, port.port);
        let all = &files.config().port;
        has_port = all.get(&id).is_some_and(is_same);
        if !all.values().any(is_same) {
            has_port = true;
            let mut new = read_port(&ports(tree).child(&port.id))?;
            let known = files.config().port.get(&id);
            // The running value may be the driver's default, which depends on the free memory, and is not written.
            new.memory = known.and_then(|known| known.memory);
            if known.is_some_and(|known| known.enabled) {
                return Err(Error::new(
                    Kind::Exists,
                    format!(
                        "the configuration has a port {id} that listens elsewhere than the running one, {}",
                        port.address
                    ),
                )
                .advise("hcablk config diff shows how they differ; hcablk apply makes the running one match."));
            }
            files.add_port(id, new);
        }
    }
    Ok((files.store()?, has_port))
}

fn set_up(
    tree: &Group<'_>,
    group: &Group<'_>,
    wanted: &Export,
    path: &str,
    wwid: Option<Uuid>,
    transaction: &mut Transaction<'_>,
) -> Result<(Option<PortRef>, Vec<Uuid>)> {
    let mut enabled = false;
    if group.exists() {
        enabled = group.flag("enable")?;
        check_same(group, wanted, path, enabled)?;
    } else {
        transaction.mkdir(group)?;
    }
    if !enabled {
        transaction.set(group, "path", path)?;
        transaction.set(group, "read_only", u8::from(wanted.read_only))?;
        transaction.set(group, "insecure", u8::from(wanted.insecure))?;
        transaction.set(group, "mode", wanted.mode.name())?;
        // A driver without the setting behaves like the default.
        if now_write_cache(group)? != wanted.write_cache.name() {
            transaction.set(group, write_cache::ATTRIBUTE, wanted.write_cache)?;
        }
        if now_keep_reservations(group)?.is_some_and(|now| now != wanted.keep_reservations) {
            let keep = u8::from(wanted.keep_reservations);
            transaction.set(group, KEEP_RESERVATIONS, keep)?;
        }
        set_state(group, wanted, transaction)?;
        transaction.set(group, "cache_mib", wanted.cache_mib)?;
        transaction.set(group, "chunk_kib", wanted.chunk_kib)?;
        if wanted.mode == Mode::P2p {
            transaction.set(group, "provider", wanted.source())?;
        }
        if let Some(wwid) = wwid {
            if wanted.wwid.is_none() {
                keep_wwid(group.system(), &wanted.volume, path, wwid, transaction)?;
            }
            transaction.set(group, "wwid", wwid)?;
        }
    }
    // Before the volume is enabled: an allowed host must never be turned away for connecting early.
    let allowed = hosts(group)?;
    for host in &wanted.allow {
        if !allowed.iter().any(|(id, _)| id == host) {
            allow_host(group, *host, transaction)?;
        }
    }
    let evicted = if enabled {
        evict_recorded(group)?
    } else {
        enable(group, transaction)?
    };
    let port = wanted
        .listen
        .as_ref()
        .map(|listen| ensure_port(tree, listen, transaction))
        .transpose()?;
    Ok((port, evicted))
}

/// Sets the state directory of a volume that is not enabled.
fn set_state(group: &Group<'_>, wanted: &Export, transaction: &mut Transaction<'_>) -> Result<()> {
    let state = wanted.state();
    match attribute(group, state::ATTRIBUTE)? {
        None if state.is_empty() => Ok(()),
        None => Err(Error::new(
            Kind::Setup,
            "the kernel module cannot keep the state of a volume in a directory: it is older than this command",
        )),
        Some(now) if now == state => Ok(()),
        Some(_) => transaction.set(group, state::ATTRIBUTE, state),
    }
}

/// Enables a volume that is set up, after evicting its recorded hosts, and returns these.
pub(crate) fn enable(group: &Group<'_>, transaction: &mut Transaction<'_>) -> Result<Vec<Uuid>> {
    state::claim(group, transaction)?;
    keys::set_target(group)?;
    // Before enabling: none of these hosts may connect.
    let evicted = evict_recorded(group)?;
    match transaction.enable(group)? {
        Ok(()) => Ok(evicted),
        Err(error) => Err(explain_volume(&error, group)),
    }
}

/// Returns the driver's word for when a volume acknowledges writes.
fn now_write_cache(group: &Group<'_>) -> Result<String> {
    let word = attribute(group, write_cache::ATTRIBUTE)?;
    Ok(word.unwrap_or_else(|| WriteCache::Back.name().to_owned()))
}

/// Returns whether enabling the volume fails if its reservations cannot be kept; `None` if the driver has no such
/// setting.
fn now_keep_reservations(group: &Group<'_>) -> Result<Option<bool>> {
    Ok(attribute(group, KEEP_RESERVATIONS)?.map(|text| text == "1"))
}

/// Checks that an existing volume has the requested settings.
fn check_same(group: &Group<'_>, wanted: &Export, path: &str, enabled: bool) -> Result<()> {
    let name = &wanted.volume;
    let mut different = Vec::new();
    let mut steps = Vec::new();
    let now = group.get("path")?;
    // A volume that never had a device can be set up.
    if now.is_empty() && !enabled {
        return Ok(());
    }
    if now != path {
        different.push(format!("its path is {now}, not {path}"));
    }
    let read_only = group.flag("read_only")?;
    if read_only != wanted.read_only {
        let word = |read_only| if read_only { "read-only" } else { "writable" };
        different.push(format!(
            "it is {}, not {}",
            word(read_only),
            word(wanted.read_only)
        ));
    }
    let insecure = group.flag("insecure")?;
    if insecure != wanted.insecure {
        let word = |insecure| {
            if insecure {
                "lets hosts connect without a key"
            } else {
                "demands that hosts prove who they are"
            }
        };
        different.push(format!(
            "it {}; requested: it {}",
            word(insecure),
            word(wanted.insecure)
        ));
    }
    different.extend(other_data_settings(group, wanted)?);
    let wwid = group.get("wwid")?;
    if let Some(wanted) = wanted.wwid.filter(|id| Uuid::try_parse(&wwid) != Ok(*id)) {
        different.push(format!("its wwid is {wwid}, not {wanted}"));
    }
    if !different.is_empty() {
        steps.push(format!(
            "To change it, end it first (its clients lose it): hcablk target unexport {name}\n\
             or export under another name."
        ));
    }
    let allowed = hosts(group)?;
    let missing: Vec<_> = wanted
        .allow
        .iter()
        .filter(|host| !allowed.iter().any(|(id, _)| id == *host))
        .collect();
    if enabled && !missing.is_empty() {
        let list: Vec<_> = missing.iter().map(ToString::to_string).collect();
        different.push(format!("it does not allow {}", list.join(", ")));
        steps.push(format!(
            "To allow more hosts: hcablk target allow {name} {}",
            list.join(" ")
        ));
    }
    if different.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        Kind::Exists,
        format!(
            "volume {name} exists with other settings: {}",
            different.join("; ")
        ),
    )
    .advise(steps.join("\n")))
}

/// Returns the data settings that differ from the requested ones.
fn other_data_settings(group: &Group<'_>, wanted: &Export) -> Result<Vec<String>> {
    let mut different = Vec::new();
    let mode = group.get("mode")?;
    if mode != wanted.mode.name() {
        different.push(format!("its mode is {mode}, not {}", wanted.mode.name()));
    } else if wanted.mode == Mode::P2p {
        let provider = group.get("provider")?;
        if provider != wanted.source() {
            different.push(format!(
                "its provider is {provider}, not {}",
                wanted.source()
            ));
        }
    }
    let write_cache = now_write_cache(group)?;
    if write_cache != wanted.write_cache.name() {
        different.push(format!(
            "its write cache is {write_cache}, not {}",
            wanted.write_cache
        ));
    }
    if now_keep_reservations(group)?.is_some_and(|now| now != wanted.keep_reservations) {
        let what = if wanted.keep_reservations {
            "it is exported even without stored reservations"
        } else {
            "it is not exported without stored reservations"
        };
        different.push(what.to_owned());
    }
    let shown = |state: &str| match state {
        "" => "this machine's".to_owned(),
        state => state.to_owned(),
    };
    let state = attribute(group, state::ATTRIBUTE)?.unwrap_or_default();
    if state != wanted.state() {
        different.push(format!(
            "its state directory is {}, not {}",
            shown(&state),
            shown(wanted.state())
        ));
    }
    let cache_mib: u32 = group.value("cache_mib")?;
    if cache_mib != wanted.cache_mib {
        different.push(format!(
            "its cache has {cache_mib} MiB, not {}",
            wanted.cache_mib
        ));
    }
    let chunk_kib: u32 = group.value("chunk_kib")?;
    if chunk_kib != wanted.chunk_kib {
        different.push(format!(
            "its chunks have {chunk_kib} KiB, not {}",
            wanted.chunk_kib
        ));
    }
    Ok(different)
}

fn explain_volume(error: &OpError, group: &Group<'_>) -> Error {
    let get = |attribute| group.get(attribute).unwrap_or_default();
    let (path, mode) = (get("path"), get("mode"));
    let has_cache = group.value("cache_mib").is_ok_and(|mib: u32| mib != 0);
    let message = with_reason(
        format!(
            "cannot export {path} as {}: {}",
            group.name(),
            describe(error.errno)
        ),
        group.reason(),
    );
    let reason = group.reason().unwrap_or_default();
    // The folder with the volume's reservations.
    let state = Some(get(state::ATTRIBUTE)).filter(|state| !state.is_empty());
    let state = state.unwrap_or_else(|| "/var/lib/hcablk".to_owned());
    let advice = match error.errno {
        _ if reason.contains("without a wwid") => {
            "Give the volume a wwid, the same each time: --wwid UUID (`uuidgen` prints one).\n\
             A volume that needs no reservations is exported with --no-reservations."
                .to_owned()
        }
        _ if reason.contains("no directory is set") => {
            "Write its path to /sys/kernel/config/hcablk_target/reservations.\n\
             A volume that needs no reservations is exported with --no-reservations."
                .to_owned()
        }
        _ if reason.contains("reservations cannot be kept") => {
            format!(
                "Mount the file system of {state}. If the directory is new, make it:\n\
                 mkdir -p {state}/reservations && touch {state}/reservations/.hcablk-reservations\n\
                 A volume that needs no reservations is exported with --no-reservations."
            )
        }
        _ if reason.contains("without keeping reservations") => {
            "Unexport that volume, or export this one with --no-reservations, too.".to_owned()
        }
        _ if reason.contains("directory of reservations cannot be on overlayfs") => {
            format!("Keep {state} on another file system.")
        }
        Errno::EOPNOTSUPP if reason.contains("overlayfs") => {
            "`df` shows which file system the file is on.".to_owned()
        }
        Errno::ENOENT | Errno::ENXIO | Errno::ENODEV => {
            "`lsblk -p` shows the block devices of this machine.".to_owned()
        }
        Errno::ENOTBLK if mode == "p2p" => {
            "Only a block device does DMA to a PCI device: export a file with --mode direct."
                .to_owned()
        }
        Errno::ENOTBLK | Errno::EISDIR => {
            "Only block devices and regular files can be exported.".to_owned()
        }
        Errno::EOPNOTSUPP => {
            "Its file system does all I/O through the page cache: export it with --mode cached."
                .to_owned()
        }
        Errno::EBUSY => format!(
            "A volume needs the whole device for itself. `lsblk {path}` shows its users:\n\
             a mount, a RAID, LVM. With a cache it must not be exported by another volume either."
        ),
        Errno::EINVAL if has_cache && !matches!(mode.as_str(), "direct" | "p2p") => {
            "A cache (--cache-mib) is for the modes direct and p2p.".to_owned()
        }
        Errno::ENOMEM if has_cache => {
            "A smaller cache (--cache-mib) may have room; `free -m` shows what is available."
                .to_owned()
        }
        Errno::EROFS | Errno::EACCES | Errno::EPERM => format!(
            "Writing is not allowed. Export it with --read-only,\n\
             or make a device writable: blockdev --setrw {path}"
        ),
        _ => SEE_THE_LOG.to_owned(),
    };
    let kind = match error.errno {
        Errno::ENOENT | Errno::ENXIO | Errno::ENODEV => Kind::NotFound,
        Errno::EBUSY => Kind::Busy,
        _ => Kind::Failed,
    };
    Error::new(kind, message)
        .with_errno(error.errno)
        .advise(advice)
}
