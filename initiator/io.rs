// SPDX-License-Identifier: GPL-2.0

//! The I/O path: hardware queues of the disk, their queue pairs, and what moves the data of
//! requests.
//!
//! - [`hw_queue`]: a hardware queue, which chooses a path for each request, and what the block
//!   layer calls.
//! - [`queue`]: a queue pair, with what it keeps for each tag; [`life`]: its beginning, its
//!   keep-alives and its end.
//! - [`issue`]: from a request of the block layer to work requests; [`send_queue`]: credits, slots,
//!   doorbells.
//! - [`transfers`]: how the data of a request moves; [`eager`], [`registered`]: two of the ways.
//! - [`complete`]: from the target's response to the end of a request; [`status`]: with what
//!   status.
//! - [`trace`]: what tracepoints report.
//!
//! A 4 KiB write passes `Driver::queue_rq` and `HwQueue::issue` (`hw_queue.rs`), `Queue::issue` and
//! `submit` (`issue.rs`), the steps of its way (`eager.rs`), `post_or_queue` (`send_queue.rs`),
//! and, when its response comes, `receive`, `respond_eager` and `finish` (`complete.rs`).

mod complete;
mod eager;
mod hw_queue;
mod issue;
mod life;
mod queue;
mod registered;
mod send_queue;
mod status;
mod trace;
mod transfers;

pub(crate) use self::{
    hw_queue::{
        Driver,
        HwQueues,
        NoPath,
        Retired, //
    },
    queue::{
        Queue,
        QueueConfig, //
    },
};
