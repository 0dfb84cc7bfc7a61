// SPDX-License-Identifier: GPL-2.0
/* HMAC-SHA256 as in FIPS 180-4 and RFC 2104, independent of the kernel's and the modules' code. */

#include <string.h>
#include "prove.h"

static const uint32_t K[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t turned(uint32_t x, unsigned int by)
{
	return x >> by | x << (32 - by);
}

static void block(uint32_t h[8], const unsigned char *b)
{
	uint32_t w[64], v[8];

	for (unsigned int i = 0; i < 16; i++)
		w[i] = (uint32_t)b[4 * i] << 24 | b[4 * i + 1] << 16 | b[4 * i + 2] << 8 | b[4 * i + 3];
	for (unsigned int i = 16; i < 64; i++)
		w[i] = w[i - 16] + w[i - 7] +
		       (turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3) +
		       (turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10);
	memcpy(v, h, sizeof(v));
	for (unsigned int i = 0; i < 64; i++) {
		uint32_t a = v[7] + (turned(v[4], 6) ^ turned(v[4], 11) ^ turned(v[4], 25)) +
			     ((v[4] & v[5]) ^ (~v[4] & v[6])) + K[i] + w[i];
		uint32_t e = (turned(v[0], 2) ^ turned(v[0], 13) ^ turned(v[0], 22)) +
			     ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));

		memmove(v + 1, v, 7 * sizeof(*v));
		v[4] += a;
		v[0] = a + e;
	}
	for (unsigned int i = 0; i < 8; i++)
		h[i] += v[i];
}

static void sha256(unsigned char out[32], const unsigned char *data, size_t n)
{
	uint32_t h[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
	unsigned char end[128] = { 0 };
	size_t whole = n / 64 * 64, left = n - whole, length = left < 56 ? 64 : 128;

	for (size_t at = 0; at < whole; at += 64)
		block(h, data + at);
	memcpy(end, data + whole, left);
	end[left] = 0x80;
	for (unsigned int i = 0; i < 8; i++)
		end[length - 1 - i] = (uint64_t)n * 8 >> 8 * i;
	for (size_t at = 0; at < length; at += 64)
		block(h, end + at);
	for (unsigned int i = 0; i < 32; i++)
		out[i] = h[i / 4] >> (24 - 8 * (i % 4));
}

void hmac(unsigned char out[32], const unsigned char key[32], const unsigned char *data, size_t n)
{
	unsigned char inner[64 + 512], outer[64 + 32];

	if (n > 512)
		failed("a message of %zu bytes", n);
	memset(inner, 0x36, 64);
	memset(outer, 0x5c, 64);
	for (unsigned int i = 0; i < 32; i++) {
		inner[i] ^= key[i];
		outer[i] ^= key[i];
	}
	memcpy(inner + 64, data, n);
	sha256(outer + 64, inner, 64 + n);
	sha256(out, outer, 96);
}
