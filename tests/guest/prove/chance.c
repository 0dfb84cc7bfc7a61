// SPDX-License-Identifier: GPL-2.0
/* Random choices from a seed, and random changes of names and bytes. */

#include <stdio.h>
#include <string.h>
#include "prove.h"

/* splitmix64 */
static uint64_t next(struct chance *c)
{
	uint64_t z = c->state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

struct chance chance_of(uint64_t seed, uint64_t number)
{
	struct chance c = { seed };

	c.state = next(&c) ^ number;
	next(&c);
	return c;
}

uint64_t chance(struct chance *c, uint64_t below)
{
	return next(c) % below;
}

void change(struct chance *c, unsigned char *bytes, unsigned int n)
{
	/* Bytes that turn one valid value into another. */
	static const unsigned char odd[] = { 0, 1, 2, 8, 9, 12, 14, 64, 128, 255, '/', '\n', '.' };
	unsigned int changes = 1 + chance(c, 3);

	if (!chance(c, 16))
		changes = n;
	while (changes--) {
		unsigned char *byte = bytes + chance(c, n);

		switch (chance(c, 3)) {
		case 0:
			*byte ^= 1 << chance(c, 8);
			break;
		case 1:
			*byte = odd[chance(c, sizeof(odd))];
			break;
		default:
			*byte = next(c);
		}
	}
}

bool set_byte(const char *text, unsigned char *bytes, unsigned int n)
{
	unsigned int at, value;

	if (sscanf(text, "%u=%u", &at, &value) != 2 || at >= n)
		return false;
	bytes[at] = value;
	return true;
}

bool is_zero(const unsigned char *b, unsigned int n)
{
	while (n--)
		if (*b++)
			return false;
	return true;
}

bool is_name(const unsigned char *b)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	unsigned int n = 0;

	while (n < 16 && b[n] && strchr(letters, b[n]))
		n++;
	return n && b[0] != '.' && is_zero(b + n, 16 - n);
}
