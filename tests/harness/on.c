// SPDX-License-Identifier: GPL-2.0
//
// The test scripts' side of the runner: asks it to do something with a guest. In C, because a script calls it some
// hundred times, and an interpreter takes longer to start than most commands to run.
//
//	on on GUEST SECONDS SCRIPT...	run a shell script in a guest; its output and exit code become this program's
//	on vm kill|start|pause|resume GUEST
//	on vm off GUEST SECONDS		wait until the guest has ended
//	on vm add-drive GUEST		add the drive that loses its write cache
//	on vm link-down|link-up GUEST N	pull or plug the guest's Nth network cable
//	on vm trace GUEST EVENT		start a trace of QEMU's devices
//	on vm traced GUEST EVENT	end the trace, and print it
//	on log wait GUEST SECONDS REGEX	wait for a kernel message of this test
//	on log grep GUEST REGEX		the kernel messages of this test that match
//
// Exit code 124: the time limit has passed; 125: the guest is gone or does not respond, or the request is invalid.

#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { FAILED = 125 };

static void send_all(int fd, const char *data, size_t len)
{
	while (len) {
		ssize_t n = write(fd, data, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			exit(FAILED);
		data += n;
		len -= n;
	}
}

// Receives exactly `len` bytes; returns 0 at the end of the stream.
static int receive(int fd, void *data, size_t len)
{
	for (char *at = data; len;) {
		ssize_t n = read(fd, at, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return 0;
		at += n;
		len -= n;
	}
	return 1;
}

// Sends the words with a NUL after each, and another NUL at the end, so that an incomplete list is noticed.
static void send_words(int fd, char **words)
{
	size_t len = 1;
	char *text, *at;

	for (char **word = words; *word; word++)
		len += strlen(*word) + 1;
	at = text = calloc(1, len);
	if (!text)
		exit(FAILED);
	for (char **word = words; *word; word++)
		at = stpcpy(at, *word) + 1;
	send_all(fd, text, len);
	free(text);
}

int main(int, char **argv)
{
	const char *control = getenv("HCABLK_CONTROL");
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	unsigned char head[5];
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	if (!control || strlen(control) >= sizeof(address.sun_path)) {
		fprintf(stderr, "this runs under tests/run.sh only\n");
		return FAILED;
	}
	strcpy(address.sun_path, control);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address))) {
		perror(control);
		return FAILED;
	}
	send_words(fd, argv + 1);
	while (receive(fd, head, sizeof(head))) {
		uint32_t len = head[1] | head[2] << 8 | head[3] << 16 | (uint32_t)head[4] << 24;
		char *data = malloc(len + 1);

		if (!data || !receive(fd, data, len))
			break;
		data[len] = 0;
		if (head[0] == 'x')
			return atoi(data);
		send_all(head[0] == 'o' ? STDOUT_FILENO : STDERR_FILENO, data, len);
		free(data);
	}
	fprintf(stderr, "the test runner is gone\n");
	return FAILED;
}
