// SPDX-License-Identifier: GPL-2.0

//! An exported device or file, and the hosts that may use it.
//!
//! ```text
//!             enable=1             it is open            enable=0               it is closed
//!  Disabled ────────────► Opening ────────────► Exported ──────────► Withdrawn ───────────────► Disabled
//!                            └── cannot be opened ──► Disabled
//! ```

use self::counters::ClosedQueues;
use super::{
    hosts::Hosts,
    registry::Registry, //
};
use crate::{
    drive::{
        backing::{
            Backing,
            Mode,
            WriteCache, //
        },
        p2p::Source,
        reservations::{
            Drives,
            Keep, //
        },
        write_errors::Records, //
    },
    session::{
        attachment::{
            Attachment,
            Exported, //
        },
        end_reason::EndReason, //
    },
};
use hcablk_core::{
    configfs::{
        Directory,
        DirectoryPin, //
    },
    printable,
    proto::{
        connect::Geometry,
        name::{
            VolumeId,
            VolumeName, //
        },
    },
    sync::{
        atomic::Atomic,
        Event,
        WorkQueue, //
    },
};
use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
};

mod access;
mod counters;
mod listing;
mod sessions;

/// The interval for logging that a device or file is still open after its export has ended, in
/// milliseconds.
const CLOSE_LOG_MS: u32 = 60_000;

/// The default size of the chunks of large requests, in KiB.
pub(super) const CHUNK_KIB: u32 = 128;

enum Export {
    Disabled,
    /// The device or file is being opened. The lock is not held, since opening has no time limit.
    Opening,
    Exported {
        backing: Arc<Backing>,
        records: Arc<Records>,
        /// See [`Exported::ends`].
        ends: Arc<WorkQueue>,
        /// Set when no reference to `backing` is left, so the device or file is closed.
        closed: Arc<Event>,
        /// Pins the directory.
        _pin: DirectoryPin,
    },
    Withdrawn,
}

struct ExportState {
    path: Option<CString>,
    read_only: bool,
    /// Hosts without a key need not prove their identity.
    insecure: bool,
    mode: Mode,
    write_cache: WriteCache,
    cache_mib: u32,
    chunk_kib: u32,
    source: Source,
    wwid: Option<VolumeId>,
    keep: Keep,
    state_directory: Option<StateDirectoryPath>,
    export: Export,
    hosts: Hosts,
    error: Option<(&'static str, Error)>,
}

/// The directory with the records that move with a volume.
struct StateDirectoryPath {
    path: CString,
    /// The directory in it of the files of reservations.
    reservations: CString,
}

/// The settings with which a volume is opened; they cannot change while the volume is enabled.
struct Opening {
    path: CString,
    read_only: bool,
    mode: Mode,
    write_cache: WriteCache,
    source: Source,
    /// Bytes of a chunk.
    chunk: u32,
    cache_mib: u32,
    wwid: Option<VolumeId>,
    keep: Keep,
    /// The directory of the files of reservations; `None`: the target's.
    reservations: Option<CString>,
}

impl ExportState {
    fn opening(&self) -> Result<Opening, (&'static str, Error)> {
        let path = self.path.as_ref().ok_or(("path is not set", EINVAL))?;
        let reservations = self.state_directory.as_ref();
        let reservations = reservations.map(|state| CString::try_from(&*state.reservations));
        let reservations = reservations.transpose();
        Ok(Opening {
            path: CString::try_from(&**path).map_err(|e| ("out of memory", e.into()))?,
            read_only: self.read_only,
            mode: self.mode,
            write_cache: self.write_cache,
            source: self.source,
            chunk: self.chunk_kib << 10,
            cache_mib: self.cache_mib,
            wwid: self.wwid,
            keep: self.keep,
            reservations: reservations.map_err(|e| ("out of memory", e.into()))?,
        })
    }
}

/// A volume. Its locks are never held while waiting for sessions or a drive: connection requests
/// for any volume would wait for them.
#[pin_data]
pub(crate) struct Volume {
    name: VolumeName,
    registry: Arc<Registry>,
    #[pin]
    state: Mutex<ExportState>,
    /// Whether the durations of requests are measured.
    timing: Atomic<bool>,
    /// Counters and times of closed queues.
    #[pin]
    closed_queues: Mutex<ClosedQueues>,
}

impl core::fmt::Display for Volume {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(&self.name, f)
    }
}
printable!(Volume);

impl Volume {
    pub(crate) fn new(name: VolumeName, registry: Arc<Registry>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                name,
                registry,
                state <- new_mutex!(ExportState {
                    path: None,
                    read_only: false,
                    insecure: false,
                    mode: Mode::Direct,
                    write_cache: WriteCache::Back,
                    cache_mib: 0,
                    chunk_kib: CHUNK_KIB,
                    source: Source::Nearest,
                    wwid: None,
                    keep: Keep::IfPossible,
                    state_directory: None,
                    export: Export::Disabled,
                    hosts: Hosts::new(),
                    error: None,
                }),
                timing: Atomic::new(false),
                closed_queues <- new_mutex!(ClosedQueues::default()),
            }),
            GFP_KERNEL,
        )
    }

    pub(crate) fn name(&self) -> VolumeName {
        self.name
    }

    /// Returns the registry that lists the volume and its sessions.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Calls `f` with the path of the device or file.
    pub(crate) fn with_path<R>(&self, f: impl FnOnce(Option<&CStr>) -> R) -> R {
        f(self.state.lock().path.as_deref())
    }

    /// Sets the path of the device or file. Fails with `EBUSY` while the volume is enabled.
    pub(crate) fn set_path(&self, path: &str) -> Result {
        if !path.starts_with('/') {
            return Err(EINVAL);
        }
        let path = CString::try_from_fmt(fmt!("{path}"))?;
        self.change(|state| state.path = Some(path))
    }

    pub(crate) fn read_only(&self) -> bool {
        self.state.lock().read_only
    }

    /// Sets whether writes are refused. Fails with `EBUSY` while the volume is enabled.
    pub(crate) fn set_read_only(&self, read_only: bool) -> Result {
        self.change(|state| state.read_only = read_only)
    }

    pub(crate) fn insecure(&self) -> bool {
        self.state.lock().insecure
    }

    /// Sets whether hosts without a key need not prove their identity. Fails with `EBUSY` while the
    /// volume is enabled.
    pub(crate) fn set_insecure(&self, insecure: bool) -> Result {
        self.change(|state| state.insecure = insecure)
    }

    pub(crate) fn mode(&self) -> Mode {
        self.state.lock().mode
    }

    /// Returns the identity of the volume, which does not depend on its name.
    pub(crate) fn wwid(&self) -> Option<VolumeId> {
        self.state.lock().wwid
    }

    /// Sets the identity of the volume. Fails with `EBUSY` while the volume is enabled.
    pub(crate) fn set_wwid(&self, wwid: Option<VolumeId>) -> Result {
        self.change(|state| state.wwid = wwid)
    }

    pub(crate) fn keep_reservations(&self) -> Keep {
        self.state.lock().keep
    }

    /// Sets whether the volume can be enabled if its reservations cannot be kept. Fails with
    /// `EBUSY` while it is enabled.
    pub(crate) fn set_keep_reservations(&self, keep: Keep) -> Result {
        self.change(|state| state.keep = keep)
    }

    /// Calls `f` with the path of the volume's state directory.
    pub(crate) fn with_state_directory<R>(&self, f: impl FnOnce(Option<&CStr>) -> R) -> R {
        let state = self.state.lock();
        f(state.state_directory.as_ref().map(|it| &*it.path))
    }

    /// Sets the directory in which the volume's reservations are kept; that of the target if `path`
    /// is empty. Fails with `EBUSY` while the volume is enabled.
    pub(crate) fn set_state_directory(&self, path: &str) -> Result {
        let directory = match path {
            "" => None,
            path if !path.starts_with('/') => return Err(EINVAL),
            path => Some(StateDirectoryPath {
                path: CString::try_from_fmt(fmt!("{path}"))?,
                reservations: CString::try_from_fmt(fmt!("{path}/reservations"))?,
            }),
        };
        self.change(|state| state.state_directory = directory)
    }

    /// Sets how data reaches the drive. Fails with `EBUSY` while the volume is enabled.
    pub(crate) fn set_mode(&self, mode: Mode) -> Result {
        self.change(|state| state.mode = mode)
    }

    pub(crate) fn write_cache(&self) -> WriteCache {
        self.state.lock().write_cache
    }

    /// Sets when writes are acknowledged. Fails with `EBUSY` while the volume is enabled.
    pub(crate) fn set_write_cache(&self, write_cache: WriteCache) -> Result {
        self.change(|state| state.write_cache = write_cache)
    }

    pub(crate) fn cache_mib(&self) -> u32 {
        self.state.lock().cache_mib
    }

    /// Sets the size of the volume's cache in MiB. Fails with `EBUSY` while the volume is enabled.
    pub(crate) fn set_cache_mib(&self, mib: u32) -> Result {
        self.change(|state| state.cache_mib = mib)
    }

    pub(crate) fn chunk_kib(&self) -> u32 {
        self.state.lock().chunk_kib
    }

    /// Sets the size of the chunks of large requests in KiB; 0: they are not split. Fails with
    /// `EBUSY` while the volume is enabled.
    pub(crate) fn set_chunk_kib(&self, kib: u32) -> Result {
        self.change(|state| state.chunk_kib = kib)
    }

    pub(crate) fn source(&self) -> Source {
        self.state.lock().source
    }

    /// Sets which device lends peer memory. Fails with `EBUSY` while the volume is enabled.
    pub(crate) fn set_source(&self, source: Source) -> Result {
        self.change(|state| state.source = source)
    }

    fn change(&self, f: impl FnOnce(&mut ExportState)) -> Result {
        let mut state = self.state.lock();
        if !matches!(state.export, Export::Disabled) {
            return Err(EBUSY);
        }
        f(&mut state);
        Ok(())
    }

    pub(crate) fn is_exported(&self) -> bool {
        !matches!(self.state.lock().export, Export::Disabled | Export::Opening)
    }

    /// Returns the size in bytes, 0 while the volume is not exported.
    pub(crate) fn size(&self) -> u64 {
        match &self.state.lock().export {
            Export::Exported { backing, .. } => backing.size_bytes(),
            _ => 0,
        }
    }

    /// Returns the last error.
    pub(crate) fn error(&self) -> Option<(&'static str, Error)> {
        self.state.lock().error
    }

    /// Opens the device or file and exports it. Does nothing if the volume is exported already.
    /// Fails with `EBUSY` while another caller enables it, or it is being disabled.
    pub(crate) fn enable(&self, directory: &Directory<'_>) -> Result {
        let opening = {
            let mut state = self.state.lock();
            match state.export {
                Export::Disabled => {}
                Export::Exported { .. } => return Ok(()),
                Export::Opening | Export::Withdrawn => return Err(EBUSY),
            }
            let opening = state.opening();
            state.error = opening.as_ref().err().copied();
            if opening.is_ok() {
                state.export = Export::Opening;
            }
            opening.map_err(|(_, e)| e)?
        };
        let result = self.open(&opening).and_then(|backing| {
            let pin = directory
                .pin()
                .map_err(|e| ("its configfs directory cannot be pinned", e))?;
            let records = Records::new().map_err(|e| ("out of memory", e))?;
            let ends = Backing::new_shared_work("ends", self.name.as_str(), WorkQueue::new)?;
            let closed =
                Arc::pin_init(Event::new(), GFP_KERNEL).map_err(|e| ("out of memory", e))?;
            let backing = Arc::new(backing.with_closed_event(closed.clone()), GFP_KERNEL)
                .map_err(|e| ("out of memory", e.into()))?;
            Ok((backing, records, (ends, closed), pin))
        });
        let mut state = self.state.lock();
        match result {
            Ok((backing, records, (ends, closed), pin)) => {
                if state.insecure {
                    pr_warn!("{self}: exported INSECURELY: hosts without a key need not prove who they are\n");
                } else {
                    pr_info!("{self}: exported\n");
                }
                if let Some(why) = backing.fallen() {
                    pr_warn!(
                        "{self}: no peer memory for the cache: the cache and all buffers are in RAM: {why}\n"
                    );
                }
                state.export = Export::Exported {
                    backing,
                    records,
                    ends,
                    closed,
                    _pin: pin,
                };
                Ok(())
            }
            Err((what, e)) => {
                state.export = Export::Disabled;
                state.error = Some((what, e));
                Err(e)
            }
        }
    }

    fn open(&self, opening: &Opening) -> Result<Backing, (&'static str, Error)> {
        let name = self.name.as_str();
        let modes = (opening.mode, opening.write_cache);
        let backing = Backing::open(
            name,
            &opening.path,
            opening.read_only,
            modes,
            opening.source,
            opening.chunk,
        )?
        .claim(self.registry.claims(), opening.cache_mib)?;
        let drive = Drives::open(
            self.registry.drives(),
            backing.file().id(),
            opening.wwid,
            opening.keep,
            opening.reservations.as_deref(),
        )?;
        let drive = Arc::new(drive, GFP_KERNEL).map_err(|e| ("out of memory", e.into()))?;
        Ok(backing.reserved_by(drive))
    }

    /// Ends the export and every session on it, and waits until the device or file is closed. Does
    /// nothing if the volume is not exported.
    pub(crate) fn disable(&self) -> Result {
        let exported = {
            let mut state = self.state.lock();
            match state.export {
                Export::Disabled => return Ok(()),
                Export::Opening | Export::Withdrawn => return Err(EBUSY),
                Export::Exported { .. } => core::mem::replace(&mut state.export, Export::Withdrawn),
            }
        };
        // No session begins from now on: a session that is just beginning checks the state again
        // once it is listed.
        let of_volume = |attachment: &Attachment| attachment.is_of(self);
        self.registry
            .end_attachments(EndReason::Withdrawn, &of_volume);
        self.registry.wait_for_ends(&of_volume);
        if let Export::Exported {
            backing,
            ends,
            closed,
            ..
        } = exported
        {
            drop(backing);
            // A session that was refused may still hold a reference.
            while closed.wait_ms(CLOSE_LOG_MS).is_err() {
                pr_warn!("{self}: still waiting for a refused session to release the drive\n");
            }
            // The end of that session has begun, so no more work is queued. Draining here ensures
            // that the workqueue is not destroyed by its own work.
            ends.drain();
        }
        self.state.lock().export = Export::Disabled;
        pr_info!("{self}: no longer exported\n");
        Ok(())
    }

    /// Calls `f` with the volume's backing while it is exported, under the volume's lock. Takes no
    /// reference, which might be the last one and close the device.
    pub(crate) fn with_backing<R>(&self, f: impl FnOnce(&Backing) -> R) -> Option<R> {
        match &self.state.lock().export {
            Export::Exported { backing, .. } => Some(f(backing)),
            _ => None,
        }
    }

    /// Returns the volume's backing and geometry while it is exported.
    pub(crate) fn backing(&self) -> Option<(Arc<Backing>, Geometry)> {
        let Exported {
            backing, geometry, ..
        } = self.export()?;
        Some((backing, geometry))
    }

    /// Returns the parts of the export that a session uses, while the volume is exported.
    pub(crate) fn export(&self) -> Option<Exported> {
        let state = self.state.lock();
        let Export::Exported {
            backing,
            records,
            ends,
            ..
        } = &state.export
        else {
            return None;
        };
        let geometry = Geometry {
            // Whether the drive refuses writes is checked on each use.
            read_only: state.read_only,
            ..backing.geometry(state.read_only)?
        };
        Some(Exported {
            backing: backing.clone(),
            geometry,
            records: records.clone(),
            ends: ends.clone(),
        })
    }
}
