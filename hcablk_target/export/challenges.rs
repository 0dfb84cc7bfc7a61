// SPDX-License-Identifier: GPL-2.0

//! Initiators that were challenged and have not proven who they are: how many there may be. Uses nothing but `core`: its tests
//! run on the host.
//!
//! None of them has a queue pair, a drive or a buffer here, only a place in this table. There is a fixed number of places. Who asks
//! when all are taken gets that of the oldest challenge, and who asks from an address that has its share that
//! of the oldest from there: so nobody can keep others out by not answering, unless by asking faster than they answer.

/// Places of the table.
pub(crate) const PLACES: usize = 256;
/// Places that one address may have.
pub(crate) const PLACES_PER_ADDRESS: usize = 64;
/// Milliseconds after which a challenge is not to be answered any more.
pub(crate) const DEADLINE_MS: u64 = 10_000;

/// Bits of a handle that say the place; those above are another number each time.
const PLACE_BITS: u32 = PLACES.trailing_zeros();
const _: () = assert!(PLACES.is_power_of_two());

/// An address, as an IPv6 one.
pub(crate) type Address = [u8; 16];

/// A challenge: who was challenged, and when.
pub(crate) struct Entry<T> {
    handle: u16,
    address: Address,
    began_ms: u64,
    challenged: T,
}

/// Chooses the place of a challenge that begins at `now_ms`, and its handle, by a random number.
pub(crate) fn choose<T>(
    table: &[Option<Entry<T>>],
    address: &Address,
    now_ms: u64,
    random: u16,
) -> (usize, u16) {
    let is_over = |entry: &Entry<T>| entry.age_ms(now_ms) > DEADLINE_MS;
    let taken = || {
        let places = table.iter().enumerate();
        places.filter_map(|(place, entry)| Some((place, entry.as_ref()?)))
    };
    let own = || taken().filter(|(_, entry)| entry.address == *address && !is_over(entry));
    let oldest = |(_, entry): &(usize, &Entry<T>)| entry.began_ms;
    let place = if own().count() >= PLACES_PER_ADDRESS {
        own().min_by_key(oldest).map(|(place, _)| place)
    } else {
        let is_free = |entry: &Option<Entry<T>>| entry.as_ref().is_none_or(is_over);
        let free = table.iter().position(is_free);
        free.or_else(|| taken().min_by_key(oldest).map(|(place, _)| place))
    };
    let place = place.unwrap_or(0);
    (place, handle(place, random))
}

fn handle(place: usize, random: u16) -> u16 {
    (random << PLACE_BITS | place as u16) % crate::proto::auth::CHALLENGES_MAX
}

/// Takes the challenge `handle`, if it is one of `address` that may be answered still: once.
pub(crate) fn take<T>(
    table: &mut [Option<Entry<T>>],
    handle: u16,
    address: &Address,
    now_ms: u64,
) -> Option<T> {
    let place = table.get_mut(usize::from(handle) % PLACES)?;
    let is_its = |entry: &mut Entry<T>| entry.handle == handle && entry.address == *address;
    let entry = place.take_if(is_its)?;
    (entry.age_ms(now_ms) <= DEADLINE_MS).then_some(entry.challenged)
}

impl<T> Entry<T> {
    pub(crate) fn new(handle: u16, address: Address, now_ms: u64, challenged: T) -> Self {
        Self {
            handle,
            address,
            began_ms: now_ms,
            challenged,
        }
    }

    fn age_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.began_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn table() -> Vec<Option<Entry<u64>>> {
        (0..PLACES).map(|_| None).collect()
    }

    fn address(n: u8) -> Address {
        [n; 16]
    }

    fn put(table: &mut [Option<Entry<u64>>], from: Address, now_ms: u64, what: u64) -> u16 {
        let (place, handle) = choose(table, &from, now_ms, what as u16);
        table[place] = Some(Entry::new(handle, from, now_ms, what));
        handle
    }

    #[test]
    fn a_challenge_is_answered_once_in_time_and_from_where_it_was_asked_for() {
        let mut table = table();
        let handle = put(&mut table, address(1), 5, 42);
        assert_eq!(take(&mut table, handle, &address(2), 6), None);
        assert_eq!(
            take(&mut table, handle ^ 1 << PLACE_BITS, &address(1), 6),
            None
        );
        assert_eq!(take(&mut table, handle, &address(1), 6), Some(42));
        assert_eq!(take(&mut table, handle, &address(1), 6), None);
        let handle = put(&mut table, address(1), 5, 43);
        assert_eq!(take(&mut table, handle, &address(1), 6 + DEADLINE_MS), None);
    }

    #[test]
    fn an_address_has_its_share() {
        let mut table = table();
        let other = put(&mut table, address(2), 0, 7);
        let first = put(&mut table, address(1), 1, 8);
        let rest: Vec<_> = (0..1000)
            .map(|n| put(&mut table, address(1), 2 + n, n))
            .collect();
        let taken = table.iter().flatten().count();
        assert_eq!(taken, PLACES_PER_ADDRESS + 1);
        assert_eq!(take(&mut table, first, &address(1), 1002), None);
        let mut left: Vec<_> = rest
            .iter()
            .filter_map(|h| take(&mut table, *h, &address(1), 1002))
            .collect();
        // Handles come again, with other challenges.
        left.sort();
        assert_eq!(
            left,
            (1000 - PLACES_PER_ADDRESS as u64..1000).collect::<Vec<_>>()
        );
        assert_eq!(take(&mut table, other, &address(2), 1002), Some(7));
    }

    #[test]
    fn there_is_room_for_who_comes_last() {
        let mut table = table();
        let mut handles = HashSet::new();
        for n in 0..1000u64 {
            assert!(handles.len() <= n as usize);
            handles.insert(put(&mut table, address((n % 100) as u8), n, n));
        }
        assert_eq!(table.iter().flatten().count(), PLACES);
        let ages = table.iter().flatten().map(|entry| entry.challenged);
        assert_eq!(ages.min(), Some(1000 - PLACES as u64));
        // What nobody answers is gone after a while.
        let late = put(&mut table, address(1), 1001 + DEADLINE_MS, 1);
        assert_eq!(usize::from(late) % PLACES, 0);
    }
}
