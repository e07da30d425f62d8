/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Session A, the live one: open from the attach to the end.
 *
 * It is asked for the few events that tell of code. Events that it lost (the runtime's buffer was
 * full, or the stream could not be followed) are a gap: the code map says so for those times, and
 * a rundown that starts later fills it. When the stream ends, the process has exited, runs
 * another program, or its runtime ended our session: a moment later the process is looked at.
 *
 * A wider session (IL maps) is opened beside A and takes over before A is stopped, so
 * that no event falls between the two.
 */
#include "target/state.h"

#include <inttypes.h>

#include "base/caps.h"
#include "base/clock.h"
#include "clr/clr.h"

/* After a stream's end: the kernel tells of the exit a little later than of the socket. */
#define TARGET_EXIT_WAIT_NS MS_NS(200)
/* A program that was exec'ed may be a .NET process soon: tries in quick succession at first. */
#define TARGET_RETRY_EXEC_NS MS_NS(100)
/* Streams that cannot be followed, one after the other. */
#define TARGET_CORRUPT_TRIES 5u
/* Hardly a method takes longer to compile than the tries take together. */
#define TARGET_COMPILE_WAIT_NS MS_NS(5)
#define TARGET_COMPILE_TRIES   10u
/* A stream that could be followed for so long was not one of a series of bad ones. */
#define TARGET_GOOD_STREAM_NS SEC_NS(60)
/* From the first event of a runtime that was suspended at start-up to its rundown. */
#define TARGET_RESUME_WAIT_NS SEC_NS(1)

/* -- the live session ----------------------------------------------------------------- */

/* Everything the code map needs, nothing else: fewer events are less work for the target. */
static const uint32_t target_event_ids[] = { 141, 142, 143, 144, 151, 152,
					     153, 154, 155, 156, 157, 190 };
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
		.request = { .buffer_mb = MAX(MIN(t->opts.buffer_mb, target_buffer_cap(t)), 1u),
			     .providers = &providers[t->opts.il_maps],
			     .n_providers = 1 },
		.feed = { .il_maps = t->opts.il_maps,
			  .clock_offset_ns = t->proc->monotonic_offset_ns },
		.live = true,
	};
	int r;

	r = session_new(sessionp, t->pool, t->proc, &t->opts.socket, t->map, &opts, callbacks, t);
	if (r == 0)
		feed_set_loader(session_feed(*sessionp), t->loader);
	return r;
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
void target_schedule_heal(struct target *t)
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
			 "%s",
			 (int)t->proc->pid, n,
			 t->opts.once ? "some code may be missing"
				      : "a new rundown will fill the gap");
}

static void target_lost(void *data, uint64_t n, uint64_t from, uint64_t to)
{
	struct target *t = data;

	target_gap(t, n, from, to);
	target_schedule_heal(t);
}

static void target_loaded(void *data, const struct codemap_body *body)
{
	struct target *t = data;
	struct codemap_info info;

	if (!t->opts.keep_code || !target_code_store(t))
		return;
	codemap_body_info(t->map, body, &info);
	code_want(t->code, &info);
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

/*
 * The runtime decides before it compiles a method whether it will announce it: what is being
 * compiled now is in no live session, and in a rundown only when it is done. So the rundown waits
 * for a moment when no thread runs, or for long enough.
 */
static void target_compiled(struct loop_timer *timer)
{
	struct target *t = container_of(timer, struct target, timer);

	if (t->compile_tries++ < TARGET_COMPILE_TRIES && proc_may_compile(t->proc) &&
	    loop_timer_set(t->pool->loop, &t->timer, clock_now_ns() + TARGET_COMPILE_WAIT_NS,
			   target_compiled) == 0)
		return;
	target_begin_rundown(t);
}

static void target_live_opened(struct session *session, void *data)
{
	struct target *t = data;

	feed_on_lost(session_feed(session), target_lost, t);
	feed_on_load(session_feed(session), target_loaded, t);
	t->retry_ns = TARGET_RETRY_FIRST_NS;
	t->live_opened_ns = clock_now_ns();
	target_set_state(t, TARGET_RUNDOWN);
	if (t->opts.il_maps && !t->live_lines)
		target_open_next(t); /* widened while it was being opened */
	t->compile_tries = 0;
	target_compiled(&t->timer);
}

static void target_look_again(struct loop_timer *timer)
{
	struct target *t = container_of(timer, struct target, timer);
	uint64_t exec_id;
	int r;

	if (!proc_alive(t->proc) || proc_exec_id(t->proc, &exec_id)) {
		target_finish(t, TARGET_EXITED, "the process has exited");
		return;
	}
	if (t->told_ns)
		codemap_gap(t->map, t->seen_ns, t->gap_to_ns);
	t->told_ns = 0;
	/* another program: nothing that was known is true any more, whatever it will turn out to be
	 */
	if (exec_id != t->exec_id && !t->anew) {
		r = target_forget(t, exec_id);
		if (r < 0) {
			target_fail_errno(t, r);
			return;
		}
	}
	t->stream_end_ns = 0; /* says nothing of an exec that comes later */
	target_connect(t);
}

static void target_live_ended(struct session *session, enum session_end end, void *data)
{
	struct target *t = data;
	const struct feed_stats *stats = feed_get_stats(session_feed(session));
	/* a quiet process was known to be quiet */
	uint64_t known = MAX(stats->newest_ns, target_known_until(t));
	uint64_t seen = MAX(known, t->rundown_start_ns), now = clock_now_ns();
	uint64_t noticed = session_read_until(session);
	struct pool *pool = t->pool; /* the target may be freed at its end */
	char text[600];
	int r;

	snprintf(text, sizeof(text), "%s", session_end_text(session));
	t->status.live_bytes += session_bytes(session);
	t->status.max_delay_ns = MAX(t->status.max_delay_ns, stats->max_delay_ns);
	t->status.late += stats->late;
	t->final_ns = known;
	t->told_ns = end == SESSION_COMPLETE ? noticed : 0;
	t->seen_ns = seen;
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
	/*
	 * From what was seen last until a new session is open, nothing is known. What ended in good
	 * order is mostly an exit, which the kernel tells of a moment later: then nothing is lost.
	 */
	if (!t->told_ns)
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
	t->stream_end_ns = noticed;
	r = loop_timer_set(t->pool->loop, &t->timer, now + TARGET_EXIT_WAIT_NS, target_look_again);
	if (r < 0)
		target_fail_errno(t, r);
	target_pump(pool);
}

static const struct session_callbacks target_live_callbacks = {
	.opened = target_live_opened,
	.ended = target_live_ended,
	.progress = target_live_progress,
};

void target_open(struct target *t)
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
	feed_on_load(session_feed(session), target_loaded, t);
	t->old = TAKE_PTR(t->live);
	t->live = TAKE_PTR(t->next);
	session_set_callbacks(t->live, &target_live_callbacks);
	session_set_callbacks(t->old, &(struct session_callbacks){ .ended = target_old_ended });
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

int target_open_next(struct target *t)
{
	static const struct session_callbacks callbacks = {
		.opened = target_next_opened,
		.ended = target_next_ended,
	};

	return target_open_live(t, &t->next, &callbacks);
}

void target_rundown_again(struct target *t)
{
	if (t->status.state != TARGET_LIVE || t->rundown || t->queued)
		return;
	t->last_rerundown_ns = clock_now_ns();
	target_begin_rundown(t);
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
