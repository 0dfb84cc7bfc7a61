// SPDX-License-Identifier: GPL-2.0

//! Typed access to the two configfs trees, and changes to them that can be undone.
//!
//! ```text
//! /sys/kernel/config/hcablk/<device>/{address,port,volume,…,enable,state,device,error,session,stats}
//!                                   /paths/<number>/{address,port,enable,state,error}
//! /sys/kernel/config/hcablk_target/volumes/<volume>/{path,read_only,mode,provider,enable,size,clients,
//!                                                   evicted,admit,stats,error}
//!                                                  /hosts/<uuid>/
//!                                 /ports/<id>/{address,port,buffer_mib,memory_mib,memory,shares,
//!                                             queue_credits,enable,sessions,error}
//! ```

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use nix::errno::Errno;
use zeroize::Zeroizing;

use crate::error::{Error, Kind, Result};
use crate::system::{Op, OpError, System};

/// The mount point of configfs.
pub const CONFIGFS: &str = "/sys/kernel/config";

/// One of the two kernel modules and its tree.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// The module's name for `modprobe`.
    pub name: &'static str,
    /// The module's folder in configfs.
    pub folder: &'static str,
}

/// The initiator: provides `/dev/hcablkN` on this machine.
pub const INITIATOR: Module = Module {
    name: "hcablk",
    folder: "hcablk",
};

/// The groups that ask targets which volumes this host may use; they belong to the same module.
pub const DISCOVERY: Module = Module {
    name: "hcablk",
    folder: "hcablk_discovery",
};

/// The target: exports this machine's block devices.
pub const TARGET: Module = Module {
    name: "hcablk_target",
    folder: "hcablk_target",
};

impl Module {
    /// Returns the module's tree; `None` if the module is not loaded, or this machine cannot show its tree.
    pub fn tree<'a>(&self, system: &'a dyn System) -> Option<Group<'a>> {
        let group = self.named(system);
        group.exists().then_some(group)
    }

    /// Returns the module's tree, which need not exist.
    pub fn named<'a>(&self, system: &'a dyn System) -> Group<'a> {
        Group::new(system, Path::new(CONFIGFS).join(self.folder))
    }

    /// Returns the module's tree; mounts configfs and loads the module if need be.
    pub fn require<'a>(&self, system: &'a dyn System) -> Result<Group<'a>> {
        if let Some(tree) = self.tree(system) {
            return Ok(tree);
        }
        if !is_mounted(system) {
            // If configfs is a module, loading it creates the mount point. If that fails, the mount reports it.
            let _ = system.load_module("configfs");
            system
                .mount_configfs(Path::new(CONFIGFS))
                .map_err(|reason| {
                    Error::new(
                        Kind::Setup,
                        format!("cannot mount configfs at {CONFIGFS}: {reason}"),
                    )
                    .advise(format!(
                        "Run as root: mount -t configfs configfs {CONFIGFS}"
                    ))
                })?;
            if let Some(tree) = self.tree(system) {
                return Ok(tree);
            }
        }
        let name = self.name;
        system.load_module(name).map_err(|reason| {
            Error::new(
                Kind::Setup,
                format!("cannot load the kernel module {name}: {reason}"),
            )
            .advise(format!(
                "Run as root. If the module is missing for this kernel (`uname -r`), install it,\n\
                 or load it by hand: modprobe -a configfs rdma_cm libcurve25519, insmod hcablk_core.ko, insmod {name}.ko"
            ))
        })?;
        self.tree(system).ok_or_else(|| {
            Error::new(
                Kind::Setup,
                format!(
                    "the kernel module {name} is loaded, but {CONFIGFS}/{} is missing",
                    self.folder
                ),
            )
            .advise("Look for its message with `dmesg | grep hcablk`.")
        })
    }
}

fn is_mounted(system: &dyn System) -> bool {
    system.read(Path::new("/proc/mounts")).is_ok_and(|mounts| {
        mounts.lines().any(|line| {
            let mut fields = line.split(' ').skip(1);
            fields.next() == Some(CONFIGFS) && fields.next() == Some("configfs")
        })
    })
}

/// A folder of a tree: the attributes and groups in it.
#[derive(Clone)]
pub struct Group<'a> {
    system: &'a dyn System,
    path: PathBuf,
}

impl<'a> Group<'a> {
    /// Makes a handle of the group at `path`, which need not exist.
    pub fn new(system: &'a dyn System, path: PathBuf) -> Self {
        Self { system, path }
    }

    /// Returns the machine that the group is on.
    pub fn system(&self) -> &'a dyn System {
        self.system
    }

    /// Returns the group's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the group's name: the last part of its path.
    pub fn name(&self) -> String {
        self.path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }

    /// Returns whether the group exists.
    pub fn exists(&self) -> bool {
        self.system.exists(&self.path)
    }

    /// Returns the group `name` inside, which need not exist.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self::new(self.system, self.path.join(name))
    }

    /// Returns the groups inside, sorted by name.
    pub fn children(&self) -> Result<Vec<Self>> {
        let names = self.system.folders(&self.path)?;
        Ok(names.iter().map(|name| self.child(name)).collect())
    }

    /// Reads an attribute's text, without the newline at its end.
    pub fn get(&self, attribute: &str) -> Result<String, OpError> {
        let mut text = self.system.read(&self.path.join(attribute))?;
        text.truncate(text.trim_end().len());
        Ok(text)
    }

    /// Reads an attribute that only root can read; to others it is empty.
    pub fn get_as_root(&self, attribute: &str) -> Result<String, OpError> {
        match self.get(attribute) {
            Err(error) if error.lacks_rights() => Ok(String::new()),
            read => read,
        }
    }

    /// Writes an attribute whose value must not appear in messages.
    pub fn set_secret(&self, attribute: &str, value: &str) -> Result<(), OpError> {
        let path = self.path.join(attribute);
        let mut line = Zeroizing::new(String::with_capacity(value.len() + 1));
        line.push_str(value);
        line.push('\n');
        self.system.write(&path, &line)
    }

    /// Reads an attribute's value; fails if the text does not parse.
    pub fn value<T: FromStr>(&self, attribute: &str) -> Result<T> {
        let text = self.get(attribute)?;
        text.parse().map_err(|_| {
            Error::new(
                Kind::Failed,
                format!(
                    "{} holds {text:?}, which this version of hcablk does not understand",
                    self.path.join(attribute).display()
                ),
            )
            .advise("The command and the kernel modules may be of different versions.")
        })
    }

    /// Reads a switch attribute.
    pub fn flag(&self, attribute: &str) -> Result<bool> {
        Ok(self.value::<u32>(attribute)? != 0)
    }

    /// Returns the group's last failure in the driver's words, if it has one.
    pub fn reason(&self) -> Option<String> {
        self.get("error").ok().filter(|text| !text.is_empty())
    }
}

/// The number of further tries, and the pause between them, when an object is busy for no known reason. udev opens a
/// disk for a moment after it has appeared and after each writer has closed it, and a disabled object may still be
/// winding down.
pub const BUSY_TRIES: u32 = 100;
/// See [`BUSY_TRIES`].
pub const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Retries `operation` while it fails with `EBUSY`, at most [`BUSY_TRIES`] times.
fn until_idle(
    system: &dyn System,
    operation: impl Fn() -> Result<(), OpError>,
) -> Result<(), OpError> {
    for _ in 0..BUSY_TRIES {
        match operation() {
            Err(error) if error.errno == Errno::EBUSY => system.pause(BUSY_PAUSE),
            result => return result,
        }
    }
    operation()
}

/// Removes a group; succeeds if it is already gone.
pub fn remove(group: &Group<'_>) -> Result<()> {
    match until_idle(group.system, || group.system.rmdir(&group.path)) {
        Err(error) if error.errno != Errno::ENOENT => Err(error.into()),
        _ => Ok(()),
    }
}

/// Parses the counters of a `stats` attribute; keeps their order.
pub fn parse_counters(text: &str) -> Vec<(String, u64)> {
    let parse = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(parse).collect()
}

/// Restores the content of a group.
pub type Restore = fn(&Group<'_>) -> Result<()>;

/// Undoes a change.
type Call = dyn Fn(&dyn System) -> Result<()>;

enum Undo {
    Rmdir(PathBuf),
    Write(PathBuf, String),
    /// Makes a folder, and writes these attributes of it.
    Mkdir(PathBuf, Vec<(&'static str, String)>),
    /// Makes a folder, and calls a function to restore its content, which could not be read before the removal.
    Restore(PathBuf, Restore),
    /// Removes a file.
    Remove(PathBuf),
    /// Any other function that undoes the change.
    Call(Box<Call>),
}

impl Undo {
    fn carry_out(&self, system: &dyn System) -> Result<(), OpError> {
        let write = |path: &Path, text: &str| system.write(path, &format!("{text}\n"));
        match self {
            Self::Rmdir(path) => system.rmdir(path),
            Self::Write(path, before) => write(path, before),
            Self::Mkdir(path, attributes) => {
                // The folder exists on the next attempt.
                if !system.exists(path) {
                    system.mkdir(path)?;
                }
                attributes
                    .iter()
                    .try_for_each(|(name, value)| write(&path.join(name), value))
            }
            Self::Restore(path, _) if system.exists(path) => Ok(()),
            Self::Restore(path, _) => system.mkdir(path),
            Self::Remove(path) => system.remove_durable_file(path),
            Self::Call(_) => Ok(()),
        }
    }

    /// Carries out the part of the step that is not one call of the kernel: restores the content of a folder, or calls
    /// the function.
    fn restore(&self, system: &dyn System) -> Result<()> {
        match self {
            Self::Restore(path, restore) => restore(&Group::new(system, path.clone())),
            Self::Call(undo) => undo(system),
            _ => Ok(()),
        }
    }
}

/// Changes to a tree that can be undone together.
///
/// Each change is recorded with its inverse. [`Transaction::finish`] keeps the changes if the work succeeded and undoes
/// them, last first, if it failed.
pub struct Transaction<'a> {
    system: &'a dyn System,
    done: Vec<Undo>,
}

impl<'a> Transaction<'a> {
    /// Begins a transaction that has changed nothing yet.
    pub fn new(system: &'a dyn System) -> Self {
        Self {
            system,
            done: Vec::new(),
        }
    }

    /// Returns whether anything was changed.
    pub fn has_changes(&self) -> bool {
        !self.done.is_empty()
    }

    fn created(&self, path: &Path) -> bool {
        self.done
            .iter()
            .any(|undo| matches!(undo, Undo::Rmdir(made) if made == path))
    }

    /// Creates a group.
    pub fn mkdir(&mut self, group: &Group<'_>) -> Result<()> {
        if self.system.interrupted() {
            return Err(Error::interrupted());
        }
        self.system.mkdir(&group.path).map_err(|error| {
            if error.errno == Errno::EEXIST {
                let message = format!(
                    "{} was created by another command at this moment",
                    group.path.display()
                );
                Error::new(Kind::Busy, message)
                    .with_errno(error.errno)
                    .advise("Try again.")
            } else {
                error.into()
            }
        })?;
        self.done.push(Undo::Rmdir(group.path.clone()));
        Ok(())
    }

    /// Writes a setting.
    pub fn set(&mut self, group: &Group<'_>, attribute: &str, value: impl Display) -> Result<()> {
        if self.system.interrupted() {
            return Err(Error::interrupted());
        }
        let path = group.path.join(attribute);
        // The content of a group that was created here is removed with the group.
        let created = self.created(&group.path);
        let before = if created {
            String::new()
        } else {
            group.get(attribute)?
        };
        self.system
            .write(&path, &format!("{value}\n"))
            .map_err(|error| setting_refused(error, attribute, &value))?;
        // A setting that was empty had never been written, and few attributes accept an empty text.
        let optional = matches!(attribute, "wwid" | "expect_wwid");
        if !before.is_empty() || optional && !created {
            self.done.push(Undo::Write(path, before));
        }
        Ok(())
    }

    /// Writes 1 to `enable`. Returns the driver's error unchanged, for the caller to explain.
    pub fn enable(&mut self, group: &Group<'_>) -> Result<Result<(), OpError>> {
        if self.system.interrupted() {
            return Err(Error::interrupted());
        }
        let path = group.path.join("enable");
        let answer = self.system.write(&path, "1\n");
        match answer {
            Ok(()) => self.done.push(Undo::Write(path, "0".to_owned())),
            Err(ref error) if error.op != Op::Write => return Err(error.clone().into()),
            Err(_) => (),
        }
        Ok(answer)
    }

    /// Disables a group. `disable` writes 0 to `enable`, and explains the driver's error.
    pub fn disable(
        &mut self,
        group: &Group<'_>,
        disable: impl FnOnce(&Group<'_>) -> Result<()>,
    ) -> Result<()> {
        if self.system.interrupted() {
            return Err(Error::interrupted());
        }
        disable(group)?;
        self.done
            .push(Undo::Write(group.path.join("enable"), "1".to_owned()));
        Ok(())
    }

    /// Removes a group that holds these settings and no others.
    pub fn rmdir(&mut self, group: &Group<'_>, settings: &[&'static str]) -> Result<()> {
        if self.system.interrupted() {
            return Err(Error::interrupted());
        }
        let mut held = Vec::new();
        for name in settings {
            held.push((*name, group.get(name)?));
        }
        remove(group)?;
        self.done.push(Undo::Mkdir(group.path.clone(), held));
        Ok(())
    }

    /// Removes a group whose content `restore` can restore.
    pub fn rmdir_restorable(&mut self, group: &Group<'_>, restore: Restore) -> Result<()> {
        if self.system.interrupted() {
            return Err(Error::interrupted());
        }
        remove(group)?;
        self.done.push(Undo::Restore(group.path.clone(), restore));
        Ok(())
    }

    /// Records any other change, which `undo` undoes.
    pub fn changed(&mut self, undo: impl Fn(&dyn System) -> Result<()> + 'static) {
        self.done.push(Undo::Call(Box::new(undo)));
    }

    /// Makes a file that does not exist yet.
    pub fn make_file(&mut self, path: &Path, text: &str) -> Result<()> {
        if self.system.interrupted() {
            return Err(Error::interrupted());
        }
        self.system.replace(path, text)?;
        self.done.push(Undo::Remove(path.to_owned()));
        Ok(())
    }

    /// Keeps the changes if `result` is `Ok`, undoes them if not. The error names changes that cannot be undone.
    pub fn finish<T>(self, result: Result<T>) -> Result<T> {
        result.map_err(|mut error| {
            for undo in self.done.into_iter().rev() {
                let undone = until_idle(self.system, || undo.carry_out(self.system));
                let restored = undone
                    .map_err(Error::from)
                    .and_then(|()| undo.restore(self.system));
                if let Err(failure) = restored {
                    error.not_undone.push(failure.to_string());
                }
            }
            error
        })
    }
}

fn setting_refused(error: OpError, attribute: &str, value: &impl Display) -> Error {
    let refused = |kind, why: &str| {
        Error::new(
            kind,
            format!("the kernel module refused {attribute} = {value}: {why}"),
        )
        .with_errno(error.errno)
    };
    match (error.op, error.errno) {
        (Op::Write, Errno::EINVAL | Errno::ERANGE | Errno::EOVERFLOW) => {
            refused(Kind::Failed, "not a valid value")
        }
        (Op::Write, Errno::EBUSY) if attribute == "memory_mib" => refused(
            Kind::Busy,
            "its sessions need more, or another command changes it at this moment",
        )
        .advise("The target's log says how much they need."),
        (Op::Write, Errno::EBUSY) => refused(Kind::Busy, "it cannot be changed while enabled"),
        (Op::Open, Errno::ENOENT) => refused(Kind::Setup, "it has no such setting")
            .advise("The command and the kernel modules may be of different versions."),
        _ => error.into(),
    }
}

/// Returns the value that was read from a group, or `None` if the group was removed meanwhile.
pub fn unless_gone<T>(group: &Group<'_>, read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(_) if !group.exists() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_keep_their_order_and_skip_noise() {
        let counters =
            parse_counters("writes 2\nreads 1\n\nodd\nbad x\nread_bytes 18446744073709551615\n");
        let expected = [("writes", 2), ("reads", 1), ("read_bytes", u64::MAX)];
        assert_eq!(
            counters,
            expected.map(|(name, value)| (name.to_owned(), value))
        );
    }
}
