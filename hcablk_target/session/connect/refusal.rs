// SPDX-License-Identifier: GPL-2.0

//! Why a connection is refused: to the initiator a number, to the log a sentence.

use crate::memory::{
    Denied,
    Shortage, //
};
use core::fmt;
use hcablk_core::{
    printable,
    proto::connect::Reason, //
};

/// Why a request is not granted.
#[derive(Clone, Copy)]
pub(super) struct Refusal {
    reason: Reason,
    why: &'static str,
    /// How much memory of the port's is lacking.
    shortage: Option<Shortage>,
}

impl Refusal {
    pub(super) const NO_MEMORY: Self =
        Self::new(Reason::NoResources, "out of memory or queue pairs");

    pub(super) const TOO_MANY: Self = Self::new(
        Reason::NoResources,
        "this host has too many sessions on the volume",
    );

    pub(super) const CROWD: Self = Self::new(
        Reason::NoResources,
        "too many connections wait for a drive to finish what it has begun for older ones",
    );

    pub(super) const fn new(reason: Reason, why: &'static str) -> Self {
        Self {
            reason,
            why,
            shortage: None,
        }
    }

    /// Makes the refusal for a lack of memory in the account.
    pub(super) fn denied(denied: Denied) -> Self {
        match denied {
            Denied::Limit(shortage) => Self {
                shortage: Some(shortage),
                ..Self::new(
                    Reason::NoMemory,
                    "it needs more than is left of the port's memory_mib",
                )
            },
            Denied::Machine => Self::NO_MEMORY,
        }
    }

    /// Returns the reason, without numbers.
    pub(super) fn why(&self) -> &'static str {
        self.why
    }

    pub(super) fn reason(&self) -> Reason {
        self.reason
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.why)?;
        match self.shortage {
            None => Ok(()),
            Some(Shortage {
                needed,
                left,
                limit,
            }) => write!(
                f,
                ": {} KiB, and of {} KiB there are {} KiB",
                needed >> 10,
                limit >> 10,
                left >> 10
            ),
        }
    }
}
printable!(Refusal);
