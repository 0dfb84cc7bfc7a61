// SPDX-License-Identifier: GPL-2.0

//! An imitation of the kernel: two configfs trees that behave as the modules do, as far as the
//! command can tell.
//!
//! Making a folder makes its attributes; attributes that are read-only, enabled or out of range
//! refuse to be written; enabling succeeds or fails as the test has arranged. Any changing
//! operation can be made to fail.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by test programs, each of which uses its own part"
)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hcablk::system::{Op, OpError, Process, System};
use nix::errno::Errno;

const INITIATOR: &str = "/sys/kernel/config/hcablk";
const TARGET: &str = "/sys/kernel/config/hcablk_target";

const DEVICE: &[(&str, &str)] = &[
    ("address", ""),
    ("port", "7744"),
    ("volume", ""),
    ("host_id", ""),
    ("expect_wwid", ""),
    ("wwid", ""),
    ("queues", "0"),
    ("poll_queues", "0"),
    ("queue_depth", "128"),
    ("io_timeout", "30"),
    ("connect_timeout", "10"),
    ("reconnect_delay", "1"),
    ("ctrl_loss_tmo", "0"),
    ("remote_invalidate", "1"),
    ("small_read", "8192"),
    ("small_write", "4096"),
    ("eager_write", "32768"),
    ("max_io_kib", "1024"),
    ("message_requests", "8"),
    ("batch_upper", "32"),
    ("batch_lower", "16"),
    ("enable", "0"),
    ("state", "new"),
    ("device", ""),
    ("error", ""),
    ("session", "0000000000000000 0"),
    ("timing", "0"),
    ("times", "queued 0 0\nsent 0 0\nending 0 0"),
    ("stats", "reads 0\nwrites 0\ncopied_bytes 0"),
];

const VOLUME: &[(&str, &str)] = &[
    ("path", ""),
    ("read_only", "0"),
    ("mode", "direct"),
    ("cache_mib", "0"),
    ("chunk_kib", "128"),
    ("provider", "auto"),
    ("wwid", ""),
    ("enable", "0"),
    ("size", "0"),
    ("clients", ""),
    ("timing", "0"),
    ("times", "waiting 0 0\nfetching 0 0\ndrive 0 0\nsending 0 0"),
    ("stats", "reads 0\nwrites 0\nbuffer_waits 0"),
    ("error", ""),
];

const PORT: &[(&str, &str)] = &[
    ("address", "0.0.0.0"),
    ("port", "7744"),
    ("buffer_mib", "0"),
    ("memory_mib", "1024"),
    ("memory", "limit 1073741824\nused 0\nleast 0\nwaiting 0"),
    ("shares", ""),
    ("queue_credits", "0"),
    ("enable", "0"),
    ("sessions", ""),
    ("error", ""),
];

const READ_ONLY: &[&str] = &[
    "state", "device", "error", "session", "stats", "times", "size", "clients", "sessions",
    "memory", "shares",
];

/// What is at a path: a folder, or a file with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    Folder,
    File(String),
}

pub type Tree = BTreeMap<PathBuf, Node>;

/// The machine.
#[derive(Default)]
pub struct Kernel {
    pub tree: RefCell<Tree>,
    /// Every changing operation, as `mkdir path`, `rmdir path`, `write path value`, `load module`.
    pub log: RefCell<Vec<String>>,
    /// What enabling a group (by its name) answers, and the text for its `error`.
    pub refuse: RefCell<BTreeMap<String, (Errno, String)>>,
    /// Writing 0 to `enable` of a device answers EBUSY this many times.
    pub busy: Cell<u32>,
    /// Removing a folder answers EBUSY this many times.
    pub busy_removals: Cell<u32>,
    /// The number of the changing operation that fails with EIO, counted from 0.
    pub fail_at: Cell<Option<usize>>,
    /// The number of the changing operation before which a signal arrives.
    pub signal_at: Cell<Option<usize>>,
    /// Processes that have a device open.
    pub processes: RefCell<Vec<Process>>,
    /// Whether modules can be loaded.
    pub modules: Cell<bool>,
    /// Whether device nodes appear.
    pub no_nodes: Cell<bool>,
    /// How often the command waited for something that may change by itself.
    pub pauses: Cell<u32>,
    /// After so many pauses all clients are gone.
    pub clients_leave_after: Cell<Option<u32>>,
    /// Whether the caller lacks root's rights.
    pub unprivileged: Cell<bool>,
}

impl Kernel {
    /// A machine with a machine id, nothing loaded and nothing mounted.
    pub fn bare() -> Self {
        let kernel = Self::default();
        kernel.modules.set(true);
        kernel.folder("/dev");
        kernel.file("/proc/mounts", "proc /proc proc rw 0 0\n");
        kernel.file("/etc/machine-id", "0123456789abcdef0123456789abcdef\n");
        kernel
    }

    /// A machine with both modules loaded.
    pub fn loaded() -> Self {
        let kernel = Self::bare();
        kernel.file(
            "/proc/mounts",
            "configfs /sys/kernel/config configfs rw 0 0\n",
        );
        kernel.load("hcablk");
        kernel.load("hcablk_target");
        kernel
    }

    pub fn folder(&self, path: &str) {
        self.tree.borrow_mut().insert(path.into(), Node::Folder);
    }

    pub fn file(&self, path: impl AsRef<Path>, text: &str) {
        self.tree
            .borrow_mut()
            .insert(path.as_ref().to_owned(), Node::File(text.to_owned()));
    }

    pub fn text(&self, path: impl AsRef<Path>) -> String {
        match self.tree.borrow().get(path.as_ref()) {
            Some(Node::File(text)) => text.trim_end().to_owned(),
            other => panic!("{}: {other:?}", path.as_ref().display()),
        }
    }

    pub fn device(&self, name: &str, attribute: &str) -> String {
        self.text(format!("{INITIATOR}/{name}/{attribute}"))
    }

    pub fn volume(&self, name: &str, attribute: &str) -> String {
        self.text(format!("{TARGET}/volumes/{name}/{attribute}"))
    }

    pub fn port(&self, id: &str, attribute: &str) -> String {
        self.text(format!("{TARGET}/ports/{id}/{attribute}"))
    }

    pub fn set_device(&self, name: &str, attribute: &str, value: &str) {
        self.file(format!("{INITIATOR}/{name}/{attribute}"), value);
    }

    pub fn set_volume(&self, name: &str, attribute: &str, value: &str) {
        self.file(format!("{TARGET}/volumes/{name}/{attribute}"), value);
    }

    pub fn set_port(&self, id: &str, attribute: &str, value: &str) {
        self.file(format!("{TARGET}/ports/{id}/{attribute}"), value);
    }

    pub fn has(&self, path: &str) -> bool {
        self.tree.borrow().contains_key(Path::new(path))
    }

    /// Everything there is, to compare.
    pub fn snapshot(&self) -> Tree {
        self.tree.borrow().clone()
    }

    pub fn changes(&self) -> usize {
        self.log.borrow().len()
    }

    pub fn refuse(&self, group: &str, errno: Errno, text: &str) {
        self.refuse
            .borrow_mut()
            .insert(group.to_owned(), (errno, text.to_owned()));
    }

    fn load(&self, module: &str) {
        match module {
            "hcablk" => self.folder(INITIATOR),
            "hcablk_target" => {
                for folder in [
                    TARGET.to_owned(),
                    format!("{TARGET}/volumes"),
                    format!("{TARGET}/ports"),
                ] {
                    self.folder(&folder);
                }
            }
            _ => (),
        }
    }

    /// Records a changing operation; fails it if the test wants that.
    fn change(&self, op: Op, path: &Path, what: String) -> Result<(), OpError> {
        let number = self.changes();
        self.log.borrow_mut().push(what);
        if self.unprivileged.get() {
            let op = if op == Op::Write { Op::Open } else { op };
            return Err(OpError::new(op, path, Errno::EACCES));
        }
        if self.fail_at.get() == Some(number) {
            return Err(OpError::new(op, path, Errno::EIO));
        }
        Ok(())
    }

    fn fill(&self, folder: &Path, attributes: &[(&str, &str)]) {
        for (name, value) in attributes {
            self.file(folder.join(name), &format!("{value}\n"));
        }
    }

    fn enabled(&self, group: &Path) -> bool {
        matches!(self.tree.borrow().get(&group.join("enable")), Some(Node::File(text)) if text.trim() == "1")
    }

    fn enable(&self, group: &Path, on: bool) -> Result<(), Errno> {
        let name = group.file_name().unwrap().to_string_lossy().into_owned();
        let set =
            |attribute: &str, value: &str| self.file(group.join(attribute), &format!("{value}\n"));
        let is_device = group.starts_with(INITIATOR);
        let is_volume = group
            .parent()
            .is_some_and(|parent| parent.ends_with("volumes"));
        if on && self.enabled(group) {
            return Err(Errno::EBUSY);
        }
        if on {
            if let Some((errno, text)) = self.refuse.borrow().get(&name) {
                set("error", text);
                return Err(*errno);
            }
            if is_device {
                if self.text(group.join("address")).is_empty()
                    || self.text(group.join("volume")).is_empty()
                {
                    return Err(Errno::EINVAL);
                }
                let disk = (0..64)
                    .map(|n| format!("hcablk{n}"))
                    .find(|disk| !self.has(&format!("/sys/block/{disk}")));
                let disk = disk.unwrap();
                self.folder(&format!("/sys/block/{disk}"));
                self.folder(&format!("/sys/block/{disk}/mq"));
                self.folder(&format!("/sys/block/{disk}/mq/0"));
                self.folder(&format!("/sys/block/{disk}/mq/1"));
                self.file(format!("/sys/block/{disk}/size"), "131072\n");
                self.file(format!("/sys/block/{disk}/dev"), "252:0\n");
                if !self.no_nodes.get() {
                    self.file(format!("/dev/{disk}"), "");
                }
                set("device", &disk);
                set("state", "live");
                set("session", "00000000deadbeef 1");
                set("error", "");
            }
            if is_volume {
                set("size", "67108864");
            }
        } else if is_device {
            let disk = self.text(group.join("device"));
            if !disk.is_empty() {
                if self.busy.get() > 0 {
                    self.busy.set(self.busy.get() - 1);
                    return Err(Errno::EBUSY);
                }
                self.forget(&format!("/sys/block/{disk}"));
                self.forget(&format!("/dev/{disk}"));
            }
            set("device", "");
            set("state", "new");
            set("session", "0000000000000000 0");
        } else if is_volume {
            set("size", "0");
            set("clients", "");
        }
        set("enable", if on { "1" } else { "0" });
        Ok(())
    }

    fn forget(&self, path: &str) {
        self.tree.borrow_mut().retain(|at, _| !at.starts_with(path));
    }

    /// What a driver says to a new value.
    fn accepts(attribute: &str, value: &str) -> bool {
        let number =
            |low: u32, high: u32| value.parse().is_ok_and(|n: u32| (low..=high).contains(&n));
        match attribute {
            "port" => number(1, 65535),
            "queue_depth" => number(1, 1024),
            "poll_queues" => number(0, 127),
            "read_only" | "remote_invalidate" | "timing" => number(0, 1),
            "small_read" | "small_write" => number(0, 65536),
            "batch_upper" | "batch_lower" => number(0, 1024),
            "max_io_kib" => number(4, 4096),
            "message_requests" => number(1, 8),
            "ctrl_loss_tmo" => value == "-1" || number(0, 604_800),
            "reconnect_delay" => number(1, 60),
            "cache_mib" | "eager_write" => number(0, 1 << 20),
            "chunk_kib" => ["0", "64", "128", "256", "512"].contains(&value),
            "mode" => ["direct", "cached", "mixed", "p2p"].contains(&value),
            "address" | "volume" | "path" | "host_id" | "provider" => !value.is_empty(),
            "wwid" | "expect_wwid" => value.is_empty() || value.len() == 36,
            _ => number(0, u32::MAX),
        }
    }
}

impl System for Kernel {
    fn read(&self, path: &Path) -> Result<String, OpError> {
        match self.tree.borrow().get(path) {
            Some(Node::File(text)) => Ok(text.clone()),
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
        if READ_ONLY.contains(&attribute.as_str()) {
            return Err(OpError::new(Op::Open, path, Errno::EACCES));
        }
        if attribute == "enable" {
            return self
                .enable(group, value == "1")
                .map_err(|errno| OpError::new(Op::Write, path, errno));
        }
        if self.enabled(group) && attribute != "timing" {
            return fail(Errno::EBUSY);
        }
        if !Self::accepts(&attribute, value) {
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
        self.folder(path.to_str().unwrap());
        if parent == Path::new(INITIATOR) {
            self.fill(path, DEVICE);
        } else if parent.ends_with("volumes") {
            self.fill(path, VOLUME);
            self.folder(path.join("hosts").to_str().unwrap());
        } else if parent.ends_with("ports") {
            self.fill(path, PORT);
        }
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
        if !self
            .folders(&path.join("hosts"))
            .unwrap_or_default()
            .is_empty()
        {
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

    fn exists(&self, path: &Path) -> bool {
        self.tree.borrow().contains_key(path)
    }

    fn replace(&self, path: &Path, text: &str) -> Result<(), OpError> {
        self.change(Op::Open, path, format!("replace {}", path.display()))?;
        self.file(path, text);
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

    fn pause(&self, _time: Duration) {
        self.pauses.set(self.pauses.get() + 1);
        if self.clients_leave_after.get() == Some(self.pauses.get()) {
            let mut tree = self.tree.borrow_mut();
            for (_, node) in tree
                .iter_mut()
                .filter(|(path, _)| path.ends_with("clients"))
            {
                *node = Node::File(String::new());
            }
        }
    }

    fn interrupted(&self) -> bool {
        self.signal_at.get().is_some_and(|at| self.changes() >= at)
    }
}

/// Runs a command line.
pub fn hcablk(kernel: &Kernel, line: &str) -> hcablk::error::Result<hcablk::output::Outcome> {
    use clap::Parser as _;
    let words = ["hcablk"].into_iter().chain(line.split_whitespace());
    let cli =
        hcablk::cli::Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
    hcablk::run(&cli.command, kernel)
}

/// The text that a command line which succeeds prints.
pub fn ok(kernel: &Kernel, line: &str) -> String {
    match hcablk(kernel, line) {
        Ok(outcome) => outcome.report.to_string(),
        Err(error) => panic!("{line}: {error:?}"),
    }
}

/// The error of a command line that fails.
pub fn fails(kernel: &Kernel, line: &str) -> hcablk::error::Error {
    match hcablk(kernel, line) {
        Ok(outcome) => panic!("{line}: {outcome:?}"),
        Err(error) => error,
    }
}

/// Compares with a file in `tests/golden`. With `HCABLK_UPDATE_GOLDEN` set, writes the file
/// instead: look at the difference before you commit it, because programs read the JSON.
pub fn golden(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("HCABLK_UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, text).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, expected, "{name}");
}

/// Makes each of the changes that a command does fail in turn, and a signal arrive before each of
/// them; demands that the tree is then as it was before.
pub fn each_failure_is_undone(prepare: impl Fn() -> Kernel, line: &str) {
    let kernel = prepare();
    let before = kernel.changes();
    ok(&kernel, line);
    let steps = kernel.changes() - before;
    assert!(steps > 1, "{line} does not change much");
    for step in before..before + steps {
        let kernel = prepare();
        let snapshot = kernel.snapshot();
        kernel.fail_at.set(Some(step));
        let error = fails(&kernel, line);
        assert_eq!(error.not_undone, [""; 0], "{line}, step {step}");
        assert_eq!(kernel.snapshot(), snapshot, "{line}, step {step}");

        let kernel = prepare();
        kernel.signal_at.set(Some(step));
        let error = fails(&kernel, line);
        assert_eq!(error.kind, hcablk::error::Kind::Interrupted);
        assert_eq!(
            kernel.snapshot(),
            snapshot,
            "{line}, signal before step {step}"
        );
    }
}
