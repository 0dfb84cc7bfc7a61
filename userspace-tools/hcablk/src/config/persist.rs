// SPDX-License-Identifier: GPL-2.0

//! Writes what a command has made into the files of the configuration (`--persist`).
//!
//! A table that a file has already is changed there, and only its keys that differ; a new one is added to the main
//! file. Everything else in the files stays as it is, comments included.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::Table;
use toml_edit::{DocumentMut, Item, TableLike};

use super::files::{load_texts, texts};
use super::loaded::Loaded;
use super::schema::{Config, Disk, Export, Port};
use crate::error::{Error, Kind, Result};
use crate::names::{DeviceName, PortName, VolumeName};
use crate::system::System;

/// The first lines of a main file that this module makes.
const HEADER: &str = "# What this machine exports and connects: see `hcablk config --help`.\n";

/// The files of the configuration, and the tables that they get.
pub(crate) struct Files<'a> {
    system: &'a dyn System,
    /// The files that exist, in their order, and their texts.
    old: Vec<(PathBuf, String)>,
    loaded: Loaded,
    wanted: Config,
}

impl<'a> Files<'a> {
    /// Reads the files; fails if they have a mistake, since nothing could be applied then.
    pub(crate) fn read(system: &'a dyn System) -> Result<Self> {
        let old = texts(system)?;
        let loaded = load_texts(system, &old)?;
        Ok(Self {
            system,
            old,
            loaded,
            wanted: Config::default(),
        })
    }

    /// Returns the machine.
    pub(crate) fn system(&self) -> &'a dyn System {
        self.system
    }

    /// Returns the configuration in the files.
    pub(crate) fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// Adds a disk that shall be in the files.
    pub(crate) fn add_disk(&mut self, name: DeviceName, disk: Disk) {
        self.wanted.disk.insert(name, disk);
    }

    /// Adds an export that shall be in the files.
    pub(crate) fn add_export(&mut self, name: VolumeName, export: Export) {
        self.wanted.export.insert(name, export);
    }

    /// Adds a port that shall be in the files.
    pub(crate) fn add_port(&mut self, name: PortName, port: Port) {
        self.wanted.port.insert(name, port);
    }

    /// Writes what was added. Returns a remark that says where it is, and whether any file was changed. If a file
    /// cannot be written, those that were written before get their former text.
    pub(crate) fn store(self) -> Result<(String, bool)> {
        let mut new: BTreeMap<PathBuf, String> = BTreeMap::new();
        let mut places = Vec::new();
        let was = tables(self.config())?;
        for (section, name, table) in tables(&self.wanted)? {
            let full = format!("{section}.{name}");
            let file = self.loaded.place_of(&full).file;
            let known = was
                .iter()
                .find(|(one, other, _)| (*one, other) == (section, &name));
            let known = known.map(|(_, _, table)| table);
            if !places.contains(&file) {
                places.push(file.clone());
            }
            if known == Some(&table) {
                continue;
            }
            let text = new.entry(file.clone()).or_insert_with(|| self.text(&file));
            *text = edit(text, section, &name, known, &table).map_err(|why| {
                let message = format!("cannot write [{full}] into {}: {why}", file.display());
                Error::new(Kind::Failed, message)
                    .advise("Write it by hand: hcablk config show --running")
            })?;
        }
        let files: Vec<_> = places
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        let files = files.join(" and ");
        if new.is_empty() {
            return Ok((
                format!("the configuration has it already, in {files}"),
                false,
            ));
        }
        self.verify(&new)?;
        if self.system.interrupted() {
            return Err(Error::interrupted());
        }
        self.replace(&new)?;
        Ok((format!("the configuration has it now, in {files}"), true))
    }

    /// Returns the text of a file; that of a new one if it does not exist.
    fn text(&self, file: &Path) -> String {
        let known = self.old.iter().find(|(path, _)| path == file);
        known.map_or_else(|| HEADER.to_owned(), |(_, text)| text.clone())
    }

    /// Checks that the new files say what was asked for, and have no mistake.
    fn verify(&self, new: &BTreeMap<PathBuf, String>) -> Result<()> {
        let mut all = self.old.clone();
        for (file, text) in new {
            match all.iter_mut().find(|(path, _)| path == file) {
                Some((_, known)) => known.clone_from(text),
                // Only the main file may be new, and it comes first.
                None => all.insert(0, (file.clone(), text.clone())),
            }
        }
        let parsed = tables(&load_texts(self.system, &all)?.config)?;
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

    fn replace(&self, new: &BTreeMap<PathBuf, String>) -> Result<()> {
        let mut written: Vec<&PathBuf> = Vec::new();
        for (file, text) in new {
            let Err(error) = self.system.replace(file, text) else {
                written.push(file);
                continue;
            };
            let mut error = Error::from(error);
            for file in written {
                let known = self.old.iter().find(|(path, _)| path == file);
                let undone = match known {
                    Some((_, text)) => self.system.replace(file, text),
                    None => self.system.remove_durable_file(file),
                };
                error
                    .not_undone
                    .extend(undone.err().map(|why| why.to_string()));
            }
            return Err(error);
        }
        Ok(())
    }
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

/// Changes the table `[section.name]` of a file from `old` to `new`, or adds it; returns the new text of the file.
fn edit(
    text: &str,
    section: &str,
    name: &str,
    old: Option<&Table>,
    new: &Table,
) -> Result<String, String> {
    let mut file: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
    if file.is_empty() && !text.trim().is_empty() {
        // Comments alone are the end of a file without tables: a table would come before them.
        let table = edit("", section, name, old, new)?;
        return Ok(format!("{}\n\n{table}", text.trim_end()));
    }
    let sections = file.entry(section).or_insert_with(|| {
        let mut table = toml_edit::Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    let is_inline = sections.is_inline_table();
    let sections = sections
        .as_table_like_mut()
        .ok_or_else(|| format!("{section} is not a table"))?;
    if let Some(table) = sections.get_mut(name) {
        let table = table
            .as_table_like_mut()
            .ok_or_else(|| format!("{section}.{name} is not a table"))?;
        change(table, old.unwrap_or(&Table::new()), new)?;
        return Ok(file.to_string());
    }
    let mut table = toml_edit::Table::new();
    change(&mut table, &Table::new(), new)?;
    if !text.trim().is_empty() {
        table.decor_mut().set_prefix("\n");
    }
    let item = if is_inline {
        Item::Value(table.into_inline_table().into())
    } else {
        Item::Table(table)
    };
    sections.insert(name, item);
    Ok(file.to_string())
}

/// Changes the keys that differ between `old` and `new`. A key that is in neither has its default, and stays.
fn change(table: &mut dyn TableLike, old: &Table, new: &Table) -> Result<(), String> {
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        table.remove(key);
    }
    for (key, value) in new
        .iter()
        .filter(|(key, value)| old.get(*key) != Some(value))
    {
        let value: toml_edit::Value = value
            .to_string()
            .parse()
            .map_err(|error| format!("{key}: {error}"))?;
        match table.get_mut(key).and_then(Item::as_value_mut) {
            // The comment after the value stays.
            Some(known) => {
                let decor = known.decor().clone();
                *known = value;
                *known.decor_mut() = decor;
            }
            None => drop(table.insert(key, Item::Value(value))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Table {
        text.parse().unwrap()
    }

    #[test]
    fn a_new_table_is_added_and_the_rest_stays() {
        let text = "# mine\n[host]\nid = \"x\" # this\n\n[disk.a] # first\naddress = \"h\"\n";
        let new = table("address = \"10.0.0.1\"\npaths = { 1 = \"10.0.1.1:7744\" }");
        let after = edit(text, "disk", "b", None, &new).unwrap();
        assert_eq!(
            after,
            format!(
                "{text}\n[disk.b]\naddress = \"10.0.0.1\"\npaths = {{ 1 = \"10.0.1.1:7744\" }}\n"
            )
        );
        assert_eq!(
            edit("", "disk", "b", None, &table("address = \"h\"")).unwrap(),
            "[disk.b]\naddress = \"h\"\n"
        );
        assert_eq!(
            edit("# mine\n", "disk", "b", None, &table("address = \"h\"")).unwrap(),
            "# mine\n\n[disk.b]\naddress = \"h\"\n"
        );
    }

    #[test]
    fn only_keys_that_differ_are_changed() {
        let text = "[disk.a] # first\n# the address\naddress = \"h\" # old\nqueue_depth = 128 # the default\nqueues = 4\nport = 7745\n[host]\n";
        let old = table("address = \"h\"\nqueues = 4\nport = 7745");
        let new = table("address = \"i\"\nport = 7745\nctrl_loss_tmo = \"never\"");
        assert_eq!(
            edit(text, "disk", "a", Some(&old), &new).unwrap(),
            "[disk.a] # first\n# the address\naddress = \"i\" # old\nqueue_depth = 128 # the default\nport = 7745\nctrl_loss_tmo = \"never\"\n[host]\n"
        );
    }

    #[test]
    fn tables_within_a_line_and_dotted_keys_are_changed() {
        let (old, new) = (table("address = \"h\""), table("address = \"i\""));
        for (text, after) in [
            (
                "disk = { a = { address = \"h\" } }\n",
                "disk = { a = { address = \"i\" } }\n",
            ),
            ("disk.a.address = \"h\"\n", "disk.a.address = \"i\"\n"),
        ] {
            let edited = edit(text, "disk", "a", Some(&old), &new).unwrap();
            assert_eq!(edited, after);
        }
        let edited = edit(
            "disk = { a = { address = \"h\" } }\n",
            "disk",
            "b",
            None,
            &new,
        );
        let edited: Table = edited.unwrap().parse().unwrap();
        assert_eq!(edited["disk"]["b"]["address"].as_str(), Some("i"));
        assert_eq!(edited["disk"]["a"]["address"].as_str(), Some("h"));
    }
}
