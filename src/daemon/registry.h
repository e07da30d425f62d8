/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * registry: all targets of a daemon, each with its lock, its code map and its perf map.
 *
 * A target stays as long as somebody holds it: the command line, or users who asked for it, for
 * good or for a time after its last use. After a target's exit its answers stay for a while, and
 * its map files for a shorter one.
 */

#include "base/loop.h"
#include "target/options.h"
#include "target/place.h"

struct registry;
struct copy;

/* Somebody wants the target: a user, until the time given (0: until it says otherwise). */
struct hold {
	uid_t uid;
	uint64_t until_ns, period_ns;
};

/* One process. Owned by the registry; hooks tell when it goes. */
struct entry {
	struct registry *reg;
	struct entry *next, *next_same; /* all; of one bucket of pids, newest first */
	struct proc *proc;              /* of the target */
	struct target *target;
	struct perfmap *perfmap; /* NULL: none is kept */
	struct places *places;   /* made on first use */
	struct copy *copy;       /* snapshot and monitors; NULL: nobody wants any */
	int lock_fd;
	uint32_t incarnation; /* whose owner is known */
	bool complete;        /* once at least */
	bool stopping, ended;
	uint64_t ended_ns;  /* when we noticed */
	uint64_t attach_ns; /* when we began */
	bool told;          /* to be attached by the command line: stays */
	bool files_gone;
	bool writing_map; /* as a client asked */
	struct hold *holds;
	size_t n_holds;
	struct codemap *shown; /* the map that perfmap knows: a new incarnation has another */
	struct loop_timer linger;
};

/* For the server; each may be NULL. */
struct registry_hooks {
	/* What is known of it changed. */
	void (*changed)(void *data, struct entry *e);
	/* It is about to be freed; why: a line for people, NULL when its time was over. */
	void (*gone)(void *data, struct entry *e, const char *why);
	void *data;
};

/* serve: goes on without targets, until registry_stop(). */
int registry_new(struct registry **outp, struct loop *loop, const struct attach_options *opts,
		 bool serve);
void registry_free(struct registry *reg);
void registry_set_hooks(struct registry *reg, const struct registry_hooks *hooks);

/*
 * Begins to attach, or finds the process that is attached already. Returns 0 with *outp, -errno,
 * or 1 with the reason in why (a line for people). It has no holder yet: the caller adds one.
 */
int registry_attach(struct registry *reg, pid_t pid, struct entry **outp, char *why,
		    size_t why_size);
/* Holds of users. until_ns as in struct hold; renews what the user has. 0 or -ENOMEM. */
int entry_hold(struct entry *e, uid_t uid, uint64_t period_ns);
/* A user that has the target for a time used it. */
void entry_touch(struct entry *e, uid_t uid);
/* False: the user holds none. Without holders the target is stopped, and the entry goes. */
bool entry_release(struct entry *e, uid_t uid);
/* Processes that a user holds; ended: also those that have exited. */
size_t registry_count_holds(const struct registry *reg, uid_t uid, bool ended);

/*
 * The process of a pid; start 0: any. Of several (pids are reused) the newest that had begun by
 * that time (0: now). NULL if there is none, or start is 0 and the pid was no longer its own then.
 */
struct entry *registry_find(const struct registry *reg, pid_t pid, uint64_t start, uint64_t time);
struct entry *registry_first(const struct registry *reg); /* then entry->next */

/* Runs until the last target has ended. Returns 0, -errno, or 1 when none was ever attached. */
int registry_run(struct registry *reg);
/* Stops all targets in good order and then the loop, within timeout_ns. */
void registry_stop(struct registry *reg, uint64_t timeout_ns);
void registry_write_maps(struct registry *reg);

DEFINE_CLEANUP(struct registry *, registry_free)
