// SPDX-License-Identifier: GPL-2.0

//! The program's life: it opens the volume, listens, serves one frontend after the other, and ends on a signal, or when
//! the volume has ended.

use crate::{
    block,
    cli::Serve,
    device::{Device, Served},
    saved::{Saved, SocketFiles},
    socket::{self, Socket},
    worker::Worker,
    Error,
};
use libhcablk::{Failure, Past, Volume};
use nix::{
    errno::Errno,
    poll::{poll, PollFd, PollFlags, PollTimeout},
    sys::{
        eventfd::{EfdFlags, EventFd},
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
        socket::{recvmsg, send, ControlMessageOwned, MsgFlags},
    },
};
use std::{
    io::{self, IoSliceMut, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    path::Path,
    process, ptr,
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc, Mutex,
    },
    thread,
    time::{Duration, Instant},
};
use vhost::vhost_user::{BackendReqHandler, Error as Answer};

/// The time between two checks whether the volume has changed.
const LOOK: Duration = Duration::from_millis(500);
/// The time limit of a frontend for sending a message, or reading responses.
const MESSAGE: Duration = Duration::from_secs(10);
/// The time between two checks for the rest of a message.
const REST: Duration = Duration::from_millis(10);
/// The time limit for requests in flight when the program is stopped.
const STOP: Duration = Duration::from_secs(30);
/// Bytes of the header of a message, and the most that follow.
const HEADER: usize = 12;
const BODY: usize = 4096;
/// The numbers of two messages: the frontend hands over a socket for the device's own messages, and the device
/// reports that the configuration has changed.
const SET_BACKEND_REQ_FD: u32 = 21;
const CONFIG_CHANGED: u32 = 2;
/// The version of the protocol, in the flags of a message.
const VERSION: u32 = 1;

/// The volume has ended: there cannot be another session.
#[derive(Debug, thiserror::Error)]
#[error("the volume has ended: {0}")]
pub(crate) struct Ended(pub(crate) Failure);

/// Returns a path in the form for messages.
pub(crate) fn display(path: &Path) -> String {
    path.display().to_string()
}

/// Serves a volume at a socket.
pub(crate) fn serve(serve: &Serve) -> Result<(), Error> {
    let end = End::new()?;
    let wanted = serve.volume.wanted()?;
    let place = SocketFiles::new(&serve.socket)?;
    let _lock = place.take()?;
    socket::refuse_used(&place.socket)?;
    let left = place.read()?;
    let is_successor = left.is_some();
    let mut saved = left.unwrap_or_else(|| Saved::begin(wanted.clone()));
    let volume = Arc::new(Volume::open(&saved.options(&wanted)?)?);
    saved.wanted = wanted;
    saved.session = volume.session();
    saved.past = volume.past().map(|past| past.to_string());
    // Before the first write.
    saved.reserve()?;
    place.write(&saved)?;
    let begun = begin(&place, serve.mode, &saved, &volume);
    let (socket, served) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            if !is_successor {
                // Nobody has written.
                place.forget(&saved)?;
            }
            return Err(error);
        }
    };
    let mut program = Server {
        size: volume.size(),
        volume,
        served,
        place,
        saved,
        connection: None,
    };
    let ended = program.run(&socket, &end);
    // No frontend connects any more.
    drop(socket);
    program.finish(ended)
}

/// Starts the threads, and listens.
fn begin(
    place: &SocketFiles,
    mode: u32,
    saved: &Saved,
    volume: &Arc<Volume>,
) -> Result<(Socket, Arc<Served>), Error> {
    let past = saved.past.as_deref().map(str::parse::<Past>);
    let wwid = past.and_then(Result::ok).map(|past| past.id());
    let id = block::id(wwid.as_deref(), &saved.wanted.volume);
    let mut workers = Vec::new();
    while let Some(queue) = volume.take_queue() {
        let index = workers.len();
        workers.push(Worker::begin(index, queue, volume.clone(), id)?);
    }
    let served = Arc::new(Served {
        volume: volume.clone(),
        workers,
    });
    let socket = Socket::listen(&place.socket, mode)?;
    // A failure to print is ignored: the socket listens nevertheless.
    let _ = writeln!(io::stdout(), "{}", display(&place.socket));
    if let Err(error) =
        hcablk_volume_args::notify_ready(&format!("Serving {}", saved.wanted.volume))
    {
        eprintln!("hcablk-vhost-user: cannot notify systemd that the socket exists: {error}");
    }
    Ok((socket, served))
}

/// The request to stop the program, which a signal makes.
struct End {
    is_requested: Arc<AtomicBool>,
    wake: Arc<EventFd>,
}

impl End {
    /// Blocks the signals in all threads, and begins one that waits for them.
    fn new() -> Result<Self, Error> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.add(Signal::SIGINT);
        set.thread_block()?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)?;
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let end = Self {
            is_requested: Arc::default(),
            wake: Arc::new(EventFd::from_flags(flags)?),
        };
        let (is_requested, wake) = (end.is_requested.clone(), end.wake.clone());
        // The thread ends with the program.
        thread::spawn(move || {
            // If this fails, ending the program is all that is left to do.
            let _ = signals.read_signal();
            is_requested.store(true, Ordering::Release);
            let _ = wake.write(1);
            thread::sleep(STOP);
            eprintln!("hcablk-vhost-user: requests are still in flight {} s after the program was asked to stop: it ends without them, and the next program of this socket continues", STOP.as_secs());
            process::exit(1);
        });
        Ok(end)
    }

    fn is_requested(&self) -> bool {
        self.is_requested.load(Ordering::Acquire)
    }
}

/// The server of a socket; see the module.
struct Server {
    volume: Arc<Volume>,
    served: Arc<Served>,
    place: SocketFiles,
    saved: Saved,
    /// The size that frontends know.
    size: u64,
    connection: Option<Connection>,
}

/// A frontend.
struct Connection {
    handler: BackendReqHandler<Mutex<Device>>,
    stream: UnixStream,
    device: Arc<Mutex<Device>>,
    /// The socket for the device's own messages.
    own: Option<UnixStream>,
    /// The time when the first part of an incomplete message was seen.
    since: Option<Instant>,
    has_refused: bool,
}

impl Server {
    /// Serves frontends until the program is stopped.
    fn run(&mut self, socket: &Socket, end: &End) -> Result<(), Ended> {
        let mut next = Instant::now();
        while !end.is_requested() {
            if let Some(failure) = self.volume.ended() {
                return Err(Ended(failure));
            }
            if Instant::now() >= next {
                next = Instant::now() + LOOK;
                self.follow();
            }
            let is_partial = self
                .connection
                .as_ref()
                .is_some_and(|open| open.since.is_some());
            let mut fds = vec![
                PollFd::new(end.wake.as_fd(), PollFlags::POLLIN),
                PollFd::new(socket.listener.as_fd(), PollFlags::POLLIN),
            ];
            if let Some(open) = self.connection.as_ref().filter(|_| !is_partial) {
                fds.push(PollFd::new(open.stream.as_fd(), PollFlags::POLLIN));
            }
            let limit = if is_partial { REST } else { LOOK };
            let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
            if let Err(error) = poll(&mut fds, limit) {
                if error != Errno::EINTR {
                    eprintln!("hcablk-vhost-user: waiting: {error}");
                    thread::sleep(LOOK);
                }
                continue;
            }
            let came = |place: usize| fds.get(place).and_then(PollFd::any).unwrap_or(false);
            let (has_message, has_new) = (is_partial || came(2), came(1));
            drop(fds);
            if has_message {
                self.message();
            }
            if has_new {
                self.accept(socket);
            }
        }
        Ok(())
    }

    /// Handles a message, or the end of the connection.
    fn message(&mut self) {
        let Some(open) = &mut self.connection else {
            return;
        };
        match open.handle() {
            Ok(()) => {}
            Err(why) => {
                if let Some(why) = why {
                    eprintln!("hcablk-vhost-user: the connection to the frontend ends: {why}");
                }
                self.disconnect();
            }
        }
    }

    /// Drops the frontend, when its requests have ended.
    fn disconnect(&mut self) {
        if let Some(open) = self.connection.take() {
            lock(&open.device).stop_all();
        }
    }

    fn accept(&mut self, socket: &Socket) {
        let stream = match socket.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                eprintln!("hcablk-vhost-user: accepting a frontend: {error}");
                // If file descriptors have run out, the next attempt would follow at once.
                thread::sleep(LOOK);
                return;
            }
        };
        if self.connection.is_some() {
            eprintln!("hcablk-vhost-user: another frontend is refused: one is connected");
            return;
        }
        match Connection::new(stream, &self.served) {
            Ok(open) => self.connection = Some(open),
            Err(error) => eprintln!("hcablk-vhost-user: accepting a frontend: {error}"),
        }
    }

    /// Saves the state for the next program, and notifies the frontend of a new size.
    fn follow(&mut self) {
        let past = self.volume.past().map(|past| past.to_string());
        if self.saved.past != past {
            let mut next = self.saved.clone();
            next.past = past;
            match self.place.write(&next) {
                Ok(()) => self.saved = next,
                Err(error) => {
                    eprintln!(
                        "hcablk-vhost-user: cannot save the state for the next program: {error}"
                    );
                }
            }
        }
        let size = self.volume.size();
        if size != self.size {
            let is_notified = self
                .connection
                .as_ref()
                .is_none_or(Connection::notify_change);
            if is_notified {
                self.size = size;
                eprintln!("hcablk-vhost-user: the disk has {size} bytes");
            }
        }
    }

    /// Ends the server when no request is in flight. All acknowledged writes are durable then; if they may not be, the
    /// next program of the socket knows that.
    fn finish(mut self, ended: Result<(), Ended>) -> Result<(), Error> {
        // Requests in flight fail if the volume has ended.
        if let Some(open) = &self.connection {
            lock(&open.device).stop_all();
        }
        self.follow();
        ended?;
        let worker = self.served.workers.first().ok_or("there is no queue")?;
        worker.flush().map_err(|error| {
            format!("a last flush has failed: {error}. Writes that the guest has not flushed may be lost, and the next program of this socket reports that to the guest. After the virtual machine has ended, run: hcablk-vhost-user forget {}", display(&self.place.socket))
        })?;
        // The frontend sees the end of the program only now, with no request in flight.
        self.connection = None;
        self.place.forget(&self.saved)
    }
}

/// The data under the lock is consistent: a panic ends the program.
fn lock(device: &Mutex<Device>) -> std::sync::MutexGuard<'_, Device> {
    device
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Connection {
    fn new(stream: UnixStream, served: &Arc<Served>) -> Result<Self, Error> {
        stream.set_nonblocking(false)?;
        let device = Arc::new(Mutex::new(Device::new(served.clone())));
        Ok(Self {
            handler: BackendReqHandler::from_stream(stream.try_clone()?, device.clone()),
            stream,
            device,
            own: None,
            since: None,
            has_refused: false,
        })
    }

    /// Handles a message that is complete.
    ///
    /// # Errors
    ///
    /// The reason for the end of the connection, unless the frontend has ended it.
    fn handle(&mut self) -> Result<(), Option<Error>> {
        let number = match self.complete_message() {
            Ok(Some(number)) => number,
            Ok(None) if self.has_gone() => return Err(None),
            Ok(None) => {
                let since = *self.since.get_or_insert_with(Instant::now);
                return match since.elapsed() < MESSAGE {
                    true => Ok(()),
                    false => Err(Some("it has sent a part of a message".into())),
                };
            }
            Err(error) => return Err(error),
        };
        self.since = None;
        self.wait_for_room()?;
        if number == SET_BACKEND_REQ_FD {
            self.own = self.peek_socket();
        }
        match self.handler.handle_request() {
            Ok(()) => Ok(()),
            Err(Answer::InvalidOperation(why)) => {
                if !std::mem::replace(&mut self.has_refused, true) {
                    eprintln!("hcablk-vhost-user: a request of the frontend is refused: {why}");
                }
                Ok(())
            }
            Err(Answer::Disconnected) => Err(None),
            Err(Answer::ReqHandlerError(why)) => Err(Some(why.into())),
            Err(error) => Err(Some(format!("message {number}: {error}").into())),
        }
    }

    /// Returns the number of the next message if the whole message has arrived: reading it then does not wait for the
    /// frontend.
    fn complete_message(&self) -> Result<Option<u32>, Option<Error>> {
        let mut header = [0; HEADER];
        let mut parts = [IoSliceMut::new(&mut header)];
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        let peeked = recvmsg::<()>(self.stream.as_raw_fd(), &mut parts, None, flags);
        let bytes = match peeked {
            Ok(peeked) => peeked.bytes,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(Errno::ECONNRESET) => 0,
            Err(error) => return Err(Some(error.into())),
        };
        if bytes == 0 {
            return Err(None);
        }
        let word = |at: usize| {
            let word = header.get(at..at + 4).and_then(|word| word.try_into().ok());
            u32::from_ne_bytes(word.unwrap_or_default())
        };
        let length = word(8) as usize;
        if bytes == HEADER && length > BODY {
            return Err(Some(format!("a message of {length} bytes").into()));
        }
        let is_whole = bytes == HEADER && queued(&self.stream)? >= HEADER + length;
        Ok(is_whole.then_some(word(0)))
    }

    /// Returns whether the frontend has closed the connection, even if messages are still unread.
    fn has_gone(&self) -> bool {
        let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        let has_come = poll(&mut fds, PollTimeout::ZERO).is_ok();
        has_come && fds.iter().any(|fd| fd.any().unwrap_or(false))
    }

    /// Waits until the frontend has read enough responses that a further response does not block.
    fn wait_for_room(&self) -> Result<(), Option<Error>> {
        let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::POLLOUT)];
        let limit = PollTimeout::try_from(MESSAGE).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, limit) {
            Ok(0) => Err(Some("it does not read its responses".into())),
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(Some(error.into())),
        }
    }

    /// Returns the socket that the next message hands over: the crate that reads messages keeps it, and cannot use it
    /// to notify of a change.
    #[allow(unsafe_code, reason = "the descriptor is new")]
    fn peek_socket(&self) -> Option<UnixStream> {
        let mut header = [0; HEADER];
        let mut parts = [IoSliceMut::new(&mut header)];
        let mut room = nix::cmsg_space!([RawFd; 1]);
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let peeked = recvmsg::<()>(self.stream.as_raw_fd(), &mut parts, Some(&mut room), flags);
        let peeked = peeked.ok()?;
        let mut files = Vec::new();
        for message in peeked.cmsgs().ok()? {
            if let ControlMessageOwned::ScmRights(descriptors) = message {
                for descriptor in descriptors {
                    // SAFETY: The kernel has made it for this call, and nobody else has it.
                    files.push(unsafe { OwnedFd::from_raw_fd(descriptor) });
                }
            }
        }
        files.pop().map(UnixStream::from)
    }

    /// Notifies the frontend that the configuration has changed. Returns whether the frontend was notified, or cannot
    /// be.
    fn notify_change(&self) -> bool {
        let Some(own) = &self.own else { return true };
        let message: Vec<_> = [CONFIG_CHANGED, VERSION, 0]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        !matches!(
            send(own.as_raw_fd(), &message, flags),
            Err(Errno::EAGAIN | Errno::EINTR)
        )
    }
}

/// Returns the number of bytes of a socket that wait to be read.
#[allow(unsafe_code, reason = "no crate of ours has this call")]
fn queued(stream: &UnixStream) -> Result<usize, Option<Error>> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: The kernel writes a number to `bytes`.
    let result = unsafe {
        libc::ioctl(
            stream.as_raw_fd(),
            libc::FIONREAD,
            ptr::from_mut(&mut bytes),
        )
    };
    match result {
        0 => Ok(usize::try_from(bytes).unwrap_or(0)),
        _ => Err(Some(Errno::last().into())),
    }
}
