// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reservations as bytes, for a file: one *image* has all of them, with a checksum. A file has two
//! images; each change overwrites the older one, so that there is always a complete one.

use super::{Change, HeldReservation, Registrant, Reservations, CHANGES_MAX, REGISTRANTS_MAX};
use crate::proto::{
    connect::SessionId,
    message::{ReservationType, Status},
    name::HostId,
};

/// Bytes of an image.
pub const IMAGE_LEN: usize = 4096;

const MAGIC: &[u8; 8] = b"hcablkPR";
const VERSION: u32 = 1;
/// Offset of the first byte that the checksum covers.
const CHECKED: usize = 16;
const REGISTRANT_LEN: usize = 24;
const CHANGE_LEN: usize = 40;
const REGISTRANTS_AT: usize = 96;
const CHANGES_AT: usize = REGISTRANTS_AT + REGISTRANTS_MAX * REGISTRANT_LEN;
const _: () = assert!(CHANGES_AT + CHANGES_MAX * CHANGE_LEN <= IMAGE_LEN);

/// The reason why bytes are not a valid image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadImage {
    /// The bytes do not start as an image, or are too short.
    Magic,
    /// The image has an unknown version.
    Version,
    /// The image is damaged.
    Checksum,
    /// The image is of another drive.
    Drive,
    /// The image is intact, but its contents are not valid.
    Content,
}

/// Returns the CRC32C (Castagnoli) of these bytes. It is needed only for a change and when a file
/// is read, so a table is not worth its memory.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc: u32, _| {
            (crc >> 1) ^ if crc & 1 != 0 { 0x82f6_3b78 } else { 0 }
        })
    })
}

/// Writes values one after the other.
struct Put<'a>(&'a mut [u8], usize);

impl Put<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        if let Some(place) = self.0.get_mut(self.1..self.1 + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        self.1 += bytes.len();
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }
}

/// Reads values one after the other; beyond the end, it reads zeroes.
struct Get<'a>(&'a [u8], usize);

impl Get<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let found = self.0.get(self.1..self.1 + N);
        self.1 += N;
        found
            .and_then(|bytes| bytes.try_into().ok())
            .unwrap_or([0; N])
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// Reads a host, `None` if there are 16 zeroes.
    fn host(&mut self) -> Result<Option<HostId>, BadImage> {
        match self.bytes() {
            bytes if bytes == [0; 16] => Ok(None),
            bytes => HostId::from_wire(bytes)
                .map(Some)
                .map_err(|_| BadImage::Content),
        }
    }
}

fn host_bytes(host: Option<HostId>) -> [u8; 16] {
    host.map_or([0; 16], HostId::to_wire)
}

impl Reservations {
    /// Writes an image of the drive `drive`, with the serial number `serial` in its file.
    pub fn to_image(&self, drive: [u8; 16], serial: u64, image: &mut [u8; IMAGE_LEN]) {
        image.fill(0);
        let mut put = Put(image, CHECKED);
        put.u64(serial);
        put.bytes(&drive);
        put.u32(self.generation);
        put.u32(self.held.map_or(0, |held| held.how as u32));
        put.bytes(&host_bytes(self.held.and_then(|held| held.holder)));
        put.u64(self.asked);
        put.1 = REGISTRANTS_AT;
        for place in &self.registrants {
            put.bytes(&host_bytes(place.map(|r| r.host)));
            put.u64(place.map_or(0, |r| r.key));
        }
        for (index, change) in self.changes.iter().flatten().enumerate() {
            put.1 = CHANGES_AT + index * CHANGE_LEN;
            put.bytes(&host_bytes(Some(change.host)));
            put.u64(change.disk.0);
            put.u32(change.sequence);
            put.u32(change.status as u32);
            put.u64(change.number);
        }
        let crc = crc32c(image.get(CHECKED..).unwrap_or(&[]));
        let mut put = Put(image, 0);
        put.bytes(MAGIC);
        put.u32(VERSION);
        put.u32(crc);
    }

    /// Reads an image of the drive `drive`. Returns the reservations and the serial number of the
    /// image.
    pub fn from_image(drive: [u8; 16], image: &[u8]) -> Result<(Self, u64), BadImage> {
        if image.len() != IMAGE_LEN || !image.starts_with(MAGIC) {
            return Err(BadImage::Magic);
        }
        let mut get = Get(image, MAGIC.len());
        if get.u32() != VERSION {
            return Err(BadImage::Version);
        }
        if get.u32() != crc32c(image.get(CHECKED..).unwrap_or(&[])) {
            return Err(BadImage::Checksum);
        }
        let serial = get.u64();
        if get.bytes::<16>() != drive {
            return Err(BadImage::Drive);
        }
        let mut this = Self::new();
        this.generation = get.u32();
        let how = get.u32();
        let holder = get.host()?;
        this.asked = get.u64();
        get.1 = REGISTRANTS_AT;
        for place in &mut this.registrants {
            let (host, key) = (get.host()?, get.u64());
            if host.is_some() != (key != 0) {
                return Err(BadImage::Content);
            }
            *place = host.map(|host| Registrant { host, key });
        }
        for (index, place) in this.changes.iter_mut().enumerate() {
            get.1 = CHANGES_AT + index * CHANGE_LEN;
            let (host, disk) = (get.host()?, SessionId(get.u64()));
            let (sequence, status, number) = (get.u32(), get.u32(), get.u64());
            let status = u16::try_from(status).ok().and_then(Status::from_wire);
            let status = status.ok_or(BadImage::Content)?;
            *place = host.map(|host| Change {
                host,
                disk,
                sequence,
                status,
                number,
                asked: number,
            });
        }
        if how != 0 {
            let how = ReservationType::from_wire(how).ok_or(BadImage::Content)?;
            this.held = Some(HeldReservation { how, holder });
        }
        match this.is_sound(holder) {
            true => Ok((this, serial)),
            false => Err(BadImage::Content),
        }
    }

    /// Returns whether the reservation's type fits its holder, which must be registered: the host
    /// `holder`, or all registrants if that is `None`.
    fn is_sound(&self, holder: Option<HostId>) -> bool {
        match (self.held, holder) {
            (None, None) => true,
            (Some(held), None) => held.how.is_all_registrants() && !self.is_empty(),
            (Some(held), Some(host)) => !held.how.is_all_registrants() && self.is_registered(host),
            (None, Some(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checksum_is_crc32c() {
        assert_eq!(super::crc32c(b"123456789"), 0xe306_9283);
    }
}
