/* SPDX-License-Identifier: Apache-2.0 */
/* The per-process hash seed: see hash.h for why it is random. */
#include "base/hash.h"

#include <sys/random.h>
#include <time.h>

uint64_t hash_seed(void)
{
	static uint64_t seed;

	if (!seed) {
		struct timespec ts;

		if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) != sizeof(seed)) {
			/* early boot: the clock is a poor seed but a different one each time */
			clock_gettime(CLOCK_MONOTONIC, &ts);
			seed = (uint64_t)ts.tv_nsec * 0x9e3779b97f4a7c15u + (uint64_t)ts.tv_sec;
		}
		seed |= 1;
	}
	return seed;
}
