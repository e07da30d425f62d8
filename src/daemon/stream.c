/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ListMethods, ListModules and Monitor: replies as long as a process has methods, or lives.
 *
 * Neither runs ahead of its client: the next piece is written when the last one has been
 * sent. What a monitor cannot take in time is left out, and it is told so.
 */
#include "daemon/conn.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "query/text.h"
#include "reply/reply.h"

/* A monitor's changes that wait for it. */
#define CHANGES_CAP MIB(4)

/* -- ListMethods, ListModules -------------------------------------------------------------- */

struct list {
	struct op op;
	pid_t theirs;
	bool modules, retired, more;
	uint64_t next;        /* address; slot when retired ones are wanted; number of a module */
	uint32_t incarnation; /* of the start: another program ends the list */
	struct buf text, function;
	uint32_t n;
};

static void list_free(struct op *op)
{
	struct list *list = container_of(op, struct list, op);

	buf_deinit(&list->text);
	buf_deinit(&list->function);
	free(list);
}

/* The next body, or NULL after the last. */
static const struct codemap_body *list_next(struct list *list, const struct codemap *map)
{
	const struct codemap_body *body = NULL;

	if (!list->retired) {
		body = codemap_next(map, list->next);
		if (body)
			list->next = codemap_body_range(body).start + 1;
		return body;
	}
	while (!body && list->next < codemap_n_slots(map))
		body = codemap_slot(map, (uint32_t)list->next++);
	return body;
}

static void put_text(struct buf *out, const char *name, const char *s)
{
	buf_printf(out, ",\"%s\":", name);
	if (s && *s)
		text_put_string(out, s, strlen(s));
	else
		buf_puts(out, "null");
}

static void put_module(struct buf *out, const struct loader_item *item)
{
	struct clr_text guid;

	buf_printf(out, "{\"kind\":\"%s\",\"id\":", loader_kind_text(item->kind));
	text_put_hex(out, item->id);
	buf_puts(out, ",\"parent\":");
	text_put_hex(out, item->parent);
	buf_puts(out, ",\"name\":");
	text_put_string(out, item->name, strlen(item->name));
	put_text(out, "native_path", item->native_path);
	put_text(out, "pdb_path", item->pdb_path);
	put_text(out, "pdb_id", item->has_pdb ? clr_guid_text(&guid, &item->pdb_guid) : NULL);
	if (item->has_pdb)
		buf_printf(out, ",\"pdb_age\":%" PRIu32, item->pdb_age);
	else
		buf_puts(out, ",\"pdb_age\":null");
	buf_printf(out, ",\"flags\":%" PRIu32 ",\"load\":", item->flags);
	text_put_time(out, item->load);
	buf_puts(out, ",\"unload\":");
	if (item->unload == UINT64_MAX)
		buf_puts(out, "null");
	else
		text_put_time(out, item->unload);
	buf_putc(out, '}');
}

/* Writes the next element. Returns 1, 0 after the last, or -errno. */
static int list_put(struct list *list, struct target *target)
{
	const struct codemap *map = target_map(target);
	const struct codemap_body *body = NULL;
	const struct loader_item *item = NULL;
	struct codemap_info info;
	struct query_method m;
	int r = 0;

	if (list->modules)
		item = loader_item(target_loader(target), (size_t)list->next++);
	else
		body = list_next(list, map);
	if (!item && !body)
		return 0;
	if (list->n)
		buf_putc(&list->text, ',');
	if (item) {
		put_module(&list->text, item);
	} else {
		codemap_body_info(map, body, &info);
		r = reply_method(&info, &list->function, &m);
		if (r < 0)
			return r;
		buf_putc(&list->text, '{');
		query_put_method(&list->text, &m);
		buf_putc(&list->text, '}');
	}
	return list->text.error ? list->text.error : 1;
}

static int list_send(struct conn *c, struct list *list, bool continues)
{
	int r = wire_begin_reply(&c->out);

	if (r == 0)
		r = buf_printf(&c->out, "{\"%s\":[", list->modules ? "modules" : "methods");
	if (r == 0)
		r = buf_append(&c->out, list->text.data, list->text.len);
	if (r == 0)
		r = buf_puts(&c->out, "]}");
	if (r == 0)
		r = wire_end_reply(&c->out, continues);
	buf_clear(&list->text);
	list->n = 0;
	return r;
}

static enum op_result list_step(struct conn *c, struct op *op, uint64_t deadline_ns)
{
	struct list *list = container_of(op, struct list, op);
	struct target_status status = { 0 };
	int r;

	if (op->entry)
		target_get_status(op->entry->target, &status);
	if (!op->entry || status.incarnation != list->incarnation) {
		conn_not_attached(c, list->theirs);
		return OP_DONE;
	}
	while ((r = list_put(list, op->entry->target)) > 0) {
		op->memory = sizeof(*list) + list->text.size;
		if (++list->n % CAP_QUERY_CHUNK == 0 && list->more) {
			conn_written(c, list_send(c, list, true));
			op->wait_output = true;
			return OP_WAIT;
		}
		if (list->n % 64 == 0 && clock_now_ns() >= deadline_ns)
			return OP_MORE;
	}
	if (r == 0)
		r = list_send(c, list, false);
	conn_written(c, r);
	return OP_DONE;
}

static void start_list(struct conn *c, json_t *parameters, bool modules, bool retired)
{
	struct entry *e = access_find(c, parameters);
	struct target_status status;
	struct list *list;

	if (!e)
		return;
	list = calloc(1, sizeof(*list));
	if (!list) {
		conn_fail(c, -ENOMEM);
		return;
	}
	target_get_status(e->target, &status);
	*list = (struct list){
		.op = { .step = list_step, .free = list_free, .entry = e, .memory = sizeof(*list) },
		.theirs = access_theirs(parameters),
		.modules = modules,
		.retired = retired,
		.more = c->more,
		.incarnation = status.incarnation,
	};
	buf_init(&list->text, CAP_QUERY_OUT - KIB(1));
	buf_init(&list->function, CAP_QUERY_OUT);
	conn_start(c, &list->op);
}

void method_list_methods(struct conn *c, json_t *parameters)
{
	static const char *const names[] = { "pid", "start", "retired", NULL };
	bool retired;

	if (method_check_names(c, parameters, names) &&
	    method_take_bool(c, parameters, "retired", &retired))
		start_list(c, parameters, false, retired);
}

void method_list_modules(struct conn *c, json_t *parameters)
{
	static const char *const names[] = { "pid", "start", NULL };

	if (method_check_names(c, parameters, names))
		start_list(c, parameters, true, false);
}

/* -- Monitor ------------------------------------------------------------------------------- */

struct monitor {
	struct op op;
	struct conn *conn;
	struct buf text; /* of changes, comma-separated */
	bool begun, lost;
};

static void monitor_free(struct op *op)
{
	struct monitor *mon = container_of(op, struct monitor, op);

	/* an entry that has gone took its copy along */
	if (op->entry)
		copy_drop_monitor(op->entry->copy, mon->conn);
	buf_deinit(&mon->text);
	free(mon);
}

static int monitor_send(struct conn *c, struct monitor *mon, bool continues)
{
	int r = wire_begin_reply(&c->out);

	if (r == 0)
		r = buf_puts(&c->out, "{\"changes\":[");
	if (r == 0)
		r = buf_append(&c->out, mon->text.data, mon->text.len);
	if (r == 0 && mon->lost)
		r = buf_printf(&c->out, "%s{\"change\":\"resync\",\"method\":null}",
			       mon->text.len ? "," : "");
	if (r == 0)
		r = buf_puts(&c->out, "]}");
	if (r == 0)
		r = wire_end_reply(&c->out, continues);
	/* a burst's memory is given back */
	buf_deinit(&mon->text);
	buf_init(&mon->text, CHANGES_CAP);
	mon->lost = false;
	return r;
}

static enum op_result monitor_step(struct conn *c, struct op *op, uint64_t deadline_ns UNUSED)
{
	struct monitor *mon = container_of(op, struct monitor, op);
	bool over = !op->entry || op->entry->ended;

	if (c->out.len) {
		op->wait_output = true;
		return OP_WAIT;
	}
	/* the process may have become another user's, by an exec of a set-uid program */
	if (mon->begun && !over && !access_entry(c, op->entry)) {
		conn_error(c, QUERY_ERROR_DENIED, NULL);
		return OP_DONE;
	}
	if (mon->text.len || mon->lost || !mon->begun || over)
		conn_written(c, monitor_send(c, mon, !over));
	mon->begun = true;
	op->memory = sizeof(*mon) + mon->text.size;
	return over ? OP_DONE : OP_WAIT;
}

void stream_change(struct conn *c, const struct buf *change)
{
	struct monitor *mon = container_of(c->op, struct monitor, op);
	size_t before = mon->text.len;

	if (!change || mon->lost) {
		mon->lost = true;
	} else {
		if (before)
			buf_putc(&mon->text, ',');
		buf_append(&mon->text, change->data, change->len);
		mon->op.memory = sizeof(*mon) + mon->text.size;
		if (mon->text.error || !conn_account(c)) {
			mon->text.error = 0;
			mon->text.len = before;
			mon->lost = true;
		}
	}
	/* one that is behind has no use for a turn before its output is sent */
	if (c->out.len)
		mon->op.wait_output = true;
	else
		conn_wake(c);
}

void method_monitor(struct conn *c, json_t *parameters)
{
	static const char *const names[] = { "pid", "start", NULL };
	struct monitor *mon;
	struct entry *e;
	int r;

	if (!method_check_names(c, parameters, names))
		return;
	e = access_find(c, parameters);
	if (!e)
		return;
	mon = calloc(1, sizeof(*mon));
	r = mon ? copy_add_monitor(e, c) : -ENOMEM;
	if (r < 0) {
		free(mon);
		if (r == -EBUSY)
			conn_error(c, QUERY_ERROR_BUSY,
				   json_pack("{s:s}", "reason", "too many monitors of one user"));
		else
			conn_fail(c, r);
		return;
	}
	mon->op = (struct op){
		.step = monitor_step, .free = monitor_free, .entry = e, .memory = sizeof(*mon)
	};
	mon->conn = c;
	buf_init(&mon->text, CHANGES_CAP);
	conn_start(c, &mon->op);
}
