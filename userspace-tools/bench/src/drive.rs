// SPDX-License-Identifier: GPL-2.0

//! Checks whether a drive may be overwritten, and makes digests of its content.

use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::time::Duration;

use hcablk::error::{Error, Kind, Result};
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

use crate::pattern::Arena;
use crate::stop::Stop;
use crate::worker;

/// The properties of a drive.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Drive {
    /// The drive's size in bytes.
    pub(crate) bytes: u64,
    /// The drive's logical block size.
    pub(crate) block: u64,
}

/// The minimum size of a drive: a smaller one has no room for the experiments.
const LEAST_BYTES: u64 = 64 << 20;

/// Checks that a path is a drive, and that it has [`LEAST_BYTES`]; with `overwrite` also that
/// nobody uses it and that `blkid` finds no signature.
pub(crate) fn check(path: &str, overwrite: bool, stop: &Stop) -> Result<Drive> {
    let cannot = |why: String| Error::new(Kind::Usage, format!("{path} cannot be used: {why}"));
    let kind = std::fs::metadata(path)
        .map_err(|error| cannot(error.to_string()))?
        .file_type();
    if !kind.is_block_device() {
        return Err(cannot("it is not a block device".to_owned()));
    }
    // For a block device O_EXCL means: nobody else has it mounted, or in a RAID or LVM.
    let flags = if overwrite {
        OFlag::O_EXCL
    } else {
        OFlag::empty()
    };
    let file = OpenOptions::new()
        .read(true)
        .write(overwrite)
        .custom_flags(flags.bits())
        .open(path);
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(errno) if errno == nix::errno::Errno::EBUSY as i32 => {
            cannot("it is in use (mounted, exported, or part of a RAID or LVM)".to_owned())
        }
        _ => cannot(error.to_string()),
    })?;
    let bytes = size(&file).map_err(|error| cannot(error.to_string()))?;
    drop(file);
    if bytes < LEAST_BYTES {
        return Err(cannot(format!(
            "it has {bytes} bytes; at least {LEAST_BYTES} are needed"
        )));
    }
    if overwrite {
        unsigned(path, stop)?;
    }
    Ok(Drive {
        bytes,
        block: block_size(path),
    })
}

/// Fails if libblkid finds a file system, a RAID, a partition table or the like. Exit code 2 means that there is none.
fn unsigned(path: &str, stop: &Stop) -> Result<()> {
    let argv = ["blkid", "--probe", "--output", "export", path].map(str::to_owned);
    let output = worker::run(&argv, Duration::from_secs(60), stop)?;
    if output.status == 2 {
        return Ok(());
    }
    let found: Vec<&str> = output
        .stdout
        .lines()
        .filter(|line| line.starts_with("TYPE=") || line.starts_with("PTTYPE="))
        .collect();
    let what = if found.is_empty() {
        format!("blkid says {}: {}", output.status, output.stderr.trim())
    } else {
        found.join(", ")
    };
    let advice = format!(
        "Its content would be overwritten. If that is all right: wipefs --all {path}\nWith --read-only some experiments only read."
    );
    Err(Error::new(Kind::Usage, format!("{path} has a signature ({what})")).advise(advice))
}

/// Returns the size of a drive or disk.
pub(crate) fn size(mut file: &File) -> std::io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// Returns the logical block size of a drive; 4096 if the kernel does not report it.
pub(crate) fn block_size(path: &str) -> u64 {
    let queue = |name: &std::path::Path| {
        let name = name.file_name()?.to_str()?;
        let text =
            std::fs::read_to_string(format!("/sys/class/block/{name}/queue/logical_block_size"));
        let of_disk = || {
            std::fs::read_to_string(format!(
                "/sys/class/block/{name}/../queue/logical_block_size"
            ))
        };
        text.or_else(|_| of_disk()).ok()?.trim().parse().ok()
    };
    std::fs::canonicalize(path)
        .ok()
        .and_then(|path| queue(&path))
        .unwrap_or(4096)
}

/// Returns the CRC-32 of a part of a drive, read without the page cache.
pub(crate) fn digest(path: &str, offset: u64, length: u64) -> Result<u32> {
    const STEP: u64 = 1 << 20;
    let cannot =
        |error: std::io::Error| Error::new(Kind::Failed, format!("cannot read {path}: {error}"));
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_DIRECT.bits())
        .open(path)
        .map_err(cannot)?;
    let mut hash = crc32fast::Hasher::new();
    let mut done = 0;
    while done < length {
        let step = STEP.min(length - done);
        let mut arena = Arena::new(&[(0, usize::try_from(step).unwrap_or(0))]);
        arena.read(&file, offset + done).map_err(cannot)?;
        for segment in arena.segments() {
            hash.update(segment);
        }
        done += step;
    }
    Ok(hash.finalize())
}
