// SPDX-License-Identifier: GPL-2.0

//! Decides whether a connection request is granted. Uses nothing but `core` and the wire format:
//! its tests run on the host.

use crate::proto::connect::{
    ConnectRequest, //
    Epoch,
    Reason,
};

/// The state of the target that matters for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// The volume, if it is exported.
    pub(crate) volume: Option<Volume>,
    /// The session that the request names, of the requesting host, on the requested volume.
    pub(crate) session: Option<Session>,
    /// The last epoch of the session, if the target remembers one; also set if there is no session.
    pub(crate) last_epoch: Option<Epoch>,
    /// The host has sessions of another instance on the volume.
    pub(crate) other_instance: bool,
}

/// The state of a volume that matters for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Volume {
    /// The volume demands a proof of identity, and the request has none.
    pub(crate) unproven: bool,
    /// The key of the proof is no longer set.
    pub(crate) revoked: bool,
    /// The volume is being disabled and accepts no new connections.
    pub(crate) withdrawn: bool,
    /// The requesting host is among those allowed.
    pub(crate) allowed: bool,
    /// The requesting host is evicted.
    pub(crate) evicted: bool,
    /// A later instance of the requesting host has connected.
    pub(crate) superseded: bool,
}

impl Volume {
    /// Returns whether a session may begin on the volume.
    pub(crate) fn is_open(&self) -> bool {
        let is_known = !self.unproven && !self.revoked && self.allowed;
        is_known && !self.evicted && !self.superseded && !self.withdrawn
    }
}

/// The state of a session that matters for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    /// Its epoch.
    pub(crate) epoch: Epoch,
    /// The session is being torn down.
    pub(crate) ending: bool,
    /// The number of queue pairs that the session was begun with.
    pub(crate) queues: u8,
    /// The requested queue is connected already.
    pub(crate) has_queue: bool,
}

/// The decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Create a session with this as its admin queue pair.
    Begin,
    /// End the sessions of the host's other instances, wait until they have ended completely, and
    /// decide again.
    Supersede,
    /// End the existing session, of an older epoch, wait until it has ended completely, and decide
    /// again.
    Replace,
    /// Add the queue pair to the existing session.
    Join,
    /// Remove the queue pair of this number from the session, wait until it has ended completely,
    /// and decide again.
    ReplaceQueue,
    /// Refuse the request for this reason.
    Refuse(Reason),
}

impl Decision {
    /// Returns whether the request will begin a session or an attachment, after older ones have
    /// ended.
    pub(crate) fn is_grant(self) -> bool {
        matches!(self, Self::Begin | Self::Supersede | Self::Replace)
    }
}

/// Decides about a well-formed request.
///
/// A host without the required proof learns nothing about a volume; a host that is not allowed
/// learns only that it cannot have the volume. A session's newer epoch replaces the older one, and
/// a host's newer instance the older ones, only when these can no longer write.
pub(crate) fn decide(request: &ConnectRequest, view: &View) -> Decision {
    let refuse = Decision::Refuse;
    let Some(volume) = view.volume else {
        return refuse(Reason::UnknownVolume);
    };
    if volume.unproven {
        return refuse(Reason::UnknownVolume);
    }
    if volume.revoked {
        return refuse(Reason::NotProven);
    }
    if !volume.allowed {
        return refuse(Reason::Forbidden);
    }
    if volume.evicted {
        return refuse(Reason::Evicted);
    }
    if volume.superseded {
        return refuse(Reason::Superseded);
    }
    if volume.withdrawn {
        return refuse(Reason::Withdrawn);
    }
    let first = request.is_admin();
    match (view.session, first) {
        (None, true) => match view.last_epoch {
            Some(last) if request.epoch <= last => refuse(Reason::StaleEpoch),
            _ if view.other_instance => Decision::Supersede,
            _ => Decision::Begin,
        },
        (None, false) => refuse(Reason::NoSession),
        (Some(session), true) => {
            if request.epoch > session.epoch {
                Decision::Replace
            } else {
                refuse(Reason::StaleEpoch)
            }
        }
        (Some(session), false) => {
            if request.epoch < session.epoch {
                refuse(Reason::StaleEpoch)
            } else if request.epoch > session.epoch || session.ending {
                refuse(Reason::NoSession)
            } else if request.queues != session.queues {
                refuse(Reason::Malformed)
            } else {
                match (session.has_queue, request.replace) {
                    (false, _) => Decision::Join,
                    (true, true) => Decision::ReplaceQueue,
                    (true, false) => refuse(Reason::Malformed),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{
        connect::SessionId,
        name::{
            HostId,
            VolumeName, //
        },
        ADMIN_QUEUE, //
    };

    fn request(queue: u8, epoch: u32) -> ConnectRequest {
        ConnectRequest {
            version_min: 2,
            version_max: 2,
            depth: 128,
            queue,
            replace: false,
            queues: 4,
            resume: false,
            alone: false,
            largest: 1 << 20,
            session: SessionId(1),
            epoch: Epoch(epoch),
            host: HostId::parse("6fa459ea-ee8a-3ca4-894e-db77e160355e").unwrap(),
            volume: Some(VolumeName::parse("vol0").unwrap()),
        }
    }

    const VOLUME: Option<Volume> = Some(Volume {
        unproven: false,
        revoked: false,
        withdrawn: false,
        allowed: true,
        evicted: false,
        superseded: false,
    });

    fn session(epoch: u32) -> Option<Session> {
        Some(Session {
            epoch: Epoch(epoch),
            ending: false,
            queues: 4,
            has_queue: false,
        })
    }

    fn decide_with(queue: u8, epoch: u32, volume: Option<Volume>, s: Option<Session>) -> Decision {
        let view = View {
            volume,
            session: s,
            last_epoch: s.map(|s| s.epoch),
            other_instance: false,
        };
        decide(&request(queue, epoch), &view)
    }

    fn decide_alone(epoch: u32, last_epoch: Option<u32>, other_instance: bool) -> Decision {
        let view = View {
            volume: VOLUME,
            session: None,
            last_epoch: last_epoch.map(Epoch),
            other_instance,
        };
        decide(&request(ADMIN_QUEUE, epoch), &view)
    }

    #[test]
    fn volumes_and_hosts() {
        let refuse = Decision::Refuse;
        assert_eq!(
            decide_with(ADMIN_QUEUE, 1, None, None),
            refuse(Reason::UnknownVolume)
        );
        let volume = |withdrawn, allowed| {
            Some(Volume {
                unproven: false,
                revoked: false,
                withdrawn,
                allowed,
                evicted: false,
                superseded: false,
            })
        };
        assert_eq!(
            decide_with(ADMIN_QUEUE, 1, volume(false, false), None),
            refuse(Reason::Forbidden)
        );
        assert_eq!(
            decide_with(ADMIN_QUEUE, 1, volume(true, false), None),
            refuse(Reason::Forbidden),
            "a stranger learns nothing more"
        );
        assert_eq!(
            decide_with(ADMIN_QUEUE, 1, volume(true, true), None),
            refuse(Reason::Withdrawn)
        );
    }

    #[test]
    fn a_host_without_proof_learns_nothing_about_a_volume() {
        for n in 0..16 {
            let is = |bit: u32| n >> bit & 1 == 1;
            let volume = Some(Volume {
                unproven: true,
                revoked: false,
                withdrawn: is(0),
                allowed: is(1),
                evicted: is(2),
                superseded: is(3),
            });
            for (queue, s) in [
                (ADMIN_QUEUE, None),
                (ADMIN_QUEUE, session(1)),
                (1, session(2)),
            ] {
                let unknown = Decision::Refuse(Reason::UnknownVolume);
                assert_eq!(decide_with(queue, 2, volume, s), unknown);
            }
        }
    }

    #[test]
    fn the_admin_queue_pair_begins_and_the_others_join() {
        assert_eq!(decide_with(ADMIN_QUEUE, 1, VOLUME, None), Decision::Begin);
        for queue in [0, 1] {
            let refused = Decision::Refuse(Reason::NoSession);
            assert_eq!(decide_with(queue, 1, VOLUME, None), refused);
        }
        assert_eq!(decide_with(0, 1, VOLUME, session(1)), Decision::Join);
        assert_eq!(decide_with(3, 1, VOLUME, session(1)), Decision::Join);
    }

    #[test]
    fn an_older_epoch_never_comes_in() {
        let stale = Decision::Refuse(Reason::StaleEpoch);
        for queue in [0, 1, 2, 3, ADMIN_QUEUE] {
            assert_eq!(decide_with(queue, 4, VOLUME, session(5)), stale);
        }
        assert_eq!(
            decide_with(ADMIN_QUEUE, 5, VOLUME, session(5)),
            stale,
            "in use"
        );
    }

    #[test]
    fn a_newer_epoch_replaces_and_only_with_its_admin_queue_pair() {
        assert_eq!(
            decide_with(ADMIN_QUEUE, 6, VOLUME, session(5)),
            Decision::Replace
        );
        assert_eq!(
            decide_with(1, 6, VOLUME, session(5)),
            Decision::Refuse(Reason::NoSession)
        );
    }

    #[test]
    fn only_an_allowed_host_learns_that_it_is_evicted_or_superseded() {
        for (allowed, evicted, superseded, withdrawn, reason) in [
            (false, true, true, false, Reason::Forbidden),
            (true, true, true, true, Reason::Evicted),
            (true, true, false, false, Reason::Evicted),
            (true, false, true, true, Reason::Superseded),
        ] {
            let volume = Some(Volume {
                unproven: false,
                revoked: false,
                withdrawn,
                allowed,
                evicted,
                superseded,
            });
            for (queue, s) in [
                (ADMIN_QUEUE, None),
                (ADMIN_QUEUE, session(1)),
                (1, session(2)),
            ] {
                let decision = decide_with(queue, 2, volume, s);
                assert_eq!(decision, Decision::Refuse(reason));
            }
        }
    }

    #[test]
    fn a_key_that_was_withdrawn_while_its_request_waited_begins_nothing() {
        for (allowed, evicted) in [(true, false), (false, true)] {
            let volume = Some(Volume {
                unproven: false,
                revoked: true,
                withdrawn: false,
                allowed,
                evicted,
                superseded: false,
            });
            let decision = decide_with(ADMIN_QUEUE, 2, volume, None);
            assert_eq!(decision, Decision::Refuse(Reason::NotProven));
        }
    }

    #[test]
    fn an_epoch_is_remembered_when_its_session_is_gone() {
        let stale = Decision::Refuse(Reason::StaleEpoch);
        assert_eq!(decide_alone(4, Some(5), false), stale);
        assert_eq!(decide_alone(5, Some(5), true), stale);
        assert_eq!(decide_alone(6, Some(5), false), Decision::Begin);
        assert_eq!(decide_alone(1, None, false), Decision::Begin);
    }

    #[test]
    fn a_new_instance_supersedes_earlier_ones() {
        assert_eq!(decide_alone(1, None, true), Decision::Supersede);
        assert_eq!(decide_alone(6, Some(5), true), Decision::Supersede);
    }

    #[test]
    fn a_queue_joins_once_and_only_a_session_of_its_size() {
        let with = |change: fn(&mut Session)| {
            let mut s = session(1).unwrap();
            change(&mut s);
            decide_with(1, 1, VOLUME, Some(s))
        };
        let malformed = Decision::Refuse(Reason::Malformed);
        assert_eq!(with(|s| s.has_queue = true), malformed);
        assert_eq!(with(|s| s.queues = 3), malformed);
        assert_eq!(
            with(|s| s.ending = true),
            Decision::Refuse(Reason::NoSession)
        );
    }

    #[test]
    fn a_queue_is_replaced_in_its_own_session_only() {
        let no_session = Decision::Refuse(Reason::NoSession);
        for queue in [0, 1] {
            let with = |epoch, s: Option<Session>| {
                let request = ConnectRequest {
                    replace: true,
                    ..request(queue, epoch)
                };
                decide(
                    &request,
                    &View {
                        volume: VOLUME,
                        session: s,
                        last_epoch: None,
                        other_instance: false,
                    },
                )
            };
            let there = |change: fn(&mut Session)| {
                let mut s = session(5).unwrap();
                s.has_queue = true;
                change(&mut s);
                Some(s)
            };
            assert_eq!(with(5, there(|_| ())), Decision::ReplaceQueue);
            assert_eq!(
                with(5, there(|s| s.has_queue = false)),
                Decision::Join,
                "the former queue pair has ended"
            );
            assert_eq!(
                with(5, there(|s| s.queues = 3)),
                Decision::Refuse(Reason::Malformed)
            );
            assert_eq!(with(5, there(|s| s.ending = true)), no_session);
            assert_eq!(with(6, there(|_| ())), no_session, "begins no session");
            assert_eq!(with(4, there(|_| ())), Decision::Refuse(Reason::StaleEpoch));
            assert_eq!(with(5, None), no_session);
        }
    }
}
