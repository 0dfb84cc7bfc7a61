// SPDX-License-Identifier: GPL-2.0

//! The reasons why a connection is refused: a number for the initiator, a sentence for the log.

use crate::memory::{
    Denied,
    Shortage, //
};
use core::fmt;
use hcablk_core::{
    printable,
    proto::connect::Reason, //
    system::errno,
};
use kernel::error::Error;

/// The refusal of a request.
#[derive(Clone, Copy)]
pub(in super::super) struct Refusal {
    reason: Reason,
    why: &'static str,
    /// The amount of the port's memory that is lacking.
    shortage: Option<Shortage>,
}

impl Refusal {
    pub(in super::super) const NO_MEMORY: Self =
        Self::new(Reason::NoResources, "out of memory or queue pairs");

    pub(in super::super) const TOO_MANY: Self = Self::new(
        Reason::NoResources,
        "this host has too many sessions on the volume",
    );

    pub(in super::super) const CROWD: Self = Self::new(
        Reason::NoResources,
        "too many connections wait for a drive to finish requests of older ones",
    );

    pub(in super::super) const fn new(reason: Reason, why: &'static str) -> Self {
        Self {
            reason,
            why,
            shortage: None,
        }
    }

    /// Returns the refusal of a request that is [not admitted](crate::export::admission).
    pub(in super::super) const fn not_admitted(reason: Reason) -> Self {
        Self::new(
            reason,
            match reason {
                Reason::UnknownVolume => "there is no such volume",
                Reason::NotProven => "the key of its proof was withdrawn",
                Reason::Forbidden => "this host is not allowed",
                Reason::Evicted => "this host is evicted",
                Reason::Superseded => "a later instance of this host has connected",
                Reason::Withdrawn => "the volume is being disabled",
                Reason::StaleEpoch => "its epoch is not newer than that of its session",
                Reason::NoSession => "its session has ended",
                _ => "it does not fit its session",
            },
        )
    }

    /// Returns the refusal of a session that could not be created because of `error`.
    pub(in super::super) fn of_session(error: Error) -> Self {
        if error == errno::estale() {
            Self::new(Reason::StaleEpoch, "its session had a later epoch")
        } else {
            Self::NO_MEMORY
        }
    }

    /// Returns the refusal for a lack of memory in the account.
    pub(in super::super) fn denied(denied: Denied) -> Self {
        match denied {
            Denied::Limit(shortage) => Self {
                shortage: Some(shortage),
                ..Self::new(
                    Reason::NoMemory,
                    match shortage.of_host {
                        true => "it needs more than is left of its host's share, which is half of the port's memory_mib",
                        false => "it needs more than is left of the port's memory_mib",
                    },
                )
            },
            Denied::Machine => Self::NO_MEMORY,
        }
    }

    /// Returns the sentence for the log, without numbers.
    pub(in super::super) fn why(&self) -> &'static str {
        self.why
    }

    pub(in super::super) fn reason(&self) -> Reason {
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
                ..
            }) => write!(
                f,
                ": {} KiB needed; of {} KiB, {} KiB are left",
                needed >> 10,
                limit >> 10,
                left >> 10
            ),
        }
    }
}
printable!(Refusal);
