// SPDX-License-Identifier: GPL-2.0

//! A disk whose requests the tests answer.

use crate::{
    memory::{
        pattern,
        start,
        start_at_once,
        Memory,
        Pending, //
    },
    watched::{
        eventually,
        Watched, //
    }, //
};
use hcablk_core::blkdev::{
    BioOp,
    BlockDevice,
    Disk,
    DiskOpeners,
    Dispatch,
    Limits,
    NewDisk,
    Op,
    Operations,
    PerTag,
    Rejected,
    ReplacedHwQueues,
    Request,
    Status,
    TagSet,
    TagSetConfig,
    TaggedRequest,
    TimedOut,
    Timeout, //
};
use kernel::{
    prelude::*,
    str::CString,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};

/// The number of tags of each of the two hardware queues.
pub(crate) const DEPTH: u32 = 8;
/// The size of the disk in bytes.
pub(crate) const SIZE: usize = 512 * 1024;

/// The treatment of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mode {
    /// Requests are carried out at once.
    Answer,
    /// Requests are parked.
    Park,
    /// Each request is rejected once with this status, and then carried out.
    RejectFirst(Status),
    /// Requests are rejected.
    Reject(Status),
    /// Each request is requeued once in the block layer, and then carried out.
    RequeueFirst,
    /// Requests are dropped.
    Drop,
}

/// A request that `queue_rq` saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) op: Op,
    pub(crate) fua: bool,
    pub(crate) atomic: bool,
    pub(crate) sector: u64,
    pub(crate) bytes: u32,
    pub(crate) segments: u16,
    pub(crate) hw_queue: u32,
    pub(crate) tag: u16,
    pub(crate) generation: u16,
}

/// The disk's settings and records.
pub(crate) struct DeskState {
    pub(crate) mode: Mode,
    pub(crate) image: KVVec<u8>,
    /// The last requests, oldest first.
    pub(crate) seen: KVec<Seen>,
    /// The requests that timed out: hardware queue and tag.
    pub(crate) timeouts: KVec<(u32, u16)>,
}

impl DeskState {
    fn note(&mut self, seen: Seen) {
        if self.seen.len() == self.seen.capacity() {
            let _ = self.seen.remove(0);
        }
        let _ = self.seen.push_within_capacity(seen);
    }

    /// Copies between the image and a request.
    fn carry_out(&mut self, request: &Request<Driver>) -> Status {
        let view = request.view();
        if view.op() == Op::Flush {
            return Status::Ok;
        }
        let from = (view.sector() << 9) as usize;
        let Some(part) = self.image.get_mut(from..from + view.bytes() as usize) else {
            return Status::Invalid;
        };
        match view.op() {
            Op::Read => view.copy_to_data(part),
            Op::Write => view.copy_from_data(part),
            Op::Discard | Op::WriteZeroes => part.fill(0),
            Op::Flush | Op::Other => return Status::NotSupported,
        }
        Status::Ok
    }
}

/// The type that implements the disk's operations.
pub(crate) struct Driver;

/// The places of the disk's requests, for each hardware queue.
pub(crate) type Places = [PerTag<Driver, ()>; 2];

/// A request that has a place.
pub(crate) type Placed<'a> = TaggedRequest<'a, Driver, ()>;

/// The data that hardware queues and tag set share.
pub(crate) struct Shared {
    state: Arc<Watched<DeskState>>,
    dispatch: Arc<Dispatch<Driver>>,
    places: Arc<Places>,
    /// The result of exchanging a hardware queue's data while blk-mq releases it.
    pub(crate) at_exit: Atomic<u32>,
}

/// Value of [`Shared::at_exit`]: no exchange was requested.
pub(crate) const AT_EXIT_NOTHING: u32 = 0;
/// Value of [`Shared::at_exit`]: try the exchange.
pub(crate) const AT_EXIT_TRY: u32 = 1;
/// Value of [`Shared::at_exit`]: the exchange was refused.
pub(crate) const AT_EXIT_REFUSED: u32 = 2;
/// Value of [`Shared::at_exit`]: the exchange was done.
pub(crate) const AT_EXIT_DONE: u32 = 3;

/// A hardware queue's data.
pub(crate) struct HwQueue {
    shared: Arc<Shared>,
    index: u32,
}

impl HwQueue {
    pub(crate) fn new(shared: &Arc<Shared>, index: u32) -> Result<Arc<Self>> {
        let shared = shared.clone();
        Ok(Arc::new(Self { shared, index }, GFP_KERNEL)?)
    }
}

impl core::ops::Deref for HwQueue {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for HwQueue {
    fn drop(&mut self) {
        // Runs when blk-mq releases the data: try a replacement that comes this late.
        let at_exit = &self.shared.at_exit;
        if at_exit
            .cmpxchg(AT_EXIT_TRY, AT_EXIT_NOTHING, Relaxed)
            .is_err()
        {
            return;
        }
        let mut formers = ReplacedHwQueues::new();
        let dispatch = &self.shared.dispatch;
        let done = Self::new(&self.shared, self.index)
            .and_then(|other| dispatch.exchange(self.index, other, &mut formers));
        at_exit.store(
            match done {
                Ok(()) => AT_EXIT_DONE,
                Err(_) => AT_EXIT_REFUSED,
            },
            Relaxed,
        );
    }
}

impl Operations for Driver {
    type Data = Arc<Shared>;
    type HwQueue = HwQueue;
    /// Whether the request was rejected once.
    type Pdu = bool;

    fn hw_queue(
        data: &Arc<Shared>,
        index: u32,
        _dispatch: &Arc<Dispatch<Self>>,
    ) -> Result<Arc<HwQueue>> {
        HwQueue::new(data, index)
    }

    fn init_request(_data: &Arc<Shared>, _hw_queue: u32) -> Result<bool> {
        Ok(false)
    }

    fn queue_rq(
        queue: &HwQueue,
        mut request: Request<Self>,
        _last: bool,
    ) -> Result<(), Rejected<Self>> {
        let mode = queue.state.with(|state| state.mode);
        let is_first = matches!(mode, Mode::RejectFirst(_) | Mode::RequeueFirst) && !*request.pdu();
        *request.pdu() = is_first;
        let Some(places) = queue.places.get(queue.index as usize) else {
            return Err(Rejected::new(request, Status::IoErr));
        };
        let request = places
            .claim(request)
            .map_err(|request| Rejected::new(request, Status::IoErr))?;
        let view = request.view();
        let seen = Seen {
            op: view.op(),
            fua: view.fua(),
            atomic: view.atomic(),
            sector: view.sector(),
            bytes: view.bytes(),
            segments: view.segments(),
            hw_queue: view.hw_queue(),
            tag: view.tag(),
            generation: view.generation(),
        };
        let result = match mode {
            Mode::RejectFirst(status) if is_first => {
                Err(Rejected::new(request.into_request(), status))
            }
            Mode::Reject(status) => Err(Rejected::new(request.into_request(), status)),
            Mode::RequeueFirst if is_first => {
                request.into_request().requeue();
                Ok(())
            }
            Mode::Drop => {
                drop(request);
                Ok(())
            }
            Mode::Park => {
                request.park();
                Ok(())
            }
            Mode::Answer | Mode::RejectFirst(_) | Mode::RequeueFirst => {
                let request = request.into_request();
                let status = queue.state.with(|state| state.carry_out(&request));
                request.end(status);
                Ok(())
            }
        };
        // A waiter for this finds the request parked or ended.
        queue.state.change(|state| state.note(seen));
        result
    }

    fn timeout(queue: &HwQueue, request: TimedOut<'_>) -> Timeout {
        let places = queue.places.get(queue.index as usize);
        let Some((places, tag)) = places.and_then(|p| Some((p, p.tag_of(&request)?))) else {
            return Timeout::ResetTimer;
        };
        queue.state.change(|state| {
            let _ = state.timeouts.push_within_capacity((queue.index, tag));
        });
        if let Some(taken) = places.take_any(tag) {
            taken.into_request().end(Status::Timeout);
        }
        match request.is_over() {
            true => Timeout::Done,
            false => Timeout::ResetTimer,
        }
    }
}

/// The parameters of a disk.
pub(crate) struct Plan {
    pub(crate) limits: Limits,
    pub(crate) timeout_ms: u32,
    pub(crate) read_only: bool,
    pub(crate) openers: Option<Arc<dyn DiskOpeners>>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            limits: Limits {
                logical_block_size: 512,
                max_hw_sectors: (SIZE / 512) as u32,
                max_segments: 64,
                // The boundary of the initiator's disks.
                virt_boundary_mask: 4095,
                dma_alignment: 3,
                ..Limits::default()
            },
            timeout_ms: 0,
            read_only: false,
            openers: None,
        }
    }
}

/// An open disk.
pub(crate) struct Desk {
    pub(crate) state: Arc<Watched<DeskState>>,
    pub(crate) dispatch: Arc<Dispatch<Driver>>,
    pub(crate) places: Arc<Places>,
    // Dropped first: closed before the disk is removed.
    pub(crate) device: Option<Arc<BlockDevice>>,
    pub(crate) disk: Option<Disk<Driver>>,
}

/// A tag set with the disk's state and the places of its requests.
type Parts = (
    Arc<Watched<DeskState>>,
    Arc<Dispatch<Driver>>,
    Arc<Places>,
    Arc<TagSet<Driver>>,
);

/// Creates places for the requests of a disk.
fn places() -> Result<Arc<Places>> {
    let make = || PerTag::new(DEPTH as u16, |_| Ok(()));
    Ok(Arc::new([make()?, make()?], GFP_KERNEL)?)
}

/// Creates the state with an empty image, and the data that hardware queues share.
pub(crate) fn shared(
    dispatch: &Arc<Dispatch<Driver>>,
    places: &Arc<Places>,
) -> Result<(Arc<Watched<DeskState>>, Arc<Shared>)> {
    let state = Watched::new(DeskState {
        mode: Mode::Answer,
        image: KVVec::from_elem(0, SIZE, GFP_KERNEL)?,
        seen: KVec::with_capacity(64, GFP_KERNEL)?,
        timeouts: KVec::with_capacity(16, GFP_KERNEL)?,
    })?;
    let shared = Arc::new(
        Shared {
            state: state.clone(),
            dispatch: dispatch.clone(),
            places: places.clone(),
            at_exit: Atomic::new(AT_EXIT_NOTHING),
        },
        GFP_KERNEL,
    )?;
    Ok((state, shared))
}

/// Creates a tag set without a disk.
pub(crate) fn tag_set(timeout_ms: u32) -> Result<Parts> {
    let dispatch = Dispatch::new(2, DEPTH)?;
    let places = places()?;
    let (state, shared) = shared(&dispatch, &places)?;
    let config = TagSetConfig {
        timeout_ms,
        numa_node: None,
        no_scheduler: true,
        poll_queues: 0,
    };
    let tag_set = TagSet::new(&config, &dispatch, Arc::new(shared, GFP_KERNEL)?)?;
    Ok((state, dispatch, places, tag_set))
}

/// Creates a disk on a tag set, not open.
pub(crate) fn disk(tag_set: &Arc<TagSet<Driver>>, plan: &Plan) -> Result<Disk<Driver>> {
    let new = NewDisk {
        prefix: c"kunit",
        limits: &plan.limits,
        capacity: (SIZE / 512) as u64,
        read_only: plan.read_only,
        uuid: None,
        openers: plan.openers.clone(),
    };
    Disk::add(tag_set, new, crate::this_module()?)
}

/// Opens a disk.
pub(crate) fn open(disk: &Disk<Driver>, read_only: bool) -> Result<BlockDevice> {
    let path = CString::try_from_fmt(fmt!("/dev/kunit{}", disk.number()))?;
    crate::with_files(|| BlockDevice::open(&path, read_only))
}

/// Waits until nobody has the disk open: the kernel closes some files in its own threads, a
/// little later.
pub(crate) fn closed(disk: &Disk<Driver>) -> Result {
    eventually(|| Ok(!disk.is_open()))
}

/// Ends all parked requests.
pub(crate) fn end_parked(places: &Places, status: Status) {
    for places in places {
        places.for_each_parked(|request| request.into_request().end(status));
    }
}

impl Desk {
    pub(crate) fn new(plan: &Plan) -> Result<Self> {
        let (state, dispatch, places, tag_set) = tag_set(plan.timeout_ms)?;
        let disk = disk(&tag_set, plan)?;
        let device = open(&disk, plan.read_only)?;
        let desk = Self {
            state,
            dispatch,
            places,
            device: Some(Arc::new(device, GFP_KERNEL)?),
            disk: Some(disk),
        };
        // Forget the partition scan's requests.
        desk.state.with(|state| state.seen.clear());
        Ok(desk)
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.state.with(|state| state.mode = mode);
    }

    /// Fills the disk with bytes that depend on their place.
    pub(crate) fn fill(&self, seed: u8) {
        self.state.with(|state| {
            for (at, byte) in state.image.iter_mut().enumerate() {
                *byte = pattern(seed, at);
            }
        });
    }

    /// Waits for the next request that the disk sees, and removes it from the list.
    pub(crate) fn next(&self) -> Result<Seen> {
        self.state.wait(|state| state.seen.remove(0).ok())
    }

    /// Starts I/O.
    pub(crate) fn begin(&self, memory: &Memory, op: BioOp, sector: u64) -> Result<Pending> {
        let device = self.device.clone().ok_or(ENODEV)?;
        start(device, memory, op, sector)
    }

    /// Starts I/O that must not wait for room in the disk.
    pub(crate) fn begin_at_once(&self, memory: &Memory, op: BioOp, sector: u64) -> Result<Pending> {
        let device = self.device.clone().ok_or(ENODEV)?;
        start_at_once(device, memory, op, sector)
    }

    /// Does I/O, and waits for it.
    pub(crate) fn run(
        &self,
        memory: &Memory,
        op: BioOp,
        sector: u64,
    ) -> Result<Result<(), Status>> {
        self.begin(memory, op, sector)?.end()
    }

    /// Takes the request of a hardware queue that is parked with this tag and generation.
    pub(crate) fn take(&self, hw_queue: u32, tag: u16, generation: u16) -> Option<Placed<'_>> {
        self.places.get(hw_queue as usize)?.take(tag, generation)
    }

    /// Takes the request of a hardware queue that is parked with this tag.
    pub(crate) fn take_any(&self, hw_queue: u32, tag: u16) -> Option<Placed<'_>> {
        self.places.get(hw_queue as usize)?.take_any(tag)
    }

    /// Starts I/O that gets parked, and takes its request.
    pub(crate) fn take_request(
        &self,
        memory: &Memory,
        op: BioOp,
        sector: u64,
    ) -> Result<(Request<Driver>, Pending)> {
        self.set(Mode::Park);
        self.state.with(|state| state.seen.clear());
        let pending = self.begin(memory, op, sector)?;
        let seen = self.next()?;
        let request = self
            .take(seen.hw_queue, seen.tag, seen.generation)
            .ok_or(ENOENT)?;
        self.set(Mode::Answer);
        Ok((request.into_request(), pending))
    }

    /// Starts a read that gets parked, and takes its request.
    pub(crate) fn take_one_request(&self) -> Result<(Request<Driver>, Pending)> {
        let memory = Memory::new(1)?.with_pieces(&[(0, 0, 512)])?;
        self.take_request(&memory, BioOp::Read, 0)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.set(Mode::Answer);
        end_parked(&self.places, Status::IoErr);
        self.device = None;
        self.disk = None;
    }
}
