// SPDX-License-Identifier: GPL-2.0

//! The settings of users, and their defaults.

use crate::shape::BATCH_MAX;
use core::{
    fmt,
    net::IpAddr, //
};
use hcablk_core::proto::{
    name::{
        HostId,
        VolumeId,
        VolumeName, //
    },
    TRANSFER_USUAL,
    VERSION_OF_HOST,
    VERSION_OF_VOLUME, //
};

/// Default of `small_read`: copies are cheaper up to this size, see `bench/README.md`.
const SMALL_READ: u32 = 8192;
/// Default of `small_write`.
const SMALL_WRITE: u32 = 4096;
/// Default of `eager_write`: larger ones gain nothing, and fill the eager ring.
const EAGER_WRITE: u32 = 32768;
/// Default of `max_io_kib`: a larger one takes more memory for each request in flight.
const MAX_IO_KIB: u32 = TRANSFER_USUAL >> 10;
/// Default of `message_requests`.
const MESSAGE_REQUESTS: u32 = BATCH_MAX as u32;
/// Default of `ctrl_loss_tmo`, as in nvme.
const CTRL_LOSS_TMO_S: u32 = 600;
/// Default of `keep_alive_tmo`, as in nvme.
const KEEP_ALIVE_TMO_S: u16 = 5;
/// Default of `batch_upper`.
const BATCH_UPPER: u32 = 32;
/// Default of `batch_lower`.
const BATCH_LOWER: u32 = 16;
/// Largest `small_read`.
pub(crate) const SMALL_READ_MAX: u32 = 65536;

/// The policy that chooses among the live paths of a disk for each request; nvme's `iopolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The path with the fewest requests in flight.
    #[default]
    QueueDepth,
    /// The paths in turn.
    RoundRobin,
    /// The path whose RDMA device is nearest to the processor.
    Numa,
}

impl Policy {
    const ALL: [Self; 3] = [Self::QueueDepth, Self::RoundRobin, Self::Numa];

    fn name(self) -> &'static str {
        match self {
            Self::QueueDepth => "queue-depth",
            Self::RoundRobin => "round-robin",
            Self::Numa => "numa",
        }
    }

    /// Returns the policy of this name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The versions of the protocol in a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) min: u8,
    pub(crate) max: u8,
    /// The session is requested without its volume, which is attached later: version 3.
    pub(crate) is_of_host: bool,
}

/// The settings of a disk.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
    pub(crate) volume: Option<VolumeName>,
    pub(crate) host: Option<HostId>,
    /// The volume's expected identity, if that matters.
    pub(crate) expect_wwid: Option<VolumeId>,
    /// 0: one for each processor.
    pub(crate) queues: u8,
    /// Queue pairs for polled I/O, in addition to `queues`.
    pub(crate) poll_queues: u8,
    pub(crate) depth: u16,
    pub(crate) io_timeout_s: u32,
    pub(crate) connect_timeout_s: u32,
    /// Seconds between two attempts to connect a lost disk again.
    pub(crate) reconnect_delay_s: u32,
    /// Seconds for which a lost disk is reconnected; 0: not at all; `None`: for ever.
    pub(crate) ctrl_loss_tmo_s: Option<u32>,
    /// Seconds within which the target must respond to a keep-alive.
    pub(crate) keep_alive_tmo_s: u16,
    /// Seconds for which requests of a lost disk wait; `None`: as for `ctrl_loss_tmo`.
    pub(crate) fast_io_fail_tmo_s: Option<u32>,
    pub(crate) remote_invalidate: bool,
    /// A host with a key connects without a proof to a target whose key is not set.
    pub(crate) insecure: bool,
    /// Bytes of the largest read that registers no memory.
    pub(crate) small_read: u32,
    /// Bytes of the largest inline write.
    pub(crate) small_write: u32,
    /// Bytes of the largest write through the eager ring.
    pub(crate) eager_write: u32,
    /// KiB of the largest request.
    pub(crate) max_io_kib: u32,
    /// The most requests in one message.
    pub(crate) message_requests: u32,
    /// Outstanding requests on a queue from which interrupts are batched; 0: never.
    pub(crate) batch_upper: u32,
    /// Outstanding requests below which batching ends.
    pub(crate) batch_lower: u32,
    /// The path policy.
    pub(crate) policy: Policy,
    /// User space adds a path for each portal of the target.
    pub(crate) paths_auto: bool,
    /// Lowest and highest protocol version offered.
    pub(crate) protocol: (u8, u8),
}

impl Settings {
    /// Returns the versions to offer first.
    pub(crate) fn first_offer(&self) -> Offer {
        let (min, max) = self.protocol;
        match (min..=max).contains(&VERSION_OF_HOST) {
            true => Offer {
                min: VERSION_OF_HOST,
                max,
                is_of_host: true,
            },
            false => Offer {
                min,
                max,
                is_of_host: false,
            },
        }
    }

    /// Returns the versions to offer after `refused`, if any are left.
    pub(crate) fn next_offer(&self, refused: Offer) -> Option<Offer> {
        let (min, _) = self.protocol;
        (refused.is_of_host && min <= VERSION_OF_VOLUME).then_some(Offer {
            min,
            max: VERSION_OF_VOLUME,
            is_of_host: false,
        })
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            address: None,
            port: 7744,
            volume: None,
            host: None,
            expect_wwid: None,
            queues: 0,
            poll_queues: 0,
            depth: 128,
            io_timeout_s: 30,
            connect_timeout_s: 10,
            reconnect_delay_s: 1,
            ctrl_loss_tmo_s: Some(CTRL_LOSS_TMO_S),
            fast_io_fail_tmo_s: None,
            keep_alive_tmo_s: KEEP_ALIVE_TMO_S,
            remote_invalidate: true,
            insecure: false,
            small_read: SMALL_READ,
            small_write: SMALL_WRITE,
            eager_write: EAGER_WRITE,
            max_io_kib: MAX_IO_KIB,
            message_requests: MESSAGE_REQUESTS,
            batch_upper: BATCH_UPPER,
            batch_lower: BATCH_LOWER,
            policy: Policy::default(),
            paths_auto: false,
            protocol: (VERSION_OF_VOLUME, VERSION_OF_HOST),
        }
    }
}
