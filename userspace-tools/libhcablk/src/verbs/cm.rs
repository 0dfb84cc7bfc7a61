// SPDX-License-Identifier: GPL-2.0

//! Connection identifiers of `rdma_cm`, and their events.
//!
//! [`QueuePair`](super::queue::QueuePair), not librdmacm, makes and brings up the queue pair of a connection: so the
//! queue pair is not ready to receive before the peer has proven who it is.

use super::{by_errno, made, sys};
use nix::errno::Errno;
use std::{
    ffi::{c_int, c_void},
    mem::size_of,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    ptr::{from_ref, null_mut, NonNull},
    slice,
};

/// Retries of a packet that is not acknowledged, and of one for which the peer has no buffer.
const RETRIES: u8 = 6;
const RNR_RETRIES: u8 = 1;
/// Log2 of the local ack timeout in units of 4.096 us.
const ACK_TIMEOUT: u8 = 18;

#[expect(
    clippy::cast_possible_wrap,
    reason = "bindgen makes small numbers unsigned"
)]
const OPTION_LEVEL: c_int = sys::RDMA_OPTION_ID as c_int;
#[expect(clippy::cast_possible_wrap, reason = "as above")]
const OPTION_ACK_TIMEOUT: c_int = sys::RDMA_OPTION_ID_ACK_TIMEOUT as c_int;

/// InfiniBand's number of the reject reason "stale connection".
const REJECT_STALE: i32 = 10;
/// InfiniBand's number of the reject reason "consumer": a program has rejected the request.
const REJECT_CONSUMER: i32 = 28;

/// An event of the connection manager.
#[derive(Debug)]
pub(crate) enum Event {
    /// The address was resolved: the device is known.
    AddressResolved,
    /// The route was resolved.
    RouteResolved,
    /// The peer has granted the connection: its private data, and its queue pair's number.
    Granted(Vec<u8>, u32),
    /// The peer has rejected it, with this private data.
    Rejected(Vec<u8>),
    /// The peer has a connection from before this host was restarted.
    Stale,
    /// The step failed.
    Failed(Errno),
    /// The peer, or this side, has closed the connection.
    Disconnected,
    /// The device is being removed.
    DeviceRemoved,
    /// Anything else.
    Other,
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) gid: [u8; 16],
    /// An IPv4 address as the last four bytes.
    pub(crate) ip: [u8; 16],
    pub(crate) port: u16,
}

/// A connection identifier with an event channel of its own.
pub(crate) struct Id {
    raw: NonNull<sys::rdma_cm_id>,
    channel: NonNull<sys::rdma_event_channel>,
}

// SAFETY: librdmacm's calls may come from any thread; those that change the identifier take it
// exclusively.
unsafe impl Send for Id {}

impl Id {
    /// Makes an identifier with its event channel.
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: No requirements.
        let channel = made(unsafe { sys::rdma_create_event_channel() })?;
        let mut raw = null_mut();
        // SAFETY: The channel exists, and there is room for the pointer.
        let result = by_errno(unsafe {
            sys::rdma_create_id(channel.as_ptr(), &raw mut raw, null_mut(), sys::RDMA_PS_TCP)
        });
        let Some(raw) = result.ok().and_then(|()| NonNull::new(raw)) else {
            let error = Errno::last();
            // SAFETY: Nothing uses the channel.
            unsafe { sys::rdma_destroy_event_channel(channel.as_ptr()) };
            return Err(error);
        };
        let id = Self { raw, channel };
        id.set_nonblocking()?;
        Ok(id)
    }

    fn set_nonblocking(&self) -> Result<(), Errno> {
        use nix::fcntl::{fcntl, FcntlArg, OFlag};
        fcntl(self.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map(drop)
    }

    /// Returns the device to which the identifier was resolved.
    pub(super) fn context(&self) -> Option<NonNull<sys::ibv_context>> {
        // SAFETY: The identifier exists.
        NonNull::new(unsafe { (*self.raw.as_ptr()).verbs })
    }

    pub(super) fn raw(&self) -> *mut sys::rdma_cm_id {
        self.raw.as_ptr()
    }

    /// Starts to find the device for `address`.
    pub(crate) fn resolve_address(&mut self, address: &SocketAddr, ms: i32) -> Result<(), Errno> {
        let mut storage = to_raw(address);
        let to = (&raw mut storage).cast();
        // SAFETY: The address is valid, and is copied.
        by_errno(unsafe { sys::rdma_resolve_addr(self.raw(), null_mut(), to, ms) })
    }

    /// Starts to find the route.
    pub(crate) fn resolve_route(&mut self, ms: i32) -> Result<(), Errno> {
        let (timeout, length) = (ACK_TIMEOUT, size_of::<u8>());
        let value = from_ref(&timeout).cast_mut().cast::<c_void>();
        // SAFETY: The value is read, and has this length. A transport without the option refuses it.
        let _ = unsafe {
            sys::rdma_set_option(self.raw(), OPTION_LEVEL, OPTION_ACK_TIMEOUT, value, length)
        };
        // SAFETY: The identifier exists.
        by_errno(unsafe { sys::rdma_resolve_route(self.raw(), ms) })
    }

    /// Sends a connection request for a queue pair.
    pub(crate) fn connect(
        &mut self,
        queue_pair: u32,
        responder_resources: u8,
        private: &[u8],
    ) -> Result<(), Errno> {
        let mut param = sys::rdma_conn_param {
            private_data: private.as_ptr().cast(),
            private_data_len: u8::try_from(private.len()).map_err(|_| Errno::EINVAL)?,
            responder_resources,
            initiator_depth: 0,
            flow_control: 1,
            retry_count: RETRIES,
            rnr_retry_count: RNR_RETRIES,
            srq: 0,
            qp_num: queue_pair,
        };
        // SAFETY: The parameters are valid, and their memory is copied.
        by_errno(unsafe { sys::rdma_connect(self.raw(), &raw mut param) })
    }

    /// Notifies the peer that its grant was accepted.
    pub(crate) fn establish(&mut self) -> Result<(), Errno> {
        // SAFETY: The identifier exists.
        by_errno(unsafe { sys::rdma_establish(self.raw()) })
    }

    /// Closes the connection. It may be closed already.
    pub(crate) fn disconnect(&mut self) {
        // SAFETY: The identifier exists.
        unsafe { sys::rdma_disconnect(self.raw()) };
    }

    /// Returns the two ends of the connection, this host's first. They are known once the route was
    /// resolved.
    pub(crate) fn ends(&self) -> (End, End) {
        // SAFETY: The identifier exists. Only those parts of the unions are read that librdmacm fills for this port
        // space; all bits are valid.
        unsafe {
            let address = &(*self.raw.as_ptr()).route.addr;
            let gids = &address.addr.ibaddr;
            (
                end(&address.__bindgen_anon_1.src_storage, gids.sgid.raw),
                end(&address.__bindgen_anon_2.dst_storage, gids.dgid.raw),
            )
        }
    }

    /// Returns the next event, if there is one.
    pub(crate) fn event(&mut self) -> Result<Option<Event>, Errno> {
        let mut raw = null_mut();
        // SAFETY: The channel exists, and there is room for the pointer.
        match by_errno(unsafe { sys::rdma_get_cm_event(self.channel.as_ptr(), &raw mut raw) }) {
            Ok(()) => {}
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: The call has returned an event, which is ours until it is acknowledged.
        let event = unsafe { to_event(&*raw) };
        // SAFETY: As above, and it is not used any more.
        unsafe { sys::rdma_ack_cm_event(raw) };
        Ok(Some(event))
    }
}

impl AsFd for Id {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: The channel has a descriptor, which is open during the channel's life.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: All events were acknowledged, and nothing refers to the identifier or the channel
        // any more.
        unsafe {
            sys::rdma_destroy_id(self.raw.as_ptr());
            sys::rdma_destroy_event_channel(self.channel.as_ptr());
        }
    }
}

/// # Safety
///
/// It must be an event that librdmacm has returned.
unsafe fn to_event(event: &sys::rdma_cm_event) -> Event {
    let private = || {
        // SAFETY: By the requirement the parameters of a connection belong to these events, and
        // private data has the length that they say.
        unsafe {
            let conn = &event.param.conn;
            match (conn.private_data.is_null(), conn.private_data_len) {
                (true, _) | (_, 0) => Vec::new(),
                (false, len) => {
                    slice::from_raw_parts(conn.private_data.cast::<u8>(), len.into()).to_vec()
                }
            }
        }
    };
    let error = || match event.status {
        status if status < 0 => Errno::from_raw(-status),
        _ => Errno::EIO,
    };
    match event.event {
        sys::RDMA_CM_EVENT_ADDR_RESOLVED => Event::AddressResolved,
        sys::RDMA_CM_EVENT_ROUTE_RESOLVED => Event::RouteResolved,
        sys::RDMA_CM_EVENT_CONNECT_RESPONSE | sys::RDMA_CM_EVENT_ESTABLISHED => {
            // SAFETY: As above.
            let peer = unsafe { event.param.conn.qp_num };
            Event::Granted(private(), peer)
        }
        sys::RDMA_CM_EVENT_REJECTED if event.status == REJECT_STALE => Event::Stale,
        sys::RDMA_CM_EVENT_REJECTED if event.status == REJECT_CONSUMER => {
            Event::Rejected(private())
        }
        // No program has: then librdmacm returns zeroes.
        sys::RDMA_CM_EVENT_REJECTED => Event::Rejected(Vec::new()),
        sys::RDMA_CM_EVENT_ADDR_ERROR
        | sys::RDMA_CM_EVENT_ROUTE_ERROR
        | sys::RDMA_CM_EVENT_CONNECT_ERROR
        | sys::RDMA_CM_EVENT_UNREACHABLE => Event::Failed(error()),
        sys::RDMA_CM_EVENT_DISCONNECTED => Event::Disconnected,
        sys::RDMA_CM_EVENT_DEVICE_REMOVAL => Event::DeviceRemoved,
        _ => Event::Other,
    }
}

fn to_raw(address: &SocketAddr) -> sys::sockaddr_storage {
    // SAFETY: All zeroes are valid.
    let mut storage: sys::sockaddr_storage = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V4(address) => {
            let to = (&raw mut storage).cast::<sys::sockaddr_in>();
            // SAFETY: The storage has room for any address, and is aligned for it.
            unsafe {
                (*to).sin_family = AF_INET;
                (*to).sin_port = address.port().to_be();
                (*to).sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            }
        }
        SocketAddr::V6(address) => {
            let to = (&raw mut storage).cast::<sys::sockaddr_in6>();
            // SAFETY: As above.
            unsafe {
                (*to).sin6_family = AF_INET6;
                (*to).sin6_port = address.port().to_be();
                (*to).sin6_scope_id = address.scope_id();
                (*to).sin6_addr.__in6_u.__u6_addr8 = address.ip().octets();
            }
        }
    }
    storage
}

const AF_INET: u16 = nix::sys::socket::AddressFamily::Inet as u16;
const AF_INET6: u16 = nix::sys::socket::AddressFamily::Inet6 as u16;

fn end(storage: &sys::sockaddr_storage, gid: [u8; 16]) -> End {
    let mut ip = [0; 16];
    let from = from_ref(storage);
    let port = match storage.ss_family {
        AF_INET => {
            // SAFETY: By its family it is an IPv4 address.
            let address = unsafe { &*from.cast::<sys::sockaddr_in>() };
            if let Some(last) = ip.last_chunk_mut() {
                *last = address.sin_addr.s_addr.to_ne_bytes();
            }
            address.sin_port
        }
        AF_INET6 => {
            // SAFETY: By its family it is an IPv6 address; all bits are valid.
            let address = unsafe { &*from.cast::<sys::sockaddr_in6>() };
            // SAFETY: As above.
            ip = unsafe { address.sin6_addr.__in6_u.__u6_addr8 };
            address.sin6_port
        }
        _ => 0,
    };
    End {
        gid,
        ip,
        port: u16::from_be(port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_converted_without_loss() {
        let v4 = end(&to_raw(&"10.77.0.1:7744".parse().unwrap()), [1; 16]);
        assert_eq!(v4.ip[..12], [0; 12]);
        assert_eq!(v4.ip[12..], [10, 77, 0, 1]);
        assert_eq!((v4.port, v4.gid), (7744, [1; 16]));
        let v6 = end(&to_raw(&"[fd77::1]:1".parse().unwrap()), [0; 16]);
        assert_eq!((v6.ip[0], v6.ip[15], v6.port), (0xfd, 1, 1));
    }
}
