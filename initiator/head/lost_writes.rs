// SPDX-License-Identifier: GPL-2.0

//! Whether flushes of a disk fail because its target lost acknowledged writes, and when that ends: a pure state machine. Uses
//! nothing but `core`: its tests run on the host.
//!
//! ```text
//!            a loss, and a writer has it open           the last opener closes it
//!  Intact ────────────────────────────────────► Writer ──────────────────────────► Intact
//!     └── a loss, and none has ──► Unopened ── opened for writing ──► Writer
//!                                      └──────── acknowledged ────────┴──────────► Intact
//! ```
//!
//! A flush is a promise to the writers of the disk. After a loss it cannot be kept any more, and nobody knows which of them has
//! heard of it; so every flush and every FUA write fails until all of them have closed the disk. The last close writes cached pages
//! back but sends no flush: if the writers were gone before the loss, the next writer is the first to flush, and gets the errors.
//!
//! # Who writes
//!
//! The block layer tells a driver of each open with its mode, and of each close without. So only a least
//! number of writers is known ([`Openers`]): each close may have been a writer's. An exclusive opener (a mounted file system, md, dm, swap) holds a
//! claim, which shows. While it is uncertain whether a writer has the disk open at a loss, the state is Unopened: then flushes fail
//! for one more writer than they have to, and for none less.

use hcablk_core::blkdev::OpenMode;

/// Who has a disk open, partitions included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Openers {
    open: u32,
    /// The least number of them that opened it for writing.
    least_writers: u32,
    /// An exclusive opener for writing has come since the disk was last without an exclusive opener.
    claimed_for_writing: bool,
}

impl Openers {
    fn opened(&mut self, mode: OpenMode, is_claimed: bool) {
        self.open += 1;
        if mode.writes {
            self.least_writers += 1;
        }
        self.claimed_for_writing &= is_claimed;
        // The claim shows only after this.
        self.claimed_for_writing |= mode.writes && mode.exclusive;
    }

    /// Returns whether that was the last one.
    fn closed(&mut self, is_claimed: bool) -> bool {
        self.open = self.open.saturating_sub(1);
        self.least_writers = self.least_writers.saturating_sub(1);
        self.claimed_for_writing &= is_claimed;
        self.open == 0
    }

    /// Returns whether a writer has it open for certain.
    fn has_writer(&self) -> bool {
        self.least_writers != 0 || self.claimed_for_writing
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Intact,
    Unopened,
    Writer,
}

/// See the module.
pub(crate) struct LostState {
    openers: Openers,
    state: State,
}

impl LostState {
    pub(crate) const fn new() -> Self {
        Self {
            openers: Openers {
                open: 0,
                least_writers: 0,
                claimed_for_writing: false,
            },
            state: State::Intact,
        }
    }

    /// Returns whether flushes fail.
    pub(crate) fn is_lost(&self) -> bool {
        self.state != State::Intact
    }

    /// Records a loss.
    pub(crate) fn lose(&mut self) {
        self.state = match self.openers.has_writer() {
            true => State::Writer,
            false => State::Unopened,
        };
    }

    /// Records that the disk is being opened; `is_claimed`: another exclusive opener has it.
    pub(crate) fn opened(&mut self, mode: OpenMode, is_claimed: bool) {
        self.openers.opened(mode, is_claimed);
        if mode.writes && self.state == State::Unopened {
            self.state = State::Writer;
        }
    }

    /// Records that an opener closes the disk; `is_claimed`: an exclusive opener still has it. Returns whether this ends a loss.
    pub(crate) fn closed(&mut self, is_claimed: bool) -> bool {
        let ends = self.openers.closed(is_claimed) && self.state == State::Writer;
        if ends {
            self.state = State::Intact;
        }
        ends
    }

    /// Ends a loss; returns whether there was one.
    pub(crate) fn acknowledge(&mut self) -> bool {
        let was = self.is_lost();
        self.state = State::Intact;
        was
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: OpenMode = OpenMode {
        writes: false,
        exclusive: false,
    };
    const WRITE: OpenMode = OpenMode {
        writes: true,
        exclusive: false,
    };
    const MOUNT: OpenMode = OpenMode {
        writes: true,
        exclusive: true,
    };
    const MOUNT_RO: OpenMode = OpenMode {
        writes: false,
        exclusive: true,
    };

    #[test]
    fn the_writers_close_ends_a_loss() {
        let mut state = LostState::new();
        state.opened(WRITE, false);
        state.lose();
        assert!(state.is_lost());
        assert!(state.closed(false));
        assert!(!state.is_lost());
    }

    #[test]
    fn a_reader_that_stays_keeps_a_loss_and_ends_it_with_its_close() {
        let mut state = LostState::new();
        state.opened(WRITE, false);
        state.opened(READ, false);
        state.lose();
        assert!(!state.closed(false));
        assert!(state.is_lost());
        assert!(state.closed(false));
    }

    #[test]
    fn readers_end_no_loss() {
        let mut state = LostState::new();
        state.lose();
        for _ in 0..3 {
            state.opened(READ, false);
            assert!(!state.closed(false));
        }
        assert!(state.is_lost());
        state.opened(WRITE, false);
        assert!(state.is_lost());
        assert!(state.closed(false));
    }

    #[test]
    fn a_loss_after_the_writer_has_gone_is_the_next_writers() {
        let mut state = LostState::new();
        state.opened(READ, false);
        state.opened(WRITE, false);
        assert!(!state.closed(false));
        // Which of the two closed it does not show.
        state.lose();
        assert!(!state.closed(false));
        assert!(state.is_lost());
        state.opened(WRITE, false);
        assert!(state.closed(false));
    }

    #[test]
    fn a_mount_is_a_writer_however_often_others_look() {
        let mut state = LostState::new();
        state.opened(MOUNT, false);
        for _ in 0..5 {
            state.opened(READ, true);
            assert!(!state.closed(true));
        }
        state.lose();
        state.opened(READ, true);
        assert!(!state.closed(true));
        assert!(state.is_lost());
        assert!(state.closed(false));
    }

    #[test]
    fn a_mount_that_has_ended_is_none() {
        let mut state = LostState::new();
        state.opened(READ, false);
        state.opened(MOUNT, false);
        assert!(!state.closed(false));
        state.lose();
        assert!(!state.closed(false));
        assert!(state.is_lost());
    }

    #[test]
    fn a_mount_without_writing_is_no_writer() {
        let mut state = LostState::new();
        state.opened(MOUNT_RO, false);
        state.lose();
        assert!(!state.closed(false));
        assert!(state.is_lost());
    }

    #[test]
    fn a_second_loss_needs_a_writer_of_its_own() {
        let mut state = LostState::new();
        state.opened(WRITE, false);
        state.opened(READ, false);
        state.lose();
        assert!(!state.closed(false));
        state.lose();
        assert!(!state.closed(false));
        assert!(state.is_lost());
    }

    #[test]
    fn acknowledging_ends_a_loss_and_is_idempotent() {
        let mut state = LostState::new();
        assert!(!state.acknowledge());
        state.opened(MOUNT, false);
        state.lose();
        assert!(state.acknowledge());
        assert!(!state.is_lost() && !state.acknowledge());
        assert!(!state.closed(false));
    }

    /// Whatever is opened and closed, a loss without a writer is not ended by readers, and one with a writer is by all closes.
    #[test]
    fn bounds_hold_for_every_order() {
        let mut seed = 1u32;
        for _ in 0..10_000 {
            let mut state = LostState::new();
            let mut open = std::vec::Vec::new();
            for _ in 0..12 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let claimed = |open: &std::vec::Vec<OpenMode>| open.iter().any(|o| o.exclusive);
                if open.is_empty() || seed >> 31 == 0 {
                    let mode = OpenMode {
                        writes: seed >> 30 & 1 == 0,
                        // Two exclusive openers are of one holder, and open alike.
                        exclusive: seed >> 28 & 3 == 0 && !claimed(&open),
                    };
                    state.opened(mode, claimed(&open));
                    open.push(mode);
                } else {
                    let place = seed as usize / 7 % open.len();
                    open.remove(place);
                    let _ = state.closed(claimed(&open));
                }
                let writers = open.iter().filter(|o| o.writes).count() as u32;
                let openers = &state.openers;
                assert!(openers.least_writers <= writers);
                assert!(!openers.has_writer() || writers != 0);
                assert_eq!(openers.open as usize, open.len());
            }
        }
    }
}
