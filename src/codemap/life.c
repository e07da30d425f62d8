/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules: what an event means at its time, whenever it comes.
 *
 * The truth is what these rules give when all events are taken in order of time:
 *
 *  load(B)    An identical body that is alive absorbs it. Else every live body that overlaps
 *             ends, and B's life begins.
 *  rundown(B) The same, but B was alive before: its life begins at a *bound*, the last time
 *             before the record at which something is known to have ended on its range (a
 *             life, an unload at its start, an unload of its module). A live body that
 *             overlaps ends where data was lost last since it was loaded, if it was.
 *  unload     The live body of that method and start ends; without one it is a hint for
 *             bounds only.
 *  module     Every live body of the module ends.
 *
 * So at any time at most one body covers an address. A body is identical if method, version,
 * start, size and name are; the name counts because method ids of dynamic methods are reused
 * together with their addresses.
 *
 * Events come out of order, so each is sorted into what is already known. A life knows when it
 * was announced (`load`) and what ended it. A load of time t:
 *
 *  1. gathers the lives that overlap B and end after t (those alive now, and, only if t is
 *     older than the newest retirement there, retired ones);
 *  2. is absorbed if one of them is B, alive at t;
 *  3. finds what comes next after t: an unload of B that waits, its module's unload, the
 *     first announcement among the gathered. If that is B itself, that life begins earlier
 *     now. Else it ends B, and B goes straight to the past; if nothing comes, B is alive;
 *  4. cuts the lives that it found alive at t short;
 *  5. looks again at the bounds of those open pasts among the gathered that come later.
 *
 * Two small rings remember what the lives do not: unloads that found nothing to end, or were
 * overtaken as the end of a life (`unloads`), and further announcements of a life (`again`),
 * which begin it anew if an event from between the two turns up. They hold the last
 * thousand; an event that is later than that loses only this kind of repair.
 *
 * In the usual order of events step 1 finds at most one body, alive, and the rest is nothing.
 *
 * Memory: everything that can fail comes before the first change. A body that cannot be
 * kept in the past for want of memory is forgotten like an expired one.
 */
#include "codemap/map.h"

#include <errno.h>

/* Unloads of one start that are looked at, newest first: real ones are a few. */
#define UNLOADS_MAX 64u
/* Bodies of one (method, version) that IL maps look at; see ilmap.c. */
#define CHAIN_MAX 64u

/* -- Ends of lives ------------------------------------------------------------------------ */

/* The record of a body that is neither in the index nor in the past. */
static void body_drop(struct codemap *map, uint32_t idx)
{
	struct codemap_body *b = body_at(&map->bodies, idx);
	uint32_t i;

	if (b->chained) {
		chains_remove(&map->methods, map, map_method_link, idx);
		b->chained = 0;
	}
	while (b->again && (i = wait_next(&map->again, idx, 0)))
		wait_remove(&map->again, i);
	strings_drop(&map->names, b->ns);
	strings_drop(&map->names, b->name);
	strings_drop(&map->names, b->sig);
	if (b->il) {
		strings_drop(&map->ils, b->il);
		map->stats.il_maps--;
	}
	module_unref(map, b->module);
	bodies_free(&map->bodies, idx);
	change_note(map, idx, CODEMAP_CHANGE_FORGOTTEN);
}

void body_expire(struct codemap *map, uint32_t idx)
{
	map->horizon = MAX(map->horizon, body_at(&map->bodies, idx)->unload);
	map->stats.expired++;
	body_drop(map, idx);
}

static void count_live(struct codemap *map, const struct codemap_body *b, bool more)
{
	size_t *kind = b->flags & BODY_FLAG_JIT ? &map->stats.live_jitted : &map->stats.live_r2r;
	size_t d = more ? 1 : (size_t)-1;

	map->stats.live += d;
	*kind += d;
	map->generation++;
}

/* Ends a live body. Returns false if there was no memory to remember it. */
static bool body_retire(struct codemap *map, uint32_t idx, uint64_t time, enum body_end how)
{
	struct codemap_body *b = body_at(&map->bodies, idx);

	count_live(map, b, false);
	index_remove(&map->live, idx, b->start, body_stop(b));
	module_unlink(map, idx);
	b->end = how & 3;
	b->unload = time;
	/*
	 * Dynamic methods have no IL map, and the runtime gives their ids out again and again:
	 * their chains would grow as long as the past.
	 */
	if (b->chained && b->flags & BODY_FLAG_DYN) {
		chains_remove(&map->methods, map, map_method_link, idx);
		b->chained = 0;
	}
	if (past_add(map, idx) == 0) {
		change_note(map, idx, CODEMAP_CHANGE_ENDED);
		return true;
	}
	body_expire(map, idx);
	return false;
}

/* An unload without a body to end. Losing one is as if it had come too late. */
void unload_wait(struct codemap *map, uint64_t start, uint64_t method_id, uint64_t time)
{
	uint32_t dropped;

	(void)wait_add(&map->unloads, start, method_id, time, 0, &dropped);
}

/* Ends a life earlier than it was known to. Returns false if the body is gone altogether. */
bool life_cut(struct codemap *map, uint32_t idx, uint64_t time, enum body_end how)
{
	struct codemap_body *b = body_at(&map->bodies, idx);
	uint32_t i;

	if (b->again) {
		b->again = 0;
		for (i = wait_next(&map->again, idx, 0); i; i = wait_next(&map->again, idx, i)) {
			b->again = 1;
			if (wait_at(&map->again, i)->time >= time)
				map->unsettled = true;
		}
	}
	if (b->end == END_NONE)
		return body_retire(map, idx, time, how);
	/* its own unload may belong to a later life of the same method there */
	if (b->end == END_UNLOADED)
		unload_wait(map, b->start, b->method_id, b->unload);
	past_set_end(map, idx, time);
	b->end = how & 3;
	return true;
}

/* When data was lost last between the two times; or the later one. */
static uint64_t loss_between(const struct codemap *map, uint64_t from, uint64_t to)
{
	uint32_t i;

	for (i = map->n_gaps; i; i--)
		if (map->gaps[i - 1].from < to)
			return map->gaps[i - 1].from > from ? map->gaps[i - 1].from : to;
	return to;
}

/* -- Open pasts --------------------------------------------------------------------------- */

void life_set_begin(struct codemap *map, uint32_t idx, uint64_t time, bool seen, uint64_t bound)
{
	const struct codemap_body *b = body_at(&map->bodies, idx);

	body_set_load(&map->bodies, idx, time, seen, bound);
	if (b->end != END_NONE)
		past_set_end(map, idx, b->unload);
	change_note(map, idx, CODEMAP_CHANGE_ALTERED);
}

/* How far back a body reaches that was first seen in a rundown. */
static uint64_t bound_known(const struct codemap *map, uint32_t idx)
{
	const struct codemap_body *b = body_at(&map->bodies, idx);
	uint32_t i, n = 0;
	uint64_t bound;

	/* the first rundown of most processes */
	if (!map->past.queue.count && !map->modules.any_unloaded && !map->unloads.used)
		return 0;
	bound = past_last_end(map, b->start, body_stop(b), b->load);
	if (b->module) {
		uint64_t id = map->modules.v[b->module].id;

		bound = MAX(bound, module_last_unload(map, id, b->load));
	}
	for (i = wait_next(&map->unloads, b->start, 0); i && n < UNLOADS_MAX;
	     i = wait_next(&map->unloads, b->start, i), n++) {
		uint64_t time = wait_at(&map->unloads, i)->time;

		if (time <= b->load)
			bound = MAX(bound, time);
	}
	return bound;
}

/* What is forgotten may have ended there as late as the horizon. */
static void bound_set(struct codemap *map, uint32_t idx)
{
	const struct codemap_body *b = body_at(&map->bodies, idx);
	uint64_t bound = MAX(bound_known(map, idx), MIN(map->horizon, b->load));

	life_set_begin(map, idx, b->load, true, bound);
}

static void bound_refresh(struct codemap *map, uint32_t idx)
{
	const struct codemap_body *b = body_at(&map->bodies, idx);
	uint64_t old = body_begin(&map->bodies, idx);
	uint64_t bound = MAX(bound_known(map, idx), MIN(map->horizon, old));

	if (bound != old)
		life_set_begin(map, idx, b->load, true, bound);
}

/* Something ended there at that time, so it was not this body before. */
void bound_raise(struct codemap *map, uint32_t idx, uint64_t time)
{
	const struct codemap_body *b = body_at(&map->bodies, idx);

	if (b->open_past && time <= b->load && time > body_begin(&map->bodies, idx))
		life_set_begin(map, idx, b->load, true, time);
}

/* The gathered bodies that were seen after time and are open towards it. */
void bounds_refresh(struct codemap *map, uint64_t time)
{
	uint32_t i;

	for (i = 0; i < map->touched.n; i++) {
		uint32_t idx = map->touched.v[i];
		const struct codemap_body *b = idx ? body_at(&map->bodies, idx) : NULL;

		if (b && b->open_past && b->load > time)
			bound_refresh(map, idx);
	}
}

/* All lives that overlap the range and end after time. */
int lives_gather(struct codemap *map, uint64_t start, uint64_t stop, uint64_t time)
{
	int r;

	map->touched.n = 0;
	r = index_gather(&map->live, start, stop, &map->touched);
	if (!r && time < map->past.newest_end)
		r = past_gather(map, start, stop, time, &map->touched);
	return r;
}

/* After a retired body got an earlier end. A bound that stays too high claims too little. */
void bounds_refresh_around(struct codemap *map, uint32_t idx, uint64_t time)
{
	const struct codemap_body *b = body_at(&map->bodies, idx);

	if (lives_gather(map, b->start, body_stop(b), time) == 0)
		bounds_refresh(map, time);
}

/* -- Announcements ------------------------------------------------------------------------ */

static bool is_named(const struct codemap_body *b)
{
	return b->ns || b->name;
}

bool life_is(const struct codemap *map, const struct codemap_body *b,
	     const struct codemap_load *load)
{
	if (b->start != load->start || b->size != load->size || b->method_id != load->method_id ||
	    b->version != load->version)
		return false;
	if (!is_named(b) || (!load->ns_len && !load->name_len))
		return true; /* the short forms of the events have no names */
	return strings_equal(&map->names, b->name, load->name, load->name_len) &&
	       strings_equal(&map->names, b->ns, load->ns, load->ns_len) &&
	       strings_equal(&map->names, b->sig, load->sig, load->sig_len);
}

static void names_drop(struct codemap *map, const uint32_t id[3])
{
	unsigned int i;

	for (i = 0; i < 3; i++)
		strings_drop(&map->names, id[i]);
}

static int names_take(struct codemap *map, const struct codemap_load *load, uint32_t id[3])
{
	uint32_t hash;
	int r;

	id[0] = id[1] = id[2] = 0;
	/* the name is the one that is new, and its place a cache miss: on its way meanwhile */
	hash = strings_hash(&map->names, load->name, load->name_len);
	r = strings_take(&map->names, load->ns, load->ns_len, &id[0]);
	if (!r)
		r = strings_take(&map->names, load->sig, load->sig_len, &id[2]);
	if (!r)
		r = strings_take_hashed(&map->names, hash, load->name, load->name_len, &id[1]);
	if (r)
		names_drop(map, id);
	return r;
}

static void body_name(struct codemap_body *b, const uint32_t id[3])
{
	b->ns = id[0];
	b->name = id[1];
	b->sig = id[2];
}

static void again_note(struct codemap *map, uint32_t idx, uint64_t time, bool seen)
{
	uint32_t dropped;

	if (wait_add(&map->again, idx, seen, time, 0, &dropped) == 0)
		body_at(&map->bodies, idx)->again = 1;
}

/* One more announcement of a life. */
static int life_merge(struct codemap *map, uint32_t idx, const struct codemap_load *load, bool seen)
{
	struct codemap_body *b = body_at(&map->bodies, idx);
	uint32_t id[3];
	int r;

	if (!is_named(b) && (load->ns_len || load->name_len)) {
		r = names_take(map, load, id);
		if (r)
			return r;
		strings_drop(&map->names, b->sig);
		body_name(b, id);
		map->generation++;
		change_note(map, idx, CODEMAP_CHANGE_ALTERED);
	}
	if (b->open_past && load->time < b->load) {
		again_note(map, idx, b->load, true);
		life_set_begin(map, idx, load->time, seen, body_begin(&map->bodies, idx));
	} else if (b->open_past && load->time == b->load && !seen) {
		life_set_begin(map, idx, load->time, false, 0);
	} else if (load->time > b->load) {
		again_note(map, idx, load->time, seen);
	}
	map->stats.merged++;
	return 0;
}

/* Steps 4 and 5: makes room for the life that begins with this announcement. */
static void life_settle_in(struct codemap *map, uint32_t idx, uint64_t time, bool seen)
{
	uint32_t i;

	map->late.n = 0;
	for (i = 0; i < map->touched.n; i++) {
		uint32_t other = map->touched.v[i];
		const struct codemap_body *b = body_at(&map->bodies, other);
		uint64_t end = time;

		if (other == idx || b->load > time)
			continue;
		if (seen)
			end = loss_between(map, b->load, time);
		if (b->end == END_NONE)
			map->stats.implied_retirements++;
		else
			(void)list_add(&map->late, other);
		if (!life_cut(map, other, end, end < time ? END_GAP : END_IMPLIED))
			map->touched.v[i] = 0;
	}
	if (seen)
		bound_set(map, idx);
	bounds_refresh(map, time);
	/* what overlaps those that had ended later need not overlap this one */
	for (i = 0; i < map->late.n; i++)
		bounds_refresh_around(map, map->late.v[i], time);
}

/* A later announcement of the same life turns out not to be the first. */
static void life_begin_earlier(struct codemap *map, uint32_t idx, uint64_t time, bool seen)
{
	const struct codemap_body *b = body_at(&map->bodies, idx);

	again_note(map, idx, b->load, b->open_past);
	life_set_begin(map, idx, time, seen, time);
	life_settle_in(map, idx, time, seen);
	map->stats.merged++;
}

void method_chain(struct codemap *map, uint32_t idx)
{
	struct codemap_body *b = body_at(&map->bodies, idx);
	uint64_t hash = map_method_hash(map, b->method_id, b->version);
	uint32_t i, n = 0;

	for (i = chains_first(&map->methods, hash); i; i = body_at(&map->bodies, i)->next)
		if (++n == CHAIN_MAX)
			return;
	chains_add(&map->methods, map, map_method_link, idx);
	b->chained = 1;
}

int body_make(struct codemap *map, const struct codemap_load *load, const struct life *life,
	      uint32_t module, bool seen, uint32_t *idxp)
{
	uint64_t stop = load->start + load->size;
	bool alive = life->how == END_NONE;
	uint32_t idx, id[3];
	struct codemap_body *b;
	int r, error = 0;

	if (map->bodies.count >= map->opts.max_bodies || bodies_full(&map->bodies))
		return CODEMAP_E_FULL;
	r = names_take(map, load, id);
	if (r)
		return r;
	r = -ENOMEM;
	idx = bodies_new(&map->bodies);
	if (!idx)
		goto fail_names;
	if (!map->opts.no_il_maps &&
	    chains_reserve(&map->methods, &map->methods_total, map, map_method_link) < 0)
		goto fail_body;
	if (!module)
		module = module_get(map, load->module_id, load->time, &error);
	if (error < 0)
		goto fail_body;
	map->stats.full += error > 0; /* then the body does without */
	b = body_at(&map->bodies, idx);
	b->start = load->start & (ADDRESS_END - 1);
	b->size = load->size;
	b->method_id = load->method_id & (ADDRESS_END - 1);
	b->version = load->version & VERSION_MAX;
	b->flags = load->flags & BODY_FLAGS_MASK;
	b->cold = !!(load->flags & BODY_FLAG_COLD);
	b->token = load->token;
	b->end = life->how & 3;
	b->module = module & 0x3ffff;
	body_name(b, id);
	if (seen && alive) {
		/* how far back is for the caller to say */
		b->load = load->time;
		b->open_past = 1;
	} else {
		body_set_load(&map->bodies, idx, load->time, seen, life->bound);
	}
	if (alive) {
		r = index_reserve(&map->live, load->start, stop);
		if (r)
			goto fail_body;
		index_add(&map->live, idx, load->start, stop);
		module_link(map, idx);
		count_live(map, b, true);
	} else {
		b->unload = life->end;
		r = past_add(map, idx);
		if (r)
			goto fail_body;
	}
	module_ref(map, module);
	if (!map->opts.no_il_maps && (alive || !(b->flags & BODY_FLAG_DYN)))
		method_chain(map, idx);
	change_note(map, idx, CODEMAP_CHANGE_ADDED);
	*idxp = idx;
	return 0;

fail_body:
	bodies_free(&map->bodies, idx);
fail_names:
	names_drop(map, id);
	return r;
}

/* The unload that waits for a body of that load, the first one after it; or 0. */
static uint32_t unload_waiting(const struct codemap *map, const struct codemap_load *load)
{
	uint32_t i, n = 0, best = 0;

	if (!map->unloads.used)
		return 0;
	for (i = wait_next(&map->unloads, load->start, 0); i && n < UNLOADS_MAX;
	     i = wait_next(&map->unloads, load->start, i), n++) {
		const struct waiting *w = wait_at(&map->unloads, i);

		if (w->sub == load->method_id && w->time > load->time &&
		    (!best || w->time < wait_at(&map->unloads, best)->time))
			best = i;
	}
	return best;
}

/* Announced, and replaced at the same moment. */
static bool is_momentary(const struct codemap_body *b)
{
	return b->end != END_NONE && b->unload == b->load;
}

int life_announce(struct codemap *map, const struct codemap_load *load, bool seen, uint32_t module,
		  uint32_t *idxp)
{
	uint64_t t = load->time, next_time = UINT64_MAX;
	struct life life = { .end = UINT64_MAX, .how = END_NONE, .bound = t };
	uint32_t i, next = 0, unload;
	int r;

	r = lives_gather(map, load->start, load->start + load->size, t);
	if (r) {
		map->stats.stale += r > 0;
		return r;
	}
	for (i = 0; i < map->touched.n; i++) {
		uint32_t idx = map->touched.v[i];
		const struct codemap_body *b = body_at(&map->bodies, idx);

		if (body_begin(&map->bodies, idx) <= t && life_is(map, b, load)) {
			*idxp = idx;
			return life_merge(map, idx, load, seen);
		}
		/* of one moment, those that were replaced at once came first */
		if (b->load > t &&
		    (b->load < next_time || (b->load == next_time && is_momentary(b)))) {
			next = idx;
			next_time = b->load;
		}
		/* the unload that ended it so far came after this load of the same method there */
		if (b->load <= t && b->end == END_UNLOADED && b->start == load->start &&
		    b->method_id == load->method_id)
			life.end = b->unload, life.how = END_UNLOADED;
	}

	unload = unload_waiting(map, load);
	if (unload && wait_at(&map->unloads, unload)->time < life.end)
		life.end = wait_at(&map->unloads, unload)->time, life.how = END_UNLOADED;
	if (!module) {
		module = module_find(map, load->module_id, t);
		if (module && map->modules.v[module].unload < life.end)
			life.end = map->modules.v[module].unload, life.how = END_IMPLIED;
	}
	if (next_time < life.end) {
		const struct codemap_body *b = body_at(&map->bodies, next);

		if (life_is(map, b, load)) {
			*idxp = next;
			life_begin_earlier(map, next, t, seen);
			il_join(map, next);
			return 0;
		}
		life.end = b->open_past ? loss_between(map, t, next_time) : next_time;
		life.how = life.end < next_time ? END_GAP : END_IMPLIED;
	}

	r = body_make(map, load, &life, module, seen, idxp);
	if (r)
		return r;
	life_settle_in(map, *idxp, t, seen);
	if (map->maps.used)
		il_join(map, *idxp);
	if (life.how != END_UNLOADED)
		return 0;
	/* by now it waits, wherever it was before */
	unload = unload_waiting(map, load);
	if (unload && wait_at(&map->unloads, unload)->time == life.end)
		wait_remove(&map->unloads, unload);
	return 0;
}

/* The earliest announcement in the ring that is after the end of its life; or 0. */
static uint32_t again_orphaned(const struct codemap *map)
{
	uint32_t i, best = 0;

	for (i = 1; i <= map->again.size; i++) {
		const struct waiting *w = wait_at(&map->again, i);

		if (w->used && w->time >= body_unload(body_at(&map->bodies, (uint32_t)w->key)) &&
		    (!best || w->time < wait_at(&map->again, best)->time))
			best = i;
	}
	return best;
}

static void announce_again(struct codemap *map, uint32_t idx, uint64_t time, bool seen)
{
	const struct codemap_body *b = body_at(&map->bodies, idx);
	struct codemap_load load = {
		.method_id = b->method_id,
		.module_id = map->modules.v[b->module].id,
		.start = b->start,
		.version = b->version,
		.time = time,
		.size = b->size,
		.token = b->token,
		.flags = b->flags | (b->cold ? BODY_FLAG_COLD : 0),
	};
	uint32_t module = map->modules.v[b->module].restored ? b->module : 0, again;

	load.ns = strings_text(&map->names, b->ns, &load.ns_len);
	load.name = strings_text(&map->names, b->name, &load.name_len);
	load.sig = strings_text(&map->names, b->sig, &load.sig_len);
	/* without memory this life stays unknown, as if lost */
	if (life_announce(map, &load, seen, module, &again) == 0 && b->il) {
		strings_share(&map->ils, b->il);
		il_give(map, again, b->il);
	}
}

/*
 * Lives that were announced again after what is now their end begin anew there. Such a
 * beginning can orphan later announcements only, so taking the earliest first ends after at
 * most one round for each.
 */
void lives_settle(struct codemap *map)
{
	uint32_t i;

	if (!map->unsettled)
		return;
	while ((i = again_orphaned(map))) {
		struct waiting w = *wait_at(&map->again, i);

		wait_remove(&map->again, i);
		announce_again(map, (uint32_t)w.key, w.time, w.sub);
	}
	map->unsettled = false;
}
