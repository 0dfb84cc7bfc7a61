// SPDX-License-Identifier: GPL-2.0

//! `selftest`: checks whether an HCA does all that hcablk requires of it. Prints a line for each
//! check, and makes a folder that a user can send to others.
//!
//! | module | what it checks |
//! |---|---|
//! | [`ways`] | every data path, each proven by counters |
//! | [`loads`] | shapes of memory, many requests at a time, batches, polling, interrupts |
//! | [`endings`] | requests in flight when a session ends, and leftovers |
//! | [`thresholds`] | nothing: it measures which settings are best here |

mod endings;
mod loads;
mod thresholds;
mod ways;

use std::process::ExitCode;
use std::time::Instant;

use hcablk::error::{Error, Kind, Result};
use serde::Serialize;
use serde_json::{json, Map, Value};

use crate::cli::SelftestArgs;
use crate::lab::Lab;
use crate::page::Page;
use crate::report::{self, Report};
use crate::stop::Stop;
use crate::worker::Ask;

/// The outcome of a check that does not fail.
enum Outcome {
    /// All requirements of the check are met.
    Pass(String),
    /// The machines, or the options of the run, do not allow the check.
    NotPossible(String),
}

/// One check.
struct Check {
    name: &'static str,
    what: &'static str,
    run: fn(&mut Context<'_>) -> Result<Outcome>,
}

/// The objects that checks work on.
struct Context<'a> {
    lab: &'a mut Lab,
    args: &'a SelftestArgs,
    /// Numbers for the report, by the check's name.
    figures: Map<String, Value>,
    /// The configuration that is proposed.
    proposal: Option<String>,
    /// Kernel messages of both machines that no check has looked at.
    log: [Option<Vec<String>>; 2],
}

/// The result of a check.
#[derive(Serialize)]
struct Line {
    name: &'static str,
    what: &'static str,
    outcome: &'static str,
    detail: String,
    seconds: f64,
}

fn checks() -> Vec<Check> {
    let mut checks = ways::checks();
    checks.extend(loads::checks());
    checks.extend(endings::checks());
    checks.extend(thresholds::checks());
    checks.extend(loads::last_checks());
    checks.extend(endings::last_checks());
    checks
}

/// Runs the checks; the exit code is 1 if one fails.
pub(crate) fn run(args: &SelftestArgs, stop: &Stop) -> Result<ExitCode> {
    let all = checks();
    if args.list {
        for check in &all {
            println!("{:20} {}", check.name, check.what);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(unknown) = args
        .only
        .iter()
        .find(|name| !all.iter().any(|check| check.name == name.as_str()))
    {
        return Err(
            Error::new(Kind::Usage, format!("there is no check {unknown}"))
                .advise("hcablk bench selftest --list"),
        );
    }
    let wanted: Vec<Check> = all
        .into_iter()
        .filter(|check| args.only.is_empty() || args.only.iter().any(|name| name == check.name))
        .collect();
    let failed = report::with_lab(&args.common, "selftest", true, stop, |lab, report| {
        run_checks(args, &wanted, lab, report)
    })?;
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn run_checks(
    args: &SelftestArgs,
    checks: &[Check],
    lab: &mut Lab,
    report: &Report,
) -> Result<usize> {
    let mut context = Context {
        lab,
        args,
        figures: Map::new(),
        proposal: None,
        log: [None, None],
    };
    let mut lines = Vec::new();
    for check in checks {
        let begun = Instant::now();
        let done = (check.run)(&mut context);
        let (outcome, detail) = match done {
            Ok(Outcome::Pass(detail)) => ("pass", detail),
            Ok(Outcome::NotPossible(why)) => ("not possible", why),
            Err(error) if error.kind == Kind::Interrupted => return Err(error),
            Err(error) => {
                // The next check begins with a session of its own.
                let left = context
                    .lab
                    .unexport()
                    .err()
                    .map(|error| format!("; and then: {}", error.message));
                ("fail", error.message + &left.unwrap_or_default())
            }
        };
        context.lab.stop.check()?;
        let line = Line {
            name: check.name,
            what: check.what,
            outcome,
            detail,
            seconds: begun.elapsed().as_secs_f64(),
        };
        if !args.common.json {
            println!("{:12} {:20} {}", line.outcome, line.name, line.detail);
        }
        lines.push(line);
    }
    context.lab.unexport()?;
    write_report(&mut context, &lines, report)
}

/// Writes a report that can be read without the machines, and returns how many checks failed.
fn write_report(context: &mut Context<'_>, lines: &[Line], report: &Report) -> Result<usize> {
    let count = |outcome: &str| lines.iter().filter(|line| line.outcome == outcome).count();
    let (passed, failed, not_possible) = (count("pass"), count("fail"), count("not possible"));
    let lab = &mut *context.lab;
    let mut result = report::head(lab, "selftest");
    result["checks"] = json!(lines);
    result["passed"] = json!(passed);
    result["failed"] = json!(failed);
    result["not_possible"] = json!(not_possible);
    result["figures"] = Value::Object(context.figures.clone());
    result["proposal"] = json!(context.proposal);
    report.write_json("result.json", &result)?;
    if let Some(proposal) = &context.proposal {
        report.write("proposal.toml", proposal)?;
    }
    for (name, here, words) in [
        ("client-list.json", true, vec!["list"]),
        ("client-stats.json", true, vec!["stats"]),
        ("client-check.json", true, vec!["check"]),
        ("target-list.json", false, vec!["target", "list"]),
        ("target-stats.json", false, vec!["target", "stats"]),
        ("target-check.json", false, vec!["check"]),
    ] {
        let node = if here {
            &mut lab.client
        } else {
            &mut lab.target
        };
        let argv: Vec<String> = ["hcablk"]
            .iter()
            .chain(&words)
            .chain(&["--json"])
            .map(|&word| word.to_owned())
            .collect();
        // `check` exits with 7 if it finds something; its output is wanted in any case.
        report.write(name, &node.run(&argv, 60)?.stdout)?;
    }
    for (part, lines) in ["client", "target"].iter().zip(&context.log) {
        if let Some(lines) = lines {
            report.write(&format!("{part}-kernel.log"), &(lines.join("\n") + "\n"))?;
        }
    }
    let mut page = Page::new("hcablk: selftest", &report::times(lab));
    page.paragraph(&format!(
        "{passed} passed, {failed} failed, {not_possible} not possible here."
    ));
    page.table(&report::MACHINES, &report::machines(lab));
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            vec![
                line.name.to_owned(),
                line.outcome.to_owned(),
                line.what.to_owned(),
                line.detail.clone(),
            ]
        })
        .collect();
    page.table(
        &["check", "outcome", "what is checked", "what was seen"],
        &rows,
    );
    thresholds::plots(&mut page, &context.figures)?;
    if let Some(proposal) = &context.proposal {
        page.heading("Proposed settings");
        page.verbatim(proposal);
    }
    report.write("index.html", &page.finish())?;
    if context.args.common.json {
        println!("{result}");
    } else {
        println!("{passed} passed, {failed} failed, {not_possible} not possible here");
    }
    Ok(failed)
}

impl Context<'_> {
    /// Notes the kernel's messages on both machines since the last time, and returns them.
    fn read_log(&mut self) -> Result<[Option<Vec<String>>; 2]> {
        let new: [Option<Vec<String>>; 2] = [
            self.lab.client.ask(Ask::Log)?,
            self.lab.target.ask(Ask::Log)?,
        ];
        for (all, new) in self.log.iter_mut().zip(&new) {
            if let Some(new) = new {
                all.get_or_insert_default().extend(new.iter().cloned());
            }
        }
        Ok(new)
    }
}
