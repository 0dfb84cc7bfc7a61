// SPDX-License-Identifier: GPL-2.0

//! Memory that stays mapped for the HCA: message buffers and pooled transfer
//! buffers. Mapped once, kept until dropped; each use is bracketed by the
//! `sync` calls of the DMA API.

use super::{
    device::Direction,
    mapped,
    pd::ProtectionDomain, //
};
use crate::{
    bindings,
    errno,
    pages::PageChunk, //
};
use core::mem::ManuallyDrop;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// A physically contiguous buffer mapped for a device. Any protection domain of that
/// device may use it ([`Self::slice_for`]): the key for local access is the domain's, not the buffer's.
///
/// # Invariants
///
/// `address` is a mapping of all of `pages` for the device of `pd`.
pub struct DmaBuffer {
    pages: ManuallyDrop<PageChunk>,
    address: u64,
    direction: Direction,
    pd: Arc<ProtectionDomain>,
}

/// A piece of a [`DmaBuffer`] as a device addresses it.
#[derive(Clone, Copy)]
pub struct Slice<'a> {
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
    _buffer: core::marker::PhantomData<&'a DmaBuffer>,
}

impl Slice<'_> {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn length(&self) -> u32 {
        self.length
    }
}

impl DmaBuffer {
    /// Allocates `1 << order` zeroed pages and maps them. May sleep.
    pub fn new(pd: &Arc<ProtectionDomain>, order: u32, direction: Direction) -> Result<Self> {
        Self::map(pd, PageChunk::alloc(order)?, direction)
    }

    /// As [`Self::new`], for what the machine can do without.
    pub fn new_if_plenty(
        pd: &Arc<ProtectionDomain>,
        order: u32,
        direction: Direction,
    ) -> Result<Self> {
        Self::map(pd, PageChunk::alloc_if_plenty(order)?, direction)
    }

    fn map(pd: &Arc<ProtectionDomain>, pages: PageChunk, direction: Direction) -> Result<Self> {
        // SAFETY: The device is alive through `pd`; the pages are ours.
        let address = unsafe {
            bindings::hcablk_c_ib_dma_map_page(
                pd.device(),
                pages.as_page_ptr(),
                pages.len(),
                direction.as_raw(),
            )
        };
        // SAFETY: The device is alive.
        if unsafe { bindings::hcablk_c_ib_dma_mapping_error(pd.device(), address) } != 0 {
            return Err(ENOMEM);
        }
        mapped::add();
        // INVARIANT: Mapped just now.
        Ok(Self {
            pages: ManuallyDrop::new(pages),
            address,
            direction,
            pd: pd.clone(),
        })
    }

    /// Whether the buffer is mapped for the device of `pd`.
    #[inline]
    pub(super) fn is_of(&self, pd: &ProtectionDomain) -> bool {
        self.pd.device() == pd.device()
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The pages, for use by something else than the HCA.
    #[inline]
    pub fn pages(&self) -> &PageChunk {
        &self.pages
    }

    /// `length` bytes from `offset`, as the device addresses them; cut off at
    /// the buffer's end.
    #[inline]
    pub fn slice(&self, offset: usize, length: usize) -> Slice<'_> {
        let offset = offset.min(self.len());
        Slice {
            address: self.address + offset as u64,
            length: length.min(self.len() - offset) as u32,
            lkey: self.pd.lkey(),
            _buffer: core::marker::PhantomData,
        }
    }

    /// As [`Self::slice`], for queue pairs of `pd`, which may be another session's on the
    /// same device; `None`: it is on another device.
    #[inline]
    pub fn slice_for(
        &self,
        pd: &ProtectionDomain,
        offset: usize,
        length: usize,
    ) -> Option<Slice<'_>> {
        self.is_of(pd).then(|| Slice {
            lkey: pd.lkey(),
            ..self.slice(offset, length)
        })
    }

    /// Takes out what the device put at `offset`.
    #[inline]
    pub fn read<const N: usize>(&self, offset: usize) -> Result<[u8; N]> {
        if offset.checked_add(N).is_none_or(|end| end > self.len()) {
            return Err(EINVAL);
        }
        self.sync_for_cpu(offset, N);
        // SAFETY: The pages have as many bytes there; the device may be writing them, and
        // bytes are bytes.
        Ok(unsafe { self.pages.as_mut_ptr().add(offset).cast::<[u8; N]>().read() })
    }

    /// What others wrote into the first `length` bytes becomes visible to the device.
    #[inline]
    pub fn sync_for_device(&self, offset: usize, length: usize) {
        let slice = self.slice(offset, length);
        // SAFETY: The range is part of a mapping for this device.
        unsafe {
            bindings::hcablk_c_ib_dma_sync_for_device(
                self.pd.device(),
                slice.address,
                slice.length as usize,
                self.direction.as_raw(),
            )
        };
    }

    /// What the device wrote becomes visible to others.
    #[inline]
    pub fn sync_for_cpu(&self, offset: usize, length: usize) {
        let slice = self.slice(offset, length);
        // SAFETY: The range is part of a mapping for this device.
        unsafe {
            bindings::hcablk_c_ib_dma_sync_for_cpu(
                self.pd.device(),
                slice.address,
                slice.length as usize,
                self.direction.as_raw(),
            )
        };
    }
}

impl Drop for DmaBuffer {
    fn drop(&mut self) {
        if self.pd.is_lost() {
            // Deliberately leaked, mapped as it is: a peer may still write there.
            return;
        }
        // SAFETY: Mapped with these parameters by the type's invariant.
        unsafe {
            bindings::hcablk_c_ib_dma_unmap_page(
                self.pd.device(),
                self.address,
                self.len(),
                self.direction.as_raw(),
            )
        };
        mapped::remove();
        // SAFETY: They are not used after this.
        unsafe { ManuallyDrop::drop(&mut self.pages) };
    }
}

/// Buffers for messages, all of one length, told apart by an index.
///
/// A message is copied in before it is sent and out after it was received; at
/// any time a buffer is either the device's or its user's.
pub struct MessageBuffers {
    chunks: KVec<DmaBuffer>,
    length: usize,
    /// log2 of the buffers in a chunk.
    chunk_shift: u32,
}

impl MessageBuffers {
    /// Makes `count` buffers of `length` bytes, a power of two and at most a
    /// page. May sleep.
    pub fn new(
        pd: &Arc<ProtectionDomain>,
        count: usize,
        length: usize,
        direction: Direction,
    ) -> Result<Self> {
        if !length.is_power_of_two() || length > PAGE_SIZE {
            return Err(EINVAL);
        }
        let chunk_shift = PAGE_SIZE.trailing_zeros() - length.trailing_zeros();
        let mut chunks = KVec::new();
        for _ in 0..count.div_ceil(1 << chunk_shift) {
            chunks.push(DmaBuffer::new(pd, 0, direction)?, GFP_KERNEL)?;
        }
        Ok(Self {
            chunks,
            length,
            chunk_shift,
        })
    }

    #[inline]
    fn find(&self, index: usize) -> Option<(&DmaBuffer, usize)> {
        let chunk = self.chunks.get(index >> self.chunk_shift)?;
        let place = index & ((1 << self.chunk_shift) - 1);
        Some((chunk, place * self.length))
    }

    /// Buffer `index` as the device addresses it, cut to `length` bytes.
    #[inline]
    pub fn slice(&self, index: usize, length: usize) -> Result<Slice<'_>> {
        let (chunk, offset) = self.find(index).ok_or(EINVAL)?;
        Ok(chunk.slice(offset, length.min(self.length)))
    }

    /// Puts a message into buffer `index` and gives it to the device.
    ///
    /// A message that is being sent from the same buffer may go out torn; its
    /// receiver has it already or it would not be written again.
    // Where the length is known the copy is a few moves.
    #[inline(always)]
    pub fn write(&self, index: usize, message: &[u8]) -> Result<Slice<'_>> {
        let (chunk, offset) = self.find(index).ok_or(EINVAL)?;
        if message.len() > self.length {
            return Err(errno::emsgsize());
        }
        // SAFETY: The buffer has room for `length` bytes at `offset`; raw
        // pointers, since the device may be reading the old message.
        unsafe {
            core::ptr::copy_nonoverlapping(
                message.as_ptr(),
                chunk.pages.as_mut_ptr().add(offset),
                message.len(),
            )
        };
        chunk.sync_for_device(offset, message.len());
        Ok(chunk.slice(offset, message.len()))
    }

    /// Changes a byte of the message of `length` bytes in buffer `index`, before it is sent.
    #[inline]
    pub fn set(&self, index: usize, length: usize, at: usize, byte: u8) -> Result {
        let (chunk, offset) = self.find(index).ok_or(EINVAL)?;
        if at >= length || length > self.length {
            return Err(EINVAL);
        }
        // SAFETY: As in `write`.
        unsafe { chunk.pages.as_mut_ptr().add(offset + at).write(byte) };
        chunk.sync_for_device(offset, length);
        Ok(())
    }

    /// Takes the `length` bytes that the device put into buffer `index` out
    /// into `message` and returns them; fewer when the buffer is shorter. What is
    /// behind them in `message` may be anything that was in the buffer.
    // As for `write`.
    #[inline(always)]
    pub fn read<'m>(&self, index: usize, length: usize, message: &'m mut [u8]) -> Result<&'m [u8]> {
        let (chunk, offset) = self.find(index).ok_or(EINVAL)?;
        let length = length.min(self.length);
        let room = message.len();
        if length > room {
            return Err(errno::emsgsize());
        }
        chunk.sync_for_cpu(offset, length);
        let from = chunk.pages.as_mut_ptr();
        // SAFETY: The buffer has `self.length` bytes at `offset`, and as many as are
        // copied have room.
        unsafe {
            let (from, to) = (from.add(offset), message.as_mut_ptr());
            if room <= self.length {
                core::ptr::copy_nonoverlapping(from, to, room);
            } else {
                core::ptr::copy_nonoverlapping(from, to, length);
            }
        };
        // The buffer will be posted again.
        chunk.sync_for_device(offset, length);
        message.get(..length).ok_or(errno::emsgsize())
    }
}
