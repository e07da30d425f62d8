/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshot and Export: answers that are a file without a name.
 *
 * An export is what was known at one moment, taken in slices while the process goes on: what was
 * loaded since that moment is left out, and what has ended since counts as alive.
 *
 * Code bytes belong to a body for sure only when all that happened until they were read is known.
 * So where they were not kept all along they are read first, and the export waits for known_until
 * to pass that.
 */
#include "daemon/conn.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/caps.h"
#include "base/clock.h"
#include "query/export.h"

#define POLL_NS MS_NS(20)

#if defined(__x86_64__)
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
#endif

/* The fd (taken over) goes with the reply; without one it would go with the next. */
static void reply_fd(struct conn *c, json_t *parameters, int fd)
{
	if (c->oneway)
		fd_close(fd);
	else
		c->out_fd = fd;
	conn_reply(c, parameters, false);
}

/* -- Snapshot ------------------------------------------------------------------------------ */

struct snap {
	struct op op;
	pid_t theirs;
};

static void snap_free(struct op *op)
{
	free(container_of(op, struct snap, op));
}

static enum op_result snap_step(struct conn *c, struct op *op, uint64_t deadline_ns UNUSED)
{
	struct snap *snap = container_of(op, struct snap, op);
	struct entry *e = op->entry;
	uint32_t generation;
	size_t bytes;
	int fd, r;

	if (!e) {
		conn_not_attached(c, snap->theirs);
		return OP_DONE;
	}
	r = copy_get(e, c, &fd, &generation, &bytes);
	if (r == -EAGAIN)
		return OP_WAIT;
	if (r < 0)
		conn_fail(c, r);
	else
		reply_fd(c,
			 json_pack("{s:I, s:I, s:I}", "bytes", (json_int_t)bytes, "start",
				   (json_int_t)e->proc->start, "generation",
				   (json_int_t)generation),
			 fd);
	return OP_DONE;
}

void method_snapshot(struct conn *c, json_t *parameters)
{
	static const char *const names[] = { "pid", "start", NULL };
	struct snap *snap;
	struct entry *e;

	if (!method_check_names(c, parameters, names))
		return;
	e = access_find(c, parameters);
	if (!e)
		return;
	snap = calloc(1, sizeof(*snap));
	if (!snap) {
		conn_fail(c, -ENOMEM);
		return;
	}
	snap->op = (struct op){
		.step = snap_step, .free = snap_free, .entry = e, .memory = sizeof(*snap)
	};
	snap->theirs = access_theirs(parameters);
	conn_start(c, &snap->op);
}

/* -- Export -------------------------------------------------------------------------------- */

enum phase {
	EXPORT_WAIT,  /* until the time asked for is known */
	EXPORT_READ,  /* code bytes that were not kept */
	EXPORT_TRUST, /* until it is known whose they were */
	EXPORT_WRITE,
};

struct exporting {
	struct op op;
	enum phase phase;
	pid_t theirs;
	uint64_t from, to;
	bool code;
	uint64_t wanted_ns, until_ns; /* known_until to wait for, and how long */
	uint64_t moment_ns;           /* what the export is of */
	uint64_t known_until;
	const struct codemap *map;
	uint32_t incarnation; /* of the start: another program ends it */
	struct server *srv;
	uint32_t slot;
	uint64_t bodies;
	struct export_writer *writer;
};

static void exporting_free(struct op *op)
{
	struct exporting *x = container_of(op, struct exporting, op);

	x->srv->exports--;
	export_writer_free(x->writer);
	free(x);
}

/* Reads the code of what is alive. True when all of it has been read. */
static bool read_code(struct exporting *x, struct target *target, uint64_t deadline_ns)
{
	const struct codemap_body *body;
	struct codemap_info info;

	for (; x->slot < codemap_n_slots(x->map); x->slot++) {
		if (x->slot % 16 == 0 && clock_now_ns() >= deadline_ns)
			return false;
		body = codemap_slot(x->map, x->slot);
		if (!body)
			continue;
		codemap_body_info(x->map, body, &info);
		/* what cannot be read has no bytes, and that is all */
		if (info.unload == UINT64_MAX)
			target_keep_body(target, &info);
	}
	x->slot = 0;
	return true;
}

static int add_body(struct exporting *x, struct target *target, const struct codemap_body *body)
{
	const uint8_t *bytes = NULL;
	struct codemap_info info;
	struct range_body range;
	int r;

	codemap_body_info(x->map, body, &info);
	if (info.announced > x->moment_ns)
		return 0;
	if (info.unload > x->moment_ns)
		info.unload = UINT64_MAX;
	if (info.unload < x->from || (x->to && info.load > x->to))
		return 0;
	r = method_range(target_map(target), body, &info, &range);
	if (r < 0)
		return r;
	if (x->code && target_code(target, &info, &bytes))
		bytes = NULL;
	x->bodies++;
	return export_add(x->writer, &range, bytes);
}

/* Gaps, mappings and clocks. */
static int add_rest(struct conn *c, struct exporting *x, struct entry *e)
{
	const struct perfdata_clock_track *track = &c->srv->clock;
	struct perfdata_clock_pair pair;
	struct export_gap gap;
	const char *path;
	uint64_t addr;
	size_t i;
	int r = 0;

	for (i = 0; r == 0 && codemap_gap_at(x->map, i, &gap.from, &gap.to); i++)
		r = export_add_gap(x->writer, &gap);
	for (i = 0; r == 0 && e->places && places_file(e->places, i, &addr, &path); i++)
		r = export_add_mapping(x->writer, addr, path, strlen(path));
	if (perfdata_clock_measure(false, 0, &pair) == 0)
		perfdata_clock_track_add(&c->srv->clock, &pair);
	for (i = 0; r == 0 && i < track->n; i++)
		r = export_add_clock(x->writer,
				     &(struct export_clock){
					     .clockid = UINT32_MAX,
					     .error_ns = (uint32_t)track->pairs[i].error_ns,
					     .clock_ns = track->pairs[i].clock_ns,
					     .mono_ns = track->pairs[i].mono_ns,
				     });
	return r;
}

static void finish(struct conn *c, struct exporting *x, struct entry *e)
{
	struct target_status status;
	struct export_identity identity = {
		.start = e->proc->start,
		.start_ns = proc_start_ns(e->proc),
		.begin_ns = target_began(e->target),
		.attach_ns = e->attach_ns,
		.known_until = x->known_until,
		.horizon = codemap_horizon(x->map),
		.pid = e->proc->pid,
		.owner = e->proc->euid,
		.machine = MACHINE,
		.ended = e->ended,
		.with_code = x->code,
		.over_cap = codemap_is_incomplete(x->map),
	};
	struct stat st = { 0 };
	int fd, r;

	target_get_status(e->target, &status);
	identity.complete = status.rundown_complete;
	r = add_rest(c, x, e);
	if (r == 0)
		r = export_finish(x->writer, &identity, &fd);
	if (r < 0)
		conn_fail(c, r);
	else if (r > 0)
		conn_error(c, QUERY_ERROR_BUSY,
			   json_pack("{s:s}", "reason", "the process has too much code"));
	if (r)
		return;
	fstat(fd, &st);
	reply_fd(c,
		 json_pack("{s:I, s:I, s:I}", "bytes", (json_int_t)st.st_size, "bodies",
			   (json_int_t)x->bodies, "known_until", (json_int_t)x->known_until),
		 fd);
}

/* True when all bodies are written, or it has failed: *rp. */
static bool write_bodies(struct exporting *x, struct target *target, uint64_t deadline_ns, int *rp)
{
	const struct codemap_body *body;

	for (; x->slot < codemap_n_slots(x->map); x->slot++) {
		if (x->slot % 64 == 0 && clock_now_ns() >= deadline_ns)
			return false;
		body = codemap_slot(x->map, x->slot);
		*rp = body ? add_body(x, target, body) : 0;
		if (*rp)
			return true;
	}
	return true;
}

/* Not known yet, and there is time. */
static bool must_wait(struct exporting *x, const struct entry *e)
{
	uint64_t now = clock_now_ns();

	if (e->ended || now >= x->until_ns || target_known_until(e->target) >= x->wanted_ns)
		return false;
	x->op.wake_ns = MIN(now + POLL_NS, x->until_ns);
	return true;
}

/* The moment that the export is of. */
static int begin_writing(struct exporting *x, struct entry *e)
{
	if (x->writer)
		return 0;
	if (e->places || places_new(&e->places) == 0)
		places_refresh(e->places, e->proc, clock_now_ns());
	x->known_until = target_known_until(e->target);
	x->moment_ns = clock_now_ns();
	return export_writer_new(&x->writer, CAP_EXPORT_BYTES);
}

static enum op_result write_step(struct conn *c, struct exporting *x, uint64_t deadline_ns)
{
	struct entry *e = x->op.entry;
	int r = begin_writing(x, e);

	if (r == 0 && !write_bodies(x, e->target, deadline_ns, &r))
		return OP_MORE;
	if (r < 0)
		conn_fail(c, r);
	else if (r > 0)
		conn_error(c, QUERY_ERROR_BUSY,
			   json_pack("{s:s}", "reason", "the process has too much code"));
	else
		finish(c, x, e);
	return OP_DONE;
}

static enum op_result export_step(struct conn *c, struct op *op, uint64_t deadline_ns)
{
	struct exporting *x = container_of(op, struct exporting, op);
	struct entry *e = op->entry;
	struct target_status status = { 0 };

	if (e)
		target_get_status(e->target, &status);
	if (!e || status.incarnation != x->incarnation) {
		conn_not_attached(c, x->theirs);
		return OP_DONE;
	}
	switch (x->phase) {
	case EXPORT_WAIT:
		if (must_wait(x, e))
			return OP_WAIT;
		x->phase = x->code && !c->srv->opts.keep_code && !e->ended ? EXPORT_READ
									   : EXPORT_WRITE;
		return OP_MORE;
	case EXPORT_READ:
		if (!read_code(x, e->target, deadline_ns))
			return OP_MORE;
		x->phase = EXPORT_TRUST;
		x->wanted_ns = clock_now_ns();
		x->until_ns = x->wanted_ns + MS_NS(CAP_QUERY_EXPORT_WAIT_MS);
		return OP_MORE;
	case EXPORT_TRUST:
		if (must_wait(x, e))
			return OP_WAIT;
		x->phase = EXPORT_WRITE;
		return OP_MORE;
	case EXPORT_WRITE: return write_step(c, x, deadline_ns);
	}
	return OP_DONE;
}

void method_export(struct conn *c, json_t *parameters)
{
	static const char *const names[] = {
		"pid", "start", "from", "to", "code", "wait_ms", NULL
	};
	uint64_t from = 0, to = 0, wait_ms = 0;
	struct target_status status;
	struct exporting *x;
	struct entry *e;
	bool code;

	if (!method_check_names(c, parameters, names) ||
	    !method_take_time(c, parameters, "from", &from) ||
	    !method_take_time(c, parameters, "to", &to) ||
	    !method_take_bool(c, parameters, "code", &code) ||
	    !method_take_uint(c, parameters, "wait_ms", CAP_QUERY_EXPORT_WAIT_MS, &wait_ms))
		return;
	e = access_find(c, parameters);
	if (!e)
		return;
	if (code && !access_code(c, e)) {
		conn_error(c, QUERY_ERROR_DENIED, NULL);
		return;
	}
	if (c->srv->exports >= CAP_QUERY_EXPORTS) {
		conn_error(c, QUERY_ERROR_BUSY,
			   json_pack("{s:s}", "reason", "other exports are being made"));
		return;
	}
	x = calloc(1, sizeof(*x));
	if (!x) {
		conn_fail(c, -ENOMEM);
		return;
	}
	target_get_status(e->target, &status);
	c->srv->exports++;
	*x = (struct exporting){
		.op = { .step = export_step,
			.free = exporting_free,
			.entry = e,
			.memory = sizeof(*x) },
		.theirs = access_theirs(parameters),
		.from = from,
		.to = to,
		.code = code,
		.wanted_ns = clock_now_ns(),
		.map = target_map(e->target),
		.incarnation = status.incarnation,
		.srv = c->srv,
	};
	x->until_ns = x->wanted_ns + wait_ms * MS_NS(1);
	if (to)
		x->wanted_ns = MIN(to, x->wanted_ns);
	conn_start(c, &x->op);
}
