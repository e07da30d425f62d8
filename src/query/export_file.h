/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The layout of an export, shared by its writer and its reader only.
 *
 *   header | heap | ranges | code | gaps | mappings | clocks
 *
 * Everything is aligned to 8 bytes and in the machine's own byte order. References are offsets from
 * the start of the file in units of 8 bytes and lie in the heap; 0 is "none". In the heap are
 * struct range_name, range_text, range_il, and code bytes. A name has its raw parts only.
 */

#include <stdint.h>

#define EXPORT_MAGIC   "clrsymX\n"
#define EXPORT_VERSION 1u
#define EXPORT_UNIT    8u

/* flags of the header */
#define EXPORT_ENDED     1u
#define EXPORT_COMPLETE  2u
#define EXPORT_WITH_CODE 4u
#define EXPORT_OVER_CAP  8u

/* The tables, in the order in which they are written. */
enum export_part {
	EXPORT_RANGES, /* struct range, sorted by (start, load) */
	EXPORT_CODE,   /* uint32_t: a reference for each range; or the part is empty */
	EXPORT_GAPS,   /* struct export_gap */
	EXPORT_MAPPINGS,
	EXPORT_CLOCKS, /* struct export_clock */
	EXPORT_N_PARTS,
};

struct export_part_place {
	uint64_t offset; /* bytes */
	uint64_t n;      /* elements */
};

struct export_file_mapping {
	uint64_t addr;
	uint32_t path; /* struct range_text; a NUL follows the text */
	uint32_t zero;
};

struct export_header {
	char magic[8];
	uint32_t version, flags;
	uint64_t bytes; /* of the file */
	uint64_t start, start_ns, begin_ns, attach_ns, known_until, horizon;
	uint32_t pid, owner;
	uint32_t machine, zero;
	uint64_t heap_offset, heap_bytes;
	struct export_part_place parts[EXPORT_N_PARTS];
};

_Static_assert(sizeof(struct export_header) % EXPORT_UNIT == 0, "the heap follows it, aligned");
_Static_assert(sizeof(struct export_file_mapping) == 16, "no padding reaches the file");
