// SPDX-License-Identifier: GPL-2.0

//! The calls of the command to the machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hcablk::audit::{Caller, Entry};
use hcablk::error::Error;
use hcablk::system::{
    converse, Answer, Clock, KernelEvent, Listen, Listener, Lock, Op, OpError, Process, Rights,
    System,
};
use nix::errno::Errno;

use super::evictions::Held;
use super::{paths, Kernel, Node};

const READ_ONLY: &[&str] = &[
    "state", "device", "answer", "error", "session", "stats", "times", "size", "clients",
    "sessions", "memory", "shares",
];

/// Returns whether a driver accepts a new value.
fn accepts(attribute: &str, value: &str) -> bool {
    let number = |low: u32, high: u32| value.parse().is_ok_and(|n: u32| (low..=high).contains(&n));
    match attribute {
        "port" => number(1, 65535),
        "queue_depth" => number(1, 1024),
        "queues" => number(0, 127),
        "poll_queues" => number(0, 126),
        "read_only" | "insecure" | "remote_invalidate" | "timing" => number(0, 1),
        "small_read" | "small_write" => number(0, 65536),
        "batch_upper" | "batch_lower" => number(0, 1024),
        "max_io_kib" => number(4, 4096),
        "message_requests" => number(1, 8),
        "ctrl_loss_tmo" | "fast_io_fail_tmo" => value == "-1" || number(0, 604_800),
        "reconnect_delay" => number(1, 60),
        "keep_alive_tmo" => number(1, 600),
        "cache_mib" | "eager_write" => number(0, 1 << 20),
        "chunk_kib" => ["0", "64", "128", "256", "512"].contains(&value),
        "protocol" => value.split_once('-').is_some(),
        "policy" => ["queue-depth", "round-robin", "numa"].contains(&value),
        "write_cache" => ["back", "through"].contains(&value),
        "state" => value.is_empty() || value.starts_with('/'),
        "mode" => ["direct", "cached", "mixed", "p2p"].contains(&value),
        "address" | "volume" | "path" | "host_id" | "provider" => !value.is_empty(),
        "key" | "key2" | "host_key" | "target_key" => value.is_empty() || value.len() == 64,
        "wwid" | "expect_wwid" => value.is_empty() || value.len() == 36,
        _ => number(0, u32::MAX),
    }
}

impl System for Kernel {
    fn read(&self, path: &Path) -> Result<String, OpError> {
        let found = self.tree.borrow().get(path).cloned();
        if path == Path::new("/etc/hcablk/hcablk.toml") {
            self.editor_acts();
        }
        match found {
            Some(Node::File(text)) => Ok(text),
            Some(Node::Folder) => Err(OpError::new(Op::Read, path, Errno::EISDIR)),
            None => Err(OpError::new(Op::Open, path, Errno::ENOENT)),
        }
    }

    fn write(&self, path: &Path, text: &str) -> Result<(), OpError> {
        self.change(
            Op::Write,
            path,
            format!("write {} {}", path.display(), text.trim_end()),
        )?;
        if !matches!(self.tree.borrow().get(path), Some(Node::File(_))) {
            return Err(OpError::new(Op::Open, path, Errno::ENOENT));
        }
        let fail = |errno| Err(OpError::new(Op::Write, path, errno));
        let attribute = path.file_name().unwrap().to_string_lossy().into_owned();
        let group = path.parent().unwrap();
        assert!(
            text.ends_with('\n') && text.lines().count() == 1,
            "{text:?}"
        );
        let value = text.trim_end();
        let is_setting = attribute == "state" && super::target::is_volume(group);
        if READ_ONLY.contains(&attribute.as_str()) && !is_setting {
            return Err(OpError::new(Op::Open, path, Errno::EACCES));
        }
        if attribute == "enable" {
            return self
                .enable(group, value == "1")
                .map_err(|errno| OpError::new(Op::Write, path, errno));
        }
        if attribute == "ask" {
            return self.ask(group, value).or_else(fail);
        }
        if attribute == "force_disconnect" {
            return self.force_disconnect(group).or_else(fail);
        }
        if attribute == "lost_writes" {
            return self.acknowledge_loss(group, value).or_else(fail);
        }
        if let "evicted" | "admit" = attribute.as_str() {
            return self.evict_or_admit(group, &attribute, value).or_else(fail);
        }
        let any_time = [
            "timing",
            "policy",
            "paths_auto",
            "memory_mib",
            "host_key",
            "target_key",
            "ctrl_loss_tmo",
            "fast_io_fail_tmo",
            "reconnect_delay",
        ];
        // Whether a disk outlives its connection is decided when it is connected: then
        // `ctrl_loss_tmo` cannot change from 0, or to 0.
        if attribute == "ctrl_loss_tmo"
            && self.enabled(group)
            && (value == "0") != (self.text(path) == "0")
        {
            return fail(Errno::EBUSY);
        }
        if self.enabled(group) && !any_time.contains(&attribute.as_str()) {
            return fail(Errno::EBUSY);
        }
        if !accepts(&attribute, value) {
            return fail(Errno::EINVAL);
        }
        self.file(path, text);
        Ok(())
    }

    fn mkdir(&self, path: &Path) -> Result<(), OpError> {
        self.change(Op::Mkdir, path, format!("mkdir {}", path.display()))?;
        let parent = path.parent().unwrap();
        if self.exists(path) {
            return Err(OpError::new(Op::Mkdir, path, Errno::EEXIST));
        }
        if !self.exists(parent) {
            return Err(OpError::new(Op::Mkdir, path, Errno::ENOENT));
        }
        if !paths::may_be_made(path) {
            return Err(OpError::new(Op::Mkdir, path, Errno::EINVAL));
        }
        self.folder(path.to_str().unwrap());
        self.fill_device(path);
        self.fill_asker(path);
        self.fill_path(path);
        self.fill_export(path);
        Ok(())
    }

    fn rmdir(&self, path: &Path) -> Result<(), OpError> {
        self.change(Op::Rmdir, path, format!("rmdir {}", path.display()))?;
        let fail = |errno| Err(OpError::new(Op::Rmdir, path, errno));
        if !self.exists(path) {
            return fail(Errno::ENOENT);
        }
        if self.busy_removals.get() > 0 {
            self.busy_removals.set(self.busy_removals.get() - 1);
            return fail(Errno::EBUSY);
        }
        if self.enabled(path) {
            return fail(Errno::EBUSY);
        }
        let has = |inside| {
            !self
                .folders(&path.join(inside))
                .unwrap_or_default()
                .is_empty()
        };
        if has("hosts") || has("paths") {
            return fail(Errno::ENOTEMPTY);
        }
        self.forget(path.to_str().unwrap());
        Ok(())
    }

    fn folders(&self, path: &Path) -> Result<Vec<String>, OpError> {
        let tree = self.tree.borrow();
        if tree.get(path) != Some(&Node::Folder) {
            return Err(OpError::new(Op::List, path, Errno::ENOENT));
        }
        let inside = tree
            .iter()
            .filter(|(at, node)| at.parent() == Some(path) && **node == Node::Folder);
        Ok(inside
            .map(|(at, _)| at.file_name().unwrap().to_string_lossy().into_owned())
            .collect())
    }

    fn entries(&self, path: &Path) -> Result<Vec<String>, OpError> {
        let tree = self.tree.borrow();
        if tree.get(path) != Some(&Node::Folder) {
            return Err(OpError::new(Op::List, path, Errno::ENOENT));
        }
        let inside = tree.keys().filter(|at| at.parent() == Some(path));
        let names = inside.map(|at| at.file_name().unwrap().to_string_lossy().into_owned());
        let names = names.collect();
        drop(tree);
        if path == Path::new("/etc/hcablk/hcablk.d") && !self.has("/etc/hcablk/hcablk.toml") {
            self.editor_acts();
        }
        Ok(names)
    }

    fn make_durable_folder(&self, path: &Path, _top: &Path) -> Result<(), OpError> {
        if self.unprivileged.get() {
            return Err(OpError::new(Op::Mkdir, path, Errno::EACCES));
        }
        for above in path.ancestors() {
            self.folder(above.to_str().unwrap());
        }
        Ok(())
    }

    fn make_durable_file(&self, path: &Path) -> Result<(), OpError> {
        self.change(Op::Open, path, format!("record {}", path.display()))?;
        if !self.exists(path.parent().unwrap()) {
            return Err(OpError::new(Op::Open, path, Errno::ENOENT));
        }
        self.file(path, "");
        Ok(())
    }

    fn remove_durable_file(&self, path: &Path) -> Result<(), OpError> {
        self.change(Op::Remove, path, format!("forget {}", path.display()))?;
        self.tree.borrow_mut().remove(path);
        Ok(())
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Lock>, OpError> {
        if !self.exists(path) {
            return Err(OpError::new(Op::Open, path, Errno::ENOENT));
        }
        let locked = if path == Path::new("/etc/hcablk") {
            &self.applies
        } else {
            &self.locked
        };
        Ok(Held::new(locked).map(|held| Box::new(held) as Lock))
    }

    fn exists(&self, path: &Path) -> bool {
        self.tree.borrow().contains_key(path)
    }

    fn replace(&self, path: &Path, text: &str) -> Result<(), OpError> {
        self.change(Op::Open, path, format!("replace {}", path.display()))?;
        if path.starts_with("/run") {
            for above in path.ancestors().skip(1) {
                self.folder(above.to_str().unwrap());
            }
        }
        self.file(path, text);
        if self.not_synced.take() {
            return Err(OpError::new(Op::Sync, path, Errno::EIO));
        }
        Ok(())
    }

    fn replace_secret(&self, path: &Path, text: &str) -> Result<(), OpError> {
        self.secrets.borrow_mut().insert(path.to_owned());
        self.replace(path, text)
    }

    fn create(&self, path: &Path, bytes: &[u8]) -> Result<(), OpError> {
        if self.exists(path) || self.made.borrow().contains_key(path) {
            return Err(OpError::new(Op::Open, path, Errno::EEXIST));
        }
        self.made
            .borrow_mut()
            .insert(path.to_owned(), bytes.to_owned());
        Ok(())
    }

    fn openers(&self, _devices: &[PathBuf]) -> Vec<Process> {
        self.processes.borrow().clone()
    }

    fn mount_configfs(&self, path: &Path) -> Result<(), String> {
        if self.unprivileged.get() {
            return Err("operation not permitted (EPERM)".to_owned());
        }
        self.log
            .borrow_mut()
            .push(format!("mount {}", path.display()));
        self.file(
            "/proc/mounts",
            &format!("configfs {} configfs rw 0 0\n", path.display()),
        );
        Ok(())
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        self.run_program(program, arguments)
    }

    fn run_within(
        &self,
        program: &str,
        arguments: &[&str],
        _limit: Duration,
    ) -> Result<String, String> {
        self.print(program, arguments)
    }

    fn run_selves(
        &self,
        lines: &[Vec<String>],
        timeout: Option<Duration>,
    ) -> Vec<Option<Result<(), Error>>> {
        let run = |line: &Vec<String>| {
            if line.iter().any(|word| self.hung.borrow().contains(word)) {
                return None;
            }
            Some(super::run::hcablk(self, &line.join(" ")).map(drop))
        };
        self.is_helper.set(true);
        let results: Vec<_> = lines.iter().map(run).collect();
        self.is_helper.set(false);
        if results.iter().any(Option::is_none) {
            match timeout {
                Some(timeout) => self.time.set(self.time.get() + timeout),
                // Without a limit, the user interrupts the command.
                None => self.signal_at.set(Some(0)),
            }
        }
        results
    }

    fn converse(&self, program: &str, arguments: &[&str], input: &str) -> Result<Answer, String> {
        converse(program, arguments, input)
    }

    fn load_module(&self, name: &str) -> Result<(), String> {
        if !self.modules.get() {
            return Err(format!("modprobe: FATAL: Module {name} not found"));
        }
        self.log.borrow_mut().push(format!("load {name}"));
        self.load(name);
        Ok(())
    }

    fn wait_for(&self, path: &Path, _timeout: Duration) -> bool {
        self.exists(path)
    }

    fn pause(&self, time: Duration) {
        self.pauses.set(self.pauses.get() + 1);
        self.time.set(self.time.get() + time);
        let due = |(pauses, _): &mut (u32, _)| *pauses <= self.pauses.get();
        let act = self.meanwhile.borrow_mut().take_if(due);
        if let Some((_, act)) = act {
            act(self);
        }
        if self.clients_leave_after.get() == Some(self.pauses.get()) {
            self.end_sessions();
        }
    }

    fn now(&self) -> Duration {
        self.time.get()
    }

    fn progress(&self, text: &str) {
        self.progress.borrow_mut().push(text.to_owned());
    }

    fn interrupted(&self) -> bool {
        self.signal_at.get().is_some_and(|at| self.changes() >= at)
    }

    fn remark(&self, text: &str) {
        self.progress.borrow_mut().push(text.to_owned());
    }

    fn clock(&self) -> Clock {
        Clock {
            real: Duration::from_secs(1_764_028_800) + self.time.get(),
            mono: Duration::from_secs(1000) + self.time.get(),
        }
    }

    fn listen(&self, wanted: &Listen) -> Result<(Box<dyn Listener>, Vec<String>), Error> {
        *self.listened.borrow_mut() = Some(wanted.clone());
        let notes = self.listen_note.borrow().iter().cloned().collect();
        let heard = std::mem::take(&mut *self.heard.borrow_mut());
        Ok((Box::new(Queue(heard)), notes))
    }

    fn read_bytes(&self, path: &Path) -> Result<Vec<u8>, OpError> {
        self.read(path).map(String::into_bytes)
    }

    fn real_path(&self, path: &Path) -> Option<PathBuf> {
        let link = self.links.borrow().get(path).cloned();
        link.or_else(|| self.exists(path).then(|| path.to_owned()))
    }

    fn rights(&self, _path: &Path) -> Option<Rights> {
        None
    }

    fn caller(&self) -> Caller {
        Caller {
            words: self.words.borrow().clone(),
            login_uid: Some(1000),
            sudo_user: Some("alice".to_owned()),
            parent: Some("sudo".to_owned()),
            is_helper: self.is_helper.get(),
            ..Caller::default()
        }
    }

    fn audit(&self, entry: &Entry) {
        self.audited.borrow_mut().push(entry.clone());
    }

    fn kernel_release(&self) -> String {
        "7.3.0-test".to_owned()
    }

    fn host_name(&self) -> String {
        "client1".to_owned()
    }
}

/// The events from the kernel, one after the other.
struct Queue(std::collections::VecDeque<KernelEvent>);

impl Listener for Queue {
    fn next_within(&mut self, _limit: Option<Duration>) -> Result<Option<KernelEvent>, Error> {
        Ok(Some(self.0.pop_front().unwrap_or(KernelEvent::End)))
    }
}
