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
 */
#include "codemap/map.h"

#include <string.h>

#define BLOCK_MIN    64u
#define BLOCK_MAX    8192u
#define SLOTS_LEAST  4u
#define SLOTS_MOST   32u
#define STEPS_OCTAVE 8u /* sizes between a power of two and the next */

struct pool_slab {
	struct pool_slab *prev, *next; /* of those of its size with room */
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

uint32_t pool_block_bytes(uint32_t n)
{
	uint32_t bytes;

	if (n + BLOCK_HEAD > BLOCK_MAX)
		return n;
	class_of(n + (uint32_t)BLOCK_HEAD, &bytes);
	return bytes - (uint32_t)BLOCK_HEAD;
}

void *pool_alloc(struct pool *p, uint32_t n)
{
	uint32_t bytes, class, slots;
	struct pool_slab *slab;
	struct block *block;

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
		slots = MIN(SLOTS_LEAST + p->blocks[class], SLOTS_MOST);
		slab = mem_realloc(&p->total, NULL, sizeof(*slab) + (size_t)slots * bytes);
		if (!slab)
			return NULL;
		*slab = (struct pool_slab){
			.block_bytes = bytes,
			.class = (uint16_t) class,
			.n = (uint16_t)slots,
		};
		slab_link(p, slab);
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
		mem_free(&p->total, slab);
	}
}
