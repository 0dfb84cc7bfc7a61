// SPDX-License-Identifier: GPL-2.0

//! Interrupt batching: decides which responses are solicited, that is, interrupt. Uses nothing
//! but `core`: its tests run on the host.
//!
//! The response to a *solicited* request raises a completion event. That to an *unsolicited* one
//! (a quiet request, on the wire) raises none: the handler finds it together with a solicited
//! one, or the task that issues more requests finds it.
//!
//! ```text
//!               outstanding >= upper
//!    Each ────────────────────────────► Batched
//!      ▲                                   │
//!      └───────────────────────────────────┘
//!        outstanding < lower, for upper requests in a row
//! ```
//!
//! - In `Each` all requests are solicited.
//! - In `Batched` they are unsolicited, except one that finds no solicited one outstanding, the
//!   last of those issued at once after a period of unsolicited ones, and any after two periods.
//!   The period is half of what is outstanding, but not more than `PERIOD`, so that a
//!   solicited response comes before everything is answered.
//!
//! The number outstanding must stay below `lower` for a while, since it is below for a moment
//! whenever a whole batch of responses was handled and the next is being issued.
//!
//! A burst may end after any request, and only unsolicited ones may be left. So each round arms
//! the completion queue for what is outstanding:
//!
//! | unsolicited | solicited | armed for | reason |
//! |---|---|---|---|
//! | none | any | solicited completions | there are no others |
//! | some | none | any completion | nothing else would raise an event |
//! | some | some | solicited completions, and a timer | the timer bounds the wait if the solicited one is slow |
//!
//! A request that was answered may still be *awaiting the completion of its send* (the SEND of
//! its data, an invalidation), which raises no solicited event. It counts as an unsolicited
//! response; in `Each` the queue is then armed for any completion at once.
//!
//! The issuer of an unsolicited request starts the timer too, since the handler may have armed
//! the queue after a round that knew of none. A solicited one is always outstanding then, so the
//! timer is all that is missing.
//!
//! Nothing else is needed so that no unsolicited response is stranded: the round that handles the
//! last solicited response arms for any completion, and whatever is issued after that is
//! solicited. No further request has to come.

/// Whether a response raises a completion event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Solicited {
    /// It does.
    Yes,
    /// It need not.
    No,
}

/// The completions to arm the completion queue for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArmFor {
    /// Solicited ones.
    Solicited,
    /// Any.
    Any,
    /// Solicited ones, with a timer in case none comes.
    SolicitedOrTimer,
}

/// Requests after which the issuer polls for responses itself, if none was seen meanwhile.
const REAP: u32 = 16;
/// Longest period.
const PERIOD: u32 = 24;

/// The account of one queue. Guarded by the lock under which requests are issued and responses
/// are handled.
#[derive(Debug)]
pub(crate) struct Batching {
    /// Requests outstanding from which responses are batched; 0: all are solicited.
    upper: u32,
    lower: u32,
    batched: bool,
    /// Requests in a row that found fewer than `lower` outstanding.
    below: u32,
    solicited: u32,
    unsolicited: u32,
    awaiting_send: u32,
    /// Unsolicited requests since the last solicited one.
    since: u32,
    /// Requests issued since an answer was seen.
    unseen: u32,
}

impl Batching {
    /// Batches from `upper` requests outstanding, 0: never, until there are
    /// fewer than `lower` for a while; a `lower` above `upper` counts as that.
    pub(crate) fn new(upper: u32, lower: u32) -> Self {
        Self {
            upper,
            lower: lower.min(upper),
            batched: false,
            below: 0,
            solicited: 0,
            unsolicited: 0,
            awaiting_send: 0,
            since: 0,
            unseen: 0,
        }
    }

    /// Decides for a request that is about to be issued whether its response is solicited;
    /// `last`: no other follows at once.
    #[inline(always)]
    pub(crate) fn issue(&mut self, last: bool) -> Solicited {
        let outstanding = self.solicited + self.unsolicited + 1;
        if !self.batched {
            self.batched = self.upper != 0 && outstanding >= self.upper;
            self.below = 0;
        } else if outstanding >= self.lower {
            self.below = 0;
        } else {
            self.below += 1;
            self.batched = self.below < self.upper;
        }
        self.unseen += 1;
        if self.batched && self.solicited != 0 && self.since + 1 < self.span(outstanding, last) {
            self.unsolicited += 1;
            self.since += 1;
            Solicited::No
        } else {
            self.solicited += 1;
            self.since = 0;
            Solicited::Yes
        }
    }

    /// Returns of how many requests the last one is solicited.
    #[inline]
    fn span(&self, outstanding: u32, last: bool) -> u32 {
        let period = (outstanding / 2).min(PERIOD);
        if last {
            period
        } else {
            2 * period
        }
    }

    /// Accounts for the response to a request that was issued as `solicited`.
    #[inline]
    pub(crate) fn answered(&mut self, solicited: Solicited) {
        let count = match solicited {
            Solicited::Yes => &mut self.solicited,
            Solicited::No => &mut self.unsolicited,
        };
        *count = count.saturating_sub(1);
        self.unseen = 0;
    }

    /// Returns how many requests wait for their responses.
    #[inline]
    pub(crate) fn outstanding(&self) -> u32 {
        self.solicited + self.unsolicited
    }

    /// Returns whether no request waits for its response.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.solicited + self.unsolicited == 0
    }

    /// Accounts for an answered request that awaits its send's completion.
    #[inline]
    pub(crate) fn await_send(&mut self) {
        self.awaiting_send += 1;
    }

    /// Accounts for `count` awaited sends that have completed.
    #[inline]
    pub(crate) fn sends_completed(&mut self, count: u32) {
        self.awaiting_send = self.awaiting_send.saturating_sub(count);
    }

    /// Returns what to arm the completion queue for.
    #[inline]
    pub(crate) fn arm_for(&self) -> ArmFor {
        if self.awaiting_send != 0 && !self.batched {
            return ArmFor::Any;
        }
        match (self.unsolicited + self.awaiting_send, self.solicited) {
            (0, _) => ArmFor::Solicited,
            (_, 0) => ArmFor::Any,
            _ => ArmFor::SolicitedOrTimer,
        }
    }

    /// Returns whether the issuer, which has issued its last request for now, is to poll for
    /// responses.
    #[inline]
    pub(crate) fn shall_reap(&mut self) -> bool {
        let shall = self.batched && self.unseen >= REAP;
        if shall {
            self.unseen = 0;
        }
        shall
    }
}

#[cfg(test)]
mod tests;
