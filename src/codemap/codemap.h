/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * codemap: what machine code a process has, by address and time.
 *
 * A *code body* is one compiled form of one method: a half-open address range
 * [start, start + size) with a life [load, unload). At any moment no two bodies overlap.
 * A body's identity among those alive is (method id, native code version, start).
 *
 * Events of different threads arrive out of order by up to some 100 ms. Every call here
 * takes the event's own time and the result does not depend on the order of calls:
 *  - a load over an older body retires that one at that instant;
 *  - a load that arrives after a later owner's goes straight to the past;
 *  - an unload finds the body that was alive at its time, or waits for its load.
 *
 * A body known only from a rundown record at time t was alive before t: its life is open
 * towards the past, bounded by the last unload or retirement on that range. A rundown record is
 * ignored when an unload or an overlapping load later than t is known.
 *
 * Retired bodies are kept for a bounded while (bytes and time), so that a sample is
 * resolved to the code that was there when it was taken; what was there before that is
 * answered with `expired`, never with a newer owner.
 *
 * It takes plain values, not events, and knows neither files nor clocks.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/util.h"
#include "names/names.h"

struct codemap;
struct codemap_body; /* opaque; valid until the next call that changes the map */

struct codemap_options {
	size_t max_bodies;     /* live + retired; 0 = CAP_BODIES */
	size_t max_name_bytes; /* 0 = CAP_NAME_BYTES */
	size_t max_il_bytes;   /* 0 = CAP_IL_BYTES */
	size_t retired_bytes;  /* 0 = DEFAULT_RETIRED_BYTES */
	uint64_t retired_ns;   /* 0 = DEFAULT_RETIRED_NS */
	bool no_il_maps;       /* none will come: saves their index by method */
};

/* Positive codes. */
enum codemap_error {
	CODEMAP_E_INVALID = 1, /* size 0 or past the cap, address or id out of range: counted */
	CODEMAP_E_FULL,        /* over a cap: counted; the map says it is incomplete */
	CODEMAP_E_STALE,       /* a rundown record of a body that is known to have gone since: it
				* went to the past; or any event too late to be sorted in */
	CODEMAP_E_NONE,        /* there is no such thing */
};

/* Why there is no answer. */
enum codemap_miss {
	CODEMAP_HIT,
	CODEMAP_MISS_UNKNOWN,  /* no code was ever announced there */
	CODEMAP_MISS_UNLOADED, /* code was there before, and was unloaded by that time */
	CODEMAP_MISS_NOT_YET,  /* code is there later, not yet at that time */
	CODEMAP_MISS_EXPIRED,  /* that time is past what is still remembered */
	CODEMAP_MISS_LOST,     /* events were lost around that time */
	CODEMAP_MISS_FULL,     /* bodies were left out over a cap */
};

/* "not announced", "retired", ...: the word that every output uses. NULL for CODEMAP_HIT. */
const char *codemap_miss_text(enum codemap_miss miss);

struct codemap_load {
	uint64_t method_id, module_id, start;
	uint64_t version; /* native code version id */
	uint64_t time;    /* event time, ns */
	uint32_t size, token, flags;
	const char *ns, *name, *sig; /* UTF-8, copied */
	uint32_t ns_len, name_len, sig_len;
};

/* A body as an answer. Strings are borrowed like the body. */
struct codemap_info {
	uint64_t method_id, module_id, start, version;
	uint64_t load;      /* ns; 0 when open towards the past without bound */
	uint64_t unload;    /* ns; UINT64_MAX while alive */
	bool open_past;     /* load is a lower bound, not the moment of the load */
	bool freeable;      /* open_past, and of a kind that can be freed: its address may have been
			     * another body's before */
	uint64_t announced; /* ns; its first announcement: load, or with open_past later */
	uint32_t size, token, flags;
	struct names_method name;
	const char *module_path; /* NULL when not announced; not NUL-terminated */
	uint32_t module_path_len;
};

struct codemap_stats {
	size_t live, retired; /* bodies */
	size_t live_jitted, live_r2r;
	size_t bytes;      /* allocated by the map, IL maps apart */
	size_t name_bytes; /* distinct name text, part of bytes */
	size_t il_bytes, il_maps;
	uint64_t loads, merged, unloads, stale, invalid, full;
	uint64_t implied_retirements; /* by a load on top, not by an unload */
	uint64_t unmatched_unloads;
	uint64_t expired; /* retired bodies forgotten */
	uint64_t gaps;
};

/* Returns 0 or -ENOMEM. opts may be NULL. */
int codemap_new(struct codemap **outp, const struct codemap_options *opts);
void codemap_free(struct codemap *map);

/*
 * A load event. Returns 0, -ENOMEM or a code. *bodyp (may be NULL) is the new or merged body.
 * merge: identical records (same start, size, method, version, alive at that time) are one body.
 */
int codemap_load(struct codemap *map, const struct codemap_load *load, struct codemap_body **bodyp);
/* A rundown record: the body was alive at load->time. */
int codemap_rundown(struct codemap *map, const struct codemap_load *load,
		    struct codemap_body **bodyp);
/* An unload event. Unknown bodies wait a while for their load; never an error for the caller. */
int codemap_unload(struct codemap *map, uint64_t method_id, uint64_t start, uint64_t time);
/* A module's unload: everything of it that was loaded before and is alive ends at that time. */
int codemap_module_unload(struct codemap *map, uint64_t module_id, uint64_t time);
/* Names a module; may come after its methods. path: UTF-8, copied. */
int codemap_module(struct codemap *map, uint64_t module_id, uint64_t assembly_id, const char *path,
		   size_t path_len, uint64_t time);

/*
 * A rundown says that an assembly is collectible: its bodies can be freed. Returns 0, -ENOMEM or
 * FULL.
 */
int codemap_collectible(struct codemap *map, uint64_t assembly_id);

/*
 * IL maps will come after all (a map made with no_il_maps): indexes what is alive. Returns 0 or
 * -ENOMEM (then maps that come find only some of their bodies). Takes as long as all loads did.
 */
int codemap_want_il_maps(struct codemap *map);

/* One entry of an IL map. */
struct codemap_il {
	uint32_t native; /* offset from the body's start */
	uint32_t il;     /* IL offset, or one of the special values 0xfffffffd-0xffffffff */
};

/*
 * The IL map of (method id, version) among the bodies alive at that time; may come before
 * its body, then it waits. Entries in any order; stored stably sorted by native offset.
 */
int codemap_il_map(struct codemap *map, uint64_t method_id, uint64_t version, uint64_t time,
		   const struct codemap_il *entries, size_t n);
/* The IL offset at a native offset: 0 and *ilp (maybe a special value), or CODEMAP_E_NONE. */
int codemap_il_lookup(const struct codemap *map, const struct codemap_body *body, uint32_t native,
		      uint32_t *ilp);
bool codemap_has_il(const struct codemap *map, const struct codemap_body *body);

/*
 * After a loss a rundown tells what is there, and so also what is not: jitted bodies that were
 * announced before the loss was over, and that a complete rundown which began later does not
 * list, ended in the loss. begin: before its first record. Returns 0, or -ENOMEM (then end does
 * nothing). end: after its last; lost_to 0: it was not complete after all, nothing ends.
 */
int codemap_census_begin(struct codemap *map);
void codemap_census_end(struct codemap *map, uint64_t lost_from, uint64_t lost_to);

/* Events between the two times were lost: misses in between say so. */
void codemap_gap(struct codemap *map, uint64_t from, uint64_t to);
/* Were events lost at any time in between? */
bool codemap_lost_between(const struct codemap *map, uint64_t from, uint64_t to);

/*
 * The body at an address now (no time), or at a time: O(log n). *missp (may be NULL) says
 * why NULL came back.
 */
const struct codemap_body *codemap_lookup(const struct codemap *map, uint64_t addr,
					  enum codemap_miss *missp);
const struct codemap_body *codemap_lookup_at(const struct codemap *map, uint64_t addr,
					     uint64_t time, enum codemap_miss *missp);
/*
 * The same, for who calls answers final: a body of a kind that can be freed is none for times at
 * which its address may have been another's: before its first announcement, if that was a
 * rundown's (NOT_YET), and while events were lost (LOST).
 */
const struct codemap_body *codemap_lookup_certain(const struct codemap *map, uint64_t addr,
						  uint64_t time, enum codemap_miss *missp);
void codemap_body_info(const struct codemap *map, const struct codemap_body *body,
		       struct codemap_info *info);
/* The same without names and module, which lie in cold memory. */
void codemap_body_life(const struct codemap *map, const struct codemap_body *body,
		       struct codemap_info *info);
/* Where the body is and of what kind: enough for walks over all bodies of which few are wanted. */
struct codemap_range {
	uint64_t start, end;
	uint32_t flags;
};
struct codemap_range codemap_body_range(const struct codemap_body *body);

/*
 * Live bodies in address order: the first whose start is >= from, or NULL. Walk by asking
 * again from start + 1; the walk may be interrupted by changes.
 */
const struct codemap_body *codemap_next(const struct codemap *map, uint64_t from);

/*
 * Every body that is remembered, alive or retired, each once and in no order. The map must not
 * change meanwhile. A result other than 0 ends the walk and is passed on.
 */
typedef int (*codemap_body_fn)(void *data, const struct codemap_body *body);
int codemap_each(const struct codemap *map, codemap_body_fn fn, void *data);

/*
 * This program began at that time: what was there before is another's. Questions about earlier
 * times find no body (EXPIRED), no open past is told to reach further back, and an event from
 * before counts as of that time. Before the first body; later it does nothing.
 */
void codemap_set_begin(struct codemap *map, uint64_t time);

/* Changes the bounds on retired bodies, while a recording needs them; 0 = the default. */
void codemap_set_retention(struct codemap *map, size_t bytes, uint64_t ns);
/* Forgets retired bodies past the bounds; now: event-time clock, ns. Bounded work a call. */
void codemap_expire(struct codemap *map, uint64_t now);

/* -- Copies: what changed, for who keeps the map's content elsewhere ----------------------- */

/*
 * Every body has a *slot*, a small number that is its own until it is forgotten and may then be
 * another's. While a map is tracked it notes the slots whose body is new, has changed in any way
 * that codemap_info, the name, the module's path or the IL map show, or is forgotten.
 */
enum codemap_change {
	CODEMAP_CHANGE_ADDED = 1,
	CODEMAP_CHANGE_ENDED = 2,     /* its end was set, or moved to an earlier time */
	CODEMAP_CHANGE_ALTERED = 4,   /* anything else: begin, IL map, ... */
	CODEMAP_CHANGE_FORGOTTEN = 8, /* the slot's former body; a new one may be there already */
};

/*
 * Begins (or ends) to note changes; what is there already is not noted. Costs 4 bytes a slot.
 * Returns 0 or -ENOMEM.
 */
int codemap_track(struct codemap *map, bool on);
/*
 * Takes the changes noted, each slot once, with all that happened to it (or of codemap_change);
 * body is NULL when the slot is empty now. The map must not change meanwhile. Stops after max slots
 * (the rest stays), or when fn returns non-zero, which is passed on (that slot is taken). *morep:
 * some are left. With *resyncp true, notes were lost for want of memory: walk all slots instead;
 * fn was not called, and what changes from now on is noted again.
 *
 * What bodies show of their module (path, freeable) is noted here, for a whole module at once, when
 * it changed after bodies of it had come: this takes a walk over these, and over what is
 * retired, before the first of max.
 */
typedef int (*codemap_change_fn)(void *data, uint32_t slot, unsigned int what,
				 const struct codemap_body *body);
int codemap_take_changes(struct codemap *map, size_t max, codemap_change_fn fn, void *data,
			 bool *morep, bool *resyncp);
/* All slots lie below this number. */
uint32_t codemap_n_slots(const struct codemap *map);
/* The body of a slot, alive or retired, or NULL. */
const struct codemap_body *codemap_slot(const struct codemap *map, uint32_t slot);
/* Its IL map: *np entries, borrowed until the next call of this function; 0, -ENOMEM or NONE. */
int codemap_il_entries(struct codemap *map, const struct codemap_body *body,
		       const struct codemap_il **entriesp, size_t *np);

/*
 * Puts a body back as codemap_info told it (elsewhere): its life, its open past and its bound, its
 * module's path, whether it is freeable; and its IL map (il may be NULL), which is left out
 * where it finds no room or is invalid. Where it contradicts what is there already, the rules for
 * events decide. For maps that are filled by this alone, in any order; nothing is forgotten
 * meanwhile, whatever the bounds on retired bodies. What else answers depend on: the gaps, the
 * horizon, and whether the map is incomplete. Returns 0, -ENOMEM or a code.
 */
int codemap_restore(struct codemap *map, const struct codemap_info *info,
		    const struct codemap_il *il, size_t n_il, struct codemap_body **bodyp);
/* Bodies that ended before this time may have been forgotten; only ever rises. */
uint64_t codemap_horizon(const struct codemap *map);
void codemap_set_horizon(struct codemap *map, uint64_t time);
/* The spans with lost events: the i-th in order of time, or false. */
bool codemap_gap_at(const struct codemap *map, size_t i, uint64_t *fromp, uint64_t *top);
/* Bodies were left out over a cap. */
bool codemap_is_incomplete(const struct codemap *map);
void codemap_set_incomplete(struct codemap *map);

/* A number that changes with every change to the set of live bodies. */
uint64_t codemap_generation(const struct codemap *map);
void codemap_get_stats(const struct codemap *map, struct codemap_stats *stats);

DEFINE_CLEANUP(struct codemap *, codemap_free)
