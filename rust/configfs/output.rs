// SPDX-License-Identifier: GPL-2.0

//! The text of an attribute that is read.

use core::fmt;
use kernel::prelude::*;

/// The most bytes that configfs reads from an attribute (`SIMPLE_ATTR_SIZE`).
pub(super) const ATTRIBUTE_SIZE: usize = 4096;

/// The buffer into which an attribute's value is written, with `write!`.
pub struct Output<'a> {
    page: &'a mut [u8],
    used: usize,
    overflow: bool,
}

impl<'a> Output<'a> {
    pub(super) fn new(page: &'a mut [u8]) -> Self {
        Self {
            page,
            used: 0,
            overflow: false,
        }
    }

    /// Writes formatted text, for `write!`. Cuts off the excess.
    pub fn write_fmt(&mut self, args: fmt::Arguments<'_>) -> Result {
        fmt::Write::write_fmt(self, args).map_err(|_| EINVAL)
    }

    /// Writes bytes. Cuts off the excess.
    pub fn write_bytes(&mut self, bytes: &[u8]) {
        let Some(room) = self.page.get_mut(self.used..) else {
            return;
        };
        let length = bytes.len().min(room.len());
        for (to, from) in room.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.used += length;
        self.overflow |= length < bytes.len();
    }

    /// Returns the number of written bytes; a list that was cut off ends with a line of dots
    /// instead of half a line.
    pub(super) fn finish(self) -> usize {
        const MORE: &[u8] = b"...\n";
        if !self.overflow {
            return self.used;
        }
        let room = self.used.saturating_sub(MORE.len());
        let lines = self.page.get(..room).unwrap_or_default();
        let Some(end) = lines.iter().rposition(|&c| c == b'\n') else {
            return self.used;
        };
        for (to, from) in self.page.iter_mut().skip(end + 1).zip(MORE) {
            *to = *from;
        }
        end + 1 + MORE.len()
    }
}

impl fmt::Write for Output<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.write_bytes(text.as_bytes());
        Ok(())
    }
}
