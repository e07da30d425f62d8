/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of a recording: see watch.h. */
#include "cli/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/caps.h"
#include "base/clock.h"

/* A runtime listens some 100 ms after its program starts; a slow machine takes longer. */
#define WATCH_TRY_NS   SEC_NS(10)
#define WATCH_PAUSE_NS MS_NS(50)
#define WATCH_PAUSES   5u /* doubling: up to 1.6 s between tries */

struct watched {
	pid_t pid, parent;
	uint64_t start;
	dev_t exe_dev; /* the file it executes */
	ino_t exe_ino;
	bool recorded;
	bool over; /* attached, or not .NET after all */
	unsigned int tries;
	uint64_t first_ns, next_ns; /* of this program; next try */
};

void watch_deinit(struct watch *watch)
{
	free(watch->items);
	free(watch->next);
}

static int compare_watched(const void *ap, const void *bp)
{
	const struct watched *a = ap, *b = bp;

	return a->pid < b->pid ? -1 : a->pid > b->pid;
}

static struct watched *find_watched(struct watched *items, size_t n, pid_t pid)
{
	struct watched key = { .pid = pid };

	return n ? bsearch(&key, items, n, sizeof(key), compare_watched) : NULL;
}

/* -- is it recorded? ------------------------------------------------------------------ */

static bool in_list(const char *list, pid_t pid)
{
	while (list && *list) {
		char *end;
		long n = strtol(list, &end, 10);

		if (end == list)
			return false;
		if (n == pid)
			return true;
		list = *end == ',' ? end + 1 : end;
	}
	return false;
}

/* perf -t takes threads: theirs is the process that has them. */
static bool has_thread_in(const char *list, pid_t pid)
{
	char path[64];

	while (list && *list) {
		char *end;
		long n = strtol(list, &end, 10);

		if (end == list)
			return false;
		snprintf(path, sizeof(path), "/proc/%d/task/%ld", (int)pid, n);
		if (access(path, F_OK) == 0)
			return true;
		list = *end == ',' ? end + 1 : end;
	}
	return false;
}

/* What perf starts is recorded, and what a recorded process starts. */
static bool is_recorded(const struct watch *watch, const struct watched *w)
{
	const struct watched *parent;

	if (watch->args->system_wide || (watch->perf && w->parent == watch->perf) ||
	    in_list(watch->args->pids, w->pid) || has_thread_in(watch->args->tids, w->pid))
		return true;
	parent = find_watched(watch->items, watch->n, w->parent);
	return parent && parent->recorded;
}

/* -- attaching ------------------------------------------------------------------------ */

/* What the daemon is attached to is left to it, and kept. *sourcep is NULL if it is not. */
static int hold(struct watch *watch, const struct proc *proc, struct source **sourcep)
{
	_cleanup_free_ struct daemon_process *items = NULL;
	size_t i, n;
	int r;

	*sourcep = NULL;
	r = sources_list(watch->set, &items, &n);
	if (r < 0)
		return r;
	for (i = 0; i < n; i++)
		if (items[i].pid == proc->pid && items[i].start == proc->start && !items[i].ended)
			return source_hold(watch->set, proc->pid, proc->start, sourcep);
	return 0;
}

/* Takes over proc. Returns 0 or -errno. */
static int attach(struct watch *watch, struct watched *w, struct proc *proc)
{
	struct source *source = source_find(watch->set, w->pid);
	enum proc_dotnet kind = PROC_NOT_DOTNET;
	int r;

	if (source && source->start == proc->start && (source->complete || !source->ended)) {
		w->over = source->complete || source->held;
		proc_close(proc);
		return 0;
	}
	r = proc_detect_dotnet(proc, &kind);
	if (r || kind == PROC_NOT_DOTNET) {
		proc_close(proc);
		return MIN(r, 0);
	}
	/* a try that failed came too early */
	if (source && source->start == proc->start)
		source_remove(source);
	r = hold(watch, proc, &source);
	if (r < 0 || source || watch->set->no_daemon) {
		w->over |= source && !source->ended;
		proc_close(proc);
		return r;
	}
	return source_attach_proc(watch->set, proc, &source);
}

/* Another program under a pid that was known, or a new pid. */
static void begin(struct watch *watch, struct watched *w, const struct proc *proc)
{
	if (w->start != proc->start)
		w->recorded = false;
	w->parent = proc->parent;
	w->start = proc->start;
	w->recorded = w->recorded || is_recorded(watch, w);
	w->over = false;
	w->tries = 0;
	w->first_ns = w->next_ns = watch->round_ns;
}

static int look_closer(struct watch *watch, struct watched *w)
{
	struct proc *proc;
	int r;

	r = proc_open(w->pid, &proc);
	if (r)
		return MIN(r, 0);
	if (!w->first_ns || w->start != proc->start)
		begin(watch, w, proc);
	if (!w->recorded) {
		proc_close(proc);
		return 0;
	}
	w->next_ns = watch->round_ns + (WATCH_PAUSE_NS << MIN(w->tries++, WATCH_PAUSES));
	w->over = watch->round_ns - w->first_ns > WATCH_TRY_NS;
	return attach(watch, w, proc);
}

static int look(void *data, pid_t pid)
{
	struct watch *watch = data;
	const struct watched *old = find_watched(watch->items, watch->n, pid);
	struct watched w = old ? *old : (struct watched){ .pid = pid };
	const struct source *source;
	struct stat st = { 0 };
	char path[32];

	if (pid == watch->perf || pid == getpid())
		return 0;
	if (watch->n_next == watch->next_size) {
		size_t size = watch->next_size ? 2 * watch->next_size : 256;
		struct watched *next = realloc(watch->next, size * sizeof(*next));

		if (!next)
			return -ENOMEM;
		watch->next = next;
		watch->next_size = size;
	}
	snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
	if (stat(path, &st) == 0 && (st.st_dev != w.exe_dev || st.st_ino != w.exe_ino)) {
		w.exe_dev = st.st_dev;
		w.exe_ino = st.st_ino;
		w.first_ns = 0; /* exec */
	}
	/* the process that was attached to has gone: this is another */
	source = w.over ? source_find(watch->set, pid) : NULL;
	if (source && source->ended && source->start == w.start)
		w.first_ns = 0;
	w.recorded = w.recorded || (w.first_ns && is_recorded(watch, &w));
	watch->next[watch->n_next] = w;
	if (!w.first_ns || (w.recorded && !w.over && watch->round_ns >= w.next_ns)) {
		int r = look_closer(watch, &watch->next[watch->n_next]);

		if (r < 0)
			return r;
	}
	watch->n_next++;
	return 0;
}

int watch_look(struct watch *watch)
{
	struct watched *items = watch->items;
	size_t size = watch->size;
	int r;

	watch->round_ns = clock_now_ns();
	watch->n_next = 0;
	r = proc_for_each(look, watch);
	if (r < 0)
		return r;
	/* those that were not met are gone */
	watch->items = watch->next;
	watch->n = watch->n_next;
	watch->size = watch->next_size;
	watch->next = items;
	watch->next_size = size;
	if (watch->n)
		qsort(watch->items, watch->n, sizeof(*watch->items), compare_watched);
	return 0;
}
