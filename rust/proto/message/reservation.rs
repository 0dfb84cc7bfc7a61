// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Persistent reservations, as requested on a session's admin queue pair: the operations and types
//! of SPC-4 and NVMe.

/// How a reservation shares a drive. The numbers are those of `enum pr_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReservationType {
    /// The holder writes, all read.
    WriteExclusive = 1,
    /// The holder writes and reads.
    ExclusiveAccess = 2,
    /// Registrants write, all read.
    WriteExclusiveRegistrants = 3,
    /// Registrants write and read.
    ExclusiveAccessRegistrants = 4,
    /// Registrants write, all read; each registrant is a holder.
    WriteExclusiveAll = 5,
    /// Registrants write and read; each registrant is a holder.
    ExclusiveAccessAll = 6,
}

impl ReservationType {
    /// Reads a type off the wire or from a file; `None`: there is no such type.
    pub fn from_wire(value: u32) -> Option<Self> {
        Some(match value {
            1 => Self::WriteExclusive,
            2 => Self::ExclusiveAccess,
            3 => Self::WriteExclusiveRegistrants,
            4 => Self::ExclusiveAccessRegistrants,
            5 => Self::WriteExclusiveAll,
            6 => Self::ExclusiveAccessAll,
            _ => return None,
        })
    }

    /// Returns whether each registrant holds such a reservation.
    pub fn is_all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAll | Self::ExclusiveAccessAll)
    }

    /// Returns whether registrants have the rights of a holder.
    pub fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Returns whether only hosts with the rights of a holder may read.
    pub fn excludes_reads(self) -> bool {
        matches!(
            self,
            Self::ExclusiveAccess | Self::ExclusiveAccessRegistrants | Self::ExclusiveAccessAll
        )
    }
}

/// A change of a drive's reservations. `key` is the key with which the host is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationOp {
    /// Register the host with the key `new`, replace its key with that, or, if `new` is 0, end its
    /// registration.
    Register {
        /// Its key until now, 0 if it has none.
        key: u64,
        /// Its key from now on.
        new: u64,
        /// Ignore the host's present key.
        ignore: bool,
    },
    /// Take the reservation.
    Reserve {
        /// The key with which the host is registered.
        key: u64,
        /// How the drive is shared.
        how: ReservationType,
    },
    /// Release the reservation.
    Release {
        /// The key with which the host is registered.
        key: u64,
        /// The type that it has.
        how: ReservationType,
    },
    /// End the registrations with the key `victim`, and take the reservation if one of them holds
    /// it. The response comes when no request of these hosts can reach the drive.
    Preempt {
        /// The key with which the host is registered.
        key: u64,
        /// The key of the hosts whose registrations end; 0: those of all other hosts, if all
        /// registrants hold the reservation.
        victim: u64,
        /// How the drive is shared, if the reservation is taken.
        how: ReservationType,
        /// The host also asked to abort the requests of the victims. Both forms do the same here.
        abort: bool,
    },
    /// End all registrations and the reservation.
    Clear {
        /// The key with which the host is registered.
        key: u64,
    },
}

const REGISTER: u8 = 0x30;
const RESERVE: u8 = 0x31;
const RELEASE: u8 = 0x32;
const PREEMPT: u8 = 0x33;
const CLEAR: u8 = 0x34;
pub(super) const READ_KEY: u8 = 0x35;
pub(super) const READ_RESERVATION: u8 = 0x36;

/// A flag: of a registration, ignore the present key; of a preemption, abort.
const FLAG: u32 = 1 << 8;

/// Returns whether a request of this opcode changes or reads reservations.
pub(super) fn is_reservation(opcode: u8) -> bool {
    matches!(opcode, REGISTER..=READ_RESERVATION)
}

impl ReservationOp {
    /// Returns opcode, first key, flags and second key.
    pub(super) fn encode(self) -> (u8, u64, u32, u64) {
        match self {
            Self::Register { key, new, ignore } => (REGISTER, key, u32::from(ignore) << 8, new),
            Self::Reserve { key, how } => (RESERVE, key, how as u32, 0),
            Self::Release { key, how } => (RELEASE, key, how as u32, 0),
            Self::Preempt {
                key,
                victim,
                how,
                abort,
            } => (
                PREEMPT,
                key,
                how as u32 | if abort { FLAG } else { 0 },
                victim,
            ),
            Self::Clear { key } => (CLEAR, key, 0, 0),
        }
    }

    /// Decodes a reservation request; `None`: there is no such operation.
    pub(super) fn decode(opcode: u8, key: u64, flags: u32, second: u64) -> Option<Self> {
        let how = || ReservationType::from_wire(flags & !FLAG);
        Some(match (opcode, flags, second) {
            (REGISTER, 0 | FLAG, new) => Self::Register {
                key,
                new,
                ignore: flags == FLAG,
            },
            (RESERVE, ..FLAG, 0) => Self::Reserve { key, how: how()? },
            (RELEASE, ..FLAG, 0) => Self::Release { key, how: how()? },
            (PREEMPT, _, victim) => Self::Preempt {
                key,
                victim,
                how: how()?,
                abort: flags & FLAG != 0,
            },
            (CLEAR, 0, 0) => Self::Clear { key },
            _ => return None,
        })
    }
}

/// A target's report of a drive's reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationInfo {
    /// How often registrations were changed, modulo 2^32.
    pub generation: u32,
    /// How many hosts are registered; or the type of the reservation, 0 if there is none.
    pub number: u16,
    /// A registrant's key, or a holder's; 0: there is none.
    pub key: u64,
}
