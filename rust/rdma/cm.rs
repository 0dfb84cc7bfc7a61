// SPDX-License-Identifier: GPL-2.0

//! The connection manager: identifiers, their events, and listening.
//!
//! An identifier's events arrive one at a time, in process context, under the
//! identifier's handler mutex. A handler must not drop the identifier that it
//! is called for (the kernel would wait for the handler to return); it notes
//! what happened and leaves the rest to others.
//!
//! - `event`: the events, and how the kernel's are translated.
//! - `listen`: listeners and connection requests.

mod event;
mod listen;

pub use event::{
    End,
    Ends,
    Event,
    Handler, //
};
pub use listen::{
    Accept,
    Incoming,
    Listener, //
};

use self::event::on_event;
use super::{
    address::RawAddress,
    device::Attributes,
    qp::Paired, //
};
use crate::bindings::{
    self,
    zeroed, //
};
use core::{
    cell::UnsafeCell,
    net::SocketAddr,
    ptr::{
        self,
        NonNull, //
    },
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    sync::Arc, //
};

/// The target of an identifier's `context`.
struct IdContext {
    /// Read by the callback and taken by `detach`, both under the handler mutex.
    handler: UnsafeCell<Option<Arc<dyn Handler>>>,
}

/// A connection identifier.
///
/// # Invariants
///
/// `raw` is valid as long as the object, its handler is [`on_event`] and its
/// context is `context`.
pub struct Id {
    raw: NonNull<bindings::rdma_cm_id>,
    context: KBox<IdContext>,
    /// It has a queue pair.
    paired: Paired,
}

// SAFETY: The connection manager's functions may be called from any thread;
// `context` is accessed under the handler mutex.
unsafe impl Send for Id {}
// SAFETY: As above.
unsafe impl Sync for Id {}

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// RDMA READs that the peer may have in flight towards this side.
    pub responder_resources: u8,
    /// RDMA READs that this side may have in flight.
    pub initiator_depth: u8,
}

/// How often an unacknowledged packet is sent again. 7 means for ever on some
/// devices, so this is the maximum.
const RETRY_COUNT: u8 = 6;
/// How often a SEND that finds no receive buffer is tried again. Credits ensure that there is one,
/// so one retry, as a courtesy to the device, is enough.
const RNR_RETRY_COUNT: u8 = 1;
/// log2 of the time after which an unacknowledged packet is sent again, in units of 4.096 us: about
/// a second. With the retries, a dead peer is detected after about seven seconds.
const ACK_TIMEOUT: u8 = 18;
/// Code of the receiver-not-ready delay: 0.64 ms, the shortest that real networks need. The
/// default, code 0, is 655 ms.
const MIN_RNR_TIMER: u8 = 12;

impl Id {
    /// Makes an identifier that is not bound to a device yet.
    pub fn new(handler: Arc<dyn Handler>) -> Result<Arc<Self>> {
        let context = IdContext::new(handler)?;
        // SAFETY: The context lives as long as the identifier.
        let raw = from_err_ptr(unsafe {
            bindings::hcablk_c_rdma_create_id(Some(on_event), context.as_ptr())
        })?;
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        // INVARIANT: Made with this handler and context.
        let id = Arc::new(
            Self {
                raw,
                context,
                paired: Paired::new(),
            },
            GFP_KERNEL,
        )?;
        id.tune();
        Ok(id)
    }

    /// Sets options that only some transports support. The others refuse them, which is harmless.
    fn tune(&self) {
        // SAFETY: `raw` is valid.
        unsafe {
            let _ = bindings::rdma_set_ack_timeout(self.as_raw(), ACK_TIMEOUT);
            let _ = bindings::rdma_set_min_rnr_timer(self.as_raw(), MIN_RNR_TIMER);
        }
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::rdma_cm_id {
        self.raw.as_ptr()
    }

    /// Returns the device, once the address is resolved.
    pub(super) fn device(&self) -> Option<NonNull<bindings::ib_device>> {
        // SAFETY: `raw` is valid; the field is set once, before the event is reported.
        NonNull::new(unsafe { (*self.as_raw()).device })
    }

    /// Returns the flag that the identifier has a queue pair, which sets and clears it.
    pub(super) fn paired(&self) -> &Paired {
        &self.paired
    }

    /// Returns the device's attributes; fails with `ENODEV` before the address is resolved.
    pub fn attributes(&self) -> Result<Attributes> {
        let device = self.device().ok_or(ENODEV)?;
        // SAFETY: A bound identifier keeps its device.
        Ok(unsafe { Attributes::from_device(device.as_ptr()) })
    }

    /// Returns whether the transport is iWARP, where an RDMA READ needs a [sink](super::sink) and
    /// the accepting side must not send first.
    pub fn is_iwarp(&self) -> bool {
        // SAFETY: `raw` is valid.
        unsafe { is_iwarp(self.as_raw()) }
    }

    /// Returns `number`, that of the queue pair, as the transport transmits it to the peer: 0 if
    /// the transport transmits none.
    pub fn own_qp(&self, number: u32) -> u32 {
        match self.is_iwarp() {
            true => 0,
            false => number,
        }
    }

    /// Starts to look for the peer; [`Event::AddressResolved`] or
    /// [`Event::Failed`] follows within `timeout_ms`.
    pub fn resolve_address(&self, to: &SocketAddr, timeout_ms: u32) -> Result {
        let mut to = RawAddress::new(to);
        // SAFETY: `raw` is valid, the address is copied before the function returns.
        to_result(unsafe {
            bindings::rdma_resolve_addr(
                self.as_raw(),
                ptr::null_mut(),
                to.as_mut_ptr(),
                timeout_ms as usize,
            )
        })
    }

    /// Starts to look for the route to the peer; [`Event::RouteResolved`] or [`Event::Failed`]
    /// follows within `timeout_ms`.
    pub fn resolve_route(&self, timeout_ms: u32) -> Result {
        // SAFETY: `raw` is valid.
        to_result(unsafe { bindings::rdma_resolve_route(self.as_raw(), timeout_ms as usize) })
    }

    /// Asks the peer for the connection. [`Event::Established`], [`Event::Rejected`],
    /// [`Event::StaleConnection`] or [`Event::Failed`] follows, but perhaps only after minutes:
    /// wait with a limit. Not from a handler.
    pub fn connect(&self, parameters: Parameters, private: &[u8]) -> Result {
        let mut param = conn_param(parameters, private)?;
        // SAFETY: `raw` is valid, the private data is copied before the function returns.
        to_result(unsafe { bindings::rdma_connect(self.as_raw(), &mut param) })
    }

    /// Grants a connection request. Not from a handler.
    pub fn accept(&self, parameters: Parameters, private: &[u8]) -> Result {
        let mut param = conn_param(parameters, private)?;
        // SAFETY: `raw` is valid, the private data is copied, and the handler
        // mutex is held as rdma_accept() demands.
        to_result(unsafe {
            bindings::rdma_lock_handler(self.as_raw());
            let result = bindings::rdma_accept(self.as_raw(), &mut param);
            bindings::rdma_unlock_handler(self.as_raw());
            result
        })
    }

    /// Refuses a connection request; `private` has the reason for the peer.
    pub fn reject(&self, private: &[u8]) {
        // SAFETY: `raw` is valid. A peer that cannot be reached times out.
        let _ = unsafe { reject(self.as_raw(), private) };
    }

    /// Takes the connection down; nothing happens if it is down. May sleep.
    pub fn disconnect(&self) {
        // SAFETY: `raw` is valid. An error says that there is no connection.
        let _ = unsafe { bindings::rdma_disconnect(self.as_raw()) };
    }

    /// Releases the handler: no event is reported after this call. Waits for a running handler, so
    /// a handler must not call it.
    pub fn detach(&self) {
        // SAFETY: `raw` is valid; the handler mutex gives exclusive access to the handler.
        let handler = unsafe {
            bindings::rdma_lock_handler(self.as_raw());
            let handler = (*self.context.handler.get()).take();
            bindings::rdma_unlock_handler(self.as_raw());
            handler
        };
        drop(handler);
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: The object is the identifier's only owner, and its queue pair would hold a
        // reference to the object, so there is none. No handler drops it, as the module's
        // documentation demands: this would wait for the handler's end, for ever.
        unsafe { bindings::rdma_destroy_id(self.as_raw()) };
    }
}

impl IdContext {
    fn new(handler: Arc<dyn Handler>) -> Result<KBox<Self>> {
        Ok(KBox::new(
            Self {
                handler: UnsafeCell::new(Some(handler)),
            },
            GFP_KERNEL,
        )?)
    }

    fn as_ptr(&self) -> *mut crate::ffi::c_void {
        ptr::from_ref(self).cast_mut().cast()
    }
}

pub(super) fn conn_param(
    parameters: Parameters,
    private: &[u8],
) -> Result<bindings::rdma_conn_param> {
    Ok(bindings::rdma_conn_param {
        private_data: private.as_ptr().cast(),
        private_data_len: private.len().try_into()?,
        responder_resources: parameters.responder_resources,
        initiator_depth: parameters.initiator_depth,
        retry_count: RETRY_COUNT,
        rnr_retry_count: RNR_RETRY_COUNT,
        ..zeroed()
    })
}

/// # Safety
///
/// `id` is valid.
unsafe fn reject(id: *mut bindings::rdma_cm_id, private: &[u8]) -> Result {
    /// `IB_CM_REJ_CONSUMER_DEFINED` of `rdma/ib_cm.h`.
    const CONSUMER_DEFINED: u8 = 28;
    // SAFETY: The caller guarantees that `id` is valid; the data is copied.
    to_result(unsafe {
        bindings::rdma_reject(
            id,
            private.as_ptr().cast(),
            private.len().try_into()?,
            CONSUMER_DEFINED,
        )
    })
}

/// # Safety
///
/// `id` is valid.
unsafe fn is_iwarp(id: *mut bindings::rdma_cm_id) -> bool {
    // SAFETY: The caller guarantees that `id` is valid; when it is bound it
    // keeps its device and its port number.
    unsafe {
        let device = (*id).device;
        !device.is_null() && bindings::hcablk_c_is_iwarp(device, (*id).port_num)
    }
}
