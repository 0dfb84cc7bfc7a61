// SPDX-License-Identifier: GPL-2.0

//! A virtio block device (virtio 1.2, 5.2): its features, its configuration, and the header of a request.

use libhcablk::{RequestError, Volume};
use virtio_bindings::{
    virtio_blk::{
        VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ,
        VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
        VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP,
    },
    virtio_config::VIRTIO_F_VERSION_1,
    virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC},
};

/// Bytes of a sector, the device's unit of offsets and sizes.
pub(crate) const SECTOR: u64 = 512;
/// Pieces of data that a request may have.
const PIECES: u32 = 126;
/// Descriptors that a request may have: the header, its data, and the status.
pub(crate) const MOST_DESCRIPTORS: usize = PIECES as usize + 2;
/// Bytes of the header of a request.
pub(crate) const HEADER: usize = 16;
/// Bytes of the description of a range to discard, or to fill with zeroes.
pub(crate) const RANGE: usize = 16;
/// Bytes of the device's id.
pub(crate) const ID: usize = 20;
/// Bytes of the configuration.
const CONFIG: usize = 60;
/// The optimal size of reads and writes, in bytes.
const BEST: u32 = 256 << 10;

/// The statuses of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    Failed,
    Unsupported,
}

impl Status {
    /// Returns the status for the result of a request of the library.
    pub(crate) fn from_result(result: Result<(), RequestError>) -> Self {
        match result {
            Ok(()) => Self::Ok,
            Err(RequestError::Unsupported) => Self::Unsupported,
            Err(_) => Self::Failed,
        }
    }

    /// Returns the status as the device reports it.
    pub(crate) fn byte(self) -> u8 {
        let status = match self {
            Self::Ok => VIRTIO_BLK_S_OK,
            Self::Failed => VIRTIO_BLK_S_IOERR,
            Self::Unsupported => VIRTIO_BLK_S_UNSUPP,
        };
        // They are small numbers.
        u8::try_from(status).unwrap_or(1)
    }
}

/// The bit of a feature.
const fn bit(feature: u32) -> u64 {
    1 << feature
}

/// The guest flushes. If it does not, its writes must be durable when they are acknowledged.
pub(crate) const FLUSH: u64 = bit(VIRTIO_BLK_F_FLUSH);
/// Each side sets the index at which it wants to be notified.
pub(crate) const EVENT_INDEX: u64 = bit(VIRTIO_RING_F_EVENT_IDX);

/// Returns the features of the device for a volume, from its present properties.
pub(crate) fn features(volume: &Volume) -> u64 {
    let (discard, zeroes) = volume.most_without_data();
    let when = |condition, feature| if condition { bit(feature) } else { 0 };
    bit(VIRTIO_F_VERSION_1)
        | bit(VIRTIO_RING_F_INDIRECT_DESC)
        | EVENT_INDEX
        | FLUSH
        | bit(VIRTIO_BLK_F_SEG_MAX)
        | bit(VIRTIO_BLK_F_BLK_SIZE)
        | bit(VIRTIO_BLK_F_TOPOLOGY)
        | bit(VIRTIO_BLK_F_MQ)
        | when(volume.is_read_only(), VIRTIO_BLK_F_RO)
        | when(discard != 0, VIRTIO_BLK_F_DISCARD)
        | when(zeroes != 0, VIRTIO_BLK_F_WRITE_ZEROES)
}

/// The configuration that describes a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VirtioConfig {
    bytes: u64,
    block: u32,
    physical: u32,
    discard: u32,
    granularity: u32,
    zeroes: u32,
    queues: u16,
}

impl VirtioConfig {
    /// Returns the configuration of a volume that `queues` queues serve.
    pub(crate) fn new(volume: &Volume, queues: u16) -> Self {
        let (discard, zeroes) = volume.most_without_data();
        Self {
            bytes: volume.size(),
            block: volume.block_size(),
            physical: volume.physical_block_size(),
            discard,
            granularity: volume.discard_granularity().max(volume.block_size()),
            zeroes,
            queues,
        }
    }

    /// Returns `length` bytes of the configuration from `offset` on. Bytes beyond its end are zeroes.
    pub(crate) fn config(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut config = Vec::with_capacity(CONFIG);
        let sectors = |bytes: u32| (bytes >> 9).to_le_bytes();
        config.extend((self.bytes / SECTOR).to_le_bytes());
        // The largest piece of data, which is unlimited, and the largest number of pieces of a request.
        config.extend(0_u32.to_le_bytes());
        config.extend(PIECES.to_le_bytes());
        // Cylinders, heads and sectors.
        config.extend([0; 4]);
        config.extend(self.block.to_le_bytes());
        // The topology: logical blocks in a physical one as a power of two, their offset, and the best size in blocks.
        let ratio = (self.physical / self.block.max(1)).max(1);
        config.extend([u8::try_from(ratio.ilog2()).unwrap_or(0), 0]);
        config.extend(u16::try_from(ratio).unwrap_or(1).to_le_bytes());
        config.extend((BEST / self.block.max(1)).to_le_bytes());
        // There is always a cache that is written back.
        config.extend([1, 0]);
        config.extend(self.queues.to_le_bytes());
        config.extend(sectors(self.discard));
        config.extend(1_u32.to_le_bytes());
        config.extend(sectors(self.granularity));
        config.extend(sectors(self.zeroes));
        config.extend(1_u32.to_le_bytes());
        // Zeroes may be written by deallocating.
        config.extend([1, 0, 0, 0]);
        let mut part: Vec<_> = config.into_iter().skip(offset).take(length).collect();
        part.resize(length, 0);
        part
    }
}

/// Returns a little-endian number of 32 bits.
fn word(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    u32::from_le_bytes(bytes.unwrap_or_default())
}

/// Returns a little-endian number of 64 bits.
fn double(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | (u64::from(word(bytes, at + 4)) << 32)
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) op: u32,
    pub(crate) sector: u64,
}

impl Header {
    pub(crate) fn from_bytes(bytes: [u8; HEADER]) -> Self {
        Self {
            op: word(&bytes, 0),
            sector: double(&bytes, 8),
        }
    }
}

/// A range to discard, or to fill with zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) sector: u64,
    pub(crate) sectors: u32,
    pub(crate) flags: u32,
}

impl Range {
    pub(crate) fn from_bytes(bytes: [u8; RANGE]) -> Self {
        Self {
            sector: double(&bytes, 0),
            sectors: word(&bytes, 8),
            flags: word(&bytes, 12),
        }
    }
}

/// Returns the offset in bytes of a range of `bytes` bytes; `None`: it does not end within `size`
/// bytes.
pub(crate) fn offset_of(sector: u64, bytes: u64, size: u64) -> Option<u64> {
    let offset = sector.checked_mul(SECTOR)?;
    (offset.checked_add(bytes)? <= size).then_some(offset)
}

/// Returns the id of a device: 20 characters of the volume's id, or of its name.
pub(crate) fn id(wwid: Option<&str>, name: &str) -> [u8; ID] {
    let text = match wwid {
        Some(wwid) => wwid.replace('-', ""),
        None => name.to_owned(),
    };
    let mut id = [0; ID];
    for (to, from) in id.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_the_layout_of_virtio() {
        let shape = VirtioConfig {
            bytes: 1 << 30,
            block: 512,
            physical: 4096,
            discard: 1 << 20,
            granularity: 4096,
            zeroes: 1 << 21,
            queues: 4,
        };
        let config = shape.config(0, CONFIG);
        assert_eq!(double(&config, 0), 1 << 21);
        assert_eq!(word(&config, 12), PIECES);
        assert_eq!(word(&config, 20), 512);
        assert_eq!(config[24], 3);
        assert_eq!(config[26..28], [8, 0]);
        assert_eq!(config[34..36], [4, 0]);
        assert_eq!(
            [36, 40, 44, 48, 52].map(|at| word(&config, at)),
            [2048, 1, 8, 4096, 1]
        );
        assert_eq!(config[56], 1);
        // A frontend of a different release may ask for more.
        let more = shape.config(56, 40);
        assert_eq!((more.len(), more[0], more[39]), (40, 1, 0));
        assert_eq!(shape.config(4000, 2), [0, 0]);
    }

    #[test]
    fn a_range_ends_on_the_volume() {
        assert_eq!(offset_of(2, 512, 1536), Some(1024));
        assert_eq!(offset_of(2, 1024, 1536), None);
        assert_eq!(offset_of(u64::MAX, 512, u64::MAX), None);
        assert_eq!(offset_of(u64::MAX / 512, u64::MAX, u64::MAX), None);
    }

    #[test]
    fn requests_are_little_endian() {
        let bytes = [1, 0, 0, 0, 9, 9, 9, 9, 1, 2, 0, 0, 0, 0, 0, 1];
        let header = Header::from_bytes(bytes);
        assert_eq!((header.op, header.sector), (1, 0x0100_0000_0000_0201));
        let range = Range::from_bytes(bytes);
        assert_eq!((range.sectors, range.flags), (0x201, 0x0100_0000));
    }

    #[test]
    fn an_id_is_of_the_wwid_or_of_the_name() {
        let wwid = "6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a47";
        assert_eq!(&id(Some(wwid), "data"), b"6f0c2b625f5e4c0e9d57");
        assert_eq!(&id(None, "data")[..6], b"data\0\0");
    }
}
