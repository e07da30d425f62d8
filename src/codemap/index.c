/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Live bodies by address.
 *
 * The address space is cut into segments of 64 KiB, and those into pages of 4 KiB. A segment
 * has a sorted array of entries: for each page, one for each body that touches it, with the first
 * and last byte inside the page, and the body; 6 bytes. A body that goes on in the next page has
 * an entry there too, marked as such, so a lookup needs one page's entries only.
 *
 * A lookup among a million ranges is a matter of cache misses, and a binary search has
 * several. Here a segment is one cache line, a slot of an open-addressing table (keyed with a
 * seed, as a target chooses its addresses), and the table is small enough to stay in the
 * second-level cache. The line says where each page's entries begin; among them the place is
 * guessed by proportion. Code is dense, so the right entry is one or two off, in the line that the
 * guess has just fetched: the one miss of the lookup. Where bodies are very uneven a binary
 * search within the page takes over. The 6 bytes are for the cache as well: with 8 a lookup
 * whose address depends on the last one's answer took a tenth longer.
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
#define TABLE_INITIAL 16u
#define SLOT_ALIGN    64u
/*
 * Entries looked at around a guess, and how many of them before it. With bodies of all sizes from
 * 32 to 512 bytes the place is among them 99 times in 100, and each time that it is not costs as
 * much as a quarter of a cache miss.
 */
#define WINDOW      6u
#define WINDOW_BACK 2u

#define PAGE_SHIFT  12
#define PAGE_BYTES  (1u << PAGE_SHIFT)

_Static_assert(SEGMENT_BYTES / PAGE_BYTES == SEGMENT_PAGES, "pages of a segment");

/* first : 12, last : 12, later : 1, body : BODY_INDEX_BITS, from the lowest bit. */
struct entry {
	uint16_t w[3];
};

_Static_assert(12 + 12 + 1 + BODY_INDEX_BITS == 8 * sizeof(struct entry), "an entry is full");

static inline struct entry entry_make(uint32_t first, uint32_t last, bool later, uint32_t body)
{
	return (struct entry){ {
		(uint16_t)(first | last << 12),
		(uint16_t)(last >> 4 | (uint32_t)later << 8 | body << 9),
		(uint16_t)(body >> 7),
	} };
}

/* The first and last byte in the page. */
static inline uint32_t entry_first(const struct entry *e)
{
	return e->w[0] & 0xfff;
}

static inline uint32_t entry_last(const struct entry *e)
{
	return (uint32_t)e->w[0] >> 12 | (e->w[1] & 0xffu) << 4;
}

/* The body starts in a page before. */
static inline bool entry_later(const struct entry *e)
{
	return e->w[1] >> 8 & 1;
}

static inline uint32_t entry_body(const struct entry *e)
{
	return (uint32_t)e->w[1] >> 9 | (uint32_t)e->w[2] << 7;
}

/* -- The table ---------------------------------------------------------------------------- */

/* The top bits of a product with a secret odd number: all that a table of 32-bit keys needs. */
static inline uint32_t table_home(const struct live_index *ix, uint32_t key)
{
	return (uint32_t)(key * ix->factor >> ix->shift);
}

static inline struct segment *table_find(const struct live_index *ix, uint64_t key)
{
	uint32_t i;

	for (i = table_home(ix, (uint32_t)key); ix->segments[i].used; i = (i + 1) & ix->mask)
		if (ix->segments[i].key == key)
			return &ix->segments[i];
	return NULL;
}

/* What changes is mostly where the last change was. */
struct segment *index_segment(const struct live_index *ix, uint64_t key)
{
	struct segment *seg = &ix->segments[ix->last];

	return seg->key == key && seg->used ? seg : table_find(ix, key);
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
	ix->shift = 64 - (uint32_t)__builtin_ctz(n);
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
	ix->factor = hash_u64(ix->seed, (uintptr_t)ix) | 1;
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
	uint32_t bytes = pool_block_bytes((size + WINDOW) * (uint32_t)sizeof(struct entry));
	struct entry *entries = pool_alloc(&ix->pool, bytes);

	if (!entries)
		return -ENOMEM;
	if (seg->n)
		memcpy(entries, seg->entries, seg->n * sizeof(*entries));
	pool_free(&ix->pool, seg->entries);
	memset(entries + seg->n, 0, WINDOW * sizeof(*entries)); /* a window may reach there */
	seg->entries = entries;
	seg->size = bytes / (uint32_t)sizeof(*entries) - WINDOW;
	return 0;
}

struct segment *index_segment_get(struct live_index *ix, uint64_t key)
{
	struct segment *seg = index_segment(ix, key);

	if (seg) {
		ix->last = (uint32_t)(seg - ix->segments);
		return seg;
	}
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

struct page {
	uint32_t low, high; /* its entries: [low, high) */
};

static inline struct page page_of(const struct segment *seg, uint32_t number)
{
	return (struct page){
		.low = seg->before[number],
		.high = number + 1 < SEGMENT_PAGES ? seg->before[number + 1] : seg->n,
	};
}

static inline uint32_t starts_by(const struct segment *seg, uint32_t i, uint32_t high, uint32_t off)
{
	return (i < high) & (entry_first(&seg->entries[i]) <= off);
}

/*
 * Behind the last entry of the page that starts at or before off (an offset in the page). A
 * page's entries are about evenly spaced, so counting in a window around the proportional
 * guess nearly always tells, without a branch that depends on the data.
 */
static inline uint32_t page_until(const struct segment *seg, struct page page, uint32_t off)
{
	uint32_t low = page.low, high = page.high, at, n;

	at = low + ((high - low) * off >> PAGE_SHIFT);
	at = MAX(at, low + WINDOW_BACK) - WINDOW_BACK;
	n = (starts_by(seg, at, high, off) + starts_by(seg, at + 1, high, off)) +
	    (starts_by(seg, at + 2, high, off) + starts_by(seg, at + 3, high, off)) +
	    (starts_by(seg, at + 4, high, off) + starts_by(seg, at + 5, high, off));
	/* the guess was too high or too low if all the window lies on one side */
	if (likely((n || at == low) && (n < WINDOW || at + WINDOW >= high)))
		return at + n;
	while (low < high) {
		at = low + (high - low) / 2;
		if (entry_first(&seg->entries[at]) <= off)
			low = at + 1;
		else
			high = at;
	}
	return low;
}

/* The same where something changes: most bodies come behind those that are there. */
static inline uint32_t page_place(const struct segment *seg, struct page page, uint32_t off)
{
	if (page.low == page.high || entry_first(&seg->entries[page.high - 1]) <= off)
		return page.high;
	return page_until(seg, page, off);
}

static uint32_t segment_until(const struct segment *seg, uint32_t off)
{
	return page_until(seg, page_of(seg, off >> PAGE_SHIFT), off & (PAGE_BYTES - 1));
}

struct found index_find(const struct live_index *ix, uint64_t addr)
{
	uint32_t off = (uint32_t)addr & (SEGMENT_BYTES - 1);
	const struct segment *seg;
	const struct entry *e;
	struct page page;
	uint32_t at;

	if (unlikely(addr >= ADDRESS_END))
		return (struct found){ 0 };
	seg = table_find(ix, addr >> SEGMENT_SHIFT);
	if (!seg)
		return (struct found){ 0 };
	page = page_of(seg, off >> PAGE_SHIFT);
	off &= PAGE_BYTES - 1;
	at = page_until(seg, page, off);
	if (at == page.low)
		return (struct found){ .past = seg->past };
	e = &seg->entries[at - 1];
	/* a branch and no select: most addresses hit, and the answer need not wait for the test */
	if (unlikely(off > entry_last(e)))
		return (struct found){ .past = seg->past };
	return (struct found){ .past = seg->past, .idx = entry_body(e) };
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

/* The pages of the range in the segment of that key: the first and the last. */
static void pages_of(uint64_t key, uint64_t start, uint64_t stop, uint32_t *firstp, uint32_t *lastp)
{
	uint64_t base = key << SEGMENT_SHIFT;

	*firstp = start > base ? (uint32_t)(start - base) >> PAGE_SHIFT : 0;
	*lastp = stop - base < SEGMENT_BYTES ? (uint32_t)(stop - base - 1) >> PAGE_SHIFT
					     : SEGMENT_PAGES - 1;
}

/* The bytes of the range in a page of it. */
static void page_bytes(uint64_t key, uint32_t number, uint64_t start, uint64_t stop,
		       uint32_t *firstp, uint32_t *lastp)
{
	uint64_t base = (key << SEGMENT_SHIFT) + number * PAGE_BYTES;

	*firstp = start > base ? (uint32_t)(start - base) : 0;
	*lastp = stop - base < PAGE_BYTES ? (uint32_t)(stop - base - 1) : PAGE_BYTES - 1;
}

int index_reserve(struct live_index *ix, uint64_t start, uint64_t stop)
{
	uint64_t key, pages = ((stop - 1) >> PAGE_SHIFT) - (start >> PAGE_SHIFT) + 1;
	uint32_t first, last;

	if (ix->entries + pages > ix->max_entries)
		return CODEMAP_E_FULL;
	for (key = key_first(start); key <= key_last(stop); key++) {
		struct segment *seg = index_segment_get(ix, key);

		pages_of(key, start, stop, &first, &last);
		if (!seg || (seg->n + (last - first + 1) > seg->size &&
			     entries_resize(ix, seg, seg->n + (last - first + 1)) < 0)) {
			index_trim(ix, start, MIN((key + 1) << SEGMENT_SHIFT, stop));
			return -ENOMEM;
		}
	}
	return 0;
}

/* One more or less entry in a page. */
static void segment_count(struct segment *seg, uint32_t page, int d)
{
	uint16_t i;

	/* over all of them, as vectors do that at once */
	for (i = 0; i < SEGMENT_PAGES; i++)
		seg->before[i] = (uint16_t)(seg->before[i] + (i > (uint16_t)page ? d : 0));
	seg->n += (uint32_t)d;
}

void index_add(struct live_index *ix, uint32_t idx, uint64_t start, uint64_t stop)
{
	uint32_t number, last_number, first, last, at;
	bool later = false;
	uint64_t key;

	for (key = key_first(start); key <= key_last(stop); key++) {
		struct segment *seg = index_segment(ix, key);
		struct entry *e = seg->entries;

		pages_of(key, start, stop, &number, &last_number);
		for (; number <= last_number; number++, later = true) {
			page_bytes(key, number, start, stop, &first, &last);
			at = page_place(seg, page_of(seg, number), first);
			if (at < seg->n)
				memmove(e + at + 1, e + at, (seg->n - at) * sizeof(*e));
			e[at] = entry_make(first, last, later, idx);
			segment_count(seg, number, 1);
			ix->entries++;
		}
	}
}

void index_remove(struct live_index *ix, uint32_t idx, uint64_t start, uint64_t stop)
{
	uint32_t number, last_number, first, last, at;
	uint64_t key;

	for (key = key_first(start); key <= key_last(stop); key++) {
		struct segment *seg = index_segment(ix, key);
		struct entry *e = seg->entries;

		pages_of(key, start, stop, &number, &last_number);
		for (; number <= last_number; number++) {
			page_bytes(key, number, start, stop, &first, &last);
			/* its successor may be there already */
			at = page_until(seg, page_of(seg, number), first) - 1;
			while (entry_body(&e[at]) != idx)
				at--;
			memmove(e + at, e + at + 1, (seg->n - at - 1) * sizeof(*e));
			segment_count(seg, number, -1);
			ix->entries--;
		}
		if (!seg->n && !seg->past)
			index_segment_trim(ix, key);
		else if (seg->size > 16 && seg->n < seg->size / 2)
			/* without memory it just stays large */
			(void)entries_resize(ix, seg, seg->n + seg->n / 8);
	}
}

/* -- Walks -------------------------------------------------------------------------------- */

/* Those of one page; what was seen in the page before is left out unless this is the first. */
static int page_gather(const struct segment *seg, uint32_t number, uint32_t first, uint32_t last,
		       bool with_later, struct list *out)
{
	struct page page = page_of(seg, number);
	const struct entry *e = seg->entries;
	uint32_t i = page_place(seg, page, first);
	int r;

	if (i > page.low && entry_last(&e[i - 1]) >= first)
		i--;
	for (; i < page.high && entry_first(&e[i]) <= last; i++) {
		if (entry_later(&e[i]) && !with_later)
			continue;
		r = list_add(out, entry_body(&e[i]));
		if (r < 0)
			return r;
	}
	return 0;
}

int index_gather(const struct live_index *ix, uint64_t start, uint64_t stop, struct list *out)
{
	uint32_t number, last_number, first, last;
	uint64_t key;
	int r;

	for (key = key_first(start); key <= key_last(stop); key++) {
		const struct segment *seg = index_segment(ix, key);

		if (!seg || !seg->n)
			continue;
		pages_of(key, start, stop, &number, &last_number);
		for (; number <= last_number; number++) {
			page_bytes(key, number, start, stop, &first, &last);
			r = page_gather(seg, number, first, last,
					(key << SEGMENT_SHIFT) + number * PAGE_BYTES <= start, out);
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
		while (i < seg->n && entry_later(&seg->entries[i]))
			i++;
		if (i < seg->n)
			return entry_body(&seg->entries[i]);
	}
	return 0;
}
