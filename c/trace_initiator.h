/* SPDX-License-Identifier: GPL-2.0 */
/* The initiator's tracepoints. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM hcablk

#if !defined(HCABLK_TRACE_INITIATOR_H) || defined(TRACE_HEADER_MULTI_READ)
#define HCABLK_TRACE_INITIATOR_H

#include <linux/tracepoint.h>

#include "trace.h"

HCABLK_REQUEST_CLASS(hcablk_request);
HCABLK_REQUEST_EVENT(hcablk_request, hcablk_queued);
HCABLK_REQUEST_EVENT(hcablk_request, hcablk_sent);
HCABLK_REQUEST_EVENT(hcablk_request, hcablk_answered);
HCABLK_REQUEST_EVENT(hcablk_request, hcablk_completed);

HCABLK_STATE_CLASS(hcablk_state);
HCABLK_STATE_EVENT(hcablk_state, hcablk_session);
HCABLK_STATE_EVENT(hcablk_state, hcablk_queue);

DECLARE_EVENT_CLASS(hcablk_disk_state,
	TP_PROTO(const struct hcablk_trace_disk *change),
	TP_ARGS(change),
	TP_STRUCT__entry(
		__string(disk, change->disk)
		__string(state, change->state)
		__field(int, error)
		__field(u16, path)
	),
	TP_fast_assign(
		__assign_str(disk);
		__assign_str(state);
		__entry->error = change->error;
		__entry->path = change->path;
	),
	TP_printk("disk=%s path=%d state=%s error=%d", __get_str(disk), (s16)__entry->path,
		  __get_str(state), __entry->error)
);
DEFINE_EVENT(hcablk_disk_state, hcablk_disk,
	TP_PROTO(const struct hcablk_trace_disk *change),
	TP_ARGS(change)
);
DEFINE_EVENT(hcablk_disk_state, hcablk_path,
	TP_PROTO(const struct hcablk_trace_disk *change),
	TP_ARGS(change)
);

TRACE_EVENT(hcablk_lost_writes,
	TP_PROTO(const struct hcablk_trace_lost_writes *change),
	TP_ARGS(change),
	TP_STRUCT__entry(
		__string(disk, change->disk)
		__field(u8, lost)
	),
	TP_fast_assign(
		__assign_str(disk);
		__entry->lost = change->lost;
	),
	TP_printk("disk=%s lost=%d", __get_str(disk), __entry->lost)
);

#endif

/* Outside of the guard. */
#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace_initiator
#include <trace/define_trace.h>
