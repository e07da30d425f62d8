/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of a code map.
 *
 * test_copy keeps a copy of all that a map tells, through its notes of changes alone, while random
 * events come in and out of order, and compares it with the map every few events: a change that is
 * not noted leaves the copy wrong for good. test_restore puts such a map together again, in any
 * order, and asks both for every address at every time.
 */
#include "codemap/codemap.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"

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

static struct codemap *new_map(const struct codemap_options *opts)
{
	struct codemap *map = NULL;

	ck_assert_int_eq(codemap_new(&map, opts), 0);
	return map;
}

/* -- What a map tells of a body --------------------------------------------------------------- */

#define TEXT_BYTES 480u

/* All of it but the end. */
static void describe(struct codemap *map, const struct codemap_body *body, char text[TEXT_BYTES])
{
	const struct codemap_il *il;
	struct codemap_info i;
	size_t n_il, k;
	int n, r;

	codemap_body_info(map, body, &i);
	n = snprintf(text, TEXT_BYTES,
		     "%lx m%lx v%lu +%u load %lu %s%s announced %lu token %x flags %x "
		     "[%.*s|%.*s|%.*s] of %lx %s%.*s il",
		     (unsigned long)i.start, (unsigned long)i.method_id, (unsigned long)i.version,
		     i.size, (unsigned long)i.load, i.open_past ? "open " : "",
		     i.freeable ? "freeable " : "", (unsigned long)i.announced, i.token, i.flags,
		     (int)i.name.ns_len, i.name.ns, (int)i.name.name_len, i.name.name,
		     (int)i.name.sig_len, i.name.sig, (unsigned long)i.module_id,
		     i.module_path ? "at " : "unnamed", (int)i.module_path_len,
		     i.module_path ? i.module_path : "");
	r = codemap_il_entries(map, body, &il, &n_il);
	ck_assert(r == 0 || r == CODEMAP_E_NONE);
	ck_assert_int_eq(r == 0, codemap_has_il(map, body));
	for (k = 0; r == 0 && k < n_il; k++)
		n += snprintf(text + n, TEXT_BYTES - (size_t)n, " %u:%u", il[k].native, il[k].il);
	ck_assert_uint_lt((size_t)n, TEXT_BYTES);
}

static uint64_t end_of(const struct codemap *map, const struct codemap_body *body)
{
	struct codemap_info info;

	codemap_body_life(map, body, &info);
	return info.unload;
}

/* -- Random events ------------------------------------------------------------------------------
 */

#define BASE 0x7f0000020000u

struct shape {
	uint64_t base;
	uint32_t span, scale; /* places, and bytes of each */
	uint32_t late;        /* how far an event may come behind */
	uint32_t still;       /* of so many events one comes at the time of the one before */
	size_t retired_bytes;
	uint64_t begin;    /* told to the map */
	uint64_t earliest; /* else: no event comes from before */
	bool no_gaps;
};

static uint64_t now; /* of the random events */

static uint64_t event_time(const struct shape *shape)
{
	uint64_t late = draw(4) ? 0 : draw(shape->late + 1);

	if (draw(shape->still))
		now++;
	return MAX(now > late ? now - late : 0, shape->earliest);
}

static void random_load(struct codemap *map, const struct shape *shape, bool seen)
{
	static const char *const names[] = { "A", "B", "Longer" };
	static const uint32_t flags[] = { 0x208, 0x208, 0x100, 0x9, 0x10000208 };
	uint32_t place = draw(shape->span), size = 1 + draw(MIN(6u, shape->span - place));
	const char *name = names[draw(ARRAY_SIZE(names))];
	struct codemap_load load = {
		.method_id = 1 + (draw(3) ? place % 3 : draw(3)),
		.module_id = draw(4),
		.version = draw(2),
		.start = shape->base + place * (uint64_t)shape->scale,
		.size = (draw(3) ? 2 + place % 3 : size) * shape->scale,
		.time = event_time(shape),
		.flags = flags[place % 2 ? place % 5 : draw(ARRAY_SIZE(flags))],
		.token = 0x6000000 + place,
		.ns = "Ns",
		.ns_len = 2,
		.name = name,
		.name_len = (uint32_t)strlen(name),
		.sig = "void  ()",
		.sig_len = draw(9),
	};
	int r;

	if (!draw(5))
		load.ns_len = load.name_len = 0;
	r = seen ? codemap_rundown(map, &load, NULL) : codemap_load(map, &load, NULL);
	ck_assert(r == 0 || r == CODEMAP_E_STALE || r == CODEMAP_E_FULL);
}

static void random_il(struct codemap *map, const struct shape *shape)
{
	uint64_t time = event_time(shape);
	struct codemap_il il[4];
	uint32_t i, n = 1 + draw(4);

	for (i = 0; i < n; i++)
		il[i] = (struct codemap_il){ draw(9), draw(3) ? draw(50) : 0xfffffffd + draw(3) };
	ck_assert_int_eq(codemap_il_map(map, 1 + draw(3), draw(2), time, il, n), 0);
}

static void random_module(struct codemap *map, const struct shape *shape)
{
	static const char paths[][8] = { "", "/a.dll", "/b.dll", "/c.dll" };
	const char *path = paths[draw(ARRAY_SIZE(paths))];
	uint64_t id = draw(4), time = event_time(shape);

	if (draw(3))
		ck_assert_int_eq(codemap_module(map, id, 1 + draw(20), path, strlen(path), time),
				 0);
	else
		ck_assert_int_eq(codemap_module_unload(map, id, time), 0);
}

static void random_event(struct codemap *map, const struct shape *shape)
{
	uint32_t o = draw(200);
	uint64_t time;

	if (o < 70) {
		random_load(map, shape, false);
	} else if (o < 110) {
		random_load(map, shape, true);
	} else if (o < 150) {
		time = event_time(shape);
		codemap_unload(map, 1 + draw(3),
			       shape->base + draw(shape->span) * (uint64_t)shape->scale, time);
	} else if (o < 170) {
		random_module(map, shape);
	} else if (o < 190) {
		random_il(map, shape);
	} else if (o < 194 && !shape->no_gaps) {
		time = event_time(shape);
		codemap_gap(map, time, time + draw(5));
	} else if (o < 197 && shape->retired_bytes) {
		codemap_expire(map, now);
		codemap_set_retention(map, draw(2) ? 1 : shape->retired_bytes, 1 + draw(50));
	} else {
		ck_assert_int_eq(codemap_collectible(map, 1 + draw(20)), 0);
	}
}

static struct codemap *map_of(const struct shape *shape)
{
	struct codemap *map =
		new_map(&(struct codemap_options){ .retired_bytes = shape->retired_bytes });

	now = 10;
	if (shape->begin)
		codemap_set_begin(map, shape->begin);
	return map;
}

/* -- A copy ---------------------------------------------------------------------------------------
 */

#define MAX_SLOTS 8192u

struct copy {
	struct codemap *map;
	uint32_t n, stop_at, n_slots;
	struct {
		char text[TEXT_BYTES]; /* empty: no body */
		uint64_t end;
	} slots[MAX_SLOTS];
};

static struct copy copy;

/* Most tests use few of its pages. */
static void copy_clear(void)
{
	uint32_t slot;

	for (slot = 0; slot < copy.n_slots; slot++)
		copy.slots[slot].text[0] = '\0';
	copy.n_slots = 0;
}

static int take(void *data, uint32_t slot, unsigned int what, const struct codemap_body *body)
{
	struct copy *c = data;
	char *had = c->slots[slot].text, has[TEXT_BYTES] = "";
	uint64_t end = 0;

	if (body) {
		describe(c->map, body, has);
		end = end_of(c->map, body);
	}
	if (!what || (!body && !(what & CODEMAP_CHANGE_FORGOTTEN)) ||
	    (body && (what & CODEMAP_CHANGE_FORGOTTEN) && !(what & CODEMAP_CHANGE_ADDED)) ||
	    (!*had && body && !(what & CODEMAP_CHANGE_ADDED)) ||
	    (*had && (what & CODEMAP_CHANGE_ADDED) && !(what & CODEMAP_CHANGE_FORGOTTEN)))
		ck_abort_msg("slot %u: change %x from '%s' to '%s'", slot, what, had, has);
	if (what == CODEMAP_CHANGE_ENDED && (strcmp(had, has) != 0 || end >= c->slots[slot].end))
		ck_abort_msg("slot %u: ended, from '%s' %lu to '%s' %lu", slot, had,
			     (unsigned long)c->slots[slot].end, has, (unsigned long)end);
	strcpy(had, has);
	c->n_slots = MAX(c->n_slots, slot + 1);
	c->slots[slot].end = end;
	return ++c->n == c->stop_at ? 7 : 0;
}

static void copy_take(struct codemap *map, uint32_t at_once)
{
	bool more = true, resync;
	int r;

	copy.map = map;
	while (more) {
		copy.n = 0;
		copy.stop_at = draw(4) ? 0 : 1 + draw(3);
		r = codemap_take_changes(map, at_once, take, &copy, &more, &resync);
		ck_assert(!resync);
		ck_assert_uint_le(copy.n, at_once);
		ck_assert_int_eq(r, copy.n == copy.stop_at && copy.n ? 7 : 0);
		ck_assert(!more || copy.n == at_once || r);
	}
}

static void copy_compare(struct codemap *map, const char *what, uint64_t round)
{
	uint32_t slot, n = 0;
	struct codemap_stats stats;
	char text[TEXT_BYTES];

	ck_assert_uint_le(codemap_n_slots(map), MAX_SLOTS);
	for (slot = 0; slot < MAX(codemap_n_slots(map), copy.n_slots); slot++) {
		const struct codemap_body *body = codemap_slot(map, slot);

		text[0] = '\0';
		if (body)
			describe(map, body, text);
		n += !!body;
		if (strcmp(text, copy.slots[slot].text) != 0 ||
		    (body && end_of(map, body) != copy.slots[slot].end))
			ck_abort_msg("%s %lu, slot %u: '%s' %lu, copied '%s' %lu", what,
				     (unsigned long)round, slot, text,
				     body ? (unsigned long)end_of(map, body) : 0,
				     copy.slots[slot].text, (unsigned long)copy.slots[slot].end);
	}
	codemap_get_stats(map, &stats);
	ck_assert_uint_eq(n, stats.live + stats.retired);
}

static const struct shape shapes[] = {
	{ .base = BASE - 20, .span = 40, .scale = 1, .late = 0, .still = 1000 },
	{ .base = BASE - 20, .span = 40, .scale = 1, .late = 12, .still = 1000 },
	{ .base = BASE - 20, .span = 24, .scale = 1, .late = 12, .still = 3 },
	{ .base = BASE - 20, .span = 8, .scale = 1, .late = 30, .still = 2 },
	{ .base = BASE - 20, .span = 24, .scale = 1, .late = 12, .still = 3, .retired_bytes = 500 },
	{ .base = BASE - 20, .span = 40, .scale = 1, .late = 9, .still = 9, .retired_bytes = 2000 },
	{ .base = BASE - 20, .span = 40, .scale = 1, .late = 9, .still = 9, .retired_bytes = 1 },
	{ .base = BASE - 9000, .span = 24, .scale = 900, .late = 12, .still = 3 },
	{ .base = BASE - 99999, .span = 24, .scale = 9999, .late = 12, .still = 3 },
	{ .base = BASE - 20, .span = 30, .scale = 1, .late = 12, .still = 4, .begin = 60 },
};

/* CODEMAP_HISTORIES asks for more. */
static uint64_t n_rounds(uint64_t n)
{
	const char *more = getenv("CODEMAP_HISTORIES");

	return more ? strtoull(more, NULL, 10) : n;
}

START_TEST(test_copy)
{
	const struct shape *shape = &shapes[_i];
	uint64_t round;
	uint32_t i;

	for (round = 1; round <= n_rounds(12); round++) {
		struct codemap *map = map_of(shape);

		seed(round);
		copy_clear();
		ck_assert_int_eq(codemap_track(map, true), 0);
		for (i = 0; i < 150; i++) {
			random_event(map, shape);
			if (draw(3))
				continue;
			copy_take(map, 1 + draw(20));
			copy_compare(map, "round", round);
		}
		codemap_free(map);
	}
}
END_TEST

static void simple_load(struct codemap *map, uint64_t method, uint64_t start, uint64_t time)
{
	struct codemap_load load = {
		.method_id = method,
		.module_id = 0x1000,
		.start = start,
		.size = 64,
		.time = time,
		.flags = 0x208,
		.ns = "Ns",
		.ns_len = 2,
		.name = "M",
		.name_len = 1,
	};

	ck_assert_int_eq(codemap_load(map, &load, NULL), 0);
}

/* Many slots: memory of records comes, goes, and comes again under the notes. */
START_TEST(test_copy_many)
{
	struct codemap *map = new_map(&(struct codemap_options){ .retired_bytes = 1 });
	uint32_t i, round;

	copy_clear();
	ck_assert_int_eq(codemap_track(map, true), 0);
	for (round = 0; round < 4; round++) {
		for (i = 0; i < 5000; i++)
			simple_load(map, 1 + i, BASE + i * 64, 1 + round * 100000ul + i);
		if (round % 2)
			copy_take(map, 1000);
		for (i = 0; i < 5000; i++)
			codemap_unload(map, 1 + i, BASE + i * 64, 50000 + round * 100000ul + i);
		if (round < 2) {
			copy_take(map, 100);
			copy_compare(map, "before expiry", round);
		}
		for (i = 0; i < 3; i++)
			codemap_expire(map, SEC_NS(100000));
		copy_take(map, 1000000);
		copy_compare(map, "after expiry", round);
	}
	codemap_free(map);
}
END_TEST

static int count(void *data, uint32_t slot, unsigned int what, const struct codemap_body *body)
{
	uint32_t *n = data;

	(void)slot;
	(void)body;
	n[0]++;
	n[1] |= what;
	return 0;
}

START_TEST(test_track)
{
	struct codemap *map = new_map(NULL);
	uint32_t n[2] = { 0 }, i;
	bool more, resync;

	/* nothing is noted before, and what was there already is not */
	simple_load(map, 1, BASE, 10);
	ck_assert_int_eq(codemap_take_changes(map, 9, count, n, &more, &resync), 0);
	ck_assert(!n[0] && !more && !resync);
	ck_assert_int_eq(codemap_track(map, true), 0);
	ck_assert_int_eq(codemap_track(map, true), 0);
	codemap_take_changes(map, 9, count, n, &more, &resync);
	ck_assert(!n[0] && !more && !resync);
	/* each slot once, the one that waits longest first; again only when something happens */
	for (i = 0; i < 10; i++)
		simple_load(map, 2 + i, BASE + 64 + i * 64, 20 + i);
	codemap_unload(map, 2, BASE + 64, 50);
	codemap_take_changes(map, 1, count, n, &more, &resync);
	ck_assert(n[0] == 1 && more && n[1] == (CODEMAP_CHANGE_ADDED | CODEMAP_CHANGE_ENDED));
	codemap_take_changes(map, 9, count, n, &more, &resync);
	ck_assert(n[0] == 10 && !more);
	codemap_take_changes(map, 9, count, n, &more, &resync);
	ck_assert(n[0] == 10 && !more);
	/* a module's name is told of each of its bodies, once, retired or not */
	n[1] = 0;
	codemap_module(map, 0x1000, 1, "/a", 2, 60);
	codemap_module(map, 0x1000, 1, "/b", 2, 61);
	codemap_take_changes(map, 100, count, n, &more, &resync);
	ck_assert(n[0] == 21 && n[1] == CODEMAP_CHANGE_ALTERED);
	codemap_module(map, 0x1000, 1, "/b", 2, 62);
	codemap_take_changes(map, 100, count, n, &more, &resync);
	ck_assert_uint_eq(n[0], 21);
	/* off: all is forgotten */
	simple_load(map, 99, BASE + 6400, 90);
	ck_assert_int_eq(codemap_track(map, false), 0);
	simple_load(map, 98, BASE + 12800, 91);
	ck_assert_int_eq(codemap_track(map, true), 0);
	codemap_take_changes(map, 100, count, n, &more, &resync);
	ck_assert_uint_eq(n[0], 21);
	codemap_free(map);
}
END_TEST

/* What changed of a module goes with the bodies that turn out to be its successor's. */
START_TEST(test_track_split)
{
	struct codemap *map = new_map(NULL);
	uint32_t i;

	copy_clear();
	ck_assert_int_eq(codemap_track(map, true), 0);
	for (i = 0; i < 10; i++)
		simple_load(map, 1 + i, BASE + i * 64, 100 + i * 10);
	copy_take(map, 100);
	codemap_module(map, 0x1000, 1, "/a", 2, 90);
	codemap_module_unload(map, 0x1000, 145);
	copy_take(map, 100);
	copy_compare(map, "split", 1);
	codemap_free(map);
}
END_TEST

/* -- Restoring ------------------------------------------------------------------------------------
 */

static int restore_slot(struct codemap *to, struct codemap *from, const struct codemap_body *body,
			struct codemap_body **bodyp)
{
	const struct codemap_il *il = NULL;
	struct codemap_info info;
	size_t n_il = 0;

	codemap_body_info(from, body, &info);
	(void)codemap_il_entries(from, body, &il, &n_il);
	return codemap_restore(to, &info, il, n_il, bodyp);
}

/* All of one map into another, in some order. Pairs of bodies go to *pairs. */
struct pair {
	const struct codemap_body *was;
	struct codemap_body *is;
};

static uint32_t restore_all(struct codemap *to, struct codemap *from, struct pair *pairs)
{
	uint32_t slot, n = 0, i;
	uint64_t gap_from, gap_to;

	for (slot = 0; slot < codemap_n_slots(from); slot++)
		if (codemap_slot(from, slot))
			pairs[n++] = (struct pair){ .was = codemap_slot(from, slot) };
	for (i = n; i > 1; i--) {
		uint32_t j = draw(i);
		struct pair pair = pairs[i - 1];

		pairs[i - 1] = pairs[j];
		pairs[j] = pair;
	}
	for (i = 0; i < n; i++)
		ck_assert_int_eq(restore_slot(to, from, pairs[i].was, &pairs[i].is), 0);
	for (i = 0; codemap_gap_at(from, i, &gap_from, &gap_to); i++)
		codemap_gap(to, gap_from, gap_to);
	codemap_set_horizon(to, codemap_horizon(from));
	if (codemap_is_incomplete(from))
		codemap_set_incomplete(to);
	return n;
}

static bool same_life(const struct codemap *a, const struct codemap_body *x,
		      const struct codemap *b, const struct codemap_body *y)
{
	struct codemap_info i, k;

	if (!x || !y)
		return x == y;
	codemap_body_life(a, x, &i);
	codemap_body_life(b, y, &k);
	return i.start == k.start && i.size == k.size && i.method_id == k.method_id &&
	       i.version == k.version && i.load == k.load && i.unload == k.unload &&
	       i.announced == k.announced && i.token == k.token;
}

static uint64_t n_questions;

static void compare_answers(const struct codemap *a, const struct codemap *b,
			    const struct shape *shape, uint64_t round)
{
	uint64_t addr, time, end = now + 5;
	uint32_t i, step = shape->scale > 1 ? shape->scale / 2 : 1;

	for (i = 0; i < shape->span * (shape->scale > 1 ? 2 : 1) + 4; i++) {
		addr = shape->base + i * (uint64_t)step;
		for (time = 0; time <= end; time++) {
			enum codemap_miss x = CODEMAP_HIT, y = CODEMAP_HIT;
			const struct codemap_body *p = codemap_lookup_at(a, addr, time, &x);
			const struct codemap_body *q = codemap_lookup_at(b, addr, time, &y);

			n_questions++;
			if (x != y || !same_life(a, p, b, q))
				ck_abort_msg("round %lu: place %u at %lu: %s, restored: %s",
					     (unsigned long)round, i, (unsigned long)time,
					     p ? "a body" : codemap_miss_text(x),
					     q ? "a body" : codemap_miss_text(y));
			if (p != codemap_lookup_at(a, addr, time, NULL))
				ck_abort_msg("another answer when no reason is asked for");
		}
		if (!same_life(a, codemap_lookup(a, addr, NULL), b, codemap_lookup(b, addr, NULL)))
			ck_abort_msg("round %lu: place %u now", (unsigned long)round, i);
	}
}

START_TEST(test_restore)
{
	static struct pair pairs[MAX_SLOTS];
	const struct shape *shape = &shapes[_i];
	char was[TEXT_BYTES], is[TEXT_BYTES];
	uint64_t round;
	uint32_t i, n;

	n_questions = 0;
	for (round = 1; round <= n_rounds(25); round++) {
		struct codemap *a = map_of(shape), *b = new_map(NULL);
		struct codemap_stats x, y;

		seed(round);
		n = 10 + draw(round % 5 ? 80 : 300);
		for (i = 0; i < n; i++)
			random_event(a, shape);
		copy_clear();
		ck_assert_int_eq(codemap_track(b, true), 0);
		n = restore_all(b, a, pairs);
		for (i = 0; i < n; i++) {
			describe(a, pairs[i].was, was);
			describe(b, pairs[i].is, is);
			if (strcmp(was, is) != 0 ||
			    end_of(a, pairs[i].was) != end_of(b, pairs[i].is))
				ck_abort_msg("round %lu: '%s', restored '%s'", (unsigned long)round,
					     was, is);
		}
		codemap_get_stats(a, &x);
		codemap_get_stats(b, &y);
		ck_assert(x.live == y.live && x.retired == y.retired && x.il_maps == y.il_maps &&
			  x.live_jitted == y.live_jitted && !y.implied_retirements);
		compare_answers(a, b, shape, round);
		copy_take(b, 1000);
		copy_compare(b, "restored", round);
		/* once more: all is there already, but for lives of no length */
		for (i = 0; i < n; i++) {
			struct codemap_info info;

			codemap_body_info(a, pairs[i].was, &info);
			if (info.load < info.unload)
				ck_assert_int_eq(restore_slot(b, a, pairs[i].was, NULL), 0);
		}
		compare_answers(a, b, shape, round);
		codemap_free(a);
		codemap_free(b);
	}
	ck_assert_uint_gt(n_questions, 20000);
}
END_TEST

/* Whatever is told: answers stay consistent, and nothing overlaps. */
START_TEST(test_restore_anything)
{
	uint64_t round, time, end;
	uint32_t i;

	for (round = 1; round <= n_rounds(60); round++) {
		struct codemap *map = new_map(&(struct codemap_options){ .retired_bytes = 500 });
		const struct codemap_body *body;
		struct codemap_info info;

		seed(round);
		copy_clear();
		ck_assert_int_eq(codemap_track(map, true), 0);
		for (i = 0; i < 150; i++) {
			struct codemap_il il[2] = { { draw(5), draw(9) }, { draw(5), draw(9) } };
			int r;

			info = (struct codemap_info){
				.method_id = 1 + draw(3),
				.module_id = draw(3),
				.start = BASE - 20 + draw(24),
				.size = draw(8),
				.load = draw(60),
				.open_past = draw(2),
				.freeable = draw(2),
				.flags = draw(2) ? 0x208 : 0x9,
				.name = { .name = "AB", .name_len = draw(3) },
				.module_path = draw(2) ? "/a.dll" : NULL,
			};
			info.module_path_len = info.module_path ? 5 + draw(2) : 0;
			info.announced = info.load + (info.open_past ? draw(5) : 0) - !draw(30);
			info.unload = draw(3) ? info.announced + draw(20) - !draw(30) : UINT64_MAX;
			r = codemap_restore(map, &info, draw(2) ? il : NULL, draw(3), NULL);
			ck_assert(r == 0 || r == CODEMAP_E_INVALID);
			if (!draw(10))
				codemap_expire(map, 40);
		}
		copy_take(map, 1000);
		copy_compare(map, "anything", round);
		for (i = 0; i < 40; i++) {
			for (time = 0; time < 90; time++) {
				body = codemap_lookup_at(map, BASE - 20 + i, time, NULL);
				if (!body)
					continue;
				codemap_body_info(map, body, &info);
				ck_assert(info.start <= BASE - 20 + i &&
					  BASE - 20 + i < info.start + info.size &&
					  info.load <= time && time < info.unload);
			}
		}
		for (end = 0; (body = codemap_next(map, end)); end = info.start + info.size) {
			codemap_body_info(map, body, &info);
			ck_assert_uint_ge(info.start, end);
		}
		codemap_free(map);
	}
}
END_TEST

/* Records of modules go with their bodies, and one id may have had many. */
START_TEST(test_restore_modules)
{
	struct codemap *map = new_map(NULL);
	struct codemap_info info = {
		.method_id = 1,
		.module_id = 0x1000,
		.start = BASE,
		.size = 64,
		.flags = 0x208,
	}, got;
	struct codemap_stats stats;
	struct codemap_body *body;
	char path[32];
	uint32_t i;

	for (i = 0; i < 2000; i++) {
		info.load = info.announced = 10 + i * 10;
		info.unload = info.load + 10;
		info.module_path = path;
		info.module_path_len = (uint32_t)snprintf(path, sizeof(path), "/m%u.dll", i % 500);
		ck_assert_int_eq(codemap_restore(map, &info, NULL, 0, &body), 0);
		codemap_body_info(map, body, &got);
		ck_assert_uint_eq(got.module_path_len, info.module_path_len);
		ck_assert_int_eq(memcmp(got.module_path, path, info.module_path_len), 0);
	}
	codemap_set_retention(map, 1, 1);
	codemap_expire(map, SEC_NS(1));
	codemap_get_stats(map, &stats);
	ck_assert_uint_eq(stats.retired, 0);
	ck_assert_uint_eq(stats.name_bytes, 0);
	codemap_free(map);
}
END_TEST

static double restore_time(bool load, bool backwards, uint32_t n)
{
	struct codemap *map = new_map(NULL);
	uint64_t begin = clock_now_ns();
	struct codemap_info info;
	char name[32];
	uint32_t i;

	for (i = 0; i < n; i++) {
		uint32_t k = backwards ? n - 1 - i : i;

		if (load) {
			simple_load(map, 1 + k, BASE, 1 + k);
			continue;
		}
		info = (struct codemap_info){
			.method_id = 1 + k,
			.start = BASE,
			.size = 64,
			.load = 1 + k,
			.announced = 1 + k,
			.unload = k + 1 < n ? 2 + k : UINT64_MAX,
			.name = { .name = name },
		};
		info.name.name_len = (uint32_t)snprintf(name, sizeof(name), "M%u", k);
		ck_assert_int_eq(codemap_restore(map, &info, NULL, 0, NULL), 0);
	}
	codemap_free(map);
	return (double)(clock_now_ns() - begin);
}

/* One place that thousands of bodies had, from the last to the first. */
START_TEST(test_restore_churn)
{
	ck_assert(restore_time(false, true, 20000) < 10 * restore_time(true, false, 20000) + 5e7);
}
END_TEST

/* -- The program's beginning ----------------------------------------------------------------------
 */

#define BEGIN 40u

/* One question to a map with a beginning, and to one that was told the same, but nothing earlier.
 */
static void compare_begin(const struct codemap *with, const struct codemap *without, uint64_t addr,
			  uint64_t time, uint64_t round)
{
	enum codemap_miss x, y;
	const struct codemap_body *p = codemap_lookup_at(with, addr, time, &x);
	const struct codemap_body *q = codemap_lookup_at(without, addr, time, &y);
	struct codemap_info i, k;
	bool good;

	if (time < BEGIN) {
		good = !p && x == CODEMAP_MISS_EXPIRED &&
		       !codemap_lookup_at(with, addr, time, NULL);
	} else if (!p || !q) {
		good = p == q && x == y;
	} else {
		codemap_body_info(with, p, &i);
		codemap_body_info(without, q, &k);
		good = i.load == MAX(k.load, (uint64_t)BEGIN) && i.unload == k.unload &&
		       i.announced == k.announced && i.open_past == k.open_past &&
		       i.method_id == k.method_id && i.version == k.version;
	}
	if (!good)
		ck_abort_msg("round %lu: %lx at %lu: %s, else %s", (unsigned long)round,
			     (unsigned long)addr, (unsigned long)time,
			     p ? "a body" : codemap_miss_text(x),
			     q ? "a body" : codemap_miss_text(y));
}

START_TEST(test_begin)
{
	struct shape shape = { .base = BASE - 20, .span = 30, .scale = 1, .late = 12, .still = 4 };
	uint64_t round, time;
	uint32_t i, k;

	shape.no_gaps = true;
	for (round = 1; round <= n_rounds(40); round++) {
		struct codemap *with = new_map(NULL), *without = new_map(NULL);

		codemap_set_begin(with, BEGIN);
		for (k = 0; k < 2; k++) {
			seed(round);
			now = 20; /* some of it is from before */
			shape.earliest = k ? BEGIN : 0;
			for (i = 0; i < 100; i++)
				random_event(k ? without : with, &shape);
		}
		codemap_set_begin(with, BEGIN + 30); /* too late */
		for (i = 0; i < shape.span; i++)
			for (time = 0; time < now + 3; time++)
				compare_begin(with, without, shape.base + i, time, round);
		codemap_free(with);
		codemap_free(without);
	}
}
END_TEST

/* The usual first rundown: nothing is kept of a body for it. */
START_TEST(test_begin_memory)
{
	struct codemap_stats stats[2];
	uint32_t k, i;

	for (k = 0; k < 2; k++) {
		struct codemap *map = new_map(NULL);
		struct codemap_load load = { .method_id = 1, .size = 64 };

		if (k)
			codemap_set_begin(map, 500);
		for (i = 0; i < 5000; i++) {
			load.start = BASE + i * 64;
			load.time = 1000 + i;
			ck_assert_int_eq(codemap_rundown(map, &load, NULL), 0);
		}
		ck_assert_int_eq(!codemap_lookup_at(map, BASE, 499, NULL), k);
		ck_assert_ptr_nonnull(codemap_lookup_at(map, BASE, 500, NULL));
		codemap_get_stats(map, &stats[k]);
		codemap_free(map);
	}
	/* but for how malloc rounds */
	ck_assert_uint_lt(stats[1].bytes, stats[0].bytes + 500);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("changes");
	TCase *copies = tcase_create("copies"), *restored = tcase_create("restored");
	SRunner *runner;
	int failed;

	tcase_set_timeout(copies, 600);
	tcase_set_timeout(restored, 600);
	tcase_add_loop_test(copies, test_copy, 0, ARRAY_SIZE(shapes));
	tcase_add_test(copies, test_copy_many);
	tcase_add_test(copies, test_track);
	tcase_add_test(copies, test_track_split);
	tcase_add_loop_test(restored, test_restore, 0, ARRAY_SIZE(shapes));
	tcase_add_test(restored, test_restore_anything);
	tcase_add_test(restored, test_restore_modules);
	tcase_add_test(restored, test_restore_churn);
	tcase_add_test(restored, test_begin);
	tcase_add_test(restored, test_begin_memory);
	suite_add_tcase(s, copies);
	suite_add_tcase(s, restored);
	runner = srunner_create(s);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
