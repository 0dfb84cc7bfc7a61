// SPDX-License-Identifier: GPL-2.0

//! The commands of the kernel's ublk driver, through `/dev/ublk-control`.
//!
//! libublk has these commands, too. But it hides why a command failed: it retries with command
//! numbers that a kernel may not have, treats `EBUSY` as success, and deletes an existing disk that
//! has the new disk's number. It also uses a file in `/run/ublksrvd`, a directory that it makes
//! writable for everybody.
//!
//! C header: `include/uapi/linux/ublk_cmd.h`

use io_uring::{opcode, squeue::Entry128, types, IoUring};
use libublk::sys;
use nix::{errno::Errno, sched::CpuSet};
use plain::Plain;
use std::{
    fs::File,
    io::{self, ErrorKind},
    os::fd::AsRawFd as _,
    path::Path,
    ptr,
    time::{Duration, Instant},
};

const DEVICE: &str = "/dev/ublk-control";
/// Exists in sysfs while the driver is loaded.
const CLASS: &str = "/sys/class/ublk-char";
/// The time limit for the driver to notice that the program of a disk has ended.
const LEAVES: Duration = Duration::from_secs(30);
/// The pause between two attempts meanwhile.
const PERIOD: Duration = Duration::from_millis(100);
/// For a command that belongs to no queue.
const NO_QUEUE: u16 = u16::MAX;
/// Bytes of a set of processors.
const PROCESSORS: usize = 1024;
/// The kernel's `ENOTSUPP`, which is not an error number for programs.
const NOT_SUPPORTED: i32 = 524;

/// The reason why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The driver could not be reached.
    #[error("no answer from the ublk driver: {0}: {1}")]
    Unreached(&'static str, io::Error),
    /// The driver has refused the command.
    #[error("the ublk driver refuses to {0}: {1}")]
    Refused(&'static str, Errno),
}

impl Failure {
    /// Returns the error with which the driver has refused the command, if it was reached.
    pub(crate) fn errno(&self) -> Option<Errno> {
        match self {
            Self::Unreached(..) => None,
            Self::Refused(_, errno) => Some(*errno),
        }
    }

    /// Returns whether the driver is missing, which means that no disk exists.
    fn has_no_driver(&self) -> bool {
        let is_missing =
            matches!(self, Self::Unreached(_, error) if error.kind() == ErrorKind::NotFound);
        is_missing && !Path::new(CLASS).exists()
    }
}

#[allow(unsafe_code, reason = "the driver writes bytes")]
mod plain {
    use super::{sys, PROCESSORS};

    /// A structure that the driver reads or writes for a command.
    ///
    /// # Safety
    ///
    /// Any bytes are a valid value, and the type has no padding.
    pub(super) unsafe trait Plain: Copy {}

    // SAFETY: The type is a structure of integers, without padding, as in the kernel's header.
    unsafe impl Plain for sys::ublksrv_ctrl_dev_info {}
    // SAFETY: As above.
    unsafe impl Plain for sys::ublk_params {}
    // SAFETY: It is an integer.
    unsafe impl Plain for u64 {}
    // SAFETY: These are integers.
    unsafe impl Plain for [u8; PROCESSORS] {}
}

/// A command: its name in messages, and its number.
#[derive(Clone, Copy)]
struct Command(&'static str, u32);

/// The driver's control device, for one thread.
pub(crate) struct Control {
    file: File,
    ring: IoUring<Entry128>,
    /// The driver does not know `GET_FEATURES` (older than Linux 6.5): commands are sent with their
    /// old numbers, without sizes.
    is_old: bool,
    /// The token of the last command, which its completion repeats.
    token: u64,
    /// The completion of a command was not found: the driver may still carry it out.
    is_broken: bool,
}

impl Control {
    /// Opens the driver.
    pub(crate) fn open() -> Result<Self, Failure> {
        let opened = File::options().read(true).write(true).open(DEVICE);
        let file = opened.map_err(|error| Failure::Unreached(DEVICE, error))?;
        let ring = IoUring::<Entry128>::builder().build(4);
        let mut control = Self {
            file,
            ring: ring.map_err(|error| Failure::Unreached("io_uring", error))?,
            is_old: false,
            token: 0,
            is_broken: false,
        };
        let features = Command("report its features", sys::UBLK_U_CMD_GET_FEATURES);
        match control.exchange(features, u32::MAX, 0, &mut 0u64) {
            Ok(()) => Ok(control),
            Err(Failure::Refused(_, errno)) if is_unknown(errno) => {
                control.is_old = true;
                Ok(control)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Opens the driver; `None`: the driver is missing, which means that no disk exists.
    pub(crate) fn open_if_there() -> Result<Option<Self>, Failure> {
        match Self::open() {
            Err(failure) if failure.has_no_driver() => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Carries out a command.
    fn command(&mut self, command: Command, disk: u32, data: u64) -> Result<(), Failure> {
        self.submit(command, disk, data, (0, 0))
    }

    /// Carries out a command for which the driver reads `value`, or writes to it.
    fn exchange<T: Plain>(
        &mut self,
        command: Command,
        disk: u32,
        data: u64,
        value: &mut T,
    ) -> Result<(), Failure> {
        let mut memory = Box::new(*value);
        let address = ptr::from_mut(memory.as_mut()).expose_provenance() as u64;
        let length = u16::try_from(size_of::<T>()).unwrap_or(u16::MAX);
        let done = self.submit(command, disk, data, (address, length));
        if self.is_broken {
            // The driver may still use it later.
            Box::leak(memory);
        } else {
            *value = *memory;
        }
        done
    }

    /// Passes the driver a command, and waits for its completion. The driver reads or writes `length` bytes at
    /// `address`.
    #[allow(unsafe_code, reason = "the ring takes addresses")]
    fn submit(
        &mut self,
        Command(name, number): Command,
        disk: u32,
        data: u64,
        (address, length): (u64, u16),
    ) -> Result<(), Failure> {
        let unreached = |error| Failure::Unreached("io_uring", error);
        if self.is_broken {
            return Err(unreached(ErrorKind::BrokenPipe.into()));
        }
        self.token += 1;
        let number = if self.is_old { number & 0xff } else { number };
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), number)
            .cmd(header(disk, data, address, length))
            .build()
            .user_data(self.token);
        // SAFETY: `address` is null and `length` is 0, or they describe the memory that `exchange` owns. `exchange`
        // frees that memory only after the command has completed; if it cannot find that out, it leaks the memory.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| unreached(ErrorKind::StorageFull.into()))?;
        let result = loop {
            let token = self.token;
            let mut done = self.ring.completion();
            if let Some(done) = done.find(|done| done.user_data() == token) {
                break done.result();
            }
            drop(done);
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != ErrorKind::Interrupted => {
                    self.is_broken = true;
                    return Err(unreached(error));
                }
                _ => {}
            }
        };
        match result {
            0.. => Ok(()),
            errno => Err(Failure::Refused(name, Errno::from_raw(-errno))),
        }
    }

    /// Returns the driver's information on a disk; `None`: the driver has no such disk.
    pub(crate) fn info(
        &mut self,
        disk: u32,
    ) -> Result<Option<sys::ublksrv_ctrl_dev_info>, Failure> {
        let mut info = sys::ublksrv_ctrl_dev_info::default();
        let command = Command("describe a disk", sys::UBLK_U_CMD_GET_DEV_INFO);
        let asked = self.exchange(command, disk, 0, &mut info);
        found(asked, info)
    }

    /// Makes a disk with the number that the driver chooses; returns the number, and the disk's number of queues.
    pub(crate) fn add(
        &mut self,
        mut info: sys::ublksrv_ctrl_dev_info,
    ) -> Result<(u32, u16), Failure> {
        info.dev_id = u32::MAX;
        let command = Command("make a disk", sys::UBLK_U_CMD_ADD_DEV);
        self.exchange(command, u32::MAX, 0, &mut info)?;
        Ok((info.dev_id, info.nr_hw_queues))
    }

    /// Sets the parameters of a disk that was made, and has not started.
    pub(crate) fn set_parameters(
        &mut self,
        disk: u32,
        mut parameters: sys::ublk_params,
    ) -> Result<(), Failure> {
        parameters.len = parameters_length();
        let command = Command("set up the disk", sys::UBLK_U_CMD_SET_PARAMS);
        self.exchange(command, disk, 0, &mut parameters)
    }

    /// Returns the parameters of a disk.
    pub(crate) fn parameters(&mut self, disk: u32) -> Result<sys::ublk_params, Failure> {
        let mut parameters = sys::ublk_params {
            len: parameters_length(),
            ..Default::default()
        };
        let command = Command("report a disk's parameters", sys::UBLK_U_CMD_GET_PARAMS);
        self.exchange(command, disk, 0, &mut parameters)?;
        Ok(parameters)
    }

    /// Returns the processors whose requests a queue gets.
    pub(crate) fn processors(&mut self, disk: u32, queue: u16) -> Result<CpuSet, Failure> {
        let mut bits = [0; PROCESSORS];
        let command = Command(
            "report a queue's processors",
            sys::UBLK_U_CMD_GET_QUEUE_AFFINITY,
        );
        self.exchange(command, disk, queue.into(), &mut bits)?;
        let mut set = CpuSet::new();
        for processor in 0..CpuSet::count() {
            if bits[processor / 8] & (1 << (processor % 8)) != 0 {
                // `processor` is less than the size of the set.
                let _ = set.set(processor);
            }
        }
        Ok(set)
    }

    /// Starts a disk that this program serves: this creates its node.
    pub(crate) fn start(&mut self, disk: u32) -> Result<(), Failure> {
        let command = Command("start the disk", sys::UBLK_U_CMD_START_DEV);
        self.command(command, disk, std::process::id().into())
    }

    /// Starts to take over a disk whose program has gone.
    pub(crate) fn begin_recovery(&mut self, disk: u32) -> Result<(), Failure> {
        let began = Instant::now();
        let command = Command(
            "hand over the disk, whose program may still have it",
            sys::UBLK_U_CMD_START_USER_RECOVERY,
        );
        loop {
            match self.command(command, disk, 0) {
                // The driver notices only a moment later that a program is gone.
                Err(Failure::Refused(_, Errno::EBUSY)) if began.elapsed() < LEAVES => {
                    std::thread::sleep(PERIOD);
                }
                done => return done,
            }
        }
    }

    /// Completes taking over a disk that this program serves: its requests do not wait any more.
    pub(crate) fn end_recovery(&mut self, disk: u32) -> Result<(), Failure> {
        let command = Command("take over the disk", sys::UBLK_U_CMD_END_USER_RECOVERY);
        self.command(command, disk, std::process::id().into())
    }

    /// Changes the size of a disk.
    pub(crate) fn resize(&mut self, disk: u32, bytes: u64) -> Result<(), Failure> {
        let command = Command("resize the disk", sys::UBLK_U_CMD_UPDATE_SIZE);
        self.command(command, disk, bytes >> 9)
    }

    /// Stops a disk: this removes its node. Waits for the requests that its program has.
    pub(crate) fn stop(&mut self, disk: u32) -> Result<(), Failure> {
        let command = Command("stop the disk", sys::UBLK_U_CMD_STOP_DEV);
        found(self.command(command, disk, 0), ()).map(drop)
    }

    /// Deletes a disk, and waits until its number is free.
    pub(crate) fn delete(&mut self, disk: u32) -> Result<(), Failure> {
        let command = Command("delete the disk", sys::UBLK_U_CMD_DEL_DEV);
        found(self.command(command, disk, 0), ()).map(drop)
    }
}

/// Returns whether the error number means that the driver does not know a command: drivers before Linux 6.5.
fn is_unknown(errno: Errno) -> bool {
    let is_other = errno == Errno::from_raw(NOT_SUPPORTED);
    matches!(errno, Errno::ENODEV | Errno::EINVAL | Errno::EOPNOTSUPP) || is_other
}

/// Converts the result of a query; `None`: the driver has no such disk. After any other failure the
/// disk may exist.
fn found<T>(asked: Result<(), Failure>, value: T) -> Result<Option<T>, Failure> {
    match asked {
        Ok(()) => Ok(Some(value)),
        Err(failure) if matches!(failure.errno(), Some(Errno::ENODEV | Errno::ENOENT)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn parameters_length() -> u32 {
    u32::try_from(size_of::<sys::ublk_params>()).unwrap_or(u32::MAX)
}

/// Returns a command's `struct ublksrv_ctrl_cmd`.
fn header(disk: u32, data: u64, address: u64, length: u16) -> [u8; 80] {
    let mut bytes = [0; 80];
    let fields: [&[u8]; 5] = [
        &disk.to_ne_bytes(),
        &NO_QUEUE.to_ne_bytes(),
        &length.to_ne_bytes(),
        &address.to_ne_bytes(),
        &data.to_ne_bytes(),
    ];
    let fields = fields.concat();
    bytes[..fields.len()].copy_from_slice(&fields);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_driver_says_that_a_disk_is_gone() {
        let refused = |errno| found(Err(Failure::Refused("say", errno)), ());
        assert!(matches!(found(Ok(()), ()), Ok(Some(()))));
        assert!(matches!(refused(Errno::ENODEV), Ok(None)));
        for errno in [Errno::ENOMEM, Errno::EPERM, Errno::EINVAL, Errno::EINTR] {
            assert!(refused(errno).is_err(), "{errno}");
        }
        let unreached = |kind: ErrorKind| Failure::Unreached(DEVICE, kind.into());
        for kind in [ErrorKind::NotFound, ErrorKind::OutOfMemory] {
            assert!(found(Err(unreached(kind)), ()).is_err(), "{kind}");
        }
        assert!(!unreached(ErrorKind::OutOfMemory).has_no_driver());
    }

    #[test]
    fn a_command_is_laid_out_as_the_drivers() {
        let command = sys::ublksrv_ctrl_cmd {
            dev_id: 0x0102_0304,
            queue_id: u16::MAX,
            len: 0x0506,
            addr: 0x0708_090a_0b0c_0d0e,
            data: [0x1112_1314_1516_1718],
            ..Default::default()
        };
        let bytes = header(0x0102_0304, command.data[0], command.addr, command.len);
        assert_eq!(bytes[..4], command.dev_id.to_ne_bytes());
        assert_eq!(
            bytes[std::mem::offset_of!(sys::ublksrv_ctrl_cmd, queue_id)..][..2],
            [0xff; 2]
        );
        let at = |offset: usize, bytes: &[u8], field: &[u8]| bytes[offset..].starts_with(field);
        let offsets = (
            std::mem::offset_of!(sys::ublksrv_ctrl_cmd, len),
            std::mem::offset_of!(sys::ublksrv_ctrl_cmd, addr),
            std::mem::offset_of!(sys::ublksrv_ctrl_cmd, data),
        );
        assert!(at(offsets.0, &bytes, &command.len.to_ne_bytes()));
        assert!(at(offsets.1, &bytes, &command.addr.to_ne_bytes()));
        assert!(at(offsets.2, &bytes, &command.data[0].to_ne_bytes()));
    }
}
