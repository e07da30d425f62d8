/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon as a source of names.
 *
 * What it has of a process comes in one piece (query/export.h) at the moment when it is needed, and
 * is put into a code map of ours: from there on it is a source like any other. Until then a source
 * of this kind is a promise: the daemon knows the process, and, if it is held, was told to stay
 * attached. Such a hold ends by itself some time after it was last asked for, so one of ours that
 * is killed leaves nothing behind.
 *
 * When the daemon fails, the promises end with that reason. Whether another may be made, or we
 * attach in its place, is decided by who asks next: a daemon that has gone is looked for again,
 * one that is there and makes no sense keeps us from attaching, as it may have its own sessions.
 */
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/source.h"

/* Longer than any wait of ours between two calls. */
#define HOLD_S         120u
#define HOLD_AGAIN_NS  SEC_NS(30)
#define ASK_PAUSE_NS   MS_NS(50)
#define ATTACH_WAIT_MS 500u
/* An export of much code takes seconds; a signal is not seen meanwhile. */
#define TIMEOUT_MS 30000u
/* Its answers trail by some hundred ms; a starved target may take longer. */
#define WAIT_KNOWN_NS  SEC_NS(10)
#define WAIT_ATTACH_NS (DEFAULT_RUNDOWN_DEADLINE_NS + 4 * DEFAULT_IPC_DEADLINE_NS)

static void PRINTF_LIKE(2, 3) source_fail(struct source *s, const char *fmt, ...)
{
	va_list ap;

	s->ended = true;
	va_start(ap, fmt);
	vsnprintf(s->why, sizeof(s->why), fmt, ap);
	va_end(ap);
}

/* -- the daemon ------------------------------------------------------------------------- */

struct query_client *sources_daemon(struct sources *set)
{
	if (!set->looked) {
		set->looked = true;
		set->no_daemon = NULL;
		set->daemon_opts.timeout_ms = TIMEOUT_MS;
		if (daemon_open(&set->daemon_opts, &set->daemon) < 0)
			set->no_daemon = "clrsymd could not be asked";
	}
	return set->daemon;
}

static bool is_promise(const struct source *s)
{
	return s->kind == SOURCE_DAEMON && !s->complete && !s->ended;
}

/* No further call on this connection: whatever was to come through it does not. */
static void lose_daemon(struct sources *set, int r)
{
	const char *why = daemon_error_text(set->daemon, r);
	bool said = false;
	struct source *s;

	for (s = set->list; s; s = s->next) {
		if (!is_promise(s))
			continue;
		source_fail(s, "its code was to come from the daemon: %s", why);
		said = true;
	}
	if (!said)
		log_error("%s", why);
	query_client_free(TAKE_PTR(set->daemon));
	if (r == -ECONNRESET || r == -EPIPE)
		set->looked = false;
	else
		set->no_daemon = "clrsymd failed";
}

/* Our own failure is passed up; the daemon's is dealt with here. */
static int daemon_failed(struct sources *set, int r)
{
	if (r == -ENOMEM)
		return r;
	lose_daemon(set, r);
	return 0;
}

int sources_list(struct sources *set, struct daemon_process **itemsp, size_t *np)
{
	unsigned int tries;
	int r;

	*itemsp = NULL;
	*np = 0;
	/* whether one that hangs up has gone is seen when it is looked for again */
	for (tries = 0; tries < 2 && sources_daemon(set); tries++) {
		r = daemon_list(set->daemon, itemsp, np);
		if (r)
			r = daemon_failed(set, r);
		if (r < 0 || set->daemon)
			return r;
	}
	if (!set->looked) {
		set->looked = true;
		set->no_daemon = "clrsymd hangs up";
	}
	return 0;
}

struct source *source_from_daemon(struct sources *set, const struct daemon_process *process)
{
	struct source *s = source_new(set, SOURCE_DAEMON, process->pid);

	if (s)
		s->start = process->start;
	return s;
}

/* -- holding ------------------------------------------------------------------------------ */

/* Once more, or for the first time. Returns 0 or -errno of our own. */
static int hold(struct source *s, uint32_t wait_ms)
{
	struct query_client *c = s->set->daemon;
	struct daemon_process process;
	int r;

	r = daemon_attach(c, s->pid, HOLD_S, wait_ms, &process);
	if (r == QUERY_E_REMOTE)
		source_fail(s, "%s", daemon_error_text(c, r));
	else if (r == 0 && process.start != s->start)
		source_fail(s, "another process has that pid now");
	else if (r)
		return daemon_failed(s->set, r);
	return 0;
}

int source_hold(struct sources *set, pid_t pid, uint64_t start, struct source **outp)
{
	struct source *s = source_new(set, SOURCE_DAEMON, pid);

	if (!s)
		return -ENOMEM;
	s->start = start;
	s->held = true;
	if (!set->held_ns)
		set->held_ns = clock_now_ns();
	*outp = s;
	return hold(s, 0);
}

/* -- taking over ---------------------------------------------------------------------------- */

/* A body's IL map, aligned, in memory that grows with the largest. */
struct il_map {
	struct codemap_il *entries;
	size_t room;
};

static void il_map_deinit(struct il_map *il)
{
	free(il->entries);
}

static int il_map_read(struct il_map *il, const struct range_body *body)
{
	const uint8_t *pairs = body->il;
	size_t i;

	if (body->n_il > il->room) {
		struct codemap_il *entries = realloc(il->entries, body->n_il * sizeof(*entries));

		if (!entries)
			return -ENOMEM;
		il->entries = entries;
		il->room = body->n_il;
	}
	for (i = 0; i < body->n_il; i++) {
		memcpy(&il->entries[i].native, pairs + 8 * i, sizeof(uint32_t));
		memcpy(&il->entries[i].il, pairs + 8 * i + 4, sizeof(uint32_t));
	}
	return 0;
}

static int restore_body(struct codemap *map, const struct range_body *body, struct il_map *il)
{
	const struct range *range = &body->range;
	uint32_t flags = range->flags & ~(RANGE_FLAG_OPEN_PAST | RANGE_FLAG_FREEABLE);
	struct codemap_info info = {
		.method_id = range_method_id(range),
		.start = range->start,
		.version = range_version(range),
		.load = range->load,
		.unload = range->unload,
		.open_past = range->flags & RANGE_FLAG_OPEN_PAST,
		.freeable = range->flags & RANGE_FLAG_FREEABLE,
		.announced = range->announced,
		.size = range->size,
		.token = range->token,
		.flags = flags,
		.name = {
			.ns = body->ns,
			.name = body->name,
			.sig = body->sig,
			.ns_len = body->ns_len,
			.name_len = body->name_len,
			.sig_len = body->sig_len,
			.flags = flags,
		},
		.module_path = body->module,
		.module_path_len = body->module_len,
	};
	int r;

	r = il_map_read(il, body);
	if (r == 0)
		r = codemap_restore(map, &info, il->entries, body->n_il, NULL);
	/* what a map does not take is not there; it counts them */
	return MIN(r, 0);
}

static int restore(struct codemap *map, const struct export *e)
{
	_cleanup_(il_map_deinit) struct il_map il = { 0 };
	struct range_body body;
	size_t i;
	int r;

	for (i = 0; i < export_n_bodies(e); i++) {
		export_body(e, i, &body);
		r = restore_body(map, &body, &il);
		if (r < 0)
			return r;
	}
	for (i = 0; i < export_n_gaps(e); i++) {
		struct export_gap gap = export_gap_at(e, i);

		codemap_gap(map, gap.from, gap.to);
	}
	codemap_set_horizon(map, export_get_identity(e)->horizon);
	return 0;
}

static int restore_mappings(struct source *s)
{
	size_t i, n = MIN(export_n_mappings(s->export), (size_t)CAP_MODULES);
	const char *path, *slash;

	s->mappings = calloc(n + 1, sizeof(*s->mappings));
	if (!s->mappings)
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		uint64_t addr = export_mapping(s->export, i, &path);

		slash = strrchr(path, '/');
		s->mappings[i].addr = addr;
		s->mappings[i].name = strdup(slash ? slash + 1 : path);
		if (!s->mappings[i].name)
			return -ENOMEM;
		s->n_mappings++;
	}
	return 0;
}

/* What the daemon has of it now. Returns 0 or -errno of our own. */
static int take(struct source *s, bool code)
{
	/* all of it is wanted: the daemon has forgotten what it had to */
	struct codemap_options opts = { .retired_bytes = SIZE_MAX, .retired_ns = UINT64_MAX };
	struct query_client *c = s->set->daemon;
	const struct export_identity *identity;
	int r;

	r = daemon_export(c, s->pid, s->start, code, &s->export);
	/* administrators may know the names of others' code, and not the code */
	if (code && daemon_denies(c, r))
		r = daemon_export(c, s->pid, s->start, false, &s->export);
	if (r == QUERY_E_REMOTE) {
		source_fail(s, "%s", daemon_error_text(c, r));
		return 0;
	}
	if (r)
		return daemon_failed(s->set, r);
	identity = export_get_identity(s->export);
	if (identity->start != s->start)
		return daemon_failed(s->set, -EPROTO);
	r = codemap_new(&s->map, &opts);
	if (r == 0)
		r = restore(s->map, s->export);
	if (r == 0)
		r = restore_mappings(s);
	if (r < 0)
		return r;
	s->owner = identity->owner;
	s->machine = identity->machine;
	s->start_ns = identity->start_ns;
	s->attach_ns = identity->attach_ns;
	s->ended = identity->ended;
	s->complete = true;
	if (identity->over_cap)
		codemap_set_incomplete(s->map);
	if (!identity->complete)
		snprintf(s->why, sizeof(s->why), "%s", SOURCE_WHY_INCOMPLETE);
	return 0;
}

/* -- what it has of them now ------------------------------------------------------------------ */

static const struct daemon_process *find_process(const struct daemon_process *items, size_t n,
						 const struct source *s)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (items[i].pid == s->pid && items[i].start == s->start)
			return &items[i];
	return NULL;
}

int sources_keep(struct sources *set, bool code, uint64_t now)
{
	_cleanup_free_ struct daemon_process *items = NULL;
	struct source *s;
	size_t n;
	int r;

	if (!set->held_ns || !set->daemon)
		return 0;
	if (daemon_is_gone(set->daemon)) {
		log_warn("clrsymd has gone: what it had may be attached to again");
		lose_daemon(set, -ECONNRESET);
		return 0;
	}
	if (now - set->held_ns < HOLD_AGAIN_NS)
		return 0;
	set->held_ns = now;
	r = sources_list(set, &items, &n);
	for (s = set->list; s && r == 0; s = s->next) {
		const struct daemon_process *process = find_process(items, n, s);

		if (!set->daemon || !is_promise(s))
			continue;
		/* after an exit it remembers for minutes, a recording may take hours */
		if (process && process->ended)
			r = take(s, code);
		else
			r = hold(s, 0);
	}
	return r;
}

struct awaited {
	uint64_t until_ns;
	uint64_t attach_deadline_ns;
	uint64_t known_deadline_ns; /* 0: its code is not known yet */
};

/* Is it time to take what there is? */
static int look(struct source *s, struct awaited *w, bool *readyp)
{
	_cleanup_free_ struct daemon_process *items = NULL;
	const struct daemon_process *process;
	uint64_t now = clock_now_ns();
	size_t n;
	int r;

	r = sources_list(s->set, &items, &n);
	if (r < 0 || s->ended)
		return r;
	process = find_process(items, n, s);
	if (process && (process->ended || process->known)) {
		if (!w->known_deadline_ns)
			w->known_deadline_ns = now + WAIT_KNOWN_NS;
		*readyp = process->ended || process->known_until >= w->until_ns ||
			  now >= w->known_deadline_ns;
		return 0;
	}
	if (now >= w->attach_deadline_ns || (process && process->stuck && !s->held))
		source_fail(s, "clrsymd could not attach to it");
	else if (s->held)
		return hold(s, ATTACH_WAIT_MS);
	else if (!process)
		source_fail(s, "clrsymd does not know it any more");
	return 0;
}

static bool never(void *data UNUSED)
{
	return false;
}

int source_export(struct source *s, bool code, uint64_t until_ns)
{
	struct awaited w = {
		.until_ns = until_ns,
		.attach_deadline_ns = clock_now_ns() + WAIT_ATTACH_NS,
	};
	bool ready = false;
	int r;

	for (;;) {
		r = look(s, &w, &ready);
		if (r < 0 || s->ended)
			return r;
		if (ready)
			return take(s, code);
		/* what we are attached to ourselves goes on meanwhile */
		r = sources_wait(s->set, never, NULL, clock_now_ns() + ASK_PAUSE_NS);
		if (r < 0)
			return r;
		if (s->set->interrupted)
			return -ECANCELED;
	}
}
