/* SPDX-License-Identifier: Apache-2.0 */
/* The set of pages: a keyed hash table, as addresses and pids come from a file. */
#include "inject/pages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/hash.h"
#include "base/util.h"

/* So many pages are asked for one by one. */
#define PAGES_FEW     4u
#define PAGES_FIRST   1024u
#define PAGE_GRANULES 256u

void pages_init(struct pages *p)
{
	*p = (struct pages){ .seed = hash_seed() };
}

void pages_deinit(struct pages *p)
{
	free(p->items);
	free(p->settled);
	free(p->slots);
	free(p->order);
	*p = (struct pages){ 0 };
}

/* The slot of a key, or the empty one where it belongs. */
static uint32_t *pages_slot(const struct pages *p, uint32_t pid, uint64_t number)
{
	uint32_t mask = p->n_slots - 1;
	uint32_t i = (uint32_t)hash_u64(p->seed ^ pid, number) & mask;

	for (;; i = (i + 1) & mask) {
		const struct page *page = &p->items[p->slots[i] - 1];

		if (!p->slots[i] || (page->number == number && page->pid == pid))
			return &p->slots[i];
	}
}

static struct page *pages_find(const struct pages *p, uint32_t pid, uint64_t number)
{
	uint32_t slot = p->n ? *pages_slot(p, pid, number) : 0;

	return slot ? &p->items[slot - 1] : NULL;
}

/* Room for one more, with at least half of the slots empty. */
static int pages_grow(struct pages *p)
{
	uint32_t i, size = p->size ? p->size * 2 : PAGES_FIRST;
	struct page *items = realloc(p->items, size * sizeof(*items));
	uint32_t *slots;

	if (!items)
		return -ENOMEM;
	p->items = items;
	slots = calloc(size * 2, sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	free(p->slots);
	p->slots = slots;
	p->n_slots = size * 2;
	p->size = size;
	for (i = 0; i < p->n; i++)
		*pages_slot(p, items[i].pid, items[i].number) = i + 1;
	return 0;
}

static struct page *pages_note(struct pages *p, struct page *page)
{
	p->recent[(page->number ^ page->pid) % PAGES_RECENT] = (uint32_t)(page - p->items);
	return page;
}

struct page *pages_get(struct pages *p, uint32_t pid, uint64_t number, int *errorp)
{
	struct page *page = pages_find(p, pid, number);

	*errorp = 0;
	if (page)
		return pages_note(p, page);
	if (p->n == CAP_INJECT_PAGES)
		p->full = true;
	if (p->full)
		return NULL;
	if (p->n == p->size) {
		*errorp = pages_grow(p);
		if (*errorp)
			return NULL;
	}
	*pages_slot(p, pid, number) = p->n + 1;
	page = &p->items[p->n++];
	*page = (struct page){ .number = number, .pid = pid };
	return pages_note(p, page);
}

const struct page *pages_look(struct pages *p, uint32_t pid, uint64_t number)
{
	struct page *page = pages_find(p, pid, number);

	return page ? pages_note(p, page) : NULL;
}

int pages_merge(struct pages *p, uint32_t pid, const struct page *page)
{
	struct page *into;
	size_t i;
	int r;

	into = pages_get(p, pid, page->number, &r);
	for (i = 0; into && i < ARRAY_SIZE(into->bits); i++)
		into->bits[i] |= page->bits[i];
	return into ? 0 : r;
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

static int compare_pages(const void *ap, const void *bp, void *data)
{
	const struct page *items = data;
	const struct page *a = &items[*(const uint32_t *)ap], *b = &items[*(const uint32_t *)bp];

	if (a->pid != b->pid)
		return a->pid < b->pid ? -1 : 1;
	return a->number < b->number ? -1 : a->number > b->number;
}

int pages_seal(struct pages *p)
{
	uint32_t i;

	p->order = malloc((p->n + (size_t)1) * sizeof(*p->order));
	if (!p->order)
		return -ENOMEM;
	for (i = 0; i < p->n; i++)
		p->order[i] = i;
	if (p->n)
		qsort_r(p->order, p->n, sizeof(*p->order), compare_pages, p->items);
	return 0;
}

/*
 * A walk over the pages of a pid from one number to another. Code is mostly in one or two pages,
 * which the hash finds at once; a mapping may be far larger than all that was hit.
 */
struct pages_walk {
	const struct pages *p;
	uint32_t pid, at;
	bool ordered;
	uint64_t number, last;
};

static void walk_init(struct pages_walk *w, const struct pages *p, uint32_t pid, uint64_t start,
		      uint64_t end)
{
	uint32_t lo = 0, hi = p->n;

	*w = (struct pages_walk){
		.p = p,
		.pid = pid,
		.number = start >> PAGES_SHIFT,
		.last = (end - 1) >> PAGES_SHIFT,
	};
	w->ordered = p->order && w->last - w->number >= PAGES_FEW;
	if (!w->ordered)
		return;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		const struct page *page = &p->items[p->order[mid]];

		if (page->pid < pid || (page->pid == pid && page->number < w->number))
			lo = mid + 1;
		else
			hi = mid;
	}
	w->at = lo;
}

static struct page *walk_next(struct pages_walk *w)
{
	if (w->ordered) {
		struct page *page = w->at < w->p->n ? &w->p->items[w->p->order[w->at++]] : NULL;

		return page && page->pid == w->pid && page->number <= w->last ? page : NULL;
	}
	while (w->number <= w->last) {
		struct page *page = pages_find(w->p, w->pid, w->number++);

		if (page)
			return page;
	}
	return NULL;
}

bool pages_any(const struct pages *p, uint32_t pid, uint64_t start, uint64_t end)
{
	struct pages_walk w;
	const struct page *page;

	if (p->full)
		return true;
	if (!p->n || start >= end)
		return false;
	walk_init(&w, p, pid, start, end);
	while ((page = walk_next(&w))) {
		unsigned int from = 0, to = PAGE_GRANULES - 1;

		if (page->number == start >> PAGES_SHIFT)
			from = (start / PAGES_GRANULE) % PAGE_GRANULES;
		if (page->number == w.last)
			to = ((end - 1) / PAGES_GRANULE) % PAGE_GRANULES;
		if (pages_test(page, from, to))
			return true;
	}
	return false;
}

/* [at, end) of one page, from the beginning of a granule. */
static void settle_page(struct settled *settled, uint64_t at, uint64_t end, uint64_t from)
{
	settled->from = MAX(settled->from, from);
	for (; at < end; at += PAGES_GRANULE)
		settled->heads[at / PAGES_GRANULE % PAGE_GRANULES] =
			(uint8_t)MIN(end - at, PAGES_GRANULE);
}

int pages_settle(struct pages *p, uint32_t pid, uint64_t start, uint64_t end, uint64_t from)
{
	uint64_t at = (start + PAGES_GRANULE - 1) & ~(uint64_t)(PAGES_GRANULE - 1);
	const struct page *page;
	struct pages_walk w;

	if (!p->n)
		return 0;
	if (!p->settled)
		p->settled = calloc(p->n, sizeof(*p->settled));
	if (!p->settled)
		return -ENOMEM;
	if (at >= end)
		return 0;
	walk_init(&w, p, pid, at, end);
	while ((page = walk_next(&w))) {
		uint64_t base = page->number << PAGES_SHIFT;

		settle_page(&p->settled[page - p->items], MAX(at, base),
			    MIN(end, base + (UINT64_C(1) << PAGES_SHIFT)), from);
	}
	return 0;
}
