// SPDX-License-Identifier: GPL-2.0

//! Client and target together: exports, connections, and the counters of both.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use hcablk::error::{Error, Kind, Result};
use serde_json::Value;

use crate::cli::Common;
use crate::drive::Drive;
use crate::facts::Facts;
use crate::node::Node;
use crate::stop::Stop;
use crate::worker::{unload, Ask, WorkerStep};

/// The name of the volume, and of the disk: at most one of each exists.
pub(crate) const NAME: &str = "hcablk-bench";

/// Counters by their names.
pub(crate) type Counters = BTreeMap<String, i64>;

/// The settings of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    /// The mode of the volume.
    pub(crate) mode: &'static str,
    /// KiB of the volume's chunks; 0: requests move as a whole.
    pub(crate) chunk_kib: u32,
    /// MiB of the volume's cache.
    pub(crate) cache_mib: u32,
    /// `back` or `through`.
    pub(crate) write_cache: &'static str,
}

impl Export {
    /// Returns an export of a mode, with the defaults of the command.
    pub(crate) fn new(mode: &'static str) -> Self {
        Self {
            mode,
            chunk_kib: 128,
            cache_mib: 0,
            write_cache: "back",
        }
    }
}

/// Both machines.
pub(crate) struct Lab {
    /// The client, this machine.
    pub(crate) client: Node,
    /// The target.
    pub(crate) target: Node,
    /// The facts of the client.
    pub(crate) client_facts: Facts,
    /// The facts of the target.
    pub(crate) target_facts: Facts,
    /// Whether client and target are the same machine.
    pub(crate) together: bool,
    /// The target's address.
    pub(crate) address: IpAddr,
    /// The drive on the target.
    pub(crate) path: String,
    /// The properties of the drive.
    pub(crate) drive: Drive,
    /// The size of the used part of the drive.
    pub(crate) span: u64,
    /// The id of the client.
    pub(crate) host: String,
    /// Set when the experiment must end.
    pub(crate) stop: Stop,
    provider: String,
    exported: Option<Export>,
    port: u64,
    /// The number of the target's notes before the export.
    before_export: usize,
    /// The number of the client's notes before the connection; `None`: there is no connection.
    before_connection: Option<usize>,
}

impl Lab {
    /// Starts the target's part, and inspects both machines and the drive. Changes nothing.
    pub(crate) fn open(common: &Common, overwrite: bool, stop: &Stop) -> Result<Self> {
        let missing = |what: &str| Error::new(Kind::Usage, format!("{what} is needed"));
        let address = common.address.ok_or_else(|| missing("--address"))?;
        let path = common.drive.clone().ok_or_else(|| missing("--drive"))?;
        let (argv, together) = carrier(common)?;
        let mut client = Node::here(stop);
        let mut target = Node::there(&argv, stop)?;
        match Self::look(&mut client, &mut target, &path, overwrite) {
            Ok((client_facts, target_facts, drive, host)) => Ok(Self {
                span: (common.span << 20).min(drive.bytes),
                client,
                target,
                client_facts,
                target_facts,
                together,
                address,
                path,
                drive,
                host,
                stop: stop.clone(),
                provider: common.provider.clone(),
                exported: None,
                port: 0,
                before_export: 0,
                before_connection: None,
            }),
            Err(error) => {
                // This error matters more than an error from undoing the few changes.
                let _ = client.finish();
                let _ = target.finish();
                Err(error)
            }
        }
    }

    fn look(
        client: &mut Node,
        target: &mut Node,
        path: &str,
        overwrite: bool,
    ) -> Result<(Facts, Facts, Drive, String)> {
        let client_facts: Facts = client.ask(Ask::Facts)?;
        let target_facts: Facts = target.ask(Ask::Facts)?;
        if client_facts.version != target_facts.version {
            let (here, there) = (&client_facts.version, &target_facts.version);
            let message = format!("this is hcablk-bench {here}, and that of the target is {there}");
            return Err(Error::new(Kind::Setup, message)
                .advise("Install the same version on both machines."));
        }
        if client_facts.fio.is_none() {
            return Err(
                Error::new(Kind::Setup, "fio is not installed here").advise("apt install fio")
            );
        }
        let drive = target.ask(Ask::Drive {
            path: path.to_owned(),
            overwrite,
        })?;
        let taken = |what: &str| {
            Error::new(Kind::Exists, format!("{what} {NAME} is there already: is another run under way?"))
                .advise(format!("If not: hcablk disconnect {NAME}; on the target: hcablk target unexport {NAME} --force"))
        };
        let named = |list: &Value| {
            list.as_array()
                .is_some_and(|list| list.iter().any(|one| one["name"] == NAME))
        };
        if named(&client.hcablk(&["list"], Vec::new())?["devices"]) {
            return Err(taken("a disk"));
        }
        if named(&target.hcablk(&["target", "list"], Vec::new())?["volumes"]) {
            return Err(taken("a volume"));
        }
        let host = client.hcablk(&["host-id"], Vec::new())?["host_id"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        // Modules that were not loaded before are unloaded at the very end.
        let loaded = |facts: &Facts, name: &str| facts.modules.iter().any(|module| module == name);
        for (node, facts, module) in [
            (target, &target_facts, "hcablk_target"),
            (client, &client_facts, "hcablk"),
        ] {
            if !loaded(facts, module) {
                node.change(WorkerStep::run(&["modprobe", module]), vec![unload(module)])?;
            }
        }
        Ok((client_facts, target_facts, drive, host))
    }

    /// Exports the drive with these settings, unless it already is.
    pub(crate) fn export(&mut self, how: &Export) -> Result<()> {
        if self.exported.as_ref() == Some(how) {
            return Ok(());
        }
        self.unexport()?;
        self.before_export = self.target.noted()?;
        let ports = ports(&self.target.hcablk(&["target", "list"], Vec::new())?["ports"]);
        let undo = vec![WorkerStep::run(&[
            "hcablk",
            "target",
            "unexport",
            NAME,
            "--force",
            "--if-exists",
        ])];
        let done = self.export_as(how, undo)?;
        let port = &done["result"]["port"];
        self.port = port["port"].as_u64().unwrap_or(7744);
        let id = port["id"].as_str().unwrap_or_default();
        if !ports.iter().any(|known| known == id) {
            let undo = vec![WorkerStep::run(&[
                "hcablk",
                "target",
                "unlisten",
                id,
                "--if-exists",
            ])];
            self.target.change(WorkerStep::run(&["true"]), undo)?;
        }
        self.exported = Some(how.clone());
        Ok(())
    }

    fn export_as(&mut self, how: &Export, undo: Vec<WorkerStep>) -> Result<Value> {
        let (chunk, cache) = (how.chunk_kib.to_string(), how.cache_mib.to_string());
        let mut words = vec![
            "target", "export", NAME, &self.path, "--mode", how.mode, "--allow", &self.host,
        ];
        words.extend([
            "--insecure",
            "--no-reservations",
            "--write-cache",
            how.write_cache,
        ]);
        words.extend(["--chunk-kib", &chunk, "--cache-mib", &cache]);
        if how.mode == "p2p" {
            words.extend(["--provider", &self.provider]);
        }
        self.target.hcablk(&words, undo)
    }

    /// Exports the drive again after the export was ended; the step that undoes the first export also undoes this one.
    pub(crate) fn export_again(&mut self, how: &Export) -> Result<()> {
        self.export_as(how, Vec::new()).map(|_| ())
    }

    /// Ends the export, if there is one, and the connection.
    pub(crate) fn unexport(&mut self) -> Result<()> {
        self.disconnect()?;
        if self.exported.take().is_some() {
            self.target.undo(self.before_export)?;
        }
        Ok(())
    }

    /// Reconnects with these options, and returns the disk.
    pub(crate) fn connect(&mut self, options: &[&str]) -> Result<String> {
        self.disconnect()?;
        self.before_connection = Some(self.client.noted()?);
        let (address, port) = (self.address.to_string(), self.port.to_string());
        let mut words = vec![
            "connect",
            &address,
            NAME,
            "--name",
            NAME,
            "--port",
            &port,
            "--insecure",
        ];
        words.extend(options);
        if !options.contains(&"--ctrl-loss-tmo") {
            // A lost connection must be noticed.
            words.extend(["--ctrl-loss-tmo", "0"]);
        }
        let undo = vec![WorkerStep::run(&[
            "hcablk",
            "disconnect",
            NAME,
            "--force",
            "--if-exists",
        ])];
        let done = self.client.hcablk(&words, undo)?;
        let disk = done["result"]["device"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        self.wait(
            Duration::from_secs(60),
            &format!("{disk} to appear"),
            |_| Ok(std::fs::exists(&disk).unwrap_or(false)),
        )?;
        Ok(disk)
    }

    /// Ends the connection, if there is one.
    pub(crate) fn disconnect(&mut self) -> Result<()> {
        if let Some(notes) = self.before_connection.take() {
            self.client.undo(notes)?;
        }
        Ok(())
    }

    /// Returns the client's listing of the disk; `None` if there is none.
    pub(crate) fn device(&mut self) -> Result<Option<Value>> {
        let list = self.client.hcablk(&["list"], Vec::new())?;
        Ok(list["devices"]
            .as_array()
            .and_then(|list| list.iter().find(|one| one["name"] == NAME).cloned()))
    }

    /// Returns the target's listing of the volume.
    pub(crate) fn volume(&mut self) -> Result<Value> {
        let list = self.target.hcablk(&["target", "list"], Vec::new())?;
        let found = list["volumes"]
            .as_array()
            .and_then(|list| list.iter().find(|one| one["name"] == NAME).cloned());
        found.ok_or_else(|| Error::new(Kind::Failed, "the volume is not exported any more"))
    }

    /// Returns the counters of the disk on the client and of the volume on the target.
    pub(crate) fn counters(&mut self) -> Result<(Counters, Counters)> {
        let client = self.client.hcablk(&["stats", NAME], Vec::new())?;
        let target = self.target.hcablk(&["target", "stats", NAME], Vec::new())?;
        Ok((
            counters(&client["devices"][0]["counters"]),
            counters(&target["volumes"][0]["counters"]),
        ))
    }

    /// Waits until a condition holds. Fails after `limit`, or when the experiment must end.
    pub(crate) fn wait(
        &mut self,
        limit: Duration,
        what: &str,
        mut is_so: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<Duration> {
        let begun = Instant::now();
        loop {
            if is_so(self)? {
                return Ok(begun.elapsed());
            }
            self.stop.check()?;
            if begun.elapsed() > limit {
                return Err(Error::new(
                    Kind::Failed,
                    format!("waited {} s for {what}", limit.as_secs()),
                ));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Restores the state of both machines.
    pub(crate) fn close(&mut self) -> Result<()> {
        // The disk must be removed before the volume.
        let client = self.client.finish();
        let target = self.target.finish();
        match (client, target) {
            (Err(one), Err(other)) => Error::together(vec![one, other]).map_or(Ok(()), Err),
            (one, other) => one.and(other),
        }
    }
}

/// Returns the command that starts the target's part, and whether it runs on this machine.
fn carrier(common: &Common) -> Result<(Vec<String>, bool)> {
    let part = ["selftest", "--role", "target"].map(str::to_owned);
    if let Some(host) = &common.ssh {
        let mut argv = ["ssh", "-o", "BatchMode=yes", "--", host, "hcablk-bench"]
            .map(str::to_owned)
            .to_vec();
        argv.extend(part);
        return Ok((argv, false));
    }
    if let Some(command) = &common.through {
        return Ok((
            command.split_whitespace().map(str::to_owned).collect(),
            false,
        ));
    }
    let own = std::env::current_exe()
        .map_err(|error| Error::new(Kind::Failed, format!("cannot find this program: {error}")))?;
    let mut argv = vec![own.to_string_lossy().into_owned()];
    argv.extend(part);
    Ok((argv, true))
}

fn ports(list: &Value) -> Vec<String> {
    let ports = list.as_array().map(Vec::as_slice).unwrap_or_default();
    ports
        .iter()
        .filter_map(|port| Some(port["id"].as_str()?.to_owned()))
        .collect()
}

fn counters(object: &Value) -> Counters {
    let Some(object) = object.as_object() else {
        return Counters::new();
    };
    object
        .iter()
        .filter_map(|(name, value)| Some((name.clone(), value.as_i64()?)))
        .collect()
}
