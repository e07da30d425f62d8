/* SPDX-License-Identifier: Apache-2.0 */
/* The set of pages: a keyed hash table, as addresses and pids come from a file. */
#include "inject/pages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/hash.h"

#define PAGES_FIRST 1024u

void pages_init(struct pages *p)
{
	*p = (struct pages){ .seed = hash_seed() };
}

void pages_deinit(struct pages *p)
{
	free(p->slots);
	*p = (struct pages){ 0 };
}

/* The slot of a key, or the free one where it belongs. */
static struct page *pages_find(const struct pages *p, uint32_t pid, uint64_t number)
{
	size_t mask = p->n_slots - 1;
	size_t i = hash_u64(p->seed ^ pid, number) & mask;

	while (p->slots[i].used && (p->slots[i].number != number || p->slots[i].pid != pid))
		i = (i + 1) & mask;
	return &p->slots[i];
}

static int pages_grow(struct pages *p)
{
	struct pages bigger = {
		.n_slots = p->n_slots ? p->n_slots * 2 : PAGES_FIRST,
		.seed = p->seed,
	};
	size_t i;

	bigger.slots = calloc(bigger.n_slots, sizeof(*bigger.slots));
	if (!bigger.slots)
		return -ENOMEM;
	for (i = 0; i < p->n_slots; i++) {
		const struct page *page = &p->slots[i];

		if (page->used)
			*pages_find(&bigger, page->pid, page->number) = *page;
	}
	free(p->slots);
	p->slots = bigger.slots;
	p->n_slots = bigger.n_slots;
	memset(p->recent, 0, sizeof(p->recent));
	return 0;
}

struct page *pages_get(struct pages *p, uint32_t pid, uint64_t number, int *errorp)
{
	struct page *page;

	*errorp = 0;
	if (p->full)
		return NULL;
	if (p->n * 2 >= p->n_slots) {
		*errorp = pages_grow(p);
		if (*errorp)
			return NULL;
	}
	page = pages_find(p, pid, number);
	if (!page->used) {
		if (p->n == CAP_INJECT_PAGES) {
			p->full = true;
			return NULL;
		}
		p->n++;
		*page = (struct page){ .number = number, .pid = pid, .used = true };
	}
	p->recent[(number ^ pid) % PAGES_RECENT] = page;
	return page;
}

/* Bits from..to (inclusive) of the four words. */
static bool pages_test(const struct page *page, unsigned int from, unsigned int to)
{
	unsigned int word;

	for (word = from >> 6; word <= to >> 6; word++) {
		uint64_t mask = UINT64_MAX;

		if (word == from >> 6)
			mask &= UINT64_MAX << (from & 63);
		if (word == to >> 6)
			mask &= UINT64_MAX >> (63 - (to & 63));
		if (page->bits[word] & mask)
			return true;
	}
	return false;
}

bool pages_any(const struct pages *p, uint32_t pid, uint64_t start, uint64_t end)
{
	uint64_t number, last = (end - 1) >> PAGES_SHIFT;

	if (p->full)
		return true;
	if (!p->n || start >= end)
		return false;
	/* a mapping may be far larger than all that was hit */
	if (last - (start >> PAGES_SHIFT) > p->n_slots) {
		size_t i;

		for (i = 0; i < p->n_slots; i++)
			if (p->slots[i].used && p->slots[i].pid == pid &&
			    p->slots[i].number >= start >> PAGES_SHIFT &&
			    p->slots[i].number <= last)
				return true;
		return false;
	}
	for (number = start >> PAGES_SHIFT; number <= last; number++) {
		const struct page *page = pages_find(p, pid, number);
		unsigned int from = 0, to = 255;

		if (!page->used)
			continue;
		if (number == start >> PAGES_SHIFT)
			from = (start >> 4) & 255;
		if (number == last)
			to = ((end - 1) >> 4) & 255;
		if (pages_test(page, from, to))
			return true;
	}
	return false;
}
