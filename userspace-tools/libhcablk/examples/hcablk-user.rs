// SPDX-License-Identifier: GPL-2.0

//! `hcablk-user`: reads and writes a volume from user space, without a kernel module on this side.
//!
//! ```text
//! hcablk-user [OPTION]... ADDRESS VOLUME info
//! hcablk-user [OPTION]... ADDRESS VOLUME read OFFSET LENGTH > FILE
//! hcablk-user [OPTION]... ADDRESS VOLUME write OFFSET < FILE
//! hcablk-user [OPTION]... ADDRESS VOLUME verify SEED
//! hcablk-user [OPTION]... ADDRESS VOLUME hold
//! hcablk-user --queues=2 [OPTION]... ADDRESS VOLUME late OFFSET
//! hcablk-user [OPTION]... ADDRESS VOLUME promise FILE
//! hcablk-user [OPTION]... ADDRESS VOLUME allocations
//! ```
//!
//! `verify` writes data from memory that is split in different ways, reads it back into memory that
//! is split differently, and compares, on all queues at once. `hold` reads the first block again
//! and again until the volume ends, and prints the reason; it also prints when a read fails, when
//! the session is lost, and when a new one has begun. `late` writes a block at OFFSET, where the
//! drive is slow. Then it writes the first block of the volume, whether the first write failed or
//! not. Meanwhile another queue reads the first block. `late` prints the result of each. `promise`
//! writes a block, waits until FILE exists, and prints whether the block can be flushed.
//! `allocations` prints how often a queue's thread allocates for requests after the first ones.
//!
//! The options are those of the library, for example `--queues=2`, and two more: with `--event` the
//! calls wait for events instead of polling.
//!
//! This host's id is read from `/etc/hcablk/host_id`; with `--keys` its key and the target's are
//! read from `/etc/hcablk/keys`, where the `hcablk` command stores them.

use std::{
    error::Error,
    fs,
    io::{self, Read as _, Write as _},
    ops::Range,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

#[path = "../src/allocations.rs"]
mod allocations;

use libhcablk::{
    Buffer, Failure, Flag, Key, Notice, Options, Queue, Request, RequestError, Volume,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of the part of the volume that one queue verifies.
const AREA: u64 = 16 << 20;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hcablk-user: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut words = Vec::new();
    let mut settings = Vec::new();
    for argument in arguments.drain(..) {
        match argument.strip_prefix("--") {
            Some(setting) => settings.push(setting.to_owned()),
            None => words.push(argument),
        }
    }
    let [address, volume, command, rest @ ..] = &words[..] else {
        return Err("usage: hcablk-user [OPTION]... ADDRESS VOLUME COMMAND...".into());
    };
    let host = fs::read_to_string("/etc/hcablk/host_id")?;
    let mut options = Options::new(address.parse()?, volume, host.trim())?;
    let mut notice = Notice::Polled;
    for setting in &settings {
        let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
        options = match name {
            "keys" => options.keys(key("host")?, key("targets/default")?),
            "event" => {
                notice = Notice::Event;
                options
            }
            name => options.set(name, value)?,
        };
    }
    let volume = Volume::open(&options)?;
    let mut queue = volume.take_queue().ok_or("the volume has no queue")?;
    queue.set_notice(notice);
    match (command.as_str(), rest) {
        ("info", []) => {
            println!("size {}", volume.size());
            println!("block {}", volume.block_size());
            println!("read-only {}", volume.is_read_only());
            println!("write-cache {}", volume.has_write_cache());
        }
        ("read", [offset, length]) => {
            let mut bytes = vec![0; length.parse()?];
            queue.read_at(&mut bytes, offset.parse()?)?;
            io::stdout().write_all(&bytes)?;
        }
        ("write", [offset]) => {
            let mut bytes = Vec::new();
            io::stdin().read_to_end(&mut bytes)?;
            queue.write_at(&bytes, offset.parse()?)?;
            queue.flush()?;
        }
        ("verify", [seed]) => verify(&volume, queue, seed.parse()?)?,
        ("hold", []) => hold(&volume, &mut queue)?,
        ("late", [slow]) => late(&volume, &mut queue, slow.parse()?)?,
        ("promise", [file]) => promise(&volume, &mut queue, file)?,
        ("allocations", []) => count_allocations(&volume, queue)?,
        _ => return Err(format!("no such command: {command}").into()),
    }
    Ok(())
}

fn key(file: &str) -> Result<Key> {
    let text = fs::read_to_string(format!("/etc/hcablk/keys/{file}"))?;
    let first = text.lines().next().unwrap_or("");
    Ok(first.parse()?)
}

/// Runs `f` and prints when the session is lost meanwhile, and when a new one has begun.
fn reporting<T>(volume: &Volume, f: impl FnOnce() -> T) -> T {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| report(volume, &is_done));
        let result = f();
        is_done.store(true, Ordering::Relaxed);
        result
    })
}

fn report(volume: &Volume, is_done: &AtomicBool) {
    let (mut is_lost, mut reconnects) = (false, 0);
    while !is_done.load(Ordering::Relaxed) {
        match volume.failure() {
            Some(failure) if !is_lost => println!("lost: {failure}"),
            _ => {}
        }
        is_lost = volume.failure().is_some();
        if !is_lost && volume.reconnects() != reconnects {
            reconnects = volume.reconnects();
            println!("reconnects {reconnects} over {}", volume.path());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn hold(volume: &Volume, queue: &mut Queue) -> Result<()> {
    println!("open");
    let mut block = vec![0; volume.block_size() as usize];
    let mut has_failed = false;
    reporting(volume, || loop {
        match queue.read_at(&mut block, 0) {
            Ok(()) if has_failed => {
                println!("works again");
                has_failed = false;
            }
            Ok(()) => {}
            Err(RequestError::Lost(_)) if queue.ended().is_some() => {
                println!("ended: {}", text_of(queue.ended()));
                return Ok(());
            }
            Err(RequestError::Lost(failure)) => {
                if !has_failed {
                    println!("failed: {failure}");
                }
                has_failed = true;
            }
            Err(error) => return Err(error.into()),
        }
        thread::sleep(Duration::from_millis(20));
    })
}

fn text_of(failure: Option<Failure>) -> String {
    failure.map_or_else(String::new, |failure| failure.to_string())
}

fn late(volume: &Volume, queue: &mut Queue, slow: u64) -> Result<()> {
    let mut other = volume.take_queue().ok_or("it needs two queues")?;
    let block = |byte| vec![byte; volume.block_size() as usize];
    let is_done = AtomicBool::new(false);
    reporting(volume, || {
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut read = block(0);
                while !is_done.load(Ordering::Relaxed) {
                    other.read_at(&mut read, 0)?;
                    thread::sleep(Duration::from_millis(20));
                }
                Ok::<_, RequestError>(())
            });
            let begin = Instant::now();
            let written = queue.write_at(&block(0xaa), slow);
            let ms = begin.elapsed().as_millis();
            let next = queue.write_at(&block(0xbb), 0);
            println!("late write: {}", describe(written));
            println!("milliseconds: {ms}");
            println!("next write: {}", describe(next));
            is_done.store(true, Ordering::Relaxed);
            let read = reader.join().map_err(|_| "a thread panicked")?;
            println!("reads: {}", describe(read));
            Ok(())
        })
    })
}

fn describe(result: std::result::Result<(), RequestError>) -> String {
    match result {
        Ok(()) => "kept".to_owned(),
        Err(error) => format!("{error}"),
    }
}

fn promise(volume: &Volume, queue: &mut Queue, file: &str) -> Result<()> {
    let block = vec![0x5a; volume.block_size() as usize];
    queue.write_at(&block, 0)?;
    println!("written");
    reporting(volume, || {
        while !std::path::Path::new(file).exists() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    for _ in 0..2 {
        println!("flush: {}", describe(queue.flush()));
    }
    let mut memory = volume.memory(block.len())?;
    memory.copy_from_slice(&block);
    let durable = queue.execute(Request::write(0, memory).fua());
    println!("fua: {}", describe(durable.result));
    println!("write: {}", describe(queue.write_at(&block, 0)));
    Ok(())
}

/// Prints how often the queue's thread allocates for requests of each kind, after the first few.
fn count_allocations(volume: &Volume, mut queue: Queue) -> Result<()> {
    for (length, at_a_time, rounds) in [(4096, 32, 50), (1 << 20, 4, 5)] {
        let mut lists = Vec::with_capacity(at_a_time);
        for _ in 0..at_a_time {
            lists.push(vec![volume.memory(length)?]);
        }
        for write in [true, false] {
            let mut outcome = Ok(());
            let mut round = || {
                for (place, list) in (0..).zip(lists.drain(..)) {
                    let offset = place * length as u64;
                    let request = match write {
                        true => Request::write_gathered(offset, list),
                        false => Request::read_scattered(offset, list),
                    };
                    if let Err(refused) = queue.prepare(request) {
                        outcome = Err(refused.0);
                    }
                }
                while queue.in_flight() != 0 {
                    queue.poll();
                }
                while let Some(done) = queue.completed() {
                    outcome = outcome.and(done.result);
                    lists.push(done.memory);
                }
            };
            (0..3).for_each(|_| round());
            let count = allocations::during(|| (0..rounds).for_each(|_| round()));
            outcome?;
            let what = if write { "writes" } else { "reads" };
            let requests = at_a_time * rounds;
            println!("{count} for {requests} {what} of {length} bytes");
        }
    }
    let mut bytes = vec![0; 4096];
    for _ in 0..2 {
        queue.write_at(&bytes, 0)?;
        queue.read_at(&mut bytes, 0)?;
    }
    let mut outcome = Ok(());
    let count = allocations::during(|| {
        outcome = queue
            .write_at(&bytes, 0)
            .and_then(|()| queue.read_at(&mut bytes, 0));
    });
    outcome?;
    println!("{count} for synchronous calls");
    Ok(())
}

/// A pseudorandom sequence: the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Fills bytes from `offset` of the volume with the content of `version`.
fn fill(bytes: &mut [u8], offset: u64, version: u64) {
    for (at, byte) in (offset..).zip(bytes) {
        let mut word = (at / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ version.wrapping_mul(0xff51_afd7_ed55_8ccd);
        word ^= word >> 29;
        *byte = word.to_le_bytes()[usize::try_from(at % 8).unwrap_or(0)];
    }
}

fn check(bytes: &[u8], offset: u64, version: u64, what: &str) -> Result<()> {
    let mut wanted = vec![0; bytes.len()];
    fill(&mut wanted, offset, version);
    match bytes
        .iter()
        .zip(&wanted)
        .position(|(is, wanted)| is != wanted)
    {
        None => Ok(()),
        Some(at) => Err(format!(
            "{what}: byte {} of the volume, {at} of {}, is wrong",
            offset + at as u64,
            bytes.len()
        )
        .into()),
    }
}

fn verify(volume: &Volume, first: Queue, seed: u64) -> Result<()> {
    let block = u64::from(volume.block_size());
    let mut queues = vec![first];
    queues.extend(std::iter::from_fn(|| volume.take_queue()));
    if volume.size() < AREA * queues.len() as u64 {
        return Err("the volume is too small".into());
    }
    let workers: Vec<_> = (0..)
        .zip(queues)
        .map(|(n, queue)| {
            let area = n * AREA..(n + 1) * AREA;
            thread::spawn(move || {
                let mut verify = Verify {
                    queue,
                    area,
                    block,
                    random: Random(seed.wrapping_add(n).max(1)),
                    version: seed,
                    count: 0,
                };
                verify.run().map(|()| verify.count)
            })
        })
        .collect();
    let mut count = 0;
    for worker in workers {
        count += worker.join().map_err(|_| "a thread panicked")??;
    }
    println!("{count} requests");
    Ok(())
}

struct Verify {
    queue: Queue,
    area: Range<u64>,
    block: u64,
    random: Random,
    version: u64,
    count: u64,
}

impl Verify {
    fn run(&mut self) -> Result<()> {
        for notice in [Notice::Polled, Notice::Event] {
            self.queue.set_notice(notice);
            self.synchronous()?;
            for length in self.lengths() {
                self.shapes(notice, length)?;
            }
            self.many(notice)?;
            self.durable(notice)?;
            self.without_data()?;
        }
        self.refused()
    }

    /// Returns lengths around the limits of all data paths.
    fn lengths(&self) -> Vec<usize> {
        let block = usize::try_from(self.block).unwrap_or(512);
        let mut lengths = Vec::new();
        for at in [
            block,
            4096,
            8192,
            16384,
            32768,
            65536,
            131_072,
            1 << 20,
            3 << 19,
        ] {
            lengths.extend([at.saturating_sub(block), at, at + block]);
        }
        lengths.retain(|length| *length != 0);
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    }

    fn place(&mut self, length: usize) -> u64 {
        let blocks = (self.area.end - self.area.start - length as u64) / self.block;
        self.area.start + self.random.below(blocks + 1) * self.block
    }

    fn synchronous(&mut self) -> Result<()> {
        for length in self.lengths().into_iter().chain([(3 << 20) + 4096]) {
            let offset = self.place(length);
            self.version += 1;
            let mut bytes = vec![0; length];
            fill(&mut bytes, offset, self.version);
            self.queue.write_at(&bytes, offset)?;
            bytes.fill(0);
            self.queue.read_at(&mut bytes, offset)?;
            check(&bytes, offset, self.version, "synchronously")?;
            self.count += 2;
        }
        Ok(())
    }

    /// Splits memory of `length` bytes in one of several ways; pieces are not adjacent.
    fn pieces(&mut self, way: u64, length: usize) -> Result<Vec<Buffer>> {
        /// Bytes between pieces, and the most pieces.
        const GAP: usize = 24;
        const MOST: usize = 300;
        let mut left = length;
        let mut sizes = Vec::new();
        while left != 0 {
            let most = match way {
                0 => length,
                1 => 512,
                2 => 4096,
                3 => 1 + usize::try_from(self.random.below(3000))?,
                4 => 65536 + 100,
                _ => 1 + usize::try_from(self.random.below(left as u64))?,
            };
            let size = if sizes.len() == MOST {
                left
            } else {
                most.min(left)
            };
            sizes.push(size);
            left -= size;
        }
        let mut arena = self.queue.memory(length + GAP * sizes.len())?;
        let pieces = sizes.into_iter().map(|size| {
            let rest = arena.split_off(GAP + size);
            let piece = arena.split_off(GAP);
            arena = rest;
            piece
        });
        Ok(pieces.collect())
    }

    /// Writes memory of each shape, and reads it as a different shape.
    fn shapes(&mut self, notice: Notice, length: usize) -> Result<()> {
        for way in 0..6 {
            let offset = self.place(length);
            self.version += 1;
            let mut at = offset;
            let mut memory = self.pieces(way, length)?;
            for piece in &mut memory {
                fill(piece, at, self.version);
                at += piece.len() as u64;
            }
            let shape = format!("{length} bytes at {offset} as shape {way}, {notice:?}");
            let done = self.queue.execute(Request::write_gathered(offset, memory));
            done.result
                .map_err(|error| format!("write of {shape}: {error}"))?;
            let memory = self.pieces(5 - way, length)?;
            let done = self.queue.execute(Request::read_scattered(offset, memory));
            done.result
                .map_err(|error| format!("read of {shape}: {error}"))?;
            at = offset;
            for piece in &done.memory {
                check(piece, at, self.version, &shape)?;
                at += piece.len() as u64;
            }
            self.count += 2;
        }
        Ok(())
    }

    /// Keeps many requests in flight at a time; within a round no two are for the same place.
    fn many(&mut self, notice: Notice) -> Result<()> {
        const SLOT: u64 = 64 << 10;
        let slots = (self.area.end - self.area.start) / SLOT;
        let mut memory: Vec<_> = (0..slots)
            .map(|slot| {
                let blocks = 1 + self.random.below(SLOT / self.block);
                let blocks = if slot % 2 == 0 {
                    4096 / self.block
                } else {
                    blocks
                };
                Ok((
                    slot,
                    self.queue.memory(usize::try_from(blocks * self.block)?)?,
                ))
            })
            .collect::<Result<_>>()?;
        self.version += 1;
        for write in [true, false] {
            let flag = Flag::new();
            let count = memory.len();
            for (slot, mut buffer) in memory.drain(..) {
                let offset = self.area.start + slot * SLOT;
                let request = if write {
                    fill(&mut buffer, offset, self.version);
                    Request::write(offset, buffer)
                } else {
                    buffer.fill(0);
                    Request::read(offset, buffer)
                };
                // All requests share one flag, which the first to end sets.
                let request = request.notice(notice).user_data(slot).flag(&flag);
                self.queue.prepare(request).map_err(|refused| refused.0)?;
            }
            while memory.len() != count {
                match notice {
                    Notice::Polled => self.queue.poll(),
                    Notice::Event => self.queue.wait(Duration::from_secs(60)),
                };
                while let Some(done) = self.queue.completed() {
                    done.result?;
                    let buffer = done
                        .memory
                        .into_iter()
                        .next()
                        .ok_or("no memory came back")?;
                    memory.push((done.user_data, buffer));
                }
            }
            if !flag.is_set() {
                return Err("a flag was not set".into());
            }
            self.count += count as u64;
        }
        for (slot, buffer) in memory {
            check(
                &buffer,
                self.area.start + slot * SLOT,
                self.version,
                "of many",
            )?;
        }
        Ok(())
    }

    /// Checks writes that are durable when they are acknowledged, and a flush.
    fn durable(&mut self, notice: Notice) -> Result<()> {
        for length in [4096, 20480, 65536] {
            let offset = self.place(length);
            self.version += 1;
            let mut memory = self.queue.memory(length)?;
            fill(&mut memory, offset, self.version);
            let request = Request::write(offset, memory).fua().notice(notice);
            self.queue.execute(request).result?;
            let mut bytes = vec![0; length];
            self.queue.read_at(&mut bytes, offset)?;
            check(&bytes, offset, self.version, "durably")?;
        }
        self.queue.flush()?;
        self.count += 7;
        Ok(())
    }

    fn without_data(&mut self) -> Result<()> {
        let length = 65536 + usize::try_from(self.block)?;
        let offset = self.place(length);
        let zeroes = Request::zeroes(offset, length as u64, true);
        match self.queue.execute(zeroes).result {
            Ok(()) => {
                let mut bytes = vec![1; length];
                self.queue.read_at(&mut bytes, offset)?;
                if bytes.iter().any(|byte| *byte != 0) {
                    return Err("what was zeroed is not zero".into());
                }
            }
            Err(RequestError::Unsupported) => {}
            Err(error) => return Err(error.into()),
        }
        match self
            .queue
            .execute(Request::discard(offset, length as u64))
            .result
        {
            Ok(()) | Err(RequestError::Unsupported) => {}
            Err(error) => return Err(error.into()),
        }
        self.count += 3;
        Ok(())
    }

    fn refused(&mut self) -> Result<()> {
        let memory = self.queue.memory(4096)?;
        let far = (1 << 62) / self.block * self.block;
        let done = self.queue.execute(Request::read(far, memory));
        if done.result != Err(RequestError::OutOfRange) {
            return Err(format!("beyond the end: {:?}", done.result).into());
        }
        let memory = self.queue.memory(100)?;
        let refused = self.queue.submit(Request::read(0, memory));
        match refused.map_err(|refused| refused.0) {
            Err(RequestError::Invalid(_)) => Ok(()),
            other => Err(format!("100 bytes: {other:?}").into()),
        }
    }
}
