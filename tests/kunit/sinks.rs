// SPDX-License-Identifier: GPL-2.0

//! Suite `hcablk_sinks`: memory that is registered for one RDMA READ
//! (`rdma::sink`).

use crate::{
    check::{
        balanced,
        every_allocation, //
    },
    desk::{
        self,
        Desk, //
    },
    link::{
        self,
        Link,
        OTHER,
        RECEIVE, //
    },
    memory::{
        pattern,
        Memory, //
    },
};
use hcablk_core::{
    blkdev::{
        BioOp,
        Status, //
    },
    rdma::{
        buffer::DmaBuffer,
        cq::Success,
        device::Direction,
        mr::RemoteAddress,
        sink::Sink,
        wr::{
            Chain,
            Rdma,
            Send,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
    sglist::SegmentList,
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

const WRITE: BioOp = BioOp::Write { fua: false };

/// Allocates buffers of one page.
fn buffers(link: &Link, count: usize) -> Result<KVec<DmaBuffer>> {
    let mut buffers = KVec::new();
    for _ in 0..count {
        buffers.push(
            DmaBuffer::new(&link.near.pd, 0, Direction::Bidirectional)?,
            GFP_KERNEL,
        )?;
    }
    Ok(buffers)
}

/// Reads the far side's registered memory into the sink; returns the proof of success.
fn rdma_read(link: &Link, sink: &mut Sink, remote: RemoteAddress) -> Result<Success> {
    let mut registration = sink.register()?;
    let sges = [registration.sge];
    let mut read = Rdma::read(&sges, remote.address, remote.key);
    registration.invalidate.signal(WorkId::new(OTHER, 1));
    let mut chain = Chain::new();
    chain.push(&mut registration.register);
    chain.push(&mut read);
    chain.push(&mut registration.invalidate);
    ensure_eq!(chain.len(), 3);
    link.near.pair.post(&chain)?;
    link.near.completed(OTHER, 1)?.proof.ok_or(EIO)
}

/// Reads a near buffer's content by sending it to the far side.
fn content(link: &Link, buffer: &DmaBuffer, data: &mut [u8]) -> Result {
    link.far.receive(5)?;
    let sges = [Sge::new(buffer.slice(0, data.len()))];
    ensure!(link.near.carry_out(&mut Send::new(&sges))?);
    ensure_eq!(link.far.completed(RECEIVE, 5)?.length, data.len());
    link.far.into.read(5, data.len(), data)?;
    Ok(())
}

#[kunit_tests(hcablk_sinks)]
mod tests {
    use super::*;

    #[test]
    fn a_read_arrives_in_all_buffers_again_and_again() -> Result {
        balanced(|| {
            let link = Link::new(link::Plan::default())?;
            let desk = Desk::new(&desk::Plan::default())?;
            let memory = Memory::new(2)?;
            let shape = memory.with_pieces(&[(0, 0, 8192), (1, 0, 4096), (1, 4096, 512)])?;
            let mut list = SegmentList::new(&link.far.pd, 8, 64 * 1024)?;
            let buffers = buffers(&link, 4)?;
            let mut sink = Sink::new(&link.near.pd, 4, 4 * PAGE_SIZE as u32)?;
            let mut data = KVec::from_elem(0, PAGE_SIZE, GFP_KERNEL)?;
            for round in 0..20u8 {
                desk.fill(round);
                ensure_eq!(desk.run(&memory.whole()?, BioOp::Read, 0)?, Ok(()));
                let (request, pending) = desk.take_request(&shape, WRITE, 0)?;
                list.map(request.view(), Direction::ToDevice, round.into())?;
                let remote = {
                    let (mut register, remote) = list.register()?;
                    ensure!(link.far.carry_out(&mut register)?);
                    remote
                };
                let length = |i: usize| if i == 3 { 512 } else { PAGE_SIZE };
                let pieces = buffers.iter().enumerate().map(|(i, b)| (b, length(i)));
                sink.map(pieces, round.into())?;
                let read = rdma_read(&link, &mut sink, remote)?;
                let used = || buffers.iter();
                ensure!(used().all(DmaBuffer::is_exposed));
                sink.completed(read, used());
                ensure!(!used().any(DmaBuffer::is_exposed));
                for (i, buffer) in buffers.iter().enumerate() {
                    let part = data.get_mut(..length(i)).ok_or(EINVAL)?;
                    content(&link, buffer, part)?;
                    let wrong = part
                        .iter()
                        .enumerate()
                        .position(|(at, &byte)| byte != pattern(round, i * PAGE_SIZE + at));
                    ensure_eq!((round, i, wrong), (round, i, None));
                }
                let mut invalidate = list.invalidate()?;
                let done = link.far.carried_out(&mut invalidate)?;
                list.invalidated(done)?;
                list.release()?;
                request.end(Status::Ok);
                ensure_eq!(pending.end()?, Ok(()));
            }
            Ok(())
        })
    }

    #[test]
    fn a_sink_is_used_once_at_a_time() -> Result {
        balanced(|| {
            let link = Link::new(link::Plan::default())?;
            let buffers = buffers(&link, 1)?;
            let mut sink = Sink::new(&link.near.pd, 2, 2 * PAGE_SIZE as u32)?;
            let pieces = || buffers.iter().map(|b| (b, PAGE_SIZE));
            ensure_eq!(sink.register().err(), Some(EINVAL));
            sink.map(pieces(), 1)?;
            ensure_eq!(sink.map(pieces(), 1), Err(EBUSY));
            ensure!(sink.register().is_ok());
            // Registered already.
            ensure_eq!(sink.register().err(), Some(EINVAL));
            ensure_eq!(sink.map(pieces(), 1), Err(EBUSY));
            sink.completed(
                link.near.carried_out(&mut Rdma::empty_write())?,
                buffers.iter(),
            );
            ensure_eq!(sink.register().err(), Some(EINVAL));
            sink.map(pieces(), 1)?;
            ensure!(sink.register().is_ok());
            sink.completed(
                link.near.carried_out(&mut Rdma::empty_write())?,
                buffers.iter(),
            );
            Ok(())
        })
    }

    #[test]
    fn what_a_sink_cannot_take_is_refused_and_leaves_it_usable() -> Result {
        balanced(|| {
            let link = Link::new(link::Plan::default())?;
            let own = buffers(&link, 3)?;
            let foreign = DmaBuffer::new(&link.far.pd, 0, Direction::Bidirectional)?;
            let large = DmaBuffer::new(&link.near.pd, 2, Direction::Bidirectional)?;
            let [a, b, c] = &own[..] else {
                return Err(EINVAL);
            };
            let mut sink = Sink::new(&link.near.pd, 2, 2 * PAGE_SIZE as u32)?;
            let wrong: [&[(&DmaBuffer, usize)]; 5] = [
                // More pieces than the sink holds.
                &[(a, PAGE_SIZE), (b, PAGE_SIZE), (c, PAGE_SIZE)],
                // None.
                &[],
                // A gap.
                &[(a, 512), (b, PAGE_SIZE)],
                // More pages than the region has.
                &[(&large, 3 * PAGE_SIZE)],
                &[(a, PAGE_SIZE), (&large, 2 * PAGE_SIZE)],
            ];
            for (which, pieces) in wrong.iter().enumerate() {
                let result = sink.map(pieces.iter().copied(), 1);
                ensure!(result.is_err());
                ensure!(result != Err(EBUSY));
                // No work request is returned that could be posted.
                ensure_eq!((which, sink.register().err()), (which, Some(EINVAL)));
                sink.map([(a, PAGE_SIZE), (b, 512)].into_iter(), 1)?;
                ensure!(sink.register().is_ok());
                sink.completed(link.near.carried_out(&mut Rdma::empty_write())?, own.iter());
            }
            // A buffer of a different domain of the same device is accepted: the key is the
            // region's.
            sink.map([(a, PAGE_SIZE), (&foreign, 512)].into_iter(), 1)?;
            ensure!(sink.register().is_ok());
            let used = [a, &foreign];
            sink.completed(
                link.near.carried_out(&mut Rdma::empty_write())?,
                used.into_iter(),
            );
            ensure!(!used.iter().any(|buffer| buffer.is_exposed()));
            Ok(())
        })
    }

    #[test]
    fn a_read_that_is_refused_fails_and_the_sink_is_flushed() -> Result {
        balanced(|| {
            let link = Link::new(link::Plan::default())?;
            let buffers = buffers(&link, 1)?;
            let mut sink = Sink::new(&link.near.pd, 1, PAGE_SIZE as u32)?;
            sink.map(buffers.iter().map(|b| (b, PAGE_SIZE)), 1)?;
            let nowhere = RemoteAddress {
                address: 0,
                key: 0x1234_5600,
            };
            ensure!(rdma_read(&link, &mut sink, nowhere).is_err());
            // The memory is dropped while the region may still be valid.
            drop(sink);
            ensure!(buffers.iter().all(DmaBuffer::is_exposed));
            Ok(())
        })
    }

    #[test]
    fn a_sink_for_nothing_is_refused() -> Result {
        balanced(|| {
            let pd = link::domain()?;
            ensure_eq!(Sink::new(&pd, 0, 4096).err(), Some(EINVAL));
            Ok(())
        })
    }

    #[test]
    fn a_sink_without_memory() -> Result {
        balanced(|| {
            let pd = link::domain()?;
            every_allocation(2, || Sink::new(&pd, 32, 64 * 1024))
        })
    }
}
