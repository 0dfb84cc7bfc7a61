// SPDX-License-Identifier: GPL-2.0

//! This host's id: the name under which targets allow it.

use std::path::Path;

use serde::Serialize;
use uuid::{uuid, Uuid};

use crate::error::{Error, Kind, Result};
use crate::system::System;

/// The file with the id that an administrator has chosen.
pub const FILE: &str = "/etc/hcablk/host_id";

const MACHINE_ID: &str = "/etc/machine-id";

/// The namespace of ids that are derived from a machine id. It is hcablk's own, so that the machine
/// id, which must stay on the machine, is not sent, and nobody can find it by comparison with ids
/// that other programs derive from it.
const NAMESPACE: Uuid = uuid!("f2d9a3c5-6c0e-4b53-9a0f-3e1b8f6d7a41");

/// The source of a host id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(rename = "HostIdSource")
)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// `/etc/hcablk/host_id`.
    File,
    /// Derived from `/etc/machine-id`.
    MachineId,
}

/// Returns the id in use on this machine, and its source.
pub fn current(system: &dyn System) -> Result<(Uuid, Source)> {
    if let Some(id) = stored(system)? {
        return Ok((id, Source::File));
    }
    let machine = system.read(Path::new(MACHINE_ID)).unwrap_or_default();
    match parse_machine_id(&machine) {
        Some(machine) => Ok((derive(machine), Source::MachineId)),
        None => Err(Error::new(
            Kind::Setup,
            format!("this host has no id: {FILE} is missing and {MACHINE_ID} has none"),
        )
        .advise("Make one: hcablk host-id --generate")),
    }
}

/// Reads the id in the file; `None` if there is no file.
pub fn stored(system: &dyn System) -> Result<Option<Uuid>> {
    let text = match system.read(Path::new(FILE)) {
        Ok(text) => text,
        Err(error) if error.is_gone() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match parse(text.trim()) {
        Ok(id) => Ok(Some(id)),
        Err(why) => Err(Error::new(Kind::Setup, format!("{FILE} is broken: {why}"))
            .advise("Rewrite it: hcablk host-id --set UUID, or hcablk host-id --generate --force")),
    }
}

/// Writes an id to the file.
pub fn store(system: &dyn System, id: Uuid) -> Result<()> {
    Ok(system.replace(Path::new(FILE), &format!("{id}\n"))?)
}

/// Parses a host id in the form that users write. The nil UUID identifies no host and is refused.
pub fn parse(text: &str) -> Result<Uuid, String> {
    match Uuid::try_parse(text) {
        Ok(id) if !id.is_nil() => Ok(id),
        Ok(_) => Err("the nil UUID names no host".to_owned()),
        Err(_) => Err(format!(
            "{text:?} is not a UUID such as 5f2c1d6e-8a0b-4c3d-9e7f-001122334455"
        )),
    }
}

/// Parses systemd's format: 32 lower-case hexadecimal digits. An image that has not booted yet has
/// `uninitialized` or nothing there.
fn parse_machine_id(text: &str) -> Option<Uuid> {
    let text = text.trim();
    let id = Uuid::try_parse(text).ok()?;
    (text.len() == 32 && !id.is_nil()).then_some(id)
}

fn derive(machine: Uuid) -> Uuid {
    Uuid::new_v5(&NAMESPACE, machine.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_ids_are_stable_and_hide_the_machine_id() {
        let machine = parse_machine_id("0123456789abcdef0123456789abcdef\n").unwrap();
        let id = derive(machine);
        // Targets keep lists of these: a change here locks every host out.
        assert_eq!(id, uuid!("2c76c224-38b3-5f2d-b27d-4051ae2d4024"));
        assert_eq!(id.get_version_num(), 5);
    }

    #[test]
    fn machine_ids_that_are_none() {
        for text in [
            "",
            "uninitialized\n",
            "00000000000000000000000000000000",
            "01234567-89ab-cdef-0123-456789abcdef",
        ] {
            assert_eq!(parse_machine_id(text), None, "{text:?}");
        }
    }

    #[test]
    fn nil_is_no_host() {
        assert!(parse("00000000-0000-0000-0000-000000000000").is_err());
        assert!(parse("host1").is_err());
        assert!(parse("5F2C1D6E-8A0B-4C3D-9E7F-001122334455").is_ok());
    }
}
