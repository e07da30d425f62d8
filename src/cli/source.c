/* SPDX-License-Identifier: Apache-2.0 */
/* Sources of names: see source.h. */
#include "cli/source.h"

#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>

#include "base/caps.h"
#include "base/clock.h"
#include "cli/answer.h"

#define SOURCE_POLL_NS MS_NS(20)
/* After complete, while nothing is lost: known_until follows by some hundred ms. */
#define SOURCE_STOP_NS DEFAULT_STOP_DEADLINE_NS

#if defined(__x86_64__)
#define SOURCE_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define SOURCE_MACHINE EM_AARCH64
#endif

/* -- the process ---------------------------------------------------------------------- */

void source_free_mappings(struct source_mapping *items, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		free(items[i].name);
	free(items);
}

struct read_mappings {
	struct source_mapping *items;
	size_t n, room;
};

static int read_mapping(void *data, const struct proc_mapping *m)
{
	struct read_mappings *all = data;
	const char *slash = m->path_len ? memrchr(m->path, '/', m->path_len) : NULL;
	size_t len;

	if (!m->executable || !slash || *m->path != '/' || all->n == CAP_MODULES)
		return 0;
	if (all->n == all->room) {
		size_t room = all->room ? 2 * all->room : 64;
		struct source_mapping *more = realloc(all->items, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		all->items = more;
		all->room = room;
	}
	len = m->path_len - (size_t)(slash + 1 - m->path);
	all->items[all->n] = (struct source_mapping){
		.addr = m->start,
		.name = strndup(slash + 1, len),
	};
	return all->items[all->n].name ? (int)(all->n++, 0) : -ENOMEM;
}

int source_read_mappings(const struct proc *proc, struct source_mapping **itemsp, size_t *np)
{
	struct read_mappings all = { 0 };
	int r, result;

	r = proc_each_mapping(proc, read_mapping, &all, &result);
	if (r == 0)
		r = result;
	if (r) {
		source_free_mappings(all.items, all.n);
		return r;
	}
	*itemsp = all.items;
	*np = all.n;
	return 0;
}

/* What its mappings are now; kept, as they are gone with the process. */
static void source_take_mappings(struct source *s)
{
	struct source_mapping *items;
	struct target_status status;
	size_t n;

	target_get_status(s->target, &status);
	if (s->n_mappings && s->incarnation == status.incarnation)
		return;
	if (source_read_mappings(target_proc(s->target), &items, &n))
		return;
	source_free_mappings(s->mappings, s->n_mappings);
	s->mappings = items;
	s->n_mappings = n;
	s->incarnation = status.incarnation;
}

/* -- targets -------------------------------------------------------------------------- */

static void on_changed(struct target *target UNUSED, void *data UNUSED)
{
}

static void on_complete(struct target *target, void *data)
{
	struct source *s = data;
	struct target_status status;

	s->complete = true;
	source_take_mappings(s);
	target_get_status(target, &status);
	if (!status.rundown_complete)
		snprintf(s->why, sizeof(s->why), "%s", SOURCE_WHY_INCOMPLETE);
}

static void on_ended(struct target *target, enum target_end end, void *data)
{
	struct source *s = data;

	s->ended = true;
	if (!s->complete)
		snprintf(s->why, sizeof(s->why), "%s",
			 end == TARGET_EXITED ? "it exited before its code was known"
					      : target_end_text(target));
}

struct source *source_new(struct sources *set, enum source_kind kind, pid_t pid)
{
	struct source *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->set = set;
	s->kind = kind;
	s->pid = pid;
	s->machine = SOURCE_MACHINE;
	s->owner = geteuid();
	s->next = set->list;
	set->list = s;
	return s;
}

static void source_free(struct source *s)
{
	codemap_free(s->map);
	export_free(s->export);
	target_free(s->target);
	source_free_mappings(s->mappings, s->n_mappings);
	free(s);
}

static int source_start(struct source *s, struct proc *proc)
{
	static const struct target_callbacks callbacks = {
		.changed = on_changed,
		.complete = on_complete,
		.ended = on_ended,
	};
	struct sources *set = s->set;
	int r;

	s->start = proc->start;
	s->owner = proc->euid;
	s->start_ns = proc_start_ns(proc);
	s->attach_ns = clock_now_ns();
	r = target_new(&s->target, &set->pool, proc, &set->opts, &callbacks, s);
	if (r < 0) {
		proc_close(proc);
		return r;
	}
	return target_start(s->target);
}

int source_attach_proc(struct sources *set, struct proc *proc, struct source **outp)
{
	struct source *s = source_new(set, SOURCE_TARGET, proc->pid);

	if (!s) {
		proc_close(proc);
		return -ENOMEM;
	}
	*outp = s;
	return source_start(s, proc);
}

int source_attach(struct sources *set, pid_t pid, struct source **outp)
{
	struct source *s;
	struct proc *proc;
	int r;

	r = proc_open(pid, &proc);
	if (r < 0)
		return r;
	if (r == 0)
		return source_attach_proc(set, proc, outp);
	s = source_new(set, SOURCE_TARGET, pid);
	if (!s)
		return -ENOMEM;
	s->ended = true;
	snprintf(s->why, sizeof(s->why), "%s", proc_error_text(NULL, r, NULL));
	*outp = s;
	return 0;
}

void source_remove(struct source *s)
{
	struct source **sp = &s->set->list;

	while (*sp != s)
		sp = &(*sp)->next;
	*sp = s->next;
	source_free(s);
}

struct source *source_find(const struct sources *set, pid_t pid)
{
	struct source *s;

	for (s = set->list; s; s = s->next)
		if (s->pid == pid)
			return s;
	return NULL;
}

struct codemap *source_map(const struct source *s)
{
	return s->target ? target_map(s->target) : s->map;
}

bool source_knows(struct source *s, uint64_t time)
{
	if (!s->target || s->ended)
		return true;
	return s->complete && target_known_until(s->target) >= time;
}

static const uint8_t *exported_code(const struct export *e, const struct codemap_info *info)
{
	size_t i = export_find(e, info->start, info->load);
	struct range_body body;

	if (i == SIZE_MAX)
		return NULL;
	export_body(e, i, &body);
	return body.range.size == info->size ? export_code(e, i) : NULL;
}

const uint8_t *source_code(const struct source *s, const struct codemap_info *info)
{
	const uint8_t *bytes;

	if (s->export)
		return exported_code(s->export, info);
	return s->target && target_code(s->target, info, &bytes) == 0 ? bytes : NULL;
}

/* -- recorded streams ----------------------------------------------------------------- */

int source_trace(struct sources *set, pid_t pid, const char *path)
{
	/* a recording is resolved whole: nothing of it is forgotten */
	struct codemap_options opts = { .retired_bytes = SIZE_MAX, .retired_ns = UINT64_MAX };
	_cleanup_(codemap_freep) struct codemap *map = NULL;
	_cleanup_(feed_freep) struct feed *feed = NULL;
	struct source *s = pid ? source_find(set, pid) : NULL;
	int r;

	if (!s) {
		r = codemap_new(&map, &opts);
		if (r < 0)
			return r;
	}
	r = answer_read_trace(s ? s->map : map, path, &feed);
	if (r < 0)
		return r;
	if (!feed)
		return 1;
	if (!s) {
		if (!pid && !nettrace_get_header(feed_nettrace(feed)))
			return 1;
		if (!pid)
			pid = (pid_t)nettrace_get_header(feed_nettrace(feed))->process_id;
		s = source_find(set, pid);
		if (s) /* the stream itself had to say whose it is: once more, into the right map */
			return source_trace(set, pid, path);
		s = source_new(set, SOURCE_TRACE, pid);
		if (!s)
			return -ENOMEM;
		s->map = TAKE_PTR(map);
		s->complete = s->ended = true;
	}
	if (r)
		snprintf(s->why, sizeof(s->why), "its recorded stream is damaged");
	return 0;
}

/* -- the set -------------------------------------------------------------------------- */

static void on_signal(struct loop_fd *source, uint32_t events UNUSED)
{
	struct sources *set = container_of(source, struct sources, signals);

	if (sources_interrupted(set))
		loop_stop(set->loop, 1);
}

bool sources_interrupted(struct sources *set)
{
	struct signalfd_siginfo info;

	if (read(set->signal_fd, &info, sizeof(info)) == sizeof(info))
		set->interrupted = true;
	return set->interrupted;
}

int sources_init(struct sources *set)
{
	sigset_t mask;
	int r;

	*set = (struct sources){ .signal_fd = -1 };
	sigemptyset(&mask);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGHUP);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	set->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	if (set->signal_fd < 0)
		return -errno;
	r = loop_new(&set->loop);
	if (r == 0)
		r = loop_fd_add(set->loop, &set->signals, set->signal_fd, EPOLLIN, on_signal);
	set->pool.loop = set->loop;
	return r;
}

void sources_deinit(struct sources *set)
{
	while (set->list) {
		struct source *s = set->list;

		set->list = s->next;
		source_free(s);
	}
	query_client_free(set->daemon);
	loop_timer_del(&set->timer);
	loop_fd_del(&set->signals);
	fd_close(set->signal_fd);
	loop_free(set->loop);
}

static void on_poll(struct loop_timer *timer)
{
	struct sources *set = container_of(timer, struct sources, timer);
	uint64_t now = clock_now_ns();

	if (set->done(set->done_data))
		loop_stop(set->loop, 0);
	else if (set->deadline_ns && now >= set->deadline_ns)
		loop_stop(set->loop, 1);
	else if (loop_timer_set(set->loop, &set->timer, now + SOURCE_POLL_NS, on_poll) < 0)
		loop_stop(set->loop, -ENOMEM);
}

int sources_wait(struct sources *set, bool (*done)(void *data), void *data, uint64_t deadline_ns)
{
	int r;

	set->done = done;
	set->done_data = data;
	set->deadline_ns = deadline_ns;
	if (set->interrupted)
		return 1;
	r = loop_timer_set(set->loop, &set->timer, clock_now_ns(), on_poll);
	if (r == 0)
		r = loop_run(set->loop);
	loop_timer_del(&set->timer);
	return r;
}

static bool all_ended(void *data)
{
	const struct sources *set = data;
	const struct source *s;

	for (s = set->list; s; s = s->next)
		if (s->target && !s->ended)
			return false;
	return true;
}

int sources_stop(struct sources *set)
{
	struct source *s;

	for (s = set->list; s; s = s->next)
		if (s->target && !s->ended)
			target_stop(s->target, SOURCE_STOP_NS);
	set->interrupted = false;
	return MIN(sources_wait(set, all_ended, set, clock_now_ns() + 2 * SOURCE_STOP_NS), 0);
}
