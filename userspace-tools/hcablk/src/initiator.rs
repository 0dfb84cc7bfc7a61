// SPDX-License-Identifier: GPL-2.0

//! Devices on this machine: connect, disconnect, their paths, list.

mod connect;
mod disconnect;
mod discover;
mod explain;
mod loss;
mod path;
mod paths;
mod show;
mod sync;

use crate::configfs::INITIATOR;
use crate::system::System;

pub use connect::{connect, resolve, Connect};
pub(crate) use connect::{enable, same, wait_for_node};
pub(crate) use disconnect::{close, users};
pub use disconnect::{disconnect, Which};
pub(crate) use discover::try_pending_key;
pub use discover::{connect_all, discover, Discover};
pub(crate) use explain::{connecting_failed, Unreached};
pub use loss::acknowledge as acknowledge_loss;
pub(crate) use loss::{remedy as loss_remedy, LOST};
pub use path::{add as add_path, policy as set_policy, remove as remove_path, PathId};
pub(crate) use paths::{
    auto as paths_auto, further as further_paths, set_up as set_up_path, AUTO as PATHS_AUTO,
};
pub(crate) use show::selected;
pub use show::{devices, list, stats, times};
pub use sync::sync as sync_paths;
pub(crate) use sync::sync_by_name;

fn not_loaded() -> String {
    format!(
        "the kernel module {} is not loaded: no disks",
        INITIATOR.name
    )
}

/// Returns whether the module is loaded.
pub fn is_loaded(system: &dyn System) -> bool {
    INITIATOR.tree(system).is_some()
}
