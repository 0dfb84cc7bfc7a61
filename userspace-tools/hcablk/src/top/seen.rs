// SPDX-License-Identifier: GPL-2.0

//! The values of one sample.

use crate::host_names::HostNames;
use crate::output::{Device, Port, Rates, Volume};

/// All shown values, as of the last sample.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) devices: Vec<Device>,
    pub(super) volumes: Vec<Volume>,
    pub(super) ports: Vec<Port>,
    pub(super) disk_rates: Vec<Rates>,
    pub(super) volume_rates: Vec<Rates>,
    pub(super) host_names: HostNames,
}

/// Returns the rates of a disk or volume.
pub(super) fn rates_of<'a>(all: &'a [Rates], name: &str) -> Option<&'a Rates> {
    all.iter().find(|rates| rates.name == name)
}
