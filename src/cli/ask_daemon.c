/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon answers: the questions of ask.h as calls of org.clrsym.Symbols.
 *
 * A process that the daemon does not have is attached to with a hold: it ends by itself some time
 * after the last question, so nothing has to be taken back, also not when we are killed. Should it
 * end between two questions of ours, it is renewed and the question asked once more.
 *
 * What comes is checked member by member: it may be anybody who listens at the socket.
 */
#include "cli/ask_daemon.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>

#include "base/caps.h"
#include "base/log.h"

/* The daemon stays attached for so long after the last question. */
#define HOLD_S 60u
/* Addresses of one call: some hundred KB. */
#define BATCH 16384u

/* -- failures ----------------------------------------------------------------------------- */

/* Says why a call failed, unless it was stopped by who asked (1). Returns 1, or -ENOMEM. */
static int say(struct ask_process *p, int r)
{
	struct query_client *c = p->ask->client;

	if (r == 1 || r == -ENOMEM)
		return r;
	if (r == QUERY_E_REMOTE) {
		log_error("pid %d: %s", (int)p->pid, daemon_error_text(c, r));
		return 1;
	}
	p->ask->failed = true;
	if (r == -EACCES) {
		log_error("%s", daemon_error_text(c, r));
		return 1;
	}
	log_error("pid %d: %s: there are no more answers; start it again, or use --no-daemon",
		  (int)p->pid, daemon_error_text(c, r));
	return 1;
}

/* -- attaching ---------------------------------------------------------------------------- */

/* Returns as the call, or 1 (said): another process has the number now. */
static int hold(struct ask_process *p)
{
	struct daemon_process process;
	int r;

	r = daemon_attach(p->ask->client, p->pid, HOLD_S, CAP_QUERY_ATTACH_WAIT_MS, &process);
	if (r)
		return r;
	if (p->start && p->start != process.start) {
		log_error("pid %d: it has exited, and the number is another process's now",
			  (int)p->pid);
		return 1;
	}
	p->start = process.start;
	return 0;
}

/* Does it have the process, with all its code? ended: it had. */
static int is_known(struct ask_process *p, bool *knownp, bool *endedp)
{
	_cleanup_free_ struct daemon_process *items = NULL;
	size_t i, n = 0;
	int r;

	*knownp = *endedp = false;
	r = daemon_list(p->ask->client, &items, &n);
	for (i = 0; i < n && r == 0; i++) {
		if (items[i].pid != p->pid)
			continue;
		*endedp = items[i].ended;
		if (items[i].known)
			p->start = items[i].start;
		*knownp = items[i].known && !items[i].ended;
		break; /* the youngest of that number */
	}
	return r;
}

int ask_daemon_open(struct ask_process *p, bool quiet)
{
	const char *error;
	uint64_t remembered;
	bool known, ended;
	int r;

	r = is_known(p, &known, &ended);
	remembered = p->start;
	if (ended)
		p->start = 0; /* a new one may have the number */
	if (r == 0 && !known)
		r = hold(p);
	if (r == 0)
		return 0;
	error = query_client_error(p->ask->client);
	/* it has exited: what is known of it is still there */
	if (r == QUERY_E_REMOTE && ended && strcmp(error, QUERY_ERROR_NO_PROCESS) == 0) {
		p->start = remembered;
		return 0;
	}
	if (r == QUERY_E_REMOTE && quiet)
		return 1;
	return say(p, r);
}

static bool is_not_attached(struct ask_process *p, int r)
{
	return r == QUERY_E_REMOTE &&
	       strcmp(query_client_error(p->ask->client), QUERY_ERROR_NOT_ATTACHED) == 0;
}

/* A call about the process; parameters beside pid are taken over (NULL: none). */
static int call(struct ask_process *p, const char *method, json_t *parameters, bool more,
		json_t **replyp, bool *continuesp)
{
	struct query_client *c = p->ask->client;
	bool again = true;
	int r;

	if (!parameters)
		parameters = json_object();
	if (!parameters || json_object_set_new(parameters, "pid", json_integer(p->pid)) < 0 ||
	    (p->start &&
	     json_object_set_new(parameters, "start", json_integer((json_int_t)p->start)) < 0)) {
		json_decref(parameters);
		return -ENOMEM;
	}
	*continuesp = false;
	for (;;) {
		*replyp = NULL;
		json_incref(parameters);
		if (more) {
			r = query_client_call_more(c, method, parameters);
			if (r == 0)
				r = query_client_next(c, -1, replyp, continuesp);
		} else {
			r = query_client_call(c, method, parameters, replyp, NULL);
		}
		if (!again || !is_not_attached(p, r))
			break;
		again = false;
		json_decref(*replyp);
		r = hold(p);
		if (r)
			break;
	}
	json_decref(parameters);
	return r;
}

/* -- values ------------------------------------------------------------------------------- */

static bool take_text(json_t *o, const char *name, const char **sp, size_t *lenp)
{
	json_t *value = json_object_get(o, name);

	*sp = json_string_value(value);
	*lenp = json_string_length(value);
	return *sp;
}

static bool take_u64(json_t *o, const char *name, uint64_t max, uint64_t *vp)
{
	json_t *value = json_object_get(o, name);

	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return false;
	*vp = (uint64_t)json_integer_value(value);
	return *vp <= max;
}

static bool take_address(json_t *o, const char *name, uint64_t *vp)
{
	return query_parse_address(json_object_get(o, name), vp);
}

/* null: none yet */
static bool take_unload(json_t *o, uint64_t *vp)
{
	*vp = UINT64_MAX;
	return json_is_null(json_object_get(o, "unload")) || take_u64(o, "unload", INT64_MAX, vp);
}

static bool take_method(json_t *o, struct query_method *m)
{
	uint64_t size, version;
	size_t len;

	*m = (struct query_method){ 0 };
	if (!take_address(o, "method_id", &m->method_id) || !take_address(o, "start", &m->start) ||
	    !take_u64(o, "load", INT64_MAX, &m->load) || !take_unload(o, &m->unload) ||
	    !take_u64(o, "size", UINT32_MAX, &size) ||
	    !take_u64(o, "version", UINT32_MAX, &version) ||
	    !take_text(o, "tier", &m->tier, &len) || !take_text(o, "ns", &m->ns, &m->ns_len) ||
	    !take_text(o, "name", &m->name, &m->name_len) ||
	    !take_text(o, "sig", &m->sig, &m->sig_len) ||
	    !take_text(o, "function", &m->function, &m->function_len))
		return false;
	m->size = (uint32_t)size;
	m->version = (uint32_t)version;
	(void)take_text(o, "module", &m->module, &m->module_len); /* null: not known */
	return true;
}

/* A member that may be null or missing: "". */
static const char *text_or_none(json_t *o, const char *name)
{
	const char *s = json_string_value(json_object_get(o, name));

	return s ? s : "";
}

static bool take_module(json_t *o, struct ask_module *m)
{
	uint64_t flags, age = 0;
	size_t len;

	*m = (struct ask_module){ 0 };
	if (!take_text(o, "kind", &m->kind, &len) || !take_address(o, "id", &m->id) ||
	    !take_address(o, "parent", &m->parent) || !take_text(o, "name", &m->name, &len) ||
	    !take_u64(o, "flags", UINT32_MAX, &flags) ||
	    !take_u64(o, "load", INT64_MAX, &m->load) || !take_unload(o, &m->unload))
		return false;
	(void)take_u64(o, "pdb_age", UINT32_MAX, &age);
	m->flags = (uint32_t)flags;
	m->pdb_age = (uint32_t)age;
	m->native_path = text_or_none(o, "native_path");
	m->pdb_path = text_or_none(o, "pdb_path");
	m->pdb_id = text_or_none(o, "pdb_id");
	return true;
}

/* -- Resolve ------------------------------------------------------------------------------ */

/* Callers are asked for one byte before by ourselves: a batch may have both. */
static int resolve_parameters(const struct ask_item *items, size_t n, uint32_t wait_ms,
			      json_t **outp)
{
	json_t *addresses = json_array(), *times = json_array();
	char text[24];
	size_t i;

	for (i = 0; i < n; i++) {
		snprintf(text, sizeof(text), "0x%llx",
			 (unsigned long long)(items[i].addr - (items[i].caller && items[i].addr)));
		json_array_append_new(addresses, json_string(text));
		json_array_append_new(times, json_integer((json_int_t)items[i].time));
	}
	if (json_array_size(addresses) != n || json_array_size(times) != n) {
		json_decref(addresses);
		json_decref(times);
		return -ENOMEM;
	}
	*outp = json_pack("{s:o, s:o, s:I}", "addresses", addresses, "times", times, "wait_ms",
			  (json_int_t)wait_ms);
	return *outp ? 0 : -ENOMEM;
}

struct reply {
	json_t *methods, *method, *offset, *il_offset, *reason;
	uint64_t known_until;
	bool final;
};

/* The arrays, all of the same length. */
static bool take_reply(json_t *o, size_t n, struct reply *reply)
{
	reply->methods = json_object_get(o, "methods");
	reply->method = json_object_get(o, "method");
	reply->offset = json_object_get(o, "offset");
	reply->il_offset = json_object_get(o, "il_offset");
	reply->reason = json_object_get(o, "reason");
	reply->final = json_is_true(json_object_get(o, "final"));
	return json_array_size(reply->method) == n && json_array_size(reply->offset) == n &&
	       json_array_size(reply->il_offset) == n && json_array_size(reply->reason) == n &&
	       take_u64(o, "known_until", INT64_MAX, &reply->known_until);
}

/* The i-th answer; false: it makes no sense. */
static bool take_answer(const struct reply *reply, const struct ask_item *item, size_t i,
			struct query_method *m, struct ask_answer *a)
{
	json_t *index = json_array_get(reply->method, i);
	json_t *il = json_array_get(reply->il_offset, i);

	*a = (struct ask_answer){ .il = -1, .live = true };
	a->final = reply->final || (item->time && item->time <= reply->known_until);
	if (json_is_null(index)) {
		a->reason = json_string_value(json_array_get(reply->reason, i));
		return a->reason;
	}
	if (!json_is_integer(index) || json_integer_value(index) < 0 ||
	    !take_method(json_array_get(reply->methods, (size_t)json_integer_value(index)), m) ||
	    item->addr < m->start)
		return false;
	a->method = m;
	a->offset = (uint32_t)(item->addr - m->start);
	if (json_is_integer(il) && json_integer_value(il) >= 0)
		a->il = json_integer_value(il);
	return true;
}

static int resolve_some(struct ask_process *p, const struct ask_item *items, size_t n,
			uint32_t wait_ms, bool may_hold,
			int (*fn)(void *data, size_t i, const struct ask_answer *a), void *data,
			size_t first)
{
	json_t *parameters, *o = NULL;
	struct reply reply;
	struct query_method m;
	struct ask_answer a;
	bool continues;
	size_t i;
	int r;

	r = resolve_parameters(items, n, wait_ms, &parameters);
	if (r == 0)
		r = call(p, QUERY_INTERFACE ".Resolve", parameters, false, &o, &continues);
	if (r == 0 && !take_reply(o, n, &reply))
		r = -EPROTO;
	if (r) {
		json_decref(o);
		return say(p, r);
	}
	for (i = 0; i < n && r == 0; i++) {
		if (!take_answer(&reply, &items[i], i, &m, &a)) {
			r = say(p, -EPROTO);
		} else if (!a.method && may_hold && i == 0 &&
			   strcmp(a.reason, QUERY_REASON_NOT_ATTACHED) == 0) {
			/* our hold has ended; if it cannot be had again, that is the answer */
			r = hold(p);
			if (r < 0 || r == 1)
				r = say(p, r);
			else
				r = resolve_some(p, items, n, wait_ms, false, fn, data, first);
			break;
		} else {
			r = fn(data, first + i, &a);
		}
	}
	json_decref(o);
	return r;
}

int ask_daemon_resolve(struct ask_process *p, const struct ask_item *items, size_t n,
		       uint32_t wait_ms,
		       int (*fn)(void *data, size_t i, const struct ask_answer *a), void *data)
{
	size_t at, some;
	int r = 0;

	for (at = 0; at < n && r == 0; at += some) {
		some = MIN(n - at, (size_t)BATCH);
		r = resolve_some(p, items + at, some, wait_ms, true, fn, data, at);
	}
	return r;
}

/* -- lists -------------------------------------------------------------------------------- */

static int each_method(json_t *o, int (*fn)(void *data, const struct query_method *m), void *data)
{
	json_t *methods = json_object_get(o, "methods");
	struct query_method m;
	size_t i, n = json_array_size(methods);
	int r = json_is_array(methods) ? 0 : -EPROTO;

	for (i = 0; i < n && r == 0; i++)
		r = take_method(json_array_get(methods, i), &m) ? fn(data, &m) : -EPROTO;
	return r;
}

int ask_daemon_methods(struct ask_process *p, bool retired,
		       int (*fn)(void *data, const struct query_method *m), void *data)
{
	json_t *parameters = json_pack("{s:b}", "retired", (int)retired), *o = NULL;
	bool continues;
	int r;

	if (!parameters)
		return -ENOMEM;
	r = call(p, QUERY_INTERFACE ".ListMethods", parameters, true, &o, &continues);
	while (r == 0) {
		r = each_method(o, fn, data);
		json_decref(o);
		o = NULL;
		if (r || !continues)
			break;
		r = query_client_next(p->ask->client, -1, &o, &continues);
	}
	json_decref(o);
	return r ? say(p, r) : 0;
}

int ask_daemon_modules(struct ask_process *p, int (*fn)(void *data, const struct ask_module *m),
		       void *data)
{
	struct ask_module m;
	json_t *o = NULL, *modules;
	bool continues;
	size_t i;
	int r;

	r = call(p, QUERY_INTERFACE ".ListModules", NULL, false, &o, &continues);
	modules = json_object_get(o, "modules");
	if (r == 0 && !json_is_array(modules))
		r = -EPROTO;
	for (i = 0; r == 0 && i < json_array_size(modules); i++)
		r = take_module(json_array_get(modules, i), &m) ? fn(data, &m) : -EPROTO;
	json_decref(o);
	return r ? say(p, r) : 0;
}

/* -- Monitor ------------------------------------------------------------------------------ */

static int each_change(json_t *o,
		       int (*fn)(void *data, const char *change, const struct query_method *m),
		       void *data)
{
	json_t *changes = json_object_get(o, "changes"), *item, *method;
	struct query_method m;
	const char *change;
	size_t i, len;
	int r = json_is_array(changes) ? 0 : -EPROTO;

	for (i = 0; r == 0 && i < json_array_size(changes); i++) {
		item = json_array_get(changes, i);
		method = json_object_get(item, "method");
		if (!take_text(item, "change", &change, &len) ||
		    (json_is_object(method) && !take_method(method, &m)))
			r = -EPROTO;
		else
			r = fn(data, change, json_is_object(method) ? &m : NULL);
	}
	return r;
}

/* SIGINT, SIGTERM and SIGHUP as an fd. */
static int open_signals(void)
{
	sigset_t mask;
	int fd;

	sigemptyset(&mask);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGHUP);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	return fd < 0 ? -errno : fd;
}

/* The next reply. Returns as query_client_next(); *stopp: a signal came instead. */
static int next_or_signal(struct query_client *c, int signals, json_t **replyp, bool *continuesp,
			  bool *stopp)
{
	struct pollfd fds[] = {
		{ .fd = query_client_fd(c), .events = POLLIN },
		{ .fd = signals, .events = POLLIN },
	};
	int r;

	for (;;) {
		r = query_client_next(c, 0, replyp, continuesp);
		if (r != -EAGAIN)
			return r;
		if (poll(fds, ARRAY_SIZE(fds), -1) < 0 && errno != EINTR)
			return -errno;
		*stopp = fds[1].revents;
		if (*stopp)
			return 0;
	}
}

int ask_daemon_watch(struct ask_process *p,
		     int (*fn)(void *data, const char *change, const struct query_method *m),
		     void *data)
{
	_cleanup_close_ int signals = open_signals();
	bool continues = true, stop = false;
	json_t *o = NULL;
	int r;

	if (signals < 0)
		return signals;
	r = query_client_call_more(
		p->ask->client, QUERY_INTERFACE ".Monitor",
		json_pack("{s:i, s:I}", "pid", (int)p->pid, "start", (json_int_t)p->start));
	while (r == 0 && continues) {
		r = next_or_signal(p->ask->client, signals, &o, &continues, &stop);
		if (stop)
			break;
		if (r == 0)
			r = each_change(o, fn, data);
		json_decref(o);
		o = NULL;
	}
	return r ? say(p, r) : 0;
}
