// SPDX-License-Identifier: GPL-2.0

//! Queues, and the requests on them.

use crate::{
    error::{code_of, fail, request_failed},
    CMemory, CVolume,
};
use libhcablk::{Buffer, Completed, Notice, Queue, Request, RequestError};
use nix::errno::Errno;
use std::{
    collections::VecDeque,
    ffi::{c_int, c_uint, c_void},
    os::fd::AsRawFd as _,
    ptr::null_mut,
    slice,
    time::Duration,
};

const READ: u32 = 1;
const WRITE: u32 = 2;
const FLUSH: u32 = 3;
const DISCARD: u32 = 4;
const ZEROES: u32 = 5;

const FUA: u32 = 1;
const EVENT: u32 = 2;
const KEEP: u32 = 4;

/// The number of lists of pieces that a queue keeps for later requests, and the capacity of the largest.
const LISTS: usize = 1024;
const LIST: usize = 64;

/// The longest single wait of an unlimited wait.
const LONG: Duration = Duration::from_secs(3600);

/// `struct hcablk_piece`.
#[repr(C)]
pub struct CPiece {
    memory: *const CMemory,
    offset: usize,
    length: usize,
}

/// `struct hcablk_request`.
#[repr(C)]
pub struct CRequest {
    op: u32,
    flags: u32,
    offset: u64,
    length: u64,
    pieces: *const CPiece,
    count: usize,
    flag: *mut u32,
    user_data: u64,
}

/// `struct hcablk_completion`.
#[repr(C)]
pub struct CCompletion {
    user_data: u64,
    error: i32,
    reserved: u32,
}

/// The flag and the number that the program has set for a request.
#[derive(Clone, Copy)]
struct PendingRequest {
    flag: *mut u32,
    user_data: u64,
}

/// `struct hcablk_queue`.
pub struct CQueue {
    queue: Queue,
    /// The flags and numbers that the program has set, by the number of the request in the queue.
    pending: Vec<PendingRequest>,
    free: Vec<usize>,
    /// Empty lists of pieces of earlier requests. A later request with no more pieces than such a
    /// list allocates nothing.
    lists: Vec<Vec<Buffer>>,
    /// Completions that the program has not yet polled.
    ended: VecDeque<CCompletion>,
}

impl CQueue {
    fn new(queue: Queue) -> Self {
        Self {
            queue,
            pending: Vec::new(),
            free: Vec::new(),
            lists: Vec::new(),
            ended: VecDeque::new(),
        }
    }

    /// Keeps the list of pieces of a request that has ended, for a later request. The memory
    /// belongs to the program again.
    fn keep(&mut self, mut list: Vec<Buffer>) {
        list.clear();
        if (1..=LIST).contains(&list.capacity()) && self.lists.len() < LISTS {
            self.lists.push(list);
        }
    }

    fn remember(&mut self, pending: PendingRequest) -> usize {
        let place = self.free.pop().unwrap_or(self.pending.len());
        match self.pending.get_mut(place) {
            Some(free) => *free = pending,
            None => self.pending.push(pending),
        }
        place
    }

    /// Adds a request. [`request`] describes its memory.
    ///
    /// # Safety
    ///
    /// As [`request`]'s; and the flag of `asked` is null, or may be written to until the request has ended.
    unsafe fn add(&mut self, requested: &CRequest) -> Result<(), (Errno, &'static str)> {
        // SAFETY: By the safety requirement.
        let request = unsafe { request(requested, &mut self.lists) }?;
        let place = self.remember(PendingRequest {
            flag: requested.flag,
            user_data: requested.user_data,
        });
        match self.queue.prepare(request.user_data(place as u64)) {
            Ok(()) => Ok(()),
            Err(refused) => {
                self.free.push(place);
                let (error, _) = *refused;
                Err(match error {
                    RequestError::Invalid(why) => (Errno::EINVAL, why),
                    RequestError::OutOfRange => {
                        (Errno::EIO, "the request goes beyond the end of the volume")
                    }
                    error => (error.errno(), "the volume cannot do this"),
                })
            }
        }
    }

    /// Sets the flags of ended requests, and returns as many completions as there is room for.
    fn report(&mut self, completions: &mut [CCompletion]) -> c_int {
        while let Some(completed) = self.queue.completed() {
            let Completed {
                user_data,
                result,
                memory,
            } = completed;
            self.keep(memory);
            let at = usize::try_from(user_data).unwrap_or(usize::MAX);
            let Some(&PendingRequest { flag, user_data }) = self.pending.get(at) else {
                continue;
            };
            self.free.push(at);
            self.ended.push_back(CCompletion {
                user_data,
                error: result.map_or_else(code_of, |()| 0),
                reserved: 0,
            });
            // SAFETY: By the contract of `hcablk_submit()` it may be written to until now.
            if let Some(flag) = unsafe { flag.as_mut() } {
                *flag = 1;
            }
        }
        let mut count = 0;
        for place in completions {
            let Some(completion) = self.ended.pop_front() else {
                break;
            };
            *place = completion;
            count += 1;
        }
        count
    }
}

/// Converts a request to that of the library.
///
/// # Safety
///
/// The pieces and their memory exist; nobody else writes the memory, nor reads it if this request writes it, until the
/// request has ended.
unsafe fn request(
    requested: &CRequest,
    lists: &mut Vec<Vec<Buffer>>,
) -> Result<Request, (Errno, &'static str)> {
    let pieces = match requested.count {
        0 => &[],
        _ if requested.pieces.is_null() => return Err((Errno::EINVAL, "its pieces are null")),
        // SAFETY: By the safety requirement.
        count => unsafe { slice::from_raw_parts(requested.pieces, count) },
    };
    let mut memory = match pieces.len() {
        0 => Vec::new(),
        _ => lists.pop().unwrap_or_default(),
    };
    memory.reserve(pieces.len());
    for piece in pieces {
        // SAFETY: By the safety requirement.
        let buffer = unsafe { part(piece) };
        memory.push(buffer.ok_or((Errno::EINVAL, "a piece is not in its memory"))?);
    }
    let (offset, length) = (requested.offset, requested.length);
    let request = match requested.op {
        READ => Request::read_scattered(offset, memory),
        WRITE => Request::write_gathered(offset, memory),
        FLUSH => Request::flush(),
        DISCARD => Request::discard(offset, length),
        ZEROES => Request::zeroes(offset, length, requested.flags & KEEP != 0),
        _ => return Err((Errno::EINVAL, "there is no such operation")),
    };
    let known = match requested.op {
        WRITE => FUA | EVENT,
        ZEROES => KEEP | EVENT,
        _ => EVENT,
    };
    if requested.flags & !known != 0 {
        return Err((Errno::EINVAL, "the operation has no such flag"));
    }
    let request = match requested.flags & FUA {
        0 => request,
        _ => request.fua(),
    };
    Ok(request.notice(match requested.flags & EVENT {
        0 => Notice::Polled,
        _ => Notice::Event,
    }))
}

/// Returns the memory of a piece; `None`: the piece is outside of its memory.
///
/// # Safety
///
/// As that of [`request`].
unsafe fn part(piece: &CPiece) -> Option<Buffer> {
    // SAFETY: By the safety requirement.
    let memory = unsafe { piece.memory.as_ref() }?;
    let end = piece.offset.checked_add(piece.length)?;
    // SAFETY: By the safety requirement.
    unsafe { memory.buffer.alias(piece.offset..end) }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_queue_take(volume: *mut CVolume) -> *mut CQueue {
    // SAFETY: By the contract of the header.
    let queue = unsafe { crate::of_volume(volume, None, libhcablk::Volume::take_queue) };
    let Some(queue) = queue else {
        fail(Errno::EBUSY, "all queues of the volume were taken");
        return null_mut();
    };
    Box::into_raw(Box::new(CQueue::new(queue)))
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_queue_free(queue: *mut CQueue) {
    if !queue.is_null() {
        // SAFETY: By the contract of the header it is from `hcablk_queue_take()`, and nobody uses it any more.
        drop(unsafe { Box::from_raw(queue) });
    }
}

/// Calls `f` with a queue.
///
/// # Safety
///
/// It is null, or a queue that nobody else uses.
unsafe fn with(queue: *mut CQueue, f: impl FnOnce(&mut CQueue) -> c_int) -> c_int {
    // SAFETY: By the safety requirement.
    match unsafe { queue.as_mut() } {
        Some(queue) => f(queue),
        None => fail(Errno::EINVAL, "the queue is null"),
    }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_submit(
    queue: *mut CQueue,
    requests: *const CRequest,
    count: c_uint,
) -> c_int {
    let submit = |queue: &mut CQueue| {
        if requests.is_null() && count != 0 {
            return fail(Errno::EINVAL, "the requests are null");
        }
        let mut submitted = 0;
        let mut error = None;
        for at in 0..count {
            // SAFETY: By the contract of the header there are this many.
            let asked = unsafe { &*requests.add(at as usize) };
            // SAFETY: By the contract of the header.
            if let Err(refused) = unsafe { queue.add(asked) } {
                error = Some(refused);
                break;
            }
            submitted += 1;
        }
        queue.queue.ring();
        match error.map(|(errno, why)| fail(errno, why)) {
            Some(code) if submitted == 0 => code,
            _ => submitted,
        }
    };
    // SAFETY: By the contract of the header.
    unsafe { with(queue, submit) }
}

/// Returns the places for completions.
///
/// # Safety
///
/// There are `most` of them, or it is null.
unsafe fn places<'a>(completions: *mut CCompletion, most: c_uint) -> &'a mut [CCompletion] {
    match completions.is_null() {
        true => &mut [],
        // SAFETY: By the safety requirement.
        false => unsafe { slice::from_raw_parts_mut(completions, most as usize) },
    }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_poll(
    queue: *mut CQueue,
    completions: *mut CCompletion,
    most: c_uint,
) -> c_int {
    let poll = |queue: &mut CQueue| {
        queue.queue.poll();
        // SAFETY: By the contract of the header.
        queue.report(unsafe { places(completions, most) })
    };
    // SAFETY: By the contract of the header.
    unsafe { with(queue, poll) }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_wait(
    queue: *mut CQueue,
    completions: *mut CCompletion,
    most: c_uint,
    timeout_ms: c_int,
) -> c_int {
    let wait = |queue: &mut CQueue| {
        match u64::try_from(timeout_ms) {
            // Requests that have ended already are reported at once.
            _ if !queue.ended.is_empty() => {}
            Ok(ms) => {
                queue.queue.wait(Duration::from_millis(ms));
            }
            Err(_) => while queue.queue.in_flight() != 0 && queue.queue.wait(LONG) == 0 {},
        }
        // SAFETY: By the contract of the header.
        queue.report(unsafe { places(completions, most) })
    };
    // SAFETY: By the contract of the header.
    unsafe { with(queue, wait) }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_fd(queue: *mut CQueue) -> c_int {
    let fd = |queue: &mut CQueue| queue.queue.fd().as_raw_fd();
    // SAFETY: By the contract of the header.
    unsafe { with(queue, fd) }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_arm(queue: *mut CQueue) -> c_int {
    let arm = |queue: &mut CQueue| {
        let ended = queue.queue.arm() + queue.ended.len();
        c_int::try_from(ended).unwrap_or(c_int::MAX)
    };
    // SAFETY: By the contract of the header.
    unsafe { with(queue, arm) }
}

/// Returns the result of a synchronous call.
fn done(result: Result<(), RequestError>) -> c_int {
    result.map_or_else(request_failed, |()| 0)
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_read(
    queue: *mut CQueue,
    bytes: *mut c_void,
    length: usize,
    offset: u64,
) -> c_int {
    let read = |queue: &mut CQueue| {
        if bytes.is_null() {
            return fail(Errno::EINVAL, "the memory is null");
        }
        // SAFETY: By the contract of the header there are this many bytes, which nobody else uses.
        let bytes = unsafe { slice::from_raw_parts_mut(bytes.cast(), length) };
        done(queue.queue.read_at(bytes, offset))
    };
    // SAFETY: By the contract of the header.
    unsafe { with(queue, read) }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_write(
    queue: *mut CQueue,
    bytes: *const c_void,
    length: usize,
    offset: u64,
) -> c_int {
    let write = |queue: &mut CQueue| {
        if bytes.is_null() {
            return fail(Errno::EINVAL, "the memory is null");
        }
        // SAFETY: By the contract of the header there are this many bytes, to which nobody writes.
        let bytes = unsafe { slice::from_raw_parts(bytes.cast(), length) };
        done(queue.queue.write_at(bytes, offset))
    };
    // SAFETY: By the contract of the header.
    unsafe { with(queue, write) }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_flush(queue: *mut CQueue) -> c_int {
    // SAFETY: By the contract of the header.
    unsafe { with(queue, |queue| done(queue.queue.flush())) }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_discard(queue: *mut CQueue, offset: u64, length: u64) -> c_int {
    let request = Request::discard(offset, length);
    // SAFETY: By the contract of the header.
    unsafe { with(queue, |queue| done(queue.queue.execute(request).result)) }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_zeroes(
    queue: *mut CQueue,
    offset: u64,
    length: u64,
    flags: u32,
) -> c_int {
    if flags & !KEEP != 0 {
        return fail(Errno::EINVAL, "there is no such flag");
    }
    let request = Request::zeroes(offset, length, flags & KEEP != 0);
    // SAFETY: By the contract of the header.
    unsafe { with(queue, |queue| done(queue.queue.execute(request).result)) }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_wait_by_events(queue: *mut CQueue, by_events: bool) {
    // SAFETY: By the contract of the header.
    if let Some(queue) = unsafe { queue.as_mut() } {
        queue.queue.set_notice(match by_events {
            true => Notice::Event,
            false => Notice::Polled,
        });
    }
}
