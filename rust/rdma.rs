// SPDX-License-Identifier: GPL-2.0

//! RDMA verbs and connection manager, with the lifetimes that verbs demand.
//!
//! | module | wraps | C header |
//! |---|---|---|
//! | [`address`] | `struct sockaddr_in`, `_in6` | `linux/in.h`, `linux/in6.h` |
//! | [`backlog`] | lists of `struct ib_send_wr` that wait | `rdma/ib_verbs.h` |
//! | [`buffer`] | memory that stays mapped for the HCA | `rdma/ib_verbs.h` |
//! | [`cm`] | `struct rdma_cm_id` | `rdma/rdma_cm.h` |
//! | [`cq`] | `struct ib_cq` | `rdma/ib_verbs.h` |
//! | [`device`] | `struct ib_device`'s attributes | `rdma/ib_verbs.h` |
//! | `exposed` | memory of the driver's own that the peer may write to | `rdma/ib_verbs.h` |
//! | `faults` | faults that tests request | |
//! | [`mapped`] | a count of mappings, on kernels that check | |
//! | [`mr`] | `struct ib_mr` for fast registration | `rdma/ib_verbs.h` |
//! | [`pd`] | `struct ib_pd` | `rdma/ib_verbs.h` |
//! | [`port`] | the events of an RDMA port | `rdma/ib_verbs.h` |
//! | [`qp`] | `struct ib_qp` | `rdma/ib_verbs.h` |
//! | [`sink`] | `struct ib_mr` as the sink of an RDMA READ | `rdma/ib_verbs.h` |
//! | [`space`] | slots of a send queue | |
//! | [`wr`] | `struct ib_send_wr` and its kin | `rdma/ib_verbs.h` |
//!
//! # References
//!
//! ```text
//! QueuePair ──► CompletionQueue ──► ProtectionDomain ──► cm::Id ──► (device)
//!     └──────────────────────────────────▲   ▲
//! MemoryRegion, DmaBuffer ───────────────────┘
//! ```
//!
//! An arrow is a counted reference, so a queue pair cannot outlive its completion queue, and
//! nothing outlives the protection domain. The chain ends at a connection identifier because that
//! keeps the device: when a device is removed, the connection manager waits until the last
//! identifier on it is gone. Completions and connection events go to handlers that are referenced
//! back from the queue and the identifier; [`CompletionQueue::stop`](cq::CompletionQueue::stop) and
//! [`Id::detach`](cm::Id::detach) cut those references, and the teardown of a queue pair calls
//! both.
//!
//! Everything here is made and dropped in process context; dropping sleeps.
//! Posting and completing work in any context.

pub mod address;
pub mod backlog;
pub mod buffer;
pub mod cm;
pub mod cq;
pub mod device;
pub(crate) mod exposed;
pub(crate) mod faults;
pub mod mapped;
pub mod mr;
pub mod pd;
pub mod port;
pub mod qp;
pub mod sink;
pub mod space;
pub mod wr;
