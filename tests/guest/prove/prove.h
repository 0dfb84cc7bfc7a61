// SPDX-License-Identifier: GPL-2.0
/* Declarations that the parts of hcablk-prove share; main.c describes the program. */

#ifndef PROVE_H
#define PROVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <rdma/rdma_cma.h>

enum { CONNECT = 56, CHALLENGE = 80, REPLY = 88, SEALED_REPLY = 112, REJECT = 16, SEALED_REJECT = 32, KEY = 32, MAC = 16 };
enum { CHALLENGED = 12 };
/* The offset of the MAC in a request. */
enum { MAC_AT = CONNECT - MAC };
/* Bits 15 and 14 of byte 6: a proof; its share is a public key. Bit 14 of byte 10: a proof will follow. */
enum { PROOF = 0x8000, X25519 = 0x4000, PROVES = 0x4000 };

__attribute__((noreturn, format(printf, 1, 2)))
void failed(const char *format, ...);
void hmac(unsigned char out[32], const unsigned char key[32], const unsigned char *data, size_t n);

void put(unsigned char *at, unsigned int bytes, uint64_t value);
uint64_t get(const unsigned char *at, unsigned int bytes);

/* The state of a handshake that both sides have. */
struct handshake {
	unsigned char hello[CONNECT], challenge[CHALLENGE], proof[CONNECT];
	unsigned char pair[KEY], session[KEY];
};

/* The connection as covered by a MAC: GIDs, IP addresses, ports and queue pairs, the initiator's first. */
enum { CHANNEL_IPS = 32, CHANNEL_PORTS = 64, CHANNEL_INITIATOR_QP = 68, CHANNEL_TARGET_QP = 72, CHANNEL = 76 };
struct channel {
	unsigned char bytes[CHANNEL];
};

/* Enters an end of the connection into a channel; `which`: 0 the initiator's, 1 the target's. */
void put_end(struct channel *c, unsigned int which, const union ibv_gid *gid, const struct sockaddr *address);

void make_pair(struct handshake *h, const unsigned char *host_key, const unsigned char *target_key);
/* Appends the MAC to a proof, and derives the session's key. */
void prove(struct handshake *h, const struct channel *c);
/* Appends the MAC to a sealed request, or to a reply or a reject. */
void seal_request(const struct handshake *h, const struct channel *c, unsigned char *request);
void mac_of_answer(const struct handshake *h, const struct channel *c, const char *label, const unsigned char *request,
		   const unsigned char *covered, size_t n, unsigned char mac[MAC]);

/* A requested connection. */
struct asked {
	struct rdma_cm_id *id;
	struct rdma_event_channel *events;
	struct channel channel;
	unsigned char answer[256];
	size_t length;
	bool granted;
};

extern unsigned char host_key[KEY], target_key[KEY];
/* The mistake to make; is() compares it. */
extern const char *wrong;
bool is(const char *what);
void unhex(const char *text, unsigned char *bytes, unsigned int n);

struct asked prepare(void);
/* Sends a request, and waits for the target's answer. */
void ask(struct asked *a, const unsigned char *request, unsigned int length);
void forget(struct asked *a);
void make_pair_of_initiator(struct handshake *h);
/* Requests a challenge and answers it; returns the last connection, granted or not. */
struct asked shake(struct handshake *h);

struct rdma_event_channel *listen_at(const char *port);
/* Waits for a connection request. */
struct rdma_cm_id *next_request(struct rdma_event_channel *events, unsigned char *request, uint32_t *qp);
void accept_by(struct rdma_cm_id *id, const unsigned char *b, size_t n);
struct channel channel_of(const struct rdma_cm_id *id, uint32_t initiator_qp);

/* Discovery. */
enum { ENTRY = 64, SEALED_ENTRY = 80 };
enum { MALFORMED = 1, VERSION, NO_SESSION = 7, NOT_PROVEN = 13, LISTED };
/* Random choices, made from the seed and a number. */
struct chance {
	uint64_t state;
};
struct chance chance_of(uint64_t seed, uint64_t number);
uint64_t chance(struct chance *c, uint64_t below);
/* Changes some bytes at random. */
void change(struct chance *c, unsigned char *bytes, unsigned int n);
/* Changes the byte of "AT=VALUE"; returns false if the text has another form. */
bool set_byte(const char *text, unsigned char *bytes, unsigned int n);
bool is_name(const unsigned char *b);
bool is_zero(const unsigned char *b, unsigned int n);

int play_target(char **argv);
int ask_question(char **argv);
int ask_by_chance(char **argv);
int ask_by_many(char **argv);
int play_lists(char **argv);

#endif
