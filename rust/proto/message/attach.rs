// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Attaching volumes to a session, on its admin queue pair: the initiator's request, and the
//! target's description of the volume.

use super::{
    super::{
        connect::{Epoch, ExportInstance, Geometry, Reason, SessionId},
        name::{VolumeId, VolumeName},
        wire::{prefix, Reader, Writer},
        ATTACHED_MAX,
    },
    Handle, Tag, BUFFER_LEN, REQUEST_LEN,
};

pub(super) const ATTACH: u8 = 0x26;
pub(super) const RESPONSE: u8 = 0x85;

/// A flag of a request: the disk continues the writes of its former epochs.
const RESUME: u8 = 1 << 0;

/// Flags of a response.
const READ_ONLY: u8 = 1 << 0;
const WRITE_CACHE: u8 = 1 << 1;
const FUA: u8 = 1 << 2;
const KNOWN: u8 = READ_ONLY | WRITE_CACHE | FUA;

/// A request to attach a volume to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach {
    /// The volume.
    pub volume: VolumeName,
    /// The disk: this id and its epoch distinguish its attachments at the target.
    pub disk: SessionId,
    /// How often the disk was attached on this path, from 1.
    pub epoch: Epoch,
    /// A flush must cover the writes of the disk's former epochs, and end with their unreported
    /// errors. Otherwise the disk starts without earlier writes.
    pub resume: bool,
}

impl Attach {
    pub(super) fn encode(&self, tag: Tag) -> [u8; REQUEST_LEN] {
        Writer::new()
            .u8(ATTACH)
            .u8(if self.resume { RESUME } else { 0 })
            .u16(0)
            .u16(tag.index)
            .u16(tag.generation)
            .u64(self.disk.0)
            .u32(self.epoch.0)
            .u32(0)
            .bytes(self.volume.to_wire())
            .finish()
    }

    /// Reads such a request; `None` if it is not valid, which ends the session.
    pub(super) fn decode(bytes: &[u8; REQUEST_LEN]) -> Option<(Tag, Self)> {
        let mut r = Reader::new(bytes);
        let (opcode, flags, reserved) = (r.u8(), r.u8(), r.u16());
        let tag = Tag {
            index: r.u16(),
            generation: r.u16(),
        };
        let (disk, epoch) = (SessionId(r.u64()), Epoch(r.u32()));
        let good = opcode == ATTACH
            && flags & !RESUME == 0
            && reserved == 0
            && r.u32() == 0
            && disk.0 != 0
            && epoch.0 != 0;
        let attach = Self {
            volume: VolumeName::from_wire(r.bytes()).ok()?,
            disk,
            epoch,
            resume: flags & RESUME != 0,
        };
        good.then_some((tag, attach))
    }
}

/// A volume that was attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The number of the volume in later messages, below [`ATTACHED_MAX`].
    pub handle: Handle,
    /// The volume. Its largest data length is at most that of the session.
    pub geometry: Geometry,
    /// Identity of the volume, independent of its name, if the target has one for it.
    pub id: Option<VolumeId>,
    /// Identity of the target's memory of the disk's writes; `None` if it does not report one.
    pub instance: Option<ExportInstance>,
}

/// Bytes of a response.
pub(super) const RESPONSE_LEN: usize = BUFFER_LEN;

/// Encodes the response to the request `tag`.
pub(super) fn encode(tag: Tag, outcome: &Result<Attached, Reason>) -> [u8; RESPONSE_LEN] {
    let mut writer = Writer::new();
    writer.u8(RESPONSE);
    let Ok(attached) = outcome else {
        let reason = outcome.err().map_or(0, |reason| reason as u16);
        return writer
            .u8(0)
            .u16(0)
            .u16(tag.index)
            .u16(tag.generation)
            .u16(reason)
            .bytes([0; RESPONSE_LEN - 10])
            .finish();
    };
    let g = &attached.geometry;
    let mut flags = 0;
    for (set, bit) in [
        (g.read_only, READ_ONLY),
        (g.write_cache, WRITE_CACHE),
        (g.fua, FUA),
    ] {
        if set {
            flags |= bit;
        }
    }
    writer
        .u8(flags)
        .u16(attached.handle.0)
        .u16(tag.index)
        .u16(tag.generation)
        .u16(0)
        .u8(g.logical_block_shift)
        .u8(g.physical_block_shift)
        .u32(g.max_transfer)
        .u64(g.capacity)
        .u32(g.max_discard)
        .u32(g.discard_granularity)
        .u32(g.max_zeroes)
        .bytes(attached.id.map_or([0; 16], VolumeId::to_wire))
        .u64(attached.instance.map_or(0, ExportInstance::number))
        .u32(0)
        .finish()
}

/// Reads such a response; `None`: the peer does not speak this protocol, and the session ends.
pub(super) fn decode(bytes: &[u8]) -> Option<(Tag, Result<Attached, Reason>)> {
    if bytes.len() != RESPONSE_LEN {
        return None;
    }
    let bytes: &[u8; RESPONSE_LEN] = prefix(bytes)?;
    let mut r = Reader::new(bytes);
    let (opcode, flags, handle) = (r.u8(), r.u8(), Handle(r.u16()));
    let tag = Tag {
        index: r.u16(),
        generation: r.u16(),
    };
    let reason = r.u16();
    if opcode != RESPONSE {
        return None;
    }
    if reason != 0 {
        let rest: [u8; RESPONSE_LEN - 10] = r.bytes();
        let bare = flags == 0 && handle == Handle::FIRST && rest == [0; RESPONSE_LEN - 10];
        return bare.then_some((tag, Err(Reason::from_wire(reason)?)));
    }
    let (logical_block_shift, physical_block_shift) = (r.u8(), r.u8());
    let (max_transfer, capacity) = (r.u32(), r.u64());
    let geometry = Geometry {
        capacity,
        logical_block_shift,
        physical_block_shift,
        read_only: flags & READ_ONLY != 0,
        write_cache: flags & WRITE_CACHE != 0,
        fua: flags & FUA != 0,
        max_transfer,
        max_discard: r.u32(),
        discard_granularity: r.u32(),
        max_zeroes: r.u32(),
    };
    let attached = Attached {
        handle,
        geometry,
        id: VolumeId::from_wire(r.bytes()).ok(),
        instance: ExportInstance::from_number(r.u64()),
    };
    let good = flags & !KNOWN == 0
        && handle.0 < ATTACHED_MAX
        && r.u32() == 0
        && geometry.is_sound(super::super::TRANSFER_MAX);
    good.then_some((tag, Ok(attached)))
}
