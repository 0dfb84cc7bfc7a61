// SPDX-License-Identifier: GPL-2.0

//! Looks for writes of the past, which reach the drive after a later write of the same place
//! was acknowledged.
//!
//! `hcablk-versions write DEVICE WRITERS`: WRITERS threads write version after version of their own
//! places, of 4 to 128 KiB, with O_DIRECT. Before each write, and after it, a read there
//! must return the last acknowledged version. At the end, when the file `/tmp/stop`
//! exists, prints the last version of each place.
//!
//! `hcablk-versions check DEVICE`: reads such lines from standard input, and checks that the device
//! holds these versions.

use std::{
    alloc::{alloc_zeroed, Layout},
    env,
    fs::{File, OpenOptions},
    io::{self, BufRead},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    process::exit,
    slice, thread,
};

const O_DIRECT: i32 = 0o40000;
const SECTOR: usize = 512;
/// The bytes of a place, and the largest length of a version.
const PLACE: usize = 128 << 10;
/// The places of each writer: few, so that each is soon written again.
const PLACES: usize = 4;

/// Returns the length of the versions of a place.
fn length(place: usize) -> usize {
    [4096, PLACE, 16 << 10, 64 << 10][place % PLACES]
}

/// Returns page-aligned memory for one version.
fn buffer() -> &'static mut [u8] {
    let layout = Layout::from_size_align(PLACE, 4096).expect("a sane layout");
    // SAFETY: the layout's size is not zero, and the memory is never freed.
    unsafe {
        let base = alloc_zeroed(layout);
        assert!(!base.is_null(), "no memory");
        slice::from_raw_parts_mut(base, PLACE)
    }
}

/// Fills each sector with the place, the version and its own number; version 0 is unwritten.
fn fill(to: &mut [u8], place: usize, version: u64) {
    for (n, sector) in to.chunks_exact_mut(SECTOR).enumerate() {
        for (word, number) in sector.chunks_exact_mut(24).zip(0u64..) {
            let (place, n) = (place as u64, n as u64 + (number << 32));
            let words = if version == 0 {
                [0; 3]
            } else {
                [place, version, n]
            };
            for (at, value) in word.chunks_exact_mut(8).zip(words) {
                at.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
}

/// Reads a place, and checks that all of it holds the version.
fn check(
    device: &File,
    data: &mut [u8],
    wanted: &mut [u8],
    place: usize,
    version: u64,
) -> Result<(), String> {
    let (data, wanted) = (&mut data[..length(place)], &mut wanted[..length(place)]);
    device
        .read_exact_at(data, (place * PLACE) as u64)
        .map_err(|error| format!("reading place {place}: {error}"))?;
    fill(wanted, place, version);
    let Some(at) = data.iter().zip(wanted.iter()).position(|(a, b)| a != b) else {
        return Ok(());
    };
    let sector = &data[at / SECTOR * SECTOR..];
    let word = |n: usize| u64::from_le_bytes(sector[n * 8..n * 8 + 8].try_into().expect("8 bytes"));
    Err(format!(
        "sector {} of place {place} holds version {} of place {}, where version {version} was acknowledged",
        at / SECTOR,
        word(1),
        word(0),
    ))
}

fn open(path: &str) -> File {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(O_DIRECT)
        .open(path);
    opened.unwrap_or_else(|error| {
        eprintln!("{path}: {error}");
        exit(1)
    })
}

/// Writes until `/tmp/stop` exists; returns the last version of each of the writer's places.
fn write(path: &str, writer: usize) -> Result<[u64; PLACES], String> {
    let device = open(path);
    let (data, wanted) = (buffer(), buffer());
    let mut versions = [0; PLACES];
    while !Path::new("/tmp/stop").exists() {
        for n in 0..PLACES {
            let place = writer * PLACES + n;
            check(&device, data, wanted, place, versions[n])?;
            let version = &mut data[..length(place)];
            fill(version, place, versions[n] + 1);
            device
                .write_all_at(version, (place * PLACE) as u64)
                .map_err(|error| format!("writing place {place}: {error}"))?;
            versions[n] += 1;
            check(&device, data, wanted, place, versions[n])?;
        }
    }
    Ok(versions)
}

fn write_all(path: &str, writers: usize) -> Result<(), String> {
    let threads: Vec<_> = (0..writers)
        .map(|writer| {
            let path = path.to_owned();
            thread::spawn(move || {
                write(&path, writer).unwrap_or_else(|error| {
                    // The other threads continue until they are stopped.
                    eprintln!("{error}");
                    exit(1)
                })
            })
        })
        .collect();
    for (writer, thread) in threads.into_iter().enumerate() {
        let versions = thread.join().map_err(|_| "a thread died")?;
        for (n, version) in versions.iter().enumerate() {
            println!("{} {version}", writer * PLACES + n);
        }
    }
    Ok(())
}

fn check_all(path: &str) -> Result<(), String> {
    let device = open(path);
    let (data, wanted) = (buffer(), buffer());
    let (mut places, mut writes) = (0, 0);
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let numbers: Vec<u64> = line
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        let [place, version] = numbers[..] else {
            return Err(format!("no place and version: {line}"));
        };
        check(&device, data, wanted, place as usize, version)?;
        (places, writes) = (places + 1, writes + version);
    }
    match writes {
        0 => Err("nothing was written".to_owned()),
        _ => {
            println!("{places} places hold the last of {writes} writes");
            Ok(())
        }
    }
}

fn main() {
    let words: Vec<String> = env::args().collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words[1..] {
        ["write", device, writers] => write_all(device, writers.parse().unwrap_or(1)),
        ["check", device] => check_all(device),
        _ => Err("usage: hcablk-versions write DEVICE WRITERS | check DEVICE".to_owned()),
    };
    if let Err(error) = result {
        eprintln!("FAILED {error}");
        exit(1);
    }
}
