/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Is a process that runs now the one that was recorded? Pids come again, after a while, after a
 * boot, on another machine. Names of another program would be lies, so each question must be
 * answered yes; the first that is not says why.
 */

#include "cli/source.h"
#include "inject/inject.h"

/* What is known of a process that may have been recorded. */
struct trust_process {
	uint64_t start_ns; /* CLOCK_MONOTONIC */
	bool over; /* it has ended, or the recorded program has: others may have had the pid */
	const struct source_mapping *mappings;
	size_t n_mappings;
};

/*
 * Of the recording as a whole: this machine, this boot. Returns NULL or the reason (static).
 * clock_now: the recording's clock at this moment, 0 when not known.
 */
const char *trust_recording(const struct inject *inj, const struct perfdata *main,
			    uint64_t clock_now);

/*
 * Of one program: first is its first record (CLOCK_MONOTONIC; 0: no times). The mappings tell one
 * executed program from the next, as each gets its own addresses. Returns NULL or the reason
 * (static).
 */
const char *trust_program(const struct inject *inj, size_t program, uint64_t first,
			  const struct trust_process *process);
