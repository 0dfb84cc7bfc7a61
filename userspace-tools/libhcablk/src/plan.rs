// SPDX-License-Identifier: GPL-2.0

//! Decides how the data of a request moves, and cuts it into requests of the protocol. Pure computation.
//!
//! A request of an application has its data in *pieces* of registered memory, of any lengths. The
//! protocol's requests have whole blocks, and the data of each is in one of these places:
//!
//! - in the *slot* of its tag, which is memory of the library: the data is copied between the slot
//!   and the pieces. For short requests, and for pieces that are not whole blocks.
//! - in the pieces themselves. This host's device gathers the data of a write for the message or the target's eager
//!   ring; other requests have one piece, which the target reaches through a window.

/// The properties of a volume and a queue on which the decision depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of a logical block, a power of two.
    pub(crate) block: u32,
    /// Bytes of the largest request.
    pub(crate) largest: u32,
    /// Bytes of a slot, a multiple of the block.
    pub(crate) slot: u32,
    /// Bytes of the largest read that is copied although a window could cover its memory.
    pub(crate) small_read: u32,
    /// Bytes of the largest write that is gathered although a window could cover its memory.
    pub(crate) gathered: u32,
    /// Pieces that a gathered write may have.
    pub(crate) pieces: usize,
    /// Whether there are windows for writes: the target starts RDMA READs.
    pub(crate) write_windows: bool,
}

/// The place of the data of a request of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataPlace {
    /// In its tag's slot.
    Slot,
    /// In this many pieces, which this host's device gathers. Its data is at most
    /// [`Limits::gathered`] bytes, or a slot's size if that is more.
    Gathered(usize),
    /// In one piece, through a window.
    Window,
}

/// A request of the protocol that is a part of an application's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Bytes before it in the application's request.
    pub(crate) at: u64,
    pub(crate) length: u32,
    pub(crate) place: DataPlace,
    /// The piece in which its data begins, and the offset there.
    pub(crate) piece: usize,
    pub(crate) offset: usize,
}

/// Data of a request that is not cut into parts yet. Not cut in advance, so that a waiting request
/// takes the same memory regardless of the number of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Bytes before it in the application's request.
    at: u64,
    length: u64,
    /// The piece in which it begins, and the offset there.
    piece: usize,
    offset: usize,
}

impl Span {
    /// Returns all data of a request of `length` bytes.
    pub(crate) fn whole(length: u64) -> Self {
        Self {
            at: 0,
            length,
            piece: 0,
            offset: 0,
        }
    }

    /// Returns the data of a part, which must be cut again: limits may have changed.
    pub(crate) fn from_part(part: Part) -> Self {
        Self {
            at: part.at,
            length: part.length.into(),
            piece: part.piece,
            offset: part.offset,
        }
    }

    /// Cuts off the first part of a read or a write whose data is in `pieces`. Returns the part and the rest; `None`:
    /// there is no data.
    pub(crate) fn cut(
        self,
        limits: Limits,
        write: bool,
        pieces: &[impl Piece],
    ) -> Option<(Part, Option<Self>)> {
        let mut parts = Parts::new(limits, write, pieces, self);
        let part = parts.next()?;
        let rest = (parts.left != 0).then_some(Self {
            at: parts.at,
            length: parts.left,
            piece: parts.cursor.piece,
            offset: parts.cursor.offset,
        });
        Some((part, rest))
    }
}

/// A piece of memory.
pub(crate) trait Piece {
    /// Returns the number of bytes of the piece.
    fn bytes(&self) -> usize;
}

/// A position in the pieces.
struct Cursor<'a, P> {
    pieces: &'a [P],
    piece: usize,
    offset: usize,
}

impl<P> Copy for Cursor<'_, P> {}

impl<P> Clone for Cursor<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Piece> Cursor<'_, P> {
    /// Returns the number of bytes up to the end of the piece; skips empty pieces.
    fn run(&mut self) -> Option<usize> {
        loop {
            let left = self.pieces.get(self.piece)?.bytes() - self.offset;
            if left != 0 {
                return Some(left);
            }
            self.piece += 1;
            self.offset = 0;
        }
    }

    /// Skips this many bytes.
    fn skip(&mut self, mut bytes: usize) {
        while bytes != 0 {
            let Some(run) = self.run() else { return };
            let step = run.min(bytes);
            self.offset += step;
            bytes -= step;
        }
    }

    /// Returns the number of pieces that contain the next `bytes` bytes.
    fn count(mut self, mut bytes: usize) -> usize {
        let mut count = 0;
        while bytes != 0 {
            let Some(run) = self.run() else { break };
            self.skip(run.min(bytes));
            bytes -= run.min(bytes);
            count += 1;
        }
        count
    }
}

/// The parts of a span whose data is in these pieces. Together they are whole blocks.
struct Parts<'a, P> {
    limits: Limits,
    write: bool,
    cursor: Cursor<'a, P>,
    at: u64,
    left: u64,
}

impl<'a, P: Piece> Parts<'a, P> {
    fn new(limits: Limits, write: bool, pieces: &'a [P], span: Span) -> Self {
        Self {
            limits,
            write,
            cursor: Cursor {
                pieces,
                piece: span.piece,
                offset: span.offset,
            },
            at: span.at,
            left: span.length,
        }
    }

    /// Returns `bytes`, or the largest request if that is less, rounded down to whole blocks.
    fn blocks(&self, bytes: usize) -> u32 {
        let most = u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(self.limits.largest);
        most & !(self.limits.block - 1)
    }

    /// Returns the length of a part that is copied: up to the position from which a window costs less.
    fn copied_length(&self) -> u32 {
        let slot = u64::from(self.limits.slot).min(self.left);
        let mut cursor = self.cursor;
        let (mut length, slot) = (0, u32::try_from(slot).unwrap_or(self.limits.slot));
        while length < slot {
            let Some(run) = cursor.run() else { break };
            let is_boundary = length != 0 && length & (self.limits.block - 1) == 0;
            if is_boundary && self.is_long(run) {
                break;
            }
            cursor.skip(run);
            length = length.saturating_add(u32::try_from(run).unwrap_or(u32::MAX));
        }
        length.min(slot)
    }

    /// Returns whether a window covers `run` bytes of a piece; otherwise they are copied.
    fn is_long(&self, run: usize) -> bool {
        let (small, windows) = match self.write {
            true => (self.limits.gathered, self.limits.write_windows),
            false => (self.limits.small_read, true),
        };
        windows && self.blocks(run) > small.max(self.limits.block - 1)
    }

    /// Returns the length and the place of the next part.
    fn choose(&mut self) -> Option<(u32, DataPlace)> {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let run = self.cursor.run()?.min(left);
        if self.is_long(run) {
            return Some((self.blocks(run), DataPlace::Window));
        }
        if self.write {
            // As much as one gathered write may have, or less if that is in too many pieces.
            let most = u64::from(self.limits.gathered.max(self.limits.block));
            let most = u32::try_from(most.min(self.left)).unwrap_or(self.limits.gathered);
            let mut length = most & !(self.limits.block - 1);
            while length > self.limits.slot {
                if self.cursor.count(length as usize) <= self.limits.pieces {
                    return Some((length, self.gathered(length)));
                }
                length = (length / 2).max(self.limits.slot) & !(self.limits.block - 1);
            }
        }
        let length = self.copied_length();
        let is_gathered = self.write && self.cursor.count(length as usize) <= self.limits.pieces;
        Some(match is_gathered {
            true => (length, self.gathered(length)),
            false => (length, DataPlace::Slot),
        })
    }

    fn gathered(&self, length: u32) -> DataPlace {
        DataPlace::Gathered(self.cursor.count(length as usize))
    }
}

impl<P: Piece> Iterator for Parts<'_, P> {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        if self.left == 0 {
            return None;
        }
        let (length, place) = self.choose()?;
        let part = Part {
            at: self.at,
            length,
            place,
            piece: self.cursor.piece,
            offset: self.cursor.offset,
        };
        self.cursor.skip(length as usize);
        self.at += u64::from(length);
        self.left -= u64::from(length).min(self.left);
        Some(part)
    }
}

/// Returns how many of `left` bytes one request without data covers: whole blocks of `block` bytes,
/// at most `largest` bytes, but at least one block.
pub(crate) fn bare(left: u64, largest: u32, block: u32) -> u32 {
    let most = (largest & !(block - 1)).max(block);
    u32::try_from(left).unwrap_or(u32::MAX).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        block: 512,
        largest: 1 << 20,
        slot: 8192,
        small_read: 8192,
        gathered: 32768,
        pieces: 8,
        write_windows: true,
    };

    impl Piece for usize {
        fn bytes(&self) -> usize {
            *self
        }
    }

    /// Cuts a span one part at a time, as a queue does.
    fn cut(limits: Limits, write: bool, pieces: &[usize], span: Span) -> Vec<Part> {
        let mut left = Some(span);
        std::iter::from_fn(|| {
            let (part, rest) = left.take()?.cut(limits, write, pieces)?;
            left = rest;
            Some(part)
        })
        .collect()
    }

    fn all(pieces: &[usize]) -> Span {
        Span::whole(pieces.iter().map(|length| *length as u64).sum())
    }

    fn parts(write: bool, pieces: &[usize]) -> Vec<(u64, u32, DataPlace)> {
        cut(LIMITS, write, pieces, all(pieces))
            .into_iter()
            .map(|part| (part.at, part.length, part.place))
            .collect()
    }

    /// Checks that all bytes are in parts, in order, in whole blocks that fit their places,
    /// wherever the pieces begin.
    fn check(limits: Limits, write: bool, pieces: &[usize]) {
        let whole: usize = pieces.iter().sum();
        let mut at = 0;
        for part in cut(limits, write, pieces, all(pieces)) {
            let begin: usize = pieces[..part.piece].iter().sum::<usize>() + part.offset;
            assert_eq!(part.at, at, "{pieces:?}");
            assert_eq!(begin as u64, at, "{pieces:?}");
            assert!(
                part.length != 0 && part.length % limits.block == 0,
                "{pieces:?} {part:?}"
            );
            assert!(part.length <= limits.largest);
            let cursor = Cursor {
                pieces,
                piece: part.piece,
                offset: part.offset,
            };
            match part.place {
                DataPlace::Slot => assert!(part.length <= limits.slot),
                DataPlace::Window => {
                    assert!(part.offset + part.length as usize <= pieces[part.piece]);
                    assert!(!write || limits.write_windows);
                }
                DataPlace::Gathered(count) => {
                    assert!(write && count <= limits.pieces);
                    assert_eq!(cursor.count(part.length as usize), count);
                    assert!(part.length <= limits.gathered.max(limits.slot));
                }
            }
            at += u64::from(part.length);
        }
        assert_eq!(at, whole as u64, "{pieces:?}");
    }

    #[test]
    fn small_requests_are_copied_or_gathered_and_large_ones_get_windows() {
        assert_eq!(parts(false, &[4096]), [(0, 4096, DataPlace::Slot)]);
        assert_eq!(parts(false, &[8704]), [(0, 8704, DataPlace::Window)]);
        assert_eq!(parts(true, &[512]), [(0, 512, DataPlace::Gathered(1))]);
        assert_eq!(parts(true, &[32768]), [(0, 32768, DataPlace::Gathered(1))]);
        assert_eq!(parts(true, &[65536]), [(0, 65536, DataPlace::Window)]);
        let mib = 1 << 20;
        assert_eq!(
            parts(false, &[(mib as usize) * 2]),
            [
                (0, mib, DataPlace::Window),
                (mib.into(), mib, DataPlace::Window)
            ]
        );
    }

    #[test]
    fn pieces_that_are_no_blocks_are_copied_between_windows() {
        assert_eq!(
            parts(false, &[1000, 24, 65536, 100, 412]),
            [
                (0, 1024, DataPlace::Slot),
                (1024, 65536, DataPlace::Window),
                (66560, 512, DataPlace::Slot)
            ]
        );
        // The bytes at the end of a piece that are less than a block are in one part with the next piece.
        assert_eq!(
            parts(false, &[65536 + 100, 412]),
            [(0, 65536, DataPlace::Window), (65536, 512, DataPlace::Slot)]
        );
    }

    #[test]
    fn many_pieces_are_gathered_as_far_as_the_device_does() {
        assert_eq!(parts(true, &[512; 8]), [(0, 4096, DataPlace::Gathered(8))]);
        assert_eq!(parts(true, &[256; 32]), [(0, 8192, DataPlace::Slot)]);
        assert_eq!(
            parts(true, &[4096; 16])[0],
            (0, 32768, DataPlace::Gathered(8)),
            "as many as it gathers"
        );
    }

    #[test]
    fn every_shape_is_covered() {
        // A fixed sequence of pseudorandom numbers: the same shapes each time.
        let mut state = 7_u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % below
        };
        for round in 0..20_000 {
            let mut pieces: Vec<usize> = (0..=random(12))
                .map(|_| match random(4) {
                    0 => random(2000),
                    1 => 512 * random(40),
                    2 => 4096 * random(40),
                    _ => random(1 << 17),
                })
                .collect();
            let block = [512, 4096][round % 2];
            let whole: usize = pieces.iter().sum();
            pieces.push(whole.next_multiple_of(block) - whole);
            for write_windows in [true, false] {
                let limits = Limits {
                    block: u32::try_from(block).unwrap(),
                    write_windows,
                    gathered: [0, 4096, 32768][round % 3],
                    small_read: [0, 8192][round % 2],
                    ..LIMITS
                };
                let limits = match write_windows {
                    true => limits,
                    false => Limits {
                        gathered: 32768,
                        ..limits
                    },
                };
                check(limits, round % 2 == 0, &pieces);
                check(limits, round % 2 == 1, &pieces);
            }
        }
    }

    #[test]
    fn requests_without_data_are_cut_at_the_limit() {
        assert_eq!(bare(1024, 4096, 512), 1024);
        assert_eq!(bare(10240, 4096 + 100, 512), 4096);
        assert_eq!(bare(2048, 4096 + 100, 512), 2048);
        assert_eq!(bare(1 << 62, u32::MAX, 4096), 0xffff_f000);
        assert_eq!(bare(8192, 100, 512), 512);
    }

    #[test]
    fn a_part_is_split_again_for_other_limits() {
        let pieces = [100, 32768 - 100];
        let (part, rest) = all(&pieces).cut(LIMITS, true, &pieces).unwrap();
        assert_eq!((part.length, rest), (32768, None));
        let less = Limits {
            gathered: 4096,
            write_windows: false,
            ..LIMITS
        };
        let again = cut(less, true, &pieces, Span::from_part(part));
        assert!(again.iter().all(|part| part.length <= 8192));
        assert_eq!(again.iter().map(|part| part.length).sum::<u32>(), 32768);
        assert_eq!(again[1].at, u64::from(again[0].length));
    }
}
