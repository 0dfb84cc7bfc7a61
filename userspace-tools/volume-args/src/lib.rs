// SPDX-License-Identifier: GPL-2.0

//! The common parts of the programs that serve a volume in user space: the arguments that select the volume, the
//! options of the library, and the notification of systemd.

use clap::Args;
use hcablk::{hostid, system::Machine, user::files::Wanted};
use libhcablk::{Key, Options};
use nix::fcntl::{Flock, FlockArg};
use std::{
    env,
    fs::{self, File},
    io,
    net::IpAddr,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            fs::OpenOptionsExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    path::Path,
};

const KEYS: &str = "/etc/hcablk/keys";

/// The reason of a failure, in a sentence.
pub type Error = Box<dyn std::error::Error>;

/// The volume to serve.
#[derive(Args, Clone, Debug)]
pub struct VolumeArgs {
    /// The target's address
    pub address: IpAddr,
    /// The name of the volume
    pub volume: String,
    /// This host's id, a UUID [default: the id that `hcablk host-id` prints]
    #[arg(long)]
    pub host_id: Option<String>,
    /// Prove this host's identity with the keys in /etc/hcablk/keys, which `hcablk key` has stored
    #[arg(long)]
    pub keys: bool,
    /// An option of the library, such as `-o queues=4 -o ctrl-loss-tmo=60`
    ///
    /// port, path, queues, queue-depth, connect-timeout, ctrl-loss-tmo, fast-io-fail-tmo, reconnect-delay,
    /// keep-alive-tmo, io-timeout, small-read, eager-write, remote-invalidate, session, state
    #[arg(short, long = "option", value_name = "NAME=VALUE")]
    pub options: Vec<String>,
}

impl VolumeArgs {
    /// Returns the arguments in the form that is saved. Nothing has been tried yet.
    pub fn wanted(&self) -> Result<Wanted, Error> {
        let host = match &self.host_id {
            Some(host) => host.clone(),
            None => hostid::current(&Machine::new("/"))?.0.to_string(),
        };
        Ok(Wanted {
            address: self.address,
            volume: self.volume.clone(),
            host: host.trim().to_owned(),
            keys: self.keys,
            wwid: None,
            options: self
                .options
                .iter()
                .map(|option| split(option))
                .collect::<Result<_, _>>()?,
        })
    }
}

/// Splits an option into its name and its value.
fn split(option: &str) -> Result<(String, String), Error> {
    let (name, value) = option
        .split_once('=')
        .ok_or_else(|| format!("{option:?} is not NAME=VALUE"))?;
    if name.ends_with("-key") {
        // Everybody could see it, and it would be stored.
        return Err(
            format!("keys cannot be set with -o {name}: --keys reads those in {KEYS}").into(),
        );
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Returns the options that open the wanted volume.
pub fn options(wanted: &Wanted) -> Result<Options, Error> {
    let mut options = Options::new(wanted.address, &wanted.volume, &wanted.host)?;
    for (name, value) in &wanted.options {
        options = options.set(name, value)?;
    }
    if wanted.keys {
        let own = format!("targets/{}", wanted.address);
        let of_target = match fs::exists(format!("{KEYS}/{own}"))? {
            true => key(&own)?,
            false => key("targets/default")?,
        };
        options = options.keys(key("host")?, of_target);
    }
    Ok(options)
}

/// Returns options with the directory of session numbers.
pub fn numbers(wanted: &Wanted) -> Result<Options, Error> {
    let options = Options::new(wanted.address, &wanted.volume, &wanted.host)?;
    Ok(match wanted.option("state") {
        Some(directory) => options.state(directory),
        None => options,
    })
}

fn key(file: &str) -> Result<Key, Error> {
    let path = format!("{KEYS}/{file}");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let first = text.lines().next().unwrap_or("");
    Ok(first.parse().map_err(|error| format!("{path}: {error}"))?)
}

/// A lock on a file, which is held until it is dropped. The file is not removed: otherwise two
/// programs could hold the lock of two files of the same name.
pub struct Lock(#[expect(dead_code, reason = "it is held")] Flock<File>);

impl Lock {
    /// Takes the lock on the file `path`, which is created if it does not exist. Returns `None` if
    /// another program holds the lock.
    pub fn take(path: &Path) -> io::Result<Option<Self>> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        Ok(Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .ok()
            .map(Self))
    }
}

/// Notifies systemd that the service is ready, and of its status; does nothing if no unit waits for that.
pub fn notify_ready(status: &str) -> io::Result<()> {
    let Some(place) = env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let text = format!("READY=1\nSTATUS={status}");
    let place = place.to_string_lossy();
    let address = match place.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(place.as_ref())?,
    };
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_a_name_and_a_value_and_no_key() {
        assert_eq!(
            split("queues=4").unwrap(),
            ("queues".to_owned(), "4".to_owned())
        );
        assert_eq!(
            split("state=/a=b").unwrap(),
            ("state".to_owned(), "/a=b".to_owned())
        );
        assert!(split("queues")
            .unwrap_err()
            .to_string()
            .contains("NAME=VALUE"));
        let secret = split("host-key=hcablk-key-1:77").unwrap_err().to_string();
        assert!(
            secret.contains("--keys") && !secret.contains("77"),
            "{secret}"
        );
    }

    #[test]
    fn a_lock_is_held_by_one_at_a_time() {
        let path = env::temp_dir().join(format!("hcablk-lock-{}", std::process::id()));
        let first = Lock::take(&path).unwrap();
        assert!(first.is_some() && Lock::take(&path).unwrap().is_none());
        drop(first);
        assert!(Lock::take(&path).unwrap().is_some());
        fs::remove_file(path).unwrap();
    }
}
