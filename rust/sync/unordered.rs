// SPDX-License-Identifier: GPL-2.0

//! Numbers that several threads see, and by whose changes nothing else is ordered.
//!
//! They have no accesses that order others. Where something hangs on the order,
//! [`super::atomic`] is to be used, which also says why these are `core`'s.

use core::sync::atomic::{
    AtomicU32,
    AtomicU64,
    AtomicUsize,
    Ordering::Relaxed, //
};

macro_rules! unordered {
    ($($(#[$doc:meta])* $name:ident is $inner:ident of $number:ty,)*) => {
        $(
            $(#[$doc])*
            pub struct $name($inner);

            impl $name {
                /// Makes one that is `value`.
                pub const fn new(value: $number) -> Self {
                    Self($inner::new(value))
                }

                /// Returns its value.
                #[inline(always)]
                pub fn get(&self) -> $number {
                    self.0.load(Relaxed)
                }

                /// Changes it to `value`.
                #[inline(always)]
                pub fn set(&self, value: $number) {
                    self.0.store(value, Relaxed);
                }

                /// Adds `value`, whoever else does.
                #[inline(always)]
                pub fn add(&self, value: $number) {
                    self.0.fetch_add(value, Relaxed);
                }

                /// Changes it to 0, and returns what it was.
                #[inline(always)]
                pub fn take(&self) -> $number {
                    match self.get() {
                        0 => 0,
                        _ => self.0.swap(0, Relaxed),
                    }
                }
            }
        )*
    };
}

unordered! {
    /// A `u32`, see the module.
    UnorderedU32 is AtomicU32 of u32,
    /// A `u64`, see the module.
    UnorderedU64 is AtomicU64 of u64,
    /// A `usize`, see the module.
    UnorderedUsize is AtomicUsize of usize,
}
