// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Little-endian fields in byte arrays of a size known at compile time.

/// Writes fields one after another into a message of `N` bytes.
///
/// Every encoder writes a fixed list of fields; [`Writer::finish`] checks in unit tests that they
/// fill the message exactly.
pub(super) struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    pub(super) const fn new() -> Self {
        Self {
            bytes: [0; N],
            at: 0,
        }
    }

    #[inline(always)]
    pub(super) fn bytes<const L: usize>(&mut self, value: [u8; L]) -> &mut Self {
        if let Some(field) = self.bytes.get_mut(self.at..self.at + L) {
            field.copy_from_slice(&value);
        }
        self.at += L;
        self
    }

    #[inline(always)]
    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes([value])
    }

    #[inline(always)]
    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(value.to_le_bytes())
    }

    #[inline(always)]
    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(value.to_le_bytes())
    }

    #[inline(always)]
    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(value.to_le_bytes())
    }

    #[inline(always)]
    pub(super) fn finish(&self) -> [u8; N] {
        debug_assert!(self.at == N);
        self.bytes
    }
}

/// Reads fields one after another out of a message of exactly `N` bytes.
pub(super) struct Reader<'a, const N: usize> {
    bytes: &'a [u8; N],
    at: usize,
}

impl<'a, const N: usize> Reader<'a, N> {
    pub(super) fn new(bytes: &'a [u8; N]) -> Self {
        Self { bytes, at: 0 }
    }

    #[inline(always)]
    pub(super) fn bytes<const L: usize>(&mut self) -> [u8; L] {
        let mut value = [0; L];
        if let Some(field) = self.bytes.get(self.at..self.at + L) {
            value.copy_from_slice(field);
        }
        self.at += L;
        value
    }

    #[inline(always)]
    pub(super) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    #[inline(always)]
    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    #[inline(always)]
    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    #[inline(always)]
    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }
}

/// Returns the first `N` bytes of `bytes`, if `bytes` has at least `N`.
#[inline(always)]
pub(super) fn prefix<const N: usize>(bytes: &[u8]) -> Option<&[u8; N]> {
    bytes.get(..N)?.try_into().ok()
}
