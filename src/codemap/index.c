/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Live bodies by address.
 *
 * The address space is cut into segments of 64 KiB. A segment holds a sorted array of
 * entries, one a body that touches it: first and last byte inside the segment, and the
 * body; 8 bytes. A body that crosses into the next segment has an entry there too, marked
 * as a continuation. Code is dense, so a segment has some 200 entries; one of more than 32
 * also has, for each 512 bytes, the number of entries that start before: a lookup is a hash
 * probe for the segment, one such number and a scan of two or three entries, where a
 * binary search of a million ranges takes twenty steps, most of them cache misses.
 *
 * One open-addressing table finds the segments (keyed with a seed, as a target chooses its
 * addresses) and, under other keys, 64-bit words that tell which segments exist: bit b of
 * word (level, p) says that something is below prefix p * 64 + b. Six levels of words
 * make the next existing segment a matter of at most twelve probes.
 *
 * index_reserve() does all that can fail, so that what follows cannot.
 */
#include "codemap/map.h"

#include <errno.h>
#include <string.h>

#define LEVELS        6
#define BUCKET_SHIFT  9
#define BUCKETS       (SEGMENT_BYTES >> BUCKET_SHIFT)
#define DENSE_ABOVE   32u /* a smaller one is searched by halves in five steps */
#define DENSE_BELOW   16u
#define CONTINUATION  (UINT32_C(1) << 31)
#define TABLE_INITIAL 64u

struct entry {
	uint16_t first, last; /* bytes of the segment */
	uint32_t body;        /* with CONTINUATION: the body starts in a segment before */
};

/* What a slot of the table points to; the low bit of the pointer says dense. */
struct dense {
	struct segment head;
	uint16_t before[BUCKETS]; /* entries whose first byte lies before the bucket */
	struct entry entries[];
};

struct sparse {
	struct segment head;
	struct entry entries[];
};

static struct segment *segment_of(uint64_t value)
{
	return (struct segment *)(uintptr_t)(value & ~UINT64_C(1));
}

static bool is_dense(uint64_t value)
{
	return value & 1;
}

static struct entry *entries_of(uint64_t value)
{
	if (is_dense(value))
		return ((struct dense *)segment_of(value))->entries;
	return ((struct sparse *)segment_of(value))->entries;
}

/* -- The table ---------------------------------------------------------------------------- */

static uint32_t table_home(const struct live_index *ix, uint64_t key)
{
	return (uint32_t)hash_u64(ix->seed, key) & ix->mask;
}

static inline struct slot *table_find(const struct live_index *ix, uint64_t key)
{
	uint32_t i;

	for (i = table_home(ix, key); ix->slots[i].value; i = (i + 1) & ix->mask)
		if (ix->slots[i].key == key)
			return &ix->slots[i];
	return NULL;
}

static void table_put(struct live_index *ix, uint64_t key, uint64_t value)
{
	uint32_t i;

	for (i = table_home(ix, key); ix->slots[i].value; i = (i + 1) & ix->mask)
		;
	ix->slots[i] = (struct slot){ .key = key, .value = value };
	ix->used++;
}

/* Entries behind a hole move up unless that would carry them before their home. */
static void table_remove(struct live_index *ix, struct slot *slot)
{
	uint32_t hole = (uint32_t)(slot - ix->slots), i = hole;

	for (;;) {
		uint32_t home;

		i = (i + 1) & ix->mask;
		if (!ix->slots[i].value)
			break;
		home = table_home(ix, ix->slots[i].key);
		if (((i - home) & ix->mask) >= ((i - hole) & ix->mask)) {
			ix->slots[hole] = ix->slots[i];
			hole = i;
		}
	}
	ix->slots[hole].value = 0;
	ix->used--;
}

static int table_resize(struct live_index *ix, uint32_t n)
{
	struct slot *old = ix->slots, *slots = mem_realloc(&ix->total, NULL, n * sizeof(*slots));
	uint32_t i, old_n = old ? ix->mask + 1 : 0;

	if (!slots)
		return -ENOMEM;
	memset(slots, 0, n * sizeof(*slots));
	ix->slots = slots;
	ix->mask = n - 1;
	ix->used = 0;
	for (i = 0; i < old_n; i++)
		if (old[i].value)
			table_put(ix, old[i].key, old[i].value);
	mem_free(&ix->total, old);
	return 0;
}

/* Room for a segment and the words above it, at most two thirds full. */
static int table_reserve(struct live_index *ix)
{
	uint32_t n = ix->mask + 1;

	if ((ix->used + LEVELS + 1) * 3 <= n * 2)
		return 0;
	return table_resize(ix, n * 2);
}

/* -- Which segments exist ----------------------------------------------------------------- */

static uint64_t word_key(unsigned int level, uint64_t prefix)
{
	return (uint64_t)level << 32 | prefix;
}

static void words_set(struct live_index *ix, uint64_t key)
{
	unsigned int level;

	for (level = 1; level <= LEVELS; level++, key >>= 6) {
		uint64_t bit = UINT64_C(1) << (key & 63);
		struct slot *slot = table_find(ix, word_key(level, key >> 6));

		if (slot) {
			slot->value |= bit;
			return;
		}
		table_put(ix, word_key(level, key >> 6), bit);
	}
}

static void words_clear(struct live_index *ix, uint64_t key)
{
	unsigned int level;

	for (level = 1; level <= LEVELS; level++, key >>= 6) {
		struct slot *slot = table_find(ix, word_key(level, key >> 6));

		slot->value &= ~(UINT64_C(1) << (key & 63));
		if (slot->value)
			return;
		table_remove(ix, slot);
	}
}

/* The first existing segment at or after key. */
static bool words_next(const struct live_index *ix, uint64_t key, uint64_t *keyp)
{
	unsigned int level;

	for (level = 1; level <= LEVELS; level++) {
		const struct slot *slot = table_find(ix, word_key(level, key >> 6));
		uint64_t bits = slot ? slot->value & UINT64_MAX << (key & 63) : 0;

		if (bits) {
			key = (key & ~UINT64_C(63)) | (unsigned int)__builtin_ctzll(bits);
			while (--level) {
				slot = table_find(ix, word_key(level, key));
				key = key << 6 | (unsigned int)__builtin_ctzll(slot->value);
			}
			*keyp = key;
			return true;
		}
		key = (key >> 6) + 1;
	}
	return false;
}

/* -- Segments ----------------------------------------------------------------------------- */

int index_init(struct live_index *ix, size_t max_entries)
{
	*ix = (struct live_index){ .seed = hash_seed(), .max_entries = max_entries };
	return table_resize(ix, TABLE_INITIAL);
}

void index_deinit(struct live_index *ix)
{
	uint64_t key = 0;

	if (!ix->slots)
		return;
	for (; words_next(ix, key, &key); key++)
		mem_free(&ix->total, segment_of(table_find(ix, key)->value));
	mem_free(&ix->total, ix->slots);
	*ix = (struct live_index){ 0 };
}

/* Another size or form of the segment in a slot; entries stay. Returns 0 or -ENOMEM. */
static int segment_resize(struct live_index *ix, struct slot *slot, uint32_t size, bool dense)
{
	struct segment *old = segment_of(slot->value), *seg;
	size_t head = dense ? sizeof(struct dense) : sizeof(struct sparse);
	struct entry *entries;
	uint32_t i, bucket = 0;

	seg = mem_realloc(&ix->total, NULL, head + size * sizeof(struct entry));
	if (!seg)
		return -ENOMEM;
	*seg = (struct segment){ .size = size };
	if (old) {
		seg->n = old->n;
		seg->past = old->past;
	}
	entries = entries_of((uintptr_t)seg | dense);
	if (seg->n)
		memcpy(entries, entries_of(slot->value), seg->n * sizeof(*entries));
	if (dense) {
		uint16_t *before = ((struct dense *)seg)->before;

		for (i = 0; i < seg->n; i++)
			while (bucket <= (uint32_t)entries[i].first >> BUCKET_SHIFT)
				before[bucket++] = (uint16_t)i;
		while (bucket < BUCKETS)
			before[bucket++] = (uint16_t)i;
	}
	slot->value = (uintptr_t)seg | dense;
	mem_free(&ix->total, old);
	return 0;
}

static struct slot *slot_get(struct live_index *ix, uint64_t key)
{
	struct slot *slot = table_find(ix, key), made = { .key = key };

	if (slot)
		return slot;
	if (table_reserve(ix) < 0 || segment_resize(ix, &made, 2, false) < 0)
		return NULL;
	table_put(ix, key, made.value);
	words_set(ix, key);
	return table_find(ix, key);
}

struct segment *index_segment(const struct live_index *ix, uint64_t key)
{
	const struct slot *slot = table_find(ix, key);

	return slot ? segment_of(slot->value) : NULL;
}

struct segment *index_segment_get(struct live_index *ix, uint64_t key)
{
	const struct slot *slot = slot_get(ix, key);

	return slot ? segment_of(slot->value) : NULL;
}

void index_segment_trim(struct live_index *ix, uint64_t key)
{
	struct slot *slot = table_find(ix, key);
	struct segment *seg = slot ? segment_of(slot->value) : NULL;

	if (!seg || seg->n || seg->past)
		return;
	mem_free(&ix->total, seg);
	table_remove(ix, slot);
	words_clear(ix, key);
}

/* The number of entries that start at or before off. */
static inline uint32_t entries_until(uint64_t value, uint32_t off)
{
	const struct segment *seg = segment_of(value);
	const struct entry *e;
	uint32_t i, n;

	if (likely(is_dense(value))) {
		const struct dense *d = (const struct dense *)seg;

		e = d->entries;
		for (i = d->before[off >> BUCKET_SHIFT]; i < seg->n && e[i].first <= off; i++)
			;
		return i;
	}
	e = ((const struct sparse *)seg)->entries;
	for (i = 0, n = seg->n; n; n /= 2) {
		uint32_t half = n - n / 2;

		if (e[i + half - 1].first <= off)
			i += half;
		else if (n == 1)
			break;
	}
	return i;
}

uint32_t index_find(const struct live_index *ix, uint64_t addr)
{
	uint32_t off = (uint32_t)addr & (SEGMENT_BYTES - 1), i;
	const struct slot *slot;
	const struct entry *e;

	if (unlikely(addr >= ADDRESS_END))
		return 0;
	slot = table_find(ix, addr >> SEGMENT_SHIFT);
	if (!slot)
		return 0;
	i = entries_until(slot->value, off);
	if (!i)
		return 0;
	e = &entries_of(slot->value)[i - 1];
	return off <= e->last ? e->body & ~CONTINUATION : 0;
}

/* -- Changes ------------------------------------------------------------------------------ */

static uint64_t key_first(uint64_t start)
{
	return start >> SEGMENT_SHIFT;
}

static uint64_t key_last(uint64_t stop)
{
	return (stop - 1) >> SEGMENT_SHIFT;
}

void index_trim(struct live_index *ix, uint64_t start, uint64_t stop)
{
	uint64_t key;

	for (key = key_first(start); key <= key_last(stop); key++)
		index_segment_trim(ix, key);
}

int index_reserve(struct live_index *ix, uint64_t start, uint64_t stop)
{
	uint64_t key;

	if (ix->entries + (key_last(stop) - key_first(start) + 1) > ix->max_entries)
		return CODEMAP_E_FULL;
	for (key = key_first(start); key <= key_last(stop); key++) {
		struct slot *slot = slot_get(ix, key);
		struct segment *seg;
		uint32_t size;
		bool dense;

		if (!slot)
			goto fail;
		seg = segment_of(slot->value);
		dense = is_dense(slot->value) || seg->n + 1 > DENSE_ABOVE;
		size = seg->size;
		if (seg->n == size)
			size += size / 8 + 2;
		if ((size != seg->size || dense != is_dense(slot->value)) &&
		    segment_resize(ix, slot, size, dense) < 0)
			goto fail;
	}
	return 0;
fail:
	index_trim(ix, start, MIN((key + 1) << SEGMENT_SHIFT, stop));
	return -ENOMEM;
}

void index_add(struct live_index *ix, uint32_t idx, uint64_t start, uint64_t stop)
{
	uint64_t key;

	for (key = key_first(start); key <= key_last(stop); key++) {
		uint64_t base = key << SEGMENT_SHIFT;
		struct slot *slot = table_find(ix, key);
		struct segment *seg = segment_of(slot->value);
		struct entry *e = entries_of(slot->value), new = {
			.first = (uint16_t)(MAX(start, base) - base),
			.last = (uint16_t)(MIN(stop - base, (uint64_t)SEGMENT_BYTES) - 1),
			.body = idx | (start < base ? CONTINUATION : 0),
		};
		uint32_t at = entries_until(slot->value, new.first), i;

		memmove(e + at + 1, e + at, (seg->n - at) * sizeof(*e));
		e[at] = new;
		seg->n++;
		ix->entries++;
		if (is_dense(slot->value)) {
			uint16_t *before = ((struct dense *)seg)->before;

			for (i = (new.first >> BUCKET_SHIFT) + 1u; i < BUCKETS; i++)
				before[i]++;
		}
	}
}

void index_remove(struct live_index *ix, uint32_t idx, uint64_t start, uint64_t stop)
{
	uint64_t key;

	for (key = key_first(start); key <= key_last(stop); key++) {
		uint64_t base = key << SEGMENT_SHIFT;
		uint32_t first = (uint32_t)(MAX(start, base) - base), i, at;
		struct slot *slot = table_find(ix, key);
		struct segment *seg = segment_of(slot->value);
		struct entry *e = entries_of(slot->value);
		bool dense = is_dense(slot->value);

		/* its successor may be there already */
		at = entries_until(slot->value, first) - 1;
		while ((e[at].body & ~CONTINUATION) != idx)
			at--;
		memmove(e + at, e + at + 1, (seg->n - at - 1) * sizeof(*e));
		seg->n--;
		ix->entries--;
		if (dense) {
			uint16_t *before = ((struct dense *)seg)->before;

			for (i = (first >> BUCKET_SHIFT) + 1u; i < BUCKETS; i++)
				before[i]--;
		}
		if (!seg->n && !seg->past)
			index_segment_trim(ix, key);
		else if (seg->size > 16 && seg->n < seg->size / 2)
			/* without memory it just stays large */
			(void)segment_resize(ix, slot, seg->n + seg->n / 8 + 2,
					     dense && seg->n >= DENSE_BELOW);
	}
}

/* -- Walks -------------------------------------------------------------------------------- */

int index_gather(const struct live_index *ix, uint64_t start, uint64_t stop, struct list *out)
{
	uint64_t key;
	int r;

	for (key = key_first(start); key <= key_last(stop); key++) {
		uint64_t base = key << SEGMENT_SHIFT;
		const struct slot *slot = table_find(ix, key);
		const struct entry *e;
		uint32_t first, last, i;

		if (!slot)
			continue;
		e = entries_of(slot->value);
		first = (uint32_t)(MAX(start, base) - base);
		last = (uint32_t)(MIN(stop - base, (uint64_t)SEGMENT_BYTES) - 1);
		i = entries_until(slot->value, first);
		if (i && e[i - 1].last >= first)
			i--;
		for (; i < segment_of(slot->value)->n && e[i].first <= last; i++) {
			/* seen in the segment before */
			if (e[i].body & CONTINUATION && key != key_first(start))
				continue;
			r = list_add(out, e[i].body & ~CONTINUATION);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

uint32_t index_next(const struct live_index *ix, uint64_t from)
{
	uint64_t key = from >> SEGMENT_SHIFT;
	uint32_t off = (uint32_t)from & (SEGMENT_BYTES - 1);

	if (from >= ADDRESS_END)
		return 0;
	for (; words_next(ix, key, &key); key++) {
		const struct slot *slot = table_find(ix, key);
		const struct entry *e = entries_of(slot->value);
		uint32_t n = segment_of(slot->value)->n, i = 0;

		if (key == from >> SEGMENT_SHIFT && off)
			i = entries_until(slot->value, off - 1);
		while (i < n && e[i].body & CONTINUATION)
			i++;
		if (i < n)
			return e[i].body;
	}
	return 0;
}
