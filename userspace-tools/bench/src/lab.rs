// SPDX-License-Identifier: GPL-2.0

//! Clients and target together: exports, connections, and the counters of both sides.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use hcablk::error::{Error, Kind, Result};
use serde_json::Value;

use crate::cli::{Common, Further};
use crate::drive::Drive;
use crate::facts::Facts;
use crate::fio::{self, Job, Load};
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

/// A client besides this machine.
struct FurtherClient {
    node: Node,
    name: String,
    /// The modules that were loaded before.
    modules: Vec<String>,
    host: String,
    /// The number of its notes before the connection; `None`: there is no connection.
    before_connection: Option<usize>,
}

/// The numbers of the notes of all machines at one moment.
pub(crate) struct Marks {
    client: usize,
    further: Vec<usize>,
    target: usize,
}

/// All machines.
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
    further: Vec<FurtherClient>,
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
                further: Vec::new(),
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
        if is_used(&client.hcablk(&["list"], Vec::new())?["devices"]) {
            return Err(taken("a disk"));
        }
        if is_used(&target.hcablk(&["target", "list"], Vec::new())?["volumes"]) {
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
        self.port = self.export_volume(NAME, how)?;
        self.exported = Some(how.clone());
        Ok(())
    }

    fn export_as(&mut self, name: &str, how: &Export, undo: Vec<WorkerStep>) -> Result<Value> {
        let (chunk, cache) = (how.chunk_kib.to_string(), how.cache_mib.to_string());
        let mut words = vec![
            "target", "export", name, &self.path, "--mode", how.mode, "--allow", &self.host,
        ];
        for client in &self.further {
            words.extend(["--allow", &client.host]);
        }
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

    /// Exports the drive as a volume, and notes how to undo that; returns the port.
    fn export_volume(&mut self, name: &str, how: &Export) -> Result<u64> {
        let ports = ports(&self.target.hcablk(&["target", "list"], Vec::new())?["ports"]);
        let undo = WorkerStep::run(&[
            "hcablk",
            "target",
            "unexport",
            name,
            "--force",
            "--if-exists",
        ]);
        let done = self.export_as(name, how, vec![undo])?;
        let port = &done["result"]["port"];
        let id = port["id"].as_str().unwrap_or_default();
        if !ports.iter().any(|known| known == id) {
            let undo = WorkerStep::run(&["hcablk", "target", "unlisten", id, "--if-exists"]);
            self.target.change(WorkerStep::run(&["true"]), vec![undo])?;
        }
        Ok(port["port"].as_u64().unwrap_or(7744))
    }

    /// Exports the drive again after the export was ended; the step that undoes the first export also undoes this one.
    pub(crate) fn export_again(&mut self, how: &Export) -> Result<()> {
        self.export_as(NAME, how, Vec::new()).map(|_| ())
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
        self.attach(0, NAME, self.port, options)
    }

    /// Reconnects all clients with these options, and returns the disk of each.
    pub(crate) fn connect_all(&mut self, options: &[&str]) -> Result<Vec<String>> {
        let mut disks = vec![self.connect(options)?];
        for index in 1..self.client_count() {
            let further = &mut self.further[index - 1];
            further.before_connection = Some(further.node.noted()?);
            disks.push(self.attach(index, NAME, self.port, options)?);
        }
        Ok(disks)
    }

    /// Connects a client to a volume, and notes how to undo that; returns the disk.
    fn attach(&mut self, index: usize, name: &str, port: u64, options: &[&str]) -> Result<String> {
        let (address, port) = (self.address.to_string(), port.to_string());
        let mut words = vec![
            "connect",
            &address,
            name,
            "--name",
            name,
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
            name,
            "--force",
            "--if-exists",
        ])];
        let done = self.client_mut(index).hcablk(&words, undo)?;
        let disk = done["result"]["device"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let argv = ["test", "-e", &disk].map(str::to_owned);
        self.wait(
            Duration::from_secs(60),
            &format!("{disk} to appear"),
            |lab| Ok(lab.client_mut(index).run(&argv, 30)?.status == 0),
        )?;
        Ok(disk)
    }

    /// Exports the drive as several volumes, and connects this machine to each; returns the disks. The caller undoes
    /// that with [`Lab::back_to`].
    pub(crate) fn export_and_connect(&mut self, count: usize, how: &Export) -> Result<Vec<String>> {
        (0..count)
            .map(|number| {
                self.stop.check()?;
                let name = format!("{NAME}{number}");
                let port = self.export_volume(&name, how)?;
                self.attach(0, &name, port, &[])
            })
            .collect()
    }

    /// Ends the connections, if there are any.
    pub(crate) fn disconnect(&mut self) -> Result<()> {
        for client in &mut self.further {
            if let Some(notes) = client.before_connection.take() {
                client.node.undo(notes)?;
            }
        }
        if let Some(notes) = self.before_connection.take() {
            self.client.undo(notes)?;
        }
        Ok(())
    }

    /// Starts the parts of further clients.
    pub(crate) fn join(&mut self, wanted: &Further) -> Result<()> {
        let over_ssh = wanted.clients.iter().map(|host| ssh(host));
        let through = wanted.client_through.iter().map(|words| split(words));
        for argv in over_ssh.chain(through) {
            let node = Node::there(&argv, &self.stop)?;
            // From here on `close` ends it.
            self.further.push(FurtherClient {
                node,
                name: String::new(),
                modules: Vec::new(),
                host: String::new(),
                before_connection: None,
            });
            let Some(client) = self.further.last_mut() else {
                continue;
            };
            let facts: Facts = client.node.ask(Ask::Facts)?;
            let refused =
                |why: String| Error::new(Kind::Setup, format!("the client {}: {why}", facts.name));
            if facts.version != self.client_facts.version {
                let here = &self.client_facts.version;
                let there = &facts.version;
                return Err(refused(format!(
                    "it has hcablk-bench {there}, this machine {here}"
                )));
            }
            if facts.fio.is_none() {
                return Err(refused("fio is not installed".to_owned()));
            }
            if is_used(&client.node.hcablk(&["list"], Vec::new())?["devices"]) {
                return Err(taken(&format!("on the client {} a disk", facts.name)));
            }
            let id = client.node.hcablk(&["host-id"], Vec::new())?;
            let id = id["host_id"].as_str().unwrap_or_default();
            id.clone_into(&mut client.host);
            if !facts.modules.iter().any(|module| module == "hcablk") {
                let undo = vec![unload("hcablk")];
                client
                    .node
                    .change(WorkerStep::run(&["modprobe", "hcablk"]), undo)?;
            }
            client.modules = facts.modules;
            client.name = facts.name;
        }
        Ok(())
    }

    /// Returns the number of clients, this machine included.
    pub(crate) fn client_count(&self) -> usize {
        1 + self.further.len()
    }

    /// Returns a client: 0 is this machine.
    pub(crate) fn client_mut(&mut self, index: usize) -> &mut Node {
        match index.checked_sub(1) {
            None => &mut self.client,
            Some(further) => &mut self.further[further].node,
        }
    }

    /// Returns the name of a client's machine.
    pub(crate) fn client_name(&self, index: usize) -> String {
        match index.checked_sub(1) {
            None => self.client_facts.name.clone(),
            Some(further) => self.further[further].name.clone(),
        }
    }

    /// Returns whether a client had a module before the experiment.
    pub(crate) fn has_module(&self, index: usize, module: &str) -> bool {
        let modules = match index.checked_sub(1) {
            None => &self.client_facts.modules,
            Some(further) => &self.further[further].modules,
        };
        modules.iter().any(|name| name == module)
    }

    /// Runs the first jobs on the first client, the second on the second, and so on, all at the same time.
    pub(crate) fn run_together(&mut self, jobs: &[Vec<Job>]) -> Result<Vec<Vec<Load>>> {
        let further = self.further.iter_mut().map(|client| &mut client.node);
        let nodes = std::iter::once(&mut self.client).chain(further);
        thread::scope(|scope| {
            let running: Vec<_> = nodes
                .zip(jobs)
                .map(|(node, jobs)| scope.spawn(move || fio::run(jobs, node)))
                .collect();
            let panicked = |_| Err(Error::new(Kind::Failed, "a thread has panicked"));
            running
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(panicked))
                .collect()
        })
    }

    /// Returns the numbers of the notes of all machines.
    pub(crate) fn marks(&mut self) -> Result<Marks> {
        let further = self.further.iter_mut();
        Ok(Marks {
            client: self.client.noted()?,
            further: further
                .map(|client| client.node.noted())
                .collect::<Result<_>>()?,
            target: self.target.noted()?,
        })
    }

    /// Undoes all changes since [`Lab::marks`], those of clients first.
    pub(crate) fn back_to(&mut self, marks: &Marks) -> Result<()> {
        self.client.undo(marks.client)?;
        for (client, notes) in self.further.iter_mut().zip(&marks.further) {
            client.node.undo(*notes)?;
        }
        self.target.undo(marks.target)
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
        let target = self.target_counters()?;
        Ok((counters(&client["devices"][0]["counters"]), target))
    }

    /// Returns the sums of the counters of all disks of this machine that the experiment made.
    pub(crate) fn all_counters(&mut self) -> Result<Counters> {
        let stats = self.client.hcablk(&["stats"], Vec::new())?;
        let devices = stats["devices"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let mut sums = Counters::new();
        for device in devices {
            let name = device["name"].as_str().unwrap_or_default();
            if name.starts_with(NAME) {
                for (name, value) in counters(&device["counters"]) {
                    *sums.entry(name).or_default() += value;
                }
            }
        }
        Ok(sums)
    }

    /// Returns the counters of the volume on the target.
    pub(crate) fn target_counters(&mut self) -> Result<Counters> {
        let target = self.target.hcablk(&["target", "stats", NAME], Vec::new())?;
        Ok(counters(&target["volumes"][0]["counters"]))
    }

    /// Returns the port of the export.
    pub(crate) fn port(&self) -> u64 {
        self.port
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
        // Disks must be removed before volumes.
        let mut done = vec![self.client.finish()];
        done.extend(self.further.iter_mut().map(|client| client.node.finish()));
        done.push(self.target.finish());
        let failed: Vec<Error> = done.into_iter().filter_map(Result::err).collect();
        Error::together(failed).map_or(Ok(()), Err)
    }
}

/// Returns whether a list of disks or volumes has one of an experiment.
fn is_used(list: &Value) -> bool {
    let is_ours = |one: &Value| {
        one["name"]
            .as_str()
            .is_some_and(|name| name.starts_with(NAME))
    };
    list.as_array().is_some_and(|list| list.iter().any(is_ours))
}

fn taken(what: &str) -> Error {
    Error::new(
        Kind::Exists,
        format!("{what} {NAME} is there already: is another run under way?"),
    )
    .advise(format!(
        "If not: hcablk disconnect {NAME}; on the target: hcablk target unexport {NAME} --force"
    ))
}

/// The words that start a part of an experiment that serves requests.
const PART: [&str; 3] = ["selftest", "--role", "target"];

/// Returns the command that starts a part on a host over ssh.
fn ssh(host: &str) -> Vec<String> {
    let words = ["ssh", "-o", "BatchMode=yes", "--", host, "hcablk-bench"];
    words
        .iter()
        .chain(&PART)
        .map(|&word| word.to_owned())
        .collect()
}

fn split(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_owned).collect()
}

/// Returns the command that starts the target's part, and whether it runs on this machine.
fn carrier(common: &Common) -> Result<(Vec<String>, bool)> {
    if let Some(host) = &common.ssh {
        return Ok((ssh(host), false));
    }
    if let Some(command) = &common.through {
        return Ok((split(command), false));
    }
    let own = std::env::current_exe()
        .map_err(|error| Error::new(Kind::Failed, format!("cannot find this program: {error}")))?;
    let mut argv = vec![own.to_string_lossy().into_owned()];
    argv.extend(PART.map(str::to_owned));
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
