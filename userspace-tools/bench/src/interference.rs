// SPDX-License-Identifier: GPL-2.0

//! `interference`: measures how much a memory-bound computation on the target and serving slow each other down.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use hcablk::error::{Kind, Result};
use serde::Serialize;
use serde_json::{json, Value};

use crate::cli::InterferenceArgs;
use crate::fio::{Job, Until};
use crate::lab::{Export, Lab};
use crate::local_remote::{grown, p2p, ram_ratio};
use crate::page::{bytes, Page};
use crate::report::{self, Report};
use crate::stop::Stop;
use crate::worker::Ask;

/// The results for one mode and direction. Rates are bytes per second.
#[derive(Serialize)]
struct Row {
    mode: &'static str,
    direction: &'static str,
    /// The rate of the computation, while the target serves.
    computing: f64,
    /// The rate of serving, alone and during the computation.
    serving_alone: f64,
    serving: f64,
    /// Bytes that crossed the target's RAM for each served byte.
    ram_bytes_per_byte: f64,
}

/// Runs the experiment.
pub(crate) fn run(args: &InterferenceArgs, stop: &Stop) -> Result<ExitCode> {
    report::with_lab(&args.common, "interference", true, stop, |lab, report| {
        measure(args, lab, report)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn pause(lab: &Lab, seconds: u64) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(seconds) {
        lab.stop.check()?;
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn measure(args: &InterferenceArgs, lab: &mut Lab, report: &Report) -> Result<()> {
    let threads = if args.threads == 0 {
        lab.target_facts.processors
    } else {
        args.threads
    };
    let begin = |lab: &mut Lab| lab.target.ask::<Value>(Ask::LoadMemory { threads });
    let rate = |lab: &mut Lab| lab.target.ask::<f64>(Ask::MemoryRate);
    let end = |lab: &mut Lab| lab.target.ask::<Value>(Ask::UnloadMemory);
    let said = |text: &str| {
        if !args.common.json {
            println!("{text}");
        }
    };
    begin(lab)?;
    rate(lab)?;
    pause(lab, args.seconds)?;
    let alone = rate(lab)?;
    end(lab)?;
    said(&format!(
        "the computation alone: {:.1} MB/s on {threads} threads",
        alone / 1e6
    ));
    let mut rows = Vec::new();
    let mut left_out: Vec<(&str, String)> = Vec::new();
    for mode in ["direct", "cached", "p2p"] {
        let disk = match mode {
            "p2p" => p2p(lab),
            _ => lab
                .export(&Export::new(mode))
                .and_then(|()| lab.connect(&[])),
        };
        let disk = match disk {
            Ok(disk) => disk,
            Err(error) if error.kind == Kind::Interrupted => return Err(error),
            Err(error) => {
                said(&format!("{mode}: left out: {}", error.message));
                left_out.push((mode, error.message));
                lab.unexport()?;
                continue;
            }
        };
        for (direction, pattern) in [("read", "randread"), ("write", "randwrite")] {
            let job = Job::new(
                &disk,
                pattern,
                args.size,
                args.depth,
                Until::Seconds(args.seconds),
                lab.span,
            );
            let of = |load: crate::fio::Load| {
                load.read.bytes_per_second.max(load.write.bytes_per_second)
            };
            let serving_alone = of(job.run(&mut lab.client)?);
            begin(lab)?;
            let before = lab.counters()?.1;
            rate(lab)?;
            // The rate of the computation includes the start of fio, which is a small part of the
            // time.
            let serving = of(job.run(&mut lab.client)?);
            let computing = rate(lab)?;
            let after = lab.counters()?.1;
            end(lab)?;
            let ram_bytes_per_byte = ram_ratio(&grown(&before, &after));
            said(&format!(
                "{mode} {direction}: computing {:.1} of {:.1} MB/s, serving {:.1} of {:.1} MB/s, RAM {ram_bytes_per_byte:.2}",
                computing / 1e6,
                alone / 1e6,
                serving / 1e6,
                serving_alone / 1e6
            ));
            rows.push(Row {
                mode,
                direction,
                computing,
                serving_alone,
                serving,
                ram_bytes_per_byte,
            });
        }
        lab.unexport()?;
    }
    let mut result = report::head(lab, "interference");
    result["threads"] = json!(threads);
    result["computing_alone"] = json!(alone);
    result["rows"] = json!(rows);
    result["left_out"] = json!(left_out
        .iter()
        .map(|(mode, why)| json!({ "mode": mode, "why": why }))
        .collect::<Vec<_>>());
    report.write_json("result.json", &result)?;
    report.write("index.html", &page(args, lab, alone, &rows, &left_out))?;
    if args.common.json {
        println!("{result}");
    }
    Ok(())
}

fn page(
    args: &InterferenceArgs,
    lab: &Lab,
    alone: f64,
    rows: &[Row],
    left_out: &[(&str, String)],
) -> String {
    let mut page = Page::new(
        "hcablk: how much serving and a computation on the target slow each other down",
        &report::times(lab),
    );
    page.table(&report::MACHINES, &report::machines(lab));
    page.paragraph(&format!(
        "The computation is a triad over arrays in memory, as STREAM's: alone it moves {:.1} MB/s. Requests of {}, {} at a time, \
         for {} s each.",
        alone / 1e6,
        bytes(args.size),
        args.depth,
        args.seconds
    ));
    let lost =
        |with: f64, without: f64| format!("{:.1} %", 100.0 * (1.0 - with / without.max(1.0)));
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.mode.to_owned(),
                row.direction.to_owned(),
                lost(row.computing, alone),
                lost(row.serving, row.serving_alone),
                format!("{:.1}", row.serving_alone / 1e6),
                format!("{:.2}", row.ram_bytes_per_byte),
            ]
        })
        .collect();
    let head = [
        "mode",
        "direction",
        "the computation loses",
        "serving loses",
        "serving alone, MB/s",
        "bytes across RAM for each byte served",
    ];
    page.table(&head, &rows);
    page.paragraph("The last column is counted by the target, and holds on an emulator, too; the losses are from measured times.");
    if !left_out.is_empty() {
        page.heading("Left out");
        let rows: Vec<Vec<String>> = left_out
            .iter()
            .map(|(mode, why)| vec![(*mode).to_owned(), why.clone()])
            .collect();
        page.table(&["mode", "why"], &rows);
    }
    page.finish()
}
