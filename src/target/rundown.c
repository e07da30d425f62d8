/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Session B, the rundown: opened, stopped at once, drained.
 *
 * The runtime makes the whole rundown in its buffer and sends it when it is over; what does not
 * fit is dropped, and only sequence numbers tell. Such a rundown is repeated once with all the
 * buffer that is decent to ask of the target's memory. Few run at once on the machine: targets
 * queue for their turn.
 */
#include "target/state.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "clr/clr.h"

/* -- the rundown ---------------------------------------------------------------------- */

static bool target_is_complete(struct session *session, enum session_end end)
{
	struct feed *feed = session_feed(session);

	return end == SESSION_COMPLETE && !nettrace_get_stats(feed_nettrace(feed))->lost &&
	       feed_get_stats(feed)->rundown_complete_mark;
}

/* MB that a buffer may take of the target's memory. */
uint32_t target_buffer_cap(const struct target *t)
{
	uint64_t room = proc_memory_room(t->proc) / BUFFER_ROOM_SHARE / MIB(1);

	return (uint32_t)MIN(room, (uint64_t)CAP_BUFFER_MB);
}

static int target_want_code(void *data, const struct codemap_body *body)
{
	struct target *t = data;
	struct codemap_info info;

	codemap_body_info(t->map, body, &info);
	/* precompiled code is in its file, too */
	if (info.unload == UINT64_MAX && names_is_jitted(info.flags))
		code_want(t->code, &info);
	return 0;
}

/* The first rundown of an incarnation is over, for better or worse. Last, as it calls back. */
static void target_is_live(struct target *t)
{
	bool first = !t->first_done;

	t->first_done = true;
	target_set_state(t, TARGET_LIVE);
	if (t->gap_from_ns || t->rundown_again)
		target_schedule_heal(t);
	/* what was compiled before may go, with its process, like what comes later */
	if (first && t->opts.keep_code && target_code_store(t))
		codemap_each(t->map, target_want_code, t);
	if (first)
		t->callbacks.complete(t, t->data);
	else
		t->callbacks.changed(t, t->data);
}

static void target_rundown_over(struct target *t)
{
	/* What was lost while the rundown ran is not healed by it. */
	bool healed =
		t->gap_from_ns && t->status.rundown_complete && t->gap_to_ns <= t->rundown_start_ns;

	codemap_census_end(t->map, t->gap_from_ns, healed ? t->gap_to_ns : 0);
	if (healed) {
		t->status.gaps_healed++;
		t->gap_from_ns = t->gap_to_ns = 0;
		log_info("pid %d: the gap is filled", (int)t->proc->pid);
	}
	target_is_live(t);
}

static int target_open_rundown(struct target *t, uint32_t mb);

static void target_rundown_progress(struct session *session UNUSED, void *data)
{
	struct target *t = data;

	t->callbacks.changed(t, t->data);
}

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
			target_finish(
				t, TARGET_FAILED,
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
		log_info("pid %d: the rundown lost %" PRIu64
			 " events with %u MB; once more with %u MB",
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
				 "on is known",
				 (int)t->proc->pid);
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
		.progress = target_rundown_progress,
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
	int r;

	t->rundown_mb = mb;
	t->rundown_start_ns = clock_now_ns();
	r = session_new(&t->rundown, t->pool, t->proc, &t->opts.socket, t->map, &opts, &callbacks,
			t);
	if (r < 0)
		return r;
	feed_set_loader(session_feed(t->rundown), t->loader);
	/* without memory what is gone stays until something else takes its place */
	if (t->gap_from_ns && codemap_census_begin(t->map) < 0)
		log_warn("pid %d: out of memory: what was unloaded unseen may stay",
			 (int)t->proc->pid);
	return 0;
}

/* Starts the rundown whose turn it is. */
static void target_start_rundown(struct target *t)
{
	uint32_t cap = target_buffer_cap(t);
	int r;

	t->retried = false;
	if (cap < FLOOR_RUNDOWN_MB) {
		log_warn("pid %d: no rundown: only %u MB of buffer would fit under its memory "
			 "limit; "
			 "what was compiled before is not known",
			 (int)t->proc->pid, cap);
		t->status.rundown_buffer_mb = 0;
		target_leave_queue(t);
		target_is_live(t);
		return;
	}
	r = target_open_rundown(t, MIN(t->opts.buffer_mb, cap));
	if (r < 0)
		target_fail_errno(t, r);
}

/* -- turns -------------------------------------------------------------------------- */

void target_leave_queue(struct target *t)
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

/* Gives free turns to those who wait. */
void target_pump(struct pool *pool)
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

void target_begin_rundown(struct target *t)
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
