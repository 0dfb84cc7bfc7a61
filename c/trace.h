/* SPDX-License-Identifier: GPL-2.0 */
/* What tracepoints are told, and what both sides' events have in common. */
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
};

struct hcablk_trace_state {
	u64 session;
	u32 epoch;
	int error;
	u16 queue;
	u8 state;
};

/* The opcodes of the wire; 0 is a message that could not be understood. */
#define HCABLK_TRACE_OPS		\
	{ 0, "bad" },			\
	{ 1, "read" },			\
	{ 2, "write" },			\
	{ 3, "flush" },			\
	{ 4, "discard" },		\
	{ 5, "write_zeroes" },		\
	{ 6, "size" }

/* How the data travels, as on the wire. */
#define HCABLK_TRACE_WAYS		\
	{ 0, "none" },			\
	{ 1, "key" },			\
	{ 2, "immediate" },		\
	{ 3, "inline" },		\
	{ 4, "granted" }

#define HCABLK_TRACE_STATES		\
	{ 0, "connecting" },		\
	{ 1, "live" },			\
	{ 2, "ending" },		\
	{ 3, "ended" }

#endif
