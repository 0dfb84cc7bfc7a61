// SPDX-License-Identifier: GPL-2.0

//! Writes the objects that a command has made into the files of the configuration (`--persist`).
//!
//! In a table that a file has already, only the keys that differ are changed; a new table is added to the main file.
//! Everything else in the files stays as it is, comments included.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::Table;
use uuid::Uuid;

use super::edit::{edit, edit_table};
use super::files::{files, load_texts};
use super::loaded::{Loaded, FOLDER};
use super::lock;
use super::schema::{Config, Disk, Export, Port};
use super::value::Id;
use crate::endpoint::{same_address, Endpoint};
use crate::error::{Error, Kind, Result};
use crate::host_names::is_taken;
use crate::initiator::resolve;
use crate::names::{DeviceName, HostName, PortName, VolumeName};
use crate::output::Outcome;
use crate::system::{Lock, Op, System};

/// The first lines of a main file that this module makes.
const HEADER: &str = "# What this machine exports and connects: see `hcablk config --help`.\n";

/// Fails if the files of the configuration have a mistake, since then nothing could be written to them. A command that
/// connects a disk calls this first, without the lock: it may wait for minutes, and the files may change meanwhile.
pub(crate) fn check(system: &dyn System) -> Result<()> {
    load_texts(system, &texts(system)?).map(drop)
}

/// Returns the files with their texts, in the order in which they are read.
fn texts(system: &dyn System) -> Result<Vec<(PathBuf, String)>> {
    let read = |file: PathBuf| {
        // A lossy conversion would replace characters, and the command would write the replacements to the file.
        let text = String::from_utf8(system.read_bytes(&file)?).map_err(|_| {
            Error::new(Kind::Usage, format!("{} is not UTF-8", file.display()))
                .advise("TOML files must be UTF-8. Convert it: iconv -f LATIN1 -t UTF-8")
        })?;
        Ok((file, text))
    };
    files(system)?.into_iter().map(read).collect()
}

/// Names of hosts, each with its current address. They are looked up before the lock is taken, since a lookup may take
/// many seconds.
pub(crate) struct Names(Vec<Name>);

struct Name {
    name: String,
    /// `None` if the lookup failed.
    address: Option<String>,
}

impl Names {
    /// Looks up the names that the files have as addresses of a disk's paths, except those in `known`.
    pub(crate) fn look_up(
        system: &dyn System,
        disk: &str,
        known: Vec<(String, String)>,
    ) -> Result<Self> {
        let known = known.into_iter();
        let known = known.map(|(name, address)| Name {
            name,
            address: Some(address),
        });
        let mut names = Self(known.collect());
        let config = load_texts(system, &texts(system)?)?.config;
        let disk = config.disk.iter().find(|(name, _)| name.as_str() == disk);
        for endpoint in disk.map(|(_, disk)| endpoints(disk)).unwrap_or_default() {
            if names.get(&endpoint.address).is_none() {
                names.0.push(Name {
                    address: resolve(&endpoint.address).ok(),
                    name: endpoint.address,
                });
            }
        }
        Ok(names)
    }

    /// Returns the result for a name; `None` if it was not looked up.
    fn get(&self, name: &str) -> Option<&Name> {
        self.0.iter().find(|known| known.name == name)
    }
}

/// Returns the addresses of all paths of a disk, as its table has them.
fn endpoints(disk: &Disk) -> Vec<Endpoint> {
    let further = disk.paths.these().map(|(_, path)| path.endpoint.clone());
    std::iter::once(disk.endpoint()).chain(further).collect()
}

/// Reports that a different program wrote the files while they were locked: only commands of hcablk respect the lock.
fn changed_meanwhile(file: &Path) -> Error {
    let message = format!("{} was changed meanwhile", file.display());
    Error::new(Kind::Failed, message)
        .advise("The file was left as it is, and this command has undone its changes. Try again.")
}

/// The locked files of the configuration, and the tables that will be written to them.
pub(crate) struct Files<'a> {
    system: &'a dyn System,
    _lock: Option<Lock>,
    /// The files that exist, in their order, and their texts.
    old: Vec<(PathBuf, String)>,
    loaded: Loaded,
    wanted: Config,
    /// The tables whose values in the files the caller has read and changed: no remark reports that they differ.
    meant: Vec<String>,
    /// The names that hosts shall have; `None` if they stay.
    host_names: Option<BTreeMap<HostName, Id>>,
}

/// The result of [`Files::store`].
pub(crate) struct Stored {
    notes: Vec<String>,
    /// Whether any file was changed.
    pub(crate) is_changed: bool,
}

impl Stored {
    /// Adds this to the outcome of the command.
    pub(crate) fn report(self, outcome: &mut Outcome) {
        outcome.report.set_changed(self.is_changed);
        outcome.notes.extend(self.notes);
    }
}

impl<'a> Files<'a> {
    /// Locks the files and reads them; fails if they have a mistake.
    pub(crate) fn lock(system: &'a dyn System) -> Result<Self> {
        let folder = Path::new(FOLDER);
        // The lock is on the folder. The folder stays even if the command fails: a different command may have locked
        // it.
        if !system.exists(folder) {
            match system.mkdir(folder) {
                Err(error) if !system.exists(folder) => return Err(error.into()),
                _ => (),
            }
        }
        let lock = lock(system, None)?;
        let old = texts(system)?;
        let loaded = load_texts(system, &old)?;
        Ok(Self {
            system,
            _lock: lock,
            old,
            loaded,
            wanted: Config::default(),
            meant: Vec::new(),
            host_names: None,
        })
    }

    /// Returns the configuration in the files.
    pub(crate) fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// Adds a running disk to the tables that will be written. An address of the disk is written as a name if a name in
    /// the files or on the command line has this address. Fails if the files have a name that was not looked up before
    /// the lock was taken.
    pub(crate) fn add_disk(
        &mut self,
        name: DeviceName,
        mut disk: Disk,
        names: &Names,
    ) -> Result<()> {
        let known = self.config().disk.get(&name);
        let in_files = known.map(endpoints).unwrap_or_default();
        if let Some(new) = in_files
            .iter()
            .find(|new| names.get(&new.address).is_none())
        {
            let file = self.loaded.place_of(&format!("disk.{name}")).file;
            let mut error = changed_meanwhile(&file);
            error.message.push_str(&format!(
                ": [disk.{name}] has the address {} now",
                new.address
            ));
            return Err(error);
        }
        // Names in the files are preferred.
        let in_files = in_files.into_iter().map(|endpoint| endpoint.address);
        let given = names.0.iter().map(|given| given.name.clone());
        let all: Vec<String> = in_files.chain(given).collect();
        let name_of = |address: &str| {
            let means_it = |name: &&String| {
                let known = names.get(name).and_then(|known| known.address.as_ref());
                known.is_some_and(|known| same_address(known, address))
            };
            all.iter().find(means_it).cloned()
        };
        if let Some(name) = name_of(&disk.address) {
            disk.address = name;
        }
        for path in disk.paths.these_mut() {
            if let Some(name) = name_of(&path.endpoint.address) {
                path.endpoint.address = name;
            }
        }
        // A measurement that runs now need not run at each start.
        let same_kind = known.filter(|known| known.user == disk.user);
        disk.timing = same_kind.and_then(|known| known.timing);
        self.wanted.disk.insert(name, disk);
        Ok(())
    }

    /// Adds a running export to the tables that will be written.
    pub(crate) fn add_export(&mut self, name: VolumeName, mut export: Export) {
        let known = self.config().export.get(&name);
        export.timing = known.and_then(|known| known.timing);
        self.wanted.export.insert(name, export);
    }

    /// Adds a host to the list of allowed hosts of an export in the files.
    pub(crate) fn add_allowed(&mut self, volume: &VolumeName, host: Uuid) -> Result<()> {
        let known = self.wanted.export.get(volume);
        let known = known.or_else(|| self.config().export.get(volume)).cloned();
        let Some(mut export) = known else {
            let file = self.loaded.place_of(&format!("export.{volume}")).file;
            return Err(changed_meanwhile(&file));
        };
        if !export.allow.contains(&Id(host)) {
            export.allow.push(Id(host));
        }
        self.wanted.export.insert(volume.clone(), export);
        self.meant.push(format!("export.{volume}"));
        Ok(())
    }

    /// Gives a host a name, or removes its name.
    pub(crate) fn name_host(&mut self, host: Uuid, name: Option<&HostName>) -> Result<()> {
        let known = self.host_names.as_ref();
        let mut names = known.unwrap_or(&self.config().host_names).clone();
        names.retain(|_, id| id.0 != host);
        if let Some(name) = name {
            if let Some(other) = names.insert(name.clone(), Id(host)) {
                return Err(is_taken(name, other.0));
            }
        }
        self.host_names = Some(names);
        Ok(())
    }

    /// Adds a port to the tables that will be written.
    pub(crate) fn add_port(&mut self, name: PortName, port: Port) {
        self.wanted.port.insert(name, port);
    }

    /// Writes the added tables, and names the keys whose values in the files differed. If a file cannot be written,
    /// this restores the former text of the files that were written before.
    pub(crate) fn store(self) -> Result<Stored> {
        let mut new: BTreeMap<PathBuf, String> = BTreeMap::new();
        let (mut known_in, mut written_to) = (Vec::new(), Vec::new());
        let mut notes = Vec::new();
        let was = tables(self.config())?;
        if let Some(names) = &self.host_names {
            let file = self.loaded.place_of("host_names").file;
            let known = names_table(&self.config().host_names);
            let text = edit_table(&self.text(&file), "host_names", &known, &names_table(names));
            let text = text.map_err(|why| {
                let message = format!("cannot write [host_names] into {}: {why}", file.display());
                Error::new(Kind::Failed, message).advise("Write it by hand.")
            })?;
            written_to.push(format!("[host_names] in {}", file.display()));
            new.insert(file, text);
        }
        for (section, name, table) in tables(&self.wanted)? {
            let full = format!("{section}.{name}");
            let file = self.loaded.place_of(&full).file;
            let known = was
                .iter()
                .find(|(one, other, _)| (*one, other) == (section, &name));
            let known = known.map(|(_, _, table)| table);
            let place = format!("[{full}] in {}", file.display());
            if known == Some(&table) {
                known_in.push(place);
                continue;
            }
            let text = new.entry(file.clone()).or_insert_with(|| self.text(&file));
            *text = edit(text, section, &name, known, &table).map_err(|why| {
                let message = format!("cannot write [{full}] into {}: {why}", file.display());
                Error::new(Kind::Failed, message)
                    .advise("Write it by hand: hcablk config show --running")
            })?;
            if let Some(known) = known.filter(|_| !self.meant.contains(&full)) {
                notes.push(format!(
                    "[{full}] had values that differ from the running state: {}",
                    differences(known, &table)
                ));
            }
            written_to.push(place);
        }
        if new.is_empty() {
            notes.insert(0, format!("configured already: {}", known_in.join(" and ")));
            return Ok(Stored {
                notes,
                is_changed: false,
            });
        }
        self.verify(&new)?;
        if self.system.interrupted() {
            return Err(Error::interrupted());
        }
        self.refuse_changed()?;
        self.replace(&new)?;
        notes.insert(0, format!("configured now: {}", written_to.join(" and ")));
        Ok(Stored {
            notes,
            is_changed: true,
        })
    }

    /// Returns the text of a file; if the file does not exist, the first lines of a new one.
    fn text(&self, file: &Path) -> String {
        let known = self.old.iter().find(|(path, _)| path == file);
        known.map_or_else(|| HEADER.to_owned(), |(_, text)| text.clone())
    }

    /// Checks that the new files contain the added tables, and have no mistake.
    fn verify(&self, new: &BTreeMap<PathBuf, String>) -> Result<()> {
        let mut all = self.old.clone();
        for (file, text) in new {
            match all.iter_mut().find(|(path, _)| path == file) {
                Some((_, known)) => known.clone_from(text),
                // Only the main file may be new, and it comes first.
                None => all.insert(0, (file.clone(), text.clone())),
            }
        }
        let config = load_texts(self.system, &all)?.config;
        if self
            .host_names
            .as_ref()
            .is_some_and(|names| *names != config.host_names)
        {
            let message =
                "the configuration cannot express [host_names] together with its other tables";
            return Err(Error::new(Kind::Failed, message).advise("Write it by hand."));
        }
        let parsed = tables(&config)?;
        let mut wanted = tables(&self.wanted)?.into_iter();
        match wanted.find(|table| !parsed.contains(table)) {
            None => Ok(()),
            Some((section, name, _)) => Err(Error::new(
                Kind::Failed,
                format!("the configuration cannot express [{section}.{name}] together with its other tables"),
            )
            .advise("Write it by hand: hcablk config show --running")),
        }
    }

    /// Fails if the files have changed since they were read: an editor does not respect the lock, and its text would be
    /// lost.
    fn refuse_changed(&self) -> Result<()> {
        let current = texts(self.system)?;
        let added = current.iter().find(|one| !self.old.contains(one));
        let gone = self.old.iter().find(|one| !current.contains(one));
        match added.or(gone) {
            Some((file, _)) => Err(changed_meanwhile(file)),
            None => Ok(()),
        }
    }

    fn replace(&self, new: &BTreeMap<PathBuf, String>) -> Result<()> {
        for (index, (file, text)) in new.iter().enumerate() {
            if let Err(error) = self.system.replace(file, text) {
                let mut error = Error::from(error);
                for (file, text) in new.iter().take(index + 1) {
                    let undone = self.restore(file, text);
                    error.not_undone.extend(undone.err());
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Restores the former text of a file that has the new one: replacing a file may fail after the new file is in
    /// place, when a power failure could bring back either.
    fn restore(&self, file: &Path, new: &str) -> Result<(), String> {
        if self.system.read(file).is_ok_and(|text| text != new) || !self.system.exists(file) {
            return Ok(());
        }
        let undone = match self.old.iter().find(|(path, _)| path == file) {
            Some((_, text)) => self.system.replace(file, text),
            None => self.system.remove_durable_file(file),
        };
        undone.map_err(|error| match error.op {
            Op::Sync => format!(
                "{} has its former text again, but a power failure may bring back the new one: {error}",
                file.display()
            ),
            _ => format!("{} has the new text: {error}", file.display()),
        })
    }
}

/// Returns the table `[host_names]`.
fn names_table(names: &BTreeMap<HostName, Id>) -> Table {
    let entries = names.iter();
    entries
        .map(|(name, id)| (name.to_string(), toml::Value::String(id.to_string())))
        .collect()
}

/// Names the keys that differ between two tables.
fn differences(old: &Table, new: &Table) -> String {
    let removed = old.keys().filter(|key| !new.contains_key(*key));
    let added = new.keys().filter(|key| !old.contains_key(*key));
    let is_other = |key: &&String| old.get(*key).is_some_and(|old| new.get(*key) != Some(old));
    let changed = new.keys().filter(is_other);
    let kinds = [
        ("removed", removed.cloned().collect::<Vec<_>>()),
        ("changed", changed.cloned().collect()),
        ("added", added.cloned().collect()),
    ];
    let kinds = kinds.iter().filter(|(_, keys)| !keys.is_empty());
    let texts: Vec<_> = kinds
        .map(|(what, keys)| format!("{what} {}", keys.join(", ")))
        .collect();
    texts.join("; ")
}

/// Returns the tables of a configuration, each with its section and its name, and without keys at their defaults.
fn tables(config: &Config) -> Result<Vec<(&'static str, String, Table)>> {
    let mut all = Vec::new();
    for (name, export) in &config.export {
        let mut export = export.without_defaults()?;
        export.allow.sort();
        export.allow.dedup();
        all.push(("export", name.to_string(), Table::try_from(export)));
    }
    for (name, port) in &config.port {
        all.push((
            "port",
            name.to_string(),
            Table::try_from(port.without_defaults()?),
        ));
    }
    for (name, disk) in &config.disk {
        let mut disk = disk.without_defaults()?;
        disk.volume = disk
            .volume
            .filter(|volume| volume.as_str() != name.as_str());
        all.push(("disk", name.to_string(), Table::try_from(disk)));
    }
    let all = all.into_iter().map(|(section, name, table)| {
        let table = table.map_err(|error| {
            Error::new(
                Kind::Failed,
                format!("cannot express [{section}.{name}] as TOML: {error}"),
            )
        })?;
        Ok((section, name, table))
    });
    all.collect()
}
