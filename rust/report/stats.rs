// SPDX-License-Identifier: GPL-2.0

//! Counters that cost one addition each.

use crate::sync::atomic::{
    Atomic,
    Relaxed, //
};
use core::fmt;

/// A growing number. It has one writer at a time (the context that its owner documents) and any
/// number of readers, so that no locked instruction is needed.
pub struct Counter(Atomic<u64>);

impl Counter {
    /// Creates a counter that is 0.
    pub const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Adds `n`.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Adds 1.
    #[inline(always)]
    pub fn bump(&self) {
        self.add(1);
    }

    /// Returns the value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Adds the other's value.
    pub fn absorb(&self, other: &Self) {
        self.add(other.get());
    }
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl Default for Counter {
    fn default() -> Self {
        Self::new()
    }
}

/// Declares a structure of [`Counter`]s, or of
/// [`Histogram`](crate::report::times::Histogram)s, whose fields' names are what users see.
#[macro_export]
macro_rules! metrics {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident of $metric:ident {
            $($(#[$doc:meta])* $field:ident,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Default)]
        $vis struct $name {
            $($(#[$doc])* $vis $field: $metric,)*
        }

        impl $name {
            /// Calls `f` with the name and the value of each.
            $vis fn for_each(
                &self,
                mut f: impl FnMut(&'static str, &$metric) -> ::kernel::error::Result,
            ) -> ::kernel::error::Result {
                $(f(::core::stringify!($field), &self.$field)?;)*
                Ok(())
            }

            /// Adds the other's values to this one's.
            $vis fn absorb(&self, other: &Self) {
                $(self.$field.absorb(&other.$field);)*
            }
        }
    };
}
pub use metrics;
