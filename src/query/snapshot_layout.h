/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What a snapshot looks like in memory; for its reader and its writer alone. See snapshot.h.
 *
 *   header                 one page
 *   regions                struct snapshot_region, a hash table with linear probing
 *   ranges                 struct range, by slot
 *   heap                   blocks of lines, buckets, texts, IL maps
 *
 * A region (512 KiB of addresses) has one line for each of its cells of 2 KiB: the ranges that
 * touch it, unless they are *wide*, which is what would touch more than SNAPSHOT_WIDE_CELLS cells;
 * and one line for the wide ones that touch the region. So a body of any size is in some dozen
 * lines, a hostile one of 64 MiB in 129.
 *
 * A line is one cache line, 8 words. The first is its head: in the low 32 bits what follows, above
 * the number of changes to it. What follows is
 *
 *   0                          nothing
 *   n_live | n_retired << 4    entries in the line itself, as many as fit (14): nearly always
 *   anything from 256 on       the place of a bucket, in units of 8 bytes. Its first word is
 *                              n_live | n_retired << 16 | the heap's class of the block << 32
 *
 * Entries are two a word: key << 24 | slot; the live first, ascending by key: where in the cell
 * (units of 8 bytes) or region (cells) they start, 0 for those that started before. Then the
 * retired, with SNAPSHOT_KEY_NONE, the last to end first; then SNAPSHOT_NO_ENTRY. SNAPSHOT_NO_SLOT
 * stands where a body has been removed since.
 *
 * Everything shared is read and written as whole 64-bit words, with acquire and release (both are
 * plain moves on x86-64). What that is for:
 *
 *  (1) New content is stored before the head that leads to it (release), and a reader that loads
 *      that head (acquire) sees it.
 *  (2) Memory is used for something else only after the head that led to it has changed. Every
 *      store of content is a release: it does not pass that change. Every load of content is an
 *      acquire: a reader that saw one word of the new use sees the changed head when it loads that
 *      again, and knows that what it copied is worth nothing.
 *      The entries in a line are no exception: while they are rewritten, the head leads to a
 *      bucket that has them.
 *  (3) A region's lines are given before its key.
 *  (4) known_until and state are stored (release) after the changes that belong to them, and
 *      loaded (acquire) before the head. The lost span is stored before a known_until beyond it,
 *      and loaded after; while it is stored it is too long, if anything.
 *
 * So there is no fence, and no loop that waits for the writer.
 */

#include <stdint.h>
#include <string.h>

#include "base/caps.h"
#include "query/range.h"
#include "query/snapshot.h"

#define SNAPSHOT_MAGIC        UINT64_C(0x31706e736d797363) /* "csymsnp1" */
#define SNAPSHOT_FORMAT       1u

#define SNAPSHOT_REGION_SHIFT 19
#define SNAPSHOT_CELL_SHIFT   11
#define SNAPSHOT_CELLS        256u /* of a region */
#define SNAPSHOT_LINE_WORDS   8u
#define SNAPSHOT_LINE_BYTES   (SNAPSHOT_LINE_WORDS * 8)
#define SNAPSHOT_REGION_LINES (SNAPSHOT_CELLS + 1) /* the last: wide ones */
#define SNAPSHOT_WIDE_CELLS   16u
/* Neighbouring regions are neighbours in the table, so that few of its pages are in use. */
#define SNAPSHOT_RUN_SHIFT 6
/* A table is filled to an eighth; a region that finds no place so near is told "full". */
#define SNAPSHOT_PROBES 256u

/* Bodies do not overlap, so not more of them can start in a cell; twice that, for the meanwhile. */
#define SNAPSHOT_CELL_LIVE 4096u

#define SNAPSHOT_INLINE    14u /* entries in a line */
#define SNAPSHOT_PLACE_MIN 256u
#define SNAPSHOT_KEY_SHIFT 24
#define SNAPSHOT_KEY_MAX   254u
#define SNAPSHOT_KEY_NONE  255u
#define SNAPSHOT_NO_SLOT   0xffffffu
#define SNAPSHOT_NO_ENTRY  UINT32_MAX

_Static_assert(CAP_BODIES <= SNAPSHOT_NO_SLOT, "a slot has 24 bits");

/* The longest text: a name of three parts that a runtime can send. */
#define SNAPSHOT_TEXT_BYTES (4 * (CAP_NAME_LENGTH + 1))

enum snapshot_state {
	SNAPSHOT_CURRENT,
	SNAPSHOT_REPLACED,
	SNAPSHOT_ENDED,
};

struct snapshot_header {
	uint64_t magic;
	uint32_t format, header_bytes;
	uint64_t start, start_ns;
	int32_t pid;
	uint32_t incarnation, generation;
	uint32_t n_slots;
	uint64_t regions, ranges, heap, end; /* bytes from the start of the file */
	uint64_t region_bits;                /* the table has 2^n entries */
	uint64_t fill[5];
	/* the line that changes */
	uint64_t known_until;
	uint64_t state;
	uint64_t lost_from,
		lost_to; /* ns: between the two some events were lost; 0, 0: none were */
};

_Static_assert(offsetof(struct snapshot_header, known_until) == 128, "in a cache line of its own");

/* Parts begin at a multiple of it, in the file and in memory, so that the kernel may use huge
 * pages. */
#define SNAPSHOT_PIECE MIB(2)

/* Maps a snapshot's file; MAP_FAILED with errno if that fails. */
void *snapshot_map(int fd, size_t size, int prot);

struct snapshot_region {
	uint64_t key;   /* number + 1; 0: free */
	uint64_t lines; /* bytes from the start of the file */
};

#define RANGE_WORDS (sizeof(struct range) / 8)

/* Ranges and texts are words here and something else to who uses them. */
typedef uint64_t shared_word __attribute__((may_alias));

static inline uint64_t shared_load(const void *p)
{
	return __atomic_load_n((const shared_word *)p, __ATOMIC_ACQUIRE);
}

static inline void shared_store(void *p, uint64_t v)
{
	__atomic_store_n((shared_word *)p, v, __ATOMIC_RELEASE);
}

static inline bool head_is_inline(uint32_t follows)
{
	return follows < SNAPSHOT_PLACE_MIN;
}

static inline uint32_t inline_n_live(uint32_t follows)
{
	return follows & 15;
}

static inline uint32_t inline_n_retired(uint32_t follows)
{
	return follows >> 4;
}

static inline uint32_t bucket_n_live(uint64_t word)
{
	return (uint32_t)(word & 0xffff);
}

static inline uint32_t bucket_n_retired(uint64_t word)
{
	return (uint32_t)(word >> 16 & 0xffff);
}

static inline uint32_t bucket_class(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

static inline uint32_t entry_words(uint32_t n)
{
	return (n + 1) / 2;
}

static inline uint32_t entry_load(const uint64_t *entries, uint32_t i)
{
	return (uint32_t)(shared_load(&entries[i / 2]) >> i % 2 * 32);
}

static inline uint32_t entry_slot(uint32_t entry)
{
	return entry & SNAPSHOT_NO_SLOT;
}

/* The key of an address in its cell. */
static inline uint32_t cell_key(uint64_t addr)
{
	uint32_t key = (uint32_t)addr % (1u << SNAPSHOT_CELL_SHIFT) / 8;

	return MIN(key, SNAPSHOT_KEY_MAX);
}

/* The key of a cell among the wide ones of its region. */
static inline uint32_t wide_key(uint64_t cell)
{
	uint32_t key = (uint32_t)cell % SNAPSHOT_CELLS;

	return MIN(key, SNAPSHOT_KEY_MAX);
}

/* Where the search for a region begins. */
static inline uint64_t region_home(uint64_t number, uint64_t mask)
{
	uint64_t h = (number >> SNAPSHOT_RUN_SHIFT) * UINT64_C(0x9e3779b97f4a7c15);
	uint64_t in_run = (UINT64_C(1) << SNAPSHOT_RUN_SHIFT) - 1;

	return ((h >> 32 & ~in_run) | (number & in_run)) & mask;
}
