// SPDX-License-Identifier: GPL-2.0
/* Uses the device of an initiator that is connected to the malicious target. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <linux/aio_abi.h>
#include <linux/fs.h>
#include "hostile.h"

enum { USERS = 6, REQUESTS = 400, GIVE_UP = 4, HANG_S = 90, PAGE = 4096, ERRORS = 32, READS_AT_ONCE = 6 };

static char disk[64];
static uint64_t disk_size;
static unsigned long long good_reads, stale_reads, bad_reads, good_writes, bad_writes;
static volatile time_t busy_since[USERS];

/* The texts that the attribute error had, and how often each. */
static struct {
	char text[200];
	unsigned int times;
} errors[ERRORS];

static void words(uint64_t *at, size_t bytes, uint64_t word)
{
	for (size_t i = 0; i < bytes / 8; i++)
		at[i] = word;
}

static bool is_all(const uint64_t *at, size_t bytes, uint64_t word)
{
	for (size_t i = 0; i < bytes / 8; i++)
		if (at[i] != word)
			return false;
	return true;
}

/* Fails if a word is neither the pattern's nor untouched; returns the number of untouched words. */
static size_t untouched(const uint64_t *at, uint64_t from, size_t bytes)
{
	static __thread uint64_t right[SLOT / 8];
	size_t n = 0;

	pattern(right, from / SECTOR, bytes / SECTOR);
	for (size_t i = 0; i < bytes / 8; i++) {
		if (at[i] == PRIVATE)
			n++;
		else if (at[i] != right[i])
			failed("a read at %llu returned data that was never sent", (unsigned long long)from);
	}
	return n;
}

/* Checks the data of a read. */
static void judge_read(const uint64_t *data, uint64_t from, size_t n, ssize_t got)
{
	size_t left = untouched(data, from, n);

	/* A disk that is being removed returns 0 bytes. */
	__atomic_fetch_add(got != (ssize_t)n ? &bad_reads : left ? &stale_reads : &good_reads, 1, __ATOMIC_RELAXED);
}

/* Submits several reads at once, so that they may share a message. */
static bool read_at_once(struct rng *r, int fd, uint64_t *arena, aio_context_t aio)
{
	struct iocb reads[READS_AT_ONCE] = {}, *list[READS_AT_ONCE];
	struct io_event events[READS_AT_ONCE];
	unsigned int n = 2 + below(r, READS_AT_ONCE - 1);
	/* Reads of the second size are registered. */
	size_t bytes = PAGE * (1 + below(r, 2));
	int begun, bad = 0;

	for (unsigned int i = 0; i < n; i++) {
		list[i] = &reads[i];
		reads[i].aio_data = i;
		reads[i].aio_lio_opcode = IOCB_CMD_PREAD;
		reads[i].aio_fildes = fd;
		/* The pages between those of two reads are unused. */
		reads[i].aio_buf = (uintptr_t)(arena + (PAGE + i * (PAGE + bytes)) / 8);
		reads[i].aio_nbytes = bytes;
		reads[i].aio_offset = disk_size < bytes ? 0 : below(r, (disk_size - bytes) / PAGE + 1) * PAGE;
	}
	begun = syscall(SYS_io_submit, aio, n, list);
	if (begun <= 0)
		return false;
	if (syscall(SYS_io_getevents, aio, begun, begun, events, NULL) != begun)
		failed("waiting for %d reads: %s", begun, strerror(errno));
	for (int i = 0; i < begun; i++) {
		const struct iocb *one = &reads[events[i].data];

		judge_read((uint64_t *)(uintptr_t)one->aio_buf, one->aio_offset, bytes, events[i].res);
		words((uint64_t *)(uintptr_t)one->aio_buf, bytes, PRIVATE);
		bad += events[i].res != (ssize_t)bytes;
	}
	if (bad || chance(r, 200))
		usleep(2000);
	if (!is_all(arena, SLOT + 3 * PAGE, PRIVATE))
		failed("memory next to that of reads was written, or memory of a read after it had ended");
	return !bad;
}

/* Writes data; some writes must be on stable storage at once. */
static ssize_t write_out(struct rng *r, int fd, uint64_t *data, size_t n, uint64_t at)
{
	struct iovec piece = { data, n };

	return pwritev2(fd, &piece, 1, at, chance(r, 300) ? RWF_DSYNC : 0);
}

/* Makes a request, and checks its memory afterwards. */
static bool use(struct rng *r, int fd, uint64_t *arena)
{
	enum { READING, WRITING, FLUSHING } what = chance(r, 300) ? WRITING : chance(r, 30) ? FLUSHING : READING;
	size_t n = PAGE * (1 + (chance(r, 200) ? below(r, SLOT / PAGE) : 0));
	uint64_t at = n <= disk_size ? below(r, (disk_size - n) / PAGE + 1) * PAGE : 0;
	/* Not always page-aligned, so that memory next to it is not granted. */
	uint64_t *data = arena + PAGE / 8 + (chance(r, 500) ? below(r, PAGE / 8) : 0);
	size_t before = (char *)data - (char *)arena, after = SLOT + 3 * PAGE - before - n;
	ssize_t got;

	if (what == WRITING)
		pattern(data, at / SECTOR, n / SECTOR);
	else
		words(data, n, PRIVATE);
	got = what == WRITING ? write_out(r, fd, data, n, at) : what == READING ? pread(fd, data, n, at) : fsync(fd) ? -1 : 1;
	if (!is_all(arena, before, PRIVATE) || !is_all(data + n / 8, after, PRIVATE))
		failed("memory outside of a request was written");
	if (what == READING) {
		judge_read(data, at, n, got);
	} else if (what == WRITING) {
		if (got > 0 && !is_pattern(data, at / SECTOR, n / SECTOR))
			failed("memory of a write was written");
		__atomic_fetch_add(got > 0 ? &good_writes : &bad_writes, 1, __ATOMIC_RELAXED);
	}
	/* The request has ended: the peer may not access its memory from here on. */
	words(data, n, PRIVATE);
	if (got <= 0 || chance(r, 200)) {
		usleep(2000);
		if (!is_all(data, n, PRIVATE))
			failed("memory of a request that had ended was written");
	}
	return got > 0;
}

static void *use_disk(void *arg)
{
	unsigned int me = (uintptr_t)arg, bad = 0;
	struct rng r = stream('p' + me, number);
	uint64_t *arena = aligned_alloc(PAGE, SLOT + 3 * PAGE);
	int fd = open(disk, O_RDWR | O_DIRECT);
	aio_context_t aio = 0;

	if (fd < 0)
		fd = open(disk, O_RDONLY | O_DIRECT);
	if (syscall(SYS_io_setup, READS_AT_ONCE, &aio))
		failed("io_setup: %s", strerror(errno));
	if (fd >= 0 && arena) {
		words(arena, SLOT + 3 * PAGE, PRIVATE);
		for (unsigned int i = 0; i < REQUESTS && bad < GIVE_UP; i++) {
			busy_since[me] = time(NULL);
			bad += !(chance(&r, 200) ? read_at_once(&r, fd, arena, aio) : use(&r, fd, arena));
			busy_since[me] = 0;
		}
	}
	syscall(SYS_io_destroy, aio);
	if (fd >= 0)
		close(fd);
	free(arena);
	return NULL;
}

static void *watch(void *arg)
{
	for (;;) {
		sleep(1);
		for (unsigned int i = 0; i < USERS; i++) {
			time_t since = busy_since[i];

			if (since && time(NULL) - since > HANG_S)
				failed("a request does not end");
		}
	}
	return arg;
}

static bool attribute(const char *directory, const char *name, const char *write, char *read, size_t n)
{
	char path[256];
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	fd = open(path, write ? O_WRONLY : O_RDONLY);
	if (fd < 0)
		failed("%s: %s", path, strerror(errno));
	got = write ? pwrite(fd, write, strlen(write), 0) : pread(fd, read, n - 1, 0);
	close(fd);
	if (!write) {
		read[got > 0 ? got : 0] = 0;
		read[strcspn(read, "\n")] = 0;
	}
	return got > 0;
}

/* Returns whether two texts differ only in the queue, tag and key. */
static bool same_error(const char *one, const char *other)
{
	const char *end = strstr(one, " (queue ");

	return end ? !strncmp(one, other, end - one + 1) : !strcmp(one, other);
}

static void note_error(const char *directory)
{
	unsigned int i = 0;
	char text[200];

	attribute(directory, "error", NULL, text, sizeof(text));
	if (!text[0])
		return;
	while (i < ERRORS - 1 && errors[i].times && !same_error(errors[i].text, text))
		i++;
	strcpy(errors[i].text, text);
	errors[i].times++;
}

static void use_device(const char *directory)
{
	pthread_t users[USERS];
	char text[64];
	int fd;

	attribute(directory, "device", NULL, text, sizeof(text));
	if (!text[0])
		return;
	snprintf(disk, sizeof(disk), "/dev/%.20s", text);
	fd = open(disk, O_RDONLY);
	if (fd < 0)
		return;
	if (!ioctl(fd, BLKGETSIZE64, &disk_size)) {
		for (uintptr_t i = 0; i < USERS; i++)
			pthread_create(&users[i], NULL, use_disk, (void *)i);
		for (unsigned int i = 0; i < USERS; i++)
			pthread_join(users[i], NULL);
	}
	close(fd);
}

int play_victim(const char *directory, const char *stop)
{
	unsigned long long connected = 0, refused = 0;
	pthread_t watcher;
	char text[64];

	pthread_create(&watcher, NULL, watch, NULL);
	while (access(stop, F_OK)) {
		struct rng r = stream('s', ++number);

		attribute(directory, "remote_invalidate", chance(&r, 700) ? "1" : "0", NULL, 0);
		attribute(directory, "queue_depth", chance(&r, 700) ? "16" : chance(&r, 500) ? "2" : "1", NULL, 0);
		if (!attribute(directory, "enable", "1", NULL, 0)) {
			refused++;
			note_error(directory);
			usleep(5000);
			continue;
		}
		connected++;
		use_device(directory);
		for (uint64_t end = now_ms() + WAIT_TIMEOUT_MS;;) {
			attribute(directory, "state", NULL, text, sizeof(text));
			if (!strcmp(text, "new") || !strcmp(text, "failed"))
				break;
			attribute(directory, "enable", "0", NULL, 0);
			if (now_ms() > end)
				failed("the device stays %s", text);
			usleep(1000);
		}
		note_error(directory);
	}
	for (unsigned int i = 0; i < ERRORS && errors[i].times; i++)
		printf("%u times: %s\n", errors[i].times, errors[i].text);
	printf("passed %llu reads compared, %llu without data, %llu failed, %llu writes, %llu failed; %llu connections, "
	       "%llu not made\n", good_reads, stale_reads, bad_reads, good_writes, bad_writes, connected, refused);
	return 0;
}
