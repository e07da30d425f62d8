/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile targets against src/proc, with real processes, namespaces and file systems.
 *
 * A target is this program run again as "target SPEC": it does what a runtime does at its
 * start (bind, listen), or something worse, says that it is ready, and sleeps. Built and run by
 * tests/integration/proc-attack, as root.
 *
 *	proc-attack            all tests
 *	proc-attack NAME...    those
 *	proc-attack probe PID  what src/proc makes of a real process
 */
#include "proc/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "proc/internal.h"

#define USER  1000
#define OTHER 1001

static const char *current;
static unsigned int n_checks, n_failed, n_skipped;

static void check_at(int line, bool good, const char *what)
{
	n_checks++;
	if (good)
		return;
	n_failed++;
	printf("FAIL %s, line %d: %s\n", current, line, what);
}
#define CHECK(x) check_at(__LINE__, (x), #x)

static void check_code_at(int line, int got, int want, const char *what)
{
	char text[256];

	snprintf(text, sizeof(text), "%s is %d, not %d", what, got, want);
	check_at(line, got == want, text);
}
#define CHECK_CODE(x, want) check_code_at(__LINE__, (x), (want), #x)

static void skip(const char *why)
{
	n_skipped++;
	printf("SKIP %s: %s\n", current, why);
}

static NORETURN void die(const char *what)
{
	fprintf(stderr, "proc-attack: %s: %s\n", what, strerror(errno));
	_exit(2);
}

static void must(int r, const char *what)
{
	if (r < 0)
		die(what);
}
#define MUST(x) must((int)(x), #x)

/* -- The target's side ----------------------------------------------------------------- */

static uint64_t own_start(void)
{
	struct parse_stat stat;
	char text[1024];
	int fd = open("/proc/self/stat", O_RDONLY);
	ssize_t n = read(fd, text, sizeof(text));

	close(fd);
	if (n <= 0 || !parse_stat(text_of(text, (size_t)n), &stat))
		die("/proc/self/stat");
	return stat.start;
}

static const char *option(const char *spec, const char *name, char *out, size_t size)
{
	size_t n = strlen(name);

	while (spec && *spec) {
		const char *end = strchrnul(spec, ',');

		if (strncmp(spec, name, n) == 0 && (spec[n] == '=' || spec[n] == ',' || !spec[n])) {
			snprintf(out, size, "%.*s", spec[n] == '=' ? (int)(end - spec - n - 1) : 0,
				 spec + n + 1);
			return out;
		}
		spec = *end ? end + 1 : end;
	}
	return NULL;
}

static void become(uid_t uid)
{
	MUST(setgroups(0, NULL));
	MUST(setresgid(uid, uid, uid));
	MUST(setresuid(uid, uid, uid));
}

static void bind_path(int fd, const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	if (strlen(path) >= sizeof(a.sun_path))
		die("path too long for a socket");
	strcpy(a.sun_path, path);
	MUST(bind(fd, (struct sockaddr *)&a, sizeof(a)));
}

/*
 * SPEC: dir=PATH name=PATH key=+N mode=OCTAL backlog=N uid=N (before) drop=N (after listening)
 *	fifo dgram close unlink none child (a child listens)
 */
static int target_main(const char *spec)
{
	char value[256], name[512];
	const char *dir = getenv("TMPDIR"), *v;
	int fd = -1, type = option(spec, "dgram", value, 8) ? SOCK_DGRAM : SOCK_STREAM;
	uint64_t key = own_start();
	mode_t mode = 0600;
	pid_t pid = getpid();
	struct stat st;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if ((v = option(spec, "uid", value, sizeof(value))))
		become((uid_t)atoi(v));
	/* after the change of ids, which makes a process unseen by its own user */
	prctl(PR_SET_DUMPABLE, 1);
	if ((v = option(spec, "dir", value, sizeof(value))))
		dir = v;
	if (!dir || !*dir)
		dir = "/tmp";
	snprintf(name, sizeof(name), "%s/", dir);
	if ((v = option(spec, "key", value, sizeof(value))))
		key += (uint64_t)atoi(v);
	if ((v = option(spec, "mode", value, sizeof(value))))
		mode = (mode_t)strtoul(v, NULL, 8);
	snprintf(name + strlen(name), sizeof(name) - strlen(name),
		 "dotnet-diagnostic-%d-%llu-socket", pid, (unsigned long long)key);
	if (option(spec, "child", value, sizeof(value)) && fork() != 0) {
		while (lstat(name, &st) < 0)
			usleep(1000);
		usleep(20000);
		goto ready;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* not inherited */
	if (option(spec, "fifo", value, sizeof(value))) {
		MUST(mkfifo(name, 0600));
	} else if (!option(spec, "none", value, sizeof(value))) {
		fd = socket(AF_UNIX, type, 0);
		bind_path(fd, name);
		MUST(chmod(name, mode));
		v = option(spec, "backlog", value, sizeof(value));
		if (type == SOCK_STREAM)
			MUST(listen(fd, v ? atoi(v) : 255));
	}
	if (option(spec, "close", value, sizeof(value)))
		close(fd);
	if (option(spec, "unlink", value, sizeof(value)))
		MUST(unlink(name));
	if ((v = option(spec, "drop", value, sizeof(value)))) {
		become((uid_t)atoi(v));
		prctl(PR_SET_DUMPABLE, 1);
	}
ready:
	if (getpid() == pid && write(3, "x", 1) != 1)
		die("ready");
	for (;;)
		pause();
}

/* -- Starting targets ------------------------------------------------------------------ */

struct start {
	const char *spec;
	const char *tmpdir; /* environment */
	const char *env;    /* one more variable */
	int unshare;        /* CLONE_NEW*; a tmpfs is mounted on /tmp with CLONE_NEWNS */
	const char *tmpfs;  /* its options, or "" */
	bool no_tmpfs;
	const char *id_map; /* with CLONE_NEWUSER */
	const char *time_offsets;
	void (*prepare)(void); /* in the target's namespaces, as root, before it runs */
};

struct target {
	pid_t keeper, pid;
	struct proc *p;
};

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		die(path);
	close(fd);
}

static void enter(const struct start *s)
{
	MUST(unshare(s->unshare & ~CLONE_NEWUSER));
	if (s->unshare & CLONE_NEWTIME && s->time_offsets)
		write_file("/proc/self/timens_offsets", s->time_offsets);
	if (s->unshare & CLONE_NEWNS) {
		MUST(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
		if (!s->no_tmpfs && !(s->unshare & CLONE_NEWUSER))
			MUST(mount("tmpfs", "/tmp", "tmpfs", 0, s->tmpfs ? s->tmpfs : "mode=1777"));
	}
}

/* A user namespace whose root is USER outside; then a tmpfs that belongs to it. */
static void enter_user_ns(void)
{
	become(USER);
	prctl(PR_SET_DUMPABLE, 1);
	MUST(unshare(CLONE_NEWUSER | CLONE_NEWNS));
	write_file("/proc/self/setgroups", "deny");
	write_file("/proc/self/uid_map", "0 1000 1\n");
	write_file("/proc/self/gid_map", "0 1000 1\n");
	MUST(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
	MUST(mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777"));
}

static void run_target(const struct start *s, int ready_fd)
{
	char tmpdir[512], *env[3] = { NULL }, spec[512];
	char *argv[] = { (char *)"proc-attack", (char *)"target", spec, NULL };
	int n = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (s->unshare & CLONE_NEWUSER)
		enter_user_ns();
	if (s->prepare)
		s->prepare();
	if (s->tmpdir) {
		snprintf(tmpdir, sizeof(tmpdir), "TMPDIR=%s", s->tmpdir);
		env[n++] = tmpdir;
	}
	if (s->env)
		env[n++] = strdup(s->env);
	snprintf(spec, sizeof(spec), "%s", s->spec ? s->spec : "");
	if (ready_fd != 3)
		dup2(ready_fd, 3);
	execve("/proc/self/exe", argv, env);
	die("execve");
}

static struct target start_target(const struct start *s)
{
	struct target t = { 0 };
	int ready[2], number[2];
	char c;

	fflush(stdout);
	MUST(pipe2(ready, O_CLOEXEC));
	MUST(pipe2(number, O_CLOEXEC));
	t.keeper = fork();
	if (t.keeper == 0) {
		pid_t pid;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ready[0]);
		enter(s);
		pid = fork();
		if (pid == 0)
			run_target(s, ready[1]);
		close(ready[1]);
		MUST(write(number[1], &pid, sizeof(pid)));
		waitpid(pid, NULL, 0);
		for (;;)
			pause();
	}
	close(ready[1]);
	close(number[1]);
	if (read(number[0], &t.pid, sizeof(t.pid)) != sizeof(t.pid) || read(ready[0], &c, 1) != 1) {
		printf("FAIL %s: no target\n", current);
		n_failed++;
	}
	close(ready[0]);
	close(number[0]);
	CHECK_CODE(proc_open(t.pid, &t.p), 0);
	if (!t.p)
		exit(1);
	return t;
}

/* A killed runtime leaves its socket; this one is only unlinked where it is surely ours. */
static void remove_sockets(const struct proc *p)
{
	char command[128];

	if (p->inner_pid == p->pid)
		snprintf(command, sizeof(command), "rm -rf /tmp/dotnet-diagnostic-%d-*-socket",
			 p->pid);
	else
		snprintf(command, sizeof(command), "rm -rf /tmp/dotnet-diagnostic-%d-%llu-socket",
			 p->inner_pid, (unsigned long long)p->start);
	MUST(system(command));
}

static void stop_target(struct target *t)
{
	remove_sockets(t->p);
	proc_close(t->p);
	kill(t->pid, SIGKILL);
	kill(t->keeper, SIGKILL);
	waitpid(t->keeper, NULL, 0);
}

/* What connecting to such a target gives; the report in *report. */
static int try_connect(const struct start *s, const struct proc_socket_options *opts,
		       struct proc_socket_report *report)
{
	struct target t = start_target(s);
	int fd = -1, r;

	r = proc_connect_socket(t.p, opts, &fd, report);
	if (r == 0) {
		int flags = fcntl(fd, F_GETFL);

		CHECK(flags & O_NONBLOCK);
		CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	}
	if (r > 0)
		printf("     %s\n", proc_error_text(t.p, r, report));
	fd_close(fd);
	stop_target(&t);
	return r;
}

static void sysctl_set(const char *name, int value)
{
	char path[64], text[16];

	snprintf(path, sizeof(path), "/proc/sys/fs/%s", name);
	snprintf(text, sizeof(text), "%d", value);
	write_file(path, text);
}

static int sysctl_get(const char *name)
{
	char path[64], text[16] = { 0 };
	int fd;

	snprintf(path, sizeof(path), "/proc/sys/fs/%s", name);
	fd = open(path, O_RDONLY);
	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 0)
		die(path);
	close(fd);
	return atoi(text);
}

/* -- Sockets --------------------------------------------------------------------------- */

static void test_socket_plain(void)
{
	struct proc_socket_report report;

	CHECK_CODE(try_connect(&(struct start){ 0 }, NULL, &report), 0);
	CHECK(report.peer_uid == 0 && report.stale == 0);
	CHECK_CODE(try_connect(&(struct start){ .spec = "uid=1000" }, NULL, &report), 0);
	CHECK(report.owner == USER && report.peer_uid == USER);
	/* a tick later than field 22 says */
	CHECK_CODE(try_connect(&(struct start){ .spec = "key=+1" }, NULL, NULL), 0);
}

static void test_socket_dropped_root(void)
{
	struct proc_socket_report report;

	CHECK_CODE(try_connect(&(struct start){ .spec = "drop=1000" }, NULL, &report), 0);
	CHECK(report.owner == 0 && report.peer_uid == 0);
}

static void test_socket_none(void)
{
	struct proc_socket_report report;
	struct target t;

	CHECK_CODE(try_connect(&(struct start){ .spec = "none" }, NULL, &report), PROC_E_NO_SOCKET);
	CHECK_CODE(
		try_connect(&(struct start){ .spec = "none", .env = "DOTNET_EnableDiagnostics=0" },
			    NULL, &report),
		PROC_E_NO_SOCKET);
	t = start_target(
		&(struct start){ .spec = "none", .env = "COMPlus_EnableDiagnostics_IPC=0x0" });
	CHECK(strstr(proc_error_text(t.p, PROC_E_NO_SOCKET, NULL),
		     "COMPlus_EnableDiagnostics_IPC=0"));
	stop_target(&t);
	t = start_target(&(struct start){ .spec = "none", .env = "DOTNET_EnableDiagnostics=1" });
	CHECK(strstr(proc_error_text(t.p, PROC_E_NO_SOCKET, NULL), "not a .NET process"));
	stop_target(&t);
}

static void test_socket_loose(void)
{
	static const char *const specs[] = { "mode=0660", "mode=0602", "mode=0777", "fifo" };
	struct proc_socket_options loose = { .allow_loose = true };
	struct proc_socket_report report;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(specs); i++) {
		CHECK_CODE(try_connect(&(struct start){ .spec = specs[i] }, NULL, &report),
			   PROC_E_LOOSE_SOCKET);
		CHECK(report.mode != 0 && report.path[0] == '/');
	}
	CHECK_CODE(try_connect(&(struct start){ .spec = "mode=0666" }, &loose, NULL), 0);
	CHECK_CODE(try_connect(&(struct start){ .spec = "fifo" }, &loose, NULL),
		   PROC_E_LOOSE_SOCKET);
}

/* Somebody makes the right name before the target does. */
static char squat_path[256];

static void name_of(const struct proc *p, const char *dir, char *out, size_t size)
{
	snprintf(out, size, "%s/dotnet-diagnostic-%d-%llu-socket", dir, p->inner_pid,
		 (unsigned long long)p->start);
}

static pid_t listen_at(const char *path, uid_t uid, mode_t mode)
{
	int ready[2];
	pid_t pid;
	char c;

	MUST(pipe(ready));
	pid = fork();
	if (pid == 0) {
		int fd;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (uid)
			become(uid);
		fd = socket(AF_UNIX, SOCK_STREAM, 0);
		bind_path(fd, path);
		MUST(chmod(path, mode));
		MUST(listen(fd, 16));
		MUST(write(ready[1], "x", 1));
		for (;;)
			pause();
	}
	close(ready[1]);
	if (read(ready[0], &c, 1) != 1)
		die("listen_at");
	close(ready[0]);
	return pid;
}

static void kill_wait(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void test_socket_spoofed(void)
{
	struct proc_socket_options loose = { .allow_loose = true };
	struct proc_socket_report report;
	struct target t = start_target(&(struct start){ .spec = "none,uid=1000" });
	int fd = -1;
	pid_t pid;

	/* another user's socket under the target's name in the sticky /tmp */
	name_of(t.p, "/tmp", squat_path, sizeof(squat_path));
	pid = listen_at(squat_path, OTHER, 0600);
	CHECK_CODE(proc_connect_socket(t.p, NULL, &fd, &report), PROC_E_LOOSE_SOCKET);
	CHECK(report.owner == OTHER);
	printf("     %s\n", proc_error_text(t.p, PROC_E_LOOSE_SOCKET, &report));
	/* the override accepts the file, never another listener */
	CHECK_CODE(proc_connect_socket(t.p, &loose, &fd, &report), PROC_E_WRONG_PEER);
	CHECK(report.peer_pid == pid && report.peer_uid == OTHER);
	printf("     %s\n", proc_error_text(t.p, PROC_E_WRONG_PEER, &report));
	kill_wait(pid);
	unlink(squat_path);

	/* the same user's other process, and root's */
	pid = listen_at(squat_path, USER, 0600);
	CHECK_CODE(proc_connect_socket(t.p, NULL, &fd, &report), PROC_E_WRONG_PEER);
	kill_wait(pid);
	unlink(squat_path);
	pid = listen_at(squat_path, 0, 0600);
	CHECK_CODE(proc_connect_socket(t.p, NULL, &fd, &report), PROC_E_WRONG_PEER);
	kill_wait(pid);
	unlink(squat_path);

	/* a link to a socket, one to nothing, one to itself; a directory */
	pid = listen_at("/tmp/proc-attack-other", USER, 0600);
	MUST(symlink("/tmp/proc-attack-other", squat_path));
	CHECK_CODE(proc_connect_socket(t.p, NULL, &fd, &report), PROC_E_LOOSE_SOCKET);
	unlink(squat_path);
	kill_wait(pid);
	unlink("/tmp/proc-attack-other");
	MUST(symlink("/nowhere", squat_path));
	CHECK_CODE(proc_connect_socket(t.p, NULL, &fd, &report), PROC_E_LOOSE_SOCKET);
	unlink(squat_path);
	MUST(mkdir(squat_path, 0700));
	CHECK_CODE(proc_connect_socket(t.p, NULL, &fd, &report), PROC_E_LOOSE_SOCKET);
	rmdir(squat_path);
	stop_target(&t);

	/* a squatter on the name one tick off does not stand in the way of the real one */
	t = start_target(&(struct start){ .spec = "uid=1000,key=+1" });
	name_of(t.p, "/tmp", squat_path, sizeof(squat_path));
	pid = listen_at(squat_path, OTHER, 0600);
	CHECK_CODE(proc_connect_socket(t.p, NULL, &fd, &report), 0);
	fd = fd_close(fd);
	kill_wait(pid);
	unlink(squat_path);
	stop_target(&t);

	/* listened to by a child of the target: not the process that we mean */
	CHECK_CODE(try_connect(&(struct start){ .spec = "child" }, NULL, &report),
		   PROC_E_WRONG_PEER);
	CHECK_CODE(try_connect(&(struct start){ .spec = "dgram" }, NULL, &report),
		   PROC_E_WRONG_PEER);
}

static void test_socket_stale(void)
{
	struct proc_socket_report report;
	struct target t;
	int i, fd = -1;
	uint64_t t0;

	CHECK_CODE(try_connect(&(struct start){ .spec = "close" }, NULL, &report),
		   PROC_E_STALE_SOCKET);
	CHECK(report.stale == 1);

	/* 500 dead ones and a live one */
	t = start_target(&(struct start){ .tmpdir = "/tmp/proc-attack-dir" });
	for (i = 0; i < 500; i++) {
		char path[128];

		snprintf(path, sizeof(path), "/tmp/proc-attack-dir/dotnet-diagnostic-%d-%d-socket",
			 t.p->inner_pid, i + 1);
		fd = socket(AF_UNIX, SOCK_STREAM, 0);
		bind_path(fd, path);
		close(fd);
	}
	t0 = clock_now_ns();
	CHECK_CODE(proc_connect_socket(t.p, NULL, &fd, &report), 0);
	printf("     among 500 stale sockets: %.2f ms\n", (double)(clock_now_ns() - t0) / 1e6);
	CHECK(clock_now_ns() - t0 < 100000000);
	fd = fd_close(fd);
	/* and none */
	name_of(t.p, "/tmp/proc-attack-dir", squat_path, sizeof(squat_path));
	MUST(unlink(squat_path));
	CHECK_CODE(proc_connect_socket(t.p, NULL, &fd, &report), PROC_E_SOCKET_GONE);
	CHECK(report.stale == 500);
	printf("     %s\n", proc_error_text(t.p, PROC_E_SOCKET_GONE, &report));
	stop_target(&t);
}

static void test_socket_deleted(void)
{
	struct proc_socket_report report;

	CHECK_CODE(try_connect(&(struct start){ .spec = "unlink" }, NULL, &report),
		   PROC_E_SOCKET_GONE);
	CHECK(strncmp(report.path, "/tmp/dotnet-diagnostic-", 23) == 0);
}

static void test_socket_busy(void)
{
	struct target t = start_target(&(struct start){ .spec = "backlog=1" });
	struct proc_socket_report report;
	int fds[8], i, r = 0;

	for (i = 0; i < 8 && r == 0; i++) {
		fds[i] = -1;
		r = proc_connect_socket(t.p, NULL, &fds[i], &report);
	}
	CHECK_CODE(r, PROC_E_BUSY);
	CHECK(report.path[0]);
	printf("     %s\n", proc_error_text(t.p, r, &report));
	while (i-- > 0)
		fd_close(fds[i]);
	stop_target(&t);
}

/* -- TMPDIR ---------------------------------------------------------------------------- */

static void make_dir(void)
{
	mkdir("/tmp/proc-attack-dir", 0777);
	chmod("/tmp/proc-attack-dir", 0777);
}

static void prepare_link(void)
{
	make_dir();
	/* as /var/run: an absolute link */
	unlink("/tmp/proc-attack-link");
	MUST(symlink("/tmp/proc-attack-dir", "/tmp/proc-attack-link"));
	MUST(lchown("/tmp/proc-attack-link", USER, USER));
}

static void prepare_dots(void)
{
	make_dir();
	unlink("/tmp/proc-attack-link");
	/* more ".." than there are directories: ends at the root, the target's */
	MUST(symlink("../../../../../tmp/proc-attack-dir", "/tmp/proc-attack-link"));
	MUST(lchown("/tmp/proc-attack-link", USER, USER));
}

/* A root below /mnt with what this program needs to run, and without /tmp. */
static void make_root(void)
{
	MUST(mount("tmpfs", "/mnt", "tmpfs", 0, "mode=0755"));
	MUST(mkdir("/mnt/proc", 0755));
	MUST(mkdir("/mnt/usr", 0755));
	MUST(mount("/proc", "/mnt/proc", NULL, MS_BIND | MS_REC, NULL));
	MUST(mount("/usr", "/mnt/usr", NULL, MS_BIND | MS_REC, NULL));
	MUST(symlink("usr/lib", "/mnt/lib"));
	MUST(symlink("usr/lib64", "/mnt/lib64"));
}

static void enter_root(void)
{
	MUST(chroot("/mnt"));
	MUST(chdir("/"));
}

static void prepare_chroot(void)
{
	make_root();
	MUST(mkdir("/mnt/tmp", 0777));
	MUST(chmod("/mnt/tmp", 01777));
	/* leads to the target's own /tmp, and out of its root if followed from outside */
	MUST(symlink("/tmp", "/mnt/out"));
	enter_root();
}

static void prepare_cwd(void)
{
	make_dir();
	MUST(chdir("/tmp/proc-attack-dir"));
}

static void test_tmpdir(void)
{
	int saved = sysctl_get("protected_symlinks"), value;
	char deep[300], path[512];
	struct proc_socket_report report;
	struct target t;
	int fd = -1;
	size_t n;

	make_dir();
	CHECK_CODE(try_connect(&(struct start){ .tmpdir = "/tmp/proc-attack-dir/" }, NULL, NULL),
		   0);
	CHECK_CODE(try_connect(&(struct start){ .tmpdir = "" }, NULL, NULL), 0);
	for (value = 0; value <= 1; value++) {
		sysctl_set("protected_symlinks", value);
		CHECK_CODE(try_connect(&(struct start){ .spec = "uid=1000",
							.tmpdir = "/tmp/proc-attack-link",
							.prepare = prepare_link },
				       NULL, NULL),
			   0);
		CHECK_CODE(try_connect(&(struct start){ .spec = "uid=1000",
							.tmpdir = "/tmp/proc-attack-link",
							.prepare = prepare_dots },
				       NULL, NULL),
			   0);
	}
	sysctl_set("protected_symlinks", saved);
	CHECK_CODE(try_connect(&(struct start){ .unshare = CLONE_NEWNS,
						.no_tmpfs = true,
						.tmpdir = "/out",
						.prepare = prepare_chroot },
			       NULL, &report),
		   0);
	CHECK(strncmp(report.path, "/out/", 5) == 0);
	CHECK_CODE(
		try_connect(&(struct start){ .tmpdir = ".", .prepare = prepare_cwd }, NULL, NULL),
		0);
	/* a magic link is not followed, wherever it leads */
	CHECK_CODE(try_connect(&(struct start){ .spec = "none", .tmpdir = "/proc/self/root/tmp" },
			       NULL, NULL),
		   PROC_E_NO_SOCKET);
	/* not there; the runtime would have none then, but a host may set TMPDIR itself */
	CHECK_CODE(
		try_connect(&(struct start){ .spec = "none", .tmpdir = "/no/such" }, NULL, &report),
		PROC_E_NO_SOCKET);
	CHECK_CODE(try_connect(&(struct start){ .spec = "dir=/tmp", .tmpdir = "/no/such" }, NULL,
			       NULL),
		   0);
	CHECK_CODE(try_connect(&(struct start){ .spec = "dir=/tmp/proc-attack-dir" }, NULL, NULL),
		   0);

	/* a root so deep that the path from outside is longer than sun_path */
	n = (size_t)snprintf(deep, sizeof(deep), "/tmp/proc-attack-dir/%0180d", 7);
	mkdir(deep, 0777);
	snprintf(deep + n, sizeof(deep) - n, "/x");
	t = start_target(&(struct start){ .spec = "none", .tmpdir = deep });
	mkdir(deep, 0777);
	{
		/* bound by a short relative name by the target's namesake */
		struct proc_socket_options opts = { .path = path };
		pid_t pid;

		MUST(chdir(deep));
		name_of(t.p, ".", squat_path, sizeof(squat_path));
		pid = listen_at(squat_path, 0, 0600);
		name_of(t.p, deep, path, sizeof(path));
		CHECK_CODE(proc_connect_socket(t.p, NULL, &fd, &report), PROC_E_WRONG_PEER);
		CHECK_CODE(proc_connect_socket(t.p, &opts, &fd, &report), PROC_E_WRONG_PEER);
		CHECK(report.peer_pid == pid);
		kill_wait(pid);
		MUST(chdir("/"));
	}
	stop_target(&t);
}

/* -- Namespaces ------------------------------------------------------------------------ */

static void test_namespaces(void)
{
	struct target t, u;
	int fd = -1;

	/* a container; PrivateTmp; a pid namespace with our /tmp; two in one /tmp */
	t = start_target(&(struct start){ .unshare = CLONE_NEWPID | CLONE_NEWNS });
	CHECK(t.p->inner_pid == 1 && !t.p->same_mount_ns && !t.p->same_pid_ns);
	CHECK_CODE(proc_connect_socket(t.p, NULL, &fd, NULL), 0);
	fd = fd_close(fd);
	stop_target(&t);

	t = start_target(&(struct start){ .unshare = CLONE_NEWNS });
	CHECK(t.p->inner_pid == t.p->pid && !t.p->same_mount_ns && t.p->same_pid_ns);
	CHECK_CODE(proc_connect_socket(t.p, NULL, &fd, NULL), 0);
	fd = fd_close(fd);
	stop_target(&t);

	t = start_target(&(struct start){ .unshare = CLONE_NEWPID });
	usleep(30000); /* another start time */
	u = start_target(&(struct start){ .unshare = CLONE_NEWPID });
	CHECK(t.p->inner_pid == 1 && u.p->inner_pid == 1 && t.p->same_mount_ns);
	CHECK_CODE(proc_connect_socket(t.p, NULL, &fd, NULL), 0);
	fd = fd_close(fd);
	CHECK_CODE(proc_connect_socket(u.p, NULL, &fd, NULL), 0);
	fd = fd_close(fd);
	stop_target(&t);
	stop_target(&u);

	/* a network namespace of its own: sockets with a path do not care */
	CHECK_CODE(
		try_connect(&(struct start){ .unshare = CLONE_NEWNET | CLONE_NEWNS }, NULL, NULL),
		0);
	CHECK_CODE(try_connect(&(struct start){ .unshare = CLONE_NEWNET, .spec = "unlink" }, NULL,
			       NULL),
		   PROC_E_SOCKET_GONE);
}

static void test_time_namespace(void)
{
	static const char *const offsets[] = { "boottime 100000 0\nmonotonic 5 0\n",
					       "boottime 7 5000001\n", "boottime -60 0\n",
					       "boottime -1 999999999\n" };
	struct target t;
	int fd = -1, tries;
	size_t i;

	if (access("/proc/self/ns/time", F_OK) < 0) {
		skip("no time namespaces");
		return;
	}
	for (i = 0; i < ARRAY_SIZE(offsets); i++) {
		for (tries = 0; tries < 5; tries++) {
			t = start_target(&(struct start){ .unshare = CLONE_NEWTIME,
							  .time_offsets = offsets[i] });
			CHECK(t.p->boottime_offset_ns != 0);
			CHECK(i != 0 || t.p->monotonic_offset_ns == 5000000000);
			CHECK_CODE(proc_connect_socket(t.p, NULL, &fd, NULL), 0);
			fd = fd_close(fd);
			stop_target(&t);
		}
	}
}

static void test_user_namespace(void)
{
	struct proc_map *m = NULL;
	struct target t;
	struct stat st;
	char path[64];
	int fd = -1;

	t = start_target(&(struct start){ .unshare = CLONE_NEWUSER | CLONE_NEWNS });
	CHECK(t.p->uid == USER);
	CHECK_CODE(proc_connect_socket(t.p, NULL, &fd, NULL), 0);
	fd = fd_close(fd);
	/* root does not exist on that tmpfs: the file belongs to the namespace's root */
	CHECK_CODE(proc_map_open(t.p, PROC_MAP_TARGET, &m), 0);
	if (m) {
		CHECK_CODE(proc_map_begin(m), 0);
		CHECK_CODE(proc_map_append(m, "1 1 x\n", 6), 0);
		CHECK_CODE(proc_map_publish(m), 0);
		snprintf(path, sizeof(path), "/proc/%d/root/tmp/perf-%d.map", t.pid,
			 t.p->inner_pid);
		CHECK(stat(path, &st) == 0 && st.st_uid == USER && (st.st_mode & 07777) == 0644);
		CHECK_CODE(proc_map_begin(m), 0);
		CHECK_CODE(proc_map_publish(m), 0);
		CHECK_CODE(proc_map_check(m), 0);
		proc_map_remove(m);
		CHECK(stat(path, &st) < 0 && errno == ENOENT);
		proc_map_close(m);
	}
	stop_target(&t);
}

/* -- Publishing ------------------------------------------------------------------------ */

static int publish(struct proc_map *m, const char *text)
{
	int r = proc_map_begin(m);

	if (r == 0)
		r = proc_map_append(m, text, strlen(text));
	if (r == 0)
		r = proc_map_publish(m);
	return r;
}

static int publish_once(const struct proc *p, enum proc_map_place place, const char *text)
{
	struct proc_map *m = NULL;
	int r = proc_map_open(p, place, &m);

	if (r == 0)
		r = publish(m, text);
	proc_map_close(m);
	return r;
}

static int count_entries(const char *dir)
{
	char command[128];
	FILE *f;
	int n = -1;

	snprintf(command, sizeof(command), "ls -A %s | wc -l", dir);
	f = popen(command, "r");
	if (!f || fscanf(f, "%d", &n) != 1)
		die(command);
	pclose(f);
	return n;
}

static bool holds(const char *path, const char *text)
{
	char got[64] = { 0 };
	int fd = open(path, O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, got, sizeof(got) - 1);

	fd_close(fd);
	return n >= 0 && strcmp(got, text) == 0;
}

static void map_path(const struct target *t, char *path, size_t size)
{
	snprintf(path, size, "/proc/%d/root/tmp/perf-%d.map", t->pid, t->p->inner_pid);
}

static void test_publish_plain(void)
{
	struct target t = start_target(
		&(struct start){ .spec = "uid=1000,none", .unshare = CLONE_NEWNS | CLONE_NEWPID });
	struct proc_map *m = NULL;
	char path[64], dir[64];
	mode_t mask = umask(0777);
	struct stat st;

	map_path(&t, path, sizeof(path));
	snprintf(dir, sizeof(dir), "/proc/%d/root/tmp", t.pid);
	CHECK_CODE(proc_map_open(t.p, PROC_MAP_TARGET, &m), 0);
	CHECK(strcmp(proc_map_path(m), path) == 0);
	CHECK_CODE(proc_map_check(m), PROC_E_GONE);
	CHECK_CODE(proc_map_begin(m), 0);
	CHECK_CODE(proc_map_append(m, "1 1 a\n", 6), 0);
	CHECK(stat(path, &st) < 0);
	CHECK_CODE(proc_map_publish(m), 0);
	umask(mask);
	CHECK(holds(path, "1 1 a\n"));
	CHECK(stat(path, &st) == 0 && st.st_uid == 0 && st.st_gid == 0 &&
	      (st.st_mode & 07777) == 0644 && st.st_nlink == 1);
	CHECK_CODE(proc_map_check(m), 0);
	CHECK_CODE(publish(m, "2 2 b\n"), 0);
	CHECK(holds(path, "2 2 b\n"));
	/* dropped in the making: the old one stays */
	CHECK_CODE(proc_map_begin(m), 0);
	CHECK_CODE(proc_map_append(m, "3 3 c\n", 6), 0);
	proc_map_abort(m);
	CHECK(holds(path, "2 2 b\n"));
	CHECK_CODE(proc_map_check(m), 0);
	/* vanished: made again */
	CHECK(unlink(path) == 0);
	CHECK_CODE(proc_map_check(m), PROC_E_GONE);
	CHECK_CODE(publish(m, "4 4 d\n"), 0);
	CHECK(holds(path, "4 4 d\n"));
	proc_map_close(m);
	/* a later run of ours takes it over */
	CHECK_CODE(publish_once(t.p, PROC_MAP_TARGET, "5 5 e\n"), 0);
	CHECK(holds(path, "5 5 e\n"));
	CHECK(count_entries(dir) == 1);
	stop_target(&t);
}

/* File systems that know no O_TMPFILE are rare here; seccomp makes them all be so. */
static void forbid_tmpfile(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TMPFILE & ~O_DIRECTORY, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { ARRAY_SIZE(filter), filter };

	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
}

static void test_publish_full(void);

static void test_publish_no_tmpfile(void)
{
	pid_t pid;
	int status;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		n_failed = 0;
		forbid_tmpfile();
		CHECK(open("/tmp", O_TMPFILE | O_WRONLY, 0600) < 0 && errno == EOPNOTSUPP);
		test_publish_plain();
		test_publish_full();
		fflush(stdout);
		_exit(n_failed ? 1 : 0);
	}
	waitpid(pid, &status, 0);
	CHECK(status == 0);
}

/* What the target does with its /tmp before we come. */

static const char *own_map(void)
{
	static char path[64];

	snprintf(path, sizeof(path), "/tmp/perf-%d.map", getpid());
	return path;
}

static void plant_link(void)
{
	MUST(symlink("/proc-attack-root-file", own_map()));
}

static void plant_dangling(void)
{
	MUST(symlink("/nowhere/at/all", own_map()));
}

static void plant_directory(void)
{
	MUST(mkdir(own_map(), 0755));
}

static void plant_fifo(void)
{
	MUST(mkfifo(own_map(), 0666));
}

static void plant_socket(void)
{
	bind_path(socket(AF_UNIX, SOCK_STREAM, 0), own_map());
}

static void plant_hard_link(void)
{
	int fd = open("/tmp/secret", O_CREAT | O_WRONLY, 0600);

	MUST(write(fd, "secret", 6));
	close(fd);
	MUST(link("/tmp/secret", own_map()));
}

static void plant_foreign(void)
{
	int fd = open(own_map(), O_CREAT | O_WRONLY, 0644);

	MUST(fchown(fd, OTHER, OTHER));
	close(fd);
}

static void plant_tmp_link(void)
{
	make_root();
	MUST(mkdir("/mnt/tmp-real", 0777));
	MUST(chmod("/mnt/tmp-real", 01777));
	MUST(symlink("tmp-real", "/mnt/tmp"));
	enter_root();
}

/* root's own directory under the name /tmp: what a user and mount namespace make possible */
static void plant_bind(void)
{
	MUST(mkdir("/tmp/like-etc", 0755));
	MUST(mount("/tmp/like-etc", "/tmp", NULL, MS_BIND, NULL));
}

static void plant_nothing(void)
{
	make_root();
	enter_root();
}

static void plant_read_only(void)
{
	MUST(mount("tmpfs", "/tmp", "tmpfs", MS_REMOUNT | MS_RDONLY, NULL));
}

static const struct {
	const char *what;
	void (*prepare)(void);
	int code;
} plants[] = {
	{ "link", plant_link, PROC_E_FOREIGN_FILE },
	{ "dangling link", plant_dangling, PROC_E_FOREIGN_FILE },
	{ "directory", plant_directory, PROC_E_FOREIGN_FILE },
	{ "fifo", plant_fifo, PROC_E_FOREIGN_FILE },
	{ "socket", plant_socket, PROC_E_FOREIGN_FILE },
	{ "hard link", plant_hard_link, PROC_E_FOREIGN_FILE },
	{ "foreign file", plant_foreign, PROC_E_FOREIGN_FILE },
	{ "/tmp a link", plant_tmp_link, PROC_E_FOREIGN_FILE },
	{ "/tmp not the target's", plant_bind, PROC_E_FOREIGN_FILE },
	{ "no /tmp", plant_nothing, PROC_E_READ_ONLY },
	{ "read-only", plant_read_only, PROC_E_READ_ONLY },
};

static void test_publish_planted(void)
{
	static const char *const knobs[] = { "protected_regular", "protected_symlinks",
					     "protected_fifos", "protected_hardlinks" };
	int saved[ARRAY_SIZE(knobs)], value;
	size_t i, k;

	for (k = 0; k < ARRAY_SIZE(knobs); k++)
		saved[k] = sysctl_get(knobs[k]);
	for (value = 0; value <= 2; value++) {
		for (k = 0; k < ARRAY_SIZE(knobs); k++)
			sysctl_set(knobs[k], k % 2 ? MIN(value, 1) : value);
		for (i = 0; i < ARRAY_SIZE(plants); i++) {
			struct target t =
				start_target(&(struct start){ .spec = "uid=1000,none",
							      .unshare = CLONE_NEWNS,
							      .prepare = plants[i].prepare });
			struct stat before, after;
			char path[64];
			int r;

			map_path(&t, path, sizeof(path));
			memset(&before, 0, sizeof(before));
			memset(&after, 0, sizeof(after));
			lstat(path, &before);
			r = publish_once(t.p, PROC_MAP_TARGET, "1 1 x\n");
			if (r != plants[i].code)
				printf("     %s: %d\n", plants[i].what, r);
			CHECK(r == plants[i].code);
			lstat(path, &after);
			CHECK(before.st_ino == after.st_ino && before.st_nlink == after.st_nlink &&
			      before.st_size == after.st_size);
			stop_target(&t);
		}
		/* and nothing stands in the way of the good case */
		test_publish_plain();
	}
	for (k = 0; k < ARRAY_SIZE(knobs); k++)
		sysctl_set(knobs[k], saved[k]);
}

static void test_publish_full(void)
{
	struct target t = start_target(&(struct start){
		.spec = "none", .unshare = CLONE_NEWNS, .tmpfs = "mode=1777,size=256k" });
	static char big[100 * 1024];
	struct proc_map *m = NULL;
	char path[64], dir[64];
	struct stat st;
	int r, i;

	snprintf(dir, sizeof(dir), "/proc/%d/root/tmp", t.pid);
	memset(big, 'x', sizeof(big));
	map_path(&t, path, sizeof(path));
	CHECK_CODE(proc_map_open(t.p, PROC_MAP_TARGET, &m), 0);
	CHECK_CODE(publish(m, "1 1 small\n"), 0);
	for (i = 0; i < 3; i++) {
		int k;

		CHECK_CODE(proc_map_begin(m), 0);
		for (k = 0, r = 0; k < 10 && r == 0; k++)
			r = proc_map_append(m, big, sizeof(big));
		CHECK_CODE(r, PROC_E_NO_SPACE);
		CHECK_CODE(proc_map_append(m, big, sizeof(big)), PROC_E_NO_SPACE);
		CHECK_CODE(proc_map_publish(m), PROC_E_NO_SPACE);
		CHECK(holds(path, "1 1 small\n"));
		CHECK(count_entries(dir) == 1);
	}
	/* the failed one gave its space back */
	CHECK_CODE(proc_map_begin(m), 0);
	CHECK_CODE(proc_map_append(m, big, sizeof(big)), 0);
	CHECK_CODE(proc_map_publish(m), 0);
	CHECK(stat(path, &st) == 0 && st.st_size == sizeof(big));
	CHECK_CODE(proc_map_check(m), 0);
	proc_map_close(m);
	stop_target(&t);
}

static void test_publish_taken_over(void)
{
	struct target t = start_target(&(struct start){ .spec = "none", .unshare = CLONE_NEWNS });
	struct proc_map *m = NULL;
	char path[64];
	int fd;

	map_path(&t, path, sizeof(path));
	CHECK_CODE(proc_map_open(t.p, PROC_MAP_TARGET, &m), 0);
	CHECK_CODE(publish(m, "1 1 a\n"), 0);
	/* a runtime that runs as root empties our file and writes its own */
	usleep(20000);
	fd = open(path, O_WRONLY | O_TRUNC);
	MUST(write(fd, "9 9 r\n", 6));
	close(fd);
	CHECK_CODE(proc_map_check(m), PROC_E_FOREIGN_FILE);
	proc_map_remove(m);
	CHECK(holds(path, "9 9 r\n"));
	proc_map_close(m);

	unlink(path);
	CHECK_CODE(proc_map_open(t.p, PROC_MAP_TARGET, &m), 0);
	CHECK_CODE(publish(m, "1 1 a\n"), 0);
	/* ours is gone and another stands there, even one of root's */
	unlink(path);
	usleep(20000);
	fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644);
	close(fd);
	CHECK_CODE(proc_map_check(m), PROC_E_FOREIGN_FILE);
	CHECK_CODE(publish(m, "2 2 b\n"), PROC_E_FOREIGN_FILE);
	CHECK(holds(path, ""));
	proc_map_close(m);
	stop_target(&t);
}

static void test_publish_places(void)
{
	struct proc_map *target = NULL, *outer = NULL, *host = NULL, *other = NULL;
	struct target t, u;
	struct stat st;
	char path[64];

	/* our own namespaces: one file */
	t = start_target(&(struct start){ .spec = "none" });
	CHECK_CODE(proc_map_open(t.p, PROC_MAP_TARGET, &target), 0);
	CHECK_CODE(proc_map_open(t.p, PROC_MAP_TARGET_OUTER, &outer), PROC_E_SAME_PLACE);
	CHECK_CODE(proc_map_open(t.p, PROC_MAP_HOST, &host), PROC_E_SAME_PLACE);
	proc_map_close(target);
	CHECK_CODE(proc_map_open(t.p, PROC_MAP_HOST, &host), 0);
	CHECK_CODE(proc_map_open(t.p, PROC_MAP_TARGET, &target), PROC_E_SAME_PLACE);
	CHECK_CODE(publish(host, "1 1 x\n"), 0);
	snprintf(path, sizeof(path), "/tmp/perf-%d.map", t.pid);
	CHECK(holds(path, "1 1 x\n"));
	proc_map_remove(host);
	CHECK(access(path, F_OK) < 0);
	proc_map_close(host);
	stop_target(&t);

	/* a container: three */
	t = start_target(&(struct start){ .spec = "none", .unshare = CLONE_NEWNS | CLONE_NEWPID });
	CHECK_CODE(proc_map_open(t.p, PROC_MAP_TARGET, &target), 0);
	CHECK_CODE(proc_map_open(t.p, PROC_MAP_TARGET_OUTER, &outer), 0);
	CHECK_CODE(proc_map_open(t.p, PROC_MAP_HOST, &host), 0);
	CHECK_CODE(publish(target, "1 1 t\n"), 0);
	CHECK_CODE(publish(outer, "1 1 o\n"), 0);
	CHECK_CODE(publish(host, "1 1 h\n"), 0);
	snprintf(path, sizeof(path), "/proc/%d/root/tmp/perf-1.map", t.pid);
	CHECK(holds(path, "1 1 t\n"));
	snprintf(path, sizeof(path), "/proc/%d/root/tmp/perf-%d.map", t.pid, t.pid);
	CHECK(holds(path, "1 1 o\n"));
	/* the namespace dies: the held directory can still be written, and cleaned */
	kill(t.pid, SIGKILL);
	kill_wait(t.keeper);
	CHECK_CODE(publish(target, "2 2 t\n"), 0);
	CHECK_CODE(proc_map_check(target), 0);
	proc_map_remove(target);
	snprintf(path, sizeof(path), "/tmp/perf-%d.map", t.pid);
	CHECK(stat(path, &st) == 0);
	proc_map_remove(host);
	CHECK(stat(path, &st) < 0);
	proc_map_close(target);
	proc_map_close(outer);
	proc_map_close(host);
	proc_close(t.p);

	/* two containers with one /tmp, both have a process 1: one writer */
	t = start_target(&(struct start){ .spec = "none", .unshare = CLONE_NEWPID });
	u = start_target(&(struct start){ .spec = "none", .unshare = CLONE_NEWPID });
	CHECK_CODE(proc_map_open(t.p, PROC_MAP_TARGET, &target), 0);
	CHECK_CODE(proc_map_open(u.p, PROC_MAP_TARGET, &other), PROC_E_FOREIGN_FILE);
	proc_map_close(target);
	stop_target(&t);
	stop_target(&u);
}

/* A process inside has the number by which we know the target from outside. */
static void test_publish_number_taken(void)
{
	struct target t;
	struct proc_map *m = NULL;
	char path[64];
	int fd, status;
	pid_t pid;

	t = start_target(&(struct start){ .spec = "none", .unshare = CLONE_NEWNS | CLONE_NEWPID });
	snprintf(path, sizeof(path), "/proc/%d/ns/pid", t.pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	pid = fork();
	if (pid == 0) {
		char last[16];
		pid_t inner;

		MUST(setns(fd, CLONE_NEWPID));
		inner = fork();
		if (inner == 0) {
			/* in there now: the next child gets the number */
			int last_fd = open("/proc/sys/kernel/ns_last_pid", O_WRONLY);

			snprintf(last, sizeof(last), "%d", t.pid - 1);
			if (last_fd < 0 || write(last_fd, last, strlen(last)) < 0)
				_exit(3);
			inner = fork();
			if (inner == 0) {
				sleep(1);
				_exit(0);
			}
			usleep(300000);
			_exit(inner == t.pid ? 0 : 3);
		}
		usleep(150000);
		status = proc_map_open(t.p, PROC_MAP_TARGET_OUTER, &m);
		waitpid(inner, &fd, 0);
		_exit(WEXITSTATUS(fd) == 3 ? 3 : status == PROC_E_FOREIGN_FILE ? 0 : 1);
	}
	waitpid(pid, &status, 0);
	if (WEXITSTATUS(status) == 3)
		skip("cannot choose a pid");
	else
		CHECK(status == 0);
	close(fd);
	stop_target(&t);
}

/* Another instance on this machine may be looking at the same record just now: then it is kept. */
static bool swept(const char *path)
{
	int i;

	for (i = 0; i < 40 && access(path, F_OK) == 0; i++) {
		if (proc_maps_sweep() < 0)
			return false;
		usleep(25000);
	}
	return access(path, F_OK) < 0;
}

static void test_sweep(void)
{
	struct target t = start_target(&(struct start){ .spec = "none" });
	struct target u = start_target(&(struct start){ .spec = "none" });
	struct target v = start_target(&(struct start){ .spec = "none" });
	char path[3][64], lock[64];
	int lock_fd = -1, fd;
	pid_t holder;

	snprintf(path[0], sizeof(path[0]), "/tmp/perf-%d.map", t.pid);
	snprintf(path[1], sizeof(path[1]), "/tmp/perf-%d.map", u.pid);
	snprintf(path[2], sizeof(path[2]), "/tmp/perf-%d.map", v.pid);
	/* no counts: other instances on this machine may sweep as well */
	snprintf(lock, sizeof(lock), "/run/clrsym/%d-%llu.lock", t.pid,
		 (unsigned long long)t.p->start);
	CHECK_CODE(proc_lock(t.p, &lock_fd, &holder), 0);
	CHECK(access(lock, F_OK) == 0);
	CHECK_CODE(publish_once(t.p, PROC_MAP_HOST, "1 1 x\n"), 0);
	CHECK_CODE(publish_once(u.p, PROC_MAP_HOST, "1 1 x\n"), 0);
	CHECK_CODE(publish_once(v.p, PROC_MAP_HOST, "1 1 x\n"), 0);
	CHECK(proc_maps_sweep() >= 0);
	stop_target(&t);
	/* the keeper of t is still there */
	CHECK(proc_maps_sweep() >= 0);
	CHECK(access(path[0], F_OK) == 0);
	stop_target(&v);
	close(lock_fd); /* and crashes */
	/* somebody made another file of v's name since: on ext4 it gets the same inode */
	unlink(path[2]);
	usleep(20000);
	fd = open(path[2], O_CREAT | O_EXCL | O_WRONLY, 0644);
	close(fd);
	CHECK(swept(path[0]));
	CHECK(access(path[1], F_OK) == 0);
	CHECK(access(path[2], F_OK) == 0);
	unlink(path[2]);
	stop_target(&u);
	CHECK(swept(path[1]));
	CHECK(access(lock, F_OK) < 0);
}

static void test_own_perf_map(void)
{
	struct target t;
	bool yes;

	t = start_target(&(struct start){ .spec = "none", .env = "DOTNET_PerfMapEnabled=1" });
	CHECK(proc_own_perf_map(t.p, &yes) == 0 && yes);
	stop_target(&t);
	t = start_target(&(struct start){ .spec = "none", .env = "COMPlus_PerfMapEnabled=3" });
	CHECK(proc_own_perf_map(t.p, &yes) == 0 && yes);
	stop_target(&t);
	t = start_target(&(struct start){ .spec = "none", .env = "DOTNET_PerfMapEnabled=2" });
	CHECK(proc_own_perf_map(t.p, &yes) == 0 && !yes);
	stop_target(&t);
	t = start_target(&(struct start){ .spec = "none" });
	CHECK(proc_own_perf_map(t.p, &yes) == 0 && !yes);
	stop_target(&t);
}

static void open_map_for_writing(void)
{
	/* stays open over the exec; low numbers are taken by the harness */
	MUST(fcntl(open(own_map(), O_CREAT | O_WRONLY, 0644), F_DUPFD, 10));
}

static void open_map_for_reading(void)
{
	int fd = open(own_map(), O_CREAT | O_WRONLY, 0644);

	close(fd);
	MUST(fcntl(open(own_map(), O_RDONLY), F_DUPFD, 10));
}

static void test_own_perf_map_fd(void)
{
	struct target t;
	bool yes;

	t = start_target(&(struct start){ .spec = "none",
					  .unshare = CLONE_NEWNS | CLONE_NEWPID,
					  .prepare = open_map_for_writing });
	CHECK(proc_own_perf_map(t.p, &yes) == 0 && yes);
	stop_target(&t);
	t = start_target(&(struct start){
		.spec = "none", .unshare = CLONE_NEWNS, .prepare = open_map_for_reading });
	CHECK(proc_own_perf_map(t.p, &yes) == 0 && !yes);
	stop_target(&t);
}

/* -- Files below the root -------------------------------------------------------------- */

static void prepare_files(void)
{
	int fd;

	fd = open("/tmp/private", O_CREAT | O_WRONLY, 0600);
	MUST(write(fd, "p", 1));
	close(fd);
	fd = open("/tmp/open", O_CREAT | O_WRONLY, 0644);
	MUST(write(fd, "o", 1));
	close(fd);
	fd = open("/tmp/own", O_CREAT | O_WRONLY, 0400);
	MUST(write(fd, "w", 1));
	MUST(fchown(fd, USER, USER));
	close(fd);
	MUST(mkdir("/tmp/closed", 0700));
	fd = open("/tmp/closed/file", O_CREAT | O_WRONLY, 0644);
	MUST(write(fd, "c", 1));
	close(fd);
	MUST(mkfifo("/tmp/fifo", 0666));
	MUST(symlink("/tmp/open", "/tmp/absolute"));
	MUST(symlink("../../../../tmp/open", "/tmp/dots"));
	MUST(symlink("/tmp/fifo", "/tmp/to-fifo"));
	MUST(symlink("/proc/self/root/etc/passwd", "/tmp/magic"));
	MUST(symlink("loop", "/tmp/loop"));
}

static void test_files(void)
{
	static const struct {
		const char *path;
		int code;
	} files[] = {
		{ "/tmp/open", 0 },
		{ "tmp/open", 0 },
		{ "/tmp/own", 0 },
		{ "/tmp/absolute", 0 },
		{ "/tmp/dots", 0 },
		{ "/../../tmp/open", 0 },
		{ "/tmp/private", PROC_E_DENIED },
		{ "/tmp/closed/file", PROC_E_DENIED },
		{ "/tmp/fifo", PROC_E_DENIED },
		{ "/tmp/to-fifo", PROC_E_DENIED },
		{ "/tmp", PROC_E_DENIED },
		{ "/tmp/magic", PROC_E_DENIED },
		{ "/tmp/loop", PROC_E_DENIED },
		{ "/tmp/none", PROC_E_NO_FILE },
		{ "/tmp/open/x", PROC_E_NO_FILE },
		{ "", PROC_E_NO_FILE },
		{ "/dev/zero", PROC_E_DENIED },
		{ "/proc/kmsg", PROC_E_DENIED },
		{ "/proc/self/status", PROC_E_DENIED },
		{ "/sys/kernel/mm/transparent_hugepage/enabled", PROC_E_DENIED },
	};
	struct target t = start_target(&(struct start){
		.spec = "none,uid=1000", .unshare = CLONE_NEWNS, .prepare = prepare_files });
	size_t i;
	int fd, r;

	for (i = 0; i < ARRAY_SIZE(files); i++) {
		fd = -1;
		r = proc_open_file_below_root(t.p, files[i].path, &fd);
		if (r != files[i].code)
			printf("     %s: %d\n", files[i].path, r);
		CHECK(r == files[i].code);
		fd_close(fd);
	}
	CHECK(geteuid() == 0 && access("/root", W_OK) == 0);
	CHECK(access("/etc/shadow", R_OK) == 0);
	stop_target(&t);
}

/* -- As a user ------------------------------------------------------------------------- */

/* Runs fn as USER; its failures come back as the exit status. */
static void as_user(void (*fn)(pid_t), pid_t arg)
{
	pid_t pid;
	int status;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		n_failed = 0;
		become(USER);
		prctl(PR_SET_DUMPABLE, 1);
		fn(arg);
		fflush(stdout);
		_exit(n_failed ? 1 : 0);
	}
	waitpid(pid, &status, 0);
	CHECK(status == 0);
}

static void user_meets_own(pid_t pid)
{
	struct proc *p = NULL;
	struct proc_map *m = NULL;
	int fd = -1, lock_fd = -1, other = -1;
	struct stat st;
	pid_t holder;
	char path[64];

	unsetenv("XDG_RUNTIME_DIR");
	CHECK_CODE(proc_open(pid, &p), 0);
	CHECK_CODE(proc_connect_socket(p, NULL, &fd, NULL), 0);
	CHECK_CODE(proc_lock(p, &lock_fd, &holder), 0);
	CHECK_CODE(proc_lock(p, &other, &holder), PROC_E_LOCKED);
	CHECK(stat("/tmp/clrsym-1000", &st) == 0 && (st.st_mode & 07777) == 0700);
	CHECK_CODE(proc_map_open(p, PROC_MAP_HOST, &m), 0);
	if (m) {
		CHECK_CODE(publish(m, "1 1 x\n"), 0);
		snprintf(path, sizeof(path), "/tmp/perf-%d.map", pid);
		CHECK(stat(path, &st) == 0 && st.st_uid == USER);
		proc_map_remove(m);
		proc_map_close(m);
	}
	proc_unlock(p, lock_fd);
	proc_close(p);
}

static void user_meets_foreign(pid_t pid)
{
	struct proc *p = NULL;
	struct proc_map *m = NULL;
	enum proc_dotnet kind;
	int fd = -1, r;

	CHECK_CODE(proc_open(pid, &p), 0);
	CHECK(!p->same_mount_ns && !p->same_pid_ns);
	r = proc_connect_socket(p, NULL, &fd, NULL);
	CHECK_CODE(r, PROC_E_DENIED);
	printf("     %s\n", proc_error_text(p, r, NULL));
	CHECK_CODE(proc_open_mem(p, &fd), PROC_E_DENIED);
	CHECK_CODE(proc_detect_dotnet(p, &kind), PROC_E_DENIED);
	CHECK_CODE(proc_map_open(p, PROC_MAP_TARGET, &m), PROC_E_DENIED);
	proc_close(p);
}

/* /tmp/clrsym-1000 is there already, and it is not ours, or open, or a link */
static void user_is_expected(pid_t pid)
{
	struct proc *p = NULL;
	int fd = -1;
	pid_t holder;

	unsetenv("XDG_RUNTIME_DIR");
	CHECK_CODE(proc_open(pid, &p), 0);
	CHECK_CODE(proc_lock(p, &fd, &holder), PROC_E_NO_STATE);
	proc_close(p);
}

static void test_user(void)
{
	struct target own = start_target(&(struct start){ .spec = "uid=1000" });
	struct target foreign = start_target(&(struct start){ 0 });
	struct target other = start_target(&(struct start){ .spec = "uid=1001" });

	MUST(system("rm -rf /tmp/clrsym-1000"));
	as_user(user_meets_own, own.pid);
	as_user(user_meets_foreign, foreign.pid);
	as_user(user_meets_foreign, other.pid);
	MUST(system("rm -rf /tmp/clrsym-1000; mkdir -m 0700 /tmp/clrsym-1000"));
	as_user(user_is_expected, own.pid);
	MUST(system("chown 1000 /tmp/clrsym-1000; chmod 0770 /tmp/clrsym-1000"));
	as_user(user_is_expected, own.pid);
	MUST(system("rmdir /tmp/clrsym-1000; mkdir -m 0700 /tmp/proc-attack-x;"
		    "chown 1000 /tmp/proc-attack-x; ln -s proc-attack-x /tmp/clrsym-1000"));
	as_user(user_is_expected, own.pid);
	MUST(system("rm -rf /tmp/clrsym-1000 /tmp/proc-attack-x"));
	stop_target(&own);
	stop_target(&foreign);
	stop_target(&other);
}

/* -- Running --------------------------------------------------------------------------- */

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "socket_plain", test_socket_plain },
	{ "socket_dropped_root", test_socket_dropped_root },
	{ "socket_none", test_socket_none },
	{ "socket_loose", test_socket_loose },
	{ "socket_spoofed", test_socket_spoofed },
	{ "socket_stale", test_socket_stale },
	{ "socket_deleted", test_socket_deleted },
	{ "socket_busy", test_socket_busy },
	{ "tmpdir", test_tmpdir },
	{ "namespaces", test_namespaces },
	{ "time_namespace", test_time_namespace },
	{ "user_namespace", test_user_namespace },
	{ "publish_plain", test_publish_plain },
	{ "publish_no_tmpfile", test_publish_no_tmpfile },
	{ "publish_planted", test_publish_planted },
	{ "publish_full", test_publish_full },
	{ "publish_taken_over", test_publish_taken_over },
	{ "publish_places", test_publish_places },
	{ "publish_number_taken", test_publish_number_taken },
	{ "sweep", test_sweep },
	{ "own_perf_map", test_own_perf_map },
	{ "own_perf_map_fd", test_own_perf_map_fd },
	{ "files", test_files },
	{ "user", test_user },
};

static int probe(pid_t pid)
{
	struct proc_socket_report report = { 0 };
	struct proc *p = NULL;
	enum proc_dotnet kind = PROC_NOT_DOTNET;
	uint64_t id = 0;
	bool own = false;
	int fd = -1, r;

	r = proc_open(pid, &p);
	if (r) {
		printf("open: %s\n", proc_error_text(NULL, r, NULL));
		return 1;
	}
	proc_detect_dotnet(p, &kind);
	proc_exec_id(p, &id);
	proc_own_perf_map(p, &own);
	printf("%s inner %d start %llu kind %d exec %llx own map %d rss %llu room %llu\n", p->comm,
	       p->inner_pid, (unsigned long long)p->start, kind, (unsigned long long)id, own,
	       (unsigned long long)proc_rss(p), (unsigned long long)proc_memory_room(p));
	r = proc_connect_socket(p, NULL, &fd, &report);
	printf("connect: %d %s (peer %d, stale %u) %s\n", r, report.path, report.peer_pid,
	       report.stale, r ? proc_error_text(p, r, &report) : "");
	proc_close(p);
	return r != 0;
}

int main(int argc, char **argv)
{
	size_t i;
	int k;

	if (argc == 3 && strcmp(argv[1], "target") == 0)
		return target_main(argv[2]);
	if (argc == 3 && strcmp(argv[1], "probe") == 0)
		return probe(atoi(argv[2]));
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (geteuid() != 0) {
		printf("SKIP proc-attack: not root\n");
		return 77;
	}
	MUST(system("rm -rf /tmp/proc-attack-dir /tmp/proc-attack-link; mkdir -p /run/clrsym"));
	for (i = 0; i < ARRAY_SIZE(tests); i++) {
		bool wanted = argc == 1;

		for (k = 1; k < argc; k++)
			wanted |= strcmp(argv[k], tests[i].name) == 0;
		if (!wanted)
			continue;
		current = tests[i].name;
		make_dir();
		printf("RUN  %s\n", current);
		tests[i].run();
	}
	MUST(system("rm -rf /tmp/proc-attack-*"));
	printf("proc-attack: %u checks, %u failed, %u skipped\n", n_checks, n_failed, n_skipped);
	return n_failed ? 1 : 0;
}
