/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One stream into a code map: see feed.h for what is decided here.
 *
 * The thread table for 3.1's IL maps is small and direct-mapped: two threads that fall into one
 * slot cost a line number, nothing else.
 */
#include "target/feed.h"

#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "base/hash.h"
#include "clr/clr.h"

#define FEED_THREADS 256u

struct feed_beside {
	uint64_t thread;
	uint64_t method_id, version, time;
};

struct feed {
	struct codemap *map;
	struct loader *loader; /* may be NULL */
	struct nettrace *nt;
	struct clr_decoder clr;
	struct feed_options opts;
	struct feed_stats stats;
	uint64_t arrival_ns;
	uint64_t promised_ns;
	uint64_t frequency;   /* ticks a second of the stream's clock */
	uint64_t core_module; /* System.Private.CoreLib's, 0 until known */
	void (*lost_fn)(void *data, uint64_t n, uint64_t from, uint64_t to);
	void *lost_data;
	void (*load_fn)(void *data, const struct codemap_body *body);
	void *load_data;
	/* 3.1 only */
	struct feed_beside beside[FEED_THREADS];
	struct codemap_il *waiting; /* a rundown map waits for the method record after it */
	size_t n_waiting;
	uint64_t waiting_method;
	struct codemap_il *entries; /* scratch, CAP_IL_ENTRIES */
};

static uint64_t feed_time(const struct feed *feed, uint64_t ticks)
{
	if (feed->frequency != 1000000000u && feed->frequency)
		ticks = (uint64_t)((__uint128_t)ticks * 1000000000u / feed->frequency);
	return ticks - (uint64_t)feed->opts.clock_offset_ns;
}

static int feed_header(void *data, const struct nettrace_header *header)
{
	struct feed *feed = data;

	feed->frequency = header->qpc_frequency;
	return 0;
}

static int feed_metadata(void *data UNUSED, struct nettrace_metadata *metadata)
{
	metadata->user = clr_layout_find(metadata->provider, metadata->event_id);
	return 0;
}

static int feed_lost(void *data, uint64_t n, uint64_t from, uint64_t to)
{
	struct feed *feed = data;

	if (feed->lost_fn)
		feed->lost_fn(feed->lost_data, n, from ? feed_time(feed, from) : 0,
			      feed_time(feed, to));
	return 0;
}

/* -- methods -------------------------------------------------------------------------- */

static struct feed_beside *feed_beside(struct feed *feed, uint64_t thread)
{
	return &feed->beside[hash_u64(1, thread) % FEED_THREADS];
}

static int feed_method(struct feed *feed, const struct clr_event *ev,
		       const struct nettrace_event *nev, uint64_t time)
{
	const struct clr_method *m = &ev->method;
	struct codemap_load load = {
		.method_id = m->method_id,
		.module_id = m->module_id,
		.start = m->start,
		.version = m->version,
		.time = time,
		.size = m->size,
		.token = m->token,
		.flags = m->flags,
		.ns = m->ns.s,
		.name = m->name.s,
		.sig = m->sig.s,
		.ns_len = m->ns.len,
		.name_len = m->name.len,
		.sig_len = m->sig.len,
	};
	struct feed_beside *beside = feed_beside(feed, nev->thread_id);
	struct codemap_body *body = NULL;
	int r;

	*beside = (struct feed_beside){ nev->thread_id, m->method_id, m->version, time };
	if (ev->kind == CLR_METHOD_RUNDOWN) {
		feed->stats.rundown_methods++;
		r = codemap_rundown(feed->map, &load, NULL);
	} else {
		feed->stats.loads++;
		r = codemap_load(feed->map, &load, &body);
	}
	if (r < 0)
		return r;
	if (body && feed->load_fn)
		feed->load_fn(feed->load_data, body);
	if (r == CODEMAP_E_INVALID || r == CODEMAP_E_FULL)
		feed->stats.refused++;
	if (feed->n_waiting && feed->waiting_method == m->method_id) {
		r = codemap_il_map(feed->map, m->method_id, m->version, time, feed->waiting,
				   feed->n_waiting);
		feed->n_waiting = 0;
		if (r < 0)
			return r;
	}
	return 0;
}

/* Only an exit unloads what cannot be unloaded. */
static bool is_exit(const struct feed *feed, uint64_t module_id, uint64_t time)
{
	return module_id && (module_id == feed->core_module ||
			     (feed->loader && loader_is_permanent(feed->loader, module_id, time)));
}

static int feed_unload(struct feed *feed, const struct clr_event *ev, uint64_t time)
{
	const struct clr_method *m = &ev->method;
	int r;

	if (!(m->flags & CLR_METHOD_DYNAMIC) && is_exit(feed, m->module_id, time))
		feed->stats.exiting = true;
	if (feed->stats.exiting)
		return 0;
	feed->stats.unloads++;
	r = codemap_unload(feed->map, m->method_id, m->start, time);
	return r < 0 ? r : 0;
}

static int feed_il_map(struct feed *feed, const struct clr_event *ev,
		       const struct nettrace_event *nev, uint64_t time)
{
	const struct clr_il_map *m = &ev->il_map;
	uint64_t version = m->version;
	struct reader il, native;
	size_t i;
	int r;

	if (!feed->opts.il_maps)
		return 0;
	feed->stats.il_maps++;
	reader_init(&il, m->il_offsets, 4u * (size_t)m->n);
	reader_init(&native, m->native_offsets, 4u * (size_t)m->n);
	for (i = 0; i < m->n; i++)
		feed->entries[i] = (struct codemap_il){ reader_u32(&native), reader_u32(&il) };
	if (m->adjacent && ev->rundown) {
		memcpy(feed->waiting, feed->entries, m->n * sizeof(*feed->entries));
		feed->n_waiting = m->n;
		feed->waiting_method = m->method_id;
		return 0;
	}
	if (m->adjacent) {
		const struct feed_beside *beside = feed_beside(feed, nev->thread_id);

		if (beside->thread != nev->thread_id || beside->method_id != m->method_id)
			return 0;
		version = beside->version;
	}
	r = codemap_il_map(feed->map, m->method_id, version, time, feed->entries, m->n);
	return r < 0 ? r : 0;
}

static bool feed_is_core(const struct clr_string *path)
{
	static const char core[] = "System.Private.CoreLib.dll";
	size_t n = sizeof(core) - 1;

	return path->len >= n && memcmp(path->s + path->len - n, core, n) == 0;
}

static int feed_module(struct feed *feed, const struct clr_event *ev, uint64_t time)
{
	const struct clr_module *m = &ev->module;
	int r;

	feed->stats.modules++;
	if (ev->phase == CLR_PHASE_UNLOAD) {
		if (feed_is_core(&m->il_path) || is_exit(feed, m->module_id, time))
			feed->stats.exiting = true;
		if (feed->stats.exiting)
			return 0;
		r = codemap_module_unload(feed->map, m->module_id, time);
		return r < 0 ? r : 0;
	}
	if (ev->rundown && ev->version >= 3)
		feed->stats.native_aot = true;
	if (feed_is_core(&m->il_path))
		feed->core_module = m->module_id;
	r = codemap_module(feed->map, m->module_id, m->assembly_id, m->il_path.s, m->il_path.len,
			   time);
	return r < 0 ? r : 0;
}

/* Live ones need no mark: their methods' loads and unloads are told. */
static int feed_assembly(struct feed *feed, const struct clr_event *ev)
{
	int r = 0;

	if (ev->rundown && (ev->assembly.flags & CLR_ASSEMBLY_COLLECTIBLE))
		r = codemap_collectible(feed->map, ev->assembly.assembly_id);
	return MIN(r, 0);
}

/* Of an exit nothing is believed, as with methods. */
static int feed_loader(struct feed *feed, const struct clr_event *ev, uint64_t time)
{
	int r;

	if (!feed->loader || (ev->phase == CLR_PHASE_UNLOAD && feed->stats.exiting))
		return 0;
	r = loader_event(feed->loader, ev, time);
	if (r == LOADER_E_FULL)
		feed->stats.refused++;
	return MIN(r, 0);
}

static int feed_event(void *data, const struct nettrace_event *nev)
{
	struct feed *feed = data;
	const struct clr_layout *layout = nev->metadata->user;
	uint64_t time = feed_time(feed, nev->timestamp);
	struct clr_event ev;
	int r;

	feed->stats.newest_ns = MAX(feed->stats.newest_ns, time);
	feed->stats.late += time < feed->promised_ns;
	if (feed->arrival_ns > time)
		feed->stats.max_delay_ns = MAX(feed->stats.max_delay_ns, feed->arrival_ns - time);
	if (!layout)
		return 0;
	switch (clr_layout_kind(layout)) {
	case CLR_METHOD_LOAD:
	case CLR_METHOD_UNLOAD:
	case CLR_METHOD_RUNDOWN:
	case CLR_IL_MAP:
	case CLR_MODULE:
	case CLR_ASSEMBLY:
	case CLR_RUNDOWN_MARK: break;
	case CLR_APP_DOMAIN:
		if (feed->loader)
			break;
		return 0;
	default: return 0; /* nothing to learn for the map: not even decoded */
	}
	r = clr_decode(&feed->clr, layout, nev->metadata->version, nev->payload, nev->payload_size,
		       &ev);
	if (r < 0)
		return r;
	if (r) {
		feed->stats.short_payloads++;
		return 0;
	}
	switch (ev.kind) {
	case CLR_METHOD_LOAD:
	case CLR_METHOD_RUNDOWN: return feed_method(feed, &ev, nev, time);
	case CLR_METHOD_UNLOAD: return feed_unload(feed, &ev, time);
	case CLR_IL_MAP: return feed_il_map(feed, &ev, nev, time);
	case CLR_MODULE:
		r = feed_module(feed, &ev, time);
		return r < 0 ? r : feed_loader(feed, &ev, time);
	case CLR_ASSEMBLY:
		r = feed_assembly(feed, &ev);
		return r < 0 ? r : feed_loader(feed, &ev, time);
	case CLR_APP_DOMAIN: return feed_loader(feed, &ev, time);
	case CLR_RUNDOWN_MARK:
		if (ev.id == 146)
			feed->stats.rundown_complete_mark = true;
		return 0;
	default: return 0;
	}
}

/* -- the feed ------------------------------------------------------------------------- */

int feed_new(struct feed **outp, struct codemap *map, const struct feed_options *opts)
{
	static const struct nettrace_callbacks callbacks = {
		.header = feed_header,
		.metadata = feed_metadata,
		.event = feed_event,
		.lost = feed_lost,
	};
	_cleanup_(feed_freep) struct feed *feed = calloc(1, sizeof(*feed));
	int r;

	if (!feed)
		return -ENOMEM;
	feed->map = map;
	feed->opts = *opts;
	feed->frequency = 1000000000u;
	clr_decoder_init(&feed->clr);
	if (opts->il_maps) {
		feed->entries = malloc(CAP_IL_ENTRIES * sizeof(*feed->entries));
		feed->waiting = malloc(CAP_IL_ENTRIES * sizeof(*feed->waiting));
		if (!feed->entries || !feed->waiting)
			return -ENOMEM;
	}
	r = nettrace_new(&feed->nt, &callbacks, feed);
	if (r < 0)
		return r;
	*outp = TAKE_PTR(feed);
	return 0;
}

void feed_free(struct feed *feed)
{
	if (!feed)
		return;
	nettrace_free(feed->nt);
	clr_decoder_deinit(&feed->clr);
	free(feed->entries);
	free(feed->waiting);
	free(feed);
}

int feed_bytes(struct feed *feed, const void *bytes, size_t n, uint64_t arrival_ns)
{
	feed->arrival_ns = arrival_ns;
	return nettrace_feed(feed->nt, bytes, n);
}

void feed_promise(struct feed *feed, uint64_t time)
{
	feed->promised_ns = time;
}

void feed_on_lost(struct feed *feed, void (*fn)(void *data, uint64_t n, uint64_t from, uint64_t to),
		  void *data)
{
	feed->lost_fn = fn;
	feed->lost_data = data;
}

void feed_on_load(struct feed *feed, void (*fn)(void *data, const struct codemap_body *body),
		  void *data)
{
	feed->load_fn = fn;
	feed->load_data = data;
}

void feed_set_loader(struct feed *feed, struct loader *loader)
{
	feed->loader = loader;
}

struct nettrace *feed_nettrace(struct feed *feed)
{
	return feed->nt;
}

const struct feed_stats *feed_get_stats(const struct feed *feed)
{
	return &feed->stats;
}
