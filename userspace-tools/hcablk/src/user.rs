// SPDX-License-Identifier: GPL-2.0

//! Disks that the program `hcablk-ublk` serves in user space, through the kernel's ublk driver.
//!
//! The command stores the wanted settings and starts a unit of systemd for them; the unit runs the program, which makes
//! the disk and publishes its state:
//!
//! ```text
//! hcablk connect --user ──► NAME.wanted ──► hcablk-ublk@NAME.service ──► hcablk-ublk serve NAME ──► N.state, or NAME.failed
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`files`] | the files through which the command and the program communicate |
//! | `settings` | the settings that a disk in user space has, and those that it lacks |
//! | `unit` | the unit of systemd that keeps the program running |
//! | `connect`, `disconnect`, `show` | the commands |
//! | `configured` | disks in user space of the configuration |

mod configured;
mod connect;
mod disconnect;
pub mod files;
mod settings;
mod show;
mod unit;

use crate::error::{Error, Kind};
use crate::initiator::LOST;
use crate::output::Device;
use crate::system::System;

pub(crate) use configured::{change, connect_configured, misfit, plan, read, DiskChange, Planned};
pub use connect::connect;
pub(crate) use disconnect::end;
use show::is_there;
pub(crate) use show::{all, devices, find, targets};

/// Explains that a command does not support disks in user space, because these lack the feature `lacks`.
fn not_for_these(name: &str, lacks: &str, advice: &str) -> Error {
    Error::new(
        Kind::Failed,
        format!("{name} is served in user space by hcablk-ublk, and such a disk has no {lacks}"),
    )
    .advise(advice)
}

/// Returns the reason why a command for disks of the kernel's driver cannot use the disk `text`, if that is served in
/// user space.
pub(crate) fn refuse(system: &dyn System, text: &str, lacks: &str) -> Option<Error> {
    let disk = find(system, text)?;
    let advice = format!(
        "`hcablk list` shows its state, and `journalctl -u {}` what its program has logged.",
        disk.unit()
    );
    Some(not_for_these(&disk.shown_name(), lacks, &advice))
}

/// Returns the advice, in one line, for the lost writes of a disk in user space, if it has any.
pub(crate) fn loss_advice(device: &Device) -> Option<String> {
    let name = &device.name;
    device.has_lost_writes().then(|| {
        format!(
            "{name}: {LOST}. Stop its users or unmount it, connect it anew (hcablk disconnect {name}, hcablk connect), check the \
             file system, and mount it again"
        )
    })
}

/// Returns the reason why a disk of the kernel's driver cannot have this name, if a disk in user space has it.
pub(crate) fn refuse_kernels(system: &dyn System, name: &str) -> Option<Error> {
    is_there(system, name).then(|| {
        let error = Error::new(
            Kind::Exists,
            format!("there is a disk {name} in user space"),
        );
        error.advise(format!(
            "Disconnect it first (hcablk disconnect {name}), connect with --user, or connect under another name (--name)."
        ))
    })
}
