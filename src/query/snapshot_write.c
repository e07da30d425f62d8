/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer of a snapshot.
 *
 * A change has two halves. The first takes all the memory that it may need (a new bucket for each
 * place that the body touches, its texts, its IL map) and can fail; nothing can be seen of
 * it yet. The second cannot fail: it writes what is new where nobody looks, and swings one
 * head after the other. What leaves is struck out in place (one store, and a new
 * version in the head), so that removing needs no memory; what is written there next leaves
 * it out.
 *
 * The order of those stores is the whole protocol; snapshot_layout.h has it. Whoever is killed
 * between two of them leaves buckets that are whole and ranges that are whole, and at worst a body
 * that is in some of its places and not yet (or no longer) in others, as for a time that is
 * not final.
 *
 * What the writer reads back from the file is its own: nobody else can write there.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "query/snapshot_heap.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

/* User addresses, with five levels of page tables. */
#define ADDRESS_END (UINT64_C(1) << 57)
/* Lines of one body: what is not wide has one cell more at most, a wide one a line a region. */
#define MAX_PLACES 130u

_Static_assert((CAP_BODY_BYTES >> SNAPSHOT_REGION_SHIFT) + 1 <= MAX_PLACES, "wide");
_Static_assert(SNAPSHOT_WIDE_CELLS <= MAX_PLACES, "narrow");

struct place {
	uint64_t *line;
	uint32_t key;          /* of the body, here */
	uint32_t block, class; /* for its new bucket, which may be needed for a moment only */
};

/* What a line will have, without what was removed: entries, the live first. */
struct draft {
	uint32_t n_live, n_retired;
	uint32_t live[SNAPSHOT_CELL_LIVE];
	uint32_t retired[CAP_SNAPSHOT_RETIRED];
};

struct snapshot_writer {
	uint8_t *base;
	size_t size;
	struct snapshot_header *header;
	struct snapshot_region *regions;
	struct range *ranges;
	struct heap heap;
	uint32_t n_slots, n_regions;
	struct place places[MAX_PLACES];
	uint32_t n_places;
	struct snapshot_stats stats;
	uint32_t slots_used; /* all that were ever used lie below */
	bool no_huge;        /* huge pages cannot be had */
	uint64_t settled[3]; /* of ranges, heap, lines: bytes looked at already */
	int fd;
	struct draft draft;
};

/* -- Making one --------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t offset)
{
	return (offset + SNAPSHOT_PIECE - 1) & ~(SNAPSHOT_PIECE - 1);
}

static void layout(struct snapshot_header *h, const struct snapshot_identity *identity,
		   unsigned int size_class)
{
	/* eight times the last; the largest holds what a code map can, below 2^32 units of 8 */
	static const uint64_t heap_bytes[] = { MIB(64), MIB(512), GIB(4), GIB(16) };

	_Static_assert(ARRAY_SIZE(heap_bytes) == SNAPSHOT_CLASSES, "a heap for each");
	*h = (struct snapshot_header){
		.magic = SNAPSHOT_MAGIC,
		.format = SNAPSHOT_FORMAT,
		.header_bytes = sizeof(*h),
		.start = identity->start,
		.start_ns = identity->start_ns,
		.pid = identity->pid,
		.incarnation = identity->incarnation,
		.generation = identity->generation,
		.n_slots = MIN(65536u << 3 * size_class, CAP_BODIES),
		.regions = 4096,
		.region_bits = MIN(15 + 3 * size_class, 23u),
		.state = SNAPSHOT_CURRENT,
	};
	h->ranges = round_up(h->regions + (sizeof(struct snapshot_region) << h->region_bits));
	h->heap = round_up(h->ranges + h->n_slots * sizeof(struct range));
	h->end = h->heap + heap_bytes[size_class];
}

/* A memfd of that size, mapped writable; from then on nobody else can have that. */
static int make_file(struct snapshot_writer *w, uint64_t size)
{
	_cleanup_close_ int fd = memfd_create("clrsym-snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	char path[32];
	void *base;

	/* the mode: who gets it may not open it for writing, as fallocate() could fill it */
	if (fd < 0 || fchmod(fd, 0400) < 0 || ftruncate(fd, (off_t)size) < 0)
		return -errno;
	base = snapshot_map(fd, size, PROT_READ | PROT_WRITE);
	if (base == MAP_FAILED)
		return -errno;
	w->base = base;
	w->size = size;
	if (fcntl(fd, F_ADD_SEALS, SEALS) < 0)
		return -errno;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	w->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (w->fd < 0)
		w->fd = TAKE_FD(fd); /* no /proc: the seals must do */
	return 0;
}

int snapshot_writer_new(struct snapshot_writer **outp, const struct snapshot_identity *identity,
			unsigned int size_class)
{
	_cleanup_(snapshot_writer_freep) struct snapshot_writer *w = NULL;
	struct snapshot_header h;
	int r;

	if (size_class >= SNAPSHOT_CLASSES)
		return -EINVAL;
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->fd = -1;
	layout(&h, identity, size_class);
	r = make_file(w, h.end);
	if (r)
		return r;
	w->header = (void *)w->base;
	w->regions = (void *)(w->base + h.regions);
	w->ranges = (void *)(w->base + h.ranges);
	w->n_slots = h.n_slots;
	r = heap_init(&w->heap, w->base, h.heap, h.end);
	if (r)
		return r;
	*w->header = h;
	*outp = TAKE_PTR(w);
	return 0;
}

void snapshot_writer_free(struct snapshot_writer *w)
{
	if (!w)
		return;
	heap_deinit(&w->heap);
	if (w->base)
		munmap(w->base, w->size);
	fd_close(w->fd);
	free(w);
}

int snapshot_writer_fd(const struct snapshot_writer *w)
{
	return w->fd;
}

/* -- Places ------------------------------------------------------------------------------- */

static struct snapshot_region *region_find(const struct snapshot_writer *w, uint64_t number)
{
	uint64_t mask = (UINT64_C(1) << w->header->region_bits) - 1, at = region_home(number, mask);
	unsigned int i;

	for (i = 0; i < SNAPSHOT_PROBES; i++, at = (at + 1) & mask)
		if (!w->regions[at].key || w->regions[at].key == number + 1)
			return &w->regions[at];
	return NULL;
}

/* That region, new if it must be. */
static int region_get(struct snapshot_writer *w, uint64_t number, struct snapshot_region **regionp)
{
	struct snapshot_region *region = region_find(w, number);
	uint64_t lines;
	int r;

	if (!region)
		return SNAPSHOT_E_FULL;
	if (!region->key) {
		if (w->n_regions >= UINT64_C(1) << w->header->region_bits >> 3)
			return SNAPSHOT_E_FULL;
		r = heap_lines(&w->heap, SNAPSHOT_REGION_LINES * SNAPSHOT_LINE_BYTES, &lines);
		if (r)
			return r;
		shared_store(&region->lines, lines);
		shared_store(&region->key, number + 1);
		w->n_regions++;
	}
	*regionp = region;
	return 0;
}

static void place_add(struct snapshot_writer *w, const struct snapshot_region *region,
		      uint32_t line, uint32_t key)
{
	w->places[w->n_places++] = (struct place){
		.line = (void *)(w->base + region->lines + line * SNAPSHOT_LINE_BYTES),
		.key = key,
	};
}

/*
 * All lines of [start, start + size), in w->places. Returns 0 or FULL; for a body that is there
 * it cannot fail.
 */
static int places_of(struct snapshot_writer *w, uint64_t start, uint32_t size)
{
	uint64_t last = start + size - 1, first_cell = start >> SNAPSHOT_CELL_SHIFT;
	uint64_t last_cell = last >> SNAPSHOT_CELL_SHIFT, cell = first_cell, number;
	bool wide = last_cell - cell >= SNAPSHOT_WIDE_CELLS;
	struct snapshot_region *region;
	int r;

	w->n_places = 0;
	for (number = start >> SNAPSHOT_REGION_SHIFT; number <= last >> SNAPSHOT_REGION_SHIFT;
	     number++) {
		r = region_get(w, number, &region);
		if (r)
			return r;
		if (wide)
			place_add(w, region, SNAPSHOT_CELLS,
				  first_cell / SNAPSHOT_CELLS == number ? wide_key(first_cell) : 0);
		for (; !wide && cell <= last_cell && cell / SNAPSHOT_CELLS == number; cell++)
			place_add(w, region, (uint32_t)(cell % SNAPSHOT_CELLS),
				  cell == first_cell ? cell_key(start) : 0);
	}
	return 0;
}

static void places_give_back(struct snapshot_writer *w, uint32_t n)
{
	while (n)
		n--, heap_free(&w->heap, w->places[n].block, w->places[n].class);
}

/* The entries of a line and how many they are. */
struct entries {
	uint64_t *at;
	uint32_t n_live, n_retired;
};

static struct entries entries_of(const struct snapshot_writer *w, uint64_t *line)
{
	uint32_t follows = (uint32_t)*line;
	uint64_t *bucket;

	if (head_is_inline(follows))
		return (struct entries){ line + 1, inline_n_live(follows),
					 inline_n_retired(follows) };
	bucket = (void *)(w->base + (uint64_t)follows * 8);
	return (struct entries){ bucket + 1, bucket_n_live(*bucket), bucket_n_retired(*bucket) };
}

/* A block for each line's new bucket, with room for one more. Returns 0 or what is in the way. */
static int places_reserve(struct snapshot_writer *w, bool live)
{
	uint32_t i, n;
	int r;

	for (i = 0; i < w->n_places; i++) {
		struct place *p = &w->places[i];
		struct entries e = entries_of(w, p->line);

		n = e.n_live + e.n_retired + 1;
		r = e.n_live + live > SNAPSHOT_CELL_LIVE
			    ? SNAPSHOT_E_INVALID
			    : heap_alloc(&w->heap, (1 + entry_words(n)) * 8, &p->block, &p->class);
		if (r) {
			places_give_back(w, i);
			return r;
		}
	}
	return 0;
}

/* -- Lines -------------------------------------------------------------------------------- */

/* The next version of a line's head. */
static void line_swing(uint64_t *line, uint32_t follows)
{
	shared_store(line, ((*line >> 32) + 1) << 32 | follows);
}

static void bucket_free(struct snapshot_writer *w, uint32_t follows)
{
	if (!head_is_inline(follows))
		heap_free(&w->heap, follows,
			  bucket_class(*(uint64_t *)(void *)(w->base + (uint64_t)follows * 8)));
}

/* What the line has, but for that slot and what was removed. */
static void draft_read(struct draft *d, struct entries e, uint32_t but)
{
	uint32_t i, entry;

	d->n_live = d->n_retired = 0;
	for (i = 0; i < e.n_live + e.n_retired; i++) {
		entry = entry_load(e.at, i);
		if (entry_slot(entry) == SNAPSHOT_NO_SLOT || entry_slot(entry) == but)
			continue;
		if (i < e.n_live)
			d->live[d->n_live++] = entry;
		else
			d->retired[d->n_retired++] = entry;
	}
}

/* By start; with the same start the one that came last stands behind, where it is found first. */
static void draft_add_live(struct snapshot_writer *w, uint32_t key, uint32_t slot)
{
	const struct range *range = &w->ranges[slot], *other;
	struct draft *d = &w->draft;
	uint32_t at = d->n_live;

	for (; at && d->live[at - 1] >> SNAPSHOT_KEY_SHIFT >= key; at--) {
		other = &w->ranges[entry_slot(d->live[at - 1])];
		if (d->live[at - 1] >> SNAPSHOT_KEY_SHIFT == key &&
		    (other->start < range->start ||
		     (other->start == range->start && other->load <= range->load)))
			break;
	}
	memmove(&d->live[at + 1], &d->live[at], (d->n_live - at) * sizeof(d->live[0]));
	d->live[at] = key << SNAPSHOT_KEY_SHIFT | slot;
	d->n_live++;
}

/* The last to end first; who does not fit any more goes. */
static void draft_add_retired(struct snapshot_writer *w, uint32_t slot)
{
	struct draft *d = &w->draft;
	uint32_t at = 0;

	while (at < d->n_retired &&
	       w->ranges[entry_slot(d->retired[at])].unload > w->ranges[slot].unload)
		at++;
	if (at == CAP_SNAPSHOT_RETIRED)
		return;
	if (d->n_retired == CAP_SNAPSHOT_RETIRED)
		d->n_retired--;
	memmove(&d->retired[at + 1], &d->retired[at], (d->n_retired - at) * sizeof(d->retired[0]));
	d->retired[at] = SNAPSHOT_KEY_NONE << SNAPSHOT_KEY_SHIFT | slot;
	d->n_retired++;
}

static uint32_t draft_entry(const struct draft *d, uint32_t i)
{
	if (i < d->n_live)
		return d->live[i];
	i -= d->n_live;
	return i < d->n_retired ? d->retired[i] : SNAPSHOT_NO_ENTRY;
}

static void draft_write(const struct draft *d, uint64_t *to, uint32_t n_words)
{
	uint32_t i;

	for (i = 0; i < n_words; i++)
		shared_store(&to[i],
			     (uint64_t)draft_entry(d, 2 * i + 1) << 32 | draft_entry(d, 2 * i));
}

/* The draft becomes what the line has; the place's block is taken or given back. */
static void line_write(struct snapshot_writer *w, const struct place *p)
{
	const struct draft *d = &w->draft;
	uint32_t n = d->n_live + d->n_retired, old = (uint32_t)*p->line;
	uint64_t *bucket = (void *)(w->base + (uint64_t)p->block * 8);
	bool fits = n <= SNAPSHOT_INLINE;

	/* entries in the line are rewritten while a bucket has them */
	if (!fits || (old && head_is_inline(old))) {
		shared_store(bucket, (uint64_t)p->class << 32 | d->n_retired << 16 | d->n_live);
		draft_write(d, bucket + 1, entry_words(n));
		line_swing(p->line, p->block);
	}
	if (fits) {
		draft_write(d, p->line + 1, SNAPSHOT_LINE_WORDS - 1);
		line_swing(p->line, d->n_retired << 4 | d->n_live);
		heap_free(&w->heap, p->block, p->class);
	}
	bucket_free(w, old);
}

/* The slot's body in all its lines, as alive or retired; the blocks are there. */
static void places_write(struct snapshot_writer *w, uint32_t slot)
{
	bool live = w->ranges[slot].unload == RANGE_ALIVE;
	uint32_t i;

	for (i = 0; i < w->n_places; i++) {
		draft_read(&w->draft, entries_of(w, w->places[i].line), slot);
		if (live)
			draft_add_live(w, w->places[i].key, slot);
		else
			draft_add_retired(w, slot);
		line_write(w, &w->places[i]);
	}
}

/* Strikes it out; a line with nothing left is empty again. */
static void line_strike(struct snapshot_writer *w, uint64_t *line, uint32_t slot)
{
	struct entries e = entries_of(w, line);
	uint32_t i, other, left = 0, old = (uint32_t)*line;

	for (i = 0; i < e.n_live + e.n_retired; i++) {
		other = entry_slot(entry_load(e.at, i));
		if (other == slot)
			shared_store(&e.at[i / 2],
				     e.at[i / 2] | (uint64_t)SNAPSHOT_NO_SLOT << i % 2 * 32);
		else if (other != SNAPSHOT_NO_SLOT)
			left++;
	}
	line_swing(line, left ? old : 0);
	if (!left)
		bucket_free(w, old);
}

/* -- Bodies ------------------------------------------------------------------------------- */

static bool slot_used(const struct snapshot_writer *w, uint32_t slot)
{
	return slot < w->n_slots && w->ranges[slot].size;
}

/* References to what a range points at. */
static void unshare(struct snapshot_writer *w, const struct range *range)
{
	const struct range_name *name = (const void *)(w->base + (uint64_t)range->name * 8);
	const struct range_text *module = (const void *)(w->base + (uint64_t)range->module * 8);
	const struct range_il *il = (const void *)(w->base + (uint64_t)range->il * 8);

	if (range->name)
		heap_unshare(&w->heap, range->name, sizeof(*name) + name->function_len);
	if (range->module)
		heap_unshare(&w->heap, range->module, sizeof(*module) + module->len);
	if (range->il)
		heap_unshare(&w->heap, range->il, sizeof(*il) + il->n * sizeof(il->entries[0]));
}

/* The range's references to the body's texts and IL map; on failure there are none. */
static int share(struct snapshot_writer *w, const struct range_body *body, struct range *range)
{
	struct range_name name = { .function_len = body->function_len,
				   .short_len = body->short_len };
	struct heap_blob blobs[] = {
		{ &name, body->function, sizeof(name), body->function_len },
		{ &body->module_len, body->module, sizeof(struct range_text), body->module_len },
		{ &body->n_il, body->il, sizeof(struct range_il),
		  body->il ? body->n_il * (uint32_t)sizeof(((struct range_il *)0)->entries[0])
			   : 0 },
	};
	uint32_t *refs[] = { &range->name, &range->module, &range->il };
	size_t i;
	int r;

	range->name = range->module = range->il = 0;
	for (i = 0; i < ARRAY_SIZE(refs); i++) {
		r = blobs[i].text_len ? heap_share(&w->heap, &blobs[i], refs[i]) : 0;
		if (r) {
			unshare(w, range);
			range->name = range->module = range->il = 0;
			return r;
		}
	}
	return 0;
}

static bool body_valid(const struct range_body *body)
{
	const struct range *range = &body->range;

	return range->size && range->size <= CAP_BODY_BYTES && range->start < ADDRESS_END &&
	       range->start + range->size <= ADDRESS_END && range->load <= range->unload &&
	       body->function_len <= SNAPSHOT_TEXT_BYTES && body->short_len <= body->function_len &&
	       body->module_len <= SNAPSHOT_TEXT_BYTES &&
	       (!body->il || body->n_il <= CAP_IL_ENTRIES);
}

static void range_write(struct range *to, const struct range *from)
{
	uint64_t words[RANGE_WORDS];
	size_t i;

	memcpy(words, from, sizeof(words));
	for (i = 0; i < RANGE_WORDS; i++)
		shared_store((uint8_t *)to + i * 8, words[i]);
}

/* Forgets what the slot has: out of its places, and then free to be written. */
static void slot_clear(struct snapshot_writer *w, uint32_t slot)
{
	static const struct range none;
	struct range old = w->ranges[slot];
	uint32_t i;

	/* cannot fail: its regions are there */
	(void)places_of(w, old.start, old.size);
	for (i = 0; i < w->n_places; i++)
		line_strike(w, w->places[i].line, slot);
	unshare(w, &old);
	range_write(&w->ranges[slot], &none);
	w->stats.ranges--;
	w->stats.live -= old.unload == RANGE_ALIVE;
}

/* The same code of the same method, as alive as before? */
static bool same_body(const struct range *a, const struct range *b)
{
	return a->start == b->start && a->size == b->size && a->method == b->method &&
	       a->name == b->name && (a->unload == RANGE_ALIVE) == (b->unload == RANGE_ALIVE);
}

/*
 * What is known of a body was corrected: word by word, each true of it. New versions in its places
 * tell readers who are still at an IL map or a path that it may have gone.
 */
static void slot_correct(struct snapshot_writer *w, uint32_t slot, const struct range *range)
{
	struct range old = w->ranges[slot];
	uint32_t i;

	range_write(&w->ranges[slot], range);
	(void)places_of(w, old.start, old.size);
	for (i = 0; i < w->n_places; i++)
		line_swing(w->places[i].line, (uint32_t)*w->places[i].line);
	unshare(w, &old);
}

/* A body in a slot that may hold another. */
static int slot_replace(struct snapshot_writer *w, uint32_t slot, const struct range *range)
{
	struct place places[MAX_PLACES];
	uint32_t n;
	int r;

	r = places_of(w, range->start, range->size);
	if (!r)
		r = places_reserve(w, range->unload == RANGE_ALIVE);
	if (r)
		return r;
	if (slot_used(w, slot)) {
		n = w->n_places;
		memcpy(places, w->places, n * sizeof(places[0]));
		slot_clear(w, slot);
		memcpy(w->places, places, n * sizeof(places[0]));
		w->n_places = n;
	}
	range_write(&w->ranges[slot], range);
	places_write(w, slot);
	w->stats.ranges++;
	w->stats.live += range->unload == RANGE_ALIVE;
	w->slots_used = MAX(w->slots_used, slot + 1);
	return 0;
}

int snapshot_put(struct snapshot_writer *w, uint32_t slot, const struct range_body *body)
{
	struct range range = body->range;
	int r;

	if (slot >= w->n_slots)
		return SNAPSHOT_E_FULL;
	if (!body_valid(body))
		return SNAPSHOT_E_INVALID;
	r = share(w, body, &range);
	if (r)
		return r;
	w->stats.changes++;
	if (slot_used(w, slot) && same_body(&w->ranges[slot], &range)) {
		slot_correct(w, slot, &range);
		return 0;
	}
	r = slot_replace(w, slot, &range);
	if (r)
		unshare(w, &range);
	return r;
}

bool snapshot_has(const struct snapshot_writer *w, uint32_t slot, const struct range *range)
{
	const struct range *own;

	if (!slot_used(w, slot))
		return false;
	own = &w->ranges[slot];
	return own->start == range->start && own->size == range->size && own->load == range->load &&
	       own->method == range->method && own->announced == range->announced &&
	       own->flags == range->flags && own->token == range->token;
}

int snapshot_retire(struct snapshot_writer *w, uint32_t slot, uint64_t unload)
{
	struct range *range;
	bool was_live;
	int r;

	if (!slot_used(w, slot) || unload == RANGE_ALIVE)
		return 0;
	range = &w->ranges[slot];
	was_live = range->unload == RANGE_ALIVE;
	if (was_live) {
		(void)places_of(w, range->start, range->size);
		r = places_reserve(w, false);
		if (r)
			return r;
	}
	shared_store(&range->unload, unload);
	w->stats.changes++;
	if (was_live) {
		places_write(w, slot);
		w->stats.live--;
	}
	return 0;
}

void snapshot_remove(struct snapshot_writer *w, uint32_t slot)
{
	if (!slot_used(w, slot))
		return;
	slot_clear(w, slot);
	w->stats.changes++;
}

void snapshot_lost(struct snapshot_writer *w, uint64_t from, uint64_t to)
{
	struct snapshot_header *h = w->header;

	/* longer first, so that no reader sees a span that is too short */
	if (h->lost_to < to)
		shared_store(&h->lost_to, to);
	if (!h->lost_from || from < h->lost_from)
		shared_store(&h->lost_from, MAX(from, (uint64_t)1));
}

void snapshot_publish(struct snapshot_writer *w, uint64_t known_until)
{
	if (known_until > w->header->known_until)
		shared_store(&w->header->known_until, known_until);
}

void snapshot_close(struct snapshot_writer *w, bool replaced)
{
	shared_store(&w->header->state, replaced ? SNAPSHOT_REPLACED : SNAPSHOT_ENDED);
}

/* Is nearly all of a piece in use? A huge page would fill the holes. */
static bool piece_used(uint8_t *piece)
{
	unsigned char resident[SNAPSHOT_PIECE / 4096];
	size_t i, n = 0;

	if (mincore(piece, SNAPSHOT_PIECE, resident) < 0)
		return false;
	for (i = 0; i < sizeof(resident); i++)
		n += resident[i] & 1;
	return n >= sizeof(resident) * 15 / 16;
}

bool snapshot_settle(struct snapshot_writer *w)
{
	const struct snapshot_header *h = w->header;
	uint64_t *done = w->settled;
	uint8_t *piece;

	if (w->no_huge)
		return false;
	/* lines first, of which each question takes one; they grow downwards */
	if (h->end - w->heap.end - done[2] >= SNAPSHOT_PIECE)
		piece = w->base + h->end - (done[2] += SNAPSHOT_PIECE);
	else if (w->slots_used * sizeof(struct range) - done[0] >= SNAPSHOT_PIECE)
		piece = w->base + h->ranges + (done[0] += SNAPSHOT_PIECE) - SNAPSHOT_PIECE;
	else if (w->heap.next - h->heap - done[1] >= SNAPSHOT_PIECE)
		piece = w->base + h->heap + (done[1] += SNAPSHOT_PIECE) - SNAPSHOT_PIECE;
	else
		return false;
	if (piece_used(piece) && madvise(piece, SNAPSHOT_PIECE, MADV_COLLAPSE) < 0)
		w->no_huge = true;
	return !w->no_huge;
}

void snapshot_get_stats(const struct snapshot_writer *w, struct snapshot_stats *stats)
{
	*stats = w->stats;
	stats->bytes = sizeof(*w) + sizeof(*w->header) + w->heap.private_bytes +
		       w->n_regions * sizeof(struct snapshot_region) +
		       w->slots_used * sizeof(struct range) + (w->heap.next - w->header->heap) +
		       (w->header->end - w->heap.end);
}
