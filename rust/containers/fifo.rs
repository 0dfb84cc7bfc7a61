// SPDX-License-Identifier: GPL-2.0

//! A queue with a fixed number of places.

use kernel::prelude::*;

/// A first-in, first-out queue of fixed capacity.
pub struct Fifo<T> {
    places: KVec<Option<T>>,
    head: usize,
    len: usize,
}

impl<T> Fifo<T> {
    /// Creates an empty queue for at most `capacity` elements. May sleep.
    pub fn new(capacity: usize) -> Result<Self> {
        let mut places = KVec::with_capacity(capacity, GFP_KERNEL)?;
        for _ in 0..capacity {
            places.push(None, GFP_KERNEL)?;
        }
        Ok(Self {
            places,
            head: 0,
            len: 0,
        })
    }

    /// Appends an element. Returns it if there is no room.
    #[inline]
    pub fn push(&mut self, element: T) -> Result<(), T> {
        let capacity = self.places.len();
        if self.len == capacity {
            return Err(element);
        }
        let mut at = self.head + self.len;
        if at >= capacity {
            at -= capacity;
        }
        match self.places.get_mut(at) {
            Some(place) => {
                *place = Some(element);
                self.len += 1;
                Ok(())
            }
            None => Err(element),
        }
    }

    /// Removes and returns the first element.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let element = self.places.get_mut(self.head)?.take()?;
        self.head += 1;
        if self.head == self.places.len() {
            self.head = 0;
        }
        self.len -= 1;
        Some(element)
    }

    /// Puts an element that was just popped back to the front. Returns it if there is no room.
    pub fn unpop(&mut self, element: T) -> Result<(), T> {
        if self.len == self.places.len() {
            return Err(element);
        }
        let before = match self.head {
            0 => self.places.len(),
            head => head,
        } - 1;
        match self.places.get_mut(before) {
            Some(place) => {
                *place = Some(element);
                self.head = before;
                self.len += 1;
                Ok(())
            }
            None => Err(element),
        }
    }

    /// Returns how many elements there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the queue is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
