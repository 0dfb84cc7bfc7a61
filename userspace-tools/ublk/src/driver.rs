// SPDX-License-Identifier: GPL-2.0

//! A disk in the driver's view.
//!
//! Numbers of disks are reused, and other programs have disks, too. So each disk of this program
//! has a mark: 64 bits that the driver stores with the disk (`ublksrv_flags`), and that are in
//! `N.json`. The program does not touch a disk whose two marks differ.

use crate::{
    control::{Control, Failure},
    saved::Saved,
    Error, //
};
use libublk::sys;
use nix::errno::Errno;
use std::fs;

/// The driver's information on a disk.
pub(crate) struct Disk {
    pub(crate) control: Control,
    pub(crate) number: u32,
    /// The program that serves the disk, or was the last to serve it.
    pub(crate) pid: i32,
    state: u32,
    /// The number of queues.
    pub(crate) queues: u16,
}

/// Returns a disk of this program; `None` if the driver has no disk of this number, or it is another program's.
///
/// # Errors
///
/// The driver cannot be reached, or refuses the command. The disk may exist and have waiting
/// requests, so the caller must change nothing.
pub(crate) fn find(number: u32, mark: u64) -> Result<Option<Disk>, Failure> {
    let Some(mut control) = Control::open_if_there()? else {
        return Ok(None);
    };
    let info = match control.info(number) {
        // An unprivileged user's disk, for which the driver demands more arguments. It is not one of this program.
        Err(failure) if failure.errno() == Some(Errno::EINVAL) => return Ok(None),
        info => info?,
    };
    Ok(info.filter(|info| is_own(info, mark)).map(|info| Disk {
        control,
        number,
        pid: info.ublksrv_pid,
        state: info.state.into(),
        queues: info.nr_hw_queues,
    }))
}

/// Returns whether a disk is the one of this program with the mark. Unprivileged users can give their disks any mark.
fn is_own(info: &sys::ublksrv_ctrl_dev_info, mark: u64) -> bool {
    info.ublksrv_flags == mark && info.flags & u64::from(sys::UBLK_F_UNPRIVILEGED_DEV) == 0
}

impl Disk {
    /// Returns whether a program serves the disk. The driver notices only a moment later that a program is gone.
    pub(crate) fn is_served(&self) -> bool {
        self.state == sys::UBLK_S_DEV_LIVE && self.has_program()
    }

    /// Returns whether a program has served the disk, and a new one can take it over.
    pub(crate) fn was_served(&self) -> bool {
        matches!(self.state, sys::UBLK_S_DEV_LIVE | sys::UBLK_S_DEV_QUIESCED)
    }

    /// Returns whether the disk's program is running. Its number may have been reused by another process.
    fn has_program(&self) -> bool {
        let comm = fs::read_to_string(format!("/proc/{}/comm", self.pid));
        comm.is_ok_and(|comm| comm.trim() == "hcablk-ublk")
    }

    /// Returns whether a program serves the disk, in words for a list.
    pub(crate) fn service_state(&self) -> &'static str {
        if self.is_served() {
            "served"
        } else if self.was_served() {
            "left by its program: `recover` it, or `remove` it"
        } else {
            "not there"
        }
    }
}

/// Prints the properties of a disk for udev, in the form of its builtin programs; nothing if the disk is not one of
/// this program.
pub(crate) fn print_properties(device: &str) -> Result<(), Error> {
    let number = device.strip_prefix("ublkb");
    let number = number.and_then(|number| number.parse::<u32>().ok());
    let Some((saved, number)) = number.and_then(|number| Some((Saved::read(number).ok()?, number)))
    else {
        return Ok(());
    };
    if find(number, saved.mark)?.is_none() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_known_by_its_mark_and_not_by_its_number() {
        let info = sys::ublksrv_ctrl_dev_info {
            ublksrv_flags: 77,
            ..Default::default()
        };
        assert!(is_own(&info, 77) && !is_own(&info, 78));
        let another_users = sys::ublksrv_ctrl_dev_info {
            flags: sys::UBLK_F_UNPRIVILEGED_DEV.into(),
            ..info
        };
        assert!(!is_own(&another_users, 77));
    }
}
