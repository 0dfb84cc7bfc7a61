// SPDX-License-Identifier: GPL-2.0

//! `hcablk bench`: replaces this program with a separate one, `hcablk-bench`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use crate::error::{Error, Kind};

const PROGRAM: &str = "hcablk-bench";

/// Replaces this program with `hcablk-bench`, from the same folder or from PATH. Returns only if that fails.
pub fn start(words: &[OsString]) -> Error {
    let own = std::env::current_exe().ok();
    let in_own_folder = own.and_then(|own| Some(own.parent()?.join(PROGRAM)));
    let program = in_own_folder.filter(|path| path.exists());
    let program = program.as_deref().unwrap_or(Path::new(PROGRAM));
    let error = Command::new(program).args(words).exec();
    let advice = "It is in a package of its own: apt install hcablk-bench";
    Error::new(Kind::Setup, format!("cannot start {PROGRAM}: {error}")).advise(advice)
}
