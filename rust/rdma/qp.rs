// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.
//!
//! # Queue pairs that are held
//!
//! A held queue pair accepts nothing from its peer until the user has checked the identity of the
//! peer.
//!
//! The connection manager makes the queue pair of an identifier ready to receive and to send as
//! soon as any peer grants the connection (`cma_rep_recv()` of `core/cma.c`). So until the user has
//! checked the peer's reply, the connection manager gets only the number of the queue pair, not the
//! queue pair:
//!
//! ```text
//!        connect_held()                 the peer grants it          establish()
//!  INIT ────────────────► INIT, unknown ───────────────────► INIT ──────────────► RTR, RTS
//!                                        Event::Granted
//! ```
//!
//! On iWARP the device itself brings the queue pair up with the TCP connection, so holding a queue
//! pair has no effect there.
//!
//! # The end of a pair before its last reference
//!
//! [`QueuePair::sever`] destroys a drained pair and its completion queue while requests that a
//! drive has not finished still refer to the object. Posts fail from then on. A post is an RCU
//! read-side critical section, and `sever` waits for a grace period: so a post needs neither a lock
//! nor a counter that processors share.

use self::drain::Draining;
use super::{
    cm::{
        conn_param,
        Id,
        Parameters, //
    },
    cq::{
        CompletionQueue,
        Handler, //
    },
    pd::ProtectionDomain,
    wr::{
        Chain,
        Sge,
        WorkId, //
    },
};
use crate::{
    bindings::{
        self,
        zeroed, //
    },
    rdma::faults,
    sync::atomic::{
        Acquire,
        Atomic,
        Full,
        Release, //
    },
    sync::synchronize_completions,
    system::errno, //
};
use core::{
    ffi::c_int,
    mem::ManuallyDrop,
    ptr::{
        self,
        NonNull, //
    },
};
use kernel::{
    error::to_result,
    new_mutex,
    prelude::*,
    sync::{
        rcu,
        Arc,
        Mutex, //
    }, //
};

mod drain;

/// Sizes of a queue pair, counted in work requests and entries. For draining, one work request is
/// added to each queue.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Work requests in the send queue.
    pub sends: u32,
    /// Work requests in the receive queue.
    pub receives: u32,
    /// Scatter-gather entries of a send.
    pub send_entries: u32,
    /// Scatter-gather entries of a receive.
    pub receive_entries: u32,
}

impl Capacity {
    /// Returns the maximum number of outstanding completions of a queue pair of this size. When a
    /// queue pair is flushed, unsignaled requests complete as well.
    pub fn completions(self) -> u32 {
        self.sends + self.receives + 2
    }
}

/// A reliable connection's queue pair, both of whose queues complete into one
/// completion queue.
///
/// # Invariants
///
/// `raw` is the queue pair of `id`, valid while `severed` is not set, and for a grace period after
/// that. While `raw` is valid, `id` has the identifier.
pub struct QueuePair<H: Handler> {
    raw: NonNull<bindings::ib_qp>,
    number: u32,
    /// See [`Self::own_number`].
    own_number: u32,
    cq: Arc<CompletionQueue<H>>,
    id: Arc<HeldId>,
    severed: Atomic<bool>,
    draining: Draining,
    /// The connection manager does not know the queue pair: see [above](self).
    held: Atomic<bool>,
    /// The connection request was sent to the peer.
    asked: Atomic<bool>,
}

// SAFETY: Verbs may be called from any thread.
unsafe impl<H: Handler> Send for QueuePair<H> {}
// SAFETY: The device's driver serialises posts.
unsafe impl<H: Handler> Sync for QueuePair<H> {}

impl<H: Handler> QueuePair<H> {
    /// Creates the queue pair of the connection `id`. May sleep.
    ///
    /// Fails with `EINVAL` unless all parts belong to the same device and protection domain. Fails
    /// with `EBUSY` if `id` or `cq` has a queue pair, or if `cq` had one that was drained: an
    /// identifier has at most one, and an event of the completion queue reports the end of
    /// draining.
    pub fn new(
        id: &Arc<Id>,
        pd: &Arc<ProtectionDomain>,
        cq: &Arc<CompletionQueue<H>>,
        capacity: Capacity,
    ) -> Result<Self> {
        if !pd.same_device(id) || !Arc::ptr_eq(pd, cq.pd()) {
            return Err(EINVAL);
        }
        let mut attr: bindings::ib_qp_init_attr = zeroed();
        attr.cap.max_send_wr = capacity.sends + 1;
        attr.cap.max_recv_wr = capacity.receives + 1;
        attr.cap.max_send_sge = capacity.send_entries;
        attr.cap.max_recv_sge = capacity.receive_entries;
        attr.sq_sig_type = bindings::ib_sig_type_IB_SIGNAL_REQ_WR;
        attr.qp_type = bindings::ib_qp_type_IB_QPT_RC;
        attr.send_cq = cq.as_raw();
        attr.recv_cq = cq.as_raw();
        let held = HeldId::new(id)?;
        let raw = Self::create(id, pd, cq, &mut attr)?;
        // SAFETY: The queue pair was created just now; its number never changes.
        let number = unsafe { (*raw.as_ptr()).qp_num };
        // INVARIANT: It is the queue pair of `id`.
        Ok(Self {
            raw,
            number,
            own_number: id.own_qp(number),
            cq: cq.clone(),
            id: held,
            severed: Atomic::new(false),
            draining: Draining::new(),
            held: Atomic::new(false),
            asked: Atomic::new(false),
        })
    }

    /// Creates the queue pair of an identifier and a completion queue that have none.
    fn create(
        id: &Id,
        pd: &ProtectionDomain,
        cq: &CompletionQueue<H>,
        attr: &mut bindings::ib_qp_init_attr,
    ) -> Result<NonNull<bindings::ib_qp>> {
        cq.paired().set()?;
        let made = id.paired().set().and_then(|()| {
            // SAFETY: Identifier and domain are on the same device.
            to_result(unsafe { bindings::rdma_create_qp(id.as_raw(), pd.as_raw(), attr) })
                .inspect_err(|_| id.paired().clear())
        });
        if let Err(e) = made {
            cq.paired().clear();
            return Err(e);
        }
        // SAFETY: The function has just set the field.
        NonNull::new(unsafe { (*id.as_raw()).qp }).ok_or(EINVAL)
    }

    /// Posts requests with one doorbell. Any context.
    ///
    /// On an error none, some or all of the requests were posted, and the queue pair can only be
    /// drained.
    #[inline]
    pub fn post(&self, chain: &Chain<'_>) -> Result {
        // RDMA drivers need not accept an empty list.
        if chain.head().is_null() {
            return Ok(());
        }
        // SAFETY: By `Chain`'s invariant.
        unsafe { self.post_raw(chain.head()) }
    }

    /// Posts a list of work requests as [`Self::post`] posts a chain.
    ///
    /// # Safety
    ///
    /// `head` is the first of a list of requests, all of which stay valid
    /// during the call.
    #[inline]
    pub(super) unsafe fn post_raw(&self, head: *const bindings::ib_send_wr) -> Result {
        if faults::post() {
            return Err(ENOMEM);
        }
        // SAFETY: The caller guarantees the same.
        unsafe { self.post_to_device(head) }
    }

    /// Posts requests to the device.
    ///
    /// # Safety
    ///
    /// The requirements of [`Self::post_raw`].
    #[inline(always)]
    unsafe fn post_to_device(&self, head: *const bindings::ib_send_wr) -> Result {
        let qp = self.raw.as_ptr();
        let mut bad = ptr::null();
        let _guard = rcu::read_lock();
        if self.severed.load(Acquire) {
            return Err(errno::enotconn());
        }
        // SAFETY: The queue pair is valid until the guard is dropped; the requests are valid by the
        // safety requirement.
        posted(unsafe {
            match (*(*qp).device).ops.post_send {
                Some(post_send) => post_send(qp, head, &mut bad),
                None => return Err(ENOTSUPP),
            }
        })
    }

    /// Posts a buffer to receive one message into. Any context.
    #[inline]
    pub fn post_receive(&self, sge: Sge, id: WorkId) -> Result {
        self.post_receive_parts(&[sge], id)
    }

    /// Posts a receive into several pieces of memory, which are filled in order. At most
    /// [`Capacity::receive_entries`] pieces. Any context.
    #[inline]
    pub fn post_receive_parts(&self, sges: &[Sge], id: WorkId) -> Result {
        let qp = self.raw.as_ptr();
        let mut wr: bindings::ib_recv_wr = zeroed();
        wr.__bindgen_anon_1.wr_id = ManuallyDrop::new(id.to_raw());
        wr.sg_list = sges.as_ptr().cast_mut().cast();
        wr.num_sge = sges.len() as i32;
        let mut bad = ptr::null();
        let _guard = rcu::read_lock();
        if self.severed.load(Acquire) {
            return Err(errno::enotconn());
        }
        // SAFETY: The queue pair is valid until the guard is dropped; the device copies request and
        // entries.
        posted(unsafe {
            match (*(*qp).device).ops.post_recv {
                Some(post_recv) => post_recv(qp, &wr, &mut bad),
                None => return Err(ENOTSUPP),
            }
        })
    }

    /// Moves the queue pair to the error state: all its work requests complete as flushed, later
    /// ones as well, and it accepts nothing from the peer, so no key reaches memory through this
    /// queue pair any more. Does nothing to a pair that was [severed](Self::sever). May sleep.
    pub fn fail(&self) -> Result {
        let failed = {
            // Under the lock the queue pair is not destroyed.
            let id = self.id.id.lock();
            match *id {
                Some(_) => self.modify(bindings::ib_qp_state_IB_QPS_ERR),
                None => return Ok(()),
            }
        };
        self.cq.notify_all();
        failed
    }

    fn modify(&self, state: bindings::ib_qp_state) -> Result {
        let mut attr: bindings::ib_qp_attr = zeroed();
        attr.qp_state = state;
        // SAFETY: The queue pair is valid.
        to_result(unsafe {
            bindings::ib_modify_qp(
                self.raw.as_ptr(),
                &mut attr,
                bindings::ib_qp_attr_mask_IB_QP_STATE as i32,
            )
        })
    }

    /// Returns the connection that the pair belongs to, until it is severed. May sleep.
    pub fn id(&self) -> Option<Arc<Id>> {
        self.id.get()
    }

    /// Disconnects the connection. Does nothing if it is disconnected already. May sleep.
    pub fn disconnect(&self) {
        if let Some(id) = self.id.get() {
            id.disconnect();
        }
    }

    /// Drops the handler of the connection's events, as [`Id::detach`] does. May sleep; not from a
    /// handler.
    pub fn detach(&self) {
        if let Some(id) = self.id.get() {
            id.detach();
        }
    }

    /// Returns the number of the queue pair as the transport sends it to the peer; 0 on a transport
    /// that does not send it.
    pub fn own_number(&self) -> u32 {
        self.own_number
    }

    /// Drains the queue pair as [`Self::drain`] does, destroys the pair and its completion queue,
    /// and drops the reference to its connection; this object stays. Posts fail from here on. The
    /// caller must have [detached](Self::detach) the connection. Does nothing the second time.
    /// Sleeps; not from a handler.
    pub fn sever(&self) {
        let _alone = self.id.ending.lock();
        self.drain_alone();
        if self.severed.xchg(true, Full) {
            return;
        }
        // Wait for posts that have not seen `severed`.
        synchronize_completions();
        let id = {
            let mut held = self.id.id.lock();
            let id = held.take();
            if let Some(id) = &id {
                self.destroy(id);
            }
            id
        };
        // SAFETY: The pair is destroyed, and `draining` has begun, so the completion queue gets no
        // other pair. Because of the exchange above there is no other call.
        unsafe { self.cq.sever() };
        drop(id);
    }

    /// Destroys the pair, whose identifier is `id`. Called once, when no post runs or follows, and
    /// under [`HeldId::ending`] or without another reference to the pair.
    fn destroy(&self, id: &Id) {
        // SAFETY: The identifier's queue pair is this one, made by `create` and not replaced, since
        // `Id::paired` allows one at a time. No post runs. A caller that fails the pair holds the
        // lock of `self.id`, or finds no identifier there; one that drains, connects or establishes
        // it holds `HeldId::ending`.
        unsafe {
            if self.held.load(Acquire) {
                // The identifier does not have it: see [above](self).
                bindings::ib_destroy_qp_user(self.raw.as_ptr(), ptr::null_mut());
            } else {
                bindings::rdma_destroy_qp(id.as_raw());
            }
        }
        id.paired().clear();
    }

    /// Returns the completion queue of both queues.
    pub fn cq(&self) -> &Arc<CompletionQueue<H>> {
        &self.cq
    }

    /// Returns the number under which `rdma resource show qp` lists the pair.
    pub fn number(&self) -> u32 {
        self.number
    }
}

/// Converts the result of the device's post function.
#[inline(always)]
fn posted(code: c_int) -> Result {
    match code {
        0 => Ok(()),
        // `to_result` is in another crate and is not inlined, so it is called for errors only.
        code => to_result(code),
    }
}

impl<H: Handler> Drop for QueuePair<H> {
    fn drop(&mut self) {
        if self.severed.load(Acquire) {
            return;
        }
        // No post runs: it would hold a reference to this object.
        if let Some(id) = self.id.get() {
            self.destroy(&id);
        }
        if !self.draining.has_begun() {
            self.cq.paired().clear();
        }
    }
}

/// The identifier of a queue pair, until the pair is severed.
#[pin_data]
struct HeldId {
    #[pin]
    id: Mutex<Option<Arc<Id>>>,
    /// Held while the pair is connected, established, drained or severed.
    #[pin]
    ending: Mutex<()>,
}

impl HeldId {
    fn new(id: &Arc<Id>) -> Result<Arc<Self>> {
        let id = id.clone();
        Arc::pin_init(
            pin_init!(Self {
                id <- new_mutex!(Some(id)),
                ending <- new_mutex!(()),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the identifier, unless the pair was severed. May sleep.
    fn get(&self) -> Option<Arc<Id>> {
        self.id.lock().clone()
    }
}

/// Records whether an identifier or a completion queue has a queue pair.
pub(super) struct Paired(Atomic<bool>);

impl Paired {
    /// Creates the record of an object without a queue pair.
    pub(super) const fn new() -> Self {
        Self(Atomic::new(false))
    }

    /// Records a queue pair. Fails with `EBUSY` if there is one already. Any context.
    pub(super) fn set(&self) -> Result {
        if self.0.xchg(true, Full) {
            return Err(EBUSY);
        }
        Ok(())
    }

    /// Records that the queue pair was destroyed. Any context.
    pub(super) fn clear(&self) {
        self.0.store(false, Release);
    }
}

impl<H: Handler> QueuePair<H> {
    /// Sends a connection request to the peer as [`Id::connect`](crate::rdma::cm::Id::connect)
    /// does. If the peer grants it, [`Event::Granted`](crate::rdma::cm::Event::Granted) follows.
    /// Until [`Self::establish`] the queue pair receives nothing and sends nothing; on iWARP it is
    /// established already. Fails with `EALREADY` the second time. Not from a handler.
    pub fn connect_held(&self, parameters: Parameters, private: &[u8]) -> Result {
        let _alone = self.id.ending.lock();
        let id = self.id.get().ok_or_else(errno::enotconn)?;
        if id.is_iwarp() {
            return id.connect(parameters, private);
        }
        // From here on only `establish` gives the identifier its queue pair.
        if self.asked.xchg(true, Full) {
            return Err(errno::ealready());
        }
        let mut param = conn_param(parameters, private)?;
        param.qp_num = self.number();
        let raw = id.as_raw();
        // SAFETY: The identifier is valid, and its queue pair is this one, which exists for longer
        // than the identifier refers to it. Events of the connection come under the handler mutex.
        // The private data is copied.
        to_result(unsafe {
            bindings::rdma_lock_handler(raw);
            (*raw).qp = ptr::null_mut();
            let code = bindings::rdma_connect_locked(raw, &mut param);
            if code == 0 {
                self.held.store(true, Release);
            } else {
                (*raw).qp = self.raw.as_ptr();
            }
            bindings::rdma_unlock_handler(raw);
            code
        })
    }

    /// Brings up the queue pair of a connection that the peer has granted. Fails with the device's
    /// error, with `EINVAL` if the connection is down or the queue pair has failed, after which the
    /// peer is refused, and with `ENOTCONN` if the queue pair is being drained. May sleep; not from
    /// a handler.
    pub fn establish(&self) -> Result {
        let _alone = self.id.ending.lock();
        if self.draining.has_begun() {
            return Err(errno::enotconn());
        }
        let id = self.id.get().ok_or_else(errno::enotconn)?;
        let raw = id.as_raw();
        // SAFETY: As in `connect_held`. Without parameters the function uses those that the peer
        // has granted.
        let established = to_result(unsafe {
            bindings::rdma_lock_handler(raw);
            let code = if self.held.xchg(false, Full) {
                (*raw).qp = self.raw.as_ptr();
                bindings::rdma_accept(raw, ptr::null_mut())
            } else {
                0
            };
            bindings::rdma_unlock_handler(raw);
            code
        });
        // Draining has moved the queue pair to the error state, from which the device does not
        // bring it up. But if draining timed out, it has reset the queue pair, which then does come
        // up. Nothing was posted to it since the reset.
        if self.draining.has_begun() {
            let _ = self.fail();
            return Err(errno::enotconn());
        }
        established
    }
}
