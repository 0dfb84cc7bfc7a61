// SPDX-License-Identifier: GPL-2.0

//! The sizes of queues and requests: requested by users, limited by devices.

use crate::failure::Failure;
use hcablk_core::{
    memory::read_bounce::ReadBounce,
    proto::{
        message::MESSAGE_REQUESTS_MAX,
        TRANSFER_MAX, //
    },
    rdma::{
        device::Attributes,
        mr::REGION_PAGE,
        qp::Capacity, //
    },
    sglist::region_pages,
};

/// Send queue slots that a request with data may need: for its REG_MR, its SEND and its LOCAL_INV.
pub(crate) const SLOTS_PER_REQUEST: u32 = 3;

/// Maximum number of segments of an inline write.
pub(crate) const INLINE_SEGMENTS: usize = 8;

/// Maximum number of requests in one message, whose SEND gathers one piece from each.
pub(crate) const BATCH_MAX: usize = 8;
const _: () = assert!(BATCH_MAX <= INLINE_SEGMENTS + 1 && BATCH_MAX <= MESSAGE_REQUESTS_MAX);

/// Maximum number of segments of a request on any device: one for each page.
const SEGMENTS_MAX: u32 = TRANSFER_MAX / REGION_PAGE;

/// Sizes of a queue and of the requests on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueShape {
    /// Requests in flight.
    pub(crate) depth: u16,
    /// Segments of a request.
    pub(crate) segments: u16,
    /// Bytes of a request.
    pub(crate) bytes: u32,
    /// Tags that have a slot for small reads.
    pub(crate) read_bounce_slots: u16,
    /// Bytes of a slot for small reads.
    pub(crate) small_read: u32,
    /// Small writes are copied into slots.
    pub(crate) write_bounce: bool,
    /// Segments of an inline write, or of one RDMA WRITE.
    pub(crate) inline_segments: u16,
}

impl QueueShape {
    /// Returns the number of send queue slots: those of a request for each tag; those that can be
    /// unsignaled (a period, and one request or eager write beyond it, whichever needs more); and
    /// three, for a keep-alive, a nop and the registration of the read bounce slots.
    pub(crate) fn send_slots(self) -> u32 {
        let one = SLOTS_PER_REQUEST.max(self.eager_send_slots());
        u32::from(self.depth) * SLOTS_PER_REQUEST + self.signal_period() + one + 3
    }

    /// Returns the send queue slots of the largest eager write: RDMA WRITEs and a message.
    fn eager_send_slots(self) -> u32 {
        let pieces = self.segments.div_ceil(self.inline_segments.max(1));
        u32::from(pieces) + 1
    }

    pub(crate) fn signal_period(self) -> u32 {
        u32::from(self.depth / 4).clamp(1, 32)
    }

    pub(crate) fn capacity(self) -> Capacity {
        Capacity {
            sends: self.send_slots(),
            receives: self.depth.into(),
            send_entries: u32::from(self.inline_segments) + 1,
            receive_entries: 1,
        }
    }

    /// Returns how many work requests the device's send queue must have room for.
    fn work_requests(self) -> u32 {
        self.send_slots() + 1
    }

    /// Returns how many entries the device's completion queue must have.
    fn completions(self) -> u32 {
        self.capacity().completions()
    }

    /// Returns the sizes of requests on a device, for a requested queue depth.
    pub(crate) fn fit(attributes: Attributes, depth: u16, limit: u32) -> Result<Self, Failure> {
        if !attributes.fast_registration {
            return Err(Failure::Device(
                "it cannot register memory by work requests",
            ));
        }
        // A request with contiguous memory is mapped in one piece.
        let bounce_pages = attributes.bounce_bytes.map(|bytes| bytes / REGION_PAGE);
        // A region has one page more than the data, which may start anywhere in a page.
        let pages = attributes
            .max_fast_reg_pages
            .min(region_pages(limit))
            .saturating_sub(1)
            .min(SEGMENTS_MAX)
            .min(bounce_pages.unwrap_or(u32::MAX));
        if pages == 0 {
            return Err(Failure::Device("its memory regions are too small"));
        }
        let mut shape = Self {
            depth,
            // A region covers at most one bounce buffer: bounce buffers do not start and end at
            // page boundaries.
            segments: match bounce_pages {
                Some(_) => 1,
                None => pages as u16,
            },
            bytes: pages * REGION_PAGE,
            read_bounce_slots: 0,
            small_read: 0,
            write_bounce: false,
            inline_segments: u16::try_from(attributes.max_send_sge.saturating_sub(1))
                .unwrap_or(u16::MAX)
                .min(INLINE_SEGMENTS as u16),
        };
        while shape.work_requests() > attributes.max_qp_wr
            || shape.completions() > attributes.max_cqe
        {
            if shape.depth <= 1 {
                return Err(Failure::Device("its queues are too short"));
            }
            shape.depth /= 2;
        }
        Ok(shape)
    }

    /// Adds read bounce slots for reads of up to `limit` bytes, as many as the device can register.
    /// With `limit` 0 there are none.
    pub(crate) fn fit_read_bounce(&mut self, attributes: Attributes, limit: u32) {
        if limit > 0 {
            self.small_read = limit;
            self.read_bounce_slots = ReadBounce::fit(attributes, self.depth, limit);
        }
    }

    /// Adds write bounce slots where a copy costs less than mapping; `largest`: bytes of the
    /// largest write that may be eager or inline.
    pub(crate) fn fit_write_bounce(&mut self, attributes: Attributes, largest: u32) {
        self.write_bounce = attributes.translated && largest > 0;
    }
}
