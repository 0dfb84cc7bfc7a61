// SPDX-License-Identifier: GPL-2.0

//! What the modules report of themselves.
//!
//! - [`stats`]: counters.
//! - [`times`]: how long requests take, as histograms.
//! - [`trace`]: tracepoints.
//! - [`broken`]: broken invariants, which fail every test.
//! - [`text`]: formatting.

pub mod broken;
pub mod stats;
pub mod text;
pub mod times;
pub mod trace;
