// SPDX-License-Identifier: GPL-2.0

//! The connection manager: identifiers, their events, and listening.
//!
//! An identifier's events arrive one at a time, in process context, under the
//! identifier's handler mutex. A handler must not drop the identifier that it
//! is called for (the kernel would wait for the handler to return); it notes
//! what happened and leaves the rest to others.

use super::{
    address::RawAddress,
    device::Attributes,
    paired::Paired, //
};
use crate::{
    bindings::{
        self,
        zeroed, //
    },
    system::errno, //
};
use core::{
    cell::UnsafeCell,
    net::SocketAddr,
    ptr::{
        self,
        NonNull, //
    },
    slice,
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    sync::{
        Arc,
        UniqueArc, //
    },
};

/// What happens to a connection.
#[derive(Debug)]
pub enum Event<'a> {
    /// The peer's address is known and the identifier has a device.
    AddressResolved,
    /// The way to the peer is known.
    RouteResolved,
    /// The connection is up; `private` is what the accepting side sent along.
    Established {
        /// Private data, possibly padded.
        private: &'a [u8],
    },
    /// The peer refused.
    Rejected {
        /// What the peer's user sent along; empty when nobody listened.
        private: &'a [u8],
    },
    /// The peer's connection manager refused, since it still has a connection of a queue pair with
    /// this one's number: an earlier one's, of a host that has started again since. It ends that
    /// now; another attempt may succeed.
    StaleConnection,
    /// Resolving or connecting failed.
    Failed(Error),
    /// The connection is down.
    Disconnected,
    /// The device goes away; everything on it must be given up.
    DeviceRemoval,
}

/// The reason of the InfiniBand connection manager's, which RoCE has, too.
const REJECTED_AS_STALE: i32 = bindings::ib_cm_rej_reason_IB_CM_REJ_STALE_CONN as i32;

/// Who is told of an identifier's events.
pub trait Handler: Send + Sync + 'static {
    /// Handles an event. Process context, one call at a time.
    fn event(&self, event: Event<'_>);
}

/// What an identifier's `context` points to.
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

/// How a connection shall treat requests and silence.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// RDMA READs that the peer may have in flight towards this side.
    pub responder_resources: u8,
    /// RDMA READs that this side may have in flight.
    pub initiator_depth: u8,
}

/// How often an unacknowledged packet is sent again. 7 means for ever on some
/// devices, so this is the most.
const RETRY_COUNT: u8 = 6;
/// How often a SEND into a missing receive buffer is tried again: credits
/// leave none to be missing, so that one more is a courtesy to the device.
const RNR_RETRY_COUNT: u8 = 1;
/// log2 of the time after which a packet is sent again, in units of 4.096 us:
/// about a second, which with the retries makes seven to a dead peer.
const ACK_TIMEOUT: u8 = 18;
/// Code of the shortest receiver-not-ready delay that real networks need
/// (0.64 ms). The default, 0, is 655 ms.
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

    /// Options that only some transports have; the others keep their own ways, whatever is
    /// returned.
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

    /// Returns whether it has a queue pair, to be set and cleared with that.
    pub(super) fn paired(&self) -> &Paired {
        &self.paired
    }

    /// Returns the device's attributes; fails with `ENODEV` before the address is resolved.
    pub fn attributes(&self) -> Result<Attributes> {
        let device = self.device().ok_or(ENODEV)?;
        // SAFETY: A bound identifier keeps its device.
        Ok(unsafe { Attributes::of(device.as_ptr()) })
    }

    /// Returns whether the transport is iWARP, where an RDMA READ needs a [sink](super::sink) and
    /// the accepting side must not send first.
    pub fn is_iwarp(&self) -> bool {
        // SAFETY: `raw` is valid.
        unsafe { is_iwarp(self.as_raw()) }
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

    /// Starts to look for the way to the peer; [`Event::RouteResolved`] or
    /// [`Event::Failed`] follows within `timeout_ms`.
    pub fn resolve_route(&self, timeout_ms: u32) -> Result {
        // SAFETY: `raw` is valid.
        to_result(unsafe { bindings::rdma_resolve_route(self.as_raw(), timeout_ms as usize) })
    }

    /// Asks the peer for the connection. [`Event::Established`],
    /// [`Event::Rejected`], [`Event::StaleConnection`] or [`Event::Failed`] follows, but perhaps only after
    /// minutes: wait with a limit. Not from a handler.
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

    /// Refuses a connection request, saying why.
    pub fn reject(&self, private: &[u8]) {
        // SAFETY: `raw` is valid. A peer that cannot be reached times out.
        let _ = unsafe { reject(self.as_raw(), private) };
    }

    /// Takes the connection down; nothing happens if it is down. May sleep.
    pub fn disconnect(&self) {
        // SAFETY: `raw` is valid. An error says that there is no connection.
        let _ = unsafe { bindings::rdma_disconnect(self.as_raw()) };
    }

    /// Lets go of the handler: no event is reported from here on. Waits for a
    /// handler that runs, so never from a handler.
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
        // SAFETY: The object is the identifier's only owner, and a queue pair of it holds a reference
        // to the object, so there is none. In a handler this would wait for the handler's end, for ever:
        // see the module.
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

fn conn_param(parameters: Parameters, private: &[u8]) -> Result<bindings::rdma_conn_param> {
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

/// Returns the private data of an event of a connection.
///
/// # Safety
///
/// `event` is an event that carries connection parameters.
unsafe fn private_data(event: &bindings::rdma_cm_event) -> &[u8] {
    // SAFETY: The caller guarantees which part of the union is valid.
    let conn = unsafe { &event.param.conn };
    if conn.private_data.is_null() {
        return &[];
    }
    // SAFETY: The connection manager gives a buffer of this length, valid during the callback.
    unsafe { slice::from_raw_parts(conn.private_data.cast(), conn.private_data_len.into()) }
}

/// # Safety
///
/// Called by the connection manager for an identifier whose context is an [`IdContext`].
unsafe extern "C" fn on_event(
    id: *mut bindings::rdma_cm_id,
    event: *mut bindings::rdma_cm_event,
) -> crate::ffi::c_int {
    // SAFETY: Identifier and event are valid during the callback; the context
    // is as the caller guarantees and the handler mutex is held.
    let (event, handler) = unsafe {
        let context: *const IdContext = (*id).context.cast();
        (&*event, &*(*context).handler.get())
    };
    let Some(handler) = handler else {
        return 0;
    };
    // SAFETY: `id` is valid during the callback.
    let is_iwarp = || unsafe { is_iwarp(id) };
    let failed = |otherwise: Error| match event.status {
        status if status < 0 => Error::from_errno(status),
        _ => otherwise,
    };
    let event = match event.event {
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_RESOLVED => Event::AddressResolved,
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_RESOLVED => Event::RouteResolved,
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_ESTABLISHED => Event::Established {
            // SAFETY: The event is about a connection.
            private: unsafe { private_data(event) },
        },
        // The status of a device with another connection manager is an error, below 0.
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_REJECTED
            if event.status == REJECTED_AS_STALE =>
        {
            Event::StaleConnection
        }
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_REJECTED => {
            let mut len = 0;
            // SAFETY: Both are valid; the function looks whether the user or the
            // device rejected.
            let data = unsafe {
                bindings::rdma_consumer_reject_data(id, ptr::from_ref(event).cast_mut(), &mut len)
            };
            Event::Rejected {
                private: if data.is_null() && is_iwarp() {
                    // siw reports a refusal as a reset, which the function takes
                    // for the device's own; what came along is there all the same.
                    // SAFETY: The event is about a connection.
                    unsafe { private_data(event) }
                } else if data.is_null() {
                    &[]
                } else {
                    // SAFETY: `data` points to `len` bytes, valid during the callback.
                    unsafe { slice::from_raw_parts(data.cast(), len.into()) }
                },
            }
        }
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_ERROR => {
            Event::Failed(failed(errno::ehostunreach()))
        }
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_ERROR => {
            Event::Failed(failed(errno::ehostunreach()))
        }
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_ERROR
        | bindings::rdma_cm_event_type_RDMA_CM_EVENT_UNREACHABLE => {
            Event::Failed(failed(errno::ehostunreach()))
        }
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_DISCONNECTED
        | bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_CHANGE => Event::Disconnected,
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL => Event::DeviceRemoval,
        _ => return 0,
    };
    handler.event(event);
    0
}

/// Who is told of connection requests.
pub trait Accept: Send + Sync + 'static {
    /// Handles a connection request: claims the identifier, else the peer is refused. Process
    /// context; requests come one at a time, so keep it short.
    fn request(self: Arc<Self>, incoming: &mut Incoming<'_>);

    /// Handles the removal of the device that is listened on. The listener must be dropped, but not
    /// from here.
    fn removed(self: Arc<Self>);
}

/// A connection request.
pub struct Incoming<'a> {
    raw: NonNull<bindings::rdma_cm_id>,
    event: &'a bindings::rdma_cm_event,
    claimed: bool,
}

impl Incoming<'_> {
    /// Returns the private data of the request, possibly padded.
    pub fn private(&self) -> &[u8] {
        // SAFETY: A connection request carries connection parameters.
        unsafe { private_data(self.event) }
    }

    /// Returns how many RDMA READs the peer lets this side have in flight.
    pub fn peer_responder_resources(&self) -> u8 {
        // SAFETY: A connection request carries connection parameters; the
        // connection manager has already swapped the sides' views.
        unsafe { self.event.param.conn.initiator_depth }
    }

    /// Takes the identifier: whoever has it accepts or rejects in their own
    /// time and context.
    pub fn claim(&mut self, handler: Arc<dyn Handler>) -> Result<Arc<Id>> {
        let context = IdContext::new(handler)?;
        let context_ptr = context.as_ptr();
        if self.claimed {
            return Err(errno::ealready());
        }
        // Room first: an identifier that was built and dropped again would be
        // destroyed from within its own handler.
        let room = UniqueArc::new_uninit(GFP_KERNEL)?;
        // INVARIANT: The handler and the context are set just below.
        let id: Arc<Id> = room
            .write(Id {
                raw: self.raw,
                context,
                paired: Paired::new(),
            })
            .into();
        // SAFETY: The identifier is new and its handler mutex is held during the
        // callback, so that nobody reads the fields meanwhile.
        unsafe {
            (*self.raw.as_ptr()).context = context_ptr;
            (*self.raw.as_ptr()).event_handler = Some(on_event);
        }
        self.claimed = true;
        id.tune();
        Ok(id)
    }

    /// Refuses the request, with `private` as the reason.
    pub fn reject(&mut self, private: &[u8]) {
        // SAFETY: `raw` is valid during the callback. A peer that cannot be reached times out.
        let _ = unsafe { reject(self.raw.as_ptr(), private) };
    }
}

/// An identifier that listens.
pub struct Listener {
    raw: NonNull<bindings::rdma_cm_id>,
    /// Boxed for an address of its own: the identifier's context.
    #[expect(dead_code, reason = "read through the identifier's context")]
    accept: KBox<Arc<dyn Accept>>,
}

// SAFETY: The connection manager's functions may be called from any thread.
unsafe impl Send for Listener {}
// SAFETY: There are no methods that take a reference.
unsafe impl Sync for Listener {}

impl Listener {
    /// Requests that wait for an answer before more are refused.
    const BACKLOG: i32 = 128;

    /// Listens on `address`; `EADDRINUSE` or `EADDRNOTAVAIL` when that cannot
    /// be. Every device is listened on when the address is the unspecified one.
    pub fn new(address: &SocketAddr, accept: Arc<dyn Accept>) -> Result<Self> {
        let accept = KBox::new(accept, GFP_KERNEL)?;
        let context: *const Arc<dyn Accept> = &*accept;
        // SAFETY: The context lives as long as the listener.
        let raw = from_err_ptr(unsafe {
            bindings::hcablk_c_rdma_create_id(Some(on_request), context.cast_mut().cast())
        })?;
        let listener = Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            accept,
        };
        let mut address = RawAddress::new(address);
        // SAFETY: `raw` is valid, the address is copied.
        unsafe {
            to_result(bindings::rdma_set_reuseaddr(raw, 1))?;
            to_result(bindings::rdma_bind_addr(raw, address.as_mut_ptr()))?;
            to_result(bindings::rdma_listen(raw, Self::BACKLOG))?;
        }
        Ok(listener)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: The identifier is ours. No request is reported after this.
        unsafe { bindings::rdma_destroy_id(self.raw.as_ptr()) };
    }
}

/// # Safety
///
/// Called by the connection manager for a listening identifier whose context
/// points to an `Arc<dyn Accept>`, or for a new one that inherited it.
unsafe extern "C" fn on_request(
    id: *mut bindings::rdma_cm_id,
    event: *mut bindings::rdma_cm_event,
) -> crate::ffi::c_int {
    // SAFETY: All are valid during the callback.
    let (event, accept) = unsafe {
        let accept: *const Arc<dyn Accept> = (*id).context.cast();
        (&*event, &*accept)
    };
    match event.event {
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_REQUEST => {
            let Some(raw) = NonNull::new(id) else {
                return EINVAL.to_errno();
            };
            let mut incoming = Incoming {
                raw,
                event,
                claimed: false,
            };
            accept.clone().request(&mut incoming);
            if incoming.claimed {
                0
            } else {
                // The connection manager destroys what nobody claimed.
                errno::econnrefused().to_errno()
            }
        }
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL => {
            accept.clone().removed();
            0
        }
        _ => 0,
    }
}
