// SPDX-License-Identifier: GPL-2.0

//! A session's part of a port's memory, and the charges of its queue pairs. [`memory`](super)
//! describes which object frees which memory.

use super::{
    account::{
        Part,
        Places, //
    },
    shared_pool::SharedPool,
    Denied,
    Memory,
    Reserved, //
};
use crate::claimant::Claimant;
use hcablk_core::{
    configfs::Output,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};
use kernel::{
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

/// A session's part of the memory. See the module for its end.
pub(super) struct Membership {
    pub(super) memory: Arc<Memory>,
    /// The owner of the session, for limits.
    pub(super) claimant: Claimant,
    pub(super) shared_pool: Arc<SharedPool>,
    pub(super) index: usize,
    /// The session's first borrower in the account, which borrows nothing: the account has the
    /// client only while the client has a borrower.
    pub(super) borrower: usize,
    pub(super) reserved: u64,
    /// Whether `reserved` is stranded in the account.
    pub(super) stranded: Atomic<bool>,
    /// Whether the session uses the device of the shared pool.
    pub(super) on_device: Atomic<bool>,
    pub(super) wish: u64,
    pub(super) queue_bytes: usize,
}

/// A session as a user of the memory, to which its queue pairs are charged.
#[pin_data]
pub(crate) struct Client {
    part: Membership,
    #[pin]
    places: Mutex<Places>,
}

impl Client {
    /// Creates the user with the part `part`, for `queues` queue pairs of `reserved` bytes each.
    /// May sleep. On failure `part` is dropped, which returns its memory.
    pub(super) fn new(part: Membership, queues: u64, reserved: u64) -> Result<Arc<Self>> {
        let places = Places::new(queues, reserved);
        Arc::pin_init(
            pin_init!(Self {
                part,
                places <- new_mutex!(places),
            }),
            GFP_KERNEL,
        )
    }

    pub(super) fn shared_pool(&self) -> &SharedPool {
        &self.part.shared_pool
    }

    pub(super) fn index(&self) -> usize {
        self.part.index
    }

    /// Returns the bytes of data that each of the session's queue pairs may have, according to the
    /// port's settings when the session began.
    pub(crate) fn queue_bytes(&self) -> usize {
        self.part.queue_bytes
    }

    /// Returns the pages that the session's queue pairs may borrow.
    pub(super) fn most_pages(&self) -> u64 {
        self.part.wish / PAGE_SIZE as u64
    }

    /// Charges `bytes` bytes for a new queue pair. Sleeps.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge, Denied> {
        let part = self.places.lock().take(bytes);
        if let Err(denied) = self.part.memory.charge(self.part.claimant, part.extra) {
            self.places.lock().free_place(part);
            return Err(denied);
        }
        Ok(Charge {
            client: self.clone(),
            part,
        })
    }

    /// Stops charging the host's share for this reservation, within the [account's
    /// rules](super::account): the session has ended, but a drive does not finish its requests.
    /// Extra charges of queue pairs remain charged. Process context.
    #[cold]
    pub(crate) fn strand(&self) {
        if !self.part.stranded.xchg(true, Relaxed) {
            self.part
                .memory
                .strand(self.part.claimant, self.part.reserved);
        }
    }

    /// Records that the session no longer uses the RDMA device: its queue pairs are severed. When
    /// the last session leaves the device, all shared buffers are unmapped from it. The session's
    /// memory stays in the account. Process context; may sleep.
    pub(crate) fn leave_device(&self) {
        self.part.leave_device();
    }

    /// Prints the session's bytes (reserved, allowed to borrow, borrowed), and the number of times
    /// that it waited for buffers of others.
    pub(crate) fn show(&self, out: &mut Output<'_>) -> Result {
        let standing = self.shared_pool().standing(self.index());
        let page = PAGE_SIZE as u64;
        writeln!(
            out,
            "{} {} {} {}",
            self.part.reserved,
            u64::from(standing.limit) * page,
            u64::from(standing.borrowed) * page,
            standing.waits
        )
    }
}

impl Membership {
    fn leave_device(&self) {
        if self.on_device.xchg(false, Relaxed) {
            self.memory.leave_device(&self.shared_pool);
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave_device();
        self.shared_pool.remove_borrower(self.borrower);
        let reserved = match self.stranded.load(Relaxed) {
            true => Reserved::Stranded(self.reserved),
            false => Reserved::Granted(self.reserved),
        };
        self.memory
            .leave(self.claimant, &self.shared_pool, self.wish, reserved);
    }
}

/// The memory of one queue pair, in the account while this exists. It is taken before anything of
/// the queue pair is allocated, and then is the last field of the queue: dropped, in process
/// context, when all the rest of the queue is free.
pub(crate) struct Charge {
    client: Arc<Client>,
    part: Part,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let client = &self.client.part;
        client.memory.refund(client.claimant, self.part.extra);
        self.client.places.lock().free_place(self.part);
    }
}
