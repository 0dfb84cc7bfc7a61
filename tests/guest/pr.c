// SPDX-License-Identifier: GPL-2.0
/*
 * Persistent reservations of a block device through the kernel's ioctls, as blkpr(8) of util-linux, but with the kernel's
 * own names of the keys.
 *
 * hcablk-pr DEVICE register OLD NEW | ignore NEW | reserve KEY TYPE | release KEY TYPE |
 *	preempt OWN VICTIM TYPE | abort OWN VICTIM TYPE | clear KEY | keys | reservation
 *
 * keys prints the generation, and the keys in ascending order; reservation the key and the type. A change that
 * fails prints "conflict", or the error, and the program ends with 1.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/pr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#define CONFLICT 0x18

/* Debian's kernels have these two earlier than its headers for programs. */
#ifndef IOC_PR_READ_KEYS
struct pr_read_keys {
	uint32_t generation;
	uint32_t num_keys;
	uint64_t keys_ptr;
};

struct pr_read_reservation {
	uint64_t key;
	uint32_t generation;
	uint32_t type;
};

#define IOC_PR_READ_KEYS _IOWR('p', 206, struct pr_read_keys)
#define IOC_PR_READ_RESERVATION _IOR('p', 207, struct pr_read_reservation)
#endif

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static int keys(int fd)
{
	uint64_t found[256];
	struct pr_read_keys all = { .num_keys = 256, .keys_ptr = (uintptr_t)found };
	int ret = ioctl(fd, IOC_PR_READ_KEYS, &all);

	if (ret)
		return ret;
	qsort(found, all.num_keys, sizeof(found[0]), compare);
	printf("%" PRIu32 ":", all.generation);
	for (uint32_t i = 0; i < all.num_keys; i++)
		printf(" %" PRIu64, (uint64_t)found[i]);
	printf("\n");
	return 0;
}

static int reservation(int fd)
{
	struct pr_read_reservation held = { 0 };
	int ret = ioctl(fd, IOC_PR_READ_RESERVATION, &held);

	if (!ret)
		printf("%" PRIu64 " %" PRIu32 "\n", (uint64_t)held.key, held.type);
	return ret;
}

int main(int argc, char **argv)
{
	uint64_t n[3] = { 0 };
	const char *what;
	int fd, ret;

	if (argc < 3 || argc > 6) {
		fprintf(stderr, "usage: hcablk-pr DEVICE COMMAND [NUMBER...]\n");
		return 2;
	}
	what = argv[2];
	for (int i = 3; i < argc; i++)
		n[i - 3] = strtoull(argv[i], NULL, 0);
	fd = open(argv[1], O_RDWR);
	if (fd < 0) {
		perror(argv[1]);
		return 2;
	}
	if (!strcmp(what, "keys")) {
		ret = keys(fd);
	} else if (!strcmp(what, "reservation")) {
		ret = reservation(fd);
	} else if (!strcmp(what, "register") || !strcmp(what, "ignore")) {
		struct pr_registration r = { .old_key = n[0], .new_key = n[1] };

		if (!strcmp(what, "ignore"))
			r = (struct pr_registration){ .new_key = n[0], .flags = PR_FL_IGNORE_KEY };
		ret = ioctl(fd, IOC_PR_REGISTER, &r);
	} else if (!strcmp(what, "reserve") || !strcmp(what, "release")) {
		struct pr_reservation r = { .key = n[0], .type = n[1] };

		ret = ioctl(fd, !strcmp(what, "reserve") ? IOC_PR_RESERVE : IOC_PR_RELEASE, &r);
	} else if (!strcmp(what, "preempt") || !strcmp(what, "abort")) {
		struct pr_preempt p = { .old_key = n[0], .new_key = n[1], .type = n[2] };

		ret = ioctl(fd, !strcmp(what, "abort") ? IOC_PR_PREEMPT_ABORT : IOC_PR_PREEMPT, &p);
	} else if (!strcmp(what, "clear")) {
		struct pr_clear c = { .key = n[0] };

		ret = ioctl(fd, IOC_PR_CLEAR, &c);
	} else {
		fprintf(stderr, "%s is not a command\n", what);
		return 2;
	}
	if (ret == CONFLICT)
		puts("conflict");
	else if (ret < 0)
		puts(strerror(errno));
	else if (ret)
		printf("status %#x\n", ret);
	return ret ? 1 : 0;
}
