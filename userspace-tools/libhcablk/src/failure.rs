// SPDX-License-Identifier: GPL-2.0

//! The errors of a session, and those of a request.

use hcablk_core::proto::{connect::Reason, message::Status};
use nix::errno::Errno;
use std::fmt;

/// A step of connecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectStep {
    /// Finding the device for the address.
    Address,
    /// Finding the route to the address.
    Route,
    /// Waiting for the target's response.
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

/// The reason why there is no session, or no longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A step of connecting failed.
    #[error("{0} failed: {1}")]
    Step(ConnectStep, Errno),
    /// A step of connecting took too long.
    #[error("{0} took too long")]
    Timeout(ConnectStep),
    /// No program listens at the address and port.
    #[error("no target listens at this address and port")]
    NotListening,
    /// The target has a connection from before this host was restarted.
    #[error("the target still has a connection from before this host started again")]
    StaleConnection,
    /// The target refused the session.
    #[error("the target refuses the session: {}", reason_text(*.0))]
    Refused(Reason),
    /// A peer that has not proven to be the target refused the session.
    #[error("a peer that has not proven to be the target refuses the session: {}", reason_text(*.0))]
    Unsealed(Reason),
    /// The peer does not have the keys.
    #[error("the peer failed authentication: it does not hold the expected keys")]
    OtherKeys,
    /// The peer demands no proof.
    #[error("the peer does not ask for a proof, although keys are set here: it is not the target, or of an older version")]
    NoChallenge,
    /// One key is set, and the other is not.
    #[error("a proof needs the key of this host and that of the target, and only one is set")]
    HalfProof,
    /// The peer speaks a different protocol.
    #[error("the peer is not an hcablk target")]
    NotATarget,
    /// The RDMA device, or the route to the target, cannot be used.
    #[error("the RDMA device cannot be used: {0}")]
    Device(&'static str),
    /// An object could not be made.
    #[error("cannot create {0}: {1}")]
    Setup(&'static str, Errno),
    /// This host's directory of session ids cannot be used.
    #[error("cannot use the directory of session ids: {0}")]
    Identity(Errno),
    /// All session ids of this host are in use.
    #[error("all session numbers of this host are in use")]
    NoIdentity,
    /// Another program of this host uses the session of this number, or has reserved it.
    #[error("another program of this host has session {0} or has reserved it, or its epochs are used up")]
    SessionInUse(u16),
    /// The target closed the connection.
    #[error("the target closed the connection")]
    Disconnected,
    /// The RDMA device was removed.
    #[error("the RDMA device was removed")]
    DeviceRemoved,
    /// A work request of the connection failed.
    #[error("the connection broke: {0}")]
    Work(&'static str),
    /// A work request was flushed: the queue pair has failed.
    #[error("the target no longer responds")]
    Flushed,
    /// A verb failed.
    #[error("{0} failed: {1}")]
    Verb(&'static str, Errno),
    /// A keep-alive got no response within this many seconds.
    #[error("the target has not responded to a keep-alive for {0} s")]
    KeepAlive(u16),
    /// A request got no response within this many seconds.
    #[error("a request got no response for {0} s")]
    RequestTimeout(u32),
    /// The target ends the export.
    #[error("the target ends the export of the volume")]
    ExportEnds,
    /// The target broke the protocol.
    #[error("the target broke the protocol: {0}")]
    Protocol(&'static str),
    /// The target has a different volume under this name.
    #[error("the target now has a different volume under this name")]
    OtherVolume,
    /// The volume has a different block size or a different largest request, or a write cache that
    /// it did not have when it was opened and whose changes the target does not report.
    #[error("the volume now has a different block size, largest request or write cache")]
    OtherLimits,
    /// This program closed the volume.
    #[error("the volume was closed")]
    Closed,
}

impl Failure {
    /// Returns whether a new attempt to connect may succeed without any intervention: not if the target refuses for
    /// good, the volume is a different one, or one of the two sides has a bug.
    pub(crate) fn may_pass(self) -> bool {
        match self {
            Self::Step(..)
            | Self::Timeout(_)
            | Self::NotListening
            | Self::StaleConnection
            | Self::NotATarget
            | Self::Setup(..)
            | Self::Verb(..)
            | Self::Disconnected
            | Self::Flushed
            | Self::Work(_)
            | Self::KeepAlive(_)
            | Self::RequestTimeout(_)
            | Self::ExportEnds
            | Self::Identity(_)
            // The route leads to a different device for now: memory is registered with the first one.
            | Self::Device(_)
            // An unproven message is no reason to give up.
            | Self::Unsealed(_)
            | Self::OtherKeys
            | Self::NoChallenge => true,
            Self::Refused(reason) => match reason {
                Reason::UnknownVolume
                | Reason::NoResources
                | Reason::NoMemory
                | Reason::StaleEpoch
                | Reason::NoSession
                | Reason::NotProven
                | Reason::Withdrawn => true,
                Reason::Version
                | Reason::Challenge
                | Reason::Entry
                | Reason::Forbidden
                | Reason::Malformed
                | Reason::Evicted
                | Reason::OwnSession
                | Reason::Superseded => false,
            },
            // Memory that was registered with the device is lost with it.
            Self::DeviceRemoved
            | Self::HalfProof
            | Self::NoIdentity
            | Self::SessionInUse(_)
            | Self::Protocol(_)
            | Self::OtherVolume
            | Self::OtherLimits
            | Self::Closed => false,
        }
    }

    /// Returns the error number that the kernel's driver fails with for the same reason.
    pub fn errno(self) -> Errno {
        match self {
            Self::Step(_, error)
            | Self::Setup(_, error)
            | Self::Verb(_, error)
            | Self::Identity(error) => error,
            Self::Timeout(_) | Self::KeepAlive(_) | Self::RequestTimeout(_) => Errno::ETIMEDOUT,
            Self::NotListening => Errno::ECONNREFUSED,
            Self::StaleConnection => Errno::EAGAIN,
            Self::OtherKeys | Self::NoChallenge => Errno::EKEYREJECTED,
            Self::Refused(reason) | Self::Unsealed(reason) => match reason {
                Reason::NotProven | Reason::Challenge => Errno::EKEYREJECTED,
                Reason::Version => Errno::EPROTONOSUPPORT,
                Reason::UnknownVolume => Errno::ENOENT,
                Reason::Forbidden | Reason::Evicted => Errno::EACCES,
                Reason::NoResources | Reason::NoMemory => Errno::ENOBUFS,
                Reason::StaleEpoch | Reason::NoSession | Reason::Superseded => Errno::ESTALE,
                Reason::Withdrawn | Reason::Malformed => Errno::ECONNREFUSED,
                Reason::Entry | Reason::OwnSession => Errno::EPROTO,
            },
            Self::HalfProof => Errno::EINVAL,
            Self::NotATarget | Self::Protocol(_) => Errno::EPROTO,
            Self::Device(_) | Self::DeviceRemoved => Errno::ENODEV,
            Self::NoIdentity => Errno::EUSERS,
            Self::SessionInUse(_) => Errno::EBUSY,
            Self::OtherVolume | Self::OtherLimits => Errno::ESTALE,
            Self::Disconnected | Self::Work(_) | Self::Flushed | Self::ExportEnds => {
                Errno::ECONNRESET
            }
            Self::Closed => Errno::ESHUTDOWN,
        }
    }
}

fn reason_text(reason: Reason) -> &'static str {
    match reason {
        Reason::Malformed => "it did not understand the request",
        Reason::Version => "it speaks other versions of the protocol",
        Reason::UnknownVolume => {
            "it exports no volume of this name, or none to hosts that do not prove who they are"
        }
        Reason::Forbidden => "it does not allow this host to use the volume",
        Reason::NoResources => {
            "it lacks a resource for this connection (memory, queue pairs, or sessions of this host): its log says which"
        }
        Reason::StaleEpoch => "it holds a newer epoch of this session",
        Reason::NoSession => "it ended the session while connecting",
        Reason::Withdrawn => "it is withdrawing the volume",
        Reason::NoMemory => {
            "it has no memory left for another session: its memory_mib, or the half of it that one host may have, is used up"
        }
        Reason::Evicted => "it has evicted this host from the volume",
        Reason::Superseded => "a later instance of this host uses the volume",
        Reason::Challenge => "it asks for a proof at the wrong time",
        Reason::NotProven => {
            "it does not accept the proof: it has other keys for this host or for itself, or no such volume for it"
        }
        Reason::Entry => "it sent a list entry that was not requested",
        Reason::OwnSession => "it does not let this volume share a session with other volumes",
    }
}

/// The reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The request's offset or length is not in whole blocks, or it has no length, or its memory belongs to a different
    /// volume.
    #[error("the request makes no sense: {0}")]
    Invalid(&'static str),
    /// The volume does not support the operation.
    #[error("the volume cannot do this")]
    Unsupported,
    /// The request exceeds the end of the volume.
    #[error("the request goes beyond the end of the volume")]
    OutOfRange,
    /// The volume is read-only.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The drive failed.
    #[error("the drive failed")]
    Drive,
    /// The drive has no space left.
    #[error("the drive has no space left")]
    NoSpace,
    /// The drive cannot read a block.
    #[error("the drive cannot read this block")]
    Medium,
    /// Another host's reservation forbids the request.
    #[error("a reservation of another host forbids this")]
    Conflict,
    /// The target has lost acknowledged writes that no flush had covered. From then on flushes and writes with FUA
    /// fail, until the volume is closed.
    #[error("the target has lost acknowledged writes that no flush had covered")]
    LostWrites,
    /// The session has ended. A write may have been carried out or not.
    #[error("the session has ended: {0}")]
    Lost(Failure),
}

impl RequestError {
    /// Converts a status of the protocol to a result.
    pub(crate) fn from_status(status: Status) -> Result<(), Self> {
        Err(match status {
            Status::Ok => return Ok(()),
            Status::Unsupported => Self::Unsupported,
            Status::OutOfRange => Self::OutOfRange,
            Status::ReadOnly => Self::ReadOnly,
            Status::NoSpace => Self::NoSpace,
            Status::Medium => Self::Medium,
            Status::Conflict => Self::Conflict,
            Status::Invalid | Status::IoError | Status::Gone | Status::Draining => Self::Drive,
        })
    }

    /// Returns the error number that the kernel's driver fails such a request with.
    pub fn errno(self) -> Errno {
        match self {
            Self::Invalid(_) => Errno::EINVAL,
            Self::Unsupported => Errno::EOPNOTSUPP,
            Self::OutOfRange | Self::Drive | Self::LostWrites | Self::Lost(_) => Errno::EIO,
            Self::ReadOnly => Errno::EILSEQ,
            Self::NoSpace => Errno::ENOSPC,
            Self::Medium => Errno::ENODATA,
            Self::Conflict => Errno::EBADE,
        }
    }
}
