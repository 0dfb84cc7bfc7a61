// SPDX-License-Identifier: GPL-2.0
/*
 * A drive that reorders.
 *
 * hcablk-reorder DEVICE MIB SEED MS
 *	serves an nbd device from memory, until it gets a signal. A write takes effect, and is
 *	answered, some time after it arrived: one of eight up to MS milliseconds later, the
 *	others at once, regardless of other writes. Reads are answered at once. It has no
 *	volatile cache. It reports each write that arrives while an earlier one of the same sectors is
 *	still held, and fails at the end: for a writer that waits for the answer before it writes a place again
 *	such a write is a write of the past.
 * hcablk-reorder DEVICE MIB hold SECTOR
 *	serves it in order, except for the first write of this sector alone: it prints "held", lets that write take effect at SIGUSR1
 *	and answers it at SIGUSR2.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <linux/nbd.h>

enum { SECTOR = 512, HELD = 512 };

struct held {
	uint64_t due, from;
	uint32_t length;
	char handle[8];
	unsigned char *data;
};

static struct held held[HELD];
static unsigned int count, overlaps;
static unsigned char *memory;
static uint64_t bytes, random_state;
static int device = -1, server = -1;
/* With `hold`: the place of the held write, and the signals received. */
static bool holds;
static uint64_t held_from;
static volatile sig_atomic_t may_take_effect, may_be_answered;

static void failed(const char *what)
{
	fprintf(stderr, "hcablk-reorder: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void end(int signal)
{
	(void)signal;
	ioctl(device, NBD_DISCONNECT);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* xorshift64* */
static uint64_t next_random(void)
{
	random_state ^= random_state >> 12;
	random_state ^= random_state << 25;
	random_state ^= random_state >> 27;
	return random_state * 0x2545f4914f6cdd1d >> 16;
}

static void send_all(const void *from, size_t length)
{
	for (size_t n = 0; n < length;) {
		ssize_t sent = send(server, (const char *)from + n, length - n, MSG_NOSIGNAL);

		if (sent < 0)
			failed("sending");
		n += sent;
	}
}

static bool receive_all(void *to, size_t length)
{
	return recv(server, to, length, MSG_WAITALL) == (ssize_t)length;
}

static void answer(const char *handle, const void *data, size_t length)
{
	struct nbd_reply reply = { .magic = htonl(NBD_REPLY_MAGIC) };

	memcpy(&reply.handle, handle, 8);
	send_all(&reply, sizeof(reply));
	if (length)
		send_all(data, length);
}

static void release(int signal)
{
	if (signal == SIGUSR1)
		may_take_effect = 1;
	else
		may_be_answered = 1;
}

/* Obeys the signals: only the held write waits. */
static int carry_out_held(void)
{
	if (may_take_effect)
		memcpy(memory + held[0].from, held[0].data, held[0].length);
	may_take_effect = 0;
	if (may_be_answered) {
		answer(held[0].handle, NULL, 0);
		free(held[0].data);
		count = 0;
		holds = false;
	}
	return -1;
}

/* Carries out the writes that are due; returns the milliseconds to the next one, or -1 if there is none. */
static int carry_out(void)
{
	if (holds && count == 1)
		return carry_out_held();
	for (;;) {
		struct held *first = NULL;
		uint64_t now = now_ns();

		for (unsigned int i = 0; i < count; i++)
			if (!first || held[i].due < first->due)
				first = &held[i];
		if (!first)
			return -1;
		if (first->due > now)
			return (first->due - now) / 1000000 + 1;
		memcpy(memory + first->from, first->data, first->length);
		answer(first->handle, NULL, 0);
		free(first->data);
		*first = held[--count];
	}
}

/* Reports held writes of the same bytes as the last write. */
static void look_for_overlaps(void)
{
	const struct held *last = &held[count - 1];

	for (unsigned int i = 0; i + 1 < count; i++) {
		if (held[i].from >= last->from + last->length || last->from >= held[i].from + held[i].length)
			continue;
		overlaps++;
		fprintf(stderr, "FAILED a write of %u bytes at %llu came while one of %u bytes at %llu was still held\n",
			last->length, (unsigned long long)last->from, held[i].length,
			(unsigned long long)held[i].from);
	}
}

/* Reads a request; returns false when the device is gone. */
static bool take(uint64_t most_ns)
{
	struct nbd_request request;
	uint64_t from;
	uint32_t length;

	if (!receive_all(&request, sizeof(request)) || request.magic != htonl(NBD_REQUEST_MAGIC))
		return false;
	from = be64toh(request.from);
	length = ntohl(request.len);
	switch (ntohl(request.type) & 0xffff) {
	case NBD_CMD_READ:
		if (from + length > bytes)
			failed("a read beyond the end");
		answer(request.handle, memory + from, length);
		return true;
	case NBD_CMD_WRITE: {
		struct held *write = &held[count++];

		if (from + length > bytes || count > HELD)
			failed("a write beyond the end, or too many");
		*write = (struct held){ .from = from, .length = length, .data = malloc(length), .due = now_ns() };
		if (!write->data || !receive_all(write->data, length))
			failed("a write's data");
		memcpy(write->handle, request.handle, 8);
		if (holds) {
			if (count == 1 && from == held_from && length == SECTOR) {
				puts("held");
				fflush(stdout);
				return true;
			}
			/* Apply it: the held write has not taken effect, or has already. */
			memcpy(memory + from, write->data, length);
			answer(write->handle, NULL, 0);
			free(write->data);
			count--;
			return true;
		}
		look_for_overlaps();
		if (next_random() % 8 == 0)
			write->due += next_random() % most_ns;
		return true;
	}
	default:
		return false;
	}
}

int main(int words, char **word)
{
	int pair[2];
	pid_t child;

	if (words != 5) {
		fprintf(stderr, "usage: hcablk-reorder DEVICE MIB SEED MS | hold SECTOR\n");
		return 2;
	}
	bytes = strtoull(word[2], NULL, 0) << 20;
	holds = !strcmp(word[3], "hold");
	held_from = strtoull(word[4], NULL, 0) * SECTOR;
	random_state = strtoull(word[3], NULL, 0) * 2 + 1;
	memory = calloc(1, bytes);
	device = open(word[1], O_RDWR);
	if (!memory || device < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		failed(word[1]);
	server = pair[1];
	if (ioctl(device, NBD_SET_BLKSIZE, (unsigned long)SECTOR) || ioctl(device, NBD_SET_SIZE_BLOCKS, bytes / SECTOR) ||
	    ioctl(device, NBD_CLEAR_SOCK) || ioctl(device, NBD_SET_SOCK, pair[0]) ||
	    ioctl(device, NBD_SET_FLAGS, (unsigned long)NBD_FLAG_HAS_FLAGS))
		failed("setting the device up");
	/* The child has the same name. */
	signal(SIGUSR1, SIG_IGN);
	signal(SIGUSR2, SIG_IGN);
	child = fork();
	if (child < 0)
		failed("fork");
	if (!child) {
		close(server);
		/* The ioctl returns when the device is disconnected. */
		ioctl(device, NBD_DO_IT);
		ioctl(device, NBD_CLEAR_SOCK);
		_exit(0);
	}
	close(pair[0]);
	signal(SIGTERM, end);
	signal(SIGINT, end);
	signal(SIGUSR1, release);
	signal(SIGUSR2, release);
	for (;;) {
		struct pollfd ready = { .fd = server, .events = POLLIN };
		int left = carry_out(), n = poll(&ready, 1, left);

		if (n < 0 && errno != EINTR)
			failed("poll");
		if (n > 0 && !take(strtoull(word[4], NULL, 0) * 1000000))
			return overlaps ? 1 : 0;
	}
}
