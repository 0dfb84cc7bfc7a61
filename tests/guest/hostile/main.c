// SPDX-License-Identifier: GPL-2.0
/*
 * A peer that breaks the protocol in random ways, chosen by a seed.
 *
 * hcablk-hostile client ADDRESS PORT VOLUME HOST_ID ZONE_FROM ZONE_COUNT [OPTION...]
 *	plays an initiator: connects again and again and sends messages of which
 *	most are wrong in some way. It judges each message by docs/reference/protocol.md
 *	before it sends it, and compares the target's reaction with that. Its
 *	writes with a valid key go to ZONE_COUNT sectors from sector
 *	ZONE_FROM only; the volume must hold the pattern of "fill".
 * hcablk-hostile insistent ADDRESS PORT VOLUME HOST_ID STOP
 *	plays an initiator that changes its registration again and again, over several
 *	sessions, without a pause and silently, until the file STOP exists.
 * hcablk-hostile target PORT [OPTION...]
 *	plays a target of the pattern: serves most requests, and answers others
 *	falsely or accesses memory that they did not grant.
 * hcablk-hostile victim DIRECTORY STOP
 *	uses a device of the initiator (its configfs directory) that is
 *	connected to such a target, until the file STOP exists: all data of
 *	successful reads must be the pattern.
 * hcablk-hostile fill DEVICE
 * hcablk-hostile check DEVICE ZONE_FROM ZONE_COUNT
 *	write the pattern; check that all of it is there. The zone may also
 *	hold the data of "client".
 *
 * Options: --seed N, --messages N, --first N (begin with this message); for
 * "target" --only TRICK (this trick only, and often; malicious_target.c has the names).
 *
 * The content of message number N depends only on the seed and N (except for
 * keys and addresses, which the kernel chooses). The last line is "passed ...",
 * or "FAILED ..." with the options that repeat it, and the exit code 1.
 */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "hostile.h"
#include "client.h"

/* Reads the words ADDRESS PORT VOLUME HOST_ID. */
static void begin_as(char **words)
{
	unsigned int digits = 0;

	if (getaddrinfo(words[0], words[1], NULL, &address))
		failed("no such address");
	memcpy(volume, words[2], strnlen(words[2], sizeof(volume)));
	for (const char *p = words[3]; *p && digits < 32; p++) {
		unsigned int digit;

		if (sscanf((char[]){ *p, 0 }, "%x", &digit) == 1) {
			host[digits / 2] = host[digits / 2] << 4 | digit;
			digits++;
		}
	}
}

int main(int argc, char **argv)
{
	const char *only = NULL;
	int words = 1;

	/* Options come last. */
	while (words < argc && strncmp(argv[words], "--", 2))
		words++;
	seed = now_ms() ^ getpid();
	for (int i = words; i + 1 < argc; i += 2) {
		uint64_t value = strtoull(argv[i + 1], NULL, 0);

		if (!strcmp(argv[i], "--seed"))
			seed = value;
		else if (!strcmp(argv[i], "--only"))
			only = argv[i + 1];
		else if (!strcmp(argv[i], "--messages"))
			messages = value;
		else if (!strcmp(argv[i], "--first"))
			first = value;
		else
			words = 0;
	}
	if (words < 3)
		goto usage;
	mode = argv[1];
	if (words == 3 && !strcmp(mode, "fill"))
		return fill_or_check(true, argv[2], 0, 0);
	if (words == 5 && !strcmp(mode, "check"))
		return fill_or_check(false, argv[2], strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0));
	if (words == 4 && !strcmp(mode, "victim"))
		return play_victim(argv[2], argv[3]);
	printf("seed %llu, %llu messages\n", (unsigned long long)seed, (unsigned long long)messages);
	fflush(stdout);
	if (words == 3 && !strcmp(mode, "target"))
		return play_target(argv[2], only);
	if (words == 8 && !strcmp(mode, "client")) {
		begin_as(argv + 2);
		zone_from = strtoull(argv[6], NULL, 0);
		zone_count = strtoull(argv[7], NULL, 0);
		return play_client();
	}
	if (words == 7 && !strcmp(mode, "insistent")) {
		begin_as(argv + 2);
		return play_insistent(argv[6]);
	}
usage:
	fprintf(stderr, "usage: see the source\n");
	return 2;
}
