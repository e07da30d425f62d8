/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Map files of this very process, from a code map filled by hand: when they are written, and what
 * happens when somebody else has a hand in it. Each test is a process of its own (Check's fork
 * mode), hence has a file of its own.
 */
#include "target/options.h"
#include "target/perfmap.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"

static struct loop *loop;
static struct proc *proc;
static struct codemap *map;
static struct perfmap *pm;
static char path[64];
static int n_done, done_result;

static void load(uint64_t start, const char *name)
{
	struct codemap_load l = {
		.method_id = start,
		.module_id = 1,
		.start = start,
		.time = start,
		.size = 16,
		.ns = "Ns.Type",
		.name = name,
		.sig = "void ()",
		.ns_len = 7,
		.name_len = (uint32_t)strlen(name),
		.sig_len = 7,
	};

	if (codemap_load(map, &l, NULL)) /* no note of Check's for each of thousands */
		ck_abort_msg("%s is not loaded", name);
}

static void open_maps(size_t max_bytes)
{
	struct perfmap_options opts = { .where = PERFMAP_BOTH, .max_bytes = max_bytes };

	ck_assert_int_eq(perfmap_new(&pm, loop, proc, &opts), 0);
}

static void setup(void)
{
	log_init("test_perfmap", LOG_ERROR);
	n_done = 0;
	snprintf(path, sizeof(path), "/tmp/perf-%d.map", (int)getpid());
	ck_assert_int_eq(loop_new(&loop), 0);
	ck_assert_int_eq(proc_open(getpid(), &proc), 0);
	ck_assert_int_eq(codemap_new(&map, NULL), 0);
	load(0x1000, "First");
	open_maps(0);
}

static void teardown(void)
{
	if (pm)
		perfmap_remove(pm);
	perfmap_free(TAKE_PTR(pm));
	codemap_free(map);
	proc_close(proc);
	loop_free(loop);
	unlink(path);
}

/* -- Running the loop ------------------------------------------------------------------ */

struct turn {
	struct loop_timer timer;
	struct loop *loop;
	uint64_t until_ns, n_writes;
	int n_done;
};

static void turn_look(struct loop_timer *timer)
{
	struct turn *turn = container_of(timer, struct turn, timer);
	struct perfmap_status status = { 0 };

	if (pm)
		perfmap_get_status(pm, &status);
	if (clock_now_ns() >= turn->until_ns || status.writes >= turn->n_writes ||
	    n_done >= turn->n_done)
		loop_stop(turn->loop, 0);
	else
		loop_timer_set(turn->loop, timer, clock_now_ns() + MS_NS(2), turn_look);
}

/* Until so many writes are done, or so many done() came, or the time is over. Returns the writes.
 */
static uint64_t turn(uint64_t n_writes, int want_done, unsigned int ms)
{
	struct turn turn = { .loop = loop,
			     .until_ns = clock_now_ns() + MS_NS(ms),
			     .n_writes = n_writes,
			     .n_done = want_done };
	struct perfmap_status status = { 0 };

	loop_timer_set(loop, &turn.timer, 0, turn_look);
	ck_assert_int_eq(loop_run(loop), 0);
	loop_timer_del(&turn.timer);
	if (pm)
		perfmap_get_status(pm, &status);
	return status.writes;
}

static void on_done(struct perfmap *p, int result, void *data)
{
	ck_assert_ptr_eq(p, pm);
	ck_assert_ptr_eq(data, &n_done);
	n_done++;
	done_result = result;
}

static int write_now(void)
{
	int before = n_done;

	perfmap_write(pm, map, on_done, &n_done);
	turn(UINT64_MAX, before + 1, 5000);
	ck_assert_int_eq(n_done, before + 1);
	return done_result;
}

/* The file under our name is exactly this; NULL: there is none. */
static void ck_file(const char *text)
{
	_cleanup_fclose_ FILE *f = fopen(path, "re");
	char content[4096];
	size_t n;

	ck_assert_int_eq(f != NULL, text != NULL);
	if (!f)
		return;
	n = fread(content, 1, sizeof(content) - 1, f);
	content[n] = '\0';
	ck_assert_str_eq(content, text);
}

static ino_t inode(void)
{
	struct stat st;

	ck_assert_int_eq(lstat(path, &st), 0);
	return st.st_ino;
}

#define FIRST  "1000 10 Ns.Type::First\n"
#define SECOND "2000 10 Ns.Type::Second\n"
#define THIRD  "3000 10 Ns.Type::Third\n"

/* -- Writing --------------------------------------------------------------------------- */

START_TEST(test_write)
{
	struct perfmap_status status;
	struct stat st;

	ck_assert_str_eq(perfmap_path(pm, 0), path);
	ck_assert_ptr_null(perfmap_path(pm, 1)); /* target and host are one place here */
	ck_file(NULL);
	ck_assert_int_eq(write_now(), 0);
	ck_file(FIRST);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0644);
	perfmap_get_status(pm, &status);
	ck_assert_uint_eq(status.writes, 1);
	ck_assert_uint_eq(status.lines, 1);
	ck_assert_uint_eq(status.bytes, strlen(FIRST));
	ck_assert_uint_eq(status.left_out, 0);
	ck_assert_int_eq(status.error, 0);
	/* on request always, and at once */
	ck_assert_int_eq(write_now(), 0);
	perfmap_get_status(pm, &status);
	ck_assert_uint_eq(status.writes, 2);
}
END_TEST

/* The first is written at once, the next a second after it; what does not change, not at all. */
START_TEST(test_pace)
{
	uint64_t start = clock_now_ns(), first, second;
	ino_t ino;

	perfmap_changed(pm, map);
	ck_assert_uint_eq(turn(1, 1, 5000), 1);
	first = clock_now_ns();
	ck_assert_uint_lt(first - start, MS_NS(900));
	ck_file(FIRST);
	ino = inode();
	perfmap_changed(pm, map);
	load(0x2000, "Second");
	perfmap_changed(pm, map);
	ck_assert_uint_eq(turn(2, 1, 300), 1);
	ck_assert_uint_eq(inode(), ino);
	load(0x3000, "Third");
	perfmap_changed(pm, map);
	ck_assert_uint_eq(turn(2, 1, 5000), 2);
	second = clock_now_ns();
	ck_assert_uint_ge(second - first, MS_NS(900));
	ck_file(FIRST SECOND THIRD);
	perfmap_changed(pm, map);
	ck_assert_uint_eq(turn(3, 1, 1300), 2);
}
END_TEST

/* What changes during a write is written after it, be it by request or not. */
START_TEST(test_change_meanwhile)
{
	ino_t ino;

	perfmap_write(pm, map, on_done, &n_done);
	load(0x0800, "Zeroth");
	turn(UINT64_MAX, 1, 5000);
	load(0x2000, "Second");
	ino = inode();
	perfmap_changed(pm, map);
	ck_assert_uint_eq(turn(2, 2, 5000), 2);
	ck_assert_uint_ne(inode(), ino);
	ck_file("800 10 Ns.Type::Zeroth\n" FIRST SECOND);
}
END_TEST

static const struct {
	size_t max;
	const char *text;
	size_t left_out;
} limits[] = {
	{ sizeof(FIRST SECOND) - 1, FIRST SECOND, 1 },
	{ sizeof(FIRST SECOND) - 2, FIRST, 2 },
	{ sizeof(FIRST) - 1, FIRST, 2 },
	{ 1, "", 3 },
	{ sizeof(FIRST SECOND THIRD) - 1, FIRST SECOND THIRD, 0 },
};

START_TEST(test_max_bytes)
{
	struct perfmap_status status;

	perfmap_free(TAKE_PTR(pm));
	open_maps(limits[_i].max);
	load(0x2000, "Second");
	load(0x3000, "Third");
	ck_assert_int_eq(write_now(), 0);
	ck_file(limits[_i].text);
	perfmap_get_status(pm, &status);
	ck_assert_uint_eq(status.left_out, limits[_i].left_out);
	ck_assert_uint_eq(status.bytes, strlen(limits[_i].text));
}
END_TEST

/* -- Somebody else's hand --------------------------------------------------------------- */

START_TEST(test_vanished)
{
	ck_assert_int_eq(write_now(), 0);
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(write_now(), 0);
	ck_file(FIRST);
	ck_assert_str_eq(perfmap_path(pm, 0), path);
}
END_TEST

static void put_file(void)
{
	_cleanup_fclose_ FILE *f = fopen(path, "we");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs("theirs\n", f), 0);
}

static void foreign_new_file(void)
{
	ck_assert_int_eq(unlink(path), 0);
	put_file();
}

static void foreign_link(void)
{
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(symlink("/dev/null", path), 0);
}

static void foreign_directory(void)
{
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(mkdir(path, 0700), 0);
}

/* put_file() alone: it opens our file and writes into it, as a runtime would. */
static void (*const foreigners[])(void) = { put_file, foreign_new_file, foreign_link,
					    foreign_directory };

/* Left alone, for good: not written, not removed. */
START_TEST(test_foreign)
{
	ino_t ino;

	ck_assert_int_eq(write_now(), 0);
	foreigners[_i]();
	ino = inode();
	load(0x2000, "Second");
	ck_assert_int_eq(write_now(), PROC_E_FOREIGN_FILE);
	ck_assert_ptr_null(perfmap_path(pm, 0));
	/* no place is left: nothing is ever due again */
	perfmap_changed(pm, map);
	ck_assert_uint_eq(turn(2, 5, 50), 1);
	ck_assert_int_eq(write_now(), PROC_E_READ_ONLY);
	perfmap_remove(pm);
	ck_assert_uint_eq(inode(), ino);
	if (_i < 2)
		ck_file("theirs\n");
	ck_assert_int_eq(remove(path), 0);
}
END_TEST

/* It comes while a write is under way, or is removed: seen at the last moment. */
START_TEST(test_foreign_meanwhile)
{
	ck_assert_int_eq(write_now(), 0);
	perfmap_write(pm, map, on_done, &n_done);
	foreign_new_file();
	turn(UINT64_MAX, 2, 5000);
	ck_assert_int_eq(done_result, PROC_E_FOREIGN_FILE);
	ck_file("theirs\n");
}
END_TEST

START_TEST(test_foreign_at_removal)
{
	ck_assert_int_eq(write_now(), 0);
	foreign_new_file();
	perfmap_remove(pm);
	ck_file("theirs\n");
}
END_TEST

/* -- Failures --------------------------------------------------------------------------- */

/* The old file stays whole; the next try waits. Check's own file must fit under the limit. */
START_TEST(test_no_space)
{
	struct perfmap_status status;
	struct rlimit limit, old;
	uint64_t start;

	ck_assert_int_eq(write_now(), 0);
	for (start = 0x2000; start < 0x2000 + 10000 * 16; start += 16)
		load(start, "OneOfTenThousandMethods");
	signal(SIGXFSZ, SIG_IGN);
	ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
	limit = old;
	limit.rlim_cur = KIB(100);
	setrlimit(RLIMIT_FSIZE, &limit);
	ck_assert_int_eq(write_now(), PROC_E_NO_SPACE);
	setrlimit(RLIMIT_FSIZE, &old);
	ck_file(FIRST);
	perfmap_get_status(pm, &status);
	ck_assert_int_eq(status.error, PROC_E_NO_SPACE);
	ck_assert_uint_eq(turn(2, 5, 1500), 1);
	ck_assert_int_eq(write_now(), 0);
	perfmap_get_status(pm, &status);
	ck_assert_uint_eq(status.lines, 10001);
}
END_TEST

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* A file that cannot even be begun must not be tried over and over. */
START_TEST(test_no_fds)
{
	struct perfmap_status status;
	struct rlimit limit, old;
	uint64_t before;

	ck_assert_int_eq(write_now(), 0);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
	limit = old;
	limit.rlim_cur = 3;
	setrlimit(RLIMIT_NOFILE, &limit);
	load(0x2000, "Second");
	perfmap_changed(pm, map);
	before = cpu_ns();
	ck_assert_uint_eq(turn(2, 5, 1800), 1);
	ck_assert_uint_lt(cpu_ns() - before, MS_NS(500));
	setrlimit(RLIMIT_NOFILE, &old);
	perfmap_get_status(pm, &status);
	ck_assert_int_eq(status.error, -EMFILE);
	ck_file(FIRST);
	ck_assert_int_eq(write_now(), 0);
	ck_file(FIRST SECOND);
}
END_TEST

/* -- The end ---------------------------------------------------------------------------- */

START_TEST(test_remove)
{
	ck_assert_int_eq(write_now(), 0);
	perfmap_remove(pm);
	ck_file(NULL);
}
END_TEST

START_TEST(test_free_leaves_file)
{
	ck_assert_int_eq(write_now(), 0);
	perfmap_free(TAKE_PTR(pm));
	ck_file(FIRST);
	/* a later run takes it over */
	open_maps(0);
	load(0x2000, "Second");
	ck_assert_int_eq(write_now(), 0);
	ck_file(FIRST SECOND);
}
END_TEST

/* The map may go at once; nothing of it is written, then or later. */
START_TEST(test_forget)
{
	ck_assert_int_eq(write_now(), 0);
	load(0x2000, "Second");
	perfmap_write(pm, map, on_done, &n_done);
	perfmap_forget(pm);
	codemap_free(map);
	ck_assert_int_eq(codemap_new(&map, NULL), 0);
	turn(2, 2, 50);
	ck_assert_int_eq(n_done, 1);
	ck_file(FIRST);
	load(0x3000, "Third");
	perfmap_changed(pm, map);
	ck_assert_uint_eq(turn(2, 2, 5000), 2);
	ck_assert_int_eq(n_done, 1);
	ck_file(THIRD);
}
END_TEST

static void free_done(struct perfmap *p, int result UNUSED, void *data)
{
	ck_assert_ptr_eq(p, pm);
	perfmap_free(TAKE_PTR(pm));
	loop_stop(data, 7);
}

START_TEST(test_done_frees)
{
	perfmap_write(pm, map, free_done, loop);
	ck_assert_int_eq(loop_run(loop), 7);
	ck_file(FIRST);
}
END_TEST

START_TEST(test_off)
{
	struct perfmap_options opts = { .where = PERFMAP_OFF };

	perfmap_free(TAKE_PTR(pm));
	ck_assert_int_eq(perfmap_new(&pm, loop, proc, &opts), 0);
	perfmap_changed(pm, map);
	turn(1, 1, 30);
	ck_assert_ptr_null(perfmap_path(pm, 0));
	ck_file(NULL);
}
END_TEST

START_TEST(test_words)
{
	static const struct {
		int option;
		const char *arg;
		bool good;
	} cases[] = {
		{ ATTACH_OPT_MAP, "both", true },         { ATTACH_OPT_MAP, "", false },
		{ ATTACH_OPT_MAP, "Host", false },        { ATTACH_OPT_NAMES, "full", true },
		{ ATTACH_OPT_NAMES, "long", false },      { ATTACH_OPT_MAP_MAX_BYTES, "64M", true },
		{ ATTACH_OPT_MAP_MAX_BYTES, "0", false }, { ATTACH_OPT_BUFFER_MB, "1024", true },
		{ ATTACH_OPT_BUFFER_MB, "0", false },     { ATTACH_OPT_BUFFER_MB, "1025", false },
	};
	struct attach_options words = { 0 };
	size_t i;

	for (i = 0; i < ARRAY_SIZE(cases); i++)
		ck_assert_msg(!attach_option_take(&words, cases[i].option, cases[i].arg) ==
				      cases[i].good,
			      "%s", cases[i].arg);
	ck_assert_int_eq(words.map.style, NAMES_FULL);
	ck_assert_uint_eq(words.map.max_bytes, MIB(64));
	ck_assert_uint_eq(words.target.buffer_mb, 1024);
	ck_assert_ptr_null(attach_option_take(&words, ATTACH_OPT_MAP, "off"));
	ck_assert_int_eq(words.map.where, PERFMAP_OFF);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("perfmap");
	TCase *tc = tcase_create("perfmap");
	SRunner *sr;
	int failed;

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, test_write);
	tcase_add_test(tc, test_pace);
	tcase_add_test(tc, test_change_meanwhile);
	tcase_add_loop_test(tc, test_max_bytes, 0, ARRAY_SIZE(limits));
	tcase_add_test(tc, test_vanished);
	tcase_add_loop_test(tc, test_foreign, 0, ARRAY_SIZE(foreigners));
	tcase_add_test(tc, test_foreign_meanwhile);
	tcase_add_test(tc, test_foreign_at_removal);
	tcase_add_test(tc, test_no_space);
	tcase_add_test(tc, test_no_fds);
	tcase_add_test(tc, test_remove);
	tcase_add_test(tc, test_free_leaves_file);
	tcase_add_test(tc, test_forget);
	tcase_add_test(tc, test_done_frees);
	tcase_add_test(tc, test_off);
	tcase_add_test(tc, test_words);
	suite_add_tcase(s, tc);

	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
