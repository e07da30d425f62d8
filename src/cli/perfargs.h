/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What of perf record's own command line concerns us. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct perfargs {
	const char *output; /* NULL: not said */
	const char *clock;  /* NULL: not said */
	const char *pids;   /* comma-separated, as said; NULL */
	const char *tids;
	bool system_wide; /* -a, -C, -u, -G: anything may be recorded */
	int command;      /* index of the program to run; argc: none */
};

/*
 * argv[0] is "record". Understands what perf does: joined and separate values, bundled flags, and
 * where the program to run begins.
 */
void perfargs_parse(struct perfargs *args, int argc, char **argv);

/* The clockid of a name as perf takes it: "mono", "CLOCK_MONOTONIC_RAW", ... False: not known. */
bool perfargs_clockid(const char *name, int32_t *clockidp);
