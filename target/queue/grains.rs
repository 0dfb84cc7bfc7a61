// SPDX-License-Identifier: GPL-2.0

//! How a large request is cut, and what became of the pieces. Uses nothing but
//! `core`: its tests run on the host.
//!
//! A *grain* is what users know as a chunk (`chunk_kib`): in this code a chunk
//! is a transfer buffer. A request is cut if it has the length of two grains.
//!
//! ```text
//!  a read's grain:    with the drive ──done──► arrived: RDMA WRITE posted ──► settled
//!                          └──────────failed────────────────────────────────► settled
//!  a write's grain:   on the wire ──RDMA READ done──► arrived: with the drive ──► settled
//!                          └─────────flushed────────────────────────────────────► settled
//!  the request:       Tally::of(n) ── n grains settled, in any order ──► answer
//! ```
//!
//! A grain settles once, whatever becomes of it, and whoever settles the last
//! one goes on with the request: until then neither a buffer nor the
//! initiator's key is given up. The first failure is the request's.

/// Grains of one request at most: of 4 MiB, which begins anywhere in one.
pub(super) const GRAINS_MAX: usize = 65;
/// Grains of one request of 1 MiB at most.
pub(super) const GRAINS_USUAL: usize = 17;
/// Bytes of a grain at least, but for a request's first and last.
pub(super) const GRAIN_MIN: u32 = 64 << 10;
/// Bytes of a grain at most.
pub(super) const GRAIN_MAX: u32 = 512 << 10;
/// What a stripe's length must be a multiple of to be followed.
const UNIT: u32 = 4096;

/// How the requests of a volume are cut, all in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Bytes of a grain; 0: nothing is cut.
    grain: u32,
    /// Bytes from which a request is cut.
    least: u32,
    /// Where the volume begins within a grain, if grains begin at multiples of
    /// their length on the drive, and not where the request does.
    phase: Option<u32>,
}

/// A part of a request's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Bytes from the beginning of the request's data.
    pub(super) from: usize,
    pub(super) length: usize,
}

impl Cut {
    pub(crate) const NONE: Self = Self {
        grain: 0,
        least: u32::MAX,
        phase: None,
    };

    /// Grains of `wanted` bytes, 0: none. If the drive says that it deals its
    /// blocks out in stripes of `stripe` bytes (0: it does not), to drives of which each
    /// delivers by itself, a grain is one stripe, or a part of one, or several of small ones, so
    /// that it depends on as few drives as can be. The volume begins `start`
    /// bytes from the first stripe's beginning.
    pub(crate) fn new(wanted: u32, stripe: u32, start: u64) -> Self {
        if wanted == 0 {
            return Self::NONE;
        }
        let wanted = wanted.clamp(GRAIN_MIN, GRAIN_MAX);
        let aligned = match stripe {
            0 => None,
            _ if stripe % UNIT != 0 => None,
            _ if stripe > wanted => (stripe % wanted == 0).then_some(wanted),
            GRAIN_MIN.. => Some(stripe),
            _ => Some(wanted.next_multiple_of(stripe)).filter(|grain| *grain <= GRAIN_MAX),
        };
        let grain = aligned.unwrap_or(wanted);
        Self {
            grain,
            least: 2 * grain,
            phase: aligned.map(|grain| (start % u64::from(grain)) as u32),
        }
    }

    /// The same for a device that moves no more than `bytes` with one work
    /// request: the grain is halved until it fits, or nothing is cut.
    pub(crate) fn within(mut self, bytes: usize) -> Self {
        while self.grain as usize > bytes {
            self.grain /= 2;
        }
        if self.grain < GRAIN_MIN || self.grain % UNIT != 0 {
            return Self::NONE;
        }
        self.least = 2 * self.grain;
        self.phase = self.phase.map(|phase| phase % self.grain);
        self
    }

    /// Bytes of a grain; 0: nothing is cut.
    pub(crate) fn grain(self) -> usize {
        self.grain as usize
    }

    /// Grains that the requests of a queue with `bytes` of transfer buffers can
    /// have at one time.
    pub(super) fn most(self, bytes: usize) -> usize {
        // A request of n grains has at least n - 2 whole ones, and two at least.
        bytes.checked_div(self.grain()).unwrap_or(0) * 2
    }

    /// Whether a request of `length` bytes is cut.
    #[inline]
    pub(super) fn applies(self, length: usize) -> bool {
        length >= self.least as usize
    }

    /// Bytes of a grain that lie before a request at `offset` of the volume.
    fn lead(self, offset: u64) -> usize {
        let grain = u64::from(self.grain);
        let lead = self.phase.and_then(|phase| {
            let within = offset.checked_rem(grain)?;
            (u64::from(phase) + within).checked_rem(grain)
        });
        lead.unwrap_or(0) as usize
    }

    /// How many grains a request at `offset` of the volume has; 0: it is not cut.
    pub(super) fn count(self, offset: u64, length: usize) -> usize {
        if !self.applies(length) {
            return 0;
        }
        let last = self.lead(offset) + length - 1;
        let count = last.checked_div(self.grain()).map_or(0, |last| last + 1);
        if count > GRAINS_MAX {
            return 0;
        }
        count
    }

    /// Grain `index` of a request.
    pub(super) fn extent(self, offset: u64, length: usize, index: usize) -> Extent {
        let lead = self.lead(offset);
        let border = |index: usize| (index * self.grain()).saturating_sub(lead).min(length);
        let from = border(index);
        Extent {
            from,
            length: border(index + 1) - from,
        }
    }
}

/// What has become of the grains of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tally<E> {
    grains: u16,
    arrived: u16,
    settled: u16,
    early: u16,
    failure: Option<E>,
}

impl<E: Copy> Tally<E> {
    /// A request that is not cut.
    pub(super) const NONE: Self = Self::of(0);

    /// All of `grains` are on their way.
    pub(super) const fn of(grains: u16) -> Self {
        Self {
            grains,
            arrived: 0,
            settled: 0,
            early: 0,
            failure: None,
        }
    }

    /// Whether no grain's data is there yet.
    pub(super) fn is_new(&self) -> bool {
        self.arrived == 0
    }

    /// A grain's data is there and goes on at once.
    pub(super) fn arrive(&mut self) {
        self.arrived += 1;
        if self.arrived < self.grains {
            self.early += 1;
        }
    }

    /// Nothing is under way for a grain any more. `Some`: nor for any other, and
    /// this became of the request.
    pub(super) fn settle(&mut self, result: Result<(), E>) -> Option<Result<(), E>> {
        self.settled += 1;
        if let (None, Err(failure)) = (&self.failure, result) {
            self.failure = Some(failure);
        }
        (self.settled == self.grains).then(|| self.failure.map_or(Ok(()), Err))
    }

    /// How many there are; 0: the request was not cut.
    pub(super) fn grains(&self) -> u16 {
        self.grains
    }

    /// How many went on before the last had arrived.
    pub(super) fn early(&self) -> u16 {
        self.early
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u32 = 1 << 10;
    const M: usize = 1 << 20;

    fn extents(cut: Cut, offset: u64, length: usize) -> Vec<(usize, usize)> {
        (0..cut.count(offset, length))
            .map(|i| cut.extent(offset, length, i))
            .map(|e| (e.from, e.length))
            .collect()
    }

    #[test]
    fn without_stripes_grains_begin_with_the_request() {
        let cut = Cut::new(128 * K, 0, 0);
        assert_eq!(cut.count(4096, M), 8);
        assert_eq!(
            extents(cut, 4096, 300 << 10),
            [
                (0, 128 << 10),
                (128 << 10, 128 << 10),
                (256 << 10, 44 << 10)
            ]
        );
        assert_eq!(
            cut.count(0, (256 << 10) - 512),
            0,
            "shorter than two grains"
        );
        assert_eq!(cut.count(0, 256 << 10), 2);
    }

    #[test]
    fn nothing_is_cut_when_that_is_not_wanted() {
        assert_eq!(Cut::new(0, 64 * K, 0), Cut::NONE);
        assert_eq!(Cut::NONE.count(0, M), 0);
        assert_eq!(Cut::NONE.most(M), 0);
        assert_eq!(Cut::new(128 * K, 0, 0).within(32 << 10), Cut::NONE);
        assert_eq!(Cut::new(512 * K, 0, 0).within(160 << 10).grain(), 128 << 10);
    }

    #[test]
    fn grains_follow_stripes() {
        let grain = |wanted, stripe| Cut::new(wanted * K, stripe * K, 0).grain() as u32 / K;
        assert_eq!(grain(128, 64), 64, "one stripe");
        assert_eq!(grain(128, 512), 128, "a part of one");
        assert_eq!(grain(128, 16), 128, "several small ones");
        assert_eq!(grain(128, 48), 144, "whole ones");
        let cut = Cut::new(128 * K, 64 * K, u64::from(4 * K));
        // 4 KiB before the volume, 8 before the request.
        assert_eq!(
            extents(cut, 8 << 10, 128 << 10),
            [(0, 52 << 10), (52 << 10, 64 << 10), (116 << 10, 12 << 10)]
        );
        // What cannot be followed is not.
        assert_eq!(Cut::new(128 * K, 200 * K, 0), Cut::new(128 * K, 0, 0));
        assert_eq!(Cut::new(128 * K, 1000, 0), Cut::new(128 * K, 0, 0));
    }

    /// Whatever the sizes: all of the request, once, in order, no grain beyond
    /// its stripes, and never more of them than there is room for.
    #[test]
    fn grains_cover_the_request() {
        for wanted in [64, 128, 256, 512] {
            for stripe in [0, 4, 20, 48, 64, 128, 192, 512, 1024] {
                for start in [0, 512, 4096, 1 << 20, 12345 * 512] {
                    for limit in [M, 160 << 10, 96 << 10] {
                        let cut = Cut::new(wanted * K, stripe * K, start).within(limit);
                        for (offset, length) in [
                            (0, M),
                            (512, M - 512),
                            (1 << 40, 777 << 9),
                            (4096 * 77, 150 << 10),
                        ] {
                            let all = extents(cut, offset, length);
                            let mut at = 0;
                            for (from, length) in &all {
                                assert_eq!(*from, at);
                                assert!(*length != 0 && *length <= cut.grain());
                                at += length;
                                let begin = start + offset + *from as u64;
                                let end = begin + *length as u64 - 1;
                                let stripe = u64::from(stripe * K);
                                if cut.phase.is_some()
                                    && cut.grain() as u64 <= stripe
                                    && stripe % cut.grain() as u64 == 0
                                {
                                    assert_eq!(begin / stripe, end / stripe, "{cut:?}");
                                }
                            }
                            assert!(all.is_empty() || at == length);
                            assert!(all.len() != 1 && all.len() <= GRAINS_MAX);
                            assert_eq!(all.is_empty(), !cut.applies(length), "{cut:?}");
                            assert!(
                                all.len() <= cut.most(length.next_multiple_of(32 << 10)),
                                "{cut:?} {offset} {length}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn whoever_settles_last_goes_on() {
        let mut tally = Tally::<u8>::of(3);
        assert!(tally.is_new());
        tally.arrive();
        assert!(!tally.is_new());
        assert_eq!(tally.settle(Ok(())), None);
        tally.arrive();
        tally.arrive();
        assert_eq!(tally.settle(Ok(())), None);
        assert_eq!(tally.settle(Ok(())), Some(Ok(())));
        assert_eq!((tally.grains(), tally.early()), (3, 2));
    }

    #[test]
    fn a_failure_is_told_when_all_are_settled_and_the_first_one_is() {
        let mut tally = Tally::of(4);
        assert_eq!(tally.settle(Err('a')), None);
        tally.arrive();
        assert_eq!(tally.settle(Ok(())), None);
        assert_eq!(tally.settle(Err('b')), None);
        tally.arrive();
        assert_eq!(tally.settle(Ok(())), Some(Err('a')));
    }
}
