// SPDX-License-Identifier: GPL-2.0
/* The content of a volume's sectors. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <linux/fs.h>
#include "hostile.h"

void pattern(uint64_t *at, uint64_t sector, uint64_t count)
{
	for (uint64_t s = sector; s < sector + count; s++)
		for (unsigned int i = 0; i < SECTOR / 8; i++)
			*at++ = (s * 64 + i + 1) * 0x9e3779b97f4a7c15;
}

bool is_pattern(const uint64_t *at, uint64_t sector, uint64_t count)
{
	for (uint64_t s = sector; s < sector + count; s++)
		for (unsigned int i = 0; i < SECTOR / 8; i++)
			if (*at++ != (s * 64 + i + 1) * 0x9e3779b97f4a7c15)
				return false;
	return true;
}

static bool is_all(const uint64_t *at, uint64_t word)
{
	for (unsigned int i = 0; i < SECTOR / 8; i++)
		if (at[i] != word)
			return false;
	return true;
}

/* A write's memory may begin anywhere in granted memory, unaligned too. */
static bool is_hostile(const uint64_t *at)
{
	for (unsigned int bits = 0; bits < 64; bits += 8)
		if (at[0] == (HOSTILE >> bits | HOSTILE << (-bits & 63)))
			return is_all(at, at[0]);
	return false;
}

int fill_or_check(bool fill, const char *path, uint64_t zone, uint64_t zone_count)
{
	enum { PIECE = 1 << 20 };
	int fd = open(path, (fill ? O_WRONLY : O_RDONLY) | O_DIRECT);
	uint64_t size, written = 0, emptied = 0;
	uint64_t *data = aligned_alloc(4096, PIECE);

	if (fd < 0 || ioctl(fd, BLKGETSIZE64, &size) || !data)
		failed("%s: %s", path, strerror(errno));
	for (uint64_t at = 0; at < size; at += PIECE) {
		size_t n = size - at < PIECE ? size - at : PIECE;

		if (fill)
			pattern(data, at / SECTOR, n / SECTOR);
		if ((fill ? pwrite(fd, data, n, at) : pread(fd, data, n, at)) != (ssize_t)n)
			failed("%s at %llu: %s", path, (unsigned long long)at, strerror(errno));
		for (uint64_t i = 0; !fill && i < n / SECTOR; i++) {
			uint64_t s = at / SECTOR + i;
			const uint64_t *sector = data + i * SECTOR / 8;

			if (is_pattern(sector, s, 1))
				continue;
			if (s - zone >= zone_count)
				failed("sector %llu was changed", (unsigned long long)s);
			if (is_hostile(sector))
				written++;
			else if (is_all(sector, 0))
				emptied++;
			else
				failed("sector %llu holds data that nobody wrote: %016llx, %016llx at its end",
				       (unsigned long long)s, (unsigned long long)sector[0],
				       (unsigned long long)sector[SECTOR / 8 - 1]);
		}
	}
	if (fill && fsync(fd))
		failed("%s: %s", path, strerror(errno));
	printf("passed %llu sectors, %llu written and %llu emptied by the hostile\n",
	       (unsigned long long)size / SECTOR, (unsigned long long)written, (unsigned long long)emptied);
	return 0;
}
