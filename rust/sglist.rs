// SPDX-License-Identifier: GPL-2.0

//! Makes a request's physical memory accessible to the peer: the request's own segments, mapped for
//! the HCA and registered for this request and its direction. No byte of data is touched.
//!
//! ```text
//!  Empty ──map()──► Mapped ──register()──► Registered ──┬─ invalidated_by_peer() ─┬─► Mapped
//!    ▲                │                                 └─ invalidate(), then     │
//!    └───release()────┘                                    invalidated() ─────────┘
//! ```
//!
//! [`SegmentList::release`] is refused while the peer may have access. Until it succeeds the
//! request is [`HeldRequest`]: it cannot be ended.

use crate::{
    bindings,
    blkdev::{
        HeldRequest,
        RequestRef, //
    },
    rdma::faults,
    rdma::{
        cq::Success,
        device::Direction,
        mapped,
        mr::{
            MemoryRegion,
            RemoteAddress,
            Rights, //
        },
        pd::ProtectionDomain,
        wr::{
            Invalidate,
            Register,
            Sge, //
        },
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The physical segments of one request at a time, with the memory region that
/// shows them to the peer. Allocated once for each tag.
///
/// # Invariants
///
/// If `mapped` is not 0, the first `filled` entries of `table` are mapped in
/// `direction` for the device of `pd`, and `held` is of the request that they are of. If `filled`
/// is 0, the first entry was mapped by `hcablk_c_ib_dma_map_only()`, otherwise all of them by
/// `ib_dma_map_sg()`.
pub struct SegmentList {
    table: KVec<bindings::scatterlist>,
    filled: u32,
    mapped: u32,
    held: Option<HeldRequest>,
    direction: Direction,
    /// `None` after [`SegmentList::revoke`].
    region: Option<MemoryRegion>,
    pd: Arc<ProtectionDomain>,
}

// SAFETY: The scatterlist's pointers are to pages, which may be used from any thread.
unsafe impl Send for SegmentList {}

impl SegmentList {
    /// Makes room for requests of up to `segments` segments and `bytes` bytes.
    /// May sleep.
    pub fn new(pd: &Arc<ProtectionDomain>, segments: u16, bytes: u32) -> Result<Self> {
        let mut table = KVec::with_capacity(segments.into(), GFP_KERNEL)?;
        for _ in 0..segments {
            table.push(pin_init::zeroed(), GFP_KERNEL)?;
        }
        Ok(Self {
            table,
            filled: 0,
            mapped: 0,
            held: None,
            direction: Direction::ToDevice,
            region: Some(MemoryRegion::new(pd, region_pages(bytes))?),
            pd: pd.clone(),
        })
    }

    /// Takes the request's segments, maps them for the HCA and lays the region
    /// over them. Any context. Errors leave the list empty.
    #[inline]
    pub fn map(&mut self, request: RequestRef<'_>, direction: Direction, cookie: u32) -> Result {
        self.map_local(request, direction)?;
        let table = self.table.as_mut_ptr();
        let result = match self.region.as_mut() {
            // SAFETY: The first `mapped` entries are mapped for the region's device.
            Some(region) => unsafe { region.map(table, self.mapped, cookie) },
            None => Err(EINVAL),
        };
        if result.is_err() {
            self.unmap();
        }
        result
    }

    /// Takes the request's segments and maps them for the HCA; the peer cannot
    /// reach them. Any context. Errors leave the list empty.
    #[inline]
    pub fn map_local(&mut self, request: RequestRef<'_>, direction: Direction) -> Result {
        let segments = request.segments();
        if self.mapped != 0 || segments == 0 || usize::from(segments) > self.table.len() {
            return Err(EINVAL);
        }
        if faults::map() {
            return Err(ENOMEM);
        }
        let (filled, mapped) = match segments {
            1 => self.map_only(request, direction)?,
            _ => self.map_table(request, direction)?,
        };
        mapped::add();
        // INVARIANT: Mapped just now.
        self.filled = filled;
        self.mapped = mapped;
        self.held = Some(HeldRequest::hold(request));
        self.direction = direction;
        Ok(())
    }

    /// Maps the request's one segment. Returns what `filled` and `mapped` become.
    #[inline]
    fn map_only(&mut self, request: RequestRef<'_>, direction: Direction) -> Result<(u32, u32)> {
        // SAFETY: The request has one segment of data, and the table room for it; nothing is
        // mapped.
        let result = unsafe {
            bindings::hcablk_c_ib_dma_map_only(
                self.pd.device(),
                request.as_raw(),
                self.table.as_mut_ptr(),
                direction.as_raw(),
            )
        };
        match result {
            0 => self.map_table(request, direction),
            1 => Ok((0, 1)),
            _ => Err(ENOMEM),
        }
    }

    /// Maps the request's segments, for which the table has room. Returns what `filled` and
    /// `mapped` become.
    fn map_table(&mut self, request: RequestRef<'_>, direction: Direction) -> Result<(u32, u32)> {
        let table = self.table.as_mut_ptr();
        // SAFETY: The table has room for the request's segments; `sg_init_table`
        // marks the end that blk_rq_map_sg() moves.
        let filled = unsafe {
            bindings::sg_init_table(table, request.segments().into());
            bindings::hcablk_c_blk_rq_map_sg(request.as_raw(), table)
        };
        if filled <= 0 {
            return Err(EIO);
        }
        // SAFETY: The entries were just filled with the request's pages.
        let mapped = unsafe {
            bindings::hcablk_c_ib_dma_map_sg(self.pd.device(), table, filled, direction.as_raw())
        };
        if mapped <= 0 {
            return Err(ENOMEM);
        }
        Ok((filled as u32, mapped as u32))
    }

    /// Puts the mapped segments into `sges`, and returns their number; `None`: there is no room.
    #[inline]
    pub fn sges(&mut self, sges: &mut [Sge]) -> Option<usize> {
        let mapped = self.mapped as usize;
        let sges = sges.get_mut(..mapped)?;
        let lkey = self.pd.lkey();
        for (sg, sge) in self.table.iter_mut().zip(sges) {
            let mut length = 0;
            // SAFETY: The first `mapped` entries are.
            let address = unsafe { bindings::hcablk_c_sg_dma(sg, &mut length) };
            *sge = Sge::mapped(address, length, lkey);
        }
        Some(mapped)
    }

    /// Returns the mapped segment if it is the only one.
    #[inline(always)]
    pub fn only(&mut self) -> Option<Sge> {
        if self.mapped != 1 {
            return None;
        }
        let sg = self.table.first_mut()?;
        let mut length = 0;
        // SAFETY: The first entry is mapped.
        let address = unsafe { bindings::hcablk_c_sg_dma(sg, &mut length) };
        Some(Sge::mapped(address, length, self.pd.lkey()))
    }

    /// Puts mapped segments from number `first` on into `sges`, as many as there is room for;
    /// returns their number and their bytes.
    #[inline]
    pub fn part(&mut self, first: usize, sges: &mut [Sge]) -> (usize, u32) {
        let lkey = self.pd.lkey();
        let (mut count, mut bytes) = (0, 0);
        let mapped = self.table.iter_mut().take(self.mapped as usize);
        for (sg, sge) in mapped.skip(first).zip(sges) {
            let mut length = 0;
            // SAFETY: The first `mapped` entries are.
            let address = unsafe { bindings::hcablk_c_sg_dma(sg, &mut length) };
            *sge = Sge::mapped(address, length, lkey);
            count += 1;
            bytes += length;
        }
        (count, bytes)
    }

    /// Returns the REG_MR that lets the peer reach the memory, and the address and key for the
    /// peer.
    #[inline]
    pub fn register(&mut self) -> Result<(Register<'_>, RemoteAddress)> {
        let rights = match self.direction {
            Direction::ToDevice => Rights::RemoteRead,
            _ => Rights::RemoteWrite,
        };
        self.region.as_mut().ok_or(EINVAL)?.register(rights)
    }

    /// Records that the peer has invalidated `rkey`. Returns `false` if that is not this list's
    /// key.
    #[inline]
    pub fn invalidated_by_peer(&mut self, rkey: u32) -> bool {
        self.region
            .as_mut()
            .is_some_and(|region| region.invalidated_by_peer(rkey))
    }

    /// Returns the LOCAL_INV that ends the peer's access.
    #[inline]
    pub fn invalidate(&mut self) -> Result<Invalidate> {
        Ok(self.region.as_mut().ok_or(EINVAL)?.invalidate())
    }

    /// Records that the peer has no access, since [`Self::invalidate`]'s work request has
    /// completed. `_proof` is that completion's, or that of a later work request of the same queue.
    /// Fails with `EINVAL` without [`Self::invalidate`].
    #[inline]
    pub fn invalidated(&mut self, _proof: Success) -> Result {
        match &mut self.region {
            Some(region) if region.is_invalidating() => {
                region.invalidated();
                Ok(())
            }
            _ => Err(EINVAL),
        }
    }

    /// Ends the peer's access for good, by destroying the region: after the connection was lost, in
    /// any state of its queue pair. The list cannot be used again. Process context, sleeps.
    ///
    /// If the device refuses, the peer may have access as before: then [`Self::release`] keeps
    /// failing, and the request must never be ended.
    pub fn revoke(&mut self) {
        let refused = self.region.take().map(MemoryRegion::revoke);
        if let Some(Err(region)) = refused {
            // Otherwise the region allows no access, and its drop logs any failure.
            self.region = Some(region).filter(MemoryRegion::is_registered);
        }
    }

    /// Returns whether the peer may have access.
    #[inline]
    pub fn is_registered(&self) -> bool {
        self.region
            .as_ref()
            .is_some_and(MemoryRegion::is_registered)
    }

    /// Returns how many segments are mapped; 0 when the request has no data.
    pub fn mapped(&self) -> u32 {
        self.mapped
    }

    /// Releases the memory to the request. Fails with `EBUSY` while the peer may reach it.
    #[inline]
    pub fn release(&mut self) -> Result {
        if self.is_registered() {
            return Err(EBUSY);
        }
        // A region that was mapped and never registered must be mapped again.
        if let Some(region) = &mut self.region {
            region.invalidated();
        }
        self.unmap();
        Ok(())
    }

    #[inline]
    fn unmap(&mut self) {
        if self.mapped == 0 {
            return;
        }
        let (device, table) = (self.pd.device(), self.table.as_mut_ptr());
        let direction = self.direction.as_raw();
        match self.filled {
            // SAFETY: By the type's invariant the first entry is mapped so.
            0 => unsafe { bindings::hcablk_c_ib_dma_unmap_only(device, table, direction) },
            // SAFETY: By the type's invariant the entries are mapped so.
            filled => unsafe {
                bindings::hcablk_c_ib_dma_unmap_sg(device, table, filled as i32, direction)
            },
        }
        mapped::remove();
        // INVARIANT: Nothing is mapped.
        self.mapped = 0;
        self.held = None;
    }
}

impl Drop for SegmentList {
    fn drop(&mut self) {
        // The peer's access ends before the mapping does: other queue pairs of the protection
        // domain may outlive this list, and reach it with the same key.
        self.revoke();
        if self.is_registered() {
            // The request is never ended.
            core::mem::forget(self.held.take());
        } else {
            self.unmap();
        }
    }
}

/// Returns how many pages a region has for `bytes` bytes that begin anywhere in a page.
pub const fn region_pages(bytes: u32) -> u32 {
    bytes.div_ceil(crate::rdma::mr::REGION_PAGE) + 1
}
