// SPDX-License-Identifier: GPL-2.0

//! Streams of requests, made from a seed.

use crate::cli::{Workload, WorkloadArgs};
use crate::policy::{Lru, Policy as _};
use crate::trace::Request;
use hcablk_core::logic::mq::lines::LINE_SHIFT;

/// On average one of this many requests of a scan stream begins a scan.
const SCAN_EVERY: u64 = 2_000;
/// Lines of a scan.
const SCAN_LINES: u64 = 1_000;

/// Reproducible random numbers (splitmix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Returns a random number from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Lines in Zipf's distribution; which lines are popular is random.
struct Zipf {
    /// For each rank, the sum of the probabilities up to it.
    sums: Vec<f64>,
    lines: Vec<u64>,
}

impl Zipf {
    fn new(lines: u32, skew: f64, rng: &mut Rng) -> Self {
        let mut sum = 0.0;
        let mut sums = Vec::new();
        for rank in 1..=lines {
            sum += f64::from(rank).powf(-skew);
            sums.push(sum);
        }
        let mut order: Vec<_> = (0..u64::from(lines)).collect();
        for i in (1..order.len()).rev() {
            let j = rng.below(i as u64 + 1);
            order.swap(i, usize::try_from(j).unwrap_or(i));
        }
        Self { sums, lines: order }
    }

    fn next(&self, rng: &mut Rng) -> u64 {
        let wanted = rng.fraction() * self.sums.last().copied().unwrap_or(0.0);
        let rank = self.sums.partition_point(|sum| *sum <= wanted);
        self.lines[rank.min(self.lines.len() - 1)]
    }
}

/// Makes the stream.
pub(crate) fn generate(args: &WorkloadArgs) -> Vec<Request> {
    let mut rng = Rng(args.seed);
    let zipf = Zipf::new(args.lines, args.skew, &mut rng);
    let mut client = Lru::new(args.client as usize);
    let mut scan = 0..0;
    let mut requests = Vec::with_capacity(args.requests as usize);
    let mut tries = 0u64;
    while requests.len() < args.requests as usize {
        let line = match args.workload {
            Workload::Loop => requests.len() as u64 % u64::from(args.lines),
            Workload::Scan => scan.next().unwrap_or_else(|| {
                if rng.below(SCAN_EVERY) == 0 {
                    // Beyond all other lines, at a random place, so that two scans hardly ever
                    // share a line.
                    let from = u64::from(args.lines) + rng.below(1 << 20) * SCAN_LINES;
                    scan = from..from + SCAN_LINES;
                }
                zipf.next(&mut rng)
            }),
            Workload::SecondLevel => zipf.next(&mut rng),
        };
        tries += 1;
        // With a client's cache that holds everything this loop would never end.
        let patient = tries < 1_000 * (requests.len() as u64 + 1_000);
        if args.workload != Workload::Loop && client.access(line) && patient {
            continue;
        }
        requests.push(Request {
            write: rng.below(100) < args.writes.into(),
            offset: line << LINE_SHIFT,
            length: 1 << LINE_SHIFT,
        });
    }
    requests
}
