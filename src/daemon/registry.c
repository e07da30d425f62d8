/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The targets of a daemon. An entry owns what one process costs: the lock that makes us its one
 * keeper, its target and its map files. Entries of processes that have exited linger, first
 * without their files, then not at all; those of processes that could not be attached go at once.
 */
#include "daemon/registry.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "proc/peer.h"

#define PID_BUCKETS 256u
/* Holds for a time are looked at so often. */
#define HOLD_CHECK_NS SEC_NS(1)

struct registry {
	struct loop *loop;
	struct pool pool;
	struct attach_options opts;
	struct registry_hooks hooks;
	struct entry *entries;
	struct entry *by_pid[PID_BUCKETS];
	struct loop_timer hold_timer; /* armed while there are holds for a time */
	unsigned int running;         /* entries that have not ended */
	bool any_complete, stopping;
	bool serve;             /* goes on without targets */
	struct log_limit limit; /* of what clients can provoke */
};

static struct entry **pid_bucket(struct registry *reg, pid_t pid)
{
	return &reg->by_pid[(unsigned int)pid % PID_BUCKETS];
}

static void entry_unlink(struct entry *e)
{
	struct entry **pp;

	for (pp = &e->reg->entries; *pp && *pp != e; pp = &(*pp)->next)
		;
	if (*pp)
		*pp = e->next;
	for (pp = pid_bucket(e->reg, e->proc->pid); *pp && *pp != e; pp = &(*pp)->next_same)
		;
	if (*pp)
		*pp = e->next_same;
}

/* why: what the hooks are told. */
static void entry_free(struct entry *e, const char *why)
{
	struct registry *reg = e->reg;

	if (reg->hooks.gone)
		reg->hooks.gone(reg->hooks.data, e, why);
	entry_unlink(e);
	loop_timer_del(&e->linger);
	places_free(e->places);
	perfmap_free(e->perfmap);
	proc_unlock(e->proc, e->lock_fd);
	target_free(e->target);
	free(e->holds);
	free(e);
}

/* -- after the exit ------------------------------------------------------------------- */

static void entry_expired(struct loop_timer *timer)
{
	struct entry *e = container_of(timer, struct entry, linger);
	uint64_t now = clock_now_ns();

	if (!e->files_gone) {
		e->files_gone = true;
		if (e->perfmap)
			perfmap_remove(e->perfmap);
		if (loop_timer_set(e->reg->loop, timer,
				   now + DEFAULT_EXIT_ANSWERS_NS - DEFAULT_EXIT_MAP_NS,
				   entry_expired) == 0)
			return;
	}
	entry_free(e, NULL);
}

static void registry_check_end(struct registry *reg)
{
	if (!reg->running && (!reg->serve || reg->stopping))
		loop_stop(reg->loop, 0);
}

static void entry_changed(struct entry *e)
{
	struct registry *reg = e->reg;

	if (reg->hooks.changed)
		reg->hooks.changed(reg->hooks.data, e);
}

/* Clients may attach and detach as fast as they like: the log does not grow with it. */
static bool may_say(struct entry *e)
{
	uint32_t dropped;

	return e->told || log_limit_pass(&e->reg->limit, clock_now_ns(), &dropped);
}

static void on_ended(struct target *target, enum target_end end, void *data)
{
	struct entry *e = data;
	struct registry *reg = e->reg;
	int pid = (int)target_proc(target)->pid;

	e->ended = true;
	e->ended_ns = clock_now_ns();
	reg->running--;
	if (may_say(e))
		log_line(end == TARGET_FAILED ? LOG_ERROR : LOG_INFO, "pid %d: %s", pid,
			 target_end_text(target));
	if (e->perfmap && e->complete &&
	    (end == TARGET_FAILED || (end == TARGET_STOPPED && !reg->stopping)))
		perfmap_remove(e->perfmap); /* the process lives on, and its map would turn false */
	else if (e->perfmap)
		perfmap_forget(e->perfmap);
	entry_changed(e);
	if (end == TARGET_FAILED || !e->complete || (end == TARGET_STOPPED && !reg->stopping))
		entry_free(e,
			   target_end_text(target)); /* it has no answers, or nobody wants them */
	else if (end == TARGET_EXITED && !reg->stopping && (reg->serve || reg->running) &&
		 loop_timer_set(reg->loop, &e->linger, clock_now_ns() + DEFAULT_EXIT_MAP_NS,
				entry_expired) < 0)
		log_warn("pid %d: out of memory: its map stays behind", pid);
	registry_check_end(reg);
}

/* -- while it runs -------------------------------------------------------------------- */

static void on_changed(struct target *target, void *data)
{
	struct entry *e = data;
	struct target_status status;

	/* before anything of a program is known: a set-uid one's code is its owner's to see, and
	 * stays that after its exit, when the kernel cannot be asked any more */
	target_get_status(target, &status);
	if (e->incarnation != status.incarnation) {
		e->incarnation = status.incarnation;
		proc_refresh_ids(e->proc);
	}
	entry_changed(e);
	if (!e->perfmap)
		return;
	/* another program: the old one's map is freed, and its file would name the wrong code */
	if (e->shown && e->shown != target_map(target)) {
		perfmap_remove(e->perfmap);
		e->shown = NULL;
	}
	if (e->shown)
		perfmap_changed(e->perfmap, e->shown);
}

static void on_complete(struct target *target, void *data)
{
	struct entry *e = data;
	struct target_status status;
	struct codemap_stats stats;

	e->complete = true;
	e->reg->any_complete = true;
	target_get_status(target, &status);
	codemap_get_stats(target_map(target), &stats);
	if (may_say(e))
		log_info("pid %d: .NET %s: %zu code bodies (%zu precompiled) known after a "
			 "rundown of "
			 "%" PRIu64 " ms, %" PRIu64 " KB",
			 (int)target_proc(target)->pid, status.runtime, stats.live, stats.live_r2r,
			 status.rundown_ns / MS_NS(1), status.rundown_bytes >> 10);
	if (e->places || places_new(&e->places) == 0)
		places_refresh(e->places, e->proc, clock_now_ns());
	entry_changed(e);
	if (!e->perfmap)
		return;
	perfmap_forget(e->perfmap);
	e->shown = target_map(target);
	perfmap_write(e->perfmap, e->shown, NULL, NULL);
}

/* -- who wants it ----------------------------------------------------------------------- */

static void entry_stop(struct entry *e)
{
	if (e->ended || e->stopping)
		return;
	e->stopping = true;
	target_stop(e->target, DEFAULT_STOP_DEADLINE_NS);
}

static void drop_hold(struct entry *e, size_t i)
{
	e->holds[i] = e->holds[--e->n_holds];
}

static void holds_check(struct loop_timer *timer)
{
	struct registry *reg = container_of(timer, struct registry, hold_timer);
	uint64_t now = clock_now_ns();
	struct entry *e, *next;
	bool any = false;
	size_t i;

	for (e = reg->entries; e; e = next) {
		bool had = e->n_holds;

		next = e->next;
		for (i = e->n_holds; i-- > 0;)
			if (e->holds[i].until_ns && e->holds[i].until_ns <= now)
				drop_hold(e, i);
		for (i = 0; i < e->n_holds; i++)
			any |= e->holds[i].until_ns != 0;
		/* the end of one may free others: their turn comes next time */
		if (had && !e->n_holds && !e->told && !e->ended && !e->stopping) {
			any = true;
			entry_stop(e);
			break;
		}
	}
	if (any)
		loop_timer_set(reg->loop, timer, now + HOLD_CHECK_NS, holds_check);
}

static struct hold *find_hold(struct entry *e, uid_t uid)
{
	size_t i;

	for (i = 0; i < e->n_holds; i++)
		if (e->holds[i].uid == uid)
			return &e->holds[i];
	return NULL;
}

int entry_hold(struct entry *e, uid_t uid, uint64_t period_ns)
{
	struct registry *reg = e->reg;
	struct hold *hold = find_hold(e, uid), *more;

	if (period_ns && !reg->hold_timer.loop &&
	    loop_timer_set(reg->loop, &reg->hold_timer, clock_now_ns() + HOLD_CHECK_NS,
			   holds_check) < 0)
		return -ENOMEM;
	if (!hold) {
		more = realloc(e->holds, (e->n_holds + 1) * sizeof(*more));
		if (!more)
			return -ENOMEM;
		e->holds = more;
		hold = &more[e->n_holds++];
		*hold = (struct hold){ .uid = uid, .period_ns = period_ns };
	} else if (!hold->period_ns || !period_ns) {
		hold->period_ns = 0; /* for good is longer */
	} else {
		hold->period_ns = MAX(hold->period_ns, period_ns);
	}
	hold->until_ns = hold->period_ns ? clock_now_ns() + hold->period_ns : 0;
	return 0;
}

void entry_touch(struct entry *e, uid_t uid)
{
	struct hold *hold = e->n_holds ? find_hold(e, uid) : NULL;

	if (hold && hold->period_ns)
		hold->until_ns = clock_now_ns() + hold->period_ns;
}

bool entry_release(struct entry *e, uid_t uid)
{
	struct hold *hold = find_hold(e, uid);

	if (!hold)
		return false;
	drop_hold(e, (size_t)(hold - e->holds));
	if (!e->n_holds && !e->told)
		entry_stop(e);
	return true;
}

size_t registry_count_holds(const struct registry *reg, uid_t uid, bool ended)
{
	struct entry *e;
	size_t n = 0;

	for (e = reg->entries; e; e = e->next)
		n += (ended || !e->ended) && find_hold(e, uid);
	return n;
}

/* -- the registry --------------------------------------------------------------------- */

int registry_new(struct registry **outp, struct loop *loop, const struct attach_options *opts,
		 bool serve)
{
	struct registry *reg = calloc(1, sizeof(*reg));

	if (!reg)
		return -ENOMEM;
	reg->loop = loop;
	reg->pool.loop = loop;
	reg->opts = *opts;
	reg->serve = serve;
	*outp = reg;
	return 0;
}

void registry_free(struct registry *reg)
{
	if (!reg)
		return;
	while (reg->entries)
		entry_free(reg->entries, "the daemon stops");
	loop_timer_del(&reg->hold_timer);
	free(reg);
}

void registry_set_hooks(struct registry *reg, const struct registry_hooks *hooks)
{
	reg->hooks = *hooks;
}

/* Lock, map files, target. Takes proc over, whatever happens. Returns as registry_attach(). */
static int registry_add(struct registry *reg, struct proc *proc, struct entry **outp, char *why,
			size_t why_size)
{
	static const struct target_callbacks callbacks = {
		.changed = on_changed,
		.complete = on_complete,
		.ended = on_ended,
	};
	struct entry *e = calloc(1, sizeof(*e)), **bucket = pid_bucket(reg, proc->pid);
	pid_t holder = 0;
	uint32_t dropped;
	int r;

	if (!e) {
		proc_close(proc);
		return -ENOMEM;
	}
	e->reg = reg;
	e->proc = proc;
	e->lock_fd = -1;
	e->attach_ns = clock_now_ns();
	r = proc_lock(proc, &e->lock_fd, &holder);
	if (r == PROC_E_LOCKED)
		snprintf(why, why_size, "process %d (clrsym or clrsymd) keeps its map already",
			 (int)holder);
	else if (r > 0)
		snprintf(why, why_size, "%s", proc_error_text(proc, r, NULL));
	if (r)
		goto fail;
	r = perfmap_new(&e->perfmap, reg->loop, proc, &reg->opts.map);
	if (r < 0)
		goto fail;
	if (r > 0 && log_limit_pass(&reg->limit, clock_now_ns(), &dropped))
		log_warn("pid %d: no map is kept: %s", (int)proc->pid,
			 proc_error_text(proc, r, NULL));
	r = target_new(&e->target, &reg->pool, proc, &reg->opts.target, &callbacks, e);
	if (r < 0)
		goto fail;
	e->next = reg->entries;
	reg->entries = e;
	e->next_same = *bucket;
	*bucket = e;
	reg->running++;
	/* from here on the target owns proc, and reports its own failures */
	r = target_start(e->target);
	if (r < 0) {
		reg->running--;
		entry_free(e, strerror(-r));
		return r;
	}
	/* it may have ended already, for want of memory */
	*outp = reg->entries == e ? e : NULL;
	return *outp ? 0 : -ENOMEM;
fail:
	perfmap_free(e->perfmap);
	if (e->lock_fd >= 0)
		proc_unlock(proc, e->lock_fd);
	proc_close(proc);
	free(e);
	return MIN(r, 1);
}

int registry_attach(struct registry *reg, pid_t pid, struct entry **outp, char *why,
		    size_t why_size)
{
	struct proc *proc = NULL;
	struct entry *e;
	int r;

	r = proc_open(pid, &proc);
	if (r > 0)
		snprintf(why, why_size, "%s", proc_error_text(NULL, r, NULL));
	if (r)
		return MIN(r, 1);
	e = registry_find(reg, pid, proc->start, 0);
	if (!e)
		return registry_add(reg, proc, outp, why, why_size);
	proc_close(proc);
	if (e->stopping || e->ended) {
		snprintf(why, why_size, "%s",
			 e->ended ? "the process has exited" : "its sessions are being stopped");
		return 1;
	}
	*outp = e;
	return 0;
}

/* Is a number that was given without a start time this process's still? */
static bool is_meant(const struct entry *e, uint64_t time)
{
	_cleanup_(proc_closep) struct proc *now = NULL;

	if (!e->ended)
		return true;
	if (time)
		return time <= e->ended_ns;
	return proc_open(e->proc->pid, &now) != 0 || now->start == e->proc->start;
}

struct entry *registry_find(const struct registry *reg, pid_t pid, uint64_t start, uint64_t time)
{
	struct entry *e, *newest = NULL;

	for (e = reg->by_pid[(unsigned int)pid % PID_BUCKETS]; e; e = e->next_same) {
		if (e->proc->pid != pid || (start && e->proc->start != start))
			continue;
		if (!time || proc_start_ns(e->proc) <= time)
			return start || is_meant(e, time) ? e : NULL;
		if (!newest)
			newest = e;
	}
	return newest;
}

struct entry *registry_first(const struct registry *reg)
{
	return reg->entries;
}

int registry_run(struct registry *reg)
{
	int r = 0;

	if (reg->running || reg->serve)
		r = loop_run(reg->loop);
	if (r < 0)
		return r;
	return reg->any_complete || reg->stopping || reg->serve ? 0 : 1;
}

void registry_stop(struct registry *reg, uint64_t timeout_ns)
{
	struct entry *e;

	reg->stopping = true;
	/* a target that ends at once takes its entry with it, and its end may start another's turn
	 */
	for (e = reg->entries; e; e = e ? e->next : reg->entries) {
		if (e->ended || e->stopping)
			continue;
		e->stopping = true;
		target_stop(e->target, timeout_ns);
		e = NULL;
	}
	registry_check_end(reg);
}

void registry_write_maps(struct registry *reg)
{
	struct entry *e;

	for (e = reg->entries; e; e = e->next)
		if (e->perfmap && e->shown && !e->ended)
			perfmap_write(e->perfmap, e->shown, NULL, NULL);
}
