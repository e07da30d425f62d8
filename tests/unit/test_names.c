/* SPDX-License-Identifier: Apache-2.0 */
/* The one spelling of method names. */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "names/names.h"

static const struct {
	const char *ns, *name, *sig;
	uint32_t flags;
	const char *brief, *full;
} cases[] = {
	{ "Ns.Type", "Run", "int32  (int32)", 0x188, "Ns.Type::Run", "Ns.Type::Run(int32)" },
	{ "Ns.Type", "Run", "instance void  ()", 0, "Ns.Type::Run", "Ns.Type::Run()" },
	/* generics and nesting stay as they are */
	{ "A.List`1[System.__Canon]+Enumerator", "MoveNext", "instance bool  ()", 0x188,
	  "A.List`1[System.__Canon]+Enumerator::MoveNext",
	  "A.List`1[System.__Canon]+Enumerator::MoveNext()" },
	{ "A.B", "Cast[System.Int32,System.String]", "generic !!0  (class A.B`1<!!1>)", 0x188,
	  "A.B::Cast[System.Int32,System.String]",
	  "A.B::Cast[System.Int32,System.String](class A.B`1<!!1>)" },
	/* what compilers make */
	{ "P+<Main>d__24", "MoveNext", "instance void  ()", 0x188, "P+<Main>d__24::MoveNext",
	  "P+<Main>d__24::MoveNext()" },
	{ "P+<>c__DisplayClass3_0", "<Run>b__1", "instance int32  (int32)", 0x188,
	  "P+<>c__DisplayClass3_0::<Run>b__1", "P+<>c__DisplayClass3_0::<Run>b__1(int32)" },
	/* dynamic methods: no type of their own */
	{ "dynamicClass", "lambda_method7", "object  (class X,int32)", 0x109,
	  "dynamicClass::lambda_method7", "dynamicClass::lambda_method7(class X,int32)" },
	{ "", "Go", "void  ()", 0x109, "Go", "Go()" },
	{ "", "", "", 0x109, "[dynamic method]", "[dynamic method]" },
	{ "A.B", "", "", 0x188, "A.B::[no name]", "A.B::[no name]" },
	/* addresses differ from run to run */
	{ "dynamicClass", "InvokeStub_X", "class O  (class O,pMT: 0x7fe2a0d2fed8<class S.O>)",
	  0x109, "dynamicClass::InvokeStub_X", "dynamicClass::InvokeStub_X(class O,class S.O)" },
	{ "A`1[B /* MT: 0x00007f12 */]", "M", "void  ()", 0x188, "A`1[B]::M", "A`1[B]::M()" },
	/* separators of other formats, control characters, what would end a line */
	{ "A;B", "x;y", "void  (int32;int32)", 0x188, "A:B::x:y", "A:B::x:y(int32:int32)" },
	{ "A\nB", "x\ty", "void  ()", 0x188, "A?B::x?y", "A?B::x?y()" },
	{ "A\x1b[31m", "x", "void  ()", 0x188, "A?[31m::x", "A?[31m::x()" },
	{ "A",
	  "a\xe2\x80\xa8"
	  "b",
	  "void  ()", 0x188, "A::a?b", "A::a?b()" },
	{ "A",
	  "a\xe2\x80\xae"
	  "b",
	  "void  ()", 0x188, "A::a?b", "A::a?b()" },
	{ "N\xc3\xb6t\xc3\xa9", "\xe6\x96\xb9", "void  ()", 0x188,
	  "N\xc3\xb6t\xc3\xa9::\xe6\x96\xb9", "N\xc3\xb6t\xc3\xa9::\xe6\x96\xb9()" },
	{ "A", "b", "int32  (class  X)", 0x188, "A::b", "A::b(class X)" },
	/* a signature that is none */
	{ "A", "b", "nonsense", 0x188, "A::b", "A::b" },
};

static struct names_method method_of(size_t i)
{
	return (struct names_method){
		.ns = cases[i].ns,
		.name = cases[i].name,
		.sig = cases[i].sig,
		.ns_len = (uint32_t)strlen(cases[i].ns),
		.name_len = (uint32_t)strlen(cases[i].name),
		.sig_len = (uint32_t)strlen(cases[i].sig),
		.flags = cases[i].flags,
	};
}

START_TEST(names_spelling)
{
	struct names_method m = method_of((size_t)_i);
	_cleanup_buf_ struct buf out = { .cap = 4096 };

	ck_assert_int_eq(names_append(&out, &m, NAMES_SHORT, false), 0);
	ck_assert_str_eq(buf_cstr(&out), cases[_i].brief);
	buf_clear(&out);
	ck_assert_int_eq(names_append(&out, &m, NAMES_FULL, false), 0);
	ck_assert_str_eq(buf_cstr(&out), cases[_i].full);
	buf_clear(&out);
	ck_assert_int_eq(names_append(&out, &m, NAMES_SHORT, true), 0);
	ck_assert_int_eq(out.data[out.len - 1], ']');
	ck_assert_int_eq(memcmp(out.data, cases[_i].brief, strlen(cases[_i].brief)), 0);
}
END_TEST

START_TEST(names_tiers)
{
	static const struct {
		uint32_t flags;
		const char *tier;
	} tiers[] = {
		{ 0x008, "Unknown" },           { 0x088, "MinOptJitted" },
		{ 0x109, "Optimized" },         { 0x188, "QuickJitted" },
		{ 0x28a, "OptimizedTier1OSR" }, { 0x208, "OptimizedTier1" },
		{ 0x308, "InstrumentedTier" },  { 0x388, "InstrumentedTierOptimized" },
		{ 0x100, "ReadyToRun" },        { 0x000, "ReadyToRun" },
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(tiers); i++)
		ck_assert_str_eq(names_tier(tiers[i].flags), tiers[i].tier);
}
END_TEST

/* A name that does not fit leaves nothing behind. */
START_TEST(names_all_or_nothing)
{
	size_t cap;

	for (cap = 0; cap < 40; cap++) {
		struct names_method m = method_of(0);
		_cleanup_buf_ struct buf out = { .cap = cap };
		int r = names_append(&out, &m, NAMES_FULL, true);

		ck_assert(r == 0 || r == -ENOSPC);
		ck_assert_uint_eq(out.len, r == 0 ? strlen("Ns.Type::Run(int32)[QuickJitted]") : 0);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("names");
	TCase *tc = tcase_create("names");
	SRunner *runner;
	int failed;

	tcase_add_loop_test(tc, names_spelling, 0, ARRAY_SIZE(cases));
	tcase_add_test(tc, names_tiers);
	tcase_add_test(tc, names_all_or_nothing);
	suite_add_tcase(s, tc);
	runner = srunner_create(s);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
