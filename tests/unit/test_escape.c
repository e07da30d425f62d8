/* SPDX-License-Identifier: Apache-2.0 */
/* Text of a target on its way to a line or a terminal: case by case, then any bytes at all. */
#include "base/escape.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define BAD "\xef\xbf\xbd"

static const struct {
	const char *in;
	size_t len;
	const char *line, *terminal;
} cases[] = {
	{ "", 0, "", "" },
	{ "Ns.Type::Method(int32)", 22, "Ns.Type::Method(int32)", "Ns.Type::Method(int32)" },
	{ "a\tb\nc\rd", 7, "a?b?c?d", "a\\x09b\\x0ac\\x0dd" },
	{ "a\0b", 3, "a?b", "a\\x00b" },
	{ "\x1b[31mred", 8, "?[31mred", "\\x1b[31mred" },
	{ "\x7f\xc2\x80\xc2\x9f\xc2\xa0", 7, "???\xc2\xa0", "\\x7f\\x80\\x9f\xc2\xa0" },
	{ "\xe2\x80\xa8|\xe2\x80\xa9", 7, "?|?", "\\u{2028}|\\u{2029}" },
	{ "\xe2\x80\xae|\xe2\x81\xa6|\xe2\x80\x8f", 11, "?|?|?", "\\u{202e}|\\u{2066}|\\u{200f}" },
	{ "\xef\xbb\xbfx", 4, "?x", "\\u{feff}x" },
	{ "gr\xc3\xbc\xc3\x9f \xe6\x97\xa5 \xf0\x9f\x98\x80", 15,
	  "gr\xc3\xbc\xc3\x9f \xe6\x97\xa5 \xf0\x9f\x98\x80",
	  "gr\xc3\xbc\xc3\x9f \xe6\x97\xa5 \xf0\x9f\x98\x80" },
	/* not UTF-8: a stray tail, a cut character, overlong, a surrogate, beyond the last */
	{ "a\x80z", 3, "a" BAD "z", "a\\x80z" },
	{ "a\xe6\x97", 3, "a" BAD BAD, "a\\xe6\\x97" },
	{ "\xc0\xaf", 2, BAD BAD, "\\xc0\\xaf" },
	{ "\xed\xa0\x80", 3, BAD BAD BAD, "\\xed\\xa0\\x80" },
	{ "\xf4\x90\x80\x80", 4, BAD BAD BAD BAD, "\\xf4\\x90\\x80\\x80" },
	{ "\xff\xfe", 2, BAD BAD, "\\xff\\xfe" },
	/* the real replacement character is a character like any other */
	{ BAD, 3, BAD, BAD },
};

START_TEST(test_cases)
{
	struct buf out;

	buf_init(&out, 1000);
	ck_assert_int_eq(escape_line(&out, cases[_i].in, cases[_i].len, SIZE_MAX), 0);
	ck_assert_str_eq(out.len ? buf_cstr(&out) : "", cases[_i].line);
	ck_assert_str_eq(escape_terminal(cases[_i].in, cases[_i].len), cases[_i].terminal);
	buf_deinit(&out);
}
END_TEST

/* No cut splits a character, and none is more than a character short. */
START_TEST(test_cut)
{
	static const char text[] = "a\xc3\xbc\xe6\x97\xa5\xf0\x9f\x98\x80\x80\x1b";
	static const size_t ends[] = { 0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10, 10, 13, 14, 14 };
	size_t max;

	for (max = 0; max < ARRAY_SIZE(ends); max++) {
		struct buf out;

		buf_init(&out, 1000);
		ck_assert_int_eq(escape_line(&out, text, sizeof(text) - 1, max), 0);
		ck_assert_uint_eq(out.len, ends[max]);
		buf_deinit(&out);
	}
}
END_TEST

static bool is_clean(const uint8_t *p, size_t n)
{
	size_t i = 0, k, width;

	while (i < n) {
		if (p[i] < 0x20 || p[i] == 0x7f)
			return false;
		width = p[i] < 0x80 ? 1 : p[i] < 0xe0 ? 2 : p[i] < 0xf0 ? 3 : 4;
		if ((p[i] >= 0x80 && p[i] < 0xc2) || p[i] > 0xf4 || i + width > n)
			return false;
		for (k = 1; k < width; k++)
			if ((p[i + k] & 0xc0) != 0x80)
				return false;
		if (p[i] == 0xc2 && p[i + 1] < 0xa0)
			return false;
		i += width;
	}
	return true;
}

START_TEST(test_any_bytes)
{
	uint64_t rng = 88172645463325252u;
	uint32_t round, i;

	for (round = 0; round < 20000; round++) {
		uint8_t in[24];
		size_t len, max;
		struct buf out;

		for (i = 0; i < sizeof(in); i++) {
			rng ^= rng << 13;
			rng ^= rng >> 7;
			rng ^= rng << 17;
			/* more of the bytes that matter */
			in[i] = rng >> 60 ? (uint8_t)(rng >> 20)
					  : (uint8_t)("\xe2\x80\xa8\xc2\x9f\xf0\xed\xbf"[rng >> 40 &
											 7]);
		}
		len = rng % sizeof(in);
		max = rng >> 32 & 1 ? SIZE_MAX : rng >> 33 & 31;
		buf_init(&out, 1000);
		ck_assert_int_eq(escape_line(&out, (char *)in, len, max), 0);
		ck_assert(is_clean(out.data, out.len));
		ck_assert_uint_le(out.len, max);
		escape_terminal((char *)in, len);
		buf_deinit(&out);
	}
}
END_TEST

START_TEST(test_terminal_long)
{
	char text[5000];
	const char *out, *first;

	memset(text, '\x1b', sizeof(text));
	out = escape_terminal(text, sizeof(text));
	ck_assert_uint_lt(strlen(out), 1024);
	ck_assert_str_eq(out + strlen(out) - 7, "\\x1b...");
	/* four at a time */
	first = escape_terminal("1", 1);
	escape_terminal("2", 1);
	escape_terminal("3", 1);
	escape_terminal("4", 1);
	ck_assert_str_eq(first, "1");
}
END_TEST

START_TEST(test_full_buffer)
{
	struct buf out;

	buf_init(&out, 4);
	ck_assert_int_lt(escape_line(&out, "abc\x01zzz", 7, SIZE_MAX), 0);
	buf_deinit(&out);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("escape");
	TCase *tc = tcase_create("escape");
	SRunner *runner;
	int failed;

	tcase_add_loop_test(tc, test_cases, 0, (int)ARRAY_SIZE(cases));
	tcase_add_test(tc, test_cut);
	tcase_add_test(tc, test_any_bytes);
	tcase_add_test(tc, test_terminal_long);
	tcase_add_test(tc, test_full_buffer);
	suite_add_tcase(s, tc);
	runner = srunner_create(s);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
