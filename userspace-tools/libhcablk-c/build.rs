// SPDX-License-Identifier: GPL-2.0

//! Names the library by the version of its interface, so that programs find the one that they were built for.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhcablk.so.1");
}
