// SPDX-License-Identifier: GPL-2.0

//! Suite `hcablk_regions`: memory of real block requests, registered for a peer that reads and
//! writes it, and no memory next to it (`sglist`, `rdma::mr`).

use crate::{
    bench::{
        finish,
        on_bench,
        COOKIE,
        SHAPES,
        WRITE, //
    },
    link::RECEIVE,
    memory::pattern,
};
use hcablk_core::{
    blkdev::BioOp,
    rdma::wr::{
        Send,
        Sge, //
    },
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

#[kunit_tests(hcablk_regions)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_reads_what_the_request_holds() -> Result {
        on_bench(|bench| {
            for (seed, shape) in (10..).zip(SHAPES) {
                bench.refill(seed)?;
                let (request, pending, remote) = bench.register(shape, WRITE)?;
                let first = shape.first().map_or(0, |piece| piece.1);
                ensure_eq!(
                    remote.address,
                    u64::from(COOKIE) << 32 | (first % PAGE_SIZE) as u64
                );
                let memory = bench.memory.with_pieces(shape)?;
                ensure_eq!(memory.bytes(), request.bytes() as usize);
                let mut data = KVec::from_elem(0, PAGE_SIZE, GFP_KERNEL)?;
                for at in (0..memory.bytes()).step_by(PAGE_SIZE) {
                    let length = PAGE_SIZE.min(memory.bytes() - at);
                    let address = remote.address + at as u64;
                    ensure!(bench.link.far.read(1, length, address, remote.key)?);
                    let got = bench.link.far.into.read(1, length, &mut data)?;
                    ensure_eq!(got.len(), length);
                    for (i, &byte) in got.iter().enumerate() {
                        let place = memory.byte_at(at + i).ok_or(EINVAL)?;
                        ensure_eq!((at + i, byte), (at + i, pattern(seed, place)));
                    }
                }
                bench.invalidate(request, &pending)?;
            }
            Ok(())
        })
    }

    #[test]
    fn the_peer_writes_into_the_request_and_not_beside_it() -> Result {
        on_bench(|bench| {
            let mut data = KVec::with_capacity(PAGE_SIZE, GFP_KERNEL)?;
            for (seed, shape) in (50..).zip(SHAPES) {
                bench.refill(seed)?;
                let (request, pending, remote) = bench.register(shape, BioOp::Read)?;
                let memory = bench.memory.with_pieces(shape)?;
                let mut written = KVec::from_elem(false, 8 * PAGE_SIZE, GFP_KERNEL)?;
                for at in (0..memory.bytes()).step_by(PAGE_SIZE) {
                    let length = PAGE_SIZE.min(memory.bytes() - at);
                    data.clear();
                    for i in at..at + length {
                        let place = memory.byte_at(i).ok_or(EINVAL)?;
                        data.push(!pattern(seed, place), GFP_KERNEL)?;
                        *written.get_mut(place).ok_or(EINVAL)? = true;
                    }
                    let address = remote.address + at as u64;
                    ensure!(bench.link.far.write(&data, address, remote.key)?);
                }
                bench.invalidate(request, &pending)?;
                bench.dump()?;
                let wrong = bench.desk.state.with(|state| {
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
        on_bench(|bench| {
            let (request, pending, remote) = bench.register(&[(0, 512, 1024)], WRITE)?;
            ensure!(bench.peer_reads(remote, 1, 1023)?);
            ensure!(!bench.peer_reads(remote, 1, 1024)?);
            bench.give_up(request, &pending)
        })
    }

    #[test]
    fn the_peer_reads_no_byte_before_the_begin() -> Result {
        on_bench(|bench| {
            let (request, pending, remote) = bench.register(&[(0, 512, 1024)], WRITE)?;
            ensure!(bench.peer_reads(remote, 1, 0)?);
            ensure!(!bench.peer_reads(remote, 1, -1)?);
            bench.give_up(request, &pending)
        })
    }

    #[test]
    fn memory_that_is_sent_is_not_written_by_the_peer() -> Result {
        on_bench(|bench| {
            bench.refill(3)?;
            let (request, pending, remote) = bench.register(&[(0, 0, 512)], WRITE)?;
            ensure!(!bench.link.far.write(b"no", remote.address, remote.key)?);
            bench.give_up(request, &pending)?;
            bench.dump()?;
            let byte = bench.desk.state.with(|state| state.image.first().copied());
            ensure_eq!(byte, Some(pattern(3, 0)));
            Ok(())
        })
    }

    #[test]
    fn memory_that_is_filled_is_not_read_by_the_peer() -> Result {
        on_bench(|bench| {
            let (request, pending, remote) = bench.register(&[(0, 0, 512)], BioOp::Read)?;
            ensure!(!bench.peer_reads(remote, 512, 0)?);
            bench.give_up(request, &pending)
        })
    }

    #[test]
    fn an_earlier_key_reaches_nothing() -> Result {
        on_bench(|bench| {
            let (request, pending, first) = bench.register(SHAPES[0], WRITE)?;
            ensure!(bench.peer_reads(first, 512, 0)?);
            bench.invalidate(request, &pending)?;
            let (request, pending, second) = bench.register(SHAPES[0], WRITE)?;
            ensure!(first.key != second.key);
            ensure_eq!(first.address, second.address);
            ensure!(bench.peer_reads(second, 512, 0)?);
            ensure!(!bench.peer_reads(first, 512, 0)?);
            bench.give_up(request, &pending)
        })
    }

    #[test]
    fn many_uses_of_a_list_have_neighbouring_keys_that_differ() -> Result {
        on_bench(|bench| {
            let mut last = None;
            // More rounds than one region has keys.
            for round in 0..300 {
                let (request, pending, remote) = bench.register(SHAPES[1], WRITE)?;
                ensure!(last != Some(remote.key));
                last = Some(remote.key);
                if round % 50 == 0 {
                    ensure!(bench.peer_reads(remote, 512, 0)?);
                }
                bench.invalidate(request, &pending)?;
            }
            Ok(())
        })
    }

    #[test]
    fn a_key_that_was_invalidated_reaches_nothing() -> Result {
        on_bench(|bench| {
            let (request, pending, remote) = bench.register(SHAPES[0], WRITE)?;
            ensure!(bench.peer_reads(remote, 512, 0)?);
            bench.invalidate(request, &pending)?;
            ensure!(!bench.peer_reads(remote, 512, 0)?);
            Ok(())
        })
    }

    #[test]
    fn the_peer_invalidates_its_key_with_a_message() -> Result {
        on_bench(|bench| {
            let (request, pending, remote) = bench.register(SHAPES[0], WRITE)?;
            bench.link.near.receive(3)?;
            let sges = [Sge::new(bench.link.far.out.write(0, b"done")?)];
            let mut send = Send::new(&sges).invalidating(remote.key);
            ensure!(bench.link.far.carry_out(&mut send)?);
            let done = bench.link.near.completed(RECEIVE, 3)?;
            ensure_eq!(done.invalidated, Some(remote.key));
            ensure_eq!(done.length, 4);
            // The key of another list.
            ensure!(!bench.list.invalidated_by_peer(remote.key ^ 1));
            ensure!(bench.list.is_registered());
            ensure_eq!(bench.list.release(), Err(EBUSY));
            ensure!(bench.list.invalidated_by_peer(remote.key));
            ensure!(!bench.list.is_registered());
            // A key is invalidated only once.
            ensure!(!bench.list.invalidated_by_peer(remote.key));
            bench.list.release()?;
            finish(request, &pending)?;
            ensure!(!bench.peer_reads(remote, 512, 0)?);
            Ok(())
        })
    }

    #[test]
    fn a_plain_message_invalidates_nothing() -> Result {
        on_bench(|bench| {
            let (request, pending, remote) = bench.register(SHAPES[0], WRITE)?;
            bench.link.near.receive(3)?;
            bench.link.far.send(0, b"done")?;
            ensure_eq!(bench.link.near.completed(RECEIVE, 3)?.invalidated, None);
            ensure!(bench.peer_reads(remote, 512, 0)?);
            bench.invalidate(request, &pending)
        })
    }
}
