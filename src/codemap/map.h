/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The insides of a code map, shared by the files of this folder only.
 *
 *   codemap.c  events in: announcements, unloads, losses, forgetting
 *   life.c     the rules: what an event means at its time
 *   lookup.c   questions: by address, by time, in order
 *   bodies.c   the records and their slots
 *   index.c    address -> live body
 *   past.c     address x time -> retired body
 *   pool.c     memory of the index
 *   strings.c  interned text (names, encoded IL maps)
 *   waiting.c  events that came before what they belong to
 *   modules.c  module incarnations
 *   changes.c  what changed, and a map put together again from what was told of another
 *   ilmap.c    IL maps
 *   mapfile.c  the perf map text form
 *
 * Things refer to each other by 32-bit index, never by pointer: half the size, and tables
 * may move. Index 0 is "none" everywhere.
 */

#include "codemap/codemap.h"

#include "base/caps.h"
#include "base/hash.h"

/* -- Memory ----------------------------------------------------------------------------- */

/* realloc() and free() that keep a running total of what malloc really handed out. */
void *mem_realloc(size_t *total, void *p, size_t n);
void mem_free(size_t *total, void *p);

/* -- Packed blocks ---------------------------------------------------------------------- */

#define POOL_CLASSES 64u

struct pool {
	struct pool_slab *partial[POOL_CLASSES]; /* slabs with room, by size */
	uint32_t blocks[POOL_CLASSES];
	struct region *regions; /* with a free piece */
	size_t total;
};

/* Blocks are 8-byte aligned. NULL without memory. */
void *pool_alloc(struct pool *p, uint32_t n);
void pool_free(struct pool *p, void *data);
/* The bytes that a block for n bytes really has. */
uint32_t pool_block_bytes(uint32_t n);

/* -- Chained hashing -------------------------------------------------------------------- */

/*
 * Heads of hash chains that grow one by one (linear hashing): every insertion splits at
 * most one chain, so no insertion ever stops to rehash a million records. The links are
 * in the records.
 */
struct chains {
	uint32_t *heads;
	uint32_t n, size; /* in use, allocated */
	uint32_t mask;    /* all ones, covers n - 1 */
	uint32_t count;   /* records */
};

/* The link field of a record, and its hash. */
typedef uint32_t *chains_link_fn(void *owner, uint32_t id, uint64_t *hashp);

static inline uint32_t *chains_head(const struct chains *c, uint64_t hash)
{
	uint32_t i = (uint32_t)hash & c->mask;

	return &c->heads[i < c->n ? i : i & c->mask >> 1];
}

static inline uint32_t chains_first(const struct chains *c, uint64_t hash)
{
	return c->n ? *chains_head(c, hash) : 0;
}

/* Makes sure that a record can be added. Returns 0 or -ENOMEM. */
int chains_reserve(struct chains *c, size_t *total, void *owner, chains_link_fn *link);
void chains_add(struct chains *c, void *owner, chains_link_fn *link, uint32_t id);
void chains_remove(struct chains *c, void *owner, chains_link_fn *link, uint32_t id);

/* -- Strings ---------------------------------------------------------------------------- */

#define STRINGS_CLASSES    81u
#define STRINGS_RECENT     256u
#define STRINGS_SHELF_BITS 6u
#define STRINGS_SHELVES    (1u << STRINGS_SHELF_BITS)

struct shelf_slot {
	uint32_t hash, id;
};

/* Strings by hash, some of them: see strings.c. */
struct shelf {
	struct shelf_slot *slots;
	uint32_t n, size; /* homes, allocated */
	uint32_t count;   /* slots in use */
};

/* Interned, counted byte strings. Id 0 is the empty string. */
struct strings {
	struct slab **slabs;
	uint32_t n_slabs, size_slabs;
	uint32_t free_slab;                /* chain of unused places in slabs, + 1 */
	uint32_t partial[STRINGS_CLASSES]; /* slabs with room, + 1 */
	struct shelf shelves[STRINGS_SHELVES];
	uint32_t recent[STRINGS_RECENT]; /* namespaces and signatures come in runs */
	uint64_t seed;
	size_t text, max_text; /* bytes of distinct text, and its cap */
	size_t total;          /* bytes allocated */
};

void strings_init(struct strings *s, size_t max_text);
void strings_deinit(struct strings *s);
/* The id of that text, one reference taken. Returns 0, -ENOMEM or CODEMAP_E_FULL. */
int strings_take(struct strings *s, const void *text, uint32_t len, uint32_t *idp);
/* The same in two steps: the first asks for the memory that the second needs. */
uint32_t strings_hash(const struct strings *s, const void *text, uint32_t len);
int strings_take_hashed(struct strings *s, uint32_t hash, const void *text, uint32_t len,
			uint32_t *idp);
void strings_share(struct strings *s, uint32_t id);
void strings_drop(struct strings *s, uint32_t id);
const char *strings_text(const struct strings *s, uint32_t id, uint32_t *lenp);
bool strings_equal(const struct strings *s, uint32_t id, const char *text, uint32_t len);
/* Bytes that dropping one reference would free. */
size_t strings_sole_bytes(const struct strings *s, uint32_t id);

/* -- Bodies ----------------------------------------------------------------------------- */

/* Kept of MethodFlags: the low bits, and the cold extent. */
#define BODY_FLAGS_MASK   0x3ffu
#define BODY_FLAG_DYN     0x1u
#define BODY_FLAG_DYNAMIC 0x1u
#define BODY_FLAG_JIT     0x8u
#define BODY_FLAG_COLD    0x10000000u

/* What ended a life. */
enum body_end {
	END_NONE,     /* alive */
	END_IMPLIED,  /* by another body's announcement on its range, or its module's unload */
	END_UNLOADED, /* by its own unload event */
	END_GAP,      /* replaced while events were lost: at the start of the loss at best */
};

#define ADDRESS_BITS 48
#define ADDRESS_END  (UINT64_C(1) << ADDRESS_BITS)
#define VERSION_MAX  65535u
/* Of the number of a body's record, where it counts. */
#define BODY_INDEX_BITS 23

/* One cache line: a million of these must fit where others keep their names alone. */
struct codemap_body {
	uint64_t start : 48, flags : 10, cold : 1, open_past : 1, end : 2, again : 1, chained : 1;
	uint64_t method_id : 48, version : 16;
	/*
	 * The event time of the first announcement. With open_past that was a rundown record:
	 * the body was alive before, since the bound kept by bodies.c.
	 */
	uint64_t load;
	union {
		uint64_t unload; /* end != END_NONE */
		struct {
			uint32_t prev, next;
		} in_module; /* alive: the list of its module */
	};
	uint32_t size;
	uint32_t ns, name, sig;
	uint32_t module : 18, held : 14; /* held: retired cost beyond the record, in 16 bytes */
	uint32_t token;
	uint32_t next; /* chain by (method, version); chain of free slots */
	uint32_t il;   /* encoded IL map in strings */
};

_Static_assert(sizeof(struct codemap_body) == 64, "a code body is one cache line");
_Static_assert(CAP_MODULES <= 1u << 18, "module index is 18 bits wide");
_Static_assert(CAP_BODIES < 1u << BODY_INDEX_BITS, "the index of a body is 23 bits wide");

#define CHUNK_SHIFT  10
#define CHUNK_BODIES (1u << CHUNK_SHIFT)

struct chunk {
	uint64_t *bounds; /* of open pasts; NULL while all are the program's beginning */
	void *mem;
	uint32_t prev, next; /* chunks with free slots, + 1; next also: unused chunks */
	uint16_t free;       /* first free slot, + 1 */
	uint16_t fresh;      /* slots never used start here */
	uint16_t used;       /* slots in use */
};

/* When the bodies of a chunk begin at the earliest and were announced at the latest. */
struct span {
	uint64_t oldest, newest;
};

struct bodies {
	/* by chunk; apart, so that what every lookup needs stays in the first-level cache */
	struct codemap_body **base; /* aligned into the chunk's memory */
	struct span *spans;
	struct chunk *chunks;
	uint32_t n_chunks, size_chunks;
	uint32_t first_free, last_free; /* chunks with free slots, + 1 */
	uint32_t unused;                /* chunk numbers without memory, + 1 */
	uint32_t count;
	size_t total;
	uint64_t begin; /* of the program: nothing is earlier */
};

void bodies_deinit(struct bodies *bs);
/* No further record can be had, whatever memory there is. */
bool bodies_full(const struct bodies *bs);
/* A zeroed record. Returns its index, or 0 without memory. */
uint32_t bodies_new(struct bodies *bs);
void bodies_free(struct bodies *bs, uint32_t idx);

static inline struct codemap_body *body_at(const struct bodies *bs, uint32_t idx)
{
	return &bs->base[idx >> CHUNK_SHIFT][idx & (CHUNK_BODIES - 1)];
}

static inline uint64_t body_stop(const struct codemap_body *b)
{
	/* gcc adds a 48-bit field modulo 2^48 */
	return (uint64_t)b->start + b->size;
}

static inline uint64_t body_unload(const struct codemap_body *b)
{
	return b->end == END_NONE ? UINT64_MAX : b->unload;
}

/*
 * Sets when the body was announced; bound counts only with seen (an open past), and is not before
 * the program.
 */
void body_set_load(struct bodies *bs, uint32_t idx, uint64_t time, bool seen, uint64_t bound);
/* The earliest time for which the body is an answer. */
uint64_t body_begin(const struct bodies *bs, uint32_t idx);
/* Is there a body of that index? Any number will do. */
bool bodies_has(const struct bodies *bs, uint32_t idx);

/* -- Live bodies by address ------------------------------------------------------------- */

#define SEGMENT_SHIFT 16
#define SEGMENT_BYTES (1u << SEGMENT_SHIFT)
#define SEGMENT_PAGES 16u

struct entry;
struct past;

/* 64 KiB of address space: a slot of the table of segments. One cache line. */
struct segment {
	uint32_t key; /* address >> SEGMENT_SHIFT */
	bool used;
	uint32_t n, size; /* entries in use, allocated */
	struct entry *entries;
	struct past *past; /* retired bodies of this segment, NULL if none */
	/* entries before those of each page of 4 KiB */
	uint16_t before[SEGMENT_PAGES];
};

_Static_assert(sizeof(struct segment) == 64, "a segment is one cache line");

/* Which segments exist below a prefix of their keys. */
struct word {
	uint64_t key, bits;
	uint32_t next;
};

struct live_index {
	struct segment *segments; /* aligned into mem */
	void *mem;
	uint32_t mask, used; /* slots - 1, slots taken */
	uint32_t last;       /* slot asked for last, perhaps */
	struct pool pool;    /* entry arrays */
	struct word *words;
	uint32_t n_words, size_words, free_word;
	struct chains word_chains;
	uint64_t seed, factor;
	uint32_t shift;
	size_t entries, max_entries; /* over all segments, past ones too: a cap */
	size_t total;
};

struct list {
	uint32_t *v;
	uint32_t n, size;
	size_t total;
};

/* Returns 0 or -ENOMEM. */
int list_add(struct list *l, uint32_t v);

int index_init(struct live_index *ix, size_t max_entries);
void index_deinit(struct live_index *ix);

/* The live body at an address, or 0, and the past of the segment, if there is any. */
struct found {
	const struct past *past;
	uint32_t idx;
};

struct found index_find(const struct live_index *ix, uint64_t addr);
/* Room for one body; must precede index_add(). Returns 0, -ENOMEM or CODEMAP_E_FULL. */
int index_reserve(struct live_index *ix, uint64_t start, uint64_t stop);
/* Gives up what index_reserve() made and nobody used. */
void index_trim(struct live_index *ix, uint64_t start, uint64_t stop);
void index_add(struct live_index *ix, uint32_t idx, uint64_t start, uint64_t stop);
void index_remove(struct live_index *ix, uint32_t idx, uint64_t start, uint64_t stop);
/* All live bodies that touch [start, stop), each once. Returns 0 or -ENOMEM. */
int index_gather(const struct live_index *ix, uint64_t start, uint64_t stop, struct list *out);
/* The live body with the lowest start >= from, or 0. */
uint32_t index_next(const struct live_index *ix, uint64_t from);
/* Segments move when others come or go. */
struct segment *index_segment(const struct live_index *ix, uint64_t key);
/* The same, created if absent; NULL without memory. */
struct segment *index_segment_get(struct live_index *ix, uint64_t key);
/* Frees the segment if nothing is left in it. */
void index_segment_trim(struct live_index *ix, uint64_t key);

/* -- Retired bodies by address and time ------------------------------------------------- */

struct queue_block;

/* Retired bodies in the order in which they were retired. */
struct queue {
	struct queue_block *first, *last;
	uint32_t count;
};

struct past_table {
	struct queue queue;
	uint64_t newest_end; /* no retired body ends later */
	size_t bytes;        /* what retired bodies cost */
	size_t total;
};

/* What else was found on the way to a miss. */
struct past_hint {
	bool before, after; /* code was there before, later */
};

void past_free_all(struct codemap *map);
/* Returns 0, -ENOMEM or CODEMAP_E_FULL. The body's unload is set. */
int past_add(struct codemap *map, uint32_t idx);
/* Takes the oldest body out of the past; 0 when there is none. Its record is the caller's. */
uint32_t past_oldest(const struct codemap *map);
uint32_t past_take_oldest(struct codemap *map);
/* Moves the end of a retired body; also to be called, with the same end, when its begin moved. */
void past_set_end(struct codemap *map, uint32_t idx, uint64_t time);
uint32_t past_find(const struct codemap *map, const struct past *past, uint64_t addr, uint64_t time,
		   struct past_hint *hint);
/* The retired body of that start that ended last, at or before time; or 0. */
uint32_t past_last_at(const struct codemap *map, uint64_t start, uint64_t time);
/*
 * Retired bodies that touch the range and end after time. Returns 0, -ENOMEM, or
 * CODEMAP_E_STALE when there are more than a late event can have.
 */
int past_gather(const struct codemap *map, uint64_t start, uint64_t stop, uint64_t time,
		struct list *out);
/* Does a retired body that touches the range live at any time in [from, to)? */
bool past_meets(const struct codemap *map, uint64_t start, uint64_t stop, uint64_t from,
		uint64_t to);
/* When the last body that touches the range ended, at or before time; 0 if none. */
uint64_t past_last_end(const struct codemap *map, uint64_t start, uint64_t stop, uint64_t time);
/* Calls fn for retired bodies, newest first, until it returns false. */
void past_walk_back(const struct codemap *map, bool (*fn)(struct codemap *, uint32_t, void *),
		    void *arg);

/* -- Waiting events --------------------------------------------------------------------- */

struct waiting {
	uint64_t key, sub, time;
	uint32_t next, value;
	bool used;
};

/* The last so many events of a kind that found nothing to belong to, by key. */
struct waitlist {
	struct waiting *slots;
	uint32_t *heads;
	uint32_t size, max; /* powers of two */
	uint32_t tail;      /* next slot to fill */
	uint32_t used;
	size_t total;
};

void wait_init(struct waitlist *w, uint32_t max);
void wait_deinit(struct waitlist *w);
/* *droppedp: the value of the entry that had to go, or 0. Returns 0 or -ENOMEM. */
int wait_add(struct waitlist *w, uint64_t key, uint64_t sub, uint64_t time, uint32_t value,
	     uint32_t *droppedp);
/* Walks the entries of a key: start with 0; 0 = no more. Entries may be removed behind. */
uint32_t wait_next(const struct waitlist *w, uint64_t key, uint32_t after);
struct waiting *wait_at(const struct waitlist *w, uint32_t i);
void wait_remove(struct waitlist *w, uint32_t i);

/* -- Modules ---------------------------------------------------------------------------- */

/* One incarnation of a module: ids are addresses and come again after an unload. */
struct module {
	uint64_t id, assembly_id;
	uint64_t unload; /* UINT64_MAX while loaded */
	uint64_t named;  /* time of the event that named it */
	uint32_t path;
	uint32_t refs; /* bodies, retired ones too */
	uint32_t live; /* first of its live bodies */
	uint32_t next;
	bool used, chained, queued;
	bool restored; /* by codemap_restore(): found by path, not by time */
	bool freeable; /* of those: its bodies with an open past are */
	bool altered;  /* what its bodies show has changed since changes were taken */
};

#define MODULE_GONE_MAX 256u

struct modules {
	struct module *v;
	uint32_t n, size;
	uint32_t free;
	uint32_t count;
	struct chains chains, restored;
	/* Unloaded, and perhaps without bodies: kept a while for late loads. */
	uint32_t gone[MODULE_GONE_MAX];
	uint32_t gone_head, gone_n;
	/* assemblies that a rundown called collectible, sorted */
	uint64_t *collectible;
	uint32_t n_collectible, collectible_size;
	bool any_unloaded; /* ever */
	uint32_t last;     /* the one that a body came for last */
	uint64_t seed;
	size_t total;
};

bool modules_is_collectible(const struct modules *ms, uint64_t assembly_id);
/* Can its code be freed? */
bool module_is_freeable(const struct modules *ms, uint32_t m);
void modules_init(struct modules *ms);
void modules_deinit(struct modules *ms);
/* The incarnation at that time, made if unknown; 0: *errorp says why. */
uint32_t module_get(struct codemap *map, uint64_t id, uint64_t time, int *errorp);
uint32_t module_find(const struct codemap *map, uint64_t id, uint64_t time);
/* The record of what was restored with that id and path; made if unknown. */
uint32_t module_restored(struct codemap *map, const struct codemap_info *info, int *errorp);
/* The last unload of that id at or before time, or 0. */
uint64_t module_last_unload(const struct codemap *map, uint64_t id, uint64_t time);
/* Ends an incarnation. Bodies of it that come later than time move to a new one. */
int module_end(struct codemap *map, uint64_t id, uint64_t time, uint32_t *endedp);
void module_ref(struct codemap *map, uint32_t m);
void module_unref(struct codemap *map, uint32_t m);
void module_link(struct codemap *map, uint32_t idx);
void module_unlink(struct codemap *map, uint32_t idx);

/* -- Changes ---------------------------------------------------------------------------- */

struct changes {
	uint32_t *notes; /* by slot: what happened, and the slot noted next */
	uint32_t size, first, last;
	struct list modules; /* altered ones: their bodies are noted when changes are taken */
	size_t total;
	bool on;
	bool lost;        /* notes, for want of memory */
	bool collectible; /* an assembly became it */
};

void changes_deinit(struct codemap *map);
/* For a map that is tracked; see change_note(). */
void change_add(struct codemap *map, uint32_t idx, unsigned int what);
/* All bodies of a module show something else. */
void change_module(struct codemap *map, uint32_t m);

/* -- The map ---------------------------------------------------------------------------- */

struct gap {
	uint64_t from, to;
};

struct codemap {
	struct bodies bodies;
	struct live_index live;
	struct past_table past;
	struct strings names;
	struct strings ils;
	struct modules modules;
	struct chains methods;   /* bodies by (method, version): IL maps find them */
	size_t methods_total;    /* bytes of its heads */
	struct waitlist unloads; /* key start, sub method */
	struct waitlist maps;    /* key method, sub version, value IL map */
	struct waitlist again;   /* key body, sub 1 for a rundown: further announcements */
	struct list touched;     /* scratch of one call: bodies that an event meets */
	struct list late;        /* the same: retired bodies that it cuts short */
	uint64_t *il_order;      /* scratch of one call */
	struct buf il_bytes;
	uint32_t il_order_size;
	size_t scratch_total;
	struct gap gaps[CAP_GAPS];
	uint32_t n_gaps;
	uint64_t *census; /* a bit a slot: listed by the rundown under way; NULL: none counts */
	uint32_t census_slots;
	size_t census_total;
	uint64_t horizon; /* a forgotten body may have lived until then */
	uint64_t generation;
	uint64_t seed;
	bool unsettled; /* a life with further announcements was cut short */
	bool incomplete;
	struct codemap_options opts;
	struct codemap_stats stats;
	struct changes changes;
	struct codemap_il *il_entries; /* scratch, handed out by codemap_il_entries() */
	uint32_t il_entries_size;
};

/* Notes what happened to a body. To be called for every change that an outsider can see. */
static inline void change_note(struct codemap *map, uint32_t idx, unsigned int what)
{
	if (unlikely(map->changes.on))
		change_add(map, idx, what);
}

/* Events from before the program count as of its beginning. */
static inline uint64_t map_time(const struct codemap *map, uint64_t time)
{
	return MAX(time, map->bodies.begin);
}

/* Can there be such a body? If so, *load is fitted to the map's limits, in *cut if need be. */
bool load_check(const struct codemap *map, const struct codemap_load **load,
		struct codemap_load *cut);

/* The body that was at an address at a time, or 0. */
uint32_t map_find(const struct codemap *map, uint64_t addr, uint64_t time, struct past_hint *hint);
/* A valid unload. */
void map_unload(struct codemap *map, uint64_t method_id, uint64_t start, uint64_t time);

/* -- Lives (life.c) --------------------------------------------------------------------- */

/* Forgets a retired body that is out of the past already. */
void body_expire(struct codemap *map, uint32_t idx);
/* Ends a life earlier than it was known to. Returns false if the body is gone altogether. */
bool life_cut(struct codemap *map, uint32_t idx, uint64_t time, enum body_end how);
/* An unload without a body to end. */
void unload_wait(struct codemap *map, uint64_t start, uint64_t method_id, uint64_t time);
/* Something ended there at that time: an open past does not reach beyond. */
void bound_raise(struct codemap *map, uint32_t idx, uint64_t time);
/* Into map->touched: the lives that overlap the range and end after time. */
int lives_gather(struct codemap *map, uint64_t start, uint64_t stop, uint64_t time);
/* Looks again at the bounds of those gathered that were seen after time. */
void bounds_refresh(struct codemap *map, uint64_t time);
/* The same for all that overlap a retired body. */
void bounds_refresh_around(struct codemap *map, uint32_t idx, uint64_t time);
/* Is it of this body that the record speaks? */
bool life_is(const struct codemap *map, const struct codemap_body *b,
	     const struct codemap_load *load);
/* Sets when a body was announced and, with an open past, since when it is known. */
void life_set_begin(struct codemap *map, uint32_t idx, uint64_t time, bool seen, uint64_t bound);

struct life {
	uint64_t end; /* UINT64_MAX: alive */
	enum body_end how;
	uint64_t bound; /* of an open past that has ended */
};

/*
 * A new record, in its place among the living or the past, where it must not meet others. Nothing
 * else changes. module: 0 if it is not known yet. seen: alive, it has no bound yet.
 */
int body_make(struct codemap *map, const struct codemap_load *load, const struct life *life,
	      uint32_t module, bool seen, uint32_t *idxp);
/*
 * A valid load or rundown record. module: its restored one, or 0: known by id and time. Returns
 * 0, -ENOMEM or a code.
 */
int life_announce(struct codemap *map, const struct codemap_load *load, bool seen, uint32_t module,
		  uint32_t *idxp);
/* To be called after every change: begins lives anew that were cut too short. */
void lives_settle(struct codemap *map);
/* Makes a body known by (method, version), unless too many are; needs chains_reserve(). */
void method_chain(struct codemap *map, uint32_t idx);
uint32_t *map_method_link(void *owner, uint32_t idx, uint64_t *hashp);
uint64_t map_method_hash(const struct codemap *map, uint64_t method_id, uint64_t version);
/* Gives an IL map that waits to a body that has just come. */
void il_join(struct codemap *map, uint32_t idx);
/* The stored form of an IL map, one reference taken. Returns 0, -ENOMEM or a code: counted. */
int il_take(struct codemap *map, const struct codemap_il *entries, size_t n, uint32_t *ilp);
/* Gives it to a body, or drops it if that has one. The reference is the callee's. */
void il_give(struct codemap *map, uint32_t idx, uint32_t il);
