// SPDX-License-Identifier: GPL-2.0

//! The disks in user space, and how `hcablk list` shows them.

use std::path::{Path, PathBuf};

use super::files::{self, Failed, Phase, UserDiskState, Wanted};
use super::{settings, unit};
use crate::error::Error;
use crate::output::{Device, DiskKind};
use crate::system::System;
use crate::target::DEFAULT_PORT;

/// The size in KiB of the largest request of a disk in user space.
const MAX_IO_KIB: u32 = 256;
/// Maximum number of requests of each queue of such a disk.
const QUEUE_DEPTH: u32 = 64;

/// A disk in user space that exists, was requested, or both.
pub(crate) struct Disk {
    /// The disk's name; `None` if its program was started by hand.
    pub(super) name: Option<String>,
    /// The number N of `/dev/ublkbN`, if the disk exists.
    pub(super) number: Option<u32>,
    /// The state that its program has published last.
    pub(super) state: Option<UserDiskState>,
    /// The requested settings, if the caller may read them: before the disk exists only root may.
    pub(super) wanted: Option<Wanted>,
    /// The reason why there is no disk, or no program for it.
    pub(super) failed: Option<Failed>,
    /// The reason why the published state of the disk cannot be read.
    pub(super) unreadable: Option<Error>,
    /// Whether the program that has published the state still runs.
    pub(super) is_served: bool,
}

impl Disk {
    /// Returns the name of the disk for commands: its own, or that of its device.
    pub(crate) fn shown_name(&self) -> String {
        match (&self.name, self.number) {
            (Some(name), _) => name.clone(),
            (None, number) => format!("ublkb{}", number.unwrap_or_default()),
        }
    }

    /// Returns the unit that runs the disk's program.
    pub(crate) fn unit(&self) -> String {
        unit::name(&self.shown_name())
    }

    /// Returns the disk's node, if the disk exists.
    pub(crate) fn node(&self) -> Option<PathBuf> {
        let number = self.number?;
        Some(PathBuf::from(format!("/dev/ublkb{number}")))
    }

    /// Returns the state as `hcablk list` shows it.
    pub(super) fn shown_state(&self) -> &'static str {
        if self.unreadable.is_some() {
            return "unknown";
        }
        match (&self.state, self.is_served) {
            (Some(state), true) => match state.phase {
                Phase::Live => "live",
                Phase::Queueing => "queueing",
                Phase::Failed => "failed",
            },
            (Some(_), false) => "left",
            (None, _) if self.failed.is_some() => "failed",
            (None, _) => "connecting",
        }
    }
}

/// Returns whether a disk of this name exists in user space, or was requested.
pub(crate) fn is_there(system: &dyn System, name: &str) -> bool {
    all(system)
        .iter()
        .any(|disk| disk.name.as_deref() == Some(name))
}

/// Finds a disk by its name or its node.
pub(crate) fn find(system: &dyn System, text: &str) -> Option<Disk> {
    let all = all(system);
    let node = text.strip_prefix("/dev/").unwrap_or(text);
    let is_node = |disk: &Disk| {
        disk.number
            .is_some_and(|number| format!("ublkb{number}") == node)
    };
    let position = all
        .iter()
        .position(|disk| disk.name.as_deref() == Some(text))
        .or_else(|| all.iter().position(is_node))?;
    all.into_iter().nth(position)
}

/// Returns all disks in user space that exist or were requested, sorted by name.
pub(crate) fn all(system: &dyn System) -> Vec<Disk> {
    let mut disks = Vec::new();
    for number in files::numbers(system, ".state") {
        // A machine that was reset has no such files; a killed program leaves its files and its disk behind.
        if !system.exists(&Path::new("/sys/block").join(format!("ublkb{number}"))) {
            continue;
        }
        match files::read::<UserDiskState>(system, &files::state(number)) {
            Ok(None) => {}
            Ok(Some(state)) => {
                let name = state.name.clone();
                disks.push(Disk {
                    failed: name.as_deref().and_then(|name| failed(system, name)),
                    wanted: Some(state.wanted.clone()),
                    number: Some(number),
                    is_served: is_program(system, state.pid),
                    state: Some(state),
                    unreadable: None,
                    name,
                });
            }
            // The error is stored, so that the other disks are shown.
            Err(error) => disks.push(Disk {
                failed: None,
                wanted: None,
                number: Some(number),
                is_served: false,
                state: None,
                unreadable: Some(error),
                name: None,
            }),
        }
    }
    for name in files::names(system, ".wanted") {
        if disks
            .iter()
            .any(|disk| disk.name.as_deref() == Some(name.as_str()))
        {
            continue;
        }
        disks.push(Disk {
            // Only root can read the file.
            wanted: files::read(system, &files::wanted(&name)).unwrap_or_default(),
            failed: failed(system, &name),
            name: Some(name),
            number: None,
            state: None,
            unreadable: None,
            is_served: false,
        });
    }
    disks.sort_by_key(Disk::shown_name);
    disks
}

/// Lists the addresses and ports of the targets of all disks in user space with keys.
pub(crate) fn targets(system: &dyn System) -> Vec<(String, u16)> {
    let wanted = all(system).into_iter().filter_map(|disk| disk.wanted);
    let proven = wanted.filter(|wanted| wanted.keys);
    proven
        .map(|wanted| {
            let port = wanted.option("port").and_then(|port| port.parse().ok());
            (wanted.address.to_string(), port.unwrap_or(DEFAULT_PORT))
        })
        .collect()
}

/// Returns the reason why a program has ended, if the caller may read it.
fn failed(system: &dyn System, name: &str) -> Option<Failed> {
    files::read(system, &files::failed(name)).unwrap_or_default()
}

/// Returns whether a process is a program that serves disks: its number may have been reused.
fn is_program(system: &dyn System, pid: u32) -> bool {
    let comm = system.read(Path::new(&format!("/proc/{pid}/comm")));
    comm.is_ok_and(|comm| comm.trim() == "hcablk-ublk")
}

/// Returns all disks in user space as `hcablk list` shows them.
pub(crate) fn devices(system: &dyn System) -> Vec<Device> {
    let disks = all(system);
    disks.iter().map(|disk| device(system, disk)).collect()
}

/// Returns the reason why no program makes a requested disk, if none does: the command that requested it was killed, or
/// its unit has failed.
fn abandoned(system: &dyn System, disk: &Disk) -> Option<String> {
    let name = disk
        .name
        .as_deref()
        .filter(|_| disk.shown_state() == "connecting")?;
    let unit = unit::status(system, name).ok()?;
    matches!(unit.state.as_str(), "inactive" | "failed").then(|| {
        let reason = unit
            .reason
            .map(|reason| format!(": {reason}"))
            .unwrap_or_default();
        format!(
            "no program makes it: {} is {}{reason}",
            unit::name(name),
            unit.state
        )
    })
}

fn device(system: &dyn System, disk: &Disk) -> Device {
    let abandoned = abandoned(system, disk);
    let wanted = disk.wanted.as_ref();
    let number = |option: &str| -> u32 {
        let given = wanted.and_then(|wanted| wanted.option(option));
        let text = given.or_else(|| settings::default_of(option));
        text.and_then(|text| text.parse().ok()).unwrap_or_default()
    };
    let node = disk.node();
    let folder = |node: &Path| Path::new("/sys/block").join(node.file_name().unwrap_or_default());
    let size_bytes = node.as_deref().and_then(|node| {
        let sectors = system.read(&folder(node).join("size")).ok()?;
        sectors.trim().parse::<u64>().ok()?.checked_mul(512)
    });
    let queues = node.as_deref().and_then(|node| {
        let queues = system.folders(&folder(node).join("mq")).ok()?;
        queues.len().try_into().ok()
    });
    let state = disk.state.as_ref();
    let error = match disk.shown_state() {
        "live" => None,
        "unknown" => disk.unreadable.as_ref().map(|error| error.message.clone()),
        // The failure of the present program is more useful than the former loss of the connection.
        "left" => disk.failed.as_ref().map(|failed| failed.message.clone()),
        _ => state
            .and_then(|state| state.error.clone())
            .or_else(|| disk.failed.as_ref().map(|failed| failed.message.clone())),
    };
    Device {
        name: disk.shown_name(),
        kind: DiskKind::User,
        device: node.map(|node| node.to_string_lossy().into_owned()),
        state: match &abandoned {
            Some(_) => "failed".to_owned(),
            None => disk.shown_state().to_owned(),
        },
        address: wanted.map_or_else(String::new, |wanted| wanted.address.to_string()),
        port: number("port").try_into().unwrap_or(DEFAULT_PORT),
        volume: wanted.map_or_else(String::new, |wanted| wanted.volume.clone()),
        host_id: wanted.map_or_else(String::new, |wanted| wanted.host.clone()),
        wwid: state.and_then(|state| state.id).map(|id| id.to_string()),
        size_bytes,
        queues,
        poll_queues: 0,
        queue_depth: number("queue-depth").min(QUEUE_DEPTH),
        io_timeout: 0,
        connect_timeout: number("connect-timeout"),
        reconnect_delay: number("reconnect-delay"),
        ctrl_loss_tmo: match number("ctrl-loss-tmo") {
            u32::MAX => -1,
            seconds => seconds.into(),
        },
        fast_io_fail_tmo: wanted
            .and_then(|wanted| settings::attribute(wanted, "fast_io_fail_tmo"))
            .and_then(|seconds| seconds.parse().ok())
            .unwrap_or(-1),
        keep_alive_tmo: number("keep-alive-tmo"),
        remote_invalidate: number("remote-invalidate") == 1,
        small_read: number("small-read"),
        small_write: 0,
        eager_write: number("eager-write"),
        max_io_kib: MAX_IO_KIB,
        message_requests: 1,
        batch_upper: 0,
        batch_lower: 0,
        policy: String::new(),
        paths_auto: false,
        paths: Vec::new(),
        session: None,
        error: abandoned.or(error),
        lost_writes: state.map(|state| state.lost_writes),
    }
}
