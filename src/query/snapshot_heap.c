/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heap of a snapshot, as its writer sees it.
 *
 * Blocks are cut from the front of untouched memory and, once freed, kept in a list of their
 * size for the next of that size: what was freed last is used first, while it is in the cache. What
 * is known about them stands in private memory, with room for a block's return taken when
 * it is cut, so that freeing cannot fail. Blocks are not joined: a heap whose sizes have moved
 * on is full early, and a new generation begins.
 *
 * Texts and IL maps are shared by content: the names of generic instances, the paths of modules and
 * the maps of small methods are the same thousands of times. The table has a reference count for
 * each; its hash is keyed, as a target chooses the content.
 */
#include "query/snapshot_heap.h"

#include <errno.h>

#include "base/hash.h"

#define SMALL_STEP 16u
#define N_SMALL    (HEAP_SMALL / SMALL_STEP)
#define PIECE      4096u
/* Of a doubling. */
#define STEPS_SHIFT 3
#define FIRST_TEXTS 1024u

static uint32_t class_of(size_t bytes, size_t *sizep)
{
	unsigned int shift;
	size_t step, k;

	if (bytes <= HEAP_SMALL) {
		k = MAX((bytes + SMALL_STEP - 1) / SMALL_STEP, (size_t)1);
		*sizep = k * SMALL_STEP;
		return (uint32_t)k;
	}
	/* 2^shift < bytes <= 2^(shift + 1) */
	shift = 63 - (unsigned int)__builtin_clzll(bytes - 1);
	step = (size_t)1 << (shift - STEPS_SHIFT);
	k = (bytes - ((size_t)1 << shift) + step - 1) / step;
	*sizep = ((size_t)1 << shift) + k * step;
	return N_SMALL + ((shift - 9) << STEPS_SHIFT) + (uint32_t)k;
}

int heap_init(struct heap *heap, void *base, uint64_t begin, uint64_t end)
{
	*heap = (struct heap){
		.base = base,
		.next = begin,
		.end = end,
		.mask = FIRST_TEXTS - 1,
		.seed = hash_seed(),
		.private_bytes = FIRST_TEXTS * sizeof(*heap->texts),
	};
	heap->texts = calloc(FIRST_TEXTS, sizeof(*heap->texts));
	return heap->texts ? 0 : -ENOMEM;
}

void heap_deinit(struct heap *heap)
{
	uint32_t i;

	for (i = 0; i < HEAP_CLASSES; i++)
		free(heap->classes[i].free);
	free(heap->texts);
}

/* -- Blocks ------------------------------------------------------------------------------- */

static int class_reserve(struct heap *heap, struct heap_class *c)
{
	uint32_t size = c->size_free ? c->size_free * 2 : 64, *grown;

	if (c->n_blocks < c->size_free)
		return 0;
	grown = realloc(c->free, size * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	heap->private_bytes += (size - c->size_free) * sizeof(*grown);
	c->free = grown;
	c->size_free = size;
	return 0;
}

static int heap_cut(struct heap *heap, size_t bytes, uint64_t *offsetp)
{
	if (bytes > heap->end - heap->next)
		return SNAPSHOT_E_FULL;
	*offsetp = heap->next;
	heap->next += bytes;
	return 0;
}

int heap_lines(struct heap *heap, size_t bytes, uint64_t *offsetp)
{
	if (bytes > heap->end - heap->next)
		return SNAPSHOT_E_FULL;
	heap->end -= bytes;
	*offsetp = heap->end;
	return 0;
}

int heap_alloc(struct heap *heap, size_t bytes, uint32_t *placep, uint32_t *classp)
{
	struct heap_class *c;
	size_t size, piece;
	uint32_t class;
	int r;

	if (bytes > HEAP_BLOCK_BYTES)
		return SNAPSHOT_E_FULL;
	class = class_of(bytes, &size);
	c = &heap->classes[class];
	if (!c->n_free) {
		r = class_reserve(heap, c);
		if (r)
			return r;
		if (size > c->end - c->next) {
			piece = size <= HEAP_SMALL ? PIECE : size;
			r = heap_cut(heap, piece, &c->next);
			if (r)
				return r;
			c->end = c->next + piece;
		}
		c->n_blocks++;
		c->free[c->n_free++] = (uint32_t)(c->next / 8);
		c->next += size;
	}
	*placep = c->free[--c->n_free];
	*classp = class;
	return 0;
}

void heap_free(struct heap *heap, uint32_t place, uint32_t class)
{
	struct heap_class *c = &heap->classes[class];

	c->free[c->n_free++] = place;
}

/* -- Content that is shared --------------------------------------------------------------- */

static size_t blob_bytes(const struct heap_blob *blob)
{
	return (size_t)blob->head_len + blob->text_len;
}

static uint8_t blob_byte(const struct heap_blob *blob, size_t at)
{
	if (at < blob->head_len)
		return ((const uint8_t *)blob->head)[at];
	at -= blob->head_len;
	return at < blob->text_len ? ((const uint8_t *)blob->text)[at] : 0;
}

/* The eight bytes from there, as memory has them; zeros behind the end. */
static uint64_t blob_word(const struct heap_blob *blob, size_t at)
{
	uint8_t bytes[8];
	uint64_t word;
	size_t i;

	if (likely(at >= blob->head_len && at + 8 <= blob_bytes(blob))) {
		memcpy(&word, (const uint8_t *)blob->text + (at - blob->head_len), 8);
		return word;
	}
	for (i = 0; i < 8; i++)
		bytes[i] = blob_byte(blob, at + i);
	memcpy(&word, bytes, 8);
	return word;
}

static uint64_t *at_place(const struct heap *heap, uint32_t place)
{
	return (uint64_t *)(void *)(heap->base + (uint64_t)place * 8);
}

static bool blob_is_at(const struct heap *heap, const struct heap_blob *blob, uint32_t place)
{
	const uint8_t *p = heap->base + (uint64_t)place * 8;

	return blob_bytes(blob) <= heap->next - (uint64_t)place * 8 &&
	       !memcmp(p, blob->head, blob->head_len) &&
	       !memcmp(p + blob->head_len, blob->text, blob->text_len);
}

/* Of the pieces as one, so that it can be computed from what is stored. */
static uint32_t text_hash(const struct heap *heap, const struct heap_blob *blob)
{
	size_t at, n = blob_bytes(blob);
	uint64_t h = heap->seed ^ n;

	for (at = 0; at < n; at += 8)
		h = hash_fold(blob_word(blob, at) ^ h, UINT64_C(0xa0761d6478bd642f) ^ heap->seed);
	return (uint32_t)(h ^ h >> 32);
}

static int texts_reserve(struct heap *heap)
{
	uint32_t size = heap->mask + 1, i, at;
	struct heap_text *grown;

	if (heap->n_texts < size / 4 * 3)
		return 0;
	grown = calloc((size_t)size * 2, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	for (i = 0; i < size; i++) {
		if (!heap->texts[i].place)
			continue;
		at = heap->texts[i].hash & (size * 2 - 1);
		while (grown[at].place)
			at = (at + 1) & (size * 2 - 1);
		grown[at] = heap->texts[i];
	}
	free(heap->texts);
	heap->texts = grown;
	heap->mask = size * 2 - 1;
	heap->private_bytes += size * sizeof(*grown);
	return 0;
}

int heap_share(struct heap *heap, const struct heap_blob *blob, uint32_t *placep)
{
	uint32_t hash = text_hash(heap, blob), at, class;
	size_t i, n = blob_bytes(blob);
	uint64_t *to;
	int r;

	r = texts_reserve(heap);
	if (r)
		return r;
	for (at = hash & heap->mask; heap->texts[at].place; at = (at + 1) & heap->mask) {
		struct heap_text *t = &heap->texts[at];

		if (t->hash == hash && blob_is_at(heap, blob, t->place)) {
			t->refs++;
			*placep = t->place;
			return 0;
		}
	}
	r = heap_alloc(heap, n, placep, &class);
	if (r)
		return r;
	to = at_place(heap, *placep);
	for (i = 0; i < n; i += 8)
		shared_store(to++, blob_word(blob, i));
	heap->texts[at] = (struct heap_text){ .place = *placep, .hash = hash, .refs = 1 };
	heap->n_texts++;
	return 0;
}

/* Closes the gap: who comes behind and may stand there moves up. */
static void texts_remove(struct heap *heap, uint32_t at)
{
	uint32_t next = at, home;

	for (;;) {
		next = (next + 1) & heap->mask;
		if (!heap->texts[next].place)
			break;
		home = heap->texts[next].hash & heap->mask;
		if (((next - home) & heap->mask) < ((next - at) & heap->mask))
			continue;
		heap->texts[at] = heap->texts[next];
		at = next;
	}
	heap->texts[at] = (struct heap_text){ 0 };
	heap->n_texts--;
}

void heap_unshare(struct heap *heap, uint32_t place, size_t bytes)
{
	struct heap_blob blob = { .text_len = (uint32_t)bytes };
	uint32_t at;
	size_t size;

	if (!place)
		return;
	blob.text = at_place(heap, place);
	at = text_hash(heap, &blob) & heap->mask;
	while (heap->texts[at].place != place)
		at = (at + 1) & heap->mask;
	if (--heap->texts[at].refs)
		return;
	texts_remove(heap, at);
	heap_free(heap, place, class_of(bytes, &size));
}
