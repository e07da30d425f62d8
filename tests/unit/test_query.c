/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The query protocol, both sides: framing in any pieces, what is refused before it is parsed,
 * every form of a parameter, the reply as written and read back; and the client against servers
 * that send garbage, stop in the middle, hand over what nobody asked for, or say nothing.
 */
#include "query/client.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/caps.h"
#include "base/clock.h"
#include "query/text.h"
#include "query/wire.h"

/* -- Framing -------------------------------------------------------------------------- */

static const struct wire_limits small = { .bytes = 64, .values = 12, .containers = 5, .depth = 3 };

/* All of data, in pieces of at most n. Returns what the first failing wire_room() said. */
static int feed(struct wire *wire, const void *data, size_t len, size_t piece)
{
	const uint8_t *from = data;

	while (len) {
		uint8_t *p;
		size_t n;
		int r = wire_room(wire, piece, &p, &n);

		if (r)
			return r;
		ck_assert_uint_ge(n, 1);
		ck_assert_uint_le(n, piece);
		n = MIN(n, len);
		memcpy(p, from, n);
		wire_received(wire, n);
		from += n;
		len -= n;
	}
	return 0;
}

static int next(const char *text, const struct wire_limits *limits, json_t **msgp)
{
	struct wire wire;
	int r;

	wire_init(&wire, limits);
	r = feed(&wire, text, strlen(text) + 1, 4096);
	if (!r)
		r = wire_next(&wire, msgp);
	wire_deinit(&wire);
	return r;
}

static const struct {
	const char *text;
	int r;
} messages[] = {
	{ "{}", 0 },
	{ " {\"a\":[1,2,{\"b\":null}]} \n", 0 },
	{ "{\"a\":\"\\\"],[{\\\\\"}", 0 },
	{ "", WIRE_E_SYNTAX },
	{ "[]", WIRE_E_SYNTAX },
	{ "1", WIRE_E_SYNTAX },
	{ "{", WIRE_E_SYNTAX },
	{ "{}}", WIRE_E_SYNTAX },
	{ "{}{}", WIRE_E_SYNTAX },
	{ "]]]]{}", WIRE_E_SYNTAX },
	{ "{\"a\":1,\"a\":1}", WIRE_E_SYNTAX },
	{ "{\"a\":\"\\u0000\"}", WIRE_E_SYNTAX },
	{ "{\"a\":\"\xff\"}", WIRE_E_SYNTAX },
	{ "{\"a\":\"\xed\xa0\x80\"}", WIRE_E_SYNTAX },
	{ "{\"a\":\"", WIRE_E_SYNTAX },
	{ "{\"a\":\"\\", WIRE_E_SYNTAX },
	{ "{\"a\":9223372036854775808}", WIRE_E_SYNTAX },
	{ "{\"a\":1e999}", WIRE_E_SYNTAX },
	{ "{\"a\":[[1]]}", 0 },
	{ "{\"a\":[[[1]]]}", WIRE_E_TOO_BIG },
	{ "[[[[[[", WIRE_E_TOO_BIG },
	{ "{\"a\":[[],[],[]]}", 0 },
	{ "{\"a\":[[],[],[],[]]}", WIRE_E_TOO_BIG },
	{ "{\"a\":[1,2,3,4,5,6,7,8,9]}", 0 },
	{ "{\"a\":[1,2,3,4,5,6,7,8,9,10]}", WIRE_E_TOO_BIG },
	{ "{\"a\":\",,,,,,,,,,,,,,,[[[[[[[[[\"}", 0 },
	{ "{\"a\":\"2345678901234567890123456789012345678901234567890123456\"}", 0 },
	{ "{\"a\":\"23456789012345678901234567890123456789012345678901234567\"}", WIRE_E_TOO_BIG },
};

START_TEST(test_message)
{
	json_t *msg = NULL;

	ck_assert_int_eq(next(messages[_i].text, &small, &msg), messages[_i].r);
	ck_assert(!msg == !!messages[_i].r);
	json_decref(msg);
}
END_TEST

/* Three messages and a begun one, in pieces of every size, taken as they become whole. */
START_TEST(test_pieces)
{
	static const char text[] =
		"{\"a\":0}\0{\"a\":1,\"b\":\"xxxxxxxxxxxxxxxxxxxxxxxx\"}\0{\"a\":2}\0"
		"{\"a\"";
	size_t piece;

	for (piece = 1; piece < sizeof(text); piece++) {
		struct wire wire;
		size_t done = 0;
		int n = 0;

		wire_init(&wire, &small);
		while (done < sizeof(text) - 1) {
			size_t now = MIN(piece, sizeof(text) - 1 - done);
			json_t *msg;

			ck_assert_int_eq(feed(&wire, text + done, now, 7), 0);
			done += now;
			while (wire_ready(&wire)) {
				ck_assert_int_eq(wire_next(&wire, &msg), 0);
				ck_assert_int_eq(json_integer_value(json_object_get(msg, "a")), n);
				json_decref(msg);
				n++;
			}
			ck_assert_int_eq(wire_next(&wire, &msg), WIRE_E_MORE);
		}
		ck_assert_int_eq(n, 3);
		ck_assert_uint_eq(wire_pending(&wire), 4);
		wire_deinit(&wire);
	}
}
END_TEST

START_TEST(test_limit)
{
	static const char whole[] = "{\"a\":\"0123456789012345678901\"}";
	char garbage[64];
	struct wire wire;
	json_t *msg;
	uint8_t *p;
	size_t n;

	memset(garbage, '[', sizeof(garbage));
	wire_init(&wire, &small);
	ck_assert_int_eq(feed(&wire, garbage, 63, 100), 0);
	/* the last byte may be the end; one more is too much */
	ck_assert_int_eq(wire_room(&wire, 100, &p, &n), 0);
	ck_assert_uint_eq(n, 1);
	*p = 'x';
	wire_received(&wire, 1);
	ck_assert_int_eq(wire_room(&wire, 100, &p, &n), WIRE_E_TOO_BIG);
	ck_assert_int_eq(wire_next(&wire, &msg), WIRE_E_MORE);
	wire_deinit(&wire);

	/* an unfinished one counts from where it begins */
	wire_init(&wire, &small);
	ck_assert_int_eq(feed(&wire, whole, sizeof(whole), 100), 0);
	ck_assert_int_eq(feed(&wire, garbage, 63, 100), 0);
	ck_assert_int_eq(feed(&wire, "", 1, 100), 0);
	ck_assert_int_eq(wire_room(&wire, 100, &p, &n), WIRE_E_TOO_BIG);
	ck_assert_int_eq(wire_next(&wire, &msg), 0);
	json_decref(msg);
	ck_assert_int_eq(wire_next(&wire, &msg), WIRE_E_TOO_BIG);
	wire_deinit(&wire);
}
END_TEST

START_TEST(test_memory)
{
	_cleanup_buf_ struct buf text;
	struct wire wire;
	json_t *msg;

	buf_init(&text, MIB(1));
	buf_puts(&text, "{\"a\":\"");
	while (text.len < 100000)
		buf_putc(&text, 'x');
	buf_append(&text, "\"}", 3);
	wire_init(&wire, &wire_request_limits);
	ck_assert_uint_eq(wire_memory(&wire), 0);
	ck_assert_int_eq(feed(&wire, text.data, text.len, 4096), 0);
	ck_assert_uint_ge(wire_memory(&wire), text.len);
	ck_assert_uint_le(wire_memory(&wire), 3 * text.len);
	wire_trim(&wire);
	ck_assert_uint_eq(wire_pending(&wire), text.len);
	ck_assert_int_eq(wire_next(&wire, &msg), 0);
	json_decref(msg);
	wire_trim(&wire);
	ck_assert_uint_eq(wire_memory(&wire), 0);
	/* a small one's is kept */
	ck_assert_int_eq(feed(&wire, "{}", 3, 4096), 0);
	ck_assert_int_eq(wire_next(&wire, &msg), 0);
	json_decref(msg);
	wire_trim(&wire);
	ck_assert_uint_eq(wire_memory(&wire), 4096);
	wire_deinit(&wire);
}
END_TEST

/* -- Calls and replies ---------------------------------------------------------------- */

static const struct {
	const char *text, *method;
	bool parameters;
	unsigned int flags; /* more, oneway, upgrade */
} calls[] = {
	{ "{\"method\":\"a.b.C\"}", "a.b.C", false, 0 },
	{ "{\"method\":\"a.b.C\",\"parameters\":null,\"more\":null}", "a.b.C", false, 0 },
	{ "{\"method\":\"a.b.C\",\"parameters\":{},\"more\":false}", "a.b.C", true, 0 },
	{ "{\"method\":\"a\",\"parameters\":{\"x\":1},\"more\":true,\"other\":0}", "a", true, 1 },
	{ "{\"method\":\"a\",\"oneway\":true}", "a", false, 2 },
	{ "{\"upgrade\":true,\"method\":\"a\"}", "a", false, 4 },
	{ "{}", NULL, false, 0 },
	{ "{\"method\":1}", NULL, false, 0 },
	{ "{\"method\":\"a\",\"parameters\":[]}", NULL, false, 0 },
	{ "{\"method\":\"a\",\"parameters\":1}", NULL, false, 0 },
	{ "{\"method\":\"a\",\"more\":1}", NULL, false, 0 },
	{ "{\"method\":\"a\",\"oneway\":\"true\"}", NULL, false, 0 },
	{ "{\"method\":\"a\",\"upgrade\":{}}", NULL, false, 0 },
};

START_TEST(test_parse_call)
{
	struct wire_call call;
	json_t *msg;
	int r;

	ck_assert_int_eq(next(calls[_i].text, &wire_request_limits, &msg), 0);
	r = wire_parse_call(msg, &call);
	ck_assert_int_eq(r, calls[_i].method ? 0 : WIRE_E_SYNTAX);
	if (!r) {
		ck_assert_str_eq(call.method, calls[_i].method);
		ck_assert(!call.parameters == !calls[_i].parameters);
		ck_assert_uint_eq(call.more + 2u * call.oneway + 4u * call.upgrade,
				  calls[_i].flags);
	}
	json_decref(msg);
}
END_TEST

static const struct {
	const char *text;
	int r;
	const char *error;
	bool parameters, continues;
} replies[] = {
	{ "{}", 0, NULL, false, false },
	{ "{\"parameters\":{\"a\":1}}", 0, NULL, true, false },
	{ "{\"parameters\":{},\"continues\":true}", 0, NULL, true, true },
	{ "{\"error\":\"a.b.C\",\"parameters\":{}}", 0, "a.b.C", true, false },
	{ "{\"error\":null,\"continues\":false}", 0, NULL, false, false },
	{ "{\"error\":\"\"}", WIRE_E_SYNTAX, NULL, false, false },
	{ "{\"error\":1}", WIRE_E_SYNTAX, NULL, false, false },
	{ "{\"error\":\"a\",\"continues\":true}", WIRE_E_SYNTAX, NULL, false, false },
	{ "{\"continues\":1}", WIRE_E_SYNTAX, NULL, false, false },
	{ "{\"parameters\":[]}", WIRE_E_SYNTAX, NULL, false, false },
};

START_TEST(test_parse_reply)
{
	struct wire_reply reply;
	json_t *msg;
	int r;

	ck_assert_int_eq(next(replies[_i].text, &wire_reply_limits, &msg), 0);
	r = wire_parse_reply(msg, &reply);
	ck_assert_int_eq(r, replies[_i].r);
	if (!r) {
		ck_assert_pstr_eq(reply.error, replies[_i].error);
		ck_assert(!reply.parameters == !replies[_i].parameters);
		ck_assert(reply.continues == replies[_i].continues);
	}
	json_decref(msg);
}
END_TEST

START_TEST(test_put)
{
	_cleanup_buf_ struct buf out;
	_cleanup_(json_decrefp) json_t *parameters = json_pack("{s:s}", "a", "\xc3\xa4\n");

	ck_assert_ptr_nonnull(parameters);
	buf_init(&out, 100);
	ck_assert_int_eq(wire_put_call(&out, "a.b.C", NULL, false), 0);
	ck_assert_str_eq((char *)out.data, "{\"method\":\"a.b.C\",\"parameters\":{}}");
	buf_clear(&out);
	ck_assert_int_eq(wire_put_call(&out, "a", parameters, true), 0);
	ck_assert_str_eq((char *)out.data,
			 "{\"method\":\"a\",\"parameters\":{\"a\":\"\\u00E4\\n\"},\"more\":true}");
	buf_clear(&out);
	ck_assert_int_eq(wire_put_reply(&out, parameters, true), 0);
	ck_assert_str_eq((char *)out.data,
			 "{\"parameters\":{\"a\":\"\\u00E4\\n\"},\"continues\":true}");
	buf_clear(&out);
	ck_assert_int_eq(wire_put_error(&out, "a.\"", NULL), 0);
	ck_assert_str_eq((char *)out.data, "{\"error\":\"a.\\\"\",\"parameters\":{}}");
	buf_clear(&out);
	ck_assert_int_eq(wire_begin_reply(&out), 0);
	buf_puts(&out, "{}");
	ck_assert_int_eq(wire_end_reply(&out, false), 0);
	ck_assert_str_eq((char *)out.data, "{\"parameters\":{}}");
	/* what does not fit leaves nothing */
	ck_assert_uint_eq(out.len, 18);
	while (wire_put_reply(&out, parameters, false) == 0)
		;
	ck_assert_int_eq(out.error, -ENOSPC);
	ck_assert_uint_eq((out.len - 18) % 32, 0);
}
END_TEST

/* -- Text ----------------------------------------------------------------------------- */

#define TEXT(in, out) \
	{ \
		in, sizeof(in) - 1, out \
	}

static const struct {
	const char *in;
	size_t len;
	const char *out;
} texts[] = {
	TEXT("", "\"\""),
	TEXT("A.B`1[!0]::C(<>&/'~)", "\"A.B`1[!0]::C(<>&/'~)\""),
	TEXT("a\"b\\c", "\"a\\\"b\\\\c\""),
	TEXT("0123456\"8", "\"0123456\\\"8\""),
	TEXT("0123456\\0123456\"0123456\x7f", "\"0123456\\\\0123456\\\"0123456\\u007f\""),
	TEXT("\n\t\x1b[31m\0x", "\"\\u000a\\u0009\\u001b[31m\\ufffdx\""),
	TEXT("\xc2\x9b\xe2\x80\xae\xef\xbb\xbf", "\"\\u009b\\u202e\\ufeff\""),
	TEXT("\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf", "\"\\ud83d\\ude00\\udbff\\udfff\""),
	TEXT("\xef\xbf\xbd", "\"\\ufffd\""),
	/* no UTF-8: overlong, surrogate, above the last, cut, lone */
	TEXT("\xc0\x80", "\"\\ufffd\\ufffd\""),
	TEXT("\xe0\x80\x80", "\"\\ufffd\\ufffd\\ufffd\""),
	TEXT("\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\""),
	TEXT("\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""),
	TEXT("\xf0\x9f\x98", "\"\\ufffd\\ufffd\\ufffd\""),
	TEXT("\xe2\x80x", "\"\\ufffd\\ufffdx\""),
	TEXT("\xc3", "\"\\ufffd\""),
	TEXT("\xffxxxxxxxxxxxxxxxx\x80", "\"\\ufffdxxxxxxxxxxxxxxxx\\ufffd\""),
};

START_TEST(test_text)
{
	_cleanup_buf_ struct buf out;

	buf_init(&out, 1000);
	text_put_string(&out, texts[_i].in, texts[_i].len);
	ck_assert_str_eq(buf_cstr(&out), texts[_i].out);
}
END_TEST

static const char *escaped(unsigned int c)
{
	static char text[8];

	if (c == '"' || c == '\\')
		snprintf(text, sizeof(text), "\\%c", (int)c);
	else if (c < 0x20 || c == 0x7f)
		snprintf(text, sizeof(text), "\\u%04x", c);
	else
		snprintf(text, sizeof(text), "%c", (int)c);
	return text;
}

/* Every byte at every place of a word, and behind it, is escaped or left alone. */
START_TEST(test_text_bytes)
{
	static const char as[] = "aaaaaaaaaaaaaaaaaaaa";
	unsigned int c;
	int at;

	for (c = 1; c < 128; c++) {
		for (at = 0; at < 20; at++) {
			_cleanup_buf_ struct buf out;
			char in[21], want[64];

			buf_init(&out, 100);
			memcpy(in, as, sizeof(in));
			in[at] = (char)c;
			snprintf(want, sizeof(want), "\"%.*s%s%s\"", at, as, escaped(c),
				 as + at + 1);
			text_put_string(&out, in, 20);
			ck_assert_str_eq(buf_cstr(&out), want);
		}
	}
}
END_TEST

START_TEST(test_numbers)
{
	uint64_t v = 1;
	unsigned int i;

	for (i = 0; i < 3 * 66; i++) {
		_cleanup_buf_ struct buf out;
		char want[80];
		uint64_t now = i < 3 ? UINT64_MAX + i : v + i % 3 - 1;

		buf_init(&out, 100);
		text_put_u64(&out, now);
		buf_putc(&out, ' ');
		text_put_hex(&out, now);
		snprintf(want, sizeof(want), "%ju \"0x%jx\"", (uintmax_t)now, (uintmax_t)now);
		ck_assert_str_eq(buf_cstr(&out), want);
		if (i % 3 == 2)
			v = i < 60 ? v * 10 : v << 1 ? v << 1 : 1;
	}
}
END_TEST

/* -- Parameters ----------------------------------------------------------------------- */

static const struct {
	const char *text; /* JSON, in an array */
	bool good_address;
	uint64_t address;
	bool good_time;
	uint64_t time;
} values[] = {
	{ "[0]", true, 0, true, 0 },
	{ "[9223372036854775807]", true, INT64_MAX, true, INT64_MAX },
	{ "[-1]", false, 0, false, 0 },
	{ "[1e3]", false, 0, false, 0 },
	{ "[1.0]", false, 0, false, 0 },
	{ "[true]", false, 0, false, 0 },
	{ "[null]", false, 0, false, 0 },
	{ "[[1]]", false, 0, false, 0 },
	{ "[\"\"]", false, 0, false, 0 },
	{ "[\"0x\"]", false, 0, false, 0 },
	{ "[\"0x0\"]", true, 0, false, 0 },
	{ "[\"0\"]", false, 0, true, 0 },
	{ "[\"10\"]", false, 0, true, 10 },
	{ "[\"0x7F00aBcD\"]", true, 0x7f00abcd, false, 0 },
	{ "[\"0xffffffffFFFFFFFF\"]", true, UINT64_MAX, false, 0 },
	{ "[\"ffffffff81000000\"]", false, 0, false, 0 },
	{ "[\"0X1\"]", false, 0, false, 0 },
	{ "[\"0x00000000000000001\"]", false, 0, false, 0 },
	{ "[\"18446744073709551615\"]", false, 0, true, UINT64_MAX },
	{ "[\"18446744073709551616\"]", false, 0, false, 0 },
	{ "[\"99999999999999999999999\"]", false, 0, false, 0 },
	{ "[\"0x1 \"]", false, 0, false, 0 },
	{ "[\" 1\"]", false, 0, false, 0 },
	{ "[\"+1\"]", false, 0, false, 0 },
	{ "[\"-1\"]", false, 0, false, 0 },
	{ "[\"0x0x1\"]", false, 0, false, 0 },
	{ "[\"0xg\"]", false, 0, false, 0 },
	{ "[\"1\\u00e9\"]", false, 0, false, 0 },
	{ "[\"1:\"]", false, 0, false, 0 },
};

START_TEST(test_value)
{
	json_t *array = json_loads(values[_i].text, 0, NULL);
	json_t *value = json_array_get(array, 0);
	uint64_t v;

	ck_assert_ptr_nonnull(value);
	ck_assert(query_parse_address(value, &v) == values[_i].good_address);
	if (values[_i].good_address)
		ck_assert_uint_eq(v, values[_i].address);
	ck_assert(query_parse_time(value, &v) == values[_i].good_time);
	if (values[_i].good_time)
		ck_assert_uint_eq(v, values[_i].time);
	json_decref(array);
}
END_TEST

static const struct {
	const char *text;
	const char *bad; /* NULL: good */
} processes[] = {
	{ "{\"pid\":1}", NULL },
	{ "{\"pid\":2147483647,\"start\":5}", NULL },
	{ "{\"pid\":1,\"start\":null}", NULL },
	{ "{}", "pid" },
	{ "{\"pid\":0}", "pid" },
	{ "{\"pid\":null}", "pid" },
	{ "{\"pid\":-1}", "pid" },
	{ "{\"pid\":2147483648}", "pid" },
	{ "{\"pid\":\"1\"}", "pid" },
	{ "{\"pid\":1.5}", "pid" },
	{ "{\"pid\":1,\"start\":-1}", "start" },
	{ "{\"pid\":1,\"start\":\"5\"}", "start" },
};

START_TEST(test_process)
{
	json_t *parameters = json_loads(processes[_i].text, 0, NULL);
	const char *bad = NULL;
	uint64_t start;
	pid_t pid;
	int r = query_parse_process(parameters, &pid, &start, &bad);

	ck_assert_int_eq(r, processes[_i].bad ? QUERY_E_PARAMETER : 0);
	ck_assert_pstr_eq(bad, processes[_i].bad);
	json_decref(parameters);
	ck_assert_int_eq(query_parse_process(NULL, &pid, &start, &bad), QUERY_E_PARAMETER);
}
END_TEST

/* expect: "ADDR@TIME" in hex and decimal, with "c" behind it for a caller. */
static const struct {
	const char *text, *bad, *expect;
} resolves[] = {
	{ "\"addresses\":[]", NULL, "" },
	{ "\"stacks\":[]", NULL, "" },
	{ "\"stacks\":[[],[]],\"times\":[1,2]", NULL, "" },
	{ "\"addresses\":[1,\"0x2\",\"0xffffffffffffffff\"]", NULL, "1@0 2@0 ffffffffffffffff@0 " },
	{ "\"addresses\":[1,2],\"time\":7,\"caller\":true", NULL, "1@7c 2@7c " },
	{ "\"addresses\":[1,2],\"times\":[\"8\",9]", NULL, "1@8 2@9 " },
	{ "\"addresses\":[1],\"stacks\":null,\"time\":null,\"times\":null,\"caller\":null,"
	  "\"wait_ms\":null",
	  NULL, "1@0 " },
	{ "\"stacks\":[[1,2,3],[],[4,5]],\"times\":[7,8,9]", NULL, "1@7 2@7c 3@7c 4@9 5@9c " },
	{ "\"stacks\":[[1,2],[3]],\"time\":\"5\",\"caller\":true", NULL, "1@5c 2@5c 3@5c " },
	{ "\"addresses\":[1],\"wait_ms\":500", NULL, "1@0 " },
	{ "\"wait_ms\":5", "addresses", NULL },
	{ "\"addresses\":null", "addresses", NULL },
	{ "\"addresses\":1", "addresses", NULL },
	{ "\"addresses\":{}", "addresses", NULL },
	{ "\"addresses\":[null]", "addresses", NULL },
	{ "\"addresses\":[-1]", "addresses", NULL },
	{ "\"addresses\":[[1]]", "addresses", NULL },
	{ "\"addresses\":[1],\"stacks\":[[1]]", "stacks", NULL },
	{ "\"stacks\":[1]", "stacks", NULL },
	{ "\"stacks\":[[1],[\"x\"]]", "stacks", NULL },
	{ "\"stacks\":\"x\"", "stacks", NULL },
	{ "\"addresses\":[1],\"time\":1,\"times\":[1]", "times", NULL },
	{ "\"addresses\":[1],\"times\":[]", "times", NULL },
	{ "\"addresses\":[1],\"times\":[1,2]", "times", NULL },
	{ "\"addresses\":[1],\"times\":[null]", "times", NULL },
	{ "\"addresses\":[1],\"times\":5", "times", NULL },
	{ "\"stacks\":[[1,2]],\"times\":[1,2]", "times", NULL },
	{ "\"addresses\":[1],\"time\":\"0x5\"", "time", NULL },
	{ "\"addresses\":[1],\"time\":1.5", "time", NULL },
	{ "\"addresses\":[1],\"caller\":1", "caller", NULL },
	{ "\"addresses\":[1],\"wait_ms\":501", "wait_ms", NULL },
	{ "\"addresses\":[1],\"wait_ms\":-1", "wait_ms", NULL },
	{ "\"addresses\":[1],\"start\":true", "start", NULL },
	{ "\"addresses\":[1],\"tims\":[1]", "tims", NULL },
};

START_TEST(test_resolve)
{
	_cleanup_buf_ struct buf text, got;
	struct query_resolve req;
	const char *bad = NULL;
	json_t *parameters;
	size_t i;
	int r;

	buf_init(&text, 1000);
	buf_init(&got, 1000);
	buf_printf(&text, "{\"pid\":77,%s}", resolves[_i].text);
	parameters = json_loadb((char *)text.data, text.len, 0, NULL);
	ck_assert_ptr_nonnull(parameters);
	r = query_resolve_parse(&req, parameters, &bad);
	ck_assert_pstr_eq(bad, resolves[_i].bad);
	ck_assert_int_eq(r, bad ? QUERY_E_PARAMETER : 0);
	for (i = 0; i < req.n; i++)
		buf_printf(&got, "%jx@%ju%s ", (uintmax_t)req.items[i].addr,
			   (uintmax_t)req.items[i].time, req.items[i].caller ? "c" : "");
	if (!r) {
		ck_assert_int_eq(req.pid, 77);
		ck_assert_str_eq(buf_cstr(&got), resolves[_i].expect);
	} else {
		ck_assert_ptr_null(req.items);
	}
	query_resolve_deinit(&req);
	json_decref(parameters);
}
END_TEST

/* As many addresses as may be, flat and as stacks, and one more. */
START_TEST(test_resolve_cap)
{
	unsigned int stacks = _i / 2;
	size_t i, n = CAP_QUERY_ADDRESSES + _i % 2;
	json_t *list = json_array(), *rows = stacks ? json_array() : NULL, *parameters;
	struct query_resolve req;
	const char *bad = NULL;
	int r;

	for (i = 0; i < n; i++)
		json_array_append_new(list, json_integer((json_int_t)i));
	if (stacks)
		json_array_append_new(rows, list);
	parameters = json_pack("{s:i, s:o}", "pid", 1, stacks ? "stacks" : "addresses",
			       stacks ? rows : list);
	r = query_resolve_parse(&req, parameters, &bad);
	ck_assert_int_eq(r, _i % 2 ? QUERY_E_PARAMETER : 0);
	ck_assert_uint_eq(req.n, _i % 2 ? 0 : n);
	query_resolve_deinit(&req);
	json_decref(parameters);
}
END_TEST

/* The largest request that addresses and times can make is within the limits of the wire. */
START_TEST(test_largest)
{
	_cleanup_buf_ struct buf text;
	struct query_resolve req;
	struct wire_call call;
	const char *bad;
	struct wire wire;
	json_t *msg;
	size_t i;

	buf_init(&text, MIB(8));
	buf_puts(&text, "{\"method\":\"" QUERY_INTERFACE ".Resolve\",\"parameters\":{\"pid\":1,"
			"\"addresses\":[0");
	for (i = 1; i < CAP_QUERY_ADDRESSES; i++)
		buf_puts(&text, ",\"0xffffffff81234567\"");
	buf_puts(&text, "],\"times\":[0");
	for (i = 1; i < CAP_QUERY_ADDRESSES; i++)
		buf_puts(&text, ",\"1234567890123456789\"");
	buf_append(&text, "]}}", 4);
	wire_init(&wire, &wire_request_limits);
	ck_assert_int_eq(feed(&wire, text.data, text.len, 65536), 0);
	ck_assert_int_eq(wire_next(&wire, &msg), 0);
	ck_assert_int_eq(wire_parse_call(msg, &call), 0);
	ck_assert_int_eq(query_resolve_parse(&req, call.parameters, &bad), 0);
	ck_assert_uint_eq(req.n, CAP_QUERY_ADDRESSES);
	ck_assert_uint_eq(req.items[req.n - 1].time, 1234567890123456789);
	query_resolve_deinit(&req);
	json_decref(msg);
	wire_deinit(&wire);
}
END_TEST

/* -- Answers -------------------------------------------------------------------------- */

#define METHOD_TEXT \
	"{\"method_id\":\"0x7f01\",\"ns\":\"N.T\",\"name\":\"M\",\"sig\":\"void  ()\"," \
	"\"module\":\"/a.dll\",\"tier\":\"OptimizedTier1\",\"start\":\"0x7f00\",\"size\":16," \
	"\"version\":2,\"load\":5,\"unload\":9,\"function\":\"N.T::M()\"}"

static const struct query_method method = {
	.method_id = 0x7f01,
	.start = 0x7f00,
	.load = 5,
	.unload = 9,
	.size = 16,
	.version = 2,
	.tier = "OptimizedTier1",
	.ns = "N.T",
	.ns_len = 3,
	.name = "M",
	.name_len = 1,
	.sig = "void  ()",
	.sig_len = 8,
	.function = "N.T::M()",
	.function_len = 8,
	.module = "/a.dll",
	.module_len = 6,
};

START_TEST(test_answers)
{
	_cleanup_buf_ struct buf out;
	struct query_answers a;
	struct query_method other = method;
	uint32_t first, second;

	other.unload = UINT64_MAX;
	other.module = NULL;
	buf_init(&out, 4096);
	query_answers_init(&a, 4096);
	ck_assert_int_eq(query_answers_reply(&a, 0, false, &out), 0);
	ck_assert_str_eq((char *)out.data,
			 "{\"parameters\":{\"methods\":[],\"method\":[],\"offset\":[],"
			 "\"il_offset\":[],\"reason\":[],\"known_until\":0,\"final\":false}}");
	buf_clear(&out);
	first = query_answers_method(&a, &method);
	query_answers_hit(&a, first, 3, 17);
	query_answers_miss(&a, QUERY_REASON_STUB);
	second = query_answers_method(&a, &other);
	query_answers_hit(&a, second, UINT32_MAX, -1);
	query_answers_hit(&a, first, 0, 0);
	ck_assert_uint_eq(a.n, 4);
	ck_assert_uint_eq(a.n_methods, 2);
	ck_assert_int_eq(query_answers_reply(&a, 123, true, &out), 0);
	ck_assert_str_eq(
		(char *)out.data,
		"{\"parameters\":{\"methods\":[" METHOD_TEXT
		",{\"method_id\":\"0x7f01\",\"ns\":\"N.T\",\"name\":\"M\",\"sig\":\"void  ()\","
		"\"module\":null,\"tier\":\"OptimizedTier1\",\"start\":\"0x7f00\",\"size\":16,"
		"\"version\":2,\"load\":5,\"unload\":null,\"function\":\"N.T::M()\"}],"
		"\"method\":[0,null,1,0],\"offset\":[3,null,4294967295,0],"
		"\"il_offset\":[17,null,null,0],\"reason\":[null,\"stub\",null,null],"
		"\"known_until\":123,\"final\":true}}");
	query_answers_clear(&a);
	buf_clear(&out);
	ck_assert_int_eq(query_answers_reply(&a, UINT64_MAX, false, &out), 0);
	ck_assert_ptr_nonnull(strstr((char *)out.data, "\"known_until\":9223372036854775807,"));
	ck_assert_uint_eq(a.n + a.n_methods, 0);
	query_answers_deinit(&a);
}
END_TEST

START_TEST(test_answers_full)
{
	_cleanup_buf_ struct buf out;
	struct query_answers a;
	unsigned int i;

	buf_init(&out, 200);
	query_answers_init(&a, 1000);
	query_answers_method(&a, &method);
	buf_puts(&out, "before");
	/* the reply's own buffer is too small */
	ck_assert_int_eq(query_answers_reply(&a, 1, true, &out), -ENOSPC);
	ck_assert_uint_eq(out.len, 6);
	for (i = 0; i < 10; i++)
		query_answers_method(&a, &method);
	buf_clear(&out);
	ck_assert_int_eq(query_answers_reply(&a, 1, true, &out), -ENOSPC);
	ck_assert_uint_eq(out.len, 0);
	query_answers_deinit(&a);
}
END_TEST

/* -- The interface's text ------------------------------------------------------------- */

/* No empty comment line, which a parser in use trips over; all lines end; plain ASCII. */
START_TEST(test_interface)
{
	static const char *const names[] = { QUERY_INTERFACE, QUERY_INTERFACE_LOWER,
					     QUERY_SERVICE };
	const char *text = query_description(names[_i]);
	const char *line, *end;

	for (line = text; *line; line = end + 1) {
		const char *c;

		end = strchr(line, '\n');
		ck_assert_ptr_nonnull(end);
		if (*line == '#')
			ck_assert(line[1] == ' ' && end > line + 2);
		for (c = line; c < end; c++)
			ck_assert(*c >= 0x20 && *c < 0x7f);
	}
	ck_assert_ptr_nonnull(strstr(text, names[_i]));
	ck_assert_ptr_null(query_description("org.clrsym"));
	ck_assert_int_eq(strcasecmp(QUERY_INTERFACE, QUERY_INTERFACE_LOWER), 0);
}
END_TEST

/* -- The client ----------------------------------------------------------------------- */

#define ANSWER              "{\"parameters\":{\"x\":1}}"
#define FAILURE(name, more) "{\"error\":\"" name "\"" more "}"

/* What a scripted server does with its one connection. */
struct script {
	const char *send; /* after the first request; NULL: nothing */
	size_t len;       /* of it; 0: with its NUL */
	size_t piece;     /* sent in such pieces, 1 ms apart */
	unsigned int n_fds;
	bool stay; /* until the client goes; else closes */
	bool deaf; /* sends without having read */
};

struct server {
	char path[64];
	int listener;
	pthread_t thread;
	const struct script *script;
};

static void send_all(int fd, const struct script *s)
{
	size_t done = 0, len = s->len ? s->len : strlen(s->send) + 1;
	union {
		struct cmsghdr align;
		uint8_t space[CMSG_SPACE(16 * sizeof(int))];
	} control = { 0 };

	while (done < len) {
		size_t n = MIN(s->piece ? s->piece : len, len - done);
		struct iovec iov = { .iov_base = (char *)(uintptr_t)s->send + done, .iov_len = n };
		struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
		unsigned int i;

		if (s->n_fds && !done) {
			struct cmsghdr *cmsg = &control.align;

			msg.msg_control = &control;
			msg.msg_controllen = CMSG_SPACE(s->n_fds * sizeof(int));
			cmsg->cmsg_level = SOL_SOCKET;
			cmsg->cmsg_type = SCM_RIGHTS;
			cmsg->cmsg_len = CMSG_LEN(s->n_fds * sizeof(int));
			for (i = 0; i < s->n_fds; i++)
				memcpy(CMSG_DATA(cmsg) + i * sizeof(int), &fd, sizeof(int));
		}
		if (sendmsg(fd, &msg, MSG_NOSIGNAL) < 0)
			return;
		done += n;
		if (s->piece)
			usleep(1000);
	}
}

static void *serve(void *data)
{
	struct server *server = data;
	const struct script *s = server->script;
	_cleanup_close_ int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);
	char bytes[4096];
	ssize_t n = s->deaf ? 0 : recv(fd, bytes, sizeof(bytes), 0);

	if (n < 0 || fd < 0)
		return NULL;
	if (s->send)
		send_all(fd, s);
	while (s->stay && recv(fd, bytes, sizeof(bytes), 0) > 0)
		;
	return NULL;
}

static void start_server(struct server *server, const struct script *script)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	server->script = script;
	snprintf(server->path, sizeof(server->path), "/tmp/clrsym-test-query-%d", (int)getpid());
	strcpy(addr.sun_path, server->path);
	unlink(server->path);
	server->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(server->listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
	ck_assert_int_eq(listen(server->listener, 1), 0);
	ck_assert_int_eq(pthread_create(&server->thread, NULL, serve, server), 0);
}

static void stop_server(struct server *server)
{
	pthread_join(server->thread, NULL);
	close(server->listener);
	unlink(server->path);
}

/* Counts our open fds: none may stay behind. */
static int n_fds(void)
{
	int fd, n = 0;

	for (fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* Keeps a client waiting for its end. */
static const char blanks[150] = { [0 ... 149] = ' ' };

static const struct {
	struct script script;
	int r;
	const char *error_text; /* "" if none */
} servers[] = {
	{ { .send = ANSWER, .stay = true }, 0, "" },
	{ { .send = ANSWER, .stay = true, .piece = 1 }, 0, "" },
	{ { .send = "{}" }, 0, "" },
	{ { .send = ANSWER, .stay = true, .n_fds = 1 }, 0, "" },
	{ { .send = ANSWER, .stay = true, .n_fds = 16, .piece = 3 }, 0, "" },
	{ { .send = FAILURE("a.B", ""), .stay = true }, QUERY_E_REMOTE, "a.B" },
	{ { .send = FAILURE("a.B", ",\"parameters\":{\"reason\":\"x\\u001b[m\"}"), .stay = true },
	  QUERY_E_REMOTE,
	  "a.B: x\\x1b[m" },
	{ { .send = FAILURE("a\\n", ",\"parameters\":{\"parameter\":\"tims\"}"), .stay = true },
	  QUERY_E_REMOTE,
	  "a\\x0a: tims" },
	/* garbage */
	{ { .send = "garbage", .stay = true }, -EPROTO, "" },
	{ { .send = "[]", .stay = true }, -EPROTO, "" },
	{ { .send = "", .len = 1, .stay = true }, -EPROTO, "" },
	{ { .send = "{\"parameters\":[]}", .stay = true }, -EPROTO, "" },
	{ { .send = "{\"continues\":true}", .stay = true }, -EPROTO, "" },
	{ { .send = "{\"a\":[[[[[[[[[[[[[[[[[[[[[[[", .stay = true }, -EPROTO, "" },
	/* ends too soon */
	{ { .send = NULL }, -ECONNRESET, "" },
	{ { .send = "{\"parameters\":{", .len = 8 }, -ECONNRESET, "" },
	{ { .send = ANSWER, .len = sizeof(ANSWER) - 1 }, -ECONNRESET, "" },
	/* never ends */
	{ { .send = NULL, .stay = true }, -ETIMEDOUT, "" },
	{ { .send = "{\"parameters\":{", .len = 8, .stay = true }, -ETIMEDOUT, "" },
	{ { .send = blanks, .len = sizeof(blanks), .stay = true, .piece = 1 }, -ETIMEDOUT, "" },
};

START_TEST(test_client)
{
	const struct script *script = &servers[_i].script;
	int before = n_fds(), fd = -2, r;
	struct query_client *c = NULL;
	struct server server;
	uint32_t timeout_ms;
	uint64_t begin;
	json_t *reply;

	start_server(&server, script);
	/* only who waits for it to pass is given a short time: the machine may be busy */
	timeout_ms = servers[_i].r == -ETIMEDOUT ? 60 : 10000;
	ck_assert_int_eq(query_client_open(&c, server.path, timeout_ms), 0);
	ck_assert_str_eq(query_client_error_text(c), "");
	begin = clock_now_ns();
	r = query_client_call(c, "a.b.C", json_object(), &reply, &fd);
	ck_assert_int_eq(r, servers[_i].r);
	ck_assert_uint_lt(clock_now_ns() - begin, SEC_NS(5));
	if (r == -ETIMEDOUT)
		ck_assert_uint_ge(clock_now_ns() - begin, MS_NS(55));
	ck_assert_str_eq(query_client_error_text(c), servers[_i].error_text);
	ck_assert(json_is_object(reply) == (r >= 0));
	ck_assert(fd >= 0 ? script->n_fds != 0 : fd == -1 && !script->n_fds);
	if (fd >= 0)
		ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
	json_decref(reply);
	/* a broken one stays so */
	if (r < 0)
		ck_assert_int_eq(query_client_call(c, "a.b.C", NULL, &reply, NULL), r);
	query_client_free(c);
	stop_server(&server);
	fd_close(fd);
	ck_assert_int_eq(n_fds(), before);
}
END_TEST

/* An fd that nobody takes is closed, and what comes unasked is not the next call's answer. */
START_TEST(test_client_unasked)
{
	static const char twice[] = ANSWER "\0" ANSWER;
	static const struct script script = {
		.send = twice, .len = sizeof(twice), .n_fds = 1, .stay = true
	};
	int before = n_fds();
	struct query_client *c;
	struct server server;
	json_t *reply;

	start_server(&server, &script);
	ck_assert_int_eq(query_client_open(&c, server.path, 10000), 0);
	ck_assert_int_eq(query_client_call(c, "a.b.C", NULL, &reply, NULL), 0);
	json_decref(reply);
	ck_assert_int_eq(query_client_call(c, "a.b.C", json_object(), &reply, NULL), -EPROTO);
	query_client_free(c);
	stop_server(&server);
	ck_assert_int_eq(n_fds(), before);
}
END_TEST

START_TEST(test_client_stream)
{
#define PART "{\"parameters\":{\"x\":1},\"continues\":true}"
	static const char parts[] = PART "\0" PART "\0" ANSWER;
	static const char broken[] = PART "\0" FAILURE("a.B", "");
	static const struct script scripts[] = {
		{ .send = parts, .len = sizeof(parts), .stay = true, .piece = 13, .n_fds = 2 },
		{ .send = broken, .len = sizeof(broken), .stay = true },
	};
	int before = n_fds(), r, n = 0;
	struct query_client *c;
	struct server server;
	bool continues = true;
	json_t *reply;

	start_server(&server, &scripts[_i]);
	ck_assert_int_eq(query_client_open(&c, server.path, 10000), 0);
	ck_assert_int_eq(query_client_next(c, 0, &reply, &continues), -EINVAL);
	ck_assert_int_eq(query_client_call_more(c, "a.b.C", NULL), 0);
	do {
		r = query_client_next(c, n ? 1 : -1, &reply, &continues);
		if (r == -EAGAIN) {
			ck_assert(continues);
			continue;
		}
		ck_assert_int_eq(r, _i && n ? QUERY_E_REMOTE : 0);
		ck_assert(json_is_object(reply));
		json_decref(reply);
		n++;
	} while (continues);
	ck_assert_int_eq(n, _i ? 2 : 3);
	ck_assert_int_eq(query_client_next(c, 0, &reply, &continues), -EINVAL);
	/* the connection is free for the next call, which this server does not answer */
	ck_assert_int_eq(query_client_call_more(c, "a.b.C", NULL), 0);
	ck_assert_int_eq(query_client_next(c, 10, &reply, &continues), -EAGAIN);
	ck_assert_int_eq(query_client_call(c, "a.b.C", NULL, &reply, NULL), -EBUSY);
	query_client_free(c);
	stop_server(&server);
	ck_assert_int_eq(n_fds(), before);
}
END_TEST

/* A request that the server does not read: the time is over, or the server goes away. */
START_TEST(test_client_send)
{
	static const struct script scripts[] = {
		{ .send = "", .len = 1, .deaf = true },
		{ .send = blanks, .len = sizeof(blanks), .piece = 1, .deaf = true },
	};
	_cleanup_free_ char *text = calloc(1, 900000);
	struct query_client *c;
	struct server server;
	json_t *reply;
	int r;

	memset(text, 'x', 899999);
	start_server(&server, &scripts[_i]);
	ck_assert_int_eq(query_client_open(&c, server.path, _i ? 60 : 10000), 0);
	r = query_client_call(c, "a.b.C", json_pack("{s:s}", "x", text), &reply, NULL);
	ck_assert_int_eq(r, _i ? -ETIMEDOUT : -ECONNRESET);
	query_client_free(c);
	stop_server(&server);
}
END_TEST

START_TEST(test_client_open)
{
	char path[200] = "/tmp/";
	_cleanup_free_ char *text = calloc(1, CAP_QUERY_REQUEST + 1);
	static const struct script script = { .stay = true };
	struct query_client *c = NULL;
	struct server server;
	json_t *reply;

	memset(path + 5, 'x', 108 - 5);
	ck_assert_int_eq(query_client_open(&c, path, 100), -ENAMETOOLONG);
	path[107] = '\0';
	ck_assert_int_eq(query_client_open(&c, path, 100), -ENOENT);
	ck_assert_ptr_null(c);
	/* more than any request may be */
	memset(text, 'x', CAP_QUERY_REQUEST);
	start_server(&server, &script);
	ck_assert_int_eq(query_client_open(&c, server.path, 100), 0);
	ck_assert_int_ge(query_client_fd(c), 0);
	ck_assert_int_eq(query_client_call(c, "a", json_pack("{s:s}", "x", text), &reply, NULL),
			 -EMSGSIZE);
	query_client_free(c);
	stop_server(&server);
}
END_TEST

int main(void)
{
	TCase *wire = tcase_create("wire");
	TCase *text = tcase_create("text");
	TCase *symbols = tcase_create("symbols");
	TCase *client = tcase_create("client");
	Suite *suite = suite_create("query");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_add_loop_test(wire, test_message, 0, ARRAY_SIZE(messages));
	tcase_add_test(wire, test_pieces);
	tcase_add_test(wire, test_limit);
	tcase_add_test(wire, test_memory);
	tcase_add_loop_test(wire, test_parse_call, 0, ARRAY_SIZE(calls));
	tcase_add_loop_test(wire, test_parse_reply, 0, ARRAY_SIZE(replies));
	tcase_add_test(wire, test_put);
	suite_add_tcase(suite, wire);
	tcase_add_loop_test(text, test_text, 0, ARRAY_SIZE(texts));
	tcase_add_test(text, test_text_bytes);
	tcase_add_test(text, test_numbers);
	suite_add_tcase(suite, text);
	tcase_add_loop_test(symbols, test_value, 0, ARRAY_SIZE(values));
	tcase_add_loop_test(symbols, test_process, 0, ARRAY_SIZE(processes));
	tcase_add_loop_test(symbols, test_resolve, 0, ARRAY_SIZE(resolves));
	tcase_add_loop_test(symbols, test_resolve_cap, 0, 4);
	tcase_add_test(symbols, test_largest);
	tcase_add_test(symbols, test_answers);
	tcase_add_test(symbols, test_answers_full);
	tcase_add_loop_test(symbols, test_interface, 0, 3);
	suite_add_tcase(suite, symbols);
	tcase_add_loop_test(client, test_client, 0, ARRAY_SIZE(servers));
	tcase_add_test(client, test_client_unasked);
	tcase_add_loop_test(client, test_client_stream, 0, 2);
	tcase_add_loop_test(client, test_client_send, 0, 2);
	tcase_add_test(client, test_client_open);
	suite_add_tcase(suite, client);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
