// SPDX-License-Identifier: GPL-2.0

//! Reads files, folders and the output of programs as the text of a part of a report.

use std::path::Path;
use std::time::Duration;

use super::parts::Part;
use super::secrets;
use crate::error::Error;
use crate::output::{error_json, Outcome};
use crate::system::{OpError, System};

/// Folders inside a folder are read to this depth. The deepest group of configfs is a path of a disk.
const DEPTH: usize = 6;
/// The time limit of each program: a machine that needs a report may have programs that hang.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// The number of lines of a log that are kept, from its end.
const LINES: usize = 4000;

/// A part whose sources are being read.
pub(super) struct Gather<'a> {
    system: &'a dyn System,
    part: Part,
}

impl<'a> Gather<'a> {
    /// Begins a part.
    pub(super) fn new(system: &'a dyn System, name: &str, about: &'static str) -> Self {
        let part = Part {
            name: name.to_owned(),
            about,
            text: String::new(),
            missing: Vec::new(),
        };
        Self { system, part }
    }

    /// Returns the part.
    pub(super) fn finish(self) -> Part {
        self.part
    }

    /// Returns the machine.
    pub(super) fn system(&self) -> &'a dyn System {
        self.system
    }

    /// Adds a line.
    pub(super) fn line(&mut self, line: &str) {
        self.part.text.push_str(line);
        self.part.text.push('\n');
    }

    fn missing(&mut self, why: String) {
        self.part.missing.push(why);
    }

    fn heading(&mut self, what: &str) {
        if !self.part.text.is_empty() {
            self.line("");
        }
        self.line(&format!("== {what}"));
    }

    /// Reads a file; `None` if it does not exist, or cannot be read, which is then recorded.
    fn read(&mut self, path: &Path) -> Option<String> {
        match self.system.read(path) {
            Ok(text) => Some(text),
            Err(error) if error.is_gone() => None,
            Err(error) => {
                self.missing(error.to_string());
                None
            }
        }
    }

    /// Adds the file of a configuration, without its secrets; leaves out one that does not exist.
    pub(super) fn configuration(&mut self, path: &Path) {
        if let Some(text) = self.read(path) {
            self.part.text = secrets::without_assigned(&text);
        }
    }

    /// Adds the lines of a file that are wanted, below a heading.
    pub(super) fn lines(&mut self, path: &str, wanted: impl Fn(&str) -> bool) {
        if let Some(text) = self.read(Path::new(path)) {
            self.heading(path);
            for line in text.lines().filter(|line| wanted(line)) {
                self.line(&secrets::without_options(line));
            }
        }
    }

    /// Adds a file of one line after its name; leaves out one that does not exist.
    pub(super) fn value(&mut self, path: &str) {
        if let Some(text) = self.read(Path::new(path)) {
            self.line(&format!("{path}: {}", text.trim()));
        }
    }

    /// Adds the output of a program, below a heading.
    pub(super) fn program(&mut self, words: &[&str]) {
        self.heading(&words.join(" "));
        if let Some(text) = self.output(words) {
            self.part.text.push_str(&text);
        }
    }

    /// Adds the wanted lines of a program's output, below a heading, the last ones if there are many. Returns whether
    /// the program printed any lines, wanted or not; those of journalctl about itself do not count.
    pub(super) fn lines_of_program(
        &mut self,
        words: &[&str],
        wanted: impl Fn(&str) -> bool,
    ) -> bool {
        self.heading(&words.join(" "));
        let Some(text) = self.output(words) else {
            return false;
        };
        let has_any = text.lines().any(|line| !line.starts_with("-- "));
        let lines: Vec<&str> = text.lines().filter(|line| wanted(line)).collect();
        let first = lines.len().saturating_sub(LINES);
        if first > 0 {
            self.line(&format!("(the first {first} lines are left out)"));
        }
        for line in &lines[first..] {
            self.line(&secrets::without_options(line));
        }
        has_any
    }

    fn output(&mut self, words: &[&str]) -> Option<String> {
        let (program, arguments) = words.split_first()?;
        match self.system.run_within(program, arguments, TIME_LIMIT) {
            Ok(text) => Some(text),
            Err(why) => {
                self.line("(not available)");
                self.missing(format!("{}: {why}", words.join(" ")));
                None
            }
        }
    }

    /// Adds the output of a command of this program as JSON.
    pub(super) fn json(&mut self, answer: Result<Outcome, Error>) {
        match answer {
            Ok(outcome) => self.part.text.push_str(&outcome.to_json()),
            Err(error) => {
                self.part.text.push_str(&error_json(&error));
                self.missing(error.message);
            }
        }
    }

    /// Adds the output of a command of this program as text.
    pub(super) fn text(&mut self, answer: Result<Outcome, Error>) {
        match answer {
            Ok(outcome) => {
                self.part.text.push_str(&outcome.report.to_string());
                for note in outcome.notes {
                    self.line(&format!("note: {note}"));
                }
            }
            Err(error) => {
                self.part.text.push_str(&error.to_text());
                self.missing(error.message);
            }
        }
    }

    /// Adds everything in a folder, one line for each value; leaves out secrets and write-only attributes.
    pub(super) fn tree(&mut self, path: &Path) {
        match self.system.entries(path) {
            Ok(names) => self.entries(path, &names, DEPTH),
            Err(error) if error.is_gone() => {
                self.line(&format!("{} does not exist", path.display()));
            }
            Err(error) => self.missing(error.to_string()),
        }
    }

    fn entries(&mut self, folder: &Path, names: &[String], depth: usize) {
        for name in names {
            let path = folder.join(name);
            if let Ok(inside) = self.system.entries(&path) {
                if inside.is_empty() {
                    self.line(&format!("{}/", path.display()));
                } else if depth > 0 {
                    self.entries(&path, &inside, depth - 1);
                }
                continue;
            }
            // The folder of a volume or a disk may have such a name, but an attribute with it is a secret.
            if secrets::is_secret(name) {
                continue;
            }
            let is_readable = |mode: u32| mode & 0o444 != 0;
            let rights = self.system.rights(&path);
            if rights.is_none_or(|rights| is_readable(rights.mode)) {
                let text = self.system.read(&path);
                self.attribute(&path, text);
            }
        }
    }

    fn attribute(&mut self, path: &Path, text: Result<String, OpError>) {
        let shown = path.display();
        match text {
            Ok(text) if text.trim_end().contains('\n') => {
                self.line(&format!("{shown}:"));
                for line in text.trim_end().lines() {
                    self.line(&format!("    {line}"));
                }
            }
            Ok(text) => self.line(&format!("{shown}: {}", text.trim_end())),
            // The group was removed meanwhile.
            Err(error) if error.is_gone() => (),
            Err(error) => self.missing(error.to_string()),
        }
    }
}
