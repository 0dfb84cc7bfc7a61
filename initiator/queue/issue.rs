// SPDX-License-Identifier: GPL-2.0

//! Issuing: from a request of the block layer to work requests.
//!
//! # Small reads
//!
//! A read of up to `small_read` bytes is neither mapped nor registered: it goes out as a SEND
//! that names the read bounce slot of its tag. The target's answer is an RDMA WRITE to that slot,
//! whose immediate value is the response. The completion handler checks that such an answer was
//! asked for and has the request's length, and copies the data. Nothing is to be invalidated, so
//! the request ends at once.
//!
//! # Inline writes
//!
//! A write of up to `small_write` bytes (the target's limit, and few segments) is mapped for the
//! HCA but not registered: its segments follow the message in one SEND. It ends when it was
//! answered *and* that SEND has completed ([`wr_seq`](super::wr_seq)): until then the HCA may
//! send the memory once more.

use super::{
    kind,
    Driver,
    Phase,
    Queue,
    SendState,
    TagData, //
};
use crate::{
    batching::Solicited,
    failure::Failure,
    shape::{
        INLINE_SEGMENTS,
        SLOTS_PER_REQUEST, //
    },
    stats::Marks,
};
use hcablk_core::{
    blkdev::{
        Op,
        PerTag,
        Rejected,
        Request,
        RequestRef,
        Status, //
    },
    broken,
    proto::message::{
        self,
        Answer,
        Extent,
        Remote,
        Tag, //
    },
    rdma::{
        device::Direction,
        mr,
        wr::{
            Chain,
            Register,
            Send,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
    report::trace, //
    sglist::SegmentList,
    sync::IrqGuard,
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Acquire,
        Relaxed, //
    },
};

/// Gives back memory of a request, which the target cannot reach.
#[inline]
pub(super) fn give_back(list: &mut SegmentList) {
    if list.release().is_err() {
        broken!("memory that is given back is still registered");
    }
}

/// How the data of a request is transferred.
enum Transfer {
    /// There is none.
    NoData,
    /// It comes into a read bounce slot.
    ReadBounce(mr::RemoteAddress),
    /// It goes with the request.
    Inline,
    /// By the target's RDMA, to or from the request's memory.
    Registered,
}

/// Returns the address and key of a region as the target gets them.
#[inline]
fn with(remote: mr::RemoteAddress, answer: Answer) -> Remote {
    Remote {
        address: remote.address,
        key: remote.key,
        answer,
    }
}

impl Queue {
    /// Chooses the cheapest way for a request's data.
    #[inline]
    fn transfer(&self, view: RequestRef<'_>, tag: Tag, extent: Extent) -> Transfer {
        match view.op() {
            Op::Read => self
                .read_bounce
                .as_ref()
                .and_then(|slots| slots.remote(tag.index, extent.length))
                .map_or(Transfer::Registered, Transfer::ReadBounce),
            Op::Write
                if extent.length <= self.inline_limit.load(Relaxed)
                    && view.segments() <= self.inline_segments =>
            {
                Transfer::Inline
            }
            Op::Write => Transfer::Registered,
            _ => Transfer::NoData,
        }
    }

    /// Gives a request to the target; it is the `last` for now.
    pub(super) fn issue(
        &self,
        mut request: Request<Driver>,
        last: bool,
    ) -> Result<(), Rejected<Driver>> {
        if !self.live.load(Acquire) {
            return Err(Rejected::new(request, self.refusal()));
        }
        let tag = Tag {
            index: request.tag(),
            generation: request.generation(),
        };
        trace::initiator::queued(|| self.about(&request));
        let Some((view, _)) = self.tags.of(&mut request) else {
            return Err(Rejected::new(request, Status::IoErr));
        };
        let direction = match view.op() {
            Op::Read => Some(Direction::FromDevice),
            Op::Write => Some(Direction::ToDevice),
            Op::Flush if self.owner.take_lost_writes() => {
                pr_err!("a flush fails: its target has forgotten writes that it acknowledged\n");
                return Err(Rejected::new(request, Status::IoErr));
            }
            Op::Flush | Op::Discard | Op::WriteZeroes => None,
            _ => return Err(Rejected::new(request, Status::NotSupported)),
        };
        let extent = Extent {
            offset: view.sector() << 9,
            length: view.bytes(),
        };
        if let Some(eager) = self.eager(view, extent) {
            match self.issue_eager(request, eager, tag, last)? {
                Some(back) => request = back,
                None => return Ok(()),
            }
        }
        let Some((view, data)) = self.tags.of(&mut request) else {
            return Err(Rejected::new(request, Status::IoErr));
        };
        let transfer = self.transfer(view, tag, extent);
        data.eager = false;
        data.read_bounce = matches!(transfer, Transfer::ReadBounce(_));
        data.sending = matches!(transfer, Transfer::Inline);
        let mut register = None;
        let moved_by_hca = matches!(transfer, Transfer::Inline | Transfer::Registered);
        if let (Some(direction), Transfer::Inline | Transfer::Registered) = (direction, &transfer) {
            let mapped = if data.sending {
                data.list.map_local(view, direction)
            } else {
                data.list.map(view, direction, tag.to_immediate())
            };
            match mapped {
                Ok(()) => {}
                // The IOMMU or bounce buffers are short; it will be tried again.
                Err(e) if e == ENOMEM => return Err(Rejected::new(request, Status::Resource)),
                Err(_) => return Err(Rejected::new(request, Status::IoErr)),
            }
        }
        // The message and the data that goes with it, if any does.
        let mut gathered = None;
        let mut pieces = 1;
        let fua = view.fua();
        let op = match transfer {
            Transfer::NoData => match view.op() {
                Op::Discard => message::Op::Discard(extent),
                Op::WriteZeroes => message::Op::WriteZeroes {
                    extent,
                    keep: view.no_unmap(),
                },
                _ => message::Op::Flush,
            },
            Transfer::ReadBounce(remote) => {
                message::Op::Read(extent, with(remote, Answer::Immediate))
            }
            Transfer::Inline => {
                let sges = gathered.insert([Sge::EMPTY; INLINE_SEGMENTS + 1]);
                let Some(count) = data.list.sges(&mut sges[1..]) else {
                    return Err(Self::unissued(request, &self.tags, Status::IoErr));
                };
                pieces += count;
                message::Op::WriteInline { extent, fua }
            }
            Transfer::Registered => {
                let write = view.op() == Op::Write;
                let Ok((wr, remote)) = data.list.register() else {
                    return Err(Self::unissued(request, &self.tags, Status::IoErr));
                };
                register
                    .insert(wr)
                    .name(WorkId::new(kind::REGISTER, tag.index.into()));
                let remote = with(
                    remote,
                    if self.remote_invalidate {
                        Answer::Invalidating
                    } else {
                        Answer::Response
                    },
                );
                if write {
                    message::Op::Write {
                        extent,
                        remote,
                        fua,
                    }
                } else {
                    message::Op::Read(extent, remote)
                }
            }
        };
        let used = 1 + u32::from(register.is_some());
        // Only what was registered has to be invalidated.
        let slots = if used == 1 { 1 } else { SLOTS_PER_REQUEST };

        let mut send = self.send.lock();
        if !send.reserve(slots, || self.freed()) {
            self.sent.credit_waits.bump();
            if let Some(proof) = register.and_then(Register::withdraw) {
                data.list.withdrawn(proof);
            }
            return Err(self.turned_away(request, send));
        }
        data.solicited = send.batching.issue(last);
        let quiet = data.solicited == Solicited::No;
        let message = message::Request { tag, op, quiet }.encode();
        let Ok(slice) = self.outgoing.write(tag.index.into(), &message) else {
            // Not reached: each tag has a buffer.
            send.withdraw(slots, data.solicited);
            drop(send);
            if let Some(proof) = register.and_then(Register::withdraw) {
                data.list.withdrawn(proof);
            }
            return Err(Self::unissued(request, &self.tags, Status::IoErr));
        };
        data.phase = Phase::Sent;
        data.marks = if self.timing.load(Relaxed) {
            Marks::sent(view.made_ns())
        } else {
            Marks::default()
        };
        data.slots = slots - used;
        self.sent.quiet.add(quiet.into());
        let reap = last && send.batching.shall_reap();
        self.update_notify(&send);
        if used > 1 {
            self.sent.registrations.bump();
        }
        if moved_by_hca {
            self.sent.rdma_bytes.add(extent.length.into());
        }
        let request_sge = Sge::new(slice);
        let posted = if let Some(sges) = &mut gathered {
            sges[0] = request_sge;
            let wr_seq = send.next_seq(used);
            data.seq = wr_seq.seq;
            self.sent.inline_writes.bump();
            self.sent.sends.bump();
            let mut wr = Send::new(sges.get(..pieces).unwrap_or(&[]));
            wr.solicited();
            self.post_or_queue(&mut send, &mut wr, wr_seq, !last)
        } else if !last || !send.batch.is_empty() {
            self.push(&mut send, tag.index, request_sge, register.as_mut(), last)
        } else {
            let sges = [request_sge];
            let mut wr = self.message(&mut send.space, &sges, tag.index, used);
            let mut chain = Chain::new();
            if let Some(register) = &mut register {
                chain.push(register);
            }
            chain.push(&mut wr);
            self.ring(&mut send, &chain)
        };
        trace::initiator::sent(|| self.about_sent(tag, &op, 0));
        // Whoever answers takes the lock first, so that the request is there.
        request.park();
        drop(send);
        self.issued(posted, quiet, reap);
        Ok(())
    }

    /// Finishes issuing a request, without the lock: fails the session if posting failed, starts
    /// the timer for a quiet request, and polls if `reap`.
    #[inline]
    pub(super) fn issued(&self, posted: Result, quiet: bool, reap: bool) {
        self.check(posted);
        if quiet {
            // The handler may have armed the queue before it knew of this one.
            self.pair.cq().guard();
        }
        if reap {
            self.reap();
        }
    }

    /// Gives back a request that has to wait for an answer to others.
    pub(super) fn turned_away(
        &self,
        request: Request<Driver>,
        mut send: IrqGuard<'_, SendState>,
    ) -> Rejected<Driver> {
        // What is issued already may be what brings it.
        let posted = self.ring(&mut send, &Chain::new());
        drop(send);
        self.check(posted);
        Self::unissued(request, &self.tags, Status::Resource)
    }

    /// Posts what waits for its doorbell, and then `chain`. Everything that this
    /// queue pair is given goes this way, for the account of slots is in the
    /// order of posting.
    #[inline]
    pub(super) fn ring(&self, send: &mut SendState, chain: &Chain<'_>) -> Result {
        if !send.batch.is_empty() {
            if let Err(e) = self.flush(send) {
                send.backlog.truncate(0);
                return Err(e);
            }
        }
        self.post(send, chain)
    }

    /// Posts the backlog and then `chain`, as [`Self::ring`] does, without flushing the message
    /// batch.
    #[inline]
    pub(super) fn post(&self, send: &mut SendState, chain: &Chain<'_>) -> Result {
        let requests = send.backlog.len() as u64 + u64::from(chain.len());
        if requests != 0 {
            self.sent.doorbells.bump();
            self.sent.work_requests.add(requests);
        }
        let posted = send.backlog.post(&self.pair, chain);
        send.waiting = None;
        if posted.is_err() {
            send.backlog.truncate(0);
        }
        posted
    }

    /// Fails the session if posting failed. The requests are ended when the queue pair is gone,
    /// since some of the work may have been posted.
    #[inline]
    pub(super) fn check(&self, posted: Result) {
        if posted.is_err() {
            self.fail(Failure::Work(c"posting failed"));
        }
    }

    /// Rings the doorbell for requests that others were to follow, but did not (`commit_rqs`).
    pub(super) fn commit(&self) {
        let mut send = self.send.lock();
        let posted = self.ring(&mut send, &Chain::new());
        let reap = send.batching.shall_reap();
        drop(send);
        self.check(posted);
        if reap {
            self.reap();
        }
    }

    /// Gives back a request of which nothing was posted.
    fn unissued(
        mut request: Request<Driver>,
        tags: &PerTag<Driver, TagData>,
        status: Status,
    ) -> Rejected<Driver> {
        if let Some((_, data)) = tags.of(&mut request) {
            give_back(&mut data.list);
        }
        Rejected::new(request, status)
    }
}
