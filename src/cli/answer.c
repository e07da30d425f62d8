/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Printing what is known of code. All of it is put together as text in a buffer, the JSON by the
 * same functions with which the daemon answers, so that there is one vocabulary.
 */
#include "cli/answer.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/caps.h"
#include "base/escape.h"
#include "cli/cli.h"
#include "query/text.h"
#include "reply/reply.h"

static int to_feed(void *data, const void *bytes, size_t n)
{
	return feed_bytes(data, bytes, n, 0);
}

static void on_lost(void *data, uint64_t n UNUSED, uint64_t from, uint64_t to)
{
	codemap_gap(data, from, to);
}

int answer_read_trace(struct codemap *map, const char *path, struct feed **feedp)
{
	struct feed_options opts = { .il_maps = true };
	int r;

	r = feed_new(feedp, map, &opts);
	if (r < 0)
		return r;
	feed_on_lost(*feedp, on_lost, map);
	r = cli_read_trace(path, to_feed, *feedp);
	return r < 0 ? r : cli_trace_end(path, feed_nettrace(*feedp));
}

int answer_print_line(struct buf *line)
{
	int r;

	buf_putc(line, '\n');
	r = line->error;
	if (r == 0)
		fwrite(line->data, 1, line->len, stdout);
	buf_clear(line);
	return r;
}

const char *answer_tier(const struct query_method *m)
{
	return escape_terminal(m->tier, strlen(m->tier));
}

void answer_put_method(struct buf *line, const struct query_method *m)
{
	buf_printf(line, "%" PRIx64 " %" PRIx32 " %s ", m->start, m->size, answer_tier(m));
	escape_line(line, m->function, m->function_len, SIZE_MAX);
}

void answer_put_time(struct buf *line, uint64_t ns)
{
	if (ns)
		buf_printf(line, "%6" PRIu64 ".%06" PRIu64, ns / SEC_NS(1), ns % SEC_NS(1) / 1000);
	else
		buf_printf(line, "%13s", "-");
}

void answer_print_head(bool times)
{
	printf("%16s %7s", "START", "SIZE");
	if (times)
		printf(" %13s %13s", "LOADED", "UNLOADED");
	printf("  %-25s METHOD\n", "TIER");
}

void answer_put_row(struct buf *line, const struct query_method *m, bool times)
{
	buf_printf(line, "%16" PRIx64 " %7" PRIu32, m->start, m->size);
	if (times) {
		buf_putc(line, ' ');
		answer_put_time(line, m->load);
		buf_putc(line, ' ');
		answer_put_time(line, m->unload == UINT64_MAX ? 0 : m->unload);
	}
	/* the longest: InstrumentedTierOptimized */
	buf_printf(line, "  %-25s ", answer_tier(m));
	escape_line(line, m->function, m->function_len, SIZE_MAX);
}

void answer_print_body(const struct codemap_info *info, bool json)
{
	_cleanup_buf_ struct buf line = { .cap = SIZE_MAX }, function = { .cap = SIZE_MAX };
	struct query_method m;

	if (reply_method(info, &function, &m) < 0)
		return;
	if (json) {
		buf_putc(&line, '{');
		query_put_method(&line, &m);
		buf_putc(&line, '}');
	} else {
		answer_put_method(&line, &m);
	}
	(void)answer_print_line(&line);
}

static void put_json(struct buf *line, uint64_t addr, uint64_t time, const struct ask_answer *a)
{
	buf_puts(line, "{\"addr\":");
	text_put_hex(line, addr);
	buf_puts(line, ",\"time\":");
	if (time)
		text_put_u64(line, time);
	else
		buf_puts(line, "null");
	buf_putc(line, ',');
	if (a->method) {
		query_put_method(line, a->method);
		buf_puts(line, ",\"offset\":");
		text_put_u64(line, a->offset);
	} else {
		buf_puts(line, "\"reason\":");
		text_put_string(line, a->reason, strlen(a->reason));
	}
	if (a->il >= 0) {
		buf_puts(line, ",\"il_offset\":");
		text_put_u64(line, (uint64_t)a->il);
	}
	if (a->live)
		buf_puts(line, a->final ? ",\"final\":true" : ",\"final\":false");
	buf_putc(line, '}');
}

static void put_text(struct buf *line, uint64_t addr, uint64_t time, const struct ask_answer *a)
{
	buf_printf(line, "%" PRIx64 " ", addr);
	if (a->method) {
		escape_line(line, a->method->function, a->method->function_len, SIZE_MAX);
		buf_printf(line, "+0x%" PRIx32 " [%s]", a->offset, answer_tier(a->method));
	} else {
		buf_puts(line, "? (");
		escape_line(line, a->reason, strlen(a->reason), SIZE_MAX);
		buf_putc(line, ')');
	}
	if (a->live && !a->final && time)
		buf_puts(line, " (may still change)");
}

int answer_print(uint64_t addr, uint64_t time, const struct ask_answer *a, bool json)
{
	_cleanup_buf_ struct buf line = { .cap = SIZE_MAX };

	if (json)
		put_json(&line, addr, time, a);
	else
		put_text(&line, addr, time, a);
	return answer_print_line(&line);
}
