// SPDX-License-Identifier: GPL-2.0

//! Histograms of the durations of requests in each of their states.
//!
//! A duration costs two additions, and reading the clock at both ends; it is measured only on
//! request.

pub mod buckets;

use crate::report::stats::Counter;
use core::fmt;

/// Durations of one kind. As a [`Counter`]: one writer at a time, any number of
/// readers.
#[derive(Default)]
pub struct Histogram {
    total_ns: Counter,
    classes: [Counter; buckets::COUNT],
}

impl Histogram {
    /// Counts a duration from `start` to `end`, in nanoseconds; one that ends before it starts
    /// counts as 0.
    #[inline]
    pub fn add(&self, start: u64, end: u64) {
        let ns = end.saturating_sub(start);
        self.total_ns.add(ns);
        if let Some(class) = self.classes.get(buckets::bucket_of(ns)) {
            class.bump();
        }
    }

    /// Adds the other's durations to this one's.
    pub fn absorb(&self, other: &Self) {
        self.total_ns.add(other.total_ns.get());
        for (class, more) in self.classes.iter().zip(&other.classes) {
            class.add(more.get());
        }
    }
}

/// The number of durations, their sum in nanoseconds, and for each class that has any, its upper
/// bound in nanoseconds (`inf` for the last) and their number.
impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count: u64 = self.classes.iter().map(Counter::get).sum();
        write!(f, "{count} {}", self.total_ns.get())?;
        for (class, counter) in self.classes.iter().enumerate() {
            match (counter.get(), buckets::below(class)) {
                (0, _) => {}
                (n, Some(bound)) => write!(f, " {bound}:{n}")?,
                (n, None) => write!(f, " inf:{n}")?,
            }
        }
        Ok(())
    }
}
