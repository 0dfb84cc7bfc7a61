// SPDX-License-Identifier: GPL-2.0

//! Selects the addresses that the target reports to a host that asks where to connect. Uses nothing
//! but `core` and the wire format: its tests run on the host.

use crate::proto::discovery::{
    Entry,
    Listing,
    PortalEntry, //
};
use core::net::{
    IpAddr,
    SocketAddr, //
};

/// Adds `portals`, the addresses at which the target listens, to the response to a question that
/// arrived at the address `own`; each address once. A port that listens at any address is reported
/// with `own`, if it can have received the question: an IPv4 port receives nothing over IPv6.
pub(crate) fn list(portals: &[SocketAddr], own: IpAddr, listing: &mut Listing) {
    let here = |portal: &SocketAddr| match portal {
        portal if !portal.ip().is_unspecified() => Some(*portal),
        SocketAddr::V4(_) if own.is_ipv6() => None,
        portal => Some(SocketAddr::new(own, portal.port())),
    };
    for (place, portal) in portals.iter().enumerate() {
        let Some(portal) = here(portal) else {
            continue;
        };
        let mut before = portals.iter().take(place).filter_map(here);
        if before.any(|other| other == portal) {
            continue;
        }
        listing.add(Entry::Portal(PortalEntry {
            ip: portal.ip(),
            port: portal.port(),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{
        discovery::{
            List,
            Question, //
        },
        name::HostId, //
    };

    /// Returns the portals among `portals` that are reported to a host that asks at the address
    /// `own`.
    fn listed(portals: &[&str], own: &str) -> Vec<String> {
        let portals: Vec<SocketAddr> = portals.iter().map(|p| p.parse().unwrap()).collect();
        let entry = |index| {
            let mut listing = Listing::new(&Question {
                version_min: 2,
                version_max: 2,
                host: HostId::parse("6fa459ea-ee8a-3ca4-894e-db77e160355e").unwrap(),
                list: List::Portals,
                index,
            });
            list(&portals, own.parse().unwrap(), &mut listing);
            match listing.into_reply().entry? {
                Entry::Portal(portal) => Some(SocketAddr::new(portal.ip, portal.port).to_string()),
                Entry::Volume(_) => panic!("a volume"),
            }
        };
        (0..).map_while(entry).collect()
    }

    #[test]
    fn a_wildcard_portal_is_listed_with_the_address_of_the_request() {
        let portals = [
            "0.0.0.0:7744",
            "10.0.0.1:7744",
            "10.0.0.2:7744",
            "[::]:7745",
        ];
        assert_eq!(
            listed(&portals, "10.0.0.1"),
            ["10.0.0.1:7744", "10.0.0.2:7744", "10.0.0.1:7745"]
        );
    }

    #[test]
    fn an_ipv4_wildcard_is_not_listed_for_an_ipv6_request() {
        let portals = ["0.0.0.0:7744", "10.0.0.2:7744", "[::]:7745"];
        assert_eq!(
            listed(&portals, "fd00::1"),
            ["10.0.0.2:7744", "[fd00::1]:7745"]
        );
        assert!(listed(&["0.0.0.0:7744"], "fd00::1").is_empty());
    }

    #[test]
    fn each_portal_is_listed_once() {
        let portals = ["10.0.0.1:7744", "[::]:7744", "0.0.0.0:7744"];
        assert_eq!(listed(&portals, "10.0.0.1"), ["10.0.0.1:7744"]);
    }
}
