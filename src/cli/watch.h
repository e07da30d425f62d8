/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Which processes a running perf record sees, and attaching to those of them that are .NET, or
 * holding what the daemon has of them.
 *
 * All of /proc is looked through several times a second, so a process that is known to be of no
 * interest costs one stat(): of the file it executes, which also shows an exec.
 */

#include "cli/perfargs.h"
#include "cli/source.h"

struct watch {
	struct sources *set;
	const struct perfargs *args;
	pid_t perf;                   /* 0: not started */
	struct watched *items, *next; /* of the last round, and of this one: by pid */
	size_t n, size, n_next, next_size;
	uint64_t round_ns;
};

void watch_deinit(struct watch *watch);
/* One look at everything. Returns 0 or -ENOMEM. */
int watch_look(struct watch *watch);
