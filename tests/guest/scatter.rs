// SPDX-License-Identifier: GPL-2.0

//! Writes and reads a block device with O_DIRECT from memory of every shape, and compares.
//!
//! `hcablk-scatter DEVICE CASE SEED [MIB]`; a case is the shape of the memory:
//! * `sizes`: one buffer, at each in-page offset, of one sector up to more than the largest
//!   request;
//! * `pages`: 1, 2, 3, … scattered pages, up to more than the segment limit of a request;
//! * `edges`: beginning and end in the middle of pages, whole pages between;
//! * `gaps`: pieces of pages with holes between them, which the block layer must split;
//! * `bytes`: beginning and end at any address that the device's alignment allows;
//! * `random`: a mixture of 50 shapes, which also depend on the commit; 150 in a whole run or on a
//!   slow kernel.
//!
//! Every write is read back at once into memory of another shape, and at the end all written
//! data is read once more. On a slow kernel (`guest.slow=N` of the test system) one shape of N is
//! tried. The contents of each sector encode its place and its write. With SEED 0 nothing is
//! written or compared: only the device's limits are printed. MIB limits the part of the device in
//! use.

use std::{
    alloc::{alloc_zeroed, Layout},
    env, fs,
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    process::exit,
    slice,
};

const O_DIRECT: i32 = 0o40000;
const PAGE: usize = 4096;
const SECTOR: usize = 512;
/// The largest number of pieces of one readv or writev.
const IOV_MAX: usize = 1024;
const POOL_PAGES: usize = 8192;
const EINVAL: i32 = 22;

/// A piece of memory: the page's number in the pool, the offset in the page, and the length,
/// which may exceed the page.
#[derive(Clone, Copy, Debug)]
struct Piece {
    page: usize,
    offset: usize,
    len: usize,
}

type Shape = Vec<Piece>;

/// xorshift64*
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `n`.
    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }
}

fn limit(name: &str, file: &str) -> usize {
    // A partition has its disk's limits.
    ["queue", "../queue"]
        .iter()
        .find_map(|queue| {
            fs::read_to_string(format!("/sys/class/block/{name}/{queue}/{file}")).ok()
        })
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Returns the number in a file of the test system, if it exists.
fn number_in(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Page-aligned memory for pieces.
struct Pool {
    base: *mut u8,
    /// The pages in random order, so that neighbours in a shape are not neighbours in memory.
    order: Vec<usize>,
    next: usize,
}

impl Pool {
    fn new(random: &mut Random) -> Self {
        let layout = Layout::from_size_align(POOL_PAGES * PAGE, PAGE).expect("a sane layout");
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        assert!(!base.is_null(), "no memory");
        let mut order: Vec<usize> = (0..POOL_PAGES / 2).collect();
        for n in (1..order.len()).rev() {
            order.swap(n, random.below(n + 1));
        }
        // Touched in random order, so that the order in physical memory differs from this one.
        for page in &order {
            // SAFETY: inside of the allocation.
            unsafe { base.add(page * PAGE).write_volatile(1) };
        }
        Pool {
            base,
            order,
            next: 0,
        }
    }

    /// Returns a piece within a page that no other piece of this shape uses.
    fn piece(&mut self, offset: usize, len: usize) -> Piece {
        assert!(offset + len <= PAGE);
        let page = self.order[self.next % self.order.len()];
        self.next += 1;
        Piece { page, offset, len }
    }

    /// Returns a piece of any length, in the pool's second half. One per shape.
    fn run(&self, offset: usize, len: usize) -> Piece {
        assert!(
            offset + len <= POOL_PAGES / 2 * PAGE,
            "the pool is too small"
        );
        Piece {
            page: POOL_PAGES / 2,
            offset,
            len,
        }
    }

    /// Returns the memory of a shape's pieces.
    fn memory(&mut self, shape: &Shape) -> Vec<&mut [u8]> {
        shape
            .iter()
            .map(|p| {
                // SAFETY: inside of the allocation, and the pieces of a shape do not overlap:
                // each has its own pages, or is the only one in the second half.
                unsafe { slice::from_raw_parts_mut(self.base.add(p.page * PAGE + p.offset), p.len) }
            })
            .collect()
    }
}

/// Fills a sector with contents that depend on its place and its write.
fn fill(sector: u64, generation: u32, seed: u64, out: &mut [u8; SECTOR]) {
    let mut random = Random((sector + 1) << 20 ^ u64::from(generation) ^ seed << 40 | 1);
    for word in out.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    out[..8].copy_from_slice(&sector.to_le_bytes());
    out[8..12].copy_from_slice(&generation.to_le_bytes());
}

struct Tester {
    name: String,
    file: File,
    seed: u64,
    random: Random,
    pool: Pool,
    /// The last write of each sector; 0: none of ours.
    generations: Vec<u32>,
    generation: u32,
    block: usize,
    alignment: usize,
    /// The largest request, in bytes.
    largest: usize,
    segments: usize,
    rounds: u64,
    slow: u64,
    /// The number of shapes in the mixture.
    mixed: usize,
    writes: u64,
    bytes: u64,
    refused: u64,
}

impl Tester {
    fn new(path: &str, seed: u64, mib: usize) -> io::Result<Self> {
        let real = fs::canonicalize(path)?;
        let name = real
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let mut file = File::options()
            .read(true)
            .write(seed != 0)
            .custom_flags(O_DIRECT)
            .open(&real)?;
        let size = file.seek(SeekFrom::End(0))? as usize;
        let seed_of_run = number_in("/run/seed").unwrap_or(0);
        let mut random = Random(seed.wrapping_add(seed_of_run << 16) | 1);
        let slow = number_in("/run/slow").filter(|slow| *slow > 0).unwrap_or(1);
        let whole = slow > 1 || fs::exists("/run/whole")?;
        Ok(Tester {
            pool: Pool::new(&mut random),
            random,
            file,
            seed,
            generations: vec![0; size.min(mib << 20) / SECTOR],
            generation: 0,
            block: limit(&name, "logical_block_size"),
            alignment: limit(&name, "dma_alignment") + 1,
            largest: limit(&name, "max_sectors_kb") << 10,
            segments: limit(&name, "max_segments"),
            rounds: 0,
            slow,
            mixed: if whole { 150 } else { 50 },
            writes: 0,
            bytes: 0,
            refused: 0,
            name,
        })
    }

    /// Returns a random place on the device for `len` bytes, with the device's alignment only.
    fn place(&mut self, len: usize) -> u64 {
        let places = self.generations.len() * SECTOR / self.block - len / self.block + 1;
        (self.random.below(places) * self.block) as u64
    }

    fn write(&mut self, at: u64, shape: &Shape) -> io::Result<()> {
        let len: usize = shape.iter().map(|p| p.len).sum();
        self.generation += 1;
        let mut data = vec![0; len];
        let first = at / SECTOR as u64;
        for (n, sector) in data.chunks_exact_mut(SECTOR).enumerate() {
            fill(
                first + n as u64,
                self.generation,
                self.seed,
                sector.try_into().expect("a sector"),
            );
        }
        let mut pieces = self.pool.memory(shape);
        let mut from = 0;
        for piece in &mut pieces {
            piece.copy_from_slice(&data[from..from + piece.len()]);
            from += piece.len();
        }
        let slices: Vec<_> = pieces.iter().map(|p| IoSlice::new(p)).collect();
        self.file.seek(SeekFrom::Start(at))?;
        let done = self.file.write_vectored(&slices)?;
        if done != len {
            return Err(io::Error::other(format!("wrote {done} of {len} bytes")));
        }
        for sector in first as usize..first as usize + len / SECTOR {
            self.generations[sector] = self.generation;
        }
        self.writes += 1;
        self.bytes += len as u64;
        Ok(())
    }

    fn read(&mut self, at: u64, shape: &Shape) -> io::Result<()> {
        let len: usize = shape.iter().map(|p| p.len).sum();
        let mut pieces = self.pool.memory(shape);
        for piece in &mut pieces {
            piece.fill(0xee);
        }
        let mut slices: Vec<_> = pieces.iter_mut().map(|p| IoSliceMut::new(p)).collect();
        self.file.seek(SeekFrom::Start(at))?;
        let done = self.file.read_vectored(&mut slices)?;
        if done != len {
            return Err(io::Error::other(format!("read {done} of {len} bytes")));
        }
        let data: Vec<u8> = pieces.concat();
        let mut wanted = [0; SECTOR];
        for (n, sector) in data.chunks_exact(SECTOR).enumerate() {
            let number = at / SECTOR as u64 + n as u64;
            let generation = self.generations[number as usize];
            if generation == 0 {
                continue;
            }
            fill(number, generation, self.seed, &mut wanted);
            if sector != wanted {
                let byte = sector
                    .iter()
                    .zip(&wanted)
                    .position(|(a, b)| a != b)
                    .unwrap_or(0);
                return Err(io::Error::other(format!(
                    "sector {number} (number {n} of this read, byte {byte}) is wrong: \
                     wanted {:02x?}…, got {:02x?}…",
                    &wanted[..16],
                    &sector[..16]
                )));
            }
        }
        Ok(())
    }

    /// Records the state that a refused write has left: the block layer splits a request
    /// (`bio_split_io_at`), and may refuse a later part when the first ones are written. A sector
    /// must hold this write or the one before.
    fn adopt(&mut self, at: u64, len: usize) -> io::Result<()> {
        let shape = vec![self.pool.run(0, len)];
        let mut data = self.pool.memory(&shape);
        self.file.seek(SeekFrom::Start(at))?;
        self.file.read_exact(data[0])?;
        let mut wanted = [0; SECTOR];
        let first = (at / SECTOR as u64) as usize;
        for (n, sector) in data[0].chunks_exact(SECTOR).enumerate() {
            let number = first + n;
            fill(number as u64, self.generation, self.seed, &mut wanted);
            if sector == wanted {
                self.generations[number] = self.generation;
            } else if self.generations[number] != 0 {
                fill(
                    number as u64,
                    self.generations[number],
                    self.seed,
                    &mut wanted,
                );
                if sector != wanted {
                    return Err(io::Error::other(format!(
                        "sector {number} holds neither write"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Writes from one shape and reads into another.
    fn round(&mut self, shape: Shape) -> io::Result<()> {
        self.rounds += 1;
        if (self.rounds + self.seed) % self.slow != 0 {
            return Ok(());
        }
        let len = shape.iter().map(|p| p.len).sum();
        if len > self.generations.len() * SECTOR {
            // Larger than the part of the device in use.
            return Ok(());
        }
        let at = self.place(len);
        match self.write(at, &shape) {
            // Bytes that a device with these limits cannot take in one request, and the block
            // layer cannot split.
            Err(err)
                if err.raw_os_error() == Some(EINVAL)
                    && shape.iter().any(|p| p.len % self.block != 0) =>
            {
                self.refused += 1;
                return self
                    .adopt(at, len)
                    .map_err(|err| self.explain("after a refused write,", at, &shape, err));
            }
            result => result.map_err(|err| self.explain("writing", at, &shape, err))?,
        }
        let other = self.other_shape(len);
        self.read(at, &other)
            .map_err(|err| self.explain("reading back", at, &other, err))
    }

    fn explain(&self, what: &str, at: u64, shape: &Shape, err: io::Error) -> io::Error {
        let pieces: Vec<_> = shape.iter().take(12).map(|p| (p.offset, p.len)).collect();
        io::Error::other(format!(
            "{what} {} at byte {at}, {} pieces (offset, length) {pieces:?}…: {err}",
            self.name,
            shape.len()
        ))
    }

    /// Returns memory for `len` bytes: one buffer that starts in the middle of a page,
    /// scattered pages, or (for few bytes, since each piece is a request then) pieces of pages.
    fn other_shape(&mut self, len: usize) -> Shape {
        let blocks = PAGE / self.block;
        let scattered = len / PAGE + 2 <= IOV_MAX;
        match self.random.below(3) {
            0 if scattered => {
                let head = (1 + self.random.below(blocks)) * self.block;
                if len <= head {
                    return vec![self.pool.piece(PAGE - len, len)];
                }
                let mut shape = self.edged(head, (len - head) / PAGE, (len - head) % PAGE);
                shape.retain(|piece| piece.len > 0);
                shape
            }
            1 if len <= 16 * PAGE => {
                let mut shape = Shape::new();
                let mut rest = len;
                while rest > 0 {
                    let part = (1 + self.random.below(blocks.min(rest / self.block))) * self.block;
                    let offset = self.random.below((PAGE - part) / self.block + 1) * self.block;
                    shape.push(self.pool.piece(offset, part));
                    rest -= part;
                }
                shape
            }
            _ => {
                let offset = self.random.below(blocks) * self.block;
                vec![self.pool.run(offset, len)]
            }
        }
    }

    fn sizes(&mut self) -> io::Result<()> {
        let most = self.largest / self.block;
        let mut sizes: Vec<usize> = (1..=17).collect();
        let mut power = 32;
        while power < most {
            sizes.extend([power - 1, power, power + 1]);
            power *= 2;
        }
        sizes.extend([most - 1, most, most + 1, 2 * most + 3]);
        for size in sizes {
            for offset in (0..PAGE).step_by(self.block) {
                // Long buffers need not be tried at every offset.
                if size < 300 || offset % (3 * self.block) == 0 {
                    self.round(vec![self.pool.run(offset, size * self.block)])?;
                }
            }
        }
        Ok(())
    }

    fn pages(&mut self) -> io::Result<()> {
        for count in (1..=self.segments + 2).filter(|n| *n <= IOV_MAX) {
            if count > 40 && count % 16 > 1 && count + 3 < self.segments {
                continue;
            }
            let shape = (0..count).map(|_| self.pool.piece(0, PAGE)).collect();
            self.round(shape)?;
        }
        Ok(())
    }

    /// Returns pages between a first piece of `head` bytes at the end of its page, and a last
    /// one of `tail` bytes.
    fn edged(&mut self, head: usize, middle: usize, tail: usize) -> Shape {
        let mut shape = vec![self.pool.piece(PAGE - head, head)];
        shape.extend((0..middle).map(|_| self.pool.piece(0, PAGE)));
        shape.push(self.pool.piece(0, tail));
        shape
    }

    fn edges(&mut self) -> io::Result<()> {
        for head in (self.block..=PAGE).step_by(self.block) {
            for middle in [
                0,
                1,
                2,
                3,
                5,
                16,
                31,
                self.segments.saturating_sub(2).min(IOV_MAX - 2),
            ] {
                let tail = (1 + self.random.below(PAGE / self.block)) * self.block;
                let shape = self.edged(head, middle, tail);
                self.round(shape)?;
            }
        }
        Ok(())
    }

    fn gaps(&mut self) -> io::Result<()> {
        for count in [2, 3, 7, 16, 33, 128] {
            for _ in 0..4 {
                let mut shape = Shape::new();
                for _ in 0..count {
                    let len = (1 + self.random.below(PAGE / self.block)) * self.block;
                    let offset = self.random.below((PAGE - len) / self.block + 1) * self.block;
                    shape.push(self.pool.piece(offset, len));
                }
                self.round(shape)?;
            }
        }
        Ok(())
    }

    fn bytes(&mut self) -> io::Result<()> {
        let step = self.alignment;
        for _ in 0..60 {
            let head = (1 + self.random.below(PAGE / step - 1)) * step;
            let middle = self.random.below(20);
            // Head and tail together are whole blocks.
            let tail = (self.block - head % self.block) % self.block;
            let shape = if tail == 0 {
                vec![self.pool.run(PAGE - head, head + middle * PAGE)]
            } else {
                self.edged(head, middle, tail)
            };
            self.round(shape)?;
            // The same length in one piece.
            let len = (1 + self.random.below(64)) * self.block;
            let offset = self.random.below(PAGE / step) * step;
            self.round(vec![self.pool.run(offset, len)])?;
        }
        Ok(())
    }

    fn mixture(&mut self) -> io::Result<()> {
        for _ in 0..self.mixed {
            let len = (1 + self.random.below(self.largest / self.block * 5 / 4)) * self.block;
            let len = len >> self.random.below(8);
            let shape = self.other_shape((len / self.block).max(1) * self.block);
            self.round(shape)?;
        }
        Ok(())
    }

    /// Reads all written data once more.
    fn read_all(&mut self) -> io::Result<()> {
        let all = self.generations.len() * SECTOR;
        let step = self.largest.min(1 << 20);
        for at in (0..all).step_by(step) {
            let len = step.min(all - at);
            let part = &self.generations[at / SECTOR..(at + len) / SECTOR];
            if part.iter().any(|g| *g != 0) {
                let shape = vec![self.pool.run(0, len)];
                self.read(at as u64, &shape)
                    .map_err(|err| self.explain("reading all", at as u64, &shape, err))?;
            }
        }
        Ok(())
    }

    fn case(&mut self, case: &str) -> io::Result<()> {
        match case {
            "sizes" => self.sizes(),
            "pages" => self.pages(),
            "edges" => self.edges(),
            "gaps" => self.gaps(),
            "bytes" => self.bytes(),
            "random" => self.mixture(),
            _ => Err(io::Error::other(format!("there is no case {case}"))),
        }?;
        self.read_all()
    }
}

fn main() {
    let args: Vec<String> = env::args().collect();
    let [_, path, case, seed, rest @ ..] = args.as_slice() else {
        eprintln!("usage: hcablk-scatter DEVICE CASE SEED [MIB]");
        exit(2);
    };
    let seed = seed.parse().unwrap_or(1);
    let mib = rest
        .first()
        .and_then(|text| text.parse().ok())
        .unwrap_or(64);
    let mut tester = match Tester::new(path, seed, mib) {
        Ok(tester) => tester,
        Err(err) => {
            eprintln!("{path}: {err}");
            exit(1);
        }
    };
    println!(
        "{}: block {}, largest request {}, segments {}, alignment {}",
        tester.name, tester.block, tester.largest, tester.segments, tester.alignment
    );
    if seed == 0 {
        return;
    }
    if let Err(err) = tester.case(case) {
        eprintln!("{case}: {err}");
        exit(1);
    }
    println!(
        "{case}: {} writes, {} bytes, {} refused for their alignment",
        tester.writes, tester.bytes, tester.refused
    );
}
