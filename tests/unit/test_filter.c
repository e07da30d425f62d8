/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses in the text of profilers: recorded texts (tests/fixtures/filter) against what a parser
 * of its own finds in them (make-found there), and single lines, hostile ones among them.
 */
#include "query/stacks.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/util.h"

#define FIXTURES "tests/fixtures/filter/"

static const char *const forms[] = {
	[STACKS_PERF] = "perf",
	[STACKS_BPFTRACE] = "bpftrace",
	[STACKS_UNKNOWN] = "unknown",
	[STACKS_BARE] = "bare",
};

/* "pid time addr form leaf|caller[ offset]" */
static void put_address(struct buf *out, const struct stacks *s, const struct stacks_address *a)
{
	bool known = s->in_sample && s->has_pid;

	buf_printf(out, "%d %" PRIu64 " %" PRIx64 " %s %s%s", known ? (int)s->pid : 0,
		   known ? s->time : 0, a->addr, forms[a->form], a->caller ? "caller" : "leaf",
		   a->is_offset ? " offset" : "");
}

/* -- recorded texts --------------------------------------------------------------------- */

static const char *const texts[] = {
	"bpftrace-default", "bpftrace-named", "bpftrace-perf", "bpftrace-raw",
	"perf-all",         "perf-header",    "perf-mmap",     "perf-single",
};

static FILE *open_fixture(const char *name, const char *ending)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), FIXTURES "%s.%s", name, ending);
	f = fopen(path, "re");
	ck_assert_msg(f, "%s", path);
	return f;
}

/* What is found in one text, a line each. */
static void find_all(const char *name, struct buf *found, struct stacks *s)
{
	_cleanup_fclose_ FILE *f = open_fixture(name, "txt");
	_cleanup_free_ char *line = NULL;
	struct stacks_address a;
	size_t size = 0, n = 0;
	ssize_t len;

	while ((len = getline(&line, &size, f)) > 0) {
		n++;
		len -= line[len - 1] == '\n';
		if (stacks_line(s, line, (size_t)len) == STACKS_MAPPING)
			continue;
		while (stacks_next(s, &a)) {
			ck_assert_uint_le(a.to, (size_t)len);
			buf_printf(found, "%zu ", n);
			put_address(found, s, &a);
			buf_putc(found, '\n');
		}
	}
}

START_TEST(test_text)
{
	_cleanup_buf_ struct buf found = { .cap = SIZE_MAX }, wanted = { .cap = SIZE_MAX };
	_cleanup_fclose_ FILE *f = open_fixture(texts[_i], "found");
	struct stacks s = { 0 };
	char piece[4096];
	size_t n;

	while ((n = fread(piece, 1, sizeof(piece), f)) > 0)
		buf_append(&wanted, piece, n);
	find_all(texts[_i], &found, &s);
	ck_assert_uint_gt(found.len, 0);
	ck_assert_str_eq(buf_cstr(&found), buf_cstr(&wanted));
	ck_assert_int_eq(s.clock, strcmp(texts[_i], "perf-header") == 0 ? STACKS_CLOCK_MONO
									: STACKS_CLOCK_UNKNOWN);
}
END_TEST

START_TEST(test_mappings)
{
	_cleanup_fclose_ FILE *f = open_fixture("perf-mmap", "txt");
	_cleanup_free_ char *line = NULL;
	struct stacks s = { 0 };
	struct stacks_mapping m;
	unsigned int n = 0, n_code = 0;
	size_t size = 0;
	ssize_t len;

	while ((len = getline(&line, &size, f)) > 0) {
		if (stacks_line(&s, line, (size_t)len - 1) != STACKS_MAPPING)
			continue;
		stacks_get_mapping(&s, &m);
		ck_assert_int_gt(m.pid, 1);
		ck_assert_uint_gt(m.len, 0);
		ck_assert_uint_gt(m.start, 0x550000000000);
		ck_assert_uint_gt(m.path_len, 0);
		ck_assert_ptr_eq(m.path + m.path_len, line + len - 1);
		n_code += m.executable;
		n++;
	}
	ck_assert_uint_gt(n, 5);
	ck_assert_uint_eq(n_code, n);
}
END_TEST

START_TEST(test_mapping)
{
	static const char line[] = "load  0  0.000000: PERF_RECORD_MMAP2 12/13: [0x7f01(0x1000) @ "
				   "0x20 fe:00 5 0]: r-xp /a b";
	static const char build_id[] = "x 1 2.000000: PERF_RECORD_MMAP2 12/12: [0x7f01(0x10) @ 0 "
				       "<0102>]: rw-p /c";
	struct stacks s = { 0 };
	struct stacks_mapping m;

	ck_assert_int_eq(stacks_line(&s, line, strlen(line)), STACKS_MAPPING);
	stacks_get_mapping(&s, &m);
	ck_assert_int_eq(m.pid, 12);
	ck_assert_uint_eq(m.start, 0x7f01);
	ck_assert_uint_eq(m.len, 0x1000);
	ck_assert_uint_eq(m.offset, 0x20);
	ck_assert(m.executable);
	ck_assert_uint_eq(m.path_len, 4);
	ck_assert_mem_eq(m.path, "/a b", 4);
	ck_assert_int_eq(stacks_line(&s, build_id, strlen(build_id)), STACKS_MAPPING);
	stacks_get_mapping(&s, &m);
	ck_assert(!m.executable);
	ck_assert_uint_eq(m.offset, 0);
}
END_TEST

/* -- single lines ----------------------------------------------------------------------- */

/* Lines one after the other ("\n" between them), and what is found in the last one: the text that
 * would be replaced, and the address. */
static const struct {
	const char *lines, *found;
} cases[] = {
	/* frames */
	{ "\t7f917a893656 0x7f917a893656 ([unknown])",
	  "<0x7f917a893656 ([unknown])> 0 0 7f917a893656 unknown leaf" },
	{ "\t7f917a893656 0x7f917a893656", "<0x7f917a893656> 0 0 7f917a893656 bpftrace leaf" },
	{ "\t7f917a893656 [unknown]", "<[unknown]> 0 0 7f917a893656 perf leaf" },
	{ "\t7f917a893656 [unknown] (/a)", "<[unknown]> 0 0 7f917a893656 perf leaf offset" },
	{ "\t7f917a893656 [unknown] ([unknown])", "<[unknown]> 0 0 7f917a893656 perf leaf" },
	{ "\t7f917a893656 [unknown]x", "" },
	{ "\t7f917a893656 name+22 (/a)", "" },
	{ "\t7f917a893656 name+0x7f917a893656 (/a)", "" },
	{ "\t7f917a893656 0x7f917a893657", "<0x7f917a893657> 0 0 7f917a893657 bare leaf" },
	{ "        0x7f917a893656", "<0x7f917a893656> 0 0 7f917a893656 bpftrace leaf" },
	{ "7f917a893656", "<7f917a893656> 0 0 7f917a893656 bpftrace leaf" },
	{ "1234567", "" },
	{ "7f917a893656 ", "" },
	{ "7f917a893656123456789", "" },
	{ "    7f917a893656", "" },
	/* callers */
	{ "\t7f01 name+1 (/a)\n\t7f917a893656 [unknown]",
	  "<[unknown]> 0 0 7f917a893656 perf caller" },
	{ "7f917a893656\n7f917a893657", "<7f917a893657> 0 0 7f917a893657 bpftrace caller" },
	{ "    0x7f917a893656\n\n    0x7f917a893657",
	  "<0x7f917a893657> 0 0 7f917a893657 bpftrace leaf" },
	{ "\tffffffff81000000 [unknown] ([kernel.kallsyms])\n\t7f917a893656 [unknown] (/a)",
	  "<[unknown]> 0 0 7f917a893656 perf leaf offset" },
	/* samples */
	{ "load 12 1.000002: x:\n\t  1234 [unknown] (/a)",
	  "<[unknown]> 12 1000002000 1234 perf leaf offset" },
	{ "load 12/13 [001] 1.000000002: x:\n\t  1234 [unknown] (/a)",
	  "<[unknown]> 12 1000000002 1234 perf leaf offset" },
	{ ".NET TP Worker 12/13    [001] 1.000002: x:\n\t  1234 [unknown] (/a)",
	  "<[unknown]> 12 1000002000 1234 perf leaf offset" },
	{ "            load 12 1.000002: 10 x:  7f917a893656 [unknown] (/a b (deleted))",
	  "<[unknown]> 12 1000002000 7f917a893656 perf leaf" },
	{ "load 12 1.000002: 10 x:  7f917a893656 name+0x1 (/a)", "" },
	{ "load 12 1.000002: x:\n\n\t  1234 [unknown] (/a)",
	  "<[unknown]> 0 0 1234 perf leaf offset" },
	{ "12 1.000002: 7f917a893656 [unknown]",
	  "<[unknown]> 12 1000002000 7f917a893656 perf leaf" },
	{ "load 12 1.00002: x:\n\t  1234 [unknown] (/a)", "<[unknown]> 0 0 1234 perf leaf offset" },
	/* a comm, or a symbol, that looks like another sample */
	{ "a 1 1.000000: 12 1.000002: x:\n\t  1234 [unknown] (/a)",
	  "<[unknown]> 0 0 1234 perf leaf offset" },
	{ "load 12 1.000002: x:\n\t            1234 1 1.000000: (/a)\n\t  1234 [unknown] (/a)",
	  "<[unknown]> 12 1000002000 1234 perf caller offset" },
	/* anywhere */
	{ "at 0x7f917a893656, and 0x1234", "<0x7f917a893656> 0 0 7f917a893656 bare leaf" },
	{ "[0x7f917a893656]=0x7f917a893657", "<0x7f917a893656> 0 0 7f917a893656 bare leaf"
					     "<0x7f917a893657> 0 0 7f917a893657 bare leaf" },
	{ "a0x7f917a893656 0x7f917a893656g 0x 0x7f917a89365612345 name+0x7f917a893656", "" },
	{ "0x7F917A893656", "<0x7F917A893656> 0 0 7f917a893656 bare leaf" },
	{ "", "" },
	{ "\t", "" },
	{ "0x", "" },
};

START_TEST(test_lines)
{
	_cleanup_buf_ struct buf found = { .cap = SIZE_MAX };
	_cleanup_free_ char *lines = strdup(cases[_i].lines);
	struct stacks_address a;
	struct stacks s = { 0 };
	char *line, *rest = lines;

	while ((line = strsep(&rest, "\n"))) {
		buf_clear(&found);
		(void)stacks_line(&s, line, strlen(line));
		while (stacks_next(&s, &a)) {
			buf_printf(&found, "<%.*s> ", (int)(a.to - a.from), line + a.from);
			put_address(&found, &s, &a);
		}
	}
	ck_assert_str_eq(buf_cstr(&found), cases[_i].found);
}
END_TEST

START_TEST(test_clock)
{
	struct stacks s = { 0 };

	(void)stacks_line(&s, "# clockid: monotonic_raw (4)", 28);
	ck_assert_int_eq(s.clock, STACKS_CLOCK_OTHER);
	(void)stacks_line(&s, "# clockid: monotonic (1)", 24);
	ck_assert_int_eq(s.clock, STACKS_CLOCK_MONO);
}
END_TEST

START_TEST(test_skip)
{
	static const char head[] = "load 12 1.000002: x:";
	struct stacks_address a;
	struct stacks s = { 0 };

	(void)stacks_line(&s, head, strlen(head));
	ck_assert(s.in_sample);
	stacks_skip(&s);
	ck_assert(!s.in_sample);
	ck_assert(!stacks_next(&s, &a));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("filter");
	TCase *tc = tcase_create("stacks");
	SRunner *runner;
	int failed;

	tcase_add_loop_test(tc, test_text, 0, (int)ARRAY_SIZE(texts));
	tcase_add_test(tc, test_mappings);
	tcase_add_test(tc, test_mapping);
	tcase_add_loop_test(tc, test_lines, 0, (int)ARRAY_SIZE(cases));
	tcase_add_test(tc, test_clock);
	tcase_add_test(tc, test_skip);
	suite_add_tcase(s, tc);
	runner = srunner_create(s);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
