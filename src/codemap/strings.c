/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Interned text, counted, in slabs.
 *
 * A process with a million methods has about a million names but far fewer namespaces and
 * signatures, and a process that churns dynamic methods makes new names for months. So
 * equal strings are stored once, and a string goes when its last body goes.
 *
 * A string is 12 bytes of header and its text, in a slot of a 4 KiB slab of slots of one
 * size; sizes are 4 bytes apart up to 256, then such that 15, 14, ... 4 fit a slab. Longer
 * ones have a slab to themselves. A slab without strings is freed. The id is the
 * slab's number and the slot: 32 bits, and the text never moves.
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
	uint32_t next, hash;
	uint16_t refs, len;
	char text[];
};

_Static_assert(sizeof(struct string) == 12, "per distinct string");
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

static uint32_t text_hash(const struct strings *s, const void *text, uint32_t len)
{
	return (uint32_t)hash_bytes(s->seed, text, len);
}

static uint32_t *string_link(void *owner, uint32_t id, uint64_t *hashp)
{
	struct string *str = string_at(owner, id);

	*hashp = str->hash;
	return &str->next;
}

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
	mem_free(&s->total, s->chains.heads);
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

static bool string_is(const struct string *str, uint32_t hash, const void *text, uint32_t len)
{
	return str->hash == hash && str->len == len && memcmp(str->text, text, len) == 0;
}

int strings_take(struct strings *s, const void *text, uint32_t len, uint32_t *idp)
{
	struct recent *recent;
	struct string *str;
	uint32_t id, hash;

	if (!len) {
		*idp = 0;
		return 0;
	}
	hash = text_hash(s, text, len);
	recent = &s->recent[hash % STRINGS_RECENT];
	if (recent->id && recent->hash == hash &&
	    string_is(string_at(s, recent->id), hash, text, len)) {
		strings_share(s, recent->id);
		*idp = recent->id;
		return 0;
	}
	for (id = chains_first(&s->chains, hash); id; id = str->next) {
		str = string_at(s, id);
		if (string_is(str, hash, text, len)) {
			strings_share(s, id);
			*recent = (struct recent){ id, hash };
			*idp = id;
			return 0;
		}
	}
	if (len > UINT16_MAX || s->text + len > s->max_text)
		return CODEMAP_E_FULL;
	if (chains_reserve(&s->chains, &s->total, s, string_link) < 0)
		return -ENOMEM;
	id = slot_new(s, (uint32_t)sizeof(*str) + len);
	if (!id)
		return -ENOMEM;
	str = string_at(s, id);
	str->hash = hash;
	str->refs = 1;
	str->len = (uint16_t)len;
	memcpy(str->text, text, len);
	chains_add(&s->chains, s, string_link, id);
	*recent = (struct recent){ id, hash };
	s->text += len;
	*idp = id;
	return 0;
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
	struct string *str;

	if (!id)
		return;
	str = string_at(s, id);
	if (str->refs == REFS_STUCK || --str->refs)
		return;
	if (s->recent[str->hash % STRINGS_RECENT].id == id)
		s->recent[str->hash % STRINGS_RECENT].id = 0;
	chains_remove(&s->chains, s, string_link, id);
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
