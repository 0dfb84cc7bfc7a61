// SPDX-License-Identifier: GPL-2.0

//! One change of the kernel's state.

use std::fmt;

use serde::Serialize;
use uuid::Uuid;

use crate::endpoint::Endpoint;
use crate::host_names::named;
use crate::hostid;
use crate::user::DiskChange;

/// The kind of object that is changed; the names are those of the configuration's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Table {
    /// This machine.
    Host,
    /// A volume of this machine's target.
    Export,
    /// A port of this machine's target.
    Port,
    /// A disk.
    Disk,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Export => "export",
            Self::Port => "port",
            Self::Disk => "disk",
        })
    }
}

/// A setting of a new object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Initial {
    /// The attribute of configfs.
    pub attribute: &'static str,
    /// The value that the attribute shall have.
    pub value: String,
    /// Whether the value is configured, rather than the default.
    #[serde(skip)]
    pub given: bool,
}

/// The change that a step makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the members are the object of the action")]
pub enum Action {
    StoreHostId {
        id: Uuid,
    },
    Make {
        settings: Vec<Initial>,
    },
    Set {
        attribute: &'static str,
        from: String,
        to: String,
    },
    Allow {
        host: Uuid,
        #[serde(skip_serializing_if = "Option::is_none")]
        host_name: Option<String>,
    },
    Forbid {
        host: Uuid,
        #[serde(skip_serializing_if = "Option::is_none")]
        host_name: Option<String>,
    },
    AddPath {
        number: u8,
        address: String,
        port: u16,
        enabled: bool,
    },
    RemovePath {
        number: u8,
        address: String,
        port: u16,
    },
    EnablePath {
        number: u8,
    },
    DisablePath {
        number: u8,
    },
    Enable,
    Disable,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct PlanStep {
    /// The table of the object.
    pub table: Table,
    /// The name of the object.
    pub name: String,
    /// The change to the object.
    #[serde(flatten)]
    pub action: Action,
    /// The change to a disk in user space.
    #[serde(skip)]
    pub user: Option<DiskChange>,
}

fn endpoint(address: &str, port: u16) -> Endpoint {
    Endpoint {
        address: address.to_owned(),
        port,
    }
}

/// Shows a value that may be empty.
fn shown(value: &str) -> &str {
    if value.is_empty() {
        "nothing"
    } else {
        value
    }
}

impl fmt::Display for PlanStep {
    /// Writes the change that the step makes: "make disk data".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let it = format!("{} {}", self.table, self.name);
        match &self.action {
            Action::StoreHostId { id } => write!(f, "store the host's id {id} in {}", hostid::FILE),
            Action::Make { settings } => {
                let given: Vec<_> = settings
                    .iter()
                    .filter(|setting| setting.given)
                    .map(|setting| format!("{} {}", setting.attribute, shown(&setting.value)))
                    .collect();
                write!(f, "make {it}")?;
                if given.is_empty() {
                    return Ok(());
                }
                write!(f, " ({})", given.join(", "))
            }
            Action::Set {
                attribute,
                from,
                to,
            } => {
                write!(
                    f,
                    "set {attribute} of {it} from {} to {}",
                    shown(from),
                    shown(to)
                )
            }
            Action::Allow { host, host_name } => {
                write!(f, "allow {} to use {it}", named(host, host_name.as_deref()))
            }
            Action::Forbid { host, host_name } => {
                write!(
                    f,
                    "forbid {} to use {it}",
                    named(host, host_name.as_deref())
                )
            }
            Action::AddPath {
                number,
                address,
                port,
                ..
            } => {
                write!(
                    f,
                    "add path {number} ({}) to {it}",
                    endpoint(address, *port)
                )
            }
            Action::RemovePath {
                number,
                address,
                port,
            } => {
                write!(
                    f,
                    "remove path {number} ({}) of {it}",
                    endpoint(address, *port)
                )
            }
            Action::EnablePath { number } => write!(f, "enable path {number} of {it}"),
            Action::DisablePath { number } => write!(f, "disable path {number} of {it}"),
            Action::Enable if self.table == Table::Disk => write!(f, "connect {it}"),
            Action::Disable if self.table == Table::Disk => write!(f, "disconnect {it}"),
            Action::Enable => write!(f, "enable {it}"),
            Action::Disable => write!(f, "disable {it}"),
        }
    }
}

impl PlanStep {
    /// Describes the difference between the kernel's state and the configuration: "+ disk data".
    pub fn difference(&self) -> String {
        let it = format!("{} {}", self.table, self.name);
        match &self.action {
            Action::Make { .. } => format!("+ {it}: it is missing"),
            Action::StoreHostId { id } => format!("~ host: its id differs from {id}"),
            Action::Set {
                attribute,
                from,
                to,
            } => {
                format!("~ {it}: {attribute} is {}, not {}", shown(from), shown(to))
            }
            Action::Allow { host, host_name } => {
                let host = named(host, host_name.as_deref());
                format!("~ {it}: {host} is not allowed")
            }
            Action::Forbid { host, host_name } => {
                let host = named(host, host_name.as_deref());
                format!("~ {it}: {host} is allowed")
            }
            Action::AddPath {
                number,
                address,
                port,
                ..
            } => {
                format!(
                    "~ {it}: path {number} ({}) is missing",
                    endpoint(address, *port)
                )
            }
            Action::RemovePath {
                number,
                address,
                port,
            } => {
                format!(
                    "~ {it}: path {number} ({}) is not configured",
                    endpoint(address, *port)
                )
            }
            Action::EnablePath { number } => format!("~ {it}: path {number} is not enabled"),
            Action::DisablePath { number } => format!("~ {it}: path {number} is enabled"),
            Action::Enable if self.table == Table::Disk => format!("~ {it}: it is not connected"),
            Action::Disable if self.table == Table::Disk => format!("~ {it}: it is connected"),
            Action::Enable => format!("~ {it}: it is not enabled"),
            Action::Disable => format!("~ {it}: it is enabled"),
        }
    }
}

/// A change that is not made, since its object is in use or a step for the object failed.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Pending {
    /// The change.
    #[serde(flatten)]
    pub step: PlanStep,
    /// The reason why the change is not made.
    pub reason: String,
}
