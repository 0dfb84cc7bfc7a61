// SPDX-License-Identifier: GPL-2.0
/* Makes the tracepoints, and a function of each for Rust. */
#define CREATE_TRACE_POINTS
#define CREATE_RUST_TRACE_POINTS
#include "trace_initiator.h"
#include "trace_target.h"
