// SPDX-License-Identifier: GPL-2.0

//! The name of a PCI device: `0000:03:00.0`.

/// Domain, bus, device and function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciAddress {
    /// Domain, or segment.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device in the upper five bits, function in the lower three.
    pub devfn: u8,
}

fn hex(text: &str, digits: core::ops::RangeInclusive<usize>, max: u32) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !plain || !digits.contains(&text.len()) {
        return None;
    }
    let value = u32::from_str_radix(text, 16).ok()?;
    (value <= max).then_some(value)
}

impl PciAddress {
    /// Reads `DDDD:BB:DD.F`, as `lspci -D` and sysfs write it. A missing domain is 0.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.rsplitn(3, ':');
        let (last, bus) = (parts.next()?, parts.next()?);
        let domain = match parts.next() {
            Some(domain) => hex(domain, 4..=8, u32::MAX)?,
            None => 0,
        };
        let (device, function) = last.split_once('.')?;
        let devfn = (hex(device, 2..=2, 31)? << 3) | hex(function, 1..=1, 7)?;
        Some(Self {
            domain,
            bus: u8::try_from(hex(bus, 2..=2, 255)?).ok()?,
            devfn: u8::try_from(devfn).ok()?,
        })
    }
}

impl core::fmt::Display for PciAddress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (device, function) = (self.devfn >> 3, self.devfn & 7);
        write!(
            f,
            "{:04x}:{:02x}:{device:02x}.{function}",
            self.domain, self.bus
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formatted_address_is_parsed_again() {
        for text in ["0000:03:00.0", "0001:ff:1f.7", "10000:e1:02.3"] {
            assert_eq!(PciAddress::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(
            PciAddress::parse("03:00.1").unwrap().to_string(),
            "0000:03:00.1"
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "auto",
            "03",
            "03:00",
            "3:00.0",
            "03:0.0",
            "03:20.0",
            "03:00.8",
            "03:00.00",
            "000:03:00.0",
            "00000000:0:03:00.0",
            "0000:03:00.0 ",
            "+000:03:00.0",
            "123456789:03:00.0",
        ] {
            assert_eq!(PciAddress::parse(text), None, "{text}");
        }
    }
}
