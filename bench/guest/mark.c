// SPDX-License-Identifier: GPL-2.0
/*
 * hcablk-mark: prints the monotonic clock in nanoseconds. fio, which reports its
 * running time in milliseconds only, runs this before and after a job. It also
 * makes a mark: plugin/count.c then writes its counts since the last mark.
 * hcablk-mark watch KIND ADDRESS: the plugin counts the calls of the kernel
 * function at ADDRESS. KIND is a letter, see plugin/count.c.
 *
 * The plugin recognizes the NOP below from its displacement. Without the plugin
 * the NOP has no effect.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void mark(unsigned long kind, unsigned long address)
{
	asm volatile("nopl 0x6b6c6268(%%rax)" : : "D"(kind), "S"(address) : "memory");
}

int main(int argc, char **argv)
{
	struct timespec now;

	if (argc == 4 && !strcmp(argv[1], "watch")) {
		mark(argv[2][0], strtoul(argv[3], NULL, 16));
		return 0;
	}
	if (clock_gettime(CLOCK_MONOTONIC, &now))
		return 1;
	mark(0, 0);
	printf("%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
	return 0;
}
