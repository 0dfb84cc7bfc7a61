// SPDX-License-Identifier: GPL-2.0

//! Lists the exported drives, and the wwids under which they are exported.
//!
//! A drive is identified by the file or device that volumes open, its file of reservations by the
//! wwid. Each wwid belongs to one drive: two drives would not know of each other's reservations,
//! and write the same file. While a drive is exported under a second wwid, or once with and once
//! without one, its reservations cannot be changed. A drive that has reservations cannot be
//! exported a second time in this way.
//!
//! An empty mount point looks like a directory without files, and a preempted host could write
//! again. So a volume can demand that its reservations are kept ([`Keep::Always`]): then it can
//! be enabled only if the directory has the file [`MARKER`], which is created once, together with
//! the directory. A volume can have a directory of its own, which moves with it to another machine;
//! all volumes of a drive must agree on it.
//!
//! # Locks and contexts
//!
//! `opening` is held while a drive is added, during which files are opened and read, until their
//! file system has finished. `list` is held for look-ups and changes only: dropping a drive waits
//! for no file.

use super::{
    file::DriveFile,
    Drive, //
};
use core::ops::Deref;
use hcablk_core::{
    blkdev::{
        FileId,
        StateDirectory, //
    },
    logic::reservation::Reservations,
    proto::name::{
        HostId,
        VolumeId, //
    },
    sync::atomic::Relaxed,
    system::errno, //
};
use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
};

/// The file that distinguishes the directory from an empty mount point.
const MARKER: &CStr = c".hcablk-reservations";

/// Whether a volume may be enabled although its reservations cannot be kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The volume is enabled; if its reservations cannot be kept, no host can register.
    IfPossible,
    /// The volume is not enabled if its reservations cannot be kept.
    Always,
}

/// The step that failed, and the error.
type Failed = (&'static str, Error);

/// The export of a drive by one volume.
struct Use {
    drive: Arc<Drive>,
    wwid: Option<VolumeId>,
    /// The volume's own directory of the files; `None`: the target's.
    directory: Option<CString>,
}

/// The directory of the files, and the uses of drives.
struct List {
    directory: Option<CString>,
    /// One use for each volume.
    uses: KVec<Use>,
}

/// The exported drives of the target: see the module.
#[pin_data]
pub(crate) struct Drives {
    #[pin]
    opening: Mutex<()>,
    #[pin]
    list: Mutex<List>,
}

/// A volume's use of its drive's reservations.
pub(crate) struct DriveUse {
    drives: Arc<Drives>,
    drive: Arc<Drive>,
    wwid: Option<VolumeId>,
}

impl List {
    fn drive(&self, file: FileId) -> Option<Arc<Drive>> {
        let of_file = |entry: &&Use| entry.drive.file == file;
        self.uses
            .iter()
            .find(of_file)
            .map(|entry| entry.drive.clone())
    }

    /// Returns `only` if it is in use; with `None` all drives, some more than once.
    fn drives<'a>(&'a self, only: Option<&'a Arc<Drive>>) -> impl Iterator<Item = &'a Arc<Drive>> {
        let wanted = move |drive: &&Arc<Drive>| only.is_none_or(|only| Arc::ptr_eq(only, drive));
        self.uses.iter().map(|entry| &entry.drive).filter(wanted)
    }

    /// Returns whether `wwid` belongs to another drive than `file`.
    fn is_of_other(&self, file: FileId, wwid: Option<VolumeId>) -> bool {
        let other = |entry: &Use| entry.wwid == wwid && entry.drive.file != file;
        wwid.is_some() && self.uses.iter().any(other)
    }

    /// Adds a use of `drive`.
    fn add(
        &mut self,
        drives: &Arc<Drives>,
        drive: Arc<Drive>,
        wwid: Option<VolumeId>,
        directory: Option<CString>,
    ) -> Result<DriveUse, Failed> {
        let own = Use {
            drive: drive.clone(),
            wwid,
            directory,
        };
        let added = self.uses.push(own, GFP_KERNEL);
        added.map_err(|e| ("out of memory", e.into()))?;
        self.mark_ambiguous(&drive);
        Ok(DriveUse {
            drives: drives.clone(),
            drive,
            wwid,
        })
    }

    /// Returns whether a volume exports the drive `file` and keeps its reservations elsewhere.
    fn is_kept_elsewhere(&self, file: FileId, directory: Option<&CStr>) -> bool {
        let elsewhere =
            |entry: &Use| entry.drive.file == file && entry.directory.as_deref() != directory;
        self.uses.iter().any(elsewhere)
    }

    /// Records in `drive` whether it is also exported under another wwid than its own.
    fn mark_ambiguous(&self, drive: &Arc<Drive>) {
        let other = |entry: &Use| Arc::ptr_eq(&entry.drive, drive) && entry.wwid != drive.wwid;
        drive.ambiguous.store(self.uses.iter().any(other), Relaxed);
    }

    /// Opens the directory of the files of reservations, and returns it with whether it has
    /// [`MARKER`]. Returns `None` if no directory is set or it does not exist, and `keep` allows
    /// that. Sleeps. Fails with `ENOENT` if `keep` does not allow it. Errors name the step that
    /// failed.
    fn open(
        directory: Option<&CStr>,
        keep: Keep,
    ) -> Result<Option<(StateDirectory, bool)>, Failed> {
        let must = keep == Keep::Always;
        let Some(path) = directory else {
            return match must {
                true => Err((
                    "its reservations cannot be kept: no directory is set",
                    ENOENT,
                )),
                false => Ok(None),
            };
        };
        let directory = match StateDirectory::open(path) {
            Ok(directory) => directory,
            Err(e) if e == ENOENT && !must => return Ok(None),
            Err(e) if e == ENOENT => {
                let what =
                    "its reservations cannot be kept: their directory does not exist; is its file system mounted?";
                return Err((what, e));
            }
            Err(e) if e == errno::eopnotsupp() => {
                return Err(("the directory of reservations cannot be on overlayfs", e));
            }
            Err(e) => return Err(("the directory of reservations cannot be opened", e)),
        };
        match directory.file(MARKER) {
            Err(e) if must => Err((
                "its reservations cannot be kept: their directory has no readable file .hcablk-reservations; is its file system mounted?",
                e,
            )),
            marker => Ok(Some((directory, marker.is_ok()))),
        }
    }
}

impl Drives {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let directory = CString::try_from_fmt(fmt!("/var/lib/hcablk/reservations"))?;
        let drives = pin_init!(Self {
            opening <- new_mutex!(()),
            list <- new_mutex!(List {
                directory: Some(directory),
                uses: KVec::new(),
            }),
        });
        Arc::pin_init(drives, GFP_KERNEL)
    }

    /// Calls `f` with the directory of the files.
    pub(crate) fn with_directory<R>(&self, f: impl FnOnce(Option<&CStr>) -> R) -> R {
        f(self.list.lock().directory.as_deref())
    }

    /// Sets the directory of the files; none if `path` is empty. Fails with `EBUSY` while a volume
    /// is exported, or is being enabled.
    pub(crate) fn set_directory(&self, path: &str) -> Result {
        if !path.is_empty() && !path.starts_with('/') {
            return Err(EINVAL);
        }
        let directory = match path {
            "" => None,
            path => Some(CString::try_from_fmt(fmt!("{path}"))?),
        };
        let Some(_alone) = self.opening.try_lock() else {
            return Err(EBUSY);
        };
        let mut list = self.list.lock();
        if !list.uses.is_empty() {
            return Err(EBUSY);
        }
        list.directory = directory;
        Ok(())
    }

    /// Gives up all requested changes of `drive`, or of all drives, that have not begun; their
    /// initiators repeat them. Returns whether a change of `host` has begun and not ended.
    pub(crate) fn give_up_changes(&self, drive: Option<&Arc<Drive>>, host: HostId) -> bool {
        let list = self.list.lock();
        let give_up = |making, drive: &Arc<Drive>| drive.give_up_changes(host) || making;
        list.drives(drive).fold(false, give_up)
    }

    /// Returns whether a change of `drive`, or of any drive, that `host` has requested is being
    /// made.
    pub(crate) fn is_changing(&self, drive: Option<&Arc<Drive>>, host: HostId) -> bool {
        let list = self.list.lock();
        let mut drives = list.drives(drive);
        drives.any(|drive| drive.turns.lock().is_making(host))
    }

    /// Returns the reservations of the drive `file`, which a volume exports under `wwid`. They are
    /// kept in `directory`, or with `None` in the target's. Sleeps until their file system has
    /// finished. Errors name the step that failed.
    pub(crate) fn open(
        this: &Arc<Self>,
        file: FileId,
        wwid: Option<VolumeId>,
        keep: Keep,
        directory: Option<&CStr>,
    ) -> Result<DriveUse, Failed> {
        let own = || -> Result<_, Failed> {
            let own = directory.map(CString::try_from).transpose();
            own.map_err(|e| ("out of memory", e.into()))
        };
        if keep == Keep::Always && wwid.is_none() {
            return Err(("reservations cannot be kept without a wwid", EINVAL));
        }
        let _alone = this.opening.lock();
        let (known, path) = {
            let mut list = this.list.lock();
            if list.is_of_other(file, wwid) {
                return Err(("another drive is exported under its wwid", EBUSY));
            }
            if list.is_kept_elsewhere(file, directory) {
                let what = "another volume exports its drive with another state directory";
                return Err((what, EBUSY));
            }
            let known = list.drive(file);
            if let Some(drive) = known.as_ref().filter(|drive| drive.wwid == wwid) {
                if keep == Keep::Always && !drive.is_kept {
                    let what = "another volume exports its drive without keeping reservations";
                    return Err((what, EBUSY));
                }
                let drive = drive.clone();
                return list.add(this, drive, wwid, own()?);
            }
            let path = directory.or(list.directory.as_deref());
            let path = path.map(CString::try_from);
            let path = path.transpose().map_err(|e| ("out of memory", e.into()))?;
            (known.is_some(), path)
        };
        let state = KBox::new(Reservations::new(), GFP_KERNEL);
        let mut state = state.map_err(|e| ("out of memory", e.into()))?;
        let kept = match (wwid, List::open(path.as_deref(), keep)?) {
            (Some(wwid), Some((directory, is_marked))) => {
                Some((DriveFile::load(directory, wwid, &mut state)?, is_marked))
            }
            _ => None,
        };
        if known {
            if !state.is_empty() {
                let what = "it has reservations, and its drive is exported under another wwid";
                return Err((what, EBUSY));
            }
            if let Some(drive) = this.add_other(file, wwid, own()?)? {
                return Ok(drive);
            }
        }
        let drive = Drive::new(file, wwid, kept, state).map_err(|e| ("out of memory", e))?;
        this.list.lock().add(this, drive, wwid, own()?)
    }

    /// Adds a use under another wwid than the drive's own. Returns `None` if the drive is no longer
    /// in use.
    fn add_other(
        self: &Arc<Self>,
        file: FileId,
        wwid: Option<VolumeId>,
        directory: Option<CString>,
    ) -> Result<Option<DriveUse>, Failed> {
        let mut list = self.list.lock();
        let Some(drive) = list.drive(file) else {
            return Ok(None);
        };
        // A change of reservations reads `ambiguous` under this lock.
        let changing = drive.control.try_lock();
        if changing.is_none() || !drive.state.lock().is_empty() {
            return Err(("its drive has reservations under another wwid", EBUSY));
        }
        list.add(self, drive.clone(), wwid, directory).map(Some)
    }
}

impl Deref for DriveUse {
    type Target = Arc<Drive>;

    fn deref(&self) -> &Arc<Drive> {
        &self.drive
    }
}

impl Drop for DriveUse {
    fn drop(&mut self) {
        let mut list = self.drives.list.lock();
        let own = |entry: &Use| Arc::ptr_eq(&entry.drive, &self.drive) && entry.wwid == self.wwid;
        if let Some(place) = list.uses.iter().position(own) {
            // Not the last reference: `self` has another.
            let _ = list.uses.remove(place);
        }
        list.mark_ambiguous(&self.drive);
    }
}
