// SPDX-License-Identifier: GPL-2.0
/* What the malicious target and its tricks share. */

#ifndef TARGET_H
#define TARGET_H

#include "hostile.h"

enum {
	CREDITS = 8, CAPACITY = 64 << 20, DEAD = 8, TAGS = 64,
	/* Bytes behind a message's first request. */
	BEHIND = 3 * REQUEST,
	/*
	 * At once would be a race that soft-RoCE does not win: it looks whether a
	 * key is valid and copies then, whoever takes the key away between the two.
	 */
	LATE_MS = 50,
};

/* What a malicious target does beside serving; malicious_target.c has the table. */
enum trick {
	FAIR,
	/* With a connection request. */
	REFUSE, HANG_UP, IGNORE, REPLY_WRONG, EAGER, VANISH, WRONG_RING,
	/* With a request. */
	REACH, LEAVE, SILENT, NOPLESS, PARTIAL, EARLY, LATE,
	/* With its answer. */
	STATUS, IMMEDIATE, LEAN, MUTATE, SHORT, LONG, OPCODE, FLAGS, UNKNOWN, RESERVED, TAG, OVERDRAW, TWICE, REPLAY,
	KEY, OTHER_KEY, EMPTY, MISER, UNASKED, OTHER_LENGTH, OTHER_VALUE,
	/* With that to an eager write. */
	HOLD, EAGER_STATUS, EAGER_VALUE, EAGER_FORGED, EAGER_TWICE, EAGER_OVERDRAW, EAGER_FORM, EAGER_RESPONSE,
	EAGER_KEY, EAGER_AHEAD,
	/* With that to a message on the admin queue pair. */
	ADMIN_LENGTH, ADMIN_OPCODE, ADMIN_TAG, ADMIN_TWICE, ADMIN_STATUS, ADMIN_RESERVED, ADMIN_SAME, ADMIN_SIZE, ADMIN_VALUE, ADMIN_GONE,
	ADMIN_LEAVE, ADMIN_SILENT,
	TRICKS
};

enum stage { CONNECTING, SERVING, ANSWERING, EAGERLY, ADMINISTERING };

struct request {
	bool used, begun, answered;
	/* Its memory, from 1. */
	unsigned int slot;
	uint64_t message;
	/* When its memory is accessed once more, though it was answered. */
	uint64_t late_at;
	/* It is an eager write: until when it is not answered, where its slot begins, its number, and whether it came with an immediate value, not a request. */
	uint64_t held_until;
	uint32_t ring_offset;
	uint16_t number;
	bool immediate;
	enum trick trick;
	unsigned char bytes[REQUEST];
};

/* An eager ring, and which of it is taken. */
struct ring {
	unsigned char *memory;
	struct ibv_mr *mr;
	uint32_t bytes, end, used, taken[CREDITS];
	uint16_t oldest, next;
	bool busy[CREDITS];
	/* Something was answered, so that it may be written. */
	bool open;
};

/* A queue pair of an initiator. */
struct peer {
	struct connection *c;
	enum trick trick;
	unsigned char session[12];
	/* It is the admin queue pair; how many messages of each kind came by it, and whether it is answered no more. */
	bool admin, mute;
	unsigned int asked[5];
	/* The generation of the portals that it was told last. */
	uint32_t portals;
	/* What was granted first, what the initiator has at most, what it will get later. */
	unsigned int credits, held, owed;
	/* Bytes of more requests that may follow the first of a message. */
	unsigned int behind;
	bool miser;
	/* When it must be over at last, since which message, and because of what. */
	uint64_t end_by, blame;
	/* Or it need not be over. */
	bool may_stay;
	struct ring ring;
	bool no_read;
	const char *why;
	struct request requests[SLOTS];
	/* Keys that were taken away, and the last one of each tag. */
	struct key {
		uint32_t key;
		uint64_t address;
	} dead[DEAD], last[TAGS];
	unsigned int dead_count;
	/* The key of its small reads. */
	uint32_t bounce_key;
	bool has_answered;
	unsigned char answer[RESPONSE];
};

/* What comes back with completions; the lower half is the request's number. */
enum { W_ANSWER = 1, W_FETCH, W_OTHER, W_LAST, W_LATE_READ, W_FORBIDDEN };

static inline uint64_t work_id(unsigned int kind, unsigned int i)
{
	return (uint64_t)kind << 32 | i;
}

extern uint64_t administered, early, values, immediate, by_request, at_once;

/* The initiator has to end the session because of what is done now. */
void expect_end(struct peer *p, const char *why);
void rdma(struct peer *p, enum ibv_wr_opcode opcode, uint64_t id, void *at, uint64_t remote, uint32_t key, size_t n);
bool in_flight(const struct peer *p, const unsigned char *tag);
void free_request(struct peer *p, unsigned int i);

/* Into a region that stays, and to be answered by an immediate value. */
static inline bool uses_read_bounce(const struct request *q)
{
	return q->bytes[32] == BY_VALUE;
}

/* Its data is in the eager ring. */
static inline bool is_eager(const struct request *q)
{
	return q->bytes[32] == EAGER_RING;
}

/* reply.c */

void make_reply(struct rng *r, enum trick trick, const unsigned char *request, unsigned char *reply, unsigned char *n);
/* What an initiator must do with a reply: take it or not. */
bool good_reply(const unsigned char *reply, const unsigned char *request);

/* admin.c */

/* Answers a message on the admin queue pair, for better or worse. */
void take_admin(struct peer *p, const unsigned char *b, size_t n);

/* eager.c */

void offer_ring(struct rng *r, unsigned char *reply);
void make_ring(struct peer *p, struct rng *r, unsigned char *reply);
void free_ring(struct peer *p);
bool is_eager_request(const struct peer *p, const unsigned char *request);
void take_slot(struct peer *p, struct request *q);
void immediate_request(const struct peer *p, const struct ibv_wc *wc, unsigned char *request);
void check_eager(const struct peer *p, const struct request *q);
void answer_eager(struct peer *p, unsigned int i);

/* malicious_target.c */

/* FAIR when there is none of this name. */
enum trick trick_named(const char *name);
const char *trick_name(enum trick trick);
void choose_only(enum trick trick);
/* A request for nothing, which takes the only credit, is not answered. */
bool is_nopless(void);
/* There is an eager ring on every queue pair. */
bool grants_always(void);
/* The key of another request that is under way, or 0. */
uint32_t other_key(const struct peer *p, unsigned int i);
enum trick pick(struct rng *r, enum stage stage, uint64_t n);
void speak_first(struct peer *p, struct rng *r);
/* Reaches for memory that request i does not grant. */
void reach_out(struct peer *p, struct rng *r, unsigned int i);
/* Moves a read's data, less than all of it if so wanted; the last piece has this id. */
void send_data(struct peer *p, unsigned int i, uint64_t length, uint64_t id);
/* Accesses the memory of request i, which was answered without an invalidation. */
void come_late(struct peer *p, unsigned int i);
/* Answers request i, for better or worse; its data was moved. */
void answer(struct peer *p, unsigned int i);

#endif
