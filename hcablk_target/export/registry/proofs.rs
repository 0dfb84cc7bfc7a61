// SPDX-License-Identifier: GPL-2.0

//! Challenges, and the keys that a host may prove itself with.

use super::Registry;
use crate::export::{
    admission,
    challenges::{
        choose,
        look,
        take,
        Address,
        Entry, //
    },
    keys::{
        Keys,
        Pairs,
        ProofKeys,
        Proven, //
    },
    volume::Volume, //
};
use hcablk_core::{
    crypto::{
        KernelCrypto, //
        Key,
    },
    proto::{
        auth::{
            Challenged,
            CHALLENGE_LEN,
            KEYS_MAX, //
        },
        connect::{
            ConnectRequest, //
            Epoch,
        },
        name::HostId, //
    },
    sync::atomic::Relaxed,
    system, //
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        UniqueArc, //
    },
};

const NO_VOLUME: &str = "there is no such volume";
const NOT_ALLOWED: &str = "this host is not allowed";
const NO_KEY: &str = "no key of this host is set";

impl Registry {
    /// Returns the exported volume of this name.
    fn exported(&self, request: &ConnectRequest) -> Option<Arc<Volume>> {
        let lists = self.lists.lock();
        let exported = |v: &&Arc<Volume>| Some(v.name()) == request.volume && v.is_exported();
        lists.volumes.iter().find(exported).cloned()
    }

    /// Stores the challenge of an initiator at `address`, and returns the message to send. Fails
    /// with `ENOMEM`. May sleep.
    pub(crate) fn challenge(
        &self,
        address: Address,
        challenged: Challenged<KernelCrypto>,
    ) -> Result<[u8; CHALLENGE_LEN]> {
        let mut challenged = UniqueArc::new(challenged, GFP_KERNEL)?;
        let now_ms = system::now_ns() / 1_000_000;
        let random = system::random_u64() as u32;
        let number = self.challenge_count.fetch_add(1, Relaxed).wrapping_add(1);
        let mut challenges = self.challenges.lock();
        let (place, handle) = choose(&challenges, &address, now_ms, random);
        challenged.set_handle(handle);
        let challenge = *challenged.challenge();
        let place = challenges.get_mut(place).ok_or(EINVAL)?;
        let entry = Entry::new((handle, number), address, now_ms, challenged.into());
        let former = place.replace(entry);
        drop(challenges);
        drop(former);
        Ok(challenge)
    }

    /// Returns the challenge of this handle, for checking a proof, and its number, if it was sent
    /// to an initiator at `address` and is not too old.
    pub(crate) fn challenged(
        &self,
        handle: u16,
        address: &Address,
    ) -> Option<(Arc<Challenged<KernelCrypto>>, u64)> {
        let now_ms = system::now_ns() / 1_000_000;
        look(&mut self.challenges.lock(), handle, address, now_ms)
    }

    /// Removes the challenge of this handle and number, for which a correct proof has arrived.
    /// Returns `false` if another proof was faster.
    pub(crate) fn take_challenge(&self, named: (u16, u64), address: &Address) -> bool {
        let now_ms = system::now_ns() / 1_000_000;
        take(&mut self.challenges.lock(), named, address, now_ms)
    }

    /// Returns the keys for checking a proof of the requesting host. Fails with `ENOMEM`.
    pub(crate) fn candidates(&self, request: &ConnectRequest) -> Result<Candidates> {
        let volume = self.exported(request);
        let by =
            |keys: &Keys, why| self.candidates_by(keys.each(&self.nobody), volume.clone(), why);
        // The work is the same in all cases, so that its duration reveals nothing.
        let nobodys = |why| by(&Keys::new(), Some(why));
        match &volume {
            None => nobodys(NO_VOLUME),
            Some(volume) => volume.with_keys(request.host, |keys| match keys {
                None => nobodys(NOT_ALLOWED),
                Some(keys) if keys.count() == 0 => nobodys(NO_KEY),
                Some(keys) => by(keys, None),
            }),
        }
    }

    /// Returns why a proof that `host` has made for other volumes does not hold for `volume`.
    pub(crate) fn why_unproven(&self, volume: Option<&Arc<Volume>>, host: HostId) -> &'static str {
        let Some(volume) = volume else {
            return NO_VOLUME;
        };
        volume.with_keys(host, |keys| match keys {
            None => NOT_ALLOWED,
            Some(keys) if keys.count() == 0 => NO_KEY,
            Some(_) => {
                "its session was not begun with keys that are set for the volume and this target"
            }
        })
    }

    /// Returns the keys for checking a proof that was made with one of the keys `of_host`. Fails
    /// with `ENOMEM`.
    pub(super) fn candidates_by(
        &self,
        of_host: [&Key; KEYS_MAX],
        volume: Option<Arc<Volume>>,
        why: Option<&'static str>,
    ) -> Result<Candidates> {
        let of_target = self.keys.lock();
        let none = (of_target.count() == 0).then_some("no key of this target is set");
        let pairs = Pairs::derive(of_host, of_target.each(&self.nobody));
        Ok(Candidates {
            pairs: KBox::new(pairs, GFP_KERNEL)?,
            volume,
            why_none: why.or(none),
        })
    }

    /// Returns the state of `volume` for a request, as [`Volume::admission`] does, and takes into
    /// account whether this target's own key of the proof was withdrawn.
    pub(crate) fn admission(
        &self,
        volume: &Volume,
        request: &ConnectRequest,
        proven: Proven,
    ) -> (admission::Volume, Option<Epoch>) {
        let is_gone = |keys: ProofKeys| !self.keys.lock().has(keys.target);
        let (mut seen, last_epoch) = volume.admission(request, proven);
        seen.revoked |= proven.keys().is_some_and(is_gone);
        (seen, last_epoch)
    }
}

/// The keys for checking a proof.
pub(crate) struct Candidates {
    /// The pair keys with which the proof may be made; some are of keys that no one has.
    pub(crate) pairs: KBox<Pairs>,
    /// The volume for which the keys are set.
    pub(crate) volume: Option<Arc<Volume>>,
    /// The reason why no proof can be correct, for the log.
    pub(crate) why_none: Option<&'static str>,
}
