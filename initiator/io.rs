// SPDX-License-Identifier: GPL-2.0

//! The I/O path: hardware queues of the disk, their queue pairs, and the transfer of the data of
//! requests.
//!
//! - [`hw_queue`]: a hardware queue, which chooses a path for each request, and the functions that
//!   the block layer calls.
//! - [`queue`]: a queue pair and its state for each tag; [`life`]: its start, its keep-alives and
//!   its end.
//! - [`issue`]: turns requests of the block layer into work requests; [`send_queue`]: credits,
//!   slots, doorbells.
//! - [`data_paths`]: the data paths of requests; [`eager`], [`registered`]: two of them.
//! - [`complete`]: handles the target's responses and ends requests; [`status`]: translates their
//!   status.
//! - [`trace`]: describes queues and requests to tracepoints.
//! - [`user`]: a disk as the user of a queue pair.
//!
//! A 4 KiB write passes `Driver::queue_rq` and `HwQueue::issue` (`hw_queue.rs`), `Queue::issue` and
//! `submit` (`issue.rs`), the steps of its data path (`eager.rs`), `post_or_queue`
//! (`send_queue.rs`), and, when its response comes, `receive`, `respond_eager` and `finish`
//! (`complete.rs`).

mod complete;
mod data_paths;
mod eager;
mod hw_queue;
mod issue;
mod life;
mod queue;
mod registered;
mod send_queue;
mod status;
mod trace;
mod user;

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
    user::QueueUser,
};
