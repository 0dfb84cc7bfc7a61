// SPDX-License-Identifier: GPL-2.0

//! A deadline: the time until which a caller waits for one thing.

use kernel::time::{
    Instant,
    Monotonic, //
};

/// The end of all waiting for one thing, such as a connection.
#[derive(Clone, Copy)]
pub struct Deadline {
    start: Instant<Monotonic>,
    limit_ms: u32,
}

impl Deadline {
    /// Makes a deadline `limit_ms` milliseconds from now.
    pub fn new(limit_ms: u32) -> Self {
        Self {
            start: Instant::now(),
            limit_ms,
        }
    }

    /// Returns the milliseconds left, at least one.
    pub fn left_ms(self) -> u32 {
        let gone = self.start.elapsed().as_millis().max(0);
        (i64::from(self.limit_ms) - gone).max(1) as u32
    }

    /// Returns the milliseconds since the deadline was made.
    pub fn elapsed_ms(self) -> u32 {
        let gone = self.start.elapsed().as_millis();
        gone.clamp(0, i64::from(u32::MAX)) as u32
    }

    /// Returns whether the deadline has passed.
    pub fn has_passed(self) -> bool {
        self.start.elapsed().as_millis() >= i64::from(self.limit_ms)
    }
}
