// SPDX-License-Identifier: GPL-2.0

//! stub

use kernel::prelude::*;

module! {
    type: TargetModule,
    name: "hcablk_target",
    authors: ["The hcablk developers"],
    description: "hcablk: shared block device over RDMA, target",
    license: "GPL",
}

struct TargetModule;

impl kernel::Module for TargetModule {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self)
    }
}
