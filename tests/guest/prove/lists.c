// SPDX-License-Identifier: GPL-2.0
/*
 * A target that answers questions about its volumes wrongly.
 *
 * It has the volumes good0 and good1, and a portal. WRONG is "nothing", "AT=VALUE" to change a byte
 * of an answer before it is sealed, "sealed-AT=VALUE" after it is sealed, "challenge-AT=VALUE" in a
 * challenge, "short=BYTES", "by-chance", or one of the cases below. A host that announces a proof
 * gets a challenge first, and a sealed answer.
 *
 * With "by-chance" it prints "good" or "bad" for each answer, as docs/reference/protocol.md
 * requires.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "../event.h"
#include "prove.h"

enum { REVISION = 0x1020304, LONG = 148, PORT = 7746 };

static uint64_t seed, answers;
static struct handshake shaking;

/* An answer in the form in which it is sent. */
struct answer {
	unsigned char bytes[LONG];
	unsigned int length;
};

static void make_entry(unsigned char *b, bool volumes, uint32_t index)
{
	if (volumes) {
		sprintf((char *)b + 16, "good%u", is("same") ? 0 : index % 10000);
		put(b + 48, 8, 1 << 20);
		b[56] = 9;
		b[57] = 4;
	} else {
		memcpy(b + 16, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x4d\0\3", 16);
		put(b + 48, 8, PORT);
	}
}

static struct answer make_answer(const unsigned char *question)
{
	bool volumes = question[41] == 'v';
	uint32_t index = get(question + 48, 4), count = volumes ? 2 : 1;
	struct answer a = { "HCAB\16\0\2\2", ENTRY };

	/* A list without an end: its length grows, or is large from the start. */
	if (is("more"))
		count = index + 2;
	if (is("many"))
		count = 5000;
	if (is("most"))
		count = -1;
	put(a.bytes + 8, 4, count);
	put(a.bytes + 12, 4, REVISION + (is("turns") ? answers : 0));
	if (is("no-entry") || (index >= count && !is("beyond")))
		return a;
	make_entry(a.bytes, volumes, index);
	return a;
}

/* Returns whether a host may accept an answer. */
static bool is_good(const unsigned char *b, const unsigned char *question)
{
	uint64_t count = get(b + 8, 4), number = get(b + 48, 8);
	bool has_entry = !is_zero(b + 16, 48);

	if (memcmp(b, "HCAB\16\0", 6) || !get(b + 12, 4) || has_entry != (get(question + 48, 4) < count))
		return false;
	if (!has_entry)
		return true;
	if (question[41] == 'v')
		return is_name(b + 16) && b[56] >= 9 && b[56] <= 12 && !(number >> 63) && !(number & ((1 << b[56]) - 1)) &&
		       b[57] < 8 && b[58] < 4 && is_zero(b + 59, 5);
	return !is_zero(b + 16, 16) && memcmp(b + 16, "\0\0\0\0\0\0\0\0\0\0\xff\xff\0\0\0", 16) && number && number < 65536 &&
	       is_zero(b + 32, 16) && is_zero(b + 56, 8);
}

static void seal(struct answer *a, const struct channel *channel, const unsigned char *proof)
{
	mac_of_answer(&shaking, channel, "entry", proof, a->bytes, ENTRY, a->bytes + ENTRY);
	a->length = SEALED_ENTRY;
	if (is("unsealed"))
		a->length = ENTRY;
	if (is("reflected"))
		memcpy(a->bytes + ENTRY, proof + MAC_AT, MAC);
}

/* Repeats the first answer. */
static void repeat(struct answer *a)
{
	static struct answer first;

	if (!first.length)
		first = *a;
	*a = first;
}

/* Returns the answer to a question; `proof` is the host's proof, or NULL. */
static struct answer answer_to(const unsigned char *question, const struct channel *channel, const unsigned char *proof)
{
	struct answer a = make_answer(question);
	struct chance c = chance_of(seed, answers++);
	bool early = chance(&c, 2), changed = is("by-chance") && chance(&c, 4), good;

	set_byte(wrong, a.bytes, ENTRY);
	if (changed && (early || !proof))
		change(&c, a.bytes, ENTRY);
	good = is_good(a.bytes, question);
	if (proof)
		seal(&a, channel, proof);
	if (changed && !early && proof) {
		struct answer before = a;

		change(&c, a.bytes, SEALED_ENTRY);
		good = good && !memcmp(&before, &a, sizeof(a));
	}
	if (is("by-chance"))
		printf("%s\n", good ? "good" : "bad");
	if (!strncmp(wrong, "sealed-", 7))
		set_byte(wrong + 7, a.bytes, SEALED_ENTRY);
	sscanf(wrong, "short=%u", &a.length);
	if (is("long")) {
		memset(a.bytes + a.length, 0xa5, LONG - a.length);
		a.length = LONG;
	}
	if (is("replayed"))
		repeat(&a);
	fflush(stdout);
	return a;
}

static void challenge(struct rdma_cm_id *id, const unsigned char *hello)
{
	unsigned char *b = shaking.challenge;

	memcpy(shaking.hello, hello, CONNECT);
	memcpy(b, "HCAB\14\0\2\2", 8);
	memset(b + 8, 0, CHALLENGE - 8);
	put(b + 8, 2, 5);
	if (getrandom(b + 16, KEY, 0) != KEY)
		failed("no random numbers");
	if (!strncmp(wrong, "challenge-", 10))
		set_byte(wrong + 10, b, CHALLENGE);
	rdma_reject(id, b, CHALLENGE);
}

static void grant(struct rdma_cm_id *id)
{
	static const unsigned char reply[REPLY] = "HCAB\2";
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 }, .qp_type = IBV_QPT_RC,
	};

	if (rdma_create_qp(id, NULL, &attr))
		failed("a queue pair: %s", strerror(errno));
	accept_by(id, reply, sizeof(reply));
}

/* Answers a request; returns false if the identifier must stay. */
static bool respond(struct rdma_cm_id *id, const unsigned char *request, uint32_t qp)
{
	bool says_hello = request[11] & PROVES >> 8 && !(request[7] & PROOF >> 8), is_proof = request[7] & PROOF >> 8;
	struct channel channel = channel_of(id, qp);
	struct answer a;

	if (is("silent") || (is("silent-then") && is_proof))
		return false;
	if (is("hang-up"))
		return true;
	if (is("empty")) {
		rdma_reject(id, NULL, 0);
		return true;
	}
	if (is("accept") || (is("accept-proof") && is_proof)) {
		grant(id);
		return false;
	}
	if (is("challenges") || (says_hello && !is("no-challenge"))) {
		challenge(id, request);
		return true;
	}
	if (is_proof) {
		memcpy(shaking.proof, request, CONNECT);
		make_pair(&shaking, host_key, target_key);
		prove(&shaking, &channel);
	}
	a = answer_to(is_proof ? shaking.hello : request, &channel, is_proof ? request : NULL);
	rdma_reject(id, a.bytes, a.length);
	/* The connection manager should ignore a second answer. */
	if (is("twice")) {
		put(a.bytes + 8, 4, 7);
		rdma_reject(id, a.bytes, a.length);
	}
	return true;
}

int play_lists(char **argv)
{
	struct rdma_event_channel *events;

	wrong = argv[1];
	seed = strtoull(argv[2], NULL, 10);
	if (is("host-key"))
		host_key[0] ^= 1;
	if (is("target-key"))
		target_key[0] ^= 1;
	events = listen_at(argv[0]);
	for (;;) {
		struct rdma_cm_event *event = next_event(events, -1);
		unsigned char request[CONNECT] = { 0 };
		struct rdma_cm_id *id;
		bool asks, done = false;
		uint32_t qp = 0;

		if (!event)
			failed("no event: %s", strerror(errno));
		id = event->id;
		asks = event->event == RDMA_CM_EVENT_CONNECT_REQUEST;
		if (asks && event->param.conn.private_data_len >= CONNECT) {
			memcpy(request, event->param.conn.private_data, CONNECT);
			qp = event->param.conn.qp_num;
		}
		rdma_ack_cm_event(event);
		if (asks)
			done = respond(id, request, qp);
		if (done) {
			if (id->qp)
				rdma_destroy_qp(id);
			rdma_destroy_id(id);
		}
	}
}
