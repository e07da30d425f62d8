/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many questions at once: the shared memory first, the daemon for what is left.
 *
 * Concept: one walk over all questions looks them up and collects the indices of those that the
 * memory could not answer. Only if there are any the lock is taken, the memory is renewed if it
 * can be, and what still has no answer goes over the socket in as few calls as its limits
 * allow. Nothing is allocated when the memory has it all.
 *
 * An answer that was found stays when the daemon cannot be asked for a better one: provisional
 * is more than nothing, and it says that it is.
 *
 * Return addresses are sent as the byte before, so that one call can mix both kinds.
 */
#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "lib/lib.h"
#include "query/symbols.h"

struct question {
	struct clrsym_process *p;
	const struct clrsym_query *queries;
	struct clrsym_symbol *symbols;
	size_t stride; /* symbols may be larger than ours */
	size_t n;
	uint32_t wait_ms;
	size_t *left; /* indices into both */
	size_t n_left;
};

static struct clrsym_symbol *symbol_at(const struct question *q, size_t i)
{
	return (struct clrsym_symbol *)(void *)((char *)q->symbols + i * q->stride);
}

static int check(const struct question *q)
{
	const struct clrsym_symbol *sym;
	size_t i;

	for (i = 0; i < q->n; i++) {
		sym = symbol_at(q, i);
		if (!symbol_is_valid(sym) || sym->sz != q->stride)
			return -EINVAL;
		if (q->queries[i].flags & ~CLRSYM_CALLER || q->queries[i].zero)
			return -E2BIG;
	}
	return 0;
}

/* -- From memory ------------------------------------------------------------------------ */

static bool is_enough(const struct question *q, size_t i)
{
	const struct clrsym_query *query = &q->queries[i];
	struct clrsym_symbol *sym = symbol_at(q, i);

	return process_lookup(q->p, query->addr, query->time_ns, query->flags, sym) == 0 &&
	       (sym->final || !q->wait_ms);
}

/* After a failure all have been walked over none the less. */
static int look_up_all(struct question *q)
{
	size_t i;
	int r = 0;

	for (i = 0; i < q->n; i++) {
		if (is_enough(q, i))
			continue;
		if (!q->left && r == 0) {
			q->left = malloc((q->n - i) * sizeof(*q->left));
			r = q->left ? 0 : -ENOMEM;
		}
		if (q->left)
			q->left[q->n_left++] = i;
	}
	return r;
}

static void look_up_left(struct question *q)
{
	size_t i, n = 0;

	for (i = 0; i < q->n_left; i++)
		if (!is_enough(q, q->left[i]))
			q->left[n++] = q->left[i];
	q->n_left = n;
}

/* -- From the daemon -------------------------------------------------------------------- */

static int append_u64(json_t *array, uint64_t v)
{
	char hex[24];

	if (v <= INT64_MAX)
		return json_array_append_new(array, json_integer((json_int_t)v));
	snprintf(hex, sizeof(hex), "0x%llx", (unsigned long long)v);
	return json_array_append_new(array, json_string(hex));
}

/* Times have no hex form; none of ours needs it: 2^63 ns are three centuries of uptime. */
static uint64_t wire_time(uint64_t time)
{
	return MIN(time, (uint64_t)INT64_MAX);
}

static json_t *make_parameters(const struct question *q, const size_t *left, size_t n)
{
	_cleanup_json_ json_t *parameters = process_parameters(q->p);
	json_t *addresses = json_array(), *times = json_array();
	const struct clrsym_query *query;
	int r = 0;
	size_t i;

	for (i = 0; i < n && r == 0; i++) {
		query = &q->queries[left[i]];
		r = append_u64(addresses, lib_lookup_address(query->addr, query->flags));
		if (r == 0)
			r = append_u64(times, wire_time(query->time_ns));
	}
	/* each takes its value over, also when it fails */
	r |= json_object_set_new(parameters, "addresses", addresses);
	r |= json_object_set_new(parameters, "times", times);
	if (q->wait_ms)
		r |= json_object_set_new(parameters, "wait_ms", json_integer(q->wait_ms));
	return r == 0 ? TAKE_PTR(parameters) : NULL;
}

struct answers {
	json_t *method, *offset, *il_offset, *reason; /* borrowed */
	struct lib_method *methods;
	size_t n_methods;
	uint64_t known_until;
	bool final;
};

static json_t *get_array(json_t *reply, const char *key, size_t n)
{
	json_t *array = json_object_get(reply, key);

	return json_is_array(array) && json_array_size(array) == n ? array : NULL;
}

static int answers_parse(struct answers *a, json_t *reply, size_t n)
{
	json_t *methods = json_object_get(reply, "methods");
	json_t *final = json_object_get(reply, "final");
	size_t i;

	a->method = get_array(reply, "method", n);
	a->offset = get_array(reply, "offset", n);
	a->il_offset = get_array(reply, "il_offset", n);
	a->reason = get_array(reply, "reason", n);
	if (!a->method || !a->offset || !a->il_offset || !a->reason || !json_is_array(methods) ||
	    !json_is_boolean(final) ||
	    !query_parse_time(json_object_get(reply, "known_until"), &a->known_until))
		return -EPROTO;
	a->final = json_is_true(final);
	a->n_methods = json_array_size(methods);
	a->methods = calloc(a->n_methods + 1, sizeof(*a->methods));
	if (!a->methods)
		return -ENOMEM;
	for (i = 0; i < a->n_methods; i++)
		if (!lib_method_parse(&a->methods[i], json_array_get(methods, i)))
			return -EPROTO;
	return 0;
}

/* An answer for one question; false: it cannot be. */
static bool answer(const struct answers *a, size_t i, const struct clrsym_query *query,
		   struct clrsym_symbol *sym)
{
	json_t *index = json_array_get(a->method, i);
	json_t *reason = json_array_get(a->reason, i);
	json_t *il = json_array_get(a->il_offset, i);
	uint64_t looked_up = lib_lookup_address(query->addr, query->flags);
	const struct lib_method *m;

	if (json_is_string(reason) && json_is_null(index)) {
		symbol_miss(sym, json_string_value(reason));
	} else {
		if (!json_is_integer(index) || json_integer_value(index) < 0 ||
		    (uint64_t)json_integer_value(index) >= a->n_methods)
			return false;
		m = &a->methods[json_integer_value(index)];
		/* also tells whether its offset is right */
		if (looked_up - m->start >= m->size)
			return false;
		symbol_hit(sym, m);
		sym->offset = query->addr - m->start;
		if (json_is_integer(il) && json_integer_value(il) >= 0)
			sym->il_offset = json_integer_value(il);
	}
	sym->final = a->final || (query->time_ns && query->time_ns <= a->known_until);
	return true;
}

static int answer_all(const struct question *q, const size_t *left, size_t n, json_t *reply)
{
	struct answers a = { 0 };
	_cleanup_free_ void *methods = NULL;
	size_t i;
	int r;

	r = answers_parse(&a, reply, n);
	methods = a.methods;
	if (r < 0)
		return r;
	for (i = 0; i < n; i++)
		if (!answer(&a, i, &q->queries[left[i]], symbol_at(q, left[i])))
			return -EPROTO;
	return 0;
}

/* The daemon does not tell of the process at all: that is the reason, for what has no answer yet.
 */
static void answer_none(const struct question *q, const char *reason)
{
	struct clrsym_symbol *sym;
	size_t i;

	for (i = 0; i < q->n_left; i++) {
		sym = symbol_at(q, q->left[i]);
		if (sym->reason == CLRSYM_UNANSWERED)
			symbol_miss(sym, reason);
	}
}

static int ask_some(const struct question *q, const size_t *left, size_t n)
{
	_cleanup_json_ json_t *reply = NULL;
	int r;

	r = lib_call(q->p->c, QUERY_INTERFACE ".Resolve", make_parameters(q, left, n), &reply,
		     NULL);
	if (r < 0)
		return r;
	process_used(q->p, clock_now_ns());
	r = answer_all(q, left, n, reply);
	return r == -EPROTO ? lib_distrust(q->p->c) : r;
}

static int ask(struct question *q)
{
	size_t i, n;
	int r = 0;

	/* what goes wrong here is seen again below, or does not matter */
	if (process_refresh(q->p) == 1)
		look_up_left(q);
	for (i = 0; i < q->n_left && r == 0; i += n) {
		n = MIN(q->n_left - i, CAP_QUERY_ADDRESSES);
		r = ask_some(q, q->left + i, n);
	}
	if (r == -ENOTCONN)
		answer_none(q, QUERY_REASON_NOT_ATTACHED);
	else if (r == -EACCES)
		answer_none(q, QUERY_REASON_DENIED);
	else
		return r;
	return 0;
}

int clrsym_resolve(struct clrsym_process *p, const struct clrsym_query *queries,
		   struct clrsym_symbol *symbols, size_t n, const struct clrsym_resolve_opts *opts)
{
	struct question q = { .p = p, .queries = queries, .symbols = symbols, .n = n };
	_cleanup_free_ void *left = NULL;
	int r;

	r = lib_check_opts(opts, sizeof(*opts), sizeof(*opts));
	if (r < 0)
		return r;
	if (!p || (n && (!queries || !symbols)))
		return -EINVAL;
	if (!n)
		return 0;
	q.stride = symbols->sz;
	q.wait_ms = opts ? MIN(opts->wait_ms, MIN(CAP_QUERY_WAIT_MS, p->c->timeout_ms / 2)) : 0;
	r = check(&q);
	if (r < 0)
		return r;
	r = look_up_all(&q);
	left = q.left;
	if (r < 0)
		return r;
	if (!q.n_left) {
		/* only asking keeps it attached */
		if (p->flags & CLRSYM_PROCESS_ATTACH)
			clrsym_process_refresh(p);
		return 0;
	}
	if (lib_is_forked(p->c))
		return -ECHILD;
	pthread_mutex_lock(&p->c->lock);
	r = ask(&q);
	pthread_mutex_unlock(&p->c->lock);
	return r;
}
