// SPDX-License-Identifier: GPL-2.0

//! Replaces files atomically, without following links of other users.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{fchown, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use super::Op;

/// The largest number of links in a chain, as in the kernel.
const LINKS_MAX: usize = 40;

/// A failure, with the operation that failed.
type Failure = (Op, io::Error);

/// The readers of the new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The readers of the former file; for a new file, those that the umask allows.
    Keep,
    /// The caller alone.
    Secret,
}

/// Returns whether a caller of this user id may follow a link of this owner: only its own links and root's. Otherwise a
/// user who puts a link into a folder that everybody can write to would choose the file that root writes.
fn is_trusted(owner: u32, caller: u32) -> bool {
    owner == 0 || owner == caller
}

/// Follows the links at `path` itself, if they are trusted. The file system follows links among its parent folders.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let known = match fs::symlink_metadata(&path) {
            Ok(known) => known,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
            Err(error) => return Err(error),
        };
        if !known.is_symlink() {
            return Ok(path);
        }
        if !is_trusted(known.uid(), geteuid().as_raw()) {
            return Err(Errno::ELOOP.into());
        }
        // The text of a magic link, such as `/proc/self/fd/1`, need not be the name of a file.
        if fs::metadata(&path).is_ok_and(|to| !to.is_file() && !to.is_dir()) {
            return Ok(path);
        }
        let to = fs::read_link(&path)?;
        path = path.parent().unwrap_or(Path::new("/")).join(to);
    }
    Err(Errno::ELOOP.into())
}

/// Writes to a file that is not regular, such as a terminal or a pipe. A link is followed if [`resolve`] trusts it.
fn write_through(path: &Path, text: &str) -> io::Result<()> {
    let mut flags = OFlag::O_NOCTTY;
    if !fs::symlink_metadata(path)?.is_symlink() {
        flags |= OFlag::O_NOFOLLOW;
    }
    let mut file = OpenOptions::new()
        .write(true)
        .custom_flags(flags.bits())
        .open(path)?;
    // The file was replaced meanwhile.
    if file.metadata()?.is_file() {
        return Err(Errno::ELOOP.into());
    }
    file.write_all(text.as_bytes())
}

/// Replaces the file at `path` with a new one that contains `text`.
pub(super) fn replace(path: &Path, text: &str, mode: Mode) -> Result<(), Failure> {
    let path = resolve(path).map_err(|error| (Op::Open, error))?;
    // The remaining links are magic ones.
    if fs::metadata(&path).is_ok_and(|known| !known.is_file()) {
        return write_through(&path, text).map_err(|error| (Op::Open, error));
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    if !folder.as_os_str().is_empty() {
        fs::create_dir_all(folder).map_err(|error| (Op::Mkdir, error))?;
    }
    put(folder, &path, text, mode).map_err(|error| (Op::Open, error))?;
    // A power failure must not restore the former file. If this fails, the new one is in place nevertheless.
    sync_folder(folder).map_err(|error| (Op::Sync, error))
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(or_current(folder))?.sync_all()
}

/// Returns the folder of a file whose path may be its name alone.
fn or_current(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    }
}

/// Makes a file that only the caller can read; fails if it exists.
pub(super) fn create(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| (Op::Open, error))?;
    // A network file system may report a full drive only now.
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.map_err(|error| {
        // An incomplete file is of no use. The failure to write is the one to report.
        let _ = fs::remove_file(path);
        (Op::Write, error)
    })
}

fn put(folder: &Path, path: &Path, text: &str, mode: Mode) -> io::Result<()> {
    let folder = or_current(folder);
    let asked = match mode {
        Mode::Keep => 0o666,
        Mode::Secret => 0o600,
    };
    // The name is random, and the file is created only if the name is free, so nobody can have put anything there. The
    // file is removed when something fails.
    let mut new = tempfile::Builder::new()
        .permissions(Permissions::from_mode(asked))
        .prefix(".hcablk-")
        .tempfile_in(folder)?;
    if mode == Mode::Keep {
        if let Some(known) = fs::symlink_metadata(path)
            .ok()
            .filter(fs::Metadata::is_file)
        {
            let fresh = new.as_file().metadata()?;
            if (fresh.uid(), fresh.gid()) != (known.uid(), known.gid()) {
                fchown(new.as_file(), Some(known.uid()), Some(known.gid()))?;
            }
            new.as_file()
                .set_permissions(Permissions::from_mode(known.mode() & 0o7777))?;
        }
    }
    new.write_all(text.as_bytes())?;
    new.as_file().sync_all()?;
    new.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_link_of_another_user_is_not_followed() {
        assert!(is_trusted(0, 1000) && is_trusted(1000, 1000) && is_trusted(0, 0));
        assert!(!is_trusted(1000, 0) && !is_trusted(1001, 1000));
        let top = tempfile::tempdir().unwrap();
        let (victim, link) = (top.path().join("victim"), top.path().join("link"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &link).unwrap();
        // Only root can change the owner of a link; the tests of `is_trusted` cover links of other users.
        if geteuid().is_root() {
            lchown(&link, Some(1234), None).unwrap();
            let (op, error) = replace(&link, "overwritten", Mode::Keep).unwrap_err();
            assert_eq!(
                (op, error.raw_os_error()),
                (Op::Open, Some(Errno::ELOOP as i32))
            );
            let (op, _) = replace(&link, "overwritten", Mode::Secret).unwrap_err();
            assert_eq!(op, Op::Open);
            assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
            assert_eq!(names(top.path()), ["link", "victim"]);
        }
    }

    #[test]
    fn the_target_of_an_own_link_is_replaced_and_the_link_stays() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir(top.path().join("real")).unwrap();
        let link = top.path().join("link");
        symlink("real/file", &link).unwrap();
        for text in ["one", "two"] {
            replace(&link, text, Mode::Keep).unwrap();
            assert_eq!(
                fs::read_to_string(top.path().join("real/file")).unwrap(),
                text
            );
        }
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        symlink("round", top.path().join("round")).unwrap();
        replace(&top.path().join("round"), "x", Mode::Keep).unwrap_err();
    }

    #[test]
    fn a_file_is_created_only_if_none_exists() {
        let top = tempfile::tempdir().unwrap();
        let file = top.path().join("file");
        create(&file, b"one").unwrap();
        assert_eq!(mode_of(&file), 0o600);
        let (op, error) = create(&file, b"two").unwrap_err();
        assert_eq!(
            (op, error.raw_os_error()),
            (Op::Open, Some(Errno::EEXIST as i32))
        );
        assert_eq!(fs::read(&file).unwrap(), b"one");
        symlink(top.path().join("made"), top.path().join("link")).unwrap();
        create(&top.path().join("link"), b"x").unwrap_err();
        assert!(!top.path().join("made").exists());
    }

    #[test]
    fn the_new_file_has_the_mode_and_owner_of_the_former_one() {
        let top = tempfile::tempdir().unwrap();
        let file = top.path().join("file");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        let owner = if geteuid().is_root() {
            1234
        } else {
            geteuid().as_raw()
        };
        if geteuid().is_root() {
            lchown(&file, Some(1234), Some(1235)).unwrap();
        }
        replace(&file, "new", Mode::Keep).unwrap();
        assert_eq!(mode_of(&file), 0o640);
        assert_eq!(fs::metadata(&file).unwrap().uid(), owner);
        assert_eq!(names(top.path()), ["file"]);
        // Only the caller may read a secret, even if others could read the former file.
        replace(&file, "secret", Mode::Secret).unwrap();
        assert_eq!(mode_of(&file), 0o600);
        assert_eq!(fs::metadata(&file).unwrap().uid(), geteuid().as_raw());
    }

    #[test]
    fn a_failed_replacement_leaves_no_file() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir(top.path().join("folder")).unwrap();
        replace(&top.path().join("folder"), "x", Mode::Keep).unwrap_err();
        assert_eq!(names(top.path()), ["folder"]);
        assert_eq!(names(&top.path().join("folder")), Vec::<String>::new());
    }
}
