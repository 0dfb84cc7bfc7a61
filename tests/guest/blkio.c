// SPDX-License-Identifier: GPL-2.0
/*
 * blkio SOCKET QUEUES [SEED]
 *	uses the disk at the socket of a vhost-user-blk server through libblkio, as a virtual machine monitor with its own block
 *	layer does: on each of QUEUES queues it writes, reads back, in one piece and scattered, discards, writes zeroes and
 *	flushes, with many requests in flight. Prints the capacity, and the requests. With a SEED it leaves a pattern of it in
 *	the first MiB of the disk.
 */
#include <blkio.h>
#include <err.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 32
#define PIECE 65536
/* The bytes of a queue's own part of the disk. */
#define SHARE ((uint64_t)DEPTH * PIECE)

static struct blkioq *queue;
static unsigned char *memory;

/* Waits until `count` requests have ended, and fails on an error. */
static void complete(int count, const char *what)
{
	struct blkio_completion done[DEPTH];

	while (count) {
		int n = blkioq_do_io(queue, done, 1, count < DEPTH ? count : DEPTH, NULL);

		if (n < 0)
			errx(1, "%s: blkioq_do_io: %s", what, blkio_get_error_msg());
		for (int i = 0; i < n; i++)
			if (done[i].ret)
				errx(1, "%s: request %ld: %s", what, (long)done[i].user_data, strerror(-done[i].ret));
		count -= n;
	}
}

static unsigned char *piece(int n)
{
	return memory + (size_t)n * PIECE;
}

static void fill(unsigned char *to, size_t length, unsigned int seed)
{
	for (size_t i = 0; i < length; i++) {
		seed = seed * 1103515245 + 12345;
		to[i] = seed >> 16;
	}
}

static void expect(const unsigned char *got, size_t length, unsigned int seed, const char *what)
{
	for (size_t i = 0; i < length; i++) {
		seed = seed * 1103515245 + 12345;
		if (got[i] != (unsigned char)(seed >> 16))
			errx(1, "%s: byte %zu is wrong", what, i);
	}
}

static void expect_zeroes(const unsigned char *got, size_t length, const char *what)
{
	for (size_t i = 0; i < length; i++)
		if (got[i])
			errx(1, "%s: byte %zu is not 0", what, i);
}

/* Returns the length of a request's data, which differs between requests. */
static size_t length_of(int n)
{
	return 4096 * (1 + (size_t)n % (PIECE / 4096));
}

static void use(int index)
{
	uint64_t begin = SHARE * (index + 1);

	for (int n = 0; n < DEPTH; n++) {
		fill(piece(n), PIECE, index * 1000 + n);
		blkioq_write(queue, begin + n * PIECE, piece(n), length_of(n), (void *)(long)n, 0);
	}
	complete(DEPTH, "write");
	blkioq_flush(queue, NULL, 0);
	complete(1, "flush");
	memset(memory, 0xaa, SHARE);
	for (int n = 0; n < DEPTH; n++)
		blkioq_read(queue, begin + n * PIECE, piece(n), length_of(n), (void *)(long)n, 0);
	complete(DEPTH, "read");
	for (int n = 0; n < DEPTH; n++)
		expect(piece(n), length_of(n), index * 1000 + n, "read");

	/* Pieces of partial blocks, and not in order. */
	memset(memory, 0xaa, SHARE);
	for (int n = 0; n < DEPTH; n++) {
		struct iovec to[3] = {
			{ piece(n) + 5000, 1000 },
			{ piece(n) + 100, 3000 },
			{ piece(n) + 10000, 96 },
		};
		struct iovec *kept = malloc(sizeof(to));

		memcpy(kept, to, sizeof(to));
		blkioq_readv(queue, begin + n * PIECE, kept, 3, (void *)(long)n, 0);
	}
	complete(DEPTH, "readv");
	for (int n = 0; n < DEPTH; n++) {
		unsigned char whole[4096];

		memcpy(whole, piece(n) + 5000, 1000);
		memcpy(whole + 1000, piece(n) + 100, 3000);
		memcpy(whole + 4000, piece(n) + 10000, 96);
		expect(whole, sizeof(whole), index * 1000 + n, "readv");
	}

	blkioq_write_zeroes(queue, begin, 4 * PIECE, NULL, 0);
	complete(1, "write zeroes");
	blkioq_write_zeroes(queue, begin + 4 * PIECE, PIECE, NULL, BLKIO_REQ_NO_UNMAP);
	complete(1, "write zeroes that stay allocated");
	memset(memory, 0xaa, 5 * PIECE);
	blkioq_read(queue, begin, memory, 5 * PIECE, NULL, 0);
	complete(1, "read of zeroes");
	expect_zeroes(memory, 5 * PIECE, "zeroes");
	blkioq_discard(queue, begin + 8 * PIECE, 4 * PIECE, NULL, 0);
	complete(1, "discard");
	printf("queue %d: done\n", index);
}

int main(int argc, char **argv)
{
	struct blkio_mem_region region;
	struct blkio *disk;
	uint64_t capacity;
	int queues;

	if (argc < 3)
		errx(2, "usage: blkio SOCKET QUEUES [SEED]");
	queues = atoi(argv[2]);
	if (blkio_create("virtio-blk-vhost-user", &disk) || blkio_set_str(disk, "path", argv[1]) ||
	    blkio_connect(disk) || blkio_set_int(disk, "num-queues", queues) || blkio_start(disk) ||
	    blkio_get_uint64(disk, "capacity", &capacity))
		errx(1, "%s", blkio_get_error_msg());
	printf("capacity %llu\n", (unsigned long long)capacity);
	if (blkio_alloc_mem_region(disk, &region, SHARE) || blkio_map_mem_region(disk, &region))
		errx(1, "%s", blkio_get_error_msg());
	memory = region.addr;
	for (int index = 0; index < queues; index++) {
		queue = blkio_get_queue(disk, index);
		use(index);
	}
	queue = blkio_get_queue(disk, 0);
	if (argc > 3) {
		fill(memory, 1 << 20, atoi(argv[3]));
		blkioq_write(queue, 0, memory, 1 << 20, NULL, 0);
		complete(1, "write");
		blkioq_flush(queue, NULL, 0);
		complete(1, "flush");
	}
	blkio_unmap_mem_region(disk, &region);
	blkio_free_mem_region(disk, &region);
	blkio_destroy(&disk);
	printf("all was done\n");
	return 0;
}
