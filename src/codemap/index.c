/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Live bodies by address.
 *
 * The address space is cut into segments of 64 KiB. A segment has a sorted array of
 * entries, one a body that touches it: first and last byte inside the segment, and the
 * body; 8 bytes. A body that crosses into the next segment has an entry there too, marked
 * as a continuation.
 *
 * A lookup among a million ranges is a matter of cache misses, and a binary search has
 * several. Here a segment is one cache line, a slot of an open-addressing table (keyed with a
 * seed, as a target chooses its addresses), and the table is small enough to stay in the
 * second-level cache. The line says how many entries start before each sixteenth of the
 * segment; between two of these numbers the place is guessed by proportion. Code is dense,
 * so the right entry is one or two off, in the line that the guess has just fetched: the one
 * miss of the lookup. Where bodies are very uneven a binary search within the sixteenth
 * takes over. Behind the last entry there is always a window's worth of entries that start
 * at the last byte: what looks at them need not know the end.
 *
 * For walks in address order, words of 64 bits tell which segments exist: bit b of word
 * (level, p) says that something is below prefix p * 64 + b of the key. Six levels make the
 * next existing segment a matter of at most twelve probes.
 *
 * index_reserve() does all that can fail, so that what follows cannot.
 */
#include "codemap/map.h"

#include <errno.h>
#include <string.h>

#define LEVELS        6
#define BUCKET_SHIFT  12
#define CONTINUATION  (UINT32_C(1) << 31)
#define TABLE_INITIAL 16u
#define SLOT_ALIGN    64u
/* Entries looked at around a guess: about a cache line. */
#define WINDOW 4u

struct entry {
	uint16_t first, last; /* bytes of the segment */
	uint32_t body;        /* with CONTINUATION: the body starts in a segment before */
};

/* -- The table ---------------------------------------------------------------------------- */

static inline uint32_t table_home(const struct live_index *ix, uint32_t key)
{
	return (uint32_t)hash_u64(ix->seed, key) & ix->mask;
}

struct segment *index_segment(const struct live_index *ix, uint64_t key)
{
	uint32_t i;

	for (i = table_home(ix, (uint32_t)key); ix->segments[i].used; i = (i + 1) & ix->mask)
		if (ix->segments[i].key == key)
			return &ix->segments[i];
	return NULL;
}

static struct segment *table_put(struct live_index *ix, const struct segment *seg)
{
	uint32_t i;

	for (i = table_home(ix, seg->key); ix->segments[i].used; i = (i + 1) & ix->mask)
		;
	ix->segments[i] = *seg;
	ix->used++;
	return &ix->segments[i];
}

/* Segments behind a hole move up unless that would carry them before their home. */
static void table_remove(struct live_index *ix, struct segment *seg)
{
	uint32_t hole = (uint32_t)(seg - ix->segments), i = hole;

	for (;;) {
		uint32_t home;

		i = (i + 1) & ix->mask;
		if (!ix->segments[i].used)
			break;
		home = table_home(ix, ix->segments[i].key);
		if (((i - home) & ix->mask) >= ((i - hole) & ix->mask)) {
			ix->segments[hole] = ix->segments[i];
			hole = i;
		}
	}
	ix->segments[hole].used = false;
	ix->used--;
}

static int table_resize(struct live_index *ix, uint32_t n)
{
	struct segment *old = ix->segments;
	uint32_t i, old_n = old ? ix->mask + 1 : 0;
	void *old_mem = ix->mem, *mem;

	mem = mem_realloc(&ix->total, NULL, n * sizeof(*old) + SLOT_ALIGN);
	if (!mem)
		return -ENOMEM;
	ix->mem = mem;
	ix->segments = (void *)(((uintptr_t)mem + SLOT_ALIGN - 1) & ~(uintptr_t)(SLOT_ALIGN - 1));
	memset(ix->segments, 0, n * sizeof(*old));
	ix->mask = n - 1;
	ix->used = 0;
	for (i = 0; i < old_n; i++)
		if (old[i].used)
			table_put(ix, &old[i]);
	mem_free(&ix->total, old_mem);
	return 0;
}

/* At most half full: few probes go wrong, and a slot is cheap beside what it stands for. */
static int table_reserve(struct live_index *ix)
{
	uint32_t n = ix->mask + 1;

	return ix->used < n / 2 ? 0 : table_resize(ix, n * 2);
}

/* -- Which segments exist ----------------------------------------------------------------- */

static uint64_t word_key(unsigned int level, uint64_t prefix)
{
	return (uint64_t)level << 32 | prefix;
}

static uint32_t *word_link(void *owner, uint32_t id, uint64_t *hashp)
{
	struct live_index *ix = owner;

	*hashp = hash_u64(ix->seed, ix->words[id].key);
	return &ix->words[id].next;
}

static uint32_t word_find(const struct live_index *ix, uint64_t key)
{
	uint32_t id = chains_first(&ix->word_chains, hash_u64(ix->seed, key));

	while (id && ix->words[id].key != key)
		id = ix->words[id].next;
	return id;
}

/* Room for the words above one new segment. */
static int words_reserve(struct live_index *ix)
{
	uint32_t size = ix->size_words + ix->size_words / 4 + 2 * LEVELS;
	struct word *words;

	if (ix->n_words + LEVELS > ix->size_words) {
		words = mem_realloc(&ix->total, ix->words, size * sizeof(*words));
		if (!words)
			return -ENOMEM;
		ix->words = words;
		ix->size_words = size;
		if (!ix->n_words)
			ix->words[ix->n_words++] = (struct word){ 0 };
	}
	return chains_reserve(&ix->word_chains, &ix->total, ix, word_link);
}

static void words_set(struct live_index *ix, uint64_t key)
{
	unsigned int level;

	for (level = 1; level <= LEVELS; level++, key >>= 6) {
		uint64_t bit = UINT64_C(1) << (key & 63);
		uint32_t id = word_find(ix, word_key(level, key >> 6));

		if (id) {
			ix->words[id].bits |= bit;
			return;
		}
		id = ix->free_word;
		if (id)
			ix->free_word = ix->words[id].next;
		else
			id = ix->n_words++;
		ix->words[id] = (struct word){ .key = word_key(level, key >> 6), .bits = bit };
		chains_add(&ix->word_chains, ix, word_link, id);
	}
}

static void words_clear(struct live_index *ix, uint64_t key)
{
	unsigned int level;

	for (level = 1; level <= LEVELS; level++, key >>= 6) {
		uint32_t id = word_find(ix, word_key(level, key >> 6));

		ix->words[id].bits &= ~(UINT64_C(1) << (key & 63));
		if (ix->words[id].bits)
			return;
		chains_remove(&ix->word_chains, ix, word_link, id);
		ix->words[id].next = ix->free_word;
		ix->free_word = id;
	}
}

/* The first existing segment at or after key. */
static bool words_next(const struct live_index *ix, uint64_t key, uint64_t *keyp)
{
	unsigned int level;

	for (level = 1; level <= LEVELS; level++) {
		uint32_t id = word_find(ix, word_key(level, key >> 6));
		uint64_t bits = id ? ix->words[id].bits & UINT64_MAX << (key & 63) : 0;

		if (bits) {
			key = (key & ~UINT64_C(63)) | (unsigned int)__builtin_ctzll(bits);
			while (--level) {
				id = word_find(ix, word_key(level, key));
				key = key << 6 | (unsigned int)__builtin_ctzll(ix->words[id].bits);
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
	uint32_t i;

	if (!ix->segments)
		return;
	for (i = 0; i <= ix->mask; i++)
		if (ix->segments[i].used)
			pool_free(&ix->pool, ix->segments[i].entries);
	mem_free(&ix->total, ix->mem);
	mem_free(&ix->total, ix->words);
	mem_free(&ix->total, ix->word_chains.heads);
	*ix = (struct live_index){ 0 };
}

/* Room for at least size entries, whatever is there kept. */
static int entries_resize(struct live_index *ix, struct segment *seg, uint32_t size)
{
	uint32_t bytes = pool_block_bytes((size + WINDOW) * (uint32_t)sizeof(struct entry)), i;
	struct entry *entries = pool_alloc(&ix->pool, bytes);

	if (!entries)
		return -ENOMEM;
	if (seg->n)
		memcpy(entries, seg->entries, seg->n * sizeof(*entries));
	pool_free(&ix->pool, seg->entries);
	for (i = seg->n; i < seg->n + WINDOW; i++)
		entries[i] = (struct entry){ .first = UINT16_MAX, .last = UINT16_MAX };
	seg->entries = entries;
	seg->size = bytes / (uint32_t)sizeof(*entries) - WINDOW;
	return 0;
}

struct segment *index_segment_get(struct live_index *ix, uint64_t key)
{
	struct segment *seg = index_segment(ix, key);

	if (seg)
		return seg;
	if (words_reserve(ix) < 0 || table_reserve(ix) < 0)
		return NULL;
	words_set(ix, key);
	seg = table_put(ix, &(struct segment){ .key = (uint32_t)key, .used = true });
	if (entries_resize(ix, seg, 1) == 0)
		return seg;
	index_segment_trim(ix, key);
	return NULL;
}

void index_segment_trim(struct live_index *ix, uint64_t key)
{
	struct segment *seg = index_segment(ix, key);

	if (!seg || seg->n || seg->past)
		return;
	pool_free(&ix->pool, seg->entries);
	table_remove(ix, seg);
	words_clear(ix, key);
}

/*
 * The number of entries that start at or before off. A bucket's entries are about evenly spaced,
 * so counting in a window around the proportional guess nearly always tells, without a
 * branch that depends on the data.
 */
static inline uint32_t segment_until(const struct segment *seg, uint32_t off)
{
	uint32_t bucket = off >> BUCKET_SHIFT, low, high, at, n;
	const struct entry *e = seg->entries;

	low = seg->before[bucket];
	high = bucket + 1 < SEGMENT_BUCKETS ? seg->before[bucket + 1] : seg->n;
	at = low + ((high - low) * (off & ((1u << BUCKET_SHIFT) - 1)) >> BUCKET_SHIFT);
	at = MAX(at, low + WINDOW / 2) - WINDOW / 2;
	e += at;
	n = ((e[0].first <= off) + (e[1].first <= off)) + ((e[2].first <= off) + (e[3].first <= off));
	e -= at;
	/* the guess was too high or too low if all the window lies on one side */
	if (likely((n || at == low) && (n < WINDOW || at + WINDOW >= high)))
		return MIN(at + n, seg->n);
	while (low < high) {
		at = low + (high - low) / 2;
		if (e[at].first <= off)
			low = at + 1;
		else
			high = at;
	}
	return low;
}

uint32_t segment_find(const struct segment *seg, uint32_t off)
{
	uint32_t at = segment_until(seg, off);
	const struct entry *e;

	if (!at)
		return 0;
	e = &seg->entries[at - 1];
	return off <= e->last ? e->body & ~CONTINUATION : 0;
}

uint32_t index_find(const struct live_index *ix, uint64_t addr)
{
	const struct segment *seg;

	if (unlikely(addr >= ADDRESS_END))
		return 0;
	seg = index_segment(ix, addr >> SEGMENT_SHIFT);
	return seg ? segment_find(seg, (uint32_t)addr & (SEGMENT_BYTES - 1)) : 0;
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
		struct segment *seg = index_segment_get(ix, key);

		if (!seg || (seg->n == seg->size && entries_resize(ix, seg, seg->size + 1) < 0)) {
			index_trim(ix, start, MIN((key + 1) << SEGMENT_SHIFT, stop));
			return -ENOMEM;
		}
	}
	return 0;
}

/* One more or less entry that starts at first. */
static void segment_count(struct segment *seg, uint32_t first, uint16_t d)
{
	uint32_t i;

	for (i = (first >> BUCKET_SHIFT) + 1; i < SEGMENT_BUCKETS; i++)
		seg->before[i] = (uint16_t)(seg->before[i] + d);
	seg->n += (uint32_t)(int16_t)d;
}

void index_add(struct live_index *ix, uint32_t idx, uint64_t start, uint64_t stop)
{
	uint64_t key;

	for (key = key_first(start); key <= key_last(stop); key++) {
		uint64_t base = key << SEGMENT_SHIFT;
		struct segment *seg = index_segment(ix, key);
		struct entry *e = seg->entries, new = {
			.first = (uint16_t)(MAX(start, base) - base),
			.last = (uint16_t)(MIN(stop - base, (uint64_t)SEGMENT_BYTES) - 1),
			.body = idx | (start < base ? CONTINUATION : 0),
		};
		uint32_t at = segment_until(seg, new.first);

		memmove(e + at + 1, e + at, (seg->n + WINDOW - at) * sizeof(*e));
		e[at] = new;
		segment_count(seg, new.first, 1);
		ix->entries++;
	}
}

void index_remove(struct live_index *ix, uint32_t idx, uint64_t start, uint64_t stop)
{
	uint64_t key;

	for (key = key_first(start); key <= key_last(stop); key++) {
		uint64_t base = key << SEGMENT_SHIFT;
		uint32_t first = (uint32_t)(MAX(start, base) - base), at;
		struct segment *seg = index_segment(ix, key);
		struct entry *e = seg->entries;

		/* its successor may be there already */
		at = segment_until(seg, first) - 1;
		while ((e[at].body & ~CONTINUATION) != idx)
			at--;
		memmove(e + at, e + at + 1, (seg->n + WINDOW - at - 1) * sizeof(*e));
		segment_count(seg, first, (uint16_t)-1);
		ix->entries--;
		if (!seg->n && !seg->past)
			index_segment_trim(ix, key);
		else if (seg->size > 16 && seg->n < seg->size / 2)
			/* without memory it just stays large */
			(void)entries_resize(ix, seg, seg->n + seg->n / 8);
	}
}

/* -- Walks -------------------------------------------------------------------------------- */

int index_gather(const struct live_index *ix, uint64_t start, uint64_t stop, struct list *out)
{
	uint64_t key;
	int r;

	for (key = key_first(start); key <= key_last(stop); key++) {
		uint64_t base = key << SEGMENT_SHIFT;
		const struct segment *seg = index_segment(ix, key);
		uint32_t first = (uint32_t)(MAX(start, base) - base);
		uint32_t last = (uint32_t)(MIN(stop - base, (uint64_t)SEGMENT_BYTES) - 1), i;
		const struct entry *e;

		if (!seg)
			continue;
		e = seg->entries;
		i = segment_until(seg, first);
		if (i && e[i - 1].last >= first)
			i--;
		for (; i < seg->n && e[i].first <= last; i++) {
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
		const struct segment *seg = index_segment(ix, key);
		uint32_t i = 0;

		if (key == from >> SEGMENT_SHIFT && off)
			i = segment_until(seg, off - 1);
		while (i < seg->n && seg->entries[i].body & CONTINUATION)
			i++;
		if (i < seg->n)
			return seg->entries[i].body;
	}
	return 0;
}
