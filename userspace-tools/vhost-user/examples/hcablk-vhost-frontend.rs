// SPDX-License-Identifier: GPL-2.0

//! A frontend of vhost-user-blk for tests: it has a guest's memory and rings, and acts as a monitor
//! and a guest do, and as they should not.

use nix::{
    poll::{poll, PollFd, PollFlags, PollTimeout},
    sys::{
        eventfd::{EfdFlags, EventFd},
        memfd::{memfd_create, MFdFlags},
        socket::{sendmsg, ControlMessage, MsgFlags},
    },
};
use std::{
    env,
    error::Error,
    fs::{self, File},
    io::{IoSlice, Read as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd},
        unix::net::UnixStream,
    },
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};
use vm_memory::{Bytes as _, FileOffset, GuestAddress, GuestMemoryMmap};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// The addresses of the guest's memory: in the guest, and in this program, as the server knows
/// them.
const GUEST: u64 = 0x4000_0000;
const USER: u64 = 0x7000_0000_0000;
const MEMORY: u64 = 24 << 20;
/// Another region.
const SPARE: u64 = 0x8000_0000;
const SPARE_USER: u64 = 0x7100_0000_0000;
const SPARE_BYTES: u64 = 1 << 20;

const ENTRIES: u16 = 256;
/// The largest number of requests in a ring at a time, and the number of descriptors of each.
const SLOTS: u16 = 64;
const EACH: u16 = 3;
/// Bytes of a request's data.
const PIECE: u32 = 64 << 10;
/// The offsets of the parts of a ring.
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADERS: u64 = 0x4000;
const TABLES: u64 = 0x8000;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const ZEROES: u32 = 13;

const F_FLUSH: u64 = 1 << 9;
const F_INDIRECT: u64 = 1 << 28;
const F_EVENT: u64 = 1 << 29;
const F_PROTOCOL: u64 = 1 << 30;
const PROTOCOL: u64 = 1 | (1 << 3) | (1 << 5) | (1 << 9) | (1 << 15);

// Messages.
const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_OWNER: u32 = 3;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const GET_VRING_BASE: u32 = 11;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const SET_VRING_ERR: u32 = 14;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
const GET_QUEUE_NUM: u32 = 17;
const SET_VRING_ENABLE: u32 = 18;
const SET_BACKEND_REQ_FD: u32 = 21;
const GET_CONFIG: u32 = 24;
const SET_CONFIG: u32 = 25;
const ADD_MEM_REG: u32 = 37;
const REM_MEM_REG: u32 = 38;

/// A load reports when this many requests of a connection have ended.
const WORKING: u64 = 200;
/// The time limit of a step that depends on the server alone.
const LONG: Duration = Duration::from_secs(60);

/// A connection to the server.
struct Server {
    socket: UnixStream,
    features: u64,
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn doubles(doubles: &[u64]) -> Vec<u8> {
    doubles
        .iter()
        .flat_map(|double| double.to_ne_bytes())
        .collect()
}

fn double(bytes: &[u8]) -> Result<u64> {
    let bytes = bytes.get(..8).ok_or("a short answer")?;
    Ok(u64::from_ne_bytes(bytes.try_into()?))
}

impl Server {
    /// Connects to a server, which may not listen yet.
    fn connect(path: &str) -> Result<Self> {
        let began = Instant::now();
        let socket = loop {
            match UnixStream::connect(path) {
                Ok(socket) => break socket,
                Err(error) if began.elapsed() > 3 * LONG => return Err(error.into()),
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        };
        socket.set_read_timeout(Some(5 * LONG))?;
        Ok(Self {
            socket,
            features: 0,
        })
    }

    fn send(&self, number: u32, flags: u32, body: &[u8], files: &[RawFd]) -> Result<()> {
        let header = words(&[number, flags, u32::try_from(body.len())?]);
        let parts = [IoSlice::new(&header), IoSlice::new(body)];
        let rights = [ControlMessage::ScmRights(files)];
        let rights = if files.is_empty() {
            &[][..]
        } else {
            &rights[..]
        };
        let sent = sendmsg::<()>(
            self.socket.as_raw_fd(),
            &parts,
            rights,
            MsgFlags::MSG_NOSIGNAL,
            None,
        )?;
        match sent == header.len() + body.len() {
            true => Ok(()),
            false => Err("a part was sent".into()),
        }
    }

    fn answer(&mut self, number: u32) -> Result<Vec<u8>> {
        let mut header = [0; 12];
        self.socket.read_exact(&mut header)?;
        let word = |at: usize| header.get(at..at + 4).and_then(|word| word.try_into().ok());
        let word = |at| u32::from_ne_bytes(word(at).unwrap_or_default());
        if word(0) != number {
            return Err(format!("an answer to {} and not to {number}", word(0)).into());
        }
        let mut body = vec![0; word(8) as usize];
        self.socket.read_exact(&mut body)?;
        Ok(body)
    }

    /// Asks for something.
    fn get(&mut self, number: u32, body: &[u8]) -> Result<Vec<u8>> {
        self.send(number, 1, body, &[])?;
        self.answer(number)
    }

    /// Sets something, and waits until it is set.
    fn set(&mut self, number: u32, body: &[u8], files: &[RawFd]) -> Result<()> {
        self.send(number, 1 | (1 << 3), body, files)?;
        match double(&self.answer(number)?)? {
            0 => Ok(()),
            _ => Err(format!("message {number} is refused").into()),
        }
    }

    /// Begins a connection with those of the `wanted` features that the server offers.
    fn begin(&mut self, wanted: u64) -> Result<()> {
        self.send(SET_OWNER, 1, &[], &[])?;
        let offered = double(&self.get(GET_FEATURES, &[])?)?;
        let protocol = double(&self.get(GET_PROTOCOL_FEATURES, &[])?)?;
        if protocol & PROTOCOL != PROTOCOL {
            return Err(format!("the protocol's features are {protocol:#x}").into());
        }
        self.send(SET_PROTOCOL_FEATURES, 1, &doubles(&[PROTOCOL]), &[])?;
        self.features = (offered & wanted) | F_PROTOCOL;
        self.set(SET_FEATURES, &doubles(&[self.features]), &[])
    }

    fn config(&mut self) -> Result<Vec<u8>> {
        let mut body = words(&[0, 60, 0]);
        body.extend([0; 60]);
        let answer = self.get(GET_CONFIG, &body)?;
        Ok(answer.get(12..).ok_or("no configuration")?.to_vec())
    }
}

/// The guest's memory, which outlives connections.
struct Guest {
    file: File,
    memory: GuestMemoryMmap,
    rings: Vec<Ring>,
}

/// The guest's side of a ring.
struct Ring {
    index: u32,
    base: u64,
    data: u64,
    kick: EventFd,
    call: EventFd,
    error: EventFd,
    available: u16,
    used: u16,
}

/// Data of a request.
#[derive(Clone, Copy)]
enum Data {
    None,
    Out(u64, u32),
    In(u64, u32),
}

fn event() -> Result<EventFd> {
    Ok(EventFd::from_flags(
        EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC,
    )?)
}

/// Waits until a descriptor is readable.
fn readable(fd: BorrowedFd<'_>, limit: Duration) -> Result<bool> {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    Ok(poll(&mut fds, PollTimeout::try_from(limit)?)? == 1)
}

/// Returns a file of guest memory.
fn shared(bytes: u64) -> Result<File> {
    let file = File::from(memfd_create("guest", MFdFlags::MFD_CLOEXEC)?);
    file.set_len(bytes)?;
    Ok(file)
}

/// Returns bytes of a pattern.
fn pattern(seed: u64, length: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let word = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..length / 8).flat_map(word).collect()
}

impl Guest {
    fn new(rings: u32) -> Result<Self> {
        let (file, spare) = (shared(MEMORY)?, shared(SPARE_BYTES)?);
        let memory = GuestMemoryMmap::from_ranges_with_files([
            (
                GuestAddress(GUEST),
                usize::try_from(MEMORY)?,
                Some(FileOffset::new(file.try_clone()?, 0)),
            ),
            (
                GuestAddress(SPARE),
                usize::try_from(SPARE_BYTES)?,
                Some(FileOffset::new(spare, 0)),
            ),
        ])?;
        let ring = |index| {
            Ok::<_, Box<dyn Error>>(Ring {
                index,
                base: GUEST + (u64::from(index) << 20),
                data: GUEST + (8 << 20) + (u64::from(index) << 22),
                kick: event()?,
                call: event()?,
                error: event()?,
                available: 0,
                used: 0,
            })
        };
        Ok(Self {
            file,
            memory,
            rings: (0..rings).map(ring).collect::<Result<_>>()?,
        })
    }

    /// Sends the server the table of the memory.
    fn set_table(&self, server: &mut Server) -> Result<()> {
        let mut body = words(&[1, 0]);
        body.extend(doubles(&[GUEST, MEMORY, USER, 0]));
        server.set(SET_MEM_TABLE, &body, &[self.file.as_raw_fd()])
    }

    /// Begins a connection, and sets up the memory and all rings.
    fn start(&mut self, server: &mut Server, features: u64) -> Result<()> {
        server.begin(features)?;
        let most = double(&server.get(GET_QUEUE_NUM, &[])?)?;
        if most < self.rings.len() as u64 {
            return Err(format!("the server has {most} queues").into());
        }
        self.set_table(server)?;
        for ring in &mut self.rings {
            ring.start(server, &self.memory)?;
        }
        Ok(())
    }

    fn bytes(&self, address: u64, length: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length as usize];
        self.memory.read_slice(&mut bytes, GuestAddress(address))?;
        Ok(bytes)
    }
}

impl Ring {
    fn user(&self, offset: u64) -> u64 {
        self.base - GUEST + USER + offset
    }

    /// Makes the server serve the ring, from the first request that has not ended.
    fn start(&mut self, server: &mut Server, memory: &GuestMemoryMmap) -> Result<()> {
        let next = self.used_index(memory)?;
        server.set(SET_VRING_NUM, &words(&[self.index, ENTRIES.into()]), &[])?;
        server.set(SET_VRING_BASE, &words(&[self.index, next.into()]), &[])?;
        let mut body = words(&[self.index, 0]);
        body.extend(doubles(&[
            self.user(0),
            self.user(USED),
            self.user(AVAILABLE),
            0,
        ]));
        server.set(SET_VRING_ADDR, &body, &[])?;
        let index = doubles(&[self.index.into()]);
        server.set(SET_VRING_CALL, &index, &[self.call.as_fd().as_raw_fd()])?;
        server.set(SET_VRING_ERR, &index, &[self.error.as_fd().as_raw_fd()])?;
        server.set(SET_VRING_KICK, &index, &[self.kick.as_fd().as_raw_fd()])?;
        server.set(SET_VRING_ENABLE, &words(&[self.index, 1]), &[])
    }

    /// Makes the server stop the ring; returns the index of the next request.
    fn stop(&self, server: &mut Server) -> Result<u16> {
        let body = server.get(GET_VRING_BASE, &words(&[self.index, 0]))?;
        let index = double(&body)? >> 32;
        Ok(u16::try_from(index)?)
    }

    fn used_index(&self, memory: &GuestMemoryMmap) -> Result<u16> {
        let address = GuestAddress(self.base + USED + 2);
        Ok(memory.load(address, std::sync::atomic::Ordering::Acquire)?)
    }

    fn header(&self, slot: u16) -> u64 {
        self.base + HEADERS + u64::from(slot) * 64
    }

    fn data(&self, slot: u16) -> u64 {
        self.data + u64::from(slot) * u64::from(PIECE)
    }

    fn describe(
        memory: &GuestMemoryMmap,
        table: u64,
        place: u16,
        address: u64,
        length: u32,
        flags: u16,
        next: u16,
    ) -> Result<()> {
        let mut bytes = doubles(&[address]);
        bytes.extend(length.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        let at = GuestAddress(table + u64::from(place) * 16);
        Ok(memory.write_slice(&bytes, at)?)
    }

    /// Makes the descriptors of a request.
    fn fill(
        &self,
        guest: &GuestMemoryMmap,
        features: u64,
        slot: u16,
        op: u32,
        sector: u64,
        data: Data,
    ) -> Result<()> {
        let header = self.header(slot);
        let mut bytes = words(&[op, 0]);
        bytes.extend(sector.to_le_bytes());
        bytes.push(0xff);
        guest.write_slice(&bytes, GuestAddress(header))?;
        let head = slot * EACH;
        let (table, first) = match features & F_INDIRECT {
            0 => (self.base, head),
            _ => (self.base + TABLES + u64::from(slot) * 64, 0),
        };
        let mut place = first;
        let mut parts = vec![(header, 16, 0)];
        match data {
            Data::None => {}
            Data::Out(address, length) => parts.push((address, length, 0)),
            Data::In(address, length) => parts.push((address, length, WRITE)),
        }
        parts.push((header + 16, 1, WRITE));
        let last = parts.len() - 1;
        for (count, (address, length, flags)) in parts.into_iter().enumerate() {
            let flags = if count == last { flags } else { flags | NEXT };
            Self::describe(guest, table, place, address, length, flags, place + 1)?;
            place += 1;
        }
        if features & F_INDIRECT != 0 {
            let length = u32::from(place - first) * 16;
            Self::describe(guest, self.base, head, table, length, INDIRECT, 0)?;
        }
        Ok(())
    }

    /// Makes a chain available.
    fn offer(&mut self, guest: &GuestMemoryMmap, head: u16) -> Result<()> {
        let place = u64::from(self.available % ENTRIES);
        guest.write_obj(head, GuestAddress(self.base + AVAILABLE + 4 + place * 2))?;
        self.available = self.available.wrapping_add(1);
        let order = std::sync::atomic::Ordering::Release;
        Ok(guest.store(
            self.available,
            GuestAddress(self.base + AVAILABLE + 2),
            order,
        )?)
    }

    fn submit(
        &mut self,
        guest: &GuestMemoryMmap,
        features: u64,
        slot: u16,
        op: u32,
        sector: u64,
        data: Data,
    ) -> Result<()> {
        self.fill(guest, features, slot, op, sector, data)?;
        self.offer(guest, slot * EACH)
    }

    fn kick(&self) -> Result<()> {
        self.kick.write(1)?;
        Ok(())
    }

    /// Returns a request that has ended: its slot and its status.
    fn ended(&mut self, guest: &GuestMemoryMmap) -> Result<Option<(u16, u8)>> {
        if self.used_index(guest)? == self.used {
            return Ok(None);
        }
        let place = u64::from(self.used % ENTRIES);
        let id: u32 = guest.read_obj(GuestAddress(self.base + USED + 4 + place * 8))?;
        self.used = self.used.wrapping_add(1);
        let slot = u16::try_from(id)? / EACH;
        let status = guest.read_obj(GuestAddress(self.header(slot) + 16))?;
        Ok(Some((slot, status)))
    }

    /// Waits for interrupts alone, until the next request ends.
    fn wait(&mut self, guest: &GuestMemoryMmap, limit: Duration) -> Result<(u16, u8)> {
        let began = Instant::now();
        loop {
            // The server interrupts when it ends the next one.
            let event = GuestAddress(self.base + AVAILABLE + 4 + u64::from(ENTRIES) * 2);
            guest.store(self.used, event, std::sync::atomic::Ordering::SeqCst)?;
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            if let Some(ended) = self.ended(guest)? {
                return Ok(ended);
            }
            let left = limit.saturating_sub(began.elapsed());
            if !readable(self.call.as_fd(), left)? {
                return match self.ended(guest)? {
                    Some(_) => Err("a request has ended, and there was no interrupt".into()),
                    None => Err(format!("ring {}: a request has not ended", self.index).into()),
                };
            }
            self.call.read()?;
        }
    }

    /// Carries out one request; returns its status.
    fn execute(
        &mut self,
        guest: &GuestMemoryMmap,
        features: u64,
        op: u32,
        sector: u64,
        data: Data,
    ) -> Result<u8> {
        self.submit(guest, features, 0, op, sector, data)?;
        self.kick()?;
        Ok(self.wait(guest, 10 * LONG)?.1)
    }
}

fn expect<T: Copy + PartialEq + std::fmt::Debug>(what: &str, wanted: T, got: T) -> Result<()> {
    match wanted == got {
        true => Ok(()),
        false => Err(format!("{what}: {got:?}, not {wanted:?}").into()),
    }
}

/// Checks all operations of a disk, on each ring.
#[allow(clippy::too_many_lines, reason = "one step after the other")]
fn all(path: &str, rings: u32, features: u64) -> Result<()> {
    let mut server = Server::connect(path)?;
    let mut guest = Guest::new(rings)?;
    guest.start(&mut server, features)?;
    let features = server.features;
    let size = double(&server.config()?)?;
    println!("sectors {size}");
    for index in 0..rings as usize {
        let mut ring = guest.rings.remove(index);
        let begin = 2048 * (1 + index as u64);
        let length_of = |slot: u16| 4096 * (1 + u32::from(slot) % 16);
        for slot in 0..SLOTS {
            let (at, length) = (ring.data(slot), length_of(slot));
            let bytes = pattern(u64::from(slot) + 1, length);
            guest.memory.write_slice(&bytes, GuestAddress(at))?;
            let sector = begin + u64::from(slot) * 128;
            ring.submit(
                &guest.memory,
                features,
                slot,
                OUT,
                sector,
                Data::Out(at, length),
            )?;
        }
        ring.kick()?;
        for _ in 0..SLOTS {
            expect("a write", 0, ring.wait(&guest.memory, LONG)?.1)?;
        }
        for slot in 0..SLOTS {
            let (at, length) = (ring.data(slot), length_of(slot));
            guest
                .memory
                .write_slice(&vec![0xaa; length as usize], GuestAddress(at))?;
            let sector = begin + u64::from(slot) * 128;
            ring.submit(
                &guest.memory,
                features,
                slot,
                IN,
                sector,
                Data::In(at, length),
            )?;
        }
        ring.kick()?;
        for _ in 0..SLOTS {
            expect("a read", 0, ring.wait(&guest.memory, LONG)?.1)?;
        }
        for slot in 0..SLOTS {
            let length = length_of(slot);
            let wanted = pattern(u64::from(slot) + 1, length);
            if guest.bytes(ring.data(slot), length)? != wanted {
                return Err(format!("ring {index}: read {slot} has other data").into());
            }
        }
        let at = ring.data(0);
        let memory = &guest.memory;
        let mut execute = |op, sector, data| ring.execute(memory, features, op, sector, data);
        expect("a flush", 0, execute(FLUSH, 0, Data::None)?)?;
        expect("the id", 0, execute(GET_ID, 0, Data::In(at, 20))?)?;
        if index == 0 {
            println!("id {}", String::from_utf8_lossy(&guest.bytes(at, 20)?));
        }
        let range = |sector: u64, sectors: u32, flags: u32| {
            let mut bytes = doubles(&[sector]);
            bytes.extend(words(&[sectors, flags]));
            memory.write_slice(&bytes, GuestAddress(at))
        };
        range(begin, 128, 1)?;
        expect("zeroes", 0, execute(ZEROES, 0, Data::Out(at, 16))?)?;
        expect(
            "a read of zeroes",
            0,
            execute(IN, begin, Data::In(at, PIECE))?,
        )?;
        if guest.bytes(at, PIECE)?.iter().any(|byte| *byte != 0) {
            return Err("zeroes are not read".into());
        }
        range(begin + 128, 128, 0)?;
        expect("a discard", 0, execute(DISCARD, 0, Data::Out(at, 16))?)?;
        range(begin, 128, 2)?;
        expect(
            "zeroes with an unknown flag",
            2,
            execute(ZEROES, 0, Data::Out(at, 16))?,
        )?;
        expect("an unknown request", 2, execute(77, 0, Data::None)?)?;
        expect(
            "a read behind the end",
            1,
            execute(IN, size, Data::In(at, 512))?,
        )?;
        expect(
            "a write that wraps",
            1,
            execute(OUT, u64::MAX, Data::Out(at, 512))?,
        )?;
        expect("a part of a block", 1, execute(OUT, 0, Data::Out(at, 100))?)?;
        expect("a write of nothing", 1, execute(OUT, 0, Data::None)?)?;
        guest.rings.insert(index, ring);
    }
    println!("done");
    Ok(())
}

/// Stops a ring and restarts it; no interrupt is lost.
fn stop(path: &str) -> Result<()> {
    let mut server = Server::connect(path)?;
    let mut guest = Guest::new(2)?;
    guest.start(&mut server, u64::MAX)?;
    let features = server.features;
    let memory = guest.memory.clone();
    let ring = guest.rings.first_mut().ok_or("no ring")?;
    let data = ring.data(0);
    for round in 0..20 {
        for slot in 0..SLOTS {
            let sector = 4096 + u64::from(slot) * 128;
            ring.submit(&memory, features, slot, OUT, sector, Data::Out(data, PIECE))?;
        }
        ring.kick()?;
        let next = ring.stop(&mut server)?;
        // No request is in flight: those that the server took have ended.
        expect("the index", ring.used_index(&memory)?, next)?;
        // From here on interrupts go to another descriptor.
        ring.call = event()?;
        ring.start(&mut server, &memory)?;
        for _ in 0..SLOTS {
            let (_, status) = ring.wait(&memory, LONG)?;
            expect("a write", 0, status)?;
        }
        expect("the requests", ring.available, ring.used)?;
        // The request ends before the next descriptor is set.
        ring.submit(&memory, features, 0, IN, round, Data::In(data, 512))?;
        ring.kick()?;
        let began = Instant::now();
        while ring.used_index(&memory)? == ring.used && began.elapsed() < LONG {
            thread::yield_now();
        }
        ring.call = event()?;
        let index = doubles(&[ring.index.into()]);
        server.set(SET_VRING_CALL, &index, &[ring.call.as_fd().as_raw_fd()])?;
        if !readable(ring.call.as_fd(), LONG)? {
            return Err("a new descriptor gets no notice of ended requests".into());
        }
        expect("a read", 0, ring.wait(&memory, LONG)?.1)?;
    }
    // The server does not look at a disabled ring until it is enabled.
    server.set(SET_VRING_ENABLE, &words(&[0, 0]), &[])?;
    ring.submit(&memory, features, 0, IN, 0, Data::In(data, 512))?;
    ring.kick()?;
    // The other ring continues meanwhile.
    let other = guest.rings.last_mut().ok_or("no ring")?;
    let place = other.data(0);
    for _ in 0..50 {
        expect(
            "the other",
            0,
            other.execute(&memory, features, IN, 0, Data::In(place, 4096))?,
        )?;
    }
    let ring = guest.rings.first_mut().ok_or("no ring")?;
    expect("a disabled ring", ring.used, ring.used_index(&memory)?)?;
    server.set(SET_VRING_ENABLE, &words(&[0, 1]), &[])?;
    expect("an enabled ring", 0, ring.wait(&memory, LONG)?.1)?;
    println!("done");
    Ok(())
}

/// Returns how many bytes a process has pinned, for all RDMA regions.
fn pinned(process: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let line = line.ok_or("no VmPin")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// Checks that regions can be added and removed, and that each is registered once.
fn memory(path: &str, process: &str) -> Result<()> {
    let mut server = Server::connect(path)?;
    let mut guest = Guest::new(2)?;
    guest.start(&mut server, u64::MAX)?;
    let features = server.features;
    let before = pinned(process)?;
    for _ in 0..5 {
        guest.set_table(&mut server)?;
    }
    expect(
        "pinned memory, when the same table is set again",
        before,
        pinned(process)?,
    )?;
    let spare = shared(SPARE_BYTES)?;
    let region = doubles(&[0, SPARE, SPARE_BYTES, SPARE_USER, 0]);
    server.set(ADD_MEM_REG, &region, &[spare.as_raw_fd()])?;
    expect(
        "pinned memory, with another region",
        before + SPARE_BYTES,
        pinned(process)?,
    )?;
    let memory = guest.memory.clone();
    let ring = guest.rings.first_mut().ok_or("no ring")?;
    // Reads into all of the region, and into each piece several times.
    for slot in 0..SLOTS {
        let at = SPARE + u64::from(slot % 16) * u64::from(PIECE);
        let sector = 4096 + u64::from(slot) * 128;
        ring.submit(&memory, features, slot, IN, sector, Data::In(at, PIECE))?;
    }
    ring.kick()?;
    // Requests that the server has not taken by then are not carried out.
    server.set(REM_MEM_REG, &region, &[])?;
    expect(
        "pinned memory, without the region",
        before,
        pinned(process)?,
    )?;
    let taken = ring.used_index(&memory)?.wrapping_sub(ring.used);
    println!("taken {taken}");
    if taken < SLOTS && !readable(ring.error.as_fd(), LONG)? {
        return Err("the ring is not broken".into());
    }
    if taken == SLOTS {
        ring.submit(&memory, features, 0, IN, 0, Data::In(SPARE, PIECE))?;
        ring.kick()?;
        if !readable(ring.error.as_fd(), LONG)? {
            return Err("the ring is not broken".into());
        }
    }
    // The other ring still works, and this one works again when it is set up.
    let other = guest.rings.last_mut().ok_or("no ring")?;
    let place = other.data(0);
    expect(
        "the other",
        0,
        other.execute(&memory, features, IN, 0, Data::In(place, 4096))?,
    )?;
    let ring = guest.rings.first_mut().ok_or("no ring")?;
    ring.stop(&mut server)?;
    ring.restart(&mut server, &memory)?;
    let place = ring.data(0);
    expect(
        "the ring",
        0,
        ring.execute(&memory, features, IN, 0, Data::In(place, 4096))?,
    )?;
    println!("done");
    Ok(())
}

impl Ring {
    /// Forgets all requests, and makes the server serve the ring anew, like a guest that resets its
    /// device.
    fn restart(&mut self, server: &mut Server, memory: &GuestMemoryMmap) -> Result<()> {
        memory.write_slice(&[0; 0x2000], GuestAddress(self.base + AVAILABLE))?;
        memory.write_slice(&[0; 0x1000], GuestAddress(self.base + USED))?;
        (self.available, self.used) = (0, 0);
        self.error = event()?;
        self.call = event()?;
        self.start(server, memory)
    }
}

/// The names of all ways to break a ring.
const BREAKS: &[&str] = &[
    "head", "circle", "outside", "beyond", "header", "status", "order", "nowhere", "index",
    "again", "many",
];

/// Breaks a ring, as a guest may do: checks that the ring stops, and works again when it is set up.
fn broken(path: &str, features: u64) -> Result<()> {
    let mut server = Server::connect(path)?;
    let mut guest = Guest::new(2)?;
    guest.start(&mut server, features)?;
    let features = server.features;
    let memory = guest.memory.clone();
    for way in BREAKS {
        let ring = guest.rings.first_mut().ok_or("no ring")?;
        let (header, data, base) = (ring.header(0), ring.data(0), ring.base);
        let describe = |place, address, length, flags, next| {
            Ring::describe(&memory, base, place, address, length, flags, next)
        };
        ring.fill(&memory, 0, 0, IN, 0, Data::In(data, 4096))?;
        let mut head = 0;
        match *way {
            "head" => head = ENTRIES,
            "circle" => describe(1, data, 16, NEXT, 1)?,
            "outside" => describe(1, SPARE + SPARE_BYTES, 4096, NEXT | WRITE, 2)?,
            "beyond" => describe(1, GUEST + MEMORY - 512, 4096, NEXT | WRITE, 2)?,
            "header" => describe(0, header, 15, NEXT, 1)?,
            "status" => describe(0, header, 16, 0, 0)?,
            "order" => describe(2, header, 16, 0, 0)?,
            "nowhere" => describe(1, data, 4096, NEXT | WRITE, ENTRIES)?,
            "index" => ring.available = ring.available.wrapping_add(ENTRIES + 1),
            // A table of descriptors with an invalid length, and one that is longer than any
            // request.
            "again" => describe(0, header, 17, INDIRECT, 0)?,
            _ => {
                let table = GUEST + (7 << 20);
                for place in 0..1000 {
                    Ring::describe(&memory, table, place, header, 16, NEXT, place + 1)?;
                }
                describe(0, table, 16000, INDIRECT, 0)?;
            }
        }
        ring.offer(&memory, head)?;
        let used = ring.used_index(&memory)?;
        ring.kick()?;
        if !readable(ring.error.as_fd(), LONG)? {
            return Err(format!("{way}: the ring is not broken").into());
        }
        expect(way, used, ring.used_index(&memory)?)?;
        // The ring stays stopped in spite of kicks, and of a new memory table.
        ring.kick()?;
        guest.set_table(&mut server)?;
        let other = guest.rings.last_mut().ok_or("no ring")?;
        let place = other.data(0);
        expect(
            way,
            0,
            other.execute(&memory, features, IN, 0, Data::In(place, 4096))?,
        )?;
        let ring = guest.rings.first_mut().ok_or("no ring")?;
        expect(way, used, ring.used_index(&memory)?)?;
        ring.stop(&mut server)?;
        ring.restart(&mut server, &memory)?;
        let place = ring.data(0);
        expect(
            way,
            0,
            ring.execute(&memory, features, IN, 0, Data::In(place, 4096))?,
        )?;
        println!("{way}");
    }
    println!("done");
    Ok(())
}

/// Writes data and zeroes, as a guest that does not know of a cache.
fn through(path: &str) -> Result<()> {
    let mut server = Server::connect(path)?;
    let mut guest = Guest::new(1)?;
    guest.start(&mut server, !F_FLUSH)?;
    let features = server.features;
    let memory = guest.memory.clone();
    let ring = guest.rings.first_mut().ok_or("no ring")?;
    let at = ring.data(0);
    memory.write_slice(&pattern(7, PIECE), GuestAddress(at))?;
    expect(
        "a write",
        0,
        ring.execute(&memory, features, OUT, 0, Data::Out(at, PIECE))?,
    )?;
    expect(
        "a write",
        0,
        ring.execute(&memory, features, OUT, 128, Data::Out(at, PIECE))?,
    )?;
    let mut range = doubles(&[128]);
    range.extend(words(&[128, 0]));
    memory.write_slice(&range, GuestAddress(at))?;
    expect(
        "zeroes",
        0,
        ring.execute(&memory, features, ZEROES, 0, Data::Out(at, 16))?,
    )?;
    println!("done");
    Ok(())
}

/// Reads the data that `through` has written.
fn check(path: &str) -> Result<()> {
    let mut server = Server::connect(path)?;
    let mut guest = Guest::new(1)?;
    guest.start(&mut server, u64::MAX)?;
    let features = server.features;
    let memory = guest.memory.clone();
    let ring = guest.rings.first_mut().ok_or("no ring")?;
    let at = ring.data(0);
    expect(
        "a read",
        0,
        ring.execute(&memory, features, IN, 0, Data::In(at, PIECE))?,
    )?;
    let first = guest.bytes(at, PIECE)?;
    let ring = guest.rings.first_mut().ok_or("no ring")?;
    expect(
        "a read",
        0,
        ring.execute(&memory, features, IN, 128, Data::In(at, PIECE))?,
    )?;
    let is_zero = guest.bytes(at, PIECE)?.iter().all(|byte| *byte == 0);
    println!("write {}, zeroes {is_zero}", first == pattern(7, PIECE));
    Ok(())
}

/// Writes without a flush.
fn write(path: &str) -> Result<()> {
    let mut server = Server::connect(path)?;
    let mut guest = Guest::new(1)?;
    guest.start(&mut server, u64::MAX)?;
    let features = server.features;
    let memory = guest.memory.clone();
    let ring = guest.rings.first_mut().ok_or("no ring")?;
    let at = ring.data(0);
    memory.write_slice(&pattern(9, PIECE), GuestAddress(at))?;
    for sector in [0, 1024, 4096] {
        let data = Data::Out(at, PIECE);
        expect(
            "a write",
            0,
            ring.execute(&memory, features, OUT, sector, data)?,
        )?;
    }
    println!("done");
    Ok(())
}

/// Flushes, and prints the result.
fn flush(path: &str) -> Result<()> {
    let mut server = Server::connect(path)?;
    let mut guest = Guest::new(1)?;
    guest.start(&mut server, u64::MAX)?;
    let features = server.features;
    let memory = guest.memory.clone();
    let ring = guest.rings.first_mut().ok_or("no ring")?;
    match ring.execute(&memory, features, FLUSH, 0, Data::None)? {
        0 => println!("done"),
        status => println!("failed {status}"),
    }
    Ok(())
}

/// Waits until the disk has a different size, which the server must report.
fn size(path: &str, wanted: u64) -> Result<()> {
    let mut server = Server::connect(path)?;
    let mut guest = Guest::new(1)?;
    guest.start(&mut server, u64::MAX)?;
    let (mut own, theirs) = UnixStream::pair()?;
    server.set(SET_BACKEND_REQ_FD, &[], &[theirs.as_raw_fd()])?;
    drop(theirs);
    println!("sectors {}", double(&server.config()?)?);
    let began = Instant::now();
    while double(&server.config()?)? != wanted {
        if !readable(own.as_fd(), (5 * LONG).saturating_sub(began.elapsed()))? {
            return Err("the server does not report the new size".into());
        }
        let mut message = [0; 12];
        own.read_exact(&mut message)?;
        expect("the message", words(&[2, 1, 0]).as_slice(), &message[..])?;
    }
    let features = server.features;
    let memory = guest.memory.clone();
    let ring = guest.rings.first_mut().ok_or("no ring")?;
    let at = ring.data(0);
    let last = Data::In(at, 4096);
    expect(
        "a read of the end",
        0,
        ring.execute(&memory, features, IN, wanted - 8, last)?,
    )?;
    println!("done");
    Ok(())
}

/// The operation of a slot of a load.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Writes(u64),
    Reads(u64),
}

/// Writes, and reads the written data, until `wanted` requests of both have ended, over any number of connections.
fn load(path: &str, wanted: u64) -> Result<()> {
    let mut server = Server::connect(path)?;
    let mut guest = Guest::new(2)?;
    guest.start(&mut server, u64::MAX)?;
    let memory = guest.memory.clone();
    let mut features = server.features;
    let (mut done, mut connections, mut since) = (0, 1, 0);
    let mut stages = vec![vec![Stage::Reads(0); usize::from(SLOTS)]; guest.rings.len()];
    let mut rings = std::mem::take(&mut guest.rings);
    for (ring, stages) in rings.iter_mut().zip(&mut stages) {
        for slot in 0..SLOTS {
            ring.next_stage(&memory, features, slot, stages, 0)?;
        }
        ring.kick()?;
    }
    println!("started");
    std::io::stdout().flush()?;
    let mut under_way = rings.len() * usize::from(SLOTS);
    while under_way != 0 {
        let mut fds: Vec<_> = rings
            .iter()
            .map(|ring| PollFd::new(ring.call.as_fd(), PollFlags::POLLIN))
            .collect();
        fds.push(PollFd::new(server.socket.as_fd(), PollFlags::POLLIN));
        if poll(&mut fds, PollTimeout::try_from(10 * LONG)?)? == 0 {
            return Err("nothing ends any more".into());
        }
        let has_gone = fds.last().and_then(PollFd::any).unwrap_or(false);
        drop(fds);
        if has_gone {
            // Connects again, as a monitor does: the next server carries out the requests that have
            // not ended.
            server = Server::connect(path)?;
            guest.rings = rings;
            guest.start(&mut server, u64::MAX)?;
            features = server.features;
            rings = std::mem::take(&mut guest.rings);
            (connections, since) = (connections + 1, 0);
        }
        for (ring, stages) in rings.iter_mut().zip(&mut stages) {
            let _ = ring.call.read();
            loop {
                let event = GuestAddress(ring.base + AVAILABLE + 4 + u64::from(ENTRIES) * 2);
                memory.store(ring.used, event, std::sync::atomic::Ordering::SeqCst)?;
                std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
                let Some((slot, status)) = ring.ended(&memory)? else {
                    break;
                };
                expect("a request", 0, status)?;
                (done, since) = (done + 1, since + 1);
                if since == WORKING {
                    println!("working {connections}");
                    std::io::stdout().flush()?;
                }
                let stage = *stages.get(usize::from(slot)).ok_or("no slot")?;
                if let Stage::Reads(round) = stage {
                    let seed = ring.seed(slot, round);
                    if guest.bytes(ring.data(slot), PIECE)? != pattern(seed, PIECE) {
                        return Err(
                            format!("ring {}: slot {slot} has other data", ring.index).into()
                        );
                    }
                    if done >= wanted {
                        under_way -= 1;
                        continue;
                    }
                }
                ring.next_stage(&memory, features, slot, stages, 1)?;
                ring.kick()?;
            }
        }
    }
    println!("done {done} {connections}");
    Ok(())
}

impl Ring {
    fn seed(&self, slot: u16, round: u64) -> u64 {
        (round << 16) | (u64::from(self.index) << 8) | u64::from(slot)
    }

    /// Begins the next stage of a slot.
    fn next_stage(
        &mut self,
        memory: &GuestMemoryMmap,
        features: u64,
        slot: u16,
        stages: &mut [Stage],
        more: u64,
    ) -> Result<()> {
        let stage = stages.get_mut(usize::from(slot)).ok_or("no slot")?;
        let at = self.data(slot);
        let sector = 4096 + u64::from(self.index) * 16384 + u64::from(slot) * 128;
        match *stage {
            Stage::Writes(round) => {
                *stage = Stage::Reads(round);
                memory.write_slice(&vec![0xaa; PIECE as usize], GuestAddress(at))?;
                self.submit(memory, features, slot, IN, sector, Data::In(at, PIECE))
            }
            Stage::Reads(round) => {
                *stage = Stage::Writes(round + more);
                let bytes = pattern(self.seed(slot, round + more), PIECE);
                memory.write_slice(&bytes, GuestAddress(at))?;
                self.submit(memory, features, slot, OUT, sector, Data::Out(at, PIECE))
            }
        }
    }
}

/// Waits until the server ends the connection.
fn ends(server: &mut Server, what: &str) -> Result<()> {
    let mut byte = [0];
    match server.socket.read(&mut byte) {
        Ok(0) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(()),
        // Responses to earlier requests.
        Ok(_) => ends(server, what),
        Err(error) => Err(format!("{what}: {error}").into()),
    }
}

/// Messages that make no sense end the connection, and nothing else.
#[allow(clippy::too_many_lines, reason = "one message after the other")]
fn messages(path: &str) -> Result<()> {
    let mut server = Server::connect(path)?;
    server.begin(u64::MAX)?;
    let mut body = words(&[32, 1, 0]);
    body.push(0);
    if server.set(SET_CONFIG, &body, &[]).is_ok() {
        return Err("the configuration can be changed".into());
    }
    println!("sectors {}", double(&server.config()?)?);
    let offered = double(&server.get(GET_FEATURES, &[])?)?;
    // The server serves one frontend at a time.
    drop(server);
    let file = shared(4096)?;
    let file = file.as_raw_fd();
    let table = |count: u32, region: &[u64]| {
        let mut body = words(&[count, 0]);
        body.extend(doubles(region));
        body
    };
    let bad: Vec<(&str, u32, Vec<u8>, Vec<RawFd>)> = vec![
        (
            "unknown features",
            SET_FEATURES,
            doubles(&[offered | (1 << 40)]),
            vec![],
        ),
        (
            "unknown features of the protocol",
            SET_PROTOCOL_FEATURES,
            doubles(&[1 << 40]),
            vec![],
        ),
        ("an unknown message", 1000, vec![], vec![]),
        ("a large message", GET_CONFIG, vec![0; 5000], vec![]),
        (
            "a ring that is not there",
            SET_VRING_NUM,
            words(&[200, 64]),
            vec![],
        ),
        (
            "a ring of three entries",
            SET_VRING_NUM,
            words(&[0, 3]),
            vec![],
        ),
        (
            "a ring of too many entries",
            SET_VRING_NUM,
            words(&[0, 32768]),
            vec![],
        ),
        (
            "an index that is none",
            SET_VRING_BASE,
            words(&[0, 65536]),
            vec![],
        ),
        (
            "the index of no ring",
            GET_VRING_BASE,
            words(&[77, 0]),
            vec![],
        ),
        ("no kick", SET_VRING_KICK, doubles(&[0x100]), vec![]),
        (
            "memory beyond its file",
            SET_MEM_TABLE,
            table(1, &[GUEST, 8192, USER, 0]),
            vec![file],
        ),
        (
            "memory without an end",
            SET_MEM_TABLE,
            table(1, &[u64::MAX, 4096, USER, 0]),
            vec![file],
        ),
        (
            "memory twice at a place",
            SET_MEM_TABLE,
            table(2, &[GUEST, 4096, USER, 0, GUEST, 4096, USER + 4096, 0]),
            vec![file, file],
        ),
        (
            "memory that is not there",
            REM_MEM_REG,
            doubles(&[0, 1, 4096, 1, 0]),
            vec![],
        ),
    ];
    for (what, number, body, files) in bad {
        let mut server = Server::connect(path)?;
        server.begin(u64::MAX)?;
        server.send(number, 1, &body, &files)?;
        ends(&mut server, what)?;
        println!("{what}");
    }
    let mut server = Server::connect(path)?;
    server.begin(u64::MAX)?;
    server.socket.write_all(&words(&[GET_FEATURES]))?;
    ends(&mut server, "a part of a message")?;
    println!("a part of a message");
    // A frontend that sends requests, and does not read the responses.
    let mut server = Server::connect(path)?;
    server.begin(u64::MAX)?;
    server.socket.set_write_timeout(Some(LONG))?;
    let mut request = words(&[GET_CONFIG, 1, 12 + 4000, 0, 4000, 0]);
    request.extend([0; 4000]);
    while server.socket.write_all(&request).is_ok() {}
    println!("answers that are not read");
    let mut server = Server::connect(path)?;
    server.begin(u64::MAX)?;
    println!("done");
    Ok(())
}

fn run() -> Result<()> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["all", path, rings] => all(path, rings.parse()?, u64::MAX),
        ["plain", path, rings] => all(path, rings.parse()?, !(F_INDIRECT | F_EVENT)),
        ["stop", path] => stop(path),
        ["memory", path, process] => memory(path, process),
        ["broken", path] => broken(path, u64::MAX),
        ["through", path] => through(path),
        ["check", path] => check(path),
        ["write", path] => write(path),
        ["flush", path] => flush(path),
        ["size", path, sectors] => size(path, sectors.parse()?),
        ["load", path, requests] => load(path, requests.parse()?),
        ["messages", path] => messages(path),
        _ => Err("usage: hcablk-vhost-frontend all|plain|stop|memory|broken|through|check|write|flush|size|load|messages SOCKET …".into()),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
