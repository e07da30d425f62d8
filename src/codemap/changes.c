/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of a map: what changed in it, and a map put together again from what was told of another.
 *
 * A slot is the index of a body's record. A map that is tracked has a word for each slot: what
 * happened to its body since changes were taken last, and the slot that was noted next. So the
 * noted slots are a queue through the words: a note costs the same whatever the number of bodies
 * or of notes, each slot stands in the queue once, and the one that waits longest goes first. The
 * copy reads the body itself when it takes the note, so a note need not say more than that there
 * is something to read, and none is wrong for being one too many.
 *
 * What a body shows of its module is noted for the module, not for its bodies: a stream that gives
 * a module of a million methods a new path with every event would make each event a walk.
 * Whoever takes changes walks once for all that happened since, over the live bodies of the modules
 * and, if they have others, over what is retired. Retired bodies are noted like any other: a copy
 * that kept the old path would keep it for good.
 *
 * Where there is no memory for a note, all of them are given up: the copy begins anew. No event
 * fails for it.
 *
 * A restored body is put where it was, without the rules for events: they would have to be told
 * in the right order, and know less (what ended an open past's bound, lives of no length).
 * But what is restored may come from anywhere. So a life that meets another one is an event like
 * any other after all: its announcement and its unload.
 */
#include "codemap/map.h"

#include <errno.h>
#include <string.h>

/* -- Notes -------------------------------------------------------------------------------- */

#define WHAT_SHIFT 28
#define NEXT_MASK  ((1u << BODY_INDEX_BITS) - 1)

_Static_assert(BODY_INDEX_BITS <= WHAT_SHIFT, "a note is one word");

static bool notes_reserve(struct changes *c, uint32_t n)
{
	uint32_t size = MAX(n, c->size + c->size / 4), *notes;

	if (n <= c->size)
		return true;
	notes = mem_realloc(&c->total, c->notes, size * sizeof(*notes));
	if (!notes)
		return false;
	memset(notes + c->size, 0, (size - c->size) * sizeof(*notes));
	c->notes = notes;
	c->size = size;
	return true;
}

void change_add(struct codemap *map, uint32_t idx, unsigned int what)
{
	struct changes *c = &map->changes;

	if (c->lost)
		return;
	if (!notes_reserve(c, (idx | (CHUNK_BODIES - 1)) + 1)) {
		c->lost = true;
		return;
	}
	if (!c->notes[idx]) {
		if (c->last)
			c->notes[c->last] |= idx;
		else
			c->first = idx;
		c->last = idx;
	}
	c->notes[idx] |= (uint32_t)what << WHAT_SHIFT;
}

static uint32_t note_take(struct changes *c, unsigned int *whatp)
{
	uint32_t slot = c->first;

	*whatp = c->notes[slot] >> WHAT_SHIFT;
	c->first = c->notes[slot] & NEXT_MASK;
	c->notes[slot] = 0;
	if (!c->first)
		c->last = 0;
	return slot;
}

void change_module(struct codemap *map, uint32_t m)
{
	struct changes *c = &map->changes;
	struct module *mod = &map->modules.v[m];

	if (!c->on || !mod->refs || mod->altered)
		return;
	/* numbers of modules that have gone since stay in the list */
	if (c->modules.n >= CAP_MODULES || list_add(&c->modules, m) < 0)
		c->lost = true;
	else
		mod->altered = true;
}

/* The modules of the assemblies that turned out to be collectible, and of those that had before. */
static void note_collectible(struct codemap *map)
{
	uint32_t m;

	for (m = 1; m < map->modules.n; m++)
		if (map->modules.v[m].used &&
		    modules_is_collectible(&map->modules, map->modules.v[m].assembly_id))
			change_module(map, m);
	map->changes.collectible = false;
}

static bool note_retired(struct codemap *map, uint32_t idx, void *arg)
{
	(void)arg;
	if (map->modules.v[body_at(&map->bodies, idx)->module].altered)
		change_note(map, idx, CODEMAP_CHANGE_ALTERED);
	return true;
}

static void note_modules(struct codemap *map)
{
	struct changes *c = &map->changes;
	bool retired = false;
	uint32_t i, idx, n;

	if (c->collectible)
		note_collectible(map);
	for (i = 0; i < c->modules.n; i++) {
		const struct module *mod = &map->modules.v[c->modules.v[i]];

		if (!mod->altered)
			continue;
		for (n = 0, idx = mod->live; idx; n++) {
			change_note(map, idx, CODEMAP_CHANGE_ALTERED);
			idx = body_at(&map->bodies, idx)->in_module.next;
		}
		retired |= mod->refs > n;
	}
	if (retired)
		past_walk_back(map, note_retired, NULL);
	for (i = 0; i < c->modules.n; i++)
		map->modules.v[c->modules.v[i]].altered = false;
	c->modules.n = 0;
}

static void changes_clear(struct codemap *map)
{
	struct changes *c = &map->changes;
	unsigned int what;
	uint32_t i;

	while (c->first)
		note_take(c, &what);
	for (i = 0; i < c->modules.n; i++)
		map->modules.v[c->modules.v[i]].altered = false;
	c->modules.n = 0;
	c->lost = c->collectible = false;
}

void changes_deinit(struct codemap *map)
{
	struct changes *c = &map->changes;

	mem_free(&c->total, c->notes);
	mem_free(&c->modules.total, c->modules.v);
	*c = (struct changes){ 0 };
}

int codemap_track(struct codemap *map, bool on)
{
	if (on == map->changes.on)
		return 0;
	if (!on) {
		changes_clear(map);
		changes_deinit(map);
		return 0;
	}
	if (!notes_reserve(&map->changes, codemap_n_slots(map)))
		return -ENOMEM;
	map->changes.on = true;
	return 0;
}

int codemap_take_changes(struct codemap *map, size_t max, codemap_change_fn fn, void *data,
			 bool *morep, bool *resyncp)
{
	struct changes *c = &map->changes;
	int r = 0;

	note_modules(map);
	*resyncp = c->lost;
	if (c->lost)
		changes_clear(map);
	while (!r && c->first && max--) {
		unsigned int what;
		uint32_t slot = note_take(c, &what);

		r = fn(data, slot, what, codemap_slot(map, slot));
	}
	*morep = c->first;
	return r;
}

uint32_t codemap_n_slots(const struct codemap *map)
{
	return map->bodies.n_chunks << CHUNK_SHIFT;
}

const struct codemap_body *codemap_slot(const struct codemap *map, uint32_t slot)
{
	return bodies_has(&map->bodies, slot) ? body_at(&map->bodies, slot) : NULL;
}

/* -- What lookups need beside bodies ------------------------------------------------------ */

void codemap_set_begin(struct codemap *map, uint64_t time)
{
	if (map->bodies.count)
		return;
	map->bodies.begin = MAX(map->bodies.begin, time);
	codemap_set_horizon(map, time);
}

uint64_t codemap_horizon(const struct codemap *map)
{
	return map->horizon;
}

void codemap_set_horizon(struct codemap *map, uint64_t time)
{
	map->horizon = MAX(map->horizon, time);
}

bool codemap_gap_at(const struct codemap *map, size_t i, uint64_t *fromp, uint64_t *top)
{
	if (i >= map->n_gaps)
		return false;
	*fromp = map->gaps[i].from;
	*top = map->gaps[i].to;
	return true;
}

bool codemap_is_incomplete(const struct codemap *map)
{
	return map->incomplete;
}

void codemap_set_incomplete(struct codemap *map)
{
	map->incomplete = true;
}

/* -- Restoring ---------------------------------------------------------------------------- */

/* What a body that is restored has been told to be. */
struct restored {
	const struct codemap_load *load; /* its announcement */
	uint64_t begin, unload;
	uint32_t module;
	bool open_past;
};

/* The very same body, if it is there already; or 0. */
static uint32_t restored_find(const struct codemap *map, const struct restored *b)
{
	struct past_hint hint = { 0 };
	uint32_t idx = map_find(map, b->load->start, b->begin, &hint);
	const struct codemap_body *body = idx ? body_at(&map->bodies, idx) : NULL;

	return body && body->load == b->load->time && body->open_past == b->open_past &&
			       body_unload(body) == b->unload &&
			       body_begin(&map->bodies, idx) == b->begin &&
			       life_is(map, body, b->load)
		       ? idx
		       : 0;
}

/* Does it overlap with another life? Returns 0, 1 or -ENOMEM. */
static int restored_meets(struct codemap *map, const struct restored *b)
{
	uint64_t start = b->load->start, stop = start + b->load->size;
	uint32_t i;
	int r;

	map->touched.n = 0;
	r = index_gather(&map->live, start, stop, &map->touched);
	if (r < 0)
		return r;
	for (i = 0; i < map->touched.n; i++)
		if (body_begin(&map->bodies, map->touched.v[i]) < b->unload)
			return 1;
	return b->begin < map->past.newest_end && past_meets(map, start, stop, b->begin, b->unload);
}

/* In its place, where nothing else is. */
static int restored_place(struct codemap *map, const struct restored *b, uint32_t *idxp)
{
	struct life life = {
		.end = b->unload,
		.how = b->unload == UINT64_MAX ? END_NONE : END_IMPLIED,
		.bound = b->begin,
	};
	int r = body_make(map, b->load, &life, b->module, b->open_past, idxp);

	if (!r && b->open_past)
		life_set_begin(map, *idxp, b->load->time, true, b->begin);
	return r;
}

static void restored_give_il(struct codemap *map, uint32_t idx, uint32_t il)
{
	if (!il)
		return;
	strings_share(&map->ils, il);
	il_give(map, idx, il);
}

/* Among others that it contradicts. It may be gone at once: *idxp is 0 then. */
static int restored_announce(struct codemap *map, const struct restored *b, uint32_t il,
			     uint32_t *idxp)
{
	const struct codemap_body *body;
	int r;

	*idxp = restored_find(map, b);
	if (*idxp) {
		restored_give_il(map, *idxp, il);
		return 0;
	}
	r = life_announce(map, b->load, b->open_past, b->module, idxp);
	if (r)
		return r;
	restored_give_il(map, *idxp, il);
	lives_settle(map);
	if (b->unload != UINT64_MAX)
		map_unload(map, b->load->method_id, b->load->start, b->unload);
	/* for want of memory, and another may have its slot */
	body = codemap_slot(map, *idxp);
	if (!body || body->start != b->load->start || body->method_id != b->load->method_id)
		*idxp = 0;
	return 0;
}

/* Fills in *b. False if there can be no such body. */
static bool restored_check(const struct codemap *map, const struct codemap_info *info,
			   const struct codemap_load **load, struct codemap_load *cut,
			   struct restored *b)
{
	if (info->load > info->announced || (!info->open_past && info->load < info->announced) ||
	    info->announced > info->unload || !load_check(map, load, cut))
		return false;
	b->load = *load;
	b->begin = map_time(map, info->load);
	b->unload = map_time(map, info->unload);
	b->open_past = info->open_past;
	return true;
}

static int restored_add(struct codemap *map, const struct codemap_info *info,
			const struct restored *told, uint32_t il, uint32_t *idxp)
{
	struct restored b = *told;
	int r, error;

	b.module = module_restored(map, info, &error);
	if (error < 0)
		return error;
	map->stats.full += error > 0; /* then the body does without */
	/* it would go with the last of its bodies, and may get none now */
	module_ref(map, b.module);
	r = restored_meets(map, &b);
	if (r > 0) {
		r = restored_announce(map, &b, il, idxp);
	} else if (!r) {
		r = restored_place(map, &b, idxp);
		if (!r)
			restored_give_il(map, *idxp, il);
	}
	module_unref(map, b.module);
	return r;
}

int codemap_restore(struct codemap *map, const struct codemap_info *info,
		    const struct codemap_il *il, size_t n_il, struct codemap_body **bodyp)
{
	struct codemap_load told = {
		.method_id = info->method_id,
		.module_id = info->module_id,
		.start = info->start,
		.version = info->version,
		.time = info->announced,
		.size = info->size,
		.token = info->token,
		.flags = info->flags,
		.ns = info->name.ns,
		.name = info->name.name,
		.sig = info->name.sig,
		.ns_len = info->name.ns_len,
		.name_len = info->name.name_len,
		.sig_len = info->name.sig_len,
	}, cut;
	const struct codemap_load *load = &told;
	struct restored b = { 0 };
	uint32_t idx = 0, id = 0;
	int r;

	if (bodyp)
		*bodyp = NULL;
	map->stats.loads++;
	if (!restored_check(map, info, &load, &cut, &b)) {
		map->stats.invalid++;
		return CODEMAP_E_INVALID;
	}
	if (il && n_il) {
		r = il_take(map, il, n_il, &id);
		if (r < 0)
			return r;
	}
	r = restored_add(map, info, &b, id, &idx);
	strings_drop(&map->ils, id);
	if (r == CODEMAP_E_FULL) {
		map->stats.full++;
		map->incomplete = true;
	}
	if (r)
		return r;
	if (bodyp && idx)
		*bodyp = body_at(&map->bodies, idx);
	return 0;
}
