// SPDX-License-Identifier: GPL-2.0

//! Describes a fault of a queue pair, or of a message that it received: one line for people, one
//! error code for programs.

use super::{
    chunks::Failure,
    queue::{
        kind,
        Queue, //
    },
    request::TargetRequest, //
};
use core::{
    ffi::CStr,
    fmt, //
};
use hcablk_core::{
    broken,
    proto::message::{
        Handle,
        Op,
        Tag, //
    },
    rdma::cq::Completion,
    sync::atomic::{
        Acquire,
        Atomic,
        Relaxed, //
    },
    system::errno, //
};
use kernel::prelude::*;

/// The request that a fault is about: its tag, and its key or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) tag: Tag,
    pub(crate) key: u32,
}

/// A fault of a queue pair, or of a message that it received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The initiator, or its host, has closed the connection.
    Disconnected,
    /// The connection was not established.
    Unconnected(Error),
    /// The RDMA device is being removed.
    DeviceRemoved,
    /// The queue pair does not exist: its connection was refused.
    Refused(&'static str),
    /// The reply could not be sent.
    Unaccepted,
    /// A message of this many bytes that gets no response.
    Message(usize),
    /// An immediate value with this many bytes of data, which is not a valid eager write.
    Immediate(usize),
    /// An eager write of this many bytes for which no ring slot is free.
    NoRingSlot(Tag, u32),
    /// A message of this many bytes on the admin queue pair that is not one of its requests.
    Admin(usize),
    /// The initiator has detached a volume that is not attached.
    Detach(Handle),
    /// A second watch arrived before the response to the first.
    SecondWatch,
    /// The initiator has sent more admin requests than it may have in flight.
    Flood,
    /// Nothing was received from the initiator for this many seconds.
    NothingReceived(u32),
    /// A work request has failed with this status.
    Work(&'static str, &'static CStr, Option<Subject>),
    /// A work request was flushed for an unknown reason.
    Flushed,
    /// The buffers of a request could not be registered.
    Unregistered(Subject),
    /// A work request could not be posted.
    Unposted(&'static str, Option<Subject>),
    /// An invariant of our own is broken.
    Broken(&'static str),
}

impl Fault {
    /// Returns the code for trace events; 0: nothing is wrong.
    pub(crate) fn errno(self) -> i32 {
        let error = match self {
            Self::Disconnected => return 0,
            Self::Unconnected(e) => e,
            Self::DeviceRemoved => ENODEV,
            Self::Refused(_) => ENOMEM,
            Self::Message(_)
            | Self::Immediate(_)
            | Self::NoRingSlot(..)
            | Self::Admin(_)
            | Self::Detach(_)
            | Self::SecondWatch
            | Self::Flood => errno::eproto(),
            Self::NothingReceived(_) => ETIMEDOUT,
            Self::Unaccepted | Self::Work(..) | Self::Flushed => errno::econnreset(),
            Self::Unregistered(_) | Self::Unposted(..) | Self::Broken(_) => EIO,
        };
        error.to_errno()
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tag { index, generation } = self.tag;
        write!(f, "tag {index}, generation {generation}")?;
        match self.key {
            0 => Ok(()),
            key => write!(f, ", key {key:#x}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => f.write_str("the initiator disconnected"),
            Self::Unconnected(e) => write!(
                f,
                "the connection was not established (error {})",
                e.to_errno()
            ),
            Self::DeviceRemoved => f.write_str("the RDMA device is removed"),
            Self::Refused(why) => write!(f, "the connection was refused: {why}"),
            Self::Unaccepted => f.write_str("the reply could not be sent"),
            Self::Message(bytes) => {
                write!(
                    f,
                    "a message of {bytes} bytes to which no response is possible"
                )
            }
            Self::Immediate(bytes) => write!(
                f,
                "an immediate value with {bytes} bytes that is not a valid write"
            ),
            Self::NoRingSlot(tag, bytes) => {
                let Tag { index, generation } = tag;
                write!(
                    f,
                    "an eager write of {bytes} bytes that has no ring slot (tag {index}, generation {generation})"
                )
            }
            Self::Admin(bytes) => {
                write!(f, "a message of {bytes} bytes that is not an admin request")
            }
            Self::Detach(Handle(number)) => {
                write!(
                    f,
                    "the initiator detached handle {number}, which has no volume"
                )
            }
            Self::SecondWatch => f.write_str("a second watch"),
            Self::Flood => f.write_str("more requests than it may have in flight"),
            Self::NothingReceived(seconds) => write!(f, "nothing was received for {seconds} s"),
            Self::Work(what, status, subject) => {
                write!(f, "{what} failed: {}", status.to_str().unwrap_or("?"))?;
                about(f, *subject)
            }
            Self::Flushed => f.write_str("the queue pair stopped working"),
            Self::Unregistered(subject) => {
                write!(f, "the buffers of a write cannot be registered ({subject})")
            }
            Self::Unposted(what, subject) => {
                write!(f, "{what} cannot be posted")?;
                about(f, *subject)
            }
            Self::Broken(what) => write!(f, "BUG: {what}"),
        }
    }
}

fn about(f: &mut fmt::Formatter<'_>, subject: Option<Subject>) -> fmt::Result {
    match subject {
        Some(subject) => write!(f, " ({subject})"),
        None => Ok(()),
    }
}

/// The tag and key of the request in each [`TargetRequest`], for messages. The completion handler
/// that finds a failed work request does not own the `TargetRequest`, which may already hold a new
/// request.
pub(super) struct RequestSubjects(KVec<Atomic<u64>>);

impl RequestSubjects {
    /// Allocates places for `requests` requests. May sleep.
    pub(super) fn new(requests: usize) -> Result<Self> {
        let mut places = KVec::with_capacity(requests, GFP_KERNEL)?;
        for _ in 0..requests {
            places.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Self(places))
    }

    #[inline]
    pub(super) fn set(&self, request: &TargetRequest) {
        let key = match request.op {
            Ok(Op::Read(_, remote) | Op::Write { remote, .. }) => remote.key,
            _ => 0,
        };
        if let Some(place) = self.0.get(request.index as usize) {
            let subject = u64::from(key) << 32 | u64::from(request.tag.to_immediate());
            place.store(subject, Relaxed);
        }
    }

    pub(super) fn get(&self, request: u32) -> Option<Subject> {
        let subject = self.0.get(request as usize)?.load(Relaxed);
        Some(Subject {
            tag: Tag::from_immediate(subject as u32),
            key: (subject >> 32) as u32,
        })
    }
}

impl Queue {
    /// Ends the session because of a fault of this queue pair, unless only this queue pair is being
    /// removed. Any context.
    #[cold]
    pub(super) fn fail(&self, fault: Fault) {
        if !self.leaving.load(Acquire) {
            self.session.clone().end_by(self.index, fault);
        }
    }

    /// Reports a broken invariant of the driver, and ends the session. Any context.
    #[cold]
    pub(super) fn broken(&self, what: &'static str) {
        broken!(what);
        self.fail(Fault::Broken(what));
    }

    /// Reports that a work request of `request` could not be posted, and ends the session.
    #[cold]
    pub(super) fn unposted(&self, what: &'static str, request: Option<u32>) {
        let subject = request.and_then(|request| self.subjects.get(request));
        self.fail(Fault::Unposted(what, subject));
    }

    /// Reports a work request that has failed, and ends the session. Completion handler.
    #[cold]
    pub(super) fn work_failed(&self, completion: &Completion) {
        let work = completion.work();
        // The completion names a chunk, which names its request.
        let chunk = match work.kind {
            kind::CHUNK => self.chunked.take_rdma_read(work.index),
            _ => None,
        };
        let request = match work.kind {
            kind::CHUNK_WRITTEN => self.chunked.io_of_written(work.index),
            kind::RESPONSE | kind::RDMA_READ | kind::PART | kind::SINK => Some(work.index),
            _ => chunk.as_ref().map(|chunk| chunk.places_of().1),
        };
        self.fail(if completion.is_flushed() {
            Fault::Flushed
        } else {
            let subject = request.and_then(|request| self.subjects.get(request));
            Fault::Work(name(work.kind), completion.status(), subject)
        });
        if let Some(chunk) = chunk {
            chunk.settle(false, Err(Failure::Wire));
        }
    }
}

/// Returns the name of a kind of work request, for messages.
fn name(kind: u8) -> &'static str {
    match kind {
        kind::RESPONSE => "a response",
        kind::RECEIVE => "receiving",
        kind::RDMA_READ | kind::CHUNK => "an RDMA READ",
        kind::PART => "an RDMA READ or WRITE",
        kind::CHUNK_WRITTEN => "an RDMA WRITE",
        kind::KEEP_ALIVE => "a keep-alive",
        kind::SINK => "registering buffers",
        kind::EAGER_RING => "registering the eager ring",
        _ => "work",
    }
}
