// SPDX-License-Identifier: GPL-2.0

//! Exports of this machine: volumes, the hosts they allow, the ports that listen.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use nix::errno::Errno;
use uuid::Uuid;

use crate::configfs::{parse_counters, remove, Group, Transaction, TARGET};
use crate::error::{describe, with_reason, Error, Kind, Result, NO_RDMA_DEVICE, SEE_THE_LOG};
use crate::hostid;
use crate::initiator::unless_gone;
use crate::names::VolumeName;
use crate::output::{
    is_cut, Client, Counters, Done, Outcome, Port, PortRef, PortSession, Report, Volume,
};
use crate::system::{OpError, System};
use crate::times::Times;

/// The port that targets listen on by default.
pub const DEFAULT_PORT: u16 = 7744;

/// How often, and how long apart, `unexport` looks again for clients that have just disconnected: a
/// client is done a moment before its target is.
const CLIENT_TRIES: u32 = 40;
const CLIENT_PAUSE: Duration = Duration::from_millis(50);

/// A port asked for; what is left out may be anything, or the default if it must be made.
#[derive(Clone, Debug, Default)]
pub struct Listen {
    /// The address to listen at.
    pub address: Option<IpAddr>,
    /// The port number.
    pub port: Option<u16>,
    /// The id in configfs.
    pub id: Option<u16>,
    /// Pooled transfer buffers per session.
    pub buffer_mib: Option<u32>,
    /// Buffers of all sessions together, in MiB.
    pub memory_mib: Option<u32>,
    /// Receive buffers per queue.
    pub queue_credits: Option<u32>,
}

/// By what way a volume's data goes; the driver's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Past the page cache of the target
    Direct,
    /// Through the page cache, with its read-ahead
    Cached,
    /// Writes through the page cache, reads past it
    Mixed,
    /// Between the drive and memory of a PCI device, past this machine's memory
    P2p,
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

/// What `hcablk target export` was asked for.
#[derive(Clone, Debug)]
pub struct Export {
    /// The name that clients ask for.
    pub volume: VolumeName,
    /// The block device or file.
    pub path: PathBuf,
    /// Whether writes are refused.
    pub read_only: bool,
    /// By what way data goes.
    pub mode: Mode,
    /// MiB of the volume's cache; 0: none.
    pub cache_mib: u32,
    /// KiB of the chunks that large requests move in; 0: they move as a whole.
    pub chunk_kib: u32,
    /// The PCI device that lends memory, if one was named.
    pub provider: Option<String>,
    /// Which volume it is, if not [`default_wwid`].
    pub wwid: Option<Uuid>,
    /// The hosts that may connect.
    pub allow: Vec<Uuid>,
    /// The port to make sure of, if any.
    pub listen: Option<Listen>,
}

impl Export {
    /// The driver's default of `chunk_kib`.
    pub const CHUNK_KIB: u32 = 128;

    /// Returns the driver's word for who lends memory.
    fn source(&self) -> &str {
        self.provider.as_deref().unwrap_or("auto")
    }
}

fn volumes<'a>(tree: &Group<'a>) -> Group<'a> {
    tree.child("volumes")
}

fn ports<'a>(tree: &Group<'a>) -> Group<'a> {
    tree.child("ports")
}

fn no_such_volume(volume: &VolumeName) -> Error {
    Error::new(Kind::NotFound, format!("there is no volume {volume}"))
        .advise("`hcablk target list` shows the volumes of this machine.")
}

/// Returns the volume's group; fails if it is not there.
fn existing<'a>(system: &'a dyn System, volume: &VolumeName) -> Result<Group<'a>> {
    let group = TARGET
        .tree(system)
        .map(|tree| volumes(&tree).child(volume.as_str()));
    group
        .filter(Group::exists)
        .ok_or_else(|| no_such_volume(volume))
}

/// Lists the hosts that a volume allows, each with its group.
fn hosts<'a>(volume: &Group<'a>) -> Result<Vec<(Uuid, Group<'a>)>> {
    let groups = volume.child("hosts").children()?;
    Ok(groups
        .into_iter()
        .filter_map(|group| Some((Uuid::try_parse(&group.name()).ok()?, group)))
        .collect())
}

/// Runs `hcablk target export`.
pub fn export(system: &dyn System, wanted: &Export) -> Result<Outcome> {
    if wanted.provider.is_some() && wanted.mode != Mode::P2p {
        return Err(Error::new(
            Kind::Failed,
            format!("mode {} uses no PCI device's memory", wanted.mode.name()),
        )
        .advise("--provider is for --mode p2p."));
    }
    // The driver opens the device by this text, so it must not depend on the caller's folder.
    let path = std::path::absolute(&wanted.path).map_err(|error| {
        Error::new(
            Kind::Failed,
            format!("cannot use the path {}: {error}", wanted.path.display()),
        )
    })?;
    let path = path
        .to_str()
        .filter(|path| !path.contains('\n'))
        .ok_or_else(|| {
            Error::new(
                Kind::Failed,
                format!("the path {} is not plain text", wanted.path.display()),
            )
        })?;
    let tree = TARGET.require(system)?;
    let group = volumes(&tree).child(wanted.volume.as_str());

    let wwid = wanted
        .wwid
        .or_else(|| default_wwid(system, &wanted.volume, path));
    let mut transaction = Transaction::new(system);
    let result = set_up(&tree, &group, wanted, path, wwid, &mut transaction);
    let changed = transaction.has_changes();
    let port = transaction.finish(result)?;

    let allowed: Vec<_> = hosts(&group)?.into_iter().map(|(host, _)| host).collect();
    let mut outcome = Outcome::new(Done::Export {
        volume: wanted.volume.to_string(),
        path: path.to_owned(),
        read_only: wanted.read_only,
        mode: wanted.mode.name().to_owned(),
        cache_mib: wanted.cache_mib,
        chunk_kib: wanted.chunk_kib,
        hosts: allowed.clone(),
        port,
        changed,
    });
    if !changed {
        outcome.note(format!("{} is exported already", wanted.volume));
    }
    if wwid.is_none() {
        outcome.note(
            "this host has no id to derive the volume's wwid from, so it has none: give one by --wwid"
                .to_owned(),
        );
    }
    if allowed.is_empty() {
        outcome.note(format!(
            "no host may connect yet: hcablk target allow {} UUID, where UUID is what `hcablk \
             host-id` prints on the client",
            wanted.volume
        ));
    }
    Ok(outcome)
}

/// Makes the id by which a volume is known if the user gives none: the same each time it is
/// exported, and another one for another drive.
fn default_wwid(system: &dyn System, volume: &VolumeName, path: &str) -> Option<Uuid> {
    let (host, _) = hostid::current(system).ok()?;
    let device = path.rsplit('/').next()?;
    // What NVMe and SCSI know of a drive; for everything else its path.
    let known = ["wwid", "device/wwid"].iter().find_map(|file| {
        let text = system
            .read(&Path::new("/sys/class/block").join(device).join(file))
            .ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    });
    let drive = known.as_deref().unwrap_or(path);
    Some(Uuid::new_v5(&host, format!("{volume}\n{drive}").as_bytes()))
}

fn set_up(
    tree: &Group<'_>,
    group: &Group<'_>,
    wanted: &Export,
    path: &str,
    wwid: Option<Uuid>,
    transaction: &mut Transaction<'_>,
) -> Result<Option<PortRef>> {
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
        transaction.set(group, "mode", wanted.mode.name())?;
        transaction.set(group, "cache_mib", wanted.cache_mib)?;
        transaction.set(group, "chunk_kib", wanted.chunk_kib)?;
        if wanted.mode == Mode::P2p {
            transaction.set(group, "provider", wanted.source())?;
        }
        if let Some(wwid) = wwid {
            transaction.set(group, "wwid", wwid)?;
        }
    }
    // Before the volume is enabled: a host that is to be allowed must never be turned away for
    // being early.
    let allowed = hosts(group)?;
    for host in &wanted.allow {
        if !allowed.iter().any(|(id, _)| id == host) {
            allow_host(group, *host, transaction)?;
        }
    }
    if !enabled {
        if let Err(error) = transaction.enable(group)? {
            return Err(explain_volume(&error, group, wanted, path));
        }
    }
    wanted
        .listen
        .as_ref()
        .map(|listen| ensure_port(tree, listen, transaction))
        .transpose()
}

/// Makes sure that a volume that is there is the one asked for.
fn check_same(group: &Group<'_>, wanted: &Export, path: &str, enabled: bool) -> Result<()> {
    let name = &wanted.volume;
    let mut different = Vec::new();
    let mut steps = Vec::new();
    let now = group.get("path")?;
    // One that was never given a device is free to be set up.
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
            "volume {name} is there with other settings: {}",
            different.join("; ")
        ),
    )
    .advise(steps.join("\n")))
}

fn explain_volume(error: &OpError, group: &Group<'_>, wanted: &Export, path: &str) -> Error {
    let message = with_reason(
        format!(
            "cannot export {path} as {}: {}",
            group.name(),
            describe(error.errno)
        ),
        group.reason(),
    );
    let advice = match error.errno {
        Errno::ENOENT | Errno::ENXIO | Errno::ENODEV => {
            "`lsblk -p` shows the block devices of this machine.".to_owned()
        }
        Errno::ENOTBLK if group.get("mode").is_ok_and(|mode| mode == "p2p") => {
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
            "A volume needs the whole device for itself. `lsblk {path}` shows what uses it:\n\
             a mount, a RAID, LVM. With a cache it must not be exported by another volume either."
        ),
        Errno::EINVAL
            if wanted.cache_mib != 0 && !matches!(wanted.mode, Mode::Direct | Mode::P2p) =>
        {
            "A cache (--cache-mib) is for the modes direct and p2p.".to_owned()
        }
        Errno::ENOMEM if wanted.cache_mib != 0 => {
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

fn allow_host(volume: &Group<'_>, host: Uuid, transaction: &mut Transaction<'_>) -> Result<()> {
    transaction.mkdir(&volume.child("hosts").child(&host.to_string()))
}

/// Runs `hcablk target allow`.
pub fn allow(system: &dyn System, volume: &VolumeName, ids: &[Uuid]) -> Result<Outcome> {
    let group = existing(system, volume)?;
    let allowed = hosts(&group)?;
    let mut transaction = Transaction::new(system);
    let mut add = || {
        for (at, id) in ids.iter().enumerate() {
            if !allowed.iter().any(|(host, _)| host == id) && !ids[..at].contains(id) {
                allow_host(&group, *id, &mut transaction)?;
            }
        }
        Ok(())
    };
    let result = add();
    let changed = transaction.has_changes();
    transaction.finish(result)?;

    let mut outcome = Outcome::new(Done::Allow {
        volume: volume.to_string(),
        hosts: ids.to_vec(),
        changed,
    });
    if !changed {
        outcome.note("allowed already");
    }
    Ok(outcome)
}

/// Runs `hcablk target forbid`.
pub fn forbid(
    system: &dyn System,
    volume: &VolumeName,
    ids: &[Uuid],
    if_exists: bool,
) -> Result<Outcome> {
    let group = existing(system, volume)?;
    let allowed = hosts(&group)?;
    let (there, missing): (Vec<Uuid>, Vec<Uuid>) = ids
        .iter()
        .partition(|id| allowed.iter().any(|(host, _)| host == *id));
    if !missing.is_empty() && !if_exists {
        let list: Vec<_> = missing.iter().map(ToString::to_string).collect();
        return Err(Error::new(
            Kind::NotFound,
            format!("volume {volume} does not allow {} anyway", list.join(", ")),
        )
        .advise(
            "Nothing was changed. `hcablk target list` shows the hosts that each volume allows.",
        ));
    }
    let mut changed = false;
    for (_, host) in allowed.iter().filter(|(id, _)| there.contains(id)) {
        remove(host)?;
        changed = true;
    }
    let mut outcome = Outcome::new(Done::Forbid {
        volume: volume.to_string(),
        hosts: there,
        changed,
    });
    if !changed {
        outcome.note("none of these hosts was allowed");
    }
    Ok(outcome)
}

fn disable(group: &Group<'_>) -> Result<()> {
    match group.system().write(&group.path().join("enable"), "0\n") {
        Err(error) if !error.is_gone() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Runs `hcablk target unexport`.
pub fn unexport(
    system: &dyn System,
    volume: &VolumeName,
    force: bool,
    if_exists: bool,
) -> Result<Outcome> {
    let group = match existing(system, volume) {
        Ok(group) => group,
        Err(error) if error.kind == Kind::NotFound && if_exists => {
            let mut outcome = Outcome::new(Done::Unexport {
                volume: volume.to_string(),
                changed: false,
            });
            outcome.note(format!("there is no volume {volume}"));
            return Ok(outcome);
        }
        Err(error) => return Err(error),
    };
    if !force {
        refuse_while_used(&group, volume)?;
    }
    disable(&group)?;
    for host in group.child("hosts").children()? {
        remove(&host)?;
    }
    remove(&group)?;
    Ok(Outcome::new(Done::Unexport {
        volume: volume.to_string(),
        changed: true,
    }))
}

fn refuse_while_used(group: &Group<'_>, volume: &VolumeName) -> Result<()> {
    let mut tries = CLIENT_TRIES;
    loop {
        let clients = Client::parse_all(&group.get("clients")?);
        if clients.is_empty() {
            return Ok(());
        }
        tries -= 1;
        if tries == 0 {
            let mut list: Vec<_> = clients.iter().map(|client| client.host.as_str()).collect();
            list.dedup();
            return Err(Error::new(
                Kind::Busy,
                format!("volume {volume} is in use by {}", list.join(", ")),
            )
            .advise(format!(
                "Disconnect it there (hcablk disconnect).\n\
                     To end it anyway, so that the clients' requests fail:\n\
                     hcablk target unexport --force {volume}"
            )));
        }
        if group.system().interrupted() {
            return Err(Error::interrupted());
        }
        group.system().pause(CLIENT_PAUSE);
    }
}

/// A port as it is set up.
struct PortSetting {
    address: String,
    port: u16,
    enabled: bool,
}

impl PortSetting {
    fn read(group: &Group<'_>) -> Result<Self> {
        Ok(Self {
            address: group.get("address")?,
            port: group.value("port")?,
            enabled: group.flag("enable")?,
        })
    }

    fn reference(&self, group: &Group<'_>) -> PortRef {
        PortRef {
            id: group.name(),
            address: self.address.clone(),
            port: self.port,
        }
    }

    /// Returns whether who asks for `wanted` is served by this port: at that address, or at all of
    /// that family.
    fn serves(&self, wanted: &Listen) -> bool {
        let address = match (wanted.address, self.address.parse::<IpAddr>()) {
            (None, _) => true,
            (Some(wanted), Ok(now)) => {
                wanted == now || (now.is_unspecified() && now.is_ipv4() == wanted.is_ipv4())
            }
            (Some(_), Err(_)) => false,
        };
        address && wanted.port.is_none_or(|port| port == self.port)
    }
}

/// Returns the port that serves `wanted`: one that listens already, or a new one.
fn ensure_port(
    tree: &Group<'_>,
    wanted: &Listen,
    transaction: &mut Transaction<'_>,
) -> Result<PortRef> {
    for group in ports(tree).children()? {
        let now = PortSetting::read(&group)?;
        if now.enabled && now.serves(wanted) {
            return Ok(now.reference(&group));
        }
    }
    make_port(tree, wanted, transaction)
}

/// Sets a port up and enables it: the one with the id asked for, or one that is there with these
/// settings, or a new one.
fn make_port(
    tree: &Group<'_>,
    wanted: &Listen,
    transaction: &mut Transaction<'_>,
) -> Result<PortRef> {
    let address = wanted
        .address
        .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
        .to_string();
    let port = wanted.port.unwrap_or(DEFAULT_PORT);
    let all = ports(tree).children()?;

    let mut found = None;
    for group in &all {
        let now = PortSetting::read(group)?;
        let meant = match wanted.id {
            Some(id) => group.name() == id.to_string(),
            None => now.address == address && now.port == port,
        };
        if meant {
            found = Some(group.clone());
            break;
        }
    }
    let group = if let Some(group) = found {
        group
    } else {
        let is_free = |id: &u16| all.iter().all(|group| group.name() != id.to_string());
        let id = wanted.id.or_else(|| (1..=u16::MAX).find(is_free));
        let id = id.ok_or_else(|| Error::new(Kind::Failed, "every port id is taken"))?;
        let group = ports(tree).child(&id.to_string());
        transaction.mkdir(&group)?;
        group
    };

    let mut settings = vec![("address", address), ("port", port.to_string())];
    settings.extend(
        wanted
            .buffer_mib
            .map(|value| ("buffer_mib", value.to_string())),
    );
    settings.extend(
        wanted
            .memory_mib
            .map(|value| ("memory_mib", value.to_string())),
    );
    settings.extend(
        wanted
            .queue_credits
            .map(|value| ("queue_credits", value.to_string())),
    );
    let now = PortSetting::read(&group)?;
    if now.enabled {
        let mut different = Vec::new();
        for (attribute, value) in &settings {
            let now = group.get(attribute)?;
            if now != *value {
                different.push(format!("{attribute} is {now}, not {value}"));
            }
        }
        if !different.is_empty() {
            let id = group.name();
            return Err(Error::new(
                Kind::Exists,
                format!(
                    "port {id} listens with other settings: {}",
                    different.join(", ")
                ),
            )
            .advise(format!(
                "End it first (hcablk target unlisten {id}), or take another one (--id)."
            )));
        }
        return Ok(now.reference(&group));
    }
    for (attribute, value) in &settings {
        transaction.set(&group, attribute, value)?;
    }
    if let Err(error) = transaction.enable(&group)? {
        return Err(explain_port(&error, &group, &settings[0].1, port));
    }
    Ok(PortSetting::read(&group)?.reference(&group))
}

fn explain_port(error: &OpError, group: &Group<'_>, address: &str, port: u16) -> Error {
    let message = with_reason(
        format!(
            "cannot listen at {address} port {port}: {}",
            describe(error.errno)
        ),
        group.reason(),
    );
    let advice = match error.errno {
        Errno::EADDRINUSE => {
            "Something else listens there. Take another port (--port), and tell the clients."
        }
        Errno::EADDRNOTAVAIL => {
            "This machine does not have that address, or no RDMA device on it.\n\
             Compare `ip addr` with `rdma link show`."
        }
        Errno::ENODEV => NO_RDMA_DEVICE,
        _ => SEE_THE_LOG,
    };
    let kind = if error.errno == Errno::ENODEV {
        Kind::Setup
    } else {
        Kind::Failed
    };
    Error::new(kind, message)
        .with_errno(error.errno)
        .advise(advice)
}

/// Runs `hcablk target listen`.
pub fn listen(system: &dyn System, wanted: &Listen) -> Result<Outcome> {
    let tree = TARGET.require(system)?;
    let mut transaction = Transaction::new(system);
    let result = make_port(&tree, wanted, &mut transaction);
    let changed = transaction.has_changes();
    let port = transaction.finish(result)?;
    let note = format!("port {} listens already", port.id);
    let mut outcome = Outcome::new(Done::Listen { port, changed });
    if !changed {
        outcome.note(note);
    }
    Ok(outcome)
}

/// Runs `hcablk target unlisten`.
pub fn unlisten(system: &dyn System, ids: Option<&[u16]>, if_exists: bool) -> Result<Outcome> {
    let all = match TARGET.tree(system) {
        Some(tree) => ports(&tree).children()?,
        None => Vec::new(),
    };
    let mut chosen = Vec::new();
    match ids {
        None => chosen = all,
        Some(ids) => {
            for id in ids {
                match all.iter().find(|group| group.name() == id.to_string()) {
                    Some(group) => chosen.push(group.clone()),
                    None if if_exists => (),
                    None => {
                        return Err(Error::new(Kind::NotFound, format!("there is no port {id}"))
                            .advise("`hcablk target list` shows the ports of this machine."))
                    }
                }
            }
        }
    }
    let mut removed = Vec::new();
    for group in chosen {
        disable(&group)?;
        remove(&group)?;
        removed.push(group.name());
    }
    let nothing = removed.is_empty();
    let mut outcome = Outcome::new(Done::Unlisten {
        changed: !nothing,
        ports: removed,
    });
    if nothing {
        outcome.note("no port to end");
    }
    Ok(outcome)
}

fn not_loaded() -> String {
    format!(
        "the kernel module {} is not loaded: no exports",
        TARGET.name
    )
}

/// Runs `hcablk target list`.
pub fn list(system: &dyn System) -> Result<Outcome> {
    let Some(tree) = TARGET.tree(system) else {
        let mut outcome = Outcome::new(Report::Exports {
            volumes: Vec::new(),
            ports: Vec::new(),
        });
        outcome.note(not_loaded());
        return Ok(outcome);
    };
    let mut found_volumes = Vec::new();
    for group in volumes(&tree).children()? {
        found_volumes.extend(unless_gone(&group, read_volume(&group))?);
    }
    let mut found_ports = Vec::new();
    for group in ports(&tree).children()? {
        found_ports.extend(unless_gone(&group, read_port(&group))?);
    }
    // By number, not by text: 2 comes before 10.
    found_ports.sort_by_key(|port: &Port| (port.id.len(), port.id.clone()));
    let cut = |what: &str, shown: usize| {
        format!("{what} has more sessions than the kernel shows: these are the first {shown}")
    };
    let notes: Vec<_> = Iterator::chain(
        found_volumes
            .iter()
            .filter(|volume| volume.clients_cut)
            .map(|volume| cut(&format!("volume {}", volume.name), volume.clients.len())),
        found_ports
            .iter()
            .filter(|port| port.sessions_cut)
            .map(|port| cut(&format!("port {}", port.id), port.sessions.len())),
    )
    .collect();
    let mut outcome = Outcome::new(Report::Exports {
        volumes: found_volumes,
        ports: found_ports,
    });
    for note in notes {
        outcome.note(note);
    }
    Ok(outcome)
}

fn read_volume(group: &Group<'_>) -> Result<Volume> {
    let clients = group.get("clients")?;
    Ok(Volume {
        name: group.name(),
        path: group.get("path")?,
        read_only: group.flag("read_only")?,
        mode: group.get("mode")?,
        cache_mib: group.value("cache_mib")?,
        chunk_kib: group.value("chunk_kib")?,
        wwid: Some(group.get("wwid")?).filter(|wwid| !wwid.is_empty()),
        enabled: group.flag("enable")?,
        size_bytes: group.value("size")?,
        hosts: hosts(group)?.into_iter().map(|(host, _)| host).collect(),
        clients: Client::parse_all(&clients),
        clients_cut: is_cut(&clients),
        error: group.reason(),
    })
}

fn read_port(group: &Group<'_>) -> Result<Port> {
    let sessions = group.get("sessions")?;
    Ok(Port {
        id: group.name(),
        address: group.get("address")?,
        port: group.value("port")?,
        enabled: group.flag("enable")?,
        buffer_mib: group.value("buffer_mib")?,
        memory_mib: group.value("memory_mib")?,
        queue_credits: group.value("queue_credits")?,
        sessions: PortSession::parse_all(&sessions),
        sessions_cut: is_cut(&sessions),
        error: group.reason(),
    })
}

/// Runs `hcablk target times`.
pub fn times(
    system: &dyn System,
    only: Option<&VolumeName>,
    measure: Option<bool>,
) -> Result<Outcome> {
    let tree = TARGET.tree(system);
    let loaded = tree.is_some();
    let groups = match (only, tree) {
        (Some(volume), _) => vec![existing(system, volume)?],
        (None, Some(tree)) => volumes(&tree).children()?,
        (None, None) => Vec::new(),
    };
    let mut times = Vec::new();
    for group in groups {
        times.extend(unless_gone(&group, Times::of(&group, measure))?);
    }
    let idle = !times.is_empty() && times.iter().all(Times::is_idle);
    let mut outcome = Outcome::new(Report::ExportTimes { volumes: times });
    if !loaded {
        outcome.note(not_loaded());
    } else if idle {
        outcome.note("nothing was measured: `hcablk target times --measure on` begins");
    }
    Ok(outcome)
}

/// Runs `hcablk target stats`.
pub fn stats(system: &dyn System, only: Option<&VolumeName>) -> Result<Outcome> {
    let counters = |groups: Vec<Group<'_>>| -> Result<Vec<Counters>> {
        let mut stats = Vec::new();
        for group in groups {
            // Not everything counts: ports need not.
            if !group.system().exists(&group.path().join("stats")) {
                continue;
            }
            if let Some(text) = unless_gone(&group, group.get("stats").map_err(Error::from))? {
                stats.push(Counters {
                    name: group.name(),
                    counters: parse_counters(&text),
                });
            }
        }
        Ok(stats)
    };
    if let Some(volume) = only {
        return Ok(Outcome::new(Report::ExportStats {
            volumes: counters(vec![existing(system, volume)?])?,
            ports: Vec::new(),
        }));
    }
    let Some(tree) = TARGET.tree(system) else {
        let mut outcome = Outcome::new(Report::ExportStats {
            volumes: Vec::new(),
            ports: Vec::new(),
        });
        outcome.note(not_loaded());
        return Ok(outcome);
    };
    Ok(Outcome::new(Report::ExportStats {
        volumes: counters(volumes(&tree).children()?)?,
        ports: counters(ports(&tree).children()?)?,
    }))
}
