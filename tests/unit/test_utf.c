/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The converter against one that is too simple to be wrong, over every place of an odd character
 * relative to the vector steps, and every alignment.
 */
#include "base/utf.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

#define MAX_UNITS 80

static uint32_t next_random(void)
{
	static uint64_t state = 88172645463325252u;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 16);
}

static size_t naive_put(char *out, uint32_t c)
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		out[0] = (char)(0xc0 + c / 64);
		out[1] = (char)(0x80 + c % 64);
		return 2;
	}
	if (c < 0x10000) {
		out[0] = (char)(0xe0 + c / 4096);
		out[1] = (char)(0x80 + c / 64 % 64);
		out[2] = (char)(0x80 + c % 64);
		return 3;
	}
	out[0] = (char)(0xf0 + c / 262144);
	out[1] = (char)(0x80 + c / 4096 % 64);
	out[2] = (char)(0x80 + c / 64 % 64);
	out[3] = (char)(0x80 + c % 64);
	return 4;
}

static size_t naive(char *out, const uint16_t *units, size_t n)
{
	size_t i, len = 0;

	for (i = 0; i < n; i++) {
		uint32_t c = units[i];

		if (c >= 0xd800 && c < 0xdc00 && i + 1 < n && units[i + 1] >= 0xdc00 &&
		    units[i + 1] < 0xe000)
			c = 0x10000 + (c - 0xd800) * 1024 + (units[++i] - 0xdc00u);
		else if (c >= 0xd800 && c < 0xe000)
			c = 0xfffd;
		len += naive_put(out + len, c);
	}
	return len;
}

/* Both functions on these units (none of them zero), at this alignment, with bytes following. */
static void compare(const uint16_t *units, size_t n, size_t align, size_t n_following)
{
	size_t n_units = n + 1 + n_following, size = 2 * n_units, used = 0, len, i;
	_cleanup_free_ uint8_t *block = malloc(align + size);
	_cleanup_free_ char *out = malloc(UTF8_PER_UNIT * n_units + UTF_SLACK);
	char expected[UTF8_PER_UNIT * MAX_UNITS + 1];
	uint8_t *src = block + align; /* ends where the allocation ends */

	memset(src, 'f', size);
	for (i = 0; i < n; i++) {
		src[2 * i] = (uint8_t)units[i];
		src[2 * i + 1] = (uint8_t)(units[i] >> 8);
	}
	len = naive(expected, units, n);
	ck_assert_uint_eq(utf8_from_u16(out, src, n), len);
	ck_assert_mem_eq(out, expected, len);
	if (!n_following) /* no terminator anywhere */
		ck_assert_int_eq(utf8_from_u16z(out, src, n, &used), -1);
	src[2 * n] = src[2 * n + 1] = 0;
	ck_assert_int_eq(utf8_from_u16z(out, src, n_units, &used), (ptrdiff_t)len);
	ck_assert_mem_eq(out, expected, len);
	ck_assert_uint_eq(used, n + 1);
}

/* Units at the borders of every length of encoding, and what is next to a surrogate. */
static const uint16_t odd[] = {
	0x0001, 0x001f, 0x007f, 0x0080, 0x00ff, 0x0100, 0x07ff, 0x0800,
	0x7f00, 0x7fff, 0x8000, 0x8041, 0xd7ff, 0xd800, 0xdbff, 0xdc00,
	0xdfff, 0xe000, 0xfeff, 0xff00, 0xff7f, 0xff80, 0xfffe, 0xffff,
};

START_TEST(test_one_odd)
{
	uint16_t units[MAX_UNITS];
	size_t n, at, i;

	for (n = 0; n <= 40; n++) {
		for (at = 0; at < MAX(n, (size_t)1); at++) {
			for (i = 0; i < MAX(n, (size_t)1); i++)
				units[i] = (uint16_t)('a' + i % 26);
			units[at] = odd[_i];
			compare(units, n, n % 16, at % 18);
		}
	}
}
END_TEST

START_TEST(test_alignments)
{
	uint16_t units[MAX_UNITS];
	size_t n, align, i;

	for (i = 0; i < MAX_UNITS; i++)
		units[i] = (uint16_t)(' ' + i % 95);
	for (n = 0; n < 70; n++) {
		for (align = 0; align < 32; align++)
			compare(units, n, align, align);
	}
}
END_TEST

START_TEST(test_pairs)
{
	uint16_t units[MAX_UNITS];
	size_t first, second, at, i;

	for (first = 0; first < ARRAY_SIZE(odd); first++) {
		for (second = 0; second < ARRAY_SIZE(odd); second++) {
			for (at = 0; at < 19; at++) {
				for (i = 0; i < 20; i++)
					units[i] = 'x';
				units[at] = odd[first];
				units[at + 1] = odd[second];
				compare(units, 20, 0, 0);
				compare(units, at + 2, 1, 9);
			}
		}
	}
}
END_TEST

START_TEST(test_random)
{
	uint16_t units[MAX_UNITS];
	size_t round, n, i;

	for (round = 0; round < 50000; round++) {
		uint32_t rarity = 1 + next_random() % 30;

		n = next_random() % (MAX_UNITS - 1);
		for (i = 0; i < n; i++) {
			if (next_random() % rarity)
				units[i] = (uint16_t)(1 + next_random() % 127);
			else if (next_random() % 2)
				units[i] = odd[next_random() % ARRAY_SIZE(odd)];
			else
				units[i] = (uint16_t)(1 + next_random() % 0xffff);
		}
		compare(units, n, next_random() % 16, next_random() % 20);
	}
}
END_TEST

START_TEST(test_zeros_inside)
{
	static const uint8_t src[] = { 'a', 0, 0, 0, 'b', 0 };
	char out[UTF8_PER_UNIT * 3 + UTF_SLACK];
	size_t used = 0;

	ck_assert_uint_eq(utf8_from_u16(out, src, 3), 3);
	ck_assert_mem_eq(out, "a\0b", 3);
	ck_assert_int_eq(utf8_from_u16z(out, src, 3, &used), 1);
	ck_assert_uint_eq(used, 2);
	ck_assert_int_eq(utf8_from_u16z(out, src, 1, &used), -1);
	ck_assert_int_eq(utf8_from_u16z(out, src, 0, &used), -1);
}
END_TEST

static const struct {
	const char *s;
	size_t max, cut;
} cuts[] = {
	{ "", 0, 0 },
	{ "", 5, 0 },
	{ "abc", 3, 3 },
	{ "abc", 2, 2 },
	{ "abc", 0, 0 },
	{ "a\xc3\xa9", 2, 1 },
	{ "a\xc3\xa9", 3, 3 },
	{ "\xe2\x82\xac", 1, 0 },
	{ "\xe2\x82\xac", 2, 0 },
	{ "\xe2\x82\xacx", 3, 3 },
	{ "\xf0\x9f\x98\x80\xf0\x9f\x98\x80", 7, 4 },
	{ "\xf0\x9f\x98\x80\xf0\x9f\x98\x80", 8, 8 },
};

START_TEST(test_cut)
{
	ck_assert_uint_eq(utf8_cut(cuts[_i].s, strlen(cuts[_i].s), cuts[_i].max), cuts[_i].cut);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("utf");
	TCase *tc = tcase_create("utf");
	SRunner *runner;
	int n_failed;

	tcase_add_loop_test(tc, test_one_odd, 0, ARRAY_SIZE(odd));
	tcase_add_test(tc, test_alignments);
	tcase_add_test(tc, test_pairs);
	tcase_add_test(tc, test_random);
	tcase_add_test(tc, test_zeros_inside);
	tcase_add_loop_test(tc, test_cut, 0, ARRAY_SIZE(cuts));
	tcase_set_timeout(tc, 60);
	suite_add_tcase(suite, tc);

	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	n_failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
