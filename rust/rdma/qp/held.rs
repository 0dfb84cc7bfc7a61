// SPDX-License-Identifier: GPL-2.0

//! A queue pair that takes nothing from a peer before that is known to be the one that is meant.
//!
//! The connection manager has the queue pair of an identifier ready to receive and to send as soon
//! as the peer grants the connection, whoever that is (`cma_rep_recv()` of `core/cma.c`). So it is
//! not told of the queue pair, only of its number, until the user has looked at what the peer has
//! said:
//!
//! ```text
//!        connect_held()                 the peer grants it          establish()
//!  INIT ────────────────► INIT, unknown ───────────────────► INIT ──────────────► RTR, RTS
//!                                        Event::Granted
//! ```
//!
//! On iWARP the device itself brings the queue pair up with the TCP connection: there all is as
//! without this.

use super::QueuePair;
use crate::{
    bindings,
    rdma::{
        cm::{
            conn_param,
            Parameters, //
        },
        cq::Handler,
    },
    sync::atomic::{
        Full,
        Release, //
    },
    system::errno, //
};
use core::ptr;
use kernel::{
    error::to_result,
    prelude::*, //
};

impl<H: Handler> QueuePair<H> {
    /// Asks the peer for the connection as [`Id::connect`](crate::rdma::cm::Id::connect) does, but
    /// if that grants it [`Event::Granted`](crate::rdma::cm::Event::Granted) follows: until
    /// [`Self::establish`] nothing that the peer sends comes in, and the queue pair sends nothing.
    /// On iWARP it is established by then. Fails with `EALREADY` the second time. Not from a
    /// handler.
    pub fn connect_held(&self, parameters: Parameters, private: &[u8]) -> Result {
        if self.id.is_iwarp() {
            return self.id.connect(parameters, private);
        }
        // Once it is held, what the identifier has is for `establish` to set.
        if self.asked.xchg(true, Full) {
            return Err(errno::ealready());
        }
        let mut param = conn_param(parameters, private)?;
        param.qp_num = self.number();
        let raw = self.id.as_raw();
        // SAFETY: The identifier is valid, and its queue pair is this one, which outlives its place
        // there. Events of the connection come under the handler mutex. The private data is copied.
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

    /// Brings up the queue pair of a connection that the peer has granted. Fails as the device
    /// does, with `EINVAL` when the connection is down or the pair has failed: then the peer is
    /// refused; and with `ENOTCONN` if it is being drained. May sleep; not from a handler.
    pub fn establish(&self) -> Result {
        if self.draining.has_begun() {
            return Err(errno::enotconn());
        }
        let raw = self.id.as_raw();
        // SAFETY: As of `connect_held`; without parameters the function takes what the peer has
        // granted.
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
        // Who drains the pair has failed it, which the device does not undo. But if that took too
        // long it has reset it, and a pair that was reset comes up again. Nothing was posted to it
        // since.
        if self.draining.has_begun() {
            let _ = self.fail();
            return Err(errno::enotconn());
        }
        established
    }
}
