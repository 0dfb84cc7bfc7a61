// SPDX-License-Identifier: GPL-2.0
/* Defines the tracepoints, and for each a function that Rust calls. */
#define CREATE_TRACE_POINTS
#define CREATE_RUST_TRACE_POINTS
#include "trace_initiator.h"
#include "trace_target.h"
