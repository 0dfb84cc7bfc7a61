// SPDX-License-Identifier: GPL-2.0

//! An open volume: its sessions, its queues, and its properties.

use crate::{
    connect::Deadline,
    driver::loss::LossLimits,
    failure::Failure,
    opening::{Opening, SECTOR},
    options::Options,
    past::Past,
    queue::{Queue, Settings},
    session::{Served, Service, Shared},
    verbs::{device::Domains, memory::Buffer},
};
use std::{
    net::SocketAddr,
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
};

/// A volume of a target, open for this program.
///
/// Each thread that does I/O takes a queue ([`Self::take_queue`]). When the session is lost,
/// requests wait for [`Options::ctrl_loss_tmo`] at most until a new session is connected, and are
/// issued again. When the volume is dropped they fail.
pub struct Volume {
    shared: Arc<Shared>,
    domains: Arc<Domains>,
    /// The queues that no thread has taken.
    queues: Mutex<Vec<Queue>>,
    number: u16,
    service: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Volume of {} bytes", self.size())
    }
}

impl Volume {
    /// Opens a volume: connects all of its queues.
    pub fn open(options: &Options) -> Result<Self, Failure> {
        let deadline = Deadline::after(options.connect_timeout);
        let mut opening = Opening::new(options, deadline)?;
        let domains = opening.domains().clone();
        let mut begun = opening.first_session(deadline)?;
        begun.wait_for_limits(deadline)?;
        let shared = Arc::new(Shared::new(begun.reply.geometry, options)?);
        if let Some(past) = options.past {
            shared.inherit(past);
        }
        let number = opening.number();
        let served = Served::begin(&shared, begun)?;
        let settings = Settings {
            small_read: options.small_read,
            eager_write: options.eager_write,
            remote_invalidate: options.remote_invalidate,
        };
        let queues = (0..options.queues)
            .map(|index| Queue::new(shared.clone(), domains.clone(), index, settings))
            .collect::<Result<_, _>>()?;
        let thread = {
            let shared = shared.clone();
            let limits = LossLimits {
                ctrl_loss_tmo_s: Some(options.ctrl_loss_tmo_s),
                fast_io_fail_tmo_s: options.fast_io_fail_tmo_s,
            };
            thread::Builder::new().name("hcablk".into()).spawn(move || {
                Service::new(&shared, opening, limits).run(served);
            })
        };
        let thread = thread.map_err(|error| {
            let errno = error.raw_os_error().unwrap_or_default();
            Failure::Setup("a thread", nix::errno::Errno::from_raw(errno))
        })?;
        Ok(Self {
            shared,
            domains,
            queues: Mutex::new(queues),
            number,
            service: Some(thread),
        })
    }

    /// Takes a queue, for one thread; `None`: all queues are taken.
    pub fn take_queue(&self) -> Option<Queue> {
        // The data is consistent even when a thread has panicked.
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.pop()
    }

    /// Returns a buffer of `len` bytes for requests of this volume.
    pub fn memory(&self, len: usize) -> Result<Buffer, Failure> {
        Buffer::new(&self.domains, len).map_err(|error| Failure::Setup("a buffer", error))
    }

    /// Registers memory of the program's own for requests of this volume.
    ///
    /// # Safety
    ///
    /// The `len` bytes are initialized, and nobody else refers to them; they do not move until the buffer, all parts
    /// that were split from it and the queues of the requests that had it are dropped.
    // The callee's contract, in terms of the calls that a program makes.
    #[allow(unsafe_code, reason = "the verbs layer's contract is the program's")]
    pub unsafe fn register(&self, memory: NonNull<u8>, len: usize) -> Result<Buffer, Failure> {
        // SAFETY: By the safety requirement.
        let buffer = unsafe { Buffer::register(&self.domains, memory, len) };
        buffer.map_err(|error| Failure::Setup("a memory region", error))
    }

    /// Returns the size in bytes, as the target has reported it last.
    pub fn size(&self) -> u64 {
        self.shared.present().state.sectors * SECTOR
    }

    /// Returns the bytes of a logical block. Offsets and lengths must be multiples of it.
    pub fn block_size(&self) -> u32 {
        1 << self.shared.geometry.logical_block_shift
    }

    /// Returns whether the volume refuses writes.
    pub fn is_read_only(&self) -> bool {
        self.shared.present().state.read_only
    }

    /// Returns whether the volume has a volatile write cache: acknowledged writes are durable after a flush. A cache
    /// that the volume had when it was opened may be switched off and on: so programs must keep flushing.
    pub fn has_write_cache(&self) -> bool {
        self.shared.geometry.write_cache || self.shared.present().state.write_cache == Some(true)
    }

    /// Returns the bytes of a physical block: the drive writes whole ones most efficiently.
    pub fn physical_block_size(&self) -> u32 {
        1 << self.shared.geometry.physical_block_shift
    }

    /// Returns the largest discard and the largest write of zeroes that the target accepts as one
    /// request, in bytes; 0: it accepts none.
    pub fn most_without_data(&self) -> (u32, u32) {
        let geometry = &self.shared.geometry;
        match self.shared.present().limits {
            Some(limits) => (limits.max_discard, limits.max_zeroes),
            None => (geometry.max_discard, geometry.max_zeroes),
        }
    }

    /// Returns the granularity of discards, in bytes.
    pub fn discard_granularity(&self) -> u32 {
        self.shared.geometry.discard_granularity
    }

    /// Returns the number of the volume's session among those of this host's programs.
    pub fn session(&self) -> u16 {
        self.number
    }

    /// Returns the state that a successor needs if this program is killed. `None`: the target does
    /// not identify the volume, so no program can take over. The state changes with each session.
    pub fn past(&self) -> Option<Past> {
        self.shared.past()
    }

    /// Ends the volume: its requests, and all later ones, fail.
    pub fn end(&self) {
        self.shared.end(Failure::Closed);
    }

    /// Returns the reason if there is no session at this moment.
    pub fn failure(&self) -> Option<Failure> {
        self.shared.failure()
    }

    /// Returns the reason if there cannot be another session: requests fail.
    pub fn ended(&self) -> Option<Failure> {
        self.shared.ended()
    }

    /// Returns the address of the target over which the present session was connected, or the last one.
    pub fn path(&self) -> SocketAddr {
        self.shared.path()
    }

    /// Returns the number of sessions that replaced a lost one.
    pub fn reconnects(&self) -> u64 {
        self.shared.reconnects()
    }

    /// Returns whether the target has lost acknowledged writes that no flush had covered: flushes and writes with FUA
    /// fail.
    pub fn has_lost_writes(&self) -> bool {
        self.shared.has_lost_writes()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.shared.end(Failure::Closed);
        if let Some(service) = self.service.take() {
            // The thread has no reason to panic; if it did, nothing is left to do here.
            let _ = service.join();
        }
    }
}
