// SPDX-License-Identifier: GPL-2.0
#include <crypto/curve25519.h>
#include <crypto/sha2.h>
#include <crypto/utils.h>
#include <linux/random.h>
#include <linux/string.h>

#include "helpers.h"

void hcablk_c_hmac_sha256(const u8 *key, size_t key_len, const u8 *data, size_t len, u8 *out)
{
	hmac_sha256_usingrawkey(key, key_len, data, len, out);
}

/* Compares in constant time, like crypto_memneq(), which a small kernel lacks. */
bool hcablk_c_is_equal(const u8 *a, const u8 *b, size_t len)
{
#if IS_REACHABLE(CONFIG_CRYPTO_LIB_UTILS)
	return !crypto_memneq(a, b, len);
#else
	unsigned long differs = 0;

	while (len--) {
		differs |= *a++ ^ *b++;
		OPTIMIZER_HIDE_VAR(differs);
	}
	return !differs;
#endif
}

void hcablk_c_wipe(u8 *bytes, size_t len)
{
	memzero_explicit(bytes, len);
}

/*
 * Waits until the kernel's random number generator is ready, soon after the start of the machine.
 * Returns false if a signal ended the wait: the random bytes would be predictable.
 */
bool hcablk_c_random(u8 *bytes, size_t len)
{
	if (wait_for_random_bytes())
		return false;
	get_random_bytes(bytes, len);
	return true;
}

/* False where the kernel has no X25519. */
bool hcablk_c_x25519(u8 *out, const u8 *private, const u8 *point)
{
#if IS_REACHABLE(CONFIG_CRYPTO_LIB_CURVE25519)
	u8 scalar[CURVE25519_KEY_SIZE];
	bool good;

	memcpy(scalar, private, sizeof(scalar));
	curve25519_clamp_secret(scalar);
	good = point ? curve25519(out, scalar, point) : curve25519_generate_public(out, scalar);
	memzero_explicit(scalar, sizeof(scalar));
	return good;
#else
	return false;
#endif
}
