// SPDX-License-Identifier: GPL-2.0
/* The admin queue pairs of the malicious target: the initiator's messages, and true and false answers. */

#include <arpa/inet.h>
#include <string.h>
#include "target.h"

uint64_t administered;

/* Returns the trick for an answer to this kind of message; FAIR if the trick does not fit it. */
static enum trick fitting(enum trick trick, unsigned char op)
{
	/* A state of the volume (unchanged, impossible, gone) fits only the answer to a watch. */
	if (op == WATCH || (op == PORTALS && trick != ADMIN_SIZE))
		return trick;
	/* An initiator that detaches its volume leaves, regardless of the answer. */
	if (op == DETACH)
		return FAIR;
	return trick == ADMIN_SAME || trick == ADMIN_SIZE || trick == ADMIN_GONE ? FAIR : trick;
}

void handle_admin(struct peer *p, const unsigned char *b, size_t n)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .wr_id = work_id(W_OTHER, 0) };
	/* A counter of their own: the number of these messages depends on time, not on the seed. */
	struct rng r = stream('d', administered++);
	unsigned char a[128] = { 0x82 };
	size_t length = ADMIN_ANSWER;
	unsigned int kind;
	enum trick trick;

	if (p->end_by)
		return;
	if (n == REQUEST && b[0] == ATTACH)
		return take_attach(p, b);
	/* DURABLE, at the end of an export, has the tag of a fence, and DETACH the tag of the earlier ATTACH. */
	kind = b[0] == DURABLE ? FENCE - KEEP_ALIVE : b[0] == DETACH ? ATTACH - KEEP_ALIVE : b[0] - KEEP_ALIVE;
	if (n != REQUEST || b[0] < KEEP_ALIVE || b[0] > (p->attached ? DETACH : PORTALS) || b[1] ||
	    get(b + 2, 2) != (b[0] == KEEP_ALIVE || b[0] == PORTALS ? 0 : p->handle) || get(b + 4, 2) != kind ||
	    get(b + 6, 2) != (++p->asked[kind] & 0xffff) || get(b + 16, 4) > (b[0] == WATCH) || !zero(b + 20, 20) ||
	    (b[0] == PORTALS ? get(b + 8, 8) != p->portals : !get(b + 8, 8) != (b[0] == DURABLE || b[0] == DETACH)) || (b[0] == KEEP_ALIVE && get(b + 8, 8) > TMO_MAX)) {
		print_bytes("admin message", b, n < REQUEST ? n : REQUEST);
		failed("the initiator sent nonsense on its admin queue pair");
	}
	trick = fitting(pick(&r, ADMINISTERING, number), b[0]);
	if (trick == ADMIN_SILENT || p->mute) {
		/* No answers from now on: the initiator must notice when its timeout expires. */
		if (!p->mute)
			expect_end(p, trick_name(trick));
		p->mute = true;
		return;
	}
	if (trick == ADMIN_LEAVE) {
		/* The session's other queue pairs stay, and the initiator must end them. */
		p->c->broken = true;
		return;
	}
	/* A watch is answered on a change, and this volume never changes. */
	if (b[0] == WATCH && trick == FAIR)
		return;
	memcpy(a + 4, b + 4, 4);
	/* A question about portals is answered at once with another change. */
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
