// SPDX-License-Identifier: GPL-2.0
/*
 * An initiator of version 3 of the protocol with one session for several volumes, for tests of the target.
 *
 * hcablk-attach ADDRESS PORT HOST_ID SESSION [alone]
 *	connects the admin queue pair of the session of this id (hexadecimal digits), without keys, and then obeys
 *	the lines of standard input, one after the other. With "alone" the session is for one volume. It prints a
 *	line for each:
 *
 *	attach VOLUME DISK EPOCH	attached HANDLE capacity BYTES | refused REASON
 *	queue				queue | rejected REASON: connects the session's one queue pair for requests
 *	write HANDLE SECTOR TEXT	status N: 512 bytes that begin with the text
 *	fua HANDLE SECTOR TEXT		status N: the same with FUA
 *	discard HANDLE SECTOR		status N: 512 bytes
 *	zeroes HANDLE SECTOR		status N: 512 bytes
 *	read HANDLE SECTOR		status N TEXT
 *	flush HANDLE			status N
 *	begin HANDLE SECTOR		begun: as read, but does not wait for the answer
 *	large HANDLE SECTOR		begun: as begin, 256 KiB
 *	pending				pending N: begun reads without an answer yet
 *	settle				settled STATUS…: waits for them
 *	watch HANDLE CAPACITY		watching
 *	gone				gone HANDLE: waits for a watch whose answer is that the volume is gone
 *	detach HANDLE			status N
 *	end				disconnected: waits until the target has ended the session
 *
 * Any other failure ends it with "failed …".
 */

#include <arpa/inet.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include "event.h"

enum { REQUEST = 40, BUFFER = 64, RESPONSE = 16, CONNECT = 56, SECTOR = 512, LARGE = 256 * 1024, DEPTH = 16, ADMIN = 0xff };
enum { READ = 1, WRITE, FLUSH, DISCARD, ZEROES };
enum { KEYED = 1, FOLLOWS = 3 };
enum { KEEP_ALIVE = 0x21, WATCH = 0x23, ATTACH = 0x26, DETACH = 0x27, ATTACHED = 0x85 };
enum { ALONE = 0x2000 };
enum { GONE = 8, BUFFERS = 32, SECONDS = 60, BEGUN_MAX = 8 };

struct connection {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	bool over;
	/* Bit N: the message in receive buffer N was not handled yet. */
	uint32_t came;
	unsigned int lengths[BUFFERS];
	unsigned char receive[BUFFERS][256];
	unsigned char send[BUFFERS][REQUEST + SECTOR];
	/* The memory of each tag for the target's data. */
	unsigned char data[DEPTH][SECTOR];
	/* The memory of all large reads for the data. */
	unsigned char large[LARGE];
};

static struct addrinfo *address;
static unsigned char host[16];
static uint64_t session;
static bool alone;
static struct connection *admin, *queue;
static unsigned int sends;
static uint16_t generation;
/* The generations of the watches' tags, by handle. */
static uint16_t watches[256];

__attribute__((noreturn, format(printf, 1, 2)))
static void failed(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	printf("failed ");
	vprintf(format, list);
	printf("\n");
	va_end(list);
	exit(1);
}

static void put(unsigned char *at, unsigned int bytes, uint64_t value)
{
	for (unsigned int i = 0; i < bytes; i++)
		at[i] = value >> 8 * i;
}

static uint64_t get(const unsigned char *at, unsigned int bytes)
{
	uint64_t value = 0;

	for (unsigned int i = 0; i < bytes; i++)
		value |= (uint64_t)at[i] << 8 * i;
	return value;
}

static void post_receive(struct connection *c, unsigned int n)
{
	struct ibv_sge sge = { (uintptr_t)c->receive[n], sizeof(c->receive[n]), c->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(c->id->qp, &wr, &bad))
		failed("ibv_post_recv");
}

static void post_send(struct connection *c, const unsigned char *bytes, size_t n)
{
	unsigned char *buffer = c->send[sends++ % BUFFERS];
	struct ibv_sge sge = { (uintptr_t)buffer, n, c->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 1ull << 63, .sg_list = &sge, .num_sge = 1,
		.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
	}, *bad;

	memcpy(buffer, bytes, n);
	if (ibv_post_send(c->id->qp, &wr, &bad))
		failed("ibv_post_send");
}

static void take_messages(struct connection *c)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(c->cq, 1, &wc) > 0) {
		if (wc.status != IBV_WC_SUCCESS)
			continue;
		if (wc.wr_id >> 63)
			continue;
		c->came |= 1u << wc.wr_id;
		c->lengths[wc.wr_id] = wc.byte_len;
	}
}

/* Handles messages and events for at most `ms` milliseconds. */
static void look(struct connection *c, int ms)
{
	struct rdma_cm_event *event;

	take_messages(c);
	event = next_event(c->channel, ms);
	if (event) {
		c->over |= event->event == RDMA_CM_EVENT_DISCONNECTED || event->event == RDMA_CM_EVENT_DEVICE_REMOVAL;
		rdma_ack_cm_event(event);
		/* The last message may have arrived just before the disconnection. */
		take_messages(c);
	}
}

/* Waits for the message with this tag and copies it; returns its length, or 0 after `ms`. */
static unsigned int answer(struct connection *c, unsigned int index, unsigned int tag, unsigned char *out, int ms)
{
	for (;; ms -= 5) {
		bool over = c->over;

		for (unsigned int n = 0; n < BUFFERS; n++) {
			unsigned int length = c->lengths[n];

			if (!(c->came >> n & 1) || get(c->receive[n] + 4, 2) != index || get(c->receive[n] + 6, 2) != tag)
				continue;
			memcpy(out, c->receive[n], length);
			c->came &= ~(1u << n);
			post_receive(c, n);
			return length;
		}
		if (over || ms <= 0)
			return 0;
		look(c, 5);
	}
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = next_event(channel, SECONDS * 1000);

	if (!event || event->event != type)
		failed("%s", event ? rdma_event_str(event->event) : "no event");
	rdma_ack_cm_event(event);
}

/* Connects queue pair `number`; returns the reason of a refusal, or 0. */
static unsigned int connect_queue(struct connection **to, unsigned int number)
{
	struct connection *c = calloc(1, sizeof(*c));
	unsigned char request[CONNECT] = "HCAB\3\3";
	struct rdma_conn_param param = {
		.private_data = request, .private_data_len = CONNECT, .retry_count = 6, .rnr_retry_count = 1,
		.responder_resources = 8, .initiator_depth = 0,
	};
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 2 * BUFFERS, .max_recv_wr = BUFFERS, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct rdma_cm_event *event;
	unsigned int reason = 0;

	put(request + 6, 2, DEPTH);
	request[8] = number;
	request[9] = 1;
	put(request + 10, 2, alone ? ALONE : 0);
	put(request + 12, 8, session);
	put(request + 20, 4, 1);
	memcpy(request + 24, host, 16);
	c->channel = rdma_create_event_channel();
	if (!c->channel || rdma_create_id(c->channel, &c->id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(c->id, NULL, address->ai_addr, 5000))
		failed("rdma_create_id");
	expect(c->channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(c->id, 5000))
		failed("rdma_resolve_route");
	expect(c->channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	c->pd = ibv_alloc_pd(c->id->verbs);
	c->cq = ibv_create_cq(c->id->verbs, 4 * BUFFERS, NULL, NULL, 0);
	if (!c->pd || !c->cq)
		failed("protection domain, completion queue");
	attr.send_cq = attr.recv_cq = c->cq;
	c->mr = ibv_reg_mr(c->pd, c, sizeof(*c), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	if (!c->mr || rdma_create_qp(c->id, c->pd, &attr))
		failed("queue pair");
	for (unsigned int n = 0; n < BUFFERS; n++)
		post_receive(c, n);
	if (rdma_connect(c->id, &param))
		failed("rdma_connect");
	event = next_event(c->channel, SECONDS * 1000);
	if (!event)
		failed("no answer");
	if (event->event == RDMA_CM_EVENT_REJECTED && event->param.conn.private_data_len >= 16)
		reason = get((unsigned char *)event->param.conn.private_data + 4, 2);
	else if (event->event != RDMA_CM_EVENT_ESTABLISHED)
		failed("%s", rdma_event_str(event->event));
	rdma_ack_cm_event(event);
	if (!reason)
		*to = c;
	return reason;
}

/* Sends a request on the admin queue pair, and waits for the answer. */
static unsigned int ask(unsigned char *request, unsigned char *out)
{
	unsigned int length;

	put(request + 4, 2, 1);
	put(request + 6, 2, ++generation);
	post_send(admin, request, REQUEST);
	length = answer(admin, 1, generation, out, SECONDS * 1000);
	if (!length)
		failed("no answer on the admin queue pair");
	return length;
}

static void attach(const char *name, const char *disk, unsigned int epoch)
{
	unsigned char request[REQUEST] = { ATTACH }, out[256];
	unsigned int length;

	put(request + 8, 8, strtoull(disk, NULL, 16));
	put(request + 16, 4, epoch);
	memcpy(request + 24, name, strnlen(name, 16));
	length = ask(request, out);
	if (length != BUFFER || out[0] != ATTACHED)
		failed("an answer of %u bytes, %02x", length, out[0]);
	if (get(out + 8, 2))
		printf("refused %u\n", (unsigned int)get(out + 8, 2));
	else
		printf("attached %u capacity %llu\n", (unsigned int)get(out + 2, 2), (unsigned long long)get(out + 16, 8));
}

static void about(unsigned char opcode, unsigned int handle)
{
	unsigned char request[REQUEST] = { opcode }, out[256];

	put(request + 2, 2, handle);
	ask(request, out);
	printf("status %u\n", (unsigned int)get(out + 8, 2));
}

static void watch(unsigned int handle, unsigned long long capacity)
{
	unsigned char request[REQUEST] = { WATCH };

	put(request + 2, 2, handle);
	put(request + 4, 2, 2);
	put(request + 6, 2, ++generation);
	put(request + 8, 8, capacity / SECTOR);
	watches[handle] = generation;
	post_send(admin, request, REQUEST);
	printf("watching\n");
}

static void await_gone(void)
{
	unsigned char out[256];

	for (int ms = 0; ms < SECONDS * 1000 && !admin->over; ms += 5, look(admin, 5))
		for (unsigned int handle = 0; handle < 256; handle++)
			if (watches[handle] && answer(admin, 2, watches[handle], out, 0)) {
				watches[handle] = 0;
				if (get(out + 8, 2) != GONE)
					failed("a watch was answered with status %u", (unsigned int)get(out + 8, 2));
				printf("gone %u\n", handle);
				return;
			}
	failed("no watch was answered");
}

/* Sends a request with tag `index`, for `bytes` of data if it is a read; returns its generation. */
static unsigned int send_sized(unsigned int opcode, bool fua, unsigned int handle, unsigned int index, uint64_t sector, const char *text,
			       unsigned int bytes)
{
	unsigned char message[REQUEST + SECTOR] = { opcode, fua };
	size_t length = REQUEST;

	if (!queue)
		failed("there is no queue pair");
	put(message + 4, 2, index);
	put(message + 6, 2, ++generation);
	put(message + 34, 2, handle);
	if (opcode != FLUSH) {
		put(message + 8, 8, sector * SECTOR);
		put(message + 16, 4, bytes);
	}
	if (opcode == WRITE) {
		message[32] = FOLLOWS;
		strncpy((char *)message + REQUEST, text, SECTOR - 1);
		length += SECTOR;
	} else if (opcode == READ) {
		message[32] = KEYED;
		put(message + 20, 4, queue->mr->rkey);
		put(message + 24, 8, (uintptr_t)(bytes == SECTOR ? queue->data[index] : queue->large));
		memset(queue->data[index], 0, SECTOR);
	}
	post_send(queue, message, length);
	return generation;
}

static unsigned int send_request(unsigned int opcode, unsigned int handle, unsigned int index, uint64_t sector, const char *text)
{
	return send_sized(opcode, false, handle, index, sector, text, SECTOR);
}

static unsigned int status_of(unsigned int index, unsigned int tag)
{
	unsigned char out[256];

	if (answer(queue, index, tag, out, SECONDS * 1000) != RESPONSE)
		failed("no answer to a request");
	return get(out + 8, 2);
}

int main(int argc, char **argv)
{
	unsigned char silent[REQUEST] = { KEEP_ALIVE }, out[256];
	char line[256], word[32], name[64], disk[64], text[64];
	unsigned int digits = 0, reason, handle, begun[BEGUN_MAX], count = 0;
	unsigned long long number;

	alone = argc == 6 && !strcmp(argv[5], "alone");
	if (argc != 5 + alone || getaddrinfo(argv[1], argv[2], NULL, &address))
		failed("wrong arguments");
	for (const char *p = argv[3]; *p && digits < 32; p++) {
		unsigned int digit;

		if (sscanf((char[]){ *p, 0 }, "%x", &digit) == 1) {
			host[digits / 2] = host[digits / 2] << 4 | digit;
			digits++;
		}
	}
	session = strtoull(argv[4], NULL, 16);
	setvbuf(stdout, NULL, _IOLBF, 0);
	reason = connect_queue(&admin, ADMIN);
	if (reason) {
		printf("rejected %u\n", reason);
		return 1;
	}
	/* The next keep-alive may be 600 s later. */
	put(silent + 8, 8, 600);
	ask(silent, out);
	printf("session\n");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "%31s", word) != 1)
			continue;
		if (!strcmp(word, "attach") && sscanf(line, "%*s %63s %63s %u", name, disk, &handle) == 3) {
			attach(name, disk, handle);
		} else if (!strcmp(word, "queue")) {
			reason = connect_queue(&queue, 0);
			if (reason)
				printf("rejected %u\n", reason);
			else
				printf("queue\n");
		} else if (!strcmp(word, "write") && sscanf(line, "%*s %u %llu %63s", &handle, &number, text) == 3) {
			printf("status %u\n", status_of(0, send_request(WRITE, handle, 0, number, text)));
		} else if (!strcmp(word, "fua") && sscanf(line, "%*s %u %llu %63s", &handle, &number, text) == 3) {
			printf("status %u\n", status_of(0, send_sized(WRITE, true, handle, 0, number, text, SECTOR)));
		} else if (!strcmp(word, "discard") && sscanf(line, "%*s %u %llu", &handle, &number) == 2) {
			printf("status %u\n", status_of(0, send_request(DISCARD, handle, 0, number, NULL)));
		} else if (!strcmp(word, "zeroes") && sscanf(line, "%*s %u %llu", &handle, &number) == 2) {
			printf("status %u\n", status_of(0, send_request(ZEROES, handle, 0, number, NULL)));
		} else if (!strcmp(word, "read") && sscanf(line, "%*s %u %llu", &handle, &number) == 2) {
			reason = status_of(0, send_request(READ, handle, 0, number, NULL));
			printf("status %u %.63s\n", reason, queue->data[0]);
		} else if (!strcmp(word, "flush") && sscanf(line, "%*s %u", &handle) == 1) {
			printf("status %u\n", status_of(0, send_request(FLUSH, handle, 0, 0, NULL)));
		} else if (!strcmp(word, "begin") && sscanf(line, "%*s %u %llu", &handle, &number) == 2 && count < BEGUN_MAX) {
			begun[count] = send_request(READ, handle, 1 + count, number, NULL);
			count++;
			printf("begun\n");
		} else if (!strcmp(word, "large") && sscanf(line, "%*s %u %llu", &handle, &number) == 2 && count < BEGUN_MAX) {
			begun[count] = send_sized(READ, false, handle, 1 + count, number, NULL, LARGE);
			count++;
			printf("begun\n");
		} else if (!strcmp(word, "pending")) {
			unsigned int left = 0;

			look(queue, 0);
			for (unsigned int i = 0; i < count; i++) {
				bool came = false;

				for (unsigned int n = 0; n < BUFFERS; n++)
					came |= queue->came >> n & 1 && get(queue->receive[n] + 6, 2) == begun[i];
				left += !came;
			}
			printf("pending %u\n", left);
		} else if (!strcmp(word, "settle")) {
			printf("settled");
			for (unsigned int i = 0; i < count; i++)
				printf(" %u", status_of(1 + i, begun[i]));
			printf("\n");
			count = 0;
		} else if (!strcmp(word, "watch") && sscanf(line, "%*s %u %llu", &handle, &number) == 2 && handle < 256) {
			watch(handle, number);
		} else if (!strcmp(word, "gone")) {
			await_gone();
		} else if (!strcmp(word, "detach") && sscanf(line, "%*s %u", &handle) == 1) {
			about(DETACH, handle);
		} else if (!strcmp(word, "end")) {
			for (int ms = 0; ms < SECONDS * 1000 && !admin->over; ms += 5)
				look(admin, 5);
			printf(admin->over ? "disconnected\n" : "it goes on\n");
		} else {
			failed("what is \"%s\"?", word);
		}
	}
	return 0;
}
