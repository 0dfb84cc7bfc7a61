// SPDX-License-Identifier: GPL-2.0

//! Suite `hcablk_blkdev`: a disk, its requests and who owns them, and I/O to a
//! block device (`blkdev`).

use crate::{
    check::every_allocation,
    desk::{
        self,
        pattern,
        start,
        Desk,
        Driver,
        HwQueue,
        Memory,
        Mode,
        Pending,
        Plan,
        AT_EXIT_REFUSED,
        AT_EXIT_TRY,
        DEPTH,
        SIZE, //
    },
    watched::{
        eventually,
        pause,
        Watched,
        WAIT_TIMEOUT_MS, //
    },
};
use hcablk_core::{
    blkdev::{
        BioOp,
        BioSlot,
        BlockDevice,
        Limits,
        Op,
        PerTag,
        Request,
        Requests,
        Status,
        TagSet,
        TagSetConfig, //
    },
    sync::{
        Drained,
        WorkQueue, //
    },
};
use kernel::{
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};

const READ: BioOp = BioOp::Read;
const WRITE: BioOp = BioOp::Write { fua: false };

fn with(limits: Limits) -> Result<Desk> {
    Desk::new(&Plan {
        limits,
        ..Plan::default()
    })
}

#[kunit_tests(hcablk_blkdev)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_sizes() -> Result {
        ensure_eq!(Requests::<Driver>::new(0, 1).err(), Some(EINVAL));
        ensure_eq!(Requests::<Driver>::new(1, 0).err(), Some(EINVAL));
        // blk-mq's bound.
        ensure_eq!(Requests::<Driver>::new(1, 10_241).err(), Some(EINVAL));
        let requests = Requests::<Driver>::new(3, 10_240)?;
        ensure_eq!((requests.hw_queues(), requests.depth()), (3, 10_240));
        for (hw_queue, tag) in [
            (0, 0),
            (2, 10_239),
            (2, 10_240),
            (3, 0),
            (u32::MAX, u16::MAX),
        ] {
            ensure!(requests.take(hw_queue, tag, 0).is_none());
            ensure!(requests.take_any(hw_queue, tag).is_none());
        }
        // Without a disk nothing happens.
        requests.run_hw_queues();
        requests.synchronize();
        Ok(())
    }

    #[test]
    fn a_table_has_one_tag_set_and_that_one_disk() -> Result {
        let (_state, requests, tag_set) = desk::tag_set(0)?;
        let config = TagSetConfig {
            timeout_ms: 0,
            numa_node: None,
            no_scheduler: true,
            poll_queues: 0,
        };
        let again = TagSet::new(&config, &requests, tag_set.data().clone());
        ensure_eq!(again.err(), Some(EBUSY));
        ensure_eq!(tag_set.depth(), DEPTH);
        ensure!((1..=2).contains(&tag_set.hw_queues()));
        let plan = Plan::default();
        let disk = desk::disk(&tag_set, &plan)?;
        let number = disk.number();
        ensure_eq!(desk::disk(&tag_set, &plan).err(), Some(EBUSY));
        // Another disk has another number.
        let other = Desk::new(&plan)?;
        ensure!(other.disk.as_ref().map(|disk| disk.number()) != Some(number));
        drop(other);
        // Who read the partitions may still have it open, and keep its number.
        desk::closed(&disk)?;
        disk.remove();
        eventually(|| Ok(desk::disk(&tag_set, &plan)?.number() == number))
    }

    #[test]
    fn data_arrives_where_it_belongs() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(4)?;
        let shapes: [&[(usize, usize, usize)]; 4] = [
            &[(0, 0, 512)],
            &[(1, 4, 4092), (1, 4096, 4)],
            &[(0, 3584, 512), (3, 4096, 4096), (2, 0, 1024)],
            &[(2, 100, 3996), (0, 0, 8192), (1, 0, 4196)],
        ];
        for (seed, shape) in (7..).zip(shapes) {
            desk.fill(seed);
            // 5 sectors off, so that a mistake shows.
            ensure_eq!(desk.run(&memory.whole()?, READ, 5)?, Ok(()));
            let piece = memory.of(shape)?;
            ensure_eq!(desk.run(&piece, WRITE, 300)?, Ok(()));
            let wrong = desk.state.look(|state| {
                state.image.iter().enumerate().position(|(at, &byte)| {
                    let from = at
                        .checked_sub(300 * 512)
                        .and_then(|at| Some(piece.place(at)? + 5 * 512));
                    byte != pattern(seed, from.unwrap_or(at))
                })
            });
            ensure_eq!(wrong, None);
            let seen = desk.state.look(|state| state.seen.pop()).ok_or(EINVAL)?;
            ensure_eq!((seen.op, seen.sector), (Op::Write, 300));
            ensure_eq!(seen.bytes as usize, piece.bytes());
            ensure!(!seen.fua);
            desk.state.look(|state| state.seen.clear());
        }
        Ok(())
    }

    #[test]
    fn a_hardware_queue_gets_other_data_and_the_former_is_free() -> Result {
        let mut desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?;
        let whole = memory.whole()?;
        desk.fill(7);
        ensure_eq!(desk.run(&whole, READ, 0)?, Ok(()));
        desk.state.look(|state| state.seen.clear());

        let (state, other) = desk::shared(&desk.requests)?;
        // Whether the former one has no other user left.
        let exchange = |hw_queue| -> Result<bool> {
            let new = HwQueue::new(&other, hw_queue)?;
            let former = desk.requests.exchange(hw_queue, new)?;
            Ok(Arc::into_unique_or_drop(former).is_some())
        };
        let queues = desk
            .disk
            .as_ref()
            .map_or(0, |disk| disk.tag_set().hw_queues());
        for hw_queue in 0..queues {
            ensure_eq!(exchange(hw_queue), Ok(true));
        }
        ensure_eq!(exchange(queues), Err(ENODEV));
        ensure_eq!(desk.run(&whole, WRITE, 40)?, Ok(()));
        ensure!(desk.state.look(|state| state.seen.is_empty()));
        let written = state.look(|state| (state.seen.len(), state.image.get(40 * 512).copied()));
        ensure_eq!(written, (1, Some(pattern(7, 0))));

        for _ in 0..20 {
            ensure_eq!(exchange(0), Ok(true));
            ensure_eq!(desk.run(&whole, READ, 40)?, Ok(()));
        }
        desk.device = None;
        if let Some(disk) = desk.disk.take() {
            disk.remove();
        }
        ensure_eq!(exchange(0), Err(ENODEV));
        Ok(())
    }

    #[test]
    fn a_hardware_queue_that_blk_mq_gives_up_gets_no_other_data() -> Result {
        let mut desk = Desk::new(&Plan::default())?;
        let (_, other) = desk::shared(&desk.requests)?;
        drop(desk.requests.exchange(0, HwQueue::new(&other, 0)?)?);
        other.at_exit.store(AT_EXIT_TRY, Relaxed);
        desk.device = None;
        if let Some(disk) = desk.disk.take() {
            disk.remove();
        }
        ensure_eq!(other.at_exit.load(Relaxed), AT_EXIT_REFUSED);
        Ok(())
    }

    #[test]
    fn copying_stops_at_the_end_and_keeps_to_the_direction() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(2)?;
        desk.fill(9);
        ensure_eq!(desk.run(&memory.whole()?, READ, 0)?, Ok(()));
        let two = memory.of(&[(0, 3584, 4608), (1, 0, 512)])?;
        let mut bytes = KVec::from_elem(0u8, 8192, GFP_KERNEL)?;

        // More room than the request has data.
        let (request, pending) = desk.caught(&two, WRITE, 0)?;
        request.view().copy_from_data(&mut bytes);
        // Not into what is written.
        request.view().copy_to_data(&[0xff; 512]);
        for (at, &byte) in bytes.iter().enumerate() {
            let wanted = two.place(at).map_or(0, |place| pattern(9, place));
            ensure_eq!((at, byte), (at, wanted));
        }
        // Less.
        let mut few = [0; 700];
        request.view().copy_from_data(&mut few);
        ensure_eq!(bytes.get(..700), Some(&few[..]));
        request.end(Status::Ok);
        ensure_eq!(pending.end()?, Ok(()));

        let (request, pending) = desk.caught(&two, READ, 0)?;
        // Not out of what is read.
        few.fill(0xee);
        request.view().copy_from_data(&mut few);
        ensure!(few.iter().all(|&byte| byte == 0xee));
        // A part, and more than all.
        request.view().copy_to_data(&few);
        request.end(Status::Ok);
        ensure_eq!(pending.end()?, Ok(()));
        ensure_eq!(desk.run(&memory.whole()?, WRITE, 0)?, Ok(()));
        let wrong = desk.state.look(|state| {
            let whole = state.image.iter().take(4 * 4096).enumerate();
            let mut written = 0;
            for (at, &byte) in whole {
                let place = (0..700).any(|i| two.place(i) == Some(at));
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

    #[test]
    fn a_parked_request_is_taken_once_and_by_its_generation() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.of(&[(0, 0, 512)])?;
        let mut last = None;
        for _ in 0..20 {
            desk.set(Mode::Park);
            let pending = desk.begin(&memory, READ, 0)?;
            let seen = desk.next()?;
            let (queue, tag, generation) = (seen.hw_queue, seen.tag, seen.generation);
            let take = |q, t, g: u16| desk.requests.take(q, t, g).is_some();
            ensure!(!take(queue, tag, generation.wrapping_add(1)));
            ensure!(!take(queue, tag, generation.wrapping_sub(1)));
            ensure!(!take(queue, tag ^ 1, generation));
            ensure!(!take(queue ^ 1, tag, generation));
            ensure!(!take(queue, DEPTH as u16, generation));
            ensure!(!take(queue + 2, tag, generation));
            let request = desk.requests.take(queue, tag, generation).ok_or(EINVAL)?;
            ensure_eq!(
                (request.hw_queue(), request.tag(), request.generation()),
                (queue, tag, generation)
            );
            // It is owned.
            ensure!(!take(queue, tag, generation));
            ensure!(desk.requests.take_any(queue, tag).is_none());
            request.park();
            let request = desk.requests.take_any(queue, tag).ok_or(EINVAL)?;
            ensure!(!pending.has_ended());
            request.end(Status::Ok);
            ensure_eq!(pending.end()?, Ok(()));
            // It is over.
            ensure!(!take(queue, tag, generation));
            ensure!(desk.requests.take_any(queue, tag).is_none());
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
        let memory = Memory::new(1)?.of(&[(0, 0, 512)])?;
        let queue = Arc::new(WorkQueue::new(c"hcablk_kunit")?, GFP_KERNEL)?;
        for round in 0..50 {
            desk.set(Mode::Park);
            // Those who are ready, and those who got it.
            let score = Watched::new((0, 0, 0))?;
            for worker in 0..WORKERS {
                let (score, requests) = (score.clone(), desk.requests.clone());
                queue.try_spawn(GFP_KERNEL, move || {
                    score.change(|score| score.0 += 1);
                    let (start, mut taken) = (Instant::<Monotonic>::now(), 0);
                    let timed_out = || start.elapsed().as_millis() > i64::from(WAIT_TIMEOUT_MS);
                    while taken == 0 && score.look(|score| score.1 == 0) && !timed_out() {
                        let mut end = |request: Request<Driver>| {
                            taken += 1;
                            request.end(Status::Ok);
                        };
                        if worker % 2 == 1 {
                            requests.for_each_parked(end);
                            continue;
                        }
                        for tag in 0..2 * DEPTH as u16 {
                            let (hw_queue, tag) = (u32::from(tag % 2), tag / 2);
                            if let Some(request) = requests.take_any(hw_queue, tag) {
                                end(request);
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
            ensure_eq!((round, score.look(|score| score.1)), (round, 1));
        }
        drop(Drained(queue));
        Ok(())
    }

    #[test]
    fn all_that_is_parked_is_found() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.of(&[(0, 0, 512)])?;
        desk.set(Mode::Park);
        let mut pending: KVec<Pending> = KVec::new();
        for sector in 0..6 {
            // Apart, or they would be merged.
            pending.push(desk.begin(&memory, READ, sector * 100)?, GFP_KERNEL)?;
        }
        let mut per_queue = [0, 0];
        for _ in 0..6 {
            let seen = desk.next()?;
            *per_queue.get_mut(seen.hw_queue as usize).ok_or(EINVAL)? += 1;
        }
        let mut found = 0;
        desk.requests.for_each_parked_of(2, |request| {
            found += 1;
            request.end(Status::IoErr);
        });
        ensure_eq!(found, 0);
        desk.requests.for_each_parked_of(1, |request| {
            found += 1;
            request.park();
        });
        ensure_eq!(found, per_queue[1]);
        found = 0;
        desk.requests.for_each_parked(|request| {
            found += 1;
            request.end(Status::Transport);
        });
        ensure_eq!(found, 6);
        desk.requests.for_each_parked(|_| found += 1);
        ensure_eq!(found, 6);
        for pending in pending {
            ensure_eq!(pending.end()?, Err(Status::Transport));
        }
        Ok(())
    }

    #[test]
    fn a_request_ends_with_what_it_was_ended_with() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.of(&[(0, 0, 512)])?;
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
            let (request, pending) = desk.caught(&memory, WRITE, 0)?;
            request.end(status);
            ensure_eq!(pending.end()?, Err(status));
        }
        Ok(())
    }

    #[test]
    fn a_request_that_is_dropped_is_an_error() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.of(&[(0, 0, 512)])?;
        desk.set(Mode::Drop);
        ensure_eq!(desk.run(&memory, READ, 0)?, Err(Status::IoErr));
        let (request, pending) = desk.caught(&memory, READ, 0)?;
        let (queue, tag) = (request.hw_queue(), request.tag());
        drop(request);
        ensure_eq!(pending.end()?, Err(Status::IoErr));
        ensure!(desk.requests.take_any(queue, tag).is_none());
        ensure_eq!(desk.run(&memory, READ, 0)?, Ok(()));
        Ok(())
    }

    #[test]
    fn a_request_that_is_turned_away_comes_again_or_ends() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.of(&[(0, 0, 512)])?;
        desk.set(Mode::RejectFirst(Status::Resource));
        ensure_eq!(desk.run(&memory, READ, 8)?, Ok(()));
        let (first, second) = (desk.next()?, desk.next()?);
        ensure_eq!((first.sector, second.sector), (8, 8));
        ensure!(first.generation != second.generation || first.tag != second.tag);

        desk.set(Mode::Reject(Status::Medium));
        ensure_eq!(desk.run(&memory, READ, 0)?, Err(Status::Medium));
        // As good as ended.
        desk.set(Mode::Reject(Status::Ok));
        ensure_eq!(desk.run(&memory, READ, 0)?, Ok(()));
        desk.state.look(|state| state.seen.clear());

        desk.set(Mode::RequeueFirst);
        ensure_eq!(desk.run(&memory, WRITE, 16)?, Ok(()));
        let (first, second) = (desk.next()?, desk.next()?);
        ensure_eq!((first.sector, second.sector), (16, 16));
        Ok(())
    }

    #[test]
    fn a_queue_that_lacked_something_is_run_again() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.of(&[(0, 0, 512)])?;
        // One in flight: the block layer would run the queue when it ends.
        let (request, other) = desk.caught(&memory, READ, 0)?;
        desk.set(Mode::Reject(Status::DevResource));
        let pending = desk.begin(&memory, READ, 64)?;
        let seen = desk.next()?;
        pause(100);
        ensure!(!pending.has_ended());
        desk.set(Mode::Answer);
        // Beyond the last: nothing happens.
        desk.requests.run_hw_queue(2);
        desk.requests.run_hw_queue(seen.hw_queue);
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
        let memory = Memory::new(1)?.of(&[(0, 0, 512)])?;
        desk.set(Mode::Park);
        let pending = desk.begin(&memory, READ, 0)?;
        let seen = desk.next()?;
        ensure_eq!(pending.end()?, Err(Status::Timeout));
        let timeouts = desk.state.look(|state| {
            let (first, count) = (state.timeouts.first().copied(), state.timeouts.len());
            (first, count)
        });
        ensure_eq!(timeouts, (Some((seen.hw_queue, seen.tag)), 1));
        // The answer that comes too late.
        ensure!(desk
            .requests
            .take(seen.hw_queue, seen.tag, seen.generation)
            .is_none());
        desk.set(Mode::Answer);
        ensure_eq!(desk.run(&memory, READ, 0)?, Ok(()));
        Ok(())
    }

    #[test]
    fn nothing_is_issued_while_dispatch_is_stopped() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.of(&[(0, 0, 512)])?;
        let pending = {
            let disk = desk.disk.as_ref().ok_or(ENODEV)?;
            let _quiesced = disk.quiesce();
            let pending = desk.begin(&memory, READ, 0)?;
            pause(100);
            ensure!(desk.state.look(|state| state.seen.is_empty()));
            ensure!(!pending.has_ended());
            pending
        };
        ensure_eq!(pending.end()?, Ok(()));
        Ok(())
    }

    #[test]
    fn the_owner_of_a_tag_has_its_value() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let make = |queue: u32| PerTag::new(&desk.requests, queue, |tag| Ok((queue, tag, 0)));
        let values = [make(0)?, make(1)?];
        ensure_eq!(make(2)?.of(&mut desk.caught_one()?.0).is_some(), false);
        let refused = PerTag::<Driver, ()>::new(&desk.requests, 0, |tag| {
            if tag == 3 {
                Err(ENOSPC)
            } else {
                Ok(())
            }
        });
        ensure_eq!(refused.err(), Some(ENOSPC));
        desk.requests
            .for_each_parked(|request| request.end(Status::Ok));
        for round in 0..20 {
            let (mut request, pending) = desk.caught_one()?;
            let (queue, tag) = (request.hw_queue(), request.tag());
            for (index, values) in (0..).zip(&values) {
                let found = values.of(&mut request).map(|(view, value)| {
                    value.2 += 1;
                    (view.tag(), value.0, value.1)
                });
                let wanted = (index == queue).then_some((tag, queue, u32::from(tag)));
                ensure_eq!((round, found), (round, wanted));
            }
            request.end(Status::Ok);
            ensure_eq!(pending.end()?, Ok(()));
        }
        Ok(())
    }

    #[test]
    fn operations_are_what_was_asked_for() -> Result {
        let desk = with(Limits {
            write_cache: true,
            fua: true,
            max_discard_sectors: 256,
            discard_granularity: 512,
            max_write_zeroes_sectors: 256,
            ..Plan::default().limits
        })?;
        let memory = Memory::new(1)?.of(&[(0, 0, 1024)])?;
        let discard = BioOp::Discard { bytes: 4096 };
        let zeroes = |no_unmap| BioOp::WriteZeroes {
            bytes: 2048,
            no_unmap,
        };
        for (op, seen_op, fua, sector, bytes) in [
            (READ, Op::Read, false, 1, 1024),
            (WRITE, Op::Write, false, 2, 1024),
            (BioOp::Write { fua: true }, Op::Write, true, 3, 1024),
            (discard, Op::Discard, false, 4, 4096),
            (zeroes(false), Op::WriteZeroes, false, 5, 2048),
            (zeroes(true), Op::WriteZeroes, false, 6, 2048),
        ] {
            ensure_eq!(desk.run(&memory, op, sector)?, Ok(()));
            let seen = desk.next()?;
            ensure_eq!((seen.op, seen.fua), (seen_op, fua));
            ensure_eq!((seen.sector, seen.bytes), (sector, bytes));
        }
        ensure_eq!(desk.run(&memory, BioOp::Flush, 0)?, Ok(()));
        let seen = desk.next()?;
        ensure_eq!((seen.op, seen.bytes, seen.segments), (Op::Flush, 0, 0));
        Ok(())
    }

    #[test]
    fn what_the_disk_does_not_announce_is_not_supported() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.of(&[(0, 0, 512)])?;
        let discard = BioOp::Discard { bytes: 512 };
        ensure_eq!(desk.run(&memory, discard, 0)?, Err(Status::NotSupported));
        let zeroes = BioOp::WriteZeroes {
            bytes: 512,
            no_unmap: false,
        };
        ensure_eq!(desk.run(&memory, zeroes, 0)?, Err(Status::NotSupported));
        // Without a cache there is nothing to flush, and it is done.
        ensure_eq!(desk.run(&memory, BioOp::Flush, 0)?, Ok(()));
        ensure!(desk.state.look(|state| state.seen.is_empty()));
        Ok(())
    }

    #[test]
    fn io_that_makes_no_sense_is_refused() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(20)?;
        // Room for 32 pieces; pieces that lie together are one.
        let mut many = KVec::new();
        for n in 0..34 {
            many.push((n % 17, if n < 17 { 0 } else { 4096 }, 4096), GFP_KERNEL)?;
        }
        let many = memory.of(&many)?;
        ensure_eq!(desk.begin(&many, READ, 0).err(), Some(EINVAL));
        let none = memory.of(&[(0, 0, 512), (1, 0, 0)])?;
        ensure_eq!(desk.begin(&none, READ, 0).err(), Some(EINVAL));
        // Beyond the end, and not whole blocks: the block layer says so.
        let one = memory.of(&[(0, 0, 512)])?;
        let end = (SIZE / 512) as u64;
        ensure_eq!(desk.run(&one, READ, end - 1)?, Ok(()));
        ensure!(desk.run(&one, READ, end)?.is_err());
        ensure!(desk.run(&one, READ, u64::MAX >> 9)?.is_err());
        let odd = memory.of(&[(0, 0, 100)])?;
        ensure!(desk.run(&odd, READ, 0)?.is_err());
        Ok(())
    }

    #[test]
    fn a_device_that_is_open_for_reading_is_not_written() -> Result {
        let mut desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.of(&[(0, 0, 512)])?;
        desk.device = None;
        let disk = desk.disk.as_ref().ok_or(ENODEV)?;
        let device = Arc::new(desk::open(disk, true)?, GFP_KERNEL)?;
        ensure!(!device.writable() && !device.read_only());
        for op in [
            WRITE,
            BioOp::Discard { bytes: 512 },
            BioOp::WriteZeroes {
                bytes: 512,
                no_unmap: false,
            },
        ] {
            ensure_eq!(start(device.clone(), &memory, op, 0).err(), Some(EROFS));
        }
        ensure_eq!(start(device.clone(), &memory, READ, 0)?.end()?, Ok(()));
        ensure_eq!(start(device, &memory, BioOp::Flush, 0)?.end()?, Ok(()));
        let seen = desk.next()?;
        ensure_eq!(seen.op, Op::Read);
        Ok(())
    }

    #[test]
    fn a_device_says_what_it_is() -> Result {
        let mut desk = with(Limits {
            logical_block_size: 1024,
            physical_block_size: 4096,
            io_min: 8192,
            io_opt: 65_536,
            write_cache: true,
            fua: true,
            stable_writes: true,
            max_discard_sectors: 128,
            discard_granularity: 4096,
            max_write_zeroes_sectors: 64,
            ..Plan::default().limits
        })?;
        {
            let device = desk.device.as_ref().ok_or(ENODEV)?;
            ensure_eq!(device.sectors(), (SIZE / 512) as u64);
            ensure_eq!(device.size_bytes(), SIZE as u64);
            ensure_eq!(device.logical_block_size(), 1024);
            ensure_eq!(device.physical_block_size(), 4096);
            ensure_eq!((device.io_min(), device.io_opt()), (8192, 65_536));
            ensure!(device.write_cache() && device.fua());
            ensure!(device.writable() && !device.read_only());
            ensure_eq!(device.max_discard_sectors(), 128);
            ensure_eq!(device.discard_granularity(), 4096);
            ensure_eq!(device.max_write_zeroes_sectors(), 64);
            let disk = desk.disk.as_ref().ok_or(ENODEV)?;
            ensure!(disk.is_open());
            disk.set_capacity_and_notify(100);
            ensure_eq!(device.sectors(), 100);
        }
        // Opened twice by this type; by no one else (tests/kselftest has that).
        let disk = desk.disk.as_ref().ok_or(ENODEV)?;
        let again = desk::open(disk, false)?;
        desk.device = None;
        ensure!(disk.is_open());
        drop(again);
        desk::closed(disk)
    }

    #[test]
    fn a_device_that_cannot_be_opened_says_why() -> Result {
        let open = |path, read_only| crate::with_files(|| BlockDevice::open(path, read_only)).err();
        ensure_eq!(open(c"/dev/kunit-none", true), Some(ENOENT));
        ensure_eq!(open(c"/dev/null", true), Some(ENOTBLK));
        ensure_eq!(open(c"", true), Some(EINVAL));
        let desk = Desk::new(&Plan {
            read_only: true,
            ..Plan::default()
        })?;
        ensure!(desk
            .device
            .as_ref()
            .is_some_and(|device| device.read_only()));
        let disk = desk.disk.as_ref().ok_or(ENODEV)?;
        ensure_eq!(desk::open(disk, false).err(), Some(EACCES));
        Ok(())
    }

    #[test]
    fn a_disk_that_is_open_is_not_removed_unless_it_must() -> Result {
        let mut desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.of(&[(0, 0, 512)])?;
        let disk = desk.disk.take().ok_or(ENODEV)?;
        let (e, disk) = disk.remove_if_closed().err().ok_or(EINVAL)?;
        ensure_eq!(e, EBUSY);
        desk.disk = Some(disk);
        // It works as before.
        ensure_eq!(desk.run(&memory, WRITE, 0)?, Ok(()));
        desk.device = None;
        let disk = desk.disk.take().ok_or(ENODEV)?;
        desk::closed(&disk)?;
        ensure!(disk.remove_if_closed().is_ok());

        // Removed while it is open: requests are waited for, then all I/O fails.
        let mut desk = Desk::new(&Plan::default())?;
        let number = desk.disk.as_ref().map(|disk| disk.number());
        desk.set(Mode::Park);
        let pending = desk.begin(&memory, READ, 0)?;
        desk.next()?;
        let queue = Arc::new(WorkQueue::new(c"hcablk_kunit")?, GFP_KERNEL)?;
        let (requests, state) = (desk.requests.clone(), desk.state.clone());
        queue.try_spawn(GFP_KERNEL, move || {
            pause(100);
            state.look(|state| state.mode = Mode::Reject(Status::Transport));
            requests.for_each_parked(|request| request.end(Status::Transport));
        })?;
        let disk = desk.disk.take().ok_or(ENODEV)?;
        disk.remove();
        ensure!(pending.has_ended());
        ensure_eq!(pending.end()?, Err(Status::Transport));
        desk.state.look(|state| state.seen.clear());
        ensure!(desk.run(&memory, READ, 0)?.is_err());
        ensure!(desk.state.look(|state| state.seen.is_empty()));
        // Who has it open keeps its number.
        let other = Desk::new(&Plan::default())?;
        ensure!(other.disk.as_ref().map(|disk| disk.number()) != number);
        desk.device = None;
        drop(Drained(queue));
        Ok(())
    }

    #[test]
    fn disks_without_memory() -> Result {
        every_allocation(1, || BioSlot::new(1024))?;
        every_allocation(1, || Requests::<Driver>::new(2, 8))?;
        every_allocation(10, || desk::tag_set(0))
    }
}
