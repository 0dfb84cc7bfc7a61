// SPDX-License-Identifier: GPL-2.0
/*
 * An initiator that asks for a target's volumes or portals, and makes a mistake.
 *
 * WRONG is "nothing", "AT=VALUE" to change a byte of the question, "index=N", "short=BYTES", or,
 * with a proof, one of those of shake() and make_pair_of_initiator(), "other-host",
 * "other-question" or "same-proof". It prints one line for each answer: told COUNT [VOLUME or PORT]
 * with "!" after it if the target has not sealed the answer to a proof challenged REASON of another
 * reject nothing an empty reject granted
 */

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/wait.h>
#include "prove.h"

enum { INDEX_AT = 48, LIST_AT = 40, HOST_AT = 24 };

static void make_question(unsigned char *b, const char *list, const char *host, uint32_t index)
{
	memset(b, 0, CONNECT);
	memcpy(b, "HCAB\2\2\1\0\xff\1", 10);
	unhex(host, b + HOST_AT, 16);
	memcpy(b + LIST_AT, list, strnlen(list, 8));
	put(b + INDEX_AT, 4, index);
}

static void prove_it(unsigned char *b)
{
	b[11] |= PROVES >> 8;
}

static void print_answer(const struct handshake *h, const struct asked *a, const unsigned char *request)
{
	const unsigned char *b = a->answer;
	unsigned int reason = a->length < REJECT || memcmp(b, "HCAB", 4) ? 0 : get(b + 4, 2);
	unsigned char mac[MAC];
	const char *unsealed = "";

	if (h) {
		mac_of_answer(h, &a->channel, "entry", request, b, ENTRY, mac);
		unsealed = a->length >= SEALED_ENTRY && !memcmp(mac, b + ENTRY, MAC) ? "" : "!";
	}
	if (a->granted)
		printf("granted\n");
	else if (!reason)
		printf("nothing\n");
	else if (reason == CHALLENGED)
		printf("challenged\n");
	else if (reason != LISTED)
		printf("%u\n", reason);
	else if (is_zero(b + 16, 48))
		printf("told %u%s\n", (unsigned int)get(b + 8, 4), unsealed);
	else if (is_name(b + 16))
		printf("told %u %.16s%s\n", (unsigned int)get(b + 8, 4), (const char *)b + 16, unsealed);
	else
		printf("told %u %u%s\n", (unsigned int)get(b + 8, 4), (unsigned int)get(b + 48, 8), unsealed);
	fflush(stdout);
}

static void ask_proven(unsigned char *b)
{
	struct handshake h = { 0 };
	struct asked a;

	make_pair_of_initiator(&h);
	prove_it(b);
	memcpy(h.hello, b, CONNECT);
	if (is("other-host"))
		h.hello[HOST_AT] ^= 1;
	a = shake(&h);
	print_answer(&h, &a, h.proof);
	if (is("same-proof")) {
		forget(&a);
		a = prepare();
		ask(&a, h.proof, CONNECT);
		print_answer(&h, &a, h.proof);
	}
}

int ask_question(char **argv)
{
	unsigned int n = CONNECT, index = 0;
	unsigned char b[CONNECT];
	struct asked a;

	sscanf(wrong, "index=%u", &index);
	make_question(b, argv[2], argv[3], index);
	set_byte(wrong, b, CONNECT);
	sscanf(wrong, "short=%u", &n);
	if (!strcmp(argv[4], "proven")) {
		ask_proven(b);
		return 0;
	}
	if (!strcmp(argv[4], "hello"))
		prove_it(b);
	a = prepare();
	ask(&a, b, n);
	print_answer(NULL, &a, b);
	return 0;
}

/* ANY: every answer is correct. */
enum { ANY = 1000 };

static bool is_question(const unsigned char *b)
{
	return get(b + 6, 2) == 1 && b[8] == 0xff && b[9] == 1 && is_zero(b + 10, 14) && !is_zero(b + HOST_AT, 16) &&
	       (!memcmp(b + LIST_AT, ".volumes", 8) || !memcmp(b + LIST_AT, ".portals", 8)) && is_zero(b + 52, 4);
}

/* Returns the target's correct answer by docs/reference/protocol.md. */
static unsigned int judge(const unsigned char *bytes)
{
	unsigned int good = LISTED;
	unsigned char b[CONNECT];

	memcpy(b, bytes, CONNECT);
	if (memcmp(b, "HCAB", 4) || b[4] > b[5])
		return MALFORMED;
	if (b[4] > 2 || b[5] < 2)
		return VERSION;
	if (b[7] & PROOF >> 8)
		return NOT_PROVEN;
	if (b[11] & PROVES >> 8) {
		if (b[8] != 0xff)
			return NO_SESSION;
		b[11] &= ~(PROVES >> 8);
		good = CHALLENGED;
	}
	if (is_question(b))
		return good;
	return is_name(b + LIST_AT) ? ANY : MALFORMED;
}

/* Returns whether an answer to a valid question is right: empty for a foreign host. */
static bool is_right_entry(const struct asked *a, const unsigned char *b, const char *host, unsigned int volumes)
{
	unsigned char id[16];
	uint32_t index = get(b + INDEX_AT, 4), count = get(a->answer + 8, 4);
	bool of_volumes = b[LIST_AT + 1] == 'v';

	unhex(host, id, 16);
	if (memcmp(b + HOST_AT, id, 16))
		volumes = 0;
	if (of_volumes ? count != volumes : !count != !volumes)
		return false;
	return a->length >= ENTRY && get(a->answer + 12, 4) && is_zero(a->answer + 16, 48) == (index >= count);
}

int ask_by_chance(char **argv)
{
	const char *host = argv[2];
	unsigned int volumes = atoi(argv[3]), answers[16] = { 0 };
	uint64_t seed = strtoull(argv[4], NULL, 10), messages = strtoull(argv[5], NULL, 10);

	for (uint64_t n = 0; n < messages; n++) {
		struct chance c = chance_of(seed, n);
		unsigned int verdict, reason;
		unsigned char b[CONNECT];
		struct asked a = prepare();

		make_question(b, chance(&c, 2) ? ".volumes" : ".portals", host, chance(&c, 4));
		if (!chance(&c, 4))
			prove_it(b);
		if (chance(&c, 4))
			change(&c, b, CONNECT);
		verdict = judge(b);
		ask(&a, b, CONNECT);
		reason = a.granted || a.length < REJECT ? 0 : get(a.answer + 4, 2);
		if (reason < 16)
			answers[reason]++;
		if (verdict != ANY && (reason != verdict || (reason == LISTED && !is_right_entry(&a, b, host, volumes)))) {
			for (unsigned int i = 0; i < CONNECT; i++)
				printf("%02x", b[i]);
			printf(": ");
			print_answer(NULL, &a, b);
			failed("seed %llu, question %llu: it should be %u", (unsigned long long)seed, (unsigned long long)n,
			       verdict);
		}
		forget(&a);
	}
	for (unsigned int i = 0; i < 16; i++)
		if (answers[i])
			printf("%u of reason %u, ", answers[i], i);
	printf("%llu in all\n", (unsigned long long)messages);
	return 0;
}

int ask_by_many(char **argv)
{
	unsigned int processes = atoi(argv[3]), each = atoi(argv[4]), wrong_ones = 0;
	unsigned char b[CONNECT];

	make_question(b, ".volumes", argv[2], 0);
	prove_it(b);
	for (unsigned int i = 0; i < processes; i++) {
		if (fork())
			continue;
		for (unsigned int n = 0; n < each; n++) {
			struct asked a = prepare();

			ask(&a, b, CONNECT);
			/* A busy target may refuse with reason 5. */
			if (a.granted || a.length < REJECT || (get(a.answer + 4, 2) != CHALLENGED && get(a.answer + 4, 2) != 5))
				failed("no challenge");
			forget(&a);
		}
		_exit(0);
	}
	for (unsigned int i = 0; i < processes; i++) {
		int status;

		wait(&status);
		wrong_ones += status != 0;
	}
	printf("%u hellos, %u processes failed\n", processes * each, wrong_ones);
	return wrong_ones != 0;
}
