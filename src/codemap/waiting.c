/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events that wait for what they belong to: the last so many, found by key.
 *
 * A ring in order of arrival, with hash chains through it. Nothing is timed out: what is
 * never claimed is pushed out by what comes later, and an old entry is no wrong entry, as
 * it is matched by time. The ring grows to its maximum only when it is needed.
 */
#include "codemap/map.h"

#include <errno.h>
#include <string.h>

#define WAIT_INITIAL 16u

void wait_init(struct waitlist *w, uint32_t max)
{
	*w = (struct waitlist){ .max = max };
}

void wait_deinit(struct waitlist *w)
{
	mem_free(&w->total, w->slots);
	mem_free(&w->total, w->heads);
	*w = (struct waitlist){ .max = w->max };
}

static uint32_t *wait_head(const struct waitlist *w, uint64_t key)
{
	return &w->heads[(uint32_t)hash_u64(hash_seed(), key) & (w->size - 1)];
}

static void wait_link(struct waitlist *w, uint32_t i)
{
	uint32_t *head = wait_head(w, w->slots[i - 1].key);

	w->slots[i - 1].next = *head;
	*head = i;
}

static int wait_grow(struct waitlist *w)
{
	uint32_t size = w->size ? w->size * 2 : MIN(WAIT_INITIAL, w->max), i, *heads;
	struct waiting *slots;

	slots = mem_realloc(&w->total, NULL, size * sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	heads = mem_realloc(&w->total, NULL, size * sizeof(*heads));
	if (!heads) {
		mem_free(&w->total, slots);
		return -ENOMEM;
	}
	memset(slots, 0, size * sizeof(*slots));
	memset(heads, 0, size * sizeof(*heads));
	/* oldest first: it is the one at the tail */
	for (i = 0; i < w->size; i++)
		slots[i] = w->slots[(w->tail + i) & (w->size - 1)];
	mem_free(&w->total, w->slots);
	mem_free(&w->total, w->heads);
	w->slots = slots;
	w->heads = heads;
	w->tail = w->size;
	w->size = size;
	for (i = 1; i <= w->tail; i++)
		if (w->slots[i - 1].used)
			wait_link(w, i);
	return 0;
}

int wait_add(struct waitlist *w, uint64_t key, uint64_t sub, uint64_t time, uint32_t value,
	     uint32_t *droppedp)
{
	struct waiting *slot;

	*droppedp = 0;
	if (!w->size || (w->slots[w->tail].used && w->size < w->max)) {
		if (wait_grow(w) < 0 && !w->size)
			return -ENOMEM;
	}
	slot = &w->slots[w->tail];
	if (slot->used) {
		*droppedp = slot->value;
		wait_remove(w, w->tail + 1);
	}
	*slot = (struct waiting){
		.key = key,
		.sub = sub,
		.time = time,
		.value = value,
		.used = true,
	};
	w->used++;
	wait_link(w, w->tail + 1);
	w->tail = (w->tail + 1) & (w->size - 1);
	return 0;
}

struct waiting *wait_at(const struct waitlist *w, uint32_t i)
{
	return &w->slots[i - 1];
}

uint32_t wait_next(const struct waitlist *w, uint64_t key, uint32_t after)
{
	uint32_t i;

	if (!w->used)
		return 0;
	for (i = after ? w->slots[after - 1].next : *wait_head(w, key); i; i = w->slots[i - 1].next)
		if (w->slots[i - 1].key == key)
			return i;
	return 0;
}

void wait_remove(struct waitlist *w, uint32_t i)
{
	uint32_t *from = wait_head(w, w->slots[i - 1].key);

	while (*from != i)
		from = &w->slots[*from - 1].next;
	*from = w->slots[i - 1].next;
	w->slots[i - 1].used = false;
	w->used--;
}
