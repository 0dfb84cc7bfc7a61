// SPDX-License-Identifier: GPL-2.0

//! A disk as the driver knows it.
//!
//! Numbers of disks are used again, and other programs have disks, too. So each disk of this program has a mark: 64 bits that the
//! driver keeps with the disk (`ublksrv_flags`), and that are in `N.json`. Nothing is done to a disk whose marks differ.

use crate::{saved::Saved, Error};
use libublk::{ctrl::UblkCtrl, sys};
use std::fs;

/// What the driver says of a disk.
pub(crate) struct Disk {
    pub(crate) control: UblkCtrl,
    /// The program that serves it, or did so last.
    pub(crate) pid: i32,
    state: u32,
}

/// Returns a disk of this program; nothing if the driver has none of this number, or another program's.
pub(crate) fn find(number: u32, mark: u64) -> Option<Disk> {
    let control = UblkCtrl::new_simple(i32::try_from(number).ok()?).ok()?;
    let info = control.dev_info();
    (info.ublksrv_flags == mark).then(|| Disk {
        control,
        pid: info.ublksrv_pid,
        state: info.state.into(),
    })
}

impl Disk {
    /// Returns whether a program serves it. The driver notices a moment later that its program is gone.
    pub(crate) fn is_served(&self) -> bool {
        self.state == sys::UBLK_S_DEV_LIVE && self.has_program()
    }

    /// Returns whether it was served, and can be by another program.
    pub(crate) fn was_served(&self) -> bool {
        matches!(self.state, sys::UBLK_S_DEV_LIVE | sys::UBLK_S_DEV_QUIESCED)
    }

    /// Returns whether its program lives. The number may be another process's by now.
    fn has_program(&self) -> bool {
        let comm = fs::read_to_string(format!("/proc/{}/comm", self.pid));
        comm.is_ok_and(|comm| comm.trim() == "hcablk-ublk")
    }

    /// Returns what becomes of its requests.
    pub(crate) fn fate(&self) -> &'static str {
        if self.is_served() {
            "served"
        } else if self.was_served() {
            "left by its program: `recover` it, or `remove` it"
        } else {
            "not there"
        }
    }
}

/// Prints the properties of a disk for udev, as its builtin programs do; nothing if it is not a disk of this program.
#[expect(clippy::unnecessary_wraps, reason = "as all commands")]
pub(crate) fn print_properties(device: &str) -> Result<(), Error> {
    let number = device.strip_prefix("ublkb");
    let number = number.and_then(|number| number.parse::<u32>().ok());
    let Some((saved, number)) = number.and_then(|number| Some((Saved::read(number).ok()?, number)))
    else {
        return Ok(());
    };
    if find(number, saved.mark).is_none() {
        return Ok(());
    }
    if let Some(name) = &saved.name {
        println!("HCABLK_DISK={name}");
    }
    println!("HCABLK_VOLUME={}", saved.wanted.volume);
    if let Some(id) = saved.id() {
        println!("HCABLK_WWID=uuid.{id}");
    }
    Ok(())
}
