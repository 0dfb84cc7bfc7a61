// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The numbers of sealed requests that a target has seen.

/// The window below the highest received number in which late requests are accepted: at least the
/// number of queue pairs of a session that connect at the same time.
const WIDTH: u64 = u128::BITS as u64;

/// The received numbers of a session. Each number is accepted once; numbers begin at 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    highest: u64,
    /// Bit `n`: number `highest - n` was received.
    seen: u128,
}

impl Window {
    /// Creates an empty window.
    pub const fn new() -> Self {
        Self {
            highest: 0,
            seen: 0,
        }
    }

    /// Accepts a number. Returns `false` if it was received before, or is too old to be found in
    /// the window.
    pub fn accept(&mut self, number: u64) -> bool {
        if number > self.highest {
            let ahead = number - self.highest;
            self.seen = if ahead < WIDTH { self.seen << ahead } else { 0 } | 1;
            self.highest = number;
            return true;
        }
        let late = self.highest - number;
        if number == 0 || late >= WIDTH || self.seen >> late & 1 != 0 {
            return false;
        }
        self.seen |= 1 << late;
        true
    }
}
