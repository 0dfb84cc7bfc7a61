// SPDX-License-Identifier: GPL-2.0

//! `hcablk check`: looks for problems of this machine, and says what to do about them.
//!
//! It changes nothing. The name of a finding's kind is an interface and stays.
//!
//! | module | looks at |
//! |---|---|
//! | `files` | configuration, host id, and their access rights |
//! | `kernel` | modules, options, the clock |
//! | `keys` | keys that are missing, pending or unknown to the kernel |
//! | `mirror` | disks that are legs of an md array |
//! | `ocfs2` | the heartbeat of disks with OCFS2 |
//! | `pci` | IOMMU, and whether peer-to-peer DMA gets through |
//! | `rdma` | RDMA devices: ports, GIDs, MTU |
//! | `running` | disks, volumes and ports |

mod files;
mod kernel;
mod keys;
mod mirror;
mod ocfs2;
mod pci;
mod rdma;
mod running;

use std::path::Path;

use crate::error::{Error, Kind, Result};
use crate::output::{Device, Finding, Level, Outcome, Report};
use crate::system::System;

/// The findings so far.
struct Findings {
    check: &'static str,
    all: Vec<Finding>,
}

impl Findings {
    /// Begins a new kind of check.
    fn begin(&mut self, check: &'static str) {
        self.check = check;
    }

    fn add(&mut self, level: Level, subject: &str, message: String, advice: Option<String>) {
        self.all.push(Finding {
            check: self.check,
            subject: subject.to_owned(),
            level,
            message,
            advice,
        });
    }

    fn ok(&mut self, subject: &str, message: impl Into<String>) {
        self.add(Level::Ok, subject, message.into(), None);
    }

    fn note(&mut self, subject: &str, message: impl Into<String>, advice: &str) {
        let advice = (!advice.is_empty()).then(|| advice.to_owned());
        self.add(Level::Note, subject, message.into(), advice);
    }

    fn warn(&mut self, subject: &str, message: impl Into<String>, advice: impl Into<String>) {
        self.add(Level::Warning, subject, message.into(), Some(advice.into()));
    }

    fn fail(&mut self, subject: &str, message: impl Into<String>, advice: impl Into<String>) {
        self.add(Level::Failure, subject, message.into(), Some(advice.into()));
    }

    /// Adds the error of a check, or of the object that was checked.
    fn error(&mut self, subject: &str, error: &Error) {
        let advice = error.advice_or_usual();
        self.fail(subject, error.message.clone(), advice);
    }
}

/// Runs `hcablk check`.
pub fn check(system: &dyn System, is_strict: bool, is_quiet: bool) -> Result<Outcome> {
    let mut findings = Findings {
        check: "",
        all: Vec::new(),
    };
    kernel::look(system, &mut findings);
    rdma::look(system, &mut findings);
    pci::look(system, &mut findings);
    files::look(system, &mut findings);
    keys::look(system, &mut findings);
    running::look(system, &mut findings);
    ocfs2::look(system, &mut findings);
    mirror::look(system, &mut findings);
    let mut findings = findings.all;
    let count = |level| {
        let found: &[Finding] = &findings;
        found.iter().filter(|one| one.level == level).count()
    };
    let (failures, warnings) = (count(Level::Failure), count(Level::Warning));
    if is_quiet {
        findings.retain(|finding| finding.level != Level::Ok);
    }
    let mut outcome = Outcome::new(Report::Health {
        failures,
        warnings,
        findings,
    });
    if failures > 0 || (is_strict && warnings > 0) {
        outcome.exit = Some(Kind::Setup);
    }
    Ok(outcome)
}

/// Reads a file of one line; `None` if it cannot be read.
fn line(system: &dyn System, path: &str) -> Option<String> {
    let text = system.read(Path::new(path)).ok()?;
    Some(text.trim().to_owned())
}

/// Returns the name that the kernel gives a disk's device, such as `hcablk0`; `None` if there is no device.
fn kernel_name(disk: &Device) -> Option<&str> {
    Path::new(disk.device.as_deref()?).file_name()?.to_str()
}

/// Returns the names that the kernel gives the partitions of a block device.
fn partitions(system: &dyn System, name: &str) -> Vec<String> {
    let folder = Path::new("/sys/class/block").join(name);
    let mut inside = system.folders(&folder).unwrap_or_default();
    inside.retain(|inside| system.exists(&folder.join(inside).join("partition")));
    inside
}
