/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recordings through inject: each allocation failing in turn, and damaged: cut at every record
 * boundary (and inside), 10,000 random mutations. No crash, no failure of our own; what is written
 * is whole. The check of one recording is that of the fuzz target.
 */
#include <errno.h>
#include <stdio.h>

#include "tests/fuzz/fuzz_inject.c"
#include "tests/torture/damage.h"

#define N_MUTATIONS 10000u /* INJECT_MUTATIONS: another number */

static unsigned int cut(const uint8_t *bytes, size_t size)
{
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	_cleanup_close_ int fd = file_of(bytes, size);
	struct perfdata_record rec;
	unsigned int n = 0;

	check(perfdata_open(&p, fd, NULL) == 0);
	while (perfdata_next(p, &rec) == 0) {
		LLVMFuzzerTestOneInput(bytes, rec.offset);
		LLVMFuzzerTestOneInput(bytes, rec.offset + 4);
		n += 2;
	}
	return n;
}

static void mutate(const uint8_t *bytes, size_t size, unsigned int times)
{
	_cleanup_free_ uint8_t *copy = malloc(size);

	check(copy != NULL);
	while (times--) {
		uint64_t n = 1 + draw(4);

		memcpy(copy, bytes, size);
		while (n--)
			copy[draw(size)] = draw(3) ? (uint8_t)draw(256) : (uint8_t)(draw(2) * 255);
		LLVMFuzzerTestOneInput(copy, size);
	}
}

/* -- allocations ---------------------------------------------------------------------- */

void torture_arm(unsigned long n);
unsigned long torture_count(void);

static int inject_once(struct perfdata *p, const struct codemap *map, int out)
{
	_cleanup_(perfdata_writer_freep) struct perfdata_writer *w = NULL;
	_cleanup_(inject_freep) struct inject *inj = NULL;
	static const struct inject_options opts = { .all_bodies = true };
	size_t i;
	int r;

	r = inject_new(&inj, &opts);
	if (r == 0)
		r = inject_scan(inj, p);
	if (r == 0)
		r = inject_scanned(inj);
	for (i = 0; r == 0 && i < inject_n_programs(inj); i++) {
		struct inject_code code = {
			.map = map,
			.machine = EM_X86_64,
			.bytes = bytes_of,
			.to_file_ns = same_clock,
			.to_map_ns = same_clock,
		};

		inject_set_code(inj, i, &code);
	}
	if (r == 0)
		r = inject_plan(inj);
	if (r == 0)
		r = perfdata_writer_new(&w, p, out);
	if (r == 0)
		r = inject_rewrite(inj, p, w);
	return r ? r : perfdata_writer_finish(w);
}

static unsigned long allocations(const uint8_t *bytes, size_t size)
{
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	_cleanup_(codemap_freep) struct codemap *map = NULL;
	_cleanup_close_ int in = file_of(bytes, size);
	unsigned long n, count;
	int r;

	check(perfdata_open(&p, in, NULL) == 0 && codemap_new(&map, NULL) == 0);
	check(walk(p, map) > 0);
	for (n = 1;; n++) {
		_cleanup_close_ int out = memfd_create("output", MFD_CLOEXEC);

		torture_arm(n);
		r = inject_once(p, map, out);
		count = torture_count();
		torture_arm(0);
		check(r == 0 || r == -ENOMEM);
		if (count < n)
			break; /* it was not reached */
		check(r == -ENOMEM);
	}
	check(r == 0);
	return n - 1;
}

int main(void)
{
	static const char *const names[] = {
		"managed.data", "plain.data", "chains.data",     "buildid.data", "everywhere.data",
		"mixed.data",   "pipe.data",  "compressed.data", "thread.data",  "mono.data",
	};
	const char *top = getenv("CLRSYM_PERFDATA"), *more = getenv("INJECT_MUTATIONS");
	unsigned long failed = 0;
	unsigned int cuts = 0, mutations = more ? (unsigned int)atol(more) : N_MUTATIONS;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(names); i++) {
		_cleanup_free_ uint8_t *bytes = NULL;
		char path[512];
		size_t size;

		snprintf(path, sizeof(path), "%s/%s", top ? top : "tests/fixtures/perfdata",
			 names[i]);
		bytes = read_all(path, &size);
		if (!bytes) {
			printf("torture_inject: cannot read %s\n", path);
			return 1;
		}
		LLVMFuzzerTestOneInput(bytes, size);
		failed += allocations(bytes, size);
		cuts += cut(bytes, size);
		mutate(bytes, size, mutations / (unsigned int)ARRAY_SIZE(names));
	}
	printf("torture_inject: %lu allocations, %u cuts, %u mutations\n", failed, cuts, mutations);
	return 0;
}
