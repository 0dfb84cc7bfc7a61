// SPDX-License-Identifier: GPL-2.0
/* What the false initiator and its grammar share. */

#ifndef CLIENT_H
#define CLIENT_H

#include <netdb.h>
#include "hostile.h"

/* The host's instance, in the ids of all its sessions. */
#define INSTANCE 0x686f7374696cull

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
	/* The answer may be UNSUPPORTED as well. */
	bool may_lack;
	/* A write that takes a slot of the eager ring, the number of the write, and whether an immediate value announces it. */
	bool eager, immediate;
	uint16_t write;
	/* Which operation at which bound it is (bounds.c), and 1. */
	unsigned int pair;
	uint64_t number;
};

/* Operations that name blocks, by how their data travels, and where these blocks are. */
enum { READS, READS_BY_VALUE, WRITES, WRITES_BEHIND, EAGER_REQUESTS, EAGER_IMMEDIATE, DISCARDS, EMPTIES, OPERATIONS };
enum { INSIDE, NOTHING, TOO_LONG, ODD_OFFSET, ODD_LENGTH, AT_END, ACROSS_END, FAR, WRAPS, BOUNDS };
enum { PAIRS = OPERATIONS * BOUNDS };

extern struct addrinfo *address;
extern unsigned char volume[16], host[16];
extern uint64_t zone_from, zone_count, capacity;
extern unsigned int block, max_transfer, max_discard, max_zeroes;
extern bool read_only;
/* What the target has granted last. */
extern uint32_t grant_key, grant_bytes;
extern uint64_t grant_address;
/* The number of the path that the session's id names; the highest that there may be. */
extern unsigned int own_path;
enum { PATHS = 15 };

/* What docs/reference/protocol.md has a target do about these bytes. */
void judge(struct message *m);
/* Has an eager write announced by an immediate value, if that may be. */
bool by_immediate(struct message *m);
void generate(struct message *m, uint64_t n);

/* bounds.c */

/* Makes one of the pairs of a correct message. */
void at_bound(struct rng *r, struct message *m, unsigned int pair);

/* ring.c */

/* All of the eager ring is free, but nothing may be written there before the target has sent something. */
void ring_begin(unsigned int credits);
bool ring_fits(uint32_t length);
/* Takes the next slot: where it begins, and its write's number. */
uint64_t ring_take(uint32_t length, uint16_t *number);
void ring_free(uint16_t number);

/* client.c */

/* What was done, by this worker. */
struct count {
	/* Sessions that were asked for: a number for each. */
	uint64_t sessions;
	uint64_t answered, values, ends, connects, rejects, reads_checked, replaced, batched;
	/* Messages on admin queue pairs, and those that had to end the session. */
	uint64_t admins, admin_ends;
	/* Those about reservations that had to be answered. */
	uint64_t reservations;
	/* Writes that were done, and requests that were refused since the volume is read-only. */
	uint64_t behind, by_request, immediate, read_only;
	bool pairs[PAIRS];
};
extern struct count *mine;

/* Handles what has come; true when there was something. */
bool work(struct connection *c);
/* Of a connection on which nothing was sent. */
void begin(unsigned int credits);
void leave(struct connection *c, bool politely);

/* Works until the condition holds or the connection is broken. */
#define UNTIL(c, condition, what) do {							\
	uint64_t _end = now_ms() + WAIT_TIMEOUT_MS;						\
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

/* enter.c */

struct asked {
	unsigned char request[CONNECT];
	size_t length;
	unsigned int reads, rnr_retries;
	unsigned char reply[256];
	size_t reply_length;
};

/* A request for the admin queue pair of a session. */
void good_request(struct rng *r, struct asked *a);
/*
 * Asks for a connection; NULL and the reason when it is refused. With vanish the
 * client is gone before there is an answer.
 */
struct connection *ask(struct asked *a, unsigned int *reason, bool vanish);
/* A connection request that is wrong, mostly. */
void odd_request(struct rng *r);
/* A connection with a session of its own. */
struct connection *enter(struct rng *r, unsigned int *credits);

/* odd_admin.c */

/* Of what is asked about reservations: that no key is needed, or that a victim's requests are ended. */
#define FLAG 0x100u
/* Where the sequence number of a change is, and its second key. */
enum { SEQUENCE_AT = 20, SECOND_AT = 24 };

/* Sends a message on an admin queue pair; its answer's status, or -1 when the connection ends instead. With fire none is waited for: 0. */
int ask_admin(struct connection *admin, struct ibv_send_wr *wr, const unsigned char *b, size_t n, bool fire);
/* The admin queue pair of a new session, which will hear from us for as long as it takes; what was asked is left in a. */
struct connection *enter_admin(struct rng *r, struct asked *a);
/* What is odd on the admin queue pair of a session that is made for it. */
void odd_admin(struct rng *r);

#endif
