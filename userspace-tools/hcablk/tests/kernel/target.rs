// SPDX-License-Identifier: GPL-2.0

//! The target's tree: volumes with the hosts that they allow, and ports.

use std::path::Path;

use super::{Kernel, Node};

const TARGET: &str = "/sys/kernel/config/hcablk_target";

const VOLUME: &[(&str, &str)] = &[
    ("path", ""),
    ("read_only", "0"),
    ("insecure", "0"),
    ("mode", "direct"),
    ("write_cache", "back"),
    ("keep_reservations", "0"),
    ("state", ""),
    ("cache_mib", "0"),
    ("chunk_kib", "128"),
    ("provider", "auto"),
    ("wwid", ""),
    ("enable", "0"),
    ("size", "0"),
    ("clients", ""),
    ("evicted", ""),
    ("admit", ""),
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
    ("memory", "limit 1073741824\nused 0\nreserved 0\nwaiting 0"),
    ("shares", ""),
    ("queue_credits", "0"),
    ("enable", "0"),
    ("sessions", ""),
    ("error", ""),
];

/// Returns whether `group` is a volume.
pub(super) fn is_volume(group: &Path) -> bool {
    group
        .parent()
        .is_some_and(|parent| parent.ends_with("volumes"))
}

impl Kernel {
    pub fn volume(&self, name: &str, attribute: &str) -> String {
        self.text(format!("{TARGET}/volumes/{name}/{attribute}"))
    }

    pub fn port(&self, id: &str, attribute: &str) -> String {
        self.text(format!("{TARGET}/ports/{id}/{attribute}"))
    }

    pub fn set_volume(&self, name: &str, attribute: &str, value: &str) {
        self.file(format!("{TARGET}/volumes/{name}/{attribute}"), value);
    }

    pub fn set_port(&self, id: &str, attribute: &str, value: &str) {
        self.file(format!("{TARGET}/ports/{id}/{attribute}"), value);
    }

    pub(super) fn load_target(&self) {
        for folder in [
            TARGET.to_owned(),
            format!("{TARGET}/volumes"),
            format!("{TARGET}/ports"),
        ] {
            self.folder(&folder);
        }
    }

    /// Makes the attributes of the group at `path`, if it is a volume, a host or a port.
    pub(super) fn fill_export(&self, path: &Path) {
        if is_volume(path) {
            self.fill(path, VOLUME);
            self.folder(path.join("hosts").to_str().unwrap());
        } else if path
            .parent()
            .is_some_and(|parent| parent.ends_with("hosts"))
        {
            self.fill(path, &[("key", ""), ("key2", "")]);
        } else if path
            .parent()
            .is_some_and(|parent| parent.ends_with("ports"))
        {
            self.fill(path, PORT);
        }
    }

    pub(super) fn enable_volume(&self, group: &Path, on: bool) {
        if on {
            self.set(group, "size", "67108864");
        } else {
            self.set(group, "size", "0");
            self.set(group, "clients", "");
        }
    }

    /// Ends all sessions, as if all clients had disconnected.
    pub(super) fn end_sessions(&self) {
        let mut tree = self.tree.borrow_mut();
        for (_, node) in tree
            .iter_mut()
            .filter(|(path, _)| path.ends_with("clients"))
        {
            *node = Node::File(String::new());
        }
    }
}
