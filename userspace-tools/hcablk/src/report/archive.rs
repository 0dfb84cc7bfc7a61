// SPDX-License-Identifier: GPL-2.0

//! The archive of a report: a compressed tar file with one folder.

use std::io;

use flate2::write::GzEncoder;
use flate2::Compression;

use super::parts::Part;
use crate::error::{Error, Kind, Result};

/// Packs the parts into an archive, as files of the folder `folder` that were changed at `time`, in seconds since 1970.
pub(super) fn pack(folder: &str, parts: &[Part], time: u64) -> Result<Vec<u8>> {
    let pack = || -> io::Result<Vec<u8>> {
        let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
        for part in parts {
            let mut header = tar::Header::new_gnu();
            header.set_size(part.text.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(time);
            let name = format!("{folder}/{}", part.name);
            archive.append_data(&mut header, name, part.text.as_bytes())?;
        }
        archive.into_inner()?.finish()
    };
    pack().map_err(|error| Error::new(Kind::Failed, format!("cannot pack the report: {error}")))
}
