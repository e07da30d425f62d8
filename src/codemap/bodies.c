/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records of code bodies: 64 bytes each, in chunks of 1024, by index.
 *
 * A chunk is filled before the next is begun, so its bodies were announced at about the
 * same time. Each chunk keeps the bounds of those times; a lookup with a time compares with
 * them and needs the body itself (a cache miss) only for times in between. An empty
 * chunk gives its memory back unless it is the only one with room.
 *
 * The bound of an open past is the program's beginning (0 if that is not known) for everything
 * that the first rundown shows, so it is kept beside the chunk, and only for chunks where one is
 * later. No bound is earlier, so a question about a time before the program needs no test of
 * its own.
 *
 * A record that is not in use has no size.
 */
#include "codemap/map.h"

#include <string.h>

#define BODY_ALIGN 64u

void bodies_deinit(struct bodies *bs)
{
	uint32_t i;

	for (i = 0; i < bs->n_chunks; i++) {
		mem_free(&bs->total, bs->chunks[i].mem);
		mem_free(&bs->total, bs->chunks[i].bounds);
	}
	mem_free(&bs->total, bs->chunks);
	mem_free(&bs->total, bs->spans);
	mem_free(&bs->total, bs->base);
	*bs = (struct bodies){ 0 };
}

/* At the end: the chunk being filled stays the one being filled. */
static void chunk_link(struct bodies *bs, uint32_t number)
{
	struct chunk *c = &bs->chunks[number - 1];

	c->prev = bs->last_free;
	c->next = 0;
	if (bs->last_free)
		bs->chunks[bs->last_free - 1].next = number;
	else
		bs->first_free = number;
	bs->last_free = number;
}

static void chunk_unlink(struct bodies *bs, uint32_t number)
{
	struct chunk *c = &bs->chunks[number - 1];

	if (c->prev)
		bs->chunks[c->prev - 1].next = c->next;
	else
		bs->first_free = c->next;
	if (c->next)
		bs->chunks[c->next - 1].prev = c->prev;
	else
		bs->last_free = c->prev;
}

static bool chunks_grow(struct bodies *bs)
{
	uint32_t size = bs->size_chunks + bs->size_chunks / 4 + 4;
	void *p;

	p = mem_realloc(&bs->total, bs->chunks, size * sizeof(*bs->chunks));
	if (!p)
		return false;
	bs->chunks = p;
	p = mem_realloc(&bs->total, bs->spans, size * sizeof(*bs->spans));
	if (!p)
		return false;
	bs->spans = p;
	p = mem_realloc(&bs->total, bs->base, size * sizeof(*bs->base));
	if (!p)
		return false;
	bs->base = p;
	bs->size_chunks = size;
	return true;
}

static bool chunk_new(struct bodies *bs)
{
	struct chunk *c;
	uint32_t number;
	void *mem;

	if (!bs->unused && bs->n_chunks == bs->size_chunks && !chunks_grow(bs))
		return false;
	mem = mem_realloc(&bs->total, NULL,
			  CHUNK_BODIES * sizeof(struct codemap_body) + BODY_ALIGN);
	if (!mem)
		return false;
	if (bs->unused) {
		number = bs->unused;
		bs->unused = bs->chunks[number - 1].next;
	} else {
		number = ++bs->n_chunks;
	}
	c = &bs->chunks[number - 1];
	*c = (struct chunk){
		.mem = mem, .fresh = number == 1, /* index 0 is "none" */
	};
	bs->base[number - 1] =
		(void *)(((uintptr_t)mem + BODY_ALIGN - 1) & ~(uintptr_t)(BODY_ALIGN - 1));
	bs->spans[number - 1] = (struct span){ .oldest = UINT64_MAX };
	chunk_link(bs, number);
	return true;
}

bool bodies_full(const struct bodies *bs)
{
	return !bs->first_free && !bs->unused &&
	       bs->n_chunks == 1u << (BODY_INDEX_BITS - CHUNK_SHIFT);
}

uint32_t bodies_new(struct bodies *bs)
{
	uint32_t number, slot, idx;
	struct codemap_body *b;
	struct chunk *c;

	if (!bs->first_free && !chunk_new(bs))
		return 0;
	number = bs->first_free;
	c = &bs->chunks[number - 1];
	if (c->free) {
		slot = c->free - 1u;
		c->free = (uint16_t)bs->base[number - 1][slot].next;
	} else {
		slot = c->fresh++;
	}
	c->used++;
	if (!c->free && c->fresh == CHUNK_BODIES)
		chunk_unlink(bs, number);
	bs->count++;
	idx = (number - 1) << CHUNK_SHIFT | slot;
	b = body_at(bs, idx);
	memset(b, 0, sizeof(*b));
	return idx;
}

void bodies_free(struct bodies *bs, uint32_t idx)
{
	uint32_t number = (idx >> CHUNK_SHIFT) + 1, slot = idx & (CHUNK_BODIES - 1);
	struct chunk *c = &bs->chunks[number - 1];
	bool was_full = !c->free && c->fresh == CHUNK_BODIES;

	bs->count--;
	body_at(bs, idx)->next = c->free;
	body_at(bs, idx)->size = 0;
	c->free = (uint16_t)(slot + 1);
	if (was_full)
		chunk_link(bs, number);
	if (--c->used)
		return;
	bs->spans[number - 1] = (struct span){ .oldest = UINT64_MAX };
	mem_free(&bs->total, c->bounds);
	c->bounds = NULL;
	if (bs->first_free == number && bs->last_free == number)
		return;
	chunk_unlink(bs, number);
	mem_free(&bs->total, c->mem);
	bs->base[number - 1] = NULL;
	*c = (struct chunk){ .next = bs->unused };
	bs->unused = number;
}

void body_set_load(struct bodies *bs, uint32_t idx, uint64_t time, bool seen, uint64_t bound)
{
	struct span *span = &bs->spans[idx >> CHUNK_SHIFT];
	struct chunk *c = &bs->chunks[idx >> CHUNK_SHIFT];
	struct codemap_body *b = body_at(bs, idx);
	uint32_t i;

	if (seen && bound != bs->begin && !c->bounds) {
		c->bounds = mem_realloc(&bs->total, NULL, CHUNK_BODIES * sizeof(*c->bounds));
		for (i = 0; c->bounds && i < CHUNK_BODIES; i++)
			c->bounds[i] = bs->begin;
		seen = c->bounds; /* no room for the bound: claim nothing before */
	}
	b->load = time;
	b->open_past = seen;
	if (c->bounds)
		c->bounds[idx & (CHUNK_BODIES - 1)] = bound;
	span->newest = MAX(span->newest, time);
	span->oldest = MIN(span->oldest, seen ? bound : time);
}

uint64_t body_begin(const struct bodies *bs, uint32_t idx)
{
	const struct codemap_body *b = body_at(bs, idx);
	const struct chunk *c = &bs->chunks[idx >> CHUNK_SHIFT];

	if (!b->open_past)
		return b->load;
	return c->bounds ? c->bounds[idx & (CHUNK_BODIES - 1)] : bs->begin;
}

bool bodies_has(const struct bodies *bs, uint32_t idx)
{
	uint32_t chunk = idx >> CHUNK_SHIFT, slot = idx & (CHUNK_BODIES - 1);

	return idx && chunk < bs->n_chunks && slot < bs->chunks[chunk].fresh &&
	       body_at(bs, idx)->size;
}
