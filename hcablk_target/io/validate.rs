// SPDX-License-Identifier: GPL-2.0

//! Checks a request against its volume. Uses nothing but `core` and the wire format: its tests run
//! on the host.

use crate::proto::{
    connect::Geometry,
    message::{
        Extent,
        Op,
        Status, //
    },
};

/// Maximum number of bytes that one request may discard or zero under the drive's current limits;
/// 0: not supported.
#[derive(Clone, Copy, Default)]
pub(crate) struct Emptied {
    pub(crate) by_discard: u32,
    pub(crate) by_zeroes: u32,
}

/// Checks a request against the geometry that was reported to the session. Values that may have
/// changed since are passed as they are now: the size (`capacity` bytes, without an incomplete last
/// block), whether the drive `refuses_writes`, and the limits for discards and zeroes, which are
/// read only if needed. The target must check these itself: the block layer does not check all of
/// them for a bio.
#[inline(always)]
pub(crate) fn check(
    op: &Op,
    geometry: &Geometry,
    capacity: u64,
    refuses_writes: impl Fn() -> bool,
    emptied: impl Fn() -> Emptied,
) -> Result<(), Status> {
    let read_only = || geometry.read_only || refuses_writes();
    match op {
        Op::Read(extent, _) => fits(extent, geometry, capacity),
        Op::Write { extent, .. }
        | Op::WriteInline { extent, .. }
        | Op::WriteEager { extent, .. } => check_write(extent, geometry, capacity, refuses_writes),
        Op::Flush | Op::Nop => Ok(()),
        Op::Discard(extent) => {
            check_emptied(extent, emptied().by_discard, geometry, capacity, read_only)
        }
        Op::WriteZeroes { extent, .. } => {
            check_emptied(extent, emptied().by_zeroes, geometry, capacity, read_only)
        }
    }
}

/// Checks a write to these blocks as [`check`] does.
#[inline(always)]
pub(crate) fn check_write(
    extent: &Extent,
    geometry: &Geometry,
    capacity: u64,
    refuses_writes: impl Fn() -> bool,
) -> Result<(), Status> {
    if geometry.read_only || refuses_writes() {
        return Err(Status::ReadOnly);
    }
    fits(extent, geometry, capacity)
}

/// Checks a discard or a write of zeroes, with a limit of `max` bytes. The initiator may know a
/// former, larger limit; a longer request then fails as unsupported, and the initiator stops
/// sending such requests.
#[inline(never)]
fn check_emptied(
    extent: &Extent,
    max: u32,
    geometry: &Geometry,
    capacity: u64,
    read_only: impl Fn() -> bool,
) -> Result<(), Status> {
    if max == 0 {
        return Err(Status::Unsupported);
    }
    if read_only() {
        return Err(Status::ReadOnly);
    }
    within(extent, u32::MAX, geometry, capacity)?;
    match extent.length > max {
        true => Err(Status::Unsupported),
        false => Ok(()),
    }
}

#[inline(always)]
fn fits(extent: &Extent, geometry: &Geometry, capacity: u64) -> Result<(), Status> {
    within(extent, geometry.max_transfer, geometry, capacity)
}

#[inline(always)]
fn within(extent: &Extent, max: u32, geometry: &Geometry, capacity: u64) -> Result<(), Status> {
    let block = (1u64 << geometry.logical_block_shift) - 1;
    let end = extent
        .offset
        .checked_add(extent.length.into())
        .ok_or(Status::OutOfRange)?;
    if extent.length == 0 || extent.length > max {
        return Err(Status::Invalid);
    }
    if (extent.offset | u64::from(extent.length)) & block != 0 || end > capacity {
        return Err(Status::OutOfRange);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::message::{Remote, ResponseKind};

    const CAPACITY: u64 = 1 << 20;

    /// Checks a request for a drive that accepts writes.
    fn check(op: &Op, geometry: &Geometry, capacity: u64) -> Result<(), Status> {
        super::check(op, geometry, capacity, || false, || emptied(geometry))
    }

    /// Returns the limits of a drive that are unchanged since the session began.
    fn emptied(geometry: &Geometry) -> Emptied {
        Emptied {
            by_discard: geometry.max_discard,
            by_zeroes: geometry.max_zeroes,
        }
    }

    fn geometry() -> Geometry {
        Geometry {
            capacity: CAPACITY,
            logical_block_shift: 12,
            physical_block_shift: 12,
            read_only: false,
            write_cache: false,
            fua: false,
            max_transfer: 1 << 16,
            max_discard: 1 << 19,
            discard_granularity: 4096,
            max_zeroes: 0,
        }
    }

    fn read(offset: u64, length: u32) -> Op {
        let remote = Remote {
            address: 0,
            key: 0,
            response: ResponseKind::Message,
        };
        Op::Read(Extent { offset, length }, remote)
    }

    /// Returns every operation that names blocks, with these blocks: its name, and whether it
    /// changes them.
    fn operations(offset: u64, length: u32) -> [(&'static str, bool, Op); 6] {
        let extent = Extent { offset, length };
        let remote = Remote {
            address: 0,
            key: 0,
            response: ResponseKind::Message,
        };
        let fua = false;
        [
            ("read", false, Op::Read(extent, remote)),
            (
                "write with a key",
                true,
                Op::Write {
                    extent,
                    remote,
                    fua,
                    atomic: false,
                },
            ),
            ("inline write", true, Op::WriteInline { extent, fua }),
            ("eager write", true, Op::WriteEager { extent, fua }),
            ("discard", true, Op::Discard(extent)),
            (
                "write zeroes",
                true,
                Op::WriteZeroes {
                    extent,
                    keep: false,
                },
            ),
        ]
    }

    /// Returns a geometry in which every operation is limited to 64 KiB, so that one table serves
    /// all operations.
    fn same_limits() -> Geometry {
        Geometry {
            max_discard: 1 << 16,
            max_zeroes: 1 << 16,
            ..geometry()
        }
    }

    #[test]
    fn an_extent_inside_the_volume_passes_for_every_operation() {
        for (offset, length) in [(0, 4096), (0, 1 << 16), (CAPACITY - 4096, 4096)] {
            for (what, _, op) in operations(offset, length) {
                let result = check(&op, &same_limits(), CAPACITY);
                assert_eq!(result, Ok(()), "{what} {offset} {length}");
            }
        }
        assert_eq!(check(&Op::Flush, &geometry(), CAPACITY), Ok(()));
    }

    #[test]
    fn every_operation_outside_the_volume_is_refused() {
        for (offset, length, status) in [
            (0, 0, Status::Invalid),
            (0, (1 << 16) + 4096, Status::Invalid),
            (512, 4096, Status::OutOfRange),
            (0, 512, Status::OutOfRange),
            (CAPACITY, 4096, Status::OutOfRange),
            (CAPACITY - 4096, 8192, Status::OutOfRange),
            (u64::MAX - 4095, 4096, Status::OutOfRange),
            (u64::MAX, u32::MAX, Status::OutOfRange),
        ] {
            for (what, _, op) in operations(offset, length) {
                // For discards and zeroes too long means unsupported.
                let status = match op {
                    Op::Discard(_) | Op::WriteZeroes { .. } if length == (1 << 16) + 4096 => {
                        Status::Unsupported
                    }
                    _ => status,
                };
                let result = check(&op, &same_limits(), CAPACITY);
                assert_eq!(result, Err(status), "{what} {offset} {length}");
            }
        }
    }

    #[test]
    fn a_read_only_volume_is_changed_by_no_operation() {
        let read_only = Geometry {
            read_only: true,
            ..same_limits()
        };
        // Also for blocks that do not exist: the protocol checks first whether writes are refused.
        for (offset, length) in [(0, 4096), (CAPACITY, 4096), (512, 512)] {
            for (what, changes, op) in operations(offset, length) {
                if changes {
                    let result = check(&op, &read_only, CAPACITY);
                    assert_eq!(result, Err(Status::ReadOnly), "{what} {offset} {length}");
                }
            }
        }
        assert_eq!(check(&read(0, 4096), &read_only, CAPACITY), Ok(()));
    }

    #[test]
    fn a_drive_that_became_read_only_is_changed_by_no_operation() {
        for (offset, length) in [(0, 4096), (CAPACITY, 4096), (512, 512)] {
            for (what, changes, op) in operations(offset, length) {
                let now = super::check(
                    &op,
                    &same_limits(),
                    CAPACITY,
                    || true,
                    || emptied(&same_limits()),
                );
                let wanted = match changes {
                    true => Err(Status::ReadOnly),
                    false => check(&op, &same_limits(), CAPACITY),
                };
                assert_eq!(now, wanted, "{what} {offset} {length}");
            }
        }
        let (_, _, discard) = operations(0, 4096)
            .into_iter()
            .find(|(what, ..)| *what == "discard")
            .unwrap();
        let none = Geometry {
            max_discard: 0,
            ..geometry()
        };
        assert_eq!(
            super::check(&discard, &none, CAPACITY, || true, || emptied(&none)),
            Err(Status::Unsupported)
        );
    }

    #[test]
    fn discards_have_limits_of_their_own() {
        let discard = |offset, length| Op::Discard(Extent { offset, length });
        let zeroes = Op::WriteZeroes {
            extent: Extent {
                offset: 0,
                length: 4096,
            },
            keep: false,
        };
        assert_eq!(check(&discard(0, 1 << 19), &geometry(), CAPACITY), Ok(()));
        for (offset, length, status) in [
            (0, (1 << 19) + 4096, Status::Unsupported),
            (0, 0, Status::Invalid),
            (512, 4096, Status::OutOfRange),
            (0, 512, Status::OutOfRange),
            ((1 << 20) - 4096, 8192, Status::OutOfRange),
            (u64::MAX, 4096, Status::OutOfRange),
        ] {
            assert_eq!(
                check(&discard(offset, length), &geometry(), CAPACITY),
                Err(status),
                "{offset} {length}"
            );
        }
        assert_eq!(
            check(&zeroes, &geometry(), CAPACITY),
            Err(Status::Unsupported)
        );
        let read_only = Geometry {
            read_only: true,
            max_zeroes: 4096,
            ..geometry()
        };
        for op in [discard(0, 4096), zeroes] {
            assert_eq!(check(&op, &read_only, CAPACITY), Err(Status::ReadOnly));
        }
    }

    #[test]
    fn discards_and_zeroes_are_checked_against_the_drives_current_limits() {
        for (length, now, wanted) in [
            (4096, 4096, Ok(())),
            (8192, 4096, Err(Status::Unsupported)),
            (4096, 0, Err(Status::Unsupported)),
            ((1 << 16) + 4096, 1 << 17, Ok(())),
        ] {
            let now = || Emptied {
                by_discard: now,
                by_zeroes: now,
            };
            for (what, _, op) in operations(0, length) {
                if matches!(op, Op::Discard(_) | Op::WriteZeroes { .. }) {
                    let result = super::check(&op, &same_limits(), CAPACITY, || false, now);
                    assert_eq!(result, wanted, "{what} of {length}");
                }
            }
        }
    }

    #[test]
    fn a_part_of_a_block_at_the_end_is_not_readable() {
        let last = read(CAPACITY - 4096, 4096);
        let size = CAPACITY + 512;
        assert_eq!(check(&last, &geometry(), size), Ok(()));
        for (offset, length) in [(CAPACITY, 4096), (CAPACITY, 512), (CAPACITY - 4096, 4608)] {
            let beyond = read(offset, length);
            assert_eq!(check(&beyond, &geometry(), size), Err(Status::OutOfRange));
        }
    }

    #[test]
    fn requests_are_checked_against_the_current_size() {
        let last = read(CAPACITY - 4096, 4096);
        let next = read(CAPACITY, 4096);
        assert_eq!(check(&next, &geometry(), CAPACITY + 4096), Ok(()));
        assert_eq!(
            check(&last, &geometry(), CAPACITY - 4096),
            Err(Status::OutOfRange)
        );
        assert_eq!(check(&last, &geometry(), 0), Err(Status::OutOfRange));
        assert_eq!(check(&Op::Nop, &geometry(), 0), Ok(()));
    }
}
