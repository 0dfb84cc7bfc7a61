// SPDX-License-Identifier: GPL-2.0

//! State that callbacks change, in any context, and that a test waits for.

use hcablk_core::sync::{
    new_irq_lock,
    Event,
    IrqLock, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    }, //
};

/// The time limit of tests' waits, in milliseconds.
pub(crate) const WAIT_TIMEOUT_MS: u32 = 30_000;

/// State with one waiter.
#[pin_data]
pub(crate) struct Watched<T> {
    #[pin]
    state: IrqLock<T>,
    #[pin]
    changed: Event,
}

impl<T: Unpin> Watched<T> {
    pub(crate) fn new(state: T) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                state <- new_irq_lock!(state, "hcablk_kunit"),
                changed <- Event::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Changes the state. Any context.
    pub(crate) fn change<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let result = f(&mut self.state.lock());
        self.changed.set();
        result
    }

    /// Calls `f` with the state.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.state.lock())
    }

    /// Waits until `f` returns a value; returns `ETIMEDOUT` if it never does.
    pub(crate) fn wait<R>(&self, mut f: impl FnMut(&mut T) -> Option<R>) -> Result<R> {
        let start = Instant::<Monotonic>::now();
        loop {
            // A change after this wakes us up.
            self.changed.reset();
            if let Some(found) = f(&mut self.state.lock()) {
                return Ok(found);
            }
            let gone = start.elapsed().as_millis().max(0) as u32;
            self.changed
                .wait_ms(WAIT_TIMEOUT_MS.saturating_sub(gone).max(1))?;
        }
    }
}

/// Lets some time pass.
pub(crate) fn pause(ms: i64) {
    kernel::time::delay::fsleep(kernel::time::Delta::from_millis(ms));
}

/// Waits until a condition holds.
pub(crate) fn eventually(mut so: impl FnMut() -> Result<bool>) -> Result {
    let start = Instant::<Monotonic>::now();
    while !so()? {
        if start.elapsed().as_millis() > i64::from(WAIT_TIMEOUT_MS) {
            return Err(ETIMEDOUT);
        }
        pause(5);
    }
    Ok(())
}
