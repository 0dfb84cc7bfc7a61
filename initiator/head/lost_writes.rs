// SPDX-License-Identifier: GPL-2.0

//! Decides whether flushes of a disk fail because its target lost acknowledged writes, and when
//! that ends: a pure state machine. Uses nothing but `core`: its tests run on the host.
//!
//! ```text
//!            a loss, and a writer has it open          the last opener closes it, and a flush was refused
//!  Intact ────────────────────────────────────► Writer ──────────────────────────────────────────────────► Intact
//!     │                                          ▲   │ the last opener closes it, and none was
//!     │                      opened for writing  │   ▼
//!     └──────── a loss, and none has ─────────► Unopened ──────────── acknowledged, as Writer ───────────► Intact
//! ```
//!
//! A flush is a promise to the writers of the disk. After a loss the promise is broken, and the
//! disk cannot know which writers have seen an error; so every flush and every FUA write fails
//! until all writers have closed the disk. The last close writes cached pages back but sends no
//! flush: if the writers had closed the disk before the loss, or have sent no flush since, the next
//! writer is the first to flush, and gets the errors.
//!
//! # Who writes
//!
//! The block layer reports each open with its mode, but each close without a mode. So only a lower
//! bound of the number of writers is known ([`Openers`]): each close may have been a writer's. An
//! exclusive opener (a mounted file system, md, dm, swap) holds a claim, which is visible. While it
//! is uncertain whether a writer has the disk open at a loss, the state is Unopened: flushes may
//! then fail for one writer more than necessary, and never for one less.

use hcablk_core::blkdev::OpenMode;

/// The openers of a disk, its partitions included. Fields `least_…` are lower bounds of the openers
/// for writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Openers {
    open: u32,
    least_plain: u32,
    least_exclusive: u32,
    /// The claims of exclusive openers at the last reported open or close: an opener of a partition
    /// has one, an opener of the whole disk two.
    claims: u32,
    /// The last open was an exclusive one, whose claim is not visible yet.
    is_claiming: bool,
}

impl Openers {
    /// Updates the number of claims. Returns whether a claim was released.
    fn see_claims(&mut self, claims: u32) -> bool {
        let expected = self.claims + u32::from(self.is_claiming);
        let gone = expected.saturating_sub(claims);
        self.least_exclusive = match claims {
            0 => 0,
            _ => self.least_exclusive.saturating_sub(gone),
        };
        self.claims = claims;
        self.is_claiming = false;
        gone != 0
    }

    fn opened(&mut self, mode: OpenMode, claims: u32) {
        self.see_claims(claims);
        self.open += 1;
        self.is_claiming = mode.exclusive;
        if mode.writes {
            match mode.exclusive {
                true => self.least_exclusive += 1,
                false => self.least_plain += 1,
            }
        }
    }

    /// Records a close. Returns whether the last opener has closed the disk.
    fn closed(&mut self, claims: u32) -> bool {
        self.open = self.open.saturating_sub(1);
        if !self.see_claims(claims) {
            self.least_plain = self.least_plain.saturating_sub(1);
        }
        self.open == 0
    }

    /// Returns whether a writer certainly has the disk open.
    fn has_writer(&self) -> bool {
        self.least_plain != 0 || self.least_exclusive != 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LossStage {
    Intact,
    Unopened,
    Writer,
}

/// The state of lost writes of a disk; see the module.
pub(crate) struct LostState {
    openers: Openers,
    state: LossStage,
}

impl LostState {
    pub(crate) const fn new() -> Self {
        Self {
            openers: Openers {
                open: 0,
                least_plain: 0,
                least_exclusive: 0,
                claims: 0,
                is_claiming: false,
            },
            state: LossStage::Intact,
        }
    }

    /// Returns whether flushes fail.
    pub(crate) fn is_lost(&self) -> bool {
        self.state != LossStage::Intact
    }

    /// Records a loss.
    pub(crate) fn lose(&mut self) {
        self.state = match self.openers.has_writer() {
            true => LossStage::Writer,
            false => LossStage::Unopened,
        };
    }

    /// Records that the disk is being opened, while exclusive openers have `claims` claims. Returns
    /// whether the opener is the first writer since a loss of which no writer has seen an error.
    pub(crate) fn opened(&mut self, mode: OpenMode, claims: u32) -> bool {
        self.openers.opened(mode, claims);
        let is_first = mode.writes && self.state == LossStage::Unopened;
        if is_first {
            self.state = LossStage::Writer;
        }
        is_first
    }

    /// Records that an opener closes the disk, on which exclusive openers still have `claims`
    /// claims; `told`: a flush was refused since the last loss. Returns whether the close ends a
    /// loss.
    pub(crate) fn closed(&mut self, claims: u32, is_reported: bool) -> bool {
        if !self.openers.closed(claims) || self.state != LossStage::Writer {
            return false;
        }
        self.state = if is_reported {
            LossStage::Intact
        } else {
            LossStage::Unopened
        };
        is_reported
    }

    /// Ends a loss; returns whether flushes failed because of one.
    pub(crate) fn acknowledge(&mut self) -> bool {
        let was = self.is_lost();
        self.state = LossStage::Intact;
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
        let _ = state.opened(WRITE, 0);
        state.lose();
        assert!(state.is_lost());
        assert!(state.closed(0, true));
        assert!(!state.is_lost());
    }

    #[test]
    fn a_writer_without_a_refused_flush_ends_no_loss() {
        let mut state = LostState::new();
        let _ = state.opened(WRITE, 0);
        state.lose();
        assert!(!state.closed(0, false));
        assert!(state.is_lost());
        let _ = state.opened(READ, 0);
        assert!(!state.closed(0, true));
        let _ = state.opened(WRITE, 0);
        assert!(state.closed(0, true));
    }

    #[test]
    fn a_reader_that_stays_keeps_a_loss_and_ends_it_with_its_close() {
        let mut state = LostState::new();
        let _ = state.opened(WRITE, 0);
        let _ = state.opened(READ, 0);
        state.lose();
        assert!(!state.closed(0, true));
        assert!(state.is_lost());
        assert!(state.closed(0, true));
    }

    #[test]
    fn readers_end_no_loss() {
        let mut state = LostState::new();
        state.lose();
        for _ in 0..3 {
            let _ = state.opened(READ, 0);
            assert!(!state.closed(0, true));
        }
        assert!(state.is_lost());
        let _ = state.opened(WRITE, 0);
        assert!(state.is_lost());
        assert!(state.closed(0, true));
    }

    #[test]
    fn a_loss_after_the_writer_has_gone_is_the_next_writers() {
        let mut state = LostState::new();
        let _ = state.opened(READ, 0);
        let _ = state.opened(WRITE, 0);
        assert!(!state.closed(0, true));
        // It is unknown which of the two closed the disk.
        state.lose();
        assert!(!state.closed(0, true));
        assert!(state.is_lost());
        let _ = state.opened(WRITE, 0);
        assert!(state.closed(0, true));
    }

    #[test]
    fn a_mount_is_a_writer_however_often_others_look() {
        let mut state = LostState::new();
        let _ = state.opened(MOUNT, 0);
        for _ in 0..5 {
            let _ = state.opened(READ, 2);
            assert!(!state.closed(2, true));
        }
        state.lose();
        let _ = state.opened(READ, 2);
        assert!(!state.closed(2, true));
        assert!(state.is_lost());
        assert!(state.closed(0, true));
    }

    #[test]
    fn an_ended_mount_is_no_writer() {
        let mut state = LostState::new();
        let _ = state.opened(READ, 0);
        let _ = state.opened(MOUNT, 0);
        assert!(!state.closed(0, true));
        state.lose();
        assert!(!state.closed(0, true));
        assert!(state.is_lost());
    }

    #[test]
    fn a_mount_without_writing_is_no_writer() {
        let mut state = LostState::new();
        let _ = state.opened(MOUNT_RO, 0);
        state.lose();
        assert!(!state.closed(0, true));
        assert!(state.is_lost());
    }

    #[test]
    fn a_second_loss_needs_a_writer_of_its_own() {
        let mut state = LostState::new();
        let _ = state.opened(WRITE, 0);
        let _ = state.opened(READ, 0);
        state.lose();
        assert!(!state.closed(0, true));
        state.lose();
        assert!(!state.closed(0, true));
        assert!(state.is_lost());
    }

    #[test]
    fn acknowledging_ends_a_loss_and_is_idempotent() {
        let mut state = LostState::new();
        assert!(!state.acknowledge());
        let _ = state.opened(MOUNT, 0);
        state.lose();
        assert!(state.acknowledge());
        assert!(!state.is_lost() && !state.acknowledge());
        assert!(!state.closed(0, true));
    }

    /// For any sequence of opens and closes, a writer is assumed only while there is one.
    #[test]
    fn a_writer_that_is_believed_to_be_there_is() {
        /// An opener, and its number of claims.
        type Opener = (OpenMode, u32);
        let claims = |open: &[Opener]| open.iter().map(|(_, claims)| claims).sum::<u32>();
        let mut seed = 1u32;
        for _ in 0..20_000 {
            let mut state = LostState::new();
            let mut open: std::vec::Vec<Opener> = std::vec::Vec::new();
            // Exclusive openers have the whole disk, or partitions of it.
            let of_each = 1 + (seed >> 20 & 1);
            for _ in 0..12 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if open.is_empty() || seed >> 31 == 0 {
                    let mode = OpenMode {
                        writes: seed >> 30 & 1 == 0,
                        exclusive: seed >> 28 & 3 == 0,
                    };
                    let _ = state.opened(mode, claims(&open));
                    open.push((mode, if mode.exclusive { of_each } else { 0 }));
                } else {
                    let place = seed as usize / 7 % open.len();
                    open.remove(place);
                    let _ = state.closed(claims(&open), true);
                }
                let writers = open.iter().filter(|(mode, _)| mode.writes).count();
                let openers = &state.openers;
                assert!(
                    !openers.has_writer() || writers != 0,
                    "{open:?} {openers:?}"
                );
                assert_eq!(openers.open as usize, open.len());
            }
        }
    }
}
