// SPDX-License-Identifier: GPL-2.0
/* What the parts of hcablk-hostile share; main.c says what it is. */

#ifndef HOSTILE_H
#define HOSTILE_H

#include <stdbool.h>
#include <stdint.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include "../event.h"

enum {
	SECTOR = 512,
	REQUEST = 40, RESPONSE = 16, BUFFER = 64,
	/* Data that may follow a request, by the reply of the target that is tested; and what is kept of a message. */
	INLINE = 4096, KEPT = 160,
	/* Requests that a message may have by the protocol, and that it has here. */
	MESSAGE_REQUESTS = 16, MESSAGE_REQUESTS_HERE = 4,
	CONNECT = 56, REPLY = 64, REJECT = 16,
	/* Memory for data in flight; a message of number n uses slot n % SLOTS. */
	SLOTS = 32, SLOT = 64 << 10, GUARD = 4 << 10,
	RECEIVES = 256, RECEIVE = 256, SENDS = 256, SEND = REQUEST + INLINE + 64,
	WAIT_TIMEOUT_MS = 40000,
	/* From this message on what costs a connection is left out but for so many of a thousand times. */
	DENSE = 1000, SPARSE = 50,
};

enum { READ = 1, WRITE, FLUSH, DISCARD, ZEROES, NOP };
/* On the admin queue pair, whose number in a connection request this is; messages that may be in flight there, and the length of answers. */
enum { KEEP_ALIVE = 0x21, FENCE, WATCH, DURABLE, PORTALS, ATTACH, DETACH };
/* What is asked there about reservations. */
enum { REGISTER = 0x30, RESERVE, RELEASE, PREEMPT, CLEAR, READ_KEY, READ_RESERVATION };
enum { ADMIN = 0xff, ADMIN_DEPTH = 8, ADMIN_ANSWER = 24, LIMITS_ANSWER = 64, TMO_MAX = 600, GONE = 8 };
/* Beside the number of a queue: it comes in place of the one that is there. */
enum { REPLACE = 0x80, RESUME = 0x8000, ALONE = 0x2000 };
/* A flag of a request: the answer need not wake its reader up. */
enum { QUIET = 8, ATOMIC = 16 };
/* A bit of a reply: no data is fetched. */
enum { NO_READ = 2 };
/* Another one, of the admin queue pair's: portals are told of. */
enum { TELLS_PORTALS = 8 };
/* How data travels: a read's may come with an immediate value, a write's behind its request or through the eager ring. */
enum { KEYED = 1, BY_VALUE, FOLLOWS, EAGER_RING };
enum { OK, INVALID, UNSUPPORTED, OUT_OF_RANGE, READ_ONLY, DRAINING = 9, CONFLICT, STATUSES };
enum { MALFORMED = 1, VERSION, UNKNOWN_VOLUME, FORBIDDEN, NO_RESOURCES, STALE_EPOCH, NO_SESSION };
enum { CHALLENGE = 12, NOT_PROVEN };
/* In the place of the depth, and beside the largest data length: the initiator proves who it is. */
enum { PROOF = 0x8000, PROVES = 0x4000 };
/* What the other side must do beside answering with a status. */
enum { END = 1000, MAYBE };

#define POISON 0xa5
#define HOSTILE 0x454c4954534f4821ull
#define SECRET 0x5345435245543f3full
/* What the victim's memory holds when no request is about it; nobody may read or write this. */
#define PRIVATE 0x217079656b656570ull

/* basics.c */

extern uint64_t seed, messages, first, number;
extern const char *mode;
/* What was sent last. */
extern unsigned int last_opcode;
extern size_t last_length;
extern unsigned char last_bytes[KEPT];

/* Tells what is wrong and what repeats it, and ends the program. */
__attribute__((noreturn, format(printf, 1, 2)))
void failed(const char *format, ...);
void tell(const char *what, const unsigned char *bytes, size_t n);

struct rng {
	uint64_t state;
};

uint64_t next(struct rng *r);
uint64_t below(struct rng *r, uint64_t n);
bool chance(struct rng *r, unsigned int per_mille);
/* A stream of its own for each purpose and number. */
struct rng stream(uint64_t purpose, uint64_t n);
/* Whether message n may be one that costs the connection. */
bool may_cost(struct rng *r, uint64_t n);
/* A number of the kind that bounds are forgotten for. */
uint64_t odd_number(struct rng *r);
void mutate(struct rng *r, unsigned char *bytes, size_t n);

void put(unsigned char *at, unsigned int bytes, uint64_t value);
uint64_t get(const unsigned char *at, unsigned int bytes);
bool zero(const unsigned char *at, size_t n);
uint64_t now_ms(void);

/* volume.c */

void pattern(uint64_t *at, uint64_t sector, uint64_t count);
bool is_pattern(const uint64_t *at, uint64_t sector, uint64_t count);
int fill_or_check(bool fill, const char *path, uint64_t zone, uint64_t zone_count);

/* verbs.c */

struct connection {
	struct rdma_cm_id *id;
	struct rdma_event_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	unsigned int sends;
	bool broken;
	/* The session's admin queue pair, at a client. */
	struct connection *admin;
	unsigned char receive[RECEIVES][RECEIVE];
	unsigned char send[SENDS][SEND];
	void *owner;
};

/* Where data goes to, comes from, and what must stay here. */
extern struct ibv_mr *to[SLOTS], *from, *secret, *wide;

unsigned char *slot(unsigned int n);
/* What lies between the memory that was granted is as it was. */
void check_guards(void);
void post_receive(struct connection *c, unsigned int n);
/* The queue pair of a connection that is to be made; NULL: the peer, which asked for it, is gone already. */
struct connection *prepare(struct rdma_cm_id *id);
/* What the peer may write to, from this address on. */
struct ibv_mr *open_memory(void *at, size_t n, uint64_t address);
/* With no word to the peer but what the kernel says for everybody who goes. */
void destroy(struct connection *c);
/* Posts a SEND, or whatever else wr says; wr_id has a bit to tell it from a receive. */
void post(struct connection *c, struct ibv_send_wr *wr, struct ibv_sge *sge);
void post_message(struct connection *c, struct ibv_send_wr *wr, const unsigned char *bytes, size_t n);

int play_client(void);
int play_insistent(const char *stop);
/* With trick: none but that one. */
int play_target(const char *port, const char *trick);
int play_victim(const char *directory, const char *stop);

#endif
