// SPDX-License-Identifier: GPL-2.0
/*
 * Keeps a file or a block device open, and flushes it through that same descriptor when asked.
 *
 * hcablk-hold NAME r|w|x FILE
 *
 * r opens for reading, w for reading and writing, x for both and exclusively (O_EXCL). When the file is open, the pipes
 * /tmp/NAME.request and /tmp/NAME.answer exist. Each request is a line:
 *	sync	fsync; the answer is "done" or the error's text
 *	close	closes the file, removes the pipes and ends the program, without an answer
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void answer(const char *pipe, const char *text)
{
	FILE *file = fopen(pipe, "w");

	if (!file || fprintf(file, "%s\n", text) < 0 || fclose(file)) {
		perror(pipe);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	char *request, *response, line[32];
	FILE *requests;
	int fd, flags;

	if (argc != 4) {
		fprintf(stderr, "usage: hcablk-hold NAME r|w|x FILE\n");
		return 2;
	}
	flags = *argv[2] == 'r' ? O_RDONLY : *argv[2] == 'w' ? O_RDWR : O_RDWR | O_EXCL;
	fd = open(argv[3], flags | O_CLOEXEC);
	if (fd < 0) {
		perror(argv[3]);
		return 1;
	}
	if (asprintf(&request, "/tmp/%s.request", argv[1]) < 0 || asprintf(&response, "/tmp/%s.answer", argv[1]) < 0)
		return 1;
	if (mkfifo(request, 0600) || mkfifo(response, 0600)) {
		perror(request);
		return 1;
	}
	/* For reading and writing: no end of file between two requests. */
	requests = fopen(request, "r+");
	if (!requests) {
		perror(request);
		return 1;
	}
	while (fgets(line, sizeof(line), requests)) {
		if (!strcmp(line, "sync\n")) {
			answer(response, fsync(fd) ? strerror(errno) : "done");
		} else if (!strcmp(line, "close\n")) {
			close(fd);
			return unlink(request) || unlink(response);
		} else {
			answer(response, "unknown request");
		}
	}
	return 1;
}
