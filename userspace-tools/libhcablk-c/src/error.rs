// SPDX-License-Identifier: GPL-2.0

//! The reason why a thread's last call failed.

use libhcablk::{Failure, RequestError};
use nix::errno::Errno;
use std::{
    cell::RefCell,
    ffi::{c_char, c_int, CString},
    fmt::Display,
};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn negative(errno: Errno) -> c_int {
    match errno as c_int {
        // An error number without a name.
        0 => -(Errno::EIO as c_int),
        errno => -errno,
    }
}

/// Records the reason of a failed call, and returns the call's result.
pub(crate) fn fail(errno: Errno, why: impl Display) -> c_int {
    // No message of this library contains a null byte.
    let why = CString::new(why.to_string()).unwrap_or_default();
    LAST.with_borrow_mut(|last| *last = why);
    negative(errno)
}

/// Returns the error of a request whose call has not failed.
pub(crate) fn code_of(error: RequestError) -> c_int {
    negative(error.errno())
}

/// As [`fail`], for the end of a session, or a failure to begin one.
pub(crate) fn failed(failure: Failure) -> c_int {
    fail(failure.errno(), failure)
}

/// As [`fail`], for a request.
pub(crate) fn request_failed(error: RequestError) -> c_int {
    fail(error.errno(), error)
}

/// See `hcablk.h`.
#[no_mangle]
pub extern "C" fn hcablk_error() -> *const c_char {
    // The string stays valid until the thread's next failure.
    LAST.with_borrow(|last| last.as_ptr())
}
