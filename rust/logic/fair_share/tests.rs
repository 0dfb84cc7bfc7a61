// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;

const SMALL: usize = 0;
const MEDIUM: usize = 1;
const LARGE: usize = 2;

type Account = FairShare<Vec<ClientShare>, Vec<Borrower>>;

fn account(classes: [u32; SIZE_CLASSES]) -> Account {
    let mut account = FairShare::new(
        [1, 8, 32],
        vec![ClientShare::default(); 8],
        vec![Borrower::default(); 16],
    );
    account.set_targets(classes);
    for (class, count) in classes.into_iter().enumerate() {
        account.add(class, count);
    }
    account
}

fn only(class: usize, count: u32) -> [u32; SIZE_CLASSES] {
    let mut wants = [0; SIZE_CLASSES];
    wants[class] = count;
    wants
}

fn add_client(account: &mut Account) -> usize {
    account.add_client(u32::MAX).unwrap().1
}

#[test]
fn a_lone_borrower_gets_all_buffers() {
    let mut a = account([4, 4, 4]);
    let one = add_client(&mut a);
    for class in 0..SIZE_CLASSES {
        assert!(a.borrow(one, class, 4));
        assert!(!a.borrow(one, class, 1));
    }
    assert!(!a.is_pressed());
    assert_eq!(a.class_counts(MEDIUM).borrowed, 4);
    a.give_back(one, MEDIUM, 4);
    assert_eq!(a.class_counts(MEDIUM).borrowed, 0);
}

#[test]
fn nobody_gets_more_than_their_limit() {
    let mut a = account([0, 10, 10]);
    let (client, one) = a.add_client(40).unwrap();
    let two = a.add_borrower(client).unwrap();
    assert!(a.borrow(one, MEDIUM, 4));
    assert!(
        !a.borrow(two, MEDIUM, 2),
        "the client has reached its limit"
    );
    assert!(
        !a.wait(two, only(MEDIUM, 2)),
        "a request above the limit does not wait"
    );
    assert!(a.borrow(two, MEDIUM, 1));
    assert_eq!(a.standing(client).borrowed, 40);
    a.give_back(one, MEDIUM, 4);
    assert!(a.borrow(two, LARGE, 1));
}

#[test]
fn nobody_waits_for_more_than_there_is() {
    let mut a = account([0, 4, 0]);
    let one = add_client(&mut a);
    assert!(!a.wait(one, only(MEDIUM, 5)));
    assert!(!a.wait(one, only(LARGE, 1)));
    assert_eq!(a.waiting(), 0);
    assert!(a.wait(one, only(MEDIUM, 4)));
    assert_eq!(a.waiting(), 1);
}

#[test]
fn a_returned_buffer_goes_to_the_client_with_fewer_buffers() {
    let mut a = account([0, 8, 0]);
    let (greedy, poor) = (add_client(&mut a), add_client(&mut a));
    assert!(a.borrow(greedy, MEDIUM, 8));
    assert!(!a.borrow(poor, MEDIUM, 4));
    assert!(a.wait(poor, only(MEDIUM, 4)));
    assert!(a.is_pressed());
    for back in 1..=4 {
        assert_eq!(a.next_to_wake(0), None);
        a.give_back(greedy, MEDIUM, 1);
        assert!(
            !a.borrow(greedy, MEDIUM, 1),
            "{back} are for the waiting borrower"
        );
    }
    assert_eq!(a.next_to_wake(0), Some(poor));
    assert_eq!(a.next_to_wake(0), None, "it is woken once");
    assert!(!a.borrow(greedy, MEDIUM, 1), "nor after the wake-up");
    assert!(a.borrow(poor, MEDIUM, 4));
    assert!(!a.is_pressed());
}

#[test]
fn among_equals_the_waiting_borrower_is_first() {
    let mut a = account([0, 2, 0]);
    let (one, two) = (add_client(&mut a), add_client(&mut a));
    assert!(a.wait(one, only(MEDIUM, 1)));
    assert!(!a.borrow(two, MEDIUM, 1));
    assert!(a.wait(two, only(MEDIUM, 1)));
    let both = [a.next_to_wake(0).unwrap(), a.next_to_wake(0).unwrap()];
    assert!(
        both.contains(&one) && both.contains(&two),
        "there is enough for both"
    );
    assert!(a.borrow(two, MEDIUM, 1));
    assert!(a.borrow(one, MEDIUM, 1));
}

#[test]
fn many_queue_pairs_are_one_client() {
    let mut a = account([0, 12, 0]);
    let (client, first) = a.add_client(u32::MAX).unwrap();
    let mut borrowers = vec![first];
    for _ in 0..5 {
        borrowers.push(a.add_borrower(client).unwrap());
    }
    for borrower in &borrowers {
        assert!(a.borrow(*borrower, MEDIUM, 2));
    }
    let other = add_client(&mut a);
    assert!(a.wait(other, only(MEDIUM, 1)));
    assert!(a.wait(first, only(MEDIUM, 1)));
    // Each buffer that is returned goes to the other client, until that has half of them.
    let mut others = 0;
    for borrower in borrowers.iter().chain(&borrowers) {
        a.give_back(*borrower, MEDIUM, 1);
        match a.next_to_wake(0) {
            Some(woken) if woken == other => {
                assert!(a.borrow(other, MEDIUM, 1));
                others += 1;
                assert!(a.wait(other, only(MEDIUM, 1)));
            }
            Some(woken) => {
                assert_eq!(woken, first);
                break;
            }
            None => panic!("nobody is woken"),
        }
    }
    // The client has 6 of 12; at equal shares, a borrower without buffers is first.
    assert!((5..=6).contains(&others), "{others}");
}

#[test]
fn a_borrower_waiting_for_another_class_blocks_nobody() {
    let mut a = account([4, 0, 1]);
    let (one, two) = (add_client(&mut a), add_client(&mut a));
    assert!(a.borrow(one, LARGE, 1));
    assert!(a.wait(two, only(LARGE, 1)));
    assert!(a.borrow(one, SMALL, 4));
}

#[test]
fn a_wait_for_either_class_counts_in_both() {
    let mut a = account([0, 4, 1]);
    let (one, two) = (add_client(&mut a), add_client(&mut a));
    assert!(a.borrow(one, MEDIUM, 4));
    assert!(a.borrow(one, LARGE, 1));
    assert!(
        a.wait(two, [9, 4, 1]),
        "classes without enough buffers are left out"
    );
    a.give_back(one, LARGE, 1);
    assert!(!a.borrow(one, LARGE, 1));
    assert_eq!(a.next_to_wake(0), Some(two));
    assert!(a.borrow(two, LARGE, 1));
    assert_eq!(a.waiting(), 0);
}

#[test]
fn a_cancelled_wait_blocks_nobody() {
    let mut a = account([0, 4, 0]);
    let (one, two) = (add_client(&mut a), add_client(&mut a));
    assert!(a.borrow(one, MEDIUM, 3));
    assert!(a.wait(two, only(MEDIUM, 4)));
    assert!(!a.borrow(one, MEDIUM, 1));
    a.cancel_wait(two);
    assert!(a.borrow(one, MEDIUM, 1));
}

#[test]
fn a_class_that_shrinks_lends_nothing() {
    let mut a = account([0, 8, 0]);
    let (one, two) = (add_client(&mut a), add_client(&mut a));
    assert!(a.borrow(one, MEDIUM, 6));
    assert!(a.wait(two, only(MEDIUM, 6)));
    a.set_targets([0, 4, 0]);
    assert!(a.is_pressed());
    assert_eq!(
        a.next_to_wake(0),
        Some(two),
        "the class will never have as many"
    );
    assert!(!a.wait(two, only(MEDIUM, 6)));
    assert!(!a.borrow(two, MEDIUM, 1));
    a.remove(MEDIUM, 2);
    assert!(a.is_pressed());
    a.give_back(one, MEDIUM, 2);
    a.remove(MEDIUM, 2);
    assert!(!a.is_pressed());
    assert_eq!(a.class_counts(MEDIUM).total, 4);
    a.give_back(one, MEDIUM, 1);
    assert!(a.borrow(two, MEDIUM, 1));
}

#[test]
fn places_are_used_again() {
    let mut a = account([0, 1, 0]);
    for _ in 0..100 {
        let (client, one) = a.add_client(8).unwrap();
        let two = a.add_borrower(client).unwrap();
        assert!(a.borrow(one, MEDIUM, 1));
        assert!(!a.wait(two, only(MEDIUM, 1)));
        a.give_back(one, MEDIUM, 1);
        a.remove_borrower(two);
        a.remove_borrower(one);
        assert_eq!(a.waiting(), 0);
    }
    let (clients, borrowers) = (
        vec![ClientShare::default(); 9],
        vec![Borrower::default(); 17],
    );
    let (client, _) = a.add_client(8).unwrap();
    a.enlarge(clients, borrowers);
    assert_eq!(a.room(), (9, 17));
    assert_eq!(a.standing(client).limit, 8);
}

#[test]
fn a_woken_borrower_that_does_not_react_expires() {
    let mut a = account([0, 4, 0]);
    let (sleeper, other) = (add_client(&mut a), add_client(&mut a));
    assert!(a.borrow(other, MEDIUM, 4));
    assert!(a.wait(sleeper, only(MEDIUM, 2)));
    a.give_back(other, MEDIUM, 2);
    assert_eq!(a.next_to_wake(1000), Some(sleeper));
    assert!(
        !a.borrow(other, MEDIUM, 1),
        "the woken borrower is before it"
    );
    assert!(a.wait(other, only(MEDIUM, 1)));
    assert_eq!(
        a.next_to_wake(999 + REACTION_TIMEOUT_MS),
        None,
        "there is still time"
    );
    assert_eq!(a.next_to_wake(1000 + REACTION_TIMEOUT_MS), Some(other));
    assert!(a.borrow(other, MEDIUM, 1));
    assert!(a.borrow(other, MEDIUM, 1));
    assert!(!a.is_pressed(), "nobody waits");
    // The sleeper wakes up, and is before the other again.
    assert!(!a.borrow(sleeper, MEDIUM, 2));
    assert!(a.wait(sleeper, only(MEDIUM, 2)));
    assert!(a.is_pressed());
    a.give_back(other, MEDIUM, 2);
    assert!(!a.borrow(other, MEDIUM, 1));
    assert_eq!(a.next_to_wake(9000), Some(sleeper), "and is woken again");
    assert!(a.borrow(sleeper, MEDIUM, 2));
    assert_eq!(a.waiting(), 0);
}

#[test]
fn an_expired_borrower_can_borrow_free_buffers() {
    let mut a = account([0, 2, 0]);
    let (sleeper, other) = (add_client(&mut a), add_client(&mut a));
    assert!(a.wait(sleeper, only(MEDIUM, 1)));
    assert_eq!(a.next_to_wake(0), Some(sleeper));
    assert!(!a.borrow(other, MEDIUM, 1));
    assert!(a.wait(other, only(MEDIUM, 1)));
    assert_eq!(a.next_to_wake(0), Some(other), "there is enough for both");
    assert!(a.borrow(other, MEDIUM, 1));
    assert_eq!(a.waiting(), 1);
    assert!(a.wait(other, only(MEDIUM, 1)));
    assert_eq!(a.next_to_wake(REACTION_TIMEOUT_MS), Some(other));
    assert!(
        a.borrow(sleeper, MEDIUM, 1),
        "it did not wait, but has less"
    );
    assert!(a.wait(other, only(MEDIUM, 1)));
    a.cancel_wait(other);
    assert_eq!(a.waiting(), 0);
}

#[test]
fn a_borrower_that_reacts_in_time_keeps_waiting() {
    let mut a = account([0, 4, 0]);
    let (one, two) = (add_client(&mut a), add_client(&mut a));
    assert!(a.borrow(two, MEDIUM, 4));
    assert!(a.wait(one, only(MEDIUM, 2)));
    a.give_back(two, MEDIUM, 2);
    for round in 0..20 {
        let now = round * (REACTION_TIMEOUT_MS - 1);
        assert_eq!(a.next_to_wake(now), Some(one));
        assert_eq!(a.next_to_wake(now), None);
        assert!(a.wait(one, only(MEDIUM, 2)));
    }
    assert!(!a.borrow(two, MEDIUM, 1));
    // A waiting borrower that was not woken may take any time.
    assert!(a.wait(one, only(MEDIUM, 3)));
    assert_eq!(a.next_to_wake(100_000), None);
    assert_eq!(a.next_to_wake(200_000), None);
    assert_eq!(a.waiting(), 1);
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) % u64::from(n)) as u32
    }
}

/// Clients that always want buffers, hold them for a while, and return them; a woken one tries
/// again.
struct Overload {
    account: Account,
    /// The client of each, its number, and the number of buffers that it wants at a time.
    borrowers: Vec<(usize, usize, u32)>,
    held: Vec<(usize, u32)>,
    waits: Vec<bool>,
}

impl Overload {
    fn new(jobs: &[(usize, u32)], total: u32) -> Self {
        let mut account = account([0, total, 0]);
        let mut borrowers = Vec::new();
        for (client, (queues, size)) in jobs.iter().enumerate() {
            let (place, borrower) = account.add_client(u32::MAX).unwrap();
            borrowers.push((client, borrower, *size));
            for _ in 1..*queues {
                borrowers.push((client, account.add_borrower(place).unwrap(), *size));
            }
        }
        Self {
            account,
            borrowers,
            held: Vec::new(),
            waits: vec![false; 16],
        }
    }

    /// Lets a borrower ask for `size` buffers, and wait if it does not get them.
    fn ask(&mut self, borrower: usize, size: u32) {
        let gets = self.account.borrow(borrower, MEDIUM, size);
        if gets {
            self.held.push((borrower, size));
        } else {
            assert!(self.account.wait(borrower, only(MEDIUM, size)));
        }
        self.waits[borrower] = !gets;
    }

    /// Lets every client ask repeatedly until it has to wait.
    fn all_ask(&mut self) {
        for (_, borrower, size) in self.borrowers.clone() {
            while !self.waits[borrower] {
                self.ask(borrower, size);
            }
        }
    }

    /// Returns the buffers of a random holder, and lets each borrower that this wakes ask again.
    fn end_one(&mut self, random: &mut Random) {
        if !self.held.is_empty() {
            let which = random.below(self.held.len() as u32) as usize;
            let (borrower, count) = self.held.swap_remove(which);
            self.account.give_back(borrower, MEDIUM, count);
        }
        while let Some(woken) = self.account.next_to_wake(0) {
            let is_woken = |(_, borrower, _): &&(usize, usize, u32)| *borrower == woken;
            let (_, _, size) = *self.borrowers.iter().find(is_woken).unwrap();
            self.ask(woken, size);
        }
    }

    /// Returns how many buffers each of `clients` clients holds.
    fn holds(&self, clients: usize) -> Vec<u64> {
        let mut holds = vec![0; clients];
        for (borrower, count) in &self.held {
            let client = self.borrowers.iter().find(|(_, s, _)| s == borrower);
            holds[client.unwrap().0] += u64::from(*count);
        }
        holds
    }
}

/// Returns the share of each client in an overload: the buffers that it holds, summed over the
/// steps after a start-up phase.
fn overload(seed: u64, jobs: &[(usize, u32)], total: u32) -> Vec<u64> {
    let mut random = Random(seed);
    let mut world = Overload::new(jobs, total);
    let mut got = vec![0u64; jobs.len()];
    for step in 0..4_000 {
        world.all_ask();
        world.end_one(&mut random);
        let borrowed: u32 = world.held.iter().map(|(_, count)| count).sum();
        assert_eq!(world.account.class_counts(MEDIUM).borrowed, borrowed);
        assert!(borrowed <= total);
        if step > 400 {
            for (got, holds) in got.iter_mut().zip(world.holds(jobs.len())) {
                *got += holds;
            }
        }
    }
    got
}

#[test]
fn under_overload_all_come_to_have_the_same() {
    for seed in 1..6 {
        for jobs in [
            &[(1, 1), (1, 1)][..],
            &[(8, 4), (1, 4)],
            &[(6, 8), (1, 1), (2, 3)],
            &[(4, 16), (1, 16)],
        ] {
            let got = overload(seed, jobs, 64);
            let least = got.iter().min().unwrap();
            let most = got.iter().max().unwrap();
            assert!(least * 10 >= most * 7, "{jobs:?}: {got:?}");
        }
    }
}
