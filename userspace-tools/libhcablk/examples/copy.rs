// SPDX-License-Identifier: GPL-2.0

//! Copies a volume to standard output, with many reads under way at a time:
//!
//!     copy ADDRESS VOLUME "$(cat /etc/hcablk/host_id)" > image

use libhcablk::{Buffer, Options, Request, Volume};
use std::{
    error::Error,
    io::{self, Write as _},
};

const CHUNK: u64 = 128 << 10;
const DEPTH: u64 = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [address, volume, host] = &arguments[..] else {
        return Err("usage: copy ADDRESS VOLUME HOST-ID".into());
    };
    let options = Options::new(address.parse()?, volume, host)?.depth(32);
    let volume = Volume::open(&options)?;
    let mut queue = volume.take_queue().ok_or("the volume has no queue")?;
    let mut output = io::stdout().lock();
    let size = volume.size();
    let mut begin = 0;
    while begin < size {
        let end = size.min(begin + CHUNK * DEPTH);
        let mut offset = begin;
        while offset < end {
            let length = CHUNK.min(end - offset);
            let memory = volume.memory(usize::try_from(length)?)?;
            let read = Request::read(offset, memory).user_data(offset);
            queue.prepare(read).map_err(|refused| refused.0)?;
            offset += length;
        }
        queue.ring();
        let mut pieces: Vec<(u64, Buffer)> = Vec::new();
        while queue.in_flight() != 0 {
            queue.poll();
            while let Some(done) = queue.completed() {
                done.result?;
                pieces.extend(done.memory.into_iter().map(|piece| (done.user_data, piece)));
            }
        }
        pieces.sort_by_key(|(offset, _)| *offset);
        for (_, piece) in &pieces {
            output.write_all(piece)?;
        }
        begin = end;
    }
    Ok(())
}
