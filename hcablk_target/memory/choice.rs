// SPDX-License-Identifier: GPL-2.0

//! Chooses the transfer buffers of a request. Uses nothing but `core`: its tests run on the host.
//!
//! A queue has buffers of RAM, some of which also have peer memory. A request on a volume of mode
//! p2p wants these. If it needs more of them than exist, or they are in use while RAM is free, it
//! uses RAM instead, for all its data: a drive accepts only one kind in one bio. A request waits
//! only if the wait ends: all buffers are returned eventually.

/// The numbers of free buffers, and of all buffers with peer memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Free {
    /// Buffers without peer memory.
    pub(super) ram: usize,
    /// Buffers with peer memory.
    pub(super) peer: usize,
    /// All buffers with peer memory, free or not.
    pub(super) peers: usize,
}

/// The kind of buffers chosen for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Buffers with peer memory, which is used.
    Peer,
    /// Buffers without peer memory.
    Ram,
    /// The RAM of both kinds of buffers.
    Any,
    Wait,
}

/// Chooses for a request that needs `need` buffers and `wants` peer memory.
#[inline]
pub(super) fn choose(need: usize, wants: bool, free: Free) -> Choice {
    if wants && need != 0 && need <= free.peer {
        return Choice::Peer;
    }
    if need <= free.ram {
        return Choice::Ram;
    }
    // No request needs the peer memory, or this one cannot use it.
    let spare = !wants || need > free.peers;
    if spare && need <= free.ram + free.peer {
        return Choice::Any;
    }
    Choice::Wait
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn free(ram: usize, peer: usize, peers: usize) -> Free {
        Free { ram, peer, peers }
    }

    #[test]
    fn peer_memory_first_then_ram_then_both() {
        assert_eq!(choose(4, true, free(32, 4, 8)), Choice::Peer);
        assert_eq!(choose(4, true, free(32, 3, 8)), Choice::Ram);
        assert_eq!(choose(4, true, free(3, 3, 8)), Choice::Wait);
        assert_eq!(choose(12, true, free(8, 4, 8)), Choice::Any);
        assert_eq!(choose(12, true, free(7, 4, 8)), Choice::Wait);
        // A request without data needs no buffers.
        assert_eq!(choose(0, true, free(0, 0, 8)), Choice::Ram);
    }

    #[test]
    fn once_recalled_all_are_ram() {
        assert_eq!(choose(4, false, free(4, 8, 8)), Choice::Ram);
        assert_eq!(choose(4, false, free(3, 8, 8)), Choice::Any);
        assert_eq!(choose(4, false, free(0, 3, 8)), Choice::Wait);
    }

    /// Checks that a request is served at the latest when all buffers are returned.
    #[test]
    fn no_request_waits_if_all_own_buffers_are_free() {
        for buffers in 1..=40usize {
            for peers in 0..=buffers {
                for need in 0..=buffers {
                    for wants in [false, true] {
                        let all = free(buffers - peers, peers, peers);
                        let choice = choose(need, wants && peers != 0, all);
                        assert_ne!(choice, Choice::Wait, "{need} of {all:?}, {wants}");
                    }
                }
            }
        }
    }

    /// Checks that the chosen buffers are free.
    #[test]
    fn nothing_is_chosen_that_is_not_free() {
        for (ram, peer, need) in (0..12).flat_map(|ram| {
            (0..12).flat_map(move |peer| (0..24).map(move |need| (ram, peer, need)))
        }) {
            for (peers, wants) in [(12, true), (12, false), (peer, true)] {
                let there = match choose(need, wants, free(ram, peer, peers)) {
                    Choice::Peer => peer,
                    Choice::Ram => ram,
                    Choice::Any => ram + peer,
                    Choice::Wait => continue,
                };
                assert!(need <= there);
            }
        }
    }
}
