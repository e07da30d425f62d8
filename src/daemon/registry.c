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

struct entry {
	struct registry *reg;
	struct entry *next;
	struct target *target;
	struct perfmap *perfmap; /* NULL: none is kept */
	int lock_fd;
	bool complete; /* once at least */
	bool stopping, ended;
	struct codemap *shown; /* the map that perfmap knows: a new incarnation has another */
	struct loop_timer linger;
	bool files_gone;
};

struct registry {
	struct loop *loop;
	struct pool pool;
	struct attach_options opts;
	struct entry *entries;
	unsigned int running; /* entries that have not ended */
	bool any_complete, stopping;
};

static void entry_free(struct entry *e)
{
	struct entry **pp;

	for (pp = &e->reg->entries; *pp; pp = &(*pp)->next) {
		if (*pp == e) {
			*pp = e->next;
			break;
		}
	}
	loop_timer_del(&e->linger);
	perfmap_free(e->perfmap);
	proc_unlock(target_proc(e->target), e->lock_fd);
	target_free(e->target);
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
	entry_free(e);
}

static void registry_check_end(struct registry *reg)
{
	if (!reg->running)
		loop_stop(reg->loop, 0);
}

static void on_ended(struct target *target, enum target_end end, void *data)
{
	struct entry *e = data;
	struct registry *reg = e->reg;
	int pid = (int)target_proc(target)->pid;

	e->ended = true;
	reg->running--;
	if (end == TARGET_FAILED)
		log_error("pid %d: %s", pid, target_end_text(target));
	else
		log_info("pid %d: %s", pid, target_end_text(target));
	if (e->perfmap && end == TARGET_FAILED && e->complete)
		perfmap_remove(e->perfmap); /* the process lives on, and its map would turn false */
	else if (e->perfmap)
		perfmap_forget(e->perfmap);
	if (end == TARGET_FAILED || (end == TARGET_EXITED && !e->complete))
		entry_free(e); /* it has no answers */
	else if (end == TARGET_EXITED && e->complete && !reg->stopping && reg->running &&
		 loop_timer_set(reg->loop, &e->linger, clock_now_ns() + DEFAULT_EXIT_MAP_NS,
				entry_expired) < 0)
		log_warn("pid %d: out of memory: its map stays behind", pid);
	registry_check_end(reg);
}

/* -- while it runs -------------------------------------------------------------------- */

static void on_changed(struct target *target, void *data)
{
	struct entry *e = data;

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
	log_info("pid %d: .NET %s: %zu code bodies (%zu precompiled) known after a rundown of "
		 "%" PRIu64 " ms, %" PRIu64 " KB",
		 (int)target_proc(target)->pid, status.runtime, stats.live, stats.live_r2r,
		 status.rundown_ns / MS_NS(1), status.rundown_bytes >> 10);
	if (!e->perfmap)
		return;
	perfmap_forget(e->perfmap);
	e->shown = target_map(target);
	perfmap_write(e->perfmap, e->shown, NULL, NULL);
}

/* -- the registry --------------------------------------------------------------------- */

int registry_new(struct registry **outp, struct loop *loop, const struct attach_options *opts)
{
	struct registry *reg = calloc(1, sizeof(*reg));

	if (!reg)
		return -ENOMEM;
	reg->loop = loop;
	reg->pool.loop = loop;
	reg->opts = *opts;
	*outp = reg;
	return 0;
}

void registry_free(struct registry *reg)
{
	if (!reg)
		return;
	while (reg->entries)
		entry_free(reg->entries);
	free(reg);
}

/* Lock, map files, target. Takes proc over, whatever happens. */
static int registry_add(struct registry *reg, struct proc *proc)
{
	static const struct target_callbacks callbacks = {
		.changed = on_changed,
		.complete = on_complete,
		.ended = on_ended,
	};
	struct entry *e = calloc(1, sizeof(*e));
	pid_t holder = 0;
	int r;

	if (!e)
		return -ENOMEM;
	e->reg = reg;
	e->lock_fd = -1;
	r = proc_lock(proc, &e->lock_fd, &holder);
	if (r) {
		if (r == PROC_E_LOCKED)
			log_error("pid %d: process %d (clrsym or clrsymd) keeps its map already",
				  (int)proc->pid, (int)holder);
		goto fail;
	}
	r = perfmap_new(&e->perfmap, reg->loop, proc, &reg->opts.map);
	if (r < 0)
		goto fail;
	if (r > 0)
		log_warn("pid %d: no map is kept: %s", (int)proc->pid,
			 proc_error_text(proc, r, NULL));
	r = target_new(&e->target, &reg->pool, proc, &reg->opts.target, &callbacks, e);
	if (r < 0)
		goto fail;
	e->next = reg->entries;
	reg->entries = e;
	reg->running++;
	/* from here on the target owns proc, and reports its own failures */
	r = target_start(e->target);
	if (r < 0) {
		reg->running--;
		entry_free(e);
	}
	return r < 0 ? r : 0;
fail:
	perfmap_free(e->perfmap);
	if (e->lock_fd >= 0)
		proc_unlock(proc, e->lock_fd);
	proc_close(proc);
	free(e);
	return r;
}

int registry_attach(struct registry *reg, pid_t pid)
{
	struct proc *proc = NULL;
	int r;

	r = proc_open(pid, &proc);
	if (r > 0)
		log_error("pid %d: %s", (int)pid, proc_error_text(NULL, r, NULL));
	if (r)
		return MIN(r, 0);
	r = registry_add(reg, proc);
	if (r > 0 && r != PROC_E_LOCKED)
		log_error("pid %d: cannot attach", (int)pid);
	return MIN(r, 0);
}

int registry_run(struct registry *reg)
{
	int r = 0;

	if (reg->running)
		r = loop_run(reg->loop);
	if (r < 0)
		return r;
	return reg->any_complete || reg->stopping ? 0 : 1;
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
