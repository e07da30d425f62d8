/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clrsym map PID: attach, take the rundown, write the map, leave.
 *
 * The sessions are stopped before the map is written: stopping flushes what the runtime still
 * holds, so the map is complete to that moment.
 */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>

#include "base/caps.h"
#include "base/log.h"
#include "base/number.h"
#include "target/options.h"

struct map_run {
	struct loop *loop;
	struct pool pool;
	struct target *target;
	struct perfmap *perfmap;
	struct loop_fd signals;
	int signal_fd;
	bool complete, tty;
	uint64_t shown_mb; /* by the progress line; 0: none is there */
	int result;
};

static void progress_line(struct map_run *run)
{
	struct target_status status;

	if (!run->tty)
		return;
	target_get_status(run->target, &status);
	if (status.state != TARGET_RUNDOWN || status.rundown_bytes >> 20 == run->shown_mb)
		return;
	run->shown_mb = status.rundown_bytes >> 20;
	fprintf(stderr, "\rreading the rundown: %" PRIu64 " MB", run->shown_mb);
}

static void progress_end(struct map_run *run)
{
	if (run->shown_mb)
		fprintf(stderr, "\r\033[K");
	run->shown_mb = 0;
}

static void on_written(struct perfmap *pm UNUSED, int result, void *data)
{
	struct map_run *run = data;

	run->result = result;
	if (result)
		log_error("pid %d: no map was written: %s", (int)target_proc(run->target)->pid,
			  result < 0 ? strerror(-result)
				     : proc_error_text(target_proc(run->target), result, NULL));
	loop_stop(run->loop, 0);
}

static void on_complete(struct target *target, void *data)
{
	struct map_run *run = data;

	run->complete = true;
	target_stop(target, DEFAULT_RUNDOWN_DEADLINE_NS);
}

/* Why there is nothing to write, or NULL. */
static const char *why_not(const struct map_run *run, enum target_end end)
{
	struct codemap_stats stats;

	if (end == TARGET_FAILED)
		return target_end_text(run->target);
	if (end == TARGET_EXITED && !run->complete)
		return "the process has exited";
	if (!run->complete)
		return "interrupted: no map is written";
	codemap_get_stats(target_map(run->target), &stats);
	if (!stats.live)
		return "the runtime announced none of its code: no map is written";
	return NULL;
}

static void on_ended(struct target *target, enum target_end end, void *data)
{
	struct map_run *run = data;
	const char *why = why_not(run, end);

	progress_end(run);
	if (!why) {
		perfmap_write(run->perfmap, target_map(target), on_written, run);
		return;
	}
	log_error("pid %d: %s", (int)target_proc(target)->pid, why);
	run->result = -1;
	loop_stop(run->loop, 0);
}

static void on_changed(struct target *target UNUSED, void *data)
{
	progress_line(data);
}

static void on_signal(struct loop_fd *source, uint32_t events UNUSED)
{
	struct map_run *run = container_of(source, struct map_run, signals);
	struct signalfd_siginfo info;

	if (read(run->signal_fd, &info, sizeof(info)) != sizeof(info))
		return;
	target_stop(run->target, DEFAULT_STOP_DEADLINE_NS);
}

static void map_run_deinit(struct map_run *run)
{
	perfmap_free(run->perfmap);
	target_free(run->target);
	loop_fd_del(&run->signals);
	fd_close(run->signal_fd);
	loop_free(run->loop);
}

static int map_run(struct map_run *run, struct proc *proc, const struct target_options *opts)
{
	static const struct target_callbacks callbacks = {
		.changed = on_changed,
		.complete = on_complete,
		.ended = on_ended,
	};
	sigset_t mask;
	int r;

	r = target_new(&run->target, &run->pool, proc, opts, &callbacks, run);
	if (r < 0) {
		proc_close(proc);
		return r;
	}
	sigemptyset(&mask);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGTERM);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	run->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	if (run->signal_fd < 0)
		return -errno;
	r = loop_fd_add(run->loop, &run->signals, run->signal_fd, EPOLLIN, on_signal);
	if (r == 0)
		r = target_start(run->target);
	return r < 0 ? r : loop_run(run->loop);
}

static void help(void)
{
	printf("Usage: clrsym map [OPTION]... PID\n"
	       "Attaches to a .NET process, writes its perf map, and "
	       "leaves.\n\n" ATTACH_OPTIONS_HELP
	       "      --socket-path PATH      diagnostic socket, as the process sees it\n");
}

int cli_map(int argc, char **argv)
{
	enum { OPT_PATH = ATTACH_OPT_END };
	static const struct option options[] = {
		ATTACH_OPTIONS,
		{ "socket-path", required_argument, NULL, OPT_PATH },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	_cleanup_(map_run_deinit) struct map_run run = { .signal_fd = -1 };
	struct attach_options opts = { .target.once = true };
	struct perfmap_status status;
	struct proc *proc = NULL;
	pid_t pid, holder = 0;
	int c, r, lock_fd = -1;
	const char *path, *wrong;
	size_t i;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) >= 0) {
		switch (c) {
		case OPT_PATH: opts.target.socket.path = optarg; break;
		case 'h': help(); return cli_flush();
		case '?': return cli_usage_hint("map");
		default:
			wrong = attach_option_take(&opts, c, optarg);
			if (wrong)
				return cli_usage_error("map", "%s", wrong);
			break;
		}
	}
	if (opts.map.where == PERFMAP_OFF)
		return cli_usage_error("map", "--map off leaves nothing to do");
	if (argc - optind != 1 || !parse_pid(argv[optind], &pid))
		return cli_usage_error("map", "one PID");
	run.tty = isatty(STDERR_FILENO);
	proc_maps_sweep();
	r = proc_open(pid, &proc);
	if (r) {
		log_error("pid %d: %s", (int)pid,
			  r < 0 ? strerror(-r) : proc_error_text(NULL, r, NULL));
		return EXIT_FAILED;
	}
	r = loop_new(&run.loop);
	run.pool.loop = run.loop;
	if (r == 0)
		r = proc_lock(proc, &lock_fd, &holder);
	if (r == PROC_E_LOCKED) {
		log_error("pid %d: process %d (clrsym or clrsymd) keeps its map already", (int)pid,
			  (int)holder);
		proc_close(proc);
		return EXIT_FAILED;
	}
	if (r == 0)
		r = perfmap_new(&run.perfmap, run.loop, proc, &opts.map);
	if (r) {
		log_error("pid %d: no map can be kept: %s", (int)pid,
			  r < 0 ? strerror(-r) : proc_error_text(proc, r, NULL));
		proc_unlock(proc, lock_fd);
		proc_close(proc);
		return EXIT_FAILED;
	}
	r = map_run(&run, proc, &opts.target);
	if (r < 0)
		log_error("pid %d: %s", (int)pid, strerror(-r));
	else if (!run.result)
		for (i = 0; (path = perfmap_path(run.perfmap, i)); i++) {
			perfmap_get_status(run.perfmap, &status);
			printf("%s %zu methods\n", path, status.lines);
		}
	if (run.target)
		proc_unlock(proc, lock_fd);
	if (cli_flush() != EXIT_DONE || r < 0 || run.result)
		return EXIT_FAILED;
	return EXIT_DONE;
}
