// SPDX-License-Identifier: GPL-2.0

//! Splits a large request into chunks (`chunk_kib`) and tracks their progress. Uses nothing but
//! `core`: its tests run on the host.
//!
//! A request is split if it is at least two chunks long.
//!
//! ```text
//!  a read's chunk:    with the drive ──done──► arrived: RDMA WRITE posted ──► settled
//!                          └──────────failed────────────────────────────────► settled
//!  a write's chunk:   on the wire ──RDMA READ done──► arrived: with the drive ──► settled
//!                          └─────────flushed────────────────────────────────────► settled
//!  the request:       ChunkProgress::new(n) ── n chunks settled, in any order ──► response
//! ```
//!
//! A chunk settles exactly once, and the one that settles last continues the request: until then
//! neither a buffer nor the initiator's key is released. The first failure becomes the request's.

/// The most chunks of one request: those of 4 MiB that begin anywhere in a chunk.
pub(crate) const CHUNKS_MAX: usize = 65;
/// The most chunks of one request of 1 MiB.
pub(crate) const CHUNKS_USUAL: usize = 17;
/// The least bytes of a chunk, except a request's first and last.
pub(crate) const CHUNK_MIN: u32 = 64 << 10;
/// The most bytes of a chunk.
pub(crate) const CHUNK_MAX: u32 = 512 << 10;
/// Chunks follow a stripe only if its length is a multiple of this.
const UNIT: u32 = 4096;

/// The rule by which the requests of a volume are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Bytes of a chunk; 0: no request is split.
    chunk: u32,
    /// The least bytes of a request that is split.
    least: u32,
    /// The offset of the volume's start within a chunk, if chunks begin at multiples of their
    /// length on the drive instead of at the start of the request.
    phase: Option<u32>,
}

/// The part of a request's data that is one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkSpan {
    /// Offset of the chunk in the request's data, in bytes.
    pub(crate) from: usize,
    pub(crate) length: usize,
}

impl Split {
    pub(crate) const NONE: Self = Self {
        chunk: 0,
        least: u32::MAX,
        phase: None,
    };

    /// Returns the rule for chunks of `wanted` bytes; 0: no request is split. A drive may report
    /// that it distributes its blocks over independent drives in stripes of `stripe` bytes (0: it
    /// does not). A chunk then is one stripe, or part of one, or several small ones, so that it
    /// depends on as few drives as possible. The volume begins `start` bytes after the start of the
    /// first stripe.
    pub(crate) fn new(wanted: u32, stripe: u32, start: u64) -> Self {
        if wanted == 0 {
            return Self::NONE;
        }
        let wanted = wanted.clamp(CHUNK_MIN, CHUNK_MAX);
        let aligned = match stripe {
            0 => None,
            _ if stripe % UNIT != 0 => None,
            _ if stripe > wanted => (stripe % wanted == 0).then_some(wanted),
            CHUNK_MIN.. => Some(stripe),
            _ => Some(wanted.next_multiple_of(stripe)).filter(|chunk| *chunk <= CHUNK_MAX),
        };
        let chunk = aligned.unwrap_or(wanted);
        Self {
            chunk,
            least: 2 * chunk,
            phase: aligned.map(|chunk| (start % u64::from(chunk)) as u32),
        }
    }

    /// Returns the same rule for a device that moves at most `bytes` bytes with one work request:
    /// the chunk is halved until it fits, or no request is split.
    pub(crate) fn within(mut self, bytes: usize) -> Self {
        while self.chunk as usize > bytes {
            self.chunk /= 2;
        }
        if self.chunk < CHUNK_MIN || self.chunk % UNIT != 0 {
            return Self::NONE;
        }
        self.least = 2 * self.chunk;
        self.phase = self.phase.map(|phase| phase % self.chunk);
        self
    }

    /// Returns the bytes of a chunk; 0: no request is split.
    pub(crate) fn chunk(self) -> usize {
        self.chunk as usize
    }

    /// Returns the most chunks that the requests of a queue with `bytes` bytes of transfer buffers
    /// can have at one time.
    pub(crate) fn most(self, bytes: usize) -> usize {
        // A request of n chunks has at least n - 2 whole chunks, and at least two chunks.
        bytes.checked_div(self.chunk()).unwrap_or(0) * 2
    }

    /// Returns whether a request of `length` bytes is split.
    #[inline]
    pub(crate) fn applies(self, length: usize) -> bool {
        length >= self.least as usize
    }

    /// Returns the bytes between the start of a chunk and that of a request at byte `offset` of the
    /// volume.
    fn lead(self, offset: u64) -> usize {
        let chunk = u64::from(self.chunk);
        let lead = self.phase.and_then(|phase| {
            let within = offset.checked_rem(chunk)?;
            (u64::from(phase) + within).checked_rem(chunk)
        });
        lead.unwrap_or(0) as usize
    }

    /// Returns the number of chunks of a request of `length` bytes at byte `offset` of the volume;
    /// 0: it is not split.
    pub(crate) fn count(self, offset: u64, length: usize) -> usize {
        if !self.applies(length) {
            return 0;
        }
        let last = self.lead(offset) + length - 1;
        let count = last.checked_div(self.chunk()).map_or(0, |last| last + 1);
        if count > CHUNKS_MAX {
            return 0;
        }
        count
    }

    /// Returns the part of the data that is chunk `index` of a request of `length`
    /// bytes at byte `offset` of the volume.
    pub(crate) fn span(self, offset: u64, length: usize, index: usize) -> ChunkSpan {
        let lead = self.lead(offset);
        let border = |index: usize| (index * self.chunk()).saturating_sub(lead).min(length);
        let from = border(index);
        ChunkSpan {
            from,
            length: border(index + 1) - from,
        }
    }
}

/// Counts the arrived and the settled chunks of a request, and records the first failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkProgress<E> {
    chunks: u16,
    arrived: u16,
    settled: u16,
    early: u16,
    failure: Option<E>,
}

impl<E: Copy> ChunkProgress<E> {
    /// The progress of a request that is not split.
    pub(crate) const NONE: Self = Self::new(0);

    /// Returns the progress of a request with `chunks` chunks, none of which has arrived.
    pub(crate) const fn new(chunks: u16) -> Self {
        Self {
            chunks,
            arrived: 0,
            settled: 0,
            early: 0,
            failure: None,
        }
    }

    /// Returns whether no chunk's data has arrived yet.
    pub(crate) fn is_new(&self) -> bool {
        self.arrived == 0
    }

    /// Counts a chunk whose data has arrived and is passed on at once.
    pub(crate) fn arrive(&mut self) {
        self.arrived += 1;
        if self.arrived < self.chunks {
            self.early += 1;
        }
    }

    /// Counts a chunk that has no more work under way. Returns the result of the request once all
    /// its chunks have settled.
    pub(crate) fn settle(&mut self, result: Result<(), E>) -> Option<Result<(), E>> {
        self.settled += 1;
        if let (None, Err(failure)) = (&self.failure, result) {
            self.failure = Some(failure);
        }
        (self.settled == self.chunks).then(|| self.failure.map_or(Ok(()), Err))
    }

    /// Returns the number of chunks of the request; 0: it was not split.
    pub(crate) fn chunks(&self) -> u16 {
        self.chunks
    }

    /// Returns how many chunks were passed on before the last one had arrived.
    pub(crate) fn early(&self) -> u16 {
        self.early
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u32 = 1 << 10;
    const M: usize = 1 << 20;

    fn spans(split: Split, offset: u64, length: usize) -> Vec<(usize, usize)> {
        (0..split.count(offset, length))
            .map(|i| split.span(offset, length, i))
            .map(|e| (e.from, e.length))
            .collect()
    }

    #[test]
    fn without_stripes_chunks_begin_with_the_request() {
        let split = Split::new(128 * K, 0, 0);
        assert_eq!(split.count(4096, M), 8);
        assert_eq!(
            spans(split, 4096, 300 << 10),
            [
                (0, 128 << 10),
                (128 << 10, 128 << 10),
                (256 << 10, 44 << 10)
            ]
        );
        assert_eq!(
            split.count(0, (256 << 10) - 512),
            0,
            "shorter than two chunks"
        );
        assert_eq!(split.count(0, 256 << 10), 2);
    }

    #[test]
    fn nothing_is_cut_when_that_is_not_wanted() {
        assert_eq!(Split::new(0, 64 * K, 0), Split::NONE);
        assert_eq!(Split::NONE.count(0, M), 0);
        assert_eq!(Split::NONE.most(M), 0);
        assert_eq!(Split::new(128 * K, 0, 0).within(32 << 10), Split::NONE);
        assert_eq!(
            Split::new(512 * K, 0, 0).within(160 << 10).chunk(),
            128 << 10
        );
    }

    #[test]
    fn chunks_follow_stripes() {
        let chunk = |wanted, stripe| Split::new(wanted * K, stripe * K, 0).chunk() as u32 / K;
        assert_eq!(chunk(128, 64), 64, "one stripe");
        assert_eq!(chunk(128, 512), 128, "a part of one");
        assert_eq!(chunk(128, 16), 128, "several small ones");
        assert_eq!(chunk(128, 48), 144, "whole ones");
        let split = Split::new(128 * K, 64 * K, u64::from(4 * K));
        // 4 KiB before the volume, 8 before the request.
        assert_eq!(
            spans(split, 8 << 10, 128 << 10),
            [(0, 52 << 10), (52 << 10, 64 << 10), (116 << 10, 12 << 10)]
        );
        // Stripes that cannot be followed are ignored.
        assert_eq!(Split::new(128 * K, 200 * K, 0), Split::new(128 * K, 0, 0));
        assert_eq!(Split::new(128 * K, 1000, 0), Split::new(128 * K, 0, 0));
    }

    /// Checks for many sizes that the chunks cover the request exactly once and in order, that none
    /// exceeds its stripe, and that their number does not exceed [`Split::most`].
    #[test]
    fn chunks_cover_the_request() {
        for wanted in [64, 128, 256, 512] {
            for stripe in [0, 4, 20, 48, 64, 128, 192, 512, 1024] {
                for start in [0, 512, 4096, 1 << 20, 12345 * 512] {
                    for limit in [M, 160 << 10, 96 << 10] {
                        let split = Split::new(wanted * K, stripe * K, start).within(limit);
                        for (offset, length) in [
                            (0, M),
                            (512, M - 512),
                            (1 << 40, 777 << 9),
                            (4096 * 77, 150 << 10),
                        ] {
                            let all = spans(split, offset, length);
                            let mut at = 0;
                            for (from, length) in &all {
                                assert_eq!(*from, at);
                                assert!(*length != 0 && *length <= split.chunk());
                                at += length;
                                let begin = start + offset + *from as u64;
                                let end = begin + *length as u64 - 1;
                                let stripe = u64::from(stripe * K);
                                if split.phase.is_some()
                                    && split.chunk() as u64 <= stripe
                                    && stripe % split.chunk() as u64 == 0
                                {
                                    assert_eq!(begin / stripe, end / stripe, "{split:?}");
                                }
                            }
                            assert!(all.is_empty() || at == length);
                            assert!(all.len() != 1 && all.len() <= CHUNKS_MAX);
                            assert_eq!(all.is_empty(), !split.applies(length), "{split:?}");
                            assert!(
                                all.len() <= split.most(length.next_multiple_of(32 << 10)),
                                "{split:?} {offset} {length}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_last_settled_chunk_completes_the_request() {
        let mut progress = ChunkProgress::<u8>::new(3);
        assert!(progress.is_new());
        progress.arrive();
        assert!(!progress.is_new());
        assert_eq!(progress.settle(Ok(())), None);
        progress.arrive();
        progress.arrive();
        assert_eq!(progress.settle(Ok(())), None);
        assert_eq!(progress.settle(Ok(())), Some(Ok(())));
        assert_eq!((progress.chunks(), progress.early()), (3, 2));
    }

    #[test]
    fn the_first_failure_is_returned_when_all_chunks_are_settled() {
        let mut progress = ChunkProgress::new(4);
        assert_eq!(progress.settle(Err('a')), None);
        progress.arrive();
        assert_eq!(progress.settle(Ok(())), None);
        assert_eq!(progress.settle(Err('b')), None);
        progress.arrive();
        assert_eq!(progress.settle(Ok(())), Some(Err('a')));
    }
}
