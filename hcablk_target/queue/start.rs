// SPDX-License-Identifier: GPL-2.0

//! The start of an admitted request: to the drive, or to what brings its data here.
//!
//! # Data that comes with the request
//!
//! Each receive buffer has two pieces, one for the request and a page for the data of an inline
//! write, from which the drive takes it. Both are posted again before the answer, when the drive is
//! done with them.

use super::{
    Io,
    Queue, //
};
use crate::storage::submit::begin_here;
use hcablk_core::proto::message::{
    Op,
    Remote,
    Status, //
};
use kernel::prelude::*;

impl Queue {
    /// Starts an admitted request.
    pub(super) fn start(&self, mut io: KBox<Io>) {
        io.marks.begin();
        if io.status != Status::Ok {
            let status = io.status;
            return self.answer(io, status);
        }
        match io.op {
            Ok(Op::Write { remote, .. }) => return self.start_rdma_read(io, remote),
            Ok(Op::Nop) => return self.answer(io, Status::Ok),
            Err(status) => return self.answer(io, status),
            Ok(Op::WriteInline { .. }) => self.take_inline(&mut io),
            Ok(Op::WriteEager { .. }) => self.take_eager(&mut io),
            Ok(Op::Read(..) | Op::Flush | Op::Discard(_) | Op::WriteZeroes { .. }) => {}
        }
        begin_here(self, io);
    }

    /// Takes the data over that came with a request.
    #[inline]
    fn take_inline(&self, io: &mut Io) {
        io.moved = io.length() as u64;
        if let Some(data) = io.receive.and_then(|buffer| self.inline_data(buffer)) {
            data.sync_for_cpu(0, io.length());
        }
    }

    /// Starts the RDMA READ of a write's data, by chunks if it has any.
    // Out of line: its tables would be in the frame of every request, below the drive's.
    #[inline(never)]
    fn start_rdma_read(&self, mut io: KBox<Io>, remote: Remote) {
        if io.chunks.is_some() {
            io.look_back();
            if !io.is_cached() {
                return self.fetch_chunks(io);
            }
        }
        self.fetch(io, remote);
    }
}
