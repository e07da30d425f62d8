/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes as they come: a stream of replies on a connection of its own.
 *
 * A reply carries several changes; they are handed out one by one, and the next reply is looked
 * for when all are gone. No callbacks, so that whoever has an event loop, exceptions or locks
 * stays master of them: there is an fd to wait for, and a call that takes what has come.
 *
 * A kind of change that this version does not know may mean anything, so it is passed on as a
 * resync: ask again for all.
 */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "lib/lib.h"
#include "query/symbols.h"

struct clrsym_monitor {
	struct clrsym *c;
	struct query_client *client;
	json_t *reply;   /* whose changes are being handed out, or NULL */
	json_t *changes; /* borrowed from it */
	size_t next;
	bool has_ended;
	int error; /* sticky */
};

static int begin(struct clrsym_monitor *m, const struct clrsym_process *p)
{
	json_t *parameters;
	int r;

	r = lib_connect_new(m->c, 0, &m->client);
	if (r < 0)
		return r;
	parameters = process_parameters(p);
	if (!parameters)
		return -ENOMEM;
	return query_client_call_more(m->client, QUERY_INTERFACE ".Monitor", parameters);
}

static int result(struct clrsym_monitor *m, int r, json_t *reply)
{
	pthread_mutex_lock(&m->c->lock);
	r = lib_result(m->c, m->client, r, reply);
	pthread_mutex_unlock(&m->c->lock);
	return r;
}

int clrsym_monitor_open(struct clrsym_process *p, struct clrsym_monitor **monitorp)
{
	struct clrsym_monitor *m;
	int r;

	if (!p || !monitorp)
		return -EINVAL;
	if (lib_is_forked(p->c))
		return -ECHILD;
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->c = p->c;
	r = begin(m, p);
	if (r < 0) {
		r = result(m, r, NULL);
		clrsym_monitor_close(m);
		return r;
	}
	*monitorp = m;
	return 0;
}

void clrsym_monitor_close(struct clrsym_monitor *m)
{
	if (!m)
		return;
	json_decref(m->reply);
	if (m->client)
		query_client_free(m->client);
	free(m);
}

int clrsym_monitor_fd(const struct clrsym_monitor *m)
{
	return m ? query_client_fd(m->client) : -EINVAL;
}

static int fail(struct clrsym_monitor *m, int error)
{
	m->error = error;
	return error;
}

/* Waits for the next reply: 0, -EAGAIN, or an error that stays. */
static int next_reply(struct clrsym_monitor *m, int timeout_ms)
{
	json_t *reply = NULL;
	bool continues = false;
	int r;

	json_decref(m->reply);
	m->reply = m->changes = NULL;
	m->next = 0;
	if (m->has_ended)
		return fail(m, -ENODATA);
	r = query_client_next(m->client, timeout_ms, &reply, &continues);
	if (r == -EAGAIN)
		return r;
	m->reply = reply;
	if (r != 0)
		return fail(m, result(m, r, reply));
	m->has_ended = !continues;
	m->changes = json_object_get(reply, "changes");
	return json_is_array(m->changes) ? 0 : fail(m, -EPROTO);
}

static enum clrsym_change change_kind(const char *word)
{
	if (strcmp(word, "load") == 0)
		return CLRSYM_CHANGE_LOAD;
	if (strcmp(word, "unload") == 0)
		return CLRSYM_CHANGE_UNLOAD;
	if (strcmp(word, "alter") == 0)
		return CLRSYM_CHANGE_ALTER;
	return CLRSYM_CHANGE_RESYNC;
}

static int hand_out(struct clrsym_monitor *m, enum clrsym_change *changep,
		    struct clrsym_symbol *sym)
{
	json_t *change = json_array_get(m->changes, m->next++);
	const char *word = json_string_value(json_object_get(change, "change"));
	struct lib_method method;

	if (!word)
		return fail(m, -EPROTO);
	*changep = change_kind(word);
	symbol_clear(sym);
	if (*changep == CLRSYM_CHANGE_RESYNC)
		return 0;
	if (!lib_method_parse(&method, json_object_get(change, "method")))
		return fail(m, -EPROTO);
	symbol_hit(sym, &method);
	return 0;
}

/* What is left of a wait that began at start_ns; -1: for ever. */
static int time_left(int timeout_ms, uint64_t start_ns)
{
	uint64_t gone_ms = (clock_now_ns() - start_ns) / 1000000u;

	if (timeout_ms < 0)
		return -1;
	return gone_ms < (uint64_t)timeout_ms ? timeout_ms - (int)gone_ms : 0;
}

int clrsym_monitor_next(struct clrsym_monitor *m, int timeout_ms, enum clrsym_change *changep,
			struct clrsym_symbol *sym)
{
	uint64_t start_ns = clock_now_ns();
	int r;

	if (!m || !changep || !symbol_is_valid(sym))
		return -EINVAL;
	if (lib_is_forked(m->c))
		return -ECHILD;
	if (m->error)
		return m->error;
	while (m->next >= json_array_size(m->changes)) {
		r = next_reply(m, time_left(timeout_ms, start_ns));
		if (r < 0)
			return r;
	}
	return hand_out(m, changep, sym);
}
