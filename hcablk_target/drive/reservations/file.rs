// SPDX-License-Identifier: GPL-2.0

//! Stores the reservations of a drive in the file `DIRECTORY/WWID`, as two images
//! ([`hcablk_core::logic::reservation`]).
//!
//! A change overwrites the older image. The newest image takes effect when the target restarts. A
//! change that cannot be made durable may have reached the drive nevertheless. So the former state
//! is then written over it, as the next image. Images are read from the medium: an image that is
//! only in the page cache would be mistaken for durable, and the next change would overwrite the
//! one that is durable.

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

const MEMORY: &str = "out of memory";

/// The file of a drive's reservations: see the module.
pub(super) struct DriveFile {
    directory: StateDirectory,
    wwid: VolumeId,
    name: CString,
    /// The number of the newest image that is known to be whole; 0: there is none.
    newest: u64,
    /// The number of the next image to write.
    next: u64,
    /// See [`Self::is_uncertain`].
    uncertain: bool,
}

impl DriveFile {
    /// Reads the newest whole image into `state`, which is unchanged if there is no file. Sleeps.
    /// Errors name the step that failed.
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

    /// Reads the newest whole image. Returns its number, or 0 if none was ever written.
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
            // The response to the first change is sent when both places are written, this one last.
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

    /// Makes `next` durable in place of `former`. If that fails, `former` remains in effect, unless
    /// [`Self::is_uncertain`]. Sleeps.
    pub(super) fn save(&mut self, former: &Reservations, next: &Reservations) -> Result {
        let mut bytes = KVec::from_elem(0u8, IMAGE_LEN, GFP_KERNEL)?;
        let image: &mut [u8; IMAGE_LEN] = bytes.as_mut_slice().try_into().map_err(|_| EINVAL)?;
        let file = self.directory.file_or_new(&self.name)?;
        let saved = self.write(&file, next, image);
        self.uncertain = saved.is_err() && self.write(&file, former, image).is_err();
        saved
    }

    /// Returns the wwid of the drive, which is the name of the file.
    pub(super) fn wwid(&self) -> VolumeId {
        self.wwid
    }

    /// Returns whether a refused change may take effect when the target restarts.
    pub(super) fn is_uncertain(&self) -> bool {
        self.uncertain
    }

    /// Writes the next image, the first time to both places. After a failure the following image is
    /// written to the same place: the other place is whole.
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
