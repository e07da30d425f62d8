/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * code: the machine code of a target's bodies, for what disassembles.
 *
 * Only the process has the code, and only as long as it keeps it: so the bytes are
 * read as soon as a body is announced, or when somebody asks. What was read at a moment may
 * be of another body, for addresses are reused and events come late. Nothing can be said about
 * that at the time; it is answered when the bytes are asked for. They are given out only if by
 * all that is known now this body was at that address when they were read: it had been
 * announced, it had not ended, everything up to then is known, and no event was lost in between.
 *
 * Bytes stay when their body has gone, and when the process has. They are bytes of an
 * untrusted process: nothing is assumed about them.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/loop.h"
#include "codemap/codemap.h"
#include "proc/proc.h"

struct code;

enum code_error {
	CODE_E_NONE = 1,   /* never read */
	CODE_E_NOT_YET,    /* read, but what happened until then is not all known: ask again */
	CODE_E_DOUBT,      /* other code may have been there when it was read */
	CODE_E_UNREADABLE, /* the kernel refuses, the process is gone or its memory does not answer
			    */
	CODE_E_FULL,       /* over a cap */
};

struct code_stats {
	uint64_t bodies, bytes; /* kept */
	size_t memory;          /* what they take */
	uint64_t full;          /* left out over a cap: too many, too large, or too many waiting */
	uint64_t gone;          /* retired before they could be read */
	uint64_t unreadable;
};

/* Of one incarnation of a process; map is its map and outlives it. Returns 0 or -ENOMEM. */
int code_new(struct code **outp, struct loop *loop, const struct proc *proc,
	     const struct codemap *map);
void code_free(struct code *code);

/* The body is to be read soon, from the loop. */
void code_want(struct code *code, const struct codemap_info *info);
/* Reads a body that is alive now, unless its bytes are there. Returns 0, -errno or a code. */
int code_keep(struct code *code, const struct codemap_info *info);
/*
 * The bytes of a body (info->size of them), until the next call or the next round of the loop.
 * known_until: answers of the map for times up to this one are final. Returns 0 or a code.
 */
int code_get(const struct code *code, const struct codemap_info *info, uint64_t known_until,
	     const uint8_t **bytesp);
void code_get_stats(const struct code *code, struct code_stats *stats);
/* A few words: why there are no bytes. */
const char *code_error_text(int error);

DEFINE_CLEANUP(struct code *, code_free)
