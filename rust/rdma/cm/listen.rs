// SPDX-License-Identifier: GPL-2.0

//! Listening for connections: a [`Listener`] hands each request to an [`Accept`],
//! which claims its identifier or refuses it.

use super::{
    event::{
        on_event,
        peer_qp,
        private_data,
        Ends, //
    },
    reject,
    Handler,
    Id,
    IdContext, //
};
use crate::{
    bindings,
    rdma::{
        address::RawAddress,
        qp::Paired, //
    },
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        defer::without_io, //
    },
    system::errno, //
};
use core::{
    net::SocketAddr,
    ptr::NonNull, //
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

/// Handles connection requests.
pub trait Accept: Send + Sync + 'static {
    /// Handles a connection request: claims the identifier, else the peer is refused. Process
    /// context; requests come one at a time, so keep it short.
    fn request(self: Arc<Self>, incoming: &mut Incoming<'_>);

    /// Handles the removal of the device that is listened on: the listener, for which
    /// [`Listener::has_lost_device`] returns `true`, must be dropped, but not from here.
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

    /// Returns the number of the peer's queue pair; 0 on transports that do not transmit it.
    pub fn peer_qp(&self) -> u32 {
        // SAFETY: A connection request carries connection parameters.
        unsafe { peer_qp(self.event) }
    }

    /// Returns the endpoints of the requested connection.
    pub fn ends(&self) -> Ends {
        // SAFETY: `raw` is valid during the callback, and a request comes with its route.
        unsafe { Ends::from_id(self.raw.as_ptr()) }
    }

    /// Takes the identifier: its new owner accepts or rejects the request in its own time and
    /// context.
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

/// The context of a listening identifier.
struct ListenContext {
    accept: Arc<dyn Accept>,
    /// Set before [`Accept::removed`] is called.
    device_removed: Atomic<bool>,
}

/// An identifier that listens.
pub struct Listener {
    raw: NonNull<bindings::rdma_cm_id>,
    /// In a box, since the identifier has its address.
    context: KBox<ListenContext>,
}

// SAFETY: The connection manager's functions may be called from any thread.
unsafe impl Send for Listener {}
// SAFETY: The only method that takes a reference reads an atomic variable.
unsafe impl Sync for Listener {}

impl Listener {
    /// Maximum number of requests that wait for a response; further ones are refused.
    const BACKLOG: i32 = 128;

    /// Listens on `address`, on every device if that is the unspecified address. Fails with
    /// `EADDRINUSE` or `EADDRNOTAVAIL` if the address cannot be used.
    pub fn new(address: &SocketAddr, accept: Arc<dyn Accept>) -> Result<Self> {
        let context = KBox::new(
            ListenContext {
                accept,
                device_removed: Atomic::new(false),
            },
            GFP_KERNEL,
        )?;
        let context_ptr: *const ListenContext = &*context;
        // SAFETY: The context lives as long as the listener.
        let raw = from_err_ptr(unsafe {
            bindings::hcablk_c_rdma_create_id(Some(on_request), context_ptr.cast_mut().cast())
        })?;
        let listener = Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            context,
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

    /// Returns whether the device that is listened on was removed: no request arrives any more. Any
    /// context.
    pub fn has_lost_device(&self) -> bool {
        self.context.device_removed.load(Acquire)
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
/// points to a [`ListenContext`], or for a new one that inherited it.
unsafe extern "C" fn on_request(
    id: *mut bindings::rdma_cm_id,
    event: *mut bindings::rdma_cm_event,
) -> crate::ffi::c_int {
    // SAFETY: All are valid during the callback.
    let (event, context) = unsafe {
        let context: *const ListenContext = (*id).context.cast();
        (&*event, &*context)
    };
    let accept = context.accept.clone();
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
            without_io(|| accept.request(&mut incoming));
            if incoming.claimed {
                0
            } else {
                // The connection manager destroys an unclaimed identifier.
                errno::econnrefused().to_errno()
            }
        }
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL => {
            context.device_removed.store(true, Release);
            accept.removed();
            0
        }
        _ => 0,
    }
}
