// SPDX-License-Identifier: GPL-2.0
/*
 * A peer that proves its identity, correctly or with one mistake.
 *
 * hcablk-prove initiator ADDRESS PORT VOLUME HOST_ID WRONG < KEYS
 *	plays an initiator: the handshake, an admin queue pair and one other. Prints the target's answer to each request:
 *	"granted", or the reason of its reject; with "!" after it if the target's MAC is missing.
 * hcablk-prove target PORT WRONG < KEYS
 *	plays a target for one initiator.
 * hcablk-prove question ADDRESS PORT LIST HOST_ID plain|proven WRONG < KEYS
 *	asks for an entry of a list, ".volumes" or ".portals". Prints the target's answer: see question.c.
 * hcablk-prove questions ADDRESS PORT HOST_ID COUNT SEED MESSAGES < KEYS
 *	asks random questions, and fails if an answer differs from docs/reference/protocol.md; HOST_ID may see COUNT volumes.
 * hcablk-prove hellos ADDRESS PORT HOST_ID PROCESSES EACH < KEYS
 *	requests challenges from many processes, and proves nothing.
 * hcablk-prove lists PORT WRONG SEED < KEYS
 *	plays a target that is asked for its lists, until it gets a signal: see lists.c.
 *
 * KEYS are two lines of 64 hexadecimal digits: the host's key and the target's. WRONG is "nothing", or one of the
 * cases below, in initiator() and the other files.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/random.h>
#include "../event.h"
#include "prove.h"

enum { WAIT_MS = 40000, INSTANCE = 0x70726f7665 };

unsigned char host_key[KEY], target_key[KEY];
static struct addrinfo *address;
const char *wrong;

void failed(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	printf("FAILED ");
	vprintf(format, arguments);
	printf("\n");
	va_end(arguments);
	fflush(stdout);
	exit(1);
}

bool is(const char *what)
{
	return !strcmp(wrong, what);
}

void unhex(const char *text, unsigned char *bytes, unsigned int n)
{
	unsigned int digits = 0;

	for (; *text && digits < 2 * n; text++) {
		unsigned int digit;

		if (sscanf((char[]){ *text, 0 }, "%x", &digit) == 1) {
			bytes[digits / 2] = bytes[digits / 2] << 4 | digit;
			digits++;
		}
	}
	if (digits != 2 * n)
		failed("too few hexadecimal digits");
}

static void expect(struct rdma_event_channel *events, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event = next_event(events, WAIT_MS);

	if (!event || event->event != wanted)
		failed("%s instead of %s", event ? rdma_event_str(event->event) : "nothing", rdma_event_str(wanted));
	rdma_ack_cm_event(event);
}

struct asked prepare(void)
{
	struct asked a = { .events = rdma_create_event_channel() };
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 }, .qp_type = IBV_QPT_RC,
	};

	if (!a.events || rdma_create_id(a.events, &a.id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(a.id, NULL, address->ai_addr, 5000))
		failed("an identifier: %s", strerror(errno));
	expect(a.events, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(a.id, 5000))
		failed("a route: %s", strerror(errno));
	expect(a.events, RDMA_CM_EVENT_ROUTE_RESOLVED);
	if (rdma_create_qp(a.id, NULL, &attr))
		failed("a queue pair: %s", strerror(errno));
	put_end(&a.channel, 0, &a.id->route.addr.addr.ibaddr.sgid, rdma_get_local_addr(a.id));
	put_end(&a.channel, 1, &a.id->route.addr.addr.ibaddr.dgid, rdma_get_peer_addr(a.id));
	put(a.channel.bytes + CHANNEL_INITIATOR_QP, 4, a.id->qp->qp_num);
	return a;
}

void forget(struct asked *a)
{
	rdma_destroy_qp(a->id);
	rdma_destroy_id(a->id);
	rdma_destroy_event_channel(a->events);
}

void ask(struct asked *a, const unsigned char *request, unsigned int length)
{
	struct rdma_conn_param param = {
		.private_data = request, .private_data_len = length, .retry_count = 6, .rnr_retry_count = 1,
		.responder_resources = 4,
	};
	struct rdma_cm_event *event;

	if (rdma_connect(a->id, &param))
		failed("connecting: %s", strerror(errno));
	event = next_event(a->events, WAIT_MS);
	if (!event)
		failed("no answer");
	a->granted = event->event == RDMA_CM_EVENT_ESTABLISHED;
	if (!a->granted && event->event != RDMA_CM_EVENT_REJECTED)
		failed("%s", rdma_event_str(event->event));
	a->length = event->param.conn.private_data_len;
	if (a->length > sizeof(a->answer))
		a->length = sizeof(a->answer);
	memcpy(a->answer, event->param.conn.private_data, a->length);
	if (a->granted)
		put(a->channel.bytes + CHANNEL_TARGET_QP, 4, event->param.conn.qp_num);
	rdma_ack_cm_event(event);
}

/* Prints the target's answer, and whether the target has authenticated it. */
static void print_answer(const char *what, const struct handshake *h, struct asked *a, const unsigned char *request)
{
	size_t n = a->granted ? REPLY + 8 : REJECT;
	unsigned char mac[MAC];
	bool sealed;

	mac_of_answer(h, &a->channel, a->granted ? "reply" : "reject", request, a->answer, n, mac);
	sealed = a->length >= n + MAC && !memcmp(mac, a->answer + n, MAC);
	if (a->granted)
		printf("%s granted%s\n", what, sealed ? "" : "!");
	else
		printf("%s %u%s\n", what, (unsigned int)get(a->answer + 4, 2), sealed ? "" : "!");
	fflush(stdout);
}

static void hello(unsigned char *b, const char *volume, const char *host, uint64_t session)
{
	memset(b, 0, CONNECT);
	memcpy(b, "HCAB\2\2", 6);
	put(b + 6, 2, 16);
	b[8] = 0xff;
	b[9] = 2;
	put(b + 10, 2, PROVES);
	put(b + 12, 8, session);
	put(b + 20, 4, 1);
	unhex(host, b + 24, 16);
	memcpy(b + 40, volume, strnlen(volume, 16));
}

struct asked shake(struct handshake *h)
{
	static struct handshake recorded;
	struct asked a = prepare();
	unsigned char flags[2] = { 0 };

	ask(&a, h->hello, CONNECT);
	if (a.granted || a.length < CHALLENGE || get(a.answer + 4, 2) != CHALLENGED) {
		print_answer("hello", h, &a, h->hello);
		exit(0);
	}
	memcpy(h->challenge, a.answer, CHALLENGE);
	forget(&a);
	if (is("late"))
		sleep(11);
	a = prepare();
	memcpy(h->proof, h->hello, 6);
	put(flags, 2, PROOF | get(h->challenge + 8, 2));
	memcpy(h->proof + 6, flags, 2);
	if (getrandom(h->proof + 8, KEY, 0) != KEY)
		failed("no random numbers");
	if (is("reflected"))
		memcpy(h->proof + 8, h->challenge + 16, KEY);
	if (is("share-unmarked"))
		memcpy(h->proof + 8, h->challenge + 48, KEY);
	/* Prove another question than the one asked. */
	if (is("other-question"))
		h->hello[48] ^= 1;
	prove(h, &a.channel);
	if (is("share-is-point")) {
		h->proof[7] |= X25519 >> 8;
		memset(h->proof + 8, 0, KEY);
	}
	if (is("no-mac"))
		memset(h->proof + MAC_AT, 0, MAC);
	if (is("mac-bit"))
		h->proof[CONNECT - 1] ^= 1;
	if (is("handle"))
		h->proof[6] ^= 1;
	/* Replay the proof of another handshake for this challenge. */
	if (is("replayed-proof") && recorded.proof[0]) {
		memcpy(recorded.proof + 6, h->proof + 6, 2);
		memcpy(h->proof, recorded.proof, CONNECT);
	}
	recorded = *h;
	ask(&a, h->proof, CONNECT);
	return a;
}

static struct asked ask_queue(const struct handshake *h, const struct asked *admin, unsigned int queue, uint64_t counter)
{
	struct asked a = prepare();
	struct channel other = a.channel;
	unsigned char b[CONNECT];

	memcpy(b, h->hello, CONNECT);
	b[8] = queue;
	memcpy(b + 24, admin->answer + REPLY, 8);
	put(b + 32, 8, counter);
	other.bytes[is("queue-address") ? CHANNEL_IPS + 15 : is("queue-port") ? CHANNEL_PORTS : CHANNEL_INITIATOR_QP] ^= 1;
	if (is("queue-handle"))
		b[24] ^= 1;
	if (is("queue-epoch"))
		put(b + 20, 4, 2);
	seal_request(h, is("queue-channel") || is("queue-address") || is("queue-port") ? &other : &a.channel, b);
	if (is("queue-mac"))
		b[CONNECT - 1] ^= 1;
	if (is("queue-changed"))
		b[6] ^= 1;
	/* Send names only, without a proof. */
	if (is("queue-names")) {
		memcpy(b, h->hello, CONNECT);
		put(b + 10, 2, 0);
		b[8] = queue;
	}
	ask(&a, b, CONNECT);
	print_answer("queue", h, &a, b);
	return a;
}

void make_pair_of_initiator(struct handshake *h)
{
	if (is("host-key"))
		host_key[0] ^= 1;
	if (is("target-key"))
		target_key[31] ^= 0x80;
	if (is("keys-swapped"))
		make_pair(h, target_key, host_key);
	else
		make_pair(h, host_key, target_key);
}

static int initiator(char **argv)
{
	struct handshake h = { 0 };
	struct asked admin;
	unsigned char b[CONNECT];
	/* A different disk each time: a target remembers the epochs of former disks. */
	uint64_t session = (uint64_t)INSTANCE << 16 | (1 + getpid() % 4094);

	make_pair_of_initiator(&h);
	hello(h.hello, is("no-volume") ? "nothere" : argv[2], argv[3], session);
	if (is("other-host"))
		h.hello[24] ^= 1;
	if (is("names")) {
		struct asked a = prepare();

		memcpy(b, h.hello, CONNECT);
		put(b + 10, 2, 0);
		ask(&a, b, CONNECT);
		print_answer("admin", &h, &a, b);
		return 0;
	}
	admin = shake(&h);
	print_answer("admin", &h, &admin, h.proof);
	if (is("replayed-proof") || is("same-proof")) {
		struct asked again;

		put(h.hello + 20, 4, 2);
		if (is("replayed-proof")) {
			again = shake(&h);
		} else {
			/* A challenge is answered once. */
			again = prepare();
			ask(&again, h.proof, CONNECT);
		}
		print_answer("again", &h, &again, h.proof);
		return 0;
	}
	if (!admin.granted)
		return 0;
	ask_queue(&h, &admin, 0, 5);
	if (is("queue-replayed"))
		ask_queue(&h, &admin, 1, 5);
	else if (is("queue-old"))
		ask_queue(&h, &admin, 1, 0);
	else
		ask_queue(&h, &admin, 1, 4);
	return 0;
}

/* The roles, with the numbers of their arguments. */
static const struct role {
	const char *name;
	int arguments;
	/* Whether the first two arguments are an address and a port. */
	bool connects;
	int (*play)(char **arguments);
} roles[] = {
	{ "initiator", 5, true, initiator },
	{ "target", 2, false, play_target },
	{ "question", 6, true, ask_question },
	{ "questions", 6, true, ask_by_chance },
	{ "hellos", 5, true, ask_by_many },
	{ "lists", 3, false, play_lists },
};

int main(int argc, char **argv)
{
	char line[2][80];

	for (unsigned int i = 0; i < 2; i++)
		if (!fgets(line[i], sizeof(line[i]), stdin))
			failed("no keys");
	unhex(line[0], host_key, KEY);
	unhex(line[1], target_key, KEY);
	wrong = argv[argc - 1];
	for (unsigned int i = 0; i < sizeof(roles) / sizeof(*roles); i++) {
		if (argc - 2 != roles[i].arguments || strcmp(argv[1], roles[i].name))
			continue;
		if (roles[i].connects && getaddrinfo(argv[2], argv[3], NULL, &address))
			failed("no such address");
		return roles[i].play(argv + 2);
	}
	fprintf(stderr, "usage: see the source\n");
	return 2;
}
