// SPDX-License-Identifier: GPL-2.0

//! The requests of a running ring: chains of descriptors become requests of the library, and ended requests are put
//! into the used ring.
//!
//! A ring that a guest has broken, with a malformed chain or memory that it does not have, is ignored until its
//! frontend sets it up again. Requests in flight end normally.
//!
//! # Order
//!
//! Requests are put into the used ring in the order in which the guest has made them available. So a frontend that
//! reconnects to a new program after this one was killed, and continues from the used ring's index, as QEMU does,
//! passes that program exactly the requests that have not ended.

use crate::{
    block::{self, Header, Range, Status, HEADER, MOST_DESCRIPTORS, RANGE},
    memory::Memory,
};
use libhcablk::{Buffer, Notice, Request, RequestError, Volume};
use std::{collections::VecDeque, fs::File, sync::Arc};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN,
    VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_queue::{Queue as Virtqueue, QueueOwnedT as _, QueueT as _};
use vm_memory::{Address as _, Bytes as _, GuestAddress};

/// The most descriptors of a ring.
pub(crate) const MOST_ENTRIES: u16 = 1024;

/// The reason why a ring is broken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The ring's own memory or indices.
    #[error("{0}")]
    Queue(#[from] virtio_queue::Error),
    /// A request.
    #[error("a request {0}")]
    Request(&'static str),
    /// The kick descriptor, which announces requests.
    #[error("its kick descriptor {0}")]
    Kick(String),
    /// The addresses in its setup.
    #[error("{0}")]
    Setup(&'static str),
}

/// Memory of a guest that a descriptor names.
#[derive(Clone, Copy, Debug)]
struct Span {
    address: GuestAddress,
    bytes: u32,
}

/// A request that has not been put into the used ring.
struct Slot {
    /// The address of the status, and the number of written bytes that is reported to the guest.
    status: GuestAddress,
    written: u32,
    /// The change that the request makes is durable only after a flush.
    flushes: bool,
    end: Option<Status>,
}

/// The settings of a ring.
pub(crate) struct Setup {
    pub(crate) entries: u16,
    /// The addresses of its parts in the guest.
    pub(crate) descriptors: GuestAddress,
    pub(crate) available: GuestAddress,
    pub(crate) used: GuestAddress,
    /// The index of the next request.
    pub(crate) next: u16,
    /// The features that the frontend has set.
    pub(crate) features: u64,
    pub(crate) memory: Arc<Memory>,
    pub(crate) kick: Arc<File>,
    pub(crate) call: Option<Arc<File>>,
    pub(crate) error: Option<Arc<File>>,
}

/// A running ring; see the module.
pub(crate) struct Ring {
    queue: Virtqueue,
    memory: Arc<Memory>,
    pub(crate) kick: Arc<File>,
    call: Option<Arc<File>>,
    error: Option<Arc<File>>,
    /// The guest does not flush.
    writes_through: bool,
    /// The slots, by the index of the first descriptor.
    slots: Vec<Option<Slot>>,
    /// The occupied slots, in the order in which they were made available.
    order: VecDeque<u16>,
    is_broken: bool,
    id: [u8; block::ID],
    // The memory of a chain.
    readable: Vec<Span>,
    writable: Vec<Span>,
}

/// A request that was taken from the ring.
pub(crate) enum Taken {
    /// The ring has no request.
    Nothing,
    /// The library carries the request out; with the index of its first descriptor.
    Submit(u16, Request),
    /// The request has ended already.
    Ended,
}

/// Returns the bytes of some memory.
fn bytes_of(spans: &[Span]) -> u64 {
    spans.iter().map(|span| u64::from(span.bytes)).sum()
}

/// Takes the first bytes of some memory; `None`: it has fewer.
fn take_front<const N: usize>(spans: &mut Vec<Span>, memory: &Memory) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    for span in spans.iter_mut() {
        let rest = bytes.get_mut(filled..)?;
        let part = rest.len().min(span.bytes as usize);
        let to = rest.get_mut(..part)?;
        memory.guest.read_slice(to, span.address).ok()?;
        span.address = span.address.checked_add(part as u64)?;
        span.bytes -= u32::try_from(part).ok()?;
        filled += part;
        if filled == N {
            break;
        }
    }
    spans.retain(|span| span.bytes != 0);
    (filled == N).then_some(bytes)
}

/// Takes the last byte of some memory, and returns its address.
fn take_last(spans: &mut Vec<Span>) -> Option<GuestAddress> {
    spans.retain(|span| span.bytes != 0);
    let last = spans.last_mut()?;
    last.bytes -= 1;
    let address = last.address.checked_add(last.bytes.into());
    spans.retain(|span| span.bytes != 0);
    address
}

/// Signals an eventfd of a frontend.
fn signal(file: Option<&Arc<File>>) {
    if let Some(file) = file {
        // A frontend that has gone needs no signal, and one with a full counter has a signal that it has not read yet.
        let _ = crate::worker::write_if_possible(file);
    }
}

impl Ring {
    /// Begins to serve a ring.
    pub(crate) fn start(setup: Setup, id: [u8; block::ID]) -> Result<Self, Broken> {
        let mut queue = Virtqueue::new(MOST_ENTRIES)?;
        queue.try_set_size(setup.entries)?;
        queue.try_set_desc_table_address(setup.descriptors)?;
        queue.try_set_avail_ring_address(setup.available)?;
        queue.try_set_used_ring_address(setup.used)?;
        queue.set_event_idx(setup.features & block::EVENT_INDEX != 0);
        queue.set_next_avail(setup.next);
        queue.set_ready(true);
        let guest = &setup.memory.guest;
        if !queue.is_valid(guest) {
            return Err(Broken::Setup("it is not in the guest's memory"));
        }
        let used = queue.used_idx(guest, std::sync::atomic::Ordering::Acquire)?;
        queue.set_next_used(used.0);
        let entries = usize::from(setup.entries);
        let ring = Self {
            queue,
            memory: setup.memory,
            kick: setup.kick,
            call: setup.call,
            error: setup.error,
            writes_through: setup.features & block::FLUSH == 0,
            slots: (0..entries).map(|_| None).collect(),
            order: VecDeque::with_capacity(entries),
            is_broken: false,
            id,
            readable: Vec::new(),
            writable: Vec::new(),
        };
        // Earlier completions may have been signaled to nobody.
        signal(ring.call.as_ref());
        Ok(ring)
    }

    /// Returns the number of requests in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.order.len()
    }

    /// Returns the index of the next request.
    pub(crate) fn next(&self) -> u16 {
        self.queue.next_avail()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    pub(crate) fn entries(&self) -> u16 {
        self.queue.size()
    }

    /// Signals `call` from now on, and at once: earlier completions may have been signaled to the former one.
    pub(crate) fn set_call(&mut self, call: Option<Arc<File>>) {
        self.call = call;
        signal(self.call.as_ref());
    }

    /// Ignores the ring from now on, and notifies the frontend.
    pub(crate) fn break_down(&mut self, index: usize, why: &Broken) {
        if !self.is_broken {
            self.is_broken = true;
            eprintln!("hcablk-vhost-user: ring {index} is broken: {why}; it is ignored until the frontend sets it up again");
            signal(self.error.as_ref());
        }
    }

    /// Asks the guest not to notify while its requests are being taken.
    pub(crate) fn disable_notification(&mut self) -> Result<(), Broken> {
        Ok(self.queue.disable_notification(&self.memory.guest)?)
    }

    /// Asks the guest to notify of the next request; `true`: there is one already.
    pub(crate) fn enable_notification(&mut self) -> Result<bool, Broken> {
        Ok(self.queue.enable_notification(&self.memory.guest)?)
    }

    /// Takes the next request.
    pub(crate) fn take(&mut self, volume: &Volume) -> Result<Taken, Broken> {
        let memory = self.memory.clone();
        let Some(mut chain) = self.queue.iter(&memory.guest)?.next() else {
            return Ok(Taken::Nothing);
        };
        let head = chain.head_index();
        match self.slots.get(usize::from(head)) {
            None => {
                return Err(Broken::Request(
                    "begins with a descriptor that does not exist",
                ))
            }
            Some(Some(_)) => {
                return Err(Broken::Request("begins with a descriptor that is in use"))
            }
            Some(None) => {}
        }
        self.readable.clear();
        self.writable.clear();
        let (mut count, mut has_next) = (0, true);
        for descriptor in chain.by_ref() {
            count += 1;
            if count > MOST_DESCRIPTORS {
                return Err(Broken::Request("has too many descriptors"));
            }
            has_next = descriptor.has_next();
            let span = Span {
                address: descriptor.addr(),
                bytes: descriptor.len(),
            };
            if !memory.has(span.address, span.bytes) {
                return Err(Broken::Request("has memory that the guest does not have"));
            }
            if descriptor.is_write_only() {
                self.writable.push(span);
            } else if self.writable.is_empty() {
                self.readable.push(span);
            } else {
                return Err(Broken::Request(
                    "has a readable descriptor after a writable one",
                ));
            }
        }
        // The iterator also ends at a chain with a bad or circular link.
        if has_next {
            return Err(Broken::Request("has a chain of descriptors without an end"));
        }
        self.begin(head, &memory, volume)
    }

    /// Starts a request whose descriptors are known.
    fn begin(&mut self, head: u16, memory: &Memory, volume: &Volume) -> Result<Taken, Broken> {
        let written = u32::try_from(bytes_of(&self.writable));
        let written = written.map_err(|_| Broken::Request("is too large"))?;
        let status = take_last(&mut self.writable);
        let status = status.ok_or(Broken::Request("has no room for its status"))?;
        let header = take_front::<HEADER>(&mut self.readable, memory);
        let header = Header::from_bytes(header.ok_or(Broken::Request("has no header"))?);
        let action = self.action(header, memory, volume);
        let action = action.ok_or(Broken::Request("has memory that the guest does not have"))?;
        let slot = Slot {
            status,
            written,
            flushes: self.writes_through && matches!(action, Action::Change(_)),
            end: None,
        };
        if let Some(free) = self.slots.get_mut(usize::from(head)) {
            *free = Some(slot);
            self.order.push_back(head);
        }
        match action {
            Action::End(status) => {
                self.end(head, status);
                Ok(Taken::Ended)
            }
            Action::Submit(request) | Action::Change(request) => {
                let request = request.user_data(head.into()).notice(Notice::Event);
                Ok(Taken::Submit(head, request))
            }
        }
    }

    /// Returns the action for a request; `None`: its memory does not exist.
    fn action(&mut self, header: Header, memory: &Memory, volume: &Volume) -> Option<Action> {
        let buffers = |spans: &[Span]| {
            let mut buffers: Vec<Buffer> = Vec::with_capacity(spans.len());
            let is_there = |span: &Span| memory.add_buffers(span.address, span.bytes, &mut buffers);
            spans.iter().all(is_there).then_some(buffers)
        };
        let place = |bytes: u64| {
            let offset = block::offset_of(header.sector, bytes, volume.size());
            offset.filter(|_| bytes != 0)
        };
        Some(match header.op {
            VIRTIO_BLK_T_IN => match place(bytes_of(&self.writable)) {
                None => Action::End(Status::Failed),
                Some(offset) => {
                    Action::Submit(Request::read_scattered(offset, buffers(&self.writable)?))
                }
            },
            VIRTIO_BLK_T_OUT => match place(bytes_of(&self.readable)) {
                None => Action::End(Status::Failed),
                Some(offset) => {
                    let request = Request::write_gathered(offset, buffers(&self.readable)?);
                    Action::Submit(match self.writes_through {
                        true => request.fua(),
                        false => request,
                    })
                }
            },
            VIRTIO_BLK_T_FLUSH => Action::Submit(Request::flush()),
            VIRTIO_BLK_T_GET_ID => self.write_id(memory)?,
            VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => {
                // The configuration says that there is one range.
                if bytes_of(&self.readable) != RANGE as u64 {
                    return Some(Action::End(Status::Failed));
                }
                let range = Range::from_bytes(take_front::<RANGE>(&mut self.readable, memory)?);
                change(header.op, range, volume)
            }
            _ => Action::End(Status::Unsupported),
        })
    }

    /// Writes the device's id.
    fn write_id(&mut self, memory: &Memory) -> Option<Action> {
        if bytes_of(&self.writable) < block::ID as u64 {
            return Some(Action::End(Status::Failed));
        }
        let mut rest = &self.id[..];
        for span in &self.writable {
            let (part, behind) = rest.split_at(rest.len().min(span.bytes as usize));
            memory.guest.write_slice(part, span.address).ok()?;
            rest = behind;
        }
        Some(Action::End(Status::Ok))
    }

    /// Records the result of a request. Returns the request that must be carried out before it
    /// ends, if any.
    pub(crate) fn ended(&mut self, head: u16, result: Result<(), RequestError>) -> Option<Request> {
        let slot = self.slots.get_mut(usize::from(head))?.as_mut()?;
        if result.is_ok() && std::mem::take(&mut slot.flushes) {
            return Some(
                Request::flush()
                    .user_data(head.into())
                    .notice(Notice::Event),
            );
        }
        self.end(head, Status::from_result(result));
        None
    }

    fn end(&mut self, head: u16, status: Status) {
        if let Some(Some(slot)) = self.slots.get_mut(usize::from(head)) {
            slot.end = Some(status);
        }
    }

    /// Puts ended requests into the used ring, in order, and signals that. A request that cannot be
    /// put there is dropped.
    pub(crate) fn publish(&mut self) -> Result<(), Broken> {
        let (mut published, mut is_new) = (Ok(()), false);
        while let Some(head) = self.order.front().copied() {
            let place = self.slots.get_mut(usize::from(head));
            let ended = place.and_then(|place| place.take_if(|slot| slot.end.is_some()));
            let Some(slot) = ended else { break };
            self.order.pop_front();
            published = published.and(self.publish_one(head, &slot));
            is_new = true;
        }
        published?;
        if is_new && self.queue.needs_notification(&self.memory.guest)? {
            signal(self.call.as_ref());
        }
        Ok(())
    }

    fn publish_one(&mut self, head: u16, slot: &Slot) -> Result<(), Broken> {
        let guest = &self.memory.guest;
        let status = slot.end.unwrap_or(Status::Failed).byte();
        guest
            .write_obj(status, slot.status)
            .map_err(|_| Broken::Request("has memory that the guest does not have"))?;
        Ok(self.queue.add_used(guest, head, slot.written)?)
    }
}

/// The action for a request.
enum Action {
    End(Status),
    /// The library carries it out; a write that must be durable has FUA.
    Submit(Request),
    /// As above, for a change that is durable only after a flush.
    Change(Request),
}

/// Returns the action that discards a range, or fills it with zeroes.
fn change(op: u32, range: Range, volume: &Volume) -> Action {
    let bytes = u64::from(range.sectors) * block::SECTOR;
    let (discard, zeroes) = volume.most_without_data();
    let (most, flags) = match op {
        VIRTIO_BLK_T_DISCARD => (discard, 0),
        _ => (zeroes, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP),
    };
    if range.flags & !flags != 0 || most == 0 {
        return Action::End(Status::Unsupported);
    }
    let offset = block::offset_of(range.sector, bytes, volume.size());
    match offset.filter(|_| bytes != 0) {
        None => Action::End(Status::Failed),
        Some(offset) if op == VIRTIO_BLK_T_DISCARD => {
            Action::Change(Request::discard(offset, bytes))
        }
        Some(offset) => {
            let keep = range.flags & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP == 0;
            Action::Change(Request::zeroes(offset, bytes, keep))
        }
    }
}
