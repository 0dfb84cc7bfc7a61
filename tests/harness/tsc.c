// SPDX-License-Identifier: GPL-2.0
/*
 * tsc
 *	prints the frequency of the processor's time stamp counter in kHz, or nothing
 *	without such a counter. An emulated guest's counter has the same frequency.
 */

#include <stdint.h>
#include <stdio.h>
#include <time.h>

#ifdef __x86_64__
static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_RAW, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* Reads the system's and the processor's clock at one moment: of many reads it takes the quickest, during which nothing else ran. */
static void look(uint64_t *ns, uint64_t *count)
{
	uint64_t least = UINT64_MAX;

	for (unsigned int i = 0; i < 1000; i++) {
		uint64_t before = __builtin_ia32_rdtsc(), now = now_ns(), after = __builtin_ia32_rdtsc();

		if (after - before < least) {
			least = after - before;
			*ns = now;
			*count = before + (after - before) / 2;
		}
	}
}
#endif

int main(void)
{
#ifdef __x86_64__
	uint64_t ns[2], count[2];

	look(&ns[0], &count[0]);
	nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
	look(&ns[1], &count[1]);
	printf("%llu\n", (unsigned long long)((count[1] - count[0]) * 1000000 / (ns[1] - ns[0])));
#endif
	return 0;
}
