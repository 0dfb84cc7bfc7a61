// SPDX-License-Identifier: GPL-2.0

//! The drive's part of a request, by its volume's mode.
//!
//! ```text
//!           CacheHit
//!          ┌──────────────────────────────────────────────────────────────┐
//!          │ Direct, Chunked                                              │
//!  begin ──┼────────────────► one bio, or one for each chunk ─────────────┼─► answer
//!          │                          ▲ │ the drive has no room, and      │
//!          │                          │ ▼ other volumes must not wait     │
//!          │                workqueue: Submit                             │
//!          │ PageCache                                                    │
//!          └──► workqueue: Start ──► page cache, direct file I/O, sync ───┤
//!                                        │ the file system goes on        │
//!                                        └──► Finished ───────────────────┘
//! ```
//!
//! [`DataPath`] names the ways; [`Request::data_path`] and the functions beside it decide. The
//! volume's cache, if it has one, is asked before all others, and told of the answer: see
//! [`cache`](super::cache).
//!
//! # Contexts
//!
//! A queue's requests are begun one after the other, so what may wait for a
//! drive is done on a workqueue, on which each request has a place of its own.
//! A bio may be submitted at once, and so may a read that the page cache can
//! answer without sleeping.
//!
//! # Coherence
//!
//! A device or a file can be exported several times in several modes, and be
//! used on this host beside that. What was written in one way and answered is
//! what is read in every other:
//!
//! - What goes past the page cache first looks whether it has pages there: one
//!   load if it has none at all. A read has dirty ones written back before. A
//!   write that meets pages goes through them, to the drive, and drops them.
//! - Whoever reads through the page cache while a write goes past it may have
//!   put old data into it. So each such write looks again when it is done, and if
//!   there are pages it is done again, through them. That is right in any order
//!   with what others write, since it is not answered yet.
//!
//! Blocks that are zeroed go the same way. Discarded ones may be old in the cache,
//! as they may be anything.
//!
//! - What goes through pages is written back by whole blocks of the page cache, which can be longer
//!   than the write: a write past the cache to the rest of such a block would be overwritten with
//!   what was read before it, and may find no page when it is done. So each write to a part of a
//!   page looks whether anything was being written back meanwhile
//!   ([`Rewrites`](crate::drive::claims::Rewrites)), and is done again then, through the pages.
//!   What is exported through the page cache as well, or is open on this host, is written back at
//!   any time: there such a write goes through it from the start, or is done again if that began
//!   meanwhile.
//!
//! What is *not* promised: anything about two writes to the same block that
//! are under way at the same time.

use super::{
    cache::enter_cache,
    queue::Queue,
    request::{
        Request,
        Step, //
    },
};
use crate::drive::{
    backing::{
        Backing,
        Route, //
    },
    flush_failures, //
};
use hcablk_core::{
    blkdev::{
        submit,
        transfer,
        BioOp,
        BioOwner,
        BioSlot,
        BlockDevice,
        FileAccess,
        FileOp,
        FileOwner,
        FileRef,
        FileSlot,
        Status as DriveStatus, //
    },
    memory::pages::PageRange,
    proto::message::{
        Answer,
        Extent,
        Op,
        Status, //
    },
    rdma::buffer::DmaBuffer,
    report::trace,
    sync::defer::{
        defer,
        Deferred,
        WorkSlot, //
    },
};
use kernel::prelude::*;

/// What a request for blocks is to the drive.
#[derive(Clone, Copy)]
struct Task {
    extent: Extent,
    op: BioOp,
    route: Route,
    /// It is a write of all of it or nothing.
    atomic: bool,
}

impl Task {
    /// Returns what it is past the page cache.
    #[inline]
    fn bio_op(self) -> BioOp {
        match self.op {
            BioOp::Write { fua } if self.atomic => BioOp::AtomicWrite { fua },
            op => op,
        }
    }

    fn file_op(self) -> FileOp {
        match self.op {
            BioOp::Write { fua } => FileOp::Write { durable: fua },
            _ => FileOp::Read,
        }
    }

    /// Returns whether what is in the page cache is wrong when it is done.
    fn replaces(self) -> bool {
        matches!(self.op, BioOp::Write { .. } | BioOp::WriteZeroes { .. })
    }

    /// Returns whether it writes some blocks of a page of the cache that can have others.
    #[inline]
    fn writes_parts(self, backing: &Backing) -> bool {
        self.replaces() && self.shares_pages(backing)
    }

    /// Returns whether a page of the cache, or what it is written back in, can have blocks beside
    /// it.
    #[inline]
    fn shares_pages(self, backing: &Backing) -> bool {
        let unit = backing.cache_unit() - 1;
        (self.extent.offset | u64::from(self.extent.length)) & unit != 0
    }

    fn is_cached_in(self, file: FileRef<'_>) -> bool {
        file.has_pages(self.extent.offset, self.extent.length as usize)
    }

    /// Returns whether what would pass the page cache by has to do with it: there are pages, or
    /// there may be some, of which it writes a part.
    #[inline]
    fn meets_pages(self, backing: &Backing) -> bool {
        let shares = self.writes_parts(backing) && backing.is_also_cached();
        shares || self.is_cached_in(backing.file())
    }
}

/// How the data of a request moves between its buffers and the drive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DataPath {
    /// By one bio.
    Direct,
    /// By a bio for each chunk.
    Chunked,
    /// By the page cache or the file system. Process context, mostly on the workqueue.
    PageCache,
    /// Not at all: the volume's cache has it.
    CacheHit,
}

impl Request {
    /// Returns how the data of a request moves past the volume's cache, which does not have it.
    /// `is_fetched`: it is a write, and all of its data is here.
    #[inline(always)]
    fn data_path(&self, task: Task, is_fetched: bool) -> DataPath {
        if task.route != Route::Device || task.meets_pages(self.volume.backing()) {
            DataPath::PageCache
        } else if self.chunks.is_some() && !is_fetched {
            DataPath::Chunked
        } else {
            DataPath::Direct
        }
    }

    /// Returns whether the data of a write, which is still to be fetched, is fetched and written by
    /// chunks. If not it is fetched whole, and its path is decided when it is here: pages may have
    /// come or gone by then.
    #[inline]
    pub(super) fn is_fetched_by_chunks(&mut self) -> bool {
        match self.task() {
            Some(task) if self.chunks.is_some() => {
                self.note_marks(task);
                self.data_path(task, false) == DataPath::Chunked
            }
            _ => false,
        }
    }

    /// Returns whether its data may move by chunks, if it is long enough and there are some.
    pub(super) fn may_be_chunked(&self, queue: &Queue) -> bool {
        let backing = self.volume.backing();
        let by_device = |route: Route| route == Route::Device;
        match self.op {
            // The immediate value comes with the data.
            Ok(Op::Read(_, remote)) => {
                remote.answer != Answer::Immediate && by_device(backing.read_route())
            }
            // An atomic write goes to the drive whole, and a sink must not be looked at before all
            // is there.
            Ok(Op::Write {
                fua, atomic: false, ..
            }) if !queue.shape.sinks => {
                let flushes = (fua || self.force_fua) && backing.flushes_for_fua();
                !flushes && by_device(backing.write_route())
            }
            _ => false,
        }
    }
}

impl Request {
    /// Returns the request as a task; `None`: a flush.
    #[inline]
    fn task(&self) -> Option<Task> {
        let backing = self.volume.backing();
        let (extent, op, route) = match self.op {
            Ok(Op::Read(extent, _)) => (extent, BioOp::Read, backing.read_route()),
            Ok(
                Op::Write { extent, fua, .. }
                | Op::WriteInline { extent, fua }
                | Op::WriteEager { extent, fua },
            ) => {
                let fua = fua || self.force_fua;
                (extent, BioOp::Write { fua }, backing.write_route())
            }
            Ok(Op::Discard(extent)) => {
                let bytes = extent.length;
                (extent, BioOp::Discard { bytes }, backing.direct())
            }
            Ok(Op::WriteZeroes { extent, keep }) => {
                let op = BioOp::WriteZeroes {
                    bytes: extent.length,
                    no_unmap: keep,
                };
                (extent, op, backing.direct())
            }
            Ok(Op::Flush | Op::Nop) | Err(_) => return None,
        };
        let atomic = matches!(self.op, Ok(Op::Write { atomic: true, .. }));
        Some(Task {
            extent,
            op,
            route,
            atomic,
        })
    }

    /// Returns whether what it has written may be lost although its initiator sends no flush: the
    /// drive's cache was switched on after the initiator was told that there is none.
    #[inline]
    fn is_unstable(&self, task: Task) -> bool {
        let volume = &self.volume;
        if volume.initiator_flushes() || !task.replaces() || !volume.backing().is_volatile() {
            return false;
        }
        // What was sent with FUA needs no flush, and nothing but writes is.
        !(self.force_fua && matches!(task.op, BioOp::Write { .. }))
    }

    /// Returns whether the drive that has failed it has said that it cannot do such a thing: some
    /// take their limit back only then, and `blkdev_issue_zeroout()` goes another way for those.
    #[cold]
    fn cannot_be_done(&self) -> bool {
        let emptied = || self.volume.backing().emptied();
        match self.op {
            Ok(Op::Discard(_)) => emptied().by_discard == 0,
            Ok(Op::WriteZeroes { .. }) => emptied().by_zeroes == 0,
            _ => false,
        }
    }

    /// Returns whether the drive is flushed for it: it is a flush, or a write with FUA that is made
    /// durable by one.
    #[cold]
    fn needs_flush(&self) -> bool {
        match self.task() {
            None => matches!(self.op, Ok(Op::Flush)),
            Some(task) => {
                let straight = task.route == Route::Device && !self.met_pages;
                self.is_fua() && !(straight && self.volume.backing().fua_fails_alone())
            }
        }
    }

    /// Remembers what was written back through pages so far, for `was_overtaken`, and which flushes
    /// have failed, for `is_undone`. To be called before the drive gets a write, and before it is
    /// looked whether there are pages.
    #[inline(always)]
    fn note_marks(&mut self, task: Task) {
        let backing = self.volume.backing();
        let flush_failures = backing.flush_failures().count();
        let parts = task.shares_pages(backing);
        let rewritten = parts.then(|| backing.rewrites().mark());
        self.flush_failures = flush_failures;
        self.rewritten = rewritten.unwrap_or_default();
    }

    /// Returns whether a flush of the drive has failed since it was begun: what it has made durable
    /// by another flush since then may be gone all the same.
    fn is_undone(&self) -> bool {
        self.volume.backing().flush_failures().count() != self.flush_failures
    }

    /// Returns whether this is a write with FUA, asked for or [forced](Self::force_fua): its data
    /// must be on stable media before the answer. Any context.
    #[inline]
    fn is_fua(&self) -> bool {
        match self.op {
            Ok(
                Op::Write { fua, .. } | Op::WriteInline { fua, .. } | Op::WriteEager { fua, .. },
            ) => fua || self.force_fua,
            _ => false,
        }
    }

    /// Returns what is to be done on the workqueue when its bio has ended well; most often nothing.
    #[inline(always)]
    fn step_behind_bio(&self) -> Option<Step> {
        if matches!(self.op, Ok(Op::Read(..))) {
            // Too long for an interrupt handler.
            return self.bounces().then_some(Step::Bounce);
        }
        let task = self.task().filter(|task| task.replaces())?;
        if self.was_overtaken(task) {
            return Some(Step::Overtaken);
        }
        // It waits for the drive.
        self.is_unstable(task).then_some(Step::Unstable)
    }

    /// Returns whether what was written past the page cache must be written again, through it.
    #[inline]
    fn was_overtaken(&self, task: Task) -> bool {
        let backing = self.volume.backing();
        task.is_cached_in(backing.file())
            || (task.shares_pages(backing)
                && (backing.rewrites().any_since(self.rewritten) || backing.is_also_cached()))
    }
}

/// Handles the end of a bio, or of those of all chunks of a write. Any context.
#[inline(always)]
pub(crate) fn bio_done(mut request: KBox<Request>, result: Result<(), DriveStatus>) {
    let queue = request.queue.clone();
    match result {
        Ok(()) => {
            if let Some(step) = request.step_behind_bio() {
                request.step = step;
                return wait_for_drive(request);
            }
        }
        Err(DriveStatus::Again) if !request.may_wait() => return submit_later(request),
        Err(status) if may_be_of_flush(status) && request.needs_flush() => {
            request.volume.backing().flush_failures().add();
        }
        Err(_) => {}
    }
    finish_here(&queue, request, result);
}

/// Returns whether a drive that fails a flush may say so: what it refuses it has not begun.
fn may_be_of_flush(status: DriveStatus) -> bool {
    !matches!(
        status,
        DriveStatus::NoSpace | DriveStatus::NotSupported | DriveStatus::Conflict
    )
}

/// Begins the drive's part of a request that has its buffers and, for a
/// write, its data. Process context.
#[inline(never)]
pub(crate) fn begin(queue: &Queue, request: KBox<Request>) {
    begin_here(queue, request);
}

/// Does what [`begin`] does, in the frame of the caller.
#[inline(always)]
pub(crate) fn begin_here(queue: &Queue, mut request: KBox<Request>) {
    request.marks.enter_drive();
    request.step = Step::Start;
    request.cached = false;
    request.met_pages = false;
    let Some(task) = request.task() else {
        trace::target::drive_start(|| request.about());
        return flush(queue, request);
    };
    let path = if enter_cache(queue, &mut request, task.op, task.extent) {
        DataPath::CacheHit
    } else {
        if task.replaces() {
            request.note_marks(task);
        }
        trace::target::drive_start(|| request.about());
        request.data_path(task, task.op != BioOp::Read)
    };
    match path {
        DataPath::Direct => {
            request.bounce_to_drive();
            submit_here(queue, request, task.bio_op(), task.extent.offset);
        }
        DataPath::Chunked => queue.read_chunks(request),
        DataPath::PageCache => to_page_cache(queue, request, task),
        DataPath::CacheHit => queue.answer(request, Status::Ok),
    }
}

/// Continues with a request on the workqueue on which requests wait for its drive, when its host's
/// [turn](crate::drive::io_turns) has come. Any context.
fn wait_for_drive(request: KBox<Request>) {
    let volume = request.volume.clone();
    if let Some(request) = volume.line().arrive(request) {
        defer(request, volume.io_work());
    }
}

/// Reads from the page cache what is there, and does the rest on the workqueue. Process context.
#[inline(never)]
fn to_page_cache(queue: &Queue, mut request: KBox<Request>, task: Task) {
    let is_cached_read = task.route == Route::Cache && task.op == BioOp::Read;
    if !(is_cached_read && request.volume.backing().file().can_now()) {
        request.leave_peer();
        return wait_for_drive(request);
    }
    request.cached = true;
    let offset = task.extent.offset;
    match transfer(request, FileOp::Read, FileAccess::CachedNow, offset) {
        Some((request, Ok(()))) => finish(queue, request, Ok(())),
        Some((request, Err(_))) => wait_for_drive(request),
        None => {}
    }
}

/// Has the drive make durable what it has completed. Process context.
#[inline(never)]
fn flush(queue: &Queue, request: KBox<Request>) {
    match request.volume.backing().write_route() {
        Route::Device => submit_bio(queue, request, BioOp::Flush, 0),
        _ => wait_for_drive(request),
    }
}

#[inline(never)]
fn submit_bio(queue: &Queue, request: KBox<Request>, op: BioOp, offset: u64) {
    submit_here(queue, request, op, offset);
}

/// Does what [`submit_bio`] does, in the frame of the caller.
#[inline(always)]
fn submit_here(queue: &Queue, request: KBox<Request>, op: BioOp, offset: u64) {
    match submit(request, op, offset >> 9) {
        Ok(()) => {}
        Err((EAGAIN, request)) => submit_later(request),
        Err((_, request)) => finish(queue, request, Err(DriveStatus::IoErr)),
    }
}

/// Submits the bio of a request on the workqueue, where that may wait until the drive has room. Any
/// context.
#[cold]
fn submit_later(mut request: KBox<Request>) {
    request.step = Step::Submit;
    wait_for_drive(request);
}

/// Continues what [`begin`] deferred to the workqueue. May sleep.
fn run_step(queue: &Queue, mut request: KBox<Request>) {
    let Some(task) = request.task() else {
        let before = request.volume.write_errors().seen();
        let synced = request.volume.backing().sync();
        let result = check_wb_err(&request, before).and(synced);
        return finish_file(queue, request, result);
    };
    let volume = request.volume.clone();
    let backing = volume.backing();
    let (file, offset) = (backing.file(), task.extent.offset);
    let length = task.extent.length as usize;
    request.met_pages = task.route != Route::Cache && task.meets_pages(backing);
    match (task.op, task.route) {
        (BioOp::Discard { .. }, Route::Device) => {
            // What is left there is as good as anything; who has written beside it is told of that.
            // Pages that it has in part are written whole.
            let rewriting = backing.rewrites().begin();
            let _ = file.write_back(offset, length, &mut file.new_wb_err_cursor());
            drop(rewriting);
            let _ = file.drop_pages(offset, length);
            submit_bio(queue, request, task.op, offset);
        }
        (BioOp::Discard { .. } | BioOp::WriteZeroes { .. }, _) => empty(queue, request, task),
        (BioOp::Write { .. }, Route::Device) if request.met_pages && task.atomic => {
            // Pages would be written back one by one. What reads them meanwhile finds it overtaken,
            // and it is written once more: the same over itself, which nothing can tear.
            let rewriting = backing.rewrites().begin();
            let written = file.write_back(offset, length, &mut file.new_wb_err_cursor());
            drop(rewriting);
            // Those that somebody uses stay: it is found overtaken then.
            let _ = file.drop_pages(offset, length);
            match written {
                Ok(()) => submit_bio(queue, request, task.bio_op(), offset),
                Err(e) => finish_file(queue, request, Err(e)),
            }
        }
        (BioOp::Write { .. }, Route::Device | Route::File) if request.met_pages => {
            write_through(queue, request, task);
        }
        // Blocks that are lost while they go to the drive are not what was written there.
        (_, Route::Device) => {
            let rewriting = backing.rewrites().begin();
            let written = file.write_back(offset, length, &mut file.new_wb_err_cursor());
            drop(rewriting);
            match written {
                Ok(()) => submit_bio(queue, request, task.bio_op(), offset),
                Err(e) => finish_file(queue, request, Err(e)),
            }
        }
        // The file system writes back what it must before it reads.
        (_, Route::File | Route::Cache) => transfer_file(queue, request, task),
    }
}

/// Empties blocks, those in the page cache, too.
fn empty(queue: &Queue, request: KBox<Request>, task: Task) {
    let keep = matches!(task.op, BioOp::WriteZeroes { no_unmap: true, .. });
    let (offset, length) = (task.extent.offset, task.extent.length as usize);
    // File systems write back and drop the pages that it has in part.
    let rewriting = request.volume.backing().rewrites().begin();
    let result = request.volume.backing().file().empty(offset, length, keep);
    drop(rewriting);
    finish_file(queue, request, result);
}

fn transfer_file(queue: &Queue, mut request: KBox<Request>, task: Task) {
    let volume = request.volume.clone();
    let backing = volume.backing();
    request.cached = task.route == Route::Cache;
    request.wb_err = wants_wb_err(task).then(|| backing.file().new_wb_err_cursor());
    let is_cached_fua = request.cached && matches!(task.op, BioOp::Write { fua: true });
    let before = match is_cached_fua {
        true => volume.write_errors().seen(),
        false => 0,
    };
    // `IOCB_DSYNC` does not tell which part has failed.
    let by_hand = is_cached_fua && backing.device().is_some();
    let op = match by_hand {
        true => FileOp::Write { durable: false },
        false => task.file_op(),
    };
    let Some((mut request, mut result)) =
        transfer(request, op, task.route.way(), task.extent.offset)
    else {
        return;
    };
    if by_hand {
        let length = task.extent.length as usize;
        if let Some(cursor) = request.wb_err.as_mut().filter(|_| result.is_ok()) {
            result = backing
                .file()
                .write_back(task.extent.offset, length, cursor);
        }
        result = result.and_then(|()| backing.make_durable());
    } else {
        note_dsync(&request, result);
    }
    if is_cached_fua {
        if let Err(e) = check_wb_err(&request, before) {
            // Of earlier writes; it is found once.
            let status = status_of(DriveStatus::from_error(e));
            volume.write_errors().owe_flush_error(status);
            result = Err(e);
        }
    }
    transferred(queue, request, task, result);
}

/// Counts that a write with `IOCB_DSYNC`, for which the file system flushes the drive, has failed.
fn note_dsync(request: &Request, result: Result) {
    if request.is_fua() && result.is_err_and(flush_failures::may_be_of_flush) {
        request.volume.backing().flush_failures().add();
    }
}

/// Returns whether a failed write-back may be that of a write that says nothing of it: one through
/// the page cache that shall be durable, or past it, for which file systems go through it where
/// they must. They learn of it by a flag of the file that anybody else who waits may have cleared.
fn wants_wb_err(task: Task) -> bool {
    match (task.op, task.route) {
        (BioOp::Write { .. }, Route::File) => true,
        (BioOp::Write { fua }, Route::Cache) => fua,
        _ => false,
    }
}

/// Handles the end of direct or cached I/O of a file. May sleep.
fn transferred(queue: &Queue, mut request: KBox<Request>, task: Task, result: Result) {
    let own = match request.wb_err.take() {
        Some(mut cursor) => request.volume.backing().file().check_wb_err(&mut cursor),
        None => Ok(()),
    };
    let result = own.and(result);
    let direct = task.route == Route::File && task.replaces();
    if result.is_ok() && direct && request.was_overtaken(task) {
        return write_through(queue, request, task);
    }
    finish_file(queue, request, result);
}

/// Writes through the page cache to the drive, and drops the pages. It is answered when it is on
/// the drive, so it fails when any of its pages does, whoever else waits for pages of the file: its
/// cursor is its own. What is durable is asked of the drive, and not by `IOCB_DSYNC`, which has one
/// cursor for all requests.
fn write_through(queue: &Queue, request: KBox<Request>, task: Task) {
    let volume = request.volume.clone();
    let backing = volume.backing();
    let (file, offset) = (backing.file(), task.extent.offset);
    let length = task.extent.length as usize;
    let mut cursor = file.new_wb_err_cursor();
    let rewriting = backing.rewrites().begin();
    let write = FileOp::Write { durable: false };
    let Some((mut request, result)) = transfer(request, write, FileAccess::Cached, offset) else {
        return;
    };
    request.met_pages = true;
    let written = file.write_back(offset, length, &mut cursor);
    drop(rewriting);
    let result = match task.op {
        BioOp::Write { fua: true } => result.and(written).and_then(|()| backing.make_durable()),
        _ => result.and(written),
    };
    // Those that somebody uses stay; they are right.
    let _ = file.drop_pages(offset, length);
    finish_file(queue, request, result);
}

/// Returns the error of a write-back that has failed since the session got the last one, or that it
/// got since `before`.
fn check_wb_err(request: &Request, before: u32) -> Result {
    let volume = &request.volume;
    volume.write_errors().check_wb_err(volume.backing(), before)
}

/// Answers by what became of the drive's part, when that is on stable media if it has to be. May
/// sleep.
fn finish_file(queue: &Queue, request: KBox<Request>, result: Result) {
    let unstable = request.task().is_some_and(|task| request.is_unstable(task));
    let result = match unstable {
        // Requests that wait for this at the same time share the drive's flushes
        // (block/blk-flush.c).
        true => result
            .and_then(|()| request.volume.backing().make_all_durable())
            .and_then(|()| {
                if request.is_undone() {
                    Err(EIO)
                } else {
                    Ok(())
                }
            }),
        false => result,
    };
    finish(queue, request, result.map_err(DriveStatus::from_error));
}

/// Answers by what became of the drive's part. Any context.
pub(crate) fn finish(queue: &Queue, request: KBox<Request>, result: Result<(), DriveStatus>) {
    finish_here(queue, request, result);
}

/// Does what [`finish`] does, in the frame of the caller.
#[inline(always)]
fn finish_here(queue: &Queue, mut request: KBox<Request>, result: Result<(), DriveStatus>) {
    let mut status = match result {
        Ok(()) => Status::Ok,
        Err(failed) => match status_of(failed) {
            Status::IoError if request.cannot_be_done() => Status::Unsupported,
            status => status,
        },
    };
    if matches!(request.op, Ok(Op::Flush)) {
        let volume = &request.volume;
        (status, request.flush_error) = volume.write_errors().end_flush(status, volume.teller());
    } else if status != Status::Ok {
        note_failure(&request, status);
    } else if request.is_fua() {
        status = end_fua(&request);
    }
    trace::target::drive_end(|| request.about().ended(status as i32));
    queue.answer(request, status);
}

fn status_of(failed: DriveStatus) -> Status {
    match failed {
        DriveStatus::NoSpace => Status::NoSpace,
        DriveStatus::Medium => Status::Medium,
        DriveStatus::NotSupported => Status::Unsupported,
        DriveStatus::Conflict => Status::Conflict,
        _ => Status::IoError,
    }
}

/// Returns how a write with FUA ends that the drive has done well: if its data has waited in the
/// drive's cache for a flush, another one may have failed meanwhile. Any context.
#[inline(never)]
fn end_fua(request: &Request) -> Status {
    if !request.is_undone() || !request.needs_flush() {
        return Status::Ok;
    }
    note_failure(request, Status::IoError);
    Status::IoError
}

/// Sees to what is left behind by a request, no flush, that fails with `status`. Any context.
#[cold]
#[inline(never)]
fn note_failure(request: &Request, status: Status) {
    let may_be_of_flush = !matches!(
        status,
        Status::NoSpace | Status::Unsupported | Status::Conflict
    );
    let volume = &request.volume;
    if volume.initiator_flushes() && may_be_of_flush && request.needs_flush() {
        volume.write_errors().owe_flush_error(status);
    }
    // A processor may have written some of what was read: what its cache has of that must not be
    // written over what the HCA puts there next.
    if matches!(request.op, Ok(Op::Read(..))) && request.wire_in_ram() {
        for piece in request.pieces() {
            piece.buffer.sync_for_device(0, piece.length);
        }
    }
}

/// Continues with a request on the workqueue. May sleep.
pub(crate) fn run_deferred(mut request: KBox<Request>) {
    let queue = request.queue.clone();
    match (request.step, request.task()) {
        (Step::Bounce, _) => {
            request.bounce_to_wire();
            finish(&queue, request, Ok(()));
        }
        (Step::Unstable, _) => finish_file(&queue, request, Ok(())),
        (Step::Submit, Some(task)) => {
            submit_bio(&queue, request, task.bio_op(), task.extent.offset);
        }
        (Step::Submit, None) => submit_bio(&queue, request, BioOp::Flush, 0),
        (Step::Finished(result), Some(task)) => {
            note_dsync(&request, result);
            transferred(&queue, request, task, result);
        }
        (Step::Overtaken, Some(task)) => {
            request.leave_peer();
            match task.op {
                BioOp::WriteZeroes { .. } => empty(&queue, request, task),
                _ => write_through(&queue, request, task),
            }
        }
        _ => run_step(&queue, request),
    }
}

/// Handles the end of I/O that a file system has gone on with. Any context.
pub(crate) fn file_done(mut request: KBox<Request>, result: Result) {
    request.step = Step::Finished(result);
    wait_for_drive(request);
}

hcablk_core::impl_has_slot!(Request, slot: BioSlot);
hcablk_core::impl_has_slot!(Request, file: FileSlot);
hcablk_core::impl_has_slot!(Request, work: WorkSlot<Request>);

impl BioOwner for Request {
    fn device(&self) -> Option<&BlockDevice> {
        self.volume.backing().device()
    }

    #[inline(always)]
    fn piece(&self) -> Option<PageRange<'_>> {
        let length = self.length();
        match self.op {
            // What comes with a request has no transfer buffers.
            Ok(Op::WriteEager { .. }) => {
                let offset = self.ring_slot.offset as usize;
                self.eager_ring()?.range(offset, length)
            }
            Ok(Op::WriteInline { .. }) => whole(self.inline()?, length),
            _ => match self.only_buffer() {
                Some(buffer) => whole(buffer, length),
                None => self.first_piece(),
            },
        }
    }

    fn pages(&self) -> impl Iterator<Item = PageRange<'_>> {
        let buffers = self.buffer_pages(self.peer.as_deref(), self.is_in_lines());
        Iterator::chain(buffers, self.line_pages())
    }

    #[inline(always)]
    fn may_wait(&self) -> bool {
        !self.queue.never_waits || matches!(self.step, Step::Submit)
    }

    fn done(self: KBox<Self>, result: Result<(), DriveStatus>) {
        bio_done(self, result);
    }
}

/// Returns the pages of `length` bytes of `buffer`, if it has so many.
#[inline]
fn whole(buffer: &DmaBuffer, length: usize) -> Option<PageRange<'_>> {
    let range = buffer.pages().range(0, length);
    (range.length() as usize == length).then_some(range)
}

impl Request {
    /// Returns the memory of all of the data, if that is in its first transfer buffer.
    #[inline(never)]
    fn first_piece(&self) -> Option<PageRange<'_>> {
        if self.is_in_lines() || self.peer.is_some() {
            return None;
        }
        let (piece, length) = (self.pieces().next()?, self.length());
        whole(piece.buffer, length).filter(|_| piece.length == length)
    }
}

impl FileOwner for Request {
    fn file(&self) -> FileRef<'_> {
        self.volume.backing().file()
    }

    fn completed(self: KBox<Self>, result: Result) {
        file_done(self, result);
    }
}

impl Deferred for Request {
    fn run(self: KBox<Self>) {
        // Its volume may be another one when it has run. The reference is not the drive's last:
        // whoever has that waits for this to return, or for `Gone`.
        let volume = self.volume.clone();
        run_deferred(self);
        // One for the same drive, perhaps of another session.
        if let Some(next) = volume.line().end() {
            let volume = next.volume.clone();
            defer(next, volume.io_work());
        }
    }
}
