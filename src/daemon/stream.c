/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ListMethods and Monitor: replies as long as a process has methods, or lives.
 *
 * Neither runs ahead of its client: the next piece is written when the last one has been
 * sent. What a monitor cannot take in time is left out, and it is told so.
 */
#include "daemon/conn.h"

#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "reply/reply.h"

/* A monitor's changes that wait for it. */
#define CHANGES_CAP MIB(4)

/* -- ListMethods --------------------------------------------------------------------------- */

struct list {
	struct op op;
	pid_t theirs;
	bool retired, more;
	uint64_t next;             /* address, or slot when retired ones are wanted */
	const struct codemap *map; /* of the start: another one ends the list */
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

static int list_send(struct conn *c, struct list *list, bool continues)
{
	int r = wire_begin_reply(&c->out);

	if (r == 0)
		r = buf_puts(&c->out, "{\"methods\":[");
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
	const struct codemap_body *body;
	struct codemap_info info;
	struct query_method m;
	int r = 0;

	if (!op->entry || target_map(op->entry->target) != list->map) {
		conn_error(c, QUERY_ERROR_NOT_ATTACHED,
			   json_pack("{s:i}", "pid", (int)list->theirs));
		return OP_DONE;
	}
	while ((body = list_next(list, list->map))) {
		if (list->n)
			buf_putc(&list->text, ',');
		codemap_body_info(list->map, body, &info);
		r = reply_method(&info, &list->function, &m);
		if (r < 0)
			break;
		buf_putc(&list->text, '{');
		query_put_method(&list->text, &m);
		buf_putc(&list->text, '}');
		if (list->text.error)
			break;
		if (++list->n % CAP_QUERY_CHUNK == 0 && list->more) {
			conn_written(c, list_send(c, list, true));
			op->wait_output = true;
			return OP_WAIT;
		}
		if (list->n % 64 == 0 && clock_now_ns() >= deadline_ns) {
			op->memory = sizeof(*list) + list->text.size;
			return OP_MORE;
		}
	}
	if (r == 0)
		r = list->text.error;
	if (r == 0)
		r = list_send(c, list, false);
	conn_written(c, r);
	return OP_DONE;
}

void method_list_methods(struct conn *c, json_t *parameters)
{
	static const char *const names[] = { "pid", "start", "retired", NULL };
	struct entry *e;
	struct list *list;
	bool retired;

	if (!method_check_names(c, parameters, names) ||
	    !method_take_bool(c, parameters, "retired", &retired))
		return;
	e = access_find(c, parameters);
	if (!e)
		return;
	list = calloc(1, sizeof(*list));
	if (!list) {
		conn_fail(c, -ENOMEM);
		return;
	}
	list->op = (struct op){
		.step = list_step, .free = list_free, .entry = e, .memory = sizeof(*list)
	};
	list->theirs = (pid_t)json_integer_value(json_object_get(parameters, "pid"));
	list->retired = retired;
	list->more = c->more;
	list->map = target_map(e->target);
	buf_init(&list->text, CAP_QUERY_OUT - KIB(1));
	buf_init(&list->function, CAP_QUERY_OUT);
	conn_start(c, &list->op);
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
