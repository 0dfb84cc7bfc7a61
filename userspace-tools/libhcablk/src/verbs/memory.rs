// SPDX-License-Identifier: GPL-2.0

//! Registered memory, windows on it, and the buffers of applications.

use super::{
    by_value,
    device::{Domains, ProtectionDomain},
    made, sys,
};
use nix::errno::Errno;
use std::{
    alloc::{alloc_zeroed, dealloc, Layout},
    fmt, mem,
    ops::{Deref, DerefMut, Range},
    ptr::{copy_nonoverlapping, NonNull},
    slice,
    sync::Arc,
};

/// Memory of a region begins at a multiple of this.
const PAGE: usize = 4096;

/// The access to a region, in addition to reads by this host's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// This host's device writes to the region.
    Local,
    /// Windows may be bound to the region.
    Windows,
    /// As [`Self::Windows`], and peers write to the region, with a key that is valid for the life
    /// of the region.
    Standing,
}

impl Access {
    fn flags(self) -> u32 {
        let local = sys::IBV_ACCESS_LOCAL_WRITE;
        match self {
            Self::Local => local,
            Self::Windows => local | sys::IBV_ACCESS_MW_BIND,
            Self::Standing => local | sys::IBV_ACCESS_MW_BIND | sys::IBV_ACCESS_REMOTE_WRITE,
        }
    }
}

/// A piece of memory, in the form of a work request.
#[derive(Clone, Copy)]
pub(crate) struct Sge(sys::ibv_sge);

impl Sge {
    /// No memory.
    pub(crate) const NONE: Self = Self(sys::ibv_sge {
        addr: 0,
        length: 0,
        lkey: 0,
    });

    pub(super) fn raw(self) -> sys::ibv_sge {
        self.0
    }
}

/// Allocated memory, which is freed when no region has it any more.
struct Allocation {
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: The memory belongs to the allocation, which does nothing with it but free it.
unsafe impl Send for Allocation {}
// SAFETY: As above.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Allocates at least `len` bytes, all 0, in whole pages.
    fn new(len: usize) -> Result<Self, Errno> {
        let size = len
            .max(1)
            .checked_next_multiple_of(PAGE)
            .ok_or(Errno::ENOMEM)?;
        let layout = Layout::from_size_align(size, PAGE).map_err(|_| Errno::ENOMEM)?;
        // SAFETY: The size of the layout is not 0.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(Errno::ENOMEM)?;
        Ok(Self { memory, layout })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: The memory was allocated with this layout, and nobody has it any more.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// Memory that is registered with a device. A region's own memory is zeroed when it is made.
///
/// The device, and peers within the region's access, may read and write all of it at any time; this code copies from
/// and to it, without a reference to its content. A [`Buffer`] stands for exclusive use of a part.
pub(crate) struct Region {
    mr: NonNull<sys::ibv_mr>,
    memory: NonNull<u8>,
    len: usize,
    /// Keeps the memory; `None`: it is the program's.
    allocation: Option<Arc<Allocation>>,
    /// The address of the first byte, for work requests and peers.
    address: u64,
    _pd: Arc<ProtectionDomain>,
}

// SAFETY: The memory belongs to the region, and verbs may be called by any thread.
unsafe impl Send for Region {}
// SAFETY: As above; access to parts of the memory is governed by the `Buffer`s, or by the region's only owner.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates a region of `len` bytes. For peers it begins at `address`, a multiple of the page
    /// size; `None`: at its address in memory.
    pub(crate) fn new(
        pd: &Arc<ProtectionDomain>,
        len: usize,
        access: Access,
        address: Option<u64>,
    ) -> Result<Self, Errno> {
        Self::of(pd, &Arc::new(Allocation::new(len)?), access, address)
    }

    /// Makes a region of allocated memory, as [`Self::new`].
    fn of(
        pd: &Arc<ProtectionDomain>,
        allocation: &Arc<Allocation>,
        access: Access,
        address: Option<u64>,
    ) -> Result<Self, Errno> {
        let Allocation { memory, layout } = **allocation;
        // SAFETY: The memory exists, and the region keeps it until it was deregistered.
        let mut region = unsafe { Self::register(pd, memory, layout.size(), access, address) }?;
        region.allocation = Some(allocation.clone());
        Ok(region)
    }

    /// Makes a region of `len` bytes of existing memory, as [`Self::new`].
    ///
    /// # Safety
    ///
    /// The memory is initialized, and does not move during the life of the region.
    unsafe fn register(
        pd: &Arc<ProtectionDomain>,
        memory: NonNull<u8>,
        len: usize,
        access: Access,
        address: Option<u64>,
    ) -> Result<Self, Errno> {
        let address = address.unwrap_or(memory.as_ptr() as u64);
        // SAFETY: By the safety requirement.
        let mr = made(unsafe {
            sys::ibv_reg_mr_iova2(
                pd.raw(),
                memory.as_ptr().cast(),
                len,
                address,
                access.flags(),
            )
        })?;
        Ok(Self {
            mr,
            memory,
            len,
            allocation: None,
            address,
            _pd: pd.clone(),
        })
    }

    /// Returns the key by which peers reach a region of [standing](Access::Standing) access.
    pub(crate) fn peer_key(&self) -> u32 {
        // SAFETY: The region exists.
        unsafe { (*self.mr.as_ptr()).rkey }
    }

    /// Returns the address of the byte at `offset`.
    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.address + offset as u64
    }

    fn len(&self) -> usize {
        self.len
    }

    fn has(&self, range: &Range<usize>) -> bool {
        range.start <= range.end && range.end <= self.len()
    }

    /// Returns a part of the region for a work request; `None` if the region has no such part.
    pub(crate) fn sge(&self, range: Range<usize>) -> Option<Sge> {
        let length = u32::try_from(range.len()).ok()?;
        self.has(&range).then(|| {
            Sge(sys::ibv_sge {
                addr: self.address(range.start),
                length,
                // SAFETY: The region exists.
                lkey: unsafe { (*self.mr.as_ptr()).lkey },
            })
        })
    }

    /// Copies the bytes at `offset` into `to`; returns `false` if the region has fewer bytes.
    #[must_use]
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) -> bool {
        let fits = self.has(&(offset..offset.saturating_add(to.len())));
        if fits {
            // SAFETY: The part is within the memory. A device may write to it meanwhile: then the bytes are arbitrary.
            unsafe {
                copy_nonoverlapping(self.memory.as_ptr().add(offset), to.as_mut_ptr(), to.len());
            };
        }
        fits
    }

    /// Copies `from` into the region at `offset`; returns `false` if it does not fit.
    #[must_use]
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> bool {
        let fits = self.has(&(offset..offset.saturating_add(from.len())));
        if fits {
            // SAFETY: The part is within the memory, and nobody has a reference to it: this does not write to a region
            // that has buffers.
            unsafe {
                copy_nonoverlapping(from.as_ptr(), self.memory.as_ptr().add(offset), from.len());
            }
        }
        fits
    }

    pub(super) fn mr(&self) -> *mut sys::ibv_mr {
        self.mr.as_ptr()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: Nothing refers to the region any more.
        let result = by_value(unsafe { sys::ibv_dereg_mr(self.mr.as_ptr()) });
        if result.is_err() {
            // A window is bound to the region, or the device was removed: the memory is leaked.
            mem::forget(self.allocation.take());
        }
    }
}

/// The access of the peer through a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
}

impl Right {
    pub(super) fn flags(self) -> u32 {
        sys::IBV_ACCESS_ZERO_BASED
            | match self {
                Self::Read => sys::IBV_ACCESS_REMOTE_READ,
                Self::Write => sys::IBV_ACCESS_REMOTE_WRITE,
            }
    }
}

/// A memory window of type 2: a part of a region that a peer reaches over one queue pair, from its bind by a work
/// request until its invalidation. Its addresses begin at 0.
pub(crate) struct Window {
    mw: NonNull<sys::ibv_mw>,
    /// The key of the last bind.
    key: u32,
    _pd: Arc<ProtectionDomain>,
}

// SAFETY: Verbs may be called by any thread.
unsafe impl Send for Window {}

impl Window {
    /// Makes a window that is not bound.
    pub(crate) fn new(pd: &Arc<ProtectionDomain>) -> Result<Self, Errno> {
        let context = pd.context();
        // SAFETY: The domain keeps its context open.
        let alloc = unsafe { (*context).ops.alloc_mw }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: The domain exists.
        let mw = made(unsafe { alloc(pd.raw(), sys::IBV_MW_TYPE_2) })?;
        // SAFETY: The inline function `ibv_alloc_mw()` sets these fields as well; not all providers
        // do.
        unsafe {
            (*mw.as_ptr()).context = context;
            (*mw.as_ptr()).pd = pd.raw();
            (*mw.as_ptr()).type_ = sys::IBV_MW_TYPE_2;
        }
        // SAFETY: The window exists.
        let key = unsafe { (*mw.as_ptr()).rkey };
        Ok(Self {
            mw,
            key,
            _pd: pd.clone(),
        })
    }

    /// Returns the key of the window's last bind.
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// Makes the key of the next bind, and returns it: only the low byte changes.
    pub(super) fn next_key(&mut self) -> u32 {
        self.key = (self.key & !0xff) | (self.key.wrapping_add(1) & 0xff);
        self.key
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_mw {
        self.mw.as_ptr()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: The window exists.
        let dealloc = unsafe { (*(*self.mw.as_ptr()).context).ops.dealloc_mw };
        if let Some(dealloc) = dealloc {
            // SAFETY: Nothing refers to the window any more.
            unsafe { dealloc(self.mw.as_ptr()) };
        }
    }
}

/// Memory of buffers, which is registered in each domain of its volume.
struct Registered {
    memory: NonNull<u8>,
    /// By the number of the domain.
    regions: Vec<Region>,
    /// As in [`Region`].
    _allocation: Option<Arc<Allocation>>,
    domains: Arc<Domains>,
}

// SAFETY: The memory belongs to the regions; access to parts of it is governed by the `Buffer`s.
unsafe impl Send for Registered {}
// SAFETY: As above.
unsafe impl Sync for Registered {}

/// Memory for the data of requests, which a volume has registered with its RDMA devices.
///
/// A buffer owns its bytes exclusively: it moves into a request, and is returned when the request ends. It can be
/// [split](Self::split_off), so that a request may have pieces that are not adjacent. The memory is freed when the last
/// part is dropped.
pub struct Buffer {
    memory: Arc<Registered>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// Makes a buffer of `len` bytes, all 0.
    pub(crate) fn new(domains: &Arc<Domains>, len: usize) -> Result<Self, Errno> {
        let allocation = Arc::new(Allocation::new(len)?);
        let regions = domains.all().iter();
        let regions = regions.map(|pd| Region::of(pd, &allocation, Access::Windows, None));
        let (regions, memory) = (regions.collect(), allocation.memory);
        Self::of(domains, memory, len, regions, Some(allocation))
    }

    fn of(
        domains: &Arc<Domains>,
        memory: NonNull<u8>,
        len: usize,
        regions: Result<Vec<Region>, Errno>,
        allocation: Option<Arc<Allocation>>,
    ) -> Result<Self, Errno> {
        let memory = Registered {
            memory,
            regions: regions?,
            _allocation: allocation,
            domains: domains.clone(),
        };
        Ok(Self {
            memory: Arc::new(memory),
            start: 0,
            len,
        })
    }

    /// Makes a buffer of the program's own memory.
    ///
    /// # Safety
    ///
    /// The `len` bytes are initialized, and nobody else refers to them; they do not move until the buffer, all parts
    /// that were split from it and the queues of the requests that had it are dropped.
    pub(crate) unsafe fn register(
        domains: &Arc<Domains>,
        memory: NonNull<u8>,
        len: usize,
    ) -> Result<Self, Errno> {
        let regions = domains.all().iter().map(|pd| {
            // SAFETY: By the safety requirement.
            unsafe { Region::register(pd, memory, len, Access::Windows, None) }
        });
        Self::of(domains, memory, len, regions.collect(), None)
    }

    /// Returns a second buffer of the same bytes, a part of this one: for programs in a language without ownership.
    /// `None` if the buffer has no such part.
    ///
    /// # Safety
    ///
    /// While the caller writes a byte through one of the two buffers, or a request with one of them may write it,
    /// nobody may read or write that byte through the other.
    #[must_use]
    pub unsafe fn alias(&self, range: Range<usize>) -> Option<Self> {
        let fits = range.start <= range.end && range.end <= self.len;
        fits.then(|| Self {
            memory: self.memory.clone(),
            start: self.start + range.start,
            len: range.len(),
        })
    }

    /// Returns the address of the bytes.
    pub fn as_ptr(&self) -> *mut u8 {
        // In bounds: it is a part of the region.
        self.memory.memory.as_ptr().wrapping_add(self.start)
    }

    /// Returns whether the registered memory has other buffers, or requests with such buffers.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.memory) != 1
    }

    /// Splits the buffer: it keeps the bytes before `at`, and the rest is returned.
    ///
    /// # Panics
    ///
    /// If the buffer has fewer than `at` bytes.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(
            at <= self.len,
            "a buffer of {} bytes is split at {at}",
            self.len
        );
        let rest = Self {
            memory: self.memory.clone(),
            start: self.start + at,
            len: self.len - at,
        };
        self.len = at;
        rest
    }

    /// Joins the buffer with `rest`, which begins where the buffer ends. Returns `rest` if it does not.
    pub fn join(&mut self, rest: Self) -> Result<(), Self> {
        if !Arc::ptr_eq(&self.memory, &rest.memory) || self.start + self.len != rest.start {
            return Err(rest);
        }
        self.len += rest.len;
        Ok(())
    }

    /// Returns the number of bytes of the buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a part of the buffer for a work request in the domain `place`; `None` if the buffer has no such part.
    pub(crate) fn sge(&self, place: usize, range: Range<usize>) -> Option<Sge> {
        match range.end <= self.len {
            true => self
                .region(place)?
                .sge(self.start + range.start..self.start + range.end),
            false => None,
        }
    }

    /// Returns whether the buffer was registered in these domains.
    pub(crate) fn is_of(&self, domains: &Arc<Domains>) -> bool {
        Arc::ptr_eq(&self.memory.domains, domains)
    }

    /// Returns the region of the buffer's memory in the domain `place`.
    pub(super) fn region(&self, place: usize) -> Option<&Region> {
        self.memory.regions.get(place)
    }

    pub(super) fn start(&self) -> usize {
        self.start
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: The part is within the memory, which was initialized, and no other buffer has any of its bytes. While
        // the buffer exists no request has it.
        unsafe { slice::from_raw_parts(self.memory.memory.as_ptr().add(self.start), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: As above.
        unsafe { slice::from_raw_parts_mut(self.memory.memory.as_ptr().add(self.start), self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer of {} bytes", self.len)
    }
}
