// SPDX-License-Identifier: GPL-2.0

//! How large a queue is: what was asked for and what the device allows.

use super::Queue;
use hcablk_core::{
    proto::TRANSFER_MAX,
    rdma::{
        device::Attributes,
        qp::{
            Capacity,
            QueuePair, //
        },
    },
};

/// log2 of the pages of a transfer buffer.
pub(super) const CHUNK_ORDER: u32 = 3;
/// Bytes of a transfer buffer.
pub(crate) const CHUNK_BYTES: usize = kernel::page::PAGE_SIZE << CHUNK_ORDER;
/// Transfer buffers of the largest request.
pub(crate) const CHUNKS_MAX: usize = (TRANSFER_MAX as usize).div_ceil(CHUNK_BYTES);
/// RDMA work requests that a request may be split into, for devices that take
/// few entries in each.
pub(super) const PARTS_MAX: usize = 8;

/// Sizes of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Receive buffers.
    pub(crate) credits: u16,
    pub(super) ios: u32,
    pub(super) buffers: usize,
    pub(super) write_entries: usize,
    pub(super) read_entries: usize,
    pub(super) parts: u32,
}

impl Shape {
    /// What a device allows of `credits` requests in flight, with `bytes` of
    /// transfer buffers; `None` when it is not enough for one.
    pub(crate) fn new(attributes: Attributes, credits: u16, bytes: usize) -> Option<Self> {
        let entries = |max: u32| (max as usize).clamp(1, CHUNKS_MAX);
        let write_entries = entries(attributes.max_send_sge);
        let read_entries = entries(attributes.max_sge_rd.min(attributes.max_send_sge));
        let parts = CHUNKS_MAX.div_ceil(write_entries.min(read_entries));
        if parts > PARTS_MAX {
            return None;
        }
        let mut shape = Self {
            credits,
            ios: u32::from(credits) * 2,
            buffers: (bytes / CHUNK_BYTES).max(CHUNKS_MAX),
            write_entries,
            read_entries,
            parts: parts as u32,
        };
        while shape.sends() + 1 > attributes.max_qp_wr || shape.completions() > attributes.max_cqe {
            if shape.credits == 1 {
                return None;
            }
            shape.credits /= 2;
            shape.ios = u32::from(shape.credits) * 2;
        }
        Some(shape)
    }

    /// Each request's parts and its answer, and a probe.
    pub(super) fn sends(self) -> u32 {
        self.ios * (self.parts + 1) + 1
    }

    pub(super) fn completions(self) -> u32 {
        QueuePair::<Queue>::completions(self.capacity())
    }

    pub(super) fn capacity(self) -> Capacity {
        Capacity {
            sends: self.sends(),
            receives: self.credits.into(),
            send_entries: self.write_entries.max(self.read_entries) as u32,
        }
    }
}
