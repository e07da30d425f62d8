/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each allocation of a busy history fails in turn.
 *
 * Wherever it was, the call either did all that it was asked to or says -ENOMEM and has
 * changed no answer; the map goes on, and at the end nothing leaks (run with SAN=1).
 * History may be lost to a failure, but is never wrong: see check_answers(). A copy that is kept
 * through the notes of changes stays right, or is told to begin anew; a map that is put together
 * again from another has what it could get memory for.
 */
#include "codemap/codemap.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/caps.h"
#include "base/hash.h"
#include "codemap/mapfile.h"

void torture_arm(unsigned long n);
unsigned long torture_count(void);

#define BASE    (0x7f0000010000u - 512)
#define N_ADDRS 40u
#define STEP    64u
#define N_TIMES 30u

static unsigned long failing; /* which allocation */

static void check(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "torture_codemap: allocation %lu: %s\n", failing, what);
	exit(EXIT_FAILURE);
}

/* Everything that can be asked. */
static uint64_t digest(const struct codemap *map)
{
	uint64_t h = 1, time, answer[8];
	const struct codemap_body *body;
	enum codemap_miss miss;
	uint32_t i;

	for (time = 0; time < N_TIMES; time++) {
		for (i = 0; i < N_ADDRS; i++) {
			struct codemap_info info = { 0 };

			body = codemap_lookup_at(map, BASE + i * STEP, time * 100, &miss);
			if (body)
				codemap_body_info(map, body, &info);
			memset(answer, 0, sizeof(answer));
			answer[0] = miss;
			answer[1] = info.start;
			answer[2] = info.load;
			answer[3] = info.unload;
			answer[4] = info.size;
			answer[5] = info.method_id;
			answer[6] = body && codemap_has_il(map, body);
			answer[7] = info.name.name_len ? (uint8_t)info.name.name[0] : 0;
			h = hash_bytes(h, answer, sizeof(answer));
		}
	}
	return h;
}

static void check_answers(const struct codemap *map)
{
	const struct codemap_body *body;
	struct codemap_stats stats;
	struct codemap_info info;
	uint64_t time, end = 0;
	size_t n = 0;
	uint32_t i;

	for (time = 0; time < N_TIMES; time++) {
		for (i = 0; i < N_ADDRS; i++) {
			body = codemap_lookup_at(map, BASE + i * STEP, time * 100, NULL);
			if (!body)
				continue;
			codemap_body_info(map, body, &info);
			check(info.start <= BASE + i * STEP &&
				      BASE + i * STEP - info.start < info.size,
			      "answer elsewhere");
			check(info.load <= time * 100 && time * 100 < info.unload,
			      "answer at another time");
			/* names say their method: "m1" */
			check(!info.name.name_len || info.name.name[1] - '0' == (int)info.method_id,
			      "another's name");
		}
	}
	for (body = codemap_next(map, 0); body; body = codemap_next(map, end)) {
		codemap_body_info(map, body, &info);
		check(info.start >= end, "live bodies overlap");
		end = info.start + info.size;
		n++;
	}
	codemap_get_stats(map, &stats);
	check(stats.live == n, "count of live bodies");
}

enum op { LOAD, SEEN, UNLOAD, UNLOAD_MODULE, MODULE, IL, N_OPS };

static int perform(struct codemap *map, enum op op, uint32_t i)
{
	struct codemap_il il[] = { { 0, i }, { 5, i * 1000 }, { 10 + i, 7 } };
	char name[64], ns[300];
	struct codemap_load load = {
		.method_id = 1 + i % 7,
		.module_id = 1 + i % 3,
		.version = i % 2,
		.start = BASE + i * 5 % N_ADDRS * STEP,
		.size = STEP * (1 + i % 4),
		.flags = i % 5 ? 0x208 : 0x100,
		.ns = ns,
		.ns_len = 100 + i % 170,
		.name = name,
	};

	load.name_len =
		(uint32_t)sprintf(name, "m%u_%u_%.*s", (unsigned int)load.method_id, i / 40,
				  (int)(i % 40), "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqr");
	memset(ns, 'N', sizeof(ns));
	if (i % 11 == 0)
		load.ns_len = load.name_len = 0;
	/* mostly forward, and every third event comes late */
	load.time = i * 20 + 500 - (i % 3 == 2) * 170;
	switch (op) {
	case LOAD: return codemap_load(map, &load, NULL);
	case SEEN: return codemap_rundown(map, &load, NULL);
	case UNLOAD: return codemap_unload(map, load.method_id, load.start, load.time);
	case UNLOAD_MODULE: return codemap_module_unload(map, load.module_id, load.time);
	case MODULE: return codemap_module(map, load.module_id, i, ns, load.ns_len, load.time);
	default:
		return codemap_il_map(map, load.method_id, load.version, load.time, il,
				      ARRAY_SIZE(il));
	}
}

static void write_map(const struct codemap *map)
{
	struct codemap_map_options opts = { .style = NAMES_FULL, .tiers = true };
	_cleanup_map_writer_ struct codemap_map_writer w;
	_cleanup_buf_ struct buf out;
	int r;

	buf_init(&out, MIB(1));
	codemap_map_writer_init(&w, &opts);
	while (!w.done) {
		size_t before = out.len;

		r = codemap_map_writer_step(&w, map, &out, 500);
		check(r == 0 || r == -ENOMEM, "map writer's code");
		check(out.len == 0 || out.data[out.len - 1] == '\n', "half a line");
		check(w.bytes == out.len, "lines and their count");
		if (r < 0) {
			/* the same step again */
			check(out.len >= before, "lines taken back");
			out.error = 0;
		}
	}
}

/* -- A copy of what codemap_body_life() tells ------------------------------------------------- */

#define MAX_SLOTS 1024u

static struct {
	struct codemap_info slots[MAX_SLOTS]; /* size 0: none */
	unsigned long begun_anew;
} copy;

static int copy_slot(void *data, uint32_t slot, unsigned int what, const struct codemap_body *body)
{
	const struct codemap *map = data;

	(void)what;
	copy.slots[slot] = (struct codemap_info){ 0 };
	if (body)
		codemap_body_life(map, body, &copy.slots[slot]);
	return 0;
}

static void check_copy(struct codemap *map)
{
	bool more, resync;
	uint32_t slot;

	check(codemap_take_changes(map, SIZE_MAX, copy_slot, map, &more, &resync) == 0 && !more,
	      "changes");
	for (slot = 0; slot < codemap_n_slots(map); slot++) {
		const struct codemap_body *body = codemap_slot(map, slot);
		struct codemap_info info = { 0 };

		if (resync)
			copy_slot(map, slot, 0, body);
		if (body)
			codemap_body_life(map, body, &info);
		check(memcmp(&info, &copy.slots[slot], sizeof(info)) == 0, "the copy differs");
	}
	copy.begun_anew += resync;
}

static void restore(struct codemap *from)
{
	_cleanup_(codemap_freep) struct codemap *map = NULL;
	uint32_t slot;

	if (codemap_new(&map, NULL) < 0)
		return;
	for (slot = 0; slot < codemap_n_slots(from); slot++) {
		const struct codemap_body *body = codemap_slot(from, slot);
		const struct codemap_il *il = NULL;
		struct codemap_info info;
		size_t n_il = 0;
		int r;

		if (!body)
			continue;
		codemap_body_info(from, body, &info);
		r = codemap_il_entries(from, body, &il, &n_il);
		check(r == 0 || r == -ENOMEM || r == CODEMAP_E_NONE, "codemap_il_entries");
		r = codemap_restore(map, &info, il, n_il, NULL);
		check(r == 0 || r == -ENOMEM, "codemap_restore");
		if (slot % 3 == 0) /* and where it meets another */
			info.start += STEP / 2;
		(void)codemap_restore(map, &info, il, n_il, NULL);
	}
	check_answers(map);
}

static uint64_t n_expired(const struct codemap *map)
{
	struct codemap_stats stats;

	codemap_get_stats(map, &stats);
	return stats.expired;
}

static void scenario(void)
{
	static const enum op ops[] = { LOAD, IL, LOAD, SEEN, LOAD,   UNLOAD, MODULE,
				       LOAD, IL, SEEN, LOAD, UNLOAD, LOAD,   UNLOAD_MODULE };
	struct codemap_options opts = { .retired_bytes = 4000 };
	_cleanup_(codemap_freep) struct codemap *map = NULL;
	bool tracked;
	uint32_t i;
	int r;

	r = codemap_new(&map, &opts);
	check(r == 0 ? map != NULL : r == -ENOMEM && !map, "codemap_new");
	if (r < 0)
		return;
	memset(copy.slots, 0, sizeof(copy.slots));
	r = codemap_track(map, true);
	check(r == 0 || r == -ENOMEM, "codemap_track");
	tracked = r == 0;
	for (i = 0; i < 120; i++) {
		unsigned long allocations = torture_count();
		/* after the one that fails no other does */
		uint64_t before = allocations < failing ? digest(map) : 0;
		enum op op = ops[i * 7 % ARRAY_SIZE(ops)];
		uint64_t expired = n_expired(map);

		r = perform(map, op, i);
		check(r >= 0 || r == -ENOMEM, "code");
		check(op != UNLOAD || r == 0, "an unload can always be");
		check(r != -ENOMEM || (allocations < failing && torture_count() >= failing),
		      "-ENOMEM without a reason");
		/* what is due is forgotten all the same */
		if (r == -ENOMEM && n_expired(map) == expired)
			check(digest(map) == before, "-ENOMEM, and something changed");
		if (i % 20 == 0)
			check_answers(map);
		if (tracked && i % 5 == 0)
			check_copy(map);
		if (i == 100)
			codemap_gap(map, 1000, 1100);
	}
	check_answers(map);
	write_map(map);
	restore(map);
	codemap_expire(map, SEC_NS(100000));
	codemap_expire(map, SEC_NS(100000));
	check_answers(map);
}

int main(void)
{
	/* the seed is drawn once: not a matter of this test */
	hash_seed();
	for (failing = 1;; failing++) {
		torture_arm(failing);
		scenario();
		if (torture_count() < failing)
			break;
	}
	torture_arm(0);
	check(copy.begun_anew, "no note was ever lost");
	printf("torture_codemap: %lu allocations\n", failing - 1);
	return 0;
}
