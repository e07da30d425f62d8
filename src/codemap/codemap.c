/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The events that change a map: checked, counted, and passed to the rules in life.c.
 *
 * Unloads find their body by where it was at that time; a module's unload has its list of what is
 * alive, and, if it comes late, looks through what was retired lately. Losses are kept as spans.
 */
#include "codemap/map.h"

#include <errno.h>
#include <string.h>

#include "base/utf.h"

#define EXPIRE_PER_CALL 4096u
/* With every event, when the past is over its bytes. */
#define EXPIRE_PER_EVENT 4u
/* No event is later than this: how far back a late module unload looks for its bodies. */
#define LATE_NS     SEC_NS(2)
#define LATE_STEPS  65536u
#define IL_BLOB_MAX 65535u

int codemap_new(struct codemap **outp, const struct codemap_options *opts)
{
	_cleanup_(codemap_freep) struct codemap *map = calloc(1, sizeof(*map));
	int r;

	if (!map)
		return -ENOMEM;
	if (opts)
		map->opts = *opts;
	if (!map->opts.max_bodies || map->opts.max_bodies > CAP_BODIES)
		map->opts.max_bodies = CAP_BODIES;
	if (!map->opts.max_name_bytes)
		map->opts.max_name_bytes = CAP_NAME_BYTES;
	if (!map->opts.max_il_bytes)
		map->opts.max_il_bytes = CAP_IL_BYTES;
	if (!map->opts.retired_bytes)
		map->opts.retired_bytes = DEFAULT_RETIRED_BYTES;
	if (!map->opts.retired_ns)
		map->opts.retired_ns = DEFAULT_RETIRED_NS;
	map->seed = hash_seed();
	strings_init(&map->names, map->opts.max_name_bytes);
	strings_init(&map->ils, map->opts.max_il_bytes);
	modules_init(&map->modules);
	wait_init(&map->unloads, CAP_UNLOADS_PENDING);
	wait_init(&map->maps, CAP_IL_PENDING);
	wait_init(&map->again, CAP_UNLOADS_PENDING);
	buf_init(&map->il_bytes, IL_BLOB_MAX);
	/* a body of the largest size has 16,384 entries; together they may not have many */
	r = index_init(&map->live, map->opts.max_bodies * 2 + CAP_BODY_BYTES / 4096);
	if (r < 0)
		return r;
	*outp = TAKE_PTR(map);
	return 0;
}

void codemap_free(struct codemap *map)
{
	if (!map)
		return;
	past_free_all(map);
	index_deinit(&map->live);
	bodies_deinit(&map->bodies);
	strings_deinit(&map->names);
	strings_deinit(&map->ils);
	modules_deinit(&map->modules);
	mem_free(&map->methods_total, map->methods.heads);
	wait_deinit(&map->unloads);
	wait_deinit(&map->maps);
	wait_deinit(&map->again);
	mem_free(&map->touched.total, map->touched.v);
	mem_free(&map->late.total, map->late.v);
	mem_free(&map->scratch_total, map->il_order);
	mem_free(&map->census_total, map->census);
	mem_free(&map->scratch_total, map->il_entries);
	buf_deinit(&map->il_bytes);
	changes_deinit(map);
	free(map);
}

int codemap_want_il_maps(struct codemap *map)
{
	uint32_t idx;
	uint64_t from;

	if (!map->opts.no_il_maps)
		return 0;
	map->opts.no_il_maps = false;
	for (from = 0; (idx = index_next(&map->live, from));
	     from = (uint64_t)body_at(&map->bodies, idx)->start + 1) {
		if (body_at(&map->bodies, idx)->chained)
			continue;
		if (chains_reserve(&map->methods, &map->methods_total, map, map_method_link) < 0)
			return -ENOMEM;
		method_chain(map, idx);
	}
	return 0;
}

/* -- Announcements ------------------------------------------------------------------------ */

static bool is_valid(const struct codemap_load *load)
{
	return load->size && load->size <= CAP_BODY_BYTES && load->start &&
	       load->start < ADDRESS_END && load->size <= ADDRESS_END - load->start &&
	       load->method_id < ADDRESS_END && load->version <= VERSION_MAX &&
	       load->time < UINT64_MAX;
}

static void expire_some(struct codemap *map, uint32_t n)
{
	while (n-- && map->past.bytes > map->opts.retired_bytes)
		body_expire(map, past_take_oldest(map));
}

static bool fits(const struct codemap *map, const struct codemap_load *load)
{
	return load->ns_len <= CAP_NAME_LENGTH && load->name_len <= CAP_NAME_LENGTH &&
	       load->sig_len <= CAP_NAME_LENGTH && load->time >= map->bodies.begin;
}

bool load_check(const struct codemap *map, const struct codemap_load **load,
		struct codemap_load *cut)
{
	const struct codemap_load *l = *load;

	if (!is_valid(l))
		return false;
	if (likely(fits(map, l)))
		return true;
	*cut = *l;
	cut->ns_len = (uint32_t)utf8_cut(l->ns, l->ns_len, CAP_NAME_LENGTH);
	cut->name_len = (uint32_t)utf8_cut(l->name, l->name_len, CAP_NAME_LENGTH);
	cut->sig_len = (uint32_t)utf8_cut(l->sig, l->sig_len, CAP_NAME_LENGTH);
	cut->time = map_time(map, l->time);
	*load = cut;
	return true;
}

static int announce(struct codemap *map, const struct codemap_load *load, bool seen,
		    struct codemap_body **bodyp)
{
	struct codemap_load cut;
	uint32_t idx = 0;
	int r;

	if (bodyp)
		*bodyp = NULL;
	map->stats.loads++;
	if (!load_check(map, &load, &cut)) {
		map->stats.invalid++;
		return CODEMAP_E_INVALID;
	}
	expire_some(map, EXPIRE_PER_EVENT);
	if (map->bodies.count >= map->opts.max_bodies && past_oldest(map))
		body_expire(map, past_take_oldest(map));
	r = life_announce(map, load, seen, 0, &idx);
	if (r == CODEMAP_E_FULL) {
		map->stats.full++;
		map->incomplete = true;
	}
	if (r)
		return r;
	if (unlikely(map->census) && seen && idx < map->census_slots)
		map->census[idx / 64] |= UINT64_C(1) << idx % 64;
	lives_settle(map);
	if (bodyp)
		*bodyp = body_at(&map->bodies, idx);
	if (seen && body_at(&map->bodies, idx)->end != END_NONE) {
		map->stats.stale++;
		return CODEMAP_E_STALE;
	}
	return 0;
}

int codemap_load(struct codemap *map, const struct codemap_load *load, struct codemap_body **bodyp)
{
	return announce(map, load, false, bodyp);
}

int codemap_rundown(struct codemap *map, const struct codemap_load *load,
		    struct codemap_body **bodyp)
{
	return announce(map, load, true, bodyp);
}

/* -- Unloads ------------------------------------------------------------------------------ */

/*
 * A body that was replaced while data was lost ended somewhere in the loss; its own unload
 * event, if it comes after all, says when.
 */
static bool unload_in_gap(struct codemap *map, uint64_t method_id, uint64_t start, uint64_t time)
{
	uint32_t idx = past_last_at(map, start, time), i;
	struct codemap_body *b = idx ? body_at(&map->bodies, idx) : NULL;

	/* with those of no length right at its end: nothing may lie inside a life */
	if (!b || b->end != END_GAP || b->method_id != method_id ||
	    lives_gather(map, start, body_stop(b), b->unload - 1) != 0)
		return false;
	for (i = 0; i < map->touched.n; i++)
		if (map->touched.v[i] != idx &&
		    body_at(&map->bodies, map->touched.v[i])->load <= time)
			return false;
	past_set_end(map, idx, time);
	b->end = END_UNLOADED;
	bounds_refresh(map, b->load);
	return true;
}

void map_unload(struct codemap *map, uint64_t method_id, uint64_t start, uint64_t time)
{
	struct past_hint hint = { 0 };
	struct codemap_body *b;
	uint32_t idx;
	bool late;

	idx = map_find(map, start, time, &hint);
	b = idx ? body_at(&map->bodies, idx) : NULL;
	if (b && b->start == start && b->method_id == method_id && b->load < time) {
		late = b->end != END_NONE;
		if (life_cut(map, idx, time, END_UNLOADED) && late)
			bounds_refresh_around(map, idx, time);
		lives_settle(map);
		return;
	}
	if ((!b || b->open_past) && unload_in_gap(map, method_id, start, time))
		return;
	if (b && b->start == start)
		bound_raise(map, idx, time);
	unload_wait(map, start, method_id, time);
	map->stats.unmatched_unloads++;
}

int codemap_unload(struct codemap *map, uint64_t method_id, uint64_t start, uint64_t time)
{
	map->stats.unloads++;
	if (start >= ADDRESS_END || method_id >= ADDRESS_END || time == UINT64_MAX) {
		map->stats.invalid++;
		return CODEMAP_E_INVALID;
	}
	expire_some(map, EXPIRE_PER_EVENT);
	map_unload(map, method_id, start, map_time(map, time));
	return 0;
}

struct module_late {
	uint64_t id, time;
	uint32_t steps;
};

static bool module_late_body(struct codemap *map, uint32_t idx, void *arg)
{
	const struct codemap_body *b = body_at(&map->bodies, idx);
	struct module_late *late = arg;

	if (!late->steps-- || (late->time > LATE_NS && b->unload < late->time - LATE_NS))
		return false;
	if (!b->module || map->modules.v[b->module].id != late->id)
		return true;
	if (b->load >= late->time)
		bound_raise(map, idx, late->time);
	else if (b->unload > late->time && list_add(&map->late, idx) < 0)
		return false;
	return true;
}

int codemap_module_unload(struct codemap *map, uint64_t module_id, uint64_t time)
{
	struct module_late late = { .id = module_id, .steps = LATE_STEPS };
	uint32_t m, idx, i;
	bool is_late;
	int r;

	if (time == UINT64_MAX) {
		map->stats.invalid++;
		return CODEMAP_E_INVALID;
	}
	time = late.time = map_time(map, time);
	is_late = time < map->past.newest_end;
	r = module_end(map, module_id, time, &m);
	if (r) {
		map->stats.full += r > 0;
		return r;
	}
	while (m && (idx = map->modules.v[m].live))
		life_cut(map, idx, time, END_IMPLIED);
	/* what was only seen after that is of the incarnation that followed */
	m = module_find(map, module_id, time);
	for (idx = m ? map->modules.v[m].live : 0; idx;
	     idx = body_at(&map->bodies, idx)->in_module.next)
		bound_raise(map, idx, time);
	if (is_late) {
		map->late.n = 0;
		past_walk_back(map, module_late_body, &late);
		for (i = 0; i < map->late.n; i++) {
			life_cut(map, map->late.v[i], time, END_IMPLIED);
			bounds_refresh_around(map, map->late.v[i], time);
		}
	}
	lives_settle(map);
	return 0;
}

int codemap_module(struct codemap *map, uint64_t module_id, uint64_t assembly_id, const char *path,
		   size_t path_len, uint64_t time)
{
	struct module *mod;
	uint32_t m, id;
	int r, error;

	time = map_time(map, time);
	r = strings_take(&map->names, path, (uint32_t)MIN(path_len, (size_t)CAP_NAME_LENGTH), &id);
	if (r) {
		map->stats.full += r > 0;
		return r;
	}
	m = module_get(map, module_id, time, &error);
	if (!m) {
		map->stats.full += error > 0;
		strings_drop(&map->names, id);
		return error;
	}
	mod = &map->modules.v[m];
	if (mod->path && time < mod->named) {
		strings_drop(&map->names, id);
		return 0;
	}
	if (mod->path != id || mod->assembly_id != assembly_id)
		change_module(map, m);
	strings_drop(&map->names, mod->path);
	mod->path = id;
	mod->assembly_id = assembly_id;
	mod->named = time;
	return 0;
}

/* -- Rundowns after losses ---------------------------------------------------------------- */

int codemap_census_begin(struct codemap *map)
{
	uint32_t n = codemap_n_slots(map);
	size_t bytes = ((size_t)n / 64 + 1) * sizeof(*map->census);

	mem_free(&map->census_total, map->census);
	map->census = mem_realloc(&map->census_total, NULL, bytes);
	if (!map->census)
		return -ENOMEM;
	memset(map->census, 0, bytes);
	map->census_slots = n;
	return 0;
}

/* What has come since has a slot beyond those that are counted, or was announced too late. */
static void census_end_slot(struct codemap *map, uint32_t idx, uint64_t lost_from, uint64_t lost_to)
{
	const struct codemap_body *b = codemap_slot(map, idx);

	if (!b || b->end != END_NONE || !names_is_jitted(b->flags) || b->load > lost_to ||
	    map->census[idx / 64] >> idx % 64 & 1)
		return;
	map->stats.implied_retirements++;
	life_cut(map, idx, MAX(lost_from, (uint64_t)b->load), END_GAP);
}

void codemap_census_end(struct codemap *map, uint64_t lost_from, uint64_t lost_to)
{
	uint32_t idx;

	for (idx = 1; map->census && lost_to && idx < map->census_slots; idx++)
		census_end_slot(map, idx, lost_from, lost_to);
	mem_free(&map->census_total, map->census);
	map->census = NULL;
	lives_settle(map);
}

/* -- Losses and forgetting ---------------------------------------------------------------- */

void codemap_gap(struct codemap *map, uint64_t from, uint64_t to)
{
	struct gap *g = map->gaps;
	uint32_t at = 0, end;

	from = map_time(map, from);
	if (from > to)
		return;
	map->stats.gaps++;
	while (at < map->n_gaps && g[at].to < from)
		at++;
	/* what it touches becomes one with it */
	for (end = at; end < map->n_gaps && g[end].from <= to; end++) {
		from = MIN(from, g[end].from);
		to = MAX(to, g[end].to);
	}
	if (end == at) {
		if (map->n_gaps == CAP_GAPS) {
			/* the two oldest are joined: what lies between is in doubt as well */
			if (!at) {
				g[0].from = from;
				return;
			}
			g[1].from = g[0].from;
			memmove(g, g + 1, (map->n_gaps - 1) * sizeof(*g));
			map->n_gaps--;
			end = --at;
			if (at && g[at - 1].to >= from) {
				g[at - 1].to = MAX(g[at - 1].to, to);
				return;
			}
		}
		memmove(g + at + 1, g + at, (map->n_gaps - at) * sizeof(*g));
		map->n_gaps++;
	} else {
		memmove(g + at + 1, g + end, (map->n_gaps - end) * sizeof(*g));
		map->n_gaps -= end - at - 1;
	}
	g[at] = (struct gap){ from, to };
}

void codemap_expire(struct codemap *map, uint64_t now)
{
	uint32_t n, idx;

	for (n = 0; n < EXPIRE_PER_CALL && (idx = past_oldest(map)); n++) {
		uint64_t unload = body_at(&map->bodies, idx)->unload;

		if (map->past.bytes <= map->opts.retired_bytes &&
		    (now < map->opts.retired_ns || unload > now - map->opts.retired_ns))
			break;
		body_expire(map, past_take_oldest(map));
	}
}

void codemap_set_retention(struct codemap *map, size_t bytes, uint64_t ns)
{
	map->opts.retired_bytes = bytes ? bytes : DEFAULT_RETIRED_BYTES;
	map->opts.retired_ns = ns ? ns : DEFAULT_RETIRED_NS;
}
