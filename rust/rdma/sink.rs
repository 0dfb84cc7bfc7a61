// SPDX-License-Identifier: GPL-2.0

//! The sink of an RDMA READ, for devices that do not take plain mapped memory
//! there.
//!
//! In iWARP the sink is named to the peer, which sends the data to it: the sink must be one entry,
//! in a region that is registered with remote write access. So that this access ends with the READ,
//! three work requests belong together and are posted as one chain:
//!
//! ```text
//!  map() ──► REG_MR ──► RDMA READ ──► LOCAL_INV, fenced ──completed()──► (map() again)
//! ```
//!
//! The fence makes the invalidation wait for the READ's data. When the invalidation completes, the
//! data has arrived and the peer has no access any more, so the memory can be read: not earlier, or
//! the peer could still change it.
//!
//! For tests, other devices can work in the same way, then without remote access.

use super::{
    buffer::DmaBuffer,
    cq::Success,
    mr::{
        MemoryRegion,
        Rights,
        REGION_PAGE, //
    },
    pd::ProtectionDomain,
    wr::{
        Invalidate,
        Register,
        Sge,
        WorkRequest, //
    },
};
use crate::bindings;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A memory region that is laid over buffers for one RDMA READ at a time.
pub struct Sink {
    table: KVec<bindings::scatterlist>,
    region: MemoryRegion,
    rights: Rights,
    /// Bytes that the region covers.
    length: u32,
    pd: Arc<ProtectionDomain>,
}

/// Work requests that register a sink and invalidate its key: to be posted in
/// this order with the RDMA READ between them.
pub struct SinkRegistration<'a> {
    /// Posted before the READ.
    pub register: Register<'a>,
    /// The READ's only entry.
    pub sge: Sge,
    /// Posted after the READ; waits for it.
    pub invalidate: Invalidate,
}

impl Sink {
    /// Makes a sink for up to `pieces` buffers, at least one, and `bytes` bytes.
    /// May sleep.
    pub fn new(pd: &Arc<ProtectionDomain>, pieces: usize, bytes: u32) -> Result<Self> {
        if pieces == 0 {
            return Err(EINVAL);
        }
        let mut table = KVec::with_capacity(pieces, GFP_KERNEL)?;
        for _ in 0..pieces {
            table.push(pin_init::zeroed(), GFP_KERNEL)?;
        }
        // SAFETY: The table has `pieces` entries, so there is one to mark as the last.
        unsafe { bindings::sg_init_table(table.as_mut_ptr(), u32::try_from(pieces)?) };
        Ok(Self {
            table,
            region: MemoryRegion::new(pd, Self::pages(bytes))?,
            rights: if pd.is_iwarp() {
                Rights::RemoteWrite
            } else {
                Rights::LocalWrite
            },
            length: 0,
            pd: pd.clone(),
        })
    }

    /// Returns how many pages a region for `bytes` bytes has, which the device must be able to
    /// register.
    pub const fn pages(bytes: u32) -> u32 {
        bytes.div_ceil(REGION_PAGE)
    }

    /// Lays the region over the first bytes of each buffer, in this order; all
    /// but the last must be whole pages. `cookie` becomes part of the address
    /// that the peer sees. `EBUSY` while it is in use. The buffers are
    /// [exposed](DmaBuffer::is_exposed) from here on.
    #[inline]
    pub fn map<'a>(
        &mut self,
        pieces: impl Iterator<Item = (&'a DmaBuffer, usize)>,
        cookie: u32,
    ) -> Result {
        let mut count = 0;
        let mut total = 0;
        for (buffer, length) in pieces {
            let place = self.table.get_mut(count).ok_or(EINVAL)?;
            if !buffer.is_of(&self.pd) {
                return Err(EINVAL);
            }
            buffer.expose();
            let slice = buffer.slice(0, length);
            // SAFETY: `place` is an initialised entry of the table.
            unsafe { bindings::hcablk_c_sg_set_dma(place, slice.address, slice.length) };
            count += 1;
            total += slice.length;
        }
        // SAFETY: The first `count` entries were just set to pieces of buffers
        // that are mapped for the device of `pd`, which is the region's.
        unsafe {
            self.region
                .map(self.table.as_mut_ptr(), count as u32, cookie)?
        };
        self.length = total;
        Ok(())
    }

    /// Returns the work requests around the RDMA READ. `EINVAL` without [`Self::map`].
    #[inline]
    pub fn register(&mut self) -> Result<SinkRegistration<'_>> {
        let length = self.length;
        let (register, mut invalidate, address, key) = self.region.register_once(self.rights)?;
        invalidate.fence();
        Ok(SinkRegistration {
            register,
            sge: Sge::in_region(address, length, key),
            invalidate,
        })
    }

    /// Returns whether the region may still be valid: [`Self::register`] was called, and
    /// [`Self::completed`] was not.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.region.is_registered()
    }

    /// Records that the invalidation has completed, so that the sink, which is laid over `buffers`,
    /// can be mapped again. `_proof` is that completion's, or that of a later work request of the
    /// same queue.
    #[inline]
    pub fn completed<'a>(&mut self, _proof: Success, buffers: impl Iterator<Item = &'a DmaBuffer>) {
        self.region.invalidated();
        buffers.for_each(DmaBuffer::conceal);
    }
}
