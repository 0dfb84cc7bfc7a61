/* SPDX-License-Identifier: GPL-2.0 */
/*
 * hcablk.h: volumes of an hcablk target in user space, by RDMA verbs, without a
 * kernel module of hcablk's on this machine. Link with -lhcablk.
 *
 * A program opens a volume, and takes a queue for each thread that does I/O.
 * A queue takes no lock: one thread uses it at a time. What a call of another
 * object does is said there; all calls but those on queues and options may be made by any
 * thread at any time.
 *
 * Calls that can fail return 0 (or a count), or an error number that is negative;
 * hcablk_error() has the same in words. Offsets and lengths are in bytes, and
 * multiples of the volume's block size.
 *
 * When the session is lost another one is connected, and requests are issued again by
 * that; they wait meanwhile, ctrl-loss-tmo seconds at most. Then, or if no session may
 * follow, they fail with -EIO, and the program can only close the volume.
 *
 * If the target has forgotten writes that it had acknowledged and that no flush had
 * covered, every flush and every write with HCABLK_FUA fails with -EIO from then on, until the volume is
 * closed: a program that sees a flush fail takes all writes since its last good flush for lost.
 *
 * A child of fork(2) must not use what its parent has opened.
 */
#ifndef HCABLK_H
#define HCABLK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hcablk_options;
struct hcablk_volume;
struct hcablk_queue;
struct hcablk_memory;

/*
 * Why the last call of this thread that failed has failed: a sentence, valid
 * until the next one does.
 */
const char *hcablk_error(void);

/*
 * What to open: a volume by its name, of the target at an IPv4 or IPv6 address,
 * as the host of this id, a UUID (/etc/hcablk/host_id). NULL: one of them is not
 * what it should be, or memory is short.
 */
struct hcablk_options *hcablk_options_new(const char *address, const char *volume, const char *host_id);

/*
 * Sets an option by its name:
 *
 *	port			of the target; 7744
 *	queues			how many queues there are, 1 to 127; 1
 *	queue-depth		requests in flight on each, 1 to 1024; 128
 *	connect-timeout		seconds, 1 to 3600; 10
 *	ctrl-loss-tmo		seconds that there may be no session, 0 or more; 600
 *	reconnect-delay		seconds between attempts to connect again, 1 to 3600; 1
 *	keep-alive-tmo		seconds that the target may be silent, 1 to 600; 5
 *	small-read		bytes up to which reads are copied, 0 to 8192; 8192
 *	eager-write		bytes up to which data of writes goes to the target's
 *				ring, 0 to 65536; 32768
 *	remote-invalidate	1: the target invalidates windows; 1
 *	host-key, target-key	as `hcablk key show` prints them: both sides prove who they are
 *	session			number of the session among those of this host's programs, 1 to 4095; one that is free.
 *				A program that goes on with the work of one that was killed has the same: the
 *				target ends what is left of the other's session before
 *	state			directory of session ids; /run/hcablk/sessions
 */
int hcablk_options_set(struct hcablk_options *options, const char *name, const char *value);

void hcablk_options_free(struct hcablk_options *options);

/* Opens a volume: connects all of its queues. May take as long as connect-timeout. */
int hcablk_open(const struct hcablk_options *options, struct hcablk_volume **volume);

/* Closes a volume. Requests on its queues fail; the queues and memory are freed by their own calls. */
void hcablk_close(struct hcablk_volume *volume);

/* Bytes, as the target has reported them last: a volume may grow. */
uint64_t hcablk_size(struct hcablk_volume *volume);

/* Bytes of a logical block, a power of two from 512 on. */
uint32_t hcablk_block_size(struct hcablk_volume *volume);

bool hcablk_is_read_only(struct hcablk_volume *volume);

/* Whether what is acknowledged is durable only after a flush. */
bool hcablk_has_write_cache(struct hcablk_volume *volume);

/* Why there is no session at this moment, as a negative error number, with hcablk_error(); 0: there is one. */
int hcablk_failure(struct hcablk_volume *volume);

/* The same if no session comes any more; 0: there is one, or another one is being connected. */
int hcablk_ended(struct hcablk_volume *volume);

/* Whether flushes fail since the target has lost writes, see above. */
bool hcablk_has_lost_writes(struct hcablk_volume *volume);

/* Takes a queue; NULL: all were taken. */
struct hcablk_queue *hcablk_queue_take(struct hcablk_volume *volume);

/* Frees a queue. Its requests end without telling; nothing reaches their memory when this returns. */
void hcablk_queue_free(struct hcablk_queue *queue);

/*
 * Registers memory for requests: memory of the program's, or, with NULL, new
 * memory that begins at a page and is all zeroes. The target reaches the parts of
 * requests in flight only; but on soft-RoCE, all of it while any request has a part.
 * Freeing fails with -EBUSY while a request has a part.
 */
struct hcablk_memory *hcablk_memory_new(struct hcablk_volume *volume, void *memory, size_t length);
void *hcablk_memory_data(struct hcablk_memory *memory);
int hcablk_memory_free(struct hcablk_memory *memory);

enum hcablk_op {
	HCABLK_READ = 1,
	HCABLK_WRITE,
	HCABLK_FLUSH,		/* makes durable what was acknowledged before, by whichever queue */
	HCABLK_DISCARD,
	HCABLK_ZEROES,
};

enum hcablk_flags {
	HCABLK_FUA = 1,		/* of a write: it is acknowledged when it is durable */
	HCABLK_EVENT = 2,	/* the end makes the queue's descriptor readable */
	HCABLK_KEEP = 4,	/* of zeroes: the blocks stay allocated */
};

/* A part of registered memory. */
struct hcablk_piece {
	struct hcablk_memory *memory;
	size_t offset;
	size_t length;
};

struct hcablk_request {
	uint32_t op;		/* enum hcablk_op */
	uint32_t flags;		/* enum hcablk_flags */
	uint64_t offset;
	uint64_t length;	/* of a discard or zeroes; those of others are in pieces */
	const struct hcablk_piece *pieces;	/* copied by the call */
	size_t count;		/* of pieces: any number, of any lengths */
	uint32_t *flag;		/* NULL, or set to 1 when it has ended, by hcablk_poll() or hcablk_wait() */
	uint64_t user_data;
};

struct hcablk_completion {
	uint64_t user_data;
	int32_t error;		/* 0, or a negative error number */
	uint32_t reserved;
};

/*
 * Submits requests, which share a doorbell. Returns how many: fewer if one makes no
 * sense, for which the error is returned if it is the first.
 * Until a request has ended the program leaves its memory alone: of a write it
 * may read it.
 */
int hcablk_submit(struct hcablk_queue *queue, const struct hcablk_request *requests, unsigned int count);

/* Looks for ends, without a system call of this library's; returns how many are told. */
int hcablk_poll(struct hcablk_queue *queue, struct hcablk_completion *completions, unsigned int most);

/* As hcablk_poll(), but waits for one end, so many milliseconds at most; -1: for ever. */
int hcablk_wait(struct hcablk_queue *queue, struct hcablk_completion *completions, unsigned int most, int timeout_ms);

/*
 * The queue's descriptor, for poll(2), epoll(7) or io_uring. After hcablk_arm() has returned 0
 * it becomes readable at the next end of a request with HCABLK_EVENT, and when there is something
 * for the library to do, as when the session is lost: then hcablk_poll() does it, and tells what has ended.
 * hcablk_arm() returns how many have ended already. The descriptor stays the same.
 */
int hcablk_fd(struct hcablk_queue *queue);
int hcablk_arm(struct hcablk_queue *queue);

/*
 * Synchronous calls, on memory of any kind, which is copied. Requests that were
 * submitted go on meanwhile, and are told by hcablk_poll(). They poll, or wait by
 * events if that was set.
 */
int hcablk_read(struct hcablk_queue *queue, void *bytes, size_t length, uint64_t offset);
int hcablk_write(struct hcablk_queue *queue, const void *bytes, size_t length, uint64_t offset);
int hcablk_flush(struct hcablk_queue *queue);
int hcablk_discard(struct hcablk_queue *queue, uint64_t offset, uint64_t length);
int hcablk_zeroes(struct hcablk_queue *queue, uint64_t offset, uint64_t length, uint32_t flags);
void hcablk_wait_by_events(struct hcablk_queue *queue, bool by_events);

#ifdef __cplusplus
}
#endif

#endif
