// SPDX-License-Identifier: GPL-2.0

//! Faults of verbs that tests request. On a kernel without fault injection there are none.
//!
//! An HCA may refuse a work request or a mapping; soft-RoCE and soft-iWARP never do. See
//! `c/faults.c`.

#[cfg(CONFIG_FAULT_INJECTION_DEBUG_FS)]
mod asked {
    use crate::bindings;

    /// The files in debugfs through which tests request faults. Dropping this object removes them.
    pub(crate) struct Faults(());

    impl Faults {
        /// Creates the points of fault injection in debugfs. Call this once in the life of the
        /// module.
        pub(crate) fn create() -> Self {
            // SAFETY: This is process context, in which modules are loaded and debugfs files may be
            // created.
            unsafe { bindings::hcablk_c_faults_create() };
            Self(())
        }
    }

    impl Drop for Faults {
        fn drop(&mut self) {
            // SAFETY: The files were created, and are removed only here, once.
            unsafe { bindings::hcablk_c_faults_remove() };
        }
    }

    /// Returns whether a requested fault makes the device refuse a work request. Any context.
    #[inline]
    pub(crate) fn post() -> bool {
        // SAFETY: The function uses only its own settings and counters.
        unsafe { bindings::hcablk_c_fail_post() }
    }

    /// Returns whether a requested fault makes a mapping of memory fail. Any context.
    #[inline]
    pub(crate) fn map() -> bool {
        // SAFETY: As above.
        unsafe { bindings::hcablk_c_fail_map() }
    }
}

#[cfg(not(CONFIG_FAULT_INJECTION_DEBUG_FS))]
mod asked {
    pub(crate) struct Faults;

    impl Faults {
        #[inline(always)]
        pub(crate) fn create() -> Self {
            Self
        }
    }

    #[inline(always)]
    pub(crate) fn post() -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn map() -> bool {
        false
    }
}

pub(crate) use asked::{
    map,
    post,
    Faults, //
};
