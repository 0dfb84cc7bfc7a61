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
//!
//! # The write bounce slot
//!
//! Behind an IOMMU that translates, mapping and unmapping a page costs more than copying it: both
//! change page tables, and the unmapping makes the IOMMU forget the translation, at once or later.
//! A list may therefore have a *write bounce slot*: a page that stays mapped for the HCA, into
//! which [`SegmentList::map_or_copy`] copies the data of a write of up to [`SLOT_BYTES`] bytes. The
//! list is then in the state *Copied*, which differs from *Mapped* in that nothing is mapped or
//! unmapped, and that it cannot be registered: no peer ever has a key to a slot. Its request is
//! `HeldRequest` like any other, although the HCA does not reach the request's memory: when the
//! request ends, its tag, and with it the slot, serves the next request.

use crate::{
    bindings,
    blkdev::{
        HeldRequest,
        RequestRef, //
    },
    rdma::faults,
    rdma::{
        buffer::DmaBuffer,
        cq::Success,
        device::Direction,
        mapped,
        mr::{
            MemoryRegion,
            RemoteAddress,
            Rights, //
        },
        pd::{
            DomainUse,
            ProtectionDomain, //
        },
        wr::{
            Invalidate,
            Register,
            Sge, //
        },
    },
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// log2 of the pages of a write bounce slot.
const SLOT_ORDER: u32 = 0;
/// Bytes of the largest write that is copied into a write bounce slot.
const SLOT_BYTES: u32 = (PAGE_SIZE << SLOT_ORDER) as u32;
// The size that documents and counters state. Larger pages would also cost more memory for each
// tag.
const _: () = assert!(SLOT_BYTES == 4096);

/// The physical segments of one request at a time, with the memory region that
/// shows them to the peer. Allocated once for each tag.
///
/// # Invariants
///
/// The memory of `mapping` is mapped for the device of `pd` in `direction`. Unless it is `Nothing`,
/// `held` is of the request that it belongs to, or whose data was copied.
pub struct SegmentList {
    table: KVec<bindings::scatterlist>,
    mapping: Mapping,
    held: Option<HeldRequest>,
    direction: Direction,
    /// `None` after [`SegmentList::revoke`].
    region: Option<MemoryRegion>,
    /// The write bounce slot.
    slot: Option<DmaBuffer>,
    pd: DomainUse,
}

/// The memory that a [`SegmentList`] has mapped for the HCA.
#[derive(Clone, Copy)]
enum Mapping {
    Nothing,
    /// Nothing but the slot, whose first `length` bytes are the data.
    Copied {
        address: u64,
        length: u32,
    },
    /// The only segment, as one range of pages.
    Range {
        address: u64,
        length: u32,
    },
    /// All segments, by `ib_dma_map_sg()`: it was given `filled` entries of the table, and has
    /// joined them to `mapped` ones.
    Table {
        filled: i32,
        mapped: u32,
    },
}

// SAFETY: The scatterlist's pointers are to pages, which may be used from any thread.
unsafe impl Send for SegmentList {}

impl SegmentList {
    /// Creates a list for requests of up to `segments` segments and `bytes` bytes. May sleep.
    pub fn new(pd: &Arc<ProtectionDomain>, segments: u16, bytes: u32) -> Result<Self> {
        let mut table = KVec::with_capacity(segments.into(), GFP_KERNEL)?;
        for _ in 0..segments {
            table.push(pin_init::zeroed(), GFP_KERNEL)?;
        }
        Ok(Self {
            table,
            mapping: Mapping::Nothing,
            held: None,
            direction: Direction::ToDevice,
            region: Some(MemoryRegion::new(pd, region_pages(bytes))?),
            slot: None,
            pd: pd.begin_use()?,
        })
    }

    /// Allocates the list's write bounce slot, and maps it. Without memory for it the list has
    /// none, and maps writes: a reconnection must not fail, or take the kernel's reserve, for it.
    /// May sleep.
    pub fn add_slot(&mut self) {
        let slot = DmaBuffer::new_if_plenty(self.pd.domain(), SLOT_ORDER, Direction::ToDevice);
        self.slot = slot.ok();
    }

    /// Takes the request's segments, maps them for the HCA and lays the region
    /// over them. Any context. Errors leave the list empty.
    #[inline]
    pub fn map(&mut self, request: RequestRef<'_>, direction: Direction, cookie: u32) -> Result {
        self.map_local(request, direction)?;
        let table = self.table.as_mut_ptr();
        let entries = match self.mapping {
            Mapping::Range { address, length } => {
                // SAFETY: The table has an entry: `map_local` checks that.
                unsafe {
                    bindings::sg_init_table(table, 1);
                    bindings::hcablk_c_sg_set_dma(table, address, length);
                }
                1
            }
            _ => self.mapped(),
        };
        let result = match self.region.as_mut() {
            // SAFETY: The first `entries` entries are mapped for the region's device.
            Some(region) => unsafe { region.map(table, entries, cookie) },
            None => Err(EINVAL),
        };
        if result.is_err() {
            self.unmap();
        }
        result
    }

    /// Makes the data of a write accessible to the HCA, which will send it; the peer cannot reach
    /// it. If the list has a slot, and the data fits, it is copied there; otherwise the request's
    /// segments are mapped. Any context. Errors leave the list empty.
    #[inline]
    pub fn map_or_copy(&mut self, request: RequestRef<'_>) -> Result {
        let bytes = request.bytes();
        let Some(slot) = self.slot.as_ref().filter(|_| bytes <= SLOT_BYTES) else {
            return self.map_local(request, Direction::ToDevice);
        };
        if !self.is_empty() {
            return Err(EINVAL);
        }
        request.copy_data_to_pages(slot.pages())?;
        slot.sync_for_device(0, bytes as usize);
        // INVARIANT: Copied just now.
        self.mapping = Mapping::Copied {
            address: slot.slice(0, bytes as usize).address(),
            length: bytes,
        };
        self.held = Some(HeldRequest::hold(request));
        Ok(())
    }

    /// Takes the request's segments and maps them for the HCA; the peer cannot
    /// reach them. Any context. Errors leave the list empty.
    #[inline]
    fn map_local(&mut self, request: RequestRef<'_>, direction: Direction) -> Result {
        let segments = request.segments();
        if !self.is_empty() || segments == 0 || usize::from(segments) > self.table.len() {
            return Err(EINVAL);
        }
        if faults::map() {
            return Err(ENOMEM);
        }
        let mapping = match segments {
            1 => self.map_range(request, direction)?,
            _ => self.map_table(request, direction)?,
        };
        mapped::add();
        // INVARIANT: Mapped just now.
        self.mapping = mapping;
        self.held = Some(HeldRequest::hold(request));
        self.direction = direction;
        Ok(())
    }

    /// Maps the request's one segment as a range of pages, which costs less than a scatterlist of
    /// one entry.
    #[inline]
    fn map_range(&mut self, request: RequestRef<'_>, direction: Direction) -> Result<Mapping> {
        let (mut address, mut length) = (0, 0);
        // SAFETY: The request has data, which stays until the request ends; the device is alive.
        let result = unsafe {
            bindings::hcablk_c_ib_dma_map_bvec(
                self.pd.device(),
                request.as_raw(),
                direction.as_raw(),
                &mut address,
                &mut length,
            )
        };
        if result != 0 {
            return Err(ENOMEM);
        }
        if length != request.bytes() {
            return self.map_bvecs(request, direction, address, length);
        }
        Ok(Mapping::Range { address, length })
    }

    /// Maps the segments of a request whose first `bio_vec`, mapped at `address`, is only a part of
    /// its only segment. Not reached on the kernels supported: `bio_split_io_at()` and
    /// `ll_new_hw_segment()` count a segment for each `bio_vec`, even if it continues the last one.
    #[cold]
    #[inline(never)]
    fn map_bvecs(
        &mut self,
        request: RequestRef<'_>,
        direction: Direction,
        address: u64,
        length: u32,
    ) -> Result<Mapping> {
        // SAFETY: Mapped just now by the caller.
        unsafe { self.unmap_range(address, length, direction) };
        self.map_table(request, direction)
    }

    /// Maps the request's segments, for which the table has room.
    fn map_table(&mut self, request: RequestRef<'_>, direction: Direction) -> Result<Mapping> {
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
        match u32::try_from(mapped) {
            Ok(mapped @ 1..) => Ok(Mapping::Table { filled, mapped }),
            _ => Err(ENOMEM),
        }
    }

    /// Returns the memory if it is in one piece.
    #[inline(always)]
    pub fn only(&mut self) -> Option<Sge> {
        match self.mapping {
            Mapping::Copied { address, length } | Mapping::Range { address, length } => {
                Some(Sge::mapped(address, length, self.pd.lkey()))
            }
            Mapping::Table { mapped: 1, .. } => self.entry(0),
            Mapping::Table { .. } | Mapping::Nothing => None,
        }
    }

    /// Returns entry `index` of the table, which is mapped.
    #[inline]
    fn entry(&mut self, index: usize) -> Option<Sge> {
        let mut length = 0;
        // SAFETY: The entry is initialised.
        let address = unsafe { bindings::hcablk_c_sg_dma(self.table.get_mut(index)?, &mut length) };
        Some(Sge::mapped(address, length, self.pd.lkey()))
    }

    /// Puts all pieces of the memory into `sges`, and returns their number; `None`: there is no
    /// room.
    #[inline]
    pub fn sges(&mut self, sges: &mut [Sge]) -> Option<usize> {
        let (count, _) = self.part(0, sges);
        (count == self.mapped() as usize).then_some(count)
    }

    /// Puts pieces of the memory from number `first` on into `sges`, as many as there is room for;
    /// returns their number and their bytes.
    #[inline]
    pub fn part(&mut self, first: usize, sges: &mut [Sge]) -> (usize, u32) {
        let (mut count, mut bytes) = (0, 0);
        let all = first..self.mapped() as usize;
        for (index, sge) in all.zip(sges) {
            let Some(piece) = self.piece(index) else {
                break;
            };
            *sge = piece;
            count += 1;
            bytes += piece.length();
        }
        (count, bytes)
    }

    /// Returns piece `index` of the memory, which has more pieces than that.
    #[inline]
    fn piece(&mut self, index: usize) -> Option<Sge> {
        match self.mapping {
            Mapping::Table { .. } => self.entry(index),
            _ => self.only(),
        }
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

    /// Returns the number of pieces of the memory that the HCA reaches; 0 when the list is empty.
    #[inline]
    pub fn mapped(&self) -> u32 {
        match self.mapping {
            Mapping::Nothing => 0,
            Mapping::Copied { .. } | Mapping::Range { .. } => 1,
            Mapping::Table { mapped, .. } => mapped,
        }
    }

    /// Returns whether the list has no request's memory.
    #[inline]
    fn is_empty(&self) -> bool {
        matches!(self.mapping, Mapping::Nothing)
    }

    /// Returns whether the data was copied into the write bounce slot.
    #[inline]
    pub fn is_copied(&self) -> bool {
        matches!(self.mapping, Mapping::Copied { .. })
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
        match self.mapping {
            Mapping::Nothing => return,
            Mapping::Copied { .. } => {}
            Mapping::Range { address, length } => {
                // SAFETY: By the type's invariant it is mapped so.
                unsafe { self.unmap_range(address, length, self.direction) };
                mapped::remove();
            }
            Mapping::Table { filled, .. } => {
                // SAFETY: By the type's invariant the entries are mapped so.
                unsafe {
                    bindings::hcablk_c_ib_dma_unmap_sg(
                        self.pd.device(),
                        self.table.as_mut_ptr(),
                        filled,
                        self.direction.as_raw(),
                    )
                };
                mapped::remove();
            }
        }
        // INVARIANT: Nothing is mapped.
        self.mapping = Mapping::Nothing;
        self.held = None;
    }

    /// # Safety
    ///
    /// `hcablk_c_ib_dma_map_bvec()` has mapped this range for the device of `pd` in this direction.
    #[inline]
    unsafe fn unmap_range(&self, address: u64, length: u32, direction: Direction) {
        // SAFETY: The caller guarantees that it is mapped so.
        unsafe {
            bindings::hcablk_c_ib_dma_unmap_page(
                self.pd.device(),
                address,
                length as usize,
                direction.as_raw(),
                false,
            )
        };
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
