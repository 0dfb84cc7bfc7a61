// SPDX-License-Identifier: GPL-2.0

//! The hardware and software of a machine, and whether times that are measured on it are real.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

use crate::stop::Stop;
use crate::worker;

/// The kind of a machine's processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Processor {
    /// A physical processor.
    Real,
    /// The processor of a virtual machine.
    Virtual,
    /// The processor of an emulator, with unrealistic instruction times.
    Emulated,
}

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Device {
    /// Its name.
    pub(crate) name: String,
    /// The driver of the PCI device; `null` for a software device.
    pub(crate) driver: Option<String>,
    /// The device's firmware version.
    pub(crate) firmware: String,
    /// The description of the device itself.
    pub(crate) description: String,
    /// The kind of device: `1: CA` of InfiniBand and RoCE, `4: RNIC` of iWARP.
    pub(crate) kind: String,
    /// The state of the first port.
    pub(crate) state: String,
    /// Interrupt lines of the PCI device.
    pub(crate) interrupts: Vec<u32>,
}

/// A machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// The version of this program on the machine.
    pub(crate) version: String,
    /// Its name.
    pub(crate) name: String,
    /// The kernel's release.
    pub(crate) kernel: String,
    /// Processors.
    pub(crate) processors: usize,
    /// The model of the processors.
    pub(crate) model: String,
    /// The kind of the processors.
    pub(crate) processor: Processor,
    /// Its RDMA devices.
    pub(crate) devices: Vec<Device>,
    /// Loaded modules, of those that matter here.
    pub(crate) modules: Vec<String>,
    /// The version of fio; `null` if it is missing.
    pub(crate) fio: Option<String>,
}

fn line(path: &str) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Returns the facts of this machine.
pub(crate) fn of_this_machine(stop: &Stop) -> Facts {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let (model, processor) = processor_of(&processors);
    let fio = worker::run(
        &["fio".to_owned(), "--version".to_owned()],
        Duration::from_secs(60),
        stop,
    );
    Facts {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        name: line("/proc/sys/kernel/hostname"),
        kernel: line("/proc/sys/kernel/osrelease"),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        model,
        processor,
        devices: devices(),
        modules: [
            "hcablk",
            "hcablk_target",
            "nvmet",
            "nvmet_rdma",
            "nvme_rdma",
            "nbd",
        ]
        .into_iter()
        .filter(|name| fs::exists(format!("/sys/module/{name}")).unwrap_or(false))
        .map(str::to_owned)
        .collect(),
        fio: fio
            .ok()
            .filter(|fio| fio.status == 0)
            .map(|fio| fio.stdout.trim().to_owned()),
    }
}

/// Returns the model of the first processor in /proc/cpuinfo, and its kind. QEMU's emulator is
/// named in the model; any hypervisor sets the flag `hypervisor`.
fn processor_of(cpuinfo: &str) -> (String, Processor) {
    let field = |name: &str| {
        let found = cpuinfo
            .lines()
            .find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
        found
            .and_then(|line| line.split_once(':'))
            .map_or(String::new(), |(_, value)| value.trim().to_owned())
    };
    let model = field("model name");
    let processor = if model.contains("TCG") {
        Processor::Emulated
    } else if field("flags").split(' ').any(|flag| flag == "hypervisor") {
        Processor::Virtual
    } else {
        Processor::Real
    };
    (model, processor)
}

fn devices() -> Vec<Device> {
    let Ok(entries) = fs::read_dir("/sys/class/infiniband") else {
        return Vec::new();
    };
    let mut devices: Vec<Device> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?.to_owned();
            let at = path.to_str()?;
            let driver = fs::read_link(path.join("device/driver")).ok();
            let driver = driver.as_ref().and_then(|path| path.file_name()?.to_str());
            let lines = fs::read_dir(path.join("device/msi_irqs"));
            let mut interrupts: Vec<u32> = lines
                .map(|lines| {
                    lines
                        .filter_map(|line| line.ok()?.file_name().to_str()?.parse().ok())
                        .collect()
                })
                .unwrap_or_default();
            interrupts.sort_unstable();
            Some(Device {
                // A software device has a `parent`, its network card: the driver is that of the
                // card.
                driver: driver
                    .filter(|_| !path.join("parent").exists())
                    .map(str::to_owned),
                firmware: line(&format!("{at}/fw_ver")),
                description: line(&format!("{at}/node_desc")),
                kind: line(&format!("{at}/node_type")),
                state: line(&format!("{at}/ports/1/state")),
                interrupts,
                name,
            })
        })
        .collect();
    devices.sort_by(|one, other| one.name.cmp(&other.name));
    devices
}

/// Returns whether the times of an experiment between these machines are real, and a sentence about
/// that.
pub(crate) fn are_times_real(machines: &[&Facts]) -> (bool, String) {
    if let Some(machine) = machines
        .iter()
        .find(|machine| machine.processor == Processor::Emulated)
    {
        return (
            false,
            format!(
                "The times on this page are an emulator's and say nothing about hardware: {} is emulated ({}). Counts of \
                 messages, interrupts, work requests and bytes are real.",
                machine.name, machine.model
            ),
        );
    }
    let soft = machines.iter().find_map(|machine| {
        let device = machine
            .devices
            .iter()
            .find(|device| device.driver.is_none())?;
        Some((machine, device))
    });
    if let Some((machine, device)) = soft {
        return (
            false,
            format!(
                "The times on this page are those of an RDMA device in software and say nothing about an HCA: {} of {} ({}).",
                device.name, machine.name, device.description
            ),
        );
    }
    if let Some(machine) = machines
        .iter()
        .find(|machine| machine.processor == Processor::Virtual)
    {
        return (
            false,
            format!(
                "The times on this page are those of a virtual machine: {}.",
                machine.name
            ),
        );
    }
    (
        true,
        "The times on this page are real: no machine is virtual, and no RDMA device is software."
            .to_owned(),
    )
}

/// Follows the kernel's messages, from the moment when it is opened.
pub(crate) struct KernelLog {
    file: Option<File>,
}

impl KernelLog {
    /// Starts to follow the log. If the log may not be read, there are no messages.
    pub(crate) fn open() -> Self {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open("/dev/kmsg")
            .ok();
        let mut log = Self { file };
        log.new_lines();
        log
    }

    /// Returns the messages since the last time; `None` if the log cannot be read.
    pub(crate) fn new_lines(&mut self) -> Option<Vec<String>> {
        let file = self.file.as_mut()?;
        let mut lines = Vec::new();
        let mut buffer = [0; 8192];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    let record = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default())
                        .into_owned();
                    // PRIORITY,SEQUENCE,TIME,FLAGS;MESSAGE, and lines of properties.
                    let message = record.split_once(';').map_or("", |(_, text)| text);
                    lines.push(message.lines().next().unwrap_or_default().to_owned());
                }
                // Messages were overwritten before they were read: the next read returns the oldest
                // that is left.
                Err(error) if error.raw_os_error() == Some(nix::errno::Errno::EPIPE as i32) => {}
                Err(_) => break,
            }
        }
        Some(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(model: &str, flags: &str, driver: Option<&str>) -> Facts {
        let (model, processor) =
            processor_of(&format!("model name\t: {model}\nflags\t\t: fpu {flags}\n"));
        let device = Device {
            name: "dev0".to_owned(),
            driver: driver.map(str::to_owned),
            firmware: String::new(),
            description: String::new(),
            kind: String::new(),
            state: String::new(),
            interrupts: Vec::new(),
        };
        Facts {
            version: String::new(),
            name: "node".to_owned(),
            kernel: String::new(),
            processors: 1,
            model,
            processor,
            devices: vec![device],
            modules: Vec::new(),
            fio: None,
        }
    }

    #[test]
    fn times_are_real_only_on_machines_with_an_hca() {
        let real = machine("Xeon", "sse2", Some("mlx5_core"));
        let virtual_one = machine("Xeon", "hypervisor", Some("mlx5_core"));
        let emulated = machine("QEMU TCG CPU version 2.5+", "hypervisor", Some("mlx5_core"));
        let soft = machine("Xeon", "sse2", None);
        assert!(are_times_real(&[&real, &real]).0);
        for (other, word) in [
            (&virtual_one, "virtual"),
            (&emulated, "emulator"),
            (&soft, "software"),
        ] {
            let (are_real, text) = are_times_real(&[&real, other]);
            assert!(!are_real && text.contains(word), "{text}");
        }
    }
}
