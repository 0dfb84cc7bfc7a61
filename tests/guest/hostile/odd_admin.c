// SPDX-License-Identifier: GPL-2.0
/* The false initiator's admin queue pairs: good messages, odd ones, and a target's correct answers. */

#include <string.h>
#include <unistd.h>
#include "hostile.h"
#include "client.h"

enum { TYPES = 6 };

/* Makes a message about reservations with random fields, which may break rules. */
static void any_reservation(struct rng *r, unsigned char *b)
{
	unsigned int op = REGISTER + below(r, READ_RESERVATION - REGISTER + 1);
	bool change = op < READ_KEY;

	memset(b, 0, KEPT);
	b[0] = op;
	put(b + 4, 4, next(r));
	put(b + 8, 8, op == READ_KEY ? below(r, 1000) : op == READ_RESERVATION ? 0 : chance(r, 300) ? 0 : next(r));
	if (op == RESERVE || op == RELEASE || op == PREEMPT)
		put(b + 16, 4, 1 + below(r, TYPES));
	if ((op == REGISTER || op == PREEMPT) && chance(r, 500))
		put(b + 16, 4, get(b + 16, 4) | FLAG);
	if (change)
		put(b + SEQUENCE_AT, 4, next(r));
	if (op == PREEMPT || (op == REGISTER && chance(r, 500)))
		put(b + SECOND_AT, 8, next(r));
	if (chance(r, 100))
		put(b + 16, 4, odd_number(r));
	if (chance(r, 50))
		put(b + 8, 8, odd_number(r) << 24);
	if (chance(r, 50))
		b[1 + below(r, 3)] = 1 + below(r, 255);
	if (chance(r, 50))
		b[20 + below(r, 20)] = odd_number(r);
}

/*
 * Returns whether these bytes could make this host a registrant, which would change the rights of
 * others: test reservations/changes. All other changes need a key that this host does not have.
 */
static bool registers(const unsigned char *b)
{
	return b[0] == REGISTER && get(b + SECOND_AT, 8) && (!get(b + 8, 8) || get(b + 16, 4) & FLAG);
}

static void reservation_message(struct rng *r, unsigned char *b)
{
	do
		any_reservation(r, b);
	while (registers(b));
}

/* Returns a target's correct answer to these bytes, of correct length, from an unregistered host. */
static int judge_reservation(const unsigned char *b)
{
	uint64_t key = get(b + 8, 8), second = get(b + SECOND_AT, 8);
	unsigned int flags = get(b + 16, 4), type = flags & ~FLAG;
	bool typed = type >= 1 && type <= TYPES;

	if (b[1] || b[2] || b[3] || !zero(b + 32, 8))
		return END;
	switch (b[0]) {
	case REGISTER:
		if (flags & ~FLAG)
			return END;
		/* An unregistered host has no key, and may ignore its key. */
		return key && !(flags & FLAG) ? CONFLICT : OK;
	case RESERVE:
	case RELEASE:
		return typed && !(flags & FLAG) && !second ? CONFLICT : END;
	case PREEMPT:
		return typed ? CONFLICT : END;
	case CLEAR:
		return flags || second ? END : CONFLICT;
	case READ_KEY:
		return flags || get(b + SEQUENCE_AT, 4) || second || key > UINT32_MAX ? END : OK;
	default:
		return flags || get(b + SEQUENCE_AT, 4) || second || key ? END : OK;
	}
}

/* Returns whether an answer reports that there are no reservations. */
static bool reports_no_reservation(const unsigned char *got)
{
	return got[0] == 0x83 && !got[1] && !get(got + 10, 2) && !get(got + 16, 8);
}

/* Returns whether an answer fits its watch: the state, and with limits their generation. */
static bool reports_volume(const unsigned char *b, const unsigned char *got, size_t n)
{
	bool limits = b[16] & 16, cache = b[16] & 4;

	return n == (limits ? LIMITS_ANSWER : ADMIN_ANSWER) && got[0] == (limits ? 0x84 : 0x82) &&
	       !(got[1] & ~(cache ? 7 : 1)) && !(got[1] & 4) == !cache && !get(got + 10, 2) &&
	       !get(got + 12, 4) == !limits && get(got + 16, 8);
}

/* Returns whether an answer to these bytes is valid. */
static bool is_answer(const unsigned char *b, const unsigned char *got, size_t n)
{
	bool ok = !get(got + 8, 2);

	if (get(got + 2, 2) || memcmp(got + 4, b + 4, 4))
		return false;
	if (b[0] == WATCH && ok)
		return reports_volume(b, got, n);
	if (n != ADMIN_ANSWER)
		return false;
	if (b[0] >= READ_KEY && ok)
		return reports_no_reservation(got);
	return got[0] == 0x82 && !got[1] && zero(got + 10, 2) && !get(got + 12, 4) != (b[0] == PORTALS && ok) &&
	       zero(got + 16, 8);
}

int ask_admin(struct connection *admin, struct ibv_send_wr *wr, const unsigned char *b, size_t n, bool fire)
{
	uint64_t end = now_ms() + WAIT_TIMEOUT_MS;

	mine->admins++;
	post_message(admin, wr, b, n);
	while (!fire && now_ms() < end) {
		struct rdma_cm_event *event;
		struct ibv_wc wc;

		if (admin->broken)
			return -1;
		if (ibv_poll_cq(admin->cq, 1, &wc) > 0) {
			const unsigned char *got = admin->receive[wc.wr_id % RECEIVES];

			if (wc.status != IBV_WC_SUCCESS)
				return -1;
			if (wc.wr_id >> 63)
				continue;
			if (wc.opcode != IBV_WC_RECV || !is_answer(b, got, wc.byte_len)) {
				print_bytes("admin answer", got, LIMITS_ANSWER);
				failed("a malformed answer on an admin queue pair");
			}
			post_receive(admin, wc.wr_id);
			return get(got + 8, 2);
		}
		event = next_event(admin->channel, 1);
		if (!event)
			continue;
		if (event->event != RDMA_CM_EVENT_ESTABLISHED)
			admin->broken = true;
		rdma_ack_cm_event(event);
	}
	if (!fire)
		failed("a message on an admin queue pair is not answered");
	return 0;
}

/* Makes a good message of this kind for an admin queue pair; a watch has wrong values, unless `right`. */
static void admin_message(struct rng *r, unsigned char *b, unsigned char op, bool right)
{
	memset(b, 0, KEPT);
	b[0] = op;
	put(b + 4, 4, next(r));
	if (op == KEEP_ALIVE)
		put(b + 8, 2, 60 + below(r, TMO_MAX - 59));
	if (op == FENCE) {
		put(b + 8, 4, 1 + below(r, UINT32_MAX));
		put(b + 12, 4, PATHS);
	}
	if (op == PORTALS)
		put(b + 8, 4, next(r));
	if (op == WATCH) {
		put(b + 8, 8, capacity / SECTOR + (right ? 0 : 1 + below(r, 1000)));
		b[16] = read_only;
		/* The initiator follows changes of the write cache, or does not. */
		if (!right)
			b[16] |= (unsigned char[]){ 0, 4, 6, 12, 14, 16, 20, 30 }[below(r, 8)];
		/* A random generation does not match. */
		if (b[16] & 16)
			put(b + 20, 4, next(r));
	}
}

/* Returns a target's correct answer on an admin queue pair without a watch: a status, or END. */
static int judge_admin(const unsigned char *b, size_t n)
{
	uint64_t value = get(b + 8, 8), flags = get(b + 16, 4);
	/* The second and the fourth flag need the third. */
	bool odd = b[0] == WATCH ? flags > 31 || (flags & 10 && !(flags & 4)) : flags;
	/* The fifth flag comes with a generation. */
	unsigned int known = b[0] == WATCH && flags & 16 ? 4 : 0;

	if (n == REQUEST && b[0] >= REGISTER && b[0] <= READ_RESERVATION)
		return judge_reservation(b);
	if (n != REQUEST || b[1] || b[2] || b[3] || odd || !zero(b + 20 + known, 20 - known))
		return END;
	if (b[0] == KEEP_ALIVE)
		return value && value <= TMO_MAX ? OK : END;
	if (b[0] == FENCE)
		return !get(b + 8, 4) || get(b + 12, 4) > PATHS ? END : get(b + 12, 4) == own_path ? INVALID : OK;
	/* This session never ends in order. */
	if (b[0] == DURABLE)
		return value ? END : DRAINING;
	/* A random generation does not match. */
	if (b[0] == PORTALS)
		return value <= UINT32_MAX ? OK : END;
	return b[0] == WATCH && value ? OK : END;
}

struct connection *enter_admin(struct rng *r, struct asked *a)
{
	for (unsigned int tries = 0; tries < 500; tries++) {
		struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
		struct connection *admin;
		unsigned char b[KEPT];
		unsigned int reason;

		good_request(r, a);
		admin = ask(a, &reason, false);
		if (!admin) {
			/* Old sessions end with a delay. */
			if (reason != NO_RESOURCES)
				failed("a good connection request was refused for %u", reason);
			usleep(100000);
			continue;
		}
		if (a->reply_length < REPLY || memcmp(a->reply, "HCAB\2", 5) || get(a->reply + 6, 2) != ADMIN_DEPTH ||
		    memcmp(a->reply + 24, a->request + 12, 8) || memcmp(a->reply + 32, a->request + 20, 4))
			failed("the target's reply for an admin queue pair is wrong");
		capacity = get(a->reply + 8, 8);
		read_only = a->reply[18] & 1;
		own_path = get(a->request + 12, 8) >> 12 & PATHS;
		admin_message(r, b, KEEP_ALIVE, true);
		put(b + 8, 2, TMO_MAX);
		if (ask_admin(admin, &wr, b, REQUEST, false) != OK)
			failed("a keep-alive is not answered as it should be");
		return admin;
	}
	failed("no session becomes free");
}

/* Sends a judged message, and fails on any other answer of the target. */
static void expect_answer(struct connection *admin, struct ibv_send_wr *wr, const unsigned char *b, size_t n, int wanted)
{
	bool reserves = n == REQUEST && b[0] >= REGISTER && b[0] <= READ_RESERVATION;
	int got = DRAINING;

	/* Another change of the drive's reservations is in progress. */
	for (unsigned int tries = 0; got == DRAINING && tries < (reserves ? 100 : 1); tries++) {
		if (tries)
			usleep(20000);
		got = ask_admin(admin, wr, b, n, false);
	}
	mine->reservations += reserves && wanted != END;
	if (got != (wanted == END ? -1 : wanted)) {
		print_bytes("admin message", b, n < KEPT ? n : KEPT);
		failed("%d where %d was due on an admin queue pair", got, wanted);
	}
	mine->admin_ends += wanted == END;
}

void odd_admin(struct rng *r)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct connection *admin;
	unsigned int kind = below(r, 12);
	unsigned char b[KEPT], op;
	size_t n = REQUEST;
	struct asked a;
	int wanted;

	/* With any seed, each worker sends at least one message about reservations. */
	if (!mine->reservations)
		kind = 8;
	admin = enter_admin(r, &a);
	op = KEEP_ALIVE + below(r, 5);
	admin_message(r, b, op, false);
	switch (kind) {
	case 0:
		/* An operation of the other queue pairs. */
		b[0] = READ + below(r, NOP);
		break;
	case 1:
		/* A second watch, while the first is open. */
		admin_message(r, b, WATCH, true);
		ask_admin(admin, &wr, b, REQUEST, true);
		admin_message(r, b, WATCH, chance(r, 500));
		break;
	case 2:
		n = chance(r, 500) ? below(r, REQUEST) : REQUEST + 1 + below(r, BUFFER);
		break;
	case 3:
		b[chance(r, 500) ? 1 + below(r, 3) : 20 + below(r, 20)] = 1 + below(r, 255);
		break;
	case 4:
		admin_message(r, b, KEEP_ALIVE, true);
		put(b + 8, 8, chance(r, 500) ? 0 : TMO_MAX + 1 + below(r, 1000));
		break;
	case 5:
		admin_message(r, b, FENCE, true);
		put(b + 8 + 4 * below(r, 2), 4, chance(r, 500) ? own_path : odd_number(r));
		break;
	case 6:
		/* Leave a receive buffer empty. */
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.imm_data = next(r);
		n = 0;
		break;
	case 7:
		/* Correct messages, more than may be in flight: they are answered, or the session ends. */
		for (unsigned int i = 0; i < 40; i++) {
			admin_message(r, b, KEEP_ALIVE, true);
			ask_admin(admin, &wr, b, REQUEST, true);
		}
		mine->admin_ends++;
		destroy(admin);
		return;
	case 8:
	case 9:
		/* Odd messages up to the first that ends the session. */
		for (unsigned int i = below(r, 12);; i--) {
			reservation_message(r, b);
			wanted = judge_reservation(b);
			if (!i || wanted == END)
				break;
			expect_answer(admin, &wr, b, n, wanted);
		}
		break;
	default:
		do {
			admin_message(r, b, op, false);
			mutate(r, b, REQUEST);
		} while (b[0] >= REGISTER && registers(b));
	}
	wanted = kind == 1 || kind == 6 ? END : judge_admin(b, n);
	/* The watch matches the volume, and stays open. */
	if (wanted == OK && b[0] == WATCH && get(b + 8, 8) == capacity / SECTOR)
		put(b + 8, 8, capacity / SECTOR + 1);
	expect_answer(admin, &wr, b, n, wanted);
	destroy(admin);
}
