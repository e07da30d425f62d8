/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An export comes back as it went in, and what nobody should have made is refused: a file whose
 * content or size can still change, and every kind of damage to a good one.
 */
#include "query/export.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/caps.h"
#include "query/export_file.h"

#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

static const struct export_identity identity = {
	.start = 123456,
	.start_ns = 1000,
	.begin_ns = 2000,
	.attach_ns = 3000,
	.known_until = 9000,
	.horizon = 1500,
	.pid = 4321,
	.owner = 1000,
	.machine = 62,
	.complete = true,
	.with_code = true,
	.over_cap = true,
};

static struct range_body body_of(uint64_t start, uint64_t load, const char *name)
{
	return (struct range_body){
		.range = { .start = start,
			   .load = load,
			   .unload = RANGE_ALIVE,
			   .announced = load,
			   .method = 7 | UINT64_C(3) << 48,
			   .size = 16,
			   .flags = 0x108,
			   .token = 0x6000001,
			   /* a writer's business */
			   .name = 99,
			   .module = 99,
			   .il = 99 },
		.ns = "Lab.Hot",
		.ns_len = 7,
		.name = name,
		.name_len = (uint32_t)strlen(name),
		.sig = "void ()",
		.sig_len = 7,
		.function = "ignored",
		.function_len = 7,
		.module = "/app/load.dll",
		.module_len = 13,
	};
}

static const uint32_t il[] = { 0, 0, 4, 0xfffffffe, 8, 12 };

static int make(const struct range_body *bodies, size_t n, const uint8_t *code)
{
	_cleanup_(export_writer_freep) struct export_writer *w = NULL;
	const struct export_clock clock = { UINT32_MAX, 25, 111, 222 };
	size_t i;
	int fd;

	ck_assert_int_eq(export_writer_new(&w, MIB(64)), 0);
	for (i = 0; i < n; i++)
		ck_assert_int_eq(export_add(w, &bodies[i], i % 2 ? code : NULL), 0);
	ck_assert_int_eq(export_add_gap(w, &(struct export_gap){ 10, 20 }), 0);
	ck_assert_int_eq(export_add_mapping(w, 0x400000, "/app/libcoreclr.so", 18), 0);
	ck_assert_int_eq(export_add_mapping(w, 0x500000, "/app/cut\0off", 12), 0);
	ck_assert_int_eq(export_add_clock(w, &clock), 0);
	ck_assert_int_eq(export_finish(w, &identity, &fd), 0);
	return fd;
}

/* Three bodies, two of one method, one with an IL map; the second with code. */
static int make_three(void)
{
	struct range_body bodies[] = {
		body_of(0x2000, 50, "Inner"),
		body_of(0x1000, 70, "Outer"),
		body_of(0x1000, 30, "Inner"),
	};

	bodies[0].il = il;
	bodies[0].n_il = 3;
	bodies[2].range.unload = 60;
	return make(bodies, 3, (const uint8_t *)"0123456789abcdef");
}

START_TEST(test_round_trip)
{
	_cleanup_(export_freep) struct export *e = NULL;
	_cleanup_close_ int fd = make_three();
	struct range_body first, second, third;
	const char *path;

	ck_assert_int_eq(fcntl(fd, F_GET_SEALS), ALL_SEALS);
	ck_assert_int_eq(export_open(&e, fd), 0);
	ck_assert_mem_eq(export_get_identity(e), &identity, sizeof(identity));
	ck_assert_uint_eq(export_n_bodies(e), 3);
	export_body(e, 0, &first);
	export_body(e, 1, &second);
	export_body(e, 2, &third);
	ck_assert_uint_eq(first.range.load, 30);
	ck_assert_uint_eq(first.range.unload, 60);
	ck_assert_uint_eq(second.range.load, 70);
	ck_assert_uint_eq(third.range.start, 0x2000);
	ck_assert_uint_eq(range_method_id(&third.range), 7);
	ck_assert_uint_eq(range_version(&third.range), 3);
	ck_assert_uint_eq(third.name_len, 5);
	ck_assert_mem_eq(third.name, "Inner", 5);
	ck_assert_mem_eq(third.ns, "Lab.Hot", 7);
	ck_assert_mem_eq(third.sig, "void ()", 7);
	ck_assert_str_eq(third.module, "/app/load.dll");
	ck_assert_ptr_null(third.function);
	/* texts are shared */
	ck_assert_ptr_eq(third.name, first.name);
	ck_assert_ptr_eq(third.module, second.module);
	ck_assert_ptr_ne(second.name, first.name);
	ck_assert_uint_eq(third.n_il, 3);
	ck_assert_mem_eq(third.il, il, sizeof(il));
	ck_assert_ptr_null(first.il);
	ck_assert_mem_eq(export_code(e, 1), "0123456789abcdef", 16);
	ck_assert_ptr_null(export_code(e, 0));
	ck_assert_uint_eq(export_find(e, 0x1000, 70), 1);
	ck_assert_uint_eq(export_find(e, 0x1000, 71), SIZE_MAX);
	ck_assert_uint_eq(export_find(e, 0x3000, 0), SIZE_MAX);
	ck_assert_uint_eq(export_n_gaps(e), 1);
	ck_assert_uint_eq(export_gap_at(e, 0).to, 20);
	ck_assert_uint_eq(export_n_mappings(e), 2);
	ck_assert_uint_eq(export_mapping(e, 0, &path), 0x400000);
	ck_assert_str_eq(path, "/app/libcoreclr.so");
	export_mapping(e, 1, &path);
	ck_assert_str_eq(path, "/app/cut");
	ck_assert_uint_eq(export_n_clocks(e), 1);
	ck_assert_uint_eq(export_clock_at(e, 0).mono_ns, 222);
	ck_assert_uint_eq(export_clock_at(e, 0).clockid, UINT32_MAX);
}
END_TEST

START_TEST(test_empty)
{
	_cleanup_(export_writer_freep) struct export_writer *w = NULL;
	_cleanup_(export_freep) struct export *e = NULL;
	_cleanup_close_ int fd = -1;
	int again;

	ck_assert_int_eq(export_writer_new(&w, KIB(4)), 0);
	ck_assert_int_eq(export_finish(w, &identity, &fd), 0);
	ck_assert_int_eq(export_finish(w, &identity, &again), -EBADF);
	ck_assert_int_eq(export_open(&e, fd), 0);
	ck_assert_uint_eq(export_n_bodies(e), 0);
	ck_assert_uint_eq(export_find(e, 1, 1), SIZE_MAX);
	ck_assert_uint_eq(export_n_mappings(e), 0);
}
END_TEST

/* What is full says so, and what went in before is whole. */
START_TEST(test_full)
{
	_cleanup_(export_writer_freep) struct export_writer *w = NULL;
	_cleanup_(export_freep) struct export *e = NULL;
	_cleanup_close_ int fd = -1;
	size_t i, n, max = MIB(1);
	struct stat st;
	char name[64];
	int r = 0;

	ck_assert_int_eq(export_writer_new(&w, max), 0);
	for (n = 0; !r; n += !r) {
		struct range_body body;

		snprintf(name, sizeof(name), "M%zu", n);
		body = body_of(0x1000 + 16 * n, n, name);
		r = export_add(w, &body, NULL);
	}
	ck_assert_int_eq(r, EXPORT_E_FULL);
	while (export_add_gap(w, &(struct export_gap){ 1, 2 }) == 0)
		;
	while (export_add_mapping(w, 1, "/", 1) == 0)
		;
	ck_assert_int_eq(export_add_clock(w, &(struct export_clock){ 0 }), EXPORT_E_FULL);
	ck_assert_int_eq(export_finish(w, &identity, &fd), 0);
	ck_assert_int_eq(fstat(fd, &st), 0);
	ck_assert_uint_le((size_t)st.st_size, max);
	/* the references to code that did not come were reckoned with */
	ck_assert_uint_ge((size_t)st.st_size, max / 16 * 15);
	ck_assert_int_eq(export_open(&e, fd), 0);
	ck_assert_uint_eq(export_n_bodies(e), n);
	for (i = 0; i < n; i++) {
		struct range_body body;

		export_body(e, i, &body);
		snprintf(name, sizeof(name), "M%zu", i);
		ck_assert_uint_eq(body.name_len, strlen(name));
		ck_assert_mem_eq(body.name, name, body.name_len);
	}
}
END_TEST

START_TEST(test_bodies_that_cannot_be)
{
	_cleanup_(export_writer_freep) struct export_writer *w = NULL;
	_cleanup_(export_freep) struct export *e = NULL;
	_cleanup_close_ int fd = -1;
	struct range_body body;

	ck_assert_int_eq(export_writer_new(&w, MIB(1)), 0);
	body = body_of(0x1000, 5, "x");
	body.range.size = 0;
	ck_assert_int_eq(export_add(w, &body, NULL), EXPORT_E_INVALID);
	body.range.size = CAP_BODY_BYTES + 1;
	ck_assert_int_eq(export_add(w, &body, NULL), EXPORT_E_INVALID);
	body = body_of(UINT64_MAX - 4, 5, "x");
	ck_assert_int_eq(export_add(w, &body, NULL), EXPORT_E_INVALID);
	body = body_of(0x1000, 5, "x");
	body.range.unload = 4;
	ck_assert_int_eq(export_add(w, &body, NULL), EXPORT_E_INVALID);
	body = body_of(0x1000, 5, "x");
	body.il = il;
	body.n_il = CAP_IL_ENTRIES + 1;
	ck_assert_int_eq(export_add(w, &body, NULL), EXPORT_E_INVALID);
	ck_assert_int_eq(export_finish(w, &identity, &fd), 0);
	ck_assert_int_eq(export_open(&e, fd), 0);
	ck_assert_uint_eq(export_n_bodies(e), 0);
}
END_TEST

START_TEST(test_long_texts)
{
	_cleanup_free_ char *text = malloc(100000);
	_cleanup_(export_freep) struct export *e = NULL;
	_cleanup_close_ int fd = -1;
	struct range_body body = body_of(0x1000, 5, "");

	memset(text, 'a', 100000);
	/* a character that must not be cut */
	memcpy(text + CAP_NAME_LENGTH - 1, "\xc3\xa4", 2);
	body.ns = body.name = body.sig = body.module = text;
	body.ns_len = body.name_len = body.sig_len = body.module_len = 100000;
	fd = make(&body, 1, NULL);
	ck_assert_int_eq(export_open(&e, fd), 0);
	export_body(e, 0, &body);
	ck_assert_uint_eq(body.name_len, CAP_NAME_LENGTH - 1);
	ck_assert_uint_eq(strlen(body.module), CAP_NAME_LENGTH - 1);
}
END_TEST

/* -- what is refused ------------------------------------------------------------------ */

static int file_of(const void *data, size_t n, int seals)
{
	int fd = memfd_create("test", MFD_ALLOW_SEALING | MFD_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, data, n), (ssize_t)n);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static size_t read_three(uint8_t *data, size_t size)
{
	_cleanup_close_ int fd = make_three();
	ssize_t n = pread(fd, data, size, 0);

	ck_assert_int_gt(n, (ssize_t)sizeof(struct export_header));
	ck_assert_int_lt(n, (ssize_t)size);
	return (size_t)n;
}

static int open_bytes(const void *data, size_t n, int seals)
{
	_cleanup_close_ int fd = file_of(data, n, seals);
	_cleanup_(export_freep) struct export *e = NULL;

	return export_open(&e, fd);
}

START_TEST(test_seals)
{
	_cleanup_close_ int plain = open("/proc/self/exe", O_RDONLY);
	_cleanup_(export_freep) struct export *e = NULL;
	uint8_t data[4096];
	int ends[2];
	size_t n = read_three(data, sizeof(data));

	ck_assert_int_eq(open_bytes(data, n, ALL_SEALS), 0);
	ck_assert_int_eq(open_bytes(data, n, F_SEAL_WRITE | F_SEAL_SHRINK), 0);
	ck_assert_int_eq(open_bytes(data, n, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
			 EXPORT_E_INVALID);
	ck_assert_int_eq(open_bytes(data, n, F_SEAL_WRITE), EXPORT_E_INVALID);
	ck_assert_int_eq(open_bytes(data, n, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW),
			 EXPORT_E_INVALID);
	ck_assert_int_eq(open_bytes(data, n, 0), EXPORT_E_INVALID);
	ck_assert_int_eq(export_open(&e, plain), EXPORT_E_INVALID);
	ck_assert_int_eq(pipe(ends), 0);
	ck_assert_int_eq(export_open(&e, ends[0]), EXPORT_E_INVALID);
	close(ends[0]);
	close(ends[1]);
	ck_assert_int_eq(export_open(&e, -1), -EBADF);
}
END_TEST

START_TEST(test_read_only_fd)
{
	_cleanup_close_ int fd = make_three(), again = -1;
	_cleanup_(export_freep) struct export *e = NULL;
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(export_open(&e, again), 0);
}
END_TEST

START_TEST(test_cut)
{
	uint8_t data[4096] = { 0 };
	size_t n = read_three(data, sizeof(data)), i;

	for (i = 0; i < n; i++)
		ck_assert_int_eq(open_bytes(data, i, ALL_SEALS), EXPORT_E_INVALID);
	ck_assert_int_eq(open_bytes(data, n + 8, ALL_SEALS), EXPORT_E_INVALID);
}
END_TEST

/* Each damage alone is enough. */
static const struct {
	enum export_part part; /* EXPORT_N_PARTS: the header */
	size_t at, size;
	uint64_t value;
} damages[] = {
#define HEADER(field, v) \
	{ \
		EXPORT_N_PARTS, offsetof(struct export_header, field), \
			sizeof(((struct export_header *)0)->field), v \
	}
#define RANGE(i, field, v) \
	{ \
		EXPORT_RANGES, (i) * sizeof(struct range) + offsetof(struct range, field), \
			sizeof(((struct range *)0)->field), v \
	}
	HEADER(magic, 0),
	HEADER(version, 2),
	HEADER(bytes, 8),
	HEADER(pid, 0x80000000),
	HEADER(machine, 0x10000),
	HEADER(heap_offset, 0),
	HEADER(heap_offset, 1 << 30),
	HEADER(heap_bytes, UINT64_MAX),
	HEADER(heap_bytes, 0),
	HEADER(parts[EXPORT_RANGES].offset, 1),
	HEADER(parts[EXPORT_RANGES].offset, UINT64_MAX - 7),
	HEADER(parts[EXPORT_RANGES].n, UINT64_MAX),
	HEADER(parts[EXPORT_RANGES].n, UINT64_C(1) << 58),
	HEADER(parts[EXPORT_CODE].n, 2),
	HEADER(parts[EXPORT_GAPS].n, 1000),
	HEADER(parts[EXPORT_MAPPINGS].n, 1000),
	HEADER(parts[EXPORT_CLOCKS].n, 1000),
	RANGE(0, start, 0x3000),
	RANGE(2, start, 0),
	RANGE(0, load, 0x3000),
	RANGE(0, unload, 1),
	RANGE(0, size, 0),
	RANGE(0, size, UINT32_MAX),
	RANGE(2, start, UINT64_MAX - 4),
	RANGE(0, name, 1),
	RANGE(0, name, UINT32_MAX),
	RANGE(0, module, 1),
	RANGE(0, module, UINT32_MAX),
	RANGE(2, il, 1),
	RANGE(2, il, UINT32_MAX),
	{ EXPORT_CODE, 4, 4, 1 },
	{ EXPORT_CODE, 4, 4, UINT32_MAX },
	{ EXPORT_GAPS, 0, 8, 21 },
	{ EXPORT_MAPPINGS, 8, 4, 0 },
	{ EXPORT_MAPPINGS, 8, 4, UINT32_MAX },
};

START_TEST(test_damage)
{
	uint8_t data[4096];
	size_t n = read_three(data, sizeof(data)), at = damages[_i].at;
	const struct export_header *h = (const void *)data;

	if (damages[_i].part != EXPORT_N_PARTS)
		at += h->parts[damages[_i].part].offset;
	ck_assert_uint_le(at + damages[_i].size, n);
	memcpy(data + at, &damages[_i].value, damages[_i].size);
	ck_assert_int_eq(open_bytes(data, n, ALL_SEALS), EXPORT_E_INVALID);
}
END_TEST

/* The heap's records: lengths that lead out of it, and a text without its NUL. */
static const struct {
	size_t field; /* of struct range: which reference */
	size_t range, at;
	uint32_t value;
} records[] = {
	{ offsetof(struct range, name), 0, offsetof(struct range_name, ns_len), 60000 },
	{ offsetof(struct range, name), 0, offsetof(struct range_name, name_len), 60000 },
	{ offsetof(struct range, name), 0, offsetof(struct range_name, sig_len), 65536 },
	{ offsetof(struct range, name), 0, offsetof(struct range_name, function_len), 1 },
	{ offsetof(struct range, module), 0, 0, 12 },
	{ offsetof(struct range, module), 0, 0, 60000 },
	{ offsetof(struct range, module), 0, 0, UINT32_MAX },
	{ offsetof(struct range, il), 2, 0, 0 },
	{ offsetof(struct range, il), 2, 0, 6000 },
	{ offsetof(struct range, il), 2, 0, CAP_IL_ENTRIES + 1 },
};

START_TEST(test_damaged_records)
{
	uint8_t data[4096];
	size_t n = read_three(data, sizeof(data)), i = (size_t)_i;
	const struct export_header *h = (const void *)data;
	uint32_t ref;

	memcpy(&ref,
	       data + h->parts[EXPORT_RANGES].offset + records[i].range * sizeof(struct range) +
		       records[i].field,
	       sizeof(ref));
	ck_assert_uint_ne(ref, 0);
	memcpy(data + 8 * (size_t)ref + records[i].at, &records[i].value, 4);
	ck_assert_int_eq(open_bytes(data, n, ALL_SEALS), EXPORT_E_INVALID);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("export");
	TCase *tc = tcase_create("writing");
	SRunner *sr;
	int failed;

	tcase_add_test(tc, test_round_trip);
	tcase_add_test(tc, test_empty);
	tcase_add_test(tc, test_full);
	tcase_add_test(tc, test_bodies_that_cannot_be);
	tcase_add_test(tc, test_long_texts);
	suite_add_tcase(s, tc);
	tc = tcase_create("reading");
	tcase_add_test(tc, test_seals);
	tcase_add_test(tc, test_read_only_fd);
	tcase_add_test(tc, test_cut);
	tcase_add_loop_test(tc, test_damage, 0, ARRAY_SIZE(damages));
	tcase_add_loop_test(tc, test_damaged_records, 0, ARRAY_SIZE(records));
	suite_add_tcase(s, tc);

	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
