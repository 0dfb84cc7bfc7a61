// SPDX-License-Identifier: GPL-2.0

//! Facts about the machine, and chance.

use crate::bindings;

/// Processors that are running.
pub fn online_cpus() -> u32 {
    // SAFETY: No requirements.
    unsafe { bindings::hcablk_c_num_online_cpus() }
}

/// A number that nobody can guess, not 0.
pub fn random_u64() -> u64 {
    // SAFETY: No requirements.
    unsafe { bindings::hcablk_c_get_random_u64() }.max(1)
}
