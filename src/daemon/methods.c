/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which method is which, and those that answer at once.
 */
#include "daemon/conn.h"

#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/escape.h"

/* -- parameters --------------------------------------------------------------------------- */

/* Answers when a parameter is not as it should be. */
static bool check(struct conn *c, int r, const char *bad)
{
	if (r)
		conn_bad_parameter(c, bad);
	return !r;
}

bool method_check_names(struct conn *c, json_t *parameters, const char *const *names)
{
	const char *bad = NULL;
	int r = query_parse_members(parameters, names, &bad);

	return check(c, r, bad);
}

bool method_take_uint(struct conn *c, json_t *parameters, const char *name, uint64_t max,
		      uint64_t *vp)
{
	const char *bad = NULL;
	int r = query_parse_count(parameters, name, max, vp, &bad);

	return check(c, r, bad);
}

bool method_take_bool(struct conn *c, json_t *parameters, const char *name, bool *vp)
{
	const char *bad = NULL;
	int r;

	*vp = false;
	r = query_parse_flag(parameters, name, vp, &bad);
	return check(c, r, bad);
}

bool method_take_time(struct conn *c, json_t *parameters, const char *name, uint64_t *vp)
{
	json_t *value = json_object_get(parameters, name);

	return check(c, value && !json_is_null(value) && !query_parse_time(value, vp), name);
}

json_t *method_text(const char *s, size_t len)
{
	_cleanup_buf_ struct buf text = { .cap = CAP_PROC_FILE };

	escape_line(&text, s, len, CAP_NAME_LENGTH);
	return json_stringn(text.data ? (const char *)text.data : "", text.len);
}

/* -- values ------------------------------------------------------------------------------- */

struct range method_range_life(const struct codemap_info *info)
{
	return (struct range){
		.start = info->start,
		.load = info->load,
		.unload = info->unload,
		.announced = info->announced,
		.method = info->method_id | info->version << 48,
		.size = info->size,
		.flags = info->flags | (info->open_past ? RANGE_FLAG_OPEN_PAST : 0) |
			 (info->freeable ? RANGE_FLAG_FREEABLE : 0),
		.token = info->token,
	};
}

int method_range(struct codemap *map, const struct codemap_body *body,
		 const struct codemap_info *info, struct range_body *range)
{
	const struct codemap_il *il = NULL;
	size_t n_il = 0;
	int r;

	r = codemap_il_entries(map, body, &il, &n_il);
	if (r < 0)
		return r;
	*range = (struct range_body){
		.range = method_range_life(info),
		.ns = info->name.ns,
		.name = info->name.name,
		.sig = info->name.sig,
		.module = info->module_path,
		.ns_len = info->name.ns_len,
		.name_len = info->name.name_len,
		.sig_len = info->name.sig_len,
		.module_len = info->module_path_len,
		.il = il,
		.n_il = r == 0 ? (uint32_t)n_il : 0,
	};
	return 0;
}

/* What is kept of the process. */
static size_t memory_of(const struct entry *e)
{
	struct codemap_stats stats;

	codemap_get_stats(target_map(e->target), &stats);
	return stats.bytes + stats.il_bytes + loader_memory(target_loader(e->target)) +
	       (e->places ? places_memory(e->places) : 0);
}

json_t *method_process(const struct conn *c, struct entry *e)
{
	struct target_status status;
	struct codemap_stats stats;
	const char *reason = e->ended ? target_end_text(e->target) : NULL;

	target_get_status(e->target, &status);
	codemap_get_stats(target_map(e->target), &stats);
	return json_pack("{s:i, s:I, s:I, s:o, s:o, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:o}",
			 "pid", (int)access_pid_of(c, e), "start", (json_int_t)e->proc->start,
			 "uid", (json_int_t)e->proc->uid, "comm",
			 method_text(e->proc->comm, strlen(e->proc->comm)), "runtime",
			 /* cut at a length, perhaps in a character */
			 method_text(status.runtime, strlen(status.runtime)), "state",
			 target_state_text(status.state), "complete", e->complete, "bodies",
			 (json_int_t)stats.live, "precompiled", (json_int_t)stats.live_r2r,
			 "retired", (json_int_t)stats.retired, "bytes", (json_int_t)memory_of(e),
			 "known_until",
			 (json_int_t)MIN(target_known_until(e->target), (uint64_t)INT64_MAX),
			 "lost", (json_int_t)status.lost, "reason",
			 reason ? method_text(reason, strlen(reason)) : json_null());
}

/* -- org.varlink.service ------------------------------------------------------------------ */

/* The interface that is meant, by the name it has in the tables; NULL: there is none such. */
static const char *find_interface(const char *name, size_t len)
{
	static const struct {
		const char *name, *is;
	} names[] = {
		{ QUERY_SERVICE, QUERY_SERVICE },
		{ QUERY_INTERFACE, QUERY_INTERFACE },
		{ QUERY_INTERFACE_LOWER, QUERY_INTERFACE },
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(names); i++)
		if (strlen(names[i].name) == len && memcmp(names[i].name, name, len) == 0)
			return names[i].is;
	return NULL;
}

static void get_info(struct conn *c, json_t *parameters)
{
	static const char *const names[] = { NULL };

	if (!method_check_names(c, parameters, names))
		return;
	conn_reply(c,
		   json_pack("{s:s, s:s, s:s, s:s, s:[s, s]}", "vendor", "clrsym", "product",
			     "clrsymd", "version", CLRSYM_VERSION, "url", "", "interfaces",
			     QUERY_SERVICE, QUERY_INTERFACE),
		   false);
}

static void get_interface_description(struct conn *c, json_t *parameters)
{
	static const char *const names[] = { "interface", NULL };
	const char *name = json_string_value(json_object_get(parameters, "interface"));
	const char *text = name ? query_description(name) : NULL;

	if (!method_check_names(c, parameters, names))
		return;
	if (!name)
		conn_bad_parameter(c, "interface");
	else if (text)
		conn_reply(c, json_pack("{s:s}", "description", text), false);
	else
		conn_error(c, QUERY_ERROR_NO_INTERFACE, json_pack("{s:s}", "interface", name));
}

/* -- what answers at once ----------------------------------------------------------------- */

static void list_processes(struct conn *c, json_t *parameters)
{
	static const char *const names[] = { NULL };
	struct entry *e;
	json_t *all;

	if (!method_check_names(c, parameters, names))
		return;
	all = json_array();
	for (e = registry_first(c->srv->reg); e; e = e->next)
		/* a process that the client has no number for is none of its world */
		if (access_entry(c, e) && (access_pid_of(c, e) || c->peer.same_pid_ns))
			json_array_append_new(all, method_process(c, e));
	conn_reply(c, json_pack("{s:o}", "processes", all), false);
}

/* -- WriteMap ------------------------------------------------------------------------------ */

/*
 * A write that is begun anew never ends if that happens often enough: so one request at a time has
 * its write, and the others wait for it to be over.
 */
#define WRITE_POLL_NS MS_NS(10)
#define WRITE_WAIT_NS SEC_NS(10)

struct map_write {
	struct op op;
	pid_t theirs;
	bool begun;
	uint64_t finished; /* writes, before */
	uint64_t until_ns;
};

static void map_write_free(struct op *op)
{
	struct map_write *w = container_of(op, struct map_write, op);

	if (w->begun && op->entry)
		op->entry->writing_map = false;
	free(w);
}

/* Its turn to have the map written. */
static void begin_map(struct map_write *w, struct entry *e)
{
	struct perfmap_status status;

	if (w->begun || e->writing_map)
		return;
	perfmap_get_status(e->perfmap, &status);
	w->finished = status.finished;
	w->begun = e->writing_map = true;
	perfmap_write(e->perfmap, e->shown, NULL, NULL);
}

static void reply_map(struct conn *c, const struct perfmap *pm)
{
	struct perfmap_status status;
	json_t *files = json_array();
	const char *path;
	size_t i;

	perfmap_get_status(pm, &status);
	for (i = 0; (path = perfmap_path(pm, i)); i++)
		json_array_append_new(files, method_text(path, strlen(path)));
	conn_reply(c, json_pack("{s:o, s:I}", "files", files, "methods", (json_int_t)status.lines),
		   false);
}

static enum op_result map_write_step(struct conn *c, struct op *op, uint64_t deadline_ns UNUSED)
{
	struct map_write *w = container_of(op, struct map_write, op);
	struct entry *e = op->entry;
	struct perfmap_status status;
	uint64_t now = clock_now_ns();

	if (!e || e->ended || !e->shown) {
		conn_not_attached(c, w->theirs);
		return OP_DONE;
	}
	begin_map(w, e);
	perfmap_get_status(e->perfmap, &status);
	if (w->begun && status.finished != w->finished && !status.error) {
		reply_map(c, e->perfmap);
		return OP_DONE;
	}
	if ((w->begun && status.finished != w->finished) || now >= w->until_ns) {
		conn_error(c, QUERY_ERROR_FAILED,
			   json_pack("{s:s}", "reason",
				     status.error > 0 ? proc_error_text(e->proc, status.error, NULL)
						      : "the map is not written in time"));
		return OP_DONE;
	}
	op->wake_ns = now + WRITE_POLL_NS;
	return OP_WAIT;
}

static void write_map(struct conn *c, json_t *parameters)
{
	static const char *const names[] = { "pid", "start", NULL };
	struct map_write *w;
	struct entry *e;

	if (!method_check_names(c, parameters, names))
		return;
	e = access_find(c, parameters);
	if (!e)
		return;
	if (!e->perfmap || !e->shown || e->ended) {
		conn_error(c, QUERY_ERROR_FAILED,
			   json_pack("{s:s}", "reason", "no map is kept for it"));
		return;
	}
	w = calloc(1, sizeof(*w));
	if (!w) {
		conn_fail(c, -ENOMEM);
		return;
	}
	*w = (struct map_write){
		.op = { .step = map_write_step,
			.free = map_write_free,
			.entry = e,
			.memory = sizeof(*w) },
		.theirs = access_theirs(parameters),
		.until_ns = clock_now_ns() + WRITE_WAIT_NS,
	};
	conn_start(c, &w->op);
}

/* -- Status -------------------------------------------------------------------------------- */

static void get_status(struct conn *c, json_t *parameters)
{
	static const char *const names[] = { NULL };
	const struct server *srv = c->srv;
	const struct entry *e;
	json_int_t n = 0;

	if (!method_check_names(c, parameters, names))
		return;
	for (e = registry_first(srv->reg); e; e = e->next)
		n += !e->ended;
	conn_reply(c,
		   json_pack("{s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "version",
			     CLRSYM_VERSION, "pid", (int)getpid(), "uptime_ms",
			     (json_int_t)((clock_now_ns() - srv->started_ns) / MS_NS(1)),
			     "processes", n, "clients", (json_int_t)srv->n_conns, "requests",
			     (json_int_t)srv->stats.requests, "addresses",
			     (json_int_t)srv->stats.addresses, "hits", (json_int_t)srv->stats.hits,
			     "dropped", (json_int_t)srv->stats.dropped, "client_bytes",
			     (json_int_t)srv->memory),
		   false);
}

/* -- the table ---------------------------------------------------------------------------- */

#define METHOD_OPEN 1u /* for whoever can connect */
#define METHOD_MORE 2u /* makes no sense without `more` */

static const struct method {
	const char *name;
	void (*fn)(struct conn *c, json_t *parameters);
	unsigned int flags;
} methods[] = {
	{ QUERY_SERVICE ".GetInfo", get_info, METHOD_OPEN },
	{ QUERY_SERVICE ".GetInterfaceDescription", get_interface_description, METHOD_OPEN },
	{ QUERY_INTERFACE ".Resolve", method_resolve, 0 },
	{ QUERY_INTERFACE ".Export", method_export, 0 },
	{ QUERY_INTERFACE ".Snapshot", method_snapshot, 0 },
	{ QUERY_INTERFACE ".ListProcesses", list_processes, 0 },
	{ QUERY_INTERFACE ".ListModules", method_list_modules, 0 },
	{ QUERY_INTERFACE ".ListMethods", method_list_methods, 0 },
	{ QUERY_INTERFACE ".Attach", method_attach, 0 },
	{ QUERY_INTERFACE ".Detach", method_detach, 0 },
	{ QUERY_INTERFACE ".WriteMap", write_map, 0 },
	{ QUERY_INTERFACE ".Monitor", method_monitor, METHOD_MORE },
	{ QUERY_INTERFACE ".Status", get_status, 0 },
};

/* rest: from the dot before the method's own name on. */
static const struct method *find_method(const char *interface, const char *rest)
{
	size_t i, len = strlen(interface);

	for (i = 0; i < ARRAY_SIZE(methods); i++)
		if (strncmp(methods[i].name, interface, len) == 0 &&
		    strcmp(methods[i].name + len, rest) == 0)
			return &methods[i];
	return NULL;
}

/* Answers if there is none. */
static const struct method *choose_method(struct conn *c, const char *name)
{
	const char *dot = strrchr(name, '.');
	size_t len = dot ? (size_t)(dot - name) : 0;
	const char *interface = find_interface(name, len);
	const struct method *method = interface ? find_method(interface, dot) : NULL;

	if (!interface)
		conn_error(c, QUERY_ERROR_NO_INTERFACE,
			   json_pack("{s:o}", "interface", method_text(name, len)));
	else if (!method)
		conn_error(c, QUERY_ERROR_NO_METHOD, json_pack("{s:s}", "method", name));
	return method;
}

void methods_call(struct conn *c, const struct wire_call *call)
{
	const struct method *method = choose_method(c, call->method);
	json_t *none = call->parameters ? NULL : json_object();

	if (!method)
		; /* has been answered */
	else if (!(method->flags & METHOD_OPEN) && !c->allowed)
		conn_error(c, QUERY_ERROR_DENIED, NULL);
	else if (method->flags & METHOD_MORE && !call->more)
		conn_error(c, QUERY_ERROR_MORE, NULL);
	else if (call->upgrade)
		conn_bad_parameter(c, "upgrade");
	else if (!none && !call->parameters)
		conn_end(c);
	else
		method->fn(c, call->parameters ? call->parameters : none);
	json_decref(none);
}
