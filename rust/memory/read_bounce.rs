// SPDX-License-Identifier: GPL-2.0

//! Read bounce slots: memory into which the peer puts the data of small reads, one slot for each
//! tag, and from which the data is copied to the requests. It stays registered for the life of the
//! queue pair.
//!
//! For a few KiB a copy costs less than registering and invalidating the request's own memory. The
//! peer can write to all slots at any time, to those of other requests too, but to nothing else: it
//! can only corrupt data that it delivers itself.

use crate::{
    blkdev::RequestRef,
    rdma::{
        device::Attributes,
        exposed::ExposedBuffers,
        mr::{
            RemoteAddress,
            REGION_PAGE, //
        },
        pd::ProtectionDomain,
        wr::Register, //
    },
    system, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The read bounce slots of a queue pair, in one memory region.
pub struct ReadBounce {
    slots: ExposedBuffers,
    /// Bytes of the largest read that uses a slot.
    limit: u32,
}

impl ReadBounce {
    /// Returns log2 of the pages of a slot for `limit` bytes.
    const fn order(limit: u32) -> u32 {
        limit
            .div_ceil(REGION_PAGE)
            .next_power_of_two()
            .trailing_zeros()
    }

    /// Returns how many slots for `limit` bytes the device can have in one region, at most `depth`.
    pub fn fit(attributes: Attributes, depth: u16, limit: u32) -> u16 {
        let slots = attributes.max_fast_reg_pages >> Self::order(limit);
        slots.min(depth.into()) as u16
    }

    /// Allocates `slots` slots for data of up to `limit` bytes. May sleep. Fails with `ENOMEM`, or
    /// as the device does.
    pub fn new(pd: &Arc<ProtectionDomain>, slots: u16, limit: u32) -> Result<Self> {
        // Addresses are random, so that a peer without a request must guess them.
        let base = system::random_u64() as u32;
        let slots = ExposedBuffers::new(pd, slots.into(), Self::order(limit), base)?;
        Ok(Self { slots, limit })
    }

    /// Returns the work request that registers the slots for the peer's writes. Post it once,
    /// before a message to the peer names a slot; the registration ends with the object.
    pub fn register(&self) -> Result<Register<'_>> {
        self.slots.register()
    }

    /// Returns the address and key of slot `slot`, into which the peer puts `bytes` bytes; `None`
    /// if they do not fit.
    #[inline]
    pub fn remote(&self, slot: u16, bytes: u32) -> Option<RemoteAddress> {
        let buffer = self.slots.buffers().get(usize::from(slot))?;
        let RemoteAddress { address, key } = self.slots.remote();
        (bytes <= self.limit).then(|| RemoteAddress {
            address: address + u64::from(slot) * buffer.len() as u64,
            key,
        })
    }

    /// Copies the data that the peer has put into slot `slot` to the request's pages. Any context.
    /// Fails with `EINVAL` if the request is longer than the slot.
    #[inline]
    pub fn copy_to_request(&self, slot: u16, request: RequestRef<'_>) -> Result {
        let slots = self.slots.buffers();
        let buffer = slots.get(usize::from(slot)).ok_or(EINVAL)?;
        let bytes = request.bytes() as usize;
        if bytes > buffer.len() {
            return Err(EINVAL);
        }
        buffer.sync_for_cpu(0, bytes);
        request.copy_pages_to_data(buffer.pages(), bytes);
        buffer.sync_for_device(0, bytes);
        Ok(())
    }
}
