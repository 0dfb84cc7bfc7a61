// SPDX-License-Identifier: GPL-2.0

//! The socket's file: replaces that of a killed program, and never removes that of another program.

use crate::Error;
use nix::sys::stat::{umask, Mode};
use std::{
    fs::{self, Permissions},
    io::ErrorKind,
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

/// A listening socket. Dropping it removes its file, unless another program has replaced the file.
pub(crate) struct Socket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    /// The device and the number of the file.
    file: (u64, u64),
}

fn file_of(path: &Path) -> Option<(u64, u64)> {
    let data = fs::symlink_metadata(path).ok()?;
    Some((data.dev(), data.ino()))
}

impl Socket {
    /// Listens at `path`, for the users to whom `mode` permits connecting.
    pub(crate) fn listen(path: &Path, mode: u32) -> Result<Self, Error> {
        let failed = |error| format!("{}: {error}", path.display());
        remove_left(path)?;
        // Nobody else connects until the permissions are set.
        let before = umask(Mode::from_bits_truncate(0o177));
        let listener = UnixListener::bind(path);
        umask(before);
        let listener = listener.map_err(failed)?;
        let file = file_of(path).ok_or_else(|| format!("{} is gone", path.display()))?;
        let socket = Self {
            listener,
            path: path.to_owned(),
            file,
        };
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?;
        socket.listener.set_nonblocking(true).map_err(failed)?;
        Ok(socket)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if file_of(&self.path) == Some(self.file) {
            // It may be gone already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Fails if the file at `path` is not a socket, or if a program listens there.
pub(crate) fn refuse_used(path: &Path) -> Result<(), Error> {
    let Ok(data) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !data.file_type().is_socket() {
        return Err(format!("{} exists, and is not a socket", path.display()).into());
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Ok(_) => Err(format!("another program listens at {}", path.display()).into()),
        Err(error) => Err(format!("{}: {error}", path.display()).into()),
    }
}

/// Removes a socket at which nobody listens.
fn remove_left(path: &Path) -> Result<(), Error> {
    let before = file_of(path);
    refuse_used(path)?;
    if before.is_some() && file_of(path) == before {
        fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_left_socket_is_replaced_and_no_other_file() {
        let folder = std::env::temp_dir().join(format!("hcablk-socket-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a");
        drop(UnixListener::bind(&path).unwrap());
        let socket = Socket::listen(&path, 0o660).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let used = Socket::listen(&path, 0o600).err().unwrap().to_string();
        assert!(used.contains("another program listens"), "{used}");
        drop(socket);
        assert!(!path.exists());
        fs::write(&path, "precious").unwrap();
        let other = Socket::listen(&path, 0o600).err().unwrap().to_string();
        assert!(other.contains("is not a socket"), "{other}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_socket_that_another_one_has_replaced_is_not_removed() {
        let folder = std::env::temp_dir().join(format!("hcablk-replaced-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a");
        let socket = Socket::listen(&path, 0o600).unwrap();
        fs::remove_file(&path).unwrap();
        // So that the next socket does not get the inode number of the removed one.
        fs::write(folder.join("b"), "").unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
        drop(other);
        fs::remove_dir_all(&folder).unwrap();
    }
}
