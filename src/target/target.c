/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state machine of one target. The happy path:
 *
 *   CONNECTING  ProcessInfo (unknown to 3.x, which is how 3.x is told), then ProcessInfo2
 *   OPENING     session A
 *   RUNDOWN     session B, opened, stopped at once, drained; once more at the cap if it lost events
 *   LIVE        until the process ends or target_stop()
 *
 * What goes wrong leads to WAITING (try again later, with growing pauses) or to ENDED. A stream that
 * ends while the process lives leads back to CONNECTING: the runtime's cookie, or the kernel's
 * view of the executed program, then tells whether it is still the same incarnation.
 */
#include "target/target.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "clr/clr.h"

/* After a stream's end: the kernel tells of the exit a little later than of the socket. */
#define TARGET_EXIT_WAIT_NS MS_NS(200)
#define TARGET_RETRY_FIRST_NS SEC_NS(1)
#define TARGET_RETRY_LAST_NS SEC_NS(60)
/*
 * A program that was exec'ed has some time to become a .NET process: tries at first in quick
 * succession, 25 s in all.
 */
#define TARGET_EXEC_TRIES 8u
#define TARGET_RETRY_EXEC_NS MS_NS(100)
/* Streams that cannot be followed, one after the other. */
#define TARGET_CORRUPT_TRIES 5u
#define TARGET_EXPIRE_NS SEC_NS(1)
/* Hardly a method takes longer to compile. */
#define TARGET_COMPILE_WAIT_NS MS_NS(50)
/* A stream that could be followed for so long was not one of a series of bad ones. */
#define TARGET_GOOD_STREAM_NS SEC_NS(60)
/* From the first event of a runtime that was suspended at start-up to its rundown. */
#define TARGET_RESUME_WAIT_NS SEC_NS(1)

struct target {
	struct pool *pool;
	struct proc *proc;
	struct target_options opts;
	struct target_callbacks callbacks;
	void *data;
	struct codemap *map;
	struct target_status status;
	struct log_limit limit;
	char end_text[600];

	struct call call; /* ProcessInfo, ProcessInfo2 */
	enum diagipc_command asked;
	struct diagipc_version version;
	uint8_t cookie[16];
	bool has_cookie;
	uint64_t exec_id;

	struct session *live; /* A */
	struct session *next; /* A', while it is being opened */
	struct session *old;  /* what A' took over from, while it is being stopped */
	struct session *rundown; /* B */
	struct target *next_waiting; /* in pool->waiting */
	bool queued, counted; /* waiting for a turn; holding one */
	bool first_done;      /* the first rundown of this incarnation is over */
	bool retried;         /* at the cap */
	bool suspended;       /* at start-up: its rundown was empty, its first event is waited for */
	bool live_lines;      /* A was asked for IL maps */
	bool rundown_again;   /* B began before A': its IL maps may have holes */
	uint32_t rundown_mb;
	uint64_t rundown_start_ns;

	uint64_t live_opened_ns;
	uint64_t gap_from_ns;  /* start of the gap that is not healed yet, 0 if none */
	uint64_t gap_to_ns;    /* a rundown that starts later heals it */
	uint64_t last_rerundown_ns, rerundown_gap_ns;

	struct loop_fd exit_io;
	struct loop_timer timer;       /* the next step of a wait */
	struct loop_timer heal_timer;  /* the next re-rundown */
	struct loop_timer stop_timer;  /* deadline of target_stop() */
	struct loop_timer expire_timer;
	uint64_t retry_ns;
	unsigned int exec_tries, corrupt_tries;
	bool exited;
};

static void target_connect(struct target *t);
static void target_begin_rundown(struct target *t);
static void target_pump(struct pool *pool);
static int target_open_next(struct target *t);

/* -- the end -------------------------------------------------------------------------- */

static void target_leave_queue(struct target *t)
{
	struct target **pp;

	if (t->counted) {
		t->counted = false;
		t->pool->n_rundowns--;
	}
	if (!t->queued)
		return;
	t->queued = false;
	for (pp = &t->pool->waiting; *pp; pp = &(*pp)->next_waiting) {
		if (*pp == t) {
			*pp = t->next_waiting;
			break;
		}
	}
}

static void target_release(struct target *t)
{
	call_cancel(&t->call);
	session_free(TAKE_PTR(t->live));
	session_free(TAKE_PTR(t->next));
	session_free(TAKE_PTR(t->old));
	session_free(TAKE_PTR(t->rundown));
	target_leave_queue(t);
	loop_fd_del(&t->exit_io);
	loop_timer_del(&t->timer);
	loop_timer_del(&t->heal_timer);
	loop_timer_del(&t->stop_timer);
	loop_timer_del(&t->expire_timer);
}

static void target_finish(struct target *t, enum target_end end, const char *text)
{
	struct pool *pool = t->pool;

	if (t->status.state == TARGET_ENDED)
		return;
	t->status.state = TARGET_ENDED;
	t->status.end = end;
	snprintf(t->end_text, sizeof(t->end_text), "%s", text);
	target_release(t);
	t->callbacks.ended(t, end, t->data);
	target_pump(pool);
}

static void target_fail_errno(struct target *t, int error)
{
	target_finish(t, TARGET_FAILED, strerror(-error));
}

static void target_set_state(struct target *t, enum target_state state)
{
	static const char *const words[] = { "connecting", "opening", "rundown", "live",
					     "waiting",	   "stopping", "ended" };

	if (t->status.state == state)
		return;
	t->status.state = state;
	log_debug("pid %d: %s", (int)t->proc->pid, words[state]);
	t->callbacks.changed(t, t->data);
}

static void target_retry(struct loop_timer *timer)
{
	target_connect(container_of(timer, struct target, timer));
}

/* A failure that may pass: try again later, unless once was enough. */
static void target_again(struct target *t, const char *text)
{
	uint32_t dropped;
	int r;

	if (!proc_alive(t->proc)) {
		target_finish(t, TARGET_EXITED, "the process has exited");
		return;
	}
	if (t->opts.once) {
		target_finish(t, TARGET_FAILED, text);
		return;
	}
	if (t->retry_ns >= TARGET_RETRY_FIRST_NS && log_limit_pass(&t->limit, clock_now_ns(), &dropped))
		log_warn("pid %d: %s; next try in %" PRIu64 " s", (int)t->proc->pid, text,
			 t->retry_ns / SEC_NS(1));
	r = loop_timer_set(t->pool->loop, &t->timer, clock_now_ns() + t->retry_ns, target_retry);
	if (r < 0) {
		target_fail_errno(t, r);
		return;
	}
	t->retry_ns = MIN(t->retry_ns * 2, TARGET_RETRY_LAST_NS);
	target_set_state(t, TARGET_WAITING);
}

/* -- the live session ----------------------------------------------------------------- */

/* Everything the code map needs, nothing else: fewer events are less work for the target. */
static const uint32_t target_event_ids[] = { 141, 142, 143, 144, 151, 152, 153,
					     154, 155, 156, 157, 190 };
#define TARGET_LIVE_KEYWORDS (CLR_KEYWORD_LOADER | CLR_KEYWORD_JIT | CLR_KEYWORD_END_ENUMERATION)

static int target_open_live(struct target *t, struct session **sessionp,
			    const struct session_callbacks *callbacks)
{
	/* by il_maps; static, as the session may have to ask again with an older command */
	static const struct diagipc_provider providers[2] = {
		{
			.name = CLR_PROVIDER_RUNTIME,
			.keywords = TARGET_LIVE_KEYWORDS,
			.level = 5, /* live loads are verbose events */
			.event_ids = target_event_ids,
			/* 190, the IL maps, comes last */
			.n_event_ids = ARRAY_SIZE(target_event_ids) - 1,
		},
		{
			.name = CLR_PROVIDER_RUNTIME,
			.keywords = TARGET_LIVE_KEYWORDS | CLR_KEYWORD_IL_MAP,
			.level = 5,
			.event_ids = target_event_ids,
			.n_event_ids = ARRAY_SIZE(target_event_ids),
		},
	};
	struct session_options opts = {
		.version = t->version,
		.request = { .buffer_mb = t->opts.buffer_mb,
			     .providers = &providers[t->opts.il_maps],
			     .n_providers = 1 },
		.feed = { .il_maps = t->opts.il_maps,
			  .clock_offset_ns = t->proc->monotonic_offset_ns },
		.live = true,
	};
	uint64_t room = proc_memory_room(t->proc) / BUFFER_ROOM_SHARE / MIB(1);

	opts.request.buffer_mb = (uint32_t)MAX(MIN((uint64_t)opts.request.buffer_mb, room), 1u);
	return session_new(sessionp, t->pool, t->proc, &t->opts.socket, t->map, &opts, callbacks, t);
}

static void target_heal(struct loop_timer *timer)
{
	struct target *t = container_of(timer, struct target, heal_timer);

	if (t->status.state != TARGET_LIVE)
		return;
	t->rundown_again = false;
	t->last_rerundown_ns = clock_now_ns();
	target_begin_rundown(t);
}

/* Rate-limited: at once the first time, then further and further apart. */
static void target_schedule_heal(struct target *t)
{
	uint64_t now = clock_now_ns(), at = now;

	if (t->heal_timer.loop || t->rundown || t->queued || !t->live ||
	    t->status.state != TARGET_LIVE)
		return;
	if (t->last_rerundown_ns && !t->rundown_again) {
		/* quiet for long: the pauses start small again */
		if (now - t->last_rerundown_ns > 4 * t->rerundown_gap_ns)
			t->rerundown_gap_ns = t->opts.rerundown_gap_ns;
		at = MAX(now, t->last_rerundown_ns + t->rerundown_gap_ns);
		t->rerundown_gap_ns = MIN(t->rerundown_gap_ns * 2,
					  MAX(CAP_RERUNDOWN_GAP_NS, t->opts.rerundown_gap_ns));
	}
	/* Called from within the decoder: no end here. Without memory the next tick tries again. */
	if (loop_timer_set(t->pool->loop, &t->heal_timer, at, target_heal) < 0)
		log_warn("pid %d: out of memory: its rundown is put off", (int)t->proc->pid);
}

static void target_gap(struct target *t, uint64_t n, uint64_t from, uint64_t to)
{
	uint32_t dropped;

	if (!from)
		from = t->gap_from_ns ? t->gap_from_ns : to;
	codemap_gap(t->map, from, to);
	t->gap_from_ns = t->gap_from_ns ? MIN(t->gap_from_ns, from) : from;
	t->gap_to_ns = MAX(t->gap_to_ns, to);
	t->status.gaps++;
	t->status.lost += n;
	if (log_limit_pass(&t->limit, clock_now_ns(), &dropped))
		log_warn("pid %d: the runtime dropped %" PRIu64 " events (its buffer was full); "
			 "a new rundown will fill the gap", (int)t->proc->pid, n);
}

static void target_lost(void *data, uint64_t n, uint64_t from, uint64_t to)
{
	struct target *t = data;

	target_gap(t, n, from, to);
	target_schedule_heal(t);
}

static void target_resumed(struct loop_timer *timer)
{
	target_begin_rundown(container_of(timer, struct target, heal_timer));
}

static void target_live_progress(struct session *session UNUSED, void *data)
{
	struct target *t = data;

	t->callbacks.changed(t, t->data);
	if (t->suspended) {
		/* it runs now: precompiled code is announced by a rundown only, a little later */
		t->suspended = false;
		log_info("pid %d: resumed", (int)t->proc->pid);
		if (loop_timer_set(t->pool->loop, &t->heal_timer,
				   clock_now_ns() + TARGET_RESUME_WAIT_NS, target_resumed) < 0)
			target_begin_rundown(t);
	}
}

static void target_compiled(struct loop_timer *timer)
{
	target_begin_rundown(container_of(timer, struct target, timer));
}

static void target_live_opened(struct session *session, void *data)
{
	struct target *t = data;

	feed_on_lost(session_feed(session), target_lost, t);
	t->retry_ns = TARGET_RETRY_FIRST_NS;
	t->live_opened_ns = clock_now_ns();
	target_set_state(t, TARGET_RUNDOWN);
	if (t->opts.il_maps && !t->live_lines)
		target_open_next(t); /* widened while it was being opened */
	/*
	 * The runtime decides before it compiles a method whether it will announce it: what is
	 * being compiled now is in no live session, and in a rundown only when it is done.
	 */
	if (!proc_may_compile(t->proc) ||
	    loop_timer_set(t->pool->loop, &t->timer, clock_now_ns() + TARGET_COMPILE_WAIT_NS,
			   target_compiled) < 0)
		target_begin_rundown(t);
}

static void target_look_again(struct loop_timer *timer)
{
	struct target *t = container_of(timer, struct target, timer);

	if (!proc_alive(t->proc))
		target_finish(t, TARGET_EXITED, "the process has exited");
	else
		target_connect(t);
}

static void target_live_ended(struct session *session, enum session_end end, void *data)
{
	struct target *t = data;
	const struct feed_stats *stats = feed_get_stats(session_feed(session));
	uint64_t seen = MAX(stats->newest_ns, t->rundown_start_ns), now = clock_now_ns();
	struct pool *pool = t->pool; /* the target may be freed at its end */
	char text[600];
	int r;

	snprintf(text, sizeof(text), "%s", session_end_text(session));
	t->status.live_bytes += session_bytes(session);
	t->status.max_delay_ns = MAX(t->status.max_delay_ns, stats->max_delay_ns);
	t->status.late += stats->late;
	session_free(TAKE_PTR(t->live));
	if (t->status.state == TARGET_STOPPING) {
		if (!t->rundown && !t->old && !t->next)
			target_finish(t, TARGET_STOPPED, "stopped");
		return;
	}
	if (t->exited) {
		target_finish(t, TARGET_EXITED, "the process has exited");
		return;
	}
	if (end == SESSION_FAILED) {
		target_finish(t, TARGET_FAILED, text);
		return;
	}
	session_free(TAKE_PTR(t->rundown));
	session_free(TAKE_PTR(t->next));
	target_leave_queue(t);
	/* What was to come next belongs to this session; a new one begins with its own rundown. */
	loop_timer_del(&t->heal_timer);
	t->suspended = t->rundown_again = false;
	if (end == SESSION_REFUSED) {
		target_again(t, text);
		target_pump(pool);
		return;
	}
	/* From what was seen last until a new session is open, nothing is known. */
	codemap_gap(t->map, seen, now);
	t->gap_from_ns = t->gap_from_ns ? MIN(t->gap_from_ns, seen) : seen;
	t->gap_to_ns = now;
	if (end == SESSION_CORRUPT) {
		t->status.gaps++;
		if (now - t->live_opened_ns > TARGET_GOOD_STREAM_NS)
			t->corrupt_tries = 0;
		if (++t->corrupt_tries > TARGET_CORRUPT_TRIES)
			target_finish(t, TARGET_FAILED, text);
		else
			target_again(t, text);
		target_pump(pool);
		return;
	}
	t->retry_ns = TARGET_RETRY_EXEC_NS;
	r = loop_timer_set(t->pool->loop, &t->timer, now + TARGET_EXIT_WAIT_NS,
			   target_look_again);
	if (r < 0)
		target_fail_errno(t, r);
	target_pump(pool);
}

static const struct session_callbacks target_live_callbacks = {
	.opened = target_live_opened,
	.ended = target_live_ended,
	.progress = target_live_progress,
};

static void target_open(struct target *t)
{
	int r;

	target_set_state(t, TARGET_OPENING);
	t->live_lines = t->opts.il_maps;
	r = target_open_live(t, &t->live, &target_live_callbacks);
	if (r < 0)
		target_fail_errno(t, r);
}

/* -- a wider session in place of the running one --------------------------------------- */

static void target_old_ended(struct session *session UNUSED, enum session_end end UNUSED,
			     void *data)
{
	struct target *t = data;

	session_free(TAKE_PTR(t->old));
	if (t->status.state == TARGET_STOPPING && !t->live && !t->rundown)
		target_finish(t, TARGET_STOPPED, "stopped");
}

static void target_next_opened(struct session *session, void *data)
{
	struct target *t = data;

	feed_on_lost(session_feed(session), target_lost, t);
	t->old = TAKE_PTR(t->live);
	t->live = TAKE_PTR(t->next);
	session_set_callbacks(t->live, &target_live_callbacks);
	session_set_callbacks(t->old,
			      &(struct session_callbacks){ .ended = target_old_ended });
	t->live_lines = true;
	session_stop(t->old, DEFAULT_RUNDOWN_DEADLINE_NS);
	/* one that began before has no IL map of what was compiled since */
	if (t->rundown)
		t->rundown_again = true;
	else if (t->status.state == TARGET_LIVE)
		target_begin_rundown(t);
}

static void target_next_ended(struct session *session, enum session_end end UNUSED, void *data)
{
	struct target *t = data;

	log_warn("pid %d: no wider session: %s", (int)t->proc->pid, session_end_text(session));
	session_free(TAKE_PTR(t->next));
}

static int target_open_next(struct target *t)
{
	static const struct session_callbacks callbacks = {
		.opened = target_next_opened,
		.ended = target_next_ended,
	};

	return target_open_live(t, &t->next, &callbacks);
}

int target_widen(struct target *t)
{
	int r;

	if (t->opts.il_maps)
		return 0;
	r = codemap_want_il_maps(t->map);
	if (r < 0)
		return r;
	t->opts.il_maps = true;
	/* one that is being opened is followed by a wider one when it is open */
	if (!t->live || t->next || t->old || !session_is_open(t->live))
		return 0;
	return target_open_next(t);
}

/* -- the rundown ---------------------------------------------------------------------- */

static bool target_is_complete(struct session *session, enum session_end end)
{
	struct feed *feed = session_feed(session);

	return end == SESSION_COMPLETE && !nettrace_get_stats(feed_nettrace(feed))->lost &&
	       feed_get_stats(feed)->rundown_complete_mark;
}

/* MB that a buffer may take of the target's memory. */
static uint32_t target_buffer_cap(const struct target *t)
{
	uint64_t room = proc_memory_room(t->proc) / BUFFER_ROOM_SHARE / MIB(1);

	return (uint32_t)MIN(room, (uint64_t)CAP_BUFFER_MB);
}

/* The first rundown of an incarnation is over, for better or worse. Last, as it calls back. */
static void target_is_live(struct target *t)
{
	bool first = !t->first_done;

	t->first_done = true;
	target_set_state(t, TARGET_LIVE);
	if (t->gap_from_ns || t->rundown_again)
		target_schedule_heal(t);
	if (first)
		t->callbacks.complete(t, t->data);
	else
		t->callbacks.changed(t, t->data);
}

static void target_rundown_over(struct target *t)
{
	/* What was lost while the rundown ran is not healed by it. */
	if (t->gap_from_ns && t->status.rundown_complete && t->gap_to_ns <= t->rundown_start_ns) {
		t->status.gaps_healed++;
		t->gap_from_ns = t->gap_to_ns = 0;
		log_info("pid %d: the gap is filled", (int)t->proc->pid);
	}
	target_is_live(t);
}

static int target_open_rundown(struct target *t, uint32_t mb);

static void target_rundown_opened(struct session *session, void *data)
{
	struct target *t = data;

	t->rundown_start_ns = clock_now_ns();
	session_stop(session, DEFAULT_RUNDOWN_DEADLINE_NS);
}

static void target_rundown_ended(struct session *session, enum session_end end, void *data)
{
	struct target *t = data;
	const struct feed_stats *stats = feed_get_stats(session_feed(session));
	const struct nettrace_stats *nt = nettrace_get_stats(feed_nettrace(session_feed(session)));
	bool complete = target_is_complete(session, end);
	bool native_aot = stats->native_aot && !stats->rundown_methods;
	uint64_t lost = nt->lost;
	struct pool *pool = t->pool; /* the target may be freed at its end */
	uint32_t cap;
	char text[600];

	snprintf(text, sizeof(text), "%s", session_end_text(session));
	t->status.rundown_ns = clock_now_ns() - t->rundown_start_ns;
	t->status.rundown_bytes = session_bytes(session);
	t->status.rundown_lost = lost;
	t->status.rundown_complete = complete;
	t->status.rundown_buffer_mb = t->rundown_mb;
	session_free(TAKE_PTR(t->rundown));
	if (t->status.state == TARGET_STOPPING) {
		target_leave_queue(t);
		if (!t->live && !t->old)
			target_finish(t, TARGET_STOPPED, "stopped");
		return;
	}
	if (end == SESSION_FAILED) {
		target_finish(t, TARGET_FAILED, text);
		return;
	}
	if (native_aot) {
		target_finish(t, TARGET_FAILED,
			      "a NativeAOT program: it has no JIT and announces no methods; its "
			      "ELF symbols name its code (keep the .dbg file beside it)");
		return;
	}
	/*
	 * A runtime that is suspended at start-up takes sessions, but has nothing to say, not even
	 * the head of a stream. The live session will see it from its first method on.
	 */
	if (end == SESSION_CUT && !t->status.rundown_bytes && !t->exited && t->live &&
	    session_is_open(t->live) && !session_bytes(t->live)) {
		target_leave_queue(t);
		if (t->opts.once) {
			target_finish(t, TARGET_FAILED,
				      "suspended at start-up: it has no code yet (resume it first)");
			return;
		}
		t->suspended = true;
		log_info("pid %d: suspended at start-up: waiting for whoever is to resume it",
			 (int)t->proc->pid);
		target_set_state(t, TARGET_LIVE);
		target_pump(pool);
		return;
	}
	/* A rundown that lost events is repeated once, with all the buffer that is decent. */
	cap = target_buffer_cap(t);
	if (!complete && end == SESSION_COMPLETE && lost && !t->retried && cap > t->rundown_mb) {
		t->retried = true;
		t->status.rundown_retries++;
		log_info("pid %d: the rundown lost %" PRIu64 " events with %u MB; once more with %u MB",
			 (int)t->proc->pid, lost, t->rundown_mb, cap);
		if (target_open_rundown(t, cap) == 0)
			return;
	}
	target_leave_queue(t);
	t->status.rundowns++;
	if (!complete && !t->exited) {
		if (end == SESSION_COMPLETE && lost)
			log_warn("pid %d: the rundown is incomplete: %" PRIu64
				 " events did not fit into the runtime's buffer",
				 (int)t->proc->pid, lost);
		else if (end == SESSION_COMPLETE)
			log_warn("pid %d: the runtime announced nothing of its code "
				 "(EventPipeRundown=0?); only what is compiled from now "
				 "on is known", (int)t->proc->pid);
		else
			log_warn("pid %d: the rundown is incomplete: %s", (int)t->proc->pid, text);
	}
	target_rundown_over(t);
	target_pump(pool);
}

static int target_open_rundown(struct target *t, uint32_t mb)
{
	static const struct session_callbacks callbacks = {
		.opened = target_rundown_opened,
		.ended = target_rundown_ended,
	};
	/* A provider there must be; one that never says anything will do. */
	static const struct diagipc_provider nothing = { .name = "clrsym-rundown" };
	struct session_options opts = {
		.version = t->version,
		.request = { .buffer_mb = mb,
			     .rundown_keywords = CLR_KEYWORD_LOADER | CLR_KEYWORD_JIT |
						 CLR_KEYWORD_NGEN |
						 (t->opts.il_maps ? CLR_KEYWORD_IL_MAP : 0),
			     .providers = &nothing,
			     .n_providers = 1 },
		.feed = { .il_maps = t->opts.il_maps,
			  .clock_offset_ns = t->proc->monotonic_offset_ns },
	};

	t->rundown_mb = mb;
	t->rundown_start_ns = clock_now_ns();
	return session_new(&t->rundown, t->pool, t->proc, &t->opts.socket, t->map, &opts, &callbacks,
			   t);
}

/* Starts the rundown whose turn it is. */
static void target_start_rundown(struct target *t)
{
	uint32_t cap = target_buffer_cap(t);
	int r;

	t->retried = false;
	if (cap < FLOOR_RUNDOWN_MB) {
		log_warn("pid %d: no rundown: only %u MB of buffer would fit under its memory limit; "
			 "what was compiled before is not known", (int)t->proc->pid, cap);
		t->status.rundown_buffer_mb = 0;
		target_leave_queue(t);
		target_is_live(t);
		return;
	}
	r = target_open_rundown(t, MIN(t->opts.buffer_mb, cap));
	if (r < 0)
		target_fail_errno(t, r);
}

/* Gives free turns to those who wait. */
static void target_pump(struct pool *pool)
{
	while (pool->waiting && pool->n_rundowns < CAP_RUNDOWNS) {
		struct target *t = pool->waiting;

		pool->waiting = t->next_waiting;
		t->queued = false;
		t->counted = true;
		pool->n_rundowns++;
		target_start_rundown(t);
	}
}

static void target_begin_rundown(struct target *t)
{
	struct target **pp = &t->pool->waiting;

	if (t->queued || t->rundown || !t->live || t->status.state == TARGET_STOPPING)
		return;
	while (*pp)
		pp = &(*pp)->next_waiting;
	*pp = t;
	t->next_waiting = NULL;
	t->queued = true;
	target_pump(t->pool);
}

/* -- which runtime is it? -------------------------------------------------------------- */

static void target_ask(struct target *t, enum diagipc_command command)
{
	int r;

	t->asked = command;
	r = call_start(&t->call, command, NULL, DEFAULT_IPC_DEADLINE_NS);
	if (r < 0)
		target_fail_errno(t, r);
}

static int target_new_map(struct target *t)
{
	struct codemap *map;
	int r;

	t->opts.map.no_il_maps = !t->opts.il_maps;
	r = codemap_new(&map, &t->opts.map);

	if (r < 0)
		return r;
	/* no session that fills the old map may outlive it */
	session_free(TAKE_PTR(t->old));
	session_free(TAKE_PTR(t->rundown));
	codemap_free(t->map);
	t->map = map;
	return 0;
}

/* The runtime is known. Is it the one whose code the map holds? */
static void target_identified(struct target *t, const uint8_t *cookie)
{
	uint64_t exec_id;
	bool same;
	int r;

	r = proc_exec_id(t->proc, &exec_id);
	if (r < 0) {
		target_fail_errno(t, r);
		return;
	}
	if (r) {
		target_finish(t, TARGET_EXITED, "the process has exited");
		return;
	}
	same = t->exec_id == exec_id &&
	       (!t->has_cookie || !cookie || memcmp(t->cookie, cookie, 16) == 0);

	t->has_cookie = cookie;
	if (cookie)
		memcpy(t->cookie, cookie, 16);
	if (t->status.incarnation && !same) {
		log_info("pid %d: another program now (exec): starting afresh", (int)t->proc->pid);
		r = target_new_map(t);
		if (r < 0) {
			target_fail_errno(t, r);
			return;
		}
		t->first_done = false;
		t->gap_from_ns = t->gap_to_ns = 0;
		t->last_rerundown_ns = 0;
	}
	if (!t->status.incarnation || !same)
		t->status.incarnation++;
	t->exec_id = exec_id;
	t->exec_tries = 0;
	target_open(t);
}

static void target_refuse(struct target *t, int result)
{
	const char *text = call_error_text(&t->call, result);
	bool may_pass = result == CALL_E_TIMEOUT || result == CALL_E_CLOSED ||
			(result == CALL_E_CONNECT && t->call.proc_error == PROC_E_BUSY);

	if (result < 0) {
		target_finish(t, TARGET_FAILED, text);
		return;
	}
	/* exec'ed just now: the new program may become a .NET process, or not */
	if (t->status.incarnation && result == CALL_E_CONNECT && ++t->exec_tries <= TARGET_EXEC_TRIES)
		may_pass = true;
	if (may_pass)
		target_again(t, text);
	else if (!proc_alive(t->proc))
		target_finish(t, TARGET_EXITED, "the process has exited");
	else
		target_finish(t, TARGET_FAILED, text);
}

static void target_answered(struct call *call, int result)
{
	struct target *t = container_of(call, struct target, call);
	struct diagipc_process_info info = { 0 };
	int r;

	/* 3.x knows no ProcessInfo at all */
	if (t->asked == DIAGIPC_PROCESS_INFO && result == CALL_E_REFUSED &&
	    call->reply.hresult == DIAGIPC_UNKNOWN_COMMAND) {
		t->version = (struct diagipc_version){ 3, 1, 0 };
		snprintf(t->status.runtime, sizeof(t->status.runtime), "3.x");
		target_identified(t, NULL);
		return;
	}
	if (t->asked == DIAGIPC_PROCESS_INFO && !result) {
		r = diagipc_parse_process_info(&call->reply, t->asked, &info);
		diagipc_process_info_deinit(&info);
		if (r)
			target_refuse(t, r < 0 ? r : CALL_E_MALFORMED);
		else
			target_ask(t, DIAGIPC_PROCESS_INFO2);
		return;
	}
	/* 5 knows no ProcessInfo2: the fallback of commands finds what it does know */
	if (result == CALL_E_REFUSED && call->reply.hresult == DIAGIPC_UNKNOWN_COMMAND) {
		t->version = (struct diagipc_version){ 5, 0, 0 };
		snprintf(t->status.runtime, sizeof(t->status.runtime), "5.x");
		target_identified(t, NULL);
		return;
	}
	if (result) {
		target_refuse(t, result);
		return;
	}
	r = diagipc_parse_process_info(&call->reply, t->asked, &info);
	if (r) {
		diagipc_process_info_deinit(&info);
		target_refuse(t, r < 0 ? r : CALL_E_MALFORMED);
		return;
	}
	t->version = info.version;
	snprintf(t->status.runtime, sizeof(t->status.runtime), "%s",
		 info.version_text ? escape_terminal(info.version_text, strlen(info.version_text))
				   : "?");
	target_identified(t, info.cookie);
	diagipc_process_info_deinit(&info);
}

static void target_connect(struct target *t)
{
	target_set_state(t, TARGET_CONNECTING);
	target_ask(t, DIAGIPC_PROCESS_INFO);
}

/* -- the target ----------------------------------------------------------------------- */

static void target_exit_deadline(struct loop_timer *timer)
{
	struct target *t = container_of(timer, struct target, timer);

	target_finish(t, TARGET_EXITED, "the process has exited");
}

static void target_has_exited(struct loop_fd *source, uint32_t events UNUSED)
{
	struct target *t = container_of(source, struct target, exit_io);

	t->exited = true;
	loop_fd_del(&t->exit_io);
	loop_timer_del(&t->heal_timer);
	/* What the streams still hold is read to their end, which is near. */
	if (!t->live || !session_is_open(t->live) ||
	    loop_timer_set(t->pool->loop, &t->timer, clock_now_ns() + SEC_NS(2),
			   target_exit_deadline) < 0)
		target_finish(t, TARGET_EXITED, "the process has exited");
}

static void target_expire(struct loop_timer *timer)
{
	struct target *t = container_of(timer, struct target, expire_timer);
	uint64_t now = clock_now_ns();

	codemap_expire(t->map, now);
	if (t->gap_from_ns || t->rundown_again)
		target_schedule_heal(t);
	loop_timer_set(t->pool->loop, &t->expire_timer, now + TARGET_EXPIRE_NS, target_expire);
}

int target_new(struct target **outp, struct pool *pool, struct proc *proc,
	       const struct target_options *opts, const struct target_callbacks *callbacks,
	       void *data)
{
	_cleanup_(target_freep) struct target *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return -ENOMEM;
	t->pool = pool;
	t->opts = *opts;
	if (!t->opts.buffer_mb)
		t->opts.buffer_mb = DEFAULT_BUFFER_MB;
	if (!t->opts.rerundown_gap_ns)
		t->opts.rerundown_gap_ns = DEFAULT_RERUNDOWN_GAP_NS;
	t->rerundown_gap_ns = t->opts.rerundown_gap_ns;
	t->callbacks = *callbacks;
	t->data = data;
	t->retry_ns = TARGET_RETRY_FIRST_NS;
	call_init(&t->call, pool->loop, proc, &t->opts.socket, target_answered);
	r = target_new_map(t);
	if (r < 0)
		return r;
	t->proc = proc;
	*outp = TAKE_PTR(t);
	return 0;
}

void target_free(struct target *t)
{
	if (!t)
		return;
	target_release(t);
	call_deinit(&t->call);
	codemap_free(t->map);
	proc_close(t->proc);
	free(t);
}

int target_start(struct target *t)
{
	int r;

	r = loop_fd_add(t->pool->loop, &t->exit_io, t->proc->pid_fd, EPOLLIN, target_has_exited);
	if (r < 0)
		return r;
	r = loop_timer_set(t->pool->loop, &t->expire_timer, clock_now_ns() + TARGET_EXPIRE_NS,
			   target_expire);
	if (r < 0)
		return r;
	target_connect(t);
	return 0;
}

static void target_stop_deadline(struct loop_timer *timer)
{
	struct target *t = container_of(timer, struct target, stop_timer);

	target_finish(t, TARGET_STOPPED, "stopped, without an answer of the runtime");
}

void target_stop(struct target *t, uint64_t timeout_ns)
{
	int r;

	if (t->status.state == TARGET_STOPPING || t->status.state == TARGET_ENDED)
		return;
	t->status.state = TARGET_STOPPING;
	loop_timer_del(&t->timer);
	loop_timer_del(&t->heal_timer);
	call_cancel(&t->call);
	session_free(TAKE_PTR(t->next));
	if (!t->rundown)
		target_leave_queue(t);
	r = loop_timer_set(t->pool->loop, &t->stop_timer, clock_now_ns() + timeout_ns,
			   target_stop_deadline);
	if (r < 0 || (!t->live && !t->rundown && !t->old)) {
		target_finish(t, TARGET_STOPPED, "stopped");
		return;
	}
	if (t->rundown)
		session_stop(t->rundown, timeout_ns);
	if (t->live)
		session_stop(t->live, timeout_ns);
}

struct codemap *target_map(struct target *t)
{
	return t->map;
}

const struct proc *target_proc(const struct target *t)
{
	return t->proc;
}

void target_get_status(const struct target *t, struct target_status *status)
{
	*status = t->status;
	if (t->live) {
		const struct feed_stats *stats = feed_get_stats(session_feed(t->live));

		status->live_bytes += session_bytes(t->live);
		status->max_delay_ns = MAX(status->max_delay_ns, stats->max_delay_ns);
		status->late += stats->late;
	}
	if (t->rundown)
		status->rundown_bytes = session_bytes(t->rundown);
}

uint64_t target_known_until(struct target *t)
{
	struct target_status status;
	uint64_t read_until, delay, known;

	if (t->gap_from_ns)
		return t->gap_from_ns;
	if (!t->first_done || !t->live)
		return 0;
	target_get_status(t, &status);
	delay = MAX(FLOOR_DELAY_NS, 2 * status.max_delay_ns);
	read_until = session_read_until(t->live);
	known = read_until > delay ? read_until - delay : 0;
	feed_promise(session_feed(t->live), known);
	return known;
}

const char *target_end_text(const struct target *t)
{
	return t->end_text;
}
