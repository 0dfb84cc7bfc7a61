// SPDX-License-Identifier: GPL-2.0
/* The slots of the eager ring, counted as in docs/reference/protocol.md. */

#include "hostile.h"
#include "client.h"

enum { TAKEN_MOST = 64, UNIT = 4096 };

static struct {
	/* The length up to the next slot, with the gap before it. */
	uint32_t bytes;
	bool open;
} taken[TAKEN_MOST];
static unsigned int most;
static uint32_t end, used;
static uint16_t oldest, coming;

void ring_begin(unsigned int credits)
{
	most = credits < TAKEN_MOST ? credits : TAKEN_MOST;
	end = used = 0;
	oldest = coming = 0;
}

/* Finds the beginning of the next slot, and the bytes that it takes; returns false if it is not free. */
static bool find(uint32_t length, uint32_t *at, uint32_t *bytes)
{
	uint64_t need = ((uint64_t)length + UNIT - 1) / UNIT * UNIT;
	uint32_t left = grant_bytes - end;

	if (!need || need > grant_bytes)
		return false;
	*at = need <= left ? end : 0;
	*bytes = need <= left ? need : need + left;
	if (oldest == coming) {
		/* The gap at the end is unused. */
		used = 0;
		*bytes = need;
	}
	return *bytes <= grant_bytes - used && (uint16_t)(coming - oldest) < most;
}

bool ring_fits(uint32_t length)
{
	uint32_t at, bytes;

	return find(length, &at, &bytes);
}

uint64_t ring_take(uint32_t length, uint16_t *number)
{
	uint32_t at, bytes;

	if (!find(length, &at, &bytes))
		failed("an eager write has no slot here");
	*number = coming++;
	taken[*number % TAKEN_MOST].bytes = bytes;
	taken[*number % TAKEN_MOST].open = true;
	used += bytes;
	end = at + (length + UNIT - 1) / UNIT * UNIT;
	return at;
}

void ring_free(uint16_t number)
{
	taken[number % TAKEN_MOST].open = false;
	while (oldest != coming && !taken[oldest % TAKEN_MOST].open)
		used -= taken[oldest++ % TAKEN_MOST].bytes;
}
