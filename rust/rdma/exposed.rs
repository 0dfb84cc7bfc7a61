// SPDX-License-Identifier: GPL-2.0

//! Buffers of the driver's own that the peer may RDMA WRITE to during their life, under one memory
//! region.
//!
//! Registering and invalidating costs more than a small transfer, so such memory is
//! registered once. The peer may write to all of it at any time: it is never looked
//! at but through raw pointers, and never is a request's memory.
//!
//! Other queue pairs of the protection domain outlive the one that this memory is for, and reach it
//! with the same key. The key must therefore be dead before a page is freed: the order of the
//! fields guarantees it, and the two come only together.

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

/// See the module.
///
/// # Invariants
///
/// `region` covers `buffers`, all of one length, one behind the other.
pub(crate) struct ExposedBuffers {
    // Dropped first, which ends the peer's access; the buffers are freed after that.
    region: MemoryRegion,
    buffers: KVec<DmaBuffer>,
    remote: RemoteAddress,
    /// Whether the `sync` calls do anything to any of the buffers.
    syncs: bool,
}

impl ExposedBuffers {
    /// Makes `count` zeroed buffers of `1 << order` pages; `cookie` becomes the upper half of
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
        // SAFETY: The table has as many entries, and one to mark as the last.
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
        // INVARIANT: Laid over all of them, in their order.
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

    /// Ends the peer's access and unmaps the buffers; their memory stays. On an error of
    /// [`MemoryRegion::sever`], whose conditions hold here, the buffers stay mapped. Sleeps.
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

    /// Returns whether the buffers' `sync_for_cpu` and `sync_for_device` do anything.
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
