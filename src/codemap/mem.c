/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that is counted, small lists, and hash chains.
 *
 * Counting asks malloc for the size of what it gave, so the map's own figure is the
 * process's cost and not a sum of wishes. It costs two calls that read a word each.
 *
 * The chains grow by linear hashing: with n heads, where 2^k < n <= 2^(k+1), a hash uses
 * its low k+1 bits, or the low k bits where that head does not exist yet. Adding head n
 * splits exactly one chain, that of n without its top bit.
 */
#include "codemap/map.h"

#include <errno.h>
#include <malloc.h>
#include <string.h>

/* Records a head. More cost compares, fewer cost memory: the budget is 96 bytes a body. */
#define CHAINS_LOAD 2u

void *mem_realloc(size_t *total, void *p, size_t n)
{
	size_t before = p ? malloc_usable_size(p) : 0;
	void *q = realloc(p, n);

	if (q)
		*total += malloc_usable_size(q) - before;
	return q;
}

void mem_free(size_t *total, void *p)
{
	if (!p)
		return;
	*total -= malloc_usable_size(p);
	free(p);
}

int list_add(struct list *l, uint32_t v)
{
	if (l->n == l->size) {
		uint32_t size = l->size ? l->size * 2 : 16;
		uint32_t *p = mem_realloc(&l->total, l->v, size * sizeof(*p));

		if (!p)
			return -ENOMEM;
		l->v = p;
		l->size = size;
	}
	l->v[l->n++] = v;
	return 0;
}

static void chains_split(struct chains *c, void *owner, chains_link_fn *link)
{
	uint32_t added = c->n, *from, *to, id;
	uint64_t hash;

	if (added > c->mask)
		c->mask = c->mask * 2 + 1;
	c->n++;
	to = &c->heads[added];
	from = &c->heads[added & c->mask >> 1];
	/* both keep their order: modules rely on it */
	for (id = *from; id; id = *from) {
		uint32_t *next = link(owner, id, &hash);

		if (((uint32_t)hash & c->mask) == added) {
			*from = *next;
			*to = id;
			to = next;
		} else {
			from = next;
		}
	}
	*to = 0;
}

int chains_reserve(struct chains *c, size_t *total, void *owner, chains_link_fn *link)
{
	if (c->n && c->count < c->n * CHAINS_LOAD)
		return 0;
	if (c->n == c->size) {
		uint32_t size = c->size + c->size / 8 + 16;
		uint32_t *heads = mem_realloc(total, c->heads, size * sizeof(*heads));

		if (!heads)
			return c->n ? 0 : -ENOMEM; /* longer chains will do */
		c->heads = heads;
		c->size = size;
	}
	if (!c->n) {
		c->heads[0] = 0;
		c->n = 1;
		c->mask = 0;
		return 0;
	}
	chains_split(c, owner, link);
	return 0;
}

void chains_add(struct chains *c, void *owner, chains_link_fn *link, uint32_t id)
{
	uint64_t hash;
	uint32_t *next = link(owner, id, &hash), *head = chains_head(c, hash);

	*next = *head;
	*head = id;
	c->count++;
}

void chains_remove(struct chains *c, void *owner, chains_link_fn *link, uint32_t id)
{
	uint64_t hash, other;
	uint32_t *next = link(owner, id, &hash), *from = chains_head(c, hash);

	while (*from != id)
		from = link(owner, *from, &other);
	*from = *next;
	c->count--;
}
