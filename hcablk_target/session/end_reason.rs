// SPDX-License-Identifier: GPL-2.0

//! Why a session ends: one line for people, one error code for programs. The first reason counts;
//! what else goes wrong is often its consequence.

use crate::io::Fault;
use core::fmt;
use hcablk_core::{
    printable,
    proto::ADMIN_QUEUE,
    system::errno, //
};

/// Why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// The volume is disabled.
    Withdrawn,
    /// The host may use the volume no longer.
    Forbidden,
    /// The host is evicted from the volume.
    Evicted,
    /// A later instance of its host has come.
    Superseded,
    /// Its initiator has fenced it, by another path.
    Fenced,
    /// The registration of its host was preempted.
    Preempted,
    /// Another session of its name was there first.
    Second,
    /// Its initiator came back with a newer epoch.
    Replaced,
    /// Its initiator has detached the last volume.
    Detached,
    /// No volume was attached to it.
    Bare,
    /// The RDMA port went down.
    PortDown,
    /// Of this queue pair, or of [`ADMIN_QUEUE`].
    Queue(u8, Fault),
}

impl EndReason {
    /// Returns whether it is what happens to every session in the end.
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

    /// Returns the code for trace events; 0: nothing is wrong.
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
            Self::Superseded => f.write_str("a later instance of its host has come"),
            Self::Fenced => f.write_str("its initiator goes on by another path"),
            Self::Preempted => f.write_str("the registration of its host was preempted"),
            Self::Second => f.write_str("another session of its name was there first"),
            Self::Replaced => f.write_str("its initiator came back"),
            Self::Detached => f.write_str("its initiator has detached it"),
            Self::Bare => f.write_str("no volume was attached to it"),
            Self::PortDown => f.write_str("the RDMA port went down"),
            Self::Queue(ADMIN_QUEUE, fault) => write!(f, "admin queue pair: {fault}"),
            Self::Queue(queue, fault) => write!(f, "queue {queue}: {fault}"),
        }
    }
}

printable!(EndReason);
