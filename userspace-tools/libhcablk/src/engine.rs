// SPDX-License-Identifier: GPL-2.0

//! The account of a queue: the requests in flight, the work requests that may be sent, and the consequences of each
//! response and completion. Pure: it sees messages and numbers, no verbs.
//!
//! ```text
//!          issue()                    response, key invalid or none
//!  Free ────────────► Sent ───────────────────────────────────────────────► ended
//!                      │      response, own work not completed    completion   ▲
//!                      ├──────────────────────────────► Awaiting ──────────────┤
//!                      └──response, key valid: LOCAL_INV──► Awaiting ──────────┘
//! ```
//!
//! A request ends when neither the target nor this host's device can reach its memory any more.

use hcablk_core::{
    proto::{
        credits::Credits,
        eager_ring::{open_writes, EagerResponses, EagerRingGrant, Ring, RingSlot, Taken},
        message::{IoResponse, Status, Tag},
    },
    rdma::space::SendSpace,
};

/// Send queue slots of a request with a window: to bind, to send, and to invalidate.
pub(crate) const WINDOW_SLOTS: u32 = 3;

/// The rule that the target has broken.
pub(crate) type Violation = &'static str;

/// How the data of a request moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataPath {
    /// The request has no data.
    None,
    /// This many bytes, to the slot of its tag.
    Slot(u32),
    /// In the message that is work request `seq`.
    Inline { seq: u32 },
    /// To the eager ring, before work request `seq` or with it.
    Eager { seq: u32 },
    /// Through a window with this key.
    Window { key: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    /// [`Engine::issue`] returned it, and it is not sent yet.
    Issued,
    Sent(DataPath),
    /// The response with `status` has arrived; the request ends when work request `seq` has
    /// completed.
    Awaiting {
        status: Status,
        seq: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    phase: Phase,
    generation: u16,
}

/// A signaled work request, whose completion also stands for those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signal {
    /// The number of the work request, modulo 2^32.
    pub(crate) seq: u32,
    /// Send queue slots that its completion frees.
    pub(crate) frees: u16,
}

/// The invalidated key, or the data, that a response brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    Nothing,
    /// An invalidation of this key.
    Invalidation(u32),
    /// This many bytes in the memory that the request named.
    Data(u32),
}

/// The consequence of a response or a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The request of this tag has ended.
    End(u16, Status),
    /// The window of this tag must be invalidated, by a work request with this signal.
    Invalidate(u16, Signal),
}

/// The account of a queue; see the module.
#[derive(Debug)]
pub(crate) struct Engine {
    tags: Vec<Slot>,
    free: Vec<u16>,
    credits: Credits,
    space: SendSpace,
    /// Slots of the send queue that completions have freed, modulo 2^32.
    freed: u32,
    ring: Ring<Vec<Taken>>,
    grant: Option<EagerRingGrant>,
    /// The target has sent a message on this queue pair: the ring may be written to.
    is_open: bool,
    last_seq: u32,
    completed_seq: u32,
    awaiting: Vec<u16>,
}

impl Engine {
    /// Makes the account of a queue for `depth` concurrent requests, with the granted `credits` and ring, and `sends`
    /// slots in its send queue.
    pub(crate) fn new(depth: u16, credits: u16, grant: Option<EagerRingGrant>, sends: u32) -> Self {
        let free = Slot {
            phase: Phase::Free,
            generation: 0,
        };
        let taken = vec![Taken::default(); open_writes(credits)];
        Self {
            tags: vec![free; depth.into()],
            free: (0..depth).rev().collect(),
            credits: Credits::new(credits),
            space: SendSpace::new(sends, (u32::from(depth) / 4).clamp(1, 32)),
            freed: 0,
            ring: Ring::new(grant.map_or(0, |grant| grant.bytes), credits, taken),
            grant,
            is_open: false,
            last_seq: 0,
            completed_seq: 0,
            awaiting: Vec::with_capacity(depth.into()),
        }
    }

    /// Takes a tag, a credit and `slots` slots of the send queue; `None`: one of them is missing.
    pub(crate) fn issue(&mut self, slots: u32) -> Option<Tag> {
        let index = *self.free.last()?;
        let freed = self.freed;
        if !self.space.reserve(slots, || freed) {
            return None;
        }
        if !self.credits.take() {
            self.space.release(slots);
            return None;
        }
        self.free.pop();
        let slot = self.tags.get_mut(usize::from(index))?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.phase = Phase::Issued;
        Some(Tag {
            index,
            generation: slot.generation,
        })
    }

    /// Cancels a request that was issued and is not sent, and frees its `slots`.
    pub(crate) fn cancel(&mut self, tag: Tag, slots: u32) {
        if let Some(slot) = self.tags.get_mut(usize::from(tag.index)) {
            slot.phase = Phase::Free;
            self.free.push(tag.index);
            self.space.release(slots);
            // The credit was taken a moment ago, so the account can take it back.
            let _ = self.credits.grant(1);
            let _ = self.credits.responded();
        }
    }

    /// Takes a slot of the eager ring for an issued request; `None`: its data must move differently.
    pub(crate) fn eager_slot(
        &mut self,
        tag: Tag,
        length: u32,
    ) -> Option<(RingSlot, EagerRingGrant)> {
        let grant = self.grant.filter(|_| self.is_open)?;
        let slot = self.ring.take_slot(length, tag.to_immediate())?;
        Some((slot, grant))
    }

    /// Frees send queue slots that a request was issued with and does not use.
    pub(crate) fn release_slots(&mut self, count: u32) {
        self.space.release(count);
    }

    /// Assigns a number to a signaled work request, the last of `slots`.
    pub(crate) fn signal(&mut self, slots: u32) -> Signal {
        let frees = self.space.post_signaled(slots);
        self.number(frees)
    }

    /// As [`Self::signal`]; `None`: the work request need not be signaled.
    pub(crate) fn signal_if_due(&mut self, slots: u32) -> Option<Signal> {
        self.space.post(slots).map(|frees| self.number(frees))
    }

    fn number(&mut self, frees: u16) -> Signal {
        self.last_seq = self.last_seq.wrapping_add(1);
        Signal {
            seq: self.last_seq,
            frees,
        }
    }

    /// Records how an issued request is sent.
    pub(crate) fn sent(&mut self, tag: Tag, data_path: DataPath) {
        if let Some(slot) = self.tags.get_mut(usize::from(tag.index)) {
            slot.phase = Phase::Sent(data_path);
        }
    }

    /// Returns whether no request is in flight.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.tags.len()
    }

    /// Returns whether a request that has its response waits for a work request of this side, whose
    /// completion is not solicited.
    pub(crate) fn awaits_sends(&self) -> bool {
        !self.awaiting.is_empty()
    }

    fn is_completed(&self, seq: u32) -> bool {
        self.completed_seq.wrapping_sub(seq) < 1 << 31
    }

    /// Handles a message of the target; `invalidated` is the key that it invalidated, if any.
    pub(crate) fn message(
        &mut self,
        bytes: &[u8],
        invalidated: Option<u32>,
        then: &mut Vec<Then>,
    ) -> Result<(), Violation> {
        if EagerResponses::is(bytes) {
            if invalidated.is_some() {
                return Err("it invalidated a key that it was not given");
            }
            let responses =
                EagerResponses::decode(bytes).ok_or("a message cannot be understood")?;
            self.is_open = true;
            for (number, status) in responses.iter() {
                self.handle_eager_response(number, status, then)?;
            }
            return Ok(());
        }
        let response = IoResponse::decode(bytes).ok_or("a message cannot be understood")?;
        let with = invalidated.map_or(Delivered::Nothing, Delivered::Invalidation);
        self.handle_response(response, with, then)
    }

    /// Handles the immediate value of an RDMA WRITE of `bytes` bytes.
    pub(crate) fn immediate(
        &mut self,
        value: u32,
        bytes: u32,
        then: &mut Vec<Then>,
    ) -> Result<(), Violation> {
        self.handle_response(
            IoResponse::of_immediate(value),
            Delivered::Data(bytes),
            then,
        )
    }

    fn grant(&mut self, credits: u16) -> Result<(), Violation> {
        let granted = self.credits.grant(credits);
        granted.map_err(|_| "it granted more credits than it has")
    }

    fn account_response(&mut self) -> Result<(), Violation> {
        match self.credits.responded() {
            true => Ok(()),
            false => Err("it left no credit for any request"),
        }
    }

    fn handle_eager_response(
        &mut self,
        number: u16,
        status: Status,
        then: &mut Vec<Then>,
    ) -> Result<(), Violation> {
        const UNASKED: Violation = "it sent an unexpected response";
        self.grant(1)?;
        let owner = self.ring.free(number).ok_or(UNASKED)?;
        let tag = Tag::from_immediate(owner);
        match self.phase(tag) {
            Some(Phase::Sent(DataPath::Eager { seq })) => {
                self.end_after(tag.index, status, seq, then);
            }
            _ => return Err(UNASKED),
        }
        self.account_response()
    }

    fn handle_response(
        &mut self,
        response: IoResponse,
        with: Delivered,
        then: &mut Vec<Then>,
    ) -> Result<(), Violation> {
        let IoResponse {
            credits,
            tag,
            status,
        } = response;
        self.grant(credits)?;
        self.is_open = true;
        let data_path = match self.phase(tag) {
            Some(Phase::Sent(data_path)) => data_path,
            Some(Phase::Awaiting { .. }) => return Err("it responded twice"),
            _ => return Err("it sent an unexpected response"),
        };
        match (data_path, with) {
            (DataPath::Eager { .. }, _) => return Err("it responded to an eager write by tag"),
            (DataPath::Window { key }, Delivered::Invalidation(invalid)) if key == invalid => {
                self.space.release(1);
                self.end(tag.index, status, then);
            }
            (_, Delivered::Invalidation(_)) => {
                return Err("it invalidated a key that it was not given")
            }
            (DataPath::Slot(length), Delivered::Data(bytes)) if length == bytes => {
                self.end(tag.index, status, then);
            }
            (_, Delivered::Data(_)) => return Err("it sent data that was not asked for"),
            (DataPath::None | DataPath::Slot(_), Delivered::Nothing) => {
                self.end(tag.index, status, then);
            }
            (DataPath::Inline { seq }, Delivered::Nothing) => {
                self.end_after(tag.index, status, seq, then);
            }
            (DataPath::Window { .. }, Delivered::Nothing) => {
                let signal = self.signal(1);
                self.wait_for(tag.index, status, signal.seq);
                then.push(Then::Invalidate(tag.index, signal));
            }
        }
        self.account_response()
    }

    /// Handles the completion of the work request `seq`, and so of all before it.
    pub(crate) fn completed(&mut self, signal: Signal, then: &mut Vec<Then>) {
        self.freed = self.freed.wrapping_add(signal.frees.into());
        self.completed_seq = signal.seq;
        let mut awaiting = std::mem::take(&mut self.awaiting);
        awaiting.retain(
            |&index| match self.tags.get(usize::from(index)).map(|slot| slot.phase) {
                Some(Phase::Awaiting { status, seq }) if self.is_completed(seq) => {
                    self.end(index, status, then);
                    false
                }
                _ => true,
            },
        );
        self.awaiting = awaiting;
    }

    fn phase(&self, tag: Tag) -> Option<Phase> {
        let slot = self.tags.get(usize::from(tag.index))?;
        (slot.generation == tag.generation).then_some(slot.phase)
    }

    fn end_after(&mut self, index: u16, status: Status, seq: u32, then: &mut Vec<Then>) {
        match self.is_completed(seq) {
            true => self.end(index, status, then),
            false => self.wait_for(index, status, seq),
        }
    }

    fn wait_for(&mut self, index: u16, status: Status, seq: u32) {
        if let Some(slot) = self.tags.get_mut(usize::from(index)) {
            slot.phase = Phase::Awaiting { status, seq };
            self.awaiting.push(index);
        }
    }

    fn end(&mut self, index: u16, status: Status, then: &mut Vec<Then>) {
        if let Some(slot) = self.tags.get_mut(usize::from(index)) {
            slot.phase = Phase::Free;
            self.free.push(index);
            then.push(Then::End(index, status));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hcablk_core::proto::eager_ring::UNIT;

    const GRANT: EagerRingGrant = EagerRingGrant {
        bytes: 4 * UNIT,
        key: 7,
        base: 1,
    };

    struct Bench {
        engine: Engine,
        then: Vec<Then>,
    }

    impl Bench {
        fn new(credits: u16) -> Self {
            Self {
                engine: Engine::new(4, credits, Some(GRANT), 64),
                then: Vec::new(),
            }
        }

        fn sent(&mut self, data_path: DataPath) -> Tag {
            let tag = self.engine.issue(WINDOW_SLOTS).unwrap();
            self.engine.sent(tag, data_path);
            tag
        }

        fn respond(&mut self, tag: Tag, invalidated: Option<u32>) -> Result<Vec<Then>, Violation> {
            let bytes = IoResponse {
                credits: 1,
                tag,
                status: Status::Ok,
            }
            .encode();
            let result = self.engine.message(&bytes, invalidated, &mut self.then);
            result.map(|()| std::mem::take(&mut self.then))
        }

        fn completed(&mut self, signal: Signal) -> Vec<Then> {
            self.engine.completed(signal, &mut self.then);
            std::mem::take(&mut self.then)
        }
    }

    fn ended(tag: Tag) -> Vec<Then> {
        vec![Then::End(tag.index, Status::Ok)]
    }

    #[test]
    fn requests_are_bounded_by_tags_credits_and_slots() {
        let mut bench = Bench::new(2);
        let tag = bench.sent(DataPath::None);
        bench.sent(DataPath::None);
        assert_eq!(bench.engine.issue(1), None, "no credit");
        assert_eq!(bench.respond(tag, None), Ok(ended(tag)));
        let again = bench.sent(DataPath::None);
        assert_eq!(again.index, tag.index);
        assert_ne!(again.generation, tag.generation);
        let mut engine = Engine::new(2, 8, None, 4);
        assert!(engine.issue(3).is_some());
        assert_eq!(engine.issue(3), None, "no slots");
        assert!(engine.issue(1).is_some());
        assert_eq!(engine.issue(0), None, "no tag");
        let mut bench = Bench::new(1);
        let tag = bench.engine.issue(3).unwrap();
        bench.engine.cancel(tag, 3);
        assert!(bench.engine.is_idle());
        assert!(bench.engine.issue(3).is_some());
    }

    #[test]
    fn a_request_by_a_window_ends_when_its_key_is_invalid() {
        let mut bench = Bench::new(4);
        let tag = bench.sent(DataPath::Window { key: 5 });
        assert_eq!(
            bench.respond(tag, Some(6)),
            Err("it invalidated a key that it was not given")
        );
        let mut bench = Bench::new(4);
        let tag = bench.sent(DataPath::Window { key: 5 });
        assert_eq!(bench.respond(tag, Some(5)), Ok(ended(tag)));
        // A different request still has a credit.
        let other = bench.sent(DataPath::None);
        let tag = bench.sent(DataPath::Window { key: 6 });
        let then = bench.respond(tag, None).unwrap();
        let [Then::Invalidate(index, signal)] = then[..] else {
            unreachable!("{then:?}");
        };
        assert_eq!(index, tag.index);
        assert_eq!(bench.completed(signal), ended(tag));
        assert_eq!(bench.respond(other, None), Ok(ended(other)));
        assert!(bench.engine.is_idle());
        let mut bench = Bench::new(4);
        bench.sent(DataPath::None);
        let tag = bench.sent(DataPath::Window { key: 6 });
        bench.respond(tag, None).unwrap();
        assert_eq!(bench.respond(tag, None), Err("it responded twice"));
    }

    #[test]
    fn a_write_ends_when_it_has_its_response_and_its_send_has_completed() {
        let mut bench = Bench::new(4);
        let tag = bench.engine.issue(1).unwrap();
        let signal = bench.engine.signal(1);
        bench.engine.sent(tag, DataPath::Inline { seq: signal.seq });
        assert_eq!(bench.respond(tag, None), Ok(vec![]));
        assert!(bench.engine.awaits_sends());
        assert_eq!(bench.completed(signal), ended(tag));
        assert!(!bench.engine.awaits_sends());
        let tag = bench.engine.issue(1).unwrap();
        let signal = bench.engine.signal(1);
        bench.engine.sent(tag, DataPath::Inline { seq: signal.seq });
        assert_eq!(bench.completed(signal), []);
        assert_eq!(bench.respond(tag, None), Ok(ended(tag)));
    }

    #[test]
    fn the_ring_is_closed_until_the_first_response_and_responses_name_writes() {
        let mut bench = Bench::new(4);
        let first = bench.engine.issue(1).unwrap();
        assert_eq!(bench.engine.eager_slot(first, UNIT), None);
        bench.engine.sent(first, DataPath::None);
        bench.respond(first, None).unwrap();
        let tag = bench.engine.issue(2).unwrap();
        let (slot, _) = bench.engine.eager_slot(tag, UNIT).unwrap();
        let signal = bench.engine.signal(2);
        bench.engine.sent(tag, DataPath::Eager { seq: signal.seq });
        let answer = |bench: &mut Bench, number| {
            let mut responses = EagerResponses::new();
            assert!(responses.push(number, Status::Ok));
            let result = bench
                .engine
                .message(responses.message(), None, &mut bench.then);
            result.map(|()| std::mem::take(&mut bench.then))
        };
        assert_eq!(bench.completed(signal), []);
        assert_eq!(answer(&mut bench, slot.number), Ok(ended(tag)));
        assert_eq!(
            answer(&mut bench, slot.number),
            Err("it granted more credits than it has")
        );
        let mut bench = Bench::new(4);
        bench.sent(DataPath::None);
        assert_eq!(answer(&mut bench, 0), Err("it sent an unexpected response"));
    }

    #[test]
    fn data_must_fit_the_slot_of_its_request() {
        for (data_path, bytes, good) in [
            (DataPath::Slot(512), 512, true),
            (DataPath::Slot(512), 513, false),
            (DataPath::None, 512, false),
            (DataPath::Window { key: 1 }, 512, false),
        ] {
            let mut bench = Bench::new(4);
            let tag = bench.sent(data_path);
            let value = tag.to_immediate();
            let result = bench.engine.immediate(value, bytes, &mut bench.then);
            assert_eq!(result.is_ok(), good, "{data_path:?}");
        }
    }

    /// A warm queue allocates nothing: neither to cut a request, nor to issue it, nor for its response.
    #[test]
    fn requests_allocate_nothing() {
        use crate::{
            allocations,
            plan::{DataPlace, Limits, Span},
        };
        let limits = Limits {
            block: 512,
            largest: 1 << 20,
            slot: 8192,
            small_read: 8192,
            gathered: 32768,
            pieces: 8,
            write_windows: true,
        };
        let mut bench = Bench::new(4);
        bench.then.reserve(4);
        let mut answered = 0;
        let mut carry_out = |write: bool, length: usize| {
            let pieces = [length];
            let mut left = Some(Span::whole(length as u64));
            while let Some(span) = left {
                let (part, rest) = span.cut(limits, write, &pieces).unwrap();
                left = rest;
                let tag = bench.engine.issue(WINDOW_SLOTS).unwrap();
                let signal = bench.engine.signal(WINDOW_SLOTS);
                let data_path = match part.place {
                    DataPlace::Slot => DataPath::Slot(part.length),
                    DataPlace::Gathered(_) => DataPath::Inline { seq: signal.seq },
                    DataPlace::Window => DataPath::Window { key: 7 },
                };
                bench.engine.sent(tag, data_path);
                let response = IoResponse {
                    credits: 1,
                    tag,
                    status: Status::Ok,
                };
                let result = match part.place {
                    DataPlace::Slot => {
                        let value = tag.to_immediate();
                        bench.engine.immediate(value, part.length, &mut bench.then)
                    }
                    // The request waits for the completion of its send, or of the invalidation.
                    _ => bench
                        .engine
                        .message(&response.encode(), None, &mut bench.then),
                };
                assert_eq!(result, Ok(()));
                if let Some(&Then::Invalidate(_, signal)) = bench.then.last() {
                    bench.then.clear();
                    bench.engine.completed(signal, &mut bench.then);
                }
                bench.engine.completed(signal, &mut bench.then);
                answered += bench.then.len();
                bench.then.clear();
            }
        };
        let mut round = || {
            for length in [4096, 1 << 20, 4 << 20] {
                carry_out(false, length);
                carry_out(true, length);
            }
        };
        round();
        assert_eq!(allocations::during(|| (0..100).for_each(|_| round())), 0);
        assert_eq!(answered, 101 * 2 * (1 + 1 + 4));
        let counts =
            allocations::during(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(1))));
        assert_eq!(counts, 1, "allocations are counted");
    }

    #[test]
    fn nonsense_is_refused() {
        let mut bench = Bench::new(1);
        let tag = bench.sent(DataPath::None);
        let other = Tag {
            generation: tag.generation.wrapping_add(1),
            ..tag
        };
        assert_eq!(
            bench.respond(other, None),
            Err("it sent an unexpected response")
        );
        let mut then = Vec::new();
        for len in 0..64 {
            let bytes = vec![0x80; len];
            assert!(bench.engine.message(&bytes, None, &mut then).is_err());
        }
        let mut bench = Bench::new(1);
        let tag = bench.sent(DataPath::None);
        let bytes = IoResponse {
            credits: 0,
            tag,
            status: Status::Ok,
        }
        .encode();
        assert_eq!(
            bench.engine.message(&bytes, None, &mut then),
            Err("it left no credit for any request")
        );
    }
}
