// SPDX-License-Identifier: GPL-2.0

//! Memory of a PCI device, in pieces of one size.
//!
//! A drive gets a piece for its DMA as [`PeerMemory::range`], and an HCA that can do DMA to other
//! PCI devices as [`PeerMemory::sge`]. For other HCAs (soft-RoCE and siw have no DMA of their own)
//! a processor copies to and from RAM. It uses the accessors for I/O memory: plain loads and stores
//! are not for memory behind a bus, although that has a kernel address.

use super::Provider;
use crate::{
    bindings,
    memory::pages::PageRange,
    rdma::{
        buffer::DmaBuffer,
        device::Direction,
        mapped,
        pd::{
            DomainUse,
            ProtectionDomain, //
        },
        wr::Sge, //
    },
    report::broken::push_into_room,
    sync::Event,
};
use core::{
    ffi::c_void,
    mem::ManuallyDrop,
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    task::might_sleep, //
};

/// Returns whether a processor must copy between peer memory and the HCA of `pd`, because that
/// cannot do DMA to peer memory. C: `ib_dma_pci_p2p_dma_supported()`.
pub fn must_copy(pd: &ProtectionDomain) -> bool {
    !pd.reaches_peers()
}

/// # Invariants
///
/// `start` is the kernel's address of memory that `pci_alloc_p2pmem` has allocated, and `page` its
/// first page.
#[derive(Clone, Copy)]
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
    table: KVVec<bindings::scatterlist>,
    addresses: KVVec<u64>,
    mapped: usize,
    pd: DomainUse,
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

/// Memory of a provider, in pieces of one size; see the module.
///
/// | object | dropped by | context |
/// |---|---|---|
/// | a [`PeerMemory`], the reference of users | its last user | any, also with interrupts off |
/// | this: mappings, pieces, tables | [`PeerLease`](super::PeerLease)'s drop, or the unbinding of the provider's driver, whichever is first, when the last user has gone | process, with the mutex `LeaseState::core` held |
///
/// So dropping it may be slow, and sleeps.
///
/// # Invariants
///
/// Each of `pieces` has `piece_bytes` bytes of `provider` and is ours, or belongs to `of`, if that
/// is set.
pub struct Memory {
    pieces: KVVec<Piece>,
    piece_bytes: usize,
    mapping: Option<Mapping>,
    /// The memory to which the pieces belong, if this is a view of it.
    of: Option<Arc<PeerMemory>>,
    provider: Arc<Provider>,
}

/// All users of a lease's memory have gone.
#[pin_data]
pub(super) struct UsersGone {
    #[pin]
    pub(super) event: Event,
}

/// The users' reference to [`Memory`]. It may be dropped in any context: that frees no memory, but
/// sets the event for the lender.
///
/// # Invariants
///
/// Until `users_gone` is set, somebody in process context has a reference to `core`
/// as well, and drops it after that.
pub struct PeerMemory {
    core: ManuallyDrop<Arc<Memory>>,
    users_gone: Arc<UsersGone>,
}

impl PeerMemory {
    /// Makes the users' reference to `core`, whose lender keeps `core` until `users_gone` is set.
    pub(super) fn new(core: &Arc<Memory>, users_gone: &Arc<UsersGone>) -> Result<Arc<Self>> {
        // INVARIANT: The caller has a reference, and keeps it.
        let users = Self {
            core: ManuallyDrop::new(core.clone()),
            users_gone: users_gone.clone(),
        };
        Ok(Arc::new(users, GFP_KERNEL)?)
    }
}

impl Deref for PeerMemory {
    type Target = Memory;

    #[inline]
    fn deref(&self) -> &Memory {
        &self.core
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        // SAFETY: It is not used after this. By the invariant it is not the last reference before
        // the event is set, so it is dropped before that.
        unsafe { ManuallyDrop::drop(&mut self.core) };
        self.users_gone.event.set();
    }
}

// SAFETY: Pieces are memory that only drives, HCAs and copies reach.
unsafe impl Send for Memory {}
// SAFETY: Shared references give ranges, entries and copies of raw memory.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `count` pieces of `piece_bytes` bytes, a multiple of the page size, or fewer if
    /// the provider has no more. Maps them for the HCA of `pd`, if that is given. Sleeps.
    ///
    /// Errors: `ENOMEM` (not even one piece, or no memory for the tables), `EIO` (the HCA cannot
    /// reach it).
    pub(super) fn take(
        provider: &Arc<Provider>,
        count: usize,
        piece_bytes: usize,
        pd: Option<&Arc<ProtectionDomain>>,
    ) -> Result<Arc<Self>> {
        let mut memory = Self {
            pieces: KVVec::with_capacity(count, GFP_KERNEL)?,
            piece_bytes,
            mapping: None,
            of: None,
            provider: provider.clone(),
        };
        while memory.pieces.len() < count {
            // SAFETY: The device is valid; without memory to lend, the call returns null.
            let start = unsafe { bindings::pci_alloc_p2pmem(provider.as_raw(), piece_bytes) };
            let Some(start) = NonNull::new(start) else {
                break;
            };
            // SAFETY: The allocated memory has pages in the kernel's direct mapping.
            let page = unsafe { bindings::hcablk_c_virt_to_page(start.as_ptr()) };
            let piece = Piece {
                start,
                page: NonNull::new(page).ok_or(EIO)?,
            };
            // The vector has room. INVARIANT: The piece was allocated just now.
            push_into_room(
                &mut memory.pieces,
                piece,
                "a piece of peer memory has no place",
            );
        }
        if memory.pieces.is_empty() {
            return Err(ENOMEM);
        }
        if let Some(pd) = pd {
            memory.map(pd)?;
        }
        Ok(Arc::new(memory, GFP_KERNEL)?)
    }

    /// Maps the same memory for the HCA of `pd`, too: if several HCAs use the same memory, each has
    /// a view of it. Sleeps.
    ///
    /// Errors: `ENOMEM`, `EIO` (the HCA cannot reach it).
    pub(super) fn view(of: Arc<PeerMemory>, pd: &Arc<ProtectionDomain>) -> Result<Arc<Self>> {
        let mut pieces = KVVec::with_capacity(of.pieces.len(), GFP_KERNEL)?;
        pieces.extend_from_slice(&of.pieces, GFP_KERNEL)?;
        // INVARIANT: The pieces are those of `of`.
        let mut view = Self {
            pieces,
            piece_bytes: of.piece_bytes,
            mapping: None,
            provider: of.provider.clone(),
            of: Some(of),
        };
        view.map(pd)?;
        Ok(Arc::new(view, GFP_KERNEL)?)
    }

    fn map(&mut self, pd: &Arc<ProtectionDomain>) -> Result {
        let count = self.pieces.len();
        let mapping = self.mapping.insert(Mapping {
            table: KVVec::with_capacity(count, GFP_KERNEL)?,
            addresses: KVVec::with_capacity(count, GFP_KERNEL)?,
            mapped: 0,
            pd: pd.begin_use()?,
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

    /// Returns how many pieces there are.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the bytes of all pieces.
    pub fn len(&self) -> usize {
        self.pieces.len() * self.piece_bytes
    }

    /// Returns whether there are none: never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns whether the memory is mapped for an HCA, so that [`Self::sge`] works.
    #[inline]
    pub fn is_mapped(&self) -> bool {
        self.mapping.is_some()
    }

    /// Returns whether the memory is on the same device as `other`: a drive then accepts both in
    /// one request.
    #[inline]
    pub fn is_on_same_device(&self, other: &Self) -> bool {
        self.provider.as_raw() == other.provider.as_raw()
    }

    fn piece(&self, piece: impl Into<u32>) -> Option<&Piece> {
        self.pieces.get(piece.into() as usize)
    }

    /// Returns `length` bytes of a piece from `offset`, for a drive, cut off at its end.
    #[inline]
    pub fn range(
        &self,
        piece: impl Into<u32>,
        offset: usize,
        length: usize,
    ) -> Option<PageRange<'_>> {
        let found = self.piece(piece)?;
        // SAFETY: The pages are the piece's by its invariant, and live as long as `self`.
        let whole = unsafe { PageRange::first_bytes(found.page, self.piece_bytes) };
        Some(whole.part(offset, length))
    }

    /// Returns `length` bytes of a piece from `offset`, for the HCA that it is mapped for, cut off
    /// at its end.
    #[inline]
    pub fn sge(&self, piece: impl Into<u32>, offset: usize, length: usize) -> Option<Sge> {
        let mapping = self.mapping.as_ref()?;
        let address = *mapping.addresses.get(piece.into() as usize)?;
        let offset = offset.min(self.piece_bytes);
        let length = length.min(self.piece_bytes - offset) as u32;
        Some(Sge::mapped(
            address + offset as u64,
            length,
            mapping.pd.lkey(),
        ))
    }

    /// Returns the address of `offset` in a piece, and how many of `length` bytes the piece has
    /// from there.
    fn address_of(
        &self,
        piece: impl Into<u32>,
        offset: usize,
        length: usize,
    ) -> Option<(*mut c_void, usize)> {
        let start = self.piece(piece)?.start;
        let offset = offset.min(self.piece_bytes);
        // SAFETY: A piece has `piece_bytes` bytes.
        let place = unsafe { start.as_ptr().cast::<u8>().add(offset) };
        Some((place.cast(), length.min(self.piece_bytes - offset)))
    }

    /// Copies a piece's data from `offset` on into RAM, up to the end of either; returns the number
    /// of bytes. Any context; slow, since the processor waits for each load on the bus. C:
    /// `memcpy_fromio()`.
    pub fn load(&self, piece: impl Into<u32>, offset: usize, to: PageRange<'_>) -> usize {
        let Some((start, length)) = self.address_of(piece, offset, to.length() as usize) else {
            return 0;
        };
        // SAFETY: Both have this many bytes and are alive.
        unsafe { bindings::hcablk_c_memcpy_fromio(to.as_ptr().cast(), start, length) };
        length
    }

    /// Copies RAM into a piece from `offset` on, up to the end of either; returns the number of
    /// bytes. Any context. C: `memcpy_toio()`.
    ///
    /// A later read by another device returns the copied data: posted writes may be under way for a
    /// while, but a read at the end, which cannot overtake them, waits for them.
    pub fn store(&self, piece: impl Into<u32>, offset: usize, from: PageRange<'_>) -> usize {
        let Some((start, length)) = self.address_of(piece, offset, from.length() as usize) else {
            return 0;
        };
        if length != 0 {
            // SAFETY: Both have this many bytes, at least one, and are alive.
            unsafe {
                bindings::hcablk_c_memcpy_toio(start, from.as_ptr().cast(), length);
                bindings::hcablk_c_readb(start);
            }
        }
        length
    }

    /// Copies `length` bytes from `offset` of a piece to the same place in RAM. As
    /// [`Self::load`].
    pub fn copy_out(&self, piece: u16, ram: &DmaBuffer, offset: usize, length: usize) {
        self.load(piece, offset, ram.pages().range(offset, length));
    }

    /// Copies `length` bytes from `offset` of RAM to the same place in a piece. As
    /// [`Self::store`].
    pub fn copy_in(&self, piece: u16, ram: &DmaBuffer, offset: usize, length: usize) {
        self.store(piece, offset, ram.pages().range(offset, length));
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        might_sleep();
        drop(self.mapping.take());
        // A view has nothing else of its own.
        let own = match self.of.take() {
            Some(_) => &[],
            None => &self.pieces[..],
        };
        for piece in own {
            // SAFETY: By the type's invariant; nobody can reach it any more. The provider's driver
            // is bound: unbinding it waits for this.
            unsafe {
                bindings::pci_free_p2pmem(
                    self.provider.as_raw(),
                    piece.start.as_ptr(),
                    self.piece_bytes,
                )
            };
        }
    }
}
