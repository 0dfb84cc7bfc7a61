// SPDX-License-Identifier: GPL-2.0
/* Random numbers from the seed, numbers on the wire, and the report of a failure. */

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include "hostile.h"

uint64_t seed, messages = 100000, first, number;
const char *mode;
unsigned int last_opcode;
size_t last_length;
unsigned char last_bytes[KEPT];

void failed(const char *format, ...)
{
	va_list args;

	fflush(stdout);
	printf("FAILED ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf(" (%s --seed %llu, message %llu; last sent by operation %u:", mode, (unsigned long long)seed,
	       (unsigned long long)number, last_opcode);
	for (size_t i = 0; i < last_length; i++)
		printf("%s%02x", i % 4 ? "" : " ", last_bytes[i]);
	printf(")\n");
	fflush(stdout);
	_exit(1);
}

void print_bytes(const char *what, const unsigned char *bytes, size_t n)
{
	printf("%s", what);
	for (size_t i = 0; i < n; i++)
		printf("%s%02x", i % 4 ? "" : " ", bytes[i]);
	printf("\n");
}

uint64_t next(struct rng *r)
{
	/* splitmix64 */
	uint64_t z = r->state += 0x9e3779b97f4a7c15;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

uint64_t below(struct rng *r, uint64_t n)
{
	return next(r) % n;
}

bool chance(struct rng *r, unsigned int per_mille)
{
	return below(r, 1000) < per_mille;
}

/* Returns a separate random stream for each purpose and number. */
struct rng stream(uint64_t purpose, uint64_t n)
{
	struct rng r = { seed ^ (purpose << 56) };

	r.state = next(&r) ^ (n * 0xd1342543de82ef95);
	next(&r);
	return r;
}

bool may_cost(struct rng *r, uint64_t n)
{
	return n < DENSE || chance(r, SPARSE);
}

/* Returns a number that careless bounds checks miss. */
uint64_t odd_number(struct rng *r)
{
	static const uint64_t odd[] = {
		0, 1, 2, 7, 8, 511, 512, 513, 4095, 4096, 65535, 65536, 0x7fffffff, 0x80000000, 0xffffffff,
		0x100000000, 0xfffff000, 1 << 20, (1 << 20) + 512, INT64_MAX, 1ull << 63, -1ull, -512ull, -4096ull,
	};

	return chance(r, 800) ? odd[below(r, sizeof(odd) / sizeof(*odd))] : next(r) >> below(r, 64);
}

void mutate(struct rng *r, unsigned char *bytes, size_t n)
{
	for (unsigned int i = 1 + below(r, 4); i; i--) {
		unsigned char *b = bytes + below(r, n);

		if (chance(r, 500))
			*b ^= 1 << below(r, 8);
		else
			*b = next(r);
	}
}

void put(unsigned char *at, unsigned int bytes, uint64_t value)
{
	for (; bytes; bytes--, value >>= 8)
		*at++ = value;
}

uint64_t get(const unsigned char *at, unsigned int bytes)
{
	uint64_t value = 0;

	while (bytes--)
		value = value << 8 | at[bytes];
	return value;
}

bool zero(const unsigned char *at, size_t n)
{
	while (n--)
		if (at[n])
			return false;
	return true;
}

uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}
