/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The code map.
 *
 * The main test is test_history: random histories of loads, rundown records, unloads and module
 * unloads, delivered in any order, and then every address at every time compared with a model
 * that takes the same events in order of time and knows nothing of trees, rings or
 * corrections. The model's rules are those of the banner of codemap.c.
 */
#include "codemap/codemap.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/caps.h"
#include "codemap/mapfile.h"

static uint64_t rng;

static void seed(uint64_t s)
{
	rng = s * 0x9e3779b97f4a7c15u + 1;
}

static uint32_t draw(uint32_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)((rng >> 32) * n >> 32);
}

/* -- Short forms ---------------------------------------------------------------------------- */

static struct codemap *new_map(const struct codemap_options *opts)
{
	struct codemap *map = NULL;

	ck_assert_int_eq(codemap_new(&map, opts), 0);
	return map;
}

static struct codemap_load load_of(uint64_t method, uint64_t start, uint32_t size, uint64_t time,
				   const char *name)
{
	return (struct codemap_load){
		.method_id = method,
		.module_id = 0x1000,
		.start = start,
		.size = size,
		.time = time,
		.flags = 0x208,
		.token = 0x6000001,
		.ns = "Ns.Type",
		.ns_len = 7,
		.name = name,
		.name_len = (uint32_t)strlen(name),
		.sig = "void  ()",
		.sig_len = 8,
	};
}

static int add(struct codemap *map, uint64_t method, uint64_t start, uint32_t size, uint64_t time,
	       const char *name)
{
	struct codemap_load load = load_of(method, start, size, time, name);

	return codemap_load(map, &load, NULL);
}

static int see(struct codemap *map, uint64_t method, uint64_t start, uint32_t size, uint64_t time,
	       const char *name)
{
	struct codemap_load load = load_of(method, start, size, time, name);

	return codemap_rundown(map, &load, NULL);
}

/* The name at that address and time, or the miss in angle brackets. Good until the next call. */
static const char *at(const struct codemap *map, uint64_t addr, uint64_t time)
{
	static char text[64];
	enum codemap_miss miss = CODEMAP_HIT;
	const struct codemap_body *body = codemap_lookup_at(map, addr, time, &miss);
	struct codemap_info info;

	ck_assert_int_eq(!body, miss != CODEMAP_HIT);
	ck_assert_int_eq(!body, !!codemap_miss_text(miss));
	if (!body) {
		snprintf(text, sizeof(text), "<%s>", codemap_miss_text(miss));
		return text;
	}
	codemap_body_info(map, body, &info);
	ck_assert_uint_ge(addr, info.start);
	ck_assert_uint_lt(addr - info.start, info.size);
	ck_assert_uint_le(info.load, time);
	ck_assert_uint_lt(time, info.unload);
	snprintf(text, sizeof(text), "%.*s", (int)info.name.name_len, info.name.name);
	return text;
}

static struct codemap_info info_at(const struct codemap *map, uint64_t addr, uint64_t time)
{
	const struct codemap_body *body = codemap_lookup_at(map, addr, time, NULL);
	struct codemap_info info;

	ck_assert_ptr_nonnull(body);
	codemap_body_info(map, body, &info);
	return info;
}

static struct codemap_stats stats_of(const struct codemap *map)
{
	struct codemap_stats stats;

	codemap_get_stats(map, &stats);
	return stats;
}

/* -- Histories against a model -------------------------------------------------------------- */

#define SPAN       80u
#define MAX_EVENTS 80u
#define MAX_KINDS  10u

enum op { LOAD, SEEN, UNLOAD, MODULE, N_OPS };

struct kind {
	uint32_t start, size;
	uint64_t method, version, module;
	const char *name;
};

struct event {
	enum op op;
	struct kind kind;
	uint64_t time, arrival;
};

struct life {
	struct kind kind;
	uint64_t begin, end;
	bool open;
};

struct model {
	struct life lives[MAX_EVENTS];
	struct event idle[MAX_EVENTS], modules[MAX_EVENTS];
	uint32_t n_lives, n_idle, n_modules;
};

static bool kinds_overlap(const struct kind *a, const struct kind *b)
{
	return a->start < b->start + b->size && b->start < a->start + a->size;
}

static bool kinds_equal(const struct kind *a, const struct kind *b)
{
	return a->start == b->start && a->size == b->size && a->method == b->method &&
	       a->version == b->version && strcmp(a->name, b->name) == 0;
}

static bool is_alive(const struct life *l)
{
	return l->end == UINT64_MAX;
}

static void model_announce(struct model *m, const struct event *e)
{
	struct life new = { .kind = e->kind, .begin = e->time, .end = UINT64_MAX };
	uint32_t i;

	for (i = 0; i < m->n_lives; i++)
		if (is_alive(&m->lives[i]) && kinds_equal(&m->lives[i].kind, &e->kind))
			return;
	for (i = 0; i < m->n_lives; i++)
		if (is_alive(&m->lives[i]) && kinds_overlap(&m->lives[i].kind, &e->kind))
			m->lives[i].end = e->time;
	if (e->op == SEEN) {
		new.open = true;
		new.begin = 0;
		for (i = 0; i < m->n_lives; i++)
			if (!is_alive(&m->lives[i]) && kinds_overlap(&m->lives[i].kind, &e->kind))
				new.begin = MAX(new.begin, m->lives[i].end);
		for (i = 0; i < m->n_idle; i++)
			if (m->idle[i].kind.start == e->kind.start)
				new.begin = MAX(new.begin, m->idle[i].time);
		for (i = 0; i < m->n_modules; i++)
			if (m->modules[i].kind.module == e->kind.module)
				new.begin = MAX(new.begin, m->modules[i].time);
	}
	m->lives[m->n_lives++] = new;
}

static void model_run(struct model *m, const struct event *events, uint32_t n)
{
	uint32_t i, j;
	bool found;

	memset(m, 0, sizeof(*m));
	for (i = 0; i < n; i++) {
		const struct event *e = &events[i];

		if (e->op == LOAD || e->op == SEEN) {
			model_announce(m, e);
			continue;
		}
		found = false;
		for (j = 0; j < m->n_lives; j++) {
			struct life *l = &m->lives[j];

			if (!is_alive(l) ||
			    (e->op == MODULE ? l->kind.module != e->kind.module
					     : l->kind.start != e->kind.start ||
						       l->kind.method != e->kind.method))
				continue;
			l->end = e->time;
			found = true;
		}
		if (e->op == MODULE)
			m->modules[m->n_modules++] = *e;
		else if (!found)
			m->idle[m->n_idle++] = *e;
	}
}

/* Who is where when: by time, then by address. */
static const struct life *grid[MAX_EVENTS * 2 + 3][SPAN];

static void model_paint(const struct model *m, uint32_t n_times)
{
	uint64_t time;
	uint32_t i, a;

	memset(grid, 0, sizeof(grid));
	for (i = 0; i < m->n_lives; i++) {
		const struct life *l = &m->lives[i];

		for (time = l->begin; time < MIN(l->end, (uint64_t)n_times); time++) {
			for (a = l->kind.start; a < l->kind.start + l->kind.size; a++) {
				if (grid[time][a])
					ck_abort_msg("the model itself overlaps");
				grid[time][a] = l;
			}
		}
	}
}

struct shape {
	uint64_t base;   /* of address 0 of the model */
	uint32_t scale;  /* bytes an address of the model stands for */
	uint32_t window; /* how far an event may come behind its time */
	uint32_t n_events;
	size_t retired_bytes; /* 0: nothing expires */
	bool any_time;        /* loads may be too late to be sorted in */
};

static void make_history(struct event *events, const struct shape *shape)
{
	static const char *const names[] = { "A", "B" };
	uint32_t n_kinds = 2 + draw(MAX_KINDS - 1), i;
	struct kind kinds[MAX_KINDS];

	for (i = 0; i < n_kinds; i++) {
		struct kind *k = &kinds[i];

		if (i && draw(4) == 0)
			*k = kinds[draw(i)]; /* perhaps the same under another name */
		else
			*k = (struct kind){
				.start = draw(SPAN / 4) * 4,
				.size = 1 + draw(24),
				.method = 1 + draw(3),
				.version = draw(2),
			};
		if (i && draw(3) == 0)
			k->start = kinds[draw(i)].start;
		k->size = MIN(k->size, SPAN - k->start);
		k->module = 1 + (k->start / 4 + k->method + k->version) % 3;
		k->name = names[draw(2)];
	}
	for (i = 0; i < shape->n_events; i++) {
		uint32_t o = draw(100);

		events[i] = (struct event){
			.op = o < 45   ? LOAD
			      : o < 62 ? SEEN
			      : o < 94 ? UNLOAD
				       : MODULE,
			.kind = kinds[draw(n_kinds)],
			.time = (i + 1) * 2,
		};
		events[i].arrival = events[i].time * 1000 + draw(shape->window * 1000 + 1);
	}
}

static int by_arrival(const void *a, const void *b)
{
	const struct event *x = a, *y = b;

	return x->arrival < y->arrival ? -1 : x->arrival > y->arrival;
}

static void deliver(struct codemap *map, const struct event *e, const struct shape *shape)
{
	struct codemap_load load =
		load_of(e->kind.method, shape->base + e->kind.start * shape->scale,
			e->kind.size * shape->scale, e->time, e->kind.name);
	int r = 0;

	load.version = e->kind.version;
	load.module_id = e->kind.module;
	switch (e->op) {
	case LOAD: r = codemap_load(map, &load, NULL); break;
	case SEEN: r = codemap_rundown(map, &load, NULL); break;
	case UNLOAD: r = codemap_unload(map, load.method_id, load.start, load.time); break;
	default: r = codemap_module_unload(map, load.module_id, load.time); break;
	}
	ck_assert(r == 0 || (r == CODEMAP_E_STALE && (e->op == SEEN || shape->any_time)));
}

/*
 * One question: the model's answer, or, where something may be forgotten, no wrong one. Check
 * writes to a file at each assertion, so there is none on the good path.
 */
static void compare(const struct codemap *map, const struct shape *shape, uint32_t addr,
		    uint32_t byte, uint64_t time, uint64_t history)
{
	const struct life *l = grid[time][addr];
	enum codemap_miss miss;
	const struct codemap_body *body =
		codemap_lookup_at(map, shape->base + addr * shape->scale + byte, time, &miss);
	struct codemap_info info = { 0 };

	if (!body && (!l || (shape->retired_bytes && miss == CODEMAP_MISS_EXPIRED)))
		return;
	if (body)
		codemap_body_info(map, body, &info);
	if (body && l && info.method_id == l->kind.method && info.version == l->kind.version &&
	    info.start == shape->base + l->kind.start * shape->scale &&
	    info.size == l->kind.size * shape->scale && info.name.name[0] == l->kind.name[0] &&
	    info.unload == l->end && info.open_past == l->open &&
	    (shape->retired_bytes ? info.load >= l->begin : info.load == l->begin))
		return;
	ck_abort_msg(
		"history %lu of %u events, window %u: address %u at %lu: method %lu [%lu, %lu), "
		"not %lu [%lu, %lu)",
		(unsigned long)history, shape->n_events, shape->window, addr, (unsigned long)time,
		(unsigned long)info.method_id, (unsigned long)info.load, (unsigned long)info.unload,
		l ? (unsigned long)l->kind.method : 0, l ? (unsigned long)l->begin : 0,
		l ? (unsigned long)l->end : 0);
}

/* The live bodies in order, against the model. */
static void compare_walk(const struct codemap *map, const struct model *m)
{
	const struct codemap_body *body;
	struct codemap_info info;
	uint64_t from = 0, end = 0;
	uint32_t n = 0, i, alive = 0;

	while ((body = codemap_next(map, from))) {
		codemap_body_info(map, body, &info);
		ck_assert_uint_ge(info.start, end);
		ck_assert_ptr_eq(codemap_lookup(map, info.start, NULL), body);
		ck_assert_ptr_eq(codemap_lookup(map, info.start + info.size - 1, NULL), body);
		end = info.start + info.size;
		from = info.start + 1;
		n++;
	}
	for (i = 0; i < m->n_lives; i++)
		alive += is_alive(&m->lives[i]);
	ck_assert_uint_eq(n, alive);
	ck_assert_uint_eq(stats_of(map).live, alive);
}

/* What a walk over everything gives; a life is the model's when all that is told of it is. */
struct each {
	const struct codemap *map;
	const struct shape *shape;
	const struct model *model;
	bool found[MAX_EVENTS];
	uint32_t n, stop_at;
};

static int each_body(void *data, const struct codemap_body *body)
{
	struct each *each = data;
	const struct shape *shape = each->shape;
	struct codemap_info info;
	uint32_t i;

	if (++each->n == each->stop_at)
		return 7;
	codemap_body_info(each->map, body, &info);
	for (i = 0; i < each->model->n_lives; i++) {
		const struct life *l = &each->model->lives[i];

		if (!each->found[i] && info.method_id == l->kind.method &&
		    info.version == l->kind.version && info.unload == l->end &&
		    info.start == shape->base + l->kind.start * shape->scale &&
		    info.size == l->kind.size * shape->scale && info.open_past == l->open &&
		    info.name.name[0] == l->kind.name[0] &&
		    (shape->retired_bytes ? info.load >= l->begin : info.load == l->begin))
			break;
	}
	if (i == each->model->n_lives)
		ck_abort_msg("no such life: method %lu at %lx [%lu, %lu)",
			     (unsigned long)info.method_id, (unsigned long)info.start,
			     (unsigned long)info.load, (unsigned long)info.unload);
	each->found[i] = true;
	return 0;
}

/* All bodies, each once: those of the model, or what is left of them. */
static void compare_each(const struct codemap *map, const struct shape *shape,
			 const struct model *m)
{
	struct each each = { .map = map, .shape = shape, .model = m };
	struct codemap_stats stats = stats_of(map);

	ck_assert_int_eq(codemap_each(map, each_body, &each), 0);
	ck_assert_uint_eq(each.n, stats.live + stats.retired);
	if (!shape->retired_bytes)
		ck_assert_uint_eq(each.n, m->n_lives);
	if (!each.n)
		return;
	each = (struct each){ .stop_at = 1 + draw(each.n), .map = map, .shape = shape, .model = m };
	ck_assert_int_eq(codemap_each(map, each_body, &each), 7);
	ck_assert_uint_eq(each.n, each.stop_at);
}

static void run_history(const struct shape *shape, uint64_t history)
{
	static struct event events[MAX_EVENTS];
	static struct model model;
	struct codemap_options opts = { .retired_bytes = shape->retired_bytes };
	struct codemap *map = new_map(&opts);
	uint64_t time;
	uint32_t i;

	seed(history);
	make_history(events, shape);
	model_run(&model, events, shape->n_events);
	qsort(events, shape->n_events, sizeof(events[0]), by_arrival);
	for (i = 0; i < shape->n_events; i++) {
		deliver(map, &events[i], shape);
		if (shape->retired_bytes && draw(4) == 0)
			codemap_expire(map, 0);
	}
	model_paint(&model, shape->n_events * 2 + 3);
	for (time = 0; time <= shape->n_events * 2 + 2; time++) {
		for (i = 0; i < SPAN; i++) {
			compare(map, shape, i, 0, time, history);
			if (shape->scale > 1)
				compare(map, shape, i, shape->scale - 1, time, history);
		}
	}
	compare_walk(map, &model);
	compare_each(map, shape, &model);
	codemap_free(map);
}

static const uint32_t windows[] = { 0, 3, 8, 20, 1000 };
/* A few events find the rules' corners, many find what they do to each other. */
static const uint32_t lengths[] = { 3, 4, 5, 6, 8, 11, 20, 40, 80 };

#define SEGMENT 65536u
#define BASE    (0x7f0000000000u + SEGMENT)

/* Histories a shape; CODEMAP_HISTORIES asks for more. */
static uint32_t n_histories(uint32_t n)
{
	const char *more = getenv("CODEMAP_HISTORIES");

	return more ? (uint32_t)atoi(more) : n;
}

static void run_histories(struct shape shape, uint32_t n)
{
	uint32_t w, l, i;

	n = n_histories(n);
	/* what comes late can only be put right beside what is still remembered */
	for (w = 0; w < (shape.retired_bytes ? 1 : ARRAY_SIZE(windows)); w++) {
		for (l = 0; l < ARRAY_SIZE(lengths); l++) {
			shape.window = windows[w];
			shape.n_events = lengths[l];
			for (i = 1; i <= n; i++)
				run_history(&shape, i);
		}
	}
}

START_TEST(test_history)
{
	/* across a segment's end */
	run_histories((struct shape){ .base = BASE - 40, .scale = 1 }, 150);
}
END_TEST

START_TEST(test_history_shapes)
{
	static const struct shape shapes[] = {
		{ .base = BASE, .scale = 1 },
		{ .base = 4096, .scale = 1 },
		{ .base = (UINT64_C(1) << 48) - SPAN, .scale = 1 },
		{ .base = BASE - 777, .scale = 700 },     /* over a few segments */
		{ .base = BASE - 12345, .scale = 20011 }, /* each over several */
	};
	uint32_t i;

	for (i = 0; i < ARRAY_SIZE(shapes); i++)
		run_histories(shapes[i], 15);
}
END_TEST

START_TEST(test_history_expiry)
{
	run_histories((struct shape){ .base = BASE - 40, .scale = 1, .retired_bytes = 1 }, 100);
	run_histories((struct shape){ .base = BASE - 40, .scale = 1, .retired_bytes = 800 }, 100);
}
END_TEST

/* -- Single rules ---------------------------------------------------------------------------- */

START_TEST(test_ranges)
{
	struct codemap *map = new_map(NULL);

	ck_assert_str_eq(at(map, 0x10000, 5), "<not announced>");
	ck_assert_int_eq(add(map, 1, 0x10000, 16, 10, "A"), 0);
	ck_assert_int_eq(add(map, 2, 0x10010, 1, 11, "B"), 0);
	ck_assert_str_eq(at(map, 0xffff, 20), "<not announced>");
	ck_assert_str_eq(at(map, 0x10000, 20), "A");
	ck_assert_str_eq(at(map, 0x1000f, 20), "A");
	ck_assert_str_eq(at(map, 0x10010, 20), "B");
	ck_assert_str_eq(at(map, 0x10011, 20), "<not announced>");
	ck_assert_str_eq(at(map, 0x10000, 9), "<not loaded yet>");
	ck_assert_str_eq(at(map, 0x10000, 10), "A");
	ck_assert_str_eq(at(map, UINT64_MAX, 20), "<not announced>");
	ck_assert_ptr_nonnull(codemap_lookup(map, 0x10000, NULL));
	ck_assert_ptr_null(codemap_lookup(map, 0x10011, NULL));
	codemap_free(map);
}
END_TEST

START_TEST(test_invalid)
{
	static const struct {
		uint64_t method, start, version, time;
		uint32_t size;
		int result;
	} cases[] = {
		{ 1, 0x1000, 0, 1, 0, CODEMAP_E_INVALID },
		{ 1, 0, 0, 1, 16, CODEMAP_E_INVALID },
		{ 1, 0x1000, 0, 1, CAP_BODY_BYTES + 1, CODEMAP_E_INVALID },
		{ 1, 0x1000, 0, 1, CAP_BODY_BYTES, 0 },
		{ 1, (UINT64_C(1) << 48) - 16, 0, 1, 17, CODEMAP_E_INVALID },
		{ 1, (UINT64_C(1) << 48) - 16, 0, 1, 16, 0 },
		{ 1, UINT64_C(1) << 48, 0, 1, 16, CODEMAP_E_INVALID },
		{ 1, UINT64_MAX - 8, 0, 1, 16, CODEMAP_E_INVALID },
		{ UINT64_C(1) << 48, 0x1000, 0, 1, 16, CODEMAP_E_INVALID },
		{ 1, 0x1000, 65536, 1, 16, CODEMAP_E_INVALID },
		{ 1, 0x1000, 65535, 1, 16, 0 },
		{ 1, 0x1000, 0, UINT64_MAX, 16, CODEMAP_E_INVALID },
	};
	uint32_t i;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		struct codemap *map = new_map(NULL);
		struct codemap_load load =
			load_of(cases[i].method, cases[i].start, cases[i].size, cases[i].time, "A");

		load.version = cases[i].version;
		ck_assert_int_eq(codemap_load(map, &load, NULL), cases[i].result);
		ck_assert_uint_eq(stats_of(map).invalid, cases[i].result != 0);
		ck_assert_uint_eq(stats_of(map).live, cases[i].result == 0);
		ck_assert_int_eq(!codemap_lookup(map, cases[i].start, NULL), cases[i].result != 0);
		codemap_free(map);
	}
}
END_TEST

/* A composite image announces each of its bodies once a component. */
START_TEST(test_composite)
{
	struct codemap *map = new_map(NULL);
	struct codemap_body *first, *again;
	uint32_t i, round;

	for (round = 0; round < 5; round++) {
		for (i = 0; i < 1000; i++) {
			struct codemap_load load =
				load_of(100 + i, BASE + i * 64, 64, 100 + round * 1000 + i, "A");

			load.flags = 0x100;
			ck_assert_int_eq(codemap_rundown(map, &load, &first), 0);
			ck_assert_int_eq(codemap_rundown(map, &load, &again), 0);
			ck_assert_ptr_eq(first, again);
		}
	}
	ck_assert_uint_eq(stats_of(map).live, 1000);
	ck_assert_uint_eq(stats_of(map).live_r2r, 1000);
	ck_assert_uint_eq(stats_of(map).merged, 9000);
	ck_assert_uint_eq(stats_of(map).retired, 0);
	codemap_free(map);
}
END_TEST

/* Tiers, on-stack replacements and parts of one method live side by side. */
START_TEST(test_versions)
{
	struct codemap *map = new_map(NULL);
	struct codemap_load load = load_of(7, BASE, 64, 10, "Main");

	ck_assert_int_eq(codemap_load(map, &load, NULL), 0);
	load.version = 1;
	load.start += 64;
	load.flags = 0x288;
	ck_assert_int_eq(codemap_load(map, &load, NULL), 0);
	load.start += 64;
	load.flags = 0x10000288;
	ck_assert_int_eq(codemap_load(map, &load, NULL), 0);
	ck_assert_uint_eq(stats_of(map).live, 3);
	ck_assert_uint_eq(info_at(map, BASE + 64, 20).version, 1);
	ck_assert_uint_eq(info_at(map, BASE + 64, 20).flags, 0x288);
	ck_assert_uint_eq(info_at(map, BASE + 128, 20).flags, 0x10000288);
	/* one of them goes */
	ck_assert_int_eq(codemap_unload(map, 7, BASE + 64, 20), 0);
	ck_assert_str_eq(at(map, BASE, 30), "Main");
	ck_assert_str_eq(at(map, BASE + 64, 30), "<retired>");
	ck_assert_str_eq(at(map, BASE + 64, 19), "Main");
	codemap_free(map);
}
END_TEST

START_TEST(test_reuse)
{
	struct codemap *map = new_map(NULL);
	uint32_t i;
	char name[16];

	/* one slot, one method id, another name each time: dynamic methods */
	for (i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "lambda%u", i);
		ck_assert_int_eq(add(map, 1, BASE, 64 + i % 3, 100 + i * 10, name), 0);
		if (i % 2)
			ck_assert_int_eq(codemap_unload(map, 1, BASE, 105 + i * 10), 0);
	}
	for (i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "lambda%u", i);
		ck_assert_str_eq(at(map, BASE + 5, 104 + i * 10), name);
		ck_assert_str_eq(at(map, BASE + 5, 105 + i * 10), i % 2 ? "<retired>" : name);
	}
	ck_assert_uint_eq(stats_of(map).implied_retirements, 50);
	codemap_free(map);
}
END_TEST

/* Bodies that were replaced at the moment of their load, and what else ended then. */
START_TEST(test_one_moment)
{
	struct codemap *map = new_map(NULL);
	struct codemap_info info;

	/* B came and went at 50, between A and A again */
	ck_assert_int_eq(add(map, 2, BASE, 64, 50, "B"), 0);
	ck_assert_int_eq(add(map, 1, BASE, 64, 50, "A"), 0);
	ck_assert_int_eq(add(map, 1, BASE, 64, 20, "A"), 0);
	ck_assert_int_eq(add(map, 3, BASE, 64, 80, "C"), 0);
	ck_assert_str_eq(at(map, BASE, 20), "A");
	ck_assert_str_eq(at(map, BASE, 49), "A");
	ck_assert_uint_eq(info_at(map, BASE, 49).unload, 50);
	ck_assert_str_eq(at(map, BASE, 50), "A");
	ck_assert_str_eq(at(map, BASE, 79), "A");

	/* one that was there before them, told late */
	ck_assert_int_eq(add(map, 4, BASE + 256, 64, 50, "D"), 0);
	ck_assert_int_eq(add(map, 5, BASE + 256, 64, 50, "E"), 0);
	ck_assert_int_eq(add(map, 6, BASE + 256, 64, 30, "F"), 0);
	ck_assert_str_eq(at(map, BASE + 256, 30), "F");
	ck_assert_str_eq(at(map, BASE + 256, 49), "F");
	ck_assert_str_eq(at(map, BASE + 256, 50), "E");

	/* seen, and replaced at that moment: it was there before */
	ck_assert_int_eq(see(map, 7, BASE + 512, 64, 50, "G"), 0);
	ck_assert_int_eq(add(map, 8, BASE + 512, 64, 50, "H"), 0);
	ck_assert_str_eq(at(map, BASE + 512, 10), "G");
	ck_assert_str_eq(at(map, BASE + 512, 50), "H");
	info = info_at(map, BASE + 512, 10);
	ck_assert(info.open_past && info.load == 0 && info.announced == 50 && info.unload == 50);
	codemap_free(map);
}
END_TEST

START_TEST(test_open_past)
{
	struct codemap *map = new_map(NULL);
	struct codemap_info info;

	ck_assert_int_eq(see(map, 1, BASE, 64, 1000, "A"), 0);
	ck_assert_str_eq(at(map, BASE, 0), "A");
	info = info_at(map, BASE, 5);
	ck_assert(info.open_past && info.load == 0 && info.unload == UINT64_MAX);
	ck_assert_uint_eq(info.announced, 1000);
	/* its load, late: the moment is known */
	ck_assert_int_eq(add(map, 1, BASE, 64, 700, "A"), 0);
	ck_assert_str_eq(at(map, BASE, 699), "<not loaded yet>");
	info = info_at(map, BASE, 2000);
	ck_assert(!info.open_past && info.load == 700 && info.announced == 700);

	/* bounded by what was there before */
	ck_assert_int_eq(codemap_unload(map, 1, BASE, 1500), 0);
	ck_assert_int_eq(see(map, 2, BASE + 32, 64, 2000, "B"), 0);
	ck_assert_str_eq(at(map, BASE + 40, 1499), "A");
	ck_assert_str_eq(at(map, BASE + 40, 1500), "B");
	ck_assert_str_eq(at(map, BASE + 80, 1499), "<not loaded yet>");
	info = info_at(map, BASE + 40, 1600);
	ck_assert(info.open_past && info.load == 1500);

	/* a record of what has gone since */
	ck_assert_int_eq(add(map, 3, BASE + 256, 64, 5000, "C"), 0);
	ck_assert_int_eq(see(map, 4, BASE + 256, 64, 4000, "D"), CODEMAP_E_STALE);
	ck_assert_uint_eq(stats_of(map).stale, 1);
	ck_assert_str_eq(at(map, BASE + 256, 4999), "D");
	ck_assert_str_eq(at(map, BASE + 256, 5000), "C");
	codemap_free(map);
}
END_TEST

/* What a rundown after a loss does not list ended in the loss. */
START_TEST(test_census)
{
	struct codemap *map = new_map(NULL);
	int complete;

	for (complete = 0; complete < 2; complete++) {
		uint64_t base = BASE + (uint64_t)complete * 4096, t = 1000u * (uint64_t)complete;

		ck_assert_int_eq(add(map, 1, base, 64, t + 10, "A"), 0);
		ck_assert_int_eq(add(map, 2, base + 64, 64, t + 20, "B"), 0);
		codemap_gap(map, t + 50, t + 60);
		ck_assert_int_eq(add(map, 3, base + 128, 64, t + 55, "C"), 0);
		ck_assert_int_eq(add(map, 4, base + 192, 64, t + 70, "D"), 0);
		ck_assert_int_eq(codemap_census_begin(map), 0);
		ck_assert_int_eq(see(map, 2, base + 64, 64, t + 90, "B"), 0);
		ck_assert_int_eq(add(map, 5, base + 256, 64, t + 95, "E"), 0);
		codemap_census_end(map, t + 50, complete ? t + 60 : 0);
		ck_assert_str_eq(at(map, base, t + 49), "A");
		ck_assert_str_eq(at(map, base, t + 55), complete ? "<data lost>" : "A");
		ck_assert_str_eq(at(map, base, t + 100), complete ? "<retired>" : "A");
		ck_assert_str_eq(at(map, base + 64, t + 100), "B");
		ck_assert_str_eq(at(map, base + 128, t + 100), complete ? "<retired>" : "C");
		ck_assert_str_eq(at(map, base + 192, t + 100), "D");
		ck_assert_str_eq(at(map, base + 256, t + 100), "E");
	}
	/* without a begin there is nothing to end */
	codemap_census_end(map, 1, UINT64_MAX);
	ck_assert_str_eq(at(map, BASE + 4096 + 192, 9999), "D");
	codemap_free(map);
}
END_TEST

START_TEST(test_gaps)
{
	struct codemap *map = new_map(NULL);
	uint64_t i;

	ck_assert_int_eq(add(map, 1, BASE, 64, 10, "A"), 0);
	codemap_gap(map, 50, 60);
	ck_assert_str_eq(at(map, BASE + 64, 49), "<not announced>");
	ck_assert_str_eq(at(map, BASE + 64, 50), "<data lost>");
	ck_assert_str_eq(at(map, BASE + 64, 60), "<data lost>");
	ck_assert_str_eq(at(map, BASE + 64, 61), "<not announced>");
	ck_assert_str_eq(at(map, BASE, 55), "A");
	ck_assert(!codemap_lost_between(map, 0, 49) && codemap_lost_between(map, 0, 50));
	ck_assert(codemap_lost_between(map, 60, 70) && !codemap_lost_between(map, 61, 70));
	/* replaced while data was lost */
	ck_assert_int_eq(see(map, 2, BASE, 64, 100, "B"), 0);
	ck_assert_str_eq(at(map, BASE, 49), "A");
	ck_assert_str_eq(at(map, BASE, 50), "B");
	ck_assert(info_at(map, BASE, 70).open_past);
	/* and its unload after all, late */
	ck_assert_int_eq(codemap_unload(map, 1, BASE, 58), 0);
	ck_assert_str_eq(at(map, BASE, 57), "A");
	ck_assert_str_eq(at(map, BASE, 58), "B");

	/* many gaps are joined, and none is forgotten */
	for (i = 0; i < 1000; i++)
		codemap_gap(map, 1000 + i * 10, 1000 + i * 10 + 3);
	for (i = 0; i < 1000; i++)
		ck_assert_str_eq(at(map, BASE + 64, 1000 + i * 10 + 2), "<data lost>");
	ck_assert_str_eq(at(map, BASE + 64, 1000 + 999 * 10 + 4), "<not announced>");
	ck_assert_str_eq(at(map, BASE + 64, 49), "<not announced>");
	codemap_gap(map, 20, 10);
	ck_assert_str_eq(at(map, BASE + 64, 15), "<not announced>");
	codemap_gap(map, 0, UINT64_MAX);
	ck_assert_str_eq(at(map, BASE + 64, 15), "<data lost>");
	codemap_free(map);
}
END_TEST

static const char *certain(struct codemap *map, uint64_t addr, uint64_t time)
{
	enum codemap_miss miss = CODEMAP_HIT;

	if (codemap_lookup_certain(map, addr, time, &miss))
		return "hit";
	return codemap_miss_text(miss);
}

/* What can be freed is an answer only for times at which nothing else can have been there. */
START_TEST(test_certain)
{
	struct codemap *map = new_map(NULL);
	struct codemap_load load = {
		.method_id = 1,
		.start = BASE,
		.size = 64,
		.time = 100,
		.flags = 1,
		.name = "D",
		.name_len = 1,
	};

	ck_assert_int_eq(codemap_rundown(map, &load, NULL), 0);
	ck_assert_int_eq(see(map, 2, BASE + 64, 64, 100, "P"), 0);
	ck_assert_str_eq(at(map, BASE, 50), "D");
	ck_assert_str_eq(certain(map, BASE, 99), "not loaded yet");
	ck_assert_str_eq(certain(map, BASE, 100), "hit");
	ck_assert_str_eq(certain(map, BASE + 64, 50), "hit");
	/* what was there while events were lost is not known; afterwards it may be another's */
	codemap_gap(map, 200, 300);
	load.method_id = 3;
	load.name = "E";
	load.time = 400;
	ck_assert_int_eq(codemap_rundown(map, &load, NULL), 0);
	ck_assert_str_eq(at(map, BASE, 250), "E");
	ck_assert_str_eq(certain(map, BASE, 199), "hit");
	ck_assert_str_eq(certain(map, BASE, 250), "data lost");
	ck_assert_str_eq(certain(map, BASE, 350), "not loaded yet");
	ck_assert_str_eq(certain(map, BASE, 400), "hit");
	ck_assert_str_eq(certain(map, BASE + 64, 250), "hit");
	codemap_free(map);
}
END_TEST

/* Gaps in any order and size, against one bit a moment. */
START_TEST(test_gap_union)
{
	uint32_t round, i;

	for (round = 1; round < 300; round++) {
		struct codemap *map = new_map(NULL);
		bool lost[300] = { false };

		seed(round);
		/* fewer than are kept apart, so the answer is exact */
		for (i = 0; i < 60; i++) {
			uint32_t from = draw(290), len = draw(round % 10 + 1), t;

			codemap_gap(map, from, from + len);
			for (t = from; t <= from + len && t < 300; t++)
				lost[t] = true;
		}
		for (i = 0; i < 300; i++)
			ck_assert_str_eq(at(map, BASE, i),
					 lost[i] ? "<data lost>" : "<not announced>");
		codemap_free(map);
	}
}
END_TEST

START_TEST(test_modules)
{
	struct codemap *map = new_map(NULL);
	struct codemap_load load;
	struct codemap_info info;
	uint32_t i;

	for (i = 0; i < 2000; i++) {
		load = load_of(1 + i, BASE + i * 32, 32, 100 + i, "A");
		load.module_id = i % 2 ? 0xa000 : 0xb000;
		ck_assert_int_eq(codemap_load(map, &load, NULL), 0);
	}
	ck_assert_ptr_null(info_at(map, BASE, 5000).module_path);
	/* the name comes after the methods */
	ck_assert_int_eq(codemap_module(map, 0xa000, 1, "/a.dll", 6, 100), 0);
	ck_assert_int_eq(codemap_module(map, 0xb000, 2, "/b.dll", 6, 100), 0);
	ck_assert_int_eq(codemap_module_unload(map, 0xa000, 5000), 0);
	ck_assert_uint_eq(stats_of(map).live, 1000);
	ck_assert_str_eq(at(map, BASE, 6000), "A");
	ck_assert_str_eq(at(map, BASE + 32, 6000), "<retired>");
	/* the same id again is another module */
	load = load_of(9, BASE + 32, 32, 7000, "B");
	load.module_id = 0xa000;
	ck_assert_int_eq(codemap_load(map, &load, NULL), 0);
	ck_assert_int_eq(codemap_module(map, 0xa000, 3, "/c.dll", 6, 6999), 0);
	info = info_at(map, BASE + 32, 7000);
	ck_assert_msg(memcmp(info.module_path, "/c.dll", 6) == 0, "new incarnation");
	info = info_at(map, BASE + 32, 4999);
	ck_assert_msg(memcmp(info.module_path, "/a.dll", 6) == 0, "old incarnation");
	ck_assert_uint_eq(info.module_id, 0xa000);
	/* a load that its module's unload overtook */
	load = load_of(10, BASE + 0x100000, 32, 4000, "C");
	load.module_id = 0xa000;
	ck_assert_int_eq(codemap_load(map, &load, NULL), 0);
	ck_assert_str_eq(at(map, BASE + 0x100000, 4999), "C");
	ck_assert_str_eq(at(map, BASE + 0x100000, 5000), "<retired>");
	/* unknown modules are no error */
	ck_assert_int_eq(codemap_module_unload(map, 0xdead, 8000), 0);
	/* and none of it stays when many come and go */
	for (i = 0; i < 100000; i++) {
		ck_assert_int_eq(codemap_module(map, 0xc000 + i % 7, i, "/d.dll", 6, 9000 + i * 2),
				 0);
		ck_assert_int_eq(codemap_module_unload(map, 0xc000 + i % 7, 9001 + i * 2), 0);
	}
	ck_assert_uint_lt(stats_of(map).bytes, 2000000);
	codemap_free(map);
}
END_TEST

START_TEST(test_expiry)
{
	struct codemap_options opts = { .retired_ns = SEC_NS(10) };
	struct codemap *map = new_map(&opts);
	uint64_t i, start = SEC_NS(100);

	for (i = 0; i < 10000; i++) {
		ck_assert_int_eq(add(map, 1, BASE, 64, start + i * MS_NS(1), i % 2 ? "A" : "B"), 0);
		if (i % 100 == 0)
			codemap_expire(map, start + i * MS_NS(1));
	}
	ck_assert_uint_eq(stats_of(map).retired, 9999);
	codemap_expire(map, start + SEC_NS(15));
	/* bounded work a call */
	ck_assert_uint_gt(stats_of(map).retired, 5000);
	codemap_expire(map, start + SEC_NS(15));
	codemap_expire(map, start + SEC_NS(15));
	ck_assert_uint_eq(stats_of(map).retired + stats_of(map).expired, 9999);
	ck_assert_uint_eq(stats_of(map).expired, 5000);
	ck_assert_str_eq(at(map, BASE, start + MS_NS(4999)), "<expired>");
	ck_assert_str_eq(at(map, BASE, start + MS_NS(5000)), "B");
	ck_assert_str_eq(at(map, BASE + 64, start + MS_NS(4999)), "<expired>");
	ck_assert_str_eq(at(map, BASE + 64, start + MS_NS(5000)), "<not announced>");

	/* a record after that reaches back only to what is remembered */
	ck_assert_int_eq(see(map, 2, BASE + 4096, 64, start + SEC_NS(20), "C"), 0);
	ck_assert_str_eq(at(map, BASE + 4096, start + MS_NS(4999)), "<expired>");
	ck_assert_str_eq(at(map, BASE + 4096, start + MS_NS(5001)), "C");

	/* by bytes, without a call */
	codemap_set_retention(map, 64 * 1000, 0);
	for (i = 0; i < 10000; i++)
		ck_assert_int_eq(add(map, 1, BASE, 64, start + SEC_NS(30) + i, i % 2 ? "A" : "B"),
				 0);
	ck_assert_uint_lt(stats_of(map).retired, 1000);
	codemap_free(map);
}
END_TEST

START_TEST(test_caps)
{
	struct codemap_options opts = { .max_bodies = 100, .max_name_bytes = 4000 };
	struct codemap *map = new_map(&opts);
	char name[32];
	uint32_t i;
	int r = 0;

	for (i = 0; i < 100; i++)
		ck_assert_int_eq(add(map, 1 + i, BASE + i * 64, 64, 10 + i, "A"), 0);
	ck_assert_int_eq(add(map, 101, BASE + 101 * 64, 64, 500, "A"), CODEMAP_E_FULL);
	ck_assert_uint_eq(stats_of(map).full, 1);
	ck_assert_str_eq(at(map, BASE + 101 * 64, 600), "<over a cap>");
	/* what is retired makes room for what is alive */
	ck_assert_int_eq(codemap_unload(map, 1, BASE, 600), 0);
	ck_assert_int_eq(add(map, 102, BASE, 64, 700, "A"), 0);
	ck_assert_uint_eq(stats_of(map).live, 100);
	ck_assert_uint_eq(stats_of(map).retired, 0);
	ck_assert_str_eq(at(map, BASE, 599), "<expired>");
	/* names */
	for (i = 0; i < 1000 && r == 0; i++) {
		snprintf(name, sizeof(name), "name%u", i);
		ck_assert_int_eq(codemap_unload(map, 102 + i, BASE, 800 + i * 2), 0);
		codemap_expire(map, 0);
		r = add(map, 103 + i, BASE, 64, 801 + i * 2, name);
	}
	ck_assert_int_eq(r, 0); /* they go with their bodies */
	for (i = 1; i < 100 && r == 0; i++) {
		char longer[200];

		memset(longer, 'a' + (int)(i % 26), sizeof(longer) - 1);
		longer[sizeof(longer) - 1] = '\0';
		longer[0] = (char)('a' + i / 26);
		r = add(map, 5000 + i, BASE + i * 64, 64, 9000 + i, longer);
	}
	ck_assert_int_eq(r, CODEMAP_E_FULL);
	codemap_free(map);
}
END_TEST

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED true
#elif defined(__has_feature)
#define SANITIZED __has_feature(address_sanitizer)
#else
#define SANITIZED false
#endif

static size_t resident(void)
{
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(fscanf(f, "%*u %lu", &pages), 1);
	fclose(f);
	return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* A million dynamic methods, each with a name of its own, come and go. */
START_TEST(test_churn)
{
	struct codemap_options opts = { .retired_bytes = MIB(1) };
	struct codemap *map = new_map(&opts);
	size_t bytes = 0, rss = 0, empty;
	char name[80];
	uint32_t i;

	empty = stats_of(map).bytes;
	for (i = 0; i < 1000000; i++) {
		uint64_t start = BASE + i % 997 * 128, time = 1000 + i * 1000ul;

		snprintf(name, sizeof(name), "lambda_method%u_%.*s", i, (int)(i % 50),
			 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
		ck_assert_int_eq(add(map, 1 + i % 991, start, 64 + i % 60, time, name), 0);
		if (i % 3)
			codemap_unload(map, 1 + i % 991, start, time + 500);
		if (i == 100000) {
			bytes = stats_of(map).bytes;
			rss = resident();
		}
	}
	ck_assert_uint_lt(stats_of(map).bytes, bytes + bytes / 4);
	if (!SANITIZED) /* freed memory is kept aside there */
		ck_assert_uint_lt(resident(), rss + MIB(2));
	for (i = 0; i < 997; i++)
		ck_assert_int_eq(add(map, 5000 + i, BASE + i * 128, 128, SEC_NS(10000) + i, "A"),
				 0);
	for (i = 0; i < 997; i++)
		codemap_unload(map, 5000 + i, BASE + i * 128, SEC_NS(10001) + i);
	for (i = 0; i < 1000; i++)
		codemap_expire(map, SEC_NS(100000));
	ck_assert_uint_eq(stats_of(map).retired, 0);
	ck_assert_uint_eq(stats_of(map).live, 0);
	ck_assert_uint_eq(stats_of(map).name_bytes, 0);
	/* a chunk of bodies, the heads of the chains, the rings and the slots of the index stay */
	ck_assert_uint_lt(stats_of(map).bytes, empty + 400000);
	codemap_free(map);
}
END_TEST

/* Events in no order at all, a thousand further announcements pending: must end, and soon. */
START_TEST(test_disorder)
{
	struct codemap *map = new_map(NULL);
	uint32_t i;

	seed(1);
	for (i = 0; i < 30000; i++) {
		struct event e = {
			.op = (enum op)draw(N_OPS - (i % 8 != 0)),
			.kind = { .start = draw(6) * 8,
				  .size = 8 + draw(3) * 8,
				  .method = 1 + draw(2),
				  .module = 1 + draw(2),
				  .name = "A" },
			.time = 1 + draw(100000),
		};

		deliver(map, &e, &(struct shape){ .base = BASE, .scale = 1, .any_time = true });
	}
	codemap_free(map);
}
END_TEST

/* -- IL maps --------------------------------------------------------------------------------- */

#define IL_NONE   0xffffffffu
#define IL_PROLOG 0xfffffffeu
#define IL_EPILOG 0xfffffffdu

static uint32_t il_at(const struct codemap *map, uint64_t addr, uint64_t time, uint32_t native)
{
	const struct codemap_body *body = codemap_lookup_at(map, addr, time, NULL);
	uint32_t il;

	ck_assert_ptr_nonnull(body);
	return codemap_il_lookup(map, body, native, &il) ? 12345678 : il;
}

START_TEST(test_il_lookup)
{
	static const struct codemap_il entries[] = {
		{ 40, 0 },    { 0, IL_PROLOG },  { 4, 0 },
		{ 20, 0x12 }, { 20, 0x15 },      { 30, IL_NONE },
		{ 33, 0x10 }, { 60, IL_EPILOG }, { 10, 0xfffffffc },
	};
	static const uint32_t want[][2] = {
		{ 0, IL_PROLOG },   { 3, IL_PROLOG }, { 4, 0 },     { 9, 0 },
		{ 10, 0xfffffffc }, { 20, 0x15 },     { 29, 0x15 }, { 30, IL_NONE },
		{ 33, 0x10 },       { 40, 0 },        { 59, 0 },    { 60, IL_EPILOG },
		{ 63, IL_EPILOG },  { 64, 12345678 },
	};
	struct codemap *map = new_map(NULL);
	uint32_t i;

	ck_assert_int_eq(add(map, 1, BASE, 64, 10, "A"), 0);
	ck_assert(!codemap_has_il(map, codemap_lookup(map, BASE, NULL)));
	ck_assert_uint_eq(il_at(map, BASE, 10, 0), 12345678);
	ck_assert_int_eq(codemap_il_map(map, 1, 0, 11, entries, ARRAY_SIZE(entries)), 0);
	ck_assert(codemap_has_il(map, codemap_lookup(map, BASE, NULL)));
	for (i = 0; i < ARRAY_SIZE(want); i++)
		ck_assert_uint_eq(il_at(map, BASE, 20, want[i][0]), want[i][1]);
	/* once more changes nothing */
	ck_assert_int_eq(codemap_il_map(map, 1, 0, 12, entries, ARRAY_SIZE(entries)), 0);
	ck_assert_uint_eq(stats_of(map).il_maps, 1);
	ck_assert_int_eq(codemap_il_map(map, 1, 0, 12, entries, 0), 0);
	ck_assert_int_eq(codemap_il_map(map, 1, 0, 12, entries, CAP_IL_ENTRIES + 1),
			 CODEMAP_E_INVALID);
	codemap_free(map);
}
END_TEST

/* Any map at all, against a scan of the entries. */
START_TEST(test_il_random)
{
	static struct codemap_il entries[CAP_IL_ENTRIES];
	uint32_t round, i, native;

	for (round = 1; round < 200; round++) {
		struct codemap *map = new_map(NULL);
		uint32_t n = 1 + draw(round % 20 ? 40 : 300), size = 200;

		seed(round);
		for (i = 0; i < n; i++) {
			entries[i].native = draw(round % 3 ? 200 : UINT32_MAX);
			entries[i].il =
				draw(4) ? draw(round % 2 ? 300 : UINT32_MAX) : IL_EPILOG + draw(3);
		}
		ck_assert_int_eq(codemap_il_map(map, 1, 3, 11, entries, n), 0);
		struct codemap_load load = load_of(1, BASE, size, 10, "A");

		load.version = 3;
		ck_assert_int_eq(codemap_load(map, &load, NULL), 0);
		for (native = 0; native < size; native++) {
			uint32_t best = 0, want = 12345678;

			for (i = 0; i < n; i++)
				if (entries[i].native <= native &&
				    (want == 12345678 || entries[i].native >= best)) {
					best = entries[i].native;
					want = entries[i].il;
				}
			ck_assert_uint_eq(il_at(map, BASE, 20, native), want);
		}
		codemap_free(map);
	}
}
END_TEST

START_TEST(test_il_join)
{
	static const struct codemap_il a[] = { { 0, 1 } }, b[] = { { 0, 2 } }, c[] = { { 0, 3 } };
	struct codemap *map = new_map(NULL);
	struct codemap_load load = load_of(1, BASE, 64, 100, "A");
	uint32_t i;

	/* rundown order: the map first, a little earlier */
	ck_assert_int_eq(codemap_il_map(map, 1, 2, 99, a, 1), 0);
	load.version = 2;
	ck_assert_int_eq(codemap_rundown(map, &load, NULL), 0);
	ck_assert_uint_eq(il_at(map, BASE, 100, 0), 1);
	/* live order; another version of the same method */
	load.version = 3;
	load.start += 64;
	load.time = 200;
	ck_assert_int_eq(codemap_load(map, &load, NULL), 0);
	ck_assert_int_eq(codemap_il_map(map, 1, 3, 201, b, 1), 0);
	ck_assert_uint_eq(il_at(map, BASE + 64, 300, 0), 2);
	ck_assert_uint_eq(il_at(map, BASE, 300, 0), 1);
	/* the id is used again: each life keeps its own */
	ck_assert_int_eq(codemap_unload(map, 1, BASE + 64, 400), 0);
	ck_assert_int_eq(codemap_il_map(map, 1, 3, 501, c, 1), 0);
	ck_assert_uint_eq(il_at(map, BASE + 64, 300, 0), 2);
	load.start += 64;
	load.time = 500;
	ck_assert_int_eq(codemap_load(map, &load, NULL), 0);
	ck_assert_uint_eq(il_at(map, BASE + 128, 600, 0), 3);
	/* a cold part has none */
	load.flags |= 0x10000000;
	load.version = 9;
	load.start += 64;
	ck_assert_int_eq(codemap_load(map, &load, NULL), 0);
	ck_assert_int_eq(codemap_il_map(map, 1, 9, 601, c, 1), 0);
	ck_assert_uint_eq(il_at(map, BASE + 192, 700, 0), 12345678);
	/* late, for a body that has gone since */
	ck_assert_int_eq(add(map, 77, BASE + 512, 64, 1000, "B"), 0);
	ck_assert_int_eq(codemap_unload(map, 77, BASE + 512, 1010), 0);
	ck_assert_int_eq(codemap_il_map(map, 77, 0, 1001, a, 1), 0);
	ck_assert_uint_eq(il_at(map, BASE + 512, 1005, 0), 1);
	/* what nobody claims is bounded */
	for (i = 0; i < 3 * CAP_IL_PENDING; i++) {
		struct codemap_il e[3] = { { 0, i }, { 10, i / 3 }, { 20, i * 7 } };

		ck_assert_int_eq(codemap_il_map(map, 1000 + i, 0, 2000 + i, e, 3), 0);
	}
	ck_assert_uint_lt(stats_of(map).il_bytes, CAP_IL_PENDING * 64);
	ck_assert_int_eq(add(map, 1000 + 3 * CAP_IL_PENDING - 1, BASE + 1024, 64, 2000, "C"), 0);
	ck_assert_uint_eq(il_at(map, BASE + 1024, 900000, 10), CAP_IL_PENDING - 1);
	codemap_free(map);
}
END_TEST

/* -- The text form ---------------------------------------------------------------------------- */

static void write_map(const struct codemap *map, const struct codemap_map_options *opts,
		      struct buf *out, size_t budget, size_t *left_outp)
{
	struct codemap_map_writer w;

	codemap_map_writer_init(&w, opts);
	while (!w.done)
		ck_assert_int_eq(codemap_map_writer_step(&w, map, out, budget), 0);
	*left_outp = w.left_out;
	ck_assert_uint_eq(w.bytes, out->len);
	codemap_map_writer_deinit(&w);
}

START_TEST(test_mapfile)
{
	struct codemap *map = new_map(NULL);
	struct codemap_map_options opts = { .style = NAMES_SHORT };
	struct codemap_load load;
	char name[2000];
	struct buf out;
	size_t left;

	buf_init(&out, MIB(1));
	write_map(map, &opts, &out, 100, &left);
	ck_assert_uint_eq(out.len, 0);

	ck_assert_int_eq(add(map, 1, 0x7f00abcdef00, 0x1f, 1, "Main"), 0);
	ck_assert_int_eq(add(map, 2, 0x1000, 0x20, 1, "tab\there\nnew"), 0);
	load = load_of(3, 0x2000, 1, 1, "F");
	load.ns_len = 0;
	ck_assert_int_eq(codemap_load(map, &load, NULL), 0);
	memset(name, 'x', sizeof(name));
	memcpy(name + 297 - 9, "\xe2\x82\xac\xe2\x82\xac", 6); /* "Ns.Type::" is 9 */
	load = load_of(4, 0x3000, 1, 1, "");
	load.name = name;
	load.name_len = sizeof(name);
	ck_assert_int_eq(codemap_load(map, &load, NULL), 0);
	write_map(map, &opts, &out, 1, &left);
	ck_assert_uint_eq(left, 0);
	{
		char want[1000];
		int n = snprintf(want, sizeof(want),
				 "1000 20 Ns.Type::tab?here?new\n"
				 "2000 1 [method] F\n"
				 "3000 1 Ns.Type::%.291s\n"
				 "7f00abcdef00 1f Ns.Type::Main\n",
				 name);

		ck_assert_uint_eq(out.len, (size_t)n);
		ck_assert_int_eq(memcmp(out.data, want, out.len), 0);
	}
	/* tiers stay whole; the cut is at a character */
	buf_clear(&out);
	opts.tiers = true;
	opts.style = NAMES_FULL;
	write_map(map, &opts, &out, 100000, &left);
	ck_assert_ptr_nonnull(memmem(out.data, out.len, "Main()[OptimizedTier1]\n", 23));
	ck_assert_ptr_nonnull(memmem(out.data, out.len, "xxx[OptimizedTier1]\n", 20));
	/* over the cap */
	buf_clear(&out);
	opts = (struct codemap_map_options){ .max_bytes = 50 };
	write_map(map, &opts, &out, 10, &left);
	ck_assert_uint_eq(left, 2);
	ck_assert_uint_le(out.len, 50);
	buf_deinit(&out);
	codemap_free(map);
}
END_TEST

/* The map changes between the steps: the lines still never overlap. */
START_TEST(test_mapfile_changing)
{
	struct codemap_map_options opts = { .style = NAMES_SHORT };
	uint32_t round, i;

	for (round = 1; round < 100; round++) {
		struct codemap *map = new_map(NULL);
		struct codemap_map_writer w;
		uint64_t end = 0, time = 1;
		char *line, *save = NULL;
		struct buf out;

		seed(round);
		buf_init(&out, MIB(1));
		codemap_map_writer_init(&w, &opts);
		while (!w.done) {
			for (i = 0; i < 20; i++)
				add(map, 1 + draw(9), BASE + draw(3000), 1 + draw(100), time++,
				    "abc");
			ck_assert_int_eq(codemap_map_writer_step(&w, map, &out, 60), 0);
		}
		codemap_map_writer_deinit(&w);
		ck_assert_ptr_nonnull(buf_cstr(&out));
		for (line = strtok_r((char *)out.data, "\n", &save); line;
		     line = strtok_r(NULL, "\n", &save)) {
			unsigned long start, size;

			ck_assert_int_eq(sscanf(line, "%lx %lx Ns.Type::abc", &start, &size), 2);
			ck_assert_uint_ge(start, end);
			end = start + size;
		}
		buf_deinit(&out);
		codemap_free(map);
	}
}
END_TEST

START_TEST(test_generation)
{
	struct codemap *map = new_map(NULL);
	uint64_t g = codemap_generation(map);

	ck_assert_int_eq(add(map, 1, BASE, 64, 10, "A"), 0);
	ck_assert_uint_ne(codemap_generation(map), g);
	g = codemap_generation(map);
	ck_assert_int_eq(add(map, 1, BASE, 64, 11, "A"), 0);
	ck_assert_uint_eq(codemap_generation(map), g);
	codemap_unload(map, 1, BASE, 12);
	ck_assert_uint_ne(codemap_generation(map), g);
	codemap_free(map);
}
END_TEST

/* Events without names (level 4): a later record brings them. */
/*
 * So many that all that grows has grown often, and then all of it goes: every name is told from
 * every other, and the memory is given back.
 */
#define MANY       30000u
#define MANY_START 0x7f3000000000u

static void many_name(char name[32], uint32_t i, bool again)
{
	snprintf(name, 32, "%s%u", again ? "Again" : "Method", i);
}

static void many_check(const struct codemap *map, uint64_t time, bool again)
{
	char name[32];
	uint32_t i;

	for (i = 0; i < MANY; i++) {
		uint64_t start = MANY_START + (uint64_t)i * 160;

		many_name(name, i, again && i % 3);
		ck_assert_str_eq(at(map, start, time), name);
		ck_assert_str_eq(at(map, start + i % 150, time), name);
		if (i % 50 == 0)
			ck_assert_ptr_null(codemap_lookup(map, start + i % 150 + 1, NULL));
	}
}

START_TEST(test_many)
{
	_cleanup_(codemap_freep) struct codemap *map =
		new_map(&(struct codemap_options){ .retired_bytes = 1, .no_il_maps = true });
	_cleanup_free_ uint32_t *order = calloc(MANY, sizeof(*order));
	uint64_t time = 1;
	char name[32];
	uint32_t i;
	size_t full;

	seed(77);
	for (i = 0; i < MANY; i++) {
		uint32_t j = draw(i + 1);

		/* in order of address, or in none */
		order[i] = order[_i ? j : i];
		order[_i ? j : i] = i;
	}
	for (i = 0; i < MANY; i++) {
		many_name(name, order[i], false);
		ck_assert_int_eq(add(map, order[i], MANY_START + (uint64_t)order[i] * 160,
				     order[i] % 150 + 1, time++, name),
				 0);
	}
	many_check(map, time, false);
	full = stats_of(map).bytes;

	/* two in three go and come again under another name */
	for (i = 0; i < MANY; i++)
		if (order[i] % 3)
			codemap_unload(map, order[i], MANY_START + (uint64_t)order[i] * 160,
				       time++);
	for (i = 0; i < MANY; i++) {
		many_name(name, order[i], true);
		if (order[i] % 3)
			ck_assert_int_eq(add(map, order[i], MANY_START + (uint64_t)order[i] * 160,
					     order[i] % 150 + 1, time++, name),
					 0);
	}
	many_check(map, time, true);
	ck_assert_uint_eq(stats_of(map).live, MANY);
	ck_assert_uint_lt(stats_of(map).bytes, full + full / 4);

	for (i = 0; i < MANY; i++)
		codemap_unload(map, order[i], MANY_START + (uint64_t)order[i] * 160, time++);
	while (stats_of(map).retired)
		codemap_expire(map, time + SEC_NS(3600));
	ck_assert_uint_eq(stats_of(map).live, 0);
	ck_assert_uint_eq(stats_of(map).name_bytes, 0);
	ck_assert_uint_lt(stats_of(map).bytes, full / 4);
}
END_TEST

START_TEST(test_names_later)
{
	struct codemap *map = new_map(NULL);
	struct codemap_load load = load_of(1, BASE, 64, 10, "A");

	load.ns_len = load.name_len = load.sig_len = 0;
	load.ns = load.name = load.sig = NULL;
	ck_assert_int_eq(codemap_load(map, &load, NULL), 0);
	ck_assert_str_eq(at(map, BASE, 20), "");
	ck_assert_int_eq(see(map, 1, BASE, 64, 30, "A"), 0);
	ck_assert_str_eq(at(map, BASE, 20), "A");
	ck_assert_int_eq(codemap_load(map, &load, NULL), 0);
	ck_assert_str_eq(at(map, BASE, 20), "A");
	ck_assert_uint_eq(stats_of(map).live, 1);
	codemap_free(map);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("codemap");
	TCase *rules = tcase_create("rules"), *histories = tcase_create("histories");
	SRunner *runner;
	int failed;

	tcase_set_timeout(histories, 600);
	tcase_add_test(histories, test_history);
	tcase_add_test(histories, test_history_shapes);
	tcase_add_test(histories, test_history_expiry);
	tcase_add_test(histories, test_disorder);
	tcase_add_test(histories, test_churn);
	tcase_add_test(rules, test_ranges);
	tcase_add_test(rules, test_invalid);
	tcase_add_test(rules, test_composite);
	tcase_add_test(rules, test_versions);
	tcase_add_test(rules, test_reuse);
	tcase_add_test(rules, test_one_moment);
	tcase_add_test(rules, test_open_past);
	tcase_add_test(rules, test_gaps);
	tcase_add_test(rules, test_census);
	tcase_add_test(rules, test_certain);
	tcase_add_test(rules, test_gap_union);
	tcase_add_test(rules, test_modules);
	tcase_add_test(rules, test_expiry);
	tcase_add_test(rules, test_caps);
	tcase_add_test(rules, test_il_lookup);
	tcase_add_test(rules, test_il_random);
	tcase_add_test(rules, test_il_join);
	tcase_add_test(rules, test_mapfile);
	tcase_add_test(rules, test_mapfile_changing);
	tcase_add_test(rules, test_generation);
	tcase_add_test(rules, test_names_later);
	tcase_add_loop_test(histories, test_many, 0, 2);
	suite_add_tcase(s, rules);
	suite_add_tcase(s, histories);
	runner = srunner_create(s);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
