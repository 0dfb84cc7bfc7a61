// SPDX-License-Identifier: GPL-2.0

//! What an initiator watches of a volume that is attached.
//!
//! ```text
//!              a watch, and nothing has changed                it has
//!  Unwatched ─────────────────────────────────► Kept(tag) ────────────► answer, Unwatched
//!      ├── a watch, and what it knows is not so: answer, Unwatched       │
//!      │ the volume is detached                                          │ the volume is detached: answer
//!      └──────────────────────► Ending ◄─────────────────────────────────┘
//!                                  └── a watch: answer that it is detached
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

/// See the module's picture.
#[derive(Clone, Copy)]
enum Watch {
    Unwatched,
    /// What the initiator knows, and the generation of the limits that it knows, if it follows
    /// these.
    Kept(Tag, VolumeState, Option<u32>),
    /// The volume is being detached, and each watch is answered so.
    Ending,
}

struct State {
    watch: Watch,
    /// There was one.
    has_watched: bool,
}

/// What becomes of a watch that came.
pub(crate) enum Begun {
    Kept,
    /// There is one already, which breaks the protocol.
    Second,
    /// The volume is being detached: it is to be answered so.
    Ending,
}

/// See the module. One lock; nothing is locked inside.
#[pin_data]
pub(crate) struct Watched {
    #[pin]
    state: IrqLock<State>,
    /// A watch was answered with the end, or nobody watches any more.
    #[pin]
    told_gone: Event,
}

impl Watched {
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            state <- new_irq_lock!(State {
                watch: Watch::Unwatched,
                has_watched: false,
            }, "hcablk_watched"),
            told_gone <- Event::new(),
        })
    }

    /// Keeps a watch until what the initiator knows (`known`, and the limits of `generation`) is no
    /// longer so. Any context.
    pub(crate) fn begin(&self, tag: Tag, known: VolumeState, generation: Option<u32>) -> Begun {
        let mut state = self.state.lock();
        state.has_watched = true;
        match state.watch {
            Watch::Unwatched => {
                state.watch = Watch::Kept(tag, known, generation);
                Begun::Kept
            }
            Watch::Kept(..) => Begun::Second,
            Watch::Ending => Begun::Ending,
        }
    }

    /// Returns the tag of the watch, if there is one. Any context.
    pub(crate) fn tag(&self) -> Option<Tag> {
        match self.state.lock().watch {
            Watch::Kept(tag, ..) => Some(tag),
            _ => None,
        }
    }

    /// Takes the watch of this tag, if the volume as it was `now`, after that was there, is not
    /// what its initiator knows, and returns the answer. Any context.
    pub(crate) fn take_news(&self, of: Tag, now: &VolumeNow) -> Option<AdminResponse> {
        let mut kept = self.state.lock();
        let Watch::Kept(tag, known, generation) = kept.watch else {
            return None;
        };
        // A later watch knows more.
        if tag != of {
            return None;
        }
        let state = VolumeState {
            // Not to an initiator that does not follow it.
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
        kept.watch = Watch::Unwatched;
        Some(AdminResponse {
            volume: Some(state),
            limits: generation.map(|_| (now.generation, now.limits)),
            ..AdminResponse::bare(tag, Status::Ok)
        })
    }

    /// Begins the end: returns the watch that is to be answered so, and whether the initiator has
    /// ever watched. Any context.
    pub(crate) fn end(&self) -> (Option<Tag>, bool) {
        let mut state = self.state.lock();
        let has_watched = state.has_watched;
        match core::mem::replace(&mut state.watch, Watch::Ending) {
            Watch::Kept(tag, ..) => (Some(tag), has_watched),
            Watch::Unwatched => (None, has_watched),
            Watch::Ending => (None, false),
        }
    }

    /// Records that the initiator was told of the end, or that nobody watches any more. Any
    /// context.
    pub(crate) fn told(&self) {
        self.told_gone.set();
    }

    /// Waits at most `ms` milliseconds for that; returns whether it is so. Sleeps.
    pub(crate) fn is_told_within(&self, ms: u32) -> bool {
        self.told_gone.wait_ms(ms).is_ok()
    }
}
