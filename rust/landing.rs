// SPDX-License-Identifier: GPL-2.0

//! Where the peer puts the data of small reads: memory that stays registered
//! as long as its queue pair, one slot for each tag, and is copied from there.
//!
//! For a few KiB a copy costs less than registering and invalidating the
//! request's own memory. The peer can write into the slots at any time, into
//! those of other requests too, but into nothing else: what it can spoil is
//! data that it delivers itself.

use crate::{
    blkdev::RequestRef,
    rdma::{
        device::Attributes,
        exposed::ExposedBuffers,
        mr::{
            Remote,
            REGION_PAGE, //
        },
        pd::ProtectionDomain,
        wr::Register, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// In place of what tells requests' regions apart.
const COOKIE: u32 = u32::MAX;

/// Slots for small data, in one memory region.
pub struct Landing {
    slots: ExposedBuffers,
    /// Bytes of the largest data that is put here.
    limit: u32,
}

impl Landing {
    /// Pages of a slot for `limit` bytes, as a power of two.
    const fn order(limit: u32) -> u32 {
        limit
            .div_ceil(REGION_PAGE)
            .next_power_of_two()
            .trailing_zeros()
    }

    /// How many slots for `limit` bytes a device can have, at most `depth`.
    pub fn fit(attributes: Attributes, depth: u16, limit: u32) -> u16 {
        let slots = attributes.max_fast_reg_pages >> Self::order(limit);
        slots.min(depth.into()) as u16
    }

    /// Makes `slots` slots for data of up to `limit` bytes. May sleep.
    pub fn new(pd: &Arc<ProtectionDomain>, slots: u16, limit: u32) -> Result<Self> {
        let slots = ExposedBuffers::new(pd, slots.into(), Self::order(limit), COOKIE)?;
        Ok(Self { slots, limit })
    }

    /// The work request that lets the peer write. To be posted once, before a
    /// slot is named to the peer; the right ends with the object.
    pub fn register(&self) -> Register<'_> {
        self.slots.register()
    }

    /// What to tell the peer for `bytes` bytes in slot `slot`; `None`: that does not fit.
    #[inline]
    pub fn remote(&self, slot: u16, bytes: u32) -> Option<Remote> {
        let buffer = self.slots.buffers().get(usize::from(slot))?;
        let Remote { address, key } = self.slots.remote();
        (bytes <= self.limit).then(|| Remote {
            address: address + u64::from(slot) * buffer.len() as u64,
            key,
        })
    }

    /// Copies what the peer has put into slot `slot` to the request's memory.
    #[inline]
    pub fn deliver(&self, slot: u16, request: RequestRef<'_>) -> Result {
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
