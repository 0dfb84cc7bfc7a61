// SPDX-License-Identifier: GPL-2.0

//! The drive's part of a request, by its volume's mode.
//!
//! ```text
//!              Device, nothing cached
//!          ┌────────────────────────────► bio ─────────────────────────┐
//!  begin ──┤ Cache, a hit                                               ├─► answer
//!          ├───────────────────────────────────────────────────────────┤
//!          └──► workqueue: Start ──► page cache, direct file I/O, sync ─┤
//!                                        │ the file system goes on      │
//!                                        └──► Finished ─────────────────┘
//! ```
//!
//! The volume's cache, if it has one, is asked before all of this, and told of
//! the answer: see [`cache`](super::cache).
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
//! - What goes through pages is written back by whole blocks of the page cache, which can be
//!   longer than the write: a write past the cache to the rest of such a block would be
//!   overwritten with what was read before it, and may find no page when it is done. So each
//!   write to a part of a page looks whether anything was written back meanwhile
//!   ([`REWRITTEN`]), and is done again then, through the pages.
//!
//! What is *not* promised: anything about two writes to the same block that
//! are under way at the same time.

use crate::{
    queue::Queue,
    request::Io,
    storage::backing::Route, //
};
use hcablk_core::{
    blkdev::{
        submit,
        transfer,
        BioOp,
        FileAccess, //
        FileOp,
        FileOwner,
        FileRef,
        Status as DriveStatus,
    },
    proto::message::{
        Extent,
        Op,
        Status, //
    },
    report::trace, //
    sync::defer::{
        defer,
        Deferred, //
    },
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::atomic::{
        Atomic,
        Full, //
    },
};

/// How often pages that a write or a discard has in part were written back whole, by any volume. It
/// counts before the pages are dropped: who finds no page any more finds another number.
static REWRITTEN: Atomic<u32> = Atomic::new(0);

/// Returns the number, in order with what is looked at before and after.
fn rewritten() -> u32 {
    REWRITTEN.fetch_add(0, Full)
}

/// What is to be done on the workqueue.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    /// What could not be done at once.
    Start,
    /// The file system has finished by itself.
    Finished(Result),
    /// There are pages in the cache beside what was written to a device.
    Overtaken,
    /// What was read is in peer memory, and must be copied.
    Bounce,
}

/// What a request for blocks is to the drive.
#[derive(Clone, Copy)]
struct Task {
    extent: Extent,
    op: BioOp,
    route: Route,
}

impl Task {
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

    /// Returns whether a page of the cache can have blocks beside it.
    fn shares_pages(self) -> bool {
        let page = PAGE_SIZE as u64 - 1;
        (self.extent.offset | u64::from(self.extent.length)) & page != 0
    }

    fn is_cached_in(self, file: FileRef<'_>) -> bool {
        file.has_pages(self.extent.offset, self.extent.length as usize)
    }
}

impl Io {
    /// Returns the request as a task; `None`: a flush.
    #[inline]
    fn task(&self) -> Option<Task> {
        let backing = self.queue.backing();
        let (extent, op, route) = match self.op {
            Ok(Op::Read(extent, _)) => (extent, BioOp::Read, backing.read_route()),
            Ok(
                Op::Write { extent, fua, .. }
                | Op::WriteInline { extent, fua }
                | Op::WriteEager { extent, fua },
            ) => (extent, BioOp::Write { fua }, backing.write_route()),
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
            Ok(Op::Flush | Op::Size) | Err(_) => return None,
        };
        Some(Task { extent, op, route })
    }

    /// Returns whether its answer says that something is durable: a flush, or a write with FUA.
    #[inline]
    fn makes_durable(&self) -> bool {
        matches!(
            self.op,
            Ok(Op::Flush
                | Op::Write { fua: true, .. }
                | Op::WriteInline { fua: true, .. }
                | Op::WriteEager { fua: true, .. })
        )
    }

    /// Returns the blocks that it is about, if it is about any.
    pub(crate) fn extent(&self) -> Option<Extent> {
        Some(self.task()?.extent)
    }

    /// Returns whether the page cache has some of the blocks that it is about.
    pub(crate) fn is_cached(&self) -> bool {
        let file = self.queue.backing().file();
        self.task().is_some_and(|task| task.is_cached_in(file))
    }

    /// Remembers what was written back through pages so far, for [`Self::was_overtaken`].
    #[inline]
    pub(crate) fn look_for_rewrites(&mut self) {
        if self
            .task()
            .is_some_and(|task| task.replaces() && task.shares_pages())
        {
            self.rewritten = rewritten();
        }
    }

    /// Returns whether what was written past the page cache must be written again, through it.
    #[inline]
    fn was_overtaken(&self, task: Task) -> bool {
        task.is_cached_in(self.queue.backing().file())
            || (task.shares_pages() && rewritten() != self.rewritten)
    }

    /// Handles the end of a bio, or of those of all chunks of a write. Any context.
    pub(crate) fn bio_done(mut self: KBox<Self>, result: Result<(), DriveStatus>) {
        let queue = self.queue.clone();
        let task = self.task().filter(|task| task.replaces());
        if result.is_ok() && task.is_some_and(|task| self.was_overtaken(task)) {
            self.step = Step::Overtaken;
            return defer(self, queue.io_work());
        }
        // Too long for an interrupt handler.
        if result.is_ok() && self.bounces() && matches!(self.op, Ok(Op::Read(..))) {
            self.step = Step::Bounce;
            return defer(self, queue.io_work());
        }
        queue.finish(self, result);
    }
}

impl Queue {
    /// Begins the drive's part of a request that has its buffers and, for a
    /// write, its data. Process context.
    pub(crate) fn begin(&self, mut io: KBox<Io>) {
        io.marks.enter_drive();
        io.step = Step::Start;
        io.cached = false;
        io.met_pages = false;
        match io.task() {
            Some(task) if self.enter_cache(&mut io, task.op, task.extent) => {
                self.answer(io, Status::Ok);
            }
            task => {
                // Before it is looked whether there are pages.
                io.look_for_rewrites();
                trace::target::drive_start(|| io.about());
                self.to_drive(io, task);
            }
        }
    }

    #[inline]
    fn to_drive(&self, mut io: KBox<Io>, task: Option<Task>) {
        let backing = self.backing();
        match task {
            Some(task) => match task.route {
                Route::Device if !task.is_cached_in(backing.file()) => {
                    if task.op == BioOp::Read && io.chunks.is_some() {
                        return self.read_chunks(io);
                    }
                    io.bounce_to_drive();
                    self.submit(io, task.op, task.extent.offset);
                }
                Route::Cache if task.op == BioOp::Read && backing.file().can_now() => {
                    io.cached = true;
                    match transfer(io, FileOp::Read, FileAccess::CachedNow, task.extent.offset) {
                        Some((io, Ok(()))) => self.finish(io, Ok(())),
                        Some((io, Err(_))) => defer(io, self.io_work()),
                        None => {}
                    }
                }
                _ => {
                    io.leave_peer();
                    defer(io, self.io_work());
                }
            },
            None if backing.write_route() == Route::Device => self.submit(io, BioOp::Flush, 0),
            None => defer(io, self.io_work()),
        }
    }

    fn submit(&self, io: KBox<Io>, op: BioOp, offset: u64) {
        if let Err((_, io)) = submit(io, op, offset >> 9) {
            self.finish(io, Err(DriveStatus::IoErr));
        }
    }

    /// Continues what [`Self::begin`] deferred to the workqueue. May sleep.
    fn run_deferred(&self, mut io: KBox<Io>) {
        let Some(task) = io.task() else {
            let synced = self.backing().file().sync();
            let result = self.check_wb_err().and(synced);
            return self.finish_file(io, result);
        };
        let (file, offset) = (self.backing().file(), task.extent.offset);
        let length = task.extent.length as usize;
        io.met_pages = task.route != Route::Cache && task.is_cached_in(file);
        match (task.op, task.route) {
            (BioOp::Discard { .. }, Route::Device) => {
                // What is left there is as good as anything.
                let _ = file.write_back(offset, length);
                // Pages that it has in part were written whole.
                REWRITTEN.fetch_add(1, Full);
                let _ = file.drop_pages(offset, length);
                self.submit(io, task.op, offset);
            }
            (BioOp::Discard { .. } | BioOp::WriteZeroes { .. }, _) => self.empty(io, task),
            (BioOp::Write { .. }, Route::Device | Route::File) if io.met_pages => {
                self.write_through(io, task);
            }
            (_, Route::Device) => match file.write_back(offset, length) {
                Ok(()) => self.submit(io, task.op, offset),
                Err(e) => self.finish_file(io, Err(e)),
            },
            // The file system writes back what it must before it reads.
            (_, Route::File | Route::Cache) => self.transfer(io, task),
        }
    }

    /// Empties blocks, those in the page cache, too.
    fn empty(&self, io: KBox<Io>, task: Task) {
        let keep = matches!(task.op, BioOp::WriteZeroes { no_unmap: true, .. });
        let (offset, length) = (task.extent.offset, task.extent.length as usize);
        // File systems write back and drop the pages that it has in part.
        REWRITTEN.fetch_add(1, Full);
        let result = self.backing().file().empty(offset, length, keep);
        REWRITTEN.fetch_add(1, Full);
        self.finish_file(io, result);
    }

    fn transfer(&self, mut io: KBox<Io>, task: Task) {
        io.cached = task.route == Route::Cache;
        let done = transfer(io, task.file_op(), task.route.way(), task.extent.offset);
        if let Some((io, result)) = done {
            self.transferred(io, task, result);
        }
    }

    /// Handles the end of direct or cached I/O of a file. May sleep.
    fn transferred(&self, io: KBox<Io>, task: Task, result: Result) {
        let direct = task.route == Route::File && task.replaces();
        if result.is_ok() && direct && io.was_overtaken(task) {
            return self.write_through(io, task);
        }
        let result = match task.op {
            BioOp::Write { fua: true } if task.route == Route::Cache => {
                self.check_wb_err().and(result)
            }
            _ => result,
        };
        self.finish_file(io, result);
    }

    /// Writes through the page cache to the drive, and drops the pages.
    fn write_through(&self, io: KBox<Io>, task: Task) {
        let (file, offset) = (self.backing().file(), task.extent.offset);
        let length = task.extent.length as usize;
        let Some((mut io, result)) = transfer(io, task.file_op(), FileAccess::Cached, offset)
        else {
            return;
        };
        io.met_pages = true;
        let result = result.and_then(|()| file.write_back(offset, length));
        REWRITTEN.fetch_add(1, Full);
        // Those that somebody uses stay; they are right.
        let _ = file.drop_pages(offset, length);
        self.finish_file(io, result);
    }

    /// Returns the error of a write-back that has failed since the session got the last one.
    fn check_wb_err(&self) -> Result {
        self.session().write_errors().check_wb_err(self.backing())
    }

    fn finish_file(&self, io: KBox<Io>, result: Result) {
        self.finish(io, result.map_err(DriveStatus::from_error));
    }

    /// Answers by what became of the drive's part. Any context.
    pub(crate) fn finish(&self, mut io: KBox<Io>, result: Result<(), DriveStatus>) {
        let mut status = match result {
            Ok(()) => Status::Ok,
            Err(DriveStatus::NoSpace) => Status::NoSpace,
            Err(DriveStatus::Medium) => Status::Medium,
            Err(DriveStatus::NotSupported) => Status::Unsupported,
            Err(_) => Status::IoError,
        };
        if io.makes_durable() {
            (status, io.flush_error) = self.session().write_errors().end_flush(status);
        }
        trace::target::drive_end(|| io.about().ended(status as i32));
        self.answer(io, status);
    }
}

impl Deferred for Io {
    fn run(mut self: KBox<Self>) {
        let queue = self.queue.clone();
        match (self.step, self.task()) {
            (Step::Bounce, _) => {
                self.bounce_to_wire();
                queue.finish(self, Ok(()));
            }
            (Step::Finished(result), Some(task)) => queue.transferred(self, task, result),
            (Step::Overtaken, Some(task)) => {
                self.leave_peer();
                match task.op {
                    BioOp::WriteZeroes { .. } => queue.empty(self, task),
                    _ => queue.write_through(self, task),
                }
            }
            _ => queue.run_deferred(self),
        }
    }
}

impl FileOwner for Io {
    fn file(&self) -> FileRef<'_> {
        self.queue.backing().file()
    }

    fn completed(mut self: KBox<Self>, result: Result) {
        let queue = self.queue.clone();
        self.step = Step::Finished(result);
        defer(self, queue.io_work());
    }
}
