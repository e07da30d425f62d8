/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process has loaded must not depend on the order in which its events come. Histories are
 * told in many orders, and the list is compared with what happened.
 */
#include "target/loader.h"

#include <check.h>
#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "target/feed.h"
#include "tests/unit/stream.h"

/* Far enough apart that no two are one event told twice. */
#define T(n) (SEC_NS(1) * (n))

#define STRING(text) \
	{ \
		.s = (text), .len = sizeof(text) - 1 \
	}

static const struct clr_string empty = { .s = "" };

static struct clr_event module_event(enum clr_phase phase, uint64_t id, const char *path)
{
	struct clr_event ev = { .kind = CLR_MODULE, .phase = phase };

	ev.rundown = phase == CLR_PHASE_START || phase == CLR_PHASE_END;
	ev.module.module_id = id;
	ev.module.assembly_id = id + 1;
	ev.module.il_path = (struct clr_string){ path, (uint32_t)strlen(path) };
	ev.module.native_path = ev.module.pdb_path = empty;
	return ev;
}

static void tell(struct loader *l, enum clr_phase phase, uint64_t id, const char *path,
		 uint64_t time)
{
	struct clr_event ev = module_event(phase, id, path);

	/* an assertion for each of a million takes longer than what is tested */
	if (loader_event(l, &ev, time))
		ck_abort_msg("an event was refused");
}

static size_t count(struct loader *l)
{
	size_t n = 0;

	while (loader_item(l, n))
		n++;
	return n;
}

START_TEST(test_kinds)
{
	struct clr_event domain = {
		.kind = CLR_APP_DOMAIN,
		.phase = CLR_PHASE_END,
		.app_domain = { .app_domain_id = 1, .flags = 3, .name = STRING("clrhost") },
	};
	struct clr_event assembly = {
		.kind = CLR_ASSEMBLY,
		.assembly = { .assembly_id = 2,
			      .app_domain_id = 1,
			      .flags = CLR_ASSEMBLY_COLLECTIBLE,
			      .name = STRING("a, Version=1") },
	};
	struct clr_event module = {
		.kind = CLR_MODULE,
		.module = { .module_id = 1,
			    .assembly_id = 2,
			    .il_path = STRING("/a.dll"),
			    .native_path = STRING("/a.ni.dll"),
			    .pdb_path = STRING("/src/a.pdb"),
			    .pdb_guid = { { 1, 2 } },
			    .pdb_age = 1 },
	};
	struct clr_event other = { .kind = CLR_DOMAIN_MODULE };
	_cleanup_(loader_freep) struct loader *l = NULL;
	const struct loader_item *item;

	ck_assert_int_eq(loader_new(&l), 0);
	ck_assert_ptr_null(loader_item(l, 0));
	ck_assert_int_eq(loader_event(l, &module, 30), 0);
	ck_assert_int_eq(loader_event(l, &assembly, 20), 0);
	ck_assert_int_eq(loader_event(l, &domain, 40), 0);
	ck_assert_int_eq(loader_event(l, &other, 50), 0);
	ck_assert_uint_eq(count(l), 3);
	item = loader_item(l, 0);
	ck_assert_int_eq(item->kind, LOADER_DOMAIN);
	ck_assert_uint_eq(item->id, 1);
	ck_assert_uint_eq(item->load, 40);
	ck_assert(item->open_past);
	ck_assert_str_eq(item->name, "clrhost");
	item = loader_item(l, 1);
	ck_assert_int_eq(item->kind, LOADER_ASSEMBLY);
	ck_assert_uint_eq(item->parent, 1);
	ck_assert_uint_eq(item->flags, CLR_ASSEMBLY_COLLECTIBLE);
	ck_assert(!item->open_past);
	ck_assert_uint_eq(item->unload, UINT64_MAX);
	item = loader_item(l, 2);
	ck_assert_int_eq(item->kind, LOADER_MODULE);
	ck_assert_uint_eq(item->parent, 2);
	ck_assert_str_eq(item->name, "/a.dll");
	ck_assert_str_eq(item->native_path, "/a.ni.dll");
	ck_assert_str_eq(item->pdb_path, "/src/a.pdb");
	ck_assert_uint_eq(item->pdb_age, 1);
	ck_assert(item->has_pdb);
	ck_assert_ptr_null(loader_item(l, 3));
}
END_TEST

/* -- any order -------------------------------------------------------------------------- */

struct told {
	enum clr_phase phase;
	uint64_t time;
};

struct lived {
	uint64_t load, unload;
	bool open_past;
};

#define LOAD   CLR_PHASE_LOAD
#define UNLOAD CLR_PHASE_UNLOAD
#define RECORD CLR_PHASE_END
#define EVER   UINT64_MAX

/* Of one id, always the same module. */
static const struct {
	const char *name;
	struct told told[6];
	size_t n_told;
	struct lived lived[4];
	size_t n_lived;
} histories[] = {
	{ "load", { { LOAD, T(1) } }, 1, { { T(1), EVER, false } }, 1 },
	{ "record", { { RECORD, T(1) } }, 1, { { T(1), EVER, true } }, 1 },
	{ "two records", { { RECORD, T(1) }, { RECORD, T(3) } }, 2, { { T(1), EVER, true } }, 1 },
	{ "load and record",
	  { { LOAD, T(1) }, { RECORD, T(2) } },
	  2,
	  { { T(1), EVER, false } },
	  1 },
	{ "one life", { { LOAD, T(1) }, { UNLOAD, T(2) } }, 2, { { T(1), T(2), false } }, 1 },
	{ "unload alone", { { UNLOAD, T(2) } }, 1, { { T(2), T(2), true } }, 1 },
	{ "record and unload",
	  { { RECORD, T(1) }, { UNLOAD, T(2) } },
	  2,
	  { { T(1), T(2), true } },
	  1 },
	{ "two lives",
	  { { LOAD, T(1) }, { UNLOAD, T(2) }, { LOAD, T(3) }, { UNLOAD, T(4) } },
	  4,
	  { { T(1), T(2), false }, { T(3), T(4), false } },
	  2 },
	{ "three lives",
	  { { LOAD, T(1) },
	    { UNLOAD, T(2) },
	    { LOAD, T(3) },
	    { UNLOAD, T(4) },
	    { LOAD, T(5) },
	    { RECORD, T(6) } },
	  6,
	  { { T(1), T(2), false }, { T(3), T(4), false }, { T(5), EVER, false } },
	  3 },
	{ "records around an unload",
	  { { RECORD, T(1) }, { UNLOAD, T(2) }, { RECORD, T(3) } },
	  3,
	  { { T(1), T(2), true }, { T(3), EVER, true } },
	  2 },
	{ "an unload that was lost",
	  { { LOAD, T(1) }, { LOAD, T(3) }, { UNLOAD, T(4) } },
	  3,
	  { { T(1), T(3), false }, { T(3), T(4), false } },
	  2 },
	{ "a load that was lost",
	  { { LOAD, T(1) }, { UNLOAD, T(2) }, { UNLOAD, T(4) } },
	  3,
	  { { T(1), T(2), false }, { T(4), T(4), true } },
	  2 },
	{ "told twice",
	  { { LOAD, T(1) }, { LOAD, T(1) + 900 }, { UNLOAD, T(2) }, { UNLOAD, T(2) + 900 } },
	  4,
	  { { T(1), T(2), false } },
	  1 },
	{ "a record just before its load is told",
	  { { RECORD, T(1) }, { LOAD, T(1) + 900 } },
	  2,
	  { { T(1), EVER, false } },
	  1 },
};

/* The k-th order of n things. */
static void order(size_t k, size_t n, size_t *out)
{
	size_t left[8], i, j;

	for (i = 0; i < n; i++)
		left[i] = i;
	for (i = 0; i < n; i++) {
		j = k % (n - i);
		k /= n - i;
		out[i] = left[j];
		memmove(&left[j], &left[j + 1], (n - i - j - 1) * sizeof(*left));
	}
}

START_TEST(test_any_order)
{
	size_t n = histories[_i].n_told, orders = 1, k, i, at[8];

	for (i = 2; i <= n; i++)
		orders *= i;
	for (k = 0; k < orders; k++) {
		_cleanup_(loader_freep) struct loader *l = NULL;

		ck_assert_int_eq(loader_new(&l), 0);
		tell(l, RECORD, 0x7000, "/other", T(2));
		order(k, n, at);
		for (i = 0; i < n; i++)
			tell(l, histories[_i].told[at[i]].phase, 0x1000, "/a.dll",
			     histories[_i].told[at[i]].time);
		for (i = 0; i < histories[_i].n_lived; i++) {
			const struct lived *want = &histories[_i].lived[i];
			const struct loader_item *item;
			size_t j = 0;

			while ((item = loader_item(l, j++)))
				if (item->id == 0x1000 && item->load == want->load)
					break;
			ck_assert_msg(item, "%s, order %zu: life %zu is missing",
				      histories[_i].name, k, i);
			ck_assert_msg(item->unload == want->unload &&
					      item->open_past == want->open_past,
				      "%s, order %zu: life %zu is wrong", histories[_i].name, k, i);
		}
		ck_assert_msg(count(l) == histories[_i].n_lived + 1, "%s, order %zu: %zu lives",
			      histories[_i].name, k, count(l) - 1);
	}
}
END_TEST

/* An id whose next owner is another module, the unload lost. */
START_TEST(test_other_owner)
{
	_cleanup_(loader_freep) struct loader *l = NULL;

	ck_assert_int_eq(loader_new(&l), 0);
	tell(l, LOAD, 0x1000, "/a.dll", T(1));
	tell(l, LOAD, 0x1000, "/b.dll", T(1) + 5);
	ck_assert_uint_eq(count(l), 2);
	ck_assert_uint_eq(loader_item(l, 0)->unload, T(1) + 5);
	ck_assert_str_eq(loader_item(l, 1)->name, "/b.dll");
}
END_TEST

/* -- bounds ----------------------------------------------------------------------------- */

/* Loads and unloads without end cost a fixed time and memory each, whatever the ids. */
START_TEST(test_churn)
{
	static const char *const words[] = { "other ids", "one id", "backwards" };
	_cleanup_(loader_freep) struct loader *l = NULL;
	uint64_t begin = clock_now_ns(), i, id, time;

	ck_assert_int_eq(loader_new(&l), 0);
	for (i = 0; i < 100000; i++) {
		id = _i == 0 ? 16 * i : 16;
		time = T(_i == 2 ? 100000 - i : i);
		tell(l, LOAD, id, "/a.dll", time);
		tell(l, UNLOAD, id, "/a.dll", time + SEC_NS(1) / 2);
	}
	ck_assert_uint_le(count(l), CAP_LOADER_GONE);
	ck_assert_uint_ge(count(l), _i == 0 ? CAP_LOADER_GONE : 64);
	ck_assert_uint_eq(loader_item(l, count(l) - 1)->load, T(_i == 2 ? 100000 : 99999));
	ck_assert_uint_lt(loader_memory(l), MIB(2));
	ck_assert_uint_eq(loader_refused(l), 0);
	ck_assert_msg(clock_now_ns() - begin < SEC_NS(3), "%s take too long", words[_i]);
}
END_TEST

START_TEST(test_many_loaded)
{
	_cleanup_(loader_freep) struct loader *l = NULL;
	uint64_t i;

	ck_assert_int_eq(loader_new(&l), 0);
	for (i = 0; i < 100000; i++)
		tell(l, LOAD, 16 * i, "/a.dll", T(1000000 - i));
	ck_assert_uint_eq(count(l), 100000);
	ck_assert_uint_eq(loader_item(l, 0)->id, 16 * 99999);
	for (i = 0; i < 100000; i++)
		tell(l, UNLOAD, 16 * i, "/a.dll", T(2000000));
	ck_assert_uint_eq(count(l), CAP_LOADER_GONE);
}
END_TEST

/* What has gone makes room for what comes; what is loaded stays, and the rest is refused. */
START_TEST(test_memory)
{
	_cleanup_(loader_freep) struct loader *l = NULL;
	_cleanup_free_ char *path = malloc(65536);
	struct clr_event ev;
	uint64_t i;
	int r;

	memset(path, 'p', 65535);
	path[65535] = '\0';
	ck_assert_int_eq(loader_new(&l), 0);
	for (i = 0; i < 3000; i++) {
		tell(l, LOAD, 16 * i, path, T(i));
		tell(l, UNLOAD, 16 * i, path, T(i) + 1);
	}
	ck_assert_uint_le(loader_memory(l), CAP_LOADER_BYTES);
	ck_assert_uint_ge(count(l), 900);
	for (r = 0, i = 0; r == 0; i++) {
		ev = module_event(LOAD, 16 * (100000 + i), path);
		r = loader_event(l, &ev, T(i));
	}
	ck_assert_int_eq(r, LOADER_E_FULL);
	ck_assert_uint_eq(loader_refused(l), 1);
	ck_assert_uint_le(loader_memory(l), CAP_LOADER_BYTES);
	ck_assert_uint_eq(count(l), i - 1);
	tell(l, UNLOAD, 16 * 100000, path, T(i));
	tell(l, LOAD, 16, path, T(i));
	ck_assert_uint_eq(count(l), i - 1);
}
END_TEST

/* -- from a stream ---------------------------------------------------------------------- */

enum { MODULE_LOAD = 1, MODULE_UNLOAD, ASSEMBLY_UNLOAD, DOMAIN_LOAD, DOMAIN_UNLOAD, MODULE_END };

static void module_payload(struct buf *b, uint64_t id, const char *path)
{
	static const uint8_t guid[16];

	buf_put_u64(b, id);
	buf_put_u64(b, id + 1);
	buf_put_u32(b, 0);
	buf_put_u32(b, 0);
	stream_u16z(b, path);
	stream_u16z(b, "");
	buf_put_u16(b, 0);
	buf_append(b, guid, sizeof(guid));
	buf_put_u32(b, 0);
	stream_u16z(b, "");
	buf_append(b, guid, sizeof(guid));
	buf_put_u32(b, 0);
	stream_u16z(b, "");
}

static void assembly_payload(struct buf *b, uint64_t id)
{
	buf_put_u64(b, id);
	buf_put_u64(b, 7);
	buf_put_u64(b, 0);
	buf_put_u32(b, 0);
	stream_u16z(b, "a");
	buf_put_u16(b, 0);
}

static void domain_payload(struct buf *b)
{
	buf_put_u64(b, 7);
	buf_put_u32(b, 3);
	stream_u16z(b, "clrhost");
	buf_put_u32(b, 1);
	buf_put_u16(b, 0);
}

struct script {
	struct buf events, payload;
	struct stream_last last;
};

static void say(struct script *s, uint32_t what, uint64_t id, const char *path)
{
	struct stream_event e = {
		.metadata_id = what,
		.sequence = s->last.sequence + 1,
		.thread = 1,
		.timestamp = s->last.timestamp + SEC_NS(1),
	};

	buf_clear(&s->payload);
	if (what == ASSEMBLY_UNLOAD)
		assembly_payload(&s->payload, id);
	else if (what == DOMAIN_LOAD || what == DOMAIN_UNLOAD)
		domain_payload(&s->payload);
	else
		module_payload(&s->payload, id, path);
	e.payload = s->payload.data;
	e.size = s->payload.len;
	block_event(&s->events, &s->last, &e);
}

static void put_script(struct buf *b, const struct buf *events)
{
	static const uint32_t ids[] = { 152, 153, 155, 156, 157, 154 };
	_cleanup_buf_ struct buf block;
	uint32_t i;

	buf_init(&block, MIB(1));
	stream_begin(b);
	block_begin(&block, true);
	for (i = 0; i < ARRAY_SIZE(ids); i++)
		block_metadata(&block, i + 1, i + 1 == MODULE_END ? STREAM_RUNDOWN : STREAM_RUNTIME,
			       ids[i], ids[i] < 155 && i + 1 != ASSEMBLY_UNLOAD ? 2 : 1);
	stream_block(b, "MetadataBlock", &block);
	stream_block(b, "EventBlock", events);
	stream_end(b);
}

/* From the core library's unload on the program is exiting, and nothing that goes has gone. */
START_TEST(test_exit)
{
	_cleanup_(codemap_freep) struct codemap *map = NULL;
	_cleanup_(loader_freep) struct loader *l = NULL;
	_cleanup_(feed_freep) struct feed *feed = NULL;
	const struct feed_options opts = { 0 };
	struct script s = { 0 };
	_cleanup_buf_ struct buf b;

	buf_init(&b, MIB(1));
	buf_init(&s.events, MIB(1));
	buf_init(&s.payload, MIB(1));
	block_begin(&s.events, true);
	say(&s, DOMAIN_LOAD, 0, NULL);
	say(&s, MODULE_END, 16, "/rt/System.Private.CoreLib.dll");
	say(&s, MODULE_LOAD, 32, "plugin");
	say(&s, MODULE_LOAD, 48, "/app/load.dll");
	say(&s, MODULE_UNLOAD, 32, "plugin");
	say(&s, MODULE_UNLOAD, 16, "/rt/System.Private.CoreLib.dll");
	say(&s, MODULE_UNLOAD, 48, "/app/load.dll");
	say(&s, ASSEMBLY_UNLOAD, 49, NULL);
	say(&s, DOMAIN_UNLOAD, 0, NULL);
	put_script(&b, &s.events);

	ck_assert_int_eq(codemap_new(&map, NULL), 0);
	ck_assert_int_eq(loader_new(&l), 0);
	ck_assert_int_eq(feed_new(&feed, map, &opts), 0);
	if (!_i)
		feed_set_loader(feed, l);
	ck_assert_int_eq(feed_bytes(feed, b.data, b.len, 0), 0);
	ck_assert_uint_eq(feed_get_stats(feed)->short_payloads, 0);
	ck_assert(feed_get_stats(feed)->exiting);
	ck_assert_uint_eq(count(l), _i ? 0 : 4);
	if (!_i) {
		ck_assert_str_eq(loader_item(l, 0)->name, "clrhost");
		ck_assert_uint_eq(loader_item(l, 0)->unload, UINT64_MAX);
		ck_assert(loader_item(l, 1)->open_past);
		ck_assert_uint_eq(loader_item(l, 1)->unload, UINT64_MAX);
		ck_assert_str_eq(loader_item(l, 2)->name, "plugin");
		ck_assert_uint_eq(loader_item(l, 2)->unload, SEC_NS(5));
		ck_assert_uint_eq(loader_item(l, 3)->unload, UINT64_MAX);
	}
	buf_deinit(&s.events);
	buf_deinit(&s.payload);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("loader");
	TCase *tc = tcase_create("lives");
	SRunner *sr;
	int failed;

	tcase_add_test(tc, test_kinds);
	tcase_add_loop_test(tc, test_any_order, 0, ARRAY_SIZE(histories));
	tcase_add_test(tc, test_other_owner);
	tcase_add_loop_test(tc, test_exit, 0, 2);
	suite_add_tcase(s, tc);
	tc = tcase_create("bounds");
	tcase_add_loop_test(tc, test_churn, 0, 3);
	tcase_add_test(tc, test_many_loaded);
	tcase_add_test(tc, test_memory);
	suite_add_tcase(s, tc);

	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
