/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * target: one traced process, from attach to exit.
 *
 * Attaching opens the live session A first and only then session B for the rundown, which is
 * stopped at once and drained: whatever is compiled in between is in A. Both fill one code map,
 * merged by event time. B is repeated only when A lost events, rate-limited, never on a timer.
 *
 * A target belongs to one *incarnation* of a process: exec keeps pid and start time, even the
 * socket's name, but nothing of the code. When the stream ends and the process lives on, its
 * runtime is asked again: another runtime means an empty map and a new attach.
 *
 * Every step has a deadline; nothing that a target does or leaves undone costs another one
 * anything.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codemap/codemap.h"
#include "proc/proc.h"
#include "target/code.h"
#include "target/loader.h"
#include "target/session.h"

struct target;

struct target_options {
	bool il_maps;              /* keep IL maps: longer rundowns */
	uint32_t buffer_mb;        /* asked of the runtime; 0 = DEFAULT_BUFFER_MB */
	uint64_t rerundown_gap_ns; /* 0 = DEFAULT_RERUNDOWN_GAP_NS */
	struct proc_socket_options socket;
	struct codemap_options map;
	bool once;      /* give up at the first failure instead of trying again later */
	bool keep_code; /* read the code bytes of whatever was and is compiled */
};

enum target_state {
	TARGET_CONNECTING, /* which runtime is it? */
	TARGET_OPENING,    /* the live session */
	TARGET_RUNDOWN,    /* waiting for its turn, or under way */
	TARGET_LIVE,       /* complete, and kept so */
	TARGET_WAITING,    /* until the next try */
	TARGET_STOPPING,
	TARGET_ENDED,
};

/* "connecting", "opening", ...: the word that every output uses. */
const char *target_state_text(enum target_state state);

enum target_end {
	TARGET_STOPPED = 1, /* as asked */
	TARGET_EXITED,      /* the process is gone; the map still answers */
	TARGET_FAILED,      /* could not attach: see target_end_text() */
};

struct target_status {
	enum target_state state;
	enum target_end end; /* when ENDED */
	char runtime[64];    /* version, escaped; "3.x" where the runtime does not tell */
	uint32_t incarnation;
	uint32_t rundowns; /* done, first one included */
	uint32_t rundown_retries;
	uint64_t rundown_ns; /* of the last: StopTracing to end tag */
	uint64_t rundown_bytes;
	uint64_t rundown_lost;      /* events, of the last */
	uint32_t rundown_buffer_mb; /* of the last; 0 = none was done: too little memory */
	bool rundown_complete;
	uint64_t live_bytes;
	uint64_t gaps, lost; /* live: times, events */
	uint64_t gaps_healed;
	uint64_t max_delay_ns;
	uint64_t late; /* events that came after target_known_until() had passed their time */
};

struct target_callbacks {
	/* State, status or map changed. Must not stop or free the target. */
	void (*changed)(struct target *target, void *data);
	/* Everything is known: the first rundown of this incarnation is over. */
	void (*complete)(struct target *target, void *data);
	/* The last word; the target may be freed from here. */
	void (*ended)(struct target *target, enum target_end end, void *data);
};

/*
 * Takes over proc. Nothing happens before target_start(). Returns 0 or -errno.
 */
int target_new(struct target **outp, struct pool *pool, struct proc *proc,
	       const struct target_options *opts, const struct target_callbacks *callbacks,
	       void *data);
void target_free(struct target *target);

int target_start(struct target *target);
/* Stops what was started, in good order; ended() follows within timeout_ns. */
void target_stop(struct target *target, uint64_t timeout_ns);
/*
 * One more rundown, for code that is in none yet: precompiled methods that were first used since.
 * Only on need, it is not free for the process. status.rundowns tells when it is over.
 */
void target_rundown_again(struct target *target);
/* Begins to keep IL maps: a wider session is opened before the old one is stopped. */
int target_widen(struct target *target);

struct codemap *target_map(struct target *target);
/* Its application domains, assemblies and modules; like the map another one after an exec. */
struct loader *target_loader(struct target *target);
/*
 * CLOCK_MONOTONIC ns from which on this incarnation's program has been running: the process's
 * start, or the moment at which the exec was noticed. What was there before was another program's.
 */
uint64_t target_began(const struct target *target);
const struct proc *target_proc(const struct target *target);
void target_get_status(const struct target *target, struct target_status *status);
/*
 * Answers for times up to this one are final (CLOCK_MONOTONIC ns); 0: none yet. Follows what the
 * target's delivery has been seen to take; stands still over a gap.
 */
uint64_t target_known_until(struct target *target);
/*
 * Code bytes: see code.h. target_keep_body() reads those of one body now, target_code() gives out
 * what was read (codes: enum code_error), until the loop runs again.
 */
int target_keep_body(struct target *target, const struct codemap_info *info);
int target_code(struct target *target, const struct codemap_info *info, const uint8_t **codep);
void target_get_code_stats(const struct target *target, struct code_stats *stats);
/* One line: cause and remedy. */
const char *target_end_text(const struct target *target);

DEFINE_CLEANUP(struct target *, target_free)
