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

DECLARE_EVENT_CLASS(hcablk_target_chunk,
	TP_PROTO(const struct hcablk_trace_chunk *chunk),
	TP_ARGS(chunk),
	TP_STRUCT__entry(
		__field(u64, session)
		__field(u64, sector)
		__field(u32, offset)
		__field(u32, bytes)
		__field(int, status)
		__field(u16, queue)
		__field(u16, tag)
		__field(u16, generation)
		__field(u8, op)
		__field(u8, memory)
	),
	TP_fast_assign(
		__entry->session = chunk->session;
		__entry->sector = chunk->sector;
		__entry->offset = chunk->offset;
		__entry->bytes = chunk->bytes;
		__entry->status = chunk->status;
		__entry->queue = chunk->queue;
		__entry->tag = chunk->tag;
		__entry->generation = chunk->generation;
		__entry->op = chunk->op;
		__entry->memory = chunk->memory;
	),
	TP_printk("session=%016llx queue=%u tag=%u generation=%u op=%s sector=%llu offset=%u bytes=%u memory=%s status=%d",
		  __entry->session, __entry->queue, __entry->tag, __entry->generation,
		  __print_symbolic(__entry->op, HCABLK_TRACE_OPS),
		  __entry->sector, __entry->offset, __entry->bytes,
		  __print_symbolic(__entry->memory, HCABLK_TRACE_MEMORIES), __entry->status)
);

#define HCABLK_CHUNK_EVENT(name)						\
DEFINE_EVENT(hcablk_target_chunk, name,						\
	TP_PROTO(const struct hcablk_trace_chunk *chunk),			\
	TP_ARGS(chunk)								\
)

HCABLK_CHUNK_EVENT(hcablk_target_chunk_drive_start);
HCABLK_CHUNK_EVENT(hcablk_target_chunk_drive_end);
HCABLK_CHUNK_EVENT(hcablk_target_chunk_posted);
HCABLK_CHUNK_EVENT(hcablk_target_chunk_completed);

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
