/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Hashing for tables whose keys outsiders choose.
 *
 * Multiply-and-fold hashing, keyed with a random seed per process, so that a target
 * cannot choose names or addresses that all fall into one chain. Not cryptographic.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A random seed, the same for the life of the process. */
uint64_t hash_seed(void);

static inline uint64_t hash_fold(uint64_t a, uint64_t b)
{
	__uint128_t m = (__uint128_t)a * b;

	return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static inline uint64_t hash_u64(uint64_t seed, uint64_t v)
{
	return hash_fold(v ^ seed, 0x9e3779b97f4a7c15u);
}

static inline uint64_t hash_bytes(uint64_t seed, const void *data, size_t n)
{
	const uint8_t *p = data;
	uint64_t h = seed ^ n, a = 0, b = 0;

	while (n > 16) {
		memcpy(&a, p, 8);
		memcpy(&b, p + 8, 8);
		h = hash_fold(a ^ h, b ^ 0xa0761d6478bd642fu);
		p += 16;
		n -= 16;
	}
	a = b = 0;
	if (n > 8) {
		memcpy(&a, p, 8);
		memcpy(&b, p + n - 8, 8);
	} else if (n >= 4) {
		uint32_t lo, hi;

		memcpy(&lo, p, 4);
		memcpy(&hi, p + n - 4, 4);
		a = lo;
		b = hi;
	} else if (n) {
		a = (uint64_t)p[0] << 16 | (uint64_t)p[n / 2] << 8 | p[n - 1];
	}
	return hash_fold(a ^ h ^ 0xe7037ed1a0b428dbu, b ^ seed ^ 0x8ebc6af09c88c6e3u);
}
