/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clrsym perf -- record …: one command from nothing to a report.
 *
 * perf record runs with the clock that code events have, in a directory beside the output.
 * Meanwhile every .NET process that it records is attached to as soon as it can be, and the code it
 * makes is read while it is there. When perf has ended, names go into what it wrote, which then
 * appears under the name that perf would have given it.
 */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/number.h"
#include "cli/naming.h"
#include "cli/perfargs.h"
#include "cli/recording.h"
#include "cli/watch.h"
#include "cli/workdir.h"
#include "perfdata/buildid.h"

#define PERF_LOOK_NS    MS_NS(100) /* for processes that are new */
#define PERF_MEASURE_NS SEC_NS(60)
/* Before perf starts: for a hundred processes, and not for one that is stopped. */
#define PERF_ATTACH_NS SEC_NS(3)

struct perf_run {
	struct perfargs args;
	struct sources set;
	struct recording_options opts;
	pid_t child;
	int status;
	bool ended;
	bool use_clockid, measure;
	int32_t clockid;
	bool told_to_stop; /* by a signal to us */
	uint64_t looked_ns, measured_ns;
	struct watch watch;
	struct workdir *workdir;
	int spool_fd; /* -o - */
};

/* -- while perf runs ------------------------------------------------------------------ */

static void measure(struct perf_run *run)
{
	struct perfdata_clock_pair pair;

	run->measured_ns = clock_now_ns();
	if (run->measure && perfdata_clock_measure(run->use_clockid, run->clockid, &pair) == 0)
		perfdata_clock_track_add(&run->opts.track, &pair);
}

static bool perf_ended(void *data)
{
	struct perf_run *run = data;
	uint64_t now = clock_now_ns();

	if (!run->ended && waitpid(run->child, &run->status, WNOHANG) == run->child)
		run->ended = true;
	if (run->ended)
		return true;
	if (now - run->measured_ns >= PERF_MEASURE_NS)
		measure(run);
	if (now - run->looked_ns >= PERF_LOOK_NS) {
		run->looked_ns = now;
		if (watch_look(&run->watch) < 0)
			log_warn("out of memory: no further process is attached to");
		if (sources_keep(&run->set, !run->opts.no_code, now) < 0)
			log_warn("out of memory: code that the daemon has may be missing");
	}
	return false;
}

static void free_args(char ***argsp)
{
	char **arg;

	for (arg = *argsp; arg && *arg; arg++)
		free(*arg);
	free(*argsp);
}

/* Returns false without memory. */
static bool push(char **args, int *np, const char *arg)
{
	args[*np] = strdup(arg);
	return args[(*np)++];
}

/* argv for perf: its own, with our output and, if none was chosen, the clock. */
static char **perf_argv(struct perf_run *run, const char *perf, const char *output, int argc,
			char **argv)
{
	char **args = calloc((size_t)argc + 8, sizeof(*args));
	bool ok = args != NULL;
	int i, options = run->args.command, n = 0;

	/* ours come last, as the last one counts; before the "--" that ends them */
	if (options > 1 && strcmp(argv[options - 1], "--") == 0)
		options--;
	ok = ok && push(args, &n, perf);
	for (i = 0; i < options; i++)
		ok = ok && push(args, &n, argv[i]);
	if (!run->args.clock)
		ok = ok && push(args, &n, "-k") && push(args, &n, "mono");
	if (output)
		ok = ok && push(args, &n, "-o") && push(args, &n, output);
	if (run->args.command < argc)
		ok = ok && push(args, &n, "--");
	for (i = run->args.command; i < argc; i++)
		ok = ok && push(args, &n, argv[i]);
	if (!ok)
		free_args(&args);
	return ok ? args : NULL;
}

static int start_perf(struct perf_run *run, char **args)
{
	sigset_t none;

	run->child = fork();
	if (run->child < 0)
		return -errno;
	if (run->child)
		return 0;
	/* perf must not record on for nobody */
	prctl(PR_SET_PDEATHSIG, SIGINT);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGXFSZ, SIG_DFL);
	if (run->spool_fd >= 0)
		dup2(run->spool_fd, STDOUT_FILENO);
	execvp(args[0], args);
	fprintf(stderr, "clrsym: %s: %s (Debian's package is linux-perf)\n", args[0],
		strerror(errno));
	_exit(127);
}

static bool all_attached(void *data)
{
	struct perf_run *run = data;
	const struct source *s;

	for (s = run->set.list; s; s = s->next)
		if (!s->complete && !s->ended && !s->held)
			return false;
	return true;
}

static int run_perf(struct perf_run *run, char **args)
{
	int r;

	/* what runs already is known before the recording begins, as far as it answers */
	r = watch_look(&run->watch);
	if (r == 0)
		r = sources_wait(&run->set, all_attached, run, clock_now_ns() + PERF_ATTACH_NS);
	if (r >= 0 && run->set.interrupted)
		return -ECANCELED;
	if (r < 0)
		return r;
	measure(run);
	r = start_perf(run, args);
	if (r < 0)
		return r;
	run->watch.perf = run->child;
	while (!run->ended) {
		r = sources_wait(&run->set, perf_ended, run, 0);
		if (run->ended)
			break;
		/* told to stop, or out of memory: perf ends in good order, and what it has is kept
		 */
		run->told_to_stop = true;
		run->set.interrupted = false;
		kill(run->child, SIGINT);
		if (r < 0)
			run->ended = waitpid(run->child, &run->status, 0) == run->child;
	}
	measure(run);
	return 0;
}

/* -- what it wrote -------------------------------------------------------------------- */

static int deliver(void *data, const char *from, const char *to)
{
	struct perf_run *run = data;
	struct stat st;

	/* perf has said why it recorded nothing */
	if (stat(from, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0)
		return 1;
	run->opts.in = from;
	run->opts.out = to;
	return recording_inject(&run->set, &run->opts);
}

/* perf's, or the program's that it ran; its end by our own stop is none. */
static int exit_status(const struct perf_run *run, int status, bool recorded)
{
	if (WIFEXITED(run->status) && WEXITSTATUS(run->status))
		return WEXITSTATUS(run->status);
	if (WIFSIGNALED(run->status) && !(run->told_to_stop || WTERMSIG(run->status) == SIGINT))
		return 128 + WTERMSIG(run->status);
	return recorded ? status : EXIT_DONE;
}

/* -o -: what perf writes is kept until its end, like any pipe. */
static int record_pipe(struct perf_run *run, const char *perf, int argc, char **argv)
{
	_cleanup_(free_args) char **args = NULL;
	char in[64];
	int r;

	run->spool_fd = recording_spool_new();
	if (run->spool_fd < 0)
		return run->spool_fd;
	args = perf_argv(run, perf, NULL, argc, argv);
	r = args ? run_perf(run, args) : -ENOMEM;
	if (r < 0)
		return r;
	snprintf(in, sizeof(in), "/proc/self/fd/%d", run->spool_fd);
	run->opts.in = in;
	run->opts.out = "-";
	return exit_status(run, recording_inject(&run->set, &run->opts), true);
}

static int record_files(struct perf_run *run, const char *perf, int argc, char **argv)
{
	_cleanup_(free_args) char **args = NULL;
	unsigned int n;
	int r;

	r = workdir_new(&run->workdir, run->args.output ? run->args.output : "perf.data");
	if (r < 0)
		return r;
	args = perf_argv(run, perf, workdir_perf_output(run->workdir), argc, argv);
	r = args ? run_perf(run, args) : -ENOMEM;
	if (r < 0)
		return r;
	r = workdir_deliver(run->workdir, deliver, run, &n);
	return r < 0 ? r : exit_status(run, r ? EXIT_FAILED : EXIT_DONE, n > 0);
}

static int record(struct perf_run *run, const char *perf, int argc, char **argv)
{
	const char *output = run->args.output ? run->args.output : "perf.data";
	_cleanup_(buildid_cache_freep) struct buildid_cache *cache = NULL;
	int r;

	/* a daemon or a cache that cannot be used is better known before an hour of recording */
	if (!sources_daemon(&run->set) && run->set.no_daemon)
		return EXIT_FAILED;
	r = buildid_cache_open(&cache, run->opts.buildid_dir);
	if (r) {
		log_error("%s", r < 0 ? strerror(-r) : buildid_cache_error_text(cache, r));
		return EXIT_FAILED;
	}
	r = strcmp(output, "-") == 0 ? record_pipe(run, perf, argc, argv)
				     : record_files(run, perf, argc, argv);
	if (r == -EEXIST)
		log_error("%s: is neither a file nor a recording; use another -o", output);
	else if (r < 0)
		log_error("%s: %s", output, strerror(-r));
	return r < 0 ? EXIT_FAILED : r;
}

static void perf_run_deinit(struct perf_run *run)
{
	sources_deinit(&run->set);
	watch_deinit(&run->watch);
	workdir_free(run->workdir);
	fd_close(run->spool_fd);
}

static void help(void)
{
	printf("Usage: clrsym perf [OPTION]... -- record [perf record's own arguments]\n"
	       "Runs perf record, stays attached to the .NET processes that it records, or asks "
	       "clrsymd for\nthose that it has, and names their code in what it wrote: perf report "
	       "then shows it.\n\n"
	       "      --perf FILE         the perf to run (perf)\n"
	       "      --buildid-dir DIR   perf's build-id cache (perf's own choice, or ~/.debug)\n"
	       "      --no-code           images without code bytes: nothing to "
	       "annotate\n" NAMING_OPTIONS_HELP
	       "      --buffer-mb N       buffer asked of the runtime (64)\n" DAEMON_HELP_MANY "\n"
	       "Without -p, -t or a program perf records the whole machine, until ^C.\n\n"
	       "Example: clrsym perf -- record -g -F 999 -p $(pidof myapp) -- sleep 10\n"
	       "Exit status: perf's own if it is not 0, else 0 done, 1 failed, 2 wrong usage.\n");
}

int cli_perf(int argc, char **argv)
{
	enum {
		OPT_PERF = 256,
		OPT_BUILDID_DIR,
		OPT_NO_CODE,
		OPT_BUFFER,
	};
	static const struct option options[] = {
		{ "perf", required_argument, NULL, OPT_PERF },
		{ "buildid-dir", required_argument, NULL, OPT_BUILDID_DIR },
		{ "no-code", no_argument, NULL, OPT_NO_CODE },
		NAMING_OPTIONS,
		{ "buffer-mb", required_argument, NULL, OPT_BUFFER },
		DAEMON_OPTIONS,
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	_cleanup_(perf_run_deinit) struct perf_run run = { .spool_fd = -1 };
	const char *perf = "perf", *wrong;
	struct naming naming = { 0 };
	uint64_t v;
	int c, r;

	r = sources_init(&run.set);
	if (r < 0) {
		log_error("%s", strerror(-r));
		return EXIT_FAILED;
	}
	run.set.opts.keep_code = true;
	run.set.opts.map.retired_bytes = CAP_RECORDING_RETIRED;
	run.set.opts.map.retired_ns = UINT64_MAX;
	while ((c = getopt_long(argc, argv, "+h", options, NULL)) >= 0) {
		switch (c) {
		case OPT_PERF: perf = optarg; break;
		case OPT_BUILDID_DIR: run.opts.buildid_dir = optarg; break;
		case OPT_NO_CODE:
			run.opts.no_code = true;
			run.set.opts.keep_code = false;
			break;
		case NAMING_OPT_NAMES:
		case NAMING_OPT_NO_TIERS:
			wrong = naming_take(&naming, c, optarg);
			if (wrong)
				return cli_usage_error("perf", "%s", wrong);
			break;
		case OPT_BUFFER:
			if (!parse_u64(optarg, CAP_BUFFER_MB, &v) || !v)
				return cli_usage_error("perf", "--buffer-mb takes 1 to 1024");
			run.set.opts.buffer_mb = (uint32_t)v;
			break;
		case 'h': help(); return cli_flush();
		default:
			if (!daemon_option_take(&run.set.daemon_opts, c, optarg))
				return cli_usage_hint("perf");
			break;
		}
	}
	run.opts.inject.style = naming.style;
	run.opts.inject.no_tiers = naming.no_tiers;
	argc -= optind;
	argv += optind;
	if (!argc || strcmp(argv[0], "record") != 0)
		return cli_usage_error("perf",
				       "only 'record' is supported: clrsym perf -- record ...");
	perfargs_parse(&run.args, argc, argv);
	run.watch.set = &run.set;
	run.watch.args = &run.args;
	run.measure = true;
	if (run.args.clock) {
		run.use_clockid = true;
		run.measure = perfargs_clockid(run.args.clock, &run.clockid);
	} else {
		run.use_clockid = true;
		run.clockid = CLOCK_MONOTONIC;
	}
	return record(&run, perf, argc, argv);
}
