// SPDX-License-Identifier: GPL-2.0
/*
 * A peer that speaks the protocol badly, by the seed.
 *
 * hcablk-hostile client ADDRESS PORT VOLUME HOST_ID ZONE_FROM ZONE_COUNT [OPTION...]
 *	plays an initiator: connects again and again and sends messages of which
 *	most are wrong in some way. It judges each message by docs/protocol.md
 *	before it sends it and compares what the target does with that. Its
 *	writes with a key that works go to ZONE_COUNT sectors from sector
 *	ZONE_FROM only; the volume must hold the pattern of "fill".
 * hcablk-hostile target PORT [OPTION...]
 *	plays a target of the pattern: most requests are served, the others are
 *	answered wrongly or have memory accessed that they did not grant.
 * hcablk-hostile prey DIRECTORY STOP
 *	uses a device of the initiator (its configfs directory) that is
 *	connected to such a target, until the file STOP is there: whatever a
 *	read returns as read must be the pattern.
 * hcablk-hostile fill DEVICE
 * hcablk-hostile check DEVICE ZONE_FROM ZONE_COUNT
 *	write the pattern; see whether all of it is there. In the zone there may
 *	also be what "client" writes.
 *
 * Options: --seed N, --messages N, --first N (begin with this message).
 *
 * The content of message number N depends on the seed and N alone (but for
 * keys and addresses, which the kernel chooses). The last line is "passed ..."
 * or, and then the exit code is 1, "FAILED ..." with what repeats it.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <linux/fs.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

enum {
	SECTOR = 512,
	REQUEST = 40, RESPONSE = 16, BUFFER = 64,
	CONNECT = 56, REPLY = 64, REJECT = 16,
	/* Memory for data in flight; a message of number n uses slot n % SLOTS. */
	SLOTS = 32, SLOT = 64 << 10, GUARD = 4 << 10,
	RECEIVES = 256, RECEIVE = 256, SENDS = 256, SEND = 256,
	PATIENCE_MS = 40000,
};

enum { READ = 1, WRITE, FLUSH };
enum { OK, INVALID, UNSUPPORTED, OUT_OF_RANGE, READ_ONLY, STATUSES = 9 };
enum { MALFORMED = 1, VERSION, UNKNOWN_VOLUME, FORBIDDEN, NO_RESOURCES, STALE_EPOCH, NO_SESSION };
/* What the other side must do beside answering with a status. */
enum { END = 1000, MAYBE };

#define POISON 0xa5
#define HOSTILE 0x454c4954534f4821ull
#define SECRET 0x5345435245543f3full

static uint64_t seed, messages = 100000, first, number;
static const char *mode;
/* What was sent last. */
static unsigned int last_opcode;
static size_t last_length;
static unsigned char last_bytes[128];

__attribute__((noreturn, format(printf, 1, 2)))
static void failed(const char *format, ...)
{
	va_list args;

	fflush(stdout);
	printf("FAILED ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf(" (%s --seed %llu, message %llu; last sent by operation %u:", mode, (unsigned long long)seed,
	       (unsigned long long)number, last_opcode);
	for (size_t i = 0; i < last_length; i++)
		printf("%s%02x", i % 4 ? "" : " ", last_bytes[i]);
	printf(")\n");
	fflush(stdout);
	_exit(1);
}

/* ---- chance */

struct rng {
	uint64_t state;
};

static uint64_t next(struct rng *r)
{
	/* splitmix64 */
	uint64_t z = r->state += 0x9e3779b97f4a7c15;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

static uint64_t below(struct rng *r, uint64_t n)
{
	return next(r) % n;
}

static bool chance(struct rng *r, unsigned int per_mille)
{
	return below(r, 1000) < per_mille;
}

/* A stream of its own for each purpose and number. */
static struct rng stream(uint64_t purpose, uint64_t n)
{
	struct rng r = { seed ^ (purpose << 56) };

	r.state = next(&r) ^ (n * 0xd1342543de82ef95);
	next(&r);
	return r;
}

/* A number of the kind that bounds are forgotten for. */
static uint64_t odd_number(struct rng *r)
{
	static const uint64_t odd[] = {
		0, 1, 2, 7, 8, 511, 512, 513, 4095, 4096, 65535, 65536, 0x7fffffff, 0x80000000, 0xffffffff,
		0x100000000, 0xfffff000, 1 << 20, (1 << 20) + 512, INT64_MAX, 1ull << 63, -1ull, -512ull, -4096ull,
	};

	return chance(r, 800) ? odd[below(r, sizeof(odd) / sizeof(*odd))] : next(r) >> below(r, 64);
}

static void mutate(struct rng *r, unsigned char *bytes, size_t n)
{
	for (unsigned int i = 1 + below(r, 4); i; i--) {
		unsigned char *b = bytes + below(r, n);

		if (chance(r, 500))
			*b ^= 1 << below(r, 8);
		else
			*b = next(r);
	}
}

/* ---- numbers on the wire */

static void put(unsigned char *at, unsigned int bytes, uint64_t value)
{
	for (; bytes; bytes--, value >>= 8)
		*at++ = value;
}

static uint64_t get(const unsigned char *at, unsigned int bytes)
{
	uint64_t value = 0;

	while (bytes--)
		value = value << 8 | at[bytes];
	return value;
}

static bool zero(const unsigned char *at, size_t n)
{
	while (n--)
		if (at[n])
			return false;
	return true;
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}

/* ---- the pattern: what each sector of a volume holds */

static void pattern(uint64_t *at, uint64_t sector, uint64_t count)
{
	for (uint64_t s = sector; s < sector + count; s++)
		for (unsigned int i = 0; i < SECTOR / 8; i++)
			*at++ = (s * 64 + i + 1) * 0x9e3779b97f4a7c15;
}

static bool is_pattern(const uint64_t *at, uint64_t sector, uint64_t count)
{
	for (uint64_t s = sector; s < sector + count; s++)
		for (unsigned int i = 0; i < SECTOR / 8; i++)
			if (*at++ != (s * 64 + i + 1) * 0x9e3779b97f4a7c15)
				return false;
	return true;
}

static bool is_hostile(const uint64_t *at)
{
	for (unsigned int i = 0; i < SECTOR / 8; i++)
		if (at[i] != HOSTILE)
			return false;
	return true;
}

static int fill_or_check(bool fill, const char *path, uint64_t zone, uint64_t zone_count)
{
	enum { PIECE = 1 << 20 };
	int fd = open(path, (fill ? O_WRONLY : O_RDONLY) | O_DIRECT);
	uint64_t size, written = 0;
	uint64_t *data = aligned_alloc(4096, PIECE);

	if (fd < 0 || ioctl(fd, BLKGETSIZE64, &size) || !data)
		failed("%s: %s", path, strerror(errno));
	for (uint64_t at = 0; at < size; at += PIECE) {
		size_t n = size - at < PIECE ? size - at : PIECE;

		if (fill)
			pattern(data, at / SECTOR, n / SECTOR);
		if ((fill ? pwrite(fd, data, n, at) : pread(fd, data, n, at)) != (ssize_t)n)
			failed("%s at %llu: %s", path, (unsigned long long)at, strerror(errno));
		for (uint64_t i = 0; !fill && i < n / SECTOR; i++) {
			uint64_t s = at / SECTOR + i;
			const uint64_t *sector = data + i * SECTOR / 8;

			if (is_pattern(sector, s, 1))
				continue;
			if (s - zone >= zone_count)
				failed("sector %llu was changed", (unsigned long long)s);
			if (!is_hostile(sector))
				failed("sector %llu holds what nobody wrote", (unsigned long long)s);
			written++;
		}
	}
	if (fill && fsync(fd))
		failed("%s: %s", path, strerror(errno));
	printf("passed %llu sectors, %llu written by the hostile\n", (unsigned long long)size / SECTOR,
	       (unsigned long long)written);
	return 0;
}

/* ---- connections, for both sides */

struct connection {
	struct rdma_cm_id *id;
	struct rdma_event_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	unsigned int sends;
	bool broken;
	unsigned char receive[RECEIVES][RECEIVE];
	unsigned char send[SENDS][SEND];
	/* The false target's, see there. */
	unsigned int credits;
	uint64_t end_by;
	struct {
		bool used, begun, answered;
		/* Its memory, from 1. */
		unsigned int slot;
		uint64_t message;
		unsigned char request[REQUEST];
	} requests[SLOTS];
	uint32_t old_key;
	uint64_t old_address;
};

static struct ibv_pd *pd;
static unsigned char *arena;
/* Where data goes to, comes from, and what must stay here. */
static struct ibv_mr *to[SLOTS], *from, *secret, *wide;

static unsigned char *slot(unsigned int n)
{
	return arena + GUARD + n * (size_t)(SLOT + GUARD);
}

static void make_memory(struct ibv_context *device)
{
	size_t size = (SLOTS + 2) * (size_t)(SLOT + GUARD) + GUARD;

	if (pd)
		return;
	arena = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	pd = ibv_alloc_pd(device);
	if (arena == MAP_FAILED || !pd)
		failed("memory: %s", strerror(errno));
	for (size_t i = 0; i < size / 8; i++)
		((uint64_t *)arena)[i] = SECRET;
	for (unsigned int i = 0; i < SLOT / 8; i++)
		((uint64_t *)slot(SLOTS))[i] = HOSTILE;
	for (unsigned int i = 0; i < SLOTS; i++)
		to[i] = ibv_reg_mr(pd, slot(i), SLOT, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	from = ibv_reg_mr(pd, slot(SLOTS), SLOT, IBV_ACCESS_REMOTE_READ);
	secret = ibv_reg_mr(pd, slot(SLOTS + 1), SLOT, IBV_ACCESS_LOCAL_WRITE);
	wide = ibv_reg_mr(pd, arena, size, IBV_ACCESS_LOCAL_WRITE);
	if (!to[SLOTS - 1] || !from || !secret || !wide)
		failed("memory regions: %s", strerror(errno));
}

/* What lies between the memory that was granted is as it was. */
static void check_guards(void)
{
	for (unsigned int n = 0; n <= SLOTS + 2; n++)
		for (unsigned int i = 0; i < GUARD / 8; i++)
			if (((uint64_t *)(slot(n) - GUARD))[i] != SECRET)
				failed("memory that was not granted was written");
	for (unsigned int i = 0; i < SLOT / 8; i++)
		if (((uint64_t *)slot(SLOTS + 1))[i] != SECRET || ((uint64_t *)slot(SLOTS))[i] != HOSTILE)
			failed("memory that was not granted for it was written");
}

static void post_receive(struct connection *c, unsigned int n)
{
	struct ibv_sge sge = { (uintptr_t)c->receive[n], RECEIVE, c->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = 1 }, *bad;

	ibv_post_recv(c->id->qp, &wr, &bad);
}

/* The queue pair of a connection that is to be made. */
static struct connection *prepare(struct rdma_cm_id *id)
{
	struct connection *c = calloc(1, sizeof(*c));
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = SENDS, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	make_memory(id->verbs);
	c->id = id;
	id->context = c;
	c->cq = ibv_create_cq(id->verbs, SENDS + RECEIVES, NULL, NULL, 0);
	c->mr = ibv_reg_mr(pd, c, sizeof(*c), IBV_ACCESS_LOCAL_WRITE);
	attr.send_cq = c->cq;
	attr.recv_cq = c->cq;
	if (!c->cq || !c->mr || rdma_create_qp(id, pd, &attr))
		failed("a queue pair: %s", strerror(errno));
	for (unsigned int n = 0; n < RECEIVES; n++)
		post_receive(c, n);
	return c;
}

/* With no word to the peer but what the kernel says for everybody who goes. */
static void destroy(struct connection *c)
{
	if (c->id->qp)
		rdma_destroy_qp(c->id);
	rdma_destroy_id(c->id);
	if (c->channel)
		rdma_destroy_event_channel(c->channel);
	if (c->cq)
		ibv_destroy_cq(c->cq);
	if (c->mr)
		ibv_dereg_mr(c->mr);
	free(c);
}

/* Posts a SEND, or whatever else wr says; wr_id has a bit to tell it from a receive. */
static void post(struct connection *c, struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	struct ibv_send_wr *bad;

	wr->sg_list = sge;
	wr->num_sge = sge->length ? 1 : 0;
	wr->send_flags = IBV_SEND_SIGNALED;
	wr->wr_id |= 1ull << 63;
	last_opcode = wr->opcode;
	if (ibv_post_send(c->id->qp, wr, &bad))
		c->broken = true;
}

static void post_message(struct connection *c, struct ibv_send_wr *wr, const unsigned char *bytes, size_t n)
{
	unsigned char *at = c->send[c->sends++ % SENDS];
	struct ibv_sge sge = { (uintptr_t)at, n, c->mr->lkey };

	memcpy(at, bytes, n);
	memcpy(last_bytes, bytes, n);
	last_length = n;
	post(c, wr, &sge);
}

static struct rdma_cm_event *next_event(struct rdma_event_channel *channel, int ms)
{
	struct pollfd fd = { channel->fd, POLLIN, 0 };
	struct rdma_cm_event *event;

	if (poll(&fd, 1, ms) <= 0)
		return NULL;
	if (rdma_get_cm_event(channel, &event))
		failed("rdma_get_cm_event: %s", strerror(errno));
	return event;
}

/* ---- the client */

static struct addrinfo *address;
static unsigned char volume[16], host[16];
static uint64_t zone_from, zone_count, capacity;
static unsigned int block, max_transfer;
static bool read_only;
static uint64_t answered, ends, connects, rejects, reads_checked;

struct message {
	unsigned char bytes[128];
	size_t length;
	struct ibv_send_wr wr;
	/* The data of an operation that is no SEND. */
	size_t data;
	/* A status, END or MAYBE (then status says what an answer must be). */
	int verdict, status;
	unsigned int slot;
	bool replay, burst;
	uint64_t number;
};

/* Messages that are not answered. */
static struct message flight[512];
static unsigned int flying, slot_users[SLOTS];

static bool granted(const struct ibv_mr *mr, uint32_t key, uint64_t at, uint64_t length)
{
	return mr->rkey == key && at >= (uintptr_t)mr->addr && at + length <= (uintptr_t)mr->addr + mr->length;
}

/* What docs/protocol.md has a target do about these bytes. */
static void judge(struct message *m)
{
	const unsigned char *b = m->bytes;
	uint64_t offset = get(b + 8, 8), at = get(b + 24, 8);
	uint32_t length = get(b + 16, 4), key = get(b + 20, 4);
	unsigned int op = b[0], flags = b[1], data = b[32];
	bool good = false;

	m->verdict = END;
	if (m->length < 8 || m->length > BUFFER)
		return;
	m->verdict = m->status = INVALID;
	if (m->length != REQUEST || !zero(b + 2, 2) || !zero(b + 33, 7))
		return;
	if (op < READ || op > FLUSH) {
		m->verdict = m->status = UNSUPPORTED;
		return;
	}
	if (op == FLUSH) {
		if (!flags && !data && zero(b + 8, 24))
			m->verdict = m->status = OK;
		return;
	}
	if (flags & (op == WRITE ? ~3 : ~2) || data != 1 || !length ||
	    offset + length < offset || at + length < at)
		return;
	if (op == WRITE && read_only)
		m->status = READ_ONLY;
	else if (length > max_transfer)
		m->status = INVALID;
	else if (offset % block || length % block || offset + length > capacity)
		m->status = OUT_OF_RANGE;
	else
		m->status = OK;
	m->verdict = m->status;
	if (m->status == OK) {
		if (op == WRITE)
			good = granted(from, key, at, length);
		for (unsigned int i = 0; op == READ && i < SLOTS && !good; i++)
			good = granted(to[i], key, at, length);
		if (!good) {
			m->verdict = END;
			return;
		}
	}
	/* These keys are of a kind that a peer cannot invalidate: the answer breaks the connection. */
	if (flags & 2)
		m->verdict = MAYBE;
}

/* A correct message: a read of anything, or a write to the zone. */
static void correct(struct rng *r, struct message *m)
{
	unsigned int sectors = 1 + (chance(r, 50) ? below(r, SLOT / SECTOR) : below(r, 8));
	unsigned int align = block / SECTOR;
	uint64_t sector, kind = below(r, 10), at;
	unsigned char *b = m->bytes;

	sectors = (sectors + align - 1) / align * align;
	memset(m, 0, sizeof(*m));
	m->length = REQUEST;
	put(b + 4, 4, m->number = number);
	m->slot = number % SLOTS;
	m->wr.opcode = IBV_WR_SEND;
	if (kind == 0) {
		b[0] = FLUSH;
		return;
	}
	b[32] = 1;
	put(b + 16, 4, sectors * SECTOR);
	at = below(r, (SLOT - sectors * SECTOR) / 8 + 1) * 8;
	if (kind <= 3) {
		if (sectors > zone_count)
			sectors = zone_count;
		put(b + 16, 4, sectors * SECTOR);
		b[0] = WRITE;
		b[1] = chance(r, 200);
		sector = zone_from + below(r, zone_count - sectors + 1);
		put(b + 20, 4, from->rkey);
		put(b + 24, 8, (uintptr_t)from->addr + at);
	} else {
		b[0] = READ;
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

	if (b[0] == FLUSH) {
		b[0] = READ;
		b[32] = 1;
		put(b + 16, 4, SECTOR);
	}
	mr = chance(r, 500) ? secret : b[0] == WRITE ? to[m->slot] : from;
	/* Where a write does harm if its data is taken from somewhere after all. */
	if (b[0] == WRITE)
		put(b + 8, 8, 0);
	switch (below(r, 14)) {
	case 0:
		m->length = below(r, 8);
		break;
	case 1:
		m->length = BUFFER + 1 + below(r, 64);
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
		/* Across the end or the beginning of what is granted. */
		put(b + 24, 8, (uintptr_t)(b[0] == WRITE ? from : to[m->slot])->addr +
		    (chance(r, 500) ? SLOT - 1 - below(r, 511) : -1 - below(r, 512)));
		break;
	case 6:
	case 7:
		/* Memory of ours that is not granted, or not for this. */
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
		 * Into the target's memory. Only by RDMA WRITE: the target accepts no
		 * RDMA READ and no atomic operation, which our device then keeps back.
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
		/* Takes a receive buffer and leaves nothing in it. */
		m->wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		m->wr.imm_data = next(r);
		break;
	}
}

static void generate(struct message *m, uint64_t n)
{
	struct rng r = stream('m', n);
	unsigned char *b = m->bytes;
	uint64_t saved = number;
	unsigned int field, kind;

	number = n;
	correct(&r, m);
	kind = below(&r, 1000);
	if (kind < 400) {
		/* Correct. */
	} else if (kind < 550) {
		mutate(&r, b, REQUEST);
	} else if (kind < 620) {
		static const struct { unsigned char at, size; } fields[] = {
			{ 0, 1 }, { 1, 1 }, { 2, 2 }, { 8, 8 }, { 16, 4 }, { 20, 4 }, { 24, 8 }, { 32, 1 }, { 33, 7 },
		};

		field = below(&r, sizeof(fields) / sizeof(*fields));
		put(b + fields[field].at, fields[field].size, odd_number(&r));
	} else if (kind < 700) {
		/* Beyond the end, across it, off the boundaries. */
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
	judge(m);
	/* A mutation in vain: most that would cost the connection are mended, those above are enough. */
	if (kind >= 400 && kind < 950 && m->verdict >= END && chance(&r, 950)) {
		correct(&r, m);
		b[0] ^= 0x40;
		judge(m);
	}
	/* A write that would be done must stay in the zone. */
	if (b[0] == WRITE && (m->verdict == OK || (m->verdict == MAYBE && m->status == OK))) {
		uint64_t sector = get(b + 8, 8) / SECTOR, count = get(b + 16, 4) / SECTOR;

		if (sector < zone_from || sector + count > zone_from + zone_count) {
			if (count > zone_count)
				put(b + 16, 4, block);
			put(b + 8, 8, zone_from * SECTOR);
			judge(m);
		}
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

static void tell(const char *what, const unsigned char *bytes, size_t n)
{
	printf("%s", what);
	for (size_t i = 0; i < n; i++)
		printf("%s%02x", i % 4 ? "" : " ", bytes[i]);
	printf("\n");
}

static void land(unsigned int i)
{
	slot_users[flight[i].slot]--;
	flight[i] = flight[--flying];
}

static void response(const unsigned char *b, size_t n)
{
	const struct message *m = NULL;
	unsigned int i, status = get(b + 8, 2);
	uint64_t at, sector, count;

	if (n != RESPONSE || b[0] != 0x80 || b[1] || get(b + 2, 2) != 1 || !zero(b + 10, 6)) {
		tell("answer", b, n);
		failed("an answer that is none");
	}
	for (i = 0; i < flying; i++) {
		m = &flight[i];
		if (m->wr.opcode != IBV_WR_RDMA_WRITE_WITH_IMM && !m->data &&
		    !memcmp(m->bytes + 4, b + 4, 4) && m->verdict != END &&
		    (m->status == (int)status))
			break;
	}
	if (i == flying) {
		tell("answer", b, n);
		for (i = 0; i < flying; i++)
			if (!memcmp(flight[i].bytes + 4, b + 4, 4)) {
				tell("to", flight[i].bytes, flight[i].length);
				failed("status %u where %d (%d) was due", status, flight[i].status, flight[i].verdict);
			}
		failed("an answer to nothing");
	}
	answered++;
	sector = get(m->bytes + 8, 8) / SECTOR;
	count = get(m->bytes + 16, 4) / SECTOR;
	at = get(m->bytes + 24, 8);
	if (m->bytes[0] == READ && status == OK &&
	    (sector + count <= zone_from || sector >= zone_from + zone_count)) {
		/* Addresses need not be aligned. */
		static uint64_t copy[SLOT / 8];

		memcpy(copy, (void *)(uintptr_t)at, count * SECTOR);
		if (!is_pattern(copy, sector, count))
			failed("a read of sector %llu gave something else", (unsigned long long)sector);
		reads_checked++;
	}
	land(i);
}

/* Handles what has come; true when there was something. */
static bool work(struct connection *c)
{
	struct rdma_cm_event *event;
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(c->cq, 16, wc);

	for (int i = 0; i < n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS) {
			c->broken = true;
		} else if (wc[i].wr_id >> 63) {
			/* A bit for those that reach into the target's memory. */
			if (wc[i].wr_id >> 62 & 1)
				failed("memory of the target can be reached");
		} else {
			response(c->receive[wc[i].wr_id], wc[i].byte_len);
			post_receive(c, wc[i].wr_id);
		}
	}
	if (n > 0)
		return true;
	event = next_event(c->channel, 0);
	if (!event)
		return false;
	if (event->event != RDMA_CM_EVENT_ESTABLISHED)
		c->broken = true;
	rdma_ack_cm_event(event);
	return true;
}

/* Works until the condition holds or the connection is broken. */
#define UNTIL(c, condition, what) do {							\
	uint64_t _end = now_ms() + PATIENCE_MS;						\
	unsigned int _idle = 0;								\
	while (!(condition) && !(c)->broken) {						\
		if (work(c)) {								\
			_idle = 0;							\
		} else {								\
			if (++_idle > 20)						\
				usleep(100);						\
			if (now_ms() > _end)						\
				failed(what);						\
		}									\
	}										\
} while (0)

struct asked {
	unsigned char request[CONNECT];
	size_t length;
	unsigned int reads, rnr_retries;
	unsigned char reply[256];
	size_t reply_length;
};

/* What a target must say to a connection request; 0: it grants it. */
static unsigned int judge_request(const struct asked *a)
{
	const unsigned char *b = a->request;
	unsigned int end = 0;
	bool named = true;

	/* The transport pads with zeroes, which are in the array. */
	if (memcmp(b, "HCAB", 4) || b[4] > b[5])
		return MALFORMED;
	if (b[4] > 1 || b[5] < 1)
		return VERSION;
	while (end < 16 && b[40 + end])
		end++;
	for (unsigned int i = 0; i < end; i++)
		if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-", b[40 + i]))
			named = false;
	if (!end || b[40] == '.' || !named || !zero(b + 40 + end, 16 - end) ||
	    !get(b + 6, 2) || get(b + 6, 2) > 1024 || !b[9] || b[9] > 128 || b[8] >= b[9] ||
	    !zero(b + 10, 2) || !get(b + 12, 8) || !get(b + 20, 4) || zero(b + 24, 16))
		return MALFORMED;
	if (memcmp(b + 40, volume, 16))
		return UNKNOWN_VOLUME;
	if (memcmp(b + 24, host, 16))
		return FORBIDDEN;
	if (b[8])
		return NO_SESSION;
	return a->reads ? 0 : NO_RESOURCES;
}

static void good_request(struct rng *r, struct asked *a)
{
	unsigned char *b = a->request;

	memset(a, 0, sizeof(*a));
	a->length = CONNECT;
	a->reads = 1 + below(r, 8);
	a->rnr_retries = below(r, 8);
	memcpy(b, "HCAB\1\1", 6);
	put(b + 6, 2, 1 + below(r, 24));
	b[9] = 1;
	put(b + 12, 8, next(r) | 1);
	put(b + 20, 4, 1 + below(r, 1000));
	memcpy(b + 24, host, 16);
	memcpy(b + 40, volume, 16);
}

static bool step(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event = next_event(channel, PATIENCE_MS);
	bool good = event && event->event == wanted;

	if (event)
		rdma_ack_cm_event(event);
	return good;
}

/*
 * Asks for a connection; NULL and the reason when it is refused. With vanish the
 * client is gone before there is an answer.
 */
static struct connection *ask(struct asked *a, unsigned int *reason, bool vanish)
{
	for (unsigned int tries = 0; tries < 5; tries++) {
		struct rdma_event_channel *channel = rdma_create_event_channel();
		struct rdma_conn_param param = {
			.private_data = a->request, .private_data_len = a->length, .retry_count = 6,
			.rnr_retry_count = a->rnr_retries, .responder_resources = a->reads, .initiator_depth = 8,
		};
		struct rdma_cm_event *event;
		struct connection *c;
		struct rdma_cm_id *id;

		connects++;
		if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
			failed("rdma_create_id: %s", strerror(errno));
		if (rdma_resolve_addr(id, NULL, address->ai_addr, 5000) ||
		    !step(channel, RDMA_CM_EVENT_ADDR_RESOLVED) ||
		    rdma_resolve_route(id, 5000) || !step(channel, RDMA_CM_EVENT_ROUTE_RESOLVED)) {
			rdma_destroy_id(id);
			rdma_destroy_event_channel(channel);
			continue;
		}
		c = prepare(id);
		c->channel = channel;
		if (rdma_connect(id, &param))
			failed("rdma_connect: %s", strerror(errno));
		if (vanish) {
			destroy(c);
			*reason = 0;
			return NULL;
		}
		event = next_event(channel, PATIENCE_MS);
		if (!event)
			failed("no answer to a connection request");
		if (event->event == RDMA_CM_EVENT_ESTABLISHED) {
			a->reply_length = event->param.conn.private_data_len;
			if (a->reply_length > sizeof(a->reply))
				a->reply_length = sizeof(a->reply);
			memcpy(a->reply, event->param.conn.private_data, a->reply_length);
			rdma_ack_cm_event(event);
			return c;
		}
		*reason = 0;
		if (event->event == RDMA_CM_EVENT_REJECTED && event->param.conn.private_data_len >= REJECT) {
			const unsigned char *b = event->param.conn.private_data;

			if (!memcmp(b, "HCAB", 4))
				*reason = get(b + 4, 2);
		}
		rdma_ack_cm_event(event);
		destroy(c);
		if (*reason) {
			rejects++;
			return NULL;
		}
		usleep(20000);
	}
	failed("no connection to the target");
}

static void leave(struct connection *c, bool politely)
{
	if (politely)
		rdma_disconnect(c->id);
	destroy(c);
	while (flying)
		land(0);
}

/* A connection request that is wrong, mostly. */
static void odd_request(struct rng *r)
{
	struct connection *c;
	unsigned int wanted, reason;
	struct asked a;

	good_request(r, &a);
	switch (below(r, 6)) {
	case 0:
		a.length = below(r, CONNECT);
		memset(a.request + a.length, 0, CONNECT - a.length);
		break;
	case 1:
		a.reads = 0;
		break;
	case 2:
		a.request[8] = below(r, 3);
		a.request[9] = below(r, 4);
		break;
	case 3:
		ask(&a, &reason, true);
		return;
	default:
		mutate(r, a.request, CONNECT);
	}
	wanted = judge_request(&a);
	c = ask(&a, &reason, false);
	if (c) {
		leave(c, chance(r, 500));
		if (wanted)
			failed("a connection was granted where reason %u was due", wanted);
	} else if (reason != wanted && reason != NO_RESOURCES) {
		tell("request", a.request, CONNECT);
		failed("a connection was refused for %u where %u was due", reason, wanted);
	}
}

/* Requests that do not fit the session that is there. */
static void intrude(struct rng *r, const struct asked *live)
{
	struct asked a = *live;
	uint64_t epoch = get(a.request + 20, 4);
	unsigned int wanted, reason = 0;
	struct connection *c;

	switch (below(r, 5)) {
	case 0:
		wanted = STALE_EPOCH;
		break;
	case 1:
		put(a.request + 20, 4, epoch + 1);
		a.request[8] = 1;
		a.request[9] = 2;
		wanted = NO_SESSION;
		break;
	case 2:
		a.request[8] = 1;
		a.request[9] = 2;
		wanted = MALFORMED;
		break;
	case 3:
		put(a.request + 12, 8, next(r) | 1);
		a.request[8] = 1;
		a.request[9] = 2;
		wanted = NO_SESSION;
		break;
	default:
		if (epoch == 1)
			return;
		put(a.request + 20, 4, epoch - 1);
		wanted = STALE_EPOCH;
	}
	c = ask(&a, &reason, false);
	if (c || reason != wanted)
		failed("a second connection got %u where %u was due", c ? 0 : reason, wanted);
}

static struct connection *enter(struct rng *r, unsigned int *credits)
{
	for (unsigned int tries = 0; tries < 500; tries++) {
		struct connection *c;
		unsigned int reason;
		struct asked a;

		good_request(r, &a);
		c = ask(&a, &reason, false);
		if (!c) {
			/* Old sessions take their time to go. */
			if (reason != NO_RESOURCES)
				failed("a good connection request was refused for %u", reason);
			usleep(100000);
			continue;
		}
		if (a.reply_length < REPLY || memcmp(a.reply, "HCAB\1", 5) ||
		    memcmp(a.reply + 24, a.request + 12, 8) || memcmp(a.reply + 32, a.request + 20, 4))
			failed("the target's reply is wrong");
		*credits = get(a.reply + 6, 2);
		if (!*credits || *credits > get(a.request + 6, 2))
			failed("the target grants %u credits", *credits);
		capacity = get(a.reply + 8, 8);
		block = 1 << a.reply[16];
		read_only = a.reply[18] & 1;
		max_transfer = get(a.reply + 20, 4);
		if (chance(r, 150))
			intrude(r, &a);
		return c;
	}
	failed("no session becomes free");
}

static int play_client(void)
{
	struct connection *c = NULL;
	unsigned int credits = 0, burst = 0;
	uint64_t start = now_ms();
	bool may_end = false;
	struct rng r;

	for (number = first; number < first + messages; number++) {
		struct message m;

		if (!c) {
			r = stream('c', number);
			for (unsigned int i = below(&r, 3); i; i--)
				odd_request(&r);
			c = enter(&r, &credits);
			burst = 0;
			may_end = false;
		}
		r = stream('x', number);
		generate(&m, number);
		/* The same once more, also while the first is not answered. */
		if (number > first + 8 && chance(&r, 30)) {
			uint64_t old = number - 1 - below(&r, 8);

			generate(&m, old);
			if (m.verdict >= END)
				generate(&m, number);
			else
				m.replay = true;
		}
		if (m.burst) {
			burst = 1 + below(&r, 12);
			may_end = true;
		}
		if (burst)
			burst--;
		else
			UNTIL(c, flying < credits, "a message is not answered");
		if (!m.replay)
			UNTIL(c, !slot_users[m.slot], "a message is not answered");
		if (c->broken) {
			if (!may_end)
				failed("the target ended the connection without a reason");
			goto ended;
		}
		if (!slot_users[m.slot] && m.bytes[0] == READ && m.verdict == OK)
			memset((void *)(uintptr_t)get(m.bytes + 24, 8), POISON, get(m.bytes + 16, 4));
		m.number = number;
		flight[flying++] = m;
		slot_users[m.slot]++;
		if (m.data) {
			struct ibv_sge sge = { (uintptr_t)c->send[c->sends++ % (SENDS - 16)], m.data, c->mr->lkey };

			m.wr.wr_id = 1ull << 62;
			post(c, &m.wr, &sge);
		} else {
			post_message(c, &m.wr, m.bytes, m.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? 0 : m.length);
		}
		if (m.verdict == END)
			UNTIL(c, false, "the target did not end the connection");
		else if (m.verdict == MAYBE)
			UNTIL(c, !flying, "neither an answer nor an end");
		if (!c->broken) {
			/* Goes in the midst of it. */
			if (chance(&r, 3)) {
				leave(c, chance(&r, 300));
				c = NULL;
			}
			continue;
		}
		if (m.verdict < END && !may_end)
			failed("the target ended the connection without a reason");
ended:
		ends++;
		leave(c, true);
		c = NULL;
	}
	if (c) {
		UNTIL(c, !flying, "a message is not answered");
		leave(c, true);
	}
	check_guards();
	printf("passed %llu messages, %llu answered as they must be, %llu reads compared, "
	       "%llu connections asked for, %llu refused as they must be, %llu ended; %llu ms\n",
	       (unsigned long long)messages, (unsigned long long)answered, (unsigned long long)reads_checked,
	       (unsigned long long)connects, (unsigned long long)rejects, (unsigned long long)ends,
	       (unsigned long long)(now_ms() - start));
	return 0;
}

/* ---- the false target */

enum { CREDITS = 8, CAPACITY = 64 << 20 };

static struct rdma_event_channel *listener;
static struct connection *peers[64];
static bool slot_busy[SLOTS];
static uint64_t served, wrongs, reached, refusals;

/* What comes back with completions of the false target's sends. */
enum { W_ANSWER = 1, W_FETCH, W_OTHER, W_FORBIDDEN };

static uint64_t work_id(unsigned int kind, unsigned int i)
{
	return (uint64_t)kind << 32 | i;
}

static void expect_end(struct connection *c)
{
	wrongs++;
	/* Less than the I/O timeout, which would end it, too. */
	if (!c->end_by)
		c->end_by = now_ms() + 20000;
}

static void false_reply(struct rng *r, const unsigned char *request, unsigned char *b)
{
	unsigned int depth = get(request + 6, 2);

	memset(b, 0, REPLY);
	memcpy(b, "HCAB\1", 5);
	put(b + 6, 2, 1 + below(r, depth < CREDITS ? depth : CREDITS));
	put(b + 8, 8, CAPACITY);
	b[16] = 9;
	b[17] = 12;
	b[18] = 6;
	put(b + 20, 4, SLOT);
	memcpy(b + 24, request + 12, 8);
	memcpy(b + 32, request + 20, 4);
}

/* What an initiator must do with a reply: take it or not. */
static bool good_reply(const unsigned char *b, const unsigned char *request)
{
	uint64_t size = get(b + 8, 8), transfer = get(b + 20, 4);

	return !memcmp(b, "HCAB\1", 5) && get(b + 6, 2) && get(b + 6, 2) <= get(request + 6, 2) &&
	       b[16] >= 9 && b[16] <= 12 && b[17] >= b[16] && b[17] <= 24 &&
	       transfer >= 4096 && transfer <= 1 << 20 && !(transfer % 4096) &&
	       size && size <= INT64_MAX && !(size % (1 << b[16])) &&
	       !memcmp(b + 24, request + 12, 8) && !memcmp(b + 32, request + 20, 4);
}

static void welcome(struct rdma_cm_event *event)
{
	struct rng r = stream('q', number);
	unsigned char reply[REPLY], request[CONNECT];
	struct rdma_conn_param param = {
		.private_data = reply, .private_data_len = REPLY, .rnr_retry_count = 7, .initiator_depth = 8,
	};
	unsigned int kind = below(&r, 100), place = 0;
	struct rdma_cm_id *id = event->id;
	struct connection *c;
	bool good;

	connects++;
	if (event->param.conn.private_data_len < CONNECT)
		failed("the initiator's connection request is too short");
	memcpy(request, event->param.conn.private_data, CONNECT);
	if (memcmp(request, "HCAB\1\1", 6) || !get(request + 6, 2) || request[8] >= request[9])
		failed("the initiator's connection request is wrong");
	if (event->param.conn.initiator_depth < param.initiator_depth)
		param.initiator_depth = event->param.conn.initiator_depth;
	if (event->param.conn.responder_resources < param.initiator_depth)
		param.initiator_depth = event->param.conn.responder_resources;
	rdma_ack_cm_event(event);
	false_reply(&r, request, reply);
	number++;
	if (kind < 3) {
		/* A refusal: of a reason, of none that is known, of noise. */
		memset(reply, 0, REPLY);
		memcpy(reply, "HCAB", 4);
		put(reply + 4, 2, below(&r, 12));
		put(reply + 6, 2, next(&r));
		if (chance(&r, 400))
			mutate(&r, reply, REJECT);
		rdma_reject(id, reply, chance(&r, 700) ? REJECT : below(&r, REPLY));
		rdma_destroy_id(id);
		refusals++;
		return;
	}
	if (kind == 3) {
		/* No answer at all, or rather the kernel's own. */
		rdma_destroy_id(id);
		refusals++;
		return;
	}
	if (kind < 12) {
		if (chance(&r, 300))
			param.private_data_len = below(&r, REPLY);
		memset(reply + param.private_data_len, 0, REPLY - param.private_data_len);
		mutate(&r, reply, REPLY);
	} else if (kind < 15) {
		static const struct { unsigned char at, size; } fields[] = {
			{ 4, 1 }, { 6, 2 }, { 8, 8 }, { 16, 1 }, { 17, 1 }, { 18, 2 }, { 20, 4 }, { 24, 8 }, { 32, 4 },
		};
		unsigned int f = below(&r, sizeof(fields) / sizeof(*fields));

		put(reply + fields[f].at, fields[f].size, odd_number(&r));
	}
	/* More at a time than there is room for here. */
	if (get(reply + 20, 4) > SLOT && get(reply + 20, 4) <= 1 << 20)
		put(reply + 20, 4, SLOT);
	if (get(reply + 6, 2) > CREDITS && get(reply + 6, 2) <= get(request + 6, 2))
		put(reply + 6, 2, CREDITS);
	good = good_reply(reply, request);
	while (place < 64 && peers[place])
		place++;
	if (place == 64)
		failed("the initiator leaves its connections");
	c = prepare(id);
	c->credits = get(reply + 6, 2);
	peers[place] = c;
	if (rdma_accept(id, &param))
		c->broken = true;
	else if (!good)
		expect_end(c);
}

static void free_request(struct connection *c, unsigned int i)
{
	if (c->requests[i].slot)
		slot_busy[c->requests[i].slot - 1] = false;
	memset(&c->requests[i], 0, sizeof(c->requests[i]));
}

static void drop_peer(unsigned int place)
{
	struct connection *c = peers[place];

	rdma_disconnect(c->id);
	for (unsigned int i = 0; i < SLOTS; i++)
		free_request(c, i);
	destroy(c);
	peers[place] = NULL;
	ends++;
}

/* An RDMA operation between a slot's memory and the initiator's. */
static void rdma(struct connection *c, bool read, uint64_t id, void *at, uint64_t remote, uint32_t key, size_t n)
{
	struct ibv_sge sge = { (uintptr_t)at, n, wide->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE };

	wr.wr.rdma.remote_addr = remote;
	wr.wr.rdma.rkey = key;
	post(c, &wr, &sge);
}

static bool in_flight(const struct connection *c, const unsigned char *tag)
{
	for (unsigned int i = 0; i < SLOTS; i++)
		if (c->requests[i].used && !memcmp(c->requests[i].request + 4, tag, 4))
			return true;
	return false;
}

/* Reaches for memory that request i does not grant. */
static void reach_out(struct connection *c, struct rng *r, unsigned int i)
{
	const unsigned char *q = c->requests[i].request;
	unsigned char *mine = slot(c->requests[i].slot - 1);
	uint64_t at = get(q + 24, 8), length = get(q + 16, 4);
	uint32_t key = get(q + 20, 4);
	/* Only this was granted, and in this direction. */
	bool read = q[0] == WRITE;
	size_t n = 1 + below(r, 4096);

	switch (below(r, 8)) {
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
		at ^= 1ull << (17 + below(r, 47));
		break;
	default:
		/* A key that was taken away. */
		if (!c->old_key)
			return rdma(c, !read, work_id(W_FORBIDDEN, i), mine, at, key, 1);
		key = c->old_key;
		at = c->old_address;
		n = 1;
		read = chance(r, 500);
	}
	rdma(c, read, work_id(W_FORBIDDEN, i), mine, at, key, n > SLOT ? SLOT : n);
}

/* Ends request i with a response, good or bad; its data was moved. */
static void false_answer(struct connection *c, unsigned int i)
{
	struct rng r = stream('a', c->requests[i].message);
	unsigned char b[128] = { 0x80 }, *q = c->requests[i].request;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .wr_id = work_id(W_ANSWER, i) };
	unsigned int kind = below(&r, 1000);
	size_t n = RESPONSE;
	bool twice = false;

	c->requests[i].answered = true;
	put(b + 2, 2, 1);
	memcpy(b + 4, q + 4, 4);
	if (q[1] & 2 && chance(&r, 700)) {
		wr.opcode = IBV_WR_SEND_WITH_INV;
		wr.invalidate_rkey = get(q + 20, 4);
	}
	if (kind < 850) {
		/* Correct. */
	} else if (kind < 900) {
		put(b + 8, 2, 1 + below(&r, STATUSES - 1));
	} else if (kind < 920) {
		if (wr.opcode == IBV_WR_SEND) {
			wr.opcode = IBV_WR_SEND_WITH_IMM;
			wr.imm_data = next(&r);
		}
	} else if (kind < 970) {
		mutate(&r, b, RESPONSE);
		if (b[0] == 0x80 && !b[1] && zero(b + 10, 6) && get(b + 8, 2) < STATUSES) {
			/* Credits that may be, and answers to others that have no data yet, are no fault to be seen. */
			if (get(b + 2, 2) <= c->credits)
				put(b + 2, 2, 1);
			if (in_flight(c, b + 4))
				memcpy(b + 4, q + 4, 4);
			if (get(b + 2, 2) != 1 || memcmp(b + 4, q + 4, 4))
				expect_end(c);
		} else {
			expect_end(c);
		}
	} else {
		expect_end(c);
		switch (below(&r, 12)) {
		case 0:
			do
				n = below(&r, BUFFER + 1);
			while (n == RESPONSE);
			break;
		case 1:
			n = BUFFER + 1 + below(&r, 60);
			break;
		case 2:
			b[0] = below(&r, 0x80);
			break;
		case 3:
			b[1] = 1 + below(&r, 255);
			break;
		case 4:
			put(b + 8, 2, STATUSES + below(&r, 65536 - STATUSES));
			break;
		case 5:
			b[10 + below(&r, 6)] = 1 + below(&r, 255);
			break;
		case 6:
		case 7:
			do
				put(b + 4 + 2 * below(&r, 2), 2, next(&r));
			while (in_flight(c, b + 4));
			break;
		case 8:
			put(b + 2, 2, c->credits + 1 + below(&r, 65535 - c->credits));
			break;
		case 9:
			twice = true;
			break;
		case 10:
			wr.opcode = IBV_WR_SEND_WITH_INV;
			wr.invalidate_rkey = chance(&r, 500) ? next(&r) : get(q + 20, 4) ^ (1 + below(&r, 255));
			break;
		default:
			/* A buffer is taken and nothing is in it. */
			wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
			n = 0;
		}
	}
	if (wr.opcode == IBV_WR_SEND_WITH_INV && !c->end_by) {
		c->old_key = wr.invalidate_rkey;
		c->old_address = get(q + 24, 8);
	}
	post_message(c, &wr, b, n);
	if (twice)
		post_message(c, &wr, b, n);
}

static void send_data(struct connection *c, unsigned int i, uint64_t length)
{
	const unsigned char *q = c->requests[i].request;
	unsigned char *mine = slot(c->requests[i].slot - 1);
	uint64_t at = get(q + 24, 8), middle = length / 2;

	/* In two pieces, the second one first. */
	if (length > middle)
		rdma(c, false, work_id(W_OTHER, i), mine + middle, at + middle, get(q + 20, 4), length - middle);
	if (middle)
		rdma(c, false, work_id(W_OTHER, i), mine, at, get(q + 20, 4), middle);
}

static void false_serve(struct connection *c, unsigned int i)
{
	struct rng r = stream('t', number);
	unsigned char *q = c->requests[i].request;
	uint64_t length = get(q + 16, 4);
	unsigned int n = 0;

	while (n < SLOTS && slot_busy[n])
		n++;
	if (n == SLOTS)
		return;
	slot_busy[n] = true;
	c->requests[i].slot = n + 1;
	c->requests[i].message = number++;
	c->requests[i].begun = true;
	served++;
	if (q[0] == FLUSH)
		return false_answer(c, i);
	if (q[0] == READ)
		pattern((uint64_t *)slot(n), get(q + 8, 8) / SECTOR, length / SECTOR);
	if (chance(&r, 20)) {
		reach_out(c, &r, i);
		return expect_end(c);
	}
	if (chance(&r, 3)) {
		/* Goes in the midst of it. */
		c->broken = true;
		return;
	}
	if (q[0] == WRITE)
		return rdma(c, true, work_id(W_FETCH, i), slot(n), get(q + 24, 8), get(q + 20, 4), length);
	if (chance(&r, 30)) {
		/* Part of the data, and then an error. */
		unsigned char b[RESPONSE] = { 0x80, 0, 1 };
		struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .wr_id = work_id(W_ANSWER, i) };

		send_data(c, i, below(&r, length));
		memcpy(b + 4, q + 4, 4);
		b[8] = 1 + below(&r, STATUSES - 1);
		c->requests[i].answered = true;
		return post_message(c, &wr, b, RESPONSE);
	}
	send_data(c, i, length);
	false_answer(c, i);
}

static void take_request(struct connection *c, const unsigned char *b, size_t n)
{
	unsigned int i = 0;

	/* After a wrong message there is nothing to be said about the rest. */
	if (c->end_by)
		return;
	if (n != REQUEST || b[0] < READ || b[0] > FLUSH || b[1] & ~3 || !zero(b + 2, 2) || !zero(b + 33, 7) ||
	    b[32] != (b[0] != FLUSH) || get(b + 16, 4) > SLOT || get(b + 16, 4) % SECTOR || in_flight(c, b + 4)) {
		tell("message", b, n);
		failed("the initiator sent nonsense");
	}
	while (i < SLOTS && c->requests[i].used)
		i++;
	if (i == SLOTS)
		failed("the initiator sent without a credit");
	c->requests[i].used = true;
	memcpy(c->requests[i].request, b, REQUEST);
}

static bool attend(struct connection *c)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(c->cq, 16, wc);
	bool busy = n > 0;

	for (int k = 0; k < n && !c->broken; k++) {
		unsigned int i = (uint32_t)wc[k].wr_id, kind = wc[k].wr_id >> 32 & 0xff;

		if (!(wc[k].wr_id >> 63))
			kind = 0;
		if (wc[k].status != IBV_WC_SUCCESS) {
			c->broken = true;
			reached += kind == W_FORBIDDEN;
		} else if (kind == 0) {
			take_request(c, c->receive[i], wc[k].byte_len);
			post_receive(c, i);
		} else if (kind == W_FORBIDDEN) {
			tell("request", c->requests[i].request, REQUEST);
			failed("memory that was not granted was reached");
		} else if (kind == W_FETCH) {
			const unsigned char *q = c->requests[i].request;

			if (!is_pattern((uint64_t *)slot(c->requests[i].slot - 1), get(q + 8, 8) / SECTOR,
					get(q + 16, 4) / SECTOR))
				failed("the initiator granted other data than was written");
			false_answer(c, i);
		} else if (kind == W_ANSWER && !c->end_by) {
			free_request(c, i);
		}
	}
	for (unsigned int i = 0; i < SLOTS && !c->broken && !c->end_by; i++) {
		if (c->requests[i].used && !c->requests[i].begun) {
			false_serve(c, i);
			busy = true;
		}
	}
	if (c->end_by && now_ms() > c->end_by)
		failed("the initiator did not end the session");
	return busy;
}

static int play_target(const char *port)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	uint64_t start = now_ms(), last = start;
	unsigned int idle = 0;
	struct rdma_cm_id *id;

	listener = rdma_create_event_channel();
	if (!listener || rdma_create_id(listener, &id, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(id, (struct sockaddr *)&any) || rdma_listen(id, 16))
		failed("listening: %s", strerror(errno));
	printf("listening\n");
	fflush(stdout);
	for (number = first; number < first + messages;) {
		struct rdma_cm_event *event = next_event(listener, 0);
		uint64_t before = number;
		bool busy = event;

		if (event && event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			welcome(event);
		} else if (event) {
			struct connection *c = event->id->context;

			if (event->event != RDMA_CM_EVENT_ESTABLISHED && event->id != id)
				c->broken = true;
			rdma_ack_cm_event(event);
		}
		for (unsigned int i = 0; i < 64; i++) {
			if (!peers[i])
				continue;
			busy |= attend(peers[i]);
			if (peers[i]->broken)
				drop_peer(i);
		}
		idle = busy ? 0 : idle + 1;
		if (idle > 20)
			usleep(100);
		if (number != before)
			last = now_ms();
		else if (now_ms() - last > 2 * PATIENCE_MS)
			failed("nothing comes");
	}
	for (unsigned int i = 0; i < 64; i++)
		if (peers[i])
			drop_peer(i);
	rdma_destroy_id(id);
	printf("passed %llu messages, %llu requests served, %llu wrong answers, %llu reaches for memory refused, "
	       "%llu connections, %llu refused, %llu ended; %llu ms\n",
	       (unsigned long long)messages, (unsigned long long)served, (unsigned long long)wrongs,
	       (unsigned long long)reached, (unsigned long long)connects, (unsigned long long)refusals,
	       (unsigned long long)ends, (unsigned long long)(now_ms() - start));
	return 0;
}

/* ---- what uses the device of an initiator that is connected to the false target */

static char disk[64];
static uint64_t disk_size;
static unsigned long long good_reads, bad_reads, good_writes, bad_writes;
static volatile time_t busy_since[2];

static void *use_disk(void *arg)
{
	unsigned int me = (uintptr_t)arg, bad = 0;
	struct rng r = stream('p' + me, number);
	uint64_t *data = aligned_alloc(4096, SLOT);
	int fd = open(disk, O_RDWR | O_DIRECT);

	if (fd < 0)
		fd = open(disk, O_RDONLY | O_DIRECT);
	if (fd < 0 || !data)
		goto out;
	for (unsigned int i = 0; i < 200 && bad < 8; i++) {
		size_t n = 4096 * (1 + (chance(&r, 200) ? below(&r, 16) : 0));
		uint64_t at = n < disk_size ? below(&r, (disk_size - n) / 4096 + 1) * 4096 : 0;
		ssize_t got;

		busy_since[me] = time(NULL);
		if (chance(&r, 300)) {
			pattern(data, at / SECTOR, n / SECTOR);
			got = pwrite(fd, data, n, at);
			__atomic_fetch_add(got > 0 ? &good_writes : &bad_writes, 1, __ATOMIC_RELAXED);
		} else if (chance(&r, 30)) {
			got = fsync(fd) ? -1 : 1;
		} else {
			memset(data, POISON, n);
			got = pread(fd, data, n, at);
			__atomic_fetch_add(got > 0 ? &good_reads : &bad_reads, 1, __ATOMIC_RELAXED);
			if (got > 0 && !is_pattern(data, at / SECTOR, got / SECTOR))
				failed("a read at %llu gave what was never sent", (unsigned long long)at);
			if (got > 0 && chance(&r, 100)) {
				/* Nobody writes here any more. */
				memset(data, POISON, n);
				usleep(2000);
				for (size_t k = 0; k < n; k++)
					if (((unsigned char *)data)[k] != POISON)
						failed("memory of a read that had ended was written");
			}
		}
		bad += got <= 0;
		busy_since[me] = 0;
	}
out:
	busy_since[me] = 0;
	if (fd >= 0)
		close(fd);
	/* Memory of a read that failed may be written no more either. */
	free(data);
	return NULL;
}

static void *watch(void *arg)
{
	for (;;) {
		sleep(1);
		for (unsigned int i = 0; i < 2; i++) {
			time_t since = busy_since[i];

			if (since && time(NULL) - since > 90)
				failed("a request does not end");
		}
	}
	return arg;
}

static bool attribute(const char *directory, const char *name, const char *write, char *read, size_t n)
{
	char path[256];
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	fd = open(path, write ? O_WRONLY : O_RDONLY);
	if (fd < 0)
		failed("%s: %s", path, strerror(errno));
	got = write ? pwrite(fd, write, strlen(write), 0) : pread(fd, read, n - 1, 0);
	close(fd);
	if (!write) {
		read[got > 0 ? got : 0] = 0;
		read[strcspn(read, "\n")] = 0;
	}
	return got > 0;
}

static int play_prey(const char *directory, const char *stop)
{
	unsigned long long connected = 0, refused = 0, lost = 0, violations = 0;
	pthread_t users[2], watcher;
	char text[256], name[32];

	pthread_create(&watcher, NULL, watch, NULL);
	while (access(stop, F_OK)) {
		int fd;

		number++;
		if (!attribute(directory, "enable", "1", NULL, 0)) {
			refused++;
			usleep(10000);
			continue;
		}
		connected++;
		attribute(directory, "device", NULL, name, sizeof(name));
		snprintf(disk, sizeof(disk), "/dev/%s", name);
		fd = open(disk, O_RDONLY);
		if (name[0] && fd >= 0 && !ioctl(fd, BLKGETSIZE64, &disk_size)) {
			close(fd);
			fd = -1;
			for (uintptr_t i = 0; i < 2; i++)
				pthread_create(&users[i], NULL, use_disk, (void *)i);
			for (unsigned int i = 0; i < 2; i++)
				pthread_join(users[i], NULL);
		}
		if (fd >= 0)
			close(fd);
		for (uint64_t end = now_ms() + PATIENCE_MS;;) {
			attribute(directory, "state", NULL, text, sizeof(text));
			if (!strcmp(text, "new") || !strcmp(text, "failed"))
				break;
			attribute(directory, "enable", "0", NULL, 0);
			if (now_ms() > end)
				failed("the device stays %s", text);
			usleep(1000);
		}
		attribute(directory, "error", NULL, text, sizeof(text));
		lost += !!text[0];
		violations += !!strstr(text, "broke the protocol");
	}
	if (!good_reads || !good_writes)
		failed("nothing was ever read or written");
	printf("passed %llu reads compared, %llu failed, %llu writes, %llu failed; %llu connections, %llu not made, "
	       "%llu lost, of them %llu for a breach of the protocol\n",
	       good_reads, bad_reads, good_writes, bad_writes, connected, refused, lost, violations);
	return 0;
}

int main(int argc, char **argv)
{
	int words = 1;

	/* Options come last. */
	while (words < argc && strncmp(argv[words], "--", 2))
		words++;
	seed = now_ms() ^ getpid();
	for (int i = words; i + 1 < argc; i += 2) {
		uint64_t value = strtoull(argv[i + 1], NULL, 0);

		if (!strcmp(argv[i], "--seed"))
			seed = value;
		else if (!strcmp(argv[i], "--messages"))
			messages = value;
		else if (!strcmp(argv[i], "--first"))
			first = value;
		else
			words = 0;
	}
	if (words < 3)
		goto usage;
	mode = argv[1];
	if (words == 3 && !strcmp(mode, "fill"))
		return fill_or_check(true, argv[2], 0, 0);
	if (words == 5 && !strcmp(mode, "check"))
		return fill_or_check(false, argv[2], strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0));
	if (words == 4 && !strcmp(mode, "prey"))
		return play_prey(argv[2], argv[3]);
	printf("seed %llu, %llu messages\n", (unsigned long long)seed, (unsigned long long)messages);
	fflush(stdout);
	if (words == 3 && !strcmp(mode, "target"))
		return play_target(argv[2]);
	if (words == 8 && !strcmp(mode, "client")) {
		unsigned int digits = 0;

		if (getaddrinfo(argv[2], argv[3], NULL, &address))
			failed("no such address");
		memcpy(volume, argv[4], strnlen(argv[4], sizeof(volume)));
		for (const char *p = argv[5]; *p && digits < 32; p++) {
			unsigned int digit;

			if (sscanf((char[]){ *p, 0 }, "%x", &digit) == 1) {
				host[digits / 2] = host[digits / 2] << 4 | digit;
				digits++;
			}
		}
		zone_from = strtoull(argv[6], NULL, 0);
		zone_count = strtoull(argv[7], NULL, 0);
		return play_client();
	}
usage:
	fprintf(stderr, "usage: see the source\n");
	return 2;
}
