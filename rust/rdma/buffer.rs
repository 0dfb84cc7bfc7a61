// SPDX-License-Identifier: GPL-2.0

//! Memory that stays mapped for the HCA: message buffers and pooled transfer
//! buffers. Mapped once, kept until dropped; each use is bracketed by the
//! `sync` calls of the DMA API.
//!
//! # Who unmaps
//!
//! [`DmaBuffer::sever_all`] unmaps a buffer that no queue pair uses any more while a drive still
//! uses its memory; otherwise the drop does. Both run in process context. Only the drop frees the
//! memory, which is unmapped by then. A drive has its own mapping of the same memory: its driver
//! makes it for the bio, and ends it with the bio.
//!
//! A `sync` call that has just seen the mapping may run while the buffer is severed: such calls are
//! RCU read-side critical sections, and `sever_all` waits for them.

use super::{
    device::Direction,
    mapped,
    pd::{
        DomainUse,
        ProtectionDomain, //
    }, //
};
use crate::sync::{
    atomic::{
        Acquire,
        Atomic,
        Full,
        Relaxed, //
    },
    synchronize_completions, //
};
use crate::{
    bindings,
    memory::pages::ContiguousPages, //
    system::errno,
};
use core::{
    mem::ManuallyDrop,
    sync::atomic::{
        AtomicU64,
        Ordering, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        rcu,
        Arc, //
    }, //
};

/// A [`DmaBuffer`] is mapped.
const MAPPED: u32 = 0;
/// The buffer is about to be unmapped, and no new `sync` call uses the mapping.
const LEAVING: u32 = 1;
/// The buffer is not mapped any more; its memory stays.
const SEVERED: u32 = 2;

/// A physically contiguous buffer mapped for a device. Any protection domain of that device may use
/// it ([`Self::slice_for`]): the key for local access is the domain's, not the buffer's.
///
/// # Invariants
///
/// `address` is a mapping of all of `pages` for the device of `pd` while `mapping` is [`MAPPED`],
/// and while it is [`LEAVING`], which lasts for a grace period at least. `syncs` is set unless the
/// DMA API says that the `sync` calls do nothing to this mapping.
pub struct DmaBuffer {
    pages: ManuallyDrop<ContiguousPages>,
    address: u64,
    direction: Direction,
    syncs: bool,
    pd: DomainUse,
    mapping: Atomic<u32>,
    /// A [`Sink`](super::sink::Sink) that may be valid covers the buffer.
    exposed: Atomic<bool>,
    /// See [`Self::place`].
    place: Atomic<u32>,
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
        Self::map(pd, ContiguousPages::alloc(order)?, direction)
    }

    /// Allocates a buffer as [`Self::new`] does, but only if memory is plentiful: for buffers that
    /// the machine can do without.
    pub fn new_if_plenty(
        pd: &Arc<ProtectionDomain>,
        order: u32,
        direction: Direction,
    ) -> Result<Self> {
        Self::map(pd, ContiguousPages::alloc_if_plenty(order)?, direction)
    }

    fn map(
        pd: &Arc<ProtectionDomain>,
        pages: ContiguousPages,
        direction: Direction,
    ) -> Result<Self> {
        let pd = pd.begin_use()?;
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
        // SAFETY: The device is alive, and this is a mapping for it.
        let syncs = unsafe { bindings::hcablk_c_ib_dma_need_sync(pd.device(), address) };
        // INVARIANT: Mapped just now.
        Ok(Self {
            pages: ManuallyDrop::new(pages),
            address,
            direction,
            syncs,
            pd,
            mapping: Atomic::new(MAPPED),
            exposed: Atomic::new(false),
            place: Atomic::new(0),
        })
    }

    /// Returns whether a [`Sink`](super::sink::Sink) over the buffer may still be valid, so that a
    /// peer may write there. A lender of buffers must know that anyway, and uses this to verify it.
    #[inline]
    pub fn is_exposed(&self) -> bool {
        self.exposed.load(Relaxed)
    }

    /// Returns the place that was last [set](Self::set_place), 0 at first.
    pub fn place(&self) -> usize {
        self.place.load(Relaxed) as usize
    }

    /// Records the place of the buffer in a list of its owner's.
    pub fn set_place(&self, place: usize) {
        self.place.store(place as u32, Relaxed);
    }

    /// Records that a sink is laid over the buffer.
    #[inline]
    pub(super) fn expose(&self) {
        self.exposed.store(true, Relaxed);
    }

    /// Records that the sink over the buffer was invalidated, or is gone.
    #[inline]
    pub fn conceal(&self) {
        self.exposed.store(false, Relaxed);
    }

    /// Returns whether the buffer is mapped for the device of `pd`.
    #[inline]
    pub(super) fn is_of(&self, pd: &ProtectionDomain) -> bool {
        self.pd.device() == pd.device()
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Returns `false`: a buffer is never empty.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the pages, for access by others than the HCA.
    #[inline]
    pub fn pages(&self) -> &ContiguousPages {
        &self.pages
    }

    /// Returns `length` bytes from `offset`, as the device addresses them, cut off at the buffer's
    /// end.
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

    /// Returns a slice as [`Self::slice`] does, for queue pairs of `pd`, which may be another
    /// session's on the same device; `None` if it is on another device.
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

    /// Copies the `N` bytes at `offset`, which the device has written.
    #[inline]
    pub fn read<const N: usize>(&self, offset: usize) -> Result<[u8; N]> {
        if offset.checked_add(N).is_none_or(|end| end > self.len()) {
            return Err(EINVAL);
        }
        self.sync_for_cpu(offset, N);
        // SAFETY: The pages have as many bytes there; the device may be writing them, and any bytes
        // are valid.
        Ok(unsafe { self.pages.as_mut_ptr().add(offset).cast::<[u8; N]>().read() })
    }

    /// Returns whether [`Self::sync_for_device`] and [`Self::sync_for_cpu`] do anything.
    #[inline]
    pub fn syncs(&self) -> bool {
        self.syncs
    }

    /// Makes what others have written to the `length` bytes from `offset` visible to the device.
    #[inline(always)]
    pub fn sync_for_device(&self, offset: usize, length: usize) {
        if self.syncs {
            self.give_to_device(offset, length);
        }
    }

    #[cold]
    fn give_to_device(&self, offset: usize, length: usize) {
        let slice = self.slice(offset, length);
        let _guard = rcu::read_lock();
        if self.mapping.load(Acquire) != MAPPED {
            return;
        }
        // SAFETY: The range is part of a mapping for this device, which stays until the guard is
        // dropped.
        unsafe {
            bindings::hcablk_c_ib_dma_sync_for_device(
                self.pd.device(),
                slice.address,
                slice.length as usize,
                self.direction.as_raw(),
            )
        };
    }

    /// Makes what the device has written to the `length` bytes from `offset` visible to others.
    #[inline(always)]
    pub fn sync_for_cpu(&self, offset: usize, length: usize) {
        if self.syncs {
            self.take_from_device(offset, length);
        }
    }

    #[cold]
    fn take_from_device(&self, offset: usize, length: usize) {
        let slice = self.slice(offset, length);
        let _guard = rcu::read_lock();
        if self.mapping.load(Acquire) != MAPPED {
            return;
        }
        // SAFETY: As in `give_to_device`.
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

impl DmaBuffer {
    /// Unmaps buffers whose memory stays, since a drive may read and write it. Data that is in
    /// bounce buffers is not copied to the memory. No work request that the device carries out uses
    /// the buffers now or later. Skips buffers that were severed, and those to which a peer [may
    /// still write](ProtectionDomain::is_lost), which keep their domain. Sleeps.
    pub fn sever_all<'a, I: Iterator<Item = &'a Self>>(buffers: impl Fn() -> I) {
        let mut any_syncs = false;
        for buffer in buffers().filter(|buffer| !buffer.pd.is_lost()) {
            // The grace period of another call that has begun may not be over.
            if buffer.mapping.cmpxchg(MAPPED, LEAVING, Full) != Err(SEVERED) {
                any_syncs |= buffer.syncs;
            }
        }
        if any_syncs {
            synchronize_completions();
        }
        for buffer in buffers().filter(|buffer| !buffer.pd.is_lost()) {
            if buffer.mapping.cmpxchg(LEAVING, SEVERED, Full).is_ok() {
                // SAFETY: The buffer is mapped, and only one caller makes this exchange. It was
                // `LEAVING` before the grace period, after which no `sync` call runs that has seen
                // `MAPPED`.
                unsafe { buffer.unmap(true) };
            }
        }
    }

    /// Unmaps the buffer; with `quietly`, data that the device has written to a bounce buffer is
    /// not copied.
    ///
    /// # Safety
    ///
    /// The buffer is mapped, this is the only call, and no `sync` call uses the mapping.
    unsafe fn unmap(&self, quietly: bool) {
        // SAFETY: Mapped with these parameters by the type's invariant.
        unsafe {
            bindings::hcablk_c_ib_dma_unmap_page(
                self.pd.device(),
                self.address,
                self.len(),
                self.direction.as_raw(),
                quietly,
            )
        };
        mapped::remove();
        self.pd.end();
    }
}

impl Drop for DmaBuffer {
    fn drop(&mut self) {
        if self.mapping.load(Acquire) != SEVERED {
            if self.pd.is_lost() {
                // Deliberately leaked and left mapped: a peer may still write there.
                if let Ok(for_ever) = self.pd.domain().begin_use() {
                    core::mem::forget(for_ever);
                }
                return;
            }
            // SAFETY: The buffer is mapped. Severing and `sync` calls need a reference, and none is
            // left.
            unsafe { self.unmap(false) };
        }
        // SAFETY: They are not used after this.
        unsafe { ManuallyDrop::drop(&mut self.pages) };
    }
}

/// Buffers for messages of up to `LENGTH` bytes, which an index identifies. The length is a power
/// of two, at least 8 and at most a page.
///
/// A message is copied in before it is sent and out after it was received; at any time a buffer is
/// either the device's or its user's. This type does not know which, and does not exclude that two
/// processors use one buffer at the same time: its content is then a mix of both. Nothing worse
/// happens, since processors access the buffers only in atomic words.
///
/// # Invariants
///
/// Each of `blocks` is a page of the domain with the key `lkey`. The processors read and write only
/// whole, aligned [`Word`]s of these pages.
pub struct MessageBuffers<const LENGTH: usize> {
    blocks: KVec<DmaBuffer>,
    lkey: u32,
}

/// The unit of all accesses to message buffers. The type is `core`'s, since the kernel's functions
/// are calls; no C code accesses these buffers.
type Word = AtomicU64;

/// Bytes of a [`Word`].
const WORD: usize = size_of::<Word>();

/// The words of one message buffer.
struct Words<'a> {
    first: *mut u64,
    block: &'a DmaBuffer,
    /// The offset of the first word in `block`.
    offset: usize,
    /// The number of words.
    count: usize,
}

impl Words<'_> {
    #[inline(always)]
    fn get(&self, index: usize) -> Option<&Word> {
        // SAFETY: There are `count` words from `first`, in memory that `block` keeps, and aligned,
        // since a page is, and a buffer begins at a multiple of its length. By the invariants of
        // `MessageBuffers` no processor reaches them in another way.
        (index < self.count).then(|| unsafe { Word::from_ptr(self.first.add(index)) })
    }

    /// Stores `message`, followed by zeroes up to the end of its last word.
    #[inline(always)]
    fn put(&self, message: &[u8]) {
        let mut index = 0;
        let mut whole = message.chunks_exact(WORD);
        for bytes in &mut whole {
            let mut word = [0; WORD];
            word.copy_from_slice(bytes);
            self.store(index, word);
            index += 1;
        }
        let rest = whole.remainder();
        let mut word = [0; WORD];
        if let (false, Some(begin)) = (rest.is_empty(), word.get_mut(..rest.len())) {
            begin.copy_from_slice(rest);
            self.store(index, word);
        }
    }

    #[inline(always)]
    fn store(&self, index: usize, word: [u8; WORD]) {
        if let Some(place) = self.get(index) {
            place.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    /// Fills `message` from the buffer, which must be at least as long.
    #[inline(always)]
    fn take(&self, message: &mut [u8]) {
        if message.len() > self.count * WORD {
            return;
        }
        // Checked once: the words of a message of known length are loaded one after the other.
        let load = |index| {
            // SAFETY: As in `get`: all of `message` is below `count`.
            let word = unsafe { Word::from_ptr(self.first.add(index)) };
            word.load(Ordering::Relaxed).to_ne_bytes()
        };
        let mut index = 0;
        let mut whole = message.chunks_exact_mut(WORD);
        for bytes in &mut whole {
            bytes.copy_from_slice(&load(index));
            index += 1;
        }
        let rest = whole.into_remainder();
        if !rest.is_empty() {
            if let Some(begin) = load(index).get(..rest.len()) {
                rest.copy_from_slice(begin);
            }
        }
    }
}

impl<const LENGTH: usize> MessageBuffers<LENGTH> {
    /// The number of buffers in a block, which is a page that begins with a buffer.
    const PER_BLOCK: usize = {
        assert!(LENGTH.is_power_of_two() && LENGTH >= WORD && LENGTH <= PAGE_SIZE);
        PAGE_SIZE / LENGTH
    };

    /// Makes `count` buffers. May sleep.
    pub fn new(pd: &Arc<ProtectionDomain>, count: usize, direction: Direction) -> Result<Self> {
        let mut blocks = KVec::new();
        for _ in 0..count.div_ceil(Self::PER_BLOCK) {
            blocks.push(DmaBuffer::new(pd, 0, direction)?, GFP_KERNEL)?;
        }
        // INVARIANT: They are pages of this domain; nobody has seen them.
        Ok(Self {
            blocks,
            lkey: pd.lkey(),
        })
    }

    /// Iterates over the blocks of memory, for [`DmaBuffer::sever_all`].
    pub fn blocks(&self) -> impl Iterator<Item = &DmaBuffer> {
        self.blocks.iter()
    }

    /// Returns the block with buffer `index`, and where the buffer begins there.
    #[inline(always)]
    fn find(&self, index: usize) -> Option<(&DmaBuffer, usize)> {
        let block = self.blocks.get(index / Self::PER_BLOCK)?;
        Some((block, index % Self::PER_BLOCK * LENGTH))
    }

    /// Returns `length` bytes, which are in one buffer, of `block` from `offset`, as the device
    /// addresses them.
    #[inline(always)]
    fn slice_of<'a>(&self, block: &'a DmaBuffer, offset: usize, length: usize) -> Slice<'a> {
        Slice {
            address: block.address.wrapping_add(offset as u64),
            length: length as u32,
            lkey: self.lkey,
            _buffer: core::marker::PhantomData,
        }
    }

    #[inline(always)]
    fn words(&self, index: usize) -> Option<Words<'_>> {
        let (block, offset) = self.find(index)?;
        Some(Words {
            // SAFETY: The buffer is in the block.
            first: unsafe { block.pages.as_mut_ptr().add(offset) }.cast(),
            block,
            offset,
            count: LENGTH / WORD,
        })
    }

    /// Returns buffer `index` as the device addresses it, cut to `length` bytes.
    #[inline]
    pub fn slice(&self, index: usize, length: usize) -> Result<Slice<'_>> {
        let (block, offset) = self.find(index).ok_or(EINVAL)?;
        Ok(self.slice_of(block, offset, length.min(LENGTH)))
    }

    /// Writes a message into buffer `index`, followed by zeroes up to the next multiple of 8 bytes,
    /// and makes it visible to the device.
    ///
    /// A message that is being sent from the same buffer may go out torn; its receiver has it
    /// already, or the buffer would not be written again. Concurrent writes of messages may mix
    /// their words.
    // Where the length is known the copy is a few moves.
    #[inline(always)]
    pub fn write(&self, index: usize, message: &[u8]) -> Result<Slice<'_>> {
        let words = self.words(index).ok_or(EINVAL)?;
        if message.len() > LENGTH {
            return Err(errno::emsgsize());
        }
        words.put(message);
        let (block, offset) = (words.block, words.offset);
        block.sync_for_device(offset, message.len());
        Ok(self.slice_of(block, offset, message.len()))
    }

    /// Changes a byte of the message of `length` bytes in buffer `index`, before it is sent.
    #[inline]
    pub fn set(&self, index: usize, length: usize, at: usize, byte: u8) -> Result {
        let words = self.words(index).ok_or(EINVAL)?;
        if at >= length || length > LENGTH {
            return Err(EINVAL);
        }
        let place = words.get(at / WORD).ok_or(EINVAL)?;
        let mut word = place.load(Ordering::Relaxed).to_ne_bytes();
        *word.get_mut(at % WORD).ok_or(EINVAL)? = byte;
        place.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        words.block.sync_for_device(words.offset, length);
        Ok(())
    }

    /// Copies a message of `N` bytes that the device has put into buffer `index`; fails with
    /// `EMSGSIZE` if the buffer is shorter.
    #[inline(always)]
    pub fn read_whole<const N: usize>(&self, index: usize) -> Result<[u8; N]> {
        let words = self.words(index).ok_or(EINVAL)?;
        if N > words.count * WORD {
            return Err(errno::emsgsize());
        }
        let (block, offset) = (words.block, words.offset);
        block.sync_for_cpu(offset, N);
        let mut message = [0; N];
        words.take(&mut message);
        block.sync_for_device(offset, N);
        Ok(message)
    }

    /// Copies the `length` bytes that the device put into buffer `index` to `message` and returns
    /// them; fewer when the buffer is shorter. The bytes after them in `message` may be any
    /// contents of the buffer.
    // As for `write`.
    #[inline(always)]
    pub fn read<'m>(&self, index: usize, length: usize, message: &'m mut [u8]) -> Result<&'m [u8]> {
        let words = self.words(index).ok_or(EINVAL)?;
        let length = length.min(LENGTH);
        if length > message.len() {
            return Err(errno::emsgsize());
        }
        let (block, offset) = (words.block, words.offset);
        block.sync_for_cpu(offset, length);
        if message.len() <= LENGTH {
            words.take(message);
        } else if let Some(begin) = message.get_mut(..length) {
            words.take(begin);
        }
        block.sync_for_device(offset, length);
        message.get(..length).ok_or_else(errno::emsgsize)
    }
}
