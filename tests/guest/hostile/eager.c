// SPDX-License-Identifier: GPL-2.0
/* The eager rings of the malicious target, the writes into them, and false answers. */

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include "target.h"

enum { ANSWERS = 0x81, ANSWERS_MOST = 15, UNIT = 4096, HOLD_MS = 100, AHEAD_MS = 100 };

uint64_t immediate, by_request, at_once;

/* Offers an eager ring in a reply; make_ring() fills in its address. */
void offer_ring(struct rng *r, unsigned char *reply)
{
	/* These sizes often have too few bytes or slots for all writes. */
	static const unsigned int sizes[] = { 16 << 10, 64 << 10, 256 << 10 };
	unsigned int size = sizes[below(r, 3)];

	put(reply + 52, 4, size);
	put(reply + 60, 4, chance(r, 300) ? 0 : next(r));
	/* The target claims to do no RDMA READs. */
	if (size >= SLOT && chance(r, 300))
		reply[5] |= NO_READ;
}

/* Creates the ring of the reply, or another. */
void make_ring(struct peer *p, struct rng *r, unsigned char *reply)
{
	struct ring *g = &p->ring;
	uint64_t base = get(reply + 60, 4);

	g->bytes = get(reply + 52, 4);
	if (!g->bytes)
		return;
	g->memory = aligned_alloc(UNIT, g->bytes);
	if (!g->memory)
		failed("no memory for an eager ring");
	memset(g->memory, 0, g->bytes);
	g->mr = open_memory(g->memory, g->bytes, base << 32);
	put(reply + 56, 4, g->mr->rkey);
	if (p->trick != WRONG_RING)
		return;
	if (chance(r, 500))
		put(reply + 56, 4, g->mr->rkey ^ (1 + below(r, 255)));
	else
		put(reply + 60, 4, base ^ (1 + below(r, UINT32_MAX)));
}

void free_ring(struct peer *p)
{
	if (p->ring.mr)
		ibv_dereg_mr(p->ring.mr);
	free(p->ring.memory);
}

/* Returns whether a request correctly announces data in the eager ring. */
bool is_eager_request(const struct peer *p, const unsigned char *b)
{
	return b[0] == WRITE && b[32] == EAGER_RING && p->ring.bytes && !(b[1] & ~(1 | QUIET)) && zero(b + 20, 12);
}

/* Takes the slot of the next eager write, counted as in docs/reference/protocol.md. */
void take_slot(struct peer *p, struct request *q)
{
	struct ring *g = &p->ring;
	uint32_t need = (get(q->bytes + 16, 4) + UNIT - 1) / UNIT * UNIT, left = g->bytes - g->end, bytes = need;
	unsigned int open = (uint16_t)(g->next - g->oldest);

	q->ring_offset = g->end;
	if (need > left) {
		q->ring_offset = 0;
		bytes += left;
	}
	if (!open) {
		g->used = 0;
		bytes = need;
	}
	if (!g->open)
		failed("the eager ring was written before anything was answered");
	if (p->trick == WRONG_RING)
		failed("the eager ring was written by a wrong key or address");
	if (!need || need > g->bytes || bytes > g->bytes - g->used || open >= p->credits)
		failed("an eager write has no free slot");
	q->number = g->next++;
	g->taken[q->number % CREDITS] = bytes;
	g->busy[q->number % CREDITS] = true;
	g->used += bytes;
	g->end = q->ring_offset + need;
}

/* Makes the request that a write's immediate value stands for. */
void immediate_request(const struct peer *p, const struct ibv_wc *wc, unsigned char *b)
{
	uint32_t value = ntohl(wc->imm_data);

	if (!p->ring.bytes || !wc->byte_len || wc->byte_len % UNIT || wc->byte_len > SLOT)
		failed("an immediate value of the initiator is wrong");
	memset(b, 0, REQUEST);
	b[0] = WRITE;
	b[1] = value >> 31 ? QUIET : 0;
	put(b + 8, 8, (value & INT32_MAX) * (uint64_t)UNIT);
	put(b + 16, 4, wc->byte_len);
	b[32] = EAGER_RING;
	immediate++;
}

void check_eager(const struct peer *p, const struct request *q)
{
	if (!is_pattern((uint64_t *)(p->ring.memory + q->ring_offset), get(q->bytes + 8, 8) / SECTOR, get(q->bytes + 16, 4) / SECTOR))
		failed("the data in the eager ring is not the data of the write");
}

static void add(unsigned char *b, uint16_t write, unsigned int status)
{
	unsigned char *at = b + 4 + 4 * b[1]++;

	put(at, 2, write);
	put(at + 2, 2, status);
}

/* Adds the final answer to eager write i. */
static void settle(struct peer *p, unsigned int i, unsigned char *b, unsigned int status)
{
	struct ring *g = &p->ring;

	add(b, p->requests[i].number, status);
	g->busy[p->requests[i].number % CREDITS] = false;
	while (g->oldest != g->next && !g->busy[g->oldest % CREDITS])
		g->used -= g->taken[g->oldest++ % CREDITS];
	p->held++;
	free_request(p, i);
}

/* Answers eager write i, and maybe some that were held back, in one message. */
static void settle_some(struct peer *p, struct rng *r, unsigned int i, enum trick trick)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .wr_id = work_id(W_OTHER, i) };
	unsigned char b[BUFFER] = { ANSWERS };

	if (trick == EAGER_VALUE) {
		wr.opcode = IBV_WR_SEND_WITH_IMM;
		wr.imm_data = next(r);
	}
	for (unsigned int k = 0; k < SLOTS; k++)
		if (k == i || (p->requests[k].held_until && b[1] < ANSWERS_MOST - 1 && chance(r, 800)))
			settle(p, k, b, trick == EAGER_STATUS ? failure(r) : OK);
	at_once += b[1] > 1;
	post_message(p->c, &wr, b, 4 + 4 * b[1]);
}

/* Returns a number that no open eager write has. */
static uint16_t never_open(const struct peer *p, struct rng *r)
{
	return p->ring.oldest + p->credits + below(r, 65536 - p->credits);
}

/* Returns a number that no open eager write has, but that selects the same record of the initiator's: at most 1024. */
static uint16_t wrapped(const struct peer *p, struct rng *r, unsigned int i)
{
	return p->requests[i].number + 1024 * (1 + below(r, 63));
}

/* Makes a malformed message with the answer to write i; returns its length. */
static size_t malform(struct rng *r, unsigned char *b)
{
	size_t n = 4 + 4 * b[1];

	switch (below(r, 4)) {
	case 0:
		b[1] = chance(r, 300) ? 0 : 2 + below(r, 254);
		break;
	case 1:
		b[2 + below(r, 2)] = 1 + below(r, 255);
		break;
	case 2:
		put(b + 6, 2, STATUSES + below(r, 65536 - STATUSES));
		break;
	default:
		n = chance(r, 500) ? 1 + below(r, n - 1) : n + 1 + below(r, BUFFER - n);
	}
	return n;
}

/* Answers eager write i, which came with a request, with a response of another kind of request. */
static void respond(struct peer *p, struct rng *r, unsigned int i)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .wr_id = work_id(W_OTHER, i) };
	const unsigned char *tag = p->requests[i].bytes + 4;
	unsigned char b[RESPONSE] = { 0x80 };
	struct ibv_sge nothing = {};

	if (chance(r, 300)) {
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.imm_data = htonl(get(tag, 4));
		return post(p->c, &wr, &nothing);
	}
	wr.invalidate_rkey = other_key(p, i);
	if (wr.invalidate_rkey && chance(r, 300))
		wr.opcode = IBV_WR_SEND_WITH_INV;
	put(b + 2, 2, 1);
	memcpy(b + 4, tag, 4);
	post_message(p->c, &wr, b, RESPONSE);
}

/* Returns the trick if its conditions hold: another open write, no other request, ... */
static enum trick possible(const struct peer *p, unsigned int i, enum trick trick)
{
	unsigned int writes = 0, others = 0;

	for (unsigned int k = 0; k < SLOTS; k++) {
		const struct request *q = &p->requests[k];

		if (k == i || !q->used || q->answered)
			continue;
		others++;
		writes += is_eager(q) && (int16_t)(p->requests[i].number - q->number) > 0;
	}
	switch (trick) {
	case EAGER_TWICE:
		/* Hold this one back: the next write may be older. */
		return writes ? trick : HOLD;
	case EAGER_OVERDRAW:
		return others ? FAIR : trick;
	case EAGER_RESPONSE:
		/* Only the initiator knows the tag of other writes. */
		return p->requests[i].immediate ? FAIR : trick;
	case EAGER_KEY:
		return other_key(p, i) || p->bounce_key ? trick : FAIR;
	default:
		return trick;
	}
}

/* Answers eager write i falsely. */
static void lie(struct peer *p, struct rng *r, unsigned int i, enum trick trick)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .wr_id = work_id(W_OTHER, i) };
	unsigned char b[BUFFER] = { ANSWERS };
	uint16_t write = p->requests[i].number;
	size_t n = 0;

	expect_end(p, trick_name(trick));
	if (trick == EAGER_RESPONSE)
		return respond(p, r, i);
	/* The number of an answered write selects nothing. */
	if (trick != EAGER_WRAPPED && (trick != EAGER_FORGED || chance(r, 300)))
		add(b, write, trick == EAGER_GONE ? GONE : OK);
	switch (trick) {
	case EAGER_FORGED:
		add(b, never_open(p, r), OK);
		break;
	case EAGER_WRAPPED:
		add(b, wrapped(p, r, i), OK);
		break;
	case EAGER_TWICE:
		if (chance(r, 500))
			add(b, write, OK);
		else
			post_message(p->c, &wr, b, 4 + 4 * b[1]);
		break;
	case EAGER_OVERDRAW:
		for (unsigned int more = 1 + below(r, ANSWERS_MOST - 1); more; more--)
			add(b, write, OK);
		break;
	case EAGER_FORM:
		n = malform(r, b);
		break;
	case EAGER_KEY:
		wr.opcode = IBV_WR_SEND_WITH_INV;
		wr.invalidate_rkey = other_key(p, i);
		if (!wr.invalidate_rkey)
			wr.invalidate_rkey = p->bounce_key;
		break;
	case EAGER_AHEAD:
		/* Answer a write that has not arrived; if it is in flight the answer is valid. */
		add(b, p->ring.next, OK);
		p->may_stay = true;
		p->end_by = now_ms() + AHEAD_MS;
		break;
	default:
		break;
	}
	post_message(p->c, &wr, b, n ? n : 4u + 4 * b[1]);
}

/* Answers eager write i, truly or falsely. */
void answer_eager(struct peer *p, unsigned int i)
{
	struct request *q = &p->requests[i];
	struct rng r = stream('g', q->message);
	bool was_held = q->held_until;
	enum trick trick = was_held ? FAIR : possible(p, i, pick(&r, EAGERLY, q->message));

	switch (trick) {
	case HOLD:
		q->held_until = now_ms() + HOLD_MS;
		break;
	case FAIR:
	case EAGER_STATUS:
	case EAGER_VALUE:
		settle_some(p, &r, i, trick);
		break;
	default:
		lie(p, &r, i, trick);
	}
}
