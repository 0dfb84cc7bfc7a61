// SPDX-License-Identifier: GPL-2.0

//! Asks a target for an entry of a list: with connection requests that the target rejects, so that
//! no connection is made. A host with keys authenticates as the admin queue pair of a session does,
//! and accepts only the target's response.

use super::{
    channel_end,
    not_sent,
    CmLink,
    News, //
};
use crate::{
    admin::{
        Admin,
        AdminOwner, //
    },
    failure::{
        ConnectStep, //
        Failure,
    },
};
use core::net::SocketAddr;
use hcablk_core::{
    crypto::{
        KernelCrypto,
        Key, //
    },
    proto::{
        auth::{
            Channel,
            Initiator,
            CHALLENGE_LEN, //
        },
        connect::{
            Reason,
            SessionId,
            REQUEST_LEN, //
        },
        discovery::{
            DiscoveryReply, //
            Question,
        },
    },
    rdma::{
        cm::{
            Ends,
            Id,
            Parameters, //
        },
        pd::ProtectionDomain, //
    },
    system::Deadline, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The owner of a queue pair for such requests: the pair is never connected, so nothing is
/// reported.
struct Nobody;

impl AdminOwner for Nobody {
    fn is_behind(&self) -> bool {
        false
    }

    fn admin_failed(self: Arc<Self>, _: Failure) {}

    fn on_news(self: Arc<Self>) {}
}

/// A queue pair for one request to the target.
struct Asking {
    link: Arc<CmLink>,
    id: Arc<Id>,
    pair: Arc<Admin>,
    channel: Channel,
}

impl Asking {
    /// Creates the queue pair, to send a connection request to `address`. Sleeps.
    fn new(address: &SocketAddr, deadline: Deadline) -> Result<Self, Failure> {
        let (link, id) = CmLink::new()?;
        link.resolve(&id, address, deadline)?;
        id.resolve_route(deadline.left_ms())
            .map_err(|e| Failure::Step(ConnectStep::Route, e))?;
        let ends = match link.wait(ConnectStep::Route, deadline)? {
            News::RouteResolved(ends) => ends,
            _ => Ends::default(),
        };
        let pair = ProtectionDomain::new(&id)
            .and_then(|pd| {
                let nobody = Arc::new(Nobody, GFP_KERNEL)?;
                Admin::new(nobody, SessionId(0), 1, &id, &pd)
            })
            .map_err(|e| Failure::Setup("a queue pair", e))?;
        let channel = Channel {
            initiator: channel_end(&ends.own, pair.queue_pair()),
            target: channel_end(&ends.peer, 0),
        };
        Ok(Self {
            link,
            id,
            pair,
            channel,
        })
    }

    /// Sends the request `bytes`, and returns the private data of the reject with `reason`, padded
    /// by zeroes. Fails on any other event. A peer that grants the request is not a target.
    fn ask(
        &self,
        bytes: &[u8; REQUEST_LEN],
        reason: Reason,
        deadline: Deadline,
    ) -> Result<[u8; CHALLENGE_LEN], Failure> {
        let parameters = Parameters {
            responder_resources: 1,
            initiator_depth: 0,
        };
        self.pair
            .pair()
            .connect_held(parameters, bytes)
            .map_err(not_sent)?;
        match self.link.wait(ConnectStep::Response, deadline)? {
            // A caller with a key verifies the bytes.
            News::Rejected(reject, bytes) if reject.reason == reason => Ok(bytes),
            News::Rejected(reject, _) => Err(Failure::Unsealed(reject)),
            _ => Err(Failure::NotATarget),
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.id.detach();
        self.pair.close();
    }
}

/// Asks the target at `address`. With `pair`, both sides prove their identity. Sleeps, until the
/// deadline at most.
pub(crate) fn ask(
    address: &SocketAddr,
    question: &Question,
    pair: Option<Key>,
    deadline: Deadline,
) -> Result<DiscoveryReply, Failure> {
    let bytes = question.encode();
    let Some(pair) = pair else {
        let asking = Asking::new(address, deadline)?;
        let reply = asking.ask(&bytes, Reason::Entry, deadline)?;
        return DiscoveryReply::decode(&reply, question).map_err(Failure::BadReply);
    };
    let initiator = Initiator::<KernelCrypto>::new(pair, &bytes)
        .ok_or(Failure::Setup("random numbers", EINTR))?;
    let challenge = challenge(address, initiator.hello(), deadline)?;
    let second = Asking::new(address, deadline)?;
    let unconfirmed = initiator
        .prove(&challenge, &second.channel)
        .ok_or(Failure::BadReply("the challenge is malformed"))?;
    let reply = second.ask(unconfirmed.proof(), Reason::Entry, deadline)?;
    let entry = unconfirmed
        .open_entry(&reply, &second.channel)
        .ok_or(Failure::OtherKeys)?;
    DiscoveryReply::decode(&entry, question).map_err(Failure::BadReply)
}

/// Sends this host's identity, and returns the challenge to prove it.
fn challenge(
    address: &SocketAddr,
    hello: &[u8; REQUEST_LEN],
    deadline: Deadline,
) -> Result<[u8; CHALLENGE_LEN], Failure> {
    let asking = Asking::new(address, deadline)?;
    match asking.ask(hello, Reason::Challenge, deadline) {
        Err(Failure::Unsealed(reject)) if reject.reason == Reason::Entry => {
            Err(Failure::NoChallenge)
        }
        result => result,
    }
}
