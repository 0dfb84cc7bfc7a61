// SPDX-License-Identifier: GPL-2.0

//! Suite `hcablk_blkdev`: a disk and its hardware queues, and I/O to a block
//! device (`blkdev`).

use crate::{
    check::every_allocation,
    desk::{
        self,
        Desk,
        Driver,
        HwQueue,
        Mode,
        Plan,
        AT_EXIT_REFUSED,
        AT_EXIT_TRY,
        DEPTH,
        SIZE, //
    },
    memory::{
        pattern,
        start,
        Memory, //
    },
    watched::{
        eventually,
        pause, //
    },
};
use hcablk_core::{
    blkdev::{
        BioOp,
        BioSlot,
        BlockDevice,
        DiskOpeners,
        Dispatch,
        Limits,
        LiveLimits,
        Op,
        OpenMode,
        ReplacedHwQueues,
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
    new_mutex,
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc,
        Mutex, //
    },
};

const READ: BioOp = BioOp::Read;
const WRITE: BioOp = BioOp::Write { fua: false };

/// Records the first opens, each with the claims before it, and the number of closes, with the
/// claims left at the last one.
#[derive(Clone, Copy, Default)]
struct Seen {
    opened: [Option<(OpenMode, u32)>; 2],
    closes: u32,
    claims: u32,
}

#[pin_data]
struct Openers {
    #[pin]
    seen: Mutex<Seen>,
}

impl DiskOpeners for Openers {
    fn opened(&self, mode: OpenMode, claims: u32) {
        let mut seen = self.seen.lock();
        if let Some(place) = seen.opened.iter_mut().find(|place| place.is_none()) {
            *place = Some((mode, claims));
        }
    }

    fn closed(&self, claims: u32) {
        let mut seen = self.seen.lock();
        seen.closes += 1;
        seen.claims = claims;
    }
}

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
    fn a_table_has_one_tag_set_and_that_one_disk() -> Result {
        let (_state, dispatch, _places, tag_set) = desk::tag_set(0)?;
        let config = TagSetConfig {
            timeout_ms: 0,
            numa_node: None,
            no_scheduler: true,
            poll_queues: 0,
        };
        let again = TagSet::new(&config, &dispatch, tag_set.data().clone());
        ensure_eq!(again.err(), Some(EBUSY));
        ensure_eq!(tag_set.depth(), DEPTH);
        ensure!((1..=2).contains(&tag_set.hw_queues()));
        let plan = Plan::default();
        let disk = desk::disk(&tag_set, &plan)?;
        let number = disk.number();
        ensure_eq!(desk::disk(&tag_set, &plan).err(), Some(EBUSY));
        // Another disk has a different number.
        let other = Desk::new(&plan)?;
        ensure!(other.disk.as_ref().map(|disk| disk.number()) != Some(number));
        drop(other);
        // The partition scan may still hold the disk open, and with it the number.
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
            // Shifted by 5 sectors, so that a mistake shows.
            ensure_eq!(desk.run(&memory.whole()?, READ, 5)?, Ok(()));
            let piece = memory.with_pieces(shape)?;
            ensure_eq!(desk.run(&piece, WRITE, 300)?, Ok(()));
            let wrong = desk.state.with(|state| {
                state.image.iter().enumerate().position(|(at, &byte)| {
                    let from = at
                        .checked_sub(300 * 512)
                        .and_then(|at| Some(piece.byte_at(at)? + 5 * 512));
                    byte != pattern(seed, from.unwrap_or(at))
                })
            });
            ensure_eq!(wrong, None);
            let seen = desk.state.with(|state| state.seen.pop()).ok_or(EINVAL)?;
            ensure_eq!((seen.op, seen.sector), (Op::Write, 300));
            ensure_eq!(seen.bytes as usize, piece.bytes());
            ensure!(!seen.fua);
            desk.state.with(|state| state.seen.clear());
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
        desk.state.with(|state| state.seen.clear());

        let (state, other) = desk::shared(&desk.dispatch, &desk.places)?;
        // Returns whether the former data has no other user left.
        let exchange = |hw_queue| -> Result<bool> {
            let new = HwQueue::new(&other, hw_queue)?;
            let mut formers = ReplacedHwQueues::new();
            desk.dispatch.exchange(hw_queue, new, &mut formers)?;
            let mut formers = formers.wait();
            let former = formers.pop().ok_or(EINVAL)?;
            ensure!(formers.is_empty());
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
        ensure!(desk.state.with(|state| state.seen.is_empty()));
        let written = state.with(|state| (state.seen.len(), state.image.get(40 * 512).copied()));
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
        let (_, other) = desk::shared(&desk.dispatch, &desk.places)?;
        let new = HwQueue::new(&other, 0)?;
        desk.dispatch
            .exchange(0, new, &mut ReplacedHwQueues::new())?;
        other.at_exit.store(AT_EXIT_TRY, Relaxed);
        desk.device = None;
        if let Some(disk) = desk.disk.take() {
            disk.remove();
        }
        ensure_eq!(other.at_exit.load(Relaxed), AT_EXIT_REFUSED);
        Ok(())
    }

    #[test]
    fn nothing_is_issued_while_dispatch_is_stopped() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.with_pieces(&[(0, 0, 512)])?;
        let pending = {
            let disk = desk.disk.as_ref().ok_or(ENODEV)?;
            let _quiesced = disk.quiesce();
            let pending = desk.begin(&memory, READ, 0)?;
            pause(100);
            ensure!(desk.state.with(|state| state.seen.is_empty()));
            ensure!(!pending.has_ended());
            pending
        };
        ensure_eq!(pending.end()?, Ok(()));
        Ok(())
    }

    #[test]
    fn operations_are_what_was_asked_for() -> Result {
        let desk = with(Limits {
            live: LiveLimits {
                write_cache: true,
                fua: true,
                max_discard_sectors: 256,
                discard_granularity: 512,
                max_write_zeroes_sectors: 256,
                atomic_write: (512, 4096),
                ..LiveLimits::default()
            },
            ..Plan::default().limits
        })?;
        let memory = Memory::new(1)?.with_pieces(&[(0, 0, 1024)])?;
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
        for fua in [false, true] {
            ensure_eq!(desk.run(&memory, BioOp::AtomicWrite { fua }, 8)?, Ok(()));
            let seen = desk.next()?;
            ensure!(seen.op == Op::Write && seen.atomic && seen.fua == fua);
        }
        ensure_eq!(desk.run(&memory, WRITE, 8)?, Ok(()));
        ensure!(!desk.next()?.atomic);
        ensure_eq!(desk.run(&memory, BioOp::Flush, 0)?, Ok(()));
        let seen = desk.next()?;
        ensure_eq!((seen.op, seen.bytes, seen.segments), (Op::Flush, 0, 0));
        Ok(())
    }

    #[test]
    fn io_that_must_not_wait_is_refused_if_a_flush_could_fail_unseen() -> Result {
        for fua in [false, true] {
            let desk = with(Limits {
                live: LiveLimits {
                    write_cache: true,
                    fua,
                    ..LiveLimits::default()
                },
                ..Plan::default().limits
            })?;
            let memory = Memory::new(1)?.with_pieces(&[(0, 0, 1024)])?;
            let begun = |op| desk.begin_at_once(&memory, op, 1);
            for op in [READ, WRITE] {
                ensure_eq!(begun(op)?.end()?, Ok(()));
            }
            ensure_eq!(begun(BioOp::Flush).err(), Some(EAGAIN));
            let durable = begun(BioOp::Write { fua: true });
            match fua {
                true => ensure_eq!(durable?.end()?, Ok(())),
                // The block layer flushes for it.
                false => ensure_eq!(durable.err(), Some(EAGAIN)),
            }
        }
        Ok(())
    }

    #[test]
    fn what_the_disk_does_not_announce_is_not_supported() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.with_pieces(&[(0, 0, 512)])?;
        let discard = BioOp::Discard { bytes: 512 };
        ensure_eq!(desk.run(&memory, discard, 0)?, Err(Status::NotSupported));
        let zeroes = BioOp::WriteZeroes {
            bytes: 512,
            no_unmap: false,
        };
        ensure_eq!(desk.run(&memory, zeroes, 0)?, Err(Status::NotSupported));
        // Without a cache a flush succeeds at once.
        ensure_eq!(desk.run(&memory, BioOp::Flush, 0)?, Ok(()));
        ensure!(desk.state.with(|state| state.seen.is_empty()));
        Ok(())
    }

    #[test]
    fn io_that_makes_no_sense_is_refused() -> Result {
        let desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(20)?;
        // An I/O holds 32 pieces; adjacent pieces count as one.
        let mut many = KVec::new();
        for n in 0..34 {
            many.push((n % 17, if n < 17 { 0 } else { 4096 }, 4096), GFP_KERNEL)?;
        }
        let many = memory.with_pieces(&many)?;
        ensure_eq!(desk.begin(&many, READ, 0).err(), Some(EINVAL));
        let none = memory.with_pieces(&[(0, 0, 512), (1, 0, 0)])?;
        ensure_eq!(desk.begin(&none, READ, 0).err(), Some(EINVAL));
        // Beyond the end, and partial blocks: the block layer refuses both.
        let one = memory.with_pieces(&[(0, 0, 512)])?;
        let end = (SIZE / 512) as u64;
        ensure_eq!(desk.run(&one, READ, end - 1)?, Ok(()));
        ensure!(desk.run(&one, READ, end)?.is_err());
        ensure!(desk.run(&one, READ, u64::MAX >> 9)?.is_err());
        let odd = memory.with_pieces(&[(0, 0, 100)])?;
        ensure!(desk.run(&odd, READ, 0)?.is_err());
        Ok(())
    }

    #[test]
    fn a_device_that_is_open_for_reading_is_not_written() -> Result {
        let mut desk = Desk::new(&Plan::default())?;
        let memory = Memory::new(1)?.with_pieces(&[(0, 0, 512)])?;
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
        let live = LiveLimits {
            physical_block_size: 4096,
            alignment_offset: 1024,
            io_min: 8192,
            io_opt: 65_536,
            max_discard_sectors: 128,
            discard_granularity: 8192,
            discard_alignment: 4096,
            max_write_zeroes_sectors: 64,
            zeroes_unmap: true,
            atomic_write: (1024, 16_384),
            atomic_write_boundary: 65_536,
            rotational: true,
            write_cache: true,
            fua: true,
        };
        let mut desk = with(Limits {
            logical_block_size: 1024,
            stable_writes: true,
            live,
            ..Plan::default().limits
        })?;
        {
            let device = desk.device.as_ref().ok_or(ENODEV)?;
            ensure_eq!(device.sectors(), (SIZE / 512) as u64);
            ensure_eq!(device.size_bytes(), SIZE as u64);
            ensure_eq!(device.logical_block_size(), 1024);
            ensure!(device.write_cache() && device.fua());
            ensure!(device.writable() && !device.read_only());
            ensure_eq!(device.live_limits(), live);
            let disk = desk.disk.as_ref().ok_or(ENODEV)?;
            let others = LiveLimits {
                io_opt: 131_072,
                max_discard_sectors: 64,
                max_write_zeroes_sectors: 0,
                zeroes_unmap: false,
                atomic_write: (0, 0),
                atomic_write_boundary: 0,
                ..live
            };
            disk.lower_limits(&others);
            ensure_eq!(device.live_limits().max_write_zeroes_sectors, 0);
            ensure_eq!(disk.try_set_limits(&others, 1000), Ok(()));
            ensure_eq!(device.live_limits(), others);
            ensure!(disk.is_open());
            disk.set_capacity(100);
            ensure_eq!(device.sectors(), 100);
        }
        // Here only this type opens the disk, twice; in tests/kselftest other programs do, too.
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
        let memory = Memory::new(1)?.with_pieces(&[(0, 0, 512)])?;
        let disk = desk.disk.take().ok_or(ENODEV)?;
        let (e, disk) = disk.remove_if_closed().err().ok_or(EINVAL)?;
        ensure_eq!(e, EBUSY);
        desk.disk = Some(disk);
        // The disk works as before.
        ensure_eq!(desk.run(&memory, WRITE, 0)?, Ok(()));
        desk.device = None;
        let disk = desk.disk.take().ok_or(ENODEV)?;
        desk::closed(&disk)?;
        ensure!(disk.remove_if_closed().is_ok());

        // Removed while open: removal waits for requests, then all I/O fails.
        let mut desk = Desk::new(&Plan::default())?;
        let number = desk.disk.as_ref().map(|disk| disk.number());
        desk.set(Mode::Park);
        let pending = desk.begin(&memory, READ, 0)?;
        desk.next()?;
        let queue = Arc::new(WorkQueue::new(c"hcablk_kunit")?, GFP_KERNEL)?;
        let (places, state) = (desk.places.clone(), desk.state.clone());
        queue.try_spawn(GFP_KERNEL, move || {
            pause(100);
            state.with(|state| state.mode = Mode::Reject(Status::Transport));
            desk::end_parked(&places, Status::Transport);
        })?;
        let disk = desk.disk.take().ok_or(ENODEV)?;
        disk.remove();
        ensure!(pending.has_ended());
        ensure_eq!(pending.end()?, Err(Status::Transport));
        desk.state.with(|state| state.seen.clear());
        ensure!(desk.run(&memory, READ, 0)?.is_err());
        ensure!(desk.state.with(|state| state.seen.is_empty()));
        // An open disk keeps its number.
        let other = Desk::new(&Plan::default())?;
        ensure!(other.disk.as_ref().map(|disk| disk.number()) != number);
        desk.device = None;
        drop(Drained(queue));
        Ok(())
    }

    #[test]
    fn opens_and_closes_are_reported_with_their_modes() -> Result {
        let openers = Arc::pin_init(
            pin_init!(Openers { seen <- new_mutex!(Seen::default()) }),
            GFP_KERNEL,
        )?;
        let plan = Plan {
            openers: Some(openers.clone()),
            ..Plan::default()
        };
        let (_, _, _, tag_set) = desk::tag_set(plan.timeout_ms)?;
        let disk = desk::disk(&tag_set, &plan)?;
        // The partition scan has opened and closed the disk. The kernel decrements the count of
        // openers before it reports a close.
        desk::closed(&disk)?;
        eventually(|| {
            let seen = openers.seen.lock();
            Ok(seen.opened.iter().flatten().count() == seen.closes as usize)
        })?;
        *openers.seen.lock() = Seen::default();
        let writer = desk::open(&disk, false)?;
        let reader = desk::open(&disk, true)?;
        drop(writer);
        drop(reader);
        desk::closed(&disk)?;
        // A volume's drive is opened with the claim that all volumes share.
        let claim = |writes| OpenMode {
            writes,
            exclusive: true,
        };
        let opened = [Some((claim(true), 0)), Some((claim(false), 2))];
        let closes = || openers.seen.lock().closes;
        eventually(|| Ok(closes() == 2))?;
        let seen = *openers.seen.lock();
        ensure!(seen.opened == opened && seen.claims == 0);
        drop(disk);
        Ok(())
    }

    #[test]
    fn disks_without_memory() -> Result {
        every_allocation(1, || BioSlot::new(1024))?;
        every_allocation(1, || Dispatch::<Driver>::new(2, 8))?;
        every_allocation(10, || desk::tag_set(0))
    }
}
