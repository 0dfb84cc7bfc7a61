// SPDX-License-Identifier: GPL-2.0

//! The folder that an experiment leaves: its page, its numbers, and a description of both machines.

use std::fs;
use std::path::{Path, PathBuf};

use hcablk::error::{Error, Kind, Result};
use serde_json::{json, Value};

use crate::cli::Common;
use crate::facts;
use crate::lab::Lab;

/// The folder of an experiment.
pub(crate) struct Report {
    folder: PathBuf,
}

impl Report {
    /// Makes the folder, which must not exist.
    pub(crate) fn make(common: &Common, experiment: &str) -> Result<Self> {
        let folder = common
            .output
            .clone()
            .unwrap_or_else(|| PathBuf::from(format!("hcablk-{experiment}")));
        fs::create_dir(&folder).map_err(|error| {
            let kind = if error.kind() == std::io::ErrorKind::AlreadyExists {
                Kind::Exists
            } else {
                Kind::Failed
            };
            Error::new(
                kind,
                format!("cannot make the folder {}: {error}", folder.display()),
            )
            .advise("Choose a different folder with --output.")
        })?;
        Ok(Self { folder })
    }

    /// Returns the path of the folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes the folder of an experiment without results; a folder with content stays.
    pub(crate) fn drop_if_empty(&self) {
        let _ = fs::remove_dir(&self.folder);
    }

    /// Writes a file.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(|error| {
            Error::new(
                Kind::Failed,
                format!("cannot write {}: {error}", path.display()),
            )
        })
    }

    /// Writes an object.
    pub(crate) fn write_json(&self, name: &str, value: &Value) -> Result<()> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|error| Error::new(Kind::Failed, format!("cannot encode {name}: {error}")))?;
        self.write(name, &(text + "\n"))
    }
}

/// Returns the members that begin the results of all experiments.
pub(crate) fn head(lab: &Lab, experiment: &str) -> Value {
    let (real, sentence) = times(lab);
    json!({
        "version": 1,
        "experiment": experiment,
        "times_are_real": real,
        "times": sentence,
        "one_machine": lab.together,
        "client": lab.client_facts,
        "target": lab.target_facts,
        "drive": { "path": lab.path, "bytes": lab.drive.bytes, "block": lab.drive.block, "used_bytes": lab.span },
    })
}

/// Returns whether the times are real, and the sentence that says so.
pub(crate) fn times(lab: &Lab) -> (bool, String) {
    facts::are_times_real(&[&lab.client_facts, &lab.target_facts])
}

/// Returns the rows of a table that describes both machines.
pub(crate) fn machines(lab: &Lab) -> Vec<Vec<String>> {
    let row = |part: &str, facts: &facts::Facts| {
        let devices = facts.devices.iter().map(|device| {
            let driver = device.driver.as_deref().unwrap_or("software");
            format!(
                "{} ({driver}, firmware {}, {})",
                device.name, device.firmware, device.state
            )
        });
        vec![
            part.to_owned(),
            facts.name.clone(),
            facts.kernel.clone(),
            format!("{} × {}", facts.processors, facts.model),
            devices.collect::<Vec<_>>().join("; "),
        ]
    };
    vec![
        row("client", &lab.client_facts),
        row("target", &lab.target_facts),
    ]
}

/// The heading of the table of [`machines`].
pub(crate) const MACHINES: [&str; 5] = ["part", "machine", "kernel", "processors", "RDMA devices"];

/// Runs an experiment between opening and closing the laboratory, and prints the place of its page. Both machines are
/// restored in any case.
pub(crate) fn with_lab<T>(
    common: &Common,
    experiment: &str,
    overwrite: bool,
    stop: &crate::stop::Stop,
    run: impl FnOnce(&mut Lab, &Report) -> Result<T>,
) -> Result<T> {
    let mut lab = Lab::open(common, overwrite, stop)?;
    let done = Report::make(common, experiment).and_then(|report| {
        let done = run(&mut lab, &report);
        if done.is_err() {
            report.drop_if_empty();
        }
        done.map(|done| (done, report))
    });
    let closed = lab.close();
    match (done, closed) {
        (Ok((done, report)), Ok(())) => {
            if !common.json {
                println!("{}", report.folder().join("index.html").display());
            }
            Ok(done)
        }
        (Ok(_), Err(error)) | (Err(error), Ok(())) => Err(error),
        (Err(mut error), Err(other)) => {
            error.not_undone.extend(other.not_undone);
            error.not_undone.push(other.message);
            Err(error)
        }
    }
}
