/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parsers by table, and what can be asked of real processes without being root: this
 * program itself, its children, and numbers that change hands. Namespaces, foreign users and
 * hostile directories are in tests/integration/proc-attack.
 */
#include "proc/proc.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/caps.h"
#include "base/clock.h"
#include "proc/internal.h"

static struct text T(const char *s) {
	return text_of(s, strlen(s));
}

static void
ck_text(struct text t, const char *s)
{
	ck_assert_msg(text_equal(t, s), "\"%.*s\" is not \"%s\"", (int)text_len(t), t.p ? t.p : "",
		      s);
}

/* -- Parsers --------------------------------------------------------------------------- */

/* from field 3 to field 28 */
#define STAT_TAIL \
	"S 1 2 3 4 -1 6 7 8 9 10 11 12 13 14 15 16 17 18 586992 20 21 22 4194304 24 140737000 0 " \
	"0\n"

static const struct {
	const char *text;
	bool good;
	const char *comm;
} stats[] = {
	{ "1 (sh) " STAT_TAIL, true, "sh" },
	{ "1 (a b) " STAT_TAIL, true, "a b" },
	{ "1 (a) S 1 (b) " STAT_TAIL, true, "a) S 1 (b" },
	{ "1 ()) " STAT_TAIL, true, ")" },
	{ "1 () " STAT_TAIL, true, "" },
	{ "1 (x\n) " STAT_TAIL, true, "x\n" },
	{ "1 (sh) S 1 2 3", false, NULL },
	{ "1 sh S", false, NULL },
	{ ")(", false, NULL },
	{ "", false, NULL },
	{ "1 (sh) S 1 2 3 4 -1 6 7 8 9 10 11 12 13 14 15 16 17 18 x 20 21 22 1 24 1 0\n", false,
	  NULL },
};

START_TEST(test_stat)
{
	struct parse_stat stat;

	ck_assert_int_eq(parse_stat(T(stats[_i].text), &stat), stats[_i].good);
	if (!stats[_i].good)
		return;
	ck_text(stat.comm, stats[_i].comm);
	ck_assert_int_eq(stat.state, 'S');
	ck_assert_uint_eq(stat.start, 586992);
	ck_assert_uint_eq(stat.start_code, 4194304);
	ck_assert_uint_eq(stat.start_stack, 140737000);
}
END_TEST

START_TEST(test_status)
{
	struct parse_status s;

	ck_assert(parse_status(T("Name:\tUid:\t7\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n"
				 "Groups:\t4 24 1000 \nNSpid:\t4711\t12\t1\n"),
			       &s));
	ck_assert_uint_eq(s.uid, 1);
	ck_assert_uint_eq(s.euid, 2);
	ck_assert_uint_eq(s.suid, 3);
	ck_assert_uint_eq(s.fsuid, 4);
	ck_assert_uint_eq(s.fsgid, 8);
	ck_assert_uint_eq(s.n_groups, 3);
	ck_assert_uint_eq(s.groups[2], 1000);
	ck_assert_int_eq(s.inner_pid, 1);
	/* no NSpid: an old kernel. No Uid: not a status */
	ck_assert(parse_status(T("Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n"), &s));
	ck_assert_int_eq(s.inner_pid, 0);
	ck_assert(!parse_status(T("Uid:\t1\t2\t3\nGid:\t5\t6\t7\t8\n"), &s));
	ck_assert(!parse_status(T(""), &s));
}
END_TEST

START_TEST(test_status_many_groups)
{
	_cleanup_buf_ struct buf b;
	struct parse_status s;
	int i;

	buf_init(&b, MIB(1));
	buf_puts(&b, "Groups:\t");
	for (i = 0; i < 2 * PARSE_MAX_GROUPS; i++)
		buf_printf(&b, "%d ", i);
	buf_puts(&b, "\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n");
	ck_assert(parse_status(proc_text(&b), &s));
	ck_assert_uint_eq(s.n_groups, PARSE_MAX_GROUPS);
}
END_TEST

START_TEST(test_environ)
{
	static const char env[] = "A=1\0TMPDIRX=no\0TMPDIR=/a b\0TMPDIR=/second\0EMPTY=\0LAST=x";
	struct text all = text_of(env, sizeof(env) - 1), v;

	ck_assert(parse_environ(all, "TMPDIR", &v));
	ck_text(v, "/a b");
	ck_assert(parse_environ(all, "EMPTY", &v));
	ck_text(v, "");
	ck_assert(parse_environ(all, "LAST", &v));
	ck_text(v, "x");
	ck_assert(!parse_environ(all, "TMP", &v));
	ck_assert(!parse_environ(all, "1", &v));
	ck_assert(!parse_environ(text_of(NULL, 0), "A", &v));
}
END_TEST

static const struct {
	const char *text;
	bool good;
	int64_t monotonic, boottime;
} offsets[] = {
	{ "monotonic           0         0\nboottime            0         0\n", true, 0, 0 },
	{ "monotonic 10 5\nboottime -2 500000000\n", true, 10000000005, -1500000000 },
	{ "1 10 0\n7 20 0\n", true, 10000000000, 20000000000 },
	{ "boottime 100000 0\n", true, 0, 100000000000000 },
	{ "", true, 0, 0 },
	{ "monotonic 9223372036 0\n", false, 0, 0 },
	{ "monotonic 1 1000000000\n", false, 0, 0 },
	{ "monotonic x 0\n", false, 0, 0 },
	{ "monotonic - 0\n", false, 0, 0 },
	{ "monotonic 1\n", false, 0, 0 },
};

START_TEST(test_offsets)
{
	int64_t monotonic, boottime;

	ck_assert_int_eq(parse_timens_offsets(T(offsets[_i].text), &monotonic, &boottime),
			 offsets[_i].good);
	if (!offsets[_i].good)
		return;
	ck_assert_int_eq(monotonic, offsets[_i].monotonic);
	ck_assert_int_eq(boottime, offsets[_i].boottime);
}
END_TEST

START_TEST(test_id_map)
{
	uint32_t id = 7;

	ck_assert(parse_id_map_root(T("         0          0 4294967295\n"), &id));
	ck_assert_uint_eq(id, 0);
	ck_assert(parse_id_map_root(T(" 5 7 1\n 0 100000 65536\n"), &id));
	ck_assert_uint_eq(id, 100000);
	ck_assert(!parse_id_map_root(T(" 1000 1000 1\n"), &id));
	ck_assert(!parse_id_map_root(T(""), &id));
}
END_TEST

START_TEST(test_cgroup)
{
	struct text v2, v1;

	parse_cgroup(T("4:memory:/a:b/c\n1:name=systemd:/x\n0::/\n"), &v2, &v1);
	ck_text(v2, "/");
	ck_text(v1, "/a:b/c");
	parse_cgroup(T("3:cpu,memory:/m\n2:memoryx:/no\n"), &v2, &v1);
	ck_text(v2, "");
	ck_text(v1, "/m");
	parse_cgroup(T("nonsense\n:\n"), &v2, &v1);
	ck_text(v2, "");
	ck_text(v1, "");
}
END_TEST

static const struct {
	const char *text;
	bool good;
	const char *path;
} mappings[] = {
	{ "55e0-55f0 r-xp 00001000 fe:00 1234                 /usr/bin/a b", true, "/usr/bin/a b" },
	{ "55e0-55f0 rw-p 00000000 00:00 0 ", true, "" },
	{ "55e0-55f0 rw-p 00000000 00:00 0", true, "" },
	{ "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0     [vsyscall]", true,
	  "[vsyscall]" },
	{ "55f0-55e0 r-xp 0 0:0 1 /x", false, NULL },
	{ "55e0 r-xp 0 0:0 1 /x", false, NULL },
	{ "55e0-55f0 r-x 0 0:0 1 /x", false, NULL },
	{ "11112222333344445-55f0 r-xp 0 0:0 1 /x", false, NULL },
	{ "", false, NULL },
};

START_TEST(test_mapping)
{
	struct parse_mapping m;

	ck_assert_int_eq(parse_mapping(T(mappings[_i].text), &m), mappings[_i].good);
	if (mappings[_i].good)
		ck_text(m.path, mappings[_i].path);
}
END_TEST

START_TEST(test_mount)
{
	struct parse_mount m;
	char path[16];

	ck_assert(parse_mount(T("36 35 98:0 /r\\134x /mnt\\0402 rw master:1 shared:2 - cgroup "
				"src rw,memory"),
			      &m));
	ck_text(m.root, "/r\\134x");
	ck_text(m.type, "cgroup");
	ck_assert(parse_has_option(m.super_options, "memory"));
	ck_assert(!parse_has_option(m.super_options, "mem"));
	ck_assert_int_eq(parse_unescape(m.mount_point, path, sizeof(path)), 6);
	ck_assert_str_eq(path, "/mnt 2");
	ck_assert_int_eq(parse_unescape(m.root, path, sizeof(path)), 4);
	ck_assert_str_eq(path, "/r\\x");
	ck_assert_int_eq(parse_unescape(m.mount_point, path, 6), -1);
	ck_assert_int_eq(parse_unescape(T("a\\000"), path, sizeof(path)), -1);
	ck_assert_int_eq(parse_unescape(T("\\04"), path, sizeof(path)), 3);
	ck_assert(parse_mount(T("36 35 98:0 / /mnt rw - tmpfs x rw"), &m));
	ck_assert(!parse_mount(T("36 35 98:0 / /mnt rw tmpfs x rw"), &m));
	ck_assert(!parse_mount(T(""), &m));
}
END_TEST

START_TEST(test_unix_socket)
{
	struct parse_unix_socket s;
	uint64_t key;

	ck_assert(!parse_unix_socket(T("Num       RefCount Protocol Flags    Type St Inode Path"),
				     &s));
	ck_assert(!parse_unix_socket(
		T("0000000000000000: 00000003 00000000 00000000 0001 03 12346"), &s));
	ck_assert(parse_unix_socket(
		T("0000000000000000: 00000002 00000000 00010000 0001 01    7 /tmp/a b"), &s));
	ck_assert(s.listening);
	ck_text(s.path, "/tmp/a b");
	ck_assert(parse_unix_socket(
		T("0000000000000000: 00000002 00000000 00000000 0001 03 7 @abstract"), &s));
	ck_assert(!s.listening);

	ck_assert(parse_socket_name(T("dotnet-diagnostic-12-345-socket"), 12, &key));
	ck_assert_uint_eq(key, 345);
	ck_assert(!parse_socket_name(T("dotnet-diagnostic-12-345-socket"), 1, &key));
	ck_assert(!parse_socket_name(T("dotnet-diagnostic-12-345-sockets"), 12, &key));
	ck_assert(!parse_socket_name(T("dotnet-diagnostic-12--socket"), 12, &key));
	ck_assert(!parse_socket_name(T("dotnet-diagnostic-12-socket"), 12, &key));
	ck_assert(!parse_socket_name(T("dotnet-diagnostic-socket"), 12, &key));
	ck_assert(!parse_socket_name(T("clr-debug-pipe-12-345-in"), 12, &key));
}
END_TEST

START_TEST(test_key)
{
	uint64_t v;

	ck_assert(parse_key(T("MemTotal:  5 kB\nMemAvailable:    12 kB\n"), "MemAvailable", &v));
	ck_assert_uint_eq(v, 12 * 1024);
	ck_assert(parse_key(T("anon 5\ninactive_file 9\n"), "inactive_file", &v));
	ck_assert_uint_eq(v, 9);
	ck_assert(!parse_key(T("inactive_file x\n"), "inactive_file", &v));
	ck_assert(!parse_key(T("inactive_file 18446744073709551615 kB\n"), "inactive_file", &v));
	ck_assert(!parse_key(T(""), "inactive_file", &v));
}
END_TEST

/* -- Memory ---------------------------------------------------------------------------- */

static void put(int dir_fd, const char *name, const char *text)
{
	_cleanup_close_ int fd = openat(dir_fd, name, O_CREAT | O_TRUNC | O_WRONLY, 0644);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

START_TEST(test_memory_v2)
{
	char dir[] = "/tmp/test_proc.XXXXXX", command[64];
	struct text meminfo = T("MemAvailable: 1000 kB\n");
	_cleanup_close_ int fd = -1;

	ck_assert_ptr_nonnull(mkdtemp(dir));
	fd = open(dir, O_PATH | O_DIRECTORY);
	mkdirat(fd, "a", 0755);
	mkdirat(fd, "a/b", 0755);

	ck_assert_uint_eq(proc_memory_room_at(-1, "", -1, "", T("")), UINT64_MAX);
	ck_assert_uint_eq(proc_memory_room_at(-1, "", -1, "", meminfo), 1024000);
	/* no files (the top): no limit */
	ck_assert_uint_eq(proc_memory_room_at(fd, "a/b", -1, "", meminfo), 1024000);
	put(fd, "a/b/memory.max", "max\n");
	put(fd, "a/b/memory.current", "5000\n");
	ck_assert_uint_eq(proc_memory_room_at(fd, "a/b", -1, "", meminfo), 1024000);
	/* a level above is tighter; its cache is as good as free */
	put(fd, "a/memory.max", "100000\n");
	put(fd, "a/memory.current", "90000\n");
	ck_assert_uint_eq(proc_memory_room_at(fd, "a/b", -1, "", meminfo), 10000);
	put(fd, "a/memory.stat", "anon 5\ninactive_file 40000\n");
	ck_assert_uint_eq(proc_memory_room_at(fd, "a/b", -1, "", meminfo), 50000);
	put(fd, "a/b/memory.high", "6000\n");
	ck_assert_uint_eq(proc_memory_room_at(fd, "a/b", -1, "", meminfo), 1000);
	/* over its limit already */
	put(fd, "a/b/memory.high", "4000\n");
	ck_assert_uint_eq(proc_memory_room_at(fd, "a/b", -1, "", meminfo), 0);
	/* removed meanwhile, or a lie: the levels above still count, nothing outside does */
	ck_assert_uint_eq(proc_memory_room_at(fd, "a/gone", -1, "", meminfo), 50000);
	put(fd, "memory.max", "7\n");
	put(fd, "memory.current", "0\n");
	ck_assert_uint_eq(proc_memory_room_at(fd, "a/gone/x", -1, "", meminfo), 7);
	ck_assert_uint_eq(proc_memory_room_at(fd, "", -1, "", meminfo), 7);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	ck_assert_int_eq(system(command), 0);
}
END_TEST

START_TEST(test_memory_v1)
{
	char dir[] = "/tmp/test_proc.XXXXXX", command[64];
	_cleanup_close_ int fd = -1;

	ck_assert_ptr_nonnull(mkdtemp(dir));
	fd = open(dir, O_PATH | O_DIRECTORY);
	mkdirat(fd, "a", 0755);
	put(fd, "memory.limit_in_bytes", "9223372036854771712\n");
	put(fd, "memory.usage_in_bytes", "12345\n");
	put(fd, "a/memory.limit_in_bytes", "9223372036854771712\n");
	put(fd, "a/memory.usage_in_bytes", "500\n");
	ck_assert_uint_eq(proc_memory_room_at(-1, "", fd, "a", T("")), UINT64_MAX);
	put(fd, "a/memory.limit_in_bytes", "2000\n");
	put(fd, "a/memory.stat", "inactive_file 1\ntotal_inactive_file 100\n");
	ck_assert_uint_eq(proc_memory_room_at(-1, "", fd, "a", T("")), 1600);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	ck_assert_int_eq(system(command), 0);
}
END_TEST

#define MOUNTS \
	"22 27 0:21 / /proc rw - proc proc rw\n" \
	"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" \
	"41 31 0:38 / /sys/fs/cg\\040two rw - cgroup2 cgroup2 rw\n"
#define PART "41 31 0:38 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n"

static const struct {
	const char *mounts;
	bool v1;
	const char *path, *mount, *rest;
} places[] = {
	{ MOUNTS, false, "/", "/sys/fs/cg two", "" },
	{ MOUNTS, false, "/a/b", "/sys/fs/cg two", "a/b" },
	{ MOUNTS, true, "/a", "/sys/fs/cgroup/memory", "a" },
	{ MOUNTS, true, "", NULL, NULL },
	{ MOUNTS, true, "/../x", NULL, NULL },
	{ PART, false, "/docker/ab/c", "/sys/fs/cgroup", "c" },
	{ PART, false, "/docker/ab", "/sys/fs/cgroup", "" },
	{ PART, false, "/docker/abc", NULL, NULL },
	{ PART, false, "/", NULL, NULL },
	{ PART, true, "/docker/ab", NULL, NULL },
};

START_TEST(test_cgroup_place)
{
	char mount[64], rest[64];
	bool found = proc_cgroup_place(T(places[_i].mounts), places[_i].v1, T(places[_i].path),
				       mount, sizeof(mount), rest, sizeof(rest));

	ck_assert_int_eq(found, places[_i].mount != NULL);
	if (!found)
		return;
	ck_assert_str_eq(mount, places[_i].mount);
	ck_assert_str_eq(rest, places[_i].rest);
}
END_TEST

/* -- Processes ------------------------------------------------------------------------- */

/* A child that sleeps until it is killed; with_pid > 0 gives it that number (root only). */
static pid_t spawn(pid_t with_pid)
{
	struct clone_args args = { .exit_signal = SIGCHLD,
				   .set_tid = with_pid > 0 ? (uintptr_t)&with_pid : 0,
				   .set_tid_size = with_pid > 0 };
	pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	return pid;
}

static void reap(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

START_TEST(test_self)
{
	_cleanup_(proc_closep) struct proc *p = NULL;
	_cleanup_close_ int maps_fd = -1, mem_fd = -1;
	_cleanup_free_ char *value = NULL;
	static const int word = 0x600dcafe;
	uint64_t id, again;
	int got = 0;

	ck_assert_int_eq(proc_open(getpid(), &p), 0);
	ck_assert_int_eq(p->pid, getpid());
	ck_assert_int_gt(p->inner_pid, 0);
	ck_assert_uint_gt(p->start, 0);
	ck_assert_uint_eq(p->euid, geteuid());
	ck_assert(p->same_mount_ns && p->same_pid_ns);
	ck_assert_int_eq(p->monotonic_offset_ns, 0);
	ck_assert(proc_alive(p));
	ck_assert_uint_gt(proc_rss(p), 0);
	ck_assert_uint_gt(proc_memory_room(p), 0);
	ck_assert_int_eq(proc_exec_id(p, &id), 0);
	ck_assert_int_eq(proc_exec_id(p, &again), 0);
	ck_assert_uint_eq(id, again);
	ck_assert_int_eq(proc_open_maps(p, &maps_fd), 0);
	ck_assert_int_eq(proc_open_mem(p, &mem_fd), 0);
	ck_assert_int_eq(pread(mem_fd, &got, sizeof(got), (off_t)(uintptr_t)&word), sizeof(got));
	ck_assert_int_eq(got, word);
	ck_assert_int_eq(proc_getenv(p, "NO_SUCH_VARIABLE", &value), 0);
	ck_assert_ptr_null(value);
}
END_TEST

START_TEST(test_nobody)
{
	struct proc *p = NULL;

	ck_assert_int_eq(proc_open(0, &p), PROC_E_GONE);
	ck_assert_int_eq(proc_open(-1, &p), PROC_E_GONE);
	ck_assert_int_eq(proc_open(INT32_MAX, &p), PROC_E_GONE);
	ck_assert_ptr_null(p);
}
END_TEST

static int count_self(void *data, pid_t pid)
{
	*(int *)data += pid == getpid();
	return 0;
}

static int stop_at_once(void *data UNUSED, pid_t pid UNUSED)
{
	return 42;
}

START_TEST(test_for_each)
{
	int n = 0;

	ck_assert_int_eq(proc_for_each(count_self, &n), 0);
	ck_assert_int_eq(n, 1);
	ck_assert_int_eq(proc_for_each(stop_at_once, NULL), 42);
}
END_TEST

/* Everything that can be asked, of a process that is gone. */
static void check_gone(const struct proc *p)
{
	enum proc_dotnet kind;
	struct proc_socket_report report;
	struct proc_map *m;
	char *value;
	uint64_t id;
	bool yes;
	int fd;

	ck_assert(!proc_alive(p));
	ck_assert_int_eq(proc_open_maps(p, &fd), PROC_E_GONE);
	ck_assert_int_eq(proc_open_mem(p, &fd), PROC_E_GONE);
	ck_assert_int_eq(proc_open_file_below_root(p, "/etc/passwd", &fd), PROC_E_GONE);
	ck_assert_int_eq(proc_connect_socket(p, NULL, &fd, &report), PROC_E_GONE);
	ck_assert_int_eq(proc_detect_dotnet(p, &kind), PROC_E_GONE);
	ck_assert_int_eq(proc_getenv(p, "TMPDIR", &value), PROC_E_GONE);
	ck_assert_int_eq(proc_own_perf_map(p, &yes), PROC_E_GONE);
	ck_assert_int_eq(proc_exec_id(p, &id), PROC_E_GONE);
	ck_assert_int_eq(proc_map_open(p, PROC_MAP_TARGET, &m), PROC_E_GONE);
	ck_assert_uint_eq(proc_rss(p), 0);
}

START_TEST(test_exit)
{
	_cleanup_(proc_closep) struct proc *p = NULL;
	pid_t pid = spawn(0);
	struct proc *again = NULL;
	siginfo_t info;

	ck_assert_int_gt(pid, 0);
	ck_assert_int_eq(proc_open(pid, &p), 0);
	ck_assert(proc_alive(p));
	/* a zombie holds its number but is no process to us */
	kill(pid, SIGKILL);
	ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	ck_assert(!proc_alive(p));
	ck_assert_int_eq(proc_open(pid, &again), PROC_E_GONE);
	reap(pid);
	check_gone(p);
}
END_TEST

START_TEST(test_number_used_again)
{
	_cleanup_(proc_closep) struct proc *first = NULL, *second = NULL;
	pid_t pid = spawn(0);

	ck_assert_int_eq(proc_open(pid, &first), 0);
	reap(pid);
	if (spawn(pid) != pid) {
		fprintf(stderr, "SKIP test_number_used_again: cannot choose a pid (%s)\n",
			strerror(errno));
		return;
	}
	ck_assert_int_eq(proc_open(pid, &second), 0);
	/* the old handle never turns into the new process */
	check_gone(first);
	ck_assert(proc_alive(second));
	reap(pid);
}
END_TEST

START_TEST(test_exec)
{
	_cleanup_(proc_closep) struct proc *p = NULL;
	uint64_t before, after = 0;
	int go[2], i;
	pid_t pid;
	char c;

	ck_assert_int_eq(pipe2(go, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		close(go[1]);
		if (read(go[0], &c, 1) >= 0)
			execlp("sleep", "sleep", "100", NULL);
		_exit(1);
	}
	close(go[0]);
	ck_assert_int_eq(proc_open(pid, &p), 0);
	ck_assert_int_eq(proc_exec_id(p, &before), 0);
	close(go[1]);
	for (i = 0; i < 500; i++) {
		ck_assert_int_eq(proc_exec_id(p, &after), 0);
		if (after != before)
			break;
		usleep(10000);
	}
	ck_assert_uint_ne(after, before);
	ck_assert(proc_alive(p));
	reap(pid);
}
END_TEST

static int touch_process(void *data, pid_t pid)
{
	_cleanup_(proc_closep) struct proc *p = NULL;
	struct proc_socket_report report = { 0 };
	enum proc_dotnet kind = PROC_NOT_DOTNET;
	int fd = -1, r;
	bool yes;

	r = proc_open(pid, &p);
	if (r > 0)
		return 0;
	if (r == 0)
		r = proc_detect_dotnet(p, &kind);
	if (r >= 0)
		r = proc_own_perf_map(p, &yes);
	/* real runtimes, of others, are left in peace */
	if (r >= 0 && kind == PROC_NOT_DOTNET)
		r = proc_connect_socket(p, NULL, &fd, &report);
	fd_close(fd);
	if (r >= 0 && !strlen(proc_error_text(p, r, &report)))
		r = -EINVAL;
	proc_memory_room(p);
	++*(int *)data;
	return MIN(r, 0);
}

/* Directories of /proc vanish at any moment */
START_TEST(test_churn)
{
	pid_t forker = fork();
	int seen = 0, i;

	if (forker == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (i = 0; i < 200 || getppid() != 1; i++) {
			pid_t pid = fork();

			if (pid == 0)
				_exit(0);
			waitpid(pid, NULL, 0);
		}
		_exit(0);
	}
	for (i = 0; i < 10; i++)
		ck_assert_int_eq(proc_for_each(touch_process, &seen), 0);
	ck_assert_int_gt(seen, 10);
	reap(forker);
}
END_TEST

/* -- Locks ----------------------------------------------------------------------------- */

START_TEST(test_lock)
{
	_cleanup_(proc_closep) struct proc *p = NULL;
	pid_t holder = 0, child;
	int fd = -1, other = -1, status;

	ck_assert_int_eq(proc_open(getpid(), &p), 0);
	ck_assert_int_eq(proc_lock(p, &fd, &holder), 0);
	ck_assert_int_eq(proc_lock(p, &other, &holder), PROC_E_LOCKED);
	ck_assert_int_eq(holder, getpid());
	/* another program */
	child = fork();
	if (child == 0)
		_exit(proc_lock(p, &other, &holder) == PROC_E_LOCKED ? 0 : 1);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	proc_unlock(p, fd);
	ck_assert_int_eq(proc_lock(p, &fd, &holder), 0);
	proc_unlock(p, fd);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("proc");
	TCase *tc = tcase_create("parsers");
	SRunner *sr;
	int failed;

	tcase_add_loop_test(tc, test_stat, 0, ARRAY_SIZE(stats));
	tcase_add_test(tc, test_status);
	tcase_add_test(tc, test_status_many_groups);
	tcase_add_test(tc, test_environ);
	tcase_add_loop_test(tc, test_offsets, 0, ARRAY_SIZE(offsets));
	tcase_add_test(tc, test_id_map);
	tcase_add_test(tc, test_cgroup);
	tcase_add_loop_test(tc, test_mapping, 0, ARRAY_SIZE(mappings));
	tcase_add_test(tc, test_mount);
	tcase_add_test(tc, test_unix_socket);
	tcase_add_test(tc, test_key);
	suite_add_tcase(s, tc);
	tc = tcase_create("memory");
	tcase_add_test(tc, test_memory_v2);
	tcase_add_test(tc, test_memory_v1);
	tcase_add_loop_test(tc, test_cgroup_place, 0, ARRAY_SIZE(places));
	suite_add_tcase(s, tc);
	tc = tcase_create("processes");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, test_self);
	tcase_add_test(tc, test_nobody);
	tcase_add_test(tc, test_for_each);
	tcase_add_test(tc, test_exit);
	tcase_add_test(tc, test_number_used_again);
	tcase_add_test(tc, test_exec);
	tcase_add_test(tc, test_churn);
	tcase_add_test(tc, test_lock);
	suite_add_tcase(s, tc);

	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
