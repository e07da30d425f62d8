/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * registry: all targets of a daemon, each with its lock, its code map and its perf map.
 *
 * After a target's exit its answers stay for a while, and its map files for a shorter one; the
 * daemon ends with its last target.
 */

#include "base/loop.h"
#include "target/options.h"

struct registry;

int registry_new(struct registry **outp, struct loop *loop, const struct attach_options *opts);
void registry_free(struct registry *reg);

/* Begins to attach. A process that cannot be is reported; only our own failures (-errno) return. */
int registry_attach(struct registry *reg, pid_t pid);
/* Runs until the last target has ended. Returns 0, -errno, or 1 when none was ever attached. */
int registry_run(struct registry *reg);
/* Stops all targets in good order and then the loop, within timeout_ns. */
void registry_stop(struct registry *reg, uint64_t timeout_ns);
void registry_write_maps(struct registry *reg);

DEFINE_CLEANUP(struct registry *, registry_free)
