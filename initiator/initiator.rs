// SPDX-License-Identifier: GPL-2.0

//! stub

use kernel::prelude::*;

module! {
    type: InitiatorModule,
    name: "hcablk",
    authors: ["The hcablk developers"],
    description: "hcablk: shared block device over RDMA, initiator",
    license: "GPL",
}

struct InitiatorModule;

impl kernel::Module for InitiatorModule {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self)
    }
}
