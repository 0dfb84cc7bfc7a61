// SPDX-License-Identifier: GPL-2.0

//! Why a session ends: one line for people, one error code for programs. The first reason counts;
//! what else goes wrong is often its consequence.

use core::{
    ffi::CStr,
    fmt, //
};
use hcablk_core::{
    printable,
    proto::message::Tag, //
    system::errno,
};
use kernel::prelude::*;

/// Why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// The volume is disabled.
    Withdrawn,
    /// The host may use the volume no longer.
    Forbidden,
    /// Another session of its name was there first.
    Second,
    /// Its initiator came back with a newer epoch.
    Replaced,
    /// Of this queue pair.
    Queue(u8, Fault),
}

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
    NoPlace(Tag, u32),
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

impl EndReason {
    /// Returns whether it is what happens to every session in the end.
    pub(crate) fn is_usual(self) -> bool {
        matches!(
            self,
            Self::Withdrawn
                | Self::Forbidden
                | Self::Replaced
                | Self::Queue(_, Fault::Disconnected)
        )
    }

    /// Returns the code for trace events; 0: nothing is wrong.
    pub(crate) fn errno(self) -> i32 {
        let Self::Queue(_, fault) = self else {
            return 0;
        };
        let error = match fault {
            Fault::Disconnected => return 0,
            Fault::Unconnected(e) => e,
            Fault::DeviceRemoved => ENODEV,
            Fault::Refused(_) => ENOMEM,
            Fault::Message(_) | Fault::Immediate(_) | Fault::NoPlace(..) => errno::eproto(),
            Fault::NothingReceived(_) => ETIMEDOUT,
            Fault::Unaccepted | Fault::Work(..) | Fault::Flushed => errno::econnreset(),
            Fault::Unregistered(_) | Fault::Unposted(..) | Fault::Broken(_) => EIO,
        };
        error.to_errno()
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Withdrawn => f.write_str("the volume is disabled"),
            Self::Forbidden => f.write_str("the host is not allowed any more"),
            Self::Second => f.write_str("another session of its name was there first"),
            Self::Replaced => f.write_str("its initiator came back"),
            Self::Queue(queue, fault) => write!(f, "queue {queue}: {fault}"),
        }
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
            Self::NoPlace(tag, bytes) => {
                let Tag { index, generation } = tag;
                write!(
                    f,
                    "an eager write of {bytes} bytes that has no ring slot (tag {index}, generation {generation})"
                )
            }
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

printable!(EndReason);
