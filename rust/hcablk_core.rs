// SPDX-License-Identifier: GPL-2.0

//! The safe layers that the hcablk drivers are written against.
//!
//! The initiator and the target decide the policy, and contain no `unsafe` code; all code that
//! calls the kernel's raw interfaces is here, in one module for each subject.

#[allow(unused)] // Generated for every header named, used where a layer needs it.
pub(crate) mod bindings;

pub mod blkdev;
pub mod configfs;
pub mod containers;
pub mod crypto;
pub mod logic;
pub mod memory;
pub mod p2p;
pub mod proto;
pub mod rdma;
pub mod report;
pub mod sglist;
pub mod sync;
pub mod system;

use kernel::{
    ffi,
    prelude::*, //
};

module! {
    type: CoreModule,
    name: "hcablk_core",
    authors: ["The hcablk developers"],
    description: "hcablk: safe layers over verbs and the block layer",
    license: "GPL",
}

struct CoreModule {
    _faults: rdma::faults::Faults,
    _watch: p2p::Watch,
}

impl kernel::Module for CoreModule {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self {
            _faults: rdma::faults::Faults::create(),
            _watch: p2p::Watch::start()?,
        })
    }
}

impl Drop for CoreModule {
    fn drop(&mut self) {
        rdma::mapped::check();
    }
}
