// SPDX-License-Identifier: GPL-2.0

//! Requests of an application, and how they end.

use crate::{failure::RequestError, verbs::memory::Buffer};
use std::sync::{
    atomic::{AtomicBool, Ordering},
    Arc,
};

/// How the application learns that a request has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notice {
    /// The application polls: [`Queue::poll`](crate::Queue::poll). The response raises no event.
    #[default]
    Polled,
    /// An event: the queue's descriptor becomes readable.
    Event,
}

/// A flag in the application's memory, which is set when a request has ended.
#[derive(Clone, Debug, Default)]
pub struct Flag(Arc<AtomicBool>);

impl Flag {
    /// Makes a flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether a request with this flag has ended.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Clears the flag, for the next request.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Read,
    Write { fua: bool },
    Flush,
    Discard { length: u64 },
    Zeroes { length: u64, keep: bool },
}

/// A request. Its memory moves into it, and is returned with [`Completed`].
///
/// Once a queue has had its largest number of concurrent requests, it allocates nothing for a request. The only
/// allocation left is the list of pieces, which [`Self::read`] and [`Self::write`] make: a program that passes a
/// returned list to [`Self::read_scattered`] and [`Self::write_gathered`] avoids it.
#[derive(Debug)]
pub struct Request {
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) memory: Vec<Buffer>,
    pub(crate) notice: Notice,
    pub(crate) flag: Option<Flag>,
    pub(crate) user_data: u64,
    /// Whether a synchronous call waits for it.
    pub(crate) is_awaited: bool,
}

impl Request {
    fn new(op: Op, offset: u64, memory: Vec<Buffer>) -> Self {
        Self {
            op,
            offset,
            memory,
            notice: Notice::Polled,
            flag: None,
            user_data: 0,
            is_awaited: false,
        }
    }

    /// Reads from `offset` on, as many bytes as `memory` has.
    pub fn read(offset: u64, memory: Buffer) -> Self {
        Self::new(Op::Read, offset, vec![memory])
    }

    /// Writes the bytes of `memory` from `offset` on.
    pub fn write(offset: u64, memory: Buffer) -> Self {
        Self::new(Op::Write { fua: false }, offset, vec![memory])
    }

    /// As [`Self::read`], to several pieces of memory, one after the other. Together they have whole blocks;
    /// each may have any length.
    pub fn read_scattered(offset: u64, memory: Vec<Buffer>) -> Self {
        Self::new(Op::Read, offset, memory)
    }

    /// As [`Self::write`], of several pieces.
    pub fn write_gathered(offset: u64, memory: Vec<Buffer>) -> Self {
        Self::new(Op::Write { fua: false }, offset, memory)
    }

    /// Makes all writes durable that were acknowledged before this is submitted, on any queue.
    pub fn flush() -> Self {
        Self::new(Op::Flush, 0, Vec::new())
    }

    /// Declares that the content of `length` bytes from `offset` on is not needed any more.
    pub fn discard(offset: u64, length: u64) -> Self {
        Self::new(Op::Discard { length }, offset, Vec::new())
    }

    /// Makes `length` bytes from `offset` on read as zeroes; with `keep` their blocks stay allocated.
    pub fn zeroes(offset: u64, length: u64, keep: bool) -> Self {
        Self::new(Op::Zeroes { length, keep }, offset, Vec::new())
    }

    /// Makes the acknowledgement of a write wait until the write is durable. Does not change other requests.
    #[must_use]
    pub fn fua(mut self) -> Self {
        if let Op::Write { fua } = &mut self.op {
            *fua = true;
        }
        self
    }

    /// Sets how the application learns that the request has ended.
    #[must_use]
    pub fn notice(self, notice: Notice) -> Self {
        Self { notice, ..self }
    }

    /// Makes the end of the request set `flag`.
    #[must_use]
    pub fn flag(self, flag: &Flag) -> Self {
        Self {
            flag: Some(flag.clone()),
            ..self
        }
    }

    /// Sets a number that is returned with the completed request.
    #[must_use]
    pub fn user_data(self, user_data: u64) -> Self {
        Self { user_data, ..self }
    }
}

/// A request that has ended.
#[derive(Debug)]
pub struct Completed {
    /// The number that was set with [`Request::user_data`].
    pub user_data: u64,
    /// The result. After a failure the memory of a read has undefined content, and a write may have been carried out in
    /// part.
    pub result: Result<(), RequestError>,
    /// Its memory.
    pub memory: Vec<Buffer>,
}
