// SPDX-License-Identifier: GPL-2.0

//! Buffers of the driver to which the peer may RDMA WRITE while they exist, under one memory
//! region.
//!
//! Registering and invalidating costs more than a small transfer, so such memory is registered
//! once. The peer may write to all of it at any time. So the driver reads it only through raw
//! pointers, and it is never the memory of a request.
//!
//! Other queue pairs of the protection domain may exist for longer than the one that this memory
//! belongs to, and reach it with the same key. So the key must be invalid before a page is freed.
//! The order of the fields guarantees this.

use super::{
    buffer::DmaBuffer,
    device::Direction,
    mr::{
        MemoryRegion,
        RemoteAddress,
        Rights,
        REGION_PAGE, //
    },
    pd::ProtectionDomain,
    wr::Register, //
};
use crate::bindings;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// Buffers to which the peer may write: see the module.
///
/// # Invariants
///
/// `region` covers `buffers`, which all have the same length, one after the other.
pub(crate) struct ExposedBuffers {
    // Dropped first: this ends the peer's access before the buffers are freed.
    region: MemoryRegion,
    buffers: KVec<DmaBuffer>,
    remote: RemoteAddress,
    /// Whether the `sync` calls have an effect on any of the buffers.
    syncs: bool,
}

impl ExposedBuffers {
    /// Allocates `count` zeroed buffers of `1 << order` pages; `cookie` becomes the upper half of
    /// the address that the peer uses. May sleep.
    pub(crate) fn new(
        pd: &Arc<ProtectionDomain>,
        count: usize,
        order: u32,
        cookie: u32,
    ) -> Result<Self> {
        let entries = u32::try_from(count)?;
        let mut table = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            table.push(pin_init::zeroed(), GFP_KERNEL)?;
        }
        if count == 0 {
            return Err(EINVAL);
        }
        // SAFETY: The table has an entry for each buffer, so there is one to mark as the last.
        unsafe { bindings::sg_init_table(table.as_mut_ptr(), entries) };
        let mut buffers = KVec::with_capacity(count, GFP_KERNEL)?;
        for place in table.iter_mut() {
            let buffer = DmaBuffer::new(pd, order, Direction::FromDevice)?;
            let slice = buffer.slice(0, buffer.len());
            // SAFETY: `place` is an initialised entry of the table.
            unsafe { bindings::hcablk_c_sg_set_dma(place, slice.address(), slice.length()) };
            buffers.push(buffer, GFP_KERNEL)?;
        }
        let pages = (count * (PAGE_SIZE << order)).div_ceil(REGION_PAGE as usize);
        let mut region = MemoryRegion::new(pd, u32::try_from(pages)?)?;
        // SAFETY: All entries were set to buffers that are mapped for the device of `pd`.
        unsafe { region.map(table.as_mut_ptr(), entries, cookie)? };
        let remote = region.keep(Rights::RemoteWrite)?;
        // INVARIANT: The region was mapped over all buffers, in their order.
        Ok(Self {
            region,
            syncs: buffers.iter().any(DmaBuffer::syncs),
            buffers,
            remote,
        })
    }

    /// Returns the work request that registers the memory for the peer's writes. Post it once,
    /// before the peer gets the key; the registration ends with the object.
    /// Fails with `ENODEV` after [`Self::sever`].
    pub(crate) fn register(&self) -> Result<Register<'_>> {
        self.region.kept(Rights::RemoteWrite)
    }

    /// Ends the peer's access and unmaps the buffers; their memory stays. The conditions of
    /// [`MemoryRegion::sever`] apply; if that fails, the buffers stay mapped. Sleeps.
    pub(crate) fn sever(&self) -> Result {
        self.region.sever()?;
        DmaBuffer::sever_all(|| self.buffers.iter());
        Ok(())
    }

    /// Returns the address and key of the first byte.
    #[inline]
    pub(crate) fn remote(&self) -> RemoteAddress {
        self.remote
    }

    /// Returns whether the buffers' `sync_for_cpu` and `sync_for_device` have an effect.
    #[inline]
    pub(crate) fn syncs(&self) -> bool {
        self.syncs
    }

    /// Returns the buffers.
    #[inline]
    pub(crate) fn buffers(&self) -> &[DmaBuffer] {
        &self.buffers
    }
}
