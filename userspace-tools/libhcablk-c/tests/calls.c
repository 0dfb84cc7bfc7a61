// SPDX-License-Identifier: GPL-2.0
/*
 * Makes every call of the library on a volume of at least 64 MiB, which it writes to:
 *
 *	calls ADDRESS VOLUME HOST-ID
 */
#include <errno.h>
#include <hcablk.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, PIECES = 40 };

#define want(condition) \
	((condition) ? (void)0 : wrong(__LINE__, #condition))

static _Noreturn void wrong(int line, const char *condition)
{
	fprintf(stderr, "calls: line %d: not so: %s (last error: %s)\n", line, condition, hcablk_error());
	exit(1);
}

static unsigned char at(uint64_t offset, unsigned int version)
{
	return (offset >> 9) * 31 + offset + version;
}

static void fill(unsigned char *bytes, size_t length, uint64_t offset, unsigned int version)
{
	for (size_t n = 0; n < length; n++)
		bytes[n] = at(offset + n, version);
}

static bool has(const unsigned char *bytes, size_t length, uint64_t offset, unsigned int version)
{
	for (size_t n = 0; n < length; n++)
		if (bytes[n] != at(offset + n, version))
			return false;
	return true;
}

static void options(const char *address, const char *volume, const char *host, struct hcablk_options **made)
{
	want(!hcablk_options_new("nowhere", volume, host) && strstr(hcablk_error(), "address"));
	want(!hcablk_options_new(address, "a volume", host) && strstr(hcablk_error(), "volume"));
	want(!hcablk_options_new(address, volume, "me") && strstr(hcablk_error(), "host"));
	want(!hcablk_options_new(address, NULL, host));
	*made = hcablk_options_new(address, volume, host);
	want(*made);
	want(hcablk_options_set(*made, "queues", "2") == 0);
	want(hcablk_options_set(*made, "queue-depth", "16") == 0);
	want(hcablk_options_set(*made, "queue-depth", "0") == -EINVAL && strstr(hcablk_error(), "1 to 1024"));
	want(hcablk_options_set(*made, "size", "1") == -EINVAL && strstr(hcablk_error(), "no option"));
	want(hcablk_options_set(*made, NULL, "1") == -EINVAL);
	want(hcablk_open(NULL, NULL) == -EINVAL);

	struct hcablk_options *other = hcablk_options_new(address, "nosuch", host);
	struct hcablk_volume *nothing = NULL;

	want(other && hcablk_open(other, &nothing) == -ENOENT && !nothing);
	want(strstr(hcablk_error(), "no volume of this name"));
	hcablk_options_free(other);
}

/* Writes from the program's own memory, in pieces that are not whole blocks; a flag reports the completion. */
static void scattered(struct hcablk_volume *volume, struct hcablk_queue *queue)
{
	unsigned char *own = malloc(2 * MIB);
	struct hcablk_memory *memory = hcablk_memory_new(volume, own, 2 * MIB);
	struct hcablk_piece pieces[PIECES];
	struct hcablk_completion done;
	uint32_t flag = 0;
	size_t total = 0;

	want(own && memory && hcablk_memory_data(memory) == own);
	for (int n = 0; n < PIECES; n++) {
		size_t length = n == PIECES - 1 ? 512 - total % 512 : 100 + 777 * (size_t)n;

		pieces[n] = (struct hcablk_piece){ memory, total + 24 * n, length };
		fill(own + total + 24 * n, length, total, 1);
		total += length;
	}

	struct hcablk_request request = {
		.op = HCABLK_WRITE, .offset = 8 * MIB, .pieces = pieces, .count = PIECES, .flag = &flag, .user_data = 77,
	};

	want(hcablk_submit(queue, &request, 1) == 1);
	while (!flag) {
		if (hcablk_poll(queue, &done, 1))
			break;
		want(hcablk_memory_free(memory) == -EBUSY);
	}
	want(flag && done.user_data == 77 && !done.error);

	unsigned char *back = malloc(total);

	want(back && hcablk_read(queue, back, total, 8 * MIB) == 0 && has(back, total, 0, 1));
	free(back);
	want(hcablk_memory_free(memory) == 0);
	free(own);
}

/* Many requests at a time; the descriptor reports the completions. */
static void events(struct hcablk_volume *volume, struct hcablk_queue *queue)
{
	enum { COUNT = 64, LENGTH = 24 << 10 };
	struct hcablk_memory *memory = hcablk_memory_new(volume, NULL, COUNT * LENGTH);
	unsigned char *bytes = hcablk_memory_data(memory);
	bool ended[COUNT];

	want(memory && bytes);
	for (int op = HCABLK_WRITE; op >= HCABLK_READ; op--) {
		struct hcablk_request requests[COUNT] = { 0 };
		struct hcablk_piece pieces[COUNT];

		memset(ended, 0, sizeof(ended));
		for (int n = 0; n < COUNT; n++) {
			pieces[n] = (struct hcablk_piece){ memory, (size_t)n * LENGTH, LENGTH };
			requests[n].op = op;
			requests[n].flags = HCABLK_EVENT | (n % 2 && op == HCABLK_WRITE ? HCABLK_FUA : 0);
			requests[n].offset = 16 * MIB + (uint64_t)n * 2 * LENGTH;
			requests[n].pieces = &pieces[n];
			requests[n].count = 1;
			requests[n].user_data = n;
			if (op == HCABLK_WRITE)
				fill(bytes + n * LENGTH, LENGTH, n, 2);
		}
		if (op == HCABLK_READ)
			memset(bytes, 0, COUNT * LENGTH);
		want(hcablk_submit(queue, requests, COUNT) == COUNT);
		for (int left = COUNT; left;) {
			struct hcablk_completion done[8];
			int count;

			if (hcablk_arm(queue) == 0) {
				struct pollfd fd = { .fd = hcablk_fd(queue), .events = POLLIN };

				want(fd.fd >= 0 && poll(&fd, 1, 30000) == 1);
			}
			while ((count = hcablk_poll(queue, done, 8)) > 0) {
				for (int n = 0; n < count; n++) {
					want(!done[n].error && done[n].user_data < COUNT && !ended[done[n].user_data]);
					ended[done[n].user_data] = true;
				}
				left -= count;
			}
		}
	}
	for (int n = 0; n < COUNT; n++)
		want(has(bytes + n * LENGTH, LENGTH, n, 2));
	want(hcablk_memory_free(memory) == 0);
}

static void synchronous(struct hcablk_queue *queue)
{
	unsigned char bytes[4096];

	fill(bytes, sizeof(bytes), 0, 3);
	for (int by_events = 0; by_events < 2; by_events++) {
		hcablk_wait_by_events(queue, by_events);
		want(hcablk_write(queue, bytes, sizeof(bytes), 4 * MIB) == 0);
		want(hcablk_flush(queue) == 0);
		memset(bytes, 0, sizeof(bytes));
		want(hcablk_read(queue, bytes, sizeof(bytes), 4 * MIB) == 0 && has(bytes, sizeof(bytes), 0, 3));
	}
	int zeroed = hcablk_zeroes(queue, 4 * MIB, sizeof(bytes), HCABLK_KEEP);

	want(zeroed == 0 || zeroed == -EOPNOTSUPP);
	if (!zeroed) {
		want(hcablk_read(queue, bytes, sizeof(bytes), 4 * MIB) == 0);
		for (size_t n = 0; n < sizeof(bytes); n++)
			want(!bytes[n]);
	}
	int discarded = hcablk_discard(queue, 4 * MIB, MIB);

	want(discarded == 0 || discarded == -EOPNOTSUPP);
	want(hcablk_zeroes(queue, 0, 4096, HCABLK_FUA) == -EINVAL);
	want(hcablk_read(queue, NULL, 4096, 0) == -EINVAL);
	want(hcablk_read(queue, bytes, 100, 0) == -EINVAL);
	want(hcablk_read(queue, bytes, 4096, 1ULL << 62) == -EIO && strstr(hcablk_error(), "beyond the end"));
}

/* After a fork the parent continues with its memory; the child has its own copy of the memory, and
 * uses nothing else of it. */
static void forks(struct hcablk_volume *volume, struct hcablk_queue *queue)
{
	struct hcablk_memory *memory = hcablk_memory_new(volume, NULL, MIB);
	unsigned char *bytes = hcablk_memory_data(memory);
	struct hcablk_piece all = { memory, 0, MIB };
	struct hcablk_request request = { .op = HCABLK_WRITE, .offset = 32 * MIB, .pieces = &all, .count = 1 };
	struct hcablk_completion done;
	int pipes[2], status;

	want(memory && bytes && pipe(pipes) == 0);
	fill(bytes, MIB, 0, 5);
	want(hcablk_submit(queue, &request, 1) == 1);

	pid_t child = fork();

	want(child >= 0);
	if (!child) {
		char word;

		/* The parent has read into its own memory meanwhile, and written to it. */
		close(pipes[1]);
		_exit(read(pipes[0], &word, 1) == 1 && has(bytes, MIB, 0, 5) ? 0 : 1);
	}
	want(hcablk_wait(queue, &done, 1, -1) == 1 && !done.error);
	memset(bytes, 0, MIB);
	request.op = HCABLK_READ;
	want(hcablk_submit(queue, &request, 1) == 1);
	want(hcablk_wait(queue, &done, 1, -1) == 1 && !done.error && has(bytes, MIB, 0, 5));
	fill(bytes, MIB, 0, 6);
	request.op = HCABLK_WRITE;
	want(hcablk_submit(queue, &request, 1) == 1);
	want(hcablk_wait(queue, &done, 1, -1) == 1 && !done.error);
	memset(bytes, 0, MIB);
	want(hcablk_read(queue, bytes, MIB, 32 * MIB) == 0 && has(bytes, MIB, 0, 6));
	want(write(pipes[1], "w", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
	close(pipes[0]);
	close(pipes[1]);
	want(hcablk_memory_free(memory) == 0);
}

/* The state that a successor needs. */
static void leaves(struct hcablk_volume *volume, struct hcablk_options *options)
{
	char past[HCABLK_PAST_SIZE];
	int length = hcablk_past(volume, past, sizeof(past));

	want(length > 0 && (size_t)length == strlen(past));
	want(hcablk_past(volume, past, length) == -ERANGE && hcablk_past(volume, NULL, 99) == -EINVAL);
	want(hcablk_past(NULL, past, sizeof(past)) == -EINVAL && hcablk_session(NULL) == -EINVAL);
	want(hcablk_session(volume) >= 1 && hcablk_session(volume) <= 4095);
	want(hcablk_reserve(options, hcablk_session(volume)) == 0 && hcablk_release(options, hcablk_session(volume)) == 0);
	want(hcablk_reserve(NULL, 1) == -EINVAL && hcablk_reserve(options, 0) == -EINVAL && hcablk_release(options, 4096) == -EINVAL);
	want(hcablk_options_set(options, "past", past) == 0);
	want(hcablk_options_set(options, "past", "yesterday") == -EINVAL && strstr(hcablk_error(), "leaves of a volume"));
}

/* A nonsensical request is refused, and those before it continue. */
static void nonsense(struct hcablk_volume *volume, struct hcablk_queue *queue)
{
	struct hcablk_memory *memory = hcablk_memory_new(volume, NULL, 8192);
	struct hcablk_piece inside = { memory, 0, 4096 }, beyond = { memory, 8192, 4096 };
	struct hcablk_request requests[3] = {
		{ .op = HCABLK_READ, .pieces = &inside, .count = 1, .user_data = 1 },
		{ .op = HCABLK_READ, .pieces = &beyond, .count = 1, .user_data = 2 },
		{ .op = 99, .user_data = 3 },
	};
	struct hcablk_completion done;

	want(memory && hcablk_submit(queue, requests, 2) == 1);
	want(hcablk_wait(queue, &done, 1, -1) == 1 && done.user_data == 1 && !done.error);
	want(hcablk_submit(queue, requests + 1, 1) == -EINVAL);
	want(hcablk_submit(queue, requests + 2, 1) == -EINVAL);
	want(hcablk_submit(queue, NULL, 1) == -EINVAL);

	struct hcablk_request zeroes = { .op = HCABLK_ZEROES, .flags = HCABLK_FUA, .length = 4096 };
	struct hcablk_request far = { .op = HCABLK_DISCARD, .length = 1ULL << 62 };

	want(hcablk_submit(queue, &zeroes, 1) == -EINVAL && strstr(hcablk_error(), "flag"));

	int refused = hcablk_submit(queue, &far, 1);

	want(refused == -EIO || refused == -EOPNOTSUPP);
	want(hcablk_submit(NULL, requests, 1) == -EINVAL);
	want(hcablk_wait(queue, &done, 1, -1) == 0);
	want(hcablk_memory_free(memory) == 0 && hcablk_memory_free(NULL) == 0);
}

int main(int argc, char **argv)
{
	struct hcablk_options *made;
	struct hcablk_volume *volume = NULL;

	if (argc != 4) {
		fprintf(stderr, "usage: calls ADDRESS VOLUME HOST-ID\n");
		return 2;
	}
	options(argv[1], argv[2], argv[3], &made);
	if (hcablk_open(made, &volume)) {
		fprintf(stderr, "calls: %s\n", hcablk_error());
		return 1;
	}
	leaves(volume, made);
	hcablk_options_free(made);
	want(hcablk_size(volume) >= 64 * MIB && hcablk_block_size(volume) >= 512);
	want(!hcablk_is_read_only(volume) && !hcablk_has_lost_writes(volume));
	want(hcablk_failure(volume) == 0 && hcablk_ended(volume) == 0);
	printf("write-cache %d\n", hcablk_has_write_cache(volume));

	struct hcablk_queue *first = hcablk_queue_take(volume), *second = hcablk_queue_take(volume);

	want(first && second && !hcablk_queue_take(volume));
	scattered(volume, first);
	events(volume, second);
	synchronous(first);
	nonsense(volume, second);
	forks(volume, second);

	/* Closing a volume ends the requests under way. */
	struct hcablk_memory *memory = hcablk_memory_new(volume, NULL, MIB);
	struct hcablk_piece all = { memory, 0, MIB };
	struct hcablk_request request = { .op = HCABLK_READ, .pieces = &all, .count = 1 };
	struct hcablk_completion done;

	want(memory && hcablk_submit(first, &request, 1) == 1);
	hcablk_close(volume);
	want(hcablk_wait(first, &done, 1, 30000) == 1 && (done.error == 0 || done.error == -EIO));
	want(hcablk_flush(first) == -EIO && strstr(hcablk_error(), "closed"));
	hcablk_queue_free(first);
	hcablk_queue_free(second);
	want(hcablk_memory_free(memory) == 0);
	printf("every call was made\n");
	return 0;
}
