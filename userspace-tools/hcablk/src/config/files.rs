// SPDX-License-Identifier: GPL-2.0

//! Finds and reads the files of the configuration. All mistakes are reported at once, with file and
//! line.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::check;
use super::loaded::{ConfigPlace, Loaded, Mistake, MAIN};
use super::schema::{Disk, Export, Host, Port};
use super::value::Id;
use crate::error::{Error, Kind, Result};
use crate::names::{DeviceName, HostName, PortName, VolumeName};
use crate::system::System;

/// The folder of the further files, which are read in the order of their names, if they end in
/// `.toml`.
pub const MORE: &str = "/etc/hcablk/hcablk.d";

/// The content of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    host: Option<Spanned<Host>>,
    host_names: Option<Spanned<BTreeMap<HostName, Id>>>,
    #[serde(default)]
    export: BTreeMap<VolumeName, Spanned<Export>>,
    #[serde(default)]
    port: BTreeMap<PortName, Spanned<Port>>,
    #[serde(default)]
    disk: BTreeMap<DeviceName, Spanned<Disk>>,
}

/// Lists the existing files of the configuration, in the order in which they are read.
pub fn files(system: &dyn System) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if system.exists(Path::new(MAIN)) {
        files.push(PathBuf::from(MAIN));
    }
    files.extend(more(system)?);
    Ok(files)
}

/// Lists the files other than the main one.
pub fn more(system: &dyn System) -> Result<Vec<PathBuf>> {
    match system.entries(Path::new(MORE)) {
        Err(error) if error.is_gone() => Ok(Vec::new()),
        Err(error) => Err(error.into()),
        Ok(names) => Ok(names
            .into_iter()
            .filter(|name| !name.starts_with('.'))
            .map(|name| Path::new(MORE).join(name))
            .filter(|file| {
                file.extension()
                    .is_some_and(|extension| extension == "toml")
            })
            .collect()),
    }
}

/// Reads the whole configuration; fails with all mistakes in it.
pub fn load(system: &dyn System) -> Result<Loaded> {
    load_files(system, &files(system)?)
}

/// Reads files as the whole configuration.
pub fn load_files(system: &dyn System, files: &[PathBuf]) -> Result<Loaded> {
    load_texts(system, &read(system, files)?)
}

fn read(system: &dyn System, files: &[PathBuf]) -> Result<Vec<(PathBuf, String)>> {
    let read = |file: &PathBuf| Ok((file.clone(), system.read(file)?));
    files.iter().map(read).collect()
}

/// Reads texts as the files of the whole configuration.
pub(super) fn load_texts(system: &dyn System, texts: &[(PathBuf, String)]) -> Result<Loaded> {
    let mut loaded = Loaded::default();
    let mut mistakes = Vec::new();
    for (file, text) in texts {
        match toml::from_str(text) {
            Ok(content) => loaded.add(file, text, content, &mut mistakes),
            Err(error) => mistakes.push(explain(file, text, &error)),
        }
        loaded.files.push(file.clone());
    }
    check::check(system, &loaded, &mut mistakes)?;
    if mistakes.is_empty() {
        return Ok(loaded);
    }
    Err(wrong(mistakes))
}

/// Returns the error of a configuration with mistakes.
fn wrong(mistakes: Vec<Mistake>) -> Error {
    let lines: Vec<_> = mistakes
        .iter()
        .map(|mistake| mistake.text.as_str())
        .collect();
    let message = match lines.as_slice() {
        [one] => (*one).to_owned(),
        many => format!(
            "the configuration has {} mistakes\n  {}",
            many.len(),
            many.join("\n  ")
        ),
    };
    let mut advice: Vec<_> = mistakes
        .into_iter()
        .filter_map(|mistake| mistake.advice)
        .collect();
    advice.dedup();
    advice.push(
        "Nothing was changed. `hcablk config --help` has an example, docs/reference/configuration.md \
         all keys."
            .to_owned(),
    );
    Error::new(Kind::Usage, message).advise(advice.join("\n"))
}

/// Returns the line, from 1, of a place in a text.
fn line_of(text: &str, at: usize) -> usize {
    text.get(..at).unwrap_or(text).matches('\n').count() + 1
}

impl Loaded {
    /// Adds the content of a file. A table that a previous file has already is a mistake, so that
    /// no file silently overrides a different one.
    fn add(&mut self, file: &Path, text: &str, content: Content, mistakes: &mut Vec<Mistake>) {
        let mut new = |name: String, span: Range<usize>| {
            let place = ConfigPlace {
                file: file.to_owned(),
                line: line_of(text, span.start),
            };
            if let Some(first) = self.places.get(&name) {
                mistakes.push(Mistake::new(
                    &place,
                    format!("[{name}] is configured already, at {first}"),
                ));
                return false;
            }
            self.places.insert(name, place);
            true
        };
        if let Some(host) = content.host {
            if new("host".to_owned(), host.span()) {
                self.config.host = Some(host.into_inner());
            }
        }
        if let Some(names) = content.host_names {
            if new("host_names".to_owned(), names.span()) {
                self.config.host_names = names.into_inner();
            }
        }
        for (name, table) in content.export {
            if new(format!("export.{name}"), table.span()) {
                self.config.export.insert(name, table.into_inner());
            }
        }
        for (name, table) in content.port {
            if new(format!("port.{name}"), table.span()) {
                self.config.port.insert(name, table.into_inner());
            }
        }
        for (name, table) in content.disk {
            if new(format!("disk.{name}"), table.span()) {
                self.config.disk.insert(name, table.into_inner());
            }
        }
    }
}

/// Explains why a file could not be read.
fn explain(file: &Path, text: &str, error: &toml::de::Error) -> Mistake {
    let place = ConfigPlace {
        file: file.to_owned(),
        line: line_of(text, error.span().map_or(0, |span| span.start)),
    };
    let message = error.message();
    if let Some((key, known)) = unknown_key(message) {
        let mistake = Mistake::new(&place, format!("unknown key `{key}`{}", meant(key, &known)));
        return mistake.advise(format!("Keys of this table: {}.", known.join(", ")));
    }
    let words = message.split_whitespace().collect::<Vec<_>>().join(" ");
    // serde calls a key a field.
    Mistake::new(&place, words.replace("missing field", "missing key"))
}

/// Parses serde's message on an unknown key: returns that key, and the known ones.
fn unknown_key(message: &str) -> Option<(&str, Vec<&str>)> {
    let rest = message.strip_prefix("unknown field ")?;
    let mut quoted = rest.split('`').skip(1).step_by(2);
    Some((quoted.next()?, quoted.collect()))
}

/// Suggests the key that was meant, if one is similar.
fn meant(key: &str, known: &[&str]) -> String {
    // The key may be an option of the command, an attribute of configfs, or a typing error.
    let plain = key.to_lowercase().replace('-', "_");
    let bare = ["_mib", "_kib", "_seconds", "_bytes"]
        .iter()
        .find_map(|unit| plain.strip_suffix(unit))
        .unwrap_or(&plain);
    let other = match bare {
        "path" | "file" | "drive" => "device",
        "hosts" | "allowed_hosts" | "host" => "allow",
        "expect_wwid" => "wwid",
        "enable" => "enabled",
        "target" | "traddr" => "address",
        other => other,
    };
    let nearest = known
        .iter()
        .map(|candidate| (strsim::jaro_winkler(other, candidate), *candidate))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest {
        Some((likeness, candidate)) if likeness > 0.8 => format!(": did you mean `{candidate}`?"),
        _ => String::new(),
    }
}

/// Reads a text as the whole configuration, for tests of other modules.
#[cfg(test)]
pub(super) fn parse_for_tests(text: &str) -> super::Config {
    let content = toml::from_str(text).unwrap_or_else(|error| panic!("{error}"));
    let mut loaded = Loaded::default();
    loaded.add(Path::new("test"), text, content, &mut Vec::new());
    loaded.config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> String {
        match toml::from_str::<Content>(text) {
            Ok(_) => panic!("{text} is taken"),
            Err(error) => explain(Path::new("f"), text, &error).text,
        }
    }

    #[test]
    fn unknown_keys_are_answered_with_a_suggestion() {
        for (text, words) in [
            (
                "\n[disk.a]\naddress = \"10.0.0.1\"\nqueue-depth = 1",
                "f:4: unknown key `queue-depth`: did you mean `queue_depth`?",
            ),
            (
                "[disk.a]\nadress = \"10.0.0.1\"",
                "f:2: unknown key `adress`: did you mean `address`?",
            ),
            (
                "[disk.a]\naddress = \"h\"\nmax_io_kib = 1",
                "f:3: unknown key `max_io_kib`: did you mean `max_io`?",
            ),
            (
                "[export.a]\npath = \"/dev/sdb\"",
                "f:2: unknown key `path`: did you mean `device`?",
            ),
            (
                "[exports.a]\ndevice = \"/dev/sdb\"",
                "f:1: unknown key `exports`: did you mean `export`?",
            ),
            (
                "[disk.a]\naddress = \"h\"\nxyzzy = 1",
                "f:3: unknown key `xyzzy`",
            ),
            (
                "[disk.a]\naddress = \"h\"\npaths = { 1 = { adress = \"h\" } }",
                "f:3: unknown key `adress`: did you mean `address`?",
            ),
        ] {
            assert_eq!(said(text), words, "{text}");
        }
    }

    #[test]
    fn wrong_values_are_described_in_words() {
        for (text, words) in [
            ("[disk.a]\naddress = \"h\"\nio_timeout = 30", "f:3: invalid type: integer `30`, expected a time and its unit, such as \"30 s\" or \"10 min\""),
            ("[disk.a]\naddress = \"h\"\nio_timeout = \"2 h\"", "f:3: \"2 h\" is not from 1 s to 3600 s"),
            ("[disk.a]\naddress = \"h\"\nqueues = 129", "f:3: 129 is not from 0 to 127"),
            ("[disk.a]\naddress = \"h\"\npaths = { 16 = \"h\" }", "f:3: \"16\" is not the number of a path, 1 to 15; path 0 is the disk's own `address`"),
            ("[disk.a]\nport = 1", "f:1: missing key `address`"),
            ("[export.a]\ndevice = \"sdb\"", "f:2: \"sdb\" does not begin with a slash"),
            ("[disk.\"a b\"]\naddress = \"h\"", "f:1: a device name has 1 to 63 letters, digits, '.', '_' or '-'"),
        ] {
            assert_eq!(said(text), words, "{text}");
        }
        assert!(said("[disk.a\n").starts_with("f:1: "));
    }
}
