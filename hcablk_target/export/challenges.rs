// SPDX-License-Identifier: GPL-2.0

//! Holds the initiators that were challenged and have not proven their identity, and limits their
//! number. Uses nothing but `core`: its tests run on the host.
//!
//! None of them has a queue pair, a drive or a buffer here, only a place in this table. The number
//! of places is fixed. When all are taken, a new initiator gets the place of the oldest challenge;
//! an initiator at an address that has used its share gets the place of the oldest from that
//! address. So an attacker cannot exclude others by not answering, unless it asks faster than they
//! answer.
//!
//! A challenge stays in the table after a wrong proof, so that an attacker cannot use up the
//! challenge of another initiator by naming its handle. But at most [`TRIES`] proofs are checked,
//! each of which costs some work. A correct proof removes the challenge.

/// The number of places in the table.
pub(crate) const PLACES: usize = 4096;
/// The most places of one address.
pub(crate) const PLACES_PER_ADDRESS: usize = 512;
/// The most proofs of one challenge that are checked.
pub(crate) const TRIES: u8 = 8;
/// The time limit for the response to a challenge, in milliseconds.
pub(crate) const DEADLINE_MS: u64 = 10_000;

/// The number of low bits of a handle that name the place; the higher bits are random.
const PLACE_BITS: u32 = PLACES.trailing_zeros();
const _: () = assert!(PLACES.is_power_of_two());

/// An address, in the form of an IPv6 address.
pub(crate) type Address = [u8; 16];

/// A challenge: the initiator that was challenged, and the time.
pub(crate) struct Entry<T> {
    handle: u16,
    /// The number of proofs checked so far.
    tries: u8,
    address: Address,
    began_ms: u64,
    /// Later challenges have larger numbers.
    number: u64,
    challenged: T,
}

/// Chooses the place of a challenge that begins at `now_ms`, and its handle, from a random number:
/// any of the free places, so that an attacker that does not see the challenge must try all
/// handles.
pub(crate) fn choose<T>(
    table: &[Option<Entry<T>>],
    address: &Address,
    now_ms: u64,
    random: u32,
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
        let is_free = |place: &usize| match table.get(*place) {
            Some(entry) => entry.as_ref().is_none_or(is_over),
            None => false,
        };
        let first = (random >> u16::BITS) as usize % PLACES;
        let free = (first..PLACES).chain(0..first).find(is_free);
        free.or_else(|| taken().min_by_key(oldest).map(|(place, _)| place))
    };
    let place = place.unwrap_or(0);
    (place, handle(place, random as u16))
}

fn handle(place: usize, random: u16) -> u16 {
    (random << PLACE_BITS | place as u16) % crate::proto::auth::CHALLENGES_MAX
}

/// Finds the challenge `handle`, if it was sent to `address` and may still be answered.
fn find<'a, T>(
    table: &'a mut [Option<Entry<T>>],
    handle: u16,
    address: &Address,
    now_ms: u64,
) -> Option<&'a mut Option<Entry<T>>> {
    let place = table.get_mut(usize::from(handle) % PLACES)?;
    let is_its = |entry: &Entry<T>| {
        entry.handle == handle && entry.address == *address && entry.age_ms(now_ms) <= DEADLINE_MS
    };
    place.as_ref().is_some_and(is_its).then_some(place)
}

/// Returns the challenge `handle` for the check of a proof, and its number, if it was sent to
/// `address` and may still be answered.
pub(crate) fn look<T: Clone>(
    table: &mut [Option<Entry<T>>],
    handle: u16,
    address: &Address,
    now_ms: u64,
) -> Option<(T, u64)> {
    let entry = find(table, handle, address, now_ms)?.as_mut()?;
    if entry.tries >= TRIES {
        return None;
    }
    entry.tries += 1;
    Some((entry.challenged.clone(), entry.number))
}

/// Removes the challenge `handle` with this number, for which a correct proof has arrived. Returns
/// `false` if another proof was faster, or the time is over.
pub(crate) fn take<T>(
    table: &mut [Option<Entry<T>>],
    (handle, number): (u16, u64),
    address: &Address,
    now_ms: u64,
) -> bool {
    let is_its = |entry: &mut Entry<T>| entry.number == number;
    find(table, handle, address, now_ms).is_some_and(|place| place.take_if(is_its).is_some())
}

impl<T> Entry<T> {
    pub(crate) fn new(
        (handle, number): (u16, u64),
        address: Address,
        now_ms: u64,
        challenged: T,
    ) -> Self {
        Self {
            handle,
            tries: 0,
            address,
            began_ms: now_ms,
            number,
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
        let (place, handle) = choose(table, &from, now_ms, what as u16 as u32);
        table[place] = Some(Entry::new((handle, what), from, now_ms, what));
        handle
    }

    /// Answers with a right proof.
    fn answer(
        table: &mut [Option<Entry<u64>>],
        handle: u16,
        from: &Address,
        now_ms: u64,
    ) -> Option<u64> {
        let (what, number) = look(table, handle, from, now_ms)?;
        take(table, (handle, number), from, now_ms).then_some(what)
    }

    #[test]
    fn a_challenge_is_answered_once_in_time_and_from_where_it_was_asked_for() {
        let mut table = table();
        let handle = put(&mut table, address(1), 5, 42);
        assert_eq!(answer(&mut table, handle, &address(2), 6), None);
        let other = handle ^ 1 << PLACE_BITS;
        assert_eq!(answer(&mut table, other, &address(1), 6), None);
        // Two proofs at the same time: one is too late.
        let (_, number) = look(&mut table, handle, &address(1), 6).unwrap();
        assert_eq!(answer(&mut table, handle, &address(1), 6), Some(42));
        assert!(!take(&mut table, (handle, number), &address(1), 6));
        assert_eq!(answer(&mut table, handle, &address(1), 6), None);
        let handle = put(&mut table, address(1), 5, 43);
        let late = 6 + DEADLINE_MS;
        assert_eq!(answer(&mut table, handle, &address(1), late), None);
    }

    #[test]
    fn a_wrong_proof_does_not_use_a_challenge_up_and_too_many_do() {
        let mut table = table();
        let handle = put(&mut table, address(1), 5, 42);
        for _ in 1..TRIES {
            assert!(look(&mut table, handle, &address(1), 6).is_some());
        }
        assert_eq!(answer(&mut table, handle, &address(1), 6), Some(42));
        let handle = put(&mut table, address(1), 5, 43);
        for _ in 0..TRIES {
            assert!(look(&mut table, handle, &address(1), 6).is_some());
        }
        assert_eq!(answer(&mut table, handle, &address(1), 6), None);
    }

    #[test]
    fn an_address_has_its_share() {
        let share = PLACES_PER_ADDRESS as u64;
        let mut table = table();
        let other = put(&mut table, address(2), 0, 7);
        let first = put(&mut table, address(1), 1, 8);
        let all = 3 * share;
        let rest: Vec<_> = (0..all)
            .map(|n| put(&mut table, address(1), 2 + n, n))
            .collect();
        let taken = table.iter().flatten().count();
        assert_eq!(taken, PLACES_PER_ADDRESS + 1);
        let now = 2 + all;
        assert_eq!(answer(&mut table, first, &address(1), now), None);
        let mut left: Vec<_> = rest
            .iter()
            .filter_map(|h| answer(&mut table, *h, &address(1), now))
            .collect();
        // Handles are reused for other challenges.
        left.sort();
        assert_eq!(left, (all - share..all).collect::<Vec<_>>());
        assert_eq!(answer(&mut table, other, &address(2), now), Some(7));
    }

    #[test]
    fn a_challenge_is_at_any_free_place() {
        let mut table = table();
        let mut place_of = |random: u32| {
            let (place, handle) = choose(&table, &address(1), 5, random);
            assert_eq!(usize::from(handle) % PLACES, place);
            table[place] = Some(Entry::new((handle, 1), address(1), 5, 1));
            place
        };
        let last = PLACES as u32 - 1;
        assert_eq!(place_of(7 << 16), 7);
        assert_eq!(place_of(7 << 16 | 0xffff), 8);
        assert_eq!(place_of(last << 16), PLACES - 1);
        assert_eq!(place_of(last << 16), 0);
        assert_eq!(place_of(u32::MAX), 1);
    }

    /// Checks the memory for 10,000 unproven initiators: the size of a place does not depend on the
    /// challenge, except for the box.
    #[test]
    fn a_new_challenge_replaces_an_old_one_and_memory_is_bounded() {
        let mut table = table();
        for n in 0..10_000u64 {
            put(&mut table, address((n % 100) as u8), n / 10, n);
            assert!(table.iter().flatten().count() <= PLACES);
        }
        assert_eq!(table.iter().flatten().count(), PLACES);
        let last = table.iter().flatten().map(|entry| entry.challenged);
        assert_eq!(last.min(), Some(10_000 - PLACES as u64));
        // Unanswered challenges are dropped after a while.
        let late = put(&mut table, address(1), 1001 + DEADLINE_MS, 1);
        assert_eq!(usize::from(late) % PLACES, 0);
        let place = size_of::<Option<Entry<Box<u64>>>>();
        assert_eq!(place, 48);
        let challenged = size_of::<crate::proto::auth::Challenged<crate::crypto::HostCrypto>>();
        // An `Arc` adds a counter, and the kernel's slab allocates 256 bytes for both.
        assert!(challenged + 8 <= 256, "{challenged}");
        let most = PLACES * (place + 256);
        assert_eq!(most, 1_245_184);
        println!("10000 unproven initiators take {most} bytes");
    }
}
