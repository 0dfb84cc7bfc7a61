// SPDX-License-Identifier: GPL-2.0

//! What is wrong with a queue pair, or with what came by it: one line for people, one error code
//! for programs.

use super::{
    chunks::Failure,
    queue::{
        kind,
        Queue, //
    },
    request::Request, //
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

/// The request that something is about: its tag, and its key or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) tag: Tag,
    pub(crate) key: u32,
}

/// What is wrong with a queue pair, or with what came by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The initiator has closed the connection, or its host has.
    Disconnected,
    /// The connection did not come up.
    Unconnected(Error),
    /// The RDMA device goes away.
    DeviceRemoved,
    /// There is no such queue pair: its connection was refused.
    Refused(&'static str),
    /// The reply could not be sent.
    Unaccepted,
    /// A message of so many bytes: whom to answer is not known.
    Message(usize),
    /// An immediate value that came with so many bytes of data.
    Immediate(usize),
    /// An eager write of so many bytes.
    NoRingSlot(Tag, u32),
    /// A message of so many bytes on the admin queue pair that is none of its requests.
    Admin(usize),
    /// The initiator has detached a volume that is not attached.
    Detach(Handle),
    /// A watch came while there was one.
    SecondWatch,
    /// More was asked by the admin queue pair than answers are under way at a time.
    Flood,
    /// Nothing was received from the initiator for so many seconds.
    NothingReceived(u32),
    /// Work has failed with this status.
    Work(&'static str, &'static CStr, Option<Subject>),
    /// Work was flushed, and nothing said why.
    Flushed,
    /// The buffers of a request could not be registered.
    Unregistered(Subject),
    /// This could not be posted.
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
            Self::Unconnected(e) => write!(f, "it was not connected (error {})", e.to_errno()),
            Self::DeviceRemoved => f.write_str("the RDMA device is removed"),
            Self::Refused(why) => write!(f, "it was refused: {why}"),
            Self::Unaccepted => f.write_str("the reply could not be sent"),
            Self::Message(bytes) => {
                write!(f, "a message of {bytes} bytes that cannot be answered")
            }
            Self::Immediate(bytes) => {
                write!(f, "an immediate value with {bytes} bytes that are no write")
            }
            Self::NoRingSlot(tag, bytes) => {
                let Tag { index, generation } = tag;
                write!(
                    f,
                    "an eager write of {bytes} bytes that has no ring slot (tag {index}, generation {generation})"
                )
            }
            Self::Admin(bytes) => {
                write!(f, "a message of {bytes} bytes that is no admin request")
            }
            Self::Detach(Handle(number)) => {
                write!(f, "handle {number}, which has no volume, was detached")
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

/// Which request each [`Request`] has, for messages: whoever finds work that has failed does not
/// own the `Request`, and may come when that has another request.
pub(super) struct Named(KVec<Atomic<u64>>);

impl Named {
    /// Allocates room for the faults of `requests` requests. May sleep.
    pub(super) fn new(requests: usize) -> Result<Self> {
        let mut places = KVec::with_capacity(requests, GFP_KERNEL)?;
        for _ in 0..requests {
            places.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Self(places))
    }

    #[inline]
    pub(super) fn set(&self, request: &Request) {
        let key = match request.op {
            Ok(Op::Read(_, remote) | Op::Write { remote, .. }) => remote.key,
            _ => 0,
        };
        if let Some(place) = self.0.get(request.index as usize) {
            let named = u64::from(key) << 32 | u64::from(request.tag.to_immediate());
            place.store(named, Relaxed);
        }
    }

    pub(super) fn get(&self, request: u32) -> Option<Subject> {
        let named = self.0.get(request as usize)?.load(Relaxed);
        Some(Subject {
            tag: Tag::from_immediate(named as u32),
            key: (named >> 32) as u32,
        })
    }
}

impl Queue {
    /// Ends the session for a fault of this queue pair, unless only this queue pair is being taken
    /// down. Any context.
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

    /// Reports that work for `request` could not be posted, and ends the session.
    #[cold]
    pub(super) fn unposted(&self, what: &'static str, request: Option<u32>) {
        let subject = request.and_then(|request| self.named.get(request));
        self.fail(Fault::Unposted(what, subject));
    }

    /// Reports a work request that has failed, and ends the session. Completion handler.
    #[cold]
    pub(super) fn work_failed(&self, completion: &Completion) {
        let work = completion.work();
        // It says whose it is.
        let chunk = match work.kind {
            kind::CHUNK => self.chunked.take_fetched(work.index),
            _ => None,
        };
        let request = match work.kind {
            kind::CHUNK_WRITTEN => self.chunked.io_of_written(work.index),
            kind::ANSWER | kind::FETCH | kind::PART | kind::SINK => Some(work.index),
            _ => chunk.as_ref().map(|chunk| chunk.places_of().1),
        };
        self.fail(if completion.is_flushed() {
            Fault::Flushed
        } else {
            let subject = request.and_then(|request| self.named.get(request));
            Fault::Work(name(work.kind), completion.status(), subject)
        });
        if let Some(chunk) = chunk {
            chunk.settle(false, Err(Failure::Wire));
        }
    }
}

/// Returns the name of a kind of work, for messages.
fn name(kind: u8) -> &'static str {
    match kind {
        kind::ANSWER => "an answer",
        kind::RECEIVE => "receiving",
        kind::FETCH | kind::CHUNK => "an RDMA READ",
        kind::PART => "RDMA",
        kind::CHUNK_WRITTEN => "an RDMA WRITE",
        kind::KEEP_ALIVE => "a keep-alive",
        kind::SINK => "registering buffers",
        kind::EAGER_RING => "registering the eager ring",
        _ => "work",
    }
}
