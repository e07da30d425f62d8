/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The insides of inject, shared by its files only:
 *
 *   scan.c     every part of the recording, once: mappings, tasks, hit addresses
 *   program.c  who ran when under which pid
 *   plan.c     images, changed records, records to insert
 *   rewrite.c  every part once more, into the output
 *
 * "seq" numbers the MMAP and MMAP2 records of all parts in file order: scan and rewrite count
 * alike.
 */

#include "base/buf.h"
#include "base/caps.h"
#include "inject/inject.h"
#include "inject/pages.h"

#define NO_INDEX UINT32_MAX

/* A growing array of T. */
#define VEC(T) \
	struct { \
		T *items; \
		size_t n, size; \
	}

/* qsort(), but for what is in order already, as most is. */
void vec_sort(void *items, size_t n, size_t item, int (*compare)(const void *, const void *));

/* Room for one more; returns false without memory. */
#define VEC_ROOM(v) \
	((v)->n < (v)->size || vec_grow((void **)&(v)->items, &(v)->size, sizeof(*(v)->items)))
bool vec_grow(void **itemsp, size_t *sizep, size_t item);

enum event_kind {
	EVENT_MAP,
	EVENT_FORK, /* arg: parent's pid */
	EVENT_EXEC,
	EVENT_EXIT,
};

struct event {
	uint64_t time; /* file clock; 0: made by perf at its start, or no times */
	uint64_t order;
	uint32_t pid;
	uint32_t arg; /* EVENT_MAP: index into maps */
	enum event_kind kind;
};

enum map_class {
	MAP_FILE,    /* a file: native code, or a DLL with precompiled code */
	MAP_RUNTIME, /* executable memory that only a JIT makes */
	MAP_DATA,    /* not executable: hides what was there before */
};

struct map_record {
	uint64_t addr, len, pgoff, time;
	uint8_t inode[16]; /* major, minor, inode; zero for MMAP. The generation is not always told
			    */
	uint32_t seq, pid;
	uint32_t name; /* offset into names, NUL-terminated there */
	uint32_t next; /* of the same program, in the order of their times; NO_INDEX */
	enum map_class class;
	bool anon; /* perf would look into the perf map */
};

/* What becomes of a record. */
struct edit {
	uint32_t seq;
	uint32_t image;
	bool base; /* runtime memory: unnamed but for what is inserted */
	uint64_t addr, len, pgoff;
};

/* A record to write. */
struct insert {
	uint64_t time; /* before the first record that is not older; or of the record at seq */
	uint32_t seq;  /* right after this one; NO_INDEX: by time */
	uint32_t program;
	size_t rank; /* in the order of the plan: equal times stay in it */
	uint64_t addr, len, pgoff;
};

struct pid_info {
	uint32_t pid;
	uint32_t first_program, last_program; /* by time; linked by next_of_pid */
	uint32_t by_pid, n_programs;          /* the same as a part of inject's by_pid */
	uint32_t root_pid;                    /* of its forks; 0: none */
	uint64_t first_ns, last_ns;           /* of any record with a time */
	/* copy of a record of runtime memory, or of any: what is inserted is made from it */
	uint8_t *template;
	uint16_t template_size;
	enum map_class template_class;
};

struct span {
	uint64_t lo, hi;
};

/* A part of a program's addresses, and the record that shows what is there. */
struct placed_file {
	uint64_t lo, hi;
	uint32_t map, image; /* NO_INDEX: none yet */
};

struct program {
	struct inject_program info;
	uint64_t start_ns, end_ns; /* [,) of what it was, file clock; 0 and UINT64_MAX when open */
	uint32_t pid_index;
	uint32_t parent; /* forked from, without an exec since; NO_INDEX */
	uint32_t next_of_pid;
	uint32_t first_map, last_map;
	uint32_t root; /* what it was forked from first of all; itself when it was not */
	uint32_t runs; /* whose code it runs: itself, or what it was forked from */
	bool has_code;
	struct inject_code code;
	uint32_t image;                /* NO_INDEX */
	VEC(struct span) managed;      /* sorted, disjoint: where managed code may be */
	VEC(struct span) dlls;         /* the files among them */
	VEC(struct span) more_managed; /* found while planning: joined when that is over */
	VEC(struct placed_file) files; /* sorted, disjoint: those that may hold code */
	bool files_placed;
	VEC(struct span) last_state; /* sorted, disjoint: bodies, when there are no times */
	struct inject_stats stats;
};

struct image {
	struct elf_image *elf;
	uint8_t id[ELF_BUILD_ID_SIZE];
	char label[64];
	char *path; /* with image_dir */
	bool is_file;
	uint32_t owner;        /* of the programs that it is for */
	struct map_record key; /* is_file */
	bool wanted;           /* hit, or all were asked for */
	uint64_t shift;        /* file offset minus image address: the code begins the image */
	VEC(struct file_symbol) symbols;
};

struct file_symbol {
	uint64_t addr;
	uint32_t size;
	uint32_t program;
	const struct codemap_body *body;
	bool hit;
};

struct inject {
	struct inject_options opts;
	struct pages pages;
	bool everything; /* addresses may come from what is not decoded here: stacks, traces */
	bool no_times;
	VEC(struct event) events;
	VEC(struct map_record) maps;
	VEC(struct pid_info) pids;
	VEC(struct program) programs;
	VEC(struct image) images;
	uint32_t *image_slots, n_image_slots; /* those of files, by file and owner */
	VEC(struct edit) edits;
	VEC(struct insert) by_time;
	VEC(struct insert) by_seq;
	uint32_t *pid_slots, n_pid_slots; /* pid -> index into pids */
	uint32_t *name_slots, n_name_slots, n_names;
	struct buf names;
	uint32_t *by_pid; /* programs, a pid's side by side */
	uint64_t order;
	uint32_t seq;
	uint64_t n_records; /* read, in both readings */
	uint64_t first_ns, last_ns;
	uint64_t kernel_start;
	struct inject_stats stats;
	/* rewriting */
	const struct pid_info *last_pid;
	uint32_t write_seq;
	size_t next_edit, next_by_time, next_by_seq;
	struct buf scratch;
};

/* pid's entry; NULL when there is none. */
struct pid_info *inject_pid(const struct inject *inj, uint32_t pid);
/* Made if need be; NULL: no memory. */
struct pid_info *inject_pid_get(struct inject *inj, uint32_t pid);
const char *inject_name(const struct inject *inj, uint32_t name);

/* Tells of every so many records. Returns 0 or -ECANCELED. */
int inject_progress(struct inject *inj, const struct perfdata *part,
		    const struct perfdata_record *rec);

/* -- plan.c --------------------------------------------------------------------------- */

/* NULL: no memory. */
struct image *inject_image_new(struct inject *inj, uint16_t machine, const char *path);
/* Returns 0 or -ENOMEM. */
int inject_image_add(struct inject *inj, struct image *image, const struct inject_code *code,
		     const struct codemap_body *body, uint64_t addr, bool hit, bool want_bytes);
int inject_edit(struct inject *inj, uint32_t seq, uint32_t image, bool base, uint64_t addr,
		uint64_t len, uint64_t pgoff);
uint64_t inject_since(const struct inject_code *code, const struct codemap_info *info);

/* -- files.c -------------------------------------------------------------------------- */

/* Takes a precompiled body into its file's image, if it lies in a file. Returns 0 or -ENOMEM. */
int inject_file_body(struct inject *inj, uint32_t program, const struct codemap_body *body,
		     const struct codemap_info *info, bool hit, bool *takenp);
/* All programs have said what they know of the file. */
int inject_file_image(struct inject *inj, struct image *image);
/* The records of all programs that show a file which has an image. */
int inject_file_records(struct inject *inj);

/* -- program.c ------------------------------------------------------------------------ */

/* By its name: the one kind of file with code that only the runtime maps. */
bool inject_is_dll(const char *name);
/* Does one span of sorted, disjoint ones hold all of [start, end)? */
bool spans_hold(const struct span *spans, size_t n, uint64_t start, uint64_t end);
/* Sorts and joins. */
void spans_tidy(struct span *spans, size_t *np);
/* Is an address of [start, end) in the recording, for this program or one forked from it? */
bool inject_hits(const struct inject *inj, uint32_t program, uint64_t start, uint64_t end);
/* Is all of [start, end) memory that may hold managed code? */
bool inject_is_managed(const struct program *p, uint64_t start, uint64_t end);
/* The program of a pid at a time (0: the only thing known is the pid). */
struct program *inject_program_at(struct inject *inj, uint32_t pid, uint64_t time);
