/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The golden bytes below were written down from the protocol's text by hand, not printed by
 * the code: a wrong byte in a request can kill the process it is sent to.
 */
#include "diagipc/diagipc.h"

#include <check.h>
#include <errno.h>
#include <string.h>

#include "base/caps.h"

#define MAGIC "444f544e45545f4950435f563100"

/* Hex digits, blanks between them ignored, to bytes. */
static size_t unhex(const char *hex, uint8_t *out, size_t size)
{
	size_t n = 0;
	unsigned int v;

	while (*hex) {
		if (*hex == ' ') {
			hex++;
			continue;
		}
		ck_assert_int_eq(sscanf(hex, "%2x", &v), 1);
		ck_assert_uint_lt(n, size);
		out[n++] = (uint8_t)v;
		hex += 2;
	}
	return n;
}

/* -- Requests ------------------------------------------------------------------------- */

static const uint32_t method_ids[] = { 143, 144 };

static const struct diagipc_provider plain[] = {
	{ .name = "Ab", .keywords = 0x98, .level = 5 },
};
static const struct diagipc_provider filtered[] = {
	{ .name = "Ab",
	  .keywords = 0x2000000098,
	  .level = 5,
	  .event_ids = method_ids,
	  .n_event_ids = 2 },
	{ .name = "x" },
};

#define AB_STRING "03000000 4100 6200 0000"
#define AB        "9800000000000000 05000000 " AB_STRING " 00000000"
#define AB_MORE   "9800000020000000 05000000 " AB_STRING " 00000000"
#define X         "0000000000000000 00000000 02000000 7800 0000 00000000"

static const struct {
	enum diagipc_command command;
	uint64_t session_id;
	struct diagipc_session session;
	const char *hex;
} golden[] = {
	{ DIAGIPC_PROCESS_INFO, 0, { 0 }, MAGIC "1400 04 00 0000" },
	{ DIAGIPC_PROCESS_INFO2, 0, { 0 }, MAGIC "1400 04 04 0000" },
	{ DIAGIPC_PROCESS_INFO3, 0, { 0 }, MAGIC "1400 04 08 0000" },
	{ DIAGIPC_STOP_TRACING,
	  0x1122334455667788,
	  { 0 },
	  MAGIC "1c00 02 01 0000 8877665544332211" },
	{ DIAGIPC_COLLECT_TRACING2,
	  0,
	  { 64, 0x20038, plain, 1 },
	  MAGIC "3b00 02 03 0000 40000000 01000000 01 01000000 " AB },
	{ DIAGIPC_COLLECT_TRACING2,
	  0,
	  { 65536, 0, plain, 1 },
	  MAGIC "3b00 02 03 0000 00000100 01000000 00 01000000 " AB },
	/* a keyword above bit 31, and no filter where there is none */
	{ DIAGIPC_COLLECT_TRACING2,
	  0,
	  { 1, 0x100000000, filtered, 2 },
	  MAGIC "5300 02 03 0000 01000000 01000000 01 02000000 " AB_MORE X },
	{ DIAGIPC_COLLECT_TRACING3,
	  0,
	  { 64, 0x20038, plain, 1 },
	  MAGIC "3c00 02 04 0000 40000000 01000000 01 00 01000000 " AB },
	{ DIAGIPC_COLLECT_TRACING3,
	  0,
	  { 64, 0, plain, 1 },
	  MAGIC "3c00 02 04 0000 40000000 01000000 00 00 01000000 " AB },
	{ DIAGIPC_COLLECT_TRACING4,
	  0,
	  { 64, 0x20038, plain, 1 },
	  MAGIC "4300 02 05 0000 40000000 01000000 3800020000000000 00 01000000 " AB },
	{ DIAGIPC_COLLECT_TRACING4,
	  0,
	  { 64, 0, plain, 1 },
	  MAGIC "4300 02 05 0000 40000000 01000000 0000000000000000 00 01000000 " AB },
	{ DIAGIPC_COLLECT_TRACING5,
	  0,
	  { 64, 0x20038, plain, 1 },
	  MAGIC "4c00 02 06 0000 00000000 40000000 01000000 3800020000000000 00 01000000 " AB
		"00 00000000" },
	{ DIAGIPC_COLLECT_TRACING5,
	  0,
	  { 64, 0, filtered, 2 },
	  MAGIC "7100 02 06 0000 00000000 40000000 01000000 0000000000000000 00 02000000 " AB_MORE
		"01 02000000 8f000000 90000000 " X "00 00000000" },
	{ DIAGIPC_COLLECT_TRACING6,
	  0,
	  { 64, 0, plain, 1 },
	  MAGIC "5000 02 07 0000 00000000 40000000 01000000 0000000000000000 00 01000000 " AB
		"00 00000000 00000000" },
};

START_TEST(test_golden)
{
	_cleanup_buf_ struct buf out;
	union diagipc_args args;
	uint8_t want[256];
	size_t n = unhex(golden[_i].hex, want, sizeof(want));

	if (golden[_i].session.n_providers)
		args.session = golden[_i].session;
	else
		args.session_id = golden[_i].session_id;
	buf_init(&out, CAP_IPC_MESSAGE);
	ck_assert_int_eq(diagipc_request(&out, golden[_i].command, &args), 0);
	ck_assert_uint_eq(out.len, n);
	ck_assert_mem_eq(out.data, want, n);

	/* appended behind what is there, with its own size */
	ck_assert_int_eq(diagipc_request(&out, golden[_i].command, &args), 0);
	ck_assert_uint_eq(out.len, 2 * n);
	ck_assert_mem_eq(out.data + n, want, n);
}
END_TEST

START_TEST(test_process_info_needs_no_args)
{
	_cleanup_buf_ struct buf out;

	buf_init(&out, CAP_IPC_MESSAGE);
	ck_assert_int_eq(diagipc_request(&out, DIAGIPC_PROCESS_INFO, NULL), 0);
	ck_assert_int_eq(diagipc_request(&out, DIAGIPC_STOP_TRACING, NULL), -EINVAL);
	ck_assert_int_eq(diagipc_request(&out, DIAGIPC_COLLECT_TRACING2, NULL), -EINVAL);
	ck_assert_uint_eq(out.len, DIAGIPC_HEADER_SIZE);
}
END_TEST

/* Of all 65,536 command codes these leave the program, and no other. */
START_TEST(test_no_other_command)
{
	static const uint32_t allowed[] = { 0x0201, 0x0203, 0x0204, 0x0205, 0x0206,
					    0x0207, 0x0400, 0x0404, 0x0408 };
	_cleanup_buf_ struct buf out;
	union diagipc_args args = { .session = { 64, 0, plain, 1 } };
	size_t i, n_sent = 0;
	uint32_t c;

	buf_init(&out, CAP_IPC_MESSAGE);
	for (c = 0; c <= 0xffff; c++) {
		int r;

		buf_clear(&out);
		r = diagipc_request(&out, (enum diagipc_command)c, &args);
		if (r == -EINVAL) {
			ck_assert_uint_eq(out.len, 0);
			continue;
		}
		ck_assert_int_eq(r, 0);
		for (i = 0; i < ARRAY_SIZE(allowed) && allowed[i] != c; i++)
			;
		ck_assert_uint_lt(i, ARRAY_SIZE(allowed));
		n_sent++;
	}
	ck_assert_uint_eq(n_sent, ARRAY_SIZE(allowed));
}
END_TEST

static const struct diagipc_provider twice[] = {
	{ .name = "a" },
	{ .name = "b" },
	{ .name = "a" },
};

static const struct diagipc_session invalid_sessions[] = {
	{ .buffer_mb = 0, .providers = plain, .n_providers = 1 }, /* would kill 8 and 9 */
	{ .buffer_mb = 65537, .providers = plain, .n_providers = 1 },
	{ .buffer_mb = UINT32_MAX, .providers = plain, .n_providers = 1 },
	{ .buffer_mb = 64, .providers = plain, .n_providers = 0 },
	{ .buffer_mb = 64, .providers = NULL, .n_providers = 1 },
	{ .buffer_mb = 64, .providers = plain, .n_providers = 1001 }, /* refused unread */
	{ .buffer_mb = 64, .providers = twice, .n_providers = 3 },
};

static const struct diagipc_provider invalid_providers[] = {
	{ .name = NULL },
	{ .name = "" },
	{ .name = "a b" },
	{ .name = "a\n" },
	{ .name = "\xc3\xa9" },
	{ .name = "a\x7f" },
	{ .name = "a", .level = 6 },
	{ .name = "a", .level = UINT32_MAX },
	{ .name = "a", .n_event_ids = 1 },
};

static void refused(const struct diagipc_session *session)
{
	static const enum diagipc_command commands[] = {
		DIAGIPC_COLLECT_TRACING2, DIAGIPC_COLLECT_TRACING3, DIAGIPC_COLLECT_TRACING4,
		DIAGIPC_COLLECT_TRACING5, DIAGIPC_COLLECT_TRACING6,
	};
	union diagipc_args args = { .session = *session };
	_cleanup_buf_ struct buf out;
	size_t i;

	buf_init(&out, CAP_IPC_MESSAGE);
	for (i = 0; i < ARRAY_SIZE(commands); i++) {
		ck_assert_int_eq(diagipc_request(&out, commands[i], &args), -EINVAL);
		ck_assert_uint_eq(out.len, 0);
		ck_assert_int_eq(out.error, 0);
	}
}

START_TEST(test_invalid_session)
{
	refused(&invalid_sessions[_i]);
}
END_TEST

/* As the only provider, and behind a good one. */
START_TEST(test_invalid_provider)
{
	struct diagipc_provider both[] = { plain[0], invalid_providers[_i] };

	refused(&(struct diagipc_session){ 64, 0, &both[1], 1 });
	refused(&(struct diagipc_session){ 64, 0, both, 2 });
}
END_TEST

START_TEST(test_stop_needs_an_id)
{
	union diagipc_args args = { .session_id = 0 };
	_cleanup_buf_ struct buf out;

	buf_init(&out, CAP_IPC_MESSAGE);
	ck_assert_int_eq(diagipc_request(&out, DIAGIPC_STOP_TRACING, &args), -EINVAL);
	ck_assert_uint_eq(out.len, 0);
}
END_TEST

/* 65,535 bytes are sent, one more is not; and nothing is left of what was not. */
START_TEST(test_size_limit)
{
	/* header, fields up to the filter's count: 76 bytes with "Ab" and no ids */
	enum { FITS = (65535 - 76) / 4 };
	static uint32_t ids[FITS + 1];
	struct diagipc_provider p = plain[0];
	union diagipc_args args = { .session = { 64, 0x20038, &p, 1 } };
	_cleanup_buf_ struct buf out;

	p.event_ids = ids;
	p.n_event_ids = FITS;
	buf_init(&out, MIB(1));
	buf_puts(&out, "before");
	ck_assert_int_eq(diagipc_request(&out, DIAGIPC_COLLECT_TRACING5, &args), 0);
	ck_assert_uint_eq(out.len, 6 + 76 + 4 * FITS);
	ck_assert_uint_eq(out.data[6 + 14] | out.data[6 + 15] << 8, 76 + 4 * FITS);

	out.len = 6;
	p.n_event_ids = FITS + 1;
	ck_assert_int_eq(diagipc_request(&out, DIAGIPC_COLLECT_TRACING5, &args), -ENOSPC);
	ck_assert_uint_eq(out.len, 6);
	ck_assert_int_eq(out.error, 0);
	/* the same session without its filter is small */
	ck_assert_int_eq(diagipc_request(&out, DIAGIPC_COLLECT_TRACING4, &args), 0);
}
END_TEST

/* A buffer that is too small, at every size, holds nothing of the message. */
START_TEST(test_full_buffer)
{
	union diagipc_args args = { .session = { 64, 0, filtered, 2 } };
	size_t cap;

	for (cap = 1; cap <= 0x71; cap++) {
		_cleanup_buf_ struct buf out;
		int r;

		buf_init(&out, cap);
		r = diagipc_request(&out, DIAGIPC_COLLECT_TRACING5, &args);
		ck_assert_int_eq(r, cap < 0x71 ? -ENOSPC : 0);
		ck_assert_uint_eq(out.len, r ? 0 : cap);
	}
}
END_TEST

START_TEST(test_session_command)
{
	static const struct {
		struct diagipc_version version;
		enum diagipc_command command;
	} cases[] = {
		{ { 0, 0, 0 }, DIAGIPC_COLLECT_TRACING5 },
		{ { 3, 1, 3 }, DIAGIPC_COLLECT_TRACING2 },
		{ { 5, 0, 0 }, DIAGIPC_COLLECT_TRACING2 },
		{ { 8, 0, 34 }, DIAGIPC_COLLECT_TRACING2 },
		{ { 9, 0, 0 }, DIAGIPC_COLLECT_TRACING4 },
		{ { 10, 0, 15 }, DIAGIPC_COLLECT_TRACING5 },
		{ { 11, 0, 0 }, DIAGIPC_COLLECT_TRACING5 },
		{ { 42, 42, 42 }, DIAGIPC_COLLECT_TRACING5 },
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(cases); i++)
		ck_assert_int_eq(diagipc_session_command(&cases[i].version), cases[i].command);
	ck_assert_int_eq(diagipc_session_fallback(DIAGIPC_COLLECT_TRACING6), 0x0206);
	ck_assert_int_eq(diagipc_session_fallback(DIAGIPC_COLLECT_TRACING5), 0x0205);
	ck_assert_int_eq(diagipc_session_fallback(DIAGIPC_COLLECT_TRACING4), 0x0204);
	ck_assert_int_eq(diagipc_session_fallback(DIAGIPC_COLLECT_TRACING3), 0x0203);
	ck_assert_int_eq(diagipc_session_fallback(DIAGIPC_COLLECT_TRACING2), 0);
	ck_assert_int_eq(diagipc_session_fallback(DIAGIPC_STOP_TRACING), 0);
}
END_TEST

/* -- Replies -------------------------------------------------------------------------- */

#define PID    "0c00000000000000"
#define COOKIE "000102030405060708090a0b0c0d0e0f"
/* "dotnet é 😀", "Linux", "x64", "app", "8.0.34", "linux-x64" */
#define CMDLINE "0c000000 6400 6f00 7400 6e00 6500 7400 2000 e900 2000 3dd8 00de 0000"
#define LINUX   "06000000 4c00 6900 6e00 7500 7800 0000"
#define X64     "04000000 7800 3600 3400 0000"
#define APP     "04000000 6100 7000 7000 0000"
#define V8      "07000000 3800 2e00 3000 2e00 3300 3400 0000"
#define RID     "0a000000 6c00 6900 6e00 7500 7800 2d00 7800 3600 3400 0000"

#define INFO1   MAGIC "6400 ff 00 0000 " PID COOKIE CMDLINE LINUX X64
#define INFO2   MAGIC "8200 ff 00 0000 " PID COOKIE CMDLINE LINUX X64 APP V8
#define INFO3   MAGIC "9e00 ff 00 0000 01000000 " PID COOKIE CMDLINE LINUX X64 APP V8 RID

static int parse(const char *hex, uint8_t *bytes, size_t size, struct diagipc_reply *reply)
{
	size_t n = unhex(hex, bytes, size);

	return diagipc_reply_parse(bytes, n, reply);
}

START_TEST(test_session_reply)
{
	uint8_t bytes[64];
	struct diagipc_reply reply;
	uint64_t id;
	size_t n, i;

	/* the stream follows at once */
	n = unhex(MAGIC "1c00 ff 00 0000 8877665544332211 4e65747472616365", bytes, sizeof(bytes));
	for (i = 0; i < 28; i++)
		ck_assert_int_eq(diagipc_reply_parse(bytes, i, &reply), DIAGIPC_E_MORE);
	for (; i <= n; i++) {
		ck_assert_int_eq(diagipc_reply_parse(bytes, i, &reply), 0);
		ck_assert_uint_eq(reply.size, 28);
		ck_assert_int_eq(diagipc_parse_session_id(&reply, &id), 0);
		ck_assert_uint_eq(id, 0x1122334455667788);
	}
	ck_assert_int_eq(diagipc_reply_parse(NULL, 0, &reply), DIAGIPC_E_MORE);
}
END_TEST

START_TEST(test_session_id_malformed)
{
	uint8_t bytes[64];
	struct diagipc_reply reply;
	uint64_t id;

	ck_assert_int_eq(parse(MAGIC "1400 ff 00 0000", bytes, sizeof(bytes), &reply), 0);
	ck_assert_int_eq(diagipc_parse_session_id(&reply, &id), DIAGIPC_E_MALFORMED);
	ck_assert_int_eq(
		parse(MAGIC "1b00 ff 00 0000 01020304050607", bytes, sizeof(bytes), &reply), 0);
	ck_assert_int_eq(diagipc_parse_session_id(&reply, &id), DIAGIPC_E_MALFORMED);
	ck_assert_int_eq(
		parse(MAGIC "1c00 ff 00 0000 0000000000000000", bytes, sizeof(bytes), &reply), 0);
	ck_assert_int_eq(diagipc_parse_session_id(&reply, &id), DIAGIPC_E_MALFORMED);
}
END_TEST

START_TEST(test_error_reply)
{
	uint8_t bytes[64];
	struct diagipc_reply reply;
	size_t i, n = unhex(MAGIC "1800 ff ff 0000 85131380", bytes, sizeof(bytes));

	for (i = 0; i < n; i++)
		ck_assert_int_eq(diagipc_reply_parse(bytes, i, &reply), DIAGIPC_E_MORE);
	ck_assert_int_eq(diagipc_reply_parse(bytes, n, &reply), DIAGIPC_E_REFUSED);
	ck_assert_uint_eq(reply.hresult, DIAGIPC_UNKNOWN_COMMAND);
	ck_assert_str_eq(diagipc_hresult_text(reply.hresult), "UNKNOWN_COMMAND");
	ck_assert_str_eq(diagipc_hresult_text(0x80004005), "FAIL");
	ck_assert_str_eq(diagipc_hresult_text(0x80070057), "0x80070057");
	/* the reserved field is not looked at; a longer payload is */
	ck_assert_int_eq(parse(MAGIC "1a00 ff ff 0700 05400080 aabb", bytes, sizeof(bytes), &reply),
			 DIAGIPC_E_REFUSED);
	ck_assert_uint_eq(reply.hresult, DIAGIPC_FAIL);
}
END_TEST

static const char *const not_a_reply[] = {
	"485454502f312e31 20 343030", /* HTTP/1.1 400 */
	"00",
	"444f544e45545f4950435f5632", /* DOTNET_IPC_V2 */
	"444f544e45545f4950435f563120",
	"4e65747472616365",      /* a stream without a reply */
	MAGIC "1300 ff 00 0000", /* size below the header's */
	MAGIC "0000 ff 00 0000",
	MAGIC "1400 04 00 0000", /* a request */
	MAGIC "1400 ff 01 0000", /* neither OK nor error */
	MAGIC "1400 ff ff 0000", /* error without a code */
	MAGIC "1700 ff ff 0000 851313",
	MAGIC "ffff 00 00 0000 0000000000000000", /* not to be waited for */
};

START_TEST(test_not_a_reply)
{
	uint8_t bytes[64];
	struct diagipc_reply reply;

	ck_assert_int_eq(parse(not_a_reply[_i], bytes, sizeof(bytes), &reply), DIAGIPC_E_MALFORMED);
}
END_TEST

START_TEST(test_process_info)
{
	static const struct {
		enum diagipc_command command;
		const char *hex;
	} cases[] = {
		{ DIAGIPC_PROCESS_INFO, INFO1 },
		{ DIAGIPC_PROCESS_INFO2, INFO2 },
		{ DIAGIPC_PROCESS_INFO3, INFO3 },
	};
	size_t i, j;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_diagipc_process_info_ struct diagipc_process_info info;
		struct diagipc_reply reply;
		uint8_t bytes[256];

		ck_assert_int_eq(parse(cases[i].hex, bytes, sizeof(bytes), &reply), 0);
		ck_assert_int_eq(diagipc_parse_process_info(&reply, cases[i].command, &info), 0);
		ck_assert_uint_eq(info.pid, 12);
		for (j = 0; j < 16; j++)
			ck_assert_uint_eq(info.cookie[j], j);
		ck_assert_str_eq(info.command_line, "dotnet \xc3\xa9 \xf0\x9f\x98\x80");
		ck_assert_str_eq(info.os, "Linux");
		ck_assert_str_eq(info.arch, "x64");
		if (i < 1) {
			ck_assert_ptr_null(info.assembly);
			ck_assert_ptr_null(info.version_text);
			ck_assert_uint_eq(info.version.major, 0);
		} else {
			ck_assert_str_eq(info.assembly, "app");
			ck_assert_str_eq(info.version_text, "8.0.34");
			ck_assert_uint_eq(info.version.major, 8);
			ck_assert_uint_eq(info.version.minor, 0);
			ck_assert_uint_eq(info.version.patch, 34);
		}
		if (i < 2)
			ck_assert_ptr_null(info.rid);
		else
			ck_assert_str_eq(info.rid, "linux-x64");
	}
}
END_TEST

static void put_reply_size(uint8_t *bytes, size_t n)
{
	bytes[14] = (uint8_t)n;
	bytes[15] = (uint8_t)(n >> 8);
}

/* Whole replies whose payload ends early, at every length. */
START_TEST(test_process_info_cut)
{
	uint8_t bytes[256];
	size_t cut, n = unhex(INFO3, bytes, sizeof(bytes));

	for (cut = DIAGIPC_HEADER_SIZE; cut < n; cut++) {
		struct diagipc_process_info info;
		struct diagipc_reply reply;

		put_reply_size(bytes, cut);
		ck_assert_int_eq(diagipc_reply_parse(bytes, cut, &reply), 0);
		ck_assert_int_eq(diagipc_parse_process_info(&reply, DIAGIPC_PROCESS_INFO3, &info),
				 DIAGIPC_E_MALFORMED);
		ck_assert_ptr_null(info.command_line);
		/* the sender says more than there is */
		put_reply_size(bytes, n);
		ck_assert_int_eq(diagipc_reply_parse(bytes, cut, &reply), DIAGIPC_E_MORE);
	}
	/* later versions append */
	n = unhex(INFO3 "aabbcc", bytes, sizeof(bytes));
	put_reply_size(bytes, n);
	bytes[20] = 2;
	{
		_cleanup_diagipc_process_info_ struct diagipc_process_info info;
		struct diagipc_reply reply;

		ck_assert_int_eq(diagipc_reply_parse(bytes, n, &reply), 0);
		ck_assert_int_eq(diagipc_parse_process_info(&reply, DIAGIPC_PROCESS_INFO3, &info),
				 0);
		ck_assert_str_eq(info.rid, "linux-x64");
	}
}
END_TEST

static const struct {
	const char *hex;
	int result;
	const char *command_line;
} strings[] = {
	/* os and arch follow as empty strings */
	{ "00000000", 0, "" },
	{ "01000000 0000", 0, "" },
	{ "02000000 4100 0000", 0, "A" },
	{ "02000000 00d8 0000", 0, "\xef\xbf\xbd" },
	{ "03000000 0000 4200 0000", 0, "" },
	{ "02000000 4100 4200", DIAGIPC_E_MALFORMED, NULL },
	{ "02000000 4100 0001", DIAGIPC_E_MALFORMED, NULL },
	{ "ffffffff 4100 0000", DIAGIPC_E_MALFORMED, NULL },
	{ "00000080 4100 0000", DIAGIPC_E_MALFORMED, NULL },
	{ "01000080 4100 0000", DIAGIPC_E_MALFORMED, NULL },
	{ "ffffff7f 4100 0000", DIAGIPC_E_MALFORMED, NULL },
	{ "07000000 4100 0000", DIAGIPC_E_MALFORMED, NULL },
};

START_TEST(test_string)
{
	_cleanup_diagipc_process_info_ struct diagipc_process_info info;
	uint8_t bytes[128];
	char hex[256];
	struct diagipc_reply reply;
	size_t n;

	snprintf(hex, sizeof(hex), MAGIC "0000 ff 00 0000" PID COOKIE "%s 00000000 00000000",
		 strings[_i].hex);
	n = unhex(hex, bytes, sizeof(bytes));
	put_reply_size(bytes, n);
	ck_assert_int_eq(diagipc_reply_parse(bytes, n, &reply), 0);
	ck_assert_int_eq(diagipc_parse_process_info(&reply, DIAGIPC_PROCESS_INFO, &info),
			 strings[_i].result);
	if (strings[_i].command_line)
		ck_assert_str_eq(info.command_line, strings[_i].command_line);
	else
		ck_assert_ptr_null(info.command_line);
}
END_TEST

/* The longest command line that a reply can carry, of characters that grow most. */
START_TEST(test_longest_string)
{
	static uint8_t bytes[CAP_IPC_MESSAGE];
	_cleanup_diagipc_process_info_ struct diagipc_process_info info;
	struct diagipc_reply reply;
	size_t i, at = 44, n_units = (CAP_IPC_MESSAGE - 44 - 4 - 8) / 2;
	size_t n = 44 + 4 + 2 * n_units + 8;

	unhex(MAGIC "0000 ff 00 0000" PID COOKIE, bytes, sizeof(bytes));
	put_reply_size(bytes, n);
	for (i = 0; i < 4; i++)
		bytes[at++] = (uint8_t)(n_units >> 8 * i);
	for (i = 0; i + 1 < n_units; i++) {
		bytes[at++] = 0xff;
		bytes[at++] = 0xff;
	}
	ck_assert_int_eq(diagipc_reply_parse(bytes, n, &reply), 0);
	ck_assert_int_eq(diagipc_parse_process_info(&reply, DIAGIPC_PROCESS_INFO, &info), 0);
	ck_assert_uint_eq(strlen(info.command_line), 3 * (n_units - 1));
}
END_TEST

START_TEST(test_process_info_refuses)
{
	struct diagipc_process_info info;
	struct diagipc_reply reply;
	uint8_t bytes[256];

	ck_assert_int_eq(parse(INFO3, bytes, sizeof(bytes), &reply), 0);
	ck_assert_int_eq(diagipc_parse_process_info(&reply, DIAGIPC_STOP_TRACING, &info), -EINVAL);
	ck_assert_ptr_null(info.command_line);
	/* version 0 */
	bytes[20] = 0;
	ck_assert_int_eq(diagipc_parse_process_info(&reply, DIAGIPC_PROCESS_INFO3, &info),
			 DIAGIPC_E_MALFORMED);
}
END_TEST

static const struct {
	const char *text;
	struct diagipc_version version;
} versions[] = {
	{ "10.0.15", { 10, 0, 15 } },
	{ "11.0.0-preview.1.25101.1", { 11, 0, 0 } },
	{ "8.0.34+abcdef", { 8, 0, 34 } },
	{ "3.1.3", { 3, 1, 3 } },
	{ "9.0.0.7", { 9, 0, 0 } },
	{ "42.42.42.42424", { 42, 42, 42 } },
	{ "999999999.0.0", { 999999999, 0, 0 } },
	{ "", { 0, 0, 0 } },
	{ ".", { 0, 0, 0 } },
	{ "10", { 0, 0, 0 } },
	{ "10.", { 0, 0, 0 } },
	{ "10.0", { 0, 0, 0 } },
	{ "10.0.", { 0, 0, 0 } },
	{ "10.0.x", { 0, 0, 0 } },
	{ "10,0,1", { 0, 0, 0 } },
	{ "-1.0.0", { 0, 0, 0 } },
	{ "+1.0.0", { 0, 0, 0 } },
	{ " 1.0.0", { 0, 0, 0 } },
	{ "v8.0.1", { 0, 0, 0 } },
	{ "4294967306.0.0", { 0, 0, 0 } },
	{ "10.0.1000000000", { 0, 0, 0 } },
};

START_TEST(test_version)
{
	struct diagipc_version v = { 7, 7, 7 };

	diagipc_version_parse(versions[_i].text, &v);
	ck_assert_uint_eq(v.major, versions[_i].version.major);
	ck_assert_uint_eq(v.minor, versions[_i].version.minor);
	ck_assert_uint_eq(v.patch, versions[_i].version.patch);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("diagipc");
	TCase *tc = tcase_create("requests");
	SRunner *sr;
	int failed;

	tcase_add_loop_test(tc, test_golden, 0, ARRAY_SIZE(golden));
	tcase_add_test(tc, test_process_info_needs_no_args);
	tcase_add_test(tc, test_no_other_command);
	tcase_add_loop_test(tc, test_invalid_session, 0, ARRAY_SIZE(invalid_sessions));
	tcase_add_loop_test(tc, test_invalid_provider, 0, ARRAY_SIZE(invalid_providers));
	tcase_add_test(tc, test_stop_needs_an_id);
	tcase_add_test(tc, test_size_limit);
	tcase_add_test(tc, test_full_buffer);
	tcase_add_test(tc, test_session_command);
	suite_add_tcase(s, tc);
	tc = tcase_create("replies");
	tcase_add_test(tc, test_session_reply);
	tcase_add_test(tc, test_session_id_malformed);
	tcase_add_test(tc, test_error_reply);
	tcase_add_loop_test(tc, test_not_a_reply, 0, ARRAY_SIZE(not_a_reply));
	tcase_add_test(tc, test_process_info);
	tcase_add_test(tc, test_process_info_cut);
	tcase_add_loop_test(tc, test_string, 0, ARRAY_SIZE(strings));
	tcase_add_test(tc, test_longest_string);
	tcase_add_test(tc, test_process_info_refuses);
	tcase_add_loop_test(tc, test_version, 0, ARRAY_SIZE(versions));
	suite_add_tcase(s, tc);

	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
