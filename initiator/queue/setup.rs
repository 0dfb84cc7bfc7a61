// SPDX-License-Identifier: GPL-2.0

//! The beginning of a queue: its queue pair and memory, and from when on it accepts requests.

use super::{
    kind,
    wr_seq,
    Driver,
    Queue,
    QueueConfig,
    QueueOwner,
    SendState,
    TagData, //
};
use crate::{
    batching::{
        Batching,
        Outstanding, //
    },
    shape::Shape,
    stats::{
        Done,
        Sent,
        Times, //
    },
};
use hcablk_core::sync::atomic::{
    Atomic,
    Relaxed,
    Release, //
};
use hcablk_core::{
    blkdev::{
        PerTag,
        Requests, //
    },
    memory::read_bounce::ReadBounce,
    proto::{
        connect::Reply,
        credits::Credits,
        message::BUFFER_LEN, //
    },
    rdma::{
        buffer::MessageBuffers,
        cm::Id,
        cq::{
            CompletionQueue,
            CqContext, //
        },
        device::Direction,
        pd::ProtectionDomain,
        qp::QueuePair,
        wr::{
            Chain,
            WorkId,
            WorkRequest, //
        },
    },
    report::trace::State, //
    sglist::SegmentList,
    sync::new_irq_lock,
};
use kernel::{
    pr_info_once,
    prelude::*,
    sync::Arc, //
};

/// What a queue has of the device and of memory.
struct Parts {
    numa_node: i32,
    pair: QueuePair<Queue>,
    tags: PerTag<Driver, TagData>,
    read_bounce: Option<ReadBounce>,
    outgoing: MessageBuffers<BUFFER_LEN>,
    incoming: MessageBuffers<BUFFER_LEN>,
    send: SendState,
}

impl Parts {
    /// Makes the parts of the connection `id`'s queue. May sleep.
    // Its stack frame is gone when the queue is put together.
    #[inline(never)]
    fn new(
        config: &QueueConfig,
        requests: &Arc<Requests<Driver>>,
        id: &Arc<Id>,
        pd: &Arc<ProtectionDomain>,
        shape: Shape,
    ) -> Result<Self> {
        let depth = usize::from(shape.depth);
        let index = config.index.into();
        let context = if config.polled {
            CqContext::Direct
        } else {
            CqContext::SoftIrq
        };
        let capacity = shape.capacity();
        let cq = CompletionQueue::new(pd, capacity.completions(), index, context)?;
        Ok(Self {
            numa_node: pd.attributes().numa_node,
            pair: QueuePair::new(id, pd, &cq, capacity)?,
            tags: PerTag::new(requests, index, |_| {
                let list = SegmentList::new(pd, shape.segments, shape.bytes)?;
                Ok(TagData::new(list))
            })?,
            read_bounce: match shape.read_bounce_slots {
                0 => None,
                slots => Some(ReadBounce::new(pd, slots, shape.small_read)?),
            },
            outgoing: MessageBuffers::new(pd, depth + 1, Direction::ToDevice)?,
            incoming: MessageBuffers::new(pd, depth, Direction::FromDevice)?,
            send: SendState::new(shape)?,
        })
    }
}

impl Queue {
    /// Makes the queue pair of the connection `id` with all its memory, and
    /// posts its receive buffers. May sleep.
    pub(crate) fn new(
        owner: Arc<dyn QueueOwner>,
        config: QueueConfig,
        requests: &Arc<Requests<Driver>>,
        id: &Arc<Id>,
        pd: &Arc<ProtectionDomain>,
        shape: Shape,
    ) -> Result<Arc<Self>> {
        let parts = Parts::new(&config, requests, id, pd, shape)?;
        let requests = requests.clone();
        let init = Self::init(owner, config, requests, id.is_iwarp(), shape, parts);
        let queue = Arc::pin_init(init, GFP_KERNEL)?;
        for buffer in 0..u32::from(shape.depth) {
            queue.post_receive(buffer)?;
        }
        queue.pair.cq().start(queue.clone());
        queue.comes_to(State::Connecting);
        Ok(queue)
    }

    /// Puts a queue together that has posted nothing and accepts no requests.
    fn init(
        owner: Arc<dyn QueueOwner>,
        config: QueueConfig,
        requests: Arc<Requests<Driver>>,
        iwarp: bool,
        shape: Shape,
        parts: Parts,
    ) -> impl PinInit<Self> {
        let settings = config.settings;
        pin_init!(Self {
            index: config.index,
            path: config.session.path(),
            numa_node: parts.numa_node,
            unrung: Atomic::new(false),
            polled: config.polled,
            depth: shape.depth,
            session: config.session,
            epoch: config.epoch,
            settings,
            owner,
            pair: parts.pair,
            requests,
            tags: parts.tags,
            live: Atomic::new(false),
            granted: Atomic::new(false),
            timed_out: Atomic::new(false),
            is_unfit: Atomic::new(false),
            starved: Atomic::new(false),
            remote_invalidate: settings.remote_invalidate,
            read_bounce: parts.read_bounce,
            inline_limit: Atomic::new(0),
            inline_segments: shape.inline_segments,
            eager_limit: Atomic::new(0),
            only_eager: Atomic::new(false),
            immediates: !iwarp,
            outgoing: parts.outgoing,
            incoming: parts.incoming,
            freed: Atomic::new(0),
            completed_seq: Atomic::new(0),
            awaiting_send: Atomic::new(wr_seq::NO_TAG),
            awaited_sends: Atomic::new(0),
            keep_alive_pending: Atomic::new(false),
            outstanding: Atomic::new(Outstanding::NOTHING.word()),
            unflushed: config.unflushed,
            reported_at: Atomic::new(0),
            timing: Atomic::new(false),
            reaps: Atomic::new(0),
            send <- new_irq_lock!(parts.send, "hcablk_send"),
            sent: Sent::default(),
            done: Done::default(),
            times: Times::default(),
        })
    }

    /// Starts accepting requests, after the target has accepted the connection and granted its
    /// first credits. Posts the registration of the read bounce slots first. May fail as posting
    /// does, and with `ENOMEM` without a send queue slot for that.
    pub(crate) fn go_live(&self, reply: &Reply) -> Result {
        self.granted.store(true, Relaxed);
        let settings = &self.settings;
        let inline = reply.inline.min(settings.small_write);
        self.inline_limit.store(inline, Relaxed);
        let mut send = self.send.lock();
        if send.stopped {
            // The session has ended meanwhile, as whoever brings it up will see.
            return Ok(());
        }
        send.credits = Credits::new(reply.credits);
        let most = reply
            .requests_per_message()
            .min(settings.message_requests as usize)
            .min(usize::from(self.inline_segments) + 1);
        send.batch.set_limit(most);
        self.take_ring(&mut send, reply);
        if self.polled {
            // There is nothing to batch.
        } else if reply.quiet {
            send.batching = Batching::new(settings.batch_upper, settings.batch_lower);
        } else {
            // Its responses may not be solicited at all.
            self.pair.cq().notify_all();
            if settings.batch_upper != 0 {
                pr_info_once!("a target cannot batch interrupts: each answer makes one\n");
            }
        }
        if let Some(read_bounce) = &self.read_bounce {
            if !send.space.reserve(1, || self.freed()) {
                return Err(ENOMEM);
            }
            let slots = send.space.post_signaled(1);
            let mut register = read_bounce.register();
            register.signal(WorkId::new(kind::READ_BOUNCE, 0).freeing(slots));
            let mut chain = Chain::new();
            chain.push(&mut register);
            self.ring(&mut send, &chain)?;
        }
        if reply.no_read && send.space.reserve(1, || self.freed()) {
            // Nothing can be written before something was answered.
            self.post_nop(&mut send)?;
        }
        self.live.store(true, Release);
        drop(send);
        self.comes_to(State::Live);
        Ok(())
    }
}
