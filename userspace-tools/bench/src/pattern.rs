// SPDX-License-Identifier: GPL-2.0

//! I/O of every shape with verifiable data: each 8 bytes of a drive are a function of a seed and their offset, and
//! memory around a request's segments must not change.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::OpenOptionsExt as _;

use hcablk::error::{Error, Kind, Result};
use nix::fcntl::OFlag;
use nix::sys::uio::{preadv, pwritev};

const PAGE: usize = 4096;
/// The content of memory that a request must not touch.
const GUARD: u8 = 0xa5;

/// The eight bytes at a multiple of eight.
fn word(seed: u64, offset: u64) -> [u8; 8] {
    // SplitMix64: neighbouring words are unrelated.
    let mut z = seed.wrapping_add(
        (offset / 8)
            .wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15),
    );
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

/// Writes the pattern of an offset into memory whose length is a multiple of eight.
pub(crate) fn fill(memory: &mut [u8], seed: u64, offset: u64) {
    for (piece, at) in memory.chunks_exact_mut(8).zip((offset..).step_by(8)) {
        piece.copy_from_slice(&word(seed, at));
    }
}

/// Returns the first position where memory differs from the pattern of an offset.
fn first_wrong(memory: &[u8], seed: u64, offset: u64) -> Option<u64> {
    let mut pieces = memory.chunks_exact(8).zip((offset..).step_by(8));
    pieces
        .find(|(piece, at)| **piece != word(seed, *at))
        .map(|(_, at)| at)
}

/// Memory with segments at chosen offsets in their pages, and guards around each.
pub(crate) struct Arena {
    memory: Vec<u8>,
    /// The range of each segment in `memory`.
    places: Vec<(usize, usize)>,
}

impl Arena {
    /// Makes segments, each given by its offset in a page and its length, in pages of their own.
    pub(crate) fn new(segments: &[(usize, usize)]) -> Self {
        let total: usize = segments
            .iter()
            .map(|(at, length)| at + length + 3 * PAGE)
            .sum();
        let memory = vec![GUARD; total + PAGE];
        // The start of the first page; all others start multiples of a page after it.
        let first = memory.as_ptr().align_offset(PAGE);
        let mut page = 0;
        let places = segments
            .iter()
            .map(|(at, length)| {
                // A page between two segments, so that no two are neighbours.
                let from = page + PAGE + at;
                page = (from + length).next_multiple_of(PAGE);
                (first + from, *length)
            })
            .collect();
        Self { memory, places }
    }

    /// Returns the segments.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.places
            .iter()
            .map(|(from, length)| self.memory.get(*from..from + length).unwrap_or_default())
    }

    fn segments_mut(&mut self) -> Vec<&mut [u8]> {
        let mut rest = self.memory.as_mut_slice();
        let mut passed = 0;
        let mut segments = Vec::new();
        for (from, length) in &self.places {
            let (_, behind) = std::mem::take(&mut rest).split_at_mut(from - passed);
            let (segment, behind) = behind.split_at_mut(*length);
            segments.push(segment);
            rest = behind;
            passed = from + length;
        }
        segments
    }

    /// Returns whether the memory around the segments is unchanged.
    fn guards_are_whole(&self) -> bool {
        let mut passed = 0;
        for (from, length) in self.places.iter().chain([&(self.memory.len(), 0)]) {
            let between = self.memory.get(passed..*from).unwrap_or_default();
            if between.iter().any(|byte| *byte != GUARD) {
                return false;
            }
            passed = from + length;
        }
        true
    }

    fn length(&self) -> usize {
        self.places.iter().map(|(_, length)| length).sum()
    }

    fn offset(offset: u64) -> io::Result<i64> {
        i64::try_from(offset).map_err(io::Error::other)
    }

    /// Reads into the segments.
    pub(crate) fn read(&mut self, file: &File, offset: u64) -> io::Result<()> {
        let wanted = self.length();
        let mut segments: Vec<_> = self
            .segments_mut()
            .into_iter()
            .map(IoSliceMut::new)
            .collect();
        let done = preadv(file, &mut segments, Self::offset(offset)?)?;
        if done == wanted {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{done} of {wanted} bytes at {offset} were read"
        )))
    }

    /// Writes the segments.
    pub(crate) fn write(&self, file: &File, offset: u64) -> io::Result<()> {
        let segments: Vec<_> = self.segments().map(IoSlice::new).collect();
        let done = pwritev(file, &segments, Self::offset(offset)?)?;
        if done == self.length() {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{done} of {} bytes at {offset} were written",
            self.length()
        )))
    }
}

/// A shape of a request: the offsets of its segments in their pages, and their lengths.
pub(crate) struct Shape {
    /// The shape's name.
    pub(crate) name: String,
    /// Its segments.
    pub(crate) segments: Vec<(usize, usize)>,
}

impl Shape {
    /// Returns the number of bytes of a request of this shape.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.iter().map(|(_, length)| *length as u64).sum()
    }
}

/// Returns the shapes for a disk with blocks of this size: edge cases, and some random ones.
pub(crate) fn shapes(block: usize, by_chance: usize, seed: u64) -> Vec<Shape> {
    let shape = |name: &str, segments: Vec<(usize, usize)>| Shape {
        name: name.to_owned(),
        segments,
    };
    // Offsets of memory other than the start of a page.
    let odd = if block < PAGE { block } else { 512 };
    let mut shapes = vec![
        shape("one block", vec![(0, block)]),
        shape(
            "one block at a page's end",
            vec![(PAGE - block % PAGE, block)],
        ),
        shape("one page", vec![(0, PAGE)]),
        shape("a page's bytes across two pages", vec![(odd, PAGE)]),
        shape("64 KiB in one piece", vec![(0, 64 << 10)]),
        shape("64 KiB across pages", vec![(odd, 64 << 10)]),
        shape("16 pages apart", vec![(0, PAGE); 16]),
        shape("64 blocks apart", vec![(odd, block); 64]),
        shape("1 MiB in one piece", vec![(0, 1 << 20)]),
        shape("1 MiB and a block", vec![(odd, (1 << 20) + block)]),
        shape("256 pages apart", vec![(0, PAGE); 256]),
        shape(
            "small and large pieces",
            vec![
                (odd, block),
                (0, 128 << 10),
                (odd, 3 * block),
                (0, PAGE),
                (odd, 256 << 10),
            ],
        ),
    ];
    let mut state = seed;
    let mut chance = move |below: usize| {
        state = state.wrapping_add(1);
        let drawn = u64::from_le_bytes(word(seed, state.wrapping_mul(8)));
        usize::try_from(drawn % (below as u64)).unwrap_or(0)
    };
    for number in 1..=by_chance {
        let segments = (0..=chance(32))
            .map(|_| (chance(8) * odd % PAGE, (1 + chance(40)) * block))
            .collect();
        shapes.push(shape(&format!("by chance, {number}"), segments));
    }
    shapes
}

/// Opens a disk or drive without the page cache.
pub(crate) fn open(path: &str, write: bool) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(OFlag::O_DIRECT.bits())
        .open(path)
        .map_err(|error| Error::new(Kind::Failed, format!("cannot open {path}: {error}")))
}

/// Writes a shape's pattern at an offset; the memory does not change.
pub(crate) fn write(file: &File, shape: &Shape, seed: u64, offset: u64) -> Result<()> {
    let mut arena = Arena::new(&shape.segments);
    let mut at = offset;
    for segment in arena.segments_mut() {
        fill(segment, seed, at);
        at += segment.len() as u64;
    }
    arena.write(file, offset).map_err(|error| {
        Error::new(
            Kind::Failed,
            format!("{}: cannot write: {error}", shape.name),
        )
    })
}

/// Reads a shape at an offset, and fails if the data is not the pattern, or memory around it was touched.
pub(crate) fn verify(file: &File, shape: &Shape, seed: u64, offset: u64) -> Result<()> {
    let wrong = |why: String| Error::new(Kind::Failed, format!("{}: {why}", shape.name));
    let mut arena = Arena::new(&shape.segments);
    arena
        .read(file, offset)
        .map_err(|error| wrong(format!("cannot read: {error}")))?;
    let mut at = offset;
    for segment in arena.segments() {
        if let Some(place) = first_wrong(segment, seed, at) {
            return Err(wrong(format!(
                "WRONG DATA at byte {place} of the disk, in a request at {offset}"
            )));
        }
        at += segment.len() as u64;
    }
    if !arena.guards_are_whole() {
        return Err(wrong(format!(
            "a read at {offset} CHANGED MEMORY outside its buffers"
        )));
    }
    Ok(())
}

/// Returns the CRC-32 of the pattern of an offset, as `drive::digest` computes it from a drive.
pub(crate) fn digest(seed: u64, offset: u64, length: u64) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    for at in (offset..offset + length).step_by(8) {
        hash.update(&word(seed, at));
    }
    hash.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    /// A file of 4 MiB, opened without `O_DIRECT`, which some file systems lack.
    fn file() -> io::Result<File> {
        let mut file = tempfile::tempfile()?;
        file.write_all(&vec![0; 4 << 20])?;
        Ok(file)
    }

    #[test]
    fn a_pattern_written_in_segments_is_verified() -> Result<()> {
        let file = file().map_err(|error| Error::new(Kind::Failed, error.to_string()))?;
        // A different seed for each: data of earlier shapes must not be taken for that of this one.
        for (seed, shape) in (3..).zip(shapes(512, 20, 7)) {
            write(&file, &shape, seed, 512)?;
            verify(&file, &shape, seed, 512)?;
            assert!(
                verify(&file, &shape, seed + 1000, 512).is_err(),
                "{}: another seed",
                shape.name
            );
            assert!(
                verify(&file, &shape, seed, 1024).is_err(),
                "{}: another place",
                shape.name
            );
        }
        Ok(())
    }

    #[test]
    fn one_wrong_bit_is_found() -> Result<()> {
        let file = file().map_err(|error| Error::new(Kind::Failed, error.to_string()))?;
        let shape = &shapes(512, 0, 0)[5];
        write(&file, shape, 3, 0)?;
        let mut byte = [0];
        let failed = |error: io::Error| Error::new(Kind::Failed, error.to_string());
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, 5000).map_err(failed)?;
        byte[0] ^= 1;
        std::os::unix::fs::FileExt::write_all_at(&file, &byte, 5000).map_err(failed)?;
        let error = verify(&file, shape, 3, 0).map_err(|error| error.message);
        assert!(error.is_err_and(|text| text.contains("WRONG DATA at byte 5000")));
        Ok(())
    }

    #[test]
    fn guards_see_a_byte_too_many() {
        let mut arena = Arena::new(&[(512, 1024), (0, 512)]);
        assert!(arena.guards_are_whole());
        arena.segments_mut()[0].fill(0);
        assert!(arena.guards_are_whole());
        let (from, length) = arena.places[0];
        arena.memory[from + length] = 0;
        assert!(!arena.guards_are_whole());
    }

    #[test]
    fn segments_are_where_they_are_asked_for() {
        let arena = Arena::new(&[(512, 1024), (0, 512), (1024, 8192)]);
        for (segment, at) in arena.segments().zip([512, 0, 1024]) {
            assert_eq!(segment.as_ptr().addr() % PAGE, at);
        }
    }

    #[test]
    fn the_digest_of_a_range_matches_its_pattern() {
        let mut memory = vec![0; 4096];
        fill(&mut memory, 9, 8192);
        assert_eq!(digest(9, 8192, 4096), crc32fast::hash(&memory));
    }
}
