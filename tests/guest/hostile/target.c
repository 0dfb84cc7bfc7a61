// SPDX-License-Identifier: GPL-2.0
/* A malicious target: its connections, and the requests over them. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "target.h"

enum { PEERS = 64, END_MS = 20000, IGNORE_MS = 10000 };

static struct rdma_event_channel *listener;
static struct peer *peers[PEERS];
static bool slot_busy[SLOTS];
/* No new connection is accepted any more. */
static bool enough;
static uint64_t served, several, wrongs, reached, late, connects, refusals, ends, older;
uint64_t early, values;

/* Connection requests whose answer is delayed. */
static struct {
	struct rdma_cm_id *id;
	uint64_t until;
} ignored[PEERS];

void expect_end(struct peer *p, const char *why)
{
	wrongs++;
	if (p->end_by)
		return;
	p->end_by = now_ms() + END_MS;
	p->blame = number;
	p->why = why;
}

void rdma(struct peer *p, enum ibv_wr_opcode opcode, uint64_t id, void *at, uint64_t remote, uint32_t key, size_t n)
{
	struct ibv_sge sge = { (uintptr_t)at, n, wide->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .opcode = opcode };

	wr.wr.rdma.remote_addr = remote;
	wr.wr.rdma.rkey = key;
	post(p->c, &wr, &sge);
}

bool in_flight(const struct peer *p, const unsigned char *tag)
{
	for (unsigned int i = 0; i < SLOTS; i++)
		if (p->requests[i].used && !p->requests[i].immediate && !memcmp(p->requests[i].bytes + 4, tag, 4))
			return true;
	return false;
}

void free_request(struct peer *p, unsigned int i)
{
	if (p->requests[i].slot)
		slot_busy[p->requests[i].slot - 1] = false;
	memset(&p->requests[i], 0, sizeof(p->requests[i]));
}

static void drop(unsigned int place)
{
	struct peer *p = peers[place];

	/* A session ends as a whole. */
	for (unsigned int i = 0; i < PEERS; i++)
		if (peers[i] && i != place && !memcmp(peers[i]->session, p->session, sizeof(p->session)) && !peers[i]->end_by)
			expect_end(peers[i], "another queue pair ended");
	rdma_disconnect(p->c->id);
	for (unsigned int i = 0; i < SLOTS; i++)
		free_request(p, i);
	destroy(p->c);
	free_ring(p);
	free(p);
	peers[place] = NULL;
	ends++;
}

/* Returns the admin queue pair of the session that a request names, if it is still there. */
static struct peer *admin_of(const unsigned char *request)
{
	for (unsigned int i = 0; i < PEERS; i++)
		if (peers[i] && peers[i]->admin && !memcmp(peers[i]->session, request + 12, sizeof(peers[i]->session)))
			return peers[i];
	return NULL;
}

/* Returns whether the target grants sessions that begin without a volume; otherwise it speaks version 2 only. */
static bool grants_host(void)
{
	struct rng r = stream('v', number);

	return attaches_always() || chance(&r, 500);
}

static void reject(struct rdma_cm_id *id, unsigned int reason)
{
	unsigned char b[REJECT] = "HCAB";

	put(b + 4, 2, reason);
	b[6] = b[7] = 2;
	rdma_reject(id, b, REJECT);
	rdma_destroy_id(id);
}

static void welcome(struct rdma_cm_event *event)
{
	struct rng r = stream('q', number);
	unsigned char reply[REPLY], request[CONNECT], length;
	struct rdma_conn_param param = { .private_data = reply, .rnr_retry_count = 7, .initiator_depth = 8 };
	enum trick trick = pick(&r, CONNECTING, number);
	struct rdma_cm_id *id = event->id;
	struct peer *p, *admin = NULL;
	unsigned int place = 0;
	bool of_host;

	connects++;
	if (event->param.conn.private_data_len < CONNECT)
		failed("the initiator's connection request is too short");
	memcpy(request, event->param.conn.private_data, CONNECT);
	of_host = !memcmp(request, "HCAB\3\3", 6);
	if ((!of_host && memcmp(request, "HCAB\2\2", 6)) || !get(request + 6, 2) ||
	    of_host != !!(get(request + 10, 2) & ALONE) || of_host != zero(request + 40, 16) ||
	    (request[8] != ADMIN && (request[8] & ~REPLACE) >= request[9]))
		failed("the initiator's connection request is wrong");
	if (of_host && request[8] == ADMIN && !grants_host()) {
		rdma_ack_cm_event(event);
		reject(id, VERSION);
		older++;
		return;
	}
	if (of_host && request[8] != ADMIN) {
		admin = admin_of(request);
		if (admin && !admin->attached && !admin->end_by)
			failed("the initiator connects a queue pair of a session without a volume");
	}
	if (event->param.conn.initiator_depth < param.initiator_depth)
		param.initiator_depth = event->param.conn.initiator_depth;
	rdma_ack_cm_event(event);
	number++;
	/* A target may refuse a replacement queue pair, and then the session ends. */
	if (request[8] != ADMIN && request[8] & REPLACE) {
		reject(id, MALFORMED);
		refusals++;
		return;
	}
	make_reply(&r, trick, request, reply, &length);
	/* The connection manager pads with zeros: a reply that is too short may still be good. */
	memset(reply + length, 0, REPLY - length);
	if (trick == REFUSE)
		rdma_reject(id, reply, length);
	if (trick == REFUSE || trick == HANG_UP) {
		/* VANISH leaves the answer to the kernel. */
		rdma_destroy_id(id);
		refusals++;
		return;
	}
	if (trick == IGNORE) {
		while (place < PEERS - 1 && ignored[place].id)
			place++;
		ignored[place].id = id;
		ignored[place].until = now_ms() + IGNORE_MS;
		refusals++;
		return;
	}
	while (place < PEERS && peers[place])
		place++;
	p = calloc(1, sizeof(*p));
	if (place == PEERS || !p)
		failed("the initiator leaves its connections");
	p->c = prepare(id);
	if (!p->c) {
		free(p);
		refusals++;
		return;
	}
	p->c->owner = p;
	p->trick = trick;
	p->admin = request[8] == ADMIN;
	p->of_host = of_host;
	p->handle = admin ? admin->handle : 0;
	p->credits = p->held = get(reply + 6, 2);
	p->behind = reply[5] & 4 ? get(reply + 36, 4) : 0;
	memcpy(p->session, request + 12, sizeof(p->session));
	p->no_read = reply[5] & NO_READ;
	/* A wrong reply grants memory that does not exist. */
	if (trick != REPLY_WRONG)
		make_ring(p, &r, reply);
	peers[place] = p;
	param.private_data_len = length;
	if (rdma_accept(id, &param))
		p->c->broken = true;
	else if (!good_reply(reply, request))
		expect_end(p, "the reply was wrong");
}

static void established(struct peer *p)
{
	struct rng r = stream('e', number);

	if (p->trick == EAGER && !p->end_by)
		speak_first(p, &r);
	if (p->admin && p->of_host && !p->end_by && pick(&r, ATTACHING, number) == ATTACH_AHEAD) {
		/* The first request has generation 1. */
		static const unsigned char tag[4] = { ATTACH - KEEP_ALIVE, 0, 2, 0 };

		expect_end(p, "it attached a volume that was not asked for");
		attach_unasked(p, tag);
	}
	if (p->trick == VANISH)
		p->c->broken = true;
}

static void serve(struct peer *p, unsigned int i)
{
	struct rng r = stream('t', number);
	struct request *q = &p->requests[i];
	uint64_t length = get(q->bytes + 16, 4);
	unsigned int n = 0;

	while (n < SLOTS && slot_busy[n])
		n++;
	if (n == SLOTS)
		return;
	slot_busy[n] = true;
	q->slot = n + 1;
	q->begun = true;
	q->message = number;
	q->trick = pick(&r, SERVING, number);
	/* The target may write to read bounce slots at any time; that only spoils the next read's data. */
	if (q->trick == LATE && uses_read_bounce(q))
		q->trick = FAIR;
	number++;
	served++;
	if (q->trick == LEAVE) {
		/* Leave in the middle of the request. */
		p->c->broken = true;
		return;
	}
	if (q->trick == SILENT)
		return;
	if (q->trick == NOPLESS || is_nopless()) {
		if (q->bytes[0] == NOP) {
			printf("unanswered\n");
			fflush(stdout);
			return;
		}
		q->trick = FAIR;
	}
	if (is_eager(q)) {
		check_eager(p, q);
		return answer_eager(p, i);
	}
	if (q->bytes[0] == FLUSH || q->bytes[0] == NOP) {
		q->trick = FAIR;
		return answer(p, i);
	}
	if (q->bytes[0] == READ)
		pattern((uint64_t *)slot(n), get(q->bytes + 8, 8) / SECTOR, length / SECTOR);
	if (q->trick == REACH)
		return reach_out(p, &r, i);
	if (q->bytes[0] == WRITE) {
		if (q->trick != LATE)
			q->trick = FAIR;
		return rdma(p, IBV_WR_RDMA_READ, work_id(W_READ, i), slot(n), get(q->bytes + 24, 8),
			    get(q->bytes + 20, 4), length);
	}
	if (q->trick == PARTIAL)
		length = 8 * (1 + below(&r, length / 8));
	if (q->trick != EARLY)
		send_data(p, i, length, work_id(W_OTHER, i));
	answer(p, i);
}

static void handle_request(struct peer *p, const unsigned char *b, bool immediate)
{
	struct key now = { get(b + 20, 4), get(b + 24, 8) };
	unsigned int i = 0, tag = get(b + 4, 2);

	if (b[0] < READ || (b[0] > FLUSH && b[0] != NOP) || b[1] & ~(3 | QUIET) || b[3] || b[33] || !zero(b + 36, 4) ||
	    get(b + 34, 2) != p->handle ||
	    (b[32] != (b[0] < FLUSH) && (b[32] != BY_VALUE || b[0] != READ || b[1] & ~QUIET) && !is_eager_request(p, b)) ||
	    (b[0] == WRITE && b[32] != EAGER_RING && p->no_read) || get(b + 16, 4) > SLOT || get(b + 16, 4) % SECTOR ||
	    (!immediate && in_flight(p, b + 4))) {
		print_bytes("message", b, REQUEST);
		failed("the initiator sent nonsense");
	}
	while (i < SLOTS && p->requests[i].used)
		i++;
	if (i == SLOTS || !p->held--)
		failed("the initiator sent without a credit");
	p->requests[i].used = true;
	memcpy(p->requests[i].bytes, b, REQUEST);
	p->requests[i].immediate = immediate;
	if (is_eager(&p->requests[i])) {
		by_request += !immediate;
		return take_slot(p, &p->requests[i]);
	}
	if (uses_read_bounce(&p->requests[i])) {
		if (p->bounce_key && p->bounce_key != now.key)
			failed("small reads use two regions");
		p->bounce_key = now.key;
		return;
	}
	if (p->bounce_key && p->bounce_key == now.key)
		failed("a request has the key of the small reads'");
	/* A reused tag: its former key was invalidated, by either side. */
	if (tag < TAGS && b[0] < FLUSH) {
		if (p->last[tag].key == now.key)
			failed("a key is used twice in a row");
		if (p->last[tag].key)
			p->dead[p->dead_count++ % DEAD] = p->last[tag];
		p->last[tag] = now;
	}
}

/* Handles a message: one request, and the number of further ones in its byte 2. */
static void handle_message(struct peer *p, const unsigned char *b, size_t n)
{
	size_t count = 1 + b[2];

	/* Once the session must end, later messages are not checked. */
	if (p->end_by)
		return;
	if (n != count * REQUEST || n > REQUEST + p->behind) {
		print_bytes("message", b, n);
		failed("the initiator sent a message of a wrong length");
	}
	several += count > 1;
	for (size_t i = 0; i < count; i++) {
		if (i && b[i * REQUEST + 2])
			failed("a request that follows another announces more");
		handle_request(p, b + i * REQUEST, false);
	}
}

/* Handles an eager write that an immediate value announces. */
static void handle_immediate(struct peer *p, const struct ibv_wc *wc)
{
	unsigned char b[REQUEST];

	if (p->end_by)
		return;
	if (p->handle)
		failed("an immediate value is about a volume with a handle");
	immediate_request(p, wc, b);
	handle_request(p, b, true);
}

static bool has_private(const uint64_t *at, size_t n)
{
	for (size_t i = 0; i < n / 8; i++)
		if (at[i] == PRIVATE)
			return true;
	return false;
}

static void completed(struct peer *p, const struct ibv_wc *wc)
{
	unsigned int i = (uint32_t)wc->wr_id, kind = wc->wr_id >> 63 ? wc->wr_id >> 32 & 0xff : 0;
	struct request *q = &p->requests[i];

	if (wc->status != IBV_WC_SUCCESS) {
		p->c->broken = true;
		reached += kind == W_FORBIDDEN;
		return;
	}
	switch (kind) {
	case 0:
		if (p->admin)
			handle_admin(p, p->c->receive[i], wc->byte_len);
		else if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
			handle_immediate(p, wc);
		else
			handle_message(p, p->c->receive[i], wc->byte_len);
		post_receive(p->c, i);
		break;
	case W_FORBIDDEN:
		number = p->blame;
		print_bytes("request", q->bytes, REQUEST);
		failed("memory that was not granted was reached");
	case W_READ:
		if (!is_pattern((uint64_t *)slot(q->slot - 1), get(q->bytes + 8, 8) / SECTOR, get(q->bytes + 16, 4) / SECTOR))
			failed("the initiator granted other data than was written");
		answer(p, i);
		break;
	case W_LATE_READ:
		if (has_private((uint64_t *)slot(q->slot - 1), get(q->bytes + 16, 4)))
			failed("memory of a write that had ended was read");
		/* Fall through. */
	case W_LAST:
		late++;
		/* Fall through. */
	case W_ANSWER:
		if (!p->end_by)
			free_request(p, i);
	}
}

static bool attend(struct peer *p)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(p->c->cq, 16, wc);
	bool busy = n > 0;

	for (int k = 0; k < n && !p->c->broken; k++)
		completed(p, &wc[k]);
	for (unsigned int i = 0; i < SLOTS && !p->c->broken && !p->end_by && !enough; i++) {
		if (p->requests[i].used && !p->requests[i].begun) {
			serve(p, i);
			busy = true;
		}
	}
	for (unsigned int i = 0; i < SLOTS && !p->c->broken; i++) {
		if (p->requests[i].late_at && now_ms() >= p->requests[i].late_at) {
			p->requests[i].late_at = 0;
			come_late(p, i);
		}
		if (p->requests[i].held_until && !p->end_by && now_ms() >= p->requests[i].held_until)
			answer_eager(p, i);
	}
	if (p->may_stay && now_ms() > p->end_by) {
		p->c->broken = true;
	} else if (p->end_by && now_ms() > p->end_by) {
		number = p->blame;
		failed("the initiator did not end the session: %s", p->why);
	}
	return busy;
}

static bool must_end(void)
{
	for (unsigned int i = 0; i < PEERS; i++)
		if (peers[i] && peers[i]->end_by)
			return true;
	return false;
}

int play_target(const char *port, const char *only)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	uint64_t start = now_ms(), last = start;
	unsigned int idle = 0;
	struct rdma_cm_id *id;

	if (only) {
		if (trick_named(only) == TRICKS)
			failed("there is no trick called %s", only);
		choose_only(trick_named(only));
	}
	listener = rdma_create_event_channel();
	if (!listener || rdma_create_id(listener, &id, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(id, (struct sockaddr *)&any) || rdma_listen(id, 16))
		failed("listening: %s", strerror(errno));
	printf("listening\n");
	fflush(stdout);
	/* At the end, wait for all sessions that must end. */
	for (number = first; number < first + messages || must_end();) {
		struct rdma_cm_event *event = next_event(listener, 0);
		uint64_t before = number;
		bool busy = event;

		enough = number >= first + messages;
		if (event && event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			if (enough) {
				struct rdma_cm_id *late_one = event->id;

				rdma_ack_cm_event(event);
				rdma_destroy_id(late_one);
			} else {
				welcome(event);
			}
		} else if (event) {
			struct connection *c = event->id->context;
			bool up = event->event == RDMA_CM_EVENT_ESTABLISHED;

			if (c && up)
				established(c->owner);
			else if (c)
				c->broken = true;
			rdma_ack_cm_event(event);
		}
		for (unsigned int i = 0; i < PEERS; i++) {
			if (ignored[i].id && now_ms() > ignored[i].until) {
				rdma_destroy_id(ignored[i].id);
				ignored[i].id = NULL;
			}
			if (!peers[i])
				continue;
			busy |= attend(peers[i]);
			if (peers[i]->c->broken)
				drop(i);
		}
		idle = busy ? 0 : idle + 1;
		if (idle > 20)
			usleep(100);
		if (number != before)
			last = now_ms();
		else if (now_ms() - last > 2 * WAIT_TIMEOUT_MS)
			failed("nothing comes");
	}
	for (unsigned int i = 0; i < PEERS; i++) {
		if (peers[i])
			drop(i);
		if (ignored[i].id)
			rdma_destroy_id(ignored[i].id);
	}
	rdma_destroy_id(id);
	printf("passed %llu messages, %llu requests served, %llu times several in a message, %llu wrong answers, "
	       "%llu reaches for memory refused, %llu answers before the data, %llu accesses after it, %llu answers by a value, "
	       "%llu eager writes by an immediate value, %llu by a request, %llu times several of them answered at once, %llu messages on admin queue pairs, "
	       "%llu connections, %llu refused, %llu of a later version, %llu volumes attached, %llu ended; %llu ms\n",
	       (unsigned long long)messages, (unsigned long long)served, (unsigned long long)several,
	       (unsigned long long)wrongs, (unsigned long long)reached, (unsigned long long)early, (unsigned long long)late, (unsigned long long)values,
	       (unsigned long long)immediate, (unsigned long long)by_request, (unsigned long long)at_once,
	       (unsigned long long)administered,
	       (unsigned long long)connects, (unsigned long long)refusals, (unsigned long long)older, (unsigned long long)attached, (unsigned long long)ends,
	       (unsigned long long)(now_ms() - start));
	return 0;
}
