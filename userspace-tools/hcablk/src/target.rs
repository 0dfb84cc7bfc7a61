// SPDX-License-Identifier: GPL-2.0

//! Exports of this machine: volumes, the hosts they allow, the ports that listen.

mod evict;
mod export;
mod fence;
mod hosts;
mod ports;
mod records;
mod show;
mod state;
mod unexport;
mod write_cache;
mod wwids;

use crate::configfs::{Group, TARGET};
use crate::error::{Error, Kind, Result};
use crate::names::VolumeName;
use crate::system::System;

pub use evict::{admit, evict};
pub(crate) use export::enable as enable_export;
pub use export::{export, Export, Mode};
pub(crate) use hosts::wait_until_gone;
pub use hosts::{allow, forbid};
pub(crate) use hosts::{allow_host, hosts as allowed_hosts};
pub(crate) use ports::enable as enable_port;
pub use ports::{listen, unlisten, Listen, DEFAULT_PORT};
pub(crate) use show::selected;
pub use show::{exports, list, stats, times};
pub(crate) use state::{directory as state_directory, owner as state_owner};
pub(crate) use unexport::unexport_these;
pub use unexport::{unexport, unexport_all, unexport_here, Unexport};
pub use write_cache::WriteCache;
pub(crate) use write_cache::{remedy, risk};
pub(crate) use wwids::{default_wwid, keep as keep_wwid};

pub(crate) fn volumes<'a>(tree: &Group<'a>) -> Group<'a> {
    tree.child("volumes")
}

pub(crate) fn ports<'a>(tree: &Group<'a>) -> Group<'a> {
    tree.child("ports")
}

fn no_such_volume(volume: &VolumeName) -> Error {
    Error::new(Kind::NotFound, format!("there is no volume {volume}"))
        .advise("`hcablk target list` shows the volumes of this machine.")
}

/// Returns the volume's group; fails if it does not exist.
pub(crate) fn existing<'a>(system: &'a dyn System, volume: &VolumeName) -> Result<Group<'a>> {
    let group = TARGET
        .tree(system)
        .map(|tree| volumes(&tree).child(volume.as_str()));
    group
        .filter(Group::exists)
        .ok_or_else(|| no_such_volume(volume))
}

/// Returns whether the module is loaded.
pub fn is_loaded(system: &dyn System) -> bool {
    TARGET.tree(system).is_some()
}

fn not_loaded() -> String {
    format!(
        "the kernel module {} is not loaded: no exports",
        TARGET.name
    )
}
