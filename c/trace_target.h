/* SPDX-License-Identifier: GPL-2.0 */
/* The target's tracepoints. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM hcablk_target

#if !defined(HCABLK_TRACE_TARGET_H) || defined(TRACE_HEADER_MULTI_READ)
#define HCABLK_TRACE_TARGET_H

#include <linux/tracepoint.h>

#include "trace.h"

HCABLK_REQUEST_CLASS(hcablk_target_request);
HCABLK_REQUEST_EVENT(hcablk_target_request, hcablk_target_received);
HCABLK_REQUEST_EVENT(hcablk_target_request, hcablk_target_drive_start);
HCABLK_REQUEST_EVENT(hcablk_target_request, hcablk_target_drive_end);
HCABLK_REQUEST_EVENT(hcablk_target_request, hcablk_target_answered);
HCABLK_REQUEST_EVENT(hcablk_target_request, hcablk_target_completed);

HCABLK_STATE_CLASS(hcablk_target_state);
HCABLK_STATE_EVENT(hcablk_target_state, hcablk_target_session);
HCABLK_STATE_EVENT(hcablk_target_state, hcablk_target_queue);

#endif

/* Outside of the guard. */
#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace_target
#include <trace/define_trace.h>
