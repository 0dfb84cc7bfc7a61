// SPDX-License-Identifier: GPL-2.0

//! Devices on this machine: connect, disconnect, list.

mod connect;
mod disconnect;
mod show;

use crate::configfs::INITIATOR;

pub use connect::{connect, resolve, Connect};
pub use disconnect::{disconnect, Which};
pub use show::{list, stats, times};

fn not_loaded() -> String {
    format!(
        "the kernel module {} is not loaded: no devices",
        INITIATOR.name
    )
}
