// SPDX-License-Identifier: GPL-2.0

//! Which requests of a queue were not answered in time.

use super::Queue;
use kernel::prelude::*;

/// A set of tags: those of the block layer, and that of the request for nothing.
pub(super) struct Late {
    words: KVec<u64>,
}

impl Late {
    /// Makes an empty set of tags below `tags`. May sleep.
    pub(super) fn new(tags: usize) -> Result<Self> {
        let mut words = KVec::new();
        words.resize(tags.div_ceil(64), 0, GFP_KERNEL)?;
        Ok(Self { words })
    }

    pub(super) fn insert(&mut self, tag: u16) {
        if let Some(word) = self.words.get_mut(usize::from(tag / 64)) {
            *word |= 1 << (tag % 64);
        }
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Iterates over the tags.
    pub(super) fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        let words = self.words.iter().enumerate();
        words.flat_map(|(place, word)| {
            let tags = (0..64).filter(move |bit| word >> bit & 1 != 0);
            tags.map(move |bit| (place * 64 + bit) as u16)
        })
    }
}

impl Queue {
    /// Returns whether a request is still to be answered that was not in time. `late` are those
    /// that were not, which may have been answered since.
    pub(super) fn is_behind(&self, late: &Late, asks_nothing: bool) -> bool {
        late.iter().any(|tag| match tag == self.depth {
            true => asks_nothing,
            false => self.requests.path_of(self.index.into(), tag) == Some(self.path),
        })
    }
}
