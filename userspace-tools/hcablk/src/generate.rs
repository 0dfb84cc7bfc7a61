// SPDX-License-Identifier: GPL-2.0

//! Shell completions and man pages, made from the parser.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::complete;
use crate::error::{Error, Kind, Result};
use crate::output::{Done, Outcome};

/// Makes the completion script for a shell.
pub fn completions(shell: Shell) -> String {
    if let Some(script) = complete::script(shell) {
        return script.to_owned();
    }
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "hcablk", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The end of each page except hcablk(8).
const EXIT_STATUS: &str = "\
.SH \"EXIT STATUS\"
0: done, or no change needed. All other codes, and the form of messages, are in
.BR hcablk (8).
.SH \"SEE ALSO\"
.BR hcablk (8)
";

/// Writes the man pages, one for each command, into `folder`.
pub fn man(folder: &Path) -> Result<Outcome> {
    let fail = |error| {
        Error::new(
            Kind::Failed,
            format!("cannot write man pages to {}: {error}", folder.display()),
        )
    };
    fs::create_dir_all(folder).map_err(fail)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut files = Vec::new();
    write_pages(&command, folder, &mut files).map_err(fail)?;
    files.sort();
    Ok(Outcome::new(Done::Man { files }))
}

fn write_pages(
    command: &clap::Command,
    folder: &Path,
    files: &mut Vec<String>,
) -> std::io::Result<()> {
    let page = clap_mangen::Man::new(command.clone())
        .section("8")
        .manual("hcablk");
    let file = folder.join(page.get_filename());
    let mut text = Vec::new();
    page.render(&mut text)?;
    if file.file_name() != Some(OsStr::new("hcablk.8")) {
        text.extend_from_slice(EXIT_STATUS.as_bytes());
    }
    fs::write(&file, text)?;
    files.push(file.to_string_lossy().into_owned());
    command
        .get_subcommands()
        // hcablk-bench has its own pages, in its package.
        .filter(|sub| !sub.is_hide_set() && sub.get_name() != "bench")
        .try_for_each(|sub| write_pages(sub, folder, files))
}
