/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations that fail on demand.
 *
 * The torture programs are linked with --wrap, so that the calls of our own objects (not those
 * inside libraries) come here. torture_arm(n) makes the n-th allocation from then on fail,
 * and only that one: what runs after a failure, cleanup above all, must find memory again.
 * n = 0 lets all succeed. torture_count() is the number of allocations since torture_arm().
 */
#include <stdbool.h>
#include <stddef.h>

void torture_arm(unsigned long n);
unsigned long torture_count(void);

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
char *__real_strdup(const char *s);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
char *__wrap_strdup(const char *s);

static unsigned long count, fail_at;

void torture_arm(unsigned long n)
{
	count = 0;
	fail_at = n;
}

unsigned long torture_count(void)
{
	return count;
}

static bool shim_fails(void)
{
	return ++count == fail_at;
}

void *__wrap_malloc(size_t size)
{
	return shim_fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return shim_fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
	return shim_fails() ? NULL : __real_realloc(p, size);
}

char *__wrap_strdup(const char *s)
{
	return shim_fails() ? NULL : __real_strdup(s);
}
