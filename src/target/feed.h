/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * feed: one trace stream into a code map.
 *
 * Bytes of a stream go in; the map learns of loads, unloads, modules and IL maps. It is the one
 * place that knows which events mean what to the map, and the quirks of runtimes:
 *  - a rundown's method record says "alive at that time", not "loaded then";
 *  - 3.1's IL maps carry no code version: they belong to the method event beside them on their
 *    thread (just before them live, just after them in a rundown);
 *  - an orderly exit of 8 and later announces the unload of every method and module: from the
 *    first unload of what can never be unloaded on, unloads are no longer believed.
 *
 * Several feeds may fill one map, in any order: see codemap.h.
 */

#include <stdbool.h>
#include <stdint.h>

#include "codemap/codemap.h"
#include "nettrace/nettrace.h"
#include "target/loader.h"

struct feed;

struct feed_options {
	bool il_maps; /* keep IL maps */
	/* The stream's clock minus ours (a target in a time namespace). */
	int64_t clock_offset_ns;
};

struct feed_stats {
	uint64_t loads, unloads, rundown_methods, il_maps, modules;
	uint64_t short_payloads;    /* skipped, the stream went on */
	uint64_t refused;           /* by the map or the loader: invalid or over a cap */
	uint64_t newest_ns;         /* newest event time, our clock */
	uint64_t max_delay_ns;      /* largest (arrival - event time) */
	uint64_t late;              /* events older than what feed_promise() said */
	bool rundown_complete_mark; /* DCEndComplete was seen: necessary, not sufficient */
	bool native_aot;            /* a rundown module record as only NativeAOT sends it */
	bool exiting;
};

int feed_new(struct feed **outp, struct codemap *map, const struct feed_options *opts);
void feed_free(struct feed *feed);

/*
 * The next bytes, read from the target at arrival_ns (0: not live, no delays measured).
 * Returns 0, negative errno, or an enum nettrace_error.
 */
int feed_bytes(struct feed *feed, const void *bytes, size_t n, uint64_t arrival_ns);

/* Somebody was told that everything up to this time is known: later events are counted if older. */
void feed_promise(struct feed *feed, uint64_t time);

/* A gap was seen (events lost): called back at once. */
void feed_on_lost(struct feed *feed, void (*fn)(void *data, uint64_t n, uint64_t from, uint64_t to),
		  void *data);

/* A body was loaded, as the map has it: called back at once. Not for rundown records. */
void feed_on_load(struct feed *feed, void (*fn)(void *data, const struct codemap_body *body),
		  void *data);

/*
 * Application domains, assemblies and modules go there, too (borrowed; NULL: nowhere). The runtime
 * tells of each module twice, once more beside its domain (DomainModule): that says nothing new.
 */
void feed_set_loader(struct feed *feed, struct loader *loader);

struct nettrace *feed_nettrace(struct feed *feed);
const struct feed_stats *feed_get_stats(const struct feed *feed);

DEFINE_CLEANUP(struct feed *, feed_free)
