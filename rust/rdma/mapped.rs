// SPDX-License-Identifier: GPL-2.0

//! A count of mappings for HCAs, on kernels that check DMA mappings.
//!
//! soft-RoCE and siw use kernel addresses as DMA addresses, so the kernel's own `DMA_API_DEBUG`
//! does not notice when a mapping for them is never removed. This count does; on other kernels
//! these functions do nothing.

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

    /// Logs that mappings are left, when none must be.
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
