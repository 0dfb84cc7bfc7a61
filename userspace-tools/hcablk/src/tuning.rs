// SPDX-License-Identifier: GPL-2.0

//! Settings of a device that `hcablk connect` passes to the driver unchanged.

use std::fmt;
use std::str::FromStr;

use clap::{value_parser, Args, ValueEnum};
use serde::Serialize;

use crate::config::value::options::{seconds, size, timeout};
use crate::config::value::KIB;

/// The rule that chooses the path of a request among a disk's live paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The path with the fewest requests in flight
    QueueDepth,
    /// The paths in turn
    RoundRobin,
    /// The path whose RDMA device is nearest to the processor
    Numa,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QueueDepth => "queue-depth",
            Self::RoundRobin => "round-robin",
            Self::Numa => "numa",
        })
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        choice(text)
    }
}

/// Parses a value of an option of the command.
pub fn choice<T: ValueEnum>(text: &str) -> Result<T, String> {
    T::from_str(text, false).map_err(|_| {
        let words: Vec<_> = T::value_variants()
            .iter()
            .filter_map(|variant| Some(variant.to_possible_value()?.get_name().to_owned()))
            .collect();
        format!("{text:?} is none of {}", words.join(", "))
    })
}

/// Declares the settings once: as arguments of the command, and as attributes of the driver with the same names.
macro_rules! settings {
    ($($(#[$meta:meta])* pub $name:ident: $type:ty,)*) => {
        /// Settings that are left out are not written, so that the driver's default holds.
        #[derive(Args, Clone, Debug, Default)]
        pub struct Tuning {
            $($(#[$meta])* pub $name: Option<$type>,)*
        }

        impl Tuning {
            /// Returns attribute and value of each setting that was given.
            pub fn attributes(&self) -> Vec<(&'static str, String)> {
                let all = [$((stringify!($name), self.$name.map(|value| value.to_string())),)*];
                all.into_iter()
                    .filter_map(|(name, value)| Some((name, value?)))
                    .collect()
            }
        }
    };
}

settings! {
    /// Queue pairs, each of them a hardware queue; 0: one per CPU, at most 127 together with --poll-queues [default: 0]
    #[arg(long, value_parser = value_parser!(u16).range(0..=127))]
    pub queues: u16,

    /// Additional queue pairs for polled I/O, such as io_uring's with IORING_SETUP_IOPOLL; at most one per CPU
    /// [default: 0]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(0..=126))]
    pub poll_queues: u16,

    /// Requests per queue [default: 128]
    #[arg(long, value_parser = value_parser!(u16).range(1..=1024))]
    pub queue_depth: u16,

    /// Replace a queue pair when a request has no response within this time [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = seconds::<1, 3600>)]
    pub io_timeout: u32,

    /// Time limit for connecting a path with all its queues, or a replacement queue pair [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = seconds::<1, 600>)]
    pub connect_timeout: u32,

    /// When the connection is lost, keep the disk and retry for this time; `never` or -1: without a limit; 0: requests
    /// fail and the disk is removed [default: 600]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = timeout)]
    pub ctrl_loss_tmo: i64,

    /// When the connection is lost, fail requests after this time; the disk stays and is reconnected; `never` or -1: they
    /// wait [default: never]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = timeout)]
    pub fast_io_fail_tmo: i64,

    /// Consider the path lost when a keep-alive has no response within this time; keep-alives are sent at intervals of
    /// half of it [default: 5]
    #[arg(long, value_name = "SECONDS", value_parser = seconds::<1, 600>)]
    pub keep_alive_tmo: u32,

    /// Minimum time from the start of an attempt to reconnect to the start of the next, randomly reduced by up to half
    /// [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = seconds::<1, 60>)]
    pub reconnect_delay: u32,

    /// Copy the data of reads up to this size instead of registering memory; 0: never [default: 8192]
    #[arg(long, value_name = "BYTES", value_parser = size::<1, 0, 65536, 1>)]
    pub small_read: u32,

    /// Send the data of writes up to this size with the request instead of registering memory; 0: never [default: 4096]
    #[arg(long, value_name = "BYTES", value_parser = size::<1, 0, 65536, 1>)]
    pub small_write: u32,

    /// Use the target's eager ring for writes up to this size; 0: never [default: 32768]
    #[arg(long, value_name = "BYTES", value_parser = size::<1, 0, 1_048_576, 1>)]
    pub eager_write: u32,

    /// Ask the target for requests of up to this many KiB, a multiple of 4; a larger value takes more memory [default:
    /// 1024]
    #[arg(long, value_name = "KIB", value_parser = size::<KIB, 4, 4096, 4>)]
    pub max_io_kib: u32,

    /// Put up to this many requests that are issued together into one message; 1: one message for each [default: 8]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=8))]
    pub message_requests: u32,

    /// Batch interrupts of a queue from this many requests in flight; 0: never [default: 32]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(0..=1024))]
    pub batch_upper: u32,

    /// Stop batching when fewer than this many are in flight [default: 16]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(0..=1024))]
    pub batch_lower: u32,

    /// The rule that chooses the path of a request, if there are several [default: queue-depth]
    #[arg(long)]
    pub policy: Policy,
}
