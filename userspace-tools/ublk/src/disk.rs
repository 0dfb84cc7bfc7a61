// SPDX-License-Identifier: GPL-2.0

//! A disk's life.
//!
//! ```text
//!         add                      killed
//!  (none) ───► Served ────────────────────────► Left: its requests wait
//!                │  ▲                              │
//!                │  └──────────── recover ─────────┤
//!                │ SIGTERM, remove                 │ remove
//!                ▼                                 ▼
//!             Removed                           Removed
//! ```

use crate::{
    cli::Add,
    queue,
    saved::Saved,
    Error, //
};
use libhcablk::Volume;
use libublk::{
    ctrl::{UblkCtrl, UblkCtrlBuilder},
    io::UblkDev,
    sys, UblkFlags,
};
use nix::{
    errno::Errno,
    fcntl::{open, OFlag},
    sys::{
        signal::{kill, SigSet, Signal},
        stat::Mode,
    },
    unistd::Pid,
};
use std::{
    fs,
    io::{self, Write as _},
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    thread,
    time::Duration,
};

/// `PR_SET_IO_FLUSHER` of `linux/prctl.h`.
const SET_IO_FLUSHER: libc::c_int = 57;

/// Bytes of the largest request.
const LARGEST: u32 = 256 << 10;
/// Depth of every queue of the disk.
const DEPTH: u16 = 64;
/// How often it is looked whether the volume has changed.
const LOOK: Duration = Duration::from_millis(500);

/// The features of the driver that a disk has: requests wait when its program was killed, and are issued again by the next one;
/// its size can change.
const FEATURES: u32 = sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE;

fn failed(what: &str) -> impl Fn(libublk::UblkError) -> Error + '_ {
    move |error| format!("{what}: {error}").into()
}

/// Makes a disk, and serves it.
pub(crate) fn add(add: &Add) -> Result<(), Error> {
    let saved = Saved::of(add)?;
    serve(saved, add.disk, false)
}

/// Goes on with a disk, and serves it.
pub(crate) fn recover(disk: u32) -> Result<(), Error> {
    let saved = Saved::read(disk)?;
    if saved.past.is_none() {
        // Whether the target has forgotten something, and whether it is the same volume, nobody could tell.
        let why = "its volume has no wwid, so there is no going on: remove it";
        return Err(format!("ublkb{disk}: {why}").into());
    }
    serve(saved, Some(disk), true)
}

fn serve(mut saved: Saved, disk: Option<u32>, again: bool) -> Result<(), Error> {
    let stop = signals()?;
    spare_memory();
    // First: a target that does not answer leaves everything as it is.
    let volume = Arc::new(Volume::open(&saved.options()?)?);
    saved.session = volume.session();
    let mut queues = Vec::new();
    while let Some(queue) = volume.take_queue() {
        queues.push(queue);
    }
    let count = u16::try_from(queues.len())?;
    let id = disk.map_or(Ok(-1), i32::try_from)?;
    if let (Some(disk), false) = (disk, again) {
        // libublk deletes a disk of this number when the driver refuses to make it.
        if UblkCtrl::new_simple(i32::try_from(disk)?).is_ok() {
            return Err(format!("there is a ublk disk {disk} already").into());
        }
    }
    let flags = match again {
        true => UblkFlags::UBLK_DEV_F_RECOVER_DEV,
        false => UblkFlags::UBLK_DEV_F_ADD_DEV,
    };
    let control = UblkCtrlBuilder::default()
        .name("hcablk")
        .id(id)
        .nr_queues(count)
        .depth(DEPTH)
        .io_buf_bytes(LARGEST)
        .ctrl_flags(u64::from(FEATURES) | u64::from(sys::UBLK_F_UPDATE_SIZE))
        .dev_flags(flags)
        .build()
        .map_err(failed("the ublk driver refuses the disk"))?;
    if again {
        let begun = control.start_user_recover();
        let begun = begun.map_err(failed("the disk cannot be recovered"))?;
        if begun < 0 {
            return Err(
                format!("the disk cannot be recovered: {}", Errno::from_raw(-begun)).into(),
            );
        }
    }
    let disk = control.dev_info().dev_id;
    saved.past = volume.past().map(|past| past.to_string());
    // Before the disk is there: nothing was written by it yet.
    saved.write(disk)?;

    let queues = queue::Places::new(queues);
    let serving = {
        let volume = volume.clone();
        move |index: u16, device: &UblkDev| {
            if let Err(error) = queue::serve(index, device, &queues, &volume) {
                eprintln!("hcablk-ublk: queue {index}: {error}");
                // Who starts the disk waits for all queues.
                device.notify_buffer_registration_complete(true);
            }
        }
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let begun = {
        let (volume, is_over) = (volume.clone(), is_over.clone());
        move |control: &UblkCtrl| {
            let disk = control.dev_info().dev_id;
            // Whether anybody reads it or not: the disk is there.
            let _ = writeln!(io::stdout(), "{}", control.get_bdev_path());
            // Both end with the program.
            let same = volume.clone();
            thread::spawn(move || follow(disk, saved, &volume, &is_over));
            thread::spawn(move || end_at(&stop, disk, &same));
        }
    };
    let parameters = |device: &mut UblkDev| {
        describe(device, &volume);
        Ok(())
    };
    let served = control.run_target(parameters, serving, begun);
    is_over.store(true, Ordering::Release);
    Saved::forget(disk);
    // A disk that was recovered is deleted by nobody else.
    let deleted = control.del_dev();
    served.map_err(failed("the disk cannot be served"))?;
    // Who has removed it may have done so.
    let _ = deleted;
    Ok(())
}

/// Has no thread of this program wait for the disk when memory is short: the disk may wait for that thread. All threads begin with what the
/// first one has.
#[allow(unsafe_code, reason = "no crate of ours has this call")]
fn spare_memory() {
    // SAFETY: It changes how this thread allocates, and nothing else.
    let result = unsafe { libc::prctl(SET_IO_FLUSHER, 1, 0, 0, 0) };
    if result != 0 {
        eprintln!(
            "hcablk-ublk: {}: when memory is short the disk may hang",
            Errno::last()
        );
    }
}

/// Blocks the signals that end this program in all threads, and returns them.
fn signals() -> Result<SigSet, Error> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGINT);
    set.thread_block()?;
    Ok(set)
}

/// Stops the disk when one of the signals comes; while it is in use, when another one comes.
fn end_at(stop: &SigSet, disk: u32, volume: &Volume) {
    let mut is_told = false;
    while stop.wait().is_ok() {
        if !is_told && is_in_use(disk) {
            eprintln!("hcablk-ublk: ublkb{disk} is in use: unmount it; a second signal stops it all the same, and what is not written back is lost");
            is_told = true;
            continue;
        }
        if volume.failure().is_some() {
            // Requests would wait for a session, and the driver for them.
            volume.end();
        }
        if let Err(error) = stop_disk(disk) {
            eprintln!("hcablk-ublk: ublkb{disk} cannot be stopped: {error}");
        }
    }
}

/// Returns whether somebody has the disk for himself, as a mount and a device above it have.
fn is_in_use(disk: u32) -> bool {
    let path = format!("/dev/ublkb{disk}");
    open(
        path.as_str(),
        OFlag::O_RDONLY | OFlag::O_EXCL,
        Mode::empty(),
    )
    .err()
        == Some(Errno::EBUSY)
}

fn stop_disk(disk: u32) -> Result<(), Error> {
    let control = UblkCtrl::new_simple(i32::try_from(disk)?).map_err(failed("the disk"))?;
    control.kill_dev().map_err(failed("stopping it"))?;
    Ok(())
}

/// Tells the driver what the disk is.
fn describe(device: &mut UblkDev, volume: &Volume) {
    let shift = |bytes: u32| u8::try_from(bytes.max(512).ilog2()).unwrap_or(12);
    let (discard, zeroes) = volume.most_without_data();
    let sectors = volume.size() >> 9;
    let read_only = match volume.is_read_only() {
        true => sys::UBLK_ATTR_READ_ONLY,
        false => 0,
    };
    let mut types = sys::UBLK_PARAM_TYPE_BASIC;
    if discard != 0 || zeroes != 0 {
        types |= sys::UBLK_PARAM_TYPE_DISCARD;
    }
    device.tgt.dev_size = sectors << 9;
    device.tgt.params = sys::ublk_params {
        types,
        basic: sys::ublk_param_basic {
            // The volume may get a cache while the disk lives, and a disk's parameters do not change.
            attrs: read_only | sys::UBLK_ATTR_VOLATILE_CACHE | sys::UBLK_ATTR_FUA,
            logical_bs_shift: shift(volume.block_size()),
            physical_bs_shift: shift(volume.physical_block_size()),
            io_opt_shift: shift(LARGEST),
            io_min_shift: shift(volume.physical_block_size()),
            max_sectors: LARGEST >> 9,
            dev_sectors: sectors,
            ..Default::default()
        },
        discard: sys::ublk_param_discard {
            discard_granularity: volume.discard_granularity().max(volume.block_size()),
            max_discard_sectors: discard >> 9,
            max_write_zeroes_sectors: zeroes >> 9,
            max_discard_segments: 1,
            ..Default::default()
        },
        ..Default::default()
    };
}

/// Resizes the disk when the volume's size changes, and saves the state that `recover` needs.
fn follow(disk: u32, mut saved: Saved, volume: &Volume, is_over: &AtomicBool) {
    // A disk that was recovered has the size of before.
    let mut size = size_of(disk).unwrap_or(0);
    while !is_over.load(Ordering::Acquire) {
        let past = volume.past().map(|past| past.to_string());
        if saved.past != past {
            let mut next = saved.clone();
            next.past = past;
            match next.write(disk) {
                Ok(()) => saved = next,
                Err(error) => {
                    eprintln!("hcablk-ublk: the state of ublkb{disk} cannot be saved: {error}");
                }
            }
        }
        let now = volume.size();
        if now != size {
            match resize(disk, now) {
                Ok(()) => {
                    size = now;
                    eprintln!("hcablk-ublk: ublkb{disk} has {now} bytes");
                }
                Err(error) => eprintln!("hcablk-ublk: ublkb{disk} keeps its size for now: {error}"),
            }
        }
        thread::sleep(LOOK);
    }
}

/// Returns the bytes that a disk has.
fn size_of(disk: u32) -> Result<u64, Error> {
    let control = UblkCtrl::new_simple(i32::try_from(disk)?).map_err(failed("the disk"))?;
    let mut parameters = sys::ublk_params {
        types: sys::UBLK_PARAM_TYPE_BASIC,
        ..Default::default()
    };
    control
        .get_params(&mut parameters)
        .map_err(failed("the driver"))?;
    Ok(parameters.basic.dev_sectors << 9)
}

fn resize(disk: u32, bytes: u64) -> Result<(), Error> {
    let control = UblkCtrl::new_simple(i32::try_from(disk)?).map_err(failed("the disk"))?;
    control.update_size(bytes).map_err(failed("the driver"))?;
    Ok(())
}

/// Removes a disk, whether a program serves it or not.
pub(crate) fn remove(disk: u32, force: bool) -> Result<(), Error> {
    Saved::read(disk)?;
    let Ok(control) = UblkCtrl::new_simple(i32::try_from(disk)?) else {
        // It is gone.
        Saved::forget(disk);
        return Ok(());
    };
    let info = control.dev_info();
    // The driver notices a moment later that its program is gone.
    let has_program = kill(Pid::from_raw(info.ublksrv_pid), None).is_ok();
    let is_served = u32::from(info.state) == sys::UBLK_S_DEV_LIVE && has_program;
    // To open one that nobody serves may wait for its program.
    if !force && (is_mounted(disk)? || (is_served && is_in_use(disk))) {
        return Err(format!("/dev/ublkb{disk} is in use; --force removes it all the same").into());
    }
    if is_served {
        return end_program(disk, info.ublksrv_pid, force);
    }
    control.kill_dev().map_err(failed("stopping it"))?;
    Saved::forget(disk);
    control.del_dev().map_err(failed("deleting it"))?;
    Ok(())
}

/// Has the program that serves a disk remove it, and waits for that.
fn end_program(disk: u32, pid: i32, force: bool) -> Result<(), Error> {
    let pid = Pid::from_raw(pid);
    kill(pid, Signal::SIGTERM)?;
    for waited in 0u32.. {
        thread::sleep(LOOK);
        if UblkCtrl::new_simple(i32::try_from(disk)?).is_err() {
            return Ok(());
        }
        if force {
            // Also if it is in use.
            let _ = kill(pid, Signal::SIGTERM);
        }
        if waited % 10 == 9 {
            eprintln!("hcablk-ublk: waiting for program {pid} to remove ublkb{disk}");
        }
    }
    Ok(())
}

/// Returns whether the disk is mounted, or another device is above it.
fn is_mounted(disk: u32) -> Result<bool, Error> {
    let name = format!("/dev/ublkb{disk}");
    let mounts = fs::read_to_string("/proc/mounts")?;
    let is_mounted = mounts
        .lines()
        .any(|line| line.split(' ').next() == Some(name.as_str()));
    let above = fs::read_dir(format!("/sys/block/ublkb{disk}/holders"));
    Ok(is_mounted || above.is_ok_and(|mut above| above.next().is_some()))
}

/// Lists the disks.
pub(crate) fn list() -> Result<(), Error> {
    for disk in Saved::disks()? {
        let saved = Saved::read(disk)?;
        println!("/dev/ublkb{disk} {} {}", saved.volume, state_of(disk));
    }
    Ok(())
}

/// Returns what becomes of a disk's requests.
fn state_of(disk: u32) -> &'static str {
    let control = i32::try_from(disk).ok().map(UblkCtrl::new_simple);
    match control {
        Some(Ok(control)) => match u32::from(control.dev_info().state) {
            sys::UBLK_S_DEV_LIVE => "served",
            sys::UBLK_S_DEV_QUIESCED => "left by its program: `recover` it, or `remove` it",
            _ => "not there",
        },
        _ => "not there",
    }
}
