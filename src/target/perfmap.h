/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * perfmap: keeps a target's /tmp/perf-PID.map files true.
 *
 * A rewrite is due some time after the set of live bodies changed: no sooner than
 * max(1 s, map bytes / 1 MB/s) after the last, or at once on request. The text is formatted in
 * slices of the loop and replaces the old file by rename, so readers never see half a map. A map
 * that somebody else keeps (the runtime itself, another tool) is left alone, with one message.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/loop.h"
#include "codemap/codemap.h"
#include "proc/proc.h"

enum perfmap_where {
	PERFMAP_BOTH,
	PERFMAP_TARGET,
	PERFMAP_HOST,
	PERFMAP_OFF,
};

struct perfmap_options {
	enum perfmap_where where;
	enum names_style style;
	bool tiers;
	size_t max_bytes; /* 0 = DEFAULT_MAP_BYTES */
};

struct perfmap;

/*
 * Opens the places. Returns 0, -errno, or an enum proc_error when there is no place at all where a
 * map could be kept (the reason of the first). proc must outlive it.
 */
int perfmap_new(struct perfmap **outp, struct loop *loop, const struct proc *proc,
		const struct perfmap_options *opts);
/* Leaves the files where they are. */
void perfmap_free(struct perfmap *pm);
/* Removes what is still ours. */
void perfmap_remove(struct perfmap *pm);

/* map's live bodies may have changed: a rewrite will follow in due time if they did. */
void perfmap_changed(struct perfmap *pm, const struct codemap *map);
/*
 * Rewrites at once; done (may be NULL) is called when the files are in place (0) or not (code). A
 * write under way is given up, without its done().
 */
void perfmap_write(struct perfmap *pm, const struct codemap *map,
		   void (*done)(struct perfmap *pm, int result, void *data), void *data);
/* The map given earlier is about to be freed: forgets it, and a write under way, done() included.
 */
void perfmap_forget(struct perfmap *pm);

struct perfmap_status {
	uint64_t writes;
	uint64_t finished;             /* writes, and those that failed */
	size_t bytes, lines, left_out; /* of the last write */
	int error;                     /* of the last write: 0 or enum proc_error */
};
void perfmap_get_status(const struct perfmap *pm, struct perfmap_status *status);
/* The i-th file that is kept, NULL past the last. */
const char *perfmap_path(const struct perfmap *pm, size_t i);

DEFINE_CLEANUP(struct perfmap *, perfmap_free)
