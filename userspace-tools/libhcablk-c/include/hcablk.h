/* SPDX-License-Identifier: GPL-2.0 */
/*
 * hcablk.h: read and write volumes of an hcablk target from user space, over RDMA, without a
 * kernel module of hcablk on this machine. Link with -lhcablk.
 *
 * Objects. A program makes options, opens a volume with them, takes one queue for each thread
 * that does I/O, and registers memory for the data of requests.
 *
 * Threads. Use a queue, or an options object, from one thread at a time. Calls on other objects
 * are thread-safe, except that the call that closes or frees an object must not overlap any
 * other call on it. A queue takes no lock.
 *
 * Errors. A call that fails returns a negative error number, or NULL where it returns a
 * pointer; hcablk_error() then returns the reason as a sentence. When memory cannot be
 * allocated the program is aborted, as by a failed assertion.
 *
 * Units. Offsets and lengths are in bytes and must be multiples of the block size.
 *
 * Lost sessions. When the session is lost, the library connects a new one and issues the requests
 * again, so a write may be carried out twice. Requests wait for at most ctrl-loss-tmo seconds,
 * including those that were not issued yet; after that, or if no further session is possible, they
 * fail with -EIO, and the program can only close the volume. With fast-io-fail-tmo they fail
 * sooner, and the volume stays open. A volume without a wwid is never reconnected.
 *
 * Lost writes. If the target loses acknowledged writes that were not flushed, for example
 * because its machine rebooted, every flush and every write with HCABLK_FUA fails with -EIO
 * until the volume is closed. After a failed flush, treat all writes since the last successful
 * flush as lost.
 *
 * Time limits. A request that gets no response from the target within io-timeout seconds ends the session, and the next
 * one issues it again. A request that is late again and again, or whose sessions are lost, fails with -EIO at the
 * latest ctrl-loss-tmo + 2 * io-timeout seconds after it was first issued, if the program polls or waits. The volume
 * stays open. A write that failed this way may have been carried out, or may still be carried out; later writes of the
 * volume are carried out after it.
 *
 * fork(2). A child must not use what its parent has opened. The parent may fork if the kernel
 * copies pinned pages for the child (Linux 5.12 and later).
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
 * Returns the reason for this thread's most recent failure. The string is valid until the
 * thread's next call that fails.
 */
const char *hcablk_error(void);

/*
 * Makes options for a volume: the target's IPv4 or IPv6 address, the volume's name, and the id
 * of this host, a UUID (`hcablk host-id` prints it); white space around the id is ignored.
 * NULL: one of them is invalid.
 */
struct hcablk_options *hcablk_options_new(const char *address, const char *volume, const char *host_id);

/*
 * Sets an option by its name. Values are decimal numbers unless noted otherwise:
 *
 *	port		the target's port, 1 to 65535; default 7744
 *	path		another address of the target, ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT. Each
 *			time that it is set, up to 15 times, it adds a path. The volume uses one path
 *			at a time: when a session is lost, the next one uses the next path
 *	queues		number of queues, 1 to 127; default 1
 *	queue-depth	protocol requests in flight on each queue, 1 to 1024; default 128. A large or
 *			scattered request needs several. More requests may be submitted: they wait in
 *			the library. A device with short queues lowers it
 *	connect-timeout	seconds that opening may take, 1 to 3600; default 10
 *	ctrl-loss-tmo	seconds that the volume may be without a session, 0 to 4294967295; default
 *			600. 0: the volume ends when the session is lost
 *	fast-io-fail-tmo	seconds without a session after which waiting and new requests fail
 *			with -EIO, until there is a session again; 0 to 604800, or -1, the default:
 *			they wait until ctrl-loss-tmo is over
 *	reconnect-delay	seconds between attempts to reconnect, 1 to 3600; default 1
 *	keep-alive-tmo	seconds that the target may leave a keep-alive unanswered, 1 to 600; default 5
 *	io-timeout	seconds that the target may leave a request unanswered, 1 to 3600; default 30.
 *			After that the session ends, and the next one issues its requests again. A
 *			queue notices it when the program polls it or waits for it
 *	small-read	largest read that is copied, 0 to 8192 bytes; default 8192. With 0 a read is
 *			copied only if a window cannot cover its pieces
 *	eager-write	largest write whose data is sent to the target's ring, 0 to 65536 bytes;
 *			default 32768
 *	remote-invalidate	1: the target invalidates memory windows; 0: this host does; default 1
 *	host-key	this host's key, as `hcablk key show host` prints it
 *	target-key	the target's key. Both keys, or neither: then only volumes that are exported
 *			with --insecure can be opened
 *	session		session number, 1 to 4095, unique among this host's programs; default: the
 *			first free one. A program that continues the work of a killed program uses the
 *			same number: the target then ends the old session before it grants the new one
 *	past		what hcablk_past() has stored in a program that was killed, whose work this one
 *			continues. Opening fails with -ESTALE if the volume is a different one by now.
 *			Unflushed writes of the other program count as this one's
 *	state		directory of session numbers, the same for all programs of this host; default
 *			/run/hcablk/sessions
 *
 * Returns 0, or -EINVAL; the option then keeps its value.
 */
int hcablk_options_set(struct hcablk_options *options, const char *name, const char *value);

/* Frees options. Volumes that were opened with them stay open. */
void hcablk_options_free(struct hcablk_options *options);

/*
 * Opens a volume: connects all of its queues. Sleeps, for at most connect-timeout. Returns 0
 * and sets *volume, or fails.
 */
int hcablk_open(const struct hcablk_options *options, struct hcablk_volume **volume);

/*
 * Closes a volume; the pointer is invalid then. Requests in flight fail with -EIO. Queues and
 * memory remain: queues may still be polled for ended requests, and both are freed by their own
 * calls.
 */
void hcablk_close(struct hcablk_volume *volume);

/*
 * Returns the size in bytes that the target has reported last. A volume may grow and shrink
 * while it is open.
 */
uint64_t hcablk_size(struct hcablk_volume *volume);

/* Returns the bytes of a logical block: 512, 1024, 2048 or 4096. */
uint32_t hcablk_block_size(struct hcablk_volume *volume);

/* Returns whether writes are refused at this moment. */
bool hcablk_is_read_only(struct hcablk_volume *volume);

/*
 * Returns whether acknowledged writes are durable only after a flush. That can change from
 * false to true while the volume is open, so programs should flush in any case: the library
 * sends flushes that are not needed, too.
 */
bool hcablk_has_write_cache(struct hcablk_volume *volume);

/*
 * Returns why there is no session at this moment, as a negative error number, and sets
 * hcablk_error(); 0: there is one.
 */
int hcablk_failure(struct hcablk_volume *volume);

/*
 * Returns why the volume has ended for good, in the same way; 0: it has a session or is
 * reconnecting.
 */
int hcablk_ended(struct hcablk_volume *volume);

/* Returns whether flushes fail because the target has lost writes. */
bool hcablk_has_lost_writes(struct hcablk_volume *volume);

/*
 * For programs that continue the work of a killed one. hcablk_session() returns the volume's
 * session number, for the option session. hcablk_past() stores the state that a successor needs
 * to know whether writes are lost, for the option past: text with a null byte, together at most
 * HCABLK_PAST_SIZE bytes. It returns the length of the text without the null byte; -ERANGE:
 * `size` is too small; -EOPNOTSUPP: the volume has no wwid.
 *
 * A program stores both where they outlive it, before its first write: in a new file, which it
 * renames, so that a successor finds all of one text. The state changes with each session, and
 * when writes are lost: ask again now and then, and store what has changed. If the program is
 * killed before that, its successor assumes that writes are lost. Stored state is
 * not needed any more when the volume was flushed and closed.
 */
#define HCABLK_PAST_SIZE 128
int hcablk_session(struct hcablk_volume *volume);
int hcablk_past(struct hcablk_volume *volume, char *text, size_t size);

/*
 * hcablk_reserve() reserves a session number that hcablk_session() has returned for a volume that
 * was opened with the same option state. If the program is killed, other programs do not get the
 * number, unless they set both session and past. hcablk_release() releases the reservation, if
 * there is one. Call it when no program has to continue the work. A restart of the machine also
 * releases it. Both return 0, or a negative error number.
 */
int hcablk_reserve(const struct hcablk_options *options, int session);
int hcablk_release(const struct hcablk_options *options, int session);

/* Takes a queue. NULL: all of them were taken. */
struct hcablk_queue *hcablk_queue_take(struct hcablk_volume *volume);

/*
 * Frees a queue. Pending requests are dropped without a completion, and their flags are not
 * set. When the call returns, neither the device nor the target accesses their memory.
 */
void hcablk_queue_free(struct hcablk_queue *queue);

/*
 * Registers memory for requests: the program's own, which must be initialized and must stay
 * until it is unregistered, or, with NULL, new memory, page-aligned and zeroed. It counts
 * against the limit of locked memory (RLIMIT_MEMLOCK). The target can access only the pieces of
 * requests in flight; on soft-RoCE it can access the whole region while any request uses a
 * piece of it.
 */
struct hcablk_memory *hcablk_memory_new(struct hcablk_volume *volume, void *memory, size_t length);

/* Returns where the memory begins. */
void *hcablk_memory_data(struct hcablk_memory *memory);

/*
 * Unregisters memory, and frees it if the library allocated it. -EBUSY: a request that uses it has not ended, or the
 * program has not polled since.
 */
int hcablk_memory_free(struct hcablk_memory *memory);

enum hcablk_op {
	HCABLK_READ = 1,
	HCABLK_WRITE,
	HCABLK_FLUSH,		/* make durable what was acknowledged before, on any queue */
	HCABLK_DISCARD,		/* the content is not needed any more: what is read then is undefined */
	HCABLK_ZEROES,		/* write zeroes */
};

/* A flag that the operation does not have is refused with -EINVAL. */
enum hcablk_flags {
	HCABLK_FUA = 1,		/* of a write: acknowledge it when it is durable */
	HCABLK_EVENT = 2,	/* report the completion by the queue's descriptor, see hcablk_arm() */
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
	/* Length of a discard or zeroes. Reads and writes have the length of their pieces. */
	uint64_t length;
	/* Any number, of any lengths, together whole blocks. The call copies the array. */
	const struct hcablk_piece *pieces;
	size_t count;		/* of pieces */
	/* NULL, or set to 1 by hcablk_poll() or hcablk_wait() when it finds the completion. */
	uint32_t *flag;
	uint64_t user_data;	/* comes back with the completion */
};

struct hcablk_completion {
	uint64_t user_data;
	int32_t error;		/* 0, or a negative error number; strerror(3) has the words */
	uint32_t reserved;
};

/*
 * Submits requests; they share a doorbell. Returns the number of requests submitted. It stops at the first invalid
 * request; hcablk_error() returns the reason. If none was submitted before it, the call returns its error.
 *
 * Until a request has completed the program must not touch its memory, but may read that of a
 * write. Requests complete in any order, and requests that overlap are carried out in any
 * order. A large request may be carried out in part when it fails.
 */
int hcablk_submit(struct hcablk_queue *queue, const struct hcablk_request *requests, unsigned int count);

/*
 * Looks for completions, and sets the flags of all that it finds. Returns how many it has
 * stored in `completions`, at most `most`; later calls return the others. It makes no system
 * call of the library's own.
 */
int hcablk_poll(struct hcablk_queue *queue, struct hcablk_completion *completions, unsigned int most);

/*
 * Waits until a request has completed, for at most timeout_ms milliseconds, and returns the same as hcablk_poll(). A
 * negative time waits without limit, and returns 0 at once when no request is in flight.
 */
int hcablk_wait(struct hcablk_queue *queue, struct hcablk_completion *completions, unsigned int most, int timeout_ms);

/*
 * For programs with an event loop of their own. hcablk_fd() returns the queue's descriptor,
 * which stays the same. hcablk_arm() returns the number of requests that have already
 * completed; after it has returned 0 the descriptor becomes readable (level-triggered) when a
 * request with HCABLK_EVENT completes, and when the library itself must act, for example after
 * the session is lost. So:
 *
 *	while (hcablk_arm(queue) > 0)
 *		handle the completions that hcablk_poll() returns;
 *	wait with poll(2), epoll(7) or io_uring for the descriptor; begin again
 *
 * It may become readable although nothing has completed.
 */
int hcablk_fd(struct hcablk_queue *queue);
int hcablk_arm(struct hcablk_queue *queue);

/*
 * Synchronous calls, with memory of any kind. They copy through 1 MiB of registered memory, which
 * the first of them allocates. Longer transfers are split, and may fail after a part was done.
 * Submitted requests continue meanwhile; hcablk_poll() returns their completions. The calls poll,
 * or wait for events after hcablk_wait_by_events(queue, true). hcablk_zeroes() accepts the flag
 * HCABLK_KEEP only.
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
