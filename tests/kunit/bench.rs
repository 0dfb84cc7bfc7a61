// SPDX-License-Identifier: GPL-2.0

//! A connection, and a disk whose requests' memory is registered for the peer.

use crate::{
    check::balanced,
    desk::{
        self,
        Desk,
        Driver, //
    },
    link::{
        self,
        Link, //
    },
    memory::{
        Memory,
        Pending, //
    },
};
use hcablk_core::{
    blkdev::{
        BioOp,
        Limits,
        Request,
        Status, //
    },
    rdma::{
        device::Direction,
        mapped,
        mr::RemoteAddress, //
    },
    sglist::SegmentList,
};
use kernel::prelude::*;

pub(crate) const WRITE: BioOp = BioOp::Write { fua: false };
/// The upper half of the addresses that the peer uses.
pub(crate) const COOKIE: u32 = 0x1234_5678;

/// The memory of requests: block (of two pages), offset, length. The total is whole sectors;
/// only the first piece may begin within a page, and only the last may end within one.
pub(crate) const SHAPES: [&[(usize, usize, usize)]; 9] = [
    &[(0, 0, 8192)],
    &[(1, 512, 512)],
    &[(0, 2048, 4096)],
    &[(0, 4096, 4096), (1, 0, 512)],
    &[(0, 3584, 4608), (1, 0, 512)],
    &[(0, 4, 4092), (2, 0, 4)],
    &[(0, 8188, 4), (2, 0, 508)],
    &[(0, 0, 4096), (3, 4096, 4096), (1, 0, 4096)],
    &[(0, 1024, 7168), (1, 0, 8192), (2, 0, 8192), (3, 0, 512)],
];

/// A connection, a disk with requests, and a list for them on the near side.
pub(crate) struct Bench {
    pub(crate) list: SegmentList,
    // Dropped first: the list's memory belongs to requests of the disk.
    pub(crate) desk: Desk,
    pub(crate) memory: Memory,
    pub(crate) link: Link,
}

impl Bench {
    /// Creates a bench whose disk has `limits`, and whose list holds `segments` and `bytes`.
    pub(crate) fn with(limits: Limits, segments: u16, bytes: u32) -> Result<Self> {
        let link = Link::new(link::Plan::default())?;
        let plan = desk::Plan {
            limits,
            ..desk::Plan::default()
        };
        let bench = Self {
            list: SegmentList::new(&link.near.pd, segments, bytes)?,
            desk: Desk::new(&plan)?,
            memory: Memory::new(4)?,
            link,
        };
        bench.refill(1)?;
        Ok(bench)
    }

    /// Creates a bench whose requests have up to 32 segments and 64 KiB.
    pub(crate) fn new() -> Result<Self> {
        Self::with(desk::Plan::default().limits, 32, 64 * 1024)
    }

    /// Fills all of the memory with a pattern.
    pub(crate) fn refill(&self, seed: u8) -> Result {
        self.desk.fill(seed);
        ensure_eq!(
            self.desk.run(&self.memory.whole()?, BioOp::Read, 0)?,
            Ok(())
        );
        Ok(())
    }

    /// Copies the memory to the disk's image.
    pub(crate) fn dump(&self) -> Result {
        ensure_eq!(self.desk.run(&self.memory.whole()?, WRITE, 0)?, Ok(()));
        Ok(())
    }

    /// Makes a request for the pieces, maps and registers its memory.
    pub(crate) fn register(
        &mut self,
        pieces: &[(usize, usize, usize)],
        op: BioOp,
    ) -> Result<(Request<Driver>, Pending, RemoteAddress)> {
        let (request, pending) = self.take_request(pieces, op)?;
        self.map(&request, op)?;
        let (mut register, remote) = self.list.register()?;
        ensure!(self.link.near.carry_out(&mut register)?);
        Ok((request, pending, remote))
    }

    /// Ends the peer's access and the request.
    pub(crate) fn invalidate(&mut self, request: Request<Driver>, pending: &Pending) -> Result {
        let mut invalidate = self.list.invalidate()?;
        let done = self.link.near.carried_out(&mut invalidate)?;
        self.list.invalidated(done)?;
        self.list.release()?;
        finish(request, pending)
    }

    /// Releases the memory after the connection broke, and ends the request.
    pub(crate) fn give_up(&mut self, request: Request<Driver>, pending: &Pending) -> Result {
        self.list.revoke();
        self.list.release()?;
        finish(request, pending)
    }
    /// Makes a request for the pieces, without mapping its memory.
    pub(crate) fn take_request(
        &self,
        pieces: &[(usize, usize, usize)],
        op: BioOp,
    ) -> Result<(Request<Driver>, Pending)> {
        self.desk
            .take_request(&self.memory.with_pieces(pieces)?, op, 0)
    }

    /// Maps the memory of a request.
    pub(crate) fn map(&mut self, request: &Request<Driver>, op: BioOp) -> Result {
        let direction = match op {
            BioOp::Read => Direction::FromDevice,
            _ => Direction::ToDevice,
        };
        self.list.map(request.view(), direction, COOKIE)
    }

    /// Checks that mapping the memory of a request for the pieces is refused; returns how many
    /// segments the request had.
    pub(crate) fn check_refused(
        &mut self,
        pieces: &[(usize, usize, usize)],
        op: BioOp,
    ) -> Result<u16> {
        let (request, pending) = self.take_request(pieces, op)?;
        let (segments, before) = (request.segments(), mapped::count());
        ensure_eq!(self.map(&request, op), Err(EINVAL));
        ensure_eq!(self.list.mapped(), 0);
        ensure_eq!(mapped::count(), before);
        finish(request, &pending)?;
        Ok(segments)
    }

    /// Returns whether the peer can read `length` bytes, `offset` bytes after the address.
    pub(crate) fn peer_reads(
        &self,
        remote: RemoteAddress,
        length: usize,
        offset: i64,
    ) -> Result<bool> {
        let address = remote.address.wrapping_add_signed(offset);
        self.link.far.read(0, length, address, remote.key)
    }
}

/// Ends a request successfully, and waits for its I/O.
pub(crate) fn finish(request: Request<Driver>, pending: &Pending) -> Result {
    request.end(Status::Ok);
    ensure_eq!(pending.end()?, Ok(()));
    Ok(())
}

/// Calls `test` with a [`Bench`]; afterwards no more may be mapped than before.
pub(crate) fn on_bench(test: impl FnOnce(&mut Bench) -> Result) -> Result {
    balanced(|| test(&mut Bench::new()?))
}
