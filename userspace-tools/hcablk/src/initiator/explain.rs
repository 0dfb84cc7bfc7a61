// SPDX-License-Identifier: GPL-2.0

//! Explains why the driver did not connect, and what to do about it.

use nix::errno::Errno;

use super::paths;
use crate::configfs::Group;
use crate::error::{describe, with_reason, Error, Kind, NO_RDMA_DEVICE, SEE_THE_LOG};
use crate::keys;
use crate::system::{OpError, System};

fn kind(errno: Errno) -> Kind {
    match errno {
        Errno::EBUSY => Kind::Busy,
        Errno::EINVAL | Errno::ENOMEM | Errno::ENOSPC => Kind::Failed,
        Errno::ENODEV => Kind::Setup,
        _ => Kind::Connection,
    }
}

/// Explains why the driver did not connect, and what to do about it.
pub(super) fn explain(error: &OpError, group: &Group<'_>) -> Error {
    let get = |attribute| group.get(attribute).unwrap_or_default();
    let (address, port, volume) = (get("address"), get("port"), get("volume"));
    let message = format!(
        "cannot connect to volume {volume} at {address} port {port}: {}",
        describe(error.errno)
    );
    let mut message = with_reason(message, group.reason());
    for path in paths::further(group).unwrap_or_default() {
        if let Some(reason) = path.group.reason() {
            message.push_str(&format!(
                "; path {} ({}): {reason}",
                path.number, path.endpoint
            ));
        }
    }
    Error::new(kind(error.errno), message)
        .with_errno(error.errno)
        .advise(advice(
            group.system(),
            error.errno,
            &group.reason().unwrap_or_default(),
            (&address, &port),
            &volume,
            &get("host_id"),
        ))
}

/// The connection that failed.
pub(crate) struct Unreached<'a> {
    pub(crate) address: &'a str,
    pub(crate) port: &'a str,
    pub(crate) volume: &'a str,
    pub(crate) host_id: &'a str,
}

/// Explains why a program in user space did not connect, with the program's reason `why`, and what to do about it.
pub(crate) fn connecting_failed(
    system: &dyn System,
    errno: Errno,
    why: &str,
    to: &Unreached<'_>,
) -> Error {
    let Unreached {
        address,
        port,
        volume,
        host_id,
    } = to;
    let message = format!("cannot connect to volume {volume} at {address} port {port}: {why}");
    Error::new(kind(errno), message)
        .with_errno(errno)
        .advise(advice(system, errno, why, (address, port), volume, host_id))
}

/// Explains why a target did not report its volumes to this host, and what to do about it.
pub(super) fn of_discovery(error: &OpError, group: &Group<'_>) -> Error {
    let get = |attribute| group.get(attribute).unwrap_or_default();
    let (address, port, host_id) = (get("address"), get("port"), get("host_id"));
    let message = format!(
        "cannot ask the target at {address} port {port}: {}",
        describe(error.errno)
    );
    Error::new(kind(error.errno), with_reason(message, group.reason()))
        .with_errno(error.errno)
        .advise(match error.errno {
            Errno::EKEYREJECTED => format!(
                "The target may have no volume for this host, or other keys. Run `hcablk key show host` here,\n\
                 and pass the output to `hcablk key add host {host_id}` on the target.\n\
                 Run `hcablk key show target` there, and pass the output to `hcablk key add target {address}` here.\n\
                 The target's log says more: dmesg | grep hcablk"
            ),
            Errno::ECONNREFUSED => format!(
                "On the target, `hcablk target list` must show port {port} enabled. A target of an older release \
                 cannot be asked."
            ),
            errno => {
                let why = group.reason().unwrap_or_default();
                advice(
                    group.system(),
                    errno,
                    &why,
                    (&address, &port),
                    "NAME",
                    &host_id,
                )
            }
        })
}

/// A part of the driver's reason if ARP finds no host at the address.
const NO_ANSWER_TO_ARP: &str = "looking for an RDMA device that reaches the address";

/// Returns the advice on keys for a volume that does not exist, or that the target hides from a host without a key.
fn about_keys(system: &dyn System, address: &str, volume: &str, host_id: &str) -> String {
    match keys::missing::exchange(system, address, volume, host_id) {
        Some(commands) => format!(
            "\nIf it does, and not as INSECURE, the volume admits only hosts with keys, and keys are missing here:\n{commands}"
        ),
        None => "\nIf it does, and not as INSECURE, both sides need keys: hcablk key --help".to_owned(),
    }
}

fn advice(
    system: &dyn System,
    errno: Errno,
    why: &str,
    (address, port): (&str, &str),
    volume: &str,
    host_id: &str,
) -> String {
    match errno {
        Errno::ETIMEDOUT if why.contains(NO_ANSWER_TO_ARP) => format!(
            "Nothing answers at {address}: `ip neigh show {address}` says FAILED or INCOMPLETE. Does the address belong to the\n\
             target, is the target up, and does `ping {address}` work? On the target, `ip -br address` must show the address\n\
             on an interface that is UP, of a bridge also `bridge link` a port that is forwarding, and `rdma link show`\n\
             must say ACTIVE."
        ),
        Errno::ECONNREFUSED => format!(
            "On the target, `hcablk target list` must show port {port} enabled.\n\
             If it does not: hcablk target listen --port {port}"
        ),
        Errno::ENOENT => format!(
            "On the target, `hcablk target list` must show volume {volume} enabled.\n\
             If it does not: hcablk target export {volume} /dev/… --allow {host_id}{}",
            about_keys(system, address, volume, host_id)
        ),
        Errno::EKEYREJECTED => format!(
            "On the target, `hcablk target allow {volume} {host_id}` must have been run.\n\
             Run `hcablk key show host` here, and pass the output to `hcablk key add host {host_id}` on the target.\n\
             Run `hcablk key show target` there, and pass the output to `hcablk key add target {address}` here.\n\
             Where ssh works, one command on the target does all of this: {}\n\
             The target's log says more: dmesg | grep hcablk",
            keys::missing::enroll(address, volume)
        ),
        Errno::EACCES | Errno::EPERM => {
            format!("Run on the target: hcablk target allow {volume} {host_id}")
        }
        Errno::ECONNRESET => {
            "The target ended the connection while it was being set up. Try again;\n\
             if that does not help, the target's log may say why: dmesg | grep hcablk"
                .to_owned()
        }
        Errno::EAGAIN => {
            "The target has just noticed this and ends the old connection. Try again.".to_owned()
        }
        Errno::EPROTONOSUPPORT => "Install the same release of hcablk on both sides.".to_owned(),
        Errno::EPROTO => format!(
            "A program other than hcablk may listen at port {port}.\n\
             On the target, `hcablk target list` shows its ports."
        ),
        Errno::ESTALE => {
            "If this is not the expected volume, find out why before you use it.\n\
             Otherwise another machine may have the same host id (`hcablk host-id`): give each its own.\n\
             Or the target has replaced this session meanwhile: try again."
                .to_owned()
        }
        Errno::ETIMEDOUT => format!(
            "Does `ping {address}` work? Is the RDMA device up on both sides (`rdma link show`)?\n\
             A firewall between the two must let UDP port 4791 (RoCE) through, or the\n\
             target's TCP port (iWARP).\n\
             A slow network may need more time: --connect-timeout SECONDS"
        ),
        Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::EADDRNOTAVAIL | Errno::ENETDOWN => {
            format!(
                "No RDMA device of this host reaches that address.\n\
                 Compare `ip route get {address}` with `rdma link show`."
            )
        }
        Errno::ENODEV => NO_RDMA_DEVICE.to_owned(),
        Errno::ENOMEM | Errno::ENOSPC => {
            "Lower --queues or --queue-depth: the need depends on them.".to_owned()
        }
        Errno::ENOBUFS => format!(
            "The target lacks memory, queue pairs or sessions for this host.\n\
             If memory or queue pairs: lower --queues or --queue-depth.\n\
             On the target, `hcablk target list` shows the clients of {volume}, and its log\n\
             says what ran out: dmesg | grep hcablk"
        ),
        Errno::EBUSY => "Another command changes it, or something uses it, at this moment. Try again.".to_owned(),
        Errno::EINVAL => "The driver found the settings incomplete or out of range.".to_owned(),
        _ => SEE_THE_LOG.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::system::Machine;

    #[test]
    fn advice_fits_the_error() {
        let machine = Machine::new(Path::new("/nonexistent"));
        let told = |errno| advice(&machine, errno, "", ("10.0.0.1", "7744"), "data", "");
        assert!(told(Errno::ETIMEDOUT).contains("4791"));
        assert!(!told(Errno::ECONNREFUSED).contains("4791"));
        assert!(told(Errno::ENOBUFS).contains("On the target"));
        assert!(!told(Errno::ENOMEM).contains("On the target"));
    }
}
