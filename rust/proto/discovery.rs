// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The questions of a host to a target before it connects to a volume: which volumes it may use,
//! and at which addresses the target listens.
//!
//! A question is a connection request without a volume's name. The target's reply is a reject, so
//! that the target allocates nothing for a question. A question is for one entry of a list; the
//! reply has the number of entries and the revision of the list.

use core::net::{IpAddr, Ipv6Addr};

use super::{
    connect::{Reason, REQUEST_LEN},
    name::{HostId, VolumeId, VolumeName},
    wire::{prefix, Reader, Writer},
    ADMIN_QUEUE, MAGIC, VERSION_MAX, VERSION_MIN,
};

/// Bytes of a reply.
pub const ENTRY_LEN: usize = 64;

/// The list that a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Volumes that the host may use.
    Volumes,
    /// Addresses of the target.
    Portals,
}

impl List {
    /// Returns the bytes in place of a volume's name, which never begins with a dot.
    fn name(self) -> [u8; 8] {
        match self {
            Self::Volumes => *b".volumes",
            Self::Portals => *b".portals",
        }
    }

    fn from_name(name: [u8; 8]) -> Option<Self> {
        [Self::Volumes, Self::Portals]
            .into_iter()
            .find(|list| list.name() == name)
    }
}

/// A question for one entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Lowest version spoken.
    pub version_min: u8,
    /// Highest version spoken.
    pub version_max: u8,
    /// The requesting host.
    pub host: HostId,
    /// The list.
    pub list: List,
    /// The index of the entry, from 0.
    pub index: u32,
}

/// The values in place of depth, queue and number of queues, since nothing will be connected. No
/// session has number 0.
const NOTHING: (u16, u8, u8) = (1, ADMIN_QUEUE, 1);

impl Question {
    /// Encodes the question.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let (depth, queue, queues) = NOTHING;
        Writer::new()
            .u32(MAGIC)
            .u8(self.version_min)
            .u8(self.version_max)
            .u16(depth)
            .u8(queue)
            .u8(queues)
            .u16(0)
            .u64(0)
            .u32(0)
            .bytes(self.host.to_wire())
            .bytes(self.list.name())
            .u32(self.index)
            .u32(0)
            .finish()
    }

    /// Decodes a question; `None` if it is not a question; it may be another kind of request.
    pub fn decode(bytes: &[u8; REQUEST_LEN]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        let magic = r.u32();
        let (version_min, version_max) = (r.u8(), r.u8());
        let nothing = (r.u16(), r.u8(), r.u8());
        let (length, session, epoch) = (r.u16(), r.u64(), r.u32());
        let host = HostId::from_wire(r.bytes()).ok()?;
        let list = List::from_name(r.bytes())?;
        let (index, reserved) = (r.u32(), r.u32());
        let good = magic == MAGIC
            && version_min <= version_max
            && version_min <= VERSION_MAX
            && version_max >= VERSION_MIN
            && nothing == NOTHING
            && (length, session, epoch, reserved) == (0, 0, 0, 0);
        good.then_some(Self {
            version_min,
            version_max,
            host,
            list,
            index,
        })
    }
}

/// How a target accesses a volume's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum VolumeMode {
    /// Between drive and network.
    Direct = 0,
    /// Through the page cache.
    Cached = 1,
    /// Reads through the page cache.
    Mixed = 2,
    /// Between drive and HCA, without the target's memory.
    P2p = 3,
}

impl VolumeMode {
    fn from_wire(value: u8) -> Option<Self> {
        [Self::Direct, Self::Cached, Self::Mixed, Self::P2p]
            .into_iter()
            .find(|mode| *mode as u8 == value)
    }
}

const READ_ONLY: u8 = 1 << 0;
const EVICTED: u8 = 1 << 1;
const INSECURE: u8 = 1 << 2;

/// A volume that the host may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Its name.
    pub name: VolumeName,
    /// Identity of the volume, independent of its name.
    pub id: Option<VolumeId>,
    /// Bytes; 0: the drive does not report its size.
    pub capacity: u64,
    /// log2 of the logical block size in bytes, 9 to 12.
    pub block_shift: u8,
    /// Writes are refused.
    pub read_only: bool,
    /// The host is evicted from it.
    pub evicted: bool,
    /// The host need not prove who it is.
    pub insecure: bool,
    /// How the target accesses the data.
    pub mode: VolumeMode,
}

/// Where a target listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortalEntry {
    /// Its address, never the unspecified one (`0.0.0.0`, `::`).
    pub ip: IpAddr,
    /// Not 0.
    pub port: u16,
}

/// An entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An entry of [`List::Volumes`].
    Volume(VolumeEntry),
    /// An entry of [`List::Portals`].
    Portal(PortalEntry),
}

/// A target's reply to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveryReply {
    /// How many entries the list has.
    pub count: u32,
    /// A number that changes when the list does, with a probability of 1 - 2^-32. Not 0.
    pub revision: u32,
    /// The requested entry; `None`: the list is shorter.
    pub entry: Option<Entry>,
}

/// An entry on the wire.
type Fields = ([u8; 16], [u8; 16], u64, [u8; 8]);

const NO_ENTRY: Fields = ([0; 16], [0; 16], 0, [0; 8]);

/// The error of an entry whose reserved bytes are not 0.
const RESERVED: &str = "reserved bytes are not 0";

impl Entry {
    fn fields(&self) -> Fields {
        match self {
            Self::Volume(volume) => {
                let mut flags = 0;
                for (set, bit) in [
                    (volume.read_only, READ_ONLY),
                    (volume.evicted, EVICTED),
                    (volume.insecure, INSECURE),
                ] {
                    if set {
                        flags |= bit;
                    }
                }
                let (shift, mode) = (volume.block_shift, volume.mode as u8);
                let id = volume.id.map_or([0; 16], VolumeId::to_wire);
                let rest = [shift, flags, mode, 0, 0, 0, 0, 0];
                (volume.name.to_wire(), id, volume.capacity, rest)
            }
            Self::Portal(PortalEntry { ip, port }) => {
                let ip = match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => *ip,
                };
                (ip.octets(), [0; 16], u64::from(*port), [0; 8])
            }
        }
    }

    /// Decodes an entry of `list`. Fails with the reason.
    fn from_fields(list: List, fields: Fields) -> Result<Self, &'static str> {
        match list {
            List::Volumes => Self::volume(fields).map(Self::Volume),
            List::Portals => Self::portal(fields).map(Self::Portal),
        }
    }

    fn volume((name, id, capacity, rest): Fields) -> Result<VolumeEntry, &'static str> {
        let [block_shift, flags, mode, reserved @ ..] = rest;
        let name = VolumeName::from_wire(name).map_err(|_| "the volume's name is invalid")?;
        if !(9..=12).contains(&block_shift) {
            return Err("the volume's block size is invalid");
        }
        if capacity > i64::MAX as u64 || capacity % (1 << block_shift) != 0 {
            return Err("the volume's size is invalid");
        }
        if flags & !(READ_ONLY | EVICTED | INSECURE) != 0 {
            return Err("the volume has unknown flags");
        }
        let mode = VolumeMode::from_wire(mode).ok_or("the volume's mode is invalid")?;
        if reserved != [0; 5] {
            return Err(RESERVED);
        }
        Ok(VolumeEntry {
            name,
            id: VolumeId::from_wire(id).ok(),
            capacity,
            block_shift,
            read_only: flags & READ_ONLY != 0,
            evicted: flags & EVICTED != 0,
            insecure: flags & INSECURE != 0,
            mode,
        })
    }

    fn portal((ip, second, port, rest): Fields) -> Result<PortalEntry, &'static str> {
        let ip = Ipv6Addr::from(ip).to_canonical();
        if ip.is_unspecified() {
            return Err("the portal's address is invalid");
        }
        let port = u16::try_from(port).ok().filter(|port| *port != 0);
        let port = port.ok_or("the portal's port is invalid")?;
        if (second, rest) != ([0; 16], [0; 8]) {
            return Err(RESERVED);
        }
        Ok(PortalEntry { ip, port })
    }
}

impl DiscoveryReply {
    /// Encodes the reply.
    pub fn encode(&self) -> [u8; ENTRY_LEN] {
        let (first, second, number, rest) = self.entry.map_or(NO_ENTRY, |entry| entry.fields());
        Writer::new()
            .u32(MAGIC)
            .u16(Reason::Entry as u16)
            .u8(VERSION_MIN)
            .u8(VERSION_MAX)
            .u32(self.count)
            .u32(self.revision)
            .bytes(first)
            .bytes(second)
            .u64(number)
            .bytes(rest)
            .finish()
    }

    /// Decodes the reply to `question`. Fails with the reason.
    pub fn decode(bytes: &[u8], question: &Question) -> Result<Self, &'static str> {
        let bytes: &[u8; ENTRY_LEN] = prefix(bytes).ok_or("it is too short")?;
        let mut r = Reader::new(bytes);
        let (magic, reason) = (r.u32(), r.u16());
        let (_version_min, _version_max) = (r.u8(), r.u8());
        let (count, revision) = (r.u32(), r.u32());
        let fields = (r.bytes(), r.bytes(), r.u64(), r.bytes());
        if magic != MAGIC || Reason::from_wire(reason) != Some(Reason::Entry) {
            return Err("it is not an entry");
        }
        // A transport may pad a shorter message with zeroes: then the revision is 0.
        if revision == 0 {
            return Err("the list has no revision");
        }
        let entry = match (question.index < count, fields == NO_ENTRY) {
            (true, false) => Some(Entry::from_fields(question.list, fields)?),
            (false, true) => None,
            (true, true) => return Err("an entry is missing"),
            (false, false) => return Err("there is an entry beyond the last one"),
        };
        Ok(Self {
            count,
            revision,
            entry,
        })
    }
}

/// Computes the revision of a list and finds one of its entries, for the reply to a question.
pub struct Listing {
    index: u32,
    reply: DiscoveryReply,
}

impl Listing {
    /// Creates the state before the first entry, for the reply to `question`.
    pub fn new(question: &Question) -> Self {
        Self {
            index: question.index,
            reply: DiscoveryReply {
                count: 0,
                revision: 0x811c_9dc5,
                entry: None,
            },
        }
    }

    /// Adds the next entry. The revision is the FNV-1a of all bytes of all entries.
    pub fn add(&mut self, entry: Entry) {
        let (first, second, number, rest) = entry.fields();
        let number = number.to_le_bytes();
        let bytes = first.iter().chain(&second).chain(&number).chain(&rest);
        let reply = &mut self.reply;
        for byte in bytes {
            reply.revision = (reply.revision ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
        if reply.count == self.index {
            reply.entry = Some(entry);
        }
        reply.count = reply.count.saturating_add(1);
    }

    /// Returns the reply.
    pub fn into_reply(self) -> DiscoveryReply {
        DiscoveryReply {
            revision: self.reply.revision.max(1),
            ..self.reply
        }
    }
}

#[cfg(test)]
mod tests;
