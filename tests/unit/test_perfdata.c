/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real recordings (tests/fixtures/perfdata) against what perf itself reads in them (golden.txt), and
 * files made here by hand for what perf does not record on every machine.
 */
#include "perfdata/perfdata.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
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
		ck_assert_mem_eq(&s.id, &id, sizeof(id));
		sum_sample(sums, &s);
		break;
	case PERFDATA_MMAP:
	case PERFDATA_MMAP2:
		ck_assert_int_eq(perfdata_parse_mmap(p, rec, &m), 0);
		ck_assert_mem_eq(&m.id, &id, sizeof(id));
		sum_map(sums, &m);
		break;
	case PERFDATA_COMM:
	case PERFDATA_FORK:
	case PERFDATA_EXIT:
		ck_assert_int_eq(perfdata_parse_task(p, rec, &t), 0);
		if (rec->type == PERFDATA_COMM || id.has_time)
			ck_assert(t.time == id.time);
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
	{ "plain.data" },
	{ "chains.data" },
	{ "compressed.data", .compressed = true },
	{ "buildid.data" },
	{ "everywhere.data" },
	{ "thread.data", .no_time = true },
	{ "mono.data", .mono = true },
	{ "group.data" },
	{ "mixed.data", .no_time = true },
	{ "pipe.data", .pipe = true },
	{ "pipe-compressed.data", .pipe = true, .compressed = true },
	{ "killed.data", .unfinished = true },
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

			ck_assert_msg(sums->v[i] == v, "%s: sum %d is %" PRIu64 ", perf has %" PRIu64,
				      name, i, sums->v[i], v);
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
	for (i = 0; i < 40; i++)
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
	_cleanup_buf_ struct buf in_bytes, out_bytes, extra;
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
	{ S_IDENT | S_IP | S_TID | S_TIME | S_ADDR | S_ID | S_STREAM | S_CPU | S_PERIOD | S_RAW, 2, 3,
	  4, 9, 6, 6, 5 },
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
	{ 0, 1 },      { 1, 2 },      { 2, 2 },      { 4, 2 },	  { 16, 2 },	 { 23, 5 },
	{ 8, 1 + 3 },  { 9, 2 + 3 },  { 11, 3 + 3 }, { 12, 1 + 6 }, { 24, 1 + 6 }, { 28, 1 + 9 },
	{ 31, 3 + 9 },
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
			set64(&records, start + 8 * (2u + reads[_i].n), cut == n ? 3 : UINT64_MAX / 8 + 2);
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
		{ 11, 8, false, true }, { 22, 8, true, true },	   { 31, 0, false, true },
		{ 0, 8, false, true },	{ 999, 0, false, false },
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
		buf_put_u64(&b, 0); /* table, below */
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
	check_features_but_index(&b, &out_bytes);
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
