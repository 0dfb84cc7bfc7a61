// SPDX-License-Identifier: GPL-2.0
/*
 * hcablk-mark: prints the monotonic clock in nanoseconds (fio tells its running
 * time in milliseconds only; it runs this before and after a job instead), and
 * has plugin/count.c write down what it has counted since the last mark.
 * hcablk-mark watch KIND ADDRESS: has it look at what a kernel function is
 * called with. KIND is a letter, see plugin/count.c.
 *
 * The plugin knows the NOP below by its displacement. It is an instruction like
 * any other when there is no plugin.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void tell(unsigned long kind, unsigned long address)
{
	asm volatile("nopl 0x6b6c6268(%%rax)" : : "D"(kind), "S"(address) : "memory");
}

int main(int argc, char **argv)
{
	struct timespec now;

	if (argc == 4 && !strcmp(argv[1], "watch")) {
		tell(argv[2][0], strtoul(argv[3], NULL, 16));
		return 0;
	}
	if (clock_gettime(CLOCK_MONOTONIC, &now))
		return 1;
	tell(0, 0);
	printf("%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
	return 0;
}
