/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Answers about code, in the one vocabulary that every verb and the query protocol share:
 * addr, time, method_id, ns, name, sig, module, tier, start, size, offset, il_offset, or reason.
 */

#include <stdbool.h>
#include <stdint.h>

#include "codemap/codemap.h"
#include "target/feed.h"

/*
 * Reads a trace file into the map. *feedp is the feed (owned by the caller; its decoder may be
 * asked for statistics). Errors are reported on stderr; returns 0, -errno, or positive for a
 * stream that could not be followed to its end (what came before is in the map).
 */
int answer_read_trace(struct codemap *map, const char *path, struct feed **feedp);

/* One body, as a line of text ("start size tier name") or a JSON object. */
void answer_print_body(const struct codemap_info *info, bool json);

/* The answer for one address; time 0: the last known state. True when it has a name. */
bool answer_print(const struct codemap *map, uint64_t addr, uint64_t time, bool json);
