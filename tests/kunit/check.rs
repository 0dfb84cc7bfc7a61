// SPDX-License-Identifier: GPL-2.0

//! What tests say with, and how allocations are made to fail.

use hcablk_core::rdma::mapped;
use kernel::prelude::*;

/// Ends the test with an error, and says so, unless the condition holds.
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

/// Ends the test with an error, and says so, unless both are the same.
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

/// A test's body, after which nothing more must be mapped for an HCA than before.
pub(crate) fn balanced(body: impl FnOnce() -> Result) -> Result {
    let before = mapped::count();
    let result = body();
    if let Err(e) = result {
        pr_err!("a test ends with {e:?}\n");
    }
    ensure_eq!(mapped::count(), before);
    result
}

/// Lets the Nth allocation of this thread from here on fail; 0: none does.
/// Returns what was left of the number that was there before.
fn fail_nth(n: u32) -> u32 {
    let task = kernel::current!().as_ptr();
    // SAFETY: The field belongs to the running thread, which is this one.
    unsafe {
        let left = (&raw const (*task).fail_nth).read_volatile();
        (&raw mut (*task).fail_nth).write_volatile(n);
        left
    }
}

/// Calls `make` again and again, while its first, second, … allocation fails,
/// until all of them went well: each time there must be an error that says so, or
/// none, and nothing
/// mapped for an HCA that was not before. `least` of them must have failed.
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
        if let Err(e) = result {
            // The network says so when it has no memory for a socket.
            ensure!(e == ENOMEM || e == ENFILE);
        }
        ensure_eq!(mapped::count(), before);
    }
    Err(EINVAL)
}
