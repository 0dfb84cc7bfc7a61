// SPDX-License-Identifier: GPL-2.0

//! The connection manager's events of an identifier, translated for a [`Handler`].

use super::{
    is_iwarp,
    IdContext, //
};
use crate::{
    bindings,
    sync::defer::without_io,
    system::errno, //
};
use core::{
    ptr,
    slice, //
};
use kernel::prelude::*;

/// An end of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct End {
    /// The GID of its RDMA port; 0 on transports that have none.
    pub gid: [u8; 16],
    /// Its IP address; an IPv4 address is in the last four bytes.
    pub ip: [u8; 16],
    /// Its port, of TCP on iWARP.
    pub port: u16,
}

/// The endpoints of a connection, as the connection manager reports them to both sides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends {
    /// This side.
    pub own: End,
    /// The other.
    pub peer: End,
}

impl Ends {
    /// Returns the endpoints of an identifier.
    ///
    /// # Safety
    ///
    /// `id` is valid, its route is known, and nothing changes that meanwhile.
    pub(super) unsafe fn from_id(id: *mut bindings::rdma_cm_id) -> Self {
        let Self { mut own, mut peer } = Self::default();
        // SAFETY: By the safety requirement; a GID and an address have 16 bytes.
        unsafe {
            bindings::hcablk_c_gids(id, own.gid.as_mut_ptr(), peer.gid.as_mut_ptr());
            bindings::hcablk_c_address(id, false, own.ip.as_mut_ptr(), &mut own.port);
            bindings::hcablk_c_address(id, true, peer.ip.as_mut_ptr(), &mut peer.port);
        }
        Self { own, peer }
    }
}

/// An event of a connection.
#[derive(Debug)]
pub enum Event<'a> {
    /// The peer's address is known and the identifier has a device.
    AddressResolved,
    /// The route to the peer is known.
    RouteResolved {
        /// The endpoints of the route.
        ends: Ends,
    },
    /// The peer has granted the connection of a queue pair that is
    /// [held](crate::rdma::qp::QueuePair::connect_held); as [`Self::Established`].
    Granted {
        /// Private data, possibly padded.
        private: &'a [u8],
        /// The number of the peer's queue pair.
        peer_qp: u32,
    },
    /// The connection is up; `private` is what the accepting side sent along.
    Established {
        /// Private data, possibly padded.
        private: &'a [u8],
        /// The number of the peer's queue pair; 0 on transports that do not transmit it.
        peer_qp: u32,
    },
    /// The peer refused.
    Rejected {
        /// The private data of the peer's user; empty when nobody listened.
        private: &'a [u8],
    },
    /// The peer's connection manager refused, since it still has a connection of an earlier queue
    /// pair with the same number, from before this host was restarted. It ends that connection now;
    /// another attempt may succeed.
    StaleConnection,
    /// Resolving or connecting failed.
    Failed(Error),
    /// The connection is down.
    Disconnected,
    /// The device is being removed; everything on it must be released.
    DeviceRemoval,
}

/// The reject reason of a stale connection on InfiniBand and RoCE, which have the same connection
/// manager.
const REJECTED_AS_STALE: i32 = bindings::ib_cm_rej_reason_IB_CM_REJ_STALE_CONN as i32;

/// Handles an identifier's events.
pub trait Handler: Send + Sync + 'static {
    /// Handles an event. Process context, one call at a time; runs [without I/O](without_io).
    fn event(&self, event: Event<'_>);
}

/// Returns the private data of an event of a connection.
///
/// # Safety
///
/// `event` is an event that carries connection parameters.
pub(super) unsafe fn private_data(event: &bindings::rdma_cm_event) -> &[u8] {
    // SAFETY: The caller guarantees which part of the union is valid.
    let conn = unsafe { &event.param.conn };
    if conn.private_data.is_null() {
        return &[];
    }
    // SAFETY: The connection manager gives a buffer of this length, valid during the callback.
    unsafe { slice::from_raw_parts(conn.private_data.cast(), conn.private_data_len.into()) }
}

/// Returns the number of the peer's queue pair.
///
/// # Safety
///
/// `event` is an event that carries connection parameters.
pub(super) unsafe fn peer_qp(event: &bindings::rdma_cm_event) -> u32 {
    // SAFETY: The caller guarantees which part of the union is valid.
    unsafe { event.param.conn.qp_num }
}

/// Returns the private data of the peer's user in a refusal; empty if the device refused.
///
/// # Safety
///
/// `id` is valid, and `event` is its event that a connection was rejected.
unsafe fn reject_data(id: *mut bindings::rdma_cm_id, event: &bindings::rdma_cm_event) -> &[u8] {
    let mut len = 0;
    // SAFETY: Both are valid; the function checks whether the user or the device rejected.
    let data = unsafe {
        bindings::rdma_consumer_reject_data(id, ptr::from_ref(event).cast_mut(), &mut len)
    };
    if !data.is_null() {
        // SAFETY: `data` points to `len` bytes, valid during the callback.
        return unsafe { slice::from_raw_parts(data.cast(), len.into()) };
    }
    // SAFETY: By the safety requirement.
    if !unsafe { is_iwarp(id) } {
        return &[];
    }
    // siw reports a refusal as a reset, which the function takes for the device's own; the private
    // data is in the event nevertheless.
    // SAFETY: The event is about a connection.
    unsafe { private_data(event) }
}

/// # Safety
///
/// Called by the connection manager for an identifier whose context is an [`IdContext`].
pub(super) unsafe extern "C" fn on_event(
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
    let failed = |otherwise: Error| match event.status {
        status if status < 0 => Error::from_errno(status),
        _ => otherwise,
    };
    let event = match event.event {
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_RESOLVED => Event::AddressResolved,
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_RESOLVED => Event::RouteResolved {
            // SAFETY: `id` is valid during the callback; a route is resolved once.
            ends: unsafe { Ends::from_id(id) },
        },
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_ESTABLISHED => Event::Established {
            // SAFETY: The event is about a connection.
            private: unsafe { private_data(event) },
            // SAFETY: As above.
            peer_qp: unsafe { peer_qp(event) },
        },
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_RESPONSE => Event::Granted {
            // SAFETY: The event is about a connection.
            private: unsafe { private_data(event) },
            // SAFETY: As above.
            peer_qp: unsafe { peer_qp(event) },
        },
        // On a device with another connection manager, the status is a negative error code.
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_REJECTED
            if event.status == REJECTED_AS_STALE =>
        {
            Event::StaleConnection
        }
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_REJECTED => Event::Rejected {
            // SAFETY: `id` is valid during the callback, and the event is of this kind.
            private: unsafe { reject_data(id, event) },
        },
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
    without_io(|| handler.event(event));
    0
}
