// SPDX-License-Identifier: GPL-2.0

//! Where the peer puts the data of small reads: memory that stays registered
//! as long as its queue pair, one slot for each tag, and is copied from there.
//!
//! For a few KiB a copy costs less than registering and invalidating the
//! request's own memory. The peer can write into the slots at any time, into
//! those of other requests too, but into nothing else: what it can spoil is
//! data that it delivers itself.

use crate::{
    bindings,
    blkdev::RequestRef,
    rdma::{
        buffer::DmaBuffer,
        device::{
            Attributes,
            Direction, //
        },
        mr::{
            MemoryRegion,
            Remote,
            Rights,
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
    slots: KVec<DmaBuffer>,
    region: MemoryRegion,
    remote: Remote,
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
        let order = Self::order(limit);
        let count = u32::from(slots);
        let mut table = KVec::with_capacity(slots.into(), GFP_KERNEL)?;
        for _ in 0..slots {
            table.push(pin_init::zeroed(), GFP_KERNEL)?;
        }
        // SAFETY: The table has as many entries.
        unsafe { bindings::sg_init_table(table.as_mut_ptr(), count) };
        let mut buffers = KVec::with_capacity(slots.into(), GFP_KERNEL)?;
        for place in table.iter_mut() {
            let buffer = DmaBuffer::new(pd, order, Direction::FromDevice)?;
            let slice = buffer.slice(0, buffer.len());
            // SAFETY: `place` is an initialised entry of the table.
            unsafe { bindings::hcablk_c_sg_set_dma(place, slice.address(), slice.length()) };
            buffers.push(buffer, GFP_KERNEL)?;
        }
        let mut region = MemoryRegion::new(pd, count << order)?;
        // SAFETY: All entries were set to buffers that are mapped for the device of `pd`.
        unsafe { region.map(table.as_mut_ptr(), count, COOKIE)? };
        Ok(Self {
            slots: buffers,
            remote: region.keep(Rights::RemoteWrite)?,
            region,
            limit,
        })
    }

    /// The work request that lets the peer write. To be posted once, before a
    /// slot is named to the peer; the right ends with the object.
    pub fn register(&self) -> Register<'_> {
        self.region.kept(Rights::RemoteWrite)
    }

    /// What to tell the peer for `bytes` bytes in slot `slot`; `None`: that does not fit.
    #[inline]
    pub fn remote(&self, slot: u16, bytes: u32) -> Option<Remote> {
        let buffer = self.slots.get(usize::from(slot))?;
        (bytes <= self.limit).then(|| Remote {
            address: self.remote.address + u64::from(slot) * buffer.len() as u64,
            key: self.remote.key,
        })
    }

    /// Copies what the peer has put into slot `slot` to the request's memory.
    #[inline]
    pub fn deliver(&self, slot: u16, request: RequestRef<'_>) -> Result {
        let buffer = self.slots.get(usize::from(slot)).ok_or(EINVAL)?;
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
