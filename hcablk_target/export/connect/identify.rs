// SPDX-License-Identifier: GPL-2.0

//! Who asks for a connection: an initiator that proves who it is, or one that need not.
//!
//! Nothing is looked up for a request before this, and nothing is made for it. Who cannot prove who it is learns the same
//! whether there is a volume of that name or not, whether the host is allowed, and whether a key is wrong; the log of this machine
//! tells which.

use super::{
    Connect,
    Refusal, //
};
use crate::{
    export::volume::Volume,
    session::SessionProof, //
};
use hcablk_core::{
    crypto::KernelCrypto,
    proto::{
        auth::{
            Asked,
            Challenged,
            Channel,
            Proof,
            Sealed,
            MAC_LEN, //
        },
        connect::{
            Reason,
            Reject,
            Reply,
            Request, //
        },
    },
    rdma::cm::{
        Gids,
        Id, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// From where a request came.
pub(super) struct Peer {
    pub(super) address: [u8; 16],
    pub(super) gids: Gids,
    pub(super) qp: u32,
}

impl Peer {
    fn channel(&self) -> Channel {
        Channel {
            initiator: self.gids.peer,
            target: self.gids.own,
            initiator_qp: self.qp,
            target_qp: 0,
        }
    }
}

/// How what answers a proven request is sealed.
pub(super) struct Seal {
    pub(super) proof: Arc<SessionProof>,
    /// Which volume a session is to begin on.
    volume: Option<Arc<Volume>>,
    request: [u8; MAC_LEN],
    channel: Channel,
}

/// A request, and how its answer is sealed, if that is proven.
pub(super) type Identified = (Request, Option<Seal>);

/// A refusal of who may not be answered by more, and what was asked for, as far as that is known.
pub(super) type Unproven = (Option<Request>, Refusal);

impl Connect {
    /// Finds out who asks. `Ok(None)`: it was challenged, and that is its answer.
    pub(super) fn identify(&self, asked: Asked, id: &Id) -> Result<Option<Identified>, Unproven> {
        match asked {
            // Whether that will do is decided with the rest.
            Asked::Plain(request) => Ok(Some((request, None))),
            Asked::Hello(request, hello) => {
                let challenge = self
                    .registry
                    .challenge(self.peer.address, |handle| {
                        Challenged::<KernelCrypto>::new(request, hello, handle)
                    })
                    .map_err(|_| (Some(request), Refusal::NO_MEMORY))?;
                id.reject(&challenge);
                Ok(None)
            }
            Asked::Proof(proof) => self.check_proof(&proof).map(Some),
            Asked::Sealed(sealed) => self.check_seal(&sealed).map(Some),
        }
    }

    fn check_proof(&self, proof: &Proof) -> Result<Identified, Unproven> {
        let not_proven = |why| Refusal::new(Reason::NotProven, why);
        let challenged = self
            .registry
            .challenged(proof.handle(), &self.peer.address)
            .ok_or((
                None,
                not_proven("it answers no challenge that this address may answer still"),
            ))?;
        let request = *challenged.request();
        let candidates = self
            .registry
            .candidates(&request)
            .map_err(|_| (Some(request), Refusal::NO_MEMORY))?;
        let channel = self.peer.channel();
        // In any case: how long it takes tells nobody what there is.
        let key = challenged.verify(proof, candidates.pairs.iter(), &channel);
        let (Some(key), Some(volume), None) = (key, candidates.volume, candidates.why_none) else {
            let other = "its proof is not by the keys that are set for it and this target";
            let why = candidates.why_none.unwrap_or(other);
            return Err((Some(request), not_proven(why)));
        };
        let proven = SessionProof::new(key).map_err(|_| (Some(request), Refusal::NO_MEMORY))?;
        let seal = Seal {
            proof: proven,
            volume: Some(volume),
            request: proof.mac(),
            channel,
        };
        Ok((request, Some(seal)))
    }

    fn check_seal(&self, sealed: &Sealed) -> Result<Identified, Unproven> {
        let refuse = |why| (None, Refusal::new(Reason::NoSession, why));
        let channel = self.peer.channel();
        let found = self.registry.proven_session(sealed.session());
        let (session, proof) = found
            .filter(|(_, proof)| proof.has_sealed(sealed, &channel))
            .ok_or(refuse("it has not the key of a session that is there"))?;
        if !proof.is_new(sealed) {
            return Err(refuse("it has come before"));
        }
        let names = (session.id(), session.epoch());
        let request = sealed
            .request(names, session.host(), session.volume_name())
            .map_err(|reason| (None, Refusal::new(reason, "the request makes no sense")))?;
        let seal = Seal {
            proof,
            volume: None,
            request: sealed.mac(),
            channel,
        };
        Ok((request, Some(seal)))
    }
}

impl Seal {
    /// Returns whether it was not made for `volume`, which may have the name of one that is gone.
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

/// Hands the private data that `reply` is, by queue pair `qp`, to `send`.
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
    let channel = Channel {
        target_qp: qp,
        ..seal.channel
    };
    let proof = &seal.proof;
    send(
        &proof
            .key
            .seal_reply(&seal.request, &reply, proof.handle(), &channel),
    )
}
