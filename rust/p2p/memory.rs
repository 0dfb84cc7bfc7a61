// SPDX-License-Identifier: GPL-2.0

//! Memory of a PCI device, in pieces of one size.
//!
//! A drive's DMA goes to a piece through [`PeerMemory::range`]. An HCA that does
//! DMA among PCI devices is given [`PeerMemory::entry`]; for one that does not
//! (soft-RoCE and siw have no DMA of their own) a processor copies to and from
//! RAM, by the accessors for I/O memory: though there is a kernel address, plain
//! loads and stores are not for memory behind a bus.

use super::Provider;
use crate::{
    bindings,
    pages::PageRange,
    rdma::{
        buffer::DmaBuffer,
        device::Direction,
        mapped,
        pd::ProtectionDomain,
        wr::Entry, //
    },
    sync::Event,
};
use core::{
    ffi::c_void,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Whether a processor must copy between peer memory and the HCA of `pd`: it
/// cannot do DMA there. C: `ib_dma_pci_p2p_dma_supported()`.
pub fn must_copy(pd: &ProtectionDomain) -> bool {
    // SAFETY: The domain keeps its device.
    !unsafe { bindings::hcablk_c_ib_peers(pd.device()) }
}

/// # Invariants
///
/// `start` is the kernel's address of memory that `pci_alloc_p2pmem` gave,
/// `page` its first page.
struct Piece {
    start: NonNull<c_void>,
    page: NonNull<bindings::page>,
}

/// How an HCA addresses the pieces.
///
/// # Invariants
///
/// The first `mapped` entries of `table` are mapped one by one for the device of `pd`.
struct Mapping {
    table: KVec<bindings::scatterlist>,
    addresses: KVec<u64>,
    mapped: usize,
    pd: Arc<ProtectionDomain>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        for sg in self.table.iter_mut().take(self.mapped) {
            // SAFETY: By the type's invariant.
            unsafe {
                bindings::hcablk_c_ib_dma_unmap_sg(
                    self.pd.device(),
                    sg,
                    1,
                    Direction::Bidirectional.as_raw(),
                )
            };
            mapped::remove();
        }
    }
}

/// See the module. The last reference gives everything back, in any context,
/// and then sets the event.
///
/// # Invariants
///
/// Each of `pieces` has `piece_bytes` bytes of `provider` and is ours.
pub struct PeerMemory {
    pieces: KVec<Piece>,
    piece_bytes: usize,
    mapping: Option<Mapping>,
    provider: Arc<Provider>,
    returned: Arc<Returned>,
}

/// All of a loan's memory has been given back.
#[pin_data]
pub(super) struct Returned {
    #[pin]
    pub(super) event: Event,
}

// SAFETY: Pieces are memory that only drives, HCAs and copies reach.
unsafe impl Send for PeerMemory {}
// SAFETY: Shared references give ranges, entries and copies of raw memory.
unsafe impl Sync for PeerMemory {}

impl PeerMemory {
    /// Takes as much as there is, up to `count` pieces of `piece_bytes` bytes,
    /// whole pages, and maps it for the HCA of `pd`, if there is one. Sleeps.
    ///
    /// Errors: `ENOMEM` (not even one piece, or no memory to keep the books),
    /// `EIO` (the HCA cannot reach it).
    pub(super) fn take(
        provider: &Arc<Provider>,
        count: usize,
        piece_bytes: usize,
        pd: Option<&Arc<ProtectionDomain>>,
        returned: &Arc<Returned>,
    ) -> Result<Arc<Self>> {
        let mut memory = Self {
            pieces: KVec::with_capacity(count, GFP_KERNEL)?,
            piece_bytes,
            mapping: None,
            provider: provider.clone(),
            returned: returned.clone(),
        };
        while memory.pieces.len() < count {
            // SAFETY: The device is valid; without memory to lend it gives none.
            let start = unsafe { bindings::pci_alloc_p2pmem(provider.as_raw(), piece_bytes) };
            let Some(start) = NonNull::new(start) else {
                break;
            };
            // SAFETY: What was given has pages in the kernel's direct mapping.
            let page = unsafe { bindings::hcablk_c_virt_to_page(start.as_ptr()) };
            let piece = Piece {
                start,
                page: NonNull::new(page).ok_or(EIO)?,
            };
            // There is room. INVARIANT: It was given just now.
            let _ = memory.pieces.push_within_capacity(piece);
        }
        if memory.pieces.is_empty() {
            return Err(ENOMEM);
        }
        if let Some(pd) = pd {
            memory.map(pd)?;
        }
        Ok(Arc::new(memory, GFP_KERNEL)?)
    }

    fn map(&mut self, pd: &Arc<ProtectionDomain>) -> Result {
        let count = self.pieces.len();
        let mapping = self.mapping.insert(Mapping {
            table: KVec::with_capacity(count, GFP_KERNEL)?,
            addresses: KVec::with_capacity(count, GFP_KERNEL)?,
            mapped: 0,
            pd: pd.clone(),
        });
        for piece in self.pieces.iter() {
            mapping.table.push(pin_init::zeroed(), GFP_KERNEL)?;
            let sg = mapping.table.last_mut().ok_or(ENOMEM)?;
            // SAFETY: The entry stays where it is, since the table has the
            // capacity; the piece is ours. A list is the only form in which
            // peer memory can be mapped.
            let mapped = unsafe {
                bindings::hcablk_c_sg_of_page(sg, piece.page.as_ptr(), self.piece_bytes as u32);
                bindings::hcablk_c_ib_dma_map_sg(
                    pd.device(),
                    sg,
                    1,
                    Direction::Bidirectional.as_raw(),
                )
            };
            if mapped != 1 {
                return Err(EIO);
            }
            mapped::add();
            // INVARIANT: Mapped just now.
            mapping.mapped += 1;
            let mut length = 0;
            // SAFETY: The entry is mapped.
            let address = unsafe { bindings::hcablk_c_sg_dma(sg, &mut length) };
            mapping.addresses.push(address, GFP_KERNEL)?;
        }
        Ok(())
    }

    /// How many pieces there are.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.pieces.len() * self.piece_bytes
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether an HCA can be given [`Self::entry`].
    #[inline]
    pub fn is_mapped(&self) -> bool {
        self.mapping.is_some()
    }

    /// `length` bytes of a piece from `offset`, for a drive; cut off at its end.
    #[inline]
    pub fn range(&self, piece: u16, offset: usize, length: usize) -> Option<PageRange<'_>> {
        let found = self.pieces.get(usize::from(piece))?;
        // SAFETY: The pages are the piece's by its invariant, and as long as `self`.
        let whole = unsafe { PageRange::of(found.page, self.piece_bytes) };
        Some(whole.part(offset, length))
    }

    /// `length` bytes of a piece from `offset`, for the HCA that it is mapped for;
    /// cut off at its end.
    #[inline]
    pub fn entry(&self, piece: u16, offset: usize, length: usize) -> Option<Entry> {
        let mapping = self.mapping.as_ref()?;
        let address = *mapping.addresses.get(usize::from(piece))?;
        let offset = offset.min(self.piece_bytes);
        let length = length.min(self.piece_bytes - offset) as u32;
        Some(Entry::mapped(
            address + offset as u64,
            length,
            mapping.pd.lkey(),
        ))
    }

    /// `length` bytes from `offset` of a piece and of the RAM beside it: where
    /// both are, and how much there is of both.
    fn shared(
        &self,
        piece: u16,
        ram: &DmaBuffer,
        offset: usize,
        length: usize,
    ) -> Option<(*mut c_void, *mut c_void, usize)> {
        let start = self.pieces.get(usize::from(piece))?.start;
        let size = self.piece_bytes.min(ram.len());
        let offset = offset.min(size);
        let ram = ram.pages().as_mut_ptr();
        // SAFETY: Both have `size` bytes.
        let (piece, ram) = unsafe { (start.as_ptr().cast::<u8>().add(offset), ram.add(offset)) };
        Some((piece.cast(), ram.cast(), length.min(size - offset)))
    }

    /// Copies `length` bytes from `offset` of a piece to the same place in RAM. Any
    /// context; for as long as the bus takes. C: `memcpy_fromio()`.
    pub fn copy_out(&self, piece: u16, ram: &DmaBuffer, offset: usize, length: usize) {
        if let Some((start, to, length)) = self.shared(piece, ram, offset, length) {
            // SAFETY: Both have so many bytes and are alive.
            unsafe { bindings::hcablk_c_memcpy_fromio(to, start, length) };
        }
    }

    /// Copies `length` bytes from `offset` of RAM to the same place in a piece. Any
    /// context; for as long as the bus takes. C: `memcpy_toio()`.
    ///
    /// What another device reads there afterwards is what was copied: writes
    /// may be on their way for a while, but a read does not overtake them.
    pub fn copy_in(&self, piece: u16, ram: &DmaBuffer, offset: usize, length: usize) {
        if let Some((start, from, length)) = self.shared(piece, ram, offset, length) {
            // SAFETY: Both have so many bytes and are alive; a piece has at least one.
            unsafe {
                bindings::hcablk_c_memcpy_toio(start, from, length);
                bindings::hcablk_c_readb(start);
            }
        }
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        drop(self.mapping.take());
        for piece in self.pieces.iter() {
            // SAFETY: By the type's invariant; nobody can reach it any more. Its
            // provider cannot have gone: it waits for the event.
            unsafe {
                bindings::pci_free_p2pmem(
                    self.provider.as_raw(),
                    piece.start.as_ptr(),
                    self.piece_bytes,
                )
            };
        }
        self.returned.event.set();
    }
}
