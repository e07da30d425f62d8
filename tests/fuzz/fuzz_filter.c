/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text of hostile programs, as profilers print it.
 *
 * Held besides memory safety: what is found lies inside the line, in order, reads as the address
 * that is told, and the same line after the same lines has the same.
 */
#include <string.h>

#include "base/util.h"
#include "query/stacks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool good)
{
	if (!good)
		abort();
}

static void check_address(const struct stacks *s, const struct stacks_address *a, size_t at)
{
	const char *text = s->line + a->from;
	size_t len = a->to - a->from;

	check(a->from >= at && a->to > a->from && a->to <= s->len);
	if (a->path_len)
		check(a->path >= s->line + a->to && a->path + a->path_len < s->line + s->len);
	else
		check(!a->is_offset);
	if (a->form == STACKS_PERF)
		check(len == 9 && memcmp(text, "[unknown]", 9) == 0);
	else if (a->form == STACKS_UNKNOWN)
		check(memmem(text, len, " ([unknown])", 12) == text + len - 12);
	else
		check(strtoull(strndupa(text, len), NULL, 16) == a->addr);
}

static void check_line(struct stacks *s, const char *line, size_t len)
{
	struct stacks before = *s, other = *s;
	struct stacks_address a, b;
	struct stacks_mapping m;
	size_t at = 0, n = 0;

	if (stacks_line(s, line, len) == STACKS_MAPPING) {
		stacks_get_mapping(s, &m);
		check(m.pid >= 0 && m.path >= line && m.path + m.path_len == line + len);
	}
	check(stacks_line(&other, line, len) == s->kind);
	while (stacks_next(s, &a)) {
		check_address(s, &a, at);
		check(stacks_next(&other, &b) && b.addr == a.addr && b.from == a.from);
		at = a.to;
		n++;
	}
	check(!stacks_next(&other, &b) && n <= len);
	check(s->clock == before.clock || line[0] == '#');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *at = (const char *)data, *end = at + size, *nl;
	struct stacks s = { 0 };

	for (; at < end; at = nl + 1) {
		nl = memchr(at, '\n', (size_t)(end - at));
		if (!nl)
			nl = end;
		check_line(&s, at, (size_t)(nl - at));
	}
	return 0;
}
