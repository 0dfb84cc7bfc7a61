// SPDX-License-Identifier: GPL-2.0

//! Completions: the words that may come next on a command line, with the names of disks, volumes, hosts and ports.
//!
//! The scripts for bash, zsh and fish run this program at each completion. Nothing here loads a module, asks a target
//! or fails: names that cannot be read are left out.

use std::any::TypeId;
use std::path::Path;

use clap::{Arg, ArgAction, CommandFactory as _};
use clap_complete::Shell;
use uuid::Uuid;

use crate::cli::Cli;
use crate::config;
use crate::configfs::{INITIATOR, TARGET};
use crate::host_names::HostNames;
use crate::names::VolumeName;
use crate::system::System;
use crate::target::{allowed_hosts, ports, volumes};
use crate::user;

/// The output that makes the script complete names of files.
const FILES: &str = ":files";

/// A word that may come next.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    word: String,
    about: String,
}

impl Candidate {
    fn new(word: impl Into<String>, about: impl Into<String>) -> Self {
        Self {
            word: word.into(),
            about: about.into(),
        }
    }
}

/// The names that a value may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// Disks of this machine, connected or configured.
    Disks,
    /// Volumes of this machine's target.
    Volumes,
    /// Hosts that this machine's target knows.
    Hosts,
    /// Ports of this machine's target.
    Ports,
}

impl Names {
    /// Returns the names that an argument of a command takes.
    fn of(command: &[&str], argument: &Arg) -> Option<Self> {
        let is = |id: TypeId| argument.get_value_parser().type_id() == id;
        let id = argument.get_id().as_str();
        match command {
            ["connect"] if id == "address" => Some(Self::Disks),
            ["disconnect" | "acknowledge-loss" | "times" | "stats"] | ["path", _]
                if argument.is_positional() && matches!(id, "name" | "disk" | "device") =>
            {
                Some(Self::Disks)
            }
            ["target", "unlisten"] if id == "ids" => Some(Self::Ports),
            ["target", "export"] if id == "name" => None,
            ["target", "stats"] if id == "name" => Some(Self::Volumes),
            ["target", ..] | ["enroll"] if is(TypeId::of::<VolumeName>()) => Some(Self::Volumes),
            ["target", ..] if matches!(id, "hosts" | "host" | "allow") => Some(Self::Hosts),
            ["key", "add" | "retire"] if id == "name" => Some(Self::Hosts),
            _ => None,
        }
    }

    /// Returns the existing names, each with a short description.
    fn all(self, system: &dyn System) -> Vec<Candidate> {
        match self {
            Self::Disks => disks(system),
            Self::Volumes => exported(system),
            Self::Hosts => hosts(system),
            Self::Ports => listening(system),
        }
    }
}

fn disks(system: &dyn System) -> Vec<Candidate> {
    let mut found = Vec::new();
    let groups = INITIATOR.tree(system).map(|tree| tree.children());
    for group in groups.and_then(Result::ok).unwrap_or_default() {
        found.push(Candidate::new(
            group.name(),
            group.get("state").unwrap_or_default(),
        ));
    }
    let in_user_space = user::all(system).into_iter();
    found.extend(in_user_space.map(|disk| Candidate::new(disk.shown_name(), "in user space")));
    let config = config::load(system).map(|loaded| loaded.config);
    for name in config.unwrap_or_default().disk.into_keys() {
        if !found.iter().any(|known| known.word == name.as_str()) {
            found.push(Candidate::new(name.to_string(), "configured"));
        }
    }
    found
}

fn exported(system: &dyn System) -> Vec<Candidate> {
    let groups = TARGET.tree(system).map(|tree| volumes(&tree).children());
    let groups = groups.and_then(Result::ok).unwrap_or_default();
    let groups = groups.iter();
    groups
        .map(|group| Candidate::new(group.name(), group.get("path").unwrap_or_default()))
        .collect()
}

fn listening(system: &dyn System) -> Vec<Candidate> {
    let groups = TARGET.tree(system).map(|tree| ports(&tree).children());
    let groups = groups.and_then(Result::ok).unwrap_or_default();
    let groups = groups.iter();
    groups
        .map(|group| Candidate::new(group.name(), group.get("address").unwrap_or_default()))
        .collect()
}

/// Lists the hosts that have a name or a key, or may use a volume.
fn hosts(system: &dyn System) -> Vec<Candidate> {
    let names = HostNames::read(system);
    let mut ids = names.ids();
    if let Some(Ok(groups)) = TARGET.tree(system).map(|tree| volumes(&tree).children()) {
        for (id, _) in groups
            .iter()
            .filter_map(|one| allowed_hosts(one).ok())
            .flatten()
        {
            ids.push(id);
        }
    }
    let keys = system.entries(Path::new("/etc/hcablk/keys/hosts"));
    ids.extend(
        keys.unwrap_or_default()
            .iter()
            .filter_map(|id| id.parse::<Uuid>().ok()),
    );
    ids.sort();
    ids.dedup();
    let about = |id| names.get(id).unwrap_or_default().to_owned();
    ids.iter()
        .map(|id| Candidate::new(id.to_string(), about(id)))
        .collect()
}

/// Returns the first line of a help text.
fn about(text: Option<&clap::builder::StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// The place of the cursor: the command there, and the arguments before it.
struct Place {
    command: clap::Command,
    path: Vec<String>,
    /// The number of values of positional arguments before it.
    values: usize,
    /// The option whose value comes next.
    option: Option<Arg>,
    /// Whether no options may follow, since there was a `--`.
    options_end: bool,
}

fn takes_value(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Set | ArgAction::Append)
}

/// Finds the option that a word names; ignores its value.
fn option<'a>(command: &'a clap::Command, word: &str) -> Option<&'a Arg> {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    let (long, short) = (name.strip_prefix("--"), name.strip_prefix('-'));
    command.get_arguments().find(|argument| {
        let is_short = |c: char| short.is_some_and(|short| short.chars().eq([c]));
        (long.is_some() && argument.get_long() == long)
            || argument.get_short().is_some_and(is_short)
    })
}

/// Finds the command and the argument at the cursor from the words before it.
fn follow(words: &[String]) -> Place {
    let mut command = Cli::command();
    command.build();
    let mut place = Place {
        command,
        path: Vec::new(),
        values: 0,
        option: None,
        options_end: false,
    };
    for word in words {
        // bash makes three words of `--option=value`.
        if word == "=" {
            continue;
        }
        if place.option.take().is_some() {
            continue;
        }
        if word == "--" {
            place.options_end = true;
        } else if word.starts_with('-') && !place.options_end {
            let found = option(&place.command, word);
            let found = found.filter(|one| takes_value(one) && !word.contains('='));
            place.option = found.cloned();
        } else if let (0, Some(next)) = (place.values, place.command.find_subcommand(word)) {
            place.path.push(next.get_name().to_owned());
            place.command = next.clone();
        } else {
            place.values += 1;
        }
    }
    place
}

impl Place {
    /// Returns the values that an argument may have; `None` if these are files, or anything else.
    fn values_of(&self, system: &dyn System, argument: &Arg) -> Option<Vec<Candidate>> {
        let possible = argument.get_possible_values();
        if !possible.is_empty() {
            let one = |value: &clap::builder::PossibleValue| {
                Candidate::new(value.get_name(), about(value.get_help()))
            };
            return Some(possible.iter().map(one).collect());
        }
        let path: Vec<_> = self.path.iter().map(String::as_str).collect();
        Names::of(&path, argument).map(|names| names.all(system))
    }

    fn positional(&self) -> Option<&Arg> {
        let all: Vec<_> = self.command.get_positionals().collect();
        let is_list = |one: &&&Arg| matches!(one.get_action(), ArgAction::Append);
        let last = all.last().filter(is_list);
        all.get(self.values).or(last).copied()
    }

    fn options(&self) -> Vec<Candidate> {
        let arguments = self.command.get_arguments();
        let shown = arguments.filter(|one| !one.is_hide_set());
        shown
            .filter_map(|one| {
                let long = one.get_long()?;
                Some(Candidate::new(format!("--{long}"), about(one.get_help())))
            })
            .collect()
    }

    fn commands(&self) -> Vec<Candidate> {
        let all = self.command.get_subcommands();
        let shown = all.filter(|one| !one.is_hide_set());
        shown
            .map(|one| Candidate::new(one.get_name(), about(one.get_about())))
            .collect()
    }
}

/// Returns the lines for a shell's script: in each a candidate, and after a tab its description; or only [`FILES`].
/// `index` is the number of the word with the cursor; that of the program's name is 0.
pub fn complete(system: &dyn System, index: usize, words: &[String]) -> String {
    let at = index.saturating_sub(1).min(words.len());
    let current = words.get(at).map_or("", String::as_str);
    // bash: the cursor is right after `--option=`.
    let current = if current == "=" { "" } else { current };
    let place = follow(&words[..at]);
    let (mut prefix, mut typed) = ("", current);
    let mut argument = place.option.as_ref();
    if argument.is_none() && !place.options_end && current.starts_with("--") {
        if let Some((name, value)) = current.split_once('=') {
            (prefix, typed) = (&current[..=name.len()], value);
            argument = option(&place.command, name).filter(|one| takes_value(one));
        }
    }
    let found = if let Some(argument) = argument {
        place.values_of(system, argument)
    } else if current.starts_with('-') && !place.options_end {
        Some(place.options())
    } else if place.values == 0 && place.command.has_subcommands() {
        Some(place.commands())
    } else {
        let positional = place.positional();
        match positional {
            Some(argument) => place.values_of(system, argument),
            None => Some(place.options()),
        }
    };
    let Some(found) = found else {
        return format!("{FILES}\n");
    };
    let found = found.iter().filter(|one| one.word.starts_with(typed));
    let lines = found.map(|one| {
        let about = one.about.replace(['\t', '\n'], " ");
        if about.is_empty() {
            format!("{prefix}{}\n", one.word)
        } else {
            format!("{prefix}{}\t{about}\n", one.word)
        }
    });
    lines.collect()
}

/// Returns the script for a shell that asks this program; `None` for one that has no such script.
pub fn script(shell: Shell) -> Option<&'static str> {
    match shell {
        Shell::Bash => Some(include_str!("complete/hcablk.bash")),
        Shell::Zsh => Some(include_str!("complete/_hcablk")),
        Shell::Fish => Some(include_str!("complete/hcablk.fish")),
        _ => None,
    }
}
