// SPDX-License-Identifier: GPL-2.0

//! The state that a killed program leaves for the next one of the same socket: `/run/hcablk/vhost-user/SOCKET.json`.
//!
//! A guest does not notice that a different program serves its disk. If a write that the former
//! program had acknowledged is lost, the guest's next flush must fail. Therefore the next program
//! continues with the session and the past of the former one. Only a program that ends after a
//! flush of all acknowledged writes leaves nothing.

use crate::{server, ForGood};
use hcablk::{
    system::{Machine, System as _},
    user::files::{self, Wanted},
};
use hcablk_volume_args::{numbers, Error, Lock};
use libhcablk::Options;
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

const FOLDER: &str = "/run/hcablk/vhost-user";

/// The state of a program; see the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Saved {
    #[serde(flatten)]
    pub(crate) wanted: Wanted,
    /// The number of the session.
    pub(crate) session: u16,
    /// The text of [`libhcablk::Past`]; `None` if the volume has no wwid.
    pub(crate) past: Option<String>,
}

/// The files of a socket.
#[derive(Clone, Debug)]
pub(crate) struct SocketFiles {
    /// The absolute path of the socket.
    pub(crate) socket: PathBuf,
    state: PathBuf,
    lock: PathBuf,
}

impl SocketFiles {
    /// Returns the files of a socket. The folder of the socket must exist.
    pub(crate) fn new(socket: &Path) -> Result<Self, Error> {
        let nowhere = |error| format!("{}: {error}", socket.display());
        let name = socket.file_name();
        let name = name.ok_or_else(|| format!("{} is not a path of a socket", socket.display()))?;
        let folder = match socket.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let socket = folder.canonicalize().map_err(nowhere)?.join(name);
        let text = socket.to_str();
        let text = text.ok_or_else(|| format!("{} is not in UTF-8", socket.display()))?;
        let escaped = escape(text);
        let folder = Path::new(FOLDER);
        Ok(Self {
            state: folder.join(format!("{escaped}.json")),
            lock: folder.join(format!("{escaped}.lock")),
            socket,
        })
    }

    /// Takes the lock of the socket; fails if another program has it.
    pub(crate) fn take(&self) -> Result<Lock, Error> {
        let lock = Lock::take(&self.lock);
        let lock = lock.map_err(|error| format!("{}: {error}", self.lock.display()))?;
        let served = || format!("another program serves {}", self.socket.display());
        Ok(lock.ok_or_else(served)?)
    }

    /// Reads the state that the last program has left.
    pub(crate) fn read(&self) -> Result<Option<Saved>, Error> {
        let text = match fs::read_to_string(&self.state) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| format!("{}: {error}", self.state.display()))?,
        };
        let broken = |error| format!("{} cannot be understood: {error}", self.state.display());
        Ok(Some(serde_json::from_str(&text).map_err(broken)?))
    }

    /// Stores the state for the next program atomically.
    pub(crate) fn write(&self, saved: &Saved) -> Result<(), Error> {
        let text = files::text(saved)?;
        Ok(Machine::new("/").replace_secret(&self.state, &text)?)
    }

    /// Removes the state, and releases the session's number.
    pub(crate) fn forget(&self, saved: &Saved) -> Result<(), Error> {
        match fs::remove_file(&self.state) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(format!("{}: {error}", self.state.display()).into());
            }
            _ => {}
        }
        Ok(numbers(&saved.wanted)?.release_session(saved.session)?)
    }
}

/// Converts a path to a file name.
fn escape(path: &str) -> String {
    path.trim_start_matches('/')
        .replace('%', "%25")
        .replace('/', "%2F")
}

impl Saved {
    /// Makes the state of a volume that was not opened yet.
    pub(crate) fn begin(wanted: Wanted) -> Self {
        Self {
            wanted,
            session: 0,
            past: None,
        }
    }

    /// Returns the options that open the volume: with the settings `wanted` now, and as the successor of the program
    /// that has left this state.
    pub(crate) fn options(&self, wanted: &Wanted) -> Result<Options, Error> {
        let mut options = hcablk_volume_args::options(wanted)?;
        if self.session != 0 {
            let Some(past) = &self.past else {
                let why = "the program that served this socket was killed, and its volume has no wwid: lost writes cannot be detected. After the virtual machine has ended, run: hcablk-vhost-user forget SOCKET";
                return Err(ForGood(why.to_owned()).into());
            };
            options = options.session(self.session).past(past.parse()?);
        }
        Ok(options)
    }

    /// Reserves the session's number for the next program of this socket.
    pub(crate) fn reserve(&self) -> Result<(), Error> {
        let reserved = numbers(&self.wanted)?.reserve_session(self.session);
        Ok(reserved.map_err(|error| format!("reserving session {}: {error}", self.session))?)
    }
}

/// Removes the state that a killed program has left for a socket.
pub(crate) fn forget(socket: &Path) -> Result<(), Error> {
    let place = SocketFiles::new(socket)?;
    let _lock = place.take()?;
    if let Some(saved) = place.read()? {
        place.forget(&saved)?;
        println!("{}", server::display(&place.socket));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_socket_has_its_own_name() {
        assert_eq!(escape("/run/a/b.sock"), "run%2Fa%2Fb.sock");
        assert_ne!(escape("/run/a%2Fb"), escape("/run/a/b"));
    }

    #[test]
    fn a_volume_without_wwid_has_no_successor() {
        let wanted = Wanted {
            address: [10, 0, 0, 1].into(),
            volume: "data".to_owned(),
            host: "6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45".to_owned(),
            keys: false,
            wwid: None,
            options: Vec::new(),
        };
        let mut saved = Saved::begin(wanted.clone());
        assert!(saved.options(&wanted).is_ok());
        saved.session = 7;
        assert!(saved.options(&wanted).unwrap_err().is::<ForGood>());
        let past = "6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a47 0000000000000001 durable kept";
        saved.past = Some(past.to_owned());
        assert!(saved.options(&wanted).is_ok());
        let text = files::text(&saved).unwrap();
        assert_eq!(serde_json::from_str::<Saved>(&text).unwrap(), saved);
    }
}
