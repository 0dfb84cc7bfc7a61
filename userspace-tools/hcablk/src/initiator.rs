// SPDX-License-Identifier: GPL-2.0

//! Devices on this machine: connect, disconnect, list.

mod connect;
mod disconnect;
mod show;

use crate::configfs::{Group, INITIATOR};
use crate::error::Result;

pub use connect::{connect, resolve, Connect};
pub use disconnect::{disconnect, Which};
pub use show::{list, stats, times};

fn not_loaded() -> String {
    format!(
        "the kernel module {} is not loaded: no devices",
        INITIATOR.name
    )
}

/// Returns what was read from a group, or `None` if the group went away meanwhile.
pub fn unless_gone<T>(group: &Group<'_>, read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(_) if !group.exists() => Ok(None),
        Err(error) => Err(error),
    }
}
