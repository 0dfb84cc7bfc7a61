/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Copies a volume to standard output, with many reads under way at a time:
 *
 *	cc -o copy copy.c $(pkg-config --cflags --libs hcablk)
 *	copy ADDRESS VOLUME "$(hcablk host-id)" > image
 */
#include <hcablk.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 128 << 10, DEPTH = 32 };

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "copy: %s: %s\n", what, hcablk_error());
	exit(1);
}

int main(int argc, char **argv)
{
	struct hcablk_options *options = argc == 4 ? hcablk_options_new(argv[1], argv[2], argv[3]) : NULL;
	struct hcablk_volume *volume;

	if (argc != 4) {
		fprintf(stderr, "usage: copy ADDRESS VOLUME HOST-ID\n");
		return 2;
	}
	if (!options || hcablk_options_set(options, "queue-depth", "32"))
		die("the options");
	if (hcablk_open(options, &volume))
		die(argv[2]);
	hcablk_options_free(options);

	struct hcablk_queue *queue = hcablk_queue_take(volume);
	struct hcablk_memory *memory = hcablk_memory_new(volume, NULL, (size_t)CHUNK * DEPTH);
	uint64_t size = hcablk_size(volume);

	if (!queue || !memory)
		die("a queue and its memory");
	for (uint64_t begin = 0; begin < size; begin += (uint64_t)CHUNK * DEPTH) {
		struct hcablk_piece pieces[DEPTH];
		struct hcablk_request requests[DEPTH] = { 0 };
		struct hcablk_completion done[DEPTH];
		unsigned int count = 0;
		uint64_t bytes = size - begin < (uint64_t)CHUNK * DEPTH ? size - begin : (uint64_t)CHUNK * DEPTH;

		for (uint64_t at = 0; at < bytes; at += CHUNK, count++) {
			pieces[count] = (struct hcablk_piece){ memory, at, bytes - at < CHUNK ? bytes - at : CHUNK };
			requests[count].op = HCABLK_READ;
			requests[count].offset = begin + at;
			requests[count].pieces = &pieces[count];
			requests[count].count = 1;
		}
		if (hcablk_submit(queue, requests, count) != (int)count)
			die("submitting");
		for (unsigned int left = count; left;) {
			int ended = hcablk_poll(queue, done, DEPTH);

			for (int n = 0; n < ended; n++)
				if (done[n].error) {
					fprintf(stderr, "copy: reading: %s\n", strerror(-done[n].error));
					return 1;
				}
			left -= ended;
		}
		if (fwrite(hcablk_memory_data(memory), 1, bytes, stdout) != bytes) {
			perror("copy");
			return 1;
		}
	}
	hcablk_queue_free(queue);
	hcablk_memory_free(memory);
	hcablk_close(volume);
	if (fflush(stdout)) {
		perror("copy");
		return 1;
	}
	return 0;
}
