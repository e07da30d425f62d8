/* SPDX-License-Identifier: Apache-2.0 */
/*
 * IL maps: which IL offset a native offset of a body comes from.
 *
 * A map is stored as an interned byte string (small methods share theirs): the number of
 * entries, then for each, in stable order of native offset, the distance to the last native
 * offset and a code for the IL offset, all LEB128. The codes 0, 1, 2 are the special
 * values 0xfffffffd..0xffffffff; any other is 3 + the zigzag distance to the last offset that was
 * not special. That makes some two bytes an entry instead of eight. Most maps have a few
 * dozen entries and are read from the front.
 *
 * A map names its body by (method id, version), which is only meaningful among the bodies
 * alive at that time. It may come before its body (always, in a rundown) and then waits.
 * A cold part has no map of its own and never gets one: offsets count from the hot start.
 */
#include "codemap/map.h"

#include <errno.h>
#include <string.h>

#define IL_SPECIAL 0xfffffffdu
#define N_SPECIAL  3u
/* Bodies with one id that are looked at: real ones are one or two. */
#define JOIN_MAX 64u

static int put_varint(struct buf *out, uint64_t v)
{
	while (v >= 0x80) {
		if (buf_put_u8(out, (uint8_t)(v | 0x80)) < 0)
			return out->error;
		v >>= 7;
	}
	return buf_put_u8(out, (uint8_t)v);
}

static uint64_t get_varint(const uint8_t **pp)
{
	uint64_t v = 0;
	unsigned int shift = 0;

	/* our own bytes, and always complete */
	for (;; shift += 7) {
		uint8_t b = *(*pp)++;

		v |= (uint64_t)(b & 0x7f) << shift;
		if (!(b & 0x80))
			return v;
	}
}

static int compare_order(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Into map->il_bytes. Returns 0, -ENOMEM or -ENOSPC. */
static int il_encode(struct codemap *map, const struct codemap_il *entries, size_t n)
{
	uint32_t native = 0;
	int64_t il = 0;
	size_t i;

	if (map->il_order_size < n) {
		uint64_t *order =
			mem_realloc(&map->scratch_total, map->il_order, n * sizeof(*order));

		if (!order)
			return -ENOMEM;
		map->il_order = order;
		map->il_order_size = (uint32_t)n;
	}
	for (i = 0; i < n; i++)
		map->il_order[i] = (uint64_t)entries[i].native << 32 | i;
	qsort(map->il_order, n, sizeof(*map->il_order), compare_order);
	buf_clear(&map->il_bytes);
	put_varint(&map->il_bytes, n);
	for (i = 0; i < n; i++) {
		const struct codemap_il *e = &entries[(uint32_t)map->il_order[i]];

		put_varint(&map->il_bytes, e->native - native);
		native = e->native;
		if (e->il >= IL_SPECIAL) {
			put_varint(&map->il_bytes, e->il - IL_SPECIAL);
		} else {
			int64_t d = (int64_t)e->il - il;

			put_varint(&map->il_bytes,
				   (((uint64_t)d << 1) ^ (uint64_t)(d >> 63)) + N_SPECIAL);
			il = e->il;
		}
	}
	return map->il_bytes.error;
}

uint64_t map_method_hash(const struct codemap *map, uint64_t method_id, uint64_t version)
{
	return hash_u64(map->seed, method_id << 16 | version);
}

uint32_t *map_method_link(void *owner, uint32_t idx, uint64_t *hashp)
{
	struct codemap *map = owner;
	struct codemap_body *b = body_at(&map->bodies, idx);

	*hashp = map_method_hash(map, b->method_id, b->version);
	return &b->next;
}

static bool lived_at(const struct codemap *map, uint32_t idx, uint64_t time)
{
	return body_begin(&map->bodies, idx) <= time &&
	       time < body_unload(body_at(&map->bodies, idx));
}

void il_give(struct codemap *map, uint32_t idx, uint32_t il)
{
	struct codemap_body *b = body_at(&map->bodies, idx);

	if (b->il) {
		strings_drop(&map->ils, il); /* announced again */
		return;
	}
	b->il = il;
	map->stats.il_maps++;
	change_note(map, idx, CODEMAP_CHANGE_ALTERED);
}

/* The body that a map of that time belongs to: one without a map, or with the same. */
static uint32_t il_owner(const struct codemap *map, uint64_t method_id, uint64_t version,
			 uint64_t time, uint32_t il)
{
	uint32_t idx, best = 0, n = 0;

	for (idx = chains_first(&map->methods, map_method_hash(map, method_id, version));
	     idx && n < JOIN_MAX; idx = body_at(&map->bodies, idx)->next, n++) {
		const struct codemap_body *b = body_at(&map->bodies, idx);

		if (b->method_id != method_id || b->version != version || b->cold ||
		    !lived_at(map, idx, time))
			continue;
		if (b->il == il)
			return idx;
		if (!b->il && (!best || b->load > body_at(&map->bodies, best)->load))
			best = idx;
	}
	return best;
}

int il_take(struct codemap *map, const struct codemap_il *entries, size_t n, uint32_t *ilp)
{
	int r = n > CAP_IL_ENTRIES ? -ENOSPC : il_encode(map, entries, n);

	if (r == -ENOSPC) {
		map->stats.invalid++;
		return CODEMAP_E_INVALID;
	}
	if (r < 0)
		return r;
	r = strings_take(&map->ils, map->il_bytes.data, (uint32_t)map->il_bytes.len, ilp);
	map->stats.full += r > 0;
	return r;
}

int codemap_il_map(struct codemap *map, uint64_t method_id, uint64_t version, uint64_t time,
		   const struct codemap_il *entries, size_t n)
{
	uint32_t il, idx, dropped;
	int r;

	if (!n)
		return 0;
	if (method_id >= ADDRESS_END || version > VERSION_MAX) {
		map->stats.invalid++;
		return CODEMAP_E_INVALID;
	}
	r = il_take(map, entries, n, &il);
	if (r)
		return r;
	time = map_time(map, time);
	idx = il_owner(map, method_id, version, time, il);
	if (idx) {
		il_give(map, idx, il);
		return 0;
	}
	r = wait_add(&map->maps, method_id, version, time, il, &dropped);
	if (r < 0)
		strings_drop(&map->ils, il);
	strings_drop(&map->ils, dropped);
	return r;
}

void il_join(struct codemap *map, uint32_t idx)
{
	const struct codemap_body *b = body_at(&map->bodies, idx);
	uint32_t i, next;

	if (b->cold)
		return;
	for (i = wait_next(&map->maps, b->method_id, 0); i; i = next) {
		const struct waiting *w = wait_at(&map->maps, i);
		uint32_t il = w->value;

		next = wait_next(&map->maps, b->method_id, i);
		if (w->sub != b->version || !lived_at(map, idx, w->time) || (b->il && b->il != il))
			continue;
		wait_remove(&map->maps, i);
		il_give(map, idx, il);
	}
}

bool codemap_has_il(const struct codemap *map, const struct codemap_body *body)
{
	(void)map;
	return body->il;
}

/* A stored map, read from the front. */
struct il_reader {
	const uint8_t *p;
	uint32_t n, native;
	int64_t il;
};

static void il_read(struct il_reader *r, const struct codemap *map, uint32_t il)
{
	uint32_t len;

	*r = (struct il_reader){ .p = (const uint8_t *)strings_text(&map->ils, il, &len) };
	r->n = (uint32_t)get_varint(&r->p);
}

static bool il_next(struct il_reader *r, struct codemap_il *entry)
{
	uint64_t code;

	if (!r->n)
		return false;
	r->n--;
	r->native += (uint32_t)get_varint(&r->p);
	entry->native = r->native;
	code = get_varint(&r->p);
	if (code < N_SPECIAL) {
		entry->il = IL_SPECIAL + (uint32_t)code;
	} else {
		code -= N_SPECIAL;
		r->il += (int64_t)(code >> 1) ^ -(int64_t)(code & 1);
		entry->il = (uint32_t)r->il;
	}
	return true;
}

int codemap_il_lookup(const struct codemap *map, const struct codemap_body *body, uint32_t native,
		      uint32_t *ilp)
{
	struct codemap_il entry;
	struct il_reader r;
	bool found = false;

	if (!body->il || native >= body->size)
		return CODEMAP_E_NONE;
	il_read(&r, map, body->il);
	while (il_next(&r, &entry) && entry.native <= native) {
		*ilp = entry.il;
		found = true;
	}
	return found ? 0 : CODEMAP_E_NONE;
}

int codemap_il_entries(struct codemap *map, const struct codemap_body *body,
		       const struct codemap_il **entriesp, size_t *np)
{
	struct il_reader r;
	uint32_t i;

	if (!body->il)
		return CODEMAP_E_NONE;
	il_read(&r, map, body->il);
	if (map->il_entries_size < r.n) {
		struct codemap_il *p =
			mem_realloc(&map->scratch_total, map->il_entries, r.n * sizeof(*p));

		if (!p)
			return -ENOMEM;
		map->il_entries = p;
		map->il_entries_size = r.n;
	}
	*np = r.n;
	for (i = 0; il_next(&r, &map->il_entries[i]); i++)
		;
	*entriesp = map->il_entries;
	return 0;
}
