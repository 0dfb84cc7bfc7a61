// SPDX-License-Identifier: GPL-2.0

//! Posts the RDMA READ of a write's data as a whole; for RDMA READs in chunks see
//! [`chunks`](super::chunks).
//!
//! # Into registered memory
//!
//! On iWARP, or with the module's parameter `force_mr=1` on any device, data is read into a
//! [`Sink`]. Every `TargetRequest` of such a queue has one from the start. REG_MR, RDMA READ and a
//! fenced LOCAL_INV are one chain, only the last is signaled, and the buffers are used only after
//! its completion. If the READ fails, the region may stay valid: the pool of buffers is then
//! closed, and returns no buffer before the regions are destroyed. The pool checks this itself: a
//! buffer that is still exposed is not returned, the session ends, and a line with `BUG:` reports
//! it. A sink has a lock, held while its chain is posted, so that the region exists while a work
//! request points to it.

use super::{
    drive::begin,
    fault::{
        Fault,
        Subject, //
    },
    limits::PARTS_MAX,
    queue::{
        kind,
        Queue, //
    },
    request::TargetRequest, //
};
use crate::memory::layout::{
    BUFFERS_MAX,
    BUFFERS_USUAL,
    BUFFER_BYTES, //
};
use hcablk_core::{
    proto::message::Remote,
    rdma::{
        cq::Success,
        sink::Sink,
        wr::{
            Chain,
            Rdma,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
    sync::{
        atomic::Relaxed,
        new_irq_lock,
        IrqLock, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl Queue {
    /// Reads the data of a write from the initiator's memory.
    pub(super) fn rdma_read(&self, mut request: KBox<TargetRequest>, remote: Remote) {
        request.moved = request.length() as u64;
        self.rdma_reads
            .store(self.rdma_reads.load(Relaxed) + 1, Relaxed);
        if let Some(sink) = request.sink.clone() {
            return self.rdma_read_into_sink(&sink, request, remote);
        }
        if request.is_large() {
            return self.rdma_read_large(request, remote);
        }
        self.rdma_read_parts::<BUFFERS_USUAL>(request, remote);
    }

    #[cold]
    #[inline(never)]
    fn rdma_read_large(&self, request: KBox<TargetRequest>, remote: Remote) {
        self.rdma_read_parts::<BUFFERS_MAX>(request, remote);
    }

    /// Reads data of up to `BUFFERS` transfer buffers.
    #[inline(always)]
    fn rdma_read_parts<const BUFFERS: usize>(&self, request: KBox<TargetRequest>, remote: Remote) {
        let index = request.index;
        let mut sges = [Sge::EMPTY; BUFFERS];
        let count = self.sges(&request, &mut sges);
        let per_part = self.shape.read_sges;
        let unit = request.unit();
        let mut parts = sges
            .get(..count)
            .unwrap_or(&[])
            .chunks(per_part)
            .enumerate()
            .map(|(i, part)| {
                let address = remote.address + (i * per_part * unit) as u64;
                Rdma::read(part, address, remote.key)
            });
        let mut reads: [Option<Rdma<'_>>; PARTS_MAX] = core::array::from_fn(|_| parts.next());
        let last = count.div_ceil(per_part);
        self.counters.rdma_reads.add(last as u64);
        let mut chain = Chain::new();
        for (i, read) in reads.iter_mut().flatten().enumerate() {
            if i + 1 == last {
                read.signal(WorkId::new(kind::RDMA_READ, index));
            } else {
                read.name(WorkId::new(kind::PART, index));
            }
            chain.push(read);
        }
        self.post(request, &chain);
    }

    /// Allocates the sink of a `TargetRequest`, on a device that needs one. May sleep.
    pub(super) fn make_sink(&self) -> Result<Option<Arc<IrqLock<Sink>>>> {
        if !self.shape.sinks {
            return Ok(None);
        }
        let largest = self.shape.largest;
        let pieces = (largest as usize).div_ceil(BUFFER_BYTES);
        let sink = Sink::new(&self.pd, pieces, largest)?;
        Ok(Some(Arc::pin_init(
            new_irq_lock!(sink, "hcablk_sink"),
            GFP_KERNEL,
        )?))
    }

    /// Posts the RDMA READ as [`Self::rdma_read`] does, into memory that is registered for this
    /// READ only. The buffers are used only after the invalidation.
    fn rdma_read_into_sink(
        &self,
        sink: &IrqLock<Sink>,
        request: KBox<TargetRequest>,
        remote: Remote,
    ) {
        let index = request.index;
        let pieces = request.pieces().map(|piece| (piece.buffer, piece.length));
        let mut sink = sink.lock();
        let mapped = sink.map(pieces, index).and_then(|()| sink.register());
        let Ok(mut grant) = mapped else {
            let tag = request.tag;
            self.fail(Fault::Unregistered(Subject {
                tag,
                key: remote.key,
            }));
            return self.give_up(request);
        };
        let sges = [grant.sge];
        let mut read = Rdma::read(&sges, remote.address, remote.key);
        grant.register.name(WorkId::new(kind::SINK, index));
        read.name(WorkId::new(kind::PART, index));
        grant.invalidate.signal(WorkId::new(kind::RDMA_READ, index));
        let mut chain = Chain::new();
        chain.push(&mut grant.register);
        chain.push(&mut read);
        chain.push(&mut grant.invalidate);
        self.counters.registrations.bump();
        self.counters.rdma_reads.bump();
        self.post(request, &chain);
    }

    /// Begins the drive's part of a write after its RDMA READ.
    pub(super) fn rdma_read_completed(&self, request: KBox<TargetRequest>, proof: Success) {
        if let Some(sink) = &request.sink {
            let buffers = request.pieces().map(|piece| piece.buffer);
            sink.lock().completed(proof, buffers);
        }
        if request.wire_in_ram() {
            for piece in request.pieces() {
                piece.buffer.sync_for_cpu(0, piece.length);
            }
        }
        begin(self, request);
    }
}
