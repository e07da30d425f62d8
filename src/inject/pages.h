/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Which code addresses a recording holds, by pid: a bit for each 16 bytes of each page that was
 * hit. Its size follows the code that ran, not the number of samples.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGES_SHIFT   12u
#define PAGES_GRANULE 16u
#define PAGES_RECENT  256u

struct pages {
	struct page *slots; /* open addressing; n_slots is a power of two */
	size_t n_slots, n;
	uint64_t seed;
	/* the same few pages come again and again */
	struct page *recent[PAGES_RECENT];
	bool full; /* over the cap: everything counts as hit */
};

struct page {
	uint64_t number;
	uint32_t pid;
	bool used;
	uint64_t bits[4];
};

void pages_init(struct pages *p);
void pages_deinit(struct pages *p);
/* The page's slot, made if need be. NULL: no memory (*errorp = -ENOMEM), or over the cap. */
struct page *pages_get(struct pages *p, uint32_t pid, uint64_t number, int *errorp);
/* Is any address of [start, end) in it? At 16-byte precision. */
bool pages_any(const struct pages *p, uint32_t pid, uint64_t start, uint64_t end);

/* Returns 0 or -ENOMEM. */
static inline int pages_mark(struct pages *p, uint32_t pid, uint64_t addr)
{
	uint64_t number = addr >> PAGES_SHIFT;
	unsigned int granule = (addr >> 4) & 255;
	struct page *page = p->recent[(number ^ pid) % PAGES_RECENT];
	int r = 0;

	if (!page || page->number != number || page->pid != pid) {
		page = pages_get(p, pid, number, &r);
		if (!page)
			return r;
	}
	page->bits[granule >> 6] |= UINT64_C(1) << (granule & 63);
	return 0;
}
