// SPDX-License-Identifier: GPL-2.0

//! The classes of durations: each twice as wide as the one below. Uses nothing but `core`: its
//! tests run on the host.

/// The number of classes: the last one begins at 4.3 s.
pub const COUNT: usize = 24;

/// Nanoseconds below which everything is in the first class, as a power of two.
const FIRST_SHIFT: u32 = 10;

/// Returns the class of a duration in nanoseconds.
#[inline]
pub const fn bucket_of(ns: u64) -> usize {
    let class = (u64::BITS - (ns >> FIRST_SHIFT).leading_zeros()) as usize;
    if class < COUNT {
        class
    } else {
        COUNT - 1
    }
}

/// Returns the nanoseconds below which a class's durations are; `None` for the last, which has no
/// such bound.
pub const fn below(class: usize) -> Option<u64> {
    if class + 1 < COUNT {
        Some(1 << (FIRST_SHIFT as usize + class))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_in_the_first_class_that_it_is_below_of() {
        let edges = (0..u64::BITS).flat_map(|i| [(1 << i) - 1, 1 << i, (1u64 << i) + 1]);
        for ns in edges.chain([0, u64::MAX]) {
            let fits = |class: &usize| below(*class).is_none_or(|bound| ns < bound);
            assert_eq!(Some(bucket_of(ns)), (0..COUNT).find(fits), "{ns}");
        }
    }

    #[test]
    fn classes_double() {
        for class in 1..COUNT - 1 {
            assert_eq!(below(class), below(class - 1).map(|bound| 2 * bound));
        }
        assert_eq!(below(COUNT - 1), None);
    }
}
