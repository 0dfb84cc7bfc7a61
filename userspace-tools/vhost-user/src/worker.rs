// SPDX-License-Identifier: GPL-2.0

//! The thread of a queue of the volume. It serves the ring of the same index, if that is set up. It
//! waits for the ring's kick, the queue's completions, and commands of the program.

use crate::{
    block,
    ring::{Broken, Ring, Setup, Taken},
    Error,
};
use libhcablk::{Notice, Queue, Request, RequestError, Volume};
use nix::{
    errno::Errno,
    poll::{poll, PollFd, PollFlags, PollTimeout},
    sys::eventfd::{EfdFlags, EventFd},
};
use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::AsFd as _,
    sync::{
        mpsc::{
            channel, sync_channel, Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError,
        },
        Arc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// The time after which a wait for requests is reported.
const LONG: Duration = Duration::from_secs(5);
/// The number of a flush that no guest has requested.
const OWN: u64 = u64::MAX;

/// The state of a stopped ring: none of its requests is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stopped {
    /// The index of the next request.
    pub(crate) next: u16,
    pub(crate) is_broken: bool,
}

enum Command {
    Start(Box<Ring>),
    Stop(SyncSender<Option<Stopped>>),
    Call(Option<Arc<File>>),
    Flush(SyncSender<Result<(), RequestError>>),
}

/// The program's handle of a thread.
pub(crate) struct Worker {
    index: usize,
    /// `None`: the thread ends.
    commands: Option<Sender<Command>>,
    wake: Arc<EventFd>,
    id: [u8; block::ID],
    thread: Option<JoinHandle<()>>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.commands = None;
        // It cannot be full.
        let _ = self.wake.write(1);
        if let Some(thread) = self.thread.take() {
            // A thread that panics ends the program.
            let _ = thread.join();
        }
    }
}

impl Worker {
    /// Starts the thread of a queue.
    pub(crate) fn begin(
        index: usize,
        queue: Queue,
        volume: Arc<Volume>,
        id: [u8; block::ID],
    ) -> Result<Self, Error> {
        let (commands, receiver) = channel();
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let wake = Arc::new(EventFd::from_flags(flags)?);
        let thread = Thread {
            index,
            queue,
            volume,
            commands: receiver,
            wake: wake.clone(),
            ring: None,
            stop: None,
            flush: None,
        };
        let name = format!("ring {index}");
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || thread.run())?;
        Ok(Self {
            index,
            commands: Some(commands),
            wake,
            id,
            thread: Some(thread),
        })
    }

    fn send(&self, command: Command) {
        // The thread does not end before this handle is dropped, and the counter cannot be full.
        let _ = self
            .commands
            .as_ref()
            .map(|commands| commands.send(command));
        let _ = self.wake.write(1);
    }

    /// Starts to serve a ring. The thread must not serve one already.
    pub(crate) fn start(&self, setup: Setup) -> Result<(), Broken> {
        let ring = Ring::start(setup, self.id)?;
        self.send(Command::Start(Box::new(ring)));
        Ok(())
    }

    /// Stops the ring, and waits until none of its requests is in flight: the library ends each within its time limit.
    pub(crate) fn stop(&self) -> Option<Stopped> {
        let (sender, receiver) = sync_channel(1);
        self.send(Command::Stop(sender));
        match receiver.recv_timeout(LONG) {
            Err(RecvTimeoutError::Timeout) => {
                eprintln!("hcablk-vhost-user: ring {} is stopping, and waits until the target has responded to its requests", self.index);
                receiver.recv().ok().flatten()
            }
            stopped => stopped.ok().flatten(),
        }
    }

    /// Signals `call` from now on.
    pub(crate) fn set_call(&self, call: Option<Arc<File>>) {
        self.send(Command::Call(call));
    }

    /// Makes acknowledged writes durable.
    pub(crate) fn flush(&self) -> Result<(), RequestError> {
        let (sender, receiver) = sync_channel(1);
        self.send(Command::Flush(sender));
        // The thread does not end.
        receiver.recv().unwrap_or(Err(RequestError::Unsupported))
    }
}

/// The state of the thread.
struct Thread {
    index: usize,
    queue: Queue,
    volume: Arc<Volume>,
    commands: Receiver<Command>,
    wake: Arc<EventFd>,
    ring: Option<Ring>,
    /// The caller that waits until the ring has stopped: no request is accepted any more.
    stop: Option<SyncSender<Option<Stopped>>>,
    flush: Option<SyncSender<Result<(), RequestError>>>,
}

impl Thread {
    fn run(mut self) {
        loop {
            // The read fails if no wake-up is pending.
            let _ = self.wake.read();
            loop {
                match self.commands.try_recv() {
                    Ok(command) => self.command(command),
                    Err(TryRecvError::Empty) => break,
                    // The handle was dropped.
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            let has_more = self.take();
            self.queue.ring();
            // Until no ended request is left: then the descriptor becomes readable at the next end.
            while self.queue.arm() != 0 {
                self.complete();
            }
            self.publish();
            self.finish_stop();
            self.wait(has_more);
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Start(ring) => self.ring = Some(*ring),
            Command::Stop(sender) => self.stop = Some(sender),
            Command::Call(call) => {
                if let Some(ring) = &mut self.ring {
                    ring.set_call(call);
                }
            }
            Command::Flush(sender) => {
                self.flush = Some(sender);
                let request = Request::flush().user_data(OWN).notice(Notice::Event);
                if let Err(refused) = self.queue.prepare(request) {
                    self.flushed(Err(refused.0));
                }
            }
        }
    }

    fn flushed(&mut self, result: Result<(), RequestError>) {
        if let Some(sender) = self.flush.take() {
            // The caller may be gone.
            let _ = sender.send(result);
        }
    }

    /// Takes requests from the ring, at most as many as it has entries. Returns whether there are more.
    fn take(&mut self) -> bool {
        let taken = self.try_take();
        taken.unwrap_or_else(|broken| {
            self.break_down(&broken);
            false
        })
    }

    fn break_down(&mut self, why: &Broken) {
        if let Some(ring) = &mut self.ring {
            ring.break_down(self.index, why);
        }
    }

    fn try_take(&mut self) -> Result<bool, Broken> {
        let ring = self.ring.as_mut().filter(|ring| !ring.is_broken());
        let Some(ring) = ring.filter(|_| self.stop.is_none()) else {
            return Ok(false);
        };
        ring.disable_notification()?;
        for _ in 0..ring.entries() {
            match ring.take(&self.volume)? {
                Taken::Nothing if ring.enable_notification()? => {}
                Taken::Nothing => return Ok(false),
                Taken::Ended => {}
                Taken::Submit(head, request) => submit(&mut self.queue, ring, head, request),
            }
        }
        Ok(true)
    }

    /// Handles requests that the library has carried out.
    fn complete(&mut self) {
        while let Some(done) = self.queue.completed() {
            if done.user_data == OWN {
                self.flushed(done.result);
                continue;
            }
            // A ring exists while it has requests.
            let Some(ring) = &mut self.ring else { continue };
            let head = u16::try_from(done.user_data).unwrap_or(u16::MAX);
            if let Some(request) = ring.ended(head, done.result) {
                submit(&mut self.queue, ring, head, request);
            }
        }
        self.queue.ring();
        self.publish();
    }

    fn publish(&mut self) {
        let published = self.ring.as_mut().map(Ring::publish);
        if let Some(Err(broken)) = published {
            self.break_down(&broken);
        }
    }

    /// Stops the ring, if a caller waits for that and none of its requests is in flight.
    fn finish_stop(&mut self) {
        let Some(sender) = &self.stop else { return };
        if self.ring.as_ref().is_some_and(|ring| ring.in_flight() != 0) {
            return;
        }
        let stopped = self.ring.take().map(|ring| Stopped {
            next: ring.next(),
            is_broken: ring.is_broken(),
        });
        // The caller may be gone.
        let _ = sender.send(stopped);
        self.stop = None;
    }

    /// Waits for work.
    fn wait(&mut self, has_more: bool) {
        let runs = |ring: &&Ring| !ring.is_broken() && self.stop.is_none();
        let kick = self
            .ring
            .as_ref()
            .filter(runs)
            .map(|ring| ring.kick.clone());
        let mut fds = vec![
            PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.queue.fd(), PollFlags::POLLIN),
        ];
        if let Some(kick) = &kick {
            fds.push(PollFd::new(kick.as_fd(), PollFlags::POLLIN));
        }
        let timeout = match has_more {
            true => PollTimeout::ZERO,
            false => PollTimeout::NONE,
        };
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => {
                // This is not expected to fail. The next program of the socket takes over.
                eprintln!("hcablk-vhost-user: ring {}: waiting: {error}", self.index);
                std::process::abort();
            }
        }
        let came = fds.get(2).and_then(PollFd::revents);
        drop(fds);
        if let (Some(kick), Some(came)) = (kick, came.filter(|came| !came.is_empty())) {
            if let Err(why) = take_kick(&kick, came) {
                self.break_down(&Broken::Kick(why));
            }
        }
    }
}

/// Passes a request of a ring, which begins with the descriptor `head`, to the library.
fn submit(queue: &mut Queue, ring: &mut Ring, head: u16, request: Request) {
    if let Err(refused) = queue.prepare(request) {
        // The request has changed nothing, so no flush follows, which `ended` would return.
        ring.ended(head, Err(refused.0));
    }
}

/// Takes a kick, of a descriptor for which `poll` has reported `came`.
fn take_kick(mut kick: &File, came: PollFlags) -> Result<(), String> {
    if !came.contains(PollFlags::POLLIN) {
        return Err("cannot be waited for".to_owned());
    }
    match kick.read(&mut [0; 8]) {
        Ok(8) => Ok(()),
        Ok(_) => Err("is not an eventfd".to_owned()),
        Err(error) => match error.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => Ok(()),
            _ => Err(format!("cannot be read: {error}")),
        },
    }
}

/// Adds 1 to an eventfd of a frontend, unless that would block: then it is signaled already.
pub(crate) fn write_if_possible(mut file: &File) -> std::io::Result<()> {
    let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut fds, PollTimeout::ZERO)? == 1 {
        file.write_all(&1_u64.to_ne_bytes())?;
    }
    Ok(())
}
