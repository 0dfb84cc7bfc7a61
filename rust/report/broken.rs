// SPDX-License-Identifier: GPL-2.0

//! Reports of broken invariants of the drivers. Messages with `BUG:` report a bug of the drivers or
//! of a device, and a test whose log has one fails.

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

/// Logs, once for each place in the source, that an invariant of our own is broken. Any context.
///
/// The caller makes sure that nothing is lost or used wrongly; it must end the session concerned,
/// with this as the reason.
#[macro_export]
macro_rules! broken {
    ($what:expr) => {
        ::kernel::pr_warn_once!("BUG: {}\n", $what)
    };
}

/// Puts `item` into `list`, which has room for it. If the room is missing, this logs that and keeps
/// the item for ever (dropping it could sleep, and it may be in use), and returns `false`. Any
/// context.
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

/// Keeps an item without a place for ever, and logs that.
#[cold]
#[inline(never)]
pub fn keep<T>(item: T, what: &'static str) {
    core::mem::forget(item);
    // Not `broken!`, whose "once" would cover all callers: each loss is logged.
    pr_warn!("BUG: {what}\n");
}
