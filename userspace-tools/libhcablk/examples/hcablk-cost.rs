// SPDX-License-Identifier: GPL-2.0

//! `hcablk-cost`: reads or writes a volume at random offsets, for the benchmark, which counts the
//! cost.
//!
//! ```text
//! hcablk-cost [OPTION]... ADDRESS VOLUME read|write BYTES DEPTH WARM COUNT poll|event
//! ```
//!
//! It has two rounds, as the benchmark's fio jobs have: first WARM requests, then WARM plus COUNT.
//! Before and after each it runs `hcablk-mark`, which prints the clock. At the end it prints the
//! number of polls of each round that found no completion, and the nanoseconds of such a poll. From
//! depth 32 on it submits and reaps 16 requests at a time.
//!
//! The options are those of the library, for example `--queues=2`. This host's id is taken from
//! `/etc/hcablk/host_id`.

use libhcablk::{Buffer, Notice, Options, Queue, Request, Volume};
use std::{
    error::Error,
    fs,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Requests that are submitted and reaped together, from this depth on.
const BATCH: usize = 16;
const BATCH_DEPTH: usize = 32;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hcablk-cost: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (settings, words): (Vec<_>, Vec<_>) = arguments
        .iter()
        .map(String::as_str)
        .partition(|argument| argument.starts_with("--"));
    let [address, volume, what, bytes, depth, warm, count, notice] = words[..] else {
        return Err(
            "usage: hcablk-cost [OPTION]... ADDRESS VOLUME read|write BYTES DEPTH WARM COUNT poll|event".into(),
        );
    };
    let host = fs::read_to_string("/etc/hcablk/host_id")?;
    let mut options = Options::new(address.parse()?, volume, host.trim())?;
    for setting in settings {
        let setting = setting.trim_start_matches('-');
        let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
        options = options.set(name, value)?;
    }
    let volume = Volume::open(&options)?;
    let mut queue = volume.take_queue().ok_or("the volume has no queue")?;
    let (bytes, depth): (usize, usize) = (bytes.parse()?, depth.parse()?);
    let lists = (0..depth).map(|_| Ok(vec![volume.memory(bytes)?]));
    let mut job = Job {
        is_write: what == "write",
        bytes: bytes as u64,
        blocks: volume.size() / bytes as u64,
        depth,
        batch: if depth < BATCH_DEPTH { 1 } else { BATCH },
        notice: match notice {
            "event" => Notice::Event,
            _ => Notice::Polled,
        },
        lists: lists.collect::<Result<_>>()?,
        random: 1,
    };
    let (warm, count): (usize, usize) = (warm.parse()?, count.parse()?);
    let mut empty = Vec::new();
    for requests in [warm, warm + count] {
        mark()?;
        empty.push(job.run(&mut queue, requests)?);
        mark()?;
    }
    println!("{} {} {}", empty[0], empty[1], empty_poll(&mut queue));
    Ok(())
}

/// Runs `hcablk-mark`, at which the benchmark records its counters.
fn mark() -> Result<()> {
    match Command::new("hcablk-mark").status()?.success() {
        true => Ok(()),
        false => Err("hcablk-mark failed".into()),
    }
}

/// Returns the nanoseconds that a poll takes when it finds no completion.
fn empty_poll(queue: &mut Queue) -> f64 {
    const POLLS: u32 = 1000;
    let round = |_| {
        let begin = Instant::now();
        for _ in 0..POLLS {
            queue.poll();
        }
        begin.elapsed()
    };
    // The minimum: a timer interrupt may lengthen a round.
    let least = (0..20).map(round).min().unwrap_or_default();
    least.as_secs_f64() * 1e9 / f64::from(POLLS)
}

struct Job {
    is_write: bool,
    bytes: u64,
    /// The number of places on the volume for a request of `bytes` bytes.
    blocks: u64,
    depth: usize,
    batch: usize,
    notice: Notice,
    /// The memory of requests that are not under way.
    lists: Vec<Vec<Buffer>>,
    random: u64,
}

impl Job {
    fn place(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % self.blocks * self.bytes
    }

    /// Carries out `count` requests. Returns the number of polls that found no completion.
    fn run(&mut self, queue: &mut Queue, count: usize) -> Result<u64> {
        let (mut submitted, mut ended, mut empty) = (0, 0, 0);
        while ended < count {
            while submitted < count && self.lists.len() >= self.batch.min(count - submitted) {
                for _ in 0..self.batch.min(count - submitted) {
                    self.submit(queue)?;
                    submitted += 1;
                }
                queue.ring();
            }
            let wanted = self.batch.min(self.depth - self.lists.len());
            let mut found = 0;
            while found < wanted {
                let now = match self.notice {
                    Notice::Polled => queue.poll(),
                    Notice::Event => queue.wait(Duration::from_secs(60)),
                };
                empty += u64::from(now == found);
                found = now;
                if self.notice == Notice::Event {
                    break;
                }
            }
            while let Some(done) = queue.completed() {
                done.result?;
                self.lists.push(done.memory);
                ended += 1;
            }
        }
        Ok(empty)
    }

    fn submit(&mut self, queue: &mut Queue) -> Result<()> {
        let offset = self.place();
        let list = self.lists.pop().ok_or("no memory is left")?;
        let request = match self.is_write {
            true => Request::write_gathered(offset, list),
            false => Request::read_scattered(offset, list),
        };
        let request = request.notice(self.notice);
        queue.prepare(request).map_err(|refused| refused.0.into())
    }
}
