/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader of a snapshot: see snapshot.h for the idea and snapshot_layout.h for what lies where
 * and which order of stores it rests on.
 *
 * What a question costs is cache misses: one for the line of the cell and one for the range, whose
 * place only the first tells; the table of regions is small. The keys of a line are all compared,
 * without a branch that depends on the data. (An earlier form, with a table of descriptors and
 * buckets elsewhere, took four misses and four times as long.)
 *
 * A hostile file can make the answers wrong, and nothing else: the places of the parts are checked
 * and copied when it is opened, every offset is loaded once, checked, and used; counts are
 * bounded; the file cannot shrink (it is refused without that seal). What changes all the time is
 * asked for a bounded number of times.
 */
#include "query/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/utf.h"
#include "query/snapshot_layout.h"

/* A writer changes a place some thousand times a second at most, a question takes less than 1 us.
 */
#define MAX_TRIES 64u
/* Keys are rounded: some bodies that start in the same 8 bytes may be behind the address. */
#define MAX_CANDIDATES 9u
/* IL offsets from here on are not places in the IL. */
#define IL_SPECIAL 0xfffffffdu

struct snapshot {
	const uint8_t *base;
	uint64_t size;
	const struct snapshot_header *header;
	const struct snapshot_region *regions;
	const struct range *ranges;
	uint64_t region_mask;
	uint32_t n_slots;
	struct snapshot_identity identity;
};

/* -- Opening ------------------------------------------------------------------------------ */

static bool part_fits(uint64_t offset, uint64_t n, uint64_t each, uint64_t size)
{
	return !(offset % 64) && offset <= size && n <= (size - offset) / each;
}

/* The header, as of now; nothing of it but the line that changes is looked at again. */
static bool header_valid(const struct snapshot_header *h, uint64_t size)
{
	return h->magic == SNAPSHOT_MAGIC && h->format == SNAPSHOT_FORMAT &&
	       h->header_bytes == sizeof(*h) && h->region_bits < 32 &&
	       part_fits(h->regions, UINT64_C(1) << h->region_bits, sizeof(struct snapshot_region),
			 size) &&
	       part_fits(h->ranges, h->n_slots, sizeof(struct range), size);
}

static inline void copy_words(uint64_t *to, const void *from, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		to[i] = shared_load((const uint64_t *)from + i);
}

void *snapshot_map(int fd, size_t size, int prot)
{
	uint8_t *room =
		mmap(NULL, size + SNAPSHOT_PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t before;
	void *base;

	if (room == MAP_FAILED)
		return MAP_FAILED;
	before = -(uintptr_t)room % SNAPSHOT_PIECE;
	base = mmap(room + before, size, prot, MAP_SHARED | MAP_FIXED, fd, 0);
	if (base == MAP_FAILED) {
		munmap(room, size + SNAPSHOT_PIECE);
		return MAP_FAILED;
	}
	/* whole pages: munmap() rounds up */
	if (before)
		munmap(room, before);
	size = (size + 4095) & ~(size_t)4095;
	if (before < SNAPSHOT_PIECE)
		munmap((uint8_t *)base + size, SNAPSHOT_PIECE - before);
	return base;
}

static int map_file(struct snapshot *s, int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;
	void *base;

	/* without that seal a page could go while it is read: SIGBUS */
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return SNAPSHOT_E_INVALID;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof(*s->header))
		return SNAPSHOT_E_INVALID;
	base = snapshot_map(fd, (size_t)st.st_size, PROT_READ);
	if (base == MAP_FAILED)
		return -errno;
	s->base = base;
	s->size = (uint64_t)st.st_size;
	return 0;
}

int snapshot_open(struct snapshot **outp, int fd)
{
	_cleanup_(snapshot_freep) struct snapshot *s = calloc(1, sizeof(*s));
	uint64_t words[sizeof(struct snapshot_header) / 8];
	struct snapshot_header h;
	int r;

	if (!s)
		return -ENOMEM;
	r = map_file(s, fd);
	if (r)
		return r;
	copy_words(words, s->base, ARRAY_SIZE(words));
	memcpy(&h, words, sizeof(h));
	if (!header_valid(&h, s->size))
		return SNAPSHOT_E_INVALID;
	s->header = (const void *)s->base;
	s->regions = (const void *)(s->base + h.regions);
	s->ranges = (const void *)(s->base + h.ranges);
	s->region_mask = (UINT64_C(1) << h.region_bits) - 1;
	s->n_slots = h.n_slots;
	s->identity = (struct snapshot_identity){
		.start = h.start,
		.start_ns = h.start_ns,
		.pid = h.pid,
		.incarnation = h.incarnation,
		.generation = h.generation,
	};
	*outp = TAKE_PTR(s);
	return 0;
}

void snapshot_free(struct snapshot *s)
{
	if (!s)
		return;
	if (s->base)
		munmap((void *)(uintptr_t)s->base, s->size);
	free(s);
}

void snapshot_get_identity(const struct snapshot *s, struct snapshot_identity *identity)
{
	*identity = s->identity;
}

uint64_t snapshot_known_until(const struct snapshot *s)
{
	return shared_load(&s->header->known_until);
}

bool snapshot_is_replaced(const struct snapshot *s)
{
	return shared_load(&s->header->state) == SNAPSHOT_REPLACED;
}

bool snapshot_has_ended(const struct snapshot *s)
{
	return shared_load(&s->header->state) == SNAPSHOT_ENDED;
}

/* -- Looking up --------------------------------------------------------------------------- */

struct question {
	uint64_t addr, time; /* time 0: alive now */
};

static inline bool answers(const struct range *range, const struct question *q)
{
	if (q->addr - range->start >= range->size)
		return false;
	if (!q->time)
		return range->unload == RANGE_ALIVE;
	return range->load <= q->time && q->time < range->unload;
}

/* A slot's range, copied. */
static inline bool range_copy(const struct snapshot *s, uint32_t slot, struct range *range)
{
	uint64_t words[RANGE_WORDS];

	if (unlikely(slot >= s->n_slots))
		return false;
	copy_words(words, &s->ranges[slot], RANGE_WORDS);
	memcpy(range, words, sizeof(words));
	return true;
}

/* How many of the entries of so many words have a key at or below this one. */
static inline uint32_t keys_until(const uint64_t *entries, uint32_t n_words, uint32_t key)
{
	uint32_t i, n = 0;

	for (i = 0; i < n_words; i++) {
		uint64_t word = shared_load(&entries[i]);

		n += ((uint32_t)word >> SNAPSHOT_KEY_SHIFT) <= key;
		n += (word >> (32 + SNAPSHOT_KEY_SHIFT)) <= key;
	}
	return n;
}

/* The entries of a line, once they are known to lie in the file. */
struct entries {
	const uint64_t *at;
	uint32_t n_live, n_retired;
	uint32_t until; /* so many have a key at or below the asked one */
};

static inline void entries_inline(const uint64_t *line, uint32_t follows, uint32_t key,
				  struct entries *e)
{
	e->at = line + 1;
	e->n_live = MIN(inline_n_live(follows), SNAPSHOT_INLINE);
	e->n_retired = MIN(inline_n_retired(follows), SNAPSHOT_INLINE - e->n_live);
	/* all words: how many are in use would have to be guessed */
	e->until = keys_until(e->at, SNAPSHOT_LINE_WORDS - 1, key);
	e->until = MIN(e->until, e->n_live);
}

static bool entries_bucket(const struct snapshot *s, uint64_t place, uint32_t key,
			   struct entries *e)
{
	uint64_t word, n_words = s->size / 8;

	if (place >= n_words)
		return false;
	e->at = (const void *)(s->base + place * 8);
	word = shared_load(e->at++);
	e->n_live = bucket_n_live(word);
	e->n_retired = bucket_n_retired(word);
	if (e->n_live > SNAPSHOT_CELL_LIVE || e->n_retired > CAP_SNAPSHOT_RETIRED ||
	    1 + entry_words(e->n_live + e->n_retired) > n_words - place)
		return false;
	e->until = keys_until(e->at, entry_words(e->n_live), key);
	e->until = MIN(e->until, e->n_live);
	return true;
}

/* The range among the entries that answers, copied. */
static inline bool entries_find(const struct snapshot *s, const struct entries *e,
				const struct question *q, struct snapshot_found *found)
{
	uint32_t i, n, tries = 0;

	for (n = e->until; n && tries < MAX_CANDIDATES; tries++) {
		found->slot = entry_slot(entry_load(e->at, --n));
		if (!range_copy(s, found->slot, &found->range))
			continue; /* removed */
		if (likely(answers(&found->range, q)))
			return true;
	}
	if (!q->time)
		return false;
	for (i = e->n_live; i < e->n_live + e->n_retired; i++) {
		found->slot = entry_slot(entry_load(e->at, i));
		if (range_copy(s, found->slot, &found->range) && answers(&found->range, q))
			return true;
	}
	return false;
}

/* Asks one line until what was seen is of one moment: see (2) in snapshot_layout.h. */
static inline bool line_find(const struct snapshot *s, const uint64_t *line, uint32_t key,
			     const struct question *q, struct snapshot_found *found)
{
	unsigned int tries;
	struct entries e;
	uint64_t head;
	bool hit;

	for (tries = 0; tries < MAX_TRIES; tries++) {
		head = shared_load(line);
		if (likely(head_is_inline((uint32_t)head)))
			entries_inline(line, (uint32_t)head, key, &e);
		else if (!entries_bucket(s, (uint32_t)head, key, &e))
			e = (struct entries){ 0 };
		hit = entries_find(s, &e, q, found);
		if (unlikely(shared_load(line) != head))
			continue;
		found->cell = (uint64_t)((const uint8_t *)line - s->base);
		found->head = head;
		return hit;
	}
	return false;
}

static inline const struct snapshot_region *region_find(const struct snapshot *s, uint64_t number)
{
	uint64_t at = region_home(number, s->region_mask), key;
	unsigned int i;

	for (i = 0; i < SNAPSHOT_PROBES; i++, at = (at + 1) & s->region_mask) {
		key = shared_load(&s->regions[at].key);
		if (likely(key == number + 1))
			return &s->regions[at];
		if (!key)
			break;
	}
	return NULL;
}

static bool in_lost(const struct snapshot *s, uint64_t time)
{
	return time <= shared_load(&s->header->lost_to) &&
	       time >= shared_load(&s->header->lost_from);
}

int snapshot_lookup(const struct snapshot *s, uint64_t addr, uint64_t time,
		    struct snapshot_found *found, bool *finalp)
{
	const struct snapshot_region *region = region_find(s, addr >> SNAPSHOT_REGION_SHIFT);
	uint64_t cell = addr >> SNAPSHOT_CELL_SHIFT, offset;
	struct question q = { .addr = addr, .time = time };
	const uint64_t *lines;
	bool final = false;

	/*
	 * Before any head: what is found then has all changes that belong to the times that
	 * were known by now, and perhaps later ones. The other way round, an answer from before a
	 * change would be called final by a known_until from behind it.
	 */
	if (finalp) {
		final = time && time <= snapshot_known_until(s) && !in_lost(s, time);
		*finalp = false;
	}
	if (unlikely(!region))
		return SNAPSHOT_E_NONE;
	offset = shared_load(&region->lines);
	if (unlikely(!part_fits(offset, SNAPSHOT_REGION_LINES, SNAPSHOT_LINE_BYTES, s->size)))
		return SNAPSHOT_E_NONE;
	lines = (const void *)(s->base + offset);
	if (unlikely(!line_find(s, lines + cell % SNAPSHOT_CELLS * SNAPSHOT_LINE_WORDS,
				cell_key(addr), &q, found) &&
		     !line_find(s, lines + SNAPSHOT_CELLS * SNAPSHOT_LINE_WORDS, wide_key(cell), &q,
				found)))
		return SNAPSHOT_E_NONE;
	if (finalp)
		*finalp = final;
	return 0;
}

/* -- What a range refers to --------------------------------------------------------------- */

/* Is what was found still in its place? Then what it refers to is, too. */
static bool still_there(const struct snapshot *s, const struct snapshot_found *found)
{
	if (found->cell % 8 || found->cell > s->size - 8)
		return false;
	return shared_load((const void *)(s->base + found->cell)) == found->head;
}

/* Four bytes of the file; at is a multiple of 4 and the word that has them lies in it. */
static uint32_t load_u32(const struct snapshot *s, uint64_t at)
{
	uint64_t word = shared_load((const void *)(s->base + (at & ~UINT64_C(7))));
	uint32_t v;

	memcpy(&v, (const uint8_t *)&word + (at & 4), sizeof(v));
	return v;
}

static void copy_bytes(const struct snapshot *s, char *to, uint64_t at, size_t n)
{
	uint64_t word;
	size_t skip, some;

	while (n) {
		skip = at % 8;
		some = MIN(8 - skip, n);
		word = shared_load((const void *)(s->base + (at - skip)));
		memcpy(to, (const uint8_t *)&word + skip, some);
		to += some;
		at += some;
		n -= some;
	}
}

/* Does a piece at this reference have so many bytes before the file's end? Whole words, that is. */
static bool piece_fits(const struct snapshot *s, uint32_t ref, uint64_t bytes)
{
	uint64_t end = s->size & ~UINT64_C(7);

	return ref && (uint64_t)ref * 8 <= end && bytes <= end - (uint64_t)ref * 8;
}

/* A text of len bytes at an offset that is there, cut to the room there is. True: it was cut. */
static bool text_copy(const struct snapshot *s, uint64_t at, uint32_t len, char *to, size_t size)
{
	size_t n = len;

	if (!size)
		return len > 0;
	if (len >= size) {
		/* one byte more, which tells whether a character ends there */
		copy_bytes(s, to, at, size);
		n = utf8_cut(to, size, size - 1);
	} else {
		copy_bytes(s, to, at, len);
	}
	to[n] = '\0';
	return n < len;
}

static int name_copy(const struct snapshot *s, uint32_t ref, char *name, size_t size,
		     uint32_t *short_lenp)
{
	uint64_t at = (uint64_t)ref * 8;
	uint32_t len = 0, short_len = 0;
	bool cut;

	if (piece_fits(s, ref, sizeof(struct range_name))) {
		len = load_u32(s, at + offsetof(struct range_name, function_len));
		short_len = load_u32(s, at + offsetof(struct range_name, short_len));
		if (!piece_fits(s, ref, sizeof(struct range_name) + (uint64_t)len))
			len = 0;
	}
	cut = text_copy(s, at + sizeof(struct range_name), len, name, size);
	if (short_lenp)
		*short_lenp = size ? (uint32_t)MIN(short_len, strlen(name)) : 0;
	return cut ? SNAPSHOT_E_NO_SPACE : 0;
}

static int module_copy(const struct snapshot *s, uint32_t ref, char *module, size_t size)
{
	uint64_t at = (uint64_t)ref * 8;
	uint32_t len = 0;

	if (piece_fits(s, ref, sizeof(struct range_text))) {
		len = load_u32(s, at);
		if (!piece_fits(s, ref, sizeof(struct range_text) + (uint64_t)len))
			len = 0;
	}
	return text_copy(s, at + sizeof(struct range_text), len, module, size) ? SNAPSHOT_E_NO_SPACE
									       : 0;
}

int snapshot_name(const struct snapshot *s, const struct snapshot_found *found, char *name,
		  size_t name_size, uint32_t *short_lenp, char *module, size_t module_size)
{
	int r = 0, m = 0;

	if (name)
		r = name_copy(s, found->range.name, name, name_size, short_lenp);
	if (module)
		m = module_copy(s, found->range.module, module, module_size);
	return still_there(s, found) ? (r ? r : m) : SNAPSHOT_E_NONE;
}

int snapshot_il(const struct snapshot *s, const struct snapshot_found *found, uint32_t native,
		uint32_t *ilp)
{
	const uint64_t each = sizeof(((struct range_il *)0)->entries[0]);
	uint64_t at = (uint64_t)found->range.il * 8;
	uint32_t low = 0, high, mid, il;

	if (!piece_fits(s, found->range.il, sizeof(struct range_il)))
		return SNAPSHOT_E_NONE;
	high = load_u32(s, at);
	if (high > CAP_IL_ENTRIES ||
	    !piece_fits(s, found->range.il, sizeof(struct range_il) + high * each))
		return SNAPSHOT_E_NONE;
	at += sizeof(struct range_il);
	/* behind the last entry at or before it */
	while (low < high) {
		mid = low + (high - low) / 2;
		if (load_u32(s, at + mid * each) <= native)
			low = mid + 1;
		else
			high = mid;
	}
	if (!low)
		return SNAPSHOT_E_NONE;
	il = load_u32(s, at + (low - 1) * each + 4);
	if (!still_there(s, found) || il >= IL_SPECIAL)
		return SNAPSHOT_E_NONE;
	*ilp = il;
	return 0;
}
