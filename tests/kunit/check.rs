// SPDX-License-Identifier: GPL-2.0

//! Macros for tests' assertions, and failing allocations.

use hcablk_core::rdma::mapped;
use kernel::prelude::*;

/// Prints a message and ends the test with an error, unless the condition holds.
macro_rules! ensure {
    ($condition:expr $(,)?) => {
        if !$condition {
            ::kernel::prelude::pr_err!(
                "{}, line {}: not so: {}\n",
                ::core::module_path!(),
                ::core::line!(),
                ::core::stringify!($condition)
            );
            return Err(::kernel::prelude::EINVAL);
        }
    };
}

/// Prints a message and ends the test with an error, unless both values are equal.
macro_rules! ensure_eq {
    ($left:expr, $right:expr $(,)?) => {
        match (&$left, &$right) {
            (left, right) => {
                if *left != *right {
                    ::kernel::prelude::pr_err!(
                        "{}, line {}: {} is {:?}, not {:?}\n",
                        ::core::module_path!(),
                        ::core::line!(),
                        ::core::stringify!($left),
                        left,
                        right
                    );
                    return Err(::kernel::prelude::EINVAL);
                }
            }
        }
    };
}

/// Runs a test's body; afterwards no more may be mapped for an HCA than before.
pub(crate) fn balanced(body: impl FnOnce() -> Result) -> Result {
    let before = mapped::count();
    let result = body();
    if let Err(e) = result {
        pr_err!("a test ends with {e:?}\n");
    }
    ensure_eq!(mapped::count(), before);
    result
}

/// Lets the Nth allocation of this thread from here on fail; 0: none fails. Returns the rest of
/// the former number.
fn fail_nth(n: u32) -> u32 {
    let task = kernel::current!().as_ptr();
    // SAFETY: The field belongs to the running thread, which is this one.
    unsafe {
        let left = (&raw const (*task).fail_nth).read_volatile();
        (&raw mut (*task).fail_nth).write_volatile(n);
        left
    }
}

/// Calls `make` again and again, while its first, second, … allocation fails, until none fails
/// any more: each time it must return an allocation error or succeed, and may not leave more mapped
/// for an HCA than before. At least `least` calls must have failed.
pub(crate) fn every_allocation<T>(least: u32, mut make: impl FnMut() -> Result<T>) -> Result {
    for n in 1..5000 {
        let before = mapped::count();
        fail_nth(n);
        let result = make();
        let missed = fail_nth(0);
        if missed != 0 {
            // Nothing failed.
            ensure!(result.is_ok());
            ensure!(n > least);
            return Ok(());
        }
        // The object may be mapped until it is dropped.
        if let Err(e) = result.map(drop) {
            // ENFILE: the network had no memory for a socket.
            ensure!(e == ENOMEM || e == ENFILE);
        }
        ensure_eq!(mapped::count(), before);
    }
    Err(EINVAL)
}
