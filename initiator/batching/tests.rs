// SPDX-License-Identifier: GPL-2.0

//! Tests of interrupt batching, on the host.

use super::*;

/// Pseudo-random numbers, the same in every run (splitmix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

enum Completion {
    Response(Solicited),
    /// The response to a request that then awaits its send's completion.
    EarlyResponse(Solicited),
    OwnWork,
}

/// A queue with its completion queue, armed as the driver arms it.
struct Queue {
    batching: Batching,
    outstanding: Vec<Solicited>,
    /// Completions that were not seen yet.
    unseen: Vec<Completion>,
    /// Requests that await their send's completion.
    awaiting_send: usize,
    solicited_armed: bool,
    any_armed: bool,
    /// The timer runs.
    guarded: bool,
    /// An event was raised and not handled yet.
    event: bool,
    events: usize,
    seen: usize,
}

impl Queue {
    fn new(upper: u32, lower: u32) -> Self {
        Self {
            batching: Batching::new(upper, lower),
            outstanding: Vec::new(),
            unseen: Vec::new(),
            awaiting_send: 0,
            solicited_armed: true,
            any_armed: false,
            guarded: false,
            event: false,
            events: 0,
            seen: 0,
        }
    }

    fn issue(&mut self, last: bool) {
        let solicited = self.batching.issue(last);
        self.guarded |= solicited == Solicited::No;
        self.outstanding.push(solicited);
    }

    fn respond(&mut self, i: usize) {
        let solicited = self.outstanding.remove(i);
        self.complete(Completion::Response(solicited), solicited == Solicited::Yes);
    }

    fn respond_early(&mut self, i: usize) {
        let solicited = self.outstanding.remove(i);
        self.complete(
            Completion::EarlyResponse(solicited),
            solicited == Solicited::Yes,
        );
    }

    fn end_own_work(&mut self) {
        self.awaiting_send -= 1;
        self.complete(Completion::OwnWork, false);
    }

    fn complete(&mut self, completion: Completion, solicited: bool) {
        self.unseen.push(completion);
        if self.any_armed || self.solicited_armed && solicited {
            self.raise();
        }
    }

    fn raise(&mut self) {
        (self.any_armed, self.solicited_armed) = (false, false);
        self.event = true;
        self.events += 1;
    }

    /// The first part of a round: takes the completions, and returns what to arm for.
    fn look(&mut self) -> ArmFor {
        self.event = false;
        for completion in self.unseen.drain(..) {
            match completion {
                Completion::Response(solicited) => {
                    self.batching.responded(solicited);
                    self.seen += 1;
                }
                Completion::EarlyResponse(solicited) => {
                    self.batching.responded(solicited);
                    self.batching.await_send();
                    self.awaiting_send += 1;
                }
                Completion::OwnWork => {
                    self.batching.sends_completed(1);
                    self.seen += 1;
                }
            }
        }
        self.batching.outstanding().arm_for()
    }

    /// The second part: the device raises an event if a completion has come in between.
    fn arm(&mut self, arm_for: ArmFor) {
        self.solicited_armed = true;
        self.any_armed |= arm_for == ArmFor::Any;
        self.guarded |= arm_for == ArmFor::SolicitedOrTimer;
        self.event |= !self.unseen.is_empty();
    }

    fn follow(&mut self) {
        while self.event {
            let arm_for = self.look();
            self.arm(arm_for);
        }
    }

    /// Every request gets its response, and no new one is issued.
    fn fall_silent(&mut self, rng: &mut Rng) {
        self.follow();
        while self.outstanding.len() + self.awaiting_send != 0 {
            match rng.below(3) {
                0 if self.awaiting_send != 0 => self.end_own_work(),
                1 if !self.outstanding.is_empty() => {
                    self.respond_early(rng.below(self.outstanding.len()));
                }
                2 if !self.outstanding.is_empty() => {
                    self.respond(rng.below(self.outstanding.len()));
                }
                _ => continue,
            }
            self.follow();
        }
    }
}

const THRESHOLDS: [(u32, u32); 9] = [
    (0, 0),
    (1, 0),
    (1, 1),
    (2, 1),
    (8, 8),
    (16, 4),
    (32, 16),
    (1024, 0),
    (5, 1024),
];

#[test]
fn a_burst_of_any_length_is_seen_to_its_end() {
    for (upper, lower) in THRESHOLDS {
        for burst in 1..200 {
            let mut q = Queue::new(upper, lower);
            (0..burst).for_each(|n| q.issue(n % 16 == 15));
            // Responses come in order; the event is handled only after all of them.
            (0..burst).for_each(|_| q.respond(0));
            q.follow();
            assert_eq!(q.seen, burst, "{upper} {lower}");
        }
    }
}

#[test]
fn nothing_is_stranded_whatever_happens() {
    for (upper, lower) in THRESHOLDS {
        for seed in 0..300 {
            let mut rng = Rng(seed);
            let mut q = Queue::new(upper, lower);
            let mut issued = 0;
            let depth = 1 + rng.below(150);
            for _ in 0..rng.below(600) {
                match rng.below(10) {
                    8 if !q.outstanding.is_empty() => {
                        let i = rng.below(q.outstanding.len());
                        q.respond_early(i);
                    }
                    9 if q.awaiting_send != 0 => q.end_own_work(),
                    0..=3 if q.outstanding.len() + q.unseen.len() < depth => {
                        q.issue(rng.below(3) == 0);
                        issued += 1;
                    }
                    4 | 5 if !q.outstanding.is_empty() => {
                        let i = rng.below(q.outstanding.len());
                        q.respond(i);
                    }
                    6 => q.follow(),
                    // A round, started by an event or by an issuer, with other tasks at work
                    // between its parts.
                    7 if q.event || q.batching.shall_reap() => {
                        let arm_for = q.look();
                        for _ in 0..rng.below(4) {
                            if rng.below(2) == 0 {
                                q.issue(rng.below(3) == 0);
                                issued += 1;
                            } else if !q.outstanding.is_empty() {
                                let i = rng.below(q.outstanding.len());
                                q.respond(i);
                            }
                        }
                        q.arm(arm_for);
                    }
                    _ => {}
                }
            }
            q.fall_silent(&mut rng);
            assert_eq!(q.seen, issued, "{upper} {lower} seed {seed}");
            assert!(q.unseen.is_empty());
            assert_eq!(q.batching.outstanding().arm_for(), ArmFor::Solicited);
        }
    }
}

#[test]
fn a_slow_solicited_one_keeps_nobody_waiting_beyond_the_guard() {
    for (upper, lower) in THRESHOLDS {
        for seed in 0..300 {
            let mut rng = Rng(seed);
            let mut q = Queue::new(upper, lower);
            // None of the solicited requests gets a response, except perhaps the first.
            for n in 0..1 + rng.below(150) {
                q.issue(rng.below(8) == 0);
                let quiet = q.outstanding.iter().position(|v| *v == Solicited::No);
                match (rng.below(3), quiet) {
                    (0, Some(i)) => q.respond(i),
                    (1, _) if n == 0 => q.respond(0),
                    _ => {}
                }
                if rng.below(4) == 0 {
                    q.follow();
                }
            }
            while let Some(i) = q.outstanding.iter().position(|v| *v == Solicited::No) {
                q.respond(i);
            }
            q.follow();
            assert!(q.unseen.is_empty() || q.guarded, "{upper} {lower} {seed}");
            // The timer expires.
            q.event = q.guarded;
            q.follow();
            assert!(q.unseen.is_empty(), "{upper} {lower} {seed}");
            assert_ne!(q.batching.outstanding().arm_for(), ArmFor::Any);
        }
    }
}

#[test]
fn one_at_a_time_each_interrupts() {
    for (upper, lower) in THRESHOLDS {
        let mut q = Queue::new(upper, lower);
        for n in 1..100 {
            q.issue(true);
            q.respond(0);
            q.follow();
            assert_eq!((q.events, q.seen), (n, n), "{upper} {lower}");
        }
    }
}

#[test]
fn one_that_awaits_its_send_ends_at_once_unless_batched() {
    for (upper, lower) in THRESHOLDS {
        let mut q = Queue::new(upper, lower);
        q.issue(true);
        q.issue(true);
        q.respond_early(0);
        q.follow();
        q.end_own_work();
        q.follow();
        if upper == 0 || upper > 2 {
            assert_eq!((q.events, q.seen), (2, 1), "{upper} {lower}");
        }
        q.respond(0);
        q.follow();
        assert_eq!(q.seen, 2, "{upper} {lower}");
    }
}

#[test]
fn without_a_threshold_each_interrupts() {
    let mut batching = Batching::new(0, 16);
    for _ in 0..1000 {
        assert_eq!(batching.issue(false), Solicited::Yes);
        assert!(!batching.shall_reap());
    }
}

/// Returns the events of `depth` requests issued in batches of `batch` as responses come, `round`
/// at a time.
fn events(depth: usize, batch: usize, round: usize) -> usize {
    const REQUESTS: usize = 19_200;
    let mut q = Queue::new(32, 16);
    let mut issued = 0;
    while issued < REQUESTS {
        while issued - q.seen + batch <= depth {
            (0..batch).for_each(|n| q.issue(n + 1 == batch));
            issued += batch;
        }
        let seen = q.seen;
        while q.seen < seen + batch {
            for _ in 0..round.min(q.outstanding.len()) {
                q.respond(0);
                q.follow();
            }
        }
    }
    q.events * 1000 / REQUESTS
}

#[test]
fn with_64_outstanding_fewer_than_one_in_twenty_interrupt() {
    for depth in [64, 128, 1024] {
        for round in [1, 4, 8, 12, 16, 24, 32] {
            let per_mille = events(depth, 16, round);
            assert!(per_mille <= 50, "{depth} {round}: {per_mille}");
        }
    }
    // The same if requests are issued one at a time, and few responses come at a time.
    for round in [1, 4, 8, 16] {
        let per_mille = events(64, 1, round);
        assert!(per_mille <= 50, "{round}: {per_mille}");
    }
}

#[test]
fn batching_begins_at_the_upper_threshold() {
    let mut batching = Batching::new(32, 16);
    for n in 1..32 {
        assert_eq!(batching.issue(false), Solicited::Yes, "{n}");
    }
    assert_eq!(batching.issue(false), Solicited::No);
}

/// Lets this many requests of each kind wait for their responses.
fn wait_for(batching: &mut Batching, solicited: u64, unsolicited: u64) {
    let rest = batching.outstanding.word() & !u64::from(u32::MAX);
    batching.outstanding = Outstanding::from_word(rest | unsolicited << 16 | solicited);
}

#[test]
fn the_word_holds_each_count() {
    let mut batching = Batching::new(1024, 0);
    let mut issued = Vec::new();
    for n in 1..=1024 {
        issued.push(batching.issue(true));
        assert_eq!(
            Outstanding::from_word(batching.outstanding().word()).requests(),
            n
        );
        assert_eq!(batching.outstanding.is_batched(), n == 1024);
    }
    for (n, solicited) in (1..).zip(issued) {
        batching.responded(solicited);
        batching.await_send();
        let now = batching.outstanding();
        assert_eq!((now.requests(), now.awaiting_send()), (1024 - n, n));
        assert_eq!(now.is_idle(), n == 1024);
        assert!(now.is_batched());
    }
    assert_eq!(batching.outstanding().arm_for(), ArmFor::Any);
    batching.sends_completed(1023);
    assert_eq!(batching.outstanding().awaiting_send(), 1);
    // More than are awaiting their sends.
    batching.sends_completed(2);
    assert_eq!(batching.outstanding().word(), Outstanding::BATCHED);
    assert_eq!(batching.outstanding().arm_for(), ArmFor::Solicited);
}

#[test]
fn the_queue_is_armed_for_the_outstanding_requests() {
    let (yes, no) = (Outstanding::SOLICITED, Outstanding::UNSOLICITED);
    let (send, batched) = (Outstanding::AWAITING_SEND, Outstanding::BATCHED);
    for (word, wanted) in [
        (0, ArmFor::Solicited),
        (batched, ArmFor::Solicited),
        (3 * yes, ArmFor::Solicited),
        (batched + 3 * yes, ArmFor::Solicited),
        (2 * no, ArmFor::Any),
        (batched + 2 * no, ArmFor::Any),
        (yes + 2 * no, ArmFor::SolicitedOrTimer),
        (batched + yes + 2 * no, ArmFor::SolicitedOrTimer),
        (send, ArmFor::Any),
        (send + yes, ArmFor::Any),
        (send + yes + no, ArmFor::Any),
        (batched + send, ArmFor::Any),
        (batched + send + no, ArmFor::Any),
        (batched + send + yes, ArmFor::SolicitedOrTimer),
    ] {
        assert_eq!(Outstanding::from_word(word).arm_for(), wanted, "{word:#x}");
    }
}

#[test]
fn batching_ends_when_it_stays_below_the_lower_threshold() {
    let mut batching = Batching::new(8, 4);
    (0..20).for_each(|_| drop(batching.issue(false)));
    wait_for(&mut batching, 1, 1);
    for _ in 0..7 {
        batching.issue(false);
        assert!(batching.outstanding.is_batched());
        wait_for(&mut batching, 1, 1);
    }
    batching.issue(false);
    assert!(!batching.outstanding.is_batched(), "eight in a row");
    wait_for(&mut batching, 5, 1);
    assert_eq!(
        batching.issue(false),
        Solicited::Yes,
        "not the upper one yet"
    );
    wait_for(&mut batching, 6, 1);
    assert_eq!(batching.issue(false), Solicited::No);
}

#[test]
fn an_issuer_reaps_at_intervals() {
    let mut batching = Batching::new(8, 4);
    let looks = (0..160).filter(|_| {
        batching.issue(false);
        batching.shall_reap()
    });
    assert_eq!(looks.count(), 10);
    batching.responded(Solicited::Yes);
    for _ in 1..REAP {
        batching.issue(false);
        assert!(!batching.shall_reap(), "a response was seen");
    }
    batching.issue(false);
    assert!(batching.shall_reap());
}
