/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fake.h"

#include <string.h>

#include "base/caps.h"
#include "query/symbols.h"

const char *const fake_reasons[] = {
	QUERY_REASON_UNMAPPED,
	QUERY_REASON_STUB,
	QUERY_REASON_NATIVE,
	"not announced",
	"not loaded yet",
	"retired",
	"expired",
	"data lost at 4144684449616",
	"over a cap",
	QUERY_REASON_NOT_ATTACHED,
	QUERY_REASON_DENIED,
	"a reason of tomorrow",
	"data lost",
};

static const char *const method_names[] = {
	[FAKE_ATTACH] = QUERY_INTERFACE ".Attach",
	[FAKE_SNAPSHOT] = QUERY_INTERFACE ".Snapshot",
	[FAKE_RESOLVE] = QUERY_INTERFACE ".Resolve",
	[FAKE_MONITOR] = QUERY_INTERFACE ".Monitor",
};

static void put_reply(struct buf *out, json_t *parameters, bool continues)
{
	must(parameters);
	must(wire_put_reply(out, parameters, continues) == 0);
	json_decref(parameters);
}

static void attach(struct fake *f, struct buf *out)
{
	f->attached = true;
	put_reply(out,
		  json_pack("{s:{s:i,s:i,s:s}}", "process", "pid", FAKE_PID, "start",
			    (int)FAKE_START, "state", "live"),
		  false);
}

static void not_attached(struct buf *out)
{
	json_t *parameters = json_pack("{s:i}", "pid", FAKE_PID);

	must(wire_put_error(out, QUERY_ERROR_NOT_ATTACHED, parameters) == 0);
	json_decref(parameters);
}

static void give_snapshot(struct fake *f, struct buf *out, int *fdp)
{
	if (!f->attached) {
		not_attached(out);
		return;
	}
	if (f->snapshot_fd == -1)
		*fdp = snapshot_writer_fd(f->writer);
	else if (f->snapshot_fd >= 0)
		*fdp = f->snapshot_fd;
	put_reply(out,
		  json_pack("{s:i,s:i,s:i}", "bytes", 1, "start", (int)FAKE_START, "generation", 1),
		  false);
}

static void put_far(struct query_answers *a)
{
	static const struct query_method far = {
		.method_id = 0x1234,
		.start = FAKE_FAR,
		.size = FAKE_FAR_SIZE,
		.version = 2,
		.load = FAKE_T0,
		.unload = UINT64_MAX,
		.tier = "OptimizedTier1",
		.ns = "Far.Away",
		.ns_len = 8,
		.name = "Run",
		.name_len = 3,
		.sig = "void  (int32)",
		.sig_len = 13,
		.function = "Far.Away::Run(int32)",
		.function_len = 20,
		.module = "/app/far.dll",
		.module_len = 12,
	};

	query_answers_method(a, &far);
}

static void resolve(struct fake *f, json_t *parameters, struct buf *out)
{
	struct query_resolve req;
	struct query_answers a;
	const char *bad;
	bool final = true;
	size_t i;

	if (!f->attached) {
		not_attached(out);
		return;
	}
	must(query_resolve_parse(&req, parameters, &bad) == 0);
	must(req.pid == FAKE_PID);
	must(req.start == FAKE_START);
	f->wait_ms = req.wait_ms;
	f->addresses += (uint32_t)req.n;
	query_answers_init(&a, MIB(64));
	put_far(&a);
	for (i = 0; i < req.n; i++) {
		uint64_t addr = req.items[i].addr;

		must(!req.items[i].caller);
		if (addr - FAKE_FAR < FAKE_FAR_SIZE)
			query_answers_hit(&a, 0, (uint32_t)(addr - FAKE_FAR), addr & 1 ? 7 : -1);
		else
			query_answers_miss(&a, fake_reasons[(addr & 0xff) % 13]);
		final = final && req.items[i].time && req.items[i].time <= f->known_until;
	}
	must(query_answers_reply(&a, f->known_until, final, out) == 0);
	query_answers_deinit(&a);
	query_resolve_deinit(&req);
}

static void handle(void *data, const struct wire_call *call, struct buf *out, int *fdp)
{
	const char *raw, *error;
	struct fake *f = data;
	unsigned int m;

	for (m = 0; m < FAKE_METHODS; m++)
		if (strcmp(call->method, method_names[m]) == 0)
			break;
	must(m < FAKE_METHODS);
	raw = f->raw[m];
	error = f->error[m];
	f->calls[m]++;
	if (error)
		must(wire_put_error(out, error, NULL) == 0);
	else if (raw && *raw)
		buf_append(out, raw, strlen(raw) + 1);
	else if (raw)
		return;
	else if (m == FAKE_ATTACH)
		attach(f, out);
	else if (m == FAKE_SNAPSHOT)
		give_snapshot(f, out, fdp);
	else if (m == FAKE_RESOLVE)
		resolve(f, call->parameters, out);
}

/* -- Snapshots ---------------------------------------------------------------------------- */

void fake_put(struct snapshot_writer *w, uint32_t i, uint64_t load, const char *name)
{
	static const uint32_t il[][2] = { { 0, 0 }, { 0x10, 5 } };
	struct range_body body = { 0 };
	char function[64];

	snprintf(function, sizeof(function), "Ns.Type::%s%u(int32)", name, i);
	body.range.start = FAKE_CODE + (uint64_t)i * FAKE_STEP;
	body.range.size = FAKE_SIZE;
	body.range.load = body.range.announced = load;
	body.range.unload = RANGE_ALIVE;
	body.range.method = 0x1000 + i;
	body.range.flags = 0x8u | 4u << 7; /* jitted, OptimizedTier1 */
	body.function = function;
	body.function_len = (uint32_t)strlen(function);
	body.short_len = (uint32_t)(strchr(function, '(') - function);
	body.module = "/app/load.dll";
	body.module_len = 13;
	body.il = il;
	body.n_il = 2;
	must(snapshot_put(w, i, &body) == 0);
}

void fake_snapshot(struct fake *f, uint32_t generation, uint32_t n)
{
	struct snapshot_identity identity = {
		.pid = FAKE_PID,
		.start = FAKE_START,
		.start_ns = 1,
		.generation = generation,
	};
	struct snapshot_writer *w, *last = f->writer;
	uint32_t i;

	must(snapshot_writer_new(&w, &identity, 0) == 0);
	for (i = 0; i < n; i++)
		fake_put(w, i, FAKE_T0, "M");
	snapshot_publish(w, FAKE_T0 * 2);
	must(f->n_writers < ARRAY_SIZE(f->writers));
	f->writers[f->n_writers++] = w;
	f->writer = w;
	if (last)
		snapshot_close(last, true);
}

/* -- Life --------------------------------------------------------------------------------- */

void fake_start(struct fake *f)
{
	*f = (struct fake){ .snapshot_fd = -1, .known_until = 2 * FAKE_T0 };
	snprintf(f->dir, sizeof(f->dir), "/tmp/libclrsym-XXXXXX");
	must(mkdtemp(f->dir));
	snprintf(f->path, sizeof(f->path), "%s/query.sock", f->dir);
	fake_snapshot(f, 1, 16);
	f->attached = true;
	f->server = server_start(f->path, handle, f);
}

void fake_kill(struct fake *f)
{
	server_kill(f->server);
	f->server = NULL;
	/* as the end of the daemon does: nothing is written any more */
	while (f->n_writers)
		snapshot_writer_free(f->writers[--f->n_writers]);
	f->writer = NULL;
}

void fake_restart(struct fake *f)
{
	f->attached = false;
	fake_snapshot(f, 1, 0);
	f->server = server_start(f->path, handle, f);
}

void fake_stop(struct fake *f)
{
	if (f->server)
		fake_kill(f);
	unlink(f->path);
	rmdir(f->dir);
}

struct clrsym *fake_open(const struct fake *f)
{
	struct clrsym_open_opts opts = { .sz = sizeof(opts), .socket_path = f->path };
	struct clrsym *c;

	must(clrsym_open(&opts, &c) == 0);
	return c;
}

struct clrsym_process *fake_process(struct clrsym *c)
{
	struct clrsym_process *p;

	must(clrsym_process_open(c, FAKE_PID, 0, NULL, &p) == 0);
	return p;
}
