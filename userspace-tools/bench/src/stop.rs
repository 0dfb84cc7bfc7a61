// SPDX-License-Identifier: GPL-2.0

//! Reasons to stop: a signal arrived, or the other part is gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use hcablk::error::{Error, Kind, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// A flag that ends every wait, so that changes can be undone.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Makes a flag that a signal sets instead of ending the process.
    pub(crate) fn on_signals() -> Result<Self> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop.0)).map_err(|error| {
                Error::new(Kind::Failed, format!("cannot handle signals: {error}"))
            })?;
        }
        Ok(stop)
    }

    /// Sets the flag.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether the flag is set.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails if the flag is set.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_set() {
            return Err(Error::interrupted());
        }
        Ok(())
    }
}
