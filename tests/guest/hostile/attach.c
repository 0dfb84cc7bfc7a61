// SPDX-License-Identifier: GPL-2.0
/* The malicious target's answers to requests to attach a volume, true and false. */

#include <string.h>
#include "target.h"

enum { ATTACHED = 0x85, ATTACH_ANSWER = 64, REASONS = 16, HANDLES = 256 };

uint64_t attached;

/* Makes a true answer to the request with this tag. */
static void make_answer(unsigned char *a, const unsigned char *tag, unsigned int handle)
{
	memset(a, 0, ATTACH_ANSWER);
	a[0] = ATTACHED;
	a[1] = 6;
	put(a + 2, 2, handle);
	memcpy(a + 4, tag, 4);
	a[10] = 9;
	a[11] = 12;
	put(a + 12, 4, SLOT);
	put(a + 16, 8, CAPACITY);
}

static void send_answer(struct peer *p, unsigned char *a, size_t length)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .wr_id = work_id(W_OTHER, 0) };

	post_message(p->c, &wr, a, length);
}

void attach_unasked(struct peer *p, const unsigned char *tag)
{
	unsigned char a[128];

	make_answer(a, tag, 0);
	send_answer(p, a, ATTACH_ANSWER);
}

/* Makes an answer of a form that none has; returns its length. */
static size_t malform(struct rng *r, unsigned char *a)
{
	switch (below(r, 3)) {
	case 0:
		/* The answer to another request, of the length of that answer or of this one. */
		memset(a + 8, 0, ATTACH_ANSWER - 8);
		put(a, 4, 0x82);
		return chance(r, 500) ? ADMIN_ANSWER : ATTACH_ANSWER;
	case 1:
		memset(a + 8, 0, ATTACH_ANSWER - 8);
		put(a, 4, 0x83);
		return ADMIN_ANSWER;
	default:
		do
			a[0] = next(r);
		while (a[0] == ATTACHED);
		return ATTACH_ANSWER;
	}
}

void take_attach(struct peer *p, const unsigned char *b)
{
	unsigned int kind = ATTACH - KEEP_ALIVE;
	size_t length = ATTACH_ANSWER;
	struct rng r = stream('h', administered++);
	unsigned char a[128] = {};
	enum trick trick;

	if (!p->of_host || b[1] & ~1 || !zero(b + 2, 2) || get(b + 4, 2) != kind || get(b + 6, 2) != ++p->asked[kind] ||
	    p->asked[kind] > 1 || memcmp(b + 8, p->session, sizeof(p->session)) || !zero(b + 20, 4) || !b[24]) {
		print_bytes("admin message", b, REQUEST);
		failed("the initiator attaches a volume wrongly");
	}
	trick = pick(&r, ATTACHING, number);
	if (trick == ATTACH_AHEAD)
		trick = FAIR;
	p->attached = trick == FAIR;
	p->handle = chance(&r, 700) ? 0 : below(&r, HANDLES);
	make_answer(a, b + 4, p->handle);
	switch (trick) {
	case ATTACH_LENGTH:
		length = below(&r, ATTACH_ANSWER);
		break;
	case ATTACH_FORM:
		length = malform(&r, a);
		break;
	case ATTACH_HANDLE:
		put(a + 2, 2, HANDLES + below(&r, 65536 - HANDLES));
		break;
	case ATTACH_SIZE:
		switch (below(&r, 4)) {
		case 0:
			put(a + 16, 8, 0);
			break;
		case 1:
			put(a + 16, 8, CAPACITY + 1 + below(&r, SECTOR - 1));
			break;
		case 2:
			put(a + 16, 8, 1ull << 63 | CAPACITY);
			break;
		default:
			/* Blocks of less than 512 bytes, or of more than a page. */
			a[10] = chance(&r, 500) ? below(&r, 9) : 13 + below(&r, 243);
		}
		break;
	case ATTACH_LARGE:
		/* A volume's requests are not larger than its session's. */
		put(a + 12, 4, SLOT + 4096 * (1 + below(&r, 1000)));
		break;
	case ATTACH_RESERVED:
		if (chance(&r, 500))
			a[1] |= 8 << below(&r, 5);
		else
			a[60 + below(&r, 4)] = 1 + below(&r, 255);
		break;
	case ATTACH_REASON:
		/* An unknown reason, or a known one in an answer that describes a volume. */
		if (chance(&r, 500)) {
			memset(a + 10, 0, ATTACH_ANSWER - 10);
			a[1] = a[2] = a[3] = 0;
			put(a + 8, 2, REASONS + below(&r, 65536 - REASONS));
		} else {
			put(a + 8, 2, 1 + below(&r, REASONS - 1));
		}
		break;
	case ATTACH_REFUSED:
		memset(a + 10, 0, ATTACH_ANSWER - 10);
		a[1] = a[2] = a[3] = 0;
		put(a + 8, 2, 1 + below(&r, REASONS - 1));
		break;
	case ATTACH_TAG:
		put(a + 4 + 2 * below(&r, 2), 2, 7 + below(&r, 60000));
		break;
	default:
		break;
	}
	attached += p->attached;
	if (trick != FAIR)
		expect_end(p, trick_name(trick));
	send_answer(p, a, length);
	if (trick == ATTACH_TWICE)
		send_answer(p, a, length);
}
