// SPDX-License-Identifier: GPL-2.0

//! A guest's memory: regions of files that its frontend hands over, mapped here, and registered with the volume's RDMA device, so that
//! the target reads and writes it in place.
//!
//! A region is mapped and registered once: if a frontend sends its table of regions again, existing regions are reused.

use crate::Error;
use libhcablk::{Buffer, Volume};
use std::{fs::File, os::unix::fs::MetadataExt as _, ptr::NonNull, sync::Arc};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap, GuestRegionMmap, MmapRegion,
};

/// The most regions that a guest's memory has.
pub(crate) const MOST_REGIONS: usize = 32;

/// The properties of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    /// The address in the guest.
    guest: u64,
    /// The address in the frontend.
    user: u64,
    bytes: u64,
    /// The file, and where the region begins in it.
    device: u64,
    inode: u64,
    offset: u64,
}

impl Key {
    fn new(region: &VhostUserMemoryRegion, file: &File) -> Result<Self, Error> {
        let data = file.metadata()?;
        let VhostUserMemoryRegion {
            guest_phys_addr: guest,
            user_addr: user,
            memory_size: bytes,
            mmap_offset: offset,
        } = *region;
        let end = offset.checked_add(bytes);
        if bytes == 0 || end.is_none_or(|end| end > data.len()) {
            let has = data.len();
            return Err(format!(
                "a memory region of {bytes} bytes from {offset} on is not in its file of {has}"
            )
            .into());
        }
        if guest.checked_add(bytes).is_none() || user.checked_add(bytes).is_none() {
            return Err("a memory region has no end".into());
        }
        Ok(Self {
            guest,
            user,
            bytes,
            device: data.dev(),
            inode: data.ino(),
            offset,
        })
    }
}

/// A region that is mapped and registered.
struct Region {
    key: Key,
    // Dropped before the mapping that it was registered for.
    buffer: Buffer,
    guest: Arc<GuestRegionMmap>,
}

impl Region {
    #[allow(unsafe_code, reason = "the library's memory is known as an address")]
    fn new(key: Key, file: File, volume: &Volume) -> Result<Self, Error> {
        let bytes = usize::try_from(key.bytes)?;
        let mapped = MmapRegion::from_file(FileOffset::new(file, key.offset), bytes);
        let mapped = mapped.map_err(|error| format!("mapping a memory region: {error}"))?;
        let start = NonNull::new(mapped.as_ptr()).ok_or("a memory region is mapped nowhere")?;
        let guest = GuestRegionMmap::new(mapped, GuestAddress(key.guest));
        let guest = guest.ok_or("a memory region has no end")?;
        // SAFETY: The memory is mapped during the life of `guest`, which `Self` drops after the buffer; rings are
        // stopped, and have no request, before that. This program makes no reference to it. The guest may write to it
        // at any time, as a device does: then a copy has arbitrary bytes.
        let buffer = unsafe { volume.register(start, bytes) };
        let buffer = buffer.map_err(|error| {
            format!("registering a memory region of {bytes} bytes: {error} (limit of locked memory: ulimit -l)")
        })?;
        Ok(Self {
            key,
            buffer,
            guest: Arc::new(guest),
        })
    }
}

/// A guest's memory.
pub(crate) struct Memory {
    regions: Vec<Arc<Region>>,
    pub(crate) guest: GuestMemoryMmap,
}

impl Memory {
    fn from_regions(regions: Vec<Arc<Region>>) -> Result<Self, Error> {
        let mut parts: Vec<_> = regions.iter().map(|region| region.guest.clone()).collect();
        parts.sort_by_key(|part| vm_memory::GuestMemoryRegion::start_addr(part.as_ref()));
        let guest = match parts.is_empty() {
            true => GuestMemoryMmap::new(),
            false => GuestMemoryMmap::from_arc_regions(parts)
                .map_err(|error| format!("the memory regions: {error}"))?,
        };
        Ok(Self { regions, guest })
    }

    /// Makes the memory of a guest that has not set any.
    pub(crate) fn none() -> Self {
        Self {
            regions: Vec::new(),
            guest: GuestMemoryMmap::new(),
        }
    }

    /// Makes the memory with these regions. Regions that this one has already are reused.
    pub(crate) fn replaced(
        &self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        volume: &Volume,
    ) -> Result<Self, Error> {
        if regions.len() > MOST_REGIONS || regions.len() != files.len() {
            return Err(format!("{} memory regions", regions.len()).into());
        }
        let find_or_make = |(region, file): (&VhostUserMemoryRegion, File)| {
            let key = Key::new(region, &file)?;
            let known = self.regions.iter().find(|known| known.key == key);
            match known {
                Some(known) => Ok(known.clone()),
                None => Ok::<_, Error>(Arc::new(Region::new(key, file, volume)?)),
            }
        };
        let made: Result<_, _> = regions.iter().zip(files).map(find_or_make).collect();
        Self::from_regions(made?)
    }

    /// Returns the memory with this region added.
    pub(crate) fn with(
        &self,
        region: &VhostUserMemoryRegion,
        file: File,
        volume: &Volume,
    ) -> Result<Self, Error> {
        let key = Key::new(region, &file)?;
        if self.regions.iter().any(|known| known.key == key) {
            return Self::from_regions(self.regions.clone());
        }
        if self.regions.len() >= MOST_REGIONS {
            return Err(format!("more than {MOST_REGIONS} memory regions").into());
        }
        let mut regions = self.regions.clone();
        regions.push(Arc::new(Region::new(key, file, volume)?));
        Self::from_regions(regions)
    }

    /// Returns the memory without this region.
    pub(crate) fn without(&self, region: &VhostUserMemoryRegion) -> Result<Self, Error> {
        let is_it = |known: &Arc<Region>| {
            let Key {
                guest, user, bytes, ..
            } = known.key;
            (guest, user, bytes) == (region.guest_phys_addr, region.user_addr, region.memory_size)
        };
        let place = self.regions.iter().position(is_it);
        let place = place.ok_or("there is no such memory region")?;
        let mut regions = self.regions.clone();
        regions.swap_remove(place);
        Self::from_regions(regions)
    }

    /// Returns whether the memory has no region.
    pub(crate) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Returns the guest's address of an address in the frontend.
    pub(crate) fn address_of(&self, user: u64) -> Option<GuestAddress> {
        let address = |region: &Arc<Region>| {
            let offset = user.checked_sub(region.key.user)?;
            (offset < region.key.bytes).then(|| GuestAddress(region.key.guest + offset))
        };
        self.regions.iter().find_map(address)
    }

    /// Returns whether the guest's memory has all of these bytes.
    pub(crate) fn has(&self, address: GuestAddress, bytes: u32) -> bool {
        bytes == 0 || self.guest.check_range(address, bytes as usize)
    }

    /// Adds the registered memory of bytes of the guest to `buffers`; returns `false` if the guest's memory lacks some
    /// of them.
    #[allow(unsafe_code, reason = "a guest's memory is the guest's")]
    pub(crate) fn add_buffers(
        &self,
        address: GuestAddress,
        bytes: u32,
        buffers: &mut Vec<Buffer>,
    ) -> bool {
        let (mut at, mut left) = (address.0, u64::from(bytes));
        while left != 0 {
            let within = |region: &&Arc<Region>| {
                let offset = at.checked_sub(region.key.guest);
                offset.is_some_and(|offset| offset < region.key.bytes)
            };
            let Some(region) = self.regions.iter().find(within) else {
                return false;
            };
            let offset = at - region.key.guest;
            let part = left.min(region.key.bytes - offset);
            let (start, end) = (usize::try_from(offset), usize::try_from(offset + part));
            let (Ok(start), Ok(end)) = (start, end) else {
                return false;
            };
            // SAFETY: A guest gives a request memory that nothing else uses until the request has ended. If it does
            // not, its memory has arbitrary bytes, as with a device: this program has no reference to them.
            let buffer = unsafe { region.buffer.alias(start..end) };
            let Some(buffer) = buffer else {
                return false;
            };
            buffers.push(buffer);
            at += part;
            left -= part;
        }
        true
    }
}
