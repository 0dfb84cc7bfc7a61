// SPDX-License-Identifier: GPL-2.0

//! `hcablk target listen` and `unlisten`: the addresses of the target.

use std::net::{IpAddr, Ipv4Addr};

use nix::errno::Errno;

use super::ports;
use super::unexport::disable;
use crate::apply::record::Record;
use crate::apply::step::Table;
use crate::configfs::{remove, Group, Transaction, TARGET};
use crate::error::{describe, with_reason, Error, Kind, Result, NO_RDMA_DEVICE, SEE_THE_LOG};
use crate::output::{Done, Outcome, PortRef};
use crate::system::{OpError, System};

/// The port that targets listen on by default.
pub const DEFAULT_PORT: u16 = 7744;

/// A requested port; members that are left out may have any value, or the default if the port must be made.
#[derive(Clone, Debug, Default)]
pub struct Listen {
    /// The address to listen at.
    pub address: Option<IpAddr>,
    /// The port number.
    pub port: Option<u16>,
    /// The id in configfs.
    pub id: Option<u16>,
    /// Memory for the data of each session, in MiB.
    pub buffer_mib: Option<u32>,
    /// The memory limit of all sessions together, in MiB.
    pub memory_mib: Option<u32>,
    /// Receive buffers per queue.
    pub queue_credits: Option<u32>,
}

/// The settings of a port.
struct PortSetting {
    address: String,
    port: u16,
    enabled: bool,
}

impl PortSetting {
    fn read(group: &Group<'_>) -> Result<Self> {
        Ok(Self {
            address: group.get("address")?,
            port: group.value("port")?,
            enabled: group.flag("enable")?,
        })
    }

    fn reference(&self, group: &Group<'_>) -> PortRef {
        PortRef {
            id: group.name(),
            address: self.address.clone(),
            port: self.port,
        }
    }

    /// Returns whether the port serves the address of `wanted`: it listens at that address, or at all of that family.
    fn serves(&self, wanted: &Listen) -> bool {
        let address = match (wanted.address, self.address.parse::<IpAddr>()) {
            (None, _) => true,
            (Some(wanted), Ok(now)) => {
                wanted == now || (now.is_unspecified() && now.is_ipv4() == wanted.is_ipv4())
            }
            (Some(_), Err(_)) => false,
        };
        address && wanted.port.is_none_or(|port| port == self.port)
    }
}

/// Returns the port that serves `wanted`: one that listens already, or a new one.
pub(super) fn ensure_port(
    tree: &Group<'_>,
    wanted: &Listen,
    transaction: &mut Transaction<'_>,
) -> Result<PortRef> {
    for group in ports(tree).children()? {
        let now = PortSetting::read(&group)?;
        if now.enabled && now.serves(wanted) {
            return Ok(now.reference(&group));
        }
    }
    make_port(tree, wanted, transaction)
}

/// Sets up a port and enables it: the one with the requested id, or an existing one with the requested address and
/// number, or a new one.
fn make_port(
    tree: &Group<'_>,
    wanted: &Listen,
    transaction: &mut Transaction<'_>,
) -> Result<PortRef> {
    let address = wanted
        .address
        .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
        .to_string();
    let port = wanted.port.unwrap_or(DEFAULT_PORT);
    let all = ports(tree).children()?;

    let mut found = None;
    for group in &all {
        let now = PortSetting::read(group)?;
        let meant = match wanted.id {
            Some(id) => group.name() == id.to_string(),
            None => now.address == address && now.port == port,
        };
        if meant {
            found = Some(group.clone());
            break;
        }
    }
    let group = if let Some(group) = found {
        group
    } else {
        let is_free = |id: &u16| all.iter().all(|group| group.name() != id.to_string());
        let id = wanted.id.or_else(|| (1..=u16::MAX).find(is_free));
        let id = id.ok_or_else(|| Error::new(Kind::Failed, "every port id is taken"))?;
        let group = ports(tree).child(&id.to_string());
        transaction.mkdir(&group)?;
        group
    };

    let mut settings = vec![("address", address), ("port", port.to_string())];
    settings.extend(
        wanted
            .buffer_mib
            .map(|value| ("buffer_mib", value.to_string())),
    );
    settings.extend(
        wanted
            .memory_mib
            .map(|value| ("memory_mib", value.to_string())),
    );
    settings.extend(
        wanted
            .queue_credits
            .map(|value| ("queue_credits", value.to_string())),
    );
    let now = PortSetting::read(&group)?;
    if now.enabled {
        let mut different = Vec::new();
        for (attribute, value) in &settings {
            let now = group.get(attribute)?;
            if now != *value {
                different.push(format!("{attribute} is {now}, not {value}"));
            }
        }
        if !different.is_empty() {
            let id = group.name();
            return Err(Error::new(
                Kind::Exists,
                format!(
                    "port {id} listens with other settings: {}",
                    different.join(", ")
                ),
            )
            .advise(format!(
                "End it first (hcablk target unlisten {id}), or choose a different id (--id)."
            )));
        }
        return Ok(now.reference(&group));
    }
    for (attribute, value) in &settings {
        transaction.set(&group, attribute, value)?;
    }
    enable(&group, transaction)?;
    Ok(PortSetting::read(&group)?.reference(&group))
}

/// Makes a port that is set up listen.
pub(crate) fn enable(group: &Group<'_>, transaction: &mut Transaction<'_>) -> Result<()> {
    transaction
        .enable(group)?
        .map_err(|error| explain_port(&error, group))
}

fn explain_port(error: &OpError, group: &Group<'_>) -> Error {
    let get = |attribute| group.get(attribute).unwrap_or_default();
    let (address, port) = (get("address"), get("port"));
    let message = with_reason(
        format!(
            "cannot listen at {address} port {port}: {}",
            describe(error.errno)
        ),
        group.reason(),
    );
    let advice = match error.errno {
        Errno::EADDRINUSE => {
            "Another program listens there. Choose a different port (--port), and use it on the clients."
        }
        Errno::EADDRNOTAVAIL => {
            "This machine does not have that address, or no RDMA device on it: compare `ip addr` with `rdma link show`.\n\
             Or a port at 0.0.0.0 has this number at every address: `hcablk target list`, `hcablk target unlisten ID`."
        }
        Errno::ENODEV => NO_RDMA_DEVICE,
        _ => SEE_THE_LOG,
    };
    let kind = if error.errno == Errno::ENODEV {
        Kind::Setup
    } else {
        Kind::Failed
    };
    Error::new(kind, message)
        .with_errno(error.errno)
        .advise(advice)
}

/// Runs `hcablk target listen`.
pub fn listen(system: &dyn System, wanted: &Listen) -> Result<Outcome> {
    let tree = TARGET.require(system)?;
    let mut transaction = Transaction::new(system);
    let result = make_port(&tree, wanted, &mut transaction);
    let changed = transaction.has_changes();
    let port = transaction.finish(result)?;
    if changed {
        // The service neither repeats nor undoes changes of other commands.
        Record::new(system).forget(Table::Port, &port.id)?;
    }
    let note = format!("port {} listens already", port.id);
    let mut outcome = Outcome::new(Done::Listen { port, changed });
    if !changed {
        outcome.note(note);
    }
    Ok(outcome)
}

/// Runs `hcablk target unlisten`. A port that this command did not make may have any name in
/// configfs.
pub fn unlisten(system: &dyn System, ids: Option<&[String]>, if_exists: bool) -> Result<Outcome> {
    let all = match TARGET.tree(system) {
        Some(tree) => ports(&tree).children()?,
        None => Vec::new(),
    };
    let mut chosen = Vec::new();
    match ids {
        None => chosen = all,
        Some(ids) => {
            for id in ids {
                match all.iter().find(|group| group.name() == *id) {
                    Some(group) => chosen.push(group.clone()),
                    None if if_exists => (),
                    None => {
                        return Err(Error::new(Kind::NotFound, format!("there is no port {id}"))
                            .advise("`hcablk target list` shows the ports of this machine."))
                    }
                }
            }
        }
    }
    let mut removed = Vec::new();
    for group in chosen {
        disable(&group)?;
        remove(&group)?;
        Record::new(system).forget(Table::Port, &group.name())?;
        removed.push(group.name());
    }
    let nothing = removed.is_empty();
    let mut outcome = Outcome::new(Done::Unlisten {
        changed: !nothing,
        ports: removed,
    });
    if nothing {
        outcome.note("no port to end");
    }
    Ok(outcome)
}
