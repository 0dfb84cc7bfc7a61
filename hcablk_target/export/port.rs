// SPDX-License-Identifier: GPL-2.0

//! An address that is listened on.
//!
//! ```text
//!            enable=1               enable=0, or the device goes away
//!  Disabled ──────────► Listening ────────────────────────────────────► Disabled
//! ```
//!
//! Disabling a port ends no session: it only lets nobody in any more.

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
    proto::connect::{
        Reason,
        Reject, //
    },
    rdma::cm::{
        Accept,
        Incoming,
        Listener, //
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

/// What a port lets a session have.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Transfer buffers and the eager ring of a session, at most but for what its queue pairs need;
    /// 0: by what it asks for.
    pub(crate) buffer_mib: usize,
    /// Receive buffers of a queue pair, 0: as many as the initiator wants.
    pub(crate) queue_credits: u16,
}

/// What users set.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) limits: Limits,
}

/// Takes a connection request out of the connection manager's hands, which refuses it otherwise.
/// Short, and must not wait.
pub(crate) type Begin = fn(&Arc<Registry>, &Arc<Port>, &mut Incoming<'_>) -> Result;

struct Listening {
    /// Dropped first: no request comes after that.
    _listener: Listener,
    _pin: DirectoryPin,
}

struct State {
    settings: Settings,
    listening: Option<Listening>,
    error: Option<Error>,
}

/// See the module.
#[pin_data]
pub(crate) struct Port {
    registry: Arc<Registry>,
    begin: Begin,
    #[pin]
    state: Mutex<State>,
    /// A copy for requests, which must not wait for `state`.
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

/// MiB of memory of all sessions together, unless it is set: half of what the machine has left,
/// but not less and not more than these.
const MEMORY_MIB: (u64, u64) = (1024, 4096);

impl Port {
    /// Makes a port that does not listen; `begin` takes connection requests when it does. May sleep.
    pub(crate) fn new(registry: &Arc<Registry>, begin: Begin) -> Result<Arc<Self>> {
        let mib = (system::available_memory() >> 21).clamp(MEMORY_MIB.0, MEMORY_MIB.1);
        let memory = Memory::new(registry.work(), mib << 20)?;
        Arc::pin_init(
            pin_init!(Self {
                registry: registry.clone(),
                begin,
                state <- new_mutex!(State {
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

    /// Returns what sessions may have; a copy, since `state` is held while listening ends.
    pub(crate) fn limits(&self) -> Limits {
        *self.limits.lock()
    }

    /// Returns the memory of all sessions that begin here.
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) fn settings(&self) -> Settings {
        self.state.lock().settings
    }

    /// Changes settings, `EBUSY` while the port is enabled.
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

    /// Returns why enabling failed.
    pub(crate) fn error(&self) -> Option<Error> {
        self.state.lock().error
    }

    /// Begins to listen. Nothing happens when that is done.
    pub(crate) fn enable(self: &Arc<Self>, directory: &Directory<'_>) -> Result {
        let mut state = self.state.lock();
        if state.listening.is_some() {
            return Ok(());
        }
        let settings = state.settings;
        *self.limits.lock() = settings.limits;
        let address = SocketAddr::new(settings.address, settings.port);
        let result = directory.pin().and_then(|pin| {
            Ok(Listening {
                _listener: Listener::new(&address, self.clone())?,
                _pin: pin,
            })
        });
        let result = result.and_then(|listening| {
            self.registry.add_portal(address)?;
            Ok(listening)
        });
        match result {
            Ok(listening) => {
                state.listening = Some(listening);
                state.error = None;
                Ok(())
            }
            Err(e) => {
                state.error = Some(e);
                Err(e)
            }
        }
    }

    /// Listens no longer. Waits for a request that is being taken.
    pub(crate) fn disable(&self) {
        let (listening, settings) = {
            let mut state = self.state.lock();
            (state.listening.take(), state.settings)
        };
        if listening.is_some() {
            let portal = SocketAddr::new(settings.address, settings.port);
            self.registry.remove_portal(portal);
        }
        drop(listening);
    }
}

impl Accept for Port {
    fn request(self: Arc<Self>, incoming: &mut Incoming<'_>) {
        if (self.begin)(&self.registry, &self, incoming).is_err() {
            incoming.reject(&Reject::new(Reason::NoResources).encode());
        }
    }

    fn removed(self: Arc<Self>) {
        // Not here: the listener waits for this very call. If it is queued already that is as good.
        let _ = self.registry.clone().work().enqueue(self);
    }
}

impl WorkItem for Port {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.disable();
        this.state.lock().error = Some(ENODEV);
        pr_warn!("a port is disabled: its RDMA device was removed\n");
    }
}
