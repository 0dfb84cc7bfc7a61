// SPDX-License-Identifier: GPL-2.0

//! How many mappings for HCAs there are, on kernels that check DMA mappings.
//!
//! soft-RoCE and siw take kernel addresses for DMA addresses, so that the
//! kernel's own `DMA_API_DEBUG` does not see a mapping for them that is never
//! taken back. This does; on other kernels it is nothing.

#[cfg(CONFIG_DMA_API_DEBUG)]
mod count {
    use kernel::{
        prelude::*,
        sync::atomic::{
            Atomic,
            Relaxed, //
        },
    };

    static MAPPED: Atomic<i64> = Atomic::new(0);

    pub(crate) fn add() {
        MAPPED.fetch_add(1, Relaxed);
    }

    pub(crate) fn remove() {
        MAPPED.fetch_add(-1, Relaxed);
    }

    /// Returns how many mappings there are.
    pub fn count() -> i64 {
        MAPPED.load(Relaxed)
    }

    /// Logs if there are mappings, when there must be none any more.
    pub(crate) fn check() {
        let left = count();
        if left != 0 {
            pr_err!("BUG: {left} mappings for an HCA were never removed\n");
        }
    }
}

#[cfg(not(CONFIG_DMA_API_DEBUG))]
mod count {
    #[inline(always)]
    pub(crate) fn add() {}

    #[inline(always)]
    pub(crate) fn remove() {}

    #[inline(always)]
    pub(crate) fn check() {}
}

#[cfg(CONFIG_DMA_API_DEBUG)]
pub use count::count;
pub(crate) use count::{
    add,
    check,
    remove, //
};
