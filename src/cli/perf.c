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

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <libgen.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/number.h"
#include "cli/perfargs.h"
#include "cli/recording.h"

#define PERF_LOOK_NS    MS_NS(100) /* for processes that are new */
#define PERF_MEASURE_NS SEC_NS(60)
/* A runtime listens some 100 ms after its process starts; a slow machine takes longer. */
#define PERF_TRY_NS SEC_NS(10)
/* Before perf starts: long enough for a hundred processes. */
#define PERF_ATTACH_NS SEC_NS(10)

/* A process that was looked at: by pid and start, as pids come again. */
struct seen {
	pid_t pid, parent;
	uint64_t start;
	bool recorded; /* descends from what perf runs */
	bool over;     /* nothing more to do: attached, or not .NET, or it will not be */
	uint64_t first_ns;
};

struct perf_run {
	struct perfargs args;
	struct sources set;
	struct recording_options opts;
	pid_t child;
	int status;
	bool ended;
	bool use_clockid, measure;
	int32_t clockid;
	uint64_t looked_ns, measured_ns;
	struct seen *seen;
	size_t n_seen, seen_room;
	char *dir;     /* where perf writes */
	char *out_dir; /* where its output belongs */
	char *out_name;
	int spool_fd; /* -o - */
};

/* -- which processes ------------------------------------------------------------------ */

static struct seen *find_seen(struct perf_run *run, pid_t pid)
{
	size_t i;

	for (i = run->n_seen; i--;)
		if (run->seen[i].pid == pid)
			return &run->seen[i];
	return NULL;
}

static bool in_list(const char *list, pid_t pid)
{
	while (list && *list) {
		char *end;
		long n = strtol(list, &end, 10);

		if (end == list)
			return false;
		if (n == pid)
			return true;
		list = *end == ',' ? end + 1 : end;
	}
	return false;
}

/* perf -t takes threads: theirs is the process that has them. */
static bool has_thread_in(const char *list, pid_t pid)
{
	char path[64];

	while (list && *list) {
		char *end;
		long n = strtol(list, &end, 10);

		if (end == list)
			return false;
		snprintf(path, sizeof(path), "/proc/%d/task/%ld", (int)pid, n);
		if (access(path, F_OK) == 0)
			return true;
		list = *end == ',' ? end + 1 : end;
	}
	return false;
}

static bool is_recorded(struct perf_run *run, const struct seen *s)
{
	const struct seen *parent;

	if (run->args.system_wide || in_list(run->args.pids, s->pid) ||
	    has_thread_in(run->args.tids, s->pid))
		return true;
	if (run->args.pids || run->args.tids)
		parent = find_seen(run, s->parent); /* what a recorded process starts is recorded */
	else if (run->child && s->parent == run->child)
		return true;
	else
		parent = find_seen(run, s->parent);
	return parent && parent->recorded;
}

static int add_seen(struct perf_run *run, const struct seen *s)
{
	if (run->n_seen == run->seen_room) {
		size_t room = run->seen_room ? run->seen_room * 2 : 256;
		struct seen *seen = realloc(run->seen, room * sizeof(*seen));

		if (!seen)
			return -ENOMEM;
		run->seen = seen;
		run->seen_room = room;
	}
	run->seen[run->n_seen++] = *s;
	return 0;
}

/* Attaches when it is a .NET process by now. Takes over proc. */
static int try_attach(struct perf_run *run, struct seen *s, struct proc *proc)
{
	struct source *source = source_find(&run->set, s->pid);
	enum proc_dotnet kind = PROC_NOT_DOTNET;
	int r;

	if (clock_now_ns() - s->first_ns > PERF_TRY_NS)
		s->over = true;
	if (source && source->start == proc->start) {
		/* a try that failed may have come too early */
		if (source->complete || !source->ended) {
			s->over |= source->complete;
			proc_close(proc);
			return 0;
		}
		if (s->over) {
			proc_close(proc);
			return 0;
		}
		source_remove(source);
	}
	r = proc_detect_dotnet(proc, &kind);
	if (r || kind == PROC_NOT_DOTNET) {
		proc_close(proc);
		return MIN(r, 0);
	}
	return source_attach_proc(&run->set, proc, &source);
}

static int look_at(void *data, pid_t pid)
{
	struct perf_run *run = data;
	struct seen *s = find_seen(run, pid);
	struct proc *proc;
	int r;

	if (pid == run->child || pid == getpid())
		return 0; /* perf's child is perf until it executes what it was told to */
	if (s && s->over && !s->recorded)
		return 0;
	r = proc_open(pid, &proc);
	if (r)
		return MIN(r, 0);
	if (!s || s->start != proc->start) {
		struct seen new = {
			.pid = pid,
			.parent = proc->parent,
			.start = proc->start,
			.first_ns = clock_now_ns(),
		};

		new.recorded = is_recorded(run, &new);
		new.over = !new.recorded;
		r = add_seen(run, &new);
		if (r < 0) {
			proc_close(proc);
			return r;
		}
		s = &run->seen[run->n_seen - 1];
	}
	if (s->over) {
		proc_close(proc);
		return 0;
	}
	return try_attach(run, s, proc);
}

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
		if (proc_for_each(look_at, run) < 0)
			log_warn("out of memory: no further process is attached to");
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
		if (!s->complete && !s->ended)
			return false;
	return true;
}

static int run_perf(struct perf_run *run, char **args)
{
	int r;

	/* what runs already is known before the recording begins, and costs nothing during it */
	r = proc_for_each(look_at, run);
	if (r >= 0)
		r = sources_wait(&run->set, all_attached, run, clock_now_ns() + PERF_ATTACH_NS);
	if (r >= 0 && run->set.interrupted)
		return -ECANCELED;
	if (r < 0)
		return r;
	measure(run);
	r = start_perf(run, args);
	if (r < 0)
		return r;
	for (;;) { /* until perf ends */
		r = sources_wait(&run->set, perf_ended, run, 0);
		if (r <= 0)
			break;
		/* told to stop: perf ends in good order, and what it has is kept */
		run->set.interrupted = false;
		kill(run->child, SIGINT);
	}
	measure(run);
	return r;
}

/* -- what it wrote -------------------------------------------------------------------- */

static int finish_one(struct perf_run *run, const char *name)
{
	_cleanup_free_ char *in = NULL, *out = NULL, *old = NULL;
	struct stat st;
	int status;

	if (asprintf(&in, "%s/%s", run->dir, name) < 0 ||
	    asprintf(&out, "%s/%s", run->out_dir, name) < 0 || asprintf(&old, "%s.old", out) < 0) {
		in = out = old = NULL;
		return EXIT_FAILED;
	}
	run->opts.in = in;
	run->opts.out = strncmp(out, "./", 2) == 0 ? out + 2 : out;
	if (stat(in, &st) == 0 && st.st_size == 0)
		return EXIT_FAILED; /* perf has said why it recorded nothing */
	/* perf keeps the recording before, too */
	if (access(out, F_OK) == 0)
		rename(out, old);
	status = recording_inject(&run->set, &run->opts);
	if (status != EXIT_DONE && rename(in, out) == 0)
		log_warn("%s: as perf wrote it, without names", run->opts.out);
	return status;
}

static int is_output(const struct dirent *entry)
{
	return strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
}

static int finish_all(struct perf_run *run)
{
	struct dirent **entries;
	int i, n, status = EXIT_DONE;

	n = scandir(run->dir, &entries, is_output, alphasort);
	if (n < 0)
		return EXIT_FAILED;
	if (n == 0) /* perf has said why */
		status = EXIT_FAILED;
	for (i = 0; i < n; i++) {
		if (finish_one(run, entries[i]->d_name) != EXIT_DONE)
			status = EXIT_FAILED;
		free(entries[i]);
	}
	free(entries);
	return status;
}

static void remove_tree(const char *path)
{
	struct dirent **entries;
	int i, n = scandir(path, &entries, is_output, NULL);

	for (i = 0; i < n; i++) {
		_cleanup_free_ char *sub = NULL;

		if (asprintf(&sub, "%s/%s", path, entries[i]->d_name) < 0)
			sub = NULL;
		else if (unlink(sub) < 0)
			remove_tree(sub);
		free(entries[i]);
	}
	if (n >= 0)
		free(entries);
	rmdir(path);
}

static int place(struct perf_run *run)
{
	const char *out = run->args.output ? run->args.output : "perf.data";
	_cleanup_free_ char *a = strdup(out), *b = strdup(out);

	if (!a || !b)
		return -ENOMEM;
	run->out_dir = strdup(dirname(a));
	run->out_name = strdup(basename(b));
	if (!run->out_dir || !run->out_name ||
	    asprintf(&run->dir, "%s/.clrsym-perf.XXXXXX", run->out_dir) < 0) {
		run->dir = NULL;
		return -ENOMEM;
	}
	if (!mkdtemp(run->dir)) {
		free(TAKE_PTR(run->dir));
		return -errno;
	}
	return 0;
}

static int record(struct perf_run *run, const char *perf, int argc, char **argv)
{
	_cleanup_free_ char *output = NULL;
	_cleanup_(free_args) char **args = NULL;
	char in[64];
	int r, status;

	if (run->args.output && strcmp(run->args.output, "-") == 0) {
		run->spool_fd = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
		r = run->spool_fd < 0 ? -errno : 0;
	} else {
		r = place(run);
		if (r == 0 && asprintf(&output, "%s/%s", run->dir, run->out_name) < 0) {
			output = NULL;
			r = -ENOMEM;
		}
	}
	args = r < 0 ? NULL : perf_argv(run, perf, output, argc, argv);
	if (r == 0)
		r = args ? run_perf(run, args) : -ENOMEM;
	if (r < 0) {
		log_error("%s: %s", run->args.output ? run->args.output : "perf.data",
			  strerror(-r));
		return EXIT_FAILED;
	}
	if (run->spool_fd >= 0) {
		snprintf(in, sizeof(in), "/proc/self/fd/%d", run->spool_fd);
		run->opts.in = in;
		run->opts.out = "-";
		status = recording_inject(&run->set, &run->opts);
	} else {
		status = finish_all(run);
	}
	if (WIFEXITED(run->status) && WEXITSTATUS(run->status))
		return WEXITSTATUS(run->status); /* the program's own, as perf hands it on */
	return status;
}

static void perf_run_deinit(struct perf_run *run)
{
	sources_deinit(&run->set);
	if (run->dir)
		remove_tree(run->dir);
	free(run->dir);
	free(run->out_dir);
	free(run->out_name);
	free(run->seen);
	fd_close(run->spool_fd);
}

static void help(void)
{
	printf("Usage: clrsym perf [OPTION]... -- record [perf record's own arguments]\n"
	       "Runs perf record, stays attached to the .NET processes that it records, and names "
	       "their\ncode in what it wrote: perf report then shows it.\n\n"
	       "      --perf FILE         the perf to run (perf)\n"
	       "      --buildid-dir DIR   perf's build-id cache (perf's own choice, or ~/.debug)\n"
	       "      --no-code           images without code bytes: nothing to annotate\n"
	       "      --names short|full  Ns.Type::Method, or with its arguments (short)\n"
	       "      --no-tiers          no [Tier] behind names\n"
	       "      --buffer-mb N       buffer asked of the runtime (64)\n"
	       "      --no-daemon         attach although clrsymd or clrsym is attached already\n\n"
	       "Example: clrsym perf -- record -g -F 999 -p $(pidof myapp) -- sleep 10\n");
}

int cli_perf(int argc, char **argv)
{
	enum {
		OPT_PERF = 256,
		OPT_BUILDID_DIR,
		OPT_NO_CODE,
		OPT_NAMES,
		OPT_NO_TIERS,
		OPT_BUFFER,
		OPT_NO_DAEMON
	};
	static const struct option options[] = {
		{ "perf", required_argument, NULL, OPT_PERF },
		{ "buildid-dir", required_argument, NULL, OPT_BUILDID_DIR },
		{ "no-code", no_argument, NULL, OPT_NO_CODE },
		{ "names", required_argument, NULL, OPT_NAMES },
		{ "no-tiers", no_argument, NULL, OPT_NO_TIERS },
		{ "buffer-mb", required_argument, NULL, OPT_BUFFER },
		{ "no-daemon", no_argument, NULL, OPT_NO_DAEMON },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	_cleanup_(perf_run_deinit) struct perf_run run = { .spool_fd = -1 };
	const char *perf = "perf";
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
		case OPT_NAMES:
			if (!names_parse_style(optarg, &run.opts.inject.style))
				return cli_usage_error("perf", "--names takes short or full");
			break;
		case OPT_NO_TIERS: run.opts.inject.no_tiers = true; break;
		case OPT_BUFFER:
			if (!parse_u64(optarg, CAP_BUFFER_MB, &v) || !v)
				return cli_usage_error("perf", "--buffer-mb takes 1 to 1024");
			run.set.opts.buffer_mb = (uint32_t)v;
			break;
		case OPT_NO_DAEMON: run.set.beside_others = true; break;
		case 'h': help(); return cli_flush();
		default: return cli_usage_hint("perf");
		}
	}
	argc -= optind;
	argv += optind;
	if (!argc || strcmp(argv[0], "record") != 0)
		return cli_usage_error("perf", "-- record and perf record's own arguments");
	perfargs_parse(&run.args, argc, argv);
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
