/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of many sizes, packed by size.
 *
 * The entry arrays of the live index are what a lookup misses the cache on, and most of
 * such a miss is the address translation when the arrays lie scattered among names
 * and bodies, two to a page. Here they share slabs of up to 32 blocks of one size, sizes an
 * eighth apart: measured, a million bodies' arrays then lie in half the pages.
 *
 * A block knows its slab by the word before it. Large blocks are malloc's own.
 *
 * Where there are many blocks of a size, their slabs are pieces of regions: 2 MB of the address
 * space, aligned, of which pages are used as needed. One that is used up is made a huge page, which
 * takes the address translation out of most lookups and costs no memory that was not in use. A
 * region that cannot be had is no failure: malloc has slabs, too.
 */
#include "codemap/map.h"

#include <string.h>
#include <sys/mman.h>

#define BLOCK_MIN    64u
#define BLOCK_MAX    8192u
#define SLOTS_LEAST  4u
#define SLOTS_MOST   32u
#define STEPS_OCTAVE 8u /* sizes between a power of two and the next */

#define REGION_BYTES ((size_t)2 << 20)
#define PIECE_BYTES  ((size_t)32 << 10)
#define PIECES       (REGION_BYTES / PIECE_BYTES)

/* Since Linux 6.1; older kernels get there in their own time. */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

struct region {
	struct region *prev, *next; /* those with a free piece */
	char *mem;
	uint64_t used;  /* a bit for each piece */
	uint32_t fresh; /* pieces from here on were never used */
};

_Static_assert(PIECES == 64, "a bit for each piece of a region");

struct pool_slab {
	struct pool_slab *prev, *next; /* of those of its size with room */
	struct region *region;         /* NULL: malloc's */
	struct block *free;
	uint32_t block_bytes;
	uint16_t class, n, used, fresh;
};

struct block {
	struct pool_slab *slab; /* NULL: alone */
	union {
		struct block *next_free;
		uint64_t data[1];
	};
};

#define BLOCK_HEAD offsetof(struct block, data)

static struct block *block_of(void *data)
{
	return (struct block *)(void *)((char *)data - BLOCK_HEAD);
}

/* The class of a block of n bytes, and how many bytes blocks of that class have. */
static uint32_t class_of(uint32_t n, uint32_t *bytesp)
{
	uint32_t octave, step, size;

	n = MAX(n, BLOCK_MIN);
	octave = 31u - (uint32_t)__builtin_clz(n);
	step = (1u << octave) / STEPS_OCTAVE;
	size = (n + step - 1) / step * step;
	*bytesp = size;
	return (octave - 6) * STEPS_OCTAVE + (size - (1u << octave)) / step;
}

static void slab_link(struct pool *p, struct pool_slab *slab)
{
	slab->prev = NULL;
	slab->next = p->partial[slab->class];
	if (slab->next)
		slab->next->prev = slab;
	p->partial[slab->class] = slab;
}

static void slab_unlink(struct pool *p, struct pool_slab *slab)
{
	if (slab->prev)
		slab->prev->next = slab->next;
	else
		p->partial[slab->class] = slab->next;
	if (slab->next)
		slab->next->prev = slab->prev;
}

/* -- Regions ------------------------------------------------------------------------------ */

static void region_link(struct pool *p, struct region *r)
{
	r->prev = NULL;
	r->next = p->regions;
	if (r->next)
		r->next->prev = r;
	p->regions = r;
}

static void region_unlink(struct pool *p, struct region *r)
{
	if (r->prev)
		r->prev->next = r->next;
	else
		p->regions = r->next;
	if (r->next)
		r->next->prev = r->prev;
}

static struct region *region_new(struct pool *p)
{
	struct region *r = mem_realloc(&p->total, NULL, sizeof(*r));
	size_t before;
	char *mem;

	if (!r)
		return NULL;
	mem = mmap(NULL, 2 * REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		   0);
	if (mem == MAP_FAILED) {
		mem_free(&p->total, r);
		return NULL;
	}
	/* what is before and behind the aligned half goes back */
	before = -(uintptr_t)mem & (REGION_BYTES - 1);
	if (before)
		munmap(mem, before);
	munmap(mem + before + REGION_BYTES, REGION_BYTES - before);
	*r = (struct region){ .mem = mem + before };
	region_link(p, r);
	return r;
}

static void *piece_new(struct pool *p, struct region **regionp)
{
	struct region *r = p->regions ? p->regions : region_new(p);
	uint32_t i;

	if (!r)
		return NULL;
	i = (uint32_t)__builtin_ctzll(~r->used);
	if (i == r->fresh) {
		p->total += PIECE_BYTES;
		if (++r->fresh == PIECES) {
			(void)madvise(r->mem, REGION_BYTES, MADV_HUGEPAGE);
			(void)madvise(r->mem, REGION_BYTES, MADV_COLLAPSE);
		}
	}
	r->used |= UINT64_C(1) << i;
	if (r->used == UINT64_MAX)
		region_unlink(p, r);
	*regionp = r;
	return r->mem + i * PIECE_BYTES;
}

static void piece_free(struct pool *p, struct region *r, void *piece)
{
	if (r->used == UINT64_MAX)
		region_link(p, r);
	r->used &= ~(UINT64_C(1) << (size_t)((char *)piece - r->mem) / PIECE_BYTES);
	if (r->used)
		return;
	region_unlink(p, r);
	munmap(r->mem, REGION_BYTES);
	p->total -= r->fresh * PIECE_BYTES;
	mem_free(&p->total, r);
}

/* -- Blocks ------------------------------------------------------------------------------- */

uint32_t pool_block_bytes(uint32_t n)
{
	uint32_t bytes;

	if (n + BLOCK_HEAD > BLOCK_MAX)
		return n;
	class_of(n + (uint32_t)BLOCK_HEAD, &bytes);
	return bytes - (uint32_t)BLOCK_HEAD;
}

static struct pool_slab *slab_new(struct pool *p, uint32_t class, uint32_t bytes)
{
	uint32_t slots = (uint32_t)(PIECE_BYTES - sizeof(struct pool_slab)) / bytes;
	struct region *region = NULL;
	struct pool_slab *slab = NULL;

	if (p->blocks[class] >= slots)
		slab = piece_new(p, &region);
	if (!slab) {
		slots = MIN(SLOTS_LEAST + p->blocks[class], SLOTS_MOST);
		slab = mem_realloc(&p->total, NULL, sizeof(*slab) + (size_t)slots * bytes);
	}
	if (!slab)
		return NULL;
	*slab = (struct pool_slab){
		.region = region,
		.block_bytes = bytes,
		.class = (uint16_t) class,
		.n = (uint16_t)slots,
	};
	slab_link(p, slab);
	return slab;
}

void *pool_alloc(struct pool *p, uint32_t n)
{
	struct pool_slab *slab;
	struct block *block;
	uint32_t bytes, class;

	if (n + BLOCK_HEAD > BLOCK_MAX) {
		block = mem_realloc(&p->total, NULL, n + BLOCK_HEAD);
		if (!block)
			return NULL;
		block->slab = NULL;
		return block->data;
	}
	class = class_of(n + (uint32_t)BLOCK_HEAD, &bytes);
	slab = p->partial[class];
	if (!slab) {
		slab = slab_new(p, class, bytes);
		if (!slab)
			return NULL;
	}
	if (slab->free) {
		block = slab->free;
		slab->free = block->next_free;
	} else {
		block = (struct block *)(void *)((char *)(slab + 1) +
						 (size_t)slab->fresh++ * bytes);
		block->slab = slab;
	}
	p->blocks[class]++;
	if (++slab->used == slab->n)
		slab_unlink(p, slab);
	return block->data;
}

void pool_free(struct pool *p, void *data)
{
	struct pool_slab *slab;
	struct block *block;

	if (!data)
		return;
	block = block_of(data);
	slab = block->slab;
	if (!slab) {
		mem_free(&p->total, block);
		return;
	}
	p->blocks[slab->class]--;
	if (slab->used-- == slab->n)
		slab_link(p, slab);
	block->next_free = slab->free;
	slab->free = block;
	if (!slab->used) {
		slab_unlink(p, slab);
		if (slab->region)
			piece_free(p, slab->region, slab);
		else
			mem_free(&p->total, slab);
	}
}
