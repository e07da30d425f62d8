/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * place: what a process has at an address where no method is known, told from its mappings.
 *
 * The mappings are read when a question needs them, never more often than every PLACE_REFRESH_NS,
 * and kept when the process has gone. A mapping of the runtime's executable memory in which live
 * methods are known is a code heap; one in which there is none holds stubs. A mapping of any other
 * file in which live methods are known is a managed image, whatever its name (single-file
 * programs).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util.h"
#include "codemap/codemap.h"
#include "proc/proc.h"

enum place_kind {
	PLACE_UNKNOWN,     /* the mappings could not be read */
	PLACE_UNMAPPED,    /* nothing is there */
	PLACE_DATA,        /* mapped, and not executable */
	PLACE_NATIVE,      /* code of a file that is no managed image, vdso, ... */
	PLACE_PRECOMPILED, /* code of a managed image (.dll, .exe) */
	PLACE_STUB,        /* runtime memory without any method */
	PLACE_CODE_HEAP,   /* runtime memory with methods, none of them here */
};

struct places;

int places_new(struct places **outp);
void places_free(struct places *p);
/* Reads the mappings now, e.g. at the end of an attach. Keeps the old ones when it cannot. */
int places_refresh(struct places *p, const struct proc *proc, uint64_t now_ns);
/* May refresh first. Returns 0 or -ENOMEM. */
int places_find(struct places *p, const struct proc *proc, const struct codemap *map, uint64_t addr,
		uint64_t now_ns, enum place_kind *kindp);
/* The executable mappings of files, in order: path NUL-terminated; false past the last. */
bool places_file(const struct places *p, size_t i, uint64_t *addrp, const char **pathp);
size_t places_memory(const struct places *p);

DEFINE_CLEANUP(struct places *, places_free)
