// SPDX-License-Identifier: GPL-2.0

//! Units of systemd, and the disks that their programs serve in user space.

use std::path::Path;

use hcablk::system::{Op, System as _};
use hcablk::user::files::{self, Failed, Phase, UserDiskState, Wanted};

use super::Kernel;

const VOLUME: &str = "0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11";

impl Kernel {
    /// A machine with systemd, `hcablk-ublk` and the kernel's ublk driver, and no module of hcablk.
    pub fn for_user_space() -> Self {
        let kernel = Self::bare();
        kernel.folder("/run/systemd/system");
        kernel.file("/usr/sbin/hcablk-ublk", "");
        kernel.file("/dev/ublk-control", "");
        kernel.file("/dev/infiniband/rdma_cm", "");
        let folder = Path::new(files::FOLDER);
        kernel.make_durable_folder(folder, folder).unwrap();
        kernel
    }

    /// Returns the state that the program of a disk has published.
    pub fn state_of(&self, number: u32) -> UserDiskState {
        files::read(self, &files::state(number)).unwrap().unwrap()
    }

    pub fn publish(&self, number: u32, state: &UserDiskState) {
        self.file(files::state(number), &files::text(state).unwrap());
    }

    /// Kills the program of a disk.
    pub fn kill_program(&self, number: u32) {
        let pid = self.state_of(number).pid;
        self.forget(&format!("/proc/{pid}"));
    }

    pub(super) fn run_program(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        match (program, arguments) {
            (
                "systemctl",
                ["show", "--property=ActiveState,NRestarts,Result,ExecMainStatus", unit],
            ) => {
                let units = self.units.borrow();
                let state = units.get(*unit).unwrap_or(&"inactive");
                let (restarts, result, status) = self.ended.get();
                Ok(format!(
                    "NRestarts={restarts}\nResult={result}\nExecMainStatus={status}\nActiveState={state}\n"
                ))
            }
            ("systemctl", ["list-jobs", "--no-legend", "--plain", _]) => {
                Ok(self.jobs.borrow().clone())
            }
            ("systemctl", ["reset-failed", unit]) => {
                self.units.borrow_mut().remove(*unit);
                Ok(String::new())
            }
            ("systemctl", ["start", "--no-block", unit]) => {
                self.changes_by(program, arguments)?;
                self.set_unit(unit, "activating");
                if !self.slow_programs.get() {
                    self.serve(unit);
                }
                Ok(String::new())
            }
            ("systemctl", ["stop", unit]) => {
                self.changes_by(program, arguments)?;
                self.set_unit(unit, "inactive");
                let name = disk(unit);
                for number in files::numbers(self, ".state") {
                    let Ok(Some(state)) = files::read::<UserDiskState>(self, &files::state(number))
                    else {
                        continue;
                    };
                    // A program that was killed ends nothing.
                    let runs = self.exists(Path::new(&format!("/proc/{}/comm", state.pid)));
                    if state.name.as_deref() == Some(name) && runs {
                        self.end_disk(number);
                    }
                }
                Ok(String::new())
            }
            ("/usr/sbin/hcablk-ublk", ["remove", options @ .., number]) => {
                self.changes_by(program, arguments)?;
                let number = number.parse().unwrap();
                if let [.., "--mark", mark] = options {
                    assert_eq!(mark.parse().ok(), self.state_of(number).mark);
                }
                self.end_disk(number);
                Ok(String::new())
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn print(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let line = [&[program], arguments].concat().join(" ");
        let printed = self.printed.borrow();
        let mut known = printed.iter();
        known
            .find(|(start, _)| line.starts_with(**start))
            .map(|(_, text)| text.clone())
            .ok_or_else(|| "No such file or directory".to_owned())
    }

    fn changes_by(&self, program: &str, arguments: &[&str]) -> Result<(), String> {
        let what = format!("run {} {}", program, arguments.join(" "));
        let changed = self.change(Op::Write, Path::new(program), what);
        changed.map_err(|error| error.to_string())
    }

    fn set_unit(&self, unit: &str, state: &'static str) {
        self.units.borrow_mut().insert(unit.to_owned(), state);
    }

    /// Runs the program of a unit: it fails, makes a disk, or takes over the one that was left.
    pub fn serve(&self, unit: &str) {
        self.others_act();
        let name = disk(unit);
        let wanted: Wanted = files::read(self, &files::wanted(name)).unwrap().unwrap();
        if let Some((errno, message)) = self.unserved.borrow().get(&wanted.volume) {
            let failed = Failed {
                message: message.clone(),
                errno: errno.map(|errno| errno as i32),
            };
            self.file(files::failed(name), &files::text(&failed).unwrap());
            self.set_unit(unit, "failed");
            return;
        }
        let numbers = files::numbers(self, ".state");
        let is_left = |number: &&u32| self.state_of(**number).name.as_deref() == Some(name);
        let left = numbers.iter().find(is_left).copied();
        let number = left.unwrap_or_else(|| {
            (0..64)
                .find(|number| !self.has(&format!("/sys/block/ublkb{number}")))
                .unwrap()
        });
        let pid = 1000 + number;
        let device = format!("ublkb{number}");
        self.folder(&format!("/proc/{pid}"));
        self.file(format!("/proc/{pid}/comm"), "hcablk-ublk\n");
        self.folder(&format!("/sys/block/{device}"));
        self.folder(&format!("/sys/block/{device}/mq"));
        self.folder(&format!("/sys/block/{device}/mq/0"));
        self.file(format!("/sys/block/{device}/size"), "131072\n");
        self.file(format!("/sys/block/{device}/dev"), "259:7\n");
        self.file(format!("/dev/{device}"), "");
        let state = UserDiskState {
            name: Some(name.to_owned()),
            mark: Some(700 + u64::from(number)),
            pid,
            phase: Phase::Live,
            error: None,
            lost_writes: false,
            id: Some(VOLUME.parse().unwrap()),
            wanted,
        };
        self.publish(number, &state);
        self.set_unit(unit, "active");
    }

    fn end_disk(&self, number: u32) {
        let pid = self.state_of(number).pid;
        self.forget(&format!("/proc/{pid}"));
        self.forget(&format!("/sys/block/ublkb{number}"));
        self.forget(&format!("/dev/ublkb{number}"));
        self.forget(files::state(number).to_str().unwrap());
    }
}

/// Returns the disk that a unit is for.
fn disk(unit: &str) -> &str {
    unit.strip_prefix("hcablk-ublk@")
        .and_then(|rest| rest.strip_suffix(".service"))
        .unwrap()
}
