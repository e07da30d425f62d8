/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclrsym against a fake daemon in the same process. The library is linked statically, beside
 * the program's own copy of what it is made of: that no name of one meets the other is part of
 * the test.
 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/util.h"
#include "query/symbols.h"
#include "tests/lib/fake.h"

static struct fake fake;
static struct clrsym *c;
static struct clrsym_process *p;

static void setup(void)
{
	fake_start(&fake);
	c = fake_open(&fake);
	p = fake_process(c);
}

static void teardown(void)
{
	clrsym_process_close(p);
	clrsym_close(c);
	fake_stop(&fake);
}

/* A symbol with room of its own. */
struct room {
	struct clrsym_symbol sym;
	char name[64], module[64];
};

static struct clrsym_symbol *room_init(struct room *room)
{
	clrsym_symbol_init(&room->sym, room->name, sizeof(room->name), room->module,
			   sizeof(room->module));
	return &room->sym;
}

static uint64_t code(uint32_t i)
{
	return FAKE_CODE + (uint64_t)i * FAKE_STEP;
}

static int resolve_one(uint64_t addr, uint64_t time, struct room *room)
{
	struct clrsym_query query = { .addr = addr, .time_ns = time };

	room_init(room);
	return clrsym_resolve(p, &query, &room->sym, 1, NULL);
}

/* -- Arguments ----------------------------------------------------------------------------- */

START_TEST(test_arguments)
{
	struct {
		struct clrsym_open_opts opts;
		uint64_t more;
	} large = { .opts = { .sz = sizeof(large), .socket_path = fake.path } };
	struct clrsym_process_opts popts = { .sz = sizeof(popts), .flags = 2 };
	struct clrsym_query query = { .addr = 1, .zero = 1 };
	struct clrsym_process *other;
	struct clrsym *handle;
	struct room room;

	ck_assert_int_eq(clrsym_open(&large.opts, &handle), 0);
	clrsym_close(handle);
	large.more = 1;
	ck_assert_int_eq(clrsym_open(&large.opts, &handle), -E2BIG);
	large.opts.sz = 8;
	ck_assert_int_eq(clrsym_open(&large.opts, &handle), -EINVAL);
	ck_assert_int_eq(clrsym_process_open(c, FAKE_PID, 0, &popts, &other), -E2BIG);
	ck_assert_int_eq(clrsym_process_open(c, 0, 0, NULL, &other), -EINVAL);
	ck_assert_int_eq(clrsym_process_open(c, FAKE_PID, FAKE_START + 1, NULL, &other), -EPROTO);

	ck_assert_int_eq(clrsym_resolve(p, &query, room_init(&room), 1, NULL), -E2BIG);
	ck_assert_int_eq(clrsym_lookup(p, code(0), 0, 2, room_init(&room)), -EINVAL);
	room.sym.sz = 8;
	ck_assert_int_eq(clrsym_lookup(p, code(0), 0, 0, &room.sym), -EINVAL);
	ck_assert_int_eq(clrsym_resolve(p, NULL, NULL, 0, NULL), 0);
	clrsym_close(NULL);
	clrsym_process_close(NULL);
	clrsym_monitor_close(NULL);
}
END_TEST

START_TEST(test_texts)
{
	static const int errors[] = { EINVAL,     E2BIG,     ENOMEM, ECHILD, ECONNREFUSED,
				      ECONNRESET, ETIMEDOUT, EPROTO, EACCES, ESRCH,
				      ENOTCONN,   ENOTSUP,   EXDEV,  EBUSY,  ENOSYS,
				      EREMOTEIO,  ENOENT,    EAGAIN, ENODATA };
	struct clrsym_symbol sym = { .reason = CLRSYM_DATA_LOST, .reason_ns = 42 };
	char buf[32];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(errors); i++) {
		ck_assert_str_eq(clrsym_strerror(errors[i]), clrsym_strerror(-errors[i]));
		ck_assert_ptr_null(strstr(clrsym_strerror(errors[i]), "unexpected"));
	}
	ck_assert_str_eq(clrsym_strerror(INT32_MIN), clrsym_strerror(99999));
	ck_assert_str_eq(clrsym_reason_text(CLRSYM_NAMED), "");
	ck_assert_str_eq(clrsym_reason_text(CLRSYM_STUB), "stub");
	ck_assert_str_eq(clrsym_reason_text(77), clrsym_reason_text(CLRSYM_OTHER));
	ck_assert_uint_eq(clrsym_reason_format(&sym, buf, sizeof(buf)), 15);
	ck_assert_str_eq(buf, "data lost at 42");
	ck_assert_uint_eq(clrsym_reason_format(&sym, buf, 5), 15);
	ck_assert_str_eq(buf, "data");
	ck_assert_str_eq(clrsym_version(), CLRSYM_VERSION);
}
END_TEST

/* -- Lookup -------------------------------------------------------------------------------- */

START_TEST(test_lookup)
{
	uint32_t calls = fake.calls[FAKE_RESOLVE] + fake.calls[FAKE_SNAPSHOT];
	struct room room;

	ck_assert_int_eq(clrsym_lookup(p, code(3) + 0x12, FAKE_T0 + 5, 0, room_init(&room)), 0);
	ck_assert_str_eq(room.name, "Ns.Type::M3(int32)");
	ck_assert_str_eq(room.module, "/app/load.dll");
	ck_assert_uint_eq(room.sym.start, code(3));
	ck_assert_uint_eq(room.sym.size, FAKE_SIZE);
	ck_assert_uint_eq(room.sym.offset, 0x12);
	ck_assert_int_eq(room.sym.il_offset, 5);
	ck_assert_uint_eq(room.sym.load_ns, FAKE_T0);
	ck_assert_uint_eq(room.sym.unload_ns, UINT64_MAX);
	ck_assert_uint_eq(room.sym.method_id, 0x1003);
	ck_assert_uint_eq(room.sym.version, 0);
	ck_assert_uint_eq(room.sym.short_len, strlen("Ns.Type::M3"));
	ck_assert_uint_eq(room.sym.reason, CLRSYM_NAMED);
	ck_assert_str_eq(room.sym.tier, "OptimizedTier1");
	ck_assert(room.sym.final && !room.sym.truncated);

	/* past what is known, and the last state */
	ck_assert_int_eq(clrsym_lookup(p, code(3), 2 * FAKE_T0 + 1, 0, room_init(&room)), 0);
	ck_assert(!room.sym.final);
	ck_assert_int_eq(clrsym_lookup(p, code(3), 0, 0, room_init(&room)), 0);
	ck_assert(!room.sym.final);
	/* before the load, between two bodies */
	ck_assert_int_eq(clrsym_lookup(p, code(3), FAKE_T0 - 1, 0, room_init(&room)), -ENOENT);
	ck_assert_uint_eq(room.sym.reason, CLRSYM_UNANSWERED);
	ck_assert_str_eq(room.name, "");
	ck_assert_int_eq(clrsym_lookup(p, code(3) + FAKE_SIZE, 0, 0, room_init(&room)), -ENOENT);
	ck_assert_uint_eq(calls, fake.calls[FAKE_RESOLVE] + fake.calls[FAKE_SNAPSHOT]);
	ck_assert_uint_eq(clrsym_known_until(p), 2 * FAKE_T0);
	ck_assert_uint_eq(clrsym_process_start_time(p), FAKE_START);
	ck_assert(!clrsym_process_has_ended(p));
}
END_TEST

START_TEST(test_lookup_caller)
{
	struct room room;

	/* a call is the last instruction of the body: the return address is behind it */
	ck_assert_int_eq(clrsym_lookup(p, code(2) + FAKE_SIZE, 0, CLRSYM_CALLER, room_init(&room)),
			 0);
	ck_assert_str_eq(room.name, "Ns.Type::M2(int32)");
	ck_assert_uint_eq(room.sym.offset, FAKE_SIZE);
	ck_assert_int_eq(clrsym_lookup(p, code(2) + 0x10, 0, CLRSYM_CALLER, room_init(&room)), 0);
	ck_assert_int_eq(room.sym.il_offset, 0);
	ck_assert_int_eq(clrsym_lookup(p, code(2), 0, CLRSYM_CALLER, room_init(&room)), -ENOENT);
	ck_assert_int_eq(clrsym_lookup(p, 0, 0, CLRSYM_CALLER, room_init(&room)), -ENOENT);
}
END_TEST

START_TEST(test_lookup_rooms)
{
	struct room room;

	clrsym_symbol_init(&room.sym, NULL, 0, NULL, 0);
	ck_assert_int_eq(clrsym_lookup(p, code(1), 0, 0, &room.sym), 0);
	ck_assert_uint_eq(room.sym.method_id, 0x1001);
	ck_assert(!room.sym.truncated);
	clrsym_symbol_init(&room.sym, room.name, 5, NULL, 0);
	ck_assert_int_eq(clrsym_lookup(p, code(1), 0, 0, &room.sym), 0);
	ck_assert_str_eq(room.name, "Ns.T");
	ck_assert(room.sym.truncated);
	clrsym_symbol_init(&room.sym, room.name, 5, room.module, 3);
	ck_assert_int_eq(
		clrsym_resolve(p, &(struct clrsym_query){ .addr = FAKE_FAR }, &room.sym, 1, NULL),
		0);
	ck_assert_str_eq(room.name, "Far.");
	ck_assert_str_eq(room.module, "/a");
	ck_assert(room.sym.truncated);
}
END_TEST

START_TEST(test_retired)
{
	struct room room;

	ck_assert_int_eq(snapshot_retire(fake.writer, 1, FAKE_T0 + 1000), 0);
	fake_put(fake.writer, 1, FAKE_T0 + 2000, "New");
	ck_assert_int_eq(clrsym_lookup(p, code(1), FAKE_T0 + 2000, 0, room_init(&room)), 0);
	ck_assert_str_eq(room.name, "Ns.Type::New1(int32)");
	ck_assert_int_eq(clrsym_lookup(p, code(1), FAKE_T0 + 1500, 0, room_init(&room)), -ENOENT);
}
END_TEST

/* -- Resolve ------------------------------------------------------------------------------- */

START_TEST(test_resolve_all_kinds)
{
	static const uint32_t reasons[] = {
		CLRSYM_UNMAPPED,       CLRSYM_STUB,         CLRSYM_NATIVE,  CLRSYM_NOT_ANNOUNCED,
		CLRSYM_NOT_LOADED_YET, CLRSYM_RETIRED,      CLRSYM_EXPIRED, CLRSYM_DATA_LOST,
		CLRSYM_OVER_CAP,       CLRSYM_NOT_ATTACHED, CLRSYM_DENIED,  CLRSYM_OTHER,
		CLRSYM_DATA_LOST
	};
	struct clrsym_query queries[16] = { { .addr = code(4) + 1, .time_ns = FAKE_T0 },
					    { .addr = FAKE_FAR + 3, .time_ns = FAKE_T0 },
					    { .addr = FAKE_FAR + FAKE_FAR_SIZE,
					      .flags = CLRSYM_CALLER } };
	struct room rooms[16];
	struct clrsym_symbol symbols[16];
	size_t i;

	for (i = 0; i < 16; i++)
		symbols[i] = *room_init(&rooms[i]);
	for (i = 0; i < 13; i++)
		queries[3 + i] =
			(struct clrsym_query){ .addr = FAKE_NOWHERE + i, .time_ns = 3 * FAKE_T0 };
	ck_assert_int_eq(clrsym_resolve(p, queries, symbols, 16, NULL), 0);
	ck_assert_uint_eq(fake.calls[FAKE_RESOLVE], 1);
	ck_assert_uint_eq(fake.addresses, 15);

	ck_assert_str_eq(rooms[0].name, "Ns.Type::M4(int32)");
	ck_assert_str_eq(rooms[1].name, "Far.Away::Run(int32)");
	ck_assert_str_eq(rooms[1].module, "/app/far.dll");
	ck_assert_uint_eq(symbols[1].short_len, strlen("Far.Away::Run"));
	ck_assert_uint_eq(symbols[1].offset, 3);
	ck_assert_int_eq(symbols[1].il_offset, 7);
	ck_assert_uint_eq(symbols[1].method_id, 0x1234);
	ck_assert_uint_eq(symbols[1].version, 2);
	ck_assert_uint_eq(symbols[1].load_ns, FAKE_T0);
	ck_assert_uint_eq(symbols[1].unload_ns, UINT64_MAX);
	ck_assert_str_eq(symbols[1].tier, "OptimizedTier1");
	ck_assert(symbols[1].final);
	ck_assert_uint_eq(symbols[2].offset, FAKE_FAR_SIZE);
	ck_assert(!symbols[2].final);
	for (i = 0; i < 13; i++) {
		ck_assert_uint_eq(symbols[3 + i].reason, reasons[i]);
		ck_assert_uint_eq(symbols[3 + i].reason_ns, i == 7 ? 4144684449616u : 0);
		ck_assert_str_eq(rooms[3 + i].name, "");
		ck_assert(!symbols[3 + i].final);
	}
}
END_TEST

START_TEST(test_resolve_from_memory)
{
	struct room room;

	ck_assert_int_eq(resolve_one(code(5), FAKE_T0, &room), 0);
	ck_assert_str_eq(room.name, "Ns.Type::M5(int32)");
	ck_assert_uint_eq(fake.calls[FAKE_RESOLVE], 0);
}
END_TEST

/* What is not final is asked for again when there is time to wait. */
START_TEST(test_resolve_wait)
{
	struct clrsym_query query = { .addr = FAKE_FAR, .time_ns = 3 * FAKE_T0 };
	struct clrsym_resolve_opts opts = { .sz = sizeof(opts), .wait_ms = 900 };
	struct room room;

	ck_assert_int_eq(clrsym_resolve(p, &query, room_init(&room), 1, &opts), 0);
	ck_assert_uint_eq(fake.wait_ms, 500);
	ck_assert(!room.sym.final);
	query.addr = code(5);
	ck_assert_int_eq(clrsym_resolve(p, &query, room_init(&room), 1, &opts), 0);
	ck_assert_uint_eq(fake.calls[FAKE_RESOLVE], 2);
	/* the daemon is right, whatever memory said */
	ck_assert_uint_ne(room.sym.reason, CLRSYM_NAMED);
	query.time_ns = FAKE_T0;
	ck_assert_int_eq(clrsym_resolve(p, &query, room_init(&room), 1, &opts), 0);
	ck_assert_uint_eq(fake.calls[FAKE_RESOLVE], 2);
}
END_TEST

/* Symbols of a newer header are larger; more than one call takes goes in several. */
START_TEST(test_resolve_many)
{
	struct large {
		struct clrsym_symbol sym;
		uint64_t more;
	} * symbols;
	struct clrsym_query *queries;
	size_t i, n = CAP_QUERY_ADDRESSES + 100;

	symbols = calloc(n, sizeof(*symbols));
	queries = calloc(n, sizeof(*queries));
	for (i = 0; i < n; i++) {
		clrsym_symbol_init(&symbols[i].sym, NULL, 0, NULL, 0);
		symbols[i].sym.sz = sizeof(symbols[i]);
		symbols[i].more = i;
		queries[i].addr = FAKE_FAR + (i & 0x7f);
		queries[i].time_ns = i;
	}
	symbols[7].sym.sz = sizeof(symbols[7].sym);
	ck_assert_int_eq(clrsym_resolve(p, queries, &symbols->sym, n, NULL), -EINVAL);
	symbols[7].sym.sz = sizeof(symbols[7]);
	ck_assert_int_eq(clrsym_resolve(p, queries, &symbols->sym, n, NULL), 0);
	ck_assert_uint_eq(fake.calls[FAKE_RESOLVE], 2);
	for (i = 0; i < n; i++) {
		ck_assert_uint_eq(symbols[i].more, i);
		if ((i & 0x7f) < FAKE_FAR_SIZE)
			ck_assert_uint_eq(symbols[i].sym.offset, i & 0x7f);
		else
			ck_assert_uint_gt(symbols[i].sym.reason, CLRSYM_UNANSWERED);
	}
	free(symbols);
	free(queries);
}
END_TEST

/* -- Generations --------------------------------------------------------------------------- */

START_TEST(test_replaced)
{
	struct room room;

	ck_assert_int_eq(clrsym_process_refresh(p), 0);
	fake_snapshot(&fake, 2, 8);
	/* what was known stays known, and what is new is not there yet */
	ck_assert_int_eq(clrsym_lookup(p, code(15), FAKE_T0, 0, room_init(&room)), 0);
	fake_put(fake.writer, 20, FAKE_T0, "New");
	ck_assert_int_eq(clrsym_lookup(p, code(20), FAKE_T0, 0, room_init(&room)), -ENOENT);
	ck_assert_int_eq(clrsym_process_refresh(p), 1);
	ck_assert_int_eq(clrsym_lookup(p, code(20), FAKE_T0, 0, room_init(&room)), 0);
	/* of what the new generation has not, the older one still tells where it was final */
	ck_assert_int_eq(clrsym_lookup(p, code(15), FAKE_T0, 0, room_init(&room)), 0);
	ck_assert_int_eq(clrsym_lookup(p, code(15), 2 * FAKE_T0 + 1, 0, room_init(&room)), -ENOENT);
	ck_assert_int_eq(clrsym_lookup(p, code(15), 0, 0, room_init(&room)), -ENOENT);
	/* resolve does it by itself, and then has no question left */
	fake_snapshot(&fake, 3, 32);
	ck_assert_int_eq(resolve_one(code(30), FAKE_T0, &room), 0);
	ck_assert_str_eq(room.name, "Ns.Type::M30(int32)");
	ck_assert_uint_eq(fake.calls[FAKE_RESOLVE], 0);
}
END_TEST

/* A replaced generation whose successor is not there is not asked for time and again. */
START_TEST(test_replaced_in_vain)
{
	struct room room;
	uint32_t calls;
	int i;

	snapshot_close(fake.writer, false);
	ck_assert(clrsym_process_has_ended(p));
	calls = fake.calls[FAKE_SNAPSHOT];
	for (i = 0; i < 5; i++)
		ck_assert_int_eq(resolve_one(FAKE_FAR, FAKE_T0, &room), 0);
	ck_assert_uint_eq(fake.calls[FAKE_SNAPSHOT], calls + 1);
	ck_assert_int_eq(clrsym_lookup(p, code(1), 99 * FAKE_T0, 0, room_init(&room)), 0);
	ck_assert(!room.sym.final);
}
END_TEST

/* -- Failures ------------------------------------------------------------------------------ */

START_TEST(test_no_daemon)
{
	struct clrsym_open_opts opts = { .sz = sizeof(opts), .socket_path = "/nowhere/at/all" };
	char path[4096];
	struct clrsym *handle;

	ck_assert_int_eq(clrsym_open(&opts, &handle), -ECONNREFUSED);
	opts.socket_path = "/etc/passwd";
	ck_assert_int_eq(clrsym_open(&opts, &handle), -ECONNREFUSED);
	memset(path, 'a', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	opts.socket_path = path;
	ck_assert_int_lt(clrsym_open(&opts, &handle), 0);
}
END_TEST

START_TEST(test_daemon_dies)
{
	struct clrsym_query queries[2] = { { .addr = code(1), .time_ns = FAKE_T0 },
					   { .addr = FAKE_FAR, .time_ns = FAKE_T0 } };
	struct clrsym_symbol symbols[2];
	struct room rooms[2];
	int r;

	symbols[0] = *room_init(&rooms[0]);
	symbols[1] = *room_init(&rooms[1]);
	fake_kill(&fake);
	r = clrsym_resolve(p, queries, symbols, 2, NULL);
	ck_assert_int_eq(r, -ECONNREFUSED);
	ck_assert_uint_eq(symbols[0].reason, CLRSYM_NAMED);
	ck_assert(symbols[0].final);
	ck_assert_uint_eq(symbols[1].reason, CLRSYM_UNANSWERED);
	ck_assert_int_eq(clrsym_process_refresh(p), -ECONNREFUSED);

	/* a new daemon, not attached: the last snapshot goes on, and the reason is a true one */
	fake_restart(&fake);
	ck_assert_int_eq(clrsym_resolve(p, queries, symbols, 2, NULL), 0);
	ck_assert_uint_eq(symbols[0].reason, CLRSYM_NAMED);
	ck_assert_uint_eq(symbols[1].reason, CLRSYM_NOT_ATTACHED);
	ck_assert_int_eq(clrsym_lookup(p, code(1), 3 * FAKE_T0, 0, &symbols[0]), 0);
	ck_assert(!symbols[0].final);

	/* attached: its snapshot comes, and the old one keeps what went before */
	fake.attached = true;
	ck_assert_int_eq(clrsym_resolve(p, queries, symbols, 2, NULL), 0);
	ck_assert_uint_eq(symbols[1].reason, CLRSYM_NAMED);
	ck_assert_int_eq(clrsym_lookup(p, code(1), FAKE_T0, 0, &symbols[0]), 0);
}
END_TEST

/* Noticed without any question that fails, by who only looks up. */
START_TEST(test_restart_is_noticed)
{
	struct room room;

	fake_kill(&fake);
	fake_restart(&fake);
	fake.attached = true;
	fake_put(fake.writer, 3, FAKE_T0, "Reborn");
	ck_assert_int_eq(clrsym_process_refresh(p), 1);
	ck_assert_int_eq(clrsym_lookup(p, code(3), FAKE_T0, 0, room_init(&room)), 0);
	ck_assert_str_eq(room.name, "Ns.Type::Reborn3(int32)");
	ck_assert_int_eq(clrsym_lookup(p, code(5), FAKE_T0, 0, room_init(&room)), 0);
	ck_assert_int_eq(clrsym_process_refresh(p), 0);
}
END_TEST

START_TEST(test_attach)
{
	struct clrsym_process_opts opts = { .sz = sizeof(opts), .flags = CLRSYM_PROCESS_ATTACH };
	struct clrsym_process *other;
	struct room room;

	fake.attached = false;
	ck_assert_int_eq(clrsym_process_open(c, FAKE_PID, 0, NULL, &other), -ENOTCONN);
	ck_assert_int_eq(clrsym_process_open(c, FAKE_PID, FAKE_START + 1, &opts, &other), -ESRCH);
	fake.attached = false;
	ck_assert_int_eq(clrsym_process_open(c, FAKE_PID, FAKE_START, &opts, &other), 0);
	ck_assert_uint_eq(fake.calls[FAKE_ATTACH], 2);
	ck_assert_int_eq(clrsym_lookup(other, code(1), 0, 0, room_init(&room)), 0);
	/* a restarted daemon is told again */
	fake_kill(&fake);
	fake_restart(&fake);
	ck_assert_int_eq(clrsym_process_refresh(other), 1);
	ck_assert_uint_eq(fake.calls[FAKE_ATTACH], 3);
	clrsym_process_close(other);
}
END_TEST

static const struct {
	const char *name;
	int error;
	uint32_t reason; /* not CLRSYM_UNANSWERED: the call does not fail */
} remote_errors[] = {
	{ QUERY_ERROR_NO_PROCESS, -ESRCH, CLRSYM_UNANSWERED },
	{ QUERY_ERROR_NOT_ATTACHED, 0, CLRSYM_NOT_ATTACHED },
	{ QUERY_ERROR_DENIED, 0, CLRSYM_DENIED },
	{ QUERY_ERROR_CANNOT_ATTACH, -ENOTSUP, CLRSYM_UNANSWERED },
	{ QUERY_ERROR_FOREIGN_PID, -EXDEV, CLRSYM_UNANSWERED },
	{ QUERY_ERROR_BUSY, -EBUSY, CLRSYM_UNANSWERED },
	{ QUERY_ERROR_FAILED, -EREMOTEIO, CLRSYM_UNANSWERED },
	{ QUERY_ERROR_NO_METHOD, -ENOSYS, CLRSYM_UNANSWERED },
	{ "org.example.Unheard", -EREMOTEIO, CLRSYM_UNANSWERED },
};

START_TEST(test_remote_error)
{
	struct room room;
	char detail[128];

	fake.error[FAKE_RESOLVE] = remote_errors[_i].name;
	ck_assert_int_eq(resolve_one(FAKE_FAR, FAKE_T0, &room), remote_errors[_i].error);
	ck_assert_uint_eq(room.sym.reason, remote_errors[_i].reason);
	ck_assert_uint_gt(clrsym_error_detail(c, detail, sizeof(detail)), 0);
	ck_assert_uint_eq(strlen(detail), clrsym_error_detail(c, detail, sizeof(detail)));
	ck_assert_uint_eq(clrsym_error_detail(c, detail, 4), 3);
	/* the connection is good */
	fake.error[FAKE_RESOLVE] = NULL;
	ck_assert_int_eq(resolve_one(FAKE_FAR, FAKE_T0, &room), 0);
	ck_assert_uint_eq(clrsym_error_detail(c, detail, sizeof(detail)), 0);
}
END_TEST

#define METHOD(members) \
	"{\"method_id\":\"0x1\",\"ns\":\"A\",\"name\":\"B\",\"sig\":\"\",\"module\":null," \
	"\"tier\":\"x\"," \
	"\"version\":0,\"load\":0,\"function\":\"A::B()\"," members "}"
#define GOOD_METHOD METHOD("\"start\":\"0x7f8000000000\",\"size\":64,\"unload\":null")
#define REPLY(methods, method, reason) \
	"{\"parameters\":{\"methods\":[" methods "],\"method\":" method \
	",\"offset\":[0],\"il_offset\":[null],\"reason\":" reason \
	",\"known_until\":0,\"final\":false}}"

static const char *const malformed[] = {
	"{}",
	"[]",
	"not even JSON",
	"{\"parameters\":3}",
	"{\"parameters\":{}}",
	"{\"error\":5}",
	REPLY("", "[0]", "[null]"),
	REPLY("", "[null]", "[null]"),
	REPLY("", "[]", "[\"stub\"]"),
	REPLY("", "[null,null]", "[\"stub\",\"stub\"]"),
	REPLY("", "[-1]", "[null]"),
	REPLY(GOOD_METHOD, "[1]", "[null]"),
	REPLY(GOOD_METHOD, "[9223372036854775807]", "[null]"),
	REPLY(GOOD_METHOD, "[\"0\"]", "[null]"),
	REPLY(GOOD_METHOD, "{}", "[null]"),
	REPLY("7", "[0]", "[null]"),
	/* code that cannot be, or is not at the address */
	REPLY(METHOD("\"start\":\"0x7f8000000000\",\"size\":0,\"unload\":null"), "[0]", "[null]"),
	REPLY(METHOD("\"start\":\"0x7f8000000000\",\"size\":-5,\"unload\":null"), "[0]", "[null]"),
	REPLY(METHOD("\"start\":\"0xfffffffffffffff0\",\"size\":64,\"unload\":null"), "[0]",
	      "[null]"),
	REPLY(METHOD("\"start\":\"0x7f8000000001\",\"size\":64,\"unload\":null"), "[0]", "[null]"),
	REPLY(METHOD("\"start\":\"0x7f7fffffffff\",\"size\":1,\"unload\":null"), "[0]", "[null]"),
	REPLY(METHOD("\"start\":\"0x7f8000000000\",\"size\":64,\"unload\":[]"), "[0]", "[null]"),
};

START_TEST(test_malformed)
{
	struct room room;

	fake.raw[FAKE_RESOLVE] = malformed[_i];
	ck_assert_int_eq(resolve_one(FAKE_FAR, FAKE_T0, &room), -EPROTO);
	ck_assert_uint_eq(room.sym.reason, CLRSYM_UNANSWERED);
	fake.raw[FAKE_RESOLVE] = NULL;
	ck_assert_int_eq(resolve_one(FAKE_FAR, FAKE_T0, &room), 0);
	ck_assert_str_eq(room.name, "Far.Away::Run(int32)");
}
END_TEST

/* The counterpart: what the table above varies is good. */
START_TEST(test_well_formed)
{
	struct room room;

	fake.raw[FAKE_RESOLVE] = REPLY(GOOD_METHOD, "[0]", "[null]");
	ck_assert_int_eq(resolve_one(FAKE_FAR, FAKE_T0, &room), 0);
	ck_assert_str_eq(room.name, "A::B()");
	ck_assert_str_eq(room.module, "");
	ck_assert_uint_eq(room.sym.short_len, 4);
}
END_TEST

START_TEST(test_timeout)
{
	struct clrsym_open_opts opts = { .sz = sizeof(opts),
					 .socket_path = fake.path,
					 .timeout_ms = 50 };
	struct clrsym_query query = { .addr = FAKE_FAR };
	struct clrsym_process *other;
	struct clrsym *handle;
	struct room room;

	ck_assert_int_eq(clrsym_open(&opts, &handle), 0);
	ck_assert_int_eq(clrsym_process_open(handle, FAKE_PID, 0, NULL, &other), 0);
	fake.raw[FAKE_RESOLVE] = "";
	ck_assert_int_eq(clrsym_resolve(other, &query, room_init(&room), 1, NULL), -ETIMEDOUT);
	/* a late answer is not taken for the next one's */
	fake.raw[FAKE_RESOLVE] = NULL;
	ck_assert_int_eq(clrsym_resolve(other, &query, room_init(&room), 1, NULL), 0);
	clrsym_process_close(other);
	clrsym_close(handle);
}
END_TEST

/* -- Hostile memory ------------------------------------------------------------------------ */

static int memfd(const void *data, size_t size, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, data, size), (ssize_t)size);
	if (seals)
		ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

START_TEST(test_no_snapshot)
{
	struct snapshot_identity stranger = { .pid = 1, .start = FAKE_START + 1, .generation = 1 };
	_cleanup_(snapshot_writer_freep) struct snapshot_writer *w = NULL;
	_cleanup_close_ int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	_cleanup_close_ int junk_fd = memfd("junk", 4, F_SEAL_SHRINK | F_SEAL_GROW);
	_cleanup_close_ int open_fd = memfd("junk", 4, 0);
	struct clrsym_process *other;
	int fds[5], i;

	ck_assert_int_eq(snapshot_writer_new(&w, &stranger, 0), 0);
	fds[0] = -2;
	fds[1] = null_fd;
	fds[2] = junk_fd;
	fds[3] = open_fd;
	fds[4] = snapshot_writer_fd(w);
	for (i = 0; i < 5; i++) {
		fake.snapshot_fd = fds[i];
		ck_assert_int_eq(clrsym_process_open(c, FAKE_PID, FAKE_START, NULL, &other),
				 -EPROTO);
	}
}
END_TEST

/* What the writer has in use, as bytes. */
static uint8_t *copy_snapshot(size_t *sizep)
{
	size_t n = 0, size = 8u << 20;
	uint8_t *data = calloc(1, size);
	ssize_t r;

	while (n < size) {
		r = pread(snapshot_writer_fd(fake.writer), data + n, size - n, (off_t)n);
		if (r <= 0)
			break;
		n += (size_t)r;
	}
	*sizep = n;
	return data;
}

/* Any bytes may be anything: answers may be wrong, and nothing else happens. */
START_TEST(test_damaged_snapshot)
{
	_cleanup_free_ uint8_t *data = NULL;
	uint32_t seed = 12345, round, i, opened = 0;
	struct clrsym_process *other;
	struct room room;
	size_t size;

	data = copy_snapshot(&size);
	for (round = 0; round < 24; round++) {
		_cleanup_close_ int fd = -1;
		uint8_t saved[64];
		uint32_t at[64];

		for (i = 0; i < ARRAY_SIZE(at); i++) {
			seed = seed * 1664525 + 1013904223;
			/* mostly where something is */
			do {
				seed = seed * 1664525 + 1013904223;
				at[i] = (uint32_t)(((uint64_t)seed * size) >> 32);
			} while (!data[at[i]] && (seed & 0xff));
			saved[i] = data[at[i]];
			data[at[i]] = (uint8_t)(seed >> 8);
		}
		fd = memfd(data, size, F_SEAL_SHRINK | F_SEAL_GROW);
		fake.snapshot_fd = fd;
		if (clrsym_process_open(c, FAKE_PID, 0, NULL, &other) == 0) {
			opened++;
			for (i = 0; i < 16 * FAKE_STEP; i += 16)
				clrsym_lookup(other, FAKE_CODE + i, FAKE_T0, i & 1,
					      room_init(&room));
			clrsym_process_close(other);
		}
		for (i = ARRAY_SIZE(at); i--;)
			data[at[i]] = saved[i];
	}
	ck_assert_uint_gt(opened, 0);
}
END_TEST

/* -- Monitor ------------------------------------------------------------------------------- */

#define CHANGE(kind, method) "{\"change\":\"" kind "\",\"method\":" method "}"
#define CHANGES(list, continues) \
	"{\"parameters\":{\"changes\":[" list "]},\"continues\":" continues "}"

START_TEST(test_monitor)
{
	static const char text[] =
		CHANGES(CHANGE("load", GOOD_METHOD) "," CHANGE("resync", "null"), "true");
	static const char last[] =
		CHANGES(CHANGE("unload", GOOD_METHOD) "," CHANGE("later", "3"), "false");
	struct clrsym_monitor *m;
	enum clrsym_change change;
	struct room room;

	fake.raw[FAKE_MONITOR] = CHANGES("", "true");
	ck_assert_int_eq(clrsym_monitor_open(p, &m), 0);
	ck_assert_int_ge(clrsym_monitor_fd(m), 0);
	ck_assert_int_eq(clrsym_monitor_next(m, 20, &change, room_init(&room)), -EAGAIN);
	/* also to the handle's connection, which must not take it for an answer */
	server_broadcast(fake.server, text, sizeof(text));
	ck_assert_int_eq(clrsym_monitor_next(m, 1000, &change, room_init(&room)), 0);
	ck_assert_int_eq(change, CLRSYM_CHANGE_LOAD);
	ck_assert_str_eq(room.name, "A::B()");
	ck_assert_uint_eq(room.sym.reason, CLRSYM_NAMED);
	ck_assert_int_eq(clrsym_monitor_next(m, 0, &change, room_init(&room)), 0);
	ck_assert_int_eq(change, CLRSYM_CHANGE_RESYNC);
	ck_assert_int_eq(clrsym_monitor_next(m, 0, &change, room_init(&room)), -EAGAIN);
	server_broadcast(fake.server, last, sizeof(last));
	ck_assert_int_eq(clrsym_monitor_next(m, -1, &change, room_init(&room)), 0);
	ck_assert_int_eq(change, CLRSYM_CHANGE_UNLOAD);
	ck_assert_int_eq(clrsym_monitor_next(m, -1, &change, room_init(&room)), 0);
	ck_assert_int_eq(change, CLRSYM_CHANGE_RESYNC);
	ck_assert_int_eq(clrsym_monitor_next(m, -1, &change, room_init(&room)), -ENODATA);
	ck_assert_int_eq(clrsym_monitor_next(m, -1, &change, room_init(&room)), -ENODATA);
	clrsym_monitor_close(m);
}
END_TEST

static const struct {
	const char *raw, *error;
	int result;
} monitor_failures[] = {
	{ "{\"parameters\":{}}", NULL, -EPROTO },
	{ "nothing", NULL, -EPROTO },
	{ CHANGES("{}", "true"), NULL, -EPROTO },
	{ CHANGES(CHANGE("load", "null"), "true"), NULL, -EPROTO },
	{ NULL, QUERY_ERROR_NOT_ATTACHED, -ENOTCONN },
	{ NULL, QUERY_ERROR_DENIED, -EACCES },
};

START_TEST(test_monitor_failure)
{
	struct clrsym_monitor *m;
	enum clrsym_change change;
	struct room room;

	fake.raw[FAKE_MONITOR] = monitor_failures[_i].raw;
	fake.error[FAKE_MONITOR] = monitor_failures[_i].error;
	ck_assert_int_eq(clrsym_monitor_open(p, &m), 0);
	ck_assert_int_eq(clrsym_monitor_next(m, 1000, &change, room_init(&room)),
			 monitor_failures[_i].result);
	ck_assert_int_eq(clrsym_monitor_next(m, 1000, &change, room_init(&room)),
			 monitor_failures[_i].result);
	clrsym_monitor_close(m);
}
END_TEST

START_TEST(test_monitor_death)
{
	struct clrsym_monitor *m;
	enum clrsym_change change;
	struct room room;

	fake.raw[FAKE_MONITOR] = CHANGES("", "true");
	ck_assert_int_eq(clrsym_monitor_open(p, &m), 0);
	ck_assert_int_eq(clrsym_monitor_next(m, 20, &change, room_init(&room)), -EAGAIN);
	fake_kill(&fake);
	ck_assert_int_eq(clrsym_monitor_next(m, -1, &change, room_init(&room)), -ECONNRESET);
	clrsym_monitor_close(m);
}
END_TEST

/* -- Threads, fork, fds -------------------------------------------------------------------- */

static _Atomic bool is_over;
static _Atomic uint64_t n_lookups, n_wrong;

/* Generations come and go under these; every answer is the right one all the time. */
static void *look_up(void *unused UNUSED)
{
	struct room room;
	uint32_t i;

	while (!is_over) {
		for (i = 1; i < 16; i++) {
			char name[32];

			snprintf(name, sizeof(name), "Ns.Type::M%u(int32)", i);
			if (clrsym_lookup(p, code(i) + 5, FAKE_T0, 0, room_init(&room)) != 0 ||
			    strcmp(room.name, name) != 0)
				n_wrong++;
			n_lookups++;
		}
	}
	return NULL;
}

static void *resolve_far(void *unused UNUSED)
{
	struct room room;

	while (!is_over) {
		if (resolve_one(FAKE_FAR + 1, FAKE_T0, &room) != 0 ||
		    strcmp(room.name, "Far.Away::Run(int32)") != 0)
			n_wrong++;
		clrsym_process_refresh(p);
	}
	return NULL;
}

START_TEST(test_threads)
{
	uint64_t until = clock_now_ns() + MS_NS(150);
	pthread_t threads[4];
	uint32_t generation;
	size_t i;

	is_over = false;
	n_lookups = n_wrong = 0;
	for (i = 0; i < 4; i++)
		ck_assert_int_eq(
			pthread_create(&threads[i], NULL, i < 2 ? look_up : resolve_far, NULL), 0);
	for (generation = 2; clock_now_ns() < until && generation < 20; generation++) {
		fake_snapshot(&fake, generation, 16);
		usleep(5000);
	}
	is_over = true;
	for (i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	ck_assert_uint_gt(n_lookups, 1000);
	ck_assert_uint_eq(n_wrong, 0);
}
END_TEST

/* With strict seccomp any system call but exit ends the process. */
START_TEST(test_lookup_makes_no_system_call)
{
	struct room room;
	int status, bad = 0;
	uint32_t i;
	pid_t pid;

	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
		for (i = 0; i < 16 * FAKE_STEP; i++) {
			int r = clrsym_lookup(p, FAKE_CODE + i, FAKE_T0, 0, room_init(&room));

			bad |= (r == 0) != (i % FAKE_STEP < FAKE_SIZE);
		}
		syscall(SYS_exit, bad);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(test_fork)
{
	struct room room;
	char detail[8];
	int status;
	pid_t pid;

	pid = fork();
	if (pid == 0) {
		struct clrsym_process *other;
		struct clrsym_monitor *m;
		int bad = 0;

		bad |= clrsym_lookup(p, code(1), FAKE_T0, 0, room_init(&room)) != 0;
		bad |= resolve_one(code(1), FAKE_T0, &room) != 0;
		bad |= resolve_one(FAKE_FAR, FAKE_T0, &room) != -ECHILD;
		bad |= clrsym_process_open(c, FAKE_PID, 0, NULL, &other) != -ECHILD;
		bad |= clrsym_monitor_open(p, &m) != -ECHILD;
		bad |= clrsym_process_refresh(p) != -ECHILD;
		bad |= clrsym_error_detail(c, detail, sizeof(detail)) != 0;
		clrsym_process_close(p);
		clrsym_close(c);
		_exit(bad);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	/* the parent's connection has not been touched */
	ck_assert_int_eq(resolve_one(FAKE_FAR, FAKE_T0, &room), 0);
}
END_TEST

/* All of the library's close on exec; counts those of the process. */
static size_t count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	size_t n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

START_TEST(test_no_fd_is_left)
{
	struct clrsym_process *other;
	struct clrsym_monitor *m;
	struct clrsym *handle;
	size_t before, after, tries = 0;

	before = count_fds();
	handle = fake_open(&fake);
	other = fake_process(handle);
	ck_assert_int_eq(clrsym_monitor_open(other, &m), 0);
	ck_assert_int_ne(fcntl(clrsym_monitor_fd(m), F_GETFD) & FD_CLOEXEC, 0);
	clrsym_monitor_close(m);
	clrsym_process_close(other);
	clrsym_close(handle);
	/* the server's side goes a moment later */
	do {
		usleep(1000);
		after = count_fds();
	} while (after != before && tries++ < 1000);
	ck_assert_uint_eq(before, after);
}
END_TEST

static TCase *new_case(Suite *s, const char *name)
{
	TCase *tc = tcase_create(name);

	tcase_add_checked_fixture(tc, setup, teardown);
	suite_add_tcase(s, tc);
	return tc;
}

int main(void)
{
	Suite *s = suite_create("libclrsym");
	SRunner *sr;
	TCase *tc;
	int failed;

	tc = new_case(s, "arguments");
	tcase_add_test(tc, test_arguments);
	tcase_add_test(tc, test_texts);
	tc = new_case(s, "answers");
	tcase_add_test(tc, test_lookup);
	tcase_add_test(tc, test_lookup_caller);
	tcase_add_test(tc, test_lookup_rooms);
	tcase_add_test(tc, test_retired);
	tcase_add_test(tc, test_resolve_all_kinds);
	tcase_add_test(tc, test_resolve_from_memory);
	tcase_add_test(tc, test_resolve_wait);
	tcase_add_test(tc, test_resolve_many);
	tcase_add_test(tc, test_replaced);
	tcase_add_test(tc, test_replaced_in_vain);
	tc = new_case(s, "failures");
	tcase_add_test(tc, test_no_daemon);
	tcase_add_test(tc, test_daemon_dies);
	tcase_add_test(tc, test_restart_is_noticed);
	tcase_add_test(tc, test_attach);
	tcase_add_loop_test(tc, test_remote_error, 0, ARRAY_SIZE(remote_errors));
	tcase_add_loop_test(tc, test_malformed, 0, ARRAY_SIZE(malformed));
	tcase_add_test(tc, test_well_formed);
	tcase_add_test(tc, test_timeout);
	tcase_add_test(tc, test_no_snapshot);
	tcase_add_test(tc, test_damaged_snapshot);
	tc = new_case(s, "monitor");
	tcase_add_test(tc, test_monitor);
	tcase_add_loop_test(tc, test_monitor_failure, 0, ARRAY_SIZE(monitor_failures));
	tcase_add_test(tc, test_monitor_death);
	tc = new_case(s, "threads, fork, fds");
	tcase_add_test(tc, test_threads);
	tcase_add_test(tc, test_lookup_makes_no_system_call);
	tcase_add_test(tc, test_fork);
	tcase_add_test(tc, test_no_fd_is_left);

	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
