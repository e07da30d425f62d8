/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Where a recording's names come from: processes that are attached to, and recorded streams.
 *
 * All of them share one loop. A source stays when its process exits: what it knew still answers.
 */

#include <stdbool.h>
#include <stdint.h>

#include "target/code.h"
#include "target/target.h"

struct source_mapping {
	uint64_t addr;
	char *name; /* base name */
};

struct source {
	struct sources *set;
	struct source *next;
	pid_t pid;
	struct target *target;           /* NULL: recorded */
	struct codemap *trace;           /* recorded: its own map */
	uint32_t owner;                  /* uid of the process; of a recorded stream: ours */
	uint16_t machine;                /* EM_* */
	uint64_t start;                  /* of the process, in ticks: with the pid its identity */
	uint64_t start_ns;               /* the same on CLOCK_MONOTONIC */
	uint64_t attach_ns;              /* when we began */
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

/* The executable file mappings of a process. Returns 0, -errno or an enum proc_error. */
int source_read_mappings(const struct proc *proc, struct source_mapping **itemsp, size_t *np);
void source_free_mappings(struct source_mapping *items, size_t n);
/* When a process started, on CLOCK_MONOTONIC. */
uint64_t source_proc_start(const struct proc *proc);
