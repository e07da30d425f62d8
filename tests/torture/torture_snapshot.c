/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each allocation of a snapshot's writer and reader fails in turn: the answer is -ENOMEM, nothing
 * has changed for who reads, the same call succeeds when there is memory again, and nothing leaks.
 */
#include <errno.h>
#include <string.h>

#include "query/snapshot.h"

#define BASE UINT64_C(0x7f0000000000)
/* More names than the first table of them holds, and more bodies of a page than a line does. */
#define N_BODIES 900u
#define SIZE     100u

void torture_arm(unsigned long n);
unsigned long torture_count(void);

static void check(bool good, const char *what, unsigned long n)
{
	if (good)
		return;
	fprintf(stderr, "torture_snapshot: allocation %lu: %s\n", n, what);
	exit(EXIT_FAILURE);
}

static int put(struct snapshot_writer *w, uint32_t slot)
{
	static const uint32_t il[40];
	char name[64];
	struct range_body body = {
		.range = { .start = BASE + slot * SIZE, .size = SIZE, .unload = RANGE_ALIVE },
		.function = name,
		.il = il,
		.n_il = 1 + slot % 20,
	};

	body.function_len = (uint32_t)snprintf(name, sizeof(name), "N.C::method%u%.*s", slot,
					       (int)(slot % 30), "..............................");
	return snapshot_put(w, slot, &body);
}

/* Those below `until` are there, alive below `retired` no more, and nothing else is. */
static void check_content(const struct snapshot_writer *w, const struct snapshot *s, uint32_t until,
			  uint32_t retired, unsigned long n)
{
	struct snapshot_stats stats;
	struct snapshot_found found;
	char name[64];
	uint32_t i;
	int r;

	snapshot_get_stats(w, &stats);
	check(stats.ranges == until && stats.live == until - retired, "counts", n);
	for (i = 0; i < N_BODIES; i++) {
		r = snapshot_lookup(s, BASE + i * SIZE, i < retired ? 5 : 0, &found, NULL);
		check(r == (i < until ? 0 : SNAPSHOT_E_NONE), "not what was there", n);
		if (!r)
			check(!snapshot_name(s, &found, name, sizeof(name), NULL, NULL, 0) &&
				      !strncmp(name, "N.C::method", 11),
			      "name", n);
	}
}

static int scenario(unsigned long n, bool again)
{
	static const struct snapshot_identity identity = { .pid = 1 };
	_cleanup_(snapshot_writer_freep) struct snapshot_writer *w = NULL;
	_cleanup_(snapshot_freep) struct snapshot *s = NULL;
	int r, first = 0;
	uint32_t i;

	r = snapshot_writer_new(&w, &identity, 0);
	check(!r == !!w, "writer", n);
	if (r)
		return r;
	r = snapshot_open(&s, snapshot_writer_fd(w));
	check(!r == !!s, "reader", n);
	if (r)
		return r;
	for (i = 0; i < N_BODIES; i++) {
		r = put(w, i);
		if (r) {
			check_content(w, s, i, 0, n);
			first = r;
			if (!again)
				return r;
			check(!put(w, i), "fails again", n);
		}
	}
	for (i = 0; i < 60; i++) {
		r = snapshot_retire(w, i, 10);
		if (r) {
			check_content(w, s, N_BODIES, i, n);
			first = r;
			check(!snapshot_retire(w, i, 10), "fails again", n);
		}
	}
	check_content(w, s, N_BODIES, 60, n);
	for (i = 0; i < N_BODIES; i++)
		snapshot_remove(w, i);
	check_content(w, s, 0, 0, n);
	return first;
}

int main(void)
{
	unsigned long n, most;
	int r;

	for (n = 1;; n++) {
		torture_arm(n);
		r = scenario(n, n % 2);
		if (!r)
			break;
		check(r == -ENOMEM, "not -ENOMEM", n);
	}
	torture_arm(0);
	/* as many failures as there are allocations: none was passed over */
	check(!scenario(n, false), "fails unarmed", n);
	most = torture_count();
	check(n - 1 == most && most >= 15, "not all have failed", n);
	printf("%lu allocations\n", most);
	return EXIT_SUCCESS;
}
