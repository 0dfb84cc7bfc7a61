// SPDX-License-Identifier: GPL-2.0

//! The message that reports that an invariant of the drivers is broken. Nothing else that they log
//! has `BUG:`, and a test in whose log that is fails.

use kernel::{
    alloc::{
        kvec::{
            PushError,
            Vec, //
        },
        Allocator, //
    },
    prelude::*, //
};

/// Says, once for each place in the source, that an invariant of our own is broken. Any context.
///
/// The caller makes sure that nothing is lost or used wrongly; it must end the session concerned,
/// with this for a reason.
#[macro_export]
macro_rules! broken {
    ($what:expr) => {
        ::kernel::pr_warn_once!("BUG: {}\n", $what)
    };
}

/// Puts `item` into `list`, which has room for it. If it has not, that is logged, and the item is
/// kept for ever: dropping it could sleep, and somebody may use it. `false` then. Any context.
#[inline]
pub fn push_into_room<T, A: Allocator>(list: &mut Vec<T, A>, item: T, what: &'static str) -> bool {
    match list.push_within_capacity(item) {
        Ok(()) => true,
        Err(PushError(item)) => {
            keep(item, what);
            false
        }
    }
}

/// Keeps for ever what has no place, and says so.
#[cold]
#[inline(never)]
pub fn keep<T>(item: T, what: &'static str) {
    core::mem::forget(item);
    // Not `broken!`, whose "once" would be that of this place: each time something is lost.
    pr_warn!("BUG: {what}\n");
}
