// SPDX-License-Identifier: GPL-2.0

//! Carries out the drive's part of a request, depending on its volume's mode.
//!
//! ```text
//!           CacheHit
//!          ┌──────────────────────────────────────────────────────────────┐
//!          │ Direct, Chunked                                              │
//!  begin ──┼────────────────► one bio, or one for each chunk ─────────────┼─► response
//!          │                          ▲ │ the drive has no room, and      │
//!          │                          │ ▼ other volumes must not wait     │
//!          │                workqueue: Submit                             │
//!          │ PageCache                                                    │
//!          └──► workqueue: Start ──► page cache, direct file I/O, sync ───┤
//!                                        │ the file system goes on        │
//!                                        └──► Finished ───────────────────┘
//! ```
//!
//! [`DrivePath`] names the paths; [`TargetRequest::drive_path`] and the functions next to it choose
//! one. The volume's cache, if it has one, is entered before any path, and left before the
//! response: see [`cache`](super::cache).
//!
//! # Contexts
//!
//! The requests of a queue are begun one after the other, so work that may wait for a drive moves
//! to a workqueue, on which each request has its own place. A bio may be submitted at once, and so
//! may a read that the page cache can serve without sleeping.
//!
//! # Coherence
//!
//! A device or a file can be exported several times in several modes, and be used on this host as
//! well. Data that was written on one path and acknowledged is visible to reads on every other
//! path:
//!
//! - A request that bypasses the page cache first checks whether its range has cached pages: one
//!   load if the file has no pages at all. Before a read, dirty pages are written back. A write
//!   that finds pages goes through them to the drive, and drops them.
//! - A reader of the page cache may have put old data into it while a write bypassed it. So each
//!   such write checks again when it has completed, and if there are pages it is repeated through
//!   them. That is correct in any order with the writes of others, since the write is not
//!   acknowledged yet.
//!
//! Zeroed blocks follow the same rules. Discarded blocks may be stale in the page cache, since
//! their contents are undefined.
//!
//! - Pages are written back in whole blocks of the page cache, which can be longer than the write:
//!   they would overwrite a direct write to the rest of such a block with the data that was read
//!   before it, and that direct write may find no page when it completes. So each write to a part
//!   of a page checks whether any write-back happened meanwhile
//!   ([`Rewrites`](crate::drive::claims::Rewrites)), and is then repeated through the pages. A file
//!   that is also exported through the page cache, or is open on this host, can be written back at
//!   any time: a write to a part of its pages goes through the page cache from the start, or is
//!   repeated if such use began meanwhile.
//!
//! There is *no* promise about two writes to the same block that are under way at the same time.

use super::{
    cache::enter_cache,
    queue::Queue,
    request::{
        TargetRequest,
        WorkStep, //
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
        Extent,
        Op,
        ResponseKind,
        Status, //
    },
    rdma::buffer::DmaBuffer,
    report::trace,
    sync::defer::{
        Deferred,
        WorkSlot, //
    },
};
use kernel::prelude::*;

/// A request for blocks, as the drive has to carry it out.
#[derive(Clone, Copy)]
struct Task {
    extent: Extent,
    op: BioOp,
    route: Route,
    /// Whether the write must happen as a whole or not at all.
    atomic: bool,
}

impl Task {
    /// Returns the operation of the bio that bypasses the page cache.
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

    /// Returns whether pages of this range in the page cache are stale after the operation.
    fn replaces(self) -> bool {
        matches!(self.op, BioOp::Write { .. } | BioOp::WriteZeroes { .. })
    }

    /// Returns whether the operation writes a part of a page of the page cache that can hold other
    /// blocks.
    #[inline]
    fn writes_parts(self, backing: &Backing) -> bool {
        self.replaces() && self.shares_pages(backing)
    }

    /// Returns whether a page of the page cache, or the unit in which it is written back, can hold
    /// blocks outside the range.
    #[inline]
    fn shares_pages(self, backing: &Backing) -> bool {
        let unit = backing.cache_unit() - 1;
        (self.extent.offset | u64::from(self.extent.length)) & unit != 0
    }

    fn is_cached_in(self, file: FileRef<'_>) -> bool {
        file.has_pages(self.extent.offset, self.extent.length as usize)
    }

    /// Returns whether a request meant to bypass the page cache must go through it: its range has
    /// cached pages, or it writes part of a page that may be cached.
    #[inline]
    fn meets_pages(self, backing: &Backing) -> bool {
        let shares = self.writes_parts(backing) && backing.is_also_cached();
        shares || self.is_cached_in(backing.file())
    }
}

/// How the data of a request moves between its buffers and the drive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DrivePath {
    /// In one bio.
    Direct,
    /// In one bio for each chunk.
    Chunked,
    /// Through the page cache or the file system. Process context, mostly on the workqueue.
    PageCache,
    /// Without the drive: the volume's cache has the data.
    CacheHit,
}

impl TargetRequest {
    /// Returns how the data of a request moves that missed the volume's cache. `has_arrived`: the
    /// request is a write, and all its data has arrived.
    #[inline(always)]
    fn drive_path(&self, task: Task, has_arrived: bool) -> DrivePath {
        if task.route != Route::Device || task.meets_pages(self.volume.backing()) {
            DrivePath::PageCache
        } else if self.chunks.is_some() && !has_arrived {
            DrivePath::Chunked
        } else {
            DrivePath::Direct
        }
    }

    /// Returns whether the RDMA READ and the drive's part of a write are done in chunks. Otherwise
    /// one RDMA READ reads all the data first, and its path is chosen when it has arrived: pages
    /// may have been cached or dropped by then.
    #[inline]
    pub(super) fn is_read_in_chunks(&mut self) -> bool {
        match self.task() {
            Some(task) if self.chunks.is_some() => {
                self.note_marks(task);
                self.drive_path(task, false) == DrivePath::Chunked
            }
            _ => false,
        }
    }

    /// Returns whether the data may move in chunks, if it is long enough and chunks are free.
    pub(super) fn may_be_chunked(&self, queue: &Queue) -> bool {
        let backing = self.volume.backing();
        let by_device = |route: Route| route == Route::Device;
        match self.op {
            // The immediate value is sent with the data.
            Ok(Op::Read(_, remote)) => {
                remote.response != ResponseKind::Immediate && by_device(backing.read_route())
            }
            // An atomic write is written as a whole, and data in a sink must not be used before all
            // of it has arrived.
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

impl TargetRequest {
    /// Returns the request as a task, or `None` for a flush.
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

    /// Returns whether the data that the request has written may be lost because its initiator
    /// sends no flush: the volume's `write_cache` is *through*, or the drive's cache was enabled
    /// after the initiator was informed that there is none.
    #[inline]
    fn is_unstable(&self, task: Task) -> bool {
        let volume = &self.volume;
        if volume.initiator_flushes() || !task.replaces() || !volume.backing().is_volatile() {
            return false;
        }
        // A write sent to the drive with FUA needs no flush; zeroed blocks always do.
        !(self.force_fua && matches!(task.op, BioOp::Write { .. }))
    }

    /// Returns whether the drive has failed the request because it does not support the operation.
    /// Some drives lower their limit only after such a failure, and `blkdev_issue_zeroout()` has a
    /// fallback for them.
    #[cold]
    fn cannot_be_done(&self) -> bool {
        let emptied = || self.volume.backing().emptied();
        match self.op {
            Ok(Op::Discard(_)) => emptied().by_discard == 0,
            Ok(Op::WriteZeroes { .. }) => emptied().by_zeroes == 0,
            _ => false,
        }
    }

    /// Returns whether the request flushes the drive: it is a flush, or a write whose FUA is
    /// implemented by a flush.
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

    /// Records the count of write-backs, for `was_overtaken`, and of failed flushes, for
    /// `is_undone`. Must be called before the drive gets a write, and before the check for cached
    /// pages.
    #[inline(always)]
    fn note_marks(&mut self, task: Task) {
        let backing = self.volume.backing();
        let flush_failures = backing.flush_failures().count();
        let parts = task.shares_pages(backing);
        let rewritten = parts.then(|| backing.rewrites().mark());
        self.flush_failures = flush_failures;
        self.rewritten = rewritten.unwrap_or_default();
    }

    /// Returns whether a flush of the drive has failed since the request was begun: data that a
    /// later flush has made durable may still be lost.
    fn is_undone(&self) -> bool {
        self.volume.backing().flush_failures().count() != self.flush_failures
    }

    /// Returns whether the request is a write with FUA, requested or [forced](Self::force_fua): its
    /// data must be on stable media before the response. Any context.
    #[inline]
    fn is_fua(&self) -> bool {
        match self.op {
            Ok(
                Op::Write { fua, .. } | Op::WriteInline { fua, .. } | Op::WriteEager { fua, .. },
            ) => fua || self.force_fua,
            _ => false,
        }
    }

    /// Returns the step for the workqueue after the bio has succeeded; usually there is none.
    #[inline(always)]
    fn step_behind_bio(&self) -> Option<WorkStep> {
        if matches!(self.op, Ok(Op::Read(..))) {
            // The copy is too slow for an interrupt handler.
            return self.bounces().then_some(WorkStep::Bounce);
        }
        let task = self.task().filter(|task| task.replaces())?;
        if self.was_overtaken(task) {
            return Some(WorkStep::WriteAgain);
        }
        // The flush waits for the drive.
        self.is_unstable(task).then_some(WorkStep::FlushDrive)
    }

    /// Returns whether data that was written past the page cache must be written again, through it.
    #[inline]
    fn was_overtaken(&self, task: Task) -> bool {
        let backing = self.volume.backing();
        task.is_cached_in(backing.file())
            || (task.shares_pages(backing)
                && (backing.rewrites().any_since(self.rewritten) || backing.is_also_cached()))
    }
}

/// Handles the end of a bio, or of the bios of all chunks of a write. Any context.
#[inline(always)]
pub(crate) fn bio_done(mut request: KBox<TargetRequest>, result: Result<(), DriveStatus>) {
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

/// Returns whether a flush that failed can have this status. With the other statuses the drive has
/// refused the request before it began.
fn may_be_of_flush(status: DriveStatus) -> bool {
    !matches!(
        status,
        DriveStatus::NoSpace | DriveStatus::NotSupported | DriveStatus::Conflict
    )
}

/// Begins the drive's part of a request that has its buffers and, for a write, its data. Process
/// context.
#[inline(never)]
pub(crate) fn begin(queue: &Queue, request: KBox<TargetRequest>) {
    begin_here(queue, request);
}

/// As [`begin`], but inlined into the caller.
#[inline(always)]
pub(crate) fn begin_here(queue: &Queue, mut request: KBox<TargetRequest>) {
    request.marks.enter_drive();
    request.step = WorkStep::Start;
    request.cached = false;
    request.met_pages = false;
    let Some(task) = request.task() else {
        trace::target::drive_start(|| request.about());
        return flush(queue, request);
    };
    let path = if enter_cache(queue, &mut request, task.op, task.extent) {
        DrivePath::CacheHit
    } else {
        if task.replaces() {
            request.note_marks(task);
        }
        trace::target::drive_start(|| request.about());
        request.drive_path(task, task.op != BioOp::Read)
    };
    match path {
        DrivePath::Direct => {
            request.bounce_to_drive();
            submit_here(queue, request, task.bio_op(), task.extent.offset);
        }
        DrivePath::Chunked => queue.read_chunks(request),
        DrivePath::PageCache => to_page_cache(queue, request, task),
        DrivePath::CacheHit => queue.respond(request, Status::Ok),
    }
}

/// Continues a request on the workqueue of requests that wait for its drive, at the
/// [turn](crate::drive::io_turns) of its host. Any context.
fn wait_for_drive(request: KBox<TargetRequest>) {
    let volume = request.volume.clone();
    volume.take_turn(request);
}

/// Reads data that is in the page cache, and continues on the workqueue with a request that needs
/// more. Process context.
#[inline(never)]
fn to_page_cache(queue: &Queue, mut request: KBox<TargetRequest>, task: Task) {
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

/// Makes the drive's completed writes durable. Process context.
#[inline(never)]
fn flush(queue: &Queue, request: KBox<TargetRequest>) {
    match request.volume.backing().write_route() {
        Route::Device => submit_bio(queue, request, BioOp::Flush, 0),
        _ => wait_for_drive(request),
    }
}

#[inline(never)]
fn submit_bio(queue: &Queue, request: KBox<TargetRequest>, op: BioOp, offset: u64) {
    submit_here(queue, request, op, offset);
}

/// As [`submit_bio`], but inlined into the caller.
#[inline(always)]
fn submit_here(queue: &Queue, request: KBox<TargetRequest>, op: BioOp, offset: u64) {
    match submit(request, op, offset >> 9) {
        Ok(()) => {}
        Err((EAGAIN, request)) => submit_later(request),
        Err((_, request)) => finish(queue, request, Err(DriveStatus::IoErr)),
    }
}

/// Submits the bio of a request on the workqueue, which may wait until the drive has room. Any
/// context.
#[cold]
fn submit_later(mut request: KBox<TargetRequest>) {
    request.step = WorkStep::Submit;
    wait_for_drive(request);
}

/// Continues what [`begin`] deferred to the workqueue. May sleep.
fn run_step(queue: &Queue, mut request: KBox<TargetRequest>) {
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
            // Discarded blocks may have any contents, so an error is not the initiator's: the
            // program on this host that wrote the pages gets it. Pages that are discarded only in
            // part are written back whole.
            let rewriting = backing.rewrites().begin();
            let _ = file.write_back(offset, length, &mut file.new_wb_err_cursor());
            drop(rewriting);
            let _ = file.drop_pages(offset, length);
            submit_bio(queue, request, task.op, offset);
        }
        (BioOp::Discard { .. } | BioOp::WriteZeroes { .. }, _) => empty(queue, request, task),
        (BioOp::Write { .. }, Route::Device) if request.met_pages && task.atomic => {
            // Pages would be written back one by one. A reader that caches a page meanwhile makes
            // this write overtaken, and it is repeated: it writes the same data over itself, which
            // cannot tear.
            let rewriting = backing.rewrites().begin();
            let written = file.write_back(offset, length, &mut file.new_wb_err_cursor());
            drop(rewriting);
            // Pages in use stay: the write is then found overtaken.
            let _ = file.drop_pages(offset, length);
            match written {
                Ok(()) => submit_bio(queue, request, task.bio_op(), offset),
                Err(e) => finish_file(queue, request, Err(e)),
            }
        }
        (BioOp::Write { .. }, Route::Device | Route::File) if request.met_pages => {
            write_through(queue, request, task);
        }
        // If blocks are lost in their write-back, the drive does not have the data that was
        // written.
        (_, Route::Device) => {
            let rewriting = backing.rewrites().begin();
            let written = file.write_back(offset, length, &mut file.new_wb_err_cursor());
            drop(rewriting);
            match written {
                Ok(()) => submit_bio(queue, request, task.bio_op(), offset),
                Err(e) => finish_file(queue, request, Err(e)),
            }
        }
        // The file system writes back the necessary pages before it reads.
        (_, Route::File | Route::Cache) => transfer_file(queue, request, task),
    }
}

/// Discards or zeroes blocks, including those in the page cache.
fn empty(queue: &Queue, request: KBox<TargetRequest>, task: Task) {
    let keep = matches!(task.op, BioOp::WriteZeroes { no_unmap: true, .. });
    let (offset, length) = (task.extent.offset, task.extent.length as usize);
    // File systems write back and drop the pages that are affected only in part.
    let rewriting = request.volume.backing().rewrites().begin();
    let result = request.volume.backing().file().empty(offset, length, keep);
    drop(rewriting);
    finish_file(queue, request, result);
}

fn transfer_file(queue: &Queue, mut request: KBox<TargetRequest>, task: Task) {
    let volume = request.volume.clone();
    let backing = volume.backing();
    request.cached = task.route == Route::Cache;
    request.wb_err = wants_wb_err(task).then(|| backing.file().new_wb_err_cursor());
    let is_cached_fua = request.cached && matches!(task.op, BioOp::Write { fua: true });
    let before = match is_cached_fua {
        true => volume.write_errors().seen(),
        false => 0,
    };
    // `IOCB_DSYNC` does not report which part has failed.
    let by_hand = is_cached_fua && backing.device().is_some();
    let op = match by_hand {
        true => FileOp::Write { durable: false },
        false => task.file_op(),
    };
    let Some((mut request, mut result)) =
        transfer(request, op, task.route.file_access(), task.extent.offset)
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
            // The error is from earlier writes, and is found only once.
            let status = status_of(DriveStatus::from_error(e));
            volume.write_errors().owe_flush_error(status);
            result = Err(e);
        }
    }
    transferred(queue, request, task, result);
}

/// Counts a failed write with `IOCB_DSYNC`, for which the file system flushes the drive.
fn note_dsync(request: &TargetRequest, result: Result) {
    if request.is_fua() && result.is_err_and(flush_failures::may_be_of_flush) {
        request.volume.backing().flush_failures().add();
    }
}

/// Returns whether a write-back error of the request can be missing from its own result: it is a
/// durable write through the page cache, or a direct one for which the file system falls back to
/// the page cache. These learn of the error through a flag of the file that any other waiter may
/// have cleared.
fn wants_wb_err(task: Task) -> bool {
    match (task.op, task.route) {
        (BioOp::Write { .. }, Route::File) => true,
        (BioOp::Write { fua }, Route::Cache) => fua,
        _ => false,
    }
}

/// Handles the end of direct or cached I/O of a file. May sleep.
fn transferred(queue: &Queue, mut request: KBox<TargetRequest>, task: Task, result: Result) {
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

/// Writes through the page cache to the drive, and drops the pages. The response is sent when the
/// data is on the drive, and reports a failure of any of its pages regardless of other waiters: the
/// cursor is the request's own. Durability is requested from the drive and not with `IOCB_DSYNC`,
/// which has one cursor for all requests.
fn write_through(queue: &Queue, request: KBox<TargetRequest>, task: Task) {
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
    // Pages in use stay; their data is correct.
    let _ = file.drop_pages(offset, length);
    finish_file(queue, request, result);
}

/// Returns the error of a write-back that has failed since the session last got one, or that the
/// session got since `before`.
fn check_wb_err(request: &TargetRequest, before: u32) -> Result {
    let volume = &request.volume;
    volume.write_errors().check_wb_err(volume.backing(), before)
}

/// Responds with the result of the drive's part, after a flush if the data must be on stable media
/// and is not yet. May sleep.
fn finish_file(queue: &Queue, request: KBox<TargetRequest>, result: Result) {
    let unstable = request.task().is_some_and(|task| request.is_unstable(task));
    let result = match unstable {
        // Requests that wait here at the same time share the drive's flushes (block/blk-flush.c).
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

/// Responds with the result of the drive's part. Any context.
pub(crate) fn finish(queue: &Queue, request: KBox<TargetRequest>, result: Result<(), DriveStatus>) {
    finish_here(queue, request, result);
}

/// As [`finish`], but inlined into the caller.
#[inline(always)]
fn finish_here(queue: &Queue, mut request: KBox<TargetRequest>, result: Result<(), DriveStatus>) {
    let mut status = match result {
        Ok(()) => Status::Ok,
        Err(failed) => match status_of(failed) {
            Status::IoError if request.cannot_be_done() => Status::Unsupported,
            status => status,
        },
    };
    if matches!(request.op, Ok(Op::Flush)) {
        let volume = &request.volume;
        (status, request.flush_error) = volume
            .write_errors()
            .end_flush(status, volume.session_number());
    } else if status != Status::Ok {
        note_failure(&request, status);
    } else if request.is_fua() {
        status = end_fua(&request);
    }
    trace::target::drive_end(|| request.about().ended(status as i32));
    queue.respond(request, status);
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

/// Returns the status of a write with FUA that the drive has completed: if its data waited in the
/// drive's cache for a flush, a flush may have failed meanwhile. Any context.
#[inline(never)]
fn end_fua(request: &TargetRequest) -> Status {
    if !request.is_undone() || !request.needs_flush() {
        return Status::Ok;
    }
    note_failure(request, Status::IoError);
    Status::IoError
}

/// Records the consequences of a request other than a flush that fails with `status`. Any context.
#[cold]
#[inline(never)]
fn note_failure(request: &TargetRequest, status: Status) {
    let may_be_of_flush = !matches!(
        status,
        Status::NoSpace | Status::Unsupported | Status::Conflict
    );
    let volume = &request.volume;
    if volume.initiator_flushes() && may_be_of_flush && request.needs_flush() {
        volume.write_errors().owe_flush_error(status);
    }
    // A processor may have written some of the data that was read: its cached lines must not be
    // written over the data that the HCA puts there next.
    if matches!(request.op, Ok(Op::Read(..))) {
        request.sync_for_hca();
    }
}

/// Continues with a request on the workqueue. May sleep.
pub(crate) fn run_deferred(mut request: KBox<TargetRequest>) {
    let queue = request.queue.clone();
    match (request.step, request.task()) {
        (WorkStep::Bounce, _) => {
            request.bounce_to_wire();
            finish(&queue, request, Ok(()));
        }
        (WorkStep::FlushDrive, _) => finish_file(&queue, request, Ok(())),
        (WorkStep::Submit, Some(task)) => {
            submit_bio(&queue, request, task.bio_op(), task.extent.offset);
        }
        (WorkStep::Submit, None) => submit_bio(&queue, request, BioOp::Flush, 0),
        (WorkStep::Finished(result), Some(task)) => {
            note_dsync(&request, result);
            transferred(&queue, request, task, result);
        }
        (WorkStep::WriteAgain, Some(task)) => {
            request.leave_peer();
            match task.op {
                BioOp::WriteZeroes { .. } => empty(&queue, request, task),
                _ => write_through(&queue, request, task),
            }
        }
        _ => run_step(&queue, request),
    }
}

/// Handles the end of I/O that a file system has continued asynchronously. Any context.
pub(crate) fn file_done(mut request: KBox<TargetRequest>, result: Result) {
    request.step = WorkStep::Finished(result);
    wait_for_drive(request);
}

hcablk_core::impl_has_slot!(TargetRequest, slot: BioSlot);
hcablk_core::impl_has_slot!(TargetRequest, file: FileSlot);
hcablk_core::impl_has_slot!(TargetRequest, work: WorkSlot<TargetRequest>);

impl BioOwner for TargetRequest {
    fn device(&self) -> Option<&BlockDevice> {
        self.volume.backing().device()
    }

    #[inline(always)]
    fn piece(&self) -> Option<PageRange<'_>> {
        let length = self.length();
        match self.op {
            // Data that comes with the request has no transfer buffers.
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
        !self.queue.never_waits || matches!(self.step, WorkStep::Submit)
    }

    fn done(self: KBox<Self>, result: Result<(), DriveStatus>) {
        bio_done(self, result);
    }
}

/// Returns the pages of `length` bytes of `buffer`, if it is that long.
#[inline]
fn whole(buffer: &DmaBuffer, length: usize) -> Option<PageRange<'_>> {
    let range = buffer.pages().range(0, length);
    (range.length() as usize == length).then_some(range)
}

impl TargetRequest {
    /// Returns the memory of all the data, if the first transfer buffer holds all of it.
    #[inline(never)]
    fn first_piece(&self) -> Option<PageRange<'_>> {
        if self.is_in_lines() || self.peer.is_some() {
            return None;
        }
        let (piece, length) = (self.pieces().next()?, self.length());
        whole(piece.buffer, length).filter(|_| piece.length == length)
    }
}

impl FileOwner for TargetRequest {
    fn file(&self) -> FileRef<'_> {
        self.volume.backing().file()
    }

    fn completed(self: KBox<Self>, result: Result) {
        file_done(self, result);
    }
}

impl Deferred for TargetRequest {
    fn run(self: KBox<Self>) {
        // The request may have a different volume after it has run. This reference to the volume is
        // not its last: the holder of that one waits for this to return, or for `Gone`.
        let volume = self.volume.clone();
        run_deferred(self);
        volume.end_turn();
    }
}
