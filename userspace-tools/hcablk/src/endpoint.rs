// SPDX-License-Identifier: GPL-2.0

//! The address and port of a target as one word: `10.0.0.1`, `storage1:7745`, `[fd00::1]:7744`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::target::DEFAULT_PORT;

/// An address or host name, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// IPv4 or IPv6 address, or host name; without brackets.
    pub address: String,
    /// The port.
    pub port: u16,
}

impl Endpoint {
    /// Returns whether both are the same endpoint. Host names are not looked up.
    pub fn is_same(&self, other: &Self) -> bool {
        self.port == other.port && same_address(&self.address, &other.address)
    }
}

/// Returns whether two texts are the same address.
pub fn same_address(a: &str, b: &str) -> bool {
    match (a.parse::<IpAddr>(), b.parse::<IpAddr>()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, port } = self;
        if address.contains(':') {
            write!(f, "[{address}]:{port}")
        } else {
            write!(f, "{address}:{port}")
        }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).ok_or_else(|| {
            "neither an address nor an address and a port, such as 10.0.0.1, 10.0.0.1:7744 or \
             [fd00::1]:7744"
                .to_owned()
        })
    }
}

fn parse(text: &str) -> Option<Endpoint> {
    let (address, port) = if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest.split_once(']')?;
        if !address.contains(':') {
            return None;
        }
        match rest {
            "" => (address, None),
            rest => (address, Some(rest.strip_prefix(':')?)),
        }
    } else {
        match text.split_once(':') {
            // An IPv6 address without brackets has no port.
            Some((_, rest)) if rest.contains(':') => (text, None),
            Some((address, port)) => (address, Some(port)),
            None => (text, None),
        }
    };
    let is_odd = |c: char| c.is_whitespace() || matches!(c, '[' | ']' | '/');
    if address.is_empty() || address.contains(is_odd) {
        return None;
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
            digits.parse().ok().filter(|port| *port != 0)?
        }
        Some(_) => return None,
    };
    Some(Endpoint {
        address: address.to_owned(),
        port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_and_without_a_port() {
        for (text, address, port) in [
            ("10.0.0.1", "10.0.0.1", 7744),
            ("10.0.0.1:7745", "10.0.0.1", 7745),
            ("storage1", "storage1", 7744),
            ("storage1.example:1", "storage1.example", 1),
            ("fd00::1", "fd00::1", 7744),
            ("[fd00::1]", "fd00::1", 7744),
            ("[fd00::1]:65535", "fd00::1", 65535),
            ("fe80::1%eth0", "fe80::1%eth0", 7744),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(
                (endpoint.address.as_str(), endpoint.port),
                (address, port),
                "{text}"
            );
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            ":7744",
            "10.0.0.1:",
            "10.0.0.1:0",
            "10.0.0.1:65536",
            "10.0.0.1:+1",
            "10.0.0.1:x",
            "[fd00::1",
            "[fd00::1]7744",
            "[fd00::1]:",
            "[]:7744",
            "[10.0.0.1]:7744",
            "a b",
            "10.0.0.0/8",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn ipv6_addresses_have_brackets() {
        for text in ["[fd00::1]:7744", "10.0.0.1:7744"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn places_are_compared_by_meaning() {
        let same = |a: &str, b: &str| {
            let (a, b): (Endpoint, Endpoint) = (a.parse().unwrap(), b.parse().unwrap());
            a.is_same(&b)
        };
        assert!(same("::1", "[0:0:0:0:0:0:0:1]:7744"));
        assert!(!same("10.0.0.1", "10.0.0.2"));
        assert!(!same("10.0.0.1", "10.0.0.1:7745"));
    }
}
