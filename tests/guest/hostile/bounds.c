// SPDX-License-Identifier: GPL-2.0
/* Each operation on blocks, with blocks on either side of each bound. */

#include <string.h>
#include "hostile.h"
#include "client.h"

/* Fills such a message, except for its blocks. */
static void operation(struct message *m, unsigned int op)
{
	static const struct { unsigned char opcode, data; } codes[OPERATIONS] = {
		[READS] = { READ, KEYED }, [READS_BY_VALUE] = { READ, BY_VALUE },
		[WRITES] = { WRITE, KEYED }, [WRITES_INLINE] = { WRITE, FOLLOWS },
		[EAGER_REQUESTS] = { WRITE, EAGER_RING }, [EAGER_IMMEDIATE] = { WRITE, EAGER_RING },
		[DISCARDS] = { DISCARD, 0 }, [EMPTIES] = { ZEROES, 0 },
	};
	const struct ibv_mr *mr = op <= READS_BY_VALUE ? to[m->slot] : from;
	unsigned char *b = m->bytes;

	b[0] = codes[op].opcode;
	b[1] = 0;
	b[32] = codes[op].data;
	put(b + 20, 4, op <= WRITES ? mr->rkey : 0);
	put(b + 24, 8, op <= WRITES ? (uintptr_t)mr->addr : 0);
	m->length = REQUEST;
}

void at_bound(struct rng *r, struct message *m, unsigned int pair)
{
	unsigned int op = pair % OPERATIONS, bound = pair / OPERATIONS, max;
	unsigned char *b = m->bytes;
	uint64_t offset, unit, length;

	operation(m, op);
	max = op == DISCARDS ? max_discard : op == EMPTIES ? max_zeroes : max_transfer;
	/* An immediate value counts in units of 4096 bytes. */
	unit = op == EAGER_IMMEDIATE ? 4096 : block;
	length = unit;
	offset = op <= READS_BY_VALUE ? capacity - unit : zone_from * SECTOR + below(r, zone_count * SECTOR / unit) * unit;
	switch (bound) {
	case NOTHING:
		length = 0;
		break;
	case TOO_LONG:
		offset = 0;
		length = max + unit;
		break;
	case ODD_OFFSET:
		offset += 1 + below(r, block - 1);
		break;
	case ODD_LENGTH:
		length += 1 + below(r, block - 1);
		break;
	case AT_END:
		offset = capacity;
		break;
	case ACROSS_END:
		offset = capacity - unit;
		length = 2 * unit;
		break;
	case FAR:
		offset = capacity + (unit << below(r, 24));
		break;
	case WRAPS:
		offset = -unit;
		length = 2 * unit;
		break;
	}
	put(b + 8, 8, offset);
	put(b + 16, 4, length);
	if (op == WRITES_INLINE)
		m->length += length < INLINE ? length : INLINE;
	m->pair = pair + 1;
	judge(m);
	/* Blocks that an immediate value cannot express go with a request. */
	if (op == EAGER_IMMEDIATE)
		by_immediate(m);
}
