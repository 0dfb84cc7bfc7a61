// SPDX-License-Identifier: GPL-2.0
/*
 * A peer that sends given bytes, to test the drivers' handling of nonsense.
 *
 * hcablk-peer connect ADDRESS PORT REQUEST [MESSAGE...]
 *	connects with these bytes as private data, then sends each message when
 *	the one before was answered, and prints each event on a line:
 *	"rejected HEX", "established HEX", "answer HEX", "disconnected".
 *	The message "close" ends the connection, "drop" ends the process
 *	silently; "wait" waits for the peer to end the connection.
 * hcablk-peer session ADDRESS PORT REQUEST [MESSAGE...]
 *	the same, but it first connects the session's admin queue pair with the same
 *	request and that queue's number, and announces a long silence there; prints
 *	only a failure of that. The message "lose" ends the connection of the admin
 *	queue pair, and waits for the end of the other.
 * hcablk-peer listen PORT accept|reject REPLY [MESSAGE...]
 *	listens, prints "listening", and for each connection request
 *	prints "request HEX", and rejects or accepts it with these bytes; when
 *	accepted, answers each message with the next MESSAGE, or not at all when
 *	none is left. Runs until it is killed.
 * hcablk-peer crowd ADDRESS PORT REQUEST session|epoch COUNT
 *	sends COUNT connection requests at once, each with a session or an
 *	epoch one higher, and never completes a granted one. Prints "granted
 *	N, refused N, waiting N" at each change. Runs until it is killed.
 *
 * All bytes are hexadecimal digits; "." is an empty string of bytes.
 */

#include <netdb.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include "event.h"

enum { BUFFERS = 64, SIZE = 8192, SECONDS = 20 };
/* The offset of the queue pair's number in a request, and the admin queue pair's number. */
enum { QUEUE_AT = 8, ADMIN = 0xff };
/* A keep-alive that announces the next within 600 s. */
#define KEEP_ALIVE "21000000000001005802000000000000000000000000000000000000000000000000000000000000"

struct connection {
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	/* The peer has ended the connection. */
	bool over;
	/* Receive buffers, and one to send from. */
	unsigned char buffers[BUFFERS + 1][SIZE];
};

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static size_t from_hex(const char *text, unsigned char *out)
{
	size_t n = 0;

	for (unsigned int byte; n < SIZE && sscanf(text, "%2x", &byte) == 1; text += 2)
		out[n++] = byte;
	return n;
}

static void say(const char *what, const unsigned char *bytes, size_t n)
{
	printf("%s", what);
	for (size_t i = 0; i < n; i++)
		printf(i ? "%02x" : " %02x", bytes[i]);
	printf("\n");
	fflush(stdout);
}

static void post_receive(struct connection *c, unsigned int n)
{
	struct ibv_sge sge = { (uintptr_t)c->buffers[n], SIZE, c->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(c->id->qp, &wr, &bad))
		fail("ibv_post_recv");
}

static void post_send(struct connection *c, const char *hex)
{
	struct ibv_sge sge = { (uintptr_t)c->buffers[BUFFERS], 0, c->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = BUFFERS, .sg_list = &sge, .num_sge = 1,
		.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
	}, *bad;

	sge.length = from_hex(hex, c->buffers[BUFFERS]);
	if (!sge.length)
		wr.num_sge = 0;
	if (ibv_post_send(c->id->qp, &wr, &bad))
		fail("ibv_post_send");
}

static struct connection *prepare(struct rdma_cm_id *id)
{
	struct connection *c = calloc(1, sizeof(*c));
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 16, .max_recv_wr = BUFFERS, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	c->id = id;
	id->context = c;
	c->pd = ibv_alloc_pd(id->verbs);
	c->cq = ibv_create_cq(id->verbs, 2 * BUFFERS, NULL, NULL, 0);
	if (!c->pd || !c->cq)
		fail("protection domain, completion queue");
	attr.send_cq = c->cq;
	attr.recv_cq = c->cq;
	c->mr = ibv_reg_mr(c->pd, c->buffers, sizeof(c->buffers), IBV_ACCESS_LOCAL_WRITE);
	if (!c->mr || rdma_create_qp(id, c->pd, &attr))
		fail("queue pair");
	for (unsigned int n = 0; n < BUFFERS; n++)
		post_receive(c, n);
	return c;
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = next_event(channel, SECONDS * 1000);

	if (!event || event->event != type) {
		printf("failed %s\n", event ? rdma_event_str(event->event) : "no event");
		exit(1);
	}
	rdma_ack_cm_event(event);
}

/* Waits 5 ms for an event. Returns true if the peer has ended the connection. */
static bool ended(struct rdma_event_channel *channel, struct connection *c)
{
	struct rdma_cm_event *event = next_event(channel, 5);

	if (!event)
		return false;
	c->over = event->event == RDMA_CM_EVENT_DISCONNECTED;
	rdma_ack_cm_event(event);
	if (c->over)
		printf("disconnected\n");
	return c->over;
}

/* Waits for an answer; returns false if the connection ended instead. */
static bool answered(struct rdma_event_channel *channel, struct connection *c)
{
	struct ibv_wc wc;

	for (int ms = 0; ms < SECONDS * 1000; ms += 5) {
		while (ibv_poll_cq(c->cq, 1, &wc) > 0) {
			if (wc.status != IBV_WC_SUCCESS) {
				printf("disconnected\n");
				return false;
			}
			if (wc.opcode & IBV_WC_RECV) {
				say("answer", c->buffers[wc.wr_id], wc.byte_len);
				post_receive(c, wc.wr_id);
				return true;
			}
		}
		if (ended(channel, c))
			return false;
	}
	printf("silence\n");
	return true;
}

/*
 * Waits for the peer's end of the connection, even if the queue pair is broken. The queue pair
 * breaks here when the peer was refused an access, and disconnecting now could reach the peer
 * before that refusal: the peer would then report another reason.
 */
static void await_end(struct rdma_event_channel *channel, struct connection *c)
{
	for (int ms = 0; ms < SECONDS * 1000 && !c->over; ms += 5)
		ended(channel, c);
	if (!c->over)
		printf("silence\n");
}

/* Connects with a request of `length` bytes, and prints the outcome if verbose or a failure; returns NULL on failure. */
static struct connection *open_connection(struct rdma_event_channel *channel, char **to, unsigned char *request, size_t length,
					  bool verbose)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *info;
	struct rdma_conn_param param = {
		.private_data = request, .private_data_len = length, .retry_count = 6, .rnr_retry_count = 0,
		.responder_resources = 8, .initiator_depth = 8,
	};
	struct rdma_cm_event *event;
	struct connection *c;
	struct rdma_cm_id *id;

	if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		fail("rdma_create_id");
	if (rdma_getaddrinfo(to[0], to[1], &hints, &info))
		fail("rdma_getaddrinfo");
	if (rdma_resolve_addr(id, NULL, info->ai_dst_addr, 5000))
		fail("rdma_resolve_addr");
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(id, 5000))
		fail("rdma_resolve_route");
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	c = prepare(id);
	if (rdma_connect(id, &param))
		fail("rdma_connect");
	event = next_event(channel, SECONDS * 1000);
	if (!event) {
		printf("silence\n");
		exit(1);
	}
	if (event->event != RDMA_CM_EVENT_ESTABLISHED) {
		if (event->event == RDMA_CM_EVENT_REJECTED)
			say("rejected", event->param.conn.private_data, event->param.conn.private_data_len);
		else
			printf("failed %s\n", rdma_event_str(event->event));
		return NULL;
	}
	if (verbose)
		say("established", event->param.conn.private_data, event->param.conn.private_data_len);
	rdma_ack_cm_event(event);
	return c;
}

static int do_connect(char **args, bool session)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	unsigned char data[SIZE];
	size_t length = from_hex(args[2], data);
	struct connection *c, *first = NULL;

	if (session) {
		unsigned char admin[SIZE];

		memcpy(admin, data, length);
		admin[QUEUE_AT] = ADMIN;
		/* A separate event channel: its end must not be taken for the other's. */
		c = open_connection(rdma_create_event_channel(), args, admin, length, false);
		if (!c)
			return 0;
		post_send(c, KEEP_ALIVE);
		first = c;
	}
	c = open_connection(channel, args, data, length, true);
	if (!c)
		return 0;
	for (args += 3; *args; args++) {
		if (!strcmp(*args, "drop"))
			_exit(0);
		if (!strcmp(*args, "close"))
			break;
		if (first && !strcmp(*args, "lose")) {
			rdma_disconnect(first->id);
			await_end(channel, c);
			break;
		}
		if (!strcmp(*args, "wait")) {
			await_end(channel, c);
			break;
		}
		post_send(c, *args);
		if (!answered(channel, c) && (!args[1] || strcmp(args[1], "wait")))
			break;
	}
	rdma_disconnect(c->id);
	return 0;
}

/* Adds n to a number in these bytes, lowest byte first. */
static void add(unsigned char *bytes, size_t size, unsigned int n)
{
	for (size_t i = 0; i < size; i++, n >>= 8) {
		n += bytes[i];
		bytes[i] = n;
	}
}

static void do_crowd(char **args)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *info;
	unsigned int count = atoi(args[4]), granted = 0, refused = 0;
	bool epoch = !strcmp(args[3], "epoch"), news = true;
	struct rdma_cm_id *ids[count];
	unsigned char data[SIZE];
	/* A request needs no queue pair of ours: a number is enough. */
	struct rdma_conn_param param = {
		.private_data = data, .retry_count = 6, .responder_resources = 8, .initiator_depth = 8,
	};

	param.private_data_len = from_hex(args[2], data);
	if (rdma_getaddrinfo(args[0], args[1], &hints, &info))
		fail("rdma_getaddrinfo");
	for (unsigned int i = 0; i < count; i++) {
		if (!channel || rdma_create_id(channel, &ids[i], NULL, RDMA_PS_TCP))
			fail("rdma_create_id");
		if (rdma_resolve_addr(ids[i], NULL, info->ai_dst_addr, 5000))
			fail("rdma_resolve_addr");
		expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
		if (rdma_resolve_route(ids[i], 5000))
			fail("rdma_resolve_route");
		expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	}
	for (unsigned int i = 0; i < count; i++) {
		/* A different number each time, or the target takes the request for a repetition. */
		param.qp_num = ((unsigned int)getpid() << 12 | i) & 0xffffff;
		if (rdma_connect(ids[i], &param))
			fail("rdma_connect");
		add(data + (epoch ? 20 : 12), epoch ? 4 : 8, 1);
	}
	for (;;) {
		struct rdma_cm_event *event = next_event(channel, 200);

		if (event) {
			/* Events after the answer do not count. */
			if (!event->id->context) {
				granted += event->event == RDMA_CM_EVENT_CONNECT_RESPONSE;
				refused += event->event == RDMA_CM_EVENT_REJECTED && event->param.conn.private_data_len >= 4 &&
					   !memcmp(event->param.conn.private_data, "HCAB", 4);
				event->id->context = ids;
				news = true;
			}
			rdma_ack_cm_event(event);
		} else if (news) {
			printf("granted %u, refused %u, waiting %u\n", granted, refused, count - granted - refused);
			fflush(stdout);
			news = false;
		}
	}
}

static void do_listen(char **args)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *info;
	bool accept = !strcmp(args[1], "accept");
	unsigned char data[SIZE];
	struct rdma_conn_param param = {
		.private_data = data, .rnr_retry_count = 0, .responder_resources = 8, .initiator_depth = 8,
	};
	char **messages = args + 3;
	struct connection *c = NULL;
	struct rdma_cm_id *id;

	param.private_data_len = from_hex(args[2], data);
	if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		fail("rdma_create_id");
	if (rdma_getaddrinfo("0.0.0.0", args[0], &hints, &info))
		fail("rdma_getaddrinfo");
	if (rdma_bind_addr(id, info->ai_src_addr) || rdma_listen(id, 16))
		fail("rdma_listen");
	printf("listening\n");
	fflush(stdout);
	for (;;) {
		struct rdma_cm_event *event = next_event(channel, 5);
		struct ibv_wc wc;

		while (c && ibv_poll_cq(c->cq, 1, &wc) > 0) {
			if (wc.status != IBV_WC_SUCCESS || !(wc.opcode & IBV_WC_RECV))
				continue;
			say("message", c->buffers[wc.wr_id], wc.byte_len);
			post_receive(c, wc.wr_id);
			if (*messages)
				post_send(c, *messages++);
		}
		if (!event)
			continue;
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			say("request", event->param.conn.private_data, event->param.conn.private_data_len);
			if (!accept) {
				rdma_reject(event->id, data, param.private_data_len);
			} else {
				c = prepare(event->id);
				if (rdma_accept(event->id, &param))
					fail("rdma_accept");
			}
		} else {
			printf("event %s\n", rdma_event_str(event->event));
			if (event->event == RDMA_CM_EVENT_DISCONNECTED)
				rdma_disconnect(event->id);
		}
		fflush(stdout);
		rdma_ack_cm_event(event);
	}
}

int main(int argc, char **argv)
{
	if (argc >= 5 && !strcmp(argv[1], "connect"))
		return do_connect(argv + 2, false);
	if (argc >= 5 && !strcmp(argv[1], "session"))
		return do_connect(argv + 2, true);
	if (argc == 7 && !strcmp(argv[1], "crowd"))
		do_crowd(argv + 2);
	if (argc >= 5 && !strcmp(argv[1], "listen"))
		do_listen(argv + 2);
	fprintf(stderr, "usage: see the source\n");
	return 2;
}
