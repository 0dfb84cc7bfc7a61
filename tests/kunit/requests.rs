// SPDX-License-Identifier: GPL-2.0

//! Suite `hcablk_requests`: a request's owner, how it ends, times out and is rejected, and the
//! places of a queue pair (`blkdev`: request, per_tag).

use crate::{
    desk::{
        Desk,
        Driver,
        Mode,
        Placed,
        Plan,
        DEPTH, //
    },
    memory::{
        pattern,
        Memory,
        Pending, //
    },
    watched::{
        pause,
        Watched,
        WAIT_TIMEOUT_MS, //
    },
};
use hcablk_core::{
    blkdev::{
        BioOp,
        Dispatch,
        PerTag,
        Status, //
    },
    sync::{
        Drained,
        WorkQueue, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    }, //
};

const READ: BioOp = BioOp::Read;
const WRITE: BioOp = BioOp::Write { fua: false };

#[kunit_tests(hcablk_requests)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_sizes() -> Result {
        ensure_eq!(Dispatch::<Driver>::new(0, 1).err(), Some(EINVAL));
        ensure_eq!(Dispatch::<Driver>::new(1, 0).err(), Some(EINVAL));
        // blk-mq's limit.
        ensure_eq!(Dispatch::<Driver>::new(1, 10_241).err(), Some(EINVAL));
        let dispatch = Dispatch::<Driver>::new(3, 10_240)?;
        ensure_eq!((dispatch.hw_queues(), dispatch.depth()), (3, 10_240));
        let places = PerTag::<Driver, ()>::new(10_240, |_| Ok(()))?;
        for tag in [0, 10_239, 10_240, u16::MAX] {
            ensure!(places.take(tag, 0).is_none());
            ensure!(places.take_any(tag).is_none());
            ensure!(!places.is_parked(tag));
        }
        // Without a disk this does nothing.
        dispatch.run_hw_queues();
        dispatch.synchronize();
        Ok(())
    }

    #[test]
    fn a_parked_request_is_taken_once_and_by_its_generation() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.with_pieces(&[(0, 0, 512)])?;
        let mut last = None;
        for _ in 0..20 {
            desk.set(Mode::Park);
            let pending = desk.begin(&memory, READ, 0)?;
            let seen = desk.next()?;
            let (queue, tag, generation) = (seen.hw_queue, seen.tag, seen.generation);
            let take = |q, t, g: u16| desk.take(q, t, g).is_some();
            ensure!(!take(queue, tag, generation.wrapping_add(1)));
            ensure!(!take(queue, tag, generation.wrapping_sub(1)));
            ensure!(!take(queue, tag ^ 1, generation));
            ensure!(!take(queue ^ 1, tag, generation));
            ensure!(!take(queue, DEPTH as u16, generation));
            ensure!(!take(queue + 2, tag, generation));
            let request = desk.take(queue, tag, generation).ok_or(EINVAL)?;
            let view = request.view();
            ensure_eq!(
                (view.hw_queue(), view.tag(), view.generation()),
                (queue, tag, generation)
            );
            // The request is owned.
            ensure!(!take(queue, tag, generation));
            ensure!(desk.take_any(queue, tag).is_none());
            request.park();
            let request = desk.take_any(queue, tag).ok_or(EINVAL)?;
            ensure!(!pending.has_ended());
            request.into_request().end(Status::Ok);
            ensure_eq!(pending.end()?, Ok(()));
            // The request has ended.
            ensure!(!take(queue, tag, generation));
            ensure!(desk.take_any(queue, tag).is_none());
            if let Some((same, before)) = last.replace(((queue, tag), generation)) {
                if same == (queue, tag) {
                    ensure_eq!(generation, u16::wrapping_add(before, 1));
                }
            }
        }
        Ok(())
    }

    #[test]
    fn of_several_who_take_a_request_one_gets_it() -> Result {
        const WORKERS: u32 = 4;
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.with_pieces(&[(0, 0, 512)])?;
        let queue = Arc::new(WorkQueue::new(c"hcablk_kunit")?, GFP_KERNEL)?;
        for round in 0..50 {
            desk.set(Mode::Park);
            // The workers that are ready, and those that got the request.
            let score = Watched::new((0, 0, 0))?;
            for worker in 0..WORKERS {
                let (score, places) = (score.clone(), desk.places.clone());
                queue.try_spawn(GFP_KERNEL, move || {
                    score.change(|score| score.0 += 1);
                    let (start, mut taken) = (Instant::<Monotonic>::now(), 0);
                    let timed_out = || start.elapsed().as_millis() > i64::from(WAIT_TIMEOUT_MS);
                    while taken == 0 && score.with(|score| score.1 == 0) && !timed_out() {
                        let mut end = |request: Placed<'_>| {
                            taken += 1;
                            request.into_request().end(Status::Ok);
                        };
                        for places in places.iter() {
                            if worker % 2 == 1 {
                                places.for_each_parked(&mut end);
                                continue;
                            }
                            for tag in 0..DEPTH as u16 {
                                if let Some(request) = places.take_any(tag) {
                                    end(request);
                                }
                            }
                        }
                    }
                    score.change(|score| {
                        score.1 += taken;
                        score.2 += 1;
                    });
                })?;
            }
            score.wait(|score| (score.0 == WORKERS).then_some(()))?;
            let pending = desk.begin(&memory, READ, 0)?;
            ensure_eq!(pending.end()?, Ok(()));
            score.wait(|score| (score.2 == WORKERS).then_some(()))?;
            ensure_eq!((round, score.with(|score| score.1)), (round, 1));
        }
        drop(Drained(queue));
        Ok(())
    }

    #[test]
    fn all_that_is_parked_is_found() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.with_pieces(&[(0, 0, 512)])?;
        desk.set(Mode::Park);
        let mut pending: KVec<Pending> = KVec::new();
        for sector in 0..6 {
            // Far apart, or they would be merged.
            pending.push(desk.begin(&memory, READ, sector * 100)?, GFP_KERNEL)?;
        }
        let mut per_queue = [0, 0];
        for _ in 0..6 {
            let seen = desk.next()?;
            *per_queue.get_mut(seen.hw_queue as usize).ok_or(EINVAL)? += 1;
        }
        let mut found = 0;
        desk.places[1].for_each_parked(|request| {
            found += 1;
            request.park();
        });
        ensure_eq!(found, per_queue[1]);
        found = 0;
        for places in desk.places.iter() {
            places.for_each_parked(|request| {
                found += 1;
                request.into_request().end(Status::Transport);
            });
        }
        ensure_eq!(found, 6);
        for places in desk.places.iter() {
            places.for_each_parked(|request| {
                found += 1;
                request.park();
            });
        }
        ensure_eq!(found, 6);
        for pending in pending {
            ensure_eq!(pending.end()?, Err(Status::Transport));
        }
        Ok(())
    }

    #[test]
    fn a_request_ends_with_what_it_was_ended_with() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.with_pieces(&[(0, 0, 512)])?;
        for status in [
            Status::NotSupported,
            Status::Timeout,
            Status::NoSpace,
            Status::Transport,
            Status::Target,
            Status::Medium,
            Status::Protection,
            Status::Resource,
            Status::IoErr,
            Status::DevResource,
            Status::Offline,
            Status::Invalid,
        ] {
            let (request, pending) = desk.take_request(&memory, WRITE, 0)?;
            request.end(status);
            ensure_eq!(pending.end()?, Err(status));
        }
        Ok(())
    }

    #[test]
    fn a_request_that_is_dropped_is_an_error() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.with_pieces(&[(0, 0, 512)])?;
        desk.set(Mode::Drop);
        ensure_eq!(desk.run(&memory, READ, 0)?, Err(Status::IoErr));
        let (request, pending) = desk.take_request(&memory, READ, 0)?;
        drop(request);
        ensure_eq!(pending.end()?, Err(Status::IoErr));
        for tag in 0..DEPTH as u16 {
            ensure!(desk.take_any(0, tag).is_none() && desk.take_any(1, tag).is_none());
        }
        ensure_eq!(desk.run(&memory, READ, 0)?, Ok(()));
        Ok(())
    }

    #[test]
    fn a_request_that_is_turned_away_comes_again_or_ends() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.with_pieces(&[(0, 0, 512)])?;
        desk.set(Mode::RejectFirst(Status::Resource));
        ensure_eq!(desk.run(&memory, READ, 8)?, Ok(()));
        let (first, second) = (desk.next()?, desk.next()?);
        ensure_eq!((first.sector, second.sector), (8, 8));
        ensure!(first.generation != second.generation || first.tag != second.tag);

        desk.set(Mode::Reject(Status::Medium));
        ensure_eq!(desk.run(&memory, READ, 0)?, Err(Status::Medium));
        // Rejecting with `Ok` ends a request.
        desk.set(Mode::Reject(Status::Ok));
        ensure_eq!(desk.run(&memory, READ, 0)?, Ok(()));
        desk.state.with(|state| state.seen.clear());

        desk.set(Mode::RequeueFirst);
        ensure_eq!(desk.run(&memory, WRITE, 16)?, Ok(()));
        let (first, second) = (desk.next()?, desk.next()?);
        ensure_eq!((first.sector, second.sector), (16, 16));
        Ok(())
    }

    #[test]
    fn a_queue_that_lacked_something_is_run_again() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.with_pieces(&[(0, 0, 512)])?;
        // A request in flight: the block layer would run the queue when it ends.
        let (request, other) = desk.take_request(&memory, READ, 0)?;
        desk.set(Mode::Reject(Status::DevResource));
        let pending = desk.begin(&memory, READ, 64)?;
        let seen = desk.next()?;
        pause(100);
        ensure!(!pending.has_ended());
        desk.set(Mode::Answer);
        // Beyond the last queue this does nothing.
        desk.dispatch.run_hw_queue(2);
        desk.dispatch.run_hw_queue(seen.hw_queue);
        ensure_eq!(pending.end()?, Ok(()));
        request.end(Status::Ok);
        ensure_eq!(other.end()?, Ok(()));
        Ok(())
    }

    #[test]
    fn what_takes_too_long_times_out() -> Result {
        let desk = Desk::new(&Plan {
            timeout_ms: 1000,
            ..Plan::default()
        })?;
        let memory = Memory::new(1)?.with_pieces(&[(0, 0, 512)])?;
        desk.set(Mode::Park);
        let pending = desk.begin(&memory, READ, 0)?;
        let seen = desk.next()?;
        ensure_eq!(pending.end()?, Err(Status::Timeout));
        let timeouts = desk.state.with(|state| {
            let (first, count) = (state.timeouts.first().copied(), state.timeouts.len());
            (first, count)
        });
        ensure_eq!(timeouts, (Some((seen.hw_queue, seen.tag)), 1));
        // An answer after the timeout.
        ensure!(desk
            .take(seen.hw_queue, seen.tag, seen.generation)
            .is_none());
        desk.set(Mode::Answer);
        ensure_eq!(desk.run(&memory, READ, 0)?, Ok(()));
        Ok(())
    }

    #[test]
    fn the_owner_of_a_place_has_its_value() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let refused = PerTag::<Driver, ()>::new(DEPTH as u16, |tag| match tag {
            3 => Err(ENOSPC),
            _ => Ok(()),
        });
        ensure_eq!(refused.err(), Some(ENOSPC));
        let places = PerTag::new(DEPTH as u16, |tag| Ok((tag, 0)))?;
        for round in 0..20 {
            let (request, pending) = desk.take_one_request()?;
            let mut request = places.claim(request).map_err(|_| EINVAL)?;
            let (tag, generation) = (request.view().tag(), request.generation());
            request.split().1 .1 = round;
            request.park();
            ensure!(places.is_parked(tag));
            ensure!(places.take(tag, generation.wrapping_add(1)).is_none());
            ensure!(places.take(u16::MAX, generation).is_none());
            let mut request = places.take(tag, generation).ok_or(EINVAL)?;
            ensure!(places.take(tag, generation).is_none());
            ensure!(places.take_any(tag).is_none() && !places.is_parked(tag));
            let (view, value) = request.split();
            ensure_eq!((view.tag(), *value), (tag, (tag, round)));
            request.park();
            let request = places.take_any(tag).ok_or(EINVAL)?;
            request.into_request().end(Status::Ok);
            ensure_eq!(pending.end()?, Ok(()));
        }
        Ok(())
    }

    #[test]
    fn requests_with_the_same_tag_have_different_places_until_all_are_taken() -> Result {
        // Requests of two disks, which may have the same tags.
        let desks = [Desk::new(&Plan::default())?, Desk::new(&Plan::default())?];
        let places = PerTag::<Driver, ()>::new(3, |_| Ok(()))?;
        let (mut placed, mut pending) = (KVec::new(), KVec::new());
        let mut turned_away = 0;
        for round in 0..4 {
            let (request, io) = desks[round % 2].take_one_request()?;
            pending.push(io, GFP_KERNEL)?;
            match places.claim(request) {
                Ok(request) => placed.push(request, GFP_KERNEL)?,
                Err(request) => {
                    turned_away += 1;
                    request.end(Status::Ok);
                }
            }
        }
        ensure_eq!((placed.len(), turned_away), (3, 1));
        let mut seen = 0_u32;
        for request in placed {
            seen |= 1 << request.view().tag();
            request.park();
        }
        ensure_eq!(seen, 7);
        // A place is free again when its request has left.
        let request = places.take_any(1).ok_or(EINVAL)?;
        request.into_request().end(Status::Ok);
        let (request, io) = desks[0].take_one_request()?;
        let request = places.claim(request).map_err(|_| EINVAL)?;
        ensure_eq!(request.view().tag(), 1);
        request.park();
        pending.push(io, GFP_KERNEL)?;
        places.for_each_parked(|request| request.into_request().end(Status::Ok));
        for io in pending {
            ensure_eq!(io.end()?, Ok(()));
        }
        Ok(())
    }

    #[test]
    fn copying_stops_at_the_end_and_keeps_to_the_direction() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(2)?;
        desk.fill(9);
        ensure_eq!(desk.run(&memory.whole()?, READ, 0)?, Ok(()));
        let two = memory.with_pieces(&[(0, 3584, 4608), (1, 0, 512)])?;
        let mut bytes = KVec::from_elem(0u8, 8192, GFP_KERNEL)?;

        // More memory than the request has data.
        let (request, pending) = desk.take_request(&two, WRITE, 0)?;
        request.view().copy_from_data(&mut bytes);
        // A write's data is not overwritten.
        request.view().copy_to_data(&[0xff; 512]);
        for (at, &byte) in bytes.iter().enumerate() {
            let wanted = two.byte_at(at).map_or(0, |place| pattern(9, place));
            ensure_eq!((at, byte), (at, wanted));
        }
        // Less.
        let mut few = [0; 700];
        request.view().copy_from_data(&mut few);
        ensure_eq!(bytes.get(..700), Some(&few[..]));
        request.end(Status::Ok);
        ensure_eq!(pending.end()?, Ok(()));

        let (request, pending) = desk.take_request(&two, READ, 0)?;
        // A read's data is not copied out.
        few.fill(0xee);
        request.view().copy_from_data(&mut few);
        ensure!(few.iter().all(|&byte| byte == 0xee));
        // A part of the data, and more than all of it.
        request.view().copy_to_data(&few);
        request.end(Status::Ok);
        ensure_eq!(pending.end()?, Ok(()));
        ensure_eq!(desk.run(&memory.whole()?, WRITE, 0)?, Ok(()));
        let wrong = desk.state.with(|state| {
            let whole = state.image.iter().take(4 * 4096).enumerate();
            let mut written = 0;
            for (at, &byte) in whole {
                let place = (0..700).any(|i| two.byte_at(i) == Some(at));
                written += u32::from(place);
                if byte != if place { 0xee } else { pattern(9, at) } {
                    return Some(at);
                }
            }
            (written != 700).then_some(usize::MAX)
        });
        ensure_eq!(wrong, None);
        Ok(())
    }
}
