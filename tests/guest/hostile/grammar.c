// SPDX-License-Identifier: GPL-2.0
/* The client's messages, good and bad, and a target's duty for each by docs/reference/protocol.md. */

#include <arpa/inet.h>
#include <string.h>
#include "hostile.h"
#include "client.h"

static bool granted(const struct ibv_mr *mr, uint32_t key, uint64_t at, uint64_t length)
{
	return mr->rkey == key && at >= (uintptr_t)mr->addr && at + length <= (uintptr_t)mr->addr + mr->length;
}

/* Returns the status for a request's blocks; the request may have `max` bytes. */
static int judge_blocks(const struct message *m, unsigned int max)
{
	uint64_t offset = get(m->bytes + 8, 8);
	uint32_t length = get(m->bytes + 16, 4);

	if (m->bytes[0] != READ && read_only)
		return READ_ONLY;
	/* The length of requests without data is checked last. */
	if (length > max && m->bytes[0] != DISCARD && m->bytes[0] != ZEROES)
		return INVALID;
	if (offset % block || length % block || offset + length > capacity)
		return OUT_OF_RANGE;
	return length > max ? UNSUPPORTED : OK;
}

/* Judges a request with data in the eager ring: both sides count it, or the session ends. */
static void judge_eager(struct message *m)
{
	const unsigned char *b = m->bytes;
	uint64_t offset = get(b + 8, 8);
	uint32_t length = get(b + 16, 4);

	m->verdict = END;
	if (m->length != REQUEST || b[2] || b[3] || !zero(b + 33, 7) || b[0] != WRITE || b[1] & ~(QUIET | 1) || !length ||
	    offset + length < offset || !zero(b + 20, 12) || length > grant_bytes)
		return;
	m->eager = true;
	m->verdict = m->status = judge_blocks(m, max_transfer);
}

/* Sets the verdict: how a target must treat these bytes by docs/reference/protocol.md. */
void judge(struct message *m)
{
	const unsigned char *b = m->bytes;
	uint64_t offset = get(b + 8, 8), at = get(b + 24, 8);
	uint32_t length = get(b + 16, 4), key = get(b + 20, 4);
	/* QUIET only decides whether the answer wakes up its reader. */
	unsigned int op = b[0], flags = b[1] & ~QUIET, data = b[32];
	bool good = false, behind;

	m->eager = m->may_lack = false;
	m->verdict = END;
	if (m->length < 8 || m->length > REQUEST + INLINE)
		return;
	if (m->length >= REQUEST && data == EAGER_RING)
		return judge_eager(m);
	m->verdict = m->status = INVALID;
	/* The request announces others, which do not follow. */
	if (m->length >= REQUEST && b[2]) {
		m->verdict = END;
		return;
	}
	/* Messages of the admin queue pair are wrong on others. */
	if (m->length >= REQUEST && ((op >= KEEP_ALIVE && op <= DETACH) || (op >= REGISTER && op <= READ_RESERVATION))) {
		m->verdict = END;
		return;
	}
	behind = m->length > REQUEST && data == FOLLOWS && m->length == REQUEST + (uint64_t)length &&
		 offset + length >= offset && !key && !at;
	if ((m->length != REQUEST && !behind) || b[3] || b[33] || !zero(b + 36, 4))
		return;
	if (op < READ || op > NOP) {
		m->verdict = m->status = UNSUPPORTED;
		return;
	}
	/* A handle of no volume. */
	if (b[34] || b[35])
		return;
	if (op == FLUSH || op == NOP) {
		if (!flags && !data && zero(b + 8, 24))
			m->verdict = m->status = OK;
		return;
	}
	if (op == DISCARD || op == ZEROES) {
		unsigned int max = op == DISCARD ? max_discard : max_zeroes;

		if (flags & (op == ZEROES ? ~4 : ~0) || data || !length || offset + length < offset || !zero(b + 20, 12))
			return;
		m->verdict = m->status = max ? judge_blocks(m, max) : UNSUPPORTED;
		return;
	}
	if (behind) {
		if (op == WRITE && !(flags & ~1))
			m->verdict = m->status = judge_blocks(m, max_transfer);
		return;
	}
	/* Only a read without invalidation may request an answer by immediate value. */
	if (flags & (op == WRITE ? ~(3 | ATOMIC) : ~2) || (data != KEYED && (data != BY_VALUE || op != READ || flags & 2)) || !length ||
	    offset + length < offset || at + length < at)
		return;
	m->verdict = m->status = judge_blocks(m, max_transfer);
	if (m->status == OK) {
		if (op == WRITE)
			good = granted(from, key, at, length);
		for (unsigned int i = 0; op == READ && i < SLOTS && !good; i++)
			good = granted(to[i], key, at, length);
		/* The drive's own limits apply to atomic writes. */
		if (flags & ATOMIC)
			m->may_lack = true;
		else if (!good) {
			m->verdict = END;
			return;
		}
		if (!good) {
			m->verdict = MAYBE;
			return;
		}
	}
	/* A peer cannot invalidate keys of this kind: the answer breaks the connection. */
	if (flags & 2)
		m->verdict = MAYBE;
}

bool by_immediate(struct message *m)
{
	const unsigned char *b = m->bytes;
	uint64_t unit = get(b + 8, 8) / 4096;
	uint32_t length = get(b + 16, 4);

	/* One RDMA WRITE carries all of the data, from one piece of memory. */
	if (!m->eager || m->wr.opcode != IBV_WR_SEND || get(b + 8, 8) % 4096 || length % 4096 || b[1] & ~QUIET ||
	    unit >> 31 || length > (m->status == OK ? from : wide)->length)
		return false;
	m->immediate = true;
	m->data = length;
	m->wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	m->wr.imm_data = htonl(unit | (b[1] & QUIET ? 1u << 31 : 0));
	return true;
}

/* Makes a correct message: a read of any blocks, or a write to the zone. */
static void correct(struct rng *r, struct message *m)
{
	unsigned int sectors = 1 + (chance(r, 50) ? below(r, SLOT / SECTOR) : below(r, 8));
	unsigned int align = block / SECTOR;
	uint64_t sector, kind = below(r, 10), at;
	unsigned char *b = m->bytes;

	sectors = (sectors + align - 1) / align * align;
	memset(m, 0, sizeof(*m));
	m->length = REQUEST;
	/* The part that may be data. */
	for (unsigned int i = REQUEST; i < KEPT; i += 8)
		memcpy(b + i, &(uint64_t){ HOSTILE }, 8);
	put(b + 4, 4, m->number = number);
	m->slot = number / WORKERS % SLOTS;
	m->wr.opcode = IBV_WR_SEND;
	if (kind == 0) {
		b[0] = FLUSH + below(r, 4);
		if (b[0] == FLUSH || b[0] == NOP)
			return;
		if (sectors > zone_count)
			sectors = zone_count;
		sector = zone_from + below(r, zone_count - sectors + 1);
		b[1] = b[0] == ZEROES && chance(r, 500) ? 4 : 0;
		put(b + 8, 8, sector / align * align * SECTOR);
		put(b + 16, 4, sectors * SECTOR);
		return;
	}
	b[32] = KEYED;
	put(b + 16, 4, sectors * SECTOR);
	at = below(r, (SLOT - sectors * SECTOR) / 8 + 1) * 8;
	if (kind <= 3) {
		if (sectors > zone_count)
			sectors = zone_count;
		put(b + 16, 4, sectors * SECTOR);
		b[0] = WRITE;
		b[1] = chance(r, 200);
		/* Half of the eager writes are announced by an immediate value. */
		if (kind == 3 && chance(r, 500)) {
			align = 4096 / SECTOR;
			sectors = (sectors + align - 1) / align * align;
			put(b + 16, 4, sectors * SECTOR);
			at = 0;
		}
		sector = zone_from + below(r, zone_count - sectors + 1);
		if (kind == 2 && sectors * SECTOR <= INLINE) {
			b[32] = FOLLOWS;
			m->length += sectors * SECTOR;
		} else if (kind == 3 && grant_bytes) {
			b[32] = EAGER_RING;
		} else {
			put(b + 20, 4, from->rkey);
			put(b + 24, 8, (uintptr_t)from->addr + at);
		}
	} else {
		b[0] = READ;
		if (chance(r, 400))
			b[32] = BY_VALUE;
		sector = below(r, capacity / SECTOR - sectors + 1);
		put(b + 20, 4, to[m->slot]->rkey);
		put(b + 24, 8, (uintptr_t)to[m->slot]->addr + at);
	}
	put(b + 8, 8, sector / align * align * SECTOR);
}

/* Breaks the rules in a way that ends the connection. */
static void deadly(struct rng *r, struct message *m)
{
	unsigned char *b = m->bytes;
	struct ibv_mr *mr;

	if (b[0] >= FLUSH || b[32] > BY_VALUE) {
		b[0] = READ;
		b[1] = 0;
		b[32] = KEYED;
		put(b + 16, 4, SECTOR);
		m->length = REQUEST;
	}
	mr = chance(r, 500) ? secret : b[0] == WRITE ? to[m->slot] : from;
	/* Choose blocks where a write does harm if the target gets its data from anywhere after all. */
	if (b[0] == WRITE)
		put(b + 8, 8, 0);
	switch (below(r, 20)) {
	case 0:
		m->length = below(r, 8);
		break;
	case 16:
		/* More or fewer requests than announced, or more than allowed. */
		b[2] = 1 + below(r, 255);
		m->length = REQUEST * (1 + below(r, MESSAGE_REQUESTS + 2)) + (chance(r, 300) ? 1 + below(r, REQUEST - 1) : 0);
		if (b[2] < MESSAGE_REQUESTS && m->length == REQUEST * (b[2] + 1u))
			m->length += REQUEST;
		break;
	case 19:
		/* A message of the admin queue pair. */
		b[0] = chance(r, 500) ? KEEP_ALIVE + below(r, 4) : REGISTER + below(r, READ_RESERVATION - REGISTER + 1);
		break;
	case 1:
		m->length = REQUEST + INLINE + 1 + below(r, 64);
		break;
	case 2:
		put(b + 20, 4, next(r));
		break;
	case 3:
		put(b + 20, 4, odd_number(r));
		break;
	case 4:
		put(b + 24, 8, odd_number(r));
		break;
	case 5:
		/* Across the end or the beginning of granted memory. */
		put(b + 24, 8, (uintptr_t)(b[0] == WRITE ? from : to[m->slot])->addr +
		    (chance(r, 500) ? SLOT - 1 - below(r, 511) : -1 - below(r, 512)));
		break;
	case 6:
	case 7:
		/* Our memory that is not granted, or not for this use. */
		put(b + 20, 4, mr->rkey);
		put(b + 24, 8, (uintptr_t)mr->addr + below(r, 1024));
		break;
	case 8:
		b[1] |= 2;
		break;
	case 9:
	case 10:
	case 11:
		/*
		 * Into the target's memory. Only by RDMA WRITE: the target accepts no RDMA READ
		 * and no atomic operation, and our device would then hold them back.
		 */
		m->wr.opcode = IBV_WR_RDMA_WRITE;
		m->data = 1 + below(r, 4096);
		m->wr.wr.rdma.remote_addr = chance(r, 500) ? odd_number(r) : next(r);
		m->wr.wr.rdma.rkey = chance(r, 500) ? below(r, 1 << 16) : next(r);
		break;
	case 12:
		m->wr.opcode = IBV_WR_SEND_WITH_INV;
		m->wr.invalidate_rkey = chance(r, 500) ? below(r, 1 << 16) : next(r);
		break;
	case 13:
		/* Takes a receive buffer, and leaves it empty. */
		m->wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		m->wr.imm_data = next(r);
		break;
	case 14:
	case 15:
		/* Into the eager ring, but with partial blocks, or past its end. */
		m->wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		m->wr.imm_data = next(r);
		m->wr.wr.rdma.rkey = grant_key;
		m->wr.wr.rdma.remote_addr = grant_address;
		m->data = 1 + below(r, 4095);
		if (chance(r, 300)) {
			m->data = 4096;
			m->wr.wr.rdma.remote_addr += grant_bytes - 4095 + below(r, 4096);
		}
		break;
	case 17:
	case 18:
		/* Data in granted memory that does not exist, or under a key as well. */
		b[0] = WRITE;
		b[1] = 0;
		b[32] = EAGER_RING;
		memset(b + 20, 0, 12);
		if (chance(r, 500))
			put(b + 16, 4, grant_bytes + 1 + below(r, grant_bytes + 4096));
		else
			put(b + 20 + below(r, 12), 1, 1 + below(r, 255));
		break;
	}
}

void generate(struct message *m, uint64_t n)
{
	struct rng r = stream('m', n);
	unsigned char *b = m->bytes;
	uint64_t saved = number;
	unsigned int field, kind;
	/* A new connection takes more time than a hundred messages. */
	bool rare = !may_cost(&r, n);

	number = n;
	correct(&r, m);
	kind = below(&r, 1000);
	if (rare && kind >= 970)
		kind = 0;
	if (n % 5 == 3) {
		at_bound(&r, m, n / 5 % PAIRS);
		if (m->verdict < END || !rare) {
			number = saved;
			return;
		}
		correct(&r, m);
	}
	if (kind < 400) {
		/* Correct. */
	} else if (kind < 550) {
		mutate(&r, b, REQUEST);
	} else if (kind < 620) {
		static const struct { unsigned char at, size; } fields[] = {
			{ 0, 1 }, { 1, 1 }, { 2, 2 }, { 3, 1 }, { 8, 8 }, { 16, 4 }, { 20, 4 }, { 24, 8 }, { 32, 1 }, { 33, 7 },
		};

		field = below(&r, sizeof(fields) / sizeof(*fields));
		put(b + fields[field].at, fields[field].size, odd_number(&r));
	} else if (kind < 700) {
		/* Beyond the end, across it, or unaligned. */
		if (chance(&r, 500))
			put(b + 8, 8, capacity - below(&r, 8) * SECTOR + below(&r, 2) * below(&r, SECTOR));
		else
			put(b + 16, 4, get(b + 16, 4) + 1 + below(&r, SECTOR - 1));
	} else if (kind < 770) {
		m->length = 8 + below(&r, BUFFER - 7);
		for (size_t i = REQUEST; i < m->length; i++)
			b[i] = next(&r);
	} else if (kind < 840) {
		b[0] = next(&r);
	} else if (kind < 890) {
		b[1] = next(&r);
	} else if (kind < 920) {
		b[32] = next(&r);
	} else if (kind < 950) {
		for (unsigned int i = 0; i < REQUEST; i++)
			b[i] = i < 4 || i > 7 ? next(&r) : b[i];
	} else if (kind < 970) {
		m->wr.opcode = IBV_WR_SEND_WITH_IMM;
		m->wr.imm_data = next(&r);
	} else if (kind < 985) {
		deadly(&r, m);
	} else if (kind < 990) {
		m->burst = true;
	}
	/* Another message's tag would leave open which of the two is answered. */
	if (get(b + 4, 4) != number)
		put(b + 4, 4, ~number);
	judge(m);
	/* Repair most mutations that would end the connection: the cases above are enough. */
	if (kind >= 400 && kind < 950 && m->verdict >= END && chance(&r, rare ? 995 : 950)) {
		do {
			correct(&r, m);
		} while (b[32] == EAGER_RING);
		b[0] ^= 0x40;
		judge(m);
	}
	/* Writes must stay in the zone. */
	if (b[0] != READ && b[0] != FLUSH && b[0] != NOP && (m->verdict == OK || (m->verdict == MAYBE && m->status == OK))) {
		uint64_t sector = get(b + 8, 8) / SECTOR, count = get(b + 16, 4) / SECTOR;

		if (sector < zone_from || sector + count > zone_from + zone_count) {
			if (count > zone_count)
				put(b + 16, 4, block);
			put(b + 8, 8, zone_from * SECTOR);
			judge(m);
		}
	}
	/* Others may read this data, so it must be ours: SLOT bytes exist. */
	if (m->eager && m->verdict == OK && get(b + 16, 4) > SLOT) {
		put(b + 16, 4, block);
		judge(m);
	}
	if (!m->burst && chance(&r, 500) && by_immediate(m)) {
		number = saved;
		return;
	}
	switch (m->wr.opcode) {
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
		break;
	case IBV_WR_SEND_WITH_INV:
		m->verdict = MAYBE;
		break;
	default:
		m->verdict = END;
	}
	number = saved;
}
