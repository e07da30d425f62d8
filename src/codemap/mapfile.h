/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The perf map text form of the live bodies, a piece at a time.
 *
 * One line a body, in address order: "START SIZE NAME\n", lower-case hex without 0x. What
 * readers make of such files decides the rest (CAP_MAP_NAME, FLOOR_MAP_NAME): never two
 * lines that overlap, no size 0, names of 3 to 300 bytes of UTF-8 without control
 * characters, and nothing but such lines.
 *
 * The map may change between steps. The result is then what was alive when the writer
 * passed by; it still has no overlaps.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/util.h"
#include "codemap/codemap.h"

struct codemap_map_options {
	enum names_style style;
	bool tiers;       /* "[Tier]" at the end of each name */
	size_t max_bytes; /* 0 = DEFAULT_MAP_BYTES */
};

struct codemap_map_writer {
	struct codemap_map_options opts;
	struct buf name;
	uint64_t next;   /* no start below this any more */
	size_t bytes;    /* written so far */
	size_t lines;    /* written so far */
	size_t left_out; /* bodies beyond max_bytes */
	bool full, done;
};

void codemap_map_writer_init(struct codemap_map_writer *w, const struct codemap_map_options *opts);
void codemap_map_writer_deinit(struct codemap_map_writer *w);
/*
 * Appends whole lines to out until it has grown by about budget bytes or all is said; then
 * w->done is set. Returns 0 or the buffer's -ENOMEM or -ENOSPC, after which the step may
 * be repeated: it appended nothing that it will not append again.
 */
int codemap_map_writer_step(struct codemap_map_writer *w, const struct codemap *map,
			    struct buf *out, size_t budget);

#define _cleanup_map_writer_ _cleanup_(codemap_map_writer_deinit)
