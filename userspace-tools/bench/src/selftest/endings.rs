// SPDX-License-Identifier: GPL-2.0

//! Requests in flight when a session ends, and the leftovers of the session.

use std::thread;
use std::time::Duration;

use hcablk::error::{Error, Kind, Result};
use serde_json::Value;

use super::loads::verifying;
use super::ways::connect;
use super::{Check, Context, Outcome};
use crate::fio::{Load, Until};
use crate::lab::{Export, Lab, NAME};
use crate::node::Node;
use crate::stop::Stop;
use crate::worker::{Output, WorkerStep};

/// The time limit for the end of a session, and for requests to be answered or to fail.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn checks() -> Vec<Check> {
    vec![
        Check {
            name: "killed-queue-pairs",
            what: "all queue pairs die under load: requests wait, are issued again, and all data is right",
            run: killed_queue_pairs,
        },
        Check {
            name: "eviction",
            what: "the target evicts the client under load: requests fail, the drive has finished, nothing hangs",
            run: eviction,
        },
        Check { name: "queue-pairs-left", what: "no queue pair is left when a session has ended", run: queue_pairs_left },
        Check { name: "link-down", what: "the client's port is down for some seconds under load", run: link_down },
    ]
}

pub(super) fn last_checks() -> Vec<Check> {
    vec![Check {
        name: "kernel-log",
        what: "the kernels of both machines report no fault",
        run: kernel_log,
    }]
}

fn failed(why: impl Into<String>) -> Error {
    Error::new(Kind::Failed, why)
}

/// Runs a verifying load, and `happens` once the load is under way; returns the results of both.
/// Kills the load if `happens` fails.
fn under_load<T>(
    context: &mut Context<'_>,
    disk: &str,
    happens: impl FnOnce(&mut Context<'_>) -> Result<T>,
) -> Result<(T, Result<Load>)> {
    let block = crate::drive::block_size(disk);
    // It runs for some seconds, and is too light to block other traffic.
    let span = (64 << 20).min(context.lab.span);
    let mut job = verifying(disk, block, span, Until::Bytes(span * 3 / 4));
    job.sizes = (block, 65536);
    job.more.push("--rate=4m".to_owned());
    let stop = Stop::default();
    thread::scope(|scope| {
        let load = scope.spawn(|| job.run(&mut Node::here(&stop)));
        let name = disk.trim_start_matches("/dev/").to_owned();
        let path = format!("/sys/block/{name}/stat");
        let happened = context
            .lab
            .wait(LIMIT, "the load to be under way", |_| {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                let numbers: Vec<u64> = text
                    .split_whitespace()
                    .map_while(|word| word.parse().ok())
                    .collect();
                Ok(numbers.first().is_some_and(|reads| *reads > 20)
                    && numbers.get(4).is_some_and(|writes| *writes > 20))
            })
            .and_then(|_| happens(context));
        if happened.is_err() {
            stop.set();
        }
        let load = load
            .join()
            .unwrap_or_else(|_| Err(failed("a thread has panicked")));
        happened.map(|happened| (happened, load))
    })
}

/// Returns the epoch of the disk's session, and its state.
fn epoch(lab: &mut Lab) -> Result<(u64, String)> {
    let device = lab.device()?.ok_or_else(|| failed("the disk is gone"))?;
    let state = device["state"].as_str().unwrap_or_default().to_owned();
    Ok((device["session"]["epoch"].as_u64().unwrap_or(0), state))
}

fn on_target(lab: &mut Lab, words: &[&str]) -> Result<Value> {
    lab.target.hcablk(words, Vec::new())
}

fn killed_queue_pairs(context: &mut Context<'_>) -> Result<Outcome> {
    let export = Export::new("direct");
    let disk = connect(context.lab, &export, &["--ctrl-loss-tmo", "600"])?;
    let (before, _) = epoch(context.lab)?;
    let (took, load) = under_load(context, &disk, |context| {
        on_target(context.lab, &["target", "unexport", NAME, "--force"])?;
        context.lab.export_again(&export)?;
        context
            .lab
            .wait(LIMIT, "the disk to be live by another session", |lab| {
                let (epoch, state) = epoch(lab)?;
                Ok(state == "live" && epoch > before)
            })
    })?;
    let load = load.map_err(|error| {
        failed(format!(
            "the load under which the queue pairs died: {}",
            error.message
        ))
    })?;
    Ok(Outcome::Pass(format!(
        "another session after {:.1} s; {} reads and {} writes, all verified",
        took.as_secs_f64(),
        load.read.requests,
        load.write.requests
    )))
}

fn eviction(context: &mut Context<'_>) -> Result<Outcome> {
    let export = Export::new("direct");
    let disk = connect(context.lab, &export, &[])?;
    let host = context.lab.host.clone();
    let admit = WorkerStep::run(&["hcablk", "target", "admit", NAME, &host, "--if-exists"]);
    let (took, load) = under_load(context, &disk, |context| {
        let lab = &mut *context.lab;
        let begun = std::time::Instant::now();
        lab.target.hcablk(
            &["target", "evict", NAME, &host, "--timeout", "60"],
            vec![admit],
        )?;
        lab.wait(LIMIT, "the target to have no session", |lab| {
            Ok(lab.volume()?["clients"]
                .as_array()
                .is_some_and(Vec::is_empty))
        })?;
        Ok(begun.elapsed())
    })?;
    if load.is_ok() {
        return Err(failed("requests of an evicted host succeeded"));
    }
    on_target(
        context.lab,
        &["target", "admit", NAME, &host, "--if-exists"],
    )?;
    // Everything works again.
    let disk = connect(context.lab, &export, &[])?;
    let file = crate::pattern::open(&disk, true)?;
    let seed = context.args.seed ^ 0xe71c;
    super::ways::requests(&file, true, 16384, 4, seed)?;
    super::ways::requests(&file, false, 16384, 4, seed)?;
    Ok(Outcome::Pass(format!(
        "evicted in {:.1} s; its requests failed, and it connected again when admitted",
        took.as_secs_f64()
    )))
}

/// Returns the number of connected queue pairs in a machine's kernel; `None` if its `rdma` does not show it.
fn queue_pairs(node: &mut Node) -> Result<Option<usize>> {
    let argv = ["rdma", "-j", "resource", "show", "qp"].map(str::to_owned);
    let output: Output = match node.run(&argv, 60) {
        Ok(output) if output.status == 0 => output,
        Err(error) if error.kind == Kind::Interrupted => return Err(error),
        _ => return Ok(None),
    };
    let Ok(list) = serde_json::from_str::<Value>(&output.stdout) else {
        return Ok(None);
    };
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    // The kernel lists queue pairs of kernel users under the connection manager's name, not the
    // user's: all are counted.
    let ours = list
        .iter()
        .filter(|pair| pair["type"] == "RC" && pair["pid"].is_null());
    Ok(Some(ours.count()))
}

fn queue_pairs_left(context: &mut Context<'_>) -> Result<Outcome> {
    let lab = &mut *context.lab;
    lab.unexport()?;
    let count = |lab: &mut Lab| {
        Ok::<_, Error>((queue_pairs(&mut lab.client)?, queue_pairs(&mut lab.target)?))
    };
    let before = count(lab)?;
    connect(lab, &Export::new("direct"), &[])?;
    let (Some(client), Some(target)) = count(lab)? else {
        return Ok(Outcome::NotPossible(
            "`rdma resource show qp` does not show the owners of queue pairs".to_owned(),
        ));
    };
    if (Some(client), Some(target)) == before {
        return Ok(Outcome::NotPossible(
            "the RDMA devices do not report their queue pairs".to_owned(),
        ));
    }
    lab.unexport()?;
    let took = lab.wait(LIMIT, "the queue pairs to go", |lab| {
        Ok(count(lab)? == before)
    })?;
    Ok(Outcome::Pass(format!(
        "{client} at the client and {target} at the target were gone {:.1} s after the disconnection",
        took.as_secs_f64()
    )))
}

/// Returns the network interface of the client with the route to the target.
fn port(lab: &mut Lab) -> Result<Option<String>> {
    let argv = ["ip", "-j", "route", "get", &lab.address.to_string()].map(str::to_owned);
    let output = lab.client.run(&argv, 60)?;
    let routes: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
    Ok(routes[0]["dev"]
        .as_str()
        .filter(|name| *name != "lo")
        .map(str::to_owned))
}

fn link_down(context: &mut Context<'_>) -> Result<Outcome> {
    const SECONDS: u64 = 8;
    if !context.args.disruptive {
        return Ok(Outcome::NotPossible(
            "it disturbs others: only with --disruptive".to_owned(),
        ));
    }
    if context.lab.together {
        return Ok(Outcome::NotPossible(
            "both parts are on one machine".to_owned(),
        ));
    }
    let Some(port) = port(context.lab)? else {
        return Ok(Outcome::NotPossible(
            "the client's port is not found by `ip route get`".to_owned(),
        ));
    };
    let disk = connect(
        context.lab,
        &Export::new("direct"),
        &["--ctrl-loss-tmo", "600", "--keep-alive-tmo", "2"],
    )?;
    let (before, _) = epoch(context.lab)?;
    let (took, load) = under_load(context, &disk, |context| {
        // When the link goes down the kernel forgets its routes, and its IPv6 addresses unless it
        // is set to keep them. The script is one program, so that the port comes up again even if
        // this program ends.
        let script = format!(
            "set -e; keep=/proc/sys/net/ipv6/conf/{port}/keep_addr_on_down; was=$(cat $keep); routes=$(mktemp); \
             ip route save dev {port} > $routes; echo 1 > $keep; ip link set {port} down; sleep {SECONDS}; \
             ip link set {port} up; sleep 1; ip route restore < $routes 2> /dev/null || true; rm $routes; echo $was > $keep"
        );
        let step = WorkerStep::run(&["sh", "-c", &script]);
        context.lab.client.change(
            step,
            vec![WorkerStep::run(&["ip", "link", "set", &port, "up"])],
        )?;
        context.lab.wait(LIMIT, "the disk to be live again", |lab| {
            Ok(epoch(lab)?.1 == "live")
        })
    })?;
    let (after, _) = epoch(context.lab)?;
    let load = load.map_err(|error| {
        failed(format!(
            "the load under which {port} was down: {}",
            error.message
        ))
    })?;
    let session = if after > before {
        "another session"
    } else {
        "the same session"
    };
    Ok(Outcome::Pass(format!(
        "{port} was down for {SECONDS} s, {session} {:.1} s later; {} reads and {} writes, all verified",
        took.as_secs_f64(),
        load.read.requests,
        load.write.requests
    )))
}

/// Returns whether a kernel message is a fault.
fn is_fault(line: &str) -> bool {
    let of_kernel = [
        "BUG:",
        "WARNING:",
        "Oops",
        "general protection fault",
        "INFO: task ",
        "DMA fault",
        "DMAR: [",
        "rcu: INFO",
    ];
    of_kernel.iter().any(|word| line.contains(word))
        || line.contains("hcablk") && line.contains("broke the protocol")
}

fn kernel_log(context: &mut Context<'_>) -> Result<Outcome> {
    let new = context.read_log()?;
    let mut faults = Vec::new();
    let mut unread = Vec::new();
    for (part, lines) in ["client", "target"].iter().zip(&new) {
        match lines {
            Some(lines) => faults.extend(
                lines
                    .iter()
                    .filter(|line| is_fault(line))
                    .map(|line| format!("{part}: {line}")),
            ),
            None => unread.push(*part),
        }
    }
    if !faults.is_empty() {
        return Err(failed(faults.join("; ")));
    }
    if !unread.is_empty() {
        return Ok(Outcome::NotPossible(format!(
            "/dev/kmsg cannot be read at the {}",
            unread.join(" and the ")
        )));
    }
    let lines: usize = new.iter().flatten().map(Vec::len).sum();
    Ok(Outcome::Pass(format!(
        "{lines} lines since the beginning, none a fault"
    )))
}

#[cfg(test)]
mod tests {
    use super::is_fault;

    #[test]
    fn faults_of_the_kernel_are_seen_and_other_lines_are_none() {
        for line in [
            "hcablk_core: BUG: send queue did not drain",
            "WARNING: CPU: 1 PID: 9 at drivers/infiniband/x.c:1",
            "hcablk: data: the target broke the protocol",
        ] {
            assert!(is_fault(line), "{line}");
        }
        for line in [
            "hcablk: hcablk-bench: connected",
            "hcablk_target: volume hcablk-bench: host evicted",
        ] {
            assert!(!is_fault(line), "{line}");
        }
    }
}
