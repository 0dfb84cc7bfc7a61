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
    /// The disk.
    pub(crate) disk: String,
    /// `randread`, `randwrite` or `randrw`.
    pub(crate) pattern: &'static str,
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
    /// `libaio` or `io_uring`.
    pub(crate) engine: &'static str,
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
        pattern: &'static str,
        size: u64,
        depth: u32,
        until: Until,
        bytes: u64,
    ) -> Self {
        Self {
            disk: disk.to_owned(),
            pattern,
            sizes: (size, size),
            block: 512,
            depth,
            until,
            span: (0, bytes),
            engine: "libaio",
            more: Vec::new(),
        }
    }

    fn argv(&self) -> Vec<String> {
        let mut argv = vec![
            "fio".to_owned(),
            "--output-format=json".to_owned(),
            "--name=hcablk-bench".to_owned(),
            "--direct=1".to_owned(),
            "--randrepeat=0".to_owned(),
            format!("--filename={}", self.disk),
            format!("--rw={}", self.pattern),
            format!("--ioengine={}", self.engine),
            format!("--iodepth={}", self.depth),
            format!("--offset={}", self.span.0),
            format!("--size={}", self.span.1),
        ];
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
        let seconds = match self.until {
            Until::Seconds(seconds) => seconds,
            Until::Bytes(_) => 0,
        };
        let output = node.run(&self.argv(), seconds + GRACE_SECONDS)?;
        if output.status != 0 {
            let what = format!(
                "fio ({} of {} bytes at depth {})",
                self.pattern, self.sizes.1, self.depth
            );
            return Err(failure(&what, &output));
        }
        parse(&output.stdout)
    }
}

/// Parses fio's output; remarks may precede the object.
fn parse(text: &str) -> Result<Load> {
    let wrong = |why: &str| {
        Error::new(
            Kind::Failed,
            format!("fio printed something unexpected: {why}"),
        )
    };
    let from = text.find('{').ok_or_else(|| wrong("no object"))?;
    let object: Value = serde_json::from_str(text.get(from..).unwrap_or_default())
        .map_err(|error| wrong(&error.to_string()))?;
    let job = &object["jobs"][0];
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
        let read = parse(&text(0))
            .map(|measured| measured.read)
            .unwrap_or_default();
        assert_eq!((read.requests, read.bytes), (5, 20480));
        assert!((read.mean_ns - 12.5).abs() < 1e-9 && (read.p99_ns - 20.0).abs() < 1e-9);
        assert!(parse(&text(5)).is_err());
        assert!(parse("nothing").is_err());
    }
}
