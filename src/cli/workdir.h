/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Where perf writes what is to be named before anybody sees it.
 *
 * A folder beside the output (so that what cannot be named can be handed over by rename), if nobody
 * else can put another in its place; otherwise in TMPDIR or /var/tmp. It goes when all that is in
 * it has been delivered, and not before.
 */

#include <stdbool.h>

#include "base/util.h"

struct workdir;

/*
 * For an output path (a link is followed, as perf does). Returns 0 or -errno; -EEXIST when
 * something stands there that is neither a file nor a recording's folder.
 */
int workdir_new(struct workdir **outp, const char *output);
/* Removes it if it is empty of recordings. */
void workdir_free(struct workdir *w);
/* The path that perf is to write to. */
const char *workdir_perf_output(const struct workdir *w);

/*
 * Calls deliver(data, from, to) for each recording in it: one, or several of --switch-output. What
 * stands at `to` has become to.old by then. 0 means that it is delivered; otherwise it is handed
 * over as it is, if that can be done. Returns how many could not be delivered or handed over, or
 * -errno; *np: how many there were.
 */
int workdir_deliver(struct workdir *w, int (*deliver)(void *data, const char *from, const char *to),
		    void *data, unsigned int *np);

DEFINE_CLEANUP(struct workdir *, workdir_free)
