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

/* The counters, in memory that all workers share. */
static struct count *counts;
struct count *mine;

/* Messages without an answer yet. */
static struct message flight[512];
static unsigned int flying, slot_users[SLOTS];
/* The target has sent something over this connection. */
static bool any_answered;

static void forget(unsigned int i)
{
	slot_users[flight[i].slot]--;
	flight[i] = flight[--flying];
}

static void count_done(const struct message *m)
{
	mine->answered++;
	mine->read_only += m->status == READ_ONLY;
	if (m->bytes[0] != WRITE || m->status != OK)
		return;
	mine->immediate += m->immediate;
	mine->by_request += m->eager && !m->immediate;
	mine->behind += m->bytes[32] == FOLLOWS;
}

/* Handles a message with answers to eager writes, by their numbers. */
static void answers(const unsigned char *b, size_t n)
{
	if (n < 8 || n > BUFFER || n != 4 + 4u * b[1] || b[2] || b[3]) {
		print_bytes("answers", b, n);
		failed("a malformed message of answers by number");
	}
	for (size_t at = 4; at < n; at += 4) {
		unsigned int i = 0, write = get(b + at, 2), status = get(b + at + 2, 2);

		while (i < flying && (!flight[i].eager || flight[i].write != write))
			i++;
		if (i == flying)
			failed("an answer to eager write %u, which is not in flight", write);
		if (flight[i].status != (int)status) {
			print_bytes("to", flight[i].bytes, REQUEST);
			failed("status %u where %d was due for an eager write", status, flight[i].status);
		}
		count_done(&flight[i]);
		ring_free(write);
		forget(i);
	}
}

static void response(const unsigned char *b, size_t n, bool value)
{
	const struct message *m = NULL;
	unsigned int i, status = get(b + 8, 2);
	uint64_t at, sector, count;

	if (n != RESPONSE || b[0] != 0x80 || b[1] || get(b + 2, 2) != 1) {
		print_bytes("answer", b, n);
		failed("a malformed answer");
	}
	for (i = 0; i < flying; i++) {
		m = &flight[i];
		if (m->wr.opcode != IBV_WR_RDMA_WRITE_WITH_IMM && !m->data && !m->eager &&
		    !memcmp(m->bytes + 4, b + 4, 4) && m->verdict != END &&
		    (m->status == (int)status || (m->may_lack && status == UNSUPPORTED)) && (!value || m->bytes[32] == BY_VALUE))
			break;
	}
	if (i == flying) {
		print_bytes(value ? "immediate value, as an answer" : "answer", b, n);
		for (i = 0; i < flying; i++)
			if (!memcmp(flight[i].bytes + 4, b + 4, 4)) {
				print_bytes("to", flight[i].bytes, flight[i].length);
				failed("status %u where %d (%d) was due", status, flight[i].status, flight[i].verdict);
			}
		failed("an answer to a request that is not in flight");
	}
	if (!zero(b + 10, 6)) {
		print_bytes("answer", b, n);
		failed("an answer whose reserved bytes are used");
	}
	count_done(m);
	mine->values += value;
	sector = get(m->bytes + 8, 8) / SECTOR;
	count = get(m->bytes + 16, 4) / SECTOR;
	at = get(m->bytes + 24, 8);
	if (m->bytes[0] == READ && status == OK &&
	    (sector + count <= zone_from || sector >= zone_from + zone_count)) {
		/* Addresses may be unaligned. */
		static uint64_t copy[SLOT / 8];

		memcpy(copy, (void *)(uintptr_t)at, count * SECTOR);
		if (!is_pattern(copy, sector, count))
			failed("a read of sector %llu returned other data than the pattern", (unsigned long long)sector);
		mine->reads_checked++;
	}
	forget(i);
}

/* Handles an immediate value: the data and the answer of a read in one. */
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

/* Handles completions; returns whether there were any. */
bool work(struct connection *c)
{
	struct rdma_cm_event *event;
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(c->cq, 16, wc);

	for (int i = 0; i < n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS) {
			c->broken = true;
		} else if (wc[i].wr_id >> 63) {
			/* The bit marks accesses to memory of the target that was not granted. */
			if (wc[i].wr_id >> 62 & 1)
				failed("memory of the target can be reached");
		} else {
			any_answered = true;
			if (wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM)
				value(&wc[i]);
			else if (wc[i].byte_len && c->receive[wc[i].wr_id][0] == 0x81)
				answers(c->receive[wc[i].wr_id], wc[i].byte_len);
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

void begin(unsigned int credits)
{
	ring_begin(credits);
	any_answered = false;
}

void leave(struct connection *c, bool politely)
{
	if (politely)
		rdma_disconnect(c->id);
	destroy(c);
	while (flying)
		forget(0);
}

/* Records a message that is about to be sent. */
static void launch(struct message *m)
{
	if (!slot_users[m->slot] && m->bytes[0] == READ && m->verdict == OK)
		memset((void *)(uintptr_t)get(m->bytes + 24, 8), POISON, get(m->bytes + 16, 4));
	m->number = number;
	if (m->pair)
		mine->pairs[m->pair - 1] = true;
	flight[flying++] = *m;
	slot_users[m->slot]++;
}

/* Makes the target send something: only then may the eager ring be written. */
static void make_answered(struct connection *c)
{
	struct message ask = { .length = REQUEST, .wr.opcode = IBV_WR_SEND };

	if (!flying) {
		ask.bytes[0] = NOP;
		put(ask.bytes + 4, 4, number ^ 1 << 30);
		launch(&ask);
		post_message(c, &ask.wr, ask.bytes, ask.length);
	}
	UNTIL(c, any_answered, "a message is not answered");
}

/* Writes the data of an eager write into its slot, with an immediate value or before a message. */
static void put_data(struct connection *c, struct message *m, uint64_t at)
{
	uint32_t length = get(m->bytes + 16, 4);
	/* Data of a refused write may be anything; data that others will read is ours. */
	const struct ibv_mr *mr = length > from->length ? wide : from;
	struct ibv_sge sge = { (uintptr_t)mr->addr, length, mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };

	if (m->immediate)
		wr = m->wr;
	else if (length > from->length && m->status != OK)
		return;
	if (length > from->length && m->status == OK)
		failed("an eager write of %u bytes is longer than the memory that it may send", length);
	wr.wr.rdma.remote_addr = grant_address + at;
	wr.wr.rdma.rkey = grant_key;
	post(c, &wr, &sge);
}

/* Returns whether a message may hold this request with others: each of them is answered. */
static bool may_share(const struct message *m)
{
	return m->length == REQUEST && m->wr.opcode == IBV_WR_SEND && m->verdict < END && !m->burst && !m->eager;
}

/* Appends the next requests to the one in these bytes, up to `wanted` in all; returns the length. */
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
	mine->batched += count > 1;
	return count * REQUEST;
}

/* Sends all messages of one worker. */
static void work_off(unsigned int me)
{
	struct connection *c = NULL;
	unsigned int credits = 0, burst = 0;
	bool may_end = false;
	uint64_t at = 0;
	struct rng r;

	for (number = first + (me - first % WORKERS + WORKERS) % WORKERS; number < first + messages; number += WORKERS) {
		struct message m;

		if (!c) {
			r = stream('c', number);
			for (unsigned int i = below(&r, 3); i; i--)
				odd_request(&r);
			if (chance(&r, 300) || !mine->admins)
				odd_admin(&r);
			c = enter(&r, &credits);
			burst = 0;
			may_end = false;
		}
		r = stream('x', number);
		generate(&m, number);
		/* Repeat the message, even before the first was answered. */
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
		if (m.eager) {
			make_answered(c);
			UNTIL(c, ring_fits(get(m.bytes + 16, 4)), "an eager write finds no slot");
		}
		if (c->broken) {
			if (!may_end)
				failed("the target ended the connection without a reason");
			goto ended;
		}
		if (m.eager)
			at = ring_take(get(m.bytes + 16, 4), &m.write);
		launch(&m);
		if (m.eager)
			put_data(c, &m, at);
		if (m.immediate) {
			/* Its data came with the immediate value. */
		} else if (m.data) {
			struct ibv_sge sge = { (uintptr_t)c->send[c->sends++ % (SENDS - 16)], m.data, c->mr->lkey };

			/* Granted memory may be accessed; then the message about it is wrong. */
			m.wr.wr_id = m.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? 0 : 1ull << 62;
			post(c, &m.wr, &sge);
		} else {
			size_t length = m.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? 0 : m.length;

			if (may_share(&m) && !m.replay && !burst && chance(&r, 100)) {
				unsigned int wanted = 2 + below(&r, MESSAGE_REQUESTS_HERE - 1);

				length = share(c, m.bytes, wanted < credits ? wanted : credits, credits);
			}
			/* The part that post_message() does not change. */
			for (size_t i = KEPT; m.bytes[32] == FOLLOWS && i < length; i += 8)
				memcpy(c->send[c->sends % SENDS] + i, &(uint64_t){ HOSTILE }, 8);
			post_message(c, &m.wr, m.bytes, length);
		}
		if (m.verdict == END)
			UNTIL(c, false, "the target did not end the connection");
		else if (m.verdict == MAYBE)
			UNTIL(c, !flying, "neither an answer nor an end");
		if (!c->broken) {
			/* Leave in the middle of it. */
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
	unsigned int pairs = 0;
	pid_t workers[WORKERS];

	counts = mmap(NULL, WORKERS * sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (counts == MAP_FAILED)
		failed("memory: %s", strerror(errno));
	/* Processes, so that each has its own device, memory and numbers. */
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
			/* The failed worker has printed the reason. */
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
		sum.admins += counts[i].admins;
		sum.admin_ends += counts[i].admin_ends;
		sum.reservations += counts[i].reservations;
		sum.batched += counts[i].batched;
		sum.behind += counts[i].behind;
		sum.by_request += counts[i].by_request;
		sum.immediate += counts[i].immediate;
		sum.read_only += counts[i].read_only;
		for (unsigned int pair = 0; pair < PAIRS; pair++) {
			pairs += counts[i].pairs[pair] && !sum.pairs[pair];
			sum.pairs[pair] |= counts[i].pairs[pair];
		}
	}
	printf("passed %llu messages, %llu answered as they must be, %llu by a value, %llu reads compared, "
	       "%llu connections asked for, %llu refused as they must be, %llu ended, %llu in place of another one, "
	       "%llu messages on admin queue pairs, %llu of which ended the session, %llu about reservations, %llu messages of several requests, %llu writes by a message, %llu in the eager ring by a message, "
	       "%llu by an immediate value, %llu refused as read-only, %u of %u pairs of an operation and a bound; %llu ms\n",
	       (unsigned long long)messages, (unsigned long long)sum.answered, (unsigned long long)sum.values,
	       (unsigned long long)sum.reads_checked,
	       (unsigned long long)sum.connects, (unsigned long long)sum.rejects, (unsigned long long)sum.ends,
	       (unsigned long long)sum.replaced, (unsigned long long)sum.admins, (unsigned long long)sum.admin_ends,
	       (unsigned long long)sum.reservations, (unsigned long long)sum.batched, (unsigned long long)sum.behind,
	       (unsigned long long)sum.by_request, (unsigned long long)sum.immediate, (unsigned long long)sum.read_only, pairs, PAIRS,
	       (unsigned long long)(now_ms() - start));
	return 0;
}
