// SPDX-License-Identifier: GPL-2.0

//! nvme-rdma and NBD over TCP on the same drive, each set up for a measurement and taken down again: first on the target,
//! then on each client.

use std::time::Duration;

use hcablk::error::{Error, Kind, Result};

use crate::lab::{Lab, NAME};
use crate::worker::{unload, WorkerStep};

const NVMET: &str = "/sys/kernel/config/nvmet";
/// The ports of the servers: not the usual ones, which may be in use.
const NVME_PORT: &str = "14420";
const NBD_PORT: &str = "10810";

fn strings(argv: &[&str]) -> Vec<String> {
    argv.iter().map(|&word| word.to_owned()).collect()
}

/// Sets up nvme-rdma and returns the disk; fails with the reason if that is not possible here.
pub(crate) fn nvme_rdma(lab: &mut Lab) -> Result<String> {
    serve_nvme(lab)?;
    attach_nvme(lab, 0)
}

/// Exports the drive by nvme-rdma.
pub(crate) fn serve_nvme(lab: &mut Lab) -> Result<()> {
    let subsystem = format!("{NVMET}/subsystems/{NAME}");
    let namespace = format!("{subsystem}/namespaces/1");
    let port = format!("{NVMET}/ports/{NVME_PORT}");
    let target = &mut lab.target;
    load(
        target,
        lab.target_facts
            .modules
            .iter()
            .any(|name| name == "nvmet_rdma"),
        "nvmet_rdma",
    )?;
    let mkdir = |path: &str| {
        (
            WorkerStep::Mkdir {
                path: path.to_owned(),
            },
            vec![WorkerStep::Rmdir {
                path: path.to_owned(),
            }],
        )
    };
    let write = |path: String, text: &str| {
        (
            WorkerStep::Write {
                path,
                text: text.to_owned(),
            },
            Vec::new(),
        )
    };
    let link = format!("{port}/subsystems/{NAME}");
    let family = if lab.address.is_ipv4() {
        "ipv4"
    } else {
        "ipv6"
    };
    let enable = format!("{namespace}/enable");
    let mut changes = vec![
        mkdir(&subsystem),
        write(format!("{subsystem}/attr_allow_any_host"), "1"),
        mkdir(&namespace),
    ];
    changes.push(write(format!("{namespace}/device_path"), &lab.path));
    changes.push((
        WorkerStep::Write {
            path: enable.clone(),
            text: "1".to_owned(),
        },
        vec![WorkerStep::Write {
            path: enable,
            text: "0".to_owned(),
        }],
    ));
    changes.push(mkdir(&port));
    changes.push(write(format!("{port}/addr_trtype"), "rdma"));
    changes.push(write(format!("{port}/addr_adrfam"), family));
    changes.push(write(
        format!("{port}/addr_traddr"),
        &lab.address.to_string(),
    ));
    changes.push(write(format!("{port}/addr_trsvcid"), NVME_PORT));
    changes.push((
        WorkerStep::Link {
            to: subsystem,
            path: link.clone(),
        },
        vec![WorkerStep::Unlink { path: link }],
    ));
    for (step, undo) in changes {
        target.change(step, undo)?;
    }
    Ok(())
}

/// Connects a client by nvme-rdma, and returns the disk.
pub(crate) fn attach_nvme(lab: &mut Lab, index: usize) -> Result<String> {
    let is_loaded = lab.has_module(index, "nvme_rdma");
    load(lab.client_mut(index), is_loaded, "nvme_rdma")?;
    let options = format!(
        "transport=rdma,traddr={},trsvcid={NVME_PORT},nqn={NAME}",
        lab.address
    );
    // Found by its subsystem, since the numbers of controllers vary.
    let delete = format!(
        "for c in /sys/class/nvme/*; do [ \"$(cat $c/subsysnqn)\" != {NAME} ] || echo 1 > $c/delete_controller; done"
    );
    let fabrics = "/dev/nvme-fabrics".to_owned();
    let undo = vec![WorkerStep::run(&["sh", "-c", &delete])];
    lab.client_mut(index).change(
        WorkerStep::Write {
            path: fabrics,
            text: options,
        },
        undo,
    )?;
    let find = format!(
        "for s in /sys/class/nvme-subsystem/*; do [ \"$(cat $s/subsysnqn)\" = {NAME} ] || continue
            for d in $s/nvme*n1; do [ ! -e /dev/${{d##*/}} ] || echo /dev/${{d##*/}}; done; done"
    );
    let find = strings(&["sh", "-c", &find]);
    let mut disk = String::new();
    lab.wait(Duration::from_secs(30), "the disk of nvme-rdma", |lab| {
        let found = lab.client_mut(index).run(&find, 30)?;
        found.stdout.trim().clone_into(&mut disk);
        Ok(!disk.is_empty())
    })?;
    Ok(disk)
}

fn load(node: &mut crate::node::Node, is_loaded: bool, module: &str) -> Result<()> {
    if is_loaded {
        return Ok(());
    }
    let done = node.change(WorkerStep::run(&["modprobe", module]), vec![unload(module)]);
    done.map_err(|_| Error::new(Kind::Setup, format!("there is no module {module}")))
}

/// Sets up NBD over TCP and returns the disk; fails with the reason if that is not possible here.
pub(crate) fn nbd(lab: &mut Lab) -> Result<String> {
    serve_nbd(lab)?;
    attach_nbd(lab, 0)
}

fn needs(node: &mut crate::node::Node, part: &str, program: &str) -> Result<()> {
    let found = node.run(
        &strings(&["sh", "-c", &format!("command -v {program}")]),
        30,
    )?;
    if found.status == 0 {
        return Ok(());
    }
    Err(Error::new(
        Kind::Setup,
        format!("the {part} has no {program}"),
    ))
}

/// Exports the drive by NBD.
pub(crate) fn serve_nbd(lab: &mut Lab) -> Result<()> {
    needs(&mut lab.target, "target", "nbd-server")?;
    // Without a configuration file; -d: it stays in the foreground.
    let listen = format!("{}:{NBD_PORT}", lab.address);
    let argv = strings(&["nbd-server", &listen, &lab.path, "-d", "-C", "/dev/null"]);
    lab.target
        .change(WorkerStep::Start { argv }, vec![WorkerStep::EndStarted])
}

/// Connects a client by NBD, and returns the disk.
pub(crate) fn attach_nbd(lab: &mut Lab, index: usize) -> Result<String> {
    needs(lab.client_mut(index), "client", "nbd-client")?;
    let is_loaded = lab.has_module(index, "nbd");
    load(lab.client_mut(index), is_loaded, "nbd")?;
    let free = "for n in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do d=/sys/block/nbd$n
        [ ! -e $d ] || [ -e $d/pid ] || { echo /dev/nbd$n; exit; }; done";
    let found = lab
        .client_mut(index)
        .run(&strings(&["sh", "-c", free]), 30)?;
    let disk = found.stdout.trim().to_owned();
    if disk.is_empty() {
        return Err(Error::new(Kind::Setup, "all devices of nbd are in use"));
    }
    let address = lab.address.to_string();
    lab.client_mut(index).change(
        WorkerStep::run(&["true"]),
        vec![WorkerStep::run(&["nbd-client", "-d", &disk])],
    )?;
    lab.wait(Duration::from_secs(30), "the server of NBD", |lab| {
        let argv = strings(&["nbd-client", &address, NBD_PORT, &disk]);
        Ok(lab.client_mut(index).run(&argv, 30)?.status == 0)
    })?;
    Ok(disk)
}
