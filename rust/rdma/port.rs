// SPDX-License-Identifier: GPL-2.0

//! Watches an RDMA port: reports at once that the port went down, long before the peer's silence is
//! noticed.
//!
//! # Ownership
//!
//! A [`PortWatch`] holds a reference to its listener, and keeps the device through the connection
//! identifier. A listener that owns its watch must drop it to end that cycle. Dropping it waits for
//! a running call, so do not drop it from within one.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::cm::Id;
use crate::bindings;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    types::Opaque, //
};

/// The listener of a port.
pub trait PortListener: Send + Sync + 'static {
    /// Reports that the port went down. Process context; must not wait, nor drop the [`PortWatch`].
    fn port_down(self: Arc<Self>);
}

struct Inner {
    handler: bindings::ib_event_handler,
    port: u32,
    listener: Arc<dyn PortListener>,
}

/// A watch of one RDMA port; see the module.
///
/// # Invariants
///
/// `inner` is initialised and registered with the device of `id`.
pub struct PortWatch {
    inner: KBox<Opaque<Inner>>,
    _id: Arc<Id>,
}

// SAFETY: The handler's list is changed under the device's lock; all else is never changed.
unsafe impl Send for PortWatch {}
// SAFETY: Shared references give access to nothing.
unsafe impl Sync for PortWatch {}

impl PortWatch {
    /// Starts reporting to `listener` when the port of `id` goes down. Fails with `ENODEV` if `id`
    /// has no port yet. Sleeps. Also fails with `ENOMEM`.
    ///
    /// C: `ib_register_event_handler()`.
    pub fn new(id: &Arc<Id>, listener: Arc<dyn PortListener>) -> Result<Self> {
        let device = id.device().ok_or(ENODEV)?;
        // SAFETY: The identifier is valid; its port is set with the device.
        let port = unsafe { (*id.as_raw()).port_num };
        let inner = KBox::new(Opaque::<Inner>::uninit(), GFP_KERNEL)?;
        let raw = inner.get();
        // SAFETY: Room for the structure, which stays where it is until the watch is dropped; `id`
        // keeps the device. The fields are those of the macro INIT_IB_EVENT_HANDLER; registering
        // links the handler, regardless of its former list.
        unsafe {
            raw.write(Inner {
                handler: bindings::ib_event_handler {
                    device: device.as_ptr(),
                    handler: Some(on_event),
                    ..pin_init::zeroed()
                },
                port,
                listener,
            });
            bindings::ib_register_event_handler(&raw mut (*raw).handler);
        }
        // INVARIANT: As done just now.
        Ok(Self {
            inner,
            _id: id.clone(),
        })
    }
}

impl Drop for PortWatch {
    fn drop(&mut self) {
        let raw = self.inner.get();
        // SAFETY: By the type invariant it is registered, and initialised; nothing runs once it is
        // unregistered.
        unsafe {
            bindings::ib_unregister_event_handler(&raw mut (*raw).handler);
            raw.drop_in_place();
        }
    }
}

/// The watch of a listener, which owns this; empty while the listener watches no port.
#[pin_data]
pub struct WatchedPort {
    #[pin]
    watch: Mutex<Option<PortWatch>>,
}

/// Creates the lock of a [`WatchedPort`]. Not inlined: its lockdep class, and so its name, must be
/// one for all modules, and each module with a copy of this would have a name of its own.
#[inline(never)]
fn watch_lock() -> impl PinInit<Mutex<Option<PortWatch>>> {
    new_mutex!(None, "hcablk_watched_port")
}

impl WatchedPort {
    /// Creates an empty watch.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            watch <- watch_lock(),
        })
    }

    /// Starts reporting the port of `id` to `listener`, unless `has_ended` returns that the
    /// listener has ended in the meantime: then [`Self::leave`] is not called any more. Sleeps.
    /// Fails as [`PortWatch::new`].
    pub fn watch(
        &self,
        id: &Arc<Id>,
        listener: Arc<dyn PortListener>,
        has_ended: impl FnOnce() -> bool,
    ) -> Result {
        let watch = PortWatch::new(id, listener)?;
        let mut place = self.watch.lock();
        let unused = match has_ended() {
            true => Some(watch),
            false => place.replace(watch),
        };
        drop(place);
        // Under no lock: this waits for a call that runs.
        drop(unused);
        Ok(())
    }

    /// Ends the watch, since the listener ends. Sleeps.
    pub fn leave(&self) {
        let watch = self.watch.lock().take();
        drop(watch);
    }
}

/// # Safety
///
/// Called by the RDMA core with a handler that [`PortWatch::new`] registered.
unsafe extern "C" fn on_event(
    handler: *mut bindings::ib_event_handler,
    event: *mut bindings::ib_event,
) {
    // SAFETY: By the safety requirement the handler is in an `Inner`, which is not dropped while
    // this runs; the event is valid, and has a port's number if it is about a port.
    unsafe {
        if (*event).event != bindings::ib_event_type_IB_EVENT_PORT_ERR {
            return;
        }
        let inner = kernel::container_of!(handler, Inner, handler);
        if *(*event).element.port_num == (*inner).port {
            (*inner).listener.clone().port_down();
        }
    }
}
