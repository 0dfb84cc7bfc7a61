// SPDX-License-Identifier: GPL-2.0

//! Facts about the machine, its clock, and random numbers.

mod deadline;
pub mod errno;
pub mod hibernation;

pub use self::deadline::Deadline;

use crate::bindings;
use kernel::page::PAGE_SHIFT;

/// Returns the number of online processors.
pub fn online_cpus() -> u32 {
    // SAFETY: No requirements.
    unsafe { bindings::hcablk_c_num_online_cpus() }
}

/// Returns the distance between the NUMA node `node` and the current processor, from the firmware's
/// table; a negative (unknown) node counts as the processor's own. Any context.
///
/// C: `node_distance()`.
pub fn numa_distance(node: i32) -> u32 {
    // SAFETY: No requirements; `node` is a device's.
    unsafe { bindings::hcablk_c_numa_distance(node) }
}

/// Returns how many bytes of memory can be allocated without swapping, by the kernel's estimate.
///
/// C: `si_mem_available()`.
pub fn available_memory() -> u64 {
    // SAFETY: No requirements.
    let pages = unsafe { bindings::si_mem_available() };
    u64::try_from(pages).unwrap_or(0) << PAGE_SHIFT
}

/// Returns a random number that cannot be guessed, not 0.
pub fn random_u64() -> u64 {
    // SAFETY: No requirements.
    unsafe { bindings::hcablk_c_get_random_u64() }.max(1)
}

/// Kinds of log lines of which a peer could cause any number; each kind has a limit of its own.
#[derive(Clone, Copy, Debug)]
pub enum Lines {
    /// A connection was refused.
    Refusals,
    /// A session ends because something is wrong.
    Faults,
    /// The start of a session, or of one of its queue pairs.
    Begins,
    /// A session ends in the usual way.
    Ends,
    /// A session has ended completely.
    Gone,
    /// The memory that a new session has got: smaller requests than requested, no peer memory.
    Sizes,
    /// A change of reservations was refused.
    Reservations,
    /// A connection that names no volume was refused: its initiator then names the volume.
    NamelessRefusals,
}

/// Returns whether another line of `kind` may be printed: ten in five seconds. Logs the number of
/// omitted lines. Any context.
///
/// C: `__ratelimit()`.
pub fn may_print(kind: Lines) -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::hcablk_c_may_print(kind as u32) }
}

/// Returns a number that identifies the current thread during its life; 0 in an interrupt or
/// softirq. Any context.
///
/// C: `current`, `in_task()`.
#[inline]
pub fn this_thread() -> usize {
    // SAFETY: No requirements.
    unsafe { bindings::hcablk_c_this_thread() }
}

/// Returns the nanoseconds since the machine was started, without suspended time: the clock of the
/// block layer's request time stamps. Any context.
///
/// C: `ktime_get()`.
#[inline]
pub fn now_ns() -> u64 {
    // SAFETY: No requirements once time is kept, which is before modules are loaded.
    unsafe { bindings::ktime_get() as u64 }
}
