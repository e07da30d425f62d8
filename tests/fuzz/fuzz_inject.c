/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recording from anywhere, with names put in.
 *
 * The code map is made from the recording's own samples: bodies where they are, some of them gone
 * again later, so that mappings, overlays and epochs come into play whatever the bytes are. Held
 * besides memory safety: no failure of our own; and what was written can be read again to its
 * end, with the records that went in and those that were inserted.
 */
#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "inject/inject.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_BODIES 200u

static void check(bool good)
{
	if (!good)
		abort();
}

static int file_of(const uint8_t *data, size_t size)
{
	int fd = memfd_create("input", MFD_CLOEXEC);

	check(fd >= 0 && (size == 0 || write(fd, data, size) == (ssize_t)size));
	return fd;
}

/* How many records; -1 when the end cannot be reached. */
static long walk(struct perfdata *p, struct codemap *map)
{
	struct perfdata_record rec;
	uint64_t last = 0;
	long n = 0, bodies = 0;
	int r;

	check(perfdata_rewind(p) >= 0);
	while ((r = perfdata_next(p, &rec)) == 0) {
		struct perfdata_sample s;
		struct codemap_load load = {
			.size = 64, .module_id = 1, .name = "m", .name_len = 1
		};

		n++;
		if (!map || rec.type != PERFDATA_SAMPLE || bodies == MAX_BODIES ||
		    perfdata_parse_sample(p, &rec, &s) || !s.ip)
			continue;
		load.method_id = (uint64_t)++bodies;
		load.start = s.ip & ~UINT64_C(63);
		load.time = s.id.time;
		load.flags = s.ip & 2 ? 0x208 : 0;
		check(codemap_load(map, &load, NULL) >= 0);
		if (s.ip & 4)
			codemap_unload(map, load.method_id, load.start, load.time + last % 1000);
		last = s.ip;
	}
	check(r > 0);
	return r == PERFDATA_E_END ? n : -1;
}

static uint64_t same_clock(void *clock, uint64_t ns)
{
	(void)clock;
	return ns;
}

static const uint8_t *bytes_of(void *data, const struct codemap_info *info)
{
	static const uint8_t code[64] = { 0x55, 0xc3 };

	(void)data;
	return info->size == sizeof(code) && info->start & 64 ? code : NULL;
}

static int run(struct inject *inj, struct perfdata *p, const struct codemap *map, int out)
{
	_cleanup_(perfdata_writer_freep) struct perfdata_writer *w = NULL;
	size_t i;
	int r;

	r = inject_scan(inj, p);
	if (r)
		return r;
	check(inject_scanned(inj) == 0);
	for (i = 0; i < inject_n_programs(inj) && i < 8; i++) {
		struct inject_code code = {
			.map = map,
			.machine = EM_X86_64,
			.bytes = bytes_of,
			.to_file_ns = i % 4 == 3 ? NULL : same_clock,
			.to_map_ns = i % 4 == 3 ? NULL : same_clock,
		};

		inject_set_code(inj, i, &code);
	}
	check(inject_plan(inj) == 0);
	r = perfdata_writer_new(&w, p, out);
	if (r == 0)
		r = inject_rewrite(inj, p, w);
	return r ? r : perfdata_writer_finish(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct inject_options opts = {
		.all_bodies = size % 3 == 0,
		.image_dir = size % 5 == 0 ? "/images" : NULL,
		.map_only = size % 17 == 0,
	};
	_cleanup_(perfdata_freep) struct perfdata *p = NULL, *again = NULL;
	_cleanup_(codemap_freep) struct codemap *map = NULL;
	_cleanup_(inject_freep) struct inject *inj = NULL;
	_cleanup_close_ int in = file_of(data, size), out = memfd_create("output", MFD_CLOEXEC);
	struct inject_stats stats;
	long n;
	int r;

	r = perfdata_open(&p, in, NULL);
	check(r >= 0);
	if (r)
		return 0;
	check(codemap_new(&map, NULL) == 0 && inject_new(&inj, &opts) == 0);
	n = walk(p, map);
	r = run(inj, p, map, out);
	check(r >= 0 && (n >= 0 || r > 0));
	if (r)
		return 0;
	inject_get_stats(inj, &stats);
	check(perfdata_open(&again, out, NULL) == 0);
	check(walk(again, NULL) == n + (long)stats.inserted);
	return 0;
}
