// SPDX-License-Identifier: GPL-2.0

//! The life of a disk.
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
    control::Control,
    driver::{self, Disk},
    queue,
    saved::{Lock, Saved},
    service,
    Error, //
};
use hcablk::{
    system::{Machine, System as _},
    user::files::{self, Phase, UserDiskState},
};
use hcablk_volume_args::VolumeArgs;
use libhcablk::{Queue, Volume};
use libublk::{ctrl::UblkCtrl, io::UblkDev, sys, UblkError};
use nix::{
    errno::Errno,
    fcntl::{open, OFlag},
    mount::{mount, MsFlags},
    poll::{poll, PollFd, PollFlags, PollTimeout},
    sched::{sched_setaffinity, unshare, CloneFlags},
    sys::{
        signal::{kill, SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
        stat::Mode,
    },
    unistd::Pid,
};
use std::{
    fs,
    io::{self, Write as _},
    os::fd::AsFd as _,
    path::Path,
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
/// The time between two checks whether the volume has changed.
const LOOK: Duration = Duration::from_millis(500);
/// The time between two checks whether the session is lost while the disk is being stopped.
const WHILE_STOPPING: Duration = Duration::from_millis(20);

/// The driver's features for recovery: requests wait when the disk's program was killed, and the
/// next program issues them again.
const FEATURES: u64 = (sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE) as u64;

/// The reason why a disk cannot be served, which is permanent.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ForGood(String);

/// Converts an error of libublk, whose own messages contain no error numbers.
fn failed(what: &str) -> impl Fn(UblkError) -> Error + '_ {
    move |error| match error {
        UblkError::UringIOError(errno) | UblkError::OtherError(errno) => {
            format!("{what}: {}", Errno::from_raw(-errno)).into()
        }
        error => format!("{what}: {error}").into(),
    }
}

/// Makes a disk, and serves it.
pub(crate) fn add(volume: &VolumeArgs) -> Result<(), Error> {
    make(Saved::begin(None, volume.wanted()?)?)
}

/// Makes a disk, and serves it.
pub(crate) fn make(saved: Saved) -> Result<(), Error> {
    serve(saved, None)
}

/// Takes over a disk, and serves it.
pub(crate) fn recover(disk: u32) -> Result<(), Error> {
    let saved = Saved::read(disk)?;
    if saved.past.is_none() {
        // Nobody could find out whether the target has lost writes, and whether it is the same volume.
        let why = "its volume has no wwid, so no program can take it over: remove it";
        return Err(ForGood(format!("ublkb{disk}: {why}")).into());
    }
    let lock = Lock::take(disk)?;
    serve(saved, Some((disk, lock)))
}

/// Serves a disk: a new one, or one whose program has gone.
fn serve(mut saved: Saved, left: Option<(u32, Lock)>) -> Result<(), Error> {
    let stop = Stop::new()?;
    spare_memory();
    // The volume is opened first: if the target does not respond, nothing was changed.
    let volume = Arc::new(Volume::open(&saved.options()?)?);
    saved.session = volume.session();
    saved.past = volume.past().map(|past| past.to_string());
    refuse_another(&saved)?;
    let mut queues = Vec::new();
    while let Some(queue) = volume.take_queue() {
        queues.push(queue);
    }
    let mut control = Control::open()?;
    let serving = Serving {
        saved: saved.clone(),
        volume,
        stop,
    };
    if let Some((disk, _lock)) = left {
        let known = driver::find(disk, saved.mark)?;
        let known = known.ok_or_else(|| format!("there is no ublkb{disk} any more"))?;
        if usize::from(known.queues) != queues.len() {
            let (has, given) = (known.queues, queues.len());
            let why = format!("ublkb{disk} has {has} queues, and {given} are asked for");
            return Err(ForGood(why).into());
        }
        refuse_other_blocks(&mut control, disk, &serving.volume)?;
        control.begin_recovery(disk)?;
        let served = serving.run(&mut control, disk, queues, Control::end_recovery);
        // After a failure the disk's requests still wait, for the next program.
        served.map_err(|error| format!("the disk cannot be served: {error}"))?;
        return end(&mut control, disk, &saved);
    }
    // The driver chooses the number.
    let (disk, made) = control.add(sys::ublksrv_ctrl_dev_info {
        nr_hw_queues: u16::try_from(queues.len())?,
        queue_depth: DEPTH,
        max_io_buf_bytes: LARGEST,
        flags: FEATURES | u64::from(sys::UBLK_F_UPDATE_SIZE),
        ublksrv_flags: saved.mark,
        ..Default::default()
    })?;
    let lock = lock_new(disk);
    let served = match &lock {
        Ok(_) if usize::from(made) != queues.len() => {
            Err(format!("the driver gives it {made} queues, not {}", queues.len()).into())
        }
        Ok(_) => {
            // The published state of an earlier disk of this number is not this disk's.
            let _ = fs::remove_file(files::state(disk));
            let parameters = describe(&serving.volume);
            serving.run(&mut control, disk, queues, |control, disk| {
                control.set_parameters(disk, parameters)?;
                control.start(disk)
            })
        }
        Err(error) => Err(error.to_string().into()),
    };
    let ended = end(&mut control, disk, &saved);
    served.map_err(|error| format!("the disk cannot be served: {error}"))?;
    ended
}

/// Deletes a disk that was served, and its settings. The caller holds its lock.
fn end(control: &mut Control, disk: u32, saved: &Saved) -> Result<(), Error> {
    // Another program may have removed the disk meanwhile. Then the number may belong to another program's disk.
    if driver::find(disk, saved.mark)?.is_some() {
        control.delete(disk)?;
    }
    saved.forget(disk);
    Ok(())
}

/// A disk's volume, and the state that its threads share.
struct Serving {
    saved: Saved,
    volume: Arc<Volume>,
    stop: Stop,
}

impl Serving {
    /// Serves a disk until it is stopped; `start` makes the driver pass requests to it.
    fn run<E: Into<Error>>(
        self,
        control: &mut Control,
        disk: u32,
        queues: Vec<Queue>,
        start: impl FnOnce(&mut Control, u32) -> Result<(), E>,
    ) -> Result<(), Error> {
        let Self {
            saved,
            volume,
            stop,
        } = self;
        // Before the disk exists: no write has gone through it yet.
        saved.reserve()?;
        saved.write(disk)?;
        let device = Arc::new(device(disk, &volume)?);
        let count = u16::try_from(queues.len())?;
        let places = queue::Places::new(queues);
        let mut threads = Vec::new();
        for index in 0..count {
            let processors = control.processors(disk, index)?;
            let (device, places, volume) = (device.clone(), places.clone(), volume.clone());
            threads.push(thread::spawn(move || {
                if let Err(error) = sched_setaffinity(Pid::from_raw(0), &processors) {
                    eprintln!("hcablk-ublk: queue {index} runs anywhere: {error}");
                }
                if let Err(error) = queue::serve(index, &device, &places, &volume) {
                    eprintln!("hcablk-ublk: queue {index}: {error}");
                    // The start of the disk waits for all queues.
                    device.notify_buffer_registration_complete(true);
                }
            }));
        }
        let ready = device.wait_for_buffer_registration(count.into());
        ready.map_err(failed("a queue"))?;
        start(control, disk).map_err(Into::into)?;

        let mark = saved.mark;
        let is_over = Arc::new(AtomicBool::new(false));
        let mut published = Published::default();
        published.follow(disk, &saved, &volume);
        let path = format!("/dev/ublkb{disk}");
        // A missing reader is not a failure: the disk exists.
        let _ = writeln!(io::stdout(), "{path}");
        service::is_ready(&path);
        // Both end with the program.
        {
            let (volume, is_over) = (volume.clone(), is_over.clone());
            thread::spawn(move || follow(disk, saved, published, &volume, &is_over));
        }
        thread::spawn(move || end_at(&stop, disk, mark, &volume));
        for thread in threads {
            // A thread that panics ends the program.
            let _ = thread.join();
        }
        is_over.store(true, Ordering::Release);
        Ok(control.stop(disk)?)
    }
}

/// Opens a disk for the threads that serve it.
fn device(disk: u32, volume: &Volume) -> Result<UblkDev, Error> {
    let view = thread::spawn(move || view(disk)).join();
    let view = view.map_err(|_| "the thread that looks at the disk has panicked")?;
    let view = view.map_err(|error| error.to_string())?;
    let set_up = |device: &mut UblkDev| {
        device.tgt.params = describe(volume);
        device.tgt.dev_size = volume.size();
        Ok(())
    };
    UblkDev::new("hcablk".to_owned(), set_up, &view).map_err(failed("opening the disk"))
}

/// Returns libublk's view of a disk, on a thread of its own.
///
/// libublk reads `/run/ublksrvd/N.json` for that. If another program has made that directory, every local user may
/// write to it: the file could be theirs, or never end. So this thread gets a `/run` of its own, with that one file in
/// it, which nobody else sees. libublk writes there only when it records queues, which this program does not request.
fn view(disk: u32) -> Result<UblkCtrl, Box<dyn std::error::Error + Send + Sync>> {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    // An unmount elsewhere still takes effect here.
    mount(none, "/", none, MsFlags::MS_SLAVE | MsFlags::MS_REC, none)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(
        Some("tmpfs"),
        "/run",
        Some("tmpfs"),
        flags,
        Some("mode=0700"),
    )?;
    fs::create_dir(UblkCtrl::run_dir())?;
    fs::write(format!("{}/{disk:04}.json", UblkCtrl::run_dir()), "{}")?;
    UblkCtrl::new_simple(i32::try_from(disk)?)
        .map_err(|error| failed("looking at the disk")(error).to_string().into())
}

/// Fails if the volume does not have the blocks that the disk was made with. The disk's requests wait until the volume
/// is as before, or the disk is removed.
fn refuse_other_blocks(control: &mut Control, disk: u32, volume: &Volume) -> Result<(), Error> {
    let made = 1 << control.parameters(disk)?.basic.logical_bs_shift;
    let now = volume.block_size();
    if now == made {
        return Ok(());
    }
    let why = format!("ublkb{disk} has blocks of {made} bytes, and the volume has blocks of {now} bytes by now: remove the disk, and make it again");
    Err(ForGood(why).into())
}

/// Fails if the volume is not the wanted one.
fn refuse_another(saved: &Saved) -> Result<(), Error> {
    let Some(wanted) = saved.wanted.wwid else {
        return Ok(());
    };
    match saved.id() {
        Some(id) if id == wanted.to_string() => Ok(()),
        Some(id) => Err(ForGood(format!("the volume has wwid {id}, not {wanted}")).into()),
        None => Err(ForGood(format!("the volume has no wwid, and {wanted} is asked for")).into()),
    }
}

/// Takes the lock of a disk that was just made: the program that removed the former disk of this number may still hold
/// it.
fn lock_new(disk: u32) -> Result<Lock, Error> {
    let mut lock = Lock::take(disk);
    for _ in 0..20 {
        if lock.is_ok() {
            break;
        }
        thread::sleep(LOOK);
        lock = Lock::take(disk);
    }
    lock
}

/// Keeps all threads of this program from waiting for the disk when memory is short, since the disk
/// may wait for the same thread. All threads inherit the setting of the first one.
#[allow(unsafe_code, reason = "no crate of ours has this call")]
fn spare_memory() {
    // SAFETY: The call changes only how this thread allocates.
    let result = unsafe { libc::prctl(SET_IO_FLUSHER, 1, 0, 0, 0) };
    if result != 0 {
        eprintln!(
            "hcablk-ublk: {}: when memory is short the disk may hang",
            Errno::last()
        );
    }
}

/// The signals that end this program. They are blocked in all threads.
struct Stop(SignalFd);

impl Stop {
    fn new() -> Result<Self, Error> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.add(Signal::SIGINT);
        set.thread_block()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Self(SignalFd::with_flags(&set, flags)?))
    }

    /// Waits for a signal, with a limit or without; returns whether one arrived.
    fn wait(&self, limit: Option<Duration>) -> bool {
        let limit = limit.map_or(PollTimeout::NONE, |limit| {
            PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)
        });
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        // Any event wakes it: the descriptor says whether there is a signal.
        let _ = poll(&mut fds, limit);
        matches!(self.0.read_signal(), Ok(Some(_)))
    }
}

/// Stops the disk when one of the signals arrives. If the disk is in use, stops it when it is not any more, or at a
/// further signal.
fn end_at(stop: &Stop, disk: u32, mark: u64, volume: &Volume) {
    let mut is_signaled = false;
    loop {
        let has_come = stop.wait(is_signaled.then_some(LOOK));
        if !has_come && !is_signaled {
            continue;
        }
        // The second signal skips the check, which may wait for the target.
        if !(has_come && is_signaled) && is_in_use(disk) {
            if !is_signaled {
                eprintln!("hcablk-ublk: ublkb{disk} is in use, and ends when it is unmounted; a second signal ends it at once, and data that is not written back is lost");
            }
            is_signaled = true;
            continue;
        }
        is_signaled = true;
        match stop_without_waiting(disk, mark, volume) {
            Ok(()) => return,
            Err(error) => eprintln!("hcablk-ublk: ublkb{disk} cannot be stopped: {error}"),
        }
    }
}

/// Stops the disk. The driver waits for the requests that are with the target; if the session is lost, before or
/// meanwhile, they fail and do not wait for a new session.
fn stop_without_waiting(disk: u32, mark: u64, volume: &Volume) -> Result<(), Error> {
    thread::scope(|threads| {
        let stopping = threads.spawn(|| stop_disk(disk, mark).map_err(|error| error.to_string()));
        while !stopping.is_finished() {
            if volume.failure().is_some() {
                volume.end();
            }
            thread::sleep(WHILE_STOPPING);
        }
        let stopped = stopping.join();
        Ok(stopped.map_err(|_| "the thread that stops it has panicked")??)
    })
}

/// Returns whether the disk is in exclusive use, for example by a mount or a device above it; also
/// `true` if that cannot be determined.
fn is_in_use(disk: u32) -> bool {
    let path = format!("/dev/ublkb{disk}");
    open(
        path.as_str(),
        OFlag::O_RDONLY | OFlag::O_EXCL,
        Mode::empty(),
    )
    .is_err_and(|error| !matches!(error, Errno::ENXIO | Errno::ENODEV))
}

fn stop_disk(disk: u32, mark: u64) -> Result<(), Error> {
    let mut known = driver::find(disk, mark)?.ok_or("it is gone")?;
    Ok(known.control.stop(disk)?)
}

/// Returns the parameters of the disk for the driver.
fn describe(volume: &Volume) -> sys::ublk_params {
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
    sys::ublk_params {
        types,
        basic: sys::ublk_param_basic {
            // The volume may get a cache during the disk's life, and a disk's parameters do not change.
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
    }
}

/// The last published state of a disk.
#[derive(Default)]
struct Published(Option<UserDiskState>);

impl Published {
    /// Publishes the state of the disk if it has changed.
    fn follow(&mut self, disk: u32, saved: &Saved, volume: &Volume) {
        let (phase, failure) = match (volume.ended(), volume.failure()) {
            (Some(failure), _) => (Phase::Failed, Some(failure)),
            (None, Some(failure)) => (Phase::Queueing, Some(failure)),
            (None, None) => (Phase::Live, None),
        };
        let state = UserDiskState {
            name: saved.name.clone(),
            mark: Some(saved.mark),
            pid: std::process::id(),
            phase,
            error: failure.map(|failure| failure.to_string()),
            lost_writes: volume.has_lost_writes(),
            id: saved.id().and_then(|id| id.parse().ok()),
            wanted: saved.wanted.clone(),
        };
        if self.0.as_ref() == Some(&state) {
            return;
        }
        let written = files::text(&state).and_then(|text| {
            Machine::new("/").replace(&files::state(disk), &text)?;
            Ok(())
        });
        match written {
            Ok(()) => self.0 = Some(state),
            Err(error) => {
                eprintln!("hcablk-ublk: the state of ublkb{disk} cannot be published: {error}");
            }
        }
    }
}

/// Resizes the disk when the volume's size changes, publishes its state, and saves the settings that `recover` needs.
fn follow(
    disk: u32,
    mut saved: Saved,
    mut published: Published,
    volume: &Volume,
    is_over: &AtomicBool,
) {
    // A recovered disk still has the former size.
    let mut size = size_of(disk, saved.mark).unwrap_or(0);
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
        published.follow(disk, &saved, volume);
        let now = volume.size();
        if now != size {
            match resize(disk, saved.mark, now) {
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
fn size_of(disk: u32, mark: u64) -> Result<u64, Error> {
    let mut known = driver::find(disk, mark)?.ok_or("it is gone")?;
    Ok(known.control.parameters(disk)?.basic.dev_sectors << 9)
}

fn resize(disk: u32, mark: u64, bytes: u64) -> Result<(), Error> {
    let mut known = driver::find(disk, mark)?.ok_or("it is gone")?;
    Ok(known.control.resize(disk, bytes)?)
}

/// Removes a disk, with or without a program that serves it.
pub(crate) fn remove(disk: u32, force: bool, mark: Option<u64>) -> Result<(), Error> {
    let saved = Saved::read(disk)?;
    if let Some(mark) = mark.filter(|mark| *mark != saved.mark) {
        return Err(format!("ublkb{disk} is another disk by now: its mark is not {mark}").into());
    }
    let Some(mut known) = driver::find(disk, saved.mark)? else {
        // The disk is gone, and its number may belong to another program's disk.
        saved.forget(disk);
        return Ok(());
    };
    // Opening a disk that no program serves may wait for its program.
    if !force && (is_mounted(disk)? || (known.is_served() && is_in_use(disk))) {
        return Err(in_use(disk));
    }
    if known.is_served() {
        return end_program(disk, &saved, force);
    }
    let _lock = Lock::take(disk)?;
    remove_left(&saved, &mut known)
}

/// Removes a disk that no program serves. The caller holds its lock.
pub(crate) fn remove_left(saved: &Saved, known: &mut Disk) -> Result<(), Error> {
    known.control.stop(known.number)?;
    known.control.delete(known.number)?;
    saved.forget(known.number);
    Ok(())
}

/// Makes the program that serves a disk remove it, and waits for that.
fn end_program(disk: u32, saved: &Saved, force: bool) -> Result<(), Error> {
    let mut signaled = None;
    for waited in 0u32.. {
        let Some(mut known) = driver::find(disk, saved.mark)? else {
            return Ok(());
        };
        if known.is_served() {
            // Another program may have taken the disk over. With force a program gets the signal again, which ends a
            // disk in use.
            if force || signaled != Some(known.pid) {
                let _ = kill(Pid::from_raw(known.pid), Signal::SIGTERM);
                signaled = Some(known.pid);
            }
        } else if let Ok(_lock) = Lock::take(disk) {
            // The program was killed meanwhile.
            if !force && is_mounted(disk)? {
                return Err(in_use(disk));
            }
            return remove_left(saved, &mut known);
        }
        if waited % 10 == 9 {
            eprintln!(
                "hcablk-ublk: waiting for program {} to remove ublkb{disk}",
                known.pid
            );
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

fn in_use(disk: u32) -> Error {
    format!("/dev/ublkb{disk} is in use; --force removes it all the same").into()
}

/// Returns whether the disk, or a partition of it, is mounted or used for swap, or has another device above it.
fn is_mounted(disk: u32) -> Result<bool, Error> {
    let name = format!("ublkb{disk}");
    let partition = format!("{name}p");
    let is_it = |device: &str| device == name || device.starts_with(&partition);
    for list in ["/proc/mounts", "/proc/swaps"] {
        let list = fs::read_to_string(list)?;
        let mut devices = list
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        if devices.any(|device| device.strip_prefix("/dev/").is_some_and(is_it)) {
            return Ok(true);
        }
    }
    let folder = format!("/sys/block/{name}");
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let folders = entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&partition))
    });
    let has_holder = |folder: &Path| {
        let above = fs::read_dir(folder.join("holders"));
        above.is_ok_and(|mut above| above.next().is_some())
    };
    Ok(has_holder(Path::new(&folder)) || folders.into_iter().any(|folder| has_holder(&folder)))
}

/// Lists the disks.
#[expect(clippy::unnecessary_wraps, reason = "as all commands")]
pub(crate) fn list() -> Result<(), Error> {
    for disk in Saved::disks() {
        // The disk may be removed meanwhile.
        let Ok(saved) = Saved::read(disk) else {
            continue;
        };
        let service_state = match driver::find(disk, saved.mark) {
            Ok(known) => known
                .map_or("not there", |known| known.service_state())
                .to_owned(),
            Err(failure) => format!("not known: {failure}"),
        };
        println!("/dev/ublkb{disk} {} {service_state}", saved.wanted.volume);
    }
    Ok(())
}
