// SPDX-License-Identifier: GPL-2.0

//! The file of a drive's reservations, `DIRECTORY/WWID`: two images
//! ([`hcablk_core::logic::reservation`]).
//!
//! A change writes the older one. What is written counts when the target begins again, so a change
//! that cannot be made durable is overwritten by what there was before it, as the next image: it
//! may have reached the drive nevertheless. What is read is what the medium has: an image that the
//! page cache has alone would be taken for durable, and the one that is would be overwritten by the
//! next change.

use hcablk_core::{
    blkdev::{
        StateDirectory,
        StateFile, //
    },
    logic::reservation::{
        Reservations,
        IMAGE_LEN, //
    },
    proto::name::VolumeId, //
};
use kernel::{
    prelude::*,
    str::CString, //
};

const MEMORY: &str = "memory";

/// See the module.
pub(super) struct DriveFile {
    directory: StateDirectory,
    wwid: VolumeId,
    name: CString,
    /// Which image is the newest that is known to be whole; 0: there is none.
    newest: u64,
    /// Which one is written next.
    next: u64,
    /// See [`Self::is_uncertain`].
    uncertain: bool,
}

impl DriveFile {
    /// Reads the newest whole image into `state`, which stays as it is if there is no file. Sleeps.
    /// Errors come with what could not be done.
    pub(super) fn load(
        directory: StateDirectory,
        wwid: VolumeId,
        state: &mut Reservations,
    ) -> Result<Self, (&'static str, Error)> {
        let name = CString::try_from_fmt(fmt!("{wwid}")).map_err(|e| (MEMORY, e))?;
        let what = "its file of reservations cannot be read";
        let newest = match directory.file(&name) {
            Ok(file) => Self::read(&file, wwid, state)?,
            Err(e) if e == ENOENT => 0,
            Err(e) => return Err((what, e)),
        };
        Ok(Self {
            directory,
            wwid,
            name,
            newest,
            next: newest + 1,
            uncertain: false,
        })
    }

    /// Reads the newest whole image; returns which it is, 0 if nothing was ever written.
    fn read(
        file: &StateFile,
        wwid: VolumeId,
        state: &mut Reservations,
    ) -> Result<u64, (&'static str, Error)> {
        let what = "its file of reservations cannot be read";
        let mut image =
            KVec::from_elem(0u8, IMAGE_LEN, GFP_KERNEL).map_err(|e| (MEMORY, e.into()))?;
        file.drop_cached().map_err(|e| (what, e))?;
        let mut serial = 0;
        let mut begun = false;
        for place in 0..2 {
            let read = file
                .read(place * IMAGE_LEN as u64, &mut image)
                .map_err(|e| (what, e))?;
            let whole = image.get(..read).unwrap_or(&[]);
            // The first change is answered when both are written, this one last.
            begun |= place == 0 && whole.iter().any(|byte| *byte != 0);
            match Reservations::from_image(wwid.to_wire(), whole) {
                Ok((found, number)) if number > serial => {
                    serial = number;
                    *state = found;
                }
                _ => {}
            }
        }
        match serial == 0 && begun {
            true => Err(("both images of its file of reservations are damaged", EIO)),
            false => Ok(serial),
        }
    }

    /// Makes `next` durable in the place of `former`. If that fails `former` is what counts, unless
    /// [`Self::is_uncertain`]. Sleeps.
    pub(super) fn save(&mut self, former: &Reservations, next: &Reservations) -> Result {
        let mut bytes = KVec::from_elem(0u8, IMAGE_LEN, GFP_KERNEL)?;
        let image: &mut [u8; IMAGE_LEN] = bytes.as_mut_slice().try_into().map_err(|_| EINVAL)?;
        let file = self.directory.file_or_new(&self.name)?;
        let saved = self.write(&file, next, image);
        self.uncertain = saved.is_err() && self.write(&file, former, image).is_err();
        saved
    }

    /// Returns whether a change that was refused may count when the target begins again.
    pub(super) fn is_uncertain(&self) -> bool {
        self.uncertain
    }

    /// Writes the next image, at first in both places. One that fails has its place written again
    /// by the one after it: the other place is whole.
    fn write(
        &mut self,
        file: &StateFile,
        state: &Reservations,
        image: &mut [u8; IMAGE_LEN],
    ) -> Result {
        let (first, serial) = (self.newest == 0, self.next);
        let mut put = |serial| {
            state.to_image(self.wwid.to_wire(), serial, image);
            file.write((serial % 2) * IMAGE_LEN as u64, image)
        };
        self.next = serial + 2;
        put(serial)?;
        if first {
            put(serial + 1)?;
            self.directory.sync()?;
        }
        self.newest = serial + u64::from(first);
        self.next = self.newest + 1;
        Ok(())
    }
}
