/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Which code addresses a recording holds, by pid: a bit for each 16 bytes of each page that was
 * hit. Its size follows the code that ran, not the number of samples.
 *
 * Once the code is known, many addresses are *settled*: from some time on, to the recording's end,
 * the same body is there. That spares nearly every sample a question to the code map, which would
 * be a walk through cold memory. It is known to the byte, as bodies seldom end with a granule.
 *
 * Pages lie one after another in the order in which they came, so that those that come again and
 * again are few cache lines; a hash table of indices finds them, and a small table in front of it
 * mostly spares that.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGES_SHIFT   12u
#define PAGES_GRANULE 16u
#define PAGES_RECENT  4096u

struct pages {
	struct page *items;
	struct settled *settled; /* of the same index, once anything is settled */
	uint32_t n, size;
	uint32_t *order; /* by pid and number, once sealed: for ranges that are larger than a few
			    pages */
	uint32_t *slots; /* open addressing; index + 1, 0: empty; n_slots is a power of two */
	uint32_t n_slots;
	uint64_t seed;
	uint32_t recent[PAGES_RECENT]; /* index, to be checked */
	bool full;                     /* over the cap: everything counts as hit */
};

struct page {
	uint64_t number;
	uint32_t pid;
	uint64_t bits[4];
};

struct settled {
	uint64_t from;      /* all of it that is settled has been so since then */
	uint8_t heads[256]; /* bytes at the start of each granule that are */
};

void pages_init(struct pages *p);
void pages_deinit(struct pages *p);
/* The page, made if need be. NULL: no memory (*errorp = -ENOMEM), or over the cap. */
struct page *pages_get(struct pages *p, uint32_t pid, uint64_t number, int *errorp);
/* The page, or NULL. */
const struct page *pages_look(struct pages *p, uint32_t pid, uint64_t number);
/* Adds what another pid's page holds. Returns 0 or -ENOMEM. */
int pages_merge(struct pages *p, uint32_t pid, const struct page *page);
/* No page is added any more. Returns 0 or -ENOMEM. */
int pages_seal(struct pages *p);
/* Is any address of [start, end) in it? At 16-byte precision; after pages_seal(). */
bool pages_any(const struct pages *p, uint32_t pid, uint64_t start, uint64_t end);
/*
 * [start, end) from the first granule that begins in it, of the pages that were hit; after
 * pages_seal(). Returns 0 or -ENOMEM.
 */
int pages_settle(struct pages *p, uint32_t pid, uint64_t start, uint64_t end, uint64_t from);

/* The page if it is one of those that came lately, or NULL. */
static inline struct page *pages_recent(const struct pages *p, uint32_t pid, uint64_t number)
{
	uint32_t i = p->recent[(number ^ pid) % PAGES_RECENT];

	return i < p->n && p->items[i].number == number && p->items[i].pid == pid ? &p->items[i]
										  : NULL;
}

/* Returns 0 or -ENOMEM. */
static inline int pages_mark(struct pages *p, uint32_t pid, uint64_t addr)
{
	uint64_t number = addr >> PAGES_SHIFT;
	unsigned int granule = (addr >> 4) & 255;
	struct page *page = pages_recent(p, pid, number);
	int r = 0;

	if (!page) {
		page = pages_get(p, pid, number, &r);
		if (!page)
			return r;
	}
	page->bits[granule >> 6] |= UINT64_C(1) << (granule & 63);
	return 0;
}

static inline bool pages_is_settled(struct pages *p, uint32_t pid, uint64_t addr, uint64_t time)
{
	uint64_t number = addr >> PAGES_SHIFT;
	unsigned int granule = (addr >> 4) & 255;
	const struct settled *settled;
	const struct page *page;

	if (!p->settled)
		return false;
	page = pages_recent(p, pid, number);
	if (!page)
		page = pages_look(p, pid, number);
	if (!page)
		return false;
	settled = &p->settled[page - p->items];
	return time >= settled->from && addr % PAGES_GRANULE < settled->heads[granule];
}
