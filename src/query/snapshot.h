/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * snapshot: the code of one process in shared memory, which its readers look up without a system
 * call while the daemon goes on writing.
 *
 * One memfd, sealed in size and for everybody else's writes. Its parts:
 *
 *   header    identity, places of the parts, and the cache line that changes: see below
 *   ranges    struct range, by slot
 *   heap      names, module paths, IL maps, the index
 *
 * The index: address >> 19 is looked up in a small table of regions; a region has one cache line
 * for each of its cells of 2 KiB. It has the ranges that touch the cell, those alive by their
 * start, then those retired lately, the last to end first: 14 in the line itself, more elsewhere.
 * So a question costs two cache misses, whatever the number of ranges: the cell's line and the
 * range. And a change costs the same whatever their number.
 *
 * Lock-free: the line's first word says where its content is, and has a version that every change
 * raises. A reader loads it, copies what it needs, and loads it again: unchanged, with fewer than
 * 2^32 changes to that line meanwhile, what was copied is what was there. A range is written before
 * it is in any line and not again before it is in none, but for its end, and for corrections of
 * one and the same body. So a writer that dies at any instruction leaves a snapshot that is whole.
 *
 * Trust: answers for times up to `known_until` are final; it is stored after all changes that
 * belong to it, and a reader loads it before it looks. A dead daemon's snapshot stands still, and
 * so does its known_until. When the memory is used up, the writer stops, and a new generation, a
 * larger file, takes over: `replaced` says so.
 *
 * A reader takes nothing on trust: the file may have been made by anyone. One that reads all of a
 * file makes the kernel fill its holes, with memory that is the reader's own to answer for (its
 * memory cgroup) but lives as long as the file.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/util.h"
#include "query/range.h"

enum snapshot_error {
	SNAPSHOT_E_FULL = 1, /* writer: no room in this generation (nothing was changed) */
	SNAPSHOT_E_INVALID,  /* a body that cannot be; reader: not a snapshot, or a damaged one */
	SNAPSHOT_E_NONE,     /* reader: not in the snapshot; the daemon knows why */
	SNAPSHOT_E_NO_SPACE, /* reader: a text is longer than the room for it (it is cut there) */
};

/* Sizes of generations: the largest holds what a code map can. */
#define SNAPSHOT_CLASSES 4u

struct snapshot_identity {
	uint64_t start;       /* of the process: ticks, field 22 of stat */
	uint64_t start_ns;    /* times before this are not this program's (start or exec) */
	pid_t pid;            /* as the daemon sees it */
	uint32_t incarnation; /* counts execs */
	uint32_t generation;
};

/* -- writing ---------------------------------------------------------------------------- */

struct snapshot_writer;

/* size_class: 0 to SNAPSHOT_CLASSES - 1. Returns 0 or -errno. */
int snapshot_writer_new(struct snapshot_writer **outp, const struct snapshot_identity *identity,
			unsigned int size_class);
void snapshot_writer_free(struct snapshot_writer *w);
/* For handing over: opened read-only. Borrowed. */
int snapshot_writer_fd(const struct snapshot_writer *w);
/*
 * The body of a slot (any number below the code map's cap), new or changed; what the slot had is
 * replaced. Where it is the same code of the same method, as alive as before, it is corrected in
 * place and never missing meanwhile. Returns 0, -ENOMEM, FULL or INVALID: then nothing was changed.
 */
int snapshot_put(struct snapshot_writer *w, uint32_t slot, const struct range_body *body);
/* Does the slot hold this very body, alive or not (all but unload and references are equal)? */
bool snapshot_has(const struct snapshot_writer *w, uint32_t slot, const struct range *range);
/*
 * It has ended, or earlier than was thought: one store for readers, and its place among the
 * retired. Nothing to do for an empty slot. 0, -ENOMEM or FULL.
 */
int snapshot_retire(struct snapshot_writer *w, uint32_t slot, uint64_t unload);
void snapshot_remove(struct snapshot_writer *w, uint32_t slot);
/*
 * Events between the two times were lost: what was there then may not be known, so nothing of it is
 * final. Several losses become one span. Before snapshot_publish().
 */
void snapshot_lost(struct snapshot_writer *w, uint64_t from, uint64_t to);
/* After the changes of a round: answers up to known_until (which never falls) are final. */
void snapshot_publish(struct snapshot_writer *w, uint64_t known_until);
/*
 * When there is time: makes a huge page (2 MiB) of small ones that are in use, which saves every
 * reader a third of a question among very many ranges. One a call, of some ms. Returns whether
 * there may be another; false also where the kernel has none to give (before 6.1: never).
 */
bool snapshot_settle(struct snapshot_writer *w);
/* Nothing more will come: another generation took over (replaced), or the process has ended. */
void snapshot_close(struct snapshot_writer *w, bool replaced);

struct snapshot_stats {
	size_t ranges, live, bytes; /* bytes: memory in use, private tables included */
	uint64_t changes;
};
void snapshot_get_stats(const struct snapshot_writer *w, struct snapshot_stats *stats);

/* -- reading ---------------------------------------------------------------------------- */

struct snapshot;

/* Maps it, if it cannot shrink; the fd stays the caller's. Returns 0, -errno or INVALID. */
int snapshot_open(struct snapshot **outp, int fd);
void snapshot_free(struct snapshot *s);
void snapshot_get_identity(const struct snapshot *s, struct snapshot_identity *identity);
uint64_t snapshot_known_until(const struct snapshot *s);
/* A newer generation took over, or the process has ended (final is what it was until known_until:
 * a process that was killed takes its last events with it). */
bool snapshot_is_replaced(const struct snapshot *s);
bool snapshot_has_ended(const struct snapshot *s);

/* What was found: copied, safe to use. */
struct snapshot_found {
	struct range range;
	uint32_t slot;       /* its number, in this generation */
	uint64_t cell, head; /* to check against */
};

/*
 * The body at an address at a time; time 0: alive now. No system call, no allocation, any number of
 * threads. *finalp (may be NULL): the answer cannot change any more; with NONE it is false.
 * Returns 0 or NONE; then found is not to be used.
 */
int snapshot_lookup(const struct snapshot *s, uint64_t addr, uint64_t time,
		    struct snapshot_found *found, bool *finalp);
/*
 * Its spelled name and module path, copied, NUL-terminated and cut at a character; either may
 * be NULL. *short_lenp: of the name without arguments. Returns 0, NONE (it has been replaced since
 * the lookup: look up again) or NO_SPACE.
 */
int snapshot_name(const struct snapshot *s, const struct snapshot_found *found, char *name,
		  size_t name_size, uint32_t *short_lenp, char *module, size_t module_size);
/* The IL offset at a native offset: 0, or NONE (no map, or no place in the IL). */
int snapshot_il(const struct snapshot *s, const struct snapshot_found *found, uint32_t native,
		uint32_t *ilp);

DEFINE_CLEANUP(struct snapshot_writer *, snapshot_writer_free)
DEFINE_CLEANUP(struct snapshot *, snapshot_free)
