/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * ask: where a verb's answers come from. One of three, chosen once for a process and then kept:
 *
 *   the daemon   that answers at the socket; what it is not attached to, it is asked to attach
 *                to, for a while;
 *   ourselves    when no daemon answers: attached as long as the verb runs, so that code which
 *                comes meanwhile is known, too;
 *   a trace      that was recorded.
 *
 * A daemon that fails in the middle is an error: answers never change their origin.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cli/daemon.h"
#include "cli/source.h"
#include "query/symbols.h"
#include "target/place.h"

/* -- the asking side --------------------------------------------------------------------- */

struct ask {
	struct daemon_options daemon; /* to be set before the first question */
	bool il_maps;                 /* so is this: are wanted, should we attach ourselves */
	bool looked;                  /* for a daemon */
	struct query_client *client;  /* NULL: none */
	bool failed;                  /* the daemon: it has gone, or there is no asking it */
	struct sources set;           /* our own attaches */
	bool has_set;
	struct ask_process *processes;
};

struct ask_process {
	struct ask *ask;
	struct ask_process *next;
	pid_t pid;
	uint64_t start;          /* the daemon's process: which one of that number */
	struct source *source;   /* we are attached ourselves */
	struct codemap *trace;   /* recorded; borrowed */
	struct places *places;   /* of source */
	struct codemap *tracked; /* the map of source whose changes are noted */
};

/* Ends our own sessions in good order. A struct of zeros is a good one. */
void ask_deinit(struct ask *ask);
/*
 * Looks for the daemon, once. Returns 0 (client: NULL if none answers) or 1: there is one that
 * cannot be asked, said on stderr.
 */
int ask_connect(struct ask *ask);

/*
 * Opens a process: makes sure that there is somebody who is attached. quiet: a process that cannot
 * be attached to is not worth a line. Returns 0 with *outp, the ask's; 1: it cannot be asked about,
 * said on stderr; or -errno.
 */
int ask_open(struct ask *ask, pid_t pid, bool quiet, struct ask_process **outp);
/* A recorded map as a process; the map stays the caller's. 0 or -ENOMEM. */
int ask_open_trace(struct ask *ask, struct codemap *map, struct ask_process **outp);

/*
 * Until fd can be read, while our own attaches are kept going. Returns 0, 1 (one of SIGINT,
 * SIGTERM, SIGHUP came) or -errno.
 */
int ask_wait_readable(struct ask *ask, int fd);

/* -- questions: 0, 1 (said on stderr), -errno, or what fn returned ------------------------- */

struct ask_item {
	uint64_t addr, time; /* time 0: the last known state */
	bool caller;         /* a return address: looked up one byte before */
};

struct ask_answer {
	const struct query_method *method; /* NULL: reason says why; borrowed */
	const char *reason;
	uint32_t offset;
	int64_t il;       /* -1: none */
	bool live, final; /* live: of a process, not of a trace; final: it cannot change any more */
};

/* wait_ms (at most CAP_QUERY_WAIT_MS): for answers to be final. */
int ask_resolve(struct ask_process *p, const struct ask_item *items, size_t n, uint32_t wait_ms,
		int (*fn)(void *data, size_t i, const struct ask_answer *a), void *data);

/* Those alive, by address; retired: those, too. */
int ask_methods(struct ask_process *p, bool retired,
		int (*fn)(void *data, const struct query_method *m), void *data);

struct ask_module {
	const char *kind;                  /* domain, assembly, module */
	uint64_t id, parent, load, unload; /* unload UINT64_MAX: loaded */
	uint32_t flags, pdb_age;
	const char *name, *native_path, *pdb_path; /* "" if none */
	const char *pdb_id;                        /* "" if none: then no age */
};

int ask_modules(struct ask_process *p, int (*fn)(void *data, const struct ask_module *m),
		void *data);

/* change: load, unload, alter, or resync (then m is NULL). Until a signal or the process's end. */
int ask_watch(struct ask_process *p,
	      int (*fn)(void *data, const char *change, const struct query_method *m), void *data);
