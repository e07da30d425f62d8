/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameters of Resolve: addresses or stacks, with one time or many, to one flat list.
 *
 * All are counted first, so that the list is one allocation of the right size and the cap is
 * held before it; then filled in order, a stack after the other, each address with its time and
 * with whether it is a return address.
 */
#include "query/symbols.h"

#include <errno.h>

#include "base/caps.h"

/* What has one time each: the addresses, or the stacks. */
struct wanted {
	const char *name;
	json_t *list;
	bool stacks;
	bool caller;
	json_t *times; /* NULL: `time` is for all */
	uint64_t time;
};

/* An array, or NULL when the member is absent or null. */
static int take_array(json_t *parameters, const char *name, json_t **arrayp, const char **badp)
{
	json_t *value = json_object_get(parameters, name);

	*arrayp = json_is_null(value) ? NULL : value;
	return !*arrayp || json_is_array(*arrayp) ? 0 : query_bad(name, badp);
}

static int take_list(json_t *parameters, struct wanted *w, const char **badp)
{
	json_t *addresses, *stacks;
	int r;

	r = take_array(parameters, "addresses", &addresses, badp);
	if (r)
		return r;
	r = take_array(parameters, "stacks", &stacks, badp);
	if (r)
		return r;
	w->stacks = stacks;
	w->name = stacks ? "stacks" : "addresses";
	w->list = stacks ? stacks : addresses;
	/* one of the two */
	return !addresses == !stacks ? query_bad(w->name, badp) : 0;
}

static int take_times(json_t *parameters, struct wanted *w, const char **badp)
{
	json_t *time = json_object_get(parameters, "time");
	int r;

	r = take_array(parameters, "times", &w->times, badp);
	if (r)
		return r;
	if (time && !json_is_null(time)) {
		if (!query_parse_time(time, &w->time))
			return query_bad("time", badp);
		if (w->times)
			return query_bad("times", badp);
	}
	if (w->times && json_array_size(w->times) != json_array_size(w->list))
		return query_bad("times", badp);
	return 0;
}

static int count_addresses(const struct wanted *w, size_t *np, const char **badp)
{
	size_t i, n = json_array_size(w->list);

	*np = w->stacks ? 0 : n;
	for (i = 0; w->stacks && i < n; i++) {
		json_t *stack = json_array_get(w->list, i);

		if (!json_is_array(stack))
			return query_bad(w->name, badp);
		*np += json_array_size(stack);
	}
	return *np > CAP_QUERY_ADDRESSES ? query_bad(w->name, badp) : 0;
}

static int take_stack(const struct wanted *w, json_t *stack, uint64_t time,
		      struct query_address *items, const char **badp)
{
	size_t i, n = json_array_size(stack);

	for (i = 0; i < n; i++) {
		if (!query_parse_address(json_array_get(stack, i), &items[i].addr))
			return query_bad(w->name, badp);
		items[i].time = time;
		items[i].caller = i || w->caller;
	}
	return 0;
}

static int take_items(const struct wanted *w, struct query_address *items, const char **badp)
{
	size_t i, n = json_array_size(w->list), at = 0;
	uint64_t time = w->time;

	for (i = 0; i < n; i++) {
		json_t *value = json_array_get(w->list, i);
		int r;

		if (w->times && !query_parse_time(json_array_get(w->times, i), &time))
			return query_bad("times", badp);
		if (w->stacks) {
			r = take_stack(w, value, time, items + at, badp);
			if (r)
				return r;
			at += json_array_size(value);
			continue;
		}
		if (!query_parse_address(value, &items[i].addr))
			return query_bad(w->name, badp);
		items[i].time = time;
		items[i].caller = w->caller;
	}
	return 0;
}

static int take_options(json_t *parameters, struct query_resolve *req, struct wanted *w,
			const char **badp)
{
	static const char *const names[] = { "pid",   "start",  "addresses", "stacks", "time",
					     "times", "caller", "wait_ms",   NULL };
	uint64_t wait_ms = 0;
	int r;

	r = query_parse_members(parameters, names, badp);
	if (!r)
		r = query_parse_process(parameters, &req->pid, &req->start, badp);
	if (!r)
		r = query_parse_flag(parameters, "caller", &w->caller, badp);
	if (!r)
		r = query_parse_count(parameters, "wait_ms", CAP_QUERY_WAIT_MS, &wait_ms, badp);
	req->wait_ms = (uint32_t)wait_ms;
	return r;
}

int query_resolve_parse(struct query_resolve *req, json_t *parameters, const char **badp)
{
	_cleanup_free_ struct query_address *items = NULL;
	struct wanted w = { 0 };
	size_t n;
	int r;

	*req = (struct query_resolve){ 0 };
	r = take_options(parameters, req, &w, badp);
	if (!r)
		r = take_list(parameters, &w, badp);
	if (!r)
		r = take_times(parameters, &w, badp);
	if (!r)
		r = count_addresses(&w, &n, badp);
	if (r)
		return r;
	items = malloc(MAX(n, (size_t)1) * sizeof(*items));
	if (!items)
		return -ENOMEM;
	r = take_items(&w, items, badp);
	if (r)
		return r;
	req->n = n;
	req->items = TAKE_PTR(items);
	return 0;
}

void query_resolve_deinit(struct query_resolve *req)
{
	free(req->items);
	*req = (struct query_resolve){ 0 };
}
