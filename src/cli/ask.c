/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who answers: see ask.h. This file chooses, and has our own attaches and recorded maps answer;
 * ask_daemon.c has the daemon do it.
 *
 * The choice is made by the first ask_open(): a daemon that can be connected to answers for all
 * processes from then on. So a pid never has sessions of ours beside the daemon's, and a failure of
 * the daemon is not papered over by answers that know less of the past.
 *
 * Our own attach takes no lock (proc_lock() is for who writes maps): it does not disturb a clrsymd
 * that cannot be asked and holds the process.
 */
#include "cli/ask.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/answer.h"
#include "cli/ask_daemon.h"
#include "reply/reply.h"

/* -- choosing ----------------------------------------------------------------------------- */

int ask_connect(struct ask *ask)
{
	if (!ask->looked) {
		ask->looked = true;
		ask->failed = daemon_open(&ask->daemon, &ask->client) < 0;
	}
	return ask->failed;
}

static int add_process(struct ask *ask, pid_t pid, struct ask_process **outp)
{
	struct ask_process *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->ask = ask;
	p->pid = pid;
	p->next = ask->processes;
	ask->processes = p;
	*outp = p;
	return 0;
}

static bool is_complete(void *data)
{
	const struct source *source = data;

	return source->complete || source->ended;
}

/* Our own attaches. A ^C that the verb ignores must not reach them: blocked, it would. */
static int start_set(struct ask *ask)
{
	struct sigaction action;
	sigset_t mask;
	int r;

	if (ask->has_set)
		return 0;
	ask->has_set = true;
	r = sources_init(&ask->set);
	ask->set.opts.once = true;
	ask->set.opts.il_maps = ask->il_maps;
	if (sigaction(SIGINT, NULL, &action) == 0 && action.sa_handler == SIG_IGN) {
		sigemptyset(&mask);
		sigaddset(&mask, SIGINT);
		sigprocmask(SIG_UNBLOCK, &mask, NULL);
	}
	return r;
}

/* Attaches ourselves and waits for the rundown. As ask_open(). */
static int attach(struct ask_process *p, bool quiet)
{
	struct ask *ask = p->ask;
	struct source *s;
	int r;

	r = start_set(ask);
	if (r == 0)
		r = source_attach(&ask->set, p->pid, &s);
	if (r == 0)
		r = sources_wait(&ask->set, is_complete, s, 0);
	if (r < 0)
		return r;
	if (!s->complete) {
		if (ask->set.interrupted)
			log_error("pid %d: interrupted", (int)p->pid);
		else if (!quiet)
			log_error("pid %d: %s", (int)p->pid, s->why);
		return 1;
	}
	if (s->why[0])
		log_warn("pid %d: %s", (int)p->pid, s->why);
	r = places_new(&p->places);
	if (r < 0)
		return r;
	p->source = s;
	/* without mappings a miss only says less */
	(void)places_refresh(p->places, target_proc(s->target), clock_now_ns());
	return 0;
}

int ask_open(struct ask *ask, pid_t pid, bool quiet, struct ask_process **outp)
{
	struct ask_process *p;
	int r;

	if (ask_connect(ask))
		return 1;
	r = add_process(ask, pid, &p);
	if (r == 0)
		r = ask->client ? ask_daemon_open(p, quiet) : attach(p, quiet);
	if (r == 0)
		*outp = p;
	return r;
}

int ask_open_trace(struct ask *ask, struct codemap *map, struct ask_process **outp)
{
	int r = add_process(ask, 0, outp);

	if (r == 0)
		(*outp)->trace = map;
	return r;
}

void ask_deinit(struct ask *ask)
{
	struct ask_process *p, *next;

	for (p = ask->processes; p; p = next) {
		next = p->next;
		places_free(p->places);
		free(p);
	}
	if (ask->has_set) {
		(void)sources_stop(&ask->set);
		sources_deinit(&ask->set);
	}
	query_client_free(ask->client);
}

/* -- waiting ------------------------------------------------------------------------------ */

struct readable {
	struct loop_fd io;
	struct loop *loop;
};

static void on_readable(struct loop_fd *io, uint32_t events UNUSED)
{
	loop_stop(container_of(io, struct readable, io)->loop, 0);
}

static bool never(void *data UNUSED)
{
	return false;
}

static bool always(void *data UNUSED)
{
	return true;
}

int ask_wait_readable(struct ask *ask, int fd)
{
	struct readable readable = { .loop = ask->set.loop };
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
	int r;

	if (!ask->has_set)
		return poll(&poll_fd, 1, -1) < 0 && errno != EINTR ? -errno : 0;
	r = loop_fd_add(ask->set.loop, &readable.io, fd, EPOLLIN, on_readable);
	if (r == -EPERM) /* a regular file always can; the sessions have their turn */
		return sources_wait(&ask->set, always, NULL, 0);
	if (r == 0)
		r = sources_wait(&ask->set, never, NULL, 0);
	loop_fd_del(&readable.io);
	return r;
}

/* -- addresses ---------------------------------------------------------------------------- */

static struct codemap *map_of(const struct ask_process *p)
{
	return p->trace ? p->trace : source_map(p->source);
}

struct known {
	struct source *source;
	uint64_t time;
};

static bool is_known(void *data)
{
	const struct known *known = data;

	return source_knows(known->source, known->time);
}

static int wait_final(struct ask_process *p, const struct ask_item *items, size_t n,
		      uint32_t wait_ms)
{
	struct known known = { .source = p->source };
	size_t i;
	int r;

	for (i = 0; i < n; i++)
		known.time = MAX(known.time, items[i].time);
	if (!wait_ms || !known.time || is_known(&known))
		return 0;
	r = sources_wait(&p->ask->set, is_known, &known, clock_now_ns() + MS_NS(wait_ms));
	return MIN(r, 0);
}

/* What an answer borrows from. */
struct scratch {
	struct buf function;
	struct query_method method;
	char reason[REPLY_REASON_SIZE];
};

/* Answers one address from a map. */
static int answer_one(struct ask_process *p, const struct ask_item *item, struct scratch *scratch,
		      struct ask_answer *a)
{
	const struct codemap *map = map_of(p);
	const struct codemap_body *body;
	uint64_t addr = item->addr - (item->caller && item->addr);
	enum codemap_miss miss = CODEMAP_HIT;
	struct codemap_info info;
	uint64_t now = clock_now_ns();

	*a = (struct ask_answer){ .il = -1, .live = p->source };
	a->final = p->source && source_knows(p->source, item->time ? item->time : UINT64_MAX);
	body = item->time ? codemap_lookup_certain(map, addr, item->time, &miss)
			  : codemap_lookup(map, addr, &miss);
	if (!body) {
		a->reason = scratch->reason;
		return reply_reason(map, p->places,
				    p->source ? target_proc(p->source->target) : NULL, addr,
				    item->time ? item->time : now, miss, now, scratch->reason);
	}
	codemap_body_info(map, body, &info);
	a->il = reply_il(map, body, (uint32_t)(addr - info.start));
	a->offset = (uint32_t)(item->addr - info.start);
	a->method = &scratch->method;
	return reply_method(&info, &scratch->function, &scratch->method);
}

int ask_resolve(struct ask_process *p, const struct ask_item *items, size_t n, uint32_t wait_ms,
		int (*fn)(void *data, size_t i, const struct ask_answer *a), void *data)
{
	struct scratch scratch = { .function = { .cap = SIZE_MAX } };
	struct ask_answer a;
	size_t i;
	int r = 0;

	if (!p->trace && !p->source)
		return ask_daemon_resolve(p, items, n, wait_ms, fn, data);
	if (p->source)
		r = wait_final(p, items, n, wait_ms);
	for (i = 0; i < n && r == 0; i++) {
		r = answer_one(p, &items[i], &scratch, &a);
		if (r == 0)
			r = fn(data, i, &a);
	}
	buf_deinit(&scratch.function);
	return r;
}

/* -- methods ------------------------------------------------------------------------------ */

struct walk {
	const struct codemap *map;
	bool retired;
	struct codemap_info *infos;
	size_t n, room;
};

static int collect(void *data, const struct codemap_body *body)
{
	struct walk *walk = data;
	struct codemap_info *more;

	if (walk->n == walk->room) {
		walk->room = walk->room ? 2 * walk->room : 1024;
		more = reallocarray(walk->infos, walk->room, sizeof(*more));
		if (!more)
			return -ENOMEM;
		walk->infos = more;
	}
	codemap_body_info(walk->map, body, &walk->infos[walk->n]);
	if (walk->infos[walk->n].unload == UINT64_MAX || walk->retired)
		walk->n++;
	return 0;
}

static int compare_infos(const void *ap, const void *bp)
{
	const struct codemap_info *a = ap, *b = bp;

	if (a->start != b->start)
		return a->start < b->start ? -1 : 1;
	return a->load < b->load ? -1 : a->load > b->load;
}

int ask_methods(struct ask_process *p, bool retired,
		int (*fn)(void *data, const struct query_method *m), void *data)
{
	_cleanup_buf_ struct buf function = { .cap = SIZE_MAX };
	struct walk walk = { .retired = retired };
	struct query_method m;
	size_t i;
	int r;

	if (!p->source)
		return ask_daemon_methods(p, retired, fn, data);
	walk.map = map_of(p);
	r = codemap_each(walk.map, collect, &walk);
	qsort(walk.infos, walk.n, sizeof(*walk.infos), compare_infos);
	for (i = 0; i < walk.n && r == 0; i++) {
		r = reply_method(&walk.infos[i], &function, &m);
		if (r == 0)
			r = fn(data, &m);
	}
	free(walk.infos);
	return r;
}

/* -- modules ------------------------------------------------------------------------------ */

int ask_modules(struct ask_process *p, int (*fn)(void *data, const struct ask_module *m),
		void *data)
{
	const struct loader_item *item;
	struct clr_text guid;
	struct loader *loader;
	size_t i;
	int r = 0;

	if (!p->source)
		return ask_daemon_modules(p, fn, data);
	loader = target_loader(p->source->target);
	for (i = 0; r == 0 && (item = loader_item(loader, i)); i++) {
		struct ask_module m = {
			.kind = loader_kind_text(item->kind),
			.id = item->id,
			.parent = item->parent,
			.load = item->load,
			.unload = item->unload,
			.flags = item->flags,
			.pdb_age = item->pdb_age,
			.name = item->name,
			.native_path = item->native_path,
			.pdb_path = item->pdb_path,
			.pdb_id = item->has_pdb ? clr_guid_text(&guid, &item->pdb_guid) : "",
		};

		r = fn(data, &m);
	}
	return r;
}

/* -- changes ------------------------------------------------------------------------------ */

struct changes {
	struct ask_process *p;
	int (*fn)(void *data, const char *change, const struct query_method *m);
	void *data;
	struct buf function;
	int result;
};

static int on_change(void *data, uint32_t slot UNUSED, unsigned int what,
		     const struct codemap_body *body)
{
	struct changes *changes = data;
	struct codemap_info info;
	struct query_method m;
	int r;

	if (!body)
		return 0;
	codemap_body_info(changes->p->tracked, body, &info);
	r = reply_method(&info, &changes->function, &m);
	if (r == 0 && (what & CODEMAP_CHANGE_ADDED))
		r = changes->fn(changes->data, "load", &m);
	else if (r == 0 && (what & CODEMAP_CHANGE_ALTERED))
		r = changes->fn(changes->data, "alter", &m);
	if (r == 0 && (what & CODEMAP_CHANGE_ENDED))
		r = changes->fn(changes->data, "unload", &m);
	return r;
}

/* Asked again and again while the loop runs: hands over what has changed. */
static bool changes_over(void *data)
{
	struct changes *changes = data;
	struct ask_process *p = changes->p;
	struct codemap *map = source_map(p->source);
	bool ended = p->source->ended, more = true, resync = false;
	int r = 0;

	if (map != p->tracked) { /* an exec: another program, another map */
		p->tracked = map;
		r = codemap_track(map, true);
		resync = true;
	}
	while (r == 0 && more && !resync)
		r = codemap_take_changes(map, QUERY_SLICE_BODIES, on_change, changes, &more,
					 &resync);
	if (r == 0 && resync)
		r = changes->fn(changes->data, "resync", NULL);
	changes->result = r;
	return r || ended;
}

int ask_watch(struct ask_process *p,
	      int (*fn)(void *data, const char *change, const struct query_method *m), void *data)
{
	struct changes changes = { .p = p, .fn = fn, .data = data };
	int r;

	if (!p->source)
		return ask_daemon_watch(p, fn, data);
	buf_init(&changes.function, SIZE_MAX);
	p->tracked = source_map(p->source);
	r = codemap_track(p->tracked, true);
	if (r == 0)
		r = sources_wait(&p->ask->set, changes_over, &changes, 0);
	buf_deinit(&changes.function);
	return r < 0 ? r : changes.result;
}
