/* SPDX-License-Identifier: Apache-2.0 */
/*
 * perf's clocks: the measurement against itself and against two recordings of one event, and the
 * conversion by hand-made tracks. Where the kernel does not let us measure, that is what is tested.
 */
#include "perfdata/clock.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"
#include "base/util.h"

/* What the better machines do in a tenth; a busy one may be interrupted in every round. */
#define CLOSE_NS 1000

/* An errno of ours would fail the tests; a refusal of the kernel's only leaves them nothing to do.
 */
static bool measure(bool use_clockid, int32_t clockid, struct perfdata_clock_pair *pair)
{
	int r = perfdata_clock_measure(use_clockid, clockid, pair);

	ck_assert_int_ge(r, 0);
	if (r) {
		ck_assert_int_ne(r, PERFDATA_CLOCK_E_NOTHING);
		printf("not measured: %s\n", perfdata_clock_error_text(r));
	}
	return !r;
}

static int64_t offset(const struct perfdata_clock_pair *pair)
{
	return (int64_t)(pair->clock_ns - pair->mono_ns);
}

static uint64_t clock_ns(clockid_t id)
{
	struct timespec ts;

	ck_assert_int_eq(clock_gettime(id, &ts), 0);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* -- Measuring ------------------------------------------------------------------------------ */

START_TEST(test_monotonic)
{
	struct perfdata_clock_pair pair;
	uint64_t before = clock_now_ns();

	ck_assert_int_eq(perfdata_clock_measure(true, CLOCK_MONOTONIC, &pair), 0);
	ck_assert_int_eq(offset(&pair), 0);
	ck_assert_uint_eq(pair.error_ns, 0);
	ck_assert_uint_ge(pair.mono_ns, before);
	ck_assert_uint_le(pair.mono_ns, clock_now_ns());
}
END_TEST

START_TEST(test_known_clocks)
{
	static const clockid_t ids[] = { CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME, CLOCK_REALTIME,
					 CLOCK_TAI };
	struct perfdata_clock_pair pair;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(ids); i++) {
		uint64_t before, clock, after;

		if (!measure(true, ids[i], &pair))
			return;
		before = clock_now_ns();
		clock = clock_ns(ids[i]);
		after = clock_now_ns();
		/* a raw clock may drift by some ppm meanwhile */
		ck_assert_int_ge(offset(&pair), (int64_t)(clock - after) - CLOSE_NS);
		ck_assert_int_le(offset(&pair), (int64_t)(clock - before) + CLOSE_NS);
		ck_assert_uint_lt(before - pair.mono_ns, 1000000000u);
	}
}
END_TEST

START_TEST(test_sched_clock_repeats)
{
	struct perfdata_clock_pair a, b;
	struct timespec pause = { .tv_nsec = 20000000 };

	if (!measure(false, 0, &a))
		return;
	nanosleep(&pause, NULL);
	ck_assert(measure(false, 0, &b));
	ck_assert_uint_gt(b.mono_ns, a.mono_ns);
	ck_assert_uint_gt(b.clock_ns, a.clock_ns);
	ck_assert_int_lt(llabs(offset(&a) - offset(&b)),
			 CLOSE_NS + (int64_t)(a.error_ns + b.error_ns));
}
END_TEST

static unsigned int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int n = 0;

	ck_assert_ptr_nonnull(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static unsigned int count_maps(void)
{
	_cleanup_fclose_ FILE *f = fopen("/proc/self/maps", "re");
	unsigned int n = 0;
	int c;

	ck_assert_ptr_nonnull(f);
	while ((c = getc(f)) != EOF)
		n += c == '\n';
	return n;
}

START_TEST(test_leaves_nothing)
{
	struct perfdata_clock_pair pair;
	char name[16];
	unsigned int fds, maps, i;

	ck_assert_int_eq(prctl(PR_SET_NAME, "fifteen letters"), 0);
	if (!measure(false, 0, &pair))
		return;
	fds = count_fds();
	maps = count_maps();
	for (i = 0; i < 200; i++)
		ck_assert(measure(false, 0, &pair));
	for (i = 0; i < 200; i++)
		ck_assert_int_eq(perfdata_clock_measure(true, 99, &pair), PERFDATA_CLOCK_E_CLOCK);
	ck_assert_uint_eq(count_fds(), fds);
	ck_assert_uint_le(count_maps(), maps + 2);
	ck_assert_int_eq(prctl(PR_GET_NAME, name), 0);
	ck_assert_str_eq(name, "fifteen letters");
}
END_TEST

START_TEST(test_no_fds_left)
{
	struct perfdata_clock_pair pair;
	struct rlimit limit, few;
	int lowest;

	if (!measure(false, 0, &pair))
		return;
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	lowest = dup(STDIN_FILENO);
	ck_assert_int_ge(lowest, 0);
	close(lowest);
	/* room for the first event, none for the second */
	few = limit;
	few.rlim_cur = (rlim_t)lowest + 1;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
	ck_assert_int_eq(perfdata_clock_measure(false, 0, &pair), -EMFILE);
	ck_assert_int_eq(dup(STDIN_FILENO), lowest);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}
END_TEST

/* A user gets an answer or a reason, by kernel.perf_event_paranoid. */
START_TEST(test_as_user)
{
	struct perfdata_clock_pair root, user;
	int level = 2, r;
	FILE *f;

	f = fopen("/proc/sys/kernel/perf_event_paranoid", "re");
	if (f && fscanf(f, "%d", &level) != 1)
		level = 2;
	if (f)
		fclose(f);
	if (geteuid() != 0 || !measure(false, 0, &root)) {
		printf("skipped: not root\n");
		return;
	}
	ck_assert_int_eq(setgroups(0, NULL), 0);
	ck_assert_int_eq(setresgid(65534, 65534, 65534), 0);
	ck_assert_int_eq(setresuid(65534, 65534, 65534), 0);
	r = perfdata_clock_measure(false, 0, &user);
	if (level > 2 && r) {
		ck_assert_int_eq(r, PERFDATA_CLOCK_E_DENIED);
		return;
	}
	ck_assert_int_eq(r, 0);
	ck_assert_int_lt(llabs(offset(&root) - offset(&user)), CLOSE_NS * 2);
}
END_TEST

/* As in a container: a filter answers in the kernel's place. */
static void refuse_perf(uint32_t error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = ARRAY_SIZE(code), .filter = code };

	ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

START_TEST(test_refused)
{
	static const struct {
		uint32_t error;
		int result;
	} cases[] = {
		{ EPERM, PERFDATA_CLOCK_E_DENIED },
		{ ENOSYS, PERFDATA_CLOCK_E_UNSUPPORTED },
		{ ENOMEM, -ENOMEM },
	};
	struct perfdata_clock_pair pair;

	refuse_perf(cases[_i].error);
	ck_assert_int_eq(perfdata_clock_measure(false, 0, &pair), cases[_i].result);
	ck_assert_int_eq(perfdata_clock_measure(true, CLOCK_MONOTONIC, &pair), 0);
}
END_TEST

START_TEST(test_texts)
{
	int i;

	for (i = PERFDATA_CLOCK_E_DENIED; i <= PERFDATA_CLOCK_E_NOTHING; i++) {
		ck_assert_ptr_nonnull(strstr(perfdata_clock_error_text(i), "-k mono"));
		ck_assert_ptr_null(strchr(perfdata_clock_error_text(i), '\n'));
	}
	ck_assert_str_eq(perfdata_clock_error_text(-ENOMEM), strerror(ENOMEM));
}
END_TEST

/* -- Against perf itself -------------------------------------------------------------------- */

static int run(const char *command)
{
	int status = system(command); /* constant words and a directory of our own */

	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* When the recorded program was executed, on the recording's clock; 0: not found. */
static uint64_t exec_time(const char *dir, const char *file)
{
	_cleanup_free_ char *line = NULL;
	char command[256];
	uint64_t found = 0;
	size_t size = 0;
	FILE *f;

	snprintf(command, sizeof(command),
		 "perf script -i %s/%s --show-task-events --ns -F comm,tid,time 2>/dev/null", dir,
		 file);
	f = popen(command, "re");
	ck_assert_ptr_nonnull(f);
	while (getline(&line, &size, f) >= 0) {
		const char *event = strstr(line, "PERF_RECORD_COMM exec: true:");
		uint64_t s, ns;
		char *at;

		if (!event)
			continue;
		for (at = line; at < event; at++)
			if (sscanf(at, " %" SCNu64 ".%9" SCNu64 ":", &s, &ns) == 2 &&
			    strchr(at, '.') && strchr(at, '.') < event) {
				found = s * 1000000000u + ns;
				break;
			}
	}
	pclose(f);
	return found;
}

/*
 * One program, recorded by two perfs at once: its exec is one moment, and stands in one file by
 * perf's own clock, in the other by CLOCK_MONOTONIC.
 */
START_TEST(test_two_recordings)
{
	struct perfdata_clock_track track = { 0 };
	char dir[] = "/tmp/test-clock-XXXXXX", command[512];
	struct perfdata_clock_pair pair;
	uint64_t theirs, mono, ours;
	int r;

	if (run("perf --version >/dev/null 2>&1") != 0 || !measure(false, 0, &pair)) {
		printf("skipped: no perf here\n");
		return;
	}
	ck_assert(perfdata_clock_track_add(&track, &pair));
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(command, sizeof(command),
		 "perf record -q -e dummy:u -k mono -o %s/mono -- "
		 "perf record -q -e dummy:u -o %s/own -- true >/dev/null 2>%s/errors",
		 dir, dir, dir);
	r = run(command);
	ck_assert(measure(false, 0, &pair));
	ck_assert(perfdata_clock_track_add(&track, &pair));
	if (r == 0) {
		mono = exec_time(dir, "mono");
		theirs = exec_time(dir, "own");
	}
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	ck_assert_int_eq(run(command), 0);
	if (r) {
		printf("skipped: perf record failed here\n");
		return;
	}
	ck_assert_uint_ne(mono, 0);
	ck_assert_uint_ne(theirs, 0);
	ours = perfdata_clock_to_mono(&track, theirs);
	printf("perf's clock - mono: %" PRId64 " ns; the exec, converted: off by %" PRId64 " ns\n",
	       (int64_t)(theirs - mono), (int64_t)(ours - mono));
	/* the kernel writes the two records one after the other, unless it is interrupted */
	ck_assert_int_lt(llabs((int64_t)(ours - mono)), 20 * CLOSE_NS);
}
END_TEST

/* -- Converting ----------------------------------------------------------------------------- */

static void add(struct perfdata_clock_track *track, uint64_t mono, uint64_t clock)
{
	struct perfdata_clock_pair pair = { .mono_ns = mono, .clock_ns = clock };

	ck_assert(perfdata_clock_track_add(track, &pair));
}

START_TEST(test_convert)
{
	struct perfdata_clock_track track = { 0 };

	ck_assert_uint_eq(perfdata_clock_to_mono(&track, 77), 77);
	ck_assert_uint_eq(perfdata_clock_from_mono(&track, 77), 77);

	add(&track, 1000, 400);
	ck_assert_uint_eq(perfdata_clock_to_mono(&track, 0), 600);
	ck_assert_uint_eq(perfdata_clock_to_mono(&track, 400), 1000);
	ck_assert_uint_eq(perfdata_clock_to_mono(&track, 5000), 5600);
	ck_assert_uint_eq(perfdata_clock_to_mono(&track, UINT64_MAX), UINT64_MAX);
	ck_assert_uint_eq(perfdata_clock_from_mono(&track, 1000), 400);
	ck_assert_uint_eq(perfdata_clock_from_mono(&track, 599), 0);

	/* the clock runs twice as fast, then half as fast */
	add(&track, 2000, 2400);
	add(&track, 4000, 3400);
	ck_assert_uint_eq(perfdata_clock_to_mono(&track, 399), 999);
	ck_assert_uint_eq(perfdata_clock_to_mono(&track, 1400), 1500);
	ck_assert_uint_eq(perfdata_clock_to_mono(&track, 2400), 2000);
	ck_assert_uint_eq(perfdata_clock_to_mono(&track, 2900), 3000);
	ck_assert_uint_eq(perfdata_clock_to_mono(&track, 3400), 4000);
	ck_assert_uint_eq(perfdata_clock_to_mono(&track, 3500), 4100);
	ck_assert_uint_eq(perfdata_clock_from_mono(&track, 1500), 1400);
	ck_assert_uint_eq(perfdata_clock_from_mono(&track, 3000), 2900);
	ck_assert_uint_eq(perfdata_clock_from_mono(&track, 4100), 3500);

	/* a clock that was set back, or the same moment again */
	ck_assert(!perfdata_clock_track_add(&track, &track.pairs[2]));
	ck_assert(!perfdata_clock_track_add(
		&track, &(struct perfdata_clock_pair){ .mono_ns = 5000, .clock_ns = 3000 }));
	ck_assert_uint_eq(track.n, 3);
}
END_TEST

/* A week of minutes, of a clock that drifts: bounded, and straight where it is straight. */
START_TEST(test_long_track)
{
	const uint64_t minute = UINT64_C(60000000000), start = UINT64_C(1) << 50;
	struct perfdata_clock_track track = { 0 };
	uint64_t i, n = 7 * 24 * 60, mono = 0, last = 0;

	for (i = 0; i < n; i++)
		add(&track, start + i * minute, i * (minute + 3) + 5);
	ck_assert_uint_le(track.n, PERFDATA_CLOCK_PAIRS);
	ck_assert_uint_ge(track.n, PERFDATA_CLOCK_PAIRS / 2);
	ck_assert_uint_eq(track.pairs[0].mono_ns, start);
	ck_assert_uint_eq(track.pairs[track.n - 1].mono_ns, start + (n - 1) * minute);
	for (i = 0; i < n; i++) {
		mono = perfdata_clock_to_mono(&track, i * (minute + 3) + 5);
		ck_assert_int_le(llabs((int64_t)(mono - (start + i * minute))), 1);
		ck_assert_uint_gt(mono, last);
		last = mono;
		mono = perfdata_clock_from_mono(&track, start + i * minute);
		ck_assert_int_le(llabs((int64_t)(mono - (i * (minute + 3) + 5))), 1);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("clock");
	TCase *t = tcase_create("clock");
	SRunner *r;
	int failed;

	suite_add_tcase(s, t);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, test_monotonic);
	tcase_add_test(t, test_known_clocks);
	tcase_add_test(t, test_sched_clock_repeats);
	tcase_add_test(t, test_leaves_nothing);
	tcase_add_test(t, test_no_fds_left);
	tcase_add_test(t, test_as_user);
	tcase_add_loop_test(t, test_refused, 0, 3);
	tcase_add_test(t, test_texts);
	tcase_add_test(t, test_two_recordings);
	tcase_add_test(t, test_convert);
	tcase_add_test(t, test_long_track);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
