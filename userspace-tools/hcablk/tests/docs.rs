// SPDX-License-Identifier: GPL-2.0

//! The commands in the documents, the help texts, the alerts, the units and the rules of udev. The parser accepts
//! each that is complete; the subcommands and options of the others exist.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use std::path::{Path, PathBuf};

use clap::{CommandFactory as _, Parser as _};
use hcablk::cli::Cli;
use hcablk::error::Kind;
use kernel::{ok, Kernel};

const HOST: &str = "7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44";

/// The words that stand for a value in the documents.
const PLACEHOLDERS: [(&str, &str); 12] = [
    ("UUID", HOST),
    ("$uuid", HOST),
    ("ADDRESS", "10.0.0.1"),
    ("VOLUME", "data"),
    ("NAME", "data"),
    ("DISK", "data"),
    ("HOST", HOST),
    ("SECONDS", "60"),
    ("FILE", "file"),
    ("ID", "1"),
    ("N", "4"),
    ("DIR", "folder"),
];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The commands of a shell's line: those in `$( )` first, then the line with a value in place of each.
fn commands(line: &str) -> Vec<String> {
    let mut line = line.to_owned();
    let mut found = Vec::new();
    while let Some((before, rest)) = line.split_once("$(") {
        let (inside, after) = rest.split_once(')').unwrap();
        found.extend(commands(inside));
        let value = if inside.contains("host-id") {
            HOST
        } else {
            "value"
        };
        line = format!("{before}{value}{after}");
    }
    let separators = line.replace("&&", "|").replace(';', "|");
    found.extend(separators.split('|').map(|part| part.trim().to_owned()));
    found
}

/// The words of a command without quotes, comment and redirection; `None` if it is not a command of `hcablk`.
fn words(command: &str) -> Option<Vec<String>> {
    let mut words = command
        .split_whitespace()
        .map(|word| word.trim_matches(['"', '\'']));
    let mut first = words.next()?;
    // Skips the machine on which the command runs, and the shell's `mount "$(…)"`.
    if first == "ssh" {
        words.next()?;
        first = words.next()?;
    }
    if first != "hcablk" && first != "/usr/sbin/hcablk" {
        return None;
    }
    let mut all = vec!["hcablk".to_owned()];
    for word in words {
        if word.starts_with(['#', '>', '<']) {
            break;
        }
        let value = PLACEHOLDERS.iter().find(|(name, _)| *name == word);
        all.push(value.map_or(word, |(_, value)| value).to_owned());
    }
    Some(all)
}

/// Parses all commands of `hcablk` in a text whose lines begin with `indent` and, perhaps, a prompt. Returns their
/// number.
fn parse_all(from: &str, text: &str, indent: &str) -> usize {
    let text = text.replace("\\\n", " ");
    let lines = text.lines().filter_map(|line| line.strip_prefix(indent));
    let mut parsed = 0;
    for line in lines {
        // A line with an ellipsis is not complete; one with brackets describes alternatives.
        if line.contains('…') || line.contains(" [") {
            continue;
        }
        let line = match line.split_once(['#', '$']) {
            Some((prompt, rest)) if prompt.chars().all(char::is_alphanumeric) => rest,
            _ => line,
        };
        for words in commands(line).iter().filter_map(|command| words(command)) {
            parsed += 1;
            match Cli::try_parse_from(&words) {
                Err(error) if error.use_stderr() => panic!("{from}: {}: {error}", words.join(" ")),
                _ => (),
            }
        }
    }
    parsed
}

/// The documents for users.
fn documents() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(top().join("docs/user")).unwrap();
    let mut files: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    files.push(top().join("README.md"));
    files.sort();
    files
}

#[test]
fn the_parser_takes_the_commands_of_the_documents() {
    let mut parsed = 0;
    for file in documents() {
        let text = std::fs::read_to_string(&file).unwrap();
        parsed += parse_all(&file.display().to_string(), &text, "    ");
    }
    assert!(parsed > 50, "{parsed}");
}

/// Checks that the subcommands and options of a command exist, which may be mentioned without its arguments.
fn exists(from: &str, words: &[String]) {
    let mut all = Cli::command();
    all.build();
    let mut command = &all;
    for word in words.iter().skip(1) {
        let text = words.join(" ");
        if command.get_name() == "bench" {
            // Another program has this command's options.
            return;
        }
        if let Some(option) = word.strip_prefix("--") {
            let known = command.get_arguments().any(|one| {
                one.get_long() == Some(option)
                    || one
                        .get_all_aliases()
                        .is_some_and(|all| all.contains(&option))
            });
            assert!(known, "{from}: {text}: --{option}");
        } else if command.has_subcommands() {
            let found = command.find_subcommand(word);
            command = found.unwrap_or_else(|| panic!("{from}: {text}: {word}"));
        }
    }
}

/// The texts between backticks outside of examples, also those that are wrapped.
fn inline_code(text: &str) -> Vec<String> {
    let is_example = |line: &&str| line.starts_with("    ");
    let lines: Vec<_> = text.lines().filter(|line| !is_example(line)).collect();
    let mut found = Vec::new();
    for paragraph in lines.split(|line| line.is_empty()) {
        let joined = paragraph.join(" ");
        found.extend(joined.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    found
}

/// All documents that are about the command.
fn all_documents() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(top().join("docs/reference")).unwrap();
    let mut files: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    files.extend(documents());
    files.push(top().join("userspace-tools/README.md"));
    files.sort();
    files
}

#[test]
fn the_commands_that_the_documents_mention_exist() {
    let mut checked = 0;
    for file in all_documents() {
        let text = std::fs::read_to_string(&file).unwrap();
        let from = file.display().to_string();
        for code in inline_code(&text) {
            let found = commands(&code);
            for words in found.iter().filter_map(|command| words(command)) {
                exists(&from, &words);
                checked += 1;
            }
        }
    }
    assert!(checked > 180, "{checked}");
}

#[test]
fn the_commands_of_the_alerts_exist() {
    let file = "packaging/prometheus/hcablk.rules.yml";
    let text = std::fs::read_to_string(top().join(file)).unwrap();
    let mut checked = 0;
    for line in text.lines().filter(|line| line.contains("description:")) {
        // A command ends before the sentence's next mark.
        for part in line.split([',', '.', ':', '(', ')', '"']) {
            let part = part.trim();
            let at = part
                .find("hcablk ")
                .filter(|at| !part[..*at].ends_with(['-', '_']));
            if let Some(words) = at.and_then(|at| words(&part[at..])) {
                exists(file, &words);
                checked += 1;
            }
        }
    }
    assert!(checked > 9, "{checked}");
}

#[test]
fn the_parser_takes_the_commands_of_units_and_of_udev() {
    let mut checked = Vec::new();
    for folder in ["systemd", "udev"] {
        let folder = std::fs::read_dir(top().join("packaging").join(folder)).unwrap();
        let files = folder.map(|entry| entry.unwrap().path());
        for file in files.filter(|path| path.is_file()) {
            let text = std::fs::read_to_string(&file).unwrap();
            for (_, rest) in text
                .lines()
                .filter_map(|line| line.split_once("/usr/sbin/hcablk "))
            {
                let line = rest.trim_end_matches('"');
                let line = ["%i", "%n", "$env{HCABLK_DISK}"]
                    .iter()
                    .fold(line.replace("${HCABLK_WAIT}", "300"), |line, name| {
                        line.replace(name, "data")
                    });
                let words = ["hcablk"].into_iter().chain(line.split_whitespace());
                if let Err(error) = Cli::try_parse_from(words) {
                    panic!("{}: {line}: {error}", file.display());
                }
                checked.push(line);
            }
        }
    }
    assert!(checked.len() > 7, "{checked:?}");
}

#[test]
fn the_parser_takes_the_examples_of_the_help() {
    fn look(command: &mut clap::Command, parsed: &mut usize) {
        let help = command.render_long_help().to_string();
        *parsed += parse_all(command.get_name(), &help, "  ");
        command
            .get_subcommands_mut()
            .for_each(|one| look(one, parsed));
    }
    let mut parsed = 0;
    look(&mut Cli::command(), &mut parsed);
    assert!(parsed > 60, "{parsed}");
}

/// The quick start has few commands, and its example files are valid.
#[test]
fn the_quick_start_is_short_and_its_files_are_read() {
    let text = std::fs::read_to_string(top().join("docs/user/quick-start.md")).unwrap();
    let prompts = ["target# ", "nodes#  ", "node1#  "];
    let is_command = |line: &&str| {
        let line = line.strip_prefix("    ");
        line.is_some_and(|line| prompts.iter().any(|prompt| line.starts_with(prompt)))
    };
    let count = text.lines().filter(is_command).count();
    assert!(count < 20, "{count}");
    assert!(text.contains(&format!("\norder: {count}, ")), "{count}");
    assert!(parse_all("quick-start.md", &text, "    ") > 2);

    let kernel = Kernel::loaded();
    let (_, rest) = text.split_once("/etc/hcablk/hcablk.toml << END\n").unwrap();
    let (file, _) = rest.split_once("    END\n").unwrap();
    let lines = file.lines().map(str::trim_start);
    let mut target = lines.collect::<Vec<_>>().join("\n");
    let other = "5f2c1d6e-8a0b-4c3d-9e7f-001122334455";
    for (node, id) in [("node1", HOST), ("node2", other)] {
        target = target.replace(&format!("$(ssh {node} hcablk host-id)"), id);
    }
    let (_, rest) = text.split_once("nodes#  printf '").unwrap();
    let (node, _) = rest.split_once('\'').unwrap();
    let node = node.replace("\\n", "\n");
    for (file, holds) in [
        (target, "1 export, 1 port, 0 disks"),
        (node, "0 exports, 0 ports, 1 disk"),
    ] {
        kernel.file("/etc/hcablk/hcablk.toml", &file);
        let checked = ok(&kernel, "config check");
        assert!(checked.contains(holds), "{checked}");
    }
}

/// The quick start uses only units and files that the packages have.
#[test]
fn the_quick_start_uses_what_the_packages_have() {
    let packaging = top().join("packaging");
    let text = std::fs::read_to_string(top().join("docs/user/quick-start.md")).unwrap();
    let lines: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .collect();
    let installed = std::fs::read_to_string(packaging.join("debian/hcablk.install")).unwrap();
    let mut units = Vec::new();
    for line in lines.iter().filter(|line| line.contains("systemctl ")) {
        let names = line
            .split([' ', ';'])
            .filter(|word| word.starts_with("hcablk"));
        for name in names {
            let template = name.find('@').map_or(name, |at| &name[..=at]);
            let unit = format!("systemd/{template}.service");
            assert!(packaging.join(&unit).is_file(), "{line}: {unit}");
            assert!(installed.contains(&format!("{unit} ")), "{unit}");
            units.push(template);
        }
    }
    assert_eq!(units, ["hcablk-target", "hcablk@"]);
    let (_, rest) = text.split_once("/usr/share/doc/hcablk/").unwrap();
    let example = rest.split_whitespace().next().unwrap();
    let examples = std::fs::read_to_string(packaging.join("debian/hcablk.examples")).unwrap();
    assert!(examples.lines().any(|line| line == example), "{example}");
    // The line that the quick start takes from it is the only one of its kind, and has its directory.
    let file = std::fs::read_to_string(packaging.join(example)).unwrap();
    let found = |line: &&str| line.starts_with("UUID=") && line.contains(" ocfs2 ");
    let found: Vec<_> = file.lines().filter(found).collect();
    let [line] = found[..] else {
        panic!("{found:?}");
    };
    let mut fields = line.split_whitespace();
    let (uuid, folder) = (fields.next().unwrap(), fields.next().unwrap());
    let uuid = uuid.trim_start_matches("UUID=");
    assert!(text.contains(&format!("mkfs.ocfs2 -N 2 -b 4096 -C 4096 -U {uuid} ")));
    assert!(text.contains(&format!("mkdir -p {folder} && mount {folder}\n")));
    for package in text
        .split("./")
        .skip(1)
        .filter_map(|rest| rest.split('_').next())
    {
        let is_there = packaging
            .join(format!("debian/{package}.install"))
            .is_file();
        assert!(
            is_there || package == "hcablk-modules-$(uname -r)",
            "{package}"
        );
    }
}

/// The table for scripts names each member of the JSON.
#[test]
fn the_members_of_lists_are_documented() {
    let text = std::fs::read_to_string(top().join("userspace-tools/README.md")).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for (command, file, lists) in [
        ("list", "list.json", &["devices"][..]),
        ("target list", "target-list.json", &["volumes", "ports"]),
        ("discover", "discover.json", &["volumes", "portals"]),
    ] {
        let row = format!("| `{command}` |");
        let row = text.lines().find(|line| line.starts_with(&row)).unwrap();
        let json = std::fs::read_to_string(golden.join(file)).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        for list in lists {
            for member in json[list][0].as_object().unwrap().keys() {
                assert!(
                    row.contains(&format!("`{member}`")),
                    "{command}: {list}: {member}"
                );
            }
        }
    }
}

/// The help and the reference have the exit codes of the code.
#[test]
fn the_exit_codes_are_the_same_everywhere() {
    let reference = std::fs::read_to_string(top().join("docs/reference/command.md")).unwrap();
    let (_, rest) = reference
        .split_once("| code | meaning |\n|---|---|\n")
        .unwrap();
    let (table, _) = rest.split_once("\n\n").unwrap();
    let help = Cli::command().render_long_help().to_string();
    let (_, rest) = help.split_once("Exit codes:\n").unwrap();
    let (list, _) = rest.split_once("\n\n").unwrap();
    let list: Vec<_> = list.split_whitespace().collect();
    let list = format!(" {} ", list.join(" "));
    let mut codes = Vec::new();
    for row in table.lines() {
        let mut cells = row.trim_matches(['|', ' ']).splitn(2, " | ");
        let (code, meaning) = (cells.next().unwrap(), cells.next().unwrap());
        let words: Vec<_> = meaning.split_whitespace().collect();
        let wanted = format!(" {code} {} ", words.join(" "));
        assert!(list.contains(&wanted), "{wanted:?} is not in {list}");
        codes.push(code.parse::<u8>().unwrap());
    }
    let kinds = [
        Kind::Failed,
        Kind::Usage,
        Kind::NotFound,
        Kind::Busy,
        Kind::Exists,
        Kind::Connection,
        Kind::Setup,
        Kind::Interrupted,
    ];
    let mut wanted = vec![0];
    wanted.extend(kinds.map(Kind::exit_code));
    assert_eq!(codes, wanted);
}
