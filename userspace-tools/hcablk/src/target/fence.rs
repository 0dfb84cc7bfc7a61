// SPDX-License-Identifier: GPL-2.0

//! Evicts hosts in the kernel, and waits until none of their requests can reach the drive any more.

use std::mem;
use std::time::Duration;

use nix::errno::Errno;
use uuid::Uuid;

use super::records::Records;
use crate::configfs::Group;
use crate::error::{Error, Kind, Result};
use crate::host_names::HostNames;
use crate::output::{is_cut, Evicted};
use crate::system::{Op, OpError};

/// The time after which the command first reports that it waits, and between further reports.
const FIRST_REPORT: Duration = Duration::from_secs(2);
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The time for which other commands may use the records before the kernel is asked again. Its response takes up to a
/// second, and the records are locked meanwhile.
const UNLOCKED_TIME: Duration = Duration::from_millis(100);

/// Joins the ids of hosts with `between`.
pub(super) fn join(hosts: &[Uuid], between: &str) -> String {
    let texts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
    texts.join(between)
}

/// Reads the hosts that the kernel has evicted, and whether there are more than it shows. A kernel
/// module that does not support evictions has none.
pub(super) fn evicted(volume: &Group<'_>) -> Result<(Vec<Evicted>, bool)> {
    match volume.get("evicted") {
        Ok(text) => Ok((Evicted::parse_all(&text), is_cut(&text))),
        Err(error) if error.is_gone() => Ok((Vec::new(), false)),
        Err(error) => Err(error.into()),
    }
}

/// Evicts the recorded hosts before the volume is enabled, so that none of them can connect. If the volume is enabled
/// already, evicts them again and waits for the kernel. Returns these hosts.
pub(super) fn evict_recorded(volume: &Group<'_>) -> Result<Vec<Uuid>> {
    let mut fence = Fence::new(volume)?;
    let hosts = {
        let Some(_lock) = fence.records.lock_if_begun()? else {
            return Ok(Vec::new());
        };
        let hosts = fence.records.all()?;
        fence.evict_all(&hosts)?;
        hosts
    };
    fence.wait(None)?;
    Ok(hosts
        .into_iter()
        .filter(|host| !fence.admitted.contains(host))
        .collect())
}

/// Hosts that are recorded as evicted, and the kernel's progress with them.
pub(super) struct Fence<'a> {
    volume: Group<'a>,
    /// The volume's records.
    pub(super) records: Records<'a>,
    next_report: Duration,
    began: Duration,
    /// The hosts that the kernel has not been asked to evict yet.
    pub(super) not_evicted: Vec<Uuid>,
    /// The hosts whose requests the drive has not finished yet.
    pub(super) draining: Vec<Uuid>,
    /// The hosts that another command has admitted meanwhile.
    pub(super) admitted: Vec<Uuid>,
    /// Whether the volume was removed meanwhile.
    pub(super) gone: bool,
}

impl<'a> Fence<'a> {
    /// Makes a fence without hosts.
    pub(super) fn new(volume: &Group<'a>) -> Result<Self> {
        let began = volume.system().now();
        Ok(Self {
            volume: volume.clone(),
            records: Records::of(volume)?,
            next_report: began + FIRST_REPORT,
            began,
            not_evicted: Vec::new(),
            draining: Vec::new(),
            admitted: Vec::new(),
            gone: false,
        })
    }

    /// Evicts `hosts` in the kernel. The caller has locked the records.
    pub(super) fn evict_all(&mut self, hosts: &[Uuid]) -> Result<()> {
        self.not_evicted = hosts.to_vec();
        for host in hosts {
            if self.volume.system().interrupted() {
                return Err(Error::interrupted());
            }
            self.ask(*host)?;
            self.not_evicted.retain(|other| other != host);
        }
        Ok(())
    }

    /// Waits until the drive has finished the requests of the hosts, or `end` is reached: then some
    /// hosts are still in `draining`. The caller has not locked the records.
    pub(super) fn wait(&mut self, end: Option<Duration>) -> Result<()> {
        let system = self.volume.system();
        while !self.draining.is_empty() {
            for host in self.draining.clone() {
                if system.interrupted() {
                    return Err(Error::interrupted());
                }
                let now = system.now();
                if end.is_some_and(|end| now >= end) {
                    return Ok(());
                }
                if now >= self.next_report {
                    self.next_report = now + REPORT_INTERVAL;
                    system.progress(&format!(
                        "{} has evicted {}; waiting for the drive to finish their requests, for {} s now",
                        self.volume.name(),
                        HostNames::read(system).join(&self.draining),
                        (now - self.began).as_secs()
                    ));
                }
                system.pause(UNLOCKED_TIME);
                let _lock = self.records.lock()?;
                let before = mem::take(&mut self.draining);
                self.draining = before.into_iter().filter(|other| *other != host).collect();
                if self.records.has(host) {
                    self.ask(host)?;
                } else {
                    self.admitted.push(host);
                }
            }
        }
        Ok(())
    }

    /// Makes the kernel evict one host, and wait a second for its sessions.
    fn ask(&mut self, host: Uuid) -> Result<()> {
        let file = self.volume.path().join("evicted");
        match self.volume.system().write(&file, &format!("{host}\n")) {
            Ok(()) => Ok(()),
            Err(error) if is_again(&error) => {
                self.draining.push(host);
                Ok(())
            }
            // The host's directory is removed when its last session has ended.
            Err(error) if error.is_gone() && !self.volume.exists() => {
                self.gone = true;
                Ok(())
            }
            Err(error) => Err(self.explain(&error, host)),
        }
    }

    fn explain(&self, error: &OpError, host: Uuid) -> Error {
        let volume = self.volume.name();
        if error.is_gone() {
            return cannot_evict();
        }
        let advice = if error.errno == Errno::ENOSPC {
            format!(
                "A volume has 64 evicted hosts at most. Forbid one that does not come back, then \
                 admit it:\n\
                 hcablk target forbid {volume} UUID && hcablk target admit {volume} UUID"
            )
        } else {
            "The host may still use the volume. It is recorded as evicted, and the next export of the volume \
             evicts it."
                .to_owned()
        };
        Error::new(
            Kind::Failed,
            format!("cannot evict {host} from {volume}: {error}"),
        )
        .with_errno(error.errno)
        .advise(advice)
    }
}

fn is_again(error: &OpError) -> bool {
    error.op == Op::Write && error.errno == Errno::EAGAIN
}

/// Returns the error of a kernel module that is too old.
pub(super) fn cannot_evict() -> Error {
    Error::new(Kind::Setup, "the kernel module cannot evict hosts")
        .advise("The command and the kernel modules may be of different versions.")
}
