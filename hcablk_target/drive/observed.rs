// SPDX-License-Identifier: GPL-2.0

//! Records the last observed state of a volume. Neither block devices nor files notify their users
//! of changes, so each session checks by itself. The observations of all sessions are numbered: an
//! initiator with several paths gets a notice of each change over each path, and needs the
//! generation to know which one is newer.

use hcablk_core::proto::message::VolumeLimits;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

/// The properties of a volume that may change while it is exported.
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

/// The observer of one volume: see the module.
#[pin_data]
pub(crate) struct Observer {
    /// Held while the volume is observed: a later generation is a later observation.
    #[pin]
    last: Mutex<Last>,
}

impl Observer {
    /// Creates the observer of a volume that was not observed yet. May sleep.
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

    /// Observes the volume with `look`. Returns its state, and its generation, not 0; `None` if the
    /// volume has no size, since its drive was removed. May sleep.
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
