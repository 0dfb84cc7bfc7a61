// SPDX-License-Identifier: GPL-2.0
/* A target with the keys that makes one mistake, or without the keys. It serves no requests. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/random.h>
#include "../event.h"
#include "prove.h"

enum { WAIT_MS = 60000 };

/* Makes the reply to an accepted admin queue pair, for a volume of 1 MiB. */
static void make_reply(unsigned char *b, const unsigned char *hello)
{
	memset(b, 0, REPLY + 8);
	memcpy(b, "HCAB\2", 5);
	put(b + 6, 2, 8);
	put(b + 8, 8, 1 << 20);
	b[16] = 9;
	b[17] = 9;
	put(b + 18, 2, 4);
	put(b + 20, 4, 1 << 20);
	memcpy(b + 24, hello + 12, 12);
	put(b + REPLY, 8, 77);
}

void accept_by(struct rdma_cm_id *id, const unsigned char *b, size_t n)
{
	struct rdma_conn_param param = { .private_data = b, .private_data_len = n, .retry_count = 6, .rnr_retry_count = 1 };

	if (rdma_accept(id, &param))
		failed("accepting: %s", strerror(errno));
}

/* Sends a message of garbage right after the reply. */
static void send_garbage(struct rdma_cm_id *id)
{
	static unsigned char garbage[64];
	struct ibv_mr *mr = ibv_reg_mr(id->pd, garbage, sizeof(garbage), 0);
	struct ibv_sge sge = { .addr = (uintptr_t)garbage, .length = sizeof(garbage), .lkey = mr ? mr->lkey : 0 };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;

	memset(garbage, 0xa5, sizeof(garbage));
	if (!mr || ibv_post_send(id->qp, &wr, &bad))
		failed("sending: %s", strerror(errno));
}

/* Prints whether the initiator has accepted the reply. */
static void tell_taken(struct rdma_cm_id *id)
{
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };

	for (unsigned int i = 0; i < 300 && !ibv_poll_cq(id->send_cq, 1, &wc); i++)
		usleep(50000);
	printf("%s\n", wc.status == IBV_WC_SUCCESS ? "taken" : "not taken");
	fflush(stdout);
}

struct rdma_cm_id *next_request(struct rdma_event_channel *events, unsigned char *request, uint32_t *qp)
{
	for (;;) {
		struct rdma_cm_event *event = next_event(events, WAIT_MS);
		struct rdma_cm_id *id;

		if (!event)
			failed("no request");
		id = event->id;
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			if (event->param.conn.private_data_len < CONNECT)
				failed("a short request");
			memcpy(request, event->param.conn.private_data, CONNECT);
			*qp = event->param.conn.qp_num;
			rdma_ack_cm_event(event);
			return id;
		}
		rdma_ack_cm_event(event);
	}
}

struct rdma_event_channel *listen_at(const char *port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct rdma_cm_id *listener;

	if (!events || rdma_create_id(events, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, (struct sockaddr *)&at) || rdma_listen(listener, 8))
		failed("listening: %s", strerror(errno));
	printf("listens\n");
	fflush(stdout);
	return events;
}

struct channel channel_of(const struct rdma_cm_id *id, uint32_t initiator_qp)
{
	struct channel channel = { 0 };
	struct rdma_cm_id *own = (struct rdma_cm_id *)id;

	put_end(&channel, 0, &own->route.addr.addr.ibaddr.dgid, rdma_get_peer_addr(own));
	put_end(&channel, 1, &own->route.addr.addr.ibaddr.sgid, rdma_get_local_addr(own));
	put(channel.bytes + CHANNEL_INITIATOR_QP, 4, initiator_qp);
	return channel;
}

int play_target(char **argv)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 }, .qp_type = IBV_QPT_RC,
	};
	struct rdma_event_channel *events = listen_at(argv[0]);
	unsigned char reply[SEALED_REPLY] = { 0 }, reject[SEALED_REJECT] = "HCAB\12\0\2\2";
	struct rdma_cm_id *id;
	struct handshake h = { 0 };
	struct channel channel;
	uint32_t qp;
	/* The length of a sealed reply; an unsealed one is shorter. */
	size_t length = SEALED_REPLY;

	id = next_request(events, h.hello, &qp);
	if (!strcmp(wrong, "no-challenge") || !strcmp(wrong, "early-garbage")) {
		rdma_create_qp(id, NULL, &attr);
		make_reply(reply, h.hello);
		accept_by(id, reply, REPLY);
		if (!strcmp(wrong, "early-garbage")) {
			send_garbage(id);
			tell_taken(id);
			return 0;
		}
		sleep(5);
		return 0;
	}
	memcpy(h.challenge, "HCAB\14\0\2\2", 8);
	put(h.challenge + 8, 2, 5);
	if (getrandom(h.challenge + 16, KEY, 0) != KEY)
		failed("no random numbers");
	if (!strcmp(wrong, "zero-point"))
		put(h.challenge + 10, 2, X25519);
	rdma_reject(id, h.challenge, CHALLENGE);
	id = next_request(events, h.proof, &qp);
	if (rdma_create_qp(id, NULL, &attr))
		failed("a queue pair: %s", strerror(errno));
	channel = channel_of(id, qp);
	if (!strcmp(wrong, "host-key"))
		host_key[0] ^= 1;
	if (!strcmp(wrong, "target-key"))
		target_key[0] ^= 1;
	make_pair(&h, host_key, target_key);
	{
		struct handshake own = h;

		prove(&own, &channel);
		printf("the proof is %s\n", memcmp(own.proof, h.proof, CONNECT) ? "wrong" : "right");
		memcpy(h.session, own.session, KEY);
	}
	if (!strcmp(wrong, "reject-sealed")) {
		mac_of_answer(&h, &channel, "reject", h.proof, reject, REJECT, reject + REJECT);
		rdma_reject(id, reject, SEALED_REJECT);
		sleep(1);
		return 0;
	}
	make_reply(reply, h.hello);
	put(channel.bytes + CHANNEL_TARGET_QP, 4, id->qp->qp_num);
	mac_of_answer(&h, &channel, "reply", h.proof, reply, REPLY + 8, reply + REPLY + 8);
	if (!strcmp(wrong, "reply-unsealed") || !strcmp(wrong, "garbage"))
		length = REPLY;
	if (!strcmp(wrong, "reply-changed"))
		reply[8] ^= 2;
	if (!strcmp(wrong, "reply-reflected"))
		memcpy(reply + REPLY + 8, h.proof + MAC_AT, MAC);
	accept_by(id, reply, length);
	if (!strcmp(wrong, "garbage")) {
		send_garbage(id);
		tell_taken(id);
		return 0;
	}
	sleep(5);
	return 0;
}
