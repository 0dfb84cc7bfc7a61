// SPDX-License-Identifier: GPL-2.0

//! Leases of peer memory, and how they are recalled.
//!
//! ```text
//!        the provider's driver is unbound,
//!        or the lease is dropped                last user done            freed by the waiter
//!  Leased ─────────────────────────► Recalled ────────────────► UsersGone ─────────────► Freed
//! ```
//!
//! While the memory is leased, a user takes a reference for each use ([`PeerLease::memory`]), and
//! drops it in any context; after the recall there are no new ones. The recall waits until the
//! existing references have been dropped, and then frees the memory ([`LeaseState::end`]). That
//! needs process context, and the last user may run in any other. Unbinding waits for that, because
//! the pages disappear with the driver.
//!
//! Memory that several HCAs use is leased once, with a view for each ([`PeerLease::view`]), which
//! is a lease as well and a user of that memory: a view is freed before its memory.
//!
//! # Locks
//!
//! Leases are made, and recalled, under the lock of the provider's `struct
//! device`, so that none is made between the recall and the end of the memory. They are listed
//! until they are freed, under `LEASES`, a lock inside that of the device. Memory is freed under
//! its `LeaseState::core`, and neither waited for nor freed under `LEASES`. Uses take no lock.

use super::{
    memory::{
        Memory,
        UsersGone, //
    },
    PeerMemory,
    Provider, //
};
use crate::ffi::{
    c_int,
    c_ulong,
    c_void, //
};
use crate::{
    bindings,
    rdma::pd::ProtectionDomain,
    sync::Event, //
};
use kernel::{
    error::to_result,
    new_mutex,
    prelude::*,
    revocable::Revocable,
    sync::{
        global_lock,
        Arc,
        Mutex, //
    },
    types::Opaque,
};

/// The memory of a lease, and the event for its users.
#[pin_data]
struct LeaseState {
    provider: Arc<Provider>,
    /// The users' reference.
    #[pin]
    memory: Revocable<Arc<PeerMemory>>,
    users_gone: Arc<UsersGone>,
    /// The lessor's reference: the last one, once `users_gone` is set.
    #[pin]
    core: Mutex<Option<Arc<Memory>>>,
}

impl LeaseState {
    /// Waits for the last user of the memory, which was revoked, and frees the memory unless
    /// another caller has freed it. Process context.
    fn end(&self) {
        while self.users_gone.event.wait_ms(30_000).is_err() {
            pr_warn!(
                "{}: still waiting for I/O in its memory to end\n",
                *self.provider
            );
        }
        drop(self.core.lock().take());
    }
}

global_lock! {
    // SAFETY: Initialised by `Watch::start`, when the module is loaded.
    unsafe(uninit) static LEASES: Mutex<KVec<Arc<LeaseState>>> = KVec::new();
}

/// The right to use peer memory until the provider's driver is unbound. Dropping it waits for the
/// users of the memory, so the caller must not hold a reference of its own. Process context.
pub struct PeerLease(Arc<LeaseState>);

impl PeerLease {
    /// Takes up to `count` pieces of `piece_bytes` bytes, fewer when fewer are free, mapped for the
    /// HCA of `pd` if there is one. Sleeps.
    ///
    /// Errors: `ENOMEM` (none is left, or the device lends none), `EIO` (the
    /// HCA cannot reach it), `EBUSY` (a driver is being unbound from the device, or bound to it).
    pub fn new(
        provider: &Arc<Provider>,
        count: usize,
        piece_bytes: usize,
        pd: Option<&Arc<ProtectionDomain>>,
    ) -> Result<Self> {
        Self::make(provider, || Memory::take(provider, count, piece_bytes, pd))
    }

    fn make(
        provider: &Arc<Provider>,
        memory: impl FnOnce() -> Result<Arc<Memory>>,
    ) -> Result<Self> {
        let users_gone = Arc::pin_init(
            pin_init!(UsersGone {
                event <- Event::new(),
            }),
            GFP_KERNEL,
        )?;
        provider.while_bound(|| {
            let core = memory()?;
            let users = PeerMemory::new(&core, &users_gone)?;
            let state = Arc::pin_init(
                try_pin_init!(LeaseState {
                    provider: provider.clone(),
                    memory <- Revocable::new(Ok::<_, Error>(users)),
                    users_gone,
                    core <- new_mutex!(Some(core)),
                }),
                GFP_KERNEL,
            )?;
            let lease = Self(state);
            // On an error `lease` is dropped, which takes the lock: so unlock it before `?`.
            let listed = LEASES.lock().push(lease.0.clone(), GFP_KERNEL);
            listed?;
            Ok(lease)
        })
    }

    /// Maps the same memory for the HCA of `pd`. Sleeps.
    ///
    /// Errors: `ENODEV` (it was recalled), `ENOMEM`, `EIO` (the HCA cannot reach it), `EBUSY` as
    /// [`Self::new`].
    pub fn view(&self, pd: &Arc<ProtectionDomain>) -> Result<Self> {
        Self::make(&self.0.provider, || {
            Memory::view(self.memory().ok_or(ENODEV)?, pd)
        })
    }

    /// Takes a reference for one use; `None` when the memory was recalled. Any context.
    #[inline]
    pub fn memory(&self) -> Option<Arc<PeerMemory>> {
        self.0.memory.try_access_with(Clone::clone)
    }

    /// Returns the provider of the memory.
    pub fn provider(&self) -> &Arc<Provider> {
        &self.0.provider
    }
}

impl Drop for PeerLease {
    fn drop(&mut self) {
        // SAFETY: Users reach the memory only through the lease, of which this is the only
        // reference.
        unsafe { self.0.memory.revoke_nosync() };
        self.0.end();
        // Not earlier: until then an unbinding finds the lease in the list, and waits for it.
        unlist(&self.0);
    }
}

/// Removes the lease from the list; nothing happens if it was removed, or never listed.
fn unlist(state: &Arc<LeaseState>) {
    let mut leases = LEASES.lock();
    let place = leases.iter().position(|other| Arc::ptr_eq(other, state));
    let listed = place.and_then(|place| leases.remove(place).ok());
    drop(leases);
    drop(listed);
}

/// Recalls all leases of the device's memory, and waits until that memory is freed. The caller
/// holds the lock of the device.
fn recall(device: *const bindings::device) {
    let theirs = |state: &&Arc<LeaseState>| {
        // SAFETY: A provider's device is valid.
        let device_of = unsafe { &raw const (*state.provider.as_raw()).dev };
        core::ptr::eq(device_of, device)
    };
    // Recall all first, so that users of several leases release them soon.
    // Each recall waits for a grace period: with nothing locked, as other devices' memory is leased
    // meanwhile. No lease of this device is added, but one that is dropped leaves the list, so this
    // round may pass one over: the next one recalls it.
    for place in 0.. {
        let state = LEASES.lock().iter().filter(theirs).nth(place).cloned();
        let Some(state) = state else {
            break;
        };
        if place == 0 {
            pr_warn!(
                "{}: removed; the users of its memory fall back to RAM\n",
                *state.provider
            );
        }
        state.memory.revoke();
    }
    // The latest first: a view uses what was leased before it.
    loop {
        let state = LEASES.lock().iter().rev().find(theirs).cloned();
        let Some(state) = state else {
            return;
        };
        state.memory.revoke();
        state.end();
        unlist(&state);
    }
}

/// # Safety
///
/// Called by the PCI bus; `data` is the device that `action` is about.
unsafe extern "C" fn notice(
    _block: *mut bindings::notifier_block,
    action: c_ulong,
    data: *mut c_void,
) -> c_int {
    if action == bindings::bus_notifier_event_BUS_NOTIFY_UNBIND_DRIVER as c_ulong {
        recall(data.cast());
    }
    bindings::NOTIFY_DONE as c_int
}

/// Watches for drivers that are unbound, until this object is dropped. The module has one.
pub struct Watch {
    block: KBox<Opaque<bindings::notifier_block>>,
}

// SAFETY: The pointer is only stored, and used again by the drop.
unsafe impl Send for Watch {}
// SAFETY: As above.
unsafe impl Sync for Watch {}

impl Watch {
    /// Begins to watch. Called once, when the module is loaded. Sleeps.
    ///
    /// C: `bus_register_notifier()`.
    pub(crate) fn start() -> Result<Self> {
        // SAFETY: Nobody uses it yet, and this is called once.
        unsafe { LEASES.init() };
        let block = KBox::new(Opaque::<bindings::notifier_block>::zeroed(), GFP_KERNEL)?;
        // SAFETY: The block stays where it is until it is unregistered.
        to_result(unsafe {
            (*block.get()).notifier_call = Some(notice);
            bindings::bus_register_notifier(&raw const bindings::pci_bus_type, block.get())
        })?;
        Ok(Self { block })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // No lease exists any more. Free the list here: statics are never dropped.
        drop(core::mem::take(&mut *LEASES.lock()));
        // SAFETY: Registered by `start`.
        unsafe {
            bindings::bus_unregister_notifier(&raw const bindings::pci_bus_type, self.block.get())
        };
    }
}
