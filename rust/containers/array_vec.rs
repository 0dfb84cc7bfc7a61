// SPDX-License-Identifier: GPL-2.0

//! A short vector on the stack. Uses nothing but `core`: its tests run on the host.

use core::mem::{
    self,
    MaybeUninit, //
};

/// Up to `N` elements, in the order in which they were added. An empty vector costs only
/// its length.
///
/// # Invariants
///
/// The first `length` places are initialised.
pub struct ArrayVec<T, const N: usize> {
    places: [MaybeUninit<T>; N],
    length: usize,
}

impl<T, const N: usize> ArrayVec<T, N> {
    /// Creates an empty vector.
    #[inline(always)]
    pub const fn new() -> Self {
        // INVARIANT: None of the places is counted.
        Self {
            places: [const { MaybeUninit::uninit() }; N],
            length: 0,
        }
    }

    /// Returns how many elements there are.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the vector is empty.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns whether all `N` places are taken.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.length == N
    }

    /// Adds an element. Returns it if there is no room.
    #[inline(always)]
    pub fn push(&mut self, element: T) -> Result<(), T> {
        let Some(place) = self.places.get_mut(self.length) else {
            return Err(element);
        };
        place.write(element);
        // INVARIANT: Initialised just now.
        self.length += 1;
        Ok(())
    }

    /// Takes all elements out, in order, and calls `f` with each.
    #[inline(always)]
    pub fn take_each(&mut self, mut f: impl FnMut(T)) {
        // INVARIANT: None of the places is counted any more: each is read once.
        let length = mem::take(&mut self.length);
        for place in self.places.iter().take(length) {
            // SAFETY: By the type invariant it was initialised, and nobody else reads it.
            f(unsafe { place.assume_init_read() });
        }
    }

    #[cold]
    #[inline(never)]
    fn drop_all(&mut self) {
        self.take_each(drop);
    }
}

impl<T, const N: usize> Default for ArrayVec<T, N> {
    #[inline(always)]
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const N: usize> Drop for ArrayVec<T, N> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.length != 0 {
            self.drop_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn elements_come_out_in_order_and_once() {
        let mut few = ArrayVec::<_, 3>::new();
        assert!(few.is_empty());
        let counted = Rc::new(());
        for number in 0..3 {
            assert!(!few.is_full());
            assert!(few.push((number, counted.clone())).is_ok());
        }
        assert!(few.is_full());
        assert_eq!(few.push((3, counted.clone())).map_err(|e| e.0), Err(3));
        assert_eq!((few.len(), Rc::strong_count(&counted)), (3, 4));
        let mut seen = vec![];
        few.take_each(|(number, _)| seen.push(number));
        assert_eq!(seen, [0, 1, 2]);
        assert_eq!((few.len(), Rc::strong_count(&counted)), (0, 1));
        assert!(few.push((4, counted.clone())).is_ok());
        few.take_each(|(number, _)| seen.push(number));
        assert_eq!(seen, [0, 1, 2, 4]);
    }

    #[test]
    fn remaining_elements_are_dropped() {
        let counted = Rc::new(());
        let mut few = ArrayVec::<_, 8>::new();
        for _ in 0..5 {
            assert!(few.push(counted.clone()).is_ok());
        }
        drop(few);
        assert_eq!(Rc::strong_count(&counted), 1);
    }
}
