// SPDX-License-Identifier: GPL-2.0

//! The requests of one queue: a thread waits on one ring for the driver's requests, and for the descriptor of the
//! volume's queue.

use crate::Error;
use io_uring::{opcode, types};
use libhcablk::{Buffer, Notice, Queue, Request, RequestError, Volume};
use libublk::{
    helpers::IoBuf,
    io::{BufDescList, UblkDev, UblkIOCtx, UblkQueue},
    sys, BufDesc, UblkError, UblkIORes, UblkUringData,
};
use nix::errno::Errno;
use std::{
    io::{self, ErrorKind, Write as _},
    os::fd::AsRawFd as _,
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
};

/// The operation that asks the ring for a notice that the descriptor is readable.
const READABLE: u32 = 1;

/// The volume's queues, until the threads of the disk's queues have taken them.
#[derive(Clone)]
pub(crate) struct Places(Arc<Mutex<Vec<Option<Queue>>>>);

impl Places {
    pub(crate) fn new(queues: Vec<Queue>) -> Self {
        Self(Arc::new(Mutex::new(queues.into_iter().map(Some).collect())))
    }

    fn take(&self, index: u16) -> Option<Queue> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queues.get_mut(usize::from(index))?.take()
    }
}

/// A queue, and the memory of its requests, by tag.
struct Serving {
    queue: Queue,
    // Dropped before the memory of the driver's library that they refer to.
    buffers: Vec<Buffer>,
    memory: Vec<IoBuf<u8>>,
}

/// Serves queue `index` until the disk is removed.
pub(crate) fn serve(
    index: u16,
    device: &UblkDev,
    queues: &Places,
    volume: &Volume,
) -> Result<(), Error> {
    let queue = queues.take(index).ok_or("it is served already")?;
    let mut memory = device.alloc_queue_io_bufs();
    for buffer in &mut memory {
        buffer.fill(0);
    }
    let mut serving = Serving {
        queue,
        buffers: registered(&memory, volume)?,
        memory,
    };
    let ublk = UblkQueue::new(index, device)?
        .submit_fetch_commands_unified(BufDescList::Slices(Some(&serving.memory)))?;
    serving.wait(&ublk)?;
    loop {
        let handled = ublk.flush_and_wake_io_tasks(
            |data, event, is_last| {
                if let Err(error) = serving.handle(&ublk, data, event.result(), is_last) {
                    give_up(index, &error.to_string());
                }
            },
            1,
        );
        match handled {
            Ok(_) => {}
            Err(UblkError::QueueIsDown) => return Ok(()),
            // Interrupted by a debugger, or by a stop of the whole program.
            Err(UblkError::IOError(error)) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => give_up(index, &error.to_string()),
        }
    }
}

/// Ends the program at once, so that requests wait for the next program. Returning would free the
/// memory of requests while the kernel may copy to it, and stopping the disk would fail the waiting
/// requests.
fn give_up(index: u16, why: &str) -> ! {
    // A missing reader does not matter.
    let _ = writeln!(
        io::stderr(),
        "hcablk-ublk: queue {index}: {why}; `hcablk-ublk recover` takes over the disk"
    );
    std::process::abort()
}

/// Registers the memory of requests.
#[allow(unsafe_code, reason = "the library's memory is known as an address")]
fn registered(memory: &[IoBuf<u8>], volume: &Volume) -> Result<Vec<Buffer>, Error> {
    let register = |buffer: &IoBuf<u8>| {
        let start = NonNull::new(buffer.as_ptr().cast_mut()).ok_or("no memory")?;
        // SAFETY: The memory is initialized. The driver writes to it before it hands over a request, and reads it after
        // the completion, and nobody else does. It does not move during the life of `Serving`, which drops the queue
        // and the buffers first.
        let buffer = unsafe { volume.register(start, buffer.len()) };
        Ok::<_, Error>(buffer?)
    };
    memory.iter().map(register).collect()
}

/// Returns the driver's result of a request of `bytes` bytes.
fn result(bytes: i32, ended: Result<(), RequestError>) -> i32 {
    ended.map_or_else(|error| -(error.errno() as i32), |()| bytes)
}

impl Serving {
    /// Handles an entry of the ring: a request of the driver, with a `result`, or the notice that the descriptor is
    /// readable. It is the last entry for now if `is_last`.
    fn handle(
        &mut self,
        ublk: &UblkQueue,
        data: u64,
        result: i32,
        is_last: bool,
    ) -> Result<(), Error> {
        if data & UblkUringData::Target as u64 != 0 {
            self.wait(ublk)?;
        } else if u32::try_from(result) == Ok(sys::UBLK_IO_RES_OK) {
            self.submit(ublk, u16::try_from(UblkIOCtx::user_data_to_tag(data))?)?;
        }
        if is_last {
            self.queue.ring();
            // Until no ended request is left: then the descriptor becomes readable at the next end.
            while self.queue.arm() != 0 {
                self.complete(ublk)?;
            }
        }
        Ok(())
    }

    /// Asks the ring for a notice when the descriptor is readable.
    fn wait(&self, ublk: &UblkQueue) -> Result<(), Error> {
        let fd = types::Fd(self.queue.fd().as_raw_fd());
        // POLLIN.
        let entry = opcode::PollAdd::new(fd, 1).build();
        let entry = entry.user_data(UblkIOCtx::build_user_data(0, READABLE, 0, true));
        Ok(ublk.ublk_submit_sqe_sync(entry)?)
    }

    /// Passes a request of the driver to the target.
    fn submit(&mut self, ublk: &UblkQueue, tag: u16) -> Result<(), Error> {
        let asked = ublk.get_iod(tag);
        let (offset, bytes) = (asked.start_sector << 9, u64::from(asked.nr_sectors) << 9);
        let has = |flag| asked.op_flags & flag != 0;
        let request = match asked.op_flags & 0xff {
            sys::UBLK_IO_OP_READ => self
                .memory_of(tag, bytes)
                .map(|memory| Request::read(offset, memory)),
            sys::UBLK_IO_OP_WRITE => self.memory_of(tag, bytes).map(|memory| {
                let request = Request::write(offset, memory);
                match has(sys::UBLK_IO_F_FUA) {
                    true => request.fua(),
                    false => request,
                }
            }),
            sys::UBLK_IO_OP_FLUSH => Some(Request::flush()),
            sys::UBLK_IO_OP_DISCARD => Some(Request::discard(offset, bytes)),
            sys::UBLK_IO_OP_WRITE_ZEROES => {
                Some(Request::zeroes(offset, bytes, has(sys::UBLK_IO_F_NOUNMAP)))
            }
            _ => None,
        };
        let Some(request) = request else {
            return self.complete_tag(ublk, tag, -(Errno::EOPNOTSUPP as i32));
        };
        let request = request.user_data(tag.into()).notice(Notice::Event);
        match self.queue.prepare(request) {
            Ok(()) => Ok(()),
            Err(refused) => self.complete_tag(ublk, tag, result(0, Err(refused.0))),
        }
    }

    /// Returns the memory of a request.
    #[allow(unsafe_code, reason = "a request's memory is its tag's")]
    fn memory_of(&self, tag: u16, bytes: u64) -> Option<Buffer> {
        let buffer = self.buffers.get(usize::from(tag))?;
        // SAFETY: The tag has one request at a time, and nobody else accesses its memory until the request is
        // completed.
        unsafe { buffer.alias(0..usize::try_from(bytes).ok()?) }
    }

    /// Reports all ended requests to the driver.
    fn complete(&mut self, ublk: &UblkQueue) -> Result<(), Error> {
        while let Some(done) = self.queue.completed() {
            let tag = u16::try_from(done.user_data)?;
            let asked = ublk.get_iod(tag);
            let bytes = match asked.op_flags & 0xff {
                sys::UBLK_IO_OP_READ | sys::UBLK_IO_OP_WRITE => {
                    i32::try_from(asked.nr_sectors << 9)?
                }
                _ => 0,
            };
            self.complete_tag(ublk, tag, result(bytes, done.result))?;
        }
        Ok(())
    }

    /// Completes a request, and asks for the next one of its tag.
    fn complete_tag(&self, ublk: &UblkQueue, tag: u16, result: i32) -> Result<(), Error> {
        let memory = self.memory.get(usize::from(tag)).ok_or("no such tag")?;
        let result = Ok(UblkIORes::Result(result));
        Ok(ublk.complete_io_cmd_unified(tag, BufDesc::Slice(memory.as_slice()), result)?)
    }
}
