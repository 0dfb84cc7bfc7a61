// SPDX-License-Identifier: GPL-2.0

//! Runs fio, and reads its results from its JSON.

use hcablk::error::{Error, Kind, Result};
use serde::Serialize;
use serde_json::Value;

use crate::node::Node;
use crate::worker::failure;

/// A load of fio.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// The disk or file; empty if further options name files.
    pub(crate) disk: String,
    /// `randread`, `randwrite`, `randrw`, or another pattern of fio.
    pub(crate) pattern: String,
    /// Sizes of requests: one, or the least and the most.
    pub(crate) sizes: (u64, u64),
    /// The disk's block size.
    pub(crate) block: u64,
    /// Concurrent requests.
    pub(crate) depth: u32,
    /// The end of the job.
    pub(crate) until: Until,
    /// The part of the disk that is used.
    pub(crate) span: (u64, u64),
    /// `libaio`, `io_uring`, or an engine in a file.
    pub(crate) engine: String,
    /// Further options of fio.
    pub(crate) more: Vec<String>,
}

/// The end of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// After a time, not counting the start.
    Seconds(u64),
    /// When this many bytes have been moved.
    Bytes(u64),
}

/// The results for one direction.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Measured {
    /// Requests.
    pub(crate) requests: u64,
    /// Bytes.
    pub(crate) bytes: u64,
    /// Bytes per second.
    pub(crate) bytes_per_second: f64,
    /// Mean latency of a request.
    pub(crate) mean_ns: f64,
    /// The latency that 99 % of the requests did not exceed.
    pub(crate) p99_ns: f64,
}

/// The results of one job.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Load {
    /// Reads.
    pub(crate) read: Measured,
    /// Writes.
    pub(crate) write: Measured,
}

/// The time that fio may take in addition to its job.
const GRACE_SECONDS: u64 = 240;

impl Job {
    /// Creates a job of one request size on a disk of this many bytes, with libaio.
    pub(crate) fn new(
        disk: &str,
        pattern: &str,
        size: u64,
        depth: u32,
        until: Until,
        bytes: u64,
    ) -> Self {
        Self {
            disk: disk.to_owned(),
            pattern: pattern.to_owned(),
            sizes: (size, size),
            block: 512,
            depth,
            until,
            span: (0, bytes),
            engine: "libaio".to_owned(),
            more: Vec::new(),
        }
    }

    fn options(&self) -> Vec<String> {
        let mut argv = vec![
            "--direct=1".to_owned(),
            "--randrepeat=0".to_owned(),
            // An engine's own options follow its name.
            format!("--ioengine={}", self.engine),
            format!("--rw={}", self.pattern),
            format!("--iodepth={}", self.depth),
            format!("--offset={}", self.span.0),
            format!("--size={}", self.span.1),
        ];
        if !self.disk.is_empty() {
            argv.push(format!("--filename={}", self.disk));
        }
        if self.sizes.0 == self.sizes.1 {
            argv.push(format!("--bs={}", self.sizes.0));
        } else {
            argv.push(format!("--bsrange={}-{}", self.sizes.0, self.sizes.1));
            argv.push(format!("--blockalign={}", self.block));
        }
        match self.until {
            Until::Seconds(seconds) => {
                argv.extend([
                    "--time_based=1".to_owned(),
                    format!("--runtime={seconds}"),
                    "--norandommap=1".to_owned(),
                ]);
            }
            Until::Bytes(bytes) => argv.push(format!("--io_size={bytes}")),
        }
        argv.extend(self.more.iter().cloned());
        argv
    }

    /// Runs the job on a machine; an error of any request is an error.
    pub(crate) fn run(&self, node: &mut Node) -> Result<Load> {
        let loads = run(std::slice::from_ref(self), node)?;
        loads
            .into_iter()
            .next()
            .ok_or_else(|| wrong("it has no job"))
    }
}

fn argv(jobs: &[Job]) -> Vec<String> {
    let mut argv = vec!["fio".to_owned(), "--output-format=json".to_owned()];
    for (number, job) in jobs.iter().enumerate() {
        // A name begins a job; the options up to the next name are the job's.
        argv.push(format!("--name=hcablk-bench{number}"));
        argv.extend(job.options());
    }
    argv
}

/// Runs jobs together on a machine, and returns their results in the same order; an error of any request is an error.
pub(crate) fn run(jobs: &[Job], node: &mut Node) -> Result<Vec<Load>> {
    let seconds = |job: &Job| match job.until {
        Until::Seconds(seconds) => seconds,
        Until::Bytes(_) => 0,
    };
    let longest = jobs.iter().map(seconds).max().unwrap_or(0);
    let output = node.run(&argv(jobs), longest + GRACE_SECONDS)?;
    if output.status != 0 {
        let what: Vec<String> = jobs
            .iter()
            .map(|job| {
                format!(
                    "{} of {} bytes at depth {}",
                    job.pattern, job.sizes.1, job.depth
                )
            })
            .collect();
        return Err(failure(&format!("fio ({})", what.join(", ")), &output));
    }
    parse(&output.stdout)
}

fn wrong(why: &str) -> Error {
    Error::new(
        Kind::Failed,
        format!("fio printed something unexpected: {why}"),
    )
}

/// Parses fio's output; remarks may precede the object.
fn parse(text: &str) -> Result<Vec<Load>> {
    let from = text.find('{').ok_or_else(|| wrong("no object"))?;
    let object: Value = serde_json::from_str(text.get(from..).unwrap_or_default())
        .map_err(|error| wrong(&error.to_string()))?;
    let jobs = object["jobs"]
        .as_array()
        .ok_or_else(|| wrong("it has no jobs"))?;
    jobs.iter().map(load).collect()
}

fn load(job: &Value) -> Result<Load> {
    if job["error"].as_i64() != Some(0) {
        return Err(wrong(&format!("the job's error is {}", job["error"])));
    }
    let of = |direction: &str| {
        let one = &job[direction];
        Some(Measured {
            requests: one["total_ios"].as_u64()?,
            bytes: one["io_bytes"].as_u64()?,
            bytes_per_second: one["bw_bytes"].as_f64()?,
            mean_ns: one["lat_ns"]["mean"].as_f64()?,
            p99_ns: one["clat_ns"]["percentile"]["99.000000"]
                .as_f64()
                .unwrap_or(0.0),
        })
    };
    match (of("read"), of("write")) {
        (Some(read), Some(write)) => Ok(Load { read, write }),
        _ => Err(wrong("it lacks numbers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_errors_are_seen() {
        let one = r#"{"total_ios": 5, "io_bytes": 20480, "bw_bytes": 1000, "lat_ns": {"mean": 12.5},
            "clat_ns": {"percentile": {"99.000000": 20}}}"#;
        let none = r#"{"total_ios": 0, "io_bytes": 0, "bw_bytes": 0, "lat_ns": {"mean": 0}, "clat_ns": {}}"#;
        let text = |error: u32| {
            format!("fio: a remark\n{{\"jobs\": [{{\"error\": {error}, \"read\": {one}, \"write\": {none}}}]}}")
        };
        let read = parse(&text(0)).unwrap()[0].read;
        assert_eq!((read.requests, read.bytes), (5, 20480));
        assert!((read.mean_ns - 12.5).abs() < 1e-9 && (read.p99_ns - 20.0).abs() < 1e-9);
        assert!(parse(&text(5)).is_err());
        assert!(parse("nothing").is_err());
        assert!(parse("{}").is_err());
    }

    #[test]
    fn each_job_has_a_name_before_its_options() {
        let job = |pattern| Job::new("/dev/x", pattern, 4096, 1, Until::Seconds(1), 1 << 20);
        let argv = argv(&[job("randread"), job("write")]);
        let place = |option: &str| argv.iter().position(|word| word == option).unwrap();
        assert!(place("--name=hcablk-bench0") < place("--rw=randread"));
        assert!(place("--rw=randread") < place("--name=hcablk-bench1"));
        assert!(place("--name=hcablk-bench1") < place("--rw=write"));
    }
}
