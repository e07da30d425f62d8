/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* CLOCK_MONOTONIC in nanoseconds: the clock of EventPipe events and of BPF. */

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
