// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of the core's safe layers that need a kernel and an RDMA device, but neither
//! peer nor policy. Built for the debug kernel only.
//!
//! - [`check`]: assertions, and failing allocations.
//! - [`watched`]: state that tests wait for.
//! - [`link`]: a queue pair connected to another queue pair of this module.
//! - [`desk`]: a disk whose requests the tests answer.
//! - [`memory`]: memory of any shape, and I/O from and to it.
//! - [`bench`]: a connection, and a disk whose requests' memory is registered for the peer.
//!
//! Loading the module runs the suites; `tests/kselftest/kunit/layers.sh` loads it and reads the
//! results. A test that fails returns an error instead of stopping its thread as KUnit's own
//! assertions do, so that everything it made is taken down and the next test finds the device as it
//! was.

#[macro_use]
mod check;

mod bench;
mod desk;
mod link;
mod memory;
mod watched;

mod blkdev;
mod buffers;
mod completions;
mod configfs;
mod direct;
mod exposed;
mod queues;
mod regions;
mod requests;
mod sglist;
mod sinks;
mod small;

use core::net::{
    IpAddr,
    Ipv4Addr, //
};
use hcablk_core::configfs::Subsystem;
use kernel::{
    prelude::*,
    sync::{
        aref::ARef,
        global_lock,
        SetOnce, //
    },
    task::Task,
    ThisModule, //
};

module! {
    type: Tests,
    name: "hcablk_kunit",
    authors: ["The hcablk developers"],
    description: "hcablk: KUnit tests of the safe layers",
    license: "GPL",
    params: {
        address: u32 {
            default: 0x0a4d0001,
            description: "An IPv4 address of this host on an RDMA device, as a number; 10.77.0.1",
        },
    },
}

/// Returns an address of this host on the RDMA device under test.
fn address() -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(module_parameters::address.value()))
}

static MODULE: SetOnce<&'static ThisModule> = SetOnce::new();

/// Returns the module that disks and directories pin.
fn this_module() -> Result<&'static ThisModule> {
    MODULE.copy().ok_or(ENODEV)
}

global_lock! {
    // SAFETY: Initialized by `Tests::init`, which runs once and before the tests.
    unsafe(uninit) static LOADER: Mutex<Option<ARef<Task>>> = None;
}

/// Calls `f` with the root directory of the process that loads the module. KUnit runs tests in
/// threads of the kernel, which see no file system.
fn with_files<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    let loader = LOADER.lock();
    let loader = loader.as_ref().ok_or(ESRCH)?.as_ptr();
    let this = kernel::current!().as_ptr();
    // SAFETY: The loader's task is referenced. It waits for the tests, so that the field's
    // target stays; when it has ended the field is null.
    let files = unsafe { (&raw const (*loader).fs).read_volatile() };
    if files.is_null() {
        return Err(ESRCH);
    }
    // SAFETY: The field belongs to the running thread, which is this one.
    let before = unsafe { core::ptr::replace(&raw mut (*this).fs, files) };
    let result = f();
    // SAFETY: As above.
    unsafe { (*this).fs = before };
    result
}

/// The module's state.
struct Tests {
    _tree: Subsystem,
}

impl kernel::Module for Tests {
    fn init(module: &'static ThisModule) -> Result<Self> {
        MODULE.populate(module);
        // SAFETY: This runs once.
        unsafe { LOADER.init() };
        *LOADER.lock() = Some(ARef::from(&**kernel::current!()));
        Ok(Self {
            _tree: configfs::tree()?,
        })
    }
}

impl Drop for Tests {
    fn drop(&mut self) {
        *LOADER.lock() = None;
    }
}
