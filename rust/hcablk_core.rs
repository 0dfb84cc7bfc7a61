// SPDX-License-Identifier: GPL-2.0

//! The safe layers that the hcablk drivers are written against.
//!
//! The initiator and the target hold policy and next to no `unsafe`; what
//! touches the kernel's raw interfaces lives here, one subject a module.

#[allow(unused)] // Generated for every header named, used where a layer needs it.
pub(crate) mod bindings;

pub mod blkdev;
pub mod broken;
pub mod configfs;
pub mod defer;
pub mod eager_ring;
pub mod embedded;
pub mod errno;
pub mod fair_share;
mod faults;
pub mod fifo;
pub mod mq;
pub mod p2p;
pub mod pages;
pub mod proto;
pub mod rdma;
pub mod read_bounce;
pub mod session_state;
pub mod sglist;
pub mod slots;
pub mod stats;
pub mod sync;
pub mod system;
pub mod text;
pub mod times;
pub mod trace;

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
    _faults: faults::Faults,
    _watch: p2p::Watch,
}

impl kernel::Module for CoreModule {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self {
            _faults: faults::Faults::offer(),
            _watch: p2p::Watch::start()?,
        })
    }
}

impl Drop for CoreModule {
    fn drop(&mut self) {
        rdma::mapped::check();
    }
}
