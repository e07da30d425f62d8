/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clrsym map PID: the daemon that keeps the process's map is asked to write it now; where there is
 * none: attach, take the rundown, write the map, leave. A map that is written once needs no
 * lasting session, so a daemon that does not have the process is not made to attach.
 *
 * Our sessions are stopped before the map is written: stopping flushes what the runtime still
 * holds, so the map is complete to that moment.
 */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>

#include "base/caps.h"
#include "base/escape.h"
#include "base/log.h"
#include "cli/daemon.h"
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

/* -- by ourselves ------------------------------------------------------------------------- */

/* Lock, map files, target. Takes over proc. 0, or it has been said. */
static int map_attach(struct map_run *run, struct proc *proc, const struct attach_options *opts)
{
	struct perfmap_status status;
	const char *path;
	pid_t pid = proc->pid, holder = 0;
	int r, lock_fd = -1;
	size_t i;

	r = loop_new(&run->loop);
	run->pool.loop = run->loop;
	if (r == 0)
		r = proc_lock(proc, &lock_fd, &holder);
	if (r == PROC_E_LOCKED) {
		log_error("pid %d: process %d (clrsym or clrsymd) keeps its map already "
			  "(ask that one: --socket PATH)",
			  (int)pid, (int)holder);
		proc_close(proc);
		return -1;
	}
	if (r == 0)
		r = perfmap_new(&run->perfmap, run->loop, proc, &opts->map);
	if (r) {
		log_error("pid %d: no map can be kept: %s", (int)pid,
			  r < 0 ? strerror(-r) : proc_error_text(proc, r, NULL));
		proc_unlock(proc, lock_fd);
		proc_close(proc);
		return -1;
	}
	r = map_run(run, proc, &opts->target);
	if (r < 0)
		log_error("pid %d: %s", (int)pid, strerror(-r));
	else if (!run->result)
		for (i = 0; (path = perfmap_path(run->perfmap, i)); i++) {
			perfmap_get_status(run->perfmap, &status);
			printf("%s %zu methods\n", path, status.lines);
		}
	if (run->target)
		proc_unlock(proc, lock_fd);
	return r < 0 ? r : run->result;
}

/* -- by the daemon ------------------------------------------------------------------------ */

/* 0 with *hasp (and then its code is known), or an error of the client. */
static int daemon_has(struct query_client *client, const struct proc *proc, bool *hasp)
{
	_cleanup_free_ struct daemon_process *items = NULL;
	struct daemon_process found;
	bool known = true;
	size_t i, n = 0;
	int r;

	r = daemon_list(client, &items, &n);
	*hasp = false;
	for (i = 0; i < n; i++) {
		if (items[i].pid != proc->pid || items[i].start != proc->start || items[i].ended)
			continue;
		*hasp = true;
		known = items[i].known;
	}
	/* somebody else's attach is under way: this waits for it */
	return r || known ? r
			  : daemon_attach(client, proc->pid, CAP_QUERY_ATTACH_WAIT_MS / 1000,
					  CAP_QUERY_ATTACH_WAIT_MS, &found);
}

/* What it says that it wrote. Returns 0, or it has been said. */
static int print_files(json_t *reply, pid_t pid)
{
	json_t *files = json_object_get(reply, "files"), *file;
	json_int_t methods = json_integer_value(json_object_get(reply, "methods"));
	size_t i;

	if (!json_array_size(files)) {
		log_error("pid %d: clrsymd is attached to it, and keeps no map of it", (int)pid);
		return -1;
	}
	json_array_foreach(files, i, file)
	{
		const char *path = json_string_value(file);

		if (path)
			printf("%s %" JSON_INTEGER_FORMAT " methods\n",
			       escape_terminal(path, strlen(path)), methods);
	}
	return 0;
}

/*
 * chosen: an option about how we would attach, or NULL. *donep: the process is the daemon's.
 * Returns 0, or it has been said.
 */
static int map_ask(const struct daemon_options *opts, const struct proc *proc, const char *chosen,
		   bool *donep)
{
	_cleanup_(query_client_freep) struct query_client *client = NULL;
	json_t *reply = NULL;
	int r;

	r = daemon_open(opts, &client);
	if (r < 0 || !client)
		return r;
	r = daemon_has(client, proc, donep);
	if (r == 0 && *donep && chosen) {
		log_error("pid %d: clrsymd keeps its map, with the options that clrsymd was "
			  "started with: leave out --%s",
			  (int)proc->pid, chosen);
		return -1;
	}
	if (r == 0 && *donep)
		r = daemon_write_map(client, proc->pid, proc->start, &reply);
	if (r)
		log_error("pid %d: %s", (int)proc->pid, daemon_error_text(client, r));
	else if (*donep)
		r = print_files(reply, proc->pid);
	json_decref(reply);
	return r;
}

static void help(void)
{
	printf("Usage: clrsym map [OPTION]... PID\n"
	       "Writes the perf map of a .NET process: clrsymd does if it has the process, else "
	       "attaches,\nwrites and leaves.\n\n"
	       "  -p, --pid PID               the process, instead of the "
	       "argument\n" ATTACH_OPTIONS_HELP
	       "      --socket-path PATH      diagnostic socket, as the process sees "
	       "it\n" DAEMON_HELP_WIDE "\nIt prints the files that were written, with "
	       "the number of methods.\n" CLI_EXIT_HELP);
}

int cli_map(int argc, char **argv)
{
	enum { OPT_PATH = ATTACH_OPT_END };
	static const struct option options[] = {
		ATTACH_OPTIONS,
		{ "socket-path", required_argument, NULL, OPT_PATH },
		DAEMON_OPTIONS,
		CLI_PID_OPTION,
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	_cleanup_(map_run_deinit) struct map_run run = { .signal_fd = -1 };
	struct attach_options opts = { .target.once = true };
	const char *wrong, *chosen = NULL, *pid_option = NULL;
	struct daemon_options daemon = { 0 };
	struct proc *proc = NULL;
	bool done = false;
	int c, r, index = 0;
	pid_t pid;

	while ((c = getopt_long(argc, argv, "p:h", options, &index)) >= 0) {
		if (c == 'h') {
			help();
			return cli_flush();
		}
		if (c == '?')
			return cli_usage_hint("map");
		if (c == 'p')
			pid_option = optarg;
		if (c == 'p' || daemon_option_take(&daemon, c, optarg))
			continue;
		chosen = options[index].name;
		if (c == OPT_PATH)
			opts.target.socket.path = optarg;
		wrong = c == OPT_PATH ? NULL : attach_option_take(&opts, c, optarg);
		if (wrong)
			return cli_usage_error("map", "%s", wrong);
	}
	if (opts.map.where == PERFMAP_OFF)
		return cli_usage_error("map", "--map off leaves nothing to do");
	r = cli_only_pid("map", pid_option, argc - optind, argv + optind, &pid);
	if (r)
		return r;
	run.tty = isatty(STDERR_FILENO);
	proc_maps_sweep();
	r = proc_open(pid, &proc);
	if (r) {
		log_error("pid %d: %s", (int)pid,
			  r < 0 ? strerror(-r) : proc_error_text(NULL, r, NULL));
		return EXIT_FAILED;
	}
	r = map_ask(&daemon, proc, chosen, &done);
	if (r || done)
		proc_close(proc);
	else
		r = map_attach(&run, proc, &opts);
	return cli_flush() != EXIT_DONE || r ? EXIT_FAILED : EXIT_DONE;
}
