// SPDX-License-Identifier: GPL-2.0

//! Interrupt batching: decides which responses are solicited, that is, interrupt. Uses nothing
//! but `core`: its tests run on the host.
//!
//! The response to a *solicited* request raises a completion event. The response to an
//! *unsolicited* one (a quiet request, on the wire) raises none: the handler finds it together with
//! a solicited one, or the task that issues more requests finds it.
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
//! - In `Batched` a request is solicited only if no solicited one is outstanding, if it is the last
//!   of several issued at once and the last solicited one was issued a period ago, or if that was
//!   issued two periods ago. The period is half of the outstanding requests, but not more than
//!   `PERIOD`, so that a solicited response comes before all responses have come.
//!
//! The number outstanding must remain below `lower` for a while, since it falls below for a moment
//! whenever a whole batch of responses was handled and the next is being issued.
//!
//! A burst may end after any request, and only unsolicited ones may be left. So each round arms the
//! completion queue according to the outstanding requests:
//!
//! | unsolicited | solicited | armed for | reason |
//! |---|---|---|---|
//! | none | any | solicited completions | there are no others |
//! | some | none | any completion | nothing else would raise an event |
//! | some | some | solicited completions, and a timer | the timer bounds the wait if the solicited one is slow |
//!
//! A request with a response may still be *awaiting the completion of its send* (the SEND of its
//! data, an invalidation), which raises no solicited event. It counts as an unsolicited response;
//! in `Each` the queue is then armed for any completion at once.
//!
//! The issuer of an unsolicited request starts the timer too, since the handler may have armed the
//! queue after a round that saw no unsolicited request. A solicited one is always outstanding at
//! that point, so only the timer is missing.
//!
//! This suffices to find every unsolicited response: the round that handles the last solicited
//! response arms for any completion, and all requests issued after that are solicited. No further
//! request is required.

/// Whether a response raises a completion event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Solicited {
    /// The response raises a completion event.
    Yes,
    /// The response need not raise a completion event.
    No,
}

/// The completions for which the completion queue must be armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArmFor {
    /// Solicited ones.
    Solicited,
    /// Any.
    Any,
    /// Solicited ones, with a timer in case none comes.
    SolicitedOrTimer,
}

/// Requests after which the issuer polls for responses itself, if it has seen none since.
const REAP: u32 = 16;
/// Longest period.
const PERIOD: u32 = 24;

/// The outstanding requests, and whether responses are batched, in one word, which is published
/// unchanged for code that arms the completion queue without the lock.
///
/// | bits | what they count |
/// |---|---|
/// | 0–15 | solicited requests that wait for their responses |
/// | 16–31 | unsolicited ones |
/// | 32–47 | requests with a response that await the completion of their send |
/// | 48 | 1 in `Batched` |
///
/// No count overflows its bits: each counts different tags of a queue, of which there are at most
/// 1024, and only counted requests are subtracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outstanding(u64);

impl Outstanding {
    const SOLICITED: u64 = 1;
    const UNSOLICITED: u64 = 1 << 16;
    const AWAITING_SEND: u64 = 1 << 32;
    const BATCHED: u64 = 1 << 48;

    /// No request is outstanding, in `Each`.
    pub(crate) const NOTHING: Self = Self(0);

    /// Decodes the result of [`Self::word`].
    #[inline]
    pub(crate) fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Encodes the state in a word, for publication.
    #[inline]
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    #[inline]
    fn solicited(self) -> u32 {
        (self.0 as u16).into()
    }

    #[inline]
    fn unsolicited(self) -> u32 {
        ((self.0 >> 16) as u16).into()
    }

    #[inline]
    fn awaiting_send(self) -> u32 {
        ((self.0 >> 32) as u16).into()
    }

    #[inline]
    fn is_batched(self) -> bool {
        self.0 & Self::BATCHED != 0
    }

    #[inline]
    fn add(&mut self, what: u64) {
        self.0 = self.0.wrapping_add(what);
    }

    #[inline]
    fn take(&mut self, what: u64) {
        self.0 = self.0.wrapping_sub(what);
    }

    /// Returns how many requests wait for their responses.
    #[inline]
    pub(crate) fn requests(self) -> u32 {
        self.solicited() + self.unsolicited()
    }

    /// Returns whether no request waits for its response.
    #[inline]
    pub(crate) fn is_idle(self) -> bool {
        self.0 as u32 == 0
    }

    /// Returns the completions for which the completion queue must be armed.
    #[inline]
    pub(crate) fn arm_for(self) -> ArmFor {
        let awaiting_send = self.awaiting_send();
        if awaiting_send != 0 && !self.is_batched() {
            return ArmFor::Any;
        }
        match (self.unsolicited() + awaiting_send, self.solicited()) {
            (0, _) => ArmFor::Solicited,
            (_, 0) => ArmFor::Any,
            _ => ArmFor::SolicitedOrTimer,
        }
    }
}

/// The account of one queue. Guarded by the lock under which requests are issued and responses
/// are handled.
///
/// None of the counts wraps: they count requests that wait for their responses, of which there are
/// no more than tags, or are reset before they exceed `upper` or two periods.
#[derive(Debug)]
pub(crate) struct Batching {
    /// The number of outstanding requests from which responses are batched; 0: all are solicited.
    upper: u32,
    lower: u32,
    /// Requests in a row that found fewer than `lower` outstanding.
    below: u32,
    outstanding: Outstanding,
    /// Unsolicited requests since the last solicited one.
    since: u32,
    /// Requests issued since a response was seen.
    unseen: u32,
}

impl Batching {
    /// Batches from `upper` requests outstanding (0: never) until there are fewer than `lower` for
    /// a while; a `lower` above `upper` counts as `upper`.
    pub(crate) fn new(upper: u32, lower: u32) -> Self {
        Self {
            upper,
            lower: lower.min(upper),
            below: 0,
            outstanding: Outstanding::NOTHING,
            since: 0,
            unseen: 0,
        }
    }

    /// Decides whether the response to the next request is solicited; `last`: no other request
    /// follows at once.
    #[inline(always)]
    pub(crate) fn issue(&mut self, last: bool) -> Solicited {
        let outstanding = self.outstanding.requests() + 1;
        self.choose(outstanding);
        self.unseen = self.unseen.wrapping_add(1);
        let now = self.outstanding;
        let quiet = now.is_batched()
            && now.solicited() != 0
            && self.since.wrapping_add(1) < self.span(outstanding, last);
        if quiet {
            self.outstanding.add(Outstanding::UNSOLICITED);
            self.since = self.since.wrapping_add(1);
            Solicited::No
        } else {
            self.outstanding.add(Outstanding::SOLICITED);
            self.since = 0;
            Solicited::Yes
        }
    }

    /// Chooses between `Each` and `Batched`, according to the outstanding requests, including the
    /// next one.
    #[inline(always)]
    fn choose(&mut self, outstanding: u32) {
        if self.outstanding.is_batched() && outstanding < self.lower {
            self.below = self.below.wrapping_add(1);
            if self.below >= self.upper {
                self.outstanding.take(Outstanding::BATCHED);
            }
            return;
        }
        self.below = 0;
        if !self.outstanding.is_batched() && self.upper != 0 && outstanding >= self.upper {
            self.outstanding.add(Outstanding::BATCHED);
        }
    }

    /// Returns the period: the last of this many requests is solicited.
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
    pub(crate) fn responded(&mut self, solicited: Solicited) {
        self.outstanding.take(match solicited {
            Solicited::Yes => Outstanding::SOLICITED,
            Solicited::No => Outstanding::UNSOLICITED,
        });
        self.unseen = 0;
    }

    /// Returns the outstanding requests.
    #[inline]
    pub(crate) fn outstanding(&self) -> Outstanding {
        self.outstanding
    }

    /// Accounts for a request with a response that awaits its send's completion.
    #[inline]
    pub(crate) fn await_send(&mut self) {
        self.outstanding.add(Outstanding::AWAITING_SEND);
    }

    /// Accounts for `count` awaited sends that have completed.
    #[inline]
    pub(crate) fn sends_completed(&mut self, count: u32) {
        let count = count.min(self.outstanding.awaiting_send());
        self.outstanding
            .take(u64::from(count) * Outstanding::AWAITING_SEND);
    }

    /// Returns whether the issuer, which has issued its last request for now, must poll for
    /// responses.
    #[inline]
    pub(crate) fn shall_reap(&mut self) -> bool {
        let shall = self.outstanding.is_batched() && self.unseen >= REAP;
        if shall {
            self.unseen = 0;
        }
        shall
    }
}

#[cfg(test)]
mod tests;
