// SPDX-License-Identifier: GPL-2.0

//! Interrupt batching: which answers shall interrupt. Uses nothing but `core`:
//! its tests run on the host.
//!
//! The answer to a *loud* request interrupts, that to a *quiet* one need not:
//! it is found together with a loud one's, or by whoever issues more requests.
//!
//! ```text
//!               outstanding >= upper
//!    Each ────────────────────────────► Batched
//!      ▲                                   │
//!      └───────────────────────────────────┘
//!        outstanding < lower, for upper requests in a row
//! ```
//!
//! - In `Each` all requests are loud.
//! - In `Batched` they are quiet, but for one that finds no loud one
//!   outstanding, and but for the last of those issued at once after a period
//!   of quiet ones, or any after two. The period is half of what is
//!   outstanding, so that loud answers come before everything is answered.
//!
//! That fewer than `lower` are outstanding must last, for so it is for a moment
//! whenever a whole batch of answers was seen and the next is being issued.
//!
//! A burst may end after any request, and quiet ones may be what is left. So
//! the completion queue is armed by what is outstanding after each round:
//!
//! | quiet | loud | armed for | because |
//! |---|---|---|---|
//! | none | any | loud answers | there are no others |
//! | some | none | any completion | nothing else would tell |
//! | some | some | loud answers, and looked at again soon | a loud one will tell, unless it is slow |
//!
//! A request may *linger* after its answer, until own work on it completes (the
//! SEND of its data, an invalidation), which makes no event of its own. That is
//! treated like a quiet answer; but in `Each` it is listened for any completion
//! at once.
//!
//! The same is made sure of by who issues a quiet request, since the handler
//! may be resting after a round that knew of none. With a loud one outstanding,
//! as there always is then, all that is missing is that it looks again soon.
//!
//! That is all that keeps a quiet answer from being stranded: when the last
//! loud one is answered, the round that finds it arms for any completion, and
//! whatever is issued then is loud. No request has to come.

/// Whether an answer shall interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voice {
    /// It shall.
    Loud,
    /// It need not.
    Quiet,
}

/// What has to be listened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    /// Loud answers.
    Loud,
    /// Any completion.
    Any,
    /// Loud answers; but look soon, even if none comes.
    LoudOrSoon,
}

/// Requests after which one who issues looks for answers himself, if none was
/// seen meanwhile.
const REAP: u32 = 16;
/// Longest period.
const PERIOD: u32 = 24;

/// The account of one queue. Kept under the lock under which requests are
/// issued and answers are taken.
#[derive(Debug)]
pub(crate) struct Batching {
    /// 0: all requests are loud.
    upper: u32,
    lower: u32,
    batched: bool,
    /// Requests in a row that found fewer than `lower` outstanding.
    below: u32,
    loud: u32,
    quiet: u32,
    lingering: u32,
    /// Quiet requests since the last loud one.
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
            loud: 0,
            quiet: 0,
            lingering: 0,
            since: 0,
            unseen: 0,
        }
    }

    /// A request is about to be issued, the `last` of those issued at once.
    #[inline]
    pub(crate) fn issue(&mut self, last: bool) -> Voice {
        let outstanding = self.loud + self.quiet + 1;
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
        if self.batched && self.loud != 0 && self.since + 1 < self.span(outstanding, last) {
            self.quiet += 1;
            self.since += 1;
            Voice::Quiet
        } else {
            self.loud += 1;
            self.since = 0;
            Voice::Loud
        }
    }

    /// The last of so many requests is loud.
    #[inline]
    fn span(&self, outstanding: u32, last: bool) -> u32 {
        let period = (outstanding / 2).min(PERIOD);
        if last {
            period
        } else {
            2 * period
        }
    }

    /// A request was answered that was issued as `voice`.
    #[inline]
    pub(crate) fn answered(&mut self, voice: Voice) {
        let count = match voice {
            Voice::Loud => &mut self.loud,
            Voice::Quiet => &mut self.quiet,
        };
        *count = count.saturating_sub(1);
        self.unseen = 0;
    }

    /// Whether no request waits for its answer.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.loud + self.quiet == 0
    }

    /// An answered request lingers.
    #[inline]
    pub(crate) fn linger(&mut self) {
        self.lingering += 1;
    }

    /// So many do so no more.
    #[inline]
    pub(crate) fn lingered(&mut self, count: u32) {
        self.lingering = self.lingering.saturating_sub(count);
    }

    /// What to listen for now.
    #[inline]
    pub(crate) fn listen(&self) -> Listen {
        if self.lingering != 0 && !self.batched {
            return Listen::Any;
        }
        match (self.quiet + self.lingering, self.loud) {
            (0, _) => Listen::Loud,
            (_, 0) => Listen::Any,
            _ => Listen::LoudOrSoon,
        }
    }

    /// One who issues has done so for now: whether he shall look for answers.
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
