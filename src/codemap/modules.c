/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules: one record an incarnation.
 *
 * A module id is an address and comes again after an unload, so a record covers the time
 * until its unload, and what belongs to an id at a time belongs to the record with the
 * earliest unload after it. In its chain the records of one id stand newest first, so
 * the one that is loaded now is met at once.
 *
 * A record keeps a list of its live bodies (an unload costs as much as the module has) and a
 * count of all that refer to it. An unloaded record without bodies stays for a while,
 * for loads that were overtaken by the unload.
 *
 * Bodies that are restored know their module's id and path but not when it was unloaded: for
 * them there is one record an id and path, found by these, invisible to events, and gone with
 * its last body.
 */
#include "codemap/map.h"

#include <errno.h>
#include <string.h>

/* Incarnations of one id that are still found by time; older ones only keep their bodies. */
#define CHAINED_MAX 64u

static uint32_t *module_chain_link(void *owner, uint32_t m, uint64_t *hashp)
{
	struct modules *ms = owner;

	*hashp = hash_u64(ms->seed, ms->v[m].id);
	return &ms->v[m].next;
}

static uint64_t restored_hash(const struct modules *ms, uint64_t id, uint32_t path, bool freeable)
{
	return hash_u64(hash_u64(ms->seed, id), (uint64_t)path << 1 | freeable);
}

static uint32_t *restored_chain_link(void *owner, uint32_t m, uint64_t *hashp)
{
	struct modules *ms = owner;

	*hashp = restored_hash(ms, ms->v[m].id, ms->v[m].path, ms->v[m].freeable);
	return &ms->v[m].next;
}

void modules_init(struct modules *ms)
{
	*ms = (struct modules){ .seed = hash_seed() };
}

void modules_deinit(struct modules *ms)
{
	mem_free(&ms->total, ms->v);
	mem_free(&ms->total, ms->collectible);
	mem_free(&ms->total, ms->chains.heads);
	mem_free(&ms->total, ms->restored.heads);
	*ms = (struct modules){ 0 };
}

/* Where an id is, or belongs. */
static uint32_t collectible_find(const struct modules *ms, uint64_t assembly_id)
{
	uint32_t lo = 0, hi = ms->n_collectible;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (ms->collectible[mid] < assembly_id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

bool modules_is_collectible(const struct modules *ms, uint64_t assembly_id)
{
	uint32_t i = collectible_find(ms, assembly_id);

	return i < ms->n_collectible && ms->collectible[i] == assembly_id;
}

bool module_is_freeable(const struct modules *ms, uint32_t m)
{
	return ms->v[m].freeable || modules_is_collectible(ms, ms->v[m].assembly_id);
}

int codemap_collectible(struct codemap *map, uint64_t assembly_id)
{
	struct modules *ms = &map->modules;
	uint32_t i = collectible_find(ms, assembly_id);

	if (modules_is_collectible(ms, assembly_id))
		return 0;
	if (ms->n_collectible >= CAP_MODULES)
		return CODEMAP_E_FULL;
	if (ms->n_collectible == ms->collectible_size) {
		uint32_t size = ms->collectible_size * 2 + 16;
		uint64_t *ids = mem_realloc(&ms->total, ms->collectible, size * sizeof(*ids));

		if (!ids)
			return -ENOMEM;
		ms->collectible = ids;
		ms->collectible_size = size;
	}
	memmove(&ms->collectible[i + 1], &ms->collectible[i],
		(ms->n_collectible - i) * sizeof(*ms->collectible));
	ms->collectible[i] = assembly_id;
	ms->n_collectible++;
	map->changes.collectible = map->changes.on;
	return 0;
}

static void module_free(struct codemap *map, uint32_t m)
{
	struct modules *ms = &map->modules;

	if (ms->v[m].chained)
		chains_remove(&ms->chains, ms, module_chain_link, m);
	if (ms->v[m].restored)
		chains_remove(&ms->restored, ms, restored_chain_link, m);
	strings_drop(&map->names, ms->v[m].path);
	ms->v[m] = (struct module){ .next = ms->free };
	ms->free = m;
	ms->count--;
}

static void module_maybe_free(struct codemap *map, uint32_t m)
{
	const struct module *mod = &map->modules.v[m];

	if (mod->unload != UINT64_MAX && !mod->refs && !mod->queued)
		module_free(map, m);
}

/* Keeps an unloaded record among the last so many. */
static void module_gone(struct codemap *map, uint32_t m)
{
	struct modules *ms = &map->modules;
	uint32_t at = (ms->gone_head + ms->gone_n) % MODULE_GONE_MAX;

	ms->any_unloaded = true;
	if (ms->v[m].queued)
		return;
	if (ms->gone_n == MODULE_GONE_MAX) {
		uint32_t old = ms->gone[at];

		ms->gone_head = (ms->gone_head + 1) % MODULE_GONE_MAX;
		ms->gone_n--;
		ms->v[old].queued = false;
		module_maybe_free(map, old);
	}
	ms->gone[at] = m;
	ms->gone_n++;
	ms->v[m].queued = true;
}

/* Into its chain, behind those of the same id that were unloaded later. */
static void module_chain(struct modules *ms, uint32_t m)
{
	uint64_t hash;
	uint32_t *next = module_chain_link(ms, m, &hash), *from = chains_head(&ms->chains, hash);
	const struct module *mod = &ms->v[m];

	while (*from && (ms->v[*from].id != mod->id || ms->v[*from].unload > mod->unload))
		from = &ms->v[*from].next;
	*next = *from;
	*from = m;
	ms->chains.count++;
}

/* A record for one of the chains, in which there is room for it then; or 0. */
static uint32_t module_alloc(struct modules *ms, struct chains *chains, chains_link_fn *link,
			     int *errorp)
{
	uint32_t m;

	*errorp = -ENOMEM;
	if (ms->count >= CAP_MODULES - 1) {
		*errorp = CODEMAP_E_FULL;
		return 0;
	}
	if (chains_reserve(chains, &ms->total, ms, link) < 0)
		return 0;
	if (!ms->free && ms->n == ms->size) {
		uint32_t size = ms->size + ms->size / 2 + 16;
		struct module *v = mem_realloc(&ms->total, ms->v, size * sizeof(*v));

		if (!v)
			return 0;
		ms->v = v;
		ms->size = size;
		if (!ms->n)
			ms->v[ms->n++] = (struct module){ 0 };
	}
	m = ms->free;
	if (m)
		ms->free = ms->v[m].next;
	else
		m = ms->n++;
	ms->count++;
	*errorp = 0;
	return m;
}

static uint32_t module_new(struct codemap *map, uint64_t id, uint64_t unload, int *errorp)
{
	struct modules *ms = &map->modules;
	uint32_t m = module_alloc(ms, &ms->chains, module_chain_link, errorp), i, n = 0;

	if (!m)
		return 0;
	ms->v[m] = (struct module){ .id = id, .unload = unload, .used = true, .chained = true };
	module_chain(ms, m);
	for (i = chains_first(&ms->chains, hash_u64(ms->seed, id)); i; i = ms->v[i].next) {
		if (ms->v[i].id != id || ++n <= CHAINED_MAX || i == m)
			continue;
		chains_remove(&ms->chains, ms, module_chain_link, i);
		ms->v[i].chained = false;
		break;
	}
	return m;
}

uint32_t module_restored(struct codemap *map, const struct codemap_info *info, int *errorp)
{
	bool freeable = info->freeable && !(info->flags & BODY_FLAG_DYNAMIC);
	struct modules *ms = &map->modules;
	uint32_t m, path;

	*errorp = strings_take(&map->names, info->module_path,
			       MIN(info->module_path_len, CAP_NAME_LENGTH), &path);
	if (*errorp)
		return 0;
	m = chains_first(&ms->restored, restored_hash(ms, info->module_id, path, freeable));
	while (m && (ms->v[m].id != info->module_id || ms->v[m].path != path ||
		     ms->v[m].freeable != freeable))
		m = ms->v[m].next;
	if (m) {
		strings_drop(&map->names, path);
		return m;
	}
	m = module_alloc(ms, &ms->restored, restored_chain_link, errorp);
	if (!m) {
		strings_drop(&map->names, path);
		return 0;
	}
	ms->v[m] = (struct module){
		.id = info->module_id,
		.path = path,
		.used = true,
		.restored = true,
		.freeable = freeable,
	};
	chains_add(&ms->restored, ms, restored_chain_link, m);
	return m;
}

uint32_t module_find(const struct codemap *map, uint64_t id, uint64_t time)
{
	const struct modules *ms = &map->modules;
	uint32_t m = ms->last, best = 0;

	if (!ms->any_unloaded && ms->n && ms->v[m].used && ms->v[m].id == id)
		return m;
	for (m = chains_first(&ms->chains, hash_u64(ms->seed, id)); m; m = ms->v[m].next) {
		if (ms->v[m].id != id)
			continue;
		if (ms->v[m].unload <= time)
			break;
		best = m;
	}
	return best;
}

uint32_t module_get(struct codemap *map, uint64_t id, uint64_t time, int *errorp)
{
	uint32_t m = module_find(map, id, time);

	*errorp = 0;
	return m ? m : module_new(map, id, UINT64_MAX, errorp);
}

uint64_t module_last_unload(const struct codemap *map, uint64_t id, uint64_t time)
{
	const struct modules *ms = &map->modules;
	uint32_t m;

	for (m = chains_first(&ms->chains, hash_u64(ms->seed, id)); m; m = ms->v[m].next)
		if (ms->v[m].id == id && ms->v[m].unload <= time)
			return ms->v[m].unload;
	return 0;
}

void module_ref(struct codemap *map, uint32_t m)
{
	if (!m)
		return;
	map->modules.v[m].refs++;
	if (!map->modules.v[m].restored)
		map->modules.last = m;
}

void module_unref(struct codemap *map, uint32_t m)
{
	if (!m)
		return;
	map->modules.v[m].refs--;
	module_maybe_free(map, m);
}

void module_link(struct codemap *map, uint32_t idx)
{
	struct codemap_body *b = body_at(&map->bodies, idx);
	struct module *mod;

	b->in_module.prev = b->in_module.next = 0;
	if (!b->module)
		return;
	mod = &map->modules.v[b->module];
	b->in_module.next = mod->live;
	if (mod->live)
		body_at(&map->bodies, mod->live)->in_module.prev = idx;
	mod->live = idx;
}

void module_unlink(struct codemap *map, uint32_t idx)
{
	const struct codemap_body *b = body_at(&map->bodies, idx);

	if (!b->module)
		return;
	if (b->in_module.prev)
		body_at(&map->bodies, b->in_module.prev)->in_module.next = b->in_module.next;
	else
		map->modules.v[b->module].live = b->in_module.next;
	if (b->in_module.next)
		body_at(&map->bodies, b->in_module.next)->in_module.prev = b->in_module.prev;
}

/* Bodies announced at or after time belong to the incarnation that followed. */
static int module_split(struct codemap *map, uint32_t m, uint64_t time)
{
	uint32_t idx, next, later = 0;
	int error;

	for (idx = map->modules.v[m].live; idx; idx = next) {
		struct codemap_body *b = body_at(&map->bodies, idx);

		next = b->in_module.next;
		if (b->load < time)
			continue;
		if (!later) {
			later = module_new(map, map->modules.v[m].id, map->modules.v[m].unload,
					   &error);
			if (!later)
				return error;
			map->modules.v[later].assembly_id = map->modules.v[m].assembly_id;
			map->modules.v[later].path = map->modules.v[m].path;
			map->modules.v[later].named = map->modules.v[m].named;
			strings_share(&map->names, map->modules.v[m].path);
		}
		module_unlink(map, idx);
		b->module = later & 0x3ffff;
		map->modules.v[later].refs++;
		map->modules.v[m].refs--;
		module_link(map, idx);
	}
	if (later && map->modules.v[m].altered)
		change_module(map, later);
	return 0;
}

int module_end(struct codemap *map, uint64_t id, uint64_t time, uint32_t *endedp)
{
	struct modules *ms = &map->modules;
	uint32_t m, old;
	int error;

	m = module_get(map, id, time, &error);
	if (!m)
		return error;
	if (ms->v[m].unload != UINT64_MAX) {
		/* an earlier incarnation than all we knew: its bodies are retired already */
		old = module_new(map, id, time, &error);
		if (!old)
			return error;
		module_gone(map, old);
		*endedp = 0;
		return 0;
	}
	error = module_split(map, m, time);
	if (error)
		return error;
	chains_remove(&ms->chains, ms, module_chain_link, m);
	ms->v[m].unload = time;
	module_chain(ms, m);
	module_gone(map, m);
	*endedp = m;
	return 0;
}
