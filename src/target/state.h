/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The insides of a target, shared by its three files only:
 *
 *   target.c   from the first question to the runtime to the end
 *   live.c     session A: gaps, exec, a wider one in its place
 *   rundown.c  session B: turns, retry at the cap, what it means for the gaps
 *
 * A function that may end the target says so: it is then the last thing its caller does.
 */

#include "base/caps.h"
#include "base/log.h"
#include "target/target.h"

#define TARGET_RETRY_FIRST_NS SEC_NS(1)

struct target {
	struct pool *pool;
	struct proc *proc;
	struct target_options opts;
	struct target_callbacks callbacks;
	void *data;
	struct codemap *map;
	struct loader *loader;
	uint64_t began_ns; /* of the program whose code the map holds */
	struct code *code; /* bytes of the map's bodies; NULL until some are asked for */
	struct target_status status;
	struct log_limit limit;
	char end_text[600];

	struct call call; /* ProcessInfo, ProcessInfo2 */
	enum diagipc_command asked;
	struct diagipc_version version;
	uint8_t cookie[16];
	bool has_cookie;
	bool anew; /* the map is empty: whatever runs now is a new incarnation */
	uint64_t exec_id;

	struct session *live;        /* A */
	struct session *next;        /* A', while it is being opened */
	struct session *old;         /* what A' took over from, while it is being stopped */
	struct session *rundown;     /* B */
	struct target *next_waiting; /* in pool->waiting */
	bool queued, counted;        /* waiting for a turn; holding one */
	bool first_done;             /* the first rundown of this incarnation is over */
	bool retried;                /* at the cap */
	bool suspended;     /* at start-up: its rundown was empty, its first event is waited for */
	bool live_lines;    /* A was asked for IL maps */
	bool rundown_again; /* B began before A': its IL maps may have holes */
	uint32_t rundown_mb;
	uint64_t rundown_start_ns;

	uint64_t live_opened_ns;
	uint64_t stream_end_ns; /* A's, when an exec may have ended it; 0 if none has */
	uint64_t gap_from_ns;   /* start of the gap that is not healed yet, 0 if none */
	uint64_t gap_to_ns;     /* a rundown that starts later heals it */
	uint64_t last_rerundown_ns, rerundown_gap_ns;
	uint64_t final_ns; /* known_until after the end */
	uint64_t told_ns;  /* when a stream was ended in good order; 0: it was not */
	uint64_t seen_ns;  /* then: what came before that was seen */

	struct loop_fd exit_io;
	struct loop_timer timer;      /* the next step of a wait */
	struct loop_timer heal_timer; /* the next re-rundown */
	struct loop_timer stop_timer; /* deadline of target_stop() */
	struct loop_timer expire_timer;
	uint64_t retry_ns;
	unsigned int exec_tries, corrupt_tries, compile_tries;
	bool exited;
};

/* -- target.c ------------------------------------------------------------------------- */

/* Ends the target; its owner may free it from there. */
void target_finish(struct target *t, enum target_end end, const char *text);
void target_fail_errno(struct target *t, int error);
/* Tells the owner. */
void target_set_state(struct target *t, enum target_state state);
/* A failure that may pass: tries again later, or ends the target when once was enough. */
void target_again(struct target *t, const char *text);
/* An empty map, for another program (exec_id) under the same pid. Returns 0 or -errno. */
int target_forget(struct target *t, uint64_t exec_id);
/* What keeps the code bytes, made on first use; NULL without memory. */
struct code *target_code_store(struct target *t);
/* Asks which runtime it is, and goes on from there. May end the target. */
void target_connect(struct target *t);

/* -- live.c --------------------------------------------------------------------------- */

/* Opens session A. May end the target. */
void target_open(struct target *t);
/* Opens A' to take over from A. Returns 0 or -errno. */
int target_open_next(struct target *t);
/* A rundown that fills the gap, as soon as the pauses between rundowns allow. */
void target_schedule_heal(struct target *t);

/* -- rundown.c ------------------------------------------------------------------------ */

/* Queues for a turn; the first in the queue begins at once when there is one. May end targets. */
void target_begin_rundown(struct target *t);
void target_leave_queue(struct target *t);
/* Gives free turns to those who wait. May end targets. */
void target_pump(struct pool *pool);
/* MB that a buffer may take of the target's memory. */
uint32_t target_buffer_cap(const struct target *t);
