// SPDX-License-Identifier: GPL-2.0
/* The malicious target's replies to connection requests, and whether an initiator must accept them. */

#include <string.h>
#include "target.h"

/* Returns the largest request that the initiator asks for. */
static uint64_t asked_for(const unsigned char *request)
{
	uint64_t pages = get(request + 10, 2) & ~(RESUME | ALONE);

	return pages ? pages * 4096 : 1 << 20;
}

/* Returns whether the reply to a request without a volume describes none; unknown flags are ignored. */
static bool is_bare(const unsigned char *b)
{
	return zero(b + 8, 10) && !(b[18] & 7) && zero(b + 40, 12);
}

bool good_reply(const unsigned char *b, const unsigned char *request)
{
	uint64_t size = get(b + 8, 8), transfer = get(b + 20, 4), grant = get(b + 52, 4);
	bool of_host = request[4] == 3;

	return !memcmp(b, "HCAB", 4) && b[4] == request[4] &&
	       (request[8] == ADMIN ? get(b + 6, 2) == ADMIN_DEPTH : get(b + 6, 2) && get(b + 6, 2) <= get(request + 6, 2)) &&
	       (of_host ? is_bare(b) :
		b[16] >= 9 && b[16] <= 12 && b[17] >= b[16] && b[17] <= 24 && size && size <= INT64_MAX && !(size % (1 << b[16]))) &&
	       transfer >= 4096 && transfer <= asked_for(request) && !(transfer % 4096) &&
	       !memcmp(b + 24, request + 12, 8) && !memcmp(b + 32, request + 20, 4) && get(b + 36, 4) <= 65536 &&
	       !(grant % 4096) && grant <= 1 << 24 && (!(b[5] & 2) || b[18] & 1 || grant >= transfer);
}

/* Makes the private data of a reply to a connection request, and its length. */
void make_reply(struct rng *r, enum trick trick, const unsigned char *request, unsigned char *b, unsigned char *n)
{
	unsigned int depth = get(request + 6, 2);

	memset(b, 0, REPLY);
	memcpy(b, "HCAB", 4);
	*n = REPLY;
	if (trick == REFUSE) {
		/* A known reason, an unknown one, or noise. */
		put(b + 4, 2, below(r, 12));
		put(b + 6, 2, next(r));
		if (chance(r, 400))
			mutate(r, b, REJECT);
		*n = chance(r, 700) ? REJECT : below(r, REPLY);
		return;
	}
	b[4] = request[4];
	/* Quiet requests (though all answers wake up their reader), and several requests in a message. */
	b[5] = 1 | 4;
	put(b + 6, 2, 1 + below(r, depth < CREDITS ? depth : CREDITS));
	if (request[4] == 2) {
		put(b + 8, 8, CAPACITY);
		b[16] = 9;
		b[17] = 12;
		b[18] = 6;
	}
	put(b + 20, 4, SLOT);
	memcpy(b + 24, request + 12, 8);
	memcpy(b + 32, request + 20, 4);
	/* Buffers for more requests, and for no inline data. */
	put(b + 36, 4, FOLLOWING_BYTES);
	if (request[8] == ADMIN) {
		put(b + 6, 2, ADMIN_DEPTH);
		b[5] |= REPORTS_PORTALS;
	} else if (is_nopless()) {
		/* One credit: the ring cannot be written before the only request was answered. */
		put(b + 6, 2, 1);
		offer_ring(r, b);
		put(b + 52, 4, SLOT);
		b[5] |= NO_READ;
	} else if (trick == WRONG_RING || grants_always() || (trick != REPLY_WRONG && chance(r, 600))) {
		offer_ring(r, b);
	}
	if (trick != REPLY_WRONG)
		return;
	if (chance(r, 700)) {
		if (chance(r, 300))
			*n = below(r, REPLY);
		memset(b + *n, 0, REPLY - *n);
		mutate(r, b, REPLY);
	} else {
		static const struct { unsigned char at, size; } fields[] = {
			{ 4, 1 }, { 6, 2 }, { 8, 8 }, { 16, 1 }, { 17, 1 }, { 18, 2 }, { 20, 4 }, { 24, 8 }, { 32, 4 },
			{ 36, 4 }, { 52, 4 }, { 5, 1 },
		};
		unsigned int f = below(r, sizeof(fields) / sizeof(*fields));

		put(b + fields[f].at, fields[f].size, odd_number(r));
	}
	/* Larger requests than this target has memory for. */
	if (get(b + 20, 4) > SLOT && get(b + 20, 4) <= asked_for(request))
		put(b + 20, 4, SLOT);
	if (get(b + 6, 2) > CREDITS && get(b + 6, 2) <= depth)
		put(b + 6, 2, CREDITS);
	/* The reply grants no ring then, if its fields are valid. */
	if (!(get(b + 52, 4) % 4096) && get(b + 52, 4) <= 1 << 24) {
		put(b + 52, 4, 0);
		b[5] &= ~NO_READ;
	}
	/* This target accepts no inline data. */
	if (get(b + 36, 4) <= 65536 && get(b + 36, 4) > FOLLOWING_BYTES)
		put(b + 36, 4, FOLLOWING_BYTES);
}
