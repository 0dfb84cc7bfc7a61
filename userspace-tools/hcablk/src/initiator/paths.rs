// SPDX-License-Identifier: GPL-2.0

//! The paths of a disk in the driver's tree: path 0 is the device's own address, the others have a
//! directory each, whose name is the path's number.

use crate::config::running::attribute;
use crate::configfs::{remove, unless_gone, Group, Transaction};
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind, Result};
use crate::output::{DiskPath, PathRef};

/// Largest number of a path.
pub(super) const LAST: u8 = 15;

/// The attribute that says whether a device gets a path for each portal of its target.
pub(crate) const AUTO: &str = "paths_auto";

/// Returns whether a device gets a path for each portal. A driver without the attribute has no such device.
pub(crate) fn auto(device: &Group<'_>) -> Result<bool> {
    Ok(attribute(device, AUTO)?.is_some_and(|text| text == "1"))
}

/// A path that has a directory.
pub(crate) struct Further<'a> {
    pub(crate) group: Group<'a>,
    pub(crate) number: u8,
    pub(crate) endpoint: Endpoint,
    /// Whether the path is used while the device is enabled.
    pub(crate) enabled: bool,
}

impl<'a> Further<'a> {
    /// Reads the directory of that number; `None` if it was removed meanwhile.
    fn read(group: Group<'a>, number: u8) -> Result<Option<Self>> {
        let read = || {
            Ok((
                Endpoint {
                    address: group.get("address")?,
                    port: group.value("port")?,
                },
                group.flag("enable")?,
            ))
        };
        let read = unless_gone(&group, read())?;
        Ok(read.map(|(endpoint, enabled)| Self {
            group,
            number,
            endpoint,
            enabled,
        }))
    }

    /// Returns the number and the address of the path for reports.
    pub(super) fn reference(&self) -> PathRef {
        PathRef {
            number: self.number,
            address: self.endpoint.address.clone(),
            port: self.endpoint.port,
        }
    }

    fn show(&self) -> Result<Option<DiskPath>> {
        let state = unless_gone(&self.group, self.group.get("state").map_err(Error::from))?;
        Ok(state.map(|state| DiskPath {
            number: self.number,
            address: self.endpoint.address.clone(),
            port: self.endpoint.port,
            state: Some(state),
            error: self.group.reason(),
        }))
    }
}

fn folder<'a>(device: &Group<'a>) -> Group<'a> {
    device.child("paths")
}

/// Returns the directories of paths by their numbers. A driver that knows only one path has no such directories.
fn directories<'a>(device: &Group<'a>) -> Result<Vec<(u8, Group<'a>)>> {
    let folder = folder(device);
    let found = if folder.exists() {
        unless_gone(&folder, folder.children())?.unwrap_or_default()
    } else {
        Vec::new()
    };
    let numbered = |group: Group<'a>| Some((group.name().parse().ok()?, group));
    let mut found: Vec<_> = found.into_iter().filter_map(numbered).collect();
    found.sort_by_key(|(number, _)| *number);
    Ok(found)
}

/// Returns the paths other than path 0, in the order of their numbers.
pub(crate) fn further<'a>(device: &Group<'a>) -> Result<Vec<Further<'a>>> {
    let mut paths = Vec::new();
    for (number, group) in directories(device)? {
        paths.extend(Further::read(group, number)?);
    }
    Ok(paths)
}

/// Returns the address of path 0.
pub(super) fn own(device: &Group<'_>) -> Result<Endpoint> {
    Ok(Endpoint {
        address: device.get("address")?,
        port: device.value("port")?,
    })
}

/// Returns all paths of a disk with several paths, and no path of a disk with only one.
pub(super) fn show(device: &Group<'_>, disk_state: &str) -> Result<Vec<DiskPath>> {
    let further = further(device)?;
    let mut paths = Vec::new();
    let mut all_live = true;
    for path in &further {
        if let Some(shown) = path.show()? {
            all_live &= !path.enabled || shown.state.as_deref() == Some("live");
            paths.push(shown);
        }
    }
    if !paths.is_empty() {
        let Endpoint { address, port } = own(device)?;
        let first = DiskPath {
            number: 0,
            address,
            port,
            state: own_state(disk_state, all_live).map(str::to_owned),
            error: None,
        };
        paths.insert(0, first);
    }
    Ok(paths)
}

/// Returns the state of path 0, which the driver does not show: derives it from the state of the disk. `all_live` says
/// whether all other enabled paths are live.
fn own_state(disk: &str, all_live: bool) -> Option<&'static str> {
    match disk {
        "live" => Some("live"),
        "queueing" | "failing-fast" => Some("lost"),
        "degraded" if all_live => Some("lost"),
        "new" | "failed" => Some("new"),
        _ => None,
    }
}

/// Makes and enables a path.
pub(super) fn make<'a>(
    device: &Group<'a>,
    number: u8,
    endpoint: &Endpoint,
    transaction: &mut Transaction<'_>,
) -> Result<Further<'a>> {
    let mut path = set_up(device, number, endpoint, transaction)?;
    transaction.enable(&path.group)??;
    path.enabled = true;
    Ok(path)
}

/// Makes a path that is not enabled.
pub(crate) fn set_up<'a>(
    device: &Group<'a>,
    number: u8,
    endpoint: &Endpoint,
    transaction: &mut Transaction<'_>,
) -> Result<Further<'a>> {
    let folder = folder(device);
    if !folder.exists() {
        return Err(Error::new(
            Kind::Setup,
            "the kernel module supports only one path to a disk",
        )
        .advise("The command and the kernel modules may be of different versions."));
    }
    let path = Further {
        group: folder.child(&number.to_string()),
        number,
        endpoint: endpoint.clone(),
        enabled: false,
    };
    transaction.mkdir(&path.group)?;
    transaction.set(&path.group, "address", &endpoint.address)?;
    transaction.set(&path.group, "port", endpoint.port)?;
    Ok(path)
}

/// Removes the directories of all paths. The device must not be enabled.
pub(super) fn remove_all(device: &Group<'_>) -> Result<()> {
    for (_, group) in directories(device)? {
        match group.system().write(&group.path().join("enable"), "0\n") {
            Err(error) if !error.is_gone() => return Err(error.into()),
            _ => remove(&group)?,
        }
    }
    Ok(())
}

/// Returns the lowest free number of a path.
pub(super) fn free_number(device: &Group<'_>) -> Result<Option<u8>> {
    let taken = directories(device)?;
    Ok((1..=LAST).find(|number| !taken.iter().any(|(other, _)| other == number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_path_0_follows_from_the_disks_state() {
        for (disk, all_live, state) in [
            ("live", true, Some("live")),
            ("degraded", true, Some("lost")),
            ("degraded", false, None),
            ("queueing", false, Some("lost")),
            ("failing-fast", false, Some("lost")),
            ("connecting", false, None),
            ("failed", false, Some("new")),
        ] {
            assert_eq!(own_state(disk, all_live), state, "{disk}");
        }
    }
}
