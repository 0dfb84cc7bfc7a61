// SPDX-License-Identifier: GPL-2.0

//! Suite `hcablk_regions`: memory of real block requests, shown to a peer that
//! reads and writes it, and no more of it than that (`sglist`, `rdma::mr`).

use crate::{
    check::{
        balanced,
        every_allocation, //
    },
    desk::{
        self,
        pattern,
        Desk,
        Driver,
        Memory,
        Pending, //
    },
    link::{
        self,
        Link,
        RECEIVE,
        SEND, //
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
        backlog::Backlog,
        device::Direction,
        mr::RemoteAddress,
        wr::{
            Send, //
            Sge,
        }, //
    },
    sglist::SegmentList,
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

const WRITE: BioOp = BioOp::Write { fua: false };
const COOKIE: u32 = 0x1234_5678;

/// Memory of requests: block (of two pages), offset, length. The total is whole
/// sectors, and no piece but the first begins, none but the last ends, within
/// a page.
const SHAPES: [&[(usize, usize, usize)]; 9] = [
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
struct Bench {
    list: SegmentList,
    // The list's memory belongs to requests of the disk.
    desk: Desk,
    memory: Memory,
    link: Link,
}

impl Bench {
    fn with(limits: Limits, segments: u16, bytes: u32) -> Result<Self> {
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

    fn new() -> Result<Self> {
        Self::with(desk::Plan::default().limits, 32, 64 * 1024)
    }

    /// Fills all of the memory with a pattern.
    fn refill(&self, seed: u8) -> Result {
        self.desk.fill(seed);
        ensure_eq!(
            self.desk.run(&self.memory.whole()?, BioOp::Read, 0)?,
            Ok(())
        );
        Ok(())
    }

    /// What the memory holds, in the disk's image.
    fn dump(&self) -> Result {
        ensure_eq!(self.desk.run(&self.memory.whole()?, WRITE, 0)?, Ok(()));
        Ok(())
    }

    /// A request for the pieces, mapped and registered.
    fn show(
        &mut self,
        pieces: &[(usize, usize, usize)],
        op: BioOp,
    ) -> Result<(Request<Driver>, Pending, RemoteAddress)> {
        let direction = match op {
            BioOp::Read => Direction::FromDevice,
            _ => Direction::ToDevice,
        };
        let (request, pending) = self.desk.caught(&self.memory.of(pieces)?, op, 0)?;
        self.list.map(request.view(), direction, COOKIE)?;
        let (mut register, remote) = self.list.register()?;
        ensure!(self.link.near.carry_out(&mut register)?);
        Ok((request, pending, remote))
    }

    /// Takes the peer's access away and ends the request.
    fn hide(&mut self, request: Request<Driver>, pending: &Pending) -> Result {
        let mut invalidate = self.list.invalidate()?;
        let done = self.link.near.carried_out(&mut invalidate)?;
        self.list.invalidated(done)?;
        self.list.release()?;
        request.end(Status::Ok);
        ensure_eq!(pending.end()?, Ok(()));
        Ok(())
    }

    /// Takes everything back after the connection broke, and ends the request.
    fn give_up(&mut self, request: Request<Driver>, pending: &Pending) -> Result {
        self.list.revoke();
        self.list.release()?;
        request.end(Status::Ok);
        ensure_eq!(pending.end()?, Ok(()));
        Ok(())
    }
}

/// Whether the peer can still be spoken to.
fn alive(link: &Link) -> Result<bool> {
    link.far.receive(7)?;
    link.near.send(7, b"alive?")?;
    Ok(link.near.completed(SEND, 7)?.ok && link.far.completed(RECEIVE, 7)?.ok)
}

#[kunit_tests(hcablk_regions)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_reads_what_the_request_holds() -> Result {
        balanced(|| {
            let mut bench = Bench::new()?;
            for (seed, shape) in (10..).zip(SHAPES) {
                bench.refill(seed)?;
                let (request, pending, remote) = bench.show(shape, WRITE)?;
                let first = shape.first().map_or(0, |piece| piece.1);
                ensure_eq!(
                    remote.address,
                    u64::from(COOKIE) << 32 | (first % PAGE_SIZE) as u64
                );
                let memory = bench.memory.of(shape)?;
                ensure_eq!(memory.bytes(), request.bytes() as usize);
                let mut data = KVec::from_elem(0, PAGE_SIZE, GFP_KERNEL)?;
                for at in (0..memory.bytes()).step_by(PAGE_SIZE) {
                    let length = PAGE_SIZE.min(memory.bytes() - at);
                    let address = remote.address + at as u64;
                    ensure!(bench.link.far.read(1, length, address, remote.key)?);
                    let got = bench.link.far.into.read(1, length, &mut data)?;
                    ensure_eq!(got.len(), length);
                    for (i, &byte) in got.iter().enumerate() {
                        let place = memory.place(at + i).ok_or(EINVAL)?;
                        ensure_eq!((at + i, byte), (at + i, pattern(seed, place)));
                    }
                }
                bench.hide(request, &pending)?;
            }
            Ok(())
        })
    }

    #[test]
    fn the_peer_writes_into_the_request_and_not_beside_it() -> Result {
        balanced(|| {
            let mut bench = Bench::new()?;
            let mut data = KVec::with_capacity(PAGE_SIZE, GFP_KERNEL)?;
            for (seed, shape) in (50..).zip(SHAPES) {
                bench.refill(seed)?;
                let (request, pending, remote) = bench.show(shape, BioOp::Read)?;
                let memory = bench.memory.of(shape)?;
                let mut written = KVec::from_elem(false, 8 * PAGE_SIZE, GFP_KERNEL)?;
                for at in (0..memory.bytes()).step_by(PAGE_SIZE) {
                    let length = PAGE_SIZE.min(memory.bytes() - at);
                    data.clear();
                    for i in at..at + length {
                        let place = memory.place(i).ok_or(EINVAL)?;
                        data.push(!pattern(seed, place), GFP_KERNEL)?;
                        *written.get_mut(place).ok_or(EINVAL)? = true;
                    }
                    let address = remote.address + at as u64;
                    ensure!(bench.link.far.write(&data, address, remote.key)?);
                }
                bench.hide(request, &pending)?;
                bench.dump()?;
                let wrong = bench.desk.state.look(|state| {
                    state.image.iter().zip(written.iter()).enumerate().position(
                        |(at, (&byte, &written))| {
                            let old = pattern(seed, at);
                            byte != if written { !old } else { old }
                        },
                    )
                });
                ensure_eq!(wrong, None);
            }
            Ok(())
        })
    }

    #[test]
    fn the_peer_reads_no_byte_after_the_end() -> Result {
        balanced(|| {
            let mut bench = Bench::new()?;
            let (request, pending, remote) = bench.show(&[(0, 512, 1024)], WRITE)?;
            ensure!(bench
                .link
                .far
                .read(0, 1, remote.address + 1023, remote.key)?);
            ensure!(!bench
                .link
                .far
                .read(0, 1, remote.address + 1024, remote.key)?);
            bench.give_up(request, &pending)
        })
    }

    #[test]
    fn the_peer_reads_no_byte_before_the_begin() -> Result {
        balanced(|| {
            let mut bench = Bench::new()?;
            let (request, pending, remote) = bench.show(&[(0, 512, 1024)], WRITE)?;
            ensure!(bench.link.far.read(0, 1, remote.address, remote.key)?);
            ensure!(!bench.link.far.read(0, 1, remote.address - 1, remote.key)?);
            bench.give_up(request, &pending)
        })
    }

    #[test]
    fn memory_that_is_sent_is_not_written_by_the_peer() -> Result {
        balanced(|| {
            let mut bench = Bench::new()?;
            bench.refill(3)?;
            let (request, pending, remote) = bench.show(&[(0, 0, 512)], WRITE)?;
            ensure!(!bench.link.far.write(b"no", remote.address, remote.key)?);
            bench.give_up(request, &pending)?;
            bench.dump()?;
            let byte = bench.desk.state.look(|state| state.image.first().copied());
            ensure_eq!(byte, Some(pattern(3, 0)));
            Ok(())
        })
    }

    #[test]
    fn memory_that_is_filled_is_not_read_by_the_peer() -> Result {
        balanced(|| {
            let mut bench = Bench::new()?;
            let (request, pending, remote) = bench.show(&[(0, 0, 512)], BioOp::Read)?;
            ensure!(!bench.link.far.read(0, 512, remote.address, remote.key)?);
            bench.give_up(request, &pending)
        })
    }

    #[test]
    fn an_earlier_key_reaches_nothing() -> Result {
        balanced(|| {
            let mut bench = Bench::new()?;
            let (request, pending, first) = bench.show(SHAPES[0], WRITE)?;
            ensure!(bench.link.far.read(0, 512, first.address, first.key)?);
            bench.hide(request, &pending)?;
            let (request, pending, second) = bench.show(SHAPES[0], WRITE)?;
            ensure!(first.key != second.key);
            ensure_eq!(first.address, second.address);
            ensure!(bench.link.far.read(0, 512, second.address, second.key)?);
            ensure!(!bench.link.far.read(0, 512, first.address, first.key)?);
            bench.give_up(request, &pending)
        })
    }

    #[test]
    fn many_uses_of_a_list_have_neighbouring_keys_that_differ() -> Result {
        balanced(|| {
            let mut bench = Bench::new()?;
            let mut last = None;
            // More than there are keys of one region.
            for round in 0..300 {
                let (request, pending, remote) = bench.show(SHAPES[1], WRITE)?;
                ensure!(last != Some(remote.key));
                last = Some(remote.key);
                if round % 50 == 0 {
                    ensure!(bench.link.far.read(0, 512, remote.address, remote.key)?);
                }
                bench.hide(request, &pending)?;
            }
            Ok(())
        })
    }

    #[test]
    fn a_key_that_was_invalidated_reaches_nothing() -> Result {
        balanced(|| {
            let mut bench = Bench::new()?;
            let (request, pending, remote) = bench.show(SHAPES[0], WRITE)?;
            ensure!(bench.link.far.read(0, 512, remote.address, remote.key)?);
            bench.hide(request, &pending)?;
            ensure!(!bench.link.far.read(0, 512, remote.address, remote.key)?);
            Ok(())
        })
    }

    #[test]
    fn the_peer_invalidates_its_key_with_a_message() -> Result {
        balanced(|| {
            let mut bench = Bench::new()?;
            let (request, pending, remote) = bench.show(SHAPES[0], WRITE)?;
            bench.link.near.receive(3)?;
            let sges = [Sge::new(bench.link.far.out.write(0, b"done")?)];
            let mut send = Send::new(&sges).invalidating(remote.key);
            ensure!(bench.link.far.carry_out(&mut send)?);
            let done = bench.link.near.completed(RECEIVE, 3)?;
            ensure_eq!(done.invalidated, Some(remote.key));
            ensure_eq!(done.length, 4);
            // Another's key is not this list's.
            ensure!(!bench.list.invalidated_by_peer(remote.key ^ 1));
            ensure!(bench.list.is_registered());
            ensure_eq!(bench.list.release(), Err(EBUSY));
            ensure!(bench.list.invalidated_by_peer(remote.key));
            ensure!(!bench.list.is_registered());
            // Only once.
            ensure!(!bench.list.invalidated_by_peer(remote.key));
            bench.list.release()?;
            request.end(Status::Ok);
            ensure_eq!(pending.end()?, Ok(()));
            ensure!(!bench.link.far.read(0, 512, remote.address, remote.key)?);
            Ok(())
        })
    }

    #[test]
    fn a_plain_message_invalidates_nothing() -> Result {
        balanced(|| {
            let mut bench = Bench::new()?;
            let (request, pending, remote) = bench.show(SHAPES[0], WRITE)?;
            bench.link.near.receive(3)?;
            bench.link.far.send(0, b"done")?;
            ensure_eq!(bench.link.near.completed(RECEIVE, 3)?.invalidated, None);
            ensure!(bench.link.far.read(0, 512, remote.address, remote.key)?);
            bench.hide(request, &pending)
        })
    }

    #[test]
    fn memory_is_kept_while_the_peer_may_reach_it() -> Result {
        balanced(|| {
            let mut bench = Bench::new()?;
            ensure_eq!(bench.list.register().err(), Some(EINVAL));
            ensure_eq!(bench.list.mapped(), 0);
            let (request, pending) = bench.desk.caught(&bench.memory.of(SHAPES[7])?, WRITE, 0)?;
            bench
                .list
                .map(request.view(), Direction::ToDevice, COOKIE)?;
            ensure_eq!(bench.list.mapped(), 3);
            ensure!(!bench.list.is_registered());
            // One request at a time.
            ensure_eq!(
                bench.list.map(request.view(), Direction::ToDevice, COOKIE),
                Err(EINVAL)
            );
            // Mapped only: it can be given back.
            bench.list.release()?;
            ensure_eq!(bench.list.mapped(), 0);
            bench
                .list
                .map(request.view(), Direction::ToDevice, COOKIE)?;
            let registered = {
                let (mut register, _) = bench.list.register()?;
                bench.link.near.carried_out(&mut register)?
            };
            ensure_eq!(bench.list.register().err(), Some(EINVAL));
            ensure!(bench.list.is_registered());
            ensure_eq!(bench.list.release(), Err(EBUSY));
            // The registration was done: that is no proof.
            ensure_eq!(bench.list.invalidated(registered), Err(EINVAL));
            ensure_eq!(bench.list.release(), Err(EBUSY));
            let mut invalidate = bench.list.invalidate()?;
            // Not before it has completed.
            ensure_eq!(bench.list.release(), Err(EBUSY));
            ensure_eq!(bench.list.mapped(), 3);
            let done = bench.link.near.carried_out(&mut invalidate)?;
            bench.list.invalidated(done)?;
            bench.list.release()?;
            ensure_eq!(bench.list.mapped(), 0);
            request.end(Status::Ok);
            ensure_eq!(pending.end()?, Ok(()));
            ensure!(alive(&bench.link)?);
            Ok(())
        })
    }

    #[test]
    fn only_what_was_never_posted_is_withdrawn() -> Result {
        balanced(|| {
            let mut bench = Bench::new()?;
            let (request, pending) = bench.desk.caught(&bench.memory.of(SHAPES[0])?, WRITE, 0)?;
            bench
                .list
                .map(request.view(), Direction::ToDevice, COOKIE)?;
            let (register, _) = bench.list.register()?;
            let proof = register.withdraw().ok_or(EINVAL)?;
            ensure_eq!(bench.list.release(), Err(EBUSY));
            bench.list.withdrawn(proof);
            bench.list.release()?;
            bench
                .list
                .map(request.view(), Direction::ToDevice, COOKIE)?;
            let (mut register, _) = bench.list.register()?;
            ensure!(bench.link.near.carry_out(&mut register)?);
            ensure!(register.withdraw().is_none());
            bench.hide(request, &pending)
        })
    }

    #[test]
    fn a_list_is_not_revoked_while_its_registration_waits() -> Result {
        balanced(|| {
            let mut bench = Bench::new()?;
            let (request, pending) = bench.desk.caught(&bench.memory.of(SHAPES[0])?, WRITE, 0)?;
            bench
                .list
                .map(request.view(), Direction::ToDevice, COOKIE)?;
            let mut backlog = Backlog::<1>::new(1)?;
            {
                let (mut register, _) = bench.list.register()?;
                ensure!(backlog.push(&mut register));
            }
            bench.list.revoke();
            ensure_eq!(bench.list.release(), Err(EBUSY));
            backlog.truncate(0);
            bench.list.revoke();
            bench.list.release()?;
            request.end(Status::Ok);
            ensure_eq!(pending.end()?, Ok(()));
            Ok(())
        })
    }

    #[test]
    fn a_list_that_was_revoked_ends_access_and_is_of_no_use() -> Result {
        balanced(|| {
            let mut bench = Bench::new()?;
            let (request, pending, remote) = bench.show(SHAPES[0], WRITE)?;
            bench.list.revoke();
            ensure!(!bench.list.is_registered());
            ensure_eq!(bench.list.register().err(), Some(EINVAL));
            ensure_eq!(bench.list.invalidate().err(), Some(EINVAL));
            ensure!(!bench.list.invalidated_by_peer(remote.key));
            bench.list.release()?;
            ensure_eq!(
                bench.list.map(request.view(), Direction::ToDevice, COOKIE),
                Err(EINVAL)
            );
            request.end(Status::Ok);
            ensure_eq!(pending.end()?, Ok(()));
            ensure!(!bench.link.far.read(0, 512, remote.address, remote.key)?);
            Ok(())
        })
    }

    #[test]
    fn dropping_a_list_takes_everything_back() -> Result {
        balanced(|| {
            let mut bench = Bench::new()?;
            let (request, pending, remote) = bench.show(SHAPES[0], WRITE)?;
            bench.list = SegmentList::new(&bench.link.near.pd, 1, 512)?;
            request.end(Status::Ok);
            ensure_eq!(pending.end()?, Ok(()));
            ensure!(!bench.link.far.read(0, 512, remote.address, remote.key)?);
            Ok(())
        })
    }

    #[test]
    fn a_request_with_too_many_segments_is_refused_and_nothing_mapped() -> Result {
        balanced(|| {
            let mut bench = Bench::with(desk::Plan::default().limits, 2, 64 * 1024)?;
            let (request, pending) = bench.desk.caught(&bench.memory.of(SHAPES[7])?, WRITE, 0)?;
            ensure_eq!(request.segments(), 3);
            let before = hcablk_core::rdma::mapped::count();
            ensure_eq!(
                bench.list.map(request.view(), Direction::ToDevice, COOKIE),
                Err(EINVAL)
            );
            ensure_eq!(bench.list.mapped(), 0);
            ensure_eq!(hcablk_core::rdma::mapped::count(), before);
            request.end(Status::Ok);
            ensure_eq!(pending.end()?, Ok(()));
            // It is as good as before.
            let (request, pending, remote) = bench.show(SHAPES[3], WRITE)?;
            ensure!(bench.link.far.read(0, 512, remote.address, remote.key)?);
            bench.hide(request, &pending)
        })
    }

    #[test]
    fn a_request_with_too_many_bytes_is_refused_and_nothing_mapped() -> Result {
        balanced(|| {
            // Room for two pages, and one as it may begin anywhere in a page.
            let mut bench = Bench::with(desk::Plan::default().limits, 32, 2 * 4096)?;
            let four = [(0, 0, 8192), (1, 0, 8192)];
            let (request, pending) = bench.desk.caught(&bench.memory.of(&four)?, WRITE, 0)?;
            let before = hcablk_core::rdma::mapped::count();
            ensure_eq!(
                bench.list.map(request.view(), Direction::ToDevice, COOKIE),
                Err(EINVAL)
            );
            ensure_eq!(bench.list.mapped(), 0);
            ensure_eq!(hcablk_core::rdma::mapped::count(), before);
            ensure_eq!(bench.list.register().err(), Some(EINVAL));
            request.end(Status::Ok);
            ensure_eq!(pending.end()?, Ok(()));
            // Three pages with the ends of two.
            let (request, pending, remote) = bench.show(&[(0, 512, 7680), (1, 0, 512)], WRITE)?;
            let last = remote.address + 8191;
            ensure!(bench.link.far.read(0, 1, last, remote.key)?);
            bench.hide(request, &pending)
        })
    }

    #[test]
    fn a_request_with_gaps_is_refused_and_nothing_mapped() -> Result {
        balanced(|| {
            let limits = Limits {
                virt_boundary_mask: 0,
                ..desk::Plan::default().limits
            };
            let mut bench = Bench::with(limits, 32, 64 * 1024)?;
            let gaps: [&[(usize, usize, usize)]; 3] = [
                // Ends within a page.
                &[(0, 0, 512), (2, 0, 512)],
                // Begins within one.
                &[(0, 0, 4096), (2, 512, 512)],
                // In the last of three.
                &[(0, 0, 4096), (2, 0, 4096), (1, 1024, 512)],
            ];
            for shape in gaps {
                let (request, pending) = bench.desk.caught(&bench.memory.of(shape)?, WRITE, 0)?;
                let before = hcablk_core::rdma::mapped::count();
                ensure_eq!(usize::from(request.segments()), shape.len());
                ensure_eq!(
                    bench.list.map(request.view(), Direction::ToDevice, COOKIE),
                    Err(EINVAL)
                );
                ensure_eq!(bench.list.mapped(), 0);
                ensure_eq!(hcablk_core::rdma::mapped::count(), before);
                request.end(Status::Ok);
                ensure_eq!(pending.end()?, Ok(()));
            }
            let (request, pending, remote) = bench.show(SHAPES[4], WRITE)?;
            ensure!(bench.link.far.read(0, 512, remote.address, remote.key)?);
            bench.hide(request, &pending)
        })
    }

    #[test]
    fn a_request_without_data_is_refused() -> Result {
        balanced(|| {
            let limits = Limits {
                write_cache: true,
                ..desk::Plan::default().limits
            };
            let mut bench = Bench::with(limits, 32, 64 * 1024)?;
            let nothing = bench.memory.of(&[])?;
            let (request, pending) = bench.desk.caught(&nothing, BioOp::Flush, 0)?;
            ensure_eq!(
                bench.list.map(request.view(), Direction::ToDevice, COOKIE),
                Err(EINVAL)
            );
            ensure_eq!(bench.list.mapped(), 0);
            request.end(Status::Ok);
            ensure_eq!(pending.end()?, Ok(()));
            Ok(())
        })
    }

    #[test]
    fn a_list_without_memory() -> Result {
        balanced(|| {
            let pd = link::domain()?;
            every_allocation(2, || SegmentList::new(&pd, 32, 64 * 1024))
        })
    }
}
