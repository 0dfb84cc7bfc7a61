/* SPDX-License-Identifier: GPL-2.0 */
/* The arguments of tracepoints, and what both sides' events have in common. */
#ifndef HCABLK_TRACE_H
#define HCABLK_TRACE_H

#include <linux/types.h>

struct hcablk_trace_request {
	u64 session;
	u64 sector;
	u32 bytes;
	int status;
	u16 queue;
	u16 tag;
	u16 generation;
	u16 number;
	u8 op;
	u8 way;
	u8 memory;
};

/* A part of a large request's data, which moves separately. */
struct hcablk_trace_chunk {
	u64 session;
	u64 sector;
	u32 offset;
	u32 bytes;
	int status;
	u16 queue;
	u16 tag;
	u16 generation;
	u8 op;
	u8 memory;
};

struct hcablk_trace_state {
	u64 session;
	u32 epoch;
	int error;
	u16 queue;
	u8 state;
};

/* The caller's strings. */
struct hcablk_trace_disk {
	const char *disk;
	const char *state;
	int error;
	u16 path;
};

struct hcablk_trace_lost_writes {
	const char *disk;
	u8 lost;
};

/* The opcodes of the wire; 0 is a message that could not be understood. */
#define HCABLK_TRACE_OPS		\
	{ 0, "bad" },			\
	{ 1, "read" },			\
	{ 2, "write" },			\
	{ 3, "flush" },			\
	{ 4, "discard" },		\
	{ 5, "write_zeroes" },		\
	{ 6, "nop" }

/* How the data travels, as on the wire. */
#define HCABLK_TRACE_WAYS		\
	{ 0, "none" },			\
	{ 1, "key" },			\
	{ 2, "immediate" },		\
	{ 3, "inline" },		\
	{ 4, "eager" }

/* Where the target has the data. */
#define HCABLK_TRACE_MEMORIES		\
	{ 0, "none" },			\
	{ 1, "ram" },			\
	{ 2, "peer" },			\
	{ 3, "bounced" }

#define HCABLK_TRACE_STATES		\
	{ 0, "connecting" },		\
	{ 1, "live" },			\
	{ 2, "ending" },		\
	{ 3, "ended" }

/*
 * Both sides' events have the same fields. Their classes cannot be the same, since a class belongs
 * to one TRACE_SYSTEM: each side's header makes its own of these.
 */
#define HCABLK_REQUEST_CLASS(name)						\
DECLARE_EVENT_CLASS(name,							\
	TP_PROTO(const struct hcablk_trace_request *request),			\
	TP_ARGS(request),							\
	TP_STRUCT__entry(							\
		__field(u64, session)						\
		__field(u64, sector)						\
		__field(u32, bytes)						\
		__field(int, status)						\
		__field(u16, queue)						\
		__field(u16, tag)						\
		__field(u16, generation)					\
		__field(u16, number)						\
		__field(u8, op)							\
		__field(u8, way)						\
		__field(u8, memory)						\
	),									\
	TP_fast_assign(								\
		__entry->session = request->session;				\
		__entry->sector = request->sector;				\
		__entry->bytes = request->bytes;				\
		__entry->status = request->status;				\
		__entry->queue = request->queue;				\
		__entry->tag = request->tag;					\
		__entry->generation = request->generation;			\
		__entry->number = request->number;				\
		__entry->op = request->op;					\
		__entry->way = request->way;					\
		__entry->memory = request->memory;				\
	),									\
	TP_printk("session=%016llx queue=%u tag=%u generation=%u op=%s way=%s number=%u sector=%llu bytes=%u status=%d memory=%s", \
		  __entry->session, __entry->queue, __entry->tag, __entry->generation, \
		  __print_symbolic(__entry->op, HCABLK_TRACE_OPS),		\
		  __print_symbolic(__entry->way, HCABLK_TRACE_WAYS),		\
		  __entry->number, __entry->sector, __entry->bytes, __entry->status, \
		  __print_symbolic(__entry->memory, HCABLK_TRACE_MEMORIES))	\
)

#define HCABLK_REQUEST_EVENT(class, name)					\
DEFINE_EVENT(class, name,							\
	TP_PROTO(const struct hcablk_trace_request *request),			\
	TP_ARGS(request)							\
)

#define HCABLK_STATE_CLASS(name)						\
DECLARE_EVENT_CLASS(name,							\
	TP_PROTO(const struct hcablk_trace_state *state),			\
	TP_ARGS(state),								\
	TP_STRUCT__entry(							\
		__field(u64, session)						\
		__field(u32, epoch)						\
		__field(int, error)						\
		__field(u16, queue)						\
		__field(u8, state)						\
	),									\
	TP_fast_assign(								\
		__entry->session = state->session;				\
		__entry->epoch = state->epoch;					\
		__entry->error = state->error;					\
		__entry->queue = state->queue;					\
		__entry->state = state->state;					\
	),									\
	TP_printk("session=%016llx epoch=%u queue=%d state=%s error=%d",	\
		  __entry->session, __entry->epoch, (s16)__entry->queue,	\
		  __print_symbolic(__entry->state, HCABLK_TRACE_STATES), __entry->error) \
)

#define HCABLK_STATE_EVENT(class, name)						\
DEFINE_EVENT(class, name,							\
	TP_PROTO(const struct hcablk_trace_state *state),			\
	TP_ARGS(state)								\
)

#endif
