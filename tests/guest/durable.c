// SPDX-License-Identifier: GPL-2.0
/*
 * Writes numbered records to random places of a block device, flushes now and then, and checks which record each place
 * has after the target has lost its cache.
 *
 * hcablk-durable write DEVICE STATE SEED	until the file STATE.stop exists, or a flush fails
 * hcablk-durable check DEVICE STATE SEED back|through
 * hcablk-durable counts STATE			prints the numbers of acknowledged writes, of successful flushes, and of
 *						acknowledged blocks that no successful flush covers
 *
 * The writer opens the device with O_DIRECT. Each of its threads writes to its own places, one to sixteen blocks at
 * once; one more thread calls fsync. A block's record has a number, which grows with each write. STATE, a file on
 * tmpfs, has for each block the last number that was issued, the last one that was acknowledged, and the last one that
 * had been acknowledged before a successful fsync was called. When the writer is stopped, it calls fsync once
 * more. Its exit code is 0; 3 when a flush failed, after two more flushes with a write before each; 5 if one
 * of these succeeded; 1 on any other failure, such as of a write.
 *
 * The check reads all blocks. With `back` no record may be older than a successful fsync covers, with `through` none
 * older than was acknowledged; and none may be newer than was issued. It prints "lost=BLOCKS": the number of blocks
 * whose record is older than was acknowledged. Lost records are accepted: later checks do not expect them.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK 4096u
#define WORDS (BLOCK / sizeof(uint64_t))
#define WRITERS 4u
#define EACH 512u
#define BLOCKS (WRITERS * EACH)
#define MOST 16u
/* The largest number of writes between two flushes. */
#define INTERVAL 300u

struct state {
	uint64_t number, writes, flushes;
	struct block {
		uint64_t issued, acknowledged, covered;
	} blocks[BLOCKS];
};

static struct state *state;
static uint64_t seed;
static int fd;
static bool stop, failed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static uint64_t mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdu;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53u;
	return x ^ x >> 33;
}

static uint64_t next(uint64_t *random)
{
	return mix(*random += 0x9e3779b97f4a7c15u);
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

/* Fills a block: the first word is the number, the others depend on number, seed and place. */
static void fill(uint64_t *words, uint64_t block, uint64_t number)
{
	uint64_t random = mix(seed << 32 ^ block) ^ number;

	words[0] = number;
	for (unsigned int n = 1; n < WORDS; n++)
		words[n] = next(&random);
}

/* Returns the number of the record in a block; 0: no whole record of this seed. */
static uint64_t number_in(const uint64_t *words, uint64_t block)
{
	uint64_t wanted[WORDS];

	fill(wanted, block, words[0]);
	return words[0] && !memcmp(wanted, words, BLOCK) ? words[0] : 0;
}

static void *memory(size_t blocks)
{
	void *result;

	if (posix_memalign(&result, BLOCK, blocks * BLOCK))
		die("memory");
	return result;
}

static int write_records(unsigned int first, unsigned int count, uint64_t *buffer)
{
	uint64_t number;
	ssize_t done;

	pthread_mutex_lock(&lock);
	number = ++state->number;
	for (unsigned int n = first; n < first + count; n++)
		state->blocks[n].issued = number;
	pthread_mutex_unlock(&lock);
	for (unsigned int n = 0; n < count; n++)
		fill(buffer + n * WORDS, first + n, number);
	done = pwrite(fd, buffer, count * BLOCK, (off_t)first * BLOCK);
	if (done != (ssize_t)(count * BLOCK))
		return -1;
	pthread_mutex_lock(&lock);
	for (unsigned int n = first; n < first + count; n++)
		state->blocks[n].acknowledged = number;
	state->writes++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return 0;
}

static void *write_on(void *argument)
{
	unsigned int writer = (uintptr_t)argument;
	uint64_t random = mix(seed << 8 ^ writer) ^ state->number;
	uint64_t *buffer = memory(MOST);

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		unsigned int count = next(&random) % 4 ? 1 : 1 + next(&random) % MOST;
		unsigned int first = writer * EACH + next(&random) % (EACH - count + 1);

		if (write_records(first, count, buffer))
			die("a write failed");
	}
	free(buffer);
	return NULL;
}

/* Calls fsync. Returns true if it succeeded. */
static bool flush(void)
{
	static uint64_t covered[BLOCKS];

	pthread_mutex_lock(&lock);
	for (unsigned int n = 0; n < BLOCKS; n++)
		covered[n] = state->blocks[n].acknowledged;
	pthread_mutex_unlock(&lock);
	if (fsync(fd)) {
		if (errno != EIO)
			die("fsync");
		return false;
	}
	pthread_mutex_lock(&lock);
	for (unsigned int n = 0; n < BLOCKS; n++)
		state->blocks[n].covered = covered[n];
	state->flushes++;
	pthread_mutex_unlock(&lock);
	return true;
}

static void *flush_on(void *argument)
{
	uint64_t random = mix(seed << 8 ^ WRITERS) ^ state->number;

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		uint64_t until;

		pthread_mutex_lock(&lock);
		until = state->writes + next(&random) % INTERVAL;
		while (state->writes < until && !stop)
			pthread_cond_wait(&changed, &lock);
		pthread_mutex_unlock(&lock);
		failed = !flush();
		if (failed)
			__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	}
	return argument;
}

static void *wait_for_stop(void *argument)
{
	while (access(argument, F_OK))
		usleep(10000);
	pthread_mutex_lock(&lock);
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return NULL;
}

static int write_until_told(const char *device, const char *name)
{
	pthread_t threads[WRITERS + 1], stopper;
	uint64_t *buffer = memory(1);
	char *file;

	fd = open(device, O_RDWR | O_DIRECT);
	if (fd < 0)
		die(device);
	if (asprintf(&file, "%s.stop", name) < 0)
		return 1;
	if (pthread_create(&stopper, NULL, wait_for_stop, file))
		return 1;
	for (uintptr_t n = 0; n <= WRITERS; n++) {
		if (pthread_create(&threads[n], NULL, n < WRITERS ? write_on : flush_on, (void *)n))
			return 1;
	}
	for (unsigned int n = 0; n <= WRITERS; n++)
		pthread_join(threads[n], NULL);
	if (!failed)
		failed = !flush();
	if (!failed)
		return close(fd) ? 1 : 0;
	for (unsigned int n = 0; n < 2; n++) {
		if (write_records(n, 1, buffer))
			die("a write after the failed flush failed");
		if (flush()) {
			fprintf(stderr, "a flush succeeded after one had failed\n");
			return 5;
		}
	}
	return close(fd) ? 1 : 3;
}

static int check(const char *device, bool through)
{
	uint64_t *buffer = memory(BLOCKS);
	unsigned int lost = 0, wrong = 0;

	fd = open(device, O_RDONLY | O_DIRECT);
	if (fd < 0 || pread(fd, buffer, BLOCKS * BLOCK, 0) != BLOCKS * BLOCK)
		die(device);
	for (unsigned int n = 0; n < BLOCKS; n++) {
		struct block *block = &state->blocks[n];
		uint64_t found = number_in(buffer + n * WORDS, n);
		uint64_t least = through ? block->acknowledged : block->covered;

		if (found < least || found > block->issued) {
			printf("block %u has record %" PRIu64 ", not %" PRIu64 " (%s) to %" PRIu64 " (issued)\n", n, found,
				least, through ? "acknowledged" : "covered by a flush", block->issued);
			wrong++;
		}
		lost += found < block->acknowledged;
		block->acknowledged = found;
	}
	printf("lost=%u\n", lost);
	return wrong != 0;
}

static void print_counts(void)
{
	unsigned int uncovered = 0;

	for (unsigned int n = 0; n < BLOCKS; n++)
		uncovered += state->blocks[n].acknowledged > state->blocks[n].covered;
	printf("%" PRIu64 " %" PRIu64 " %u\n", state->writes, state->flushes, uncovered);
}

static void map_state(const char *name)
{
	int file = open(name, O_RDWR | O_CREAT, 0600);

	if (file < 0 || ftruncate(file, sizeof(*state)))
		die(name);
	state = mmap(NULL, sizeof(*state), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (state == MAP_FAILED)
		die(name);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "counts")) {
		map_state(argv[2]);
		print_counts();
		return 0;
	}
	if (argc < 5) {
		fprintf(stderr, "usage: hcablk-durable write|check|counts …\n");
		return 2;
	}
	map_state(argv[3]);
	seed = strtoull(argv[4], NULL, 0);
	if (argc == 6 && !strcmp(argv[1], "check"))
		return check(argv[2], !strcmp(argv[5], "through"));
	return argc == 5 && !strcmp(argv[1], "write") ? write_until_told(argv[2], argv[3]) : 2;
}
