// SPDX-License-Identifier: GPL-2.0

//! Buffers of messages that a queue pair sends or receives, each of the largest message's length.

use crate::verbs::{
    device::ProtectionDomain,
    memory::{Access, Region, Sge},
    queue::QueuePair,
};
use hcablk_core::proto::message::BUFFER_LEN;
use nix::errno::Errno;
use std::sync::Arc;

/// The buffers; see the module.
pub(crate) struct Messages(Region);

impl Messages {
    /// Makes `count` buffers.
    pub(crate) fn new(pd: &Arc<ProtectionDomain>, count: usize) -> Result<Self, Errno> {
        let region = Region::new(pd, count * BUFFER_LEN, Access::Local, None)?;
        Ok(Self(region))
    }

    /// Posts a buffer, to receive a message; the completion has this `id`.
    pub(crate) fn receive(
        &self,
        pair: &mut QueuePair,
        buffer: usize,
        id: u64,
    ) -> Result<(), Errno> {
        let begin = buffer * BUFFER_LEN;
        let sge = self.0.sge(begin..begin + BUFFER_LEN);
        pair.receive(sge.ok_or(Errno::EINVAL)?, id)
    }

    /// Copies the message that a buffer has received; returns `false` if the buffer does not exist.
    #[must_use]
    pub(crate) fn received(&self, buffer: usize, message: &mut [u8]) -> bool {
        self.0.read(buffer.saturating_mul(BUFFER_LEN), message)
    }

    /// Puts a message into a buffer, to be sent. Returns `None` if the buffer does not exist, or is
    /// too small.
    pub(crate) fn put(&self, buffer: usize, message: &[u8]) -> Option<Sge> {
        let begin = buffer * BUFFER_LEN;
        let written = message.len() <= BUFFER_LEN && self.0.write(begin, message);
        self.0.sge(begin..begin + message.len()).filter(|_| written)
    }
}
