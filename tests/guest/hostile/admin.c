// SPDX-License-Identifier: GPL-2.0
/* The admin queue pairs of the malicious target: what comes by them, and true and false answers. */

#include <arpa/inet.h>
#include <string.h>
#include "target.h"

uint64_t administered;

/* How a message of this kind is answered wrongly; FAIR if it cannot be so. */
static enum trick fitting(enum trick trick, unsigned char op)
{
	/* That the volume is as it was said to be, or as none is, or gone, can only be told to who asked for it. */
	if (op == WATCH || (op == PORTALS && trick != ADMIN_SIZE))
		return trick;
	return trick == ADMIN_SAME || trick == ADMIN_SIZE || trick == ADMIN_GONE ? FAIR : trick;
}

void take_admin(struct peer *p, const unsigned char *b, size_t n)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .wr_id = work_id(W_OTHER, 0) };
	/* Not by the messages' number: how many of these come is a matter of time. */
	struct rng r = stream('d', administered++);
	unsigned char a[128] = { 0x82 };
	size_t length = ADMIN_ANSWER;
	unsigned int kind;
	enum trick trick;

	if (p->end_by)
		return;
	/* Whether all is durable it asks in the fence's place, when the export ends. */
	kind = b[0] == DURABLE ? FENCE - KEEP_ALIVE : b[0] - KEEP_ALIVE;
	if (n != REQUEST || b[0] < KEEP_ALIVE || b[0] > PORTALS || !zero(b + 1, 3) || get(b + 4, 2) != kind ||
	    get(b + 6, 2) != (++p->asked[kind] & 0xffff) || get(b + 16, 4) > (b[0] == WATCH) || !zero(b + 20, 20) ||
	    (b[0] == PORTALS ? get(b + 8, 8) != p->portals : !get(b + 8, 8) != (b[0] == DURABLE)) || (b[0] == KEEP_ALIVE && get(b + 8, 8) > TMO_MAX)) {
		tell("admin message", b, n < REQUEST ? n : REQUEST);
		failed("the initiator sent nonsense on its admin queue pair");
	}
	trick = fitting(pick(&r, ADMINISTERING, number), b[0]);
	if (trick == ADMIN_SILENT || p->mute) {
		/* Nothing at all from now on: it is found out by the clock. */
		if (!p->mute)
			expect_end(p, trick_name(trick));
		p->mute = true;
		return;
	}
	if (trick == ADMIN_LEAVE) {
		/* The others stay, and have to be ended. */
		p->c->broken = true;
		return;
	}
	/* A watch is answered when something has changed, which it never does. */
	if (b[0] == WATCH && trick == FAIR)
		return;
	memcpy(a + 4, b + 4, 4);
	/* Of portals another change is told as soon as it is asked. */
	if (b[0] == PORTALS)
		put(a + 12, 4, ++p->portals);
	switch (trick) {
	case ADMIN_LENGTH:
		do
			length = below(&r, BUFFER + 1);
		while (length == ADMIN_ANSWER);
		break;
	case ADMIN_OPCODE:
		a[0] = chance(&r, 500) ? 0x80 : below(&r, 0x82);
		break;
	case ADMIN_TAG:
		put(a + 4 + 2 * below(&r, 2), 2, 5 + p->asked[kind] + below(&r, 60000));
		break;
	case ADMIN_STATUS:
		put(a + 8, 2, b[0] == KEEP_ALIVE ? 1 + below(&r, 65535) : STATUSES + below(&r, 60000));
		break;
	case ADMIN_RESERVED:
		a[chance(&r, 500) ? 2 + below(&r, 2) : 10 + below(&r, b[0] == PORTALS ? 2 : 6)] = 1 + below(&r, 255);
		break;
	case ADMIN_SAME:
		if (b[0] == PORTALS)
			put(a + 12, 4, get(b + 8, 8));
		else
			put(a + 16, 8, get(b + 8, 8));
		break;
	case ADMIN_SIZE:
		put(a + 16, 8, (1ull << 54) + next(&r) % (1ull << 60));
		break;
	case ADMIN_GONE:
		put(a + 8, 2, GONE);
		break;
	case ADMIN_VALUE:
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.imm_data = next(&r);
		length = 0;
		break;
	default:
		break;
	}
	if (trick != FAIR)
		expect_end(p, trick_name(trick));
	post_message(p->c, &wr, a, length);
	if (trick == ADMIN_TWICE)
		post_message(p->c, &wr, a, length);
}
