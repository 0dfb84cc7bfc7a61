// SPDX-License-Identifier: GPL-2.0
/*
 * Uses volumes of the malicious target (tests/guest/hostile) through the library until the file
 * STOP exists: data that a read returns must be the pattern of that target, and only memory of a
 * request that has not ended may change.
 *
 *	victim ADDRESS PORT HOST-ID STOP SEED
 */
#define _GNU_SOURCE
#include <hcablk.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 4096, SLOT = 64 << 10, SLOTS = 6, ROUNDS = 100, GIVE_UP = 2, HANG_MS = 90000, ERRORS = 48 };

/* Memory that only this program may write. */
#define PRIVATE 0x217079656b656570ull

/* Memory of a request between memory that is not registered. */
struct slot {
	unsigned char *arena;
	struct hcablk_memory *memory;
	bool is_read;
	uint64_t offset;
	size_t begin, length;
};

static struct {
	char text[200];
	unsigned int times;
} errors[ERRORS];

static uint64_t state;
static unsigned long long good_reads, stale_reads, bad_reads, good_writes, bad_writes;

static _Noreturn void failed(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("FAILED ");
	vprintf(format, args);
	printf("\n");
	fflush(stdout);
	_exit(1);
}

static uint64_t below(uint64_t n)
{
	/* splitmix64 */
	uint64_t z = state += 0x9e3779b97f4a7c15;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return (z ^ (z >> 31)) % n;
}

static uint64_t word_at(uint64_t offset)
{
	return (offset / 512 * 64 + offset % 512 / 8 + 1) * 0x9e3779b97f4a7c15;
}

static void keep(void *at, size_t bytes)
{
	for (size_t n = 0; n < bytes / 8; n++)
		((uint64_t *)at)[n] = PRIVATE;
}

static bool is_kept(const void *at, size_t bytes)
{
	for (size_t n = 0; n < bytes / 8; n++)
		if (((const uint64_t *)at)[n] != PRIVATE)
			return false;
	return true;
}

static void note(const char *text)
{
	unsigned int i = 0;

	while (i < ERRORS - 1 && errors[i].times && strcmp(errors[i].text, text))
		i++;
	snprintf(errors[i].text, sizeof(errors[i].text), "%s", text);
	errors[i].times++;
}

static void begin(struct hcablk_queue *queue, struct slot *slot, unsigned int index, uint64_t size)
{
	slot->length = PAGE * (1 + (below(5) ? 0 : below(SLOT / PAGE)));
	slot->begin = below((SLOT - slot->length) / 8 + 1) * 8;
	slot->offset = size > slot->length ? below((size - slot->length) / PAGE + 1) * PAGE : 0;
	slot->is_read = below(10) < 7;

	uint64_t *data = (uint64_t *)(slot->arena + PAGE + slot->begin);
	struct hcablk_piece piece = { slot->memory, slot->begin, slot->length };
	struct hcablk_request request = {
		.op = slot->is_read ? HCABLK_READ : HCABLK_WRITE,
		.flags = HCABLK_EVENT * below(2),
		.offset = slot->offset,
		.pieces = &piece,
		.count = 1,
		.user_data = index,
	};

	if (!slot->is_read)
		for (size_t n = 0; n < slot->length / 8; n++)
			data[n] = word_at(slot->offset + n * 8);
	if (hcablk_submit(queue, &request, 1) != 1)
		failed("a request is refused: %s", hcablk_error());
}

static void judge(struct slot *slot, int error)
{
	uint64_t *data = (uint64_t *)(slot->arena + PAGE + slot->begin);
	size_t untouched = 0;

	for (size_t n = 0; n < slot->length / 8; n++) {
		if (slot->is_read && data[n] == PRIVATE)
			untouched++;
		else if (data[n] != word_at(slot->offset + n * 8) && (!slot->is_read || !error))
			failed("the memory of a %s at %llu has wrong data", slot->is_read ? "read" : "write",
			       (unsigned long long)slot->offset);
	}
	if (slot->is_read)
		++*(error ? &bad_reads : untouched ? &stale_reads : &good_reads);
	else
		++*(error ? &bad_writes : &good_writes);
	/* The request has ended, well or not: from here on nothing may read or write this memory. */
	keep(data, slot->length);
	if (!is_kept(slot->arena, PAGE) || !is_kept(slot->arena + PAGE + SLOT, PAGE))
		failed("memory outside of a request was written");
}

static void use(struct hcablk_volume *volume, struct hcablk_queue *queue, struct slot *slots)
{
	unsigned int bad = 0;

	for (unsigned int i = 0; i < SLOTS; i++) {
		slots[i].memory = hcablk_memory_new(volume, slots[i].arena + PAGE, SLOT);
		if (!slots[i].memory)
			failed("memory cannot be registered: %s", hcablk_error());
	}
	for (unsigned int round = 0; round < ROUNDS && bad < GIVE_UP; round++) {
		unsigned int count = 1 + below(SLOTS);

		for (unsigned int i = 0; i < count; i++)
			begin(queue, &slots[i], i, hcablk_size(volume));
		for (unsigned int left = count; left;) {
			struct hcablk_completion done[SLOTS];
			int ended = hcablk_wait(queue, done, SLOTS, HANG_MS);

			if (ended <= 0)
				failed("a request does not end");
			for (int n = 0; n < ended; n++) {
				judge(&slots[done[n].user_data], done[n].error);
				bad += done[n].error != 0;
			}
			left -= ended;
		}
		if (bad || !below(5)) {
			usleep(2000);
			for (unsigned int i = 0; i < SLOTS; i++)
				if (!is_kept(slots[i].arena, SLOT + 2 * PAGE))
					failed("memory of a request that had ended was written");
		}
	}
}

int main(int argc, char **argv)
{
	unsigned long long opened = 0, refused = 0;
	struct slot slots[SLOTS];

	if (argc != 6)
		return 2;
	state = strtoull(argv[5], NULL, 0);
	for (unsigned int i = 0; i < SLOTS; i++) {
		slots[i].arena = aligned_alloc(PAGE, SLOT + 2 * PAGE);
		if (!slots[i].arena)
			failed("out of memory");
		keep(slots[i].arena, SLOT + 2 * PAGE);
	}
	while (access(argv[4], F_OK)) {
		struct hcablk_options *options = hcablk_options_new(argv[1], "vol1", argv[3]);
		struct hcablk_volume *volume;
		struct hcablk_queue *queue;
		const char *depths[] = { "16", "16", "2", "1" };

		if (!options || hcablk_options_set(options, "port", argv[2]) ||
		    hcablk_options_set(options, "ctrl-loss-tmo", "0") || hcablk_options_set(options, "queues", "2") ||
		    hcablk_options_set(options, "connect-timeout", "10") ||
		    hcablk_options_set(options, "queue-depth", depths[below(4)]))
			failed("an option: %s", hcablk_error());
		if (hcablk_open(options, &volume)) {
			refused++;
			note(hcablk_error());
			hcablk_options_free(options);
			usleep(5000);
			continue;
		}
		hcablk_options_free(options);
		opened++;
		queue = hcablk_queue_take(volume);
		use(volume, queue, slots);
		if (hcablk_ended(volume))
			note(hcablk_error());
		hcablk_close(volume);
		hcablk_queue_free(queue);
		for (unsigned int i = 0; i < SLOTS; i++)
			if (hcablk_memory_free(slots[i].memory))
				failed("memory is in use after the end: %s", hcablk_error());
	}
	for (unsigned int i = 0; i < ERRORS && errors[i].times; i++)
		printf("%u times: %s\n", errors[i].times, errors[i].text);
	printf("passed %llu reads compared, %llu without data, %llu failed, %llu writes, %llu failed; %llu volumes opened, "
	       "%llu not\n", good_reads, stale_reads, bad_reads, good_writes, bad_writes, opened, refused);
	return 0;
}
