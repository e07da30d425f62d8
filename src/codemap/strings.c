/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Interned text, counted, in slabs.
 *
 * A process with a million methods has about a million names but far fewer namespaces and
 * signatures, and a process that churns dynamic methods makes new names for months. So
 * equal strings are stored once, and a string goes when its last body goes.
 *
 * A string is 4 bytes of header and its text, in a slot of a 4 KiB slab of slots of one
 * size; sizes are 4 bytes apart up to 256, then such that 15, 14, ... 4 fit a slab. Longer
 * ones have a slab to themselves. A slab without strings is freed. The id is the
 * slab's number and the slot: 32 bits, and the text never moves.
 *
 * Strings are found in shelves, chosen by the top bits of the hash. A shelf is an array of hashes
 * and ids, sorted by hash, with gaps: each stands where its hash points to by proportion, or as
 * close behind as there is room. So a search begins in the right cache line, ends at the first
 * higher hash, and touches no string but the one that it is for; chains through the strings cost
 * a rundown a third of its time in cache misses. Growing copies from front to back, and as
 * there are many shelves, never a million of them at once.
 *
 * The count has 16 bits; one that reaches the top stays there and its string is never
 * freed: that takes 65,535 bodies at once that share it, so there are few.
 */
#include "codemap/map.h"

#include <errno.h>
#include <string.h>

#define SLAB_ALLOC  4088u /* with malloc's own word: 4 KiB */
#define SLAB_BYTES  (SLAB_ALLOC - (uint32_t)sizeof(struct slab))
#define SLOT_MIN    16u /* at most 256 slots a slab */
#define SLOT_FINE   256u
#define SLOT_BIG    (SLAB_BYTES / 4)
#define CLASS_ALONE (STRINGS_CLASSES - 1)
#define REFS_STUCK  UINT16_MAX

/* Slots behind the last one that a hash points to. */
#define SHELF_SPARE 8u

struct slab {
	uint32_t prev, next; /* slabs of its class with room, + 1 */
	uint32_t slot_bytes;
	uint16_t class;
	uint16_t n_slots, used, fresh; /* fresh: slots from here on were never used */
	uint16_t free;                 /* first free slot, + 1 */
	uint16_t pad;
	uint8_t data[];
};

struct string {
	uint16_t refs, len;
	char text[];
};

_Static_assert(sizeof(struct string) == 4, "per distinct string");
_Static_assert(sizeof(struct slab) == 24, "per slab");

/* An unused place in the table of slabs holds the next one, shifted, with the low bit set. */
static bool slab_absent(const struct slab *slab)
{
	return (uintptr_t)slab & 1;
}

static struct string *string_slot(const struct slab *slab, uint32_t slot)
{
	return (struct string *)(void *)(uintptr_t)(slab->data + (size_t)slot * slab->slot_bytes);
}

static struct string *string_at(const struct strings *s, uint32_t id)
{
	return string_slot(s->slabs[(id >> 8) - 1], id & 0xff);
}

/* By length and end: hits among the recent need no more than this, and the comparison. */
static uint32_t *recent_of(struct strings *s, const char *text, uint32_t len)
{
	uint32_t n = MIN(len, 16u);

	return &s->recent[hash_bytes(s->seed ^ len, text + len - n, n) % STRINGS_RECENT];
}

static uint32_t text_hash(const struct strings *s, const void *text, uint32_t len)
{
	return (uint32_t)hash_bytes(s->seed, text, len);
}

/* -- Shelves ------------------------------------------------------------------------------ */

static struct shelf *shelf_of(const struct strings *s, uint32_t hash)
{
	return (struct shelf *)(uintptr_t)&s->shelves[hash >> (32 - STRINGS_SHELF_BITS)];
}

static uint32_t shelf_home(const struct shelf *shelf, uint32_t hash)
{
	return (uint32_t)((uint64_t)(hash << STRINGS_SHELF_BITS) * shelf->n >> 32);
}

/* The first slot from the hash's home on that is free or has no lower hash. */
static uint32_t shelf_seek(const struct shelf *shelf, uint32_t hash)
{
	uint32_t i = shelf_home(shelf, hash);

	while (shelf->slots[i].id && shelf->slots[i].hash < hash)
		i++;
	return i;
}

/*
 * A larger n moves no string closer to the end than it was, so what stood behind the last home
 * has room there again.
 */
static bool shelf_grow(struct strings *s, struct shelf *shelf)
{
	uint32_t n = shelf->n + shelf->n / 4 + 4, size = n + SHELF_SPARE, i, at;
	struct shelf grown = { .n = n, .count = shelf->count };

	for (i = shelf->n; i < shelf->size; i++)
		size += shelf->slots[i].id != 0;
	grown.size = size;
	grown.slots = mem_realloc(&s->total, NULL, size * sizeof(*grown.slots));
	if (!grown.slots)
		return false;
	memset(grown.slots, 0, size * sizeof(*grown.slots));
	for (i = at = 0; i < shelf->size; i++) {
		if (!shelf->slots[i].id)
			continue;
		at = MAX(at, shelf_home(&grown, shelf->slots[i].hash));
		grown.slots[at++] = shelf->slots[i];
	}
	mem_free(&s->total, shelf->slots);
	*shelf = grown;
	return true;
}

/* Makes sure that a string can be added, and that the last slot stays free: a search ends there. */
static bool shelf_reserve(struct strings *s, struct shelf *shelf)
{
	if (shelf->count < (uint64_t)shelf->n * 13 / 16 && !shelf->slots[shelf->size - 2].id)
		return true;
	/* without memory it may become fuller */
	return shelf_grow(s, shelf) || (shelf->size && !shelf->slots[shelf->size - 2].id);
}

static void shelf_add(struct shelf *shelf, uint32_t hash, uint32_t id)
{
	uint32_t at = shelf_seek(shelf, hash), end = at;

	while (shelf->slots[end].id)
		end++;
	memmove(shelf->slots + at + 1, shelf->slots + at, (end - at) * sizeof(*shelf->slots));
	shelf->slots[at] = (struct shelf_slot){ hash, id };
	shelf->count++;
}

static void shelf_remove(struct shelf *shelf, uint32_t hash, uint32_t id)
{
	uint32_t at = shelf_seek(shelf, hash), end;

	while (shelf->slots[at].id != id)
		at++;
	/* those behind it move up, unless they stand at home */
	for (end = at + 1; shelf->slots[end].id; end++)
		if (shelf_home(shelf, shelf->slots[end].hash) == end)
			break;
	memmove(shelf->slots + at, shelf->slots + at + 1, (end - at - 1) * sizeof(*shelf->slots));
	shelf->slots[end - 1] = (struct shelf_slot){ 0 };
	shelf->count--;
}

/* -- Slabs -------------------------------------------------------------------------------- */

void strings_init(struct strings *s, size_t max_text)
{
	*s = (struct strings){ .max_text = max_text, .seed = hash_seed() };
}

void strings_deinit(struct strings *s)
{
	uint32_t i;

	for (i = 0; i < s->n_slabs; i++)
		if (!slab_absent(s->slabs[i]))
			mem_free(&s->total, s->slabs[i]);
	mem_free(&s->total, s->slabs);
	for (i = 0; i < STRINGS_SHELVES; i++)
		mem_free(&s->total, s->shelves[i].slots);
	*s = (struct strings){ 0 };
}

static uint32_t class_of(uint32_t bytes, uint32_t *slot_bytesp)
{
	uint32_t n;

	if (bytes <= SLOT_FINE) {
		*slot_bytesp = MAX((bytes + 3) & ~3u, SLOT_MIN);
		return *slot_bytesp / 4;
	}
	if (bytes > SLOT_BIG) {
		*slot_bytesp = (bytes + 3) & ~3u;
		return CLASS_ALONE;
	}
	n = SLAB_BYTES / bytes;
	*slot_bytesp = SLAB_BYTES / n & ~3u;
	if (*slot_bytesp < bytes)
		*slot_bytesp = SLAB_BYTES / --n & ~3u;
	return SLOT_FINE / 4 + n; /* 68..79 */
}

static void slab_link(struct strings *s, uint32_t number)
{
	struct slab *slab = s->slabs[number - 1];
	uint32_t first = s->partial[slab->class];

	slab->prev = 0;
	slab->next = first;
	if (first)
		s->slabs[first - 1]->prev = number;
	s->partial[slab->class] = number;
}

static void slab_unlink(struct strings *s, uint32_t number)
{
	struct slab *slab = s->slabs[number - 1];

	if (slab->prev)
		s->slabs[slab->prev - 1]->next = slab->next;
	else
		s->partial[slab->class] = slab->next;
	if (slab->next)
		s->slabs[slab->next - 1]->prev = slab->prev;
}

/* A new slab, not linked. Returns its number or 0. */
static uint32_t slab_new(struct strings *s, uint32_t class, uint32_t slot_bytes)
{
	bool alone = class == CLASS_ALONE;
	struct slab *slab;
	uint32_t number;

	if (!s->free_slab && s->n_slabs == s->size_slabs) {
		uint32_t size = s->size_slabs + s->size_slabs / 4 + 16;
		struct slab **slabs = mem_realloc(&s->total, s->slabs, size * sizeof(*slabs));

		if (!slabs)
			return 0;
		s->slabs = slabs;
		s->size_slabs = size;
	}
	slab = mem_realloc(&s->total, NULL, alone ? sizeof(*slab) + slot_bytes : SLAB_ALLOC);
	if (!slab)
		return 0;
	*slab = (struct slab){
		.slot_bytes = slot_bytes,
		.class = (uint16_t) class,
		.n_slots = alone ? 1 : (uint16_t)MIN(SLAB_BYTES / slot_bytes, 256u),
	};
	if (s->free_slab) {
		number = s->free_slab;
		s->free_slab = (uint32_t)((uintptr_t)s->slabs[number - 1] >> 1);
	} else {
		number = ++s->n_slabs;
	}
	s->slabs[number - 1] = slab;
	return number;
}

static void slab_free(struct strings *s, uint32_t number)
{
	mem_free(&s->total, s->slabs[number - 1]);
	s->slabs[number - 1] = (struct slab *)((uintptr_t)s->free_slab << 1 | 1);
	s->free_slab = number;
}

static uint32_t slot_new(struct strings *s, uint32_t bytes)
{
	uint32_t slot_bytes, class = class_of(bytes, &slot_bytes), number = s->partial[class], slot;
	struct slab *slab;

	if (!number) {
		number = slab_new(s, class, slot_bytes);
		if (!number)
			return 0;
		slab_link(s, number);
	}
	slab = s->slabs[number - 1];
	if (slab->free) {
		slot = slab->free - 1u;
		slab->free = string_slot(slab, slot)->refs;
	} else {
		slot = slab->fresh++;
	}
	if (++slab->used == slab->n_slots)
		slab_unlink(s, number);
	return number << 8 | slot;
}

static void slot_free(struct strings *s, uint32_t id)
{
	uint32_t number = id >> 8;
	struct slab *slab = s->slabs[number - 1];

	if (slab->used-- == slab->n_slots)
		slab_link(s, number);
	if (!slab->used) {
		slab_unlink(s, number);
		slab_free(s, number);
		return;
	}
	string_slot(slab, id & 0xff)->refs = slab->free;
	slab->free = (uint16_t)((id & 0xff) + 1);
}

/* -- Strings ------------------------------------------------------------------------------ */

static bool string_is(const struct string *str, const void *text, uint32_t len)
{
	return str->len == len && memcmp(str->text, text, len) == 0;
}

static uint32_t string_find(const struct strings *s, uint32_t hash, const void *text, uint32_t len)
{
	const struct shelf *shelf = shelf_of(s, hash);
	const struct shelf_slot *slot;

	if (!shelf->size)
		return 0;
	for (slot = &shelf->slots[shelf_seek(shelf, hash)]; slot->id && slot->hash == hash; slot++)
		if (string_is(string_at(s, slot->id), text, len))
			return slot->id;
	return 0;
}

static int string_make(struct strings *s, uint32_t hash, const void *text, uint32_t len,
		       uint32_t *idp)
{
	struct shelf *shelf = shelf_of(s, hash);
	struct string *str;
	uint32_t id;

	if (len > UINT16_MAX || s->text + len > s->max_text)
		return CODEMAP_E_FULL;
	if (!shelf_reserve(s, shelf))
		return -ENOMEM;
	id = slot_new(s, (uint32_t)sizeof(*str) + len);
	if (!id)
		return -ENOMEM;
	str = string_at(s, id);
	str->refs = 1;
	str->len = (uint16_t)len;
	memcpy(str->text, text, len);
	shelf_add(shelf, hash, id);
	s->text += len;
	*idp = id;
	return 0;
}

uint32_t strings_hash(const struct strings *s, const void *text, uint32_t len)
{
	uint32_t hash = text_hash(s, text, len);
	const struct shelf *shelf = shelf_of(s, hash);

	if (shelf->size)
		__builtin_prefetch(&shelf->slots[shelf_home(shelf, hash)]);
	return hash;
}

int strings_take_hashed(struct strings *s, uint32_t hash, const void *text, uint32_t len,
			uint32_t *idp)
{
	*idp = 0;
	if (!len)
		return 0;
	*idp = string_find(s, hash, text, len);
	if (!*idp)
		return string_make(s, hash, text, len, idp);
	strings_share(s, *idp);
	return 0;
}

int strings_take(struct strings *s, const void *text, uint32_t len, uint32_t *idp)
{
	uint32_t *recent;
	int r;

	*idp = 0;
	if (!len)
		return 0;
	recent = recent_of(s, text, len);
	if (*recent && string_is(string_at(s, *recent), text, len)) {
		strings_share(s, *recent);
		*idp = *recent;
		return 0;
	}
	r = strings_take_hashed(s, text_hash(s, text, len), text, len, idp);
	*recent = *idp;
	return r;
}

void strings_share(struct strings *s, uint32_t id)
{
	struct string *str;

	if (!id)
		return;
	str = string_at(s, id);
	if (str->refs != REFS_STUCK)
		str->refs++;
}

void strings_drop(struct strings *s, uint32_t id)
{
	uint32_t *recent, hash;
	struct string *str;

	if (!id)
		return;
	str = string_at(s, id);
	if (str->refs == REFS_STUCK || --str->refs)
		return;
	hash = text_hash(s, str->text, str->len);
	recent = recent_of(s, str->text, str->len);
	if (*recent == id)
		*recent = 0;
	shelf_remove(shelf_of(s, hash), hash, id);
	s->text -= str->len;
	slot_free(s, id);
}

const char *strings_text(const struct strings *s, uint32_t id, uint32_t *lenp)
{
	const struct string *str;

	if (!id) {
		*lenp = 0;
		return "";
	}
	str = string_at(s, id);
	*lenp = str->len;
	return str->text;
}

bool strings_equal(const struct strings *s, uint32_t id, const char *text, uint32_t len)
{
	uint32_t have_len;
	const char *have = strings_text(s, id, &have_len);

	return have_len == len && (!len || memcmp(have, text, len) == 0);
}

size_t strings_sole_bytes(const struct strings *s, uint32_t id)
{
	if (!id || string_at(s, id)->refs != 1)
		return 0;
	return s->slabs[(id >> 8) - 1]->slot_bytes;
}
