// SPDX-License-Identifier: GPL-2.0
/* Declarations that the malicious initiator and its grammar share. */

#ifndef CLIENT_H
#define CLIENT_H

#include <netdb.h>
#include "hostile.h"

/* The host instance, in the ids of all sessions. */
#define INSTANCE 0x686f7374696cull

/* Connections at a time; message N is sent by worker N % WORKERS. */
enum { WORKERS = 4 };

struct message {
	/* The first bytes; the rest of a message is what the buffer held before. */
	unsigned char bytes[KEPT];
	size_t length;
	struct ibv_send_wr wr;
	/* The length of the data of an RDMA WRITE, instead of a SEND. */
	size_t data;
	/* A status, END or MAYBE (then status says what an answer must be). */
	int verdict, status;
	unsigned int slot;
	bool replay, burst;
	/* The answer may also be UNSUPPORTED. */
	bool may_lack;
	/* The write takes a slot of the eager ring; its number; an immediate value announces it. */
	bool eager, immediate;
	uint16_t write;
	/* The pair of operation and bound (bounds.c), plus 1. */
	unsigned int pair;
	uint64_t number;
};

/* Operations on blocks, one for each data path. */
enum { READS, READS_BY_VALUE, WRITES, WRITES_INLINE, EAGER_REQUESTS, EAGER_IMMEDIATE, DISCARDS, EMPTIES, OPERATIONS };
enum { INSIDE, NOTHING, TOO_LONG, ODD_OFFSET, ODD_LENGTH, AT_END, ACROSS_END, FAR, WRAPS, BOUNDS };
enum { PAIRS = OPERATIONS * BOUNDS };

extern struct addrinfo *address;
extern unsigned char volume[16], host[16];
extern uint64_t zone_from, zone_count, capacity;
extern unsigned int block, max_transfer, max_discard, max_zeroes;
extern bool read_only;
/* The target's last grant. */
extern uint32_t grant_key, grant_bytes;
extern uint64_t grant_address;
/* The session's path number; it is the highest valid one. */
extern unsigned int own_path;
enum { PATHS = 15 };

/* Sets the verdict: how a target must treat these bytes by docs/reference/protocol.md. */
void judge(struct message *m);
/* Announces an eager write by an immediate value, if that is possible. */
bool by_immediate(struct message *m);
void generate(struct message *m, uint64_t n);

/* bounds.c */

/* Turns a correct message into one of the pairs. */
void at_bound(struct rng *r, struct message *m, unsigned int pair);

/* ring.c */

/* Frees the eager ring, which may be written once the target has sent something. */
void ring_begin(unsigned int credits);
bool ring_fits(uint32_t length);
/* Takes the next slot; returns its beginning and the number of its write. */
uint64_t ring_take(uint32_t length, uint16_t *number);
void ring_free(uint16_t number);

/* client.c */

/* The counters of this worker. */
struct count {
	/* Requested sessions: each gets its number from this. */
	uint64_t sessions;
	uint64_t answered, values, ends, connects, rejects, reads_checked, replaced, batched;
	/* Messages on admin queue pairs, and those of them that had to end the session. */
	uint64_t admins, admin_ends;
	/* Messages about reservations that had to be answered. */
	uint64_t reservations;
	/* Writes that were done, for each data path, and requests refused because the volume is read-only. */
	uint64_t behind, by_request, immediate, read_only;
	bool pairs[PAIRS];
};
extern struct count *mine;

/* Handles completions; returns whether there were any. */
bool work(struct connection *c);
/* Resets the state of messages for a new connection. */
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

/* Makes a correct request for the admin queue pair of a session. */
void good_request(struct rng *r, struct asked *a);
/*
 * Requests a connection; returns NULL and the reason when it is refused. With vanish the
 * client leaves before the answer.
 */
struct connection *ask(struct asked *a, unsigned int *reason, bool vanish);
/* Sends a connection request that is mostly wrong. */
void odd_request(struct rng *r);
/* Opens a connection with a new session. */
struct connection *enter(struct rng *r, unsigned int *credits);

/* odd_admin.c */

/* The flag of a reservation message: ignore the key, or abort the victim's requests. */
#define FLAG 0x100u
/* The offsets of a change's sequence number and of its second key. */
enum { SEQUENCE_AT = 20, SECOND_AT = 24 };

/* Sends a message on an admin queue pair; returns the answer's status, -1 if the connection ends, or 0 with `fire`, which does not wait. */
int ask_admin(struct connection *admin, struct ibv_send_wr *wr, const unsigned char *b, size_t n, bool fire);
/* Opens the admin queue pair of a new session with a long keep-alive timeout; the request is left in `a`. */
struct connection *enter_admin(struct rng *r, struct asked *a);
/* Sends odd messages on the admin queue pair of a new session. */
void odd_admin(struct rng *r);

#endif
