// SPDX-License-Identifier: GPL-2.0

//! Suite `hcablk_buffers`: memory that stays mapped, and the references that hold the device
//! (`rdma::buffer`, `rdma::pd`, `rdma::cm`).

use crate::{
    check::{
        balanced,
        every_allocation, //
    },
    link::{
        self,
        EventRecorder,
        Link,
        Log,
        News,
        RECEIVE,
        SEND, //
    },
    watched::Watched,
};
use hcablk_core::{
    memory::eager_ring::EagerRing,
    rdma::{
        buffer::{
            DmaBuffer,
            MessageBuffers, //
        },
        cm::{
            self,
            Id, //
        },
        cq::{
            CompletionQueue,
            CqContext, //
        },
        device::Direction,
        mapped,
        mr::MemoryRegion,
        pd::ProtectionDomain,
        qp::{
            Capacity,
            QueuePair, //
        },
        wr::{
            Send, //
            Sge,
        },
    },
    sync::Event,
    system::errno,
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// Reports that an identifier has dropped its handler.
struct DropFlag(Arc<Watched<bool>>);

impl cm::Handler for DropFlag {
    fn event(&self, _event: cm::Event<'_>) {}
}

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.change(|gone| *gone = true);
    }
}

/// Receives events, and reports its own drop.
struct Both(
    EventRecorder,
    #[expect(dead_code, reason = "only dropped")] DropFlag,
);

impl cm::Handler for Both {
    fn event(&self, event: cm::Event<'_>) {
        self.0.event(event);
    }
}

/// Creates a domain with the only reference to its identifier, and reports when that is dropped.
fn watched_domain() -> Result<(Arc<ProtectionDomain>, Arc<Watched<bool>>)> {
    loop {
        let gone = Watched::new(false)?;
        let news = Watched::new(News::default())?;
        let both = Both(EventRecorder(news.clone()), DropFlag(gone.clone()));
        let id = Id::new(Arc::new(both, GFP_KERNEL)?)?;
        id.resolve_address(&core::net::SocketAddr::new(crate::address(), 0), 10_000)?;
        news.wait(|n| (n.resolved == 1 || n.down).then_some(()))?;
        if news.with(|n| n.resolved == 1) {
            return Ok((ProtectionDomain::new(&id)?, gone));
        }
    }
}

fn is(flag: &Watched<bool>) -> bool {
    flag.with(|flag| *flag)
}

#[kunit_tests(hcablk_buffers)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_as_large_as_asked_for_and_counted_once() -> Result {
        balanced(|| {
            let pd = link::domain()?;
            let before = mapped::count();
            for order in 0..5 {
                let buffer = DmaBuffer::new(&pd, order, Direction::Bidirectional)?;
                ensure_eq!(buffer.len(), PAGE_SIZE << order);
                ensure_eq!(buffer.pages().len(), PAGE_SIZE << order);
                ensure_eq!(mapped::count(), before + 1);
            }
            ensure_eq!(mapped::count(), before);
            let messages = MessageBuffers::<64>::new(&pd, 129, Direction::ToDevice)?;
            // 64 in a page.
            ensure_eq!(mapped::count(), before + 3);
            drop(messages);
            ensure_eq!(mapped::count(), before);
            Ok(())
        })
    }

    #[test]
    fn severed_objects_leave_the_device_and_keep_their_memory() -> Result {
        balanced(|| {
            let link = Link::new(link::Plan::default())?;
            let (near, pd) = (&link.near, &link.near.pd);
            let before = mapped::count();
            let own = MessageBuffers::<64>::new(pd, 1, Direction::ToDevice)?;
            let ring = EagerRing::new(pd, 1 << 16)?;
            ensure!(near.carry_out(&mut ring.register()?)?);
            let grant = ring.grant();
            ensure!(link
                .far
                .write(b"in the ring", grant.address(0), grant.key)?);
            ensure_eq!(pd.sever(), Err(EBUSY));

            for side in [&link.far, near] {
                side.pair.disconnect();
                side.pair.drain();
            }
            near.pair.detach();
            for _ in 0..2 {
                near.pair.sever();
                ensure!(near.pair.id().is_none());
                ensure_eq!(near.receive(1), Err(errno::enotconn()));
                ensure_eq!(near.send(1, b"too late"), Err(errno::enotconn()));
                ensure_eq!(near.pair.fail(), Ok(()));
                near.cq.kick();
                near.cq.settle();
            }
            ensure_eq!(pd.sever(), Err(EBUSY));
            let others = || Iterator::chain(near.out.blocks(), near.into.blocks());
            for _ in 0..2 {
                ensure_eq!(ring.sever(), Ok(()));
                ensure_eq!(ring.register().err(), Some(ENODEV));
                DmaBuffer::sever_all(|| own.blocks());
                ensure_eq!(mapped::count(), before);
                ensure_eq!(pd.sever(), Err(EBUSY));
            }
            for _ in 0..2 {
                DmaBuffer::sever_all(others);
                ensure_eq!(pd.sever(), Ok(()));
                ensure!(pd.is_severed() && pd.id().is_none());
                ensure!(!pd.is_on_same_device(&link.far.pd));
            }
            // Nothing is made there any more; the memory is still there.
            let new = MessageBuffers::<64>::new(pd, 1, Direction::ToDevice);
            ensure_eq!(new.err(), Some(ENODEV));
            own.write(0, b"still here")?;
            let mut message = [0; 64];
            ensure_eq!(own.read(0, 10, &mut message)?, b"still here");
            ring.sync_for_cpu(0, 512);
            ring.sync_for_device(0, 512);
            ensure!(ring.range(0, 512).is_some());
            // The other side has a domain of its own.
            ensure_eq!(link.far.pd.sever(), Err(EBUSY));
            Ok(())
        })
    }

    #[test]
    fn a_slice_ends_where_the_buffer_does() -> Result {
        balanced(|| {
            let link = Link::new(link::Plan::default())?;
            let buffer = DmaBuffer::new(&link.near.pd, 1, Direction::Bidirectional)?;
            let end = buffer.len();
            // The requested length, and the length that exists.
            let slices = [
                (0, 100, 100),
                (0, 0, 0),
                (end - 100, 100, 100),
                (end - 100, 101, 100),
                (end - 1, usize::MAX, 1),
                (end, 1, 0),
                (end + 1, 1, 0),
                (usize::MAX, usize::MAX, 0),
                (PAGE_SIZE - 10, 20, 20),
            ];
            for (offset, length, wanted) in slices {
                link.far.receive(2)?;
                let sges = [Sge::new(buffer.slice(offset, length))];
                ensure!(link.near.carry_out(&mut Send::new(&sges))?);
                let got = link.far.completed(RECEIVE, 2)?.length;
                ensure_eq!((offset, got), (offset, wanted));
            }
            Ok(())
        })
    }

    #[test]
    fn messages_have_places_of_their_own() -> Result {
        balanced(|| {
            let pd = link::domain()?;
            let buffers = MessageBuffers::<1024>::new(&pd, 10, Direction::Bidirectional)?;
            for index in 0..12u8 {
                buffers.write(index.into(), &[index + 1; 1024])?;
            }
            let mut message = KVec::from_elem(0, 1024, GFP_KERNEL)?;
            for index in 0..12u8 {
                let got = buffers.read(index.into(), 1024, &mut message)?;
                ensure!(got.iter().all(|&byte| byte == index + 1));
            }
            // A short message changes only the words that it covers.
            buffers.write(3, b"a short one")?;
            let got = buffers.read(3, 18, &mut message)?;
            ensure_eq!(got, b"a short one\0\0\0\0\0\x04\x04");
            // Into memory whose length is not a multiple of a word.
            let mut small = [0; 11];
            ensure_eq!(buffers.read(3, 9, &mut small)?, b"a short o");
            ensure_eq!(&small, b"a short one");
            for (at, byte) in [(0, b'A'), (7, b'_'), (8, b'O'), (10, b'E')] {
                buffers.set(3, 11, at, byte)?;
            }
            ensure_eq!(buffers.read(3, 11, &mut message)?, b"A short_OnE");
            for (length, at) in [(11, 11), (0, 0), (1025, 0), (1025, 1024)] {
                ensure_eq!(buffers.set(3, length, at, 0), Err(EINVAL));
            }
            ensure_eq!(buffers.read(2, 1024, &mut message)?.last(), Some(&3));
            Ok(())
        })
    }

    #[test]
    fn messages_have_bounds() -> Result {
        balanced(|| {
            let pd = link::domain()?;
            let buffers = MessageBuffers::<2048>::new(&pd, 3, Direction::Bidirectional)?;
            let mut message = KVec::from_elem(0xaa, 3000, GFP_KERNEL)?;
            // Buffers fill whole pages.
            for index in [4, 5, 100, usize::MAX] {
                ensure_eq!(buffers.write(index, b"x").err(), Some(EINVAL));
                ensure_eq!(buffers.read(index, 1, &mut message).err(), Some(EINVAL));
                ensure_eq!(buffers.slice(index, 1).err(), Some(EINVAL));
            }
            let long = message.get(..2049).ok_or(EINVAL)?;
            ensure_eq!(buffers.write(0, long).err(), Some(errno::emsgsize()));
            // No byte was written, in this buffer or its neighbours.
            for index in 0..2 {
                let got = buffers.read(index, 2048, &mut message)?;
                ensure!(got.iter().all(|&byte| byte == 0));
            }
            // A message longer than the reader's memory.
            let mut small = [0; 10];
            ensure_eq!(
                buffers.read(0, 11, &mut small).err(),
                Some(errno::emsgsize())
            );
            ensure_eq!(buffers.read(0, 10, &mut small)?.len(), 10);
            // The device reports a length beyond the buffer.
            ensure_eq!(buffers.read(0, 2999, &mut message)?.len(), 2048);
            ensure!(MessageBuffers::<64>::new(&pd, 0, Direction::ToDevice)?
                .slice(0, 1)
                .is_err());
            Ok(())
        })
    }

    #[test]
    fn messages_arrive_as_they_were_written() -> Result {
        balanced(|| {
            let link = Link::new(link::Plan::default())?;
            let mut message = KVec::from_elem(0, PAGE_SIZE, GFP_KERNEL)?;
            for (round, length) in [0, 1, 63, 64, 1000, 4095, 4096].into_iter().enumerate() {
                let index = 1 + round as u32;
                for (at, byte) in message.iter_mut().enumerate() {
                    *byte = (at * 7 + round) as u8;
                }
                link.far.receive(index)?;
                link.near
                    .send(index, message.get(..length).ok_or(EINVAL)?)?;
                ensure!(link.near.completed(SEND, index)?.ok);
                ensure_eq!(link.far.completed(RECEIVE, index)?.length, length);
                let got = link.far.into.read(index as usize, length, &mut message)?;
                ensure_eq!(got.len(), length);
                let wrong = got
                    .iter()
                    .enumerate()
                    .position(|(at, &byte)| byte != (at * 7 + round) as u8);
                ensure_eq!((length, wrong), (length, None));
            }
            Ok(())
        })
    }

    #[test]
    fn a_domain_wants_a_device() -> Result {
        let (id, _news) = link::identifier()?;
        ensure_eq!(ProtectionDomain::new(&id).err(), Some(ENODEV));
        ensure_eq!(id.attributes().err(), Some(ENODEV));
        let pd = link::domain()?;
        ensure!(!pd.same_device(&id));
        ensure!(pd.same_device(&link::bound_identifier()?.0));
        let attributes = pd.attributes();
        ensure!(attributes.fast_registration);
        ensure!(attributes.max_qp_wr > 0 && attributes.max_cqe > 0);
        ensure!(attributes.max_fast_reg_pages > 0);
        Ok(())
    }

    #[test]
    fn whatever_is_made_in_a_domain_keeps_it() -> Result {
        balanced(|| {
            let (pd, gone) = watched_domain()?;
            let first = DmaBuffer::new(&pd, 0, Direction::ToDevice)?;
            drop(pd);
            ensure!(!is(&gone));
            drop(first);
            ensure!(is(&gone));

            let (pd, gone) = watched_domain()?;
            let region = MemoryRegion::new(&pd, 1)?;
            drop(pd);
            ensure!(!is(&gone));
            drop(region);
            ensure!(is(&gone));

            let (pd, gone) = watched_domain()?;
            let cq = CompletionQueue::<Log>::new(&pd, 4, 0, CqContext::SoftIrq)?;
            drop(pd);
            ensure!(!is(&gone));
            drop(cq);
            ensure!(is(&gone));

            // The last of several.
            let (pd, gone) = watched_domain()?;
            let region = MemoryRegion::new(&pd, 1)?;
            let messages = MessageBuffers::<64>::new(&pd, 4, Direction::ToDevice)?;
            let cq = CompletionQueue::<Log>::new(&pd, 4, 0, CqContext::SoftIrq)?;
            drop(pd);
            drop(cq);
            drop(region);
            ensure!(!is(&gone));
            drop(messages);
            ensure!(is(&gone));
            Ok(())
        })
    }

    #[test]
    fn a_queue_pair_keeps_its_queue_and_that_its_domain() -> Result {
        balanced(|| {
            let (pd, gone) = watched_domain()?;
            let (id, _news) = link::bound_identifier()?;
            let cq = CompletionQueue::<Log>::new(&pd, 16, 0, CqContext::SoftIrq)?;
            let capacity = Capacity {
                sends: 4,
                receives: 4,
                send_entries: 1,
                receive_entries: 1,
            };
            let pair = QueuePair::new(&id, &pd, &cq, capacity)?;
            drop((pd, cq, id));
            ensure!(!is(&gone));
            drop(pair);
            ensure!(is(&gone));
            Ok(())
        })
    }

    #[test]
    fn a_handler_is_let_go_of_once_and_not_called_afterwards() -> Result {
        let gone = Watched::new(false)?;
        let news = Watched::new(News::default())?;
        let both = Both(EventRecorder(news.clone()), DropFlag(gone.clone()));
        let id = Id::new(Arc::new(both, GFP_KERNEL)?)?;
        id.detach();
        ensure!(is(&gone));
        id.detach();
        id.resolve_address(&core::net::SocketAddr::new(crate::address(), 0), 1000)?;
        let never: Arc<Event> = Arc::pin_init(Event::new(), GFP_KERNEL)?;
        ensure_eq!(never.wait_ms(200), Err(ETIMEDOUT));
        ensure!(news.with(|n| n.resolved == 0 && !n.down));
        Ok(())
    }

    #[test]
    fn identifiers_and_domains_without_memory() -> Result {
        every_allocation(3, link::identifier)?;
        let (id, _news) = link::bound_identifier()?;
        every_allocation(1, || ProtectionDomain::new(&id))
    }

    #[test]
    fn buffers_without_memory() -> Result {
        balanced(|| {
            let pd = link::domain()?;
            every_allocation(1, || {
                DmaBuffer::new(&pd, 3, Direction::Bidirectional).map(|_| ())
            })?;
            every_allocation(1, || MemoryRegion::new(&pd, 16))?;
            every_allocation(4, || {
                MessageBuffers::<64>::new(&pd, 300, Direction::ToDevice).map(|_| ())
            })
        })
    }
}
