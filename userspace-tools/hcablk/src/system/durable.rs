// SPDX-License-Identifier: GPL-2.0

//! Files that a power failure must neither lose nor restore, and a lock on their folder.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

use super::Op;

/// A failure, with the operation that failed.
type Failure = (Op, io::Error);

fn sync_folder(folder: &Path) -> Result<(), Failure> {
    let file = File::open(folder).map_err(|error| (Op::Open, error))?;
    file.sync_all().map_err(|error| (Op::Sync, error))
}

/// Makes `folder` and its parents up to `top`, and syncs them to the drive. It also syncs existing folders: the command
/// that made them may have been stopped before it synced them.
pub(super) fn make_folder(folder: &Path, top: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| (Op::Mkdir, error))?;
    folder
        .ancestors()
        .take_while(|above| above.starts_with(top))
        .try_for_each(sync_folder)
}

/// Makes an empty file, unless it exists, and syncs its folder.
pub(super) fn make_file(path: &Path) -> Result<(), Failure> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|error| (Op::Open, error))?;
    file.sync_all().map_err(|error| (Op::Sync, error))?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Removes a file, if it exists, and syncs its folder.
pub(super) fn remove_file(path: &Path) -> Result<(), Failure> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err((Op::Remove, error)),
        _ => path.parent().map_or(Ok(()), sync_folder),
    }
}

/// Locks a folder against other processes that lock it; returns `None` if one of them holds the lock. The lock is on
/// `file`, which only its owner can open: everybody who can read a folder could lock the folder itself, and keep
/// commands of root waiting.
pub(super) fn try_lock(folder: &Path, file: &Path) -> Result<Option<Flock<File>>, Failure> {
    fs::metadata(folder).map_err(|error| (Op::Open, error))?;
    if let Some(above) = file.parent() {
        fs::create_dir_all(above).map_err(|error| (Op::Mkdir, error))?;
    }
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(file)
        .map_err(|error| (Op::Open, error))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err((Op::Lock, errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{symlink, PermissionsExt as _};

    use super::*;

    #[test]
    fn files_are_made_and_removed_again_and_again() {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("a/b");
        let file = folder.join("c");
        for _ in 0..2 {
            make_folder(&folder, top.path()).unwrap();
            make_file(&file).unwrap();
            assert_eq!(fs::read(&file).unwrap(), b"");
        }
        for _ in 0..2 {
            remove_file(&file).unwrap();
            assert!(!file.exists());
        }
        assert!(folder.exists());
    }

    #[test]
    fn a_failed_file_operation_is_reported() {
        let top = tempfile::tempdir().unwrap();
        fs::write(top.path().join("file"), "").unwrap();
        let (op, _) = make_folder(&top.path().join("file/a"), top.path()).unwrap_err();
        assert_eq!(op, Op::Mkdir);
        let (op, _) = make_file(&top.path().join("none/a")).unwrap_err();
        assert_eq!(op, Op::Open);
        fs::create_dir(top.path().join("folder")).unwrap();
        let (op, _) = remove_file(&top.path().join("folder")).unwrap_err();
        assert_eq!(op, Op::Remove);
    }

    #[test]
    fn a_lock_is_for_one_at_a_time() {
        let top = tempfile::tempdir().unwrap();
        let file = top.path().join("run/lock");
        let lock = try_lock(top.path(), &file).unwrap();
        assert!(lock.is_some());
        assert!(try_lock(top.path(), &file).unwrap().is_none());
        drop(lock);
        assert!(try_lock(top.path(), &file).unwrap().is_some());
        let (op, _) = try_lock(&top.path().join("gone"), &file).unwrap_err();
        assert_eq!(op, Op::Open);
    }

    #[test]
    fn another_user_can_neither_hold_a_lock_nor_redirect_it() {
        let top = tempfile::tempdir().unwrap();
        let file = top.path().join("lock");
        // Anyone who can read the folder can lock it.
        let opened = File::open(top.path()).unwrap();
        let _held = Flock::lock(opened, FlockArg::LockExclusiveNonblock).unwrap();
        assert!(try_lock(top.path(), &file).unwrap().is_some());
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        let link = top.path().join("link");
        symlink(top.path().join("made"), &link).unwrap();
        try_lock(top.path(), &link).unwrap_err();
        assert!(!top.path().join("made").exists());
    }
}
