// SPDX-License-Identifier: GPL-2.0

//! A session in a port's memory, and what its queue pairs are charged. Who frees what is described
//! in [`memory`](super).

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
use hcablk_core::{
    configfs::Output,
    proto::name::HostId,
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
    /// Whose session it is.
    pub(super) host: HostId,
    pub(super) shared_pool: Arc<SharedPool>,
    pub(super) index: usize,
    /// Its first entry in the account, which borrows nothing: the client exists as long as an entry
    /// does.
    pub(super) borrower: usize,
    pub(super) reserved: u64,
    /// `reserved` is stranded in the account.
    pub(super) stranded: Atomic<bool>,
    /// It uses the device of the shared pool, and counts for what that has.
    pub(super) on_device: Atomic<bool>,
    pub(super) wish: u64,
    pub(super) queue_bytes: usize,
}

/// A session as a user of the memory, by which its queue pairs are charged.
#[pin_data]
pub(crate) struct Client {
    part: Membership,
    #[pin]
    places: Mutex<Places>,
}

impl Client {
    /// Makes the user whose part is `part`, for `queues` queue pairs of `reserved` bytes each. May
    /// sleep. Without memory `part` is dropped, and has left.
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

    /// Returns the bytes of data that each of its queue pairs may have, by the port's settings
    /// when it began.
    pub(crate) fn queue_bytes(&self) -> usize {
        self.part.queue_bytes
    }

    /// Returns the pages that its queue pairs may borrow.
    pub(super) fn most_pages(&self) -> u64 {
        self.part.wish / PAGE_SIZE as u64
    }

    /// Takes the `bytes` bytes of a queue pair that is to be made. Sleeps.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge, Denied> {
        let part = self.places.lock().take(bytes);
        if let Err(denied) = self.part.memory.charge(self.part.host, part.extra) {
            self.places.lock().give(part);
            return Err(denied);
        }
        Ok(Charge {
            client: self.clone(),
            part,
        })
    }

    /// Has the share of its host charged no more for its reservation, as far as the [account's
    /// rules](super::account) go: the session has ended, but a drive does not finish what it has
    /// begun for it. What queue pairs were charged for beyond that stays charged. Process context.
    #[cold]
    pub(crate) fn strand(&self) {
        if !self.part.stranded.xchg(true, Relaxed) {
            self.part.memory.strand(self.part.host, self.part.reserved);
        }
    }

    /// Ends that the session uses the RDMA device: its queue pairs are severed. The last session's end
    /// takes all shared buffers from the device. Its own memory stays in the account. Process context;
    /// may sleep.
    pub(crate) fn leave_device(&self) {
        self.part.leave_device();
    }

    /// Tells what it has: bytes of its own, that it may borrow and has borrowed, and how
    /// often it had to wait for others.
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
            self.memory.leave_device(&self.shared_pool, self.wish);
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
        self.memory.leave(self.host, &self.shared_pool, reserved);
    }
}

/// The memory of one queue pair, in the account as long as this is there. Whoever makes the queue
/// pair has it before anything is allocated, and the queue has it then as its last field: dropped,
/// in process context, when all the rest of the queue is free.
pub(crate) struct Charge {
    client: Arc<Client>,
    part: Part,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let client = &self.client.part;
        client.memory.refund(client.host, self.part.extra);
        self.client.places.lock().give(self.part);
    }
}
