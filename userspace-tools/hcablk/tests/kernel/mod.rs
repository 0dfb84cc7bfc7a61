// SPDX-License-Identifier: GPL-2.0

//! An imitation of the kernel: two configfs trees that behave for the command like those of the modules.
//!
//! Making a folder makes its attributes; a write fails if the attribute is read-only, its object is enabled, or the
//! value is out of range; enabling succeeds or fails as the test has arranged. Any changing operation can be made to
//! fail.
//!
//! | module | holds |
//! |---|---|
//! | this one | the machine: its tree, and the behaviour that both modules share |
//! | `initiator`, `target` | the tree of each module, and the effects of enabling |
//! | `discovery` | the tree that asks targets, and their lists |
//! | `paths` | the paths of a disk, and the addresses that can be reached |
//! | `system` | the calls of the command to the machine |
//! | `evictions` | the hosts that a volume has evicted, and the command's records of them |
//! | `user` | units of systemd, and disks that their programs serve in user space |
//! | `faults` | the faults that a test arranges |
//! | `run` | running command lines, and their output |

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "shared by test programs, each of which uses its own part"
)]

mod discovery;
mod evictions;
mod faults;
mod initiator;
mod paths;
mod run;
mod system;
mod target;
mod user;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use hcablk::audit::Entry;
use hcablk::system::{KernelEvent, Listen, Process};
use nix::errno::Errno;

pub use faults::each_failure_is_undone;
pub use run::{fails, golden, hcablk, key, key_notes, notes, ok, steps, steps_of, without_keys};

/// The object at a path: a folder, or a file with its text.
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
    /// Whether the modules are older than `lost_writes`, `write_cache`, `keep_reservations` and `state`.
    pub old: Cell<bool>,
    /// The files that only root can read.
    pub secrets: RefCell<BTreeSet<PathBuf>>,
    /// The files that are not text.
    pub made: RefCell<BTreeMap<PathBuf, Vec<u8>>>,
    /// The output of programs that change nothing, by the beginning of their command lines.
    pub printed: RefCell<BTreeMap<&'static str, String>>,
    /// The words of the last command line, and the entries of the audit log.
    pub words: RefCell<Vec<String>>,
    pub audited: RefCell<Vec<Entry>>,
    /// Whether the command line is part of another command.
    pub is_helper: Cell<bool>,
    /// Whether the sync of the folder fails when a file is replaced the next time: the new file is in place
    /// nevertheless.
    pub not_synced: Cell<bool>,
    /// The action of another process while a disk connects or a volume is enabled.
    pub while_enabling: RefCell<Option<Meanwhile>>,
    /// The action of an editor as soon as a command that has locked the configuration has read the main file, or has
    /// not found it.
    pub while_locked: RefCell<Option<Meanwhile>>,
    /// The targets of links.
    pub links: RefCell<BTreeMap<PathBuf, PathBuf>>,
    /// Every changing operation, as `mkdir path`, `rmdir path`, `write path value`, `replace path`, `record path`,
    /// `forget path`, `load module`, `mount path`, `run program arguments`.
    pub log: RefCell<Vec<String>>,
    /// The error with which enabling a group (by its name) fails, and the text of its `error`.
    pub refuse: RefCell<BTreeMap<String, (Errno, String)>>,
    /// The addresses over which no path becomes live, and the states of such paths.
    pub unreached: RefCell<BTreeMap<String, Unreached>>,
    /// The volumes in the target's list.
    pub listed_volumes: RefCell<Vec<String>>,
    /// The portals in the target's list, in addition to 10.0.0.1.
    pub portals: RefCell<Vec<&'static str>>,
    /// The number of responses before each of which the list changes.
    pub list_changes: Cell<u32>,
    /// For a lying target, the number of entries that it reports with the first one; with each further one it reports
    /// one more. `None`: the target does not lie.
    pub lie: Cell<Option<usize>>,
    /// The number of answered questions.
    pub asked: Cell<u32>,
    /// Writing 0 to `enable` of a device fails with EBUSY this many times.
    pub busy: Cell<u32>,
    /// Removing a folder fails with EBUSY this many times.
    pub busy_removals: Cell<u32>,
    /// The number of the changing operation that fails with EIO, counted from 0.
    pub fail_at: Cell<Option<usize>>,
    /// The number of the changing operation before which a signal arrives.
    pub signal_at: Cell<Option<usize>>,
    /// Processes that have a device open.
    pub processes: RefCell<Vec<Process>>,
    /// Whether modules can be loaded.
    pub modules: Cell<bool>,
    /// Whether no device nodes appear.
    pub no_nodes: Cell<bool>,
    /// The number of pauses of the command.
    pub pauses: Cell<u32>,
    /// The volumes whose drives hang: a command that ends their exports hangs, too.
    pub hung: RefCell<std::collections::BTreeSet<String>>,
    /// The key of a host that a target accepts, in the kernel's format; `None`: any key, or none.
    pub accepted_key: RefCell<Option<String>>,
    /// The list of systemd's jobs.
    pub jobs: RefCell<String>,
    /// After this many pauses all clients are gone.
    pub clients_leave_after: Cell<Option<u32>>,
    /// Whether the caller lacks root's rights.
    pub unprivileged: Cell<bool>,
    /// The time, which advances when the command pauses or the kernel is slow to respond.
    pub time: Cell<Duration>,
    /// Evicting a host fails with EAGAIN this many times, each time after a second.
    pub drains: RefCell<BTreeMap<String, u32>>,
    /// The action of another process after this many pauses of the command.
    pub meanwhile: RefCell<Option<(u32, Meanwhile)>>,
    /// Whether somebody has locked `/etc/hcablk`, to apply or change the configuration.
    pub applies: Rc<Cell<bool>>,
    /// Whether somebody has locked a folder other than `/etc/hcablk`.
    pub locked: Rc<Cell<bool>>,
    /// The reports of long waits.
    pub progress: RefCell<Vec<String>>,
    /// The output of running commands.
    pub said: RefCell<Vec<hcablk::output::Report>>,
    /// The events from the kernel, one after the other; then the user stops the command.
    pub heard: RefCell<std::collections::VecDeque<KernelEvent>>,
    /// The last arguments of `listen`.
    pub listened: RefCell<Option<Listen>>,
    /// The reason why the program of a disk in user space (by the volume's name) ends without a disk, and the error
    /// number of connecting.
    pub unserved: RefCell<BTreeMap<String, (Option<Errno>, String)>>,
    /// Whether units of disks in user space start without serving the disk, until the test calls `serve`.
    pub slow_programs: Cell<bool>,
    /// The states of units of systemd.
    pub units: RefCell<BTreeMap<String, &'static str>>,
    /// Systemd's account of the last programs of units: the number of restarts, `Result` and `ExecMainStatus`.
    pub ended: Cell<(u32, &'static str, i32)>,
    /// The reason why nothing except uevents can be listened to.
    pub listen_note: RefCell<Option<String>>,
}

/// The state of a path whose address is not reached.
#[derive(Clone, Debug)]
pub struct Unreached {
    /// `waiting` or `refused`.
    pub state: &'static str,
    /// The error with which enabling a disk over that path alone fails.
    pub errno: Errno,
    /// The driver's reason.
    pub text: String,
}

/// An action of another process.
pub type Meanwhile = Box<dyn Fn(&Kernel)>;

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

    /// Makes a link that `real_path` follows, and nothing else.
    pub fn link(&self, path: &str, to: &str) {
        self.links.borrow_mut().insert(path.into(), to.into());
    }

    /// Makes a drive with a partition and this kind of write cache (`write back`, `write through`).
    pub fn drive(&self, name: &str, write_cache: &str) {
        let disk = format!("/sys/devices/pci0000:00/block/{name}");
        let partition = format!("{name}1");
        self.file(
            format!("{disk}/queue/write_cache"),
            &format!("{write_cache}\n"),
        );
        for (name, folder) in [
            (name, disk.clone()),
            (&partition, format!("{disk}/{partition}")),
        ] {
            self.folder(&folder);
            self.link(&format!("/sys/class/block/{name}"), &folder);
            self.file(format!("/dev/{name}"), "");
        }
    }

    pub fn text(&self, path: impl AsRef<Path>) -> String {
        match self.tree.borrow().get(path.as_ref()) {
            Some(Node::File(text)) => text.trim_end().to_owned(),
            other => panic!("{}: {other:?}", path.as_ref().display()),
        }
    }

    pub fn has(&self, path: &str) -> bool {
        self.tree.borrow().contains_key(Path::new(path))
    }

    /// Returns a copy of the tree, to compare it later.
    pub fn snapshot(&self) -> Tree {
        self.tree.borrow().clone()
    }

    pub fn changes(&self) -> usize {
        self.log.borrow().len()
    }

    fn load(&self, module: &str) {
        match module {
            "hcablk" => self.load_initiator(),
            "hcablk_target" => self.load_target(),
            "ublk_drv" => self.file("/dev/ublk-control", ""),
            "rdma_ucm" => self.file("/dev/infiniband/rdma_cm", ""),
            _ => (),
        }
    }

    fn fill(&self, folder: &Path, attributes: &[(&str, &str)]) {
        let is_new = |name: &str| {
            matches!(
                name,
                "lost_writes" | "write_cache" | "keep_reservations" | "state"
            )
        };
        let known = |(name, _): &&(&str, &str)| !(self.old.get() && is_new(name));
        for (name, value) in attributes.iter().filter(known) {
            self.file(folder.join(name), &format!("{value}\n"));
        }
    }

    fn enabled(&self, group: &Path) -> bool {
        matches!(self.tree.borrow().get(&group.join("enable")), Some(Node::File(text)) if text.trim() == "1")
    }

    /// Writes 0 or 1 to `enable`.
    fn enable(&self, group: &Path, on: bool) -> Result<(), Errno> {
        if on {
            self.others_act();
        }
        if paths::is_path(group) {
            return self.enable_path(group, on);
        }
        if on && self.enabled(group) {
            return Err(Errno::EBUSY);
        }
        if on {
            self.refusal(group)?;
        }
        if initiator::is_device(group) {
            self.enable_device(group, on)?;
        } else if target::is_volume(group) {
            self.enable_volume(group, on);
        }
        self.set(group, "enable", if on { "1" } else { "0" });
        Ok(())
    }

    /// Lets another process act while a disk connects or a volume is enabled.
    fn others_act(&self) {
        if let Some(act) = self.while_enabling.take() {
            act(self);
        }
    }

    /// Lets an editor write while the configuration is locked.
    fn editor_acts(&self) {
        if self.applies.get() {
            if let Some(act) = self.while_locked.take() {
                act(self);
            }
        }
    }

    /// Sets an attribute, without the checks of its driver.
    fn set(&self, group: &Path, attribute: &str, value: &str) {
        self.file(group.join(attribute), &format!("{value}\n"));
    }

    pub fn forget_file(&self, path: &str) {
        self.tree.borrow_mut().remove(Path::new(path));
    }

    fn forget(&self, path: &str) {
        self.tree.borrow_mut().retain(|at, _| !at.starts_with(path));
    }
}
