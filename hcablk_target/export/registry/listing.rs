// SPDX-License-Identifier: GPL-2.0

//! Reports to a host, before it connects, the volumes that it may use, and the target's addresses.
//!
//! A host without a proof learns only of volumes that do not demand one. The addresses are reported
//! to hosts that may learn of at least one volume.

use super::{
    proofs::Candidates,
    Registry, //
};
use crate::export::{
    keys::{
        Keys,
        Proven, //
    },
    portals, //
};
use core::net::{
    IpAddr,
    SocketAddr, //
};
use hcablk_core::{
    crypto::Key,
    proto::{
        auth::KEYS_MAX,
        discovery::{
            DiscoveryReply, //
            Entry,
            List,
            Listing,
            Question,
        },
        name::HostId, //
    },
    sync::atomic::{
        Acquire,
        Relaxed,
        Release, //
    },
};
use kernel::prelude::*;

impl Registry {
    /// Returns the reply to a question that arrived at the address `own`.
    pub(crate) fn reply(&self, question: &Question, proven: Proven, own: IpAddr) -> DiscoveryReply {
        let mut listing = Listing::new(question);
        let lists = self.lists.lock();
        let mut volumes = lists
            .volumes
            .iter()
            .filter_map(|volume| volume.entry(question.host, proven));
        match question.list {
            List::Volumes => volumes.for_each(|volume| listing.add(Entry::Volume(volume))),
            List::Portals if volumes.next().is_some() => {
                portals::list(&lists.portals, own, &mut listing);
            }
            List::Portals => {}
        }
        listing.into_reply()
    }

    /// Reports `portal` to hosts from now on. Fails with `ENOMEM`.
    pub(crate) fn add_portal(&self, portal: SocketAddr) -> Result {
        let mut lists = self.lists.lock();
        lists.portals.push(portal, GFP_KERNEL)?;
        self.change_portals();
        Ok(())
    }

    /// Stops reporting `portal` to hosts.
    pub(crate) fn remove_portal(&self, portal: SocketAddr) {
        let mut lists = self.lists.lock();
        lists.portals.retain(|other| *other != portal);
        self.change_portals();
    }

    /// Counts a change of the portals, after it was made. Under the lock of the lists.
    fn change_portals(&self) {
        let next = self.portals_generation.load(Relaxed).wrapping_add(1);
        self.portals_generation.store(next.max(1), Release);
    }

    /// Returns a number, never 0, that changes after the portals have changed. Any context.
    pub(crate) fn portals_generation(&self) -> u32 {
        self.portals_generation.load(Acquire)
    }

    /// Returns the keys for checking a proof of `host` that asks for an entry: the first keys that
    /// are set for the host on any exported volumes. Fails with `ENOMEM`.
    pub(crate) fn candidates_of(&self, host: HostId) -> Result<Candidates> {
        // The keys are of several volumes, whose locks are not held together. So they are copied,
        // but not to the stack.
        let nobody = [self.nobody.copy(), self.nobody.copy()];
        let mut of_host: KBox<[Key; KEYS_MAX]> = KBox::new(nobody, GFP_KERNEL)?;
        let mut found = 0;
        for volume in self.lists.lock().volumes.iter() {
            if !volume.is_exported() {
                continue;
            }
            // Nothing is computed with the keys here: the duration must not reveal whether a host
            // has keys.
            volume.with_keys(host, |keys| {
                let keys = keys.into_iter().flat_map(Keys::iter);
                for key in keys {
                    let is_new = !of_host.iter().take(found).any(|known| known.is_same(key));
                    if let Some(place) = of_host.get_mut(found).filter(|_| is_new) {
                        place.copy_from(key);
                        found += 1;
                    }
                }
            });
        }
        let none = (found == 0).then_some("no key of this host is set on a volume");
        self.candidates_by(of_host.each_ref(), None, none)
    }
}
