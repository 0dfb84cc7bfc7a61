// SPDX-License-Identifier: GPL-2.0

//! What a volume was when somebody looked last. Neither block devices nor files tell their users
//! what changes, so each session looks by itself. The observations of all are numbered: initiators
//! with several paths hear of a change by each of them, and tell by its generation which one is
//! newer.

use hcablk_core::proto::message::VolumeLimits;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

/// What of a volume may change while it is exported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Observed {
    /// Units of 512 bytes.
    pub(crate) sectors: u64,
    pub(crate) refuses_writes: bool,
    pub(crate) wants_flushes: bool,
    pub(crate) limits: VolumeLimits,
}

struct Last {
    seen: Option<Observed>,
    generation: u32,
}

/// See the module.
#[pin_data]
pub(crate) struct Observer {
    /// Held while the volume is looked at: a later generation was seen later.
    #[pin]
    last: Mutex<Last>,
}

impl Observer {
    /// Makes the observer of a volume that nobody has looked at. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                last <- new_mutex!(Last {
                    seen: None,
                    generation: 0,
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// Looks at the volume by `look`; returns what it is, and its generation, not 0. `None` if it
    /// has no size: its drive is gone. May sleep.
    pub(crate) fn observe(&self, look: impl FnOnce() -> Observed) -> Option<(Observed, u32)> {
        let mut last = self.last.lock();
        let now = look();
        if now.sectors == 0 {
            return None;
        }
        if last.seen != Some(now) {
            last.seen = Some(now);
            last.generation = match last.generation.wrapping_add(1) {
                0 => 1,
                next => next,
            };
        }
        Some((now, last.generation))
    }
}
