// SPDX-License-Identifier: GPL-2.0
/*
 * Takes over the work of a program that was killed: FILE, if it exists, has the results of
 * hcablk_session() and hcablk_past() in that program. Prints whether the writes can be flushed,
 * writes, stores its own results, prints "written", and waits to be killed.
 *
 *	successor ADDRESS VOLUME HOST-ID FILE
 */
#include <err.h>
#include <hcablk.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	static unsigned char block[4096] = "hcablk";
	char session[16], past[HCABLK_PAST_SIZE];
	struct hcablk_options *options;
	struct hcablk_volume *volume;
	struct hcablk_queue *queue;
	bool goes_on = false;

	if (argc != 5)
		errx(2, "usage: successor ADDRESS VOLUME HOST-ID FILE");
	options = hcablk_options_new(argv[1], argv[2], argv[3]);
	if (!options)
		errx(1, "%s", hcablk_error());

	FILE *file = fopen(argv[4], "r");

	if (file) {
		if (!fgets(session, sizeof(session), file) || !fgets(past, sizeof(past), file))
			errx(1, "%s is too short", argv[4]);
		fclose(file);
		session[strcspn(session, "\n")] = 0;
		if (hcablk_options_set(options, "session", session) || hcablk_options_set(options, "past", past))
			errx(1, "%s", hcablk_error());
		goes_on = true;
	}
	if (hcablk_open(options, &volume))
		errx(1, "%s", hcablk_error());
	hcablk_options_free(options);
	queue = hcablk_queue_take(volume);
	if (!queue)
		errx(1, "%s", hcablk_error());
	if (goes_on)
		printf("%s\n", hcablk_flush(queue) ? hcablk_error() : "flushed");
	if (hcablk_session(volume) <= 0 || hcablk_past(volume, past, 8) >= 0 || hcablk_past(volume, past, sizeof(past)) <= 0)
		errx(1, "no past: %s", hcablk_error());
	file = fopen(argv[4], "w");
	if (!file || fprintf(file, "%d\n%s", hcablk_session(volume), past) < 0 || fclose(file))
		err(1, "%s", argv[4]);
	if (hcablk_write(queue, block, sizeof(block), 0))
		errx(1, "%s", hcablk_error());
	printf("written\n");
	fflush(stdout);
	for (;;)
		pause();
}
