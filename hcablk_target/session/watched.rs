// SPDX-License-Identifier: GPL-2.0

//! Tracks the watch of an initiator on one attached volume.
//!
//! ```text
//!              a watch, and nothing has changed                it has
//!  Unwatched ─────────────────────────────────► Pending(tag) ─────────► response, Unwatched
//!      ├── a watch, and the initiator's state is old: response           │
//!      │ the volume is detached                                          │ the volume is detached: response
//!      └──────────────────────► Ending ◄─────────────────────────────────┘
//!                                  └── a watch: response that it is detached
//! ```

use super::attachment::VolumeNow;
use hcablk_core::{
    proto::message::{
        AdminResponse,
        Status,
        Tag,
        VolumeState, //
    },
    sync::{
        new_irq_lock,
        Event,
        IrqLock, //
    },
};
use kernel::prelude::*;

/// The state of the watch: see the module.
#[derive(Clone, Copy)]
enum Watch {
    Unwatched,
    /// The watch, the state that the initiator knows, and the generation of the limits that it
    /// knows, if it follows them.
    Pending(Tag, VolumeState, Option<u32>),
    /// The volume is being detached; the response to each watch says this.
    Ending,
}

struct WatchState {
    watch: Watch,
    /// The initiator has watched this volume before.
    has_watched: bool,
}

/// The result of beginning a watch.
pub(crate) enum WatchStart {
    Pending,
    /// The volume has a watch already, which breaks the protocol.
    Second,
    /// The volume is being detached: the response to the watch must say this.
    Ending,
}

/// Tracks the watch on one volume: see the module. One lock; no other lock is taken inside.
#[pin_data]
pub(crate) struct Watched {
    #[pin]
    state: IrqLock<WatchState>,
    /// Set when the response to a watch has reported the end, or the initiator no longer watches.
    #[pin]
    end_noticed: Event,
}

impl Watched {
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            state <- new_irq_lock!(WatchState {
                watch: Watch::Unwatched,
                has_watched: false,
            }, "hcablk_watched"),
            end_noticed <- Event::new(),
        })
    }

    /// Stores a watch until the volume differs from the state that the initiator knows (`known`,
    /// and the limits of `generation`). Any context.
    pub(crate) fn begin(
        &self,
        tag: Tag,
        known: VolumeState,
        generation: Option<u32>,
    ) -> WatchStart {
        let mut state = self.state.lock();
        state.has_watched = true;
        match state.watch {
            Watch::Unwatched => {
                state.watch = Watch::Pending(tag, known, generation);
                WatchStart::Pending
            }
            Watch::Pending(..) => WatchStart::Second,
            Watch::Ending => WatchStart::Ending,
        }
    }

    /// Returns the tag of the watch, if there is one. Any context.
    pub(crate) fn tag(&self) -> Option<Tag> {
        match self.state.lock().watch {
            Watch::Pending(tag, ..) => Some(tag),
            _ => None,
        }
    }

    /// Removes the watch of this tag and returns its response, if the volume as it was `now`, read
    /// after the watch was stored, differs from what the initiator knows. Any context.
    pub(crate) fn take_news(&self, of: Tag, now: &VolumeNow) -> Option<AdminResponse> {
        let mut watch_state = self.state.lock();
        let Watch::Pending(tag, known, generation) = watch_state.watch else {
            return None;
        };
        // A later watch has another tag: it names a newer state.
        if tag != of {
            return None;
        }
        let state = VolumeState {
            // `None` for an initiator that does not follow the write cache.
            write_cache: now
                .state
                .write_cache
                .filter(|_| known.write_cache.is_some()),
            ..now.state
        };
        let is_news = match generation {
            Some(known) => known != now.generation,
            None => state != known,
        };
        if !is_news {
            return None;
        }
        watch_state.watch = Watch::Unwatched;
        Some(AdminResponse {
            volume: Some(state),
            limits: generation.map(|_| (now.generation, now.limits)),
            ..AdminResponse::bare(tag, Status::Ok)
        })
    }

    /// Begins the end: returns the watch whose response must report it, and whether the initiator
    /// has ever watched. Any context.
    pub(crate) fn end(&self) -> (Option<Tag>, bool) {
        let mut state = self.state.lock();
        let has_watched = state.has_watched;
        match core::mem::replace(&mut state.watch, Watch::Ending) {
            Watch::Pending(tag, ..) => (Some(tag), has_watched),
            Watch::Unwatched => (None, has_watched),
            Watch::Ending => (None, false),
        }
    }

    /// Records that the initiator was notified of the end, or no longer watches. Any context.
    pub(crate) fn notice_end(&self) {
        self.end_noticed.set();
    }

    /// Waits at most `ms` milliseconds for [`Self::notice_end`]. Returns `false` when the time is
    /// over. Sleeps.
    pub(crate) fn is_noticed_within(&self, ms: u32) -> bool {
        self.end_noticed.wait_ms(ms).is_ok()
    }
}
