// SPDX-License-Identifier: GPL-2.0

//! Tracepoints: the events of sessions, queues and requests that users of the kernel's
//! tracing see. `docs/reference/tracing.md` lists the events and their fields.
//!
//! Each function may be called in any context. An event that is not enabled costs a
//! branch that the kernel has patched out: a closure makes the event's fields, and it
//! is called only while the event is enabled.
//!
//! C headers: `c/trace_initiator.h`, `c/trace_target.h`, with
//! [`include/linux/tracepoint.h`](srctree/include/linux/tracepoint.h). The
//! kernel's `declare_trace!` looks for tracepoints among the kernel's own
//! bindings, so there is a macro here.

use crate::{
    bindings,
    proto::message::{
        Op,
        ResponseKind,
        Tag, //
    },
};
use kernel::{
    macros::paste,
    prelude::*, //
};

/// The path of a request's data (the field `way`), with the numbers of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DataPath {
    /// There is no data, or its path is not decided yet.
    None = 0,
    /// With a key.
    Key = 1,
    /// With a key, and an immediate value as the response.
    Immediate = 2,
    /// After the request, in its message.
    Inline = 3,
    /// In the eager ring.
    Eager = 4,
}

/// The kind of a request, with the numbers of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A message that could not be understood.
    Bad = 0,
    /// Volume to initiator.
    Read = 1,
    /// Initiator to volume.
    Write = 2,
    /// Makes acknowledged writes durable.
    Flush = 3,
    /// Blocks are not needed any more.
    Discard = 4,
    /// Makes blocks read as zeroes.
    WriteZeroes = 5,
    /// Nothing but a response.
    Nop = 6,
}

/// Where the target has data while it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Memory {
    /// There is no data, or its place is not decided yet; always so at the initiator.
    None = 0,
    /// In RAM.
    Ram = 1,
    /// In the memory of a PCI device, which drive and HCA reach.
    Peer = 2,
    /// In peer memory for the drive, and in RAM for the HCA: a processor copies it.
    Bounced = 3,
}

impl Memory {
    /// Returns where data is: in RAM if `mapped` is `None`, otherwise in peer memory, which the HCA
    /// reaches if it is `true`.
    #[inline]
    pub fn from_mapped(mapped: Option<bool>) -> Self {
        match mapped {
            None => Self::Ram,
            Some(true) => Self::Peer,
            Some(false) => Self::Bounced,
        }
    }
}

/// An event's description of a request.
#[derive(Clone, Copy)]
pub struct TracedRequest {
    /// The session's id.
    pub session: u64,
    /// The queue pair's number within it.
    pub queue: u8,
    /// The request's tag on the wire.
    pub tag: Tag,
    /// The operation.
    pub kind: Kind,
    /// How its data travels.
    pub way: DataPath,
    /// An eager write's number; else 0.
    pub number: u16,
    /// Bytes from the start of the volume.
    pub offset: u64,
    /// Bytes.
    pub bytes: u32,
    /// The result, as a negative errno; 0: success, or not yet known.
    pub status: i32,
    /// Where the target has its data.
    pub memory: Memory,
}

impl TracedRequest {
    /// Describes a request as its message does.
    #[inline]
    pub fn from_op(session: u64, queue: u8, tag: Tag, op: Option<&Op>) -> Self {
        let keyed = |response| match response {
            ResponseKind::Immediate => DataPath::Immediate,
            ResponseKind::Message | ResponseKind::Invalidating => DataPath::Key,
        };
        let (kind, way, extent) = match op {
            None => (Kind::Bad, DataPath::None, None),
            Some(Op::Read(extent, remote)) => (Kind::Read, keyed(remote.response), Some(extent)),
            Some(Op::Write { extent, .. }) => (Kind::Write, DataPath::Key, Some(extent)),
            Some(Op::WriteInline { extent, .. }) => (Kind::Write, DataPath::Inline, Some(extent)),
            Some(Op::WriteEager { extent, .. }) => (Kind::Write, DataPath::Eager, Some(extent)),
            Some(Op::Flush) => (Kind::Flush, DataPath::None, None),
            Some(Op::Discard(extent)) => (Kind::Discard, DataPath::None, Some(extent)),
            Some(Op::WriteZeroes { extent, .. }) => {
                (Kind::WriteZeroes, DataPath::None, Some(extent))
            }
            Some(Op::Nop) => (Kind::Nop, DataPath::None, None),
        };
        Self {
            session,
            queue,
            tag,
            kind,
            way,
            number: 0,
            offset: extent.map_or(0, |extent| extent.offset),
            bytes: extent.map_or(0, |extent| extent.length),
            status: 0,
            memory: Memory::None,
        }
    }

    /// Adds the result of the request.
    #[inline]
    pub fn ended(self, status: i32) -> Self {
        Self { status, ..self }
    }
}

impl From<TracedRequest> for bindings::hcablk_trace_request {
    fn from(request: TracedRequest) -> Self {
        Self {
            session: request.session,
            sector: request.offset >> 9,
            bytes: request.bytes,
            status: request.status,
            queue: request.queue.into(),
            tag: request.tag.index,
            generation: request.tag.generation,
            number: request.number,
            op: request.kind as u8,
            way: request.way as u8,
            memory: request.memory as u8,
        }
    }
}

/// An event's description of a chunk, a part of a large request's data.
#[derive(Clone, Copy)]
pub struct Chunk {
    /// The session's id.
    pub session: u64,
    /// The queue pair's number within it.
    pub queue: u8,
    /// The tag of its request on the wire.
    pub tag: Tag,
    /// The operation.
    pub kind: Kind,
    /// Bytes from the start of the volume.
    pub offset: u64,
    /// Bytes from the beginning of the request's data.
    pub from: u32,
    /// Bytes.
    pub bytes: u32,
    /// Where the target has its data.
    pub memory: Memory,
    /// The result, as a negative errno; 0: success, or not yet known.
    pub status: i32,
}

impl Chunk {
    /// Adds the result of the chunk.
    #[inline]
    pub fn ended(self, status: i32) -> Self {
        Self { status, ..self }
    }
}

impl From<Chunk> for bindings::hcablk_trace_chunk {
    fn from(chunk: Chunk) -> Self {
        Self {
            session: chunk.session,
            sector: chunk.offset >> 9,
            offset: chunk.from,
            bytes: chunk.bytes,
            status: chunk.status,
            queue: chunk.queue.into(),
            tag: chunk.tag.index,
            generation: chunk.tag.generation,
            op: chunk.kind as u8,
            memory: chunk.memory as u8,
        }
    }
}

/// The new state of a session or a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ConnectionState {
    /// It is being connected.
    Connecting = 0,
    /// Requests may come.
    Live = 1,
    /// It is being taken down.
    Ending = 2,
    /// Nothing is left of it.
    Ended = 3,
}

/// An event's description of a session or a queue pair.
#[derive(Clone, Copy)]
pub struct Change {
    /// The session's id.
    pub session: u64,
    /// Its epoch.
    pub epoch: u32,
    /// The queue pair's number, if it is about one.
    pub queue: Option<u8>,
    /// The state that it has reached.
    pub state: ConnectionState,
    /// The reason, as a negative errno; 0: no error, or not known.
    pub error: i32,
}

impl From<Change> for bindings::hcablk_trace_state {
    fn from(change: Change) -> Self {
        Self {
            session: change.session,
            epoch: change.epoch,
            error: change.error,
            queue: change.queue.map_or(u16::MAX, u16::from),
            state: change.state as u8,
        }
    }
}

/// An event's description of a disk or one of its paths.
#[derive(Clone, Copy)]
pub struct DiskChange<'a> {
    /// The disk's name in configfs.
    pub disk: &'a CStr,
    /// The path's number, if it is about one.
    pub path: Option<u8>,
    /// The new state, as in its attribute `state`.
    pub state: &'static CStr,
    /// The reason, as a negative errno; 0: no error.
    pub error: i32,
}

impl From<DiskChange<'_>> for bindings::hcablk_trace_disk {
    fn from(change: DiskChange<'_>) -> Self {
        Self {
            disk: change.disk.as_char_ptr(),
            state: change.state.as_char_ptr(),
            error: change.error,
            path: change.path.map_or(u16::MAX, u16::from),
        }
    }
}

/// An event's description of writes that a target has lost.
#[derive(Clone, Copy)]
pub struct LostWrites<'a> {
    /// The disk's name in configfs.
    pub disk: &'a CStr,
    /// Whether flushes fail from now on, or succeed again.
    pub lost: bool,
}

impl From<LostWrites<'_>> for bindings::hcablk_trace_lost_writes {
    fn from(change: LostWrites<'_>) -> Self {
        Self {
            disk: change.disk.as_char_ptr(),
            lost: change.lost.into(),
        }
    }
}

/// Makes the function that emits one event, from the names of its tracepoint's key and function.
macro_rules! event {
    ($(#[$doc:meta])* $name:ident $(<$life:lifetime>)? ($what:ty): $point:ident, $trace:ident) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name$(<$life>)?(make: impl FnOnce() -> $what) {
            #[cold]
            fn emit$(<$life>)?(what: $what) {
                let what = what.into();
                // SAFETY: The tracepoint reads the structure while it is called.
                unsafe { bindings::$trace(&what) };
            }

            // SAFETY: It is the static key of a tracepoint that `c/trace.c` defines.
            let wanted = unsafe {
                static_branch_unlikely!(bindings::$point, bindings::tracepoint, key)
            };
            if wanted {
                emit(make());
            }
        }
    };
}

/// Makes the module of one side's events: those of requests, of chunks and of disks that are
/// listed, and those of sessions and queue pairs, which both sides have. A tracepoint's name is the
/// prefix and the name of its event.
macro_rules! events {
    (
        $(#[$mod_doc:meta])* mod $side:ident, prefix $prefix:ident;
        requests { $($(#[$doc:meta])* $name:ident;)* }
        chunks { $($(#[$chunk_doc:meta])* $chunk:ident;)* }
        disks { $($(#[$disk_doc:meta])* $disk:ident;)* }
        losses { $($(#[$loss_doc:meta])* $loss:ident;)* }
    ) => {
        paste! {
            $(#[$mod_doc])*
            pub mod $side {
                use super::{
                    bindings,
                    Change,
                    TracedRequest, //
                };
                use kernel::jump_label::static_branch_unlikely;

                $(event! {
                    $(#[$doc])*
                    $name(TracedRequest): [<__tracepoint_ $prefix $name>], [<rust_do_trace_ $prefix $name>]
                })*
                event! {
                    /// Reports that a session has reached a state.
                    session(Change): [<__tracepoint_ $prefix session>], [<rust_do_trace_ $prefix session>]
                }
                event! {
                    /// Reports that a queue pair has reached a state.
                    queue(Change): [<__tracepoint_ $prefix queue>], [<rust_do_trace_ $prefix queue>]
                }
                $(event! {
                    $(#[$chunk_doc])*
                    $chunk(super::Chunk): [<__tracepoint_ $prefix $chunk>], [<rust_do_trace_ $prefix $chunk>]
                })*
                $(event! {
                    $(#[$disk_doc])*
                    $disk<'a>(super::DiskChange<'a>): [<__tracepoint_ $prefix $disk>], [<rust_do_trace_ $prefix $disk>]
                })*
                $(event! {
                    $(#[$loss_doc])*
                    $loss<'a>(super::LostWrites<'a>): [<__tracepoint_ $prefix $loss>], [<rust_do_trace_ $prefix $loss>]
                })*
            }
        }
    };
}

events! {
    /// The events of the initiator.
    mod initiator, prefix hcablk_;

    requests {
        /// Reports that the block layer has handed over a request, once more if it had to wait.
        queued;
        /// Reports that a request is about to be given to the HCA, or to wait for its doorbell.
        sent;
        /// Reports that the target's response has arrived.
        answered;
        /// Reports that a request ends: no peer can reach its memory any more.
        completed;
    }
    chunks {}
    disks {
        /// Reports that a disk has reached a state.
        disk;
        /// Reports that a path of a disk has reached a state.
        path;
    }
    losses {
        /// Reports that flushes of a disk fail since its target has lost writes, or succeed again.
        lost_writes;
    }
}

events! {
    /// The events of the target.
    mod target, prefix hcablk_target_;

    requests {
        /// Reports that a request has arrived.
        received;
        /// Reports that a request is handed to the drive, to a file or to the page cache.
        drive_start;
        /// Reports that the drive, the file or the page cache has finished it.
        drive_end;
        /// Reports that the response is about to be given to the HCA.
        answered;
        /// Reports that the completion of the response's send was found.
        completed;
    }
    chunks {
        /// Reports that a chunk is handed to the drive.
        chunk_drive_start;
        /// Reports that the drive has finished it.
        chunk_drive_end;
        /// Reports that the RDMA READ or WRITE of its data is about to be given to the HCA.
        chunk_posted;
        /// Reports that the completion of that was found.
        chunk_completed;
    }
    disks {}
    losses {}
}

/// Returns whether the event for completions of chunks is enabled: otherwise the completion of a
/// chunk's RDMA WRITE is not requested.
#[inline(always)]
pub fn wants_chunk_completions() -> bool {
    use kernel::jump_label::static_branch_unlikely;
    // SAFETY: It is the static key of a tracepoint that `c/trace.c` defines.
    unsafe {
        static_branch_unlikely!(
            bindings::__tracepoint_hcablk_target_chunk_completed,
            bindings::tracepoint,
            key
        )
    }
}
