/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * offsets: from a place in a file to the address at which a process has it mapped as code.
 * perf script prints frames of call chains as such places.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "query/stacks.h"

struct offsets_mapping {
	uint64_t start, len, offset;
	char *path;
	size_t path_len;
};

/* The mappings of one process. All zero at the start. */
struct offsets {
	struct offsets_mapping *told; /* by perf script --show-mmap-events, in that order */
	size_t n_told;
	struct offsets_mapping *now; /* read from the process */
	size_t n_now;
	uint64_t read_ns; /* 0: never */
};

void offsets_deinit(struct offsets *o);
/* A line of perf script. Returns 0 or -ENOMEM. */
int offsets_add(struct offsets *o, const struct stacks_mapping *m);
/*
 * The address of an offset in a file; reads the process's mappings if need be. Returns 0, 1 (not
 * mapped, or at more than one place) or -errno.
 */
int offsets_find(struct offsets *o, pid_t pid, const char *path, size_t len, uint64_t offset,
		 uint64_t *addrp);
