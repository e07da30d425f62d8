/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * peek: reads of another process's memory that cannot hold us up.
 *
 * The memory of a process may be a file on a dead server, or on a file system that the process
 * itself serves: a read of it may wait for ever, and no signal ends the wait. So a
 * thread of its own does the reading, and the caller waits for a bounded time. A thread that does
 * not come back is left behind, with its memory.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/util.h"

struct peek;

enum peek_error {
	PEEK_E_STUCK = 1, /* no answer in time, now or too often before */
};

/* mem_fd: of /proc/PID/mem, taken over in any case. Returns 0, -errno, or STUCK: too many are. */
int peek_new(struct peek **outp, int mem_fd);
void peek_free(struct peek *p);
/*
 * Reads up to size bytes. *np says how many there were (0: no such memory, or no such process any
 * more), *bytesp is good until the next call. Returns 0, -ENOMEM or a code.
 */
int peek_read(struct peek *p, uint64_t addr, size_t size, const uint8_t **bytesp, size_t *np);

DEFINE_CLEANUP(struct peek *, peek_free)
