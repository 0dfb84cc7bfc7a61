// SPDX-License-Identifier: GPL-2.0

//! Refuses hibernation while a driver is in use: a host that resumes from it has missed its peers'
//! actions in the meantime.
//!
//! C header: [`include/linux/suspend.h`](srctree/include/linux/suspend.h)

use crate::{
    bindings,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
};
use core::ffi::{
    c_int,
    c_void, //
};
use kernel::{
    error::to_result,
    prelude::*,
    types::Opaque, //
};

/// The number of things of a kind that keep a driver in use.
pub struct Uses {
    count: Atomic<u32>,
    /// Their name in the log, after their number.
    what: &'static CStr,
}

impl Uses {
    /// Creates a count of things that are called `what`. It begins at 0.
    pub const fn new(what: &'static CStr) -> Self {
        Self {
            count: Atomic::new(0),
            what,
        }
    }

    /// Counts a use until the returned value is dropped. Any context.
    pub fn begin(&'static self) -> Use {
        self.count.fetch_add(1, Relaxed);
        Use(self)
    }
}

/// A use that is counted; see [`Uses::begin`].
pub struct Use(&'static Uses);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Relaxed);
    }
}

struct Inner {
    notifier: bindings::notifier_block,
    uses: &'static Uses,
}

/// Refuses hibernation with `EBUSY`, and logs that, while there are some [`Uses`]. Suspending to
/// RAM and to idle is not refused.
///
/// # Invariants
///
/// `inner` is initialised and registered.
pub struct NoHibernation {
    inner: KBox<Opaque<Inner>>,
}

// SAFETY: The list of notifiers is changed under its lock; all else is never changed.
unsafe impl Send for NoHibernation {}
// SAFETY: Shared references give access to nothing.
unsafe impl Sync for NoHibernation {}

impl NoHibernation {
    /// Refuses hibernation while there are `uses`. Sleeps. Fails with `ENOMEM`.
    ///
    /// C: `register_pm_notifier()`.
    pub fn while_there_are(uses: &'static Uses) -> Result<Self> {
        let inner = KBox::new(Opaque::<Inner>::uninit(), GFP_KERNEL)?;
        let raw = inner.get();
        // SAFETY: Room for the structure, which stays where it is until it is unregistered.
        to_result(unsafe {
            raw.write(Inner {
                notifier: bindings::notifier_block {
                    notifier_call: Some(on_event),
                    ..pin_init::zeroed()
                },
                uses,
            });
            bindings::hcablk_c_register_pm_notifier(&raw mut (*raw).notifier)
        })?;
        // INVARIANT: As done just now.
        Ok(Self { inner })
    }
}

impl Drop for NoHibernation {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is registered. Nothing runs once it is unregistered.
        unsafe { bindings::hcablk_c_unregister_pm_notifier(&raw mut (*self.inner.get()).notifier) };
    }
}

/// # Safety
///
/// Called by the kernel with a notifier that [`NoHibernation::while_there_are`] registered.
unsafe extern "C" fn on_event(
    notifier: *mut bindings::notifier_block,
    event: crate::ffi::c_ulong,
    _: *mut c_void,
) -> c_int {
    // SAFETY: By the safety requirement the notifier is in an `Inner`, which stays there while this
    // runs.
    let uses = unsafe { (*kernel::container_of!(notifier, Inner, notifier)).uses };
    let count = uses.count.load(Relaxed);
    if event != bindings::PM_HIBERNATION_PREPARE as crate::ffi::c_ulong || count == 0 {
        return bindings::NOTIFY_DONE as c_int;
    }
    pr_warn!(
        "hibernation is refused: {count} {}; other hosts would change the volumes while this host is off\n",
        uses.what.to_str().unwrap_or("uses")
    );
    // SAFETY: No requirements.
    unsafe { bindings::hcablk_c_notifier_from_errno(EBUSY.to_errno()) }
}
