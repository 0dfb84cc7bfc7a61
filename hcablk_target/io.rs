// SPDX-License-Identifier: GPL-2.0

//! The I/O path: a queue pair of a session, and the requests that it carries.
//!
//! - [`queue`]: the queue pair, its completions, its keep-alives, its end; [`setup`]: its creation;
//!   [`limits`], [`cost`]: its sizes; [`queue_volume`]: a volume as its requests use it.
//! - [`receive`]: turns a message into requests, and begins them; [`validate`]: checks a request
//!   against its volume.
//! - [`request`]: one request; [`buffers`]: its transfer buffers.
//! - [`rdma_read`], [`eager`]: where the data of writes comes from.
//! - [`chunks`], [`split`]: large requests, which move in chunks.
//! - [`drive`], [`cache`], [`p2p`]: the drive's part of a request; a volume's cache lines; data in
//!   the memory of PCI devices.
//! - [`respond`], [`reclaim`]: the response; makes a request idle when its SEND has completed.
//! - [`fault`]: the errors that end a session; [`stats`]: the counters.
//!
//! A 4 KiB write whose data comes through the eager ring passes `Queue::receive`, `admit` and
//! `start` (`receive.rs`), `begin` and `bio_done` (`drive.rs`), `respond` (`respond.rs`),
//! `respond_eager` (`eager.rs`), and, when its SEND has completed, `release` (`reclaim.rs`).

mod buffers;
mod cache;
mod chunks;
mod cost;
mod drive;
mod eager;
mod fault;
mod limits;
mod p2p;
mod queue;
mod queue_volume;
mod rdma_read;
mod receive;
mod reclaim;
mod request;
mod respond;
mod setup;
pub(crate) mod split;
mod stats;
pub(crate) mod validate;

pub(crate) use self::{
    cost::bytes_of_messages,
    fault::Fault,
    limits::{
        QueueOptions,
        QueueShape, //
    },
    queue::{
        Flushes,
        Queue,
        QueueConfig, //
    },
    queue_volume::{
        Gone,
        VolumeConfig, //
    },
};
