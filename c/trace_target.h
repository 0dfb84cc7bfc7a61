/* SPDX-License-Identifier: GPL-2.0 */
/* The target's tracepoints. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM hcablk_target

#if !defined(HCABLK_TRACE_TARGET_H) || defined(TRACE_HEADER_MULTI_READ)
#define HCABLK_TRACE_TARGET_H

#include <linux/tracepoint.h>

#include "trace.h"

DECLARE_EVENT_CLASS(hcablk_target_request,
	TP_PROTO(const struct hcablk_trace_request *request),
	TP_ARGS(request),
	TP_STRUCT__entry(
		__field(u64, session)
		__field(u64, sector)
		__field(u32, bytes)
		__field(int, status)
		__field(u16, queue)
		__field(u16, tag)
		__field(u16, generation)
		__field(u16, number)
		__field(u8, op)
		__field(u8, way)
	),
	TP_fast_assign(
		__entry->session = request->session;
		__entry->sector = request->sector;
		__entry->bytes = request->bytes;
		__entry->status = request->status;
		__entry->queue = request->queue;
		__entry->tag = request->tag;
		__entry->generation = request->generation;
		__entry->number = request->number;
		__entry->op = request->op;
		__entry->way = request->way;
	),
	TP_printk("session=%016llx queue=%u tag=%u generation=%u op=%s way=%s number=%u sector=%llu bytes=%u status=%d",
		  __entry->session, __entry->queue, __entry->tag, __entry->generation,
		  __print_symbolic(__entry->op, HCABLK_TRACE_OPS),
		  __print_symbolic(__entry->way, HCABLK_TRACE_WAYS),
		  __entry->number, __entry->sector, __entry->bytes, __entry->status)
);

DEFINE_EVENT(hcablk_target_request, hcablk_target_received,
	TP_PROTO(const struct hcablk_trace_request *request),
	TP_ARGS(request)
);

DEFINE_EVENT(hcablk_target_request, hcablk_target_drive_start,
	TP_PROTO(const struct hcablk_trace_request *request),
	TP_ARGS(request)
);

DEFINE_EVENT(hcablk_target_request, hcablk_target_drive_end,
	TP_PROTO(const struct hcablk_trace_request *request),
	TP_ARGS(request)
);

DEFINE_EVENT(hcablk_target_request, hcablk_target_answered,
	TP_PROTO(const struct hcablk_trace_request *request),
	TP_ARGS(request)
);

DEFINE_EVENT(hcablk_target_request, hcablk_target_completed,
	TP_PROTO(const struct hcablk_trace_request *request),
	TP_ARGS(request)
);

DECLARE_EVENT_CLASS(hcablk_target_state,
	TP_PROTO(const struct hcablk_trace_state *state),
	TP_ARGS(state),
	TP_STRUCT__entry(
		__field(u64, session)
		__field(u32, epoch)
		__field(int, error)
		__field(u16, queue)
		__field(u8, state)
	),
	TP_fast_assign(
		__entry->session = state->session;
		__entry->epoch = state->epoch;
		__entry->error = state->error;
		__entry->queue = state->queue;
		__entry->state = state->state;
	),
	TP_printk("session=%016llx epoch=%u queue=%d state=%s error=%d",
		  __entry->session, __entry->epoch, (s16)__entry->queue,
		  __print_symbolic(__entry->state, HCABLK_TRACE_STATES), __entry->error)
);

DEFINE_EVENT(hcablk_target_state, hcablk_target_session,
	TP_PROTO(const struct hcablk_trace_state *state),
	TP_ARGS(state)
);

DEFINE_EVENT(hcablk_target_state, hcablk_target_queue,
	TP_PROTO(const struct hcablk_trace_state *state),
	TP_ARGS(state)
);

#endif

/* Outside of the guard. */
#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace_target
#include <trace/define_trace.h>
