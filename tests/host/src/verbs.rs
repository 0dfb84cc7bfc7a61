// SPDX-License-Identifier: GPL-2.0

//! Stand-ins for the parts of `hcablk_core` and of the drivers that both `QueueShape`s use: only
//! the sizes, under the same names.

/// `kernel::page`
pub(crate) mod page {
    pub(crate) const PAGE_SIZE: usize = 4096;
}

pub(crate) mod rdma {
    pub(crate) mod device {
        /// See `rust/rdma/device.rs`.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Attributes {
            pub(crate) max_qp_wr: u32,
            pub(crate) max_send_sge: u32,
            pub(crate) max_recv_sge: u32,
            pub(crate) max_sge_rd: u32,
            pub(crate) max_cqe: u32,
            pub(crate) max_fast_reg_pages: u32,
            pub(crate) fast_registration: bool,
            pub(crate) bounce_bytes: Option<u32>,
            pub(crate) translated: bool,
        }
    }

    pub(crate) mod mr {
        pub(crate) const REGION_PAGE: u32 = 4096;
    }

    pub(crate) mod qp {
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Capacity {
            pub(crate) sends: u32,
            pub(crate) receives: u32,
            pub(crate) send_entries: u32,
            pub(crate) receive_entries: u32,
        }

        impl Capacity {
            pub(crate) fn completions(self) -> u32 {
                self.sends + self.receives + 2
            }
        }
    }

    pub(crate) mod sink {
        pub(crate) struct Sink;

        impl Sink {
            pub(crate) const fn pages(bytes: u32) -> u32 {
                bytes.div_ceil(super::mr::REGION_PAGE)
            }
        }
    }
}

pub(crate) mod memory {
    pub(crate) use crate::layout;

    /// The target's pool.
    pub(crate) mod pool {
        pub(crate) const MOST: usize = 128;
    }

    pub(crate) mod eager_ring {
        use crate::rdma::{device::Attributes, mr::REGION_PAGE};

        const PIECE: usize = 32 << 10;

        pub(crate) struct EagerRing;

        impl EagerRing {
            pub(crate) fn fit(attributes: Attributes, bytes: usize) -> usize {
                let region = attributes.max_fast_reg_pages as usize * REGION_PAGE as usize;
                let bytes = bytes.min(region);
                bytes - bytes % PIECE
            }

            pub(crate) const fn pieces(bytes: usize) -> usize {
                bytes.div_ceil(PIECE) + 1
            }
        }
    }

    pub(crate) mod read_bounce {
        use crate::rdma::{device::Attributes, mr::REGION_PAGE};

        pub(crate) struct ReadBounce;

        impl ReadBounce {
            pub(crate) fn fit(attributes: Attributes, depth: u16, limit: u32) -> u16 {
                let pages = limit.div_ceil(REGION_PAGE).next_power_of_two();
                (attributes.max_fast_reg_pages / pages).min(depth.into()) as u16
            }
        }
    }
}

pub(crate) mod sglist {
    pub(crate) const fn region_pages(bytes: u32) -> u32 {
        bytes.div_ceil(super::rdma::mr::REGION_PAGE) + 1
    }
}

/// The initiator's failures.
pub(crate) mod failure {
    #[derive(Debug)]
    pub(crate) enum Failure {
        Device(&'static str),
    }
}
