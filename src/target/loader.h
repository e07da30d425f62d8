/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * loader: which application domains, assemblies and modules a process has loaded, and when.
 *
 * Filled by feeds, in any order of events (see codemap.h on order): an item is known by its id,
 * which is an address and comes again after an unload, and its load time. A rundown record at a
 * time t says that the item was there at t, not when it came. Items that were unloaded are kept,
 * the newest CAP_LOADER_GONE of them.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util.h"
#include "clr/clr.h"

struct loader;

enum loader_kind {
	LOADER_DOMAIN,
	LOADER_ASSEMBLY,
	LOADER_MODULE,
};

enum loader_error {
	LOADER_E_FULL = 1, /* over a cap: counted */
};

struct loader_item {
	enum loader_kind kind;
	uint64_t id;
	uint64_t parent; /* of an assembly: its domain; of a module: its assembly */
	uint64_t load;   /* ns; with open_past the earliest record that saw it */
	uint64_t unload; /* ns; UINT64_MAX: loaded */
	bool open_past;
	uint32_t flags;          /* as the events have them */
	const char *name;        /* domain, assembly: its name; module: path of the IL file */
	const char *native_path; /* module: of its precompiled code; "" if none */
	const char *pdb_path;
	uint32_t pdb_age;
	struct clr_guid pdb_guid;
	bool has_pdb; /* guid not zero */
};

/* "domain", "assembly", "module". */
const char *loader_kind_text(enum loader_kind kind);

int loader_new(struct loader **outp);
void loader_free(struct loader *loader);
/* An event of kind CLR_APP_DOMAIN, CLR_ASSEMBLY or CLR_MODULE. Returns 0, -ENOMEM or FULL. */
int loader_event(struct loader *loader, const struct clr_event *ev, uint64_t time);
/*
 * Items in the order (kind, load, id); NULL past the last. Borrowed until the next event. The first
 * call after an event sorts.
 */
const struct loader_item *loader_item(struct loader *loader, size_t i);
/*
 * Is it known that the module stays as long as the process: of an assembly that cannot be
 * collected? False when nothing is known of either.
 */
bool loader_is_permanent(struct loader *loader, uint64_t module_id, uint64_t time);
size_t loader_memory(const struct loader *loader);
uint64_t loader_refused(const struct loader *loader);

DEFINE_CLEANUP(struct loader *, loader_free)
