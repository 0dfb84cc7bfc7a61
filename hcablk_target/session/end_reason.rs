// SPDX-License-Identifier: GPL-2.0

//! Names the reason why a session ends: one line for people, one error code for programs. The first
//! reason counts; later failures are often its consequences.

use crate::io::Fault;
use core::fmt;
use hcablk_core::{
    printable,
    proto::ADMIN_QUEUE,
    system::errno, //
};

/// The reason why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// The volume is disabled.
    Withdrawn,
    /// The host may no longer use the volume.
    Forbidden,
    /// The host is evicted from the volume.
    Evicted,
    /// A later instance of the host has connected.
    Superseded,
    /// The initiator has fenced the session over another path.
    Fenced,
    /// The registration of the host was preempted.
    Preempted,
    /// A session with the same id existed before this one.
    Second,
    /// The initiator has reconnected with a newer epoch.
    Replaced,
    /// The initiator has detached the last volume.
    Detached,
    /// No volume was attached to the session.
    Bare,
    /// The RDMA port went down.
    PortDown,
    /// A fault of this queue pair, or of [`ADMIN_QUEUE`].
    Queue(u8, Fault),
}

impl EndReason {
    /// Returns whether the reason is part of normal operation.
    pub(crate) fn is_usual(self) -> bool {
        matches!(
            self,
            Self::Withdrawn
                | Self::Forbidden
                | Self::Evicted
                | Self::Superseded
                | Self::Fenced
                | Self::Preempted
                | Self::Replaced
                | Self::Detached
                | Self::Bare
                | Self::Queue(_, Fault::Disconnected)
        )
    }

    /// Returns the code for trace events; 0: no error.
    pub(crate) fn errno(self) -> i32 {
        match self {
            Self::Queue(_, fault) => fault.errno(),
            Self::PortDown => errno::enetdown().to_errno(),
            _ => 0,
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Withdrawn => f.write_str("the volume is disabled"),
            Self::Forbidden => f.write_str("the host is not allowed any more"),
            Self::Evicted => f.write_str("the host is evicted"),
            Self::Superseded => f.write_str("a later instance of its host has connected"),
            Self::Fenced => f.write_str("its initiator continues on another path"),
            Self::Preempted => f.write_str("the registration of its host was preempted"),
            Self::Second => f.write_str("another session with its id existed first"),
            Self::Replaced => f.write_str("its initiator reconnected"),
            Self::Detached => f.write_str("its initiator has detached it"),
            Self::Bare => f.write_str("no volume was attached to it"),
            Self::PortDown => f.write_str("the RDMA port went down"),
            Self::Queue(ADMIN_QUEUE, fault) => write!(f, "admin queue pair: {fault}"),
            Self::Queue(queue, fault) => write!(f, "queue {queue}: {fault}"),
        }
    }
}

printable!(EndReason);
