/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * perf's clocks against CLOCK_MONOTONIC.
 *
 * Code events carry CLOCK_MONOTONIC; a recording has that clock only with `perf record -k mono`.
 * By default it has the kernel's scheduler clock, which no system call reads and which is some
 * milliseconds off and drifts. But the kernel stamps any event of our own with it: so the relation
 * is measured, a few times while the recording goes on, and times of the file are
 * converted by what was measured around them.
 *
 * A measurement holds for this machine and this boot, and for nothing else.
 */

#include <stdbool.h>
#include <stdint.h>

/* Positive codes: the kernel does not let us measure. */
enum perfdata_clock_error {
	PERFDATA_CLOCK_E_DENIED = 1,  /* perf_event_paranoid, or a seccomp filter */
	PERFDATA_CLOCK_E_UNSUPPORTED, /* a kernel without perf events */
	PERFDATA_CLOCK_E_CLOCK,       /* no clock that perf can use */
	PERFDATA_CLOCK_E_MEMORY,      /* the user's limit on locked memory is used up */
	PERFDATA_CLOCK_E_NOTHING,     /* no usable record came */
};

/* One moment on both clocks. */
struct perfdata_clock_pair {
	uint64_t mono_ns, clock_ns;
	uint64_t error_ns; /* clock_ns is off by this at most */
};

/*
 * Measures the clock of a recording: attr.use_clockid and attr.clockid of its events. Takes well
 * under a millisecond, in the calling thread alone. Returns 0, -errno or a code.
 */
int perfdata_clock_measure(bool use_clockid, int32_t clockid, struct perfdata_clock_pair *pairp);
/* One line: cause and remedy. */
const char *perfdata_clock_error_text(int error);

#define PERFDATA_CLOCK_PAIRS 128u

/* Pairs over time, oldest first. Zeroed: a clock that needs no conversion. */
struct perfdata_clock_track {
	struct perfdata_clock_pair pairs[PERFDATA_CLOCK_PAIRS];
	uint32_t n;
};

/*
 * Adds the newest pair. A full track gives up every other pair in between, so it spans a
 * recording of any length. False, and no change, for a pair that is not later on both clocks.
 */
bool perfdata_clock_track_add(struct perfdata_clock_track *track,
			      const struct perfdata_clock_pair *pair);
/* Between pairs a straight line, beyond the ends the distance of the nearest pair. */
uint64_t perfdata_clock_to_mono(const struct perfdata_clock_track *track, uint64_t clock_ns);
uint64_t perfdata_clock_from_mono(const struct perfdata_clock_track *track, uint64_t mono_ns);
