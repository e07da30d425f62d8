/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * inject: a recording of perf and what is known of its processes' code, made into a recording
 * in which perf names every managed frame.
 *
 * perf gives a sample the file of the mapping that its address lies in. The runtime's mappings have
 * no usable file: a memfd, anonymous memory, or a DLL that perf cannot read. So their MMAP2 records
 * are rewritten to name a synthetic image (by build-id, or by path):
 *
 *  - per program one image with a range of its own for every code body that the recording's
 *    addresses hit. A small extra MMAP2 record, as long as the body, puts it where and when it was;
 *    another one takes it away when it is unloaded.
 *  - per DLL file one image with its precompiled methods at their file offsets, for all programs.
 *
 * Steps: scan every part of the recording; give each program that is worth it its code map, or the
 * reason why there is none; plan; write the images; rewrite every part in the order of the scans.
 *
 * A *program* is what one pid ran between start, exec and exit: pids are reused.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codemap/codemap.h"
#include "elf/image.h"
#include "perfdata/perfdata.h"

struct inject;

enum inject_error {
	INJECT_E_FULL = 64, /* over a cap: more records of mappings than any machine makes */
};

struct inject_options {
	bool all_bodies;        /* images hold every body that is known, hit or not */
	bool map_only;          /* only rename managed mappings to //anon: for the perf map */
	enum names_style style; /* of symbols */
	bool no_tiers;          /* no [Tier] behind the name */
	/* called now and then while a part is read: bytes of it done; false: stop, with -ECANCELED.
	 * May be NULL. */
	bool (*progress)(void *data, uint64_t done, uint64_t size);
	void *progress_data;
	const char *image_dir; /* mappings name DIR/LABEL-ID.so instead of a build-id; or NULL */
};

/* One program of the recording. */
struct inject_program {
	uint32_t pid;
	uint64_t
		first_ns; /* file clock: its start, or its first record; 0 when times are missing */
	uint64_t last_ns; /* its end, or its last record */
	bool ended;       /* so is its end: exit, or exec of another program */
	bool replaced;    /* it was that exec */
	bool runtime;     /* mappings that only .NET has are there */
	bool maybe;       /* executable anonymous memory is: any JIT's */
	bool over_cap;    /* planned, but it needs more records than any should: no names */
	bool sampled;     /* some address lies in a mapping that may hold managed code */
};

/* An executable mapping of a file, as recorded. */
struct inject_mapping {
	uint64_t addr, len, pgoff, time;
	const char *name;
	uint32_t name_len;
};

/* What is known of a program's code. Everything is borrowed until inject_free(). */
struct inject_code {
	const struct codemap *map; /* must not change any more */
	uint16_t machine;          /* EM_* */
	uint32_t owner;            /* its user: names of files are shared among one's programs */
	/*
	 * A body's bytes (info->size), or NULL when they are not known for sure. May be
	 * NULL itself. Borrowed until the next call.
	 */
	const uint8_t *(*bytes)(void *data, const struct codemap_info *info);
	void *data;
	/* Times of the map to times of the recording. NULL: no times, the last known state counts.
	 */
	uint64_t (*to_file_ns)(void *clock, uint64_t map_ns);
	uint64_t (*to_map_ns)(void *clock, uint64_t file_ns);
	void *clock;
};

/* Counted while rewriting, by leaf address. */
struct inject_stats {
	uint64_t samples; /* all */
	uint64_t managed; /* in code bodies that are known: these have a name now */
	uint64_t unnamed; /* in memory that holds managed code, but in no known body */
	uint64_t missed[CODEMAP_MISS_FULL + 1]; /* unnamed, by reason */
	uint64_t no_code;                       /* in programs whose code is not known */
	uint64_t images, bodies;                /* written */
	uint64_t hit;                           /* of the bodies */
	uint64_t with_bytes;                    /* of those hit */
	uint64_t inserted, rewritten;           /* records */
};

int inject_new(struct inject **outp, const struct inject_options *opts);
void inject_free(struct inject *inj);

/* Reads all of one part. Returns 0, -errno, a code of perfdata, or INJECT_E_FULL. */
int inject_scan(struct inject *inj, struct perfdata *part);
/* After the last part: sorts out the programs. Returns 0 or -errno. */
int inject_scanned(struct inject *inj);

size_t inject_n_programs(const struct inject *inj);
const struct inject_program *inject_program(const struct inject *inj, size_t i);
/* Stops on non-zero and returns it. */
int inject_each_mapping(const struct inject *inj, size_t program,
			int (*fn)(void *data, const struct inject_mapping *mapping), void *data);
/* The recording's first and last times; 0 without times. */
void inject_get_span(const struct inject *inj, uint64_t *firstp, uint64_t *lastp);
/* Where the kernel's text was (KASLR), from its mapping record; 0 when there is none. */
uint64_t inject_kernel_start(const struct inject *inj);

/*
 * Calls fn for every body of a map (a program's, before it is planned) that the recording hits.
 * Stops on non-zero and returns it.
 */
int inject_each_hit(const struct inject *inj, size_t program, const struct codemap *map,
		    codemap_body_fn fn, void *data);

/* Does the recording hit precompiled code that is not in the map? */
bool inject_misses_precompiled(const struct inject *inj, size_t program, const struct codemap *map);

/* A program's code; programs without stay as they are recorded. */
void inject_set_code(struct inject *inj, size_t program, const struct inject_code *code);

/* Decides what to write. Returns 0, -errno or INJECT_E_FULL. */
int inject_plan(struct inject *inj);

/* Nothing is changed or inserted: a plain copy will do. */
bool inject_is_idle(const struct inject *inj);

/* The images to be put in place before anything is read by perf. */
size_t inject_n_images(const struct inject *inj);
const struct elf_image *inject_image(const struct inject *inj, size_t i, const char **labelp,
				     const uint8_t **idp);

/*
 * Copies a part, changed. w may be NULL (only counts). Parts in the order in which they were
 * scanned. Returns 0, -errno or a code of perfdata.
 */
int inject_rewrite(struct inject *inj, struct perfdata *part, struct perfdata_writer *w);
void inject_get_stats(const struct inject *inj, struct inject_stats *stats);
/* The same for one program. */
void inject_program_stats(const struct inject *inj, size_t program, struct inject_stats *stats);

DEFINE_CLEANUP(struct inject *, inject_free)
