// SPDX-License-Identifier: GPL-2.0

//! Physically contiguous memory in whole pages, for data that drives and HCAs move.

use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

/// `1 << order` contiguous pages.
///
/// # Invariants
///
/// `page` is the first page of a compound allocation of `order` that the
/// object owns; all of it is in the kernel's direct mapping, from `start` on.
pub struct ContiguousPages {
    page: NonNull<bindings::page>,
    start: *mut u8,
    order: u32,
}

// SAFETY: Pages may be used from any thread.
unsafe impl Send for ContiguousPages {}
// SAFETY: Shared references give raw pointers only.
unsafe impl Sync for ContiguousPages {}

/// A piece of a [`ContiguousPages`], as a bio takes it.
#[derive(Clone, Copy)]
pub struct PageRange<'a> {
    page: NonNull<bindings::page>,
    offset: u32,
    length: u32,
    _pages: PhantomData<&'a ContiguousPages>,
}

impl ContiguousPages {
    /// Allocates zeroed pages, so that a peer that reads a buffer before it was filled gets only
    /// zeroes. May sleep.
    pub fn alloc(order: u32) -> Result<Self> {
        Self::alloc_with(order, bindings::GFP_KERNEL)
    }

    /// Allocates as [`Self::alloc`] does, but only memory that the machine can spare: if there is
    /// none, no process is killed and nothing is logged.
    pub fn alloc_if_plenty(order: u32) -> Result<Self> {
        let flags = bindings::__GFP_RETRY_MAYFAIL | bindings::__GFP_NOWARN;
        Self::alloc_with(order, bindings::GFP_KERNEL | flags)
    }

    fn alloc_with(order: u32, flags: bindings::gfp_t) -> Result<Self> {
        let flags = flags | bindings::__GFP_COMP | bindings::__GFP_ZERO;
        // SAFETY: No requirements.
        let page = unsafe { bindings::alloc_pages(flags, order) };
        let page = NonNull::new(page).ok_or(ENOMEM)?;
        // INVARIANT: A compound allocation without __GFP_HIGHMEM.
        Ok(Self {
            page,
            // SAFETY: The page was just allocated, in the direct mapping.
            start: unsafe { bindings::hcablk_c_page_address(page.as_ptr()) }.cast(),
            order,
        })
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        PAGE_SIZE.wrapping_shl(self.order)
    }

    /// Returns `false`: there is at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }

    pub(crate) fn as_page_ptr(&self) -> *mut bindings::page {
        self.page.as_ptr()
    }

    /// Returns the address of the first byte.
    #[inline]
    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Returns a piece, cut off at the end of the memory.
    #[inline]
    pub fn range(&self, offset: usize, length: usize) -> PageRange<'_> {
        let offset = offset.min(self.len());
        PageRange {
            page: self.page,
            offset: offset as u32,
            length: length.min(self.len() - offset) as u32,
            _pages: PhantomData,
        }
    }
}

impl Drop for ContiguousPages {
    fn drop(&mut self) {
        // SAFETY: The pages are ours.
        unsafe { bindings::__free_pages(self.page.as_ptr(), self.order) };
    }
}

impl<'a> PageRange<'a> {
    /// Returns a part of this piece, cut off at the end of the piece.
    #[inline]
    pub fn part(self, offset: usize, length: usize) -> PageRange<'a> {
        let offset = offset.min(self.length as usize);
        PageRange {
            offset: self.offset + offset as u32,
            length: length.min(self.length as usize - offset) as u32,
            ..self
        }
    }

    /// Copies the number of bytes that the shorter piece has. Concurrent writes of a device or
    /// another processor may be copied in part. Any context.
    #[inline]
    pub fn copy_to(self, to: PageRange<'_>) {
        // SAFETY: Both pieces are within allocations that are in the direct mapping and live at
        // least as long as the pieces; there are no references into them. Both may be in one
        // allocation and overlap.
        unsafe {
            core::ptr::copy(
                self.as_ptr().cast_const(),
                to.as_ptr(),
                self.length.min(to.length) as usize,
            )
        };
    }

    /// Returns the address of the first byte.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        // SAFETY: The page and the memory after it, up to the end of the piece, are valid and in
        // the direct mapping.
        unsafe {
            let start: *mut u8 = bindings::hcablk_c_page_address(self.page.as_ptr()).cast();
            start.add(self.offset as usize)
        }
    }

    /// Returns the first `length` bytes of contiguous memory that begins with `page`.
    ///
    /// # Safety
    ///
    /// The memory has `length` bytes in the direct mapping, and exists for the range's lifetime.
    #[inline]
    pub(crate) unsafe fn first_bytes(page: NonNull<bindings::page>, length: usize) -> Self {
        Self {
            page,
            offset: 0,
            length: length as u32,
            _pages: PhantomData,
        }
    }

    /// Returns the page that the piece begins in, and the offset of its first byte there.
    #[inline]
    pub(crate) fn begin(&self) -> (*mut bindings::page, u32) {
        let offset = self.offset as usize;
        // SAFETY: The pages of contiguous memory are contiguous in the memory map: those of a buddy
        // allocation always, those of device memory because that has a virtual memory map
        // (`ZONE_DEVICE` depends on it). The page is one of them, or, for an empty piece, the one
        // after the last.
        let page = unsafe { self.page.as_ptr().add(offset / PAGE_SIZE) };
        (page, (offset % PAGE_SIZE) as u32)
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn length(&self) -> u32 {
        self.length
    }
}
