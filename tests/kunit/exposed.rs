// SPDX-License-Identifier: GPL-2.0

//! Suite `hcablk_exposed`: memory that the peer may write to while it exists (`read_bounce`,
//! `eager_ring`): what the peer reaches, and that its access ends before a page is freed.

use crate::{
    check::balanced,
    link::{
        self,
        Link,
        OTHER, //
    },
};
use hcablk_core::{
    memory::eager_ring::EagerRing,
    memory::read_bounce::ReadBounce,
    rdma::wr::{
        Chain,
        Rdma,
        Register,
        Sge,
        WorkId,
        WorkRequest, //
    },
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

/// As many slots as a region has pages: the first page is freed long before the last.
const SLOTS: u16 = 512;
/// The number of RDMA WRITEs in flight when the memory is dropped.
const WRITES: usize = 30;
const ROUNDS: usize = 8;
/// The number of the last write.
const LAST: u32 = 77;

/// Makes the peer write to `address` again and again while `memory` is dropped. KASAN reports a
/// write that reaches a freed page.
fn dropped_under_writes<T>(
    link: &Link,
    memory: T,
    register: impl Fn(&T) -> Result<Register<'_>>,
    (address, key): (u64, u32),
) -> Result {
    ensure!(link.near.carry_out(&mut register(&memory)?)?);
    ensure!(link.far.write(b"once, to see that it can", address, key)?);
    let page = KVec::from_elem(0x5a, PAGE_SIZE, GFP_KERNEL)?;
    let sges = [
        Sge::new(link.far.out.write(1, &page)?),
        Sge::new(link.far.out.write(2, &page)?),
    ];
    for left in (0..WRITES).rev() {
        let mut write = Rdma::write(&sges, address, key);
        if left == 0 {
            write.signal(WorkId::new(OTHER, LAST));
        }
        let mut chain = Chain::new();
        chain.push(&mut write);
        link.far.pair.post(&chain)?;
    }
    drop(memory);
    // The last write is done, refused or flushed. Before that the receiving queue pair must not
    // be destroyed: soft-RoCE hands over packets to a device of the same machine without a
    // reference to the queue pair (`rxe_rcv()`).
    link.far.completed(OTHER, LAST)?;
    Ok(())
}

#[kunit_tests(hcablk_exposed)]
mod tests {
    use super::*;

    #[test]
    fn read_bounce_slots_are_closed_before_they_are_freed() -> Result {
        balanced(|| {
            for _ in 0..ROUNDS {
                let link = Link::new(link::Plan::default())?;
                let slots = ReadBounce::new(&link.near.pd, SLOTS, PAGE_SIZE as u32)?;
                let remote = slots.remote(0, PAGE_SIZE as u32).ok_or(EINVAL)?;
                let place = (remote.address, remote.key);
                dropped_under_writes(&link, slots, ReadBounce::register, place)?;
            }
            Ok(())
        })
    }

    #[test]
    fn eager_ring_is_closed_before_it_is_freed() -> Result {
        balanced(|| {
            for _ in 0..ROUNDS {
                let link = Link::new(link::Plan::default())?;
                let ring = EagerRing::new(&link.near.pd, 1 << 20)?;
                let grant = ring.grant();
                let place = (grant.address(0), grant.key);
                dropped_under_writes(&link, ring, EagerRing::register, place)?;
            }
            Ok(())
        })
    }

    #[test]
    fn a_slot_is_where_the_peer_is_told() -> Result {
        balanced(|| {
            let link = Link::new(link::Plan::default())?;
            let slots = ReadBounce::new(&link.near.pd, 4, 2 * PAGE_SIZE as u32)?;
            ensure!(link.near.carry_out(&mut slots.register()?)?);
            for slot in 0..4 {
                let remote = slots.remote(slot, 512).ok_or(EINVAL)?;
                ensure!(link.far.write(b"in it", remote.address, remote.key)?);
            }
            ensure!(slots.remote(4, 512).is_none());
            ensure!(slots.remote(0, 2 * PAGE_SIZE as u32 + 1).is_none());
            let last = slots.remote(3, 512).ok_or(EINVAL)?;
            let end = last.address + 2 * PAGE_SIZE as u64;
            ensure!(!link.far.write(b"behind the last", end, last.key)?);
            Ok(())
        })
    }
}
