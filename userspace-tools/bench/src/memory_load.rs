// SPDX-License-Identifier: GPL-2.0

//! A memory-bound computation, like the triad of STREAM: `a[i] = b[i] + 3 * c[i]` over arrays that exceed every cache.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Elements of each of a thread's three arrays: 16 MiB, 48 MiB in all.
const ELEMENTS: usize = 2 << 20;
/// The number of elements that a thread processes between two checks of the flag.
const PIECE: usize = 64 << 10;
/// The bytes that are moved for each element: two reads and a write.
const BYTES_EACH: u64 = 24;

/// The threads that compute, until this object is dropped.
pub(crate) struct MemoryLoad {
    end: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    since: (Instant, u64),
}

impl MemoryLoad {
    /// Starts this many threads, and returns when each has touched its memory.
    pub(crate) fn start(threads: usize) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let bytes = Arc::new(AtomicU64::new(0));
        let ready = Arc::new(std::sync::Barrier::new(threads + 1));
        let threads = (0..threads)
            .map(|_| {
                let (end, bytes, ready) =
                    (Arc::clone(&end), Arc::clone(&bytes), Arc::clone(&ready));
                thread::spawn(move || compute(&end, &bytes, &ready))
            })
            .collect();
        ready.wait();
        Self {
            end,
            bytes,
            threads,
            since: (Instant::now(), 0),
        }
    }

    /// Returns the bytes moved in each second since it began, or since this was called last.
    pub(crate) fn rate(&mut self) -> f64 {
        let now = (Instant::now(), self.bytes.load(Ordering::Relaxed));
        let (began, before) = std::mem::replace(&mut self.since, now);
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let bytes = (now.1 - before) as f64;
        bytes / now.0.duration_since(began).as_secs_f64().max(1e-9)
    }
}

impl Drop for MemoryLoad {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn compute(end: &AtomicBool, bytes: &AtomicU64, ready: &std::sync::Barrier) {
    let mut to = vec![0.0_f64; ELEMENTS];
    let (left, right) = (vec![1.0_f64; ELEMENTS], vec![2.0_f64; ELEMENTS]);
    ready.wait();
    loop {
        let pieces = to
            .chunks_mut(PIECE)
            .zip(left.chunks(PIECE))
            .zip(right.chunks(PIECE));
        for ((to, left), right) in pieces {
            if end.load(Ordering::Relaxed) {
                return;
            }
            triad(to, left, right);
            std::hint::black_box(&to);
            bytes.fetch_add(BYTES_EACH * PIECE as u64, Ordering::Relaxed);
        }
    }
}

fn triad(to: &mut [f64], left: &[f64], right: &[f64]) {
    for ((to, left), right) in to.iter_mut().zip(left).zip(right) {
        *to = left + 3.0 * right;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_triad_is_computed_and_counted() {
        let mut to = [0.0; 3];
        triad(&mut to, &[1.0, 2.0, 3.0], &[1.0, 0.0, -1.0]);
        assert_eq!(
            to.map(|x: f64| x.to_bits()),
            [4.0_f64, 2.0, 0.0].map(f64::to_bits)
        );
        let mut load = MemoryLoad::start(2);
        while load.bytes.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        assert!(load.rate() > 0.0);
    }
}
