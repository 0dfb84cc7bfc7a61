// SPDX-License-Identifier: GPL-2.0

//! Tests how the client in user space (`userspace-tools/libhcablk/src/engine.rs`) handles
//! responses: an input chooses the issued requests, the target's messages, valid or not, and the
//! completions. In every case a request ends once, only after the device and the target are done
//! with its memory, and no other request ends.

use hcablk_core::proto::{
    eager_ring::{EagerResponses, EagerRingGrant, UNIT},
    message::{IoResponse, Status, Tag},
};
use hcablk_host_tests::decoders::Decoder;
use std::collections::VecDeque;

#[allow(dead_code)]
#[path = "../../../userspace-tools/libhcablk/src/engine.rs"]
mod engine;

use engine::{Engine, Signal, Then, DataPath, WINDOW_SLOTS};

pub(crate) const DECODER: Decoder = Decoder {
    name: "engine",
    check,
    seeds,
};

const DEPTH: u16 = 8;
const KEY: u32 = 0x100;

/// The kinds of steps of an input.
const NOP: u8 = 0;
const SLOT: u8 = 1;
const WINDOW: u8 = 2;
const INLINE: u8 = 3;
const EAGER: u8 = 4;
const COMPLETE: u8 = 5;
/// A message: a byte for the key that it invalidates, one for its length, and its bytes.
const MESSAGE: u8 = 6;
/// An immediate value: four bytes, and one for its data in units of 512 bytes.
const IMMEDIATE: u8 = 7;
const KINDS: u8 = 8;

/// The condition for a request's end, in addition to its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Nothing,
    /// The device reads its memory until this has completed.
    Send(u32),
    /// The target may access its memory with this key until it is invalidated.
    Window(u32),
}

struct Model {
    engine: Engine,
    holds: [Option<Holds>; DEPTH as usize],
    signals: VecDeque<Signal>,
    completed: u32,
    keys: u32,
}

impl Model {
    fn issue(&mut self, kind: u8) {
        let slots = if kind == NOP { 1 } else { WINDOW_SLOTS };
        let Some(tag) = self.engine.issue(slots) else {
            return;
        };
        let place = usize::from(tag.index);
        assert_eq!(self.holds[place], None, "a tag is given twice");
        let (transfer, holds) = match kind {
            NOP => {
                self.signals.extend(self.engine.signal_if_due(1));
                (DataPath::None, Holds::Nothing)
            }
            SLOT => {
                self.engine.release_slots(WINDOW_SLOTS - 1);
                self.signals.extend(self.engine.signal_if_due(1));
                (DataPath::Slot(4096), Holds::Nothing)
            }
            WINDOW => {
                self.signals.extend(self.engine.signal_if_due(WINDOW_SLOTS - 1));
                self.keys += 1;
                let key = KEY + self.keys;
                (DataPath::Window { key }, Holds::Window(key))
            }
            INLINE => {
                self.engine.release_slots(WINDOW_SLOTS - 1);
                let signal = self.engine.signal(1);
                self.signals.push_back(signal);
                (DataPath::Inline { seq: signal.seq }, Holds::Send(signal.seq))
            }
            _ => {
                if self.engine.eager_slot(tag, UNIT).is_none() {
                    return self.engine.cancel(tag, slots);
                }
                self.engine.release_slots(WINDOW_SLOTS - 1);
                let signal = self.engine.signal(1);
                self.signals.push_back(signal);
                (DataPath::Eager { seq: signal.seq }, Holds::Send(signal.seq))
            }
        };
        self.engine.sent(tag, transfer);
        self.holds[place] = Some(holds);
    }

    /// Checks the engine's actions after `key` was invalidated.
    fn follow(&mut self, then: &[Then], key: Option<u32>) {
        for then in then {
            match *then {
                Then::End(index, _) => match self.holds[usize::from(index)].take() {
                    None => panic!("a request that was not issued has ended"),
                    Some(Holds::Nothing) => {}
                    Some(Holds::Send(seq)) => assert!(seq <= self.completed, "the device still reads its memory"),
                    Some(Holds::Window(bound)) => assert_eq!(key, Some(bound), "the target still reaches its memory"),
                },
                Then::Invalidate(index, signal) => {
                    let holds = &mut self.holds[usize::from(index)];
                    assert!(matches!(holds, Some(Holds::Window(_))), "there is no window");
                    *holds = Some(Holds::Send(signal.seq));
                    self.signals.push_back(signal);
                }
            }
        }
    }
}

/// Returns whether the target has broken no rule.
fn check(mut bytes: &[u8]) -> bool {
    let grant = EagerRingGrant {
        bytes: 4 * UNIT,
        key: 7,
        base: 1,
    };
    let mut model = Model {
        engine: Engine::new(DEPTH, 6, Some(grant), 64),
        holds: [None; DEPTH as usize],
        signals: VecDeque::new(),
        completed: 0,
        keys: 0,
    };
    let mut then = Vec::new();
    while let Some((&kind, rest)) = bytes.split_first() {
        bytes = rest;
        then.clear();
        let mut key = None;
        let result = match kind % KINDS {
            kind @ (NOP | SLOT | WINDOW | INLINE | EAGER) => {
                model.issue(kind);
                Ok(())
            }
            COMPLETE => {
                if let Some(signal) = model.signals.pop_front() {
                    model.completed = signal.seq;
                    model.engine.completed(signal, &mut then);
                }
                Ok(())
            }
            MESSAGE => {
                let Some(([invalid, len], rest)) = bytes.split_first_chunk() else {
                    break;
                };
                let (message, rest) = rest.split_at(usize::from(*len).min(rest.len()));
                bytes = rest;
                key = (*invalid != 0).then(|| KEY + u32::from(*invalid));
                model.engine.message(message, key, &mut then)
            }
            _ => {
                let Some(([value @ .., units], rest)) = bytes.split_first_chunk::<5>() else {
                    break;
                };
                bytes = rest;
                let value = u32::from_le_bytes([value[0], value[1], value[2], value[3]]);
                model.engine.immediate(value, u32::from(*units) * 512, &mut then)
            }
        };
        model.follow(&then, key);
        if result.is_err() {
            return false;
        }
    }
    true
}

fn seeds() -> Vec<Vec<u8>> {
    let tag = |index, generation| Tag { index, generation };
    let message = |key: u8, bytes: &[u8]| [&[MESSAGE, key, bytes.len() as u8][..], bytes].concat();
    let response = |key, tag| {
        let status = Status::Ok;
        message(key, &IoResponse { credits: 1, tag, status }.encode())
    };
    let immediate = |tag: Tag, units| [&[IMMEDIATE][..], &tag.to_immediate().to_le_bytes(), &[units]].concat();
    let mut answers = EagerResponses::new();
    assert!(answers.push(0, Status::Ok));
    vec![
        [vec![NOP], response(0, tag(0, 1))].concat(),
        [vec![SLOT], immediate(tag(0, 1), 8)].concat(),
        // Invalidation by the target, and by this side.
        [vec![WINDOW, WINDOW], response(1, tag(0, 1)), response(0, tag(1, 1)), vec![COMPLETE; 3]].concat(),
        // The response before the completion, and after it.
        [vec![INLINE, INLINE], response(0, tag(0, 1)), vec![COMPLETE; 2], response(0, tag(1, 1))].concat(),
        [vec![NOP], response(0, tag(0, 1)), vec![EAGER, COMPLETE], message(0, answers.message())].concat(),
    ]
}
