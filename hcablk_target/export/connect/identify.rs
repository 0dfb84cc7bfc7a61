// SPDX-License-Identifier: GPL-2.0

//! Identifies the host that requests a connection: it proves its identity, unless no proof is
//! required.
//!
//! Before this, nothing is looked up or allocated for a request. A host without a valid proof gets
//! the same reply whether the volume exists or not, whether the host is allowed or not, and
//! whether a key is wrong; only the log of this machine shows the cause.

use super::{
    Connect,
    Refusal, //
};
use crate::{
    export::{
        keys::Proven,
        volume::Volume, //
    },
    session::SessionProof, //
};
use core::net::IpAddr;
use hcablk_core::{
    crypto::KernelCrypto,
    proto::{
        auth::{
            self,
            Challenged,
            Channel,
            Proof,
            Purpose,
            RequestForm,
            Sealed,
            MAC_LEN, //
        },
        connect::{
            ConnectRequest, //
            Reason,
            Reject,
            Reply,
        },
        discovery::{
            DiscoveryReply, //
            Question,
        },
    },
    rdma::cm::{
        self,
        Ends,
        Id, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The origin of a request.
pub(super) struct Peer {
    pub(super) ends: Ends,
    pub(super) qp: u32,
}

fn end(end: &cm::End, qp: u32) -> auth::End {
    let cm::End { gid, ip, port } = *end;
    auth::End { gid, ip, port, qp }
}

impl Peer {
    fn channel(&self) -> Channel {
        Channel {
            initiator: end(&self.ends.peer, self.qp),
            target: end(&self.ends.own, 0),
        }
    }
}

/// Seals the responses to a proven request.
pub(super) struct Seal {
    pub(super) proof: Arc<SessionProof>,
    /// The volume on which a session may begin.
    volume: Option<Arc<Volume>>,
    /// The kind of proof.
    proven: Proven,
    request: [u8; MAC_LEN],
    channel: Channel,
}

/// A request, and the seal of its response if the request is proven.
pub(super) type Identified = (ConnectRequest, Option<Seal>);

/// A refusal of an unproven request, and the request as far as it is known.
pub(super) type Unproven = (Option<ConnectRequest>, Refusal);

/// Returns the request for a queue pair, if `purpose` is a connection.
fn connection(purpose: &Purpose) -> Option<ConnectRequest> {
    match purpose {
        Purpose::Connection(request) => Some(*request),
        Purpose::Entry(_) => None,
    }
}

/// Returns an address in the format of the connection manager: an IPv4 address, which never begins
/// with 0, is in the last four bytes.
fn own_address(ip: &[u8; 16]) -> IpAddr {
    match *ip {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] if a != 0 => IpAddr::from([a, b, c, d]),
        _ => IpAddr::from(*ip),
    }
}

impl Connect {
    /// Identifies the requesting host. Returns `Ok(None)` if a reply was sent already, with a
    /// challenge or an entry of a list.
    pub(super) fn identify(
        &self,
        request: RequestForm,
        id: &Id,
    ) -> Result<Option<Identified>, Unproven> {
        match request {
            // Whether a request without proof suffices is decided later.
            RequestForm::Plain(Purpose::Connection(request)) => Ok(Some((request, None))),
            RequestForm::Plain(Purpose::Entry(question)) => {
                id.reject(&self.discovery_reply(&question, Proven::Not).encode());
                Ok(None)
            }
            RequestForm::Hello(purpose, hello) => {
                // Before the table is locked: this is slow.
                let challenge = Challenged::<KernelCrypto>::new(purpose, hello)
                    .ok_or(EINTR)
                    .and_then(|challenged| {
                        self.registry.challenge(self.peer.ends.peer.ip, challenged)
                    })
                    .map_err(|_| (connection(&purpose), Refusal::NO_MEMORY))?;
                id.reject(&challenge);
                Ok(None)
            }
            RequestForm::Proof(proof) => self.check_proof(&proof, id),
            RequestForm::Sealed(sealed) => self.check_seal(&sealed).map(Some),
        }
    }

    fn check_proof(&self, proof: &Proof, id: &Id) -> Result<Option<Identified>, Unproven> {
        let not_proven = |why| Refusal::new(Reason::NotProven, why);
        let address = &self.peer.ends.peer.ip;
        let no_challenge = || {
            let why = "its proof belongs to no challenge that is still open for this address";
            (None, not_proven(why))
        };
        let found = self.registry.challenged(proof.handle(), address);
        let (challenged, number) = found.ok_or_else(no_challenge)?;
        let purpose = *challenged.purpose();
        let named = connection(&purpose);
        let candidates = match &purpose {
            Purpose::Connection(request) if request.volume.is_none() => {
                self.registry.candidates_of(request.host)
            }
            Purpose::Connection(request) => self.registry.candidates(request),
            Purpose::Entry(question) => self.registry.candidates_of(question.host),
        };
        let candidates = candidates.map_err(|_| (named, Refusal::NO_MEMORY))?;
        let channel = self.peer.channel();
        // Verify even if the proof cannot be valid: the duration must not reveal what exists.
        let key = challenged.verify(proof, candidates.pairs.iter(), &channel);
        let key = key.and_then(|(place, key)| Some((candidates.pairs.keys(place)?, key)));
        let (Some((keys, key)), None) = (key, candidates.why_none) else {
            let other = "its proof was not made with the keys that are set for it and this target";
            let why = candidates.why_none.unwrap_or(other);
            return Err((named, not_proven(why)));
        };
        // Only now: a peer without the keys must not be able to use the challenge up.
        if !self
            .registry
            .take_challenge((proof.handle(), number), address)
        {
            return Err(no_challenge());
        }
        let proven = Proven::ByKeys(number, keys);
        let request = match purpose {
            Purpose::Connection(request) => request,
            Purpose::Entry(question) => {
                let reply = self.discovery_reply(&question, proven).encode();
                id.reject(&key.seal_entry(&proof.mac(), &reply, &channel));
                return Ok(None);
            }
        };
        let seal = Seal {
            proof: SessionProof::new(key).map_err(|_| (named, Refusal::NO_MEMORY))?,
            volume: candidates.volume,
            proven,
            request: proof.mac(),
            channel,
        };
        Ok(Some((request, Some(seal))))
    }

    /// Returns the reply to a discovery question.
    fn discovery_reply(&self, question: &Question, proven: Proven) -> DiscoveryReply {
        self.registry
            .reply(question, proven, own_address(&self.peer.ends.own.ip))
    }

    fn check_seal(&self, sealed: &Sealed) -> Result<Identified, Unproven> {
        let refuse = |why| (None, Refusal::new(Reason::NoSession, why));
        let channel = self.peer.channel();
        let found = self.registry.proven_session(sealed.session());
        let (session, proof) = found
            .filter(|(_, proof)| proof.has_sealed(sealed, &channel))
            .ok_or(refuse("it does not hold the key of an existing session"))?;
        if !proof.is_new(sealed) {
            return Err(refuse("it repeats an earlier request"));
        }
        let names = (session.id(), session.epoch());
        let request = sealed
            .request(names, session.host(), session.volume())
            .map_err(|reason| (None, Refusal::new(reason, "the request makes no sense")))?;
        let seal = Seal {
            proof,
            volume: None,
            proven: Proven::BySession,
            request: sealed.mac(),
            channel,
        };
        Ok((request, Some(seal)))
    }
}

/// Returns the kind of proof of a request with this seal, or without one.
pub(super) fn proven(seal: Option<&Seal>) -> Proven {
    seal.map_or(Proven::Not, |seal| seal.proven)
}

impl Seal {
    /// Returns whether the proof was made for another volume than `volume`, such as a former volume
    /// of the same name.
    pub(super) fn is_for_other(&self, volume: &Arc<Volume>) -> bool {
        let own = self.volume.as_ref();
        own.is_some_and(|own| !Arc::ptr_eq(own, volume))
    }
}

/// Rejects the request of `id`.
pub(super) fn reject(id: &Id, reject: &Reject, seal: Option<&Seal>) {
    match seal {
        None => id.reject(&reject.encode()),
        Some(seal) => {
            let key = &seal.proof.key;
            id.reject(&key.seal_reject(&seal.request, reject, &seal.channel));
        }
    }
}

/// Calls `send` with the private data of `reply`, for queue pair `qp`.
pub(super) fn with_reply(
    reply: &Reply,
    seal: Option<&Seal>,
    qp: u32,
    send: impl FnOnce(&[u8]) -> Result,
) -> Result {
    let reply = reply.encode();
    let Some(seal) = seal else {
        return send(&reply);
    };
    let channel = seal.channel.of_reply(qp);
    let proof = &seal.proof;
    send(
        &proof
            .key
            .seal_reply(&seal.request, &reply, proof.handle(), &channel),
    )
}
