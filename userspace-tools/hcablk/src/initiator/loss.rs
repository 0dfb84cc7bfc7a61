// SPDX-License-Identifier: GPL-2.0

//! Lost writes: a target crashed, and lost writes that it had acknowledged and that no flush covered.

use super::disconnect::{find, not_in_kernel};
use crate::config::running::attribute;
use crate::configfs::{Group, INITIATOR};
use crate::error::Result;
use crate::output::{Device, Done, Outcome};
use crate::system::System;

/// The attribute of a device that shows whether writes were lost, and ends that state.
const ATTRIBUTE: &str = "lost_writes";

/// Describes a disk with lost writes.
pub(crate) const LOST: &str =
    "the target lost acknowledged writes; flushes and FUA writes fail (EIO) until the last user closes the disk";

/// Returns whether a disk lost writes; `None` if the kernel module does not report it.
pub(super) fn has_lost_writes(group: &Group<'_>) -> Result<Option<bool>> {
    Ok(match attribute(group, ATTRIBUTE)?.as_deref() {
        Some("0") => Some(false),
        Some("1") => Some(true),
        _ => None,
    })
}

/// Returns the advice how to end the lost-writes state of a disk.
pub(crate) fn remedy(disk: &str) -> String {
    format!(
        "Stop its users or unmount it, check the file system, and mount it again. If its user never \
         closes it (dm, swap, root file system), check the data, then: hcablk acknowledge-loss {disk}"
    )
}

/// Returns the advice, in one line, for the lost writes of a disk, if it has any.
pub(super) fn advice(device: &Device) -> Option<String> {
    let name = &device.name;
    let is_lost = device.has_lost_writes();
    is_lost.then(|| format!("{name}: {LOST}. {}", remedy(name)))
}

/// Runs `hcablk acknowledge-loss`.
pub fn acknowledge(system: &dyn System, text: &str) -> Result<Outcome> {
    let found = match INITIATOR.tree(system) {
        Some(tree) => find(&tree, text)?,
        None => None,
    };
    let group = found.ok_or_else(|| {
        not_in_kernel(
            system,
            text,
            "way to acknowledge a loss: the state ends when the disk is disconnected and connected again",
        )
    })?;
    let name = group.name();
    let lost = has_lost_writes(&group)?;
    let changed = lost == Some(true);
    if changed {
        system.write(&group.path().join(ATTRIBUTE), "0\n")?;
    }
    let note = match lost {
        Some(true) => None,
        Some(false) => Some(format!("{name} has no loss to acknowledge")),
        None => Some(format!(
            "{name} has no loss to acknowledge: the kernel module does not report lost writes"
        )),
    };
    let mut outcome = Outcome::new(Done::AcknowledgeLoss { name, changed });
    if let Some(note) = note {
        outcome.note(note);
    }
    Ok(outcome)
}
