// SPDX-License-Identifier: GPL-2.0
/* The false initiator's connections: good requests, bad ones, and a target's correct answers. */

#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "hostile.h"
#include "client.h"

struct addrinfo *address;
unsigned char volume[16], host[16];
uint64_t zone_from, zone_count, capacity;
unsigned int block, max_transfer, max_discard, max_zeroes;
uint32_t grant_key, grant_bytes;
unsigned int own_path;
uint64_t grant_address;
bool read_only;

/* Returns the reason for which a target must refuse a connection request; 0: it grants it. */
static unsigned int judge_request(const struct asked *a)
{
	const unsigned char *b = a->request;
	/* The field of the largest data length has flags, too. */
	unsigned int end = 0, largest = get(b + 10, 2) & ~(RESUME | PROVES | ALONE);
	bool named = true;

	/* The transport pads with zeroes, which are part of the array. */
	if (memcmp(b, "HCAB", 4) || b[4] > b[5])
		return MALFORMED;
	if (b[4] > 3 || b[5] < 2)
		return VERSION;
	/* A proof without a challenge, and a request with a proof in a session without a key. */
	if (get(b + 6, 2) & PROOF)
		return NOT_PROVEN;
	if (get(b + 10, 2) & PROVES && b[8] != ADMIN)
		return NO_SESSION;
	while (end < 16 && b[40 + end])
		end++;
	for (unsigned int i = 0; i < end; i++)
		if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-", b[40 + i]))
			named = false;
	/* Requests without a name are of version 3, with a name of version 2. */
	if ((!end && b[5] < 3) || (end && get(b + 10, 2) & ALONE) || b[40] == '.' || !named || !zero(b + 40 + end, 16 - end) ||
	    !get(b + 6, 2) || get(b + 6, 2) > 1024 || !b[9] || b[9] > 127 || (b[8] != ADMIN && (b[8] & ~REPLACE) >= b[9]) ||
	    (largest && (largest <= 256 || largest > 1024)) || !get(b + 12, 8) || !get(b + 20, 4) || zero(b + 24, 16))
		return MALFORMED;
	if (end && b[4] > 2)
		return VERSION;
	if (get(b + 10, 2) & PROVES)
		return CHALLENGE;
	if (end && memcmp(b + 40, volume, 16))
		return UNKNOWN_VOLUME;
	if (memcmp(b + 24, host, 16))
		return FORBIDDEN;
	return b[8] == ADMIN ? 0 : NO_SESSION;
}

/*
 * Returns a new session of this host's one instance: a target remembers the epochs of earlier
 * ones. At any time all sessions are of different disks, on a path that messages do not fence.
 */
static uint64_t new_session(void)
{
	uint64_t n = mine->sessions++ * WORKERS + number % WORKERS;

	return INSTANCE << 16 | n / 4095 % PATHS << 12 | (1 + n % 4095);
}

void good_request(struct rng *r, struct asked *a)
{
	unsigned char *b = a->request;

	memset(a, 0, sizeof(*a));
	a->length = CONNECT;
	a->reads = 1 + below(r, 8);
	a->rnr_retries = below(r, 8);
	memcpy(b, "HCAB\2\2", 6);
	put(b + 6, 2, 1 + below(r, 24));
	b[8] = ADMIN;
	b[9] = 1;
	/* Requests of up to 4 MiB, and a session that claims to resume one without writes. */
	if (chance(r, 300))
		put(b + 10, 2, 257 + below(r, 768));
	if (chance(r, 300))
		put(b + 10, 2, get(b + 10, 2) | RESUME);
	put(b + 12, 8, new_session());
	put(b + 20, 4, 1 + below(r, 1000));
	memcpy(b + 24, host, 16);
	memcpy(b + 40, volume, 16);
}

static bool step(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event = next_event(channel, WAIT_TIMEOUT_MS);
	bool good = event && event->event == wanted;

	if (event)
		rdma_ack_cm_event(event);
	return good;
}

struct connection *ask(struct asked *a, unsigned int *reason, bool vanish)
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
		if (!c)
			failed("rdma_create_qp: %s", strerror(errno));
		c->channel = channel;
		if (rdma_connect(id, &param))
			failed("rdma_connect: %s", strerror(errno));
		if (vanish) {
			destroy(c);
			*reason = 0;
			return NULL;
		}
		event = next_event(channel, WAIT_TIMEOUT_MS);
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

/* Sends a connection request that is mostly wrong. */
void odd_request(struct rng *r)
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
	/* A new host instance would end the sessions of this one. */
	if (!wanted)
		put(a.request + 12, 8, new_session());
	c = ask(&a, &reason, false);
	if (c) {
		leave(c, chance(r, 500));
		if (wanted)
			failed("a connection was granted where reason %u was due", wanted);
	} else if (reason != wanted && reason != NO_RESOURCES) {
		print_bytes("request", a.request, CONNECT);
		failed("a connection was refused for %u where %u was due", reason, wanted);
	}
}

/* Requests a replacement of its own queue pair: the old one ends, the new one works. */
static struct connection *replace(struct connection *old, const struct asked *live)
{
	struct asked a = *live;
	unsigned int reason = 0;
	struct connection *c;

	a.request[8] |= REPLACE;
	c = ask(&a, &reason, false);
	if (!c)
		failed("a replacement queue pair was refused for %u", reason);
	if (memcmp(a.reply, live->reply, 52))
		failed("the target's reply to a replacement queue pair differs");
	grant_bytes = get(a.reply + 52, 4);
	grant_key = get(a.reply + 56, 4);
	grant_address = get(a.reply + 60, 4) << 32;
	UNTIL(old, false, "the target did not end the old queue pair");
	c->admin = old->admin;
	old->admin = NULL;
	destroy(old);
	mine->replaced++;
	return c;
}

/* Sends requests that do not fit the existing session. */
static void intrude(struct rng *r, const struct asked *live)
{
	struct asked a = *live;
	uint64_t epoch = get(a.request + 20, 4);
	unsigned int wanted, reason = 0;
	struct connection *c;

	switch (below(r, 7)) {
	case 0:
		/* The session exists already. */
		a.request[8] = ADMIN;
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
		/* Only a whole session may have a new epoch. */
		put(a.request + 20, 4, epoch + 1);
		a.request[8] |= REPLACE;
		wanted = NO_SESSION;
		break;
	case 5:
		/* Its queue exists already. */
		wanted = MALFORMED;
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

struct connection *enter(struct rng *r, unsigned int *credits)
{
	for (unsigned int tries = 0; tries < 500; tries++) {
		struct asked a;
		struct connection *admin = enter_admin(r, &a), *c;
		unsigned int reason;

		a.request[8] = 0;
		c = ask(&a, &reason, false);
		if (!c) {
			/* Old sessions end with a delay. */
			if (reason != NO_RESOURCES)
				failed("a good connection request was refused for %u", reason);
			destroy(admin);
			usleep(100000);
			continue;
		}
		c->admin = admin;
		if (a.reply_length < REPLY || memcmp(a.reply, "HCAB\2", 5) ||
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
		    (max_transfer > 1 << 20 && max_transfer > (get(a.request + 10, 2) & ~RESUME) * 4096))
			failed("the target accepts requests of %u bytes", max_transfer);
		if (!(a.reply[5] & 4) || get(a.reply + 36, 4) != INLINE)
			failed("the target accepts %u bytes after a request", (unsigned int)get(a.reply + 36, 4));
		max_discard = get(a.reply + 40, 4);
		max_zeroes = get(a.reply + 48, 4);
		own_path = get(a.request + 12, 8) >> 12 & PATHS;
		grant_bytes = get(a.reply + 52, 4);
		grant_key = get(a.reply + 56, 4);
		grant_address = get(a.reply + 60, 4) << 32;
		if (grant_bytes % 4096 || grant_bytes > 1 << 24 || (!grant_bytes && !read_only))
			failed("the target grants %u bytes", grant_bytes);
		if (chance(r, 150))
			intrude(r, &a);
		/* Each worker does it at least once. */
		if (chance(r, 150) || !mine->replaced)
			c = replace(c, &a);
		begin(*credits);
		return c;
	}
	failed("no session becomes free");
}
