// SPDX-License-Identifier: GPL-2.0

//! Completion queues and queue pairs.
//!
//! Soft-RoCE reports an invalidation to user space with the flag of the kernel (4), not with that of verbs (8):
//! `do_complete()` in `rxe_resp.c`. The 4 of verbs is about the checksum of IP headers, and never
//! set on reliable connections. So on soft-RoCE both flags count as an invalidation. Missing one
//! would be worse than seeing a false one: this side would then invalidate an unbound window, at
//! which soft-RoCE in the kernel dereferences a null pointer.

use super::{
    by_errno, by_value,
    cm::Id,
    device::ProtectionDomain,
    made,
    memory::{Buffer, Region, Right, Sge, Window},
    sys,
};
use nix::{
    errno::Errno,
    fcntl::{fcntl, FcntlArg, OFlag},
};
use std::{
    ffi::{c_int, CStr},
    mem::zeroed,
    ops::Range,
    os::fd::{AsFd, BorrowedFd},
    ptr::{null_mut, NonNull},
    sync::{Arc, Mutex, PoisonError},
};

/// The largest number of completions that are polled at once.
pub(crate) const POLL: usize = 16;
const POLL_COUNT: c_int = 16;
const _: () = assert!(POLL as u64 == POLL_COUNT as u64);
/// See the module.
const SOFT_ROCE_WITH_INV: u32 = 1 << 2;
/// The minimal RNR timer, 0.64 ms.
const RNR_TIMER: u8 = 12;

/// The state of a queue pair, among its attributes.
#[expect(
    clippy::cast_possible_wrap,
    reason = "bindgen makes small numbers unsigned"
)]
const QP_STATE: c_int = sys::IBV_QP_STATE as c_int;

/// The outcome that a completion reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// A work request of the send queue was carried out.
    Sent,
    /// A receive buffer has a message of this many bytes, or received the immediate value of an RDMA WRITE of this many
    /// bytes.
    Received {
        bytes: u32,
        immediate: Option<u32>,
        invalidated: Option<u32>,
    },
    /// The work request was flushed, since the queue pair has failed.
    Flushed,
    /// The work request has failed, with this status.
    Failed(&'static str),
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    /// The work request's id.
    pub(crate) id: u64,
    pub(crate) done: Done,
}

/// A completion queue with a descriptor for its events.
pub(crate) struct CompletionQueue {
    raw: NonNull<sys::ibv_cq>,
    channel: NonNull<sys::ibv_comp_channel>,
    pd: Arc<ProtectionDomain>,
}

// SAFETY: Verbs may be called by any thread.
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    /// Makes a completion queue of `entries` entries.
    pub(crate) fn new(pd: &Arc<ProtectionDomain>, entries: u32) -> Result<Self, Errno> {
        let context = pd.context();
        let entries = c_int::try_from(entries).map_err(|_| Errno::EINVAL)?;
        // SAFETY: The domain keeps its context open.
        let channel = made(unsafe { sys::ibv_create_comp_channel(context) })?;
        // SAFETY: As above.
        let raw = unsafe { sys::ibv_create_cq(context, entries, null_mut(), channel.as_ptr(), 0) };
        let raw = made(raw);
        let raw = raw.inspect_err(|_| {
            // SAFETY: Nothing uses the channel.
            unsafe { sys::ibv_destroy_comp_channel(channel.as_ptr()) };
        })?;
        let queue = Self {
            raw,
            channel,
            pd: pd.clone(),
        };
        fcntl(queue.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(queue)
    }

    /// Makes the next completion raise an event; with `solicited` the next solicited one, or an error.
    pub(crate) fn arm(&mut self, solicited: bool) -> Result<(), Errno> {
        // SAFETY: The domain keeps its context open.
        let arm = unsafe { (*self.pd.context()).ops.req_notify_cq }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: The queue exists.
        by_value(unsafe { arm(self.raw.as_ptr(), solicited.into()) })
    }

    /// Takes the raised events; returns whether there were any.
    pub(crate) fn take_events(&mut self) -> bool {
        let mut count = 0;
        loop {
            let (mut queue, mut context) = (null_mut(), null_mut());
            // SAFETY: The channel exists, and there is room for the pointers.
            let result = unsafe {
                sys::ibv_get_cq_event(self.channel.as_ptr(), &raw mut queue, &raw mut context)
            };
            if result != 0 {
                break;
            }
            count += 1;
        }
        if count != 0 {
            // SAFETY: This number of events of this queue, the only one of the channel, was returned.
            unsafe { sys::ibv_ack_cq_events(self.raw.as_ptr(), count) };
        }
        count != 0
    }

    /// Polls some completions, and passes them to `handle`. Returns their number.
    pub(crate) fn poll(&mut self, mut handle: impl FnMut(Completion)) -> Result<usize, Errno> {
        // SAFETY: All zeroes are valid.
        let mut completions: [sys::ibv_wc; POLL] = unsafe { zeroed() };
        // SAFETY: The domain keeps its context open.
        let poll = unsafe { (*self.pd.context()).ops.poll_cq }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: The queue exists, and the array has room for this number of completions.
        let count = unsafe { poll(self.raw.as_ptr(), POLL_COUNT, completions.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| Errno::EIO)?;
        let invalidated = match self.pd.attributes().is_soft_roce {
            true => sys::IBV_WC_WITH_INV | SOFT_ROCE_WITH_INV,
            false => sys::IBV_WC_WITH_INV,
        };
        for completion in completions.iter().take(count) {
            handle(to_completion(completion, invalidated));
        }
        Ok(count)
    }
}

/// `with_inv` are the flags that report the invalidation of a key.
fn to_completion(wc: &sys::ibv_wc, with_inv: u32) -> Completion {
    let done = match wc.status {
        sys::IBV_WC_SUCCESS if wc.opcode & sys::IBV_WC_RECV != 0 => {
            let has = |flag| wc.wc_flags & flag != 0;
            // SAFETY: Both fields of the union are numbers of 32 bits.
            let (immediate, key) = unsafe {
                let value = &wc.__bindgen_anon_1;
                (u32::from_be(value.imm_data), value.invalidated_rkey)
            };
            Done::Received {
                bytes: wc.byte_len,
                immediate: has(sys::IBV_WC_WITH_IMM).then_some(immediate),
                invalidated: has(with_inv).then_some(key),
            }
        }
        sys::IBV_WC_SUCCESS => Done::Sent,
        sys::IBV_WC_WR_FLUSH_ERR => Done::Flushed,
        status => {
            // SAFETY: Any status has a text, which is static.
            let text = unsafe { CStr::from_ptr(sys::ibv_wc_status_str(status)) };
            Done::Failed(text.to_str().unwrap_or("unknown error"))
        }
    };
    Completion { id: wc.wr_id, done }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: The channel has a descriptor, which is open during the channel's life.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: Each event was acknowledged, and no queue pair uses the queue any more.
        unsafe {
            sys::ibv_destroy_cq(self.raw.as_ptr());
            sys::ibv_destroy_comp_channel(self.channel.as_ptr());
        }
    }
}

/// The size of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    /// Pieces that a work request gathers.
    pub(crate) pieces: u32,
}

/// A queue pair, or nothing once it is destroyed.
struct QueuePairSlot(Option<NonNull<sys::ibv_qp>>);

// SAFETY: Verbs may be called by any thread.
unsafe impl Send for QueuePairSlot {}

/// A handle with which any thread fails a queue pair.
#[derive(Clone)]
pub(crate) struct Stopper(Arc<Mutex<QueuePairSlot>>);

impl Stopper {
    /// Makes the queue pair fail: it sends and receives nothing any more, and all its work requests complete. It may
    /// have failed already, or be gone.
    pub(crate) fn fail(&self) {
        let place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(qp) = place.0 {
            // SAFETY: All zeroes are valid.
            let mut attr: sys::ibv_qp_attr = unsafe { zeroed() };
            attr.qp_state = sys::IBV_QPS_ERR;
            // SAFETY: The queue pair is there as long as the lock is held.
            unsafe { sys::ibv_modify_qp(qp.as_ptr(), &raw mut attr, QP_STATE) };
        }
    }
}

/// A queue pair, and the work requests that wait for its doorbell.
pub(crate) struct QueuePair {
    raw: NonNull<sys::ibv_qp>,
    stopper: Stopper,
    /// `sg_list` of each is the index of its first piece until [`Self::ring`] makes it a pointer.
    waiting: Vec<sys::ibv_send_wr>,
    pieces: Vec<sys::ibv_sge>,
    pub(crate) cq: CompletionQueue,
}

// SAFETY: Verbs may be called by any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Makes a queue pair for the connection `id`, whose completions all go to `cq`. Receives can be posted.
    pub(crate) fn new(id: &Id, cq: CompletionQueue, capacity: Capacity) -> Result<Self, Errno> {
        if !cq.pd.is_of(id) {
            return Err(Errno::EXDEV);
        }
        // SAFETY: All zeroes are valid.
        let mut attr: sys::ibv_qp_init_attr = unsafe { zeroed() };
        attr.send_cq = cq.raw.as_ptr();
        attr.recv_cq = cq.raw.as_ptr();
        attr.cap.max_send_wr = capacity.sends;
        attr.cap.max_recv_wr = capacity.receives;
        attr.cap.max_send_sge = capacity.pieces;
        attr.cap.max_recv_sge = 1;
        attr.qp_type = sys::IBV_QPT_RC;
        // SAFETY: The domain and the completion queue are there, and are kept.
        let raw = made(unsafe { sys::ibv_create_qp(cq.pd.raw(), &raw mut attr) })?;
        let pair = Self {
            raw,
            stopper: Stopper(Arc::new(Mutex::new(QueuePairSlot(Some(raw))))),
            waiting: Vec::with_capacity(capacity.sends as usize),
            pieces: Vec::with_capacity(capacity.sends as usize),
            cq,
        };
        pair.modify(id, sys::IBV_QPS_INIT)?;
        Ok(pair)
    }

    fn modify(&self, id: &Id, state: sys::ibv_qp_state) -> Result<(), Errno> {
        // SAFETY: All zeroes are valid.
        let mut attr: sys::ibv_qp_attr = unsafe { zeroed() };
        let mut mask = 0;
        attr.qp_state = state;
        // SAFETY: The identifier is there, and there is room for what it says.
        by_errno(unsafe { sys::rdma_init_qp_attr(id.raw(), &raw mut attr, &raw mut mask) })?;
        match state {
            // The peer may access what windows and keys permit.
            sys::IBV_QPS_INIT => {
                attr.qp_access_flags = sys::IBV_ACCESS_REMOTE_READ | sys::IBV_ACCESS_REMOTE_WRITE;
            }
            sys::IBV_QPS_RTR => attr.min_rnr_timer = RNR_TIMER,
            _ => {}
        }
        // SAFETY: The queue pair and the attributes exist.
        by_value(unsafe { sys::ibv_modify_qp(self.raw.as_ptr(), &raw mut attr, mask) })
    }

    /// Brings the queue pair up, when the peer has granted the connection `id`.
    pub(crate) fn bring_up(&self, id: &Id) -> Result<(), Errno> {
        self.modify(id, sys::IBV_QPS_INIT)?;
        self.modify(id, sys::IBV_QPS_RTR)?;
        self.modify(id, sys::IBV_QPS_RTS)
    }

    /// Returns the number of the queue pair.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: The queue pair is there.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// Returns the number of the queue pair's domain among those of its volume.
    pub(crate) fn place(&self) -> usize {
        self.cq.pd.place()
    }

    /// Returns a handle with which any thread can fail the queue pair.
    pub(crate) fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Posts a receive buffer.
    pub(crate) fn receive(&mut self, sge: Sge, id: u64) -> Result<(), Errno> {
        let mut sge = sge.raw();
        let mut wr = sys::ibv_recv_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
        };
        let mut bad = null_mut();
        // SAFETY: The domain keeps its context open.
        let post = unsafe { (*self.cq.pd.context()).ops.post_recv }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: The queue pair and the work request are there.
        by_value(unsafe { post(self.raw.as_ptr(), &raw mut wr, &raw mut bad) })
    }

    /// Returns a work request with these pieces; it is signaled if it has an id.
    fn request(
        &mut self,
        opcode: sys::ibv_wr_opcode,
        pieces: &[Sge],
        id: Option<u64>,
    ) -> sys::ibv_send_wr {
        // SAFETY: All zeroes are valid.
        let mut wr: sys::ibv_send_wr = unsafe { zeroed() };
        wr.opcode = opcode;
        wr.wr_id = id.unwrap_or(0);
        wr.send_flags = id.map_or(0, |_| sys::IBV_SEND_SIGNALED);
        wr.sg_list = std::ptr::without_provenance_mut(self.pieces.len());
        wr.num_sge = c_int::try_from(pieces.len()).unwrap_or(c_int::MAX);
        self.pieces.extend(pieces.iter().map(|piece| piece.raw()));
        wr
    }

    /// Adds a message, which raises an event at the peer.
    pub(crate) fn send(&mut self, pieces: &[Sge], id: Option<u64>) {
        let mut wr = self.request(sys::IBV_WR_SEND, pieces, id);
        wr.send_flags |= sys::IBV_SEND_SOLICITED;
        self.waiting.push(wr);
    }

    /// Adds an RDMA WRITE to the peer's `address` by `key`; one with an immediate value raises an
    /// event.
    pub(crate) fn write(
        &mut self,
        pieces: &[Sge],
        (address, key): (u64, u32),
        immediate: Option<u32>,
        id: Option<u64>,
    ) {
        let opcode = match immediate {
            Some(_) => sys::IBV_WR_RDMA_WRITE_WITH_IMM,
            None => sys::IBV_WR_RDMA_WRITE,
        };
        let mut wr = self.request(opcode, pieces, id);
        if let Some(value) = immediate {
            wr.__bindgen_anon_1.imm_data = value.to_be();
            wr.send_flags |= sys::IBV_SEND_SOLICITED;
        }
        wr.wr.rdma.remote_addr = address;
        wr.wr.rdma.rkey = key;
        self.waiting.push(wr);
    }

    /// Adds a bind of `window`, which is not bound, to a part of `buffer`. Returns the key, or `None`
    /// if there is no such part.
    pub(crate) fn bind(
        &mut self,
        window: &mut Window,
        buffer: &Buffer,
        range: Range<usize>,
        right: Right,
    ) -> Option<u32> {
        let place = self.place();
        buffer.sge(place, range.clone())?;
        let start = buffer.start() + range.start;
        let region = buffer.region(place)?;
        Some(self.bind_region(window, region, start..start + range.len(), right))
    }

    /// As [`Self::bind`], to a range of a region, which must be inside the region.
    pub(crate) fn bind_region(
        &mut self,
        window: &mut Window,
        region: &Region,
        range: Range<usize>,
        right: Right,
    ) -> u32 {
        let mut wr = self.request(sys::IBV_WR_BIND_MW, &[], None);
        let key = window.next_key();
        let info = sys::ibv_mw_bind_info {
            mr: region.mr(),
            addr: region.address(range.start),
            length: range.len() as u64,
            mw_access_flags: right.flags(),
        };
        // The device checks that the range is in the region.
        wr.__bindgen_anon_2.bind_mw.mw = window.raw();
        wr.__bindgen_anon_2.bind_mw.rkey = key;
        wr.__bindgen_anon_2.bind_mw.bind_info = info;
        self.waiting.push(wr);
        key
    }

    /// Adds the invalidation of `window`.
    pub(crate) fn invalidate(&mut self, window: &Window, id: u64) {
        let mut wr = self.request(sys::IBV_WR_LOCAL_INV, &[], Some(id));
        wr.__bindgen_anon_1.invalidate_rkey = window.key();
        self.waiting.push(wr);
    }

    /// Rings the doorbell for the work requests that were added. After a failure the queue pair cannot be used.
    pub(crate) fn ring(&mut self) -> Result<(), Errno> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let pieces = self.pieces.as_mut_ptr();
        let mut next = null_mut();
        for wr in self.waiting.iter_mut().rev() {
            wr.next = next;
            // In bounds: the index is the number of pieces before its own.
            wr.sg_list = pieces.wrapping_add(wr.sg_list.addr());
            next = wr;
        }
        let mut bad = null_mut();
        // SAFETY: The domain keeps its context open.
        let post = unsafe { (*self.cq.pd.context()).ops.post_send }.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: The queue pair is there, and the work requests and their pieces are until they are posted.
        let result = by_value(unsafe { post(self.raw.as_ptr(), next, &raw mut bad) });
        for wr in &self.waiting {
            if wr.opcode == sys::IBV_WR_BIND_MW {
                // SAFETY: The request is a bind, of a window that its owner keeps until the queue
                // pair is gone. Providers read the window's current key from here when the next
                // bind is posted.
                unsafe {
                    (*wr.__bindgen_anon_2.bind_mw.mw).rkey = wr.__bindgen_anon_2.bind_mw.rkey;
                };
            }
        }
        self.waiting.clear();
        self.pieces.clear();
        result
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let place = &mut *self
            .stopper
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        place.0 = None;
        // SAFETY: The queue pair has no other reference. Once it is destroyed it receives nothing.
        unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) };
    }
}
