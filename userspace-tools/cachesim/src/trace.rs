// SPDX-License-Identifier: GPL-2.0

//! Requests, as text.

use std::io::{self, BufRead, Write};
use std::path::PathBuf;

/// The failures of reading a trace.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot open {}: {error}", path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("line {line} is not a request: {text:?}")]
    NoRequest { line: usize, text: String },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) write: bool,
    /// Bytes.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u32,
}

/// Reads a trace in any of the forms that the help describes.
pub(crate) fn read(from: impl BufRead) -> Result<Vec<Request>, Error> {
    let mut requests = Vec::new();
    for (at, text) in from.lines().enumerate() {
        let text = text?;
        let fields: Vec<_> = text
            .split([',', ' ', '\t'])
            .filter(|field| !field.is_empty())
            .collect();
        match fields[..] {
            [first, ..] if first.starts_with('#') => {}
            // Other lines of an iolog.
            ["fio", "version", "2" | "3", "iolog"] | [_, "add" | "open" | "close"] | [] => {}
            _ => requests.push(parse(&fields).ok_or_else(|| Error::NoRequest {
                line: at + 1,
                text: text.clone(),
            })?),
        }
    }
    Ok(requests)
}

fn parse(fields: &[&str]) -> Option<Request> {
    let ([op, offset, length] | [_, op, offset, length] | [_, _, _, op, offset, length, _]) =
        *fields
    else {
        return None;
    };
    let write = match op.to_ascii_lowercase().as_str() {
        "r" | "read" => false,
        "w" | "write" => true,
        _ => return None,
    };
    let request = Request {
        write,
        offset: offset.parse().ok()?,
        length: length.parse().ok()?,
    };
    // No drive has a larger address.
    let end = request.offset.checked_add(request.length.into())?;
    (request.length != 0 && i64::try_from(end).is_ok()).then_some(request)
}

fn name(request: &Request) -> &'static str {
    if request.write {
        "write"
    } else {
        "read"
    }
}

/// Writes `OP,OFFSET,LENGTH`.
pub(crate) fn write_csv(out: &mut impl Write, requests: &[Request]) -> io::Result<()> {
    for r in requests {
        writeln!(out, "{},{},{}", name(r), r.offset, r.length)?;
    }
    Ok(())
}

/// Writes an iolog with which fio sends these requests to `file`.
pub(crate) fn write_fio(out: &mut impl Write, requests: &[Request], file: &str) -> io::Result<()> {
    writeln!(out, "fio version 2 iolog\n{file} add\n{file} open")?;
    for r in requests {
        writeln!(out, "{file} {} {} {}", name(r), r.offset, r.length)?;
    }
    writeln!(out, "{file} close")
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: [Request; 2] = [
        Request {
            write: false,
            offset: 4096,
            length: 512,
        },
        Request {
            write: true,
            offset: 0,
            length: 65536,
        },
    ];

    #[test]
    fn every_form_is_read() {
        let msr = "128166372003061629,src1,0,Read,4096,512,1331\n1,src1,0,Write,0,65536,3\n";
        for text in ["# a remark\n\nr 4096 512\nW\t0\t65536\n", msr] {
            assert_eq!(read(text.as_bytes()).unwrap(), REQUESTS);
        }
        let mut text = Vec::new();
        write_csv(&mut text, &REQUESTS).unwrap();
        assert_eq!(read(&text[..]).unwrap(), REQUESTS);
        text.clear();
        write_fio(&mut text, &REQUESTS, "/dev/hcablk0").unwrap();
        assert_eq!(read(&text[..]).unwrap(), REQUESTS);
    }

    #[test]
    fn an_invalid_request_is_reported_with_its_line() {
        for bad in [
            "r 1",
            "x 0 1",
            "r -1 4",
            "r 0 0",
            "r 9223372036854775807 1",
            "r 0 5000000000",
        ] {
            let error = read(format!("r 0 1\n{bad}\n").as_bytes()).unwrap_err();
            assert!(
                error.to_string().starts_with("line 2 is not a request"),
                "{error}"
            );
        }
    }
}
