/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions.
 *
 * Nearly every address that is asked for belongs to a body that is alive now and was at the
 * time asked for; the chunk's newest announcement settles that without touching the body.
 */
#include "codemap/map.h"

const char *codemap_miss_text(enum codemap_miss miss)
{
	switch (miss) {
	case CODEMAP_HIT: return NULL;
	case CODEMAP_MISS_UNKNOWN: return "not announced";
	case CODEMAP_MISS_UNLOADED: return "retired";
	case CODEMAP_MISS_NOT_YET: return "not loaded yet";
	case CODEMAP_MISS_EXPIRED: return "expired";
	case CODEMAP_MISS_LOST: return "data lost";
	case CODEMAP_MISS_FULL: return "over a cap";
	}
	return "not announced";
}

/*
 * Did the body that is alive now begin by then? Without a branch on it: whoever asks about random
 * times would wait for every cache miss of the index, one after the other, where it guesses wrong.
 */
static inline bool began_by(const struct codemap *map, uint32_t idx, uint64_t time)
{
	const struct span *span = &map->bodies.spans[idx >> CHUNK_SHIFT];

	if (unlikely((time < span->newest) & (time >= span->oldest)))
		return time >= body_begin(&map->bodies, idx);
	return time >= span->newest;
}

uint32_t map_find(const struct codemap *map, uint64_t addr, uint64_t time, struct past_hint *hint)
{
	struct found found = index_find(&map->live, addr);

	if (found.idx && began_by(map, found.idx, time))
		return found.idx;
	hint->after = found.idx;
	return found.past ? past_find(map, found.past, addr, time, hint) : 0;
}

bool codemap_lost_between(const struct codemap *map, uint64_t from, uint64_t to)
{
	uint32_t low = 0, high = map->n_gaps;

	/* gaps are sorted and apart: the first that ends at or after from */
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (map->gaps[mid].to < from)
			low = mid + 1;
		else
			high = mid;
	}
	return low < map->n_gaps && map->gaps[low].from <= to;
}

static enum codemap_miss miss_reason(const struct codemap *map, uint64_t time,
				     const struct past_hint *hint)
{
	if (codemap_lost_between(map, time, time))
		return CODEMAP_MISS_LOST;
	if (time < map->horizon)
		return CODEMAP_MISS_EXPIRED;
	if (hint->before)
		return CODEMAP_MISS_UNLOADED;
	if (hint->after)
		return CODEMAP_MISS_NOT_YET;
	return map->incomplete ? CODEMAP_MISS_FULL : CODEMAP_MISS_UNKNOWN;
}

static const struct codemap_body *lookup_past(const struct codemap *map, uint64_t addr,
					      uint64_t time, enum codemap_miss *missp)
{
	struct past_hint hint = { 0 };
	uint32_t idx = map_find(map, addr, time, &hint);

	if (missp)
		*missp = idx ? CODEMAP_HIT : miss_reason(map, time, &hint);
	return idx ? body_at(&map->bodies, idx) : NULL;
}

const struct codemap_body *codemap_lookup_at(const struct codemap *map, uint64_t addr,
					     uint64_t time, enum codemap_miss *missp)
{
	struct found found = index_find(&map->live, addr);

	if (likely(found.idx) && !missp && !found.past) {
		uintptr_t body = (uintptr_t)body_at(&map->bodies, found.idx);

		return (const void *)(body & -(uintptr_t)began_by(map, found.idx, time));
	}
	if (likely(found.idx) && began_by(map, found.idx, time)) {
		if (missp)
			*missp = CODEMAP_HIT;
		return body_at(&map->bodies, found.idx);
	}
	if (!missp && !found.past)
		return NULL;
	return lookup_past(map, addr, time, missp);
}

const struct codemap_body *codemap_lookup(const struct codemap *map, uint64_t addr,
					  enum codemap_miss *missp)
{
	uint32_t idx = index_find(&map->live, addr).idx;

	if (likely(idx)) {
		if (missp)
			*missp = CODEMAP_HIT;
		return body_at(&map->bodies, idx);
	}
	return missp ? lookup_past(map, addr, UINT64_MAX, missp) : NULL;
}

/* May its address have been another body's while nobody told us? */
static bool is_freeable(const struct codemap *map, const struct codemap_body *body)
{
	return (body->flags & BODY_FLAG_DYNAMIC) ||
	       (body->module && module_is_freeable(&map->modules, body->module));
}

const struct codemap_body *codemap_lookup_certain(const struct codemap *map, uint64_t addr,
						  uint64_t time, enum codemap_miss *missp)
{
	const struct codemap_body *body = codemap_lookup_at(map, addr, time, missp);
	bool is_guess, is_lost;

	if (!body)
		return NULL;
	is_guess = body->open_past && time < body->load;
	is_lost = map->n_gaps && codemap_lost_between(map, time, time);
	if (likely(!is_guess && !is_lost) || !is_freeable(map, body))
		return body;
	*missp = is_lost ? CODEMAP_MISS_LOST : CODEMAP_MISS_NOT_YET;
	return NULL;
}

const struct codemap_body *codemap_next(const struct codemap *map, uint64_t from)
{
	uint32_t idx = index_next(&map->live, from);

	return idx ? body_at(&map->bodies, idx) : NULL;
}

struct each {
	codemap_body_fn fn;
	void *data;
	int result;
};

static bool each_retired(struct codemap *map, uint32_t idx, void *arg)
{
	struct each *each = arg;

	each->result = each->fn(each->data, body_at(&map->bodies, idx));
	return !each->result;
}

int codemap_each(const struct codemap *map, codemap_body_fn fn, void *data)
{
	struct each each = { .fn = fn, .data = data };
	const struct codemap_body *body;
	uint64_t from;
	int r;

	for (from = 0; (body = codemap_next(map, from)); from = (uint64_t)body->start + 1) {
		r = fn(data, body);
		if (r)
			return r;
	}
	past_walk_back(map, each_retired, &each);
	return each.result;
}

/* Only an open past needs more than the record itself: then it is found by where it was. */
static uint64_t life_begin(const struct codemap *map, const struct codemap_body *b)
{
	struct past_hint hint = { 0 };
	uint64_t time = b->load;
	uint32_t idx;

	if (!b->open_past)
		return b->load;
	/* replaced at the moment of its record: alive before that, if ever */
	if (b->end != END_NONE && b->unload == time && time)
		time--;
	idx = map_find(map, b->start, time, &hint);
	return idx && body_at(&map->bodies, idx) == b ? body_begin(&map->bodies, idx) : b->load;
}

static uint32_t body_flags(const struct codemap_body *body)
{
	return body->flags | (body->cold ? BODY_FLAG_COLD : 0);
}

struct codemap_range codemap_body_range(const struct codemap_body *body)
{
	return (struct codemap_range){
		.start = body->start,
		.end = body_stop(body),
		.flags = body_flags(body),
	};
}

void codemap_body_life(const struct codemap *map, const struct codemap_body *body,
		       struct codemap_info *info)
{
	*info = (struct codemap_info){
		.method_id = body->method_id,
		.start = body->start,
		.version = body->version,
		.load = life_begin(map, body),
		.unload = body_unload(body),
		.open_past = body->open_past,
		.announced = body->load,
		.size = body->size,
		.token = body->token,
		.flags = body_flags(body),
	};
	info->freeable = body->open_past && is_freeable(map, body);
}

void codemap_body_info(const struct codemap *map, const struct codemap_body *body,
		       struct codemap_info *info)
{
	const struct module *mod = &map->modules.v[body->module];

	codemap_body_life(map, body, info);
	info->name.flags = info->flags;
	info->name.ns = strings_text(&map->names, body->ns, &info->name.ns_len);
	info->name.name = strings_text(&map->names, body->name, &info->name.name_len);
	info->name.sig = strings_text(&map->names, body->sig, &info->name.sig_len);
	if (!body->module)
		return;
	info->module_id = mod->id;
	if (mod->path)
		info->module_path = strings_text(&map->names, mod->path, &info->module_path_len);
}

uint64_t codemap_generation(const struct codemap *map)
{
	return map->generation;
}

void codemap_get_stats(const struct codemap *map, struct codemap_stats *stats)
{
	*stats = map->stats;
	stats->bytes = sizeof(*map) + map->bodies.total + map->live.total + map->live.pool.total +
		       map->past.total + map->names.total + map->modules.total +
		       map->methods_total + map->unloads.total + map->maps.total +
		       map->again.total + map->touched.total + map->late.total +
		       map->scratch_total + map->changes.total + map->changes.modules.total;
	stats->name_bytes = map->names.text;
	stats->il_bytes = map->ils.total;
}
