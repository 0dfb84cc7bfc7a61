// SPDX-License-Identifier: GPL-2.0
/* The handshake of docs/reference/protocol.md, without X25519. */

#include <arpa/inet.h>
#include <string.h>
#include <netinet/in.h>
#include "prove.h"

void put(unsigned char *at, unsigned int bytes, uint64_t value)
{
	for (; bytes; bytes--, value >>= 8)
		*at++ = value;
}

uint64_t get(const unsigned char *at, unsigned int bytes)
{
	uint64_t value = 0;

	while (bytes--)
		value = value << 8 | at[bytes];
	return value;
}

void put_end(struct channel *c, unsigned int which, const union ibv_gid *gid, const struct sockaddr *address)
{
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)address;
	const struct sockaddr_in *in = (const struct sockaddr_in *)address;
	unsigned char *ip = c->bytes + CHANNEL_IPS + 16 * which;
	bool is_6 = address->sa_family == AF_INET6;

	memcpy(c->bytes + 16 * which, gid, 16);
	memset(ip, 0, 16);
	if (is_6)
		memcpy(ip, &in6->sin6_addr, 16);
	else
		memcpy(ip + 12, &in->sin_addr, 4);
	put(c->bytes + CHANNEL_PORTS + 2 * which, 2, ntohs(is_6 ? in6->sin6_port : in->sin_port));
}

/* A message to be hashed, composed of parts. */
struct message {
	unsigned char bytes[512];
	size_t n;
};

static void add(struct message *m, const void *bytes, size_t n)
{
	memcpy(m->bytes + m->n, bytes, n);
	m->n += n;
}

/* A label has 16 bytes. */
static struct message begin(const char *label)
{
	struct message m = { .n = 0 };

	add(&m, "hcablk/2 ", 9);
	memset(m.bytes + 9, ' ', 7);
	memcpy(m.bytes + 9, label, strlen(label));
	m.n = 16;
	return m;
}

void make_pair(struct handshake *h, const unsigned char *host_key, const unsigned char *target_key)
{
	struct message m = begin("pair");

	add(&m, target_key, KEY);
	hmac(h->pair, host_key, m.bytes, m.n);
}

void prove(struct handshake *h, const struct channel *c)
{
	static const unsigned char none[KEY];
	struct message m = begin("shake");
	unsigned char key[KEY], mac[KEY];

	add(&m, c->bytes, sizeof(c->bytes));
	add(&m, h->hello, CONNECT);
	add(&m, h->challenge, CHALLENGE);
	add(&m, h->proof, MAC_AT);
	add(&m, none, KEY);
	hmac(key, h->pair, m.bytes, m.n);
	m = begin("proof");
	hmac(mac, key, m.bytes, m.n);
	memcpy(h->proof + MAC_AT, mac, MAC);
	m = begin("session");
	hmac(h->session, key, m.bytes, m.n);
}

void seal_request(const struct handshake *h, const struct channel *c, unsigned char *request)
{
	struct message m = begin("request");
	unsigned char mac[KEY];

	add(&m, c->bytes, sizeof(c->bytes));
	add(&m, request, MAC_AT);
	hmac(mac, h->session, m.bytes, m.n);
	memcpy(request + MAC_AT, mac, MAC);
}

void mac_of_answer(const struct handshake *h, const struct channel *c, const char *label, const unsigned char *request,
		   const unsigned char *covered, size_t n, unsigned char mac[MAC])
{
	struct message m = begin(label);
	unsigned char whole[KEY];

	add(&m, c->bytes, sizeof(c->bytes));
	add(&m, request + MAC_AT, MAC);
	add(&m, covered, n);
	hmac(whole, h->session, m.bytes, m.n);
	memcpy(mac, whole, MAC);
}
