// SPDX-License-Identifier: GPL-2.0

//! Counters, histograms, messages and tracepoints of the modules.
//!
//! - [`stats`]: counters that cost one addition each.
//! - [`times`]: histograms of the durations of requests.
//! - [`trace`]: tracepoints of both sides.
//! - [`broken`]: broken invariants, which fail every test.
//! - [`text`]: formatting for the kernel's printing macros.

pub mod broken;
pub mod stats;
pub mod text;
pub mod times;
pub mod trace;
