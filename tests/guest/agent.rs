// SPDX-License-Identifier: GPL-2.0

//! Runs commands in a guest for the test runner.
//!
//! Every virtio port named `cmd.*` is one channel that runs one command at a time. All numbers are
//! 32-bit little-endian.
//!
//! Runner to guest: `length`, then `length` bytes of shell text. A length of zero kills the
//! running command. Guest to runner: a byte of kind, `length`, then `length` bytes:
//! * `r`: the channel is ready (sent once),
//! * `o`, `e`: standard output and standard error,
//! * `x`: the command ended; the data is its exit code as text, `128 + signal` when it was killed.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};

/// The wait for output after a command's end, from programs that it left in the background.
const LATE_OUTPUT: Duration = Duration::from_millis(300);

enum Event {
    /// The runner wants to run this command.
    Request(String),
    /// The runner wants the running command killed.
    Kill,
    /// The `n`th command wrote something.
    Output(u32, u8, Vec<u8>),
    /// An output pipe of the `n`th command is closed.
    Closed(u32),
    /// The `n`th command ended.
    Ended(u32, i32),
}

fn send(port: &mut File, kind: u8, data: &[u8]) -> io::Result<()> {
    let mut frame = vec![kind];
    frame.extend_from_slice(&(data.len() as u32).to_le_bytes());
    frame.extend_from_slice(data);
    port.write_all(&frame)
}

/// Fills `buf`; a port without a runner reads as empty, and is read again.
fn receive(port: &mut File, buf: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < buf.len() {
        match port.read(&mut buf[at..])? {
            0 => thread::sleep(Duration::from_millis(100)),
            n => at += n,
        }
    }
    Ok(())
}

fn read_requests(mut port: File, events: Sender<Event>) -> io::Result<()> {
    loop {
        let mut length = [0; 4];
        receive(&mut port, &mut length)?;
        let event = match u32::from_le_bytes(length) {
            0 => Event::Kill,
            n => {
                let mut text = vec![0; n as usize];
                receive(&mut port, &mut text)?;
                Event::Request(String::from_utf8_lossy(&text).into_owned())
            }
        };
        if events.send(event).is_err() {
            return Ok(());
        }
    }
}

fn forward(n: u32, kind: u8, mut pipe: impl Read + Send + 'static, events: Sender<Event>) {
    thread::spawn(move || {
        let mut buf = [0; 16384];
        while let Ok(len @ 1..) = pipe.read(&mut buf) {
            if events
                .send(Event::Output(n, kind, buf[..len].to_vec()))
                .is_err()
            {
                return;
            }
        }
        let _ = events.send(Event::Closed(n));
    });
}

/// Starts a command in its own process group; returns the group.
fn start(n: u32, text: &str, events: &Sender<Event>) -> io::Result<u32> {
    let mut child: Child = Command::new("/bin/sh")
        .args(["-c", text])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env("PATH", "/usr/sbin:/usr/bin")
        .env("HOME", "/root")
        .current_dir("/root")
        .process_group(0)
        .spawn()?;
    let group = child.id();
    if let Some(pipe) = child.stdout.take() {
        forward(n, b'o', pipe, events.clone());
    }
    if let Some(pipe) = child.stderr.take() {
        forward(n, b'e', pipe, events.clone());
    }
    let events = events.clone();
    thread::spawn(move || {
        let code = match child.wait() {
            Ok(status) => status.code().unwrap_or(128 + status.signal().unwrap_or(0)),
            Err(_) => 126,
        };
        let _ = events.send(Event::Ended(n, code));
    });
    Ok(group)
}

fn kill(group: u32) {
    let _ = Command::new("/usr/bin/busybox")
        .args(["kill", "-KILL", &format!("-{group}")])
        .status();
}

fn serve(mut port: File, events: Receiver<Event>, sender: Sender<Event>) -> io::Result<()> {
    send(&mut port, b'r', b"")?;
    let mut n = 0;
    loop {
        let Ok(event) = events.recv() else {
            return Ok(());
        };
        let Event::Request(text) = event else {
            continue;
        };
        n += 1;
        let group = match start(n, &text, &sender) {
            Ok(group) => group,
            Err(err) => {
                send(&mut port, b'e', format!("agent: {err}\n").as_bytes())?;
                send(&mut port, b'x', b"126")?;
                continue;
            }
        };
        let (mut open, mut code) = (2, None);
        while open > 0 || code.is_none() {
            let event = match code {
                // Programs that the command left behind may hold the pipes: do not wait for them.
                Some(_) => events.recv_timeout(LATE_OUTPUT),
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Output(of, kind, data)) if of == n => send(&mut port, kind, &data)?,
                Ok(Event::Closed(of)) if of == n => open -= 1,
                Ok(Event::Ended(of, c)) if of == n => code = Some(c),
                Ok(Event::Kill) => kill(group),
                Ok(_) => (),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
        send(&mut port, b'x', code.unwrap_or(126).to_string().as_bytes())?;
    }
}

fn main() -> io::Result<()> {
    let mut channels = Vec::new();
    for entry in fs::read_dir("/sys/class/virtio-ports")? {
        let entry = entry?;
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if !name.starts_with("cmd.") {
            continue;
        }
        let path = std::path::Path::new("/dev").join(entry.file_name());
        let port = File::options().read(true).write(true).open(path)?;
        let (sender, events) = mpsc::channel();
        let (reader, requests) = (port.try_clone()?, sender.clone());
        thread::spawn(move || read_requests(reader, requests));
        channels.push(thread::spawn(move || serve(port, events, sender)));
    }
    for channel in channels {
        let _ = channel.join();
    }
    Ok(())
}
