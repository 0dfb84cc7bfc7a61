// SPDX-License-Identifier: GPL-2.0

//! Computes how much memory is shared, and the lengths of its buffers. Uses nothing but `core` and
//! the wire format: its tests run on the host.
//!
//! A *size class* has buffers of one length. A request takes buffers of one size class, preferably
//! of the one that fits its length; the unused rest of the last buffer is wasted for that time.
//! Buffers are never divided or merged, so no load leaves memory behind that another load could not
//! use.

use crate::proto::{
    TRANSFER_MAX,
    TRANSFER_USUAL, //
};

/// Bytes of a page.
const PAGE: usize = 4096;
/// log2 of the pages of a buffer, for each size class.
pub(crate) const ORDERS: [u32; SIZE_CLASSES] = [0, 3, 5];
/// The number of size classes.
pub(crate) const SIZE_CLASSES: usize = 3;
/// The size class for requests of up to one page.
pub(crate) const SMALL: usize = 0;
/// The size class for requests of medium length; every request can use it.
pub(crate) const MEDIUM: usize = 1;
/// The size class for requests that fill such a buffer.
pub(crate) const LARGE: usize = 2;

/// Returns log2 of the bytes of a buffer.
#[inline]
pub(crate) const fn shift_of(size_class: usize) -> u32 {
    PAGE.trailing_zeros()
        + match size_class {
            SMALL => ORDERS[SMALL],
            MEDIUM => ORDERS[MEDIUM],
            _ => ORDERS[LARGE],
        }
}

/// Returns the bytes of a buffer.
#[inline]
pub(crate) const fn length_of(size_class: usize) -> usize {
    1 << shift_of(size_class)
}

/// log2 of the pages of a queue's own buffers.
pub(crate) const BUFFER_ORDER: u32 = ORDERS[MEDIUM];
/// Bytes of a queue's own buffers.
pub(crate) const BUFFER_BYTES: usize = length_of(MEDIUM);
/// The most of these buffers that a request of any size needs.
pub(crate) const BUFFERS_MAX: usize = (TRANSFER_MAX as usize).div_ceil(BUFFER_BYTES);
/// The most of these buffers that a request of the usual largest size needs.
pub(crate) const BUFFERS_USUAL: usize = (TRANSFER_USUAL as usize).div_ceil(BUFFER_BYTES);

/// Pages of a buffer, for each size class.
pub(crate) const PAGES: [u32; SIZE_CLASSES] =
    [1 << ORDERS[SMALL], 1 << ORDERS[MEDIUM], 1 << ORDERS[LARGE]];

/// Returns the size class that fits a request of `length` bytes.
#[inline]
pub(crate) const fn class_for(length: usize) -> usize {
    if length <= length_of(SMALL) {
        SMALL
    } else if length < length_of(LARGE) {
        MEDIUM
    } else {
        LARGE
    }
}

/// Returns the number of buffers of `size_class` that `length` bytes need.
#[inline]
pub(crate) const fn count(size_class: usize, length: usize) -> usize {
    (length + length_of(size_class) - 1) >> shift_of(size_class)
}

/// Returns how many buffers of each size class to make of `bytes` bytes: three eighths for large
/// ones, one eighth for small ones, the rest for medium ones.
pub(crate) fn counts(bytes: u64) -> [u32; SIZE_CLASSES] {
    let large = bytes / 8 * 3 / length_of(LARGE) as u64;
    let small = bytes / 8 / length_of(SMALL) as u64;
    let rest = bytes - large * length_of(LARGE) as u64 - small * length_of(SMALL) as u64;
    let medium = rest / length_of(MEDIUM) as u64;
    [small, medium, large].map(|count| u32::try_from(count).unwrap_or(u32::MAX))
}

/// The default for a session's bytes of data.
const SESSION: usize = 16 << 20;

/// Returns the bytes of data that each of a session's `queues` queue pairs may have, for requests
/// of up to `asked` bytes: its part of the `set` bytes of the session. If `set` is 0: its part of
/// the default, but at least twice the largest request, a quarter of which is the eager ring. So
/// every session gets the request size that it asks for, however many queue pairs it has.
pub(crate) fn data(set: usize, queues: usize, asked: usize) -> usize {
    let part = |bytes: usize| bytes / queues.max(1);
    match set {
        0 => part(SESSION).max(2 * asked),
        bytes => part(bytes),
    }
}

/// The part of the limit that is never shared is the limit divided by this.
const UNSHARED_DIVISOR: u64 = 4;

/// Returns the bytes that are shared, out of `limit` bytes in total, if `reserved` bytes belong to
/// sessions and these want to borrow `wishes` bytes. A part of the limit is left for the
/// reservations of new sessions, since a hanging drive does not return the buffers of its requests.
pub(crate) fn shareable(limit: u64, reserved: u64, wishes: u64) -> u64 {
    wishes.min((limit - limit / UNSHARED_DIVISOR).saturating_sub(reserved))
}

/// Returns the part of `shareable` bytes for clients that wish `wish` of `wishes` bytes.
pub(crate) fn part(shareable: u64, wish: u64, wishes: u64) -> u64 {
    // In pages, so that the product fits.
    let pages = |bytes: u64| bytes / PAGE as u64;
    let part = pages(shareable).saturating_mul(pages(wish));
    part.checked_div(pages(wishes)).unwrap_or(0) * PAGE as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(counts: [u32; SIZE_CLASSES]) -> u64 {
        (0..SIZE_CLASSES)
            .map(|size_class| u64::from(counts[size_class]) * length_of(size_class) as u64)
            .sum()
    }

    #[test]
    fn the_size_classes_are_not_more_than_the_whole() {
        for kib in (0..4096).chain([13 << 10, 1 << 20, 1 << 30]) {
            let whole = kib * 1024;
            let sum = bytes(counts(whole));
            assert!(sum <= whole, "{kib}");
            assert!(
                whole - sum < length_of(MEDIUM) as u64,
                "{kib}: next to nothing is left"
            );
        }
    }

    #[test]
    fn a_session_gets_memory_for_its_requests_unless_configured() {
        let mib = 1 << 20;
        assert_eq!(data(0, 1, mib), 16 * mib);
        assert_eq!(data(0, 8, mib), 2 * mib);
        for (queues, asked) in [
            (13, mib),
            (64, mib),
            (64, 4 * mib),
            (128, 4 * mib),
            (0, mib),
        ] {
            let data = data(0, queues, asked);
            assert!(
                data - (data / 4).clamp(256 << 10, 2 * mib) >= asked,
                "{queues}"
            );
        }
        // The set bytes are not exceeded; each queue pair adds what it needs.
        assert_eq!(data(16 * mib, 64, 4 * mib), mib / 4);
    }

    #[test]
    fn every_length_has_its_size_class() {
        for (length, size_class, buffers) in [
            (1, SMALL, 1),
            (4096, SMALL, 1),
            (4097, MEDIUM, 1),
            (32 << 10, MEDIUM, 1),
            ((32 << 10) + 512, MEDIUM, 2),
            ((128 << 10) - 1, MEDIUM, 4),
            (128 << 10, LARGE, 1),
            (1 << 20, LARGE, 8),
            (4 << 20, LARGE, 32),
        ] {
            assert_eq!(class_for(length), size_class, "{length}");
            assert_eq!(count(size_class, length), buffers, "{length}");
        }
    }

    #[test]
    fn a_quarter_of_the_limit_is_left_for_reservations_whatever_is_borrowed() {
        for limit in [1 << 20, 100 << 20, 1 << 30, 1 << 40] {
            for reserved in [0, limit / 2, limit / 4 * 3] {
                let borrowed = shareable(limit, reserved, u64::MAX);
                assert!(limit - reserved - borrowed >= limit / 4, "{limit}");
            }
        }
    }

    #[test]
    fn the_limit_is_not_passed() {
        let mib = 1 << 20;
        assert_eq!(shareable(1024 * mib, 20 * mib, 13 * mib), 13 * mib);
        assert_eq!(shareable(32 * mib, 20 * mib, 13 * mib), 4 * mib);
        assert_eq!(shareable(32 * mib, 24 * mib, 13 * mib), 0);
        assert_eq!(shareable(32 * mib, 40 * mib, 13 * mib), 0);
        for (shareable, wishes) in [(0, [0, 0]), (10, [3, 4]), (1 << 40, [1 << 40, 1 << 41])] {
            let all: u64 = wishes.iter().sum();
            let parts: u64 = wishes.iter().map(|wish| part(shareable, *wish, all)).sum();
            assert!(parts <= shareable);
        }
    }
}
