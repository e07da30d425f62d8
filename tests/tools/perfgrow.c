/* SPDX-License-Identifier: Apache-2.0 */
/*
 * perfgrow: a recording made larger, for benches.
 *
 *   perfgrow IN OUT SAMPLES
 *
 * Repeats the samples of IN, evenly, until OUT has that many; everything else is copied.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "perfdata/perfdata.h"

static int fail(const char *what, const struct perfdata *p, int r)
{
	fprintf(stderr, "perfgrow: %s: %s\n", what,
		r < 0 ? strerror(-r) : perfdata_error_text(p, r));
	return 1;
}

static int count(struct perfdata *p, uint64_t *np)
{
	struct perfdata_record rec;
	int r;

	*np = 0;
	while ((r = perfdata_next(p, &rec)) == 0)
		*np += rec.type == PERFDATA_SAMPLE;
	return r == PERFDATA_E_END ? perfdata_rewind(p) : r;
}

static int grow(struct perfdata *p, struct perfdata_writer *w, uint64_t have, uint64_t want)
{
	struct perfdata_record rec;
	uint64_t seen = 0, written = 0;
	int r;

	while ((r = perfdata_next(p, &rec)) == 0) {
		if (rec.type != PERFDATA_SAMPLE) {
			r = perfdata_write_record(w, &rec);
			if (r)
				return r;
			continue;
		}
		for (seen++; written < want * seen / have; written++) {
			r = perfdata_write_record(w, &rec);
			if (r)
				return r;
		}
	}
	return r == PERFDATA_E_END ? perfdata_writer_finish(w) : r;
}

int main(int argc, char **argv)
{
	_cleanup_(perfdata_writer_freep) struct perfdata_writer *w = NULL;
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	_cleanup_close_ int in = -1, out = -1;
	uint64_t have, want;
	int r;

	if (argc != 4 || !parse_u64(argv[3], UINT32_MAX, &want))
		return 2;
	in = open(argv[1], O_RDONLY | O_CLOEXEC);
	out = open(argv[2], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (in < 0 || out < 0)
		return fail(argv[1], NULL, -errno);
	r = perfdata_open(&p, in, NULL);
	if (r == 0)
		r = count(p, &have);
	if (r)
		return fail(argv[1], p, r);
	if (!have)
		return fail(argv[1], p, -ENODATA);
	r = perfdata_writer_new(&w, p, out);
	if (r == 0)
		r = grow(p, w, have, want);
	return r ? fail(argv[2], p, r) : 0;
}
