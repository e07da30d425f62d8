/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state machine of one target. The happy path:
 *
 *   CONNECTING  ProcessInfo (unknown to 3.x, which is how 3.x is told), then ProcessInfo2
 *   OPENING     session A
 *   RUNDOWN     session B, opened, stopped at once, drained; once more at the cap if it lost events
 *   LIVE        until the process ends or target_stop()
 *
 * What goes wrong leads to WAITING (try again later, with growing pauses) or to ENDED. A stream
 * that ends while the process lives leads back to CONNECTING: the runtime's cookie, or the kernel's
 * view of the executed program, then tells whether it is still the same incarnation.
 */
#include "target/state.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/escape.h"

#define TARGET_RETRY_LAST_NS SEC_NS(60)
/* A program that was exec'ed has 25 s in all to become a .NET process. */
#define TARGET_EXEC_TRIES 8u
#define TARGET_EXPIRE_NS  SEC_NS(1)

/* -- the end -------------------------------------------------------------------------- */

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

void target_finish(struct target *t, enum target_end end, const char *text)
{
	struct pool *pool = t->pool;

	if (t->status.state == TARGET_ENDED)
		return;
	/* a stream that an exit ended in good order has told everything up to its end */
	if (end == TARGET_EXITED)
		t->final_ns = MAX(t->final_ns, t->told_ns);
	t->status.state = TARGET_ENDED;
	t->status.end = end;
	snprintf(t->end_text, sizeof(t->end_text), "%s", text);
	target_release(t);
	t->callbacks.ended(t, end, t->data);
	target_pump(pool);
}

void target_fail_errno(struct target *t, int error)
{
	target_finish(t, TARGET_FAILED, strerror(-error));
}

const char *target_state_text(enum target_state state)
{
	static const char *const words[] = { "connecting", "opening",  "rundown", "live",
					     "waiting",    "stopping", "ended" };

	return words[state];
}

void target_set_state(struct target *t, enum target_state state)
{
	if (t->status.state == state)
		return;
	t->status.state = state;
	log_debug("pid %d: %s", (int)t->proc->pid, target_state_text(state));
	t->callbacks.changed(t, t->data);
}

static void target_retry(struct loop_timer *timer)
{
	target_connect(container_of(timer, struct target, timer));
}

/* A failure that may pass: try again later, unless once was enough. */
void target_again(struct target *t, const char *text)
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
	if (t->retry_ns >= TARGET_RETRY_FIRST_NS &&
	    log_limit_pass(&t->limit, clock_now_ns(), &dropped))
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

/* -- which runtime is it? -------------------------------------------------------------- */

static void target_ask(struct target *t, enum diagipc_command command)
{
	int r;

	t->asked = command;
	r = call_start(&t->call, command, NULL, DEFAULT_IPC_DEADLINE_NS);
	if (r < 0)
		target_fail_errno(t, r);
}

static void target_set_began(struct target *t, uint64_t ns)
{
	t->began_ns = ns;
	codemap_set_begin(t->map, ns);
}

/* For a program that began at that time. */
static int target_new_map(struct target *t, uint64_t began_ns)
{
	_cleanup_(codemap_freep) struct codemap *map = NULL;
	struct loader *loader;
	int r;

	t->opts.map.no_il_maps = !t->opts.il_maps;
	r = codemap_new(&map, &t->opts.map);
	if (r == 0)
		r = loader_new(&loader);
	if (r < 0)
		return r;
	/* no session that fills the old map may outlive it */
	session_free(TAKE_PTR(t->old));
	session_free(TAKE_PTR(t->rundown));
	code_free(TAKE_PTR(t->code));
	codemap_free(t->map);
	loader_free(t->loader);
	t->map = TAKE_PTR(map);
	t->loader = loader;
	target_set_began(t, began_ns);
	t->anew = true;
	return 0;
}

int target_forget(struct target *t, uint64_t exec_id)
{
	/* the kernel closed the old program's stream; without one, the exec is noticed now */
	int r = target_new_map(t, t->stream_end_ns ? t->stream_end_ns : clock_now_ns());

	if (r < 0)
		return r;
	log_info("pid %d: another program now (exec): starting afresh", (int)t->proc->pid);
	t->exec_id = exec_id;
	t->first_done = false;
	t->gap_from_ns = t->gap_to_ns = 0;
	t->last_rerundown_ns = 0;
	t->callbacks.changed(t, t->data);
	return 0;
}

/* The runtime is known. Is it the one whose code the map holds? */
static void target_identified(struct target *t, const uint8_t *cookie)
{
	uint64_t exec_id;
	bool same;
	int r;

	r = proc_exec_id(t->proc, &exec_id);
	if (r > 0) {
		target_finish(t, TARGET_EXITED, "the process has exited");
		return;
	}
	same = t->exec_id == exec_id &&
	       (!t->has_cookie || !cookie || memcmp(t->cookie, cookie, 16) == 0);
	if (r == 0 && !t->anew && !same)
		r = target_forget(t, exec_id);
	if (r < 0) {
		target_fail_errno(t, r);
		return;
	}
	/* one more exec since the map was emptied */
	if (t->status.incarnation && t->exec_id != exec_id)
		target_set_began(t, clock_now_ns());
	t->status.incarnation += t->anew;
	t->anew = false;
	t->exec_id = exec_id;
	t->has_cookie = cookie;
	if (cookie)
		memcpy(t->cookie, cookie, 16);
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
	if (t->status.incarnation && result == CALL_E_CONNECT &&
	    ++t->exec_tries <= TARGET_EXEC_TRIES)
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

void target_connect(struct target *t)
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
	r = target_new_map(t, proc_start_ns(proc));
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
	code_free(t->code);
	codemap_free(t->map);
	loader_free(t->loader);
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

struct loader *target_loader(struct target *t)
{
	return t->loader;
}

uint64_t target_began(const struct target *t)
{
	return t->began_ns;
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

	if (t->status.state == TARGET_ENDED)
		return t->final_ns;
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

struct code *target_code_store(struct target *t)
{
	if (!t->code && code_new(&t->code, t->pool->loop, t->proc, t->map) < 0)
		return NULL;
	return t->code;
}

int target_keep_body(struct target *t, const struct codemap_info *info)
{
	return target_code_store(t) ? code_keep(t->code, info) : -ENOMEM;
}

int target_code(struct target *t, const struct codemap_info *info, const uint8_t **codep)
{
	return t->code ? code_get(t->code, info, target_known_until(t), codep) : CODE_E_NONE;
}

void target_get_code_stats(const struct target *t, struct code_stats *stats)
{
	*stats = (struct code_stats){ 0 };
	if (t->code)
		code_get_stats(t->code, stats);
}

const char *target_end_text(const struct target *t)
{
	return t->end_text;
}
