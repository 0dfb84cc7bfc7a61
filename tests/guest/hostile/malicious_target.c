// SPDX-License-Identifier: GPL-2.0
/* The malicious target's actions: mostly those of docs/reference/protocol.md, and others that the seed selects. */

#include <arpa/inet.h>
#include <string.h>
#include "target.h"

/* How often, of a thousand times; harmless: an initiator cannot notice, or must tolerate it. */
static const struct {
	const char *name;
	enum stage stage;
	unsigned short weight;
	bool harmless;
} tricks[TRICKS] = {
	[FAIR] = { "fair", CONNECTING, 0, true },
	[REFUSE] = { "refuse", CONNECTING, 15, false },
	[HANG_UP] = { "hang-up", CONNECTING, 10, false },
	/* These take a timeout each time: only with --only. */
	[IGNORE] = { "ignore", CONNECTING, 0, false },
	[SILENT] = { "silent", SERVING, 0, false },
	[NOPLESS] = { "nopless", SERVING, 0, false },
	[REPLY_WRONG] = { "reply", CONNECTING, 60, false },
	[EAGER] = { "eager", CONNECTING, 15, false },
	[VANISH] = { "vanish", CONNECTING, 10, false },
	[WRONG_RING] = { "wrong-ring", CONNECTING, 10, false },
	[REACH] = { "reach", SERVING, 24, false },
	[LEAVE] = { "leave", SERVING, 3, false },
	[PARTIAL] = { "partial", SERVING, 25, true },
	[EARLY] = { "early", SERVING, 5, false },
	[LATE] = { "late", SERVING, 10, false },
	[STATUS] = { "status", ANSWERING, 50, true },
	[IMMEDIATE] = { "immediate", ANSWERING, 20, true },
	[LEAN] = { "lean", ANSWERING, 60, true },
	[MUTATE] = { "mutate", ANSWERING, 24, false },
	[SHORT] = { "short", ANSWERING, 4, false },
	[LONG] = { "long", ANSWERING, 3, false },
	[OPCODE] = { "opcode", ANSWERING, 3, false },
	[FLAGS] = { "flags", ANSWERING, 3, false },
	[UNKNOWN] = { "unknown", ANSWERING, 3, false },
	[RESERVED] = { "reserved", ANSWERING, 3, false },
	[TAG] = { "tag", ANSWERING, 4, false },
	[OVERDRAW] = { "overdraw", ANSWERING, 4, false },
	[TWICE] = { "twice", ANSWERING, 4, false },
	[REPLAY] = { "replay", ANSWERING, 4, false },
	[KEY] = { "key", ANSWERING, 4, false },
	[OTHER_KEY] = { "other-key", ANSWERING, 6, false },
	[EMPTY] = { "empty", ANSWERING, 6, false },
	[MISER] = { "miser", ANSWERING, 8, false },
	[UNASKED] = { "unasked", ANSWERING, 6, false },
	[OTHER_LENGTH] = { "other-length", ANSWERING, 6, false },
	[OTHER_VALUE] = { "other-value", ANSWERING, 4, false },
	[GONE_ANSWER] = { "gone", ANSWERING, 4, false },
	[HOLD] = { "hold", EAGERLY, 100, true },
	[EAGER_STATUS] = { "eager-status", EAGERLY, 40, true },
	[EAGER_VALUE] = { "eager-value", EAGERLY, 40, true },
	[EAGER_FORGED] = { "eager-forged", EAGERLY, 6, false },
	[EAGER_WRAPPED] = { "eager-wrapped", EAGERLY, 6, false },
	[EAGER_TWICE] = { "eager-twice", EAGERLY, 12, false },
	[EAGER_OVERDRAW] = { "eager-overdraw", EAGERLY, 20, false },
	[EAGER_FORM] = { "eager-form", EAGERLY, 12, false },
	[EAGER_RESPONSE] = { "eager-response", EAGERLY, 20, false },
	[EAGER_KEY] = { "eager-key", EAGERLY, 12, false },
	[EAGER_AHEAD] = { "eager-ahead", EAGERLY, 8, false },
	[EAGER_GONE] = { "eager-gone", EAGERLY, 6, false },
	[ADMIN_LENGTH] = { "admin-length", ADMINISTERING, 6, false },
	[ADMIN_OPCODE] = { "admin-opcode", ADMINISTERING, 6, false },
	[ADMIN_TAG] = { "admin-tag", ADMINISTERING, 6, false },
	[ADMIN_TWICE] = { "admin-twice", ADMINISTERING, 6, false },
	[ADMIN_STATUS] = { "admin-status", ADMINISTERING, 6, false },
	[ADMIN_RESERVED] = { "admin-reserved", ADMINISTERING, 6, false },
	[ADMIN_SAME] = { "admin-same", ADMINISTERING, 6, false },
	[ADMIN_SIZE] = { "admin-size", ADMINISTERING, 6, false },
	[ADMIN_VALUE] = { "admin-value", ADMINISTERING, 6, false },
	[ADMIN_LEAVE] = { "admin-leave", ADMINISTERING, 6, false },
	[ADMIN_GONE] = { "admin-gone", ADMINISTERING, 6, false },
	/* Only with --only, as above. */
	[ADMIN_SILENT] = { "admin-silent", ADMINISTERING, 0, false },
	[ATTACH_LENGTH] = { "attach-length", ATTACHING, 30, false },
	[ATTACH_FORM] = { "attach-form", ATTACHING, 30, false },
	[ATTACH_HANDLE] = { "attach-handle", ATTACHING, 30, false },
	[ATTACH_SIZE] = { "attach-size", ATTACHING, 30, false },
	[ATTACH_LARGE] = { "attach-large", ATTACHING, 30, false },
	[ATTACH_RESERVED] = { "attach-reserved", ATTACHING, 30, false },
	[ATTACH_REASON] = { "attach-reason", ATTACHING, 30, false },
	[ATTACH_REFUSED] = { "attach-refused", ATTACHING, 30, false },
	[ATTACH_TAG] = { "attach-tag", ATTACHING, 30, false },
	[ATTACH_TWICE] = { "attach-twice", ATTACHING, 30, false },
	[ATTACH_AHEAD] = { "attach-ahead", ATTACHING, 30, false },
};

static enum trick only = TRICKS;

enum trick trick_named(const char *name)
{
	for (enum trick t = FAIR; t < TRICKS; t++)
		if (!strcmp(tricks[t].name, name))
			return t;
	return TRICKS;
}

const char *trick_name(enum trick trick)
{
	return tricks[trick].name;
}

bool is_nopless(void)
{
	return only == NOPLESS;
}

bool attaches_always(void)
{
	return only != TRICKS && tricks[only].stage == ATTACHING;
}

bool grants_always(void)
{
	return only != TRICKS && tricks[only].stage == EAGERLY;
}

void choose_only(enum trick trick)
{
	only = trick;
}

enum trick pick(struct rng *r, enum stage stage, uint64_t n)
{
	unsigned int roll = below(r, 1000);
	bool rare = !may_cost(r, n);

	if (only != TRICKS)
		return tricks[only].stage == stage && roll < 500 ? only : FAIR;
	for (enum trick t = FAIR; t < TRICKS; t++) {
		if (tricks[t].stage != stage)
			continue;
		if (roll < tricks[t].weight)
			return rare && !tricks[t].harmless ? FAIR : t;
		roll -= tricks[t].weight;
	}
	return FAIR;
}

/* Sends a message before the first request. */
void speak_first(struct peer *p, struct rng *r)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .wr_id = work_id(W_OTHER, 0) };
	unsigned char b[128] = { 0x80 };
	size_t n = RESPONSE;

	put(b + 2, 2, below(r, 2));
	put(b + 4, 2, below(r, 16));
	/* The first use of a tag has generation 1. */
	put(b + 6, 2, chance(r, 500) ? 2 + below(r, 1000) : 0);
	if (chance(r, 300)) {
		n = below(r, 80);
		for (size_t i = 0; i < n; i++)
			b[i] = next(r);
	} else if (chance(r, 300)) {
		/* An answer to eager write 0, or another. */
		b[0] = 0x81;
		b[1] = 1;
		put(b + 2, 2, 0);
		put(b + 4, 4, below(r, 2) * below(r, 65536));
		n = 8;
	}
	expect_end(p, "it spoke first");
	post_message(p->c, &wr, b, n);
}

void reach_out(struct peer *p, struct rng *r, unsigned int i)
{
	const struct request *q = &p->requests[i];
	unsigned char *mine = slot(q->slot - 1);
	uint64_t at = get(q->bytes + 24, 8), length = get(q->bytes + 16, 4), id = work_id(W_FORBIDDEN, i);
	uint32_t key = get(q->bytes + 20, 4);
	/* The grant has one direction. */
	bool read = q->bytes[0] == WRITE;
	const struct key *dead = &p->dead[below(r, DEAD)];
	size_t n = 1 + below(r, 4096);
	unsigned int what = below(r, 9), low = 17;

	expect_end(p, "it reached for memory");
	/* Next to a small read's slot are others, which may be written, but not read. */
	if (uses_read_bounce(q)) {
		low = 32;
		if (what >= 1 && what <= 3)
			what = 0;
	}
	switch (what) {
	case 0:
		read = !read;
		n = 1 + below(r, length);
		break;
	case 1:
		at += length;
		break;
	case 2:
		at += length - 1;
		n++;
		break;
	case 3:
		at -= 1 + below(r, 4096);
		break;
	case 4:
		key ^= 1 + below(r, 255);
		n = length;
		break;
	case 5:
		key = next(r);
		at = odd_number(r);
		read = chance(r, 500);
		break;
	case 6:
		at ^= 1ull << (low + below(r, 64 - low));
		break;
	case 7: {
		struct ibv_sge sge = { (uintptr_t)mine, 8, wide->lkey };
		struct ibv_send_wr wr = { .wr_id = id, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD };

		wr.wr.atomic.remote_addr = (at + 7) & ~7ull;
		wr.wr.atomic.rkey = key;
		wr.wr.atomic.compare_add = 1;
		return post(p->c, &wr, &sge);
	}
	default:
		/* An invalidated key, unless it is in use again. */
		if (!dead->key)
			break;
		for (unsigned int k = 0; k < SLOTS; k++)
			if (p->requests[k].used && get(p->requests[k].bytes + 20, 4) == dead->key)
				dead = NULL;
		if (!dead)
			break;
		key = dead->key;
		at = dead->address;
		n = 1;
		read = chance(r, 500);
	}
	if (at == get(q->bytes + 24, 8) && key == get(q->bytes + 20, 4) && read == (q->bytes[0] == WRITE))
		read = !read;
	rdma(p, read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, id, mine, at, key, n > SLOT ? SLOT : n);
}

void send_data(struct peer *p, unsigned int i, uint64_t length, uint64_t id)
{
	const struct request *q = &p->requests[i];
	unsigned char *mine = slot(q->slot - 1);
	uint64_t at = get(q->bytes + 24, 8), middle = length / 16 * 8;
	uint32_t key = get(q->bytes + 20, 4);

	/* In two pieces, the second one first. */
	if (middle && length > middle)
		rdma(p, IBV_WR_RDMA_WRITE, work_id(W_OTHER, i), mine + middle, at + middle, key, length - middle);
	rdma(p, IBV_WR_RDMA_WRITE, id, mine, at, key, middle ? middle : length);
}

uint32_t other_key(const struct peer *p, unsigned int i)
{
	for (unsigned int k = 0; k < SLOTS; k++)
		if (k != i && p->requests[k].used && !p->requests[k].answered && p->requests[k].bytes[0] < FLUSH &&
		    !is_eager(&p->requests[k]))
			return get(p->requests[k].bytes + 20, 4);
	return 0;
}

unsigned int failure(struct rng *r)
{
	unsigned int status = 1 + below(r, STATUSES - 1);

	/* This ends the session. */
	return status == GONE ? INVALID : status;
}

/* Answers request i by an immediate value, with n bytes of data. */
static void answer_by_value(struct peer *p, unsigned int i, uint32_t value, size_t n)
{
	struct request *q = &p->requests[i];
	struct ibv_sge sge = { n ? (uintptr_t)slot(q->slot - 1) : 0, n, wide->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .wr_id = work_id(W_ANSWER, i) };

	wr.imm_data = htonl(value);
	if (n) {
		wr.wr.rdma.remote_addr = get(q->bytes + 24, 8);
		wr.wr.rdma.rkey = get(q->bytes + 20, 4);
	}
	q->answered = true;
	p->ring.open = true;
	post(p->c, &wr, &sge);
}

/* Returns the number of credits for an answer to request i. */
static unsigned int credits(struct peer *p, unsigned int i, enum trick trick)
{
	unsigned int others = 0, n = 1 + p->owed;

	for (unsigned int k = 0; k < SLOTS; k++)
		others += k != i && p->requests[k].used && !p->requests[k].answered;
	if (trick == MISER)
		p->miser = true;
	if (p->miser)
		return 0;
	/* Credits may come with a later answer, if there is one. */
	if (trick == LEAN && others) {
		p->owed++;
		return 0;
	}
	p->owed = 0;
	return n;
}

void come_late(struct peer *p, unsigned int i)
{
	const struct request *q = &p->requests[i];
	bool read = q->bytes[0] == WRITE;

	rdma(p, read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, work_id(read ? W_LATE_READ : W_LAST, i), slot(q->slot - 1),
	     get(q->bytes + 24, 8), get(q->bytes + 20, 4), get(q->bytes + 16, 4));
}

void answer(struct peer *p, unsigned int i)
{
	struct request *q = &p->requests[i];
	struct rng r = stream('a', q->message);
	unsigned char b[128] = { 0x80 };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .wr_id = work_id(W_ANSWER, i) };
	bool nop = q->bytes[0] == NOP;
	enum trick trick = q->trick != FAIR ? q->trick : nop ? FAIR : pick(&r, ANSWERING, q->message);
	uint32_t key = get(q->bytes + 20, 4);
	uint64_t at = get(q->bytes + 24, 8), length = get(q->bytes + 16, 4);
	uint32_t value = get(q->bytes + 4, 4);
	unsigned int granted;
	size_t n = RESPONSE;
	bool invalidate = q->bytes[1] & 2 && chance(&r, 700), read = q->bytes[0] == READ, left = false;

	/* A message may answer any request. */
	if (trick == FAIR && uses_read_bounce(q) && !p->miser && chance(&r, 700)) {
		p->held++;
		values++;
		return answer_by_value(p, i, value, length);
	}
	if ((trick == UNASKED && !uses_read_bounce(q)) || (trick == OTHER_LENGTH && uses_read_bounce(q)) || trick == OTHER_VALUE) {
		if (trick == UNASKED)
			n = read ? length : 0;
		else if (trick == OTHER_LENGTH)
			n = below(&r, 2) * 8 * below(&r, length / 8);
		else
			n = 0;
		memcpy(b + 4, q->bytes + 4, 4);
		while (trick == OTHER_VALUE && in_flight(p, b + 4))
			put(b + 4 + 2 * below(&r, 2), 2, next(&r));
		expect_end(p, tricks[trick].name);
		return answer_by_value(p, i, get(b + 4, 4), n);
	}
	if (trick == UNASKED || trick == OTHER_LENGTH)
		trick = FAIR;
	granted = credits(p, i, trick);
	put(b + 2, 2, granted);
	memcpy(b + 4, q->bytes + 4, 4);
	if (trick == LATE)
		invalidate = false;
	if (trick == EARLY && !(q->bytes[1] & 2)) {
		/* The data is undefined then. */
		send_data(p, i, length, work_id(W_OTHER, i));
		trick = FAIR;
	}
	if (trick == EARLY)
		invalidate = true;
	if (invalidate) {
		wr.opcode = IBV_WR_SEND_WITH_INV;
		wr.invalidate_rkey = key;
	}
	switch (trick) {
	case PARTIAL:
	case STATUS:
		put(b + 8, 2, failure(&r));
		break;
	case GONE_ANSWER:
		put(b + 8, 2, GONE);
		break;
	case IMMEDIATE:
		if (!invalidate) {
			wr.opcode = IBV_WR_SEND_WITH_IMM;
			wr.imm_data = next(&r);
		}
		break;
	case MUTATE:
		mutate(&r, b, RESPONSE);
		if (b[0] == 0x80 && !b[1] && zero(b + 10, 6) && get(b + 8, 2) < STATUSES) {
			/* The initiator cannot notice a possible number of credits, or an answer to another request without data yet. */
			if (get(b + 2, 2) <= p->credits)
				put(b + 2, 2, granted);
			if (in_flight(p, b + 4))
				memcpy(b + 4, q->bytes + 4, 4);
			if (get(b + 2, 2) != granted || memcmp(b + 4, q->bytes + 4, 4) || get(b + 8, 2) == GONE)
				expect_end(p, tricks[trick].name);
		} else {
			expect_end(p, tricks[trick].name);
		}
		break;
	case SHORT:
		do
			n = below(&r, BUFFER + 1);
		while (n == RESPONSE);
		break;
	case LONG:
		n = BUFFER + 1 + below(&r, 60);
		break;
	case OPCODE:
		b[0] = below(&r, 0x80);
		break;
	case FLAGS:
		b[1] = 1 + below(&r, 255);
		break;
	case UNKNOWN:
		put(b + 8, 2, STATUSES + below(&r, 65536 - STATUSES));
		break;
	case RESERVED:
		b[10 + below(&r, 6)] = 1 + below(&r, 255);
		break;
	case TAG:
		do
			put(b + 4 + 2 * below(&r, 2), 2, next(&r));
		while (in_flight(p, b + 4));
		break;
	case OVERDRAW:
		put(b + 2, 2, p->credits + 1 + below(&r, 65535 - p->credits));
		break;
	case REPLAY:
		if (!p->has_answered) {
			trick = FAIR;
			break;
		}
		/* Send an old answer instead of this one. */
		memcpy(b, p->answer, RESPONSE);
		put(b + 2, 2, granted);
		wr.opcode = IBV_WR_SEND;
		break;
	case KEY:
	case OTHER_KEY:
		wr.invalidate_rkey = other_key(p, i);
		if (trick == OTHER_KEY && !wr.invalidate_rkey) {
			trick = FAIR;
			wr.invalidate_rkey = key;
			break;
		}
		wr.opcode = IBV_WR_SEND_WITH_INV;
		if (trick == KEY)
			wr.invalidate_rkey = chance(&r, 500) ? next(&r) : key ^ (1 + below(&r, 255));
		break;
	case EMPTY:
		/* Take a receive buffer, and leave it empty. */
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		n = 0;
		if (read && chance(&r, 600)) {
			struct ibv_sge sge = { (uintptr_t)slot(q->slot - 1), RESPONSE, wide->lkey };

			/* Data of a message's length, or longer than any message. */
			if (chance(&r, 500))
				sge.length = length;
			wr.wr.rdma.remote_addr = at;
			wr.wr.rdma.rkey = key;
			q->answered = true;
			expect_end(p, tricks[trick].name);
			return post(p->c, &wr, &sge);
		}
		break;
	default:
		break;
	}
	switch (trick) {
	case SHORT:
	case LONG:
	case OPCODE:
	case FLAGS:
	case UNKNOWN:
	case RESERVED:
	case TAG:
	case OVERDRAW:
	case TWICE:
	case REPLAY:
	case KEY:
	case OTHER_KEY:
	case EMPTY:
	case GONE_ANSWER:
		expect_end(p, tricks[trick].name);
		break;
	default:
		break;
	}
	q->answered = true;
	p->ring.open = true;
	if (!p->end_by) {
		memcpy(p->answer, b, RESPONSE);
		p->has_answered = true;
		p->held += granted;
		if (wr.opcode == IBV_WR_SEND_WITH_INV)
			p->dead[p->dead_count++ % DEAD] = (struct key){ key, at };
		for (unsigned int k = 0; k < SLOTS; k++)
			left |= p->requests[k].used && !p->requests[k].answered;
		/* The initiator has no credit left for any request. */
		if (!p->held && !left)
			expect_end(p, "it leaves no credit");
	}
	if (trick == LATE || trick == EARLY)
		wr.wr_id = work_id(W_OTHER, i);
	post_message(p->c, &wr, b, n);
	if (trick == TWICE) {
		/* Zero credits: the initiator must not discover the trick by its credits. */
		put(b + 2, 2, 0);
		wr.opcode = IBV_WR_SEND;
		post_message(p->c, &wr, b, n);
	} else if (trick == EARLY) {
		/* Send the data after the answer, which invalidated the key. */
		early++;
		expect_end(p, tricks[trick].name);
		send_data(p, i, length, work_id(W_FORBIDDEN, i));
	} else if (trick == LATE) {
		q->late_at = now_ms() + LATE_MS;
	}
}
