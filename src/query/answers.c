/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reply of Resolve, grown as text: no tree of values is made for what is only written out.
 *
 * Every array grows in a buffer of its own, as their elements come an address at a time. Each
 * element has its comma behind it; the last one's is left out when the parts are put together.
 */
#include "query/symbols.h"

#include "query/text.h"
#include "query/wire.h"

void query_answers_init(struct query_answers *a, size_t cap)
{
	*a = (struct query_answers){ 0 };
	buf_init(&a->methods, cap);
	buf_init(&a->method, cap);
	buf_init(&a->offset, cap);
	buf_init(&a->il_offset, cap);
	buf_init(&a->reason, cap);
}

void query_answers_deinit(struct query_answers *a)
{
	buf_deinit(&a->methods);
	buf_deinit(&a->method);
	buf_deinit(&a->offset);
	buf_deinit(&a->il_offset);
	buf_deinit(&a->reason);
	a->n_methods = 0;
	a->n = 0;
}

void query_answers_clear(struct query_answers *a)
{
	buf_clear(&a->methods);
	buf_clear(&a->method);
	buf_clear(&a->offset);
	buf_clear(&a->il_offset);
	buf_clear(&a->reason);
	a->n_methods = 0;
	a->n = 0;
}

uint32_t query_answers_method(struct query_answers *a, const struct query_method *m)
{
	buf_putc(&a->methods, '{');
	query_put_method(&a->methods, m);
	buf_append(&a->methods, "},", 2);
	return a->n_methods++;
}

static void put_null(struct buf *out)
{
	buf_append(out, "null,", 5);
}

static void put_number(struct buf *out, uint64_t v)
{
	text_put_u64(out, v);
	buf_putc(out, ',');
}

void query_answers_hit(struct query_answers *a, uint32_t method, uint32_t offset, int64_t il)
{
	put_number(&a->method, method);
	put_number(&a->offset, offset);
	if (il >= 0)
		put_number(&a->il_offset, (uint64_t)il);
	else
		put_null(&a->il_offset);
	put_null(&a->reason);
	a->n++;
}

void query_answers_miss(struct query_answers *a, const char *reason)
{
	put_null(&a->method);
	put_null(&a->offset);
	put_null(&a->il_offset);
	buf_putc(&a->reason, '"');
	buf_puts(&a->reason, reason);
	buf_append(&a->reason, "\",", 2);
	a->n++;
}

/* "NAME":[...] and what separates it from the next. */
static int put_array(struct buf *out, const char *name, const struct buf *elements)
{
	if (elements->error)
		return elements->error;
	buf_puts(out, name);
	if (elements->len)
		buf_append(out, elements->data, elements->len - 1);
	return buf_append(out, "],", 2);
}

static int put_reply(const struct query_answers *a, uint64_t known_until, bool final,
		     struct buf *out)
{
	const struct {
		const char *name;
		const struct buf *elements;
	} arrays[] = {
		{ "\"methods\":[", &a->methods }, { "\"method\":[", &a->method },
		{ "\"offset\":[", &a->offset },   { "\"il_offset\":[", &a->il_offset },
		{ "\"reason\":[", &a->reason },
	};
	size_t i;
	int r;

	wire_begin_reply(out);
	buf_putc(out, '{');
	for (i = 0; i < ARRAY_SIZE(arrays); i++) {
		r = put_array(out, arrays[i].name, arrays[i].elements);
		if (r < 0)
			return r;
	}
	buf_puts(out, "\"known_until\":");
	text_put_time(out, known_until);
	buf_puts(out, final ? ",\"final\":true}" : ",\"final\":false}");
	return wire_end_reply(out, false);
}

int query_answers_reply(const struct query_answers *a, uint64_t known_until, bool final,
			struct buf *out)
{
	size_t start = out->len;
	int r = put_reply(a, known_until, final, out);

	if (r < 0)
		out->len = start;
	return r;
}
