/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * export: everything known of one process's code at one moment, in a memfd that nobody can change
 * any more (all seals set). Made by the daemon, read by what writes images and recordings.
 *
 *   header     identity, known_until, horizon, places and counts of the parts
 *   ranges     struct range, sorted by (start, load)
 *   code       one entry a range, if asked for: where its code bytes are
 *   gaps       spans in which events were lost
 *   mappings   executable mappings of files: address, path
 *   clocks     pairs of (another clock, CLOCK_MONOTONIC)
 *   heap       texts, IL maps, code bytes
 *
 * A reader takes nothing on trust.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/util.h"
#include "query/range.h"

enum export_error {
	EXPORT_E_FULL = 1, /* larger than an export may be */
	EXPORT_E_INVALID,  /* reader: not an export, or a damaged one; writer: see export_add() */
};

struct export_identity {
	uint64_t start;       /* ticks, field 22 of stat */
	uint64_t start_ns;    /* the same on CLOCK_MONOTONIC */
	uint64_t begin_ns;    /* of this program: start_ns, or later after an exec */
	uint64_t attach_ns;   /* when the daemon began */
	uint64_t known_until; /* answers up to it are final */
	uint64_t horizon;     /* bodies that ended before may have been forgotten */
	pid_t pid;
	uint32_t owner;   /* uid */
	uint16_t machine; /* EM_* */
	bool ended;       /* the process has */
	bool complete;    /* its rundown was */
	bool with_code;
	bool over_cap; /* bodies were left out */
};

struct export_gap {
	uint64_t from, to;
};

struct export_clock {
	uint32_t clockid;  /* CLOCK_*, or UINT32_MAX: perf's own (sched_clock) */
	uint32_t error_ns; /* the pair is exact to that */
	uint64_t clock_ns, mono_ns;
};

/* -- writing ---------------------------------------------------------------------------- */

struct export_writer;

int export_writer_new(struct export_writer **outp, size_t max_bytes);
void export_writer_free(struct export_writer *w);
/*
 * Appends one; any order. code (may be NULL): body->range.size bytes. Of its texts the raw parts
 * and the module go into the file, cut at CAP_NAME_LENGTH. 0, -errno, FULL or INVALID (a body that
 * cannot be: no size, ended before it began; then nothing was added).
 */
int export_add(struct export_writer *w, const struct range_body *body, const uint8_t *code);
int export_add_gap(struct export_writer *w, const struct export_gap *gap);
int export_add_mapping(struct export_writer *w, uint64_t addr, const char *path, size_t len);
int export_add_clock(struct export_writer *w, const struct export_clock *clock);
/* Sorts, writes and seals; the fd is the caller's. Once. Returns 0 or -errno. */
int export_finish(struct export_writer *w, const struct export_identity *identity, int *fdp);

/* -- reading ---------------------------------------------------------------------------- */

struct export;

/*
 * Checks the seals and all of its structure: whoever made the file, no call below reads past its
 * end. What the texts say is not checked (they may hold any bytes), nor the order of IL maps. The
 * fd stays the caller's. 0, -errno or INVALID.
 */
int export_open(struct export **outp, int fd);
void export_free(struct export *e);
const struct export_identity *export_get_identity(const struct export *e);
size_t export_n_bodies(const struct export *e);
/* The i-th, in order of (start, load). Texts are borrowed. il: pairs of native, IL offset. */
void export_body(const struct export *e, size_t i, struct range_body *body);
/* Its code bytes (range.size of them), or NULL. */
const uint8_t *export_code(const struct export *e, size_t i);
/* The (first) body with this start and load; SIZE_MAX if there is none. */
size_t export_find(const struct export *e, uint64_t start, uint64_t load);
size_t export_n_gaps(const struct export *e);
struct export_gap export_gap_at(const struct export *e, size_t i);
size_t export_n_mappings(const struct export *e);
/* path: NUL-terminated, borrowed. */
uint64_t export_mapping(const struct export *e, size_t i, const char **pathp);
size_t export_n_clocks(const struct export *e);
struct export_clock export_clock_at(const struct export *e, size_t i);

DEFINE_CLEANUP(struct export_writer *, export_writer_free)
DEFINE_CLEANUP(struct export *, export_free)
