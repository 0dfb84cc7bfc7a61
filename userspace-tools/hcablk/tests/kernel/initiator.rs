// SPDX-License-Identifier: GPL-2.0

//! The initiator's tree: devices, and the disks that they make.

use std::path::Path;

use nix::errno::Errno;

use super::Kernel;

pub(super) const INITIATOR: &str = "/sys/kernel/config/hcablk";

const DEVICE: &[(&str, &str)] = &[
    ("address", ""),
    ("port", "7744"),
    ("volume", ""),
    ("host_id", ""),
    ("host_key", ""),
    ("target_key", ""),
    ("expect_wwid", ""),
    ("wwid", ""),
    ("queues", "0"),
    ("poll_queues", "0"),
    ("queue_depth", "128"),
    ("io_timeout", "30"),
    ("connect_timeout", "10"),
    ("reconnect_delay", "1"),
    ("ctrl_loss_tmo", "600"),
    ("fast_io_fail_tmo", "-1"),
    ("keep_alive_tmo", "5"),
    ("remote_invalidate", "1"),
    ("insecure", "0"),
    ("small_read", "8192"),
    ("small_write", "4096"),
    ("eager_write", "32768"),
    ("max_io_kib", "1024"),
    ("message_requests", "8"),
    ("batch_upper", "32"),
    ("batch_lower", "16"),
    ("policy", "queue-depth"),
    ("paths_auto", "0"),
    ("protocol", "2-3"),
    ("enable", "0"),
    ("force_disconnect", "0"),
    ("state", "new"),
    ("device", ""),
    ("error", ""),
    ("lost_writes", "0"),
    ("session", "0000000000000000 0"),
    ("timing", "0"),
    ("times", "queued 0 0\nsent 0 0\nending 0 0"),
    ("stats", "reads 0\nwrites 0\ncopied_bytes 0"),
];

/// Returns whether `group` is a device.
pub(super) fn is_device(group: &Path) -> bool {
    group.starts_with(INITIATOR)
}

impl Kernel {
    pub fn device(&self, name: &str, attribute: &str) -> String {
        self.text(format!("{INITIATOR}/{name}/{attribute}"))
    }

    pub fn set_device(&self, name: &str, attribute: &str, value: &str) {
        self.file(format!("{INITIATOR}/{name}/{attribute}"), value);
    }

    pub(super) fn load_initiator(&self) {
        self.folder(INITIATOR);
        self.folder(super::discovery::DISCOVERY);
    }

    /// Makes the attributes of the group at `path`, if it is a device.
    pub(super) fn fill_device(&self, path: &Path) {
        if path.parent() == Some(Path::new(INITIATOR)) {
            self.fill(path, DEVICE);
            self.folder(path.join("paths").to_str().unwrap());
        }
    }

    /// Makes the disk of a device, or removes it.
    pub(super) fn enable_device(&self, group: &Path, on: bool) -> Result<(), Errno> {
        if on {
            self.make_disk(group)
        } else {
            self.remove_disk(group)
        }
    }

    fn make_disk(&self, group: &Path) -> Result<(), Errno> {
        if self.text(group.join("address")).is_empty() || self.text(group.join("volume")).is_empty()
        {
            return Err(Errno::EINVAL);
        }
        self.connect_first(group)?;
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
        self.set(group, "device", &disk);
        self.connect_paths(group);
        self.set(group, "session", "00000000deadbeef 1");
        self.set(group, "error", "");
        Ok(())
    }

    /// Makes the target of a disk lose acknowledged writes.
    pub fn lose_writes(&self, name: &str) {
        self.set_device(name, "lost_writes", "1\n");
    }

    /// Ends the failures of flushes; does nothing if there are none.
    pub(super) fn acknowledge_loss(&self, group: &Path, value: &str) -> Result<(), Errno> {
        if value != "0" {
            return Err(Errno::EINVAL);
        }
        self.set(group, "lost_writes", "0");
        Ok(())
    }

    /// Ends a disk, even one in use.
    pub(super) fn force_disconnect(&self, group: &Path) -> Result<(), Errno> {
        let busy = self.busy.replace(0);
        let result = self.remove_disk(group);
        self.busy.set(busy);
        self.set(group, "enable", "0");
        self.set(group, "state", "failed");
        result
    }

    fn remove_disk(&self, group: &Path) -> Result<(), Errno> {
        let disk = self.text(group.join("device"));
        if !disk.is_empty() {
            if self.busy.get() > 0 {
                self.busy.set(self.busy.get() - 1);
                return Err(Errno::EBUSY);
            }
            self.forget(&format!("/sys/block/{disk}"));
            self.forget(&format!("/dev/{disk}"));
        }
        self.set(group, "device", "");
        self.set(group, "state", "new");
        if !self.old.get() {
            self.set(group, "lost_writes", "0");
        }
        self.end_paths(group);
        self.set(group, "session", "0000000000000000 0");
        Ok(())
    }
}
