/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * reply: what the code map says, in the words of the query interface. The one place that knows
 * both, for the daemon and for the command line where it answers by itself.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "codemap/codemap.h"
#include "proc/proc.h"
#include "query/symbols.h"
#include "target/place.h"

/* The longest word for a miss, and a time. */
#define REPLY_REASON_SIZE 64u

/*
 * A body in the form of the interface. function: scratch for the spelled name; *m borrows from it
 * and from info. Returns 0 or -ENOMEM.
 */
int reply_method(const struct codemap_info *info, struct buf *function, struct query_method *m);

/* The IL offset at an offset into a body, or -1: no map, or no place in the IL. */
int64_t reply_il(const struct codemap *map, const struct codemap_body *body, uint32_t offset);

/*
 * The word for an address without a method: of the miss, or of what lies there. places: NULL for a
 * recorded stream, of which nothing but the miss is known. time: for which it was looked up.
 * Returns 0 or -ENOMEM.
 */
int reply_reason(const struct codemap *map, struct places *places, const struct proc *proc,
		 uint64_t addr, uint64_t time, enum codemap_miss miss, uint64_t now_ns,
		 char text[REPLY_REASON_SIZE]);
