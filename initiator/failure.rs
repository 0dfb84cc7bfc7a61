// SPDX-License-Identifier: GPL-2.0

//! All failures of a connection: as a message for people, and as an error code for programs.

use core::fmt;
use hcablk_core::{
    printable,
    proto::{
        connect::{
            Reason,
            Reject, //
        },
        message::Tag,
        ADMIN_QUEUE, //
    },
    system::errno,
};
use kernel::prelude::*;

/// A step of connecting, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectStep {
    /// Find the device that leads to the address.
    Address,
    /// Find the route to the address.
    Route,
    /// Get the target's response.
    Response,
}

impl fmt::Display for ConnectStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address => "looking for an RDMA device that reaches the address",
            Self::Route => "looking for a route",
            Self::Response => "waiting for the target's response",
        })
    }
}

/// A violation of the protocol by the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The target's action.
    pub(crate) what: &'static str,
    /// The queue that received it, or [`ADMIN_QUEUE`]; `None`: several queues are concerned.
    pub(crate) queue: Option<u8>,
    /// The request that the message named.
    pub(crate) tag: Option<Tag>,
    /// The key that was wrongly invalidated, or not invalidated.
    pub(crate) key: Option<u32>,
}

impl Violation {
    /// Creates a violation that concerns no particular request.
    pub(crate) fn new(what: &'static str, queue: Option<u8>) -> Self {
        Self {
            what,
            queue,
            tag: None,
            key: None,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        let Some(queue) = self.queue else {
            return Ok(());
        };
        match queue {
            ADMIN_QUEUE => f.write_str(" (admin queue pair")?,
            queue => write!(f, " (queue {queue}")?,
        }
        if let Some(Tag { index, generation }) = self.tag {
            write!(f, ", tag {index}, generation {generation}")?;
        }
        if let Some(key) = self.key {
            write!(f, ", key {key:#x}")?;
        }
        f.write_str(")")
    }
}

/// Why a connection cannot be made, or was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A setting is missing.
    Unset(&'static str),
    /// A step of connecting failed.
    Step(ConnectStep, Error),
    /// A step of connecting timed out.
    Timeout(ConnectStep),
    /// No target listens at the address and port.
    NotListening,
    /// The target's connection manager still has a connection from before this host started again.
    StaleConnection,
    /// The target refused and said why.
    Refused(Reject),
    /// The target refused and said why; it has not proven to be the target.
    Unsealed(Reject),
    /// The target refused a session without a volume, and said why.
    RefusedSession(Reject),
    /// The peer failed authentication: it does not hold the expected keys.
    OtherKeys,
    /// The peer asks for no proof, although keys are set.
    NoChallenge,
    /// The peer is not an hcablk target.
    NotATarget,
    /// This part of the response to a request is invalid.
    BadReply(&'static str),
    /// The RDMA device lacks this feature or resource.
    Device(&'static str),
    /// The machine is short of memory, queue pairs or another resource, or the disk could not be
    /// made.
    Setup(&'static str, Error),
    /// The target ended the connection.
    Disconnected,
    /// The administrator ended the connection, even if the disk was in use.
    Forced,
    /// The process that makes the disk received a signal.
    Interrupted,
    /// The RDMA port went down.
    PortDown,
    /// The RDMA device was removed.
    DeviceRemoved,
    /// The queue pair gave up its work: the target is silent or unreachable.
    Flushed,
    /// Work on the queue pair failed with this status.
    Work(&'static CStr),
    /// A request got no response in time.
    RequestTimeout,
    /// A keep-alive had no response for this many seconds.
    KeepAlive(u16),
    /// The target ends the export of the volume.
    ExportEnds,
    /// The target broke the protocol.
    Protocol(Violation),
    /// The peer broke the protocol before it had proven to be the target.
    Stranger(Violation),
    /// An invariant of our own is broken.
    Broken(&'static str),
    /// The volume of this name is not the expected one.
    OtherVolume,
    /// The volume of this name is not the one that was connected before.
    Exchanged,
    /// The volume has no wwid, so it is unknown whether another path leads to the same volume.
    Unnamed,
    /// The path leads to another export of the volume than those that are live.
    OtherExport,
    /// The volume's limits differ from those that the block layer was given.
    OtherLimits,
    /// The session began when the volume was read-only and it is writable now, or the other way
    /// round.
    OtherAccess,
}

impl Failure {
    /// Returns the error that connecting fails with.
    pub(crate) fn errno(self) -> Error {
        match self {
            Self::Unset(_) => EINVAL,
            Self::Step(_, e) | Self::Setup(_, e) => e,
            Self::Timeout(_) | Self::RequestTimeout | Self::KeepAlive(_) => ETIMEDOUT,
            Self::NotListening => errno::econnrefused(),
            Self::StaleConnection => EAGAIN,
            Self::OtherKeys | Self::NoChallenge => errno::ekeyrejected(),
            Self::Refused(reject) | Self::Unsealed(reject) | Self::RefusedSession(reject) => {
                match reject.reason {
                    Reason::NotProven | Reason::Challenge => errno::ekeyrejected(),
                    Reason::Version => errno::eprotonosupport(),
                    Reason::UnknownVolume => ENOENT,
                    Reason::Forbidden | Reason::Evicted => EACCES,
                    Reason::NoResources | Reason::NoMemory => errno::enobufs(),
                    Reason::StaleEpoch | Reason::NoSession | Reason::Superseded => errno::estale(),
                    Reason::Withdrawn | Reason::Malformed => errno::econnrefused(),
                    Reason::Entry | Reason::OwnSession => errno::eproto(),
                }
            }
            Self::NotATarget | Self::BadReply(_) | Self::Protocol(_) | Self::Stranger(_) => {
                errno::eproto()
            }
            Self::Device(_) => ENODEV,
            Self::Disconnected
            | Self::Forced
            | Self::Flushed
            | Self::Work(_)
            | Self::ExportEnds => errno::econnreset(),
            Self::Interrupted => EINTR,
            Self::PortDown => errno::enetdown(),
            Self::DeviceRemoved => ENODEV,
            Self::Broken(_) => EIO,
            Self::OtherVolume
            | Self::Exchanged
            | Self::OtherLimits
            | Self::OtherAccess
            | Self::OtherExport => errno::estale(),
            Self::Unnamed => EINVAL,
        }
    }
}

impl Failure {
    /// Returns the failure for error `e` of waiting for `step`.
    pub(crate) fn of_wait(e: Error, step: ConnectStep) -> Self {
        match e == EINTR {
            true => Self::Interrupted,
            false => Self::Timeout(step),
        }
    }

    /// Returns whether the machine or its RDMA device may be short of a resource: some object of
    /// the session could not be made. The error says no more. A used-up quota is `ENOMEM` for most
    /// devices, `EOVERFLOW` for irdma, and `EIO` for a virtual function of mlx4 and for bnxt_re.
    pub(crate) fn may_be_shortage(self) -> bool {
        matches!(self, Self::Setup(..))
    }

    /// Returns whether another attempt to connect may succeed by itself: not if the target refuses
    /// for good, the volume is a different one, or one of the two sides has a bug.
    pub(crate) fn may_pass(self) -> bool {
        match self {
            // The second key of a disk may be written a moment after the first.
            Self::Unset(_)
            | Self::Step(..)
            | Self::Timeout(_)
            | Self::NotListening
            | Self::StaleConnection
            | Self::NotATarget
            | Self::BadReply(_)
            | Self::Setup(..)
            | Self::Disconnected
            | Self::Flushed
            | Self::Work(_)
            | Self::RequestTimeout
            | Self::KeepAlive(_)
            | Self::ExportEnds
            | Self::OtherAccess
            | Self::PortDown
            // Once all references to the device are dropped, it may return, or another device may
            // reach the target.
            | Self::DeviceRemoved
            // The path may use a smaller device while the one that the disk started with is absent.
            | Self::Device(_)
            // An unproven refusal is no reason to give up; keys may change.
            | Self::Unsealed(_)
            // The volume may be exported later.
            | Self::RefusedSession(_)
            | Self::OtherKeys
            | Self::NoChallenge
            | Self::Stranger(_)
            // The other paths may still lead to the export that existed before the target's
            // restart.
            | Self::OtherExport => true,
            Self::Refused(reject) => match reject.reason {
                Reason::UnknownVolume
                | Reason::NoResources
                | Reason::NoMemory
                | Reason::StaleEpoch
                | Reason::NoSession
                // Keys may change, and volumes may be exported again.
                | Reason::NotProven
                // The volume's mode may change. Without version 2 this is the last word of an
                // attempt.
                | Reason::OwnSession
                | Reason::Withdrawn => true,
                Reason::Version
                | Reason::Challenge
                | Reason::Entry
                | Reason::Forbidden
                | Reason::Malformed
                | Reason::Evicted
                | Reason::Superseded => false,
            },
            Self::Forced
            | Self::Interrupted
            | Self::Protocol(_)
            | Self::Broken(_)
            | Self::OtherVolume
            | Self::Exchanged
            | Self::Unnamed
            | Self::OtherLimits => false,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset(what) => write!(f, "{what} is not set"),
            Self::Step(step, e) => write!(f, "{step} failed (error {})", e.to_errno()),
            Self::Timeout(step) => write!(f, "{step} took too long"),
            Self::NotListening => f.write_str("no target listens at this address and port"),
            Self::StaleConnection => f.write_str(
                "the target still has a connection from before this host started again",
            ),
            Self::OtherKeys => {
                f.write_str("the peer failed authentication: it does not hold the expected keys")
            }
            Self::NoChallenge => f.write_str(
                "the peer does not ask for a proof, although keys are set here: it is not the target, \
                 or of an older version",
            ),
            Self::Refused(reject) | Self::Unsealed(reject) => match reject.reason {
                Reason::NotProven => f.write_str(
                    "the target does not accept the proof: it has other keys for this host or for itself, \
                     or no such volume for it",
                ),
                Reason::Challenge => f.write_str("the target asks for a proof at the wrong time"),
                Reason::Entry => f.write_str("the target sent a list entry that was not requested"),
                Reason::OwnSession => {
                    f.write_str(
                        "the target does not let this volume share a session with other volumes",
                    )
                }
                Reason::Version => write!(
                    f,
                    "the target speaks protocol versions {} to {} only",
                    reject.version_min, reject.version_max
                ),
                Reason::UnknownVolume => f.write_str(
                    "the target exports no volume of this name, or none to hosts that do not prove who they are",
                ),
                Reason::Forbidden => {
                    f.write_str("the target does not allow this host to use the volume")
                }
                Reason::Evicted => f.write_str("the target has evicted this host from the volume"),
                Reason::Superseded => f.write_str(
                    "a later instance of this host uses the volume: another host may have the same id",
                ),
                Reason::NoResources => f.write_str(
                    "the target lacks a resource for this connection (memory, queue pairs, or sessions of this host): \
                     its log says which",
                ),
                Reason::NoMemory => f.write_str(
                    "the target has no memory left for another session: its memory_mib, or the half of it that one host \
                     may have, is used up",
                ),
                Reason::StaleEpoch => f.write_str("the target holds a newer epoch of this session"),
                Reason::NoSession => f.write_str("the target ended the session while connecting"),
                Reason::Withdrawn => f.write_str("the target is withdrawing the volume"),
                Reason::Malformed => f.write_str("the target did not understand the request"),
            },
            Self::RefusedSession(reject) => write!(
                f,
                "the target refuses a session without a volume: {}",
                Self::Refused(*reject)
            ),
            Self::NotATarget => f.write_str("the peer is not an hcablk target"),
            Self::BadReply(what) => write!(f, "the target's reply makes no sense: {what}"),
            Self::Device(what) => write!(f, "the RDMA device cannot be used: {what}"),
            Self::Setup(what, e) => write!(f, "cannot create {what} (error {})", e.to_errno()),
            Self::Disconnected => f.write_str("the target closed the connection"),
            Self::Forced => f.write_str("it was disconnected by force"),
            Self::Interrupted => f.write_str("it was interrupted"),
            Self::Flushed => f.write_str("the target no longer responds"),
            Self::PortDown => f.write_str("the RDMA port went down"),
            Self::DeviceRemoved => f.write_str("the RDMA device was removed"),
            Self::Work(status) => {
                write!(
                    f,
                    "the connection broke: {}",
                    status.to_str().unwrap_or("?")
                )
            }
            Self::Broken(what) => write!(f, "BUG: {what}"),
            Self::RequestTimeout => f.write_str("a request got no response in time"),
            Self::KeepAlive(s) => write!(f, "the target has not responded to a keep-alive for {s} s"),
            Self::ExportEnds => f.write_str("the target ends the export of the volume"),
            Self::OtherVolume => f.write_str("the volume of this name does not have the expected wwid"),
            Self::OtherLimits => f.write_str(
                "the volume has other limits than before: disconnect, and connect it anew",
            ),
            Self::OtherAccess => f.write_str(
                "the volume has become writable, or read-only, since the session began",
            ),
            Self::Unnamed => f.write_str("a volume without a wwid has one path only"),
            Self::OtherExport => f.write_str(
                "it leads to another target or export than the disk's other paths: they could not fence each other",
            ),
            Self::Exchanged => f.write_str(
                "the volume of this name is not the one that was connected before: disconnect to forget the old one",
            ),
            Self::Protocol(what) => write!(f, "the target broke the protocol: {what}"),
            Self::Stranger(what) => write!(
                f,
                "the peer broke the protocol before it proved to be the target: {what}"
            ),
        }
    }
}

printable!(Failure);
