// SPDX-License-Identifier: GPL-2.0

//! The disk's last session on each path, and whether the target has fenced it: a pure state
//! machine. Uses nothing but `core` and the wire format: its tests run on the host.
//!
//! ```text
//!  (none) ──admit()──► Live ──end()──► Unfenced ──fenced(), granted()──► Fenced ──admit()──► Live …
//! ```
//!
//! For a session that is still live, the grant of a later session on the same path has the effect
//! of a fence.
//!
//! # Whose response counts
//!
//! Only the export of a session knows whether requests of it are left; another machine with the
//! same volume does not. So each session's address and [`ExportInstance`] are recorded
//! ([`Origin`]), and only a response of the same instance counts. When the address of an instance
//! responds as another instance, the former one has ended with all its requests: a target withdraws
//! an export only when none of its sessions is left. Nothing else is proof, and a session that
//! cannot have the others fenced does not become a path.

use crate::proto::connect::{
    Epoch,
    ExportInstance,
    PATHS_MAX, //
};
use core::net::SocketAddr;

/// The identity of a session's export, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    /// `None`: the target does not report an instance.
    pub(crate) instance: Option<ExportInstance>,
}

impl Origin {
    /// Returns whether both are certainly of the same export.
    fn is_same(&self, other: &Self) -> bool {
        self.instance.is_some() && self.instance == other.instance
    }

    /// Returns whether a session of `self` proves that the export of `other` has ended.
    fn supersedes(&self, other: &Self) -> bool {
        self.address == other.address && self.instance != other.instance
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastSessionState {
    /// Requests use the session.
    Live,
    /// The session has ended, and requests of it may still reach the drive.
    Unfenced,
    /// No request of the session can reach the drive.
    Fenced,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    epoch: Epoch,
    origin: Origin,
    state: LastSessionState,
}

/// The reason why a session must not become a path of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The session of this epoch on this path must be fenced first; the target can be asked.
    Unfenced(u8, Epoch),
    /// Another export is in use, or was used and is not fenced.
    OtherExport,
}

/// The last session of each path; see the module.
#[derive(Debug)]
pub(crate) struct LastSessions([Option<Last>; PATHS_MAX as usize]);

impl LastSessions {
    /// Creates the state of a new disk.
    pub(crate) const fn new() -> Self {
        Self([None; PATHS_MAX as usize])
    }

    fn numbered(&self) -> impl Iterator<Item = (u8, &Last)> + Clone {
        let places = (0..).zip(self.0.iter());
        places.filter_map(|(path, last)| last.as_ref().map(|last| (path, last)))
    }

    /// Returns the reason why a session of `origin` may not become the disk's on `path`, if any.
    pub(crate) fn obstacle(&self, path: u8, origin: &Origin) -> Option<Obstacle> {
        let mut unfenced = None;
        for (number, last) in self.numbered() {
            match last.state {
                LastSessionState::Fenced => {}
                _ if !origin.is_same(&last.origin) => return Some(Obstacle::OtherExport),
                LastSessionState::Unfenced => {
                    unfenced = Some(Obstacle::Unfenced(number, last.epoch))
                }
                // Granting a later session on the same path implies that this one has ended.
                LastSessionState::Live if number == path => return Some(Obstacle::OtherExport),
                LastSessionState::Live => {}
            }
        }
        unfenced
    }

    /// Records that the session of this epoch on `path` becomes the disk's; there is no
    /// [`obstacle`](Self::obstacle).
    pub(crate) fn admit(&mut self, path: u8, epoch: Epoch, origin: Origin) {
        if let Some(place) = self.0.get_mut(usize::from(path)) {
            let state = LastSessionState::Live;
            *place = Some(Last {
                epoch,
                origin,
                state,
            });
        }
    }

    /// Records that the session of this epoch on `path` ends.
    pub(crate) fn end(&mut self, path: u8, epoch: Epoch) {
        self.change(path, |last| {
            if last.epoch == epoch && last.state == LastSessionState::Live {
                last.state = LastSessionState::Unfenced;
            }
        });
    }

    /// Records the response of the session's export that nothing is left of the path up to `epoch`.
    pub(crate) fn fenced(&mut self, path: u8, epoch: Epoch) {
        self.change(path, |last| {
            if last.epoch <= epoch && last.state == LastSessionState::Unfenced {
                last.state = LastSessionState::Fenced;
            }
        });
    }

    /// Records that a target has granted a session of `epoch` and `origin` on `path`. The grant
    /// proves that nothing is left of the path's previous session, if that was at the same address
    /// or of the same export, nor of an export that has ended. A grant to an abandoned attempt may
    /// be recorded late: it proves nothing about a later session on its path.
    pub(crate) fn granted(&mut self, path: u8, epoch: Epoch, origin: &Origin) {
        let before = self.0;
        let is_gone = |of: &Origin| {
            let mut known = before.iter().flatten().map(|last| last.origin);
            known.any(|known| origin.supersedes(&known) && (known == *of || known.is_same(of)))
        };
        for number in 0..PATHS_MAX {
            self.change(number, |last| {
                let same = origin.is_same(&last.origin) || origin.address == last.origin.address;
                let is_before = number != path || last.epoch < epoch;
                let is_over = number == path && same || is_gone(&last.origin);
                // The path's previous session has ended, even if this grant was recorded before
                // that session was recorded as live.
                let has_ended = last.state == LastSessionState::Unfenced || number == path;
                if is_before && is_over && has_ended {
                    last.state = LastSessionState::Fenced;
                }
            });
        }
    }

    /// Returns whether requests use the session of this epoch on `path`.
    pub(crate) fn is_live(&self, path: u8, epoch: Epoch) -> bool {
        let last = self.0.get(usize::from(path)).copied().flatten();
        last.is_some_and(|last| last.epoch == epoch && last.state == LastSessionState::Live)
    }

    /// Returns whether requests of the session of this epoch on `path` may be left.
    pub(crate) fn is_unfenced(&self, path: u8, epoch: Epoch) -> bool {
        let last = self.0.get(usize::from(path)).copied().flatten();
        last.is_some_and(|last| last.epoch == epoch && last.state == LastSessionState::Unfenced)
    }

    fn change(&mut self, path: u8, f: impl FnOnce(&mut Last)) {
        if let Some(Some(last)) = self.0.get_mut(usize::from(path)) {
            f(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{
        IpAddr,
        Ipv4Addr, //
    };

    /// The export of this instance, 0 for none, at an address.
    fn origin(address: u8, instance: u64) -> Origin {
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, address));
        Origin {
            address: SocketAddr::new(ip, 7744),
            instance: ExportInstance::from_number(instance),
        }
    }

    /// A disk whose paths 0, 1 … at the addresses 0, 1 … are live and of this instance, with the
    /// epochs 1, 2 …
    fn live(paths: u8, instance: u64) -> LastSessions {
        let mut last = LastSessions::new();
        for path in 0..paths {
            let origin = origin(path, instance);
            assert_eq!(last.obstacle(path, &origin), None);
            last.admit(path, Epoch(u32::from(path) + 1), origin);
        }
        last
    }

    #[test]
    fn a_path_is_fenced_before_another_one_comes() {
        let mut last = live(1, 1);
        last.end(0, Epoch(1));
        let unfenced = Some(Obstacle::Unfenced(0, Epoch(1)));
        assert_eq!(last.obstacle(1, &origin(1, 1)), unfenced);
        assert!(last.is_unfenced(0, Epoch(1)));
        last.fenced(0, Epoch(1));
        assert!(!last.is_unfenced(0, Epoch(1)));
        assert_eq!(last.obstacle(1, &origin(1, 1)), None);
    }

    #[test]
    fn a_session_that_was_not_the_disks_changes_nothing() {
        let mut last = live(2, 1);
        last.end(0, Epoch(7));
        assert!(!last.is_unfenced(0, Epoch(7)));
        assert!(!last.is_unfenced(0, Epoch(1)));
    }

    #[test]
    fn an_earlier_response_does_not_count() {
        let mut last = live(2, 1);
        last.end(1, Epoch(2));
        last.fenced(1, Epoch(1));
        assert!(last.is_unfenced(1, Epoch(2)));
    }

    #[test]
    fn a_late_grant_shows_nothing_of_a_later_session_on_its_path() {
        let mut last = live(1, 1);
        last.end(0, Epoch(1));
        last.granted(0, Epoch(3), &origin(0, 1));
        last.admit(0, Epoch(3), origin(0, 1));
        assert!(last.is_live(0, Epoch(3)) && !last.is_live(0, Epoch(1)));
        // The grant of an abandoned attempt.
        last.granted(0, Epoch(2), &origin(0, 1));
        assert!(last.is_live(0, Epoch(3)));
        last.end(0, Epoch(3));
        assert!(last.is_unfenced(0, Epoch(3)));
        last.granted(0, Epoch(2), &origin(0, 2));
        assert!(last.is_unfenced(0, Epoch(3)));
        last.granted(0, Epoch(4), &origin(0, 1));
        assert!(!last.is_unfenced(0, Epoch(3)));
    }

    #[test]
    fn another_machine_with_the_same_volume_is_no_path() {
        let other = Some(Obstacle::OtherExport);
        let mut last = live(2, 1);
        assert_eq!(last.obstacle(2, &origin(9, 2)), other, "while all are live");
        last.end(0, Epoch(1));
        last.end(1, Epoch(2));
        last.granted(2, Epoch(100), &origin(9, 2));
        assert_eq!(last.obstacle(2, &origin(9, 2)), other, "when none is");
        last.granted(2, Epoch(100), &origin(9, 0));
        assert_eq!(last.obstacle(2, &origin(9, 0)), other, "unknown instance");
    }

    #[test]
    fn nor_does_a_path_lead_there_whose_address_was_changed() {
        let mut last = live(1, 1);
        last.end(0, Epoch(1));
        last.granted(0, Epoch(100), &origin(9, 2));
        assert!(last.is_unfenced(0, Epoch(1)));
        assert_eq!(last.obstacle(0, &origin(9, 2)), Some(Obstacle::OtherExport));
    }

    #[test]
    fn a_grant_fences_earlier_sessions_of_the_path() {
        for instance in [1, 2, 0] {
            let mut last = live(1, 1);
            last.end(0, Epoch(1));
            last.granted(0, Epoch(100), &origin(0, instance));
            assert!(!last.is_unfenced(0, Epoch(1)), "{instance}");
            assert_eq!(last.obstacle(0, &origin(0, instance)), None);
        }
        // At another address of the same target.
        let mut last = live(1, 1);
        last.end(0, Epoch(1));
        last.granted(0, Epoch(100), &origin(9, 1));
        assert_eq!(last.obstacle(0, &origin(9, 1)), None);
        // A target that reports no instance.
        let mut last = live(1, 0);
        last.end(0, Epoch(1));
        last.granted(0, Epoch(100), &origin(0, 0));
        assert_eq!(last.obstacle(0, &origin(0, 0)), None);
    }

    #[test]
    fn a_session_that_ended_before_it_was_recorded_is_in_nobodys_way() {
        for instance in [1, 2] {
            let mut last = live(1, 1);
            last.granted(0, Epoch(100), &origin(0, instance));
            assert_eq!(last.obstacle(0, &origin(0, instance)), None, "{instance}");
        }
        let mut last = live(2, 1);
        last.granted(0, Epoch(100), &origin(0, 1));
        last.end(1, Epoch(2));
        let unfenced = Some(Obstacle::Unfenced(1, Epoch(2)));
        assert_eq!(last.obstacle(0, &origin(0, 1)), unfenced);
    }

    #[test]
    fn a_target_that_started_again_needs_one_of_its_addresses_only() {
        let mut last = live(3, 1);
        for path in 0..3 {
            last.end(path, Epoch(u32::from(path) + 1));
        }
        last.granted(1, Epoch(100), &origin(1, 2));
        for path in 0..3 {
            assert!(
                !last.is_unfenced(path, Epoch(u32::from(path) + 1)),
                "{path}"
            );
        }
        assert_eq!(last.obstacle(1, &origin(1, 2)), None);
    }

    #[test]
    fn live_sessions_of_a_removed_export_must_end_first() {
        let mut last = live(2, 1);
        last.end(0, Epoch(1));
        last.granted(0, Epoch(100), &origin(0, 2));
        let other = Some(Obstacle::OtherExport);
        assert_eq!(last.obstacle(0, &origin(0, 2)), other);
        last.end(1, Epoch(2));
        assert_eq!(last.obstacle(0, &origin(0, 2)), other);
        last.granted(0, Epoch(100), &origin(0, 2));
        assert_eq!(last.obstacle(0, &origin(0, 2)), None);
    }
}
