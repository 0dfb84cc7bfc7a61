// SPDX-License-Identifier: GPL-2.0

//! Listens at an address for connection requests.
//!
//! ```text
//!            enable=1                enable=0
//!  Disabled ──────────► Listening ─────────────────► Disabled
//!                          │ ▲                          ▲
//!     its device goes away │ │ one has the address      │ enable=0
//!                          ▼ │                          │
//!                        Waiting ───────────────────────┘
//! ```
//!
//! A waiting port tries to listen again every [`RETRY_MS`]; its attribute `error` shows why it does
//! not listen.
//!
//! Disabling a port ends no session: it only stops new ones.

use super::registry::Registry;
use crate::memory::Memory;
use core::net::{
    IpAddr,
    Ipv4Addr,
    SocketAddr, //
};
use hcablk_core::{
    configfs::{
        Directory,
        DirectoryPin, //
    },
    printable,
    proto::connect::{
        Reason,
        Reject, //
    },
    rdma::cm::{
        Accept,
        Incoming,
        Listener, //
    },
    sync::{
        defer::without_io,
        Periodic,
        Running,
        Tick, //
    },
    system, //
};
use kernel::{
    impl_has_work, new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    workqueue::{
        new_work,
        Work,
        WorkItem, //
    },
};

/// The limits of a port for each session.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum size in MiB of the transfer buffers and eager rings of a session, unless its queue
    /// pairs need more for one request each; 0: as requested by the initiator.
    pub(crate) buffer_mib: usize,
    /// Maximum number of receive buffers of a queue pair; 0: as requested by the initiator.
    pub(crate) queue_credits: u16,
}

/// The settings of a port.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) limits: Limits,
}

/// Accepts a connection request from the connection manager, which refuses it if this fails. Must
/// be short, and must not wait.
pub(crate) type Begin = fn(&Arc<Registry>, &Arc<Port>, &mut Incoming<'_>) -> Result;

/// The interval for attempts to listen again, in milliseconds.
const RETRY_MS: u32 = 500;

struct Listening {
    /// Dropped first: no request arrives after that. `None`: the port waits.
    listener: Option<Listener>,
    /// Holds a reference to the port until the port is disabled.
    retry: Running<Retry>,
    _pin: DirectoryPin,
}

/// The timer of a waiting port that tries to listen again.
struct Retry(Arc<Port>);

impl Tick for Retry {
    fn tick(&self) {
        self.0.listen_again();
    }
}

struct PortState {
    settings: Settings,
    listening: Option<Listening>,
    error: Option<Error>,
}

impl PortState {
    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.settings.address, self.settings.port)
    }
}

/// An address at which the target listens: see the module.
#[pin_data]
pub(crate) struct Port {
    registry: Arc<Registry>,
    begin: Begin,
    #[pin]
    state: Mutex<PortState>,
    /// A copy of the limits for connection requests, which must not wait for `state`.
    #[pin]
    limits: Mutex<Limits>,
    memory: Arc<Memory>,
    #[pin]
    work: Work<Port>,
}

impl_has_work! {
    impl HasWork<Self> for Port { self.work }
}

const DEFAULT: Settings = Settings {
    address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    port: 7744,
    limits: Limits {
        buffer_mib: 0,
        queue_credits: 0,
    },
};

/// The bounds, in MiB, of the default memory limit of all sessions of a port, which is half of the
/// machine's available memory.
const MEMORY_MIB: (u64, u64) = (1024, 4096);

impl Port {
    /// Creates a port that does not listen; `begin` accepts connection requests once the port
    /// listens. May sleep.
    pub(crate) fn new(registry: &Arc<Registry>, begin: Begin) -> Result<Arc<Self>> {
        let mib = (system::available_memory() >> 21).clamp(MEMORY_MIB.0, MEMORY_MIB.1);
        let memory = Memory::new(registry.work(), mib << 20)?;
        Arc::pin_init(
            pin_init!(Self {
                registry: registry.clone(),
                begin,
                state <- new_mutex!(PortState {
                    settings: DEFAULT,
                    listening: None,
                    error: None,
                }),
                limits <- new_mutex!(DEFAULT.limits),
                memory,
                work <- new_work!("hcablk_target::Port"),
            }),
            GFP_KERNEL,
        )
    }

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Returns the limits for sessions: a copy, since `state` is locked while listening ends.
    pub(crate) fn limits(&self) -> Limits {
        *self.limits.lock()
    }

    /// Returns the memory of all sessions that begin at this port.
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) fn settings(&self) -> Settings {
        self.state.lock().settings
    }

    /// Changes settings. Fails with `EBUSY` while the port is enabled.
    pub(crate) fn configure(&self, change: impl FnOnce(&mut Settings)) -> Result {
        let mut state = self.state.lock();
        if state.listening.is_some() {
            return Err(EBUSY);
        }
        change(&mut state.settings);
        Ok(())
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.state.lock().listening.is_some()
    }

    /// Returns the error of the last attempt to listen.
    pub(crate) fn error(&self) -> Option<Error> {
        self.state.lock().error
    }

    /// Begins to listen. Does nothing if the port is enabled already.
    pub(crate) fn enable(self: &Arc<Self>, directory: &Directory<'_>) -> Result {
        let mut state = self.state.lock();
        if state.listening.is_some() {
            return Ok(());
        }
        let settings = state.settings;
        *self.limits.lock() = settings.limits;
        let address = SocketAddr::new(settings.address, settings.port);
        let timer = directory.pin().and_then(|pin| {
            let retry = Arc::new(Retry(self.clone()), GFP_KERNEL)?;
            // The timer is started first: after the portal is added no step may fail, since it
            // would have to be removed again.
            Ok((pin, Periodic::start(retry, RETRY_MS)?))
        });
        let (error, timer) = match timer.map(|timer| (self.listen(&address), timer)) {
            Ok((Ok(listener), (pin, retry))) => {
                state.listening = Some(Listening {
                    listener: Some(listener),
                    retry,
                    _pin: pin,
                });
                state.error = None;
                return Ok(());
            }
            Ok((Err(e), timer)) => (e, Some(timer)),
            Err(e) => (e, None),
        };
        state.error = Some(error);
        // Dropping the timer waits for its function, which locks the state.
        drop(state);
        drop(timer);
        Err(error)
    }

    fn listen(self: &Arc<Self>, address: &SocketAddr) -> Result<Listener> {
        let listener = Listener::new(address, self.clone())?;
        self.registry.add_portal(*address)?;
        Ok(listener)
    }

    /// Stops listening. Waits for a request that is being accepted.
    pub(crate) fn disable(&self) {
        let (listening, address) = {
            let mut state = self.state.lock();
            state.error = None;
            (state.listening.take(), state.address())
        };
        if let Some(Listening {
            listener, retry, ..
        }) = listening
        {
            drop(retry);
            self.stop(listener, address);
        }
    }

    /// Stops listening, since the RDMA device of the listener was removed, and waits for another
    /// device that has the address.
    fn wait_for_device(&self) {
        let (listener, address) = {
            let mut state = self.state.lock();
            // Since this was queued, the port may have been disabled and enabled again, or may
            // listen on the next device.
            let listener = state
                .listening
                .as_mut()
                .and_then(|l| l.listener.take_if(|l| l.has_lost_device()));
            if listener.is_some() {
                state.error = Some(ENODEV);
            }
            (listener, state.address())
        };
        if listener.is_some() {
            self.stop(listener, address);
            pr_warn!(
                "the RDMA device of {} was removed: the port waits for a device with this address\n",
                PrintedAddress(address)
            );
        }
    }

    /// Undoes [`Self::listen`]. Waits for a request that is being accepted.
    fn stop(&self, listener: Option<Listener>, address: SocketAddr) {
        if listener.is_some() {
            self.registry.remove_portal(address);
        }
        drop(listener);
    }

    /// Listens if the port waits for a device. May sleep.
    fn listen_again(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let address = state.address();
        if state
            .listening
            .as_ref()
            .is_none_or(|l| l.listener.is_some())
        {
            return;
        }
        match self.listen(&address) {
            Ok(listener) => {
                if let Some(listening) = state.listening.as_mut() {
                    listening.listener = Some(listener);
                }
                state.error = None;
                drop(state);
                pr_info!("the port at {} listens again\n", PrintedAddress(address));
            }
            Err(e) => state.error = Some(e),
        }
    }
}

impl Accept for Port {
    fn request(self: Arc<Self>, incoming: &mut Incoming<'_>) {
        if (self.begin)(&self.registry, &self, incoming).is_err() {
            incoming.reject(&Reject::new(Reason::NoResources).encode());
        }
    }

    fn removed(self: Arc<Self>) {
        // The work is queued, since the listener waits for this call to return. It may be queued
        // already.
        let _ = self.registry.clone().work().enqueue(self);
    }
}

impl WorkItem for Port {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        without_io(|| this.wait_for_device());
    }
}

/// An address for the kernel's printing macros.
struct PrintedAddress(SocketAddr);

impl core::fmt::Display for PrintedAddress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(&self.0, f)
    }
}
printable!(PrintedAddress);
