// SPDX-License-Identifier: GPL-2.0

//! Faults: refusals, failures of single steps, signals.

use std::path::Path;

use hcablk::system::{Op, OpError};
use nix::errno::Errno;

use super::{fails, ok, Kernel};

impl Kernel {
    pub fn refuse(&self, group: &str, errno: Errno, text: &str) {
        self.refuse
            .borrow_mut()
            .insert(group.to_owned(), (errno, text.to_owned()));
    }

    /// Returns the error with which enabling `group` fails, and sets the text of its `error`.
    pub(super) fn refusal(&self, group: &Path) -> Result<(), Errno> {
        let name = group.file_name().unwrap().to_string_lossy().into_owned();
        if let Some((errno, text)) = self.refuse.borrow().get(&name) {
            self.set(group, "error", text);
            return Err(*errno);
        }
        Ok(())
    }

    /// Records a changing operation; fails if the test has arranged that.
    pub(super) fn change(&self, op: Op, path: &Path, what: String) -> Result<(), OpError> {
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
}

/// Makes each change of a command fail in turn, and a signal arrive before each; demands that the
/// tree is then the same as before the command.
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
