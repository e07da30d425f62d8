/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real recordings (tests/fixtures/perfdata) against what perf itself reads in them (golden.txt),
 * and files made here by hand for what perf does not record on every machine.
 */
#include "perfdata/perfdata.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <zstd.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/hash.h"

#define FIXTURES "tests/fixtures/perfdata/"

/* -- Bytes and files ------------------------------------------------------------------ */

static uint32_t le32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static uint64_t le64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static void set64(struct buf *b, size_t at, uint64_t v)
{
	ck_assert_uint_le(at + 8, b->len);
	memcpy(b->data + at, &v, sizeof(v));
}

static int memory_file(void)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	return fd;
}

static int file_of(const struct buf *b)
{
	int fd = memory_file();

	ck_assert_int_eq(b->error, 0);
	ck_assert_int_eq(pwrite(fd, b->data, b->len, 0), (ssize_t)b->len);
	return fd;
}

static void read_fd(int fd, struct buf *b)
{
	struct stat st;

	ck_assert_int_eq(fstat(fd, &st), 0);
	buf_init(b, SIZE_MAX);
	ck_assert_int_eq(buf_reserve(b, (size_t)st.st_size), 0);
	ck_assert_int_eq(pread(fd, b->data, (size_t)st.st_size, 0), st.st_size);
	b->len = (size_t)st.st_size;
}

static int open_fixture(const char *name)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), FIXTURES "%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
	return fd;
}

static void read_fixture(const char *name, struct buf *b)
{
	_cleanup_close_ int fd = open_fixture(name);

	read_fd(fd, b);
}

static struct perfdata *open_good(int fd, const struct perfdata *part_of)
{
	struct perfdata *p;
	int r = perfdata_open(&p, fd, part_of);

	ck_assert_msg(!r, "%s", p ? perfdata_error_text(p, r) : strerror(-r));
	return p;
}

/* -- What is in a file ---------------------------------------------------------------- */

enum { SAMPLES = 0, CHAINS = 6, MAPS = 8, COMMS = 14, FORKS, EXITS, N_SUMS };

struct sums {
	uint64_t v[N_SUMS]; /* as in golden.txt */
	uint64_t n_records;
	uint64_t digest; /* of all bytes of all records */
};

static void sum_sample(struct sums *sums, const struct perfdata_sample *s)
{
	uint64_t add[] = { 1, s->id.time, s->id.pid, s->id.tid, s->ip, s->user }, i;

	for (i = 0; i < ARRAY_SIZE(add); i++)
		sums->v[SAMPLES + i] += add[i];
	for (i = 0; i < s->n_chain; i++)
		sums->v[CHAINS] += le64(s->chain + 8 * i);
	sums->v[CHAINS + 1] += s->n_chain;
}

static void sum_map(struct sums *sums, const struct perfdata_mmap *m)
{
	uint64_t add[] = { 1, m->id.time, m->pid, m->addr, m->len, m->pgoff }, i;

	for (i = 0; i < ARRAY_SIZE(add); i++)
		sums->v[MAPS + i] += add[i];
	ck_assert_uint_eq(strlen(m->name), m->name_len);
	ck_assert_uint_lt(m->name_len, m->name_room);
}

static void check_id(const struct perfdata_id *a, const struct perfdata_id *b)
{
	ck_assert_uint_eq(a->pid, b->pid);
	ck_assert_uint_eq(a->tid, b->tid);
	ck_assert_uint_eq(a->time, b->time);
	ck_assert_int_eq(a->has_time, b->has_time);
}

static void sum_record(struct sums *sums, const struct perfdata *p,
		       const struct perfdata_record *rec)
{
	struct perfdata_sample s;
	struct perfdata_mmap m;
	struct perfdata_task t;
	struct perfdata_id id;

	sums->n_records++;
	sums->digest = hash_bytes(sums->digest, rec->bytes, rec->size);
	ck_assert_int_eq(perfdata_parse_id(p, rec, &id), 0);
	switch (rec->type) {
	case PERFDATA_SAMPLE:
		ck_assert_int_eq(perfdata_parse_sample(p, rec, &s), 0);
		check_id(&s.id, &id);
		sum_sample(sums, &s);
		break;
	case PERFDATA_MMAP:
	case PERFDATA_MMAP2:
		ck_assert_int_eq(perfdata_parse_mmap(p, rec, &m), 0);
		check_id(&m.id, &id);
		sum_map(sums, &m);
		break;
	case PERFDATA_COMM:
	case PERFDATA_FORK:
	case PERFDATA_EXIT:
		ck_assert_int_eq(perfdata_parse_task(p, rec, &t), 0);
		/* the kernel takes the time of a FORK or EXIT twice, one shortly after the other */
		if (rec->type == PERFDATA_COMM)
			ck_assert_uint_eq(t.time, id.time);
		else if (id.has_time)
			ck_assert_uint_lt(t.time - id.time, 1000000);
		sums->v[rec->type == PERFDATA_COMM   ? COMMS
			: rec->type == PERFDATA_FORK ? FORKS
						     : EXITS]++;
		break;
	}
}

/* From the record the walk has come to, to the end. */
static void sum_walk(struct sums *sums, struct perfdata *p)
{
	struct perfdata_record rec;
	int r;

	while (!(r = perfdata_next(p, &rec)))
		sum_record(sums, p, &rec);
	ck_assert_msg(r == PERFDATA_E_END, "%s", perfdata_error_text(p, r));
	ck_assert_int_eq(perfdata_next(p, &rec), PERFDATA_E_END);
}

static struct sums sum_fd(int fd)
{
	_cleanup_(perfdata_freep) struct perfdata *p = open_good(fd, NULL);
	struct sums sums = { 0 };

	sum_walk(&sums, p);
	return sums;
}

/* Through reader and writer; extra (or NULL) is written after each of the first n_extra records. */
static int copy_fd(int fd, const struct perfdata *part_of, const struct buf *extra,
		   unsigned int n_extra)
{
	_cleanup_(perfdata_writer_freep) struct perfdata_writer *w = NULL;
	_cleanup_(perfdata_freep) struct perfdata *p = open_good(fd, part_of);
	struct perfdata_record rec;
	int out = memory_file(), r;

	ck_assert_int_eq(perfdata_writer_new(&w, p, out), 0);
	while (!(r = perfdata_next(p, &rec))) {
		ck_assert_int_eq(perfdata_write_record(w, &rec), 0);
		if (n_extra) {
			n_extra--;
			ck_assert_int_eq(perfdata_write_bytes(w, extra->data, extra->len), 0);
		}
	}
	ck_assert_msg(r == PERFDATA_E_END, "%s", perfdata_error_text(p, r));
	ck_assert_int_eq(perfdata_writer_finish(w), 0);
	return out;
}

static void check_same(int a, int b)
{
	_cleanup_buf_ struct buf x, y;

	read_fd(a, &x);
	read_fd(b, &y);
	ck_assert_uint_eq(x.len, y.len);
	ck_assert_mem_eq(x.data, y.data, x.len);
}

/* -- Real recordings ------------------------------------------------------------------ */

static const struct fixture {
	const char *name;
	bool compressed, pipe, no_time, mono, unfinished;
} fixtures[] = {
	{ .name = "plain.data" },
	{ .name = "chains.data" },
	{ .name = "compressed.data", .compressed = true },
	{ .name = "buildid.data" },
	{ .name = "everywhere.data" },
	{ .name = "thread.data", .no_time = true },
	{ .name = "mono.data", .mono = true },
	{ .name = "group.data" },
	{ .name = "mixed.data", .no_time = true },
	{ .name = "pipe.data", .pipe = true },
	{ .name = "pipe-compressed.data", .pipe = true, .compressed = true },
	{ .name = "killed.data", .unfinished = true },
};

static void check_golden(const char *name, const struct sums *sums)
{
	_cleanup_fclose_ FILE *f = fopen(FIXTURES "golden.txt", "r");
	char line[1024];
	size_t n = strlen(name);
	int i;

	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f)) {
		char *p = line + n;

		if (strncmp(line, name, n) || *p != ' ')
			continue;
		for (i = 0; i < N_SUMS; i++) {
			uint64_t v = strtoull(p, &p, 10);

			ck_assert_msg(sums->v[i] == v,
				      "%s: sum %d is %" PRIu64 ", perf has %" PRIu64, name, i,
				      sums->v[i], v);
		}
		return;
	}
	ck_abort_msg("%s is not in golden.txt", name);
}

START_TEST(test_read)
{
	const struct fixture *f = &fixtures[_i];
	_cleanup_close_ int fd = open_fixture(f->name);
	_cleanup_(perfdata_freep) struct perfdata *p = open_good(fd, NULL);
	struct perfdata_clock clock;
	struct perfdata_record rec;
	struct sums first = { 0 }, again = { 0 };
	int i;

	ck_assert_int_eq(perfdata_is_pipe(p), f->pipe);
	sum_walk(&first, p);
	check_golden(f->name, &first);
	if (!f->unfinished)
		ck_assert_str_eq(perfdata_hostname(p), "box");
	perfdata_get_clock(p, &clock);
	ck_assert_int_eq(clock.has_time, !f->no_time);
	ck_assert_int_eq(clock.use_clockid, f->mono);
	ck_assert_int_eq(clock.has_pair, f->mono);
	if (f->mono) {
		ck_assert_int_eq(clock.clockid, CLOCK_MONOTONIC);
		ck_assert_uint_gt(clock.wall_ns, clock.clock_ns);
		ck_assert_uint_gt(clock.clock_ns, 0);
	}

	/* from the start again: after the end, and from the middle */
	ck_assert_int_eq(perfdata_rewind(p), 0);
	for (i = 0; i < 20; i++)
		ck_assert_int_eq(perfdata_next(p, &rec), 0);
	ck_assert_int_eq(perfdata_rewind(p), 0);
	sum_walk(&again, p);
	ck_assert_mem_eq(&first, &again, sizeof(first));
}
END_TEST

START_TEST(test_copy)
{
	const struct fixture *f = &fixtures[_i];
	_cleanup_close_ int fd = open_fixture(f->name), out = copy_fd(fd, NULL, NULL, 0);
	struct sums in_sums = sum_fd(fd), out_sums = sum_fd(out);
	_cleanup_buf_ struct buf in_bytes, out_bytes;

	ck_assert_mem_eq(&in_sums, &out_sums, sizeof(in_sums));
	read_fd(fd, &in_bytes);
	read_fd(out, &out_bytes);
	if (f->unfinished) {
		/* finished now: perf can read it */
		ck_assert_uint_eq(le64(in_bytes.data + 48), 0);
		ck_assert_uint_eq(le64(out_bytes.data + 48),
				  in_bytes.len - le64(in_bytes.data + 40));
		set64(&in_bytes, 48, le64(out_bytes.data + 48));
		memset(in_bytes.data + 72, 0, 32);
	}
	if (f->compressed) {
		ck_assert_uint_gt(out_bytes.len, in_bytes.len);
		if (f->pipe)
			return;
		ck_assert(le64(in_bytes.data + 72) & 1 << PERFDATA_FEAT_COMPRESSED);
		ck_assert(!(le64(out_bytes.data + 72) & 1 << PERFDATA_FEAT_COMPRESSED));
		return;
	}
	ck_assert_uint_eq(in_bytes.len, out_bytes.len);
	ck_assert_mem_eq(in_bytes.data, out_bytes.data, in_bytes.len);
}
END_TEST

static unsigned int count_bits(const uint8_t *bitmap)
{
	unsigned int i, n = 0;

	for (i = 0; i < 256; i++)
		n += bitmap[i / 8] >> i % 8 & 1;
	return n;
}

/* Every feature has moved with its content; the table names each at its new place. */
static void check_features(const struct buf *in, const struct buf *out)
{
	const uint8_t *table_in = in->data + le64(in->data + 40) + le64(in->data + 48);
	const uint8_t *table_out = out->data + le64(out->data + 40) + le64(out->data + 48);
	unsigned int i;

	for (i = 0; i < 256; i++) {
		uint64_t n;

		if (!(in->data[72 + i / 8] >> i % 8 & 1))
			continue;
		if (i == PERFDATA_FEAT_COMPRESSED) {
			table_in += 16;
			continue;
		}
		ck_assert(out->data[72 + i / 8] >> i % 8 & 1);
		n = le64(table_in + 8);
		ck_assert_uint_eq(le64(table_out + 8), n);
		ck_assert_uint_le(le64(table_out) + n, out->len);
		ck_assert_mem_eq(out->data + le64(table_out), in->data + le64(table_in), n);
		table_in += 16;
		table_out += 16;
	}
	/* and nothing is left over */
	ck_assert_uint_eq(le64(out->data + 48) + in->len -
				  (count_bits(in->data + 72) - count_bits(out->data + 72)) * 36,
			  out->len + le64(in->data + 48));
}

static void put_record(struct buf *b, uint32_t type, uint16_t misc, uint16_t size)
{
	buf_put_u32(b, type);
	buf_put_u16(b, misc);
	buf_put_u16(b, size);
}

START_TEST(test_grown)
{
	const struct fixture *f = &fixtures[_i];
	_cleanup_close_ int fd = open_fixture(f->name), out = -1;
	_cleanup_buf_ struct buf in_bytes = { 0 }, out_bytes = { 0 }, extra;
	struct sums in_sums = sum_fd(fd), out_sums;

	buf_init(&extra, 64);
	put_record(&extra, PERFDATA_FINISHED_ROUND, 0, 8);
	out = copy_fd(fd, NULL, &extra, 23);
	out_sums = sum_fd(out);
	ck_assert_uint_eq(out_sums.n_records, in_sums.n_records + 23);
	ck_assert_mem_eq(out_sums.v, in_sums.v, sizeof(in_sums.v));
	if (f->pipe || f->unfinished)
		return;
	read_fd(fd, &in_bytes);
	read_fd(out, &out_bytes);
	check_features(&in_bytes, &out_bytes);
}
END_TEST

START_TEST(test_parts)
{
	static const char *const names[] = { "parts.data/data", "parts.data/data.0",
					     "parts.data/data.1" };
	_cleanup_(perfdata_freep) struct perfdata *main_file = NULL;
	_cleanup_close_ int main_fd = open_fixture(names[0]);
	struct sums sums = { 0 };
	struct perfdata_clock clock;
	size_t i;

	main_file = open_good(main_fd, NULL);
	for (i = 0; i < ARRAY_SIZE(names); i++) {
		_cleanup_close_ int fd = open_fixture(names[i]), out = -1;
		const struct perfdata *part_of = i ? main_file : NULL;
		_cleanup_(perfdata_freep) struct perfdata *p = open_good(fd, part_of);

		sum_walk(&sums, p);
		ck_assert_str_eq(perfdata_hostname(p), "box");
		perfdata_get_clock(p, &clock);
		ck_assert(clock.has_time);
		out = copy_fd(fd, part_of, NULL, 0);
		check_same(fd, out);
	}
	check_golden("parts.data", &sums);
}
END_TEST

/* COMPRESSED2 of newer perf, made of the COMPRESSED records here. */
START_TEST(test_compressed2)
{
	_cleanup_close_ int fd = open_fixture("compressed.data"), new_fd = -1;
	struct sums sums = sum_fd(fd), new_sums;
	_cleanup_buf_ struct buf in, out;
	uint64_t at, end;

	read_fd(fd, &in);
	buf_init(&out, SIZE_MAX);
	at = le64(in.data + 40);
	end = at + le64(in.data + 48);
	buf_append(&out, in.data, at);
	while (at < end) {
		uint16_t size = (uint16_t)(le32(in.data + at + 4) >> 16);

		if (le32(in.data + at) == PERFDATA_COMPRESSED) {
			uint16_t padding = -size & 7;

			put_record(&out, PERFDATA_COMPRESSED2, 0, (uint16_t)(size + 8 + padding));
			buf_put_u64(&out, size - 8u);
			buf_append(&out, in.data + at + 8, size - 8u);
			buf_append(&out, "\0\0\0\0\0\0\0", padding);
		} else {
			buf_append(&out, in.data + at, size);
		}
		at += size;
	}
	set64(&out, 48, out.len - le64(in.data + 40));
	memset(out.data + 72, 0, 32);
	new_fd = file_of(&out);
	new_sums = sum_fd(new_fd);
	ck_assert_mem_eq(&sums, &new_sums, sizeof(sums));
}
END_TEST

/* -- Files made by hand --------------------------------------------------------------- */

struct attr {
	uint64_t sample_type, read_format, flags;
	uint64_t ids[2];
};

#define ID_ALL (UINT64_C(1) << 18)

static void put_attr(struct buf *b, const struct attr *a, uint32_t size)
{
	size_t start = b->len;

	buf_put_u32(b, 1);
	buf_put_u32(b, size);
	buf_put_u64(b, 0);
	buf_put_u64(b, 4000); /* period */
	buf_put_u64(b, a->sample_type);
	buf_put_u64(b, a->read_format);
	buf_put_u64(b, a->flags);
	while (b->len < start + size)
		buf_put_u8(b, 0);
}

/* A file with these attrs and records, attr.size as given; no features. */
static void make_file(struct buf *b, const struct attr *attrs, size_t n, uint32_t attr_size,
		      const struct buf *records)
{
	uint64_t ids_at = 104, attrs_at = ids_at + 16 * n;
	uint64_t data_at = attrs_at + n * (attr_size + 16);
	size_t i;

	buf_init(b, SIZE_MAX);
	buf_append(b, "PERFILE2", 8);
	buf_put_u64(b, 104);
	buf_put_u64(b, attr_size + 16);
	buf_put_u64(b, attrs_at);
	buf_put_u64(b, n * (attr_size + 16));
	buf_put_u64(b, data_at);
	buf_put_u64(b, records->len);
	for (i = 0; i < 6; i++)
		buf_put_u64(b, 0);
	for (i = 0; i < n; i++) {
		buf_put_u64(b, attrs[i].ids[0]);
		buf_put_u64(b, attrs[i].ids[1]);
	}
	for (i = 0; i < n; i++) {
		put_attr(b, &attrs[i], attr_size);
		buf_put_u64(b, ids_at + 16 * i);
		buf_put_u64(b, 16);
	}
	buf_append(b, records->data, records->len);
	ck_assert_int_eq(b->error, 0);
}

static int make_fd(const struct attr *attrs, size_t n, uint32_t attr_size,
		   const struct buf *records)
{
	_cleanup_buf_ struct buf b;

	make_file(&b, attrs, n, attr_size, records);
	return file_of(&b);
}

/* A record of u64 fields 0x100000001, 0x100000002, …; field number i begins at byte 8 + 8 * i. */
static void put_numbered(struct buf *b, uint32_t type, uint16_t n)
{
	uint64_t i;

	put_record(b, type, 2, (uint16_t)(8 + 8 * n));
	for (i = 1; i <= n; i++)
		buf_put_u64(b, i << 32 | i);
}

#define S_IP     1u
#define S_TID    2u
#define S_TIME   4u
#define S_ADDR   8u
#define S_READ   0x10u
#define S_CHAIN  0x20u
#define S_ID     0x40u
#define S_CPU    0x80u
#define S_PERIOD 0x100u
#define S_STREAM 0x200u
#define S_RAW    0x400u
#define S_IDENT  0x10000u

/* The number of the field that holds what; 0: not there. Worked out by hand. */
static const struct {
	uint64_t sample_type;
	uint32_t ip, tid, time, fixed;
	uint32_t trailer, trailer_tid, trailer_time; /* counted from the end */
} layouts[] = {
	{ S_IP, 1, 0, 0, 1, 0, 0, 0 },
	{ S_IP | S_TID | S_TIME, 1, 2, 3, 3, 2, 2, 1 },
	{ S_IP | S_TID | S_TIME | S_PERIOD, 1, 2, 3, 4, 2, 2, 1 },
	{ S_IDENT | S_IP | S_TID | S_TIME | S_CPU | S_PERIOD, 2, 3, 4, 6, 4, 4, 3 },
	{ S_IDENT | S_TID, 0, 2, 0, 2, 2, 2, 0 },
	{ S_TIME | S_ID | S_STREAM, 0, 0, 1, 3, 3, 0, 3 },
	{ S_IDENT | S_IP | S_TID | S_TIME | S_ADDR | S_ID | S_STREAM | S_CPU | S_PERIOD | S_RAW, 2,
	  3, 4, 9, 6, 6, 5 },
};

static uint64_t field(uint32_t number)
{
	return (uint64_t)number << 32 | number;
}

START_TEST(test_layout)
{
	struct attr attr = { layouts[_i].sample_type, 0, ID_ALL, { 7, 8 } };
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	_cleanup_buf_ struct buf records;
	struct perfdata_record rec;
	struct perfdata_sample s;
	struct perfdata_id id;
	_cleanup_close_ int fd = -1;
	uint32_t n = 20;

	buf_init(&records, SIZE_MAX);
	put_numbered(&records, PERFDATA_SAMPLE, (uint16_t)layouts[_i].fixed);
	put_numbered(&records, PERFDATA_SAMPLE, (uint16_t)(layouts[_i].fixed - 1));
	put_numbered(&records, PERFDATA_LOST, (uint16_t)n);
	put_numbered(&records, PERFDATA_LOST, (uint16_t)layouts[_i].trailer);
	if (layouts[_i].trailer)
		put_numbered(&records, PERFDATA_LOST, (uint16_t)(layouts[_i].trailer - 1));
	put_numbered(&records, PERFDATA_FINISHED_ROUND, (uint16_t)n);
	fd = make_fd(&attr, 1, 128, &records);
	p = open_good(fd, NULL);

	ck_assert_int_eq(perfdata_next(p, &rec), 0);
	ck_assert_int_eq(perfdata_parse_sample(p, &rec, &s), 0);
	ck_assert_uint_eq(s.has_ip, layouts[_i].ip != 0);
	ck_assert_uint_eq(s.ip, field(layouts[_i].ip));
	ck_assert_uint_eq(s.id.pid, layouts[_i].tid);
	ck_assert_uint_eq(s.id.tid, layouts[_i].tid);
	ck_assert_uint_eq(s.id.time, field(layouts[_i].time));
	ck_assert_uint_eq(s.id.has_time, layouts[_i].time != 0);
	ck_assert(s.user);
	ck_assert_ptr_null(s.chain);

	ck_assert_int_eq(perfdata_next(p, &rec), 0);
	ck_assert_int_eq(perfdata_parse_sample(p, &rec, &s), PERFDATA_E_CORRUPT);
	ck_assert_int_eq(perfdata_parse_id(p, &rec, &id), PERFDATA_E_CORRUPT);

	ck_assert_int_eq(perfdata_next(p, &rec), 0);
	ck_assert_int_eq(perfdata_parse_id(p, &rec, &id), 0);
	n = 21; /* one behind the last */
	ck_assert_uint_eq(id.tid, layouts[_i].trailer_tid ? n - layouts[_i].trailer_tid : 0);
	ck_assert_uint_eq(id.time,
			  layouts[_i].trailer_time ? field(n - layouts[_i].trailer_time) : 0);
	ck_assert_uint_eq(id.has_time, layouts[_i].trailer_time != 0);
	ck_assert_int_eq(perfdata_next(p, &rec), 0);
	ck_assert_int_eq(perfdata_parse_id(p, &rec, &id), 0);
	if (layouts[_i].trailer) {
		ck_assert_int_eq(perfdata_next(p, &rec), 0);
		ck_assert_int_eq(perfdata_parse_id(p, &rec, &id), PERFDATA_E_CORRUPT);
	}

	/* perf's own records end with nothing */
	ck_assert_int_eq(perfdata_next(p, &rec), 0);
	ck_assert_int_eq(perfdata_parse_id(p, &rec, &id), 0);
	ck_assert(!id.has_time && !id.time && !id.pid);
}
END_TEST

/* READ before the call chain: u64s of it for 3 members (GROUP) or one. */
static const struct {
	uint64_t read_format;
	uint16_t n;
} reads[] = {
	{ 0, 1 },      { 1, 2 },      { 2, 2 },      { 4, 2 },      { 16, 2 },
	{ 23, 5 },     { 8, 1 + 3 },  { 9, 2 + 3 },  { 11, 3 + 3 }, { 12, 1 + 6 },
	{ 24, 1 + 6 }, { 28, 1 + 9 }, { 31, 3 + 9 },
};

START_TEST(test_read_format)
{
	struct attr attr = { S_IP | S_READ | S_CHAIN, reads[_i].read_format, ID_ALL, { 7, 8 } };
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	uint16_t n = (uint16_t)(1 + reads[_i].n + 1 + 2); /* ip, read, count, two entries */
	_cleanup_buf_ struct buf records;
	_cleanup_close_ int fd = -1;
	struct perfdata_record rec;
	struct perfdata_sample s;
	size_t start, cut;

	buf_init(&records, SIZE_MAX);
	/* whole, then cut by 1 to n fields, then with counts that lead too far */
	for (cut = 0; cut < (size_t)n + 4; cut++) {
		bool group = reads[_i].read_format & 8;

		start = records.len;
		put_numbered(&records, PERFDATA_SAMPLE, n);
		if (group)
			set64(&records, start + 16, 3);
		set64(&records, start + 8 * (2u + reads[_i].n), 2);
		if (cut < n) {
			records.len -= 8 * cut;
			records.data[start + 6] = (uint8_t)(records.len - start);
		} else if (cut < (size_t)n + 2) {
			set64(&records, start + 8 * (2u + reads[_i].n),
			      cut == n ? 3 : UINT64_MAX / 8 + 2);
		} else {
			set64(&records, start + 16, group ? UINT64_MAX / 8 + cut : 1);
			if (!group)
				set64(&records, start + 8 * (2u + reads[_i].n), 1000);
		}
	}
	fd = make_fd(&attr, 1, 128, &records);
	p = open_good(fd, NULL);
	ck_assert_int_eq(perfdata_next(p, &rec), 0);
	ck_assert_int_eq(perfdata_parse_sample(p, &rec, &s), 0);
	ck_assert_uint_eq(s.n_chain, 2);
	ck_assert_ptr_eq(s.chain, rec.bytes + 8 * (3 + reads[_i].n));
	while (!perfdata_next(p, &rec))
		ck_assert_int_eq(perfdata_parse_sample(p, &rec, &s), PERFDATA_E_CORRUPT);
	ck_assert_int_eq(perfdata_next(p, &rec), PERFDATA_E_END);
}
END_TEST

/* Events of different shape are told apart by their ids; all sizes of attrs are read. */
START_TEST(test_ids)
{
	static const struct attr attrs[] = {
		{ S_IDENT | S_IP | S_TID | S_TIME, 0, ID_ALL, { 11, 12 } },
		{ S_IDENT | S_IP | S_TID | S_TIME | S_CHAIN, 0, ID_ALL, { 21, 22 } },
		{ S_IDENT | S_IP, 0, ID_ALL, { 31, 32 } },
	};
	static const uint32_t attr_sizes[] = { 64, 72, 96, 112, 128, 136, 4096 };
	static const struct {
		uint64_t id;
		uint32_t tid; /* number of the field in the trailer of 10 fields */
		bool chain, known;
	} cases[] = {
		{ 11, 8, false, true }, { 22, 8, true, true },    { 31, 0, false, true },
		{ 0, 8, false, true },  { 999, 0, false, false },
	};
	size_t i, size;

	for (size = 0; size < ARRAY_SIZE(attr_sizes); size++) {
		_cleanup_(perfdata_freep) struct perfdata *p = NULL;
		_cleanup_buf_ struct buf records;
		_cleanup_close_ int fd = -1;
		struct perfdata_record rec;
		struct perfdata_sample s;
		struct perfdata_id id;

		buf_init(&records, SIZE_MAX);
		for (i = 0; i < ARRAY_SIZE(cases); i++) {
			size_t start = records.len;

			put_numbered(&records, PERFDATA_SAMPLE, 8);
			set64(&records, start + 8, cases[i].id);
			set64(&records, start + 40, 3);
			put_numbered(&records, PERFDATA_LOST, 10);
			set64(&records, records.len - 8, cases[i].id);
		}
		fd = make_fd(attrs, ARRAY_SIZE(attrs), attr_sizes[size], &records);
		p = open_good(fd, NULL);
		for (i = 0; i < ARRAY_SIZE(cases); i++) {
			int want = cases[i].known ? 0 : PERFDATA_E_CORRUPT;

			ck_assert_int_eq(perfdata_next(p, &rec), 0);
			ck_assert_int_eq(perfdata_parse_sample(p, &rec, &s), want);
			ck_assert(!cases[i].known || s.n_chain == (cases[i].chain ? 3 : 0));
			ck_assert_int_eq(perfdata_next(p, &rec), 0);
			ck_assert_int_eq(perfdata_parse_id(p, &rec, &id), want);
			ck_assert(!cases[i].known || id.tid == cases[i].tid);
		}
		ck_assert_int_eq(perfdata_next(p, &rec), PERFDATA_E_END);
	}
}
END_TEST

/* Without IDENTIFIER nothing tells them apart: copied, but not looked into. */
START_TEST(test_no_identifier)
{
	static const struct attr attrs[] = {
		{ S_IP | S_TID, 0, ID_ALL, { 11, 12 } },
		{ S_IP | S_TID | S_CHAIN, 0, ID_ALL, { 21, 22 } },
	};
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	_cleanup_close_ int fd = -1, out = -1;
	_cleanup_buf_ struct buf records;
	struct perfdata_record rec;
	struct perfdata_sample s;

	buf_init(&records, SIZE_MAX);
	put_numbered(&records, PERFDATA_SAMPLE, 8);
	fd = make_fd(attrs, 2, 128, &records);
	p = open_good(fd, NULL);
	ck_assert_int_eq(perfdata_next(p, &rec), 0);
	ck_assert_int_eq(perfdata_parse_sample(p, &rec, &s), PERFDATA_E_CORRUPT);
	ck_assert_str_eq(perfdata_error_text(p, PERFDATA_E_CORRUPT),
			 "corrupt: record of type 9 at offset 424 belongs to no known event");
	out = copy_fd(fd, NULL, NULL, 0);
	check_same(fd, out);
}
END_TEST

/* With sample_id_all here and not there an end may be an id or a name: not looked into. */
START_TEST(test_trailers)
{
	static const struct {
		uint64_t flags[2];
		int code;
	} cases[] = {
		{ { ID_ALL, ID_ALL }, 0 },
		{ { 0, 0 }, 0 },
		{ { 0, ID_ALL }, PERFDATA_E_CORRUPT },
		{ { ID_ALL, 0 }, PERFDATA_E_CORRUPT },
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		const struct attr attrs[] = {
			{ S_IDENT | S_IP | S_TID, 0, cases[i].flags[0], { 11, 12 } },
			{ S_IDENT | S_IP | S_TID | S_CHAIN, 0, cases[i].flags[1], { 21, 22 } },
		};
		_cleanup_(perfdata_freep) struct perfdata *p = NULL;
		_cleanup_close_ int fd = -1;
		_cleanup_buf_ struct buf records;
		struct perfdata_record rec;
		struct perfdata_id id;

		buf_init(&records, SIZE_MAX);
		put_numbered(&records, PERFDATA_LOST, 4);
		/* an id only where there are ids */
		set64(&records, records.len - 8, cases[i].flags[0] ? 21 : 0x2f2f2f2f2f2f2f2f);
		fd = make_fd(attrs, 2, 128, &records);
		p = open_good(fd, NULL);
		ck_assert_int_eq(perfdata_next(p, &rec), 0);
		ck_assert_int_eq(perfdata_parse_id(p, &rec, &id), cases[i].code);
		ck_assert(cases[i].code || id.pid == (cases[i].flags[0] ? 3 : 0));
	}
}
END_TEST

/*
 * The order of newer `perf inject`: attrs and ids behind the features. And AUX data with its index,
 * trailing bytes, a gap before the first feature.
 */
START_TEST(test_moved)
{
	const uint64_t n_aux = 700, data_at = 104;
	static const struct attr attr = { S_IP | S_TID, 0, ID_ALL, { 11, 12 } };
	_cleanup_buf_ struct buf b, extra, out_bytes;
	_cleanup_close_ int fd = -1, same = -1, out = -1;
	_cleanup_free_ uint64_t *places = calloc(n_aux, sizeof(*places));
	uint64_t i, end, index_at, attrs_at, delta;

	buf_init(&b, SIZE_MAX);
	buf_append(&b, "PERFILE2", 8);
	for (i = 0; i < 12; i++)
		buf_put_u64(&b, 0);
	for (i = 0; i < n_aux; i++) {
		uint64_t n = i * 37 % 1000 * 8, j;

		put_numbered(&b, PERFDATA_SAMPLE, 2);
		places[i] = b.len;
		put_record(&b, PERFDATA_AUXTRACE, 0, 48);
		buf_put_u64(&b, i == n_aux - 1 ? 3000000 : n);
		for (j = 0; j < 32; j++)
			buf_put_u8(&b, (uint8_t)j);
		/* payload that looks like a record */
		for (j = 0; j < (i == n_aux - 1 ? 3000000 : n); j += 8)
			put_record(&b, PERFDATA_SAMPLE, 0, 8);
	}
	end = b.len;
	for (i = 0; i < 4; i++)
		buf_put_u64(&b, 0);    /* table, below */
	buf_put_u64(&b, 0x6761705f61); /* gap */
	set64(&b, end, b.len);
	set64(&b, end + 8, 16);
	buf_append(&b, "\x08\0\0\0host\0\0\0\0\0\0\0\0", 16);
	index_at = b.len;
	set64(&b, end + 16, index_at);
	set64(&b, end + 24, 8 + 16 * n_aux);
	buf_put_u64(&b, n_aux);
	for (i = 0; i < n_aux; i++) {
		buf_put_u64(&b, places[i]);
		buf_put_u64(&b, 48);
	}
	attrs_at = b.len;
	put_attr(&b, &attr, 128);
	buf_put_u64(&b, b.len + 16);
	buf_put_u64(&b, 16);
	buf_put_u64(&b, 11);
	buf_put_u64(&b, 12);
	buf_append(&b, "behind it all", 13);
	set64(&b, 8, 104);
	set64(&b, 16, 144);
	set64(&b, 24, attrs_at);
	set64(&b, 32, 144);
	set64(&b, 40, data_at);
	set64(&b, 48, end - data_at);
	set64(&b, 72, 1 << PERFDATA_FEAT_HOSTNAME | 1 << PERFDATA_FEAT_AUXTRACE);
	fd = file_of(&b);

	same = copy_fd(fd, NULL, NULL, 0);
	check_same(fd, same);

	/* one more record after each of the first 1001: the AUX records move by ever more */
	buf_init(&extra, 64);
	put_numbered(&extra, PERFDATA_SAMPLE, 2);
	out = copy_fd(fd, NULL, &extra, 1001);
	read_fd(out, &out_bytes);
	delta = 1001 * 24;
	ck_assert_uint_eq(out_bytes.len, b.len + delta);
	ck_assert_uint_eq(le64(out_bytes.data + 24), attrs_at + delta);
	ck_assert_uint_eq(le64(out_bytes.data + attrs_at + delta + 128), attrs_at + 144 + delta);
	ck_assert_mem_eq(out_bytes.data + attrs_at + delta, b.data + attrs_at, 128);
	ck_assert_mem_eq(out_bytes.data + out_bytes.len - 13, "behind it all", 13);
	ck_assert_uint_eq(le64(out_bytes.data + end + delta), le64(b.data + end) + delta);
	ck_assert_str_eq((char *)out_bytes.data + le64(b.data + end) + delta + 4, "host");
	for (i = 0; i < n_aux; i++) {
		const uint8_t *entry = out_bytes.data + index_at + delta + 8 + 16 * i;
		const uint8_t *rec = out_bytes.data + le64(entry);

		ck_assert_uint_eq(le64(entry + 8), 48);
		ck_assert_uint_eq(le64(entry), places[i] + 24 * MIN(2 * i + 1, (uint64_t)1001));
		ck_assert_mem_eq(rec, b.data + places[i], 48);
	}
	{
		struct sums sums = sum_fd(out);

		ck_assert_uint_eq(sums.n_records, 2 * n_aux + 1001);
		ck_assert_uint_eq(sums.v[SAMPLES], n_aux + 1001);
	}
}
END_TEST

/* -- Mappings as we write them -------------------------------------------------------- */

#define TRAILER_TIME 0x1122334455667788u

/* MMAP or MMAP2, trailer {tid, time, id}. */
static void put_map(struct buf *b, uint32_t type, uint16_t misc, const char *name, size_t room)
{
	size_t start = b->len, i;

	put_record(b, type, misc, 0);
	buf_put_u32(b, 100);
	buf_put_u32(b, 101);
	buf_put_u64(b, 0x7f0000001000);
	buf_put_u64(b, 0x2000);
	buf_put_u64(b, 0x3000);
	if (type == PERFDATA_MMAP2) {
		for (i = 0; i < 24; i++)
			buf_put_u8(b, (uint8_t)(0xa0 + i));
		buf_put_u32(b, 7);
		buf_put_u32(b, 0x12);
	}
	buf_append(b, name, strlen(name));
	for (i = strlen(name); i < room; i++)
		buf_put_u8(b, 0);
	buf_put_u64(b, UINT64_C(101) << 32 | 100);
	buf_put_u64(b, TRAILER_TIME);
	buf_put_u64(b, 11);
	b->data[start + 6] = (uint8_t)(b->len - start);
	b->data[start + 7] = (uint8_t)((b->len - start) >> 8);
}

static const uint8_t build_id[20] = "0123456789abcdefghi";

static const struct edit_case {
	uint32_t type;
	uint16_t misc;
	const char *name;
	size_t room;
	const char *new_name;
	bool build_id;
	size_t size; /* 72 + name + 24 */
	uint16_t new_misc;
} edits[] = {
	{ PERFDATA_MMAP2, 2, "//anon", 8, NULL, true, 104, 0x4002 },
	{ PERFDATA_MMAP2, 2, "//anon", 8, "[.NET]", true, 104, 0x4002 },
	{ PERFDATA_MMAP2, 2, "//anon", 8, "1234567", false, 104, 2 },
	{ PERFDATA_MMAP2, 2, "//anon", 8, "12345678", false, 112, 2 },
	{ PERFDATA_MMAP2, 2, "/memfd:doublemapper (deleted)", 32, NULL, true, 128, 0x4002 },
	{ PERFDATA_MMAP2, 2, "/memfd:doublemapper (deleted)", 32, "//anon", false, 128, 2 },
	{ PERFDATA_MMAP2, 0x4002, "/lib/x.dll", 64, NULL, false, 160, 2 },
	{ PERFDATA_MMAP2, 0x6002, "/lib/x.dll", 16, "", true, 112, 0x6002 },
	{ PERFDATA_MMAP, 2, "//anon", 8, NULL, true, 104, 0x4002 },
	{ PERFDATA_MMAP, 2, "//anon", 64, NULL, false, 104, 2 },
	{ PERFDATA_MMAP, 2, "/lib/x.dll", 16, "/a/much/longer/name", true, 120, 0x4002 },
};

static struct perfdata *open_one(const struct buf *records, int *fdp, struct perfdata_record *rec)
{
	static const struct attr attr = { S_IDENT | S_IP | S_TID | S_TIME, 0, ID_ALL, { 11, 12 } };
	struct perfdata *p;

	*fdp = make_fd(&attr, 1, 128, records);
	p = open_good(*fdp, NULL);
	ck_assert_int_eq(perfdata_next(p, rec), 0);
	return p;
}

START_TEST(test_edit)
{
	const struct edit_case *c = &edits[_i];
	struct perfdata_edit edit = {
		.addr = 0x7f1111111111,
		.len = 0x2222,
		.pgoff = 0x3333333333,
		.build_id = c->build_id ? build_id : NULL,
		.name = c->new_name,
		.pid = 4444,
		.tid = 5555,
		.time = 0x6666666666666666,
	};
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	_cleanup_close_ int fd = -1;
	_cleanup_buf_ struct buf records;
	struct perfdata_record rec, out_rec = { 0 };
	static uint8_t out[PERFDATA_MAX_RECORD];
	struct perfdata_mmap m;
	static const uint8_t zeros[64];
	size_t size, name_len;

	buf_init(&records, SIZE_MAX);
	put_map(&records, c->type, c->misc, c->name, c->room);
	p = open_one(&records, &fd, &rec);
	memset(out, 0xee, sizeof(out));
	size = perfdata_edit_mmap(p, &rec, &edit, out);
	ck_assert_uint_eq(size, c->size);
	ck_assert_uint_eq(out[size], 0xee);

	out_rec.type = le32(out);
	out_rec.misc = (uint16_t)le32(out + 4);
	out_rec.size = (uint16_t)(le32(out + 4) >> 16);
	out_rec.bytes = out;
	ck_assert_uint_eq(out_rec.type, PERFDATA_MMAP2);
	ck_assert_uint_eq(out_rec.misc, c->new_misc);
	ck_assert_uint_eq(out_rec.size, size);
	ck_assert_int_eq(perfdata_parse_mmap(p, &out_rec, &m), 0);
	ck_assert_uint_eq(m.pid, 4444);
	ck_assert_uint_eq(m.tid, 5555);
	ck_assert_uint_eq(m.addr, edit.addr);
	ck_assert_uint_eq(m.len, edit.len);
	ck_assert_uint_eq(m.pgoff, edit.pgoff);
	ck_assert_uint_eq(m.prot, c->type == PERFDATA_MMAP2 ? 7 : 5);
	ck_assert_uint_eq(m.flags, c->type == PERFDATA_MMAP2 ? 0x12 : 2);
	ck_assert_str_eq(m.name, c->new_name ? c->new_name : c->name);
	name_len = m.name_len;
	ck_assert_mem_eq(m.name + name_len, zeros, MIN(m.name_room - name_len, sizeof(zeros)));
	ck_assert_int_eq(m.has_build_id, c->build_id);
	if (c->build_id) {
		ck_assert_mem_eq(m.inode, "\x14\0\0\0", 4);
		ck_assert_mem_eq(m.inode + 4, build_id, 20);
	} else {
		ck_assert_mem_eq(m.inode, zeros, 24);
	}
	ck_assert_uint_eq(m.id.time, edit.time);
	ck_assert_uint_eq(m.id.pid, 100);
	ck_assert_uint_eq(m.id.tid, 101);
	ck_assert_uint_eq(le64(out + size - 8), 11);
}
END_TEST

START_TEST(test_edit_long)
{
	static uint8_t out[PERFDATA_MAX_RECORD];
	static char name[70000];
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	struct perfdata_edit edit = { .name = name };
	_cleanup_close_ int fd = -1;
	_cleanup_buf_ struct buf records;
	struct perfdata_record rec;

	buf_init(&records, SIZE_MAX);
	put_map(&records, PERFDATA_MMAP2, 2, "x", 8);
	p = open_one(&records, &fd, &rec);
	memset(name, 'n', sizeof(name) - 1);
	ck_assert_uint_eq(perfdata_edit_mmap(p, &rec, &edit, out), 0);
	name[PERFDATA_MAX_RECORD - 72 - 24] = '\0';
	ck_assert_uint_eq(perfdata_edit_mmap(p, &rec, &edit, out), 0);
	name[PERFDATA_MAX_RECORD - 72 - 24 - 1] = '\0';
	ck_assert_uint_eq(perfdata_edit_mmap(p, &rec, &edit, out), PERFDATA_MAX_RECORD);
}
END_TEST

START_TEST(test_bad_maps)
{
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	struct perfdata_edit edit = { .len = 1 };
	static uint8_t out[PERFDATA_MAX_RECORD];
	_cleanup_close_ int fd = -1;
	_cleanup_buf_ struct buf records;
	struct perfdata_record rec;
	struct perfdata_mmap m;
	struct perfdata_task t;
	size_t start;

	buf_init(&records, SIZE_MAX);
	put_map(&records, PERFDATA_MMAP2, 2, "unterminated....", 16);
	put_numbered(&records, PERFDATA_MMAP2, 11); /* 8 + 64 + 24: no room for a name */
	put_numbered(&records, PERFDATA_MMAP, 2);
	start = records.len;
	put_numbered(&records, PERFDATA_MMAP, 7);
	set64(&records, start + 40, 0); /* the shortest that is whole */
	p = open_one(&records, &fd, &rec);
	ck_assert_int_eq(perfdata_parse_mmap(p, &rec, &m), PERFDATA_E_CORRUPT);
	ck_assert_str_eq(perfdata_error_text(p, PERFDATA_E_CORRUPT),
			 "corrupt: record of type 10 at offset 264 with 112 bytes is too short");
	ck_assert_uint_eq(perfdata_edit_mmap(p, &rec, &edit, out), 0);
	ck_assert_int_eq(perfdata_next(p, &rec), 0);
	ck_assert_int_eq(perfdata_parse_mmap(p, &rec, &m), PERFDATA_E_CORRUPT);
	ck_assert_int_eq(perfdata_next(p, &rec), 0);
	ck_assert_int_eq(perfdata_parse_mmap(p, &rec, &m), PERFDATA_E_CORRUPT);
	ck_assert_int_eq(perfdata_parse_task(p, &rec, &t), -EINVAL);
	ck_assert_int_eq(perfdata_next(p, &rec), 0);
	ck_assert_int_eq(perfdata_parse_mmap(p, &rec, &m), PERFDATA_E_CORRUPT);
}
END_TEST

/* -- Compression ---------------------------------------------------------------------- */

/* Records of 8 bytes in ever larger number, through one stream, cut into COMPRESSED records. */
static void put_compressed(struct buf *b, uint64_t n_records, size_t cut, int window_log)
{
	static const uint8_t round[8] = { PERFDATA_FINISHED_ROUND, 0, 0, 0, 0, 0, 8, 0 };
	size_t piece_size = (size_t)MIB(1), done, i;
	_cleanup_free_ uint8_t *piece = malloc(piece_size), *packed = malloc(piece_size);
	ZSTD_CCtx *stream = ZSTD_createCCtx();

	for (i = 0; i < piece_size; i += 8)
		memcpy(piece + i, round, 8);
	ZSTD_CCtx_setParameter(stream, ZSTD_c_windowLog, window_log);
	while (n_records) {
		ZSTD_outBuffer out = { packed, piece_size, 0 };
		ZSTD_inBuffer in = { piece, (size_t)MIN(n_records * 8, piece_size), 0 };

		ck_assert_uint_eq(ZSTD_compressStream2(stream, &out, &in, ZSTD_e_flush), 0);
		n_records -= in.size / 8;
		for (done = 0; done < out.pos; done += i) {
			i = MIN(out.pos - done, cut);
			put_record(b, PERFDATA_COMPRESSED, 0, (uint16_t)(8 + i));
			buf_append(b, packed + done, i);
		}
	}
	ZSTD_freeCCtx(stream);
}

static const struct attr simple = { S_IP, 0, ID_ALL, { 11, 12 } };

/* An eighth of a gigabyte out of some kilobytes: every record, and no more memory. */
START_TEST(test_bomb)
{
	uint64_t n = MIB(128) / 8, n_seen = 0;
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	_cleanup_close_ int fd = -1;
	_cleanup_buf_ struct buf records;
	struct rusage before, after;
	struct perfdata_record rec;
	int r;

	buf_init(&records, SIZE_MAX);
	put_compressed(&records, n, 1000, 19);
	ck_assert_uint_lt(records.len, MIB(1));
	fd = make_fd(&simple, 1, 128, &records);
	p = open_good(fd, NULL);
	getrusage(RUSAGE_SELF, &before);
	while (!(r = perfdata_next(p, &rec)))
		n_seen++;
	getrusage(RUSAGE_SELF, &after);
	ck_assert_int_eq(r, PERFDATA_E_END);
	ck_assert_uint_eq(n_seen, n);
	ck_assert_int_lt(after.ru_maxrss - before.ru_maxrss, 8 << 10);
}
END_TEST

/* What is allocated; the sanitizer's allocator has its own count. */
size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

static size_t allocated(void)
{
	struct mallinfo2 info;

	if (__sanitizer_get_current_allocated_bytes)
		return __sanitizer_get_current_allocated_bytes();
	info = mallinfo2();
	return info.uordblks + info.hblkhd;
}

/* Parts with the largest window: only the one that is walked through has it. */
START_TEST(test_idle)
{
	struct perfdata *parts[16];
	_cleanup_(perfdata_freep) struct perfdata *directory = NULL;
	_cleanup_close_ int fd = -1, part_fd = -1;
	_cleanup_buf_ struct buf records;
	struct perfdata_record rec;
	size_t i, start, walks;

	buf_init(&records, SIZE_MAX);
	put_compressed(&records, 2 * MIB(1) / 8, 60000, CAP_PERF_ZSTD_WINDOW_LOG);
	part_fd = file_of(&records);
	/* an error is an end, too */
	put_numbered(&records, PERFDATA_COMPRESSED, 4);
	fd = make_fd(&simple, 1, 128, &records);
	directory = open_good(fd, NULL);
	start = allocated();
	for (i = 0; i < ARRAY_SIZE(parts); i++)
		parts[i] = i ? open_good(part_fd, directory) : open_good(fd, NULL);
	for (walks = 0; walks < 2; walks++) {
		for (i = 0; i < ARRAY_SIZE(parts); i++) {
			uint64_t n = 0;
			int r;

			ck_assert_uint_lt(allocated() - start, ARRAY_SIZE(parts) * KIB(8));
			ck_assert_int_eq(perfdata_rewind(parts[i]), 0);
			while (!(r = perfdata_next(parts[i], &rec)))
				if (!n++)
					ck_assert_uint_gt(allocated() - start, MIB(128));
			ck_assert_int_eq(r, i ? PERFDATA_E_END : PERFDATA_E_COMPRESSED);
			ck_assert_uint_eq(n, 2 * MIB(1) / 8);
		}
	}
	/* one that is left in its midst */
	ck_assert_int_eq(perfdata_rewind(parts[1]), 0);
	ck_assert_int_eq(perfdata_next(parts[1], &rec), 0);
	ck_assert_uint_gt(allocated() - start, MIB(128));
	ck_assert_int_eq(perfdata_rewind(parts[1]), 0);
	ck_assert_uint_lt(allocated() - start, ARRAY_SIZE(parts) * KIB(8));
	for (i = 0; i < ARRAY_SIZE(parts); i++)
		perfdata_free(parts[i]);
}
END_TEST

/* One byte of the stream a record: inner ones straddle many, plain ones come between. */
START_TEST(test_straddling)
{
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	_cleanup_buf_ struct buf packed, records;
	_cleanup_close_ int fd = -1;
	struct perfdata_record rec;
	size_t i, n = 0, n_plain = 0;

	buf_init(&packed, SIZE_MAX);
	put_compressed(&packed, 1000, 1, 17);
	buf_init(&records, SIZE_MAX);
	for (i = 0; i < packed.len; i += 9) {
		buf_append(&records, packed.data + i, 9);
		put_numbered(&records, PERFDATA_LOST, 2);
	}
	fd = make_fd(&simple, 1, 128, &records);
	p = open_good(fd, NULL);
	while (!perfdata_next(p, &rec)) {
		n += rec.type == PERFDATA_FINISHED_ROUND;
		n_plain += rec.type == PERFDATA_LOST;
	}
	ck_assert_int_eq(perfdata_next(p, &rec), PERFDATA_E_END);
	ck_assert_uint_eq(n, 1000);
	ck_assert_uint_eq(n_plain, packed.len / 9);
}
END_TEST

/* What is in a COMPRESSED record, uncompressed, and what comes of it. */
static const struct {
	struct {
		uint32_t type;
		uint16_t size, there;
	} records[2];
	int code;
	const char *text;
} inner[] = {
	{ { { PERFDATA_FINISHED_ROUND, 8, 8 }, { PERFDATA_LOST, 32, 32 } }, PERFDATA_E_END, NULL },
	{ { { PERFDATA_FINISHED_ROUND, 8, 8 }, { PERFDATA_LOST, 32, 24 } },
	  PERFDATA_E_TRUNCATED,
	  "truncated: the compressed record at offset 264 ends inside another, and none follows" },
	{ { { PERFDATA_FINISHED_ROUND, 8, 8 }, { PERFDATA_LOST, 7, 8 } },
	  PERFDATA_E_CORRUPT,
	  "corrupt: impossible size in the compressed record at offset 264" },
	{ { { PERFDATA_FINISHED_ROUND, 8, 8 }, { PERFDATA_AUXTRACE, 48, 48 } },
	  PERFDATA_E_CORRUPT,
	  "corrupt: record of type 71 in the compressed record at offset 264" },
	{ { { PERFDATA_FINISHED_ROUND, 8, 8 }, { PERFDATA_COMPRESSED, 16, 16 } },
	  PERFDATA_E_CORRUPT,
	  "corrupt: record of type 81 in the compressed record at offset 264" },
};

START_TEST(test_inner)
{
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	_cleanup_buf_ struct buf plain, records;
	_cleanup_close_ int fd = -1;
	struct perfdata_record rec;
	uint8_t packed[256];
	size_t i, n;
	int r;

	buf_init(&plain, SIZE_MAX);
	for (i = 0; i < 2; i++) {
		size_t end = plain.len + inner[_i].records[i].there;

		put_record(&plain, inner[_i].records[i].type, 0, inner[_i].records[i].size);
		while (plain.len < end)
			buf_put_u8(&plain, 0);
	}
	n = ZSTD_compress(packed, sizeof(packed), plain.data, plain.len, 1);
	ck_assert(!ZSTD_isError(n));
	buf_init(&records, SIZE_MAX);
	put_record(&records, PERFDATA_COMPRESSED, 0, (uint16_t)(8 + n));
	buf_append(&records, packed, n);
	fd = make_fd(&simple, 1, 128, &records);
	p = open_good(fd, NULL);
	ck_assert_int_eq(perfdata_next(p, &rec), 0);
	ck_assert_uint_eq(rec.type, PERFDATA_FINISHED_ROUND);
	while (!(r = perfdata_next(p, &rec)))
		;
	ck_assert_int_eq(r, inner[_i].code);
	if (inner[_i].text)
		ck_assert_str_eq(perfdata_error_text(p, r), inner[_i].text);
	/* it stays so until the walk begins anew */
	ck_assert_int_eq(perfdata_next(p, &rec), r);
	ck_assert_int_eq(perfdata_rewind(p), 0);
	ck_assert_int_eq(perfdata_next(p, &rec), 0);
}
END_TEST

START_TEST(test_refused)
{
	_cleanup_(perfdata_freep) struct perfdata *p = NULL, *wide = NULL;
	_cleanup_close_ int fd = -1, wide_fd = -1;
	_cleanup_buf_ struct buf records;
	struct perfdata_record rec;

	buf_init(&records, SIZE_MAX);
	put_numbered(&records, PERFDATA_COMPRESSED, 4);
	fd = make_fd(&simple, 1, 128, &records);
	p = open_good(fd, NULL);
	ck_assert_int_eq(perfdata_next(p, &rec), PERFDATA_E_COMPRESSED);
	ck_assert_str_eq(perfdata_error_text(p, PERFDATA_E_COMPRESSED),
			 "cannot be decompressed: zstd refuses the record at offset 264");

	/* a window that no level asks for */
	buf_clear(&records);
	put_compressed(&records, 100, 1000, CAP_PERF_ZSTD_WINDOW_LOG + 1);
	wide_fd = make_fd(&simple, 1, 128, &records);
	wide = open_good(wide_fd, NULL);
	ck_assert_int_eq(perfdata_next(wide, &rec), PERFDATA_E_COMPRESSED);
}
END_TEST

/* -- Bad files ------------------------------------------------------------------------ */

/* plain.data with 8 bytes of it changed. */
static const struct {
	size_t at;
	uint64_t value;
	int code;
	const char *text;
} bad_headers[] = {
	{ 0, 0x0, PERFDATA_E_NOT_PERF, "not a perf.data file: it does not begin with PERFILE2" },
	{ 0, 0x454c494646524550, PERFDATA_E_VERSION, NULL }, /* PERFFILE */
	{ 0, 0x50455246494c4532, PERFDATA_E_VERSION, NULL }, /* big-endian */
	{ 8, 105, PERFDATA_E_VERSION, "unknown version: header of 105 bytes" },
	{ 8, 0, PERFDATA_E_VERSION, NULL },
	{ 8, UINT64_MAX, PERFDATA_E_VERSION, NULL },
	{ 16, 0, PERFDATA_E_CORRUPT, "corrupt: 144 bytes of attrs, each of 0" },
	{ 16, 72, PERFDATA_E_CORRUPT, NULL },
	{ 16, UINT64_MAX, PERFDATA_E_CORRUPT, NULL },
	{ 24, 0, PERFDATA_E_CORRUPT, "corrupt: attrs at offset 0 in the midst of other things" },
	{ 24, 300, PERFDATA_E_CORRUPT, NULL },
	{ 24, UINT64_MAX, PERFDATA_E_CORRUPT, NULL },
	{ 32, 145, PERFDATA_E_CORRUPT, NULL },
	{ 32, 144000, PERFDATA_E_TRUNCATED, NULL },
	{ 40, 0, PERFDATA_E_CORRUPT, "corrupt: records at offset 0" },
	{ 40, 110, PERFDATA_E_CORRUPT, NULL },
	{ 40, 1 << 30, PERFDATA_E_TRUNCATED, NULL },
	{ 48, 1 << 30, PERFDATA_E_TRUNCATED, NULL },
	{ 48, UINT64_MAX, PERFDATA_E_CORRUPT, NULL },
	{ 72, UINT64_MAX, PERFDATA_E_CORRUPT, NULL }, /* 64 features: the table reads texts */
	{ 104 + 0, 0x4000000001, 0, NULL },           /* the first id: no matter */
	{ 120, 0x0000000100000000 | 1, PERFDATA_E_CORRUPT,
	  "corrupt: attr of 1 bytes at offset 120" },
	{ 120, 0x0000008800000001, PERFDATA_E_CORRUPT, NULL }, /* attr.size of 136 in 144 */
	{ 120 + 128, UINT64_MAX - 8, PERFDATA_E_CORRUPT, NULL },
	{ 120 + 128, 1 << 30, PERFDATA_E_TRUNCATED, NULL },
	{ 120 + 128, 0, PERFDATA_E_CORRUPT,
	  "corrupt: ids at offset 0 in the midst of other things" },
	{ 120 + 136, UINT64_MAX, PERFDATA_E_CORRUPT, NULL },
};

START_TEST(test_bad_header)
{
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	_cleanup_close_ int fd = -1;
	_cleanup_buf_ struct buf b;
	int r;

	read_fixture("plain.data", &b);
	ck_assert_uint_eq(le64(b.data + 24), 120);
	set64(&b, bad_headers[_i].at, bad_headers[_i].value);
	fd = file_of(&b);
	r = perfdata_open(&p, fd, NULL);
	ck_assert_int_eq(r, bad_headers[_i].code);
	ck_assert_ptr_nonnull(p);
	if (bad_headers[_i].text)
		ck_assert_str_eq(perfdata_error_text(p, r), bad_headers[_i].text);
}
END_TEST

/* The last record of a file, and what is wrong with it. */
static const struct {
	uint32_t type;
	uint16_t size, there;
	uint64_t first; /* at 8 */
	int code;
	const char *text;
} bad_records[] = {
	{ PERFDATA_LOST, 0, 16, 0, PERFDATA_E_CORRUPT, "corrupt: record of 0 bytes at offset 272" },
	{ PERFDATA_LOST, 7, 16, 0, PERFDATA_E_CORRUPT, NULL },
	{ PERFDATA_LOST, 32, 24, 0, PERFDATA_E_TRUNCATED,
	  "truncated: record of 32 bytes at offset 272 needs 8 more" },
	{ PERFDATA_LOST, 65535, 24, 0, PERFDATA_E_TRUNCATED, NULL },
	{ PERFDATA_AUXTRACE, 48, 64, 17, PERFDATA_E_TRUNCATED,
	  "truncated: data of 17 bytes after the record at offset 272 need 1 more" },
	{ PERFDATA_AUXTRACE, 48, 64, UINT64_MAX, PERFDATA_E_TRUNCATED, NULL },
	{ PERFDATA_AUXTRACE, 48, 64, 16, PERFDATA_E_END, NULL },
	{ PERFDATA_AUXTRACE, 8, 8, 0, PERFDATA_E_CORRUPT,
	  "corrupt: record of type 71 and 8 bytes at offset 272" },
	{ PERFDATA_TRACING_DATA, 12, 12 + 8, 1, PERFDATA_E_END, NULL },
	{ PERFDATA_TRACING_DATA, 12, 12 + 8, 9, PERFDATA_E_TRUNCATED, NULL },
	{ PERFDATA_TRACING_DATA, 12, 12 + 8, UINT32_MAX, PERFDATA_E_TRUNCATED, NULL },
	{ PERFDATA_TRACING_DATA, 8, 8, 0, PERFDATA_E_CORRUPT, NULL },
	{ PERFDATA_COMPRESSED, 8, 8, 0, PERFDATA_E_END, NULL },
	{ PERFDATA_COMPRESSED2, 8, 8, 0, PERFDATA_E_CORRUPT,
	  "corrupt: compressed record of 8 bytes at offset 272" },
	{ PERFDATA_COMPRESSED2, 24, 24, 9, PERFDATA_E_CORRUPT, NULL },
	{ PERFDATA_COMPRESSED2, 24, 24, UINT64_MAX, PERFDATA_E_CORRUPT, NULL },
	{ PERFDATA_COMPRESSED2, 24, 24, 0, PERFDATA_E_END, NULL },
};

START_TEST(test_bad_record)
{
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	_cleanup_close_ int fd = -1;
	_cleanup_buf_ struct buf records;
	struct perfdata_record rec;
	size_t end;
	int r;

	buf_init(&records, SIZE_MAX);
	put_record(&records, PERFDATA_FINISHED_ROUND, 0, 8);
	end = records.len + bad_records[_i].there;
	put_record(&records, bad_records[_i].type, 0, bad_records[_i].size);
	buf_put_u64(&records, bad_records[_i].first);
	while (records.len < end)
		buf_put_u8(&records, 0);
	records.len = end;
	fd = make_fd(&simple, 1, 128, &records);
	p = open_good(fd, NULL);
	ck_assert_int_eq(perfdata_next(p, &rec), 0);
	while (!(r = perfdata_next(p, &rec)))
		;
	ck_assert_int_eq(r, bad_records[_i].code);
	if (bad_records[_i].text)
		ck_assert_str_eq(perfdata_error_text(p, r), bad_records[_i].text);
	ck_assert_int_eq(perfdata_next(p, &rec), r);
}
END_TEST

/* n attrs that all name the same list of n_ids ids, all of them alike or each another one. */
static int open_ids(struct perfdata **outp, size_t n, size_t n_ids, bool alike)
{
	const uint64_t attrs_at = 104 + 8 * n_ids;
	_cleanup_close_ int fd = -1;
	_cleanup_buf_ struct buf b;
	size_t i;

	buf_init(&b, SIZE_MAX);
	buf_append(&b, "PERFILE2", 8);
	buf_put_u64(&b, 104);
	buf_put_u64(&b, 80);
	buf_put_u64(&b, attrs_at);
	buf_put_u64(&b, n * 80);
	buf_put_u64(&b, attrs_at + n * 80);
	buf_put_u64(&b, 8);
	for (i = 0; i < 6; i++)
		buf_put_u64(&b, 0);
	for (i = 0; i < n_ids; i++)
		buf_put_u64(&b, alike ? 7 : i << 8);
	for (i = 0; i < n; i++) {
		put_attr(&b, &simple, 64);
		buf_put_u64(&b, 104);
		buf_put_u64(&b, 8 * n_ids);
	}
	put_record(&b, PERFDATA_FINISHED_ROUND, 0, 8);
	fd = file_of(&b);
	return perfdata_open(outp, fd, NULL);
}

/* All ids that are read count, so that the time is bounded as the table is. */
static const struct {
	size_t n, n_ids;
	bool alike;
	int code;
} id_lists[] = {
	{ 1, CAP_PERF_IDS, false, 0 },
	{ 1, CAP_PERF_IDS, true, 0 },
	{ 1, CAP_PERF_IDS + 1, false, PERFDATA_E_CORRUPT },
	{ 1, CAP_PERF_IDS + 1, true, PERFDATA_E_CORRUPT },
	{ 1024, CAP_PERF_IDS / 1024, true, 0 },
	{ 1024, CAP_PERF_IDS / 1024 + 1, true, PERFDATA_E_CORRUPT },
	{ CAP_PERF_ATTRS, CAP_PERF_IDS, true, PERFDATA_E_CORRUPT },
	{ CAP_PERF_ATTRS, CAP_PERF_IDS, false, PERFDATA_E_CORRUPT },
};

START_TEST(test_many_ids)
{
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	int r = open_ids(&p, id_lists[_i].n, id_lists[_i].n_ids, id_lists[_i].alike);

	ck_assert_int_eq(r, id_lists[_i].code);
	if (r)
		ck_assert_str_eq(perfdata_error_text(p, r),
				 "corrupt: more than 1048576 ids of events");
}
END_TEST

START_TEST(test_no_file)
{
	_cleanup_(perfdata_freep) struct perfdata *p = NULL, *dir = NULL, *part = NULL,
						  *file = NULL;
	_cleanup_close_ int fd = memory_file(), dir_fd = open("/", O_RDONLY | O_CLOEXEC);
	_cleanup_close_ int file_fd = open_fixture("plain.data");
	struct perfdata_record rec;

	ck_assert_int_eq(perfdata_open(&p, fd, NULL), PERFDATA_E_NOT_PERF);
	ck_assert_str_eq(perfdata_error_text(p, PERFDATA_E_NOT_PERF),
			 "not a perf.data file: it is empty");
	ck_assert_int_eq(perfdata_open(&dir, dir_fd, NULL), PERFDATA_E_NOT_PERF);
	ck_assert_str_eq(perfdata_error_text(dir, -ENOSPC), "No space left on device");
	/* but a thread may have recorded nothing */
	file = open_good(file_fd, NULL);
	part = open_good(fd, file);
	ck_assert_int_eq(perfdata_next(part, &rec), PERFDATA_E_END);
}
END_TEST

/* The disk is full, the reader of the pipe is gone. */
START_TEST(test_no_room)
{
	_cleanup_(perfdata_writer_freep) struct perfdata_writer *w = NULL;
	_cleanup_(perfdata_freep) struct perfdata *p = NULL;
	_cleanup_close_ int fd = open_fixture("plain.data"), full = open("/dev/full", O_WRONLY);
	struct perfdata_record rec;

	p = open_good(fd, NULL);
	ck_assert_int_eq(perfdata_writer_new(&w, p, full), 0);
	while (!perfdata_next(p, &rec))
		ck_assert_int_eq(perfdata_write_record(w, &rec), 0);
	ck_assert_int_eq(perfdata_writer_finish(w), -ENOSPC);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("perfdata");
	TCase *real = tcase_create("real"), *made = tcase_create("made"),
	      *bad = tcase_create("bad");
	SRunner *runner;
	int n_failed;

	tcase_add_loop_test(real, test_read, 0, ARRAY_SIZE(fixtures));
	tcase_add_loop_test(real, test_copy, 0, ARRAY_SIZE(fixtures));
	tcase_add_loop_test(real, test_grown, 0, ARRAY_SIZE(fixtures));
	tcase_add_test(real, test_parts);
	tcase_add_test(real, test_compressed2);
	suite_add_tcase(s, real);

	tcase_add_loop_test(made, test_layout, 0, ARRAY_SIZE(layouts));
	tcase_add_loop_test(made, test_read_format, 0, ARRAY_SIZE(reads));
	tcase_add_test(made, test_ids);
	tcase_add_test(made, test_no_identifier);
	tcase_add_test(made, test_trailers);
	tcase_add_test(made, test_moved);
	tcase_add_loop_test(made, test_edit, 0, ARRAY_SIZE(edits));
	tcase_add_test(made, test_edit_long);
	tcase_add_test(made, test_bomb);
	tcase_add_test(made, test_straddling);
	tcase_add_test(made, test_idle);
	suite_add_tcase(s, made);

	tcase_add_test(bad, test_bad_maps);
	tcase_add_loop_test(bad, test_inner, 0, ARRAY_SIZE(inner));
	tcase_add_test(bad, test_refused);
	tcase_add_loop_test(bad, test_bad_header, 0, ARRAY_SIZE(bad_headers));
	tcase_add_loop_test(bad, test_bad_record, 0, ARRAY_SIZE(bad_records));
	tcase_add_loop_test(bad, test_many_ids, 0, ARRAY_SIZE(id_lists));
	tcase_add_test(bad, test_no_file);
	tcase_add_test(bad, test_no_room);
	suite_add_tcase(s, bad);

	runner = srunner_create(s);
	srunner_run_all(runner, CK_NORMAL);
	n_failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
