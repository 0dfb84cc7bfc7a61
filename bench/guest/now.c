// SPDX-License-Identifier: GPL-2.0
/*
 * hcablk-now: prints the monotonic clock in nanoseconds. fio tells its running
 * time in milliseconds only; it runs this before and after a job instead.
 */

#include <stdio.h>
#include <time.h>

int main(void)
{
	struct timespec now;

	if (clock_gettime(CLOCK_MONOTONIC, &now))
		return 1;
	printf("%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
	return 0;
}
