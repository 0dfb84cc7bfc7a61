// SPDX-License-Identifier: GPL-2.0

//! Creates a queue: its queue pair and all its memory.

use super::{
    chunks::ChunkedRequests,
    eager::RespondedSlots,
    fault::RequestSubjects,
    limits::QueueShape,
    p2p::{
        lease,
        view, //
    },
    queue::{
        Queue,
        QueueConfig,
        Work,
        RECEIVE_ENTRIES, //
    },
    queue_volume::{
        QueueVolume,
        Volumes, //
    },
    reclaim::{
        CompletedSends,
        KeptMemory, //
    },
    request::TargetRequest,
    respond::ResponseBatcher, //
};
use crate::{
    memory::{
        layout::{
            BUFFER_BYTES,
            BUFFER_ORDER, //
        },
        pool::Pool,
        Charge,
        Client,
        PoolHandle, //
    },
    session::Session,
    stats::{
        Counters,
        Times, //
    },
};
use hcablk_core::{
    containers::{
        fifo::Fifo,
        slots::SlotTable, //
    },
    memory::eager_ring::EagerRing,
    p2p::PeerLease,
    proto::{
        eager_ring::{
            open_writes,
            Ring,
            Taken, //
        },
        message::{
            BUFFER_LEN,
            REQUEST_LEN, //
        },
    },
    rdma::{
        buffer::{
            DmaBuffer,
            MessageBuffers, //
        },
        cm::Id,
        cq::{
            CompletionQueue,
            CqContext, //
        },
        device::Direction,
        pd::ProtectionDomain,
        qp::QueuePair,
        wr::Sge, //
    },
    report::trace::ConnectionState,
    sync::{
        atomic::Atomic,
        new_irq_lock,
        Event, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Returns the scatter-gather entries of each receive buffer. Inline data begins on its own page,
/// from which the drive reads it. May sleep.
fn receive_entries(
    incoming: &MessageBuffers<BUFFER_LEN>,
    inline: &KVec<DmaBuffer>,
    shape: &QueueShape,
) -> Result<KVec<[Sge; RECEIVE_ENTRIES]>> {
    let count = shape.credits.into();
    let mut receives = KVec::with_capacity(count, GFP_KERNEL)?;
    for index in 0..count {
        let entries = match inline.get(index) {
            None => [Sge::new(incoming.slice(index, BUFFER_LEN)?), Sge::EMPTY],
            Some(data) => [
                Sge::new(incoming.slice(index, REQUEST_LEN)?),
                Sge::new(data.slice(0, shape.inline as usize)),
            ],
        };
        receives.push(entries, GFP_KERNEL)?;
    }
    Ok(receives)
}

/// Allocates `count` buffers of 2^`order` pages. May sleep.
fn dma_buffers(
    pd: &Arc<ProtectionDomain>,
    count: usize,
    order: u32,
    direction: Direction,
) -> Result<KVec<DmaBuffer>> {
    let mut buffers = KVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        buffers.push(DmaBuffer::new(pd, order, direction)?, GFP_KERNEL)?;
    }
    Ok(buffers)
}

impl Work {
    /// Allocates the initial state of a queue of the sizes `shape`. May sleep.
    fn new(shape: &QueueShape, pool: Pool, volumes: u16, iwarp: bool) -> Result<Self> {
        let (requests, receives) = (shape.requests as usize, usize::from(shape.credits));
        let mut taken = KVec::new();
        taken.resize(open_writes(shape.credits), Taken::default(), GFP_KERNEL)?;
        Ok(Self {
            idle: KVec::with_capacity(requests, GFP_KERNEL)?,
            waiting: Fifo::new(requests)?,
            received: Fifo::new(receives)?,
            ring: Ring::new(shape.eager_ring as u32, shape.credits, taken),
            unregistered: shape.eager_ring != 0,
            free: pool,
            kept: KeptMemory::new(requests)?,
            chunks: KVec::with_capacity(shape.chunks.into(), GFP_KERNEL)?,
            made: 0,
            closing: false,
            keep_alive_pending: true,
            // MPA requires the connecting side to send first.
            silent: iwarp,
            quiet: 0,
            owed: 0,
            volumes: Volumes::new(volumes)?,
        })
    }
}

/// The parts of a queue that need the device or memory.
struct Parts {
    pair: QueuePair<Queue>,
    incoming: MessageBuffers<BUFFER_LEN>,
    inline: KVec<DmaBuffer>,
    receives: KVec<[Sge; RECEIVE_ENTRIES]>,
    outgoing: MessageBuffers<BUFFER_LEN>,
    buffers: KVec<DmaBuffer>,
    eager_ring: Option<EagerRing>,
    handle: Option<Arc<PoolHandle>>,
    work: Work,
    inflight: SlotTable<TargetRequest>,
    subjects: RequestSubjects,
    responded_slots: RespondedSlots,
}

impl Parts {
    /// Allocates the parts of the queue of connection `id`, with the peer memory `lease` for its
    /// first buffers. May sleep.
    // `inline(never)`: its stack frame is released before the queue is assembled.
    #[inline(never)]
    fn new(
        config: &QueueConfig,
        id: &Arc<Id>,
        shape: &QueueShape,
        client: &Arc<Client>,
        lease: Option<&PeerLease>,
    ) -> Result<Self> {
        let (pd, capacity) = (&config.pd, shape.capacity());
        let (requests, receives) = (shape.requests as usize, usize::from(shape.credits));
        let cq = CompletionQueue::new(
            pd,
            capacity.completions(),
            config.index.into(),
            CqContext::Process(config.completions.clone()),
        )?;
        let pair = QueuePair::new(id, pd, &cq, capacity)?;
        let handle = match shape.shares {
            true => Some(PoolHandle::new(client)?),
            false => None,
        };
        let memory = lease.and_then(PeerLease::memory);
        let peers = memory.map_or(0, |memory| memory.pieces());
        let pool = Pool::new(shape.buffers, peers, requests, handle.clone(), pd)?;
        let incoming = MessageBuffers::new(pd, receives, Direction::FromDevice)?;
        let inline = match shape.inline {
            0 => KVec::new(),
            _ => dma_buffers(pd, receives, 0, Direction::FromDevice)?,
        };
        Ok(Self {
            pair,
            receives: receive_entries(&incoming, &inline, shape)?,
            incoming,
            inline,
            outgoing: MessageBuffers::new(pd, requests, Direction::ToDevice)?,
            buffers: dma_buffers(pd, shape.buffers, BUFFER_ORDER, Direction::Bidirectional)?,
            eager_ring: match shape.eager_ring {
                0 => None,
                bytes => Some(EagerRing::new(pd, bytes)?),
            },
            handle,
            work: Work::new(shape, pool, config.volumes, id.is_iwarp())?,
            inflight: SlotTable::new(requests)?,
            subjects: RequestSubjects::new(requests)?,
            responded_slots: RespondedSlots::new(open_writes(shape.credits))?,
        })
    }
}

impl Queue {
    /// Creates the queue pair of the connection `id` with all its memory, which `charge` accounts
    /// for, and posts its receive buffers. May sleep.
    pub(crate) fn new(
        session: Arc<Session>,
        config: QueueConfig,
        id: &Arc<Id>,
        mut shape: QueueShape,
        (client, charge): (&Arc<Client>, Charge),
    ) -> Result<Arc<Self>> {
        let (name, backing) = (&config.volume.name, &config.volume.backing);
        let pd = &config.pd;
        let (index, sinks) = (config.index, shape.sinks);
        let lease = lease(name, backing, pd, index, sinks, shape.buffers);
        if lease.is_some() {
            // Inline data would arrive in RAM.
            shape.inline = 0;
            if !shape.no_read {
                shape.eager_ring = 0;
            }
        }
        let view = view(name, backing, pd, index, sinks);
        let parts = Parts::new(&config, id, &shape, client, lease.as_ref())?;
        let served = config.volume.clone();
        let (largest, no_read, handle) = (shape.largest, shape.no_read, config.handle);
        let volume = QueueVolume::new(served, shape.split, largest, no_read, (lease, view))?;
        let init = Self::init(session, config, id.is_iwarp(), shape, charge, parts)?;
        let queue = Arc::pin_init(init, GFP_KERNEL)?;
        queue.trace_state(ConnectionState::Connecting);
        let put = queue.put_volume(handle, &volume);
        if let Some(handle) = &queue.handle {
            handle.attach(queue.clone());
        }
        let filled = put.and_then(|()| queue.fill(&volume));
        drop(volume);
        queue.pair.cq().start(queue.clone());
        if let Err(e) = filled {
            queue.close();
            return Err(e);
        }
        Ok(queue)
    }

    /// Assembles a queue without `TargetRequest`s and without posted work.
    fn init(
        session: Arc<Session>,
        config: QueueConfig,
        iwarp: bool,
        shape: QueueShape,
        charge: Charge,
        parts: Parts,
    ) -> Result<impl PinInit<Self>> {
        let chunked = ChunkedRequests::new(shape.chunks, shape.requests as usize)?;
        let batcher = ResponseBatcher::new()?;
        let immediate_bytes = match iwarp {
            true => 0,
            false => shape.write_sges * BUFFER_BYTES,
        };
        Ok(pin_init!(Self {
            session,
            session_id: config.session,
            epoch: config.epoch,
            index: config.index,
            pd: config.pd,
            pair: parts.pair,
            shape,
            never_waits: config.volumes > 1,
            moved: Atomic::new(true),
            immediate_bytes,
            all_reported: iwarp,
            incoming: parts.incoming,
            inline_syncs: parts.inline.iter().any(DmaBuffer::syncs),
            inline: parts.inline,
            receives: parts.receives,
            outgoing: parts.outgoing,
            eager_ring: parts.eager_ring,
            buffers: parts.buffers,
            handle: parts.handle,
            inflight: parts.inflight,
            subjects: parts.subjects,
            chunked <- chunked,
            rdma_reads: Atomic::new(0),
            notify_all: Atomic::new(true),
            woken: Atomic::new(false),
            completed_sends: CompletedSends::new(),
            responded_slots: parts.responded_slots,
            work <- new_irq_lock!(parts.work, "hcablk_work"),
            batcher <- batcher,
            leaving: Atomic::new(false),
            all_idle <- Event::new(),
            counters: Counters::default(),
            timing: Atomic::new(false),
            times: Times::default(),
            _charge: charge,
        }))
    }

    /// Allocates the `TargetRequest`s, and posts the receive buffers.
    fn fill(self: &Arc<Self>, volume: &Arc<QueueVolume>) -> Result {
        for index in 0..self.shape.requests {
            let (pieces, buffers) = (self.shape.pieces(), self.shape.buffers_of_one());
            let of = (self, volume);
            let request = TargetRequest::new(of, index, pieces, buffers, self.make_sink()?)?;
            let mut work = self.work.lock();
            work.idle
                .push_within_capacity(request)
                .map_err(|_| ENOMEM)?;
            work.made += 1;
        }
        self.make_chunks()?;
        for buffer in 0..u32::from(self.shape.credits) {
            self.post_receive(buffer)?;
        }
        Ok(())
    }
}
