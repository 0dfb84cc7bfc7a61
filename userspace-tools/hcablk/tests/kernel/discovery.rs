// SPDX-License-Identifier: GPL-2.0

//! The tree through which this host asks targets for volumes and portals.

use std::path::Path;

use nix::errno::Errno;

use super::Kernel;

pub(super) const DISCOVERY: &str = "/sys/kernel/config/hcablk_discovery";

const ASKER: &[(&str, &str)] = &[
    ("address", ""),
    ("port", "7744"),
    ("host_id", ""),
    ("host_key", ""),
    ("target_key", ""),
    ("insecure", "0"),
    ("connect_timeout", "10"),
    ("ask", ""),
    ("answer", ""),
    ("error", ""),
];

impl Kernel {
    /// Adds a volume to the target's list.
    pub fn list_volume(&self, name: &str, wwid: &str, more: &str) {
        let entry = format!(
            "name {name}\nwwid {wwid}\nsize_bytes 67108864\nblock_size 512\nread_only 0\nevicted 0\ninsecure 0\nmode direct\n"
        );
        // `more` comes first, since the first value of a member counts.
        self.listed_volumes
            .borrow_mut()
            .push(format!("{more}{entry}"));
    }

    fn portal_entries(&self) -> Vec<String> {
        let further = self.portals.borrow();
        let all = ["10.0.0.1"].into_iter().chain(further.iter().copied());
        all.map(|address| format!("address {address}\nport 7744\n"))
            .collect()
    }

    /// Makes the attributes of the group at `path`, if it asks a target.
    pub(super) fn fill_asker(&self, path: &Path) {
        if path.parent() == Some(Path::new(DISCOVERY)) {
            self.fill(path, ASKER);
        }
    }

    pub(super) fn ask(&self, group: &Path, question: &str) -> Result<(), Errno> {
        if let Some((errno, text)) = self.refuse.borrow().get("discovery") {
            self.set(group, "error", text);
            return Err(*errno);
        }
        let accepted_key = self.accepted_key.borrow().clone();
        if accepted_key.is_some_and(|key| self.text(group.join("host_key")) != key) {
            self.set(group, "error", "the target does not accept the proof");
            return Err(Errno::EACCES);
        }
        let (list, index) = question.split_once(' ').ok_or(Errno::EINVAL)?;
        let index: usize = index.parse().map_err(|_| Errno::EINVAL)?;
        let entries = match list {
            "volumes" => self.listed_volumes.borrow().clone(),
            _ => self.portal_entries(),
        };
        let changes = self.list_changes.get();
        self.list_changes.set(changes.saturating_sub(1));
        let entry = entries.get(index).cloned();
        // A lying target reports this number of entries, plus the index of the requested one.
        let count = match self.lie.get() {
            Some(count) => count + index,
            None => entries.len(),
        };
        self.asked.set(self.asked.get() + 1);
        let answer = format!(
            "count {count}\nrevision {changes:08x}\n{}",
            entry.unwrap_or_default()
        );
        self.file(group.join("answer"), &answer);
        Ok(())
    }
}
