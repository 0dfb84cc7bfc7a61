// SPDX-License-Identifier: GPL-2.0

//! Suite `hcablk_sglist`: the states of a segment list, and the requests that it
//! refuses (`sglist`).

use crate::{
    bench::{
        finish,
        on_bench,
        Bench,
        SHAPES,
        WRITE, //
    },
    check::{
        balanced,
        every_allocation, //
    },
    desk,
    link::{
        self,
        Link,
        RECEIVE,
        SEND, //
    },
    memory::pattern,
};
use hcablk_core::{
    blkdev::{
        BioOp,
        Limits,
        LiveLimits, //
    },
    rdma::{
        backlog::Backlog,
        mapped,
        wr::Send, //
    },
    sglist::SegmentList,
};
use kernel::prelude::*;

/// Returns whether the connection still works.
fn alive(link: &Link) -> Result<bool> {
    link.far.receive(7)?;
    link.near.send(7, b"alive?")?;
    Ok(link.near.completed(SEND, 7)?.ok && link.far.completed(RECEIVE, 7)?.ok)
}

/// Checks that sending the list's only piece sends the data of the request for `pieces`, which has
/// `bytes` bytes.
fn sent_whole(bench: &mut Bench, pieces: &[(usize, usize, usize)], bytes: usize) -> Result {
    let sges = [bench.list.only().ok_or(EINVAL)?];
    let link = &bench.link;
    link.far.receive(7)?;
    link.near.post(&mut Send::new(&sges), SEND, 7)?;
    ensure!(link.near.completed(SEND, 7)?.ok);
    ensure_eq!(link.far.completed(RECEIVE, 7)?.length, bytes);
    let mut data = KVec::from_elem(0u8, 4096, GFP_KERNEL)?;
    let memory = bench.memory.with_pieces(pieces)?;
    for (at, &byte) in link.far.into.read(7, bytes, &mut data)?.iter().enumerate() {
        let wanted = memory.byte_at(at).map(|place| pattern(1, place));
        ensure_eq!((at, Some(byte)), (at, wanted));
    }
    Ok(())
}

#[kunit_tests(hcablk_sglist)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_while_the_peer_may_reach_it() -> Result {
        on_bench(|bench| {
            ensure_eq!(bench.list.register().err(), Some(EINVAL));
            ensure_eq!(bench.list.mapped(), 0);
            let (request, pending) = bench.take_request(SHAPES[7], WRITE)?;
            bench.map(&request, WRITE)?;
            ensure_eq!(bench.list.mapped(), 3);
            ensure!(!bench.list.is_registered());
            // One request at a time.
            ensure_eq!(bench.map(&request, WRITE), Err(EINVAL));
            // Mapped but not registered: it can be released.
            bench.list.release()?;
            ensure_eq!(bench.list.mapped(), 0);
            bench.map(&request, WRITE)?;
            let registered = {
                let (mut register, _) = bench.list.register()?;
                bench.link.near.carried_out(&mut register)?
            };
            ensure_eq!(bench.list.register().err(), Some(EINVAL));
            ensure!(bench.list.is_registered());
            ensure_eq!(bench.list.release(), Err(EBUSY));
            // A successful registration is not a proof of invalidation.
            ensure_eq!(bench.list.invalidated(registered), Err(EINVAL));
            ensure_eq!(bench.list.release(), Err(EBUSY));
            let mut invalidate = bench.list.invalidate()?;
            // Not released before the invalidation has completed.
            ensure_eq!(bench.list.release(), Err(EBUSY));
            ensure_eq!(bench.list.mapped(), 3);
            let done = bench.link.near.carried_out(&mut invalidate)?;
            bench.list.invalidated(done)?;
            bench.list.release()?;
            ensure_eq!(bench.list.mapped(), 0);
            finish(request, &pending)?;
            ensure!(alive(&bench.link)?);
            Ok(())
        })
    }

    #[test]
    fn a_list_is_not_revoked_while_its_registration_waits() -> Result {
        on_bench(|bench| {
            let (request, pending) = bench.take_request(SHAPES[0], WRITE)?;
            bench.map(&request, WRITE)?;
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
            finish(request, &pending)
        })
    }

    #[test]
    fn a_list_that_was_revoked_ends_access_and_is_of_no_use() -> Result {
        on_bench(|bench| {
            let (request, pending, remote) = bench.register(SHAPES[0], WRITE)?;
            bench.list.revoke();
            ensure!(!bench.list.is_registered());
            ensure_eq!(bench.list.register().err(), Some(EINVAL));
            ensure_eq!(bench.list.invalidate().err(), Some(EINVAL));
            ensure!(!bench.list.invalidated_by_peer(remote.key));
            bench.list.release()?;
            ensure_eq!(bench.map(&request, WRITE), Err(EINVAL));
            finish(request, &pending)?;
            ensure!(!bench.peer_reads(remote, 512, 0)?);
            Ok(())
        })
    }

    #[test]
    fn dropping_a_list_takes_everything_back() -> Result {
        on_bench(|bench| {
            let (request, pending, remote) = bench.register(SHAPES[0], WRITE)?;
            bench.list = SegmentList::new(&bench.link.near.pd, 1, 512)?;
            finish(request, &pending)?;
            ensure!(!bench.peer_reads(remote, 512, 0)?);
            Ok(())
        })
    }

    #[test]
    fn a_request_with_too_many_segments_is_refused_and_nothing_mapped() -> Result {
        balanced(|| {
            let mut bench = Bench::with(desk::Plan::default().limits, 2, 64 * 1024)?;
            ensure_eq!(bench.check_refused(SHAPES[7], WRITE)?, 3);
            // The list works as before.
            let (request, pending, remote) = bench.register(SHAPES[3], WRITE)?;
            ensure!(bench.peer_reads(remote, 512, 0)?);
            bench.invalidate(request, &pending)
        })
    }

    #[test]
    fn a_request_with_too_many_bytes_is_refused_and_nothing_mapped() -> Result {
        balanced(|| {
            // Memory for two pages, and a third, as it may begin anywhere in a page.
            let mut bench = Bench::with(desk::Plan::default().limits, 32, 2 * 4096)?;
            bench.check_refused(&[(0, 0, 8192), (1, 0, 8192)], WRITE)?;
            ensure_eq!(bench.list.register().err(), Some(EINVAL));
            // The data of two pages, which begins in the first page and ends in a third.
            let (request, pending, remote) =
                bench.register(&[(0, 512, 7680), (1, 0, 512)], WRITE)?;
            ensure!(bench.peer_reads(remote, 1, 8191)?);
            bench.invalidate(request, &pending)
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
                ensure_eq!(usize::from(bench.check_refused(shape, WRITE)?), shape.len());
            }
            let (request, pending, remote) = bench.register(SHAPES[4], WRITE)?;
            ensure!(bench.peer_reads(remote, 512, 0)?);
            bench.invalidate(request, &pending)
        })
    }

    #[test]
    fn a_request_without_data_is_refused() -> Result {
        balanced(|| {
            let limits = Limits {
                live: LiveLimits {
                    write_cache: true,
                    ..LiveLimits::default()
                },
                ..desk::Plan::default().limits
            };
            let mut bench = Bench::with(limits, 32, 64 * 1024)?;
            bench.check_refused(&[], BioOp::Flush)?;
            Ok(())
        })
    }

    #[test]
    fn a_list_with_a_slot_copies_small_writes_and_maps_others() -> Result {
        on_bench(|bench| {
            bench.list = SegmentList::new(&bench.link.near.pd, 32, 64 * 1024)?;
            bench.list.add_slot();
            for (index, pieces) in SHAPES.into_iter().enumerate() {
                let bytes = pieces.iter().map(|piece| piece.2).sum::<usize>();
                let (request, pending) = bench.take_request(pieces, WRITE)?;
                let before = mapped::count();
                bench.list.map_or_copy(request.view())?;
                ensure_eq!((index, bench.list.is_copied()), (index, bytes <= 4096));
                if bench.list.is_copied() {
                    ensure_eq!((bench.list.mapped(), mapped::count()), (1, before));
                    // One request at a time, and no access for the peer.
                    ensure_eq!(bench.list.map_or_copy(request.view()), Err(EINVAL));
                    ensure_eq!(bench.list.register().err(), Some(EINVAL));
                    sent_whole(bench, pieces, bytes)?;
                }
                bench.list.release()?;
                ensure_eq!((bench.list.mapped(), mapped::count()), (0, before));
                finish(request, &pending)?;
            }
            let (request, pending) = bench.take_request(SHAPES[2], BioOp::Read)?;
            ensure_eq!(bench.list.map_or_copy(request.view()), Err(EINVAL));
            ensure_eq!(bench.list.mapped(), 0);
            finish(request, &pending)?;
            // Registered requests of the same size are mapped.
            let (request, pending, remote) = bench.register(SHAPES[2], WRITE)?;
            ensure!(!bench.list.is_copied());
            ensure!(bench.peer_reads(remote, 512, 0)?);
            bench.invalidate(request, &pending)
        })
    }

    #[test]
    fn a_list_without_memory() -> Result {
        balanced(|| {
            let pd = link::domain()?;
            every_allocation(2, || SegmentList::new(&pd, 32, 64 * 1024))?;
            every_allocation(3, || {
                let mut list = SegmentList::new(&pd, 32, 64 * 1024)?;
                list.add_slot();
                Ok(list)
            })
        })
    }
}
