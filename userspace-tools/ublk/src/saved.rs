// SPDX-License-Identifier: GPL-2.0

//! What a disk is made of, in `/run/hcablk/ublk/N.json`, for a program that goes on with it.

use crate::{cli::Add, Error};
use hcablk::{hostid, system::Machine};
use libhcablk::{Key, Options};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{self, Write as _},
    net::IpAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
};

const DIRECTORY: &str = "/run/hcablk/ublk";
const KEYS: &str = "/etc/hcablk/keys";

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Saved {
    address: IpAddr,
    pub(crate) volume: String,
    host: String,
    keys: bool,
    options: Vec<(String, String)>,
    /// The number of its session; 0: none has begun.
    pub(crate) session: u16,
    /// What [`libhcablk::Past`] prints.
    pub(crate) past: Option<String>,
}

impl Saved {
    /// Returns what is asked for. Nothing of it was tried.
    pub(crate) fn of(add: &Add) -> Result<Self, Error> {
        let host = match &add.host_id {
            Some(host) => host.clone(),
            None => hostid::current(&Machine::new("/"))?.0.to_string(),
        };
        let split = |option: &String| {
            let (name, value) = option
                .split_once('=')
                .ok_or_else(|| format!("{option:?} is not NAME=VALUE"))?;
            if name.ends_with("-key") {
                // It would be seen by all, and kept.
                return Err(format!(
                    "keys are not given by -o {name}: --keys takes those in {KEYS}"
                )
                .into());
            }
            Ok::<_, Error>((name.to_owned(), value.to_owned()))
        };
        Ok(Self {
            address: add.address,
            volume: add.volume.clone(),
            host: host.trim().to_owned(),
            keys: add.keys,
            options: add.options.iter().map(split).collect::<Result<_, _>>()?,
            session: 0,
            past: None,
        })
    }

    /// Returns how to open the volume.
    pub(crate) fn options(&self) -> Result<Options, Error> {
        let mut options = Options::new(self.address, &self.volume, &self.host)?;
        for (name, value) in &self.options {
            options = options.set(name, value)?;
        }
        if self.keys {
            let own = format!("targets/{}", self.address);
            let of_target = match fs::exists(format!("{KEYS}/{own}"))? {
                true => key(&own)?,
                false => key("targets/default")?,
            };
            options = options.keys(key("host")?, of_target);
        }
        if self.session != 0 {
            options = options.session(self.session);
        }
        if let Some(past) = &self.past {
            options = options.past(past.parse()?);
        }
        Ok(options)
    }

    fn path(disk: u32) -> PathBuf {
        PathBuf::from(DIRECTORY).join(format!("{disk}.json"))
    }

    /// Reads that of a disk.
    pub(crate) fn read(disk: u32) -> Result<Self, Error> {
        let path = Self::path(disk);
        let text = fs::read_to_string(&path).map_err(|error| {
            format!(
                "ublkb{disk} is no disk of this program: {}: {error}",
                path.display()
            )
        })?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Keeps it as that of a disk: whoever reads it finds all of it.
    pub(crate) fn write(&self, disk: u32) -> Result<(), Error> {
        fs::create_dir_all(DIRECTORY)?;
        let path = Self::path(disk);
        let new = path.with_extension("new");
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        serde_json::to_writer_pretty(&mut file, self)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        Ok(())
    }

    /// Forgets that of a disk.
    pub(crate) fn forget(disk: u32) {
        // It may be gone already.
        let _ = fs::remove_file(Self::path(disk));
    }

    /// Returns the disks of which there is one, in order.
    pub(crate) fn disks() -> Result<Vec<u32>, Error> {
        let entries = match fs::read_dir(DIRECTORY) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut disks = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(".json"));
            disks.extend(number.and_then(|number| number.parse::<u32>().ok()));
        }
        disks.sort_unstable();
        Ok(disks)
    }
}

fn key(file: &str) -> Result<Key, Error> {
    let path = format!("{KEYS}/{file}");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let first = text.lines().next().unwrap_or("");
    Ok(first.parse().map_err(|error| format!("{path}: {error}"))?)
}
