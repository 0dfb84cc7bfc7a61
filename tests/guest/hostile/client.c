// SPDX-License-Identifier: GPL-2.0
/* A false initiator. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include "hostile.h"
#include "client.h"

struct addrinfo *address;
unsigned char volume[16], host[16];
uint64_t zone_from, zone_count, capacity;
unsigned int block, max_transfer, max_discard, max_zeroes;
uint32_t grant_key, grant_bytes;
uint64_t grant_address;
bool read_only;

/* In memory that all workers share. */
static struct count {
	uint64_t answered, values, ends, connects, rejects, reads_checked, replaced, together;
} *counts, *mine;

/* Messages that are not answered. */
static struct message flight[512];
static unsigned int flying, slot_users[SLOTS];

static void land(unsigned int i)
{
	slot_users[flight[i].slot]--;
	flight[i] = flight[--flying];
}

static void response(const unsigned char *b, size_t n, bool value)
{
	const struct message *m = NULL;
	unsigned int i, status = get(b + 8, 2);
	uint64_t at, sector, count;

	if (n != RESPONSE || b[0] != 0x80 || b[1] || get(b + 2, 2) != 1) {
		tell("answer", b, n);
		failed("an answer that is none");
	}
	for (i = 0; i < flying; i++) {
		m = &flight[i];
		if (m->wr.opcode != IBV_WR_RDMA_WRITE_WITH_IMM && !m->data &&
		    !memcmp(m->bytes + 4, b + 4, 4) && m->verdict != END &&
		    (m->status == (int)status) && (!value || m->bytes[32] == BY_VALUE))
			break;
	}
	if (i == flying) {
		tell(value ? "immediate value, as an answer" : "answer", b, n);
		for (i = 0; i < flying; i++)
			if (!memcmp(flight[i].bytes + 4, b + 4, 4)) {
				tell("to", flight[i].bytes, flight[i].length);
				failed("status %u where %d (%d) was due", status, flight[i].status, flight[i].verdict);
			}
		failed("an answer to nothing");
	}
	if (get(b + 10, 6) != (m->bytes[0] == SIZE && status == OK ? capacity / SECTOR : 0)) {
		tell("answer", b, n);
		failed("an answer with a wrong size");
	}
	mine->answered++;
	mine->values += value;
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
		mine->reads_checked++;
	}
	land(i);
}

/* The data and the answer of a read came in one. */
static void value(const struct ibv_wc *wc)
{
	unsigned char b[RESPONSE] = { 0x80 };
	bool asked = false;

	put(b + 2, 2, 1);
	put(b + 4, 4, ntohl(wc->imm_data));
	for (unsigned int i = 0; i < flying; i++)
		asked |= !memcmp(flight[i].bytes + 4, b + 4, 4) && flight[i].bytes[32] == BY_VALUE &&
			 get(flight[i].bytes + 16, 4) == wc->byte_len;
	if (!asked)
		failed("the immediate value %x came with %u bytes", ntohl(wc->imm_data), wc->byte_len);
	response(b, RESPONSE, true);
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
			if (wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM)
				value(&wc[i]);
			else
				response(c->receive[wc[i].wr_id], wc[i].byte_len, false);
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
	    !get(b + 6, 2) || get(b + 6, 2) > 1024 || !b[9] || b[9] > 128 || (b[8] & ~REPLACE) >= b[9] ||
	    (get(b + 10, 2) && (get(b + 10, 2) <= 256 || get(b + 10, 2) > 1024)) || !get(b + 12, 8) || !get(b + 20, 4) || zero(b + 24, 16))
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
	/* Up to 4 MiB in one request. */
	if (chance(r, 300))
		put(b + 10, 2, 257 + below(r, 768));
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

		mine->connects++;
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
			mine->rejects++;
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

/* Asks for a queue pair in place of its own: the old one is nothing any more, the new one works. */
static struct connection *replace(struct connection *old, const struct asked *live)
{
	struct asked a = *live;
	unsigned int reason = 0;
	struct connection *c;

	a.request[8] |= REPLACE;
	c = ask(&a, &reason, false);
	if (!c)
		failed("a queue pair in place of another one was refused for %u", reason);
	if (memcmp(a.reply, live->reply, 52))
		failed("the target says another thing to a queue pair in place of another one");
	grant_bytes = get(a.reply + 52, 4);
	grant_key = get(a.reply + 56, 4);
	grant_address = get(a.reply + 60, 4) << 32;
	UNTIL(old, false, "the target did not take the old queue pair down");
	destroy(old);
	mine->replaced++;
	return c;
}

/* Requests that do not fit the session that is there. */
static void intrude(struct rng *r, const struct asked *live)
{
	struct asked a = *live;
	uint64_t epoch = get(a.request + 20, 4);
	unsigned int wanted, reason = 0;
	struct connection *c;

	switch (below(r, 6)) {
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
	case 4:
		/* Only a whole session begins anew. */
		put(a.request + 20, 4, epoch + 1);
		a.request[8] |= REPLACE;
		wanted = NO_SESSION;
		break;
	default:
		if (epoch == 1)
			return;
		put(a.request + 20, 4, epoch - 1);
		if (chance(r, 500))
			a.request[8] |= REPLACE;
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
		if (max_transfer % 4096 || max_transfer < 1 << 20 ||
		    (max_transfer > 1 << 20 && max_transfer > get(a.request + 10, 2) * 4096))
			failed("the target takes requests of %u bytes", max_transfer);
		if (!(a.reply[5] & 4) || get(a.reply + 36, 4) != INLINE)
			failed("the target takes %u bytes behind a request", (unsigned int)get(a.reply + 36, 4));
		max_discard = get(a.reply + 40, 4);
		max_zeroes = get(a.reply + 48, 4);
		grant_bytes = get(a.reply + 52, 4);
		grant_key = get(a.reply + 56, 4);
		grant_address = get(a.reply + 60, 4) << 32;
		if (grant_bytes % 4096 || grant_bytes > 1 << 24 || (!grant_bytes && !read_only))
			failed("the target grants %u bytes", grant_bytes);
		if (chance(r, 150))
			intrude(r, &a);
		/* Each worker does it once, however few messages there are. */
		if (chance(r, 150) || !mine->replaced)
			c = replace(c, &a);
		return c;
	}
	failed("no session becomes free");
}

/* The message is about to be sent. */
static void launch(struct message *m)
{
	if (!slot_users[m->slot] && m->bytes[0] == READ && m->verdict == OK)
		memset((void *)(uintptr_t)get(m->bytes + 24, 8), POISON, get(m->bytes + 16, 4));
	m->number = number;
	flight[flying++] = *m;
	slot_users[m->slot]++;
}

/* Whether it can be one request of several in a message: each is answered. */
static bool may_share(const struct message *m)
{
	return m->length == REQUEST && m->wr.opcode == IBV_WR_SEND && m->verdict < END && !m->burst;
}

/* Puts the next requests behind the one in these bytes, up to so many in all, and returns the length. */
static size_t share(struct connection *c, unsigned char *bytes, unsigned int wanted, unsigned int credits)
{
	unsigned int count = 1;

	while (count < wanted && number + WORKERS < first + messages) {
		struct message m;

		generate(&m, number + WORKERS);
		if (!may_share(&m))
			break;
		UNTIL(c, flying < credits && !slot_users[m.slot], "a message is not answered");
		if (c->broken)
			break;
		number += WORKERS;
		launch(&m);
		memcpy(bytes + count++ * REQUEST, m.bytes, REQUEST);
	}
	bytes[2] = count - 1;
	mine->together += count > 1;
	return count * REQUEST;
}

/* Sends every message whose turn it is. */
static void work_off(unsigned int me)
{
	struct connection *c = NULL;
	unsigned int credits = 0, burst = 0;
	bool may_end = false;
	struct rng r;

	for (number = first + (me - first % WORKERS + WORKERS) % WORKERS; number < first + messages; number += WORKERS) {
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
		if (number >= first + 9 * WORKERS && chance(&r, 30)) {
			uint64_t old = number - WORKERS * (1 + below(&r, 8));

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
		launch(&m);
		if (m.data) {
			struct ibv_sge sge = { (uintptr_t)c->send[c->sends++ % (SENDS - 16)], m.data, c->mr->lkey };

			/* What is granted may be reached, and then what is said of it is wrong. */
			m.wr.wr_id = m.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? 0 : 1ull << 62;
			post(c, &m.wr, &sge);
		} else {
			size_t length = m.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? 0 : m.length;

			if (may_share(&m) && !m.replay && !burst && chance(&r, 100)) {
				unsigned int wanted = 2 + below(&r, TOGETHER_HERE - 1);

				length = share(c, m.bytes, wanted < credits ? wanted : credits, credits);
			}
			post_message(c, &m.wr, m.bytes, length);
		}
		if (m.verdict == END)
			UNTIL(c, false, "the target did not end the connection");
		else if (m.verdict == MAYBE)
			UNTIL(c, !flying, "neither an answer nor an end");
		if (!c->broken) {
			/* Goes in the midst of it. */
			if (chance(&r, number < DENSE ? 3 : 1)) {
				leave(c, chance(&r, 300));
				c = NULL;
			}
			continue;
		}
		if (m.verdict < END && !may_end)
			failed("the target ended the connection without a reason");
ended:
		mine->ends++;
		leave(c, true);
		c = NULL;
	}
	if (c) {
		UNTIL(c, !flying, "a message is not answered");
		leave(c, true);
	}
	check_guards();
}

int play_client(void)
{
	uint64_t start = now_ms();
	struct count sum = { 0 };
	pid_t workers[WORKERS];

	counts = mmap(NULL, WORKERS * sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (counts == MAP_FAILED)
		failed("memory: %s", strerror(errno));
	/* Processes, so that each has a device, memory and numbers of its own. */
	for (unsigned int i = 0; i < WORKERS; i++) {
		workers[i] = fork();
		if (workers[i] < 0)
			failed("fork: %s", strerror(errno));
		if (workers[i])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		mine = &counts[i];
		work_off(i);
		_exit(0);
	}
	for (unsigned int left = WORKERS; left; left--) {
		int status;

		if (wait(&status) < 0 || status) {
			/* It has said why. */
			for (unsigned int i = 0; i < WORKERS; i++)
				kill(workers[i], SIGKILL);
			return 1;
		}
	}
	for (unsigned int i = 0; i < WORKERS; i++) {
		sum.answered += counts[i].answered;
		sum.values += counts[i].values;
		sum.ends += counts[i].ends;
		sum.connects += counts[i].connects;
		sum.rejects += counts[i].rejects;
		sum.reads_checked += counts[i].reads_checked;
		sum.replaced += counts[i].replaced;
		sum.together += counts[i].together;
	}
	printf("passed %llu messages, %llu answered as they must be, %llu by a value, %llu reads compared, "
	       "%llu connections asked for, %llu refused as they must be, %llu ended, %llu in place of another one, "
	       "%llu messages of several requests; %llu ms\n",
	       (unsigned long long)messages, (unsigned long long)sum.answered, (unsigned long long)sum.values,
	       (unsigned long long)sum.reads_checked,
	       (unsigned long long)sum.connects, (unsigned long long)sum.rejects, (unsigned long long)sum.ends,
	       (unsigned long long)sum.replaced, (unsigned long long)sum.together,
	       (unsigned long long)(now_ms() - start));
	return 0;
}
