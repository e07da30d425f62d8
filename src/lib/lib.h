/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * lib: what the files of libclrsym share. See include/clrsym.h for what they are.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "../../include/clrsym.h"
#include "base/util.h"
#include "query/client.h"
#include "query/snapshot.h"

/* -- handle.c --------------------------------------------------------------------------- */

struct clrsym {
	pthread_mutex_t lock; /* for all that follows, and the changing part of its processes */
	char *path;
	uint32_t timeout_ms;
	pid_t owner;                 /* who may ask: not a forked child */
	struct query_client *client; /* NULL: to be connected */
	uint64_t epoch;              /* counts connections */
	char detail[256];
};

/*
 * Are options usable? known: size of the struct that this library knows; least: of its first
 * version. Returns 0, -EINVAL or -E2BIG (something beyond is set).
 */
int lib_check_opts(const void *opts, size_t least, size_t known);

/* A forked child must not take the lock: it may have been held by a thread that is not there. */
bool lib_is_forked(const struct clrsym *c);

/*
 * One call, connecting first where needed, and once more where the daemon was restarted. With the
 * lock held. Takes parameters over. Returns 0 or -errno as the public header has them.
 */
int lib_call(struct clrsym *c, const char *method, json_t *parameters, json_t **replyp, int *fdp);
/* Is the connection there? Connects where it is not. With the lock held. */
int lib_connect(struct clrsym *c);
/* Gives up a connection over which something came that cannot be. Returns -EPROTO. */
int lib_distrust(struct clrsym *c);
/* A connection beside the handle's own, for what waits long. With or without the lock. */
int lib_connect_new(const struct clrsym *c, uint64_t wait_ms, struct query_client **clientp);
/*
 * The public errno for the result of a client's call; notes the detail. reply: what came, or NULL.
 * With the lock held.
 */
int lib_result(struct clrsym *c, const struct query_client *client, int r, json_t *reply);

/* -- process.c -------------------------------------------------------------------------- */

struct generation;

struct clrsym_process {
	struct clrsym *c;
	pid_t pid;
	uint64_t start;
	uint32_t flags, hold_s, wait_ms;
	_Atomic(struct generation *) newest;
	/* written with the handle's lock held */
	_Atomic uint64_t ask_after_ns; /* not before this, unless it was replaced */
	_Atomic uint64_t used_ns;      /* when the daemon was last asked about it */
	uint64_t epoch;                /* of the connection over which newest came */
	uint32_t n_generations;
};

/* {"pid":..,"start":..}, or NULL. */
json_t *process_parameters(const struct clrsym_process *p);
/* The daemon has answered a question about it. */
void process_used(struct clrsym_process *p, uint64_t now);
/* clrsym_process_refresh() with the lock held. */
int process_refresh(struct clrsym_process *p);
/* clrsym_lookup() with all arguments checked. */
int process_lookup(const struct clrsym_process *p, uint64_t addr, uint64_t time, uint32_t flags,
		   struct clrsym_symbol *sym);

/* -- symbol.c --------------------------------------------------------------------------- */

/* The sz of a symbol of this header's version, the first. */
#define SYMBOL_LEAST sizeof(struct clrsym_symbol)

bool symbol_is_valid(const struct clrsym_symbol *sym);
/* Empties all that goes out; the reason is CLRSYM_UNANSWERED then. */
void symbol_clear(struct clrsym_symbol *sym);
/* Fills in a miss from the daemon's words. */
void symbol_miss(struct clrsym_symbol *sym, const char *reason);

/* A method as the daemon sent it; texts are borrowed. */
struct lib_method {
	uint64_t start, method_id, load, unload;
	uint32_t size, version;
	const char *function, *module, *tier;
	size_t function_len, module_len, short_len;
};

/* False: it is none. */
bool lib_method_parse(struct lib_method *m, json_t *value);
/* All but offset and IL offset. */
void symbol_hit(struct clrsym_symbol *sym, const struct lib_method *m);

/* The byte that is looked up for an address. */
static inline uint64_t lib_lookup_address(uint64_t addr, uint32_t flags)
{
	return addr - (addr && (flags & CLRSYM_CALLER));
}

static inline void mutex_unlockp(pthread_mutex_t **lockp)
{
	if (*lockp)
		pthread_mutex_unlock(*lockp);
}

#define _cleanup_unlock_ _cleanup_(mutex_unlockp)

static inline void json_freep(json_t **jsonp)
{
	json_decref(*jsonp);
}

#define _cleanup_json_ _cleanup_(json_freep)
