// SPDX-License-Identifier: GPL-2.0

//! `hcablk metrics`: all counters and measurements, as `OpenMetrics` text. The names are an interface, and must not
//! change. `node_exporter`'s textfile collector reads the text, too, although it expects an older format: it then
//! treats counters as untyped.
//!
//! | module | holds |
//! |---|---|
//! | `configuration` | the metrics of what this machine should have |
//! | `exposition` | the format |
//! | `initiator`, `target` | the metrics of disks, and of volumes and ports |

mod configuration;
mod exposition;
mod initiator;
mod target;

use std::path::Path;

use crate::error::{Error, Kind, Result};
use crate::output::{Done, Outcome, Report};
use crate::system::System;

use exposition::{Exposition, Type};

/// Runs `hcablk metrics`: prints, or puts into a file, all or nothing.
pub fn metrics(system: &dyn System, output: Option<&Path>) -> Result<Outcome> {
    let text = text(system)?;
    let Some(file) = output else {
        return Ok(Outcome::new(Report::Metrics { metrics: text }));
    };
    system.replace(file, &text).map_err(|error| {
        let kind = if error.lacks_rights() {
            Kind::Setup
        } else {
            Kind::Failed
        };
        Error::new(kind, format!("cannot write the metrics: {error}"))
            .with_errno(error.errno)
            .advise("The user who runs this must be able to write its folder: that of node_exporter is /var/lib/prometheus/node-exporter.")
    })?;
    Ok(Outcome::new(Done::Metrics {
        file: file.display().to_string(),
        bytes: text.len(),
    }))
}

fn text(system: &dyn System) -> Result<String> {
    let mut all = Exposition::new();
    let disks = initiator::read(system)?;
    let exports = target::read(system)?;
    all.family(
        "hcablk_module_loaded",
        Type::Gauge,
        "Whether the kernel module is loaded.",
    );
    all.sample(&[("module", "hcablk")], u64::from(disks.is_some()));
    all.sample(&[("module", "hcablk_target")], u64::from(exports.is_some()));
    configuration::write(&mut all, system);
    initiator::write(&mut all, disks.as_deref().unwrap_or_default());
    if let Some(exports) = exports {
        target::write(&mut all, &exports);
    }
    Ok(all.finish())
}
