// SPDX-License-Identifier: GPL-2.0
/* Declarations that the malicious target and its tricks share. */

#ifndef TARGET_H
#define TARGET_H

#include "hostile.h"

enum {
	CREDITS = 8, CAPACITY = 64 << 20, DEAD = 8, TAGS = 64,
	/* Bytes that may follow a message's first request. */
	FOLLOWING_BYTES = 3 * REQUEST,
	/*
	 * Access after the answer only with this delay: soft-RoCE first checks a key and then
	 * copies, even if the key is invalidated in between.
	 */
	LATE_MS = 50,
};

/* The malicious target's tricks; malicious_target.c has the table. */
enum trick {
	FAIR,
	/* On a connection request. */
	REFUSE, HANG_UP, IGNORE, REPLY_WRONG, EAGER, VANISH, WRONG_RING,
	/* On a request. */
	REACH, LEAVE, SILENT, NOPLESS, PARTIAL, EARLY, LATE,
	/* On the answer to a request. */
	STATUS, IMMEDIATE, LEAN, MUTATE, SHORT, LONG, OPCODE, FLAGS, UNKNOWN, RESERVED, TAG, OVERDRAW, TWICE, REPLAY,
	KEY, OTHER_KEY, EMPTY, MISER, UNASKED, OTHER_LENGTH, OTHER_VALUE, GONE_ANSWER,
	/* On the answer to an eager write. */
	HOLD, EAGER_STATUS, EAGER_VALUE, EAGER_FORGED, EAGER_WRAPPED, EAGER_TWICE, EAGER_OVERDRAW, EAGER_FORM, EAGER_RESPONSE,
	EAGER_KEY, EAGER_AHEAD, EAGER_GONE,
	/* On the answer to a message on the admin queue pair. */
	ADMIN_LENGTH, ADMIN_OPCODE, ADMIN_TAG, ADMIN_TWICE, ADMIN_STATUS, ADMIN_RESERVED, ADMIN_SAME, ADMIN_SIZE, ADMIN_VALUE, ADMIN_GONE,
	ADMIN_LEAVE, ADMIN_SILENT,
	/* On the request to attach a volume. */
	ATTACH_LENGTH, ATTACH_FORM, ATTACH_HANDLE, ATTACH_SIZE, ATTACH_LARGE, ATTACH_RESERVED, ATTACH_REASON, ATTACH_REFUSED, ATTACH_TAG,
	ATTACH_TWICE, ATTACH_AHEAD,
	TRICKS
};

enum stage { CONNECTING, SERVING, ANSWERING, EAGERLY, ADMINISTERING, ATTACHING };

struct request {
	bool used, begun, answered;
	/* The request's memory, from 1. */
	unsigned int slot;
	uint64_t message;
	/* The time of a forbidden access to its memory after the answer. */
	uint64_t late_at;
	/* For eager writes: the time of the answer, the slot, the number, and whether it came by immediate value. */
	uint64_t held_until;
	uint32_t ring_offset;
	uint16_t number;
	bool immediate;
	enum trick trick;
	unsigned char bytes[REQUEST];
};

/* An eager ring, and its used part. */
struct ring {
	unsigned char *memory;
	struct ibv_mr *mr;
	uint32_t bytes, end, used, taken[CREDITS];
	uint16_t oldest, next;
	bool busy[CREDITS];
	/* The first answer was sent: the ring may be written. */
	bool open;
};

/* A queue pair of an initiator. */
struct peer {
	struct connection *c;
	enum trick trick;
	unsigned char session[12];
	/* The peer is the admin queue pair; its messages get no more answers; messages of each kind. */
	bool admin, mute;
	unsigned int asked[6];
	/* The session began without a volume; its volume is attached, with this handle. */
	bool of_host, attached;
	unsigned int handle;
	/* The last reported generation of the portals. */
	uint32_t portals;
	/* Credits: granted at first, held by the initiator at most, granted later. */
	unsigned int credits, held, owed;
	/* Bytes of requests that may follow the first in a message. */
	unsigned int behind;
	bool miser;
	/* The deadline for the end of the session, the message that caused it, and the reason. */
	uint64_t end_by, blame;
	/* The session may end, but need not. */
	bool may_stay;
	struct ring ring;
	bool no_read;
	const char *why;
	struct request requests[SLOTS];
	/* The invalidated keys, and the last one of each tag. */
	struct key {
		uint32_t key;
		uint64_t address;
	} dead[DEAD], last[TAGS];
	unsigned int dead_count;
	/* The key of the session's read bounce slots. */
	uint32_t bounce_key;
	bool has_answered;
	unsigned char answer[RESPONSE];
};

/* The upper half of wr_id; the lower half is the request's number. */
enum { W_ANSWER = 1, W_READ, W_OTHER, W_LAST, W_LATE_READ, W_FORBIDDEN };

static inline uint64_t work_id(unsigned int kind, unsigned int i)
{
	return (uint64_t)kind << 32 | i;
}

extern uint64_t administered, attached, early, values, immediate, by_request, at_once;

/* Notes that the initiator must end the session for this reason. */
void expect_end(struct peer *p, const char *why);
void rdma(struct peer *p, enum ibv_wr_opcode opcode, uint64_t id, void *at, uint64_t remote, uint32_t key, size_t n);
bool in_flight(const struct peer *p, const unsigned char *tag);
void free_request(struct peer *p, unsigned int i);

/* Returns whether a request is a small read, to be answered by an immediate value. */
static inline bool uses_read_bounce(const struct request *q)
{
	return q->bytes[32] == BY_VALUE;
}

/* Returns whether a request's data is in the eager ring. */
static inline bool is_eager(const struct request *q)
{
	return q->bytes[32] == EAGER_RING;
}

/* reply.c */

void make_reply(struct rng *r, enum trick trick, const unsigned char *request, unsigned char *reply, unsigned char *n);
/* Returns whether an initiator must accept a reply. */
bool good_reply(const unsigned char *reply, const unsigned char *request);

/* attach.c */

/* Answers a request to attach a volume, truly or falsely. */
void take_attach(struct peer *p, const unsigned char *b);
/* Sends an answer to a request to attach a volume that was not sent. */
void attach_unasked(struct peer *p, const unsigned char *tag);

/* admin.c */

/* Answers a message on the admin queue pair, truly or falsely. */
void handle_admin(struct peer *p, const unsigned char *b, size_t n);

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

/* Returns the trick of this name; FAIR if there is none. */
enum trick trick_named(const char *name);
const char *trick_name(enum trick trick);
void choose_only(enum trick trick);
/* Returns whether a NOP that takes the only credit is not answered. */
bool is_nopless(void);
/* Returns whether every session begins without a volume. */
bool attaches_always(void);
/* Returns whether every queue pair gets an eager ring. */
bool grants_always(void);
/* Returns the key of another request in flight, or 0. */
uint32_t other_key(const struct peer *p, unsigned int i);
enum trick pick(struct rng *r, enum stage stage, uint64_t n);
void speak_first(struct peer *p, struct rng *r);
/* Accesses memory that request i does not grant. */
void reach_out(struct peer *p, struct rng *r, unsigned int i);
/* Writes `length` bytes of a read's data; the last piece has this id. */
void send_data(struct peer *p, unsigned int i, uint64_t length, uint64_t id);
/* Accesses the memory of request i, which was answered without an invalidation. */
void come_late(struct peer *p, unsigned int i);
/* Returns a status of a failed request. */
unsigned int failure(struct rng *r);
/* Answers request i, whose data was moved, truly or falsely. */
void answer(struct peer *p, unsigned int i);

#endif
