/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Where a recording's names come from: processes that are attached to, recorded streams, and what
 * a daemon has of a process.
 *
 * All of them share one loop. A source stays when its process exits: what it knew still answers.
 */

#include <stdbool.h>
#include <stdint.h>

#include "cli/daemon.h"
#include "target/code.h"
#include "target/target.h"

struct source_mapping {
	uint64_t addr;
	char *name; /* base name */
};

#define SOURCE_WHY_INCOMPLETE "its rundown was incomplete: some of its code is not known"

enum source_kind {
	SOURCE_TARGET, /* we have sessions on it; or could not: then it has no map */
	SOURCE_TRACE,
	SOURCE_DAEMON, /* a daemon has the sessions; complete when its code has been handed over */
};

struct source {
	struct sources *set;
	struct source *next;
	enum source_kind kind;
	pid_t pid;
	struct target *target;           /* SOURCE_TARGET */
	struct codemap *map;             /* of the others */
	struct export *export;           /* SOURCE_DAEMON */
	bool held;                       /* SOURCE_DAEMON: attached for us */
	uint32_t owner;                  /* uid of the process; of a recorded stream: ours */
	uint16_t machine;                /* EM_* */
	uint64_t start;                  /* of the process, in ticks: with the pid its identity */
	uint64_t start_ns;               /* the same on CLOCK_MONOTONIC */
	uint64_t attach_ns;              /* when it began to be known */
	uint32_t incarnation;            /* that the mappings are of */
	struct source_mapping *mappings; /* executable, of files */
	size_t n_mappings;
	bool complete, ended;
	uint32_t rundowns; /* that it had when another one was asked for; 0: none was */
	char why[512];     /* there is nothing, or less than there should be */
};

struct sources {
	struct loop *loop;
	struct pool pool;
	struct source *list;
	struct target_options opts; /* for targets that are attached to */
	struct loop_timer timer;
	struct loop_fd signals;
	int signal_fd;
	bool interrupted; /* SIGINT, SIGTERM or SIGHUP came */
	/* asked again and again by sources_wait() */
	bool (*done)(void *data);
	void *done_data;
	uint64_t deadline_ns;
	struct daemon_options daemon_opts;
	struct query_client *daemon; /* NULL: none, or not yet looked for */
	const char *no_daemon;       /* there is one that cannot be asked: it may have what we would
					attach to */
	bool looked;                 /* for it */
	uint64_t held_ns;            /* the daemon was last told to keep what it holds for us */
};

/* Blocks SIGINT, SIGTERM and SIGHUP: they set interrupted and end a wait. Returns 0 or -errno. */
int sources_init(struct sources *set);
void sources_deinit(struct sources *set);

/*
 * Attaches; returns 0 or -errno. *outp is always set on 0: a process that cannot be attached to is
 * a source that has ended, with the reason.
 */
int source_attach(struct sources *set, pid_t pid, struct source **outp);
/* As source_attach(), for a process that was opened already; takes it over in any case. */
int source_attach_proc(struct sources *set, struct proc *proc, struct source **outp);
/* A recorded stream, added to what is known of that pid from others. Returns 0, -errno, or 1: said
 * on stderr. */
int source_trace(struct sources *set, pid_t pid, const char *path);
/* A source that knows nothing yet. NULL without memory. */
struct source *source_new(struct sources *set, enum source_kind kind, pid_t pid);
/* Forgets a source that has ended. */
void source_remove(struct source *source);
struct source *source_find(const struct sources *set, pid_t pid);

/*
 * Runs the loop until done(data) is true, the time is over (0: no deadline), or a signal came.
 * Returns 0, -errno, or 1 when it was not done.
 */
int sources_wait(struct sources *set, bool (*done)(void *data), void *data, uint64_t deadline_ns);
/* Has one of the signals come? For work that is not done from the loop. */
bool sources_interrupted(struct sources *set);
/* Ends all sessions in good order. */
int sources_stop(struct sources *set);

/* What is known of its code; another map after an exec. */
struct codemap *source_map(const struct source *source);
/* Everything up to a time (CLOCK_MONOTONIC) is known, or never will be. */
bool source_knows(struct source *source, uint64_t time);
/* The bytes of a body, or NULL; borrowed until the next call or the next round of the loop. */
const uint8_t *source_code(const struct source *source, const struct codemap_info *info);

/* The executable file mappings of a process. Returns 0, -errno or an enum proc_error. */
int source_read_mappings(const struct proc *proc, struct source_mapping **itemsp, size_t *np);
void source_free_mappings(struct source_mapping *items, size_t n);

/* -- source_daemon.c -------------------------------------------------------------------- */

/*
 * The daemon, if one answers; looked for at the first call. NULL with set->no_daemon: there is one
 * that cannot be asked (said on stderr), so nothing may be attached to beside it.
 */
struct query_client *sources_daemon(struct sources *set);
/*
 * What it has now, the youngest process first (owned). No daemon: nothing. Returns 0 or -errno of
 * our own; a daemon that fails is lost for all of the set.
 */
int sources_list(struct sources *set, struct daemon_process **itemsp, size_t *np);
/* A process that the daemon has. Returns NULL without memory. */
struct source *source_from_daemon(struct sources *set, const struct daemon_process *process);
/*
 * The daemon attaches to it for us, or keeps it if it has it already. Returns 0 or -errno of our
 * own; *outp as with source_attach().
 */
int source_hold(struct sources *set, pid_t pid, uint64_t start, struct source **outp);
/*
 * To be called often while things are held: tells the daemon now and then that they are still
 * wanted, takes over what has exited (code: with code bytes), sees when the daemon has gone.
 * Returns 0 or -errno of our own.
 */
int sources_keep(struct sources *set, bool code, uint64_t now);
/*
 * Waits until the daemon knows everything up to a time, and takes over what it has: the source is
 * complete, or has ended with the reason. code: with code bytes. Returns 0, -ECANCELED (a signal)
 * or -errno of our own.
 */
int source_export(struct source *source, bool code, uint64_t until_ns);
