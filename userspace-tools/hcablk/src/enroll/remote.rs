// SPDX-License-Identifier: GPL-2.0

//! The `hcablk` command of another machine, which ssh runs there.

use serde::Deserialize;
use uuid::Uuid;

use super::Enroll;
use crate::error::{Error, Kind, Result};
use crate::keys::Key;
use crate::report::without_keys;
use crate::system::{Answer, System};

/// The default command. Its options end it in time if the host is switched off or disappears.
const SSH: &str = "ssh -o ConnectTimeout=30 -o ServerAliveInterval=5";
/// The exit code of ssh if it did not run the command.
const NO_CONNECTION: i32 = 255;
/// The exit codes of a shell if it cannot run a command: not executable, not found.
const NO_COMMAND: [i32; 2] = [126, 127];

/// The output of `host-id`.
#[derive(Deserialize)]
struct HostId {
    host_id: Uuid,
}

/// The output of `key show`. It borrows the key, which is not copied.
#[derive(Deserialize)]
struct Shown<'a> {
    key: &'a str,
}

/// The output of `key add` and `key generate`.
#[derive(Deserialize)]
struct Added {
    result: IsChanged,
}

#[derive(Deserialize)]
struct IsChanged {
    changed: bool,
}

/// The failure of a command on the host, as the command prints it.
#[derive(Deserialize)]
struct Failed {
    error: Failure,
}

#[derive(Deserialize)]
struct Failure {
    message: String,
}

/// The machine of a host.
pub(super) struct Remote<'a> {
    system: &'a dyn System,
    wanted: &'a Enroll,
}

impl<'a> Remote<'a> {
    pub(super) fn new(system: &'a dyn System, wanted: &'a Enroll) -> Self {
        Self { system, wanted }
    }

    fn client(&self) -> &str {
        &self.wanted.client
    }

    /// Runs `hcablk --json` on the host with these arguments. A shell there parses them, so that they must not contain
    /// characters that are special to a shell.
    fn run(&self, words: &[&str], input: &str) -> Result<Answer> {
        let ssh = self.wanted.ssh.as_deref().unwrap_or(SSH);
        let mut line: Vec<&str> = ssh.split_whitespace().collect();
        let program = line.remove(0);
        line.extend(["--", self.client()]);
        if self.wanted.sudo {
            line.extend(["sudo", "-n"]);
        }
        line.extend(["hcablk", "--json"]);
        line.extend(words);
        self.system
            .progress(&format!("{}: hcablk {}", self.client(), words.join(" ")));
        let answer = self.system.converse(program, &line, input);
        if self.system.interrupted() {
            return Err(Error::interrupted());
        }
        let answer = answer.map_err(|why| {
            Error::new(Kind::Setup, why).advise("`--ssh COMMAND` names another program.")
        })?;
        match answer.code {
            Some(NO_CONNECTION) | None => Err(self.no_connection(&answer)),
            Some(code) if NO_COMMAND.contains(&code) => Err(self.no_command()),
            _ => Ok(answer),
        }
    }

    fn no_connection(&self, answer: &Answer) -> Error {
        let client = self.client();
        let why = last_line(&answer.errors).unwrap_or_else(|| "it gave no reason".to_owned());
        let message = format!("cannot log in to {client} through ssh: {why}");
        Error::new(Kind::Connection, message).advise(format!(
            "Nothing was changed there. This must work: ssh {client} true\n\
             Options of ssh belong in ~/.ssh/config, or in --ssh \"ssh OPTIONS\". Without ssh, exchange the keys by \
             hand: hcablk key --help"
        ))
    }

    fn no_command(&self) -> Error {
        let client = self.client();
        let message = format!("{client} has no command hcablk");
        Error::new(Kind::Setup, message).advise(
            "Install the package hcablk there. If it is installed, but not in that user's PATH, log in as root, or \
             use --sudo.",
        )
    }

    /// Returns the error for a command that failed on the host.
    fn failed(&self, words: &[&str], answer: &Answer) -> Error {
        let client = self.client();
        let kind = answer.code.map_or(Kind::Failed, Kind::of_exit_code);
        let at = answer.errors.find('{').unwrap_or(0);
        let said: Option<Failed> = serde_json::from_str(&answer.errors[at..]).ok();
        let why = said.map(|said| without_keys(&said.error.message));
        let why = why.or_else(|| last_line(&answer.errors));
        let why = why.unwrap_or_else(|| "it gave no reason".to_owned());
        let line = words.join(" ");
        let error = Error::new(kind, format!("{client}: hcablk {line}: {why}"));
        match kind {
            Kind::Usage => error.advise(format!(
                "Is hcablk at {client} older than here? Install the same version there: ssh {client} hcablk --version"
            )),
            Kind::Setup | Kind::Failed => error.advise(
                "The keys are root's. Log in as root there (root@CLIENT), or use --sudo, with which sudo must not ask for \
                 a password.",
            ),
            _ => error,
        }
    }

    /// Parses the output of a command, or returns the error if the command failed. A login script may have printed
    /// something before the output.
    fn parse<'t, T: Deserialize<'t>>(&self, words: &[&str], answer: &'t Answer) -> Result<T> {
        if answer.code != Some(0) {
            return Err(self.failed(words, answer));
        }
        let at = answer.output.find('{').unwrap_or(0);
        serde_json::from_str(&answer.output[at..]).map_err(|_| {
            let message = format!(
                "{}: hcablk {}: its output is not the expected one",
                self.client(),
                words.join(" ")
            );
            Error::new(Kind::Failed, message).advise(format!(
                "Look at it, but show no key to anybody: ssh {} hcablk --json host-id",
                self.client()
            ))
        })
    }

    /// Returns the id of the host.
    pub(super) fn host_id(&self) -> Result<Uuid> {
        let words = ["host-id"];
        let answer = self.run(&words, "")?;
        let known: HostId = self.parse(&words, &answer)?;
        Ok(known.host_id)
    }

    /// Returns the key of the host; `None` if it has none.
    pub(super) fn key(&self) -> Result<Option<Key>> {
        let words = ["key", "show", "host"];
        let answer = self.run(&words, "")?;
        if answer.code == Some(Kind::NotFound.exit_code().into()) {
            return Ok(None);
        }
        let shown: Shown<'_> = self.parse(&words, &answer)?;
        let key = shown.key.parse().map_err(|why| {
            let message = format!("the key of {} is not one: {why}", self.client());
            Error::new(Kind::Failed, message)
        })?;
        Ok(Some(key))
    }

    /// Makes a key of the host.
    pub(super) fn make_key(&self) -> Result<()> {
        let words = ["key", "generate", "host"];
        let answer = self.run(&words, "")?;
        self.parse::<Added>(&words, &answer).map(drop)
    }

    /// Stores the key of this target on the host; with `is_dry`, only finds out whether it would be stored. Returns
    /// whether the stored keys change, or would change.
    pub(super) fn store(&self, address: &str, key: &Key, is_dry: bool) -> Result<bool> {
        let mut words = vec!["key", "add", "target", address];
        if !self.wanted.replace {
            words.push("--no-replace");
        }
        if is_dry {
            words.push("--dry-run");
        }
        let answer = self.run(&words, &key.printed())?;
        if answer.code == Some(Kind::Exists.exit_code().into()) {
            let client = self.client();
            let message =
                format!("{client} has a different key of the target at {address} than this target");
            return Err(Error::new(Kind::Exists, message).advise(format!(
                "Has another target had this address, or has this target got a new key? If {client} shall trust this \
                 target now: --replace"
            )));
        }
        let added: Added = self.parse(&words, &answer)?;
        Ok(added.result.changed)
    }
}

/// Returns the last line of a text that is not blank, without keys.
fn last_line(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    let line = line.trim_end_matches(['.', ' ', ':']);
    Some(without_keys(line))
}
