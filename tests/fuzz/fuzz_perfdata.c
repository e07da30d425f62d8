/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile perf.data through reader, parsers, editor and writer.
 *
 * Held besides memory safety: the bytes cause no failure of our own; two walks give the same
 * records; and what the writer has made of a file that could be read to its end can be read to its
 * end, too, with as many records as it was given. Inputs are plain files, so recordings are seeds.
 */
#include <string.h>
#include <sys/mman.h>

#include "base/hash.h"
#include "perfdata/perfdata.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A small input can hold a lot when compressed; each of them is to be quick. */
#define MAX_RECORDS 20000u

struct walk {
	uint64_t n, digest;
};

static void check(bool good)
{
	if (!good)
		abort();
}

static int memory_file(void)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	check(fd >= 0);
	return fd;
}

static void walk_mmap(struct walk *walk, const struct perfdata *p,
		      const struct perfdata_record *rec)
{
	static uint8_t out[PERFDATA_MAX_RECORD];
	struct perfdata_edit edit = { .addr = 1, .len = 2, .pid = 3, .time = 4, .build_id = out };
	struct perfdata_record edited = { .type = PERFDATA_MMAP2, .bytes = out };
	struct perfdata_mmap m, again;
	size_t n;

	if (perfdata_parse_mmap(p, rec, &m))
		return;
	check(strlen(m.name) == m.name_len && m.name_len < m.name_room);
	walk->digest = hash_bytes(walk->digest, m.name, m.name_len);
	if (m.inode)
		walk->digest = hash_bytes(walk->digest, m.inode, 24);
	n = perfdata_edit_mmap(p, rec, &edit, out);
	if (!n)
		return;
	check(n <= PERFDATA_MAX_RECORD);
	edited.size = (uint16_t)n;
	check(!perfdata_parse_mmap(p, &edited, &again));
	check(again.name_len == m.name_len && !memcmp(again.name, m.name, m.name_len));
}

static void walk_record(struct walk *walk, const struct perfdata *p,
			const struct perfdata_record *rec)
{
	struct perfdata_sample s;
	struct perfdata_task t;
	struct perfdata_id id;

	walk->n++;
	walk->digest = hash_bytes(walk->digest, rec->bytes, rec->size);
	check(rec->payload <= perfdata_size(p));
	check(perfdata_parse_id(p, rec, &id) >= 0);
	switch (rec->type) {
	case PERFDATA_SAMPLE:
		if (!perfdata_parse_sample(p, rec, &s) && s.chain)
			walk->digest = hash_bytes(walk->digest, s.chain, 8 * (size_t)s.n_chain);
		break;
	case PERFDATA_MMAP:
	case PERFDATA_MMAP2: walk_mmap(walk, p, rec); break;
	case PERFDATA_COMM:
	case PERFDATA_FORK:
	case PERFDATA_EXIT: check(perfdata_parse_task(p, rec, &t) >= 0); break;
	}
}

/* Returns perfdata_next()'s code, or 0 if there were too many records. */
static int walk_all(struct walk *walk, struct perfdata *p, struct perfdata_writer *w)
{
	struct perfdata_record rec;
	int r;

	*walk = (struct walk){ 0 };
	while (walk->n < MAX_RECORDS) {
		r = perfdata_next(p, &rec);
		check(r >= 0);
		if (r) {
			check(*perfdata_error_text(p, r));
			check(perfdata_next(p, &rec) == r);
			return r;
		}
		walk_record(walk, p, &rec);
		if (w)
			check(!perfdata_write_record(w, &rec));
		/* a changed size: everything behind it moves */
		if (w && rec.type == PERFDATA_COMM)
			check(!perfdata_write_bytes(w, rec.bytes, rec.size));
	}
	return 0;
}

static void reread(int fd, uint64_t n)
{
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	struct perfdata_record rec;
	int r;

	check(!perfdata_open(&p, fd, NULL));
	while (!(r = perfdata_next(p, &rec)))
		n--;
	check(r == PERFDATA_E_END && !n);
}

static void run(int fd, const struct perfdata *part_of)
{
	_cleanup_(perfdata_writer_freep) struct perfdata_writer *w = NULL;
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	_cleanup_close_ int out = memory_file();
	struct perfdata_clock clock;
	struct walk first, second;
	struct perfdata_record rec;
	uint64_t n = 0;
	int r;

	r = perfdata_open(&p, fd, part_of);
	check(r >= 0 && p);
	check(!r || *perfdata_error_text(p, r));
	if (r)
		return;
	r = walk_all(&first, p, NULL);
	perfdata_get_clock(p, &clock);
	if (perfdata_hostname(p))
		check(strlen(perfdata_hostname(p)) <= perfdata_size(p));
	check(!perfdata_rewind(p));
	check(!perfdata_writer_new(&w, p, out));
	check(walk_all(&second, p, w) == r);
	check(first.n == second.n);
	if (r != PERFDATA_E_END)
		return;
	r = perfdata_writer_finish(w);
	check(!r || (r > 0 && !second.n));
	if (r || part_of)
		return;
	check(!perfdata_rewind(p));
	while (!perfdata_next(p, &rec))
		n += 1 + (rec.type == PERFDATA_COMM);
	reread(out, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_cleanup_(perfdata_freep) struct perfdata *directory = NULL;
	_cleanup_close_ int fd = memory_file();

	check(pwrite(fd, data, size, 0) == (ssize_t)size);
	run(fd, NULL);
	/* the same bytes as a part of themselves: a walk from offset 0 */
	if (!perfdata_open(&directory, fd, NULL))
		run(fd, directory);
	return 0;
}
