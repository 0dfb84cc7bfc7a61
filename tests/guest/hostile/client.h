// SPDX-License-Identifier: GPL-2.0
/* What the false initiator and its grammar share. */

#ifndef CLIENT_H
#define CLIENT_H

#include <netdb.h>
#include "hostile.h"

/* Connections at a time; message N is sent by worker N % WORKERS. */
enum { WORKERS = 4 };

struct message {
	/* What comes behind these is what was there before. */
	unsigned char bytes[KEPT];
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

extern struct addrinfo *address;
extern unsigned char volume[16], host[16];
extern uint64_t zone_from, zone_count, capacity;
extern unsigned int block, max_transfer, max_discard, max_zeroes;
extern bool read_only;
/* What the target has granted last. */
extern uint32_t grant_key, grant_bytes;
extern uint64_t grant_address;

/* What docs/protocol.md has a target do about these bytes. */
void judge(struct message *m);
void generate(struct message *m, uint64_t n);

#endif
