/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeping map files. One formatter feeds all places at once; a place that fails drops out of this
 * write with a message and keeps its old file whole.
 */
#include "target/perfmap.h"

#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "codemap/mapfile.h"

/* Text formatted before it is handed to the files. */
#define PERFMAP_PIECE KIB(64)
/* After a write that failed (a full disk, say), unless somebody asks for one. */
#define PERFMAP_RETRY_NS SEC_NS(10)

struct perfmap {
	struct loop *loop;
	const struct proc *proc;
	struct perfmap_options opts;
	struct proc_map *places[PROC_N_MAP_PLACES]; /* NULL: not kept */
	int refused[PROC_N_MAP_PLACES]; /* why a wanted place could not be opened; told once */
	bool writing_place[PROC_N_MAP_PLACES]; /* takes part in the write under way */
	const struct codemap *map;             /* NULL: nothing to write */
	uint64_t written_generation, writing_generation;
	uint64_t last_write_ns;
	struct loop_timer timer; /* the next rewrite */
	struct loop_work work;   /* the write under way */
	struct codemap_map_writer writer;
	struct buf text;
	bool writing;
	int place_error; /* the last one of the write under way */
	struct log_limit limit;
	struct perfmap_status status;
	void (*done)(struct perfmap *pm, int result, void *data);
	void *done_data;
};

/* -- places --------------------------------------------------------------------------- */

static bool perfmap_wants(const struct perfmap *pm, enum proc_map_place place)
{
	switch (pm->opts.where) {
	case PERFMAP_BOTH: return true;
	case PERFMAP_TARGET: return place != PROC_MAP_HOST;
	case PERFMAP_HOST: return place == PROC_MAP_HOST;
	default: return false;
	}
}

static void perfmap_drop(struct perfmap *pm, size_t i)
{
	proc_map_close(TAKE_PTR(pm->places[i]));
}

int perfmap_new(struct perfmap **outp, struct loop *loop, const struct proc *proc,
		const struct perfmap_options *opts)
{
	_cleanup_(perfmap_freep) struct perfmap *pm = calloc(1, sizeof(*pm));
	int i, r, first = 0;
	bool own = false, any = false;

	if (!pm)
		return -ENOMEM;
	pm->loop = loop;
	pm->proc = proc;
	pm->opts = *opts;
	if (!pm->opts.max_bytes)
		pm->opts.max_bytes = DEFAULT_MAP_BYTES;
	buf_init(&pm->text, PERFMAP_PIECE * 2);
	if (opts->where == PERFMAP_OFF) {
		*outp = TAKE_PTR(pm);
		return 0;
	}
	r = proc_own_perf_map(proc, &own);
	if (r < 0)
		return r;
	if (own)
		return PROC_E_OWN_MAP;
	for (i = 0; i < PROC_N_MAP_PLACES; i++) {
		if (!perfmap_wants(pm, (enum proc_map_place)i))
			continue;
		r = proc_map_open(proc, (enum proc_map_place)i, &pm->places[i]);
		if (r < 0)
			return r;
		any |= !r;
		pm->refused[i] = r == PROC_E_SAME_PLACE ? 0 : r;
		if (!first)
			first = pm->refused[i];
	}
	if (!any)
		return first ? first : PROC_E_READ_ONLY;
	*outp = TAKE_PTR(pm);
	return 0;
}

static void perfmap_stop(struct perfmap *pm)
{
	size_t i;

	loop_work_del(&pm->work);
	if (!pm->writing)
		return;
	pm->writing = false;
	codemap_map_writer_deinit(&pm->writer);
	for (i = 0; i < PROC_N_MAP_PLACES; i++)
		if (pm->writing_place[i])
			proc_map_abort(pm->places[i]);
}

void perfmap_forget(struct perfmap *pm)
{
	perfmap_stop(pm);
	loop_timer_del(&pm->timer);
	pm->map = NULL;
	pm->done = NULL;
	pm->written_generation = 0;
}

void perfmap_free(struct perfmap *pm)
{
	size_t i;

	if (!pm)
		return;
	perfmap_forget(pm);
	for (i = 0; i < PROC_N_MAP_PLACES; i++)
		perfmap_drop(pm, i);
	buf_deinit(&pm->text);
	free(pm);
}

void perfmap_remove(struct perfmap *pm)
{
	size_t i;

	perfmap_forget(pm);
	for (i = 0; i < PROC_N_MAP_PLACES; i++)
		if (pm->places[i])
			proc_map_remove(pm->places[i]);
}

/* -- writing -------------------------------------------------------------------------- */

/* The end of a write. The callback may start the next one, or free us. */
static void perfmap_finish(struct perfmap *pm, int result)
{
	void (*done)(struct perfmap *, int, void *) = TAKE_PTR(pm->done);

	pm->status.error = result;
	pm->status.finished++;
	pm->last_write_ns = clock_now_ns();
	if (pm->map)
		perfmap_changed(pm, pm->map); /* what changed meanwhile is due again */
	if (done)
		done(pm, result, pm->done_data);
}

/* One place failed: its old file stays; somebody else's file there ends it for good. */
static void perfmap_place_failed(struct perfmap *pm, size_t i, int error)
{
	uint32_t dropped;

	pm->writing_place[i] = false;
	pm->place_error = error;
	proc_map_abort(pm->places[i]);
	if (log_limit_pass(&pm->limit, clock_now_ns(), &dropped))
		log_warn("%s: %s", proc_map_path(pm->places[i]),
			 error < 0 ? strerror(-error) : proc_error_text(pm->proc, error, NULL));
	if (error == PROC_E_FOREIGN_FILE)
		perfmap_drop(pm, i);
}

/* Puts all places' files in place. Returns 0 when one at least is, else the last failure. */
static int perfmap_publish(struct perfmap *pm)
{
	bool any = false;
	size_t i;
	int r;

	for (i = 0; i < PROC_N_MAP_PLACES; i++) {
		if (!pm->writing_place[i])
			continue;
		r = proc_map_publish(pm->places[i]);
		if (r) {
			perfmap_place_failed(pm, i, r);
		} else {
			pm->writing_place[i] = false;
			any = true;
		}
	}
	return any ? 0 : pm->place_error;
}

/* One place is enough to go on, but the others are not left out without a word. */
static void perfmap_tell_refused(struct perfmap *pm)
{
	static const char *const where[] = {
		[PROC_MAP_TARGET] = "its own /tmp",
		[PROC_MAP_TARGET_OUTER] = "its own /tmp under our number",
		[PROC_MAP_HOST] = "/tmp",
	};
	size_t i;

	for (i = 0; i < PROC_N_MAP_PLACES; i++) {
		if (pm->refused[i])
			log_warn("pid %d: no map in %s: %s", (int)pm->proc->pid, where[i],
				 proc_error_text(pm->proc, pm->refused[i], NULL));
		pm->refused[i] = 0;
	}
}

static void perfmap_complete(struct perfmap *pm)
{
	int r = perfmap_publish(pm);

	pm->writing = false;
	if (!r) {
		pm->status.bytes = pm->writer.bytes;
		pm->status.lines = pm->writer.lines;
		pm->status.left_out = pm->writer.left_out;
		pm->status.writes++;
		pm->written_generation = pm->writing_generation;
	}
	codemap_map_writer_deinit(&pm->writer);
	if (!r)
		perfmap_tell_refused(pm);
	if (!r && pm->status.left_out && pm->status.writes == 1)
		log_warn("pid %d: its map is limited to %zu bytes: %zu code bodies are left out",
			 (int)pm->proc->pid, pm->opts.max_bytes, pm->status.left_out);
	perfmap_finish(pm, r);
}

static bool perfmap_step(struct loop_work *work, uint64_t deadline_ns)
{
	struct perfmap *pm = container_of(work, struct perfmap, work);
	bool any = true;
	size_t i;
	int r;

	while (!pm->writer.done && any) {
		buf_clear(&pm->text);
		r = codemap_map_writer_step(&pm->writer, pm->map, &pm->text, PERFMAP_PIECE);
		if (r < 0) {
			perfmap_stop(pm);
			perfmap_finish(pm, r);
			return false;
		}
		any = false;
		for (i = 0; i < PROC_N_MAP_PLACES; i++) {
			if (!pm->writing_place[i])
				continue;
			r = proc_map_append(pm->places[i], pm->text.data, pm->text.len);
			if (r)
				perfmap_place_failed(pm, i, r);
			else
				any = true;
		}
		if (any && !pm->writer.done && clock_now_ns() >= deadline_ns)
			return true;
	}
	perfmap_complete(pm);
	return false;
}

static void perfmap_start(struct perfmap *pm)
{
	bool any = false;
	size_t i;
	int r;

	pm->place_error = PROC_E_READ_ONLY; /* there is no place */
	for (i = 0; i < PROC_N_MAP_PLACES; i++) {
		if (!pm->places[i])
			continue;
		/* another's file at our name (the runtime's own map, say) is not ours to replace */
		r = proc_map_check(pm->places[i]);
		if (r == PROC_E_GONE)
			r = 0; /* not there yet, or removed by somebody: made again */
		pm->writing_place[i] = true;
		if (!r)
			r = proc_map_begin(pm->places[i]);
		if (r)
			perfmap_place_failed(pm, i, r);
		else
			any = true;
	}
	if (!any) {
		perfmap_finish(pm, pm->place_error);
		return;
	}
	codemap_map_writer_init(&pm->writer, &(struct codemap_map_options){
						     .style = pm->opts.style,
						     .tiers = pm->opts.tiers,
						     .max_bytes = pm->opts.max_bytes,
					     });
	pm->writing = true;
	pm->writing_generation = codemap_generation(pm->map);
	loop_work_add(pm->loop, &pm->work, perfmap_step);
}

static bool perfmap_keeps_any(const struct perfmap *pm)
{
	size_t i;

	for (i = 0; i < PROC_N_MAP_PLACES; i++)
		if (pm->places[i])
			return true;
	return false;
}

static void perfmap_due(struct loop_timer *timer)
{
	struct perfmap *pm = container_of(timer, struct perfmap, timer);

	/* An exiting process takes its methods back one by one: the last map is the useful one. */
	if (!pm->writing && pm->map && proc_alive(pm->proc))
		perfmap_start(pm);
}

void perfmap_changed(struct perfmap *pm, const struct codemap *map)
{
	uint64_t pause;

	pm->map = map;
	if (pm->writing || pm->timer.loop || codemap_generation(map) == pm->written_generation ||
	    !perfmap_keeps_any(pm))
		return;
	pause = MAX(pm->status.error ? PERFMAP_RETRY_NS : DEFAULT_MAP_INTERVAL_NS,
		    (uint64_t)pm->status.bytes * SEC_NS(1) / DEFAULT_MAP_BYTES_PER_SEC);
	if (loop_timer_set(pm->loop, &pm->timer, MAX(pm->last_write_ns + pause, clock_now_ns()),
			   perfmap_due) < 0)
		log_warn("pid %d: out of memory: no map this time", (int)pm->proc->pid);
}

void perfmap_write(struct perfmap *pm, const struct codemap *map,
		   void (*done)(struct perfmap *pm, int result, void *data), void *data)
{
	perfmap_stop(pm);
	loop_timer_del(&pm->timer);
	pm->map = map;
	pm->done = done;
	pm->done_data = data;
	perfmap_start(pm);
}

void perfmap_get_status(const struct perfmap *pm, struct perfmap_status *status)
{
	*status = pm->status;
}

const char *perfmap_path(const struct perfmap *pm, size_t i)
{
	size_t k;

	for (k = 0; k < PROC_N_MAP_PLACES; k++)
		if (pm->places[k] && i-- == 0)
			return proc_map_path(pm->places[k]);
	return NULL;
}
