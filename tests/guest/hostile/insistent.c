// SPDX-License-Identifier: GPL-2.0
/* A false initiator that requests changes of reservations without a pause. */

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include "hostile.h"
#include "client.h"

/* Registers a new key each time, which is a change, until the file exists. */
static void insist(unsigned int me, const char *stop)
{
	static struct count count;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct rng r = stream('i', me);
	unsigned char b[KEPT] = { REGISTER };
	struct connection *admin;
	struct asked a;
	int status;

	mine = &count;
	number = me;
	admin = enter_admin(&r, &a);
	put(b + 16, 4, FLAG);
	for (uint32_t change = 1; access(stop, F_OK); change++) {
		put(b + SEQUENCE_AT, 4, change);
		put(b + SECOND_AT, 8, (uint64_t)(me + 1) << 32 | change);
		do {
			put(b + 4, 4, next(&r));
			status = ask_admin(admin, &wr, b, REQUEST, false);
		} while (status == DRAINING && access(stop, F_OK));
		if (status != OK && status != DRAINING)
			failed("a change is answered by %d", status);
	}
	destroy(admin);
}

int play_insistent(const char *stop)
{
	int all = 0;

	for (unsigned int i = 0; i < WORKERS; i++) {
		pid_t worker = fork();

		if (worker < 0)
			failed("fork: %s", strerror(errno));
		if (!worker) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			insist(i, stop);
			_exit(0);
		}
	}
	for (unsigned int left = WORKERS; left; left--) {
		int status;

		/* The failed process has printed the reason. */
		if (wait(&status) < 0 || status)
			all = 1;
	}
	return all;
}
