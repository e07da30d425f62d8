/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Answers about code, in the one vocabulary that every verb and the query protocol share:
 * addr, time, the members of a method (query_put_method()), offset, il_offset, or reason.
 */

#include <stdbool.h>
#include <stdint.h>

#include "cli/ask.h"
#include "codemap/codemap.h"
#include "query/symbols.h"
#include "target/feed.h"

/*
 * Reads a trace file into the map. *feedp is the feed (owned by the caller; its decoder may be
 * asked for statistics). Errors are reported on stderr; returns 0, -errno, or positive for a
 * stream that could not be followed to its end (what came before is in the map).
 */
int answer_read_trace(struct codemap *map, const char *path, struct feed **feedp);

/* One body, as a line of text ("start size tier name") or a JSON object. */
void answer_print_body(const struct codemap_info *info, bool json);

/* A method's tier, made safe (static, until the next call but three). */
const char *answer_tier(const struct query_method *m);
/* "start size tier name" of a method, for the end of a line. Names are made safe for it. */
void answer_put_method(struct buf *line, const struct query_method *m);

/*
 * A table of methods: its head, and a row of it, to be appended to a line. times: with those at
 * which they came and went.
 */
void answer_print_head(bool times);
void answer_put_row(struct buf *line, const struct query_method *m, bool times);
/* CLOCK_MONOTONIC in seconds, as perf and bpftrace print it, 13 wide; 0: none. */
void answer_put_time(struct buf *line, uint64_t ns);

/* The answer for one address; time 0: the last known state. Returns 0 or -ENOMEM. */
int answer_print(uint64_t addr, uint64_t time, const struct ask_answer *a, bool json);

/* Prints a line and empties it. Returns 0 or -ENOMEM. */
int answer_print_line(struct buf *line);
