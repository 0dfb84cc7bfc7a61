// SPDX-License-Identifier: GPL-2.0

//! Connects the admin queue pair when this host and the target authenticate each other.
//!
//! The target responds to the first request with a challenge, in a reject. The queue pair of that
//! request is not used for anything else. The second request carries the proof. The reply to it
//! authenticates the target, and none of its fields is evaluated before its MAC is verified.

use super::{
    establish,
    padded,
    AttemptLinks,
    News,
    StartingPair, //
};
use crate::{
    failure::{
        ConnectStep, //
        Failure,
    },
    keys::SessionProof,
    session::Session, //
};
use core::net::SocketAddr;
use hcablk_core::{
    crypto::{
        KernelCrypto,
        Key, //
    },
    proto::{
        auth::{
            Initiator,
            CHALLENGE_LEN, //
        },
        connect::{
            Reason,
            Reply,
            REQUEST_LEN, //
        },
    },
    system::Deadline, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl StartingPair {
    /// Connects the admin queue pair of `owner`: proves this host's identity with `pair`, and
    /// returns the reply of a peer that has proven to be the target. The first deadline limits the
    /// wait for the challenge, the second the whole.
    pub(crate) fn prove(
        self,
        owner: &Arc<Session>,
        pair: Key,
        address: &SocketAddr,
        attempt: &AttemptLinks,
        (response, deadline): (Deadline, Deadline),
    ) -> Result<Reply, Failure> {
        let request = self.request;
        let initiator = Initiator::<KernelCrypto>::new(pair, &request.encode())
            .ok_or(Failure::Setup("random numbers", EINTR))?;
        let challenge = self.challenge(owner, initiator.hello(), response)?;
        let (link, id) = attempt.connection()?;
        link.resolve(&id, address, deadline)?;
        let mut one = Self::new(link, id, request);
        one.resolve_route(deadline)?;
        let admin = owner.clone().make_admin(&one.id)?;
        let channel = one.channel(admin.queue_pair());
        let unconfirmed = initiator
            .prove(&challenge, &channel)
            .ok_or(Failure::NotATarget)?;
        one.send_held(owner, admin.pair(), unconfirmed.proof())?;
        match one.link.wait(ConnectStep::Response, deadline)? {
            News::Granted(bytes, target_qp) => {
                let channel = channel.of_reply(target_qp);
                let (reply, key, handle) = unconfirmed
                    .confirm(&bytes, &channel)
                    .ok_or(Failure::OtherKeys)?;
                let proof = SessionProof::new(key, handle);
                let proof = Arc::new(proof, GFP_KERNEL)
                    .map_err(|e| Failure::Setup("a session", e.into()))?;
                owner.set_proof(proof);
                let reply = Reply::decode(&reply, &request).ok_or(Failure::NotATarget)?;
                establish(admin.pair())?;
                Ok(reply)
            }
            News::Rejected(reject, bytes) => Err(match unconfirmed.is_rejected(&bytes, &channel) {
                true => Failure::Refused(reject),
                false => Failure::Unsealed(reject),
            }),
            _ => Err(Failure::NotATarget),
        }
    }

    /// Sends the hello, and returns the target's challenge.
    fn challenge(
        mut self,
        owner: &Arc<Session>,
        hello: &[u8; REQUEST_LEN],
        deadline: Deadline,
    ) -> Result<[u8; CHALLENGE_LEN], Failure> {
        self.resolve_route(deadline)?;
        let probe = owner.clone().make_probe(&self.id)?;
        let sent = self.send_held(owner, probe.pair(), hello);
        let news = sent.and_then(|()| self.link.wait(ConnectStep::Response, deadline));
        // The end of this connection does not concern the session.
        self.id.detach();
        probe.close();
        match news? {
            News::Rejected(reject, bytes) if reject.reason == Reason::Challenge => {
                Ok(padded(&bytes))
            }
            News::Rejected(reject, _) => Err(Failure::Unsealed(reject)),
            News::Granted(..) => Err(Failure::NoChallenge),
            _ => Err(Failure::NotATarget),
        }
    }
}
