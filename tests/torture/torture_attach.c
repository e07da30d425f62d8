/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each allocation of a whole attach fails in turn: IPC, both sessions, the decoders, the code map
 * with its IL maps, and the perf map. The target is one fake runtime, which lives through it all.
 * A run ends in success or in a clean failure, in time, and leaves no fd behind; nothing leaks (the
 * sanitizer build tells).
 *
 * Where there are thousands of allocations only each k-th is tried past the first ones.
 *
 * Runs differ a little (how the stream is cut into reads is the kernel's choice), so an allocation
 * is known by its number only: the last n is the first that no run reaches any more.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "target/perfmap.h"
#include "target/target.h"

void torture_arm(unsigned long n);
unsigned long torture_count(void);

#define RUN_DEADLINE_S 10u
/* The first allocations are all different; later ones are tables that grow and names that come. */
#define ALL_BELOW  300u
#define RUNS_AFTER 400u

struct run {
	struct loop *loop;
	struct pool pool;
	struct proc *proc; /* until the target has it */
	struct perfmap *perfmap;
	struct target *target;
	bool complete, ended;
	int result; /* of the last step: 0, -errno or a code */
};

static unsigned long current, counted;
static pid_t runtime;
static char dir[] = "/tmp/torture-attach-XXXXXX";

static void clean_up(void)
{
	if (runtime) {
		kill(runtime, SIGTERM);
		waitpid(runtime, NULL, 0);
		runtime = 0;
	}
	rmdir(dir);
}

static NORETURN void fail(const char *what)
{
	fprintf(stderr, "torture_attach: allocation %lu: %s\n", current, what);
	clean_up();
	exit(EXIT_FAILURE);
}

static void on_alarm(int number UNUSED)
{
	static const char text[] = "torture_attach: a run hangs\n";

	if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		_exit(EXIT_FAILURE);
	kill(runtime, SIGTERM);
	abort(); /* with a core, and a stack under the sanitizer */
}

static size_t count_fds(void)
{
	DIR *fds = opendir("/proc/self/fd");
	size_t n = 0;

	while (fds && readdir(fds))
		n++;
	if (fds)
		closedir(fds);
	return n;
}

/* -- The fake runtime ------------------------------------------------------------------- */

static void start_runtime(const char *self, const char *rundown, const char *live)
{
	_cleanup_free_ char *path = NULL;
	const char *slash = strrchr(self, '/');
	char line[64] = "";
	int out[2];
	FILE *f;

	if (asprintf(&path, "%.*sfakert", slash ? (int)(slash - self + 1) : 0, self) < 0 ||
	    pipe2(out, O_CLOEXEC) < 0 || !mkdtemp(dir))
		fail("cannot make what the fake runtime needs");
	runtime = fork();
	if (runtime == 0) {
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		setenv("TMPDIR", dir, 1);
		dup2(out[1], STDOUT_FILENO);
		execlp(path, path, "--version", "10.0.15", "--maps-coreclr", "--rundown", rundown,
		       "--live", live, (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	f = fdopen(out[0], "r");
	if (runtime < 0 || !f || !fgets(line, sizeof(line), f) || strncmp(line, "ready", 5) != 0)
		fail("the fake runtime does not start");
	fclose(f);
}

/* -- One run ---------------------------------------------------------------------------- */

static void on_changed(struct target *target, void *data)
{
	struct run *run = data;

	if (run->complete)
		perfmap_changed(run->perfmap, target_map(target));
}

static void on_written(struct perfmap *pm UNUSED, int result, void *data)
{
	struct run *run = data;

	run->result = result;
	target_stop(run->target, DEFAULT_STOP_DEADLINE_NS);
}

static void on_complete(struct target *target, void *data)
{
	struct run *run = data;

	run->complete = true;
	perfmap_write(run->perfmap, target_map(target), on_written, run);
}

/* The target goes at its end, as it does in the daemon. */
static void on_ended(struct target *target, enum target_end end, void *data)
{
	struct run *run = data;

	run->ended = true;
	if (end == TARGET_FAILED) {
		if (!*target_end_text(target))
			fail("a failure without a reason");
		run->result = -ENOMEM;
	} else if (end != TARGET_STOPPED) {
		fail("the target did not end as asked");
	}
	perfmap_free(TAKE_PTR(run->perfmap));
	target_free(TAKE_PTR(run->target));
	loop_stop(run->loop, 0);
}

static int run_begin(struct run *run)
{
	static const struct target_callbacks callbacks = {
		.changed = on_changed,
		.complete = on_complete,
		.ended = on_ended,
	};
	static const struct perfmap_options map_opts = { .where = PERFMAP_HOST };
	static const struct target_options opts = { .il_maps = true, .once = true };
	int r;

	r = loop_new(&run->loop);
	if (r)
		return r;
	run->pool.loop = run->loop;
	r = proc_open(runtime, &run->proc);
	if (r)
		return r;
	r = perfmap_new(&run->perfmap, run->loop, run->proc, &map_opts);
	if (r)
		return r;
	r = target_new(&run->target, &run->pool, run->proc, &opts, &callbacks, run);
	if (r)
		return r;
	run->proc = NULL;
	return target_start(run->target);
}

/* Attach, rundown, perf map, stop. Returns true when allocation n was reached. */
static bool run_once(unsigned long n)
{
	struct run run = { 0 };
	bool reached;
	int r;

	current = n;
	alarm(RUN_DEADLINE_S);
	torture_arm(n);
	r = run_begin(&run);
	if (!r && !run.ended)
		r = loop_run(run.loop);
	counted = torture_count();
	reached = n && counted >= n;
	torture_arm(0);
	alarm(0);
	if (!r)
		r = run.result;
	if (!r && !run.complete)
		fail("a success that is none");
	if (r && !reached)
		fail("fails without a reason");
	if (run.perfmap)
		perfmap_remove(run.perfmap);
	perfmap_free(run.perfmap);
	target_free(run.target);
	proc_close(run.proc);
	if (run.pool.n_rundowns || run.pool.waiting || run.pool.backlog)
		fail("the pool is not empty");
	loop_free(run.loop);
	return reached;
}

int main(int argc UNUSED, char **argv)
{
	const char *fixtures = getenv("CLRSYM_FIXTURES");
	_cleanup_free_ char *rundown = NULL, *live = NULL, *map = NULL;
	unsigned long n = 0, n_allocations, step, n_failed = 0;
	size_t n_fds;

	if (asprintf(&rundown, "%s/10.0.15/rundown.nettrace",
		     fixtures ? fixtures : "build/fixtures") < 0 ||
	    asprintf(&live, "%s/10.0.15/live-collect5-filter.nettrace",
		     fixtures ? fixtures : "build/fixtures") < 0)
		return EXIT_FAILURE;
	if (access(rundown, R_OK) < 0 || access(live, R_OK) < 0) {
		printf("skipped: no fixtures\n");
		return EXIT_SUCCESS;
	}
	signal(SIGPIPE, SIG_IGN);
	signal(SIGALRM, on_alarm);
	log_init("torture_attach", LOG_ERROR);
	start_runtime(argv[0], rundown, live);
	if (asprintf(&map, "/tmp/perf-%d.map", (int)runtime) < 0)
		return EXIT_FAILURE;

	run_once(0); /* whatever is set up once */
	n_fds = count_fds();
	run_once(0);
	n_allocations = counted;
	step = n_allocations > ALL_BELOW ? (n_allocations - ALL_BELOW) / RUNS_AFTER + 1 : 1;
	for (n = 1;; n += n < ALL_BELOW ? 1 : step) {
		if (!run_once(n))
			break;
		n_failed++;
		if (count_fds() != n_fds)
			fail("an fd is left open");
		if (waitpid(runtime, NULL, WNOHANG) != 0)
			fail("the runtime has died");
	}
	unlink(map);
	clean_up();
	printf("torture_attach: %lu allocations failed in turn\n", n_failed);
	return EXIT_SUCCESS;
}
