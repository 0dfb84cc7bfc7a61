// SPDX-License-Identifier: GPL-2.0
/* Declarations that the parts of hcablk-hostile share; main.c describes the program. */

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
	/* Data that may follow a request, by the tested target's reply; the saved bytes of a message. */
	INLINE = 4096, KEPT = 160,
	/* The largest number of requests in a message: in the protocol, and in this program's messages. */
	MESSAGE_REQUESTS = 16, MESSAGE_REQUESTS_HERE = 4,
	CONNECT = 56, REPLY = 64, REJECT = 16,
	/* Memory for data in flight; message number n uses slot n % SLOTS. */
	SLOTS = 32, SLOT = 64 << 10, GUARD = 4 << 10,
	RECEIVES = 256, RECEIVE = 256, SENDS = 256, SEND = REQUEST + INLINE + 64,
	WAIT_TIMEOUT_MS = 40000,
	/* From this message on, cases that end a connection occur in SPARSE of a thousand messages. */
	DENSE = 1000, SPARSE = 50,
};

enum { READ = 1, WRITE, FLUSH, DISCARD, ZEROES, NOP };
/* Operations on the admin queue pair. */
enum { KEEP_ALIVE = 0x21, FENCE, WATCH, DURABLE, PORTALS, ATTACH, DETACH };
/* Its operations on reservations. */
enum { REGISTER = 0x30, RESERVE, RELEASE, PREEMPT, CLEAR, READ_KEY, READ_RESERVATION };
enum { ADMIN = 0xff, ADMIN_DEPTH = 8, ADMIN_ANSWER = 24, LIMITS_ANSWER = 64, TMO_MAX = 600 };
/* Flags: the queue replaces the existing one; the session resumes; the session is for one volume. */
enum { REPLACE = 0x80, RESUME = 0x8000, ALONE = 0x2000 };
/* Flags of a request: the answer need not wake up its reader; the write is atomic. */
enum { QUIET = 8, ATOMIC = 16 };
/* A bit of a reply: the target does no RDMA READs. */
enum { NO_READ = 2 };
/* A bit of the admin queue pair's reply: the target reports changes of its portals. */
enum { REPORTS_PORTALS = 8 };
/* Data paths: by key; a read's with an immediate value; a write's behind its request or through the eager ring. */
enum { KEYED = 1, BY_VALUE, FOLLOWS, EAGER_RING };
enum { OK, INVALID, UNSUPPORTED, OUT_OF_RANGE, READ_ONLY, GONE = 8, DRAINING, CONFLICT, STATUSES };
enum { MALFORMED = 1, VERSION, UNKNOWN_VOLUME, FORBIDDEN, NO_RESOURCES, STALE_EPOCH, NO_SESSION };
enum { CHALLENGE = 12, NOT_PROVEN };
/* Flags for a proof: in the field of the depth, and in that of the largest data length. */
enum { PROOF = 0x8000, PROVES = 0x4000 };
/* The peer's duty if it is not an answer with a status. */
enum { END = 1000, MAYBE };

#define POISON 0xa5
#define HOSTILE 0x454c4954534f4821ull
#define SECRET 0x5345435245543f3full
/* The content of the victim's memory without a request; the peer may not read or write it. */
#define PRIVATE 0x217079656b656570ull

/* basics.c */

extern uint64_t seed, messages, first, number;
extern const char *mode;
/* The last operation sent. */
extern unsigned int last_opcode;
extern size_t last_length;
extern unsigned char last_bytes[KEPT];

/* Prints the failure and the options that repeat it, and ends the program. */
__attribute__((noreturn, format(printf, 1, 2)))
void failed(const char *format, ...);
void print_bytes(const char *what, const unsigned char *bytes, size_t n);

struct rng {
	uint64_t state;
};

uint64_t next(struct rng *r);
uint64_t below(struct rng *r, uint64_t n);
bool chance(struct rng *r, unsigned int per_mille);
/* Returns a separate random stream for each purpose and number. */
struct rng stream(uint64_t purpose, uint64_t n);
/* Returns whether message n may be a case that ends the connection. */
bool may_cost(struct rng *r, uint64_t n);
/* Returns a number that careless bounds checks miss. */
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

/* Memory for received data, for sent data, and without a grant. */
extern struct ibv_mr *to[SLOTS], *from, *secret, *wide;

unsigned char *slot(unsigned int n);
/* Fails if memory between grants was written. */
void check_guards(void);
void post_receive(struct connection *c, unsigned int n);
/* Creates the queue pair of a new connection; returns NULL if the requesting peer has left. */
struct connection *prepare(struct rdma_cm_id *id);
/* Registers memory that the peer may write to, from this address on. */
struct ibv_mr *open_memory(void *at, size_t n, uint64_t address);
/* Destroys a connection; only the kernel's own disconnect reaches the peer. */
void destroy(struct connection *c);
/* Posts a SEND, or the operation of `wr`; a bit of wr_id distinguishes it from a receive. */
void post(struct connection *c, struct ibv_send_wr *wr, struct ibv_sge *sge);
void post_message(struct connection *c, struct ibv_send_wr *wr, const unsigned char *bytes, size_t n);

int play_client(void);
int play_insistent(const char *stop);
/* Plays the malicious target; with `trick`, that trick only. */
int play_target(const char *port, const char *trick);
int play_victim(const char *directory, const char *stop);

#endif
